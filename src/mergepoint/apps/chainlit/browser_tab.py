"""One browser tab: the steps that it was sent."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextvars import Context
from typing import Any

import chainlit as cl
from chainlit.context import init_ws_context
from chainlit.session import WebsocketSession

from mergepoint.apps.chainlit.shown_step import Button, ShownStep, timestamp


class TabView:
    """A tab, which is sent the differences from its earlier state, in order."""

    def __init__(self, session: WebsocketSession) -> None:
        self.session = session
        self._sent: dict[str, ShownStep] = {}
        self._parts: dict[str, cl.Message | cl.Step] = {}
        self._lock = asyncio.Lock()

    @property
    def owner(self) -> str:
        """Return the identifier of the tab's user."""
        return str(getattr(self.session.user, "identifier", ""))

    def mark_sent(self, steps: Iterable[ShownStep]) -> None:
        """Record that the tab has these steps, from a thread that it loaded."""
        self._sent.update((one.id, one) for one in steps if not one.live)

    async def show(self, steps: Sequence[ShownStep], *, turn: int) -> None:
        """Show the current state of a turn."""
        await self._in_context(lambda _: self._show(steps, turn))

    async def show_buttons(self, steps: Iterable[ShownStep]) -> None:
        """Send the buttons of the tab's steps: a loaded thread comes without them.

        They are removed first, because a page that reconnects to another server still has them.
        """

        async def resend() -> None:
            for one in steps:
                await _change_buttons(one, None)
                await _change_buttons(None, one)

        await self._in_context(lambda _: resend())

    async def busy(self, *, working: bool) -> None:
        """Show or hide the stop button."""
        await self._in_context(
            lambda emitter: emitter.task_start() if working else emitter.task_end()
        )

    async def post(self, message: Mapping[str, Any]) -> None:
        """Post a message to the page's own script."""
        await self._in_context(lambda emitter: emitter.send_window_message(dict(message)))

    async def toast(self, text: str) -> None:
        """Show a message that isn't stored."""
        await self._in_context(lambda emitter: emitter.send_toast(text, "info"))

    async def _in_context(self, work: Callable[[Any], Awaitable[Any]]) -> None:
        """Call `work` with the tab's emitter, in its Chainlit context and in order."""

        async def run() -> None:
            await work(cl.context.emitter)

        # Chainlit finds the tab through a context variable: a fresh context keeps tabs apart.
        own = Context()
        own.run(init_ws_context, self.session)
        async with self._lock:
            await asyncio.create_task(run(), context=own)

    async def _show(self, steps: Sequence[ShownStep], turn: int) -> None:
        ids = {one.id for one in steps}
        for one in steps:
            old = self._sent.get(one.id)
            if old == one:
                continue
            self._sent[one.id] = one
            await (self._message(one) if one.message else self._step(one, old))
            await _change_buttons(old, one)
        # Steps can disappear, such as a partial answer whose call failed and is retried.
        for one in [*self._sent.values()]:
            if one.turn == turn and one.id not in ids:
                await self._remove(one)

    async def _message(self, one: ShownStep) -> None:
        part = self._parts.get(one.id)
        if not isinstance(part, cl.Message):
            kind: Any = one.type
            part = self._parts[one.id] = cl.Message(
                content="",
                id=one.id,
                author=one.name,
                type=kind,
                parent_id=one.parent,
                metadata=one.metadata,
                created_at=timestamp(one.created_at),
            )
        part.is_error = one.is_error
        if one.live:
            await _stream(part, part.content, one.text)
            return
        part.content = one.text
        await (part.update() if part.persisted else part.send())

    async def _step(self, one: ShownStep, old: ShownStep | None) -> None:
        part = self._parts.get(one.id)
        if not isinstance(part, cl.Step):
            part = self._parts[one.id] = _new_step(one)
        if one.live and old is not None:
            await _stream(part, part.output, one.text)
            return
        part.name = one.name
        part.output = one.text
        part.is_error = one.is_error
        part.default_open, part.auto_collapse = one.open, not one.open
        part.end = timestamp(one.ended_at) if one.ended_at else None
        await (part.update() if part.persisted else part.send())

    async def _remove(self, one: ShownStep) -> None:
        await _change_buttons(one, None)
        part: Any = self._parts.pop(one.id, None)
        self._sent.pop(one.id)
        if part is None:
            part = cl.Message(content="", id=one.id) if one.message else _new_step(one)
        await part.remove()


def _new_step(one: ShownStep) -> cl.Step:
    kind: Any = one.type
    part = cl.Step(
        name=one.name,
        type=kind,
        id=one.id,
        parent_id=one.parent,
        default_open=one.open,
        auto_collapse=not one.open,
        metadata=one.metadata,
        show_input=False,
    )
    part.created_at = part.start = timestamp(one.created_at)
    return part


async def _stream(part: cl.Message | cl.Step, old: str, new: str) -> None:
    """Send what was added to a text."""
    # Most updates append: sending only the new part keeps long answers cheap.
    if new.startswith(old):
        await part.stream_token(new[len(old) :])
    else:
        await part.stream_token(new, is_sequence=True)


async def _change_buttons(old: ShownStep | None, new: ShownStep | None) -> None:
    before = old.buttons if old else ()
    after = new.buttons if new else ()
    if old is not None:
        for button in before:
            if button not in after:
                await _action(button, old.id).remove()
    if new is not None:
        for button in after:
            if button not in before:
                await _action(button, new.id).send(for_id=new.id)


def _action(button: Button, step: str) -> cl.Action:
    return cl.Action(
        name=button.name,
        payload={**button.payload, "step": step},
        label=button.label,
        tooltip=button.tooltip,
        icon=button.icon,
        forId=step,
        id=button.id_at(step),
    )
