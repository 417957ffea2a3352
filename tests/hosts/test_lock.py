"""The lock and the audit log on a host, over real SSH, with the paths of a folder of the test's own."""

import json
import subprocess
import sys
import textwrap

import pytest

from deployctl.errors import HostBusy
from deployctl.hosts import lock
from deployctl.hosts.ssh import connect


@pytest.fixture
def session(sshd, monkeypatch):
    monkeypatch.setattr(lock, "LOCK", str(sshd.directory / "run" / "lock"))
    monkeypatch.setattr(lock, "AUDIT", str(sshd.directory / "audit.log"))
    with connect(sshd.target(), "refuse") as made:
        yield made


def audit(sshd):
    return [line.split(" ", 1)[1] for line in (sshd.directory / "audit.log").read_text().splitlines()]


def test_a_second_run_is_refused_with_who_and_since_and_the_host_is_free_afterwards(session, sshd):
    with lock.only_run(session, "run-1", "serve m"):
        held = json.loads((sshd.directory / "run" / "lock").read_text().splitlines()[0])
        assert held["run"] == "run-1"
        assert held["who"] == lock.who()
        words = f"in use by {lock.who()}: run run-1, for .* now"
        with pytest.raises(HostBusy, match=words) as caught, lock.only_run(session, "run-2", "serve n"):
            pass
        assert "lapses in" in caught.value.hint
    assert list((sshd.directory / "run").iterdir() if (sshd.directory / "run").exists() else []) == []
    with lock.only_run(session, "run-3", "serve o"):
        pass
    begins = [f"run={run} by={lock.who()} begin serve {model}" for run, model in (("run-1", "m"), ("run-3", "o"))]
    lines = audit(sshd)
    assert [line for line in lines if "begin" in line] == begins
    assert "end serve m: done, " in lines[1]


def test_an_interrupted_or_failed_run_lets_go_and_says_so(session, sshd):
    for error in (KeyboardInterrupt(), ValueError("x")):
        with pytest.raises(type(error)), lock.only_run(session, "run-1", "work\nin two lines"):
            raise error
    assert not (sshd.directory / "run").exists()
    ends = [line.partition(" end ")[2] for line in audit(sshd) if " end " in line]
    assert [end.rpartition(",")[0] for end in ends] == [
        "work in two lines: interrupted",
        "work in two lines: failed: ValueError",
    ]
    assert (sshd.directory / "audit.log").stat().st_mode & 0o777 == 0o640


OWNER = """
import pathlib, sys, time
from deployctl.hosts import lock
from deployctl.hosts.ssh import connect
from deployctl.hosts.target import Target
lock.LOCK, lock.AUDIT = {lock!r}, {audit!r}
target = Target(name="h", address="127.0.0.1", port={port}, user={user!r}, become=False,
    known_hosts=pathlib.Path({known!r}), key_file=pathlib.Path({key!r}))
with connect(target, "refuse") as session, lock.only_run(session, "dead", "work"):
    print("held", flush=True)
    time.sleep(60)
"""


def test_the_lock_of_a_killed_run_of_this_machine_is_taken_over_at_once(session, sshd):
    target = session.target
    code = textwrap.dedent(OWNER).format(
        lock=lock.LOCK,
        audit=lock.AUDIT,
        port=target.port,
        user=target.user,
        known=str(target.known_hosts),
        key=str(target.key_file),
    )
    owner = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert owner.stdout.readline() == "held\n"
    with pytest.raises(HostBusy, match="run dead"), lock.only_run(session, "next", "work"):
        pass
    owner.kill()
    owner.wait()
    owner.stdout.close()
    with lock.only_run(session, "next", "work"):
        assert '"next"' in (sshd.directory / "run" / "lock").read_text()


def test_the_lock_of_another_machine_lapses_by_itself_and_not_before(session, sshd):
    path = sshd.directory / "run" / "lock"
    path.parent.mkdir()
    foreign = json.dumps({"run": "far", "who": "eve@elsewhere", "since": 0, "machine": "another", "process": "1/1"})
    now = int(session.run("date +%s").stdout)
    path.write_text(f"{foreign}\n{now + 100}\n")
    with pytest.raises(HostBusy, match="eve@elsewhere"), lock.only_run(session, "mine", "work"):
        pass
    path.write_text(f"{foreign}\n{now - 1}\n")
    with lock.only_run(session, "mine", "work"):
        assert '"mine"' in path.read_text()


def test_whoever_holds_it_renews_it(session, sshd, monkeypatch):
    monkeypatch.setattr(lock, "RENEW_S", 0.05)
    monkeypatch.setattr(lock, "TTL_S", 1000)
    path = sshd.directory / "run" / "lock"
    with lock.only_run(session, "mine", "work"):
        owner = path.read_text().splitlines()[0]
        path.write_text(f"{owner}\n1\n")
        for _ in range(200):
            if int(path.read_text().splitlines()[1]) > 1:
                break
            session.run("sleep 0.05")
        assert int(path.read_text().splitlines()[1]) > 1
