"""The header of a run, which is the first line of its journal."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

import orjson
from langchain_core.messages import BaseMessage, messages_from_dict, messages_to_dict

from mergepoint.journal.fingerprint import Digests
from mergepoint.journal.lines import JournalError, encode
from mergepoint.journal.redact import Redact, safe, suspicious
from mergepoint.tree.transform import from_outline

FORMAT = "mergepoint.journal/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunHeader:
    """The input of a run and the outline of its tree, as they were at its start.

    Args:
        run_id: The id of the run.
        created_at: The time of its start.
        seed: The seed of random numbers in prompt functions.
        inputs: The inputs, after masking.
        messages: The messages, after masking.
        tree: The outline of the tree.
        requests: A digest of the static part of each step's request, by path.
        masked: The fields that are masked and so differ from the run's input.
        cleaned: The fields in which lone surrogates were replaced.
        meta: Your own data, to find the run by.
        hidden: Digests of the masked fields (see `with_hidden_digests`), so that a resumed run can
        check its input.
    """

    run_id: str
    created_at: datetime
    seed: int
    inputs: Mapping[str, Any]
    messages: tuple[BaseMessage, ...]
    tree: Mapping[str, Any]
    requests: Mapping[str, str] = field(default_factory=dict)
    masked: tuple[str, ...] = ()
    cleaned: tuple[str, ...] = ()
    meta: Mapping[str, Any] = field(default_factory=dict)
    hidden: Mapping[str, Any] = field(default_factory=dict)

    @property
    def shape(self) -> Mapping[str, Any]:
        """Return the outline of the run's tree. Raises JournalError if there is none."""
        if not self.tree:
            raise JournalError(
                f"the journal of {self.run_id!r} names no tree: it is a cassette, whose records "
                "are of any number of runs, and not the journal of a run"
            )
        return self.tree

    def to_plain(self) -> dict[str, Any]:
        """Return the header as JSON data."""
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
        rare = {
            "masked": list(self.masked),
            "cleaned": list(self.cleaned),
            "meta": dict(self.meta),
            "hidden": dict(self.hidden),
        }
        return {**plain, **{name: value for name, value in rare.items() if value}}

    @classmethod
    def from_plain(cls, data: Mapping[str, Any]) -> RunHeader:
        """Return the header from its JSON data.

        Raises KeyError, TypeError, ValueError or OverflowError for data that no run writes, so that
        later code can rely on its shape.
        """
        _check_shape(data)
        return cls(
            run_id=data["run_id"],
            created_at=datetime.fromisoformat(data["created_at"]),
            seed=data["seed"],
            inputs=data["inputs"],
            messages=tuple(messages_from_dict(data["messages"])),
            tree=data["tree"],
            requests=data["requests"],
            masked=tuple(data.get("masked", ())),
            cleaned=tuple(data.get("cleaned", ())),
            meta=data.get("meta", {}),
            hidden=data.get("hidden", {}),
        )

    def differing(self, inputs: Mapping[str, Any], messages: Sequence[BaseMessage]) -> list[str]:
        """Return the masked fields whose values differ from those at the start of the run.

        Raises KeyError if the header has no digest of a masked field.
        """
        salt = bytes.fromhex(self.hidden["salt"])
        values = {"inputs": _plain_inputs(inputs), "messages": _plain_messages(messages)}
        return [
            name for name in self.masked if self.hidden[name] != _slow_digest(values[name], salt)
        ]


def _check_shape(data: Mapping[str, Any]) -> None:
    maps = [data["inputs"], data["tree"], data["requests"], data.get("meta", {})]
    hidden = data.get("hidden", {})
    if not all(isinstance(one, Mapping) for one in (*maps, hidden)):
        raise TypeError("inputs, tree, requests, meta and hidden are objects")
    names = hidden.get("names", [])
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise TypeError("hidden.names is a list of texts")
    datetime.fromisoformat(data["created_at"]).astimezone()
    if not data["tree"]:  # a cassette, whose records may belong to many runs
        return
    if not isinstance(data["tree"]["path"], str):
        raise TypeError("tree.path is a text")
    if "stage" not in data["tree"]:  # a recipe's plan has a shape of its own
        from_outline(data["tree"])


def with_hidden_digests(header: RunHeader, redact: Redact | None) -> RunHeader:
    """Return the header with digests of the inputs and messages that will be masked.

    `names` lists the inputs with masked values. The digests use scrypt with a salt of their own:
    with a fast hash, a reader of the journal could find short secrets by trying.
    """
    plain = header.to_plain()
    body = encode({"inputs": plain["inputs"], "messages": plain["messages"]})
    if redact is None and not suspicious(body):
        return header
    masked = safe(plain, redact).get("masked", ())
    if not masked:
        return header
    salt = secrets.token_bytes(16)
    values = {
        "inputs": _plain_inputs(header.inputs),
        "messages": _plain_messages(header.messages),
    }
    hidden: dict[str, Any] = {name: _slow_digest(values[name], salt) for name in masked}
    if "inputs" in masked:
        hidden["names"] = masked_inputs(header.inputs, redact)
    return replace(header, hidden={"salt": salt.hex(), **hidden})


def masked_inputs(inputs: Mapping[str, Any], redact: Redact | None = None) -> list[str]:
    """Return the names of the inputs in which something is masked before they are written."""
    return [
        name
        for name, value in inputs.items()
        if safe({"inputs": {name: value}}, redact)["inputs"] != {name: value}
    ]


def _plain_inputs(inputs: Mapping[str, Any]) -> bytes:
    return orjson.dumps(dict(inputs), option=orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS)


def _plain_messages(messages: Sequence[BaseMessage]) -> bytes:
    """Return the contents of messages; ids do not count, since a graph creates new ones."""
    digests = Digests()
    return b"".join(digests.of(message) for message in messages)


def _slow_digest(value: bytes, salt: bytes) -> str:
    found = hashlib.scrypt(value, salt=salt, n=2**15, r=8, p=1, maxmem=2**26, dklen=32)
    return found.hex()
