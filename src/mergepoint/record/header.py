"""RunHeader: what a run began with; the first line of its journal."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from langchain_core.messages import BaseMessage, messages_from_dict, messages_to_dict

FORMAT = "mergepoint.journal/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunHeader:
    """What a run began with.

    `tree` is the outline of the tree, `requests` a digest of what is static in each step, by
    path. `masked` names what is not as the run was given it, but hidden. `meta` is what whoever
    began the run wants to find again with it.
    """

    run_id: str
    created_at: datetime
    seed: int
    inputs: Mapping[str, Any]
    messages: tuple[BaseMessage, ...]
    tree: Mapping[str, Any]
    requests: Mapping[str, str] = field(default_factory=dict)
    masked: tuple[str, ...] = ()
    meta: Mapping[str, Any] = field(default_factory=dict)

    def to_plain(self) -> dict[str, Any]:
        """Give the header as JSON data."""
        plain = {
            "format": FORMAT,
            "run_id": self.run_id,
            "created_at": self.created_at.isoformat(),
            "seed": self.seed,
            "inputs": dict(self.inputs),
            "messages": messages_to_dict(self.messages),
            "tree": dict(self.tree),
            "requests": dict(self.requests),
        }
        rare = {"masked": list(self.masked), "meta": dict(self.meta)}
        return {**plain, **{name: value for name, value in rare.items() if value}}

    @classmethod
    def from_plain(cls, data: Mapping[str, Any]) -> RunHeader:
        """Give a header back from its JSON data."""
        return cls(
            run_id=data["run_id"],
            created_at=datetime.fromisoformat(data["created_at"]),
            seed=data["seed"],
            inputs=data["inputs"],
            messages=tuple(messages_from_dict(data["messages"])),
            tree=data["tree"],
            requests=data["requests"],
            masked=tuple(data.get("masked", ())),
            meta=data.get("meta", {}),
        )
