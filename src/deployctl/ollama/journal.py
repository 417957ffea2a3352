"""What the server says of itself in its journal when it loads a model: slots, threads, buffers. Pure.

The lines are those of Ollama 0.30 and newer, which runs llama.cpp's ``llama-server``; older servers yield nothing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from deployctl.units import MIB

_START = re.compile(r'msg="starting llama-server"')
_SLOTS = re.compile(r"\s-np (\d+)\b")
_CONTEXT = re.compile(r"\s-c (\d+)\b")
_BUFFER = re.compile(r"(model|KV|compute|output) buffer size =\s*([\d.]+) MiB")
_THREADS = re.compile(r"threadpool init, n_threads = (\d+)")
_LAYERS = re.compile(r"offloaded (\d+)/(\d+) layers to GPU")


@dataclass(frozen=True)
class Loaded:
    """The newest load in a journal. Bytes are sums over devices; None or 0 where the journal does not say.

    ``slots`` is what the server really runs, whatever it was asked for; ``context`` is tokens per slot.
    """

    slots: int | None
    context: int | None
    threads: int | None
    gpu_layers: int | None
    layers: int | None
    weights_bytes: int
    kv_bytes: int
    compute_bytes: int


def newest_load(journal: str) -> Loaded | None:
    """Read the last load in ``journal``; None when there is none."""
    starts = list(_START.finditer(journal))
    if not starts:
        return None
    part = journal[starts[-1].start() :]
    line = part.splitlines()[0]
    sums = {"model": 0.0, "KV": 0.0, "compute": 0.0, "output": 0.0}
    for kind, size in _BUFFER.findall(part):
        sums[kind] += float(size) * MIB
    slots = _number(_SLOTS, line)
    total = _number(_CONTEXT, line)
    layers = _LAYERS.search(part)
    return Loaded(
        slots=slots,
        context=total // slots if total and slots else None,
        threads=_number(_THREADS, part),
        gpu_layers=int(layers.group(1)) if layers else None,
        layers=int(layers.group(2)) if layers else None,
        weights_bytes=round(sums["model"]),
        kv_bytes=round(sums["KV"]),
        compute_bytes=round(sums["compute"] + sums["output"]),
    )


def _number(pattern: re.Pattern[str], text: str) -> int | None:
    found = pattern.search(text)
    return int(found.group(1)) if found else None
