"""Whether target and assistant share their token map (contract 0x01A, 0x06K)."""

from __future__ import annotations

from typing import Any

import torch

from ..errors import DifferentVocabularies


# heads are padded to multiples of 64, 128, ... up to this many spare rows
_LARGEST_PADDING = 1024


def shared_tokens(
    target_size: int, assistant_size: int, tokenizer: Any = None, assistant_tokenizer: Any = None
) -> torch.Tensor:
    """Which target tokens mean the same to the assistant.

    With both tokenizers their token maps are compared: every id that both know must stand for the same token. Without,
    the heads may differ by padding only.

    Args:
        target_size (`int`): rows of the target's head.
        assistant_size (`int`): rows of the assistant's head.
        tokenizer (`PreTrainedTokenizerBase`, *optional*): the target's tokenizer.
        assistant_tokenizer (`PreTrainedTokenizerBase`, *optional*): the assistant's tokenizer.

    Returns:
        `torch.BoolTensor` of shape `(target_size,)`: tokens that may be drafted.

    Raises:
        DifferentVocabularies: the maps disagree, or nothing shows that they agree.
    """
    shared = torch.arange(target_size, device="cpu") < min(target_size, assistant_size)
    if tokenizer is None or assistant_tokenizer is None:
        if abs(target_size - assistant_size) > _LARGEST_PADDING:
            raise DifferentVocabularies(
                f"The heads have {target_size} and {assistant_size} rows, which is more than padding: target and "
                "assistant seem to have different tokenizers. Pass `tokenizer=` and `assistant_tokenizer=` to compare "
                "them, or use an assistant of the target's family."
            )
        return shared
    ours, theirs = tokenizer.get_vocab(), assistant_tokenizer.get_vocab()
    if ours == theirs:
        known = torch.zeros_like(shared)
        known[[i for i in ours.values() if i < target_size]] = True
        return shared & known
    by_id, by_their_id = ({i: token for token, i in vocab.items()} for vocab in (ours, theirs))
    common = by_id.keys() & by_their_id.keys()
    clash = next((i for i in sorted(common) if by_id[i] != by_their_id[i]), None)
    if clash is not None or not common:
        example = f" (id {clash} is {by_id[clash]!r} and {by_their_id[clash]!r})" if clash is not None else ""
        raise DifferentVocabularies(
            f"Target and assistant have different tokenizers{example}. Drafting across tokenizers is not supported "
            "yet: use an assistant with the target's tokenizer."
        )
    known = torch.zeros_like(shared)
    known[[i for i in common if i < target_size]] = True
    return shared & known
