"""Reference pages that are written from the code, so that they cannot fall behind it."""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
from collections.abc import Iterator, Mapping
from enum import Enum
from importlib import import_module
from typing import Any, Final

import typer
from tests.docs import recipe_reference
from tests.docs.pages import ROOT, Page
from tests.docs.recipe_reference import rows

from mergepoint.apps.cli.app import app
from mergepoint.core import errors
from mergepoint.core.errors import MergepointError
from mergepoint.tree.leaves import Step
from mergepoint.tree.nodes import Block, Gate, Loop
from mergepoint.tree.tree_yaml import NODE_FORMS

PYTHON: Final = {
    "mergepoint": "The top-level package: trees, runs, results, and errors.",
    "mergepoint.streams": "Recipes, blocks, and Things beyond the top-level names.",
    "mergepoint.session": "Sessions: where they are stored, facts, import, check, and repair.",
    "mergepoint.agent": "The agent that plans, asks, writes programs, and runs them.",
    "mergepoint.sandbox": "Runners that execute untrusted code.",
    "mergepoint.journal": "Journals: write, read, check, and convert them to transcripts.",
    "mergepoint.report": "Views and drawings of trees and runs.",
    "mergepoint.otel": "Spans of OpenTelemetry, from journals and from runs that go on.",
    "mergepoint.view": "Pages about runs: one HTML file that shows everything.",
    "mergepoint.scale": "Batches: many inputs through one tree or recipe.",
    "mergepoint.testing": "Scripted models, cassettes, a model server, and simulated time.",
    "mergepoint.patterns": "Functions that build common trees.",
}
"""The public packages, with what each is for."""

NOTE: Final = "<!-- Generated from the code: python -m tests.docs.refresh -->"
ERRORS: Final = "docs/reference/errors.md"
_MARKED = re.compile(r"(?s)(<!-- errors: begin -->\n).*?(<!-- errors: end -->)")


def pages() -> dict[str, str]:
    """Return the generated pages by their paths."""
    found = {
        "docs/reference/python/README.md": _page("Python API", *_python_index()),
        **{_python_path(name): _page(f"`{name}`", *_python(name)) for name in PYTHON},
        "docs/reference/cli.md": _page("Command line", *_cli()),
        "docs/reference/yaml-trees.md": _page("YAML trees", *_yaml_trees()),
        "docs/reference/recipe-files.md": _page("Recipe files", *recipe_reference.recipe_files()),
        "docs/reference/blocks.md": _page("Blocks", *recipe_reference.blocks()),
        "docs/reference/recipes.md": _page("Bundled recipes", *recipe_reference.recipes()),
        "docs/reference/vocabulary.md": _page("Vocabulary", *recipe_reference.words()),
        "docs/reference/examples.md": _page("Examples", *_examples()),
        "docs/internals/decisions/README.md": _page("Decisions", *_decisions()),
    }
    if (ROOT / ERRORS).exists():
        found[ERRORS] = _MARKED.sub(
            lambda marked: f"{marked[1]}\n{_errors()}\n\n{marked[2]}", Page.read(ERRORS).text
        )
    return found


def _page(title: str, *parts: str) -> str:
    return "\n\n".join([f"# {title}", NOTE, *(part.strip("\n") for part in parts)]) + "\n"


# Python: every public name, rendered by mkdocstrings.


def _python_path(name: str) -> str:
    return f"docs/reference/python/{name.rpartition('.')[2]}.md"


def _python_index() -> Iterator[str]:
    yield "Every public name, by package. Import from these packages; deeper modules are private."
    yield (
        "The site renders each entry with its signature and docstring; `CONTRIBUTING.md` says\n"
        "how to build it. To print the same text in a clone, run `python -m pydoc NAME`, for\n"
        "example `python -m pydoc mergepoint.run`."
    )
    yield rows(
        ("Package", "Content"),
        [(f"[`{name}`]({name.rpartition('.')[2]}.md)", about) for name, about in PYTHON.items()],
    )


def _python(package: str) -> Iterator[str]:
    yield PYTHON[package]
    names = sorted(import_module(package).__all__, key=lambda name: (name.lower(), name))
    first = next(name for name in ("run", *names) if name in names)
    yield (
        "The site renders the entries. On GitHub, this page lists only the names. In a clone,\n"
        f"print an entry with `python -m pydoc {package}.{first}`."
    )
    for name in names:
        yield f"::: {package}.{name}"


# The command line, as typer knows it.


def _cli() -> Iterator[str]:
    command = typer.main.get_command(app)
    listed = list(_commands(command, "mergepoint"))
    yield "Every command with its arguments and options, as `--help` prints them."
    yield rows(
        ("Command", "Purpose"),
        [
            (f"[{name}](#{name.replace(' ', '-')})", _plain(one.help).partition("\n")[0])
            for name, one in listed
        ],
    )
    for name, one in listed:
        yield f"## {name}"
        yield _plain(one.help)
        shown = [_shape(part) for part in one.params if _is_argument(part)]
        yield f"```text\n{' '.join([name, *shown, '[OPTIONS]'])}\n```"
        yield from _options(one)
        if examples := _examples_of(one):
            yield "Examples:"
            yield f"```text\n{examples}\n```"


def _commands(command: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Yield every command that does something, with its full name."""
    below = getattr(command, "commands", {})
    if not below:
        yield name, command
    for word, one in below.items():
        if not one.hidden:
            yield from _commands(one, f"{name} {word}")


def _plain(text: str | None) -> str:
    return inspect.cleandoc((text or "").replace("\b", "").partition("\f")[0])


def _is_argument(param: Any) -> bool:
    return not param.opts[0].startswith("-")


def _shape(param: Any) -> str:
    many = "..." if param.nargs == -1 else ""
    return f"{param.metavar}{many}" if param.required else f"[{param.metavar}{many}]"


def _options(command: Any) -> Iterator[str]:
    arguments = [one for one in command.params if _is_argument(one)]
    if arguments:
        yield rows(("Argument", "Description"), [_said(one) for one in arguments])
    panels: dict[str, list[Any]] = {}
    for one in command.params:
        if not _is_argument(one) and not one.hidden:
            panels.setdefault(one.rich_help_panel or "Options", []).append(one)
    for panel, options in panels.items():
        yield rows((panel, "Description"), [_said(one) for one in options])


def _said(param: Any) -> tuple[str, str]:
    if _is_argument(param):
        return f"`{param.metavar}`", _sentence(param)
    names = ", ".join(f"`{name}`" for name in [*param.opts, *param.secondary_opts])
    value = "" if param.is_flag else f" `{_value(param)}`"
    return f"{names}{value}", _sentence(param)


def _value(param: Any) -> str:
    kind = param.type_descriptor.annotation
    if param.metavar is None and isinstance(kind, type) and issubclass(kind, Enum):
        return "|".join(str(one.value) for one in kind)
    return str(param.metavar or param.name.upper())


def _sentence(param: Any) -> str:
    default = param.default
    shown = param.show_default and default is not None and not param.is_flag
    value = default.value if isinstance(default, Enum) else default
    return f"{param.help}{f' Default: `{value}`.' if shown else ''}"


def _examples_of(command: Any) -> str:
    """Return the commands of the epilog."""
    lines = [line.strip() for line in (command.epilog or "").splitlines()]
    return "\n".join(line for line in lines if line.startswith("mergepoint"))


# YAML trees: the keys that the reader takes, with the defaults of the classes.

NODES: Final[Mapping[type[Any], str]] = {
    Step: "A mapping with `prompt` is a step: one model call.",
    Block: "A mapping with `nodes` is a block: its nodes run in order or in parallel.",
    Loop: "A mapping with `nodes` and `until` is a loop: it repeats its nodes.",
    Gate: "A mapping with `node` is a gate: its result needs approval before it is merged.",
}
KEYS: Final[Mapping[str, str]] = {
    "allow_empty_prompt": "Whether a blank prompt is sent. If false, it is an error.",
    "allow_empty_response": "Whether a blank answer is accepted. If false, it is an error.",
    "budget": "Limits that all calls below share: `usd`, `tokens`, `calls`, `seconds`, "
    "`on_exhausted`.",
    "capture_key": "Output key for the node's last response; for a gate, the decision.",
    "examples": "Pairs of `[user text, assistant text]` that precede the conversation.",
    "inputs": "Values that a run needs: a name, or `{name: ..., default: ..., type: ...}`. Root "
    "only.",
    "max_iterations": "Maximum number of iterations.",
    "max_tool_rounds": "Maximum number of rounds in which the model can call tools.",
    "may_skip": "Whether to check `until` before the first iteration.",
    "merge": "Messages that the parent keeps: `all_messages`, `last_response`, or `none`.",
    "meta": "Your own data. Added to the metadata of calls.",
    "method": "How to request structured output.",
    "model": "`provider:name` for this step. Default: the run's model.",
    "name": "Name in the path. Default: kind and position, such as `step_01`.",
    "node": "The node whose result needs approval.",
    "nodes": "The child nodes, in order.",
    "on_exhausted": "`raise` fails after the last iteration. `keep` continues with its result.",
    "on_reject": "`continue` continues the run after a rejection. `stop` ends it.",
    "parallel": "`true` starts all children on the same base state; `threads` runs independent "
    "`merge: none` children concurrently.",
    "params": "Other request parameters of the provider, such as `max_tokens`.",
    "policy": "`retry`, `timeout`, `budget`, and `accept_truncated` of the call.",
    "prompt": "Literal text, or `{template: ..., defaults: {...}}` with `{{ key }}` places.",
    "question": "Text to show the reviewer.",
    "system": "System message for this call only. Text or a template, like `prompt`.",
    "temperature": "Sampling temperature of the call.",
    "tools": "Functions or LangChain tools, as `package.module:name`.",
    "until": "Key of the output that ends the loop when it is true or not rejected.",
}


def _yaml_trees() -> Iterator[str]:
    yield (
        "All keys of a YAML tree. The reader is strict: an unknown key, a duplicate key, an\n"
        "anchor, or a tag is an error with its file and line."
    )
    for kind, about in NODES.items():
        yield f"## {kind.__name__}"
        yield about
        defaults = {one.name: one for one in dataclasses.fields(kind)}
        yield rows(
            ("Key", "Default", "Description"),
            [
                (f"`{key}`", _default(kind, key, defaults[key]), KEYS[key])
                for key in NODE_FORMS[kind].model_fields
            ],
        )
    yield (
        "Functions, structured-output classes, message objects, and `Call` nodes stay in Python.\n"
        "See [Write a tree in YAML](../how-to/workflows/yaml-trees.md)."
    )


def _default(kind: type[Any], key: str, field: Any) -> str:
    if key in NODE_FORMS[kind].needed:
        return "required"
    value = field.default
    if value is dataclasses.MISSING or value is None or value == ():
        return ""
    return f"`{json.dumps(value)}`"


# Errors: the classes of `core.errors`, below their parents.


def _errors() -> str:
    classes = [
        one
        for one in vars(errors).values()
        if isinstance(one, type) and issubclass(one, MergepointError)
    ]
    return rows(
        ("Error", "Also a", "Raised for"),
        [(f"`{one.__name__}`", _parents(one), _raised_for(one)) for one in classes],
    )


def _parents(error: type[Any]) -> str:
    return ", ".join(f"`{one.__name__}`" for one in error.__bases__ if one is not Exception)


def _raised_for(error: type[Any]) -> str:
    return inspect.cleandoc(str(error.__doc__)).partition("\n\n")[0].replace("\n", " ")


# Examples: the trees and recipes in graphs/, by the openings of their pages.


def _examples() -> Iterator[str]:
    yield (
        "Complete trees and recipes in the folder `graphs/`. Each has a `README.md`, a test, and\n"
        "runs offline."
    )
    yield rows(
        ("Example", "Content", "Run"),
        [
            (f"`{path.parent.name}`", _opening(path.read_text()), f"`{_command(path.parent)}`")
            for path in sorted((ROOT / "graphs").glob("*/README.md"))
        ],
    )


def _opening(text: str) -> str:
    """Return the first sentence of a page, without its links."""
    paragraph = text.split("\n\n")[1].replace("\n", " ")
    sentence = re.split(r"(?<=\.)\s", paragraph)[0]
    return re.sub(r"\[([^]]+)\]\([^)]+\)", r"\1", sentence)


def _command(folder: Any) -> str:
    kind = "run graphs/" if (folder / "recipe.yaml").exists() else "run "
    return f"mergepoint {kind}{folder.name} ..."


# Decisions: the index of the notes, by their titles.


def _decisions() -> Iterator[str]:
    yield "One decision per note: its context, the decision, and its consequences."
    yield rows(
        ("Note", "Decision"),
        [
            (f"[{number}]({path.name})", title)
            for path in sorted((ROOT / "docs/internals/decisions").glob("0*.md"))
            for number, _, title in [path.read_text().partition("\n")[0][2:].partition(": ")]
        ],
    )
