"""`exactassist check`: whether a pair can be decoded exactly, and how."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from . import loading
from .console import UsageError, one_line, quiet_libraries, reports_errors, working
from .sample import read_sample


if TYPE_CHECKING:
    from transformers import PreTrainedModel


# more tells little more, and logits of large vocabularies fill memory
_MOST_TOKENS = 512


@reports_errors
def check(
    target: loading.Target = None,
    assistant: loading.Assistant = None,
    dtype: loading.Dtype = None,
    device: loading.Device = None,
    attn_implementation: loading.Attention = None,
    trust_remote_code: loading.TrustRemoteCode = False,
    text: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Text that both models read to see what can be drafted; its first 2000 characters count.",
            show_default="a short sample",
        ),
    ] = None,
    as_json: loading.AsJson = False,
    debug: loading.Debug = False,
) -> None:
    """Say whether a pair is admitted, how it is run, or why not (exit code 1).

    With --target alone, only that model is checked, as prompt lookup would use it.
    """
    with_assistant = assistant is not None or target is None
    if text is not None and not with_assistant:
        raise UsageError("--text is read by both models: name an --assistant.")
    sample = read_sample(text)
    with quiet_libraries(debug):
        loaded = loading.load(
            target,
            assistant,
            with_assistant=with_assistant,
            with_tokenizer=False,
            dtype=dtype,
            device=device,
            attn_implementation=attn_implementation,
            trust_remote_code=trust_remote_code,
        )
        with working("Scoring a few tokens in blocks and one by one"):
            report = examine(loaded)
        if report["admitted"] and report["tokens"]:
            with working("Reading a text with both models"):
                report["tokens"]["coverage"] = measure(loaded, sample)
    if as_json:
        typer.echo(json.dumps(report))
    else:
        _show(report)
    if not report["admitted"]:
        raise typer.Exit(1)


def examine(loaded: loading.Loaded) -> dict[str, Any]:
    """What the library thinks of a pair.

    Args:
        loaded (`Loaded`): target and, optionally, assistant.

    Returns:
        `dict[str, Any]`: `admitted`, `reasons` (why not), and what is known of `target`, `assistant` and `tokens`.
    """
    target = _model(loaded.target, loaded.target_name, loaded.tokenizer)
    reasons = [] if target["admitted"] else [f"The target: {target['reason']}"]
    report: dict[str, Any] = {"target": target, "assistant": None, "tokens": None, "parameter_ratio": None}
    if loaded.assistant is not None:
        assistant = _model(loaded.assistant, loaded.assistant_name, loaded.assistant_tokenizer)
        reasons += [] if assistant["admitted"] else [f"The assistant: {assistant['reason']}"]
        report["assistant"] = assistant
        report["parameter_ratio"] = assistant["parameters"] / max(target["parameters"], 1)
        report["tokens"] = tokens = _tokens(loaded)
        reasons += [tokens["reason"]] if tokens["reason"] else []
    reasons += _settings(loaded) if not reasons else []
    return {"admitted": not reasons, "reasons": reasons, **report}


def _model(model: PreTrainedModel, name: str, tokenizer: Any) -> dict[str, Any]:
    from ..models import compat
    from ..models.admission import ROWS, admit, cache_layers

    admission = admit(model)
    ragged = admission.strategy == ROWS
    masks = {"eager": "additive 4-D", "sdpa": "boolean 4-D"}.get(admission.attention, "") if ragged else ""
    return {
        "name": name,
        "class": type(model).__name__,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "dtype": str(model.dtype).removeprefix("torch."),
        "admitted": admission.admitted,
        "strategy": admission.strategy,
        "reason": admission.reason,
        "attention": admission.attention,
        "masks": masks,
        "cache_layers": cache_layers(model, admission),
        "head_size": compat.head_size(model),
        "tokenizer": tokenizer is not None,
    }


def _tokens(loaded: loading.Loaded) -> dict[str, Any]:
    """Whether the two models mean the same by their token ids."""
    from ..errors import DifferentVocabularies
    from ..models import compat
    from ..vocabulary.admission import pair_of, shared_tokens

    assert loaded.assistant is not None
    sizes = compat.head_size(loaded.target), compat.head_size(loaded.assistant)
    ours, theirs = loaded.tokenizer, loaded.assistant_tokenizer
    result: dict[str, Any] = {
        "compared": "head sizes and special tokens" if ours is None or theirs is None else "tokenizers",
        "shared": 0,
        "of": sizes[0],
        "mapped": False,
        "not_mapped": [],
        "coverage": None,
    }
    try:
        declared = compat.declared_tokens(loaded.target), compat.declared_tokens(loaded.assistant)
        shared_here = shared_tokens(*sizes, ours, theirs, *declared)
        if shared_here is None:
            pair = pair_of(*sizes, ours, theirs)
            mapped = set(pair.vocabulary_map.assistant.tolist())
            pieces = [piece for i, piece in pair.assistant.text.items() if i not in mapped]
            # parts of characters say nothing to a reader
            others = [text for text in (piece.decode(errors="replace") for piece in pieces) if "\ufffd" not in text]
            shared = len(mapped)
            return {
                **result,
                "shared": shared,
                "same_map": False,
                "mapped": True,
                "not_mapped": others[:8],
                "reason": "",
            }
        shared = int(shared_here.sum())
    except DifferentVocabularies as error:
        return {**result, "same_map": False, "reason": one_line(error)}
    same = ours is not None and theirs is not None and ours.get_vocab() == theirs.get_vocab()
    return {**result, "shared": shared, "same_map": same, "reason": ""}


def measure(loaded: loading.Loaded, text: str) -> dict[str, Any] | None:
    """What of two models' probability can be drafted, on a text.

    Args:
        loaded (`Loaded`): an admitted pair.
        text (`str`): the text.

    Returns:
        `dict[str, Any]`, *optional*: the fields of [`~hf_exactassist.vocabulary.coverage.Coverage`]; `None` for a
        target without a tokenizer, or with one that makes nothing of the text, and for models run token by token.
    """
    from ..models import compat
    from ..models.admission import admit
    from ..vocabulary.admission import as_read, pair_of, shared_tokens
    from ..vocabulary.coverage import coverage, readings, shared_map, shared_readings

    assert loaded.assistant is not None
    if any(admit(model).strategy.startswith("serial") for model in (loaded.target, loaded.assistant)):
        # blocks would be scored in another way, and drafts help neither
        return None
    ids = [] if loaded.tokenizer is None else as_read(loaded.tokenizer, text)[:_MOST_TOKENS]
    if not ids:
        return None
    sizes = compat.head_size(loaded.target), compat.head_size(loaded.assistant)
    tokenizers = loaded.tokenizer, loaded.assistant_tokenizer
    shared = shared_tokens(*sizes, *tokenizers)
    if shared is None:
        pair = pair_of(*sizes, *tokenizers)
        found = coverage(loaded.target, loaded.assistant, ids, readings(ids, pair), pair.vocabulary_map)
    else:
        events = shared_map(shared, sizes[1])
        found = coverage(loaded.target, loaded.assistant, ids, shared_readings(ids, shared), events)
    return asdict(found)


def _settings(loaded: loading.Loaded) -> list[str]:
    """What the models' own generation settings ask for that cannot be kept."""
    from ..errors import ExactAssistError
    from ..models.checks import check_decoding_mode
    from ..resolve import call_settings, resolve_drafter

    target = loaded.target
    try:
        check_decoding_mode(target.generation_config)
        if loaded.assistant is not None:
            settings = call_settings(target, None, {})
            resolve_drafter(target, settings, loaded.assistant, loaded.tokenizer, loaded.assistant_tokenizer)
    except ExactAssistError as error:
        return [f"The generation settings saved with the models: {one_line(error)}"]
    return []


def _show(report: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console, models = Console(highlight=False), [report["target"], report["assistant"]]
    models = [model for model in models if model is not None]
    table = Table(box=None, pad_edge=False)
    for heading in ("", "target", "assistant")[: len(models) + 1]:
        table.add_column(heading, overflow="fold")
    lines = {
        "model": [f"{model['name']} ({model['class']})" for model in models],
        "parameters": [f"{model['parameters']:,}" for model in models],
        "dtype": [model["dtype"] for model in models],
        "attention": [f"{model['attention']}" for model in models],
        "run": [model["strategy"] or "-" for model in models],
        "masks": [model["masks"] or "-" for model in models],
        "cache": [_layers(model["cache_layers"]) or "-" for model in models],
        "head size": [f"{model['head_size']:,}" for model in models],
        "tokenizer": ["yes" if model["tokenizer"] else "none that loads" for model in models],
        "admitted": ["yes" if model["admitted"] else "no" for model in models],
    }
    for name, cells in lines.items():
        table.add_row(name, *(Text(cell) for cell in cells))
    console.print(table)
    tokens = report["tokens"]
    if tokens is not None:
        console.print(Text(f"Tokens: {_token_line(report)}"), soft_wrap=True)
        for line in _coverage_lines(tokens["coverage"]):
            console.print(Text(line), soft_wrap=True)
        console.print(Text(f"Parameter ratio: {report['parameter_ratio']:.3g} (assistant to target)"), soft_wrap=True)
    elif report["admitted"]:
        console.print("No assistant: drafts can come from the text itself (--prompt-lookup N).", soft_wrap=True)
    what = "The pair" if report["assistant"] else "The target"
    if report["admitted"]:
        verdict = f"{what} is admitted: greedy gives the target's tokens, sampling its law."
        console.print(Text(verdict, "green"), soft_wrap=True)
        for role in ("target", "assistant"):
            model = report[role]
            if model is not None and model["reason"]:
                console.print(Text(f"The {role} runs {_how(model['strategy'])}: {model['reason']}"), soft_wrap=True)
        if not report["target"]["tokenizer"]:
            advice = "`exactassist generate` needs the target's tokenizer: save it beside the model."
            console.print(Text(advice), soft_wrap=True)
        if report["target"]["dtype"] in ("bfloat16", "float16"):
            console.print(f"In {report['target']['dtype']}, greedy text can differ where two tokens are nearly tied.")
        return
    console.print(Text(f"{what} is not admitted.", "red"))
    for reason in report["reasons"]:
        console.print(Text(reason, "red"), soft_wrap=True)


def _how(strategy: str) -> str:
    return f"{strategy} (drafts cannot help it)" if strategy.startswith("serial") else strategy


def _layers(layers: dict[str, int]) -> str:
    return ", ".join(f"{count} x {kind}" for kind, count in layers.items())


def _token_line(report: dict[str, Any]) -> str:
    tokens = report["tokens"]
    if tokens["reason"]:
        return "not shared"
    shared = f"{tokens['shared']:,} of {tokens['of']:,} target tokens can be drafted"
    if tokens["mapped"]:
        others = ", ".join(map(repr, tokens["not_mapped"]))
        return f"another tokenizer, {shared}" + (f"; of the assistant's own, not {others}, ..." if others else "")
    if tokens["compared"] != "tokenizers":
        without = " and ".join(f"the {role}" for role in ("target", "assistant") if not report[role]["tokenizer"])
        return f"{shared} (no tokenizer for {without}: only the heads' sizes and special tokens were compared)"
    return f"{'the same map' if tokens['same_map'] else 'maps agree where they overlap'}, {shared}"


def _coverage_lines(coverage: dict[str, Any] | None) -> list[str]:
    if coverage is None:
        return []
    lines = [f"Coverage: {coverage['mapped_mass']:.1%} of the target's probability is on tokens that can be drafted"]
    if coverage["expected_acceptance"] is None:
        return [*lines, "Expected acceptance: unknown, as the assistant can read nothing of the text"]
    leads, exact = coverage["assistant_mass"], coverage["assistant_exact_mass"]
    lines[0] += f"; {leads:.1%} of the assistant's leads to one, {exact:.1%} is on the same token"
    places = f"temperature 1, {coverage['positions']} places of the text"
    return [*lines, f"Expected acceptance: {coverage['expected_acceptance']:.1%} of first draft tokens ({places})"]
