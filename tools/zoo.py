"""Runs the trial of every causal-LM and encoder-decoder type of Transformers and writes docs/architectures.md.

python tools/zoo.py                   # all types, into the tables
python tools/zoo.py llama mamba2      # only these, on the screen
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import track


os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")
ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402
import transformers  # noqa: E402

from tests.zoo.build import ENCODER_DECODER_TYPES, TYPES  # noqa: E402
from tests.zoo.trial import DRAFT_TOKENS, LENGTHS, STATUSES, Outcome, trial  # noqa: E402


PAGE = ROOT / "docs" / "architectures.md"
LONGEST_NOTE = 240

HEAD = """# Architectures

What happens on every causal-LM type that Transformers knows. For each a tiny random model is built, in float32, and
its greedy text with a noisy copy of itself as the assistant ({drafts} drafted tokens a round) is compared with the
text of plain `generate`: two prompts alone, then a left-padded batch of prompts of {lengths} tokens. The reference of
every row is that row alone, without padding. [Encoder-decoder types](#encoder-decoder-types) have a table of their
own.

`make zoo` runs the same trials as tests; `python tools/zoo.py` writes this page.

* **how it is run**: *ragged rows* of a batch over one cache; *row by row*, each over a cache of its own; *row by row,
  without a cache*; *serial*, token by token, where drafts cannot help.
* **equal**: the same tokens. **serial**: the same tokens, without drafts. **refused**: an error before the first
  token, which the note quotes. **different** and **crashed** are faults of this library.
* **not built**: there is no tiny model of this type here. **plain fails**: Transformers' own `generate` fails on it.
* **acceptance**: accepted drafts per drafted one, alone. It says how noisy the assistant was made, not how good real
  assistants are.
"""

ENCODER_DECODERS = """
## Encoder-decoder types

The same trial on every encoder-decoder type that Transformers lists as sequence to sequence, some of which have a
decoder above. The prompts are read by the encoder and padded on the right; new tokens are those after the decoder's
start token. Plain and assisted text have a repetition penalty of 1.5, without which many of these tiny models repeat
a few tokens for ever.
"""


def report(decoders: Sequence[Outcome], encoder_decoders: Sequence[Outcome]) -> str:
    """The page: for both kinds of models counts, then a row for each type."""
    lines = [HEAD.format(drafts=DRAFT_TOKENS, lengths=", ".join(map(str, LENGTHS)))]
    lines += [f"Transformers {transformers.__version__}, torch {torch.__version__.partition('+')[0]}:", ""]
    lines += [*_table(decoders), ENCODER_DECODERS, *_table(encoder_decoders)]
    return "\n".join(lines) + "\n"


def _table(outcomes: Sequence[Outcome]) -> list[str]:
    lines = [f"* batch 1: {_counts([outcome.alone for outcome in outcomes])}"]
    lines += [f"* batch {len(LENGTHS)}: {_counts([outcome.batch for outcome in outcomes])}"]
    lines += [f"* how they are run: {_counts([outcome.strategy for outcome in outcomes if outcome.strategy])}", ""]
    lines += [f"| type | class | how it is run | batch 1 | batch {len(LENGTHS)} | acceptance | note |"]
    lines += ["|---|---|---|---|---|---|---|"]
    for outcome in sorted(outcomes, key=lambda outcome: outcome.model_type):
        rate = "" if outcome.acceptance is None else f"{outcome.acceptance:.2f}"
        cells = (outcome.model_type, outcome.class_name, outcome.strategy, outcome.alone, outcome.batch, rate)
        lines += [f"| {' | '.join(cells)} | {_note(outcome.detail)} |"]
    return lines


def _counts(values: Sequence[str]) -> str:
    """How often each value occurs, most frequent first."""
    return ", ".join(f"{count} {value}" for value, count in Counter(values).most_common())


def _note(text: str) -> str:
    """A text that fits into a cell."""
    text = text.replace("|", "\\|").replace("<", "&lt;")
    return text if len(text) <= LONGEST_NOTE else text[:LONGEST_NOTE].rsplit(" ", 1)[0] + " ..."


def main(
    types: Annotated[
        list[str] | None, typer.Argument(help="Types to try; all of them, into the page, if none.")
    ] = None,
) -> None:
    """Tries types one after the other."""
    console = Console()
    # some types are both
    kinds = {False: TYPES, True: ENCODER_DECODER_TYPES}
    chosen = [(name, kind) for kind, names in kinds.items() for name in names if not types or name in types]
    unknown = sorted(set(types or ()) - {name for name, _ in chosen})
    if unknown:
        raise typer.BadParameter(f"no causal-LM or encoder-decoder type of Transformers: {', '.join(unknown)}")
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    begin = time.perf_counter()
    outcomes: dict[bool, list[Outcome]] = {kind: [] for kind in kinds}
    for model_type, kind in track(chosen, description="Trials", console=console, transient=True):
        with contextlib.redirect_stderr(io.StringIO()):
            outcome = trial(model_type, encoder_decoder=kind)
        outcomes[kind].append(outcome)
        if types or outcome.status in STATUSES[:2]:
            console.print(
                f"[bold]{outcome.model_type}[/] {outcome.class_name}, {outcome.strategy or '-'}:",
                f"{outcome.alone}, {outcome.batch}",
                f"(acceptance {outcome.acceptance:.2f})" if outcome.acceptance is not None else "",
            )
            if outcome.detail:
                console.print(f"  {outcome.detail}", markup=False, highlight=False)
    statuses = [outcome.status for kind in kinds for outcome in outcomes[kind]]
    console.print(f"{_counts(statuses)}; {time.perf_counter() - begin:.0f} s")
    if not types:
        PAGE.write_text(report(outcomes[False], outcomes[True]), encoding="utf-8")
        console.print(f"Written: {PAGE.relative_to(ROOT)}")


if __name__ == "__main__":
    typer.run(main)
