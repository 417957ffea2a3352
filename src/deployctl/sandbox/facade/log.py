"""Log lines on standard error in the shape of Ollama's journal, and Ollama's time stamps."""

from __future__ import annotations

import contextlib
import os
import time

_stamp = (0, "")


def rfc3339(now_ns: int) -> str:
    """Render nanoseconds since the epoch as UTC. The whole second is kept from call to call: this runs per token."""
    global _stamp
    second, rest = divmod(now_ns, 1_000_000_000)
    if second != _stamp[0]:
        _stamp = (second, time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second)))
    return f"{_stamp[1]}.{rest:09d}Z"


def _quote(value: object) -> str:
    text = str(value)
    if text and not any(c in text for c in ' "=\n'):
        return text
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def write(data: bytes) -> None:
    """Write raw bytes to standard error; a closed one is no reason to stop serving."""
    with contextlib.suppress(OSError):
        os.write(2, data)


def info(message: str, level: str = "INFO", **fields: object) -> None:
    """Write one line: ``time=… level=INFO source=embedded msg="…" key=value``."""
    pairs = "".join(f" {key}={_quote(value)}" for key, value in fields.items())
    now = rfc3339(time.time_ns())
    write(f"time={now} level={level} source=embedded msg={_quote(message)}{pairs}\n".encode())


def access(status: int, seconds: float, peer: str, method: str, path: str) -> None:
    """Write the line that Ollama's web framework writes after each request."""
    now = time.strftime("%Y/%m/%d - %H:%M:%S")
    write(f'[GIN] {now} | {status} | {seconds:12.6f}s | {peer:>15} | {method:<8} "{path}"\n'.encode())
