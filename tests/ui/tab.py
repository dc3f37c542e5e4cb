"""Tab: a browser's tab without a browser. It speaks to the server as the page does."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Self

import httpx
import socketio

from mergepoint.apps.chainlit.thread_view import XRAY

_OF_STEPS = ("new_message", "update_message", "stream_start", "stream_token", "delete_message")

WAIT = 60.0
"""Seconds after which what is waited for will not come; no test waits for them to pass."""


class Tab:
    """A tab that looks at a thread, or at a new one; it holds what the page would show."""

    def __init__(self, address: str, thread: str | None = None) -> None:
        self.address = address
        self.thread = thread
        self.session = str(uuid.uuid4())
        self.steps: dict[str, dict[str, Any]] = {}
        self.actions: dict[str, dict[str, Any]] = {}
        self.toasts: list[str] = []
        self.events: list[str] = []
        self.tokens: list[str] = []
        self.posts: list[dict[str, Any]] = []
        self.busy = False
        self.waits = True
        self._changed = asyncio.Event()
        self._http = httpx.AsyncClient(base_url=address, timeout=WAIT)
        self._socket = socketio.AsyncClient(reconnection=False)
        self._socket.on("*", self._hear)

    async def __aenter__(self) -> Self:
        """Log in, and open the page."""
        await self.login()
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close the tab."""
        await self._socket.disconnect()
        await self._http.aclose()

    async def login(self, name: str = "", password: str = "") -> httpx.Response:
        """Log in, without a form where the server asks for none."""
        if name:
            said = {"username": name, "password": password}
            return await self._http.post("/login", data=said)
        return await self._http.post("/auth/header")

    async def open(self) -> None:
        """Connect, as a page that was loaded."""
        cookies = "; ".join(f"{name}={value}" for name, value in self._http.cookies.items())
        await self._socket.connect(
            self.address,
            socketio_path="/ws/socket.io",
            transports=["websocket"],
            headers={"Cookie": cookies, "Origin": self.address},
            auth={
                "sessionId": self.session,
                "clientType": "webapp",
                "userEnv": "{}",
                "chatProfile": "",
                "threadId": self.thread or "",
            },
        )
        await self._socket.emit("connection_successful")
        if self.thread and self.waits:
            await self.until(lambda: "resume_thread" in self.events)

    async def drop(self) -> None:
        """Lose the connection; `open` finds it again, as the same page."""
        await self._socket.disconnect()
        self.actions = {}

    async def say(self, text: str) -> str:
        """Send a message, and give its id."""
        step = str(uuid.uuid4())
        message = {
            "id": step,
            "threadId": self.thread or "",
            "name": "local",
            "type": "user_message",
            "output": text,
            "createdAt": datetime.now(UTC).isoformat(),
        }
        self.steps[step] = message
        await self._socket.emit("client_message", {"message": message, "fileReferences": []})
        return step

    async def click(self, label: str) -> httpx.Response:
        """Click the button with a label."""
        await self.until(lambda: any(one["label"] == label for one in self.actions.values()))
        action = [one for one in self.actions.values() if one["label"] == label][-1]
        return await self.click_action(action)

    async def click_action(self, action: dict[str, Any]) -> httpx.Response:
        """Click a button, also one that is not there any more."""
        said = {"action": action, "sessionId": self.session}
        return await self._http.post("/project/action", json=said)

    async def edit(self) -> dict[str, Any]:
        """Click *Edit*, and give what the server posts for the editor."""
        before = len(self.posts)
        await self.click("Edit")

        def opened() -> list[dict[str, Any]]:
            return [one for one in self.posts[before:] if one["mergepoint"] == "edit"]

        await self.until(lambda: bool(opened()))
        return opened()[-1]

    async def save(self, editor: dict[str, Any], text: str) -> Any:
        """Save a text in an editor, and give what is wrong with it."""
        action = {**editor["action"], "payload": {**editor["action"]["payload"], "text": text}}
        said = {"action": action, "sessionId": editor["sessionId"]}
        answer = await self._http.post("/project/action", json=said)
        return answer.json()["response"]

    async def stop(self) -> None:
        """Click the button that stops."""
        await self._socket.emit("stop")

    async def get(self, path: str) -> httpx.Response:
        """Ask the server for something."""
        return await self._http.get(path)

    async def send(self, method: str, path: str, body: dict[str, Any]) -> httpx.Response:
        """Send something to the server."""
        return await self._http.request(method, path, json=body)

    async def threads(self, **filters: Any) -> list[dict[str, Any]]:
        """Return the list at the side."""
        body = {"pagination": {"first": 200}, "filter": filters}
        found = (await self._http.post("/project/threads", json=body)).json()
        listed: list[dict[str, Any]] = found["data"]
        return listed

    def texts(self, *kinds: str) -> list[str]:
        """Return the texts of what is said, by default by the page, in order of time.

        Links to X-rays are no part of what is said.
        """
        wanted = kinds or ("assistant_message", "system_message")
        texts = [one["output"] for one in self.shown() if one["type"] in wanted]
        return [text for text in texts if f"]({XRAY}/" not in text]

    def shown(self) -> list[dict[str, Any]]:
        """Return what is shown, in order of time."""
        return sorted(self.steps.values(), key=lambda one: str(one.get("createdAt")))

    def named(self, name: str) -> dict[str, Any]:
        """Return the step of a name, of which the part before the first dot counts."""
        return next(one for one in self.steps.values() if one["name"].split(" · ")[0] == name)

    def labels(self) -> set[str]:
        """Return the labels of all buttons."""
        return {str(one["label"]) for one in self.actions.values()}

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait until something holds of what is shown."""
        async with asyncio.timeout(WAIT):
            while not holds():
                self._changed.clear()
                await self._changed.wait()

    async def until_said(self, text: str) -> None:
        """Wait for an answer, whole."""
        await self.until(lambda: not self.busy and text in self.texts())

    async def until_asked(self, question: str) -> None:
        """Wait for a question that can be answered."""
        await self.until(
            lambda: (
                not self.busy
                and any(question in one for one in self.texts())
                and "Approve" in self.labels()
            )
        )

    async def _hear(self, event: str, data: Any = None) -> None:
        self.events.append(event)
        if event in _OF_STEPS:
            self._hear_of_step(event, data)
        elif event == "resume_thread":
            self.steps = {one["id"]: one for one in data["steps"]}
        elif event == "first_interaction":
            self.thread = data["thread_id"]
        elif event == "action":
            self.actions[data["id"]] = data
        elif event == "remove_action":
            self.actions.pop(data["id"], None)
        elif event == "window_message":
            self.posts.append(data)
        elif event == "toast":
            self.toasts.append(data["message"])
        elif event in ("task_start", "task_end"):
            self.busy = event == "task_start"
        self._changed.set()

    def _hear_of_step(self, event: str, data: dict[str, Any]) -> None:
        if event == "delete_message":
            self.steps.pop(data["id"], None)
        elif event == "stream_token":
            self.tokens.append(data["token"])
            step = self.steps[data["id"]]
            step["output"] = data["token"] if data["isSequence"] else step["output"] + data["token"]
        else:
            self.steps[data["id"]] = {**self.steps.get(data["id"], {}), **data}
