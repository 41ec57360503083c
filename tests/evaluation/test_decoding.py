"""Calls of an evaluation are those that anyone would make."""

import pytest
import torch

import hf_exactassist
from hf_exactassist.benchmark.pair import Pair
from hf_exactassist.errors import InvalidArgument
from hf_exactassist.evaluation.data import Prompt, PromptSet
from hf_exactassist.evaluation.decoding import Decoder, token_rows
from hf_exactassist.evaluation.plan import PLAIN, PROMPT_LOOKUP, Arm, Plan, Unit
from tests.evaluation.small import prompts, small_models


GREEDY = {"max_new_tokens": 12, "do_sample": False}
SAMPLED = {"max_new_tokens": 12, "do_sample": True, "temperature": 0.8}
ARMS = [Arm("small", 3), Arm("small"), Arm("small", 2, layout="retained"), Arm(PROMPT_LOOKUP, 3)]


@pytest.fixture(scope="module")
def models():
    return small_models(initializer_range=0.1)


@pytest.fixture(scope="module")
def rows(models):
    return token_rows(models, prompts("a b c", "d e f g h", "b"))


@pytest.mark.parametrize("arm", ARMS, ids=lambda arm: arm.name)
def test_greedy_texts_are_plain_ones_up_to_their_end(models, rows, arm):
    plain, ours = Decoder(models)(PLAIN, rows, GREEDY), Decoder(models)(arm, rows, GREEDY)
    assert ours.texts == plain.texts and plain.stats is None and ours.stats["published"] == sum(map(len, ours.texts))
    assert all(2 not in text[:-1] and len(text) <= 12 for text in plain.texts)
    lengths = len(ours.stats["drafted_by_position"])
    assert lengths == (arm.num_assistant_tokens or 5)


def test_plain_texts_are_those_of_generate_under_the_seed(models, rows):
    """Rows are padded on the left, and the seed is torch's own."""
    torch.manual_seed(5)
    before = torch.get_rng_state()
    inputs = Pair(models.target, models.tokenizer, None).inputs(rows)
    torch.manual_seed(7)
    output = models.target.generate(**inputs, **SAMPLED, pad_token_id=0)[:, 5:].tolist()
    torch.set_rng_state(before)
    texts = Decoder(models)(PLAIN, rows, SAMPLED, seed=7).texts
    assert texts == [row[: row.index(2) + 1] if 2 in row else row for row in output]
    # the caller's generator is where it was
    assert torch.get_rng_state().equal(before)


@pytest.mark.parametrize("layout", ["replay", "retained"])
def test_shared_noise_gives_the_plain_texts(models, rows, layout):
    arm = Arm("small", 3, "shared_noise", layout)
    assert Decoder(models)(arm, rows, SAMPLED, seed=7).texts == Decoder(models)(PLAIN, rows, SAMPLED, seed=7).texts


def test_the_seed_and_the_log_of_a_sampled_call(models, rows):
    decode, events = Decoder(models), []
    first = decode(ARMS[0], rows, SAMPLED, seed=7)
    assert decode(ARMS[0], rows, SAMPLED, 7, events.append).texts == first.texts
    assert decode(ARMS[0], rows, SAMPLED, seed=8).texts != first.texts
    assert {event["event"] for event in events} == {"decision", "round"}
    inputs = models.inputs(rows)
    output = hf_exactassist.generate(
        models.target,
        **inputs,
        **SAMPLED,
        assistant_model=models.assistants["small"].model,
        num_assistant_tokens=3,
        seed=7,
        pad_token_id=0,
    )
    assert first.texts == [list(models.text(row)) for row in output[:, inputs["input_ids"].shape[1] :].tolist()]


def test_seeds_of_ways_units_and_evaluations_differ():
    plan, arms = Plan(tuple(ARMS)), [PLAIN, *ARMS]
    units = [Unit("sampled", repeat, batch) for repeat in range(3) for batch in range(5)]
    seeds = [plan.seed_of(unit, arm) for unit in units for arm in arms]
    seeds += [Plan(tuple(ARMS), seed=1).seed_of(unit, arm) for unit in units for arm in arms]
    assert len(set(seeds)) == len(seeds) and all(0 <= seed < 2**31 for seed in seeds)
    assert plan.seed_of(units[3], Arm("small", 3, "shared_noise")) == plan.seed_of(units[3], PLAIN)


def test_chat_prompts_have_their_special_tokens_already(models):
    made = models.tokenizer.apply_chat_template(
        [{"role": "user", "content": "b c"}], tokenize=False, add_generation_prompt=True
    )
    assert made == "<s> b c a"

    class Opening:
        """A tokenizer that puts a token before every text."""

        def __call__(self, text, add_special_tokens):
            return {"input_ids": [1] * add_special_tokens + models.tokenizer(text)["input_ids"]}

    opening = type(models)(models.target, Opening(), models.assistants)
    prompt = (Prompt(0, "given", made),)
    assert token_rows(opening, PromptSet(prompt, {}, True)) == [[1, 4, 5, 3]]
    assert token_rows(opening, PromptSet(prompt, {}, False)) == [[1, 1, 4, 5, 3]]


def test_a_prompt_without_tokens_is_told(models):
    with pytest.raises(InvalidArgument, match="row 1 has no tokens"):
        token_rows(models, prompts("a", " "))
