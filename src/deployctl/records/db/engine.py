"""Opening the database of the index: SQLite in the data directory, or PostgreSQL by URL."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError, SQLAlchemyError

from deployctl.errors import RecordError, StoreUnavailable, UsageError
from deployctl.records.db.tables import HEAD

VARIABLE = "DEPLOYCTL_STORE"
FILE = "store.db"
BUSY_S = 10.0
_MIGRATING = 0x6465706C6F79  # the key of PostgreSQL's advisory lock: "deploy" in ASCII
_SYNC = "the records are on disk; `deployctl records sync` imports them later"


def store_url(data_dir: Path) -> URL:
    """Return where the index is: $DEPLOYCTL_STORE, else ``store.db`` in the data directory.

    Raises UsageError for what is neither SQLite nor PostgreSQL, and for a password in the URL: environments are read
    by more programs than one, and libpq has ~/.pgpass for it.
    """
    given = os.environ.get(VARIABLE, "")
    if not given:
        return URL.create("sqlite", database=str(data_dir / FILE))
    try:
        url = make_url(given)
    except (ArgumentError, ValueError):
        raise UsageError(
            f"{VARIABLE} is no database URL", hint="postgresql://user@host/name, or sqlite:///file"
        ) from None
    if url.password is not None or "password" in url.query:
        raise UsageError(
            f"{VARIABLE} holds a password, which other programs could read", hint="put it into ~/.pgpass (mode 0600)"
        )
    backend = url.get_backend_name()
    if backend == "postgresql":
        return url.set(drivername="postgresql+psycopg")
    if backend == "sqlite" and url.database not in (None, "", ":memory:"):
        return url.set(drivername="sqlite")
    raise UsageError(f"{VARIABLE}: neither a SQLite file nor PostgreSQL", hint="postgresql://user@host/name")


def open_engine(url: URL) -> sa.Engine:
    """Return an engine; nothing is connected yet. Raises UsageError where the driver is not installed."""
    try:
        if url.get_backend_name() == "sqlite":
            engine = sa.create_engine(url, connect_args={"timeout": BUSY_S})
            sa.event.listen(engine, "connect", _prepare_sqlite)
            sa.event.listen(engine, "begin", _begin_sqlite)
            return engine
        return sa.create_engine(
            url, pool_pre_ping=True, connect_args={"connect_timeout": 10, "application_name": "deployctl"}
        )
    except (ModuleNotFoundError, NoSuchModuleError):
        raise UsageError(
            "the driver for PostgreSQL is not installed", hint="pip install 'deployctl[postgresql]'"
        ) from None


@contextmanager
def transaction(engine: sa.Engine, *, write: bool = False) -> Iterator[sa.Connection]:
    """One transaction: all of it or nothing. Raises StoreUnavailable where the database is locked, full or gone."""
    try:
        with engine.connect().execution_options(write=write) as connection, connection.begin():
            yield connection
    except SQLAlchemyError as error:
        raise _explained(error, engine.url) from error


def migrate(engine: sa.Engine) -> None:
    """Bring the database to the shape that this program knows. Safe when several processes start at once.

    Raises RecordError for a database of a newer deployctl, StoreUnavailable where it cannot be reached.
    """
    if engine.url.get_backend_name() == "sqlite":
        _create_private(Path(str(engine.url.database)))
    with transaction(engine) as connection:
        found = _version(connection)
    if found == HEAD:
        return
    with transaction(engine, write=True) as connection:
        if connection.dialect.name == "postgresql":
            connection.execute(sa.text("SELECT pg_advisory_xact_lock(:key)"), {"key": _MIGRATING})
        found = _version(connection)  # another process may have been first
        if found == HEAD:
            return
        if found is not None and found > HEAD:
            raise RecordError(
                f"the store has shape {found}; this deployctl knows up to {HEAD}",
                hint="pip install --upgrade deployctl",
            )
        _upgrade(connection)


def _upgrade(connection: sa.Connection) -> None:
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations").replace("%", "%%"))
    config.attributes["connection"] = connection
    command.upgrade(config, "head")


def _version(connection: sa.Connection) -> str | None:
    if not sa.inspect(connection).has_table("alembic_version"):
        return None
    found = connection.execute(sa.text("SELECT version_num FROM alembic_version")).scalar()
    return None if found is None else str(found)


def _create_private(path: Path) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    except OSError as error:
        raise StoreUnavailable(f"cannot open the store {path}: {error.strerror}", hint=_SYNC) from None


def _prepare_sqlite(connection: Any, record: object) -> None:
    del record
    connection.isolation_level = None  # transactions are ours, DDL included
    cursor = connection.cursor()
    for pragma in (f"busy_timeout={int(BUSY_S * 1000)}", "journal_mode=WAL", "synchronous=NORMAL", "foreign_keys=ON"):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _begin_sqlite(connection: sa.Connection) -> None:
    # A writer takes its lock at the start: one that upgrades a read lock may be refused without waiting.
    immediate = connection.get_execution_options().get("write")
    connection.exec_driver_sql("BEGIN IMMEDIATE" if immediate else "BEGIN")


def _explained(error: SQLAlchemyError, url: URL) -> StoreUnavailable:
    name = url.render_as_string(hide_password=True)
    said = str(error.orig).strip() if isinstance(error, DBAPIError) else str(error)
    first = said.splitlines()[0] if said else type(error).__name__
    return StoreUnavailable(f"the store {name} cannot be used: {first}", hint=_SYNC)
