"""Compiled graphs as hosts see them: drawings, input schema and tools."""

from __future__ import annotations

import re
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Annotated, Any, Final, NotRequired, Self, get_type_hints

from langchain_core.messages import ToolCall
from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import ensure_config
from langchain_core.runnables.graph import Graph as Drawing
from langchain_core.runnables.graph import Node as DrawnNode
from langchain_core.tools import BaseTool, StructuredTool
from langgraph.graph.state import CompiledStateGraph
from pydantic import ConfigDict, Field, TypeAdapter
from typing_extensions import TypedDict

from mergepoint.core.errors import StepError, TreeError
from mergepoint.core.lazy import Displayed
from mergepoint.core.merge import last_response
from mergepoint.core.paths import SEPARATOR
from mergepoint.tree.prompts import as_text

Compiled = CompiledStateGraph[Any, Any, Any, Any]

_BOX = ":"  # LangGraph's, between the names of a node and of the boxes around it
_ODD_IN_BOX = re.compile(r"[^\w./-]|-(?![0-9A-Za-z])")
_ODD_IN_LABEL = re.compile(r"""[#\[\](){}"<>|;`]""")


class DrawnGraph(Displayed, CompiledStateGraph[Any, Any, Any, Any]):
    """A compiled graph whose drawing with `xray` has the nodes of its tree or recipe.

    `inside` returns the graph of the root, or None for a single node. Notebooks draw `shown`, the
    tree or recipe that was compiled; LangGraph's own drawing would need a server.
    """

    # LangGraph draws the one node around them as a box. In a host, Mermaid then loses everything
    # below it, and rejects two boxes of one name. So the drawing omits that node and names boxes by
    # their path.

    def __init__(
        self, *, root: str, inside: Callable[[], Compiled | None], shown: Any, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.root = root
        self.inside = inside
        self.shown = shown

    @classmethod
    def of(
        cls, graph: Compiled, root: str, inside: Callable[[], Compiled | None], *, shown: Any
    ) -> Self:
        """Return a graph of this class with the attributes of a compiled graph."""
        # LangGraph's builder creates graphs of its own class only.
        made = cls.__new__(cls)
        vars(made).update(vars(graph), root=root, inside=inside, shown=shown)
        return made

    def get_graph(
        self, config: RunnableConfig | None = None, *, xray: int | bool = False
    ) -> Drawing:
        """Return a drawable representation of the graph.

        With `xray`, it shows the content of the root node. A number limits the levels of blocks
        that are opened.
        """
        root = None if xray is False else self.inside()
        if root is None:
            return super().get_graph(config, xray=False)
        return named_by_path(root.get_graph(config, xray=xray), self.root)

    async def aget_graph(
        self, config: RunnableConfig | None = None, *, xray: int | bool = False
    ) -> Drawing:
        """Return a drawable representation of the graph."""
        return self.get_graph(config, xray=xray)


def named_by_path(drawing: Drawing, root: str) -> Drawing:
    """Return a drawing with boxes named by their paths, and labels that Mermaid can parse.

    A path is shortened to at least two names, so that it differs from the nodes of a host.
    """
    around = {tuple(one.split(_BOX)[:-1]) for one in drawing.nodes}
    boxes = {names[:end] for names in around for end in range(1, len(names) + 1)}
    paths = {names: (root, *names) for names in boxes}
    known: dict[tuple[str, ...], str] = {}
    for names, path in sorted(paths.items()):
        name = _ODD_IN_BOX.sub("_", _shortest(path, paths.values()))
        known[names] = f"{name}_{len(known)}" if name in known.values() else name

    def renamed(node_id: str) -> str:
        *around, name = node_id.split(_BOX)
        found = [known[tuple(around[: end + 1])] for end in range(len(around))]
        return _BOX.join([*found, name])

    ids = {old: renamed(old) for old in drawing.nodes}
    return Drawing(
        nodes={ids[old]: _labelled(node, ids[old]) for old, node in drawing.nodes.items()},
        edges=[
            edge.copy(source=ids[edge.source], target=ids[edge.target]) for edge in drawing.edges
        ],
    )


def _shortest(path: tuple[str, ...], paths: Iterable[tuple[str, ...]]) -> str:
    """Return the shortest unique end of a path; the id of a stage is complete on its own."""
    if path[-1].startswith(f"{path[0]}."):
        return path[-1]
    for names in range(2, len(path)):
        if sum(other[-names:] == path[-names:] for other in paths) == 1:
            return SEPARATOR.join(path[-names:])
    return SEPARATOR.join(path)


def _labelled(node: DrawnNode, node_id: str) -> DrawnNode:
    label = node.name.rpartition(_BOX)[2]
    return node.copy(id=node_id, name=_ODD_IN_LABEL.sub(lambda odd: f"#{ord(odd[0])};", label))


_CALL_ID: Final = "__mergepoint_tool_call"
_LANGCHAINS: Final = ("self", "config", "run_manager")  # arguments of a tool's own method


class _Message(TypedDict):
    """The arguments of a tool made from a graph without declared inputs."""

    __pydantic_config__ = ConfigDict(extra="forbid")  # type: ignore[misc]

    message: NotRequired[
        Annotated[str, Field(description="The user message that opens the conversation.")]
    ]


class CompiledTree(DrawnGraph):
    """A tree compiled to a LangGraph graph. As a tool it takes the tree's declared inputs.

    `direct` runs a fused tree without LangGraph, with the same result and the same records. It is
    None for a tree with functions, tools or gates, whose code may use LangGraph.
    """

    direct: Callable[[Mapping[str, Any], RunnableConfig], Coroutine[Any, Any, Any]] | None = None

    def as_tool(
        self,
        args_schema: Any = None,
        *,
        name: str | None = None,
        description: str | None = None,
        arg_types: dict[str, type] | None = None,
    ) -> BaseTool:
        """Return a LangChain tool whose arguments are the inputs that the tree declares.

        Inputs without a default are required. Each has its declared type, or that of its default. A
        tree without declared inputs takes `message`, which opens the conversation. The result is
        the text of the last response. Without a response, it is the only output, or all outputs as
        JSON. The artifact of the tool's message is the output of the graph.

        Args:
            args_schema: Your own arguments, which are the graph's `messages` and `inputs`, as for
                LangChain's `as_tool`. The result is then the output of the graph.
            name: The tool's name. By default the graph's.
            description: The purpose of the tool, by which a model chooses it.
            arg_types: Like `args_schema`, by name.

        Raises:
            TreeError: An input has a name that LangChain reserves.
        """
        name = name or re.sub(r"[^\w-]", "_", self.get_name(), flags=re.ASCII)
        if args_schema is not None or arg_types is not None:
            return super().as_tool(
                args_schema, name=name, description=description, arg_types=arg_types
            )
        declared: Any = get_type_hints(self.builder.input_schema)["inputs"]
        if refused := [one for one in _LANGCHAINS if one in declared.__annotations__]:
            raise TreeError.of(
                f"input {refused[0]!r} has the name of an argument that LangChain reserves; rename "
                "it, or pass an args_schema to as_tool"
            )
        said = description or f"Run the workflow {name!r} and return its result."
        if not declared.__annotations__:
            return tool_of(self, TypeAdapter(_Message), _opened, _result, name, description=said)
        return tool_of(self, TypeAdapter(declared), _started, _result, name, description=said)


def _opened(checked: _Message) -> dict[str, Any]:
    return {"messages": [("user", one) for one in checked.values()]}


def _started(checked: Mapping[str, Any]) -> dict[str, Any]:
    return {"inputs": checked}


def tool_of(
    graph: DrawnGraph,
    arguments: TypeAdapter[Any],
    state: Callable[[Any], dict[str, Any]],
    result: Callable[[dict[str, Any]], tuple[str, Any]],
    name: str,
    *,
    description: str,
) -> BaseTool:
    """Return the tool that runs a graph.

    Args:
        graph: The graph, whose input has a `scope`.
        arguments: The schema of the tool's arguments.
        state: Returns the input of the graph for validated arguments.
        result: Returns the text for the model and the artifact, from the output of the graph.
        name: The tool's name.
        description: The purpose of the tool.
    """

    def given(arguments_given: Mapping[str, Any], config: RunnableConfig) -> dict[str, Any]:
        scope = config.get("configurable", {}).get(_CALL_ID, "")
        return {**state(arguments.validate_python(arguments_given)), "scope": scope}

    def run(graph_config: RunnableConfig, **called: Any) -> tuple[str, Any]:
        return result(graph.invoke(given(called, graph_config), _without_id(graph_config)))

    async def arun(graph_config: RunnableConfig, **called: Any) -> tuple[str, Any]:
        asked = given(called, graph_config)
        return result(await graph.ainvoke(asked, _without_id(graph_config)))

    return _TreeTool(
        name=name,
        description=description,
        args_schema=arguments.json_schema(),
        func=run,
        coroutine=arun,
        response_format="content_and_artifact",
    )


class _TreeTool(StructuredTool):
    """A tool that passes the id of a tool call to the run as its scope.

    An agent executes all tool calls of one answer concurrently in one node, and repeats the node
    when it resumes. The ids give each run its own paths and its own journal.
    """

    def invoke(
        self,
        input: str | dict[str, Any] | ToolCall,  # noqa: A002  (LangChain's name)
        config: RunnableConfig | None = None,
        **kwargs: Any,
    ) -> Any:
        """Run the tool, on a tool call or its arguments."""
        return super().invoke(input, _with_id(input, config), **kwargs)

    async def ainvoke(
        self,
        input: str | dict[str, Any] | ToolCall,  # noqa: A002  (LangChain's name)
        config: RunnableConfig | None = None,
        **kwargs: Any,
    ) -> Any:
        """Run the tool, on a tool call or its arguments."""
        return await super().ainvoke(input, _with_id(input, config), **kwargs)


def _with_id(called: Any, config: RunnableConfig | None) -> RunnableConfig:
    """Return the config with the id of a tool call, without characters that no path may have."""
    config = ensure_config(config)
    if not isinstance(called, Mapping) or called.get("type") != "tool_call" or not called["id"]:
        return config
    call_id = re.sub(r"[^\w.-]", "_", str(called["id"]), flags=re.ASCII)
    return {**config, "configurable": {**config.get("configurable", {}), _CALL_ID: call_id}}


def _without_id(config: RunnableConfig) -> RunnableConfig:
    options = {**config.get("configurable", {})}
    options.pop(_CALL_ID, None)
    return {**config, "configurable": options}


def _result(found: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the text of a run for the model, and its output. Raises StepError at an open gate."""
    if questions := found.get("__interrupt__"):
        at = ", ".join(str(one.value["path"]) for one in questions)
        raise StepError(
            f"the run waits for a decision at {at}, and nobody can answer it here: run the tool in "
            "a graph with a checkpointer, or set an answerer for the gate (Recorder(answerer=...))"
        )
    answer = last_response(found["messages"])
    if answer is not None:
        return str(answer.text), found
    outputs = found["outputs"]
    value = next(iter(outputs.values()), "") if len(outputs) < 2 else outputs
    return as_text(value), found
