"""Greedy calls publish the tokens of plain `generate`, whatever is drafted (contract 0x02A, 0x02D, 0x03G, 0x04J).

Equality is token for token in float32 on the CPU. Where logits are returned too they are compared as well: they show a
wrong cache row long before an arg-max flips.
"""

import copy

import pytest
import torch

import hf_exactassist
from hf_exactassist import AssistedDecoding
from hf_exactassist.records import Draft
from hf_exactassist.schedules import ConstantSchedule
from tests.tiny import ARCHITECTURES, EVEN_NOISE, VOCABULARY, ScriptedDrafter, contrary, noisy, prompts, tiny


# shorter, equal and longer than the sliding window of 8, and a prompt of one token
LENGTHS = (1, 5, 8, 13)
NEW = 24
# without an EOS every row runs to the end
SETTINGS = {"do_sample": False, "eos_token_id": None, "pad_token_id": 0, "max_new_tokens": NEW}


@pytest.fixture(scope="module", params=ARCHITECTURES)
def architecture(request):
    return request.param


@pytest.fixture(scope="module")
def target(architecture):
    return tiny(architecture)


@pytest.fixture(scope="module", params=["sdpa", "eager"])
def on_either_path(request, architecture):
    """The target, on an attention path that takes boolean masks and on one that takes additive ones."""
    model = tiny(architecture)
    model.set_attn_implementation(request.param)
    return model


@pytest.fixture(scope="module")
def even(target, architecture):
    """An assistant that is right about half the time (user-reports trap 1: always wrong exercises nothing)."""
    return noisy(target, EVEN_NOISE[architecture])


def plain(target, inputs, **settings):
    return target.generate(**inputs, **{**SETTINGS, **settings})


def assisted(target, inputs, assistant, **settings):
    """The output object of an assisted call."""
    settings = {**SETTINGS, **settings, "return_dict_in_generate": True, "assistant_model": assistant}
    return hf_exactassist.generate(target, **inputs, **settings)


def scripted(target, inputs, sequences, script, k, **settings):
    """Decodes with forced accept lengths; also returns the drafter, which saw every round."""
    drafter = ScriptedDrafter(sequences, script)
    decoding = AssistedDecoding(drafter, ConstantSchedule(k))
    return target.generate(**inputs, **{**SETTINGS, **settings}, custom_generate=decoding), drafter


def rounds(drafter):
    """Drafted and accepted tokens of each round with a draft, by row."""
    return [dict(zip(c.rows, zip(c.drafted, c.accepted, strict=True), strict=True)) for c in drafter.observed[1:]]


def row(inputs, index):
    """One row of a batch, its padding taken off."""
    length = int(inputs["attention_mask"][index].sum())
    return {"input_ids": inputs["input_ids"][index : index + 1, -length:]}


def test_the_texts_compared_vary(architecture):
    """A model that repeats one token would agree with anything."""
    inputs = prompts(LENGTHS)
    new = plain(tiny(architecture), inputs)[:, max(LENGTHS) :]
    distinct = [len(set(tokens.tolist())) for tokens in new]
    assert min(distinct) >= 4 and len({tuple(tokens.tolist()) for tokens in new}) == len(LENGTHS)


# --- assistants x batches x draft lengths ---


@pytest.mark.parametrize("k", [1, 2, 5, 20])
def test_a_ragged_batch_with_an_assistant_that_is_half_right(on_either_path, even, k):
    """A01, A03: left-padded rows of unequal length accept different numbers of tokens in one round."""
    inputs = prompts(LENGTHS)
    output = assisted(on_either_path, inputs, even, num_assistant_tokens=k)
    assert torch.equal(output.sequences, plain(on_either_path, inputs))
    assert (0.15 if k == 20 else 0.3) <= output.assist_stats.acceptance_rate <= 0.8


@pytest.mark.parametrize("k", [1, 2, 5, 20])
def test_a_ragged_batch_with_the_targets_own_copy(target, k):
    """S: every draft is accepted, every round ends in a bonus token (contract 0x03H)."""
    inputs = prompts(LENGTHS)
    output = assisted(target, inputs, copy.deepcopy(target), num_assistant_tokens=k)
    assert torch.equal(output.sequences, plain(target, inputs))
    assert output.assist_stats.acceptance_rate == 1


@pytest.mark.parametrize("k", [2, 5])
def test_a_ragged_batch_with_an_unrelated_assistant(target, architecture, k):
    """R: almost everything is rejected."""
    inputs = prompts(LENGTHS)
    output = assisted(target, inputs, tiny(architecture, seed=7), num_assistant_tokens=k, max_new_tokens=12)
    assert torch.equal(output.sequences, plain(target, inputs, max_new_tokens=12))
    assert output.assist_stats.acceptance_rate < 0.2


@pytest.mark.parametrize("k", [1, 5])
def test_a_ragged_batch_with_the_least_likely_tokens(target, k):
    """A20: drafts that nobody would want cannot get in."""
    inputs = prompts(LENGTHS)
    output = assisted(target, inputs, contrary(target), num_assistant_tokens=k, max_new_tokens=12)
    assert torch.equal(output.sequences, plain(target, inputs, max_new_tokens=12))
    assert output.assist_stats.accepted == 0 < output.assist_stats.drafted


@pytest.mark.parametrize("length", LENGTHS)
def test_a_single_prompt_with_and_without_padding(target, even, length):
    """A11 (one-token prompt); a batch of one is no special case, and padding in it changes nothing."""
    unpadded = prompts([length], seed=length)
    padded = {name: torch.nn.functional.pad(value, (4, 0)) for name, value in unpadded.items()}
    for inputs in (unpadded, padded):
        expected = plain(target, inputs)
        assert torch.equal(assisted(target, inputs, even).sequences, expected)
        output, drafter = scripted(target, inputs, expected, lambda row, number: number % 4, 3)
        assert torch.equal(output, expected)
        assert {accepted for judged in rounds(drafter) for _, accepted in judged.values()} == {0, 1, 2, 3}


def test_a_prompt_without_a_mask(target, even):
    inputs = {"input_ids": prompts([9])["input_ids"]}
    assert torch.equal(assisted(target, inputs, even).sequences, plain(target, inputs))


def test_the_logits_behind_every_token_are_plain_generates(on_either_path, even):
    """A15: bit for bit in the prefill (the same forward), to rounding in later blocks (contract 0x04C, 0x04J)."""
    inputs = prompts(LENGTHS)
    wanted = {"output_logits": True, "output_scores": True, "return_dict_in_generate": True}
    expected = plain(on_either_path, inputs, **wanted)
    output = assisted(on_either_path, inputs, even, **wanted)
    assert torch.equal(output.logits[0], expected.logits[0])
    for name in ("logits", "scores"):
        ours, theirs = torch.stack(output[name]), torch.stack(expected[name])
        assert ours.shape == theirs.shape
        torch.testing.assert_close(ours, theirs, rtol=0, atol=2e-5 * theirs.std().item())


# --- forced accept lengths ---


def shifting(k):
    """Accept lengths 0, 1, K - 1 and K for the four rows, moved on by one row in each round."""
    lengths = (0, min(1, k), max(k - 1, 0), k)
    return lambda row, number: lengths[(row + number) % 4]


@pytest.mark.parametrize("k", [1, 2, 5, 20])
def test_rows_accept_none_one_all_but_one_and_all_in_one_round(on_either_path, k):
    """A01, contract 0x06B: every suffix of a round, in every row, side by side."""
    inputs = prompts(LENGTHS)
    expected = plain(on_either_path, inputs)
    output, drafter = scripted(on_either_path, inputs, expected, shifting(k), k)
    assert torch.equal(output, expected)
    seen = rounds(drafter)
    for number, judged in enumerate(seen):
        for index, (drafted, accepted) in judged.items():
            assert accepted == min(shifting(k)(index, number), drafted)
    assert {accepted for _, accepted in seen[0].values()} == {0, min(1, k), k - 1, k}


@pytest.mark.parametrize("k", [1, 5])
def test_rounds_without_and_rounds_with_all_drafts_alternate(target, k):
    """A11."""
    inputs = prompts(LENGTHS)
    expected = plain(target, inputs)
    output, drafter = scripted(target, inputs, expected, lambda row, number: k * (number % 2), k)
    assert torch.equal(output, expected)
    whole = [judged for judged in rounds(drafter) if all(drafted == k for drafted, _ in judged.values())]
    assert len(whole) >= 4
    assert [{accepted for _, accepted in judged.values()} for judged in whole] == [
        {k * (number % 2)} for number in range(len(whole))
    ]


# --- ends ---


def ends(new, eos):
    """Where each row ends and by which id: `(place, id)`."""
    places = [next((i for i, token in enumerate(tokens) if token in eos), None) for tokens in new]
    return [(len(tokens), None) if i is None else (i, tokens[i]) for i, tokens in zip(places, new, strict=True)]


def ending(target, inputs, count):
    """EOS ids from the model's own greedy text (trap 3), so that rows end at different places and by different ids."""
    new = plain(target, inputs)[:, inputs["input_ids"].shape[1] :].tolist()
    chosen = []
    for _ in range(count):

        def worth(token):
            found = ends(new, [*chosen, token])
            # late ends leave room for the next id
            return len({end for _, end in found}), len({i for i, _ in found}), sum(i for i, _ in found)

        candidates = sorted({token for tokens in new for token in tokens} - set(chosen))
        chosen.append(max((t for t in candidates if min(i for i, _ in ends(new, [t])) > 0), key=worth))
    return chosen


@pytest.mark.parametrize("count", [1, 3])
def test_rows_that_end_in_different_rounds(target, even, count):
    """A02: rows leave the batch at their EOS and are padded; the others go on unaffected."""
    inputs = prompts(LENGTHS)
    eos = ending(target, inputs, count)
    expected = plain(target, inputs, eos_token_id=eos)
    found = ends(plain(target, inputs)[:, max(LENGTHS) :].tolist(), eos)
    assert len({place for place, _ in found}) >= 2 and len({token for _, token in found} - {None}) >= min(count, 2)
    for assistant in (even, copy.deepcopy(target)):
        for k in (2, 5, 20):
            output = assisted(target, inputs, assistant, eos_token_id=eos, num_assistant_tokens=k)
            assert torch.equal(output.sequences, expected)


def test_an_end_token_that_is_drafted_by_script(target):
    """The drafts run past the EOS (this drafter does not heed it): nothing after it is published (contract 0x06)."""
    inputs = prompts(LENGTHS)
    eos = ending(target, inputs, 3)
    unended, expected = plain(target, inputs), plain(target, inputs, eos_token_id=eos)
    for k in (1, 5, 20):
        output, drafter = scripted(target, inputs, unended, lambda row, number: 20, k, eos_token_id=eos)
        assert torch.equal(output, expected)
    assert any("stop" in commit.terminal for commit in drafter.observed)


@pytest.mark.parametrize("length", range(1, 9))
def test_every_length_limit_inside_a_block(length):
    target = tiny()
    inputs = prompts(LENGTHS)
    expected = plain(target, inputs, max_new_tokens=length)
    for assistant in (noisy(target, EVEN_NOISE["llama"]), copy.deepcopy(target)):
        for k in (1, 5, 20):
            output = assisted(target, inputs, assistant, max_new_tokens=length, num_assistant_tokens=k)
            assert torch.equal(output.sequences, expected)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("k", [1, 5, 20])
def test_a_learned_position_table_is_used_up_inside_a_block(attention, k):
    """`n_positions == max_length`: no filler and no draft may ask for a position behind the table (contract 0x04C)."""
    target = tiny("gpt2", n_positions=32)
    target.set_attn_implementation(attention)
    inputs = prompts(LENGTHS)
    settings = {"max_new_tokens": None, "max_length": 32}
    expected = plain(target, inputs, **settings)
    assert expected.shape[1] == 32
    for assistant in (noisy(target, EVEN_NOISE["gpt2"]), copy.deepcopy(target)):
        output = assisted(target, inputs, assistant, num_assistant_tokens=k, **settings)
        assert torch.equal(output.sequences, expected)
        assert output.assist_stats.accepted > 0
    output, _ = scripted(target, inputs, expected, shifting(k), k, **settings)
    assert torch.equal(output, expected)


# --- rows do not know of each other ---


def test_each_row_is_its_own_batch_1_result(target, even):
    """A01."""
    inputs = prompts(LENGTHS)
    batch = assisted(target, inputs, even).sequences[:, max(LENGTHS) :]
    for index, length in enumerate(LENGTHS):
        alone = row(inputs, index)
        expected = plain(target, alone)
        assert torch.equal(assisted(target, alone, even).sequences, expected)
        assert torch.equal(batch[index], expected[0, length:])


def test_another_prompt_in_one_row_leaves_the_other_rows_as_they_were(target, even):
    """A07, contract 0x04E: nothing leaks between rows, neither while a row runs nor when it ends earlier."""
    inputs = prompts((*LENGTHS, 6, 11, 2, 9))
    eos = ending(target, inputs, 1)
    before = assisted(target, inputs, even, eos_token_id=eos).sequences
    for index in (0, 3, 6):
        changed = {name: value.clone() for name, value in inputs.items()}
        real = changed["attention_mask"][index] == 1
        changed["input_ids"][index, real] = (changed["input_ids"][index, real] + 17) % (VOCABULARY - 3) + 3
        after = assisted(target, changed, even, eos_token_id=eos).sequences
        assert not torch.equal(after[index], before[index])
        others = [i for i in range(len(before)) if i != index]
        columns = min(after.shape[1], before.shape[1])
        assert torch.equal(after[others, :columns], before[others, :columns])
        # whichever result is longer is so for the changed row's sake
        for longer in (after, before):
            assert not longer[others, columns:].any()


# --- precision, length, many prompts ---


def test_a_float64_model_is_equal_in_float64(architecture):
    """A22: the same check at a precision at which near ties play no part."""
    target = tiny(architecture).double()
    assistant = noisy(target, EVEN_NOISE[architecture])
    inputs = prompts(LENGTHS)
    wanted = {"return_dict_in_generate": True, "output_logits": True}
    expected = plain(target, inputs, **wanted)
    output = assisted(target, inputs, assistant, **wanted)
    assert torch.equal(output.sequences, expected.sequences)
    assert 0.3 <= output.assist_stats.acceptance_rate <= 0.8
    # logits are handed out in float32: they differ by its last digit at most
    torch.testing.assert_close(torch.stack(output.logits), torch.stack(expected.logits), rtol=2e-7, atol=1e-7)


@pytest.mark.parametrize("name", ["llama", "mistral", "gemma3", "gpt2"])
def test_a_long_text(name):
    """200 tokens: many rounds, storage that grows, windows long left behind."""
    target = tiny(name)
    inputs = prompts((2, 9, 5))
    output = assisted(target, inputs, noisy(target, EVEN_NOISE[name]), max_new_tokens=200)
    assert torch.equal(output.sequences, plain(target, inputs, max_new_tokens=200))
    assert output.assist_stats.accepted > 60


@pytest.mark.parametrize("k", range(1, 9))
def test_many_prompts_at_every_draft_length(k):
    """A16: fifty prompts in one batch, at each K from 1 to 8."""
    target = tiny()
    inputs = prompts([1 + (7 * i) % 12 for i in range(50)], seed=3)
    settings = {"eos_token_id": 2, "max_new_tokens": 16}
    output = assisted(target, inputs, noisy(target, EVEN_NOISE["llama"]), num_assistant_tokens=k, **settings)
    assert torch.equal(output.sequences, plain(target, inputs, **settings))


@pytest.mark.parametrize("lengths", [[6], [20], [6, 3, 12], [20, 3]])
def test_an_assistant_with_fewer_positions_stops_drafting_and_the_target_goes_on(lengths):
    """Learned position tables: rows past the assistant's end are carried along, those before it still get drafts."""
    target, short = tiny("gpt2"), tiny("gpt2", n_positions=16)
    weights = noisy(target, EVEN_NOISE["gpt2"]).state_dict()
    weights["transformer.wpe.weight"] = weights["transformer.wpe.weight"][:16]
    short.load_state_dict(weights)
    settings = {"eos_token_id": None, "max_new_tokens": 24}
    output = assisted(target, prompts(lengths), short, **settings)
    assert torch.equal(output.sequences, plain(target, prompts(lengths), **settings))
    assert (output.assist_stats.accepted > 0) == (min(lengths) < 16)


def test_filler_behind_short_drafts_need_not_be_tokens():
    """`Draft`: entries beyond a row's length mean nothing, and reach neither model nor judge."""

    class Ragged(ScriptedDrafter):
        def propose(self, lengths):
            draft = super().propose(lengths)
            short = tuple(max(length - row, 0) for row, length in enumerate(draft.lengths))
            filler = torch.arange(draft.tokens.shape[1]) >= torch.tensor(short)[:, None]
            return Draft(draft.tokens.masked_fill(filler, -1), short)

    target, inputs = tiny(), prompts([5, 3, 8])
    expected = plain(target, inputs, eos_token_id=None, max_new_tokens=20)
    loop = AssistedDecoding(Ragged(expected, lambda row, round: 2 + row), ConstantSchedule(4))
    output = target.generate(**inputs, eos_token_id=None, pad_token_id=0, max_new_tokens=20, custom_generate=loop)
    assert torch.equal(output, expected)
