"""Refused: whether a failed attempt certainly cost nothing."""

from __future__ import annotations

from collections.abc import Iterator

_WORKED_ON = {408, 499}  # timeouts: the answer may have been made
_NOT_REACHED = {"ConnectError", "ConnectTimeout", "ConnectionRefusedError"}


def was_refused(error: BaseException | None) -> bool:
    """Say whether the provider refused the request, or never got it.

    A status from 400 to 499 that is no timeout, or no connection. Of anything else, such as a
    timeout or a connection that broke, nobody on this side knows.
    """
    for cause in _causes(error):
        if type(cause).__name__ in _NOT_REACHED:
            return True
        status = getattr(cause, "status_code", None)
        if status is None:
            status = getattr(getattr(cause, "response", None), "status_code", None)
        if isinstance(status, int):
            return 400 <= status < 500 and status not in _WORKED_ON
    return False


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__
