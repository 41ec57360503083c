"""Identity of greedy texts, and laws of sampled ones."""

import json

import numpy as np
import pytest
import torch

from hf_exactassist.evaluation import lengths, likelihoods


def test_identical_tokens(load):
    results = load("exactness").compute(predictions1=[[1, 2], [3]], predictions2=[[1, 2], [3]])
    assert results["identity_rate"] == 1.0 and results["first_differences"] == [None, None]
    assert "All 2 greedy texts are plain generate's" in results["conclusion"]


def test_first_differences_by_hand(load):
    results = load("exactness").compute(
        predictions1=[[1, 2, 3], [4, 5], [6], []], predictions2=[[1, 2, 9], [4, 5, 6], [6], []]
    )
    assert results["first_differences"] == [2, 2, None, None]
    assert results["identical"] == 2 and results["texts"] == 4 and results["identity_rate"] == 0.5
    assert "2 of 4 greedy texts differ" in results["conclusion"]


def test_texts_are_compared_by_character(load):
    results = load("exactness").compute(predictions1=["so it is", "end"], predictions2=["so it was", "end"])
    assert results["first_differences"] == [6, None]


def test_batches_tensors_and_single_pairs_are_one_sample(load):
    module = load("exactness")
    module.add_batch(predictions1=torch.tensor([[1, 2], [3, 4]]), predictions2=np.array([[1, 2], [3, 5]]))
    module.add(predictions1=[1], predictions2=[1, 2])
    assert module.compute()["first_differences"] == [None, 1, 1]


@pytest.fixture
def samples():
    rng = np.random.default_rng(0)
    texts = [[[1] * count for count in rng.integers(5, 40, 80)] for _ in range(2)]
    return texts, rng.normal(-2, 0.4, (2, 80))


def test_sampled_texts_of_one_law(load, samples):
    (plain, assisted), (first, second) = samples
    results = load("exactness").compute(
        predictions1=plain, predictions2=assisted, sampled=True, log_likelihoods1=first, log_likelihoods2=second
    )
    assert not results["differs"] and "identity_rate" not in results
    assert [finding["subject"] for finding in results["findings"]] == ["likelihoods", "lengths"]
    # both tests share the level, and are the library's own
    assert [finding["alpha"] for finding in results["findings"]] == [0.025, 0.025]
    own = likelihoods(second, first, alpha=0.025), lengths(*_counts(assisted, plain), alpha=0.025)
    assert [finding["p_value"] for finding in results["findings"]] == [finding.p_value for finding in own]
    assert results["likelihood_difference"]["mean"] == pytest.approx(float((second - first).mean()))
    assert "would have been found with probability 0.9" in results["conclusion"]
    json.dumps(results, allow_nan=False)


def test_likelier_texts_are_found_in_their_direction(load, samples):
    (plain, assisted), (first, second) = samples
    results = load("exactness").compute(
        predictions1=plain, predictions2=assisted, sampled=True, log_likelihoods1=first, log_likelihoods2=second + 0.4
    )
    assert results["differs"] and results["likelihood_difference"]["low"] > 0
    assert "The law is not plain generate's" in results["conclusion"]


def test_shorter_texts_are_found(load, samples):
    (plain, assisted), _ = samples
    broken = [text[: len(text) // 3 + 1] for text in assisted]
    results = load("exactness").compute(predictions1=plain, predictions2=broken, sampled=True)
    assert results["differs"] and results["likelihood_difference"] is None
    assert results["findings"][0]["alpha"] == 0.05


def test_sampled_texts_as_strings_have_likelihoods_alone(load, samples):
    _, (first, second) = samples
    results = load("exactness").compute(
        predictions1=["a"] * 80,
        predictions2=["b"] * 80,
        sampled=True,
        log_likelihoods1=first,
        log_likelihoods2=second,
        alpha=0.1,
    )
    assert [finding["subject"] for finding in results["findings"]] == ["likelihoods"]
    assert results["findings"][0]["alpha"] == 0.1


def test_what_nothing_could_have_found_is_said(load):
    results = load("exactness").compute(
        predictions1=["a"] * 5,
        predictions2=["b"] * 5,
        sampled=True,
        log_likelihoods1=[-1.0] * 5,
        log_likelihoods2=[-1.0] * 5,
    )
    assert results["findings"][0]["smallest"] is None
    assert "nothing tried could have been found" in results["conclusion"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"predictions1": [[1]]}, "also needs predictions2"),
        ({"predictions1": [[1]], "predictions2": [[1], [2]]}, "One assisted text for each plain one: got 1 and 2"),
        ({"predictions1": [], "predictions2": []}, "no texts"),
        ({"predictions1": ["a"], "predictions2": [[1]]}, "either all texts or all lists"),
        ({"predictions1": [[1.5]], "predictions2": [[1]]}, "either all texts or all lists"),
        ({"predictions1": [1], "predictions2": [1]}, "either all texts or all lists"),
        ({"predictions1": [None], "predictions2": ["a"]}, "either all texts or all lists"),
        ({"predictions1": ["a"], "predictions2": ["a"], "log_likelihoods1": [1.0]}, "for sampled texts"),
        ({"predictions1": ["a"], "predictions2": ["a"], "sampled": True}, "pass log-likelihoods"),
        (
            {"predictions1": [[1]], "predictions2": [[1]], "sampled": True, "log_likelihoods1": [-1.0]},
            "come in pairs",
        ),
        (
            {
                "predictions1": [[1]],
                "predictions2": [[1]],
                "sampled": True,
                "log_likelihoods1": [-1.0] * 2,
                "log_likelihoods2": [-1.0] * 2,
            },
            "for each of 1 texts",
        ),
        ({"predictions1": [[1]], "predictions2": [[1]], "sampled": True, "alpha": 2}, "`alpha` lies between"),
        ({"predictions1": [[]], "predictions2": [[1]], "sampled": True}, "Lengths are whole numbers above 0"),
    ],
)
def test_impossible_input_is_refused(load, arguments, message):
    with pytest.raises(ValueError, match=message):
        load("exactness").compute(**arguments)


def test_one_float_added_alone_is_refused(load):
    with pytest.raises(ValueError, match="either all texts"):
        load("exactness").add(predictions1=[1.5], predictions2=[1])


def _counts(*texts):
    return [[[len(text)] for text in part] for part in texts]
