"""Tools of an MCP server on stdio, through langchain-mcp-adapters."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import BaseMessage, ToolMessage

from mergepoint import (
    Block,
    Call,
    Recorder,
    RunContext,
    Step,
    Template,
    compile_graph,
    run_generation,
)
from mergepoint.core.errors import StepError, TreeError
from mergepoint.testing.scripted_model import Answer, ScriptedModel

pytestmark = pytest.mark.hosts

SERVER = '''\
from pathlib import Path

from mcp.server.fastmcp import FastMCP

server = FastMCP("rain", log_level="ERROR")


@server.tool()
def rainfall(city: str, days: int = 1) -> str:
    """Return the rain in a city."""
    with Path(__file__).with_name("asked.txt").open("a") as asked:
        asked.write(f"{city}\\n")
    if city == "Nowhere":
        raise ValueError("no such city")
    return f"{city}: {days} mm"


@server.tool()
def cities() -> list[str]:
    """List the cities."""
    return ["Oslo", "Bergen"]


server.run()
'''


@pytest.fixture
def tools(tmp_path: Path) -> dict[str, Any]:
    """Return the tools of a server, which runs for each call of a tool."""
    from langchain_mcp_adapters.client import MultiServerMCPClient

    file = tmp_path / "server.py"
    file.write_text(SERVER)
    server: Any = {"transport": "stdio", "command": sys.executable, "args": [str(file)]}
    return {
        one.name: one for one in asyncio.run(MultiServerMCPClient({"rain": server}).get_tools())
    }


def tree(tools: dict[str, Any]) -> Block:
    """Return a tree of a step that calls tools, and of Calls of tools."""
    return Block(
        [
            Step("Does it rain?", name="ask", tools=list(tools.values())),
            Call(tools["cities"], name="all", capture_key="cities"),
            Call(
                tools["rainfall"],
                name="one",
                args={"city": Template("{{ city }}"), "days": 2},
                capture_key="rain",
                merge="all_messages",
            ),
        ],
        inputs=["city"],
    )


def model() -> ScriptedModel:
    """Return a model that calls tools well, wrongly, and without what they need."""
    asked = [("rainfall", {"city": "Oslo"}), ("cities", {}), ("rainfall", {"city": "Nowhere"})]
    calls = [{"name": name, "args": args} for name, args in asked]
    return ScriptedModel(
        [Answer(tool_calls=[*calls, {"name": "rainfall", "args": {"days": 3}}]), "It rains."]
    )


def check(messages: list[BaseMessage], outputs: Any) -> None:
    """Check that results are text, errors errors, and that nothing else entered."""
    results = [one for one in messages if isinstance(one, ToolMessage)]
    assert [(one.status, one.content) for one in results[:3]] == [
        ("success", "Oslo: 1 mm"),
        ("success", "Oslo\nBergen"),
        ("error", "Error executing tool rainfall: no such city"),
    ]
    assert results[3].status == "error"
    assert "Field required" in str(results[3].content)
    assert outputs == {"cities": "Oslo\nBergen", "rain": "Bergen: 2 mm"}
    assert [str(one.text) for one in messages[-2:]] == ["It rains.", "Bergen: 2 mm"]


@pytest.mark.parametrize("form", ["subgraphs", "fused"])
@pytest.mark.parametrize("way", ["sync", "async"])
def test_steps_and_calls_use_tools_of_a_server(tools: dict[str, Any], form: Any, way: str) -> None:
    """Results become text, errors are errors, and two runs have the same conversation."""
    said = []
    for _ in range(2):
        graph = compile_graph(tree(tools), model=model(), form=form)
        given: Any = {"messages": [], "inputs": {"city": "Bergen"}}
        config: Any = {"callbacks": [Recorder()], "configurable": {"mergepoint_run_id": "r"}}
        if way == "sync":
            found = graph.invoke(given, config)
        else:
            found = asyncio.run(graph.ainvoke(given, config))
        check(found["messages"], found["outputs"])
        said.append([one.model_dump() for one in found["messages"]])
    assert said[0] == said[1]


def test_a_resumed_run_asks_the_server_for_nothing(tools: dict[str, Any], tmp_path: Path) -> None:
    """What tools of a server answered is on record, in a step and in a Call."""
    options: dict[str, Any] = {"model": model(), "runs": tmp_path / "runs"}
    run_generation(tree(tools), inputs={"city": "Bergen"}, ctx=RunContext(run_id="r"), **options)
    asked = (tmp_path / "asked.txt").read_text()
    assert sorted(asked.split()) == ["Bergen", "Nowhere", "Oslo"]
    again = run_generation(tree(tools), resume="r", **options)
    check(list(again.messages), again.outputs)
    assert (tmp_path / "asked.txt").read_text() == asked


def test_failures_of_a_server_fail_a_call(tools: dict[str, Any]) -> None:
    """The error of the tool is the Call's, and a missing argument is told before the run."""
    failing = compile_graph(Call(tools["rainfall"], args={"city": "Nowhere"}))
    with pytest.raises(StepError, match=r"the tool 'rainfall' failed: .* no such city"):
        failing.invoke({"messages": []})
    with pytest.raises(TreeError, match="the tool 'rainfall' needs 'city'"):
        Call(tools["rainfall"])
