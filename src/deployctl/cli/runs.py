"""deployctl runs."""

from __future__ import annotations

import typer

from deployctl.cli.app import globals_of


def command(ctx: typer.Context) -> None:
    """List the runs that are kept here, newest first."""
    from deployctl.cli.output import print_json, stdout_console
    from deployctl.records.store import RunStore
    from deployctl.report import terminal

    world = globals_of(ctx)
    entries = RunStore(world.data_dir).list()
    if world.json:
        print_json(
            [
                {
                    "run_id": entry.id,
                    "state": entry.state,
                    "folder": str(entry.dir),
                    "plan": entry.record.plan.id if entry.record and entry.record.plan else None,
                    "model": entry.record.model.name if entry.record else None,
                    "capacity": entry.record.capacity.model_dump(mode="json") if entry.record else None,
                    "problem": entry.problem or None,
                }
                for entry in entries
            ]
        )
        return
    stdout_console().print(terminal.runs(entries))
