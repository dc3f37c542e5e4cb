"""Sessions with an agent, as tests of the view need them."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from mergepoint import SessionMemory, TurnRunner, open_session
from mergepoint.agent.tree import agent
from mergepoint.agent.turns import Pending, answer, say
from mergepoint.session.session_memory import Sessions
from mergepoint.testing.fakes import Played, ScriptedRunner, failed
from mergepoint.testing.scripted_model import ScriptedModel
from mergepoint.view.session_data import session_data

PLAN = {
    "intent": "Sum the sales.",
    "action": "execute_skill",
    "skill": "sales_report",
    "steps": ["Read sales.csv.", "Sum the amounts."],
}
CHAT = {"intent": "Say hello.", "action": "chat"}
WRONG = failed("ZeroDivisionError: division by zero")


def program(code: str) -> str:
    """Return an answer of a model with a program in it."""
    return f"Here it is:\n```python\n{code}\n```"


def talk(
    sessions: Sessions | Path,
    *,
    session_id: str = "trip",
    plans: tuple[Any, ...] = (PLAN,),
    programs: tuple[str, ...] = ("print(1 / 0)", "print(42)"),
    runs: tuple[Played, ...] = (WRONG, "42\n"),
    respond: Any = "The sales are 42.",
    ask: tuple[Any, ...] = ("plan", "code"),
) -> tuple[SessionMemory, TurnRunner]:
    """Return an empty session and an agent that plays a script in each of its turns."""
    model = ScriptedModel(
        by_path={
            **{f"agent/planning/iteration_{n:02d}/propose": one for n, one in enumerate(plans, 1)},
            **{
                f"agent/work/iteration_{n:02d}/write": program(one)
                for n, one in enumerate(programs, 1)
            },
            "agent/respond": respond,
        }
    )
    turns = TurnRunner(agent(runner=ScriptedRunner(list(runs)), ask=ask), model=model)
    return open_session(session_id, sessions=sessions), turns


def said(memory: SessionMemory, turns: TurnRunner, text: str, *decisions: Any) -> Pending | str:
    """Say something, and answer the questions with the decisions; return what comes then."""

    async def go() -> Pending | str:
        came = await say(turns, memory, text)
        for one in decisions:
            assert isinstance(came, Pending)
            came = await answer(turns, memory, one, to=came.key)
        return came if isinstance(came, Pending) else came.text

    # In a thread: playwright keeps an event loop running in this one.
    with ThreadPoolExecutor(1) as one:
        return one.submit(lambda: asyncio.run(go())).result()


def shown(memory: SessionMemory, **options: Any) -> tuple[dict[str, Any], list[str], list[str]]:
    """Return a session's data, the texts that it numbers, and the ids of its runs."""
    texts: list[str] = []
    runs: list[str] = []

    def text(one: str) -> int:
        texts.append(one)
        return len(texts) - 1

    def run(state: Any) -> int:
        runs.append(state.run_id)
        return len(runs) - 1

    return session_data(memory, text=text, run=run, **options), texts, runs
