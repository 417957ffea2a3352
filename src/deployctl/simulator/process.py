"""The socket simulator in a child process of its own, for as long as a block runs."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from deployctl.errors import MeasurementError
from deployctl.simulator.app import Options
from deployctl.simulator.scenario import Scenario


@contextmanager
def running_simulator(scenario: Scenario, *, options: Options | None = None, port: int = 0) -> Iterator[str]:
    """Serve ``scenario`` on loopback and yield its URL; the child ends with the block, or with this process.

    The served model is ``options.model`` (``sim:latest``). Raises MeasurementError when the child does not come up.
    """
    chosen = options or Options()
    command = [sys.executable, "-m", "deployctl.simulator.server", "--scenario", "-", "--port", str(port)]
    command += ["--model", chosen.model, "--context", str(chosen.context), "--seed", str(chosen.seed)]
    command += ["--error-share", str(chosen.faults.error_share), "--cut-share", str(chosen.faults.cut_share)]
    # Its own session: a Ctrl-C is for the parent, which then closes the pipe.
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as child:
        try:
            assert child.stdin is not None
            assert child.stdout is not None
            child.stdin.write(scenario.model_dump_json() + "\n")
            child.stdin.flush()
            line = child.stdout.readline()
            if not line:
                raise MeasurementError(f"the simulator for {scenario.name} did not start (exit {child.wait()})")
            yield str(json.loads(line)["url"])
        finally:
            child.kill()
