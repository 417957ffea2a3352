"""What the roles for GPU drivers make of what a host says: real Ansible, recorded facts, nothing installed."""

import base64
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from deployctl.hosts import facts, gpus

ROLES = Path(__file__).parents[2] / "playbooks" / "roles"
DEBIAN_12 = "os=debian 12 bookworm\nkernel=6.1.0-40-amd64\nmachine=x86_64\n"
DEBIAN_13 = "os=debian 13 trixie\nkernel=6.12.57+deb13-amd64\nmachine=x86_64\n"
UBUNTU = "os=ubuntu 24 noble\nkernel=6.8.0-79-generic\nmachine=x86_64\n"
EL_9 = "os=almalinux 9 none\nkernel=5.14.0-570.el9.x86_64\nmachine=x86_64\n"
EL_ARM = "os=rhel 10 none\nkernel=6.12.0-55.el10.aarch64\nmachine=aarch64\n"
L4 = "pci=0000:01:00.0 0x10de 0x27b8 0x030200\n"
MI300X = "pci=0000:1b:00.0 0x1002 0x74a1 0x120000\n"
MISMATCH = "nvidia_error=Failed to initialize NVML: Driver/library version mismatch NVML library version: 580.178\n"

# Each host by what it says, and what the roles are to make of that.
HOSTS: dict[str, tuple[str, dict[str, Any]]] = {
    "no card": (DEBIAN_12 + "pci=0000:00:02.0 0x1234 0x1111 0x030000\n", {"cards": 0, "amd_cards": 0}),
    "bare debian": (
        DEBIAN_13 + L4 + "nouveau=1\n",
        {
            "cards": 1,
            "fine": False,
            "packages": "linux-headers-6.12.57+deb13-amd64 nvidia-kernel-dkms nvidia-driver-bin nvidia-smi "
            "nvidia-persistenced libcuda1 libnvidia-ptxjitcompiler1",
            "repository": "distribution",
        },
    ),
    "debian by vendor": (
        DEBIAN_12 + L4,
        {
            "packages": "linux-headers-6.1.0-40-amd64 nvidia-driver-cuda nvidia-kernel-open-dkms",
            "folder": "https://developer.download.nvidia.com/compute/cuda/repos/debian12/x86_64",
        },
    ),
    "ubuntu": (UBUNTU + L4, {"packages": "ubuntu-drivers-common linux-headers-6.8.0-79-generic", "family": "ubuntu"}),
    "el": (
        EL_9 + L4,
        {
            "repository": "vendor",
            "packages": "kernel-devel-5.14.0-570.el9.x86_64 kernel-headers nvidia-driver-cuda kmod-nvidia-open-dkms",
            "folder": "https://developer.download.nvidia.com/compute/cuda/repos/rhel9/x86_64",
        },
    ),
    "el on arm": (EL_ARM + L4, {"folder": "https://developer.download.nvidia.com/compute/cuda/repos/rhel10/sbsa"}),
    "driven": (
        UBUNTU + L4 + "nvidia=00000000:09:00.0, 23034, 615.71.09, 8.9, NVIDIA L4\n",
        {"fine": True, "floor": 550},
    ),
    "too old": (
        UBUNTU + L4 + "nvidia=00000000:01:00.0, 24564, 535.161.07, 8.9, NVIDIA GeForce RTX 4090\n",
        {"fine": False, "floor": 550},
    ),
    # docs.ollama.com/gpu: capability 5.0 through 6.2 needs 570; 550 does for all others.
    "pascal on 550": (
        UBUNTU + L4 + "nvidia=00000000:01:00.0, 24576, 550.163.01, 6.1, Tesla P40\n",
        {"fine": False, "floor": 570, "weak": []},
    ),
    "pascal on 570": (UBUNTU + L4 + "nvidia=00000000:01:00.0, 24576, 570.86.15, 6.1, Tesla P40\n", {"fine": True}),
    "volta on 550": (UBUNTU + L4 + "nvidia=00000000:01:00.0, 16384, 550.163.01, 7.0, Tesla V100\n", {"fine": True}),
    "kepler": (UBUNTU + L4 + "nvidia=00000000:01:00.0, 11441, 470.256.02, 3.7, Tesla K80\n", {"weak": ["3.7"]}),
    "mismatch": (UBUNTU + L4 + MISMATCH + "nvidia_module=580.173.02\n", {"mismatch": True, "module": "580.173.02"}),
    "behind a terminal": ((DEBIAN_13 + L4).replace("\n", "\r\n"), {"cards": 1, "family": "debian"}),
    "bare mi300x": (
        DEBIAN_13 + MI300X,
        {"cards": 0, "amd_cards": 1, "amd_fine": False, "amd_packages": "firmware-amd-graphics"},
    ),
    "mi300x by the kernel": (
        UBUNTU + MI300X + "amd=0000:1b:00.0, 206141652992, , AMD Instinct MI300X OAM\n",
        {"amd_fine": True, "amd_packages": "linux-firmware linux-modules-extra-6.8.0-79-generic"},
    ),
    "mi300x of rocm 6": (
        UBUNTU + MI300X + "amd=0000:1b:00.0, 206141652992, 6.10.5, AMD Instinct MI300X OAM\namdgpu_module=6.10.5\n",
        {"amd_fine": False},
    ),
    "mi300x of rocm 7": (
        UBUNTU + MI300X + "amd=0000:1b:00.0, 206141652992, 6.16.6, AMD Instinct MI300X OAM\namdgpu_module=6.16.6\n",
        {"amd_fine": True},
    ),
    "debian by amd": (
        DEBIAN_13 + MI300X,
        {"amd_packages": "linux-headers-6.12.57+deb13-amd64 amdgpu-dkms", "amd_suite": "noble"},
    ),
    "a processor's graphics": (DEBIAN_13 + "pci=0000:04:00.0 0x1002 0x1681 0x030000\n", {"amd_cards": 0}),
}
TOLD = {"debian by vendor": {"nvidia_repository": "vendor"}, "debian by amd": {"amd_repository": "vendor"}}
SEEN = {
    "cards": "nvidia_cards | length",
    "fine": "nvidia_fine",
    "floor": "nvidia_floor | int",
    "weak": "nvidia_weak",
    "mismatch": "nvidia_mismatch",
    "module": "nvidia_module",
    "family": "nvidia_family",
    "repository": "nvidia_repository",
    "packages": "nvidia_wanted_packages | join(' ')",
    "folder": "nvidia_vendor_folder",
    "amd_cards": "amd_cards | length",
    "amd_fine": "amd_fine",
    "amd_packages": "amd_wanted_packages | join(' ')",
    "amd_suite": "amd_vendor_suite",
}


def play(folder: Path, text: str, hosts: dict[str, Any]) -> str:
    """Run a play over hosts that are this machine, with what each of them says; returns what Ansible printed."""
    (folder / "play.yml").write_text(text)
    (folder / "hosts.json").write_text(json.dumps({"all": {"hosts": hosts}}))
    environment = {"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8", "HOME": str(folder), "ANSIBLE_NOCOLOR": "1"}
    environment |= {"ANSIBLE_ROLES_PATH": str(ROLES), "ANSIBLE_LOCALHOST_WARNING": "False"}
    command = [str(Path(sys.executable).parent / "ansible-playbook"), "-i", "hosts.json", "play.yml"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, env=environment, check=False)
    assert "PLAY RECAP" in done.stdout, done.stdout + done.stderr
    return done.stdout


def said(name: str) -> dict[str, Any]:
    return {"ansible_connection": "local", "bootstrap_result": {"stdout": HOSTS[name][0]}, **TOLD.get(name, {})}


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What the roles' variables are for every host, from one run of Ansible that changes nothing."""
    shown = "{" + ", ".join(f"{key!r}: {expression}" for key, expression in SEEN.items()) + "}"
    text = (
        "- hosts: all\n  gather_facts: false\n  roles:\n"
        "    - {role: nvidia, nvidia_enabled: false}\n    - {role: amd, amd_enabled: false}\n"
        "  post_tasks:\n"
        '    - ansible.builtin.debug: {msg: "SEEN {{ inventory_hostname }} {{ '
        + shown
        + ' | to_json | b64encode }}"}\n'
    )
    out = play(tmp_path_factory.mktemp("seen"), text, {name: said(name) for name in HOSTS})
    found = re.findall(r"SEEN (.+?) ([A-Za-z0-9+/=]+)\"", out)
    return {name: json.loads(base64.b64decode(code)) for name, code in found}


@pytest.mark.parametrize("name", HOSTS)
def test_the_roles_read_what_a_host_says(name: str, seen: dict[str, dict[str, Any]]) -> None:
    wanted = HOSTS[name][1]
    assert {key: seen[name][key] for key in wanted} == wanted


def test_nothing_is_done_where_there_is_no_card_or_its_driver_is_fine_and_the_rest_is_refused_in_words(
    tmp_path: Path,
) -> None:
    """The roles themselves, as far as they go without a package manager."""
    hosts = ("no card", "driven", "mi300x by the kernel", "kepler", "mismatch", "mi300x of rocm 6")
    text = "- hosts: all\n  gather_facts: false\n  roles: [nvidia, amd]\n"
    out = play(tmp_path, text, {name: said(name) for name in hosts})
    recap = {
        name: (int(ok), int(changed), int(failed))
        for name, ok, changed, failed in re.findall(
            r"^(.+?)\s+: ok=(\d+)\s+changed=(\d+)\s+unreachable=0\s+failed=(\d+)", out, re.MULTILINE
        )
    }
    assert recap["no card"] == (0, 0, 0)
    assert recap["mi300x by the kernel"] == (0, 0, 0)
    assert recap["driven"] == (0, 0, 0)
    assert [recap[name][2] for name in ("kepler", "mismatch", "mi300x of rocm 6")] == [1, 1, 1]
    plain = " ".join(out.split())
    assert "compute capability 3.7, and Ollama needs 5.0" in plain
    assert "the driver was updated without a restart: the kernel still has the module 580.173.02" in plain
    assert "restart the host, then run this again; or allow it" in plain
    assert "amdgpu is 6.10.5, and Ollama needs that of ROCm 7 (6.14.14): take AMD's own" in plain


def test_the_floors_are_the_same_for_the_roles_and_for_the_look_at_a_host() -> None:
    def defaults(role: str) -> dict[str, Any]:
        return dict(YAML(typ="safe").load((ROLES / role / "defaults" / "main.yml").read_text()))

    nvidia, amd = defaults("nvidia"), defaults("amd")
    assert nvidia["nvidia_driver_floor"] == gpus.NVIDIA_DRIVER
    assert nvidia["nvidia_driver_floor_old_cards"] == gpus.NVIDIA_DRIVER_OLD_CARDS
    assert float(nvidia["nvidia_capability_floor"]) == gpus.NVIDIA_CAPABILITY
    assert amd["amd_driver_floor"] == gpus.AMDGPU_DRIVER


def test_the_playbooks_and_the_look_at_a_host_ask_it_the_same_about_gpus() -> None:
    asked = (ROLES / "bootstrap" / "files" / "gpu.sh").read_text()
    body = asked.partition("\n")[2].removesuffix("exit 0\n")
    assert len(body) > 500
    assert body in facts.script()
