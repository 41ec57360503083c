"""The joint law across two tokenizers, every random choice walked (contract 0x01A, 0x06J, 0x06K; rows 1, 2 and 4)."""

import functools
import itertools

import pytest
import torch

from hf_exactassist import AssistedDecoding
from hf_exactassist.drafters import other_tokenizer
from hf_exactassist.drafters import ways as ways_module
from hf_exactassist.drafters.other_tokenizer import OtherTokenizerDrafter
from hf_exactassist.drafters.ways import Ways
from hf_exactassist.schedules import ConstantSchedule
from hf_exactassist.verification.enumeration import total_variation
from hf_exactassist.vocabulary.admission import TokenizerPair
from hf_exactassist.vocabulary.mapping import build_map
from hf_exactassist.vocabulary.pieces import Pieces
from hf_exactassist.vocabulary.respelling import Respelling
from hf_exactassist.vocabulary.transcript import Joins, Transcript
from tests.exactness.hash_model import HashConfig, HashModel
from tests.exactness.walk import law


WAYS = ("tokens", "text")


def pieces(*tokens, eos=None):
    """A vocabulary in the order of its ids; `eos` is one more token at the end."""
    text = {i: token.encode() for i, token in enumerate(tokens)}
    special, roles = ({len(text): eos}, {"eos_token_id": len(text)}) if eos else ({}, {})
    return Pieces(text, special, roles, False, repr((tokens, eos)))


def longest_first(vocabulary):
    """Encodes by the longest token that fits: a tokenizer as simple as can be."""

    def encode(text):
        ids = []
        while text:
            fits = [(len(piece), i) for i, piece in vocabulary.text.items() if text.encode().startswith(piece)]
            size, token = max(fits, default=(1, None))
            ids += [] if token is None else [token]
            text = text.encode()[size:].decode()
        return ids

    return encode


def drafter(target, assistant, model, ways=WAYS):
    joins = Joins(assistant)
    size = len(target.text) + len(target.special), len(assistant.text) + len(assistant.special)
    pair = TokenizerPair(
        target,
        assistant,
        build_map(target, assistant, *size),
        lambda: Transcript(target, assistant, joins, longest_first(assistant), []),
        Respelling(target, longest_first(target)),
    )
    return OtherTokenizerDrafter(model, pair, ways=ways)


def model(vocabulary, seed, **settings):
    return HashModel(
        HashConfig(vocab_size=len(vocabulary.text) + len(vocabulary.special), seed=seed, **settings)
    ).eval()


PAIRS = {
    "overlap": (pieces("a", "b", "ab"), pieces("b", "a", "ba", "c")),
    "assistant within target": (pieces("a", "b", "ab", "c"), pieces("b", "a")),
    "target within assistant": (pieces("b", "a"), pieces("a", "b", "ab", "c", "abc")),
    "permuted ids": (pieces("a", "b", "c"), pieces("c", "a", "b")),
    "one token in common": (pieces("a", "ab", "ba"), pieces("a", "aa", "b")),
    "different merges": (pieces("a", "b", "ab"), pieces("a", "b", "ba", "bb")),
    "special tokens of other names": (pieces("a", "b", eos="</s>"), pieces("b", "ab", "a", eos="<|end|>")),
}
# text falls apart before a space, so drafts of text need not be held back to the end
WORDS = {
    "words": (pieces(" a", "a", " "), pieces("a", " ", "aa")),
    "words and ends": (pieces(" ", "a", eos="</s>"), pieces(" a", " ", "a", eos="<|end|>")),
}


def decodes(name, k, tokens, rows=1, row=0, ways=WAYS, **settings):
    target, assistant = {**PAIRS, **WORDS}[name]
    ours, theirs = model(target, 1), model(assistant, 2)
    ids = torch.randint(len(target.text), (rows, 3), generator=torch.Generator().manual_seed(5))
    given = {"do_sample": True, "top_k": 0, "max_new_tokens": tokens, "pad_token_id": 0, **settings}
    mask = torch.ones_like(ids)
    given["eos_token_id"] = target.roles.get("eos_token_id")

    def plain():
        return tuple(ours.generate(ids[row : row + 1], attention_mask=mask[:1], **given)[0].tolist())

    def assisted():
        loop = AssistedDecoding(drafter(target, assistant, theirs, ways), ConstantSchedule(k))
        given_too = {"attention_mask": mask, "custom_generate": loop, "return_dict_in_generate": True}
        output = ours.generate(ids, **given, **given_too)
        seen.append(output.assist_stats.drafted)
        text = output.sequences[row].tolist()
        # without the padding of a batch
        ends = [i for i in range(3, len(text)) if text[i] == given["eos_token_id"]]
        return tuple(text[: ends[0] + 1] if ends else text)

    seen = []
    return plain, assisted, seen


@pytest.fixture
def taken_in_turn(monkeypatch):
    """Has the other way tried in the second round already, and short drafts of text: texts are short here.

    Returns the ways that were taken.
    """
    taken, choose = [], Ways.choose

    def noted(self, row):
        taken.append(choose(self, row))
        return taken[-1]

    monkeypatch.setattr(ways_module, "_Past", functools.partial(ways_module._Past, distance=1))
    monkeypatch.setattr(Ways, "choose", noted)
    monkeypatch.setattr(other_tokenizer, "_SHORTEST_TEXT", 1)
    return taken


@pytest.mark.parametrize("k", [1, 2, 8])
@pytest.mark.parametrize("name", PAIRS)
def test_law_is_the_targets(name, k):
    plain, assisted, seen = decodes(name, k, 4 if len(PAIRS[name][0].text) < 4 else 3)
    assert total_variation(law(plain), law(assisted)) < 1e-6
    assert max(seen) > 0


@pytest.mark.parametrize("ways", [WAYS, ("text",)], ids=["both ways", "text"])
@pytest.mark.parametrize("name", WORDS)
def test_law_where_text_is_drafted(name, ways, taken_in_turn):
    plain, assisted, seen = decodes(name, 3, 4, ways=ways)
    assert total_variation(law(plain), law(assisted)) < 1e-6
    assert max(seen) > 0 and set(taken_in_turn) == set(ways)


@pytest.mark.parametrize("setting", [{"no_repeat_ngram_size": 2}, {"no_repeat_ngram_size": 3}], ids=str)
def test_law_where_processors_read_text_that_is_drafted(setting, taken_in_turn):
    """The prefix of a place holds what is drafted before it, not what the other way would have drafted."""
    plain, assisted, seen = decodes("words", 4, 5, ways=("text",), **setting)
    assert total_variation(law(plain), law(assisted)) < 1e-6
    assert max(seen) > 1


@pytest.mark.parametrize("row", [0, 1, 2])
@pytest.mark.parametrize("ways", [WAYS, ("text",)], ids=["both ways", "text"])
@pytest.mark.parametrize("name", ["overlap", "special tokens of other names", "words"])
def test_law_of_each_row_of_a_batch(name, row, ways, taken_in_turn):
    """Rows have texts of different lengths for the assistant, though not for the target."""
    plain, assisted, _ = decodes(name, 4 if name in WORDS else 2, 3, rows=3, row=row, ways=ways)
    assert total_variation(law(plain), law(assisted, {row})) < 1e-6


@pytest.mark.parametrize("order", itertools.permutations(range(3)))
def test_law_whatever_the_order_of_the_assistants_vocabulary(order):
    """Row 1: columns go by what a token stands for."""
    target, tokens = pieces("a", "b", "ab"), ["a", "ab", "c"]
    assistant = pieces(*(tokens[i] for i in order))
    ours, theirs = model(target, 1), model(assistant, 2)
    given = {"do_sample": True, "top_k": 0, "max_new_tokens": 3, "pad_token_id": 0, "eos_token_id": None}
    ids = torch.tensor([[0, 2, 1]])
    given["attention_mask"] = torch.ones_like(ids)

    def assisted():
        loop = AssistedDecoding(drafter(target, assistant, theirs), ConstantSchedule(2))
        return tuple(ours.generate(ids, **given, custom_generate=loop)[0].tolist())

    assert total_variation(law(lambda: tuple(ours.generate(ids, **given)[0].tolist())), law(assisted)) < 1e-6
