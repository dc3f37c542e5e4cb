"""Run a tree into a folder, and wait in its second call until the process is killed."""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from langchain_core.messages import BaseMessage

from mergepoint import Block, Step, run_generation
from mergepoint.journal.file_journal import FileStore
from mergepoint.testing.scripted_model import ScriptedModel

TREE = Block([Step(f"Say {name}.", name=name) for name in ("one", "two", "three")], name="slow")


def _waiting(_: Sequence[BaseMessage]) -> Any:
    sys.stdout.write("waiting\n")
    sys.stdout.flush()
    threading.Event().wait()


def main() -> None:
    """Run the tree; the folder of runs is the first argument."""
    model = ScriptedModel(by_path={"slow/one": "First.", "slow/two": _waiting})
    run_generation(TREE, model=model, runs=FileStore(Path(sys.argv[1])), run_id="running")


if __name__ == "__main__":
    main()
