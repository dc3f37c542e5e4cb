"""`show`, `list` and `graph`: looking at calls and trees."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.apps.command import command, only_transcript


@pytest.fixture
def run_id() -> str:
    """Return the id of a run on disk."""
    assert command("run", "essay.py", "-i", "topic=rivers", "--run-id", "one").code == 0
    return "one"


@pytest.mark.parametrize("name", ["one", "last", "runs/one", "runs/one/transcript.json"])
def test_a_run_is_found_by_id_folder_file_or_as_the_last(run_id: str, name: str) -> None:
    """All four ways to name a run list the same calls."""
    shown = command("show", name, "--calls")
    assert shown.code == 0
    lines = shown.out.splitlines()
    assert lines[0].split() == ["time", "tokens", "words", "model", "path"]
    step = only_transcript()["steps"][0]
    words = lines[1].split()
    assert words[1] == f"{step['usage']['total_tokens']:,}"
    assert words[2] == f"{step['context']['words']:,}"
    assert words[3:] == ["mergepoint:offline", "essay/draft"]
    assert len(lines) == 5


def test_the_last_run_is_the_newest(run_id: str) -> None:
    """`last` is by time, not by name."""
    command("run", "essay.py", "-i", "topic=seas", "--run-id", "a-later-one")
    assert command("show", "last", "--json").data["run_id"] == "a-later-one"


def test_runs_elsewhere_are_found_with_out() -> None:
    """--out says where runs are, for show and list as for run."""
    command("run", "essay.py", "-i", "topic=rivers", "--run-id", "one", "--out", "mine")
    assert command("show", "one").code == 2
    assert command("show", "one", "--out", "mine").code == 0
    assert command("runs", "list", "--out", "mine", "--json").data[0]["run_id"] == "one"


def test_a_call_is_shown_with_what_it_saw(run_id: str) -> None:
    """The x-ray of a call holds its prompt, its answer and both critics; by a path's end too."""
    transcript = only_transcript()
    consensus = transcript["steps"][3]
    shown = command("show", "last", "consensus")
    assert shown.code == 0
    flat = " ".join(shown.out.split())
    assert "essay/consensus" in flat
    assert " ".join(consensus["response"].split())[:40] in flat
    for key in ("first", "second"):
        assert " ".join(transcript["outputs"][key].split())[:20] in flat


def test_a_call_is_shown_as_json(run_id: str) -> None:
    """With --json the view is one object."""
    data = command("show", "last", "essay/draft", "--json").data
    assert data["path"] == "essay/draft"


def test_calls_are_listed_as_json(run_id: str) -> None:
    """The listing as JSON has a row for each call."""
    data = command("show", "one", "--calls", "--json").data
    assert [call["path"] for call in data["calls"]] == [
        "essay/draft",
        "essay/threads/first",
        "essay/threads/second",
        "essay/consensus",
    ]
    assert all(call["error"] is None and call["words"] > 0 for call in data["calls"])


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["two"], "Run 'two' not found in runs. Most recent runs: one."),
        (["on"], "did you mean 'one'"),
        (["one", "nobody"], "Run one: "),
        (["one", "threads"], "'threads' isn't a call. Calls inside it:"),
        (["essay.py", "draft"], "essay.py holds no transcript"),
    ],
)
def test_what_is_not_there_is_answered_with_what_is(
    run_id: str, args: list[str], said: str
) -> None:
    """A wrong run or path is refused with 2, and says what there is."""
    shown = command("show", *args)
    assert (shown.code, shown.out) == (2, "")
    assert said in shown.err
    assert command("show", *args, "--json").data["status"] == "refused"


def test_a_path_that_fits_several_calls_lists_them(here: Path) -> None:
    """An end of a path that is not unique is answered with the whole paths."""
    text = "nodes:\n- name: a\n  nodes:\n  - {name: x, prompt: Hi}\n- name: b\n  nodes:\n"
    (here / "twice.yaml").write_text(text + "  - {name: x, prompt: Hi}\n", encoding="utf-8")
    command("run", "twice.yaml")
    shown = command("show", "last", "x")
    assert shown.code == 2
    assert [line.strip() for line in shown.err.splitlines()[1:]] == ["pipeline/a/x", "pipeline/b/x"]


def test_without_runs_there_is_no_last() -> None:
    """An empty folder of runs is said to be empty."""
    shown = command("show", "last", "--calls")
    assert shown.code == 2
    assert "There are no runs yet." in shown.err


def test_a_failed_run_is_shown_with_its_failure() -> None:
    """Answered calls are listed, then why the run was not finished; failed calls say so."""
    command("run", "breaking.py")
    lines = command("show", "last", "--calls").out.splitlines()
    assert lines[-1].startswith("The run isn't finished: failed at breaking/stage/title: ValueE")
    assert command("show", "last", "--json").data["error"]["type"] == "ValueError"
    assert "breaking/stage/title" in command("show", "last", "title").err


def test_list_names_the_graphs_with_calls_and_inputs() -> None:
    """Each graph that comes along has a line about it, its calls and its inputs."""
    data = {graph["name"]: graph for graph in command("list", "--json").data}
    canonical = data["image_prompt"]
    assert canonical["calls"] >= 42
    assert {given["name"] for given in canonical["inputs"]} == {"brief", "likes", "dislikes"}
    text = command("list").out
    for name, graph in data.items():
        assert name in text
        assert graph["about"]
        assert graph["about"] in text


def test_a_tree_is_drawn_as_mermaid_or_svg() -> None:
    """Mermaid is what stdout gets unless SVG is asked for; nothing is run."""
    drawn = command("graph", "essay.py")
    assert drawn.code == 0
    assert drawn.out.startswith("flowchart")
    assert command("graph", "essay.py", "--format", "svg").out.lstrip().startswith("<")
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    ("args", "start"),
    [
        (["-o", "x.svg"], "<"),
        (["-o", "x.mmd"], "flowchart"),
        (["-o", "x.svg", "-f", "mermaid"], "flowchart"),
    ],
)
def test_a_drawing_goes_to_a_file(args: list[str], start: str) -> None:
    """The end of the file's name says the format, unless it is given."""
    drawn = command("graph", "essay.py", *args)
    assert (drawn.code, drawn.out) == (0, "")
    assert Path(args[1]).read_text(encoding="utf-8").lstrip().startswith(start)


def test_a_drawing_that_cannot_be_written_is_refused() -> None:
    """The error names the file."""
    drawn = command("graph", "essay.py", "-o", "no/such/folder/x.svg")
    assert drawn.code == 2
    assert "no/such/folder/x.svg: No such file or directory" in drawn.err


def test_a_drawing_of_no_target_is_refused() -> None:
    """Targets are checked as for run."""
    assert command("graph", "nowhere").code == 2


def test_every_json_is_valid_on_its_own(run_id: str) -> None:
    """Whatever the command, stdout parses as one JSON document."""
    for args in (["list"], ["list", "--runs"], ["show", "one"], ["show", "one", "draft"]):
        json.loads(command(*args, "--json").out)
