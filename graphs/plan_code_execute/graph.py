"""plan_code_execute: an agent that plans, asks, writes a program, runs it safely, and answers."""

from __future__ import annotations

from functools import cache

from mergepoint import Graph, compile_graph
from mergepoint.agent import agent

tree = agent(name="pipeline")


@cache
def graph() -> Graph:
    """Return the compiled graph for a LangGraph server, compiled at the first call."""
    return compile_graph(tree, model="offline")
