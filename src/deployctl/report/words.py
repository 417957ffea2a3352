"""A record in words: every sentence that a report says about capacity is made here, and nowhere else.

The rule of this file: never claim more than the record proves. What was not decided is called not decided, a run
that was not valid gives no number, and rounding always goes against the claim.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Literal

from deployctl.records.parts import Capacity, Dist, Slo, Workload
from deployctl.records.schema import Record
from deployctl.units import format_seconds

Tone = Literal["good", "mixed", "bad", "none"]

# Characters that change how the text around them is shown: terminal controls, line and paragraph separators, bidi.
_UNSHOWABLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028\u2029\u202a-\u202e\u2060-\u2069\ufeff\ud800-\udfff]"
)
_SPACE = re.compile(r"\s+")
_LONGEST = 400

_LIMITS = {
    "ttft": "time to first token",
    "tpot": "time per output token",
    "e2e": "time to the whole answer",
    "errors": "failed requests",
    "failures": "failed requests",
    "timeout": "requests that time out",
    "slots": "the number of slots",
    "queue": "the engine's request queue",
    "memory": "memory",
    "context": "the context length",
    "cpu": "the host's CPU",
    "gpu": "the host's GPU",
    "memory_bandwidth": "the host's memory bandwidth",
}

STATUSES = {
    "certified": "certified",
    "at_least": "certified, more not tried",
    "not_met": "SLO not met by one user",
    "inconclusive": "not decided",
    "invalid": "measurement invalid",
}

_ENGINES = {
    "ollama": "Ollama",
    "embedded": "embedded (llama.cpp behind Ollama's API; not a genuine Ollama)",
    "external": "external (an Ollama API that deployctl did not install)",
}


@dataclass(frozen=True)
class Answer:
    """What a run says: one line, the sentences that qualify it, and how it should feel."""

    headline: str
    details: tuple[str, ...]
    tone: Tone

    @property
    def detail(self) -> str:
        """The qualifying sentences as one paragraph."""
        return " ".join(self.details)


def clean(text: str, limit: int = _LONGEST) -> str:
    """Return ``text`` on one line, without terminal controls or bidi tricks, cut to ``limit`` characters."""
    shown = _SPACE.sub(" ", _UNSHOWABLE.sub("\ufffd", re.sub(r"[\t\r\n\v\f]+", " ", text))).strip()
    return shown if len(shown) <= limit else shown[: limit - 1] + "…"


def users(count: int) -> str:
    """``1 user``, ``11 users``."""
    return f"{count} user" if count == 1 else f"{count:,} users"


def percent(share: float, *, up: bool = False) -> str:
    """A share of 1 as percent with at most one decimal, rounded down (``up``: rounded up): 0.9499 is ``94.9 %``."""
    tenths = share * 1000
    # Six decimals of a tenth forgive the binary fraction (0.95 is 0.95), not a real difference.
    whole = math.ceil(round(tenths, 6)) if up else math.floor(round(tenths, 6))
    return f"{whole / 10:g} %"


def interval(low: float | None, high: float | None) -> str:
    """A confidence interval of a share: ``95.1–98.6 %``; empty where there is none."""
    if low is None or high is None:
        return ""
    return f"{percent(low).removesuffix(' %')}–{percent(high, up=True)}"


def latency(seconds: float | None) -> str:
    """A latency; ``∞`` for one that never came about."""
    return "∞" if seconds is None else format_seconds(seconds)


def subject(record: Record) -> str:
    """What was measured, for the start of a sentence: the plan, else the host, else "this server"."""
    if record.plan is not None:
        return clean(record.plan.id, 80)
    return clean(record.host.name, 80) if record.host is not None else "this server"


def limit(limited_by: str) -> str:
    """What one more user runs into, in words; an unknown limit is said as it is."""
    return _LIMITS.get(limited_by, clean(limited_by, 160))


def engine(name: str) -> str:
    """The engine, in words."""
    return _ENGINES.get(name, clean(name, 80))


def short(block: Capacity) -> str:
    """The certified users in a few characters, for a table: ``11``, ``11–13``, ``≥ 64``, ``0``, ``–``."""
    match block.status:
        case "at_least":
            return f"≥ {block.certified_users:,}"
        case "certified" if block.at_most_users is None:
            return f"≥ {block.certified_users:,}"
        case "certified":
            top = block.at_most_users or 0
            return f"{block.certified_users:,}" + (f"–{top:,}" if top > block.certified_users else "")
        case "not_met":
            return "0"
        case _:
            return "–"


def answer(record: Record) -> Answer:
    """Return what the run says; every report starts with it."""
    sentence = capacity(record.capacity, record.slo, subject(record), clean(record.model.name, 80))
    details = [*sentence.details]
    if record.capacity.status == "invalid":
        details.extend(_invalid_reasons(record))
    if record.status != "finished":
        why = f": {clean(record.problem.message)}" if record.problem else ""
        ended = "was cancelled before its end" if record.status == "cancelled" else "failed before its end"
        details.append(_sentence(f"The run {ended}{why}"))
    found = doubts(record)
    details.extend(found)
    if record.deployment.engine == "embedded":
        details.append("Engine: embedded (llama.cpp behind Ollama's API), not a genuine Ollama.")
    tone = "mixed" if found and sentence.tone == "good" else sentence.tone
    return Answer(sentence.headline, tuple(details), tone)


def capacity(block: Capacity, slo: Slo, plan: str, model: str) -> Answer:
    """Turn a capacity block into the sentence. ``plan`` and ``model`` are names that are fit to be shown."""
    name = clean(slo.name, 80) if slo.name else ""
    the_slo = f"the SLO “{name}”" if name else "the SLO"
    bound = block.at_most_users
    start = "This server" if plan == "this server" else plan  # ids of plans and hosts keep their case
    match block.status:
        case "certified" | "at_least":
            more = block.status == "at_least"
            least = "at least " if more else ""
            headline = f"{start} serves {least}{users(block.certified_users)} of {model}"
            return Answer(headline, (_proof(block, slo, the_slo), *_above(block, the_slo)), "good")
        case "not_met":
            headline = f"{start} does not serve even one user of {model} within {the_slo}"
            sure = f", with {percent(block.confidence)} confidence" if block.confidence is not None else ""
            first = f"With one user, fewer than {percent(slo.attainment)} of requests meet {the_slo}{sure}."
            return Answer(headline, (first, *_limiting(block)), "bad")
        case "inconclusive":
            proven = block.certified_users
            headline = f"Not decided: how many users of {model} {plan} serves"
            details = [
                f"{users(proven).capitalize()} {'was' if proven == 1 else 'were'} certified, no more was decided."
                if proven
                else "No number of users could be certified in the time given."
            ]
            if bound is not None:
                details.append(f"More than {users(bound)} can be ruled out; below that, nothing is proven.")
            details.append("More time decides more: give the search a longer --budget.")
            return Answer(headline, (*details, *_limiting(block)), "mixed")
        case "invalid":
            return Answer(
                f"No answer: the measurement of {model} on {plan} is invalid",
                ("Nothing about capacity follows from this run.",),
                "none",
            )


def doubts(record: Record) -> tuple[str, ...]:
    """Return what in the record contradicts or weakens its own answer, as sentences."""
    found = []
    certified = record.capacity.certified_users
    if certified:
        if not any(probe.verdict == "pass" and probe.users >= certified for probe in record.probes):
            found.append(f"Doubt: the record holds no passed probe with {users(certified)} or more.")
        failed = [probe.users for probe in record.probes if probe.verdict == "fail" and probe.users <= certified]
        if failed:
            found.append(f"Doubt: a probe with {users(min(failed))} failed, at or below the certified number.")
    share = record.deployment.gpu_share
    if share is not None and 0 < share < 1:
        found.append(f"Doubt: only {percent(share)} of the model was on the GPU; the rest ran on the CPU.")
    return tuple(found)


def slo(block: Slo) -> str:
    """The SLO in one sentence."""
    asked = [
        f"first token within {span(block.ttft_s)}" if block.ttft_s is not None else "",
        f"at most {span(block.tpot_s)} per token after it" if block.tpot_s is not None else "",
        f"the whole answer within {span(block.e2e_s)}" if block.e2e_s is not None else "",
    ]
    parts = [part for part in asked if part] or ["an answer without an error"]
    joined = parts[0] if len(parts) == 1 else ", ".join(parts[:-1]) + " and " + parts[-1]
    return f"{percent(block.attainment, up=True)} of requests must get: {joined}. A failed request never does."


def span(seconds: float) -> str:
    """A round duration as people say it, for limits and settings: ``200 ms``, ``5 s``, ``2 min``."""
    if seconds >= 120 and seconds % 60 == 0:
        return f"{seconds / 60:g} min"
    return f"{seconds:.4g} s" if seconds >= 1 else f"{seconds * 1000:.4g} ms"


def workload(block: Workload) -> str:
    """What a user did, in a few sentences."""
    said = []
    if block.prompt_tokens:
        said.append(f"Prompts of {distribution(block.prompt_tokens, 'tokens')}.")
    if block.output_tokens:
        said.append(f"Answers of {distribution(block.output_tokens, 'tokens')}.")
    if block.think_s and block.think_s.dist == "constant" and block.think_s.mean == 0:
        said.append("The next request follows an answer at once.")
    elif block.think_s:
        said.append(f"Between an answer and the next request, a pause of {distribution(block.think_s, 's')}.")
    turns = block.turns if isinstance(block.turns, Dist) else Dist(dist="constant", mean=block.turns)
    if turns.dist != "constant" or turns.mean != 1:
        said.append(f"Conversations of {distribution(turns, 'turns')}.")
    said.append("Turns share a prefix." if block.warm else "Every prompt is unique, so no prefix cache helps.")
    if block.think:
        said.append("The model may think before it answers.")
    if block.timeout_s is not None:
        said.append(f"A request without its end after {span(block.timeout_s)} has failed.")
    return " ".join(said)


def distribution(dist: Dist, unit: str) -> str:
    """A distribution in words: ``180 tokens on average (lognormal, 16 to 2,000)``."""
    if dist.dist == "constant" and dist.mean is not None:
        return f"{dist.mean:,g} {unit}"
    ends = ""
    if dist.min is not None and dist.max is not None:
        ends = f", {dist.min:,g} to {dist.max:,g}"
    elif dist.min is not None:
        ends = f", at least {dist.min:,g}"
    elif dist.max is not None:
        ends = f", at most {dist.max:,g}"
    mean = dist.mean
    if mean is None and dist.values:
        mean = sum(dist.values) / len(dist.values)
    average = f"{mean:,.4g} {unit} on average" if mean is not None else unit
    return f"{average} ({clean(dist.dist, 40)}{ends})"


def promise(record: Record) -> str:
    """Compare the users that the plan promises for this model with what was certified; empty without a promise."""
    promised = record.plan.promises.get(record.model.name) if record.plan is not None else None
    if promised is None or not promised.users or record.plan is None:
        return ""
    name = promised.slo or record.plan.slo
    start = f"The plan promises {users(promised.users)} of this model"
    if name is not None and record.slo.name is not None and name != record.slo.name:
        return f"{start} under the SLO “{clean(name, 80)}”, which is not the one measured here."
    block = record.capacity
    if block.status == "invalid":
        return f"{start}; this run says nothing about it."
    if block.certified_users >= promised.users:
        return f"{start}; the certified number covers it."
    if block.status != "at_least" and block.at_most_users is not None and block.at_most_users < promised.users:
        return f"{start}; this host does not hold that many."
    return f"{start}; whether it holds was not decided."


def not_proven(record: Record) -> tuple[str, ...]:
    """What a reader might think this run shows, and it does not."""
    said = []
    block = record.capacity
    if block.status in ("certified", "at_least") and block.at_most_users is None:
        said.append(f"How many users beyond {block.certified_users:,} it would hold.")
    elif block.at_most_users is not None and block.at_most_users > block.certified_users:
        first, last = block.certified_users + 1, block.at_most_users
        levels = users(first) if first == last else f"{first:,} to {users(last)}"
        said.append(f"Whether {levels} would meet the SLO: not decided in the time given.")
    longest = max((probe.seconds for probe in record.probes if probe.seconds is not None), default=None)
    if longest is not None:
        said.append(f"Load that lasts longer than the longest probe, {format_seconds(longest)}.")
    said.append("Another workload, SLO, variant, context length or number of slots.")
    if not record.workload.warm:
        said.append("Conversations that share a prefix: every prompt was unique here.")
    if record.plan is not None:
        said.append("Other hosts of the same plan: one host was measured.")
    if record.deployment.engine == "embedded":
        said.append("A genuine Ollama: the embedded engine was measured.")
    said.extend(clean(entry) for entry in record.not_proven)
    return tuple(said)


def _proof(block: Capacity, slo: Slo, the_slo: str) -> str:
    least = f"at least {percent(slo.attainment)} of requests meet {the_slo} with {users(block.certified_users)}"
    if block.confidence is None:
        return f"Measured: {least}; the record gives no confidence for it."
    return f"With {percent(block.confidence)} confidence, {least}."


def _above(block: Capacity, the_slo: str) -> tuple[str, ...]:
    first, bound = block.certified_users + 1, block.at_most_users
    if block.status == "at_least":
        return ("The search ended at its largest level; more users were not tried.", *_limiting(block))
    if bound is None:
        return ("How many more it would hold was not found out.", *_limiting(block))
    if bound < first:
        return (f"{users(first)} do not meet {the_slo}.", *_limiting(block))
    levels = users(first) if first == bound else f"{first:,} to {users(bound)}"
    return (f"{levels} were not decided; {users(bound + 1)} do not meet {the_slo}.", *_limiting(block))


def _limiting(block: Capacity) -> tuple[str, ...]:
    if not block.limited_by:
        return ()
    lead = "The limit" if block.status == "not_met" else "What limits one more"
    return (_sentence(f"{lead}: {limit(block.limited_by)}"),)


def _invalid_reasons(record: Record) -> tuple[str, ...]:
    reasons = list(dict.fromkeys(clean(reason, 160) for probe in record.probes for reason in probe.invalid_reasons))
    shown = [_sentence(reason) for reason in reasons[:3]]
    return (*shown, f"And {len(reasons) - 3} more reasons.") if len(reasons) > 3 else tuple(shown)


def _sentence(text: str) -> str:
    text = text[:1].upper() + text[1:]
    return text if text.endswith((".", "!", "?", "…")) else f"{text}."
