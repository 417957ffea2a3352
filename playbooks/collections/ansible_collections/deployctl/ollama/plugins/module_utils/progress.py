"""Leaves the progress of a running module in a small file, for whoever started it to read meanwhile."""

from __future__ import annotations

import contextlib
import os
import time

_EVERY_S = 0.5


class Progress:
    """Writes ``message: current/total bytes`` to ``path`` now and then; without a path it does nothing."""

    def __init__(self, path):
        self._path = path
        self._last = 0.0
        if path:
            # The name is random and the file is made anew: nobody can have put a link there before us.
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | getattr(os, "O_NOFOLLOW", 0), 0o644))

    def say(self, message, current, total):
        """Note how far it has come, in bytes."""
        now = time.monotonic()
        if not self._path or now - self._last < _EVERY_S:
            return
        self._last = now
        new = self._path + ".new"
        with open(new, "w", encoding="utf-8") as file:
            file.write("%s: %d/%d bytes\n" % (message, current, total))
        os.replace(new, self._path)

    def close(self):
        """Remove the file."""
        if self._path:
            with contextlib.suppress(OSError):
                os.unlink(self._path)
