"""Batches: every input has one result, and the same call again goes on."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from mergepoint import Block, Call, Gate, Step, Template, run_generation
from mergepoint.core.errors import TreeError
from mergepoint.journal.checked_lines import JournalError
from mergepoint.journal.file_journal import FileStore
from mergepoint.scale import BatchError, BatchResult, batch
from mergepoint.scale.batch_note import BatchNote, note_path
from mergepoint.scale.run_spec import split_options, store_at_place
from mergepoint.testing import ScriptedModel

TREE = Block(
    [
        Step(Template("Draft about {{ topic }}."), name="draft", capture_key="draft"),
        Step(Template("Title of {{ draft }}"), name="title", capture_key="title"),
    ],
    name="writing",
    inputs=("topic",),
)
TOPICS = [{"topic": f"topic {number}"} for number in range(30)]


def model() -> ScriptedModel:
    """Return a model that answers with its prompt."""
    return ScriptedModel(default=lambda messages: f"[{messages[-1].content}]")


async def every(*args: Any, **options: Any) -> list[BatchResult]:
    """Return all results of a batch."""
    return [result async for result in batch(*args, **options)]


def run(*args: Any, **options: Any) -> list[BatchResult]:
    """Run a batch to its end."""
    return asyncio.run(every(*args, **options))


def lines(path: Path) -> list[dict[str, Any]]:
    """Return the lines of a results file."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_every_input_has_one_result(tmp_path: Path) -> None:
    """Each input is run once, and its result is yielded and written with calls and outputs."""
    out = tmp_path / "results.jsonl"
    scripted = model()
    results = run(TREE, TOPICS, out=out, model=scripted)
    assert sorted(int(one.id) for one in results) == list(range(1, 31))
    assert {(one.status, one.calls, one.attempts) for one in results} == {("done", 2, 1)}
    known = {line["id"]: line for line in lines(out)}
    assert len(known) == 30
    assert known["4"]["text"] == "[Title of [Draft about topic 3.]]"
    assert known["4"]["outputs"]["draft"] == "[Draft about topic 3.]"
    assert len(scripted.calls) == 60


def test_the_same_call_again_runs_only_what_is_missing(tmp_path: Path) -> None:
    """Results in the file aren't run again, and lost lines come from the journals without calls."""
    out = tmp_path / "results.jsonl"
    run(TREE, TOPICS, out=out, model=model())
    whole = out.read_text(encoding="utf-8").splitlines(keepends=True)
    out.write_text("".join(whole[:20]) + whole[20][:30], encoding="utf-8")
    scripted = model()
    results = run(TREE, TOPICS, out=out, model=scripted)
    assert len(results) == 10
    assert {one.calls_now for one in results} == {0}
    assert scripted.calls == []
    assert sorted(int(line["id"]) for line in lines(out)) == list(range(1, 31))


def test_failures_are_results_and_are_run_again_on_demand(tmp_path: Path) -> None:
    """A failed run is a failed result with its path; only `resume_failed` runs it again."""
    out = tmp_path / "results.jsonl"

    failing = {"Title of [Draft about topic 7.]": ValueError("no title")}
    script: dict[str, Any] = {"default": lambda messages: f"[{messages[-1].content}]"}
    results = run(TREE, TOPICS, out=out, model=ScriptedModel(by_prompt=failing, **script))
    (failed,) = [one for one in results if one.status == "failed"]
    assert failed.error == {"type": "ValueError", "message": "no title", "path": "writing/title"}
    assert (failed.id, failed.usage["cost"]) == ("8", None)
    assert run(TREE, TOPICS, out=out, model=ScriptedModel(by_prompt=failing, **script)) == []
    (again,) = run(TREE, TOPICS, out=out, model=model(), resume_failed=True)
    assert (again.id, again.status, again.calls_now) == ("8", "done", 1)
    # The line in the file has the calls of both tries.
    assert again.calls == failed.calls + 1
    assert {line["status"] for line in lines(out)} == {"done"}
    assert len(lines(out)) == 30


@pytest.mark.parametrize("given", ["list", "generator", "async", "file"])
def test_inputs_can_be_anything_that_yields_mappings(given: str, tmp_path: Path) -> None:
    """Lists, generators, async generators and files are read, with ids and in order on demand."""
    rows = [{"id": f"q{number}", "topic": str(number)} for number in range(12)]

    async def later() -> AsyncIterator[Mapping[str, Any]]:
        for row in rows:
            yield row

    file = tmp_path / "inputs.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    sources: dict[str, Any] = {
        "list": rows, "generator": iter(rows), "async": later(), "file": file,
    }  # fmt: skip
    out = tmp_path / "results.jsonl"
    results = run(TREE, sources[given], ordered=True, out=out, model=model(), concurrency=5)
    assert [one.id for one in results] == [f"q{number}" for number in range(12)]
    assert [one.number for one in results] == list(range(12))


def test_inputs_are_read_as_they_are_needed(tmp_path: Path) -> None:
    """A consumer that stops early has read few inputs, and leaves no run in progress."""
    taken: list[int] = []

    def rows() -> Iterator[dict[str, str]]:
        for number in range(100_000):
            taken.append(number)
            yield {"topic": str(number)}

    async def first() -> None:
        stream = batch(TREE, rows(), out=tmp_path / "r.jsonl", model=model(), concurrency=4)
        async for _ in stream:
            break
        await stream.aclose()  # type: ignore[attr-defined]
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(first())
    assert len(taken) < 30


def test_a_slow_first_input_holds_back_the_others_in_order(tmp_path: Path) -> None:
    """In order, results wait for the first one, and their number is bounded."""
    done = asyncio.Event()

    async def waits(topic: str) -> str:
        if topic == "topic 0":
            await done.wait()
        else:
            done.set()
        return topic

    tree = Block(
        [Call(waits, name="wait", args={"topic": Template("{{ topic }}")})], inputs=("topic",)
    )
    results = run(tree, TOPICS, ordered=True, out=tmp_path / "r.jsonl", concurrency=3)
    assert [one.number for one in results] == list(range(30))


def test_a_bad_input_is_reported_before_anything_is_run(tmp_path: Path) -> None:
    """All problems of the inputs are in one error, and no model is called."""
    scripted = model()
    with pytest.raises(BatchError, match=r"(?s)input 2.*topic.*missing"):
        run(TREE, [{"topic": "x"}, {"subject": "y"}], out=tmp_path / "r.jsonl", model=scripted)
    assert scripted.calls == []


def test_a_bad_line_of_a_stream_ends_the_batch_after_the_runs_in_progress(tmp_path: Path) -> None:
    """Inputs before a bad one of a generator have their results, and the error follows."""
    out = tmp_path / "r.jsonl"
    rows = iter([{"topic": "a"}, {"topic": "b"}, {"subject": "c"}])
    with pytest.raises(BatchError, match="input 3"):
        run(TREE, rows, out=out, model=model())
    assert sorted(line["id"] for line in lines(out)) == ["1", "2"]


def test_two_drivers_cannot_run_one_batch(tmp_path: Path) -> None:
    """While a batch runs, another call with the same results file is refused."""
    out = tmp_path / "r.jsonl"

    async def both() -> None:
        stream = batch(TREE, TOPICS, out=out, model=model(), concurrency=1)
        await anext(stream)
        with pytest.raises(JournalError, match="the batch is being written by"):
            await every(TREE, TOPICS, out=out, model=model())
        await stream.aclose()  # type: ignore[attr-defined]

    asyncio.run(both())


def test_results_of_another_tree_are_refused(tmp_path: Path) -> None:
    """A changed target doesn't add its results to those of the one before."""
    out = tmp_path / "r.jsonl"
    run(TREE, TOPICS[:2], out=out, model=model())
    with pytest.raises(BatchError, match="another batch: its target or options differ"):
        run(Step(Template("{{ topic }}"), name="other"), TOPICS[:2], out=out, model=model())


def test_an_open_gate_is_a_failure_that_can_be_resumed(tmp_path: Path) -> None:
    """A run that waits for a decision fails with GateOpen; with an answerer it goes on."""
    tree = Block([Gate(Step(Template("Say {{ topic }}.")), name="ok")], name="g", inputs=("topic",))
    out = tmp_path / "r.jsonl"
    (open_one,) = run(tree, TOPICS[:1], out=out, model=model())
    assert open_one.error is not None
    assert open_one.error["type"] == "GateOpen"
    (done,) = run(
        tree, TOPICS[:1], out=out, model=model(), resume_failed=True, answerer={"g/ok": "approve"}
    )
    assert (done.status, done.calls_now) == ("done", 0)


def test_members_write_no_files_of_their_own(tmp_path: Path) -> None:
    """A member has a journal, and neither a transcript nor a drawing."""
    run(TREE, TOPICS[:3], out=tmp_path / "r.jsonl", model=model())
    run("best_of_n", [{"content": "A title."}], out=tmp_path / "s.jsonl", model="offline")
    names = {path.name for path in tmp_path.rglob("*")}
    assert not names & {"transcript.json", "graph.svg"}


def test_a_recipe_is_planned_once_and_run_for_each_input(tmp_path: Path) -> None:
    """A batch of a recipe has a result for each list of items, and resumes without calls."""
    rows = [{"items": [f"A title for poster {number}."]} for number in range(3)]
    out = tmp_path / "r.jsonl"
    results = run("best_of_n", rows, out=out, model="offline", knobs={"n": 2})
    assert [(one.status, bool(one.text), one.calls > 0) for one in results] == [
        ("done", True, True)
    ] * 3
    out.unlink()
    again = run("best_of_n", rows, out=out, model="offline", knobs={"n": 2})
    assert {one.calls_now for one in again} == {0}
    assert {one.id: one.text for one in again} == {one.id: one.text for one in results}


def test_a_text_is_a_target(tmp_path: Path) -> None:
    """The text of a YAML tree is run without a file."""
    step = "  - name: say\n    prompt: {template: 'Say {{ topic }}.'}\n"
    text = f"name: t\ninputs: [topic]\nnodes:\n{step}"
    (result,) = run(text, TOPICS[:1], out=tmp_path / "r.jsonl", model=model())
    assert result.text == "[Say topic 0.]"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"engine": "locl"}, "no engine 'locl'.*'local'"),
        ({"workers": 0}, "workers is a number from 1, not 0"),
        ({"concurrency": 0}, "concurrency is a number from 1"),
        ({"run_id": "x"}, "'run_id' is no option of a batch"),
        ({"knobs": {"n": 1}}, "'knobs' is no option of a batch of a tree"),
        ({"workers": 2}, "model=.* is an object of this process"),
        ({"budget": {"seconds": 3}}, "no budget of seconds"),
        ({"requests_per_minute": 0}, "requests_per_minute is 0; use a whole number above 0"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], said: str, tmp_path: Path) -> None:
    """An option that a batch can't have is refused before anything is run, with the fix."""
    with pytest.raises(BatchError, match=said):
        run(TREE, TOPICS, out=tmp_path / "r.jsonl", **{"model": model(), **options})


def test_a_mapping_that_cannot_be_changed_goes_to_other_processes() -> None:
    """Addresses by model, as the command line has them, are data for workers."""
    addresses = {"openai:m": "http://localhost:1/v1"}
    assert split_options({"base_url": MappingProxyType(addresses)}) == ({"base_url": addresses}, {})


def test_an_invalid_tree_is_refused_before_its_results_are_begun(tmp_path: Path) -> None:
    """A tree without a model is refused, and no results file is made."""
    with pytest.raises(TreeError, match="model"):
        run(TREE, TOPICS, out=tmp_path / "r.jsonl")
    assert list(tmp_path.iterdir()) == []


def test_members_share_few_files(tmp_path: Path) -> None:
    """By default, the journals of all members are in the segments of one folder."""
    run(TREE, TOPICS, out=tmp_path / "r.jsonl", model=model())
    files = [path for path in (tmp_path / "r-runs").rglob("*") if path.is_file()]
    assert 0 < len(files) < 6
    runs(tmp_path / "own", TREE)
    assert {
        one.calls_now
        for one in run(TREE, TOPICS[:1], store=tmp_path / "own", batch_id="b", model=model())
    } == {2}
    assert isinstance(store_at_place(str(tmp_path / "own")), FileStore)


def test_a_budget_of_calls_holds_over_the_whole_batch(tmp_path: Path) -> None:
    """A batch ends when its budget is used up, and goes on with a larger one."""
    out, scripted = tmp_path / "r.jsonl", model()
    with pytest.raises(BatchError, match="budget of batch 'b' is used up"):
        run(TREE, TOPICS, out=out, batch_id="b", model=scripted, budget={"calls": 9}, concurrency=2)
    assert len(scripted.calls) == 9
    assert {line["status"] for line in lines(out)} == {"done"}
    again = model()
    run(TREE, TOPICS, out=out, batch_id="b", model=again, budget={"calls": 60})
    assert len(lines(out)) == 30
    assert len(again.calls) == 51


def test_a_rate_limit_is_passed_to_the_workers(tmp_path: Path) -> None:
    """Requests beyond the first minute's wait."""

    async def some() -> int:
        stream = batch(TREE, TOPICS, out=tmp_path / "r", model=scripted, requests_per_minute=8)
        found = [await anext(stream)]
        await asyncio.sleep(1)
        await stream.aclose()  # type: ignore[attr-defined]
        return len(found)

    scripted = model()
    with pytest.raises((TimeoutError, StopAsyncIteration)):
        asyncio.run(asyncio.wait_for(some(), 4))
    assert len(scripted.calls) == 8


def runs(folder: Path, tree: Block) -> None:
    """Run a tree by itself, in a folder of its own."""
    run_generation(tree, runs=folder, inputs={"topic": "x"}, model=model())


def test_a_store_of_the_caller_is_used(tmp_path: Path) -> None:
    """The journals of members are in the store that was passed, by their run ids."""
    store = FileStore(tmp_path / "own")
    results = run(TREE, TOPICS[:2], store=store, batch_id="night", model=model())
    assert sorted(one.run_id for one in results) == ["night.1", "night.2"]
    assert sorted(store.runs()) == ["night.1", "night.2"]
    again = model()
    assert {
        one.calls_now for one in run(TREE, TOPICS[:2], store=store, batch_id="night", model=again)
    } == {0}
    assert again.calls == []


def test_a_note_says_what_each_call_knew(tmp_path: Path) -> None:
    """Next to the results are the target, the number of inputs, and when each call started."""
    out = tmp_path / "results.jsonl"
    run(TREE, TOPICS[:2], out=out, model=model())
    first = BatchNote.beside(out)
    assert first is not None
    assert (first.target, first.inputs, len(first.starts)) == ("writing", 2, 1)
    run(TREE, TOPICS, out=out, model=model())
    second = BatchNote.beside(out)
    assert second is not None
    assert (second.batch, second.inputs, second.starts[0]) == (first.batch, 30, first.starts[0])
    assert len(second.starts) == 2
    # A note of an earlier version, and one that a kill cut off.
    note = note_path(out)
    note.write_text('{"batch": "b", "store": "s", "fingerprint": "f"}', encoding="utf-8")
    assert BatchNote.beside(out) == BatchNote(batch="b", store="s", fingerprint="f")
    note.write_text('{"batch": ', encoding="utf-8")
    assert BatchNote.beside(out) is None
