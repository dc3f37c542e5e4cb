"""The inputs of a run: inputs, items, recipe parameters, limits, and changes of the tree."""

from __future__ import annotations

import contextlib
import json
import re
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from langchain_core.messages import HumanMessage

from mergepoint.apps.cli.output import CommandError, count, tell
from mergepoint.apps.cli.run_store import RunStore, StoredRun
from mergepoint.core.errors import StepError, TreeError
from mergepoint.core.paths import nearest
from mergepoint.core.strict_yaml import YamlError, load, load_file
from mergepoint.journal.redact import mask
from mergepoint.journal.stores import masked_inputs
from mergepoint.models.pricing import Price
from mergepoint.streams.recipe import Recipe
from mergepoint.streams.thing import Thing
from mergepoint.tree.leaves import Step
from mergepoint.tree.load import load_module
from mergepoint.tree.nodes import REQUIRED, Block, Input, Node, children, walk
from mergepoint.tree.policy import Budget, as_budget
from mergepoint.tree.prompts import Template
from mergepoint.tree.transform import with_overrides, without
from mergepoint.tree.validate import check

STDIN = "-"
ITEMS_FILE = "items.txt"

# A name has no colon, so the first `:word=` ends the path; the value can contain anything.
_SETTING = re.compile(r"(?P<path>[^:]+):(?P<field>[A-Za-z_]+)=(?P<value>.*)", re.DOTALL)
_TEXTS = ("prompt", "system")


# Inputs of trees.


def read_inputs(pairs: Sequence[str], files: Sequence[Path]) -> dict[str, Any]:
    """Return the inputs of `key=value` pairs and of files; a pair overrides a file.

    Raises CommandError for an invalid pair, for a key that is set twice, and for a file that
    can't be read or isn't a mapping.
    """
    values: dict[str, Any] = {}
    for file in files:
        values.update(_mapping(file))
    seen: set[str] = set()
    for pair in pairs:
        key, separator, value = pair.partition("=")
        if not separator or not key:
            raise CommandError(f"Invalid --input {pair!r}. Use key=value or key=@file.")
        if key in seen:
            raise CommandError(f"--input {key}=... is set twice. Remove one of the two.")
        seen.add(key)
        values[key] = _text(Path(value[1:]), key) if value.startswith("@") else value
    return values


def check_inputs(
    declared: Sequence[Input], values: Mapping[str, Any], *, example: Path | None = None
) -> None:
    """Raise CommandError if inputs are missing, unknown, or of another type than declared.

    The message lists all of them, and the `example` file of valid inputs.
    """
    known = [given.name for given in declared]
    takes = f"Inputs of the tree: {', '.join(known) or 'none'}."
    faults = [
        f"Unknown input {name!r}{nearest(name, known)}. {takes}"
        for name in values
        if name not in known
    ]
    faults += [
        f"Input {given.name!r} is missing. Add --input {given.name}=TEXT, or add it to a file for "
        "--input-file."
        for given in declared
        if given.name not in values and given.default is REQUIRED
    ]
    faults += [
        f"{problem}. {_such_as(given)}"
        for given in declared
        if given.name in values and (problem := given.problem(values[given.name]))
    ]
    if faults and example is not None:
        faults.append(f"Example: --input-file {example}")
    if faults:
        raise CommandError("\n  ".join(faults))


def typed(declared: Sequence[Input], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the inputs, parsed as JSON if the tree declares another type than string.

    Raises CommandError that lists all values that aren't valid JSON.
    """
    others = {given.name: given for given in declared if given.json_type not in ("", "string")}
    found, faults = dict(values), []
    for name, value in values.items():
        if name not in others or not isinstance(value, str):
            continue
        try:
            found[name] = json.loads(value)
        except ValueError:
            faults.append(f"{others[name].problem(value)}. {_such_as(others[name])}")
    if faults:
        raise CommandError("\n  ".join(faults))
    return found


def _such_as(given: Input) -> str:
    text = given.example if given.json_type == "string" else json.dumps(given.example)
    return f"Example: --input {shlex.quote(f'{given.name}={text}')}"


def _text(file: Path, key: str) -> str:
    if str(file) == STDIN:
        return sys.stdin.read()
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CommandError(
            f"Can't read --input {key}=@{file}: {_problem(error)}. To pass a value that starts "
            "with '@', use --input-file."
        ) from error


def _mapping(file: Path) -> dict[str, Any]:
    try:
        if str(file) == STDIN:
            value = load(sys.stdin.read(), source="<stdin>").value
        elif file.suffix == ".json":
            value = json.loads(file.read_text(encoding="utf-8"))
        else:
            value = load_file(file).value
    except (OSError, UnicodeDecodeError, YamlError, json.JSONDecodeError) as error:
        raise CommandError(f"Can't read --input-file {file}: {_problem(error)}.") from error
    if not isinstance(value, dict):
        raise CommandError(
            f"--input-file {file} contains a {type(value).__name__}. It must be a mapping of "
            "names to values."
        )
    return value


def _problem(error: Exception) -> str:
    if isinstance(error, OSError):
        return error.strerror or str(error)
    if isinstance(error, UnicodeDecodeError):
        return "it isn't UTF-8 text"
    if isinstance(error, json.JSONDecodeError):
        return f"line {error.lineno} isn't JSON: {error.msg}"
    return str(error)


# Items and parameters of recipes.


def read_items(texts: Sequence[str], files: Sequence[str]) -> list[Any]:
    """Return the items of arguments and files, in order.

    A line of a file that starts with a brace is a JSON object: its `content`, and its `props` or
    all other fields as props. Raises CommandError for an invalid line, for a file that can't be
    read, and if there are no items.
    """
    items: list[Any] = list(texts)
    for file in files:
        for number, line in enumerate(_lines(file), 1):
            if line.strip():
                items.append(_item(line, f"{file}:{number}"))
    if not items:
        raise CommandError("The recipe needs items. Pass them as arguments, or use --items FILE.")
    return items


def load_blocks(files: Sequence[str]) -> None:
    """Import Python files, whose blocks recipes can then name. Raises TargetError."""
    for file in files:
        load_module(Path(file))


def items_again(given: Any) -> list[Any]:
    """Return the items that a resume needs again: of a string one, of a JSON list several."""
    if isinstance(given, str) and given.lstrip().startswith("["):
        try:
            given = json.loads(given)
        except ValueError:
            return [given]
    found = list(given) if isinstance(given, list | tuple) else [given]
    said = "--input items"
    # As a line of JSON, so that the rules for items in a file apply.
    return [_item(json.dumps(one), said) if isinstance(one, Mapping) else one for one in found]


def tell_masked_inputs(inputs: Mapping[str, Any], messages: Sequence[str]) -> None:
    """Report which inputs of a tree look like keys, and are masked in the journal."""
    options = [f"--input {name}=VALUE" for name in masked_inputs(inputs)]
    is_masked = any(mask(text) != text for text in messages)
    _tell_masked([*options, "--message TEXT"] if is_masked else options)


def _tell_masked(options: Sequence[str], note: str = "") -> None:
    if options:
        tell(
            "The inputs contain something that looks like a key. It is sent to the model, and is "
            f"masked in the journal. A resume needs it again: {' '.join(options)}{note}.",
            style="yellow",
        )


def tell_masked_items(items: Any, knobs: Mapping[str, Any]) -> None:
    """Report which items and parameters look like keys, and are masked in the journal."""
    from mergepoint.streams.recipe_setup import on_wire  # it loads LangGraph

    listed = items if isinstance(items, list | tuple) else []
    masked = masked_inputs({"items": [on_wire(one) for one in listed], **knobs})
    options = [f"--input {name}={'TEXT' if name == 'items' else 'VALUE'}" for name in masked]
    _tell_masked(options, " (several items as a JSON list)")


def example_items(recipe: Recipe) -> list[str]:
    """Return the file of example items next to a recipe's own file, in a list; or nothing."""
    # A recipe that was made in Python has no document, and so no folder for examples.
    source = getattr(recipe.document, "source", "")
    file = Path(source).with_name(ITEMS_FILE) if source else None
    return [str(file)] if file is not None and file.is_file() else []


def _lines(file: str) -> list[str]:
    if file == "-":
        return sys.stdin.read().splitlines()
    try:
        return Path(file).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise CommandError(f"Can't read --items {file}: {error}") from error


def _item(line: str, place: str) -> Any:
    if not line.lstrip().startswith("{"):
        return line
    try:
        data = json.loads(line)
    except ValueError as error:
        raise CommandError(f"{place} isn't a JSON object: {error}") from error
    if not isinstance(data, Mapping) or "content" not in data:
        raise CommandError(f"{place}: an item must be text, or a JSON object with content.")
    props = data.get("props", {key: value for key, value in data.items() if key != "content"})
    try:
        return Thing(data["content"], props)
    except (TypeError, ValueError) as error:
        raise CommandError(f"{place}: {error}") from error


def read_knobs(pairs: Sequence[str]) -> dict[str, Any]:
    """Return the parameters of `name=value` pairs. Raises CommandError for an invalid pair."""
    knobs: dict[str, Any] = {}
    for pair in pairs:
        name, separator, value = pair.partition("=")
        if not separator or not name:
            raise CommandError(f"Invalid --knob {pair!r}. Use name=value.")
        try:
            knobs[name] = json.loads(value)
        except ValueError:
            knobs[name] = value
    return knobs


# The run that another run resumes, reuses or replays.


def origin_of(runs: RunStore, *, reuse: str | None, replay: str | None) -> dict[str, StoredRun]:
    """Return the run that a new run takes answers from, by the name of the option.

    Raises CommandError for both options, and for a run without a journal.
    """
    asked = {"reuse": reuse, "replay": replay}
    given = {name: run for name, run in asked.items() if run is not None}
    if len(given) > 1:
        options = " and ".join(f"--{name}" for name in given)
        raise CommandError(f"Can't use {options} together. Pass one of them.")
    return {name: runs.find_journal(run) for name, run in given.items()}


def check_resumed(run: StoredRun, inputs: Mapping[str, Any], messages: Sequence[str]) -> None:
    """Raise CommandError for inputs and messages that a resume can't take.

    A resume takes only those that are masked in the journal, and these must be the same again.
    """
    from mergepoint.engine.run_tree import inputs_passed_again  # it loads LangGraph

    header, _ = run.read()
    try:
        said = [HumanMessage(content=text) for text in messages]
        # None instead of {}: an empty mapping would count as inputs that are passed again.
        given = inputs_passed_again(header, inputs or None, said)
    except StepError as error:
        raise CommandError(
            f"{error}; to run with other inputs, start a new run with --reuse {run.name}"
        ) from error
    names = header.hidden.get("names", ())
    options = " ".join(f"--input {name}=VALUE" for name in names) or "--message TEXT"
    if header.masked and given is None:
        raise CommandError(
            f"The {' and '.join(header.masked)} of {run.place} contained something that looks "
            f"like a key, which is masked in the journal. Pass the same values again: {options}"
        )
    if given is not None and (other := given.differs(header)):
        raise CommandError(
            f"Run {run.place} was started with other {' and '.join(other)}: the fingerprint in "
            f"the journal differs. Pass the same values again ({options}), or start a new run "
            f"with --reuse {run.name}."
        )


# Limits.


def read_budget(given: Sequence[str]) -> Budget | None:
    """Return the budget of `KIND=LIMIT` options, None without options.

    Raises CommandError that lists all problems.
    """
    if not given:
        return None
    limits: dict[str, Any] = {}
    for option in given:
        kind, separator, limit = option.partition("=")
        if not separator:
            raise CommandError(f"Invalid --budget {option!r}. Use KIND=LIMIT, such as usd=0.50.")
        if kind in limits:
            raise CommandError(f"--budget {kind} is set twice. Remove one of the two.")
        limits[kind] = _number(limit)
    try:
        return as_budget(limits)
    except TreeError as error:
        problems = "; ".join(fault.problem for fault in error.faults)
        raise CommandError(f"--budget: {problems}") from error


def read_prices(given: Sequence[str]) -> dict[str, Price]:
    """Return the prices of `PROVIDER:NAME=IN,OUT` options. Raises CommandError."""
    return dict(_price(option) for option in given)


def _price(option: str) -> tuple[str, Price]:
    model, _, rates = option.rpartition("=")
    amounts = [_number(rate) for rate in rates.split(",")]
    usage = "Use PROVIDER:NAME=IN,OUT in USD per million tokens, such as openai:qwen3=0.25,2."
    if not model or len(amounts) != 2:
        raise CommandError(f"Invalid --price {option!r}. {usage}")
    try:
        return model, Price(*amounts)
    except TreeError as error:
        raise CommandError(f"Invalid --price {option!r}: {error}. {usage}") from error


def _number(text: str) -> Any:
    # Integers first: a number of calls must not become a float.
    for kind in (int, float):
        with contextlib.suppress(ValueError):
            return kind(text)
    return text


# Changes of a tree for one run.


def change_tree(
    tree: Node, *, settings: Sequence[str], gone: Sequence[str], parallel: bool | None
) -> tuple[Node, str]:
    """Return the tree without some nodes, with other fields, and with blocks parallel or not.

    The text that is returned too says which blocks are parallel now, and which can't be.

    Raises CommandError for an invalid setting, and TreeError for one that matches no node or that
    the node refuses.
    """
    # Removal first: --set must match nodes that are left.
    if gone:
        tree = without(tree, gone)
    overrides: dict[str, dict[str, Any]] = {}
    for path, field, value in map(read_setting, settings):
        text = field in _TEXTS and isinstance(value, str)
        overrides.setdefault(path, {})[field] = _template_or_text(value) if text else value
    if overrides:
        tree = with_overrides(tree, overrides)
    if parallel is None:
        return tree, ""
    return _side_by_side(tree) if parallel else (_one_by_one(tree), "")


def read_setting(text: str) -> tuple[str, str, Any]:
    """Return path, field and value of a `--set`. Raises CommandError if it is invalid."""
    found = _SETTING.fullmatch(text)
    if found is None:
        raise CommandError(
            f"Invalid --set {text!r}. Use path:field=value, such as "
            "'stage_2/draft:temperature=0.2' or '**/draft:model=openai:gpt-5-mini'."
        )
    return found["path"], found["field"], _value(found["value"])


def _value(text: str) -> Any:
    try:
        return json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return text


# NaN and Infinity aren't JSON (RFC 8259), so that they stay text.
def _refuse(constant: str) -> NoReturn:
    raise ValueError(constant)


def _template_or_text(text: str) -> str | Template:
    """Return a Template if the text has places, since a command line can't say it otherwise."""
    if not text.strip():
        return text
    template = Template(text)
    return template if template.keys else text


def _one_by_one(tree: Node) -> Node:
    blocks = {path: {"parallel": False} for path, node in _blocks(tree) if node.parallel}
    return with_overrides(tree, blocks) if blocks else tree


def _side_by_side(tree: Node) -> tuple[Node, str]:
    """Return the tree with those blocks in parallel whose children are independent.

    Such children merge no messages and read no output of each other. Raises CommandError if
    there is no such block.
    """
    found: list[str] = []
    refused: list[str] = []
    for path, block in _blocks(tree):
        if block.parallel or not (
            len(block.nodes) > 1 and all(child.merge == "none" for child in block.nodes)
        ):
            continue
        if problem := _dependence(tree, path, block):
            refused.append(f"{path}: {problem}")
        else:
            found.append(path)
    stay = "".join(f"\n  stays sequential: {reason}" for reason in refused)
    if not found and not any(block.parallel for _, block in _blocks(tree)):
        raise CommandError(
            "--parallel: no block can run in parallel. Its children must all have merge='none' and "
            "must not read outputs of each other. To force a block: --set "
            f"path:parallel=true{stay}"
        )
    said = f"--parallel: {count(len(found), 'block')} now parallel{stay}"
    wide = with_overrides(tree, {path: {"parallel": True} for path in found}) if found else tree
    return wide, said


def _blocks(tree: Node) -> Iterator[tuple[str, Block]]:
    return ((path, node) for path, node in walk(tree) if isinstance(node, Block))


def _dependence(tree: Node, path: str, block: Block) -> str | None:
    """Return why the children depend on each other, None if they are independent."""
    faults = check(with_overrides(tree, {path: {"parallel": True}}))
    # Only problems that the change adds count: the tree may have others already.
    known = {str(fault) for fault in check(tree)}
    for fault in faults:
        if str(fault) not in known:
            return str(fault)
    if not any(node.capture_key for child in block.nodes[:-1] for _, node in walk(child)):
        return None
    # The first child has no earlier sibling whose output it could read.
    for at, child in children(block, path)[1:]:
        for step_path, node in walk(child, at):
            if isinstance(node, Step) and node.reads is None:
                return f"{step_path}: its prompt is a function without declared inputs (reads=)"
    return None
