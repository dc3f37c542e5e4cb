"""Answers that are asked for again: both are on record and paid, and one of them stands."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from mergepoint import Block, Node, RunContext, Step, run_generation
from mergepoint.core.merge import State
from mergepoint.journal.call_records import CallKey, CallRecord
from mergepoint.journal.file_journal import FileStore, read_journal
from mergepoint.journal.recorded_answers import effective_records, key_of, path_of
from mergepoint.journal.replay import replay
from mergepoint.journal.transcript import read_transcript
from mergepoint.report.call_text import call_view
from mergepoint.testing.scripted_model import Answer, ScriptedModel

KEY = "sk-proj-Ab1Cd2Ef3Gh4Ij5Kl6Mn7Op8"
SLOW = TimeoutError("slow")


def tree() -> Node:
    """Return three steps in a row."""
    return Block([Step("A.", name="a"), Step("B.", name="b"), Step("C.", name="c")], name="p")


def ran(runs: Any, answers: Sequence[Any], node: Node | None = None, **options: Any) -> Any:
    """Run the tree, or go on with it; one that is told to fails with a timeout."""
    given = [Answer(one, usage=(10, 5)) if isinstance(one, str) else one for one in answers]
    options = options or {"resume": "r"}
    model = ScriptedModel(given)
    if answers and answers[-1] is SLOW:
        with pytest.raises(TimeoutError):
            run_generation(node or tree(), model=model, runs=runs, **options)
        return None
    return run_generation(node or tree(), model=model, runs=runs, **options)


def first() -> dict[str, Any]:
    """Return the options of a new run."""
    return {"ctx": RunContext(run_id="r")}


def on_record(runs: Path) -> tuple[CallRecord, ...]:
    """Return the records of the run."""
    return read_journal(runs / "r" / "journal.jsonl")[1]


def test_the_newest_of_hidden_answers_stands(tmp_path: Path) -> None:
    """A run that asked twice for an answer with a key has paid twice, and went on with the last."""
    ran(tmp_path, [f"use {KEY}", SLOW], **first())
    done = ran(tmp_path, [f"or {KEY}", "b", "c"])
    assert [m.text for m in done.messages] == ["A.", f"or {KEY}", "B.", "b", "C.", "c"]
    records = on_record(tmp_path)
    assert [one.response for one in records if one.answered] == [
        "use [masked]",
        "or [masked]",
        "b",
        "c",
    ]
    transcript = read_transcript(tmp_path / "r" / "transcript.json")
    assert [one.response for one in transcript.records] == ["or [masked]", "b", "c"]
    assert [one.response for one in transcript.others] == ["use [masked]"]
    assert transcript.usage_by_path["p/a"].calls == 2
    assert transcript.usage["total_tokens"] == 4 * 15
    again = replay(records, tree(), base=State())
    assert again.state is not None
    assert [m.text for m in again.state.messages] == ["A.", "or [masked]", "B.", "b", "C.", "c"]
    view = call_view(transcript, "p/c")
    assert [seen.text for seen in view.seen] == ["A.", "or [masked]", "B.", "b", "C."]


def test_a_whole_answer_stands_against_a_hidden_one(tmp_path: Path) -> None:
    """Asked again without the hook that hid it, the answer is whole and stands for good."""
    store = FileStore(tmp_path, redact=lambda text: text.replace("Ann", "[name]"))
    ran(store, ["Ann", SLOW], **first())
    ran(tmp_path, ["Ann", SLOW])
    ran(store, [SLOW])  # nothing is asked again: the answer is on record
    assert [one.response for one in on_record(tmp_path) if one.answered] == ["[name]", "Ann"]
    done = ran(tmp_path, ["b", "c"])
    assert [one.response for one in done.transcript.records] == ["Ann", "b", "c"]


def test_a_strict_replay_takes_the_answer_that_stands(tmp_path: Path) -> None:
    """Hidden or not, it is the one that the run went on with."""
    ran(tmp_path, [f"use {KEY}", SLOW], **first())
    ran(tmp_path, [f"use {KEY}", "b", "c"])
    only = Block([Step("A.", name="a")], name="p")
    assert ran(tmp_path, [], only, replay="r").text == "use [masked]"


def test_an_answer_that_fits_again_is_written_again(tmp_path: Path) -> None:
    """Of answers to other requests at one path the newest is the one that the state is made of."""
    said = "one"
    asks = Block([Step(lambda ctx: said, name="a"), Step("B.", name="b"), Step("C.")], name="p")
    ran(tmp_path, ["to one", SLOW], asks, **first())
    said = "two"
    ran(tmp_path, ["to two", SLOW], asks, resume="r")
    said = "one"
    done = ran(tmp_path, ["b", "c"], asks, resume="r")
    assert [m.text for m in done.messages][:2] == ["one", "to one"]
    records = on_record(tmp_path)
    assert [(one.response, one.source) for one in records if one.path == "p/a"] == [
        ("to one", "live"),
        ("to two", "live"),
        ("to one", "replayed"),
    ]
    again = replay(records, asks, base=State())
    assert again.state is not None
    assert [m.text for m in again.state.messages] == [m.text for m in done.messages]
    assert done.transcript.usage_by_path["p/a"].calls == 2


def test_what_stands_is_the_newest_whole_one() -> None:
    """Hidden ones give way to whole ones, older to newer, and failures are not counted."""

    def record(response: str, *, masked: bool = False, error: Any = None) -> CallRecord:
        key = CallKey("r", "", "p/a")
        hidden = ("response",) if masked else ()
        return CallRecord(key=key, prompt="A.", response=response, masked=hidden, error=error)

    whole, newer = record("1"), record("2")
    hidden, last = record("3", masked=True), record("4", masked=True)
    failed = record("", error={"type": "E", "message": ""})
    assert effective_records([whole, hidden, failed], path_of) == {"p/a": whole}
    assert effective_records([whole, newer, hidden], path_of) == {"p/a": newer}
    assert effective_records([hidden, last], path_of) == {"p/a": last}
    assert effective_records([hidden, whole], key_of) == {("p/a", "", 0): whole}
    assert effective_records([failed], path_of) == {}
