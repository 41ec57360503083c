"""Records made by hand."""

from dataclasses import asdict

from hf_exactassist.evaluation.data import Prompt, PromptSet
from hf_exactassist.evaluation.greedy import Divergence
from hf_exactassist.evaluation.plan import CALL, COMPARE, LOOK, PLAIN, Arm, Step, Unit
from hf_exactassist.evaluation.records import Call, Comparison, Look


ARM = Arm("small", 3)
STATS = {"rounds": 0, "row_rounds": 0, "steps": 0, "target_forwards": 0, "seconds": 0.0}


def call(arm=ARM, batch=0, repeat=0, mode="greedy", texts=((5,),), seconds=1.0, prompts=None, **more):
    """A call of so many seconds on both clocks, unless two are given."""
    clocks = seconds if isinstance(seconds, dict) else {"cpu": seconds, "wall": seconds}
    step = Step(CALL, Unit(mode, repeat, batch), arm.name)
    prompts = [batch] if prompts is None else list(prompts)
    texts = [list(text) for text in texts]
    return Call(step, prompts, [4] * len(prompts), texts, [False] * len(prompts), clocks, **more)


def look(rounds, arm=ARM, batch=0, mode="greedy", prompts=None):
    """A logged call of events from [`round_of`]."""
    rows = [row["row"] for event in rounds if event["event"] == "round" for row in event["rows"]]
    prompts = [batch + row for row in sorted(set(rows))] if prompts is None else list(prompts)
    return Look(Step(LOOK, Unit(mode, 0, batch), arm.name), prompts, [4] * len(prompts), list(rounds))


def compare(divergences, batch=0, repeat=0, mode="greedy", prompts=None):
    """`divergences` by name of a way, `None` or a [`Divergence`] for each row."""
    rows = max(map(len, divergences.values()))
    told = {name: [one and asdict(one) for one in found] for name, found in divergences.items()}
    prompts = list(range(batch, batch + rows)) if prompts is None else list(prompts)
    return Comparison(Step(COMPARE, Unit(mode, repeat, batch)), prompts, told)


def row(drafts, accepted, after=None, row=0, **laws):
    """A row's part of a round: drafts of which so many are accepted, and the token after them, if there is one.

    `laws` are further fields of its decisions, one value for all or a list with one for each.
    """
    published = [*drafts[:accepted], *([] if after is None else [after])]
    decisions = []
    for j in range(min(len(drafts), len(published))):
        own = {name: value[j] if isinstance(value, list) else value for name, value in laws.items()}
        fields = {"p": 0.5, "overlap": None, "divergence": None, "same_top": None, **own}
        decisions.append({"row": row, "token": drafts[j], "accepted": j < accepted, **fields})
    return {
        "row": row,
        "drafted": len(drafts),
        "accepted": accepted,
        "published": published,
        "terminal": "stop" if after is None else "bonus" if accepted == len(drafts) else "recovered",
        "stopped": after is None,
        "decisions": decisions,
    }


def events(*rounds, name="call", layout="replay", seconds=None):
    """The log of a call whose rounds are lists of [`row`]s, the first one without drafts."""
    told = []
    for generation, rows in enumerate(rounds):
        whole = f"{name}/{generation}"
        told += [{"event": "decision", "round": whole, **one} for part in rows for one in part["decisions"]]
        taken = (seconds or {}).get(generation, {"score": 0.0})
        parts = [{key: value for key, value in part.items() if key != "decisions"} for part in rows]
        told.append(
            {
                "event": "round",
                "round": whole,
                "generation": generation,
                "layout": layout,
                "coupling": "greedy",
                "rows": parts,
                "seconds": taken,
            }
        )
    return told


def prompt_set(*kinds, references=None):
    """Prompts of these kinds."""
    references = references or [None] * len(kinds)
    made = [
        Prompt(10 + i, kind, f"text {i}", ref) for i, (kind, ref) in enumerate(zip(kinds, references, strict=True))
    ]
    return PromptSet(tuple(made), {"dataset": "made"}, False)


def plain(**more):
    """A call of plain decoding."""
    return call(PLAIN, **more)


def tie(position=1, one=5, other=6):
    """Texts part where rounding decides."""
    return Divergence(position, one, other, 1e-6, True)
