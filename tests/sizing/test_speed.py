from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ruamel.yaml import YAML

from deployctl.catalog.catalog import Catalog
from deployctl.catalog.plans import Gpu
from deployctl.sizing.memory import elements_by_layer
from deployctl.sizing.speed import (
    Engine,
    cpu_engine,
    decode_parameters,
    gpu_engine,
    prefill_parameters,
    share_read,
    step_s,
)
from deployctl.sizing.weights import file_bytes

TABLE = Path(__file__).with_name("published_speeds.yml")
PUBLISHED: dict[str, Any] = YAML(typ="safe", pure=True).load(TABLE.read_text(encoding="utf-8"))


def rows() -> list[tuple[str, dict[str, Any], Engine]]:
    found = []
    for row in PUBLISHED["gpu"]:
        gpu = Gpu(model=row["gpu"], vram_gb=80, memory_bandwidth_gb_s=row["bandwidth"])
        found.append((f"{row.get('count', 1)} x {row['gpu']}", row, gpu_engine(gpu)))
    found += [(row["host"], row, cpu_engine(row["cpus"], row["bandwidth"])) for row in PUBLISHED["cpu"]]
    return found


def predicted(catalog: Catalog, row: dict[str, Any], engine: Engine) -> float:
    model = catalog.model(row["model"])
    known = model.variants.get(row["variant"])
    size = known.bytes if known is not None else file_bytes(model, row["variant"])
    batch = row.get("batch", 1)
    return batch / step_s(model, size, engine, batch=batch, held=row["held"])


def test_the_band_covers_at_least_four_of_five_published_speeds(catalog: Catalog) -> None:
    ratios = [(name, row["tok_s"] / predicted(catalog, row, engine), engine.band) for name, row, engine in rows()]
    assert len(ratios) >= 20
    covered = [1 / band <= ratio <= band for _, ratio, band in ratios]
    assert sum(covered) / len(covered) >= 0.8, ratios


@pytest.mark.parametrize("kind", ["one stream", "several streams"])
def test_speeds_that_no_constant_was_fitted_to_are_covered_as_well(catalog: Catalog, kind: str) -> None:
    chosen = [
        (name, row["tok_s"] / predicted(catalog, row, engine), engine.band)
        for name, row, engine in rows()
        if row.get("unseen") and (row.get("batch", 1) > 1) == (kind == "several streams")
    ]
    covered = [1 / band <= ratio <= band for _, ratio, band in chosen]
    assert len(chosen) >= 9
    assert sum(covered) / len(covered) >= 0.8, chosen


def test_the_median_prediction_is_within_a_tenth(catalog: Catalog) -> None:
    errors = sorted(abs(predicted(catalog, row, engine) / row["tok_s"] - 1) for _, row, engine in rows())
    assert errors[len(errors) // 2] <= 0.10


def test_decode_never_beats_the_memory_bandwidth(catalog: Catalog) -> None:
    # The bound of the design note: decode <= bandwidth / bytes of the weights that are read.
    for _, row, engine in rows():
        model = catalog.model(row["model"])
        if row["bandwidth"] and "batch" not in row and row["variant"] in model.variants:
            read = model.variants[row["variant"]].bytes * decode_parameters(model) / model.parameters
            assert predicted(catalog, row, engine) <= row["bandwidth"] * 1e9 / read


def test_an_untied_input_embedding_is_looked_up_and_not_read(catalog: Catalog) -> None:
    # Llama 3.1 8B: 8,030,261,248 parameters, of which 128,256 x 4,096 are the input embedding.
    llama = catalog.model("llama3.1:8b")
    assert decode_parameters(llama) == 8_030_261_248 - 525_336_576
    assert prefill_parameters(llama) == 8_030_261_248 - 2 * 525_336_576
    assert decode_parameters(catalog.model("llama3.2:1b")) == 1_235_814_400


def test_mixtral_decodes_by_its_active_experts_and_is_stored_with_all(catalog: Catalog) -> None:
    # Two of eight experts: 12.75 of 46.57 billion parameters are read for one token, and more for a batch.
    mixtral = catalog.model("mixtral:8x7b")
    assert share_read(mixtral, 1) == pytest.approx(12.75 / 46.70, rel=0.01)
    assert share_read(mixtral, 64) == pytest.approx(46.57 / 46.70, rel=0.01)
    engine = cpu_engine(32, 60)
    dense = catalog.model("llama2:13b")
    fast = step_s(mixtral, mixtral.variants["q4_0"].bytes, engine, batch=1, held=0)
    slow = step_s(dense, dense.variants["q4_0"].bytes, engine, batch=1, held=0)
    assert fast == pytest.approx(slow, rel=0.1)


@settings(deadline=None, max_examples=50)
@given(st.integers(1, 32), st.integers(1, 32), st.floats(0, 8192))
def test_a_larger_batch_is_never_slower_in_total_and_never_faster_for_one(
    catalog: Catalog, one: int, other: int, held: float
) -> None:
    few, many = sorted((one, other))
    model = catalog.model("llama3.1:8b")
    for engine in (cpu_engine(8, 40), gpu_engine(Gpu(model="L4", vram_gb=24, memory_bandwidth_gb_s=300))):
        short = step_s(model, 4.9e9, engine, batch=few, held=held)
        long = step_s(model, 4.9e9, engine, batch=many, held=held)
        assert short <= long
        assert few / short <= many / long * (1 + 1e-9)


def test_a_full_context_costs_time_only_where_layers_attend_to_all_of_it(catalog: Catalog) -> None:
    # Gemma 3 27B with 32,768 tokens held reads 10 full layers' cache, not 62: 2.5 GiB + 52 windows of 8 MiB.
    gemma = catalog.model("gemma3:27b")
    engine = Engine(bandwidth=1e9, decode_flops=1e30, prefill_flops=1e30, layer_s=0, overlap=1, band=1, label="")
    empty = step_s(gemma, 16e9, engine, batch=1, held=0)
    full = step_s(gemma, 16e9, engine, batch=1, held=32768)
    per_layer = elements_by_layer(gemma)[0] * 2
    assert per_layer == 8192
    assert (full - empty) * 1e9 == pytest.approx(10 * 32768 * 8192 + 52 * 1024 * 8192, rel=1e-6)
