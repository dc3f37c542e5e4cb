"""Import: YAML that was exported, written by hand or is of an older time; faults with lines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mergepoint import SessionError
from mergepoint.session.session_memory import RECENT, Sessions
from mergepoint.session.session_store import FileSessions
from mergepoint.session.yaml_import import import_session


def written(folder: Path, text: str) -> Path:
    """Write a file, and give its path."""
    path = folder / "old.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_plain_file_is_a_session(tmp_path: Path, sessions: Sessions) -> None:
    """Role and text suffice; turns are counted, times are that of the import."""
    path = written(
        tmp_path,
        """\
# by hand
messages:
  - {role: human, content: Hello.}
  - role: ai
    content: |
      Hi
      there.
  - {role: user, content: 'No. 2', created_at: 2024-01-31 09:30}
facts:
  - The user is Ada.
  - {content: Likes rain., turn: 2}
steps:
  - {type: codegen, turn: 1, content: print(1), attempt: 2}
  - {type: execute, exit_code: 0}
""",
    )
    memory = import_session(path, session_id="old", sessions=sessions)
    assert [(one.role, one.content, one.turn) for one in memory.get_messages()] == [
        ("user", "Hello.", 1),
        ("assistant", "Hi\nthere.\n", 1),
        ("user", "No. 2", 2),
    ]
    assert memory.get_messages()[2].created_at.isoformat() == "2024-01-31T09:30:00+00:00"
    assert [(one.content, one.turn) for one in memory.get_facts()] == [
        ("The user is Ada.", 0),
        ("Likes rain.", 2),
    ]
    assert [(one.type.value, one.turn) for one in memory.get_steps()] == [
        ("codegen", 1),
        ("response", 1),
        ("execute", 2),
    ]
    assert memory.unfinished is None
    again = sessions.open("old")
    assert again.export() == memory.export()
    assert again.add_response("assistant", "Yes.").turn == 2


def test_the_id_is_the_one_given_or_that_of_the_file(tmp_path: Path) -> None:
    """An id that was used is refused, and one that is not safe as well."""
    sessions = FileSessions(tmp_path / "sessions")
    path = written(tmp_path, "session_id: trip\nmessages: []\n")
    assert import_session(path, sessions=sessions).session_id == "trip"
    assert import_session(path, session_id="other", sessions=sessions).session_id == "other"
    with pytest.raises(SessionError, match="there is a session 'trip'"):
        import_session(path, sessions=sessions)
    path = written(tmp_path, "session_id: ../trip\nmessages: []\n")
    with pytest.raises(SessionError, match="no id for a session"):
        import_session(path, sessions=sessions)
    path = written(tmp_path, "messages: []\n")
    assert len(import_session(path, sessions=sessions).session_id) == 36


def test_every_fault_is_told_with_its_line(tmp_path: Path) -> None:
    """Nothing is imported where anything is wrong."""
    path = written(
        tmp_path,
        """\
messages:
  - role: usr
    content: 5
  - role: user
    contnt: x
    content: " "
  - content: y
    created_at: soon
    role: user
    turn: one
facts: [a, {content: 3}]
steps:
  - {type: guess}
  - {type: execute, exit_code: "0"}
sesion_id: x
""",
    )
    with pytest.raises(SessionError) as raised:
        import_session(path, sessions=tmp_path / "sessions")
    lines = str(raised.value).splitlines()
    assert lines[0] == f"{path} has 10 faults, and nothing of it was imported:"
    told = [line.removeprefix(f"  {path}:") for line in lines[1:]]
    assert len(told) == 10
    for line, what in (
        ("2", "role: input should be 'user', 'assistant' or 'system'"),
        ("3", "content: input should be a valid string"),
        ("5", "no key 'contnt' here (did you mean 'content'?)"),
        ("6", "content: it is blank; write some text"),
        ("8", "created_at: invalid isoformat"),
        ("10", "turn: input should be a valid integer"),
        ("11", "facts.1.content: input should be a valid string"),
        ("13", "type: input should be 'plan', 'codegen', 'execute', 'decision' or 'response'"),
        ("14", "exit_code: input should be a valid integer"),
        ("15", "no key 'sesion_id' here (did you mean 'session_id'?)"),
    ):
        assert [one for one in told if one.startswith(f"{line}:") and what in one.replace("I", "i")]
    assert not (tmp_path / "sessions").exists()


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("messages:\n- {id: a, role: user, content: x}\n- {id: a, role: user, content: y}\n",
         ":3: its id or content is that of line 2"),
        ("messages:\n- {role: user, content: x, turn: 1}\n- {role: user, content: y, turn: 1}\n",
         ":3: turn 1 has a user's message already"),
        ("messages: []\nfacts:\n- Likes rain.\n- likes  rain\n", ":4: its id or content is that"),
        ("messages: []\nsteps:\n- {type: response}\n", ":3: a response names its `message`"),
        ("messages: []\nsteps:\n- {type: response, message: x}\n", "no answer has the id 'x'"),
        ("messages: []\nomitted: {messages: 7}\n", "this snapshot leaves out 7 messages; export"),
        ("messages: &a []\n", ":1: anchor &a is not allowed"),
        ("messages:\n- {role: user, content: !!python/name:os.system }\n", "not allowed|not YAML"),
        ("messages:\n- role: user\n  content: a: b\n", "old.yaml:3: this is not YAML"),
        ("messages: {}\n", "messages: input should be a valid list"),
        ("- a\n", "input should be a valid dictionary"),
        ("", "the document is empty"),
    ],
)  # fmt: skip
def test_what_cannot_be_a_session_is_told(tmp_path: Path, text: str, told: str) -> None:
    """Ids that stand twice, records of nothing, partial snapshots, and what is no plain YAML."""
    path = written(tmp_path, text)
    with pytest.raises(SessionError, match=told):
        import_session(path, sessions=tmp_path / "sessions")
    assert not (tmp_path / "sessions").exists()


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    """The error names the file."""
    with pytest.raises(SessionError, match=r"cannot import .*no\.yaml"):
        import_session(tmp_path / "no.yaml", sessions=tmp_path)


def test_texts_are_cleaned_and_masked_on_import(tmp_path: Path) -> None:
    """An import is an entry like any other, and a hook that fails is told with the line."""
    path = written(tmp_path, "messages:\n- {role: user, content: Use sk-abcdefghijklmnopqrst.}\n")

    def refuse(text: str) -> str:
        raise ValueError("no")

    memory = import_session(path, sessions=FileSessions(tmp_path / "a"))
    [message] = memory.get_messages()
    assert (message.content, message.changed) == ("Use [masked].", ("masked",))
    with pytest.raises(SessionError, match=r"old\.yaml:2: a message cannot be written: .*no"):
        import_session(path, sessions=FileSessions(tmp_path / "b", redact=refuse))


def test_a_whole_snapshot_can_be_imported_and_a_partial_one_not(tmp_path: Path) -> None:
    """The YAML beside a short session is its export with a comment."""
    sessions = FileSessions(tmp_path)
    memory = sessions.create("s")
    memory.add_response("user", "Hi.", opens=True)
    memory.add_response("assistant", "Hello.", run="s.1", path="a/b")
    snapshot = tmp_path / "s" / "session.yaml"
    again = import_session(snapshot, session_id="t", sessions=sessions)
    answers: list[Any] = [(one.content, one.run, one.path) for one in again.get_messages()]
    assert answers == [("Hi.", "", ""), ("Hello.", "s.1", "a/b")]
    memory.add_facts(f"Fact {number}." for number in range(RECENT + 1))
    with pytest.raises(SessionError, match="this snapshot leaves out 1 facts"):
        import_session(snapshot, session_id="u", sessions=sessions)


DOCUMENTED = """\
session_id: doc
messages:
- {role: user, content: Sum it., timestamp: "2026-01-31T09:30:00Z"}
- {role: assistant, content: It is 3., timestamp: "2026-01-31T09:30:09Z"}
- {role: user, content: And twice?, timestamp: "2026-01-31T09:31:00Z"}
- {role: assistant, content: It is 6., timestamp: "2026-01-31T09:31:09Z"}
working_steps:
- timestamp: "2026-01-31T09:30:01Z"
  step_type: plan
  category: working
  content: {intent: sum, steps: [add]}
  metadata: {skill: sums, attempts: 1}
- timestamp: "2026-01-31T09:30:02Z"
  step_type: execute
  category: working
  content: {stdout: "3\\n", stderr: ""}
- {timestamp: "2026-01-31T09:30:09Z", step_type: response, category: response, content: It is 3.}
- {timestamp: "2026-01-31T09:31:01Z", step_type: codegen, category: working, content: print(6)}
facts:
- {fact: The user sums., source_turn: 1, timestamp: "2026-01-31T09:30:10Z"}
"""


def test_the_schema_of_the_documents_is_read(tmp_path: Path) -> None:
    """timestamp, step_type, category, metadata, fact, source_turn; steps by the time of turns."""
    file = tmp_path / "doc.yaml"
    file.write_text(DOCUMENTED, encoding="utf-8")
    memory = import_session(file, sessions=tmp_path / "sessions")
    steps = memory.get_steps()
    assert [(one.type.value, one.turn) for one in steps] == [
        ("plan", 1),
        ("execute", 1),
        ("response", 1),
        ("codegen", 2),
        ("response", 2),
    ]
    plan, run, said, *_ = steps
    assert plan.metadata == {"skill": "sums", "attempts": 1}
    assert plan.content == '{"intent": "sum", "steps": ["add"]}'
    assert run.printed == ("3\n", "")
    assert said.message == memory.get_messages()[1].id
    assert plan.created_at.isoformat() == "2026-01-31T09:30:01+00:00"
    [fact] = memory.get_facts()
    assert (fact.content, fact.turn) == ("The user sums.", 1)
    (tmp_path / "again.yaml").write_text(memory.export(), encoding="utf-8")
    again = import_session(tmp_path / "again.yaml", session_id="doc2", sessions=tmp_path / "b")
    assert [one.metadata for one in again.get_steps()] == [one.metadata for one in steps]


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("- {step_type: plann, content: x}", "steps.0.type|steps.0.step_type"),
        ("- {step_type: response, content: Nobody said this.}", "content of an answer"),
        ("- {step_type: plan, metdata: {a: 1}}", r"no key 'metdata' here \(did you mean 'metadata"),
        ("- {step_type: plan, metadata: [1]}", "steps.0.metadata"),
    ],
)
def test_a_fault_in_the_schema_of_the_documents_is_told(
    line: str, problem: str, tmp_path: Path
) -> None:
    """With file and line, and nothing is imported."""
    file = tmp_path / "doc.yaml"
    file.write_text(f"messages: []\nsteps:\n{line}\n", encoding="utf-8")
    with pytest.raises(SessionError, match=problem):
        import_session(file, sessions=tmp_path / "sessions")
