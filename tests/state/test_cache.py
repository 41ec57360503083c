"""The row-addressed cache as a table of slots (contract 0x06, 0x06B, 0x06C)."""

import pytest
import torch

from hf_exactassist.state.cache import RowCache


HEADS, DIM = 2, 3
WINDOWS = (None, 4)


def states(batch, width, seed=0):
    """Keys and values `(B, heads, W, dim)`."""
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(batch, HEADS, width, DIM, generator=generator) for _ in range(2))


def write(cache, slots, seed=0):
    """Writes random states to the slots of every layer; returns what was written and what attention would read."""
    slots = [list(row) for row in slots]
    cache.aim(slots, torch.device("cpu"))
    written, read = [], []
    for number in range(len(cache.layers)):
        new = states(len(slots), len(slots[0]), seed * 10 + number)
        written.append(new)
        read.append(cache.update(*new, number))
    return written, read


class Table:
    """The same cache, one cell at a time."""

    def __init__(self):
        self.cells = {}

    def write(self, slots, written):
        for layer, new in enumerate(written):
            for part in range(2):
                for row, places in enumerate(slots):
                    for column, slot in enumerate(places):
                        self.cells[layer, part, row, slot] = new[part][row, :, column]

    def agrees(self, cache, read=None):
        for (layer, part, row, slot), value in self.cells.items():
            store = (cache.layers[layer].keys, cache.layers[layer].values)[part] if read is None else read[layer][part]
            if slot < store.shape[2]:
                assert torch.equal(store[row, :, slot], value), (layer, part, row, slot)


def filled(lengths, seed=0):
    """A cache of rows with the given valid lengths."""
    cache = RowCache(WINDOWS, keeps_all=True)
    write(cache, [range(max(lengths))] * len(lengths), seed)
    cache.begin(torch.arange(len(lengths) * max(lengths)).reshape(len(lengths), -1), max(lengths))
    cache.lengths = list(lengths)
    return cache


def parts(cache):
    return [store.clone() for layer in cache.layers for store in (layer.keys, layer.values)]


def valid(cache):
    """Every row's valid slots, layer by layer."""
    return [
        [store[row, :, :length].clone() for layer in cache.layers for store in (layer.keys, layer.values)]
        for row, length in enumerate(cache.lengths)
    ]


def same(ours, theirs):
    return all(
        a.shape == b.shape and torch.equal(a, b)
        for x, y in zip(ours, theirs, strict=True)
        for a, b in zip(x, y, strict=True)
    )


SLOTS = {
    "aligned": [[4, 5, 6]] * 3,
    "ragged": [[4, 5, 6], [2, 3, 4], [0, 1, 2]],
    "one row elsewhere": [[4, 5, 6], [4, 5, 6], [3, 4, 5]],
    "same slots, other order": [[4, 5, 6], [6, 4, 5], [4, 5, 6]],
    "rotated": [[6, 4, 5]] * 3,
    "one token": [[3], [0], [5]],
    "with a gap": [[4, 6]] * 3,
}


@pytest.mark.parametrize("name", SLOTS)
def test_every_row_is_written_where_it_was_aimed(name):
    """Several writes over each other: the last one to a slot counts, no other slot changes."""
    cache, table = RowCache(WINDOWS, keeps_all=True), Table()
    for seed, slots in enumerate(([range(4)] * 3, SLOTS[name], [[5, 6], [1, 2], [7, 8]])):
        written, read = write(cache, slots, seed)
        table.write([list(row) for row in slots], written)
        table.agrees(cache)
        table.agrees(cache, read)
        end = max(max(row) for row in slots) + 1
        assert all(part.shape == (3, HEADS, end, DIM) for layer in read for part in layer)
        assert cache.get_seq_length() == end and cache.get_mask_sizes(2, 0) == (end, 0)
        assert all(part.isfinite().all() for layer in read for part in layer)


def test_a_slice_copy_and_a_scatter_write_the_same():
    """The fast path for rows at one offset is only a fast path."""
    sliced, scattered = filled((4, 4)), filled((4, 4))
    write(sliced, [[4, 5, 6]] * 2, seed=1)
    assert (sliced.plan.start, sliced.plan.slots) == (4, None)
    slots = [[4, 5, 6]] * 2
    scattered.aim(slots, torch.device("cpu"))
    scattered.plan.slots = torch.tensor(slots)
    for number in range(len(WINDOWS)):
        scattered.update(*states(2, 3, 10 + number), number)
    assert all(torch.equal(a, b) for a, b in zip(parts(sliced), parts(scattered), strict=True))


@pytest.mark.parametrize("name, aligned", [(name, name == "aligned") for name in SLOTS])
def test_only_equal_consecutive_slots_take_the_slice_copy(name, aligned):
    cache = filled((7, 7, 7))
    cache.aim(SLOTS[name], torch.device("cpu"))
    assert (cache.plan.slots is None) == aligned


def test_aim_returns_the_slots_as_a_tensor():
    slots = RowCache(WINDOWS, keeps_all=True).aim([[4, 5], [1, 2]], torch.device("cpu"))
    assert slots.dtype == torch.long and slots.tolist() == [[4, 5], [1, 2]]


@pytest.mark.parametrize("accepted", range(4))
def test_a_crop_is_a_smaller_length_and_the_next_write_covers_what_was_behind_it(accepted):
    """Contract 0x06B: zero, partial and full acceptance leave different suffixes; the kept slots are never copied."""
    cache, table = filled((5, 3)), Table()
    # all that is going to be written finds room
    for layer in cache.layers:
        layer._reserve(16)
    storage = [store.data_ptr() for layer in cache.layers for store in (layer.keys, layer.values)]
    blocks = [list(range(length, length + 4)) for length in cache.lengths]
    written, _ = write(cache, blocks, seed=1)
    table.write(blocks, written)
    cache.lengths = [length + 1 + accepted for length in cache.lengths]
    before = valid(cache)
    again = [list(range(length, length + 4)) for length in cache.lengths]
    written, _ = write(cache, again, seed=2)
    table.write(again, written)
    assert same(before, valid(cache))
    table.agrees(cache)
    assert storage == [store.data_ptr() for layer in cache.layers for store in (layer.keys, layer.values)]


def test_storage_grows_without_losing_anything_and_not_at_every_step():
    cache, table, addresses = RowCache(WINDOWS, keeps_all=True), Table(), set()
    for slot in range(150):
        slots = [[slot], [max(slot - 3, 0)]]
        written, read = write(cache, slots, seed=slot)
        table.write(slots, written)
        addresses.add(cache.layers[0].keys.data_ptr())
        assert read[0][0].shape[2] == slot + 1
    table.agrees(cache)
    assert len(addresses) <= 150 // 4
    assert all(store.isfinite().all() for store in parts(cache))


def test_slots_jumped_over_are_finite():
    """A masked NaN still poisons a row: 0 x NaN."""
    cache = RowCache(WINDOWS, keeps_all=True)
    _, read = write(cache, [[90], [3]])
    assert all(part.shape[2] == 91 and part.isfinite().all() for layer in read for part in layer)


def test_loaded_states_become_the_last_slots():
    """A sliding layer of Transformers' cache holds only its window; the slots before it stay empty and finite."""
    cache = RowCache(WINDOWS, keeps_all=True)
    keys, values = states(2, 3)
    cache.layers[1].load(keys, values, 7)
    assert torch.equal(cache.layers[1].keys[:, :, 4:7], keys) and torch.equal(
        cache.layers[1].values[:, :, 4:7], values
    )
    assert not cache.layers[1].keys[:, :, :4].any() and not cache.layers[1].values[:, :, :4].any()
    assert not cache.layers[0].is_initialized


# --- rows ---


@pytest.mark.parametrize("indices", [[0, 1, 2], [0, 2], [1], [2, 0], [2, 1, 0]])
def test_kept_rows_keep_their_states_and_lengths(indices):
    cache = filled((5, 3, 6))
    before = valid(cache)
    cache.keep_rows(indices)
    assert cache.lengths == [(5, 3, 6)[i] for i in indices]
    assert same([before[i] for i in indices], valid(cache))
    written, _ = write(cache, [[length] for length in cache.lengths], seed=5)
    assert torch.equal(cache.layers[0].keys[0, :, cache.lengths[0]], written[0][0][0, :, 0])


def test_a_taken_row_holds_its_valid_slots_and_no_part_of_the_storage():
    """Contract 0x06E: a snapshot that shares memory with what goes on is none."""
    cache = filled((5, 3, 6))
    expected = valid(cache)[1]
    row = cache.take_row(1)
    assert [pair[0].shape[1] for pair in row.layers] == [3, 3] and row.tokens.tolist() == [6, 7, 8]
    write(cache, [[0, 1, 2]] * 3, seed=9)
    cache.note(torch.full((3, 3), 99))
    assert same([expected], [[part for pair in row.layers for part in pair]]) and row.tokens.tolist() == [6, 7, 8]


def test_rows_taken_out_at_different_times_come_back_as_one_batch():
    """A02: rows finish in different rounds; the caller's cache holds all of them."""
    cache = filled((5, 3, 6))
    expected = valid(cache)
    rows = {1: cache.take_row(1)}
    cache.keep_rows([0, 2])
    rows[0] = cache.take_row(0)
    cache.keep_rows([1])
    rows[2] = cache.take_row(0)
    cache.put_rows([rows[row] for row in range(3)])
    assert cache.lengths == [5, 3, 6] and same(expected, valid(cache))
    owners = [row[:length].tolist() for row, length in zip(cache.tokens, cache.lengths, strict=True)]
    assert owners == [[0, 1, 2, 3, 4], [6, 7, 8], [12, 13, 14, 15, 16, 17]]
    assert all(store.shape[0] == 3 and store.isfinite().all() for store in parts(cache))
    # and the batch can be written on
    blocks = [[length, length + 1] for length in cache.lengths]
    before = valid(cache)
    written, _ = write(cache, blocks, seed=4)
    table = Table()
    table.write(blocks, written)
    table.agrees(cache)
    assert same(before, valid(cache))


def test_layers_that_store_nothing_are_passed_over():
    """Layers that share another layer's states never initialise their own."""
    cache = RowCache((None, None))
    cache.aim([[0, 1], [0, 1]], torch.device("cpu"))
    cache.update(*states(2, 2), 1)
    cache.begin(torch.tensor([[3, 4], [5, 6]]), 2)
    cache.lengths = [2, 1]
    rows = [cache.take_row(0), cache.take_row(1)]
    assert rows[0].layers[0] is None and rows[0].layers[1][0].shape == (HEADS, 2, DIM)
    expected = [cache.layers[1].keys[row, :, :length].clone() for row, length in enumerate(cache.lengths)]
    cache.keep_rows([1, 0])
    cache.put_rows(rows)
    assert cache.lengths == [2, 1] and not cache.layers[0].is_initialized
    assert all(torch.equal(cache.layers[1].keys[row, :, : len(e[0])], e) for row, e in enumerate(expected))
