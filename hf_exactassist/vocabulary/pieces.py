"""What bytes each token of a tokenizer stands for.

Two tokenizers have one event space in common: bytes of text. Whether a token of one is a token of the other is decided
by these bytes and by the roles of special tokens, never by ids or sizes (contract 0x01A, 0x06K).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..errors import DifferentVocabularies


_ROLES = ("bos_token_id", "eos_token_id", "pad_token_id", "unk_token_id", "sep_token_id", "cls_token_id")
# the roles that may be drafted: the others never stand for an event of generated text
_DRAFTED_ROLES = ("eos_token_id",)
_SPACE = "\N{LOWER ONE EIGHTH BLOCK}"


@dataclass(frozen=True)
class Pieces:
    """The tokens of a tokenizer as bytes.

    Attributes:
        text (`dict[int, bytes]`): ordinary tokens.
        special (`dict[int, str]`): special tokens and their content.
        roles (`dict[str, int]`): ids of special tokens by role, such as `"eos_token_id"`.
        strips_first_space (`bool`): whether a space at the very beginning is the tokenizer's own, not the text's.
        digest (`str`): SHA-256 of all this.
    """

    text: dict[int, bytes]
    special: dict[int, str]
    roles: dict[str, int]
    strips_first_space: bool
    digest: str

    @property
    def drafted_roles(self) -> dict[str, int]:
        """Special tokens that mean an event of generated text."""
        return {role: token for role, token in self.roles.items() if role in _DRAFTED_ROLES}


def named(tokenizer: Any) -> str:
    """A tokenizer's class, and where it comes from if that is known."""
    source = getattr(tokenizer, "name_or_path", "")
    return type(tokenizer).__name__ + (f" of {source!r}" if source else "")


def pieces_of(tokenizer: Any, role: str = "") -> Pieces:
    """Reads a tokenizer's vocabulary as bytes.

    Args:
        tokenizer (`PreTrainedTokenizerBase`): the tokenizer; not changed.
        role (`str`): whose it is, for messages.

    Raises:
        DifferentVocabularies: it does not say what bytes its tokens stand for.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    parts: dict[str, Any] = {} if backend is None else json.loads(backend.to_str())
    kinds = set().union(*(_kinds(parts.get(name)) for name in ("decoder", "pre_tokenizer", "normalizer")))
    vocabulary = tokenizer.get_vocab()
    added = {token: str(entry) for token, entry in getattr(tokenizer, "added_tokens_decoder", {}).items()}
    special_ids = {token for token in tokenizer.all_special_ids if token is not None}
    special_ids |= {token for token, entry in tokenizer.added_tokens_decoder.items() if entry.special}
    read = _reader(f"{role} tokenizer {named(tokenizer)}".strip(), kinds, vocabulary)
    text = {}
    for token, index in vocabulary.items():
        if index in special_ids:
            continue
        # what was added later stands for its own text
        piece = added[index].encode() if index in added else read(token)
        if piece:
            text[index] = piece
    special = {index: added.get(index) or tokenizer.convert_ids_to_tokens(index) for index in sorted(special_ids)}
    roles = {role: getattr(tokenizer, role, None) for role in _ROLES}
    known = {role: int(token) for role, token in roles.items() if token is not None}
    strips = "Strip" in kinds or ("Metaspace" in kinds and '"prepend_scheme": "never"' not in json.dumps(parts))
    said = json.dumps([sorted((i, p.hex()) for i, p in text.items()), special, known, strips], sort_keys=True)
    return Pieces(text, special, known, strips, hashlib.sha256(said.encode()).hexdigest())


def _kinds(part: Any) -> set[str]:
    """Types of a tokenizer's part and of what it is made of; a replaced space sign counts as `Metaspace`."""
    if isinstance(part, list):
        return set().union(*map(_kinds, part)) if part else set()
    if not isinstance(part, dict):
        return set()
    kinds = {part["type"]} if isinstance(part.get("type"), str) else set()
    if part.get("type") == "Replace" and _SPACE in json.dumps(part, ensure_ascii=False):
        kinds.add("Metaspace sign")
    for value in part.values():
        kinds |= _kinds(value)
    return kinds


def _reader(name: str, kinds: set[str], vocabulary: dict[str, int]) -> Callable[[str], bytes]:
    """How a token's name becomes bytes; `name` is what messages call the tokenizer."""
    if "ByteLevel" in kinds:
        back = {sign: byte for byte, sign in _byte_signs().items()}
        return lambda token: bytes(back[sign] for sign in token) if all(sign in back for sign in token) else b""
    spaced = kinds & {"Metaspace", "Metaspace sign"} or any(token.startswith(_SPACE) for token in vocabulary)
    if spaced:
        return lambda token: _fallback_byte(token) or token.replace(_SPACE, " ").encode()
    if "WordPiece" in kinds:
        return lambda token: token[2:].encode() if token.startswith("##") else f" {token}".encode()
    raise DifferentVocabularies(
        f"The {name} does not say what bytes its tokens stand for (no byte-level, SentencePiece or "
        "WordPiece decoder), so it cannot be compared with another tokenizer: use an assistant with the same one."
    )


def _fallback_byte(token: str) -> bytes | None:
    """The byte of a token such as `<0xE2>`."""
    if len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
        try:
            return bytes([int(token[3:5], 16)])
        except ValueError:
            return None
    return None


def _byte_signs() -> dict[int, str]:
    """The printable sign that byte-level tokenizers write for each byte (Radford et al. 2019)."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {byte: chr(256 + i) for i, byte in enumerate(others)}
