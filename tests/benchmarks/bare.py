"""The same work as a bare loop over the same LangChain model, with the same callbacks."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.runnables import RunnableConfig
from tests.benchmarks import work as text
from tests.benchmarks.contender import Contender, Ran, Row
from tests.benchmarks.transcript import HandTranscript
from tests.benchmarks.work import CRITICS, QUESTION, Enclave, Fan, Flat, Work


def bare(work: Work, model: BaseChatModel) -> Contender:
    """Return the work as a loop."""

    def run() -> Ran:
        loop = _Loop(model)
        loop.perform(work)
        return loop.ran()

    async def arun() -> Ran:
        loop = _AsyncLoop(model)
        await loop.perform(work)
        return loop.ran()

    return Contender("b", run, arun)


def calls_alone(work: Work, model: BaseChatModel) -> Contender:
    """Return the model calls of a flat row and nothing else: no state, no transcript.

    The conversation is played once beforehand, so each call is sent what it is sent elsewhere.
    """
    if not isinstance(work, Flat):
        raise TypeError("only the calls of a flat row are made alone")
    messages: list[BaseMessage] = [HumanMessage(QUESTION)]
    rows: list[Row] = []
    for step in range(1, work.steps + 1):
        messages.append(HumanMessage(text.step_prompt(step)))
        answer = model._generate(messages).generations[0].message
        messages.append(answer)
        tokens = getattr(answer, "usage_metadata", {})["total_tokens"]
        rows.append((text.step_name(step), text.step_prompt(step), str(answer.text), tokens))
    played = Ran(messages, {}, lambda: rows)

    def run() -> Ran:
        for sent in range(2, len(messages), 2):
            model.invoke(messages[:sent])
        return played

    async def arun() -> Ran:
        for sent in range(2, len(messages), 2):
            await model.ainvoke(messages[:sent])
        return played

    return Contender("m", run, arun)


class _State:
    def __init__(self, model: BaseChatModel) -> None:
        self._model = model
        self._transcript = HandTranscript()
        self._messages: list[BaseMessage] = [HumanMessage(QUESTION)]
        self._outputs: dict[str, Any] = {}

    def ran(self) -> Ran:
        """Return what the run left."""
        return Ran(self._messages, self._outputs, self._transcript.rows)

    def _config(self, path: str) -> RunnableConfig:
        return {"callbacks": [self._transcript], "metadata": {"path": path}}


class _Loop(_State):
    def perform(self, work: Work) -> None:
        """Do the work."""
        if isinstance(work, Enclave):
            self.enclave(work)
        elif isinstance(work, Flat):
            self.flat(work)
        else:
            self.fan(work)

    def _ask(self, seen: list[BaseMessage], path: str, prompt: str) -> tuple[Any, AIMessage]:
        asked = HumanMessage(prompt)
        return asked, self._model.invoke([*seen, asked], self._config(path))

    def flat(self, work: Flat) -> None:
        """Run the steps."""
        for step in range(1, work.steps + 1):
            made = self._ask(self._messages, text.step_name(step), text.step_prompt(step))
            if work.keeps:
                self._messages += made

    def fan(self, work: Fan) -> None:
        """Run the branches in threads."""
        base = self._messages

        def branch(step: int) -> tuple[Any, AIMessage]:
            return self._ask(base, text.step_name(step), text.step_prompt(step))

        with ThreadPoolExecutor(work.limit) as threads:
            made = list(threads.map(branch, range(1, work.branches + 1)))
        self._messages = [*base, *(message for pair in made for message in pair)]

    def enclave(self, work: Enclave) -> None:
        """Run the stages."""
        for stage in range(1, work.stages + 1):
            at = text.stage_name(stage)
            draft = self._ask(self._messages, f"{at}/draft", text.draft_prompt(stage))
            seen = [*self._messages, *draft]

            def critic(name: str, at: str = at, stage: int = stage, seen: Any = seen) -> str:
                prompt = text.critic_prompt(stage, name)
                return str(self._ask(seen, f"{at}/{name}", prompt)[1].text)

            if work.parallel:
                with ThreadPoolExecutor(len(CRITICS)) as threads:
                    said = list(threads.map(critic, CRITICS))
            else:
                said = [critic(name) for name in CRITICS]
            critiques = dict(zip(CRITICS, said, strict=True))
            prompt = text.consensus_prompt(stage, critiques)
            _, consensus = self._ask(seen, f"{at}/consensus", prompt)
            self._messages.append(consensus)
            self._outputs |= {text.key(stage, name): critiques[name] for name in CRITICS}


class _AsyncLoop(_State):
    async def perform(self, work: Work) -> None:
        """Do the work."""
        if isinstance(work, Enclave):
            await self.enclave(work)
        elif isinstance(work, Flat):
            await self.flat(work)
        else:
            await self.fan(work)

    async def _ask(self, seen: list[BaseMessage], path: str, prompt: str) -> tuple[Any, AIMessage]:
        asked = HumanMessage(prompt)
        return asked, await self._model.ainvoke([*seen, asked], self._config(path))

    async def flat(self, work: Flat) -> None:
        """Run the steps."""
        for step in range(1, work.steps + 1):
            made = await self._ask(self._messages, text.step_name(step), text.step_prompt(step))
            if work.keeps:
                self._messages += made

    async def fan(self, work: Fan) -> None:
        """Run the branches in tasks, with a semaphore around the call."""
        base = self._messages
        limit = asyncio.Semaphore(work.limit)

        async def branch(step: int) -> tuple[Any, AIMessage]:
            async with limit:
                return await self._ask(base, text.step_name(step), text.step_prompt(step))

        made = await asyncio.gather(*(branch(step) for step in range(1, work.branches + 1)))
        self._messages = [*base, *(message for pair in made for message in pair)]

    async def enclave(self, work: Enclave) -> None:
        """Run the stages."""
        for stage in range(1, work.stages + 1):
            at = text.stage_name(stage)
            draft = await self._ask(self._messages, f"{at}/draft", text.draft_prompt(stage))
            seen = [*self._messages, *draft]

            async def critic(name: str, at: str = at, stage: int = stage, seen: Any = seen) -> str:
                prompt = text.critic_prompt(stage, name)
                return str((await self._ask(seen, f"{at}/{name}", prompt))[1].text)

            if work.parallel:
                said = await asyncio.gather(*(critic(name) for name in CRITICS))
            else:
                said = [await critic(name) for name in CRITICS]
            critiques = dict(zip(CRITICS, said, strict=True))
            prompt = text.consensus_prompt(stage, critiques)
            _, consensus = await self._ask(seen, f"{at}/consensus", prompt)
            self._messages.append(consensus)
            self._outputs |= {text.key(stage, name): critiques[name] for name in CRITICS}
