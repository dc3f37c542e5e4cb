"""What the page of a large run costs in a headless Chromium, from a real journal.

`python -m tests.benchmarks.view_page 10000 50000` prints a line per number of calls. It needs the
extra `browser`. Times are medians of five, in a window of 1280 x 800.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from langchain_core.messages import BaseMessage
from tests.view.browser.opening import CHROMIUM

from mergepoint import Block, Step, run_generation
from mergepoint.journal.file_journal import FileStore
from mergepoint.report.run_state import read_state
from mergepoint.testing.scripted_model import ScriptedModel
from mergepoint.view.page import write_html
from mergepoint.view.pages import run_page

STAGE: Final = 7
WORDS: Final = "quiet harbor light over the wide water and a lantern at the gate " * 8


def large_run(folder: Path, calls: int) -> Path:
    """Run stages of a draft, five critics and a revision, and return the folder of the run."""

    def answer(seen: Sequence[BaseMessage]) -> str:
        return f"Answer to {seen[-1].text} {WORDS}"

    stages = [
        Block(
            [
                Step(f"Draft {at}.", name="draft"),
                *(Step(f"Criticize {at}.", name=f"critic_{n}", merge="none") for n in range(5)),
                Step(f"Revise {at}.", name="revise"),
            ],
            name=f"stage_{at:05}",
            # The conversation of ten thousand calls would be as long as a library.
            merge="last_response" if at % 20 == 0 else "none",
        )
        for at in range(calls // STAGE)
    ]
    tree = Block(stages, name="large")
    model = ScriptedModel(default=answer)
    run_generation(tree, model=model, runs=FileStore(folder), run_id="large")
    return folder


def measured(file: Path, calls: int) -> dict[str, Any]:
    """Return what it costs to open a page, to search it, and to show X-rays."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        flags = ["--no-sandbox", "--disable-gpu", "--enable-precise-memory-info"]
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=flags)
        opened: list[float] = []
        for _ in range(5):
            page = browser.new_context(viewport={"width": 1280, "height": 800}).new_page()
            asked: list[str] = []
            said: list[str] = []
            page.on("request", lambda request, asked=asked: asked.append(request.url))
            page.on("console", lambda message, said=said: said.append(message.text))
            page.on("pageerror", lambda error, said=said: said.append(str(error)))
            start = time.perf_counter()
            page.goto(file.as_uri())
            page.wait_for_selector("body[data-ready]", timeout=60_000)
            page.evaluate("() => new Promise(requestAnimationFrame)")
            opened.append(time.perf_counter() - start)
            if len(opened) < 5:
                page.context.close()
        session = page.context.new_cdp_session(page)
        session.send("HeapProfiler.collectGarbage")
        heap = session.send("Runtime.getHeapUsage")["usedSize"]
        found = page.evaluate(STEPS, calls)
        session.send("HeapProfiler.collectGarbage")
        after = session.send("Runtime.getHeapUsage")["usedSize"]
        nodes = page.evaluate("document.querySelectorAll('*').length")
        browser.close()
    return {
        "calls": calls,
        "file_mb": round(file.stat().st_size / 1e6, 1),
        "open_s": round(statistics.median(opened), 3),
        "search_ms": [round(one, 1) for one in found["search"]],
        "xray_ms": round(statistics.median(found["xray"]), 1),
        "xray_most_ms": round(max(found["xray"]), 1),
        "heap_mb": round(heap / 1e6, 1),
        "heap_after_mb": round(after / 1e6, 1),
        "elements": nodes,
        "requests": len(asked),
        "console": said,
    }


# Times from the event until the next frame could be drawn: layout is forced by reading a size.
STEPS: Final = """calls => {
  const field = document.querySelector("input[type=search]");
  const timed = (what) => {
    const start = performance.now();
    what();
    document.body.getBoundingClientRect();
    return performance.now() - start;
  };
  const type = (text) => timed(() => {
    field.focus();
    field.value = text;
    field.dispatchEvent(new Event("input", {bubbles: true}));
  });
  const last = `Draft ${Math.floor(calls / 7) - 1}`;
  const search = ["Revise 77", "lantern", "no such words", last].map(type);
  type("");
  field.blur();
  const press = (key) =>
    timed(() => document.dispatchEvent(new KeyboardEvent("keydown", {key, bubbles: true})));
  const xray = [..."jjjjjjjjjjjjjjjjjjjjkkkkkkkkkk"].map(press);
  return {search, xray};
}"""


def main(numbers: list[int]) -> None:
    """Print the figures for each number of calls."""
    for calls in numbers:
        with tempfile.TemporaryDirectory() as place:
            folder = large_run(Path(place), calls)
            start = time.perf_counter()
            data = run_page(read_state(FileStore(folder), "large"), version="1")
            file = write_html(Path(place) / "view.html", data)
            written = time.perf_counter() - start
            del data
            figures = measured(file, calls // STAGE * STAGE)
            sys.stdout.write(json.dumps({"write_s": round(written, 2), **figures}) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main([int(one) for one in sys.argv[1:]] or [10_000])
