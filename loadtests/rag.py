"""People asking over retrieved passages: ``locust -f loadtests/rag.py -H http://127.0.0.1:11434``."""

from pathlib import Path

from deployctl.load.child.bind import bind
from deployctl.load.child.user import LoadUser


class RagUser(LoadUser):
    """One user of the workload ``rag``."""


bind(RagUser, workload="rag", folder=Path(__file__).resolve().parent)
