"""Speed-up against draft length, as a picture. Needs matplotlib, which the extra `bench` brings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .variants import OURS, TRANSFORMERS


def why_no_plot(file: Path) -> str:
    """Why a picture cannot be written; empty if it can, as far as its name and the installation tell."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
    except ImportError:
        return "Plots need matplotlib: pip install 'hf-exactassist[bench]'."
    kinds = sorted(FigureCanvasAgg.filetypes)
    if file.suffix.lower().removeprefix(".") not in kinds:
        return f"Plots cannot be written as {file.name!r}: end the name in one of .{', .'.join(kinds)}."
    return ""


def plot(report: dict[str, Any], file: Path) -> None:
    """Draws one panel per case.

    Args:
        report (`dict[str, Any]`): with `header` and `cases` as `exactassist bench` writes them.
        file (`Path`): a picture, its kind told by the ending.

    Raises:
        OSError: it cannot be written.
    """
    from matplotlib.figure import Figure

    cases = report["cases"]
    figure = Figure(figsize=(5.5 * max(1, len(cases)), 4.2), layout="constrained")
    panels = figure.subplots(1, max(1, len(cases)), squeeze=False)[0]
    for panel, case in zip(panels, cases, strict=False):
        _panel(panel, case)
    header = report["header"]
    figure.suptitle(f"{header['target']['name']} + {header['assistant']['name']}", fontsize="medium")
    figure.savefig(file, dpi=150)


def _panel(panel: Any, case: dict[str, Any]) -> None:
    panel.axhline(1.0, color="grey", linewidth=0.8)
    for kind, label, style in ((OURS, "fixed K", "o-"), (TRANSFORMERS, "Transformers, fixed K", "s--")):
        found = [one for one in case["variants"] if one["kind"] == kind and one["measured"] is not None]
        fixed = [one for one in found if one["num_assistant_tokens"] is not None]
        if fixed:
            middle = [one["measured"]["speedup"] for one in fixed]
            spread = [one["measured"]["speedup_of_repeats"] for one in fixed]
            # quartiles are of the repeats' own ratios, which can lie to one side of the ratio of medians
            below = [max(0.0, value - one["lower"]) for value, one in zip(middle, spread, strict=True)]
            above = [max(0.0, one["upper"] - value) for value, one in zip(middle, spread, strict=True)]
            lengths = [one["num_assistant_tokens"] for one in fixed]
            panel.errorbar(lengths, middle, yerr=[below, above], fmt=style, capsize=2, label=label)
        for one in found:
            if one["num_assistant_tokens"] is None:
                panel.axhline(one["measured"]["speedup"], color="tab:green", label="defaults")
    expected = (case["acceptance"] or {}).get("expected_speedup")
    if expected:
        panel.plot(list(expected), list(expected.values()), ":", color="black", label="forwards alone (model)")
    panel.set_title(f"{case['mode']}, batch size {case['batch_size']}", fontsize="small")
    panel.set_xlabel("K, tokens per draft")
    panel.set_ylabel("speed-up over plain")
    if panel.get_legend_handles_labels()[0]:
        panel.legend(fontsize="small")
