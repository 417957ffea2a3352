"""The roles' documents say what the roles do."""

import dataclasses
import subprocess
import sys
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from deployctl.catalog.hosts import HostEntry
from deployctl.hosts.target import Target
from deployctl.provision.deploy import ModelFiles, variables
from deployctl.provision.settings import Settings, Source

ROLES = Path(__file__).parents[2] / "playbooks" / "roles"
NAMES = sorted(path.name for path in ROLES.iterdir())


def defaults(role):
    return YAML(typ="safe").load((ROLES / role / "defaults" / "main.yml").read_text())


@pytest.mark.parametrize("role", NAMES)
def test_every_default_is_commented_and_quoted_in_the_roles_readme(role):
    text = (ROLES / role / "defaults" / "main.yml").read_text().removeprefix("---\n")
    assert f"```yaml\n{text}```" in (ROLES / role / "README.md").read_text()
    commented = False
    for line in text.splitlines():
        if line.startswith("#"):
            commented = True
        elif not line.strip():
            commented = False
        else:
            assert commented, f"{role}: {line}"


def test_every_variable_that_we_pass_is_a_default_of_a_role():
    known = {name for role in NAMES for name in defaults(role)}
    passed = variables(Target("h", "192.0.2.1"), Settings(slots=1, context=1), Source("ollama", "1"), ModelFiles("m:1"))
    assert set(passed) <= known


def test_every_field_of_the_settings_reaches_the_server():
    """One field at a time is changed; some variable must change with it."""
    base = Settings(slots=1, context=1)
    other = Settings(
        slots=2,
        context=2,
        threads=3,
        keep_alive="5m",
        flash_attention=False,
        kv_cache_type="q8_0",
        prompt_cache_mib=9,
        max_queue=7,
        load_timeout="1m",
        port=4,
        models_dir="/srv/models",
    )

    def passed(settings):
        return variables(Target("h", "192.0.2.1"), settings, Source("ollama", "1"), ModelFiles("m:1"))

    for field in dataclasses.fields(Settings):
        changed = dataclasses.replace(base, **{field.name: getattr(other, field.name)})
        assert passed(changed) != passed(base), field.name


def test_the_example_of_hosts_is_read_by_the_catalogue(root):
    entries = YAML(typ="safe").load((root / "inventory" / "hosts.example.yml").read_text())
    read = [HostEntry(name=name, **entry) for name, entry in entries.items()]
    known = [("berlin-1", 22), ("bastion", 22), ("bare-minimum", 22), ("loadgen-1", 22)]
    assert [(host.name, host.port) for host in read] == known
    assert [host.name for host in read if host.loadgen] == ["loadgen-1"]


@pytest.fixture
def ansible(tmp_path):
    """Run one of Ansible's programs in a bare environment."""

    def run(program, *arguments, cwd=tmp_path):
        environment = {"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8", "HOME": str(tmp_path), "ANSIBLE_NOCOLOR": "1"}
        command = [Path(sys.executable).parent / program, *arguments]
        return subprocess.run(command, cwd=cwd, capture_output=True, text=True, env=environment)

    return run


@pytest.mark.parametrize("module", ["install", "service", "model"])
def test_ansible_documents_our_modules(ansible, root, module):
    done = ansible("ansible-doc", f"deployctl.ollama.{module}", cwd=root)
    assert f"MODULE deployctl.ollama.{module}" in done.stdout, done.stderr


@pytest.mark.parametrize("playbook", ["provision.yml", "teardown.yml", "loadgen.yml", "gateway.yml", "telemetry.yml"])
def test_the_playbooks_parse_from_any_directory(ansible, root, playbook):
    done = ansible("ansible-playbook", "--syntax-check", "-i", "box,", root / "playbooks" / playbook)
    assert done.returncode == 0, done.stderr


def test_the_example_inventory_for_plain_ansible_parses(ansible, root):
    done = ansible("ansible-inventory", "-i", root / "inventory" / "ansible.example.yml", "--list")
    assert "berlin-1" in done.stdout
    assert "WARNING" not in done.stderr
