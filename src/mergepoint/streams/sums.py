"""Sums: the calculations that a text claims, done again; a tool for critics that needs nothing."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable
from fractions import Fraction

_NUMBER = r"\d(?:[\d.,]*\d)?"
_CLAIM = re.compile(
    rf"((?:\(\s*)*{_NUMBER}\)*(?:\s*[-+*/x\u00d7\u00f7]\s*(?:\(\s*)*{_NUMBER}\)*)+)\s*=\s*(-?{_NUMBER})"
)
_WRITTEN = str.maketrans({"x": "*", "\u00d7": "*", "\u00f7": "/", ",": None})
_DOES: dict[type[ast.operator], Callable[[Fraction, Fraction], Fraction]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}
MOST = 50
"""Claims of one text that are looked at."""


def checked_sums(text: str) -> str:
    """Say of each claim such as `12 * 3 = 36` in a text whether it is right.

    Numbers are exact fractions; a comma within a number is taken out. A result with decimals is
    right where it is the exact one, rounded to as many. A text without claims gets a sentence that
    says so.
    """
    found = [_told(claim[1], claim[2]) for claim in list(_CLAIM.finditer(text))[:MOST]]
    return "\n".join(found) or "There is nothing in it to calculate."


def _told(left: str, right: str) -> str:
    try:
        value = _value(ast.parse(left.translate(_WRITTEN).strip(), mode="eval").body)
        said = Fraction(right.translate(_WRITTEN))
    except ZeroDivisionError:
        return f"{left.strip()} = {right}: nothing can be divided by 0"
    except (SyntaxError, ValueError) as error:
        return f"{left.strip()} = {right}: cannot be calculated ({error})"
    decimals = len(right.partition(".")[2])
    if value == said or (decimals and round(value, decimals) == said):
        return f"{left.strip()} = {right}: right"
    exact = value.numerator if value.denominator == 1 else f"{float(value):g}"
    claim = f"{left.strip()} = {right}"
    return f'{claim}: wrong, it is {exact}\nreplace "{claim}" with "{left.strip()} = {exact}"'


def _value(node: ast.expr) -> Fraction:
    if isinstance(node, ast.BinOp) and type(node.op) in _DOES:
        return _DOES[type(node.op)](_value(node.left), _value(node.right))
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        return Fraction(str(node.value))
    raise ValueError("only + - * / and numbers")
