"""Processors of three grammar libraries, made as their users make them."""

import copy
import functools
import json

import llguidance.hf
import llguidance.torch
import outlines
import outlines.backends
import xgrammar.contrib.hf
from transformers.generation import LogitsProcessor

from hf_exactassist.demo import load_pair
from tests.grammars.cases import ebnf, lark


@functools.cache
def pair():
    """The embedded pair and its tokenizer."""
    return load_pair()


# --- xgrammar ---


@functools.cache
def _compiler():
    target, _, tokenizer = pair()
    info = xgrammar.TokenizerInfo.from_huggingface(tokenizer, vocab_size=target.config.vocab_size)
    return xgrammar.GrammarCompiler(info, max_threads=1)


def compiled(case):
    """A case's grammar for xgrammar."""
    if case.kind == "schema":
        return _compiler().compile_json_schema(json.dumps(case.source), any_whitespace=False)
    if case.kind == "regex":
        return _compiler().compile_regex(case.source)
    return _compiler().compile_grammar(ebnf(case.source))


def from_xgrammar(cases):
    """One grammar for each row."""
    return xgrammar.contrib.hf.LogitsProcessor([compiled(case) for case in cases])


# --- llguidance, which leaves the processor to its users ---


class MatcherProcessor(LogitsProcessor):
    """A grammar for each row."""

    def __init__(self, tokenizer, grammars):
        self.matchers = [llguidance.LLMatcher(tokenizer, grammar) for grammar in grammars]
        self.bitmask = llguidance.torch.allocate_token_bitmask(len(grammars), tokenizer.vocab_size)
        self.started = False

    def __call__(self, input_ids, scores):
        for row, matcher in enumerate(self.matchers):
            if self.started and not matcher.is_stopped():
                assert matcher.consume_token(int(input_ids[row, -1])), matcher.get_error()
            llguidance.torch.fill_next_token_bitmask(matcher, self.bitmask, row)
        self.started = True
        scores = scores.clone()
        llguidance.torch.apply_token_bitmask_inplace(scores, self.bitmask.to(scores.device))
        return scores


@functools.cache
def ll_tokenizer():
    """The tokenizer as llguidance reads it."""
    return llguidance.hf.from_tokenizer(pair()[2])


def ll_grammar(case):
    """A case's grammar for llguidance."""
    kinds = llguidance.LLMatcher
    if case.kind == "schema":
        return kinds.grammar_from_json_schema(case.source, overrides={"whitespace_flexible": False})
    return (
        kinds.grammar_from_regex(case.source) if case.kind == "regex" else kinds.grammar_from_lark(lark(case.source))
    )


def from_llguidance(cases):
    """One grammar for each row."""
    return MatcherProcessor(ll_tokenizer(), list(map(ll_grammar, cases)))


# --- outlines, with one grammar for all rows ---


@functools.cache
def steerable():
    """The target as Outlines holds it."""
    target, _, tokenizer = pair()
    return outlines.from_transformers(target, tokenizer)


@functools.cache
def _outlines(backend, kind, source):
    make = {
        "schema": outlines.backends.get_json_schema_logits_processor,
        "regex": outlines.backends.get_regex_logits_processor,
        "grammar": outlines.backends.get_cfg_logits_processor,
    }[kind]
    return make(backend, steerable(), source)


def from_outlines(backend, cases):
    """A new processor; the grammar is compiled once."""
    kind, source = cases[0].kind, cases[0].source
    if kind == "schema":
        source = json.dumps(source)
    elif kind == "grammar":
        source = ebnf(source) if backend == "xgrammar" else lark(source)
    return copy.copy(_outlines(backend, kind, source))


MAKERS = {
    "xgrammar": from_xgrammar,
    "llguidance": from_llguidance,
    "outlines": functools.partial(from_outlines, None),
    "outlines over xgrammar": functools.partial(from_outlines, "xgrammar"),
    "outlines over llguidance": functools.partial(from_outlines, "llguidance"),
}


@functools.cache
def blanks():
    """Tokens of white space alone, which JSON allows everywhere and the target loves."""
    tokenizer = pair()[2]
    return [token for token in range(len(tokenizer)) if not tokenizer.decode([token]).strip()]


def settings(maker, case):
    """What goes into `generate` besides, so that every text comes to an end."""
    loose = case.kind == "schema" and maker.startswith("outlines over")
    return {"max_new_tokens": 90, "do_sample": False, **({"suppress_tokens": blanks()} if loose else {})}


def inputs(cases):
    """The cases' prompts, padded on the left."""
    prompts = [case.prompt for case in cases]
    return pair()[2](prompts, return_tensors="pt", padding=True, padding_side="left")


def texts(ids, given):
    """What each row wrote, without its end; `None` where it has come to none."""
    _, _, tokenizer = pair()
    new = ids[:, given["input_ids"].shape[1] :]
    ended = (new == tokenizer.eos_token_id).any(dim=1).tolist()
    written = tokenizer.batch_decode(new, skip_special_tokens=True)
    return [text if end else None for text, end in zip(written, ended, strict=True)]
