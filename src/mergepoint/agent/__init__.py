"""The working agent: plan, approve, code, run, answer."""

from mergepoint.agent.code_job import CodeJob
from mergepoint.agent.code_run import CodeRun, MadeFile, ToolCall
from mergepoint.agent.code_runner import CodeRunner, code_runner
from mergepoint.agent.limits import Limits

__all__ = ["CodeJob", "CodeRun", "CodeRunner", "Limits", "MadeFile", "ToolCall", "code_runner"]
