"""The tables of the index. Times are whole microseconds since 1970 in UTC: both databases order them alike."""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Column,
    Float,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
)

HEAD = "0001"
"""The newest migration; a test holds it against the scripts."""

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
    }
)

SERIES = ("host", "plan", "model", "workload", "slo", "engine")
"""What makes two runs answers to one question: the columns of a series. Empty text where there is none."""

runs = Table(
    "runs",
    metadata,
    Column("run_id", String(64), primary_key=True),
    Column("digest", String(64), nullable=False),
    Column("started_us", BigInteger, nullable=False),
    Column("ended_us", BigInteger, nullable=False),
    *(Column(name, Text, nullable=False) for name in SERIES),
    Column("status", String(16), nullable=False),
    Column("capacity_status", String(16), nullable=False),
    Column("certified_users", BigInteger, nullable=False),
    Column("at_most_users", BigInteger),
    Column("confidence", Float),
    Column("limited_by", Text),
    Column("decode_tokens_per_s", Float),
    Column("prefill_tokens_per_s", Float),
    Column("ttft_s", Float),
    Column("variant", Text),
    Column("model_digest", Text),
    Column("engine_version", Text),
    Column("kernel", Text),
    Column("driver", Text),
    Column("cpu_model", Text),
    Column("settings", Text),
    Column("steal_share", Float),
    Column("cpu_mhz", Float),
    Column("imported_us", BigInteger, nullable=False),
    Index(None, *SERIES, "started_us"),
    Index(None, "started_us"),
    Index(None, "plan", "model", "started_us"),
)

probes = Table(
    "probes",
    metadata,
    Column("run_id", String(64), ForeignKey("runs.run_id", ondelete="CASCADE"), primary_key=True),
    Column("position", Integer, primary_key=True),
    Column("users", BigInteger, nullable=False),
    Column("verdict", String(16), nullable=False),
    Column("requests", BigInteger, nullable=False),
    Column("attainment", Float),
    Column("attainment_low", Float),
    Column("attainment_high", Float),
    Column("tokens_per_s", Float),
    Column("ttft_p50_s", Float),
    Column("ttft_p95_s", Float),
    Column("tpot_p50_s", Float),
    Column("tpot_p95_s", Float),
    Column("seconds", Float),
)

documents = Table(
    "documents",
    metadata,
    Column("run_id", String(64), ForeignKey("runs.run_id", ondelete="CASCADE"), primary_key=True),
    Column("body", LargeBinary, nullable=False),  # record.json as it was written, zlib
)

nights = Table(
    "nights",
    metadata,
    Column("night_id", String(64), primary_key=True),
    Column("started_us", BigInteger, nullable=False),
    Column("ended_us", BigInteger),
    Column("body", Text, nullable=False),  # its summary, JSON
    Index(None, "started_us"),
)

validations = Table(
    "validations",
    metadata,
    Column("validation_id", String(64), primary_key=True),
    Column("ended_us", BigInteger, nullable=False),
    Column("plan", Text, nullable=False),
    Column("verdict", String(16), nullable=False),
    Column("body", Text, nullable=False),  # the whole validation, JSON
    Index(None, "plan", "ended_us"),
)
