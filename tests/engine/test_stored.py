"""Runs in stores: resumed, reused and replayed wherever their journal is; secrets stay out."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from langchain_openai import ChatOpenAI
from tests.journal.places import Place, place_of

from mergepoint import Block, Node, RunContext, Step, Template, run_generation
from mergepoint.journal.checked_lines import JournalError
from mergepoint.journal.file_journal import FileStore
from mergepoint.journal.transcript import read_transcript
from mergepoint.testing.scripted_model import ScriptedModel
from mergepoint.testing.server import ModelServer, ServerReply

KEY = "sk-proj-Ab1Cd2Ef3Gh4Ij5Kl6Mn7Op8"


@pytest.fixture(params=["files", "segments", "sqlite", "postgresql"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """Yield an empty place for runs of each kind."""
    with place_of(request.param, tmp_path) as found:
        yield found


def tree() -> Node:
    """Return two steps that build on each other."""
    steps = [
        Step(Template("Draft {{ topic }}."), name="draft"),
        Step("Better.", name="better", capture_key="result"),
    ]
    return Block(steps, inputs=["topic"])


def run(model: ScriptedModel, **options: Any) -> Any:
    """Run the tree; what is not given is as in the first run."""
    if "resume" not in options:
        options = {"inputs": {"topic": "rain"}, **options}
    return run_generation(tree(), model=model, **options)


def test_a_run_is_resumed_reused_and_replayed(place: Place) -> None:
    """By its id, from any store, no answer that is on record is paid again."""
    store = place.store()
    with pytest.raises(TimeoutError):
        run(ScriptedModel(["one", TimeoutError("slow")]), ctx=RunContext(run_id="r1"), runs=store)
    rest = ScriptedModel(["two"])
    done = run(rest, runs=place.store(), resume="r1")
    assert (done.text, len(rest.calls)) == ("two", 1)
    for way in ("reuse", "replay"):
        idle = ScriptedModel([])
        again = run(idle, runs=place.store(), **{way: "r1"})
        assert (again.text, again.outputs, idle.calls) == ("two", {"result": "two"}, [])
    assert len(store.runs()) == 3
    assert [one.answered for one in store.read("r1")[1]] == [True, False, True]


def test_a_place_may_be_given_as_text(place: Place, tmp_path: Path) -> None:
    """A folder has a transcript beside its journal, a database has the journal alone."""
    if place.kind == "segments":
        pytest.skip("the text of a folder without segments names a store of folders")
    done = run(ScriptedModel(["one", "two"]), runs=place.address)
    (run_id,) = place.store().runs()
    assert run_id == done.transcript.run_id
    assert done.path_of_run == place.store().folder_of(run_id)
    written = list(tmp_path.rglob("transcript.json"))
    assert len(written) == (place.kind == "files")


def test_a_run_in_a_folder_is_reused_into_a_store(place: Place, tmp_path: Path) -> None:
    """A folder names a run wherever the new one is written."""
    before = run(ScriptedModel(["one", "two"]), runs=tmp_path / "elsewhere")
    again = run(ScriptedModel([]), runs=place.store(), reuse=before.path_of_run)
    assert again.text == "two"
    assert len(place.store().runs()) == 1


def test_an_id_that_is_taken_costs_no_call(place: Place) -> None:
    """The second run is refused before a call, and what the first left stays as it was."""
    run(ScriptedModel(["one", "two"]), ctx=RunContext(run_id="r1"), runs=place.store())
    kept = place.store().read("r1")
    idle = ScriptedModel(["three"])
    with pytest.raises(JournalError, match=r"a run 'r1' in .* already"):
        run(idle, ctx=RunContext(run_id="r1"), runs=place.store())
    assert (idle.calls, place.store().read("r1")) == ([], kept)
    folder = place.store().folder_of("r1")
    if folder is not None:
        assert read_transcript(folder / "transcript.json").text == "two"


def test_an_id_does_not_lead_out_of_the_place(place: Place, tmp_path: Path) -> None:
    """A run whose id is a path is refused, and nothing is written for it."""
    with pytest.raises(JournalError, match="isn't a run id"):
        run(ScriptedModel([]), ctx=RunContext(run_id="../r1"), runs=place.store())
    assert list(tmp_path.rglob("*.json*")) == []


def test_a_folder_without_a_journal_is_told(tmp_path: Path) -> None:
    """A path that is no run's is not taken for an id."""
    with pytest.raises(JournalError, match=r"is not a folder with a journal\.jsonl; pass"):
        run(ScriptedModel([]), runs=tmp_path, resume=tmp_path / "r1")


def test_a_run_whose_inputs_were_hidden_is_not_resumed(place: Place) -> None:
    """It would go on with other inputs than it began with; reuse with the same costs nothing."""

    def redact(text: str) -> str:
        return text.replace("rain", "[weather]")

    model = ScriptedModel(["one", "two"])
    done = run(model, runs=place.store(redact=redact), ctx=RunContext(run_id="r1"))
    assert done.text == "two"
    assert b"rain" not in place.raw()
    with pytest.raises(
        JournalError,
        match=r"'r1' in .* cannot be resumed without its inputs, .*--input topic=VALUE",
    ):
        run(ScriptedModel([]), runs=place.store(), resume="r1")
    again = run(ScriptedModel([]), runs=place.store(redact=redact), reuse="r1")
    assert again.text == "two"


def test_an_answer_that_was_hidden_is_asked_for_again(place: Place) -> None:
    """A resumed run never goes on with masked text in place of what the model said."""
    secretive = ScriptedModel([f"use {KEY}", TimeoutError("slow")])
    with pytest.raises(TimeoutError):
        run(secretive, runs=place.store(), ctx=RunContext(run_id="r1"))
    assert KEY.encode() not in place.raw()
    again = ScriptedModel([f"use {KEY}", "two"])
    assert run(again, runs=place.store(), resume="r1").text == "two"
    assert [str(message.content) for message in again.calls[1].messages][-2] == f"use {KEY}"


def test_a_hidden_prompt_is_found_by_what_was_asked(place: Place) -> None:
    """Requests are known by a digest of the real text, so a replay with the same text fits."""

    def redact(text: str) -> str:
        return text.replace("Better", "[prompt]")

    run(ScriptedModel(["one", "two"]), runs=place.store(redact=redact), ctx=RunContext(run_id="r1"))
    assert b"Better" not in place.raw()
    assert run(ScriptedModel([]), runs=place.store(), replay="r1").text == "two"


def test_a_provider_client_leaves_no_secret_behind(place: Place, tmp_path: Path) -> None:
    """Neither its key, nor its headers, nor those of the answer, nor what a refusal quotes."""
    step = Step("A.", name="a", params={"extra_headers": {"Authorization": "Bearer tiny-param"}})
    cookie = {"Set-Cookie": "session=tiny-cookie", "X-Request-Id": "tiny-id"}
    with ModelServer(
        [ServerReply("fine", headers=cookie), ServerReply(f"wrong key {KEY}", status=401)]
    ) as at:
        model = ChatOpenAI(
            model="scripted",
            base_url=at.url,
            api_key=KEY,  # type: ignore[arg-type]
            default_headers={"X-Team": "tiny-team"},
            include_response_headers=True,
            max_retries=0,
        )
        with pytest.raises(openai.AuthenticationError, match=KEY):
            run_generation(
                Block([step, Step("B.", name="b")]),
                model=model,
                runs=place.store(),
                ctx=RunContext(run_id="r1"),
            )
    kept = place.raw()
    for secret in (KEY, "tiny-"):
        assert secret.encode() not in kept
    _, (fine, refused) = place.store().read("r1")
    assert (fine.response, fine.masked) == ("fine", ())
    assert refused.error is not None
    assert "wrong key [masked]" in refused.error["message"]


def test_the_hook_reaches_the_transcript(tmp_path: Path) -> None:
    """The file beside the journal holds no more than the journal."""
    store = FileStore(tmp_path / "runs", redact=lambda text: text.replace("two", "2"))
    done = run(ScriptedModel(["one", "two"]), runs=store)
    assert (done.text, done.outputs) == ("two", {"result": "two"})
    assert read_transcript(done.path_of_run / "transcript.json").outputs == {"result": "2"}
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(written) == 2
    assert all(b"two" not in path.read_bytes() for path in written)
