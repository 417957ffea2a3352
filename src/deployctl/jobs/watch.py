"""Watching the host while it is measured: is it still there, and is it still the plan."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from deployctl.errors import HostUnreachable
from deployctl.hosts.ssh import Session
from deployctl.hosts.tunnel import Tunnel
from deployctl.ollama.client import Server
from deployctl.telemetry.gates import judge
from deployctl.telemetry.proc import HostWindow
from deployctl.telemetry.sampler import Sampler

ALIVE_TIMEOUT_S = 10.0


class ServerWatch:
    """Is the server still there, and has it still the model: asked at every look of a probe.

    Requests that fail because the server or the model is gone say nothing about how many users the host holds.
    """

    def __init__(self, url: str, reference: str) -> None:
        self._server = Server(url, timeout_s=ALIVE_TIMEOUT_S)
        self._reference = reference

    def identity(self) -> dict[str, str]:
        """The server's version and the digest of its model. Raises HostUnreachable, ModelUnavailable."""
        return {"version": self._server.version(), "digest": self._server.find(self._reference).digest}

    def __call__(self, began_s: float, ended_s: float) -> tuple[str, ...]:
        """Raise HostUnreachable or ModelUnavailable when it is gone; a server that is merely slow is not gone."""
        del began_s, ended_s
        try:
            self._server.find(self._reference)
        except HostUnreachable as error:
            if not isinstance(error.__cause__, TimeoutError) and "imeout" not in type(error.__cause__).__name__:
                raise
        return ()


class Watch:
    """The gates of a probe: what the host did meanwhile that makes the probe say nothing about the plan.

    With ``enforce`` False the reasons are kept in ``noted`` and invalidate nothing: in the sandbox host, load generator
    and whatever else this machine does share the CPUs, and no plan is sold by its number.
    """

    def __init__(self, session: Session, tunnel: Tunnel, sampler: Sampler, *, enforce: bool) -> None:
        self.session = session
        self.tunnel = tunnel
        self.noted: dict[str, None] = {}
        self._sampler = sampler
        self._enforce = enforce

    def __call__(self, began_s: float, ended_s: float) -> tuple[str, ...]:
        """Judge the time between two moments of the monotonic clock.

        Raises HostUnreachable when the connection is gone: requests that fail for that are no answer of the host's.
        """
        self.check()
        reasons = judge(self._sampler.window(began_s, ended_s))
        if self._enforce:
            return reasons
        self.noted |= dict.fromkeys(reasons)
        return ()

    def so_far(self) -> HostWindow:
        """What the host did from the first sample to the last."""
        samples = self._sampler.samples
        return self._sampler.window(samples[0].at_s, samples[-1].at_s) if samples else self._sampler.window(0.0, 0.0)

    def check(self) -> None:
        """Raise HostUnreachable when session or tunnel is gone."""
        if not self.session.active:
            raise self.session.lost("while it was measured")
        if not self.tunnel.alive():
            raise HostUnreachable(
                f"the tunnel to {self.tunnel.target} broke while it was measured",
                hint="the samples so far are kept; run the same command again",
            )


@contextmanager
def watching(session: Session, tunnel: Tunnel, *, enforce: bool) -> Iterator[Watch]:
    """Sample the host for the duration of the block."""
    with Sampler(session) as sampler:
        yield Watch(session, tunnel, sampler, enforce=enforce)
