"""Spec-Bench's questions on a pair of models: `python recipes/spec-bench/run.py --help`."""

from spec_bench.cli import app


if __name__ == "__main__":
    app()
