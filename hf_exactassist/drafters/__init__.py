"""Anything that proposes tokens. A drafter cannot see the judge."""

from .assistant_model import AssistantModelDrafter
from .base import Drafter, DraftingContext
from .prompt_lookup import PromptLookupDrafter


__all__ = ["AssistantModelDrafter", "Drafter", "DraftingContext", "PromptLookupDrafter"]
