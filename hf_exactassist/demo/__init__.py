"""The embedded pair: a small target and its assistant, for demonstrations and tests without a network.

What the two models are, and how they were made, is told by the model card, `README.md` beside this file.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import torch


if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

__all__ = ["PROMPTS", "assistant_path", "load_pair", "target_path"]

# Openings in the manner of the corpus, none of them quoted from it.
PROMPTS: tuple[str, ...] = (
    "HAMLET.\n",
    "KING HENRY.\nMy lords,",
    "[Enter a Messenger.]\n\nMESSENGER.\n",
    "FIRST WITCH.\nWhere shall we meet when all the fires are cold?\n\nSECOND WITCH.\n",
    "O gentle night, that hid'st my wandering feet,\n",
    "ACT II.\n\nSCENE I. A street before the Duke's house.\n\n",
    "When all the world is weary of the sun,\nAnd every bird is silent on the bough,\n",
    "QUEEN.\nWhat news, good sir? Thy face is white as snow.\n\nLORD.\nMadam, the ships are lost.\n\nQUEEN.\n",
    "FOOL.\nNuncle, I had a dream last night,",
    "The king is dead. Long live",
    "I pray you, tell me,",
    "ROSALIND.\nNay, if you love me, you shall hold your tongue till I have done; for I have such a tale to tell"
    " of this forest as would make a stone laugh.\n\nORLANDO.\n",
    "SCENE IV. The forest.\n\n[Enter two Huntsmen.]\n\nFIRST HUNTSMAN.\n",
    "But love, that sees no morning and no door,\nComes in at midnight like a thief for gold,\nAnd takes no more"
    " than what we had before,\nAnd leaves us poor, and we are glad, though old.\n",
    "CAPTAIN.\nWho goes there?\n\nSOLDIER.\nA friend.\n\nCAPTAIN.\nWhat friend?\n\nSOLDIER.\n",
    "Good morrow, cousin.\n",
    "DUKE.\nLet him come in, and let the doors be barr'd;\nFor he that brings me word of my son's death\nShall have"
    " the hearing that a father gives,\nAnd then the payment. Speak.\n\nSERVANT.\n",
    "[Flourish. Exeunt all but the Bastard.]\n\nBASTARD.\n",
    "Thou hast a heart of",
    "NURSE.\nLady, the moon is up, the garden wall is low, and there is one beneath it that sighs like a bellows."
    "\n\nJULIET.\n",
    "Sir, I am a poor man, and",
    "My mistress hath no roses in her hair,\n",
    "CASSIUS.\nThe people cry for bread and not for crowns;\nThe senate sits and counts its own grey beards;\nAnd we,"
    " that should be swords, are made of straw.\nWhat says my noble brother to this matter?\n\nBRUTUS.\nI have not"
    " slept since first you spoke of it.\nBetween the thought and the unhappy deed\nThe mind is like a city under"
    " siege,\nWhere every gate hath treason for its guard.\nGo, bid the others come to me by night.\n\nCASSIUS.\n",
    "EPILOGUE.\n\nNow have you seen our little battle fought,\n",
)


def target_path() -> Path:
    """The checkpoint folder of the target.

    Returns:
        `Path`: A folder for `from_pretrained`.
    """
    return _checkpoint_path("target")


def assistant_path() -> Path:
    """The checkpoint folder of the assistant.

    Returns:
        `Path`: A folder for `from_pretrained`.
    """
    return _checkpoint_path("assistant")


def load_pair(
    dtype: torch.dtype = torch.float32,
) -> tuple[PreTrainedModel, PreTrainedModel, PreTrainedTokenizerBase]:
    """Load the embedded pair and the tokenizer that both models share.

    Args:
        dtype (`torch.dtype`, *optional*, defaults to `torch.float32`):
            The precision of the loaded weights; on disk they are `torch.bfloat16`.

    Returns:
        `tuple[PreTrainedModel, PreTrainedModel, PreTrainedTokenizerBase]`: Target and assistant, both in evaluation
        mode on the CPU, and the tokenizer.

    Raises:
        FileNotFoundError: If the installation holds no checkpoints.
    """
    from transformers import AutoModelForCausalLM, AutoTokenizer

    target = AutoModelForCausalLM.from_pretrained(target_path(), dtype=dtype).eval()
    assistant = AutoModelForCausalLM.from_pretrained(assistant_path(), dtype=dtype).eval()
    return target, assistant, AutoTokenizer.from_pretrained(target_path())


def _checkpoint_path(name: str) -> Path:
    # `from_pretrained` needs a folder on disk, which the package's own file gives without unpacking a copy.
    path = Path(__file__).resolve().parent / name
    if not (path / "config.json").is_file():
        raise FileNotFoundError(f"The embedded {name} is missing in {path}: install hf_exactassist as a folder.")
    return path
