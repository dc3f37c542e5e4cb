"""What every backend does alike: output, errors, tools, files, limits, cancellation."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.agent.running import ran

from mergepoint.sandbox.backends import CodeRunner, Monty, UnsafeSubprocess
from mergepoint.sandbox.job import CodeJob, MadeFile

NAMES = ("bubblewrap", "monty", "unsafe_subprocess")


@pytest.fixture(params=NAMES)
def runner(request: pytest.FixtureRequest) -> CodeRunner:
    """Give each backend that works here; code in these tests is such as we would run ourselves."""
    if request.param == "bubblewrap":
        found: CodeRunner = request.getfixturevalue("bubblewrap")
        return found
    if request.param == "monty":
        pytest.importorskip("pydantic_monty", reason="pydantic-monty is not installed")
        return Monty()
    return UnsafeSubprocess()


def test_what_is_printed_is_kept_and_told(runner: CodeRunner) -> None:
    """The pieces that are told come to the output, whose run says which backend it was."""
    told: list[str] = []
    run = ran(runner, "print('one')\nfor n in range(3):\n    print(n)", on_output=told.append)
    assert run.output == "".join(told) == "one\n0\n1\n2\n"
    assert (run.ok, run.exit_code, run.stopped) == (True, 0, None)
    assert run.backend == runner.name
    assert run.seconds > 0


def test_code_that_does_not_compile_names_its_line(runner: CodeRunner) -> None:
    """A syntax error is the code's end, with its line."""
    run = ran(runner, "x = 1\ndef f(:\n    pass\n")
    assert (run.ok, run.exit_code) == (False, 1)
    assert 'File "code.py", line 2\n    def f(:' in run.output
    assert "SyntaxError" in run.output


def test_an_exception_names_the_lines_of_the_code_and_no_others(runner: CodeRunner) -> None:
    """A traceback begins in the code and shows it; what was printed before stands before it."""
    run = ran(runner, "def f(x):\n    return 1 / x\nprint('before')\nf(0)\n")
    assert run.exit_code == 1
    first, *rest = run.output.splitlines()
    assert first == "before"
    assert rest[:2] == [
        "Traceback (most recent call last):",
        '  File "code.py", line 4, in <module>',
    ]
    assert "    return 1 / x" in rest
    assert rest[-1] == "ZeroDivisionError: division by zero"
    assert "<string>" not in run.output


def test_output_is_fit_to_be_kept(runner: CodeRunner) -> None:
    """Control characters are written out, ends of lines are newlines, no surrogate is left."""
    run = ran(runner, "print('\\x1b[31mred\\x00 a\\rb\\r\\nc\\u202e \\ud83d.')")
    assert run.output.startswith("\\x1b[31mred\\x00 a\nb\nc\\u202e ")
    assert run.output.encode().decode() == run.output


def test_code_with_half_a_surrogate_pair_is_run(runner: CodeRunner) -> None:
    """What UTF-8 does not hold becomes its escape, which means the same in a string."""
    assert ran(runner, "print(len('\ud83d'))").output == "1\n"


@pytest.mark.first_case
def test_what_was_printed_is_kept_when_the_time_is_over(runner: CodeRunner) -> None:
    """A run that takes too long is ended and keeps the part that it printed."""
    run = ran(
        runner, "import time\nprint('part', end='')\nwhile True:\n    time.sleep(0.1)", wall=2.5
    )
    assert (run.output, run.stopped, run.exit_code, run.ok) == ("part", "wall", None, False)


def test_output_has_an_end(runner: CodeRunner) -> None:
    """Who prints for ever is ended, and as much as is allowed is kept."""
    run = ran(runner, "while True:\n    print('y' * 99)", output=12_345)
    assert (len(run.output), run.stopped, run.truncated) == (12_345, "output", True)


def test_tools_are_functions(runner: CodeRunner) -> None:
    """A tool takes and gives JSON data, by position and by name, and its calls are on record."""

    def total(numbers: list[int], *, scale: float = 1) -> dict[str, Any]:
        return {"total": sum(numbers) * scale, "of": numbers, "none": None}

    run = ran(runner, "print(total([1, 2], scale=2)['total'], total([4]))", tools={"total": total})
    assert run.output == "6 {'total': 4, 'of': [4], 'none': None}\n"
    first, second = run.tool_calls
    assert (first.name, first.arguments, first.keywords) == ("total", ([1, 2],), {"scale": 2})
    assert second.result == {"total": 4, "of": [4], "none": None}


def test_a_tool_may_be_a_coroutine(runner: CodeRunner) -> None:
    """A tool that awaits runs on the caller's loop, and is a plain function in the code."""
    loops = []

    async def slow(x: int) -> int:
        loops.append(asyncio.get_running_loop())
        await asyncio.sleep(0)
        return x + 1

    assert ran(runner, "print(slow(1))", tools={"slow": slow}).output == "2\n"
    assert len(loops) == 1


def test_what_a_tool_raises_is_raised_in_the_code(runner: CodeRunner) -> None:
    """A built-in exception keeps its type and text, and can be caught."""

    def find(name: str) -> None:
        raise KeyError(name)

    code = "try:\n    find('a')\nexcept KeyError as e:\n    print('caught', e.args)\nfind('b')"
    run = ran(runner, code, tools={"find": find})
    assert run.output.startswith("caught ('a',)\nTraceback")
    assert "KeyError" in run.output.splitlines()[-1]
    assert [call.error for call in run.tool_calls] == ["KeyError: a", "KeyError: b"]


class OwnError(Exception):
    """An exception that the code cannot know."""


def test_an_exception_of_an_unknown_type_says_which(runner: CodeRunner) -> None:
    """What is not built in arrives as an error whose text says what happened."""

    def fail() -> None:
        raise OwnError("it broke")

    run = ran(runner, "fail()", tools={"fail": fail})
    assert run.output.splitlines()[-1] == "RuntimeError: OwnError: it broke"


def test_a_tool_that_gives_no_data_is_told_so(runner: CodeRunner) -> None:
    """A result that is no JSON is an error in the code."""
    run = ran(runner, "odd()", tools={"odd": object})
    assert run.output.splitlines()[-1].startswith("TypeError: Object of type object is not JSON")


def test_a_tool_that_gives_too_much_is_told_so(runner: CodeRunner) -> None:
    """A result that is too large to go through is an error that says to ask for less."""
    run = ran(runner, "len(much())", tools={"much": lambda: "x" * 2_000_000})
    assert "ask for less" in run.output.splitlines()[-1]


def test_what_is_no_tool_is_no_name(runner: CodeRunner) -> None:
    """Only the tools of the job are there."""
    run = ran(runner, "other()", tools={"one": int})
    assert run.output.splitlines()[-1] == "NameError: name 'other' is not defined"


def test_data_is_given_and_what_is_made_is_taken(runner: CodeRunner, tmp_path: Path) -> None:
    """The code finds its files under their names; what it leaves is given, and they are not."""
    data = tmp_path / "source.csv"
    data.write_text("a,b\n1,2\n", encoding="utf-8")
    code = "text = open('in/data.csv').read()\nprint(text)\nopen('out.txt', 'w').write(text * 2)"
    run = ran(runner, code, data={"in/data.csv": data})
    assert run.output == "a,b\n1,2\n\n"
    assert run.made == (MadeFile("out.txt", 16, b"a,b\n1,2\n" * 2),)
    assert data.read_text(encoding="utf-8") == "a,b\n1,2\n"


def test_data_that_is_not_there_is_an_error(runner: CodeRunner, tmp_path: Path) -> None:
    """A file that does not exist is named before anything runs."""
    with pytest.raises(FileNotFoundError, match="nowhere"):
        ran(runner, "print()", data={"data.csv": tmp_path / "nowhere"})


def test_a_run_can_be_cancelled(runner: CodeRunner) -> None:
    """A cancelled run ends, as its task does."""

    async def cancelled() -> None:
        begun = asyncio.Event()
        code = "import time\nprint('here')\nwhile True:\n    time.sleep(0.05)"
        run = runner.run(CodeJob(code=code), on_output=lambda _: begun.set())
        task = asyncio.create_task(run)
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancelled())


def test_a_run_can_be_cancelled_while_a_tool_works(runner: CodeRunner) -> None:
    """A tool that awaits is cancelled with the run that waits for it."""
    ended = []

    async def cancelled() -> None:
        begun = asyncio.Event()

        async def wait() -> None:
            begun.set()
            try:
                await asyncio.Event().wait()
            finally:
                ended.append(1)

        task = asyncio.create_task(runner.run(CodeJob(code="wait()", tools={"wait": wait})))
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancelled())
    assert ended == [1]


def test_a_listener_that_fails_ends_the_run(runner: CodeRunner) -> None:
    """What the caller's function raises is raised, and nothing goes on."""

    def refuse(_text: str) -> None:
        raise OwnError("enough")

    with pytest.raises(OwnError, match="enough"):
        ran(runner, "import time\nprint('x')\nwhile True:\n    time.sleep(0.05)", on_output=refuse)


def test_runs_beside_each_other_do_not_meet(runner: CodeRunner) -> None:
    """Several runs on one loop have folders, output and tools of their own."""

    async def all_of_them() -> list[str]:
        code = "open('x.txt', 'w').write(str(own()))\nprint(open('x.txt').read())"
        jobs = [CodeJob(code=code, tools={"own": lambda n=n: n}) for n in range(4)]
        return [run.output for run in await asyncio.gather(*map(runner.run, jobs))]

    assert asyncio.run(all_of_them()) == ["0\n", "1\n", "2\n", "3\n"]


def test_stdout_and_stderr_are_kept_apart(runner: CodeRunner) -> None:
    """Each has its own text, and the output has both, a traceback behind what was printed."""
    code = "import sys\nprint('out')\nprint('err', file=sys.stderr)\n1 / 0\n"
    if runner.name == "monty":  # it has no sys.stderr to print on
        code = "print('out')\n1 / 0\n"
    run = ran(runner, code)
    assert run.stdout == "out\n"
    assert "out" not in run.stderr.splitlines()
    assert run.stderr.rstrip().splitlines()[-1].startswith("ZeroDivisionError")
    assert sorted(run.output.splitlines()) == sorted((run.stdout + run.stderr).splitlines())
