"""Fakes of everything but chat models: streams, model clients, code runners, and stores that crash.

def test_the_majority_wins() -> None:
    (winner,) = run_block("vote", ["yes", "no", "yes"])
    assert winner.content == "yes"
"""

from __future__ import annotations

import asyncio
import json
import random
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from pathlib import Path
from typing import Any, Literal, Self

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.runnables import Runnable, RunnableLambda
from pydantic import BaseModel, PrivateAttr

from mergepoint.journal.call_records import CallRecord, record_to_plain
from mergepoint.journal.checked_lines import encode
from mergepoint.journal.file_journal import FileJournal, FileStore
from mergepoint.journal.redact import Redact
from mergepoint.journal.stores import RunHeader, Sync
from mergepoint.models.event_loop import run_sync
from mergepoint.sandbox.job import CodeJob, CodeRun, ToolCall
from mergepoint.streams.block_context import BlockContext, Notes
from mergepoint.streams.grouping import Gather
from mergepoint.streams.model_calls import InvalidAnswer, ModelAnswer, ModelClient, ModelRequest
from mergepoint.streams.params import params_of
from mergepoint.streams.registry import REGISTRY, BlockType
from mergepoint.streams.stage_run import entered, run_stage
from mergepoint.streams.thing import Thing

# Blocks: a counting source, canned replies, and a run of a single block.


class Source:
    """A stream that counts its `pulled` items, and records whether it was `closed`.

    Things with a history are passed on unchanged; other items enter the stream as inputs. With
    `error`, the stream raises it at its end.
    """

    def __init__(self, items: Iterable[Any], *, error: Exception | None = None) -> None:
        self._items = streamed(items)
        self._error = error
        self.pulled = 0
        self.closed = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Thing:
        # A real source suspends; without this, tests would miss races.
        await asyncio.sleep(0)
        if self.closed or self.pulled == len(self._items):
            if self._error is not None and not self.closed:
                raise self._error
            raise StopAsyncIteration
        self.pulled += 1
        return self._items[self.pulled - 1]

    async def aclose(self) -> None:
        """End the stream."""
        self.closed = True


class Replies:
    """A model client with canned replies, by prompt or from a function of the request.

    `asks` are the requests in order. The function can return text or a ModelAnswer; an exception is
    raised.
    """

    def __init__(self, replies: Mapping[str, str] | Callable[[ModelRequest], Any]) -> None:
        self._replies = replies
        self.asks: list[ModelRequest] = []

    async def __call__(self, ask: ModelRequest, /) -> ModelAnswer:
        """Return the reply; its call id contains everything that identifies the call."""
        self.asks.append(ask)
        await asyncio.sleep(0)
        found = self._replies(ask) if callable(self._replies) else self._replies[str(ask.prompt)]
        if isinstance(found, Exception):
            raise found
        if not isinstance(found, ModelAnswer):
            # The id depends on the request only, so that it is the same for any order of calls.
            call = f"{ask.thing_id}@{ask.stage_id}/{ask.number}.{ask.sample}"
            found = ModelAnswer(text=str(found), call=call, model="testing:replies")
        if ask.check is not None and (problem := ask.check(found.text, found.value)) is not None:
            raise InvalidAnswer(problem)
        return found


def streamed(items: Iterable[Any]) -> list[Thing]:
    """Return Things with a history unchanged, and other items as stream inputs."""
    given = list(items)
    if all(isinstance(item, Thing) and item.history for item in given):
        return given
    return list(entered(given))


def run_block(
    kind: str | BlockType[Any],
    items: Iterable[Any] | Source,
    params: Mapping[str, Any] | BaseModel | None = None,
    *,
    stage_id: str = "stage",
    wanted: int | None = None,
    batch: Mapping[str, Any] | Gather | None = None,
    width: int = 1,
    seed: int = 0,
    client: ModelClient | None = None,
    notes: Notes | None = None,
) -> list[Thing]:
    """Return a block's results for items.

    `kind` is a block or its name, `wanted` the maximum number of results, `client` the model
    client, such as Replies. Raise RecipeError for invalid params, and the errors of the stage.
    """
    kind = REGISTRY.find(kind) if isinstance(kind, str) else kind
    ctx = BlockContext(
        stage_id, seed=seed, width=width, client=client, notes=notes, clock=lambda: 0.0
    )
    source = items if isinstance(items, Source) else Source(items)
    given = kind.given(params, where=stage_id)
    gather = None if batch is None else params_of(Gather, batch, where=stage_id)

    async def run() -> list[Thing]:
        stage = run_stage(kind, source, given, ctx, batch=gather)
        made: list[Thing] = []
        try:
            while wanted is None or len(made) < wanted:
                made.append(await anext(stage))
        except StopAsyncIteration:
            pass
        finally:
            await stage.aclose()
        return made

    return run_sync(run())


# Sandbox: results from a script.

Played = CodeRun | str | Callable[[CodeJob], CodeRun | str]
"""The result of a run: a CodeRun, the output of a success, or a function of the job."""


class ScriptedRunner:
    """Returns scripted results, run by run, and records its `jobs`.

    A function in the script can call the job's tools. Raise AssertionError when the script is
    exhausted.
    """

    name = "scripted"

    def __init__(self, runs: Iterable[Played] = ()) -> None:
        self.jobs: list[CodeJob] = []
        self._runs = iter(list(runs))

    async def run(self, job: CodeJob, *, on_output: Callable[[str], None] | None = None) -> CodeRun:
        """Return the next result, after reporting its output line by line."""
        self.jobs.append(job)
        played = next(self._runs, None)
        if played is None:
            raise AssertionError(f"the script has no run {len(self.jobs)}; code:\n{job.code}")
        if callable(played):
            played = played(job)
        run = went_well(played) if isinstance(played, str) else played
        for line in run.output.splitlines(keepends=True):
            await asyncio.sleep(0)
            if on_output is not None:
                on_output(line)
        return replace(run, backend=self.name)


def went_well(output: str, *tools: str) -> CodeRun:
    """Return a run that ended with exit code 0."""
    calls = tuple(ToolCall(name=tool, keywords={}) for tool in tools)
    return CodeRun(backend="", exit_code=0, output=output, tool_calls=calls)


def failed(output: str, *, exit_code: int = 1) -> CodeRun:
    """Return a run that ended with an error."""
    return CodeRun(backend="", exit_code=exit_code, output=output)


# Crashes: a run that ends as if its process was killed.

When = Literal["before", "torn", "after"]


class Killed(SystemExit):
    """The end of a killed run.

    Error handlers don't catch it, and it ends an event loop immediately. (LangChain and asyncio let
    `SystemExit` pass from any task, but not other subclasses of BaseException.)
    """


@dataclass(frozen=True)
class KillingStore:
    """A store whose runs are killed at their `at`-th record, counted from 1.

    A resumed run counts from 1 again. The kill happens "before" the record is written, "after", or
    with half of its line written ("torn"), as a Killed that leaves the run. Afterward nothing is
    written, not even a transcript. Work in other threads continues, and is lost.
    """

    store: FileStore
    _: KW_ONLY
    at: int
    when: When = "after"

    @property
    def sync(self) -> Sync:
        """Return when written data is flushed."""
        return self.store.sync

    @property
    def redact(self) -> Redact | None:
        """Return the hook that redacts texts before they are written."""
        return self.store.redact

    def create(self, header: RunHeader) -> MortalJournal:
        """Create the journal of a run that will be killed. Raise JournalError as FileStore does."""
        return MortalJournal(self.store.create(header), at=self.at, when=self.when)

    def open(self, run_id: str) -> MortalJournal:
        """Open the journal of a run that will be killed. Raise JournalError as FileStore does."""
        return MortalJournal(self.store.open(run_id), at=self.at, when=self.when)

    def read(self, run_id: str) -> tuple[RunHeader, tuple[CallRecord, ...]]:
        """Return header and records of a run. Raise JournalError as FileStore does."""
        return self.store.read(run_id)

    def has(self, run_id: str) -> bool:
        """Return whether a run exists. Raise JournalError for an invalid id."""
        return self.store.has(run_id)

    def held(self, run_id: str) -> bool:
        """Return whether a process is writing a run."""
        return self.store.held(run_id)

    def runs(self) -> Sequence[str]:
        """Return the ids of all runs."""
        return self.store.runs()

    def folder_of(self, run_id: str) -> Path | None:
        """Return None: a killed process writes no transcript."""
        return None


class MortalJournal:
    """A journal in a file, up to the record at which its run is killed."""

    keyed = True

    def __init__(self, journal: FileJournal, *, at: int, when: When) -> None:
        self._journal = journal
        self._left = at
        self._when = when
        self._torn = b""
        self._lock = threading.Lock()

    @property
    def header(self) -> RunHeader:
        """Return the header of the run."""
        return self._journal.header

    @property
    def records(self) -> tuple[CallRecord, ...]:
        """Return all records in the order in which they were written."""
        return self._journal.records

    def append(self, record: CallRecord) -> None:
        """Write one record, or raise Killed; later records are lost."""
        with self._lock:
            # Counted under the lock: of parallel calls, exactly one may hit the kill.
            self._left -= 1
            if self._left < 0:
                return
            if self._left > 0 or self._when == "after":
                self._journal.append(record)
            if self._left > 0:
                return
            if self._when == "torn":
                # Half a line is what a crash during a write leaves behind; readers must tolerate
                # it.
                line = encode(record_to_plain(record))
                self._torn = line[: len(line) // 2]
        raise Killed(f"the run was killed at the record of {record.key.full_path}")

    def close(self) -> None:
        """Close the file, which then ends as the kill left it."""
        self._journal.close()
        torn, self._torn = self._torn, b""
        if torn:
            with self._journal.path.open("ab") as file:
                file.write(torn)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


# Random answers, to simulate how well a recipe works.

Chance = Callable[[random.Random, str], str | Mapping[str, Any]]


class StochasticModel(BaseChatModel):
    """A model whose answer is drawn by `chance` from random numbers and the last message's text.

    `chance` returns text, or a mapping for structured output. The same seed produces the same
    answers in the order of the calls.
    """

    chance: Chance
    seed: int = 0
    _rng: random.Random = PrivateAttr()

    def model_post_init(self, context: Any, /) -> None:
        """Seed the random generator."""
        self._rng = random.Random(self.seed)  # noqa: S311  (a simulation, no secrets)

    @property
    def _llm_type(self) -> str:
        return "stochastic"

    def with_structured_output(self, schema: Any, **kwargs: Any) -> Runnable[Any, Any]:
        """Return a model whose answers are parsed by the schema, together with the raw answers."""

        def read(message: AIMessage) -> dict[str, Any]:
            try:
                parsed = schema.model_validate(json.loads(str(message.text)))
            except ValueError as error:
                return {"raw": message, "parsed": None, "parsing_error": error}
            return {"raw": message, "parsed": parsed, "parsing_error": None}

        # LangChain's own version needs tool calls, which this model doesn't produce.
        return self | RunnableLambda(read)

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: Any = None,
        **kwargs: Any,
    ) -> ChatResult:
        drawn = self.chance(self._rng, str(messages[-1].text))
        text = drawn if isinstance(drawn, str) else json.dumps(drawn)
        return ChatResult(generations=[ChatGeneration(message=AIMessage(text))])

    # Not in a thread, as LangChain would do: the order of draws must follow the calls.
    async def _agenerate(self, *args: Any, **kwargs: Any) -> ChatResult:
        return self._generate(*args, **kwargs)
