"""A run in a process of its own, which may be killed at any moment and started again."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatResult

from mergepoint import Block, Node, RunContext, Step, Template, run_generation
from mergepoint.record.file_journal import JournalError
from mergepoint.run.graph import Form

ROLES = {"human": "user", "ai": "assistant", "system": "system"}


class ServedModel(BaseChatModel):
    """A model behind a server in another process; it keeps count of nothing itself."""

    url: str

    @property
    def _llm_type(self) -> str:
        return "served"

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: Any = None,
        **kwargs: Any,
    ) -> ChatResult:
        said = [{"role": ROLES[m.type], "content": str(m.text)} for m in messages]
        request = urllib.request.Request(  # noqa: S310  (a loopback address)
            f"{self.url}/chat/completions",
            json.dumps({"model": "served", "messages": said}).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request) as answer:  # noqa: S310
            text = json.load(answer)["choices"][0]["message"]["content"]
        return ChatResult(generations=[ChatGeneration(message=AIMessage(text))])


def tree() -> Node:
    """Give a nested tree with parallel blocks, in which every step asks something of its own."""
    return Block([_stage(number) for number in range(3)], merge="last_response")


def _stage(number: int) -> Node:
    keys = [f"s{number}.{voice}" for voice in "abc"]
    voices: Sequence[Node] = [
        Step(f"Voice {key}.", name=key[-1], merge="none", capture_key=key) for key in keys
    ]
    read = " ".join(f"{{{{ {key} }}}}" for key in keys)
    return Block(
        [
            Step(f"Draft {number}.", name="draft"),
            Block(voices, name="voices", merge="none", parallel=True),
            Step(Template(f"Join {number}: {read}"), name="join", merge="last_response"),
        ],
        name=f"stage_{number}",
        merge="last_response",
    )


def live(url: str, runs: str, form: Form, ready: Any) -> None:
    """Begin the run, or go on with it where its journal has a whole header."""
    model = ServedModel(url=url)
    journal = Path(runs) / "r1" / "journal.jsonl"
    ready.set()
    if journal.exists():
        try:
            run_generation(tree(), model=model, runs=runs, resume="r1", form=form)
        except JournalError as error:
            if "does not hold a whole header" not in str(error):
                raise
            journal.unlink()
        else:
            return
    run_generation(tree(), model=model, ctx=RunContext(run_id="r1"), runs=runs, form=form)
