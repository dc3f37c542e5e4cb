"""Cassettes in pytest: whole test runs of a user, recording and replaying."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

import langchain_openai  # noqa: F401  (loaded here, or each of the runs would load it again)
import pytest

import mergepoint.testing.cassettes  # noqa: F401
from mergepoint.journal.file_journal import read_journal
from mergepoint.testing.server import Body, ModelServer

pytest_plugins = "pytester"

PREAMBLE = """
    import os

    import pytest
    from langchain_openai import ChatOpenAI
    from mergepoint import Block, Step

    def model():
        return ChatOpenAI(model="scripted", base_url=os.environ["MODEL"], api_key="none",
                          max_retries=0)

    PROMPT = "Write a line."

    def line():
        return Block([Step(PROMPT, name="draft"), Step("Shorten it.", name="shorten")], name="line")
"""

ONE = (
    PREAMBLE
    + """
    @pytest.mark.cassette
    def test_line(cassette):
        assert cassette.run(line(), model=model()).text == "to Shorten it."
"""
)


def echo(body: Body) -> str:
    """Answer the last message."""
    return f"to {body['messages'][-1]['content']}"


class User:
    """Somebody with a test module, at the command line; the model answers while it is on."""

    def __init__(self, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
        self._pytester = pytester
        self._monkeypatch = monkeypatch
        self.calls = 0
        monkeypatch.delenv("CI", raising=False)

    def write(self, text: str, name: str = "test_line") -> None:
        """Write a module."""
        self._pytester.makepyfile(**{name: text})

    def run(self, *args: str) -> pytest.RunResult:
        """Run pytest with the model switched off."""
        with ModelServer(echo) as server:
            url = server.url
        return self._run(url, args)

    def run_live(self, *args: str) -> pytest.RunResult:
        """Run pytest with the model on, and count its calls."""
        with ModelServer(echo) as server:
            done = self._run(server.url, args)
        self.calls = len(server.log)
        return done

    def _run(self, url: str, args: Sequence[str]) -> pytest.RunResult:
        self._monkeypatch.setenv("MODEL", url)
        off = [f"-pno:{name}" for name in ("xdist", "cacheprovider", "hypothesispytest")]
        return self._pytester.runpytest_inprocess(*off, *args)

    @property
    def files(self) -> list[str]:
        """Return the cassettes that there are, and anything beside them."""
        found = (self._pytester.path / "cassettes").rglob("*.*")
        return sorted(str(one.relative_to(self._pytester.path / "cassettes")) for one in found)

    def file(self, name: str) -> Path:
        """Return a cassette."""
        return self._pytester.path / "cassettes" / name


@pytest.fixture
def user(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> User:
    """Return a user in an empty folder."""
    return User(pytester, monkeypatch)


def lines(done: pytest.RunResult, patterns: Sequence[str]) -> None:
    """Assert that a run printed these, in order."""
    done.stdout.fnmatch_lines([f"*{pattern}*" for pattern in patterns])


def test_recorded_once_and_replayed_from_then_on(user: User) -> None:
    """The first run asks the model, the second passes with the model switched off."""
    user.write(ONE)
    user.run_live().assert_outcomes(passed=1)
    assert (user.calls, user.files) == (2, ["test_line/test_line.jsonl"])
    user.run().assert_outcomes(passed=1)
    user.run("--cassettes=replay").assert_outcomes(passed=1)
    user.run_live().assert_outcomes(passed=1)
    assert user.calls == 0


def test_a_changed_prompt_fails_with_the_difference(user: User) -> None:
    """The failure shows what changed and the command that records again, which then works."""
    user.write(ONE)
    user.run_live()
    user.write(ONE.replace("Write a line.", "Write a verse."))
    done = user.run_live()
    done.assert_outcomes(failed=1)
    assert user.calls == 0
    lines(done, ["-Write a line.", "+Write a verse.", "pytest --cassettes=rewrite"])
    done.stdout.fnmatch_lines(["*pytest --cassettes=rewrite test_line.py::test_line"])
    user.run_live("--cassettes=rewrite", "test_line.py::test_line").assert_outcomes(passed=1)
    assert user.calls == 2
    user.run().assert_outcomes(passed=1)


@pytest.mark.parametrize("way", ["option", "environment"])
def test_where_nothing_may_be_recorded(
    user: User, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A missing cassette is an error that says the command, with the option and in CI alike."""
    user.write(ONE)
    if way == "environment":
        monkeypatch.setenv("CI", "true")
    done = user.run_live(*(["--cassettes=replay"] if way == "option" else []))
    done.assert_outcomes(errors=1)
    lines(done, ["the cassette", "pytest --cassettes=rewrite test_line.py::test_line"])
    assert (user.calls, user.files) == (0, [])


def test_the_command_is_obeyed_in_ci(user: User, monkeypatch: pytest.MonkeyPatch) -> None:
    """In CI a cassette is recorded only when the command says so, whatever the mark says."""
    monkeypatch.setenv("CI", "1")
    user.write(ONE.replace("mark.cassette", "mark.cassette(mode='rewrite')"))
    user.run_live().assert_outcomes(errors=1)
    user.run_live("--cassettes=once").assert_outcomes(passed=1)
    assert user.files == ["test_line/test_line.jsonl"]


def test_a_test_that_never_records(user: User) -> None:
    """A mark says the mode where the command does not."""
    user.write(ONE.replace("mark.cassette", "mark.cassette(mode='replay')"))
    user.run_live().assert_outcomes(errors=1)
    user.run_live("--cassettes=rewrite").assert_outcomes(passed=1)
    user.run().assert_outcomes(passed=1)


def test_a_failing_test_leaves_nothing(user: User) -> None:
    """Neither a file nor a part of one is there after a test that failed while it recorded."""
    user.write(ONE.replace('"to Shorten it."', '"something else"'))
    user.run_live().assert_outcomes(failed=1)
    assert (user.calls, user.files) == (2, [])
    user.write(ONE)
    user.run_live().assert_outcomes(passed=1)


def test_answers_left_over_fail_the_test(user: User) -> None:
    """A test that asks for less than is on its cassette fails, until that is allowed."""
    user.write(ONE)
    user.run_live()
    short = ONE.replace(', Step("Shorten it.", name="shorten")', "").replace(
        '"to Shorten it."', '"to Write a line."'
    )
    user.write(short)
    done = user.run()
    done.assert_outcomes(failed=1)
    lines(done, ["were not used: line/shorten", "pytest --cassettes=rewrite"])
    user.write(short.replace("mark.cassette", "mark.cassette(allow_unused=True)"))
    user.run().assert_outcomes(passed=1)


def test_each_test_has_its_own_file(user: User) -> None:
    """Parameters, classes, modules and given names lead to files of their own."""
    user.write(
        PREAMBLE
        + """
    @pytest.mark.parametrize("word", ["rain", "a/b: c", pytest.param("long", id="x" * 200), "snow"])
    def test_word(cassette, word):
        assert cassette.run(Step(word), model=model()).text == f"to {word}"

    class TestIn:
        class TestSide:
            def test_word(self, cassette):
                assert cassette.run(Step("in"), model=model()).text == "to in"

    @pytest.mark.cassette("given")
    def test_named(cassette):
        assert cassette.run(Step("named"), model=model()).text == "to named"
    """
    )
    user.write(ONE, name="test_other")
    user.run_live().assert_outcomes(passed=7)
    odd = re.compile(r"test_line/test_word\[(a_b__c\]|x+)-[0-9a-f]{8}\.jsonl")
    assert sorted(odd.sub("odd", name) for name in user.files) == [
        "odd",
        "odd",
        "test_line/TestIn.TestSide.test_word.jsonl",
        "test_line/given.jsonl",
        "test_line/test_word[rain].jsonl",
        "test_line/test_word[snow].jsonl",
        "test_other/test_line.jsonl",
    ]
    assert max(len(os.fsencode(name)) for name in user.files) < 200
    user.run().assert_outcomes(passed=7)


def test_redaction_for_all_and_for_one(user: User) -> None:
    """A fixture redacts the cassettes of a folder, a mark those of a test."""
    user.write(
        """
    import pytest

    @pytest.fixture
    def cassette_redact():
        return lambda text: text.replace("Ada", "X")
    """,
        name="conftest",
    )
    user.write(
        PREAMBLE
        + """
    def test_all(cassette):
        cassette.run(Step("I am Ada."), model=model())

    @pytest.mark.cassette(redact=lambda text: text.replace("Bob", "Y"))
    class TestOne:
        @pytest.mark.cassette("one")
        def test_one(self, cassette):
            cassette.run(Step("I am Ada, not Bob."), model=model())
    """
    )
    user.run_live().assert_outcomes(passed=2)
    answers = [
        read_journal(user.file(f"test_line/{name}.jsonl"))[1][0].response
        for name in ("test_all", "one")
    ]
    assert answers == ["to I am X.", "to I am Ada, not Y."]
    user.run().assert_outcomes(passed=2)


def test_a_mark_without_the_fixture(user: User) -> None:
    """A marked test that does not take the fixture would ask the model each time: an error."""
    user.write(ONE.replace("(cassette)", "()").replace("cassette.run(line(), model=model())", "x"))
    done = user.run()
    done.assert_outcomes(errors=1)
    lines(done, ["does not take the fixture `cassette`"])


@pytest.mark.parametrize("arguments", ["'a', 'b'", "records=True"])
def test_a_mark_that_says_something_else(user: User, arguments: str) -> None:
    """What the mark does not know is an error that lists what it knows."""
    user.write(ONE.replace("mark.cassette", f"mark.cassette({arguments})"))
    done = user.run("--strict-markers")
    done.assert_outcomes(errors=1)
    lines(done, ["marker cassette takes a name and mode, redact, allow_unused"])


def test_a_path_of_ones_own(user: User) -> None:
    """A Path in the mark is a file beside the module."""
    marked = ONE.replace("mark.cassette", "mark.cassette(__import__('pathlib').Path('my.jsonl'))")
    user.write(marked)
    user.run_live().assert_outcomes(passed=1)
    assert read_journal(Path("my.jsonl"))[0].run_id == "cassette"
    assert user.files == []
    user.run().assert_outcomes(passed=1)


def test_async_tests(user: User) -> None:
    """A test on an event loop is recorded and checked when its coroutine has ended."""
    user.write(
        PREAMBLE
        + """
    from mergepoint import ChatRunner

    @pytest.mark.anyio
    @pytest.mark.parametrize("anyio_backend", ["asyncio"])
    async def test_line(cassette, anyio_backend):
        ctx = await ChatRunner(model()).arun(cassette.context(), line())
        assert ctx.text == "to Shorten it."
    """
    )
    user.run_live().assert_outcomes(passed=1)
    assert user.calls == 2
    user.run().assert_outcomes(passed=1)
