"""Answers of the offline model as an agent: a plan, a program, an answer, by the request.

It knows the prompts by how they begin, and everything else from their labelled parts. Programs are
the example of the skill, with the settings at its top set to what the request names.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

from mergepoint.offline.language import ConversationReading, apart, content_words, label_in, phrases

PLAN = "Plan how to answer the user's last message"
CODE = "Write the Python program that carries out the plan"
FROM_OUTPUT = "Answer the user's last message from what the program printed"
FAILED = "The program could not be made to work"
NOT_APPROVED = "No plan came about"
CHAT = "Answer the user's last message in words"

_SKILL = re.compile(r"^- (\w+): (.+)$", re.MULTILINE)
_DATE = re.compile(r"\b\d{4}-\d{2}-\d{2}\b")
_DATES = re.compile(r"^(\w+ = )\[[^\]\n]*\]$", re.MULTILINE)
_CHOICE = re.compile(r'^([A-Z_]+ = )"([^"\n]*)"(  # )(.+)$', re.MULTILINE)
_CODED = frozenset(("script", "program", "python", "code"))
_PLAIN = frozenset(["asks", "user", "which", "what", "how", "many", "one", "some"])


def planned(conversation: ConversationReading) -> dict[str, Any] | None:
    """Return the plan that is asked for, None where none is."""
    task = conversation.task
    if not task.startswith(PLAN):
        return None
    request, feedback = _part(task, "request"), _part(task, "feedback")
    wanted = f"{request}\n{feedback}\n{feedback}" if feedback else request
    intent = " ".join(request.split())[:200] or "nothing"
    skill = _skill_for(wanted, _SKILL.findall(_part(task, "skills")))
    files = [name for name in phrases(_part(task, "files")) if name in wanted]
    if _CODED & set(content_words(wanted)) or (files and not skill):
        steps = [f"Read {', '.join(files)}." if files else "Look into every file.", "Print sums."]
        return _plan(intent, "custom_script", "", [*steps, *_as_asked(feedback)])
    if skill:
        steps = [f"Follow the skill {skill}.", "Print what was asked for."]
        return _plan(intent, "execute_skill", skill, [*steps, *_as_asked(feedback)])
    return _plan(intent, "chat", "", [])


def agent_answer(conversation: ConversationReading) -> str | None:
    """Return the program or the answer that an agent asks for, None where none does."""
    task = conversation.task
    if (plan := planned(conversation)) is not None:
        return json.dumps(plan, ensure_ascii=False)
    if task.startswith(CODE):
        return f"```python\n{_program(task).strip()}\n```"
    if task.startswith(FROM_OUTPUT):
        return apart(_part(task, "output"))
    if task.startswith(FAILED):
        problem = _part(task, "problem").strip().splitlines() or ["no reason was given"]
        return f"The program did not work, so there is no result. The last problem: {problem[-1]}"
    if task.startswith(NOT_APPROVED):
        return f"Nothing was run, since no plan came about: {_part(task, 'reason')}"
    if task.startswith(CHAT):
        names = [name for name, _ in _SKILL.findall(_part(task, "skills"))]
        able = f" I can carry out: {', '.join(names)}." if names else ""
        return (
            "I am mergepoint's offline model, which goes by plain rules and is no language model."
            f"{able} Ask for one of these, or for a script over a file."
        )
    return None


def _plan(intent: str, action: str, skill: str, steps: list[str]) -> dict[str, Any]:
    return {"intent": intent, "action": action, "skill": skill, "steps": steps}


def _as_asked(feedback: str) -> list[str]:
    return [f"As asked: {feedback}"] if feedback else []


def _part(task: str, label: str) -> str:
    return label_in(task, label)


def _skill_for(wanted: str, skills: list[tuple[str, str]]) -> str:
    """Return the skill whose words are most in what is wanted.

    A word of several skills counts less, one of a skill's name as much again.
    """
    asked = _stems(wanted)
    points = dict.fromkeys((name for name, _ in skills), 0.0)
    for about in (dict(skills), {name: name.replace("_", " ") for name, _ in skills}):
        words = {name: _stems(text) & asked for name, text in about.items()}
        known = Counter(word for found in words.values() for word in found)
        for name, found in words.items():
            points[name] += sum(1 / known[word] for word in found)
    best = max(points, key=lambda name: points[name], default="")
    return best if best and points[best] >= 1 else ""


def _stems(text: str) -> frozenset[str]:
    words = (*content_words(text), *(["date"] if _DATE.search(text) else []))
    return frozenset(word.rstrip("s") for word in words if word not in _PLAIN)


def _program(task: str) -> str:
    example = _part(task, "example")
    wanted = "\n".join(_part(task, name) for name in ("request", "plan", "previous_error", "next"))
    files = phrases(_part(task, "files"))
    if not example:
        return _counting([name for name in files if name in wanted] or list(files))
    if dates := list(dict.fromkeys(_DATE.findall(wanted))):
        example = _DATES.sub(lambda found: f"{found[1]}{_listed(dates)}", example)
    return _CHOICE.sub(lambda found: _chosen(found, wanted, files), example)


def _chosen(found: re.Match[str], wanted: str, files: tuple[str, ...]) -> str:
    """Return a setting with the choice that is named last, else as it is."""
    choices = files if "file" in found[4] else phrases(found[4])
    last = {choice: wanted.lower().rfind(choice.lower()) for choice in choices}
    named = [choice for choice in choices if last[choice] >= 0]
    value = max(named, key=lambda choice: last[choice]) if named else found[2]
    return f'{found[1]}"{value}"{found[3]}{found[4]}'


def _listed(words: list[str]) -> str:
    return "[" + ", ".join(f'"{word}"' for word in words) + "]"


def _counting(names: list[str]) -> str:
    """Return a program that counts the lines and words of files."""
    return "\n".join(_counting_lines(names))


def _counting_lines(names: list[str]) -> Iterator[str]:
    yield "from pathlib import Path"
    yield ""
    yield f"for name in {_listed(names)}:"
    yield '    text = Path(name).read_bytes().decode("utf-8", "replace")'
    yield "    words = len(text.split())"
    yield '    print(f"{name}: {len(text.splitlines())} lines, {words} words")'
