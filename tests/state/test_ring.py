"""Layers with a window store the window and a block, and every query sees the slots it would see in full storage."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import GenerationConfig

import hf_exactassist
from hf_exactassist.models.runner import RowRunner
from hf_exactassist.state import ring
from hf_exactassist.state.cache import RowCache
from hf_exactassist.state.ring import Ring
from tests.tiny import EVEN_NOISE, noisy, prompts, tiny


WINDOW = 5
GREEDY = {"do_sample": False, "eos_token_id": None, "pad_token_id": 0}


def value(row, slot, version):
    """Keys of a slot that say which write they come from."""
    return torch.tensor([row, slot, version], dtype=torch.float)


class Reference:
    """What every slot of every row was last written with."""

    def __init__(self):
        self.written = {}

    def write(self, cache, slots, names, version):
        keys = torch.stack(
            [torch.stack([value(name, slot, version) for slot in row]) for name, row in zip(names, slots, strict=True)]
        )
        cache.aim(slots, torch.device("cpu"))
        cache.update(keys[:, None], keys[:, None], 0)
        self.written.update({(n, s): value(n, s, version) for n, row in zip(names, slots, strict=True) for s in row})

    def check(self, cache, slots, names):
        """Every query of the block sees the slots of its window, each with what was last written there."""
        layer, held = cache.layers[0], cache.rings[WINDOW].held
        for i, (name, row) in enumerate(zip(names, slots, strict=True)):
            for query in row:
                seen = {
                    int(slot): layer.keys[i, 0, place]
                    for place, slot in enumerate(held[i].tolist())
                    if slot >= 0 and query - WINDOW < slot <= query
                }
                assert sorted(seen) == list(range(max(query - WINDOW + 1, 0), query + 1))
                for slot, found in seen.items():
                    assert torch.equal(found, self.written[name, slot]), (name, query, slot)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_every_query_sees_its_window(data):
    """Ragged blocks of any width, any accepted lengths, rows that leave, rows put together again."""
    draw = data.draw
    lengths = draw(st.lists(st.integers(1, 40), min_size=1, max_size=3))
    cache, names = RowCache([WINDOW]), list(range(len(lengths)))
    reference = Reference()
    # as after a prefill, whose slots every row has
    prompt = max(lengths)
    keys = torch.stack([torch.stack([value(name, slot, 0) for slot in range(prompt)]) for name in names])[:, None]
    reference.written = {(name, slot): value(name, slot, 0) for name in names for slot in range(prompt)}
    cache.plan.end = prompt
    cache.layers[0].load(keys, keys.clone(), prompt)
    cache.begin(torch.zeros(len(names), prompt, dtype=torch.long), prompt)
    lengths = [prompt] * len(names)
    for version in range(1, draw(st.integers(2, 12))):
        width = draw(st.integers(1, 24))
        slots = [list(range(length, length + width)) for length in lengths]
        reference.write(cache, slots, names, version)
        reference.check(cache, slots, names)
        lengths = [length + draw(st.integers(1, width)) for length in lengths]
        cache.lengths = list(lengths)
        cache.note(torch.zeros(len(names), width, dtype=torch.long))
        kept = sorted(draw(st.sets(st.sampled_from(range(len(names))), min_size=1)))
        if draw(st.booleans()):
            cache.keep_rows(kept)
        elif draw(st.booleans()):
            cache.put_rows([cache.take_row(i) for i in kept])
        else:
            continue
        names, lengths = [names[i] for i in kept], [lengths[i] for i in kept]


def test_storage_does_not_grow_with_the_text():
    """Window and block, however long the text gets (DESIGN, section 4)."""
    for architecture in ("mistral", "gemma3"):
        target = tiny(architecture)
        session = hf_exactassist.start(
            target, **prompts([9, 150]), **GREEDY, max_new_tokens=60, assistant_model=noisy(target, 0.05)
        )
        session.result()
        layers = session.scorer.target.cache.layers
        sliding = [layer.keys.shape[2] for layer in layers if layer.window is not None]
        full = [layer.keys.shape[2] for layer in layers if layer.window is None]
        assert sliding and max(sliding) <= 8 + 16 and all(slots >= 209 for slots in full)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("architecture", ["mistral", "gemma3"])
@pytest.mark.parametrize("lengths", [[3], [8], [40], [3, 40, 12]])
@pytest.mark.parametrize("k", [3, 30])
def test_texts_far_beyond_the_window_are_plain(architecture, lengths, k, attention):
    """User report A68: prompts shorter than, equal to and longer than the window; drafts longer than it."""
    target = tiny(architecture)
    target.set_attn_implementation(attention)
    assistant = noisy(target, EVEN_NOISE[architecture])
    settings, inputs = {**GREEDY, "max_new_tokens": 90}, prompts(lengths)
    output = hf_exactassist.generate(
        target,
        **inputs,
        **settings,
        assistant_model=assistant,
        num_assistant_tokens=k,
        return_dict_in_generate=True,
    )
    assert output.sequences.tolist() == target.generate(**inputs, **settings).tolist()
    assert 0 < output.assist_stats.accepted < output.assist_stats.drafted


def test_a_ring_that_is_too_small_for_its_blocks_is_found_out(monkeypatch):
    """What the tests above can see."""
    target = tiny("mistral")
    inputs, settings = prompts([3, 40, 12]), {**GREEDY, "max_new_tokens": 60}
    plain = target.generate(**inputs, **settings)
    monkeypatch.setattr(ring, "_BLOCK", 1)
    monkeypatch.setattr(Ring, "grow", lambda self, width: torch.arange(self.size).expand(len(self.held), -1))
    assistant = noisy(target, EVEN_NOISE["mistral"])
    ours = hf_exactassist.generate(target, **inputs, **settings, assistant_model=assistant, num_assistant_tokens=8)
    assert ours.tolist() != plain.tolist()


@pytest.mark.parametrize("room", [0, 30])
def test_tokens_written_one_by_one_and_taken_back(room):
    """A draft of more tokens than a ring has to spare, all of them rejected: windows still see all."""
    model, ids = tiny("mistral"), prompts([40])["input_ids"]
    logits = []
    for drafted in (0, 30):
        runner = RowRunner(model)
        with torch.no_grad():
            kwargs = {"use_cache": True, "position_ids": torch.arange(40)[None]}
            runner.prefill(ids, GenerationConfig(), kwargs)
            runner.cache.make_room(room)
            for i in range(drafted):
                runner.forward(torch.tensor([[5 + i]]), [40 + i])
            logits.append(runner.forward(torch.tensor([[7, 8]]), [40]).logits)
    assert torch.allclose(*logits, atol=1e-5) == (room == 30)
