"""Facts: what is handed down unchanged from the start of a run to every call."""

from __future__ import annotations

import itertools
import secrets
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from langchain_core.messages import (
    BaseMessage,
    BaseMessageChunk,
    convert_to_messages,
    message_chunk_to_message,
)
from langchain_core.runnables import RunnableConfig

from mergepoint.core.errors import Fault, TreeError, locate
from mergepoint.core.path import SEPARATOR, Place, join, nearest
from mergepoint.tree.block import REQUIRED, Input
from mergepoint.tree.context import PromptContext
from mergepoint.tree.fold import Messages
from mergepoint.tree.template import Reads

RUN_ID = "mergepoint_run_id"
SEED = "mergepoint_seed"
THREAD = "thread_id"  # LangGraph's
WITHIN = "__mergepoint_within"  # LangChain takes keys without the underscores into the metadata


@dataclass(frozen=True, slots=True)
class Facts:
    """The run's id, the prefix of a host graph, the seed, the inputs.

    `rounds` are the iterations of the loops around, the outermost first. `within` is the path of
    the Call that the run is inside of, if it is: all paths of the run begin with it.
    """

    run: str
    host: str = ""
    seed: int = 0
    inputs: Mapping[str, Any] = field(default_factory=dict)
    rounds: tuple[int, ...] = ()
    within: str = ""

    def path(self, place: Place) -> str:
        """Give the path of a place in this run."""
        return join(self.within, place.at(self.rounds)) if self.within else place.at(self.rounds)

    @property
    def around(self) -> str:
        """Give the path of what is around the run: the host's nodes, and the Call."""
        return join(self.host, self.within) if self.within else self.host

    def on_wire(self) -> dict[str, Any]:
        """Give plain data, which a checkpointer can keep."""
        return {
            "run": self.run,
            "host": self.host,
            "seed": self.seed,
            "inputs": dict(self.inputs),
            "rounds": list(self.rounds),
            "within": self.within,
        }

    @classmethod
    def off_wire(cls, data: Mapping[str, Any]) -> Facts:
        """Give facts back from plain data."""
        return cls(**{**data, "rounds": tuple(data["rounds"])})


def new_run_id() -> str:
    """Give an id that sorts by time: `20261120-110502-1f2e3d`."""
    return f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(3)}"


def given_inputs(declared: Sequence[Input], given: Any, *, path: str) -> dict[str, Any]:
    """Give the inputs of a run with defaults filled in.

    Raises TreeError that lists every missing and every unknown input.
    """
    if given is not None and not isinstance(given, Mapping):
        raise TreeError.of(f"inputs is a mapping of names to values, not {given!r}", path=path)
    given = dict(given or {})
    known = {known.name: known for known in declared}
    faults = [
        Fault(path, f"input {name!r} is not given; pass inputs={{{name!r}: ...}}")
        for name, wanted in known.items()
        if name not in given and wanted.default is REQUIRED
    ]
    faults += [
        Fault(
            path,
            f"input {name!r} is not declared{nearest(name, known)}; the tree takes: "
            f"{', '.join(known) or 'none'}",
        )
        for name in given
        if name not in known
    ]
    if faults:
        error = TreeError(faults)
        locate(error, path, kind="root", name=path.rpartition("/")[2], innermost=True)
        raise error
    defaults = {name: wanted.default for name, wanted in known.items() if name not in given}
    return {**defaults, **given}


def whole_messages(given: Iterable[Any]) -> list[BaseMessage]:
    """Give messages from any form that LangChain takes; pieces of a stream become messages."""
    return [
        message_chunk_to_message(message) if isinstance(message, BaseMessageChunk) else message
        for message in convert_to_messages(list(given))
    ]


def unused_run_id(run_id: str, path: str, messages: Iterable[BaseMessage]) -> str:
    """Give the run's id; where the conversation holds messages of that run, `<run_id>.2` and on.

    Ids of messages start with it, and hosts replace messages that share an id.
    """
    return next(unused_run_ids(run_id, path, messages))


def unused_run_ids(run_id: str, path: str, messages: Iterable[BaseMessage]) -> Iterator[str]:
    """Give one id after the other of those for which the conversation holds no message."""
    taken = {str(message.id) for message in messages if message.id}
    for number in itertools.count(1):
        unused = run_id if number == 1 else f"{run_id}.{number}"
        if not any(name.startswith(f"{unused}/{path}/") for name in taken):
            yield unused


def facts_from(config: RunnableConfig, *, inputs: Mapping[str, Any], scope: str = "") -> Facts:
    """Give the facts of a run that starts in a graph with this config."""
    options = config.get("configurable", {})
    host, call, around = options.get(WITHIN, ("", "", 0))
    names = node_names(config.get("metadata", {}))[around:-1] + ([scope] if scope else [])
    nodes = SEPARATOR.join(names)
    return Facts(
        run=options.get(RUN_ID) or new_run_id(),
        host=host if call else nodes,
        seed=options.get(SEED, 0),
        inputs=inputs,
        within=SEPARATOR.join([call, *names]) if call else "",
    )


def context_of(path: str, base: Messages, facts: Facts, reads: Reads | None) -> PromptContext:
    """Give what a function of the tree is given at a path."""
    return PromptContext.over(
        path,
        run_id=facts.run,
        seed=facts.seed,
        messages=base.messages,
        inputs=facts.inputs,
        outputs=base.outputs,
        reads=reads,
    )


def within(config: RunnableConfig, host: str, path: str) -> RunnableConfig:
    """Give the config for what runs inside of the Call at a path.

    A run that starts there takes its names from the engine's namespace as those around a root are
    read, but from the Call on: the Call's path stands for the nodes around it.
    """
    around = len(node_names(config.get("metadata", {})))
    options = {**config.get("configurable", {}), WITHIN: (host, path, around)}
    return {**config, "configurable": options}


def node_names(metadata: Mapping[str, Any]) -> list[str]:
    """Give the names in the engine's namespace of a call, outermost first.

    The namespace is `node:<uuid>|node:<uuid>`, with a counter for a node that runs a graph
    several times.
    """
    namespace = str(metadata.get("langgraph_checkpoint_ns", ""))
    names = [part.partition(":")[0] for part in namespace.split("|")]
    return [name for name in names if name and not name.isdigit()]
