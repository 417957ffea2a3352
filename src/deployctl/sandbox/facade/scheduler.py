"""Which model is in memory, for how long, and who waits for a load: Ollama's scheduler, for a machine without GPU."""

from __future__ import annotations

import asyncio
import math
import time

from . import log
from .config import Config
from .engine import LoadOptions, Runner
from .errors import ApiError
from .store import Model, Store

# Two spaces, as in server/sched.go.
BUSY = "server busy, please try again.  maximum pending requests exceeded"


class Scheduler:
    """Loads, reuses, reloads and unloads runners. Must be made inside a running event loop."""

    def __init__(self, config: Config, store: Store) -> None:
        self._config, self._store = config, store
        self.runners: dict[str, Runner] = {}
        self._loading = asyncio.Lock()
        self._pending = 0
        self._background: set[asyncio.Task[None]] = set()

    def _usable(self, model: Model, options: LoadOptions) -> Runner | None:
        runner = self.runners.get(model.weights_digest)
        return runner if runner is not None and runner.alive and runner.options == options else None

    async def acquire(self, model: Model, options: LoadOptions, keep_alive: float | None) -> Runner:
        """Return a runner with these options, loaded when need be; ``release`` it afterwards.

        The queue limit counts only those who wait for a load: one that is being loaded and ``max_queue`` behind it.
        Raises ApiError 503 beyond that, 500 when the load fails.
        """
        runner = self._usable(model, options)
        if runner is None:
            if self._pending > self._config.max_queue:
                raise ApiError(503, BUSY)
            self._pending += 1
            try:
                async with self._loading:
                    runner = self._usable(model, options) or await self._load(model, options)
                    self._hold(runner)
            finally:
                self._pending -= 1
        else:
            self._hold(runner)
        if keep_alive is not None:
            runner.keep_alive = keep_alive
        return runner

    def _hold(self, runner: Runner) -> None:
        runner.references += 1
        runner.idle.clear()
        if runner.timer is not None:
            runner.timer.cancel()
            runner.timer = None

    def release(self, runner: Runner) -> None:
        """Give a runner back; the last one out starts the keep-alive clock."""
        runner.references -= 1
        if runner.references > 0:
            return
        runner.idle.set()
        runner.expires_at = time.time() + runner.keep_alive
        if runner.keep_alive <= 0:
            self._expire(runner)
        elif not math.isinf(runner.keep_alive):
            runner.timer = asyncio.get_running_loop().call_later(runner.keep_alive, self._expire, runner)

    def _expire(self, runner: Runner) -> None:
        if runner.references == 0:
            self._forget(runner)
            self._later(runner)

    def _later(self, runner: Runner) -> None:
        task = asyncio.get_running_loop().create_task(runner.stop())
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    def _forget(self, runner: Runner) -> None:
        if self.runners.get(runner.model.weights_digest) is runner:
            del self.runners[runner.model.weights_digest]

    async def _load(self, model: Model, options: LoadOptions) -> Runner:
        stale = self.runners.get(model.weights_digest)
        if stale is None and len(self.runners) >= self._config.max_loaded:
            stale = min(self.runners.values(), key=lambda runner: (runner.references, runner.expires_at))
        if stale is not None:
            if stale.alive:
                await stale.idle.wait()
            self._forget(stale)
            await stale.stop()
        runner = Runner(self._config, model, self._store.header(model), options)
        runner.on_exit = self._forget
        await runner.start()
        self.runners[model.weights_digest] = runner
        return runner

    async def unload(self, model: Model) -> None:
        """Put a model out of memory, as soon as nobody uses it."""
        runner = self.runners.get(model.weights_digest)
        if runner is not None:
            runner.keep_alive = 0
            self._expire(runner)

    async def close(self) -> None:
        """End every child."""
        runners = list(self.runners.values())
        self.runners.clear()
        for runner in runners:
            await runner.stop()
        for task in list(self._background):
            await task
        log.info("all runners stopped", count=len(runners))
