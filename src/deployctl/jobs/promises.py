"""What a plan promises, judged: hardware by the host's facts, one user's speed by order statistics. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from statistics import median

from deployctl.catalog.plans import Plan
from deployctl.hosts.facts import HostFacts
from deployctl.jobs.sold import DISK_SHORT, RAM_SHORT, usable_cpus
from deployctl.records.validation import Claim, Judgement
from deployctl.stats.median import median_bounds
from deployctl.units import GIB

LOOKS = (8, 16, 32)
"""After so many answers of one user the promises of speed are judged; the error is split evenly over the looks."""
ANSWER_TOKENS = 200


def hardware(plan: Plan, facts: HostFacts) -> tuple[Claim, ...]:
    """The hardware that was sold against the hardware that was found."""
    return tuple(_hardware(plan, facts))


def _hardware(plan: Plan, facts: HostFacts) -> Iterator[Claim]:
    cpus = usable_cpus(facts)
    quota = " (a quota allows no more)" if facts.cpu_quota and facts.cpu_quota < facts.cpus else ""
    yield _sold("cpus", plan.vcpus, cpus, "CPUs", cpus >= plan.vcpus, f"host has {cpus:g} × {facts.cpu_model}{quota}")
    ram = facts.ram_bytes / GIB
    enough = facts.ram_bytes >= RAM_SHORT * plan.ram_bytes
    yield _sold("memory", plan.ram_gb, round(ram, 2), "GB", enough, "the kernel keeps some for itself: 7 % are allowed")
    mounts = {entry.mount: entry.size_bytes for entry in facts.disks}
    disk = sum(mounts.values())
    if disk:
        fits = disk >= DISK_SHORT * plan.disk_bytes
        yield _sold("disk", plan.disk_gb, round(disk / 1e9, 1), "GB", fits, f"all file systems: {', '.join(mounts)}")
    else:
        yield Claim(kind="disk", promised=plan.disk_gb, unit="GB", verdict="INCONCLUSIVE", evidence="no disk was seen")
    if plan.gpus or facts.gpus:
        yield _gpus(plan, facts)


def _gpus(plan: Plan, facts: HostFacts) -> Claim:
    left = list(facts.gpus)
    wanted = sum(gpu.count for gpu in plan.gpus)
    matched, mute = 0, 0
    for sold in plan.gpus:
        for _ in range(sold.count):
            fitting = [gpu for gpu in left if _same_card(sold.model, gpu.model) or not gpu.vram_bytes]
            big = [gpu for gpu in fitting if not gpu.vram_bytes or gpu.vram_bytes >= RAM_SHORT * sold.vram_gb * GIB]
            if big:
                mute += not big[0].vram_bytes
                left.remove(big[0])
                matched += 1
    found = ", ".join(f"{gpu.model} {gpu.vram_bytes / GIB:.0f} GiB" for gpu in facts.gpus) or "none"
    verdict: Judgement = "PASS" if matched >= wanted else "FAIL"
    evidence = f"host has {found}"
    if verdict == "PASS" and mute:
        verdict, evidence = "INCONCLUSIVE", f"{evidence}; no driver says what they are"
    return Claim(
        kind="gpus", promised=wanted, unit="GPUs", estimate=matched, target=wanted, verdict=verdict, evidence=evidence
    )


def _same_card(sold: str, found: str) -> bool:
    """Whether every word of the sold name is in the found one; memory is judged by its bytes."""
    words = {word for word in re.split(r"[^a-z0-9]+", sold.lower()) if word and not re.fullmatch(r"\d+gb?", word)}
    return words <= set(re.split(r"[^a-z0-9]+", found.lower()))


def _sold(kind: str, promised: float, found: float, unit: str, enough: bool, evidence: str) -> Claim:
    verdict: Judgement = "PASS" if enough else "FAIL"
    return Claim(
        kind=kind, promised=promised, unit=unit, estimate=found, target=promised, verdict=verdict, evidence=evidence
    )


def speed(
    model: str,
    answers: Sequence[tuple[float, float]],
    *,
    tokens_per_s: float | None,
    seconds: float | None,
    confidence: float = 0.95,
) -> tuple[Claim, ...]:
    """Judge what is promised of one user alone, from (TTFT, TPOT) of its answers in seconds, in the order of time.

    The promise is read as one of the median answer. The bounds hold at every look of ``LOOKS``: the chance that any
    of them errs is 1 - ``confidence``. Failed answers are infinite. INCONCLUSIVE where the median is not yet decided.
    """
    level = 1.0 - (1.0 - confidence) / len(LOOKS)
    claims = []
    if tokens_per_s is not None:
        rates = [1.0 / tpot if 0 < tpot < math.inf else 0.0 for _, tpot in answers]
        claims.append(_median_claim("tokens_per_s", model, tokens_per_s, rates, "tokens/s", level, more=True))
    if seconds is not None:
        times = [ttft + (ANSWER_TOKENS - 1) * tpot for ttft, tpot in answers]
        claims.append(_median_claim("seconds_for_200_tokens", model, seconds, times, "s", level, more=False))
    return tuple(claims)


def _median_claim(
    kind: str, model: str, promised: float, values: Sequence[float], unit: str, level: float, *, more: bool
) -> Claim:
    low, high = median_bounds(values, level)
    verdict: Judgement = "INCONCLUSIVE"
    if (low >= promised) if more else (high <= promised):
        verdict = "PASS"
    elif (high < promised) if more else (low > promised):
        verdict = "FAIL"
    return Claim(
        kind=kind,
        model=model,
        promised=promised,
        unit=unit,
        estimate=_finite(median(values)) if values else None,
        low=_finite(low),
        high=_finite(high),
        target=promised,
        verdict=verdict,
        evidence=f"median of {len(values)} answers of one user alone",
    )


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
