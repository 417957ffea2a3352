"""One engine for all tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from deployctl.sandbox import archive, model
from deployctl.sandbox.engine import default_cache_dir, running_engine


@pytest.fixture(scope="session")
def cache_dir() -> Path:
    folder = default_cache_dir(Path(__file__).parents[2])
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.fixture(scope="session")
def engine_packages() -> None:
    if not (archive.available() and model.available()):
        pytest.skip("needs the sandbox extra: pip install 'deployctl[sandbox]'")


@pytest.fixture(scope="session")
def engine_url(cache_dir: Path, engine_packages: None) -> Iterator[str]:
    with running_engine(cache_dir, slots=4, context=2048) as url:
        yield url
