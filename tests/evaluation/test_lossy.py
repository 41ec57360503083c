"""A decoder that is not exact is found out, from its first call to the report, as the report says it would be."""

from unittest import mock

import numpy as np
import pytest
import torch

from hf_exactassist.evaluation import pages, tempered
from hf_exactassist.evaluation.decoding import Decoder
from hf_exactassist.evaluation.plan import Arm, Plan
from hf_exactassist.evaluation.running import evaluate
from hf_exactassist.verification import coupling
from tests.evaluation.small import prompts, small_models, standing


ROWS = 128
LENIENT, CREDULOUS = 1.3, 1e9


class Lossy(Decoder):
    """Accepts drafts so many times more leniently than may be."""

    def __init__(self, models, leniency):
        super().__init__(models)
        self.leniency = leniency

    def __call__(self, *arguments):
        def accepts(p, q, uniforms):
            return uniforms.double() * q.double() < self.leniency * p.double()

        with mock.patch.object(coupling, "accepts", accepts):
            return super().__call__(*arguments)


@pytest.fixture(autouse=True, scope="module")
def no_pages():
    """Pictures take seconds, and have tests of their own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pages, "html", lambda report: "<!doctype html>")
        yield


@pytest.fixture(scope="module")
def models():
    return small_models(noise=0.3, initializer_range=0.1)


def findings(models, folder, leniency, repeats):
    """Findings by subject, of one prompt that is given many times."""
    plan = Plan((Arm("small", 2),), ("sampled",), batch_size=ROWS, repeats=repeats, max_new_tokens=3)
    report = evaluate(models, prompts(*["a b"] * ROWS), plan, folder, decoder=Lossy(models, leniency), timed=standing)
    (arm,) = report["modes"][0]["arms"]
    return {one["subject"]: one for one in arm["quality"]["findings"]}, arm["quality"]["conclusion"]


def divergences(models, leniency, temperature):
    """How far from the target's law, in nats, the lossy second token is, and a tempered law; the mean over firsts."""
    ids = models.tokenizer("a b")["input_ids"]
    small = models.assistants["small"].model
    with torch.no_grad():
        first = models.target(torch.tensor([ids])).logits[0, -1].double().softmax(-1).numpy()
        both = torch.tensor([[*ids, token] for token in range(len(first))])
        p, q = (model(both).logits[:, -1].double().softmax(-1).numpy() for model in (models.target, small))
    kept = np.minimum(q, leniency * p)
    left = np.maximum(p - q, 0)
    lossy = kept + (1 - kept.sum(1, keepdims=True)) * left / left.sum(1, keepdims=True)
    return [float(first @ (law * np.log(law / p)).sum(1)) for law in (lossy, tempered(p, temperature))]


def test_exact_and_lossy_decoders(models, tmp_path):
    exact, conclusion = findings(models, tmp_path / "exact", 1.0, repeats=8)
    assert not any(one["differs"] for one in exact.values())
    assert conclusion.startswith("Nothing speaks against equal laws")
    # what is said to be found with probability 0.9 is nearer to the target's law than the lossy decoder is
    stated = exact["next tokens"]
    assert stated["power"] == 0.9
    lossy, tempered_law = divergences(models, LENIENT, stated["smallest"])
    assert lossy > tempered_law
    found, conclusion = findings(models, tmp_path / "lossy", LENIENT, repeats=8)
    assert found["next tokens"]["differs"]
    assert conclusion.startswith("The law is not plain generate's")


def test_one_that_accepts_everything_is_found_by_a_few_texts(models, tmp_path):
    found, conclusion = findings(models, tmp_path, CREDULOUS, repeats=2)
    assert found["next tokens"]["differs"] and conclusion.startswith("The law is not plain generate's")


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_five_percent_of_leniency(models, tmp_path):
    found, _ = findings(models, tmp_path / "lossy", 1.05, repeats=128)
    lossy, tempered_law = divergences(models, 1.05, found["next tokens"]["smallest"])
    assert lossy > tempered_law
    assert found["next tokens"]["differs"]
