"""SessionMemory: one behaviour, whether sessions are kept in files, in SQLite or in PostgreSQL."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage
from tests.journal.places import Place

from mergepoint import (
    SessionError,
    SessionMemory,
    Step,
    StepCategory,
    StepError,
    StepType,
    TurnRunner,
    open_session,
)
from mergepoint.session.entries import execution_content
from mergepoint.session.history import SessionState
from mergepoint.session.session_memory import SessionBrief, Sessions
from mergepoint.session.session_store import FileSessions, sessions_at


def held(memory: SessionMemory) -> tuple[Any, ...]:
    """Return all that a session holds."""
    return memory.get_messages(), memory.get_facts(), memory.get_steps(), memory.turn


def talked(memory: SessionMemory) -> SessionMemory:
    """Return a session after two turns with a step and a fact of each kind."""
    memory.add_response("user", "Hello, I am Ada.")
    memory.add_working_step("plan", "Greet.", intent="greeting", action="chat", path="t/plan")
    memory.add_response("assistant", "Hello Ada.", path="t/respond")
    memory.add_fact("The user's name is Ada.", source=memory.get_messages()[0].id)
    memory.add_response("user", "Print 1.")
    memory.add_working_step("codegen", "print(1)\n", attempt=2)
    memory.add_working_step(
        StepType.EXECUTE, "1\n", exit_code=0, attempt=2, decision="approve", feedback="go"
    )
    memory.add_response("assistant", "It printed 1.")
    return memory


def test_a_session_comes_back_as_it_was(place: Place, sessions: Sessions) -> None:
    """What another process opens is what was written, times and ids included."""
    memory = talked(sessions.create("trip"))
    assert held(sessions_at(place.address).open("trip")) == held(memory)
    assert held(sessions.open("trip"))[0][0].created_at == memory.get_messages()[0].created_at


def test_messages_belong_to_turns(sessions: Sessions) -> None:
    """A user's message begins a turn, and what follows belongs to it."""
    memory = sessions.create("trip")
    memory.add_response("assistant", "Welcome.")
    talked(memory)
    assert [(one.role, one.turn) for one in memory.get_messages()] == [
        ("assistant", 0),
        ("user", 1),
        ("assistant", 1),
        ("user", 2),
        ("assistant", 2),
    ]
    assert [one.turn for one in memory.get_steps()] == [0, 1, 1, 2, 2, 2]
    assert memory.get_facts()[0].turn == 1


def test_an_answer_is_stored_once_and_its_record_points_to_it(sessions: Sessions) -> None:
    """The steps hold no answer's text, but the id of its message."""
    memory = talked(sessions.create("trip"))
    answers = [one for one in memory.get_messages() if one.role == "assistant"]
    records = memory.get_steps(type="response")
    assert [one.message for one in records] == [one.id for one in answers]
    assert {one.content for one in records} == {""}
    assert records[0].path == "t/respond"
    assert memory.get_steps(category="response") == records
    assert [one.type for one in memory.get_steps(turn=1, category="working")] == ["plan"]
    assert [one.category for one in memory.get_steps(turn=2)] == [
        StepCategory.WORKING,
        StepCategory.WORKING,
        StepCategory.RESPONSE,
    ]


def test_history_is_what_models_take(sessions: Sessions) -> None:
    """Roles become message types, ids stay, and the last turns alone can be asked for."""
    memory = talked(sessions.create("trip"))
    memory.add_response("system", "Be brief.")
    first, _, third, fourth, last = memory.get_conversation_history()
    assert [type(one) for one in (first, fourth, last)] == [HumanMessage, AIMessage, SystemMessage]
    assert [one.id for one in memory.get_conversation_history(last=1)] == [
        one.id for one in (third, fourth, last)
    ]
    assert memory.get_messages(last=0) == ()
    assert memory.get_messages(last=9) == memory.get_messages()


def test_a_summary_tells_facts_and_the_last_turns(sessions: Sessions) -> None:
    """It is text for a prompt, and no step is in it."""
    memory = talked(sessions.create("trip"))
    assert memory.get_context_summary(last=1) == (
        "Session trip: 2 turns.\n"
        "Facts:\n"
        "- The user's name is Ada. (turn 1)\n"
        "Conversation:\n"
        "user: Print 1.\n"
        "assistant: It printed 1."
    )
    assert memory.get_context_summary(last=0, facts=0) == "Session trip: 2 turns."


def test_a_write_that_is_repeated_changes_nothing(place: Place, sessions: Sessions) -> None:
    """Under its id a message, a step or a fact is written once, by whoever tries again."""
    memory = sessions.create("trip")
    again = sessions_at(place.address).open("trip")
    for one in (memory, again, memory):
        one.add_response("user", "Hi.", message_id="m1")
        one.add_working_step("plan", "P.", step_id="s1")
        one.add_response("assistant", "Hello.", message_id="m2")
        one.add_facts(["Likes rain.", " likes  RAIN "])
    assert held(memory) == held(again)
    assert len(memory.get_messages()) == 2
    assert len(memory.get_steps()) == 2
    assert len(memory.get_facts()) == 1


@pytest.mark.parametrize(
    "act",
    [
        lambda m: m.add_response("user", "Ho.", message_id="m1"),
        lambda m: m.add_response("assistant", "Hi.", message_id="m1"),
        lambda m: m.add_working_step("plan", "Hi.", step_id="m1"),
    ],
    ids=["other text", "other role", "a step"],
)
def test_an_id_belongs_to_one_entry(sessions: Sessions, act: Any) -> None:
    """Something else under a known id is refused, and the session stays as it was."""
    memory = sessions.create("trip")
    memory.add_response("user", "Hi.", message_id="m1")
    before = held(memory)
    with pytest.raises(SessionError, match="has something else under the id 'm1'"):
        act(memory)
    assert held(memory) == held(sessions.open("trip")) == before


def test_a_run_answers_an_open_turn_alone(sessions: Sessions) -> None:
    """What a run adds to a turn that has its answer, or is not there, is refused."""
    memory = sessions.create("trip")
    with pytest.raises(SessionError, match="turn 0 of session 'trip' does not exist, or was clear"):
        memory.add_response("assistant", "Hello.", run="trip.0")
    memory.add_response("user", "Hi.")
    memory.add_response("assistant", "Hello.", run="trip.1", message_id="a1")
    for act in (
        lambda: memory.add_response("assistant", "Ho.", run="trip.1"),
        lambda: memory.add_working_step("response", error={"type": "E"}),
    ):
        with pytest.raises(SessionError, match=r"turn 1 .* has its answer already, a1"):
            act()
    assert memory.add_response("assistant", "Hello.", run="trip.1", message_id="a1").turn == 1
    assert len(memory.get_messages()) == 2


def test_writers_see_each_other_when_they_write_or_look(place: Place, sessions: Sessions) -> None:
    """Two that have a session open add behind each other, and `refresh` shows what is new."""
    one, other = sessions.create("trip"), sessions_at(place.address).open("trip")
    one.add_response("user", "A.")
    other.add_response("user", "B.")
    assert [m.content for m in one.get_messages()] == ["A."]
    assert [m.content for m in other.get_messages()] == ["A.", "B."]
    assert [m.turn for m in other.get_messages()] == [1, 2]
    one.refresh()
    assert held(one) == held(other)


def test_threads_write_side_by_side(sessions: Sessions) -> None:
    """Every message of eight threads is kept once."""
    memory = sessions.create("trip")
    with ThreadPoolExecutor(8) as threads:
        for _ in threads.map(lambda n: memory.add_working_step("plan", str(n)), range(100)):
            pass
    found = memory.get_steps()
    assert sorted(int(one.content) for one in found) == list(range(100))
    assert sessions.open("trip").get_steps() == found


def test_clearing_is_a_new_beginning(sessions: Sessions) -> None:
    """Nothing from before is seen, turns count on, and known ids stay known."""
    memory = talked(sessions.create("trip"))
    first = memory.get_messages()[0]
    memory.clear()
    assert held(memory)[:3] == ((), (), ())
    assert memory.add_response("user", "Anew.").turn == 3
    memory.add_fact("The user's name is Ada.")
    assert held(sessions.open("trip")) == held(memory)
    with pytest.raises(SessionError, match="something else under the id"):
        memory.add_response("user", "X.", message_id=first.id)


def test_what_comes_in_is_cleaned_and_masked_and_says_so(sessions: Sessions) -> None:
    """Surrogates become text or characters, keys are masked, control characters stay."""
    memory = sessions.create("trip")
    given = "a\ud83d b\ud83d\ude00 c\x85\x00\x1b\r\n sk-abcdefghijklmnopqrstuv"
    one = memory.add_response("user", given, message_id="m1")
    assert one.content == "a\ufffd b\N{GRINNING FACE} c\x85\x00\x1b\r\n [masked]"
    assert one.changed == ("cleaned", "masked")
    assert memory.add_response("user", given, message_id="m1") == one
    assert memory.add_working_step("execute", "\x00\x85 fine").changed == ()
    step = memory.add_working_step("plan", "p", intent="\udc80", error={"message": "\udc80"})
    assert (step.intent, step.error) == ("\ufffd", {"message": "\ufffd"})
    assert held(sessions.open("trip")) == held(memory)


def test_a_hook_has_its_say_before_anything_is_kept(place: Place) -> None:
    """What it takes out is neither written nor remembered; where it fails nothing is written."""

    def redact(text: str) -> str:
        if "boom" in text:
            raise ValueError("no")
        return re.sub(r"\w+@\w+", "[address]", text)

    memory = sessions_at(place.address, redact=redact).create("trip")
    assert memory.add_response("user", "To ann@home.").content == "To [address]."
    assert memory.add_fact("Has bob@work.").changed == ("redacted",)
    before = held(memory)
    with pytest.raises(SessionError, match=r"a message cannot be written: .* raised ValueError"):
        memory.add_response("assistant", "boom")
    assert place.kind == "postgresql" or b"ann@" not in place.raw()
    assert held(sessions_at(place.address).open("trip")) == before


@pytest.mark.parametrize("given", ["", " \n\t", None, 5, b"x"])
def test_a_message_is_text_that_says_something(sessions: Sessions, given: Any) -> None:
    """Blank text and what is no text is refused, and nothing is written."""
    memory = sessions.create("trip")
    with pytest.raises(StepError, match=r"a message is (blank|text, not)"):
        memory.add_response("assistant", given)
    with pytest.raises(StepError, match=r"a fact is (blank|text, not)"):
        memory.add_fact(given)
    assert held(sessions.open("trip")) == ((), (), (), 0)


@pytest.mark.parametrize(
    ("act", "told"),
    [
        (lambda m: m.add_response("usr", "x"), r"role 'usr' \(did you mean 'user'\?\)"),
        (lambda m: m.add_working_step("response", "x"), "an answer is a message"),
        (lambda m: m.add_working_step("response"), "an answer is a message"),
        (lambda m: m.add_working_step("plan", atempt=1), r"no 'atempt' \(did you mean 'attempt'"),
        (lambda m: m.add_working_step("plan", attempt="1"), "attempt='1' is invalid"),
        (lambda m: m.add_working_step("plan", error="x"), "error='x' is invalid"),
        (lambda m: m.add_working_step("plan", 5), "a step's content is text, not int"),
        (lambda m: m.add_working_step("plan", turn=3), "has no turn 3; the last one is 1"),
        (lambda m: m.add_fact("x", turn=-1), "has no turn -1; the last one is 1"),
        (lambda m: m.add_response("assistant", "x", message_id=""), "no id for a message or step"),
        (
            lambda m: m.add_response("assistant", "x", message_id="a\x07"),
            "without control characters",
        ),
        (
            lambda m: m.add_response("assistant", "x", message_id="a" * 1001),
            "Give 1 to 1000 characters",
        ),
        (lambda m: m.get_messages(last=-1), "last is how many of the last, 0 or more, not -1"),
        (lambda m: m.get_facts(last=-1), "last is how many"),
    ],
)
def test_what_does_not_fit_is_told(tmp_path: Path, act: Any, told: str) -> None:
    """A wrong word, number or field is refused with the way out, and nothing is written."""
    memory = FileSessions(tmp_path).create("trip")
    memory.add_response("user", "Hi.")
    before = held(memory)
    with pytest.raises((StepError, SessionError), match=told):
        act(memory)
    assert held(FileSessions(tmp_path).open("trip")) == before


def test_an_unknown_step_type_is_told(tmp_path: Path) -> None:
    """Only the four types of steps are taken."""
    memory = FileSessions(tmp_path).create("trip")
    with pytest.raises(ValueError, match="'guess' is not a valid StepType"):
        memory.add_working_step("guess", "x")


def test_sessions_are_listed_newest_first(sessions: Sessions) -> None:
    """Each with its title, and one that cannot be read with its problem."""
    for name in ("one", "two", "three"):
        sessions.create(name).add_response("user", f"Hello  from\n{name}.")
    memory = sessions.open("one")
    memory.add_response("assistant", "x" * 20_000)
    found = sessions.sessions()
    assert [(one.session_id, one.title) for one in found] == [
        ("one", "Hello from one."),
        ("three", "Hello from three."),
        ("two", "Hello from two."),
    ]
    assert found[0] == SessionBrief(
        session_id="one",
        created_at=memory.created_at,
        updated_at=memory.updated_at,
        title="Hello from one.",
    )


def test_an_empty_place_has_no_sessions(place: Place, sessions: Sessions) -> None:
    """Asking makes nothing, and the error for a session says that there are none."""
    assert sessions.sessions() == []
    with pytest.raises(SessionError, match=r"there is no session 'trip' in .*; there are none yet"):
        sessions.open("trip")
    assert not Path(place.address).exists() or place.kind == "postgresql"


def test_a_session_is_begun_once(sessions: Sessions) -> None:
    """A second one of the same id is refused, and a misspelt id is told with its neighbours."""
    talked(sessions.create("trip"))
    with pytest.raises(SessionError, match=r"there is a session 'trip' in .* already; open it"):
        sessions.create("trip")
    assert sessions.open("trip", create=True).turn == 2
    with pytest.raises(SessionError, match=r"no session 'tripp' .*did you mean 'trip'"):
        sessions.open("tripp")


def test_a_deleted_session_is_gone(place: Place, sessions: Sessions) -> None:
    """With it its text; another of its id is a new one, which an old view of it does not touch."""
    memory = talked(sessions.create("trip"))
    sessions.create("other").add_response("user", "Stay.")
    sessions.delete("trip")
    assert [one.session_id for one in sessions.sessions()] == ["other"]
    if place.kind == "files":  # a database keeps the bytes of a deleted row for a while
        assert b"Ada" not in place.raw()
    with pytest.raises(SessionError):
        memory.add_response("assistant", "More.")
    with pytest.raises(SessionError):
        TurnRunner(Step("Answer."), model="offline").run(memory, "Hello?")
    sessions.create("trip").add_response("user", "Anew.")
    with pytest.raises(SessionError, match=r"was replaced"):
        memory.add_response("assistant", "More.")
    assert [one.content for one in sessions.open("trip").get_messages()] == ["Anew."]
    with pytest.raises(SessionError, match="there is no session 'gone'"):
        sessions.delete("gone")


def test_a_session_is_held_for_a_turn(place: Place, sessions: Sessions) -> None:
    """A second turn and a deletion are refused while one runs; single writes go on."""
    memory = sessions.create("trip")
    other = sessions_at(place.address)
    with memory.holding_turn():
        with (
            pytest.raises(SessionError, match=r"turn.*is being written by"),
            other.open("trip").holding_turn(),
        ):
            pass
        with pytest.raises(SessionError, match=r"turn.*is being written by"):
            other.delete("trip")
        other.open("trip").add_fact("A fact.")
    with other.open("trip").holding_turn():
        pass


def test_opening_makes_a_session_where_there_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`open_session` goes on with a session or begins it, and without an id takes a new one."""
    monkeypatch.chdir(tmp_path)
    open_session("trip").add_response("user", "Hi.")
    assert open_session("trip").turn == 1
    new = open_session()
    assert re.fullmatch(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", new.session_id)
    assert {one.name for one in (tmp_path / "sessions").iterdir()} == {"trip", new.session_id}
    assert repr(open_session("trip")).endswith("journal.jsonl, 1 turns>")


def test_times_are_those_of_the_entries(sessions: Sessions) -> None:
    """A session was updated when its newest entry was made, and a step may say when that was."""
    memory = sessions.create("trip")
    assert memory.updated_at == memory.created_at
    made = datetime(2020, 1, 1, tzinfo=UTC)
    assert memory.add_working_step("plan", "p", made_at=made).created_at == made
    last = memory.add_response("user", "Hi.")
    assert memory.updated_at == last.created_at
    assert isinstance(memory.past, SessionState)


def test_a_response_has_a_role_and_a_content(sessions: FileSessions) -> None:
    """The role comes first; a role alone, a text alone and the other order add nothing."""
    memory = sessions.create("trip")
    act: Any = memory.add_response
    assert act("user", "Hi.").role == "user"
    assert act(role="assistant", content="Hello.").content == "Hello."
    for arguments in (("user",), ("Hi.",)):
        with pytest.raises(TypeError, match="content"):
            act(*arguments)
    with pytest.raises(StepError, match=r"role 'Hi\.' is none of .*the role comes first"):
        act("Hi.", "user")
    assert len(memory.get_messages()) == 2


def test_working_steps_are_work_alone(sessions: FileSessions) -> None:
    """Answers and errors are steps of a turn, and no working steps."""
    memory = sessions.create("trip")
    memory.add_response("user", "Hi.")
    memory.add_working_step("plan", "Say hello.")
    memory.add_working_step("response", error={"type": "ValueError", "message": "no"})
    memory.add_response("assistant", "Hello.")
    assert [one.type for one in memory.get_working_steps()] == ["plan"]
    assert memory.get_working_steps(type="response") == ()
    assert [one.type for one in memory.get_steps()] == ["plan", "response", "response"]
    assert memory.get_steps(category="working") == memory.get_working_steps()


def test_a_step_has_metadata(sessions: FileSessions) -> None:
    """JSON data is kept as a copy, found again, exported, and its texts are treated as all."""
    memory = sessions.create("trip")
    given: dict[str, Any] = {"skill": "sums", "tries": [1, {"ok": True}], "half": "\ud83d"}
    step = memory.add_working_step("plan", "Sum.", given)
    given["tries"].append(2)
    kept = {"skill": "sums", "tries": [1, {"ok": True}], "half": "\ufffd"}
    assert step.metadata == kept
    assert sessions.open("trip").get_working_steps()[0].metadata == kept
    assert "skill: sums" in memory.export()
    secret = "sk-ant-api03-" + "a" * 90
    assert memory.add_working_step("plan", metadata={"key": secret}).metadata == {"key": "[masked]"}
    for bad in ({"when": datetime.now(UTC)}, {"n": float("nan")}, ["a"]):
        with pytest.raises(StepError, match="metadata"):
            memory.add_working_step("plan", metadata=bad)  # type: ignore[arg-type]


def test_an_execution_says_what_it_printed_apart(sessions: FileSessions) -> None:
    """Stdout and stderr come back from its content; a plain text is stdout."""
    memory = sessions.create("trip")
    content = execution_content("1\n", "Traceback: é\n")
    step = memory.add_working_step("execute", content, exit_code=1)
    assert step.printed == ("1\n", "Traceback: é\n")
    for text in ("1\n", "{}", "[1]", '{"stdout": "a", "n": 1}', "{"):
        assert memory.add_working_step("execute", text).printed == (text, "")
