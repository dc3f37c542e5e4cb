"""A Chainlit app of your own over a mergepoint session. Run it: `chainlit run own_chat.py`."""

from __future__ import annotations

import os

import chainlit as cl

from mergepoint import Block, SessionMemory, Step, Template, arun, open_session

MODEL = os.environ.get("OWN_CHAT_MODEL", "offline")
SESSIONS = os.environ.get("OWN_CHAT_SESSIONS", "sessions")

tree = Block(
    [
        Step(
            Template("Say in one line how to answer this: {{ question }}"),
            name="plan",
            merge="none",
            capture_key="plan",
        ),
        Step(Template("{{ question }}\n\nFollow this plan: {{ plan }}"), name="answer"),
    ],
    name="reply",
    merge="last_response",
    inputs=("question",),
)


@cl.on_message
async def reply(message: cl.Message) -> None:
    """Answer a message, and write it, the plan and the answer to the session of this chat."""
    chat = cl.user_session.get("id")
    memory: SessionMemory = await cl.make_async(open_session)(chat, sessions=SESSIONS)
    earlier = memory.get_conversation_history()
    memory.add_response("user", message.content)
    try:
        result = await arun(
            tree,
            model=MODEL,
            messages=earlier,
            inputs={"question": message.content},
            runs=memory.runs(),
        )
    except Exception as error:
        told = {"type": type(error).__name__, "message": str(error)}
        memory.add_working_step("response", error=told)
        raise
    plan = result.outputs["plan"]
    memory.add_working_step("plan", plan, {"model": MODEL, "run": result.transcript.run_id})
    memory.add_response("assistant", result.text)
    async with cl.Step(name="Plan", type="tool") as step:
        step.output = plan
    await cl.Message(content=result.text).send()
