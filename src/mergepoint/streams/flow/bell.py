"""Bell: what a task waits for, and others ring."""

from __future__ import annotations

import asyncio


class Bell:
    """Wakes all who wait. Who is woken looks again at what it waited for."""

    __slots__ = ("waiting",)

    def __init__(self) -> None:
        self.waiting: list[asyncio.Future[None]] = []

    async def wait(self) -> None:
        """Wait until it rings."""
        ring = asyncio.get_running_loop().create_future()
        self.waiting.append(ring)
        await ring

    def ring(self) -> None:
        """Wake all who wait now."""
        if self.waiting:
            for ring in self.waiting:
                if not ring.done():  # a cancelled one stays in the list until now
                    ring.set_result(None)
            self.waiting.clear()
