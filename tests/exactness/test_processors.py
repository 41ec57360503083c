"""Every position of a block is processed as the serial call at its own prefix would be (contract 0x06J)."""

import re

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import GenerationConfig
from transformers.generation import (
    EpsilonLogitsWarper,
    EtaLogitsWarper,
    LogitsProcessor,
    LogitsProcessorList,
    MinLengthLogitsProcessor,
    MinNewTokensLengthLogitsProcessor,
    MinPLogitsWarper,
    NoBadWordsLogitsProcessor,
    NoRepeatNGramLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SuppressTokensLogitsProcessor,
    TemperatureLogitsWarper,
    TopHLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
    TypicalLogitsWarper,
)

import hf_exactassist
from hf_exactassist.schedules import ConstantSchedule
from hf_exactassist.state.processors import ProcessorPipeline
from tests.tiny import VOCABULARY, ScriptedDrafter, byte_tokenizer, looping, noisy, prompts, same_as_plain


TOKENS = 14
PROMPT = 20


@pytest.fixture(scope="module")
def pair():
    target, _ = looping()
    return target, noisy(target, 0.15)


@pytest.fixture(scope="module", params=[[PROMPT], [PROMPT, 3, 9]], ids=["one row", "ragged batch"])
def inputs(request):
    return prompts(request.param, seed=1)


@pytest.fixture(scope="module")
def text(pair, inputs):
    """The target's own greedy tokens of every row, without any processor."""
    return pair[0].generate(**inputs, do_sample=False, max_new_tokens=TOKENS, eos_token_id=None)[:, PROMPT:].tolist()


def settings_of(name, text, prompt=PROMPT):
    """Arguments that change the given greedy text after a prompt of that length."""
    row = text[0]
    eos = {"eos_token_id": row[3]}
    return {
        "repetition penalty": {"repetition_penalty": 1.5},
        "repetition reward": {"repetition_penalty": 0.7},
        "no repeated n-gram": {"no_repeat_ngram_size": 2},
        "min length": {**eos, "min_length": prompt + 8},
        "min new tokens": {**eos, "min_new_tokens": 8},
        "bad word": {"bad_words_ids": [[row[2]], [row[0]]]},
        "bad words": {"bad_words_ids": [row[4:6], row[1:4], [row[8], row[9]]]},
        "suppressed tokens": {"suppress_tokens": row[1:4]},
        "suppressed beginning": {"begin_suppress_tokens": [row[0]]},
        "forced end": {"eos_token_id": 79, "forced_eos_token_id": 79},
        "forced beginning": {"forced_bos_token_id": 9},
        "exponential decay": {"eos_token_id": 79, "exponential_decay_length_penalty": (4, 1.5)},
        "sequence bias": {"sequence_bias": [[row[3:5], -9.0], [[row[1]], -1.5], [row[2:5], 3.0]]},
        "encoder repetition penalty": {"encoder_repetition_penalty": 3.0},
        "encoder n-gram": {"encoder_no_repeat_ngram_size": 1},
        "invalid values": {"remove_invalid_values": True, "suppress_tokens": row[1:3]},
        "renormalised": {"renormalize_logits": True, "repetition_penalty": 1.3},
        "left hash": {"watermarking_config": {"greenlist_ratio": 0.5, "bias": 3.0, "seeding_scheme": "lefthash"}},
        "self hash": {
            "watermarking_config": {
                "greenlist_ratio": 0.5,
                "bias": 3.0,
                "seeding_scheme": "selfhash",
                "context_width": 2,
            }
        },
    }[name]


NAMES = list(re.findall(r'^        "([^"]+)": \{', open(__file__).read(), re.M))
# change nothing about a prompt of several tokens, or about a text that repeats nothing of its prompt
IDLE = {"forced beginning"}


def after_padding(lengths):
    """A repetition penalty that ignores each row's padding; older releases know one length for all rows."""
    try:
        return RepetitionPenaltyLogitsProcessor(1.4, prompt_ignore_length=lengths)
    except ValueError:
        return RepetitionPenaltyLogitsProcessor(1.4, prompt_ignore_length=1)


@pytest.mark.parametrize("k", [1, 5])
@pytest.mark.parametrize("name", NAMES)
def test_greedy_text_is_plain_generates_with_each_processor(pair, inputs, text, name, k):
    """A41, A44, A48: each alone; the processor does change the text, and drafts are accepted under it."""
    target, assistant = pair
    given = {"max_new_tokens": TOKENS, "eos_token_id": None, **settings_of(name, text)}
    ours = same_as_plain(target, inputs, {"assistant_model": assistant, "num_assistant_tokens": k}, **given)
    plain = target.generate(**inputs, do_sample=False, max_new_tokens=TOKENS, eos_token_id=given["eos_token_id"])
    assert (ours.sequences.tolist() != plain.tolist()) or name in IDLE
    assert 0 < ours.assist_stats.accepted
    some_rejected = ours.assist_stats.accepted < ours.assist_stats.drafted
    assert some_rejected or k == 1 or "eos_token_id" in settings_of(name, text)


@pytest.mark.parametrize("k", [1, 5])
def test_greedy_text_is_plain_generates_with_all_processors_together(pair, inputs, text, k):
    """A41."""
    target, assistant = pair
    given = {}
    for name in NAMES:
        given |= settings_of(name, text)
    given |= {"max_new_tokens": TOKENS, "eos_token_id": 79, "suppress_tokens": [text[0][1]]}
    ours = same_as_plain(target, inputs, {"assistant_model": assistant, "num_assistant_tokens": k}, **given)
    assert ours.assist_stats.accepted


@pytest.mark.parametrize("k", [1, 5])
@pytest.mark.parametrize("name", NAMES)
def test_greedy_text_is_plain_generates_with_prompt_lookup(name, k):
    """A43, A44: drafts that were copied from the prompt know nothing of the processors."""
    target, looped = looping()
    length = looped["input_ids"].shape[1]
    new = target.generate(**looped, do_sample=False, max_new_tokens=TOKENS, eos_token_id=None)[:, length:].tolist()
    given = {"max_new_tokens": TOKENS, "eos_token_id": None, **settings_of(name, new, length)}
    ours = same_as_plain(target, looped, {"prompt_lookup_num_tokens": k}, **given)
    assert ours.assist_stats.drafted


@pytest.mark.parametrize("k", [1, 5])
def test_forced_beginning_of_a_prompt_of_one_token(pair, k):
    target, assistant = pair
    for rows in ([1], [1, 1, 1]):
        ours = same_as_plain(
            target,
            prompts(rows, seed=2),
            {"assistant_model": assistant, "num_assistant_tokens": k},
            max_new_tokens=TOKENS,
            forced_bos_token_id=9,
            begin_suppress_tokens=[21, 44, 62],
        )
        assert (ours.sequences[:, 1] == 9).all()


@pytest.mark.parametrize("k", [1, 5])
def test_processors_in_the_callers_list_act_and_the_list_is_left_alone(pair, inputs, text, k):
    """A41, A42: same object, same length, same members; a second call gives the same result."""
    target, assistant = pair
    eos = torch.tensor([text[0][3]])
    members = [
        MinLengthLogitsProcessor(PROMPT + 4, eos),
        MinNewTokensLengthLogitsProcessor(PROMPT, 6, eos),
        NoRepeatNGramLogitsProcessor(2),
        RepetitionPenaltyLogitsProcessor(1.2, prompt_ignore_length=3),
        NoBadWordsLogitsProcessor([[text[0][5]], text[0][:2]]),
        SuppressTokensLogitsProcessor([text[0][1]]),
    ]
    given = LogitsProcessorList(members)
    results = [
        same_as_plain(
            target,
            inputs,
            {"assistant_model": assistant, "num_assistant_tokens": k},
            processors=lambda: given,
            max_new_tokens=TOKENS,
            eos_token_id=int(eos),
        )
        for _ in range(2)
    ]
    assert results[0].sequences.tolist() == results[1].sequences.tolist()
    assert len(given) == len(members) and all(a is b for a, b in zip(given, members, strict=True))


# --- the caller's own functions ---


class Prefix:
    """A `prefix_allowed_tokens_fn` whose answer depends on the row's index, its length and its last token."""

    def __init__(self, texts):
        self.texts = texts

    def __call__(self, batch_id, prefix):
        # a third of the vocabulary, other tokens for every row
        wanted = (batch_id + len(prefix) + int(prefix[-1])) % 3
        return [token for token in range(3, VOCABULARY) if token % 3 == wanted]


@pytest.mark.parametrize("k", [1, 5])
@pytest.mark.parametrize("source", ["assistant", "lookup"])
def test_prefix_function_is_given_the_rows_own_index(pair, inputs, source, k):
    """A53: rows stand at different lengths after ragged acceptance; one object serves two calls."""
    target, assistant = pair
    allowed = Prefix(None)
    assisted = {"prompt_lookup_num_tokens": k}
    if source == "assistant":
        assisted = {"assistant_model": assistant, "num_assistant_tokens": k}
    for _ in range(2):
        ours = same_as_plain(
            target, inputs, assisted, max_new_tokens=TOKENS, eos_token_id=None, prefix_allowed_tokens_fn=allowed
        )
        assert ours.assist_stats.accepted or source == "lookup"


def test_prefix_function_is_given_the_prompts_index_with_several_returned_sequences(pair):
    """Plain `generate` counts prompts, not rows: both sequences of a prompt carry its index."""

    def one_token(batch_id, prefix):
        return [3 + (len(prefix) * 7 + batch_id * 29) % 77]

    target, assistant = pair
    settings = {"do_sample": True, "num_return_sequences": 2, "max_new_tokens": 9, "eos_token_id": None}
    plain = target.generate(**prompts([7, 4]), **settings, prefix_allowed_tokens_fn=one_token)
    ours = hf_exactassist.generate(
        target, **prompts([7, 4]), **settings, prefix_allowed_tokens_fn=one_token, assistant_model=assistant
    )
    assert ours.tolist() == plain.tolist()
    assert ours[0].tolist() != ours[2].tolist()


class Grammar:
    """Allows after each token some of the others; fails, as a trie does, on prefixes it has never allowed."""

    def __init__(self, start, failure, eos=None):
        self.start, self.failure, self.eos = start, failure, eos

    def __call__(self, batch_id, prefix):
        new = prefix[self.start - 1 :].tolist()
        if self.eos in new[1:] or any(
            b not in self.after(a) and b != self.eos for a, b in zip(new, new[1:], strict=False)
        ):
            if self.failure is not None:
                raise self.failure
            return []
        return self.after(new[-1]) if self.eos is None or len(new) < 6 else [self.eos]

    @staticmethod
    def after(token):
        return [other for other in range(3, VOCABULARY) if (other * 7 + token) % 2]


@pytest.mark.parametrize("k", [1, 5])
@pytest.mark.parametrize("eos", [None, 2])
@pytest.mark.parametrize("failure", [None, KeyError("no such prefix")])
@pytest.mark.parametrize("source", ["assistant", "lookup", "illegal"])
def test_prefix_function_is_never_asked_about_what_it_forbids(source, failure, eos, k):
    """A49, A51, A53: drafts may break the grammar or run past its end, and it is not asked to go on from there."""
    target, looped = looping()
    length = looped["input_ids"].shape[1]
    settings = {"do_sample": False, "max_new_tokens": TOKENS, "eos_token_id": eos}
    settings["prefix_allowed_tokens_fn"] = Grammar(length, failure, eos)
    plain = target.generate(**looped, **settings)
    if source == "illegal":
        free = target.generate(**looped, do_sample=False, max_new_tokens=TOKENS, eos_token_id=None)
        ours = target.generate(
            **looped,
            **settings,
            custom_generate=hf_exactassist.AssistedDecoding(
                ScriptedDrafter(free, lambda row, number: 9), ConstantSchedule(k)
            ),
        )
    elif source == "assistant":
        ours = hf_exactassist.generate(
            target, **looped, **settings, assistant_model=noisy(target), num_assistant_tokens=k
        )
    else:
        ours = hf_exactassist.generate(target, **looped, **settings, prompt_lookup_num_tokens=k)
    assert ours.tolist() == plain.tolist()


class Shift(LogitsProcessor):
    """Stateless: the bias depends on the last token."""

    def __init__(self):
        self.bias = torch.linspace(-2, 2, VOCABULARY)

    def __call__(self, input_ids, scores):
        return scores + torch.stack([self.bias.roll(int(row[-1]) * 5) for row in input_ids])


class PerRow(LogitsProcessor):
    """Stateless, with one bias per place in the batch."""

    def __init__(self, rows):
        self.bias = torch.stack([torch.linspace(-3, 3, VOCABULARY).roll(17 * row) for row in range(rows)])

    def __call__(self, input_ids, scores):
        return scores + self.bias * (1 + input_ids[:, -1:] % 3)


def plain_function(input_ids, scores):
    """Forbids every other token, which ones depends on the last token."""
    return scores.masked_fill((torch.arange(VOCABULARY) + input_ids[:, -1:]) % 2 == 0, -torch.inf)


class AfterToken(LogitsProcessor):
    """A52: turns on once a token has been seen."""

    def __init__(self, token, start):
        self.token, self.start = token, start

    def __call__(self, input_ids, scores):
        on = (input_ids[:, self.start :] == self.token).any(dim=1)
        return torch.where(on[:, None], -scores, scores)


def in_place(input_ids, scores):
    """Changes the scores it is given, as many examples do."""
    scores[:, 60:] -= 4
    return scores


def own_processors(text, rows):
    bias = torch.linspace(-2, 2, VOCABULARY)

    def closure(input_ids, scores):
        return scores + bias.roll(int(input_ids.shape[1]) * 3)

    return {
        "class": [Shift()],
        "class with a bias per row": [PerRow(rows)],
        "function": [plain_function],
        "closure": [closure],
        "in place": [in_place],
        "on after a token": [AfterToken(text[0][2], PROMPT)],
        "all": [Shift(), PerRow(rows), plain_function, closure, in_place],
    }


@pytest.mark.parametrize("k", [1, 5])
@pytest.mark.parametrize("name", own_processors([[0] * 9], 1))
def test_greedy_text_is_plain_generates_with_the_callers_own_processors(pair, inputs, text, name, k):
    target, assistant = pair
    given = own_processors(text, len(text))[name]
    ours = same_as_plain(
        target,
        inputs,
        {"assistant_model": assistant, "num_assistant_tokens": k},
        processors=lambda: given,
        max_new_tokens=TOKENS,
        eos_token_id=None,
        repetition_penalty=1.1,
    )
    plain = target.generate(
        **inputs, do_sample=False, max_new_tokens=TOKENS, eos_token_id=None, repetition_penalty=1.1
    )
    assert ours.sequences.tolist() != plain.tolist()
    assert ours.assist_stats.accepted


def test_own_processor_sees_the_text_of_its_tokenizer(pair, inputs):
    tokenizer = byte_tokenizer()

    def no_vowel_twice(input_ids, scores):
        words = tokenizer.batch_decode(input_ids[:, -3:])
        vowels = [i for i in range(3, VOCABULARY) if re.search("[aeiou]", tokenizer.decode([i]))]
        scores = scores.clone()
        for row, word in zip(scores, words, strict=True):
            row[vowels] -= 5 * len(re.findall("[aeiou]", word))
        return scores

    target, assistant = pair
    same_as_plain(
        target,
        inputs,
        {"assistant_model": assistant},
        processors=lambda: [no_vowel_twice],
        max_new_tokens=TOKENS,
        eos_token_id=None,
    )


# --- one position at a time ---

WARPERS = {
    "temperature": lambda: TemperatureLogitsWarper(0.7),
    "top_k": lambda: TopKLogitsWarper(3),
    "top_p": lambda: TopPLogitsWarper(0.7),
    "top_h": lambda: TopHLogitsWarper(0.6),
    "min_p": lambda: MinPLogitsWarper(0.2),
    "typical_p": lambda: TypicalLogitsWarper(0.6),
    "epsilon_cutoff": lambda: EpsilonLogitsWarper(0.1),
    "eta_cutoff": lambda: EtaLogitsWarper(0.1),
}


def compare_with_serial(processors, scores, rows, lengths, ids):
    """Each position of the block equals the list's own call on the whole batch at that prefix."""
    block = ProcessorPipeline(processors, ids[:, :2], scores.shape[1]).process(scores.clone(), rows, lengths, ids)
    for i, (row, length) in enumerate(zip(rows, lengths, strict=True)):
        batch = torch.zeros(ids.shape[0], scores.shape[1])
        batch[row] = scores[i]
        serial = LogitsProcessorList(processors)(ids[:, :length], batch)[row]
        torch.testing.assert_close(block[i], serial, rtol=0, atol=1e-6)
    return block


@pytest.mark.parametrize("names", [*([name] for name in WARPERS), list(WARPERS)], ids=lambda names: "+".join(names))
def test_warpers_over_a_block_equal_serial_calls(names):
    """A47: at verified positions and at the bonus position alike."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, 20, (3, 12), generator=generator)
    places = [(row, 2 + row + j) for row in range(3) for j in range(6)]
    scores = torch.randn(len(places), 20, generator=generator) * 2
    block = compare_with_serial(
        [WARPERS[name]() for name in names], scores, [row for row, _ in places], [end for _, end in places], ids
    )
    assert not torch.equal(block, scores)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(data=st.data())
def test_any_list_over_any_ragged_block_equals_serial_calls(data):
    """Hypothesis chooses the list, the rows' lengths, and how many positions of each row are asked for."""
    vocabulary, generator = 12, torch.Generator().manual_seed(data.draw(st.integers(0, 999)))
    batch = data.draw(st.integers(1, 4))
    ids = torch.randint(0, vocabulary, (batch, 14), generator=generator)
    mask_lengths = torch.randint(0, 2, (batch,), generator=generator)
    choices = {
        **WARPERS,
        "repetition": lambda: RepetitionPenaltyLogitsProcessor(1.4),
        "repetition after padding": lambda: after_padding(mask_lengths),
        "n-gram": lambda: NoRepeatNGramLogitsProcessor(2),
        "bad words": lambda: NoBadWordsLogitsProcessor([[1], [2, 3]]),
        "length": lambda: MinLengthLogitsProcessor(6, torch.tensor([4])),
        "new tokens": lambda: MinNewTokensLengthLogitsProcessor(2, 5, torch.tensor([4])),
        "suppressed": lambda: SuppressTokensLogitsProcessor([5]),
    }
    names = data.draw(st.lists(st.sampled_from(sorted(choices)), min_size=1, max_size=5, unique=True))
    asked = data.draw(st.lists(st.tuples(st.integers(2, 9), st.integers(0, 5)), min_size=batch, max_size=batch))
    places = [(row, start + j) for row, (start, count) in enumerate(asked) for j in range(count)]
    if not places:
        places = [(0, 2)]
    places = data.draw(st.permutations(places))
    scores = torch.randn(len(places), vocabulary, generator=generator) * 2
    compare_with_serial(
        [choices[name]() for name in names], scores, [row for row, _ in places], [end for _, end in places], ids
    )


def test_settings_of_a_generation_config_act_too(pair, inputs):
    """The same settings in a `GenerationConfig` object, which is not changed."""
    target, assistant = pair
    config = GenerationConfig(max_new_tokens=TOKENS, repetition_penalty=1.5, no_repeat_ngram_size=2, pad_token_id=0)
    before = config.to_dict()
    ours = same_as_plain(target, inputs, {"assistant_model": assistant}, generation_config=config)
    assert ours.assist_stats.accepted
    assert config.to_dict() == before
