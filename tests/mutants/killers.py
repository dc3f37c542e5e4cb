"""Small cases by name: each makes one rule of the semantics visible."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from langchain_core.messages import AIMessage, HumanMessage

from mergepoint.testing.random_trees import Case
from mergepoint.testing.tree_functions import (
    TOOLS,
    AnswerTable,
    DataFunction,
    DecisionFunction,
    EchoRunnable,
    PartsPrompt,
    ReplySchema,
    StopRule,
)
from mergepoint.tree.leaves import Call, Step
from mergepoint.tree.nodes import Block, Gate, Loop, Node
from mergepoint.tree.prompts import Template

OF_A = Template("Of {{ a }}", defaults={"a": "nothing, since it was rejected"})
SEES = PartsPrompt([("text", "You see"), ("count",), ("keys",), ("last",)])


def case(
    tree: Node,
    *,
    inputs: Mapping[str, Any] | None = None,
    failures: Mapping[str, str] | None = None,
) -> Case:
    """Return a case; `failures` by path."""
    messages = [HumanMessage("Hello.", id="g0"), AIMessage("Good day.", id="g1")]
    return Case(tree, messages, dict(inputs or {}), AnswerTable(failures=failures or {}))


def killers() -> dict[str, Case]:
    """Return the cases, each with messages of its own: a mutant may spoil them."""
    return {name: build() for name, build in _KILLERS.items()}


_KILLERS: Mapping[str, Callable[[], Case]] = {
    "a row": lambda: case(Block([Step("One."), Step("Two."), Step(SEES)])),
    "modes": lambda: case(
        Block([Step("A.", merge="last_response"), Step("B.", merge="none"), Step("C.")])
    ),
    "captures": lambda: case(
        Block([Step("A.", capture_key="a"), Step("B.", merge="none", capture_key="b"), Step(SEES)])
    ),
    "a squashed block": lambda: case(
        Block(
            [
                Block(
                    [Step("A.", capture_key="a"), Step("B.")],
                    merge="last_response",
                    capture_key="block",
                ),
                Step(Template("Of {{ a }} and {{ block }}")),
            ]
        )
    ),
    "a block inside": lambda: case(
        Block([Step("A.", capture_key="a"), Block([Step(SEES, capture_key="b"), Step(SEES)])])
    ),
    "side by side": lambda: case(
        Block(
            [
                Step("A.", capture_key="a"),
                Block(
                    [
                        Step("Z.", name="zeta", capture_key="z"),
                        Step(SEES, name="alpha", capture_key="y"),
                    ],
                    parallel=True,
                    merge="all_messages",
                ),
                Step(SEES),
            ]
        )
    ),
    "two fail side by side": lambda: case(
        Block(
            [
                Step("Z.", name="zeta"),
                Block([Step("B."), Step("C.")], name="beta"),
                Step("A.", name="alpha"),
            ],
            parallel=True,
        ),
        failures={"pipeline/zeta": "runtime", "pipeline/alpha": "key"},
    ),
    "a prompt fails side by side": lambda: case(
        Block([Step(PartsPrompt([("raise",)])), Block([Step("B."), Step("C.")])], parallel=True)
    ),
    "a failure inside": lambda: case(
        Block([Block([Step("A."), Step("B.")], name="inner")]),
        failures={"pipeline/inner/step_02": "provider"},
    ),
    "a blank answer": lambda: case(Block([Step("A.")]), failures={"pipeline/step_01": "spaces"}),
    "many forms": lambda: case(Block([Step(f"Say {number}.") for number in range(12)])),
    "optional reads": lambda: case(
        Block(
            [
                Step(Template("Of {{ plan }}", defaults={"plan": "nothing"})),
                Step("A.", merge="none", capture_key="plan"),
                Step(Template("Of {{ plan }}", defaults={"plan": "nothing"})),
            ]
        )
    ),
    "inputs": lambda: case(
        Block(
            [Step(Template("{{ topic }} {{ tags }}"), system=Template("For {{ level }}"))],
            inputs=["topic", ("level", "pupils"), "tags"],
        ),
        inputs={"topic": "{{ level }}", "tags": ["a", 1]},
    ),
    "a blank input": lambda: case(
        Block([Step(Template("About {{ topic }}"))], inputs=["topic"]), inputs={"topic": " "}
    ),
    "draws": lambda: case(Block([Step(PartsPrompt([("draw",)])), Step(PartsPrompt([("draw",)]))])),
    "spoilers": lambda: case(
        Block(
            [
                Step(PartsPrompt([("text", "A."), ("spoil",)])),
                Step(Template("Of {{ tags }}")),
            ],
            inputs=["tags"],
        ),
        inputs={"tags": ["a"]},
    ),
    "a loop": lambda: case(
        Block([_turning(StopRule(3, of="key", key="n")), Step(SEES)]),
    ),
    "a loop that holds at once": lambda: case(Block([_turning(StopRule(2)), Step(SEES)])),
    "a loop that is spent": lambda: case(
        Block([_turning(StopRule(99), on_exhausted="keep"), Step(SEES)])
    ),
    "a loop that never holds": lambda: case(Block([_turning(StopRule(99)), Step("After.")])),
    "a squashed loop": lambda: case(
        Block(
            [
                Loop([Step("A."), Step(SEES)], until=StopRule(10), merge="last_response"),
                Step(SEES),
            ]
        )
    ),
    "a gate that says no": lambda: case(
        Block(
            [
                Gate(
                    Step("A.", capture_key="a"),
                    decide=DecisionFunction(["feedback"]),
                    merge="last_response",
                    capture_key="said",
                ),
                Step(SEES),
            ]
        )
    ),
    "an edited answer": lambda: case(Block([_edited(Step("A.", capture_key="a")), Step(OF_A)])),
    "an edited structure": lambda: case(
        Block([_edited(Step("A.", capture_key="a", schema=ReplySchema)), Step(OF_A)])
    ),
    "who decides spoils": lambda: case(
        Block([Gate(Step("A."), decide=DecisionFunction(["approve"], spoils=True)), Step(SEES)])
    ),
    "a call that speaks": lambda: case(
        Block(
            [Call(DataFunction("list"), merge="all_messages", capture_key="found"), Step(SEES)],
        )
    ),
    "a silent call": lambda: case(
        Block([Call(DataFunction("blank"), capture_key="a"), Step(SEES)])
    ),
    "a runnable": lambda: case(
        Block(
            [Step("A."), Call(EchoRunnable("whole", asks=True), merge="all_messages"), Step(SEES)]
        )
    ),
    "arguments": lambda: case(
        Block(
            [
                Call(
                    DataFunction("count"),
                    args={"what": Template("{{ tags }}")},
                    capture_key="found",
                )
            ],
            inputs=["tags"],
        ),
        inputs={"tags": ["a", 1]},
    ),
    "spoiled arguments": lambda: case(
        Block(
            [
                Call(DataFunction("spoil"), args={"what": ["a"]}, capture_key="one", name="one"),
                Loop(
                    [Call(DataFunction("spoil"), args={"what": ["a"]}, capture_key="two")],
                    until=StopRule(99),
                    max_iterations=2,
                    on_exhausted="keep",
                ),
            ],
        ),
    ),
    "a structure": lambda: case(
        Block([Step("A.", schema=ReplySchema, capture_key="a"), Step(Template("Of {{ a }}"))])
    ),
    # The names are those at which the table asks for tools in two rounds.
    "tools": lambda: case(
        Block(
            [
                Step(f"Ask {name}.", name=name, tools=[*TOOLS.values()], max_tool_rounds=2)
                for name in _twice()
            ]
        )
    ),
}


def _twice() -> list[str]:
    """Return three names of steps whose answers call tools in two rounds."""
    names = (f"ask_{number}" for number in range(100))
    table = AnswerTable()
    after = [("user", ""), ("assistant", "")]
    return [name for name in names if table.tool_calls(f"pipeline/{name}", after, ["x"])][:3]


def _turning(until: StopRule, **fields: Any) -> Loop:
    """Return a loop that counts its iterations, at most four."""
    count = Call(DataFunction("next", counter="n"), capture_key="n")
    return Loop([Step(SEES), count], until=until, max_iterations=4, **fields)


def _edited(node: Node) -> Gate:
    return Gate(node, decide=DecisionFunction(["edit"]))
