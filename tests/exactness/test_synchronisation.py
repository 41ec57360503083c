"""What a round reads from the device, and what its cache writes copy; counted, not timed.

On an accelerator every look of the host at a tensor waits for all work before it. A round has one such look, at a few
numbers a row: what was drafted and decided.
"""

import copy

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import hf_exactassist
from hf_exactassist.drafters.placed import Placed
from hf_exactassist.state.cache import RowLayer
from hf_exactassist.verification import distributions
from tests.tiny import EVEN_NOISE, noisy, prompts, tiny


RAGGED = (6, 2, 4)


@pytest.fixture(autouse=True)
def as_on_an_accelerator(monkeypatch):
    """Where looks are not free."""
    monkeypatch.setattr(distributions, "LOOKS_ARE_FREE", ())


KINDS = {
    "greedy": {"do_sample": False},
    "maximal": {"do_sample": True, "coupling": "maximal", "top_k": 0, "seed": 3},
    "shared_noise": {"do_sample": True, "coupling": "shared_noise", "top_k": 0, "seed": 3},
}
# methods that give the host what a tensor holds
LOOKS = {"tolist", "item", "numpy", "cpu", "nonzero", "unique", "masked_select", "equal", "allclose", "is_nonzero"} | {
    f"__{name}__" for name in ("array", "bool", "int", "float", "index", "contains", "iter", "repr")
}
# and operators behind them, whoever calls them
READS = {"_local_scalar_dense", "nonzero", "masked_select", "equal", "is_nonzero", "unique2", "_unique2"}


class Looks(TorchFunctionMode):
    """Notes each look at a tensor and how many numbers it shows, and counts tensors made of numbers on the host."""

    def __init__(self):
        super().__init__()
        self.sizes, self.brought = [], 0

    def __torch_function__(self, func, types, args=(), kwargs=None):
        name = getattr(func, "__name__", "")
        self.brought += name in ("tensor", "as_tensor", "from_numpy")
        if name in LOOKS and any(isinstance(part, torch.Tensor) for part in args):
            self.sizes.append((name, args[0].numel()))
        if name in ("__getitem__", "__setitem__"):
            places = args[1] if isinstance(args[1], tuple) else (args[1],)
            # choosing by a mask asks how many places it has
            if any(isinstance(place, torch.Tensor) and place.dtype == torch.bool for place in places):
                self.sizes.append(("mask", args[0].numel()))
        return func(*args, **(kwargs or {}))


class Reads(TorchDispatchMode):
    """Notes operators that end in a number on the host."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.overloadpacket.__name__ in READS:
            self.names.append(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


def opened(lengths=RAGGED, how="greedy", k=3, new=40, lookup=False, **settings):
    """A session whose prompts have been read by both models, or by the one that there is."""
    target = tiny()
    drafting = {"assistant_model": noisy(target, EVEN_NOISE["llama"]), "num_assistant_tokens": k}
    if lookup:
        drafting = {"prompt_lookup_num_tokens": k}
    settings = {"eos_token_id": None, **KINDS[how], **settings}
    inputs = prompts(lengths)
    session = hf_exactassist.start(target, **inputs, **drafting, max_new_tokens=new, pad_token_id=0, **settings)
    session.step()
    session.step()
    return session


@pytest.mark.parametrize("k", [1, 4])
@pytest.mark.parametrize("eos", [None, [19]])
@pytest.mark.parametrize("lengths", [(6,), RAGGED])
@pytest.mark.parametrize("how", KINDS)
def test_a_round_looks_once(how, lengths, eos, k):
    """Not once per row, per draft token or per layer, nor at anything as large as a vocabulary or a text."""
    session = opened(lengths, how, k, eos_token_id=eos)
    rounds = 0
    while not session.finished and rounds < 6:
        active = len(session.rows.active)
        drafts = max(session.wanted(1.0))
        with Reads() as reads, Looks() as looks:
            session.step()
        assert [name for name, _ in looks.sizes] == ["tolist"], looks.sizes
        assert reads.names == []
        # a draft, its frontier, the token after it and how much of it was kept: twice, as drafted and as read
        assert sum(size for _, size in looks.sizes) <= active * (2 * (drafts + 2) + 1)
        rounds += 1
    assert rounds >= 3


@pytest.mark.parametrize("lengths", [(30,), (30, 20, 40)])
def test_prompt_lookup_looks_at_nothing(lengths):
    """It is told what is published."""
    session, drafted = opened(lengths, lookup=True, new=60), 0
    while not session.finished:
        with Reads() as reads, Looks() as looks:
            drafted += sum(session.step().drafted)
        assert [name for name, _ in looks.sizes] == ["tolist"] and reads.names == []
    assert drafted > 10


@pytest.mark.parametrize("lengths", [(6,), RAGGED])
@pytest.mark.parametrize("how", KINDS)
def test_each_further_draft_token_brings_one_table_to_the_device(how, lengths):
    """That of the places where it is written."""
    session = opened(lengths, how, eos_token_id=[19])
    brought = {}
    for k in (2, 6):
        with Looks() as looks:
            session.propose([k] * len(lengths))
        brought[k] = looks.brought
    assert brought[2] <= brought[6] <= brought[2] + 4


@pytest.mark.parametrize("look", ["item", "bool", "mask", "index", "repr"])
def test_the_spies_see(look):
    table = torch.tensor([[1.0, 2.0]])
    with Reads() as reads, Looks() as looks:
        if look == "item":
            table.sum().item()
        elif look == "bool":
            assert (table > 0).all()
        elif look == "mask":
            table[table > 1]
        elif look == "index":
            [5, 6, 7][table.long()[0, 1]]
        else:
            repr(table)
    assert looks.sizes or reads.names


# --- what cache writes copy ---


class Copies(TorchDispatchMode):
    """Adds up the bytes that operators write: those of new tensors, and those put into old ones."""

    def __init__(self):
        super().__init__()
        self.bytes = self.grown = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        if name in ("copy_", "index_put_", "scatter_"):
            put = args[2] if name == "index_put_" else args[-1] if name == "scatter_" else args[1]
            self.bytes += put.numel() * put.element_size()
        elif name in ("cat", "index_select", "index", "clone", "_to_copy", "new_zeros", "pad"):
            size = out.numel() * out.element_size()
            self.bytes += size
            self.grown += size if name == "cat" else 0
        return out


@pytest.fixture
def copies(monkeypatch):
    """Of each write of a layer: its own size, what it copied, and how much of that was for larger storage."""
    seen, update = [], RowLayer.update

    def spy(self, keys, values, *args, **kwargs):
        before = self.keys.shape[2] if self.is_initialized else 0
        with Copies() as copied:
            result = update(self, keys, values, *args, **kwargs)
        grew = self.keys.shape[2] > before
        assert grew == (copied.grown > 0)
        seen.append(((keys.numel() + values.numel()) * keys.element_size(), copied.bytes, grew))
        return result

    monkeypatch.setattr(RowLayer, "update", spy)
    return seen


@pytest.mark.parametrize("length", [10, 60, 240])
@pytest.mark.parametrize("rows", [1, 3])
def test_writes_copy_what_is_written_whatever_the_length_of_the_text(copies, rows, length):
    session = opened((length,) * rows, new=30)
    copies.clear()
    while not session.finished:
        session.step()
    # a slice is one copy; rows at different places are put in order first
    steady = [copied / size for size, copied, grew in copies if not grew]
    assert len(steady) > 20 and min(steady) >= 1 and max(steady) <= 2


def test_storage_grows_rarely(copies):
    """In steps of a twentieth, so that copies into larger storage are some twenty times what it holds at last."""
    target = tiny()
    settings = {"do_sample": False, "max_new_tokens": 300, "eos_token_id": None, "num_assistant_tokens": 4}
    hf_exactassist.generate(target, **prompts([30]), assistant_model=copy.deepcopy(target), **settings)
    layers, grown = 2 * target.config.num_hidden_layers, [copied for _, copied, grew in copies if grew]
    assert len(grown) <= layers * (300 // 4 + 1)
    slot = 2 * target.config.num_key_value_heads * target.config.head_dim * 4
    assert sum(grown) <= 24 * layers * 330 * slot


# --- what is kept on the device ---


def test_what_is_asked_for_again_is_not_copied_again():
    placed = Placed(torch.arange(3))
    there = torch.device("meta")
    assert placed.on(torch.device("cpu")) is placed.on(torch.device("cpu"))
    assert placed.on(there) is placed.on(there) and placed.on(there).device == there
