"""Hold the predictions against the engine that runs here: `python benchmarks/sizing.py` (a minute, one JSON document).

Gemma 3 270M Q4_K_M on every core of this machine, four slots. Memory is what the server and its children hold. The
bandwidth is probed before and after, because a shared machine changes under the measurement; the prediction uses the
mean of both. `cpu_share` is the part of all CPUs that the engine got: 1.0 where nothing else ran.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Self

import httpx

from deployctl.catalog.load import load_catalog
from deployctl.jobs.hostprobe import SCRIPT
from deployctl.resources import Project
from deployctl.sandbox import processes
from deployctl.sandbox.engine import default_cache_dir, place_model, start_engine, stop_engine
from deployctl.sandbox.model import MODEL, gguf_path
from deployctl.sizing.fit import Capacity
from deployctl.sizing.memory import cpu_parts
from deployctl.sizing.speed import BAND_CPU_MEASURED, cpu_engine, prefill_tok_s, step_s

ROOT = Path(__file__).parents[1]
SLOTS, CONTEXT, TOKENS, PROMPT = 4, 1024, 64, 300


def bandwidth(cpus: int) -> float:
    """Read memory for two seconds, as the probe does on a host; GB/s."""
    done = subprocess.run(
        [sys.executable, "-", str(cpus), "2"], input=SCRIPT, capture_output=True, text=True, check=True
    )
    return int(done.stdout) / 1e9


def resident(pid: int) -> int:
    """Return the resident bytes of a process and its descendants, shared pages once (PSS)."""
    total = 0
    for each in (pid, *processes.descendants(pid)):
        rollup = Path(f"/proc/{each}/smaps_rollup").read_text()
        total += int(next(line for line in rollup.splitlines() if line.startswith("Pss:")).split()[1]) * 1024
    return total


def cpu_seconds(pid: int) -> float:
    """Return the CPU time that a process and its descendants have used."""
    ticks = 0
    for each in (pid, *processes.descendants(pid)):
        ticks += sum(int(field) for field in Path(f"/proc/{each}/stat").read_text().rpartition(")")[2].split()[11:13])
    return ticks / os.sysconf("SC_CLK_TCK")


class Share:
    """The share of all CPUs that the engine gets during a block: on a busy machine, what is left of the prediction."""

    def __init__(self, pid: int, cpus: int) -> None:
        self._pid, self._cpus = pid, cpus
        self.value = 1.0

    def __enter__(self) -> Self:
        self._began, self._used = time.monotonic(), cpu_seconds(self._pid)
        return self

    def __exit__(self, *_: object) -> None:
        self.value = (cpu_seconds(self._pid) - self._used) / (time.monotonic() - self._began) / self._cpus


def ask(url: str, number: int, *, prompt: int, tokens: int) -> dict[str, int]:
    words = " ".join(f"{number}w{i}" for i in range(prompt // 4))
    options = {"num_predict": tokens, "temperature": 0.0, "seed": number, "stop": []}
    body = {"model": MODEL.reference, "prompt": words, "raw": True, "stream": False, "options": options}
    answer: dict[str, int] = httpx.post(f"{url}/api/generate", json=body, timeout=300).raise_for_status().json()
    return answer


def decode_rate(url: str, streams: int, first: int) -> float:
    """Return tokens per second of one of ``streams`` streams (median)."""
    with ThreadPoolExecutor(streams) as pool:
        answers = list(pool.map(lambda n: ask(url, first + n, prompt=40, tokens=TOKENS), range(streams)))
    return statistics.median((a["eval_count"] - 1) / (a["eval_duration"] / 1e9) for a in answers)


def main() -> None:
    """Measure, predict, compare."""
    cpus = os.cpu_count() or 1
    model = load_catalog(Project(Path("/nonexistent"))).model(MODEL.reference)
    cache = default_cache_dir(ROOT)
    settings = {"OLLAMA_NUM_PARALLEL": str(SLOTS), "OLLAMA_CONTEXT_LENGTH": str(CONTEXT)}
    with tempfile.TemporaryDirectory() as folder:
        models = Path(folder) / "models"
        place_model(models, gguf_path(cache))
        process, url = start_engine(cache, models, Path(folder) / "log", settings)
        try:
            ask(url, 0, prompt=40, tokens=4)
            before = bandwidth(cpus)
            with Share(process.pid, cpus) as share_one:
                one = statistics.median(decode_rate(url, 1, 10 + n) for n in range(3))
            with Share(process.pid, cpus) as share_many:
                many = statistics.median(decode_rate(url, SLOTS, 100 + 10 * n) for n in range(2))
            with Share(process.pid, cpus) as share_long:
                long = [ask(url, 200 + n, prompt=PROMPT, tokens=1) for n in range(3)]
            prefill = statistics.median(a["prompt_eval_count"] / (a["prompt_eval_duration"] / 1e9) for a in long)
            after = bandwidth(cpus)
            memory = resident(process.pid)
        finally:
            stop_engine(process)
    parts = cpu_parts(model, MODEL.variant, Capacity(4 * 1024**3), context=CONTEXT, slots=SLOTS, last_logits=True)
    engine = cpu_engine(cpus, (before + after) / 2)
    size = model.variants[MODEL.variant].bytes
    rows = {
        "memory_bytes": (parts.total - parts.os_reserve, memory, 1.0),
        "decode_tok_s_one": (1 / step_s(model, size, engine, batch=1, held=90), one, share_one.value),
        "decode_tok_s_each_of_four": (1 / step_s(model, size, engine, batch=SLOTS, held=90), many, share_many.value),
        "prefill_tok_s": (prefill_tok_s(model, engine), prefill, share_long.value),
    }
    table = {
        name: {
            "predicted": round(p, 2),
            "measured": round(m, 2),
            "measured_over_predicted": round(m / p, 3),
            "cpu_share": round(share, 3),
            "over_predicted_by_share": round(m / p / share, 3),
        }
        for name, (p, m, share) in rows.items()
    }
    document = {
        "cpus": cpus,
        "load_average": os.getloadavg()[0],
        "bandwidth_gb_s": [round(before, 2), round(after, 2)],
        "band": BAND_CPU_MEASURED,
        "parts": parts.to_dict(),
        **table,
    }
    print(json.dumps(document, indent=2))


if __name__ == "__main__":
    main()
