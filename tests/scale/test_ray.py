"""RayEngine on a cluster of several nodes on this machine: deaths, errors, and output."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.journal.places import place_of, store_of
from tests.scale.batch_driver import TARGET
from tests.scale.fleet import (
    CALLS,
    TREE,
    CountingModel,
    all_results,
    is_right,
    lines_of,
    numbered,
    spec_of,
    waited,
)
from tests.scale.servers import own_server

from mergepoint.journal.stores import Store
from mergepoint.scale import BatchError, BatchResult, batch
from mergepoint.scale.protocol import LOST, run_id_of
from mergepoint.scale.ray_engine import RayEngine, _difference, _versions

pytestmark = pytest.mark.scale

ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'mergepoint[ray]'")
ROOT = Path(__file__).parents[2]
NODE = {"object_store_memory": 80 * 2**20}
KILLS = 8
LOST_SHARE = 0.002
"""The share of finished calls that may be made again."""


class Nodes:
    """A cluster whose head runs no workers, and some nodes of four CPUs."""

    def __init__(self, count: int) -> None:
        from ray.cluster_utils import Cluster

        # Ray starts workers with a niceness of 15: on a busy machine they would wait for all others
        # between a model's answer and its record.
        settings = {"worker_niceness": 0}
        head = {"num_cpus": 0, "include_dashboard": False, "_system_config": settings, **NODE}
        self.cluster: Any = Cluster(initialize_head=True, head_node_args=head)
        self.nodes = [self.add() for _ in range(count)]

    @property
    def address(self) -> str:
        """Return the address for drivers."""
        return str(self.cluster.address)

    def add(self) -> Any:
        """Return a new node."""
        return self.cluster.add_node(num_cpus=4, **NODE)

    def workers(self) -> list[int]:
        """Return the processes of actors on these nodes."""
        raylets = {one.process.pid for node in self.nodes for one in node.all_processes["raylet"]}
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
                name = (folder / "cmdline").read_bytes()
            except OSError:
                continue
            if parent in raylets and b"_RayWorker" in name:
                found.append(int(folder.name))
        return found

    def remove(self) -> None:
        """Kill a node with all that runs on it."""
        self.cluster.remove_node(self.nodes.pop(), allow_graceful=False)


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    """Yield a cluster of three nodes."""
    os.environ["OPENAI_API_KEY"] = "none"
    made = Nodes(3)
    # Engines of this process use this connection. The machine's own address, to which they would
    # connect otherwise, isn't one that tests may reach.
    ray.init(address=made.address, log_to_driver=False)
    yield made
    ray.shutdown()
    made.cluster.shutdown()


def driver(
    nodes: Nodes, spec: Any, count: int, out: Path, *, workers: int = KILLS
) -> subprocess.Popen[bytes]:
    """Start a driver in a process of its own, which has eight runs in progress."""
    options = {"address": nodes.address, "workers": workers, "concurrency": KILLS}
    words = ["ray", json.dumps(options), json.dumps(spec.to_plain()), str(count), str(out)]
    command = [sys.executable, "-m", "tests.scale.fleet", *words]
    with out.with_suffix(".stdout").open("ab") as stdout:
        return subprocess.Popen(command, cwd=ROOT, stdout=stdout)  # noqa: S603  (our own words)


def grown(out: Path) -> Callable[[], bool]:
    """Return a function that tells whether a file has three more results."""
    known = len(lines_of(out))
    return lambda: len(lines_of(out)) >= known + 3


def check_calls(model: CountingModel, store: Store, count: int) -> None:
    """Check that no recorded call was made again, and hardly any whose answer was read.

    An answer can be read, and its process killed before it is recorded. On a busy machine that
    takes a tenth of a second or more, so a few of the calls in progress may be repeated.
    """
    found = Counter[str]()
    for number in range(count):
        _, records = store.read(run_id_of("fleet", f"q{number}"))
        for record in records:
            found[str(record.prompt)] += record.answered
            # Both are times of this machine, and a record's end is after its answer.
            assert model.last[str(record.prompt)] <= record.ended
    assert set(found.values()) == {1}
    assert len(found) == count * CALLS
    assert model.repeated <= max(KILLS / 2, LOST_SHARE * count * CALLS)


@pytest.mark.parametrize("kind", ["postgresql", "sqlite"])
def test_a_batch_outlives_workers_a_node_and_its_driver(
    kind: str, nodes: Nodes, tmp_path: Path
) -> None:
    """400 inputs end right, and hardly a finished call is made again, though 8 workers die."""
    count = 400 if kind == "postgresql" else 60
    kills, longest, workers = (KILLS, 8.0, KILLS) if kind == "postgresql" else (2, 2.0, 4)
    chance = random.Random(13)  # noqa: S311  (moments of kills)
    out = tmp_path / "results.jsonl"
    with CountingModel(delay=0.3) as model, place_of(kind, tmp_path) as place:
        spec = spec_of(place.address, model.url)
        running = driver(nodes, spec, count, out, workers=workers)
        began = time.monotonic()
        waited(lambda: len(lines_of(out)) >= 3, "the first results", 400)
        for number in range(kills):
            time.sleep(chance.uniform(0.3, longest))
            waited(lambda: bool(nodes.workers()), "a worker to kill", 200)
            os.kill(chance.choice(nodes.workers()), signal.SIGKILL)
            if number == kills // 2 and kind == "postgresql":
                nodes.remove()
            if number == kills - 2:
                assert running.poll() is None
                os.kill(running.pid, signal.SIGKILL)
                running.wait()
                running = driver(nodes, spec, count, out, workers=workers)
                waited(grown(out), "the resumed driver", 400)
        assert running.wait(500) == 0
        seconds = time.monotonic() - began
        results = lines_of(out)
        print(
            f"{kind}: {sum(map(is_right, results))} of {count} right, {model.answered} answers, "
            f"{model.repeated} repeated, {max(one.attempts for one in results)} attempts at most, "
            f"{seconds:.0f} s"
        )
        assert {one.id for one in results} == {f"q{number}" for number in range(count)}
        assert all(map(is_right, results))
        check_calls(model, place.store(), count)
        assert max(one.attempts for one in results) > 1
        # Ray's notes about the dead would otherwise be among the results.
        assert out.with_suffix(".stdout").read_bytes() == b""


def test_the_database_restarts_in_mid_batch(nodes: Nodes, tmp_path: Path) -> None:
    """A restart and a crash of PostgreSQL, and the death of a worker, lose and repeat nothing."""
    count, out = 60, tmp_path / "results.jsonl"
    with CountingModel(delay=0.4) as model, own_server() as server:
        spec = spec_of(server.url, model.url)
        running = driver(nodes, spec, count, out, workers=4)
        waited(lambda: len(lines_of(out)) >= 3, "the first results", 400)
        server.control("restart", "-m", "fast")
        waited(grown(out), "results after the restart", 60)
        os.kill(nodes.workers()[0], signal.SIGKILL)
        server.control("restart", "-m", "immediate")
        assert running.poll() is None
        assert running.wait(300) == 0
        results = lines_of(out)
        print(f"{model.answered} answers, {model.repeated} repeated")
        assert len(results) == count
        assert all(map(is_right, results))
        check_calls(model, store_of(server.url), count)


def test_an_input_that_kills_its_workers_takes_no_others_with_it(
    nodes: Nodes, tmp_path: Path
) -> None:
    """Inputs that shared dying actors with a poison one are done: a last attempt is alone."""
    # Slower than the poison: what runs beside it never gets on.
    settings = {"runtime_env": {"env_vars": {"LATENCY": "2"}}}
    engine = RayEngine(address=nodes.address, workers=1, concurrency=4, actor_options=settings)
    inputs = [{"id": word, "topic": word} for word in ("t0", "die", "t1", "t2")]

    async def every() -> list[BatchResult]:
        results = batch(TARGET, inputs, store=tmp_path / "runs", engine=engine)
        return [one async for one in results]

    by_id = {one.id: one for one in asyncio.run(every())}
    poison = by_id.pop("die")
    assert poison.error is not None
    assert (poison.status, poison.error["type"], poison.attempts) == ("failed", LOST, 3)
    assert {(one.status, one.outputs.get("c")) for one in by_id.values()} == {
        ("done", f"<<<{word} a> b> c>") for word in ("t0", "t1", "t2")
    }
    assert {one.attempts for one in by_id.values()} == {3}


def command(address: str, folder: Path, url: str) -> subprocess.Popen[str]:
    """Start the command of a batch of 40 inputs; its output is text."""
    (folder / "parts.yaml").write_text(TREE)
    inputs = "".join(f'{{"id": "q{n}", "topic": "q{n}"}}\n' for n in range(40))
    (folder / "in.jsonl").write_text(inputs)
    target = ["parts.yaml", "in.jsonl", "--out", "results.jsonl", "--yes"]
    where = ["--engine", "ray", "--ray-address", address, "--workers", "2", "--concurrency", "8"]
    model = ["--model", "openai:scripted", "--base-url", url]
    return subprocess.Popen(  # noqa: S603  (our own words)
        [sys.executable, "-m", "mergepoint.apps.cli", "batch", *target, *where, *model],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def test_the_command_takes_the_address_and_stops(nodes: Nodes, tmp_path: Path) -> None:
    """Ctrl-C lets the runs in progress end, and the same command does the rest."""
    with CountingModel(delay=0.1) as model:
        first = command(nodes.address, tmp_path, model.url)
        begun = grown(tmp_path / "results.jsonl")
        waited(lambda: begun() or first.poll() is not None, "the first results", 200)
        first.send_signal(signal.SIGINT)
        said, _ = first.communicate(timeout=100)
        assert first.returncode == 130, said
        assert f"--engine ray --ray-address {nodes.address} --workers 2" in said
        done = len(lines_of(tmp_path / "results.jsonl"))
        # All that had begun: at most 8 beside those with results.
        assert model.answered == CALLS * done < CALLS * 40
        second = command(nodes.address, tmp_path, model.url)
        said, _ = second.communicate(timeout=200)
        assert second.returncode == 0, said
        results = lines_of(tmp_path / "results.jsonl")
        assert len(results) == 40
        assert all(map(is_right, results))
        assert (model.answered, model.repeated) == (CALLS * 40, 0)


def test_a_closed_batch_records_its_calls_in_progress(nodes: Nodes, tmp_path: Path) -> None:
    """When the results are closed, workers wait for the answers of calls in progress."""
    with CountingModel(delay=1) as model, place_of("sqlite", tmp_path) as place:
        spec = spec_of(place.address, model.url)

        async def some() -> int:
            results = RayEngine(address=nodes.address, workers=2, concurrency=8).results(
                spec, numbered(40)
            )
            async with aclosing(results):  # type: ignore[type-var]
                async for _ in results:
                    return model.answered
            return 0

        before = asyncio.run(some())
        answered = model.answered
        assert 0 < before < answered
        store = place.store()
        records = [one for run in store.runs() for one in store.read(run)[1]]
        assert sum(one.answered for one in records) == answered


def test_a_worker_refuses_another_version(nodes: Nodes, tmp_path: Path) -> None:
    """A batch of another version, or with another tree, ends with an error that says so."""
    with CountingModel(delay=0) as model, place_of("sqlite", tmp_path) as place:
        spec = spec_of(place.address, model.url)
        engine = RayEngine(address=nodes.address, workers=1)
        with pytest.raises(BatchError, match=r"mergepoint 9\.9\.9"):
            asyncio.run(all_results(engine, replace(spec, version="9.9.9"), 2))
        with pytest.raises(BatchError, match="fingerprint"):
            asyncio.run(all_results(engine, replace(spec, fingerprint="0" * 32), 2))
        assert model.answered == 0


def test_no_room_for_a_worker(nodes: Nodes, tmp_path: Path) -> None:
    """A cluster without room for a worker is an error that says what it has."""
    with CountingModel(delay=0) as model, place_of("sqlite", tmp_path) as place:
        spec = spec_of(place.address, model.url)
        engine = RayEngine(
            address=nodes.address, workers=1, start_timeout=3, actor_options={"num_cpus": 64}
        )
        with pytest.raises(BatchError, match="CPUs free"):
            asyncio.run(all_results(engine, spec, 2))


def test_another_cluster_than_the_connected_one(nodes: Nodes, tmp_path: Path) -> None:
    """A process that is connected to a cluster doesn't silently use it in place of another."""
    with CountingModel(delay=0) as model, place_of("sqlite", tmp_path) as place:
        spec = spec_of(place.address, model.url)
        with socket.create_server(("127.0.0.1", 0)) as other:
            address = f"127.0.0.1:{other.getsockname()[1]}"
            ray.init(address=nodes.address, log_to_driver=False, ignore_reinit_error=True)
            with pytest.raises(BatchError, match=f"{nodes.address}, not at {address}"):
                asyncio.run(all_results(RayEngine(address=address), spec, 1))


def test_versions_that_differ() -> None:
    """The versions of Python, Ray and mergepoint are compared, and those that differ are named."""
    ours = _versions()
    assert _difference(ours, ours) is None
    assert "Ray 2.40.0 on the driver" in str(_difference({**ours, "Ray": "2.40.0"}, ours))
    assert "Python 3.9 on the driver" in str(_difference({**ours, "Python": "3.9"}, ours))


@pytest.mark.parametrize("address", ["127.0.0.1:1", "http://127.0.0.1", "nowhere"])
def test_a_cluster_that_is_not_there(address: str, tmp_path: Path) -> None:
    """An address without a cluster is an error within seconds, not a hang."""
    began = time.monotonic()
    with CountingModel(delay=0) as model, place_of("sqlite", tmp_path) as place:
        spec = spec_of(place.address, model.url)
        with pytest.raises(BatchError, match="ray start --head"):
            asyncio.run(all_results(RayEngine(address=address), spec, 1))
    assert time.monotonic() - began < 20


def test_only_an_answer_that_was_read_counts() -> None:
    """The model's count leaves out an answer that arrived, and was never read."""
    body = json.dumps({"messages": [{"content": "Part 1 of q0."}]}).encode()
    request = b"POST / HTTP/1.1\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
    with CountingModel(delay=0) as model:
        host, port = model.url.split("/")[2].split(":")
        for read in (True, False, True):
            with socket.create_connection((host, int(port)), timeout=10) as client:
                client.sendall(request)
                if read:
                    assert client.recv(1000).endswith(b"}")
                else:
                    assert client.recv(1, socket.MSG_PEEK)
        waited(lambda: model.answered == 2, "the end of the connections", 10)
        assert model.repeated == 1


def test_a_numbers_check_comes_first() -> None:
    """An engine without workers is refused before anything is connected."""
    with pytest.raises(BatchError, match="workers is a number from 1, not 0"):
        RayEngine(workers=0)
