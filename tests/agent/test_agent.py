"""The agent: a tree that plans, asks, writes programs, runs them, and answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import HumanMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command

from mergepoint import (
    BudgetExceeded,
    Node,
    Reply,
    SessionError,
    StepError,
    TurnRunner,
    check,
    compile_graph,
    open_session,
    run_generation,
    to_mermaid,
    to_svg,
)
from mergepoint.agent.skills import SkillLibrary
from mergepoint.agent.tree import Plan, agent, plan_of
from mergepoint.agent.turns import (
    Listeners,
    Pending,
    answer,
    cancel,
    decide,
    go_on,
    pending,
    say,
)
from mergepoint.core.errors import SkillError
from mergepoint.engine.callbacks import Event
from mergepoint.offline import model as rules
from mergepoint.sandbox.job import CodeJob, CodeRun
from mergepoint.session.history import UNANSWERED
from mergepoint.testing.fakes import Played, ScriptedRunner, failed, went_well
from mergepoint.testing.scripted_model import ScriptedModel

SKILL = {"intent": "sum", "action": "execute_skill", "skill": "sales_report", "steps": ["Sum."]}
SCRIPT = {"intent": "count", "action": "custom_script", "steps": ["Count."]}
CHAT = {"intent": "hello", "action": "chat"}


def program(code: str) -> str:
    """Return an answer with a program in a fence."""
    return f"Here it is:\n```python\n{code}\n```\nDone."


def model(*plans: Any, code: Any = (), respond: Any = "Done.") -> ScriptedModel:
    """Return a model by what it plans, writes and answers, each in order over all turns."""
    return ScriptedModel(
        by_path={
            **{f"agent/planning/iteration_{n:02d}/propose": one for n, one in enumerate(plans, 1)},
            **{f"agent/work/iteration_{n:02d}/write": one for n, one in enumerate(code, 1)},
            "agent/respond": respond,
        }
    )


class Talk:
    """A session with an agent whose questions are answered from a list."""

    def __init__(
        self, folder: Path, scripted: ScriptedModel, runs: list[Played], **options: Any
    ) -> None:
        self.model = scripted
        self.runner = ScriptedRunner(runs)
        self.turns = TurnRunner(agent(runner=self.runner, **options), model=scripted)
        self.memory = open_session("s", sessions=folder)
        self.asked: list[Pending] = []

    def say(self, text: str, *decisions: Any) -> str:
        """Say something, answer what is asked (by default with yes), and give the answer."""
        return asyncio.run(self._say(text, list(decisions)))

    async def _say(self, text: str, decisions: list[Any]) -> str:
        came = await say(self.turns, self.memory, text)
        while isinstance(came, Pending):
            self.asked.append(came)
            given = decisions.pop(0) if decisions else "approve"
            came = await answer(self.turns, self.memory, given, to=came.key)
        return came.text

    def steps(self, turn: int | None = None) -> list[tuple[Any, ...]]:
        """Return type, path without the root, attempt, and what was decided or came out."""
        return [
            (str(one.type), one.path.removeprefix("agent/"), one.attempt, one.decision)
            for one in self.memory.get_working_steps(turn=turn)
        ]


def test_a_skill_is_planned_approved_written_run_and_told(tmp_path: Path) -> None:
    """The whole way: two questions, one run with the skill's tools and files, one answer."""
    talk = Talk(tmp_path, model(SKILL, code=[program("print(sales())")]), ["42\n"])
    assert talk.say("Sum the sales.") == "Done."
    assert [one.asks for one in talk.asked] == ["plan", "code"]
    [job] = talk.runner.jobs
    assert job.code == "print(sales())\n"
    assert sorted(job.tools) == ["go_on", "sales"]
    assert list(job.files) == ["sales.csv"]
    assert talk.steps() == [
        ("plan", "planning/iteration_01/propose", 1, ""),
        ("decision", "planning/iteration_01/approval", 1, "approve"),
        ("codegen", "work/iteration_01/approval/code", 1, ""),
        ("decision", "work/iteration_01/approval", 1, "approve"),
        ("execute", "work/iteration_01/execute", 1, ""),
    ]
    plan, _, code, _, run = talk.memory.get_working_steps()
    assert (plan.intent, plan.action) == ("sum", "execute_skill")
    assert (code.content, run.printed, run.exit_code) == ("print(sales())\n", ("42\n", ""), 0)
    assert [one.content for one in talk.memory.get_messages()] == ["Sum the sales.", "Done."]


def test_chat_asks_nobody_and_runs_nothing(tmp_path: Path) -> None:
    """A plan to chat goes straight to the answer: two calls of the model, no question."""
    talk = Talk(tmp_path, model(CHAT, respond="Hello!"), [])
    assert talk.say("Hi.") == "Hello!"
    assert talk.asked == []
    assert [call.path for call in talk.model.calls] == [
        "agent/planning/iteration_01/propose",
        "agent/respond",
    ]


def test_a_rejected_plan_is_made_again_with_the_feedback(tmp_path: Path) -> None:
    """The second plan is asked for with the first one and what the user said about it."""
    talk = Talk(tmp_path, model(SKILL, SCRIPT, code=[program("print(1)")]), ["1\n"])
    talk.say("Sum.", {"decision": "reject", "feedback": "No skill, please."})
    again = str(talk.model.calls[1].messages[-1].text)
    assert "<feedback>\nNo skill, please.\n</feedback>" in again
    assert '"skill": "sales_report"' in again
    assert [one.plan.action for one in talk.asked if one.plan] == ["execute_skill", "custom_script"]
    assert "sales" not in talk.runner.jobs[0].tools
    assert sorted(talk.runner.jobs[0].files) == ["orders.json", "sales.csv", "stock.db"]


@pytest.mark.parametrize(
    ("plan", "problem"),
    [
        ({**SKILL, "skill": "sale_report"}, "did you mean 'sales_report'"),
        ({**SKILL, "skill": ""}, "execute_skill names no skill"),
        ({**SKILL, "steps": [" "]}, "the plan has no steps"),
    ],
)
def test_a_plan_that_cannot_be_carried_out_is_sent_back(
    tmp_path: Path, plan: Any, problem: str
) -> None:
    """Nobody is asked about it; the model is told what is wrong, and mends it."""
    talk = Talk(tmp_path, model(plan, CHAT), [])
    talk.say("Sum.")
    assert talk.asked == []
    assert problem in str(talk.model.calls[1].messages[-1].text)


def test_an_answer_that_is_no_plan_is_tried_again(tmp_path: Path) -> None:
    """A model that gives prose in place of a plan is asked a second time."""
    talk = Talk(tmp_path, model(["I would rather talk.", CHAT]), [])
    assert talk.say("Hi.") == "Done."


def test_the_plan_is_asked_for_whole_and_taken_in_part() -> None:
    """Strict interfaces want every field and no default; a model that leaves some out is heard."""
    schema = Plan.model_json_schema()
    assert schema["required"] == list(schema["properties"])
    assert not any("default" in field for field in schema["properties"].values())
    assert plan_of(CHAT) == Plan(intent="hello", action="chat", skill="", steps=[])


def test_no_plan_at_all_is_an_error_that_says_where(tmp_path: Path) -> None:
    """After the second try the turn fails at the path of the plan, and the session says so."""
    talk = Talk(tmp_path, model(["Prose.", {"intent": "x", "action": "dance"}]), [])
    with pytest.raises(StepError, match="does not fit Plan"):
        talk.say("Hi.")
    [step] = talk.memory.get_steps(type="response")
    assert step.error is not None
    assert step.error["path"] == "agent/planning/iteration_01/propose"


def test_plans_that_nobody_approves_end_with_an_answer(tmp_path: Path) -> None:
    """After the last plan the answer says that nothing was run, and nothing was."""
    talk = Talk(tmp_path, model(SKILL, SCRIPT), [], plans=2)
    assert talk.say("Sum.", "reject", {"decision": "reject", "feedback": "no"}) == "Done."
    last = str(talk.model.calls[-1].messages[-1].text)
    assert last.startswith(rules.NOT_APPROVED)
    assert "<reason>\nno\n</reason>" in last
    assert talk.runner.jobs == []


def test_a_program_that_fails_is_written_again_with_its_error(tmp_path: Path) -> None:
    """The second one is asked for with the first and its error, and is a question of its own."""
    talk = Talk(
        tmp_path,
        model(SKILL, code=[program("print(1/0)"), program("print(2)")]),
        [failed("ZeroDivisionError: division by zero"), "2\n"],
    )
    talk.say("Sum.")
    again = str(talk.model.calls[2].messages[-1].text)
    assert "<previous_code>\nprint(1/0)\n</previous_code>" in again
    assert "exit code 1\nZeroDivisionError" in again
    assert [one.asks for one in talk.asked] == ["plan", "code", "code"]
    assert [one[:3] for one in talk.steps() if one[0] == "execute"] == [
        ("execute", "work/iteration_01/execute", 1),
        ("execute", "work/iteration_02/execute", 2),
    ]


@pytest.mark.parametrize(
    ("bad", "problem"),
    [
        ("I cannot.", "the answer holds no program"),
        ("```sql\nselect 1\n```", "the answer holds no program"),
        (program("print("), "does not compile: line 1: '(' was never closed: print("),
        (program("x = '\0'"), "does not compile"),
    ],
)
def test_what_cannot_be_run_is_sent_back_without_asking(
    tmp_path: Path, bad: str, problem: str
) -> None:
    """No fence, another language, no Python: mended at attempt 2, and nothing was run before."""
    talk = Talk(tmp_path, model(SKILL, code=[bad, program("print(2)")]), ["2\n"])
    talk.say("Sum.")
    assert [one.code for one in talk.asked if one.asks == "code"] == ["print(2)\n"]
    assert problem in str(talk.model.calls[2].messages[-1].text)
    assert [one for one in talk.steps() if one[0] == "execute"] == [
        ("execute", "work/iteration_02/execute", 2, "")
    ]
    [told] = [one for one in talk.memory.get_working_steps() if problem in one.feedback]
    assert (told.decision, told.attempt) == ("reject", 1)


def test_a_program_that_never_works_is_told_and_not_hidden(tmp_path: Path) -> None:
    """After three attempts the answer is asked for with the last problem, and no result."""
    talk = Talk(
        tmp_path, model(SKILL, code=[program("1/0")] * 3), [failed("A"), failed("B"), failed("C")]
    )
    talk.say("Sum.")
    last = str(talk.model.calls[-1].messages[-1].text)
    assert last.startswith(rules.FAILED)
    assert "exit code 1\nC" in last
    assert len(talk.runner.jobs) == 3


def test_a_stopped_program_says_by_which_limit(tmp_path: Path) -> None:
    """What was printed before the limit goes back to the model with the limit's name."""
    stopped = CodeRun(backend="", exit_code=None, output="so far", stopped="wall")
    talk = Talk(
        tmp_path, model(SKILL, code=[program("while 1: pass"), program("1")]), [stopped, ""]
    )
    talk.say("Sum.")
    again = str(talk.model.calls[2].messages[-1].text)
    assert "stopped: it passed the limit of wall\nso far" in again


def going_on(output: str) -> Callable[[CodeJob], CodeRun]:
    """Return a run that asks for another program."""

    def run(job: CodeJob) -> CodeRun:
        job.tools["go_on"](f"after {output}")
        return went_well(output)

    return run


def test_a_program_may_ask_for_another_one_within_bounds(tmp_path: Path) -> None:
    """Each one is a new question, sees the output so far, and after two more it ends."""
    talk = Talk(
        tmp_path,
        model(SKILL, code=[program(f"print({n})") for n in range(4)]),
        [going_on("one"), going_on("two"), going_on("three")],
    )
    talk.say("Sum.")
    assert [one.asks for one in talk.asked] == ["plan", "code", "code", "code"]
    third = str(talk.model.calls[3].messages[-1].text)
    assert "<output_so_far>\none\ntwo\n</output_so_far>" in third
    assert "<next>\nafter two\n</next>" in third
    last = str(talk.model.calls[-1].messages[-1].text)
    assert "<output>\none\ntwo\nthree\n</output>" in last


def test_what_a_person_edits_is_what_is_run(tmp_path: Path) -> None:
    """An edited plan is carried out, an edited program run; the session holds both."""
    talk = Talk(tmp_path, model(SKILL, code=[program("print(1)")]), ["2\n"])
    edited = '{"intent":"mine","action":"custom_script","steps":["Do."]}'
    talk.say(
        "Sum.", {"decision": "edit", "text": edited}, {"decision": "edit", "text": "print(2)\n"}
    )
    [job] = talk.runner.jobs
    assert (job.code, sorted(job.tools)) == ("print(2)\n", ["go_on"])
    texts = [one.content for one in talk.memory.get_working_steps() if one.decision == "edit"]
    assert texts == [edited, "print(2)\n"]


@pytest.mark.parametrize(
    ("at", "text", "problem"),
    [("plan", "{}", "the plan is invalid"), ("code", "print(", "does not compile")],
)
def test_an_edit_that_cannot_be_carried_out_leaves_the_question_open(
    tmp_path: Path, at: str, text: str, problem: str
) -> None:
    """It is refused before it is on record, and can be answered anew."""
    talk = Talk(tmp_path, model(SKILL, code=[program("print(1)")]), ["1\n"])

    async def run() -> str:
        came = await say(talk.turns, talk.memory, "Sum.")
        while isinstance(came, Pending):
            if came.asks == at:
                with pytest.raises(StepError, match=problem):
                    decide(talk.turns, talk.memory, {"decision": "edit", "text": text}, to=came.key)
                again = pending(talk.turns, talk.memory)
                assert again is not None
                assert again.key == came.key
            came = await answer(talk.turns, talk.memory, "approve", to=came.key)
        return came.text

    assert asyncio.run(run()) == "Done."


def test_an_old_button_answers_nothing(tmp_path: Path) -> None:
    """A key is good for one question: not for the next one, not twice, not after the turn."""
    talk = Talk(tmp_path, model(SKILL, code=[program("print(1)")]), ["1\n"])

    async def run() -> None:
        first = await say(talk.turns, talk.memory, "Sum.")
        assert isinstance(first, Pending)
        second = await answer(talk.turns, talk.memory, "approve", to=first.key)
        assert isinstance(second, Pending)
        with pytest.raises(SessionError, match="not open any more"):
            await answer(talk.turns, talk.memory, "approve", to=first.key)
        assert isinstance(await answer(talk.turns, talk.memory, "approve", to=second.key), Reply)
        for old in (first, second):
            with pytest.raises(SessionError, match="not open any more"):
                await answer(talk.turns, talk.memory, "approve", to=old.key)

    asyncio.run(run())
    assert len(talk.runner.jobs) == 1


def test_a_turn_that_is_over_cannot_be_gone_on_with(tmp_path: Path) -> None:
    """Whoever comes back to it later is told so, and nothing is run."""
    talk = Talk(tmp_path, model(CHAT), [])
    talk.say("Hi.")
    assert pending(talk.turns, talk.memory) is None
    with pytest.raises(SessionError, match="has nothing to resume"):
        asyncio.run(go_on(talk.turns, talk.memory))
    with pytest.raises(SessionError, match="no unfinished turn"):
        cancel(talk.memory)


def test_of_two_tabs_one_answers(tmp_path: Path) -> None:
    """The same question is answered from two places at once: once it counts, once it is refused."""
    talk = Talk(tmp_path, model(SKILL, code=[program("print(1)")]), ["1\n"])
    other = open_session("s", sessions=tmp_path)

    async def run() -> list[Any]:
        asked = await say(talk.turns, talk.memory, "Sum.")
        assert isinstance(asked, Pending)
        tabs = [
            answer(talk.turns, memory, "approve", to=asked.key) for memory in (talk.memory, other)
        ]
        return await asyncio.gather(*tabs, return_exceptions=True)

    came = asyncio.run(run())
    assert sorted(type(one).__name__ for one in came) == ["Pending", "SessionError"]
    assert [call.path for call in talk.model.calls].count("agent/work/iteration_01/write") == 1


def test_a_host_asks_and_answers_as_with_any_graph() -> None:
    """Compiled, it stops by LangGraph's interrupts, and gives the conversation with the answer."""
    runner = ScriptedRunner(["1\n"])
    graph = compile_graph(
        agent(runner=runner),
        model=model(SKILL, code=[program("print(1)")]),
        checkpointer=InMemorySaver(),
    )
    thread: RunnableConfig = {"configurable": {"thread_id": "t"}}
    came = graph.invoke({"messages": [("user", "Sum.")]}, thread)
    asked = []
    while "__interrupt__" in came:
        asked.append(came["__interrupt__"][0].value["question"])
        came = graph.invoke(Command(resume="approve"), thread)
    assert asked == ["Carry out this plan?", "Run this program?"]
    assert [str(one.text) for one in came["messages"]] == ["Sum.", "Done."]


def test_a_cancelled_turn_never_takes_the_next_message(tmp_path: Path) -> None:
    """The next message is planned anew, with nothing of the cancelled one but that it is over."""
    talk = Talk(tmp_path, model([SKILL, CHAT], respond="Hello!"), [])

    async def run() -> Pending:
        came = await say(talk.turns, talk.memory, "Delete everything.")
        assert isinstance(came, Pending)
        cancel(talk.memory)
        return came

    old = asyncio.run(run())
    assert talk.say("Hi.") == "Hello!"
    seen = [str(one.text) for one in talk.model.calls[1].messages]
    assert seen[:3] == ["Delete everything.", UNANSWERED, "Hi."]
    assert "sales_report" not in seen[3].partition("<skills>")[0]
    with pytest.raises(SessionError, match="not open any more"):
        asyncio.run(answer(talk.turns, talk.memory, "approve", to=old.key))
    assert talk.runner.jobs == []


def test_another_process_finds_the_question_and_answers_it(tmp_path: Path) -> None:
    """With nothing but the folder a turn that waits goes on, and pays nothing twice."""
    first = Talk(tmp_path, model(SKILL, code=[program("print(1)")]), ["1\n"])
    asked = asyncio.run(say(first.turns, first.memory, "Sum."))
    assert isinstance(asked, Pending)
    other = Talk(tmp_path, model(code=[program("print(1)")]), ["1\n"])
    found = pending(other.turns, other.memory)
    assert found is not None
    assert found.key == asked.key
    decide(other.turns, other.memory, "approve", to=found.key)
    came = asyncio.run(go_on(other.turns, other.memory))
    assert isinstance(came, Pending)
    reply = asyncio.run(answer(other.turns, other.memory, "approve", to=came.key))
    assert isinstance(reply, Reply)
    assert [call.path for call in other.model.calls] == [
        "agent/work/iteration_01/write",
        "agent/respond",
    ]


def test_listeners_hear_of_everything_once(tmp_path: Path) -> None:
    """What is on record is not told again when a turn goes on; output comes piece by piece."""
    talk = Talk(tmp_path, model(SKILL, code=[program("print(1)")]), ["one\ntwo\n"])
    events: list[Event] = []
    pieces: list[tuple[str, str]] = []
    listeners = Listeners(event=events.append, output=lambda *piece: pieces.append(piece))

    async def run() -> None:
        came = await say(talk.turns, talk.memory, "Sum.", listeners=listeners)
        while isinstance(came, Pending):
            came = await answer(
                talk.turns, talk.memory, "approve", to=came.key, listeners=listeners
            )

    asyncio.run(run())
    ended = [one.path for one in events if one.kind == "end" and one.of != "gate"]
    assert len(ended) == len(set(ended)) == 6
    told = "".join(
        one.text for one in events if one.kind == "token" and one.path.endswith("respond")
    )
    assert told == "Done."
    assert pieces == [("agent/work/iteration_01/execute", text) for text in ("one\n", "two\n")]


def test_listeners_hear_of_the_next_turn_as_of_the_first(tmp_path: Path) -> None:
    """The paths of a turn before, a cancelled one too, are not taken for those of this one."""
    talk = Talk(tmp_path, model([SKILL, CHAT, CHAT], respond=["One.", "Two."]), [])
    events: list[Event] = []

    async def run() -> None:
        assert isinstance(await say(talk.turns, talk.memory, "Sum."), Pending)
        cancel(talk.memory)
        for _ in range(2):
            await say(talk.turns, talk.memory, "Hi.", listeners=Listeners(event=events.append))

    asyncio.run(run())
    ended = [one.path for one in events if one.kind == "end" and one.of == "step"]
    assert ended == ["agent/planning/iteration_01/propose", "agent/respond"] * 2


def test_stopping_a_turn_stops_what_it_runs(tmp_path: Path) -> None:
    """A cancelled task cancels the run of the program, and the turn is over."""
    stopped: list[bool] = []

    class Endless:
        name = "endless"

        async def run(self, job: CodeJob, *, on_output: Any = None) -> CodeRun:
            on_output("begun")
            try:
                await asyncio.Event().wait()
            finally:
                stopped.append(True)
            raise AssertionError

    tree = agent(runner=Endless(), ask=())
    turns = TurnRunner(tree, model=model(SKILL, code=[program("print(1)")]))
    memory = open_session("s", sessions=tmp_path)

    async def run() -> None:
        begun = asyncio.Event()
        listeners = Listeners(output=lambda path, text: begun.set())
        task = asyncio.create_task(say(turns, memory, "Sum.", listeners=listeners))
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(run())
    assert stopped == [True]
    assert memory.unfinished is None
    [step] = memory.get_steps(type="response")
    assert step.cancelled


def test_without_questions_nobody_is_asked(tmp_path: Path) -> None:
    """`ask=()` approves by configuration, and the session says so."""
    talk = Talk(tmp_path, model(SKILL, code=[program("print(1)")]), ["1\n"], ask=())
    talk.say("Sum.")
    assert talk.asked == []
    told = {one.feedback for one in talk.memory.get_working_steps() if one.decision}
    assert told == {"approved by configuration"}


def test_odd_characters_are_kept_in_a_form_that_can_be_written(tmp_path: Path) -> None:
    """Halves of surrogate pairs and control characters in plan, output and answer break nothing."""
    plan = {**SCRIPT, "intent": "x \ud800"}
    talk = Talk(
        tmp_path, model(plan, code=[program("print(1)")], respond="done \udc00"), ["a\ud800\x1b\0"]
    )
    assert talk.say("hi \ud800") == "done \ufffd"
    [run] = talk.memory.get_working_steps(type="execute")
    assert run.printed == ("a\ufffd\x1b\0", "")
    again = open_session("s", sessions=tmp_path)
    assert again.get_messages() == talk.memory.get_messages()


def test_it_is_a_tree_like_any_other(tmp_path: Path) -> None:
    """It is checked, compiled, drawn, budgeted, and its run replays from its record."""
    tree: Node = agent(runner=ScriptedRunner(["1\n"]), ask=())
    assert check(tree) == []
    assert "Carry out this plan" in to_mermaid(tree)
    assert to_svg(tree).startswith("<svg")
    compile_graph(tree, model=model())
    scripted = model(SKILL, code=[program("print(1)")])
    ran = run_generation(tree, model=scripted, messages=[HumanMessage("Sum.")], runs=tmp_path)
    again = run_generation(
        tree, model=model(), messages=[HumanMessage("Sum.")], runs=tmp_path, replay=ran.path_of_run
    )
    assert again.text == ran.text == "Done."
    poor = agent(runner=ScriptedRunner(), ask=(), budget={"calls": 1})
    with pytest.raises(BudgetExceeded):
        run_generation(poor, model=model(SKILL), messages=[HumanMessage("Sum.")], runs=tmp_path)


def test_a_tool_may_not_take_the_agents_own_name(tmp_path: Path) -> None:
    """A skill with a tool called go_on is refused when the agent is made."""
    folder = tmp_path / "one"
    folder.mkdir()
    (folder / "SKILL.md").write_text(
        "---\nname: one\ndescription: d\n---\n## When to use\nx\n## Inputs\nx\n## Logic Flow\nx\n",
        encoding="utf-8",
    )
    (folder / "tools.py").write_text("def go_on(x: str) -> str:\n    'Give.'\n    return x\n")
    with pytest.raises(SkillError, match="cannot be called 'go_on'"):
        agent(SkillLibrary.at(tmp_path))


def test_the_offline_model_knows_the_prompts_by_how_they_begin() -> None:
    """Its rules name the first words of the agent's prompts; here they are held together."""
    from mergepoint.agent import tree as prompts

    for name in ("PLAN", "CODE", "FROM_OUTPUT", "FAILED", "NOT_APPROVED", "CHAT"):
        text = " ".join(getattr(prompts, name).split())
        assert text.startswith(getattr(rules, name)), name
