"""`exactassist generate`: continues prompts."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from . import loading
from .console import CommandError, UsageError, counting, quiet_libraries, reports_errors, say
from .prompts import read_prompts
from .report import counters, summary


_sampling = partial(typer.Option, rich_help_panel="Sampling")
_drafting = partial(typer.Option, rich_help_panel="Drafting")
_records = partial(typer.Option, metavar="FILE", rich_help_panel="Records")

LAYOUTS = ("replay", "retained")
COMPILED = ("draft", "both")


@reports_errors
def generate(
    prompts: Annotated[list[str] | None, typer.Argument(help="Prompts. Without any, --file or stdin is read.")] = None,
    target: loading.Target = None,
    assistant: loading.Assistant = None,
    file: Annotated[
        Path | None,
        typer.Option("--file", "-f", help='One prompt a line, or .jsonl with a field "prompt"; "-" is stdin.'),
    ] = None,
    batch_size: Annotated[int, typer.Option("--batch-size", "-b", min=1, help="Prompts decoded at once.")] = 1,
    max_new_tokens: Annotated[int, typer.Option("--max-new-tokens", "-n", min=1, help="Tokens per prompt.")] = 128,
    chat: Annotated[bool, typer.Option("--chat", help="Put each prompt into the tokenizer's chat template.")] = False,
    stream: Annotated[bool, typer.Option("--stream", help="Write the text as it comes; for one prompt.")] = False,
    num_assistant_tokens: Annotated[
        int | None,
        _drafting(min=1, help="Tokens drafted per round.", show_default="the models' own setting, or as many as pay"),
    ] = None,
    prompt_lookup: Annotated[
        int | None, _drafting(min=1, metavar="N", help="Draft N tokens from the text itself, without an assistant.")
    ] = None,
    do_sample: Annotated[
        bool | None,
        _sampling(
            "--do-sample/--greedy", help="Sample, or take the best token.", show_default="the target's own setting"
        ),
    ] = None,
    temperature: Annotated[float | None, _sampling(help="Above 0; lower is more predictable.")] = None,
    top_k: Annotated[int | None, _sampling(min=0, help="Best tokens to choose from; 0 is all.")] = None,
    top_p: Annotated[float | None, _sampling(min=0.0, max=1.0, help="Probability to choose from.")] = None,
    min_p: Annotated[
        float | None, _sampling(min=0.0, max=1.0, help="Least share of the best token's probability.")
    ] = None,
    repetition_penalty: Annotated[
        float | None, _sampling(help="Above 0; 1 is none. Greedy decoding heeds it too.")
    ] = None,
    seed: Annotated[
        int | None,
        _sampling(
            min=0, help="Fixes what is drawn, whatever the batch size.", show_default="a new one, told on stderr"
        ),
    ] = None,
    layout: Annotated[
        str | None,
        _drafting(
            metavar="NAME",
            help="replay: read the last token with the drafts; retained: beforehand. The same text.",
            show_default="replay",
        ),
    ] = None,
    compiled: Annotated[
        str | None,
        _drafting(
            "--compile",
            metavar="NAME",
            help="Compile the forwards of the draft, or of both models: pays for many prompts.",
            show_default="none",
        ),
    ] = None,
    manifest: Annotated[
        Path | None,
        _records(help="Write what each batch was made with: one JSON object a batch, with a digest."),
    ] = None,
    telemetry: Annotated[
        Path | None, _records(help="Write the acceptance log: one JSON object per judged token and per round.")
    ] = None,
    dtype: loading.Dtype = None,
    device: loading.Device = None,
    attn_implementation: loading.Attention = None,
    trust_remote_code: loading.TrustRemoteCode = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object per prompt: prompt, text, tokens, finish, stats.")
    ] = False,
    debug: loading.Debug = False,
) -> None:
    """Continue prompts with a target and an assistant. Text goes to stdout, counters to stderr."""
    sampling = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p}
    _check_drafter(target, assistant, prompt_lookup, num_assistant_tokens)
    _check_sampling(do_sample, sampling, repetition_penalty)
    if stream and as_json:
        raise UsageError("--stream writes text and --json writes objects: choose one.")
    texts = read_prompts(prompts or [], file)
    if stream and len(texts) > 1:
        raise UsageError(f"--stream is for one prompt, and {len(texts)} are given.")
    for option, value, choices in (("layout", layout, LAYOUTS), ("compile", compiled, COMPILED)):
        if value not in (None, *choices):
            raise UsageError(f"Unknown --{option} {value!r}: choose one of {', '.join(choices)}.")
    _check_files({"--manifest": manifest, "--telemetry": telemetry}, file)
    settings = {
        "max_new_tokens": max_new_tokens,
        "prompt_lookup_num_tokens": prompt_lookup,
        "num_assistant_tokens": num_assistant_tokens,
        "do_sample": do_sample,
        **sampling,
        "repetition_penalty": repetition_penalty,
        "layout": layout,
        "compile": compiled,
        "telemetry": telemetry,
    }
    with quiet_libraries(debug):
        loaded = loading.load(
            target,
            assistant,
            with_assistant=prompt_lookup is None,
            dtype=dtype,
            device=device,
            attn_implementation=attn_implementation,
            trust_remote_code=trust_remote_code,
        )
        given = {name: value for name, value in settings.items() if value is not None}
        _Run(loaded, given, seed, chat, as_json, stream, manifest).all(texts, batch_size)


def _check_drafter(target: str | None, assistant: str | None, lookup: int | None, number: int | None) -> None:
    if lookup is not None and assistant is not None:
        raise UsageError("--assistant and --prompt-lookup both draft: choose one.")
    if lookup is not None and number is not None:
        raise UsageError("--num-assistant-tokens is for an assistant: with --prompt-lookup N, N tokens are drafted.")
    if target is not None and assistant is None and lookup is None:
        raise UsageError("Who drafts for this --target? Add --assistant MODEL, or --prompt-lookup N.")


def _check_sampling(do_sample: bool | None, sampling: dict[str, Any], repetition_penalty: float | None) -> None:
    given = [f"--{name.replace('_', '-')}" for name, value in sampling.items() if value is not None]
    if given and not do_sample:
        raise UsageError(f"{', '.join(given)} has a meaning for sampling only: add --do-sample, or leave it out.")
    for name, value in (("temperature", sampling["temperature"]), ("repetition-penalty", repetition_penalty)):
        if value is not None and not 0 < value < float("inf"):
            more = " For the best token each time, use --greedy." if name == "temperature" else ""
            raise UsageError(f"--{name} must be a number above 0, got {value}.{more}")


def _check_files(given: dict[str, Path | None], prompts: Path | None) -> None:
    """Whether the records of a run can be written; what stands in their files stays until it begins."""
    taken = {} if prompts is None else {"--file": prompts}
    for option, path in given.items():
        if path is None:
            continue
        for other, there in taken.items():
            if path.resolve() == there.resolve():
                raise UsageError(f"{option} and {other} name the same file, {path}: choose another.")
        try:
            path.open("a").close()
        except OSError as error:
            reason = error.strerror or str(error)
            raise UsageError(
                f"Cannot write {option} {path}: {reason}. Give a file in a folder that exists."
            ) from error
        taken[option] = path


class _Run:
    """Decodes batch after batch and writes each as soon as it is there."""

    def __init__(
        self,
        loaded: loading.Loaded,
        settings: dict[str, Any],
        seed: int | None,
        chat: bool,
        as_json: bool,
        stream: bool,
        manifest: Path | None = None,
    ) -> None:
        import secrets

        from ..telemetry import AssistStats

        self.loaded, self.settings, self.as_json, self.stream, self.chat = loaded, settings, as_json, stream, chat
        self.manifest = manifest
        config = loaded.target.generation_config
        self.samples = bool(settings.get("do_sample", config.do_sample))
        self.seed = secrets.randbelow(2**31) if self.samples and seed is None else seed
        ends = config.eos_token_id
        self.eos = set(ends) if isinstance(ends, list) else {ends} - {None}
        known = (config.pad_token_id, loaded.tokenizer.pad_token_id, *sorted(self.eos), 0)
        self.pad = next(token for token in known if token is not None)
        self.total, self.seconds = AssistStats(), 0.0

    def all(self, texts: Sequence[str], batch_size: int) -> None:
        """All prompts, in their order."""
        rows = [self.encode(number, text) for number, text in enumerate(texts, start=1)]
        self.warn_of_length(max(map(len, rows)))
        for path in (self.manifest, self.settings.get("telemetry")):
            if path is not None:
                path.write_text("")
        batches = range(0, len(texts), batch_size)
        for number, start in enumerate(batches, start=1):
            label = f"batch {number} of {len(batches)}" if len(batches) > 1 else "tokens"
            with counting(label, self.settings["max_new_tokens"], not self.stream) as advance:
                results, interrupted = self.batch(rows[start : start + batch_size], start, advance)
            for index, result in enumerate(results, start=start):
                self.write(texts[index], result, f"[{index + 1}/{len(texts)}]" if len(texts) > 1 else "")
            if interrupted:
                raise KeyboardInterrupt
        how = f"sampled with seed {self.seed}" if self.samples else "greedy"
        say(f"{summary(self.total, self.seconds)}; {how}")

    def encode(self, number: int, text: str) -> list[int]:
        """Token ids of a prompt."""
        tokenizer = self.loaded.tokenizer
        if not self.chat:
            ids = tokenizer(text)["input_ids"]
        elif tokenizer.chat_template:
            turns = [{"role": "user", "content": text}]
            written = tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
            ids = tokenizer(written, add_special_tokens=False)["input_ids"]
        else:
            raise CommandError("The target's tokenizer has no chat template: leave out --chat, or use a chat model.")
        if not ids:
            raise CommandError(f"Prompt {number} has no tokens in the target's vocabulary: give it some text.")
        return ids

    def warn_of_length(self, longest: int) -> None:
        """Tells if the text may outgrow the positions the target was made for."""
        positions = getattr(self.loaded.target.config.get_text_config(decoder=True), "max_position_embeddings", None)
        wanted = longest + self.settings["max_new_tokens"]
        if positions and wanted > positions:
            say(f"Note: up to {wanted} tokens are asked for, and the target was made for {positions}.", "yellow")

    def batch(
        self, rows: list[list[int]], start: int, advance: Callable[[], None]
    ) -> tuple[list[dict[str, Any]], bool]:
        """Decodes some prompts at once; also after Ctrl-C, with what there is."""
        import torch

        from ..api import start as opened

        width, device = max(map(len, rows)), self.loaded.target.device
        ids = torch.tensor([[self.pad] * (width - len(row)) + row for row in rows], device=device)
        mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows], device=device)
        listener = self.text_streamer() if self.stream else _Columns(advance)
        numbers = range(start, start + len(rows))
        began = time.perf_counter()
        try:
            session = opened(
                self.loaded.target,
                input_ids=ids,
                attention_mask=mask,
                assistant_model=self.loaded.assistant,
                tokenizer=self.loaded.tokenizer,
                assistant_tokenizer=self.loaded.assistant_tokenizer,
                pad_token_id=self.pad,
                streamer=listener,
                seed=self.seed,
                # the prompt's own number, so that what is drawn does not depend on the batch size
                row_ids=numbers,
                return_dict_in_generate=True,
                **self.settings,
            )
            output = self.decode(session, numbers, listener)
        except KeyboardInterrupt:
            columns = listener.columns if isinstance(listener, _Columns) else []
            return [self.result(list(tokens), "interrupted", None) for tokens in zip(*columns, strict=True)], True
        seconds = time.perf_counter() - began
        self.total += output.assist_stats
        self.seconds += seconds
        stats = {"prompts": len(rows), **counters(output.assist_stats, seconds)}
        return [self.result(row, "length", stats) for row in output.sequences[:, width:].tolist()], False

    def decode(self, session: Any, numbers: Sequence[int], listener: Any) -> Any:
        """Runs a session to its end; also if it fails, its manifest is written and the listener's text is out."""
        before, end = session.manifest() if self.manifest is not None else {}, None
        try:
            output = session.result()
            end = session.manifest()["digest"] if self.manifest is not None else None
            return output
        except BaseException:
            listener.end()
            raise
        finally:
            if self.manifest is not None:
                line = {"prompts": [number + 1 for number in numbers], **before, "end": end}
                with self.manifest.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(line) + "\n")

    def text_streamer(self) -> Any:
        """Writes text to stdout as it comes."""
        from transformers import TextStreamer

        return TextStreamer(self.loaded.tokenizer, skip_prompt=True, skip_special_tokens=True)

    def result(self, tokens: list[int], finish: str, stats: dict[str, Any] | None) -> dict[str, Any]:
        """What is told of one prompt. `stats` count the whole call it was part of."""
        end = next((place for place, token in enumerate(tokens, start=1) if token in self.eos), None)
        text = self.loaded.tokenizer.decode(tokens[:end], skip_special_tokens=True)
        result = {"text": text, "tokens": tokens[:end], "finish": finish if end is None else "eos", "stats": stats}
        return {**result, "seed": self.seed} if self.samples else result

    def write(self, prompt: str, result: dict[str, Any], heading: str) -> None:
        """One prompt's result to stdout."""
        if self.as_json:
            typer.echo(json.dumps({"prompt": prompt, **result}))
        elif not self.stream:
            if heading:
                say(f"{heading} {' '.join(prompt.split())[:80]}", "bold")
            typer.echo(result["text"])


@dataclass
class _Columns:
    """A streamer that remembers the new tokens, one column of the batch at a time."""

    advance: Callable[[], None]
    columns: list[list[int]] = field(default_factory=list)
    _prompt_seen: bool = False

    def put(self, value: Any) -> None:
        """Called by `generate` with the prompt first, then with a token per row."""
        if self._prompt_seen:
            self.columns.append(value.tolist())
            self.advance()
        self._prompt_seen = True

    def end(self) -> None:
        """Nothing is held back."""
