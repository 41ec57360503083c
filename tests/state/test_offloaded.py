"""Offloaded caches keep their states in main memory: seen on a pretended device, which refuses to mix."""

import pytest
import torch
from torch.overrides import TorchFunctionMode
from transformers import DynamicCache, Gemma3TextConfig, StaticCache

from hf_exactassist.state.cache import RowCache
from hf_exactassist.state.caller_cache import keeper


HEADS, DIM, WINDOW = 2, 4, 4
CONFIG = Gemma3TextConfig(
    num_hidden_layers=3,
    hidden_size=HEADS * DIM,
    head_dim=DIM,
    num_attention_heads=HEADS,
    num_key_value_heads=HEADS,
    sliding_window=WINDOW,
    layer_types=["sliding_attention", "full_attention", "full_attention"],
)
WINDOWS = (WINDOW, None, None)
MEMORY, DEVICE = torch.device("cpu"), torch.device("cuda", 0)


def there(tensor):
    return getattr(tensor, "there", False)


def tensors(parts):
    for part in parts:
        if isinstance(part, torch.Tensor):
            yield part
        elif isinstance(part, (list, tuple)):
            yield from tensors(part)


class Pretended(TorchFunctionMode):
    """Marks tensors as being on `DEVICE`; what is computed from marked tensors is marked, mixing is an error."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if func == torch.Tensor.device.__get__:
            return DEVICE if there(args[0]) else MEMORY
        place = kwargs.pop("device", None)
        if func is torch.Tensor.cpu:
            place = MEMORY
        elif func is torch.Tensor.to and not isinstance(args[1], torch.dtype):
            place, args = torch.device(args[1]), args[:1]
            kwargs.pop("non_blocking", None)
        given = list(tensors([*args, *kwargs.values()]))
        if func is torch.Tensor.copy_ or (func == torch.Tensor.__setitem__ and not list(tensors([args[1]]))):
            # values may come from elsewhere, but not for single elements chosen by index
            given = [args[0]]
        if place is None and len({there(part) for part in given if part.dim()}) > 1:
            raise RuntimeError(f"{func.__name__} mixes devices")
        moves = func is torch.Tensor.cpu or func is torch.Tensor.to
        result = args[0] if moves and place is not None else func(*args, **kwargs)
        marked = torch.device(place).type == "cuda" if place is not None else any(map(there, given))
        if isinstance(result, torch.Tensor) and there(result) != marked:
            result = result.clone() if moves else result
            result.there = marked
        return result


@pytest.fixture(autouse=True)
def pretended():
    with Pretended():
        yield


def states(batch, width, seed):
    """Keys and values on the device."""
    generator = torch.Generator().manual_seed(seed)
    made = tuple(torch.randn(batch, HEADS, width, DIM, generator=generator) for _ in range(2))
    for part in made:
        part.there = True
    return made


def in_memory(layer):
    return not there(layer.keys) and not there(layer.values)


def new_cache(kind, only_full):
    settings = {"config": CONFIG, "offloading": True, "offload_only_non_sliding": only_full}
    return StaticCache(max_cache_len=20, **settings) if kind == "static" else DynamicCache(**settings)


def run(cache, prompt, seed):
    """A call: the prompt's states, two blocks of two rows at different slots, a row that leaves and comes back."""
    kept, rows = keeper(cache), RowCache(WINDOWS)
    lent = kept.lend()
    past, read = lent.get_seq_length(), []
    for number in range(3):
        read.append(lent.update(*states(2, prompt, seed + number), number))
        assert in_memory(lent.layers[number])
    for layer, theirs in zip(rows.layers, lent.layers, strict=True):
        layer.load(theirs.keys, theirs.values, past + prompt)
    start = past + prompt
    rows.begin(torch.zeros(2, start, dtype=torch.long, device=DEVICE), start)
    kept.take_back(rows, start + 4)
    for step, slots in enumerate([[[start, start + 1]] * 2, [[start + 2, start + 3], [start + 1, start + 2]]]):
        rows.aim(slots, DEVICE)
        rows.note(torch.zeros(2, 2, dtype=torch.long, device=DEVICE))
        read += [rows.update(*states(2, 2, seed + 10 * step + number), number) for number in range(3)]
    assert all(there(part) for pair in read for part in pair)
    rows.lengths = [start + 4, start + 3]
    both = [rows.take_row(row) for row in range(2)]
    rows.keep_rows([1])
    rows.put_rows(both)
    assert all(map(in_memory, rows.layers))
    # row 1 has one slot less
    end = start + 3
    wanted = [
        layer.slots(0 if window is None else max(end - window, 0), end)
        for layer, window in zip(rows.layers, WINDOWS, strict=True)
    ]
    assert kept.fill(rows, start + 3) is cache
    return wanted


@pytest.mark.parametrize("only_full", [False, True])
@pytest.mark.parametrize("kind", ["dynamic", "static"])
def test_states_stay_in_main_memory(kind, only_full):
    """Twice, the second time over a filled cache; only what plain `generate` leaves on the device is there."""
    cache = new_cache(kind, only_full)
    for turn in range(2):
        wanted = run(cache, 3, 100 * turn)
        length = int(cache.get_seq_length())
        assert length == 6 * (turn + 1)
        # the first one that is offloaded has been fetched for the next forward; a window may never leave
        assert [in_memory(layer) for layer in cache.layers] == (
            [False, False, True] if only_full else [False, True, True]
        )
        for layer, (keys, values), window in zip(cache.layers, wanted, WINDOWS, strict=True):
            assert layer.device == DEVICE
            held = length if window is None else min(length, window - (kind == "dynamic"))
            assert torch.equal(layer.keys[:, :, :held].cpu(), keys[:, :, keys.shape[2] - held :])
            assert torch.equal(layer.values[:, :, :held].cpu(), values[:, :, values.shape[2] - held :])


def test_the_pretended_device_refuses_to_mix():
    here, away = torch.zeros(2, 3), states(1, 1, 0)[0]
    assert there(away.transpose(0, 1) * 2) and not there(away.cpu()) and there(away.cpu().to(DEVICE))
    with pytest.raises(RuntimeError, match="mixes"):
        torch.cat([here[None, None], away])
    here[:, :1] = away[0, 0, :, :1]
    with pytest.raises(RuntimeError, match="mixes"):
        here[torch.tensor([0])] = away[0, 0, :, :3]
