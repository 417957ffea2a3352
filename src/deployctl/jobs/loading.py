"""Loading the model before anything is measured, and checking that it runs as it was set up."""

from __future__ import annotations

from dataclasses import dataclass

from deployctl.errors import ModelUnavailable, ProvisionError
from deployctl.events import Emit, Warned, step
from deployctl.jobs.reach import Reached
from deployctl.ollama.client import Installed, Server, refuse_unsafe
from deployctl.ollama.journal import Loaded, newest_load
from deployctl.provision.settings import Settings
from deployctl.units import format_bytes

LOG_LINES = 3000
PROCESS_LOG = "~/.local/state/deployctl/ollama.log"


@dataclass(frozen=True)
class LoadedModel:
    """A model in memory: the server's version, what is installed, seconds of the load, share in VRAM, its journal."""

    version: str
    model: Installed
    load_s: float
    gpu_share: float
    journal: Loaded | None

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader of the number has to know about the load."""
        found = []
        if self.journal and self.journal.layers and (self.journal.gpu_layers or 0) < self.journal.layers:
            found.append(
                f"{self.journal.gpu_layers} of {self.journal.layers} layers are on the GPU, the rest on the CPU"
            )
        return tuple(found)


def load(
    server: Server, reference: str, settings: Settings | None, emit: Emit, *, reached: Reached | None = None
) -> LoadedModel:
    """Load and verify; raises HostUnreachable, ModelUnavailable, ProvisionError, MeasurementError (unsafe)."""
    with step(emit, "load", "Loading the model") as current:
        version = server.version()
        refuse_unsafe(version)
        model = server.find(reference)
        seconds = server.preload(reference)
        share = verify_loaded(server, reference, settings)
        journal = newest_load(read_log(reached)) if reached else None
        if settings and journal and journal.slots is not None and journal.slots != settings.slots:
            emit(Warned(f"the server runs {journal.slots} slots, not the {settings.slots} asked for"))
        current.detail = f"{model.name}, {format_bytes(model.bytes)}, engine {version}"
    return LoadedModel(version, model, seconds, share, journal)


def read_log(reached: Reached) -> str:
    """The end of the server's log on the host; empty where it cannot be read."""
    if reached.target.service_manager == "process":
        return reached.session.run(f"tail -n {LOG_LINES} {PROCESS_LOG}").stdout
    return reached.session.run_as_root(f"journalctl -u ollama -o cat --no-pager -n {LOG_LINES}").stdout


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
