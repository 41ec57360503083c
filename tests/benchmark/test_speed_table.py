"""The speed table on made-up measurements; nothing is timed here."""

import json

import pytest
import torch

from hf_exactassist.benchmark.clocks import Taken
from hf_exactassist.benchmark.forwards import Forwards
from hf_exactassist.benchmark.variants import OURS, TRANSFORMERS, Variant
from tools.speed import page, pairs, parts
from tools.speed.lengths import is_hopeless
from tools.speed.lines import LINES, ROWS, Figure
from tools.speed.memory import Held
from tools.speed.overhead import ready_pair
from tools.speed.runs import Call, Runs


OURS_, THEIRS = Variant(OURS, 2), Variant(TRANSFORMERS, 2)
HEADER = {
    "date": "2026-01-02T03:04:05+00:00",
    "accelerator": None,
    "processor": "P",
    "cpus": 2,
    "system": "S",
    "threads": 1,
    "clock": "CPU time",
    "hf_exactassist": "1",
    "transformers": "5",
    "torch": "2",
    "python": "3",
}


def by_name(name):
    return next(line for line in LINES if line.name == name)


@pytest.fixture
def runs():
    """Three repeats of one call each; a step takes 10 s, a block of three 12 s, a draft step 1 s, prompts 6 s."""

    def taken(seconds):
        return Taken(seconds, 2 * seconds)

    forwards = Forwards(taken(5.0), taken(1.0), {1: (taken(10.0),), 3: (taken(12.0),)}, (taken(1.0),))
    calls = {
        OURS_: [[Call(seconds, 11, {2: 4, 1: 1}, 0.9, ((0,) * 11,))] for seconds in (100.0, 80.0, 90.0)],
        THEIRS: [[Call(seconds, 11, {2: 5}, 0.8, ((0,) * 10 + (1,),))] for seconds in (108.0, 135.0, 120.0)],
    }
    return Runs(calls, [(0, forwards)])


def test_ratios_are_of_medians_and_their_spread_is_that_of_repeats(runs):
    assert runs.speedup(OURS_, THEIRS) == pytest.approx(120 / 90)
    assert runs.speedups(OURS_, THEIRS).lower == pytest.approx((1.08 + 120 / 90) / 2)
    assert runs.share(OURS_).median == pytest.approx(0.9)
    assert runs.differing(OURS_, THEIRS) == 3
    # our first token comes with the prompt
    assert [runs.tokens_per_round(way) for way in (OURS_, THEIRS)] == pytest.approx([10 / 5, 11 / 5])


def test_efficiency_is_forwards_alone_over_time_behind_prompts(runs):
    # four rounds of 2 + 12 s, and one with a block of two, which lies halfway between the measured widths
    assert runs.efficiency(OURS_).median == pytest.approx((4 * 14 + 12) / (90 - 6))
    # Transformers reads its first block with the prompt
    assert runs.efficiency(THEIRS).median == pytest.approx((5 * 14 - 12) / (120 - 6))


def test_every_line_comes_from_one_part():
    names = [line for part in parts.PARTS for line in part.lines.values()]
    assert sorted(names) == sorted(line.name for line in LINES)
    assert len({part.name for part in parts.PARTS}) == len(parts.PARTS)
    assert "".join(ROWS) == "abcdefghi"


def test_rows_and_lines_choose_parts():
    assert parts.chosen([]) == list(parts.PARTS)
    assert [part.name for part in parts.chosen(["a"])] == ["tiny-49k-sampled"]
    assert [part.name for part in parts.chosen(["f-70-code", "d-8k"])] == [
        "tiny-8k-greedy",
        "tiny-8k-sampled",
        "f-70-code",
    ]
    assert len(parts.chosen(["f"])) == 9
    with pytest.raises(KeyError, match="f-7"):
        parts.chosen(["f-7"])


def test_a_target_is_met_by_what_the_table_shows():
    assert by_name("a").is_met(0.9551) and not by_name("a").is_met(0.9549)
    assert by_name("c-greedy").is_met(0.9916) and not by_name("c-greedy").is_met(0.9914)
    assert by_name("h-greedy").is_met(1.1) and not by_name("h-greedy").is_met(1.11)
    assert by_name("b").bound() == ">= 1.00" and by_name("i-full").bound() == "<= 1.00"


def test_parts_are_merged_and_better_figures_stay(tmp_path):
    def written(part, entry):
        page.write(tmp_path, page.merged(page.read(tmp_path), part, entry), {})
        return json.loads((tmp_path / page.RESULTS).read_text())["parts"]

    def figure(value, quick=False):
        return page.measured(HEADER, quick, 1.0, {"h-greedy": Figure(value)})

    skipped = page.skipped(["h-greedy"], "no reason")
    assert written("h-greedy", skipped)["h-greedy"]["skipped"] == "no reason"
    assert written("h-greedy", figure(1.0, quick=True))["h-greedy"]["quick"]
    assert written("h-greedy", figure(1.1))["h-greedy"]["lines"]["h-greedy"]["value"] == 1.1
    for worse in (figure(1.2, quick=True), skipped):
        assert written("h-greedy", worse)["h-greedy"]["lines"]["h-greedy"]["value"] == 1.1
    assert written("h-greedy", figure(1.05))["h-greedy"]["lines"]["h-greedy"]["value"] == 1.05
    assert set(written("memory", figure(1.0))) == {"h-greedy", "memory"}


def test_page_tells_what_is_met_and_why_not():
    figures = {"a": Figure(0.8, 0.7, 0.9, "a note"), "d-49k-sampled": Figure(1.3)}
    results = {"parts": {"tiny-49k-sampled": page.measured(HEADER, False, 1.0, figures)}}
    results["parts"]["large-greedy"] = page.skipped(["c-greedy", "d-large-greedy"], "models are missing")
    reasons = {"a": "a | reason", "d": "not asked for"}
    table = [page._entry(line, results, reasons) for line in LINES]
    text = page.markdown(results, table)
    rows = {line.split(" | ")[0].strip("| "): line for line in text.splitlines() if line.startswith("|")}
    assert rows["a"].endswith("| >= 0.96 | 0.80 (0.70 to 0.90) | **no** | a note; a \\| reason |")
    assert rows["d-49k-sampled"].endswith("| >= 1.18 | 1.30 | yes |  |")
    assert rows["c-greedy"].endswith("| - | - | not measured: models are missing |")
    assert rows["b"].endswith("| - | - | not measured |")
    assert "* 2026-01-02: P (2 CPUs), S, 1 thread, CPU time; hf_exactassist 1, transformers 5" in text


def test_quick_figures_are_called_so():
    entry = page.measured(HEADER, True, 1.0, {"a": Figure(0.99)})
    (told,) = (page._entry(line, {"parts": {"x": entry}}, {}) for line in LINES if line.name == "a")
    assert told["met"] and told["remarks"] == "a quick trial, not to be relied on"


def test_reasons_belong_to_lines():
    assert set(json.loads(page.REASONS.read_text())) <= {line.name for line in LINES} | set(ROWS)


def test_a_tiny_target_computes_what_is_in_its_corner():
    torch.manual_seed(0)
    narrow, wide = (pairs._llama(60, **sizes) for sizes in (pairs._NARROW, pairs._WIDE))
    ids = torch.arange(24)[None]
    with torch.no_grad():
        own = wide(ids).logits
        torch.testing.assert_close(pairs.widened(narrow, wide)(ids).logits, narrow(ids).logits, rtol=1e-4, atol=1e-4)
        assert (own - wide(ids).logits).abs().max() > 1


def test_a_wrong_draft_likes_least_what_the_assistant_likes_most():
    pair = pairs.tiny(64)
    ids = torch.arange(10)[None]
    with torch.no_grad():
        wrong, right = (one.assistant(ids).logits for one in (pairs.never_right(pair), pair))
    torch.testing.assert_close(wrong, -right)


def test_a_ready_model_answers_without_computing():
    pair = ready_pair()
    pair.target.ready = pair.assistant.ready = True
    made = pair.target.generate(torch.tensor([[1, 2, 3]]), max_new_tokens=4, do_sample=False)
    assert len(set(made[0, 3:].tolist())) == 1
    drafted = pair.assistant.generate(torch.tensor([[1, 2, 3]]), max_new_tokens=8, do_sample=False)[0, 3:].tolist()
    favourite = made[0, 3].item()
    assert [token == favourite for token in drafted] == [True, True, True, False] * 2


def test_longer_drafts_end_after_two_slow_ones():
    assert not is_hopeless([10, 8, 9, 9.1])
    assert not is_hopeless([10, 8, 10])
    assert is_hopeless([10, 8, 10, 11])
    assert not is_hopeless([10, 12])


def test_allowed_memory():
    assert Held(100, 110, None, "").over_allowed == pytest.approx(1)
    assert Held(63, 69, 64, "").over_allowed == pytest.approx(1)
