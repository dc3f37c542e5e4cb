"""A real model behind a real server: shapes and counts, never wording."""

from __future__ import annotations

import asyncio
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import openai
import pytest
from langchain_core.language_models import BaseChatModel
from pydantic import BaseModel, Field

from mergepoint import (
    Block,
    ChatRunner,
    Policy,
    RunContext,
    Step,
    Template,
    TruncatedAnswer,
    compile_graph,
)
from mergepoint.engine.run_tree import arun_generation, run_generation
from mergepoint.journal.file_journal import FileStore
from mergepoint.streams.recipe_runs import arun_recipe, run_recipe
from tests.lm.llama import CONTEXT, MODEL, Llama, Proxy, llama

pytestmark = pytest.mark.lm

ACCEPT = Policy(accept_truncated=True)  # so small a model seldom comes to an end by itself
SHORT: dict[str, Any] = {"max_tokens": 32, "temperature": 0.0}
TREE = Block(
    [
        Step(Template("Write a sentence about {{ topic }}."), name="draft", policy=ACCEPT),
        Step("Repeat it.", name="final", merge="last_response", policy=ACCEPT),
    ],
    name="two",
    inputs=("topic",),
)
COMMAND = (sys.executable, "-m", "mergepoint.apps.cli")
GIVEN: dict[str, Any] = {"inputs": {"topic": "rain"}}


class River(BaseModel):
    """A river, as a model describes it."""

    name: str = Field(max_length=30)
    long: bool


def test_runs_have_usage_finish_reasons_and_a_record(model: BaseChatModel, proxy: Proxy) -> None:
    """A run twice in one process, sync and async, asks the server for each step once."""
    for number in range(2):
        run = run_generation(TREE, model=model, **GIVEN, **SHORT)
        other = asyncio.run(arun_generation(TREE, model=model, **GIVEN, **SHORT))
        assert run.text == other.text
        assert len(proxy.asked) == 4 * (number + 1)
    assert set(proxy.answered) == {200}
    for step in run.steps:
        assert step.message is not None
        assert step.message.response_metadata["finish_reason"] in ("stop", "length")
        assert step.usage is not None
        assert 0 < step.usage["output_tokens"] <= 32
        assert step.usage["input_tokens"] > 10


def test_a_stream_gives_the_answer_in_pieces(model: BaseChatModel) -> None:
    """What a turn's events tell, joined, is the answer, and the answer has its usage."""
    ctx = RunContext(**GIVEN)
    events = list(ChatRunner(model, **SHORT).events(ctx, TREE))
    tokens = [event.text for event in events if event.kind == "token" and "final" in event.path]
    assert len(tokens) > 3
    assert "".join(tokens).strip() == str(ctx.messages[-1].text).strip()
    assert all(step.usage for step in ctx.transcript().records)  # asked for in a stream too


def test_graphs_run_sync_and_async(model: BaseChatModel) -> None:
    """A compiled graph gives the same by each of its ways."""
    graph = compile_graph(TREE, model=model, form="fused", **SHORT)
    given = {"messages": [], **GIVEN}
    texts = {
        str(graph.invoke(given)["messages"][-1].text),
        str(asyncio.run(graph.ainvoke(given))["messages"][-1].text),
        str(graph.invoke(given)["messages"][-1].text),
    }
    assert len(texts) == 1


def test_structured_answers_fit_their_schema(model: BaseChatModel) -> None:
    """The server holds the model to a JSON schema."""
    for name in ("Rhine", "Nile"):
        step = Step(f"Describe the river {name} as JSON.", schema=River, capture_key="river")
        run = run_generation(step, model=model, temperature=0.0)
        River.model_validate(run.outputs["river"])


def test_recipes_run_sync_and_async(model: BaseChatModel, proxy: Proxy) -> None:
    """Blocks ask the server too, twice in one process."""
    options: dict[str, Any] = {"model": model, "knobs": {"n": 2}, "temperature": 0.0}
    results = [
        run_recipe("best_of_n", ["A title, please."], **options),
        asyncio.run(arun_recipe("best_of_n", ["A title, please."], **options)),
    ]
    assert {len(result.things) for result in results} == {1}
    assert sum(result.usage.calls for result in results) <= len(proxy.asked)
    assert all(result.usage.total_tokens for result in results)


def test_an_answer_that_was_cut_off_is_an_error(model: BaseChatModel) -> None:
    """Four tokens are not enough, and the error says what to do."""
    with pytest.raises(TruncatedAnswer, match="accept_truncated"):
        run_generation(Step("Tell a long story of a river."), model=model, max_tokens=4)


def test_a_prompt_past_the_context_is_a_clear_error(model: BaseChatModel, proxy: Proxy) -> None:
    """The provider's 400 says how many tokens there are and fit, and is not tried again."""
    step = Step("word " * 2 * CONTEXT, name="long", policy=Policy(retry=3))
    with pytest.raises(openai.BadRequestError, match=rf"exceeds .*context size \({CONTEXT} tokens"):
        run_generation(step, model=model)
    assert proxy.answered == [400]


def test_replays_and_resumes_need_no_server(tmp_path: Path) -> None:
    """With the server stopped a replay gives the same, and a resume asks for what is missing."""
    with llama(tmp_path / "log.txt") as own:
        about: dict[str, Any] = {"model": MODEL, "base_url": own.url, **SHORT}
        run = run_generation(TREE, ctx=RunContext(run_id="r"), **GIVEN, **about)
        assert own.stop() == 0
        replayed = run_generation(TREE, replay="r", **GIVEN, **about)
        resumed = run_generation(TREE, resume="r", **about)
        assert replayed.text == resumed.text == run.text
        with pytest.raises(openai.APIConnectionError):
            run_generation(TREE, **GIVEN, **about)


def test_the_server_ends_when_nobody_holds_it(tmp_path: Path) -> None:
    """Its process is gone once its stdin is closed, and nothing listens any more."""
    with llama(tmp_path / "log.txt") as own:
        assert own.stop() == 0
        assert own.process.poll() == 0


def test_a_killed_run_goes_on_and_asks_for_nothing_twice(server: Llama, tmp_path: Path) -> None:
    """A kill in the middle of `tot_enclave`, and the printed command makes what calls are left."""
    accept = [
        word
        for node in ("draft", "tot_enclave/*")
        for word in ("--set", f'**/{node}:policy={{"accept_truncated": true}}')
    ]
    with Proxy(server.port).serving() as proxy:
        options = ["--model", MODEL, "--base-url", proxy.url, "--max-tokens", "16"]
        options += ["--temperature", "0", *accept, "--yes", "--run-id", "r"]
        brief = ["--input", "brief=A poster of a fox in the snow, for children"]
        command = [*COMMAND, "run", "tot_enclave", *brief, *options]
        with (
            (tmp_path / "log.txt").open("w") as log,
            subprocess.Popen(command, stderr=log, stdout=log) as process,  # noqa: S603
        ):
            until = time.monotonic() + 240
            while len(proxy.answered) < 3:
                assert process.poll() is None, (tmp_path / "log.txt").read_text()
                assert time.monotonic() < until
                time.sleep(0.02)
            process.send_signal(signal.SIGKILL)
        before = _records()
        assert 1 <= len(before) < 7  # answers in flight at the kill are lost
        first, asked = {_last(body) for body in proxy.asked}, len(proxy.asked)
        (way_on,) = re.findall(r"mergepoint (resume .*)", _said("show", "r"))
        _said(*shlex.split(way_on), "--yes")
        again = [_last(body) for body in proxy.asked[asked:]]
    after = _records()
    assert len(after) == 7
    assert {path: after[path] for path in before} == before
    assert len(again) == len(set(again)) == 7 - len(before)
    assert not {prompt for path, (prompt, _) in before.items()} & set(again)
    assert {prompt for prompt, _ in before.values()} <= first


def _said(*words: str) -> str:
    """Return what a command prints, which ends well."""
    done = subprocess.run([*COMMAND, *words], capture_output=True, text=True, check=False)  # noqa: S603
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def _last(body: dict[str, Any]) -> str:
    """Return the prompt of a request."""
    return str(body["messages"][-1]["content"])


def _records() -> dict[str, tuple[str, str]]:
    """Return prompts and answers on record, by path."""
    records = FileStore(Path("runs")).read("r")[1]
    return {one.path: (str(one.prompt), one.response) for one in records if one.answered}
