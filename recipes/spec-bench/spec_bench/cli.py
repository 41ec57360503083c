"""The command line."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console

from hf_exactassist.benchmark.clocks import CLOCKS, fitting_clock
from hf_exactassist.benchmark.environment import environment
from hf_exactassist.benchmark.pair import Pair
from hf_exactassist.cli import loading
from hf_exactassist.cli.console import UsageError, bar_with_time_left, quiet_libraries, reports_errors, say, to_stderr
from hf_exactassist.cli.threads import threads as torch_threads

from .answering import Decoding, answer, warm_up
from .chat import FORMATS, Chat
from .questions import choose, fingerprint, read_questions
from .results import Results
from .table import markdown, rich_table, rows


app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
# of the machine and its programs, what makes times incomparable
_PLACE = (
    "system",
    "processor",
    "device",
    "accelerator",
    "threads",
    "python",
    "torch",
    "transformers",
    "hf_exactassist",
)


@app.command()
@reports_errors
def main(
    questions: Annotated[str, typer.Argument(help="A copy of the benchmark's question.jsonl, or a Hub data set.")],
    out: Annotated[Path, typer.Option(help="Folder for answers and tables; a run goes on where it was.")],
    target: loading.Target = None,
    assistant: loading.Assistant = None,
    split: Annotated[str | None, typer.Option(help="Of a Hub data set.")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Questions of each task.", show_default="all")] = None,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Tokens of an answer.")] = 1024,
    temperature: Annotated[float, typer.Option(min=0, help="0 is greedy.")] = 0.0,
    seed: Annotated[int, typer.Option(min=0, help="Of sampled answers.")] = 0,
    num_assistant_tokens: Annotated[
        int | None, typer.Option(min=1, help="Tokens in every draft.", show_default="what pays")
    ] = None,
    chat: Annotated[str, typer.Option(help="How conversations are written: auto, template or plain.")] = "auto",
    clock: Annotated[str | None, typer.Option(help="cpu or wall.", show_default="cpu for one CPU thread")] = None,
    threads: Annotated[int, typer.Option(min=1, help="Threads of torch.")] = 1,
    dtype: loading.Dtype = None,
    device: loading.Device = None,
    attn_implementation: loading.Attention = None,
    trust_remote_code: loading.TrustRemoteCode = False,
    debug: loading.Debug = False,
) -> None:
    """Answers Spec-Bench's questions plainly and with an assistant, and prints the benchmark's table."""
    if (target is None) != (assistant is None):
        raise UsageError("A pair has two models: give --target and --assistant, or neither for the embedded pair.")
    for option, value, known in (("--chat", chat, FORMATS), ("--clock", clock, (None, *CLOCKS))):
        if value not in known:
            raise UsageError(f"Unknown {option} {value!r}: choose one of {', '.join(filter(None, known))}.")
    asked = read_questions(questions, split)
    with quiet_libraries(debug), torch_threads(threads):
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
        conversation = Chat.of(loaded.tokenizer, chat)
        decoding = Decoding(max_new_tokens, temperature, seed, num_assistant_tokens)
        place = environment(pair.device)
        settings = {
            "target": loaded.target_name,
            "assistant": loaded.assistant_name,
            "dtype": str(loaded.target.dtype).removeprefix("torch."),
            "attention": loaded.target.config.get_text_config()._attn_implementation,
            "chat_template": conversation.template,
            **asdict(decoding),
            "questions": fingerprint(asked),
            **{name: place[name] for name in _PLACE},
        }
        results = Results(out, settings)
        chosen = choose(asked, limit)
        todo = [
            (number, question) for number, question in enumerate(chosen) if question.question_id not in results.records
        ]
        if not conversation.template:
            say("No chat template is used: conversations are written in a plain format.")
        try:
            with _progress(len(chosen), len(chosen) - len(todo)) as advance:
                if todo:
                    warm_up(pair, conversation, decoding, todo[0][1])
                for number, question in todo:
                    results.add(answer(pair, conversation, decoding, question, number))
                    advance()
        finally:
            done = [results.records[one.question_id] for one in chosen if one.question_id in results.records]
            _show(out, done, len(chosen), settings, clock or fitting_clock(pair.device, torch.get_num_threads()))


def _show(out: Path, done: list[dict[str, Any]], count: int, settings: dict[str, Any], clock: str) -> None:
    if not done:
        return
    lines = rows(done, clock)
    name = f"{settings['target']} + {settings['assistant']}"
    report = {
        "complete": len(done) == count,
        "questions": {"done": len(done), "all": count},
        "clock": clock,
        "settings": settings,
        "rows": [asdict(line) for line in lines],
    }
    (out / "table.json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    (out / "table.md").write_text(markdown(lines, name), encoding="utf-8")
    Console().print(rich_table(lines))
    if len(done) < count:
        say(f"{len(done)} of {count} questions are answered: the same command goes on.")
    say(f"Written: {out / 'table.md'} and {out / 'table.json'}")


@contextmanager
def _progress(total: int, done: int) -> Iterator[Callable[[], None]]:
    """A bar with the time to come on stderr, if that is a terminal."""
    console = to_stderr()
    if not console.is_terminal:
        yield lambda: None
        return
    with bar_with_time_left() as bar:
        task = bar.add_task("answering", total=total, completed=done)
        yield lambda: bar.advance(task)
