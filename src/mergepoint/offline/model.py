"""The offline model: a rule-based chat model without an API key or a network; agent prompts."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel, LanguageModelInput
from langchain_core.language_models.base import LangSmithParams
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, ToolMessage
from langchain_core.messages.ai import UsageMetadata
from langchain_core.messages.tool import tool_call, tool_call_chunk
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.runnables import Runnable
from langchain_core.tools import BaseTool
from langchain_core.utils.function_calling import convert_to_openai_tool

from mergepoint.core.errors import StepError
from mergepoint.offline.answers import (
    StagePrompt,
    answer,
    best_text,
    better,
    follow_up,
    parts_of,
    passes,
    reason,
    score,
    stage_of,
)
from mergepoint.offline.critics import critique
from mergepoint.offline.language import (
    ConversationReading,
    brief_of,
    content_words,
    last_labelled,
    phrases,
    requested_count,
    separate_lists,
    subject_of,
    words_of,
)

PLAN = "Plan how to answer the user's last message"
CODE = "Write the Python program that carries out the plan"
FROM_OUTPUT = "Answer the user's last message from what the program printed"
FAILED = "The program could not be made to work"
NOT_APPROVED = "No plan came about"
CHAT = "Answer the user's last message in words"

_SKILL = re.compile(r"^- (\w+): (.+)$", re.MULTILINE)
_DATE = re.compile(r"\b\d{4}-\d{2}-\d{2}\b")
_DATES = re.compile(r"^(\w+ = )\[[^\]\n]*\]$", re.MULTILINE)
_SETTING = re.compile(r'^([A-Z_]+ = )"([^"\n]*)"(  # )(.+)$', re.MULTILINE)
_SCRIPT_WORDS = frozenset(("script", "program", "python", "code"))
_COMMON_WORDS = frozenset(["asks", "user", "which", "what", "how", "many", "one", "some"])


def agent_plan(conversation: ConversationReading) -> dict[str, Any] | None:
    """Return the plan that an agent requests, or None for other tasks."""
    task = conversation.task
    if not task.startswith(PLAN):
        return None
    request, feedback = last_labelled(task, "request"), last_labelled(task, "feedback")
    # Feedback counts twice, so that it outweighs the request.
    wanted = f"{request}\n{feedback}\n{feedback}" if feedback else request
    skill = _skill_for(wanted, _SKILL.findall(last_labelled(task, "skills")))
    files = [name for name in phrases(last_labelled(task, "files")) if name in wanted]
    action, steps = "chat", []
    if _SCRIPT_WORDS & set(content_words(wanted)) or (files and not skill):
        action, skill = "custom_script", ""
        steps = [f"Read {', '.join(files)}." if files else "Read every file.", "Print sums."]
    elif skill:
        action = "execute_skill"
        steps = [f"Follow the skill {skill}.", "Print what was asked for."]
    if steps and feedback:
        steps.append(f"As asked: {feedback}")
    intent = " ".join(request.split())[:200] or "nothing"
    return {"intent": intent, "action": action, "skill": skill, "steps": steps}


def agent_answer(conversation: ConversationReading) -> str | None:
    """Return the plan, program, or reply that an agent requests, or None for other tasks."""
    task = conversation.task
    if (plan := agent_plan(conversation)) is not None:
        return json.dumps(plan, ensure_ascii=False)
    if task.startswith(CODE):
        return f"```python\n{_program(task).strip()}\n```"
    if task.startswith(FROM_OUTPUT):
        return separate_lists(last_labelled(task, "output"))
    if task.startswith(FAILED):
        problem = last_labelled(task, "problem").strip().splitlines() or ["unknown"]
        return f"The program didn't work, so there is no result. The last problem: {problem[-1]}"
    if task.startswith(NOT_APPROVED):
        return f"Nothing was run, because there is no plan: {last_labelled(task, 'reason')}"
    if task.startswith(CHAT):
        names = [name for name, _ in _SKILL.findall(last_labelled(task, "skills"))]
        skills = f" Its skills: {', '.join(names)}." if names else ""
        return (
            "This is mergepoint's offline model. It follows simple rules and isn't a language "
            f"model.{skills} Ask for one of them, or for a script that reads a file."
        )
    return None


def _skill_for(wanted: str, skills: list[tuple[str, str]]) -> str:
    """Return the skill that shares most words with the request, or an empty string.

    A word that several skills share counts less, and a word of a skill's name counts twice.
    """
    asked = _stems(wanted)
    points = dict.fromkeys((name for name, _ in skills), 0.0)
    for about in (dict(skills), {name: name.replace("_", " ") for name, _ in skills}):
        shared = {name: _stems(text) & asked for name, text in about.items()}
        frequency = Counter(word for words in shared.values() for word in words)
        for name, words in shared.items():
            points[name] += sum(1 / frequency[word] for word in words)
    # One point is a word that no other skill has.
    best = max(points, key=lambda name: points[name], default="")
    return best if best and points[best] >= 1 else ""


def _stems(text: str) -> frozenset[str]:
    words = (*content_words(text), *(["date"] if _DATE.search(text) else []))
    return frozenset(word.rstrip("s") for word in words if word not in _COMMON_WORDS)


def _program(task: str) -> str:
    example = last_labelled(task, "example")
    labels = ("request", "plan", "previous_error", "next")
    wanted = "\n".join(last_labelled(task, label) for label in labels)
    files = phrases(last_labelled(task, "files"))
    if not example:
        named = [name for name in files if name in wanted] or files
        return _COUNT_WORDS.format(names=json.dumps(list(named)))
    if dates := list(dict.fromkeys(_DATE.findall(wanted))):
        example = _DATES.sub(lambda found: f"{found[1]}{json.dumps(dates)}", example)
    return _SETTING.sub(lambda found: _choose_setting(found, wanted, files), example)


def _choose_setting(found: re.Match[str], wanted: str, files: tuple[str, ...]) -> str:
    """Return a setting's line with the choice that the request names last, if it names one."""
    choices = files if "file" in found[4] else phrases(found[4])
    # Feedback and errors follow the request in `wanted`, so the last mention counts.
    last = {choice: wanted.lower().rfind(choice.lower()) for choice in choices}
    named = [choice for choice in choices if last[choice] >= 0]
    value = max(named, key=lambda choice: last[choice]) if named else found[2]
    return f'{found[1]}"{value}"{found[3]}{found[4]}'


_COUNT_WORDS = """\
from pathlib import Path

for name in {names}:
    text = Path(name).read_bytes().decode("utf-8", "replace")
    words = len(text.split())
    print(f"{{name}}: {{len(text.splitlines())}} lines, {{words}} words")"""


# A word with the spaces around it: joined, the chunks of a stream are the whole answer.
_WORD = re.compile(r"\s*\S+\s*")

Tool = dict[str, Any] | type | Callable[..., Any] | BaseTool


class LocalChatModel(BaseChatModel):
    """Base class of chat models without a provider: tools are bound in OpenAI's format."""

    def bind_tools(
        self,
        tools: Sequence[Tool],
        *,
        tool_choice: str | None = None,
        **kwargs: Any,
    ) -> Runnable[LanguageModelInput, AIMessage]:
        """Return a model whose calls carry the tools as `tools`, and the choice if there is one."""
        if tool_choice is not None:
            kwargs["tool_choice"] = tool_choice
        return self.bind(tools=[convert_to_openai_tool(tool) for tool in tools], **kwargs)


class OfflineModel(LocalChatModel):
    """A rule-based chat model: no key, no network, the same answer to the same conversation.

    It reads instruction words in the last user message (critique, revise, choose, describe, ...),
    works on the last assistant message, and answers with words of the conversation. It calls bound
    tools if the call requires it or the task names them. `max_tokens` counts words; temperature and
    seed have no effect.

    The `response_metadata` of every answer has `"not_a_language_model": True`.
    """

    _llm_type: ClassVar[str] = "mergepoint-offline"
    _identifying_params: ClassVar[Mapping[str, Any]] = {"model_name": "offline"}

    def _get_ls_params(self, stop: list[str] | None = None, **kwargs: Any) -> LangSmithParams:
        params = super()._get_ls_params(stop=stop, **kwargs)
        params["ls_provider"] = "mergepoint"
        params["ls_model_name"] = "offline"
        return params

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        return ChatResult(generations=[ChatGeneration(message=_answer(messages, stop, kwargs))])

    async def _agenerate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        return ChatResult(generations=[ChatGeneration(message=_answer(messages, stop, kwargs))])

    def _stream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> Iterator[ChatGenerationChunk]:
        return _chunks(_answer(messages, stop, kwargs))

    async def _astream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> AsyncIterator[ChatGenerationChunk]:
        for chunk in _chunks(_answer(messages, stop, kwargs)):
            yield chunk


def _answer(
    messages: list[BaseMessage], stop: list[str] | None, params: dict[str, Any]
) -> AIMessage:
    conversation = ConversationReading.of(messages)
    finish_reason, output, calls = "stop", "", []
    if (tool := _tool_to_call(messages, conversation, params)) is not None:
        schema = tool.get("parameters", {"type": "object"})
        arguments = agent_plan(conversation) or fill_schema(schema, conversation)
        # The id depends on the conversation only, so that a repeated run sends the same request.
        calls = [tool_call(name=tool["name"], args=arguments, id=f"call_{len(messages)}")]
        finish_reason = "tool_calls"
        received = len(json.dumps(arguments, ensure_ascii=False).split())
    else:
        output = _text(messages, conversation)
        for end in stop or ():
            output = output.partition(end)[0] if end else output
        words = _WORD.findall(output)
        limit = params.get("max_tokens")
        if isinstance(limit, int) and len(words) > limit:
            output, finish_reason = "".join(words[:limit]).rstrip(), "length"
        received = len(output.split())
    sent = sum([len(text.split()) for _, text in conversation.messages])
    return AIMessage(
        output,
        tool_calls=calls,
        response_metadata={
            "finish_reason": finish_reason,
            "model_name": "offline",
            "not_a_language_model": True,
        },
        usage_metadata=UsageMetadata(
            input_tokens=sent, output_tokens=received, total_tokens=sent + received
        ),
    )


def _text(messages: Sequence[BaseMessage], conversation: ConversationReading) -> str:
    last = messages[-1] if messages else None
    if isinstance(last, ToolMessage):
        return f"{last.name or 'The tool'} returned: {last.text}"
    return agent_answer(conversation) or answer(conversation)


def _tool_to_call(
    messages: Sequence[BaseMessage], conversation: ConversationReading, params: dict[str, Any]
) -> dict[str, Any] | None:
    """Return the tool that the call requires or the task names, or None for a text answer."""
    choice = params.get("tool_choice")
    if isinstance(choice, dict):
        choice = choice.get("function", choice).get("name")
    if not params.get("tools") or choice == "none":
        return None
    tools: list[dict[str, Any]] = [tool["function"] for tool in params["tools"]]
    if choice in (None, "auto", False):
        # The task still names its tool after the call: without this check, calls would not end.
        if messages and isinstance(messages[-1], ToolMessage):
            return None
        words = set(words_of(conversation.task))
        return next(
            (tool for tool in tools if words.issuperset(tool["name"].lower().split("_"))), None
        )
    return next((tool for tool in tools if tool["name"] == choice), tools[0])


def _chunks(message: AIMessage) -> Iterator[ChatGenerationChunk]:
    words: list[str] = _WORD.findall(str(message.content))
    for word in words[:-1]:
        yield ChatGenerationChunk(message=AIMessageChunk(content=word))
    calls = [
        tool_call_chunk(
            name=call["name"],
            args=json.dumps(call["args"], ensure_ascii=False),
            id=call["id"],
            index=number,
        )
        for number, call in enumerate(message.tool_calls)
    ]
    yield ChatGenerationChunk(
        message=AIMessageChunk(
            content=words[-1] if words else "",
            tool_call_chunks=calls,
            usage_metadata=message.usage_metadata,
            response_metadata=message.response_metadata,
            chunk_position="last",
        )
    )


# Values for JSON schemas: structured output and tool arguments.


MAX_DEPTH = 8
"""Levels of nesting down to which a list of objects gets an item; deeper lists stay empty."""

Schema = Mapping[str, Any]

_BLOCK_FIELDS: Mapping[str, Callable[[StagePrompt], Any]] = {
    "score": lambda stage: round(100 * score(stage, stage.text), 1),
    "winner": better,
    "verdict": lambda stage: "pass" if passes(stage) else "fail",
    "choice": best_text,
    "parts": lambda stage: parts_of(stage, requested_count(stage.instruction, 3)),
    "enough": lambda stage: bool(stage.items("notes")),
    "follow_up": follow_up,
    "reason": reason,
    "feedback": lambda stage: str(critique(stage.conversation)),
}
"""The fields of the answers that recipe blocks request."""


def fill_schema(schema: Schema, conversation: ConversationReading) -> Any:
    """Return a value that is valid for a JSON schema.

    Fields that recipe blocks request follow from the prompt. Of other properties, only required
    ones are filled in, with the first valid value: text is the subject of the conversation.
    Patterns, formats, and `uniqueItems` are ignored.

    Raises StepError for a schema that no finite value matches.
    """
    return _SchemaFiller(schema, conversation).value(schema, "", 0)


class _SchemaFiller:
    """Fills in one schema; references point into its root."""

    def __init__(self, root: Schema, conversation: ConversationReading) -> None:
        self._root = root
        self._stage = stage_of(conversation)
        self._conversation = self._stage.conversation if self._stage else conversation

    def value(self, schema: Schema, name: str, depth: int) -> Any:
        if depth > 2 * MAX_DEPTH:
            raise StepError(f"the schema is endless: {name!r} requires itself; make it optional")
        schema = self._resolve(schema)
        if "const" in schema:
            return schema["const"]
        if "enum" in schema:
            return schema["enum"][0]
        kind = schema.get("type", "object" if "properties" in schema else "string")
        if kind == "object":
            return self._object(schema, depth)
        if kind == "array":
            return self._array(schema, name, depth)
        if kind in ("integer", "number"):
            return _number(schema, is_integer=kind == "integer")
        if kind == "string":
            return self._text(schema)
        return False if kind == "boolean" else None

    def _resolve(self, schema: Schema) -> Schema:
        """Return a schema without references and unions: null if allowed, or the first branch."""
        for _ in range(MAX_DEPTH):
            if "$ref" in schema:
                target: Any = self._root
                for part in str(schema["$ref"]).split("/")[1:]:
                    target = target[part]
                schema = {**target, **{key: schema[key] for key in schema if key != "$ref"}}
            elif isinstance(schema.get("type"), list):
                schema = {**schema, "type": min(schema["type"], key=lambda one: one != "null")}
            elif branches := schema.get("anyOf") or schema.get("oneOf") or schema.get("allOf"):
                # False sorts first: null if it is allowed, otherwise the first branch.
                schema = min(branches, key=lambda one: one.get("type") != "null")
            else:
                break
        return schema

    def _object(self, schema: Schema, depth: int) -> dict[str, Any]:
        properties: Mapping[str, Schema] = schema.get("properties", {})
        known = {
            name: _BLOCK_FIELDS[name](self._stage)
            for name in properties
            if self._stage and name in _BLOCK_FIELDS
        }
        return {
            name: known[name]
            if name in known
            else self.value(properties.get(name, {}), name, depth + 1)
            for name in dict.fromkeys([*schema.get("required", ()), *known])
        }

    def _array(self, schema: Schema, name: str, depth: int) -> list[Any]:
        items = schema.get("prefixItems")
        if items is None:
            least = int(schema.get("minItems", 0))
            item = schema.get("items")
            # A list that may be empty ends a schema that contains itself.
            items = [item or {}] * (max(least, 1) if item and depth < MAX_DEPTH else least)
        return [self.value(item, name, depth + 1) for item in items]

    def _text(self, schema: Schema) -> str:
        text = subject_of(self._conversation, brief_of(self._conversation))
        text = text.ljust(int(schema.get("minLength", 0)), ".")
        return text[: int(schema["maxLength"])] if "maxLength" in schema else text


def _number(schema: Schema, *, is_integer: bool) -> int | float:
    """Return the least valid number; without a minimum, 0 or the maximum if that is lower."""
    low: float | None = schema.get("minimum", schema.get("exclusiveMinimum"))
    high: float | None = schema.get("maximum", schema.get("exclusiveMaximum"))
    step = 1 if is_integer or low is None or high is None else (high - low) / 2
    if low is not None:
        return low + step if "exclusiveMinimum" in schema else low
    least = 0 if high is None else min(0, high)
    return least - step if least == schema.get("exclusiveMaximum") else least
