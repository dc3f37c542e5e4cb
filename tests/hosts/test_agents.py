"""Agents of LangChain and deepagents whose tools and subagents are compiled graphs."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import ToolMessage
from langchain_core.runnables import RunnableConfig

from mergepoint import Block, Gate, Recorder, Step, Template, compile_graph
from mergepoint.journal.file_journal import FileStore
from mergepoint.testing.scripted_model import Answer, ScriptedModel

pytestmark = pytest.mark.hosts

TOPICS = ("rain", "fog")


@pytest.fixture(params=["subgraphs", "fused"])
def form(request: pytest.FixtureRequest) -> Any:
    """Return each form of a compiled graph."""
    return request.param


@pytest.fixture(params=["sync", "async"])
def run(request: pytest.FixtureRequest) -> Any:
    """Run an agent in each way."""

    def run(agent: Any, given: Any, config: RunnableConfig) -> Any:
        if request.param == "sync":
            return agent.invoke(given, config)
        return asyncio.run(agent.ainvoke(given, config))

    return run


def echo(messages: Any) -> str:
    """Answer with the conversation."""
    return " ".join(f"[{message.text}]" for message in messages)


def agents_model(*calls: dict[str, Any]) -> ScriptedModel:
    """Return a model that makes tool calls at once, and then answers."""
    return ScriptedModel([Answer(tool_calls=calls), "All done."])


def results(found: Any) -> list[tuple[str, str]]:
    """Return status and text of each tool message."""
    messages = [one for one in found["messages"] if isinstance(one, ToolMessage)]
    return [(one.status, str(one.text)) for one in messages]


def test_two_tool_calls_at_once_are_graphs_with_one_recorder(form: Any, run: Any) -> None:
    """create_agent runs two graphs side by side; the model reads results and what was wrong."""
    from langchain.agents import create_agent

    draft = Step(Template("About {{ topic }}."), name="draft", merge="none", capture_key="text")
    write = Block([draft, Step(Template("Shorten {{ text }}"), name="final")], inputs=["topic"])
    check = Block([Step(Template("Is {{ claim }}?"), name="look")], inputs=["claim", ("n", 2)])
    tools = [
        compile_graph(tree, model=ScriptedModel(default=echo), form=form).as_tool(
            name=name, description="Do it."
        )
        for name, tree in (("write", write), ("check", check))
    ]
    model = agents_model(
        {"name": "write", "args": {"topic": "rain"}},
        {"name": "check", "args": {"claim": "it wet"}},
        {"name": "check", "args": {"clam": "it wet"}},
    )
    recorder = Recorder()
    found = run(
        create_agent(model, tools), {"messages": [("user", "Go.")]}, {"callbacks": [recorder]}
    )
    assert results(found)[:2] == [
        ("success", "[Shorten [About rain.]]"),
        ("success", "[Is it wet?]"),
    ]
    assert results(found)[2][0] == "error"
    assert "claim: Field required" in results(found)[2][1]
    assert found["messages"][-1].text == "All done."
    records = [one.key for one in recorder.journal.records if one.key.path != ""]
    assert len({one.run for one in records if one.host.startswith("tools/")}) == 2
    assert sorted(one.full_path.split("/", 2)[2] for one in records if "/" in one.full_path) == [
        "pipeline/draft",
        "pipeline/final",
        "pipeline/look",
    ]


def test_gates_of_two_tool_calls_stop_and_resume_the_agent(tmp_path: Path, run: Any) -> None:
    """Both questions come together; their answers go on, and no call is made again."""
    from langchain.agents import create_agent
    from langgraph.checkpoint.memory import InMemorySaver
    from langgraph.types import Command

    draft = Gate(Step(Template("About {{ topic }}."), name="draft"), name="ok")
    tree = Block([draft, Step("Shorten it.", name="final")], inputs=["topic"], name="write")
    inner = ScriptedModel(
        default=lambda messages: f"[{messages[-2].text}]" if messages[1:] else "A"
    )
    tool = compile_graph(tree, model=inner, journal=tmp_path).as_tool(description="Write.")
    model = agents_model(*({"name": "write", "args": {"topic": topic}} for topic in TOPICS))
    agent = create_agent(model, [tool], checkpointer=InMemorySaver())
    config: RunnableConfig = {"configurable": {"thread_id": "t"}}
    stopped = run(agent, {"messages": [("user", "Go.")]}, config)
    questions = stopped["__interrupt__"]
    assert sorted(one.value["messages"][0]["text"] for one in questions) == [
        "About fog.",
        "About rain.",
    ]
    found = run(agent, Command(resume={one.id: "approve" for one in questions}), config)
    assert results(found) == [("success", "[A]")] * 2
    assert found["messages"][-1].text == "All done."
    assert (len(inner.calls), len(model.calls)) == (4, 2)
    assert len(FileStore(tmp_path).runs()) == 2


@pytest.mark.parametrize("journaled", [False, True])
def test_two_subagents_at_once_are_graphs(
    tmp_path: Path,
    form: Any,
    run: Any,
    journaled: bool,  # noqa: FBT001
) -> None:
    """Deepagents runs two tasks side by side, of one graph and of two."""
    from deepagents import CompiledSubAgent, create_deep_agent

    steps = [Step("Plan it.", name="plan"), Step("Do it.", name="do", merge="last_response")]
    subagents = [
        CompiledSubAgent(
            name=name,
            description=f"{name} things",
            runnable=compile_graph(
                Block(steps, name=name),
                model=ScriptedModel(default=echo),
                form=form,
                journal=tmp_path if journaled else None,
            ),
        )
        for name in ("writer", "critic")
    ]
    tasks = [("writer", "rain"), ("critic", "fog"), ("writer", "snow")]
    model = agents_model(
        *(
            {"name": "task", "args": {"subagent_type": kind, "description": about}}
            for kind, about in tasks
        )
    )
    recorder = Recorder()
    config: RunnableConfig = {"callbacks": [recorder], "configurable": {"thread_id": "t"}}
    agent = create_deep_agent(model=model, subagents=subagents)
    found = run(agent, {"messages": [("user", "Go.")]}, config)
    assert results(found) == [
        ("success", f"[{about}] [Plan it.] [[{about}] [Plan it.]] [Do it.]") for _, about in tasks
    ]
    records = [one.key for one in recorder.journal.records if one.key.host == "tools"]
    assert sorted(one.path for one in records) == sorted(
        f"{kind}/{step}" for kind, _ in tasks for step in ("plan", "do")
    )
    assert len({one.run for one in records}) == len(tasks)
