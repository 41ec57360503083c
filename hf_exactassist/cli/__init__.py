"""The command `exactassist`. Torch and Transformers are imported inside the commands, so that help is quick."""

from __future__ import annotations

from typing import Annotated

import typer

from . import bench, check, demo, evaluate, generate


app = typer.Typer(
    help="Exact speculative decoding for Transformers: the text of the target alone, sooner.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for _command in (demo.demo, generate.generate, check.check, bench.bench, evaluate.evaluate):
    app.command()(_command)

__all__ = ["app"]


def _show_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        from .. import __version__

        typer.echo(f"exactassist {__version__} (transformers {version('transformers')}, torch {version('torch')})")
        raise typer.Exit()


@app.callback()
def _main(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Exact speculative decoding for Transformers: the text of the target alone, sooner."""
