"""`exactassist evaluate`: what a pair brings on someone's own data, and whether anything changes."""

from __future__ import annotations

import json
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import ProcessEnded
from . import loading
from .console import (
    CommandError,
    quiet_datasets,
    quiet_libraries,
    reports_errors,
    say,
    terminated_like_interrupted,
)
from .evaluate_options import KINDS, MODES, Data, Decoding, Drafters, Sampling, require_packages
from .evaluate_progress import progress
from .evaluate_tables import show
from .threads import threads as torch_threads


if TYPE_CHECKING:
    from ..evaluation.data import PromptSet
    from ..evaluation.models import Models
    from ..evaluation.processes import Processes


NUMBERS = (1, 3, 5)

_data = partial(typer.Option, rich_help_panel="Data")
_decoding = partial(typer.Option, rich_help_panel="Decoding")
_sampling = partial(typer.Option, rich_help_panel="Sampling", show_default="the target's own setting")
_results = partial(typer.Option, rich_help_panel="Results")


@reports_errors
def evaluate(
    target: loading.Target = None,
    assistant: Annotated[
        list[str] | None,
        typer.Option(
            "--assistant",
            "-a",
            metavar="MODEL",
            help="Folder or Hub id of a smaller model; may be repeated.",
            rich_help_panel="Models",
        ),
    ] = None,
    prompt_lookup: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Also draft N tokens from the text itself.", rich_help_panel="Models"),
    ] = None,
    dtype: loading.Dtype = None,
    device: loading.Device = None,
    attn_implementation: loading.Attention = None,
    trust_remote_code: loading.TrustRemoteCode = False,
    dataset: Annotated[
        str | None,
        _data(
            metavar="DATA",
            help="File (.json, .jsonl, .parquet, .csv, .txt), folder or Hub id.",
            show_default="the prompts that ship",
        ),
    ] = None,
    config: Annotated[str | None, _data(metavar="NAME", help="Configuration of the data set.")] = None,
    split: Annotated[str | None, _data(metavar="NAME", help="Split of the data set.")] = None,
    column: Annotated[
        str | None, _data(metavar="NAME", help="Column of the prompts.", show_default="prompt, text or messages")
    ] = None,
    template: Annotated[
        str | None, _data(metavar="TEXT", help='Prompts of several columns: "Translate: {source}".')
    ] = None,
    chat: Annotated[bool, _data("--chat", help="Put each prompt into the tokenizer's chat template.")] = False,
    kind_column: Annotated[str | None, _data(metavar="NAME", help="Column of the kind or domain.")] = None,
    reference_column: Annotated[str | None, _data(metavar="NAME", help="Column of good continuations.")] = None,
    limit: Annotated[int | None, _data(min=1, help="Prompts at most.", show_default="all")] = None,
    shuffle_seed: Annotated[
        int | None, _data(help="Take rows in the order of this number.", show_default="as they are")
    ] = None,
    kind: Annotated[
        list[str] | None,
        _data(metavar="KIND", help=f"Prompts that ship: {', '.join(KINDS)}; may be repeated.", show_default="all"),
    ] = None,
    prompts_per_kind: Annotated[int | None, _data(min=1, max=8, help="Of those, each.", show_default="8")] = None,
    mode: Annotated[
        list[str] | None,
        _decoding(metavar="MODE", help="greedy or sampled; may be repeated.", show_default="both"),
    ] = None,
    num_assistant_tokens: Annotated[
        list[int] | None,
        _decoding(
            "--num-assistant-tokens", "-k", min=1, help="Tokens per draft; may be repeated.", show_default="1 3 5"
        ),
    ] = None,
    no_default: Annotated[
        bool, _decoding("--no-default", help="Leave out drafts as long as pays, which is the library's default.")
    ] = False,
    coupling: Annotated[
        list[str] | None,
        _decoding(metavar="NAME", help="maximal or shared_noise; may be repeated.", show_default="maximal"),
    ] = None,
    layout: Annotated[
        list[str] | None,
        _decoding(metavar="NAME", help="replay or retained; may be repeated.", show_default="replay"),
    ] = None,
    max_new_tokens: Annotated[int, _decoding("--max-new-tokens", "-n", min=2, help="Tokens per prompt.")] = 64,
    batch_size: Annotated[int, _decoding("--batch-size", "-b", min=1, help="Prompts per call.")] = 1,
    repeats: Annotated[int, _decoding(min=1, help="Times over; sampled texts are others each time.")] = 1,
    threads: Annotated[int, _decoding(min=1, help="Torch threads.")] = 1,
    temperature: Annotated[float | None, _sampling(help="Above 0; lower is more predictable.")] = None,
    top_k: Annotated[int | None, _sampling(min=0, help="Best tokens to choose from; 0 is all.")] = None,
    top_p: Annotated[float | None, _sampling(min=0.0, max=1.0, help="Probability to choose from.")] = None,
    min_p: Annotated[
        float | None, _sampling(min=0.0, max=1.0, help="Least share of the best token's probability.")
    ] = None,
    repetition_penalty: Annotated[
        float | None, _sampling(help="Above 0; 1 is none. Greedy decoding heeds it too.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of sampled calls.", rich_help_panel="Sampling")] = 0,
    metric: Annotated[
        list[str] | None,
        _results(metavar="NAME", help="Metric of `evaluate`, by name or path, against references; may be repeated."),
    ] = None,
    out: Annotated[
        Path, _results(metavar="DIR", help="Folder of the results. One that holds the beginning goes on.")
    ] = Path("exactassist-evaluation"),
    overwrite: Annotated[bool, _results("--overwrite", help="Delete the evaluation in the folder first.")] = False,
    as_json: Annotated[bool, _results("--json", help="Write the report to stdout instead of tables.")] = False,
    debug: loading.Debug = False,
) -> None:
    """Decode prompts plainly and with assistance; report what that brings, and whether texts or their law change.

    Ctrl-C and SIGTERM keep what is done, and the same command goes on. Several processes share the work under
    `accelerate launch -m hf_exactassist evaluate ...`.
    """
    drafters = Drafters(target, tuple(dict.fromkeys(assistant or [])), prompt_lookup)
    data = Data(
        dataset, config, split, column, template, chat, kind_column, reference_column, limit, shuffle_seed,
        tuple(dict.fromkeys(kind or [])), prompts_per_kind,
    )  # fmt: skip
    decoding = Decoding(
        tuple(dict.fromkeys(mode or MODES)),
        tuple(sorted(set(num_assistant_tokens))) if num_assistant_tokens else None,
        not no_default,
        tuple(dict.fromkeys(coupling or [])),
        tuple(dict.fromkeys(layout or [])),
        Sampling(temperature, top_k, top_p, min_p, repetition_penalty),
    )
    drafters.check()
    data.check(metric or [])
    decoding.check(drafters)
    require_packages()
    # before threads are set: it may set them too
    processes = _processes(device)
    with quiet_libraries(debug), quiet_datasets(), torch_threads(threads):
        from ..evaluation.folder import Folder
        from ..evaluation.metrics import load_metric, not_compared

        Folder(out).require_ours()
        for name in metric or []:
            load_metric(name)
        loader = loading.Loader(
            dtype, processes.device if device is None else device, attn_implementation, trust_remote_code
        )
        tokenizer = loader.tokenizer("target", target)
        prompts = data.prompts(tokenizer)
        if metric and not any(prompt.reference is not None for prompt in prompts.prompts):
            raise CommandError("--metric compares with references, and no prompt has one: see --reference-column.")
        plan = decoding.plan([*drafters.names()], prompt_lookup, NUMBERS, max_new_tokens, batch_size, repeats, seed)
        models = _models(loader, drafters, tokenizer)
        report = _evaluated(models, prompts, plan, out, metric or [], overwrite, processes)
    if report is None:
        return
    if as_json:
        typer.echo(json.dumps(report))
    else:
        show(report)
        say(f"Written: {', '.join(str(out / name) for name in ('report.html', 'report.md', 'report.json'))}")
    for sentence in not_compared(report):
        say(sentence, "yellow")


def _processes(device: str | None) -> Processes:
    from ..evaluation.processes import started_processes

    return started_processes(loading.device_of(device).type == "cpu")


def _models(loader: loading.Loader, drafters: Drafters, tokenizer: Any) -> Models:
    from ..evaluation.models import Assistant, Models

    target = loader.model("target", drafters.target)
    assistants = {
        name: Assistant(loader.model("assistant", path), loader.tokenizer_if_any("assistant", path))
        for name, path in drafters.names().items()
    }
    return Models(target, tokenizer, assistants, drafters.target or "embedded")


def _evaluated(
    models: Models,
    prompts: PromptSet,
    plan: Any,
    out: Path,
    metrics: list[str],
    overwrite: bool,
    processes: Processes,
) -> dict[str, Any] | None:
    from ..evaluation.running import evaluate as run

    # the others have nothing to write at the end, and a wait for the first is left by the signal alone
    ends = terminated_like_interrupted() if processes.is_first else nullcontext()
    report, before = out / "report.json", _written(out / "report.json")
    try:
        with ends, progress(processes.is_first) as told:
            return run(
                models,
                prompts,
                plan,
                out,
                metrics=metrics,
                overwrite=overwrite,
                progress=told,
                processes=processes,
            )
    except ProcessEnded:
        if processes.is_first:
            raise
        # the one that ended has told why
        raise typer.Exit(1) from None
    except KeyboardInterrupt:
        if processes.is_first:
            more = " without --overwrite" if overwrite else ""
            # none if this has interrupted the report itself
            reported = ", with a report of it" if _written(report) != before else ""
            say(f"What is done is kept in {out}{reported}; the same command{more} goes on.", "yellow")
        raise


def _written(file: Path) -> int | None:
    return file.stat().st_mtime_ns if file.exists() else None
