"""One ``llama-server`` child: its command line, its start, its log, its slots and its end."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import re
import shlex
import signal
import socket
import time
from collections import deque
from dataclasses import dataclass
from typing import Callable

from . import log
from .config import Config
from .errors import ApiError
from .gguf import Header
from .store import Model

_BUFFER_SIZE = re.compile(rb"buffer size = +([0-9.]+) MiB")
# What Ollama takes for the reason when its child dies (llm/status.go).
_ERROR_MARKS = (b"error:", b"Error:", b"error loading model", b"GGML_ASSERT", b"llama_init_from_model:", b"failed to")
_OUT_OF_MEMORY = ("out of memory", "failed to allocate", "allocation failed", "not enough memory")
_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


def die_with_parent() -> None:
    """Run between fork and exec: the kernel kills this child when the thread that forked it ends.

    The façade forks from its main thread alone, which lives as long as the process.
    """
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


@dataclass(frozen=True)
class LoadOptions:
    """The options whose change makes Ollama load anew. Tokens and counts; 0 threads: the engine decides."""

    num_ctx: int
    num_batch: int = 512
    num_thread: int = 0


def command(config: Config, model: Model, header: Header, options: LoadOptions, port: int) -> list[str]:
    """Build the child's command line, flag for flag as Ollama does on a machine without a GPU."""
    slots = config.num_parallel
    argv = [
        os.path.join(config.library, "llama-server"),
        *("--model", model.weights, "--port", str(port), "--host", "127.0.0.1", "--no-webui", "--offline"),
        *("-c", str(options.num_ctx * slots), "-np", str(slots)),
        # The lines with buffer sizes have this level.
        *("--log-verbosity", "4", "--no-log-prefix", "--no-log-timestamps"),
    ]
    if not header.chat_template:
        argv += ["--no-jinja", "--chat-template", "chatml"]  # never used: prompts come rendered
    if config.kv_cache_type:
        argv += ["--cache-type-k", config.kv_cache_type, "--cache-type-v", config.kv_cache_type]
    argv += ["--flash-attn", config.flash_attention, "-b", str(options.num_batch), "-ub", str(options.num_batch)]
    if options.num_thread > 0:
        argv += ["-t", str(options.num_thread)]
    return argv


def environment(config: Config) -> dict[str, str]:
    """Return the child's environment: ours (LLAMA_ARG_* pass through) and what keeps the engine civil."""
    env = dict(os.environ)
    path = env.get("LD_LIBRARY_PATH", "")
    env["LD_LIBRARY_PATH"] = config.library + (f":{path}" if path else "")
    # libgomp's busy waiting starves everybody once another process wants a core (41 → 0.6 tok/s was measured).
    env.setdefault("GOMP_SPINCOUNT", "1000")
    # On a crash ggml starts a debugger, which would outlive the parent-death signal.
    env["GGML_NO_BACKTRACE"] = "1"
    # Fitting layers to a GPU's memory costs half a second per load and changes nothing without a GPU.
    env.setdefault("LLAMA_ARG_FIT", "off")
    return env


class Slots:
    """A first-in-first-out semaphore: Ollama's queue in front of a loaded model, without a bound."""

    def __init__(self, count: int) -> None:
        self._free = count
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def acquire(self) -> None:
        """Take a slot, after everybody who came earlier."""
        if self._free > 0 and not self._waiting:
            self._free -= 1
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # the slot was handed over in the same breath
                self.release()
            else:
                self._waiting.remove(turn)
            raise

    def release(self) -> None:
        """Give the slot to the next in line."""
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1


class Runner:
    """A model in memory. ``references`` counts the requests that use it or wait for a slot of it."""

    def __init__(self, config: Config, model: Model, header: Header, options: LoadOptions) -> None:
        self.config, self.model, self.header, self.options = config, model, header, options
        self.slots = Slots(config.num_parallel)
        self.references = 0
        self.keep_alive = config.keep_alive
        self.expires_at = 0.0
        self.timer: asyncio.TimerHandle | None = None
        self.idle = asyncio.Event()
        self.idle.set()
        self.port = 0
        self.bytes = 0
        self.last_error = ""
        self.on_exit: Callable[[Runner], None] | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._log_task: asyncio.Task[None] | None = None
        self._active = 0.0
        self._ready = False

    @property
    def alive(self) -> bool:
        """Whether the child runs."""
        if self._process is None or self._process.returncode is not None:
            return False
        try:  # asyncio hears of a death a moment late, and the next request may be here first
            return os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None
        except ChildProcessError:
            return False

    async def settled(self, patience_s: float = 0.5) -> None:
        """Wait a moment for a child that broke off to be seen dead: whoever is told of it may come again at once."""
        end = time.monotonic() + patience_s
        while self.alive and time.monotonic() < end and not await self._healthy():
            await asyncio.sleep(0.01)

    async def start(self) -> None:
        """Start the child and wait until it answers. Raises ApiError 500 in Ollama's words.

        When the caller is cancelled (the client that asked for the load hung up) the load is given up.
        """
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        argv = command(self.config, self.model, self.header, self.options, self.port)
        log.info("starting llama-server", cmd=shlex.join(argv))
        started = self._active = time.monotonic()
        try:
            self._process = await asyncio.create_subprocess_exec(
                *argv,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                env=environment(self.config),
                preexec_fn=die_with_parent,
            )
        except OSError as error:
            raise ApiError(500, f"error starting llama-server: {error}") from error
        self._log_task = asyncio.get_running_loop().create_task(self._relay_log(self._process))
        try:
            await self._wait_until_ready()
        except BaseException:
            await self.stop()
            raise
        self._ready = True
        self.last_error = ""
        log.info(f"llama-server started in {time.monotonic() - started:.2f} seconds")

    async def _wait_until_ready(self) -> None:
        assert self._process is not None
        assert self._log_task is not None
        while True:
            if self._process.returncode is not None:
                await asyncio.wait([self._log_task], timeout=1.0)
                code = self._process.returncode
                status = f"signal: {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"
                if any(mark in self.last_error.lower() for mark in _OUT_OF_MEMORY):
                    raise ApiError(500, f"llama-server reported out-of-memory during startup: {self.last_error}")
                detail = f": {self.last_error}" if self.last_error else ""
                raise ApiError(500, f"llama-server process has terminated: {status}{detail}")
            if time.monotonic() - self._active > self.config.load_timeout:
                raise ApiError(500, f"timed out waiting for llama-server to start - {self.last_error}")
            if await self._healthy():
                return
            await asyncio.sleep(0.05)

    async def _healthy(self) -> bool:
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        except OSError:
            return False
        try:
            writer.write(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            return b" 200 " in await reader.readline()
        except OSError:
            return False
        finally:
            writer.close()

    async def _relay_log(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        rest = b""
        while True:
            data = await process.stdout.read(65536)
            if not data:
                break
            log.write(data)
            if self._ready and b"rror" not in data and b"ailed" not in data:
                continue
            self._active = time.monotonic()
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                self._read_log_line(line)
        await process.wait()
        if self._ready:
            log.info("llama-server process has ended", level="WARN", status=process.returncode)
        if self.on_exit is not None:
            self.on_exit(self)

    def _read_log_line(self, line: bytes) -> None:
        size = _BUFFER_SIZE.search(line)
        if size is not None:
            self.bytes += int(float(size[1]) * 1024 * 1024)
        elif any(mark in line for mark in _ERROR_MARKS):
            self.last_error = line.decode("utf-8", "replace").strip()[:2000]

    async def stop(self) -> None:
        """End the child; returns when it is gone."""
        if self.timer is not None:
            self.timer.cancel()
        self._ready = False
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
        if self._log_task is not None:
            await asyncio.wait([self._log_task])
