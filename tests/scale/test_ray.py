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
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.journal.places import place_of
from tests.scale.fleet import (
    CALLS,
    CountingModel,
    all_results,
    is_right,
    lines_of,
    spec_of,
    waited,
)

from mergepoint.journal.stores import Store
from mergepoint.scale import BatchError
from mergepoint.scale.protocol import run_id_of
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

        head = {"num_cpus": 0, "include_dashboard": False, **NODE}
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


def driver(nodes: Nodes, spec: Any, count: int, out: Path) -> subprocess.Popen[bytes]:
    """Start a driver in a process of its own."""
    options = {"address": nodes.address, "workers": KILLS, "concurrency": KILLS}
    words = ["ray", json.dumps(options), json.dumps(spec.to_plain()), str(count), str(out)]
    command = [sys.executable, "-m", "tests.scale.fleet", *words]
    with out.with_suffix(".stdout").open("ab") as stdout:
        return subprocess.Popen(command, cwd=ROOT, stdout=stdout)  # noqa: S603  (our own words)


def grown(out: Path) -> Callable[[], bool]:
    """Return a function that tells whether a file has three more results."""
    known = len(lines_of(out))
    return lambda: len(lines_of(out)) >= known + 3


def check_calls(model: CountingModel, store: Store, count: int) -> None:
    """Check that no recorded call was made again, and hardly any whose answer was read."""
    found = Counter[str]()
    for number in range(count):
        _, records = store.read(run_id_of("fleet", f"q{number}"))
        for record in records:
            found[str(record.prompt)] += record.answered
            # Both are times of this machine, and a record's end is after its answer.
            assert model.last[str(record.prompt)] <= record.ended
    assert set(found.values()) == {1}
    assert len(found) == count * CALLS
    # An answer can be read, and its process killed before it is recorded.
    assert model.repeated <= max(2, LOST_SHARE * count * CALLS)


@pytest.mark.parametrize("kind", ["postgresql", "sqlite"])
def test_a_batch_outlives_workers_a_node_and_its_driver(
    kind: str, nodes: Nodes, tmp_path: Path
) -> None:
    """400 inputs end right, and hardly a finished call is made again, though 8 workers die."""
    count = 400 if kind == "postgresql" else 60
    kills, longest = (KILLS, 8.0) if kind == "postgresql" else (2, 2.0)
    chance = random.Random(13)  # noqa: S311  (moments of kills)
    out = tmp_path / "results.jsonl"
    with CountingModel(delay=0.4) as model, place_of(kind, tmp_path) as place:
        spec = spec_of(place.address, model.url)
        running = driver(nodes, spec, count, out)
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
                running = driver(nodes, spec, count, out)
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
