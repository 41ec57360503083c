"""Grammars inside blocks: ends, drafts, triggers, rows that end at different times, rounds made again."""

import functools
import itertools
import re

import pytest
import torch
from transformers.generation import LogitsProcessor

import hf_exactassist
from hf_exactassist.judging import Judge
from hf_exactassist.schedules import ConstantSchedule
from hf_exactassist.state.processors import ProcessorPipeline
from tests.grammars.cases import CASES, GRAMMARS, PROMPTS, Case
from tests.grammars.libraries import MAKERS, compiled, inputs, pair, settings, texts, xgrammar
from tests.tiny import ScriptedDrafter, noisy


CRY = "[A-Za-z ]{3,14}!"
LINE = "[A-Z][a-z ,']{20,60}\\."


def cases(source, rows, kind="regex", prompts=PROMPTS):
    return [Case(kind, source, prompt) for prompt in prompts[:rows]]


def both(maker, given, **more):
    """The text of plain `generate` and the output of an assisted call, with their processors."""
    target, assistant, _ = pair()
    common = {**inputs(given), **settings(maker, given[0]), **more}
    theirs, ours = MAKERS[maker](given), MAKERS[maker](given)
    plain = target.generate(**common, logits_processor=[theirs])
    output = hf_exactassist.generate(
        target,
        **common,
        assistant_model=assistant,
        num_assistant_tokens=6,
        logits_processor=[ours],
        return_dict_in_generate=True,
    )
    return plain, output, remembered(theirs), remembered(ours)


def remembered(processor):
    """What can be seen of a processor's state."""
    seen = {}
    for name, part in vars(processor).items():
        if name in ("matchers", "_matchers", "ll_matchers"):
            # in plain `generate` those of llguidance also complain of the padding they are shown
            part = [(m.is_terminated(), m.is_completed()) if hasattr(m, "fork") else m.is_stopped() for m in part]
        elif name == "_guides":
            part = [(guide.get_state(), guide.is_finished(), type(guide)) for guide in part]
        elif isinstance(part, torch.Tensor):
            part = part.tolist()
        elif name == "_bitmasks":
            part = [mask.tolist() for mask in part]
        elif hasattr(part, "__self__"):
            part = (part.__name__, part.__self__ is processor)
        elif not isinstance(part, (bool, int, str)):
            part = type(part)
        seen[name] = part
    return seen


# --- ends ---


class Spy(LogitsProcessor):
    """Bears no call after the grammar's end, and notes what its matcher is shown."""

    def __init__(self, grammar):
        self.matcher, self.shown, self.mask = xgrammar.GrammarMatcher(grammar), [], None

    def __call__(self, input_ids, scores):
        if self.mask is None:
            self.mask = xgrammar.allocate_token_bitmask(1, scores.shape[1])
        else:
            assert not self.matcher.is_terminated(), "called after its end"
            self.shown.append(int(input_ids[0, -1]))
            assert self.matcher.accept_token(self.shown[-1]), "shown what it forbids"
        self.matcher.fill_next_token_bitmask(self.mask)
        scores = scores.clone()
        xgrammar.apply_token_bitmask_inplace(scores, self.mask)
        return scores


@pytest.mark.parametrize("right", [0, 2, 12])
@pytest.mark.parametrize("k", [1, 4, 12])
def test_a_matcher_sees_the_published_tokens_and_nothing_after_its_end(k, right):
    """A49: drafts that go on behind the end, of which some or all are right."""
    target, _, tokenizer = pair()
    given = cases(CRY, 1)
    theirs, ours = Spy(compiled(given[0])), Spy(compiled(given[0]))
    common = {**inputs(given), "do_sample": False, "max_new_tokens": 40}
    plain = target.generate(**common, logits_processor=[theirs])
    onward = torch.cat([plain, plain[:, 5:].flip(1)], dim=1)
    drafter = ScriptedDrafter(onward, lambda row, number: right, target.config.vocab_size)
    loop = hf_exactassist.AssistedDecoding(drafter, ConstantSchedule(k))
    output = target.generate(**common, logits_processor=[ours], custom_generate=loop)
    assert output.tolist() == plain.tolist() and output[0, -1] == tokenizer.eos_token_id
    assert ours.shown == theirs.shown == output[0, common["input_ids"].shape[1] : -1].tolist()


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("maker", MAKERS)
def test_processors_are_left_as_plain_generate_leaves_them(maker, rows):
    """Rows end at different times: while others go on, a matcher reads its row's end."""
    plain, output, theirs, ours = both(maker, cases(CRY, rows))
    assert output.sequences.tolist() == plain.tolist()
    assert rows == 1 or len(set((plain == pair()[2].pad_token_id).sum(dim=1).tolist())) > 1
    assert ours == theirs


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("maker", MAKERS)
def test_without_an_id_for_the_end_rows_go_on_as_in_plain_generate(maker, rows):
    plain, output, theirs, ours = both(maker, cases(CRY, rows), eos_token_id=None, max_new_tokens=24)
    assert output.sequences.tolist() == plain.tolist()
    assert (plain[:, -6:] == pair()[2].eos_token_id).all()
    assert ours == theirs


@pytest.mark.parametrize("maker", ["xgrammar", "outlines", "outlines over xgrammar", "outlines over llguidance"])
def test_a_text_goes_on_with_the_same_processor(maker):
    """In plain `generate`, which may be called again: the processor knows where it is."""
    target, assistant, tokenizer = pair()
    given = cases(LINE, 3)
    common = {**inputs(given), **settings(maker, given[0])}
    whole = target.generate(**common, logits_processor=[MAKERS[maker](given)])
    processor = MAKERS[maker](given)
    common["max_new_tokens"] = 9
    begun = hf_exactassist.generate(target, **common, assistant_model=assistant, logits_processor=[processor])
    mask = torch.cat([common["attention_mask"], torch.ones_like(begun[:, -9:])], dim=1)
    rest = target.generate(
        begun, attention_mask=mask, do_sample=False, max_new_tokens=81, logits_processor=[processor]
    )
    assert rest.tolist() == whole.tolist()
    assert all(map(Case.parses, given, texts(rest, common)))


# --- drafts ---


@pytest.mark.parametrize("maker", MAKERS)
def test_drafts_know_the_grammar(maker, monkeypatch):
    """What is forbidden is not proposed, so that at least as much is accepted as in free text."""
    target, _, _ = pair()
    relative, given = noisy(target, 0.06), cases("([A-Z]{1,3}[0-9]{1,2}[a-z]{1,4}[.:;-]){6,9}", 1)

    def rate(processors):
        output = hf_exactassist.generate(
            target,
            **{**inputs(given), **settings(maker, given[0]), "max_new_tokens": 50},
            eos_token_id=None,
            assistant_model=relative,
            num_assistant_tokens=4,
            num_assistant_tokens_schedule="constant",
            logits_processor=processors,
            return_dict_in_generate=True,
        )
        return output.assist_stats.acceptance_rate

    free, masked = rate([]), rate([MAKERS[maker](given)])
    with_all = ProcessorPipeline.drafting
    monkeypatch.setattr(ProcessorPipeline, "drafting", lambda self, copies: with_all(self, dict))
    unmasked = rate([MAKERS[maker](given)])
    assert masked >= free > 0.5
    assert unmasked < masked - 0.3


@pytest.mark.parametrize("maker", MAKERS)
def test_prompt_lookup_may_propose_what_the_grammar_forbids(maker):
    target, _, tokenizer = pair()
    given = [Case("regex", "(the (king|queen) (of|and) ){2,6}me", "the king of the king of the dead king, the ")] * 2
    common = {**inputs(given), **settings(maker, given[0])}
    plain = target.generate(**common, logits_processor=[MAKERS[maker](given)])
    output = hf_exactassist.generate(
        target,
        **common,
        prompt_lookup_num_tokens=5,
        logits_processor=[MAKERS[maker](given)],
        return_dict_in_generate=True,
    )
    assert output.sequences.tolist() == plain.tolist()
    assert output.assist_stats.drafted and all(map(Case.parses, given, texts(plain, common)))


# --- triggers ---


class FromTrigger(LogitsProcessor):
    """Text is free until a row has written `trigger`; from there a grammar holds."""

    def __init__(self, trigger, grammar):
        self.trigger, self.grammar, self.matchers, self.mask = trigger, grammar, {}, None

    def __call__(self, input_ids, scores):
        scores = scores.clone()
        for row, last in enumerate(input_ids[:, -1].tolist()):
            if row in self.matchers:
                if not self.matchers[row].is_terminated():
                    assert self.matchers[row].accept_token(last)
            elif last == self.trigger:
                self.matchers[row] = xgrammar.GrammarMatcher(self.grammar)
            if row in self.matchers:
                mask = xgrammar.allocate_token_bitmask(1, scores.shape[1])
                if not self.matchers[row].is_terminated():
                    self.matchers[row].fill_next_token_bitmask(mask)
                xgrammar.apply_token_bitmask_inplace(scores[row : row + 1], mask)
        return scores


class Around(LogitsProcessor):
    """The library's own processor, made when the first row has written `trigger`; for one row."""

    def __init__(self, trigger, make):
        self.trigger, self.make, self.inner = trigger, make, None

    def __call__(self, input_ids, scores):
        if self.inner is None and int(input_ids[0, -1]) == self.trigger:
            self.inner = self.make()
        return scores if self.inner is None else self.inner(input_ids, scores.clone())


def parses_from(trigger, text):
    """Whether the grammar holds from the first trigger on."""
    return re.fullmatch(CRY, text.partition(trigger)[2]) is not None


@pytest.mark.parametrize("k", [1, 4, 8])
@pytest.mark.parametrize("rows", [1, 3])
def test_a_grammar_begins_inside_a_block(rows, k):
    """A52: rows write the trigger at different times, in drafts that are kept and in drafts that are not."""
    target, assistant, tokenizer = pair()
    given = cases(CRY, rows, prompts=[PROMPTS[0], PROMPTS[2], PROMPTS[16]])
    trigger = tokenizer.convert_tokens_to_ids(",")
    common = {**inputs(given), "do_sample": False, "max_new_tokens": 40}
    width = common["input_ids"].shape[1]
    plain = target.generate(**common, logits_processor=[FromTrigger(trigger, compiled(given[0]))])
    begun = [row.index(trigger) for row in plain[:, width:].tolist()]
    assert len(set(begun)) == rows and min(begun) > 0
    output = hf_exactassist.generate(
        target,
        **common,
        assistant_model=assistant,
        num_assistant_tokens=k,
        logits_processor=[FromTrigger(trigger, compiled(given[0]))],
        return_dict_in_generate=True,
    )
    assert output.sequences.tolist() == plain.tolist()
    assert all(parses_from(",", text) for text in texts(plain, common))
    assert (output.assist_stats.in_step is None) == (rows == 1)


@pytest.mark.parametrize("k", [1, 4, 8])
@pytest.mark.parametrize("maker", MAKERS)
def test_a_librarys_processor_begins_inside_a_block(maker, k):
    """Nothing shows that it remembers before the trigger comes."""
    target, assistant, tokenizer = pair()
    given, trigger = cases(CRY, 1), tokenizer.convert_tokens_to_ids(",")
    common = {**inputs(given), "do_sample": False, "max_new_tokens": 40}
    make = functools.partial(MAKERS[maker], given)
    plain = target.generate(**common, logits_processor=[Around(trigger, make)])
    output = hf_exactassist.generate(
        target,
        **common,
        assistant_model=assistant,
        num_assistant_tokens=k,
        logits_processor=[Around(trigger, make)],
    )
    assert output.tolist() == plain.tolist() and parses_from(",", texts(plain, common)[0])


# --- batches ---


@pytest.mark.parametrize("maker", ["xgrammar", "llguidance"])
def test_one_grammar_for_each_row(maker):
    """A51: of all kinds, the rows end at very different times."""
    target, assistant, _ = pair()
    given = [CASES[number] for number in (8, 19, 22, 37, 4, 16)]
    plain, output, theirs, ours = both(maker, given)
    assert output.sequences.tolist() == plain.tolist() and ours == theirs
    written = texts(plain, inputs(given))
    assert all(map(Case.parses, given, written)) and max(map(len, written)) > 5 * min(map(len, written))


@pytest.mark.parametrize("maker", MAKERS)
def test_several_returned_sequences(maker):
    """Sampled with the noise of plain `generate`: token for token, a matcher for each copy."""
    target, assistant, _ = pair()
    given = cases(CRY, 2)
    copies = [case for case in given for _ in range(2)]
    common = {**inputs(given), "do_sample": True, "max_new_tokens": 30, "num_return_sequences": 2}
    torch.manual_seed(3)
    plain = target.generate(**common, logits_processor=[MAKERS[maker](copies)])
    torch.manual_seed(3)
    ours = hf_exactassist.generate(
        target,
        **common,
        assistant_model=assistant,
        coupling="shared_noise",
        logits_processor=[MAKERS[maker](copies)],
    )
    assert ours.tolist() == plain.tolist()
    assert all(map(Case.parses, copies, texts(ours, common)))


@pytest.mark.parametrize("maker", MAKERS)
def test_sampled_texts_parse(maker):
    """Twenty seeds; brackets that nest as deep as chance wants."""
    target, assistant, _ = pair()
    kind = "regex" if maker == "outlines" else "grammar"
    given = cases(CRY if kind == "regex" else GRAMMARS[0], 2, kind)
    finished = 0
    for seed in range(20):
        output = hf_exactassist.generate(
            target,
            **{**inputs(given), **settings(maker, given[0]), "do_sample": True, "max_new_tokens": 40},
            temperature=3.0,
            assistant_model=assistant,
            seed=seed,
            logits_processor=[MAKERS[maker](given)],
        )
        written = [text for text in texts(output, inputs(given)) if text is not None]
        finished += len(written)
        assert all(given[0].parses(text) for text in written), written
    assert finished >= 20


# --- rounds made again ---


@pytest.mark.parametrize("failures", [[2], [1, 2, 4]])
@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("maker", MAKERS)
def test_a_round_that_fails_after_processing_is_made_again(maker, rows, failures, monkeypatch):
    target, assistant, _ = pair()
    given, count = cases(LINE, rows), itertools.count()
    common = {**inputs(given), **settings(maker, given[0])}
    plain = target.generate(**common, logits_processor=[MAKERS[maker](given)])
    session = hf_exactassist.start(
        target, **common, assistant_model=assistant, num_assistant_tokens=4, logits_processor=[MAKERS[maker](given)]
    )
    judge = Judge.judge

    def fails(self, *args):
        if next(count) in failures:
            raise ZeroDivisionError
        return judge(self, *args)

    monkeypatch.setattr(Judge, "judge", fails)
    failed = 0
    while not session.finished:
        try:
            session.step()
        except ZeroDivisionError:
            failed += 1
    assert failed == len(failures) and session.result().tolist() == plain.tolist()
    assert all(map(Case.parses, given, texts(plain, common)))


@pytest.mark.parametrize("maker", MAKERS)
def test_an_abandoned_session_hands_the_processor_back(maker):
    target, assistant, _ = pair()
    given = cases(LINE, 1)
    common = {**inputs(given), **settings(maker, given[0])}
    processor = MAKERS[maker](given)
    session = hf_exactassist.start(target, **common, assistant_model=assistant, logits_processor=[processor])
    session.step(), session.step()
    written = len(session.sequences_so_far()[0])
    session.abandon()
    left = remembered(processor)
    other = MAKERS[maker](given)
    target.generate(**{**common, "max_new_tokens": written}, logits_processor=[other])
    assert left == remembered(other)
