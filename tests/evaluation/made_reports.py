"""Reports as an evaluation writes them, with figures made up by arithmetic."""

from __future__ import annotations

from typing import Any


KINDS = ("prose", "code", "lists", "dialogue", "translation", "copying")
_PLANNED = ("num_assistant_tokens", "position", "from", "to", "lengths")
HOSTILE = "<script>alert('x')</script> | `a` **b** _c_ \\ & $d$ #e\n<b>\u202eend"


def made_report(
    drafters: tuple[str, ...] = ("small", "tiny"),
    lengths: tuple[int | None, ...] = (1, 3, 5, None),
    modes: tuple[str, ...] = ("greedy", "sampled"),
    kinds: tuple[str, ...] = KINDS,
) -> dict[str, Any]:
    """Every drafter with every length in every mode; nothing refused, nothing wrong."""
    model = {"class": "LlamaForCausalLM", "parameters": 134515008, "dtype": "float32", "attention": "sdpa"}
    return {
        "schema": 1,
        "header": {
            "date": "2026-11-30T12:00:00+00:00",
            "system": "Linux x86_64",
            "processor": "A processor",
            "cpus": 2,
            "device": "cpu",
            "accelerator": None,
            "threads": 1,
            "load_average": [0.5, 0.4, 0.3],
            "python": "3.11.2",
            "torch": "2.13.0",
            "transformers": "5.24.0",
            "hf_exactassist": "0.1.0",
            "target": {"name": "target-135m", **model},
            "assistants": [{"name": name, **model, "parameters": 20_000_000} for name in drafters],
        },
        "settings": {
            "arms": [{"drafter": name, "num_assistant_tokens": length} for name in drafters for length in lengths],
            "modes": list(modes),
            "batch_size": 4,
            "repeats": 2,
            "max_new_tokens": 64,
            "sampling": {"temperature": 0.8, "top_p": 0.95},
            "seed": 0,
        },
        "prompts": {
            "dataset": "shipped",
            "chat": False,
            "rows": list(range(8 * len(kinds))),
            "sha256": "5f" * 32,
            "count": 8 * len(kinds),
            "kinds": dict.fromkeys(kinds, 8),
        },
        "processes": 1,
        "complete": True,
        "steps": {"done": 96, "all": 96},
        "conclusions": [
            "All 384 greedy texts are plain generate's, token for token.",
            "small, K=3 is 1.42 times as fast as plain decoding (interval 1.31 to 1.52).",
            "Whether longer texts would be as fast was not measured.",
        ],
        "digest": "ab" * 32,
        "modes": [_mode(mode, drafters, lengths, kinds) for mode in modes],
    }


def faulty_report() -> dict[str, Any]:
    """One way is found out: a greedy fault, and laws that differ."""
    report = made_report(("small",), (1, 3))
    report["conclusions"].insert(0, "The texts of small, K=3 are not plain generate's: this is a fault.")
    greedy, sampled = (mode["arms"][1]["quality"] for mode in report["modes"])
    greedy |= {"identical": 45, "identity_rate": 45 / 48, "conclusion": "1 of 48 greedy texts is faulty."}
    greedy["divergences"] = [
        {"prompt": 3, "position": 7, "plain": 12, "assisted": 40, "plain_text": " the", "assisted_text": "\n", **kind}
        for kind in (
            {"margin": 1e-5, "kind": "numerical tie"},
            {"margin": None, "kind": "numerical tie", "plain": None, "plain_text": None},
            {"margin": 2.5, "kind": "fault"},
        )
    ]
    sampled["findings"][0] |= {"p_value": 1e-9, "differs": True}
    sampled["conclusion"] = "The law is not plain generate's, going by the first tokens."
    return report


def refused_report() -> dict[str, Any]:
    """One way is refused in every mode."""
    report = made_report(("small",), (1, 3))
    for mode in report["modes"]:
        mode["arms"][1] |= {
            "refused": "The vocabularies differ: pass tokenizer= and assistant_tokenizer=.",
            **dict.fromkeys(("acceptance", "speed", "quality", "diagnosis")),
        }
    return report


def incomplete_report() -> dict[str, Any]:
    """Broken off before anything was timed: figures are missing everywhere."""
    report = made_report()
    report |= {"complete": False, "steps": {"done": 5, "all": 96}, "conclusions": [], "digest": None}
    return _emptied(report)


def hostile_report() -> dict[str, Any]:
    """Names, kinds and texts that could be taken for markup, are long or look alike."""
    drafters = tuple(
        f"/very/long/path/to/many/models/{one}/checkpoint-of-a-model-with-a-long-name/final" for one in "ab"
    )
    report = made_report(
        drafters, kinds=("prose", HOSTILE, "a kind whose name is much longer than anyone would want it")
    )
    report["conclusions"] = [HOSTILE]
    report["prompts"]["dataset"] = HOSTILE
    report["header"]["target"]["name"] = HOSTILE
    for mode in report["modes"]:
        for arm in mode["arms"]:
            arm["diagnosis"]["rejected_tokens"][0]["text"] = HOSTILE
            arm["diagnosis"]["cause_notes"] = {"position": HOSTILE}
            arm["quality"]["conclusion"] = HOSTILE
        mode["arms"][0] |= {"name": HOSTILE, "refused": HOSTILE}
    return report


def _emptied(value: Any, inside: bool = False) -> Any:
    """Every measured number of the modes becomes `None`."""
    if isinstance(value, dict):
        return {
            key: part if key in _PLANNED and not isinstance(part, float) else _emptied(part, inside or key == "modes")
            for key, part in value.items()
        }
    if isinstance(value, list):
        return [_emptied(part, inside) for part in value]
    return None if inside and isinstance(value, (int, float)) else value


def _mode(
    mode: str, drafters: tuple[str, ...], lengths: tuple[int | None, ...], kinds: tuple[str, ...]
) -> dict[str, Any]:
    arms = [_arm(mode, name, place, length, kinds) for place, name in enumerate(drafters) for length in lengths]
    return {
        "mode": mode,
        "plain": {
            "tokens": 3072,
            "mean_length": 61.5,
            "seconds_per_token": {"mean": 0.031, "median": 0.031, "lower": 0.03, "upper": 0.032},
        },
        "arms": arms,
        "models": [_model(name, arms) for name in drafters],
    }


def _arm(mode: str, drafter: str, place: int, length: int | None, kinds: tuple[str, ...]) -> dict[str, Any]:
    first = 0.86 - 0.22 * place
    drafts = 4 if length is None else length
    rates = [max(0.05, first - 0.045 * position) for position in range(drafts)]
    survival = [rates[0]]
    for rate in rates[1:]:
        survival.append(survival[-1] * rate)
    expected = sum(survival)
    draft, verify = 0.14 * drafts * (1 - 0.3 * place), 1 + 0.03 * drafts
    speedup = (1 + expected) / (draft + verify + 0.15)
    whole = draft + verify + 0.15
    greedy = mode == "greedy"
    return {
        "name": f"{drafter}, {'default' if length is None else f'K={length}'}",
        "drafter": drafter,
        "num_assistant_tokens": length,
        "coupling": "maximal",
        "layout": "replay",
        "refused": None,
        "acceptance": {
            "rounds": 300,
            "row_rounds": 1000,
            "drafted": 1000 * drafts,
            "accepted": round(1000 * expected),
            "published": round(1000 * (1 + expected)),
            "rate": expected / drafts,
            "tokens_per_round": 0.98 + expected,
            "tokens_per_target_forward": 0.97 + expected,
            "expected_accepted": expected,
            "expected_progress": 0.98 + expected,
            "prefix_law": [a - b for a, b in zip([1.0, *survival], [*survival, 0.0], strict=True)],
            "survival": survival,
            "by_position": rates,
            "reached": [round(1000 * one) for one in [1.0, *survival[:-1]]],
            "over_text": [
                {"from": at, "to": at + 16, "rate": max(0.05, first - 0.1 + 0.002 * at), "decisions": 300}
                for at in range(0, 64, 16)
            ],
            "by_kind": {
                kind: {
                    "prompts": 8,
                    "rate": min(0.98, expected / drafts * (0.7 + 0.12 * number)),
                    "tokens_per_round": 1 + expected * (0.7 + 0.1 * number),
                }
                for number, kind in enumerate(kinds)
            },
        },
        "speed": {
            "seconds_per_token": {
                "mean": 0.031 / speedup,
                "median": 0.031 / speedup,
                "lower": 0.03 / speedup,
                "upper": 0.032 / speedup,
            },
            "speedup": speedup,
            "interval": [speedup * 0.93, speedup * 1.06],
            "by_kind": {kind: speedup * (0.8 + 0.08 * number) for number, kind in enumerate(kinds)},
            "time_split": {
                "draft": draft / whole,
                "verify": verify / whole,
                "state": 0.05 / whole,
                "other": 0.1 / whole,
            },
            "expected_speedup": speedup * 1.05,
            "break_even_acceptance": 0.31,
            "clock": "cpu",
        },
        "quality": {
            "texts": 48,
            "identical": 48 if greedy else None,
            "identity_rate": 1.0 if greedy else None,
            "divergences": [],
            "findings": [] if greedy else [_finding("first tokens", 0.41), _finding("lengths", 0.77)],
            "not_tested": [] if greedy else ["Likelihoods: no text is long enough."],
            "likelihood": None if greedy else {"mean": 0.0012, "low": -0.012, "high": 0.0144, "level": 0.95},
            "metrics": [
                {
                    "name": "exact match",
                    "plain": 0.5,
                    "assisted": 0.5,
                    "mean": 0.0,
                    "low": -0.04,
                    "high": 0.04,
                    "level": 0.95,
                    "prompts": 48,
                    "sentence": "exact match shows no difference.",
                }
            ],
            "conclusion": "All 48 greedy texts are plain generate's."
            if greedy
            else "Nothing speaks against equal laws.",
        },
        "diagnosis": {
            "by_position": [
                {
                    "position": position + 1,
                    "decisions": 400,
                    "overlap": None if greedy else rate,
                    "divergence": None if position else 0.4,
                    "infinite": 3 if position else 0,
                    "same_top": rate,
                }
                for position, rate in enumerate(rates)
            ],
            "rejected_tokens": [
                {"token": 262, "text": " the", "drafted": 60, "rejected": 21},
                {"token": 13, "text": "\n", "drafted": 44, "rejected": 9},
            ],
            "causes": {"draft quality": 0.81, "processors": 0.12, "tokenizer mapping": 0.0, "position": 0.07},
            "cause_notes": {"processors": "The filters of the target exclude the token that was drafted."},
        },
    }


def _finding(subject: str, p_value: float) -> dict[str, Any]:
    return {
        "subject": subject,
        "statistic": 12.4,
        "p_value": p_value,
        "alpha": 0.01,
        "differs": False,
        "smallest": 0.14,
        "power": 0.8,
        "alternative": "a temperature off by {}",
    }


def _model(drafter: str, arms: list[dict[str, Any]]) -> dict[str, Any]:
    own = [arm for arm in arms if arm["drafter"] == drafter]
    fixed = [arm for arm in own if arm["num_assistant_tokens"] is not None]
    adaptive = [arm for arm in own if arm["num_assistant_tokens"] is None]
    longest = max((arm["num_assistant_tokens"] for arm in fixed), default=4)
    predicted = [1.0] + [1 + 0.28 * length - 0.035 * length**2 for length in range(1, longest + 1)]
    return {
        "drafter": drafter,
        "coupling": "maximal",
        "layout": "replay",
        "from": own[-1]["name"],
        "lengths": list(range(longest + 1)),
        "speedup": predicted,
        "best_length": max(range(longest + 1), key=predicted.__getitem__),
        "measured": [
            {"num_assistant_tokens": arm["num_assistant_tokens"], "speedup": arm["speed"]["speedup"]} for arm in fixed
        ],
        "default": adaptive[0]["speed"]["speedup"] if adaptive else None,
    }
