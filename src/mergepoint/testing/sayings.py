"""Sayings: random prompts, templates and functions, of the keys that are there."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Any

from mergepoint.testing.choice import Choice
from mergepoint.testing.counted import BROKEN_RESULTS, SAFE_RESULTS, Counted
from mergepoint.testing.spoken import FORMS, Spoken
from mergepoint.testing.told import BROKEN_PARTS, SAFE_PARTS, Part, Told
from mergepoint.tree.block import Input
from mergepoint.tree.template import Template

Keys = frozenset[str]

KEYS = ("plan", "draft", "notes", "doc.title", "größe", "plan_2", "verdict", "a-b", "k9", "ü")
INPUTS = ("topic", "level", "doc.kind", "tags")
VALUES: tuple[Any, ...] = ("winter", 3, ["a", "b"], "{{ plan }}", {"deep": [1]}, 0)
WORDS = (
    "Go on.",
    "Say it again.",
    "Why? {{ not a place }} {{}}",
    "Fasse zusammen: {x}",
    "{{ k9 }}",
)


@dataclass
class Sayings:
    """Words for nodes; with `broken` some functions fail."""

    choice: Choice
    _: KW_ONLY
    broken: bool = False
    inputs: tuple[Input, ...] = ()

    def spoken(self) -> Spoken:
        """Give a Runnable."""
        return Spoken(self.choice.pick(FORMS), asks=self.choice.chance(30))

    def counted(self, there: Keys, *, plain: bool) -> Counted:
        """Give a function; with `plain` one that reads nothing by itself."""
        choice = self.choice
        gives = choice.pick(SAFE_RESULTS)
        if self.broken and choice.chance(15):
            gives = choice.pick(BROKEN_RESULTS)
        required, defaults = self._reads(there) if gives == "read" and not plain else ([], {})
        return Counted(
            gives,
            keys=tuple(required),
            defaults=defaults,
            declared=bool(defaults) or choice.chance(60),
            late=choice.chance(30),
        )

    def args(self, there: Keys) -> dict[str, Any]:
        """Give arguments: values, and templates of the keys that are there."""
        choice = self.choice
        args: dict[str, Any] = {}
        for name in ("what", "much", "more")[: choice.integer(1, 3)]:
            kind = choice.pick(("value", "template", "whole"))
            if kind == "value":
                args[name] = choice.pick((3, "{{ plan }}", ["a", "b"], {"deep": [1]}, None))
            else:
                args[name] = self.template(there)
            keys = args[name].keys if isinstance(args[name], Template) else ()
            if kind == "whole" and keys:
                defaults = {k: v for k, v in args[name].defaults.items() if k == keys[0]}
                args[name] = Template(f"{{{{ {keys[0]} }}}}", defaults=defaults)
        return args

    def prompt(self, there: Keys) -> str | Template | Told:
        """Give a prompt."""
        kind = self.choice.pick(("literal", "template", "told"))
        if kind == "literal":
            return self.choice.pick(WORDS)
        if kind == "template":
            return self.template(there)
        return self.told(there)

    def system(self, there: Keys) -> str | Template | None:
        """Give a system message, or none."""
        kind = self.choice.pick((None, None, None, "literal", "template"))
        if kind is None:
            return None
        return "You are terse." if kind == "literal" else self.template(there)

    def _reads(self, there: Keys) -> tuple[list[str], dict[str, str]]:
        """Give some keys that are surely there, and optional ones with their defaults."""
        surely = sorted(there | {given.name for given in self.inputs})
        required = [self.choice.pick(surely) for _ in range(self.choice.integer(0, 2)) if surely]
        optional: dict[str, str] = {}
        if self.choice.chance(30):
            key = self.choice.pick((*KEYS, *INPUTS))
            if key not in required:
                optional[key] = self.choice.pick(("by default", "", "{{ plan }}"))
        return required, optional

    def template(self, there: Keys) -> Template:
        """Give a template with up to three places."""
        required, defaults = self._reads(there)
        form = self.choice.pick(("{{ ? }}", "{{?}}", "{{{ ? }}}", "{{\n?\n}}"))
        places = [form.replace("?", key) for key in (*required, *defaults)]
        opening = self.choice.pick(("Read this:", "{{ not a place }}", "{% if %}"))
        text = " ".join(places) if places and self.choice.chance(20) else None
        return Template(text or " ".join((opening, *places)), defaults=defaults)

    def told(self, there: Keys) -> Told:
        """Give a prompt function."""
        required, defaults = self._reads(there)
        parts: list[Part] = [("text", self.choice.pick(WORDS))]
        parts += [("read", key) for key in (*required, *defaults)]
        silent = [kind for kind in SAFE_PARTS if kind not in ("text", "read")]
        parts += [(self.choice.pick(silent),) for _ in range(self.choice.integer(0, 3))]
        if self.broken and self.choice.chance(10):
            parts.append((self.choice.pick(BROKEN_PARTS),))
        # Beside an undeclared function nothing is claimed, so it may not have optional reads.
        declared = bool(defaults) or self.choice.chance(60)
        blocks = self.choice.chance(30)
        return Told(tuple(parts), defaults=defaults, declared=declared, blocks=blocks)
