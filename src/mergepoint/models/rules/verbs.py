"""Verbs: the words that open an instruction, and the kinds of task that they ask for."""

from __future__ import annotations

from typing import Literal, get_args

Kind = Literal[
    "critique",
    "revise",
    "choose",
    "analyse",
    "summarise",
    "image_prompt",
    "title",
    "options",
    "message",
    "outline",
    "question",
    "describe",
]
KINDS: tuple[str, ...] = get_args(Kind)

VERBS: dict[str, Kind] = {
    **dict.fromkeys(("critique", "criticise", "criticize", "review", "comment"), "critique"),
    **dict.fromkeys(
        ("judge", "assess", "evaluate", "check", "verify", "rate", "score"), "critique"
    ),
    **dict.fromkeys(("revise", "rewrite", "consolidate", "apply", "improve"), "revise"),
    **dict.fromkeys(("edit", "polish", "merge", "shorten", "correct"), "revise"),
    **dict.fromkeys(("choose", "pick", "select", "decide"), "choose"),
    **dict.fromkeys(("analyse", "analyze", "examine"), "analyse"),
    **dict.fromkeys(("summarise", "summarize", "condense"), "summarise"),
    **dict.fromkeys(("describe", "depict"), "describe"),
    **dict.fromkeys(("plan", "outline", "decompose"), "outline"),
}
MAKING = frozenset(
    {
        *("write", "give", "propose", "suggest", "compose", "draft", "create", "produce"),
        *("generate", "make", "state", "say", "list", "name", "sketch", "imagine", "offer"),
        *("find", "think", "come", "answer", "return", "explain", "tell", "show", "turn"),
        *("design", "brainstorm", "search", "get", "fetch", "look", "calculate"),
    }
)
"""Words that open an instruction whose object says what is asked for."""

ASKING = frozenset(
    {
        *("which", "what", "who", "whom", "whose", "how", "why", "when", "where"),
        *("is", "are", "do", "does", "can", "could", "would", "should", "please"),
    }
)
"""Words that open a question."""

NOUNS = frozenset(
    {
        *("outline", "plan", "review", "comment", "edit", "rate", "score", "check", "polish"),
        *("draft", "state", "list", "name", "sketch", "offer", "answer", "return", "design"),
        *("look", "search", "turn", "show"),
    }
)
"""Instruction words that are labels too, when they stand alone."""
