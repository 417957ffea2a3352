"""The roles on a systemd host as a user whose sudo asks for a password, with a stand-in for the engine."""

from __future__ import annotations

import re
import socket
from dataclasses import replace

import pytest
from nspawn.host import running_host

from deployctl.errors import HostUnreachable, ProvisionError
from deployctl.events import StepProgress, discard
from deployctl.hosts.secrets import Secrets
from deployctl.provision.deploy import ModelFiles, provision
from deployctl.provision.playbook import run_playbook
from deployctl.provision.settings import Settings, Source
from deployctl.resources import Project, shipped_root

pytestmark = [pytest.mark.lab, pytest.mark.timeout(600)]

PASSWORD = "planted sudo password"
MODEL = ModelFiles("tiny:1b")
DROP_IN = "/etc/systemd/system/ollama.service.d"


class Host:
    """A booted lab host and how it is provisioned."""

    def __init__(self, lab, folder, archive):
        self.lab, self.folder, self.archive = lab, folder, archive
        self.target = lab.target(folder / "known_hosts")
        self.log = folder / "log"

    def provision(self, *, password=PASSWORD, dry_run=False, slots=3, model=MODEL, emit=discard):
        return provision(
            replace(self.target, secrets=Secrets(sudo=password)),
            Settings(slots=slots, context=1024, threads=2),
            Source("ollama", "0.99.0", self.archive),
            model,
            project=Project(shipped_root()),
            log=self.log,
            emit=emit,
            dry_run=dry_run,
        )

    def environment(self):
        command = "tr '\\0' '\\n' </proc/$(systemctl show -P MainPID ollama)/environ"
        return dict(line.split("=", 1) for line in self.lab.run(command).stdout.splitlines() if "=" in line)

    def files(self):
        listed = self.lab.run("find /etc /usr /home /root -xdev -newer /etc/machine-id -type f").stdout
        return {line for line in listed.splitlines() if not re.search(r"/\.ansible/|__pycache__|/etc/resolv", line)}


@pytest.fixture(scope="module")
def host(lab_base, lab_key, tmp_path_factory, standin_archive):
    folder = tmp_path_factory.mktemp("systemd")
    with running_host("sudoer", lab_key, sudo="password", password=PASSWORD) as lab:
        yield Host(lab, folder, standin_archive)


def changed(play):
    return [task.name for task in play.tasks if task.changed]


def test_without_the_sudo_password_it_says_so_before_anything_is_done(host):
    with pytest.raises(ProvisionError, match=r"sudo on .* asks for a password") as caught:
        host.provision(password=None)
    assert "NOPASSWD" in caught.value.hint


def test_a_dry_run_on_a_bare_host_names_every_change_and_makes_none(host):
    before = host.files()
    play = host.provision(dry_run=True)
    assert changed(play) == [
        "Create the folder of the drop-in",
        "Write the confinement as a drop-in",
        "Create the user that runs Ollama",
        "Create the models directory",
        "Install the archive",
        "Create the folder of the drop-in",
        "Write the unit",
        "Write the settings as a drop-in",
        "Run Ollama with these settings",
        "Make the model available",
    ]
    unit = next(task for task in play.tasks if task.name == "Write the settings as a drop-in")
    assert '+ Environment="OLLAMA_NUM_PARALLEL=3"' in unit.diff
    assert host.files() == before
    assert host.lab.run("getent passwd ollama", check=False).returncode != 0


def test_with_the_password_it_is_provisioned_and_a_second_run_changes_nothing(host):
    first = host.provision()
    assert len(changed(first)) == 9
    assert host.environment()["OLLAMA_NUM_PARALLEL"] == "3"
    assert host.lab.run("systemctl is-enabled ollama").stdout.strip() == "enabled"
    assert changed(host.provision()) == []
    assert changed(host.provision(dry_run=True)) == []


def test_a_plan_with_a_gpu_costs_a_host_without_one_no_task(host):
    """The roles for GPU drivers are told to look; they find no card in what `bootstrap` has seen."""

    def tasks(threads):
        settings = Settings(slots=3, context=1024, threads=threads)
        target = replace(host.target, secrets=Secrets(sudo=PASSWORD))
        source = Source("ollama", "0.99.0", host.archive)
        project = Project(shipped_root())
        return provision(
            target, settings, source, MODEL, project=project, log=host.log, emit=discard, dry_run=True
        ).tasks

    assert [task.name for task in tasks(threads=None)] == [task.name for task in tasks(threads=2)]


def test_the_password_is_in_no_log_here_and_in_no_file_there(host):
    assert PASSWORD not in host.log.read_text()
    found = host.lab.run(f"grep -rlF '{PASSWORD}' /home /root /etc /var/log /tmp 2>/dev/null", check=False).stdout
    assert found == ""
    assert PASSWORD not in host.lab.run("journalctl --no-pager").stdout


def test_a_changed_setting_touches_the_drop_in_alone_and_restarts(host):
    play = host.provision(slots=4)
    assert changed(play) == ["Write the settings as a drop-in", "Run Ollama with these settings"]
    assert host.environment()["OLLAMA_NUM_PARALLEL"] == "4"


def test_settings_edited_by_hand_are_put_right_again_even_when_the_server_runs_with_them(host):
    host.lab.run(f"sed -i s/PARALLEL=4/PARALLEL=1/ {DROP_IN}/override.conf; systemctl daemon-reload")
    host.lab.run("systemctl restart ollama")
    play = host.provision(slots=4)
    assert changed(play) == ["Write the settings as a drop-in", "Run Ollama with these settings"]
    assert host.environment()["OLLAMA_NUM_PARALLEL"] == "4"


def test_a_restart_that_an_earlier_run_did_not_get_to_is_made_up_for(host):
    # The files are right, the running server is not: what a run leaves that was killed between the two.
    host.lab.run(f"cp {DROP_IN}/override.conf /var/tmp/right; sed -i s/PARALLEL=4/PARALLEL=1/ {DROP_IN}/override.conf")
    host.lab.run("systemctl daemon-reload; systemctl restart ollama")
    host.lab.run(f"cat /var/tmp/right > {DROP_IN}/override.conf; rm /var/tmp/right")
    assert changed(host.provision(slots=4)) == ["Run Ollama with these settings"]
    assert host.environment()["OLLAMA_NUM_PARALLEL"] == "4"


def test_a_stopped_and_disabled_server_is_started_and_enabled(host):
    host.lab.run("systemctl disable --now ollama")
    assert changed(host.provision(slots=4)) == ["Run Ollama with these settings"]
    assert host.lab.run("systemctl is-enabled ollama").stdout.strip() == "enabled"


def test_another_drop_in_that_overrides_a_setting_is_named(host):
    host.lab.run(f"printf '[Service]\\nEnvironment=OLLAMA_NUM_PARALLEL=1\\n' >{DROP_IN}/zz-local.conf")
    try:
        with pytest.raises(ProvisionError, match=r"OLLAMA_NUM_PARALLEL=1, wanted was 5.*zz-local.conf"):
            host.provision(slots=5)
    finally:
        host.lab.run(f"rm {DROP_IN}/zz-local.conf")


def test_an_installation_by_the_official_script_is_adopted(host):
    """The script's unit has no settings and starts the server as it is: ours comes in its place, the models stay."""
    official = (
        "[Unit]\\nDescription=Ollama Service\\n[Service]\\nExecStart=/usr/local/bin/ollama serve\\nUser=ollama\\n"
        "Group=ollama\\nRestart=always\\nEnvironment=OLLAMA_HOST=127.0.0.1:11434 "
        "OLLAMA_MODELS=/usr/share/ollama/.ollama/models\\n[Install]\\nWantedBy=default.target\\n"
    )
    host.lab.run(f"rm -r {DROP_IN} /usr/local/lib/ollama/.deployctl.json")
    host.lab.run(f"printf '{official}' >/etc/systemd/system/ollama.service; systemctl daemon-reload")
    host.lab.run("systemctl restart ollama; sleep 1; systemctl is-active ollama")
    play = host.provision(slots=2)
    assert "Make the model available" not in changed(play)
    assert host.environment()["OLLAMA_NUM_PARALLEL"] == "2"
    assert "Written by deployctl" in host.lab.run("cat /etc/systemd/system/ollama.service").stdout


def test_a_pull_ends_on_the_host_when_ssh_is_cut_although_sudo_stands_in_between(host, wait_for):
    def cut(event):
        if isinstance(event, StepProgress) and event.unit == "bytes":
            host.lab.stop_sshd()

    try:
        with pytest.raises(HostUnreachable):
            host.provision(slots=2, model=ModelFiles("slow:1b"), emit=cut)
        wait_for(lambda: "the client has gone" in host.lab.run("journalctl --unit ollama --output cat").stdout)
    finally:
        host.lab.start_sshd()


def test_a_program_that_lost_its_mode_is_installed_again(host):
    host.lab.run("chmod 000 /usr/local/bin/ollama; systemctl stop ollama")
    assert changed(host.provision(slots=2))[0] == "Install the archive"


def test_a_server_that_cannot_start_is_quoted_from_its_journal(host):
    listen = "import socket, time; s = socket.create_server(('127.0.0.1', 11434)); time.sleep(600)"
    host.lab.run(f'systemctl stop ollama; systemd-run --unit squatter python3 -c "{listen}"; sleep 1')
    try:
        with pytest.raises(ProvisionError, match=r"ended right after its start: .*Address already in use"):
            host.provision(slots=2)
    finally:
        host.lab.run("systemctl stop squatter")
    host.provision(slots=2)


@pytest.fixture
def close_ports(host, tmp_path):
    """Run the firewall of the role hardening alone; ``rules`` replaces its template."""

    def run(rules="", **variables):
        playbooks = tmp_path / "project" / "playbooks"
        templates = playbooks / "roles" / "hardening" / "templates"
        templates.mkdir(parents=True, exist_ok=True)
        if rules:
            (templates / "firewall.nft.j2").write_text(rules)
        (playbooks / "own.yml").write_text(
            "- hosts: all\n  gather_facts: false\n  roles:\n    - role: hardening\n"
            "      vars: {hardening_unit: false, hardening_firewall: true}\n"
        )
        return run_playbook(
            "own.yml",
            replace(host.target, secrets=Secrets(sudo=PASSWORD)),
            variables,
            project=Project(tmp_path / "project"),
            log=host.log,
            emit=discard,
            step="x",
        )

    yield run
    host.lab.run("systemctl disable --now deployctl-firewall; rm -rf /etc/deployctl", check=False)


def opens(host, port):
    try:
        socket.create_connection((host.lab.address, port), timeout=2).close()
    except OSError:
        return False
    return True


def test_a_firewall_closes_what_nobody_asked_for_and_leaves_ssh_open_after_a_restart_of_it_too(host, close_ports):
    for port in (8098, 8099):
        host.lab.run(f"systemd-run --unit listen-{port} python3 -m http.server {port}")
    host.lab.run("sleep 1")
    assert opens(host, 8099)
    first = close_ports(hardening_open_ports=[8098])
    assert first.changed > 0
    assert (opens(host, 22), opens(host, 8098), opens(host, 8099)) == (True, True, False)
    assert close_ports(hardening_open_ports=[8098]).changed == 0
    host.lab.run("systemctl restart deployctl-firewall; systemctl stop listen-8098 listen-8099")
    assert host.lab.ssh("echo in").stdout == "in\n"
    assert host.lab.run("systemctl is-enabled deployctl-firewall").stdout.strip() == "enabled"


def test_rules_that_would_lock_everybody_out_are_taken_back_by_the_host_itself(host, close_ports, wait_for):
    shut = "table inet deployctl {\n chain input {\n type filter hook input priority 10; policy drop;\n }\n}\n"
    with pytest.raises(ProvisionError, match=r"Come back over a new one|Keep the rules"):
        close_ports(rules=shut, hardening_rollback_s=10)
    wait_for(lambda: opens(host, 22))
    assert host.lab.ssh("echo in").stdout == "in\n"
    assert host.lab.run("systemctl is-enabled deployctl-firewall", check=False).stdout.strip() != "enabled"
