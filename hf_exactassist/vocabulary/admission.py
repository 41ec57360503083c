"""Whether target and assistant have one tokenizer, or two that can be mapped (contract 0x01A, 0x06K)."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from ..errors import DifferentVocabularies, InvalidArgument
from .mapping import VocabularyMap, build_map
from .pieces import Pieces, named, pieces_of
from .respelling import Respelling
from .transcript import Encode, Joins, Transcript


# heads are padded to multiples of 64, 128, ... up to this many spare rows
_LARGEST_PADDING = 1024
_PARTS_OF_A_TOKENIZER = ("get_vocab", "encode", "__len__", "all_special_ids", "added_tokens_decoder")
# what the target says of these the assistant must be able to say again: case, spaces, lines, digits, marks, scripts
_SAMPLES = (
    'The Quick brown fox, 3.14 times; it\'s "here" (or not)!',
    "two  spaces, a\ttab\nand a line\n\n  indented",
    "na\u00efve caf\u00e9 \u00fcber \u0394\u03bb \u0416\u0443\u043a \u65e5\u672c\u8a9e \U0001f917",
)


@dataclass(frozen=True, eq=False)
class TokenizerPair:
    """Two tokenizers that can be mapped.

    Attributes:
        target (`Pieces`): the target's vocabulary as bytes.
        assistant (`Pieces`): the assistant's.
        vocabulary_map (`VocabularyMap`): which tokens stand for the same.
        new_transcript (`Callable[[], Transcript]`): makes an empty transcript for a row.
        respelling (`Respelling`): the target's tokens for text of the assistant's.
    """

    target: Pieces
    assistant: Pieces
    vocabulary_map: VocabularyMap
    new_transcript: Callable[[], Transcript]
    respelling: Respelling


def shared_tokens(
    target_size: int,
    assistant_size: int,
    tokenizer: Any = None,
    assistant_tokenizer: Any = None,
    declared: Mapping[str, frozenset[Any]] | None = None,
    assistant_declared: Mapping[str, frozenset[Any]] | None = None,
) -> torch.Tensor | None:
    """Which target tokens have the same id and mean the same to the assistant.

    With both tokenizers their token maps are compared: every id that both know must stand for the same token. Without,
    the heads may differ by padding only, and the configurations must not speak against one vocabulary.

    Args:
        target_size (`int`): rows of the target's head.
        assistant_size (`int`): rows of the assistant's head.
        tokenizer (`PreTrainedTokenizerBase`, *optional*): the target's tokenizer.
        assistant_tokenizer (`PreTrainedTokenizerBase`, *optional*): the assistant's tokenizer.
        declared (`Mapping[str, frozenset]`, *optional*): what the target's configurations say of its tokens, from
            [`~hf_exactassist.models.compat.declared_tokens`].
        assistant_declared (`Mapping[str, frozenset]`, *optional*): what the assistant's say.

    Returns:
        `torch.BoolTensor` of shape `(target_size,)`: tokens that may be drafted; `None` if the tokenizers differ.

    Raises:
        DifferentVocabularies: there are no tokenizers to compare, and the heads or the configurations do not look
            like one vocabulary.
        InvalidArgument: what was given is no tokenizer.
    """
    for name, given in (("tokenizer", tokenizer), ("assistant_tokenizer", assistant_tokenizer)):
        if given is not None and not all(hasattr(given, part) for part in _PARTS_OF_A_TOKENIZER):
            raise InvalidArgument(
                f"`{name}` must be a tokenizer of Transformers, as `AutoTokenizer.from_pretrained` loads it, got "
                f"{given!r:.80}."
            )
    shared = torch.arange(target_size, device="cpu") < min(target_size, assistant_size)
    if tokenizer is None or assistant_tokenizer is None:
        if abs(target_size - assistant_size) > _LARGEST_PADDING:
            raise DifferentVocabularies(
                f"The heads have {target_size} and {assistant_size} rows, which is more than padding: target and "
                "assistant seem to have different tokenizers. Pass both, as `tokenizer=` and `assistant_tokenizer=`."
            )
        _check_declared(declared or {}, assistant_declared or {})
        return shared
    ours, theirs = tokenizer.get_vocab(), assistant_tokenizer.get_vocab()
    if ours != theirs:
        by_id, by_their_id = ({i: token for token, i in vocab.items()} for vocab in (ours, theirs))
        common = by_id.keys() & by_their_id.keys()
        if not common or any(by_id[i] != by_their_id[i] for i in common):
            return None
        ours = {by_id[i]: i for i in common}
    known = torch.zeros_like(shared)
    known[[i for i in ours.values() if i < target_size]] = True
    return shared & known


def _check_declared(ours: Mapping[str, frozenset[Any]], theirs: Mapping[str, frozenset[Any]]) -> None:
    """Models of two types that give every role to other tokens hardly share ids; one thing in common is enough.

    Any draft over the target's ids is exact: this keeps drafts from being useless, and nothing from being wrong.
    """
    both = [name for name in ours if name in theirs]
    roles = [name for name in both if name != "model_type"]
    if not roles or any(ours[name] & theirs[name] for name in both):
        return
    said = ", ".join(f"`{name}` {_listed(ours[name])} and {_listed(theirs[name])}" for name in roles)
    types = " and ".join(map(_listed, (ours["model_type"], theirs["model_type"])))
    raise DifferentVocabularies(
        f"The configurations of target and assistant ({types}) agree on no special token: {said}. They seem to have "
        "different tokenizers. Pass both, as `tokenizer=` and `assistant_tokenizer=`."
    )


def _listed(values: frozenset[Any]) -> str:
    return "/".join(map(str, sorted(values)))


# pairs built last, and their tokenizers, so that identities stay theirs
_BUILT: OrderedDict[tuple[int, ...], tuple[TokenizerPair, Any]] = OrderedDict()
_PAIRS_KEPT = 8


def pair_of(target_size: int, assistant_size: int, tokenizer: Any, assistant_tokenizer: Any) -> TokenizerPair:
    """Maps two different tokenizers, once for every pair and its vocabularies.

    Args:
        target_size (`int`): rows of the target's head.
        assistant_size (`int`): rows of the assistant's head.
        tokenizer (`PreTrainedTokenizerBase`): the target's tokenizer.
        assistant_tokenizer (`PreTrainedTokenizerBase`): the assistant's tokenizer.

    Raises:
        DifferentVocabularies: no token is common, a tokenizer does not say what its tokens stand for, or the
            assistant's does not give back the text it was given.
    """
    both = (tokenizer, assistant_tokenizer)
    inner = [getattr(one, "_tokenizer", None) for one in both]
    # tokens may be added to a tokenizer at any time
    key = (target_size, assistant_size, *map(id, both), *map(len, both), *map(id, inner))
    if key not in _BUILT:
        target, assistant = pieces_of(tokenizer, "target"), pieces_of(assistant_tokenizer, "assistant")
        vocabulary_map = build_map(target, assistant, target_size, assistant_size)
        encode = _encoder(assistant_tokenizer)
        for sample in _SAMPLES:
            said = b"".join(target.text.get(token, b"") for token in _encoder(tokenizer)(sample))
            _check_round_trip(assistant_tokenizer, assistant, encode, said.decode(errors="replace").strip(" "))
        joins, opening = Joins(assistant), _opening(assistant_tokenizer, encode)
        pair = TokenizerPair(
            target,
            assistant,
            vocabulary_map,
            lambda: Transcript(target, assistant, joins, encode, opening),
            Respelling(target, _encoder(tokenizer)),
        )
        _BUILT[key] = (pair, (both, inner))
        while len(_BUILT) > _PAIRS_KEPT:
            _BUILT.popitem(last=False)
    return _BUILT[key][0]


def as_read(tokenizer: Any, text: str) -> list[int]:
    """A text in tokens, behind what the tokenizer puts before every text, and with nothing after it."""
    encode = _encoder(tokenizer)
    return [*_opening(tokenizer, encode), *encode(text)]


def _encoder(tokenizer: Any) -> Encode:
    return lambda text: tokenizer.encode(text, add_special_tokens=False)


def _opening(tokenizer: Any, encode: Encode) -> list[int]:
    """What a tokenizer puts before a text: its BOS, usually, or nothing."""
    whole, bare = tokenizer.encode("a"), encode("a")
    at = next((i for i in range(len(whole)) if whole[i : i + len(bare)] == bare), 0)
    return list(whole[:at])


def _check_round_trip(tokenizer: Any, pieces: Pieces, encode: Encode, text: str) -> None:
    """What the target can say must come back from the assistant's tokenizer; how the target got there is its own."""
    said = b"".join(pieces.text.get(token, b"") for token in encode(text)).decode(errors="replace").removeprefix(" ")
    if said != text:
        place = next((i for i, (a, b) in enumerate(zip(text, said, strict=False)) if a != b), 0)
        # with a few characters that are still the same
        start = max(place - 6, 0)
        raise DifferentVocabularies(
            f"The assistant's tokenizer, {named(tokenizer)}, changes text: {text[start : place + 16]!r} comes "
            f"back as {said[start : place + 16]!r}. Drafts would be about another text: use an assistant with the "
            "target's tokenizer, or one whose tokenizer keeps text as it is."
        )
