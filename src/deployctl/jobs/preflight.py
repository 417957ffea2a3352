"""What the facts of a host mean for the work: what would stop it, and what somebody should know first. Pure."""

from __future__ import annotations

from deployctl.hosts.facts import HostFacts
from deployctl.hosts.gpus import too_old
from deployctl.units import format_bytes

STEAL = 0.02  # of CPU time; beyond it a neighbour is felt
CLOCK_S = 30.0  # certificates and logs mind a clock that is further off
# Where the roles put programs that must start, and what they run on the way.
PROGRAMS = ("/", "/usr", "/usr/local", "/usr/local/bin", "/usr/local/lib")
SPARE = ("/tmp", "/var/tmp", "/home", "/var")  # noqa: S108 - names to look for, nothing is written there
X86 = ("x86_64", "amd64")


def problems_of(facts: HostFacts, *, become: bool) -> tuple[str, ...]:
    """What provisioning would stumble over."""
    problems = []
    if become and not facts.systemd:
        problems.append("no systemd: the service cannot be installed")
    if facts.arch in X86 and facts.cpu_flags and "avx" not in facts.cpu_flags:
        problems.append("the CPU type of this machine hides AVX: inference would crawl (choose CPU type 'host')")
    blocked = [mount for mount in facts.noexec if mount in PROGRAMS]
    if become and blocked:
        problems.append(f"{blocked[0]} is mounted noexec: the engine cannot be started there (remount it with exec)")
    if become and facts.ollama_origin == "container" and facts.port_taken:
        problems.append("an Ollama in a container holds port 11434: stop the container first (docker ps)")
    return tuple(problems)


def models_warning(facts: HostFacts, models_dir: str | None) -> tuple[str, ...]:
    """A models directory that was named lies on the system's own disk: nothing is mounted there, or it is misspelt."""
    disk = facts.disk_for(models_dir) if models_dir else None
    if disk is None or disk.mount != "/":
        return ()
    return (f"{models_dir} is on the system's own disk ({format_bytes(disk.free_bytes)} free): none is mounted there",)


def warnings_of(facts: HostFacts) -> tuple[str, ...]:
    """What does not stop the work and will be felt in it."""
    found = []
    if facts.arch in X86 and "avx" in facts.cpu_flags and "avx2" not in facts.cpu_flags:
        found.append("the CPU has no AVX2: expect about half the speed of one that has")
    if facts.gpu_problem:
        found.append(f"GPU: {facts.gpu_problem}; the engine would run on the CPU without a word")
    found += [f"{sentence}: it would compute on the CPU without a word" for sentence in too_old(facts.gpus)]
    # Since boot where the look was too short to tell.
    for share, when in ((facts.steal, "now"), (facts.steal_since_boot, "since boot")):
        if share is not None and share > STEAL:
            found.append(f"{share:.0%} of the CPU time is stolen {when}: a neighbour on the same machine is busy")
            break
    if facts.numa_nodes > 1:
        found.append(f"memory lies on {facts.numa_nodes} NUMA nodes: speed varies with where the process runs")
    if not facts.ipv4:
        found.append("no way out over IPv4, and the model registry has no IPv6: bring the weights (--gguf FILE)")
    if facts.time_offset_s is not None and abs(facts.time_offset_s) > CLOCK_S:
        found.append(f"its clock is {facts.time_offset_s:+.0f} s off ours: certificates may seem invalid")
    found += [f"{mount} is mounted noexec" for mount in facts.noexec if mount in SPARE]
    if facts.selinux_enforcing:
        found.append("SELinux is enforcing: labels of a models directory of your own are yours to set")
    if facts.ollama_origin not in ("", "deployctl", "container"):
        how = {"script": "by the official script"}.get(facts.ollama_origin, f"({facts.ollama_origin})")
        found.append(
            f"an Ollama {facts.ollama_version} is there already, installed {how}: it is taken over, models stay,"
            " and what it was is kept for deployctl rollback"
        )
    return tuple(found)
