"""Hostile input: odd types, texts, paths and files end in an error of ours, never in a bare one.

Errors of mergepoint keep built-in parents, so that what is asked here is their own class.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.apps.command import command

from mergepoint import Block, Budget, Call, Gate, Loop, Step, Template, compile_graph
from mergepoint.core.errors import MergepointError
from mergepoint.engine.interpreter import interpret
from mergepoint.engine.run_tree import run_generation
from mergepoint.journal.checked_lines import JournalError, encode
from mergepoint.journal.file_journal import FileStore
from mergepoint.targets import find_target
from mergepoint.testing.scripted_model import ScriptedModel
from mergepoint.tree.tree_yaml import from_yaml

ODD_TEXT = st.sampled_from(
    ["", " ", "\0", "\udcff", "\ud83d", "..", ".", "/", "a/b", "-x", "last", "x" * 5000, "\x1b[2J"]
) | st.text(max_size=12)
ODD = (
    st.none()
    | st.booleans()
    | st.integers(-3, 3)
    | st.floats()
    | ODD_TEXT
    | st.binary(max_size=4)
    | st.lists(st.integers(), max_size=2)
    | st.dictionaries(st.text(max_size=3), st.integers(), max_size=2)
    | st.builds(object)
)
BRIEF = settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
STEP = Step("Say.", name="say")
FIELDS: dict[Callable[..., Any], tuple[str, ...]] = {
    Step: ("prompt", "name", "merge", "temperature", "params", "model", "system", "schema"),
    Call: ("target", "name", "merge", "args", "capture_key", "policy"),
    Block: ("nodes", "name", "merge", "parallel", "inputs", "budget", "meta", "capture_key"),
    Loop: ("nodes", "until", "max_iterations", "on_exhausted", "may_skip", "budget"),
    Gate: ("node", "name", "merge", "question", "decide", "on_reject", "capture_key"),
    Budget: ("usd", "tokens", "calls", "seconds", "on_exhausted"),
    Template: ("text", "defaults"),
}
WHOLE: dict[Callable[..., Any], dict[str, Any]] = {
    Step: {"prompt": "x"},
    Call: {"target": len},
    Block: {"nodes": [STEP]},
    Loop: {"nodes": [STEP], "until": "x"},
    Gate: {"node": STEP},
    Budget: {},
    Template: {"text": "x"},
}


def refused(act: Callable[[], Any]) -> None:
    """Do something that may be refused, by an error of ours alone."""
    with contextlib.suppress(MergepointError):
        act()


@BRIEF
@given(data=st.data(), kind=st.sampled_from([*FIELDS]))
def test_values_of_any_type_are_taken_or_refused(data: st.DataObject, kind: Any) -> None:
    """Every field of every node says what does not fit, whatever is put into it."""
    field = data.draw(st.sampled_from(FIELDS[kind]))
    value = data.draw(ODD)
    refused(lambda: kind(**{**WHOLE[kind], field: value}))


@BRIEF
@given(data=st.data())
def test_runs_take_or_refuse_any_argument(data: st.DataObject, tmp_path: Path) -> None:
    """What is given to a run is checked before it begins."""
    names = ("tree", "model", "inputs", "messages", "budget", "prices", "view", "form", "resume")
    name = data.draw(st.sampled_from(names))
    value: Any = data.draw(ODD)
    whole: dict[str, Any] = {"tree": STEP, "model": ScriptedModel(["x"]), "runs": tmp_path / "runs"}
    given_: dict[str, Any] = {**whole, name: value}
    refused(lambda: run_generation(given_.pop("tree"), **given_))
    graph: dict[str, Any] = {
        "model": ScriptedModel(["x"]),
        **({name: value} if name in ("model", "form") else {}),
    }
    refused(lambda: compile_graph(value if name == "tree" else STEP, **graph))
    refused(lambda: interpret(value if name == "tree" else STEP, model=ScriptedModel(["x"])))


@BRIEF
@given(text=ODD_TEXT)
def test_names_and_texts_of_any_kind_are_taken_or_refused(text: str, tmp_path: Path) -> None:
    """Targets, run ids, stores and YAML may hold any text."""
    store = FileStore(tmp_path / "runs")
    refused(lambda: from_yaml(text))
    refused(lambda: find_target(text))
    for act in (store.read, store.has, store.held, store.open, store.folder_of):
        refused(lambda act=act: act(text))  # type: ignore[misc]
    refused(lambda: run_generation(STEP, model="offline", runs=tmp_path, resume=text))
    refused(lambda: run_generation(STEP, model=text))


@pytest.mark.first_case
@BRIEF
@given(words=st.lists(ODD_TEXT.filter(lambda text: "\0" not in text), min_size=1, max_size=3))
@pytest.mark.parametrize(
    "start",
    [("run",), ("resume",), ("show"), ("show",), ("graph",), ("runs", "check")],
    ids="-".join,
)
def test_the_command_refuses_any_words(words: list[str], start: tuple[str, ...]) -> None:
    """It ends with a code that means something, and never in words about a bug of its own."""
    run = command(*start, *words)
    assert run.code in (0, 2, 3, 130)
    assert "this should not happen" not in run.err


def header(**about: Any) -> bytes:
    """Return the first line of a journal whose checksum is right, with something odd in it."""
    plain = {
        "format": "mergepoint.journal/1",
        "run_id": "odd",
        "created_at": "2026-01-01T00:00:00+00:00",
        "seed": 0,
        "inputs": {},
        "messages": [],
        "tree": {"path": "p", "kind": "step", "merge": "none"},
        "requests": {},
    }
    return encode({**plain, **about})


HOSTILE = [
    b"",
    b"\0" * 64,
    b"00000000 {}\n",
    header(tree={}),
    header(tree={"path": "p", "kind": "block", "merge": "none"}),
    header(tree={"path": "p", "kind": "loop", "merge": "none", "nodes": [], "until": None}),
    header(tree={"path": [], "kind": {}, "merge": 3}),
    header(created_at="yesterday"),
    header(created_at="0001-01-01T00:00:00+23:59"),
    header(inputs=[]),
    header(requests=7, meta=[]),
    header(meta={"command": {"format": []}}),
    header(messages=[{"type": "human"}]),
    header(masked=["inputs"], hidden={"names": 3}),
    header() + encode({"path": "p"}),
    header() + encode({"path": 3, "kind": [], "attempts": {}}),
]


@pytest.mark.first_case
@pytest.mark.parametrize("content", HOSTILE, ids=range(len(HOSTILE)))
def test_a_hostile_journal_hides_no_other_run(content: bytes) -> None:
    """Whatever a file holds, the other runs are listed, and each command says what is wrong."""
    assert command("run", "essay.py", "-i", "topic=x", "--run-id", "good", "-q").code == 0
    folder = Path("runs/odd")
    folder.mkdir()
    (folder / "journal.jsonl").write_bytes(content)
    listed = command("runs", "list")
    assert listed.code == 0
    assert "good" in listed.out
    states = {run["run_id"]: run["state"] for run in command("runs", "list", "--json").data}
    assert states["good"] == "done"
    for words in (("show"), ("show",), ("runs", "check"), ("resume",), ("runs", "export")):
        told = command(*words, "odd")
        assert "this should not happen" not in told.err, (words, told.err)


def nested(depth: int) -> dict[str, Any]:
    """Return an outline as deep as no tree is."""
    shape: dict[str, Any] = {"path": "p", "kind": "step", "merge": "none"}
    for _ in range(depth):
        shape = {"path": "p", "kind": "block", "merge": "none", "nodes": [shape]}
    return shape


def test_a_transcript_deeper_than_any_tree_is_damaged() -> None:
    """A file that would end the interpreter's stack is one damaged run among others."""
    folder = Path("runs/deep")
    folder.mkdir(parents=True)
    deep = '{"tree":' * 50_000 + "1" + "}" * 50_000
    (folder / "transcript.json").write_text(deep, encoding="utf-8")
    (folder.parent / "less").mkdir()
    odd = json.loads(header(tree=nested(60))[9:])
    (folder.parent / "less" / "transcript.json").write_text(json.dumps(odd), encoding="utf-8")
    listed = command("runs", "list")
    assert (listed.code, listed.out.count("damaged")) == (0, 2)


def test_what_is_no_file_is_refused_with_its_path(tmp_path: Path) -> None:
    """A pipe, a folder and a name that is too long are errors of the journal, and nothing hangs."""
    store = FileStore(tmp_path)
    for name in ("pipe", "folder"):
        (tmp_path / name).mkdir()
    os.mkfifo(tmp_path / "pipe" / "journal.jsonl")
    (tmp_path / "folder" / "journal.jsonl").mkdir()
    for name in ("pipe", "folder", "x" * 300):
        for act in (store.read, store.open, store.has, store.held):
            try:
                act(name)
            except JournalError as error:
                assert name in str(error)  # noqa: PT017  (`has` and `held` may also answer)
        with pytest.raises(JournalError, match=name):
            store.read(name)


def test_a_folder_that_cannot_be_written_is_told_with_its_path(tmp_path: Path) -> None:
    """A run whose files have no place says where, before its first call."""
    place = tmp_path / "file"
    place.write_text("x", encoding="utf-8")
    model = ScriptedModel(["x"])
    with pytest.raises(JournalError, match=str(place)):
        run_generation(STEP, model=model, runs=place)
    assert len(model.calls) == 0


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux has a device that is full")
def test_a_full_disk_is_an_error_of_the_journal(tmp_path: Path) -> None:
    """What cannot be written is told with its path, and not as a bare OSError."""
    from mergepoint.journal.transcript import read_transcript, write_transcript

    done = run_generation(STEP, model=ScriptedModel(["x"]), runs=tmp_path)
    with pytest.raises(JournalError, match=r"cannot write /dev/full/t\.json"):
        write_transcript(done.transcript, Path("/dev/full/t.json"))
    os.mkfifo(tmp_path / "pipe.json")
    with pytest.raises(MergepointError, match=r"pipe\.json holds no transcript"):
        read_transcript(tmp_path / "pipe.json")


@pytest.mark.parametrize("target", ["self_ask", "research", "graphs/research"])
def test_options_of_trees_are_refused_for_a_recipe(target: str) -> None:
    """The message names the options that are for the other kind, and nothing is run."""
    for words, names in ((("--set", "a:b=1"), "--set"), (("--answer", "a=approve"), "--answer")):
        run = command("run", target, "x", *words)
        assert run.code == 2
        assert f"{names}: only for trees, and {target!r} is a recipe" in run.err
    assert "is a recipe. Pass its items" in command("run", target, "-i", "a=b").err
    assert "only recipes take items" in command("run", "flat_chat", "x").err
    assert command("graph", target).code == 0


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("opnai:gpt-5-mini", "there is no provider 'opnai' (did you mean 'openai'?)"),
        ("gpt-5-mini", "did you mean 'openai:gpt-5-mini'?"),
        ("claude-x", "did you mean 'anthropic:claude-x'?"),
        ("ofline", "did you mean 'offline'?"),
    ],
)
def test_a_typo_in_a_provider_names_the_likely_one(model: str, said: str) -> None:
    """The name that was probably meant is in the error."""
    run = command("run", "essay.py", "-i", "topic=x", "--model", model)
    assert run.code == 2
    assert said in run.err


def test_a_server_that_is_down_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error and the record hold the address, and nothing that is secret in it."""
    monkeypatch.setenv("OPENAI_API_KEY", "x")
    address = "http://127.0.0.1:9/v1"
    words = ("--model", "openai:test", "--base-url", address, "--run-id", "r")
    run = command("run", "essay.py", "-i", "topic=x", *words)
    assert run.code == 1
    said = "no answer from http://127.0.0.1:9/v1/chat/completions: is the server running"
    assert said in run.err
    assert said in command("show", "r").out
