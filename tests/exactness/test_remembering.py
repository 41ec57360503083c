"""Processors and criteria that remember get exactly the calls of a serial decode (contract 0x06D, 0x06F, 0x06J)."""

import copy
from unittest import mock

import pytest
import torch
from transformers.generation import SynthIDTextWatermarkingConfig, WatermarkingConfig
from transformers.generation.logits_process import (
    SynthIDTextWatermarkLogitsProcessor,
    UnbatchedClassifierFreeGuidanceLogitsProcessor,
)

import hf_exactassist
from hf_exactassist.schedules import ConstantSchedule
from tests.exactness.remembering import (
    AfterTrigger,
    Automaton,
    Counter,
    EndsOnce,
    FirstOfAll,
    Patience,
    Saving,
    prefix_function,
)
from tests.tiny import VOCABULARY, ScriptedDrafter, noisy, prompts, tiny


NEW = 24
LENGTHS = {1: [6], 3: [6, 4, 5]}
GREEDY = {"do_sample": False, "max_new_tokens": NEW}


@pytest.fixture(scope="module")
def pair():
    target = tiny()
    return target, noisy(target, 0.008)


def state(value):
    """What an object remembers, ready to compare."""
    return {name: part.tolist() if isinstance(part, torch.Tensor) else part for name, part in vars(value).items()}


PROCESSORS = {
    "counter": Counter,
    "automaton": lambda: Automaton(40),
    "after a trigger": lambda: AfterTrigger(49, list(range(20, 79))),
    "saves itself": Saving,
}


@pytest.mark.parametrize("k", [1, 4, 8])
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("name", PROCESSORS)
def test_greedy_text_and_memory_are_plain_generates(pair, name, batch, k):
    """Row 9, A44 to A46, A52."""
    target, assistant = pair
    inputs, theirs, ours = prompts(LENGTHS[batch]), PROCESSORS[name](), PROCESSORS[name]()
    settings = {**GREEDY, "eos_token_id": None}
    plain = target.generate(**inputs, **settings, logits_processor=[theirs])
    output = hf_exactassist.generate(
        target,
        **inputs,
        **settings,
        assistant_model=assistant,
        num_assistant_tokens=k,
        logits_processor=[ours],
        return_dict_in_generate=True,
    )
    assert output.sequences.tolist() == plain.tolist() != target.generate(**inputs, **settings).tolist()
    assert state(ours) == state(theirs)
    assert (output.assist_stats.in_step is None) == (batch == 1)
    assert output.assist_stats.drafted


@pytest.mark.parametrize("batch", [1, 3])
def test_forced_accept_lengths_leave_only_the_calls_of_published_tokens(pair, batch):
    """Every accept length from none to all, in rounds of four drafts; in every fourth round each row its own."""
    target, _ = pair
    inputs, theirs, ours = prompts(LENGTHS[batch]), Counter(), Counter()
    settings = {**GREEDY, "eos_token_id": None, "max_new_tokens": 60}
    plain = target.generate(**inputs, **settings, logits_processor=[theirs])
    drafter = ScriptedDrafter(plain, lambda row, number: (number + 2 * row * (number % 4 == 1)) % 6)
    loop = hf_exactassist.AssistedDecoding(drafter, ConstantSchedule(4))
    output = target.generate(**inputs, **settings, logits_processor=[ours], custom_generate=loop)
    assert output.tolist() == plain.tolist()
    assert ours.shown == theirs.shown
    assert {count for commit in drafter.observed for count in commit.accepted} >= {0, 1, 2, 3, 4}


@pytest.mark.parametrize("k", [1, 3, 8])
@pytest.mark.parametrize("steps", [1, 2, 7])
def test_a_processor_is_never_called_after_its_end(pair, steps, k):
    """A49: the end lies inside a block; drafts that it forbids are not proposed."""
    target, assistant = pair
    inputs, eos = prompts([6]), 2
    settings = {**GREEDY, "eos_token_id": eos}
    plain = target.generate(**inputs, **settings, logits_processor=[EndsOnce(steps, eos)])
    processor = EndsOnce(steps, eos)
    ours = hf_exactassist.generate(
        target,
        **inputs,
        **settings,
        assistant_model=assistant,
        num_assistant_tokens=k,
        logits_processor=[processor],
    )
    assert ours.tolist() == plain.tolist() and ours[0, -1] == eos and ours.shape[1] == 6 + steps
    assert processor.over


@pytest.mark.parametrize("batch", [1, 3])
def test_prefix_function_with_a_memory_is_exact(pair, batch):
    """Row 9, A53: called for the right row, once a token; used twice, it goes on where it was."""
    target, assistant = pair
    inputs, theirs, ours = prompts(LENGTHS[batch]), prefix_function(VOCABULARY), prefix_function(VOCABULARY)
    for _ in range(2):
        plain = target.generate(**inputs, **GREEDY, prefix_allowed_tokens_fn=theirs)
        mine = hf_exactassist.generate(
            target, **inputs, **GREEDY, assistant_model=assistant, prefix_allowed_tokens_fn=ours
        )
        assert mine.tolist() == plain.tolist()
        assert ours.calls == theirs.calls


def test_drafts_know_what_the_processor_forbids(pair):
    """A grammar of one token a step: acceptance is complete, as copies of the processor are asked about drafts."""
    target, assistant = pair

    class Fixed(Counter):
        def __call__(self, input_ids, scores):
            self.calls += 1
            only = torch.full_like(scores, -torch.inf)
            only[:, 3 + self.calls % 70] = 0
            return only

    output = hf_exactassist.generate(
        target,
        **prompts([6]),
        **GREEDY,
        assistant_model=assistant,
        num_assistant_tokens=5,
        logits_processor=[Fixed()],
        return_dict_in_generate=True,
    )
    assert output.assist_stats.acceptance_rate == 1.0
    assert output.sequences[0, 6:].tolist() == [3 + (i + 1) % 70 for i in range(NEW)]


def test_a_processor_that_only_saves_itself_is_left_out_of_drafts(pair):
    """Target and drafter never share an object that remembers (0x06D), and no law hangs on what is drafted."""
    target, assistant = pair
    output = hf_exactassist.generate(
        target,
        **prompts([6]),
        **GREEDY,
        assistant_model=assistant,
        logits_processor=[Saving(strength=50.0)],
        return_dict_in_generate=True,
    )
    assert output.assist_stats.drafted and output.assist_stats.acceptance_rate < 0.2


# --- criteria ---


@pytest.mark.parametrize("k", [1, 4, 20])
@pytest.mark.parametrize("batch", [1, 3])
def test_criterion_with_a_memory_is_called_once_a_published_prefix(pair, batch, k):
    """As in plain `generate`, it sees the whole batch, once a column."""
    target, assistant = pair
    inputs, theirs, ours = prompts(LENGTHS[batch]), Patience(11), Patience(11)
    plain = target.generate(**inputs, **GREEDY, stopping_criteria=[theirs])
    output = hf_exactassist.generate(
        target,
        **inputs,
        **GREEDY,
        assistant_model=assistant,
        num_assistant_tokens=k,
        stopping_criteria=[ours],
    )
    assert output.tolist() == plain.tolist() and plain.shape[1] == 6 + 11
    assert ours.shown == theirs.shown


@pytest.mark.parametrize("eos", [None, 2])
def test_one_answer_for_a_whole_batch_ends_all_rows(pair, eos):
    target, assistant = pair
    inputs, settings = prompts(LENGTHS[3]), {**GREEDY, "eos_token_id": eos}
    token = int(target.generate(**inputs, **settings)[1, 6 + 9])
    plain = target.generate(**inputs, **settings, stopping_criteria=[FirstOfAll(token)])
    ours = hf_exactassist.generate(
        target,
        **inputs,
        **settings,
        assistant_model=assistant,
        num_assistant_tokens=8,
        stopping_criteria=[FirstOfAll(token)],
    )
    assert ours.tolist() == plain.tolist() and plain.shape[1] < 6 + NEW


def test_processor_and_criterion_with_a_memory_together(pair):
    """In a serial decode they are asked in turns; rows that have ended show padding to both."""
    target, assistant = pair
    inputs, calls = prompts(LENGTHS[3]), []

    class Told(Counter):
        def __call__(self, input_ids, scores):
            calls.append(("processor", input_ids.tolist()))
            return super().__call__(input_ids, scores)

    class Asked(Patience):
        def __call__(self, input_ids, scores, **kwargs):
            calls.append(("criterion", input_ids.tolist()))
            return super().__call__(input_ids, scores)

        def __deepcopy__(self, memo):
            raise TypeError("so that no copy is asked, and all calls are the loop's")

    plain_text = target.generate(**inputs, **GREEDY, logits_processor=[Told()], eos_token_id=None)
    settings = {**GREEDY, "eos_token_id": int(plain_text[0, 6 + 7]), "pad_token_id": 0}
    calls.clear()
    plain = target.generate(**inputs, **settings, logits_processor=[Told()], stopping_criteria=[Asked(19)])
    expected = list(calls)
    calls.clear()

    class Only(Told):
        """Asks for no copies either."""

        def snapshot(self):
            return copy.copy(vars(self))

        def restore(self, snapshot):
            vars(self).update(snapshot)

        def __deepcopy__(self, memo):
            raise TypeError

    ours = hf_exactassist.generate(
        target,
        **inputs,
        **settings,
        assistant_model=assistant,
        num_assistant_tokens=6,
        logits_processor=[Only()],
        stopping_criteria=[Asked(19)],
    )
    assert ours.tolist() == plain.tolist()
    assert calls == expected


# --- Transformers' own ---

WATERMARKS = {
    "synthid": SynthIDTextWatermarkingConfig(ngram_len=3, keys=[1, 22, 333], context_history_size=9),
    "synthid, first calls left out": SynthIDTextWatermarkingConfig(
        ngram_len=4, keys=[4, 5], context_history_size=5, skip_first_ngram_calls=True
    ),
    "left hash": WatermarkingConfig(bias=4.0, seeding_scheme="lefthash"),
    "self hash": WatermarkingConfig(bias=4.0, seeding_scheme="selfhash", context_width=3),
}


@pytest.mark.parametrize("k", [1, 5])
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("name", WATERMARKS)
def test_watermarked_text_is_plain_generates(pair, name, batch, k):
    """Row 10; each row reaches its tokens in rounds of its own."""
    target, assistant = pair
    inputs, settings = prompts(LENGTHS[batch]), {**GREEDY, "watermarking_config": WATERMARKS[name]}
    plain = target.generate(**inputs, **settings)
    output = hf_exactassist.generate(
        target,
        **inputs,
        **settings,
        assistant_model=assistant,
        num_assistant_tokens=k,
        return_dict_in_generate=True,
    )
    assert output.sequences.tolist() == plain.tolist() != target.generate(**inputs, **GREEDY).tolist()
    assert output.assist_stats.in_step is None and output.assist_stats.accepted


@pytest.mark.parametrize("k", [1, 5])
@pytest.mark.parametrize("negative", [None, "short", "padded"])
@pytest.mark.parametrize("batch", [1, 3])
def test_guided_text_is_plain_generates(pair, batch, negative, k):
    """Row 11: a cache of its own for every row and call; calls do not touch each other."""
    target, assistant = pair
    inputs, settings = prompts(LENGTHS[batch]), {**GREEDY, "guidance_scale": 1.8}
    if negative:
        other = prompts([3] * batch if negative == "short" else [4, 2, 3][:batch], seed=5)
        settings["negative_prompt_ids"] = other["input_ids"]
        settings["negative_prompt_attention_mask"] = other["attention_mask"]
    plain = target.generate(**inputs, **settings)
    for _ in range(2):
        output = hf_exactassist.generate(
            target,
            **inputs,
            **settings,
            assistant_model=assistant,
            num_assistant_tokens=k,
            return_dict_in_generate=True,
        )
        assert output.sequences.tolist() == plain.tolist() != target.generate(**inputs, **GREEDY).tolist()
        assert output.assist_stats.accepted


def test_guidance_needs_a_negative_prompt_for_every_row(pair):
    target, assistant = pair
    settings = {**GREEDY, "guidance_scale": 1.8, "negative_prompt_ids": prompts([3])["input_ids"]}
    with pytest.raises(hf_exactassist.StatefulProcessor, match="one negative prompt for each of the 3 rows"):
        hf_exactassist.generate(target, **prompts(LENGTHS[3]), **settings, assistant_model=assistant)


def test_guidance_is_asked_once_a_published_token_and_never_by_drafts(pair):
    target, assistant = pair
    kind = UnbatchedClassifierFreeGuidanceLogitsProcessor
    with mock.patch.object(kind, "__call__", autospec=True, side_effect=kind.__call__) as calls:
        hf_exactassist.generate(
            target, **prompts(LENGTHS[3]), **GREEDY, eos_token_id=None, guidance_scale=1.8, assistant_model=assistant
        )
    assert calls.call_count == 3 * NEW


def once_only(name, target):
    if name == "guidance":
        return UnbatchedClassifierFreeGuidanceLogitsProcessor(1.5, target)
    return SynthIDTextWatermarkLogitsProcessor(3, [1, 2], 2**8, 0, 9, torch.device("cpu"))


@pytest.mark.parametrize("name", ["guidance", "synthid"])
def test_a_processor_for_one_use_is_refused_when_it_has_been_used(pair, name):
    target, assistant = pair
    processor, settings = once_only(name, target), {**GREEDY, "eos_token_id": None}
    plain = target.generate(**prompts([6]), **settings, logits_processor=[processor])
    given = {**prompts([6]), **settings, "assistant_model": assistant}
    with pytest.raises(hf_exactassist.StatefulProcessor, match="used before"):
        hf_exactassist.generate(target, **given, logits_processor=[processor])
    ours = hf_exactassist.generate(target, **given, logits_processor=[once_only(name, target)])
    assert ours.tolist() == plain.tolist()


# --- rows in step ---


@pytest.mark.parametrize("who", ["processor", "criterion", "both"])
@pytest.mark.parametrize("k", [3, 8])
def test_rows_in_step_wait_for_one_that_ends_inside_a_block(pair, who, k):
    """All drafts are right, so that nothing but the end of the first row cuts the others; then it shows padding."""
    target, _ = pair
    inputs = prompts(LENGTHS[3])
    text = target.generate(**inputs, **GREEDY, eos_token_id=None, logits_processor=[Counter()] * (who != "criterion"))
    settings = {**GREEDY, "eos_token_id": int(text[0, 6 + 7]), "pad_token_id": 0}

    def given():
        processors = [] if who == "criterion" else [Counter()]
        criteria = [] if who == "processor" else [Patience(1000)]
        return {"logits_processor": processors, "stopping_criteria": criteria}

    theirs, ours = given(), given()
    plain = target.generate(**inputs, **settings, **theirs)
    drafter = ScriptedDrafter(torch.cat([plain, plain[:, :9] + 1], dim=1), lambda row, number: k)
    loop = hf_exactassist.AssistedDecoding(drafter, ConstantSchedule(k))
    output = target.generate(**inputs, **settings, **ours, custom_generate=loop)
    assert output.tolist() == plain.tolist() and (plain[0, 6 + 8 :] == 0).all()
    for mine, yours in zip(ours.values(), theirs.values(), strict=True):
        assert [part.shown for part in mine] == [part.shown for part in yours]
    assert any("stop" in commit.terminal and "held" in commit.terminal for commit in drafter.observed)


def test_rows_in_step_draft_equally_many_tokens(pair):
    """What one row drafts beyond the others cannot be published."""
    target, assistant = pair
    session = hf_exactassist.start(
        target,
        **prompts(LENGTHS[3]),
        **GREEDY,
        eos_token_id=None,
        assistant_model=assistant,
        num_assistant_tokens_schedule="heuristic",
        logits_processor=[Counter()],
    )
    commits = list(iter(session.step, None))
    assert all(len(set(commit.drafted)) == 1 and len({*map(len, commit.tokens)}) == 1 for commit in commits)
    assert len({commit.drafted[0] for commit in commits}) > 2
    assert session.stats.in_step == "Counter"


def test_a_drafter_cannot_call_what_the_target_remembers_with(pair):
    """0x06D: target and drafter never share an object that remembers."""
    target, _ = pair

    class Meddling(ScriptedDrafter):
        def propose(self, lengths):
            rows, scores = self.context.rows, torch.zeros(1, VOCABULARY)
            with pytest.raises(hf_exactassist.StatefulProcessor, match="context.drafting"):
                self.context.processors.process(scores, rows.active, rows.active_lengths(), rows.ids)
            copies = self.context.drafting(self.context.processors)
            assert not copies.process(scores, rows.active, rows.active_lengths(), rows.ids).equal(scores)
            return super().propose(lengths)

    theirs, ours = Counter(), Counter()
    plain = target.generate(**prompts([6]), **GREEDY, logits_processor=[theirs])
    loop = hf_exactassist.AssistedDecoding(Meddling(plain, lambda row, number: 2), ConstantSchedule(4))
    output = target.generate(**prompts([6]), **GREEDY, logits_processor=[ours], custom_generate=loop)
    assert output.equal(plain) and ours.shown == theirs.shown
