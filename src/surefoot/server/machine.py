"""What the machine has to give: memory for keys and values, and a port."""

from __future__ import annotations

import ctypes
import os
import socket
import struct
import sys
from contextlib import suppress
from pathlib import Path

from surefoot.types import SurefootError

_ELSEWHERE = 2 * 1024**3  # bytes, where nobody says how much is free
_MEMINFO = Path("/proc/meminfo")
_CONTROL_GROUP = Path("/sys/fs/cgroup")
_SO_ATTACH_FILTER = 26  # Linux's; Python doesn't name it
_NO_HANDSHAKES = (  # a program for the kernel's packet filter: code, jumps if true and if false, operand
    (0x30, 0, 0, 13),  # load the byte with the TCP flags
    (0x54, 0, 0, 0x12),  # keep SYN and ACK
    (0x15, 0, 1, 0x02),  # SYN alone?
    (0x06, 0, 0, 0),  # then drop the packet
    (0x06, 0, 0, 0xFFFF_FFFF),  # else take all of it
)


def free_memory(meminfo: Path = _MEMINFO, control_group: Path = _CONTROL_GROUP) -> int:
    """Bytes that may still be taken without swapping: on Linux what the kernel calls available, or what the
    control group's limit leaves when that is less; elsewhere half of the memory there is, or 2 GiB."""
    available = _available(meminfo)
    left = _left_in(control_group)
    return available if left is None else min(available, left)


def kv_memory(free: int, needed: int) -> int:
    """Bytes for keys and values where none are given: half of what is free, since their store is copied when
    it grows, but no more than all requests in flight at their longest would need."""
    return max(1, min(free // 2, needed))


def bind(host: str, port: int) -> socket.socket:
    """A socket that is bound but doesn't listen yet, so that clients are refused until there is a server.
    Raises SurefootError when the host is none of this machine, or the port is taken."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (OSError, UnicodeError) as error:
        raise SurefootError(f"host: {host!r} is unknown: {_said(error)}") from error
    bound = socket.socket(family, kind, protocol)
    try:
        if os.name == "posix":  # elsewhere it would let two servers share a port
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except (OSError, OverflowError) as error:
        bound.close()
        raise SurefootError(f"port: {port} of {host} can't be had: {_said(error)}") from error
    return bound


def refuse_handshakes(listening: socket.socket) -> None:
    """From now on the kernel connects nobody to a socket that it hasn't begun to; who tries is refused once
    the socket is closed. On Linux alone: elsewhere nothing happens."""
    if sys.platform != "linux":
        return
    steps = b"".join(struct.pack("HBBI", *step) for step in _NO_HANDSHAKES)
    program = ctypes.create_string_buffer(steps)
    head = struct.pack("HP", len(_NO_HANDSHAKES), ctypes.addressof(program))
    with suppress(OSError):  # a kernel of somebody else's make need not know it
        listening.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, head)


def url_of(bound: socket.socket) -> str:
    host, port = bound.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _available(meminfo: Path) -> int:
    try:
        lines = meminfo.read_text().splitlines()
        return next(1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):
        pass
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    except (AttributeError, ValueError, OSError):  # no Unix, or one that doesn't say
        return _ELSEWHERE


def _left_in(control_group: Path) -> int | None:
    """None without a limit. What the group holds of files' pages can be had back, and counts as free."""
    try:
        limit = int((control_group / "memory.max").read_text())
        used = int((control_group / "memory.current").read_text())
        statistics = dict(line.split() for line in (control_group / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):  # "max" is no number
        return None
    return max(0, limit - used + int(statistics.get("inactive_file", 0)))


def _said(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
