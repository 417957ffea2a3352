"""The simulator behind real sockets, as a process: ``python -m deployctl.simulator.server --scenario FILE --port 0``.

Prints one JSON line ``{"url": …, "scenario": …}`` when it listens. With ``--scenario -`` the first line of standard
input is the scenario as JSON, and the server ends when standard input does: it cannot outlive whoever started it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import json
import sys
from collections.abc import Callable
from pathlib import Path

from deployctl.errors import DeployctlError, UsageError
from deployctl.simulator.app import App, Faults, Options
from deployctl.simulator.http import HttpProtocol, new_event_loop
from deployctl.simulator.scenario import Scenario, load_scenario, parse_scenario


def serve(
    scenario: Scenario,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    options: Options | None = None,
    announce: Callable[[str], None] | None = None,
    until_stdin_ends: bool = False,
) -> None:
    """Serve ``scenario`` until interrupted; ``announce`` gets the URL once it listens (port 0: a free one).

    Raises UsageError when the address cannot be bound.
    """

    async def run() -> None:
        loop = asyncio.get_running_loop()
        app = App(scenario, options or Options(), loop)
        try:
            listener = await loop.create_server(lambda: HttpProtocol(app), host, port, backlog=4096)
        except OSError as error:
            raise UsageError(
                f"cannot listen on {host}:{port}: {error.strerror or error}", hint="use --port 0"
            ) from None
        async with listener:
            if announce is not None:
                address = listener.sockets[0].getsockname()
                name = f"[{address[0]}]" if ":" in address[0] else address[0]
                announce(f"http://{name}:{address[1]}")
            # A full collection over the imported modules would stop the clock for tens of milliseconds.
            gc.collect()
            gc.freeze()
            await (_end_of_stdin(loop) if until_stdin_ends else asyncio.Event().wait())

    with asyncio.Runner(loop_factory=new_event_loop) as runner, contextlib.suppress(KeyboardInterrupt):
        runner.run(run())


async def _end_of_stdin(loop: asyncio.AbstractEventLoop) -> None:
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    await reader.read()


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="deployctl.simulator.server", description=__doc__.splitlines()[0] if __doc__ else ""
    )
    parser.add_argument("--scenario", required=True, help="a scenario file, or - to read JSON from standard input")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one")
    parser.add_argument("--model", default="sim:latest", help="the name under which the model is served")
    parser.add_argument("--context", type=int, default=Options.context, help="tokens per slot")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--error-share", type=float, default=0.0, help="share of answers that end in an error line")
    parser.add_argument("--cut-share", type=float, default=0.0, help="share of answers whose connection is cut")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    """Run the server from a command line; returns the exit code."""
    parsed = _parse(arguments)
    piped = parsed.scenario == "-"
    try:
        scenario = parse_scenario(json.loads(sys.stdin.readline())) if piped else load_scenario(Path(parsed.scenario))
        serve(
            scenario,
            host=parsed.host,
            port=parsed.port,
            options=Options(parsed.model, parsed.context, parsed.seed, Faults(parsed.error_share, parsed.cut_share)),
            announce=lambda url: _say({"url": url, "scenario": scenario.name}),
            until_stdin_ends=piped,
        )
    except DeployctlError as error:
        sys.stderr.write(f"{error.message}\n" + (f"{error.hint}\n" if error.hint else ""))
        return error.exit_code
    return 0


def _say(line: dict[str, str]) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
