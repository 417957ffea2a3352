"""The process that owns one lab host: when its standard input closes, the host and all its traces go.

Started as process 1 of its own process, mount and network namespaces. The guest, everything that is mounted and the
guest's end of the link live there, so that even SIGKILL of this process takes them away; only a folder and empty
cgroups can then stay, and the next host that starts removes those.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from nspawn.base import exclusive
from nspawn.guest import Guest, prepare

LOCK = Path("/run/deployctl-lab.lock")
PREFIX = "deployctl-lab-"
REBOOT = 133  # systemd-nspawn's exit status with --keep-unit when the guest asked for a reboot


def sh(*argv: str) -> None:
    """Run a command silently; raises CalledProcessError with its standard error."""
    subprocess.run(argv, check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


# -- leftovers of killed runs ---------------------------------------------------------------------------------------


def hierarchies() -> list[Path]:
    """Return the mount points of every cgroup hierarchy, version 1 and 2."""
    lines = (line.split() for line in Path("/proc/self/mounts").read_text().splitlines())
    return [Path(fields[1]) for fields in lines if fields[2] in {"cgroup", "cgroup2"}]


def remove_cgroup(top: Path) -> None:
    """Remove a cgroup and those below it, as far as they are empty."""
    for folder, _, _ in os.walk(top, topdown=False):
        try:
            Path(folder).rmdir()
        except OSError:
            return


def sweep(runs: Path) -> None:
    """Remove what killed runs left: folders that nobody locks, and empty cgroups."""
    for folder in runs.iterdir() if runs.is_dir() else ():
        with (folder / "lock").open("a") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
        shutil.rmtree(folder, ignore_errors=True)
    for hierarchy in hierarchies():
        for stale in hierarchy.glob(f"{PREFIX}*"):
            remove_cgroup(stale)


# -- what one host needs --------------------------------------------------------------------------------------------


def claim(folder: Path, runs: Path) -> IO[str]:
    """Sweep, then create and lock the host's folder and move this process into cgroups of its own.

    Returns the open lock: the folder counts as in use for as long as it is open.
    """
    with exclusive(LOCK):
        sweep(runs)
        folder.mkdir(parents=True)
        lock = (folder / "lock").open("a")
        fcntl.flock(lock, fcntl.LOCK_EX)
        for hierarchy in hierarchies():
            # Guests side by side must not share a cgroup: each systemd takes the one it is given for the whole machine.
            cgroup = hierarchy / f"{PREFIX}{folder.name}"
            try:
                cgroup.mkdir()
                for name in ("cpuset.cpus", "cpuset.mems"):  # version 1: empty until set, and then nothing may enter
                    if (cgroup / name).exists():
                        (cgroup / name).write_text((hierarchy / name).read_text())
                (cgroup / "cgroup.procs").write_text("0")
            except OSError:
                remove_cgroup(cgroup)
    return lock


def mount_clone(base: Path, folder: Path) -> Path:
    """Mount a writable clone of ``base``; where overlayfs cannot be stacked, copy it."""
    sh("mount", "-t", "tmpfs", "-o", "mode=0755", "lab", "/run/systemd")  # systemd-nspawn's own notes stay in here
    root = folder / "root"
    for name in ("root", "upper", "work"):
        (folder / name).mkdir()
    options = f"lowerdir={base},upperdir={folder / 'upper'},workdir={folder / 'work'}"
    try:
        sh("mount", "-t", "overlay", "overlay", "-o", options, str(root))
    except subprocess.CalledProcessError:
        sh("cp", "-a", "--reflink=auto", f"{base}/.", str(root))
    return root


def link(parent: int) -> int:
    """Connect this namespace with the tests' one; return the number n of the subnet 10.77.n.0/30.

    The kernel refuses a second link of the same name, so creating it is what reserves the number. The tests' side
    gets .1, the guest .2. The link vanishes with this namespace.
    """
    tests = f"/proc/{parent}/ns/net"
    for number in range(250):
        outside = f"deployctl{number}"
        command = [
            "ip",
            "link",
            "add",
            "host0",
            "type",
            "veth",
            "peer",
            "name",
            outside,
            "netns",
            f"/proc/{parent}/ns/net",
        ]
        made = subprocess.run(command, capture_output=True, text=True, check=False)
        if made.returncode == 0:
            break
        if "File exists" not in made.stderr:
            raise OSError(f"no network link: {made.stderr.strip()}")
    else:
        raise OSError("no free subnet for another lab host")
    enter = ("nsenter", f"--net={tests}", "ip")
    sh(*enter, "addr", "add", f"10.77.{number}.1/30", "dev", outside)
    sh(*enter, "link", "set", outside, "up")
    sh("ip", "addr", "add", f"10.77.{number}.2/30", "dev", "host0")
    sh("ip", "link", "set", "host0", "up")
    sh("ip", "link", "set", "lo", "up")
    return number


def kill_everything() -> None:
    """Kill all processes of this namespace but this one, and wait until they are gone."""
    if os.getpid() != 1:
        raise OSError("the guardian is not alone in its process namespace")
    with contextlib.suppress(ProcessLookupError):
        os.kill(-1, signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):
        while True:
            os.wait()


def boot(root: Path, name: str, private: bool, log: Path) -> subprocess.Popen[bytes]:
    """Boot the clone with systemd as its process 1."""
    command = ["systemd-nspawn", "--quiet", "--register=no", "--keep-unit", f"--directory={root}", f"--machine={name}"]
    command += ["--resolv-conf=off", "--timezone=off", "--link-journal=no", "--console=pipe", "--boot"]
    if private:
        command.insert(-1, "--network-namespace-path=/proc/self/ns/net")
    with log.open("ab") as output:
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output)


@contextlib.contextmanager
def host(spec: dict[str, object]) -> Iterator[tuple[Path, dict[str, object]]]:
    """Prepare everything for one host and take it away again; yields its root and what to tell the tests."""
    folder = Path(str(spec["folder"]))
    lock = claim(folder, folder.parent)
    try:
        root = mount_clone(Path(str(spec["base"])), folder)
        facts: dict[str, object] = {"root": str(root)}
        if spec["private"]:
            facts["subnet"] = link(int(str(spec["parent"])))
        sh("mount", "-t", "proc", "proc", "/proc")  # from here on, process ids are those of this namespace
        prepare(root, Guest(**spec["guest"]))  # type: ignore[arg-type]
        yield root, facts
    finally:
        if spec["private"]:
            subprocess.run(["ip", "link", "del", "host0"], capture_output=True, check=False)
        subprocess.run(["umount", "--lazy", str(folder / "root")], capture_output=True, check=False)
        shutil.rmtree(folder, ignore_errors=True)
        for hierarchy in hierarchies():
            home = hierarchy / f"{PREFIX}{folder.name}"
            if home.is_dir():
                (hierarchy / "cgroup.procs").write_text("0")
                remove_cgroup(home)
        lock.close()


def main() -> None:
    """Run one host as told by the JSON in argv until standard input closes."""
    spec = json.loads(sys.argv[1])
    with host(spec) as (root, facts):
        console = Path(spec["folder"]) / "console.log"
        name = str(spec["guest"]["name"])
        machine = boot(root, name, bool(spec["private"]), console)
        print(json.dumps(facts), flush=True)
        try:
            while not select.select([sys.stdin], [], [], 0.2)[0]:
                if machine.poll() == REBOOT:
                    machine = boot(root, name, bool(spec["private"]), console)
        finally:
            kill_everything()


if __name__ == "__main__":
    main()
