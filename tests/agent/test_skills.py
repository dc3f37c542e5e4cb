"""Skills: what a folder must hold, what is wrong with it, and the skills that come along."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path

import pytest

from mergepoint.agent.skills import EXAMPLES, SkillLibrary, bundled_skills, read_skill
from mergepoint.core.errors import SkillError

GOOD = """\
---
name: greeting
description: Says hello in a language.
files: [words.csv]
---

## When to use

The user wants to be greeted.

## Inputs

- A language.

## Logic Flow

1. Look the word up with `word`.

## Example

```python
## no heading in here
print(word("en"))
```
"""
TOOLS = '''\
"""Tools."""

from typing import Any


def word(language: str, *, loud: bool = False, most: int | None = None) -> list[dict[str, Any]]:
    """Give a word.

    In a language.
    """
    return [{"word": "hello", "loud": loud, "most": most}]


def _own() -> object: ...
'''


def written(folder: Path, text: str = GOOD, tools: str | None = TOOLS) -> Path:
    """Write a skill, and give its folder."""
    skill = folder / "greeting"
    skill.mkdir(parents=True, exist_ok=True)
    (skill / "SKILL.md").write_text(text, encoding="utf-8")
    (skill / "words.csv").write_text("en,hello\n", encoding="utf-8")
    if tools is not None:
        (skill / "tools.py").write_text(tools, encoding="utf-8")
    return skill


def test_a_skill_is_read_from_its_folder(tmp_path: Path) -> None:
    """Front matter, sections, example, files and contracts are what the folder says."""
    skill = read_skill(written(tmp_path))
    assert (skill.name, skill.description) == ("greeting", "Says hello in a language.")
    assert (skill.when, skill.inputs) == ("The user wants to be greeted.", "- A language.")
    assert skill.flow == "1. Look the word up with `word`."
    assert skill.example == '## no heading in here\nprint(word("en"))\n'
    assert dict(skill.files) == {"words.csv": tmp_path / "greeting" / "words.csv"}
    assert skill.functions()["word"]("en", loud=True) == [
        {"word": "hello", "loud": True, "most": None}
    ]


def test_a_contract_is_python_without_a_body(tmp_path: Path) -> None:
    """The text of the tools is what a prompt shows: typed, with docstrings, and it compiles."""
    skill = read_skill(written(tmp_path))
    assert skill.contracts == (
        "def word(language: str, *, loud: bool=False, most: int | None=None) -> "
        'list[dict[str, Any]]:\n    """Give a word.\n\n    In a language.\n    """'
    )
    compile(skill.contracts, "contract", "exec")


@pytest.mark.parametrize(
    ("text", "faults"),
    [
        ("", ["SKILL.md:1: begin with front matter"]),
        ("---\nname: greeting\n", ["SKILL.md:1: begin with front matter"]),
        (GOOD.replace("files: [words.csv]", "files: [x: 1"), ["SKILL.md:"]),
        (
            GOOD.replace("name: greeting", "nmae: greeting"),
            ["SKILL.md:2: unknown key 'nmae'", "the name is missing"],
        ),
        (
            GOOD.replace("name: greeting", "name: other"),
            ["SKILL.md:2: name is 'other', its folder"],
        ),
        (
            GOOD.replace("name: greeting", "name: 'A b'"),
            ["SKILL.md:2: name must start with a letter"],
        ),
        (
            GOOD.replace("description: Says hello in a language.", "description: [a]"),
            ["description must be one line"],
        ),
        (
            GOOD.replace("words.csv", "../words.csv"),
            ["SKILL.md:4: file '../words.csv' isn't a name"],
        ),
        (GOOD.replace("words.csv", "/etc/passwd"), ["SKILL.md:4: file '/etc/passwd' isn't a name"]),
        (GOOD.replace("words.csv", "gone.csv"), ["SKILL.md:4: file 'gone.csv' doesn't exist"]),
        (GOOD.replace("[words.csv]", "words.csv"), ["SKILL.md:4: files must be a list"]),
        (
            GOOD.replace("## Inputs", "## Input"),
            ["unknown section 'Input' (did you mean", "## Inputs`"],
        ),
        (GOOD.replace("- A language.\n", ""), ["SKILL.md:11: the section 'Inputs' is blank"]),
        (
            GOOD.replace("## Inputs", "## Logic Flow"),
            ["section 'Logic Flow' occurs twice", "## Inputs"],
        ),
        (
            GOOD.replace('print(word("en"))', "print("),
            ["SKILL.md:19: the example does not compile"],
        ),
        (
            GOOD.replace("```python\n## no heading in here", "").replace("```", ""),
            ["the example must be a block of Python"],
        ),
    ],
)
def test_faults_are_told_with_file_and_line(tmp_path: Path, text: str, faults: list[str]) -> None:
    """Everything that is wrong with a SKILL.md is told at once, each with its place."""
    with pytest.raises(SkillError) as caught:
        read_skill(written(tmp_path, text))
    told = str(caught.value)
    for fault in faults:
        assert fault in told
    if faults[0] != "SKILL.md:":
        assert len(caught.value.faults) >= len(faults)


@pytest.mark.parametrize(
    ("tools", "fault"),
    [
        ("def word(x) -> str:\n    'Give.'\n", "tools.py:1: tool word: x has no type"),
        ("def word(x: str):\n    'Give.'\n", "tools.py:1: tool word has no return type"),
        ("def word(x: str) -> str: ...\n", "tools.py:1: tool word has no docstring"),
        ("def word(x: Path) -> str:\n    'Give.'\n", "x is 'Path', which isn't JSON data"),
        ("def word(x: dict[int, str]) -> str:\n    'Give.'\n", "which isn't JSON data"),
        ("def word() -> set[str]:\n    'Give.'\n", "its return type is 'set[str]'"),
        ("def word(*x: str) -> str:\n    'Give.'\n", "takes any arguments"),
        ("async def word() -> str:\n    'Give.'\n", "tools.py:1: tool word is async"),
        ("\n\ndef word(:\n", "tools.py:3: this is not Python"),
        ("x = 1\n", "tools.py:1: the file has no public function"),
        (
            "def a() -> str:\n    'G'\n\ndef a() -> str:\n    'G'\n",
            "tools.py:4: tool a is defined twice",
        ),
    ],
)
def test_tools_without_a_contract_are_refused(tmp_path: Path, tools: str, fault: str) -> None:
    """A tool has types of JSON data, says what it gives, and is a plain function."""
    with pytest.raises(SkillError) as caught:
        read_skill(written(tmp_path, tools=tools))
    assert fault in str(caught.value)


def test_tools_that_cannot_be_run_are_told(tmp_path: Path) -> None:
    """The file is run when a program needs it; what it raises is told with its place."""
    skill = read_skill(written(tmp_path, tools=f"{TOOLS}\n1 / 0\n"))
    with pytest.raises(SkillError, match=r"tools\.py: this cannot be run: ZeroDivisionError"):
        skill.functions()


def test_a_library_tells_the_faults_of_all_skills(tmp_path: Path) -> None:
    """Two bad skills are two faults of one error; a folder without any is one too."""
    written(tmp_path / "one", GOOD.replace("name: greeting", "name: x"))
    written(tmp_path / "two", "")
    with pytest.raises(SkillError) as caught:
        SkillLibrary.at(tmp_path / "one", tmp_path / "two", tmp_path / "three")
    files = [fault.path.rpartition("/")[0].rpartition("/")[0] for fault in caught.value.faults]
    assert {Path(file).name for file in files} >= {"one", "two"}
    assert "three: no skill found" in str(caught.value)


def test_two_skills_of_one_name_are_refused(tmp_path: Path) -> None:
    """A name is one skill's."""
    one, two = written(tmp_path / "one"), written(tmp_path / "two")
    with pytest.raises(SkillError, match=r"skill 'greeting' is in .*one/greeting too"):
        SkillLibrary.at(one, two)


def test_an_unknown_skill_is_told_with_near_names() -> None:
    """Asking for a skill that is not there says which are."""
    with pytest.raises(KeyError, match="did you mean 'sales_report'"):
        SkillLibrary.at(EXAMPLES)["sale_report"]


@pytest.mark.parametrize("name", list(SkillLibrary.at(EXAMPLES)))
def test_the_example_of_each_skill_runs_over_its_data(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The programs in the skills that come along do what they say, with their tools alone."""
    skill = SkillLibrary.at(EXAMPLES)[name]
    monkeypatch.chdir(EXAMPLES / "sales_report")
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(skill.example, name, "exec"), dict(skill.functions()))  # noqa: S102
    assert len(printed.getvalue().splitlines()) >= 2
    for file in skill.files.values():
        assert file.is_file()


def test_what_the_sales_report_says_is_what_the_file_says() -> None:
    """Sums of the tool are those of the rows, added up by hand."""
    sales = SkillLibrary.at(EXAMPLES)["sales_report"].functions()["sales"]
    rows = (EXAMPLES / "sales_report" / "sales.csv").read_text(encoding="utf-8").splitlines()[1:]
    cells = [row.split(",") for row in rows]
    expected = sum(int(units) * float(price) for _, region, _, units, price in cells)
    assert sum(one["units"] * one["price"] for one in sales()) == pytest.approx(expected)
    assert {one["region"] for one in sales(region="North")} == {"north"}
    assert {one["month"] for one in sales(month="2025-03")} == {"2025-03"}


def test_the_stock_cannot_be_changed() -> None:
    """The query tool opens its database for reading only."""
    query = SkillLibrary.at(EXAMPLES)["stock_report"].functions()["query"]
    assert query("select count(*) as n from stock") == [{"n": 12}]
    with pytest.raises(Exception, match="readonly"):
        query("delete from stock")


@pytest.mark.parametrize("name", ["SKILL.md", "tools.py", "words.csv"])
def test_a_link_out_of_the_folder_is_not_followed(tmp_path: Path, name: str) -> None:
    """A skill hands out no file of another folder; a link within its own is one of its files."""
    skill = written(tmp_path)
    elsewhere = tmp_path / "elsewhere"
    (skill / name).rename(elsewhere)
    (skill / name).symlink_to(elsewhere)
    with pytest.raises(SkillError, match=r"is a link to .*elsewhere, out of the skill's folder"):
        read_skill(skill)
    (skill / name).unlink()
    elsewhere.rename(skill / "other")
    (skill / name).symlink_to("other")
    assert read_skill(skill).name == "greeting"


def test_the_bundled_skills_are_read_once_per_process() -> None:
    """Two agents share the library of the package, which equals the one read from its folder."""
    assert bundled_skills() is bundled_skills()
    assert dict(bundled_skills()) == dict(SkillLibrary.at(EXAMPLES))
