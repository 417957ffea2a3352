"""A validation: a plan's promises held against one or more hosts. A versioned, sealed document of its own."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field, ValidationError, computed_field

from deployctl.errors import RecordError
from deployctl.records.digest import KEY, content_digest
from deployctl.records.parts import Plan
from deployctl.records.schema import MAX_BYTES, RUN_ID
from deployctl.records.values import Finite, Moment, Part

Judgement = Literal["PASS", "FAIL", "INCONCLUSIVE"]
HARDWARE = ("cpus", "memory", "disk", "gpus")
Kind = Literal["cpus", "memory", "disk", "gpus", "users", "tokens_per_s", "seconds_for_200_tokens"]


@dataclass(frozen=True)
class Spread:
    """A promise over the hosts: the estimates of the worst and the best host, None where nothing was found."""

    claim: Claim
    worst: float | None
    worst_host: str
    best: float | None
    verdict: Judgement


class Claim(Part):
    """One promise, what was found of it, and the judgement."""

    kind: Kind = Field(description="what is promised")
    model: str | None = Field(default=None, description="the model that it is promised for; null: hardware")
    promised: float = Field(description="the promised figure, in the unit")
    unit: str = Field(default="", description="of the figures: CPUs, GB, GPUs, users, tokens/s, s")
    estimate: Finite = Field(
        default=None, description="what was found, in the unit; of users: the attainment with so many, a share of 1"
    )
    low: Finite = Field(default=None, description="lower bound of the estimate")
    high: Finite = Field(default=None, description="upper bound of the estimate")
    target: Finite = Field(default=None, description="what the estimate has to reach (seconds: not to exceed)")
    verdict: Judgement = Field(description="`PASS`, `FAIL` or `INCONCLUSIVE`")
    evidence: str = Field(default="", description="what the verdict stands on, in words")
    run_id: str | None = Field(default=None, description="the run that holds the evidence")


class HostVerdict(Part):
    """One host of the plan."""

    host: str = Field(description="its name")
    address: str = Field(default="", description="where it was reached")
    system: str = Field(default="", description="what it is, in words")
    engine: str = Field(default="", description="engine and version that were measured")
    claims: tuple[Claim, ...] = Field(default=(), description="the promises, hardware first")
    problem: str = Field(default="", description="why it could not be measured to the end; empty: it was")

    @property
    def verdict(self) -> Judgement:
        """The worst of its claims; a host that could not be measured decides nothing."""
        return worst([*(claim.verdict for claim in self.claims), *(["INCONCLUSIVE"] if self.problem else [])])


class Validation(Part):
    """A plan against its hosts."""

    schema_version: Literal[1] = Field(default=1, description="version of this schema")
    validation_id: Annotated[str, Field(pattern=RUN_ID)] = Field(description="id, sortable by time")
    started_at: Moment = Field(description="start, UTC")
    ended_at: Moment = Field(description="end, UTC")
    valid_until: Moment = Field(description="the certificate is not to be shown after this, UTC")
    deployctl_version: str = Field(description="version of deployctl that wrote it")
    confidence: float = Field(gt=0, lt=1, description="confidence of each single verdict")
    plan: Plan = Field(description="what is sold")
    conditions: tuple[str, ...] = Field(default=(), description="under which SLO, workload and budget, in words")
    hosts: tuple[HostVerdict, ...] = Field(min_length=1, description="the hosts, in the order in which they were asked")

    @property
    def verdict(self) -> Judgement:
        """The plan is as good as its worst host."""
        return worst(host.verdict for host in self.hosts)

    # mypy knows no decorator on top of a property
    @computed_field(description="SHA-256 of everything else")  # type: ignore[prop-decorator]
    @property
    def digest(self) -> str:
        """The seal."""
        return content_digest(self.model_dump(mode="json", exclude={KEY}))

    def to_json(self) -> str:
        """Return it as indented JSON ending in a newline."""
        return json.dumps(self.model_dump(mode="json"), indent=2, ensure_ascii=False, allow_nan=False) + "\n"

    def spread(self) -> tuple[Spread, ...]:
        """Each promise over all hosts: the worst host is the plan's."""
        keys = dict.fromkeys((claim.kind, claim.model) for host in self.hosts for claim in host.claims)
        return tuple(self._spread_of(kind, model) for kind, model in keys)

    def _spread_of(self, kind: Kind, model: str | None) -> Spread:
        found = [(h.host, c) for h in self.hosts for c in h.claims if (c.kind, c.model) == (kind, model)]
        less_is_better = kind == "seconds_for_200_tokens"
        known = [(claim.estimate, host) for host, claim in found if claim.estimate is not None]
        low, high = min(known, default=None), max(known, default=None)
        bad, good = (high, low) if less_is_better else (low, high)
        missing = len(self.hosts) - len(found)
        verdict = worst([*(claim.verdict for _, claim in found), *(["INCONCLUSIVE"] if missing else [])])
        first = found[0][1]
        return Spread(first, bad[0] if bad else None, bad[1] if bad else "", good[0] if good else None, verdict)


def worst(verdicts: Iterable[str]) -> Judgement:
    """FAIL outweighs INCONCLUSIVE, which outweighs PASS; nothing at all is INCONCLUSIVE."""
    seen = set(verdicts)
    if "FAIL" in seen:
        return "FAIL"
    return "PASS" if seen == {"PASS"} else "INCONCLUSIVE"


def parse_validation(text: str | bytes, *, source: str = "validation") -> Validation:
    """Read a validation; raises RecordError for what is none, or was edited."""
    if len(text) > MAX_BYTES:
        raise RecordError(f"{source} is too large for a validation")
    try:
        data = json.loads(text)
        digest = data.pop(KEY)
        found = Validation.model_validate_json(json.dumps(data), strict=True)
    except (ValueError, RecursionError, AttributeError, KeyError, TypeError, ValidationError) as error:
        raise RecordError(f"{source} is not a validation: {str(error).splitlines()[0]}") from None
    if digest != content_digest(data):
        raise RecordError(f"{source} is not what was written: its digest does not fit its content")
    return found
