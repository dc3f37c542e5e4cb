"""Sessions: conversations on disk, with their turns, facts and working steps."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mergepoint.core.lazy import lazy_names

if TYPE_CHECKING:
    from mergepoint.session.entries import Fact as Fact
    from mergepoint.session.entries import SessionMessage as SessionMessage
    from mergepoint.session.entries import StepCategory as StepCategory
    from mergepoint.session.entries import StepType as StepType
    from mergepoint.session.entries import WorkingStep as WorkingStep
    from mergepoint.session.entries import execution_content as execution_content
    from mergepoint.session.fact_extraction import ModelFacts as ModelFacts
    from mergepoint.session.fact_extraction import learn_facts as learn_facts
    from mergepoint.session.session_memory import SessionMemory as SessionMemory
    from mergepoint.session.session_store import check_session as check_session
    from mergepoint.session.session_store import open_session as open_session
    from mergepoint.session.session_store import repair_session as repair_session
    from mergepoint.session.session_store import sessions_at as sessions_at
    from mergepoint.session.turn_runner import Reply as Reply
    from mergepoint.session.turn_runner import TurnRunner as TurnRunner
    from mergepoint.session.turn_runner import arun_turn as arun_turn
    from mergepoint.session.turn_runner import cancel_turn as cancel_turn
    from mergepoint.session.turn_runner import run_turn as run_turn
    from mergepoint.session.yaml_import import import_session as import_session

__all__ = [
    "Fact",
    "ModelFacts",
    "Reply",
    "SessionMemory",
    "SessionMessage",
    "StepCategory",
    "StepType",
    "TurnRunner",
    "WorkingStep",
    "arun_turn",
    "cancel_turn",
    "check_session",
    "execution_content",
    "import_session",
    "learn_facts",
    "open_session",
    "repair_session",
    "run_turn",
    "sessions_at",
]

_HOMES = {
    "mergepoint.session.entries": (
        "Fact SessionMessage StepCategory StepType WorkingStep execution_content"
    ),
    "mergepoint.session.fact_extraction": "ModelFacts learn_facts",
    "mergepoint.session.session_memory": "SessionMemory",
    "mergepoint.session.session_store": "check_session open_session repair_session sessions_at",
    "mergepoint.session.turn_runner": "Reply TurnRunner arun_turn cancel_turn run_turn",
    "mergepoint.session.yaml_import": "import_session",
}
if not TYPE_CHECKING:  # to a type checker a module with `__getattr__` has any name
    __getattr__, __dir__ = lazy_names(__name__, _HOMES)
