"""SkillLibrary: the skills that an agent can choose from."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from mergepoint.agent.read_skill import skill_in
from mergepoint.agent.skill import SKILL_FILE, Skill
from mergepoint.core.errors import Fault, SkillError
from mergepoint.core.path import nearest

EXAMPLES = Path(__file__).parent / "skills"
"""The folder of the skills that come along, over sample data that comes along too."""


class SkillLibrary(Mapping[str, Skill]):
    """Skills by name, in order. Two of one name are refused with SkillError."""

    def __init__(self, skills: Iterable[Skill] = ()) -> None:
        self._skills: dict[str, Skill] = {}
        faults = []
        for skill in skills:
            known = self._skills.setdefault(skill.name, skill)
            if known is not skill:
                problem = f"skill {skill.name!r} is in {known.folder} too; rename one"
                faults.append(Fault(str(skill.folder / SKILL_FILE), problem))
        if faults:
            raise SkillError(faults)

    @classmethod
    def at(cls, *folders: Path | str) -> SkillLibrary:
        """Read every skill in some folders, each a folder with a SKILL.md, in order of their names.

        Raises SkillError that lists everything that is wrong with all of them.
        """
        skills: list[Skill] = []
        faults: list[Fault] = []
        for folder in map(Path, folders):
            found = _folders(folder)
            if not found:
                problem = f"there is no skill here; a skill is a folder with a {SKILL_FILE}"
                faults.append(Fault(str(folder), problem))
            for one in found:
                skill, wrong = skill_in(one)
                faults += wrong
                skills += [] if skill is None else [skill]
        if faults:
            raise SkillError(faults)
        return cls(skills)

    @property
    def files(self) -> dict[str, Path]:
        """Give the files of all skills, by name."""
        return {name: path for skill in self.values() for name, path in skill.files.items()}

    def __getitem__(self, name: str) -> Skill:
        if name not in self._skills:
            there = ", ".join(self._skills) or "none"
            raise KeyError(f"no skill {name!r}{nearest(name, self._skills)}; there are: {there}")
        return self._skills[name]

    def __contains__(self, name: object) -> bool:
        return name in self._skills

    def __iter__(self) -> Iterator[str]:
        return iter(self._skills)

    def __len__(self) -> int:
        return len(self._skills)

    def __repr__(self) -> str:
        return f"SkillLibrary({', '.join(self._skills)})"


def _folders(folder: Path) -> list[Path]:
    if (folder / SKILL_FILE).is_file():
        return [folder]
    if not folder.is_dir():
        return []
    hidden = ("_", ".")
    return sorted(
        one for one in folder.iterdir() if one.is_dir() and not one.name.startswith(hidden)
    )
