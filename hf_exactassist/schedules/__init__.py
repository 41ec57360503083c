"""How many tokens to draft next."""

from .adaptive import AdaptiveSchedule
from .base import DraftSchedule
from .costs import RoundCosts
from .experience import Experience
from .fixed import ConstantSchedule, HeuristicSchedule


__all__ = ["AdaptiveSchedule", "ConstantSchedule", "DraftSchedule", "Experience", "HeuristicSchedule", "RoundCosts"]
