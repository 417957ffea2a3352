"""One run at a time on a host, with a line in its audit log."""

from __future__ import annotations

import secrets
from contextlib import AbstractContextManager, nullcontext
from datetime import UTC, datetime

from deployctl.hosts.lock import only_run
from deployctl.jobs.reach import Reached


def guarded(
    reached: Reached, what: str, *, run: str | None = None, keep_audit: bool = True
) -> AbstractContextManager[None]:
    """Lock the host for the block and note its begin and end there; the sandbox has a lock of its own.

    ``run`` names the run; without one a name of the same form is made. Raises HostBusy.
    """
    if reached.sandbox:
        return nullcontext()
    run = run or f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{secrets.token_hex(2)}"
    return only_run(reached.session, run, what, keep_audit=keep_audit)
