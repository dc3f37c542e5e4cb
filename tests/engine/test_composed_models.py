"""Runnables of chat models: fallbacks, retries, bound arguments, models that a config chooses."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from langchain.chat_models import init_chat_model
from langchain_core.runnables import ConfigurableField
from pydantic import BaseModel
from tests import provider
from tests.engine.engines import RUN, Engine, Runner

from mergepoint.core.errors import BudgetExceeded, TreeError
from mergepoint.engine.callbacks import Recorder
from mergepoint.engine.compiler import compile_graph
from mergepoint.engine.context import RunContext
from mergepoint.engine.run_tree import arun_generation, run_generation
from mergepoint.engine.runner import ChatRunner
from mergepoint.journal.file_journal import FileStore
from mergepoint.models.identity import ChatModel, identity
from mergepoint.models.pricing import Price
from mergepoint.streams.recipe import Recipe, Stage
from mergepoint.streams.recipe_runs import run_recipe
from mergepoint.testing.scripted_model import Answer, ScriptedModel
from mergepoint.testing.server import ModelServer, ServerReply
from mergepoint.tree.leaves import Call, Step
from mergepoint.tree.nodes import Block
from mergepoint.tree.prompts import CallContext

CUT = ConnectionError("cut")


def failing(name: str = "first", times: int = 1) -> ScriptedModel:
    """Return a model whose first calls fail."""
    return ScriptedModel([Answer(error=CUT)] * times, default="from first", model_name=name)


def second(*answers: Any) -> ScriptedModel:
    """Return the model that a fallback is."""
    return ScriptedModel(answers, default="from second", model_name="second")


def told(recorder: Recorder) -> list[tuple[str, int, bool, str]]:
    """Return model, attempt and answer of each record."""
    return [
        (one.model.rpartition(":")[2], one.attempt, one.answered, one.response)
        for one in recorder.journal.records
    ]


def test_each_model_that_is_tried_is_on_record(engine: Engine) -> None:
    """The first model's failure and the fallback's answer are two records of one step."""
    recorder = Recorder()
    model: Any = failing().with_fallbacks([second()])
    end = engine(Block([Step("A."), Step("B.")]), model, recorder=recorder)
    assert end.texts == ["A.", "from second", "B.", "from first"]
    assert told(recorder) == [
        ("first", 1, False, ""),
        ("second", 2, True, "from second"),
        ("first", 1, True, "from first"),
    ]


def test_a_retry_of_langchains_is_on_record(engine: Engine) -> None:
    """Every try is a record of its own, numbered through."""
    recorder = Recorder()
    model: Any = failing(times=2).with_retry(wait_exponential_jitter=False)
    engine(Step("A."), model, recorder=recorder)
    assert told(recorder) == [
        ("first", 1, False, ""),
        ("first", 2, False, ""),
        ("first", 3, True, "from first"),
    ]


def test_an_answer_that_cannot_be_used_goes_to_the_fallback(engine: Engine) -> None:
    """A blank answer fails the first model, as an error of its provider does."""
    recorder = Recorder()
    model: Any = ScriptedModel([" "], model_name="first").with_fallbacks([second()])
    assert engine(Step("A."), model, recorder=recorder).texts[-1] == "from second"
    assert [one.answered for one in recorder.journal.records] == [False, True]


def test_what_is_bound_reaches_the_model_and_the_record(engine: Engine) -> None:
    """Arguments of `.bind()` are sent and recorded; those of the step stand over them."""
    inner, recorder = ScriptedModel(default="x"), Recorder()
    model: Any = inner.bind(stop=["END"], top_p=0.5, user="me").with_config(tags=["mine"])
    engine(Step("A.", params={"top_p": 0.9}), model, recorder=recorder)
    (record,) = recorder.journal.records
    assert inner.calls[0].params == {"stop": ["END"], "top_p": 0.9, "user": "me"}
    assert record.params == {"stop": ["END"], "top_p": 0.9, "user": "me"}
    assert record.model == identity(inner, {})


class Verdict(BaseModel):
    """What a step with a schema answers."""

    winner: str


def test_structured_output_falls_back_and_keeps_what_is_bound(engine: Engine) -> None:
    """An answer that does not fit the schema is the first model's failure."""
    one = ScriptedModel(["no JSON at all"], model_name="first")
    other = ScriptedModel([{"winner": "a"}], model_name="second")
    model: Any = one.bind(top_p=0.5).with_fallbacks([other.bind(top_p=0.25)])
    recorder = Recorder()
    end = engine(Step("A.", schema=Verdict, capture_key="v"), model, recorder=recorder)
    assert end.outputs == {"v": {"winner": "a"}}
    assert [one.answered for one in recorder.journal.records] == [False, True]
    assert [seen.params["top_p"] for seen in (*one.calls, *other.calls)] == [0.5, 0.25]


def test_a_step_has_a_composed_model_of_its_own(engine: Engine) -> None:
    """A step's model may be a Runnable of models too."""
    model: Any = failing().with_fallbacks([second()])
    assert engine(Step("A.", model=model), None).texts == ["A.", "from second"]


def test_a_runner_takes_a_composed_model(runner: Runner) -> None:
    """Turns, streams and events work as with one model."""
    ctx = RunContext(run_id=RUN)
    model: Any = failing().with_fallbacks([second()])
    runner(ctx, Step("A."), model)
    assert ctx.messages[-1].text == "from second"


def test_a_resumed_run_asks_no_model_again(tmp_path: Path) -> None:
    """What the fallback answered is not asked for again, though the first model works by now."""
    tree = Block([Step("A."), Step("B."), Step("C.")])
    broken: Any = failing(times=9).with_fallbacks([second("one", "two", Answer(error=CUT))])
    with pytest.raises(ConnectionError):
        run_generation(tree, model=broken, runs=tmp_path, ctx=RunContext(run_id=RUN))
    whole = failing(times=0)
    model: Any = whole.with_fallbacks([second()])
    run = run_generation(tree, model=model, runs=tmp_path, resume=RUN)
    assert [message.text for message in run.messages[1::2]] == ["one", "two", "from first"]
    assert len(whole.calls) == 1
    replayed = run_generation(tree, model=model, runs=tmp_path, replay=RUN)
    assert replayed.text == "from first"
    assert len(whole.calls) == 1


def test_other_models_in_it_are_another_request(tmp_path: Path) -> None:
    """A run is not gone on with by a Runnable that holds another fallback or another argument."""
    tree = Step("A.")
    model: Any = failing(times=0).with_fallbacks([second()])
    run_generation(tree, model=model, runs=tmp_path, ctx=RunContext(run_id=RUN))
    for other in (failing(times=0).with_fallbacks([]), failing(times=0).bind(top_p=0.1)):
        with pytest.raises(TreeError, match="is another step than the run began with"):
            run_generation(tree, model=other, runs=tmp_path, resume=RUN)


def test_a_spent_budget_is_not_passed_by_a_fallback(engine: Engine) -> None:
    """Where a budget refuses the first model no other is called, and nothing is called unseen."""
    one, other = failing(times=0), second()
    model: Any = one.with_fallbacks([other])
    tree = Block([Step("A."), Step("B.")], budget={"calls": 1})
    with pytest.raises(BudgetExceeded):
        engine(tree, model)
    assert (len(one.calls), len(other.calls)) == (1, 0)


def test_every_model_needs_a_price_under_a_budget_in_usd() -> None:
    """A fallback without a price is found before anything runs."""
    model = failing().with_fallbacks([second()])
    name = identity(failing(), {})
    with pytest.raises(TreeError, match=r"no price of '.*second' is known"):
        compile_graph(Step("A."), model=model, budget={"usd": 1}, prices={name: Price(1, 1)})


def test_a_model_of_a_function_may_be_composed(tmp_path: Path) -> None:
    """In a Call each provider call is on record, and none that was answered is made again."""
    broken = [True]

    def ask(ctx: CallContext) -> str:
        """Ask twice, and fail in the first run."""
        text = "".join(str(ctx.model().invoke("A.").text) for _ in range(2))
        if broken:
            raise ValueError("broken")
        return text

    tree = Call(ask, capture_key="text")
    other = second("1", "2")
    model: Any = failing(times=2).with_fallbacks([other])
    with pytest.raises(ValueError, match="broken"):
        run_generation(tree, model=model, runs=tmp_path, ctx=RunContext(run_id=RUN))
    _, records = FileStore(tmp_path).read(RUN)
    inner = [(one.answered, one.response) for one in records if one.kind == "inner"]
    assert inner == [(False, ""), (True, "1"), (False, ""), (True, "2")]
    broken.clear()
    run = run_generation(tree, model=model, runs=tmp_path, resume=RUN)
    assert run.outputs == {"text": "12"}
    assert len(other.calls) == 2


def test_a_recipe_takes_a_composed_model(tmp_path: Path) -> None:
    """Stages ask by the same door; an answer names the model that gave it."""
    recipe = Recipe("one", [Stage("generate", params={"prompt": "Say {{ content }}."})])  # type: ignore[arg-type]
    model = failing(times=9).with_fallbacks([second()])
    result = run_recipe(recipe, ["x"], model=model, runs=tmp_path, run_id=RUN)
    assert [thing.content for thing in result.things] == ["from second"]
    _, records = FileStore(tmp_path).read(RUN)
    assert [one.answered for one in records if one.kind == "step"] == [False, True]
    assert result.things[0].history[-1].model.endswith("second")


def configurable(kind: str, server: ModelServer) -> ChatModel:
    """Return a model whose name the config chooses, by LangChain's two ways."""
    options: dict[str, Any] = {"api_key": "x", "base_url": server.url, "max_retries": 0}
    if kind == "fields":
        made: Any = init_chat_model("openai:one", **options)
        found: ChatModel = made.configurable_fields(model_name=ConfigurableField(id="model"))
        return found
    return init_chat_model("openai:one", configurable_fields=("model",), **options)


@pytest.mark.parametrize("on_loop", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("kind", ["fields", "any"])
def test_the_config_of_a_run_chooses_the_model(kind: str, *, on_loop: bool) -> None:
    """A configurable model is the default's, or the one that the config names, and so on record."""
    with ModelServer(lambda body: body["model"]) as server:
        model, recorder = configurable(kind, server), Recorder()
        graph = compile_graph(Step("A."), model=model)
        for name in ("one", "two"):
            config: Any = {"callbacks": [recorder]}
            if name != "one":
                chosen = name if kind == "fields" else f"openai:{name}"
                config["configurable"] = {"model": chosen}
            given: dict[str, Any] = {"messages": []}
            state = (
                asyncio.run(graph.ainvoke(given, config))
                if on_loop
                else graph.invoke(given, config)
            )
            assert state["messages"][-1].text == name
    assert [one.model for one in recorder.journal.records] == ["openai:one", "openai:two"]


def test_a_configurable_model_without_a_default_says_what_is_missing() -> None:
    """Without a model in the config the error says where it goes."""
    model = init_chat_model(configurable_fields="any")
    graph = compile_graph(Step("A."), model=model)
    with pytest.raises(Exception, match=r"give its fields in the config, such as config="):
        graph.invoke({"messages": []})


@pytest.mark.parametrize("on_loop", [False, True], ids=["sync", "async"])
def test_a_providers_client_falls_back_over_http(tmp_path: Path, *, on_loop: bool) -> None:
    """A real client's 500 is the first record, and the second server's answer the other one."""
    with ModelServer([ServerReply("down", status=500)]) as down, ModelServer(["fine"]) as up:
        clients = [
            init_chat_model("openai:m", base_url=one.url, api_key="x", max_retries=0)
            for one in (down, up)
        ]
        model = clients[0].with_fallbacks(clients[1:])
        options: dict[str, Any] = {"model": model, "runs": tmp_path}
        run = (
            provider.on_a_loop(arun_generation(Step("A."), **options))
            if on_loop
            else run_generation(Step("A."), **options)
        )
    assert run.text == "fine"
    assert [one.attempt for one in (*run.transcript.failures, *run.steps)] == [1, 2]


def test_events_tell_of_every_model() -> None:
    """Who listens hears that the first model failed and the second answered."""
    ctx = RunContext()
    model = failing().with_fallbacks([second()])
    events = list(ChatRunner(model).events(ctx, Step("A.")))
    kinds = [event.kind for event in events if event.kind != "token"]
    assert kinds == ["start", "error", "start", "end"]
