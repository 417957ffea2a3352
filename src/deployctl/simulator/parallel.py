"""Work spread over processes that die with the one that asked for it."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import TypeVar

Task = TypeVar("Task")
Done = TypeVar("Done")
_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def usable_cores() -> int:
    """Return the number of cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def spread(function: Callable[[Task], Done], tasks: Sequence[Task], workers: int | None = None) -> Iterator[Done]:
    """Yield ``function(task)`` of every task as it is done, in any order; ``workers`` None: one per usable core.

    Function, tasks and results are pickled. One worker, or one task, needs no other process. An error in a task is
    raised here and ends the workers, as does leaving the loop.
    """
    count = min(workers or usable_cores(), len(tasks))
    if count <= 1:
        yield from map(function, tasks)
        return
    # Not a fork of this process: it may have threads.
    context = multiprocessing.get_context("spawn")
    executor = ProcessPoolExecutor(count, mp_context=context, initializer=_die_with_parent, initargs=(os.getpid(),))
    before = set(multiprocessing.active_children())
    try:
        futures = [executor.submit(function, task) for task in tasks]
        mine = set(multiprocessing.active_children()) - before
        for future in as_completed(futures):
            yield future.result()
    except BaseException:
        executor.shutdown(wait=False, cancel_futures=True)
        for child in mine:
            child.kill()
        raise
    finally:
        executor.shutdown(wait=True, cancel_futures=True)


def _die_with_parent(parent: int) -> None:
    # A terminal's Ctrl-C reaches the workers too: they go at once and without a traceback.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)
