"""Answers of the offline model to the bundled agent's prompts: plans, programs, and replies.

It recognizes a prompt by its beginning, and reads the rest from its labelled parts. A program is
the skill's example, with the settings at its top replaced by values from the request.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import Any

from mergepoint.offline.language import (
    ConversationReading,
    content_words,
    last_labelled,
    phrases,
    separate_lists,
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
