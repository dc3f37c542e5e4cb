"""Edits: changes to a text as lines that people and rules can both read."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from mergepoint.offline.language import FORMAT, capital, plain, sections, sentences, words_of

Form = Literal["choice", "lines", "title", "phrases", "prose"]

MOST_ADDED = 6

_QUOTED = r"[\"“]([^\"“”\n]+)[\"”]"
_EDIT = re.compile(
    rf"^[ \t]*(?:[-*•]|\d+[.)])?[ \t]*(?:(replace|change)\s+{_QUOTED}\s+(?:with|by|to)\s+{_QUOTED}"
    rf"|(cut|remove|delete)\s+{_QUOTED}|(add|insert|append)\s+{_QUOTED})",
    re.IGNORECASE | re.MULTILINE,
)
_PICTURED = re.compile(rf"\s*(?:an? )?{FORMAT.pattern}\s(?:of|for)\s(?!.*[.!?]\s)")
_CHOICE = re.compile(r"^choice:\s*(\d+)", re.IGNORECASE | re.MULTILINE)
_NUMBERED = re.compile(r"^[ \t]*(?:option\s+)?(\d+)[.):][ \t]+(.+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Edit:
    """One change: `old` becomes `new`; without `old` it is added, without `new` it is cut."""

    old: str = ""
    new: str = ""

    def __str__(self) -> str:
        if not self.old:
            return f'add "{self.new}"'
        return f'replace "{self.old}" with "{self.new}"' if self.new else f'cut "{self.old}"'

    @property
    def can_be_told(self) -> bool:
        """Return whether the edit fits on a line in quotation marks."""
        return not re.search(r"[\"“”\n]", self.old + self.new)


def edits_in(text: str) -> tuple[Edit, ...]:
    """Return the edits that a text lists, each line one."""
    found = []
    for _, old, new, _, cut, _, added in _EDIT.findall(text):
        found.append(Edit(old or cut, new or added))
    return tuple(found)


def form_of(text: str) -> Form:
    """Return the form of a text: a choice among options, labelled lines, a title, a list, prose."""
    if _CHOICE.search(text) and _NUMBERED.search(text):
        return "choice"
    if len(sections(text)) > 1:
        return "lines"
    words, parts = len(words_of(text)), sentences(text)
    commas = text.count(",") + text.count(";")
    if _PICTURED.match(text.lower()):
        return "phrases"
    if len(parts) < 2 and not text.rstrip().endswith((".", "!", "?")):
        return "title" if words <= 9 and commas < 2 else "phrases"
    return "phrases" if commas > 3 and words < 9 * commas and len(parts) < 4 else "prose"


def options_in(text: str) -> tuple[str, ...]:
    """Return the numbered options of a text, else the bodies of a label that it repeats."""
    numbered = tuple(option.strip() for _, option in _NUMBERED.findall(text))
    if len(numbered) > 1:
        return numbered
    labels = Counter(label for label, _ in sections(text))
    often = next((label for label, count in labels.items() if count > 1), None)
    return tuple(body for label, body in sections(text) if label == often and body)


def chosen_in(text: str) -> str:
    """Return the option that the text's own line `Choice: n` names, or nothing."""
    found, options = _CHOICE.search(text), options_in(text)
    if found is None or not 1 <= int(found[1][:3]) <= len(options):
        return ""
    return options[int(found[1][:3]) - 1]


def applied(text: str, edits: Sequence[Edit]) -> str:
    """Return the text with the edits that fit it.

    Where edits want different things of the same words, the change that most of them want is
    made, of equal ones the first. What is added already stands there once is not added again.
    """
    for edit in _settled(edit for edit in edits if edit.old):
        if edit.new:
            text = re.sub(_whole(edit.old), lambda _, new=edit.new: str(new), text)  # type: ignore[misc]
        else:
            text = _without(text, edit.old)
    added = dict.fromkeys(edit.new for edit in edits if not edit.old)
    for addition in list(added)[:MOST_ADDED]:
        if plain(addition) not in plain(text):
            text = _with(text, addition)
    return text


def _settled(edits: Iterable[Edit]) -> list[Edit]:
    wishes = Counter(edits)
    best: dict[str, Edit] = {}
    for edit, votes in wishes.items():
        if edit.old not in best or votes > wishes[best[edit.old]]:
            best[edit.old] = edit
    return list(best.values())


def _without(text: str, words: str) -> str:
    shorter = re.sub(rf"{_whole(words)}[ \t]*", "", text)
    shorter = re.sub(r"[ \t]+(?=[,.;:!?\n]|$)", "", shorter)
    shorter = re.sub(r",(?=[,.])", "", shorter).lstrip(" ,")
    shorter = re.sub(r"(?<=[.!?] )[a-z]", lambda found: found[0].upper(), shorter)
    return capital(shorter) if text[:1].isupper() else shorter


def _whole(words: str) -> str:
    return rf"(?<!\w){re.escape(words)}(?!\w)"


def _with(text: str, addition: str) -> str:
    form = form_of(text)
    if form == "title":
        return text
    if form in ("lines", "choice"):
        return f"{text.rstrip()}\n{addition}"
    if form == "prose":
        return f"{text.rstrip()} {addition}"
    refusals = re.search(r"[,;]\s+(?:no|nothing|without)\s", text)
    at = refusals.start() if refusals else len(text.rstrip(" ."))
    return f"{text[:at]}, {addition}{text[at:]}"
