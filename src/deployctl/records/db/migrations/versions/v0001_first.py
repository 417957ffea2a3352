"""The first shape of the index."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make the tables."""
    op.create_table(
        "runs",
        sa.Column("run_id", sa.String(64), nullable=False),
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("started_us", sa.BigInteger, nullable=False),
        sa.Column("ended_us", sa.BigInteger, nullable=False),
        sa.Column("host", sa.Text, nullable=False),
        sa.Column("plan", sa.Text, nullable=False),
        sa.Column("model", sa.Text, nullable=False),
        sa.Column("workload", sa.Text, nullable=False),
        sa.Column("slo", sa.Text, nullable=False),
        sa.Column("engine", sa.Text, nullable=False),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("capacity_status", sa.String(16), nullable=False),
        sa.Column("certified_users", sa.BigInteger, nullable=False),
        sa.Column("at_most_users", sa.BigInteger),
        sa.Column("confidence", sa.Float),
        sa.Column("limited_by", sa.Text),
        sa.Column("decode_tokens_per_s", sa.Float),
        sa.Column("prefill_tokens_per_s", sa.Float),
        sa.Column("ttft_s", sa.Float),
        sa.Column("variant", sa.Text),
        sa.Column("model_digest", sa.Text),
        sa.Column("engine_version", sa.Text),
        sa.Column("kernel", sa.Text),
        sa.Column("driver", sa.Text),
        sa.Column("cpu_model", sa.Text),
        sa.Column("settings", sa.Text),
        sa.Column("steal_share", sa.Float),
        sa.Column("cpu_mhz", sa.Float),
        sa.Column("imported_us", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("run_id", name="pk_runs"),
    )
    op.create_index(
        "ix_runs_host_plan_model_workload_slo_engine_started_us",
        "runs",
        ["host", "plan", "model", "workload", "slo", "engine", "started_us"],
    )
    op.create_index("ix_runs_started_us", "runs", ["started_us"])
    op.create_index("ix_runs_plan_model_started_us", "runs", ["plan", "model", "started_us"])
    op.create_table(
        "probes",
        sa.Column("run_id", sa.String(64), nullable=False),
        sa.Column("position", sa.Integer, nullable=False),
        sa.Column("users", sa.BigInteger, nullable=False),
        sa.Column("verdict", sa.String(16), nullable=False),
        sa.Column("requests", sa.BigInteger, nullable=False),
        sa.Column("attainment", sa.Float),
        sa.Column("attainment_low", sa.Float),
        sa.Column("attainment_high", sa.Float),
        sa.Column("tokens_per_s", sa.Float),
        sa.Column("ttft_p50_s", sa.Float),
        sa.Column("ttft_p95_s", sa.Float),
        sa.Column("tpot_p50_s", sa.Float),
        sa.Column("tpot_p95_s", sa.Float),
        sa.Column("seconds", sa.Float),
        sa.PrimaryKeyConstraint("run_id", "position", name="pk_probes"),
        sa.ForeignKeyConstraint(["run_id"], ["runs.run_id"], name="fk_probes_run_id", ondelete="CASCADE"),
    )
    op.create_table(
        "documents",
        sa.Column("run_id", sa.String(64), nullable=False),
        sa.Column("body", sa.LargeBinary, nullable=False),
        sa.PrimaryKeyConstraint("run_id", name="pk_documents"),
        sa.ForeignKeyConstraint(["run_id"], ["runs.run_id"], name="fk_documents_run_id", ondelete="CASCADE"),
    )
    op.create_table(
        "nights",
        sa.Column("night_id", sa.String(64), nullable=False),
        sa.Column("started_us", sa.BigInteger, nullable=False),
        sa.Column("ended_us", sa.BigInteger),
        sa.Column("body", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("night_id", name="pk_nights"),
    )
    op.create_index("ix_nights_started_us", "nights", ["started_us"])
    op.create_table(
        "validations",
        sa.Column("validation_id", sa.String(64), nullable=False),
        sa.Column("ended_us", sa.BigInteger, nullable=False),
        sa.Column("plan", sa.Text, nullable=False),
        sa.Column("verdict", sa.String(16), nullable=False),
        sa.Column("body", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("validation_id", name="pk_validations"),
    )
    op.create_index("ix_validations_plan_ended_us", "validations", ["plan", "ended_us"])


def downgrade() -> None:
    """Remove them: the index is made anew from the records by ``deployctl records sync``."""
    for name in ("validations", "nights", "documents", "probes", "runs"):
        op.drop_table(name)
