"""Greedy texts under a grammar are those of plain `generate`, and parse."""

import pytest

import hf_exactassist
from tests.grammars.cases import CASES
from tests.grammars.libraries import MAKERS, inputs, pair, settings, texts


def same_as_plain_and_parses(maker, cases, lengths):
    """Every run has a fresh processor; rows of the batch have one grammar each where the library can do that."""
    target, assistant, _ = pair()
    given, common = inputs(cases), settings(maker, cases[0])
    plain = target.generate(**given, **common, logits_processor=[MAKERS[maker](cases)])
    for k in lengths:
        output = hf_exactassist.generate(
            target,
            **given,
            **common,
            assistant_model=assistant,
            num_assistant_tokens=k,
            logits_processor=[MAKERS[maker](cases)],
            return_dict_in_generate=True,
        )
        assert output.sequences.tolist() == plain.tolist()
        assert output.assist_stats.accepted and (output.assist_stats.in_step is None) == (
            len(cases) == 1 or maker != "llguidance"
        )
        written = texts(output.sequences, given)
        assert all(case.parses(text) for case, text in zip(cases, written, strict=True)), written


def batch(maker, number, size):
    """A case and more for other rows: the next ones, or its grammar under other prompts."""
    others = [CASES[(number + i) % len(CASES)] for i in range(size)]
    if maker.startswith("outlines"):
        others = [type(case)(CASES[number].kind, CASES[number].source, case.prompt) for case in others]
    return others


@pytest.mark.parametrize("number", range(0, len(CASES), 9))
@pytest.mark.parametrize("maker", MAKERS)
def test_some_cases(maker, number):
    same_as_plain_and_parses(maker, batch(maker, number, 1), [(1, 4, 8)[number % 3]])
    same_as_plain_and_parses(maker, batch(maker, number, 4), [(8, 1, 4)[number % 3]])


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 4])
@pytest.mark.parametrize("number", range(len(CASES)))
@pytest.mark.parametrize("maker", MAKERS)
def test_all_cases(maker, number, size):
    same_as_plain_and_parses(maker, batch(maker, number, size), [1, 4, 8])
