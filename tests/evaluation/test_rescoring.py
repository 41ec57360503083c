"""What the target thinks of texts, against a direct computation."""

import pytest
import torch
from transformers.generation import LogitsProcessorList, RepetitionPenaltyLogitsProcessor

from hf_exactassist.evaluation import rescoring
from hf_exactassist.evaluation.decoding import Decoder, token_rows
from hf_exactassist.evaluation.plan import PLAIN, SAMPLED, Arm, Plan, Step, Unit
from hf_exactassist.evaluation.records import Call
from hf_exactassist.evaluation.rescoring import Rescorer
from hf_exactassist.evaluation.second_tokens import MOST_PREFIXES, SecondTokens, _chosen
from tests.evaluation.small import prompts, small_models


GREEDY = {"max_new_tokens": 8, "do_sample": False}
SAMPLING = {"max_new_tokens": 8, "do_sample": True, "top_k": 0}


@pytest.fixture(scope="module")
def models():
    return small_models(initializer_range=0.1)


@pytest.fixture(scope="module")
def rows(models):
    return token_rows(models, prompts("a b c", "d e f g h", "b"))


def logits(models, ids):
    with torch.no_grad():
        return models.target(torch.tensor([ids])).logits[0]


def test_likelihoods(models, rows, monkeypatch):
    text = [5, 9, 4, 4, 2]
    law = logits(models, rows[1] + text).log_softmax(-1)
    wanted = sum(float(law[len(rows[1]) - 1 + at, token]) for at, token in enumerate(text)) / len(text)
    assert Rescorer(models).likelihood(rows[1], text) == pytest.approx(wanted, abs=1e-6)
    # two places at a time
    monkeypatch.setattr(rescoring, "_MOST_SCORES", 2 * 16)
    assert Rescorer(models).likelihood(rows[1], text) == pytest.approx(wanted, abs=1e-6)
    # of models that score all places or none
    monkeypatch.setattr(rescoring.compat, "forward_parameters", lambda model: frozenset())
    assert Rescorer(models).likelihood(rows[1], text) == pytest.approx(wanted, abs=1e-6)


@pytest.mark.parametrize("penalty", [1.0, 1.5])
def test_greedy_scores_are_those_that_plain_generate_chose_by(models, rows, penalty):
    arguments = {**GREEDY, "repetition_penalty": penalty}
    texts = Decoder(models)(PLAIN, rows, arguments).texts
    for row, position in ((0, 0), (1, 3), (2, len(texts[2]) - 1)):
        scores = Rescorer(models).scores(rows, texts, row, position, arguments)
        assert scores.dtype == torch.float64 and int(scores.argmax()) == texts[row][position]
        ids = rows[row] + texts[row][:position]
        wanted = logits(models, ids)[-1:]
        if penalty != 1.0:
            wanted = LogitsProcessorList([RepetitionPenaltyLogitsProcessor(penalty)])(torch.tensor([ids]), wanted)
        torch.testing.assert_close(scores, wanted[0].double(), rtol=1e-4, atol=1e-5)


def test_scores_behind_another_text_than_the_likeliest(models, rows):
    texts = [[7, 7, 7, 7], [8, 3, 2], [4, 5, 6, 7]]
    scores = Rescorer(models).scores(rows, texts, 0, 3, GREEDY)
    torch.testing.assert_close(scores, logits(models, rows[0] + texts[0][:3])[-1].double(), rtol=1e-4, atol=1e-5)


def test_long_texts_are_scored_alone(models, rows, monkeypatch):
    texts = Decoder(models)(PLAIN, rows, GREEDY).texts
    together = Rescorer(models).scores(rows, texts, 1, 3, GREEDY)
    monkeypatch.setattr(rescoring, "_MOST_SCORES", 1)
    torch.testing.assert_close(Rescorer(models).scores(rows, texts, 1, 3, GREEDY), together, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("settings", [{}, {"temperature": 0.7}, {"top_k": 5}])
def test_noise_and_scores_choose_what_plain_sampling_drew(models, rows, settings):
    arguments = {**SAMPLING, **settings}
    texts = Decoder(models)(PLAIN, rows, arguments, seed=11).texts
    for row, text in enumerate(texts):
        for position, token in enumerate(text):
            assert int(Rescorer(models).scores(rows, texts, row, position, arguments, 11).argmax()) == token


@pytest.mark.parametrize(
    "settings", [{}, {"temperature": 0.5}, {"repetition_penalty": 1.7}, {"top_k": 4}, {"bad_words_ids": [[6]]}]
)
def test_laws_of_second_tokens(models, rows, settings):
    found = Rescorer(models).laws(rows[0], [5, 3, 9], {**SAMPLING, **settings}, batch_size=2)
    for first, law in zip([5, 3, 9], found, strict=True):
        ids = rows[0] + [first]
        scores = logits(models, ids)[-1:].clone()
        if "repetition_penalty" in settings:
            scores = RepetitionPenaltyLogitsProcessor(1.7)(torch.tensor([ids]), scores)
        if "bad_words_ids" in settings:
            scores[0, 6] = -torch.inf
        scores /= settings.get("temperature", 1.0)
        if "top_k" in settings:
            scores[scores < scores.topk(4).values[0, -1]] = -torch.inf
        torch.testing.assert_close(law, scores[0].double().softmax(-1), rtol=1e-4, atol=1e-6)


def test_laws_on_the_border_are_left_out(models, rows):
    """Moved by less than rounding, another token would be the last of four, or the one that fills up top-p."""
    raw = logits(models, rows[0] + [5])[-1]
    ordered = raw.softmax(-1).sort(descending=True).values.cumsum(0)
    sure = float(ordered[3] + ordered[4]) / 2
    assert Rescorer(models).laws(rows[0], [5], {**SAMPLING, "top_p": sure})[0] is not None
    for border in (float(ordered[3]) - 1e-6, float(ordered[3]) + 1e-6):
        assert Rescorer(models).laws(rows[0], [5], {**SAMPLING, "top_p": border}) == [None]
    head = models.target.get_output_embeddings().weight
    order = raw.argsort(descending=True)
    before = head.detach().clone()
    try:
        with torch.no_grad():
            head[order[4]] = head[order[3]] * (1 + 1e-7)
        assert Rescorer(models).laws(rows[0], [5], {**SAMPLING, "top_k": 4}) == [None]
        assert Rescorer(models).laws(rows[0], [5], {**SAMPLING, "top_k": 3})[0] is not None
    finally:
        with torch.no_grad():
            head.copy_(before)


# --- which second tokens are tested ---


def call(texts, prompt_places, arm="small, K=2", repeat=0):
    step = Step("call", Unit(SAMPLED, repeat, 0), arm)
    return Call(step, prompt_places, [3] * len(texts), texts, [True] * len(texts), {}, {}, [0.0] * len(texts))


PLAN = Plan((Arm("small", 2), Arm("small", 2, "shared_noise")), max_new_tokens=8, sampling={"top_k": 0})


def test_second_tokens_are_gathered_by_prefix(models, rows):
    test = SecondTokens(Rescorer(models), PLAN, [rows[0], rows[1], rows[0]])
    calls = [
        call([[5, 6, 7], [3, 2], [5, 8]], [0, 1, 2]),
        call([[5, 6], [2], [2]], [0, 1, 2], repeat=1),
        call([[9, 9]], [0], arm="plain"),
    ]
    # one prompt is given twice; a text of one token has no second
    assert test._drawn("small, K=2", calls) == {(0, 5): [6, 8, 6], (1, 3): [2]}
    (finding,), sentences = test.judge("small, K=2", calls)
    assert finding.subject == "next tokens" and sentences == []
    assert test.judge("small, K=2", [call([[2]], [0])])[1] == [
        "Next tokens were not tested: no text goes on behind its first token."
    ]
    assert [arm.name for arm in PLAN.tested()] == ["small, K=2"]


def test_prefixes_are_chosen_without_a_look_at_what_follows():
    drawn = {(place, 3): [4] for place in range(MOST_PREFIXES)} | {(MOST_PREFIXES, 3): [4, 4]}
    chosen = _chosen(drawn)
    assert len(chosen) == MOST_PREFIXES and (MOST_PREFIXES, 3) in chosen and (MOST_PREFIXES - 1, 3) not in chosen
    assert chosen == _chosen({prefix: [9] * len(tokens) for prefix, tokens in drawn.items()})


def test_truncated_laws_are_not_tested_in_half_precision():
    models = small_models(initializer_range=0.1)
    models.target.bfloat16()
    plan = Plan((Arm("small", 2),), max_new_tokens=8, sampling={"top_p": 0.9, "top_k": 0})
    test = SecondTokens(Rescorer(models), plan, [[3, 4]])
    findings, (sentence,) = test.judge("small, K=2", [call([[5, 6]], [0])])
    assert findings == [] and "in bfloat16 rounding decides which" in sentence and "--dtype float32" in sentence
    free = SecondTokens(Rescorer(models), Plan((), max_new_tokens=8, sampling={"top_k": 0}), [[3, 4]])
    assert free.judge("small, K=2", [call([[5, 6]], [0])])[1] == []
