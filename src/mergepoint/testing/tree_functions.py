"""Predictable parts of random trees: prompts, decisions, conditions, tools, and answers."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Final

from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.messages.ai import UsageMetadata
from langchain_core.messages.tool import tool_call
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.runnables import Runnable, RunnableConfig
from pydantic import BaseModel, PrivateAttr

from mergepoint.core.merge import last_response
from mergepoint.offline.model import LocalChatModel
from mergepoint.tree.decision import Question
from mergepoint.tree.prompts import CallContext, PromptContext, Reads, as_text

Line = tuple[str, str]
"""A message as data: role and text."""

AnswerDetails = Mapping[str, Any]
"""The parts of an answer besides its text: thoughts, name, finish reason, model, usage, calls."""

_ROLES = {"human": "user", "ai": "assistant"}


class ProviderFailure(Exception):
    """An error like a provider's: its constructor needs more than a message."""

    def __init__(self, *, status: int, body: str) -> None:
        super().__init__(f"{status}: {body}")
        self.status = status
        self.body = body


FAILURES: Mapping[str, Callable[[str], Exception] | str] = {
    "blank": "",
    "spaces": " \n\t",
    "runtime": RuntimeError,
    "value": ValueError,
    "key": KeyError,
    "timeout": TimeoutError,
    "connection": ConnectionError,
    "provider": lambda body: ProviderFailure(status=503, body=body),
}
"""The ways in which a call can fail: an error of some type, or a blank answer."""


class ReplySchema(BaseModel):
    """The schema of random trees: how many messages a table saw, and its answer.

    Its fields are not in the order of the alphabet, which is that of canonical JSON.
    """

    seen: int
    said: str


@dataclass(frozen=True)
class AnswerTable:
    """Answers that depend on the path and on every message seen, so that a wrong view shows.

    `failures` maps paths to the way in which their calls fail, a key of FAILURES.
    """

    seed: int = 0
    _: KW_ONLY
    failures: Mapping[str, str] = field(default_factory=dict)

    def __call__(self, path: str, seen: Sequence[Line]) -> str:
        """Return the answer to a call, or raise the failure of its path."""
        if path in self.failures:
            failure = FAILURES[self.failures[path]]
            if isinstance(failure, str):
                return failure
            raise failure(f"no answer at {path}")
        digest = self.digest(path, seen)
        # The digest also picks the form, so that every engine sees the same answer.
        form = _FORMS[int(digest[0], 16) % len(_FORMS)]
        return form.replace("?", digest)

    def details(
        self, path: str, seen: Sequence[Line], *, structured: bool = False
    ) -> AnswerDetails:
        """Return the parts of an answer besides its text."""
        digest = self.digest(path, seen)
        numbers = [int(digit, 16) for digit in digest]
        plain = numbers[-1] % 2 == 1
        return {
            "thoughts": [] if plain else [f"thought at {path}"],
            "name": "table" if numbers[1] % 2 else None,
            "finish_reason": "stop",
            "model_name": digest,
            "tokens": [numbers[2], numbers[3]],
            "calls": [f"look_{digest}"] if numbers[4] < 4 and not structured else [],
        }

    def tool_calls(
        self, path: str, seen: Sequence[Line], tools: Sequence[str]
    ) -> Sequence[tuple[str, str]]:
        """Return the tools that an answer calls, each with a string; none after at most two rounds.

        Now and then, the tool isn't one of `tools`.
        """
        # Only answers after the last user message are rounds; earlier ones are the conversation.
        roles = [role for role, _ in seen]
        rounds = roles[len(roles) - roles[::-1].index("user") :].count("assistant")
        # By path only: a digest of the messages would change the limit in each round.
        if rounds >= int(self.digest(path, ())[1], 16) % 3:
            return []
        digest = self.digest(path, seen)
        known = [*tools, "nothing"]
        picked = digest[5:7] if int(digest[7], 16) % 2 else digest[5]
        return [(known[int(one, 16) % len(known)], f"{one}{digest}") for one in picked]

    def digest(self, path: str, seen: Sequence[Line]) -> str:
        """Return eight hexadecimal digits from the seed, the path, and the messages."""
        told = repr((self.seed, path, list(seen))).encode()
        return hashlib.blake2b(told, digest_size=4).hexdigest()


# Placeholders in an answer must not be filled in, and its spaces must not be stripped.
_FORMS = ("answer ?", "answer ?", "see {{ plan }} ?", "  answer ?\n", "{{plan}}?", "Größe ?\n\n- a")


def line(message: BaseMessage) -> Line:
    """Return a message as data."""
    return _ROLES.get(message.type, message.type), str(message.text)


def answer_details(message: BaseMessage) -> AnswerDetails | None:
    """Return the parts of a model's answer besides its text; None for other messages."""
    metadata = message.response_metadata
    if not isinstance(message, AIMessage) or "model_name" not in metadata:
        return None
    usage = message.usage_metadata or {"input_tokens": 0, "output_tokens": 0}
    blocks = [one for one in message.content if isinstance(one, dict)]
    return {
        "thoughts": [one["reasoning"] for one in blocks if one["type"] == "reasoning"],
        "name": message.name,
        "finish_reason": metadata["finish_reason"],
        "model_name": metadata["model_name"],
        "tokens": [usage["input_tokens"], usage["output_tokens"]],
        "calls": [call["name"] for call in message.tool_calls],
    }


class TableModel(LocalChatModel):
    """A chat model that answers from a table, and records the messages at each path.

    The path comes from the call's `metadata["mergepoint"]["path"]`. Half of the answers are content
    blocks with reasoning before the text, as newer providers return them. All have token usage and
    response metadata, and some have a name or a tool call. For structured output, it fills in
    `ReplySchema`, half of the time as a tool call and otherwise as JSON text. The table decides
    which tools are called.
    """

    table: AnswerTable

    _saw: list[tuple[str, tuple[Line, ...]]] = PrivateAttr(default_factory=list)

    @property
    def saw(self) -> list[tuple[str, tuple[Line, ...]]]:
        """Return path and messages of each call, in order of their start."""
        return list(self._saw)

    @property
    def _llm_type(self) -> str:
        return "answer-table"

    def _answer(
        self, messages: list[BaseMessage], metadata: Mapping[str, Any], tools: Sequence[Any]
    ) -> ChatResult:
        path = str(metadata["mergepoint"]["path"])
        seen = tuple(map(line, messages))
        self._saw.append((path, seen))
        text = self.table(path, seen)
        about = self.table.details(path, seen, structured=bool(tools))
        message = _message(text, about)
        names = [tool["function"]["name"] for tool in tools]
        if names and names != [ReplySchema.__name__]:
            message.tool_calls = [
                tool_call(name=name, args={"text": given}, id=f"call {number} of {len(seen)}")
                for number, (name, given) in enumerate(self.table.tool_calls(path, seen, names))
            ]
        elif tools and text.strip():
            filled = ReplySchema(said=text, seen=len(seen)).model_dump()
            if about["thoughts"]:
                name = tools[0]["function"]["name"]
                message = _message("", about)
                message.tool_calls = [tool_call(name=name, args=filled, id=f"call at {path}")]
            else:
                message = _message(json.dumps(filled), about)
        return ChatResult(generations=[ChatGeneration(message=message)])

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        metadata = run_manager.metadata if run_manager else {}
        return self._answer(messages, metadata, kwargs.get("tools", ()))

    async def _agenerate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        metadata = run_manager.metadata if run_manager else {}
        path = str(metadata["mergepoint"]["path"])
        # Calls that start together end in an order of their own, the same in every run.
        for _ in range(int(self.table.digest(path, ())[0], 16) % 4):
            await asyncio.sleep(0)
        return self._answer(messages, metadata, kwargs.get("tools", ()))


def _message(text: str, about: AnswerDetails) -> AIMessage:
    content: Any = text
    if about["thoughts"]:
        thoughts = [{"type": "reasoning", "reasoning": thought} for thought in about["thoughts"]]
        content = [*thoughts, {"type": "text", "text": text}]
    given, made = about["tokens"]
    return AIMessage(
        content,
        name=about["name"],
        tool_calls=[tool_call(name=name, args={}, id=name) for name in about["calls"]],
        response_metadata={key: about[key] for key in ("finish_reason", "model_name")},
        usage_metadata=UsageMetadata(
            input_tokens=given, output_tokens=made, total_tokens=given + made
        ),
    )


def spoil(messages: Iterable[BaseMessage], values: Iterable[Any]) -> str:
    """Try to change messages and values in place, and return blank text."""
    for message in messages:
        message.content = "spoiled"
        message.id = "spoiled"
    for value in values:
        if isinstance(value, list):
            value.append("spoiled")
    return ""


Part = tuple[str, ...]

SAFE_PARTS = ("text", "read", "last", "count", "keys", "path", "draw", "spoil")
BROKEN_PARTS = ("raise", "none", "number")


class PromptError(Exception):
    """Error of a random tree's prompt function that was planned to fail."""


@dataclass(frozen=True)
class PartsPrompt:
    """A prompt function that joins its parts with spaces.

    Parts: `("text", words)`; `("read", key)`; `("last",)`, the last message's text; `("count",)`,
    the number of messages; `("keys",)`, the keys captured so far; `("path",)`; `("draw",)`, a
    random number of the run; `("spoil",)`, nothing, but it tries to change its arguments. With one
    of BROKEN_PARTS, the prompt fails: it raises PromptError, or returns None or a number.

    `defaults` makes reads optional. With `declared=False`, its reads are unknown before the run.
    With `blocks=True`, it returns content blocks instead of text.
    """

    parts: Sequence[Part]
    _: KW_ONLY
    defaults: Mapping[str, str] = field(default_factory=dict)
    declared: bool = True
    blocks: bool = False

    @property
    # The attribute that the decorator `reads` would set.
    def __mergepoint_reads__(self) -> Reads | None:
        if not self.declared:
            return None
        keys = [part[1] for part in self.parts if part[0] == "read"]
        return Reads(tuple(dict.fromkeys(keys)), self.defaults)

    def __call__(self, ctx: PromptContext) -> Any:
        """Return the prompt, or raise PromptError if a part requires it."""
        kinds = {part[0] for part in self.parts}
        if "raise" in kinds:
            raise PromptError("planned to fail")
        if "none" in kinds:
            return None
        if "number" in kinds:
            return 7
        pieces = [_SAYS[part[0]](ctx, part) for part in self.parts]
        text = " ".join(piece for piece in pieces if piece)
        return [{"type": "text", "text": text}] if self.blocks else text


_SAYS: Mapping[str, Callable[[PromptContext, Part], str]] = {
    "text": lambda ctx, part: part[1],
    "read": lambda ctx, part: as_text(ctx.read(part[1])),
    "last": lambda ctx, part: str(ctx.messages[-1].text) if ctx.messages else "nothing",
    "count": lambda ctx, part: str(len(ctx.messages)),
    "keys": lambda ctx, part: ",".join(sorted(ctx.outputs)),
    "path": lambda ctx, part: ctx.path,
    "draw": lambda ctx, part: str(ctx.rng.randrange(1_000_000)),
    # Prompts receive copies, so a correct engine shows no effect of this.
    "spoil": lambda ctx, part: spoil(ctx.messages, [*ctx.inputs.values(), *ctx.outputs.values()]),
}


class PlannedError(Exception):
    """Error of a random tree's function that was planned to fail."""


def digest(path: str, messages: Iterable[BaseMessage], outputs: Mapping[str, Any]) -> str:
    """Return eight hexadecimal digits from a path, messages, and outputs."""
    # Sorted keys: the order of outputs must not matter.
    told = json.dumps(
        [path, [line(message) for message in messages], dict(outputs)], sort_keys=True
    )
    return hashlib.blake2b(told.encode(), digest_size=4).hexdigest()


SAFE_WORDS = ("approve", "yes", "edit", "outputs", "reject", "no", "feedback")
BROKEN_WORDS = ("raise", "odd")


@dataclass(frozen=True)
class DecisionFunction:
    """A gate's decision function that picks one of its words by a digest of the question.

    `approve` and `yes`; `reject` and `no`; `feedback`, a rejection with a reason; `edit`, another
    text instead of the response (JSON if it is structured); and `outputs`, another value instead of
    the first output. If there is nothing to replace, it approves. With one of BROKEN_WORDS, it
    raises PlannedError or returns an invalid decision. With `spoils`, it tries to change the
    question.
    """

    words: Sequence[str]
    _: KW_ONLY
    spoils: bool = False

    def __call__(self, question: Question) -> Any:
        """Return the decision, or raise PlannedError if the word requires it."""
        kept = question.kept
        # Read everything before spoiling: the decision depends on the question as asked.
        seen = digest(f"{question.path}?{question.text}", kept.messages, kept.outputs)
        keys = sorted(kept.outputs)
        has_text = last_response(kept.messages) is not None or question.capture_key in keys
        if self.spoils:
            spoil(kept.messages, kept.outputs.values())
        word = self.words[int(seen, 16) % len(self.words)]
        if word == "raise":
            raise PlannedError("the answerer was planned to fail")
        if word == "edit" and has_text:
            text = json.dumps({"edited": seen}) if question.structured else f"edited {seen}"
            return {"decision": "edit", "text": text, "feedback": "better so"}
        if word == "outputs" and keys:
            return {"decision": "edit", "outputs": {keys[0]: ["edited", seen]}}
        if word == "feedback":
            return {"decision": "reject", "feedback": f"not {seen}"}
        said = {"yes": True, "no": False, "reject": "reject", "odd": "perhaps"}
        return said.get(word, "approve")


FORMS = ("new", "whole", "one", "mapping")


@dataclass(frozen=True)
class EchoRunnable(Runnable[Any, Any]):
    """A Runnable that answers messages with a digest of them.

    `form`: "new", a list of the new messages; "whole", the conversation with the new messages;
    "one", a single message; "mapping", a result like a graph's. With `asks`, a user's message comes
    first.
    """

    form: str = "new"
    _: KW_ONLY
    asks: bool = False

    def invoke(
        self,
        input: list[BaseMessage],  # noqa: A002  (LangChain's name)
        config: RunnableConfig | None = None,
        **kwargs: Any,
    ) -> Any:
        """Return the messages."""
        said = AIMessage(f"spoken {digest('', input, {})}")
        new: list[BaseMessage] = [HumanMessage("And?"), said] if self.asks else [said]
        if self.form == "one":
            return said
        if self.form == "mapping":
            return {"messages": [*input, *new], "score": [len(input)], "nothing": {}}
        return [*input, *new] if self.form == "whole" else new


COUNTED = ("messages", "key", "whim")
BROKEN_COUNTS = ("raise", "number")


@dataclass(frozen=True)
class StopRule:
    """A loop condition that depends only on the loop's state after an iteration.

    `of="messages"`: true once there are `count` messages; "key": once the number under `key` is
    `count`; "whim": in one of `count` cases, depending on the whole state. With one of
    BROKEN_COUNTS, it raises PlannedError, or returns a number instead of a bool.
    """

    count: int
    _: KW_ONLY
    of: str = "messages"
    key: str = ""

    def __call__(self, ctx: PromptContext) -> Any:
        """Return whether the loop may end, or raise PlannedError if its kind requires it."""
        if self.of == "raise":
            raise PlannedError("until was planned to fail")
        if self.of == "number":
            return 1
        if self.of == "whim":
            return int(digest(ctx.path, ctx.messages, ctx.outputs), 16) % self.count == 0
        if self.of == "messages":
            return len(ctx.messages) >= self.count
        value = ctx.outputs.get(self.key)
        return isinstance(value, int) and value >= self.count


SAFE_RESULTS = ("seen", "count", "list", "map", "flag", "read", "draw", "spoil", "ask")
BROKEN_RESULTS = ("raise", "odd", "blank")


@dataclass(frozen=True)
class DataFunction:
    """A function that returns plain data about its context.

    `gives`: "seen", a string; "count", the number of messages; "list" and "map", more data; "flag",
    a bool; "read", the values of its `keys`; "next", the value of `counter` plus one (from 1);
    "draw", a random number of the run; "spoil", a string, but it tries to change its arguments;
    "ask", the answers of the run's model to two questions, the second about the first answer. With
    arguments, it returns those as well. With one of BROKEN_RESULTS, it fails: it raises
    PlannedError, or returns something other than plain data, or None.

    `defaults` makes reads optional. With `declared=False`, its reads are unknown before the run.
    With `late=True`, it is async.
    """

    gives: str
    _: KW_ONLY
    keys: Sequence[str] = ()
    defaults: Mapping[str, Any] = field(default_factory=dict)
    counter: str = ""
    declared: bool = True
    late: bool = False

    @property
    # The attribute that the decorator `reads` would set.
    def __mergepoint_reads__(self) -> Reads | None:
        if not self.declared:
            return None
        if self.counter:
            return Reads((self.counter,), {self.counter: 0})
        return Reads(tuple(dict.fromkeys((*self.keys, *self.defaults))), self.defaults)

    def __call__(self, ctx: CallContext, **given: Any) -> Any:
        """Return the result, or raise PlannedError if its kind requires it."""
        return self._later(ctx, given) if self.late else self._result(ctx, given)

    async def _later(self, ctx: CallContext, given: Mapping[str, Any]) -> Any:
        if self.gives != "ask":
            return self._result(ctx, given)
        model = ctx.model()
        first = await model.ainvoke(_FIRST)
        second = await model.ainvoke(_SECOND.format(first.text))
        return self._with_arguments([str(first.text), str(second.text)], given)

    def _result(self, ctx: CallContext, given: Mapping[str, Any]) -> Any:
        return self._with_arguments(_GIVES[self.gives](self, ctx), given)

    def _with_arguments(self, found: Any, given: Mapping[str, Any]) -> Any:
        if not given:
            return found
        told = {"given": dict(given), "found": found}
        if self.gives == "spoil":
            told["given"] = {name: str(value) for name, value in given.items()}
            spoil((), given.values())
        return told


def _seen(ctx: CallContext) -> str:
    return digest(ctx.path, ctx.messages, ctx.outputs)


def _fail(function: DataFunction, ctx: CallContext) -> Any:
    raise PlannedError("the function was planned to fail")


def _next(function: DataFunction, ctx: CallContext) -> int:
    value = ctx.read(function.counter)
    return value + 1 if isinstance(value, int) else 1


_FIRST = "First?"
_SECOND = "And after {}?"


def _asked(function: DataFunction, ctx: CallContext) -> list[str]:
    model = ctx.model()
    first = model.invoke(_FIRST)
    return [str(first.text), str(model.invoke(_SECOND.format(first.text)).text)]


_GIVES: Mapping[str, Callable[[DataFunction, CallContext], Any]] = {
    "seen": lambda function, ctx: f"seen {_seen(ctx)}",
    "count": lambda function, ctx: len(ctx.messages),
    "list": lambda function, ctx: [len(ctx.messages), _seen(ctx), sorted(ctx.outputs)],
    "map": lambda function, ctx: {"seen": _seen(ctx), "deep": [{"ä": ctx.path}]},
    "flag": lambda function, ctx: int(_seen(ctx), 16) % 2 == 0,
    "read": lambda function, ctx: [
        _seen(ctx),
        *(ctx.read(key) for key in (*function.keys, *function.defaults)),
    ],
    "next": _next,
    "draw": lambda function, ctx: str(ctx.rng.randrange(1_000_000)),
    # Read before spoiling: the result depends on the context as given.
    "spoil": lambda function, ctx: (
        f"spoiled {_seen(ctx)}" + spoil(ctx.messages, [*ctx.inputs.values(), *ctx.outputs.values()])
    ),
    "ask": _asked,
    "raise": _fail,
    "odd": lambda function, ctx: {"a set": {1}},
    "blank": lambda function, ctx: None,
}


def measure(text: str) -> int:
    """Count the characters of text."""
    return len(text)


def turn(text: str) -> str:
    """Reverse text."""
    return text[::-1]


def part(text: str) -> list[str]:
    """Return the halves of text."""
    middle = len(text) // 2
    return [text[:middle], text[middle:]]


async def look_up(text: str) -> dict[str, Any]:
    """Find text, after a while."""
    await asyncio.sleep(0)
    return {"größe": [text]}


def refuse(text: str) -> str:
    """Raise PlannedError."""
    raise PlannedError(f"nothing is known of {text}")


TOOLS: Final[Mapping[str, Callable[[str], Any]]] = {
    tool.__name__: tool for tool in (measure, turn, part, look_up, refuse)
}
"""The tools by name."""
