"""From a conversation to the tokens of a prompt, and from an answer's tokens to its text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hf_exactassist.evaluation.texts import check_chat_template, in_chat


FORMATS = ("auto", "template", "plain")
_USER, _ASSISTANT = "User:", "Assistant:"


@dataclass(frozen=True)
class Chat:
    """How conversations are written.

    Attributes:
        tokenizer (`PreTrainedTokenizerBase`): the target's.
        template (`bool`): in its chat template; else in a plain format, one paragraph a turn, with the names `User`
            and `Assistant`.
    """

    tokenizer: Any
    template: bool

    @classmethod
    def of(cls, tokenizer: Any, form: str) -> Chat:
        """As asked for: `"auto"` takes the template if there is one.

        Raises:
            InvalidArgument: the template is asked for and there is none.
        """
        if form == "template":
            check_chat_template(tokenizer)
        return cls(tokenizer, form != "plain" and bool(getattr(tokenizer, "chat_template", None)))

    def prompt(self, asked: Sequence[str], answered: Sequence[str], where: str) -> list[int]:
        """Tokens of a conversation up to where the next answer begins.

        Args:
            asked (`Sequence[str]`): what the user said.
            answered (`Sequence[str]`): the answers, one fewer.
            where (`str`): what the question is called in errors.
        """
        if self.template:
            messages = [{"role": "user", "content": asked[0]}]
            for answer, turn in zip(answered, asked[1:], strict=True):
                messages += [{"role": "assistant", "content": answer}, {"role": "user", "content": turn}]
            text, _ = in_chat(messages, self.tokenizer, "turns", where)
            # the template writes special tokens itself
            return self.tokenizer(text, add_special_tokens=False)["input_ids"]
        parts = [f"{_USER} {asked[0]}"]
        for answer, turn in zip(answered, asked[1:], strict=True):
            parts += [f"{_ASSISTANT} {answer}", f"{_USER} {turn}"]
        return self.tokenizer("\n\n".join([*parts, _ASSISTANT]))["input_ids"]

    def answer(self, tokens: Sequence[int]) -> str:
        """An answer as the next prompt has it; in the plain format, up to where the model goes on as the user."""
        text = self.tokenizer.decode(tokens, skip_special_tokens=True)
        return (text if self.template else text.partition(f"\n{_USER}")[0]).strip()
