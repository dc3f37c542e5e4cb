"""Turns: a tree with a session as its parent; what is kept, shown, resumed, refused."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage
from pydantic import BaseModel
from tests.journal.places import Place

from mergepoint import (
    Block,
    BudgetExceeded,
    Call,
    Gate,
    GateOpen,
    Loop,
    Node,
    Recorder,
    Reply,
    SessionError,
    SessionMemory,
    Step,
    StepError,
    StepType,
    Template,
    TreeError,
    TurnRunner,
    arun_turn,
    cancel_turn,
    open_session,
    run_turn,
)
from mergepoint.session.session_store import check_session, sessions_at
from mergepoint.testing.scripted_model import Answer, ScriptedModel

CHAT = Step("Answer.", name="answer")


class Plan(BaseModel):
    """What the user wants, and what is to be done."""

    intent: str
    action: str


def worker() -> Node:
    """Return a tree that plans, asks, tries code until it runs, and answers."""
    runs = iter(({"exit_code": 1, "output": "no"}, {"exit_code": 0, "output": "1\n"}))

    def execute(code: str) -> dict[str, Any]:
        return {**next(runs), "done": code == "print(1)"}

    return Block(
        [
            Gate(
                Step("Plan.", name="plan", schema=Plan, meta={"step_type": "plan"}),
                name="ask",
                merge="none",
                capture_key="said",
                meta={"step_type": "plan"},
            ),
            Loop(
                [
                    Step(
                        "Write code.",
                        name="codegen",
                        capture_key="code",
                        meta={"step_type": "codegen"},
                    ),
                    Call(
                        execute,
                        name="execute",
                        capture_key="ran",
                        args={"code": Template("{{ code }}")},
                        meta={"step_type": "execute"},
                    ),
                ],
                until=lambda ctx: ctx.outputs["ran"]["exit_code"] == 0,
                max_iterations=3,
                name="tries",
                merge="none",
            ),
            Step("Respond.", name="respond"),
        ],
        name="agent",
    )


SCRIPT: dict[str, Any] = {
    "agent/ask/plan": {"intent": "count", "action": "custom_script"},
    "agent/tries/iteration_01/codegen": "print(2)",
    "agent/tries/iteration_02/codegen": "print(1)",
    "agent/respond": "It is 1.",
}


@pytest.fixture(params=["sync", "async"])
def take(request: pytest.FixtureRequest) -> Callable[..., Reply]:
    """Return how a turn is run, sync and on an event loop."""

    def run(turns: TurnRunner, memory: SessionMemory, text: str, **given: Any) -> Reply:
        if request.param == "sync":
            return turns.run(memory, text, **given)
        return asyncio.run(turns.arun(memory, text, **given))

    return run


@pytest.fixture
def memory(tmp_path: Path) -> SessionMemory:
    """Return a new session."""
    return open_session("trip", sessions=tmp_path)


@pytest.fixture(params=["sync", "async"])
def go_on(request: pytest.FixtureRequest) -> Callable[..., Reply]:
    """Return how a turn is resumed, sync and on an event loop."""

    def run(turns: TurnRunner, memory: SessionMemory, **given: Any) -> Reply:
        if request.param == "sync":
            return turns.resume(memory, **given)
        return asyncio.run(turns.aresume(memory, **given))

    return run


def roles(memory: SessionMemory) -> list[tuple[str, str]]:
    """Return role and text of each message."""
    return [(one.role, one.content) for one in memory.get_messages()]


def test_a_turn_adds_the_message_and_the_answer(place: Place, take: Callable[..., Reply]) -> None:
    """Of all that the tree makes only its last response is kept, once, with where it came from."""
    memory = sessions_at(place.address).create("trip")
    tree = Block([Step("Draft.", name="draft"), Step("Answer.", name="answer")], name="chat")
    reply = take(TurnRunner(tree, model=ScriptedModel(["A draft.", "Hello."])), memory, "Hi.")
    asked, answer = memory.get_messages()
    assert reply.text == "Hello."
    assert reply.message == answer
    assert (asked.content, asked.run, asked.turn) == ("Hi.", "trip.1", 1)
    assert (answer.id, answer.run, answer.path, answer.turn) == (
        "trip.1/chat/answer/1",
        "trip.1",
        "chat/answer",
        1,
    )
    assert memory.unfinished is None
    assert sessions_at(place.address).open("trip").get_messages() == (asked, answer)
    assert list(memory.runs().runs()) == ["trip.1"]
    [record] = [one for one in memory.runs().read("trip.1")[1] if one.path == answer.path]
    assert record.response == answer.content


def test_a_turn_sees_facts_and_the_last_turns(memory: SessionMemory) -> None:
    """What it sees is a view: the user's message is its last, and the session stays whole."""
    memory.add_fact("The user's name is Ada.")
    memory.add_fact("The user likes rain.")
    model = ScriptedModel(["One.", "Two.", "Three."])
    turns = TurnRunner(CHAT, model=model, last=2, facts=1)
    for text in "abc":
        turns.run(memory, text)
    seen = model.calls[-1].messages
    assert [(type(one), one.content) for one in seen] == [
        (SystemMessage, "Known from earlier:\n- The user likes rain."),
        (HumanMessage, "b"),
        (AIMessage, "Two."),
        (HumanMessage, "c"),
        (HumanMessage, "Answer."),
    ]
    assert len(memory.get_messages()) == 6
    assert [one.content for one in memory.get_messages() if one.role == "system"] == []


def test_artifacts_become_steps_and_the_answer_none(memory: SessionMemory) -> None:
    """Plan, decision, each try of the code and its run are steps, in order, with path and try."""
    reply = run_turn(
        memory,
        worker(),
        "Count.",
        model=ScriptedModel(by_path=SCRIPT),
        answerer={"agent/ask": {"decision": "approve", "feedback": "go"}},
    )
    assert reply.text == "It is 1."
    steps = memory.get_steps()
    assert [(one.type.value, one.attempt, one.path) for one in steps] == [
        ("plan", 1, "agent/ask/plan"),
        ("decision", 1, "agent/ask"),
        ("codegen", 1, "agent/tries/iteration_01/codegen"),
        ("execute", 1, "agent/tries/iteration_01/execute"),
        ("codegen", 2, "agent/tries/iteration_02/codegen"),
        ("execute", 2, "agent/tries/iteration_02/execute"),
        ("response", None, "agent/respond"),
    ]
    plan, decision, _, first_run, code, run, answer = steps
    assert (plan.intent, plan.action) == ("count", "custom_script")
    assert (decision.decision, decision.feedback) == ("approve", "go")
    assert (first_run.exit_code, run.exit_code, run.content) == (1, 0, "1\n")
    assert code.content == "print(1)"
    assert (answer.message, answer.content) == (memory.get_messages()[1].id, "")
    assert roles(memory) == [("user", "Count."), ("assistant", "It is 1.")]


def test_artifacts_are_never_context(memory: SessionMemory) -> None:
    """The next turn sees the conversation, and nothing of how it came about."""
    model = ScriptedModel(by_path={**SCRIPT, "answer": "Done."})
    run_turn(memory, worker(), "Count.", model=model, answerer={"agent/ask": "approve"})
    run_turn(memory, CHAT, "And now?", model=model)
    assert [one.content for one in model.calls[-1].messages] == [
        "Count.",
        "It is 1.",
        "And now?",
        "Answer.",
    ]


def test_a_failed_turn_leaves_the_message_and_an_error_step(
    memory: SessionMemory, take: Callable[..., Reply]
) -> None:
    """What was made on the way is there, the error passes as it is, and the next turn goes on."""
    tree = Block(
        [Step("Plan.", name="plan", meta={"step_type": "plan"}, merge="none"), CHAT], name="chat"
    )
    model = ScriptedModel(["A plan.", ValueError("down"), "A plan.", "Hello."])
    turns = TurnRunner(tree, model=model)
    with pytest.raises(ValueError, match="down") as raised:
        take(turns, memory, "Hi.")
    assert vars(raised.value)["pipeline_path"] == "chat/answer"
    assert roles(memory) == [("user", "Hi.")]
    plan, failed = memory.get_steps()
    assert plan.content == "A plan."
    assert failed.type is StepType.RESPONSE
    assert failed.error == {
        "type": "ValueError",
        "message": "down",
        "path": "chat/answer",
        "node": "answer",
    }
    assert memory.unfinished is None
    assert take(turns, memory, "Again.").text == "Hello."
    assert roles(memory)[0] == ("user", "Hi.")


def test_a_failed_turn_is_resumed_and_pays_nothing_twice(
    memory: SessionMemory, go_on: Callable[..., Reply]
) -> None:
    """The calls that were answered are on record, and the answer stands in the turn it is for."""
    tree = Block([Step("Plan.", name="plan"), CHAT], name="chat")
    model = ScriptedModel(by_path={"chat/plan": "P.", "chat/answer": [ValueError("down"), "Yes."]})
    turns = TurnRunner(tree, model=model)
    with pytest.raises(ValueError, match="down"):
        turns.run(memory, "Hi.")
    assert go_on(turns, memory).text == "Yes."
    assert [seen.path for seen in model.calls] == ["chat/plan", "chat/answer", "chat/answer"]
    assert roles(memory) == [("user", "Hi."), ("assistant", "Yes.")]
    assert [bool(one.error) for one in memory.get_steps()] == [True, False]
    with pytest.raises(SessionError, match="has nothing to resume"):
        go_on(turns, memory)


def test_a_message_that_comes_again_is_answered_once(
    memory: SessionMemory, take: Callable[..., Reply]
) -> None:
    """Under its id an answered turn gives its answer, and a broken one goes on."""
    model = ScriptedModel([ValueError("down"), "Hello.", "Later."])
    turns = TurnRunner(CHAT, model=model)
    with pytest.raises(ValueError, match="down"):
        take(turns, memory, "Hi.", message_id="m1")
    assert take(turns, memory, "Hi.", message_id="m1").text == "Hello."
    take(turns, memory, "Next.", message_id="m2")
    again = take(turns, memory, "Hi.", message_id="m1")
    assert (again.text, again.generation) == ("Hello.", None)
    assert len(model.calls) == 3
    assert [one.id for one in memory.get_messages()] == [
        "m1",
        "trip.1/answer/1",
        "m2",
        "trip.2/answer/1",
    ]
    with pytest.raises(SessionError, match="something else under the id 'm1'"):
        take(turns, memory, "Ho.", message_id="m1")


def test_a_snapshot_that_a_kill_kept_back_is_written_when_the_message_comes_again(
    tmp_path: Path,
) -> None:
    """An answer that is in the journal and not in the snapshot is in both after that."""
    memory = open_session("trip", sessions=tmp_path)
    turns = TurnRunner(CHAT, model=ScriptedModel(["Hello."]))
    turns.run(memory, "Hi.", message_id="m1")
    (tmp_path / "trip" / "session.yaml").unlink()
    assert turns.run(memory, "Hi.", message_id="m1").text == "Hello."
    assert "Hello." in (tmp_path / "trip" / "session.yaml").read_text(encoding="utf-8")
    assert check_session("trip", sessions=tmp_path) == []


def test_a_failed_turn_that_was_left_behind_is_over(memory: SessionMemory) -> None:
    """Once another turn came after it, it is not answered any more."""
    turns = TurnRunner(CHAT, model=ScriptedModel([ValueError("down"), "Hello."]))
    with pytest.raises(ValueError, match="down"):
        turns.run(memory, "Hi.", message_id="m1")
    turns.run(memory, "Next.")
    with pytest.raises(SessionError, match=r"turn 1 .* failed, and others came after it"):
        turns.run(memory, "Hi.", message_id="m1")


def test_a_turn_waits_at_a_gate(memory: SessionMemory, take: Callable[..., Reply]) -> None:
    """It stays unfinished, shows its plan, takes no other message, and goes on with the answer."""
    model = ScriptedModel(by_path=SCRIPT)
    turns = TurnRunner(worker(), model=model)
    with pytest.raises(GateOpen) as raised:
        take(turns, memory, "Count.")
    assert raised.value.questions[0].path == "agent/ask"
    assert memory.unfinished is not None
    assert [one.type for one in memory.get_steps()] == [StepType.PLAN]
    for act in (
        lambda: take(turns, memory, "Hello?"),
        memory.clear,
    ):
        with pytest.raises(SessionError, match="turn 1 of session 'trip' is unfinished"):
            act()
    [question] = turns.questions(memory)
    assert question.path == "agent/ask"
    assert question.kept == raised.value.questions[0].kept
    later = open_session("trip", sessions=memory.runs().folder_of("trip.1").parents[2])  # type: ignore[union-attr]
    assert turns.resume(later, answerer={"agent/ask": "approve"}).text == "It is 1."
    assert [seen.path for seen in model.calls].count("agent/ask/plan") == 1
    assert turns.questions(memory) == []
    assert roles(later) == [("user", "Count."), ("assistant", "It is 1.")]
    [plan], [decision] = (later.get_working_steps(type=one) for one in ("plan", "decision"))
    assert (plan.content, decision.content, decision.decides) == (plan.content, "", "plan")
    assert plan.content


def test_a_cancelled_turn_never_comes_back(memory: SessionMemory) -> None:
    """It leaves the message and an error step, and neither a late click nor a retry answers it."""
    turns = TurnRunner(worker(), model=ScriptedModel(by_path={**SCRIPT, "answer": "Fine."}))
    with pytest.raises(GateOpen):
        turns.run(memory, "Count.", message_id="m1")
    step = cancel_turn(memory, "not now")
    assert step.cancelled
    assert step.error == {"type": "Cancelled", "message": "not now"}
    for act in (
        lambda: turns.resume(memory, answerer={"agent/ask": "approve"}),
        lambda: turns.run(memory, "Count.", message_id="m1"),
        lambda: memory.add_response("assistant", "Late.", turn=1, run="trip.1"),
    ):
        with pytest.raises(SessionError, match="turn 1 of session 'trip' was cancelled"):
            act()
    with pytest.raises(SessionError, match="has no unfinished turn to cancel"):
        cancel_turn(memory)
    assert run_turn(memory, CHAT, "Hello.", model=ScriptedModel(["Fine."])).text == "Fine."
    assert roles(memory) == [("user", "Count."), ("user", "Hello."), ("assistant", "Fine.")]


def test_a_task_that_is_cancelled_cancels_its_turn(memory: SessionMemory) -> None:
    """The call in flight lands, the message and an error step stay, and the session is free."""
    waiting = asyncio.Event()

    async def held(ctx: Any) -> str:
        waiting.set()
        await asyncio.Event().wait()
        return ""

    async def stopped() -> None:
        task = asyncio.create_task(
            arun_turn(memory, Block([Call(held, merge="all_messages")]), "Hi.", model="offline")
        )
        await waiting.wait()
        with pytest.raises(SessionError, match="a turn of this session is being written by this"):
            await arun_turn(memory, CHAT, "Me too.", model="offline")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(stopped())
    [step] = memory.get_steps()
    assert step.cancelled
    assert roles(memory) == [("user", "Hi.")]
    assert run_turn(memory, CHAT, "Now.", model=ScriptedModel(["Yes."])).text == "Yes."


def test_ctrl_c_cancels_the_turn(memory: SessionMemory) -> None:
    """An interrupt passes, and leaves what a cancelled turn leaves."""

    def stop(ctx: Any) -> str:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_turn(memory, Block([Call(stop, merge="all_messages")]), "Hi.", model="offline")
    assert [one.cancelled for one in memory.get_steps()] == [True]


def test_a_turn_that_began_no_run_is_resumed_too(memory: SessionMemory) -> None:
    """Killed between the message and the first byte of its run it begins then, with its inputs."""
    memory.add_response("user", "Hi.", opens=True)
    tree = Block([Step(Template("Answer {{ how }}."))], inputs=["how"])
    turns = TurnRunner(tree, model=ScriptedModel(["Yes."]))
    assert turns.questions(memory) == []
    assert turns.resume(memory, inputs={"how": "briefly"}).text == "Yes."
    torn = open_session("torn", sessions=memory.runs().folder_of("x").parents[2])  # type: ignore[union-attr]
    torn.add_response("user", "Hi.", opens=True)
    folder = torn.runs().folder_of("torn.1")
    assert folder is not None
    folder.mkdir(parents=True)
    (folder / "journal.jsonl").write_bytes(b'0123abcd {"form')
    turns = TurnRunner(CHAT, model=ScriptedModel(["Yes."]))
    assert turns.resume(torn).text == "Yes."


def test_a_message_that_was_added_by_hand_is_not_resumed(memory: SessionMemory) -> None:
    """A session that is written without runs has no unfinished turns."""
    memory.add_response("user", "Hi.")
    assert memory.unfinished is None
    with pytest.raises(SessionError, match="was not begun by a run"):
        TurnRunner(CHAT, model="offline").resume(memory)


def test_the_root_keeps_the_last_response(memory: SessionMemory) -> None:
    """A tree's other merge gives way, and one that keeps nothing is refused with all faults."""
    tree = Block([CHAT], merge="all_messages", name="chat")
    assert TurnRunner(tree, model="offline").tree.merge == "last_response"
    with pytest.raises(TreeError, match="chat: a turn's answer is what its root keeps"):
        TurnRunner(Block([CHAT], merge="none", name="chat"))
    with pytest.raises(TreeError, match="last_response requested but no assistant output exists"):
        TurnRunner(Block([Step("x", merge="none")], name="chat"))
    with pytest.raises(TreeError, match="reads 'nothing'"):
        TurnRunner(Block([Step(Template("{{ nothing }}"))], name="chat"))
    with pytest.raises(TreeError, match=r"meta step_type='guess' is none of 'plan', 'codegen'"):
        TurnRunner(Step("x", name="a", meta={"step_type": "guess"}))
    with pytest.raises(StepError, match="last=0: a turn sees its own message at least"):
        TurnRunner(CHAT, last=0)
    assert memory.get_messages() == ()


def test_blank_text_begins_no_turn(memory: SessionMemory) -> None:
    """What cannot be accepted is refused before anything is written."""
    with pytest.raises(StepError, match="a message is blank"):
        run_turn(memory, CHAT, " ", model="offline")
    assert memory.get_messages() == ()
    assert memory.turn == 0


def test_a_misspelt_option_is_told(memory: SessionMemory) -> None:
    """What a turn does not take is refused before its message is accepted."""
    turns: Any = TurnRunner(CHAT, model=ScriptedModel(["Yes."]))
    with pytest.raises(TypeError, match=r"takes no 'answrer' \(did you mean 'answerer'\?\)"):
        turns.run(memory, "Hi.", message_id="m1", answrer=None)
    assert memory.past.by_id == {}


def test_turns_take_inputs_config_recorder_and_budget(memory: SessionMemory) -> None:
    """What a run is given, a turn is given too."""
    tree = Block([Step(Template("Answer {{ how }}."), name="answer")], name="chat", inputs=["how"])
    events: list[str] = []
    recorder = Recorder(on_event=lambda event: events.append(event.kind))
    model = ScriptedModel(["Yes.", Answer("No.", usage=(1, 1))])
    given: dict[str, Any] = {"config": {"tags": ["t"]}, "recorder": recorder}
    reply = run_turn(memory, tree, "Hi.", model=model, inputs={"how": "so"}, **given)
    assert events == ["start", "end"]
    assert reply.generation is not None
    assert reply.generation.steps[0].prompt == "Answer so."
    turns = TurnRunner(Block([CHAT, Step("More.")]), model=model, budget={"calls": 1})
    with pytest.raises(BudgetExceeded):
        turns.run(memory, "Go on.")
    failed = memory.get_steps()[-1].error
    assert failed is not None
    assert failed["type"] == "BudgetExceeded"


def test_an_error_that_cannot_be_noted_is_still_the_error(
    memory: SessionMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the disk is full as well, the error says so in a note."""

    def fail(ctx: Any) -> str:
        def full(*_: object, **__: object) -> None:
            raise SessionError("no room")

        monkeypatch.setattr("mergepoint.session.session_log.SessionLog.locked", full)
        raise ValueError("down")

    with pytest.raises(ValueError, match="down") as raised:
        run_turn(memory, Block([Call(fail, merge="all_messages")]), "Hi.", model="offline")
    assert any("the session could not note it" in note for note in raised.value.__notes__)


def test_a_secret_in_a_message_is_masked_before_the_turn(memory: SessionMemory) -> None:
    """The model sees what is kept, so the turn can be resumed."""
    model = ScriptedModel([ValueError("down"), "Yes."])
    turns = TurnRunner(CHAT, model=model)
    with pytest.raises(ValueError, match="down"):
        turns.run(memory, "Use sk-abcdefghijklmnopqrstuv.")
    assert turns.resume(memory).text == "Yes."
    assert "Use [masked]." in [one.content for one in model.calls[-1].messages]
