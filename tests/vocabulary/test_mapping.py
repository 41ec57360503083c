"""Which tokens two vocabularies have in common, and where the others lead (contract 0x01A, 0x06K)."""

import pytest
import torch

from hf_exactassist.errors import DifferentVocabularies
from hf_exactassist.vocabulary.admission import pair_of
from hf_exactassist.vocabulary.mapping import build_map
from hf_exactassist.vocabulary.pieces import pieces_of
from tests.vocabulary.kinds import KINDS, unigram, with_markers, wordpiece
from tests.vocabulary.test_law import pieces


def test_tokens_are_mapped_by_their_bytes_and_special_ones_by_role():
    target, assistant = pieces("a", "b", "ab", eos="</s>"), pieces("b", "ab", "c", eos="<|end|>")
    found = build_map(target, assistant, 4, 4)
    assert dict(zip(found.target.tolist(), found.assistant.tolist(), strict=True)) == {1: 0, 2: 1, 3: 3}
    assert found.to_assistant(torch.tensor([0, 1, 2, 3])).tolist() == [-1, 0, 1, 3]


def test_other_tokens_lead_to_the_longest_mapped_beginning():
    target, assistant = pieces("a", "ab", "b", "abcd"), pieces("abcx", "ab", "a", "ba", "c", "b")
    found = build_map(target, assistant, 4, 6)
    # "abcx" begins with "ab"; "abcd" is no token of the assistant's; nothing begins "c"
    assert found.leads_to.tolist() == [1, 1, 0, 2, -1, 2]
    law = torch.tensor([[0.2, 0.1, 0.3, 0.15, 0.05, 0.2]])
    mapped = torch.softmax(found.to_target(law.log()), dim=-1)
    torch.testing.assert_close(mapped, torch.tensor([[0.3, 0.3, 0.35, 0.0]]) / 0.95)


def test_heads_limit_what_is_mapped():
    """A36: an id beyond a head is never handed over; rows beyond a vocabulary lead nowhere."""
    target, assistant = pieces("a", "b", "c"), pieces("c", "b", "a")
    found = build_map(target, assistant, 2, 5)
    assert found.target.tolist() == [0, 1] and found.assistant.tolist() == [2, 1]
    assert found.leads_to.tolist() == [-1, 1, 0, -1, -1]
    assert found.to_target(torch.zeros(1, 5)).shape == (1, 2)


def test_equal_bytes_twice_are_mapped_once():
    target, assistant = pieces("a", "a", "b"), pieces("b", "a", "a")
    found = build_map(target, assistant, 3, 3)
    assert dict(zip(found.target.tolist(), found.assistant.tolist(), strict=True)) == {0: 1, 2: 0}
    assert found.leads_to.tolist() == [2, 0, 0]


def test_nothing_in_common_is_refused_with_examples():
    with pytest.raises(DifferentVocabularies, match="no token in common.*b'a'.*b'z'"):
        build_map(pieces("a", "b"), pieces("z", "y"), 2, 2)


@pytest.mark.parametrize("kind", [*KINDS, "unigram", "wordpiece"])
def test_pieces_are_the_bytes_of_text(kind):
    """Every kind of tokenizer says its text in bytes, its space sign and single bytes included."""
    tokenizer = {**KINDS, "unigram": unigram, "wordpiece": wordpiece}[kind]()
    found = pieces_of(tokenizer)
    text = "the question is the sea" if kind in ("unigram", "wordpiece") else "the  question,\n naïve 日本語 🤗"
    said = b"".join(found.text[token] for token in tokenizer.encode(text, add_special_tokens=False))
    assert said.decode().removeprefix(" ") == text
    assert set(found.special) == set(tokenizer.all_special_ids)
    assert found.roles["eos_token_id"] == tokenizer.eos_token_id


@pytest.mark.parametrize("make", [unigram, wordpiece])
def test_a_tokenizer_that_loses_text_is_refused_with_an_example(make):
    with pytest.raises(DifferentVocabularies, match="changes text: '.*' comes back as '"):
        pair_of(2000, 2000, KINDS["byte level"](), make())


def test_a_map_is_built_once_and_anew_when_a_vocabulary_grows():
    ours, theirs = KINDS["byte level"](), KINDS["tiktoken"]()
    first = pair_of(2000, 2000, ours, theirs)
    assert pair_of(2000, 2000, ours, theirs) is first
    for tokenizer in (ours, theirs):
        with_markers(tokenizer)
        tokenizer.add_tokens(["zoological"])
    again = pair_of(2000, 2000, ours, theirs)
    assert again is not first and again.vocabulary_map.digest != first.vocabulary_map.digest
    assert len(again.vocabulary_map.target) == len(first.vocabulary_map.target) + 1
