"""Entry point of the ``deployctl`` command."""

import sys
from pathlib import Path

# What Typer renders for the bare command, kept as a file (a test compares): help is asked for more often than
# anything else, and reading a file costs a tenth of importing a command-line framework.
HELP = Path(__file__).parent / "cli" / "help.txt"


def main() -> None:
    """Run the command line."""
    if sys.argv[1:] in (["--help"], ["-h"], []):
        sys.stdout.write(HELP.read_text(encoding="utf-8"))
        return
    from deployctl.cli.app import main as run

    run()


if __name__ == "__main__":
    main()
