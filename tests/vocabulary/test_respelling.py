"""What the assistant says, in the tokens that the target's tokenizer would choose (contract 0x06J, 0x06K)."""

import itertools

import pytest
import torch
from hypothesis import given, settings

import hf_exactassist
from hf_exactassist import AssistedDecoding
from hf_exactassist.drafters.other_tokenizer import OtherTokenizerDrafter
from hf_exactassist.models import compat
from hf_exactassist.schedules import ConstantSchedule
from hf_exactassist.vocabulary.admission import pair_of
from hf_exactassist.vocabulary.pieces import pieces_of
from hf_exactassist.vocabulary.respelling import Respelling, text_of
from hf_exactassist.vocabulary.transcript import ends_of
from tests.tiny import tiny
from tests.vocabulary.kinds import KINDS
from tests.vocabulary.test_generate import PROMPTS, models
from tests.vocabulary.test_transcript import CLEAN, made


def respelling(kind):
    tokenizer = made(kind)
    return Respelling(pieces_of(tokenizer), lambda text: tokenizer.encode(text, add_special_tokens=False))


@pytest.mark.parametrize("kind", KINDS)
def test_drafted_tokens_stay_whatever_follows(kind):
    """What more text could change is held back; what is not held back is what the tokenizer makes of the whole."""
    respelt, tokenizer, pieces, found = respelling(kind), made(kind), pieces_of(made(kind)), []

    @settings(max_examples=300, deadline=None, derandomize=True, database=None)
    @given(CLEAN, CLEAN, CLEAN)
    def check(text, said, more):
        new = respelt.tokens(text, said)
        whole = tokenizer.encode(text + said + more, add_special_tokens=False)
        ends = ends_of(pieces, whole, text + said + more)
        if not new or ends is None:
            return
        start = len(text.encode())
        first = ends.index(start) + 1 if start else 0
        assert whole[first : first + len(new)] == new
        found.append(len(new))

    check()
    assert len(found) > 30 and max(found) > 3


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_held_back_where_the_text_ends(kind):
    text, said = "To be, or not to be, that is", " the question: whether"
    respelt, tokenizer = respelling(kind), made(kind)
    whole = tokenizer.encode(text + said, add_special_tokens=False)
    before = tokenizer.encode(text, add_special_tokens=False)
    assert whole[: len(before)] == before
    assert respelt.tokens(text, said, ended=True) == whole[len(before) :]
    kept = respelt.tokens(text, said)
    assert 0 < len(kept) < len(whole) - len(before)
    # "whether" may go on, and be another token then
    assert text_of(pieces_of(tokenizer), kept) == " the question:"


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_drafted_where_the_target_would_not_begin_a_token(kind):
    respelt = respelling(kind)
    assert respelt.tokens("To be, or not to be, th", "at is the question") == []
    assert respelt.tokens("To be, or not to be,", " that is the question")


def test_text_of_tokens():
    pieces = pieces_of(made("byte level"))
    ids = made("byte level").encode("a 🦜", add_special_tokens=False)
    assert text_of(pieces, ids) == "a 🦜"
    # a character that is not finished is not said
    assert text_of(pieces, ids[:-1]) == "a "
    assert text_of(pieces, []) == ""
    spaced = pieces_of(made("sentencepiece"))
    first = made("sentencepiece").encode("To be", add_special_tokens=False)
    assert text_of(spaced, first) == " To be" and text_of(spaced, first, first=True) == "To be"


def knowing(text):
    """A forward hook: the model goes on as the text does, wherever in it a row stands."""

    def hook(module, args, kwargs, output):
        for i, positions in enumerate(kwargs["position_ids"].tolist()):
            for j, position in enumerate(positions[-output.logits.shape[1] :]):
                output.logits[i, j, text[min(position + 1, len(text) - 1)]] += 50
        return output

    return hook


@pytest.mark.parametrize("coupling", ["greedy", "maximal", "shared_noise"])
@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("k", [2, 8])
def test_text_of_a_good_assistant_is_accepted(rows, k, coupling):
    """The target knows longer tokens, which a draft over common tokens could never reach."""
    ours, _, tokenizer, _ = models("byte level", "tiktoken")
    small = KINDS["byte level"](size=275)
    theirs = tiny(vocabulary=len(small), seed=3)
    text = "To be, or not to be, that is the question: whether 'tis nobler in the mind to suffer the slings and arrows"
    prompts = ["To be,", "To be, or not to be,", "To be, or"][:rows]
    for model, vocabulary in ((ours, tokenizer), (theirs, small)):
        model.register_forward_hook(knowing(vocabulary.encode(text)), with_kwargs=True)
    inputs = tokenizer(prompts, return_tensors="pt", padding=True, return_token_type_ids=False)
    settings = {"do_sample": coupling != "greedy", "max_new_tokens": 12, "eos_token_id": None}
    pair = pair_of(compat.head_size(ours), compat.head_size(theirs), tokenizer, small)
    noise = {"coupling": coupling} if coupling == "shared_noise" else {}
    expected = ours.generate(**inputs, **settings)
    accepted = {}
    for ways in (("tokens",), ("text",), ("tokens", "text")):
        loop = AssistedDecoding(OtherTokenizerDrafter(theirs, pair, ways=ways), ConstantSchedule(k), **noise)
        output = ours.generate(**inputs, **settings, custom_generate=loop, return_dict_in_generate=True)
        # as good as certain, even where it is drawn
        assert output.sequences.tolist() == expected.tolist()
        accepted[ways] = output.assist_stats.accepted
    if k == 8:
        assert accepted["text",] > accepted["tokens",]


@pytest.mark.parametrize("name", ["no_repeat_ngram_size", "repetition_penalty", "bad_words_ids"])
@pytest.mark.parametrize("coupling", ["greedy", "shared_noise"])
def test_processors_that_look_back_see_the_text_that_is_drafted(name, coupling):
    """What they forbid hangs on the prefix of each place, and the assistant says much that they forbid."""
    ours, _, tokenizer, _ = models("byte level", "tiktoken")
    small = KINDS["byte level"](size=300)
    theirs = tiny(vocabulary=len(small), seed=3)
    text = "To be, or not to be, that is the question: to be, or not to be, that is the question: to be or not to be"
    for model, vocabulary in ((ours, tokenizer), (theirs, small)):
        model.register_forward_hook(knowing(vocabulary.encode(text)), with_kwargs=True)
    prompts = ["To be,", "To be, or not to be,"]
    inputs = tokenizer(prompts, return_tensors="pt", padding=True, return_token_type_ids=False)
    banned = [tokenizer.encode(" the question"), tokenizer.encode(" or not")]
    values = {"no_repeat_ngram_size": 2, "repetition_penalty": 1.5, "bad_words_ids": banned}
    settings = {"do_sample": coupling != "greedy", "max_new_tokens": 24, "eos_token_id": None, name: values[name]}
    pair = pair_of(compat.head_size(ours), compat.head_size(theirs), tokenizer, small)
    noise = {"coupling": coupling} if coupling == "shared_noise" else {}
    torch.manual_seed(1)
    expected = ours.generate(**inputs, **settings)
    torch.manual_seed(1)
    loop = AssistedDecoding(OtherTokenizerDrafter(theirs, pair, ways=("text",)), ConstantSchedule(8), **noise)
    output = ours.generate(**inputs, **settings, custom_generate=loop, return_dict_in_generate=True)
    assert output.sequences.tolist() == expected.tolist()
    assert output.assist_stats.accepted_by_position[1] > 0


@pytest.mark.parametrize(("target", "assistant"), itertools.permutations(KINDS, 2))
def test_greedy_text_is_the_targets(target, assistant):
    """Where only text is drafted, by an assistant that says anything."""
    ours, theirs, tokenizer, other = models(target, assistant)
    inputs = tokenizer(PROMPTS, return_tensors="pt", padding=True, return_token_type_ids=False)
    settings = {"do_sample": False, "max_new_tokens": 24}
    pair = pair_of(compat.head_size(ours), compat.head_size(theirs), tokenizer, other)
    loop = AssistedDecoding(OtherTokenizerDrafter(theirs, pair, ways=("text",)), ConstantSchedule(6))
    output = ours.generate(**inputs, **settings, custom_generate=loop, return_dict_in_generate=True)
    assert output.sequences.tolist() == ours.generate(**inputs, **settings).tolist()
    assert output.assist_stats.draft_forwards


def test_text_is_not_drafted_where_processors_remember():
    ours, theirs, tokenizer, other = models("byte level", "tiktoken")

    class Counter:
        def __init__(self):
            self.calls = 0

        def __call__(self, input_ids, scores):
            self.calls += 1
            return scores

    pair = pair_of(compat.head_size(ours), compat.head_size(theirs), tokenizer, other)
    drafter, counter = OtherTokenizerDrafter(theirs, pair, ways=("text",)), Counter()
    inputs = tokenizer(PROMPTS[:1], return_tensors="pt", return_token_type_ids=False)
    loop = AssistedDecoding(drafter, ConstantSchedule(3))
    settings = {"do_sample": False, "max_new_tokens": 8, "custom_generate": loop, "return_dict_in_generate": True}
    stats = ours.generate(**inputs, **settings, logits_processor=[counter]).assist_stats
    assert counter.calls == 8 and stats.drafted > 0
    assert isinstance(stats, hf_exactassist.AssistStats)
