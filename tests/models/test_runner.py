"""Blocks of ragged rows score like independent full forwards (contract 0x04A to 0x04E, 0x04J).

Prompts are shorter, equal and longer than the sliding window of 8, and the rows cross it at different times.
"""

import pytest
import torch
from transformers import GenerationConfig

from hf_exactassist.models.runner import RowRunner
from tests.tiny import ARCHITECTURES, VOCABULARY, prompts, tiny


LENGTHS = (1, 5, 8, 13)
WIDTH = max(LENGTHS)


@pytest.fixture(scope="module", params=ARCHITECTURES)
def architecture(request):
    return request.param


@pytest.fixture(scope="module", params=["sdpa", "eager"])
def model(request, architecture):
    model = tiny(architecture)
    model.set_attn_implementation(request.param)
    return model


class Played:
    """A runner beside the plain token lists of its rows, whose logits come from independent full forwards."""

    def __init__(self, model, lengths=LENGTHS, seed=0):
        inputs = prompts(lengths, seed=seed)
        mask = inputs["attention_mask"]
        self.model, self.generator = model, torch.Generator().manual_seed(seed + 1)
        self.texts = [ids[m == 1].tolist() for ids, m in zip(inputs["input_ids"], mask, strict=True)]
        self.runner = RowRunner(model)
        kwargs = {"attention_mask": mask, "position_ids": (mask.cumsum(1) - 1).clamp_min(0), "use_cache": True}
        with torch.no_grad():
            self.first = self.runner.prefill(inputs["input_ids"], GenerationConfig(), kwargs).logits

    def full(self, row, tail):
        """Logits at the last `len(tail)` positions of a row's text with `tail`, and the one before."""
        with torch.no_grad():
            logits = self.model(input_ids=torch.tensor([self.texts[row] + tail]), use_cache=False).logits[0]
        return logits[len(self.texts[row]) - 1 :]

    def step(self, counts, kept, right=False, keep=None, filler=0):
        """Scores `counts[b]` new tokens of each row, then keeps `kept[b]` of them."""
        width = max(counts)
        tails = [torch.randint(3, VOCABULARY, (n,), generator=self.generator).tolist() for n in counts]
        block = torch.full((len(counts), width), filler)
        for row, tail in enumerate(tails):
            place = slice(width - len(tail), width) if right else slice(0, len(tail))
            block[row, place] = torch.tensor(tail, dtype=torch.long)
        starts = list(self.runner.cache.lengths)
        with torch.no_grad():
            logits = self.runner.forward(block, starts, counts, right=right, keep=keep).logits
        assert logits.shape == (len(counts), width if keep is None else keep, VOCABULARY)
        for row, tail in enumerate(tails):
            if tail:
                expected = self.full(row, tail)[1:]
                got = logits[row, -len(tail) :] if right else logits[row, : len(tail)]
                if keep is not None:
                    expected, got = expected[-keep:], got[-keep:]
                close(got, expected)
            self.texts[row] += tail[: kept[row]]
        self.runner.cache.lengths = [start + k for start, k in zip(starts, kept, strict=True)]


def close(got, expected):
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-5 * expected.std().item())


def test_a_prefill_of_padded_rows_scores_each_row_as_if_alone(model):
    played = Played(model)
    for row in range(len(LENGTHS)):
        close(played.first[row, -1], played.full(row, [])[0])
    assert played.runner.cache.lengths == [WIDTH] * len(LENGTHS) and played.runner.forwards == 1


@pytest.mark.parametrize("right", [False, True])
def test_ragged_blocks_agree_with_full_forwards(model, right):
    """Contract 0x04C: the visible keys are those at or before the query, whatever the rows have accepted so far."""
    played = Played(model)
    played.step([4, 4, 4, 4], [1, 2, 4, 0], right)
    played.step([3, 1, 5, 2], [3, 1, 2, 1], right)
    played.step([1, 6, 2, 4], [0, 5, 2, 2], right)
    played.step([6, 2, 6, 3], [6, 2, 5, 3], right)
    played.step([2, 2, 2, 2], [2, 2, 2, 2], right)
    assert played.runner.forwards == 6
    assert max(map(len, played.texts)) > 20 and len(set(map(len, played.texts))) == 4


def test_rows_at_one_offset_agree_with_full_forwards(model):
    """The slice copy, over the edge of the window."""
    played = Played(model, (4, 4))
    for _ in range(4):
        played.step([3, 3], [2, 2])


@pytest.mark.parametrize("filler", [0, 17, VOCABULARY - 1])
@pytest.mark.parametrize("right", [False, True])
def test_filler_tokens_are_seen_by_nobody(model, right, filler):
    """Whatever stands in the unused places of a block, and over several blocks: its slots are overwritten."""
    played = Played(model)
    for _ in range(3):
        played.step([5, 1, 2, 3], [2, 1, 2, 0], right, filler=filler)


def test_a_row_may_have_nothing_to_read_in_a_block(model):
    """It comes along as filler and goes on afterwards as if nothing had been."""
    for right in (False, True):
        played = Played(model)
        played.step([3, 0, 2, 0], [2, 0, 1, 0], right)
        played.step([2, 4, 1, 3], [2, 4, 1, 3], right)


@pytest.mark.parametrize("keep", [1, 2])
def test_a_right_aligned_block_needs_only_its_last_logits(model, keep):
    played = Played(model)
    played.step([4, 2, 3, 2], [4, 2, 3, 2], right=True, keep=keep)
    # a model that knows no `logits_to_keep` returns them all
    played.runner._keeps_logits = False
    played.step([2, 4, 3, 3], [2, 4, 3, 3], right=True, keep=keep)


def test_rejected_tokens_leave_no_trace(model):
    """Contract 0x06B: a block scored after a rejection is the block scored where nothing had been drafted."""
    clean, dirty = Played(model), Played(model)
    dirty.step([5, 5, 5, 5], [0, 0, 0, 0])
    dirty.generator.set_state(clean.generator.get_state())
    block, starts = torch.randint(3, VOCABULARY, (4, 4), generator=clean.generator), [WIDTH] * 4
    with torch.no_grad():
        ours = clean.runner.forward(block, starts).logits
        theirs = dirty.runner.forward(block, starts).logits
    assert torch.equal(ours, theirs)


def test_kept_rows_go_on_and_a_regrouped_batch_goes_on(model):
    """A02: rows leave, the others go on; at the end every row is back with its own padding and positions."""
    played = Played(model)
    played.step([3, 3, 3, 3], [1, 2, 3, 0])
    everything, states = list(played.texts), {}
    states[1] = played.runner.cache.take_row(1)
    played.runner.keep_rows([0, 2, 3])
    played.texts = [everything[i] for i in (0, 2, 3)]
    played.step([2, 4, 1], [2, 4, 1])
    for place, row in enumerate((0, 2, 3)):
        everything[row] = played.texts[place]
    states[3] = played.runner.cache.take_row(2)
    played.runner.keep_rows([1, 0])
    played.texts = [everything[2], everything[0]]
    played.step([3, 1], [0, 1], right=True)
    everything[2], everything[0] = played.texts
    states[2], states[0] = played.runner.cache.take_row(0), played.runner.cache.take_row(1)
    played.runner.regroup([states[row] for row in range(4)])
    played.texts = everything
    played.step([2, 3, 1, 4], [2, 3, 1, 4])


def test_positions_end_with_the_table_of_learned_ones():
    """No filler asks for a position behind the last real token (gpt2, `n_positions` used up)."""
    model = tiny("gpt2", n_positions=20)
    for right in (False, True):
        played = Played(model, (16, 3))
        played.step([4, 1], [3, 1], right)
        played.step([1, 4], [1, 4], right)
        assert len(played.texts[0]) == 20


def test_the_readable_cache_of_generate_is_emptied_into_the_rows(model):
    """States are held once: what prefill made moves over."""
    inputs = prompts((4, 6))
    kwargs = {"attention_mask": inputs["attention_mask"], "use_cache": True}
    runner = RowRunner(model)
    with torch.no_grad():
        runner.prefill(inputs["input_ids"], GenerationConfig(), kwargs)
    source = kwargs.get("cache", kwargs.get("past_key_values"))
    assert all(layer.keys is None and layer.values is None for layer in source.layers)
    assert all(layer.is_initialized for layer in runner.cache.layers)


def test_the_window_is_applied_where_the_config_says_so():
    """Against a fault that would make every comparison here pass: a model without a window behaves otherwise."""
    text = torch.randint(3, VOCABULARY, (1, 20), generator=torch.Generator().manual_seed(0))
    narrow, wide = tiny("mistral"), tiny("mistral", sliding_window=64)
    assert all(torch.equal(a, b) for a, b in zip(narrow.parameters(), wide.parameters(), strict=True))
    with torch.no_grad():
        ours, theirs = narrow(input_ids=text).logits[0], wide(input_ids=text).logits[0]
    assert (ours[:8] - theirs[:8]).abs().max() < 1e-5 < 1e-2 < (ours[-1] - theirs[-1]).abs().max()
