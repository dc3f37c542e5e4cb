"""Trees as YAML: the format, the round trip, and faults with file, line and path."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, HumanMessage
from pydantic import BaseModel

from mergepoint.core.errors import TreeError
from mergepoint.core.merge import MERGE_MODES
from mergepoint.core.paths import name_problem
from mergepoint.core.strict_yaml import MAX_DEPTH, YamlError, dump
from mergepoint.testing.scripted_model import ScriptedModel
from mergepoint.tree import leaves
from mergepoint.tree.leaves import Call, Step
from mergepoint.tree.nodes import TYPES, Block, Gate, Input, Loop, Node
from mergepoint.tree.prompts import Template, keys_in
from mergepoint.tree.tree_yaml import from_yaml, load_yaml, to_yaml
from mergepoint.tree.validate import can_respond, check

# How long an example takes says nothing about the law that it is an example of.
UNHURRIED = settings(
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)

TEXT = """\
name: essay
inputs:
  - topic
  - {name: tone, default: dry}
merge: last_response
capture_key: result
meta:
  owner: me
nodes:
  - name: stage one
    parallel: true
    nodes:
      - prompt: {template: "About {{ topic }}, {{ mood }}.", defaults: {mood: calm}}
        capture_key: first
        merge: none
      - name: second
        prompt: |
          Literal {{ a text }}.
        system:
          template: Be {{ tone }}.
        examples:
          - [q, a]
          - - "1"
            - "2"
        model: openai:gpt-x
        temperature: 0.5
        params: {max_tokens: 100, stop: [a, no]}
        meta: {deep: {er: null}}
  - prompt: End.
    system: Short.
"""

WRITTEN = """\
name: essay
merge: last_response
capture_key: result
inputs:
  - topic
  - name: tone
    default: dry
meta:
  owner: me
nodes:
  - name: stage one
    parallel: true
    nodes:
      - prompt:
          template: About {{ topic }}, {{ mood }}.
          defaults:
            mood: calm
        merge: none
        capture_key: first
      - name: second
        prompt: |
          Literal {{ a text }}.
        system:
          template: Be {{ tone }}.
        examples:
          - - q
            - a
          - - "1"
            - "2"
        model: openai:gpt-x
        temperature: 0.5
        params:
          max_tokens: 100
          stop:
            - a
            - "no"
        meta:
          deep:
            er: null
  - prompt: End.
    system: Short.
"""

TREE = Block(
    [
        Block(
            [
                Step(
                    Template("About {{ topic }}, {{ mood }}.", defaults={"mood": "calm"}),
                    capture_key="first",
                    merge="none",
                ),
                Step(
                    "Literal {{ a text }}.\n",
                    name="second",
                    system=Template("Be {{ tone }}."),
                    examples=[("q", "a"), ("1", "2")],
                    model="openai:gpt-x",
                    temperature=0.5,
                    params={"max_tokens": 100, "stop": ["a", "no"]},
                    meta={"deep": {"er": None}},
                ),
            ],
            name="stage one",
            parallel=True,
        ),
        Step("End.", system="Short."),
    ],
    name="essay",
    merge="last_response",
    capture_key="result",
    inputs=["topic", ("tone", "dry")],
    meta={"owner": "me"},
)


def faults(text: str) -> list[str]:
    """Return the faults of a text, each as path and problem."""
    with pytest.raises(TreeError) as caught:
        from_yaml(text, source="f.yaml")
    assert caught.value.pipeline_path == caught.value.faults[0].path
    return [f"{fault.path} | {fault.problem}" for fault in caught.value.faults]


def test_every_field_is_read() -> None:
    """A text with every field gives the tree that Python would build."""
    assert from_yaml(TEXT) == TREE


def test_every_field_is_written() -> None:
    """What is written has names first, nodes last, and nothing that is a default."""
    assert to_yaml(TREE) == WRITTEN


def test_a_lone_step_is_a_tree() -> None:
    """A text may hold a step alone."""
    assert from_yaml("prompt: x") == Step("x")
    assert to_yaml(Step("x")) == "prompt: x\n"


def test_a_blank_prompt_may_be_allowed() -> None:
    """A blank prompt that Python accepts is read and written."""
    step = Step(" ", allow_empty_prompt=True)
    assert from_yaml("prompt: ' '\nallow_empty_prompt: true") == step
    assert from_yaml(to_yaml(step)) == step


def test_an_empty_block_keeps_its_nodes() -> None:
    """A block is told by its nodes, so they are written even where there are none."""
    assert to_yaml(Block([])) == "nodes: []\n"
    assert from_yaml("nodes: []") == Block([])


PLAN = """\
name: work
nodes:
  - name: planning
    until: review
    max_iterations: 3
    on_exhausted: keep
    merge: last_response
    capture_key: plan
    nodes:
      - name: approval
        question: Is this the plan?
        capture_key: review
        meta:
          team: a
        node:
          name: draft
          prompt: Plan it.
          merge: last_response
  - prompt: Go.
"""


def test_loops_and_gates_are_read_and_written() -> None:
    """A mapping with until is a loop, one with node a gate; both come back with every field."""
    gate = Gate(
        Step("Plan it.", name="draft", merge="last_response"),
        name="approval",
        question="Is this the plan?",
        capture_key="review",
        meta={"team": "a"},
    )
    loop = Loop(
        [gate],
        name="planning",
        until="review",
        max_iterations=3,
        on_exhausted="keep",
        merge="last_response",
        capture_key="plan",
    )
    assert from_yaml(PLAN) == Block([loop, Step("Go.")], name="work")
    assert to_yaml(from_yaml(PLAN)) == PLAN


def test_a_loop_or_a_gate_may_be_the_whole_tree() -> None:
    """A root without a name is called by its kind, as everywhere."""
    assert from_yaml("node: {prompt: x}") == Gate(Step("x"))
    loop = "until: ok\nnodes: [{node: {prompt: x}, capture_key: ok}]"
    assert from_yaml(loop) == Loop([Gate(Step("x"), capture_key="ok")], until="ok")
    assert faults("node: {prompt: 1}") == [
        "gate_01/step_01 | f.yaml:1: prompt is text, not 1; quote it"
    ]


LOOP_KEYS = (
    "name, until, max_iterations, on_exhausted, may_skip, merge, capture_key, budget, meta, nodes"
)
A_GATE = "nodes: [{node: {prompt: x}, capture_key: ok}]"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "max_iterations: 2\nnodes: [{prompt: x}]",
            (
                "loop_01 | f.yaml:1: a loop needs until: the key of an output that says when it is "
                "good"
            ),
        ),
        ("until: ok", "loop_01 | f.yaml:1: a loop needs nodes"),
        ("until: 3\n" + A_GATE, "loop_01 | f.yaml:1: until is the key of an output, not 3"),
        (
            "until: ok\nmax_iterations: 0\n" + A_GATE,
            "loop_01 | f.yaml:2: max_iterations is an integer of at least 1, not 0",
        ),
        (
            "until: ok\non_exhausted: stop\n" + A_GATE,
            "loop_01 | f.yaml:2: on_exhausted='stop'; allowed are 'raise', 'keep'",
        ),
        (
            "until: ok\nparallel: true\n" + A_GATE,
            f"loop_01 | f.yaml:2: no key 'parallel' here; the keys are: {LOOP_KEYS}",
        ),
        (
            "until: yes_\n" + A_GATE,
            (
                "loop_01 | f.yaml:1: until='yes_', which nothing in the loop captures; its "
                "captures are: ok"
            ),
        ),
        (
            (
                "until: ok\nnodes:\n  - {node: {prompt: x}, capture_key: ok}\n"
                "  - prompt: {template: '{{ who }}'}"
            ),
            (
                "loop_01/iteration_01/step_02 | f.yaml:4: reads 'who', which no input and no "
                "capture_key provides; known are: ok"
            ),
        ),
        ("node: [{prompt: x}]", "gate_01/step_01 | f.yaml:1: a node is a mapping"),
        (
            "node: {prompt: x}\nquestion: 3",
            "gate_01 | f.yaml:2: question is text, not 3; quote it",
        ),
        (
            "node: {prompt: x}\ndecide: os:abort",
            (
                "gate_01 | f.yaml:2: no key 'decide' here; the keys are: name, question, "
                "on_reject, merge, capture_key, meta, node"
            ),
        ),
        (
            "nodes:\n  - call: os:abort",
            (
                "pipeline/call_01 | f.yaml:2: call: reading the file would import the function; "
                "keep a Call in Python"
            ),
        ),
    ],
)
def test_faults_of_loops_gates_and_calls(text: str, expected: str) -> None:
    """What is wrong in a loop or gate has its line; a text can name no function."""
    (found,) = faults(text)
    assert found.startswith(expected)


def test_null_stands_for_a_default_that_is_none() -> None:
    """Where leaving out means None, null may be written."""
    text = (
        "{prompt: x, name: null, model: null, system: null, temperature: null, capture_key: null}"
    )
    assert from_yaml(text) == Step("x")


def test_a_default_of_an_input_may_be_any_plain_value() -> None:
    """A default keeps its type; null is one, and no default is none."""
    text = "nodes: []\ninputs: [{name: a, default: null}, {name: b, default: [1, 2.5]}, {name: c}]"
    assert from_yaml(text) == Block(
        [], inputs=[Input("a", default=None), Input("b", default=[1, 2.5]), Input("c")]
    )


def test_a_file_is_loaded(tmp_path: Path) -> None:
    """A tree is read from a file; its faults name the file."""
    path = tmp_path / "tree.yaml"
    path.write_text(TEXT, encoding="utf-8")
    assert load_yaml(path) == TREE
    path.write_text("nodes:\n  - promt: x\n", encoding="utf-8")
    with pytest.raises(TreeError) as caught:
        load_yaml(path)
    assert caught.value.faults[0].problem.startswith(f"{path}:2: no key 'promt' here")


def test_a_missing_file_is_an_os_error(tmp_path: Path) -> None:
    """What the file system says is passed on."""
    with pytest.raises(FileNotFoundError):
        load_yaml(tmp_path / "none.yaml")


def test_a_text_that_is_no_strict_yaml() -> None:
    """The loader's error is a TreeError here, with file and line, and its cause at hand."""
    with pytest.raises(TreeError, match=r"^f\.yaml:2: key 'prompt' is on line 1 already") as caught:
        from_yaml("prompt: x\nprompt: y\n", source="f.yaml")
    assert isinstance(caught.value.__cause__, YamlError)


def test_a_text_without_name_is_called_text() -> None:
    """Where no source is given the faults still have their line."""
    with pytest.raises(TreeError, match="<text>:1: "):
        from_yaml("prompt: 3")


STEP_KEYS = (
    "name, allow_empty_prompt, prompt, system, examples, model, method, tools, max_tool_rounds, "
    "temperature, params, policy, allow_empty_response, merge, capture_key, meta"
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "x",
            "step_01 | f.yaml:1: a node is a mapping with prompt, nodes or node, not the text 'x'",
        ),
        ("3", "step_01 | f.yaml:1: a node is a mapping with prompt, nodes or node, not 3"),
        ("[]", "step_01 | f.yaml:1: a node is a mapping with prompt, nodes or node, not a list"),
        (
            "name: x",
            "x | f.yaml:1: a step needs a prompt, a block nodes, a gate a node",
        ),
        (
            "prompt: x\ntemprature: 1",
            (
                "step_01 | f.yaml:2: no key 'temprature' here (did you mean 'temperature'?); "
                f"the keys are: {STEP_KEYS}"
            ),
        ),
        ("prompt: 3", "step_01 | f.yaml:1: prompt is text, not 3; quote it"),
        ("prompt: 1.10", "step_01 | f.yaml:1: prompt is text, not 1.1; quote it"),
        ("prompt: true", "step_01 | f.yaml:1: prompt is text, not true; quote it"),
        ("prompt: null", "step_01 | f.yaml:1: prompt is text, not null; quote it"),
        ("prompt: [x]", "step_01 | f.yaml:1: prompt is text, not a list"),
        (
            "prompt: ' '",
            "step_01 | f.yaml:1: the prompt is blank; to send it, set allow_empty_prompt=True",
        ),
        ("prompt: {template: ''}", "step_01 | f.yaml:1: a Template needs text that is not blank"),
        ("prompt: {template: 1}", "step_01 | f.yaml:1: prompt.template is text, not 1; quote it"),
        ("prompt: {}", "step_01 | f.yaml:1: prompt lacks the key 'template'"),
        (
            "prompt:\n  template: x\n  default: {}",
            (
                "step_01 | f.yaml:3: no key 'default' here (did you mean 'defaults'?); "
                "the keys are: template, defaults"
            ),
        ),
        (
            "prompt:\n  template: x\n  defaults: y",
            "step_01 | f.yaml:3: prompt.defaults is a mapping, not the text 'y'",
        ),
        (
            "prompt:\n  template: '{{ a }}'\n  defaults:\n    a: 1",
            "step_01 | f.yaml:4: prompt.defaults.a is text, not 1; quote it",
        ),
        (
            "prompt:\n  template: x\n  defaults: {a: y}",
            "step_01 | f.yaml:3: default for 'a', which the template does not read",
        ),
        (
            "prompt: x\nsystem: ''",
            "step_01 | f.yaml:2: system is text that is not blank, or a Template",
        ),
        ("prompt: x\nsystem: 3", "step_01 | f.yaml:2: system is text, not 3; quote it"),
        ("prompt: x\nname: 3", "step_01 | f.yaml:2: name is text, not 3; quote it"),
        (
            "prompt: x\nname: a/b",
            "step_01 | f.yaml:2: name 'a/b' holds '/', which separates paths; use '_' or '-'",
        ),
        (
            "prompt: x\nmerge: all",
            (
                "step_01 | f.yaml:2: Invalid step merge mode: merge='all'; allowed are "
                "'all_messages', 'last_response', 'none'"
            ),
        ),
        (
            "prompt: x\nmerge: null",
            (
                "step_01 | f.yaml:2: Invalid step merge mode: merge=None; allowed are "
                "'all_messages', 'last_response', 'none'"
            ),
        ),
        ("prompt: x\ntemperature: hot", "step_01 | f.yaml:2: temperature is a number, not 'hot'"),
        ("prompt: x\nmodel: 4", "step_01 | f.yaml:2: model is text, not 4; quote it"),
        (
            "prompt: x\nmodel: ''",
            (
                "step_01 | f.yaml:2: model is a chat model, a Runnable of chat models, or "
                "'provider:name', not ''"
            ),
        ),
        ("prompt: x\nparams: [a]", "step_01 | f.yaml:2: params is a mapping, not a list"),
        (
            "prompt: x\nparams: {temperature: 1}",
            (
                "step_01 | f.yaml:2: params must not hold 'temperature': give it as "
                "Step(temperature=...)"
            ),
        ),
        ("prompt: x\nmeta: null", "step_01 | f.yaml:2: meta is a mapping, not null"),
        ("prompt: x\ncapture_key: 1", "step_01 | f.yaml:2: capture_key is text, not 1; quote it"),
        (
            "prompt: x\ncapture_key: a b",
            (
                "step_01 | f.yaml:2: key 'a b' must be non-blank, without spaces and braces, so a "
                "Template can read it"
            ),
        ),
        (
            "prompt: x\nexamples: q",
            (
                "step_01 | f.yaml:2: examples is a list of [user text, assistant text], not the "
                "text 'q'"
            ),
        ),
        (
            "prompt: x\nexamples:\n  - [q, a]\n  - [q]",
            "step_01 | f.yaml:4: examples.1 is [user text, assistant text], not a list",
        ),
        (
            "prompt: x\nexamples:\n  - q",
            "step_01 | f.yaml:3: examples.0 is [user text, assistant text], not the text 'q'",
        ),
        (
            "prompt: x\nexamples:\n  - - q\n    - 1",
            "step_01 | f.yaml:4: examples.0.1 is text, not 1; quote it",
        ),
        (
            "prompt: x\nexamples:\n  - [q, '']",
            (
                "step_01 | f.yaml:2: an example is a message or a pair (user text, assistant "
                "text), not ('q', '')"
            ),
        ),
        ("nodes: x", "pipeline | f.yaml:1: nodes is a list of nodes, not the text 'x'"),
        (
            "nodes: []\nprompt: x",
            (
                "pipeline | f.yaml:2: no key 'prompt' here; the keys are: name, merge, "
                "capture_key, parallel, inputs, budget, meta, nodes"
            ),
        ),
        (
            "nodes: []\nparallel: yes",
            "pipeline | f.yaml:2: parallel is true, false or threads, not the text 'yes'",
        ),
        (
            "nodes: []\ninputs: a",
            "pipeline | f.yaml:2: inputs is a list of names, not the text 'a'",
        ),
        ("nodes: []\ninputs: [1]", "pipeline | f.yaml:2: inputs.0 is text, not 1; quote it"),
        (
            "nodes: []\ninputs:\n  - a\n  - a b",
            (
                "pipeline | f.yaml:4: input: key 'a b' must be non-blank, without spaces and "
                "braces, so a Template can read it"
            ),
        ),
        (
            "nodes: []\ninputs:\n  - name: a\n    defualt: x",
            (
                "pipeline | f.yaml:4: no key 'defualt' here (did you mean 'default'?); "
                "the keys are: name, default, type"
            ),
        ),
        (
            "nodes: []\ninputs:\n  - default: x",
            "pipeline | f.yaml:3: inputs.0 lacks the key 'name'",
        ),
        (
            "nodes:\n  - x",
            (
                "pipeline/step_01 | f.yaml:2: a node is a mapping with prompt, nodes or node, not "
                "the text 'x'"
            ),
        ),
        (
            "nodes:\n  - {prompt: x, name: a}\n  - {prompt: x, name: a}",
            "pipeline | f.yaml:1: children 1 and 2 are both named 'a'; give one another name",
        ),
    ],
)
def test_a_fault_has_file_line_path_and_way_out(text: str, expected: str) -> None:
    """Each thing that can be wrong is named where it stands, and alone."""
    assert faults(text) == [expected]


def test_a_near_word_for_nodes_is_suggested() -> None:
    """A block whose nodes are misspelt is not only told that a prompt is missing."""
    first, second = faults("name: a\nnodse: []")
    assert first.startswith("a | f.yaml:2: no key 'nodse' here (did you mean 'nodes'")
    assert second == "a | f.yaml:1: a step needs a prompt, a block nodes, a gate a node"


def test_all_faults_come_at_once_in_tree_order() -> None:
    """One error holds every fault of the text: of a block before those of its children."""
    text = """\
name: run
merge: all
mta: {}
nodes:
  - prompt: 1
    merge: some
  - nodes:
      - name: deep
      - 3
    parallel: 1
  - name: deep
    prompt: x
  - name: deep
    prompt: ''
"""
    assert [fault.split("; ")[0] for fault in faults(text)] == [
        "run | f.yaml:3: no key 'mta' here (did you mean 'meta'?)",
        "run | f.yaml:2: Invalid block merge mode: merge='all'",
        "run | f.yaml:4: children 3 and 4 are both named 'deep'",
        "run/step_01 | f.yaml:5: prompt is text, not 1",
        "run/step_01 | f.yaml:6: Invalid step merge mode: merge='some'",
        "run/block_02 | f.yaml:10: parallel is true, false or threads, not 1",
        "run/block_02/deep | f.yaml:8: a step needs a prompt, a block nodes, a gate a node",
        "run/block_02/step_02 | f.yaml:9: a node is a mapping with prompt, nodes or node, not 3",
        "run/deep | f.yaml:14: the prompt is blank",
    ]


def test_faults_of_the_whole_tree_have_lines() -> None:
    """What only `check` can see is named with the line and path of its node."""
    text = """\
inputs: [topic]
nodes:
  - prompt:
      template: "{{ topc }}"
  - name: stage
    inputs: [x]
    nodes:
      - name: quiet
        prompt: x
        merge: none
    merge: last_response
"""
    found = faults(text)
    assert [fault[:45] for fault in found] == [
        "pipeline/step_01 | f.yaml:3: reads 'topc', wh",
        "pipeline/stage | f.yaml:5: inputs belong on t",
        "pipeline/stage | f.yaml:5: last_response requ",
    ]


def test_the_error_text_shows_path_file_and_line() -> None:
    """Who reads only the text of the error knows where to look."""
    with pytest.raises(TreeError) as caught:
        from_yaml("name: run\nnodes:\n  - prompt: 1\n", source="a/f.yaml")
    assert str(caught.value) == "run/step_01: a/f.yaml:3: prompt is text, not 1; quote it"


class Verdict(BaseModel):
    """A structured answer."""

    winner: str


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        (
            {"prompt": lambda ctx: "x"},
            "prompt: a function has no text form; give text or a Template",
        ),
        (
            {"schema": Verdict},
            "schema: a class has no text form; keep a step with a schema in Python",
        ),
        (
            {"model": ScriptedModel(["x"])},
            "model: a ScriptedModel has no text form; give 'provider:name'",
        ),
        (
            {"examples": [("q", "a"), HumanMessage("q"), AIMessage("a")]},
            "examples.1: a HumanMessage has no text form; give pairs (user text, assistant text)",
        ),
        ({"params": {"stop": ("a",)}}, "params.stop: a tuple has no text form"),
        ({"meta": {1: "a"}}, "meta.1: a key has to be text"),
        ({"meta": {"a": object()}}, "meta.a: a object has no text form"),
        (
            {"prompt": "x\ud800"},
            "prompt: half of a surrogate pair, U+D800; give text or a Template",
        ),
        ({"capture_key": "\udfff"}, "capture_key: half of a surrogate pair, U+DFFF"),
        ({"meta": {"\ud800": 1}}, "meta.\\ud800: half of a surrogate pair, U+D800"),
    ],
)
def test_what_has_no_text_form_is_named_with_its_path(fields: dict[str, Any], problem: str) -> None:
    """A field that YAML cannot carry is refused with path, field and reason."""
    tree = Block([Block([Step(**{"prompt": "x", **fields})], name="stage")])
    with pytest.raises(TreeError) as caught:
        to_yaml(tree)
    first = caught.value.faults[0]
    assert first.path == caught.value.pipeline_path == "pipeline/stage/step_01"
    assert first.problem == problem
    str(caught.value).encode()


def test_functions_of_loops_gates_and_calls_stay_in_python() -> None:
    """Each is named with its path and the way out."""
    gate = Gate(Call(lambda: 1, name="call"), name="gate", decide=lambda question: True)
    tree = Loop([gate], until=lambda context: True, name="loop")
    with pytest.raises(TreeError) as caught:
        to_yaml(tree)
    at = "loop/iteration_01/gate"
    none = "a function has no text form"
    assert {str(fault) for fault in caught.value.faults} == {
        f"loop: until: {none}; give the key of an output, or keep the loop in Python",
        f"{at}: decide: {none}; keep a gate with a function of its own in Python",
        f"{at}/call: call: {none}; keep a Call in Python",
    }


def test_everything_without_text_form_is_named_at_once() -> None:
    """One error holds all of it, in tree order."""
    tree = Block(
        [
            Step(lambda ctx: "x", system=Template("x"), schema=Verdict),
            Block([Step("x", examples=[HumanMessage("q"), AIMessage("a")])], meta={"a": {1}}),
        ],
        inputs=[Input("a", default=(1, 2))],
    )
    with pytest.raises(TreeError) as caught:
        to_yaml(tree)
    assert [f"{fault.path} {fault.problem.split(':')[0]}" for fault in caught.value.faults] == [
        "pipeline inputs.0.default",
        "pipeline/step_01 prompt",
        "pipeline/step_01 schema",
        "pipeline/block_02 meta.a",
        "pipeline/block_02/step_01 examples.0",
        "pipeline/block_02/step_01 examples.1",
    ]


def test_a_tree_too_deep_to_be_read_is_not_written() -> None:
    """The limit of depth is named with the path where it is reached; any tree can be written."""
    meta: Any = {}
    tree: Node = Step(Template("{{ a }}", defaults={"a": "b"}), meta={"deep": [1]})
    for _ in range(leaves.MAX_DEPTH - 1):
        tree = Block([tree], name="b")
    assert from_yaml(to_yaml(tree)) == tree
    for _ in range(MAX_DEPTH):
        meta = {"a": meta}
    with pytest.raises(TreeError) as caught:
        to_yaml(Block([Step("x", meta=meta)], name="b"))
    assert caught.value.pipeline_path == "b/step_01"
    assert caught.value.faults[0].problem.endswith("nested more than 150 deep")


def test_a_tree_too_large_to_be_read_is_not_written() -> None:
    """The limit of size is told with the way out."""
    with pytest.raises(TreeError, match="run: its text is larger than 1,000,000 bytes; split it"):
        to_yaml(Step("x" * 1_000_000, name="run"))


def test_every_field_of_a_node_has_a_place() -> None:
    """A field that is added to Step or Block is added to the format, or named as left out."""
    (step_keys,) = faults("prompt: x\n'?': 1")
    (block_keys,) = faults("nodes: []\n'?': 1")
    (gate_keys,) = faults("node: {prompt: x}\n'?': 1")
    (loop_keys,) = faults(f"until: ok\n'?': 1\n{A_GATE}")
    texts = {Step: step_keys, Block: block_keys, Gate: gate_keys, Loop: loop_keys}
    for kind, text in texts.items():
        keys = set(text.partition("the keys are: ")[2].split(", "))
        fields = {field.name for field in dataclasses.fields(kind)}
        assert fields - keys <= {"schema", "decide", "budget", "tools", "max_tool_rounds"}


# The round trip

ODD = st.text(st.characters(exclude_categories=["Cs"]), max_size=15) | st.text(
    " \n\t\r\x00\x85\xa0\u2028\ufeff\ufffe😀'\"\\:#-?,[]{}&*!|>%@`=~<0e.y", max_size=20
)
SAMPLES = st.sampled_from(
    ["no", "1.10", "null", "~", "- x", "<<", " x", "\tx\ny", "x\n\n", "{{ a b }}"]
)
LONG = st.text("ab :\n", min_size=75, max_size=160)
TEXTS = (ODD | SAMPLES | LONG).filter(str.strip).filter(lambda text: not keys_in(text))
KEYS = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="{}"), min_size=1
).filter(lambda text: not any(character.isspace() for character in text))
PLAIN: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | ODD,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(ODD, inner, max_size=3),
    max_leaves=5,
)
MAPS = st.dictionaries(ODD.filter(lambda key: key != "temperature"), PLAIN, max_size=2)


def names() -> st.SearchStrategy[str]:
    """Return names that are allowed."""
    return (ODD | SAMPLES).filter(lambda name: name_problem(name) is None)


@st.composite
def templates(draw: st.DrawFn, known: list[str]) -> Template:
    """Return templates that read known keys, and others with a default."""
    pieces = ODD.map(lambda text: text.replace("{", "").replace("}", ""))
    defaults = draw(st.dictionaries(KEYS, ODD, max_size=2))
    keys = [*defaults, *(draw(st.lists(st.sampled_from(known), max_size=2)) if known else [])]
    text = "".join(f"{draw(pieces)}{{{{ {key} }}}}" for key in keys)
    return Template(f"{text} {draw(pieces)}.", defaults=defaults)


@st.composite
def text_steps(draw: st.DrawFn, known: list[str], key: str | None, name: str | None) -> Step:
    """Return steps that have a text form."""
    texts = TEXTS | templates(known)
    return Step(
        draw(texts),
        name=name,
        merge=draw(st.sampled_from(MERGE_MODES)),
        temperature=draw(st.none() | st.integers(0, 2) | st.floats(0, 2)),
        params=draw(MAPS),
        model=draw(st.none() | TEXTS),
        system=draw(st.none() | texts),
        allow_empty_prompt=draw(st.booleans()),
        allow_empty_response=draw(st.booleans()),
        examples=draw(st.lists(st.tuples(TEXTS, TEXTS), max_size=2)),
        capture_key=key,
        meta=draw(MAPS),
    )


@st.composite
def text_trees(draw: st.DrawFn) -> Node:
    """Return trees that have a text form and no faults."""
    given_inputs = draw(
        st.lists(
            st.builds(Input, KEYS)
            | st.builds(lambda k, d: Input(k, default=d), KEYS, PLAIN)
            | st.builds(lambda k, kind: Input(k, type=kind), KEYS, st.sampled_from([*TYPES])),
            max_size=2,
            unique_by=lambda given: given.name,
        )
    )
    known = [given.name for given in given_inputs]
    fresh = (key for key in map("key_{}".format, itertools.count()) if key not in known)
    if draw(st.integers(0, 5)) == 0:
        return draw(text_steps([], draw(st.none() | KEYS), draw(st.none() | names())))
    return _block(draw, known, fresh, given_inputs, draw(st.none() | names()), 0)


def _block(
    draw: st.DrawFn,
    known: list[str],
    fresh: Iterator[str],
    given_inputs: list[Input],
    name: str | None,
    depth: int,
) -> Block:
    nodes: list[Node] = []
    count = draw(st.integers(0, 3))
    given_names = draw(st.lists(names(), min_size=count, max_size=count, unique=True))
    for child in given_names:
        child_name = draw(st.sampled_from([None, child]))
        if depth < 2 and draw(st.booleans()):
            inner = _block(draw, known, fresh, [], child_name, depth + 1)
            nodes.append(_around(draw, inner, fresh, child_name))
        else:
            key = next(fresh) if draw(st.booleans()) else None
            nodes.append(draw(text_steps(known, key, child_name)))
    answers = any(can_respond(node) for node in nodes)
    return Block(
        nodes,
        name=name,
        merge=draw(st.sampled_from(MERGE_MODES if answers else ("all_messages", "none"))),
        capture_key=next(fresh) if answers and draw(st.booleans()) else None,
        parallel=draw(st.booleans()),
        inputs=given_inputs,
        meta=draw(MAPS),
    )


def _around(
    draw: st.DrawFn, block: Block, fresh: Iterator[str], name: str | None
) -> Block | Gate | Loop:
    """Return the block, or a gate around it, or a loop until that gate approves."""
    kind = draw(st.sampled_from((Block, Gate, Loop)))
    if kind is Block:
        return block
    key = next(fresh)
    gate = Gate(block, name=name, question=draw(ODD), capture_key=key, meta=draw(MAPS))
    if kind is Gate:
        return gate
    return Loop(
        [gate],
        until=key,
        name=name,
        merge=draw(st.sampled_from(("all_messages", "none"))),
        max_iterations=draw(st.integers(1, 9)),
        on_exhausted=draw(st.sampled_from(("raise", "keep"))),
        may_skip=draw(st.booleans()),
        meta=draw(MAPS),
    )


@UNHURRIED
@given(text_trees())
def test_a_text_tree_comes_back_equal(tree: Node) -> None:
    """`from_yaml(to_yaml(tree))` is the tree, down to the types of its values."""
    assert check(tree) == []
    again = from_yaml(to_yaml(tree))
    assert again == tree
    assert repr(again) == repr(tree)
    assert to_yaml(again) == to_yaml(tree)


WORDS = st.sampled_from(
    f"{STEP_KEYS}, node, until, max_iterations, call, parallel, inputs, template, defaults, "
    "default, schema, x".split(", ")
)
WILD: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | WORDS | st.sampled_from(["", "{{ x }}", "none"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=5),
    max_leaves=20,
)


def outcome(text: str) -> Node | TreeError:
    """Return the tree of a text, or its error."""
    try:
        return from_yaml(text, source="f.yaml")
    except TreeError as error:
        return error


@UNHURRIED
@given(WILD)
def test_any_data_gives_a_tree_or_faults_with_lines(value: Any) -> None:
    """Whatever stands under the keys of the format, nothing but a TreeError is raised."""
    done = outcome(dump(value))
    if isinstance(done, TreeError):
        assert all(fault.problem.startswith("f.yaml:") for fault in done.faults)
        assert all(fault.path for fault in done.faults)
    else:
        assert from_yaml(to_yaml(done)) == done
