"""Which tokens two models share, and what shows that they do (contract 0x01A, 0x06K)."""

import copy

import pytest
import torch
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

import hf_exactassist
from hf_exactassist.vocabulary.admission import shared_tokens
from tests.tiny import prompts, tiny


def tokenizer(tokens):
    """A tokenizer with this token map."""
    vocabulary = tokens if isinstance(tokens, dict) else {token: i for i, token in enumerate(tokens)}
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel(vocabulary, unk_token="t0")))


FIFTY = [f"t{i}" for i in range(50)]


def shared_ids(*arguments):
    shared = shared_tokens(*arguments)
    assert shared.dtype == torch.bool and shared.shape == (arguments[0],)
    return shared.nonzero().flatten().tolist()


@pytest.mark.parametrize(("target", "assistant"), [(50, 50), (64, 56), (56, 64), (50, 64)])
def test_the_tokens_of_one_map_are_shared_and_no_padding(target, assistant):
    """A33, A38, row 3: heads are padded differently; ids from 50 on mean nothing."""
    assert shared_ids(target, assistant, tokenizer(FIFTY), tokenizer(FIFTY)) == list(range(50))


@pytest.mark.parametrize(("target", "assistant"), [(50, 40), (40, 50), (40, 44)])
def test_heads_smaller_than_the_map_limit_what_is_shared(target, assistant):
    assert shared_ids(target, assistant, tokenizer(FIFTY), tokenizer(FIFTY)) == list(range(40))


def test_maps_where_one_holds_the_other_share_the_smaller():
    """A34, A36: tokens that only one side knows are never drafted."""
    assert shared_ids(64, 64, tokenizer(FIFTY), tokenizer(FIFTY[:45])) == list(range(45))
    assert shared_ids(64, 64, tokenizer(FIFTY[:45]), tokenizer(FIFTY)) == list(range(45))


def test_maps_with_gaps_share_what_both_know():
    ours = {token: i for i, token in enumerate(FIFTY) if i != 7}
    theirs = {token: i for i, token in enumerate(FIFTY) if i != 9}
    assert shared_ids(50, 50, tokenizer(ours), tokenizer(theirs)) == [i for i in range(50) if i not in (7, 9)]


def test_permuted_ids_are_two_tokenizers():
    """A37, row 4: equal sizes, other tokens."""
    swapped = FIFTY.copy()
    swapped[20], swapped[30] = swapped[30], swapped[20]
    assert shared_tokens(50, 50, tokenizer(FIFTY), tokenizer(swapped)) is None


def test_maps_without_a_common_id_are_two_tokenizers():
    late = {token: i + 50 for i, token in enumerate(FIFTY)}
    assert shared_tokens(128, 128, tokenizer(FIFTY), tokenizer(late)) is None


@pytest.mark.parametrize("given", [(None, None), ("ours", None), (None, "theirs")])
def test_without_both_tokenizers_heads_may_differ_by_padding_only(given):
    """A38: 151936 and 152064 are one vocabulary; A37: 32000 and 49152 are not."""
    tokenizers = [tokenizer(FIFTY) if name else None for name in given]
    assert shared_ids(152064, 151936, *tokenizers) == list(range(151936))
    assert shared_ids(151936, 152064, *tokenizers) == list(range(151936))
    assert len(shared_ids(2048, 1024, *tokenizers)) == 1024
    for sizes in ((32000, 49152), (2049, 1024), (1024, 2049)):
        with pytest.raises(hf_exactassist.DifferentVocabularies, match=r"tokenizer="):
            shared_tokens(*sizes, *tokenizers)


def test_generate_compares_the_maps_it_is_given():
    """A35, A37: refused before the first token, whatever the sizes."""
    target, assistant = tiny(vocabulary=50), copy.deepcopy(tiny(vocabulary=50))
    arguments = {"assistant_model": assistant, "max_new_tokens": 3, "do_sample": False, "tokenizer": tokenizer(FIFTY)}
    inputs = prompts([4], vocabulary=50)
    with pytest.raises(hf_exactassist.DifferentVocabularies, match="does not say what bytes"):
        hf_exactassist.generate(target, **inputs, **arguments, assistant_tokenizer=tokenizer(FIFTY[::-1]))
    plain = target.generate(**inputs, max_new_tokens=3, do_sample=False)
    ours = hf_exactassist.generate(target, **inputs, **arguments, assistant_tokenizer=tokenizer(FIFTY))
    assert ours.tolist() == plain.tolist()
