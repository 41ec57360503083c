"""Figures from the log of real calls agree with the calls' own counters."""

import json
from dataclasses import asdict

import pytest

import hf_exactassist
from hf_exactassist import ledger
from hf_exactassist.evaluation.acceptance import acceptance
from hf_exactassist.evaluation.causes import by_position, diagnose_log, diagnosis
from hf_exactassist.evaluation.costs import time_split
from hf_exactassist.evaluation.records import from_json, to_json
from hf_exactassist.evaluation.rounds import row_rounds
from tests.evaluation.made import call, look
from tests.tiny import EVEN_NOISE, noisy, prompts, tiny


MODES = {
    "greedy": {"do_sample": False},
    "sampled": {"do_sample": True, "seed": 5, "temperature": 0.2},
    "shared noise": {"do_sample": True, "seed": 5, "temperature": 0.2, "coupling": "shared_noise"},
}


@pytest.fixture(scope="module")
def models():
    target = tiny()
    return target, noisy(target, EVEN_NOISE["llama"])


def evaluated(models, lengths, batch=0, **settings):
    """A call's text, counters and log, as records that have been written and read."""
    events, inputs = [], prompts(lengths)
    output = hf_exactassist.generate(
        models[0],
        **inputs,
        assistant_model=models[1],
        num_assistant_tokens=3,
        max_new_tokens=24,
        eos_token_id=[7, 23],
        pad_token_id=0,
        telemetry=events.append,
        return_dict_in_generate=True,
        **settings,
    )
    stats = output.assist_stats
    records = (
        look(events, batch=batch),
        call(batch=batch, texts=[[1]] * len(lengths), prompts=range(batch, batch + len(lengths)), stats=asdict(stats)),
    )
    return stats, *(from_json(json.loads(json.dumps(to_json(record)))) for record in records)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("layout", ["replay", "retained"])
def test_figures_are_those_of_the_counters(models, mode, layout):
    one, first, timed = evaluated(models, [9, 4, 6], layout=layout, **MODES[mode])
    other, second, again = evaluated(models, [5], batch=3, layout=layout, **MODES[mode])
    stats = one + other
    found = acceptance([first, second], [timed, again], ["a", "a", "b", "b"])
    for name in ("rounds", "row_rounds", "drafted", "accepted", "published"):
        assert found[name] == getattr(stats, name), name
    assert found["rate"] == stats.acceptance_rate
    stops = sum(part.cut for record in (first, second) for part in row_rounds(record.events))
    assert found["tokens_per_round"] == pytest.approx(stats.tokens_per_round - stops / stats.row_rounds)
    assert found["tokens_per_target_forward"] == (stats.steps + 2) / stats.target_forwards
    # what is reached is accepted as often as the counters say, position by position
    kept = [round(rate * count) for rate, count in zip(found["by_position"], found["reached"], strict=True)]
    assert kept == stats.accepted_by_position[: len(kept)] and sum(kept) == stats.accepted < stats.drafted
    assert found["reached"][0] == stats.drafted_by_position[0]
    assert sum(one["decisions"] for one in found["over_text"]) == sum(found["reached"])
    assert ledger.survival(found["by_position"])[-1] == found["survival"][len(found["by_position"]) - 1]
    assert sum(time_split([first], [timed]).values()) == pytest.approx(1)
    assert sum(part["prompts"] for part in found["by_kind"].values()) == 4


def test_overlap_is_what_acceptance_is_expected_to_be(models):
    """Over many tests, the mean of 1 - TV and the rate of acceptance are estimates of one number (contract 0x03B)."""
    parts = []
    for seed in range(12):
        _, logged, _ = evaluated(models, [9, 4, 6], do_sample=True, seed=seed, temperature=0.2)
        parts += row_rounds(logged.events)
    (first, *_) = by_position(parts)
    tested = [part.decisions[0] for part in parts if part.decisions]
    assert first["decisions"] == len(tested) > 100
    rate = sum(one["accepted"] for one in tested) / len(tested)
    assert first["overlap"] == pytest.approx(rate, abs=4 * (rate * (1 - rate) / len(tested)) ** 0.5)


def test_a_log_that_was_written_says_the_same(models, tmp_path):
    path, events = tmp_path / "log.jsonl", []
    settings = {"assistant_model": models[1], "num_assistant_tokens": 3, "max_new_tokens": 20}
    settings |= {"do_sample": True, "temperature": 0.2, "seed": 3}
    for telemetry in (path, events.append):
        hf_exactassist.generate(models[0], **prompts([9, 4, 6]), **settings, telemetry=telemetry)
    assert diagnose_log(path) == diagnosis(row_rounds(events))
    assert diagnose_log(path)["causes"]
