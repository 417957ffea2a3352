"""Running playbooks for real: words, errors, secrets, interruptions, and what is left behind."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from deployctl.errors import AuthenticationFailed, HostKeyChanged, HostUnreachable, ProvisionError
from deployctl.events import StepProgress, discard
from deployctl.hosts.secrets import Secrets
from deployctl.provision import inputs
from deployctl.provision.playbook import HEARTBEAT_S, run_playbook
from deployctl.resources import Project


@pytest.fixture
def play(sshd, tmp_path):
    """Run a playbook of the test's own, which overrides nothing and stands beside the shipped ones."""

    def run(tasks, *, target=None, variables=None, emit=discard, check=False):
        folder = tmp_path / "project" / "playbooks"
        folder.mkdir(parents=True, exist_ok=True)
        text = f"- hosts: all\n  gather_facts: false\n  tasks:\n{textwrap.indent(textwrap.dedent(tasks), '    ')}"
        (folder / "own.yml").write_text(text)
        return run_playbook(
            "own.yml",
            target or sshd.target(python=sys.executable),
            variables or {},
            project=Project(tmp_path / "project"),
            log=tmp_path / "log",
            emit=emit,
            step="provision",
            check=check,
        )

    return run


def test_tasks_are_counted_timed_and_reported_as_they_start(play):
    events = []
    found = play(
        """\
        - name: Say something
          ansible.builtin.command: echo hello
        - name: Say nothing
          ansible.builtin.command: "true"
          changed_when: false
        - name: Never
          ansible.builtin.command: "true"
          when: false
        """,
        emit=events.append,
    )
    assert (found.ok, found.changed, found.failed, found.skipped) == (2, 1, 0, 1)
    assert [(task.name, task.changed) for task in found.tasks] == [("Say something", True), ("Say nothing", False)]
    assert all(task.seconds > 0 for task in found.tasks)
    assert [event.message for event in events if event.current] == ["Say something", "Say nothing", "Never"]


def test_a_failed_task_speaks_with_its_modules_words_and_names_the_log(play, tmp_path):
    with pytest.raises(ProvisionError) as caught:
        play(
            """\
            - name: Look for a file
              ansible.builtin.command: ls /no/such/file
            """
        )
    assert caught.value.message.startswith("Look for a file: non-zero return code: ")
    assert "'/no/such/file': No such file or directory" in caught.value.message
    assert "{" not in caught.value.message
    assert str(tmp_path / "log") in caught.value.hint
    assert "TASK [Look for a file]" in (tmp_path / "log").read_text()
    assert (tmp_path / "log").stat().st_mode & 0o777 == 0o600


def test_a_failure_that_the_playbook_ignores_is_no_failure(play):
    found = play(
        """\
        - name: Try
          ansible.builtin.command: "false"
          ignore_errors: true
        - name: Go on
          ansible.builtin.command: "true"
        """
    )
    assert [task.name for task in found.tasks] == ["Go on"]


def test_a_playbook_that_is_broken_or_absent_says_so(play, sshd, tmp_path):
    with pytest.raises(ProvisionError, match=r"Ansible did not run: .*no_such_module"):
        play("- no_such_module: x\n")
    with pytest.raises(ProvisionError, match=r"there is no playbooks/absent.yml"):
        run_playbook(
            "absent.yml",
            sshd.target(),
            {},
            project=Project(tmp_path),
            log=tmp_path / "log",
            emit=discard,
            step="x",
        )


def test_a_closed_port_a_wrong_key_and_a_changed_host_key_are_told_apart_and_nothing_runs(play, sshd):
    tasks = "- ansible.builtin.command: touch {{ mark }}\n"
    mark = sshd.directory / "mark"
    wrong = sshd.target(key_file=sshd.new_key("other"), python=sys.executable)
    with pytest.raises(AuthenticationFailed, match="Permission denied"):
        play(tasks, target=wrong, variables={"mark": str(mark)})
    sshd.stop()
    with pytest.raises(HostUnreachable, match="refused"):
        play(tasks, variables={"mark": str(mark)})
    sshd.new_key("host_key")
    sshd.start()
    accepted = sshd.log.count("Accepted")
    with pytest.raises(HostKeyChanged) as caught:
        play(tasks, variables={"mark": str(mark)})
    assert sshd.fingerprint() in caught.value.message
    assert "@@" not in caught.value.message
    assert sshd.log.count("Accepted") == accepted
    assert not mark.exists()


def test_a_long_silent_task_is_shown_to_be_running(play):
    events = []
    moments = []

    def emit(event):
        events.append(event)
        moments.append(time.monotonic())

    play("- name: Take long\n  ansible.builtin.command: sleep 6\n", emit=emit)
    assert any(event.message.startswith("Take long (") for event in events)
    assert HEARTBEAT_S <= 5


def test_check_mode_changes_nothing_and_says_what_would_change(play, tmp_path):
    path = tmp_path / "file"
    path.write_text("a=1\n")
    found = play(
        f"""\
        - name: Write it
          ansible.builtin.copy:
            dest: {path}
            content: "a=2\\n"
            mode: "0600"
        """,
        check=True,
    )
    assert found.changed == 1
    assert "- a=1" in found.tasks[0].diff
    assert "+ a=2" in found.tasks[0].diff
    assert path.read_text() == "a=1\n"


def test_a_project_overrides_a_shipped_file_and_keeps_the_others(sshd, tmp_path):
    (tmp_path / "templates").mkdir()
    (tmp_path / "templates" / "ollama.service.j2").write_text("# mine\n")
    private = inputs.private_dir()
    try:
        job = inputs.prepare("provision.yml", sshd.target(), {}, Project(tmp_path), private, check=False, asking={})
        root = Path(job["playbook"]).parents[1]
        assert (root / "templates" / "ollama.service.j2").read_text() == "# mine\n"
        assert (root / "templates" / "ollama-override.conf.j2").is_file()
        assert (root / "playbooks" / "roles" / "ollama" / "tasks" / "main.yml").is_file()
    finally:
        subprocess.run(["rm", "-rf", private], check=True)


def test_planted_secrets_reach_neither_argv_nor_environment_nor_files_nor_log(play, tmp_path, monkeypatch):
    monkeypatch.setenv("REGISTRY_TOKEN", "planted-in-environment")
    seen = []

    def look(event):
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                for name in ("cmdline", "environ"):
                    try:
                        text = (entry / name).read_bytes()
                    except OSError:
                        continue
                    if b"ansible" in text or b"deployctl.provision.worker" in text:
                        seen.append((int(entry.name), name, text))
        for path in Path("/tmp").glob("dctl-*/**/*"):
            if path.is_file() and not path.is_socket():
                try:
                    seen.append((str(path), path.stat().st_mode & 0o077, path.read_bytes()))
                except OSError:
                    continue

    play("- name: Work\n  ansible.builtin.command: sleep 0.5\n", emit=look)
    ours = {os.getpid(), os.getppid()}
    # The test runner itself carries the planted variable, and whoever started it may.
    assert [entry[:2] for entry in seen if b"planted-in-environment" in entry[2] and entry[0] not in ours] == []
    assert seen
    assert "planted" not in (tmp_path / "log").read_text()


def test_the_become_password_is_typed_to_the_prompt_and_written_nowhere(sshd, tmp_path):
    private = inputs.private_dir()
    try:
        target = sshd.target(become=True, secrets=Secrets(sudo="planted-password"))
        job = inputs.prepare("provision.yml", target, {}, Project(tmp_path), private, check=False, asking={})
        for path in private.rglob("*"):
            if path.is_file():
                assert "planted-password" not in path.read_text()
                assert path.stat().st_mode & 0o077 == 0
        assert private.stat().st_mode & 0o077 == 0
        assert "planted-password" not in json.dumps({**job, "passwords": None})
        assert "--ask-become-pass" in job["cmdline"]
    finally:
        subprocess.run(["rm", "-rf", private], check=True)


def test_no_value_that_we_pass_on_is_read_as_a_template(play):
    """A name with braces in it would otherwise be code that runs on this machine."""
    found = play(
        "- name: Show it\n  ansible.builtin.command: echo {{ given | quote }}\n  register: shown\n"
        "- ansible.builtin.assert: {that: [\"shown.stdout == '{' ~ '{ lookup(\\\"pipe\\\", \\\"id\\\") }' ~ '}'\"]}\n",
        variables={"given": '{{ lookup("pipe", "id") }}'},
    )
    assert found.ok == 2


def test_signal_handlers_are_as_they_were(play):
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    play("- ansible.builtin.command: 'true'\n")
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


OWNER = """
import sys, pathlib
from deployctl.hosts.target import Target
from deployctl.provision.playbook import run_playbook
from deployctl.resources import Project
target = Target(name="h", address="127.0.0.1", port={port}, user={user!r}, known_hosts=pathlib.Path({known!r}),
    key_file=pathlib.Path({key!r}), become=False, python=sys.executable)
try:
    run_playbook("own.yml", target, {{}}, project=Project(pathlib.Path({project!r})), log=pathlib.Path({log!r}),
        emit=lambda event: print(event.message, flush=True), step="x")
except KeyboardInterrupt:
    print("interrupted", flush=True)
    sys.exit(7)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_or_killed_owner_leaves_no_process_and_no_folder(sshd, tmp_path, number, wait_for):
    folder = tmp_path / "project" / "playbooks"
    folder.mkdir(parents=True)
    mark = 3600 + int(number) + sshd.port / 100_000
    (folder / "own.yml").write_text(
        f"- hosts: all\n  gather_facts: false\n  tasks:\n"
        f"    - name: Begin\n      ansible.builtin.command: 'true'\n"
        f"    - name: Hang\n      ansible.builtin.raw: cat\n"
        f"    - name: Never\n      ansible.builtin.command: sleep {mark}\n"
    )
    target = sshd.target()
    program = OWNER.format(
        port=target.port,
        user=target.user,
        known=str(target.known_hosts),
        key=str(target.key_file),
        project=str(tmp_path / "project"),
        log=str(tmp_path / "log"),
    )
    before = set(Path("/tmp").glob("dctl-*"))
    owner = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    for line in owner.stdout:
        if line.startswith("Hang"):
            break
    wait_for(lambda: any("ssh" in name for name in below(owner.pid).values()))
    time.sleep(0.3)
    family = below(owner.pid)
    mine = [path for path in set(Path("/tmp").glob("dctl-*")) - before if owner_of(path, family)]
    owner.send_signal(number)
    rest = owner.stdout.read()
    owner.stdout.close()
    code = owner.wait()
    if number == signal.SIGINT:
        assert (code, rest.splitlines()[-1]) == (7, "interrupted")
    assert len(family) >= 4, "worker, ansible-playbook, its fork and ssh"
    wait_for(lambda: not [pid for pid in family if alive(pid)])
    wait_for(lambda: not [path for path in mine if path.exists()])
    assert mine
    wait_for(lambda: not sshd.connections())


def below(pid):
    children = {}
    names = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                name, _, rest = (entry / "stat").read_text(errors="replace").rpartition(")")
            except OSError:
                continue
            children.setdefault(int(rest.split()[1]), []).append(int(entry.name))
            names[int(entry.name)] = name.partition("(")[2]
    found = {}
    queue = list(children.get(pid, []))
    while queue:
        child = queue.pop()
        found[child] = names[child]
        queue += children.get(child, [])
    return found


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def owner_of(path, family):
    """Whether a process of the family names the folder: other runs on this machine have folders like it."""
    for pid in family:
        try:
            if str(path).encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
                return True
        except OSError:
            continue
    return False


def test_plain_ansible_playbook_provisions_and_tears_down_without_deployctl(host, root, tmp_path):
    archive = host.archive()
    inventory = tmp_path / "hosts.yml"
    args = f"-o UserKnownHostsFile={host.target.known_hosts} -o IdentitiesOnly=yes -F none"
    inventory.write_text(
        json.dumps(
            {
                "all": {
                    "hosts": {
                        "box": {
                            "ansible_host": "127.0.0.1",
                            "ansible_port": host.target.port,
                            "ansible_user": host.target.user,
                            "ansible_ssh_private_key_file": str(host.target.key_file),
                            "ansible_ssh_common_args": args,
                            "ansible_python_interpreter": sys.executable,
                            "ollama_service_manager": "process",
                            "ollama_version": "0.99.0",
                            "ollama_archive": str(archive),
                            "ollama_port": host.port,
                            "model_name": "tiny:1b",
                        }
                    }
                }
            }
        )
    )

    def plain(playbook, *options):
        command = [Path(sys.executable).parent / "ansible-playbook", "-i", inventory, playbook, *options]
        return subprocess.run(
            command, cwd=root, capture_output=True, text=True, env={**os.environ, "LC_ALL": "C.UTF-8"}
        )

    first = plain("playbooks/provision.yml")
    assert first.returncode == 0, first.stdout
    assert "changed=3" in first.stdout
    assert "changed=0" in plain("playbooks/provision.yml").stdout
    assert "failed=0" in plain("playbooks/teardown.yml", "-e", "teardown_purge=true").stdout
    assert host.files() == set()


def test_progress_events_carry_the_step_they_belong_to(play):
    events = []
    play("- name: One\n  ansible.builtin.command: 'true'\n", emit=events.append)
    assert {event.step for event in events if isinstance(event, StepProgress)} == {"provision"}
