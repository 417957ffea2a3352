from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from deployctl.catalog.catalog import Catalog
from deployctl.catalog.models import ModelEntry
from deployctl.sizing.memory import compute_bytes, kv_bytes
from deployctl.sizing.show import from_show
from deployctl.sizing.weights import file_bytes, table_bytes

MIB = 1024**2
TABLE: dict[str, Any] = YAML(typ="safe", pure=True).load(
    Path(__file__).with_name("published_memory.yml").read_text(encoding="utf-8")
)
ROWS: list[dict[str, Any]] = TABLE["rows"]


def entry_of(catalog: Catalog, name: str) -> ModelEntry:
    """Return the catalogue's model, or one that the table describes as a header does."""
    if name not in TABLE["facts"]:
        return catalog.model(name)
    facts = dict(TABLE["facts"][name])
    architecture = facts.pop("architecture")
    info = {f"{architecture}.{key}": value for key, value in facts.items()}
    return from_show({"general.architecture": architecture, **info}, name=name)


def predicted(catalog: Catalog, row: dict[str, Any]) -> float:
    """Return the predicted bytes of a row, for the same thing that was published."""
    model = entry_of(catalog, row["model"])
    ubatch = row.get("ubatch", 512)
    if row["what"] == "projector":
        return model.projector_bytes
    if row["what"] == "table":
        return table_bytes(
            model.model_copy(update={"tied_embeddings": row["model"] == "command-r-35b"}), row["variant"]
        )
    if row["what"] == "state":
        return kv_bytes(model, 256, row["slots"]) - kv_bytes(
            model.model_copy(update={"recurrent_layers": 0}), 256, row["slots"]
        )
    if row["what"] == "weights":
        known = model.variants.get(row["variant"])
        return known.bytes if known is not None else file_bytes(model, row["variant"])
    if row["what"] == "compute":
        last = row.get("last_logits", False)
        return compute_bytes(model, ubatch, context=row.get("context", 0), last_logits=last)

    def kv(entry: ModelEntry) -> int:
        return kv_bytes(entry, row["context"], row["slots"], row.get("type", "f16"), ubatch=ubatch)

    if "layers" not in row:
        return kv(model)
    # A model without its full layers has the windows' cache only; the full layers' is the difference.
    without = {
        "kv_heads": tuple(
            heads if windowed else 0
            for heads, windowed in zip(model.kv_heads_by_layer, model.windowed_by_layer, strict=True)
        )
    }
    only_windows = kv(model.model_copy(update=without))
    return only_windows if row["layers"] == "window" else kv(model) - only_windows


def size(row: dict[str, Any]) -> float:
    """Return the published figure in bytes."""
    return float(row["gib"] * 1024 * MIB if "gib" in row else row["mib"] * MIB)


def name(row: dict[str, Any]) -> str:
    return "-".join(str(row[key]) for key in ("what", "model", "variant", "context", "slots", "layers") if key in row)


@pytest.mark.parametrize("row", ROWS, ids=map(name, ROWS))
def test_no_prediction_is_more_than_12_percent_off(catalog: Catalog, row: dict[str, Any]) -> None:
    assert predicted(catalog, row) == pytest.approx(size(row), rel=0.12), TABLE["sources"][row["source"]]


def test_the_median_error_of_40_rows_or_more_is_at_most_5_percent(catalog: Catalog) -> None:
    errors = sorted(abs(predicted(catalog, row) / size(row) - 1) for row in ROWS)
    assert len(errors) >= 40
    assert errors[len(errors) // 2] <= 0.05


def test_rows_that_no_formula_was_written_for_are_predicted_as_well(catalog: Catalog) -> None:
    errors = sorted(abs(predicted(catalog, row) / size(row) - 1) for row in ROWS if row.get("unseen"))
    assert len(errors) >= 15
    assert errors[len(errors) // 2] <= 0.01
    assert errors[-1] <= 0.12


def test_every_row_names_its_source() -> None:
    assert {row["source"] for row in ROWS} == set(TABLE["sources"])
