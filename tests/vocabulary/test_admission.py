"""Which tokens two models share, and what shows that they do (contract 0x01A, 0x06K)."""

import copy
import gc
import weakref

import pytest
import torch
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

import hf_exactassist
from hf_exactassist.models.compat import declared_tokens
from hf_exactassist.vocabulary.admission import pair_of, shared_tokens
from tests import tiny_multimodal
from tests.tiny import prompts, tiny
from tests.vocabulary.kinds import KINDS


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


def declares(model_type, **roles):
    named = {f"{role}_token_id": frozenset(ids) for role, ids in roles.items()}
    return {"model_type": frozenset({model_type}), **named}


LLAMA = declares("llama", bos={1}, eos={2})


@pytest.mark.parametrize(
    "theirs",
    [
        declares("gpt2", bos={5}, eos={2, 7}),
        declares("gpt2", eos={2}, pad={0}),
        declares("gpt2", bos={1}, eos={9}),
        declares("gpt2", pad={0}),
        declares("gpt2"),
        # a base model and one that was tuned for chats
        declares("llama", bos={8}, eos={9}),
    ],
)
def test_configurations_that_agree_on_anything_or_name_nothing_pass(theirs):
    for given in ((LLAMA, theirs), (theirs, LLAMA)):
        assert shared_ids(50, 50, None, tokenizer(FIFTY), *given) == list(range(50))
    assert len(shared_ids(50, 50, None, None, LLAMA)) == 50


@pytest.mark.parametrize("theirs", [declares("gpt2", bos={0}, eos={0, 9}), declares("gpt2", eos={3}, pad={2})])
def test_models_of_two_types_that_agree_on_no_special_token_are_refused_by_name(theirs):
    for given in ((LLAMA, theirs), (theirs, LLAMA)):
        message = r"gpt2.*agree on no special token: .*`eos_token_id`.* Pass both, as `tokenizer=` and"
        with pytest.raises(hf_exactassist.DifferentVocabularies, match=message):
            shared_tokens(50, 50, tokenizer(FIFTY), None, *given)
    # tokenizers say it better
    assert shared_ids(50, 50, tokenizer(FIFTY), tokenizer(FIFTY), LLAMA, theirs) == list(range(50))


def test_what_a_model_declares_of_its_tokens():
    """From every configuration; a list, and ids that are not in the head."""
    model = tiny(vocabulary=50)
    assert declared_tokens(model) == declares("llama", bos={1}, eos={2}, pad={0})
    model.generation_config.eos_token_id = [2, 7, 50]
    model.config.bos_token_id = model.generation_config.bos_token_id = 50
    model.generation_config.pad_token_id = model.config.pad_token_id = None
    assert declared_tokens(model) == declares("llama", eos={2, 7})


def test_the_part_that_decodes_text_declares_too():
    model = tiny_multimodal.tiny("llava")
    declared = declared_tokens(model)
    assert (
        declared["model_type"] == {model.config.get_text_config(decoder=True).model_type} != {model.config.model_type}
    )
    model.config.get_text_config(decoder=True).eos_token_id = 7
    assert 7 in declared_tokens(model)["eos_token_id"]


def test_generate_heeds_what_configurations_declare():
    target, assistant = tiny(vocabulary=50), tiny("gpt2", vocabulary=50)
    settings = {**prompts([4], vocabulary=50), "max_new_tokens": 3, "do_sample": False}
    plain = target.generate(**settings).tolist()
    assert hf_exactassist.generate(target, **settings, assistant_model=assistant).tolist() == plain
    for config in (assistant.config, assistant.generation_config):
        config.bos_token_id, config.eos_token_id, config.pad_token_id = 40, 41, 42
    with pytest.raises(hf_exactassist.DifferentVocabularies, match="llama and gpt2.*`bos_token_id` 1 and 40"):
        hf_exactassist.generate(target, **settings, assistant_model=assistant)
    both = {"tokenizer": tokenizer(FIFTY), "assistant_tokenizer": tokenizer(FIFTY)}
    assert hf_exactassist.generate(target, **settings, **both, assistant_model=assistant).tolist() == plain
    relative = copy.deepcopy(target)
    for config in (relative.config, relative.generation_config):
        config.bos_token_id, config.eos_token_id, config.pad_token_id = 40, 41, 42
    assert hf_exactassist.generate(target, **settings, assistant_model=relative).tolist() == plain


def test_a_tokenizer_that_becomes_another_is_mapped_anew():
    """Of the same length, so that its size tells nothing."""
    ours, theirs = KINDS["byte level"](), KINDS["tiktoken"]()
    first = pair_of(1000, 1000, ours, theirs)
    assert pair_of(1000, 1000, ours, theirs) is first
    other = KINDS["tiktoken"](text=["entirely different words of which nothing is known so far " * 8])
    theirs._tokenizer = other._tokenizer
    assert pair_of(1000, 1000, ours, theirs) is not first


def test_tokenizers_of_long_ago_are_let_go():
    theirs, ours = KINDS["tiktoken"](), KINDS["byte level"]()
    made = weakref.ref(ours)
    pair_of(1000, 1000, ours, theirs)
    del ours
    for _ in range(8):
        pair_of(1000, 1000, KINDS["byte level"](), theirs)
    gc.collect()
    assert made() is None
