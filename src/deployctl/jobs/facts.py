"""Where a job takes the facts of a model from: the host's Ollama, a registry, a file, or the shipped catalogue."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from deployctl.catalog.catalog import Catalog
from deployctl.catalog.settings import read_models_settings
from deployctl.errors import DeployctlError, HostError, UsageError
from deployctl.events import Emit, Warned
from deployctl.hosts.tunnel import open_tunnel
from deployctl.jobs.order import Order, resolve
from deployctl.jobs.reach import Reached
from deployctl.jobs.wanted import Place, Wanted
from deployctl.provision.settings import Settings
from deployctl.resources import Project
from deployctl.sizing.facts import Found, find
from deployctl.sizing.memo import Memo
from deployctl.sizing.registry import DEFAULT, Name, Registry

ANSWER_S = 5.0


def find_facts(wanted: Wanted, catalog: Catalog, project: Project, cache: Path, *, ollama: str | None = None) -> Found:
    """Return the facts of the wanted model; ``ollama`` is the URL of a server to ask first.

    A weights file that is brought along is the model, and the embedded engine has only its own: then nobody else is
    asked. Raises ModelUnavailable with the nearest names, UsageError for an address that is none.
    """
    settings = read_models_settings(project)
    address = wanted.registry or settings.registry or DEFAULT
    registry = Registry(address)
    settled = wanted.gguf is not None or wanted.engine == "embedded"
    offline = wanted.offline or settings.offline or settled
    if ollama is not None and not ollama.startswith(("http://", "https://")):
        raise UsageError(f"{ollama}: not the address of an Ollama", hint="http://127.0.0.1:11434")
    return find(
        wanted.model,
        catalog,
        show=(lambda reference: show(ollama, reference)) if ollama is not None else None,
        registry=None if offline else registry,
        gguf=wanted.gguf,
        memo=None if settled else Memo(cache, registry.address),
    )


def informed(wanted: Wanted, catalog: Catalog, project: Project, place: Place, emit: Emit) -> Order:
    """Resolve the order with the model's facts as `find_facts` finds them.

    What could not be asked is said. Raises as `find_facts` and `resolve` do.
    """
    found = find_facts(wanted, catalog, project, place.cache_dir)
    order = resolve(wanted, catalog, found.model)
    for sentence in fallback(found):
        emit(Warned(sentence))
    return replace(order, insecure=plain_http(wanted, project))


def plain_http(wanted: Wanted, project: Project) -> bool:
    """Say whether the model names a registry that is to be spoken to without TLS: only when its address says so."""
    address = urlsplit(wanted.registry or read_models_settings(project).registry or DEFAULT)
    return address.scheme == "http" and Name.parse(wanted.model).registry == address.netloc


def fallback(found: Found) -> tuple[str, ...]:
    """Say what was asked in vain, and what is taken instead."""
    taken = {"cache": "what it said before", "file": "the file's header", "catalogue": "the shipped catalogue"}
    instead = taken.get(found.origin)
    return tuple(f"{note}; sized by {instead}" for note in found.notes) if instead else found.notes


def ask_host(order: Order, reached: Reached) -> Order:
    """Return the order with the exact facts of a model that the host's running Ollama already has; else unchanged."""
    if reached.sandbox or not reached.facts.ollama_running:
        return order
    try:
        with open_tunnel(reached.target, Settings.port) as tunnel:
            found = find(order.reference, order.catalog, show=lambda reference: show(tunnel.url, reference))
    except (DeployctlError, OSError):
        return order  # what is known already does
    return replace(order, model=found.model) if found.origin == "host" else order


def show(url: str, reference: str) -> Mapping[str, Any] | None:
    """Return /api/show's answer with the file's ``size``; None where that Ollama lacks the model. Raises HostError."""
    import httpx

    base = url.rstrip("/")
    try:
        answer = httpx.post(f"{base}/api/show", json={"model": reference}, timeout=ANSWER_S)
        if answer.status_code == httpx.codes.NOT_FOUND:
            return None
        document = answer.raise_for_status().json()
        listed = httpx.get(f"{base}/api/tags", timeout=ANSWER_S).raise_for_status().json()["models"]
    except (httpx.HTTPError, httpx.InvalidURL, ValueError, KeyError, TypeError) as error:
        raise HostError(f"no Ollama answers at {base}: {error}", hint=f"curl {base}/api/tags") from error
    if not isinstance(document, dict):
        return None
    full = reference if ":" in reference.rpartition("/")[2] else f"{reference}:latest"
    sizes = {entry.get("name"): entry.get("size") for entry in listed if isinstance(entry, dict)}
    return {**document, "size": sizes.get(full)}
