"""`mergepoint view`: write the page of a run, two runs, a session, a batch, or the list of runs."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal
from urllib.parse import quote

from mergepoint.apps.cli.framework import SERVER, argument, option, words
from mergepoint.apps.cli.options import (
    SESSIONS,
    Json,
    Sessions,
    StoreOptions,
    complete_runs,
    complete_sessions,
)
from mergepoint.apps.cli.output import CommandError, put, put_json, tell
from mergepoint.apps.cli.run_store import (
    FoundRun,
    RunStore,
    StoredRun,
    all_runs,
    in_queue,
    with_queue,
)
from mergepoint.core.errors import MergepointError
from mergepoint.core.paths import is_file

if TYPE_CHECKING:
    from mergepoint.apps.cli.view_batch import ViewedBatch
    from mergepoint.apps.cli.view_serve import ServedStore
    from mergepoint.session.session_memory import SessionMemory
    from mergepoint.session.session_memory import Sessions as SessionStore
    from mergepoint.view.live_pages import Address

EXAMPLES = (
    "mergepoint view last",
    "mergepoint view",
    "mergepoint view last -o page.html --no-open",
    "mergepoint view first last --no-open",
    "mergepoint view last --serve",
    "mergepoint view results.jsonl -o batch.html --no-open",
)

PAGE = "view.html"
_LONGEST_INPUT = 2_000  # characters of an input in a command that runs again

Page = dict[str, Any]
Chosen = tuple[Literal["run", "compare", "session", "runs", "batch"], tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Written:
    """A page, and the file that it is written to by default."""

    page: Page
    file: Path


def view(
    runs: Annotated[
        list[str] | None,
        argument(
            "RUN",
            "Run or session: an ID, 'last', or a folder. Two runs: compare them. A batch: its "
            "results file.",
            complete_runs,
        ),
    ] = None,
    *,
    session: Annotated[
        str | None,
        option(
            "--session",
            metavar="ID",
            help="Show a session, also if a run has the same ID.",
            completion=complete_sessions,
        ),
    ] = None,
    to: Annotated[
        Path | None,
        option(
            "-o",
            "--to",
            metavar="FILE",
            help="File to write.",
            default="in the run's folder, or next to the results",
        ),
    ] = None,
    no_open: Annotated[bool, option("--no-open", help="Don't open the page in a browser.")] = False,
    serve: Annotated[
        bool,
        option(
            "--serve",
            help="Serve the pages on this machine instead: follow live runs, answer at gates.",
        ),
    ] = False,
    port: Annotated[
        int | None,
        option(
            "--port",
            metavar="PORT",
            min=0,
            max=65535,
            help="Port of --serve.",
            default="any free port",
            panel=SERVER,
        ),
    ] = None,
    enqueue: Annotated[
        bool,
        option(
            "--enqueue",
            help="With --serve, a worker of the queue resumes a run whose gate is answered.",
            panel=SERVER,
        ),
    ] = False,
    sessions: Sessions = SESSIONS,
    stored: StoreOptions,
    json: Json = False,
) -> None:
    """Write a run as one HTML file, print its path, and open it in a browser.

    The file needs no server and asks for nothing else: you can send it to a colleague. Without a
    run, the page is the list of runs and sessions; with two runs, it compares them; with the
    results file of a batch, it has its results, failures, and throughput. The browser opens only
    from a terminal.
    """
    store = stored.open()
    chosen = _chosen(store, list(runs or ()), session, sessions)
    batch = _viewed_batch(chosen, stored)
    if serve:
        if to is not None:
            raise CommandError("Can't use --serve and -o together: a served page isn't a file.")
        from mergepoint.apps.cli.view_serve import serve_pages
        from mergepoint.view.files import open_address

        served = (
            _served(store, chosen, sessions, url=stored.store)
            if batch is None
            else _served_batch(batch, sessions)
        )
        if enqueue:
            if not served.answers:
                raise CommandError("These runs can't be resumed with an answer. Remove --enqueue.")
            from mergepoint.apps.cli.enqueue import check_queue

            check_queue(served.runs, served.url or stored.url)
            served = replace(served, enqueue=True)
        opens = open_address if sys.stdout.isatty() and not (no_open or json) else None
        serve_pages(served, port=port or 0, opens=opens, json=json)
        return
    if port is not None:
        raise CommandError("--port is for --serve. Add --serve.")
    if enqueue:
        raise CommandError("--enqueue is for --serve. Add --serve.")
    if batch is None:
        written = _page(store, chosen, sessions, to)
    else:
        batch.check_file(to or batch.file)
        written = Written(batch.page(version=_version()), batch.file)
    _write(written, to, no_open=no_open, json=json)


def _write(found: Written, to: Path | None, *, no_open: bool, json: bool) -> None:
    """Write a page, print its path, and open it. Raises CommandError if it can't be written."""
    from mergepoint.view.files import open_page
    from mergepoint.view.page import write_html

    file = to or found.file
    try:
        write_html(file, found.page)
    except OSError as error:
        raise CommandError(
            f"Can't write {file}: {error.strerror or error}. Use -o FILE."
        ) from error
    # In a pipe or a script there is nobody to look at it.
    opened = not (no_open or json) and sys.stdout.isatty() and open_page(file)
    if json:
        put_json({"file": str(file), "screen": found.page["screen"], "opened": opened})
        return
    if to is None and file.parent == Path() and found.page["screen"] not in ("runs", "batch"):
        tell("It has no folder of its own, so the page is in the current directory.")
    put(str(file))


def _chosen(store: RunStore, runs: list[str], session: str | None, sessions: str) -> Chosen:
    """Return the kind of the page, and the names that it is about."""
    if session is not None:
        if runs:
            raise CommandError("Can't show a run and a session together: leave one of them out.")
        return "session", (session,)
    if len(runs) > 2:
        raise CommandError(f"Can compare two runs, not {len(runs)}.")
    if not runs:
        return "runs", ()
    if len(runs) == 2:
        _refuse_files(store, runs)
        return "compare", tuple(runs)
    (name,) = runs
    if store.lookup(name) is None:
        from mergepoint.apps.cli.view_batch import results_file

        if _has_session(name, sessions):
            return "session", (name,)
        if results_file(name) is not None:
            return "batch", (name,)
    return "run", (name,)


def _refuse_files(store: RunStore, runs: list[str]) -> None:
    """Raise CommandError if one of two runs is a file."""
    for name in runs:
        if is_file(Path(name)) and store.lookup(name) is None:
            raise CommandError(
                f"Can compare two runs, and {name} is a file. For the results of a batch, pass "
                "their file alone."
            )


def _viewed_batch(chosen: Chosen, stored: StoreOptions) -> ViewedBatch | None:
    if chosen[0] != "batch":
        return None
    from mergepoint.apps.cli.view_batch import ViewedBatch

    return ViewedBatch(path=Path(chosen[1][0]), stored=stored)


def _page(store: RunStore, chosen: Chosen, sessions: str, to: Path | None) -> Written:
    kind, names = chosen
    if kind == "session":
        return _of_session(names[0], sessions)
    if kind == "runs":
        return _of_list(store, sessions, to)
    found = [store.find(name) for name in names]
    return _of_run(found[0]) if kind == "run" else _of_two(found[0], found[1])


def _served_batch(batch: ViewedBatch, sessions: str) -> ServedStore:
    """Return the pages of a batch's runs, with that of the batch as their list.

    Raises CommandError if the file isn't a results file.
    """
    served = _served(batch.runs, ("runs", ()), sessions, url=batch.url)

    def page(address: Address) -> Mapping[str, Any]:
        if address.kind == "runs":
            return batch.page(version=_version(), served=True)
        return served.page(address)

    page(served.first)
    shows = f"the results in {batch.path}"
    # The journals of a batch don't have the options of its runs, which only its command knows.
    return replace(served, page=page, listed=batch.state, shows=shows, answers=False)


def _served(store: RunStore, chosen: Chosen, sessions: str, *, url: str | None) -> ServedStore:
    """Return what is served for the chosen page. Raises CommandError if there is no such run."""
    from mergepoint.apps.cli.sessions import named_session
    from mergepoint.apps.cli.view_serve import ServedStore
    from mergepoint.view.live_pages import Address

    kind, names = chosen
    if kind == "batch":
        raise AssertionError("a batch has pages of its own")
    place = _stored_sessions(sessions)
    if kind == "session" and place is not None:
        names = (named_session(place, names[0]),)
    elif kind in ("run", "compare"):
        found = [store.find(name) for name in names]
        names = tuple(one.run_id for one in found)
        # A run can be named by its folder, outside of the store that the options name.
        if found[0].folder is not None:
            store, url = RunStore(found[0].store), None

    def page(address: Address) -> Mapping[str, Any]:
        if address.kind == "session":
            return _of_session(address.ids[0], sessions).page
        if address.kind == "runs":
            data = _of_list(store, sessions).page
            rows = [
                {**one, "href": Address(one["kind"], (one["id"],)).path} for one in data["list"]
            ]
            return {**data, "list": rows}
        runs = [store.get(run_id) for run_id in address.ids]
        return (_of_run(runs[0]) if address.kind == "run" else _of_two(runs[0], runs[1])).page

    return ServedStore(runs=store, sessions=place, page=page, first=Address(kind, names), url=url)


def _of_run(run: StoredRun) -> Written:
    """Return the page of a run. Raises MergepointError if nothing of it can be read."""
    from mergepoint.view.pages import run_page

    state = _read(run)
    page = run_page(state, version=_version(), commands=run_commands(state))
    return Written(page, _file(run, PAGE))


def _of_two(one: StoredRun, other: StoredRun) -> Written:
    """Return the page that compares two runs. Raises MergepointError, as `of_run`."""
    from mergepoint.view.pages import compare_page

    states = (_read(one), _read(other))
    page = compare_page(
        *states, version=_version(), commands=(run_commands(states[0]), run_commands(states[1]))
    )
    return Written(page, _file(other, f"compare-{one.run_id}.html"))


def _of_list(store: RunStore, sessions: str, to: Path | None = None) -> Written:
    """Return the page of the list, with addresses relative to the file `to`."""
    from mergepoint.view.list_data import Opening, listing
    from mergepoint.view.pages import list_page

    folder = next((run.folder.parent for run in store.all() if run.folder is not None), Path())
    file = folder / PAGE if folder != Path() else Path("runs.html")
    beside = (to or file).parent
    place = _stored_sessions(sessions)

    def opening(run_id: str) -> Opening:
        run = store.get(run_id)
        return Opening(f"mergepoint view {run.name}", _address(run.file(PAGE), beside))

    def session_opening(session_id: str) -> Opening:
        own = _session_folder(place, session_id)
        command = session_command("view --session", session_id, sessions)
        return Opening(command, _address(own and own / PAGE, beside))

    rows = listing(
        all_runs(store), sessions=place, run_opening=opening, session_opening=session_opening
    )
    return Written(list_page(rows, title=f"Runs in {store}", version=_version()), file)


def _address(page: Path | None, folder: Path) -> str:
    """Return the address of a page relative to a folder, blank if there is no page."""
    if page is None or not page.is_file():
        return ""
    # Names may contain `#` and `%`, which mean something in an address.
    return quote(Path(os.path.relpath(page, folder)).as_posix())


def _session_folder(place: SessionStore | None, session_id: str) -> Path | None:
    """Return the folder of a session, None in a database."""
    folder = getattr(place, "folder", None)
    return folder / session_id if isinstance(folder, Path) else None


def _of_session(name: str, sessions: str) -> Written:
    """Return the page of a session. Raises SessionError if it can't be read."""
    from mergepoint.apps.cli.sessions import named_session, session_resume_command
    from mergepoint.view.pages import session_page
    from mergepoint.view.run_data import commands_of

    place = _sessions(sessions)
    memory: SessionMemory = place.open(named_session(place, name))
    known = {
        "show": session_command("sessions show", memory.session_id, sessions),
        "view": session_command("view --session", memory.session_id, sessions),
    }
    if resume := session_resume_command(memory):
        known["resume"] = resume
    page = session_page(memory, version=_version(), commands=known, run_commands=commands_of)
    own = _session_folder(place, memory.session_id)
    file = own / PAGE if own is not None and own.is_dir() else Path(f"{memory.session_id}.html")
    return Written(page, file)


def session_command(command: str, session_id: str, sessions: str) -> str:
    """Return a command about a session, with the option that finds it."""
    place = "" if sessions == SESSIONS else f" --sessions {shlex.quote(sessions)}"
    return f"mergepoint {command} {shlex.quote(session_id)}{place}"


def run_commands(state: FoundRun) -> Mapping[str, str]:
    """Return the commands about a run, by purpose, as they work from here."""
    from mergepoint.apps.cli.invocation import resume_command_of

    name = state.run.name
    known = {"show": f"mergepoint show {name}", "view": f"mergepoint view {name}"}
    if resume := resume_command_of(state):
        known["resume"] = resume
    if again := run_again_command(state):
        known["run again"] = again
    return known


def run_again_command(state: FoundRun) -> str | None:
    """Return the command that starts a run anew and reuses what stays equal, or None.

    None for a run whose command isn't recorded, that has masked or very long inputs, or messages.
    """
    from mergepoint.apps.cli.invocation import read_invocation
    from mergepoint.apps.cli.options import RecordedOptions
    from mergepoint.journal.recipe_records import is_recipe

    transcript, header = state.transcript, state.header
    if header is None or header.masked or transcript.messages:
        return None
    try:
        found = read_invocation(state.run)
    except MergepointError:
        return None
    if found is None or found.hidden:
        return None
    default = RecordedOptions()
    names = {
        name
        for name in RecordedOptions.__dataclass_fields__
        if getattr(found, name) != getattr(default, name)
    }
    items = transcript.inputs.get("items", ()) if is_recipe(transcript.tree) else ()
    given = {} if is_recipe(transcript.tree) else transcript.inputs
    if is_recipe(transcript.tree) and transcript.inputs.get("knobs"):
        return None
    texts = [*given.values(), *(one.get("content") for one in items)]
    if any(set(one) != {"content"} for one in items):
        return None
    if any(not isinstance(one, str) or len(one) > _LONGEST_INPUT for one in texts):
        return None
    said = [shlex.quote(text) for text in texts] if items else []
    said += [f"--input {shlex.quote(f'{name}={value}')}" for name, value in given.items()]
    options = words(found, names | {"model"})
    # A run of another store can't be reused by its id alone: its name has the option.
    start = ["mergepoint run", shlex.quote(found.target), *said, *options]
    return " ".join([*start, f"--reuse {state.run.name}"])


def _read(run: StoredRun) -> FoundRun:
    from dataclasses import fields

    from mergepoint.report.run_state import RunState, read_what_is_left

    state = read_what_is_left(run.store, run.run_id, words=run.name)
    found = FoundRun(run=run, **{one.name: getattr(state, one.name) for one in fields(RunState)})
    return with_queue(found, in_queue(run.store, run.run_id).get(run.run_id))


def _file(run: StoredRun, name: str) -> Path:
    """Return the default file of a page; a run in a database has no folder."""
    if run.folder is not None:
        return run.folder / name
    return Path(f"{run.run_id}.html" if name == PAGE else name)


def _version() -> str:
    from importlib.metadata import version

    return version("mergepoint")


def _sessions(place: str) -> SessionStore:
    from mergepoint.session.session_store import sessions_at

    return sessions_at(place)


def _has_sessions(place: str) -> bool:
    """Return whether there is a folder or database of sessions; looking creates none."""
    return "://" in place or Path(place).is_dir()


def _stored_sessions(place: str) -> SessionStore | None:
    """Return the store of sessions at a place, None if there is none."""
    return _sessions(place) if _has_sessions(place) else None


def _has_session(name: str, place: str) -> bool:
    if not _has_sessions(place):
        return False
    try:
        return _sessions(place).has(name)
    except MergepointError:  # not a name that a session can have
        return False
