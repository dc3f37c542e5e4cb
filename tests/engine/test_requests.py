"""What a step sends, on every engine: prompt, system, examples, content, parameters, schema."""

from __future__ import annotations

import json
from typing import Any

import pytest
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage
from pydantic import BaseModel
from tests.engine.engines import Engine, texts

from mergepoint.core.errors import AnswerError, StepError, TreeError
from mergepoint.engine.callbacks import Recorder
from mergepoint.engine.compiler import compile_graph
from mergepoint.engine.interpreter import interpret
from mergepoint.models.providers import View
from mergepoint.report.views import in_full
from mergepoint.testing.scripted_model import Answer, ScriptedModel
from mergepoint.tree.leaves import Step
from mergepoint.tree.nodes import Block
from mergepoint.tree.prompts import PromptContext, Template

PIXEL = "data:image/png;base64,iVBORw0KGgo="
IMAGE: list[str | dict[str, Any]] = [
    {"type": "text", "text": "What is this?"},
    {"type": "image_url", "image_url": {"url": PIXEL}},
]


class Verdict(BaseModel):
    """A judgement."""

    winner: str
    points: int


def test_a_system_prompt_reaches_the_model_and_never_the_state(engine: Engine) -> None:
    """The system message leads its own call, and no other sees it."""
    model = ScriptedModel(default="x")
    end = engine(Block([Step("A.", system="Be brief."), Step("B.")]), model)
    assert model.calls[0].messages[0] == SystemMessage("Be brief.")
    assert "Be brief." not in [*texts(model.calls[1].messages), *end.texts]


def test_a_system_prompt_may_be_a_template(engine: Engine) -> None:
    """The places of a system template are filled from inputs and outputs."""
    tree = Block([Step("A.", system=Template("Write for {{ who }}."))], inputs=["who"])
    model = ScriptedModel(["x"])
    engine(tree, model, inputs={"who": "pupils"})
    assert texts(model.calls[0].messages) == ["Write for pupils.", "A."]


def test_examples_reach_the_model_and_never_the_state(engine: Engine) -> None:
    """Few-shot messages stand between the system message and the conversation."""
    step = Step("A.", system="S.", examples=[("2+2?", "4"), HumanMessage("3+3?"), AIMessage("6")])
    model = ScriptedModel(default="x")
    end = engine(Block([step, Step("B.")]), model, messages=[HumanMessage("Hi.", id="g")])
    sent = [(one.type, one.text) for one in model.calls[0].messages]
    assert sent == [
        ("system", "S."),
        *[("human", "2+2?"), ("ai", "4"), ("human", "3+3?"), ("ai", "6")],
        *[("human", "Hi."), ("human", "A.")],
    ]
    assert texts(model.calls[1].messages) == [*end.texts[:3], "B."] == ["Hi.", "A.", "x", "B."]


def test_image_blocks_reach_the_model_and_the_state(engine: Engine) -> None:
    """Content blocks are sent as they are, and are part of the prompt that is merged."""
    model = ScriptedModel(["a pixel"])
    end = engine(Block([Step(lambda ctx: IMAGE)]), model)
    assert model.calls[0].messages[-1].content == IMAGE
    assert end.messages[0].content == IMAGE


def test_an_image_of_a_silent_step_never_reaches_the_state(engine: Engine) -> None:
    """With merge none what was looked at is gone, and what was said of it can be captured."""
    model = ScriptedModel(["a pixel", "x"])
    look = Step(lambda ctx: IMAGE, merge="none", capture_key="seen")
    end = engine(Block([look, Step(Template("Of {{ seen }}."))]), model)
    assert texts(model.calls[1].messages) == ["Of a pixel."]
    assert end.texts == ["Of a pixel.", "x"]


def test_blocks_that_a_prompt_function_keeps_cannot_change_the_state(engine: Engine) -> None:
    """A list that the function returns and changes later is not the one that is kept."""
    kept: list[str | dict[str, Any]] = [{"type": "text", "text": "A."}]

    def spoil(ctx: PromptContext) -> str:
        kept.clear()
        return "B."

    tree = Block([Step(lambda ctx: kept), Step(spoil)])
    assert engine(tree, ScriptedModel(default="x")).texts == ["A.", "x", "B.", "x"]


def test_temperature_and_params_reach_the_model(engine: Engine) -> None:
    """They go to the call as they are; a step without them sends none."""
    model = ScriptedModel(default="x")
    step = Step("A.", temperature=0.2, params={"top_p": 0.9, "stop": ["END"]})
    engine(Block([step, Step("B.")]), model)
    assert [call.params for call in model.calls] == [
        {"temperature": 0.2, "top_p": 0.9, "stop": ["END"]},
        {},
    ]


def test_a_temperature_of_zero_is_sent(engine: Engine) -> None:
    """Zero is a temperature, not its absence."""
    model = ScriptedModel(["x"])
    engine(Step("A.", temperature=0), model)
    assert model.calls[0].params == {"temperature": 0}


def test_temperature_and_params_reach_a_model_that_answers_by_schema(engine: Engine) -> None:
    """Structured output does not take a step's parameters away."""
    model = ScriptedModel([{"winner": "a", "points": 1}])
    engine(Step("A.", schema=Verdict, temperature=0.2, params={"top_p": 0.9}), model)
    params = model.calls[0].params
    assert {"temperature": 0.2, "top_p": 0.9}.items() <= params.items()
    assert "tools" in params


def test_params_are_on_record(engine: Engine) -> None:
    """The record says what the call was made with, and by which model."""
    recorder = Recorder()
    engine(Step("A.", temperature=0.5), ScriptedModel(["x"]), recorder=recorder)
    (record,) = recorder.journal.records
    assert (dict(record.params), record.model) == ({"temperature": 0.5}, "scripted:scripted")


def test_a_step_may_have_a_model_of_its_own(engine: Engine) -> None:
    """The step's model answers in place of the run's, for this step only."""
    own, runs = ScriptedModel(["own"]), ScriptedModel(["run's"])
    with own, runs:
        end = engine(Block([Step("A."), Step("B.", model=own)]), runs)
    assert end.texts == ["A.", "run's", "B.", "own"]


def test_a_tree_whose_steps_all_have_models_needs_none(engine: Engine) -> None:
    """The run's model may be left out where every step brings one."""
    assert engine(Step("A.", model=ScriptedModel(["own"])), None).texts == ["A.", "own"]


def test_a_schema_answer_is_canonical_json_and_its_capture_is_plain(engine: Engine) -> None:
    """The message holds JSON with sorted keys and no tool calls, the output plain data."""
    model = ScriptedModel([Verdict(winner="ä", points=3)])
    end = engine(Block([Step("A.", schema=Verdict, capture_key="verdict")]), model)
    message = end.messages[-1]
    assert isinstance(message, AIMessage)
    assert message.content == '{"points":3,"winner":"ä"}'
    assert (message.tool_calls, message.additional_kwargs) == ([], {})
    assert end.outputs == {"verdict": {"winner": "ä", "points": 3}}
    assert json.loads(message.content) == end.outputs["verdict"]


def test_a_schema_answer_may_come_as_text(engine: Engine) -> None:
    """A model that writes the JSON itself is understood too."""
    model = ScriptedModel([' {"points": 1, "winner": "b"}\n'])
    assert engine(Step("A.", schema=Verdict), model).texts[-1] == '{"points":1,"winner":"b"}'


@pytest.mark.parametrize(
    "answer",
    [{"winner": "a"}, {"winner": "a", "points": "many"}, "no JSON", "", "[]", None],
    ids=["missing", "type", "text", "blank", "list", "none"],
)
def test_an_answer_that_does_not_fit_the_schema_raises(engine: Engine, answer: Any) -> None:
    """It is an AnswerError at the step's path, recorded as a failure."""
    recorder = Recorder()
    tree = Block([Step("A.", schema=Verdict, capture_key="k")])
    with pytest.raises(StepError, match="does not fit Verdict") as raised:
        engine(tree, ScriptedModel([answer]), recorder=recorder)
    assert getattr(raised.value, "pipeline_path", "") == "pipeline/step_01"
    assert [record.error["type"] for record in recorder.journal.records if record.error] == [
        "AnswerError"
    ]


POSITIONS: dict[str, tuple[Any, dict[str, Any]]] = {
    "half of it": (Answer('{"winner": "a",'), {"line": 1, "column": 15}),
    "prose": (Answer("The winner\nis a."), {"line": 1, "column": 1}),
    "a field": (Answer('{"winner": "a", "points": "many"}'), {"field": "points"}),
    "a tool call": ({"winner": "a", "points": "many"}, {"field": "points"}),
}


@pytest.mark.parametrize("case", POSITIONS)
def test_what_does_not_fit_is_kept_with_the_place_of_the_problem(engine: Engine, case: str) -> None:
    """The failed attempt on record has the whole answer, and its error says where it is wrong."""
    answer, position = POSITIONS[case]
    recorder = Recorder()
    with pytest.raises(AnswerError) as raised:
        engine(Step("A.", schema=Verdict), ScriptedModel([answer]), recorder=recorder)
    assert raised.value.position == position
    (record,) = recorder.journal.records
    assert record.error is not None
    assert record.error["position"] == position
    assert record.message is not None
    assert "winner" in in_full(record.message)


def test_content_blocks_go_to_the_record_and_to_the_state(engine: Engine) -> None:
    """An answer in content blocks is merged as it is; its response is the text."""
    blocks: list[str | dict[str, Any]] = [
        {"type": "reasoning", "reasoning": "hm"},
        {"type": "text", "text": "the answer"},
    ]
    recorder = Recorder()
    end = engine(Step("A."), ScriptedModel([blocks]), recorder=recorder)
    (record,) = recorder.journal.records
    assert record.response == "the answer"
    assert end.messages[-1].content == blocks
    assert record.message is not None
    assert record.message.content == blocks


def test_text_beside_a_tool_call_is_the_response(engine: Engine) -> None:
    """The tool call stays on the merged message."""
    answer = AIMessage("text", tool_calls=[{"name": "f", "args": {}, "id": "1"}])
    end = engine(Step("A."), ScriptedModel([answer]))
    merged = end.messages[-1]
    assert isinstance(merged, AIMessage)
    assert (merged.text, [call["name"] for call in merged.tool_calls]) == ("text", ["f"])


def test_a_literal_prompt_is_taken_literally(engine: Engine) -> None:
    """Braces in a text prompt are no places."""
    assert engine(Step("{x} {{}} %s"), ScriptedModel(["z"])).texts == ["{x} {{}} %s", "z"]


def test_a_value_is_never_rendered_twice(engine: Engine) -> None:
    """What a model said is data, also where it looks like a place."""
    tree = Block(
        [Step("A.", merge="none", capture_key="a"), Step(Template("Of {{ a }}"))], inputs=["s"]
    )
    end = engine(tree, ScriptedModel(["{{ s }}", "x"]), inputs={"s": "secret"})
    assert end.texts == ["Of {{ s }}", "x"]


def test_meta_goes_along_in_the_calls_metadata(graph_engine: Engine) -> None:
    """A step's meta is the user's own, found under the call's mark, and never in the context."""
    found: list[Any] = []

    class Listener(Recorder):
        def on_chat_model_start(self, *args: Any, **kwargs: Any) -> None:
            found.append(kwargs["metadata"]["mergepoint"])

    model = ScriptedModel(["x"])
    graph_engine(Step("A.", meta={"team": "blue"}), model, recorder=Listener())
    assert found == [{"path": "step_01", "run": "r1", "host": "", "n": 0, "meta": {"team": "blue"}}]
    assert texts(model.calls[0].messages) == ["A."]


def test_nothing_of_the_transcript_is_ever_model_context(engine: Engine) -> None:
    """What the model was given holds prompts and answers, and nothing that records know."""
    answer = AIMessage("fine", response_metadata={"finish_reason": "SECRET-META"}, id="SECRET-ID")
    tree = Block([Step("A.", meta={"k": "SECRET-NOTE"}), Step("B."), Step("C.")], name="tree")
    recorder, model = Recorder(), ScriptedModel([answer, answer, "x"])
    engine(tree, model, recorder=recorder)
    sent = repr([message.content for call in model.calls for message in call.messages])
    for unwanted in ("SECRET", "tree/", "step_0", "scripted", "r1", "usage", "as_is"):
        assert unwanted not in sent
    assert [len(call.messages) for call in model.calls] == [1, 3, 5]


@pytest.mark.parametrize(
    ("view", "sent"),
    [
        ("as_is", ["x", "y", "C."]),
        ("alternate", ["(The conversation so far.)", "x\n\ny", "C."]),
    ],
)
def test_a_view_changes_what_is_sent_and_not_the_state(view: View, sent: list[str]) -> None:
    """The joined conversation is what the provider gets; the state keeps its messages."""
    model, recorder = ScriptedModel(["x", "y", "z"]), Recorder()
    tree = Block([Step("A.", merge="last_response"), Step("B.", merge="last_response"), Step("C.")])
    state = interpret(tree, model=model, view=view, recorder=recorder)
    assert texts(model.calls[2].messages) == sent
    assert [record.view for record in recorder.journal.records] == [view] * 3
    assert texts(state.messages) == ["x", "y", "C.", "z"]


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("form", "fusd", "did you mean 'fused'"),
        ("returns", "all", "allowed are 'conversation', 'delta'"),
        ("view", "zigzag", "allowed are 'as_is', 'alternate'"),
    ],
)
def test_an_unknown_option_is_refused(option: str, value: str, message: str) -> None:
    """A form, result or view that does not exist is a TreeError that lists what does."""
    options: dict[str, Any] = {option: value}
    with pytest.raises(TreeError, match=message):
        compile_graph(Step("A."), model=ScriptedModel([]), **options)


def test_no_base_message_is_sent_twice(engine: Engine) -> None:
    """However deep a step stands, each message of its view reaches the model once."""
    deep = Block([Block([Step("B.")]), Step("C.")])
    model = ScriptedModel(default="x")
    base: list[BaseMessage] = [HumanMessage("Hi.", id="g")]
    engine(Block([Step("A."), deep]), model, messages=base)
    assert texts(model.calls[-1].messages) == ["Hi.", "A.", "x", "B.", "x", "C."]
