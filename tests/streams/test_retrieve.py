"""retrieve: BM25, folders of texts, LangChain retrievers."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.callbacks import CallbackManagerForRetrieverRun
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from pydantic import Field
from tests.streams.blocks import each
from tests.streams.laws import UNHURRIED

from mergepoint.core.errors import BlockError
from mergepoint.streams.block_context import NotesInMemory
from mergepoint.streams.blocks.retrieve import BM25, documents_in, words
from mergepoint.streams.recipe import Recipe, Stage
from mergepoint.streams.recipe_runs import run_recipe
from mergepoint.streams.thing import Thing
from mergepoint.testing.fakes import run_block

TEXTS = ["the cat sat on the mat", "a dog barked", "the cat and the dog", "nothing here"]


def sources(query: str, **params: Any) -> list[dict[str, Any]]:
    """Return what is found for a query."""
    (thing,) = run_block("retrieve", [query], params or {"documents": TEXTS})
    found: list[dict[str, Any]] = thing.props["sources"]
    return found


def test_a_score_is_that_of_the_formula() -> None:
    """The score of a word is its weight times its damped frequency, worked out by hand."""
    index = BM25(TEXTS, k1=1.2, b=0.75)
    average = (6 + 3 + 5 + 2) / 4
    weight = math.log(1 + (4 - 2 + 0.5) / (2 + 0.5))
    expected = {
        number: weight * 1 * 2.2 / (1 + 1.2 * (0.25 + 0.75 * length / average))
        for number, length in ((0, 6), (2, 5))
    }
    assert index.scores("Cat!") == pytest.approx(expected)
    both = index.scores("cat dog")
    assert set(both) == {0, 1, 2}
    assert max(both, key=lambda number: both[number]) == 2


def test_repetition_counts_up_to_a_limit() -> None:
    """More of a word is better, and never by more than k1 + 1 times its weight."""
    index = BM25(["cat", "cat cat", "cat " * 50, "dog"], b=0)
    scores = index.scores("cat")
    weight = math.log(1 + 1.5 / 3.5)
    assert scores[0] < scores[1] < scores[2] < weight * 2.2
    assert BM25(["cat", "cat cat"], k1=0).scores("cat")[0] == pytest.approx(math.log(1 + 0.5 / 2.5))


def test_words_are_without_case() -> None:
    """Words are what stands between spaces and marks, in every script, without case."""
    assert words("The CAT's straße, Ümit!") == ["the", "cat", "s", "strasse", "ümit"]


@pytest.mark.parametrize("texts", [[], [""], ["", "..."]])
def test_empty_documents_are_no_fault(texts: list[str]) -> None:
    """An index over nothing finds nothing."""
    assert BM25(texts).best("cat", 3) == []


@UNHURRIED
@given(st.lists(st.text("ab ", max_size=8), max_size=6), st.text("abc ", max_size=6))
def test_scores_are_finite_and_above_nothing(texts: list[str], query: str) -> None:
    """A document is found if it shares a word with the query, with a score above zero."""
    scores = BM25(texts).scores(query)
    sharing = {n for n, text in enumerate(texts) if set(words(text)) & set(words(query))}
    assert set(scores) == sharing
    assert all(0 < score < math.inf for score in scores.values())


def test_documents_are_found_best_first() -> None:
    """The prop `sources` lists id, text and score, and `query` what was looked for."""
    (thing,) = run_block("retrieve", [Thing("dog", {"a": 1})], {"documents": TEXTS, "k": 1})
    assert thing.content == "dog"
    assert thing.props["query"] == "dog"
    (found,) = thing.props["sources"]
    assert (found["id"], found["text"]) == ("1", "a dog barked")
    assert found["score"] > 0
    assert [one["id"] for one in sources("cat dog")] == ["2", "1", "0"]
    assert sources("zebra") == []


def test_equal_documents_keep_their_order() -> None:
    """Of documents with one score the first comes first."""
    assert [one["id"] for one in sources("x", documents=["x", "y", "x", "x"], k=2)] == ["0", "2"]


def test_query_and_target_can_be_named() -> None:
    """The query is read from a prop, and what is found written to another."""
    item = Thing("no", {"question": "cat"})
    params = {"documents": TEXTS, "query": "question", "into": "evidence", "k": 1}
    (thing,) = run_block("retrieve", [item], params)
    assert thing.props["evidence"][0]["text"] == TEXTS[2]
    with pytest.raises(BlockError, match="item 0: content must be a string to search for"):
        run_block("retrieve", [[1]], {"documents": TEXTS})


def test_failed_things_are_not_looked_up() -> None:
    """A Thing that failed passes as it is."""
    (thing,) = run_block("retrieve", [Thing("cat", {"status": "failed"})], {"documents": TEXTS})
    assert "sources" not in thing.props


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder of texts, two of them of other kinds."""
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "cats.md").write_text(
        "# Cats\n\nCats purr.\n\n \nCats sleep.\n", encoding="utf-8"
    )
    (tmp_path / "dogs.txt").write_text("\ufeffDogs bark.", encoding="utf-8")
    (tmp_path / "data.json").write_text("cats", encoding="utf-8")
    return tmp_path


def test_a_folder_is_searched(folder: Path) -> None:
    """Texts of a folder and those below it are found under their paths, others are left out."""
    found = sources("cats dogs", folder=str(folder))
    assert {one["id"] for one in found} == {"below/cats.md", "dogs.txt"}
    assert sources("bark", folder=str(folder))[0]["text"] == "Dogs bark."
    assert sources("cats", folder=str(folder), suffixes=[".json"])[0]["id"] == "data.json"


def test_paragraphs_are_searched(folder: Path) -> None:
    """Split, the paragraphs are what is found, numbered in their file."""
    found = sources("sleep", folder=str(folder), split="paragraphs")
    assert [(one["id"], one["text"]) for one in found] == [("below/cats.md#2", "Cats sleep.")]


def test_folders_that_cannot_be_searched(folder: Path) -> None:
    """A missing folder, one without texts, and a file of another encoding are told."""
    with pytest.raises(BlockError, match=r"^stage \(retrieve\): the folder '.*nowhere'"):
        sources("x", folder=str(folder / "nowhere"))
    with pytest.raises(BlockError, match=r"no file in '.*' ends with \.rst"):
        sources("x", folder=str(folder), suffixes=[".rst"])
    (folder / "bad.txt").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(BlockError, match=r"bad\.txt' is not UTF-8; save it as UTF-8"):
        sources("x", folder=str(folder))


class Shelf(BaseRetriever):
    """A LangChain retriever that finds the query itself, and counts."""

    asked: list[str] = Field(default_factory=list)

    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun
    ) -> list[Document]:
        self.asked.append(query)
        return [
            Document(f"{query} one", id="7"),
            Document(f"{query} two", metadata={"source": "b.txt", "score": 0.5}),
            Document(f"{query} three"),
        ]


SHELF = Shelf()


@pytest.mark.parametrize("retriever", [Shelf(), f"{__name__}:SHELF"])
def test_any_langchain_retriever_is_asked(retriever: Any) -> None:
    """A retriever is given itself or by its name, and what it finds has the same form."""
    assert sources("cat", retriever=retriever, k=9) == [
        {"id": "7", "text": "cat one"},
        {"id": "b.txt", "text": "cat two", "score": 0.5},
        {"id": "2", "text": "cat three"},
    ]
    assert len(sources("cat", retriever=retriever, k=1)) == 1


def test_a_retriever_is_not_asked_again() -> None:
    """What was found is noted, so a resumed run finds the same without asking."""
    shelf, notes = Shelf(asked=[]), NotesInMemory()
    first = run_block("retrieve", "ab", {"retriever": shelf}, notes=notes, width=2)
    assert run_block("retrieve", "ab", {"retriever": shelf}, notes=notes) == first
    assert sorted(shelf.asked) == ["a", "b"]


def test_a_thing_that_comes_back_is_looked_up_anew() -> None:
    """In a later round a Thing with another content gets what fits that one."""
    shelf, notes = Shelf(), NotesInMemory()
    (first,) = run_block("retrieve", "a", {"retriever": shelf}, notes=notes)
    changed = run_block(each(lambda thing, ctx: thing.redrafted("b")), [first], stage_id="other")
    (second,) = run_block("retrieve", changed, {"retriever": shelf}, notes=notes)
    assert second.props["sources"][0]["text"] == "b one"
    assert [len(found) for found in second.why("sources").values] == [3, 3]


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("nowhere_at_all:x", "can't be loaded: ModuleNotFoundError"),
        (f"{__name__}:MISSING", "can't be loaded: AttributeError"),
        (f"{__name__}:TEXTS", "is a list, not a LangChain retriever"),
    ],
)
def test_retrievers_that_are_none(name: str, problem: str) -> None:
    """A name that leads nowhere, or to something else, is an error that says so."""
    with pytest.raises(BlockError, match=problem):
        sources("x", retriever=name)


def test_a_folder_is_read_once_a_stage(tmp_path: Path) -> None:
    """A stage that takes Things one by one, or in batches, makes its index for all of them."""
    for number, some in enumerate(({"where": {"x": 1}}, {"batch": {"count": 1}})):
        folder = tmp_path / str(number)
        folder.mkdir()
        stage = Stage("retrieve", params={"folder": str(folder)}, **some)  # type: ignore[arg-type]
        (folder / "a.txt").write_text("cat")
        recipe = Recipe("r", (stage,), needs=("x",))
        done = run_recipe(recipe, _then((folder / "a.txt").unlink), runs=None)
        assert [len(thing.props["sources"]) for thing in done.things] == [1, 1]


async def _then(between: Callable[[], None]) -> AsyncIterator[Thing]:
    yield Thing("cat", {"x": 1})
    between()
    yield Thing("a cat", {"x": 1})


def test_a_link_out_of_a_folder_of_documents_is_refused(tmp_path: Path) -> None:
    """A folder gives no text of another one; a link within it is one of its documents."""
    folder = tmp_path / "docs"
    folder.mkdir()
    (folder / "a.md").write_text("a cat", encoding="utf-8")
    (folder / "b.md").symlink_to("a.md")
    assert {one.id for one in documents_in(folder, [".md"])} == {"a.md", "b.md"}
    (tmp_path / "secret.md").write_text("a secret cat", encoding="utf-8")
    (folder / "c.md").symlink_to(tmp_path / "secret.md")
    with pytest.raises(BlockError, match=r"c\.md' is a link to .*secret\.md', out of the folder"):
        list(documents_in(folder, [".md"]))
