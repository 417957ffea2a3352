"""People chatting: ``locust -f loadtests/chat.py -H http://127.0.0.1:11434`` or started by deployctl itself."""

from pathlib import Path

from deployctl.load.child.bind import bind
from deployctl.load.child.user import LoadUser


class ChatUser(LoadUser):
    """A person who asks, reads and thinks."""


bind(ChatUser, workload="chat", folder=Path(__file__).resolve().parent)
