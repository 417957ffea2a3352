"""Runs on a load generator: takes files and settings from standard input, then becomes a Locust worker.

Standard input begins with one line of JSON, and stays open for as long as the worker is wanted: its end (the SSH
connection broke, or the master's machine wants no more) ends the worker.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

FOLDER_VARIABLE = "DEPLOYCTL_LOAD_VISIT"
"""Where the files of this visit are; the worker removes the folder once it has read them."""


def header(environment: dict[str, str], files: dict[str, str], argv: list[str]) -> bytes:
    """Return what a visit begins with: ``{folder}`` in values and arguments stands for where ``files`` will be."""
    plain = json.dumps({"environment": environment, "files": files, "argv": argv}).encode()
    return b"%10d\n" % len(plain) + plain


def settle(visit: dict[str, Any], folder: Path) -> tuple[dict[str, str], list[str]]:
    """Write the files of a visit below ``folder``; return environment and arguments with its path filled in."""
    for name, content in visit["files"].items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content.replace("{folder}", str(folder)) if name.endswith(".json") else content, "utf-8")
    filled = {name: value.replace("{folder}", str(folder)) for name, value in visit["environment"].items()}
    return {**filled, FOLDER_VARIABLE: str(folder)}, [word.replace("{folder}", str(folder)) for word in visit["argv"]]


def _exactly(count: int) -> bytes:
    """Read so many bytes from standard input and not one more: the rest is the worker's."""
    data = b""
    while len(data) < count:
        piece = os.read(0, count - len(data))
        if not piece:
            sys.exit("nothing to do: standard input ended")
        data += piece
    return data


def main() -> None:
    """Take the files, become the worker."""
    visit = json.loads(_exactly(int(_exactly(11))))
    environment, argv = settle(visit, Path(tempfile.mkdtemp(prefix="deployctl-load-")))
    os.environ.update(environment)
    os.execv(sys.executable, [sys.executable, *argv])  # noqa: S606 - our own argv, and the pipe has to stay


if __name__ == "__main__":
    main()
