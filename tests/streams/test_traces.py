"""Traces: callbacks hear of a run as one tree, whose names are paths."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import BaseMessage
from langchain_core.runnables import RunnableConfig

from mergepoint.engine.compiler import Form
from mergepoint.engine.context import RunContext
from mergepoint.engine.run_tree import arun_generation, run_generation
from mergepoint.engine.runner import ChatRunner
from mergepoint.streams.recipe import Recipe, Stage
from mergepoint.streams.recipe_runs import arun_recipe, run_recipe
from mergepoint.testing.scripted_model import ScriptedModel
from mergepoint.tree.leaves import Call, Step
from mergepoint.tree.nodes import Block
from mergepoint.tree.prompts import CallContext

MODEL = ScriptedModel(default="x")
RECIPE = Recipe("poll", (Stage("generate", params={"n": 2}),))


def ask(ctx: CallContext) -> str:
    """Ask a model inside of a function."""
    return str(ctx.model().invoke("C?").text)


TREE = Block(
    [Step("A.", name="a"), Block([Step("B.", name="b")], name="in"), Call(ask, name="c")], name="t"
)


class Heard(BaseCallbackHandler):
    """Takes down what starts and ends."""

    run_inline = True

    def __init__(self) -> None:
        self.parents: dict[UUID, UUID | None] = {}
        self.names: dict[UUID, str] = {}
        self.models: list[tuple[str, list[str]]] = []
        self.ended: list[str] = []

    def _start(self, run: UUID, parent: UUID | None, name: str) -> None:
        self.parents[run], self.names[run] = parent, name

    def on_chain_start(
        self,
        serialized: dict[str, Any],
        inputs: Any,
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        **about: Any,
    ) -> None:
        """Note a chain."""
        self._start(run_id, parent_run_id, about.get("name") or "")

    def on_chat_model_start(
        self,
        serialized: dict[str, Any],
        messages: list[list[BaseMessage]],
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        **about: Any,
    ) -> None:
        """Note a model."""
        self._start(run_id, parent_run_id, about.get("name") or "")
        self.models.append((self.names[run_id], list(about.get("tags") or ())))

    def on_chain_end(self, outputs: Any, *, run_id: UUID, **about: Any) -> None:
        """Note the end."""
        self.ended.append(self.names[run_id])

    def on_chain_error(self, error: BaseException, *, run_id: UUID, **about: Any) -> None:
        """Note a failure."""
        self.ended.append(f"{self.names[run_id]}: {type(error).__name__}")

    @property
    def roots(self) -> list[str]:
        """Return the names of the runs below nothing that was heard of."""
        return [self.names[run] for run, above in self.parents.items() if above is None]


def by_generation(config: RunnableConfig, form: Form, folder: Path) -> None:
    """Run with everything written down."""
    run_generation(TREE, model=MODEL, form=form, runs=folder, config=config)


def by_generation_on_loop(config: RunnableConfig, form: Form, folder: Path) -> None:
    """Do so on an event loop."""
    asyncio.run(arun_generation(TREE, model=MODEL, form=form, runs=folder, config=config))


def by_runner(config: RunnableConfig, form: Form, folder: Path) -> None:
    """Run in a context."""
    ChatRunner(MODEL, form=form).run(RunContext(), TREE, config=config)


def by_events(config: RunnableConfig, form: Form, folder: Path) -> None:
    """Run as events."""
    list(ChatRunner(MODEL, form=form).events(RunContext(), TREE, config=config))


@pytest.mark.parametrize("form", ["subgraphs", "fused"])
@pytest.mark.parametrize(
    "run",
    [by_generation, by_generation_on_loop, by_runner, by_events],
    ids=lambda run: run.__name__,
)
def test_a_tree_is_one_trace(
    run: Callable[[RunnableConfig, Form, Path], None], form: Form, tmp_path: Path
) -> None:
    """There is one root; each call has the step's path as its name and tag, in every form."""
    heard = Heard()
    run({"callbacks": [heard], "tags": ["mine"]}, form, tmp_path)
    assert heard.roots == ["t"]
    assert [name for name, _ in heard.models[:2]] == ["t/a", "t/in/b"]
    assert ["t/a" in heard.models[0][1], "t/c" in heard.models[2][1]] == [True, True]
    assert all("mine" in tags for _, tags in heard.models)


@pytest.mark.parametrize("on_loop", [False, True], ids=["sync", "async"])
def test_a_recipe_is_one_trace(*, on_loop: bool) -> None:
    """The calls of its stages are below one root with the recipe's name, which ends."""
    heard = Heard()
    config: RunnableConfig = {"callbacks": [heard], "metadata": {"team": "a"}}
    if on_loop:
        asyncio.run(arun_recipe(RECIPE, ["q"], model=MODEL, runs=None, config=config))
    else:
        run_recipe(RECIPE, ["q"], model=MODEL, runs=None, config=config)
    assert heard.roots == ["poll"]
    assert heard.ended == ["poll"]
    assert sorted(name for name, _ in heard.models) == [
        "poll/stage_1/generate/0.0/call_01",
        "poll/stage_1/generate/0.1/call_01",
    ]


def test_a_recipe_that_fails_ends_its_trace() -> None:
    """The root's end is the error."""
    heard = Heard()
    with pytest.raises(Exception, match="no answer"):
        run_recipe(
            Recipe("poll", (Stage("generate", params={"n": 1}),)),
            ["q"],
            model=ScriptedModel([ValueError("no answer")]),
            runs=None,
            config={"callbacks": [heard]},
        )
    assert heard.roots == ["poll"]
    assert len(heard.ended) == 1
    assert heard.ended[0].startswith("poll: ")
