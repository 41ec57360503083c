"""A sampled call is fixed by its seed, its rows' identities and positions, and by nothing else (contract 0x06D)."""

import pytest
import torch

import hf_exactassist
from hf_exactassist.randomness import ACCEPT, DRAFT, TERMINAL, Noise, draw_seed
from tests.api.helpers import assisted, pair
from tests.tiny import prompts


STEPS = 14
SAMPLED = {"do_sample": True, "max_new_tokens": STEPS, "eos_token_id": None, "pad_token_id": 0, "top_k": 0}


def sample(inputs, **settings):
    """New tokens of each row."""
    output = assisted(pair(), inputs, **{**SAMPLED, **settings})
    return output[:, inputs["input_ids"].shape[1] :].tolist()


def select(inputs, rows):
    """Some rows, without the padding they do not need."""
    mask = inputs["attention_mask"][rows]
    width = int(mask.sum(dim=1).max())
    return {"input_ids": inputs["input_ids"][rows][:, -width:], "attention_mask": mask[:, -width:]}


# --- seeds ---


def test_manual_seed_fixes_a_call_and_the_next_one_differs():
    def twice():
        torch.manual_seed(11)
        return sample(prompts([5, 3])), sample(prompts([5, 3]))

    first, second = twice()
    assert first != second
    assert twice() == (first, second)


def test_seed_fixes_a_call_whatever_the_generators_hold():
    torch.manual_seed(1)
    state = torch.get_rng_state()
    first = sample(prompts([5, 3]), seed=11)
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(2)
    assert sample(prompts([5, 3]), seed=11) == first
    assert sample(prompts([5, 3]), seed=12) != first
    with pytest.raises(hf_exactassist.InvalidArgument, match="not both"):
        sample(prompts([5, 3]), seed=11, generator=torch.Generator().manual_seed(4))


def test_generator_fixes_a_call_and_moves_on():
    state = torch.get_rng_state()
    generator = torch.Generator().manual_seed(11)
    first, second = sample(prompts([5]), generator=generator), sample(prompts([5]), generator=generator)
    assert first != second
    generator = torch.Generator().manual_seed(11)
    assert [sample(prompts([5]), generator=generator) for _ in range(2)] == [first, second]
    assert torch.equal(torch.get_rng_state(), state)


def test_one_number_is_taken_from_the_generator():
    """So that what follows the call does not depend on its length."""
    states = []
    for steps in (1, 9):
        generator = torch.Generator().manual_seed(11)
        sample(prompts([5]), generator=generator, max_new_tokens=steps)
        states.append(generator.get_state())
    generator = torch.Generator().manual_seed(11)
    draw_seed(generator)
    assert torch.equal(states[0], states[1]) and torch.equal(states[0], generator.get_state())


def test_seeds_matter():
    assert len({str(sample(prompts([5]), seed=seed, max_new_tokens=4)) for seed in range(20)}) > 10


@pytest.mark.parametrize("drafting", ["assistant", "lookup"])
def test_greedy_calls_consume_no_randomness(drafting):
    target, assistant = pair()
    drafts = {"assistant_model": assistant} if drafting == "assistant" else {"prompt_lookup_num_tokens": 3}
    generator = torch.Generator().manual_seed(0)
    before = torch.get_rng_state(), generator.get_state()
    hf_exactassist.models.admission._PROBED.pop(target, None)  # the probe neither
    hf_exactassist.generate(target, **prompts([5]), do_sample=False, max_new_tokens=8, generator=generator, **drafts)
    assert torch.equal(torch.get_rng_state(), before[0]) and torch.equal(generator.get_state(), before[1])


BAD_SEEDS = [-1, 1.5, "3", True, torch.tensor([3, 4]), [3]]


@pytest.mark.parametrize("do_sample", [False, True])
@pytest.mark.parametrize("seed", BAD_SEEDS, ids=str)
def test_bad_seeds_are_refused(seed, do_sample):
    with pytest.raises(hf_exactassist.InvalidArgument, match="seed"):
        sample(prompts([5]), seed=seed, do_sample=do_sample)


@pytest.mark.parametrize("row_ids", [[-1, 0], ["a", "b"], [0.5, 1], [0], [0, 1, 2], 3], ids=str)
def test_bad_row_ids_are_refused(row_ids):
    with pytest.raises(hf_exactassist.InvalidArgument, match="row_ids"):
        sample(prompts([5, 3]), seed=1, row_ids=row_ids)


def test_a_bad_generator_is_refused():
    with pytest.raises(hf_exactassist.InvalidArgument, match="generator"):
        sample(prompts([5]), generator=5)


# --- rows ---


def test_a_row_alone_draws_as_in_a_batch():
    inputs = prompts([9, 4, 6])
    together = sample(inputs, seed=3, row_ids=[40, 41, 42])
    for row in range(3):
        assert sample(select(inputs, [row]), seed=3, row_ids=[40 + row]) == [together[row]]
    assert sample(select(inputs, [1]), seed=3, row_ids=[40]) != [together[1]]


def test_row_ids_are_indices_by_default():
    assert sample(prompts([5, 3]), seed=3) == sample(prompts([5, 3]), seed=3, row_ids=range(2))


def test_other_rows_do_not_matter():
    inputs, others = prompts([9, 4, 6]), prompts([9, 7, 3], seed=8)
    mixed = {name: torch.stack([others[name][0], inputs[name][1], others[name][2]]) for name in inputs}
    first, second = sample(inputs, seed=3), sample(mixed, seed=3)
    assert first[1] == second[1]
    assert first[0] != second[0] and first[2] != second[2]


def test_the_order_of_the_batch_does_not_matter():
    inputs, order = prompts([9, 4, 6]), [2, 0, 1]
    straight = sample(inputs, seed=3, row_ids=[0, 1, 2])
    mixed = sample({name: value[order] for name, value in inputs.items()}, seed=3, row_ids=order)
    assert mixed == [straight[row] for row in order]


def test_early_finishers_change_nothing_for_the_others():
    """Rows that leave the batch do not shift the others' numbers."""
    inputs = prompts([9, 4, 6])
    free = sample(inputs, seed=3)
    eos = free[0][3]
    ended = sample(inputs, seed=3, eos_token_id=eos)
    for row, other in zip(ended, free, strict=True):
        end = other.index(eos) + 1 if eos in other else STEPS
        assert row[:end] == other[:end]
    assert 0 in ended[0]


def test_equal_identities_draw_equally():
    inputs = {name: value.repeat(2, 1) for name, value in prompts([5]).items()}
    first, second = sample(inputs, seed=3, row_ids=[7, 7])
    assert first == second
    first, second = sample(inputs, seed=3)
    assert first != second


def test_copies_differ_and_are_rows_of_their_own():
    inputs = prompts([5, 3])
    rows = sample(inputs, seed=3, num_return_sequences=3)
    assert len({str(row) for row in rows}) == 6
    for row in range(6):
        assert sample(select(inputs, [row // 3]), seed=3, row_ids=[row]) == [rows[row]]


def test_row_ids_name_every_returned_sequence():
    inputs = prompts([5, 3])
    rows = sample(inputs, seed=3, num_return_sequences=2, row_ids=[4, 5, 6, 7])
    assert rows[3] == sample(select(inputs, [1]), seed=3, row_ids=[7])[0]
    with pytest.raises(hf_exactassist.InvalidArgument, match="row_ids.*4"):
        sample(inputs, seed=3, num_return_sequences=2, row_ids=[4, 5])


@pytest.mark.parametrize("k", [1, 3, 20])
def test_the_first_token_does_not_depend_on_the_draft_length(k):
    """The prefill's token uses its position's terminal number, whatever is drafted after it."""
    assert sample(prompts([5, 3]), seed=3, num_assistant_tokens=k, max_new_tokens=1) == [
        row[:1] for row in sample(prompts([5, 3]), seed=3)
    ]


# --- the streams ---


@pytest.mark.parametrize("stream", [DRAFT, ACCEPT, TERMINAL])
def test_numbers_do_not_depend_on_block_boundaries(stream):
    """Across the pages they are made in, forwards, backwards and again."""
    whole = Noise(5, [9, 2]).block(stream, [0, 1], [0, 0], 200)
    assert whole.dtype == torch.float64 and whole.shape == (2, 200)
    assert ((whole >= 0) & (whole < 1)).all()
    noise, place = Noise(5, [9, 2]), 0
    for width in (1, 2, 60, 1, 5, 64, 67):
        assert torch.equal(noise.block(stream, [0, 1], [place, place], width), whole[:, place : place + width])
        place += width
    for place in (190, 0, 63, 64, 128, 63):
        assert torch.equal(noise.block(stream, [1], [place], 3), whole[1:, place : place + 3])
    ragged = noise.block(stream, [1, 0], [17, 62], 4)
    assert torch.equal(ragged, torch.stack([whole[1, 17:21], whole[0, 62:66]]))


def test_numbers_depend_on_seed_identity_stream_and_position():
    def block(seed=5, identity=0, stream=ACCEPT):
        return Noise(seed, [identity]).block(stream, [0], [0], 100)

    tables = [
        block(),
        block(seed=6),
        block(identity=1),
        block(stream=TERMINAL),
        block(stream=DRAFT),
        block(seed=2**61),
    ]
    numbers = torch.cat(tables).flatten()
    assert len(numbers.unique()) == len(numbers)
    # seed and identity are not simply added
    assert not torch.equal(block(seed=6, identity=0), block(seed=5, identity=1))
    # uniform: the mean of 600 numbers has a standard deviation of 0.012
    assert abs(numbers.mean() - 0.5) < 0.06
