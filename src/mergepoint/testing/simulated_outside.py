"""What a simulated loop refuses: everything that reaches out of its process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NoReturn

REFUSED = (
    "add_reader",
    "add_signal_handler",
    "add_writer",
    "connect_accepted_socket",
    "connect_read_pipe",
    "connect_write_pipe",
    "create_connection",
    "create_datagram_endpoint",
    "create_server",
    "create_unix_connection",
    "create_unix_server",
    "getaddrinfo",
    "getnameinfo",
    "sendfile",
    "sock_accept",
    "sock_connect",
    "sock_recv",
    "sock_recv_into",
    "sock_recvfrom",
    "sock_recvfrom_into",
    "sock_sendall",
    "sock_sendfile",
    "sock_sendto",
    "start_tls",
    "subprocess_exec",
    "subprocess_shell",
)


class Inside(asyncio.BaseEventLoop):
    """An event loop without an outside: each method of REFUSED raises RuntimeError."""


def _refusing(name: str) -> Callable[..., NoReturn]:
    def refuse(self: Inside, *args: object, **options: object) -> NoReturn:
        raise RuntimeError(
            f"{name}: a simulated loop has no sockets, processes and signals, since no seed "
            "decides what they do; give the code under test a fake of what it talks to"
        )

    return refuse


for _name in REFUSED:
    setattr(Inside, _name, _refusing(_name))
