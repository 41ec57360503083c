"""`exactassist bench`: how fast a pair decodes here, and why."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from . import loading
from .bench_tables import show
from .console import UsageError, bar_with_time_left, quiet_libraries, reports_errors, say, to_stderr
from .prompts import read_prompts
from .threads import threads as torch_threads


if TYPE_CHECKING:
    from ..benchmark.prompts import Prompt


CLOCKS = ("cpu", "wall")
MODES = ("greedy", "sampled")
KINDS = ("prose", "code", "lists", "plays")
NUMBERS = (1, 2, 3, 5, 8)

_measuring = partial(typer.Option, rich_help_panel="Measuring")
_texts = partial(typer.Option, rich_help_panel="Texts")
_results = partial(typer.Option, metavar="FILE", rich_help_panel="Results")


@reports_errors
def bench(
    target: loading.Target = None,
    assistant: loading.Assistant = None,
    num_assistant_tokens: Annotated[
        list[int] | None,
        _measuring(
            "--num-assistant-tokens", "-k", min=1, help="Tokens per draft; may be repeated.", show_default="1 2 3 5 8"
        ),
    ] = None,
    mode: Annotated[
        list[str] | None,
        _measuring(metavar="MODE", help="greedy or sampled; may be repeated.", show_default="greedy"),
    ] = None,
    batch_size: Annotated[
        list[int] | None,
        _measuring("--batch-size", "-b", min=1, help="Prompts per call; may be repeated.", show_default="1"),
    ] = None,
    repeats: Annotated[int, _measuring(min=1, help="Timed runs of each variant; medians are told.")] = 5,
    threads: Annotated[int, _measuring(min=1, help="Torch threads.")] = 1,
    clock: Annotated[
        str | None,
        _measuring(
            metavar="CLOCK",
            help="Time to judge by: cpu or wall. Both are kept.",
            show_default="cpu for one thread on a CPU, else wall",
        ),
    ] = None,
    temperature: Annotated[float, _measuring(help="Of sampled calls.")] = 1.0,
    seed: Annotated[int, _measuring(min=0, help="Of sampled calls.")] = 0,
    without_transformers: Annotated[
        bool, _measuring("--without-transformers", help="Leave Transformers' own assisted generation out.")
    ] = False,
    max_new_tokens: Annotated[int, _texts("--max-new-tokens", "-n", min=2, help="Tokens per prompt.")] = 64,
    prompts: Annotated[
        Path | None,
        _texts(
            metavar="FILE",
            help='One prompt a line, or .jsonl with a field "prompt".',
            show_default="a few of each --kind",
        ),
    ] = None,
    kind: Annotated[
        list[str] | None,
        _texts(
            metavar="KIND",
            help=f"Built-in prompts: {', '.join(KINDS)}; may be repeated.",
            show_default="plays for the embedded target, else the others",
        ),
    ] = None,
    prompts_per_kind: Annotated[int, _texts(min=1, max=4, help="Built-in prompts of each kind.")] = 4,
    dtype: loading.Dtype = None,
    device: loading.Device = None,
    attn_implementation: loading.Attention = None,
    trust_remote_code: loading.TrustRemoteCode = False,
    json_file: Annotated[
        Path | None,
        _results("--json", help='Write all figures and samples as JSON; "-" is stdout, without the tables.'),
    ] = None,
    plot_file: Annotated[
        Path | None, _results("--plot", help="Write a picture of the speed-ups: .png, .svg or .pdf.")
    ] = None,
    debug: loading.Debug = False,
) -> None:
    """Measure plain and assisted decoding of a pair side by side, and say what drafting can bring.

    Ctrl-C ends the measurement and tells what there is.
    """
    modes, sizes = _each_once(mode or MODES[:1]), _each_once(batch_size or [1])
    _check_names("--mode", modes, MODES)
    _check_names("--kind", kind or [], KINDS)
    _check_names("--clock", [clock] if clock else [], CLOCKS)
    if not 0 < temperature < float("inf"):
        raise UsageError(f"--temperature must be a number above 0, got {temperature}.")
    if (target is None) != (assistant is None):
        raise UsageError("A pair has two models: give --target and --assistant, or neither for the embedded pair.")
    if prompts is not None and kind:
        raise UsageError("--prompts and --kind both say what to continue: choose one.")
    given = None if prompts is None else read_prompts([], prompts)
    _check_results(json_file, plot_file)
    with quiet_libraries(debug), torch_threads(threads):
        from ..benchmark.clocks import fitting_clock
        from ..benchmark.measuring import Plan, measure
        from ..benchmark.pair import Pair
        from ..benchmark.prompts import Prompt, built_in

        default_kinds = KINDS[3:] if target is None else KINDS[:3]
        texts = (
            [Prompt("given", text) for text in given]
            if given is not None
            else built_in(_each_once(kind or default_kinds), prompts_per_kind)
        )
        loaded = loading.load(
            target,
            assistant,
            dtype=dtype,
            device=device,
            attn_implementation=attn_implementation,
            trust_remote_code=trust_remote_code,
        )
        assert loaded.assistant is not None
        pair = Pair(loaded.target, loaded.tokenizer, loaded.assistant, loaded.assistant_tokenizer)
        plan = Plan(
            tuple(sorted(_each_once(num_assistant_tokens or NUMBERS))),
            tuple(modes),
            tuple(sizes),
            repeats,
            max_new_tokens,
            temperature,
            seed,
            not without_transformers,
        )
        header = _header(loaded)
        cases: list[Any] = []
        interrupted = False
        with _progress(plan.steps(texts)) as advance:
            try:
                measure(pair, plan, texts, cases, advance)
            except KeyboardInterrupt:
                interrupted = True
        report = _report(header, plan, texts, cases, clock or fitting_clock(pair.device, threads), interrupted)
    _write(report, json_file, plot_file)
    if interrupted:
        raise KeyboardInterrupt


def _each_once(values: Sequence[Any]) -> list[Any]:
    return list(dict.fromkeys(values))


def _check_names(option: str, given: Sequence[str], known: Sequence[str]) -> None:
    for name in given:
        if name not in known:
            raise UsageError(f"Unknown {option} {name!r}: choose one of {', '.join(known)}.")


def _check_results(json_file: Path | None, plot_file: Path | None) -> None:
    """Whether results can be written, before minutes are spent on them; what stands in the files stays until then."""
    if plot_file is not None:
        from ..benchmark.plot import why_no_plot

        reason = why_no_plot(plot_file)
        if reason:
            raise UsageError(reason)
    for option, file in (("--json", json_file), ("--plot", plot_file)):
        if file is None or (option == "--json" and str(file) == "-"):
            continue
        try:
            there = file.exists()
            file.open("a").close()
            if not there:
                file.unlink()
        except OSError as error:
            reason = error.strerror or str(error)
            raise UsageError(
                f"Cannot write {option} {file}: {reason}. Give a file in a folder that exists."
            ) from error


def _header(loaded: loading.Loaded) -> dict[str, Any]:
    """Where and on what is measured."""
    from ..benchmark.environment import described, environment

    return {
        **environment(loaded.target.device),
        "target": described(loaded.target, loaded.target_name),
        "assistant": described(loaded.assistant, loaded.assistant_name),
    }


def _report(
    header: dict[str, Any], plan: Any, texts: Sequence[Prompt], cases: Sequence[Any], clock: str, interrupted: bool
) -> dict[str, Any]:
    from dataclasses import asdict

    from ..benchmark.environment import load_average
    from ..benchmark.report import figures

    return {
        "schema": 1,
        "header": {**header, "load_average_after": load_average()},
        "settings": {**asdict(plan), "clock": clock},
        "interrupted": interrupted,
        "prompts": [asdict(text) for text in texts],
        "cases": [figures(case, clock) for case in cases],
    }


def _write(report: dict[str, Any], json_file: Path | None, plot_file: Path | None) -> None:
    if plot_file is not None:
        from ..benchmark.plot import plot

        plot(report, plot_file)
    if json_file is not None and str(json_file) == "-":
        typer.echo(json.dumps(report))
        return
    if json_file is not None:
        json_file.write_text(json.dumps(report) + "\n", encoding="utf-8")
    show(report)
    for file in (json_file, plot_file):
        if file is not None:
            say(f"Written: {file}")


@contextmanager
def _progress(total: int) -> Iterator[Callable[[], None]]:
    """A progress bar with the time to come on stderr, if that is a terminal."""
    console = to_stderr()
    if not console.is_terminal:
        yield lambda: None
        return
    with bar_with_time_left() as progress:
        task = progress.add_task("measuring", total=total)
        yield lambda: progress.advance(task)
