"""mergepoint: every node runs on a copy, and state changes at one point, the merge at its exit."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mergepoint.core.errors import (
        BudgetExceeded as BudgetExceeded,
    )
    from mergepoint.core.errors import (
        CallTimeout as CallTimeout,
    )
    from mergepoint.core.errors import (
        GateOpen as GateOpen,
    )
    from mergepoint.core.errors import (
        MergeError as MergeError,
    )
    from mergepoint.core.errors import (
        MergepointError as MergepointError,
    )
    from mergepoint.core.errors import (
        MissingKey as MissingKey,
    )
    from mergepoint.core.errors import (
        RailError as RailError,
    )
    from mergepoint.core.errors import (
        ReplayMiss as ReplayMiss,
    )
    from mergepoint.core.errors import (
        SessionError as SessionError,
    )
    from mergepoint.core.errors import (
        StepError as StepError,
    )
    from mergepoint.core.errors import (
        TreeError as TreeError,
    )
    from mergepoint.core.merge import MergeMode as MergeMode
    from mergepoint.models.ledger import Ledger as Ledger
    from mergepoint.models.prices import Price as Price
    from mergepoint.record.record import CallRecord as CallRecord
    from mergepoint.record.transcript import (
        Transcript as Transcript,
    )
    from mergepoint.record.transcript import (
        read_transcript as read_transcript,
    )
    from mergepoint.record.transcript import (
        write_transcript as write_transcript,
    )
    from mergepoint.record.usage import Usage as Usage
    from mergepoint.report.draw import to_mermaid as to_mermaid
    from mergepoint.report.draw import to_svg as to_svg
    from mergepoint.run.context import RunContext as RunContext
    from mergepoint.run.generation import (
        Generation as Generation,
    )
    from mergepoint.run.generation import (
        arun_generation as arun_generation,
    )
    from mergepoint.run.generation import (
        run_generation as run_generation,
    )
    from mergepoint.run.graph import Graph as Graph
    from mergepoint.run.graph import compile_graph as compile_graph
    from mergepoint.run.interpret import ainterpret as ainterpret
    from mergepoint.run.interpret import interpret as interpret
    from mergepoint.run.recorder import Event as Event
    from mergepoint.run.recorder import Recorder as Recorder
    from mergepoint.run.resume import aresume_graph as aresume_graph
    from mergepoint.run.resume import resume_graph as resume_graph
    from mergepoint.run.runner import ChatRunner as ChatRunner
    from mergepoint.session.fact import Fact as Fact
    from mergepoint.session.memory import SessionMemory as SessionMemory
    from mergepoint.session.message import SessionMessage as SessionMessage
    from mergepoint.session.sessions_at import open_session as open_session
    from mergepoint.session.turn import Reply as Reply
    from mergepoint.session.turn_runner import (
        TurnRunner as TurnRunner,
    )
    from mergepoint.session.turn_runner import (
        arun_turn as arun_turn,
    )
    from mergepoint.session.turn_runner import (
        cancel_turn as cancel_turn,
    )
    from mergepoint.session.turn_runner import (
        run_turn as run_turn,
    )
    from mergepoint.session.working_step import (
        StepCategory as StepCategory,
    )
    from mergepoint.session.working_step import (
        StepType as StepType,
    )
    from mergepoint.session.working_step import (
        WorkingStep as WorkingStep,
    )
    from mergepoint.streams.block import block as block
    from mergepoint.streams.compile_recipe import compile_recipe as compile_recipe
    from mergepoint.streams.recipe import (
        Recipe as Recipe,
    )
    from mergepoint.streams.recipe import (
        Stage as Stage,
    )
    from mergepoint.streams.run_recipe import (
        RecipeResult as RecipeResult,
    )
    from mergepoint.streams.run_recipe import (
        arun_recipe as arun_recipe,
    )
    from mergepoint.streams.run_recipe import (
        run_recipe as run_recipe,
    )
    from mergepoint.streams.run_recipe import (
        stream_recipe as stream_recipe,
    )
    from mergepoint.streams.thing import Thing as Thing
    from mergepoint.tree.block import Block as Block
    from mergepoint.tree.block import Input as Input
    from mergepoint.tree.budget import Budget as Budget
    from mergepoint.tree.call import (
        Call as Call,
    )
    from mergepoint.tree.check import check as check
    from mergepoint.tree.context import (
        CallContext as CallContext,
    )
    from mergepoint.tree.context import PromptContext as PromptContext
    from mergepoint.tree.decision import (
        Decision as Decision,
    )
    from mergepoint.tree.decision import (
        Question as Question,
    )
    from mergepoint.tree.gate import (
        Gate as Gate,
    )
    from mergepoint.tree.loop import (
        Loop as Loop,
    )
    from mergepoint.tree.node import Node as Node
    from mergepoint.tree.node import walk as walk
    from mergepoint.tree.overrides import with_overrides as with_overrides
    from mergepoint.tree.overrides import without as without
    from mergepoint.tree.policy import Policy as Policy
    from mergepoint.tree.policy import Retry as Retry
    from mergepoint.tree.step import ChatStep as ChatStep
    from mergepoint.tree.step import Step as Step
    from mergepoint.tree.template import Template as Template
    from mergepoint.tree.template import reads as reads
    from mergepoint.tree.yaml import (
        from_yaml as from_yaml,
    )
    from mergepoint.tree.yaml import (
        load_yaml as load_yaml,
    )
    from mergepoint.tree.yaml import (
        to_yaml as to_yaml,
    )

# Names are loaded when they are used: `import mergepoint` alone costs no import of an engine.
_HOMES = {
    "core.errors": (
        "BudgetExceeded CallTimeout GateOpen MergeError MergepointError MissingKey RailError "
        "ReplayMiss SessionError StepError TreeError"
    ),
    "core.merge": "MergeMode",
    "models.ledger": "Ledger",
    "models.prices": "Price",
    "record.record": "CallRecord",
    "record.transcript": "Transcript read_transcript write_transcript",
    "record.usage": "Usage",
    "report.draw": "to_mermaid to_svg",
    "run.context": "RunContext",
    "run.generation": "Generation arun_generation run_generation",
    "run.graph": "Graph compile_graph",
    "run.resume": "aresume_graph resume_graph",
    "run.interpret": "ainterpret interpret",
    "run.recorder": "Event Recorder",
    "run.runner": "ChatRunner",
    "session.fact": "Fact",
    "session.memory": "SessionMemory",
    "session.message": "SessionMessage",
    "session.sessions_at": "open_session",
    "session.turn": "Reply",
    "session.turn_runner": "TurnRunner arun_turn cancel_turn run_turn",
    "session.working_step": "StepCategory StepType WorkingStep",
    "streams.block": "block",
    "streams.compile_recipe": "compile_recipe",
    "streams.recipe": "Recipe Stage",
    "streams.run_recipe": "RecipeResult arun_recipe run_recipe stream_recipe",
    "streams.thing": "Thing",
    "tree.block": "Block Input",
    "tree.check": "check",
    "tree.context": "CallContext PromptContext",
    "tree.decision": "Decision Question",
    "tree.gate": "Gate",
    "tree.loop": "Loop",
    "tree.node": "Node walk",
    "tree.call": "Call",
    "tree.policy": "Policy Retry",
    "tree.overrides": "with_overrides without",
    "tree.budget": "Budget",
    "tree.step": "ChatStep Step",
    "tree.template": "Template reads",
    "tree.yaml": "from_yaml load_yaml to_yaml",
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names.split()}

__all__ = sorted(_HOME_OF)  # noqa: PLE0605  (a test holds it to the imports above)


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'mergepoint' has no attribute {name!r}")
    return getattr(import_module(f"mergepoint.{_HOME_OF[name]}"), name)


def __dir__() -> list[str]:
    return __all__
