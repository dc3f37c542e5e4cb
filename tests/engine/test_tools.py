"""Steps with tools: rounds, records, resume, budgets, errors."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import ToolMessage
from langchain_core.runnables import RunnableLambda
from langchain_core.tools import StructuredTool, ToolException, tool
from pydantic import BaseModel
from tests.engine.engines import RUN, Engine

from mergepoint.core.errors import AnswerError, BudgetExceeded, StepError, TreeError
from mergepoint.engine.callbacks import Recorder
from mergepoint.engine.compiler import compile_graph
from mergepoint.engine.context import RunContext
from mergepoint.engine.run_tree import run_generation
from mergepoint.engine.runner import ChatRunner
from mergepoint.journal.file_journal import FileStore
from mergepoint.journal.journal_check import check_journal
from mergepoint.report.svg import to_mermaid, to_svg
from mergepoint.testing.fakes import Killed, KillingStore
from mergepoint.testing.scripted_model import Answer, ScriptedModel
from mergepoint.tree.leaves import Call, Step
from mergepoint.tree.nodes import Block

RAN: list[Any] = []


@pytest.fixture(autouse=True)
def _nothing_ran() -> Iterator[None]:
    """Begin with no execution of a tool."""
    RAN.clear()
    yield
    RAN.clear()


def add(a: int, b: int) -> int:
    """Add two numbers."""
    RAN.append((a, b))
    return a + b


@tool
async def look_up(name: str) -> str:
    """Look a name up."""
    RAN.append(name)
    if name == "nobody":
        raise ValueError("no such name")
    return f"{name} is 7"


def calls(*asked: tuple[str, dict[str, Any]]) -> Answer:
    """Return an answer that calls tools."""
    return Answer(tool_calls=[{"name": name, "args": args} for name, args in asked])


def model(*more: Any) -> ScriptedModel:
    """Return a model that calls tools in two rounds and answers."""
    first = calls(("look_up", {"name": "x"}), ("look_up", {"name": "nobody"}))
    return ScriptedModel([first, calls(("add", {"a": 7, "b": 1})), "It is 8.", *more])


ASK = Step("What is x + 1?", name="ask", tools=[add, look_up], capture_key="sum")


def test_the_exchange_is_what_a_step_makes(engine: Engine) -> None:
    """User message, tool calls, their results and the answer are merged, in order."""
    end = engine(Block([ASK, Step("Sure?", name="more")]), model("Yes."))
    assert [message.type for message in end.messages] == [
        "human", "ai", "tool", "tool", "ai", "tool", "ai", "human", "ai",
    ]  # fmt: skip
    results = [message for message in end.messages if isinstance(message, ToolMessage)]
    assert [one.content for one in results] == ["x is 7", "ValueError: no such name", "8"]
    assert [one.status for one in results] == ["success", "error", "success"]
    assert end.outputs == {"sum": "It is 8."}
    assert sorted(map(str, RAN)) == ["(7, 1)", "nobody", "x"]


@pytest.mark.parametrize(("merge", "kept"), [("last_response", ["It is 8."]), ("none", [])])
def test_merge_modes_hold_for_the_exchange(engine: Engine, merge: Any, kept: list[str]) -> None:
    """`last_response` keeps the final answer alone, `none` nothing; the capture is made anyway."""
    step = Step("What is x + 1?", name="ask", tools=[add, look_up], capture_key="sum", merge=merge)
    end = engine(Block([step]), model())
    assert end.texts == kept
    assert end.outputs == {"sum": "It is 8."}


def test_every_call_and_execution_is_on_record(engine: Engine) -> None:
    """Each call of the model is a record under the step, each tool at a path of its own."""
    recorder = Recorder()
    engine(Block([ASK], name="root"), model(), recorder=recorder)
    records = recorder.journal.records
    inner = [one for one in records if one.kind == "inner"]
    assert [one.path for one in inner] == ["root/ask"] * 3
    tools = {one.path: one.value for one in records if one.path.startswith("root/ask/")}
    assert tools == {
        "root/ask/tool_01": {"content": "x is 7", "status": "success"},
        "root/ask/tool_02": {"content": "ValueError: no such name", "status": "error"},
        "root/ask/tool_03": {"content": "8", "status": "success"},
    }
    assert records[-1].path == "root/ask"


def test_unknown_tools_and_wrong_arguments_are_told_to_the_model(engine: Engine) -> None:
    """The model reads what is wrong, and nothing was executed."""
    wrong = calls(("ad", {}), ("add", {"a": "seven", "b": 1}))
    asked = ScriptedModel([wrong, "Sorry."])
    end = engine(Block([ASK]), asked)
    results = [message for message in end.messages if isinstance(message, ToolMessage)]
    assert str(results[0].content) == "Error: there is no tool 'ad'; there are: add, look_up"
    assert "Input should be a valid integer" in str(results[1].content)
    assert {one.status for one in results} == {"error"}
    assert RAN == []


def test_the_limit_of_rounds_is_a_clear_error(engine: Engine) -> None:
    """A model that goes on calling tools ends with an error that says what to change."""
    endless = ScriptedModel(default=calls(("add", {"a": 1, "b": 1})))
    step = Step("Add.", name="ask", tools=[add], max_tool_rounds=2)
    with pytest.raises(AnswerError, match=r"after 2 rounds .*\(add\); allow more with"):
        engine(step, endless)
    assert len(endless.calls) == 3
    assert len(RAN) == 2


def test_budgets_count_each_call(engine: Engine) -> None:
    """A budget of two calls refuses the third one of the step."""
    asked = model()
    with pytest.raises(BudgetExceeded):
        engine(Block([ASK], budget={"calls": 2}), asked)
    assert len(asked.calls) == 2


@pytest.mark.parametrize("form", ["subgraphs", "fused"])
@pytest.mark.parametrize("at", range(1, 8))
def test_a_killed_run_repeats_nothing(tmp_path: Path, at: int, form: Any) -> None:
    """Wherever the run is killed, a resume repeats no call and no execution that is on record."""
    asked = model()
    tree = Block([ASK])
    # LangChain trips over a SystemExit in an async call; nothing is written any more either way.
    with pytest.raises((Killed, AttributeError)):
        run_generation(
            tree,
            model=asked,
            runs=KillingStore(FileStore(tmp_path), at=at),
            ctx=RunContext(run_id=RUN),
            form=form,
        )
    before, executed = len(asked.calls), len(RAN)
    _, records = FileStore(tmp_path).read(RUN)
    answered = sum(one.kind == "inner" for one in records)
    tools = sum("/tool_" in one.path for one in records)
    rest = ScriptedModel(list(_answers(model()))[answered:])
    run = run_generation(tree, model=rest, runs=tmp_path, resume=RUN, form=form)
    assert run.text == "It is 8."
    assert len(rest.calls) == 3 - answered
    assert len(RAN) - executed == 3 - tools
    assert before >= answered


def _answers(scripted: ScriptedModel) -> Iterator[Any]:
    first = calls(("look_up", {"name": "x"}), ("look_up", {"name": "nobody"}))
    yield from (first, calls(("add", {"a": 7, "b": 1})), "It is 8.")


def test_replay_and_reuse_call_and_execute_nothing(tmp_path: Path) -> None:
    """A run that takes over the record of another makes the same messages."""
    asked = model()
    run = run_generation(ASK, model=asked, runs=tmp_path, ctx=RunContext(run_id=RUN))
    for way in ("replay", "reuse", "resume"):
        options: dict[str, Any] = {way: RUN}
        again = run_generation(ASK, model=asked, runs=tmp_path, **options)
        assert [one.content for one in again.messages] == [one.content for one in run.messages]
    assert (len(asked.calls), len(RAN)) == (3, 3)
    assert check_journal(tmp_path / RUN / "journal.jsonl").problems == ()


def test_models_with_fallbacks_get_the_tools() -> None:
    """Each model that may be tried knows the tools."""
    broken = ScriptedModel(default=Answer(error=ConnectionError("cut")))
    graph = compile_graph(ASK, model=broken.with_fallbacks([model()]))
    assert graph.invoke({"messages": []})["messages"][-1].text == "It is 8."


def test_events_and_drawings_know_tools() -> None:
    """A turn tells of tools as they run, and a drawing names them."""
    ctx = RunContext()
    events = list(ChatRunner(model()).events(ctx, ASK))
    started = [event.path for event in events if event.kind == "start" and event.of == "call"]
    assert sorted(started)[-3:] == ["ask/tool_01", "ask/tool_02", "ask/tool_03"]
    assert "tools add, look_up" in to_mermaid(ASK)
    assert "tools add, look_up" in to_svg(ASK)


class Verdict(BaseModel):
    """A schema."""

    winner: str


def bare(a: int) -> int:  # noqa: D103
    return a


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"tools": "add"}, "tools is a list of LangChain tools and functions"),
        ({"tools": [3]}, "a tool is a LangChain tool or a function, not 3"),
        ({"tools": [bare]}, "the function 'bare' has no docstring"),
        ({"tools": [add, add]}, "two tools are called 'add'"),
        ({"tools": [add], "max_tool_rounds": 0}, "max_tool_rounds is an integer of at least 1"),
        ({"tools": [add], "schema": Verdict}, "a step has tools or a schema"),
    ],
)
def test_what_cannot_be_a_step_with_tools_is_refused(fields: Any, problem: str) -> None:
    """Faults are found when the step is made."""
    with pytest.raises(TreeError, match=problem):
        Step("A.", **fields)


def from_server(answer: Any, *, error: bool = False) -> StructuredTool:
    """Return a tool as adapters of MCP servers make them: blocks with random ids, ToolException."""

    async def ask(query: str) -> Any:
        if error:
            raise ToolException("the server refused")
        return answer, {"structured": True}

    return StructuredTool(
        name="ask",
        description="Ask a server.",
        args_schema={
            "type": "object",
            "properties": {"query": {"type": "string"}},
            "required": ["query"],
        },
        coroutine=ask,
        response_format="content_and_artifact",
        handle_tool_error=error,
    )


BLOCKS = [{"type": "text", "text": "It rains.", "id": "lc_7f"}, {"type": "text", "text": "Much."}]


def test_results_of_a_server_become_text() -> None:
    """Blocks with random ids are text in a Call's result, and in a step's tool message."""
    served = from_server(BLOCKS)
    graph = compile_graph(Call(served, args={"query": "rain"}, capture_key="said"))
    assert asyncio.run(graph.ainvoke({"messages": []}))["outputs"] == {"said": "It rains.\nMuch."}
    asked = ScriptedModel([calls(("ask", {"query": "rain"})), "Yes."])
    tree = Step("Does it rain?", tools=[served])
    state = compile_graph(tree, model=asked).invoke({"messages": []})
    assert state["messages"][2].content == "It rains.\nMuch."


def test_an_error_of_a_server_is_an_error() -> None:
    """A failure that an adapter hands on as text fails a Call, and is marked for a model."""
    failing = from_server(BLOCKS, error=True)
    with pytest.raises(StepError, match="the tool 'ask' failed: the server refused"):
        asyncio.run(compile_graph(Call(failing, args={"query": "rain"})).ainvoke({"messages": []}))
    asked = ScriptedModel([calls(("ask", {"query": "rain"})), "No."])
    state = compile_graph(Step("Rain?", tools=[failing]), model=asked).invoke({"messages": []})
    assert (state["messages"][2].status, state["messages"][2].content) == (
        "error",
        "the server refused",
    )


async def _twice(value: Any) -> Any:
    return 2 * value["n"]


@pytest.mark.parametrize(
    ("target", "args", "result"),
    [
        (from_server(BLOCKS), {"query": "rain"}, "It rains.\nMuch."),
        (RunnableLambda(_twice), {"n": 4}, 8),
    ],
)
def test_what_is_only_async_is_called_in_sync_runs_too(
    engine: Engine, target: Any, args: dict[str, Any], result: Any
) -> None:
    """A tool of a server and a lambda without a sync function run on the background loop."""
    end = engine(Block([Call(target, args=args, capture_key="said")]), None)
    assert end.outputs == {"said": result}


def test_a_call_of_a_tool_says_what_it_needs() -> None:
    """A tool without required arguments is called; else the missing ones are named."""

    @tool
    def today() -> str:
        """Return which day it is."""
        return "Monday"

    state = compile_graph(Call(today, capture_key="day")).invoke({"messages": []})
    assert state["outputs"] == {"day": "Monday"}
    with pytest.raises(TreeError, match=r"the tool 'look_up' needs 'name'; give args=\{'name': "):
        Call(look_up)
