"""The report as a whole: its shape, its digest, its sentences, and what it makes of missing records."""

import copy
import json
import math
import random

import pytest

from hf_exactassist.evaluation import Finding, metrics
from hf_exactassist.evaluation.digest import digest
from hf_exactassist.evaluation.greedy import Divergence
from hf_exactassist.evaluation.plan import Arm, Plan
from hf_exactassist.evaluation.records import in_order
from hf_exactassist.evaluation.report import make_report
from hf_exactassist.evaluation.summary import alarms, conclusions
from tests.evaluation.made import call, compare, events, look, plain, prompt_set, row, tie


FIXED, LONGER, DEFAULT = Arm("small", 1), Arm("small", 2), Arm("small")
SHARED = Arm("small", 2, "shared_noise")
PLAN = Plan((FIXED, LONGER, DEFAULT, SHARED), batch_size=1, repeats=2, max_new_tokens=4, sampling={"top_k": 5})
PROMPTS = prompt_set("prose", "prose", "code")
FAULT = Divergence(0, 1, 2, 3.0, False)


def made(plan=PLAN, slow=1.0):
    """A record for each step: drafts of K tokens, of which the first is always kept and others never."""
    records = []
    for unit in plan.units(len(PROMPTS.prompts)):
        more = {"batch": unit.batch, "repeat": unit.repeat, "mode": unit.mode}
        for step in plan.steps(unit):
            arm = next((way for way in plan.ways(unit.mode) if way.name == step.arm), None)
            if step.kind == "compare":
                ways = [way.name for way in plan.ways(unit.mode)[1:] if unit.mode == "greedy" or way == SHARED]
                records.append(compare({way: [None] for way in ways}, **more))
            elif step.kind == "look":
                drafts = [2, 3][: arm.num_assistant_tokens or 1]
                log = events(
                    [row([], 0, 1)],
                    [row(drafts, 1, 4, overlap=0.5, divergence=None, same_top=True)],
                    [row([], 0, 9)],
                    seconds={
                        0: {"score": 1.0},
                        1: {"propose": slow * len(drafts), "score": 4.0, "process": 0.5, "judge": 0.5},
                        2: {"score": 4.0, "process": 0.5, "judge": 0.5},
                    },
                )
                records.append(look(log, arm, unit.batch, unit.mode, prompts=[unit.batch]))
            else:
                make = plain if arm.drafter is None else call
                own = {} if arm.drafter is None else {"arm": arm, "stats": stats()}
                likelihood = [-1.0 - 0.1 * unit.batch] if unit.mode == "sampled" else None
                seconds = (16.0 if arm.drafter is None else 8.0 * slow) + unit.batch
                records.append(make(texts=[[1, 2, 4, 9]], seconds=seconds, likelihoods=likelihood, **own, **more))
    return records


def stats():
    return {"rounds": 2, "row_rounds": 2, "steps": 3, "target_forwards": 3, "seconds": 8.0}


def manifest(records, plan=PLAN, **more):
    planned = sum(1 for unit in plan.units(len(PROMPTS.prompts)) for _ in plan.steps(unit))
    return {
        "header": {"date": "today", "load_average": [0.5], "processor": "one", "target": {"name": "T"}},
        "clock": "cpu",
        "processes": 1,
        "complete": len(records) == planned,
        "steps": {"done": len(records), "all": planned},
        "refused": {},
        "not_tested": {},
        **more,
    }


def report(records, plan=PLAN, judged=None, metrics=(), **more):
    about = manifest(records, plan, **more)
    return make_report(about, plan, PROMPTS, records, judged or {}, lambda tokens: "x" * len(tokens), metrics)


RECORDS = made()


@pytest.fixture(scope="module")
def whole():
    return report(RECORDS)


def arms(made_report, mode):
    return {arm["name"]: arm for arm in made_report["modes"][["greedy", "sampled"].index(mode)]["arms"]}


ARM_FIELDS = {
    "acceptance": (
        "rounds row_rounds drafted accepted published rate tokens_per_round tokens_per_target_forward reached "
        "by_position survival prefix_law expected_accepted expected_progress over_text by_kind"
    ),
    "speed": "seconds_per_token speedup interval by_kind time_split expected_speedup break_even_acceptance clock",
    "quality": "texts identical identity_rate divergences findings not_tested likelihood metrics conclusion",
    "diagnosis": "by_position rejected_tokens causes cause_notes",
}


def test_shape(whole):
    assert list(whole) == ("schema header settings prompts processes complete steps modes conclusions digest".split())
    assert whole["prompts"]["count"] == 3 and whole["prompts"]["kinds"] == {"prose": 2, "code": 1}
    assert whole["settings"]["sampling"] == {"top_k": 5} and len(whole["settings"]["arms"]) == 4
    assert [mode["mode"] for mode in whole["modes"]] == ["greedy", "sampled"]
    for mode in ("greedy", "sampled"):
        for arm in arms(whole, mode).values():
            for part, fields in ARM_FIELDS.items():
                assert list(arm[part]) == fields.split(), part
    assert list(arms(whole, "greedy")) == ["small, K=1", "small, K=2", "small, default"]
    assert json.loads(json.dumps(whole, allow_nan=False)) == whole


def test_figures(whole):
    """Plain: 16, 17 and 18 s for 4 tokens, twice; assisted 8, 9 and 10."""
    greedy, mode = arms(whole, "greedy")["small, K=2"], whole["modes"][0]
    assert mode["plain"] == {
        "tokens": 24,
        "mean_length": 4.0,
        "seconds_per_token": {"mean": 4.25, "lower": 4.0625, "median": 4.25, "upper": 4.4375},
    }
    assert greedy["speed"]["speedup"] == pytest.approx(51 / 27)
    assert greedy["speed"]["interval"] is None
    assert greedy["acceptance"]["rate"] == 0.5 and greedy["acceptance"]["tokens_per_round"] == 1.5
    assert greedy["acceptance"]["tokens_per_target_forward"] == 4 / 3
    assert (greedy["quality"]["texts"], greedy["quality"]["identical"]) == (3, 3)
    assert greedy["diagnosis"]["causes"]["position"] == 1.0
    sampled = arms(whole, "sampled")
    assert sampled["small, K=2"]["quality"]["texts"] == 6
    assert sampled["small, K=2"]["quality"]["likelihood"]["mean"] == 0.0
    assert sampled["small, K=2, shared noise"]["quality"]["identity_rate"] == 1.0
    assert sampled["small, K=2, shared noise"]["quality"]["findings"] == []


def test_models(whole):
    """A draft token costs 1 beside a round's 5; a plain step (17 - 1) / 3, so 1.5 tokens make up for one draft."""
    (model,) = whole["modes"][0]["models"]
    step = 16 / 3
    assert model["from"] == "small, K=2" and model["lengths"] == [0, 1, 2]
    assert model["speedup"] == pytest.approx([1.0, 2 * step / 6, 2 * step / 7])
    assert model["best_length"] == 1
    assert [one["num_assistant_tokens"] for one in model["measured"]] == [1, 2]
    assert model["default"] == pytest.approx(51 / 27)
    kinds = [(one["coupling"], one["default"]) for one in whole["modes"][1]["models"]]
    assert kinds == [("maximal", pytest.approx(51 / 27)), ("shared_noise", None)]


# --- the digest


@pytest.mark.parametrize("seed", range(3))
def test_records_in_any_order_give_the_same_report(whole, seed):
    shuffled = RECORDS[:]
    random.Random(seed).shuffle(shuffled)
    assert in_order(shuffled) == in_order(RECORDS)
    assert report(shuffled) == whole


def test_slower_machines_have_another_report_and_the_same_digest(whole):
    slow = report(made(slow=3.0), processes=2)
    slow["header"] |= {"date": "tomorrow", "load_average": None}
    assert slow["conclusions"] != whole["conclusions"] and slow["modes"] != whole["modes"]
    assert slow["digest"] == digest(slow) == whole["digest"]


def changed(whole, change):
    other = copy.deepcopy(whole)
    change(other)
    return digest(other)


@pytest.mark.parametrize(
    "change",
    [
        lambda told: told["header"].update(processor="other"),
        lambda told: told["settings"].update(seed=1),
        lambda told: told["prompts"].update(sha256=""),
        lambda told: told.update(complete=False),
        lambda told: told["modes"][0]["plain"].update(tokens=0),
        lambda told: told["modes"][0]["arms"][0]["acceptance"].update(rate=0),
        lambda told: told["modes"][0]["arms"][1]["diagnosis"].update(causes={}),
        lambda told: told["modes"][0]["arms"][2]["quality"].update(texts=0),
        # sampled drafts whose length may not follow a clock
        lambda told: told["modes"][1]["arms"][2]["acceptance"].update(rate=0),
    ],
)
def test_what_the_digest_covers(whole, change):
    assert changed(whole, change) != whole["digest"]


@pytest.mark.parametrize(
    "change",
    [
        lambda told: told["modes"][0]["arms"][0]["speed"].update(speedup=0),
        lambda told: told["modes"][0]["models"].clear(),
        lambda told: told["modes"][0]["plain"].update(seconds_per_token=None),
        # greedy drafts whose length follows the clock
        lambda told: told["modes"][0]["arms"][2].update(acceptance=None, diagnosis=None),
    ],
)
def test_what_depends_on_a_clock_is_not_in_the_digest(whole, change):
    assert changed(whole, change) == whole["digest"]


# --- missing records


@pytest.mark.parametrize("share", [0.0, 0.02, 0.1, 0.3, 0.7, 0.95])
def test_part_of_the_records_is_a_report(share):
    part = report(RECORDS[: int(share * len(RECORDS))])
    assert not part["complete"] and json.dumps(part, allow_nan=False)
    assert any("is not complete" in sentence for sentence in part["conclusions"])


def test_any_records_are_a_report():
    for seed in range(5):
        some = random.Random(seed).sample(RECORDS, 12)
        assert report(some)["steps"]["done"] == 12


def test_nothing_at_all():
    nothing = report([])
    arm = arms(nothing, "sampled")["small, K=1"]
    speeds = [arm["speed"][name] for name in ("speedup", "interval", "time_split", "expected_speedup")]
    assert arm["acceptance"] is arm["quality"]["likelihood"] is None and speeds == [None] * 4
    assert arm["quality"]["conclusion"].startswith("Nothing is shown.")
    assert nothing["modes"][0]["models"] == [] and nothing["modes"][0]["plain"]["mean_length"] is None


def test_ways_that_were_refused():
    records = [one for one in RECORDS if (one.step.unit.mode, one.step.arm) != ("greedy", FIXED.name)]
    found = report(records, refused={"greedy": {FIXED.name: "It cannot."}})
    assert arms(found, "greedy")[FIXED.name]["refused"] == "It cannot."
    assert "refused" in arms(found, "greedy")[FIXED.name]["quality"]["conclusion"]
    assert arms(found, "sampled")[FIXED.name]["refused"] is None
    assert not any(FIXED.name in sentence for sentence in found["conclusions"][:1])


# --- what it says


def test_sentences(whole):
    speed, sampled, *qualities = whole["conclusions"]
    assert speed.startswith(
        "Greedy, small, K=1: 1.89 times the speed of plain decoding (too few batches for an interval)"
    )
    assert speed.endswith("the fastest of 3 ways as measured here; that it is any faster or slower is not shown.")
    assert sampled.startswith("Sampled, small, K=1: 1.89 times")
    assert "All 3 greedy texts are plain generate's" in qualities[0] and "Nothing speaks against" in qualities[1]


def test_faults_come_first():
    records = [one for one in RECORDS if one.step.kind != "compare"]
    told = [compare({LONGER.name: [FAULT], FIXED.name: [tie()]}, batch=0)]
    first, *rest = report([*records, *told])["conclusions"]
    assert first.startswith("Greedy, small, K=2: 1 of 1 greedy text") and "this is a fault" in first
    # a tie is no alarm
    assert any("at numerical ties" in sentence for sentence in rest)


def test_other_laws_come_first():
    alarm = Finding("next tokens", math.inf, 0.0, 0.05 / 3, math.inf, 0.9, "laws of {}")
    found = report(RECORDS, judged={("sampled", DEFAULT.name): [alarm]})
    assert found["conclusions"][0].startswith("Sampled, small, default: The law is not plain generate's")
    (finding, *_) = arms(found, "sampled")[DEFAULT.name]["quality"]["findings"]
    assert finding["statistic"] is finding["smallest"] is None and finding["differs"]


def test_all_ways_together_have_the_level_of_one(whole):
    """With many ways, one would else be called different by chance in most evaluations."""
    found = [one["alpha"] for arm in arms(whole, "sampled").values() for one in arm["quality"]["findings"]]
    assert set(found) == {0.05 / 3 / 3} and sum(found) <= 0.05


def test_a_word_on_the_ways_that_are_not_the_fastest(whole):
    greedy, sampled = whole["conclusions"][-2:]
    assert greedy.startswith("Greedy, all 3 ways: All 3 greedy texts are")
    assert sampled.endswith("In 3 other ways nothing was found either.")


def test_why_the_models_could_not_test():
    found = report(RECORDS, not_tested={"sampled": {FIXED.name: ["Too few prefixes."]}})
    assert arms(found, "sampled")[FIXED.name]["quality"]["not_tested"] == ["Too few prefixes."]


@pytest.mark.parametrize(
    ("speedup", "interval", "said"),
    [
        (
            1.5,
            [1.2, 1.7],
            "1.50 times the speed of plain decoding (95 % interval 1.20 to 1.70), the one way that was tried.",
        ),
        (1.1, [0.9, 1.3], "the one way that was tried; that it is any faster or slower is not shown."),
        (0.8, [0.7, 0.9], "the one way that was tried: drafting does not pay here."),
        (
            0.8,
            None,
            "(too few batches for an interval), the one way that was tried; that it is any faster or slower is "
            "not shown.",
        ),
    ],
)
def test_sentences_on_speed(whole, speedup, interval, said):
    arm = copy.deepcopy(arms(whole, "greedy")[FIXED.name])
    arm["speed"] |= {"speedup": speedup, "interval": interval}
    first, *_ = conclusions(
        {"complete": True, "steps": {"done": 1, "all": 1}, "modes": [{"mode": "greedy", "arms": [arm]}]}
    )
    assert first.endswith(said)


def test_metrics_are_loaded_by_name(monkeypatch):
    from hf_exactassist.evaluation import report as module
    from hf_exactassist.evaluation.metrics import Metric

    monkeypatch.setattr(module, "load_metric", lambda name: Metric(name, lambda text, reference: float(len(text))))
    monkeypatch.setattr(metrics, "FEWEST", 3)
    found = report(RECORDS, metrics=["Length"])
    quality = arms(found, "greedy")[FIXED.name]["quality"]
    assert quality["metrics"] == [] and "Length was not compared" in quality["not_tested"][-1]
    with_references = prompt_set("prose", "prose", "code", references=["a", "b", "c"])
    found = make_report(manifest(RECORDS), PLAN, with_references, RECORDS, {}, lambda t: "x" * len(t), ["Length"])
    (metric,) = arms(found, "greedy")[FIXED.name]["quality"]["metrics"]
    assert (metric["assisted"], metric["plain"], metric["prompts"]) == (4.0, 4.0, 3)
    assert any("Length is the same for all 3 prompts" in sentence for sentence in found["conclusions"])


def test_a_metric_that_differs_comes_first(whole):
    part = copy.deepcopy(whole)
    arm = arms(part, "greedy")[LONGER.name]
    arm["quality"]["metrics"] = [{"low": -2.0, "high": -1.0, "sentence": "Score differs: -1.5."}]
    assert alarms(part) == conclusions(part)[:1] == [f"Greedy, {LONGER.name}: Score differs: -1.5."]
