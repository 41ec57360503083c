"""What a short probe cannot see, and what ties the rows of a batch together: equal to plain `generate`, or refused."""

import copy
import pickle

import pytest
import torch
from transformers import LlamaForCausalLM, LogitsProcessor

import hf_exactassist
from tests.tiny import noisy, prompts, tiny


GREEDY = {"do_sample": False, "eos_token_id": None, "pad_token_id": 0}


def rope(kind, **settings):
    """A model whose RoPE frequencies change at 24 tokens."""
    parameters = {"rope_type": kind, "rope_theta": 1e4, "factor": 4.0}
    if kind == "longrope":
        parameters |= {"short_factor": [1.0] * 4, "long_factor": [3.0] * 4, "original_max_position_embeddings": 24}
        settings = {"max_position_embeddings": 96, **settings}
    return tiny(rope_parameters=parameters, **{"max_position_embeddings": 24, **settings})


@pytest.mark.parametrize("kind", ["dynamic", "longrope"])
def test_rope_that_depends_on_the_length_is_refused_where_it_would_turn(kind):
    target = rope(kind)
    with pytest.raises(hf_exactassist.UnsupportedArchitecture, match="max_new_tokens"):
        hf_exactassist.generate(target, **prompts([12]), **GREEDY, max_new_tokens=13, assistant_model=noisy(target))


@pytest.mark.parametrize("kind", ["dynamic", "longrope"])
def test_rope_that_depends_on_the_length_is_exact_up_to_the_turn(kind):
    target = rope(kind)
    inputs, settings = prompts([12, 7]), {**GREEDY, "max_new_tokens": 12}
    ours = hf_exactassist.generate(target, **inputs, **settings, assistant_model=noisy(target))
    assert torch.equal(ours, target.generate(**inputs, **settings))


def test_longrope_is_exact_beyond_the_turn():
    target = rope("longrope")
    inputs, settings = prompts([30, 26]), {**GREEDY, "max_new_tokens": 20}
    ours = hf_exactassist.generate(target, **inputs, **settings, assistant_model=noisy(target))
    assert torch.equal(ours, target.generate(**inputs, **settings))


def test_an_assistant_may_have_such_rope():
    target = tiny()
    inputs, settings = prompts([12, 7]), {**GREEDY, "max_new_tokens": 30}
    ours = hf_exactassist.generate(target, **inputs, **settings, assistant_model=rope("dynamic"))
    assert torch.equal(ours, target.generate(**inputs, **settings))


class OwnInputs(LlamaForCausalLM):
    """Changes positions where no short probe looks."""

    def prepare_inputs_for_generation(self, input_ids, **kwargs):
        inputs = super().prepare_inputs_for_generation(input_ids, **kwargs)
        positions = inputs["position_ids"]
        return {**inputs, "position_ids": torch.where(positions > 20, positions // 2 + 10, positions)}


def test_a_class_that_prepares_its_own_inputs_is_decoded_step_by_step():
    target, inputs, settings = tiny(), prompts([5]), {**GREEDY, "max_new_tokens": 40}
    other = target.generate(**inputs, **settings)
    target.__class__ = OwnInputs
    plain = target.generate(**inputs, **settings)
    settings |= {"assistant_model": noisy(tiny()), "return_dict_in_generate": True}
    ours = hf_exactassist.generate(target, **inputs, **settings)
    assert torch.equal(ours.sequences, plain) and not torch.equal(plain, other)
    assert "its own way" in ours.assist_stats.serial and ours.assist_stats.drafted == 0


def test_a_hook_added_after_the_first_call_is_probed_too():
    target, inputs = tiny(), prompts([5, 3])
    settings = {**GREEDY, "max_new_tokens": 4, "assistant_model": noisy(target)}
    hf_exactassist.generate(target, **inputs, **settings)

    def steer(module, args, output):
        return torch.cat([output[:, :-1], output[:, -1:] + 2.0], dim=1)

    target.model.layers[0].register_forward_hook(steer)
    ours = hf_exactassist.generate(target, **inputs, **settings, return_dict_in_generate=True)
    assert "differ from rows scored alone" in ours.assist_stats.serial
    for row, length in enumerate((5, 3)):
        alone = target.generate(inputs["input_ids"][row : row + 1, 5 - length :], **GREEDY, max_new_tokens=4)
        assert torch.equal(ours.sequences[row, 5 - length :], alone[0])


def test_a_mended_model_is_admitted():
    target = tiny()
    assistant, good = noisy(target), target.lm_head.weight.detach().clone()
    settings = {**GREEDY, "max_new_tokens": 4, "assistant_model": assistant}
    target.lm_head.weight.data.fill_(torch.nan)
    with pytest.raises(hf_exactassist.UnsupportedArchitecture, match="NaN"):
        hf_exactassist.generate(target, **prompts([5]), **settings)
    target.lm_head.weight.data.copy_(good)
    assert hf_exactassist.generate(target, **prompts([5]), **settings).shape == (1, 9)


class Diversity(LogitsProcessor):
    def __call__(self, input_ids, scores):
        scores = scores.clone()
        scores[1:].scatter_(1, input_ids[:-1, -1:], -torch.inf)
        return scores


class Guidance(LogitsProcessor):
    def __call__(self, input_ids, scores):
        conditional, unconditional = scores.chunk(2)
        mixed = unconditional + 1.5 * (conditional - unconditional)
        return torch.cat([mixed, mixed])


def first_row_decides(input_ids, scores):
    scores = scores.clone()
    scores[:, input_ids[0, -1]] += 3
    return scores


def test_processors_that_tie_scores_of_rows_together_are_refused_in_a_batch():
    """Rows that have ended have no scores any more."""
    target = tiny()
    settings = {**GREEDY, "max_new_tokens": 8, "assistant_model": noisy(target), "logits_processor": [Guidance()]}
    with pytest.raises(hf_exactassist.BatchCoupledProcessor, match="one by one"):
        hf_exactassist.generate(target, **prompts([6, 4]), **settings)


@pytest.mark.parametrize("processor", [Diversity(), first_row_decides])
def test_processors_that_tie_tokens_of_rows_together_are_exact_in_a_batch(processor):
    """They see all rows at the same column, as in plain `generate`; those that have ended show padding."""
    target, inputs = tiny(), prompts([6, 4, 5])
    settings = {**GREEDY, "max_new_tokens": 16, "logits_processor": [processor]}
    text = target.generate(**inputs, **{**settings, "eos_token_id": None})
    settings["eos_token_id"] = int(text[1, 6 + 5])
    plain = target.generate(**inputs, **settings)
    ours = hf_exactassist.generate(target, **inputs, **settings, assistant_model=noisy(target, 0.008))
    assert ours.tolist() == plain.tolist()


def test_a_processor_that_ties_rows_together_is_exact_for_one_row():
    target, inputs = tiny(), prompts([6])
    settings = {**GREEDY, "max_new_tokens": 12, "logits_processor": [first_row_decides]}
    ours = hf_exactassist.generate(target, **inputs, **settings, assistant_model=noisy(target))
    assert torch.equal(ours, target.generate(**inputs, **settings))


def test_ids_of_any_integer_type_and_any_limit():
    target = tiny()
    ids, settings = prompts([6])["input_ids"], {**GREEDY, "assistant_model": noisy(target)}
    expected = target.generate(ids, **GREEDY, max_new_tokens=10)
    assert torch.equal(hf_exactassist.generate(target, ids.int(), **settings, max_new_tokens=10).long(), expected)
    text = target.generate(ids, **GREEDY, max_new_tokens=150)[0, 6:].tolist()
    eos = next(token for token in text if text.index(token) > 20)
    huge = {**settings, "max_length": int(1e30), "eos_token_id": eos}
    assert hf_exactassist.generate(target, ids, **huge)[0, 6:].tolist() == text[: text.index(eos) + 1]


def test_training_mode_with_any_dropout_is_refused():
    target = tiny(attention_dropout=1e-3).train()
    with pytest.raises(hf_exactassist.UnsupportedArchitecture, match=r"model\.eval\(\)"):
        hf_exactassist.generate(target, **prompts([5]), **GREEDY, max_new_tokens=4, assistant_model=noisy(tiny()))


@pytest.mark.parametrize("clone", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_copies_of_an_enabled_model_are_enabled_and_bound_to_themselves(clone):
    model = hf_exactassist.enable(tiny())
    twin = clone(model)
    assert hf_exactassist.is_enabled(twin) and twin.generate.args == (twin,)
    settings = {**GREEDY, "max_new_tokens": 8}
    output = twin.generate(**prompts([5, 3]), **settings, assistant_model=noisy(model))
    assert torch.equal(output, hf_exactassist.disable(twin).generate(**prompts([5, 3]), **settings))


def test_a_shallow_copy_is_not_enabled_and_can_be():
    model = hf_exactassist.enable(tiny())
    twin = copy.copy(model)
    assert not hf_exactassist.is_enabled(twin)
    assert hf_exactassist.is_enabled(hf_exactassist.enable(twin))
    assert twin.generate.args == (twin,) and model.generate.args == (model,)


def test_wrappers_are_refused_with_the_way_in():
    wrapper = torch.nn.Sequential(tiny())
    with pytest.raises(hf_exactassist.InvalidArgument, match="inside"):
        hf_exactassist.generate(wrapper, **prompts([5]), assistant_model=tiny())
    with pytest.raises(hf_exactassist.InvalidArgument, match="wrapped by PEFT"):
        hf_exactassist.enable(wrapper)
