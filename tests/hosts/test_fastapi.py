"""A FastAPI app with one compiled graph and one recorder for all of its requests."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from mergepoint import Block, Recorder, Step, Template, compile_graph
from mergepoint.testing.scripted_model import ScriptedModel

pytestmark = pytest.mark.hosts


def test_fifty_requests_at_once_share_a_graph_and_a_recorder() -> None:
    """Each request has its answer, and records of its own by its run's id."""
    import httpx
    from fastapi import FastAPI

    steps = [Step(Template("About {{ topic }}."), name="a"), Step("Better.", name="b")]
    tree = Block(steps, name="t", inputs=["topic"])
    graph = compile_graph(tree, model=ScriptedModel(default="fine"))
    recorder = Recorder()
    app = FastAPI()

    async def ask(topic: str) -> dict[str, Any]:
        given = {"messages": [], "inputs": {"topic": topic}}
        found = await graph.ainvoke(given, {"callbacks": [recorder]})
        return {"said": [message.text for message in found["messages"]]}

    app.add_api_route("/ask/{topic}", ask)

    async def serve() -> list[Any]:
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://app") as client:
            return await asyncio.gather(*(client.get(f"/ask/{n}") for n in range(50)))

    answers = asyncio.run(serve())
    assert [one.status_code for one in answers] == [200] * 50
    for number, answer in enumerate(answers):
        assert answer.json()["said"][0] == f"About {number}."
    by_run: dict[str, list[str]] = {}
    for record in recorder.journal.records:
        by_run.setdefault(record.key.run, []).append(str(record.prompt))
    assert sorted(by_run.values()) == sorted([f"About {n}.", "Better."] for n in range(50))
