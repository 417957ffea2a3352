"""The GPUs of a host: what sits on the bus and what the drivers say of it; and the drivers that Ollama needs. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from deployctl.units import MIB

# `lspci -Dnn`: bus, class, vendor, then the name with its ids. The vendor's name may have brackets, too.
_LSPCI = re.compile(
    r"(?P<bus>\S+) .*\[[0-9a-f]{4}\]: (?:NVIDIA Corporation|Advanced Micro Devices, Inc\. \[AMD/ATI\]) "
    r"(?P<name>.+?) \[[0-9a-f]{4}:[0-9a-f]{4}\].*"
)
_VENDORS = {"0x10de": "nvidia", "0x1002": "amd"}
# Ollama's documented floors (docs.ollama.com/gpu). The roles `nvidia` and `amd` have the same.
NVIDIA_DRIVER = 550
NVIDIA_DRIVER_OLD_CARDS = 570  # for compute capability below 7.0
NVIDIA_CAPABILITY = 5.0
AMDGPU_DRIVER = "6.14.14"  # the one that ROCm 7.0 came with; a kernel's own has no version


@dataclass(frozen=True)
class GpuFacts:
    """One GPU. ``vram_bytes`` is 0 and ``driver`` empty when no driver answers for it."""

    vendor: str  # "nvidia" | "amd"
    model: str
    vram_bytes: int
    driver: str
    compute_capability: str
    bus_id: str


def read_gpus(values: Mapping[str, list[str]]) -> tuple[GpuFacts, ...]:
    """Join the bus with the drivers' answers; a card on the bus that no driver names is kept, with no VRAM."""
    found: dict[str, GpuFacts] = {}
    for line in values.get("pci", []):
        bus, vendor, device, kind = [*line.split(), "", "", "", ""][:4]
        # An AMD APU or a board's VGA chip is no accelerator unless a driver says so below.
        if vendor == "0x10de" or (vendor == "0x1002" and kind.startswith(("0x0380", "0x1200"))):
            found[_bus(bus)] = GpuFacts(_VENDORS[vendor], f"{_VENDORS[vendor]} {device}", 0, "", "", bus)
    for line in values.get("lspci", []):
        match = _LSPCI.fullmatch(line)
        if match and match["name"] != "Device" and (known := found.get(_bus(match["bus"]))):
            found[_bus(match["bus"])] = replace(known, model=match["name"])
    for line in values.get("nvidia", []):
        bus, vram, driver, capability, name = [*(part.strip() for part in line.split(",", 4)), "", "", "", "", ""][:5]
        if bus and name:
            size = int(vram) * MIB if vram.isdigit() else 0
            found[_bus(bus)] = GpuFacts("nvidia", name, size, driver, capability, bus)
    for line in values.get("amd", []):
        bus, vram, driver, name = [*(part.strip() for part in line.split(",", 3)), "", "", "", ""][:4]
        size = int(vram) if vram.isdigit() else 0
        found[_bus(bus)] = GpuFacts("amd", name or "amd GPU", size, driver or "in-kernel", "", bus)
    return tuple(found[bus] for bus in sorted(found))


def _bus(address: str) -> str:
    """``00000000:65:00.0`` (nvidia-smi) and ``0000:65:00.0`` (sysfs) are one address."""
    domain, _, rest = address.lower().partition(":")
    return f"{int(domain, 16):04x}:{rest}" if re.fullmatch(r"[0-9a-f]+", domain) else address.lower()


def gpu_problem(gpus: tuple[GpuFacts, ...], one: Mapping[str, str]) -> str:
    """Say why a card cannot compute: no driver answers, or its libraries and the loaded module are of two versions."""
    mute = [gpu.model for gpu in gpus if not gpu.driver]
    if "nvidia_error" in one and (mute or not gpus):
        if "version mismatch" not in one["nvidia_error"]:
            return one["nvidia_error"]
        loaded = f" {one['nvidia_module']}" if "nvidia_module" in one else ""
        return f"{one['nvidia_error']} (the driver was updated and its old module{loaded} is still loaded: reboot)"
    if mute:
        why = " (nouveau is loaded, and it cannot compute)" if one.get("nouveau") == "1" else ""
        return f"no driver answers for {', '.join(mute)}{why}"
    return ""


def too_old(gpus: Iterable[GpuFacts]) -> tuple[str, ...]:
    """What Ollama would leave to the CPU without a word: drivers below its floors, cards below its least capability."""
    found: dict[str, None] = {}
    for gpu in gpus:
        if gpu.vendor == "nvidia" and gpu.driver:
            capability = float(gpu.compute_capability) if re.fullmatch(r"\d+\.\d+", gpu.compute_capability) else None
            if capability is not None and capability < NVIDIA_CAPABILITY:
                found[f"{gpu.model} has compute capability {capability}, and Ollama needs {NVIDIA_CAPABILITY}"] = None
                continue
            floor = NVIDIA_DRIVER_OLD_CARDS if capability is not None and capability < 7.0 else NVIDIA_DRIVER
            if _numbers(gpu.driver) < (floor,):
                found[f"the driver of {gpu.model} is {gpu.driver}, and Ollama needs {floor}"] = None
        elif gpu.vendor == "amd" and gpu.driver[:1].isdigit() and _numbers(gpu.driver) < _numbers(AMDGPU_DRIVER):
            found[f"amdgpu is {gpu.driver}, and Ollama needs that of ROCm 7 ({AMDGPU_DRIVER})"] = None
    return tuple(found)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version))
