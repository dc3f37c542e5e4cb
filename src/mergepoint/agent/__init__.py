"""The agent: plan, ask for approval, write code, run it, answer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mergepoint.core.lazy import lazy_names

if TYPE_CHECKING:
    from mergepoint.agent.skills import EXAMPLES as EXAMPLES
    from mergepoint.agent.skills import SkillLibrary as SkillLibrary
    from mergepoint.agent.tree import agent as agent
    from mergepoint.agent.turns import Pending as Pending
    from mergepoint.agent.turns import answer as answer
    from mergepoint.agent.turns import cancel as cancel
    from mergepoint.agent.turns import decide as decide
    from mergepoint.agent.turns import go_on as go_on
    from mergepoint.agent.turns import pending as pending
    from mergepoint.agent.turns import say as say

__all__ = [
    "EXAMPLES",
    "Pending",
    "SkillLibrary",
    "agent",
    "answer",
    "cancel",
    "decide",
    "go_on",
    "pending",
    "say",
]

_HOMES = {
    "mergepoint.agent.skills": "EXAMPLES SkillLibrary",
    "mergepoint.agent.tree": "agent",
    "mergepoint.agent.turns": "Pending answer cancel decide go_on pending say",
}
if not TYPE_CHECKING:  # to a type checker a module with `__getattr__` has any name
    __getattr__, __dir__ = lazy_names(__name__, _HOMES)
