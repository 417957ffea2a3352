"""Joins a user class to Locust: driven by a parent's spec, or by hand with Locust's own options and web page."""

from __future__ import annotations

import json
import os
import secrets
import urllib.request
from collections.abc import Callable
from pathlib import Path
from time import monotonic
from typing import Any

from locust import events
from locust.runners import MasterRunner, WorkerRunner

from deployctl.load.child.ask import Session
from deployctl.load.child.channel import Channel
from deployctl.load.child.cluster import Cluster
from deployctl.load.child.control import Control, Hands
from deployctl.load.child.local import Local
from deployctl.load.child.recorder import Recorder, Shelf
from deployctl.load.child.user import LoadUser
from deployctl.load.child.worker import Worker
from deployctl.load.exchange import Exchange
from deployctl.load.samples import Sample
from deployctl.load.spec import SPEC_VARIABLE, LoadSpec
from deployctl.load.store import SampleWriter

_PARTS = 1024  # workers at most: they number their users 0, 1024, 2048 ... and 1, 1025, 2049 ...


def bind(user_class: type[LoadUser], *, workload: str, folder: Path) -> None:
    """Make ``user_class`` ready to run from a locustfile in ``folder``; ``workload`` is its default by hand."""
    spec_file = os.environ.get(SPEC_VARIABLE)
    if spec_file:
        _on(events.init, lambda environment, **_: _driven(user_class, Path(spec_file), environment))
        return

    def options(parser: Any) -> None:
        group = parser.add_argument_group("deployctl")
        group.add_argument("--model", default="", help="model to ask; default: one that the server has loaded")
        group.add_argument("--workload", default=workload, help="a workload of inventory/workloads.yml")
        group.add_argument("--seed", type=int, default=0, help="seed of lengths and think times")

    _on(events.init_command_line_parser, options)
    _on(events.test_start, lambda environment, **_: _by_hand(user_class, environment, folder))


def _on(hook: Any, listener: Callable[..., None]) -> None:
    hook.add_listener(listener)


def _driven(user_class: type[LoadUser], spec_file: Path, environment: Any) -> None:
    spec = LoadSpec.read(spec_file)
    runner = environment.runner
    if isinstance(runner, WorkerRunner):
        user_class.session = Session(spec, Recorder(keep_reads=spec.samples is not None), runner.worker_index, _PARTS)
        Worker(environment, user_class.session).start()
        return
    writer = SampleWriter(spec.samples, monotonic()) if spec.samples else None
    if writer is not None:
        writer.warm_up()
    hands: Hands
    if isinstance(runner, MasterRunner):
        hands = Cluster(environment, environment.parsed_options.expect_workers)
    else:
        user_class.session = Session(spec, Recorder(keep_reads=writer is not None))
        hands = Local(environment, user_class.session)
    Control(hands, spec, Channel(), Shelf(writer)).start()


def _by_hand(user_class: type[LoadUser], environment: Any, folder: Path) -> None:
    from deployctl.catalog.load import load_catalog
    from deployctl.resources import Project

    given = environment.parsed_options
    url = environment.host or "http://127.0.0.1:11434"
    spec = LoadSpec(
        url=url,
        model=given.model or _a_model(url),
        workload=load_catalog(Project(folder.parent)).workload(given.workload),
        prompts=folder / "prompts",
        seed=given.seed,
        nonce=secrets.token_hex(8),
    )
    user_class.session = Session(spec, _Discarding())
    path = user_class.session.api.path

    def show(sample: Sample) -> None:
        if not sample.counts:
            return
        fire = environment.events.request.fire
        error = None if sample.ok else RuntimeError(f"{sample.error} {sample.status or ''} {sample.message}".strip())
        fire(
            request_type="POST",
            name=path,
            response_time=(sample.end_s - sample.intended_s) * 1000,
            response_length=sample.received_bytes,
            exception=error,
            context={},
        )
        if sample.ok:
            for name, seconds in (("TTFT", sample.ttft_s), ("TPOT", sample.tpot_s)):
                fire(
                    request_type=name,
                    name=path,
                    response_time=seconds * 1000,
                    response_length=sample.output_tokens,
                    exception=None,
                    context={},
                )

    user_class.session.show = show


class _Discarding(Recorder):
    """By hand, Locust's own statistics show what happened; nothing is kept."""

    def __init__(self) -> None:
        super().__init__(keep_reads=False)

    def ended(self, sample: Sample, exchange: Exchange) -> None:
        del exchange
        self.live.pop(sample.user, None)

    def thinks(self, user: int, until_s: float) -> None:
        del user, until_s


def _a_model(url: str) -> str:
    """Return the name of a model that the server has loaded, else of one that it has."""
    for path in ("/api/ps", "/api/tags"):
        with urllib.request.urlopen(url.rstrip("/") + path, timeout=10) as answer:  # noqa: S310 - the user's own URL
            models = json.load(answer).get("models") or []
        if models:
            return str(models[0]["name"])
    raise RuntimeError(f"the server at {url} has no model: pull one, or give --model")
