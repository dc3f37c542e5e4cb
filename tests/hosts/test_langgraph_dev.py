"""LangGraph's development server, with blocking calls refused, and its client."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.hosts
GRAPHS = Path(__file__).parents[2] / "graphs"
SECONDS = 180  # for the server to start, on a busy machine

JOURNALED = """\
from functools import cache

from mergepoint import Block, Step, compile_graph


@cache
def graph():
    tree = Block([Step("A.", name="a"), Step("B.", name="b")], name="t")
    return compile_graph(tree, model="offline", journal="runs")
"""


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


def _answers(url: str) -> bool:
    import httpx

    try:
        return httpx.get(f"{url}/ok", timeout=5).status_code == 200
    except httpx.HTTPError:
        return False


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Yield the address of a server of every graph, and one with a journal; then end its group."""
    import json

    folder = tmp_path_factory.mktemp("server") / "graphs"
    shutil.copytree(GRAPHS, folder)
    (folder.parent / "pyproject.toml").write_text('[project]\nname = "x"\nversion = "0"\n')
    (folder / "journaled.py").write_text(JOURNALED)
    config = json.loads((folder / "langgraph.json").read_text())
    config["graphs"]["journaled"] = "./journaled.py:graph"
    (folder / "langgraph.json").write_text(json.dumps(config))
    port = _free_port()
    command = [sys.executable, "-m", "langgraph_cli", "dev", "--no-browser", "--no-reload"]
    quiet = {"LANGSMITH_TRACING": "false", "LANGGRAPH_CLI_NO_ANALYTICS": "1"}
    with (folder / "log.txt").open("wb") as log_file:
        process = subprocess.Popen(  # noqa: S603  (the tests' own interpreter)
            [*command, "--port", str(port)],
            cwd=folder,
            env={**os.environ, **quiet},
            stdout=log_file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    url = f"http://127.0.0.1:{port}"
    try:
        until = time.monotonic() + SECONDS
        while not _answers(url):
            log = (folder / "log.txt").read_text(errors="replace")
            assert process.poll() is None, f"the server ended:\n{log[-3000:]}"
            assert time.monotonic() < until, f"the server does not start:\n{log[-3000:]}"
            time.sleep(0.2)
        yield url
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


async def _run(client: Any, name: str, **options: Any) -> tuple[Any, str]:
    """Run a graph in a new thread with the inputs that its schema requires."""
    assistant = (await client.assistants.search(graph_id=name))[0]["assistant_id"]
    schemas = await client.assistants.get_schemas(assistant)
    schema: Any = schemas["input_schema"]
    needed = schema.get("$defs", {}).get("Inputs", {}).get("required", [])
    thread = (await client.threads.create())["thread_id"]
    given: Any = {
        "messages": [{"role": "user", "content": "Sum the sales by product."}],
        "inputs": dict.fromkeys(needed, "rain"),
    }
    found = await client.runs.wait(thread, assistant, input=given, **options)
    return found, thread


@pytest.mark.parametrize(
    "name",
    ["flat_chat", "tot_enclave", "image_prompt", "plan_approve", "plan_code_execute", "journaled"],
)
def test_a_graph_runs_without_blocking_the_server(server: str, name: str) -> None:
    """Each graph runs with inputs from its schema, to its end or to its first question."""

    async def talk() -> Any:
        from langgraph_sdk import get_client

        async with get_client(url=server) as client:
            return (await _run(client, name))[0]

    found = asyncio.run(talk())
    assert "__error__" not in found, found
    if name.startswith("plan"):
        assert found["__interrupt__"][0]["value"]["action_request"]["args"]
    else:
        assert [one["type"] for one in found["messages"]].count("ai") >= 1


def test_a_question_is_answered_as_an_approval_interface_does(server: str) -> None:
    """plan_code_execute goes on by HumanResponse, and runs its program off the server's loop."""

    async def talk() -> Any:
        from langgraph_sdk import get_client

        async with get_client(url=server) as client:
            found, thread = await _run(client, "plan_code_execute")
            for _ in range(4):
                if not found.get("__interrupt__"):
                    break
                found = await client.runs.wait(
                    thread, "plan_code_execute", command={"resume": {"type": "accept"}}
                )
            return found

    found = asyncio.run(talk())
    assert "__error__" not in found, found
    assert not found.get("__interrupt__")
    assert found["messages"][-1]["type"] == "ai"


def test_an_assistant_chooses_the_model(server: str) -> None:
    """A model in an assistant's context stands for the one of the graph."""

    async def talk() -> Any:
        from langgraph_sdk import get_client

        async with get_client(url=server) as client:
            made = await client.assistants.create("journaled", context={"model": "nothing"})
            thread = (await client.threads.create())["thread_id"]
            given: Any = {"messages": [{"role": "user", "content": "Hi."}]}
            return await client.runs.wait(
                thread, made["assistant_id"], input=given, raise_error=False
            )

    assert "names no provider" in str(asyncio.run(talk()))
