"""Pages of runs that are damaged, large, hostile, running, or have secrets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel
from tests.report.runs import RUN, ran
from tests.view.rendering import rendered, state_of

from mergepoint.journal.file_journal import FileStore
from mergepoint.report.run_state import read_what_is_left
from mergepoint.tree.leaves import Call, Step
from mergepoint.tree.nodes import Block, Gate, Input, Loop
from mergepoint.tree.prompts import PromptContext, Template
from mergepoint.view.page import ISLAND, page_html
from mergepoint.view.pages import run_page

HOSTILE = "</script><script>alert(1)</script><!-- \x1b[31m\u202eevil \u2028 & 'quotes\""
FLAT = Block([Step(f"Say {name}.", name=name) for name in "abc"], name="t")
SECRET = "sk-proj-" + "a1B2c3D4" * 5


class Numbers(BaseModel):
    """What a step is asked for."""

    a: int


def page_of(folder: Path) -> dict[str, Any]:
    """Return the page of the run in a folder, as a browser reads it from the file."""
    html = page_html(run_page(read_what_is_left(FileStore(folder), RUN), version="1"))
    text = html.partition(f'id="{ISLAND}">')[2].partition("</script>")[0]
    page = json.loads(text)
    assert isinstance(page, dict)
    # Whatever is in the page can be followed to its end.
    assert rendered(page, page["runs"][0])
    return page


def run_of(folder: Path) -> dict[str, Any]:
    """Return the run of the page of a folder."""
    (run,) = page_of(folder)["runs"]
    assert isinstance(run, dict)
    return run


def lines_of(folder: Path) -> list[bytes]:
    """Return the lines of the journal, without the transcript beside it."""
    (folder / RUN / "transcript.json").unlink()
    return (folder / RUN / "journal.jsonl").read_bytes().splitlines(keepends=True)


def test_a_journal_that_a_kill_cut_is_shown_up_to_there(tmp_path: Path) -> None:
    """Half a line at the end is left out and noted; what comes before is all there."""
    ran(FLAT, tmp_path)
    lines = lines_of(tmp_path)
    (tmp_path / RUN / "journal.jsonl").write_bytes(b"".join(lines[:2]) + lines[2][:40])
    run = run_of(tmp_path)
    assert run["status"] == "unfinished"
    assert [call["path"] for call in run["calls"]] == ["t/a"]
    assert run["failure"]["path"] == "t/b"
    assert any("last line of the journal is incomplete" in note for note in run["notes"])


def test_a_repaired_journal_says_so(tmp_path: Path) -> None:
    """The copy that a repair leaves is named on the page."""
    ran(FLAT, tmp_path)
    (tmp_path / RUN / "journal.jsonl.damaged-1").write_bytes(b"x")
    assert any("journal.jsonl.damaged-1" in note for note in run_of(tmp_path)["notes"])


def test_a_run_without_a_journal_is_shown_from_its_transcript(tmp_path: Path) -> None:
    """The transcript alone, which older versions wrote, makes a page with a note."""
    ran(FLAT, tmp_path)
    (tmp_path / RUN / "journal.jsonl").unlink()
    run = run_of(tmp_path)
    assert (run["status"], len(run["calls"])) == ("done", 3)
    assert any("There is no journal" in note for note in run["notes"])


@pytest.mark.parametrize("line", [1, 2])
def test_calls_after_a_damaged_line_are_left_out_if_they_follow_from_it(
    tmp_path: Path, line: int
) -> None:
    """The page shows the calls whose conversation is known, and how many it leaves out."""
    ran(FLAT, tmp_path)
    lines = lines_of(tmp_path)
    lines[line] = b"0" * 8 + lines[line][8:]
    (tmp_path / RUN / "journal.jsonl").write_bytes(b"".join(lines))
    run = run_of(tmp_path)
    assert run["status"] == "damaged"
    assert [call["path"] for call in run["calls"]] == ["t/a", "t/b"][: line - 1]
    assert any(f"line {line + 1}" in note for note in run["notes"])
    assert any("left out" in note for note in run["notes"])


def test_hostile_text_arrives_unchanged_and_ends_nothing(tmp_path: Path) -> None:
    """Script tags, escapes and marks in inputs, prompts and answers are data of the page."""
    tree = Block([Step(Template("About {{ topic }}"), name="a")], name="t", inputs=["topic"])
    ran(tree, tmp_path, inputs={"topic": HOSTILE}, says={"t/a": HOSTILE})
    page = page_of(tmp_path)
    (call,) = page["runs"][0]["calls"]
    assert page["texts"][call["answer"]] == HOSTILE
    prompt = page["runs"][0]["messages"][call["prompt"]]
    assert page["texts"][prompt["text"]] == f"About {HOSTILE}"
    state = read_what_is_left(FileStore(tmp_path), RUN)
    html = page_html(run_page(state, version=HOSTILE))
    assert html.count("</script>") == 2


def test_masked_secrets_stay_masked(tmp_path: Path) -> None:
    """A key that the journal masks isn't on the page, which says what is masked."""
    tree = Block([Step(Template("Use {{ key }}"), name="a")], name="t", inputs=[Input("key")])
    ran(tree, tmp_path, inputs={"key": SECRET})
    page = page_of(tmp_path)
    assert SECRET not in page_html(page)
    assert any("masked in" in note for note in page["runs"][0]["notes"])


def test_a_missing_price_is_unknown_and_not_zero(tmp_path: Path) -> None:
    """Without a price, the cost of calls, nodes and the run is null."""
    ran(FLAT, tmp_path)
    run = run_of(tmp_path)
    assert run["paid"]["cost"] is None
    assert {call["usage"]["cost"] for call in run["calls"]} == {None}
    assert {node["cost"] for node in run["nodes"]} == {None}
    assert run["paid"]["input_tokens"] == 3_600
    assert run["nodes"][0]["input_tokens"] == 3_600


def test_a_long_answer_is_stored_once(tmp_path: Path) -> None:
    """An answer of 1 MB that every later call saw, and that is the result, is written once."""
    answer = "x" * 1_000_000
    ran(FLAT, tmp_path, says=dict.fromkeys(("t/a", "t/c"), answer))
    page = page_of(tmp_path)
    assert len(page_html(page)) < 1_400_000
    assert page["texts"][page["runs"][0]["result"]] == answer


def test_the_states_of_calls_that_see_each_other_grow_with_their_number(tmp_path: Path) -> None:
    """A conversation of n messages takes n states, and not n for each call that saw it."""
    count = 120
    tree = Block(
        [
            Block(
                [Step(f"Say {n}.", name=f"s{n}") for n in range(count)],
                name="all",
                merge="last_response",
            ),
            *[
                Block([Step(f"Again {n}.", name="s")], name=f"b{n}", merge="last_response")
                for n in range(count)
            ],
        ],
        name="t",
    )
    ran(tree, tmp_path)
    run = run_of(tmp_path)
    assert len(run["calls"]) == 2 * count
    assert len(run["messages"]) == 4 * count
    assert len(run["states"]) < 12 * count
    last = run["calls"][-1]
    assert len(state_of(run, last["state"])) == count


def test_a_run_is_shown_while_it_runs(tmp_path: Path) -> None:
    """The page of a run in progress has the answers so far, and the call that is running."""
    seen: list[dict[str, Any]] = []

    def look(ctx: PromptContext) -> str:
        seen.append(run_of(tmp_path))
        return "looked"

    tree = Block(
        [Step("Say a.", name="a"), Call(look, name="look"), Step("B.", name="b")], name="t"
    )
    ran(tree, tmp_path)
    (run,) = seen
    assert run["status"] == "running"
    assert [(one["path"], one["status"]) for one in run["calls"]] == [
        ("t/a", "answered"),
        ("t/look", "running"),
    ]
    assert len(state_of(run, run["calls"][1]["state"])) == 2
    assert {node["path"]: node["status"] for node in run["nodes"]} == {
        "t": "running",
        "t/a": "done",
        "t/look": "running",
        "t/b": "not_reached",
    }
    assert run["failure"] is None
    assert run_of(tmp_path)["status"] == "done"


def test_a_waiting_gate_has_what_it_holds(tmp_path: Path) -> None:
    """An open gate has its question, the text that waits, and what an edit can replace."""
    tree = Block([Gate(Step("Say a.", name="a"), name="ok", question="Good?")], name="t")
    ran(tree, tmp_path)
    page = page_of(tmp_path)
    (run,) = page["runs"]
    assert (run["status"], run["failure"]) == ("waiting", None)
    gate = next(call for call in run["calls"] if call["kind"] == "gate")
    decision = gate["decision"]
    assert (gate["status"], page["texts"][decision["question"]]) == ("waiting", "Good?")
    assert page["texts"][decision["editable"]["text"]] == "from t/ok/a"


def test_a_failed_answer_has_the_character_at_which_it_did_not_parse(tmp_path: Path) -> None:
    """A refused answer is on the page in full, with the place of its problem."""
    tree = Block([Step("Give JSON.", name="a", schema=Numbers)], name="t")
    answer = '{"a": 1,\n "b": oops}'
    ran(tree, tmp_path, says={"t/a": answer})
    page = page_of(tmp_path)
    (call,) = page["runs"][0]["calls"]
    assert call["status"] == "failed"
    assert page["texts"][call["refused"]] == answer
    assert answer[call["position"] :].startswith("oops")


def test_loops_have_a_node_for_each_iteration(tmp_path: Path) -> None:
    """Iterations that ran are nodes of their own, of the same shape."""
    loop = Loop(
        [Step("Again.", name="s")],
        until=lambda ctx: len(ctx.messages) >= 6,
        max_iterations=5,
        name="rounds",
    )
    ran(Block([loop], name="t"), tmp_path)
    run = run_of(tmp_path)
    rounds = [node for node in run["nodes"] if node["kind"] == "iteration"]
    assert len(rounds) == 3
    assert len({node["shape"] for node in rounds}) == 1
