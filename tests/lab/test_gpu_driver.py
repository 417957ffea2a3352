"""The role nvidia on a real host: its packages from an archive that the host really asks, a real restart, a wait.

No GPU is there and no driver: what the host would say of its cards is told to the role, and the packages are empty but
for an nvidia-smi that answers as one would once the driver is loaded.
"""

from __future__ import annotations

import gzip
import hashlib
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest
from nspawn.host import LabHost, running_host

from deployctl.events import discard
from deployctl.hosts.ssh import connect
from deployctl.provision.playbook import Play, TaskFailed, run_playbook
from deployctl.resources import Project

pytestmark = [
    pytest.mark.lab,
    pytest.mark.timeout(600),
    pytest.mark.matrix,
]

KERNEL = "6.12.57+deb13-amd64"
CARD = f"os=debian 13 trixie\nkernel={KERNEL}\nmachine=x86_64\npci=0000:01:00.0 0x10de 0x27b8 0x030200\n"
PACKAGES = (
    f"linux-headers-{KERNEL}",
    "nvidia-kernel-dkms",
    "nvidia-driver-bin",
    "nvidia-smi",
    "nvidia-persistenced",
    "libcuda1",
    "libnvidia-ptxjitcompiler1",
)
# Answers only after a restart, as a driver does whose module nouveau kept out.
SMI = """#!/bin/sh
if cmp -s /proc/sys/kernel/random/boot_id /etc/boot-of-installation; then echo "No devices were found"; exit 6; fi
echo "550.163.01, 8.9"
"""
PLAY = "- hosts: all\n  gather_facts: false\n  roles: [nvidia]\n"


def archive(folder: Path, version: str) -> None:
    """Make a flat Debian archive of the packages, of one version each."""
    folder.mkdir(parents=True)
    entries = []
    for name in PACKAGES:
        tree = folder / "tree"
        (tree / "DEBIAN").mkdir(parents=True)
        control = f"Package: {name}\nVersion: {version}\nArchitecture: all\nMaintainer: Nobody <nobody@example.com>\n"
        (tree / "DEBIAN" / "control").write_text(control + "Description: stand-in\n")
        if name == "nvidia-smi":
            (tree / "usr/bin").mkdir(parents=True)
            (tree / "usr/bin/nvidia-smi").write_text(SMI)
            (tree / "usr/bin/nvidia-smi").chmod(0o755)
            (tree / "DEBIAN" / "postinst").write_text(
                "#!/bin/sh\ncp /proc/sys/kernel/random/boot_id /etc/boot-of-installation\n"
            )
            (tree / "DEBIAN" / "postinst").chmod(0o755)
        built = folder / f"{name}.deb"
        subprocess.run(
            ["dpkg-deb", "--root-owner-group", "--build", str(tree), str(built)], check=True, capture_output=True
        )
        subprocess.run(["rm", "-r", str(tree)], check=True)
        data = built.read_bytes()
        entries.append(
            f"{control}Filename: ./{built.name}\nSize: {len(data)}\nSHA256: {hashlib.sha256(data).hexdigest()}\n"
            "Description: stand-in\n"
        )
    (folder / "Packages.gz").write_bytes(gzip.compress("\n".join(entries).encode()))


class Roles:
    """One host and how the role is run on it."""

    def __init__(self, host: LabHost, folder: Path) -> None:
        (folder / "playbooks").mkdir()
        (folder / "playbooks" / "drivers.yml").write_text(PLAY)
        self.host, self.folder = host, folder
        self.target = host.target(folder / "known_hosts")

    def offers(self, version: str) -> None:
        """Let the host's apt know our archive, and no other."""
        where = self.host.root_dir / "srv" / f"archive-{version}"
        archive(where, version)
        (self.host.root_dir / "etc/apt/sources.list").write_text(f"deb [trusted=yes] file:/srv/archive-{version} ./\n")

    def run(self, said: str, told: Mapping[str, object] | None = None, *, check: bool = False) -> Play:
        variables = {"bootstrap_result": {"stdout": said}, **(told or {})}
        log, project = self.folder / "log", Project(self.folder)
        return run_playbook(
            "drivers.yml", self.target, variables, project=project, log=log, emit=discard, step="drivers", check=check
        )

    def refused(self, said: str, told: Mapping[str, object] | None = None) -> str:
        with pytest.raises(TaskFailed) as caught:
            self.run(said, told)
        return caught.value.message


@pytest.fixture(scope="module")
def roles(lab_base: Path, lab_key: Path, tmp_path_factory: pytest.TempPathFactory) -> object:
    with running_host("driver", lab_key, suite="trixie") as host:
        yield Roles(host, tmp_path_factory.mktemp("drivers"))


def installed(host: LabHost) -> set[str]:
    listed = host.run("dpkg-query -W -f '${Package} ${Version}\\n'").stdout
    return {line for line in listed.splitlines() if line.split()[0] in PACKAGES}


def test_secure_boot_without_an_enrolled_key_is_refused_with_the_line_to_type(roles: Roles) -> None:
    message = roles.refused(CARD + "secure_boot=1\n")
    assert "Secure Boot is on" in message
    assert "dkms generate_mok && mokutil --import /var/lib/dkms/mok.pub" in message
    assert installed(roles.host) == set()
    assert roles.host.run("ls /etc/modprobe.d/deployctl-nouveau.conf", check=False).returncode != 0


def test_packages_below_the_floor_are_refused_before_they_are_installed(roles: Roles) -> None:
    # What Debian 12 has.
    roles.offers("535.309.01-0+deb12u1")
    message = roles.refused(CARD)
    assert "offers the NVIDIA driver 535.309.01, and Ollama needs 550" in message
    assert "nvidia_repository=vendor" in message
    assert installed(roles.host) == set()


def test_a_dry_run_installs_nothing(roles: Roles) -> None:
    roles.run(CARD + "nouveau=1\n", {"nvidia_reboot": True}, check=True)
    assert installed(roles.host) == set()
    assert roles.host.run("ls /etc/modprobe.d/deployctl-nouveau.conf", check=False).returncode != 0


def test_a_driver_that_needs_a_restart_says_so_and_is_restarted_only_where_that_is_allowed(roles: Roles) -> None:
    # What Debian 13 has.
    roles.offers("550.163.01-2")
    before = roles.host.leader()
    message = roles.refused(CARD + "nouveau=1\n")
    assert "the NVIDIA driver is on the disk and is loaded at the next start" in message
    assert "--allow-reboot" in message
    assert roles.host.leader() == before, "nobody allowed a restart"
    assert installed(roles.host) == {f"{name} 550.163.01-2" for name in PACKAGES}
    assert "blacklist nouveau" in roles.host.run("cat /etc/modprobe.d/deployctl-nouveau.conf").stdout

    with connect(roles.target, "refuse") as session:
        play = roles.run(CARD + "nouveau=1\n", {"nvidia_reboot": True})
        assert play.facts["rebooted"] is True
        assert roles.host.leader() != before
        session.renew()
        assert session.run("nvidia-smi").stdout == "550.163.01, 8.9\n"


def test_a_host_whose_driver_answers_is_left_alone(roles: Roles) -> None:
    play = roles.run(CARD + "nvidia=00000000:01:00.0, 23034, 550.163.01, 8.9, NVIDIA L4\nnvidia_module=550.163.01\n")
    assert (play.ok, play.changed) == (0, 0)
