"""`exactassist demo`: plain and assisted decoding side by side, on the embedded pair."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from . import loading
from .console import CommandError, UsageError, counting, quiet_libraries, reports_errors
from .report import accepted_per_round, counters
from .threads import threads as torch_threads


if TYPE_CHECKING:
    import torch


TEMPERATURE = 0.8


@reports_errors
def demo(
    max_new_tokens: Annotated[int, typer.Option("--max-new-tokens", "-n", min=1, help="Tokens to generate.")] = 128,
    prompt: Annotated[str | None, typer.Option(help="Text to continue.", show_default="one of the pair's own")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Fixes the sampled example.")] = 0,
    threads: Annotated[int, typer.Option(min=1, help="Torch threads; small models gain nothing from several.")] = 1,
    runs: Annotated[int, typer.Option(min=1, help="Timed runs of each; the median is told.")] = 5,
    num_assistant_tokens: Annotated[int, typer.Option(min=1, help="Tokens drafted per round.")] = 3,
    as_json: loading.AsJson = False,
    debug: loading.Debug = False,
) -> None:
    """Decode a prompt with and without the assistant: the same text, and how fast each was.

    Exit code 1 if the two greedy texts differ.
    """
    if prompt == "":
        raise UsageError("--prompt is empty: give it at least one character.")
    with quiet_libraries(debug), torch_threads(threads):
        report = _compare(prompt, max_new_tokens, seed, runs, num_assistant_tokens)
    if as_json:
        typer.echo(json.dumps(report))
    else:
        _show(report)
    if not report["equal"]:
        raise CommandError("The assisted tokens differ from the plain ones, which must never be: please report it.")


def _compare(prompt: str | None, max_new_tokens: int, seed: int, runs: int, number: int) -> dict[str, Any]:
    """Interleaved runs of both, and a sampled one."""
    from ..api import generate
    from ..demo import PROMPTS

    loaded = loading.load(None, None, dtype="float32", device="cpu")
    target, tokenizer = loaded.target, loaded.tokenizer
    text = prompt or PROMPTS[0]
    inputs = tokenizer(text, return_tensors="pt")
    length = inputs["input_ids"].shape[1]
    common = {**inputs, "max_new_tokens": max_new_tokens, "return_dict_in_generate": True}
    drafted: dict[str, Any] = {"assistant_model": loaded.assistant, "num_assistant_tokens": number}

    def plain() -> Any:
        return target.generate(**common, do_sample=False)

    def assisted() -> Any:
        return generate(target, **common, **drafted, do_sample=False)

    seconds: dict[str, list[float]] = {"plain": [], "assisted": []}
    with counting("decoding", 2 * (runs + 1)) as advance:
        for turn in range(runs + 1):
            expected, taken = _timed(plain, advance)
            output, taken_assisted = _timed(assisted, advance)
            # the first turn warms up
            if turn:
                seconds["plain"].append(taken)
                seconds["assisted"].append(taken_assisted)
    sampled = generate(target, **common, **drafted, do_sample=True, temperature=TEMPERATURE, top_k=0, seed=seed)
    median = {name: statistics.median(times) for name, times in seconds.items()}
    tokens, sampled_tokens = expected.sequences[0, length:], sampled.sequences[0, length:]

    def decode(ids: torch.Tensor) -> str:
        return tokenizer.decode(ids, skip_special_tokens=True)

    return {
        "prompt": text,
        "text": decode(tokens),
        "new_tokens": len(tokens),
        "equal": expected.sequences.tolist() == output.sequences.tolist(),
        "assisted_text": decode(output.sequences[0, length:]),
        "runs": runs,
        "plain": {
            "seconds": median["plain"],
            "tokens_per_second": len(tokens) / median["plain"],
            # one for the prompt, which gives the first token
            "target_forwards": len(tokens),
        },
        "assisted": counters(output.assist_stats, median["assisted"]),
        "speedup": median["plain"] / median["assisted"],
        "sampled": {
            "seed": seed,
            "temperature": TEMPERATURE,
            "text": decode(sampled_tokens),
            "accepted_per_round": accepted_per_round(sampled.assist_stats),
        },
    }


def _timed(call: Callable[[], Any], advance: Callable[[], None]) -> tuple[Any, float]:
    began = time.perf_counter()
    output = call()
    seconds = time.perf_counter() - began
    advance()
    return output, seconds


def _show(report: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.panel import Panel
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False)
    plain, assisted, sampled = report["plain"], report["assisted"], report["sampled"]

    def page(new: str) -> Text:
        return Text(report["prompt"], style="dim").append(new, style="not dim")

    if report["equal"]:
        title = f"plain = assisted: the same {report['new_tokens']} greedy tokens"
        console.print(Panel(page(report["text"]), title=title))
    else:
        console.print(Panel(page(report["text"]), title="plain"))
        console.print(Panel(page(report["assisted_text"]), title="assisted"))
    table = Table(box=None, pad_edge=False)
    for heading in ("", "plain", "assisted"):
        table.add_column(heading, justify="left" if not heading else "right")
    table.add_row("tokens per second", f"{plain['tokens_per_second']:.1f}", f"{assisted['tokens_per_second']:.1f}")
    table.add_row("seconds", f"{plain['seconds']:.3f}", f"{assisted['seconds']:.3f}")
    table.add_row("target forwards", str(plain["target_forwards"]), str(assisted["target_forwards"]))
    table.add_row("accepted per round", "-", f"{assisted['accepted_per_round']:.2f}")
    table.add_row("accepted of drafted", "-", f"{assisted['accepted']} of {assisted['drafted']}")
    table.add_row("speed-up", "1.00", f"{report['speedup']:.2f}")
    console.print(table)
    console.print(f"Medians of {report['runs']} interleaved runs.", style="dim")
    title = f"sampled at temperature {sampled['temperature']} with seed {sampled['seed']}: the target's law"
    console.print(Panel(page(sampled["text"]), title=title))
    console.print(f"{sampled['accepted_per_round']:.2f} accepted per round.", style="dim")
