"""Plans: recipes with their stages resolved, parameters filled in, and all problems found."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, cast

from pydantic import BaseModel

from mergepoint.core.errors import MergepointError, RecipeError
from mergepoint.core.paths import nearest
from mergepoint.core.strict_yaml import YamlDocument
from mergepoint.models.identity import ChatModel
from mergepoint.models.providers import NO_SETTINGS, ModelSettings
from mergepoint.streams.conditions import Condition, RecipeLimits, Where, asked_for, filled, is_open
from mergepoint.streams.grouping import Gather
from mergepoint.streams.params import Rails, check_params, knob_faults, params_of, turned
from mergepoint.streams.provenance import Words, vocabulary
from mergepoint.streams.recipe import MAX_STAGES, FormError, Recipe, Stage, as_policy
from mergepoint.streams.recipe_yaml import LIBRARY, Library
from mergepoint.streams.registry import REGISTRY, BlockType, Registry
from mergepoint.tree.policy import Budget, Policy, as_budget
from mergepoint.tree.yaml_keys import Location


class PlanFaults:
    """The problems found while planning a recipe, each reported once.

    They are sorted by the line of their stage in the outermost recipe's file. A problem in a file
    that several stages use is reported at the first of them.
    """

    def __init__(self) -> None:
        self._found: dict[tuple[str, str], tuple[tuple[int, ...], str]] = {}
        self._way: list[int] = []

    @property
    def lines(self) -> list[str]:
        """Return the problems, in order."""
        return [text for _, text in sorted(self._found.values(), key=lambda found: found[0])]

    def add(self, recipe: Recipe, at: Location, stage_id: str, problem: str) -> None:
        """Record a problem at a place in a recipe."""
        place = "" if recipe.document is None else recipe.document.where(at)
        text = f"{stage_id}: {problem}"
        self._note(
            (place or stage_id, problem), _line(recipe, at), f"{place}: {text}" if place else text
        )

    def take(self, error: FormError) -> None:
        """Record the problems of a recipe file that couldn't be read."""
        for fault in error.faults:
            self._note((fault.text, ""), fault.line, fault.text)

    @contextmanager
    def inside(self, recipe: Recipe, at: Location) -> Iterator[None]:
        """Attribute problems found in this context to a stage's nested recipe."""
        self._way.append(_line(recipe, at))
        try:
            yield
        finally:
            self._way.pop()

    def _note(self, key: tuple[str, str], line: int, text: str) -> None:
        self._found.setdefault(key, ((*self._way, line), text))


def _line(recipe: Recipe, at: Location) -> int:
    """Return the line of a place; for a recipe without a file, the number of the stage."""
    if recipe.document is not None:
        return recipe.document.line_of(at)
    return int(at[1]) + 1 if at[:1] == ("stages",) else 0


@dataclass(frozen=True)
class _Part:
    """A list of stages nested in a document."""

    document: YamlDocument
    place: Location

    def where(self, location: Location) -> str:
        """Return file and line of a place; its first element, `stages`, is this part itself."""
        return self.document.where((*self.place, *location[1:]))

    def line_of(self, location: Location) -> int:
        """Return the line of a place."""
        return self.document.line_of((*self.place, *location[1:]))


def part(document: YamlDocument | None, place: Location) -> YamlDocument | None:
    """Return the stages at a place in a document as if they were a recipe's own."""
    return None if document is None else cast("YamlDocument", _Part(document, place))


ROUND: Final = ("iteration", "stopped")
"""Props that a recurrent recipe adds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedStage:
    """A block at its place; `stage_id` is the same in every run."""

    stage_id: str
    kind: BlockType[Any]
    params: BaseModel
    where: Where | None = None
    batch: Gather | None
    width: int
    model: str | ChatModel | None
    budget: Budget | None
    policy: Policy = field(default_factory=Policy)
    settings: ModelSettings = NO_SETTINGS
    inside: tuple[PlannedRecipe, ...] = ()

    @property
    def barrier(self) -> bool:
        """Return whether it waits for all items before returning a result."""
        all_at_once = self.batch is not None and self.batch.takes_all
        return all_at_once or self.kind.barrier(self.params)

    @property
    def together(self) -> bool:
        """Return whether the result for one Thing may depend on other Things."""
        return self.barrier or self.batch is not None or self.kind.in_order

    @property
    def needs(self) -> tuple[str, ...]:
        """Return the props that its items must have."""
        return self.kind.needs_of(self.params)

    @property
    def rewrites(self) -> bool:
        """Return whether everything that leaves has new content, so that judgements are dropped."""
        # Things that bypass the stage keep their judgements; only the run can tell which.
        return self.where is None and self.kind.rewrites(self.params)

    @property
    def adds(self) -> tuple[str, ...]:
        """Return the props that results have in addition."""
        inside = (name for inner in self.inside for name in inner.adds)
        return tuple(dict.fromkeys((*self.kind.adds_of(self.params), *inside)))


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRecipe:
    """A recipe at its place, with its planned stages; `prefix` begins their ids.

    `until` and `rails` have the recipe's parameters filled in and apply at this place.
    """

    prefix: str
    recipe: Recipe
    stages: tuple[PlannedStage | PlannedRecipe, ...]
    budget: Budget | None
    where: Where | None = None
    until: Where | None = None
    rails: Rails = field(default_factory=Rails)

    @property
    def together(self) -> bool:
        """Return whether the result for one Thing may depend on other Things."""
        return not self.recipe.each and any(stage.together for stage in self.stages)

    @property
    def width(self) -> int:
        """Return the maximum number of Things in progress."""
        return self.recipe.concurrency

    @property
    def stage_id(self) -> str:
        """Return its place in the outermost recipe."""
        return self.prefix

    @property
    def needs(self) -> tuple[str, ...]:
        """Return the props that its items must have."""
        return self.recipe.needs

    @property
    def rewrites(self) -> bool:
        """Return whether everything that leaves has new content, so that judgements are dropped."""
        return self.where is None and any(stage.rewrites for stage in self.stages)

    @property
    def adds(self) -> tuple[str, ...]:
        """Return the props that its stages and rounds add and don't drop again."""
        words = vocabulary().plus(*self.words)
        added: dict[str, None] = {}
        for stage in self.stages:
            # Drop first, then add: what the stage writes itself is about its new content.
            if stage.rewrites:
                added = {name: None for name in added if name not in words.about_content}
            added.update(dict.fromkeys(stage.adds))
        own = ROUND if self.recipe.recurrent else ()
        return tuple(dict.fromkeys((*added, *own)))

    @property
    def words(self) -> tuple[Words, ...]:
        """Return the words that it and its nested recipes add to the vocabulary."""
        inside = [one.recipe for one in self.walk() if isinstance(one, PlannedRecipe)]
        return tuple([one.words for one in (self.recipe, *inside) if one.words])

    def walk(self) -> list[PlannedStage | PlannedRecipe]:
        """Return every nested stage and recipe in order, a recipe before its stages."""
        found: list[PlannedStage | PlannedRecipe] = []
        for stage in self.stages:
            found.append(stage)
            if isinstance(stage, PlannedRecipe):
                found += stage.walk()
            else:
                for inner in stage.inside:
                    found += (inner, *inner.walk())
        return found

    def blocks(self) -> list[PlannedStage]:
        """Return every block in it, in order."""
        return [stage for stage in self.walk() if isinstance(stage, PlannedStage)]


MAX_DEPTH = 20


@dataclass(frozen=True, slots=True)
class Handed:
    """Defaults that a recipe passes to stages without their own settings."""

    model: str | ChatModel | None = None
    policy: Policy = field(default_factory=Policy)
    settings: ModelSettings = NO_SETTINGS

    def to(self, stage: Stage) -> Handed:
        """Return the settings that apply at a stage and below."""
        model = self.model if stage.model is None else stage.model
        own = ModelSettings(
            temperature=stage.temperature, max_tokens=stage.max_tokens, method=stage.method
        )
        policy = as_policy(stage.policy) or self.policy
        return Handed(model, policy, own.over(self.settings))


@dataclass
class Planning:
    """One pass over a recipe and its nested recipes, collecting problems."""

    registry: Registry
    library: Library
    faults: PlanFaults = field(default_factory=PlanFaults)
    count: int = 0
    guessed: set[str] = field(default_factory=set)

    def whole(
        self, recipe: Recipe, knobs: Mapping[str, Any], prefix: str, handed: Handed
    ) -> PlannedRecipe:
        """Plan the outermost recipe. Raise RecipeError with all problems."""
        fitting = self._fitting(recipe, (), prefix, knobs, recipe)
        planned = self.recipe(recipe, fitting, prefix, (), None, handed)
        if self.count > MAX_STAGES:
            raise RecipeError(
                f"{recipe.name}: the recipe and its nested recipes have more than "
                f"{MAX_STAGES:,} stages; split the recipe, or lower its nesting"
            )
        if lines := self.faults.lines:
            raise RecipeError("\n".join(lines))
        return planned

    def recipe(
        self,
        recipe: Recipe,
        given: Mapping[str, Any],
        prefix: str,
        around: tuple[Recipe, ...],
        stage: Stage | None,
        handed: Handed,
    ) -> PlannedRecipe:
        """Plan a recipe; `around` contains the enclosing recipes, outermost first."""
        here = _here(recipe)
        knobs = turned(recipe.knobs, here) if here else recipe.knobs
        values = {**here, **knobs, **given}
        stages: list[PlannedStage | PlannedRecipe] = []
        have, dropped = set(recipe.needs), dict[str, str]()
        words = vocabulary().plus(*(one.words for one in (*around, recipe)))
        for number in range(1, len(recipe.stages) + 1):
            if self.count > MAX_STAGES:  # nested recipes multiply: don't resolve all of them
                break
            found = self._stage(recipe, number, values, prefix, (*around, recipe), handed)
            if found is None:
                continue
            self._needs(recipe, number, found, have, dropped)
            if isinstance(found, PlannedStage):
                found = self._with_inside(recipe, number, found, have, (*around, recipe))
            if found.rewrites:
                stale = have & words.about_content
                have -= stale
                dropped.update(dict.fromkeys(stale, found.stage_id))
            have.update(found.adds)
            stages.append(found)
        limits = self._limits(recipe, values, prefix)
        return PlannedRecipe(
            prefix=prefix,
            recipe=recipe,
            stages=tuple(stages),
            budget=None if stage is None else as_budget(stage.budget),
            where=None if stage is None else stage.where,
            until=limits.until,
            rails=limits.rails.inside if around else limits.rails,
        )

    def _fitting(
        self, recipe: Recipe, at: Location, stage_id: str, given: Mapping[str, Any], of: Recipe
    ) -> dict[str, Any]:
        """Return the valid parameters of a recipe; report the invalid ones."""
        faults = dict(knob_faults(given, of.knobs))
        for name, problem in faults.items():
            self.faults.add(recipe, (*at, name), stage_id, f"{name}: {problem}")
        return {name: value for name, value in given.items() if name not in faults}

    def _limits(self, recipe: Recipe, values: Mapping[str, Any], prefix: str) -> RecipeLimits:
        """Return a recipe's limits with knobs filled in, or the defaults if there are errors."""
        found = filled(RecipeLimits, {"until": recipe.until, "rails": recipe.rails}, values)
        if isinstance(found, RecipeLimits):
            return found
        for fault in found:
            self.faults.add(recipe, fault.location, prefix, str(fault))
        return RecipeLimits()

    def _stage(
        self,
        recipe: Recipe,
        number: int,
        values: Mapping[str, Any],
        prefix: str,
        around: tuple[Recipe, ...],
        handed: Handed,
    ) -> PlannedStage | PlannedRecipe | None:
        at = ("stages", number - 1)
        stage_id = f"{prefix}.stage_{number}.{recipe.stages[number - 1].label}"
        stage = self._turned(recipe, number, values, stage_id)
        kind = self._kind(recipe, (*at, "type"), stage_id, stage.type)
        if kind is None:
            return None
        params, handed = turned(stage.params, values), handed.to(stage)
        if isinstance(kind, Recipe):
            if problem := _holds_itself(kind, around):
                self.faults.add(recipe, (*at, "type"), stage_id, problem)
                return None
            given = self._fitting(recipe, (*at, "params"), stage_id, params, kind)
            with self.faults.inside(recipe, at):
                return self.recipe(kind, given, stage_id, around, stage, handed)
        self.count += 1
        checked = self._checked(recipe, (*at, "params"), stage_id, kind, params)
        if checked is None:
            return None
        return PlannedStage(
            stage_id=stage_id,
            kind=kind,
            params=checked,
            where=stage.where,
            batch=None if stage.batch is None else params_of(Gather, stage.batch, where=stage_id),
            width=stage.concurrency or recipe.concurrency,
            model=handed.model,
            budget=as_budget(stage.budget),
            policy=handed.policy,
            settings=handed.settings,
        )

    def _turned(
        self, recipe: Recipe, number: int, values: Mapping[str, Any], stage_id: str
    ) -> Stage:
        """Return a stage with its condition filled in, or without one if it is invalid."""
        stage, at = recipe.stages[number - 1], ("stages", number - 1)
        if stage.where is None or not is_open(stage.where):
            return stage
        held = filled(Condition, {"where": stage.where}, values)
        if isinstance(held, Condition):
            return replace(stage, where=held.where)
        for fault in held:
            self.faults.add(recipe, (*at, *fault.location), stage_id, str(fault))
        return replace(stage, where=None)

    def _checked(
        self, recipe: Recipe, at: Location, stage_id: str, kind: BlockType[Any], params: Any
    ) -> Any:
        """Return a stage's params without the invalid ones, or None if the rest is invalid too.

        The props that the stage adds are then known to the later checks. The props that it needs
        may differ.
        """
        checked = check_params(kind.params, params)
        if not isinstance(checked, tuple):
            return checked
        for fault in checked:
            self.faults.add(recipe, (*at, *fault.location), stage_id, str(fault))
        if not all(fault.unknown for fault in checked):
            self.guessed.add(stage_id)
        bad = {fault.location[:1] for fault in checked}
        rest = {name: value for name, value in params.items() if (name,) not in bad}
        # The rest is checked again, because a validator may depend on a removed field.
        mended = check_params(kind.params, rest)
        return None if isinstance(mended, tuple) else mended

    def _with_inside(
        self,
        recipe: Recipe,
        number: int,
        found: PlannedStage,
        have: Iterable[str],
        around: tuple[Recipe, ...],
    ) -> PlannedStage:
        """Plan the stages that a block runs itself; each has the props of those before it."""
        known = {*have, *found.kind.inside_has}
        inside: list[PlannedRecipe] = []
        for name, stages in self._ways(recipe, number, found).items():
            inner = Recipe(
                name,
                stages,
                needs=tuple(sorted(known)),
                concurrency=found.width,
                document=part(recipe.document, ("stages", number - 1, "params", name)),
            )
            prefix = f"{found.stage_id}.{name}"
            handed = Handed(found.model, found.policy, found.settings)
            planned = self.recipe(inner, {}, prefix, around, None, handed)
            known.update(planned.adds)
            inside.append(planned)
        return replace(found, inside=tuple(inside))

    def _ways(self, recipe: Recipe, number: int, found: PlannedStage) -> Mapping[str, Any]:
        try:
            return found.kind.inside(found.params)
        except MergepointError as error:
            at = ("stages", number - 1, "params")
            self.faults.add(recipe, at, found.stage_id, str(error))
            return {}

    def _kind(
        self, recipe: Recipe, at: Location, stage_id: str, wanted: str | BlockType[Any] | Recipe
    ) -> BlockType[Any] | Recipe | None:
        """Return the block or recipe that a stage's type names, or None if there are errors."""
        try:
            return self._found(wanted)
        except FormError as error:
            with self.faults.inside(recipe, at):
                self.faults.take(error)
            return error.draft
        except RecipeError as error:
            self.faults.add(recipe, at, stage_id, str(error))
            return None

    def _found(self, wanted: str | BlockType[Any] | Recipe) -> BlockType[Any] | Recipe:
        if not isinstance(wanted, str):
            return wanted
        blocks = self.registry.names()
        if wanted in blocks:
            return self.registry.find(wanted)
        if wanted in self.library:
            return self.library.find(wanted)
        known = [*blocks, *self.library.names()]
        raise RecipeError(
            f"no block or recipe is named {wanted!r}{nearest(wanted, known)}; to use a custom "
            "block, pass its file (--blocks FILE; in Python, import its module); for the "
            "built-in ones, see docs/reference/blocks.md and mergepoint list"
        )

    def _needs(
        self,
        recipe: Recipe,
        number: int,
        found: PlannedStage | PlannedRecipe,
        have: Iterable[str],
        dropped: Mapping[str, str],
    ) -> None:
        known, at = sorted(have), ("stages", number - 1)
        read = dict.fromkeys(asked_for(found.where), (*at, "where"))
        # Params that were replaced by defaults say nothing about what the stage needs.
        own = () if found.stage_id in self.guessed else found.needs
        for name, place in {**read, **dict.fromkeys(own, at)}.items():
            if name not in known and name in dropped:
                self.faults.add(
                    recipe,
                    place,
                    found.stage_id,
                    f"needs the prop {name!r}, which {dropped[name]} drops because it changes the "
                    "content; judge the new content first, or read the prop before that stage",
                )
            elif name not in known:
                there = f"; available: {', '.join(known)}" if known else ""
                self.faults.add(
                    recipe,
                    place,
                    found.stage_id,
                    f"needs the prop {name!r}, which no earlier stage adds"
                    f"{nearest(name, known)}{there}; if the items have it, add it to the "
                    "recipe's needs",
                )


def _here(recipe: Recipe) -> dict[str, str]:
    """Return the folder of a recipe's file as `here`, for paths relative to that file."""
    source = getattr(recipe.document, "source", "")
    return {"here": str(Path(source).parent)} if source and Path(source).is_file() else {}


def _holds_itself(kind: Recipe, around: tuple[Recipe, ...]) -> str | None:
    """Return a problem if a recipe contains itself or is nested too deeply, or None."""
    chain = [one.name for one in around]
    if any(one is kind or (one.name == kind.name and one == kind) for one in around):
        way = " -> ".join([*chain[chain.index(kind.name) :], kind.name])
        return f"the recipe contains itself: {way}"
    if len(around) < MAX_DEPTH:
        return None
    return (
        f"recipes are nested more than {MAX_DEPTH} levels deep; move its "
        "stages into the enclosing recipe"
    )


def plan(
    recipe: Recipe | str,
    knobs: Mapping[str, Any] | None = None,
    *,
    registry: Registry = REGISTRY,
    library: Library = LIBRARY,
    at: str | None = None,
    model: str | ChatModel | None = None,
) -> PlannedRecipe:
    """Return a recipe with its parameters filled in and every stage resolved and checked.

    A stage's type is a block of the registry, or a recipe of the library or of the recipe file's
    folder.

    Args:
        recipe: A recipe, or its name in the library.
        knobs: Values for the recipe's parameters.
        registry: The blocks that stages may name.
        library: The recipes that stages may name.
        at: The prefix of the stage ids. Default: the recipe's name.
        model: The model of stages that name none.

    Raises:
        RecipeError: All problems with their stages, and file and line if known, in file order:
            unknown types, params, and parameters; invalid values; missing props; recipes that
            contain themselves; and invalid recipe files.
    """
    # Read the file now: stages use the vocabulary on the event loop.
    vocabulary()
    if isinstance(recipe, str):
        try:
            recipe = library.find(recipe)
        except FormError as error:
            raise with_plan(error, knobs, registry=registry, library=library) from None
    planning = Planning(registry, library.beside(recipe))
    return planning.whole(recipe, knobs or {}, at or recipe.name, Handed(model))


def with_plan(
    error: RecipeError,
    knobs: Mapping[str, Any] | None = None,
    *,
    registry: Registry = REGISTRY,
    library: Library = LIBRARY,
) -> RecipeError:
    """Return the error of a recipe's file, extended with the problems of its plan.

    An error that isn't about the file's form, or that leaves nothing to plan, is returned
    unchanged.
    """
    if not isinstance(error, FormError) or error.draft is None:
        return error
    planning = Planning(registry, library)
    planning.faults.take(error)
    try:
        planning.whole(error.draft, knobs or {}, error.draft.name, Handed())
    except RecipeError as more:
        return more
    return error
