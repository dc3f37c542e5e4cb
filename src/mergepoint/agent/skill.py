"""Skill: something that an agent knows how to do, as a folder with a SKILL.md."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from mergepoint.agent.contract import Contract
from mergepoint.core.errors import Fault, SkillError

SKILL_FILE = "SKILL.md"
TOOLS_FILE = "tools.py"


@dataclass(frozen=True, slots=True, kw_only=True)
class Skill:
    """What a SKILL.md says, and what comes along with it.

    `name` and `description` are for choosing; `when`, `inputs` and `flow` are the texts of the
    sections "When to use", "Inputs" and "Logic Flow"; `example` is a program that does it.
    `tools` are the functions that its code may call, `files` the data that it finds in its work
    folder, by name.
    """

    name: str
    description: str
    when: str
    inputs: str
    flow: str
    folder: Path
    example: str = ""
    tools: tuple[Contract, ...] = ()
    files: Mapping[str, Path] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "files", MappingProxyType(dict(self.files)))

    @property
    def contracts(self) -> str:
        """Give the tools as Python without bodies, as a prompt shows them."""
        return "\n\n".join(tool.text for tool in self.tools)

    def functions(self) -> dict[str, Callable[..., Any]]:
        """Give the tools as functions. Its `tools.py` is run, here and not in a sandbox.

        Raises SkillError where it cannot be run.
        """
        if not self.tools:
            return {}
        file = self.folder / TOOLS_FILE
        spec = importlib.util.spec_from_file_location(f"mergepoint_skill_{self.name}", file)
        if spec is None or spec.loader is None:
            raise SkillError([Fault(str(file), "this file cannot be imported")])
        module = importlib.util.module_from_spec(spec)
        try:
            spec.loader.exec_module(module)
        except Exception as error:
            problem = f"this cannot be run: {type(error).__name__}: {error}"
            raise SkillError([Fault(str(file), problem)]) from error
        return {tool.name: getattr(module, tool.name) for tool in self.tools}
