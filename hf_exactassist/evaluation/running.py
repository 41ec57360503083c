"""An evaluation from its beginning, or from where it was interrupted, to its report."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from ..benchmark import clocks
from ..errors import UnsupportedDecodingMode
from ..models import identity
from .data import PromptSet
from .decoding import Decoder
from .finishing import write_results
from .folder import Folder
from .models import Models
from .plan import SAMPLED, Plan, Step
from .processes import Processes
from .records import Call, Record
from .report import make_report
from .rounds import rounds_table
from .sampled import Finding
from .second_tokens import SecondTokens
from .steps import Steps, Timed


# told of steps done, of all steps, and of what comes next
Progress = Callable[[int, int, str], None]


def evaluate(
    models: Models,
    prompts: PromptSet,
    plan: Plan,
    folder: str | os.PathLike[str],
    *,
    metrics: Sequence[str] = (),
    overwrite: bool = False,
    decoder: Decoder | None = None,
    timed: Timed = clocks.timed,
    progress: Progress = lambda done, steps, label: None,
    processes: Processes = Processes(),  # noqa: B008  (frozen)
) -> dict[str, Any] | None:
    """Decodes prompts in all ways of a plan and reports what that brings and whether it changes anything.

    Every finished step is kept. A folder that holds the beginning of the same evaluation is gone on with.

    Args:
        models (`Models`): a target and its assistants, in evaluation mode.
        prompts (`PromptSet`): what is continued.
        plan (`Plan`): how.
        folder (`str` or `PathLike`): where records and results go; made if it is not there.
        metrics (`Sequence[str]`): metrics of texts by name, for prompts with references.
        overwrite (`bool`): whether an evaluation that the folder holds is deleted.
        decoder (`Decoder`, *optional*): carries out calls; this library and Transformers by default.
        timed (`Callable`): times them.
        progress (`Callable[[int, int, str], None]`): told of the steps done, of all there are, and of the next.
        processes (`Processes`): with whom the work is shared; all are given the same arguments.

    Returns:
        `dict[str, Any]`, *optional*: the report; `None` in all processes but the first.

    Raises:
        UnusableFolder: the folder holds something else, or is in use.
        ExactAssistError: no way of decoding but the plain one can be carried out, or calls are not reproducible.
        ProcessEnded: another of the processes has ended.
        KeyboardInterrupt: as it came; a report of what there is has been written.
    """
    run = _Run(models, prompts, plan, Folder(folder), decoder or Decoder(models), timed, progress, processes)
    return run.all(list(metrics), overwrite)


class _Run:
    """See [`evaluate`]."""

    def __init__(
        self,
        models: Models,
        prompts: PromptSet,
        plan: Plan,
        folder: Folder,
        decoder: Decoder,
        timed: Timed,
        progress: Progress,
        processes: Processes,
    ) -> None:
        self.models, self.prompts, self.plan, self.folder = models, prompts, plan, folder
        self.progress, self.processes = progress, processes
        self.steps = Steps(models, prompts, plan, decoder, timed)
        self.done: dict[Step, Record] = {}

    def all(self, metrics: list[str], overwrite: bool) -> dict[str, Any] | None:
        """Everything, or what is left of it."""
        manifest = self.manifest()
        if self.processes.is_first:
            manifest = self.folder.open(manifest, overwrite)
        try:
            # the others read what the first has mended
            self.processes.wait()
            self.done = {record.step: record for record in self.folder.records()}
            try:
                self.warm_up()
                self.walk()
                self.processes.wait()
            except KeyboardInterrupt:
                if self.processes.is_first:
                    self.report(manifest, metrics, complete=False)
                raise
            return self.report(manifest, metrics, complete=True) if self.processes.is_first else None
        finally:
            self.folder.close()

    def manifest(self) -> dict[str, Any]:
        """What is evaluated."""
        import torch

        threads = torch.get_num_threads()
        return {
            "schema": 1,
            "header": self.models.header(),
            "clock": clocks.fitting_clock(self.models.device, threads),
            "threads": threads,
            "plan": asdict(self.plan),
            "prompts": self.prompts.manifest(),
            "models": self.models.identity(),
            "libraries": identity.libraries(),
        }

    def planned(self) -> list[Step]:
        """All steps that are not refused."""
        units = self.plan.units(len(self.prompts.prompts))
        return [step for unit in units for step in self.plan.steps(unit) if self.steps.wanted(step)]

    def warm_up(self) -> None:
        """Makes ready for what is left to do; by all processes alike, so that they know what is refused."""
        left = [step for step in self.planned() if step not in self.done]
        modes = [mode for mode in self.plan.modes if any(step.unit.mode == mode for step in left)]
        for mode in modes:
            self.progress(0, 0, f"warming up, {mode}")
            self.steps.warm_up(mode)
        refused = [sentence for ways in self.steps.refused.values() for sentence in ways.values()]
        if refused and len(refused) == sum(len(self.plan.ways(mode)) - 1 for mode in self.plan.modes):
            raise UnsupportedDecodingMode(f"No way of decoding can be evaluated: {refused[0]}")

    def walk(self) -> None:
        """Does what is left of this process's units."""
        units = self.plan.units(len(self.prompts.prompts))
        mine = set(units[self.processes.rank :: self.processes.count])
        steps = [step for step in self.planned() if step.unit in mine]
        for number, step in enumerate(steps):
            if step not in self.done:
                self.progress(number, len(steps), f"{step.unit.mode}, {step.arm or 'comparing'}")
                record = self.steps.do(step, self.done)
                self.folder.append(record, self.processes.rank, self.processes.count)
                self.done[step] = record
        self.progress(len(steps), len(steps), "waiting for others" if self.processes.count > 1 else "done")

    def report(self, manifest: dict[str, Any], metrics: list[str], complete: bool) -> dict[str, Any]:
        """Writes what can be told, and returns it."""
        self.done |= {record.step: record for record in self.folder.records()}
        planned = self.planned()
        records = [self.done[step] for step in planned if step in self.done]
        judged, not_tested = self.judge(records) if complete else ({}, {})
        tokenizer = self.models.tokenizer
        report = make_report(
            {
                **manifest,
                "processes": max(self.processes.count, self.folder.processes()),
                "complete": complete,
                "steps": {"done": len(records), "all": len(planned)},
                "refused": self.steps.refused,
                "not_tested": {SAMPLED: not_tested},
            },
            self.plan,
            self.prompts,
            records,
            judged,
            lambda tokens: str(tokenizer.decode(tokens, skip_special_tokens=True)),
            metrics,
            self.models.proposable(),
        )
        write_results(self.folder, report, rounds_table(records, self.prompts))
        return report

    def judge(self, records: Sequence[Record]) -> tuple[dict[tuple[str, str], list[Finding]], dict[str, list[str]]]:
        """Tests that need the target."""
        test = SecondTokens(self.steps.rescorer, self.plan, self.steps.rows)
        calls = [record for record in records if isinstance(record, Call)]
        findings, sentences = {}, {}
        refused = self.steps.refused.get(SAMPLED, {})
        names = [arm.name for arm in self.plan.tested() if arm.name not in refused]
        for number, name in enumerate(names):
            self.progress(number, len(names), f"testing next tokens, {name}")
            findings[SAMPLED, name], sentences[name] = test.judge(name, calls)
        return findings, sentences
