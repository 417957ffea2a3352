"""The shipped catalogue, and models drawn at random."""

from pathlib import Path

import pytest

from deployctl.catalog.catalog import Catalog
from deployctl.catalog.load import load_catalog
from deployctl.resources import Project


@pytest.fixture(scope="session")
def catalog() -> Catalog:
    return load_catalog(Project(Path("/nonexistent")))
