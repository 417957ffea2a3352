"""The deployctl command: global options, lazily loaded commands, errors turned into exit codes.

``deployctl --help`` must stay quick, so a command's module is imported only when that command runs.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from deployctl import interrupts
from deployctl.errors import DeployctlError

if TYPE_CHECKING:
    from deployctl.cli.context import Globals

# name -> (module, one line of help). A dotted module with ":" names another attribute than ``command``.
COMMANDS: dict[str, tuple[str, str]] = {
    "up": ("deployctl.cli.up", "Provision a plan, serve a model, find how many users it holds."),
    "provision": ("deployctl.cli.provision", "Install and start the engine and the model, measure nothing."),
    "test": ("deployctl.cli.test", "Measure only: any reachable Ollama, by plan, host or --url."),
    "validate": ("deployctl.cli.validate", "Test a plan's promises on its hosts: PASS, FAIL or INCONCLUSIVE."),
    "nightly": ("deployctl.cli.nightly", "Measure the fleet, what is stale first; say what changed."),
    "down": ("deployctl.cli.down", "Remove what provisioning put on a host."),
    "rollback": ("deployctl.cli.rollback", "Bring back what served before the last change."),
    "plans": ("deployctl.cli.plans", "List the plans of the catalogue."),
    "models": ("deployctl.cli.models", "List the models of the catalogue."),
    "advise": ("deployctl.cli.advise", "Say what fits a plan and what to expect; touch no host."),
    "host": ("deployctl.cli.host", "Look at a host (host check)."),
    "report": ("deployctl.cli.report", "Show or export the report of a run."),
    "runs": ("deployctl.cli.runs", "List the runs that are kept here."),
    "records": ("deployctl.cli.records", "Verify, list, compare, export, import and prune what was measured."),
    "simulate": ("deployctl.cli.simulate", "What if: play users on simulated hosts, in virtual time."),
    "simulator": ("deployctl.cli.simulator", "A server of known capacity (simulator serve)."),
    "bench-search": ("deployctl.cli.bench_search", "Hold the capacity search against known capacities."),
}
GROUPS = frozenset({"host", "records", "simulator", "nightly"})
GLOBAL_FLAGS = frozenset({"--json", "--dry-run", "--diff", "-v", "--verbose"})
GLOBAL_OPTIONS = frozenset({"--project", "--data-dir"})


class LazyGroup(TyperGroup):
    """A group that lists its commands from a table and imports one only to run it."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Names in the order of the table: the order of the work."""
        del ctx
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Import the command's module and build the command."""
        del ctx
        if cmd_name not in COMMANDS:
            return None
        module, line = COMMANDS[cmd_name]
        if cmd_name in self.commands:
            return self.commands[cmd_name]
        if cmd_name in GROUPS:
            command = typer.main.get_command(import_module(module).app)
        else:
            single = typer.Typer(add_completion=False, rich_markup_mode=None)
            single.command(cmd_name, short_help=line, no_args_is_help=False)(import_module(module).command)
            command = typer.main.get_command(single)
        command.name = cmd_name
        self.commands[cmd_name] = command
        return command

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the table without importing any command."""
        del ctx
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in COMMANDS.items()])


app = typer.Typer(
    cls=LazyGroup,
    rich_markup_mode=None,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="The options above may stand before or after the command. Exit codes: 0 done, 1 the answer is no, 2 usage, "
    "3 host, 4 provisioning, 5 model, 6 undecided or invalid, 7 cancelled, 70 a bug.",
)


def _print_version(value: bool) -> None:
    if value:
        from deployctl import __version__

        typer.echo(f"deployctl {__version__}")
        raise typer.Exit


@app.callback()
def root(
    ctx: typer.Context,
    json: Annotated[
        bool, typer.Option("--json", help="Print one JSON document on stdout; progress on stderr.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="up, provision, down, rollback: say what would change, change nothing.")
    ] = False,
    diff: Annotated[bool, typer.Option("--diff", help="As --dry-run, and show the lines that would change.")] = False,
    verbose: Annotated[int, typer.Option("--verbose", "-v", count=True, help="Say more; twice for tracebacks.")] = 0,
    project: Annotated[
        Path | None, typer.Option(help="Folder whose playbooks/, templates/, loadtests/ and inventory/ override ours.")
    ] = None,
    data_dir: Annotated[
        Path | None, typer.Option(help="Where runs and keys are kept.", envvar="DEPLOYCTL_DATA")
    ] = None,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show it.")
    ] = False,
) -> None:
    """How many people can use a model at once on a plan before it feels slow?"""
    del version
    from deployctl.cli.context import Globals

    ctx.obj = Globals.of(
        json=json, dry_run=dry_run or diff, diff=diff, verbose=verbose, project=project, data_dir=data_dir
    )


def hoist(arguments: Sequence[str]) -> list[str]:
    """Move the global options to the front, so that they may follow the command as people type them."""
    front: list[str] = []
    rest: list[str] = []
    words = iter(arguments)
    for word in words:
        if word == "--":
            rest += [word, *words]
        elif word in GLOBAL_FLAGS or (word.startswith("-v") and set(word[1:]) == {"v"}):
            front.append(word)
        elif word in GLOBAL_OPTIONS:
            front.append(word)
            front += [value] if (value := next(words, None)) is not None else []
        elif word.startswith(tuple(f"{name}=" for name in GLOBAL_OPTIONS)):
            front.append(word)
        else:
            rest.append(word)
    return front + rest


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit with the code of its outcome."""
    words = hoist(sys.argv[1:] if arguments is None else arguments)
    interrupts.install()
    verbose = sum(word.count("v") if set(word[1:]) == {"v"} else word == "--verbose" for word in words) >= 2
    try:
        code = app(words, prog_name="deployctl", standalone_mode=False)
    except DeployctlError as error:
        code = _report(error, as_json="--json" in words, verbose=verbose)
    except KeyboardInterrupt:
        code = 7
    except Exception as error:  # noqa: BLE001  the last line of defence: an internal error is reported as such
        code = _report_other(error, words)
    # Typer turns Ctrl-C into 130; for this program a cancelled run is 7.
    sys.exit(7 if code == 130 else code if isinstance(code, int) else 0)


def _report(error: DeployctlError, *, as_json: bool, verbose: bool) -> int:
    from deployctl.cli.output import print_error

    print_error(error, as_json=as_json, verbose=verbose)
    return error.exit_code


def _report_other(error: Exception, words: list[str]) -> int:
    show = getattr(error, "show", None)
    if callable(show) and hasattr(error, "exit_code"):  # Typer's own usage errors know how to show themselves
        show()
        if "--json" in words:
            from deployctl.cli.output import print_json

            said = str(getattr(error, "message", error)) or "a command is missing"
            print_json({"error": {"kind": "UsageError", "message": said, "hint": "deployctl --help"}})
        return int(error.exit_code)
    if isinstance(error, typer.Abort):
        return 7
    from deployctl.cli.output import print_internal_error

    return print_internal_error(error, words)


def globals_of(ctx: typer.Context) -> Globals:
    """The global options, as commands use them."""
    from deployctl.cli.context import Globals

    found = ctx.find_root().obj
    assert isinstance(found, Globals)
    return found
