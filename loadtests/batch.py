"""Summaries in bulk, without think time: ``locust -f loadtests/batch.py -H http://127.0.0.1:11434``."""

from pathlib import Path

from deployctl.load.child.bind import bind
from deployctl.load.child.user import LoadUser


class BatchUser(LoadUser):
    """One user of the workload ``batch``."""


bind(BatchUser, workload="batch", folder=Path(__file__).resolve().parent)
