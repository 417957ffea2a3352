"""What the load process is told at its start, in a JSON file: where to send what, and where samples go."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from deployctl.catalog.workloads import Workload

SPEC_VARIABLE = "DEPLOYCTL_LOAD_SPEC"

TEMPERATURE = 0.3
"""Low, so that a model seldom ends its answer before the asked length, which no option of Ollama forbids: gemma3:270m
ended 4 of 250 answers early at 0.8 and none at 0.3. It does not change the cost of a token."""


@dataclass(frozen=True)
class LoadSpec:
    """One load process.

    ``nonce`` makes the unique prefixes of this run differ from those of every other run, so that a server which still
    holds an earlier run's prompts cannot reuse them; ``seed`` alone decides lengths, think times and sampling seeds.
    ``options`` and ``temperature`` are sent with every request unchanged: a num_ctx that changed within a run would
    make Ollama reload the model. ``first_user`` numbers the first user, so that a restarted process reuses no number.
    ``replay`` is a log of arrivals to play ``speed`` times as fast as they came.
    """

    url: str
    model: str
    workload: Workload
    prompts: Path
    seed: int = 0
    nonce: str = ""
    samples: Path | None = None
    first_user: int = 0
    temperature: float = TEMPERATURE
    options: dict[str, Any] = field(default_factory=dict)
    tokens_per_word: float | None = None
    protocol: Literal["ollama", "openai"] = "ollama"
    replay: Path | None = None
    speed: float = 1.0

    def to_json(self) -> str:
        """Return the spec as JSON."""
        plain = asdict(self) | {"workload": self.workload.model_dump(mode="json", exclude_none=True)}
        return json.dumps(plain, default=os.fspath, indent=1)

    def write(self, path: Path) -> None:
        """Write the spec as JSON."""
        path.write_text(self.to_json(), encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> LoadSpec:
        """Read what `write` wrote."""
        plain = json.loads(path.read_text(encoding="utf-8"))
        plain["workload"] = Workload.model_validate(plain["workload"])
        plain["prompts"] = Path(plain["prompts"])
        for name in ("samples", "replay"):
            plain[name] = Path(plain[name]) if plain[name] else None
        return cls(**plain)
