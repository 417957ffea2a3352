"""The gate before a plan goes on sale: its promises as hypotheses, held against its hosts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from deployctl import __version__
from deployctl.catalog.load import load_catalog
from deployctl.catalog.plans import Plan, Promise
from deployctl.errors import Cancelled, DeployctlError, UsageError
from deployctl.events import Emit, Warned, step
from deployctl.jobs.alone import Answer, one_user
from deployctl.jobs.check import found_of
from deployctl.jobs.deploy import Served, deploy, size_plan
from deployctl.jobs.driving import Serving
from deployctl.jobs.facts import informed
from deployctl.jobs.measure import measure
from deployctl.jobs.order import Order
from deployctl.jobs.overrides import announce
from deployctl.jobs.promises import ANSWER_TOKENS, hardware, speed
from deployctl.jobs.reach import SANDBOX, Reached, reach
from deployctl.jobs.recording import (
    Stopwatch,
    embedded_note,
    host_block,
    make_record,
    plan_block,
    served_blocks,
    shared_cores_note,
    telemetry_block,
)
from deployctl.jobs.reporting import keep
from deployctl.jobs.sold import surplus
from deployctl.jobs.wanted import Place, Wanted
from deployctl.jobs.watch import watching
from deployctl.records.files import write_atomic
from deployctl.records.schema import Record
from deployctl.records.store import RunStore
from deployctl.records.validation import Claim, HostVerdict, Judgement, Validation, worst
from deployctl.report.words import percent
from deployctl.resources import Project
from deployctl.units import format_seconds

FOLDER = "validations"
DOCUMENT = "validation.json"
CONFIDENCE = 0.95
VALID_DAYS = 30.0
DEFAULT_BUDGET_S = 900.0
_PATIENCE = 4.0  # times the promised time, before an answer of one user alone counts as failed
_ALONE_SHARE = 0.4  # of a model's budget, at most, for one user alone


@dataclass(frozen=True)
class Validated:
    """A finished validation and where it is kept; ``problem``: why it could not be kept."""

    validation: Validation
    folder: Path
    problem: str = ""


def validate(
    wanted: Wanted,
    *,
    hosts: Sequence[str],
    model: str | None,
    project: Project,
    place: Place,
    emit: Emit,
    valid_days: float = VALID_DAYS,
    anyway: bool = False,
) -> Validated:
    """Judge every promise of ``wanted.plan`` (of ``model`` only, where named) on ``hosts``, else all of its own.

    A host that has less than was sold fails there and is not measured further, unless ``anyway``. A host that cannot
    be reached or measured is INCONCLUSIVE and does not stop the others. Raises UsageError where nothing is promised.
    """
    watch = Stopwatch(emit)
    announce(project, watch)
    catalog = load_catalog(project)
    if wanted.plan is None:
        raise UsageError("no plan was named", hint="--plan ID (deployctl plans lists them)")
    plan = catalog.plan(wanted.plan)
    promises = {name: promise for name, promise in plan.promises.items() if model in (None, name)}
    if not promises:
        what = f"promises nothing of {model}" if model else "promises nothing"
        raise UsageError(f"plan {plan.id} {what}", hint=f"add promises to inventory/plans.yml, under {plan.id}")
    named: list[str | None] = list(hosts)
    if not named and plan.id != SANDBOX:
        named = [host.name for host in catalog.hosts.values() if host.plan == plan.id]
    store = RunStore(place.data_dir)
    run = store.new_run()  # only for a fresh id
    store.abandon(run.id)
    verdicts = []
    for host in named or [None]:
        one = _Host(replace(wanted, host=host), plan, promises, project, place, watch, anyway)
        verdicts.append(one.judge())
    ended = datetime.now(UTC)
    validation = Validation.model_validate(
        {
            "validation_id": run.id,
            "started_at": watch.started_at,
            "ended_at": ended,
            "valid_until": ended + timedelta(days=valid_days),
            "deployctl_version": __version__,
            "confidence": CONFIDENCE,
            "plan": plan_block(plan),
            "conditions": _conditions(wanted, promises, plan),
            "hosts": [verdict.model_dump() for verdict in verdicts],
        }
    )
    return _kept(validation, place, watch)


def _kept(validation: Validation, place: Place, emit: Emit) -> Validated:
    from deployctl.records.db.index import Index

    folder = place.data_dir / FOLDER / validation.validation_id
    body = validation.to_json()
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_atomic(folder / DOCUMENT, body.encode())
    except OSError as error:
        return Validated(validation, folder, f"the validation could not be kept: {error.strerror}")
    try:
        with Index.open(place.data_dir) as index:
            index.put_validation(
                validation.validation_id, validation.ended_at, validation.plan.id, validation.verdict, body
            )
    except DeployctlError as error:
        emit(Warned(f"not in the index: {error.message}"))
    return Validated(validation, folder)


class _Host:
    """One host: reach it, compare the hardware, then serve and ask model by model."""

    def __init__(
        self,
        wanted: Wanted,
        plan: Plan,
        promises: dict[str, Promise],
        project: Project,
        place: Place,
        emit: Stopwatch,
        anyway: bool,
    ) -> None:
        self._wanted, self._plan, self._promises = wanted, plan, promises
        self._project, self._place, self._emit, self._anyway = project, place, emit, anyway
        self._catalog = load_catalog(project)
        self._claims: list[Claim] = []
        self._about: dict[str, str] = {"host": wanted.host or plan.id}

    def judge(self) -> HostVerdict:
        """Whatever happens on the way, the verdict says how far it came."""
        problem = ""
        try:
            with reach(self._wanted, self._catalog, self._place, self._emit) as reached:
                self._measure(reached)
        except Cancelled:
            raise
        except DeployctlError as error:
            self._emit(Warned(f"{self._about['host']}: {error.message}"))
            problem = error.message
        except KeyboardInterrupt:
            raise Cancelled("cancelled; finished runs are kept", hint="deployctl runs") from None
        return HostVerdict.model_validate(
            {**self._about, "claims": [claim.model_dump() for claim in self._claims], "problem": problem}
        )

    def _measure(self, reached: Reached) -> None:
        facts = reached.facts
        found = found_of(facts)
        self._about |= {
            "host": reached.target.name,
            "address": reached.target.address,
            "system": f"{found['system']}; {found['CPU']}; {found['memory']}",
        }
        with step(self._emit, "hardware", "Comparing what was sold with what is there") as current:
            self._claims += hardware(self._plan, facts)
            verdict = worst(claim.verdict for claim in self._claims)
            current.detail = f"{len(self._claims)} promises of hardware: {verdict}"
        if verdict == "FAIL" and not self._anyway:
            self._emit(Warned(f"{reached.target.name} has less than was sold: its promises of speed are not measured"))
            return
        for name, promise in self._promises.items():
            self._model(name, promise, reached)

    def _model(self, name: str, promise: Promise, reached: Reached) -> None:
        wanted = replace(self._wanted, model=name, slo=self._wanted.slo or promise.slo)
        order = informed(wanted, self._catalog, self._project, self._place, self._emit)
        budget = order.question.budget
        if budget.seconds is None:
            budget = replace(budget, seconds=DEFAULT_BUDGET_S)
            order = replace(order, question=replace(order.question, budget=budget))
        size_plan(wanted, order)
        store = RunStore(self._place.data_dir)
        run = store.new_run()
        watch = Stopwatch(self._emit.emit)
        try:
            with ExitStack() as stack:
                log = run.dir / "provision.log"
                served = stack.enter_context(
                    deploy(wanted, order, reached, self._project, self._place, log, watch, run=run.id)
                )
                self._about["engine"] = f"{served.source.engine} {served.loaded.version}"
                claims: list[Claim] = []
                if promise.tokens_per_s is not None or promise.seconds_for_200_tokens is not None:
                    claims += self._alone(name, promise, order, served, run.dir, watch)
                if promise.users is not None:
                    record = self._users(promise.users, order, reached, served, run.dir, run.id, watch, stack)
                    problem = keep(store, record, self._project, watch)
                    if problem:
                        self._emit(Warned(problem))
                    claims.append(users_claim(name, promise.users, record))
        except BaseException:
            store.release(run.id)
            store.abandon(run.id)
            raise
        store.release(run.id)
        more = () if reached.sandbox else surplus(self._plan, reached.facts)
        self._claims += [_about_this_plan(claim.model_copy(update={"run_id": run.id}), more) for claim in claims]

    def _alone(
        self, name: str, promise: Promise, order: Order, served: Served, folder: Path, emit: Emit
    ) -> tuple[Claim, ...]:
        def judged(answers: Sequence[Answer]) -> tuple[Claim, ...]:
            return speed(
                name,
                answers,
                tokens_per_s=promise.tokens_per_s,
                seconds=promise.seconds_for_200_tokens,
                confidence=CONFIDENCE,
            )

        decided: Callable[[Sequence[Answer]], bool] = lambda answers: all(  # noqa: E731  reads better in place
            claim.verdict != "INCONCLUSIVE" for claim in judged(answers)
        )
        with step(emit, "alone", "One user alone") as current:
            answers, _ = one_user(
                served.url,
                served.model.reference,
                order.question.workload,
                out_dir=folder / "alone",
                project=self._project,
                seed=self._wanted.seed,
                decided=decided,
                patience_s=_PATIENCE
                * max(promise.seconds_for_200_tokens or 0.0, ANSWER_TOKENS / (promise.tokens_per_s or ANSWER_TOKENS)),
                max_seconds=_ALONE_SHARE * (order.question.budget.seconds or DEFAULT_BUDGET_S),
                emit=emit,
            )
            claims = judged(answers)
            current.detail = "; ".join(f"{claim.kind}: {claim.verdict}" for claim in claims)
        return claims

    def _users(
        self,
        users: int,
        order: Order,
        reached: Reached,
        served: Served,
        folder: Path,
        run_id: str,
        watch: Stopwatch,
        stack: ExitStack,
    ) -> Record:
        host_watch = stack.enter_context(watching(reached.session, served.tunnel, enforce=not reached.sandbox))
        measured = measure(
            order.question,
            Serving(served.url, served.model.reference, served.slots, host_watch, served.loaded.load_s),
            generator=self._wanted.generator,
            out_dir=folder,
            project=self._project,
            seed=self._wanted.seed,
            max_users=None,
            emit=watch,
            hold=users,
        )
        notes = (f"asked whether {users} users are held, not how many", *served.notes, *served.loaded.notes)
        if served.source.engine == "embedded":
            notes += (embedded_note(),)
        if reached.sandbox:
            notes += (shared_cores_note(), *host_watch.noted)
        blocks: dict[str, Any] = {
            "host": host_block(reached),
            "telemetry": telemetry_block(host_watch),
            **served_blocks(order, reached, served),
        }
        return make_record(
            run_id, watch, order.question, measured, blocks, plan=order.plan, seed=self._wanted.seed, notes=notes
        )


def users_claim(model: str, users: int, record: Record) -> Claim:
    """The promise of so many users, from the record of the question whether they are held."""
    verdicts: dict[str, Judgement] = {"at_least": "PASS", "certified": "PASS"}
    capacity = record.capacity
    verdict: Judgement = verdicts.get(capacity.status, "INCONCLUSIVE")
    if capacity.at_most_users is not None and capacity.at_most_users < users:
        verdict = "FAIL"
    valid = [probe for probe in record.probes if probe.verdict != "invalid" and probe.users == users]
    last = valid[-1] if valid else None
    spent = format_seconds(sum(probe.seconds or 0.0 for probe in record.probes))
    evidence = f"{last.requests} requests in {spent}" if last else "no valid probe"
    if not valid and record.probes:
        evidence += f": {'; '.join(record.probes[-1].invalid_reasons)}"
    return Claim(
        kind="users",
        model=model,
        promised=users,
        unit="users",
        estimate=last.attainment if last else None,
        low=last.attainment_low if last else None,
        high=last.attainment_high if last else None,
        target=record.slo.attainment,
        verdict=verdict,
        evidence=evidence,
        run_id=record.run_id,
    )


def _about_this_plan(claim: Claim, more: Sequence[str]) -> Claim:
    """A host that has more than was sold proves nothing for the plan by passing."""
    if claim.verdict != "PASS" or not more:
        return claim
    why = f"{claim.evidence}; passed, but {'; '.join(more)}"
    return claim.model_copy(update={"verdict": "INCONCLUSIVE", "evidence": why})


def _conditions(wanted: Wanted, promises: dict[str, Promise], plan: Plan) -> list[str]:
    slos = ", ".join(dict.fromkeys(wanted.slo or promise.slo for promise in promises.values()))
    return [
        f"SLO: {slos}",
        f"workload: {wanted.workload or plan.workload}",
        f"budget per model: {wanted.budget}",
        f"each verdict is wrong with a chance of at most {percent(1 - CONFIDENCE)}",
    ]
