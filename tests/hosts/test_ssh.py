"""Sessions against a real OpenSSH server: who is let in, who is stopped, and that nothing was sent."""

import shutil
import socket
import subprocess
import time

import pytest

from deployctl.errors import AuthenticationFailed, HostKeyChanged, HostKeyUnknown, HostUnreachable
from deployctl.hosts.clients import try_openssh
from deployctl.hosts.secrets import Secrets
from deployctl.hosts.ssh import CommandTimeout, connect


def test_a_known_host_with_the_right_key_runs_commands(sshd):
    with connect(sshd.target(), "refuse") as session:
        done = session.run("printf out; printf err >&2; exit 7")
        assert (done.rc, done.stdout, done.stderr) == (7, "out", "err")
        assert session.fingerprint == sshd.fingerprint()


def test_a_large_standard_input_arrives_whole_and_comes_back(sshd):
    data = bytes(range(256)) * 20_000
    with connect(sshd.target(), "refuse") as session:
        done = session.run("cksum; cat >/dev/null", stdin=data)
        local = subprocess.run(["cksum"], input=data, capture_output=True, check=True).stdout.decode()
        assert done.stdout == local
        echoed = session.run("cat", stdin=b"x" * 3_000_000)
        assert echoed.stdout == "x" * 3_000_000


def test_a_command_that_answers_without_reading_its_input_does_not_block(sshd):
    with connect(sshd.target(), "refuse") as session:
        assert session.run("echo early; exit 0", stdin=b"x" * 8_000_000).stdout == "early\n"


def test_a_command_that_leaves_a_child_holding_its_output_ends_with_its_own_status(sshd):
    with connect(sshd.target(), "refuse") as session:
        assert session.run("sleep 8 & echo started; exit 3", timeout=6).rc == 3


def test_a_command_without_end_is_a_timeout(sshd):
    with connect(sshd.target(), "refuse") as session, pytest.raises(CommandTimeout, match="no end of `sleep 60`"):
        session.run("sleep 60", timeout=0.3)


def test_lines_arrive_while_the_command_still_runs(sshd):
    with connect(sshd.target(), "refuse") as session:
        lines = session.lines("echo one; echo two; sleep 30", silence_s=10)
        assert [next(lines), next(lines)] == ["one", "two"]
        lines.close()


def test_the_wrong_key_is_an_authentication_failure_that_names_the_key(sshd):
    other = sshd.new_key("other_key")
    with pytest.raises(AuthenticationFailed, match="other_key") as caught:
        connect(sshd.target(key_file=other), "refuse")
    assert "--key FILE" in caught.value.hint
    assert "Failed publickey" in sshd.log


def test_a_missing_key_file_is_an_authentication_failure_that_names_it(sshd, tmp_path):
    with pytest.raises(AuthenticationFailed, match="no key file"):
        connect(sshd.target(key_file=tmp_path / "absent"), "refuse")


def test_a_key_with_a_passphrase_that_no_agent_holds_says_so(sshd, monkeypatch):
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    path = sshd.directory / "locked"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "secret words", "-f", path], check=True)
    with pytest.raises(AuthenticationFailed, match="passphrase"):
        connect(sshd.target(key_file=path), "refuse")


def test_a_key_with_a_passphrase_works_once_the_agent_holds_it(sshd, monkeypatch, tmp_path):
    locked = shutil.copy(sshd.client_key, sshd.directory / "locked")
    shutil.copy(sshd.client_key.with_suffix(".pub"), sshd.directory / "locked.pub")
    agent = subprocess.Popen(["ssh-agent", "-D", "-a", tmp_path / "agent"], stdout=subprocess.DEVNULL)
    try:
        while not (tmp_path / "agent").exists():
            time.sleep(0.01)
        monkeypatch.setenv("SSH_AUTH_SOCK", str(tmp_path / "agent"))
        subprocess.run(["ssh-add", "-q", locked], check=True, capture_output=True)
        subprocess.run(["ssh-keygen", "-q", "-p", "-P", "", "-N", "secret", "-f", locked], check=True)
        with connect(sshd.target(key_file=locked), "refuse") as session:
            assert session.run("true").rc == 0
    finally:
        agent.terminate()
        agent.wait()


def test_a_passphrase_that_is_given_opens_the_key_and_a_wrong_one_is_told(sshd, monkeypatch):
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    subprocess.run(
        ["ssh-keygen", "-q", "-p", "-P", "", "-N", "secret words", "-f", sshd.client_key],
        check=True,
        capture_output=True,
    )
    with connect(sshd.target(secrets=Secrets(passphrase="secret words")), "refuse") as session:
        assert session.run("true").rc == 0
    with pytest.raises(AuthenticationFailed, match="passphrase does not open"):
        connect(sshd.target(secrets=Secrets(passphrase="other words")), "refuse")
    questions = []
    with connect(sshd.target(), "refuse", ask_secret=lambda what: questions.append(what) or "secret words") as session:
        assert session.target.secrets.passphrase == "secret words", "the clients that come later need it, too"
    assert questions == [f"Passphrase of {sshd.client_key}"]
    assert "secret words" not in repr(session.target)


def test_a_key_file_that_others_can_read_is_refused_with_the_command_that_mends_it(sshd):
    sshd.client_key.chmod(0o644)
    with pytest.raises(AuthenticationFailed, match=r"can be read by others \(mode 644\)") as caught:
        connect(sshd.target(), "refuse")
    subprocess.run(["sh", "-c", caught.value.hint], check=True)
    with connect(sshd.target(), "refuse") as session:
        assert session.run("true").rc == 0


@pytest.mark.parametrize("kind", ["ed25519", "rsa"])
def test_an_expected_fingerprint_lets_the_host_in_whichever_of_its_keys_it_is(sshd, kind):
    sshd.stop()
    other = sshd.new_key("host_rsa", "rsa")
    sshd.config = f"HostKey {other}"
    sshd.start()
    path = sshd.host_key if kind == "ed25519" else other
    listing = subprocess.run(["ssh-keygen", "-lf", path], check=True, capture_output=True, text=True).stdout
    target = sshd.target(known_hosts=sshd.directory / "fresh", fingerprint=listing.split()[1])
    with connect(target, "refuse") as session:
        assert session.fingerprint == target.fingerprint
    assert (sshd.directory / "fresh").read_text().split()[1].removeprefix("ssh-") == kind


def test_an_expected_fingerprint_that_is_not_the_hosts_is_a_hard_stop(sshd):
    wrong = "SHA256:" + "A" * 43
    for known in (sshd.directory / "fresh", sshd.directory / "known_hosts"):
        before = known.read_bytes() if known.exists() else None
        with pytest.raises(HostKeyChanged, match="is expected") as caught:
            connect(sshd.target(known_hosts=known, fingerprint=wrong), "accept-new")
        assert wrong in caught.value.message
        assert sshd.fingerprint() in caught.value.message
        assert (known.read_bytes() if known.exists() else None) == before
    assert "publickey" not in sshd.log


def test_an_ipv6_literal_is_reached_by_both_clients(sshd):
    sshd.stop()
    sshd.config = "ListenAddress ::1"
    sshd.start()
    target = sshd.target(address="::1", known_hosts=sshd.directory / "six")
    with connect(target, "accept-new") as session:
        assert session.run("echo $SSH_CONNECTION").stdout.startswith("::1 ")
    try_openssh(target)


def test_a_closed_port_is_unreachable(sshd):
    sshd.stop()
    with pytest.raises(HostUnreachable, match="refused"):
        connect(sshd.target(), "refuse")


def test_a_port_that_speaks_something_else_is_unreachable(tmp_path, sshd):
    with socket.create_server(("127.0.0.1", 0)) as server:
        target = sshd.target(port=server.getsockname()[1])
        with pytest.raises(HostUnreachable, match="does not speak SSH"):
            connect(target, "refuse", timeout=0.5)


def test_a_name_that_does_not_resolve_is_unreachable(sshd):
    with pytest.raises(HostUnreachable, match="no such host"):
        connect(sshd.target(address="no-such-host.invalid"), "refuse")


def test_a_changed_host_key_stops_before_any_authentication(sshd):
    old = sshd.fingerprint()
    sshd.stop()
    sshd.new_key("host_key")
    sshd.start()
    with pytest.raises(HostKeyChanged) as caught:
        connect(sshd.target(), "accept-new")
    assert old in caught.value.message
    assert sshd.fingerprint() in caught.value.message
    assert f"-R '[127.0.0.1]:{sshd.port}'" in caught.value.hint
    wait_for(lambda: "Connection closed" in sshd.log or "Connection reset" in sshd.log)
    assert "publickey" not in sshd.log
    assert "Failed" not in sshd.log
    assert "for " + sshd.target().user not in sshd.log, "not even the user's name was sent"


def test_the_remedy_for_a_changed_key_works_as_printed(sshd):
    sshd.stop()
    sshd.new_key("host_key")
    sshd.start()
    with pytest.raises(HostKeyChanged) as caught:
        connect(sshd.target(), "refuse")
    command = caught.value.hint.partition("old key: ")[2]
    subprocess.run(["sh", "-c", command], check=True, capture_output=True)
    with connect(sshd.target(), "accept-new") as session:
        assert session.run("true").rc == 0


def test_an_unknown_key_is_refused_with_its_fingerprint_and_the_remedy(sshd):
    target = sshd.target(known_hosts=sshd.directory / "empty")
    for policy in ("refuse", "ask"):
        with pytest.raises(HostKeyUnknown) as caught:
            connect(target, policy)
        assert sshd.fingerprint() in caught.value.message
        assert "--accept-new" in caught.value.hint
    assert not target.known_hosts.exists()
    assert "publickey" not in sshd.log


def test_asking_shows_the_fingerprint_and_obeys_the_answer(sshd):
    target = sshd.target(known_hosts=sshd.directory / "asked")
    questions = []

    def ask(question, answer):
        questions.append(question)
        return answer

    with pytest.raises(HostKeyUnknown):
        connect(target, "ask", ask=lambda question: ask(question, False))
    with connect(target, "ask", ask=lambda question: ask(question, True)):
        pass
    assert all(sshd.fingerprint() in question for question in questions)
    with connect(target, "refuse"):
        pass


def test_accept_new_appends_exactly_one_line_and_loses_none(sshd):
    file = sshd.directory / "mine"
    file.write_text("# a comment\nexample.org ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIExample")
    before = file.read_text()
    target = sshd.target(known_hosts=file)
    for _ in range(2):
        with connect(target, "accept-new"):
            pass
    assert file.read_text() == before + "\n" + sshd.known_hosts_line()
    assert file.stat().st_mode & 0o777 == 0o600


def test_a_host_with_two_keys_is_recognised_by_the_one_on_file(sshd):
    rsa = sshd.new_key("host_rsa", "rsa")
    sshd.stop()
    sshd.config = f"HostKey {rsa}"
    sshd.start()
    kind, blob = rsa.with_suffix(".pub").read_text().split()[:2]
    file = sshd.directory / "only_rsa"
    file.write_text(f"[127.0.0.1]:{sshd.port} {kind} {blob}\n")
    with connect(sshd.target(known_hosts=file), "refuse") as session:
        assert session.run("true").rc == 0


def test_a_connection_that_breaks_in_mid_command_is_unreachable(sshd):
    with connect(sshd.target(), "refuse") as session:
        lines = session.lines("echo here; sleep 30", silence_s=20)
        assert next(lines) == "here"
        sshd.stop()
        with pytest.raises(HostUnreachable, match="broke"):
            next(lines)
        with pytest.raises(HostUnreachable, match="broke"):
            session.run("true")


def wait_for(condition):
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline, "it never came about"
        time.sleep(0.02)
