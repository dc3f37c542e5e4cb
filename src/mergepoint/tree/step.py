"""Step: one call of a chat model."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from types import MappingProxyType
from typing import Any, ClassVar

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import BaseMessage
from pydantic import BaseModel

from mergepoint.core.errors import Fault, TreeError
from mergepoint.core.merge import MergeMode, mode_problem
from mergepoint.core.path import name_problem
from mergepoint.tree.context import PromptContext
from mergepoint.tree.policy import Policy, policy_of
from mergepoint.tree.template import Reads, Template, declared_reads, key_problem

Content = str | list[str | dict[str, Any]]
Prompt = str | Template | Callable[[PromptContext], Content]
Example = BaseMessage | tuple[str, str]


@dataclass(frozen=True)
class Step:
    """One call of a chat model: it sees the base and its prompt, and makes [user, assistant].

    `prompt` is text (taken literally), a Template, or a function of a PromptContext that gives
    text or content blocks. `system` and `examples` (few-shot messages, or pairs of user and
    assistant text) belong to this call only and enter no state. `merge` says what is kept of the
    pair, `capture_key` under which output the response is kept. `model` (a chat model or
    "provider:name") overrides the run's; `temperature` and `params` go to the call as they are.
    With `schema` the model is asked for structured output: the message is its canonical JSON,
    the output plain JSON. `policy` says how often the call is tried and how long it may take.
    `meta` is the user's own and goes along in the call's metadata.

    Raises TreeError (a ValueError) that lists everything that is wrong with the step.
    """

    kind: ClassVar[str] = "step"

    prompt: Prompt
    _: KW_ONLY
    name: str | None = None
    merge: MergeMode = "all_messages"
    temperature: float | None = None
    params: Mapping[str, Any] = field(default_factory=dict)
    model: str | BaseChatModel | None = None
    system: str | Template | None = None
    examples: Sequence[Example] = ()
    schema: type[BaseModel] | None = None
    capture_key: str | None = None
    policy: Policy = field(default_factory=Policy)
    meta: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "examples", _examples(self.examples))
        policy, problems = policy_of(self.policy)
        object.__setattr__(self, "policy", policy)
        if faults := [*self._problems(), *problems]:
            label = self.name if isinstance(self.name, str) else ""
            raise TreeError(Fault(label, problem) for problem in faults)
        object.__setattr__(self, "params", MappingProxyType(dict(self.params)))
        object.__setattr__(self, "meta", MappingProxyType(dict(self.meta)))

    def _problems(self) -> list[str]:
        found = [
            _prompt_problem(self.prompt),
            None if self.name is None else name_problem(self.name),
            mode_problem(self.merge),
            None if self.capture_key is None else key_problem(self.capture_key),
            _text_problem(self.system, "system"),
            _params_problem(self.params),
            _temperature_problem(self.temperature),
            _model_problem(self.model),
            _schema_problem(self.schema),
            *_examples_problems(self.examples),
            None if isinstance(self.meta, Mapping) else f"meta is a mapping, not {self.meta!r}",
        ]
        return [problem for problem in found if problem]

    @property
    def reads(self) -> Reads | None:
        """Give the keys that prompt and system declare to read; None where the prompt does not say.

        A key is optional only where every text that reads it has a default. What the system
        template reads is given in any case by `system_reads`.
        """
        declared = declared_reads(self.prompt)
        if declared is None:
            return None
        system = self.system_reads
        strict = {*declared.required, *system.required}
        defaults = {**system.defaults, **declared.defaults}
        return Reads(
            tuple(dict.fromkeys((*declared.keys, *system.keys))),
            {key: value for key, value in defaults.items() if key not in strict},
        )

    @property
    def system_reads(self) -> Reads:
        """Give the keys that the system message reads."""
        return declared_reads(self.system) or Reads()


ChatStep = Step


def _prompt_problem(prompt: object) -> str | None:
    if isinstance(prompt, str):
        return None if prompt.strip() else "the prompt is blank"
    if isinstance(prompt, Template) or callable(prompt):
        return None
    return f"a prompt is text, a Template or a function, not {type(prompt).__name__}"


def _text_problem(text: object, field_name: str) -> str | None:
    if text is None or isinstance(text, Template):
        return None
    if isinstance(text, str) and text.strip():
        return None
    return f"{field_name} is text that is not blank, or a Template"


def _params_problem(params: object) -> str | None:
    if not isinstance(params, Mapping):
        return f"params is a mapping, not {type(params).__name__}"
    if "temperature" in params:
        return "params must not hold 'temperature': give it as Step(temperature=...)"
    return None


def _temperature_problem(temperature: object) -> str | None:
    if temperature is None:
        return None
    if isinstance(temperature, bool) or not isinstance(temperature, int | float):
        return f"temperature is a number, not {temperature!r}"
    if not math.isfinite(temperature):
        return f"temperature is a finite number, not {temperature!r}"
    return None


def _model_problem(model: object) -> str | None:
    if model is None or isinstance(model, BaseChatModel):
        return None
    if isinstance(model, str) and model.strip():
        return None
    return f"model is a chat model or 'provider:name', not {model!r}"


def _schema_problem(schema: object) -> str | None:
    if schema is None or (isinstance(schema, type) and issubclass(schema, BaseModel)):
        return None
    return f"schema is a pydantic model class, not {schema!r}"


def _examples(given: Any) -> Any:
    if isinstance(given, str) or not isinstance(given, Iterable):
        return given
    return tuple(tuple(item) if isinstance(item, list) else item for item in given)


def _examples_problems(examples: Any) -> list[str]:
    if not isinstance(examples, tuple):
        return [f"examples is a list of messages or pairs, not {examples!r}"]
    return [
        f"an example is a message or a pair (user text, assistant text), not {example!r}"
        for example in examples
        if not isinstance(example, BaseMessage) and not _is_pair(example)
    ]


def _is_pair(example: Any) -> bool:
    pair = isinstance(example, tuple) and len(example) == 2
    return pair and all(isinstance(part, str) and part.strip() for part in example)
