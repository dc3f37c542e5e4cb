"""Gates at the command: asked at a terminal, answered by option, or left open and told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from langchain_core.messages import AIMessage
from tests.apps.command import Outcome, command, completions, on_terminal, plain, process

from mergepoint.apps.cli.gate_answers import question_lines
from mergepoint.core.merge import State
from mergepoint.journal.file_journal import read_journal
from mergepoint.tree.decision import Question

TEXT = st.text(max_size=8)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXT
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
        capture_key=f"{name}.decision",
    )
    for name in ("cat", "dog")
]
end = Step(lambda ctx: "End.", name="end")  # a function may read what was decided
tree = Block([Block(gates, name="both", parallel=True), end], name="p")
'''


VALUES = '''\
"""A gate on a structured answer, and one on what a function made."""

from mergepoint import Block, Call, Gate, Step
from pydantic import BaseModel


class Plan(BaseModel):
    title: str
    steps: list[str]


def facts(context):
    return {"height": 12, "names": ["a", "b"]}


tree = Block(
    [
        Gate(
            Step("Plan a walk.", name="plan", schema=Plan, capture_key="plan"),
            name="asked",
            merge="last_response",
        ),
        Gate(Call(facts, name="facts", capture_key="facts"), name="counted"),
        Step("End.", name="end"),
    ],
    name="p",
)
'''


@pytest.fixture(autouse=True)
def both(here: Path) -> None:
    """Write the trees with two gates."""
    (here / "both.py").write_text(BOTH, encoding="utf-8")
    (here / "values.py").write_text(VALUES, encoding="utf-8")


def planned(*args: str) -> Outcome:
    """Run the example with a gate, where nobody can be asked."""
    return command("run", "plan_approve", "-i", "topic=rain", "--run-id", "r", *args)


def told(*args: str) -> Any:
    """Return what a command says as JSON."""
    return command(*args, "--json").data


def test_a_gate_that_nobody_answers_ends_the_run_with_4() -> None:
    """What would be kept is on stderr, whole, and the command that goes on ends it."""
    run = planned()
    assert (run.code, run.out) == (4, "")
    lines = run.err.splitlines()
    assert f"waiting at {FIRST}" in lines
    assert "    would merge 1 message and the output plan:" in lines
    assert f"      {PLAN}" in lines
    assert "    plan: the text above" in lines
    assert lines[-1] == f"  resume: mergepoint resume r --answer {FIRST}=approve"


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
    shown = command("show", "r").out.splitlines()
    assert f"state     waiting for a decision at {FIRST}" in shown
    assert f"resume    mergepoint resume r --answer {FIRST}=approve" in shown
    assert "      approval    waits for a decision" in shown
    assert shown[shown.index(f"Gate {FIRST}") + 1] == "  Is this how the talk should go?"
    data = told("show", "r")
    assert data["questions"][0]["path"] == FIRST
    assert data["missing"] == ["pipeline/title", "pipeline/programme"]
    assert told("show", "r", "--calls")["open_gates"] == [FIRST]
    assert "waits for a decision" in command("show", "r", "--calls").out
    gate = command("show", "r", "approval").out
    assert "Messages awaiting approval 1 message" in gate
    assert gate.splitlines()[-3:] == [
        "",
        "To answer:",
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
    states = {call["path"]: call["state"] for call in told("show", "r")["calls"]}
    assert (states[FIRST], states[SECOND]) == ("answered", "waiting")
    shown = command("show", "r", SECOND).out
    assert "3. End with the one sentence to remember." in shown
    assert "No decision yet" in shown
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
    assert "decided   approve" in command("show", "r").out


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
    assert (checked.code, checked.out) == (0, "r: OK\n")
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


@pytest.mark.parametrize("file", ["answer.json", "-"])
def test_an_answer_can_be_in_a_file(file: str) -> None:
    """An edit longer than a command line is read from a file, or from stdin."""
    command("run", "both.py", "--run-id", "b", "-q", "--answer", "cat=approve")
    text = "A dog. " * 40_000
    content = json.dumps({"decision": "edit", "text": text})
    Path("answer.json").write_text(content, encoding="utf-8")
    resumed = command("resume", "b", "-q", "--answer", f"dog=@{file}", given=content)
    assert resumed.code == 0, resumed.err
    assert command("runs", "export", "b").data["outputs"]["dog.text"] == text


def test_an_answer_from_a_file_is_printed_in_full() -> None:
    """The command that resumes the run contains the decision itself: the file may be gone."""
    Path("later.json").write_text('{"decision": "approve"}', encoding="utf-8")
    run = planned("-q", "--answer", "iteration_02/approval=@later.json")
    assert run.code == 4
    assert """--answer 'iteration_02/approval={"decision": "approve"}'""" in run.err


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "No such file"),
        ('"approve"', "must contain a JSON object"),
        ("approve", "Can't read --answer"),
        ('{"decision": "edit"}', "an edit sets text or outputs"),
    ],
)
def test_a_file_without_an_answer_is_refused(content: str | None, said: str) -> None:
    """Nothing is run for a file that can't be read or decides nothing."""
    if content is not None:
        Path("answer.json").write_text(content, encoding="utf-8")
    refused = planned("--answer", "approval=@answer.json")
    assert refused.code == 2
    assert said in refused.err
    assert not Path("runs").exists()


def test_a_loop_that_comes_to_no_end_is_not_resumed() -> None:
    """A resume would end in the same way, so none is offered; the error says what helps."""
    run = planned("-q", "--answer", "**/approval=reject")
    assert run.code == 1
    assert "until='review' wasn't met after 5 iterations; allow more" in run.err
    assert "go on:" not in run.err
    shown = told("show", "r")
    assert (shown["state"], shown["resume"]) == ("failed", None)
    Path("runs/r/transcript.json").unlink()
    assert told("runs", "list")[0]["error"]["type"] == "RailError"


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ("approval", "Use path=approve"),
        ("approval=perhaps", "'approve' or 'reject'"),
        ("approvla=approve", "did you mean"),
        ('approval={"decision": "edit"}', "an edit sets text or outputs"),
    ],
)
def test_an_answer_that_cannot_be_is_refused(answer: str, said: str) -> None:
    """Nothing is run for an answer that decides nothing, or that fits no gate."""
    refused = planned("--answer", answer)
    assert refused.code == 2
    assert said in refused.err
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ('asked={"decision": "edit", "text": "no JSON"}', "the response is structured; give JSON"),
        ('p/asked={"decision": "edit", "outputs": {"plans": 1}}', "cannot add the output 'plans'"),
    ],
)
def test_an_edit_that_does_not_match_is_refused(answer: str, said: str) -> None:
    """A resume says what is wrong with an edit before it runs: the run stays as it was."""
    Path("values.py").write_text(VALUES, encoding="utf-8")
    assert command("run", "values.py", "--run-id", "v", "-q").code == 4
    refused = command("resume", "v", "-q", "--answer", answer)
    assert refused.code == 2
    assert said in refused.err
    assert told("runs", "list")[0]["state"] == "waiting"


def test_an_answer_without_a_gate_is_refused() -> None:
    """A tree without gates says so."""
    refused = command("run", "essay.py", "-i", "topic=x", "--answer", "a=approve")
    assert refused.code == 2
    assert "the tree has no gates" in refused.err


@pytest.mark.campaign
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


def test_a_gate_may_hold_back_values_of_any_kind() -> None:
    """Outputs that are no text are shown as JSON at every command, and the answers end the run."""
    run = command("run", "values.py", "--run-id", "v", "-q")
    assert run.code == 4
    assert "    plan: the text above" in run.err.splitlines()
    assert command("show", "v").code == 0
    again = command("resume", "v", "-q", "--answer", "p/asked=approve")
    assert again.code == 4
    assert "    would merge the output facts:" in again.err.splitlines()
    assert '        "height": 12,' in again.err.splitlines()
    assert '      "height": 12,' in command("show", "v").out.splitlines()
    assert command("show", "v", "p/counted").code == 0
    assert command("resume", "v", "-q", "--answer", "p/counted=approve").code == 0
    assert command("runs", "export", "v").data["outputs"]["facts"]["names"] == ["a", "b"]


def test_an_edited_value_stays_a_value() -> None:
    """Text in the place of a value is read as JSON; what is none is refused with the reason."""
    command("run", "values.py", "--run-id", "v", "-q", "--answer", "asked=approve")
    refused = command("resume", "v", "--answer", 'counted={"decision": "edit", "text": "high"}')
    assert refused.code == 2
    assert "give JSON" in refused.err
    edit = '{"decision": "edit", "text": "{\\"height\\": 13}"}'
    assert command("resume", "v", "-q", "--answer", f"counted={edit}").code == 0
    assert command("runs", "export", "v").data["outputs"]["facts"] == {"height": 13}


def test_the_agent_as_its_readme_runs_it_waits_at_its_plan() -> None:
    """Without a terminal the run ends at the first gate, and the printed command goes on."""
    run = command(
        "run",
        "plan_code_execute",
        "--input",
        "request=Sum the sales by month.",
        "--run-id",
        "a",
    )
    assert run.code == 4
    assert '      "action": "execute_skill",' in run.err
    shown = command("show", "a")
    assert '"action": "execute_skill",' in shown.out
    gate = "pipeline/planning/iteration_01/approval"
    assert run.err.splitlines()[-1] == f"  resume: mergepoint resume a --answer {gate}=approve"


def _inside(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3)


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None, max_examples=30)
@given(value=st.recursive(SCALARS, _inside, max_leaves=6))
def test_any_held_back_value_can_be_told(value: Any) -> None:
    """Whatever JSON a node captured, what a gate asks is lines of text."""
    response = AIMessage(json.dumps(value) or "-")
    for messages in ((), (response,)):
        question = Question("p/gate", "Good?", State.of(messages, {"value": value}))
        assert all(isinstance(line, str) for line in question_lines(question))


STOPPING = '''\
"""A gate whose rejection ends the run, and one whose feedback nothing reads."""

from mergepoint import Block, Gate, Step

tree = Block(
    [
        Step("Begin.", name="begin"),
        Gate(Step("Plan.", name="plan"), name="gate", on_reject="stop"),
        Step("End.", name="end"),
    ],
    name="p",
)
'''


def test_a_rejection_that_ends_the_run_is_no_failure(here: Path) -> None:
    """The run is over with code 0, and every command says at which gate it was rejected."""
    (here / "stop.py").write_text(STOPPING, encoding="utf-8")
    answer = 'p/gate={"decision": "reject", "feedback": "too long"}'
    run = command("run", "stop.py", "--run-id", "s", "--answer", answer)
    assert run.code == 0
    assert "rejected at p/gate: too long; the run ended there, and no later step ran" in run.err
    (listed,) = told("runs", "list")
    assert (listed["state"], listed["error"], listed["calls"]) == ("rejected", None, 2)
    shown = told("show", "s")
    assert (shown["state"], shown["resume"], shown["missing"]) == ("rejected", None, [])
    assert "state     rejected at p/gate: too long" in command("show", "s").out
    Path("runs/s/transcript.json").unlink()
    assert told("runs", "list")[0]["state"] == "rejected"
    data = told("run", "stop.py", "--replay", "s", "-q")
    assert (data["status"], data["rejected_at"]) == ("rejected", ["p/gate"])


@pytest.mark.parametrize("way", ["--reuse", "--replay"])
@pytest.mark.parametrize("selector", ["p/gate", "gate"])
def test_an_answer_against_a_decision_that_is_taken_over_is_refused(
    here: Path, way: str, selector: str
) -> None:
    """A run that takes its decision from another says so, and the same answer is no fault."""
    (here / "stop.py").write_text(STOPPING, encoding="utf-8")
    assert command("run", "stop.py", "--run-id", "s", "--answer", "p/gate=approve").code == 0
    refused = command("run", "stop.py", way, "s", "--answer", f"{selector}=reject")
    assert refused.code == {"--reuse": 1, "--replay": 2}[way]  # a replay can know before it begins
    assert "the answer at p/gate would be ignored: 'approve' is on record" in refused.err
    assert "leave the answer out, or begin a new run" in refused.err
    assert command("run", "stop.py", way, "s", "--answer", f"{selector}=approve").code == 0


def test_an_answer_against_the_record_is_refused() -> None:
    """What would be ignored is refused with the decision on record; the same one is not."""
    planned("-q", "--answer", f"{FIRST}={LESS}")
    refused = command("resume", "r", "--answer", f"{FIRST}=approve")
    assert refused.code == 2
    assert f"the answer at {FIRST} would be ignored: 'reject' (Make it three" in refused.err
    assert command("resume", "r", "-q", "--answer", f"{FIRST}={LESS}").code == 4
    assert command("resume", "r", "-q", "--answer", "approval=approve").code == 0


def test_an_answer_that_fits_only_what_is_decided_is_refused() -> None:
    """Outside of loops a name that fits a gate that was decided can be for no other one."""
    command("run", "both.py", "--run-id", "b", "-q", "--answer", "cat=approve")
    refused = command("resume", "b", "--answer", "cat=reject", "--answer", "dog=approve")
    assert refused.code == 2
    assert "the answer at p/both/cat would be ignored: 'approve' is on record" in refused.err


@pytest.mark.campaign
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_feedback_is_asked_where_something_reads_it(here: Path) -> None:
    """A rejection that no step reads is not followed by a question about it."""
    (here / "stop.py").write_text(STOPPING, encoding="utf-8")
    code, shown = on_terminal("run", "stop.py", then=[("decide [l]ater: ", "r\n")])
    assert (code, "What should be different" in plain(shown)) == (0, False)
    assert "rejected at p/gate" in plain(shown)


@pytest.mark.campaign
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_comment_is_typed_behind_the_rejection(here: Path) -> None:
    """It is recorded, asked for or not; behind another decision it is refused, and asked again."""
    (here / "stop.py").write_text(STOPPING, encoding="utf-8")
    at = "decide [l]ater: "
    steps = [(at, "a if short\n"), (at, "r make it shorter\n")]
    code, shown = on_terminal("run", "stop.py", "--run-id", "s", then=steps)
    assert code == 0
    assert "Only a rejection has a comment, such as: r if short" in plain(shown)
    (decided,) = [
        one for one in read_journal(Path("runs/s/journal.jsonl"))[1] if one.kind == "gate"
    ]
    assert decided.value == {"decision": "reject", "feedback": "make it shorter"}


def test_a_second_resume_command_repeats_no_recorded_answer() -> None:
    """Once a decision is in the journal, the next command names only the gate that is open."""
    run = planned("-q", "--answer", f"{FIRST}={LESS}")
    assert run.code == 4
    assert run.err.splitlines()[-1] == f"  resume: mergepoint resume r --answer {SECOND}=approve"


def test_answers_for_later_gates_stay_in_the_resume_command() -> None:
    """An answer whose gate has not asked yet is still needed."""
    run = planned("-q", "--answer", f"{SECOND}=approve")
    assert run.code == 4
    assert run.err.splitlines()[-1] == (
        f"  resume: mergepoint resume r --answer {SECOND}=approve --answer {FIRST}=approve"
    )
