"""Quantized caches: every row is that row alone with the same cache, quantized where it is (upstream row 15)."""

import importlib
from collections.abc import Mapping

import pytest
import torch
from transformers import QuantizedCache

import hf_exactassist
from hf_exactassist.models import compat
from hf_exactassist.state.snapshot import copied
from hf_exactassist.verification.enumeration import total_variation
from tests.api.helpers import drafts_were_mixed
from tests.exactness.walk import law
from tests.tiny import noisy, prompts, tiny


try:
    from transformers.cache_utils import Fp8QuantizedLayer
except ImportError:
    Fp8QuantizedLayer = None

# quantized anew after so many tokens, so that texts and drafts cross the place several times
CACHES = {
    "quanto": {"backend": "quanto", "nbits": 4, "residual_length": 8, "q_group_size": 16},
    "quanto, often": {"backend": "quanto", "nbits": 4, "residual_length": 1, "q_group_size": 16},
    "hqq": {"backend": "hqq", "nbits": 4, "residual_length": 8, "q_group_size": 16, "axis_key": 1, "axis_value": 1},
    "hqq, fine": {"backend": "hqq", "nbits": 8, "residual_length": 3, "q_group_size": 16},
    "fp8": {"backend": "fp8"},
}
GREEDY = {"max_new_tokens": 30, "do_sample": False, "eos_token_id": None}


class Fresh(Mapping):
    """Settings of a call. The oldest release takes its configuration apart, so each call gets one of its own."""

    def __init__(self, config):
        self.config = config

    def __getitem__(self, name):
        return {"cache_implementation": "quantized", "cache_config": dict(self.config)}[name]

    def __iter__(self):
        return iter(("cache_implementation", "cache_config"))

    def __len__(self):
        return 2


@pytest.fixture(params=CACHES)
def cache(request):
    config = CACHES[request.param]
    package = {"quanto": "optimum.quanto", "hqq": "hqq.core.quantize"}.get(config["backend"])
    if package is None and Fp8QuantizedLayer is None:
        pytest.skip("this release of Transformers has no fp8 cache")
    if package is not None:
        try:
            importlib.import_module(package)
        except ImportError:
            pytest.skip(f"{package} is not installed")
    return Fresh(config)


@pytest.fixture(scope="module")
def target():
    return tiny(hidden_size=64)


def alone(model, inputs, **settings):
    """New tokens of plain `generate` for every row by itself."""
    rows = []
    for ids, mask in zip(inputs["input_ids"], inputs["attention_mask"], strict=True):
        length = int(mask.sum())
        rows.append(model.generate(ids[None, -length:], attention_mask=mask[None, -length:], **settings)[0, length:])
    return [row.tolist() for row in rows]


@pytest.mark.parametrize("layout", ["replay", "retained"])
@pytest.mark.parametrize("k", [1, 4, 8])
@pytest.mark.parametrize("lengths", [[9], [9, 5, 12]])
def test_greedy_tokens_are_those_of_each_row_alone(target, cache, lengths, k, layout):
    inputs = prompts(lengths)
    expected = alone(target, inputs, **GREEDY, **cache)
    settings = {"num_assistant_tokens": k, "layout": layout, "return_dict_in_generate": True}
    output = hf_exactassist.generate(
        target, **inputs, **GREEDY, **cache, **settings, assistant_model=noisy(target, 0.008)
    )
    assert output.sequences[:, max(lengths) :].tolist() == expected
    assert drafts_were_mixed(output)
    assert expected != alone(target, inputs, **GREEDY), "quantizing must be seen in the text"


def test_returned_cache_goes_on_as_the_plain_one(target, cache):
    inputs = prompts([9])
    settings = {**GREEDY, **cache, "return_dict_in_generate": True}
    plain = target.generate(**inputs, **settings)
    ours = hf_exactassist.generate(target, **inputs, **settings, assistant_model=noisy(target, 0.008))
    logits = []
    for output in (plain, ours):
        held = getattr(output, compat.CACHE_FIELD)
        assert held.get_seq_length() == output.sequences.shape[1] - 1
        logits.append(target(output.sequences[:, -1:], **{compat.CACHE_ARGUMENT: held}).logits)
    torch.testing.assert_close(*logits, atol=1e-4, rtol=1e-4)


def test_a_cache_that_is_passed_in_holds_the_whole_text(target, cache):
    inputs, config = prompts([9]), cache["cache_config"]
    held = {door: QuantizedCache(config=target.config, **config) for door in ("plain", "ours")}
    plain = target.generate(**inputs, **GREEDY, **{compat.CACHE_ARGUMENT: held["plain"]})
    settings = {**GREEDY, compat.CACHE_ARGUMENT: held["ours"]}
    ours = hf_exactassist.generate(target, **inputs, **settings, assistant_model=noisy(target, 0.008))
    assert ours.tolist() == plain.tolist()
    last = [target(plain[:, -1:], **{compat.CACHE_ARGUMENT: part}).logits for part in held.values()]
    torch.testing.assert_close(*last, atol=1e-4, rtol=1e-4)
    # and a later call goes on with it
    longer = {"input_ids": torch.cat([plain, prompts([3], seed=4)["input_ids"]], dim=1)}
    texts = [target.generate(**longer, **GREEDY, **{compat.CACHE_ARGUMENT: copied(held["plain"])})]
    settings = {**GREEDY, compat.CACHE_ARGUMENT: copied(held["plain"])}
    texts.append(hf_exactassist.generate(target, **longer, **settings, assistant_model=noisy(target, 0.008)))
    assert texts[0].tolist() == texts[1].tolist()
    with pytest.raises(hf_exactassist.UnsupportedCache, match="one by one"):
        held = {compat.CACHE_ARGUMENT: QuantizedCache(config=target.config, **config)}
        hf_exactassist.generate(target, **prompts([9, 4]), **GREEDY, **held, assistant_model=noisy(target, 0.008))


def test_law_over_a_quantized_cache(cache):
    model = tiny(vocabulary=4, hidden_size=64)
    assistant, inputs = noisy(model, 0.3), {"input_ids": torch.tensor([[1, 3, 2]])}
    settings = {"do_sample": True, "top_k": 0, "max_new_tokens": 3, "eos_token_id": None, **cache}
    plain = law(lambda: tuple(model.generate(**inputs, **settings)[0].tolist()))
    ours = law(
        lambda: tuple(hf_exactassist.generate(model, **inputs, **settings, assistant_model=assistant)[0].tolist())
    )
    assert len(plain) > 8 and total_variation(plain, ours) < 1e-6


def test_blocks_that_cross_the_place_are_found_out(target, cache, monkeypatch):
    """What the tests above can see: quantizing a token too late changes the text."""
    if cache["cache_config"]["backend"] == "fp8":
        pytest.skip("it quantizes every token by itself")
    inputs = prompts([9, 5, 12])
    expected = alone(target, inputs, **GREEDY, **cache)
    monkeypatch.setattr("hf_exactassist.state.snapshot.tokens_before_quantizing", lambda cache: 10**9)
    ours = hf_exactassist.generate(
        target, **inputs, **GREEDY, **cache, assistant_model=noisy(target, 0.008), num_assistant_tokens=8
    )
    assert ours[:, 12:].tolist() != expected
