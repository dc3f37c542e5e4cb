"""Prompts that functions returned: checked before anything is made of them."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from mergepoint.core.errors import StepError
from mergepoint.tree.step import Content


def checked_prompt(prompt: Any) -> Content:
    """Give a prompt function's result. Raises StepError for what no model can be sent."""
    if isinstance(prompt, str):
        if not prompt.strip():
            raise StepError("the prompt function returned blank text")
        return prompt
    if inspect.iscoroutine(prompt):
        prompt.close()
    if not isinstance(prompt, list):
        raise StepError(
            f"the prompt function returned {type(prompt).__name__}; return text or a list of "
            "content blocks"
        )
    if not any(_carries(block) for block in prompt):
        raise StepError("the prompt function returned content blocks that hold nothing")
    for block in prompt:
        if not isinstance(block, str) and not (isinstance(block, Mapping) and "type" in block):
            raise StepError(f"a content block is text or a mapping with 'type', not {block!r}")
    return [block if isinstance(block, str) else dict(block) for block in prompt]


def _carries(block: Any) -> bool:
    if isinstance(block, str):
        return bool(block.strip())
    if not isinstance(block, Mapping):
        return True
    return block.get("type") != "text" or bool(str(block.get("text", "")).strip())
