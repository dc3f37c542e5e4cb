"""flat_chat: three steps in a row, all of which stay in the conversation."""

from __future__ import annotations

from functools import cache

from mergepoint import Block, Graph, Step, Template, compile_graph

tree = Block(
    [
        Step(
            Template(
                "Suggest three ways to explain {{ topic }} to someone who has never met it. "
                "Number them, one sentence each."
            ),
            name="ideas",
        ),
        Step(
            "Choose the one of these that works without a picture. Answer with its sentence alone.",
            name="choice",
        ),
        Step(
            Template(
                "Outline a talk about {{ topic }} in four steps that go this way, one sentence "
                "each."
            ),
            name="outline",
        ),
    ],
    inputs=("topic",),
)


@cache
def graph() -> Graph:
    """Return the compiled graph for a LangGraph server, compiled at the first call."""
    return compile_graph(tree, model="offline")
