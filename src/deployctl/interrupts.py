"""Ctrl-C and its kin, delivered even where Python swallows one (an exception inside a finaliser is only printed)."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

_pending = False


def install() -> None:
    """Let SIGINT, SIGTERM and SIGHUP raise KeyboardInterrupt; what is ignored (nohup) stays ignored."""
    sys.unraisablehook = partial(_unraisable, sys.unraisablehook)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _handle)


def check() -> None:
    """Raise the KeyboardInterrupt of a signal that has not been heard yet; jobs ask at every event."""
    global _pending
    if _pending:
        _pending = False
        raise KeyboardInterrupt


def _unraisable(otherwise: Callable[[Any], object], unraisable: Any) -> None:
    """Keep quiet about a swallowed Ctrl-C: ``check`` raises it again, and nobody wants its traceback on the screen."""
    if not issubclass(unraisable.exc_type, KeyboardInterrupt):
        otherwise(unraisable)


def _handle(number: int, frame: object) -> None:
    del number, frame
    global _pending
    _pending = True
    raise KeyboardInterrupt
