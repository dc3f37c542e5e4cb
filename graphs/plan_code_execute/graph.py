"""plan_code_execute: an agent that plans, asks, writes a program, runs it safely, and answers."""

from __future__ import annotations

from functools import cache

from mergepoint import Graph, compile_graph
from mergepoint.agent import agent

tree = agent(name="pipeline")


@cache
def graph() -> Graph:
    """Give the compiled graph for a LangGraph server; compiled once, when it is first asked for."""
    return compile_graph(tree, model="offline")
