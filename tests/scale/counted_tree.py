"""A tree whose model writes each of its calls to a file: a target of tests with several processes.

The environment says what happens: CALLS is the file, LATENCY the seconds of a call. A prompt with
"die" ends the process; one with "pause" stops it, as SIGSTOP does.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from typing import Any

from langchain_core.callbacks import (
    AsyncCallbackManagerForLLMRun,
    CallbackManagerForLLMRun,
)
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatResult

from mergepoint import Block, Step, Template


class CountedModel(BaseChatModel):
    """Answers with its prompt after a while, and writes down each answer before it is returned."""

    @property
    def _llm_type(self) -> str:
        return "counted"

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **_: Any,
    ) -> ChatResult:
        return asyncio.run(self._agenerate(messages))

    async def _agenerate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **_: Any,
    ) -> ChatResult:
        prompt = str(messages[-1].content)
        if "die" in prompt:
            os._exit(9)
        if "pause" in prompt:
            os.kill(os.getpid(), signal.SIGSTOP)
        await asyncio.sleep(float(os.environ.get("LATENCY", "0")))
        if (calls := os.environ.get("CALLS")) is not None:
            # One write at the end of the file: lines of several processes don't mix.
            file = os.open(calls, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
            os.write(file, f"{time.time():.3f} {os.getpid()} {prompt}\n".encode())
            os.close(file)
        answer = AIMessage(f"<{prompt}>")
        return ChatResult(generations=[ChatGeneration(message=answer)])


MODEL = CountedModel()

tree = Block(
    [
        Step(Template("{{ topic }} a"), name="a", capture_key="a", model=MODEL),
        Step(Template("{{ a }} b"), name="b", capture_key="b", model=MODEL),
        Step(Template("{{ b }} c"), name="c", capture_key="c", model=MODEL),
    ],
    name="counted",
    merge="none",
    inputs=("topic",),
)
