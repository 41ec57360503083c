"""From the names on the command line to models and tokenizers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .console import CommandError, UsageError, one_line, working


if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


DTYPES = ("auto", "float32", "bfloat16", "float16")

_MODELS = "Models"
Target = Annotated[
    str | None,
    typer.Option(
        "--target",
        "-t",
        metavar="MODEL",
        help="Folder or Hub id of the target.",
        show_default="the embedded pair",
        rich_help_panel=_MODELS,
    ),
]
Assistant = Annotated[
    str | None,
    typer.Option(
        "--assistant",
        "-a",
        metavar="MODEL",
        help="Folder or Hub id of a smaller model.",
        rich_help_panel=_MODELS,
    ),
]
Dtype = Annotated[
    str | None,
    typer.Option(
        metavar="DTYPE",
        help=f"Precision of both models: {', '.join(DTYPES)}.",
        show_default="as saved; float32 for the embedded pair",
        rich_help_panel=_MODELS,
    ),
]
Device = Annotated[
    str | None,
    typer.Option(
        metavar="DEVICE",
        help="cpu, cuda, cuda:1, ...",
        show_default="a CUDA device if there is one",
        rich_help_panel=_MODELS,
    ),
]
Attention = Annotated[
    str | None,
    typer.Option(
        "--attn-implementation",
        metavar="NAME",
        help="Attention path of both models: sdpa or eager.",
        show_default="Transformers' choice",
        rich_help_panel=_MODELS,
    ),
]
TrustRemoteCode = Annotated[
    bool,
    typer.Option("--trust-remote-code", help="Run code that comes with the checkpoints.", rich_help_panel=_MODELS),
]
AsJson = Annotated[bool, typer.Option("--json", help="Write one JSON object to stdout instead of text.")]
Debug = Annotated[
    bool, typer.Option("--debug", envvar="EXACTASSIST_DEBUG", help="Show tracebacks and the libraries' own warnings.")
]


@dataclass(frozen=True)
class Loaded:
    """A target and, unless it drafts by itself, an assistant.

    Attributes:
        target (`PreTrainedModel`): the target, in evaluation mode.
        tokenizer (`PreTrainedTokenizerBase`): the target's; `None` only where it was not asked for.
        target_name (`str`): its name for messages.
        assistant (`PreTrainedModel`, *optional*): the assistant, in evaluation mode.
        assistant_tokenizer (`PreTrainedTokenizerBase`, *optional*): the assistant's, if its checkpoint has one.
        assistant_name (`str`): its name for messages; empty without one.
    """

    target: PreTrainedModel
    tokenizer: Any
    target_name: str
    assistant: PreTrainedModel | None
    assistant_tokenizer: PreTrainedTokenizerBase | None
    assistant_name: str


def load(
    target: str | None,
    assistant: str | None,
    *,
    with_assistant: bool = True,
    with_tokenizer: bool = True,
    dtype: str | None = None,
    device: str | None = None,
    attn_implementation: str | None = None,
    trust_remote_code: bool = False,
) -> Loaded:
    """Loads target and assistant; the embedded ones where no name is given.

    Args:
        target (`str`, *optional*): folder or Hub id.
        assistant (`str`, *optional*): folder or Hub id.
        with_assistant (`bool`): load an assistant at all.
        with_tokenizer (`bool`): whether the target must have a tokenizer, and not only may.
        dtype (`str`, *optional*): one of `DTYPES`; of the checkpoint by default, float32 for the embedded pair.
        device (`str`, *optional*): a CUDA device if there is one by default.
        attn_implementation (`str`, *optional*): attention path; Transformers' choice by default.
        trust_remote_code (`bool`): run code of the checkpoints.

    Returns:
        `Loaded`: the models.

    Raises:
        UsageError: a dtype or device that does not exist.
        CommandError: a checkpoint that cannot be loaded.
    """
    loader = Loader(dtype, device, attn_implementation, trust_remote_code)
    # before the model, which takes longer
    tokenizer = loader.tokenizer("target", target) if with_tokenizer else loader.tokenizer_if_any("target", target)
    ours = loader.model("target", target)
    if not with_assistant:
        return Loaded(ours, tokenizer, target or "embedded", None, None, "")
    theirs = loader.model("assistant", assistant)
    assistant_tokenizer = loader.tokenizer_if_any("assistant", assistant)
    return Loaded(ours, tokenizer, target or "embedded", theirs, assistant_tokenizer, assistant or "embedded")


class Loader:
    """Loads models and tokenizers, all in the same way.

    Args:
        dtype (`str`, *optional*): one of `DTYPES`; of the checkpoint by default, float32 for the embedded pair.
        device (`str`, *optional*): a CUDA device if there is one by default.
        attn_implementation (`str`, *optional*): attention path; Transformers' choice by default.
        trust_remote_code (`bool`): run code of the checkpoints.

    Raises:
        UsageError: a dtype or device that does not exist.
    """

    def __init__(
        self,
        dtype: str | None = None,
        device: str | None = None,
        attn_implementation: str | None = None,
        trust_remote_code: bool = False,
    ) -> None:
        if dtype is not None and dtype not in DTYPES:
            raise UsageError(f"Unknown --dtype {dtype!r}: choose one of {', '.join(DTYPES)}.")
        self.dtype, self.device, self.attention = dtype, device_of(device), attn_implementation
        self.shared = {"trust_remote_code": trust_remote_code}

    def model(self, role: str, name: str | None) -> PreTrainedModel:
        """A model in evaluation mode.

        Args:
            role (`str`): `"target"` or `"assistant"`.
            name (`str`, *optional*): folder or Hub id; the embedded one by default.

        Raises:
            CommandError: a checkpoint that cannot be loaded.
        """
        from transformers import AutoModelForCausalLM

        kwargs = {"dtype": self.dtype or ("float32" if name is None else "auto"), **self.shared}
        if self.attention is not None:
            kwargs["attn_implementation"] = self.attention
        folder = _checkpoint(role, name)
        with working(f"Loading the {_called(role, name)}"):
            try:
                return AutoModelForCausalLM.from_pretrained(folder, **kwargs).to(self.device).eval()
            except Exception as error:
                raise CommandError(f"Cannot load the {_called(role, name)}: {one_line(error)}") from error

    def tokenizer(self, role: str, name: str | None) -> PreTrainedTokenizerBase:
        """The tokenizer of a model; arguments as for [`model`].

        Raises:
            CommandError: there is none.
        """
        from transformers import AutoTokenizer

        try:
            tokenizer = AutoTokenizer.from_pretrained(_checkpoint(role, name), **self.shared)
            if set(tokenizer.get_vocab().values()) <= set(tokenizer.all_special_ids):
                # some classes are made without any files
                raise ValueError("it has special tokens alone")
            return tokenizer
        except CommandError:
            raise
        except Exception as error:
            raise CommandError(
                f"Cannot load the tokenizer of the {_called(role, name)}; if there is none, save it beside the model "
                f"with `tokenizer.save_pretrained`: {one_line(error)}"
            ) from error

    def tokenizer_if_any(self, role: str, name: str | None) -> PreTrainedTokenizerBase | None:
        """The same, or `None`: then the sizes of the heads and the special tokens are compared, as in the library."""
        try:
            return self.tokenizer(role, name)
        except CommandError:
            return None


def _called(role: str, name: str | None) -> str:
    return f"embedded {role}" if name is None else f"{role} {name!r}"


def _checkpoint(role: str, name: str | None) -> Any:
    """What `from_pretrained` is given."""
    if name is None:
        from ..demo import assistant_path, target_path

        try:
            return target_path() if role == "target" else assistant_path()
        except FileNotFoundError as error:
            raise CommandError(f"{one_line(error)} Or name your own models with --target and --assistant.") from error
    path = Path(name).expanduser()
    if path.is_dir():
        return path
    if path.is_file():
        raise CommandError(f"The {role} {name!r} is a file: give the folder that `save_pretrained` wrote.")
    if name.startswith((".", "/", "~", "\\")):
        raise CommandError(f"The {role} {name!r} does not exist: give the folder of a checkpoint, or a Hub id.")
    return name


def device_of(name: str | None) -> torch.device:
    """The device of that name; a CUDA device by default, if there is one.

    Raises:
        UsageError: it does not exist here.
    """
    import torch

    if name is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    # torch raises AssertionError where it was built without the kind
    except (RuntimeError, AssertionError) as error:
        raise UsageError(f"The device {name!r} cannot be used here: {str(error).splitlines()[0]}") from error
    return device
