"""What a run lends to its model calls comes back as it was, or is not used again."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from pydantic import Field
from tests.engine.test_isolation import given, spoil

from mergepoint.engine.callbacks import Recorder
from mergepoint.engine.compiler import Form, compile_graph
from mergepoint.engine.step_call import CopyPool
from mergepoint.tree.leaves import Step
from mergepoint.tree.nodes import Block
from mergepoint.tree.policy import Policy


class Incomparable:
    """An artifact that cannot be compared."""

    def __eq__(self, other: object) -> bool:
        """Refuse."""
        raise ValueError("the truth of this is not known")

    __hash__ = None  # type: ignore[assignment]


def test_what_comes_back_as_it_was_is_lent_again() -> None:
    """A longer conversation begins with the same copies; what is new is copied."""
    lent, messages = CopyPool(), given()
    first = lent.borrow(messages)
    lent.give_back(messages, first)
    second = lent.borrow([*messages, HumanMessage("more")])
    assert [copy is known for copy, known in zip(second, first, strict=False)] == [True] * 3
    assert second[:3] == messages
    assert second[3].content == "more"


def test_a_copy_is_with_one_call_at_a_time() -> None:
    """Who borrows while another has the copies gets others."""
    lent, messages = CopyPool(), given()
    first, second = lent.borrow(messages), lent.borrow(messages)
    assert not {id(copy) for copy in first} & {id(copy) for copy in second}
    lent.give_back(messages, first)
    lent.give_back(messages, second)
    assert not {id(c) for c in lent.borrow(messages)} & {id(c) for c in lent.borrow(messages)}


CHANGES: list[Callable[[list[BaseMessage]], Any]] = [
    spoil,
    lambda copies: copies[0].content.append("spoiled"),  # type: ignore[union-attr]
    lambda copies: copies[1].additional_kwargs["deep"]["list"].append(2),
    lambda copies: setattr(copies[0], "extra", 1),
    lambda copies: copies.reverse(),
    lambda copies: copies.pop(),
    lambda copies: copies.insert(0, HumanMessage("spoiled")),
    lambda copies: object.__setattr__(copies[0], "__class__", AIMessage),
]


@pytest.mark.parametrize("change", CHANGES)
def test_what_was_changed_is_not_lent_again(change: Callable[[list[BaseMessage]], Any]) -> None:
    """Whatever was edited, also after it was given back, the next call has the originals."""
    for late in (False, True):
        lent, messages = CopyPool(), given()
        copies = lent.borrow(messages)
        if not late:
            change(copies)
        lent.give_back(messages, copies)
        if late:
            change(copies)
        again = lent.borrow(messages)
        assert [(type(copy), vars(copy)) for copy in again] == [(type(m), vars(m)) for m in given()]


def test_another_conversation_is_not_mixed_up_with_it() -> None:
    """Messages that are equal and not the same are copied anew; so is what follows them."""
    lent, messages = CopyPool(), given()
    lent.give_back(messages, lent.borrow(messages))
    other = [messages[0], HumanMessage("other"), messages[2]]
    assert [copy.content for copy in lent.borrow(other)] == [m.content for m in other]


def test_what_cannot_be_compared_is_copied_anew() -> None:
    """An artifact whose comparison raises costs a copy, and no error."""
    lent = CopyPool()
    messages = [ToolMessage("calm", tool_call_id="c1", artifact=Incomparable())]
    lent.give_back(messages, lent.borrow(messages))
    assert lent.borrow(messages)[0].content == "calm"


class Foreign(BaseCallbackHandler):
    """A handler that is none of LangChain's own."""


class Seeing(BaseChatModel):
    """A model that remembers the objects that it was given."""

    seen: list[Any] = Field(default_factory=list)

    @property
    def _llm_type(self) -> str:
        return "seeing"

    def _generate(self, messages: list[BaseMessage], *args: Any, **kwargs: Any) -> ChatResult:
        self.seen.append(list(messages))
        return ChatResult(generations=[ChatGeneration(message=AIMessage("Yes."))])


@pytest.mark.parametrize("form", ["fused", "subgraphs"])
def test_a_row_of_calls_is_lent_the_same_copies(form: Form) -> None:
    """Without callbacks of others they are made once; with one, for each call."""
    tree = Block([Step(f"Question {n}?", merge="none") for n in range(3)])
    model = Seeing()
    graph = compile_graph(tree, model=model, form=form)
    graph.invoke({"messages": given()}, {"callbacks": [Recorder()]})
    assert len({id(messages[0]) for messages in model.seen}) == 1
    graph.invoke({"messages": given()}, {"callbacks": [Recorder(), Foreign()]})
    assert len({id(messages[0]) for messages in model.seen[3:]}) == 3


@pytest.mark.first_case
@pytest.mark.parametrize("form", ["fused", "subgraphs"])
def test_a_model_that_is_late_keeps_its_copies(form: Form) -> None:
    """A call that timed out may still edit what it has; the next one has other objects."""
    go_on, asked = threading.Event(), []

    class Late(Seeing):
        def _generate(self, messages: list[BaseMessage], *args: Any, **kwargs: Any) -> ChatResult:
            asked.append(messages)
            if len(asked) == 1:
                go_on.wait(10)
            return super()._generate(messages, *args, **kwargs)

    tree = Block([Step("One?", policy=Policy(timeout=0.05, retry=2)), Step("Two?")])
    graph = compile_graph(tree, model=Late(), form=form)
    graph.invoke({"messages": given()}, {"callbacks": [Recorder()]})
    go_on.set()
    first, *others = [{id(message) for message in messages} for messages in asked]
    assert len(others) == 2
    assert not any(first & other for other in others)
