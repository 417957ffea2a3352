"""Facts: the real script over real SSH against the kernel's own figures, and recorded outputs of other machines."""

import os
import platform
import pwd
import shutil
import subprocess

import pytest

from deployctl.errors import HostError
from deployctl.hosts import facts
from deployctl.hosts.gpus import too_old
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
    assert found.home == pwd.getpwuid(os.geteuid()).pw_dir  # a log-in's home, whatever HOME says here


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


# What real machines printed for their cards, each with the page where its owner shows it. The bus address is completed
# with its domain (lspci -D), the sysfs line is what those ids mean; capability and nouveau are added by hand.
RECORDED = {
    "two L40S with their driver": (
        "https://github.com/akash-network/provider-configs/pull/99",
        (
            "pci=0000:01:00.0 0x10de 0x26b9 0x030200\npci=0000:91:00.0 0x10de 0x26b9 0x030200\n"
            "lspci=0000:01:00.0 3D controller [0302]: NVIDIA Corporation AD102GL [L40S] [10de:26b9] (rev a1)\n"
            "lspci=0000:91:00.0 3D controller [0302]: NVIDIA Corporation AD102GL [L40S] [10de:26b9] (rev a1)\n"
            "nvidia=00000000:01:00.0, 46068, 595.71.05, 8.9, NVIDIA L40S\n"
            "nvidia=00000000:91:00.0, 46068, 595.71.05, 8.9, NVIDIA L40S\n"
        ),
        [("NVIDIA L40S", 46068 * 2**20, "595.71.05")] * 2,
        "",
    ),
    "an RTX 3090 whose driver does not answer": (
        "https://github.com/noonghunna/club-3090/pull/594",
        (
            "pci=0000:05:00.0 0x10de 0x2204 0x030000\n"
            "lspci=0000:05:00.0 VGA compatible controller [0300]: NVIDIA Corporation GA102 [GeForce RTX 3090] "
            "[10de:2204] (rev a1)\nnouveau=1\n"
        ),
        [("GA102 [GeForce RTX 3090]", 0, "")],
        "no driver answers for GA102 [GeForce RTX 3090] (nouveau is loaded, and it cannot compute)",
    ),
    "an RTX 4090 that pciutils knows no name for": (
        "https://github.com/geerlingguy/raspberry-pi-pcie-devices/issues/504",
        (
            "pci=0000:01:00.0 0x10de 0x2684 0x030000\n"
            "lspci=0000:01:00.0 VGA compatible controller [0300]: NVIDIA Corporation Device [10de:2684] (rev a1)\n"
        ),
        [("nvidia 0x2684", 0, "")],
        "no driver answers for nvidia 0x2684",
    ),
    "an MI300X that amdgpu did not take": (
        "https://github.com/ROCm/legacy-rocm-build/issues/4454",
        (
            "pci=0000:1b:00.0 0x1002 0x74a1 0x120000\n"
            "lspci=0000:1b:00.0 Processing accelerators [1200]: Advanced Micro Devices, Inc. [AMD/ATI] Aqua Vanjaram "
            "[Instinct MI300X] [1002:74a1]\n"
        ),
        [("Aqua Vanjaram [Instinct MI300X]", 0, "")],
        "no driver answers for Aqua Vanjaram [Instinct MI300X]",
    ),
    "an MI300X with the kernel's own driver": (
        # Name and memory by rocm-smi; by the second, such a module has no version. The bus address is the one above.
        "https://github.com/ROCm/legacy-rocm-build/issues/4750 https://github.com/ROCm/k8s-device-plugin/issues/157",
        "pci=0000:1b:00.0 0x1002 0x74a1 0x120000\namd=0000:1b:00.0, 206141652992, , AMD Instinct MI300X OAM\n",
        [("AMD Instinct MI300X OAM", 206141652992, "in-kernel")],
        "",
    ),
    "two A100 with their driver": (
        # From nvidia-smi's table; the first two of eight.
        "https://github.com/bottlerocket-os/bottlerocket-core-kit/pull/834",
        (
            "nvidia=00000000:10:1C.0, 40960, 580.126.09, 8.0, NVIDIA A100-SXM4-40GB\n"
            "nvidia=00000000:10:1D.0, 40960, 580.126.09, 8.0, NVIDIA A100-SXM4-40GB\n"
        ),
        [("NVIDIA A100-SXM4-40GB", 40 * 2**30, "580.126.09")] * 2,
        "",
    ),
    "an L4 in a virtual machine that serves Ollama": (
        # From nvidia-smi's table and lspci -nnk, in step 5.
        "the article “Building an AI factory on Kubernetes: a GPU catalog for every customer”, 6 October 2026",
        (
            "pci=0000:09:00.0 0x10de 0x27b8 0x030200\n"
            "lspci=0000:09:00.0 3D controller [0302]: NVIDIA Corporation AD104GL [L4] [10de:27b8] (rev a1)\n"
            "nvidia=00000000:09:00.0, 23034, 615.71.09, 8.9, NVIDIA L4\n"
        ),
        [("NVIDIA L4", 23034 * 2**20, "615.71.09")],
        "",
    ),
    "two RTX 4090 with a driver of 2024": (
        # From nvidia-smi's table; the first two cards.
        "https://github.com/akash-network/support/issues/209",
        (
            "pci=0000:01:00.0 0x10de 0x2684 0x030000\npci=0000:25:00.0 0x10de 0x2684 0x030000\n"
            "nvidia=00000000:01:00.0, 24564, 535.161.07, 8.9, NVIDIA GeForce RTX 4090\n"
            "nvidia=00000000:25:00.0, 24564, 535.161.07, 8.9, NVIDIA GeForce RTX 4090\n"
        ),
        [("NVIDIA GeForce RTX 4090", 24564 * 2**20, "535.161.07")] * 2,
        "",
    ),
    "a driver that does not match its library": (
        "https://github.com/negativo17/nvidia-driver/issues/180",
        "nvidia_error=Failed to initialize NVML: Driver/library version mismatch NVML library version: 575.64\n",
        [],
        (
            "Failed to initialize NVML: Driver/library version mismatch NVML library version: 575.64 "
            "(the driver was updated and its old module is still loaded: reboot)"
        ),
    ),
    "a driver that does not match its module, whose version is known": (
        # nvidia-smi, and /proc/driver/nvidia/version, whose version is that of /sys/module/nvidia/version.
        "https://github.com/zzzhouuu/truenas-nvidia-drivers/issues/19",
        (
            "nvidia_error=Failed to initialize NVML: Driver/library version mismatch NVML library version: 580.178\n"
            "nvidia_module=580.173.02\n"
        ),
        [],
        (
            "Failed to initialize NVML: Driver/library version mismatch NVML library version: 580.178 "
            "(the driver was updated and its old module 580.173.02 is still loaded: reboot)"
        ),
    ),
}


@pytest.mark.parametrize("name", RECORDED)
def test_recorded_cards_are_read_with_name_driver_and_problem(name):
    _, lines, cards, problem = RECORDED[name]
    found = facts.read(PLAIN + lines)
    assert [(gpu.model, gpu.vram_bytes, gpu.driver) for gpu in found.gpus] == cards
    assert found.gpu_problem == problem


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("two RTX 4090 with a driver of 2024", ["535.161.07, and Ollama needs 550"]),
        ("an L4 in a virtual machine that serves Ollama", []),
        ("two A100 with their driver", []),
        ("an MI300X with the kernel's own driver", []),
        ("an RTX 3090 whose driver does not answer", []),
    ],
)
def test_a_driver_that_ollama_would_leave_aside_is_named_once(name, words):
    found = too_old(facts.read(PLAIN + RECORDED[name][1]).gpus)
    assert len(found) == len(words)
    assert all(word in sentence for word, sentence in zip(words, found, strict=True))


@pytest.mark.parametrize(
    ("line", "word"),
    [
        # docs.ollama.com/gpu: 5.0 and newer; 5.0 through 6.2 with driver 570, the others with 550.
        ("nvidia=00000000:01:00.0, 11441, 470.256.02, 3.7, Tesla K80", "compute capability 3.7, and Ollama needs 5.0"),
        ("nvidia=00000000:01:00.0, 24576, 565.57.01, 6.1, Tesla P40", "565.57.01, and Ollama needs 570"),
        ("nvidia=00000000:01:00.0, 24576, 570.86.15, 6.1, Tesla P40", ""),
        ("nvidia=00000000:01:00.0, 16384, 550.54.15, 7.0, Tesla V100-SXM2-16GB", ""),
        ("amd=0000:1b:00.0, 206141652992, 6.10.5, AMD Instinct MI300X OAM", "ROCm 7 (6.14.14)"),
        ("amd=0000:1b:00.0, 206141652992, 6.16.6, AMD Instinct MI300X OAM", ""),
    ],
)
def test_the_floors_are_those_that_ollama_documents(line, word):
    found = too_old(facts.read(f"{PLAIN}{line}\n").gpus)
    assert bool(found) == bool(word)
    assert word in "".join(found)


def test_steal_is_the_share_that_the_hypervisor_took_meanwhile_and_since_boot():
    # proc(5): user nice system idle iowait irq softirq steal guest guest_nice, in ticks
    found = facts.read(PLAIN + "stat_begin=100 0 0 800 0 0 0 100 0 0\nstat_end=110 0 0 820 0 0 0 170 0 0\n")
    assert found.steal == pytest.approx(0.7)
    assert found.steal_since_boot == pytest.approx(170 / 1100)
    assert facts.read(PLAIN).steal is None


def test_the_clock_is_compared_with_ours():
    found = facts.read(PLAIN + "time=1000.25\nntp=no\n", now=900.0)
    assert (found.time_offset_s, found.ntp) == (100.25, False)
    assert facts.read(PLAIN + "time=1000.%N\n", now=900.0).time_offset_s is None


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
