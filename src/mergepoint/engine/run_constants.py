"""Facts: values that pass unchanged from the start of a run to every call."""

from __future__ import annotations

import itertools
import secrets
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from langchain_core.messages import (
    BaseMessage,
)
from langchain_core.runnables import RunnableConfig

from mergepoint.core.paths import SEPARATOR, Place, join
from mergepoint.models.langchain_internals import node_namespace
from mergepoint.tree.prompts import PromptContext, Reads
from mergepoint.tree.semantics import Messages

RUN_ID = "mergepoint_run_id"
SEED = "mergepoint_seed"
THREAD = "thread_id"  # LangGraph's
WITHIN = "__mergepoint_within"  # LangChain takes keys without the underscores into the metadata


@dataclass(frozen=True, slots=True)
class Facts:
    """Run id, host prefix, seed and inputs of a run.

    `rounds` are the iterations of the loops around, the outermost first. `within` is the path of
    the Call around the run, blank if there is none. All paths of the run begin with it.
    """

    run: str
    host: str = ""
    seed: int = 0
    inputs: Mapping[str, Any] = field(default_factory=dict)
    rounds: tuple[int, ...] = ()
    within: str = ""

    def path(self, place: Place) -> str:
        """Return the path of a place in this run."""
        path = place.at(self.rounds) if place.loops else place.path
        return join(self.within, path) if self.within else path

    @property
    def around(self) -> str:
        """Return the path around the run: the nodes of the host, and the Call."""
        return join(self.host, self.within) if self.within else self.host

    def to_plain(self) -> dict[str, Any]:
        """Return plain data, which a checkpointer can store."""
        return {
            "run": self.run,
            "host": self.host,
            "seed": self.seed,
            "inputs": dict(self.inputs),
            "rounds": list(self.rounds),
            "within": self.within,
        }

    @classmethod
    def from_plain(cls, data: Mapping[str, Any]) -> Facts:
        """Return facts from plain data."""
        return cls(**{**data, "rounds": tuple(data["rounds"])})


def new_run_id() -> str:
    """Return an id that sorts by time: `20261120-110502-1f2e3d`."""
    return f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(3)}"


def unused_run_id(run_id: str, path: str, messages: Iterable[BaseMessage]) -> str:
    """Return the run's id, or `<run_id>.2` and so on if the conversation has messages of that run.

    Ids of messages start with it, and hosts replace messages that share an id.
    """
    return next(unused_run_ids(run_id, path, messages))


def unused_run_ids(run_id: str, path: str, messages: Iterable[BaseMessage]) -> Iterator[str]:
    """Yield ids of runs of which the conversation contains no message."""
    used_ids = {str(message.id) for message in messages if message.id}
    for number in itertools.count(1):
        unused = run_id if number == 1 else f"{run_id}.{number}"
        if not any(name.startswith(f"{unused}/{path}/") for name in used_ids):
            yield unused


def facts_from(config: RunnableConfig, *, inputs: Mapping[str, Any], scope: str = "") -> Facts:
    """Return the facts of a run that starts in a graph with this config."""
    options = config.get("configurable", {})
    host, call, around = options.get(WITHIN, ("", "", 0))
    # The last name is the root's own node. Names before `around` belong to runs outside the Call.
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
    """Return the context for a function of the tree at a path."""
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
    """Return the config for runs inside the Call at a path.

    Such a run reads its host names from LangGraph's namespace, but only those below the Call: the
    path of the Call replaces the nodes around it.
    """
    around = len(node_names(config.get("metadata", {})))
    options = {**config.get("configurable", {}), WITHIN: (host, path, around)}
    return {**config, "configurable": options}


def node_names(metadata: Mapping[str, Any]) -> list[str]:
    """Return the names in LangGraph's namespace of a call, outermost first.

    The namespace is `node:<uuid>|node:<uuid>`, with a counter for a node that runs a graph
    several times.
    """
    namespace = node_namespace(metadata)
    names = [part.partition(":")[0] for part in namespace.split("|")]
    return [name for name in names if name and not name.isdigit()]
