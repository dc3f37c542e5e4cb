"""Patterns: common trees as plain functions that return Blocks.

The results are ordinary Steps and Blocks, which you can change with `with_overrides` and `without`:

    with_overrides(tree, {"**/tot_enclave/*": {"temperature": 0.9}})
    without(tree, "**/tot_enclave/munch")  # `check` then refuses the consensus that reads it
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from mergepoint.core.errors import TreeError
from mergepoint.core.merge import MergeMode
from mergepoint.core.paths import name_problem
from mergepoint.tree.leaves import Step
from mergepoint.tree.nodes import Block, Node
from mergepoint.tree.prompts import Template, key_problem

__all__ = [
    "ARTISTS",
    "CONSENSUS",
    "CRITIQUE",
    "SELECT",
    "Artist",
    "enclave",
    "generate_then_select",
    "refined_stage",
    "threads",
]

# `enclave` puts a label into an attribute of a tag, and into a template.
_MARKUP = re.compile(r"[\"<>{}\n]")


@dataclass(frozen=True, slots=True)
class Artist:
    """One voice of an enclave: `key` names its step and its output, `persona` is its prompt.

    Raise TreeError for an invalid key, and for a blank label or persona.
    """

    key: str
    label: str
    persona: str

    def __post_init__(self) -> None:
        problem = name_problem(self.key) or key_problem(self.key)
        if not problem and not (self.label.strip() and self.persona.strip()):
            problem = f"artist {self.key!r} needs a label and a persona that are not blank"
        if not problem and _MARKUP.search(self.label):
            problem = f"artist {self.key!r}: a label holds no quotes, brackets or line breaks"
        if problem:
            raise TreeError.of(problem)


ARTISTS: tuple[Artist, ...] = (
    Artist(
        "hemingway",
        "Hemingway",
        "You are Hemingway. You want plain, strong, concrete prose: short sentences, nouns one "
        "could pick up, verbs that do the work. You distrust adjectives, hedges, and every word "
        "that explains what another has shown already.",
    ),
    Artist(
        "munch",
        "Munch",
        "You are Munch. You look for raw emotion: which feeling is at the centre, which mood "
        "holds the work together, which colour that feeling has and what the light does to it. "
        "What is correct and leaves the heart cold is not finished.",
    ),
    Artist(
        "da_vinci",
        "Da Vinci",
        "You are Da Vinci. You judge composition and proportion: what is large and what is small, "
        "where the eye enters and where it rests. You ask for close observation of how things "
        "are made, and for one invention that nobody has seen before.",
    ),
    Artist(
        "representative",
        "the Representative",
        "You are the Representative. You speak for the audience that the brief names, and for "
        "nobody else. You say what these viewers would take from it at first sight, what would "
        "puzzle them or leave them out, and what would make them stop and look.",
    ),
    Artist(
        "chameleon",
        "the Chameleon",
        "You are the Chameleon. You take on the taste profile of the one who asked: what is liked "
        "must be at work in it, what is disliked must be gone. You also look for the hidden "
        "angle, the thing that was not asked for and would be missed once seen.",
    ),
)

CRITIQUE = """\
You are one voice, alone. You see no other voice, and no other voice sees you.

Critique the last assistant response as {label}. Do not rewrite it.

Answer with two lists and nothing else. Under the heading "Issues:" put what is wrong, one issue \
a line, each quoting the words that it is about. Under the heading "Edits:" put the changes that \
would settle these issues, one a line, each starting with a hyphen and one of: replace "old words" \
with "new words", cut "words", add "words". Write "- none" under a heading that stays empty. \
No greeting, no praise, no word about yourself or about this task."""

CONSENSUS = """\
Revise your last response. Below are critiques of it; each was written alone, without sight of the \
others. Take the edits that make the response better, settle those that contradict each other, and \
leave alone what works. Keep its form, its language and its length in bounds.

Return only the revised response: no heading, no list of changes, no comment."""

SELECT = """\
Choose one of the answers below. They were made independently of each other, for the same request. \
Take the one that serves the request best, and return its text alone, word for word: no number, no \
reason, no comment."""


def threads(
    scope: str,
    artists: Iterable[Artist] = ARTISTS,
    *,
    name: str = "threads",
    parallel: bool = True,
    critique: str = CRITIQUE,
    system: str | Template | None = None,
) -> Block:
    """Return independent voices on one base: none sees another or enters the conversation.

    Each artist is a step with `merge="none"` whose response is captured as `<scope>.<key>`. The
    prompt is a template of the persona followed by `critique`: `{label}` in it stands for the
    artist's label, and `{{ key }}` reads an input or an earlier output. All voices start with the
    same messages, including `system`, so that a provider can cache the shared part. With
    `parallel=False` they run one after the other, with the same results.

    Raise TreeError if there are no artists, for duplicate keys, and for an invalid scope.
    """
    voices = _distinct(scope, artists)
    steps = _voices(scope, voices, critique=critique, system=system)
    return Block(steps, name=name, merge="none", parallel=parallel)


def _voices(
    scope: str, artists: Iterable[Artist], *, critique: str, system: str | Template | None
) -> list[Step]:
    return [
        Step(
            # Not str.format(), which would turn the places `{{ key }}` into `{ key }`.
            Template(f"{artist.persona}\n\n{critique.replace('{label}', artist.label)}"),
            name=artist.key,
            merge="none",
            system=system,
            capture_key=_scoped(scope, artist),
        )
        for artist in artists
    ]


def enclave(
    scope: str,
    artists: Iterable[Artist] = ARTISTS,
    *,
    name: str = "tot_enclave",
    merge: MergeMode = "last_response",
    parallel: bool = True,
    capture_key: str | None = None,
    critique: str = CRITIQUE,
    consensus: str = CONSENSUS,
    system: str | Template | None = None,
) -> Block:
    """Return voices that criticize the last response, then one step that revises it.

    The children are the artists, as in `threads` but at `<name>/<artist>`, and `consensus`. Each
    artist is captured as `enclave.<scope>.<artist>`, and the consensus reads all of them: a missing
    or blank one stops the run with MissingKey, before the consensus is called. The artists run
    concurrently (`Block(parallel="threads")`), or with `parallel=False` one after the other.

    `consensus` is a template: `{{ key }}` in it reads an input or an earlier output.

    The shape is a small tree of thoughts: one state, several branches, one choice (Yao et al.,
    "Tree of Thoughts", 2023), with critics instead of a search.

    Raise TreeError as `threads` does.
    """
    voices = _distinct(scope, artists)
    scope = f"enclave.{scope}"
    read = [
        f'<voice name="{artist.label}">\n{{{{ {_scoped(scope, artist)} }}}}\n</voice>'
        for artist in voices
    ]
    return Block(
        [
            *_voices(scope, voices, critique=critique, system=system),
            Step(
                Template("\n\n".join([consensus, *read])),
                name="consensus",
                merge="last_response",
                system=system,
            ),
        ],
        name=name,
        merge=merge,
        capture_key=capture_key,
        # Not True: the consensus has to see what the voices captured before it.
        parallel="threads" if parallel else False,
    )


def refined_stage(
    name: str,
    draft: Node | str | Template,
    *,
    scope: str | None = None,
    artists: Iterable[Artist] = ARTISTS,
    enclave_name: str = "tot_enclave",
    parallel: bool = True,
    capture_key: str | None = None,
    critique: str = CRITIQUE,
    consensus: str = CONSENSUS,
    system: str | Template | None = None,
) -> Block:
    """Return a draft followed by an enclave on it; only the outcome enters the conversation.

    `draft` is a node, or the prompt of a step; a node without a name is named `draft`. `scope`
    starts the keys of the voices (default: the name); set it if two stages of a tree have the same
    name. `capture_key` captures the outcome. `system` applies to the voices, the consensus, and a
    draft that was passed as a prompt.

    Raise TreeError as `threads` does.
    """
    if isinstance(draft, str | Template):
        draft = Step(draft, system=system)
    if draft.name is None:
        draft = dataclasses.replace(draft, name="draft")
    refined = enclave(
        name if scope is None else scope,
        artists,
        name=enclave_name,
        parallel=parallel,
        critique=critique,
        consensus=consensus,
        system=system,
    )
    return Block([draft, refined], name=name, merge="last_response", capture_key=capture_key)


def generate_then_select(
    name: str,
    generate: Step | str | Template | Sequence[Step],
    *,
    n: int = 3,
    scope: str | None = None,
    parallel: bool = True,
    capture_key: str | None = None,
    select: str = SELECT,
    system: str | Template | None = None,
) -> Block:
    """Return `n` independent answers to one request, then a step that reads all and picks one.

    `generate` is the step (or its prompt) that runs `n` times, or a list of different steps, which
    run once each. The answers are captured as `<scope>.1`, `<scope>.2`, ...; the losers stay in the
    outputs and the journal, but don't enter the conversation. The selector's answer does. `select`
    is a template, like the consensus of `enclave`. This is best-of-n with a model as its judge.

    Raise TreeError for fewer than one answer, and for a list with anything but steps.
    """
    asked = _generations(generate, n, system)
    key = name if scope is None else scope
    if problem := key_problem(key):
        raise TreeError.of(problem, path=name)
    made = [
        dataclasses.replace(
            step,
            name=f"generation_{number:02d}",
            merge="none",
            capture_key=f"{key}.{number}",
        )
        for number, step in enumerate(asked, start=1)
    ]
    read = [
        f'<answer number="{number}">\n{{{{ {key}.{number} }}}}\n</answer>'
        for number in range(1, len(made) + 1)
    ]
    return Block(
        [
            Block(made, name="generations", merge="none", parallel=parallel),
            Step(Template("\n\n".join([select, *read])), name="select", system=system),
        ],
        name=name,
        merge="last_response",
        capture_key=capture_key,
    )


def _generations(
    generate: Step | str | Template | Sequence[Step], n: int, system: str | Template | None
) -> list[Step]:
    if isinstance(generate, str | Template):
        generate = Step(generate, system=system)
    # The same step several times: the caller gives each copy its own name and key.
    steps = [generate] * n if isinstance(generate, Step) else list(generate)
    if not steps:
        raise TreeError.of("generate_then_select needs at least one answer; set n >= 1")
    for step in steps:
        if not isinstance(step, Step):
            raise TreeError.of(f"a generation must be a Step, not {type(step).__name__}")
    return steps


def _distinct(scope: str, artists: Iterable[Artist]) -> tuple[Artist, ...]:
    if problem := key_problem(scope):
        raise TreeError.of(problem)
    voices = tuple(artists)
    keys = [artist.key for artist in voices]
    if not voices:
        raise TreeError.of(f"{scope}: there are no artists; pass at least one")
    if twice := sorted({key for key in keys if keys.count(key) > 1}):
        raise TreeError.of(f"{scope}: two artists have the key {', '.join(map(repr, twice))}")
    return voices


def _scoped(scope: str, artist: Artist) -> str:
    return f"{scope}.{artist.key}"
