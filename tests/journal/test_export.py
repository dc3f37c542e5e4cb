"""Export: a journal alone gives the transcript of its run."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings

from mergepoint import Block, RunContext, Step, Template, run_generation
from mergepoint.journal.call_records import to_json_value
from mergepoint.journal.file_journal import read_journal
from mergepoint.journal.transcript import (
    NOT_IN_JOURNAL,
    UNFINISHED,
    agrees,
    read_transcript,
    transcript_of,
)
from mergepoint.testing.random_trees import Case, cases
from mergepoint.testing.scripted_model import ScriptedModel
from mergepoint.testing.tree_functions import TableModel
from mergepoint.tree.nodes import Node

AT_THE_END = {"text", "outputs"}  # a failed run's are empty, though its journal may be complete


def tree() -> Node:
    """Return a tree with an input and a parallel block."""
    voices = [Step(f"As {who}.", name=who, merge="none", capture_key=who) for who in "ab"]
    return Block(
        [
            Step(Template("Draft {{ topic }}."), name="draft"),
            Block(voices, name="voices", parallel=True),
            Step(Template("Join {{ a }} and {{ b }}."), name="join", merge="last_response"),
        ],
        inputs=["topic"],
    )


def exported(folder: Path) -> Any:
    """Return the transcript that a run's journal gives, as JSON that was read."""
    worked_out = transcript_of(*read_journal(folder / "journal.jsonl"))
    return json.loads(json.dumps(to_json_value(worked_out.to_json())))


def written(folder: Path) -> Any:
    """Return the transcript that the run wrote."""
    return json.loads((folder / "transcript.json").read_text(encoding="utf-8"))


@pytest.mark.campaign
@given(case=cases())
@settings(max_examples=60, deadline=None, derandomize=True, database=None)
def test_the_export_of_any_run_is_its_transcript(case: Case) -> None:
    """What the journal gives is what was written, but for the error of a run that failed."""
    with TemporaryDirectory() as runs:
        ctx = RunContext(messages=list(case.messages), run_id="r", seed=5)
        with suppress(Exception):  # failing trees are part of the law
            run_generation(
                case.tree,
                model=TableModel(table=case.answers),
                inputs=case.inputs,
                ctx=ctx,
                form="fused",
                runs=runs,
            )
        folder = Path(runs) / "r"
        if not (folder / "journal.jsonl").exists():  # refused before its first call
            return
        expected, found = written(folder), exported(folder)
        unknown = {*NOT_IN_JOURNAL, *(AT_THE_END if expected["error"] else ())}
        assert {key for key in expected if expected[key] != found[key]} <= unknown
        if expected["error"] is None:
            assert found == expected


def killed(tmp_path: Path, *, records: int) -> Path:
    """Return the folder of a run whose journal ends after a number of records."""
    model = ScriptedModel(["draft", "one", "two", "joined"])
    done = run_generation(tree(), model=model, inputs={"topic": "rain"}, runs=tmp_path)
    folder = tmp_path / done.transcript.run_id
    journal = folder / "journal.jsonl"
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join(lines[: records + 1]))
    (folder / "transcript.json").unlink()
    return folder


@pytest.mark.parametrize("records", [0, 1, 3])
def test_a_killed_run_is_exported_as_unfinished(tmp_path: Path, records: int) -> None:
    """It has the calls that are on record, no result, and an error that names what is missing."""
    found = exported(killed(tmp_path, records=records))
    assert len(found["steps"]) == records
    assert (found["text"], found["outputs"], found["inputs"]) == ("", {}, {"topic": "rain"})
    missing = ["pipeline/draft", "pipeline/voices/a", "", "pipeline/join"][records]
    assert found["error"] == {
        "type": UNFINISHED,
        "message": f"unfinished: no answer at {missing} is on record",
        "path": missing,
        "node": missing.rpartition("/")[2],
    }


def test_a_failure_that_was_not_followed_by_an_answer_is_told(tmp_path: Path) -> None:
    """The error of an unfinished run says what the last try at that path ended with."""
    model = ScriptedModel(["draft", "one", "two", TimeoutError("too slow")])
    ctx = RunContext(run_id="r")
    with pytest.raises(TimeoutError):
        run_generation(tree(), model=model, inputs={"topic": "x"}, ctx=ctx, runs=tmp_path)
    found = exported(tmp_path / "r")
    assert found["error"]["path"] == "pipeline/join"
    assert found["error"]["message"].endswith("tried, TimeoutError: too slow")
    assert found["failures"] == written(tmp_path / "r")["failures"]


def test_a_transcript_that_a_killed_resume_left_does_not_agree(tmp_path: Path) -> None:
    """A transcript with fewer calls than the journal is an old one."""
    done = run_generation(
        tree(), model=ScriptedModel(["d", "1", "2", "j"]), inputs={"topic": "x"}, runs=tmp_path
    )
    folder = tmp_path / done.transcript.run_id
    transcript = read_transcript(folder / "transcript.json")
    _, records = read_journal(folder / "journal.jsonl")
    assert agrees(transcript, records)
    assert not agrees(transcript, (*records, records[0]))
