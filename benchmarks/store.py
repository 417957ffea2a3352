"""How quickly the index answers over a year of nights on 50 hosts, on SQLite or PostgreSQL.

    python benchmarks/store.py                                      # SQLite in a temporary folder
    python benchmarks/store.py --url postgresql://user@/name        # an empty database of a PostgreSQL server

Records are made from one of the kept examples, with eight probes each, and imported as jobs import them (parsed, held
against their seal and their own evidence, one transaction each) for the first `--timed` of them; the rest goes in by
the same rows in large transactions, because only the queries are timed on the whole. Prints one JSON document: bytes of
the database, records per second of import, and milliseconds per query: the fastest and the median of 21 (on a machine
that does other work at the same time the fastest is the one that says most of the query).
"""

import argparse
import json
import os
import statistics
import tempfile
import time
import zlib
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from deployctl.nightly.history import judge_series
from deployctl.records.db import index as indexing
from deployctl.records.db import queries, tables
from deployctl.records.db.engine import VARIABLE, transaction
from deployctl.records.db.index import Index
from deployctl.records.schema import Record, parse_record

EXAMPLE = Path(__file__).parents[1] / "tests" / "records" / "data" / "v1" / "certified.json"
FIRST = datetime(2026, 1, 1, 4, tzinfo=UTC)


def made(example: Record, host: int, night: int) -> Record:
    at = FIRST + timedelta(days=night, minutes=7 * host)
    assert example.host is not None
    assert example.baseline is not None
    probes = (example.probes * 8)[:8]
    wobble = 1 + 0.02 * ((host * 7919 + night * 104729) % 200 - 100) / 100
    return example.model_copy(
        update={
            "run_id": f"{at:%Y%m%dT%H%M%SZ}-{host:04x}",
            "started_at": at,
            "ended_at": at + timedelta(minutes=40),
            "host": example.host.model_copy(update={"name": f"vps-{host:02}"}),
            "probes": probes,
            "baseline": example.baseline.model_copy(
                update={"decode_tokens_per_s": (example.baseline.decode_tokens_per_s or 10) * wobble}
            ),
        }
    )


def fill(index: Index, hosts: int, nights: int, timed: int) -> float:
    example = parse_record(EXAMPLE.read_bytes())
    began, count = time.perf_counter(), 0
    pending: list[Record] = []
    speed = 0.0
    for night in range(nights):
        for host in range(hosts):
            record = made(example, host, night)
            if count < timed:
                index.add(record.to_json().encode())
                speed = (count + 1) / (time.perf_counter() - began)
            else:
                pending.append(record)
            count += 1
        if len(pending) >= 1000 or night == nights - 1:
            bulk(index, pending)
            pending.clear()
    return speed


def bulk(index: Index, records: list[Record]) -> None:
    if not records:
        return
    body = zlib.compress(records[0].to_json().encode(), 6)
    with transaction(index.engine, write=True) as connection:
        connection.execute(sa.insert(tables.runs), [indexing._run_row(record) for record in records])
        rows = [indexing._probe_row(record, at) for record in records for at in range(len(record.probes))]
        connection.execute(sa.insert(tables.probes), rows)
        documents = [{"run_id": record.run_id, "body": body} for record in records]
        connection.execute(sa.insert(tables.documents), documents)


def measured(query: Callable[[], Any]) -> dict[str, float]:
    times = []
    for _ in range(21):
        began = time.perf_counter()
        query()
        times.append(1000 * (time.perf_counter() - began))
    return {"fastest_ms": round(min(times), 2), "median_ms": round(statistics.median(times), 2)}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--url", help="a PostgreSQL database; else SQLite")
    options.add_argument("--hosts", type=int, default=50)
    options.add_argument("--nights", type=int, default=365)
    options.add_argument("--timed", type=int, default=300)
    chosen = options.parse_args()
    with tempfile.TemporaryDirectory(prefix="deployctl-store-") as folder:
        os.environ[VARIABLE] = chosen.url or f"sqlite:///{folder}/store.db"
        with Index.open(Path(folder)) as index:
            speed = fill(index, chosen.hosts, chosen.nights, chosen.timed)
            if index.engine.dialect.name == "postgresql":
                with index.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
                    connection.execute(sa.text("ANALYZE"))
                    size = connection.execute(sa.text("SELECT pg_database_size(current_database())")).scalar_one()
            else:
                size = sum(path.stat().st_size for path in Path(folder).iterdir())
            newest = queries.recent(index, limit=1)[0]
            ids = [row.run_id for row in queries.recent(index, limit=200)]
            answers: dict[str, Callable[[], Any]] = {
                "the newest 100 runs": lambda: queries.recent(index),
                "the newest 100 of one plan and model": lambda: queries.recent(
                    index, plan=newest.series.plan, model=newest.series.model
                ),
                "a year of one series": lambda: queries.history(index, newest.series),
                "the newest run of every series": lambda: queries.latest(index),
                "when everything was last measured": lambda: queries.last_times(index),
                "the probes of 200 runs": lambda: queries.probes_of(index, ids),
                "one whole record": lambda: queries.document(index, newest.run_id),
                "every run's digest": lambda: queries.digests(index),
                "200 nights of a series, judged": lambda: judge_series(index, newest.series),
            }
            result = {
                "database": index.engine.dialect.name,
                "runs": chosen.hosts * chosen.nights,
                "probes": 8 * chosen.hosts * chosen.nights,
                "bytes": size,
                "imports_per_s": round(speed, 1),
                "queries": {name: measured(query) for name, query in answers.items()},
            }
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
