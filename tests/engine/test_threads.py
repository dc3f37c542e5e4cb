"""parallel="threads": concurrent where nobody can tell, with the meaning of a sequence."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from langchain_core.messages import BaseMessage
from langchain_core.outputs import ChatResult
from tests.engine.engines import Echo, Engine

from mergepoint.core.merge import State
from mergepoint.engine.callbacks import Recorder
from mergepoint.journal.replay import replay
from mergepoint.testing.scripted_model import ScriptedModel
from mergepoint.tree.leaves import Step
from mergepoint.tree.nodes import Block, Gate, Node, thread_groups
from mergepoint.tree.policy import Budget
from mergepoint.tree.prompts import Template, reads
from mergepoint.tree.tree_yaml import from_yaml, to_yaml
from mergepoint.tree.validate import check


def voice(name: str, **fields: Any) -> Step:
    """Return a step that keeps its response as an output alone."""
    fields = {"merge": "none", "capture_key": f"k.{name}", **fields}
    return Step(fields.pop("prompt", f"Voice {name}."), name=name, **fields)


def block(*nodes: Node, **fields: Any) -> Block:
    """Return a block of threads."""
    return Block(nodes, name="b", parallel="threads", **fields)


READER = voice("reader", prompt=Template("Of {{ k.a }}."))
ENCLAVE = block(
    Step("Draft.", name="draft"),
    voice("a"),
    voice("b"),
    READER,
    voice("c", prompt=Template("{{ k.b }}")),
    Step(Template("{{ k.a }} {{ k.c }}"), name="consensus", merge="last_response"),
)


def groups(tree: Block) -> list[list[int]]:
    """Return the positions that run together."""
    return [list(group) for group in thread_groups(tree)]


@reads("k.z", defaults={"k.z": ""})
def declared(ctx: Any) -> str:
    """Return a prompt that reads no voice."""
    return "Go on."


@pytest.mark.parametrize(
    ("tree", "expected"),
    [
        (ENCLAVE, [[0], [1, 2], [3, 4], [5]]),
        (block(voice("a"), voice("b", merge="all_messages"), voice("c")), [[0], [1], [2]]),
        (block(voice("a"), voice("b", prompt=lambda ctx: "x"), voice("c")), [[0], [1, 2]]),
        (block(voice("a"), voice("b", prompt=declared)), [[0, 1]]),
        (block(voice("a", capture_key=None), voice("b", prompt=lambda ctx: "x")), [[0, 1]]),
        (block(voice("a"), Gate(voice("b"), merge="none"), voice("c")), [[0], [1], [2]]),
        (block(voice("a"), Block([READER], merge="none"), voice("c")), [[0], [1, 2]]),
        (block(voice("a"), voice("b"), budget=Budget(calls=1, on_exhausted="keep")), [[0], [1]]),
        (Block([voice("a"), voice("b")]), [[0], [1]]),
    ],
)
def test_neighbors_that_cannot_tell_run_together(tree: Block, expected: list[list[int]]) -> None:
    """merge="none", no reads of each other, no gates, no budget that goes on without some."""
    assert groups(tree) == expected


def test_threads_mean_what_a_sequence_means(engine: Engine) -> None:
    """Messages, outputs, what each call saw, records and replay are those of a plain block."""
    found = []
    for parallel in (False, "threads"):
        tree = Block(ENCLAVE.nodes, name="b", parallel=parallel)
        recorder = Recorder()
        end = engine(tree, Echo(), recorder=recorder)
        records = sorted(recorder.journal.records, key=lambda record: record.path)
        state = replay(records, tree, base=State()).state
        assert state is not None
        assert list(state.messages) == end.messages
        found.append((end, [(one.path, one.prompt, one.context) for one in records]))
    assert found[0] == found[1]
    assert [path for path, _, _ in found[0][1]] == sorted(
        f"b/{name}" for name in ("a", "b", "c", "consensus", "draft", "reader")
    )


class Meeting(Echo):
    """A model whose voices wait for each other."""

    barrier: Any = None

    def _generate(self, messages: list[BaseMessage], *args: Any, **kwargs: Any) -> ChatResult:
        if str(messages[-1].text).startswith("Voice"):
            self.barrier.wait(timeout=60)
        return super()._generate(messages)


def test_threads_run_at_the_same_time(engine: Engine) -> None:
    """Three voices that wait for each other come to an end."""
    tree = block(voice("a"), voice("b"), voice("c"), Step(Template("{{ k.a }}"), name="end"))
    end = engine(tree, Meeting(barrier=threading.Barrier(3)))
    assert list(end.outputs) == ["k.a", "k.b", "k.c"]
    assert end.texts == ["to Voice a.", "to to Voice a."]


def test_the_first_failure_is_raised_and_the_others_are_noted(engine: Engine) -> None:
    """The calls beside a failed one are made and on record; nothing after the group starts."""
    recorder = Recorder()
    failing = [ValueError("one"), ValueError("two")]
    model = ScriptedModel(
        by_path={"b/a": "x", "b/b": failing[0], "b/c": failing[1]},  # none for the end
    )
    tree = block(voice("a"), voice("b"), voice("c"), Step("End.", name="end"))
    with pytest.raises(ValueError, match="one") as raised:
        engine(tree, model, recorder=recorder)
    assert getattr(raised.value, "pipeline_path", "") == "b/b"
    assert any("b/c" in note for note in raised.value.__notes__)
    assert sorted(record.path for record in recorder.journal.records) == ["b/a", "b/b", "b/c"]


def test_a_reader_after_its_writer_is_no_fault() -> None:
    """Children of threads read what earlier ones captured; later ones stay a fault."""
    assert check(ENCLAVE) == []
    assert [fault.path for fault in check(block(READER, voice("a")))] == ["b/reader"]


def test_threads_have_a_text_form() -> None:
    """YAML takes and writes `parallel: threads`."""
    tree = block(voice("a"), voice("b"))
    assert "parallel: threads" in to_yaml(tree)
    assert from_yaml(to_yaml(tree)) == tree
