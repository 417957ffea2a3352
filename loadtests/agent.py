"""A program that works in turns, sending each answer back: ``locust -f loadtests/agent.py -H http://127.0.0.1:11434``."""

from pathlib import Path

from deployctl.load.child.bind import bind
from deployctl.load.child.user import LoadUser


class AgentUser(LoadUser):
    """One user of the workload ``agent``."""


bind(AgentUser, workload="agent", folder=Path(__file__).resolve().parent)
