"""What grammar libraries ask of their users, what they make large, and the ways in which users wire them up."""

import copy
from typing import Literal

import outlines_core
import pytest
import torch
from transformers.generation import LogitsProcessor

import hf_exactassist
from hf_exactassist.demo import load_pair
from hf_exactassist.models import admission
from hf_exactassist.state.forks import fork
from tests.grammars.cases import CASES, PROMPTS, Case
from tests.grammars.libraries import (
    MAKERS,
    MatcherProcessor,
    compiled,
    inputs,
    ll_grammar,
    ll_tokenizer,
    llguidance,
    outlines,
    pair,
    settings,
    steerable,
    texts,
    xgrammar,
)


CRY = "[A-Za-z ]{3,14}!"
GREEDY = {"do_sample": False, "max_new_tokens": 40}


def cries(rows):
    return [Case("regex", CRY, prompt) for prompt in PROMPTS[:rows]]


def same_as_plain(make, given, target=None, assistant=None, **more):
    """Texts with and without an assistant are the same, and parse."""
    target, assistant = target or pair()[0], assistant or pair()[1]
    common = {**inputs(given), **GREEDY, **more}
    plain = target.generate(**common, logits_processor=[make()])
    output = hf_exactassist.generate(
        target, **common, assistant_model=assistant, logits_processor=[make()], return_dict_in_generate=True
    )
    assert output.sequences.tolist() == plain.tolist() or output.assist_stats.near_ties
    written = texts(output.sequences, common)
    assert all(case.parses(text) for case, text in zip(given, written, strict=True)), written
    return output


# --- one use only ---


@pytest.mark.parametrize("how", ["by plain generate", "with an assistant"])
@pytest.mark.parametrize("maker", [maker for maker in MAKERS if maker != "llguidance"])
def test_a_used_processor_is_refused_by_name_before_the_first_token(maker, how, monkeypatch):
    target, assistant, _ = pair()
    admission.require(target, "target")
    admission.require(assistant, "assistant")
    given = cries(2)
    processor, common = MAKERS[maker](given), {**inputs(given), **GREEDY}
    if how == "by plain generate":
        first = target.generate(**common, logits_processor=[processor])
    else:
        first = hf_exactassist.generate(target, **common, assistant_model=assistant, logits_processor=[processor])
    with monkeypatch.context() as patch:
        patch.setattr(type(target), "forward", lambda *args, **kwargs: pytest.fail("the target was asked"))
        with pytest.raises(hf_exactassist.StatefulProcessor, match=f"{type(processor).__name__} has been used before"):
            hf_exactassist.generate(target, **common, assistant_model=assistant, logits_processor=[processor])
    if maker != "xgrammar":
        processor.reset()
        again = hf_exactassist.generate(target, **common, assistant_model=assistant, logits_processor=[processor])
        assert again.tolist() == first.tolist()


def test_grammars_must_fit_the_rows():
    target, assistant, _ = pair()
    given = cries(3)
    processor = MAKERS["xgrammar"](given[:2])
    with pytest.raises(hf_exactassist.StatefulProcessor, match="has 2 grammars for 3 rows"):
        hf_exactassist.generate(
            target, **inputs(given), **GREEDY, assistant_model=assistant, logits_processor=[processor]
        )
    same_as_plain(lambda: xgrammar.contrib.hf.LogitsProcessor(compiled(given[0])), given)


@pytest.mark.parametrize("maker", MAKERS)
def test_beams_are_refused(maker):
    target, assistant, _ = pair()
    given = cries(2)
    with pytest.raises(hf_exactassist.UnsupportedDecodingMode, match="beam_search"):
        hf_exactassist.generate(
            target,
            **inputs(given),
            **GREEDY,
            num_beams=2,
            assistant_model=assistant,
            logits_processor=[MAKERS[maker](given * 2)],
        )


# --- what is large stays shared ---


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("maker", MAKERS)
def test_compiled_grammars_are_never_copied(maker, rows, monkeypatch):
    """`copy` would write an index of `outlines_core` out and read it again."""
    large = {"Index", "Guide", "Vocabulary", "LLTokenizer", "CompiledGrammar", "GrammarCompiler", "TokenizerInfo"}
    reconstruct, copied = copy._reconstruct, set()

    def noting(value, *args, **kwargs):
        copied.add(type(value).__name__)
        return reconstruct(value, *args, **kwargs)

    monkeypatch.setattr(copy, "_reconstruct", noting)
    given = cries(rows)
    same_as_plain(lambda: MAKERS[maker](given), given, **settings(maker, given[0]))
    assert copied and not copied & large


def test_copies_share_what_is_large():
    given = cries(1)
    names = {
        "xgrammar": ("compiled_grammars",),
        "outlines": ("index",),
        "outlines over xgrammar": ("compiled_grammar", "xgr"),
        "outlines over llguidance": ("llg_tokenizer",),
    }
    for maker, shared in names.items():
        processor = MAKERS[maker](given)
        theirs = fork(processor)
        for name in shared:
            mine, yours = getattr(processor, name), getattr(theirs, name)
            assert mine[0] is yours[0] if isinstance(mine, list) else mine is yours
    workers = [llguidance.LLExecutor(num_threads=1), xgrammar.BatchGrammarMatcher(max_threads=1), ll_tokenizer()]
    assert all(mine is yours for mine, yours in zip(workers, fork(workers), strict=True))


@pytest.mark.parametrize("maker", [maker for maker in MAKERS if maker != "llguidance"])
def test_manifests_tell_grammars_apart(maker):
    """What the class and the tokenizer are is not enough; matchers of llguidance do not say what they match."""

    def manifest(source):
        given = [Case("regex", source, PROMPTS[0])]
        session = hf_exactassist.start(
            pair()[0],
            **inputs(given),
            **GREEDY,
            assistant_model=pair()[1],
            logits_processor=[MAKERS[maker](given)],
        )
        return session.manifest()["call"]["processors"]

    assert manifest("[A-Z]{3}") == manifest("[A-Z]{3}") != manifest("[A-Y]{3}")


# --- as users wire them up ---


class Renamed(xgrammar.contrib.hf.LogitsProcessor):
    """Of a class that nobody knows."""


class Parallel(MatcherProcessor):
    """Masks made by llguidance's own workers."""

    def __init__(self, tokenizer, grammars):
        super().__init__(tokenizer, grammars)
        self.executor = llguidance.LLExecutor(num_threads=1)

    def __call__(self, input_ids, scores):
        for row, matcher in enumerate(self.matchers):
            if self.started and not matcher.is_stopped():
                assert matcher.consume_token(int(input_ids[row, -1]))
        self.started = True
        rows = [(matcher, row) for row, matcher in enumerate(self.matchers)]
        llguidance.torch.fill_next_token_bitmask_par(self.executor, rows, self.bitmask)
        scores = scores.clone()
        llguidance.torch.apply_token_bitmask_inplace(scores, self.bitmask)
        return scores


class Batched(LogitsProcessor):
    """Masks made by xgrammar's own workers."""

    def __init__(self, grammars):
        self.worker = xgrammar.BatchGrammarMatcher(max_threads=1)
        self.matchers = list(map(xgrammar.GrammarMatcher, grammars))
        self.mask, self.width = None, None

    def __call__(self, input_ids, scores):
        if self.mask is None:
            self.mask = xgrammar.allocate_token_bitmask(*scores.shape)
        else:
            for matcher, token in zip(self.matchers, input_ids[:, -1].tolist(), strict=True):
                assert matcher.is_terminated() or matcher.accept_token(token)
        rows = [row for row, matcher in enumerate(self.matchers) if not matcher.is_terminated()]
        if rows:
            self.worker.batch_fill_next_token_bitmask([self.matchers[row] for row in rows], self.mask, rows)
        scores = scores.clone()
        xgrammar.apply_token_bitmask_inplace(scores, self.mask)
        return scores


class OneGuide(LogitsProcessor):
    """The regular expressions of Outlines without Outlines, for one row."""

    def __init__(self, index):
        self.guide, self.started = outlines_core.Guide(index), False

    def __call__(self, input_ids, scores):
        if self.started:
            self.guide.advance(int(input_ids[0, -1]), False)
        self.started = True
        masked = torch.full_like(scores, -torch.inf)
        allowed = self.guide.get_tokens()
        masked[:, allowed] = scores[:, allowed]
        return masked


WIRED = {
    "subclass": lambda given: Renamed(list(map(compiled, given))),
    "workers of llguidance": lambda given: Parallel(ll_tokenizer(), list(map(ll_grammar, given))),
    "workers of xgrammar": lambda given: Batched(list(map(compiled, given))),
    "guide": lambda given: OneGuide(MAKERS["outlines"](given).index),
}


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("name", WIRED)
def test_processors_of_the_users_own(name, rows):
    """With one memory for all rows, which then keep in step."""
    given = cries(1 if name == "guide" else rows)
    output = same_as_plain(lambda: WIRED[name](given), given)
    assert (output.assist_stats.in_step is None) == (len(given) == 1) and output.assist_stats.accepted


@pytest.mark.parametrize("rows", [1, 3])
def test_a_prefix_function_around_matchers(rows):
    """Made when a row is first asked about."""
    target, assistant, tokenizer = pair()
    given = cries(rows)

    def function():
        matchers, mask = {}, xgrammar.allocate_token_bitmask(1, target.config.vocab_size)

        def allowed(row, prefix):
            if row not in matchers:
                matchers[row] = xgrammar.GrammarMatcher(compiled(given[row]))
            elif not matchers[row].is_terminated():
                assert matchers[row].accept_token(int(prefix[-1]))
            if matchers[row].is_terminated():
                return [tokenizer.eos_token_id]
            matchers[row].fill_next_token_bitmask(mask)
            bits = mask[0, :, None] >> torch.arange(32) & 1
            return bits.flatten().nonzero().flatten().tolist()

        return allowed

    common = {**inputs(given), **GREEDY}
    plain = target.generate(**common, prefix_allowed_tokens_fn=function())
    ours = hf_exactassist.generate(
        target, **common, assistant_model=assistant, prefix_allowed_tokens_fn=function(), num_assistant_tokens=6
    )
    assert ours.tolist() == plain.tolist() and all(map(Case.parses, given, texts(ours, common)))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("maker", MAKERS)
def test_half_precision(maker, dtype):
    target, assistant, _ = load_pair(dtype)
    given = cries(3)
    same_as_plain(lambda: MAKERS[maker](given), given, target, assistant)


@pytest.fixture(scope="module")
def padded():
    """A target whose head has more columns than the tokenizer has tokens, all of them tempting; and its tokenizer."""
    target, _, tokenizer = load_pair()
    target.resize_token_embeddings(len(tokenizer) + 50)
    with torch.no_grad():
        target.get_output_embeddings().weight[len(tokenizer) :] *= 3
    return target, tokenizer


def padded_processor(maker, padded, given):
    target, tokenizer = padded
    width = target.config.vocab_size
    if maker == "xgrammar":
        info = xgrammar.TokenizerInfo.from_huggingface(tokenizer, vocab_size=width)
        return xgrammar.contrib.hf.LogitsProcessor(xgrammar.GrammarCompiler(info).compile_regex(CRY))
    if maker == "llguidance":
        return MatcherProcessor(llguidance.hf.from_tokenizer(tokenizer, n_vocab=width), list(map(ll_grammar, given)))
    backend = {"outlines": None, "outlines over llguidance": "llguidance"}[maker]
    return outlines.backends.get_regex_logits_processor(backend, outlines.from_transformers(*padded), CRY)


# Outlines makes masks for xgrammar that do not fit such a head, and fails without an assistant too
@pytest.mark.parametrize("maker", [maker for maker in MAKERS if maker != "outlines over xgrammar"])
def test_heads_wider_than_the_tokenizer(maker, padded):
    given = cries(3)
    output = same_as_plain(lambda: padded_processor(maker, padded, given), given, padded[0], pair()[1])
    assert output.assist_stats.accepted


# --- the front door of Outlines ---


@pytest.fixture
def enabled():
    target = hf_exactassist.enable(pair()[0])
    yield steerable()
    hf_exactassist.disable(target)


OUTPUTS = {
    "literal": (Literal["to be", "not to be"], [None, "xgrammar", "llguidance"]),
    "regex": (outlines.types.Regex(CRY), [None, "xgrammar", "llguidance"]),
    "schema": (outlines.types.JsonSchema(CASES[8].source), [None]),
    "grammar": (outlines.types.CFG('start: "(" start ")" | "x"'), [None]),
}


@pytest.mark.parametrize(
    ("name", "backend"), [(name, backend) for name, (_, backends) in OUTPUTS.items() for backend in backends]
)
def test_an_assistant_through_outlines(enabled, name, backend):
    """One generator for many calls, as its users keep it; it resets its processor."""
    assistant = pair()[1]
    generator = outlines.Generator(enabled, OUTPUTS[name][0], backend=backend)
    for prompts in ([PROMPTS[0]], list(PROMPTS[:3])):
        plain = generator.batch(prompts, **GREEDY)
        assert generator.batch(prompts, **GREEDY, assistant_model=assistant, num_assistant_tokens=4) == plain
    single = generator(PROMPTS[5], **GREEDY)
    assert generator(PROMPTS[5], **GREEDY, assistant_model=assistant) == single
    sampled = generator(PROMPTS[5], max_new_tokens=60, do_sample=True, seed=5, assistant_model=assistant)
    assert sampled == generator(PROMPTS[5], max_new_tokens=60, do_sample=True, seed=5, assistant_model=assistant)
