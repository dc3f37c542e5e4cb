"""Running model-generated code: Bubblewrap, a Python subset, and an unconfined process."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mergepoint.core.lazy import lazy_names

if TYPE_CHECKING:
    from mergepoint.sandbox.backends import CodeRunner as CodeRunner
    from mergepoint.sandbox.backends import code_runner as code_runner
    from mergepoint.sandbox.job import CodeJob as CodeJob
    from mergepoint.sandbox.job import CodeRun as CodeRun
    from mergepoint.sandbox.job import Limits as Limits
    from mergepoint.sandbox.job import MadeFile as MadeFile
    from mergepoint.sandbox.job import ToolCall as ToolCall

__all__ = [
    "CodeJob",
    "CodeRun",
    "CodeRunner",
    "Limits",
    "MadeFile",
    "ToolCall",
    "code_runner",
]

_HOMES = {
    "mergepoint.sandbox.job": "CodeJob CodeRun Limits MadeFile ToolCall",
    "mergepoint.sandbox.backends": "CodeRunner code_runner",
}
if not TYPE_CHECKING:  # to a type checker a module with `__getattr__` has any name
    __getattr__, __dir__ = lazy_names(__name__, _HOMES)
