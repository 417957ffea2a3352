"""The record: one immutable, versioned document of a run (`record.json`)."""

from __future__ import annotations

import json
from typing import Annotated, Literal

from pydantic import Field, ValidationError, computed_field

from deployctl.errors import RecordError
from deployctl.records import migrations
from deployctl.records.digest import KEY, content_digest
from deployctl.records.parts import (
    Baseline,
    Capacity,
    Deployment,
    Host,
    Model,
    Plan,
    Probe,
    Problem,
    Samples,
    Sizing,
    Slo,
    Workload,
)
from deployctl.records.values import Free, Moment, Part, Seconds

SCHEMA_VERSION: Literal[2] = 2
SEALED_SINCE = 2  # records of schema version 1 carry no digest
RUN_ID = r"^\d{8}T\d{6}Z-[0-9a-f]{4,}$"
MAX_BYTES = 64 * 1024**2  # a record is some ten kilobytes; more is not one of ours

RunStatus = Literal["finished", "cancelled", "failed"]


class Record(Part):
    """Everything that a run was asked, found, did and concluded. Sizes in bytes, times in seconds, shares of 1."""

    schema_version: Literal[2] = Field(default=SCHEMA_VERSION, description="version of this schema")
    run_id: Annotated[str, Field(pattern=RUN_ID)] = Field(description="id of the run, sortable by time")
    started_at: Moment = Field(description="start of the run, UTC")
    ended_at: Moment = Field(description="end of the run, UTC")
    deployctl_version: str = Field(description="version of deployctl that wrote the record")
    plan: Plan | None = Field(description="what is sold; null: a load test of a server without a plan")
    model: Model = Field(description="what was served")
    host: Host | None = Field(description="the machine, as found; null: only its API was reached")
    deployment: Deployment = Field(description="engine and settings")
    sizing: Sizing | None = Field(description="the fit; null: nothing was sized")
    workload: Workload = Field(description="what a user did")
    slo: Slo = Field(description="what a request must meet")
    baseline: Baseline | None = Field(description="one user alone; null: not measured")
    probes: tuple[Probe, ...] = Field(description="load levels in the order in which they were held")
    capacity: Capacity = Field(description="the answer")
    timings: dict[str, Seconds] = Field(description="wall time of every step, seconds, in order")
    status: RunStatus = Field(default="finished", description="`finished`, `cancelled` or `failed`")
    seconds_by_activity: dict[str, Seconds] = Field(
        default_factory=dict, description="what the search spent its time on, seconds"
    )
    conditions: Free = Field(default_factory=dict, description="other circumstances of the test, by name")
    telemetry: Free = Field(default_factory=dict, description="the host over the whole run")
    samples: tuple[Samples, ...] = Field(default=(), description="the files of raw requests; empty: none were kept")
    problem: Problem | None = Field(default=None, description="why the run did not finish")
    notes: tuple[str, ...] = Field(default=(), description="remarks that a reader should know")
    not_proven: tuple[str, ...] = Field(default=(), description="what this run does not show, beyond the usual")

    # mypy knows no decorator on top of a property
    @computed_field(description="SHA-256 of everything else in the record; what it is taken over is said above")  # type: ignore[prop-decorator]
    @property
    def digest(self) -> str:
        """The seal: what a record must still have when it is read."""
        return content_digest(self.model_dump(mode="json", exclude={KEY}))

    def to_json(self) -> str:
        """Return the record as indented JSON (RFC 8259: no NaN, no Infinity), ending in a newline."""
        return json.dumps(self.model_dump(mode="json"), indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def parse_record(text: str | bytes, *, source: str = "record") -> Record:
    """Read a record of this or any older schema version; ``source`` names it in errors.

    Raises RecordError for what is not JSON, not a record, of a newer version than this program knows, or whose digest
    is not that of its content: a record that was edited is not believed.
    """
    if len(text) > MAX_BYTES:
        raise RecordError(f"{source} has more than {MAX_BYTES // 1024**2} MiB: that is no record")
    try:
        data = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise RecordError(f"{source} is not JSON: {error}") from None
    if not isinstance(data, dict):
        raise RecordError(f"{source} is not a record: it holds no JSON object")
    upgraded = migrations.upgrade(data, to_version=SCHEMA_VERSION, source=source)
    _check_seal(data, source)
    upgraded.pop(KEY, None)
    try:
        return Record.model_validate_json(json.dumps(upgraded), strict=True)
    except ValidationError as error:
        raise RecordError(f"{source} is not a valid record: {_first(error)}") from None


def _check_seal(data: dict[str, object], source: str) -> None:
    """Hold a document, in the version in which it was written, against its own digest."""
    version, digest = data["schema_version"], data.get(KEY)
    if digest is None and version < SEALED_SINCE:  # type: ignore[operator]  # upgrade has seen that it is a number
        return
    if not isinstance(digest, str):
        raise RecordError(f"{source} has no digest: it was not written by deployctl, or was edited")
    if digest != content_digest(data):
        raise RecordError(
            f"{source} is not what was written: its digest does not fit its content, so somebody edited it",
            hint="deployctl records verify",
        )


def schema_json() -> str:
    """Return the JSON Schema (draft 2020-12) of a record as text, for publishing."""
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **Record.model_json_schema(mode="serialization"),
    }
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


def _first(error: ValidationError) -> str:
    problems = error.errors(include_url=False, include_input=False)
    first = problems[0]
    where = ".".join(str(part) for part in first["loc"]) or "the whole"
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    return f"{where}: {first['msg']}{more}"
