"""The third engine: what a tree means, on plain data, written apart from the library.

It imports nothing of the library and nothing of LangGraph, and works another way: every node is
given a working copy that it fills, and what a node made is what lies behind the mark where it
began. A fault that interpreter and compiler share is a disagreement with this file.

A tree is a dict: `kind`, `name` (or None), `merge`, `capture_key`. A block has `parallel`,
`children` and, at the root, `inputs` (name, then a default if there is one); a loop `children`,
`until`, `most`, `keeps` and `skips`; a gate `child`, `question` and `words`; a step `prompt`,
`system` (or None) and `structured`, which makes a form with two fields of its answer; with `tools`
(names) it may go `rounds` times through tools before it answers; a call has `target` and `args` (or
None).

A text is a dict too: {"kind": "literal", "text"}, {"kind": "template", "text", "defaults"} or
{"kind": "function", "parts", "defaults", "declared"}, where a part says something about the run
and `declared` that its reads come first. So are an argument ({"kind": "value", "value"} or a
template), `until` ({"key"}, or {"of", "count", "under"}) and a call's target ({"gives", "keys",
"defaults", "counter", "declared"}, or {"form", "asks"}).

`parallel` is True, False or "threads". Steps, calls and loops have `reads`: the keys that they are
known to read, or "*" where they may read any.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Tree = Mapping[str, Any]
Line = tuple[str, str]
Answer = Callable[[str, list[Line]], str]
AnswerDetails = Callable[[str, list[Line], bool], Mapping[str, Any]]
ToolCalls = Callable[[str, list[Line], Sequence[str]], Sequence[tuple[str, str]]]


class Failed(Exception):
    """A node that failed: the error's type, the innermost path, and the paths noted beside it."""

    def __init__(self, kind: str, path: str, noted: Sequence[str] = ()) -> None:
        super().__init__(f"{kind} at {path}")
        self.kind = kind
        self.path = path
        self.noted = list(noted)


@dataclass
class Copy:
    """A working copy: lines with their origins, outputs, and which of these were written here.

    An origin is the path of the node that made the line, and its number among those.
    """

    lines: list[Line] = field(default_factory=list)
    origins: list[str | None] = field(default_factory=list)
    outputs: dict[str, Any] = field(default_factory=dict)
    written: list[str] = field(default_factory=list)

    def fork(self) -> Copy:
        """Return a copy that can be written without this one changing."""
        return Copy(list(self.lines), list(self.origins), dict(self.outputs))

    def add(self, role: str, text: str, origin: str | None) -> None:
        """Append a line."""
        self.lines.append((role, text))
        self.origins.append(origin)

    def write(self, key: str, value: Any) -> None:
        """Write an output."""
        self.outputs[key] = value
        self.written.append(key)

    def take(self, other: Copy) -> None:
        """Write what was written on a fork."""
        for key in other.written:
            self.write(key, other.outputs[key])


@dataclass
class Run:
    """What all nodes of one run share, and what is written down on the way."""

    inputs: Mapping[str, Any]
    answer: Answer
    beside: AnswerDetails
    draw: Callable[[str, int], str]
    one_by_one: bool = False
    tool_calls: ToolCalls = lambda path, seen, tools: ()
    more: dict[str | None, Mapping[str, Any]] = field(default_factory=dict)
    saw: dict[str, list[Line]] = field(default_factory=dict)
    calls: dict[str, tuple[str, str]] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    done: dict[str, tuple[str, Any]] = field(default_factory=dict)
    exhausted: list[str] = field(default_factory=list)


def run(
    tree: Tree,
    messages: Sequence[Line],
    inputs: Mapping[str, Any],
    answer: Answer,
    *,
    beside: AnswerDetails = lambda path, seen, structured: {},
    draw: Callable[[str, int], str] = lambda path, n: f"{path}#{n}",
    tool_calls: ToolCalls = lambda path, seen, tools: (),
    one_by_one: bool = False,
) -> dict[str, Any]:
    """Return what a run of the tree leaves: messages, outputs, and what happened on the way.

    Keys: `messages`, `origins` (the path that made each and a number, None for those given),
    `beside` (what an answer has beside its text, which stays with its line; None for other lines),
    `outputs`; in the order of the tree `saw` (path to lines), `calls` (path to prompt and response
    of answered steps), `done` (path to "call" and its result, or "gate" and what was decided; a
    step with tools is a call, and so is each of its tools) and `failed` (path to type of error);
    `exhausted`, the paths of loops that never held; and `error`:
    None, or its `type`, innermost `path` and the paths `noted`. The argument `beside` says of a
    path, the lines that its model saw, and whether it was asked for a form, what the answer had
    beside its text; `tool_calls` which tools of a step it called, each with a text. `draw` gives
    the n-th random text that the function at a path gets. With `one_by_one` children of a parallel
    block wait for each other, and none starts after a failure.
    """
    root = tree["name"] or ("pipeline" if tree["kind"] == "block" else f"{tree['kind']}_01")
    given = Copy(list(messages), [None] * len(messages))
    world = given.fork()
    now = Run(inputs, answer, beside, draw, one_by_one, tool_calls)
    error = None
    try:
        now.inputs = known_inputs(tree, root, inputs)
        run_node(tree, root, world, now)
    except Failed as failure:
        world = given
        error = {"type": failure.kind, "path": failure.path, "noted": failure.noted}
    return {
        "messages": world.lines,
        "origins": world.origins,
        "beside": [now.more.get(origin) for origin in world.origins],
        "outputs": world.outputs,
        "saw": now.saw,
        "calls": now.calls,
        "failed": now.failed,
        "done": now.done,
        "exhausted": now.exhausted,
        "error": error,
    }


def name_of(node: Tree, number: int) -> str:
    """Return a child's name, or one by its position."""
    return str(node["name"] or f"{node['kind']}_{number:02d}")


def known_inputs(tree: Tree, root: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the run's inputs with the defaults of those left out."""
    found = dict(given)
    for declared in tree.get("inputs", ()):
        if declared[0] in found:
            continue
        if len(declared) == 1:
            raise Failed("ValueError", root)
        found[declared[0]] = declared[1]
    return found


def run_node(node: Tree, path: str, world: Copy, now: Run) -> bool:
    """Run a node on a fork of the world, then write into the world what its merge lets out.

    It is true where a no ended the run: then a node without an answer lets nothing out.
    """
    mine = world.fork()
    mark = len(mine.lines)
    ended = bool(WORK[node["kind"]](node, path, mine, now))
    made = list(zip(mine.lines[mark:], mine.origins[mark:], strict=True))
    answered = [entry for entry in made if entry[0][0] == "assistant"]
    nothing_left = (node["kind"] == "gate" and not made) or (
        ended and node["merge"] == "last_response" and not answered
    )
    mode = "none" if nothing_left else node["merge"]
    kept = chosen(mode, made, answered, path)
    world.take(mine)
    captures = node["capture_key"] is not None and node["kind"] not in ("call", "gate")
    if captures and not (ended and not answered):
        if not answered:
            raise Failed("ValueError", path)
        text = answered[-1][0][1]
        world.write(node["capture_key"], json.loads(text) if structured(node) else text)
    for (role, text), origin in kept:
        world.add(role, text, origin)
    return ended


def structured(node: Tree) -> bool:
    """Return whether a node is a step whose answer has fields."""
    return node["kind"] == "step" and bool(node["structured"])


def run_in_order(node: Tree, path: str, mine: Copy, now: Run) -> bool:
    """Run children one after the other, until one ends the run."""
    for number, child in enumerate(node["children"], start=1):
        if run_node(child, f"{path}/{name_of(child, number)}", mine, now):
            return True
    return False


def run_block(node: Tree, path: str, mine: Copy, now: Run) -> bool:
    """Run children in order, or side by side."""
    children = list(enumerate(node["children"], start=1))
    if node["parallel"] is True:
        return run_side_by_side(children, path, mine, now)
    if node["parallel"] != "threads":
        return run_in_order(node, path, mine, now)
    ended = False
    while children and not ended:
        together = beside_each_other(children)
        if together == 1:
            number, child = children[0]
            ended = run_node(child, f"{path}/{name_of(child, number)}", mine, now)
        else:
            ended = run_side_by_side(children[:together], path, mine, now)
        children = children[together:]
    return ended


def beside_each_other(children: Sequence[tuple[int, Tree]]) -> int:
    """Count the first children that leave no lines and cannot tell who of them came first."""
    written: set[str] = set()
    for count, (_, child) in enumerate(children):
        reads, writes, plain = about(child)
        apart = child["merge"] != "none" or not plain
        if count and (apart or written & set(reads) or ("*" in reads and written)):
            return count
        if apart:
            return 1
        written |= set(writes)
    return len(children)


def about(node: Tree) -> tuple[list[str], list[str], bool]:
    """Return the keys that a node reads ("*" for any) and writes, and whether it has no gate."""
    inside = [*node.get("children", ()), *([node["child"]] if "child" in node else [])]
    found = [about(one) for one in inside]
    reads = [*node.get("reads", ()), *(key for one in found for key in one[0])]
    writes = [key for one in found for key in one[1]]
    writes += [] if node["capture_key"] is None else [node["capture_key"]]
    return reads, writes, node["kind"] != "gate" and all(one[2] for one in found)


def chosen(mode: str, made: list[Any], answered: list[Any], path: str) -> list[Any]:
    """Return the lines that a merge mode lets out."""
    if mode == "all_messages":
        return made
    if mode == "last_response":
        if not answered:
            raise Failed("ValueError", path)
        return answered[-1:]
    return []


def run_side_by_side(children: Sequence[tuple[int, Tree]], path: str, mine: Copy, now: Run) -> bool:
    """Run children on the state at entry, all to their end; then raise, or merge in order."""
    entry = mine.fork()
    worlds: list[Copy] = []
    failures: list[Failed] = []
    ended = False
    for number, child in children:
        if failures and now.one_by_one:
            break
        world = entry.fork()
        try:
            ended |= run_node(child, f"{path}/{name_of(child, number)}", world, now)
        except Failed as failure:
            failures.append(failure)
        worlds.append(world)
    if failures:
        first, *others = failures
        raise Failed(first.kind, first.path, [*first.noted, *(other.path for other in others)])
    for world in worlds:
        mark = len(entry.lines)
        for (role, text), origin in zip(world.lines[mark:], world.origins[mark:], strict=True):
            mine.add(role, text, origin)
        mine.take(world)
    return ended


def run_loop(node: Tree, path: str, mine: Copy, now: Run) -> bool:
    """Run the children again and again, on what is there by then, until it is enough."""
    if node["skips"] and enough(node["until"], path, mine):
        return False
    for number in range(1, node["most"] + 1):
        if run_in_order(node, f"{path}/iteration_{number:02d}", mine, now):
            return True
        if enough(node["until"], path, mine):
            return False
    now.exhausted.append(path)
    if not node["keeps"]:
        raise Failed("RuntimeError", path)
    return False


def enough(until: Tree, path: str, mine: Copy) -> bool:
    """Return whether a loop ends."""
    if "key" in until:
        value = mine.outputs.get(until["key"])
        if value is None or isinstance(value, bool):
            return bool(value)
        if isinstance(value, dict) and "decision" in value:
            return bool(value["decision"] != "reject")
        raise Failed("ValueError", path)
    of, count = until["of"], until["count"]
    if of == "raise":
        raise Failed("PlannedError", path)
    if of == "number":
        raise Failed("ValueError", path)
    if of == "whim":
        return int(digest(path, mine.lines, mine.outputs), 16) % int(count) == 0
    if of == "messages":
        return len(mine.lines) >= int(count)
    found = mine.outputs.get(until["under"])
    return isinstance(found, int) and found >= int(count)


def digest(path: str, lines: Sequence[Line], outputs: Mapping[str, Any]) -> str:
    """Return eight hexadecimal digits of what is seen at a path."""
    told = json.dumps([path, [list(line) for line in lines], dict(outputs)], sort_keys=True)
    return hashlib.blake2b(told.encode(), digest_size=4).hexdigest()


def run_gate(node: Tree, path: str, mine: Copy, now: Run) -> bool:
    """Run the child apart, and let in what is decided about it."""
    child = node["child"]
    held = Copy(list(mine.lines), list(mine.origins), dict(mine.outputs))
    mark = len(held.lines)
    if run_node(child, f"{path}/{name_of(child, 1)}", held, now):
        return True  # nobody is asked any more, so nothing of it is let in
    lines, origins = held.lines[mark:], held.origins[mark:]
    values = {key: held.outputs[key] for key in held.written}
    answered = [at for at, (role, _) in enumerate(lines) if role == "assistant"]
    own = child["capture_key"] if child["kind"] != "gate" else None
    seen = digest(f"{path}?{node['question']}", lines, values)
    word = node["words"][int(seen, 16) % len(node["words"])]
    as_json = structured(child) or not isinstance(values.get(own or "", ""), str)
    text = json.dumps({"edited": seen}) if as_json else f"edited {seen}"
    has_text = bool(answered) or own in values
    verdict = judged(word, seen, sorted(values), path, text=text if has_text else None)
    now.done[path] = ("gate", verdict)
    if "text" in verdict:
        if own in values:
            values[own] = json.loads(text) if as_json else text
        if answered:
            lines[answered[-1]] = ("assistant", verdict["text"])
            edited = origins[answered[-1]]
            if edited in now.more:  # thoughts are a part of the content, which is another now
                now.more[edited] = {**now.more[edited], "thoughts": []}
    values.update(verdict.get("outputs", {}))
    if verdict["decision"] != "reject":
        for entry, origin in zip(lines, origins, strict=True):
            mine.add(*entry, origin)
        for key, value in values.items():
            mine.write(key, value)
    if node["capture_key"] is not None:
        said = {"decision": verdict["decision"], "feedback": verdict["feedback"]}
        mine.write(node["capture_key"], said)
    return bool(node["stops"]) and verdict["decision"] == "reject"


def judged(
    word: str, seen: str, keys: Sequence[str], path: str, *, text: str | None
) -> dict[str, Any]:
    """Return what a word decides about what is shown; `text` is what an edit would put there."""
    if word == "raise":
        raise Failed("PlannedError", path)
    if word == "odd":
        raise Failed("ValueError", path)
    if word == "edit" and text is not None:
        return {"decision": "edit", "feedback": "better so", "text": text}
    if word == "outputs" and keys:
        return {"decision": "edit", "feedback": "", "outputs": {keys[0]: ["edited", seen]}}
    if word == "feedback":
        return {"decision": "reject", "feedback": f"not {seen}"}
    return {"decision": "reject" if word in ("no", "reject") else "approve", "feedback": ""}


def run_call(node: Tree, path: str, mine: Copy, now: Run) -> None:
    """Give arguments to a function; its result is a value, and with a mode lines too."""
    target = node["target"]
    given = None
    if node["args"] is None and "gives" in target and target["declared"]:
        for key in target["keys"]:
            value_of(key, target["defaults"], path, mine, now)
    if node["args"] is not None:
        given = arguments(node["args"], path, mine, now)
    try:
        if "gives" in target:
            value = given_by(target, given, path, mine, now)
            said = [("assistant", as_text(value))]
        else:
            value, said = spoken(target, mine)
        if node["merge"] == "none":
            said = []
        if not all(text.strip() for _, text in said):
            raise Failed("ValueError", path)
    except Failed as failure:
        now.failed[path] = failure.kind
        raise
    now.done[path] = ("call", value)
    for number, (role, text) in enumerate(said):
        mine.add(role, text, f"{path}/{number}")
    if node["capture_key"] is not None:
        mine.write(node["capture_key"], value)


def arguments(args: Mapping[str, Tree], path: str, mine: Copy, now: Run) -> dict[str, Any]:
    """Return the arguments: a template that is one place is the value itself, else it is text."""
    found: dict[str, Any] = {}
    for name, arg in args.items():
        if arg["kind"] == "value":
            found[name] = json.loads(json.dumps(arg["value"]))
            continue
        text, defaults = arg["text"], arg["defaults"]
        keys: list[str] = []

        def noted(key: str, keys: list[str] = keys) -> str:
            keys.append(key)
            return "\0"

        def valued(key: str, defaults: Any = defaults) -> str:
            return as_text(value_of(key, defaults, path, mine, now))

        alone = fill(text.strip(), noted) == "\0"
        found[name] = value_of(keys[0], defaults, path, mine, now) if alone else fill(text, valued)
    return found


def given_by(target: Tree, given: Any, path: str, mine: Copy, now: Run) -> Any:
    """Return what a function gives, on copies of what it sees."""
    seen, count = digest(path, mine.lines, mine.outputs), len(mine.lines)

    def counted() -> int:
        before = mine.outputs.get(target["counter"], 0)
        return before + 1 if isinstance(before, int) else 1

    def read() -> list[Any]:
        keys = (*target["keys"], *target["defaults"])
        return [seen, *(value_of(key, target["defaults"], path, mine, now) for key in keys)]

    if target["gives"] == "raise":
        raise Failed("PlannedError", path)
    if target["gives"] == "odd":
        raise Failed("ValueError", path)
    gives: dict[str, Callable[[], Any]] = {
        "seen": lambda: f"seen {seen}",
        "spoil": lambda: f"spoiled {seen}",
        "count": lambda: count,
        "list": lambda: [count, seen, sorted(mine.outputs)],
        "map": lambda: {"seen": seen, "deep": [{"ä": path}]},
        "flag": lambda: int(seen, 16) % 2 == 0,
        "read": read,
        "next": counted,
        "draw": lambda: now.draw(path, 0),
        "ask": lambda: asked(path, now),
        "blank": lambda: None,
    }
    found = gives[target["gives"]]()
    if not given:
        return found
    if target["gives"] == "spoil":
        given = {name: str(value) for name, value in given.items()}
    return {"given": given, "found": found}


def asked(path: str, now: Run) -> list[str]:
    """Return what the model says to two questions of a function; the last one is what it saw."""
    answers: list[str] = []
    for question in ("First?", "And after {}?"):
        now.saw[path] = [("user", question.format(*answers))]
        answers.append(now.answer(path, now.saw[path]))
    return answers


def spoken(target: Tree, mine: Copy) -> tuple[Any, list[Line]]:
    """Return the value and the new lines of what answers with messages."""
    text = f"spoken {digest('', mine.lines, {})}"
    said = [("user", "And?")] if target["asks"] and target["form"] != "one" else []
    value = {"score": [len(mine.lines)]} if target["form"] == "mapping" else text
    return value, [*said, ("assistant", text)]


def as_text(value: Any) -> str:
    """Return text as it is, nothing as nothing, and all else as JSON."""
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def value_of(key: str, defaults: Mapping[str, Any], path: str, mine: Copy, now: Run) -> Any:
    """Return an input, else an output, else its default; without any the node fails."""
    value = now.inputs[key] if key in now.inputs else mine.outputs.get(key)
    if value is None or (isinstance(value, str) and not value.strip()):
        if key not in defaults:
            raise Failed("ValueError", path)
        return defaults[key]
    return value


def run_step(node: Tree, path: str, mine: Copy, now: Run) -> None:
    """Ask once, with the system text in front and the prompt behind; write prompt and answer."""
    if node.get("tools"):
        if node["system"] is not None:  # made before the execution is on record
            text_of(node["system"], path, mine, now)
        try:
            run_with_tools(node, path, mine, now)
        except Failed as failure:  # its execution is on record, from the prompt on
            now.failed[path] = failure.kind
            raise
        return
    prompt, view = shown_to_model(node, path, mine, now)
    response = answered_by(path, view, now)
    if not response.strip():
        now.failed[path] = "ValueError"
        raise Failed("ValueError", path)
    if node["structured"]:
        form = {"said": response, "seen": len(view)}
        response = json.dumps(form, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    now.calls[path] = (prompt, response)
    now.more[f"{path}/1"] = now.beside(path, view, bool(node["structured"]))
    mine.add("user", prompt, f"{path}/0")
    mine.add("assistant", response, f"{path}/1")


def shown_to_model(node: Tree, path: str, mine: Copy, now: Run) -> tuple[str, list[Line]]:
    """Return a step's prompt, and all that its model is shown."""
    view = list(mine.lines)
    if node["system"] is not None:
        view.insert(0, ("system", text_of(node["system"], path, mine, now)))
    prompt = text_of(node["prompt"], path, mine, now)
    return prompt, [*view, ("user", prompt)]


def answered_by(path: str, view: list[Line], now: Run) -> str:
    """Return what the model says to what it is shown."""
    now.saw[path] = list(view)
    try:
        return now.answer(path, view)
    except Exception as error:  # noqa: BLE001  (whatever a model raises)
        now.failed[path] = type(error).__name__
        raise Failed(type(error).__name__, path) from None


def run_with_tools(node: Tree, path: str, mine: Copy, now: Run) -> None:
    """Ask until an answer calls no tool; all that was said on the way is made by the step."""
    prompt, view = shown_to_model(node, path, mine, now)
    made: list[Line] = [("user", prompt)]
    executed = 0
    for number in range(node["rounds"] + 1):
        seen = [*view, *made[1:]]
        response = answered_by(path, seen, now)
        calls = now.tool_calls(path, seen, node["tools"])
        about = {**now.beside(path, seen, True), "calls": [name for name, _ in calls]}
        now.more[f"{path}/{len(made)}"] = about
        made.append(("assistant", response))
        if not calls and response.strip():
            break
        if not calls or number == node["rounds"]:
            raise Failed("ValueError", path)
        for name, text in calls:
            executed += 1
            at = f"{path}/tool_{executed:02d}"
            made.append(("tool", told_by(name, text, node["tools"], at, now)))
    now.done[path] = ("call", response)
    for number, (role, text) in enumerate(made):
        mine.add(role, text, f"{path}/{number}")


def told_by(name: str, text: str, tools: Sequence[str], path: str, now: Run) -> str:
    """Return what the model reads of a tool; what is no tool of the step is not executed."""
    if name not in tools:
        return f"Error: there is no tool {name!r}; there are: {', '.join(tools)}"
    half = len(text) // 2
    found, status = {
        "measure": (str(len(text)), "success"),
        "turn": ("".join(reversed(text)), "success"),
        "part": (f"{text[:half]}\n{text[half:]}", "success"),
        "look_up": (f'{{"größe": ["{text}"]}}', "success"),
        "refuse": (f"PlannedError: nothing is known of {text}", "error"),
    }[name]
    now.done[path] = ("call", {"content": found, "status": status})
    return found


WORK: Mapping[str, Callable[[Tree, str, Copy, Run], bool | None]] = {
    "step": run_step,
    "block": run_block,
    "loop": run_loop,
    "gate": run_gate,
    "call": run_call,
}


def text_of(text: Tree, path: str, mine: Copy, now: Run) -> str:
    """Return a prompt's or a system's text; blank text is a failure."""

    def read(key: str) -> str:
        return as_text(value_of(key, text["defaults"], path, mine, now))

    if text["kind"] == "literal":
        return str(text["text"])
    if text["kind"] == "template":
        found = fill(text["text"], read)
    else:
        found = told(text, path, mine, now, read)
    if not found.strip():
        raise Failed("ValueError", path)
    return found


def told(text: Tree, path: str, mine: Copy, now: Run, read: Callable[[str], str]) -> str:
    """Return what a prompt function says: what it declares is read first, then it speaks."""
    parts = text["parts"]
    if text["declared"]:
        for kind, *rest in parts:
            if kind == "read" and rest[0] not in text["defaults"]:
                read(rest[0])
    kinds = [part[0] for part in parts]
    if "raise" in kinds:
        raise Failed("PromptError", path)
    if "none" in kinds or "number" in kinds:
        raise Failed("ValueError", path)
    drawn = itertools.count()
    says: dict[str, Callable[..., str]] = {
        "text": str,
        "read": read,
        "last": lambda: mine.lines[-1][1] if mine.lines else "nothing",
        "count": lambda: str(len(mine.lines)),
        "keys": lambda: ",".join(sorted(mine.outputs)),
        "path": lambda: path,
        "draw": lambda: now.draw(path, next(drawn)),
        "spoil": str,
    }
    pieces = [says[kind](*rest) for kind, *rest in parts]
    return " ".join(piece for piece in pieces if piece)


def fill(text: str, read: Callable[[str], str]) -> str:
    """Fill each `{{ key }}`, left to right; all else, also what is filled in, is text."""
    done, rest = "", text
    while rest:
        end = rest.find("}}")
        key = rest[2:end].strip() if rest.startswith("{{") and end > 0 else ""
        if key and not any(mark.isspace() or mark in "{}" for mark in key):
            done, rest = done + read(key), rest[end + 2 :]
        else:
            done, rest = done + rest[0], rest[1:]
    return done
