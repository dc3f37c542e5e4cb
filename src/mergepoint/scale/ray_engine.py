"""RayEngine: workers on a Ray cluster, as actors that prepare a target once and run many inputs.

Ray places the actors, notices deaths, and restarts them. An input of a dead actor goes to another
one; the journal answers the calls that were recorded. Only JSON text goes to and from an actor.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import platform
import socket
import threading
import warnings
from collections import deque
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib.metadata import version
from typing import Any, Final

from mergepoint.core.errors import MergepointError, describe_error, install_command
from mergepoint.scale.protocol import (
    LOST,
    BatchError,
    BatchInput,
    BatchResult,
    RunSpec,
    run_id_of,
)

_PROBE_SECONDS: Final = 5.0
_CONNECT_SECONDS: Final = 45.0
_CLOSE_SECONDS: Final = 30.0
_RESTART_SECONDS: Final = 1.0
_NO_USAGE_REPORT: Final = "RAY_USAGE_STATS_ENABLED"
_KEEP_DEVICES: Final = "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"


class RayEngine:
    """Runs a batch on a Ray cluster.

    Each worker is an actor, which takes one CPU unless `actor_options` says otherwise. The
    journals must be where every node reaches them: a PostgreSQL database, or a folder or SQLite
    database for nodes on one machine.

    Args:
        workers: Number of actors.
        address: Address of a cluster as "host:port", "auto" for the cluster of this machine, or
            None for the variable RAY_ADDRESS; without it, for a local cluster that ends with the
            batch. A process that is connected to a cluster already uses that one.
        concurrency: Most runs in progress, over all workers.
        max_attempts: Number of dead workers after which an input is a failed result.
        start_timeout: Seconds to wait for an actor while no other one is ready.
        actor_options: Options of the actors for Ray, such as `num_cpus`, `resources` or
            `runtime_env`.
        log: Whether Ray's own messages and the output of workers are printed.

    Raises:
        BatchError: A number is less than 1.
    """

    def __init__(
        self,
        *,
        workers: int = 2,
        address: str | None = None,
        concurrency: int = 100,
        max_attempts: int = 3,
        start_timeout: float = 120.0,
        actor_options: Mapping[str, Any] | None = None,
        log: bool = False,
    ) -> None:
        for name, number in (
            ("workers", workers),
            ("concurrency", concurrency),
            ("max_attempts", max_attempts),
        ):
            if isinstance(number, bool) or not isinstance(number, int) or number < 1:
                raise BatchError(f"{name} is a number from 1, not {number!r}")
        self._workers = workers
        self._address = address or os.environ.get("RAY_ADDRESS") or None
        self._each = max(1, -(-concurrency // workers))
        self._max_attempts = max_attempts
        self._start_timeout = start_timeout
        self._actor_options = dict(actor_options or {})
        self._log = log

    async def results(
        self, spec: RunSpec, inputs: AsyncIterator[BatchInput]
    ) -> AsyncIterator[BatchResult]:
        """Yield one result for each input, as they finish. Closing it ends the actors.

        Raises:
            MergepointError: Ray isn't installed.
            BatchError: The cluster doesn't answer, has no room for a worker, or its versions
                differ; or a worker can't prepare the target.
        """
        ray = _ray()
        ours = self._connect(ray)
        run = _ClusterRun(
            ray,
            spec,
            each=self._each,
            max_attempts=self._max_attempts,
            start_timeout=self._start_timeout,
            capacity=self._each * self._workers,
        )
        create = self._actor_factory(ray, spec)
        tasks = [asyncio.create_task(run.read(inputs))]
        tasks += [asyncio.create_task(run.keep_worker(create)) for _ in range(self._workers)]
        try:
            async for result in run.finished():
                yield result
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await run.close()
            if ours:
                ray.shutdown()

    def _actor_factory(self, ray: Any, spec: RunSpec) -> Any:
        options = {
            "num_cpus": 1,
            "scheduling_strategy": "SPREAD",
            **self._actor_options,
            # One more than the runs: `ready` must not wait behind them.
            "max_concurrency": self._each + 1,
            # Ray restarts the actor on any node. Inputs are given to others by this engine, since
            # only it counts the attempts of each.
            "max_restarts": -1,
            "max_task_retries": 0,
        }
        actor = ray.remote(_RayWorker).options(**options)
        text, versions = json.dumps(spec.to_plain()), json.dumps(_versions())
        return lambda: actor.remote(text, versions)

    def _connect(self, ray: Any) -> bool:
        """Connect to the cluster; return whether this engine must disconnect."""
        _keep_quiet(log=self._log)
        if ray.is_initialized():
            _check_same_cluster(ray, self._address)
            return False
        options: dict[str, Any] = {"log_to_driver": self._log, "configure_logging": self._log}
        if not self._log:
            options["logging_level"] = logging.ERROR
        if self._address is None:
            # In this thread: Ray's processes end with the thread that started them.
            cpus = max(os.cpu_count() or 1, self._workers * self._actor_options.get("num_cpus", 1))
            options |= {"num_cpus": cpus, "include_dashboard": False}
            ray.init(**options)
            return True
        if self._address != "auto":
            _probe(self._address)
        _connect_within(ray, self._address, options)
        return True


@dataclass(frozen=True, slots=True)
class _Order:
    """An input, and the number of actors that died with it."""

    given: BatchInput
    lost: int = 0


@dataclass(eq=False, slots=True)
class _LiveActor:
    """An actor that gets inputs until it dies, and how many it has."""

    actor: Any
    died: asyncio.Event
    running: int = 0


class _Orders:
    """The inputs that wait for an actor.

    The last attempt of an input is alone on its actor: if that dies, it died of this input, and
    takes no others with it. So one actor at a time is reserved for such inputs.
    """

    def __init__(self, max_attempts: int) -> None:
        self._max_attempts = max_attempts
        self._todo: deque[_Order] = deque()
        self._last: deque[_Order] = deque()
        self._reserved: _LiveActor | None = None
        self._changed = asyncio.Event()

    def put(self, order: _Order) -> None:
        """Add an input."""
        is_last = order.lost and order.lost + 1 >= self._max_attempts
        (self._last if is_last else self._todo).append(order)
        self._wake()

    async def take(self, live: _LiveActor) -> _Order:
        """Wait until there is an input for an actor, and return it."""
        while (order := self._find(live)) is None:
            await self._changed.wait()  # each change has an event of its own
        live.running += 1
        return order

    def end(self, live: _LiveActor) -> None:
        """Take notice that an input of an actor has ended."""
        live.running -= 1
        if live is self._reserved and not live.running:
            # Left for others, unless it takes the next one of this kind itself.
            self._reserved = None
        self._wake()

    def _find(self, live: _LiveActor) -> _Order | None:
        if live.died.is_set():
            return None
        if self._last and self._reserved in (None, live):
            self._reserved = live
            return None if live.running else self._last.popleft()
        return self._todo.popleft() if self._todo and live is not self._reserved else None

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


@dataclass
class _ClusterRun:
    """One batch on a cluster: the inputs on their way, and the actors that have them."""

    ray: Any
    spec: RunSpec
    each: int = 1
    max_attempts: int = 3
    start_timeout: float = 120.0
    capacity: int = 2

    def __post_init__(self) -> None:
        # Inputs that were read and whose results were not taken: memory stays flat, and while the
        # actors live no input waits here that would still start after the batch was stopped.
        self._room = asyncio.Semaphore(self.capacity)
        self._orders = _Orders(self.max_attempts)
        self._out: asyncio.Queue[BatchResult | BaseException | None] = asyncio.Queue()
        self._open = 0
        self._ended = False
        self._failed: Exception | None = None
        self._ready: set[Any] = set()
        self._actors: set[Any] = set()

    async def read(self, inputs: AsyncIterator[BatchInput]) -> None:
        """Read inputs while there is room."""
        try:
            while True:
                await self._room.acquire()
                given = await anext(inputs, None)
                if given is None:
                    break
                self._open += 1
                self._orders.put(_Order(given))
        except Exception as error:  # noqa: BLE001  (raised when the others are answered)
            self._failed = error
        self._ended = True
        self._out.put_nowait(None)

    async def finished(self) -> AsyncIterator[BatchResult]:
        """Yield the results until all inputs are read and answered."""
        while not (self._ended and self._open == 0):
            found = await self._out.get()
            if isinstance(found, BaseException):
                raise found
            if found is not None:
                self._open -= 1
                self._room.release()
                yield found
        if self._failed is not None:
            raise self._failed

    async def keep_worker(self, create: Any) -> None:
        """Create an actor and give it inputs; wait for it, or replace it, when it dies."""
        try:
            while True:
                actor = create()
                self._actors.add(actor)
                while await self._is_ready(actor):
                    self._ready.add(actor)
                    await self._feed(actor)
                    self._ready.discard(actor)
                self._actors.discard(actor)
                self.ray.kill(actor)
        except Exception as error:  # noqa: BLE001  (raised where the results are read)
            self._out.put_nowait(error)

    async def _is_ready(self, actor: Any) -> bool:
        """Wait until an actor is up; return whether it will ever be.

        Raises BatchError if it refuses the batch, or if there is no room for it or any other.
        """
        while True:
            asked = asyncio.ensure_future(_value(actor.ready.remote()))
            while not (await asyncio.wait([asked], timeout=self.start_timeout))[0]:
                self._check_started()
            try:
                problem = json.loads(asked.result())["problem"]
            except self.ray.exceptions.ActorUnavailableError:
                await asyncio.sleep(_RESTART_SECONDS)
            except self.ray.exceptions.RayActorError as error:
                # Creating it failed, as it would again: mergepoint isn't installed there, say.
                if "creation task" in str(error):
                    raise BatchError(
                        f"a worker can't start on the Ray cluster: {_first_lines(error)}; install "
                        "the same mergepoint on all nodes, or set runtime_env in actor_options"
                    ) from None
                return False
            else:
                break
        if problem is not None:
            raise BatchError(problem)
        return True

    def _check_started(self) -> None:
        """Raise BatchError if no worker is ready."""
        if not self._ready:
            raise BatchError(
                f"no worker started on the Ray cluster within {self.start_timeout:g} seconds: it "
                f"has {_resources(self.ray)}; add nodes, use fewer workers, or lower what each "
                "needs (actor_options={'num_cpus': 0.5})"
            )

    async def _feed(self, actor: Any) -> None:
        """Run inputs on an actor until it dies."""
        live = _LiveActor(actor, asyncio.Event())
        lanes = [asyncio.create_task(self._lane(live)) for _ in range(self.each)]
        try:
            await live.died.wait()
        finally:
            for lane in lanes:
                lane.cancel()
            ended = await asyncio.gather(*lanes, return_exceptions=True)
        for one in ended:
            if isinstance(one, Exception):
                raise one

    async def _lane(self, live: _LiveActor) -> None:
        while not live.died.is_set():
            order = await self._orders.take(live)
            try:
                await self._run(live, order)
            finally:
                self._orders.end(live)

    async def _run(self, live: _LiveActor, order: _Order) -> None:
        """Run an input on an actor, and hand over its result, or the input if the actor dies."""
        try:
            text = json.dumps(order.given.to_plain())
            answer = json.loads(await _value(live.actor.run.remote(text)))
        except asyncio.CancelledError:
            # Another lane met the death first; this one's answer is lost as well.
            if live.died.is_set():
                self._give_back(order)
            raise
        except self.ray.exceptions.RayActorError:
            live.died.set()
            self._give_back(order)
            return
        except BaseException:
            live.died.set()
            raise
        if "problem" in answer:
            live.died.set()
            raise BatchError(answer["problem"])
        result = BatchResult.from_plain(answer)
        self._out.put_nowait(replace(result, attempts=order.lost + 1))

    def _give_back(self, order: _Order) -> None:
        """Hand an input of a dead actor to another one, or fail it after too many deaths."""
        lost, given = order.lost + 1, order.given
        if lost < self.max_attempts:
            self._orders.put(_Order(given, lost))
            return
        message = (
            f"{lost} workers ended while they had this input; it may use too much memory, or stop "
            "the process. Its run can be resumed by itself"
        )
        self._out.put_nowait(
            BatchResult(
                id=given.id,
                status="failed",
                error={"type": LOST, "message": message, "path": ""},
                run_id=run_id_of(self.spec.batch, given.id),
                attempts=lost,
                number=given.number,
            )
        )

    async def close(self) -> None:
        """End the actors: they cancel their runs, which lets calls in progress finish."""
        actors, self._actors = list(self._actors), set()
        # One that isn't ready has no runs, and may never answer.
        ready = [one for one in actors if one in self._ready]
        closing = [asyncio.ensure_future(_value(one.close.remote())) for one in ready]
        if closing:
            await asyncio.wait(closing, timeout=_CLOSE_SECONDS)
        for one in closing:
            one.cancel()
        await asyncio.gather(*closing, return_exceptions=True)
        for actor in actors:
            self.ray.kill(actor)


class _RayWorker:
    """The actor: a `BatchWorker` behind methods that take and return JSON text."""

    def __init__(self, spec: str, versions: str) -> None:
        self._problem: str | None = None
        self._runs: set[asyncio.Task[BatchResult]] = set()
        try:
            self._problem = _difference(json.loads(versions), _versions())
            if self._problem is None:
                # Here and not above: importing it takes a second, and the driver has no need.
                from mergepoint.scale.worker import BatchWorker

                self._worker = BatchWorker(RunSpec.from_plain(json.loads(spec)))
        except Exception as error:  # noqa: BLE001  (the driver raises it)
            self._problem = f"a worker on {platform.node()} can't begin: {describe_error(error)}"

    async def ready(self) -> str:
        """Return why this worker can't run anything, None if it can."""
        return json.dumps({"problem": self._problem, "pid": os.getpid()})

    async def run(self, given: str) -> str:
        """Return the result of an input, or the problem that ends the batch."""
        place = f"a worker on {platform.node()}"
        run = asyncio.create_task(self._worker.run(BatchInput.from_plain(json.loads(given))))
        self._runs.add(run)
        try:
            result = await run
        except asyncio.CancelledError:
            return json.dumps({"problem": f"{place} was closed"})
        except Exception as error:  # noqa: BLE001  (the driver raises it)
            return json.dumps({"problem": f"{place} can't go on: {describe_error(error)}"})
        finally:
            self._runs.discard(run)
        return json.dumps(result.to_plain())

    async def close(self) -> None:
        """Cancel the runs, wait for their calls in progress, and close the store."""
        for one in (runs := list(self._runs)):
            one.cancel()
        await asyncio.gather(*runs, return_exceptions=True)
        if self._problem is None:
            await self._worker.close()


async def _value(ref: Any) -> Any:
    return await ref


def _versions() -> dict[str, str]:
    return {
        "mergepoint": version("mergepoint"),
        "Python": ".".join(platform.python_version_tuple()[:2]),
        "Ray": version("ray"),
    }


def _difference(driver: Mapping[str, str], worker: Mapping[str, str]) -> str | None:
    """Return an error that names the versions that differ, None if none does."""
    differing = [
        f"{name} {driver[name]} on the driver and {worker[name]} on {platform.node()}"
        for name in driver
        if driver[name] != worker[name]
    ]
    if not differing:
        return None
    return f"versions differ: {'; '.join(differing)}. Install the same versions on all machines"


def _ray() -> Any:
    """Return the module of Ray. Raises MergepointError if it isn't installed."""
    # Before the import: Ray reads both then. Nothing is sent to its makers unless the user asks.
    os.environ.setdefault(_NO_USAGE_REPORT, "0")
    os.environ.setdefault(_KEEP_DEVICES, "0")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # its dependencies' deprecations aren't ours
            import ray
            import ray.exceptions
    except ImportError as error:
        raise MergepointError(
            f"the engine 'ray' needs Ray, which is not installed: {install_command('ray')}"
        ) from error
    return ray


def _keep_quiet(*, log: bool) -> None:
    """Keep Ray's notes about dead workers from stdout, which is for results."""
    import ray._private.worker as private

    if not log:
        logging.getLogger("ray").setLevel(logging.ERROR)
    # There is no public setting: `log_to_driver` covers the output of workers only.
    if not log and hasattr(private, "_worker_logs_enabled"):
        private._worker_logs_enabled = False


def _probe(address: str) -> None:
    """Raise BatchError if nothing listens at an address, for which Ray would wait minutes."""
    host, _, port = address.rpartition(":")
    if "://" in address or not host or not port.isdigit():
        raise BatchError(
            f"{address!r} isn't the address of a Ray cluster; use HOST:PORT of its head node, as "
            "'ray start --head' prints it, or 'auto' on a machine of the cluster"
        )
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=_PROBE_SECONDS):
            pass
    except (OSError, OverflowError) as error:
        raise BatchError(
            f"no Ray cluster answers at {address}: {error}; start it with 'ray start --head', or "
            "pass the address that it printed"
        ) from None


def _check_same_cluster(ray: Any, address: str | None) -> None:
    """Raise BatchError if this process is connected to another cluster than the one asked for."""
    connected = ray.get_runtime_context().gcs_address
    if address in (None, "auto", connected):
        return
    _probe(str(address))
    raise BatchError(
        f"this process is connected to the Ray cluster at {connected}, not at {address}; call "
        "ray.shutdown() first, or pass address='auto' to use the cluster that it is connected to"
    )


def _connect_within(ray: Any, address: str, options: Mapping[str, Any]) -> None:
    """Connect to a cluster. Raises BatchError if it can't, or takes too long."""
    ended: list[BaseException | None] = []

    def connect() -> None:
        try:
            ray.init(address=address, **options)
            ended.append(None)
        except BaseException as error:  # noqa: BLE001  (raised below, in the caller's thread)
            ended.append(error)

    # In a thread: Ray tries for minutes at a port where something else listens.
    thread = threading.Thread(target=connect, name="ray-connect", daemon=True)
    thread.start()
    thread.join(_CONNECT_SECONDS)
    if not ended:
        raise BatchError(
            f"{address} answers, but not as a Ray cluster within {_CONNECT_SECONDS:g} seconds; "
            "pass the address that 'ray start --head' printed"
        )
    if ended[0] is not None:
        raise BatchError(
            f"can't connect to the Ray cluster at {address!r}: {_first_lines(ended[0])}"
        ) from ended[0]


def _first_lines(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return "; ".join(lines[:1] + lines[-1:] if len(lines) > 1 else lines) or type(error).__name__


def _resources(ray: Any) -> str:
    with suppress(Exception):
        total, free = ray.cluster_resources(), ray.available_resources()
        return f"{free.get('CPU', 0):g} of {total.get('CPU', 0):g} CPUs free"
    return "no known resources"
