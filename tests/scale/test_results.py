"""The results file of a batch: whole lines, one for each input, whatever ends its writer."""

from __future__ import annotations

import asyncio
import io
import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from mergepoint.journal.checked_lines import JournalError
from mergepoint.scale.protocol import BatchError, BatchInput, BatchResult, Status
from mergepoint.scale.results import (
    ResultFile,
    ResultReader,
    ResultStream,
    read_results,
    result_line,
)


def given(input_id: str, value: Any = None, number: int = 0) -> BatchInput:
    """Return an input."""
    return BatchInput(id=input_id, value={"topic": value or input_id}, number=number)


def result(input_id: str, status: Status = "done", **more: Any) -> BatchResult:
    """Return a result."""
    return BatchResult(id=input_id, status=status, **more)


async def each(inputs: list[BatchInput]) -> AsyncIterator[BatchInput]:
    """Yield the inputs."""
    for one in inputs:
        yield one


def pending(results: ResultFile, inputs: list[BatchInput], **more: Any) -> list[str]:
    """Return the ids of the inputs that are left."""

    async def collected() -> list[str]:
        return [one.id async for one in results.pending(each(inputs), **more)]

    return asyncio.run(collected())


def written(path: Path) -> list[tuple[str, str]]:
    """Return id and status of each line."""
    return [(one["id"], one["status"]) for one in read_results(path)]


def fill(path: Path, inputs: list[BatchInput], status: Status = "done") -> None:
    """Write a result for each input."""
    with ResultFile.open(path) as results:
        for input_id in pending(results, inputs, retry=True):
            results.add(result(input_id, status))
        results.finish()


def test_a_line_has_the_fields_of_a_result(tmp_path: Path) -> None:
    """A line is JSON: the result, the digest of its input, and when it was there."""
    path = tmp_path / "out.jsonl"
    with ResultFile.open(path) as results:
        pending(results, [given("a")])
        results.add(result("a", text="Grüße\n", outputs={"n": 1}, calls=2, run_id="b.a"))
        results.finish()
    (line,) = path.read_text(encoding="utf-8").splitlines()
    data = json.loads(line)
    assert list(data) == [
        *("id", "status", "text", "outputs", "calls", "usage", "error", "run_id", "attempts"),
        *("input", "ended_at"),
    ]
    assert data["text"] == "Grüße\n"
    assert "Grüße" in line


def test_text_that_utf8_cannot_write_is_escaped() -> None:
    """Half a surrogate pair is written as an escape, and read again."""
    line = result_line(result("a", text="\ud83d"))
    assert json.loads(line)["text"] == "\ud83d"


def test_a_result_that_is_no_json_is_refused() -> None:
    """A value that JSON doesn't have is an error with the input's id."""
    with pytest.raises(BatchError, match="input 'a' is not JSON"):
        result_line(result("a", outputs={"x": float("nan")}))


def test_what_has_a_result_is_not_pending(tmp_path: Path) -> None:
    """The same command goes on; failed inputs are left out unless they are retried."""
    path = tmp_path / "out.jsonl"
    inputs = [given("a"), given("b"), given("c")]
    with ResultFile.open(path) as results:
        assert pending(results, inputs) == ["a", "b", "c"]
        results.add(result("a"))
        results.add(result("b", "failed", error={"type": "X", "message": "", "path": ""}))
        results.close()
    with ResultFile.open(path) as results:
        assert pending(results, inputs) == ["c"]
    with ResultFile.open(path) as results:
        assert pending(results, inputs, retry=True) == ["b", "c"]


def test_a_retried_failure_leaves_one_line(tmp_path: Path) -> None:
    """The later line of an id replaces the earlier one at the end."""
    path = tmp_path / "out.jsonl"
    fill(path, [given("a"), given("b")], "failed")
    with ResultFile.open(path) as results:
        assert pending(results, [given("a")], retry=True) == ["a"]
        results.add(result("a"))
        results.finish()
    assert written(path) == [("b", "failed"), ("a", "done")]
    assert list(tmp_path.iterdir()) == [path]


def test_a_kill_between_two_lines_of_an_id_is_cleaned_up(tmp_path: Path) -> None:
    """A file in which a retry was killed before its end has one line for each id after the next."""
    path = tmp_path / "out.jsonl"
    fill(path, [given("a")], "failed")
    with ResultFile.open(path) as results:
        pending(results, [given("a")], retry=True)
        results.add(result("a"))
        results.close()  # no finish
    assert written(path) == [("a", "failed"), ("a", "done")]
    with ResultFile.open(path) as results:
        assert pending(results, [given("a")], retry=True) == []
        results.finish()
    assert written(path) == [("a", "done")]


def test_lines_have_the_order_of_the_inputs_on_demand(tmp_path: Path) -> None:
    """Lines are sorted by their inputs; those of other inputs come after them."""
    path = tmp_path / "out.jsonl"
    inputs = [given(name) for name in "abcd"]
    with ResultFile.open(path) as results:
        pending(results, inputs)
        for name in "dxcab":
            results.add(result(name))
        results.finish(inputs)
    assert [input_id for input_id, _ in written(path)] == ["a", "b", "c", "d", "x"]


@pytest.mark.parametrize("cut", [1, 20, 60])
def test_an_unfinished_line_is_cut_off(tmp_path: Path, cut: int) -> None:
    """What a killed writer left of its last line is removed, and its input is pending."""
    path = tmp_path / "out.jsonl"
    fill(path, [given("a"), given("b")])
    data = path.read_bytes()
    path.write_bytes(data[:-cut])
    assert [input_id for input_id, _ in written(path)] == ["a"]
    with ResultFile.open(path) as results:
        assert pending(results, [given("a"), given("b")]) == ["b"]
        results.add(result("b"))
        results.finish()
    assert [input_id for input_id, _ in written(path)] == ["a", "b"]


def test_an_input_that_changed_is_noticed(tmp_path: Path) -> None:
    """An id with other inputs than those of its result is an error, done or failed."""
    path = tmp_path / "out.jsonl"
    fill(path, [given("a", "rain")])
    with ResultFile.open(path) as results:
        assert results.problem_of(given("a", "rain")) is None
        assert "'a' has a result of other inputs" in str(results.problem_of(given("a", "sun")))
        with pytest.raises(BatchError, match="another id"):
            pending(results, [given("a", "sun")])


def test_another_file_is_not_overwritten(tmp_path: Path) -> None:
    """A file with lines that are no results is refused with its line, and stays as it is."""
    path = tmp_path / "in.jsonl"
    path.write_text('{"id": "a", "status": "done"}\n{"topic": "rain"}\n', encoding="utf-8")
    before = path.read_bytes()
    with pytest.raises(BatchError, match=r"in\.jsonl:2 isn't a line of results"):
        ResultFile.open(path)
    assert path.read_bytes() == before


def test_two_drivers_cannot_write_one_file(tmp_path: Path) -> None:
    """The second one is told who writes, until the first one has closed the file."""
    path = tmp_path / "out.jsonl"
    with (
        ResultFile.open(path),
        pytest.raises(JournalError, match="the batch is being written by"),
    ):
        ResultFile.open(path)
    ResultFile.open(path).close()


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """Let no file of this process grow beyond a size, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


def test_a_full_disk_is_an_error_and_loses_no_line(tmp_path: Path) -> None:
    """The lines before it stay, an unfinished one doesn't, and the next process goes on."""
    path = tmp_path / "out.jsonl"
    inputs = [given(str(number)) for number in range(10)]
    fill(path, inputs[:5])
    before = path.read_bytes()
    results = ResultFile.open(path)
    pending(results, inputs)
    with largest_file(len(before) + 100):
        results.add(result("5", text="x" * 500))
        with pytest.raises(JournalError, match="cannot write to"):
            results.finish()
    assert path.read_bytes() == before
    with ResultFile.open(path) as results:
        assert pending(results, inputs) == ["5", "6", "7", "8", "9"]


def test_a_full_disk_leaves_the_file_that_is_rewritten(tmp_path: Path) -> None:
    """If the file in order does not fit, the one that is there stays, and no part of it."""
    path = tmp_path / "out.jsonl"
    inputs = [given(str(number)) for number in range(10)]
    fill(path, inputs)
    before = path.read_bytes()
    results = ResultFile.open(path)
    with largest_file(100), pytest.raises(JournalError):
        results.finish(inputs[::-1])
    results.close()
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.campaign
def test_a_killed_writer_leaves_whole_lines(tmp_path: Path) -> None:
    """After a kill, all lines but an unfinished one can be read, and the file can be locked."""
    path = tmp_path / "out.jsonl"
    code = (
        "import sys\n"
        "from mergepoint.scale.protocol import BatchResult\n"
        "from mergepoint.scale.results import ResultFile\n"
        "results = ResultFile.open(sys.argv[1])\n"
        "for number in range(10**9):\n"
        "    results.add(BatchResult(id=str(number), status='done', text='x' * 300))\n"
        "    if number == 20_000:\n"
        "        print(flush=True)\n"
    )
    child = subprocess.Popen([sys.executable, "-c", code, path], stdout=subprocess.PIPE)  # noqa: S603
    assert child.stdout is not None
    child.stdout.read(1)
    child.kill()
    child.communicate()
    names = [input_id for input_id, _ in written(path)]
    assert names == [str(number) for number in range(len(names))]
    with ResultFile.open(path) as results:
        assert len(results.index) == len(names)


def test_a_stream_has_a_line_for_each_result() -> None:
    """Results are written as they come, all of them by the end."""
    stream = io.BytesIO()
    results = ResultStream(stream)
    for name in "cab":
        results.add(result(name))
    results.close()
    lines = stream.getvalue().splitlines()
    assert [json.loads(line)["id"] for line in lines] == ["c", "a", "b"]


def test_a_reader_that_is_gone_is_an_error() -> None:
    """A closed pipe raises BrokenPipeError, at the latest at the end."""
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "wb") as pipe:
        results = ResultStream(pipe)
        results.add(result("a"))
        with pytest.raises(BrokenPipeError):
            results.close()
        # The buffer of the pipe has the line, which would be written again when it is closed.
        os.dup2(os.open(os.devnull, os.O_WRONLY), write)


def reader_of(path: Path) -> ResultReader[str]:
    """Return a reader that keeps the status of each line."""
    return ResultReader(path, lambda data: data["status"])


def test_a_reader_reads_only_what_was_added(tmp_path: Path) -> None:
    """Each refresh adds new lines, and a retried input moves to its last line."""
    path = tmp_path / "out.jsonl"
    path.write_bytes(result_line(result("a")) + result_line(result("b", "failed")))
    reader = reader_of(path)
    reader.refresh()
    assert list(reader.kept.items()) == [("a", "done"), ("b", "failed")]
    # A line that was read isn't read again.
    path.write_bytes(b"x" * path.stat().st_size + result_line(result("a", "failed")))
    reader.refresh()
    assert list(reader.kept.items()) == [("b", "failed"), ("a", "failed")]
    assert (reader.problems, reader.damaged) == ({}, 0)


def test_a_reader_begins_again_with_a_replaced_file(tmp_path: Path) -> None:
    """The end of a batch may put its lines in another order; the reader has those of the file."""
    path = tmp_path / "out.jsonl"
    inputs = [given("a", number=0), given("b", number=1)]
    fill(path, inputs[::-1])
    reader = reader_of(path)
    reader.refresh()
    assert list(reader.kept) == ["b", "a"]
    with ResultFile.open(path) as results:
        results.finish(inputs)
    reader.refresh()
    assert list(reader.kept) == ["a", "b"]
    path.write_bytes(result_line(result("c")))
    reader.refresh()
    assert list(reader.kept) == ["c"]


def test_a_reader_names_damaged_lines_and_half_a_line(tmp_path: Path) -> None:
    """A damaged line has its number and problem; half a line is read once it is whole."""
    path = tmp_path / "out.jsonl"
    last = result_line(result("b"))
    path.write_bytes(b'{"id": 5}\n' + result_line(result("a")) + b"no json\n" + last[:-9])
    reader = reader_of(path)
    reader.refresh()
    assert (list(reader.kept), list(reader.problems), reader.torn) == (["a"], [1, 3], True)
    assert "no id" in reader.problems[1]
    with path.open("ab") as file:
        file.write(last[-9:])
    reader.refresh()
    assert (list(reader.kept), list(reader.problems), reader.torn) == (["a", "b"], [1, 3], False)


def test_a_reader_needs_a_file(tmp_path: Path) -> None:
    """A missing file is an error of the journal, with its name."""
    with pytest.raises(JournalError, match=r"out\.jsonl"):
        reader_of(tmp_path / "out.jsonl").refresh()
