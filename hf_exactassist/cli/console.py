"""What the commands share towards the terminal: one line per error, and progress that stays out of the output."""

from __future__ import annotations

import functools
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import typer
from rich.console import Console
from rich.text import Text

from ..errors import ExactAssistError


Function = TypeVar("Function", bound=Callable[..., Any])

# foreign messages list every class they know; the beginning says what happened
_LONGEST_MESSAGE = 300


class CommandError(Exception):
    """A command cannot do what was asked; the message says what to do. Exit code 1."""

    exit_code = 1


class UsageError(CommandError):
    """The command line itself makes no sense. Exit code 2."""

    exit_code = 2


class Terminated(KeyboardInterrupt):
    """SIGTERM, as a queue sends it before it kills. Exit code 143, as shells have it."""

    exit_code = 143


def one_line(error: BaseException) -> str:
    """An exception's message without line breaks, cut where it gets long."""
    message = " ".join(str(error).split()) or type(error).__name__
    return message if len(message) <= _LONGEST_MESSAGE else message[:_LONGEST_MESSAGE].rstrip() + " ..."


def to_stderr() -> Console:
    """A console on the present `sys.stderr`, where all but results goes."""
    return Console(stderr=True, highlight=False)


def say(message: str, style: str = "dim") -> None:
    """One unwrapped line on stderr."""
    to_stderr().print(Text(message, style=style), soft_wrap=True)


def reports_errors(function: Function) -> Function:
    """Turns what a command raises into one red line and an exit code, unless its argument `debug` is set.

    Args:
        function (`Callable`): a command with a keyword argument `debug`.

    Returns:
        the command with the same signature.
    """

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except KeyboardInterrupt as error:
            say("Interrupted.", "red")
            raise typer.Exit(getattr(error, "exit_code", 130)) from None
        except (typer.Exit, typer.Abort, BrokenPipeError):
            raise
        except Exception as error:
            if kwargs.get("debug"):
                raise
            if isinstance(error, (CommandError, ExactAssistError)):
                message = one_line(error)
            else:
                message = f"{type(error).__name__}: {one_line(error)} (`--debug` shows where)"
            say(f"Error: {message}", "red")
            raise typer.Exit(getattr(error, "exit_code", 1)) from None

    return run  # type: ignore[return-value]


@contextmanager
def terminated_like_interrupted() -> Iterator[None]:
    """Lets SIGTERM raise [`Terminated`], so that it ends work as Ctrl-C does."""
    if threading.current_thread() is not threading.main_thread():
        # signals are dealt with by the main thread alone
        yield
        return

    def end(number: int, frame: Any) -> None:
        raise Terminated

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def quiet_libraries(debug: bool) -> Iterator[None]:
    """Keeps Transformers' advice off the terminal, and its progress bars where nobody watches them."""
    from transformers.utils import logging

    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    try:
        if not debug:
            logging.set_verbosity_error()
        if not sys.stderr.isatty():
            logging.disable_progress_bar()
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()


@contextmanager
def quiet_datasets() -> Iterator[None]:
    """Keeps the progress bars of `datasets` off the terminal, if it is installed."""
    try:
        import datasets
    except ImportError:
        yield
        return
    bars = datasets.are_progress_bars_disabled()
    datasets.disable_progress_bars()
    try:
        yield
    finally:
        if not bars:
            datasets.enable_progress_bars()


@contextmanager
def working(label: str) -> Iterator[None]:
    """A spinner on stderr, if that is a terminal."""
    console = to_stderr()
    if not console.is_terminal:
        yield
        return
    with console.status(label):
        yield


@contextmanager
def counting(label: str, total: int, show: bool = True) -> Iterator[Callable[[], None]]:
    """A progress bar on stderr, if that is a terminal; it is gone afterwards.

    Args:
        label (`str`): what is counted.
        total (`int`): steps to come.
        show (`bool`): `False` shows nothing.

    Yields:
        a function to call at each step.
    """
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = to_stderr()
    if not (show and console.is_terminal):
        yield lambda: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    # what is written to stdout meanwhile must not be drawn on stderr
    with Progress(*columns, console=console, transient=True, redirect_stdout=False, redirect_stderr=False) as progress:
        task = progress.add_task(label, total=total)
        yield lambda: progress.advance(task)


def bar_with_time_left() -> Any:
    """A `rich` progress bar on stderr with the time taken and the time to come; it is gone afterwards."""
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left:"),
        TimeRemainingColumn(),
        TextColumn("{task.description}"),
    )
    # what is written to stdout meanwhile must not be drawn on stderr
    return Progress(*columns, console=to_stderr(), transient=True, redirect_stdout=False, redirect_stderr=False)
