"""The cached Debian root that every lab host is cloned from."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PACKAGES = (
    "ca-certificates",
    "caddy",
    "dbus",
    "iproute2",
    "nftables",
    "openssh-server",
    "passwd",
    "procps",
    "prometheus-node-exporter",
    "python3",
    "sudo",
    "systemd",
    "systemd-sysv",
    "zstd",
)
TOOLS = ("ip", "lxcfs", "mkfs.ext4", "mmdebstrap", "mount", "nsenter", "ssh", "ssh-keygen", "systemd-nspawn", "unshare")
RECIPE = 3  # raise it when ``_finish`` changes, so that old roots are not used


def obstacle() -> str | None:
    """Say why lab hosts cannot be booted here, or return None where they can."""
    if os.geteuid() != 0:
        return "lab hosts need root (systemd-nspawn, mounts, network namespaces)"
    if not Path("/etc/debian_version").exists():
        return "lab hosts are built by mmdebstrap, on Debian and its derivatives only"
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing:
        hint = "apt-get install mmdebstrap systemd-container openssh-client iproute2 lxcfs e2fsprogs"
        return f"lab hosts need {', '.join(missing)} ({hint})"
    return None


def cache_dir() -> Path:
    """Return where roots and running hosts are kept: ``DEPLOYCTL_CACHE``, else ``.cache`` of the checkout."""
    configured = os.environ.get("DEPLOYCTL_CACHE")
    base = Path(configured) if configured else Path(__file__).parents[3] / ".cache"
    return base.resolve() / "lab"


@contextmanager
def exclusive(lock: Path) -> Iterator[None]:
    """Hold a lock file against other test runs; released also by SIGKILL."""
    lock.parent.mkdir(parents=True, exist_ok=True)
    with lock.open("a") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def base_root(suite: str = "bookworm") -> Path:
    """Return the root directory of a Debian ``suite``, building it once (about half a minute, 280 MB).

    Raises CalledProcessError with mmdebstrap's own words where the build fails, for example without a mirror.
    """
    key = hashlib.sha256(repr((suite, PACKAGES, RECIPE)).encode()).hexdigest()[:12]
    root = cache_dir() / f"{suite}-{key}"
    with exclusive(cache_dir() / "base.lock"):
        if not root.is_dir():
            partial = root.with_suffix(".partial")
            subprocess.run(["rm", "-rf", "--one-file-system", str(partial)], check=True)
            command = ["mmdebstrap", "--quiet", "--variant=minbase", f"--include={','.join(PACKAGES)}"]
            # No mirror is named: mmdebstrap's own default for the suite, security updates included.
            subprocess.run([*command, suite, str(partial)], check=True, stdin=subprocess.DEVNULL)
            _finish(partial)
            partial.rename(root)
    return root


def _finish(root: Path) -> None:
    """Take away what clones must not share, and what would wait for a network."""
    for key in (root / "etc/ssh").glob("ssh_host_*"):
        key.unlink()
    (root / "etc/machine-id").unlink(missing_ok=True)
    # Without a name server the resolver asks loopback, where nothing listens: look-ups fail at once.
    (root / "etc/resolv.conf").unlink(missing_ok=True)
    (root / "etc/resolv.conf").write_text("# no name server in the lab\n")
    # Installed for the tests of the roles gateway and telemetry, and off as on any host that has neither.
    for unit in ("caddy", "prometheus-node-exporter"):
        (root / f"etc/systemd/system/multi-user.target.wants/{unit}.service").unlink(missing_ok=True)
    for unit in ("apt-daily.timer", "apt-daily-upgrade.timer", "dpkg-db-backup.timer", "e2scrub_all.timer"):
        mask = root / "etc/systemd/system" / unit
        mask.unlink(missing_ok=True)
        mask.symlink_to("/dev/null")
