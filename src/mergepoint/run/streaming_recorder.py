"""StreamingRecorder: a recorder that makes models stream, so that it hears each token."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any
from uuid import UUID

from mergepoint.run.recorder import Recorder


class StreamingRecorder(Recorder):
    """A Recorder by which models that can stream do, also where they are invoked.

    LangChain knows the handlers that want tokens by these two methods
    (`langchain_core.tracers._streaming`); it calls neither for a chat model.
    """

    def tap_output_aiter(self, run_id: UUID, output: AsyncIterator[Any]) -> AsyncIterator[Any]:
        """Give the output as it is."""
        return output

    def tap_output_iter(self, run_id: UUID, output: Iterator[Any]) -> Iterator[Any]:
        """Give the output as it is."""
        return output
