"""Fixtures for every test that needs a real host; loaded by tests/conftest.py."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from nspawn.base import base_root, obstacle
from nspawn.host import LabHost, new_client_key, running_host

HostFactory = Callable[..., LabHost]


@pytest.fixture(scope="session")
def lab_base() -> Path:
    """The cached Debian root; skips where lab hosts cannot be booted."""
    reason = obstacle()
    if reason:
        pytest.skip(reason)
    return base_root()


@pytest.fixture(scope="session")
def lab_key(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A client key pair that every lab host accepts; the private key's path."""
    return new_client_key(tmp_path_factory.mktemp("lab-key"))


@pytest.fixture(scope="session")
def lab_host(lab_base: Path, lab_key: Path) -> Iterator[HostFactory]:
    """Boot hosts: ``lab_host(name, user=…, sudo=…, password=…) -> LabHost``. One name is one host for the session."""
    hosts: dict[str, LabHost] = {}
    with contextlib.ExitStack() as stack:

        def factory(name: str, **options: Any) -> LabHost:
            if name not in hosts:
                hosts[name] = stack.enter_context(running_host(name, options.pop("key_file", lab_key), **options))
            return hosts[name]

        yield factory


@pytest.fixture
def fresh_host(lab_base: Path, lab_key: Path, request: pytest.FixtureRequest) -> Iterator[LabHost]:
    """A host that no other test has touched, gone after this one."""
    with running_host("fresh", lab_key, **getattr(request, "param", {})) as host:
        yield host
