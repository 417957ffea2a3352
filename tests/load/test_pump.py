"""The reader that runs inside Locust sees what the plain one sees, whatever a server does."""

import json
import subprocess
import sys

import pytest

MODELS = [
    *("plain:1", "plain:3", "plain:16", "split-utf8", "two-in-one", "thinking", "identity", "until-close", "forget"),
    *("no-final", "cut-off", "error-midway", "status:503", "status:429", "reset", "reset:midway", "gzip", "redirect"),
    *("bad-utf8", "bad-json", "not-http", "slow:2"),
]

# Run in a process of its own: gevent patches it as Locust does. All at once, each with a connection of its own.
SCRIPT = """
from gevent import monkey; monkey.patch_all()
import json, sys
from time import monotonic
from gevent.pool import Group
from deployctl.load.child.pump import pump_callback
from deployctl.load.connection import Address, Connection
from deployctl.load.exchange import Exchange
from deployctl.load.outcome import to_sample
from deployctl.load.streams import NdjsonStream

address = Address.parse(sys.argv[1])

def ask(model):
    body = json.dumps({"model": model, "options": {"num_predict": 32}}).encode()
    exchange, begin = Exchange(NdjsonStream()), monotonic()
    connection = Connection(address, pump_callback)
    connection.run(address.request("/api/chat", body), exchange, begin + 1.0)
    connection.close()
    s = to_sample(exchange, user=0, seq=0, intended_s=begin, sent_s=begin, asked_tokens=32)
    retry = None if s.retry_after_s != s.retry_after_s else s.retry_after_s
    return [s.error, s.status, s.chunks, s.output_tokens, s.received_bytes, s.done_reason, s.message, retry]

models = json.loads(sys.argv[2])
print(json.dumps(dict(zip(models, Group().imap(ask, models)))))
"""


@pytest.fixture(scope="module")
def seen(fake):
    argv = [sys.executable, "-c", SCRIPT, fake, json.dumps(MODELS)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=True)
    return json.loads(done.stdout)


@pytest.mark.parametrize("model", MODELS)
def test_both_readers_see_the_same(ask, seen, model):
    sample = ask(model, tokens=32, timeout_s=1.0)
    error, status, chunks, tokens, size, reason, message, retry = seen[model]
    assert error == sample.error
    assert (status, tokens, reason) == (sample.status, sample.output_tokens, sample.done_reason)
    assert retry == (None if sample.retry_after_s != sample.retry_after_s else sample.retry_after_s)
    # How much still arrives, and in which pieces, the kernel decides where the connection breaks.
    if not model.startswith(("reset", "not-http", "slow", "bad-")):
        assert (chunks, size, message) == (sample.chunks, sample.received_bytes, sample.message)
