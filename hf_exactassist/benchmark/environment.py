"""Where something was measured."""

from __future__ import annotations

import os
import platform
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from ..version import __version__


def environment(device: torch.device) -> dict[str, Any]:
    """What a figure depends on besides models and settings.

    Args:
        device (`torch.device`): where the models are.

    Returns:
        `dict[str, Any]`: machine, processor, threads of torch as they are set now, versions, load average, time.
    """
    return {
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "system": f"{platform.system()} {platform.machine()}",
        "processor": _processor(),
        "cpus": _usable_cpus(),
        "device": str(device),
        "accelerator": torch.cuda.get_device_name(device) if device.type == "cuda" else None,
        "threads": torch.get_num_threads(),
        "load_average": load_average(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": version("transformers"),
        "hf_exactassist": __version__,
    }


def described(model: PreTrainedModel, name: str) -> dict[str, Any]:
    """What a report says of a model.

    Args:
        model (`PreTrainedModel`): the model.
        name (`str`): what it is called.

    Returns:
        `dict[str, Any]`: name, class, number of parameters, dtype, attention path.
    """
    return {
        "name": name,
        "class": type(model).__name__,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "dtype": str(model.dtype).removeprefix("torch."),
        "attention": model.config.get_text_config()._attn_implementation,
    }


def load_average() -> list[float] | None:
    """Programs that wanted to run in the last 1, 5 and 15 minutes; `None` where the system does not count them."""
    try:
        return [round(load, 2) for load in os.getloadavg()]
    except (AttributeError, OSError):
        return None


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor() or platform.machine())


def _usable_cpus() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:
        return os.cpu_count() or 1
