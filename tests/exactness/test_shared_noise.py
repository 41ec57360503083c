"""`coupling="shared_noise"`: token for token the text of plain `generate` under the same `torch.manual_seed`."""

import pytest
import torch

import hf_exactassist
from hf_exactassist import randomness
from hf_exactassist.demo import PROMPTS, load_pair
from hf_exactassist.randomness import SharedNoise
from hf_exactassist.records import Draft
from hf_exactassist.verification.distributions import choose
from hf_exactassist.verification.shared_noise import verify_shared
from tests.tiny import ARCHITECTURES, EVEN_NOISE, looping, noisy, prompts, tiny


SAMPLED = {"do_sample": True, "eos_token_id": None, "pad_token_id": 0, "max_new_tokens": 20}


def both(target, inputs, seed, assisted, **settings):
    """Plain and assisted outputs under the same seed, and the generator's state after each."""
    results = []
    for given in ({}, {"coupling": "shared_noise", **assisted}):
        torch.manual_seed(seed)
        output = hf_exactassist.generate(
            target, **inputs, **{**SAMPLED, **settings}, **given, return_dict_in_generate=True
        )
        results.append((output, torch.get_rng_state()))
    return results


def assert_same(target, inputs, seed, assisted, **settings):
    (plain, left), (ours, ours_left) = both(target, inputs, seed, assisted, **settings)
    assert torch.equal(plain.sequences, ours.sequences)
    assert torch.equal(left, ours_left), "the generator must stand where plain generate leaves it"
    return ours.assist_stats


@pytest.mark.parametrize("k", [1, 3, 8])
@pytest.mark.parametrize("lengths", [[6], [9, 4, 6]])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_same_seed_same_text(architecture, lengths, k):
    target = tiny(architecture)
    assisted = {"assistant_model": noisy(target, EVEN_NOISE[architecture]), "num_assistant_tokens": k}
    stats = [assert_same(target, prompts(lengths), seed, assisted) for seed in range(3)]
    assert 0 < sum(one.accepted for one in stats) < sum(one.drafted for one in stats)


@pytest.mark.parametrize(
    "settings",
    [
        {"temperature": 0.7, "top_p": 0.8},
        {"top_k": 5, "repetition_penalty": 1.3},
        {"eos_token_id": [5, 9, 17, 33, 41]},
        {"num_return_sequences": 3},
        {"min_p": 0.05, "no_repeat_ngram_size": 2},
    ],
    ids=str,
)
def test_same_seed_same_text_with_settings(settings):
    target = tiny()
    for seed in range(4):
        assisted = {"assistant_model": noisy(target, 0.05), "num_assistant_tokens_schedule": "heuristic"}
        assert_same(target, prompts([9, 4, 6]), seed, assisted, **settings)


def test_same_seed_same_text_with_prompt_lookup_and_with_a_useless_assistant():
    target, inputs = looping()
    stats = assert_same(target, inputs, 3, {"prompt_lookup_num_tokens": 3}, temperature=0.02)
    assert stats.accepted
    assert_same(target, inputs, 3, {"assistant_model": tiny(seed=9)})


def test_a_seed_and_a_generator_stand_for_torchs_own():
    target, inputs = tiny(), prompts([5, 3])
    settings = {**SAMPLED, "assistant_model": noisy(target, 0.05), "coupling": "shared_noise"}
    torch.manual_seed(11)
    plain = target.generate(**inputs, **SAMPLED)
    before = torch.get_rng_state()
    assert torch.equal(hf_exactassist.generate(target, **inputs, **settings, seed=11), plain)
    generator = torch.Generator().manual_seed(11)
    assert torch.equal(hf_exactassist.generate(target, **inputs, **settings, generator=generator), plain)
    assert torch.equal(before, torch.get_rng_state()) and torch.equal(generator.get_state(), before)


def test_greedy_calls_draw_nothing():
    target, state = tiny(), torch.get_rng_state()
    settings = {**SAMPLED, "do_sample": False, "assistant_model": noisy(target), "coupling": "shared_noise"}
    hf_exactassist.generate(target, **prompts([5]), **settings)
    assert torch.equal(state, torch.get_rng_state())


def test_a_failed_call_leaves_the_generator_as_it_was():
    target, state = tiny(), torch.get_rng_state()

    def fail(input_ids, scores):
        if input_ids.shape[1] == 12:
            raise ZeroDivisionError
        return torch.zeros(len(input_ids), dtype=torch.bool)

    settings = {**SAMPLED, "assistant_model": noisy(target), "coupling": "shared_noise", "stopping_criteria": [fail]}
    with pytest.raises(ZeroDivisionError):
        hf_exactassist.generate(target, **prompts([5, 3]), **settings)
    assert torch.equal(state, torch.get_rng_state())


@pytest.mark.parametrize("settings", [{"coupling": "other"}, {"coupling": "shared_noise", "row_ids": [0]}])
def test_wrong_settings_are_refused(settings):
    with pytest.raises(hf_exactassist.InvalidArgument, match="coupling"):
        hf_exactassist.generate(tiny(), **prompts([5]), **SAMPLED, assistant_model=tiny(), **settings)


def test_rows_that_drift_apart_keep_few_numbers(monkeypatch):
    """Rows ahead and rows behind ask for the same numbers, made again from the generator's state."""
    generator = torch.Generator().manual_seed(0)
    noise = SharedNoise(generator, (2, 7), torch.device("cpu"))
    serial = torch.Generator().manual_seed(0)
    expected = torch.stack([torch.empty(2, 7).exponential_(1, generator=serial) for _ in range(60)])
    ahead = noise.block([1], [40], 20)
    behind = noise.block([0, 1], [2, 5], 3)
    assert torch.equal(ahead[0], expected[40:60, 1])
    assert torch.equal(behind[0], expected[2:5, 0]) and torch.equal(behind[1], expected[5:8, 1])
    assert len(noise._recent) <= randomness._STEPS_KEPT
    noise.leave(60)
    assert torch.equal(generator.get_state(), serial.get_state())


def test_the_choice_follows_the_law_and_agrees_as_often_as_promised():
    """Acceptance is at least (1 - TV) / (1 + TV), here on many draws (Daliri et al. 2024)."""
    generator = torch.Generator().manual_seed(1)
    p, q = torch.tensor([0.5, 0.3, 0.15, 0.05]), torch.tensor([0.3, 0.4, 0.1, 0.2])
    noise = torch.empty(200_000, 4).exponential_(1, generator=generator)
    chosen, drafted = choose(p.log(), noise), choose(q.log(), noise)
    law = chosen.bincount(minlength=4) / len(chosen)
    assert (law - p).abs().max() < 0.005
    tv = (p - q).abs().sum() / 2
    assert (chosen == drafted).float().mean() > (1 - tv) / (1 + tv)


def test_rows_without_a_law_are_told():
    scores = torch.tensor([[[0.0, 1.0]], [[-torch.inf, -torch.inf]], [[torch.nan, 0.0]]])
    verdict = verify_shared(scores, Draft.empty(3, "cpu"), torch.ones(3, 1, 2))
    assert verdict.terminal.tolist() == [1, 2, 2]


def test_two_hundred_prompts_of_the_embedded_pair():
    target, assistant, tokenizer = load_pair()
    inputs = [tokenizer(PROMPTS[i % len(PROMPTS)], return_tensors="pt") for i in range(200)]
    settings = {"do_sample": True, "max_new_tokens": 10, "pad_token_id": 2}
    different = 0
    for seed, prompt in enumerate(inputs):
        torch.manual_seed(seed)
        plain = target.generate(**prompt, **settings)
        torch.manual_seed(seed)
        ours = hf_exactassist.generate(
            target, **prompt, **settings, assistant_model=assistant, coupling="shared_noise"
        )
        different += not torch.equal(plain, ours)
    assert different == 0
