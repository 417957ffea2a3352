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
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

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


def claim(folder: Path, runs: Path, share: Mapping[str, Any]) -> IO[str]:
    """Sweep, then create and lock the host's folder and move this process into cgroups of its own.

    ``share`` limits them: ``cpus`` (a time quota, in CPUs) and ``memory_mib``; None is without a limit. Returns
    the open lock: the folder counts as in use for as long as it is open.
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
                limit(cgroup, share["cpus"], share["memory_mib"])
                (cgroup / "cgroup.procs").write_text("0")
            except OSError:
                remove_cgroup(cgroup)
    return lock


def limit(cgroup: Path, cpus: float | None, memory_mib: int | None) -> None:
    """Write the limits that this hierarchy knows, version 1 or 2."""
    quota = int(cpus * 100_000) if cpus else -1
    values = {
        "cpu.cfs_quota_us": quota,
        "cpu.max": f"{quota} 100000" if cpus else "max",
        "memory.limit_in_bytes": memory_mib << 20 if memory_mib else -1,
        "memory.max": memory_mib << 20 if memory_mib else "max",
    }
    for name, value in values.items():
        if (cgroup / name).exists():
            (cgroup / name).write_text(str(value))


def show_share(root: Path, folder: Path) -> None:
    """Let the guest's /proc tell its share of memory and CPUs: lxcfs, mounted here, bound over /proc in there."""
    there = folder / "lxcfs"
    there.mkdir()
    with (folder / "lxcfs.log").open("wb") as log:
        command = ["lxcfs", "--foreground", "--enable-cfs", f"--pidfile={folder / 'lxcfs.pid'}", str(there)]
        server = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    deadline = time.monotonic() + 10
    while not (there / "proc/meminfo").exists():
        if server.poll() is not None or time.monotonic() > deadline:
            raise OSError(f"lxcfs did not come up: {(folder / 'lxcfs.log').read_text()[-300:]}")
        time.sleep(0.02)
    unit = root / "etc/systemd/system/lab-share.service"
    binds = "\n".join(
        f"ExecStart=/bin/mount --bind /run/lab-share/proc/{name} /proc/{name}"
        for name in ("meminfo", "cpuinfo", "stat")
    )
    unit.write_text(
        "[Unit]\nDefaultDependencies=no\nBefore=sysinit.target\nAfter=local-fs.target\n"
        f"[Service]\nType=oneshot\nRemainAfterExit=yes\n{binds}\n[Install]\nWantedBy=sysinit.target\n"
    )
    wants = root / "etc/systemd/system/sysinit.target.wants"
    wants.mkdir(exist_ok=True)
    (wants / unit.name).symlink_to(f"../{unit.name}")


def disk(image: Path, mib: int, where: Path) -> None:
    """Mount a fresh ext4 filesystem of this size: a disk that is really full when it is full."""
    with image.open("wb") as file:
        file.truncate(mib << 20)
    sh("mkfs.ext4", "-q", "-F", "-m", "0", "-O", "^has_journal", str(image))
    where.mkdir(parents=True, exist_ok=True)
    sh("mount", "-o", "loop", str(image), str(where))


def mount_clone(base: Path, folder: Path, disk_mib: int | None) -> Path:
    """Mount a writable clone of ``base``, with room for ``disk_mib`` of changes; where overlayfs cannot be, copy it."""
    sh("mount", "-t", "tmpfs", "-o", "mode=0755", "lab", "/run/systemd")  # systemd-nspawn's own notes stay in here
    root, changes = folder / "root", folder / "changes"
    if disk_mib:
        disk(folder / "disk.img", disk_mib, changes)
    for path in (root, changes / "upper", changes / "work"):
        path.mkdir(parents=True)
    options = f"lowerdir={base},upperdir={changes / 'upper'},workdir={changes / 'work'}"
    try:
        sh("mount", "-t", "overlay", "overlay", "-o", options, str(root))
    except subprocess.CalledProcessError:
        sh("cp", "-a", "--reflink=auto", f"{base}/.", str(root))
    return root


def link(parent: int, net: int, ipv6_only: bool) -> int:
    """Connect this namespace with that of the process ``parent``: the tests', or a host to jump through.

    Returns the number n of the subnet 10.<net>.n.0/30 and fd<net>:n::/64. The kernel refuses a second link of the same
    name, so creating it is what reserves the number. The parent's side gets .1, the guest .2. The link vanishes with
    this namespace.
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
    sh(*enter, "link", "set", outside, "up")
    sh("ip", "link", "set", "host0", "up")
    for side, last in (((*enter,), 1), (("ip",), 2)):
        device = outside if last == 1 else "host0"
        if not ipv6_only:
            sh(*side, "addr", "add", f"10.{net}.{number}.{last}/30", "dev", device)
        sh(*side, "addr", "add", f"fd{net}:{number}::{last}/64", "dev", device, "nodad")
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


def boot(root: Path, name: str, private: bool, log: Path, share: str) -> subprocess.Popen[bytes]:
    """Boot the clone with systemd as its process 1."""
    command = ["systemd-nspawn", "--quiet", "--register=no", "--keep-unit", f"--directory={root}", f"--machine={name}"]
    command += ["--resolv-conf=off", "--timezone=off", "--link-journal=no", "--console=pipe", "--boot"]
    if private:
        # A host of one's own may have a firewall.
        command[-1:-1] = ["--network-namespace-path=/proc/self/ns/net", "--capability=CAP_NET_ADMIN"]
    if share:
        command.insert(-1, f"--bind-ro={share}:/run/lab-share")
    with log.open("ab") as output:
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output)


@contextlib.contextmanager
def host(spec: dict[str, object]) -> Iterator[tuple[Path, dict[str, object]]]:
    """Prepare everything for one host and take it away again; yields its root and what to tell the tests."""
    folder = Path(str(spec["folder"]))
    share = dict(spec["share"])  # type: ignore[call-overload]
    lock = claim(folder, folder.parent, share)
    try:
        root = mount_clone(Path(str(spec["base"])), folder, share["disk_mib"])
        for number, (where, mib) in enumerate(share["mounts"].items()):
            disk(folder / f"mount{number}.img", mib, root / where.lstrip("/"))
        facts: dict[str, object] = {"root": str(root)}
        if spec["private"]:
            facts["subnet"] = link(int(str(spec["parent"])), int(str(spec["net"])), bool(spec["ipv6_only"]))
        sh("mount", "-t", "proc", "proc", "/proc")  # from here on, process ids are those of this namespace
        if share["cpus"] or share["memory_mib"]:
            show_share(root, folder)
            facts["share"] = str(folder / "lxcfs")
        prepare(root, Guest(**spec["guest"]))  # type: ignore[arg-type]
        yield root, facts
    finally:
        if spec["private"]:
            subprocess.run(["ip", "link", "del", "host0"], capture_output=True, check=False)
        for path in ("root", "changes", "lxcfs"):
            subprocess.run(["umount", "--lazy", "--recursive", str(folder / path)], capture_output=True, check=False)
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
        share = str(facts.get("share", ""))
        machine = boot(root, name, bool(spec["private"]), console, share)
        print(json.dumps(facts), flush=True)
        try:
            while not select.select([sys.stdin], [], [], 0.2)[0]:
                if machine.poll() == REBOOT:
                    machine = boot(root, name, bool(spec["private"]), console, share)
        finally:
            kill_everything()


if __name__ == "__main__":
    main()
