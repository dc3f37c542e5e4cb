"""The program in a model's answer, and what is wrong with it before it is run."""

from __future__ import annotations

import re
import warnings

_FENCE = re.compile(
    r"^(?P<fence>```+|~~~+)[ \t]*(?P<word>[\w+-]*)[^\n]*\n(?P<code>.*?)^(?P=fence)[ \t]*$",
    re.MULTILINE | re.DOTALL,
)
_PYTHON = frozenset({"", "python", "py", "python3"})

NO_FENCE = "the answer holds no program; put the whole program into one ```python block"


def code_in(answer: str) -> str:
    """Give the longest block of Python in an answer; without one, nothing."""
    found = [one["code"] for one in _FENCE.finditer(answer) if one["word"].lower() in _PYTHON]
    return max(found, key=len, default="")


def code_problem(code: str) -> str | None:
    """Say why a program cannot be run, or None. It is compiled and not run."""
    if not code.strip():
        return NO_FENCE
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # an odd escape is the code's own affair
            compile(code, "<code>", "exec", dont_inherit=True)
    except SyntaxError as error:
        shown = f": {error.text.strip()}" if error.text and error.text.strip() else ""
        return f"the program does not compile: line {error.lineno or 1}: {error.msg}{shown}"
    except (ValueError, RecursionError, MemoryError, OverflowError) as error:
        return f"the program does not compile: {error}"
    return None
