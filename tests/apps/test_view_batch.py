"""`mergepoint view` with the results file of a batch: its page, its runs, and bad files."""

from __future__ import annotations

import fcntl
import json
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.apps.command import Outcome, command
from tests.apps.test_view import data_of
from tests.journal.places import place_of

TOPICS = '''\
"""A tree that refuses the topics that the file `broken` names."""

from pathlib import Path

from mergepoint import Block, Call, Input, Step, Template


def check(ctx):
    topic = ctx.inputs["topic"]
    if topic in Path("broken").read_text().split():
        raise ValueError(f"no {topic} today")
    return topic


tree = Block(
    [Call(check, name="check"), Step(Template("On {{ topic }}."), name="draft")],
    name="topics",
    inputs=(Input("topic", type=str),),
)
'''


@pytest.fixture(autouse=True)
def inputs(here: Path) -> None:
    """Write the tree and its inputs, of which two fail."""
    (here / "topics.py").write_text(TOPICS, encoding="utf-8")
    (here / "broken").write_text("fog snow", encoding="utf-8")
    topics = ("rain", "sun", "fog", "snow")
    lines = [json.dumps({"id": topic, "topic": topic}) for topic in topics]
    (here / "in.jsonl").write_text("\n".join(lines), encoding="utf-8")


def batch(*more: str) -> Outcome:
    """Run the batch."""
    return command("batch", "topics.py:tree", "in.jsonl", "--quiet", *more)


def viewed(*args: str) -> dict[str, Any]:
    """Return the batch of the page that a command writes."""
    seen = command("view", *args, "--no-open")
    assert seen.code == 0, seen.err
    page = data_of(Path(seen.out.strip()))
    assert page["screen"] == "batch"
    found: dict[str, Any] = page["batch"]
    return found


def opened(found: dict[str, Any], input_id: str) -> Outcome:
    """Run the command that the page gives for the run of an input."""
    (run,) = [row["run"] for row in found["rows"] if row["id"] == input_id]
    line = f"{found['opening']['before']}{shlex.quote(run)}{found['opening']['after']}"
    name, *arguments = shlex.split(line)
    assert name == "mergepoint"
    return command(*arguments)


def test_the_page_is_next_to_the_results(here: Path) -> None:
    """Without -o, the page has the name of the results file; it has every result and failure."""
    assert batch("--out", "out/my results.jsonl").code == 1
    seen = command("view", "out/my results.jsonl")
    assert (seen.code, seen.out) == (0, "out/my results.html\n")
    found = data_of(here / "out/my results.html")["batch"]
    assert (found["target"], found["file"]) == ("topics.py:tree", "out/my results.jsonl")
    assert (found["status"], found["inputs"], len(found["starts"])) == ("failed", 4, 1)
    statuses = {row["id"]: row["status"] for row in found["rows"]}
    assert statuses == {"rain": "done", "sun": "done", "fog": "failed", "snow": "failed"}
    said = {(one["type"], one["path"], one["message"]) for one in found["failures"]}
    assert said == {("ValueError", "topics/check", f"no {one} today") for one in ("fog", "snow")}
    assert found["notes"] == []
    name, *arguments = shlex.split(found["commands"]["view"])
    assert (name, command(*arguments).out) == ("mergepoint", "out/my results.html\n")


@pytest.mark.parametrize(
    "place", [(), ("--store", "kept"), ("--store", "sqlite:///runs.db")], ids=" ".join
)
def test_each_result_has_the_command_that_opens_its_run(place: tuple[str, ...]) -> None:
    """The journals are found where the batch wrote them, without an option of `view`."""
    assert batch(*place).code == 1
    found = viewed("results.jsonl", "-o", "batch.html")
    for input_id in ("rain", "fog"):
        run = opened(found, input_id)
        assert run.code == 0, run.err
        page = data_of(Path(run.out.strip()))
        assert page["screen"] == "run"


def test_journals_are_found_at_another_place() -> None:
    """Results that were moved without their note have pages of runs with --out only."""
    batch()
    Path("moved").mkdir()
    Path("results.jsonl").rename("moved/results.jsonl")
    found = viewed("moved/results.jsonl")
    assert (found["opening"], found["target"], found["inputs"]) == (None, "", None)
    assert "aren't in moved/results-runs" in found["notes"][0]
    found = viewed("moved/results.jsonl", "--out", "results-runs")
    assert opened(found, "rain").code == 0
    assert found["commands"]["view"] == "mergepoint view moved/results.jsonl --out results-runs"


def test_the_password_of_a_database_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The note masks it, so that the page needs --store or the variable to find the runs."""
    with place_of("postgresql", tmp_path) as place:
        address = place.address.replace("@", ":geheim@", 1)
        batch("--store", address)
        assert "geheim" not in Path("results.jsonl.batch").read_text(encoding="utf-8")
        # A note of an earlier version has it, until the batch is started again.
        note = Path("results.jsonl.batch")
        note.write_text(note.read_text(encoding="utf-8").replace("***", "geheim"), "utf-8")
        assert batch("--store", address, "--json").data["failed"] == 2
        assert "geheim" not in note.read_text(encoding="utf-8")
        found = viewed("results.jsonl")
        assert (len(found["rows"]), found["opening"]) == (4, None)
        assert "isn't kept next to the results" in found["notes"][0]
        assert viewed("results.jsonl", "--store", address)["opening"] is not None
        monkeypatch.setenv("MERGEPOINT_STORE", address)
        assert viewed("results.jsonl")["opening"] is not None
        assert "geheim" not in Path("results.html").read_text(encoding="utf-8")


def test_a_page_without_journals_has_its_results() -> None:
    """If the folder of journals is gone, rows have no run, and a note says why."""
    batch()
    shutil.rmtree("results-runs")
    found = viewed("results.jsonl")
    assert {row["run"] for row in found["rows"]} == {""}
    assert found["opening"] is None
    assert "aren't in results-runs, so their pages can't be opened" in found["notes"][0]


def test_a_retried_failure_has_its_last_result() -> None:
    """After --resume, a result is shown once, and the page knows both calls of the batch."""
    batch()
    Path("broken").write_text("snow", encoding="utf-8")
    batch("--resume")
    found = viewed("results.jsonl")
    assert {row["id"]: row["status"] for row in found["rows"]}["fog"] == "done"
    assert (len(found["rows"]), len(found["failures"]), len(found["starts"])) == (4, 1, 2)


def test_inputs_that_are_left_are_counted() -> None:
    """A batch that ended early is unfinished; while a process writes, it is running."""
    batch()
    path = Path("results.jsonl")
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:3]))
    found = viewed("results.jsonl")
    assert (found["status"], found["inputs"], len(found["rows"])) == ("unfinished", 4, 3)
    with path.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert viewed("results.jsonl")["status"] == "running"


def test_half_a_last_line_is_marked() -> None:
    """What a kill left is shown without its last line, with the way to have it again."""
    batch()
    path = Path("results.jsonl")
    path.write_bytes(path.read_bytes()[:-20])
    found = viewed("results.jsonl")
    assert (found["status"], len(found["rows"])) == ("unfinished", 3)
    (note,) = found["notes"]
    assert note.startswith("The last line of results.jsonl is unfinished, and isn't shown")
    # While a batch runs, it is about to be written.
    with path.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert viewed("results.jsonl")["notes"] == []


def test_damaged_lines_are_named_and_the_others_shown() -> None:
    """Each damaged line has its file and line in a note, up to ten of them."""
    batch()
    path = Path("results.jsonl")
    lines = path.read_bytes().splitlines(keepends=True)
    lines[1] = lines[1].replace(b'"attempts": 1', b'"attempts": "x"')
    path.write_bytes(b"".join([*lines, b"{}\n" * 15]))
    found = viewed("results.jsonl")
    assert len(found["rows"]) == 3
    assert any(
        note.startswith("results.jsonl:5 isn't a line of results") for note in found["notes"]
    )
    assert "more lines of results.jsonl can't be read" in found["notes"][-1]
    assert len(found["notes"]) == 11


def test_a_file_without_results_is_refused(here: Path) -> None:
    """Inputs, an empty file, and a file of another kind are no results; no page is written."""
    (here / "empty.jsonl").touch()
    (here / "half.jsonl").write_bytes(b'{"id": "a", "status": "done"')
    for name, said in (
        ("in.jsonl", "in.jsonl:1 isn't a line of results: it has no id, or no status"),
        ("empty.jsonl", "isn't the results file of a batch: it is empty"),
        ("half.jsonl", "isn't the results file of a batch: it has no whole line"),
        ("topics.py", "topics.py:1 isn't a line of results"),
    ):
        refused = command("view", name, "--json")
        assert refused.code == 2
        assert said in refused.data["message"]
    assert not [*here.rglob("*.html")]


def test_a_missing_file_is_named_with_near_ones() -> None:
    """A name that looks like a file's isn't taken for that of a run."""
    batch()
    refused = command("view", "result.jsonl")
    assert refused.code == 2
    assert "There is no file result.jsonl (did you mean 'results.jsonl'" in refused.err
    refused = command("view", "none/results.jsonl")
    assert "There is no file none/results.jsonl, and no run of that name" in refused.err
    assert "There are no runs yet" in command("view", "nothing").err
    refused = command("view", "results.jsonl", "in.jsonl")
    assert (refused.code, "results.jsonl is a file" in refused.err) == (2, True)


def test_a_batch_that_has_just_begun_has_a_page(here: Path) -> None:
    """Before its first result, the page has none, and no command of a run."""
    (here / "new.jsonl").touch()
    (here / "new.jsonl.batch").write_text('{"batch": "new-1", "inputs": 4}', encoding="utf-8")
    found = viewed("new.jsonl")
    assert (found["rows"], found["id"], found["status"]) == ([], "new-1", "unfinished")


def test_results_are_not_replaced_by_their_page() -> None:
    """-o with the results file itself is refused, also by another name of it."""
    batch()
    before = Path("results.jsonl").read_bytes()
    Path("link.html").symlink_to("results.jsonl")
    for name in ("results.jsonl", "./results.jsonl", "link.html"):
        refused = command("view", "results.jsonl", "-o", name)
        assert (refused.code, "it has the results" in refused.err) == (2, True)
    assert Path("results.jsonl").read_bytes() == before
    Path("results.jsonl").rename("results.html")
    assert command("view", "results.html").out == "results.html.html\n"
