"""Two seconds on the host: how fast its CPUs read memory together. Decode speed on a CPU follows from it."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from deployctl.catalog.plans import Plan, ProbedPlan
from deployctl.errors import HostError
from deployctl.hosts.facts import HostFacts
from deployctl.sizing.speed import VECTORS, vectors_of

if TYPE_CHECKING:
    from deployctl.hosts.ssh import Session

SECONDS = 2.0
LEAST_GB_S, MOST_GB_S = 0.2, 4000.0

# Looking for a byte that is not there (memchr of the C library) reads memory as fast as vector loads written in C do;
# docs/sizing.md has the comparison. One process per CPU, each with a block that no cache holds, all at the same time.
SCRIPT = """
import os, sys, time
count, seconds = int(sys.argv[1]), float(sys.argv[2])
size = 256 << 20 if count < 8 else 64 << 20
try:
    pages = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    size = min(size, max(16 << 20, pages // (4 * count)))
except (ValueError, OSError):
    pass
gate, opener = os.pipe()
sums = []
for _ in range(count):
    out, into = os.pipe()
    if os.fork() == 0:
        os.close(opener)
        block = bytearray(b"\\1") * size
        os.write(into, b"r")
        os.read(gate, 1)
        begun, done = time.monotonic(), 0
        while time.monotonic() - begun < seconds:
            block.find(b"\\2")
            done += size
        os.write(into, b"%d" % (done / (time.monotonic() - begun)))
        os._exit(0)
    os.close(into)
    sums.append(out)
for out in sums:
    os.read(out, 1)
os.close(opener)
print(sum(int(os.read(out, 32) or b"0") for out in sums))
"""


@dataclass(frozen=True)
class HostProbe:
    """Memory bandwidth of all CPUs together in GB/s (10^9), None where it was not measured; and the vector units."""

    memory_bandwidth_gb_s: float | None
    vectors: str
    note: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return the block for the record."""
        return {"memory_bandwidth_gb_s": self.memory_bandwidth_gb_s, "vectors": self.vectors, "note": self.note}

    @property
    def words(self) -> str:
        """One line for people."""
        if self.memory_bandwidth_gb_s is None:
            return f"{self.vectors}; {self.note}"
        return f"memory reads at {self.memory_bandwidth_gb_s:.1f} GB/s, {self.vectors}"

    def sharpened(self, plan: Plan) -> Plan:
        """Return the plan with what was measured where that is less than what is sold, or where nothing is known."""
        found = self.memory_bandwidth_gb_s
        if found is None or plan.gpus:
            return plan
        sold = plan.memory_bandwidth_gb_s
        measured: dict[str, Any] = {"memory_bandwidth_gb_s": min(found, sold or found)}
        measured |= {"vectors": self.vectors} if self.vectors in VECTORS else {}
        return ProbedPlan.model_validate(plan.model_dump() | measured)


def probe_host(session: Session, facts: HostFacts, cpus: int, *, seconds: float = SECONDS) -> HostProbe:
    """Measure with the host's own Python; without one, or when it fails, say so and leave the bandwidth open."""
    vectors = vectors_of(facts.cpu_flags)
    if not facts.python:
        return HostProbe(None, vectors, "no Python on the host yet: its memory bandwidth was not measured")
    command = f"{shlex.quote(facts.python)} - {max(1, cpus)} {seconds:g}"
    try:
        done = session.run(command, stdin=SCRIPT, timeout=seconds + 60)
    except HostError as error:
        return HostProbe(None, vectors, f"its memory bandwidth was not measured: {error.message}")
    return read_probe(done.stdout if done.rc == 0 else "", vectors)


def read_probe(said: str, vectors: str) -> HostProbe:
    """Read the script's answer, bytes per second; what no memory reaches is no answer."""
    word = said.strip()
    rate = int(word) / 1e9 if word.isdecimal() and len(word) < 20 else 0.0
    if not LEAST_GB_S <= rate <= MOST_GB_S:
        return HostProbe(None, vectors, "its memory bandwidth was not measured: the probe gave no figure")
    return HostProbe(round(rate, 2), vectors)
