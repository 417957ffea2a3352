"""The lab itself: hosts are real, reachable as a server is, and leave nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from nspawn.base import cache_dir
from nspawn.fixtures import HostFactory
from nspawn.host import LabHost, running_host

from deployctl.hosts.target import Target


def openssh(target: Target, command: str) -> subprocess.CompletedProcess[str]:
    """Log in with OpenSSH as a user would who trusts only ``target.known_hosts``."""
    options = (f"UserKnownHostsFile={target.known_hosts}", "StrictHostKeyChecking=yes", "BatchMode=yes")
    argv = ["ssh", "-F", "none", "-i", str(target.key_file), "-p", str(target.port)]
    argv += [word for option in options for word in ("-o", option)]
    return subprocess.run(
        [*argv, f"{target.user}@{target.address}", command], capture_output=True, text=True, timeout=30, check=False
    )


def links() -> set[str]:
    return {path.name for path in Path("/sys/class/net").glob("deployctl*")}


def cgroups() -> set[str]:
    return {str(path) for path in Path("/sys/fs/cgroup").glob("**/deployctl-lab-*")}


def run_folders() -> set[str]:
    return {path.name for path in (cache_dir() / "run").glob("*")}


def wait_until_gone(what: object, before: set[str]) -> None:
    assert callable(what)
    deadline = time.monotonic() + 20
    while what() - before and time.monotonic() < deadline:
        time.sleep(0.1)
    assert what() - before == set()


def test_systemd_is_process_one_and_runs_without_a_failed_unit(lab_host: HostFactory) -> None:
    host = lab_host("alpha")
    assert host.run("cat /proc/1/comm").stdout.strip() == "systemd"
    assert host.run("systemctl is-system-running").stdout.strip() == "running"
    assert host.run("hostname").stdout.strip() == "alpha"


def test_the_user_logs_in_with_the_key_and_becomes_root_by_sudo(lab_host: HostFactory) -> None:
    host = lab_host("alpha")
    assert host.ssh("id -un").stdout.strip() == "deploy"
    assert host.ssh("sudo -n id -un").stdout.strip() == "root"


def test_a_known_host_key_lets_openssh_in_and_a_changed_one_keeps_it_out(fresh_host: LabHost, tmp_path: Path) -> None:
    target = fresh_host.target(tmp_path / "known_hosts")
    assert openssh(target, "hostname").stdout.strip() == "fresh"
    fresh_host.regenerate_host_key()
    refused = openssh(target, "hostname")
    assert refused.returncode == 255
    assert "REMOTE HOST IDENTIFICATION HAS CHANGED" in refused.stderr


def test_stopping_sshd_cuts_the_sessions_that_are_open(fresh_host: LabHost, tmp_path: Path) -> None:
    target = fresh_host.target(tmp_path / "known_hosts")
    argv = ["ssh", "-F", "none", "-i", str(target.key_file), "-o", f"UserKnownHostsFile={target.known_hosts}"]
    session = subprocess.Popen(
        [*argv, f"{target.user}@{target.address}", "echo in; sleep 1000"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        stdin=subprocess.DEVNULL,
    )
    with session:
        assert session.stdout
        assert session.stdout.readline() == b"in\n"
        fresh_host.stop_sshd()
        assert session.wait(timeout=20) == 255
    assert fresh_host.run("systemctl is-active ssh", check=False).stdout.strip() == "inactive"
    fresh_host.start_sshd()
    assert openssh(target, "echo back").stdout == "back\n"


def test_a_host_comes_back_from_a_reboot_at_the_same_address(fresh_host: LabHost) -> None:
    fresh_host.run("echo kept >/var/lib/kept; touch /run/volatile")
    fresh_host.reboot()
    assert fresh_host.ssh("cat /var/lib/kept; ls /run/volatile", check=False).stdout == "kept\n"


@pytest.mark.parametrize("fresh_host", [{"sudo": "password", "password": "correct horse"}], indirect=True)
def test_a_host_can_ask_for_a_sudo_password(fresh_host: LabHost) -> None:
    assert fresh_host.ssh("sudo -n true", check=False).returncode == 1
    assert fresh_host.ssh("echo correct horse | sudo -S -p '' id -un").stdout.strip() == "root"


def test_looking_up_a_name_fails_instead_of_waiting_for_a_name_server(lab_host: HostFactory) -> None:
    host = lab_host("alpha")
    assert host.run("timeout 2 getent hosts nowhere.example", check=False).returncode == 2
    assert host.run("getent hosts alpha").stdout.split() == ["127.0.1.1", "alpha"]


def test_hosts_side_by_side_have_their_own_address_processes_and_files(lab_host: HostFactory) -> None:
    one, other = lab_host("alpha"), lab_host("beta")
    assert one.address != other.address
    assert one.host_key != other.host_key
    one.run("echo mine >/etc/only-here; systemd-run --unit=only-here sleep 1000")
    assert other.run("ls /etc/only-here", check=False).returncode != 0
    assert other.run("systemctl is-active only-here", check=False).stdout.strip() == "inactive"
    one.run("systemctl stop only-here")


def test_what_listens_on_this_side_of_the_link_is_reachable_from_the_host(lab_host: HostFactory) -> None:
    host = lab_host("alpha")
    script = (
        f"import socket; s = socket.create_server(('{host.gateway}', 0)); print(s.getsockname()[1], flush=True)\n"
        "s.accept()[0].sendall(b'hello')"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout
        port = server.stdout.readline().strip()
        client = f"import socket; print(socket.create_connection(('{host.gateway}', {port}), 5).recv(5).decode())"
        assert host.ssh(f'python3 -c "{client}"').stdout == "hello\n"


def test_a_host_without_a_network_of_its_own_listens_on_another_port(lab_base: Path, lab_key: Path) -> None:
    with running_host("shared", lab_key, private_network=False) as host:
        assert host.address == "127.0.0.1"
        assert host.port != 22
        assert host.ssh("hostname").stdout.strip() == "shared"


def test_a_stopped_host_leaves_no_link_no_cgroup_and_no_file(lab_base: Path, lab_key: Path) -> None:
    before = links(), cgroups(), run_folders()
    with running_host("brief", lab_key) as host:
        leader = host.leader()
        assert links() - before[0]
    assert not Path(f"/proc/{leader}").exists()
    for what, old in zip((links, cgroups, run_folders), before, strict=True):
        wait_until_gone(what, old)


def start_and_wait(key: Path) -> tuple[subprocess.Popen[str], int, int]:
    """Boot a host from another process; returns it, its guardian's and its guest's process ids."""
    script = (
        "import sys, time; from pathlib import Path; from nspawn.host import running_host\n"
        "with running_host('doomed', Path(sys.argv[1])) as host:\n"
        "    print(host.guardian.pid, host.leader(), flush=True); time.sleep(1000)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    starter = subprocess.Popen(
        [sys.executable, "-c", script, str(key)], stdout=subprocess.PIPE, text=True, env=environment
    )
    assert starter.stdout
    guardian, leader = (int(word) for word in starter.stdout.readline().split())
    return starter, guardian, leader


def test_killing_the_test_run_takes_the_host_away(lab_base: Path, lab_key: Path) -> None:
    before = links(), cgroups(), run_folders()
    starter, _, leader = start_and_wait(lab_key)
    with starter:
        starter.kill()
    for what, old in zip((links, cgroups, run_folders), before, strict=True):
        wait_until_gone(what, old)
    assert not Path(f"/proc/{leader}").exists()


def test_killing_the_guardian_too_leaves_only_what_the_next_start_removes(lab_base: Path, lab_key: Path) -> None:
    before = links(), cgroups(), run_folders()
    starter, guardian, leader = start_and_wait(lab_key)
    with starter:
        os.kill(guardian, signal.SIGKILL)
        starter.kill()
    wait_until_gone(links, before[0])
    wait_until_gone(lambda: {str(leader)} if Path(f"/proc/{leader}").exists() else set(), set())
    assert run_folders() - before[2]
    with running_host("next", lab_key):
        pass
    for what, old in zip((links, cgroups, run_folders), before, strict=True):
        wait_until_gone(what, old)


def test_without_root_the_lab_says_why_it_is_skipped(lab_base: Path) -> None:
    script = "import os; from nspawn.base import obstacle; os.setuid(65534); print(obstacle())"
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("lab hosts need root")
