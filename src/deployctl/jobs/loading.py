"""Loading the model before anything is measured, and checking that it runs as it was set up."""

from __future__ import annotations

from dataclasses import dataclass

from deployctl.errors import ModelUnavailable, ProvisionError
from deployctl.events import Emit, step
from deployctl.ollama.client import Installed, Server, refuse_unsafe
from deployctl.provision.settings import Settings
from deployctl.units import format_bytes


@dataclass(frozen=True)
class LoadedModel:
    """A model in memory: the server's version, what is installed, the seconds that loading took, its share in VRAM."""

    version: str
    model: Installed
    load_s: float
    gpu_share: float


def load(server: Server, reference: str, settings: Settings | None, emit: Emit) -> LoadedModel:
    """Load and verify; raises HostUnreachable, ModelUnavailable, ProvisionError, MeasurementError (unsafe)."""
    with step(emit, "load", "Loading the model") as current:
        version = server.version()
        refuse_unsafe(version)
        model = server.find(reference)
        seconds = server.preload(reference)
        share = verify_loaded(server, reference, settings)
        current.detail = f"{model.name}, {format_bytes(model.bytes)}, engine {version}"
    return LoadedModel(version, model, seconds, share)


def verify_loaded(server: Server, reference: str, settings: Settings | None) -> float:
    """Check that the model is in memory as configured; returns the share of it that is in VRAM.

    Raises ModelUnavailable when it is not loaded, ProvisionError when its context is not the one asked for.
    """
    name = reference if ":" in reference else f"{reference}:latest"
    loaded = {model.name: model for model in server.loaded()}
    if name not in loaded:
        raise ModelUnavailable(f"{reference} was loaded and is gone again", hint="journalctl -u ollama -n 50")
    model = loaded[name]
    if settings is not None and model.context is not None and model.context != settings.context:
        raise ProvisionError(
            f"{reference} runs with a context of {model.context} tokens, not the {settings.context} asked for",
            hint="another client may have reloaded it; run the same command again",
        )
    return model.vram_bytes / model.bytes if model.bytes else 0.0
