"""Temperature, length, time and address that hold for a whole run."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel
from tests.engine.engines import RUN

from mergepoint.core.errors import CallTimeout
from mergepoint.engine.compiler import compile_graph
from mergepoint.engine.context import RunContext
from mergepoint.engine.run_tree import run_generation
from mergepoint.engine.runner import ChatRunner
from mergepoint.models.call import ModelCallRun
from mergepoint.streams.recipe import Stage
from mergepoint.streams.recipe_runs import run_recipe
from mergepoint.streams.recipe_yaml import recipe_from_yaml, recipe_to_yaml
from mergepoint.testing.scripted_model import ScriptedModel
from mergepoint.testing.server import ModelServer
from mergepoint.tree.leaves import Call, Step
from mergepoint.tree.nodes import Block
from mergepoint.tree.policy import DEFAULT_TIMEOUT, Policy

SETTINGS: dict[str, Any] = {"temperature": 0.3, "max_tokens": 40}


class Verdict(BaseModel):
    """What a step with a schema answers."""

    winner: str


def ask(ctx: Any) -> str:
    """Ask the run's model inside of a Call."""
    return str(ctx.model().invoke("D.").text)


TREE = Block(
    [
        Step("A."),
        Step("B.", temperature=0.9, params={"max_completion_tokens": 7}),
        Step("C.", schema=Verdict),
        Call(ask, name="call"),
    ]
)


def scripted() -> ScriptedModel:
    """Return a model that answers the tree."""
    return ScriptedModel(["a", "b", {"winner": "c"}, "d"])


def sent(model: ScriptedModel) -> list[tuple[Any, Any]]:
    """Return temperature and limit of each call."""
    caps = ("max_tokens", "max_completion_tokens")
    return [
        (
            seen.params.get("temperature"),
            [seen.params[name] for name in caps if name in seen.params],
        )
        for seen in model.calls
    ]


WANTED = [(0.3, [40]), (0.9, [7]), (0.3, [40]), (0.3, [40])]


def test_settings_hold_where_a_step_does_not_say(tmp_path: Path) -> None:
    """Steps, structured ones too, and models of functions get the run's; a step's own stand."""
    model = scripted()
    run = run_generation(TREE, model=model, runs=tmp_path, ctx=RunContext(run_id=RUN), **SETTINGS)
    assert sent(model) == WANTED
    assert run.steps[0].params == {"temperature": 0.3, "max_tokens": 40}
    again = run_generation(TREE, model=model, runs=tmp_path, replay=RUN, **SETTINGS)
    assert again.text == run.text
    assert len(model.calls) == 4


def test_graphs_and_runners_take_settings() -> None:
    """A compiled graph and a ChatRunner send the same."""
    model = scripted()
    compile_graph(TREE, model=model, **SETTINGS).invoke({"messages": []})
    assert sent(model) == WANTED
    model = scripted()
    ChatRunner(model, **SETTINGS).run(RunContext(), TREE)
    assert sent(model) == WANTED


class Warm(ScriptedModel):
    """A model that was made with a temperature."""

    temperature: float = 0.5


def test_a_model_object_of_a_step_keeps_what_it_declares() -> None:
    """A model that was made for one step, with a temperature, is not given the run's."""
    own, other = Warm(default="x"), ScriptedModel(default="y")  # type: ignore[call-arg]
    tree = Block([Step("A.", model=own), Step("B.", model=own.bind(temperature=0.1)), Step("C.")])
    compile_graph(tree, model=other, temperature=0.3).invoke({"messages": []})
    assert [seen.params.get("temperature") for seen in own.calls] == [None, 0.1]
    assert [seen.params.get("temperature") for seen in other.calls] == [0.3]


def test_recipes_take_settings_and_stages_their_own(tmp_path: Path) -> None:
    """A stage's temperature and limit stand over the run's, in YAML and back."""
    recipe = recipe_from_yaml(
        "name: two\nstages:\n"
        "  - {type: generate, params: {prompt: 'A {{ content }}'}}\n"
        "  - {type: generate, params: {prompt: 'B {{ content }}'}, temperature: 0, max_tokens: 9}\n"
    )
    assert recipe.stages[1] == Stage(
        "generate", params={"prompt": "B {{ content }}"}, temperature=0.0, max_tokens=9
    )
    assert recipe_from_yaml(recipe_to_yaml(recipe)) == recipe
    model = ScriptedModel(default="x")
    run_recipe(recipe, ["i"], model=model, runs=tmp_path, **SETTINGS)
    assert sent(model) == [(0.3, [40]), (0.0, [9])]


def test_a_recipe_in_a_call_has_the_settings_of_its_run(tmp_path: Path) -> None:
    """Settings reach the stages of a recipe inside of a tree."""
    recipe = recipe_from_yaml(
        "name: one\nstages:\n"
        "  - {type: generate, params: {prompt: 'A {{ content }}'}}\n"
        "  - {type: generate, params: {prompt: 'B {{ content }}'}, temperature: 0}\n"
    )
    model = ScriptedModel(default="x")
    run_generation(Call(recipe, args={"items": "i"}), model=model, runs=tmp_path, **SETTINGS)
    assert sent(model) == [(0.3, [40]), (0.0, [40])]


def test_each_model_has_an_address_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Addresses go by name or glob; a single one is that of the run's model alone."""
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    tree = Block([Step("A."), Step("B.", model="openai:other")])
    with ModelServer(default_one) as one, ModelServer(default_one) as two:
        urls = {"openai:main": one.url, "openai:o*": two.url}
        compile_graph(tree, model="openai:main", base_url=urls).invoke({"messages": []})
        assert [len(server.log) for server in (one, two)] == [1, 1]
        compile_graph(Step("A."), model="openai:main", base_url=one.url).invoke({"messages": []})
        with pytest.raises(Exception, match="OPENAI_API_KEY"):
            compile_graph(tree, model="openai:main", base_url=one.url)


def default_one(body: Any) -> str:
    """Answer anything."""
    return "x"


@pytest.mark.parametrize(
    ("policy", "given", "seconds"),
    [(None, None, DEFAULT_TIMEOUT), (None, 7.0, 7.0), ({"timeout": 3.0}, 7.0, 3.0)],
)
def test_every_call_has_a_time_limit(
    policy: Any, given: float | None, seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a word it is the documented default, else the run's, else the step's own."""
    found: list[float | None] = []
    plain = ModelCallRun.attempts

    def attempts(self: ModelCallRun) -> Any:
        found.append(self.limits.timeout)
        return plain(self)

    monkeypatch.setattr(ModelCallRun, "attempts", attempts)
    step = Step("A.", policy=policy or Policy())
    compile_graph(step, model=ScriptedModel(["x"]), timeout=given).invoke({"messages": []})
    assert found == [seconds]


def test_a_late_answer_fails_by_the_runs_timeout() -> None:
    """The error says how long was waited and where that is set."""
    over = threading.Event()

    def answer(messages: Any) -> str:
        over.wait(30)
        return "late"

    model = ScriptedModel([answer])
    try:
        with pytest.raises(CallTimeout, match=r"within 0.05 s; .*timeout="):
            compile_graph(Step("A."), model=model, timeout=0.05).invoke({"messages": []})
    finally:
        over.set()
