"""Make the spec of a batch from a target, and find the target of a spec again on a worker."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from mergepoint.core.errors import MergepointError
from mergepoint.journal.file_journal import JOURNAL, store_at
from mergepoint.journal.segment_store import SegmentStore
from mergepoint.journal.stores import Store
from mergepoint.scale.protocol import BatchError, RunSpec, TargetKind
from mergepoint.streams.recipe import Recipe
from mergepoint.streams.recipe_yaml import recipe_to_yaml
from mergepoint.targets import FoundTarget, find_target, target_in_text
from mergepoint.tree.load import split_target
from mergepoint.tree.nodes import Node
from mergepoint.tree.tree_yaml import from_yaml, to_yaml

BatchTarget = Node | Recipe | Path | str

_YAML: Final = (".yaml", ".yml")
# Names that `run` has and a member of a batch gets from the batch.
_OF_BATCH: Final = frozenset(
    {
        *("run_id", "runs", "resume", "reuse", "replay", "config", "inputs", "messages", "items"),
        *("ctx", "runner", "form", "watch"),
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveValues:
    """Values that only the driver's process has, for a worker in the same process.

    Attributes:
        found: The target, if it is a value.
        options: Options that aren't JSON data, such as a model object.
        store: A store that the caller made.
        unnamed: Why other processes can't find the target, or None if they can.
    """

    found: FoundTarget | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    store: Store | None = None
    unnamed: str | None = None

    @property
    def kept(self) -> str:
        """Return what other processes can't have, or nothing."""
        parts = [f"the target is a value of this process: {self.unnamed}"] if self.unnamed else []
        if self.options:
            names = ", ".join(f"{name}={value!r}" for name, value in self.options.items())
            parts.append(f"{names[:200]} is an object of this process")
        if self.store is not None:
            parts.append("the store is an object of this process")
        return "; ".join(parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetForm:
    """A target as a text or a name that other processes find, and as a value of this one.

    `kept` is None if others find it, or the reason why they can't.
    """

    found: FoundTarget
    text: str
    kind: TargetKind
    kept: str | None = None

    @classmethod
    def of(cls, target: BatchTarget) -> TargetForm:
        """Return the form of a target. Raises the errors of `find_target`."""
        if isinstance(target, str) and "\n" in target:
            return cls(found=target_in_text(target), text=target, kind="yaml")
        found = find_target(target)
        if not isinstance(target, str | Path):
            return cls._of_value(found)
        name = str(target)
        file, attribute = split_target(name)
        if file is not None and file.suffix not in _YAML:
            # Absolute, because a worker may have another current folder.
            return cls(found=found, text=f"{file.resolve()}:{attribute}", kind="name")
        if found.file is None or (file is None and not Path(name).exists()):
            return cls(found=found, text=name, kind="name")  # bundled
        if found.file.suffix in _YAML and (text := _alone(found, found.file)) is not None:
            return cls(found=found, text=text, kind="yaml")
        return cls(found=found, text=str(found.file.resolve()), kind="name")

    @classmethod
    def _of_value(cls, found: FoundTarget) -> TargetForm:
        try:
            if isinstance(found.value, Recipe):
                text = recipe_to_yaml(found.value)
                same = target_in_text(text)
            else:
                text = to_yaml(found.value)
                same = FoundTarget(from_yaml(text, imports=False))
        except MergepointError as error:
            kept = f"it has values that only Python can express ({_first_line(error)})"
            return cls(found=found, text="", kind="name", kept=kept)
        return cls(found=same, text=text, kind="yaml")


def _alone(found: FoundTarget, file: Path) -> str | None:
    """Return the text of a YAML file if it needs no other file, such as a module with tools."""
    text = file.read_text(encoding="utf-8-sig")
    try:
        if found.tree is not None:
            # Without imports, a tool is a problem.
            return text if from_yaml(text, imports=False) == found.tree else None
        return text if not _neighbours(file) and target_in_text(text).recipe else None
    except MergepointError:
        return None


def _neighbours(file: Path) -> bool:
    """Return whether a recipe has other YAML files next to it, which it may name."""
    return any(one != file and one.suffix in _YAML for one in file.parent.iterdir())


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]


def split_options(options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the options of a batch's runs that are JSON data, and the others.

    Raises BatchError for an option that a batch sets itself.
    """
    if taken := sorted(_OF_BATCH & options.keys()):
        raise BatchError(
            f"{', '.join(map(repr, taken))} is no option of a batch: it sets that for each of its "
            "runs; leave it out"
        )
    plain: dict[str, Any] = {}
    live: dict[str, Any] = {}
    for name, value in options.items():
        if value is not None:
            try:
                # `dict`, because a read-only mapping isn't JSON data for `json`.
                given = dict(value) if isinstance(value, Mapping) else value
                plain[name] = json.loads(json.dumps(given, allow_nan=False))
            except (TypeError, ValueError):
                live[name] = value
    return plain, live


@cache
def installed_version() -> str:
    """Return the version of mergepoint in this process."""
    return version("mergepoint")


def fingerprint_of(outline: Mapping[str, Any], requests: Mapping[str, str]) -> str:
    """Return the digest of a compiled tree's or a resolved recipe's parts."""
    text = json.dumps([outline, requests], sort_keys=True, default=str)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def check_version(spec: RunSpec) -> None:
    """Raise BatchError if another version of mergepoint made the spec."""
    if spec.version != installed_version():
        raise BatchError(
            f"batch {spec.batch!r} was started by mergepoint {spec.version}, and this worker runs "
            f"{installed_version()}; install the same version on both"
        )


def check_fingerprint(spec: RunSpec, fingerprint: str) -> None:
    """Raise BatchError if the target isn't what the driver compiled."""
    if spec.fingerprint != fingerprint:
        name = spec.target if spec.kind == "name" else "the YAML text"
        raise BatchError(
            f"batch {spec.batch!r}: {name} is another tree or recipe on this worker than on the "
            f"driver (fingerprint {fingerprint[:12]}, not {spec.fingerprint[:12]}): its file, a "
            "module that it imports, or its model differs; install the same files on both"
        )


def target_of(spec: RunSpec) -> FoundTarget:
    """Return the tree or recipe of a spec. Raises the errors of `find_target`."""
    if spec.kind == "yaml":
        return target_in_text(spec.target, source=f"<batch {spec.batch}>")
    if not spec.target:
        raise BatchError(f"batch {spec.batch!r} has a target that only its driver has")
    return find_target(spec.target)


def store_at_place(place: Path | str | Store) -> Store:
    """Return the store of a batch's journals: a folder has segments, unless it has runs already.

    Raises JournalError.
    """
    if isinstance(place, str) and "://" not in place and not _has_runs(Path(place)):
        return SegmentStore(place)
    return store_at(place)


def _has_runs(folder: Path) -> bool:
    """Return whether a folder has a run in a folder of its own, as FileStore keeps them."""
    return next(folder.glob(f"*/{JOURNAL}"), None) is not None
