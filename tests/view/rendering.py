"""The content of a run's page as text: everything that it shows, without times."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from mergepoint.core.text import shown

_WORDS = 56


def rendered(page: Mapping[str, Any], run: Mapping[str, Any]) -> str:
    """Return what the page of a run shows, a line for each node, call, Thing and value."""
    return "".join(f"{line}\n" for line in _lines(page, run))


def _lines(page: Mapping[str, Any], run: Mapping[str, Any]) -> Iterator[str]:
    texts = page["texts"]
    verdict = run["verdict"].split(" in ")[0]
    yield f"{run['kind']} {run['graph']}: {run['status']}: {verdict}"
    for name in ("inputs", "outputs", "settings"):
        for one in run[name]:
            yield f"{name} {one['key']} = {brief(texts[one['text']])}"
    yield f"result {brief(texts[run['result']]) if run['result'] is not None else 'none'}"
    if run["failure"]:
        yield f"failure {run['failure']['path']} {run['failure']['type']}"
    yield from (f"note {note}" for note in run["notes"])
    yield f"offers {', '.join(sorted(run['commands']))}"
    paid, reused = run["paid"], run["reused"]
    yield f"paid {paid['calls']} calls, reused {reused['calls']}"
    yield "nodes"
    for node in run["nodes"]:
        yield _node(node)
    yield "calls"
    for call in run["calls"]:
        yield from _call(texts, run, call)
    if run["recipe"]:
        yield from _recipe(texts, run["recipe"])


def _node(node: Mapping[str, Any]) -> str:
    depth = node["path"].count("/")
    facts = [node["kind"], node["merge"], "parallel" if node["parallel"] else ""]
    facts += [f"as {node['capture']}" if node["capture"] else "", node["status"]]
    facts += [f"{node['calls']} calls", f"{node['failed']} failed" if node["failed"] else ""]
    name = node["path"].rpartition("/")[2]
    return f"{'  ' * (depth + 1)}{shown(name)}: {', '.join(filter(None, facts))}"


def _call(texts: list[str], run: Mapping[str, Any], call: Mapping[str, Any]) -> Iterator[str]:
    nodes = run["nodes"]
    yield f"  {call['path']}: {call['kind']}, {call['status']}, {call['source']}"
    for number in [*call["lead"], *state_of(run, call["state"])]:
        message = run["messages"][number]
        by = nodes[message["by"]]["path"] if message["by"] >= 0 else "given"
        yield f"    saw {message['role']} of {by}: {brief(texts[message['text']])}"
    if call["prompt"] >= 0:
        yield f"    prompt {brief(texts[run['messages'][call['prompt']]['text']])}"
    for read in call["reads"]:
        text = "" if read["text"] is None else f" = {brief(texts[read['text']])}"
        yield f"    reads {read['key']} from {read['source']} {read['made_by']}{text}"
    if call["answer"] is not None:
        yield f"    answer {brief(texts[call['answer']])}"
    for error in filter(None, [*call["earlier_errors"], call["error"]]):
        yield f"    error {error['type']}: {brief(error['message'])}"
    if fate := call["fate"]:
        at = nodes[fate["at"]]["path"] if fate["at"] >= 0 else ""
        yield f"    {fate['end']} {at} {fate['by']}".rstrip()
        for one in fate["captured"]:
            yield f"    captured {one['key']}, read by {', '.join(one['read_by']) or 'none'}"
    yield from _inside(texts, call)


def _inside(texts: list[str], call: Mapping[str, Any]) -> Iterator[str]:
    for one in call["rounds"]:
        for tool in one["calls"]:
            yield f"    tool {tool['name']} {brief(texts[tool['args']])}"
    for one in call["inside"]:
        yield f"    inside {one['model']}: {brief(texts[one['answer']])}"
    if decision := call["decision"]:
        held = [brief(texts[number]) for number in decision["held"]]
        yield f"    decision {decision['decision'] or 'open'} on {held}"
    if purpose := call["in_recipe"]:
        made = purpose["made"]
        wrote = "" if made is None else f", wrote {', '.join(made['wrote'])}"
        yield f"    for {purpose['thing']}{wrote}, results {len(purpose['results'])}"


def _recipe(texts: list[str], recipe: Mapping[str, Any]) -> Iterator[str]:
    yield "stages"
    for stage in recipe["stages"]:
        yield f"  {stage['id']}: {stage['came']} in, {stage['left']} out, {stage['failed']} failed"
    yield "things"
    for thing in recipe["things"]:
        content = "unknown" if thing["content"] is None else brief(texts[thing["content"]])
        stale = " (stale)" if thing["stale"] else ""
        score = "" if thing["score"] is None else f", score {thing['score']}{stale}"
        parents = f" of {', '.join(thing['parents'])}" if thing["parents"] else ""
        yield f"  {thing['id']}{parents}: {thing['end']}{score}: {content}"


def state_of(run: Mapping[str, Any], state: int) -> list[int]:
    """Return the messages of a state, first one first."""
    numbers: list[int] = []
    while state >= 0:
        state, message = run["states"][state]
        numbers.append(message)
    return numbers[::-1]


def brief(text: str) -> str:
    """Return the first words of a text on one line, quoted."""
    line = " ".join(text.split())
    return repr(shown(line if len(line) <= _WORDS else f"{line[:_WORDS]}…"))
