"""A scenario: a server, a workload and an SLO whose capacity is known. The schema, and the loader of its YAML files."""

from __future__ import annotations

import difflib
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from deployctl.capacity.probe import Slo
from deployctl.catalog.distributions import Amount
from deployctl.errors import CatalogError


class _Spec(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class SpeedNoise(_Spec):
    """A neighbour on the same machine: rates times exp(X - cv²/2), X a stationary AR(1) redrawn each whole second.

    ``cv`` is the deviation of X, exp(-1/``tau_s``) its coefficient from one second to the next.
    """

    cv: float = Field(gt=0, le=2)
    tau_s: float = Field(gt=0)


class Steal(_Spec):
    """From ``from_s`` to ``to_s`` (seconds on the server's clock) the rates lose ``fraction`` of themselves."""

    from_s: float = Field(ge=0)
    to_s: float = Field(gt=0)
    fraction: float = Field(gt=0, le=1)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.to_s <= self.from_s:
            raise ValueError(f"to_s {self.to_s:g} must be after from_s {self.from_s:g}")
        return self


class Stall(_Spec):
    """From ``at_s`` on, for ``for_s`` seconds, nothing moves."""

    at_s: float = Field(ge=0)
    for_s: float = Field(gt=0)


class Server(_Spec):
    """The modelled server. Rates in tokens/s; ``decode_tokens_per_s[k-1]`` is the total of k active requests."""

    slots: int = Field(ge=1, le=4096)
    prefill_tokens_per_s: float = Field(gt=0)
    decode_tokens_per_s: tuple[float, ...] = Field(min_length=1)
    queue_limit: int | None = Field(default=None, ge=0)
    coalesce: int = Field(default=1, ge=1)
    cliff_above: int | None = Field(default=None, ge=0)
    cliff_factor: float = Field(default=1.0, gt=0)
    drift_per_hour: float = 0.0
    speed_noise: SpeedNoise | None = None
    steal: tuple[Steal, ...] = ()
    stalls: tuple[Stall, ...] = ()

    @model_validator(mode="after")
    def _check(self) -> Self:
        if any(rate <= 0 for rate in self.decode_tokens_per_s):
            raise ValueError("every rate in decode_tokens_per_s must be above 0")
        if len(self.decode_tokens_per_s) < self.slots:
            count = len(self.decode_tokens_per_s)
            raise ValueError(f"decode_tokens_per_s has {count} rates for {self.slots} slots: write one per slot")
        return self

    def prefill_rate(self, active: int) -> float:
        """Prompt tokens per second of *one* of ``active`` requests, before what slows the whole machine."""
        return self.prefill_tokens_per_s * self._cliff(active) / active

    def decode_rate(self, active: int) -> float:
        """Output tokens per second of *one* of ``active`` requests, before what slows the whole machine."""
        return self.decode_tokens_per_s[active - 1] * self._cliff(active) / active

    def _cliff(self, active: int) -> float:
        return self.cliff_factor if self.cliff_above is not None and active > self.cliff_above else 1.0

    @property
    def undisturbed(self) -> Server:
        """This server without its transients (steal, stalls, drift): what its long-run capacity is asked of."""
        return self.model_copy(update={"steal": (), "stalls": (), "drift_per_hour": 0.0})


class WorkloadSpec(_Spec):
    """What a user does. ``thinking_share`` of the answer is thinking; ``shared_prefix`` of the prompt is cached."""

    prompt_tokens: Amount
    output_tokens: Amount
    think_s: Amount
    thinking_share: float = Field(default=0.0, ge=0, le=1)
    shared_prefix: float = Field(default=0.0, ge=0, lt=1)


class SloSpec(_Spec):
    """Thresholds in seconds on one request (null: not asked), and the share that must meet all of them."""

    ttft_s: float | None = Field(default=None, gt=0)
    tpot_s: float | None = Field(default=None, gt=0)
    e2e_s: float | None = Field(default=None, gt=0)
    attainment: float = Field(default=0.95, gt=0, lt=1)

    def to_slo(self) -> Slo:
        """Return the SLO as the search takes it."""
        return Slo(self.ttft_s, self.tpot_s, self.e2e_s, self.attainment)


class Scenario(_Spec):
    """One server under one workload with one SLO, under a name."""

    name: str = Field(min_length=1, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    server: Server
    workload: WorkloadSpec
    slo: SloSpec

    @property
    def digest(self) -> str:
        """A SHA-256 of everything but the name: equal for scenarios that must have equal capacity."""
        content = self.model_dump(mode="json", exclude={"name"})
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


_MOST_BYTES = 1 << 20


def parse_scenario(
    data: Mapping[str, Any], source: str = "scenario", lines: Mapping[tuple[Any, ...], int] | None = None
) -> Scenario:
    """Validate ``data`` as a scenario.

    ``source`` names the file in messages and ``lines`` gives the line (from 1) of each key path. Raises CatalogError
    that names the key, its line and, for an unknown key, the nearest known one.
    """
    try:
        return Scenario.model_validate(data)
    except ValidationError as error:
        problems = [_describe(dict(problem), lines or {}) for problem in error.errors(include_url=False)]
        raise CatalogError(
            f"{source}: " + "; ".join(problems), hint="compare with benchmarks/scenarios/reference.yml"
        ) from None


def load_scenario(path: Path) -> Scenario:
    """Read one scenario file. Raises CatalogError when it is missing, not YAML, or not a scenario."""
    from ruamel.yaml import YAML
    from ruamel.yaml.comments import CommentedMap
    from ruamel.yaml.error import YAMLError

    try:
        with path.open("rb") as file:
            content = file.read(_MOST_BYTES + 1)  # a device has no end
        if len(content) > _MOST_BYTES:
            raise CatalogError(
                f"{path}: more than {_MOST_BYTES >> 20} MiB: not a scenario", hint="ls benchmarks/scenarios"
            )
        data = YAML(typ="rt", pure=True).load(content.decode("utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise CatalogError(
            f"{path}: {getattr(error, 'strerror', None) or error}", hint="ls benchmarks/scenarios"
        ) from None
    except YAMLError as error:
        raise CatalogError(f"{path}: not valid YAML: {' '.join(str(error).split())}") from None
    if not isinstance(data, CommentedMap):
        raise CatalogError(f"{path}: a scenario is a mapping with name, server, workload and slo")
    return parse_scenario(_plain(data), str(path), _lines(data))


def load_folder(folder: Path) -> tuple[Scenario, ...]:
    """Read every ``*.yml`` of ``folder``, by file name. Raises CatalogError when there is none or a name is taken."""
    paths = sorted(folder.glob("*.yml"))
    if not paths:
        raise CatalogError(f"{folder}: no scenario (*.yml) there", hint="ls benchmarks/scenarios")
    scenarios: dict[str, Scenario] = {}
    for path in paths:
        scenario = load_scenario(path)
        if scenario.name in scenarios:
            raise CatalogError(f"{path}: the name {scenario.name} is taken by another file of this folder")
        scenarios[scenario.name] = scenario
    return tuple(scenarios.values())


def _plain(node: Any) -> Any:
    if isinstance(node, Mapping):
        return {str(key): _plain(value) for key, value in node.items()}
    if isinstance(node, list):
        return [_plain(value) for value in node]
    return node


def _lines(node: Any, path: tuple[Any, ...] = ()) -> dict[tuple[Any, ...], int]:
    found: dict[tuple[Any, ...], int] = {}
    items = node.items() if isinstance(node, Mapping) else enumerate(node) if isinstance(node, list) else ()
    for key, value in items:
        here = (*path, key)
        position = node.lc.data.get(key) if getattr(node, "lc", None) is not None and node.lc.data else None
        if position:
            found[here] = position[0] + 1
        found.update(_lines(value, here))
    return found


def _describe(problem: dict[str, Any], lines: Mapping[tuple[Any, ...], int]) -> str:
    location: tuple[Any, ...] = problem["loc"]
    where = ".".join(str(part) for part in location) or "the file"
    line = next((lines[location[:size]] for size in range(len(location), 0, -1) if location[:size] in lines), None)
    prefix = f"line {line}: {where}" if line else where
    if problem["type"] == "extra_forbidden":
        near = difflib.get_close_matches(str(location[-1]), _known_keys(location[:-1]), n=1, cutoff=0.5)
        return f"{prefix} is not a key" + (f" (did you mean {near[0]}?)" if near else "")
    message = str(problem["msg"]).removeprefix("Value error, ")
    return f"{prefix}: {message[:1].lower()}{message[1:]}"


def _known_keys(path: tuple[Any, ...]) -> list[str]:
    """The keys that the schema allows under ``path``."""
    model: Any = Scenario
    for part in path:
        if isinstance(part, int):
            continue
        model = _inner_model(model.model_fields[part].annotation) if part in model.model_fields else None
        if model is None:
            return []
    return list(model.model_fields)


def _inner_model(annotation: Any) -> Any:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for item in getattr(annotation, "__args__", ()) if (found := _inner_model(item))), None)
