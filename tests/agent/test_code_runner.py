"""code_runner: what is chosen, what is never chosen, and what is said where nothing confines."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.agent.running import ran

from mergepoint.core.errors import SandboxMissing, install_command
from mergepoint.sandbox import backends
from mergepoint.sandbox.backends import CodeRunner, UnsafeSubprocess, code_runner
from mergepoint.sandbox.bubblewrap import Bubblewrap
from mergepoint.sandbox.job import CodeJob, CodeRun


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Make this a machine with neither bubblewrap nor monty."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setitem(sys.modules, "pydantic_monty", None)


def test_bubblewrap_is_chosen_where_it_works(bubblewrap: Bubblewrap) -> None:
    """The first safe backend is the one that confines a whole Python."""
    assert code_runner() == bubblewrap


def test_monty_is_chosen_where_bubblewrap_is_missing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The second safe backend is the subset of Python."""
    pytest.importorskip("pydantic_monty", reason="pydantic-monty is not installed")
    monkeypatch.setenv("PATH", f"{tmp_path}:{Path(sys.executable).parent}")
    assert code_runner().name == "monty"


@pytest.mark.usefixtures("bare")
def test_where_nothing_confines_nothing_is_chosen() -> None:
    """Without a safe backend there is an error that says why each is none, and three fixes."""
    with pytest.raises(SandboxMissing) as raised:
        code_runner()
    text = str(raised.value)
    assert "bubblewrap: bwrap is not installed" in text
    assert "monty: pydantic-monty is not installed" in text
    assert "To fix this, do one of these:" in text
    assert "apt-get install bubblewrap" in text
    assert install_command("monty") in text
    assert 'code_runner("unsafe_subprocess")' in text


@pytest.mark.usefixtures("bare")
@pytest.mark.parametrize("name", ["bubblewrap", "monty"])
def test_a_backend_that_was_named_is_not_replaced(name: str) -> None:
    """Who asks for a backend gets it or an error, and no other one."""
    with pytest.raises(SandboxMissing, match=f"{name}: .* not installed"):
        code_runner(name)


@pytest.mark.usefixtures("bare")
def test_the_unsafe_one_is_had_by_its_name_and_says_so() -> None:
    """It runs where nothing else does, and each run says what ran it."""
    runner = code_runner("unsafe_subprocess")
    assert ran(runner, "print(1)").backend == "unsafe_subprocess"


def test_a_backend_proves_itself_once_per_search_path(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Its self-test is run again with another PATH, and after it failed."""
    tests = []

    @dataclass(frozen=True, slots=True)
    class Proving(UnsafeSubprocess):
        def probe(self) -> None:
            tests.append(os.environ["PATH"])
            if not (tmp_path / "installed").exists():
                raise SandboxMissing("not installed")

    monkeypatch.setitem(backends._BACKENDS, "bubblewrap", Proving)
    monkeypatch.setenv("PATH", "one")
    for _ in range(2):
        with pytest.raises(SandboxMissing):
            code_runner("bubblewrap")
    (tmp_path / "installed").touch()
    assert {code_runner("bubblewrap") for _ in range(3)} == {Proving()}
    monkeypatch.setenv("PATH", "two")
    code_runner("bubblewrap")
    assert tests == ["one", "one", "one", "two"]


def test_an_unknown_backend_is_told_with_those_there_are() -> None:
    """A name that is none is an error that lists the names."""
    with pytest.raises(
        ValueError, match="'docker'; known runners: bubblewrap, monty, unsafe_subproc"
    ):
        code_runner("docker")


def test_a_runner_of_ones_own_is_a_class_with_a_name_and_a_method() -> None:
    """The protocol asks for no parent class."""

    class Mine:
        name = "mine"

        async def run(self, job: CodeJob, *, on_output: object = None) -> CodeRun:
            assert on_output is None
            return CodeRun(backend=self.name, exit_code=0, output=job.code)

    mine: CodeRunner = Mine()
    assert ran(mine, "said").output == "said"
