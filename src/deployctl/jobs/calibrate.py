"""What past runs on the same class of host say about the predictions: the calibration that the store holds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from deployctl.catalog.catalog import Catalog
from deployctl.catalog.models import Variant
from deployctl.catalog.plans import Plan
from deployctl.errors import DeployctlError
from deployctl.records.schema import Record
from deployctl.records.store import RunStore
from deployctl.sizing.calibration import Calibration, Measured, calibrate
from deployctl.sizing.fit import Fit, Parts
from deployctl.sizing.speed import engine_of, step_seconds

NEWEST = 200


def past_records(data_dir: Path) -> Iterator[Record]:
    """Yield the records that are kept, newest first. The only place here that knows how they are stored."""
    for entry in RunStore(data_dir).list(NEWEST):
        if entry.record is not None:
            yield entry.record


def calibration_for(plan: Plan, catalog: Catalog, records: Iterable[Record]) -> Calibration | None:
    """Return how measured baselines of this host class compare with today's prediction; None without any.

    The class is the plan as it is sold now (same id, CPUs and GPUs) or, with GPUs, any plan with the same ones. Runs of
    the embedded engine count only where there is no other: its speed is not Ollama's.
    """
    alike = [record for record in records if _alike(record, plan)]
    genuine = [record for record in alike if record.deployment.engine != "embedded"]
    chosen = genuine or alike
    pairs = [pair for record in chosen if (pair := _pair(record, plan, catalog)) is not None]
    engine = "" if genuine else ", engine: embedded"
    return calibrate(pairs, engine_of(plan).band, f"{plan.id}{engine}")


def _alike(record: Record, plan: Plan) -> bool:
    if record.plan is None:
        return False
    gpus = [(gpu.model, gpu.count) for gpu in plan.gpus]
    same = [(gpu.model, gpu.count) for gpu in record.plan.gpus] == gpus
    return same and (bool(gpus) or (record.plan.id == plan.id and record.plan.vcpus == plan.vcpus))


def _pair(record: Record, plan: Plan, catalog: Catalog) -> Measured | None:
    """Return the measured speed of one user beside what is predicted today; None where either cannot be told."""
    measured = record.baseline.decode_tokens_per_s if record.baseline else None
    sizing = record.sizing
    if not measured or sizing is None or record.model.variant is None:
        return None
    try:
        model = catalog.model(record.model.name)
    except DeployctlError:
        return None
    workload = catalog.workloads.get(record.workload.name)
    held = workload.prompt_tokens.expected() + workload.output_tokens.expected() / 2 if workload else 0.0
    weights = record.model.bytes or sizing.bytes.weights
    if not weights:
        return None
    size = Variant(bytes=weights, source="the record")
    fit = Fit(
        model=model.model_copy(update={"variants": {**model.variants, record.model.variant: size}}),
        variant=record.model.variant,
        reference=record.model.name,
        bytes=Parts(weights, 0, 0, 0, 0, 0, 0),
        slots=1,
        context=sizing.context,
        kv_type="f16",
        gpu_layers=sizing.gpu_layers or 0,
        fits=True,
    )
    return Measured(1 / step_seconds(fit, plan, min(held, sizing.context), 1), measured)
