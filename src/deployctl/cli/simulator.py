"""deployctl simulator."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from deployctl.cli.app import globals_of

app = typer.Typer(add_completion=False, rich_markup_mode=None, no_args_is_help=True)


@app.callback()
def group() -> None:
    """A server whose capacity is known, to try tools against."""


@app.command("serve")
def serve(
    ctx: typer.Context,
    scenario: Annotated[Path, typer.Option("--scenario", help="The scenario file (benchmarks/scenarios).")],
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="0: a free one.")] = 0,
    seed: Annotated[int, typer.Option("--seed", help="Seed of everything that is drawn.")] = 0,
) -> None:
    """Speak Ollama's API (and OpenAI's /v1) on loopback, as a server of that scenario would, until interrupted."""
    import json

    from deployctl.simulator.app import Options
    from deployctl.simulator.scenario import load_scenario
    from deployctl.simulator.server import serve as serve_scenario

    as_json = globals_of(ctx).json
    options = Options(seed=seed)

    def announce(url: str) -> None:
        typer.echo(json.dumps({"url": url, "model": options.model}) if as_json else f"{url} serves {options.model}")

    serve_scenario(load_scenario(scenario), port=port, options=options, announce=announce)
