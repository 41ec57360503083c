"""The figures of a benchmark as tables."""

from __future__ import annotations

from typing import Any


def show(report: dict[str, Any]) -> None:
    """Writes where it was measured, and a table and a sentence for each case, to stdout.

    Args:
        report (`dict[str, Any]`): what `--json` writes.
    """
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False, soft_wrap=True)
    for line in header_lines(report):
        console.print(Text(line, style="dim"))
    for case in report["cases"]:
        console.print()
        _show_case(console, case, report)


def header_lines(report: dict[str, Any]) -> list[str]:
    """What the figures depend on."""
    header, settings = report["header"], report["settings"]
    target, assistant = header["target"], header["assistant"]
    clock = {"cpu": "CPU time", "wall": "wall time"}[settings["clock"]]
    place = header["accelerator"] or f"{header['processor']} ({header['cpus']} CPUs)"
    loads = [header[name] for name in ("load_average", "load_average_after")]
    load = "" if None in loads else f"; load average {loads[0][0]} before, {loads[1][0]} after"
    threads = _counted(header["threads"], "thread")
    return [
        f"{target['name']} ({target['parameters'] / 1e6:.1f} M, {target['dtype']}, {target['attention']}) + "
        f"{assistant['name']} ({assistant['parameters'] / 1e6:.1f} M, {assistant['dtype']})",
        f"{place}, {header['system']}, {header['device']}, {threads}{load}",
        f"hf_exactassist {header['hf_exactassist']}, transformers {header['transformers']}, torch {header['torch']}, "
        f"Python {header['python']}",
        f"{_counted(len(report['prompts']), 'prompt')}, up to {settings['max_new_tokens']} tokens each; {clock}, "
        f"medians over {_counted(settings['repeats'], 'repeat')}, all variants in turn",
    ]


def _show_case(console: Any, case: dict[str, Any], report: dict[str, Any]) -> None:
    from rich.table import Table
    from rich.text import Text

    broken_off = (
        "" if case["repeats"] == report["settings"]["repeats"] else f", {_counted(case['repeats'], 'whole repeat')}"
    )
    console.print(Text(f"{case['mode'].capitalize()}, batch size {case['batch_size']}{broken_off}", style="bold"))
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    headings = ("", "ms per\ntoken", "\nquartiles", "speed-\nup", "forwards\nalone", "tokens/\nround", "effi-\nciency")
    for heading in (*headings, "inside\nforwards"):
        table.add_column(heading, justify="right" if heading else "left", no_wrap=True)
    for one in case["variants"]:
        if one["measured"] is not None:
            table.add_row(*_cells(one))
    if case["repeats"]:
        console.print(table)
        for line in text_lines(case["variants"]):
            console.print(Text(line))
    for reason in dict.fromkeys(one["reason"] for one in case["variants"] if one["reason"]):
        names = "; ".join(one["name"] for one in case["variants"] if one["reason"] == reason)
        console.print(Text(f"Without {names}: {reason}.", style="dim"))
    for line in _forward_lines(case):
        console.print(Text(line))
    kinds = case["variants"][0]["by_kind"]
    if len(kinds) > 1:
        console.print(_kinds(case, list(kinds)))
    if case["advice"]:
        console.print(Text(case["advice"], style="green"))


def _cells(variant: dict[str, Any]) -> list[str]:
    measured, rounds, inside = variant["measured"], variant["rounds"] or {}, variant["inside"]
    seconds = measured["seconds_per_token"]
    return [
        variant["name"],
        f"{1e3 * seconds['median']:.2f}",
        f"{1e3 * seconds['lower']:.2f}-{1e3 * seconds['upper']:.2f}",
        f"{measured['speedup']:.2f}",
        *(_number(rounds.get(name)) for name in ("expected_speedup", "tokens_per_round", "efficiency")),
        "-" if inside is None else f"{inside['forward_share']:.0%}",
    ]


def text_lines(variants: list[dict[str, Any]]) -> list[str]:
    """Whether greedy texts are the plain ones, and where not; nothing for sampled ones.

    Args:
        variants (`list[dict[str, Any]]`): those of a case.
    """
    compared = [one for one in variants if one["text"] is not None and one["kind"] != "plain"]
    lines = []
    for one in compared:
        found = one["text"]["first_difference"]
        if found is not None:
            where = f"token {found['position'] + 1} of prompt {found['prompt'] + 1}"
            ties = ((one["rounds"] or {}).get("stats") or {}).get("near_ties")
            why = f" ({_counted(ties, 'near tie')}, where half precision can decide)" if ties else ""
            lines.append(f"Text of {one['name']}: differs from plain at {where}{why}")
    same = [one["name"] for one in compared if one["text"]["identical"]]
    if same:
        lines.append(f"Text of {'; '.join(same) if lines else 'all variants'}: identical to plain")
    return lines


def _forward_lines(case: dict[str, Any]) -> list[str]:
    forwards, acceptance = case["forwards"], case["acceptance"]
    lines = []
    if forwards["target"] is None:
        lines.append(f"Single forwards were not timed: {forwards['reason']}")
    else:
        widths = ", ".join(f"{width}: {1e3 * one['median']:.2f}" for width, one in forwards["target"].items())
        step = 1e3 * forwards["draft_step"]["median"]
        ratio = forwards["cost_ratio"]
        lines.append(f"Target forward by width, ms: {widths}; draft step {step:.2f}, {ratio:.2f} of a target step")
        needed = [f"{_number(value)} at K={k}" for k, value in forwards["break_even_acceptance"].items()]
        lines.append(f"Acceptance at which forwards alone break even: {', '.join(needed)}")
    if acceptance is not None:
        chances = " ".join(f"{chance:.2f}" for chance in acceptance["by_position"])
        lines.append(f"Measured acceptance by draft position, each given those before it: {chances}")
    return lines


def _kinds(case: dict[str, Any], kinds: list[str]) -> Any:
    """Speed-ups by kind of text, with accepted tokens per round."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    table.add_column("speed-up (accepted per round)")
    for kind in kinds:
        table.add_column(kind, justify="right")
    for one in case["variants"]:
        if one["by_kind"] and one["kind"] != "plain":
            cells = []
            for kind in kinds:
                found = one["by_kind"][kind]
                per_round = found["accepted_per_round"]
                cells.append(f"{found['speedup']:.2f}" + ("" if per_round is None else f" ({per_round:.2f})"))
            table.add_row(one["name"], *cells)
    return table


def _counted(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
