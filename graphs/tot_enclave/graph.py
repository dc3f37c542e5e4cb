"""tot_enclave: a draft, five critics who do not see each other, and a consensus that revises."""

from __future__ import annotations

from functools import cache

from mergepoint import Block, Graph, Step, Template, compile_graph
from mergepoint.patterns import enclave

DRAFT = """\
Describe in three to five plain sentences the picture that this brief asks for: what is shown and \
from where, what stands in front, what the light does, what the mood is.

<brief>
{{ brief }}
</brief>"""

tree = Block(
    [Step(Template(DRAFT), name="draft"), enclave("tot_enclave")],
    merge="last_response",
    inputs=("brief",),
)


@cache
def graph() -> Graph:
    """Return the compiled graph for a LangGraph server, compiled at the first call."""
    return compile_graph(tree, model="offline")
