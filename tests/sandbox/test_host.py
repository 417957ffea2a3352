"""The sandbox host against the SSH clients that the program uses: OpenSSH, paramiko and Ansible."""

from __future__ import annotations

import contextlib
import http.server
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from deployctl.errors import UsageError
from deployctl.hosts.target import Target
from deployctl.sandbox import processes
from deployctl.sandbox.host import SandboxHost

pytest.importorskip("asyncssh", reason="needs the sandbox extra")


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SandboxHost]:
    with SandboxHost(tmp_path_factory.mktemp("sandbox")) as host:
        yield host


def options(target: Target, *, key: Path | None = None) -> list[str]:
    """The options that ssh, scp and sftp share."""
    settings = {
        "UserKnownHostsFile": target.known_hosts,
        "GlobalKnownHostsFile": "/dev/null",
        "StrictHostKeyChecking": "yes",
        "IdentitiesOnly": "yes",
        "IdentityFile": key or target.key_file,
        "BatchMode": "yes",
        "Port": target.port,
    }
    return ["-F", "none", *(word for name, value in settings.items() for word in ("-o", f"{name}={value}"))]


def ssh(target: Target, command: str, *, stdin: bytes = b"", key: Path | None = None) -> tuple[int, bytes, bytes]:
    argv = ["ssh", *options(target, key=key), f"{target.user}@{target.address}", command]
    done = subprocess.run(argv, input=stdin, capture_output=True, timeout=60, check=False)
    return done.returncode, done.stdout, done.stderr


def eventually(condition: object, seconds: float = 15.0) -> bool:
    deadline = time.monotonic() + seconds
    assert callable(condition)
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.05)
    return bool(condition())


def running(pid: int) -> bool:
    with contextlib.suppress(FileNotFoundError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def test_a_command_has_its_output_its_error_output_and_its_exit_code(host: SandboxHost) -> None:
    assert ssh(host.target, "echo out; echo err >&2; exit 3") == (3, b"out\n", b"err\n")


def test_a_command_starts_in_the_home_of_the_sandbox(host: SandboxHost) -> None:
    code, out, _ = ssh(host.target, 'pwd; echo "$HOME"; command -v python3')
    assert code == 0
    assert out.decode().split() == [str(host.home), str(host.home), str(Path(sys.executable).parent / "python3")]


def test_fourteen_megabytes_pass_unchanged_both_ways(host: SandboxHost) -> None:
    data = os.urandom(14_000_000)
    code, out, err = ssh(host.target, "cat", stdin=data)
    assert (code, err) == (0, b"")
    assert out == data


def test_a_command_that_ignores_its_input_still_ends(host: SandboxHost) -> None:
    assert ssh(host.target, "exit 4", stdin=b"x" * 5_000_000)[0] == 4


def test_a_terminal_is_given_when_asked_for(host: SandboxHost) -> None:
    argv = ["ssh", "-tt", *options(host.target), f"{host.target.user}@127.0.0.1", "test -t 0 && test -t 1 && exit 5"]
    assert subprocess.run(argv, capture_output=True, timeout=60, check=False).returncode == 5


def test_another_key_is_refused(host: SandboxHost, tmp_path: Path) -> None:
    key = tmp_path / "other"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
    code, out, err = ssh(host.target, "echo in", key=key)
    assert (code, out) == (255, b"")
    assert b"Permission denied (publickey)" in err


def test_keys_and_known_hosts_are_for_their_owner_alone(host: SandboxHost) -> None:
    for path in (host.root / "etc" / "ssh_host_ed25519_key", host.target.key_file, host.target.known_hosts):
        assert path is not None
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(host.root.stat().st_mode) == 0o700


def test_paramiko_gets_in_with_the_pinned_key_and_moves_files(host: SandboxHost) -> None:
    paramiko = pytest.importorskip("paramiko")
    with paramiko.SSHClient() as client:
        client.load_host_keys(str(host.target.known_hosts))
        client.set_missing_host_key_policy(paramiko.RejectPolicy())
        client.connect(
            host.target.address,
            host.target.port,
            host.target.user,
            key_filename=str(host.target.key_file),
            look_for_keys=False,
            allow_agent=False,
        )
        stdin, stdout, stderr = client.exec_command("wc -c; exit 6")
        stdin.write(b"12345")
        stdin.channel.shutdown_write()
        assert stdout.read().split() == [b"5"]
        assert stdout.channel.recv_exit_status() == 6
        with client.open_sftp() as sftp, sftp.open("from-paramiko", "wb") as file:
            file.write(b"hello")
        for stream in (stdin, stdout, stderr):
            stream.close()
    assert (host.home / "from-paramiko").read_bytes() == b"hello"


@pytest.mark.parametrize("legacy", [(), ("-O",)], ids=["sftp protocol", "scp protocol"])
def test_scp_copies_there_and_back(host: SandboxHost, tmp_path: Path, legacy: tuple[str, ...]) -> None:
    data = os.urandom(300_000)
    (tmp_path / "a").write_bytes(data)
    remote = f"{host.target.user}@127.0.0.1:copied"
    for source, target in ((str(tmp_path / "a"), remote), (remote, str(tmp_path / "b"))):
        argv = ["scp", "-q", *legacy, *options(host.target), source, target]
        subprocess.run(argv, check=True, timeout=60)
    assert (tmp_path / "b").read_bytes() == data
    assert (host.home / "copied").read_bytes() == data


def test_ansible_pings_it_with_pipelining_and_copies(host: SandboxHost, tmp_path: Path) -> None:
    inventory = tmp_path / "hosts.ini"
    args = " ".join(options(host.target))
    inventory.write_text(
        f"sandbox ansible_host=127.0.0.1 ansible_port={host.target.port} ansible_user={host.target.user} "
        f"ansible_python_interpreter={host.target.python} ansible_ssh_args='{args}'\n"
    )
    environment = {**os.environ, "ANSIBLE_PIPELINING": "1", "ANSIBLE_HOME": str(tmp_path / "ansible")}
    ansible = [str(Path(sys.executable).parent / "ansible"), "-i", str(inventory), "sandbox"]
    content = os.urandom(1_000_000)
    (tmp_path / "big").write_bytes(content)
    for module in (["-m", "ping"], ["-m", "copy", "-a", f"src={tmp_path / 'big'} dest={host.home / 'big'} mode=0600"]):
        done = subprocess.run(
            [*ansible, *module], env=environment, capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
    assert (host.home / "big").read_bytes() == content


class _Hello(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"hello")

    def log_message(self, *args: object) -> None:
        pass


@contextlib.contextmanager
def tunnel(target: Target, to: str) -> Iterator[int]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    argv = ["ssh", *options(target), "-N", "-o", "ExitOnForwardFailure=yes", "-L", f"127.0.0.1:{port}:{to}"]
    process = subprocess.Popen([*argv, f"{target.user}@127.0.0.1"], stderr=subprocess.DEVNULL)

    def listening() -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    try:
        assert eventually(listening)
        yield port
    finally:
        process.terminate()
        process.wait()


def test_a_tunnel_reaches_a_loopback_port(host: SandboxHost) -> None:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Hello) as server:
        threading.Thread(target=server.serve_forever).start()
        try:
            with (
                tunnel(host.target, f"127.0.0.1:{server.server_address[1]}") as port,
                urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=10) as answer,
            ):
                assert answer.read() == b"hello"
        finally:
            server.shutdown()


def test_a_tunnel_to_any_other_address_is_refused(host: SandboxHost) -> None:
    # 192.0.2.1 is reserved for documentation (RFC 5737): the refusal must come before any attempt to connect.
    with tunnel(host.target, "192.0.2.1:80") as port, socket.create_connection(("127.0.0.1", port), 10) as connection:
        assert connection.recv(1) == b""


def test_a_second_boot_finds_the_same_host_and_its_files(tmp_path: Path) -> None:
    with SandboxHost(tmp_path / "box") as first:
        ssh(first.target, "echo kept > file")
        known, target = first.target.known_hosts.read_text(), first.target
    with SandboxHost(tmp_path / "box") as second:
        assert second.target == target
        assert second.target.known_hosts.read_text() == known
        assert ssh(second.target, "cat file")[1] == b"kept\n"


def test_a_running_sandbox_cannot_be_booted_twice(host: SandboxHost) -> None:
    with pytest.raises(UsageError, match="already running"), SandboxHost(host.root):
        pass
    assert ssh(host.target, "exit 0")[0] == 0


_DETACH = "setsid nohup sleep 4321 >/dev/null 2>&1 </dev/null & echo $!"
_DETACH_WITHOUT_MARK = f"env -i /bin/sh -c '{_DETACH}'"


@pytest.mark.parametrize("command", [_DETACH, _DETACH_WITHOUT_MARK], ids=["marked", "with an empty environment"])
def test_nothing_is_left_after_leaving(tmp_path: Path, command: str) -> None:
    with SandboxHost(tmp_path / "box") as host:
        pid = int(ssh(host.target, command)[1])
        assert running(pid)
        time.sleep(0.2)
        assert running(pid), "a detached process must outlive its session"
    assert not running(pid)


def test_a_client_that_goes_ends_its_command_under_nohup_too(tmp_path: Path) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does; whatever is started inherits it
    try:
        with SandboxHost(tmp_path / "box") as host:
            argv = [
                "ssh",
                *options(host.target),
                f"{host.target.user}@{host.target.address}",
                "echo $$; exec sleep 4321",
            ]
            client = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
            assert client.stdout is not None
            pid = int(client.stdout.readline())
            assert running(pid)
            client.kill()
            client.communicate()
            assert eventually(lambda: not running(pid))
    finally:
        signal.signal(signal.SIGHUP, before)


_PARENT = """
import sys, time
from pathlib import Path
from deployctl.sandbox.host import SandboxHost
with SandboxHost(Path(sys.argv[1])) as host:
    print(host.target.port, host._process.pid, flush=True)
    time.sleep(600)
"""


@contextlib.contextmanager
def booted_by_another_process(root: Path) -> Iterator[tuple[subprocess.Popen[str], int, Target]]:
    parent = subprocess.Popen([sys.executable, "-c", _PARENT, str(root)], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    try:
        port, guardian = map(int, parent.stdout.readline().split())
        target = Target(
            name="x",
            address="127.0.0.1",
            port=port,
            user=os.environ.get("USER", "root"),
            known_hosts=root / "known_hosts",
            key_file=root / "etc" / "id_ed25519",
        )
        yield parent, guardian, target
    finally:
        parent.kill()
        parent.wait()
        parent.stdout.close()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM], ids=["SIGKILL", "SIGTERM"])
def test_nothing_is_left_when_the_parent_is_killed(tmp_path: Path, number: signal.Signals) -> None:
    with booted_by_another_process(tmp_path / "box") as (parent, guardian, target):
        pid = int(ssh(target, _DETACH)[1])
        family = {pid, guardian, *processes.descendants(guardian)}
        assert len(family) >= 3  # guardian, server, the detached process
        parent.send_signal(number)
        assert eventually(lambda: not any(map(running, family)))


def test_nothing_is_left_when_the_guardian_is_killed(tmp_path: Path) -> None:
    with booted_by_another_process(tmp_path / "box") as (_, guardian, target):
        pid = int(ssh(target, _DETACH)[1])
        family = {pid, *processes.descendants(guardian)}
        os.kill(guardian, signal.SIGKILL)
        assert eventually(lambda: not any(map(running, family)))


def test_nothing_is_left_when_the_ssh_server_is_killed(tmp_path: Path) -> None:
    with booted_by_another_process(tmp_path / "box") as (_, guardian, target):
        pid = int(ssh(target, _DETACH)[1])
        [server] = processes.descendants(guardian) - {pid}
        os.kill(server, signal.SIGKILL)
        assert eventually(lambda: not any(map(running, {pid, server, guardian})))
