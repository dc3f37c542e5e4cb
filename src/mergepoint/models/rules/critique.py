"""Critique: issues of a text and edits to it, each about words that stand there."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from mergepoint.models.rules.brief import brief_of
from mergepoint.models.rules.checks import CHECKS, Case, Remark, headed, voted
from mergepoint.models.rules.edits import chosen_in, form_of
from mergepoint.models.rules.lens import lens_of
from mergepoint.models.rules.reading import Conversation, instructions, material

MOST = 2
"""Remarks of one critique."""


def critique(conversation: Conversation) -> str:
    """Give the critique of the text under work, as one critic sees it."""
    case = _case(conversation)
    if not case.text:
        return "Issues:\n- none: there is no text here to look at.\n\nEdits:\n- none"
    found = [*islice(_remarks(case), MOST)]
    issues = [f"- {remark.issue}" for remark in found]
    edits = [f"- {edit}" for remark in found if (edit := remark.edit) and edit.can_be_told]
    if not issues:
        issues = [f"- none: {_standing(case)}"]
    return "\n".join(["Issues:", *issues, "", "Edits:", *(dict.fromkeys(edits) or ["- none"])])


def _case(conversation: Conversation) -> Case:
    systems = [text for kind, text in conversation.messages if kind == "system"]
    lens = lens_of(" ".join([instructions(conversation.task), *systems]))
    text = conversation.work or material(conversation.task)
    return Case(conversation, text, form_of(text), brief_of(conversation), lens)


def _remarks(case: Case) -> Iterator[Remark]:
    if case.form == "title":
        yield from headed(case)
    elif case.form == "choice":
        yield from voted(case)
    for name in case.lens.checks:
        yield from CHECKS[name](case)


def _standing(case: Case) -> str:
    """Say of words of the text that they can stand, as the lens would."""
    text = chosen_in(case.text) or case.text
    head = case.brief.head
    at = text.lower().find(head.lower()) if head else -1
    quoted = text[at : at + len(head)] if at >= 0 else " ".join(text.split()[:5]).rstrip(" .,;:")
    return f'"{quoted}" {case.lens.content}'
