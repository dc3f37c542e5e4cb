"""A Chainlit app of your own whose threads are sessions. Run it: `chainlit run own_history.py`."""

from __future__ import annotations

import os

import chainlit as cl
from chainlit.types import ThreadDict

from mergepoint import Block, Step, TurnRunner
from mergepoint.apps.chainlit import FileDataLayer, Threads, shown_id
from mergepoint.session import sessions_at

MODEL = os.environ.get("OWN_CHAT_MODEL", "offline")
SESSIONS = os.environ.get("OWN_CHAT_SESSIONS", "sessions")
USER = "me"

tree = Block([Step("Answer in one line.", name="answer")], name="reply", merge="last_response")
turns = TurnRunner(tree, model=MODEL)
threads = Threads(sessions_at(SESSIONS), turns.tree)


@cl.data_layer
def layer() -> FileDataLayer:
    """Give Chainlit the sessions as its threads."""
    return FileDataLayer(threads, local=USER)


@cl.header_auth_callback
async def login(headers: object) -> cl.User:
    """Let in everybody who reaches the server, as one user: Chainlit lists threads by users."""
    return cl.User(identifier=USER)


@cl.on_chat_resume
async def resume(thread: ThreadDict) -> None:
    """Let a thread of the list go on; its messages are there already."""


@cl.on_message
async def reply(message: cl.Message) -> None:
    """Answer a message in the session of this thread."""
    memory = threads.memory(cl.context.session.thread_id, create=True)
    answer = await turns.arun(memory, message.content, message_id=message.id)
    await cl.Message(answer.text, id=shown_id(answer.message.id)).send()
