"""The options that a run was started with, as its journal records them, and resume commands.

Keys are never recorded: a placeholder stands for an address or a setting that contains one.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from mergepoint.apps.cli.framework import declared, is_unset, words
from mergepoint.apps.cli.inputs import read_setting
from mergepoint.apps.cli.options import ModelOptions, RecordedOptions
from mergepoint.apps.cli.output import CommandError
from mergepoint.apps.cli.run_store import FoundRun, StoredRun
from mergepoint.core.errors import MergepointError, TreeError
from mergepoint.journal.recipe_records import is_recipe
from mergepoint.journal.redact import hides
from mergepoint.models.providers import OFFLINE, ModelSettings
from mergepoint.report.run_state import COMMAND
from mergepoint.streams.recipe_yaml import LIBRARY
from mergepoint.tree.load import GRAPH_FILES, RECIPE_FILE, split_target

FORMAT: Final = "mergepoint.command/3"
IGNORE: Final = "--ignore-recorded"
_URL, _VALUE = "URL", "VALUE"  # placeholders for values that contain a key


@dataclass(frozen=True, kw_only=True)
class Invocation(RecordedOptions):
    """A target, and the options that are recorded with its run.

    `hidden` names the options whose values contain a key; these have placeholders.
    """

    target: str
    hidden: tuple[str, ...] = ()

    def with_given(self, given: Mapping[str, Any]) -> Invocation:
        """Return the invocation with other options; a list replaces the whole list.

        An address without a name belongs to the model, and goes with it.
        """
        model = given.get("model", self.model)
        kept = self.base_url if model == self.model else tuple(filter(_model_of, self.base_url))
        return replace(self, **{"base_url": kept, **given})

    def to_meta(self, folder: Path | None) -> dict[str, Any]:
        """Return the entry for the journal's header, without keys.

        Files are named from the run's folder, so that the whole project can be moved. A run
        without a folder has absolute paths.
        """
        return {COMMAND: {"format": FORMAT, **asdict(self._recorded(folder))}}

    def _recorded(self, folder: Path | None) -> Invocation:
        there = None if folder is None else folder.resolve()
        hidden = [] if not any(map(has_key, self.base_url)) else ["--base-url"]
        urls = tuple(_URL if has_key(one) else one for one in self.base_url)
        settings = []
        for setting in self.set:
            path, separator, _ = setting.partition("=")
            if hides(*read_setting(setting)[1:]):
                hidden.append(f"--set {path}")
                setting = f"{path}{separator}{_VALUE}"  # noqa: PLW2901
            settings.append(setting)
        return replace(
            self,
            target=_moved(self.target, Path(), there),
            blocks=tuple(_moved_file(file, Path(), there) for file in self.blocks),
            base_url=urls,
            set=tuple(settings),
            hidden=tuple(hidden),
        )


def read_invocation(run: StoredRun) -> Invocation | None:
    """Return the invocation of a run, None if there is none, as for a run from Python.

    Raises CommandError for an invocation in another format.
    """
    data = run.read()[0].meta.get(COMMAND)
    if data is None:
        return None
    try:
        return _read(data, run.folder)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise CommandError(
            f"Can't read the options that {run.place} was started with: {error}. Pass them again: "
            f"mergepoint resume {run.name} TARGET --model PROVIDER:NAME {IGNORE}"
        ) from error


def invocation_of(data: Mapping[str, Any]) -> Invocation:
    """Return the invocation of the entry that `to_meta` made without a folder.

    Raises CommandError for one in another format.
    """
    try:
        return _read(data, None)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise CommandError(f"Can't read the options of the run: {error}.") from error


def resumed(run: StoredRun, given: Mapping[str, Any], *, ignores: bool) -> Invocation:
    """Return the invocation of a resume: the recorded one, overridden by the `given` options.

    Raises CommandError if neither has the target and the model, or a value that contains a key.
    """
    recorded = None if ignores else read_invocation(run)
    if recorded is None:
        needed = ("target",) if ignores else ("target", "model")
        if any(name not in given for name in needed):
            raise CommandError(
                f"The journal of {run.place} doesn't have the options of the run, for example "
                "because it was started from Python. Pass them: "
                f"mergepoint resume {run.name} TARGET --model PROVIDER:NAME"
            )
        return Invocation(**given)
    fields_of = {"--base-url": "base_url", "--set": "set"}
    missing = [one for one in recorded.hidden if fields_of[one.partition(" ")[0]] not in given]
    if given.get("model", recorded.model) != recorded.model:
        # The hidden address belongs to the recorded model (see `with_given`).
        missing = [one for one in missing if one != "--base-url"]
    if missing:
        raise CommandError(
            f"{', '.join(missing)}: the value looked like a key and was not recorded. Pass it "
            f"again: {resume_command(run)}"
        )
    return replace(recorded.with_given(given), hidden=())


def resume_command(
    run: StoredRun, *, now: Invocation | None = None, answers: Sequence[str] = ()
) -> str | None:
    """Return the command that resumes a run, None if the run has no journal.

    The model and the limits are always part of it, so that it shows the possible cost. Words in
    capitals stand for values that are not recorded, because they contain a key.

    Args:
        run: The run.
        now: The invocation of the run that ended just now. Its differences from the recorded one
            are options of the command.
        answers: Decisions for gates, as `PATH=DECISION`.
    """
    if not run.has_journal:
        return None
    more = [word for answer in answers for word in ("--answer", shlex.quote(answer))]
    try:
        for name in run.read()[0].hidden.get("names", ()):
            more += ["--input", f"{shlex.quote(name)}=VALUE"]
        unknown = f"{_known_recipe(run)} --model PROVIDER:NAME"
    except MergepointError:
        return None
    readable = True
    # A journal of another version can't be read here, but its run can be resumed with options.
    try:
        recorded = read_invocation(run)
    except CommandError:
        recorded, readable = None, False
    start = ["mergepoint resume", run.name]
    if not readable:
        more.append(IGNORE)
    if now is None and recorded is None:
        return " ".join([*start, unknown, *more])
    # Compare as read back from the journal: with relative paths, and placeholders for keys.
    now = recorded if now is None else _read(now.to_meta(run.folder)[COMMAND], run.folder)
    assert now is not None  # noqa: S101  (one of both is an invocation)
    return " ".join([*start, *_changes(recorded, now), *more])


def resume_command_of(state: FoundRun) -> str | None:
    """Return the command that resumes a run, None for a run that is finished or running."""
    return (
        resume_command(state.run, answers=approving(state.open_gates)) if state.resumable else None
    )


def approving(gates: Iterable[str]) -> list[str]:
    """Return an approval of each open gate, as `PATH=approve`."""
    return [f"{path}=approve" for path in gates]


def _changes(recorded: Invocation | None, now: Invocation) -> list[str]:
    """Return the words that make a resume with `recorded` options one with the options `now`."""
    default = RecordedOptions()
    differing = {
        one.name
        for one in fields(RecordedOptions)
        if getattr(now, one.name) != getattr(default, one.name)
    }
    if recorded is not None:
        hidden = {"set"} & {one.partition(" ")[0].removeprefix("--") for one in now.hidden}
        names = [one.name for one in fields(RecordedOptions)]
        given = {
            name: value
            for name in names
            if (value := getattr(now, name)) != getattr(recorded, name) and not is_unset(value)
        }
        target = {} if now.target == recorded.target else {"target": now.target}
        # Options cannot unset a recorded value. If they do not lead to `now`, print all of it.
        if replace(recorded.with_given({**given, **target}), hidden=now.hidden) == now:
            stated = {one.name for one, _, known in declared(RecordedOptions) if known.stated}
            shown = {*given, *hidden, *(stated & differing)}
            return [*map(shlex.quote, target.values()), *words(now, shown)]
    extra = [IGNORE] if recorded is not None else []
    return [shlex.quote(now.target), *words(now, differing | {"model"}), *extra]


def _known_recipe(run: StoredRun) -> str:
    """Return the name of a bundled recipe that a run is of, otherwise a placeholder."""
    shape = run.read()[0].tree
    if not is_recipe(shape):
        return "TARGET"
    name = str(shape.get("stage"))
    return shlex.quote(name) if name in LIBRARY else "TARGET"


def model_settings(options: ModelOptions) -> ModelSettings:
    """Return the settings for model calls. Raises CommandError for invalid ones."""
    addresses = {_model_of(url) or options.model: split_address(url)[1] for url in options.base_url}
    if OFFLINE in addresses:
        raise CommandError("--base-url needs a model. Add --model PROVIDER:NAME.")
    try:
        return ModelSettings(
            temperature=options.temperature,
            max_tokens=options.max_tokens,
            timeout=options.timeout,
            base_url=addresses or None,
            method=getattr(options, "method", None),
        )
    except TreeError as error:
        raise CommandError(str(error)) from error


def split_address(url: str) -> tuple[str, str]:
    """Return the model and the address of a `--base-url`; the model is empty if not named."""
    name, separator, rest = url.partition("=http")
    # After "//", the "=" belongs to the address itself, for example to its query.
    if not separator or "/" in name.partition(":")[2][:2]:
        return "", url
    return name, f"http{rest}"


def _model_of(url: str) -> str:
    return split_address(url)[0]


def with_environment(options: Any) -> Any:
    """Return options with the address that the environment sets for OpenAI's models.

    It is recorded with the run, since a resume in another environment must call the same server.
    """
    # The order of langchain-openai: its own variable, then that of OpenAI's client.
    url = os.environ.get("OPENAI_API_BASE") or os.environ.get("OPENAI_BASE_URL") or ""
    named = map(_model_of, options.base_url)
    # An option comes before the environment.
    known = any(not name or fnmatchcase(options.model, name) for name in named)
    is_url = url.startswith(("http://", "https://"))
    if known or not is_url or not options.model.startswith("openai:"):
        return options
    return replace(options, base_url=(*options.base_url, f"openai:*={url}"))


def with_address(name: str, settings: ModelSettings) -> str:
    """Return the name of a model with its server, without a key."""
    address = urlsplit(settings.address(name) or "")
    port = "" if address.port is None else f":{address.port}"
    return f"{name} at {address.scheme}://{address.hostname}{port}" if address.hostname else name


def has_key(url: str) -> bool:
    """Return whether a `--base-url` may contain a key."""
    address = urlsplit(split_address(url)[1])
    return bool(address.username or address.password or address.query)


def _read(data: Mapping[str, Any], folder: Path | None) -> Invocation:
    if data["format"] != FORMAT:
        raise ValueError(f"the format is {data['format']!r}, and this version reads {FORMAT!r}")
    known = {name: value for name, value in data.items() if name != "format"}
    # JSON has no tuples, and values are compared with those of the command line.
    lists = {name: tuple(value) for name, value in known.items() if isinstance(value, list | tuple)}
    found = Invocation(**{**known, **lists})
    here = folder.resolve() if folder is not None else Path()
    return replace(
        found,
        target=_moved(found.target, here, Path.cwd()),
        blocks=tuple(_moved_file(file, here, Path.cwd()) for file in found.blocks),
    )


def _moved(target: str, here: Path, there: Path | None) -> str:
    """Return a target named from one folder as it is named from another, or absolute."""
    file, name = split_target(target)
    if file is None:
        if not any((here / target / one).is_file() for one in (RECIPE_FILE, *GRAPH_FILES)):
            return target
        file = Path(target)
    seen = _moved_file(str(file), here, there)
    return f"{seen}:{name}" if file.suffix == ".py" else seen


def _moved_file(file: str, here: Path, there: Path | None) -> str:
    whole = (here / file).resolve()
    return str(whole) if there is None else os.path.relpath(whole, there)
