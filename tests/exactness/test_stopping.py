"""Where a generation ends: at the first stop plain `generate` finds, wherever it lies in a block (0x05B, 0x06)."""

import copy
import itertools
from unittest import mock

import pytest
import torch
from transformers import GenerationConfig
from transformers.generation import StoppingCriteria, StoppingCriteriaList, StopStringCriteria

import hf_exactassist
from hf_exactassist.schedules import ConstantSchedule
from tests.tiny import ScriptedDrafter, byte_tokenizer, looping, noisy, prompts, same_as_plain, tiny


TOKENS = 16
PROMPT = 7


@pytest.fixture(scope="module")
def target():
    return tiny()


@pytest.fixture(scope="module")
def twin(target):
    return copy.deepcopy(target)


@pytest.fixture(scope="module")
def inputs():
    return prompts([PROMPT])


@pytest.fixture(scope="module")
def greedy(target, inputs):
    """The target's own greedy tokens."""
    return target.generate(**inputs, do_sample=False, max_new_tokens=TOKENS, eos_token_id=None)[0, PROMPT:].tolist()


@pytest.fixture(scope="module")
def loop():
    return looping()


@pytest.fixture(scope="module")
def tokenizer():
    return byte_tokenizer()


def batch():
    return prompts([7, 3, 5, 6], seed=3)


# --- EOS ---


@pytest.mark.parametrize("k", [1, 3, 20])
@pytest.mark.parametrize("place", range(12))
def test_eos_ends_the_text_at_every_place_of_a_block(target, twin, inputs, greedy, place, k):
    """A55, 0x05B: `G = min(A + 1, H)`."""
    ours = same_as_plain(
        target,
        inputs,
        {"assistant_model": twin, "num_assistant_tokens": k},
        max_new_tokens=TOKENS,
        eos_token_id=greedy[place],
    )
    new = greedy.index(greedy[place]) + 1
    assert ours.sequences.shape[1] == PROMPT + new
    # the prefill gives the first token; the rest comes in rounds of `k + 1`
    assert ours.assist_stats.target_forwards == 1 + -(-(new - 1) // (k + 1))
    assert ours.assist_stats.published == new


@pytest.mark.parametrize("k", [3, 20])
@pytest.mark.parametrize("place", [1, 2, 5, 6, 7, 9])
def test_nothing_after_an_accepted_eos_is_published(target, inputs, greedy, place, k):
    """A55, A63: the drafter knows of no EOS, and all its tokens would be accepted."""
    settings = {
        "do_sample": False,
        "max_new_tokens": TOKENS,
        "eos_token_id": greedy[place],
        "return_dict_in_generate": True,
        "output_scores": True,
        "output_logits": True,
    }
    drafter = ScriptedDrafter(torch.tensor([inputs["input_ids"][0].tolist() + greedy]), lambda row, number: k)
    streamer = mock.Mock()
    decoding = hf_exactassist.AssistedDecoding(drafter, ConstantSchedule(k), streamer=streamer)
    ours = target.generate(**inputs, **settings, custom_generate=decoding)
    plain = target.generate(**inputs, **settings)
    assert ours.sequences.tolist() == plain.sequences.tolist()
    new = plain.sequences.shape[1] - PROMPT
    assert len(ours.scores) == len(ours.logits) == new
    assert [int(call.args[0]) for call in streamer.put.call_args_list] == plain.sequences[0, PROMPT:].tolist()
    assert ours.assist_stats.published == new
    assert ours.assist_stats.accepted == sum(min(c.accepted[0], len(c.tokens[0])) for c in drafter.observed)


@pytest.mark.parametrize("k", [1, 3, 20])
def test_the_first_of_several_eos_ids_counts(target, twin, inputs, greedy, k):
    eos = [greedy[9], greedy[6], greedy[11]]
    ours = same_as_plain(
        target, inputs, {"assistant_model": twin, "num_assistant_tokens": k}, max_new_tokens=TOKENS, eos_token_id=eos
    )
    assert ours.sequences[0, PROMPT:].tolist() == greedy[:7]


@pytest.mark.parametrize("k", [1, 5])
@pytest.mark.parametrize("rows", [[7], [7, 3, 5]])
@pytest.mark.parametrize("source", ["assistant", "lookup"])
def test_without_eos_and_pad_id_only_the_length_ends_the_text(rows, k, source):
    """A58: `eos_token_id=None`, no pad token."""
    target = tiny(eos_token_id=None, pad_token_id=None)
    assisted = {"prompt_lookup_num_tokens": k}
    if source == "assistant":
        assisted = {"assistant_model": noisy(target, 0.05), "num_assistant_tokens": k}
    ours = same_as_plain(target, prompts(rows), assisted, max_new_tokens=9)
    assert ours.sequences.shape[1] == max(rows) + 9


# --- length ---


@pytest.mark.parametrize("k", [1, 5, 20])
@pytest.mark.parametrize("tokens", [1, 2, 3])
@pytest.mark.parametrize("limit", ["max_new_tokens", "max_length"])
@pytest.mark.parametrize("source", ["assistant", "lookup"])
def test_length_is_never_exceeded(loop, source, limit, tokens, k):
    """A59; A61: the assistant drafts no more than the budget leaves besides the terminal token."""
    target, inputs = loop
    length = inputs["input_ids"].shape[1]
    assisted = {"prompt_lookup_num_tokens": k}
    if source == "assistant":
        assisted = {"assistant_model": copy.deepcopy(target), "num_assistant_tokens": k}
    limits = {limit: tokens if limit == "max_new_tokens" else length + tokens}
    ours = same_as_plain(target, inputs, assisted, eos_token_id=None, **limits)
    assert ours.sequences.shape[1] == length + tokens
    assert ours.assist_stats.draft_forwards <= max(tokens - 2, 0)
    assert sum(ours.assist_stats.drafted_by_position) <= max(tokens - 2, 0)
    # with room for a draft, there is one
    assert (ours.assist_stats.drafted > 0) == (tokens == 3)


# --- stop strings ---


def stop_texts(tokens, tokenizer):
    """Stop strings made of the text of greedy tokens."""
    text = [tokenizer.decode([token]) for token in tokens]
    return {
        "tokens 5 and 6": text[5] + text[6],
        "first of a block": text[1],
        "starting inside a token": (text[8] + text[9] + text[10])[1:],
        "ending inside a token": text[4] + text[5][:1],
        "one of two": [text[11] + text[12], text[9] + text[10]],
        "never": "no such text",
    }


STOPS = list(stop_texts(range(3, 20), byte_tokenizer()))


@pytest.mark.parametrize("k", [1, 3, 5, 20])
@pytest.mark.parametrize("name", STOPS)
def test_stop_string_cuts_the_block_with_an_assistant(target, twin, inputs, greedy, tokenizer, name, k):
    """A56, A62, A63, row 6: spanning two rounds or early in a long block, the text ends as without assistant."""
    ours = same_as_plain(
        target,
        inputs,
        {"assistant_model": twin, "num_assistant_tokens": k},
        max_new_tokens=TOKENS,
        eos_token_id=None,
        stop_strings=stop_texts(greedy, tokenizer)[name],
        tokenizer=tokenizer,
    )
    assert (ours.sequences.shape[1] == PROMPT + TOKENS) == (name == "never")
    # all drafts are right, so that the stop lies inside a block
    assert ours.assist_stats.target_forwards == 1 + -(-(ours.sequences.shape[1] - PROMPT - 1) // (k + 1))


@pytest.mark.parametrize("k", [1, 3, 20])
@pytest.mark.parametrize("name", STOPS)
def test_stop_string_cuts_the_block_with_prompt_lookup(loop, tokenizer, name, k):
    """A64, row 7."""
    target, inputs = loop
    length = inputs["input_ids"].shape[1]
    tokens = target.generate(**inputs, do_sample=False, max_new_tokens=TOKENS, eos_token_id=None)[0, length:].tolist()
    stop = stop_texts(tokens, tokenizer)[name]
    ours = same_as_plain(
        target,
        inputs,
        {"prompt_lookup_num_tokens": k},
        max_new_tokens=TOKENS,
        eos_token_id=None,
        stop_strings=stop,
        tokenizer=tokenizer,
    )
    assert (ours.sequences.shape[1] == length + TOKENS) == (name == "never")


def test_stop_string_completed_by_half_a_character(tokenizer):
    """A character of two bytes may end in the middle of a block: the second half completes it."""
    target = tiny()
    with torch.no_grad():
        # after any token comes 30, after 30 comes 31: the two bytes of one character
        target.lm_head.weight.zero_()
        target.model.embed_tokens.weight.zero_()
        target.model.embed_tokens.weight[:, 0] = 1
        target.model.embed_tokens.weight[30] = -target.model.embed_tokens.weight[30]
        for layer in target.model.layers:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
        target.lm_head.weight[30, 0], target.lm_head.weight[31, 0] = 1, -1
    ours = same_as_plain(
        target,
        prompts([4]),
        {"assistant_model": copy.deepcopy(target), "num_assistant_tokens": 5},
        max_new_tokens=9,
        eos_token_id=None,
        stop_strings="\u00e9",
        tokenizer=tokenizer,
    )
    assert ours.sequences[0, 4:].tolist() == [30, 31]


@pytest.mark.parametrize("k", [3, 20])
@pytest.mark.parametrize("source", ["assistant", "lookup"])
def test_stop_string_of_the_models_own_generation_config(loop, tokenizer, source, k):
    model, inputs = loop
    target = copy.deepcopy(model)
    length = inputs["input_ids"].shape[1]
    tokens = target.generate(**inputs, do_sample=False, max_new_tokens=9, eos_token_id=None)[0, length:].tolist()
    target.generation_config.stop_strings = tokenizer.decode(tokens[2])
    before = target.generation_config.to_dict()
    assisted = {"prompt_lookup_num_tokens": k}
    if source == "assistant":
        assisted = {"assistant_model": copy.deepcopy(model), "num_assistant_tokens": k}
    ours = same_as_plain(target, inputs, assisted, max_new_tokens=TOKENS, eos_token_id=None, tokenizer=tokenizer)
    assert ours.sequences.shape[1] == length + 3
    assert ours.assist_stats.drafted_by_position[1:2] == [1]
    assert target.generation_config.to_dict() == before
    # and from a config of the call, which is not changed either
    config = GenerationConfig(max_new_tokens=TOKENS, stop_strings=tokenizer.decode(tokens[1]), pad_token_id=0)
    kept = config.to_dict()
    shorter = same_as_plain(model, inputs, assisted, generation_config=config, tokenizer=tokenizer)
    assert shorter.sequences.shape[1] == length + 2
    assert config.to_dict() == kept


@pytest.mark.parametrize("k", [1, 3, 20])
def test_stop_string_criteria_of_the_caller(target, twin, inputs, greedy, tokenizer, k):
    """Row 7: StopStringCriteria in `stopping_criteria`."""
    text = tokenizer.decode(greedy[5:7])
    ours = same_as_plain(
        target,
        inputs,
        {"assistant_model": twin, "num_assistant_tokens": k},
        criteria=lambda: StoppingCriteriaList([StopStringCriteria(tokenizer, [text])]),
        max_new_tokens=TOKENS,
        eos_token_id=None,
    )
    assert ours.sequences.shape[1] < PROMPT + TOKENS


def test_stop_string_criteria_of_the_caller_replace_stop_strings(target, twin, inputs, greedy, tokenizer):
    """Transformers gives a criterion of the caller precedence over its own of the same kind."""
    early, late = tokenizer.decode(greedy[3:5]), tokenizer.decode(greedy[8:10])
    ours = same_as_plain(
        target,
        inputs,
        {"assistant_model": twin},
        criteria=lambda: StoppingCriteriaList([StopStringCriteria(tokenizer, [late])]),
        max_new_tokens=TOKENS,
        eos_token_id=None,
        stop_strings=[early],
        tokenizer=tokenizer,
    )
    assert ours.sequences.shape[1] > PROMPT + 5


def test_stop_strings_stop_each_row_of_a_batch_on_its_own(target, tokenizer):
    """Rows 7 and 18: stop strings are asked row by row."""
    inputs = batch()
    plain = target.generate(**inputs, do_sample=False, max_new_tokens=TOKENS, eos_token_id=None)[:, PROMPT:].tolist()
    stops = [tokenizer.decode(row[place : place + 2]) for row, place in zip(plain, (3, 9, 6, 11), strict=True)]
    for eos in (None, 2):
        same_as_plain(
            target,
            inputs,
            {"assistant_model": noisy(target, 0.05), "num_assistant_tokens": 5},
            max_new_tokens=TOKENS,
            eos_token_id=eos,
            stop_strings=stops,
            tokenizer=tokenizer,
        )


# --- other criteria ---


class Ends(StoppingCriteria):
    """Stops after tokens of the caller's choice, row by row."""

    def __init__(self, tokens):
        self.tokens = torch.tensor(tokens)

    def __call__(self, input_ids, scores, **kwargs):
        return torch.isin(input_ids[:, -1], self.tokens)


class Record(StoppingCriteria):
    """Remembers every prefix it is shown, and how many scores came with it."""

    def __init__(self, seen):
        self.seen = seen

    def __call__(self, input_ids, scores, **kwargs):
        self.seen.append((input_ids.tolist(), None if scores is None else len(scores)))
        return torch.zeros(input_ids.shape[0], dtype=torch.bool)


@pytest.mark.parametrize("k", [1, 3, 20])
@pytest.mark.parametrize("place", [0, 1, 4, 5, 6, 7, 11])
def test_custom_criterion_true_inside_a_block_cuts_it(target, twin, inputs, greedy, place, k):
    """Row 8."""
    ours = same_as_plain(
        target,
        inputs,
        {"assistant_model": twin, "num_assistant_tokens": k},
        criteria=lambda: StoppingCriteriaList([Ends([greedy[place]])]),
        max_new_tokens=TOKENS,
        eos_token_id=None,
    )
    assert ours.sequences.shape[1] == PROMPT + greedy.index(greedy[place]) + 1


@pytest.mark.parametrize("k", [1, 3, 20])
@pytest.mark.parametrize("noise", [0.0, 0.05])
@pytest.mark.parametrize("end", [None, 8])
def test_criteria_see_every_prefix_once_and_in_order(target, inputs, greedy, end, noise, k):
    """Row 8, 0x05B: the record of one row is plain `generate`'s, with and without a stop inside a block."""
    seen = {"plain": [], "ours": []}
    records = iter(seen.values())
    ours = same_as_plain(
        target,
        inputs,
        {"assistant_model": noisy(target, noise), "num_assistant_tokens": k},
        criteria=lambda: StoppingCriteriaList([Record(next(records)), Ends([] if end is None else [greedy[end]])]),
        max_new_tokens=TOKENS,
        eos_token_id=None,
    )
    assert seen["ours"] == seen["plain"]
    assert len(seen["ours"]) == ours.sequences.shape[1] - PROMPT


def test_criteria_that_read_scores_see_those_of_every_token(target, twin, inputs, greedy):
    """Stops where the score of the chosen token falls below a bound that lies between two of the text's."""

    class Unsure(StoppingCriteria):
        def __call__(self, input_ids, scores, **kwargs):
            assert len(scores) == input_ids.shape[1] - PROMPT
            return scores[-1].log_softmax(-1).gather(1, input_ids[:, -1:]).squeeze(1) < bound

    settings = {"do_sample": False, "max_new_tokens": TOKENS, "eos_token_id": None}
    plain = target.generate(**inputs, **settings, return_dict_in_generate=True, output_scores=True)
    surety = [score.log_softmax(-1)[0, token].item() for score, token in zip(plain.scores, greedy, strict=True)]
    place = 3 + surety[3:].index(min(surety[3:]))
    bound = sum(sorted(surety)[:2]) / 2 if min(surety) == surety[place] else surety[place] + 1e-4
    for k in (3, 20):
        ours = same_as_plain(
            target,
            inputs,
            {"assistant_model": twin, "num_assistant_tokens": k},
            criteria=lambda: StoppingCriteriaList([Unsure()]),
            max_new_tokens=TOKENS,
            eos_token_id=None,
        )
        assert ours.sequences.shape[1] < PROMPT + TOKENS


@pytest.mark.parametrize("k", [1, 3, 20])
@pytest.mark.parametrize("seconds", [0.5, 3.5, 8.5, 100])
def test_max_time_is_looked_at_for_every_token(target, twin, inputs, seconds, k):
    """Row 29: on a clock that moves one second per look, both calls end after the same token."""
    clock = itertools.count()
    with mock.patch("transformers.generation.stopping_criteria.time.time", lambda: next(clock)):
        ours = same_as_plain(
            target,
            inputs,
            {"assistant_model": twin, "num_assistant_tokens": k},
            max_new_tokens=TOKENS,
            eos_token_id=None,
            max_time=seconds,
        )
    assert ours.sequences.shape[1] == PROMPT + min(int(seconds + 1), TOKENS)


# --- batches ---


@pytest.mark.parametrize("k", [1, 3, 20])
@pytest.mark.parametrize("noise", [0.0, 0.05, 1.0])
def test_rows_of_a_batch_end_in_different_rounds(target, noise, k):
    """A02, row 18: every row ends at its own EOS and is padded; the others go on."""
    inputs = batch()
    plain = target.generate(**inputs, do_sample=False, max_new_tokens=TOKENS, eos_token_id=None)[:, PROMPT:].tolist()
    eos = [plain[0][2], plain[1][9], plain[2][6]]
    ours = same_as_plain(
        target,
        inputs,
        {"assistant_model": noisy(target, noise), "num_assistant_tokens": k},
        max_new_tokens=TOKENS,
        eos_token_id=eos,
    )
    ends = [next((i for i, token in enumerate(row) if token in eos), TOKENS) for row in plain]
    assert len(set(ends)) == 4
    assert ours.assist_stats.published == sum(min(end + 1, TOKENS) for end in ends)


@pytest.mark.parametrize("k", [1, 3, 20])
@pytest.mark.parametrize("noise", [0.0, 0.05])
def test_a_criterion_per_row_stops_rows_on_their_own(target, noise, k):
    """With an EOS id plain `generate` pads a row after the criterion held for it."""
    inputs = batch()
    plain = target.generate(**inputs, do_sample=False, max_new_tokens=TOKENS, eos_token_id=None)[:, PROMPT:].tolist()
    ends = [plain[0][2], plain[1][9], plain[2][6], plain[3][12]]
    ours = same_as_plain(
        target,
        inputs,
        {"assistant_model": noisy(target, noise), "num_assistant_tokens": k},
        criteria=lambda: StoppingCriteriaList([Ends(ends)]),
        max_new_tokens=TOKENS,
        eos_token_id=1,
    )
    assert (ours.sequences[:, -1] == 0).any()


@pytest.mark.parametrize("k", [1, 3, 20])
@pytest.mark.parametrize("noise", [0.0, 0.05])
def test_without_eos_stopped_rows_are_decoded_until_all_have_stopped(target, noise, k):
    """Plain `generate` pads only where there is an EOS id; without, a stopped row's text goes on."""
    inputs = batch()
    plain = target.generate(**inputs, do_sample=False, max_new_tokens=TOKENS, eos_token_id=None)[:, PROMPT:].tolist()
    ends = [plain[0][2], plain[1][9], plain[2][6], plain[3][5]]
    new = max(next(i for i, token in enumerate(row) if token in ends) for row in plain) + 1
    ours = same_as_plain(
        target,
        inputs,
        {"assistant_model": noisy(target, noise), "num_assistant_tokens": k},
        criteria=lambda: StoppingCriteriaList([Ends(ends)]),
        max_new_tokens=TOKENS,
        eos_token_id=None,
    )
    assert ours.sequences[:, PROMPT:].tolist() == [row[:new] for row in plain]
    assert 3 < new < TOKENS


class Turncoat(StoppingCriteria):
    """Answers row by row for a while, then once for everything."""

    # so that rows need not keep in step
    stateless = True

    def __call__(self, input_ids, scores, **kwargs):
        answers = input_ids[:, -1] == 5
        return answers if input_ids.shape[1] < PROMPT + 3 else bool(answers.all())


def test_a_criterion_that_starts_to_answer_once_for_a_batch_is_refused_by_name(target, twin):
    """Rows have left step by then."""
    with pytest.raises(hf_exactassist.BatchCoupledCriterion, match="Turncoat"):
        hf_exactassist.generate(
            target, **batch(), max_new_tokens=9, assistant_model=twin, stopping_criteria=[Turncoat()]
        )


def test_a_criterion_that_answers_once_is_fine_for_one_row(target, twin, inputs, greedy):
    class Fifth(StoppingCriteria):
        def __call__(self, input_ids, scores, **kwargs):
            return input_ids.shape[1] == PROMPT + 5

    ours = same_as_plain(
        target,
        inputs,
        {"assistant_model": twin, "num_assistant_tokens": 20},
        criteria=lambda: StoppingCriteriaList([Fifth()]),
        max_new_tokens=TOKENS,
        eos_token_id=None,
    )
    assert ours.sequences[0, PROMPT:].tolist() == greedy[:5]
