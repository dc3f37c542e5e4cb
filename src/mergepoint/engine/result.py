"""The result and the options of a run, which trees and recipes share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Generic

from langchain_core.messages import BaseMessage
from langchain_core.runnables import RunnableConfig
from typing_extensions import TypedDict, TypeVar

from mergepoint.core.display import Displayed
from mergepoint.engine.compiler import Form
from mergepoint.engine.context import RunContext
from mergepoint.engine.runner import ChatRunner
from mergepoint.journal.call_records import CallRecord
from mergepoint.journal.recipe_records import NOTE, RecipeEnd
from mergepoint.journal.stores import Store
from mergepoint.journal.transcript import Transcript
from mergepoint.journal.usage import Usage
from mergepoint.models.identity import ChatModel, View
from mergepoint.models.pricing import Price
from mergepoint.tree.decision import Answerer
from mergepoint.tree.policy import Budget

ItemT = TypeVar("ItemT", default=Any)
DONE: Final = "done"


@dataclass(frozen=True, kw_only=True)
class Result(Displayed, Generic[ItemT]):
    """The result of one run of a tree or a recipe.

    Attributes:
        text: The last response of a tree; of a recipe, the contents that did not fail, with an
            empty line between them.
        messages: The whole conversation at the end of a tree. Empty for a recipe.
        outputs: The captures of a tree, by key. Of a recipe, the contents of the Things that did
            not fail, by id.
        things: The Things that a recipe returned. Empty for a tree.
        failed: The failed ones among `things`. Their content is that of the input.
        workflow: The run of a recipe as a Thing. None for a tree.
        stopped: The reason why a recipe ended: "done", or the limit. "done" for a tree.
        end: The end of a recipe run, with the counts of its stages. None for a tree.
        run_id: The id of the run, which begins the ids of its messages.
        path_of_run: The run's folder. None for a run in memory or in a database.
        usage: Calls, tokens and cost in USD. Reused answers cost nothing.
        load_transcript: Returns the transcript; call `transcript`, which does so once.
    """

    text: str
    run_id: str
    path_of_run: Path | None
    usage: Usage
    load_transcript: Callable[[], Transcript] = field(repr=False, compare=False)
    messages: tuple[BaseMessage, ...] = ()
    outputs: Mapping[str, Any] = field(default_factory=dict)
    things: tuple[ItemT, ...] = ()
    failed: tuple[ItemT, ...] = ()
    workflow: ItemT | None = None
    stopped: str = DONE
    end: RecipeEnd | None = None

    @cached_property
    def transcript(self) -> Transcript:
        """Return every record of the run, in the order of the tree or of the stages.

        It is built at the first access, because most callers of a recipe do not need it.
        """
        return self.load_transcript()

    @property
    def steps(self) -> tuple[CallRecord, ...]:
        """Return the answered calls, one at each path, in the order of the tree or the stages."""
        return tuple(one for one in self.transcript.records if one.model != NOTE)


class RunOptions(TypedDict, total=False):
    """Options of every run. `mergepoint.run` describes them."""

    model: str | ChatModel | None
    temperature: float | None
    max_tokens: int | None
    timeout: float | None
    base_url: str | Mapping[str, str] | None
    seed: int
    run_id: str | None
    meta: Mapping[str, Any] | None
    runs: Path | str | Store | None
    resume: Path | str | None
    reuse: Path | str | None
    replay: Path | str | None
    budget: Budget | Mapping[str, Any] | None
    prices: Mapping[str, Price] | None
    config: RunnableConfig | None


class TreeOptions(RunOptions, total=False):
    """Options of the run of a tree."""

    inputs: Mapping[str, Any] | None
    messages: Sequence[Any]
    answerer: Answerer | Mapping[str, Any] | None
    form: Form
    view: View | None
    ctx: RunContext | None
    runner: ChatRunner | None
