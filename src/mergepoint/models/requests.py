"""Requests: the messages of a run, and those that one call of a step adds to them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    BaseMessageChunk,
    HumanMessage,
    SystemMessage,
    convert_to_messages,
    message_chunk_to_message,
)

from mergepoint.core.errors import PromptResultError, StepError
from mergepoint.core.text import clean, clean_text
from mergepoint.models.responses import cleaned, instruction_for
from mergepoint.tree.leaves import Content, Step
from mergepoint.tree.prompts import PromptContext, Reads, Template, declared_reads

MakeContext = Callable[[Reads | None], PromptContext]
"""Returns the context of a step for a text that reads these keys."""


def whole_messages(given: Iterable[Any]) -> list[BaseMessage]:
    """Return messages from any form that LangChain accepts; chunks of a stream become messages.

    Raises StepError for anything else.
    """
    try:
        converted = convert_to_messages(list(given))
    except (NotImplementedError, LookupError, TypeError, ValueError, AttributeError) as error:
        raise StepError(
            f"messages are LangChain's, or what it converts to them, such as ('user', 'Hello.'): "
            f"{error}"
        ) from error
    return [
        message_chunk_to_message(message) if isinstance(message, BaseMessageChunk) else message
        for message in converted
    ]


def sendable_messages(given: Iterable[Any]) -> list[BaseMessage]:
    """Return messages from any form that LangChain accepts, without lone surrogates."""
    return [cleaned(message)[0] for message in whole_messages(given)]


ALLOW_EMPTY = "to send it, set allow_empty_prompt=True on the step"


def checked_prompt(prompt: Any, *, allow_empty: bool = False) -> Content:
    """Return a prompt function's result, without lone surrogates.

    Raises:
        PromptResultError: The result is neither a string nor a list of content blocks.
        StepError: The prompt is blank, unless that is allowed.
    """
    if isinstance(prompt, str):
        if not prompt.strip() and not allow_empty:
            raise StepError(f"the prompt function returned blank text; {ALLOW_EMPTY}")
        return clean_text(prompt)
    if inspect.iscoroutine(prompt):
        prompt.close()
    if not isinstance(prompt, list):
        raise PromptResultError(
            f"the prompt function returned {type(prompt).__name__}; return text or a list of "
            "content blocks"
        )
    if not allow_empty and not any(_carries(block) for block in prompt):
        raise StepError("the prompt function returned empty content blocks")
    for block in prompt:
        if not isinstance(block, str) and not (isinstance(block, Mapping) and "type" in block):
            raise PromptResultError(
                f"a content block is text or a mapping with 'type', not {block!r}"
            )
    return clean([block if isinstance(block, str) else dict(block) for block in prompt])


def _carries(block: Any) -> bool:
    if isinstance(block, str):
        return bool(block.strip())
    if not isinstance(block, Mapping):
        return True
    return block.get("type") != "text" or bool(str(block.get("text", "")).strip())


def prompt_content(step: Step, make_context: MakeContext) -> Content:
    """Return a step's prompt at its place, without lone surrogates.

    Raises MissingKey for a key without a value, StepError for a blank prompt and
    PromptResultError for an invalid one; and whatever a prompt function raises.
    """
    prompt: Any = step.prompt
    allow_empty = step.allow_empty_prompt
    if isinstance(prompt, str):
        return clean_text(prompt)
    if isinstance(prompt, Template):
        return rendered(prompt, make_context, allow_empty=allow_empty)
    context = make_context(declared_reads(prompt))
    for key in context.reads.required:
        context.read(key)
    try:
        return checked_prompt(prompt(context), allow_empty=allow_empty)
    except StopIteration as error:
        # Python turns it into RuntimeError inside a coroutine, without the function's name.
        raise StepError("the prompt function raised StopIteration") from error


def lead_messages(
    step: Step, examples: tuple[BaseMessage, ...], make_context: MakeContext
) -> tuple[BaseMessage, ...]:
    """Return the messages of one call only: the system message, then the examples."""
    texts = [] if step.system is None else [rendered(step.system, make_context)]
    if step.schema is not None and (instruction := instruction_for(step.schema, step.method)):
        texts.append(instruction)
    if texts:
        return (SystemMessage(content="\n\n".join(texts)), *examples)
    return examples


def rendered(text: str | Template, make_context: MakeContext, *, allow_empty: bool = False) -> str:
    """Return a text with its places filled in. Raises StepError for a template that is blank."""
    if isinstance(text, str):
        return clean_text(text)
    context = make_context(Reads(text.keys, text.defaults))
    filled = clean_text(text.render(context.read))
    if not filled.strip() and not allow_empty:
        raise StepError("the template rendered to blank text")
    return filled


def example_messages(step: Step) -> Sequence[BaseMessage]:
    """Return the messages of a step's examples."""
    shown: list[BaseMessage] = []
    for example in step.examples:
        if isinstance(example, BaseMessage):
            shown.append(cleaned(example.model_copy(deep=True))[0])
        else:
            user, assistant = example
            pair = HumanMessage(content=user), AIMessage(content=assistant)
            shown += [cleaned(one)[0] for one in pair]
    return shown
