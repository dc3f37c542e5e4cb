"""`mergepoint runs export --otlp`: spans of a run, from the command line."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from tests.apps.command import command
from tests.otel.collector import collecting
from tests.test_public import without_extras

from mergepoint.otel import trace_id


def test_a_run_is_sent_to_a_collector(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command sends the spans with the environment's headers, and prints the trace's id."""
    command("run", "best_of_n", "A title.", "--run-id", "r1", "--quiet")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-mlflow-experiment-id=7")
    with collecting() as collector:
        done = command("runs", "export", "last", "--otlp", collector.url)
        assert (done.code, done.out) == (0, f"{trace_id('r1')}\n")
        assert f"Sent {len(collector.spans)} spans of run r1" in done.err
        assert collector.root.trace_id == trace_id("r1")
        assert [header["x-mlflow-experiment-id"] for header in collector.headers] == ["7"]
        assert not any("gen_ai.input.messages" in one.attributes for one in collector.spans)
        command("runs", "export", "r1", "--otlp", collector.url, "--content")
        assert any("gen_ai.input.messages" in one.attributes for one in collector.spans)


def test_options_of_spans_fit_together() -> None:
    """A file and a collector exclude each other, and content needs a collector."""
    command("run", "best_of_n", "A title.", "--run-id", "r1", "--quiet")
    both = command("runs", "export", "r1", "--to", "t.json", "--otlp", "http://127.0.0.1:1")
    assert (both.code, "Can't use --otlp and --to together" in both.err) == (2, True)
    alone = command("runs", "export", "r1", "--content")
    assert (alone.code, "--content needs --otlp" in alone.err) == (2, True)
    bad = command("runs", "export", "r1", "--otlp", "localhost:4318")
    assert (bad.code, "isn't the URL of a collector" in bad.err) == (2, True)


def test_a_collector_that_is_down_is_a_failure() -> None:
    """The request was valid, so the exit code is that of a failure, and nothing goes to stdout."""
    command("run", "best_of_n", "A title.", "--run-id", "r1", "--quiet")
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    down = command("runs", "export", "r1", "--otlp", f"http://127.0.0.1:{port}")
    assert (down.code, down.out) == (1, "")
    assert "Check its address" in down.err
    assert "bug" not in down.err


@pytest.mark.campaign
def test_without_the_extra_the_command_names_it() -> None:
    """A plain installation says what to install, and still writes transcripts."""
    command("run", "best_of_n", "A title.", "--run-id", "r1", "--quiet")
    program = "from mergepoint.apps.cli.app import main\nsys.argv[1:] = {words!r}\nmain()"
    words = ["runs", "export", "r1", "--otlp", "http://127.0.0.1:1"]
    ended = without_extras(program.format(words=words), Path.cwd())
    assert (ended.returncode, "[otel]" in ended.stderr) == (2, True)
    ended = without_extras(program.format(words=words[:3]), Path.cwd())
    assert (ended.returncode, ended.stderr) == (0, "")
