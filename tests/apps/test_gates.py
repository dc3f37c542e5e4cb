"""Gates at the command: asked at a terminal, answered by option, or left open and told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.apps.command import Outcome, command, completions, on_terminal, plain, process

FIRST = "pipeline/planning/iteration_01/approval"
SECOND = "pipeline/planning/iteration_02/approval"
PLAN = "1. Begin like this. One thing about rain that everybody has seen."
LESS = '{"decision": "reject", "feedback": "Make it three steps."}'

BOTH = '''\
"""Two gates side by side, and a step behind them."""

from mergepoint import Block, Gate, Step

gates = [
    Gate(
        Step(f"Describe a {name}.", name="say", capture_key=f"{name}.text", merge="last_response"),
        name=name,
        question=f"A good {name}?",
    )
    for name in ("cat", "dog")
]
tree = Block([Block(gates, name="both", parallel=True), Step("End.", name="end")], name="p")
'''


@pytest.fixture(autouse=True)
def both(here: Path) -> None:
    """Write the tree with two gates."""
    (here / "both.py").write_text(BOTH, encoding="utf-8")


def planned(*args: str) -> Outcome:
    """Run the example with a gate, where nobody can be asked."""
    return command("run", "plan_approve", "-i", "topic=rain", "--run-id", "r", *args)


def told(*args: str) -> Any:
    """Give what a command says as JSON."""
    return command(*args, "--json").data


def test_a_gate_that_nobody_answers_ends_the_run_with_4() -> None:
    """What would be kept is on stderr, whole, and the command that goes on ends it."""
    run = planned()
    assert (run.code, run.out) == (4, "")
    lines = run.err.splitlines()
    assert f"waiting at {FIRST}" in lines
    assert "    would keep 1 message and the output plan:" in lines
    assert f"      {PLAN}" in lines
    assert "    plan: the text above" in lines
    assert lines[-1] == f"  go on: mergepoint resume r --answer {FIRST}=approve"


def test_a_program_is_told_what_is_asked() -> None:
    """The JSON holds the question as a host gets it, the run's id and the way on."""
    data = planned("--json", "-q").data
    assert (data["status"], data["type"], data["run_id"]) == ("waiting", "GateOpen", "r")
    (question,) = data["questions"]
    assert (question["path"], question["question"]) == (FIRST, "Is this how the talk should go?")
    assert question["outputs"]["plan"].startswith(PLAN)
    assert question["messages"] == [{"role": "ai", "text": question["outputs"]["plan"]}]
    assert data["resume"] == f"mergepoint resume r --answer {FIRST}=approve"


def test_open_gates_are_listed_and_shown() -> None:
    """`runs list`, `runs show` and `show` say which gate waits, what for, and how to answer."""
    planned("-q")
    (run,) = told("runs", "list")
    assert (run["state"], run["open_gates"], run["calls"], run["of"]) == (
        "waiting",
        [FIRST],
        1,
        None,
    )
    assert f"for a decision at {FIRST}" in command("runs", "list").out
    shown = command("runs", "show", "r").out.splitlines()
    assert f"state     waiting for a decision at {FIRST}" in shown
    assert f"go on     mergepoint resume r --answer {FIRST}=approve" in shown
    assert "      approval    waits for a decision" in shown
    assert shown[shown.index(f"Gate {FIRST}") + 1] == "  Is this how the talk should go?"
    data = told("runs", "show", "r")
    assert data["questions"][0]["path"] == FIRST
    assert data["missing"] == ["pipeline/title", "pipeline/programme"]
    assert told("show", "r")["open_gates"] == [FIRST]
    assert "waits for a decision" in command("show", "r").out
    gate = command("show", "r", "approval").out
    assert "It held back 1 message" in gate
    assert gate.splitlines()[-3:] == [
        "",
        "Answer it by",
        f"  mergepoint resume r --answer {FIRST}=approve",
    ]


def test_a_gate_in_a_later_iteration_is_told_as_such() -> None:
    """After a rejection the question is that of the second iteration, from the journal alone."""
    planned("-q")
    again = command("resume", "r", "-q", "--answer", f"{FIRST}={LESS}")
    assert again.code == 4
    Path("runs/r/transcript.json").unlink()
    (run,) = told("runs", "list")
    assert (run["state"], run["open_gates"], run["calls"]) == ("waiting", [SECOND], 2)
    states = {call["path"]: call["state"] for call in told("runs", "show", "r")["calls"]}
    assert (states[FIRST], states[SECOND]) == ("answered", "waiting")
    shown = command("show", "r", SECOND).out
    assert "3. End with the one sentence to remember." in shown
    assert "Nobody has decided yet" in shown
    assert completions("mergepoint show r pipeline/planning/iteration_02/a") == [
        f"{SECOND}/plan",
        SECOND,
    ]
    done = command("resume", "r", "-q", "--answer", f"{SECOND}=approve")
    assert done.code == 0
    assert done.out.startswith("Rain (20 minutes)\n  0'  Begin like this.")
    (run,) = told("runs", "list")
    assert (run["state"], run["open_gates"], run["calls"]) == ("done", [], 4)


def test_an_answer_may_be_given_beforehand() -> None:
    """A glob answers the gate of any iteration; decisions are told apart from calls."""
    run = planned("--answer", "**/approval=approve")
    assert run.code == 0
    assert "calls        2 calls, 1 function, 1 decision in" in run.err
    lines = [line.split()[:2] for line in run.err.splitlines()[:5]]
    assert ["gate", FIRST] in lines
    assert "decided   approve" in command("runs", "show", "r").out


def test_a_question_is_tailed_like_a_record() -> None:
    """A line for the call, one for what is asked, one for the decision."""
    planned("-q")
    command("resume", "r", "-q", "--answer", "approval=approve")
    lines = [json.loads(line) for line in command("runs", "tail", "r", "--json").out.splitlines()]
    assert [(line["kind"], line["path"]) for line in lines][:3] == [
        ("step", f"{FIRST}/plan"),
        ("gate", FIRST),
        ("gate", FIRST),
    ]
    assert lines[1]["text"] == "asks for a decision: Is this how the talk should go?"
    assert json.loads(lines[2]["text"])["decision"] == "approve"


def test_a_run_that_waits_is_fine() -> None:
    """Its transcript says what its journal says, question and all."""
    planned("-q")
    checked = command("runs", "check", "r")
    assert (checked.code, checked.out) == (0, "r: fine\n")
    exported = command("runs", "export", "r").data
    assert exported["error"]["type"] == "GateOpen"
    assert [one["path"] for one in exported["questions"]] == [FIRST]


def test_gates_side_by_side_are_asked_together_and_answered_one_by_one() -> None:
    """What is open is told in tree order, and each answer closes its own."""
    run = command("run", "both.py", "--run-id", "b", "-q")
    assert run.code == 4
    last = run.err.splitlines()[-1]
    assert last.endswith(" --answer p/both/cat=approve --answer p/both/dog=approve")
    again = command("resume", "b", "-q", "--answer", "cat=approve")
    assert again.code == 4
    assert told("runs", "list")[0]["open_gates"] == ["p/both/dog"]
    edit = '{"decision": "edit", "text": "A dog."}'
    assert command("resume", "b", "-q", "--answer", f"dog={edit}").code == 0
    assert command("runs", "export", "b").data["outputs"]["dog.text"] == "A dog."


def test_a_loop_that_comes_to_no_end_is_not_resumed() -> None:
    """A resume would end in the same way, so none is offered; the error says what helps."""
    run = planned("-q", "--answer", "**/approval=reject")
    assert run.code == 1
    assert "until='review' did not hold after 5 iterations; allow more" in run.err
    assert "go on:" not in run.err
    shown = told("runs", "show", "r")
    assert (shown["state"], shown["resume"]) == ("failed", None)
    Path("runs/r/transcript.json").unlink()
    assert told("runs", "list")[0]["error"]["type"] == "RailError"


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ("approval", "write it as path=approve"),
        ("approval=perhaps", "'approve' or 'reject'"),
        ("approvla=approve", "did you mean"),
        ('approval={"decision": "edit"}', "an edit gives text or outputs"),
    ],
)
def test_an_answer_that_cannot_be_is_refused(answer: str, said: str) -> None:
    """Nothing is run for an answer that decides nothing, or that fits no gate."""
    refused = planned("--answer", answer)
    assert refused.code == 2
    assert said in refused.err
    assert not Path("runs").exists()


def test_an_answer_without_a_gate_is_refused() -> None:
    """A tree without gates says so."""
    refused = command("run", "essay.py", "-i", "topic=x", "--answer", "a=approve")
    assert refused.code == 2
    assert "there are no gates in the tree" in refused.err


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_person_at_a_terminal_is_asked() -> None:
    """What is asked stays on the terminal, whole, and the plan is made again as they say."""
    code, shown = on_terminal(
        "run", "plan_approve", "-i", "topic=rain", typed="r\nMake it three steps.\na\n"
    )
    assert code == 0
    text = plain(shown)
    assert text.count("Is this how the talk should go?") == 2
    assert "Rain (20 minutes)" in text
    assert "15'  End with the one sentence to remember." in text


@pytest.mark.campaign
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_person_may_decide_later() -> None:
    """The run ends with the question on record, and goes on from another place."""
    code, shown = on_terminal(
        "run", "plan_approve", "-i", "topic=rain", "--run-id", "r", typed="l\n"
    )
    assert code == 4
    assert "waiting at" in plain(shown)
    done = process("resume", "r", "-q", "--answer", "approval=approve")
    assert done.code == 0
    assert done.out.startswith("Rain (20 minutes)")


@pytest.mark.campaign
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_person_may_edit_on_the_line() -> None:
    """Without an editor the new text is typed, and it is what goes on."""
    code, shown = on_terminal("run", "plan_approve", "-i", "topic=rain", typed="e\n1. Only this.\n")
    assert code == 0
    assert "0'  Only this." in plain(shown)


@pytest.mark.campaign
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_ctrl_c_at_a_question_is_later() -> None:
    """Whoever leaves has decided nothing, side by side neither, and what is open is on record."""
    asked = "decide [l]ater: "
    steps = [(asked, "a\n"), (asked, "\x03")]
    code, shown = on_terminal("run", "both.py", "--run-id", "b", then=steps)
    assert code == 4
    assert "Traceback" not in shown
    (run,) = told("runs", "list")
    (gate,) = run["open_gates"]
    assert f"waiting at {gate}" in plain(shown)
    steps = [(asked, "r\n"), ("(may be empty): ", "\x03")]
    code, _ = on_terminal("resume", "b", then=steps)
    assert code == 4
    assert told("runs", "list")[0]["open_gates"] == [gate]
