"""mergepoint: every node runs on a copy, and state changes at one point, the merge at its exit."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from mergepoint.core.lazy import lazy_names, register_display, register_view

if TYPE_CHECKING:
    from mergepoint.core.errors import AnswerError as AnswerError
    from mergepoint.core.errors import BlockError as BlockError
    from mergepoint.core.errors import BrokenAnswer as BrokenAnswer
    from mergepoint.core.errors import BudgetExceeded as BudgetExceeded
    from mergepoint.core.errors import CallTimeout as CallTimeout
    from mergepoint.core.errors import GateOpen as GateOpen
    from mergepoint.core.errors import MergeError as MergeError
    from mergepoint.core.errors import MergepointError as MergepointError
    from mergepoint.core.errors import MissingKey as MissingKey
    from mergepoint.core.errors import RailError as RailError
    from mergepoint.core.errors import ReplayMiss as ReplayMiss
    from mergepoint.core.errors import SessionError as SessionError
    from mergepoint.core.errors import StepError as StepError
    from mergepoint.core.errors import TreeError as TreeError
    from mergepoint.core.errors import TruncatedAnswer as TruncatedAnswer
    from mergepoint.core.merge import MergeMode as MergeMode
    from mergepoint.engine.callbacks import Event as Event
    from mergepoint.engine.callbacks import Recorder as Recorder
    from mergepoint.engine.compiler import Graph as Graph
    from mergepoint.engine.compiler import aresume_graph as aresume_graph
    from mergepoint.engine.compiler import resume_graph as resume_graph
    from mergepoint.engine.context import RunContext as RunContext
    from mergepoint.engine.run_tree import Result as Result
    from mergepoint.engine.run_tree import run_generation as run_generation
    from mergepoint.engine.runner import ChatRunner as ChatRunner
    from mergepoint.journal.call_records import CallRecord as CallRecord
    from mergepoint.journal.transcript import Transcript as Transcript
    from mergepoint.journal.transcript import Usage as Usage
    from mergepoint.journal.transcript import read_transcript as read_transcript
    from mergepoint.journal.transcript import write_transcript as write_transcript
    from mergepoint.models.budget import BudgetLedger as BudgetLedger
    from mergepoint.models.pricing import Price as Price
    from mergepoint.models.providers import ModelSettings as ModelSettings
    from mergepoint.report.comparison import Comparison as Comparison
    from mergepoint.report.comparison import compare as compare
    from mergepoint.report.explaining import explain as explain
    from mergepoint.report.explanation import Explanation as Explanation
    from mergepoint.report.svg import to_mermaid as to_mermaid
    from mergepoint.report.svg import to_svg as to_svg
    from mergepoint.running import arun as arun
    from mergepoint.running import astream as astream
    from mergepoint.running import compile_graph as compile_graph
    from mergepoint.running import run as run
    from mergepoint.running import stream as stream
    from mergepoint.session.entries import Fact as Fact
    from mergepoint.session.entries import SessionMessage as SessionMessage
    from mergepoint.session.entries import StepCategory as StepCategory
    from mergepoint.session.entries import StepType as StepType
    from mergepoint.session.entries import WorkingStep as WorkingStep
    from mergepoint.session.session_memory import SessionMemory as SessionMemory
    from mergepoint.session.session_store import open_session as open_session
    from mergepoint.session.turn_runner import Reply as Reply
    from mergepoint.session.turn_runner import TurnRunner as TurnRunner
    from mergepoint.session.turn_runner import arun_turn as arun_turn
    from mergepoint.session.turn_runner import cancel_turn as cancel_turn
    from mergepoint.session.turn_runner import run_turn as run_turn
    from mergepoint.streams.block_context import BlockContext as BlockContext
    from mergepoint.streams.params import Params as Params
    from mergepoint.streams.recipe import Recipe as Recipe
    from mergepoint.streams.recipe import Stage as Stage
    from mergepoint.streams.recipe_runs import run_recipe as run_recipe
    from mergepoint.streams.recipe_yaml import load_recipe as load_recipe
    from mergepoint.streams.registry import block as block
    from mergepoint.streams.thing import Thing as Thing
    from mergepoint.targets import FoundTarget as FoundTarget
    from mergepoint.targets import find_target as find_target
    from mergepoint.tree.decision import Decision as Decision
    from mergepoint.tree.decision import Question as Question
    from mergepoint.tree.leaves import Call as Call
    from mergepoint.tree.leaves import ChatStep as ChatStep
    from mergepoint.tree.leaves import Step as Step
    from mergepoint.tree.nodes import Block as Block
    from mergepoint.tree.nodes import Gate as Gate
    from mergepoint.tree.nodes import Input as Input
    from mergepoint.tree.nodes import Loop as Loop
    from mergepoint.tree.nodes import Node as Node
    from mergepoint.tree.nodes import walk as walk
    from mergepoint.tree.policy import Budget as Budget
    from mergepoint.tree.policy import Policy as Policy
    from mergepoint.tree.policy import Retry as Retry
    from mergepoint.tree.prompts import CallContext as CallContext
    from mergepoint.tree.prompts import PromptContext as PromptContext
    from mergepoint.tree.prompts import Template as Template
    from mergepoint.tree.prompts import reads as reads
    from mergepoint.tree.transform import outline as outline
    from mergepoint.tree.transform import with_overrides as with_overrides
    from mergepoint.tree.transform import without as without
    from mergepoint.tree.tree_yaml import from_yaml as from_yaml
    from mergepoint.tree.tree_yaml import load_yaml as load_yaml
    from mergepoint.tree.tree_yaml import to_yaml as to_yaml
    from mergepoint.tree.validate import check as check

__all__ = [
    "AnswerError",
    "Block",
    "BlockContext",
    "BlockError",
    "BrokenAnswer",
    "Budget",
    "BudgetExceeded",
    "BudgetLedger",
    "Call",
    "CallContext",
    "CallRecord",
    "CallTimeout",
    "ChatRunner",
    "ChatStep",
    "Comparison",
    "Decision",
    "Event",
    "Explanation",
    "Fact",
    "FoundTarget",
    "Gate",
    "GateOpen",
    "Graph",
    "Input",
    "Loop",
    "MergeError",
    "MergeMode",
    "MergepointError",
    "MissingKey",
    "ModelSettings",
    "Node",
    "Params",
    "Policy",
    "Price",
    "PromptContext",
    "Question",
    "RailError",
    "Recipe",
    "Recorder",
    "ReplayMiss",
    "Reply",
    "Result",
    "Retry",
    "RunContext",
    "SessionError",
    "SessionMemory",
    "SessionMessage",
    "Stage",
    "Step",
    "StepCategory",
    "StepError",
    "StepType",
    "Template",
    "Thing",
    "Transcript",
    "TreeError",
    "TruncatedAnswer",
    "TurnRunner",
    "Usage",
    "WorkingStep",
    "aresume_graph",
    "arun",
    "arun_turn",
    "astream",
    "block",
    "cancel_turn",
    "check",
    "compare",
    "compile_graph",
    "explain",
    "find_target",
    "from_yaml",
    "load_recipe",
    "load_yaml",
    "open_session",
    "outline",
    "read_transcript",
    "reads",
    "resume_graph",
    "run",
    "run_generation",
    "run_recipe",
    "run_turn",
    "stream",
    "to_mermaid",
    "to_svg",
    "to_yaml",
    "walk",
    "with_overrides",
    "without",
    "write_transcript",
]

# Names are loaded when they are used: `import mergepoint` alone costs no import of an engine.
_HOMES = {
    "mergepoint.core.errors": (
        "AnswerError BlockError BrokenAnswer BudgetExceeded CallTimeout GateOpen MergeError "
        "MergepointError MissingKey RailError ReplayMiss SessionError StepError TreeError "
        "TruncatedAnswer"
    ),
    "mergepoint.core.merge": "MergeMode",
    "mergepoint.engine.callbacks": "Event Recorder",
    "mergepoint.engine.compiler": "Graph aresume_graph resume_graph",
    "mergepoint.engine.context": "RunContext",
    "mergepoint.engine.run_tree": "Result run_generation",
    "mergepoint.engine.runner": "ChatRunner",
    "mergepoint.journal.call_records": "CallRecord",
    "mergepoint.journal.transcript": "Transcript Usage read_transcript write_transcript",
    "mergepoint.models.budget": "BudgetLedger",
    "mergepoint.models.pricing": "Price",
    "mergepoint.models.providers": "ModelSettings",
    "mergepoint.report.comparison": "Comparison compare",
    "mergepoint.report.explaining": "explain",
    "mergepoint.report.explanation": "Explanation",
    "mergepoint.report.svg": "to_mermaid to_svg",
    "mergepoint.running": "arun astream compile_graph run stream",
    "mergepoint.targets": "FoundTarget find_target",
    "mergepoint.session.entries": "Fact SessionMessage StepCategory StepType WorkingStep",
    "mergepoint.session.session_memory": "SessionMemory",
    "mergepoint.session.session_store": "open_session",
    "mergepoint.session.turn_runner": "Reply TurnRunner arun_turn cancel_turn run_turn",
    "mergepoint.streams.block_context": "BlockContext",
    "mergepoint.streams.params": "Params",
    "mergepoint.streams.recipe": "Recipe Stage",
    "mergepoint.streams.recipe_runs": "run_recipe",
    "mergepoint.streams.recipe_yaml": "load_recipe",
    "mergepoint.streams.registry": "block",
    "mergepoint.streams.thing": "Thing",
    "mergepoint.tree.decision": "Decision Question",
    "mergepoint.tree.leaves": "Call ChatStep Step",
    "mergepoint.tree.nodes": "Block Gate Input Loop Node walk",
    "mergepoint.tree.policy": "Budget Policy Retry",
    "mergepoint.tree.prompts": "CallContext PromptContext Template reads",
    "mergepoint.tree.transform": "outline with_overrides without",
    "mergepoint.tree.tree_yaml": "from_yaml load_yaml to_yaml",
    "mergepoint.tree.validate": "check",
}
if not TYPE_CHECKING:  # to a type checker a module with `__getattr__` has any name
    __getattr__, __dir__ = lazy_names(__name__, _HOMES)


def _display(value: Any) -> dict[str, Any]:
    from mergepoint.notebook import display  # it imports all that it draws

    return display(value)


register_display(_display)


def _view(value: Any, file: Path | None, open_in_browser: bool) -> Path:  # noqa: FBT001
    from mergepoint.view.files import view_result  # it imports all that a page shows

    return view_result(value, file, open_in_browser)


register_view(_view)
