"""From the name of a data set to its rows: files, folders and the Hub, through `datasets`."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import InvalidArgument, UnusableData


if TYPE_CHECKING:
    from datasets import Dataset, DatasetDict


# how `datasets` calls what can read a file
READERS = {".json": "json", ".jsonl": "json", ".parquet": "parquet", ".csv": "csv", ".txt": "text"}


@dataclass(frozen=True)
class Table:
    """The rows of one split.

    Attributes:
        rows (`Dataset`): all rows, as plain Python objects.
        split (`str`, *optional*): the name of the split; `None` for a data set without splits.
        used (`Sequence[int]`): numbers of the rows that hold something: all, but for blank lines of a text file.
    """

    rows: Dataset
    split: str | None
    used: Sequence[int]


def open_table(name: str, config: str | None = None, split: str | None = None) -> Table:
    """Reads a data set.

    Args:
        name (`str`): a file (`.json`, `.jsonl`, `.parquet`, `.csv`, `.txt`), a folder of such files or one that
            `save_to_disk` wrote, or the Hub id of a data set, `owner/name`.
        config (`str`, *optional*): the configuration, of those that have several.
        split (`str`, *optional*): may be left out where there is but one.

    Returns:
        `Table`: at least one row.

    Raises:
        InvalidArgument: `datasets` is not installed.
        UnusableData: it is not there or cannot be read, it has no rows, or the split is unknown.
    """
    try:
        import datasets
    except ImportError as error:
        raise InvalidArgument("Data sets need a package: pip install 'hf-exactassist[eval]'.") from error
    path = Path(os.path.expanduser(name))
    loaded = _local(datasets, path, config) if name and path.exists() else _from_hub(datasets, name, config)
    rows, split = _chosen(datasets, loaded, split, name)
    # a saved data set keeps the format it was given, tensors for example
    rows = rows.with_format(None)
    used: Sequence[int] = range(len(rows))
    if path.suffix.lower() == ".txt":
        used = [number for number, line in enumerate(rows["text"]) if line.strip()]
    if not used:
        raise UnusableData(f"{_called(name, split)} has no rows: give a data set with at least one prompt.")
    return Table(rows, split, used)


def _local(datasets: Any, path: Path, config: str | None) -> Dataset | DatasetDict:
    saved = path.is_dir() and any((path / file).is_file() for file in ("state.json", "dataset_dict.json"))
    if config is not None and (saved or path.is_file()):
        raise UnusableData(f"{path} has no configurations: leave {config!r} out.")
    if path.is_dir():
        try:
            return datasets.load_from_disk(str(path)) if saved else datasets.load_dataset(str(path.resolve()), config)
        except Exception as error:
            todo = "save it again, with at least one row" if saved else "correct its files, or give one of them"
            raise UnusableData(f"Cannot read the folder {path} ({_reason(error)}): {todo}.") from error
    reader = READERS.get(path.suffix.lower())
    if reader is None:
        raise UnusableData(f"Cannot tell what {path} is: give a file that ends in one of {', '.join(READERS)}.")
    if not path.stat().st_size:
        raise UnusableData(f"{path} is empty: give a file with at least one prompt.")
    # "NA" and "null" are words like others
    more = {"keep_default_na": False} if reader == "csv" else {}
    try:
        # what is given here is a pattern
        return datasets.load_dataset(reader, data_files=glob.escape(str(path.resolve())), **more)
    except Exception as error:
        raise UnusableData(
            f"Cannot read {path} as {path.suffix.lower()} ({_reason(error)}): correct the file, or its name if "
            "it is of another format."
        ) from error


def _from_hub(datasets: Any, name: str, config: str | None) -> DatasetDict:
    hub_id = re.fullmatch(r"[A-Za-z0-9_][\w.-]*/[\w.-]+", name)
    if not hub_id or Path(name).suffix.lower() in READERS:
        raise UnusableData(f"{name!r} is not there: give a file or folder that exists, or a Hub id like owner/name.")
    try:
        return datasets.load_dataset(name, config)
    except ConnectionError as error:
        raise UnusableData(
            f"{name} is no file or folder here, and the Hub cannot be reached ({_reason(error)}): correct the path, "
            "give a data set that is on this machine, or go online (HF_HUB_OFFLINE must not be set)."
        ) from error
    except Exception as error:
        raise UnusableData(
            f"{name} is no file or folder here, and cannot be read from the Hub ({_reason(error)}): correct the "
            "name or the configuration."
        ) from error


def _chosen(datasets: Any, loaded: Dataset | DatasetDict, split: str | None, name: str) -> tuple[Dataset, str | None]:
    if not isinstance(loaded, datasets.DatasetDict):
        own = None if loaded.split is None else str(loaded.split)
        if split not in (None, own):
            raise UnusableData(f"{name} has no split {split!r}: it is one table; leave the split out.")
        return loaded, own
    splits = sorted(loaded)
    if split is None and len(splits) != 1:
        raise UnusableData(f"{name} has several splits: choose one of {', '.join(splits)}.")
    if split is not None and split not in splits:
        raise UnusableData(f"{name} has no split {split!r}: choose one of {', '.join(splits)}.")
    split = split or splits[0]
    return loaded[split], split


def _called(name: str, split: str | None) -> str:
    return name if split is None else f"{name}, split {split},"


def _reason(error: BaseException) -> str:
    """What went wrong first, on one line: `datasets` wraps it in errors that say little."""
    while error.__cause__ is not None:
        error = error.__cause__
    return " ".join(str(error).split()) or type(error).__name__
