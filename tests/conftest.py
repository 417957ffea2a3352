"""Fixtures that every part of the suite shares."""

import os
import signal
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

# A suite that runs in the background has SIGINT ignored, and every program that it starts would inherit that; the tests
# that interrupt one mean what happens at a terminal.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# No test asks the public model registry; those about a registry start one of their own.
os.environ.setdefault("DEPLOYCTL_OFFLINE", "1")

# Fixtures with helpers of their own: lab hosts (systemd-nspawn) and a loopback sshd.
sys.path[:0] = [str(ROOT / "tests" / "lab"), str(ROOT / "tests" / "hosts")]
pytest_plugins = ["nspawn.fixtures", "loopback.sshd"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave what is marked ``matrix`` to make test-matrix."""
    if not os.environ.get("DEPLOYCTL_TEST_MATRIX"):
        for item in items:
            if item.get_closest_marker("matrix"):
                item.add_marker(pytest.mark.skip(reason="make test-matrix runs it"))


@pytest.fixture(scope="session")
def root() -> Path:
    """The source tree."""
    return ROOT


@pytest.fixture(scope="session")
def cache_dir() -> Path:
    """Where what is slow to make is kept between runs: engine archive, assembled model, lab root."""
    return Path(os.environ.get("DEPLOYCTL_CACHE", ROOT / ".cache")).absolute()
