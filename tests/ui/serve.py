"""A server for tests: `python -m tests.ui.serve PLACE PORT [--login FILE] [--runner NAME]`.

The model is a script of rules, so that it answers the same after a kill. What the user says decides
what happens: "sum" is a skill's plan, "fail" a program that is mended at its second attempt,
"forever" one that runs until it is stopped, "break" a provider that is down once.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
from argparse import ArgumentParser
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from langchain_core.messages import BaseMessage

from mergepoint import Block, Step, TurnRunner
from mergepoint.agent.tree import agent
from mergepoint.apps.chainlit.web_server import UiSettings, serve
from mergepoint.sandbox.job import CodeJob, CodeRun
from mergepoint.testing.fakes import failed, went_well
from mergepoint.testing.scripted_model import Answer, ScriptedModel
from mergepoint.tree.nodes import Gate, Loop

GREETING = "Hello. Ask me for a report."
ANSWER = "The sum is 42, over three regions."
MENDED = "It works now: 7."


def main() -> None:
    """Serve until killed."""
    parser = ArgumentParser()
    parser.add_argument("place")
    parser.add_argument("port", type=int)
    parser.add_argument("--login", type=Path)
    parser.add_argument("--runner")
    parser.add_argument("--gated", action="store_true")
    parser.add_argument("--slow", type=float, default=0.0)
    given = parser.parse_args()
    tree = gated() if given.gated else agent(runner=given.runner or Runner(Path(given.place)))
    model: Any = Typing
    model = model(default=Answering(given.slow))
    turns = TurnRunner(tree, model=model)
    ui = UiSettings(turns=turns, store=given.place, port=given.port, logins=given.login)
    serve(ui, ready=_ready)


def gated() -> Block:
    """Return a tree with a gate at a step that makes no artifact."""
    title = Step("Give a title.", name="title")
    check = Gate(title, name="check", question="Is this title good?", capture_key="review")
    again = Loop([check], name="trying", until="review", max_iterations=3)
    return Block([again, Step("Say it.", name="line")], name="titled", merge="last_response")


def _ready(address: str) -> None:
    sys.stdout.write(f"{address}\n")
    sys.stdout.flush()


class Typing(ScriptedModel):
    """Types an answer, piece by piece, where it is asked slowly."""

    async def _astream(self, messages: list[BaseMessage], *given: Any, **named: Any) -> Any:
        slow = "slowly" in str(messages[-1].text)
        async for chunk in super()._astream(messages, *given, **named):
            yield chunk
            await asyncio.sleep(0.06 if slow else 0)


class Answering:
    """Answers by what it is asked."""

    def __init__(self, slow: float) -> None:
        self._slow = slow
        self._broken: set[str] = set()

    def __call__(self, messages: Sequence[BaseMessage]) -> Any:
        """Return a plan, a program or an answer."""
        prompt = str(messages[-1].text)
        request = _part(prompt, "request")
        if prompt.startswith("Plan how"):
            return Answer(_plan(prompt, request), delay=self._slow)
        if prompt.startswith("Write the Python"):
            return Answer(f"```python\n{_code(prompt, request)}\n```", delay=self._slow)
        if "break" in request and request not in self._broken:
            self._broken.add(request)
            raise ConnectionError("the provider is down")
        return Answer(_answer(prompt, request), delay=self._slow)


def _plan(prompt: str, request: str) -> str:
    feedback = _part(prompt, "feedback")
    work = any(word in request for word in ("sum", "fail", "forever"))
    steps = ["Read the sales.", "Sum them by region."] if work else []
    return json.dumps(
        {
            "intent": f"Do it {feedback}" if feedback else "Answer the request",
            "action": "custom_script" if work else "chat",
            "skill": "",
            "steps": [*steps, *([f"Mind: {feedback}"] if feedback else [])],
        }
    )


def _code(prompt: str, request: str) -> str:
    if "forever" in request:
        return "import time\nprint('begun', flush=True)\nwhile True:\n    time.sleep(0.1)"
    if "fail" in request and "<previous_error>" not in prompt:
        return "print('trying')\nraise ValueError('not a number')"
    return "print(7)" if "fail" in request else "print('north 20, south 12, west 10: 42')"


def _answer(prompt: str, request: str) -> str:
    if "<output>" not in prompt:
        return GREETING
    return MENDED if "fail" in request else ANSWER


def _part(prompt: str, label: str) -> str:
    found = re.search(rf"<{label}>\n(.*?)\n</{label}>", prompt, re.DOTALL)
    return found[1] if found else ""


class Runner:
    """Plays what a program would do, and writes down that it was stopped."""

    name = "played"

    def __init__(self, place: Path) -> None:
        self._stopped = place / "stopped"

    async def run(self, job: CodeJob, *, on_output: Callable[[str], None] | None = None) -> CodeRun:
        """Play a program."""
        tell = on_output or (lambda _: None)
        if "while True" in job.code:
            tell("begun\n")
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                self._stopped.write_text("stopped")
                raise
        if "raise" in job.code:
            tell("trying\n")
            return failed("trying\nValueError: not a number\n")
        printed = re.findall(r"print\('?(.*?)'?\)", job.code)
        return went_well("\n".join(printed) + "\n")


if __name__ == "__main__":
    main()
