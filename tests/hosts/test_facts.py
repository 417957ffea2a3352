"""Facts: the real script over real SSH against the kernel's own figures, and recorded outputs of other machines."""

import os
import platform
import shutil
import subprocess
from pathlib import Path

import pytest

from deployctl.errors import HostError
from deployctl.hosts import facts
from deployctl.hosts.ssh import connect

PLAIN = """facts=1
os_id=debian
os_version=12
arch=x86_64
cpus=8
ram_kb=32894516
ram_available_kb=31000000
swap_kb=0
disk=412716680 380000000 /
disk=103081248 100000000 /srv/models
privilege=sudo-password
end=1
"""


def test_the_facts_of_this_machine_agree_with_what_it_says_itself(sshd):
    with connect(sshd.target(), "refuse") as session:
        found = facts.gather(session)
    assert found.arch == platform.machine()
    assert found.kernel == platform.release()
    assert found.hostname == os.uname().nodename
    assert found.cpus == int(subprocess.run(["nproc"], capture_output=True, text=True).stdout)
    assert found.ram_bytes == os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    root = found.disk_for("/")
    assert root is not None
    assert root.size_bytes == pytest.approx(shutil.disk_usage("/").total, rel=0.001)
    assert found.root_or_sudo == ("root" if os.geteuid() == 0 else found.root_or_sudo)
    assert found.home == str(Path.home())


@pytest.mark.parametrize("shell", ["dash", "bash --posix", "busybox sh"])
def test_the_script_runs_in_every_posix_shell_at_hand(shell):
    if not shutil.which(shell.split()[0]):
        pytest.skip(f"{shell} is not installed")
    done = subprocess.run([*shell.split(), "-s"], input=facts.script(), capture_output=True, text=True)
    assert done.stderr == ""
    assert facts.read(done.stdout).cpus >= 1


def test_the_script_changes_nothing_and_needs_no_python():
    text = facts.script()
    body = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
    assert ">/dev/null" in body
    for word in (" rm ", " mv ", "mkdir", "tee ", "touch ", "apt", "systemctl"):
        assert word not in body


def test_a_disk_is_found_by_the_longest_mount_point_that_leads_to_the_path():
    found = facts.read(PLAIN)
    assert found.disk_for("/srv/models/blobs").free_bytes == 100_000_000 * 1024
    assert found.disk_for("/srv/models2").mount == "/"
    assert found.ram_bytes == 33_683_984_384
    assert found.root_or_sudo == "sudo-password"


@pytest.mark.parametrize(
    ("lines", "quota"),
    [
        ((), None),
        (("max 100000",), None),
        (("-1 100000",), None),
        (("200000 100000",), 2.0),
        (("max 100000", "150000 100000", "400000 100000"), 1.5),
    ],
)
def test_the_cpu_quota_is_the_smallest_on_the_way_up(lines, quota):
    text = PLAIN + "".join(f"cpu_max={line}\n" for line in lines)
    assert facts.read(text).cpu_quota == quota


def test_an_nvidia_card_with_its_driver_is_read_from_bus_and_driver_together():
    text = PLAIN + (
        "pci=0000:65:00.0 0x10de 0x20b5 0x030200\n"
        "nvidia=00000000:65:00.0, 81920, 550.54.15, 8.0, NVIDIA A100 80GB PCIe\n"
    )
    (gpu,) = facts.read(text).gpus
    assert (gpu.model, gpu.vram_bytes, gpu.driver, gpu.compute_capability) == (
        "NVIDIA A100 80GB PCIe",
        80 * 1024**3,
        "550.54.15",
        "8.0",
    )
    assert facts.read(text).gpu_problem == ""


def test_a_card_whose_driver_does_not_answer_is_kept_and_the_reason_named():
    text = PLAIN + (
        "pci=0000:01:00.0 0x10de 0x2684 0x030000\n"
        "nvidia_error=Failed to initialize NVML: Driver/library version mismatch\n"
    )
    found = facts.read(text)
    assert [(gpu.vendor, gpu.vram_bytes) for gpu in found.gpus] == [("nvidia", 0)]
    assert "version mismatch" in found.gpu_problem


def test_a_board_without_accelerator_has_no_gpu():
    text = PLAIN + "pci=0000:00:02.0 0x1234 0x1111 0x030000\npci=0000:00:03.0 0x1013 0x00b8 0x030000\n"
    assert facts.read(text).gpus == ()
    assert facts.read(text).gpu_problem == ""


@pytest.mark.parametrize(
    "text", ["", "Microsoft Windows [Version 10]\n", PLAIN.replace("end=1\n", ""), "facts=1\nend=1\n"]
)
def test_an_answer_that_is_cut_short_or_foreign_is_refused(text):
    with pytest.raises(ValueError, match=r"incomplete|no cpus"):
        facts.read(text)


def test_a_host_that_runs_something_else_says_so(sshd):
    sshd.stop()
    sshd.config = "ForceCommand echo this account is not available"
    sshd.start()
    with connect(sshd.target(), "refuse") as session, pytest.raises(HostError, match="does not answer like a Linux"):
        facts.gather(session)
