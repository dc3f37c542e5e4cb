"""BatchWorker: one prepared target for many inputs, in every process the same one."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mergepoint import Block, Step, Template, to_yaml
from mergepoint.journal.checked_lines import JournalError
from mergepoint.journal.file_journal import FileStore
from mergepoint.scale import BatchError, BatchInput, RunSpec
from mergepoint.scale.batch_run import BatchRun
from mergepoint.scale.run_spec import LiveValues, TargetForm
from mergepoint.scale.worker import BatchWorker
from mergepoint.testing import Killed, KillingStore, ScriptedModel

TREE = Block(
    [
        Step(Template("Draft {{ topic }}"), name="draft", capture_key="draft"),
        Step(Template("Title {{ draft }}"), name="title"),
    ],
    name="writing",
    inputs=("topic",),
)
GIVEN = BatchInput(id="q1", value={"topic": "x"}, number=4)


def spec_of(target: Any, store: Path, **options: Any) -> RunSpec:
    """Return the spec of a batch of one input."""
    run = BatchRun.of(target, [{"topic": "x"}], store=store, batch_id="b", options=options)
    run.close()
    return run.spec


def test_a_spec_is_json_data_that_another_process_can_use(tmp_path: Path) -> None:
    """A tree goes out as its text, and a worker that reads it compiles the same."""
    spec = spec_of(TREE, tmp_path, model="offline", temperature=0.5)
    assert (spec.kind, spec.target) == ("yaml", to_yaml(TREE))
    worker = BatchWorker(RunSpec.from_plain(spec.to_plain()))
    result = asyncio.run(worker.run(GIVEN))
    assert (result.id, result.number, result.status, result.calls) == ("q1", 4, "done", 2)


def test_targets_are_sent_as_text_or_as_a_name(tmp_path: Path) -> None:
    """A YAML file that stands alone is sent as text, one in Python by its absolute path."""
    file = tmp_path / "tree.yaml"
    file.write_text(to_yaml(TREE), encoding="utf-8")
    assert TargetForm.of(file).kind == "yaml"
    code = tmp_path / "code_of_a_batch.py"
    code.write_text("from mergepoint import Step\ntree = Step(lambda ctx: 'x', name='s')\n")
    form = TargetForm.of(f"{code}:tree")
    assert (form.kind, form.text, form.kept) == ("name", f"{code.resolve()}:tree", None)
    assert TargetForm.of("best_of_n").text == "best_of_n"
    kept = TargetForm.of(Step(lambda _: "x", name="s")).kept
    assert kept is not None
    assert "values that only Python can express" in kept


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"version": "0.0.1"}, r"started by mergepoint 0\.0\.1, and this worker runs"),
        ({"fingerprint": "0" * 32}, "is another tree or recipe on this worker"),
        ({"options": {"model": "offline", "temperature": 1.0}}, "is another tree or recipe"),
        ({"options": {"modell": "offline"}}, "'modell' is no option of a batch of a tree"),
    ],
)
def test_a_worker_that_differs_from_its_driver_refuses(
    changed: dict[str, Any], said: str, tmp_path: Path
) -> None:
    """Another version, tree, or setting is refused before anything is run."""
    spec = replace(spec_of(TREE, tmp_path, model="offline"), **changed)
    with pytest.raises(BatchError, match=said):
        BatchWorker(spec)


def test_a_run_that_was_killed_is_resumed_without_repeating_its_calls(tmp_path: Path) -> None:
    """A run whose process died goes on after its last recorded call, and counts only new ones."""
    model = ScriptedModel(default=lambda messages: f"[{messages[-1].content}]")
    live = LiveValues(found=TargetForm.of(TREE).found, options={"model": model})
    spec = spec_of(TREE, tmp_path, model=model)
    killing = KillingStore(FileStore(tmp_path), at=1)
    with pytest.raises(Killed):
        asyncio.run(BatchWorker(spec, live=replace(live, store=killing)).run(GIVEN))
    result = asyncio.run(BatchWorker(spec, live=live).run(GIVEN))
    assert (result.status, result.text, result.calls_now) == ("done", "[Title [Draft x]]", 1)
    again = asyncio.run(BatchWorker(spec, live=live).run(GIVEN))
    assert (again.text, again.calls_now) == (result.text, 0)


def test_the_same_id_with_other_inputs_is_a_failure(tmp_path: Path) -> None:
    """A recorded run isn't answered to an input that it didn't have."""
    spec = spec_of(TREE, tmp_path, model="offline")
    worker = BatchWorker(spec)
    asyncio.run(worker.run(GIVEN))
    other = asyncio.run(worker.run(replace(GIVEN, value={"topic": "y"})))
    assert other.error is not None
    assert (other.status, other.error["type"]) == ("failed", "OtherInputsError")
    wrong = asyncio.run(worker.run(BatchInput(id="q2", value={"subject": 1}, number=0)))
    assert wrong.error is not None
    assert wrong.error["type"] == "TreeError"


def test_a_store_that_is_full_ends_the_batch(tmp_path: Path) -> None:
    """An error of the store is raised: it isn't the failure of one input."""
    spec = spec_of(TREE, tmp_path, model="offline")
    (tmp_path / "file").write_text("")
    worker = BatchWorker(spec, live=LiveValues(store=FileStore(tmp_path / "file" / "runs")))
    with pytest.raises(JournalError, match="Not a directory"):
        asyncio.run(worker.run(GIVEN))
