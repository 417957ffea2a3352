"""What ssh itself makes of our arguments: ``ssh -G`` prints the configuration that it would use."""

import subprocess

from deployctl.hosts.openssh import ssh_args, ssh_command
from deployctl.hosts.target import Target


def effective(target):
    command = ssh_command(target)
    out = subprocess.run([command[0], "-G", *command[1:]], capture_output=True, text=True, check=True).stdout
    return dict(line.split(" ", 1) for line in out.splitlines() if " " in line)


def test_ssh_uses_our_key_file_our_known_hosts_and_nothing_else(tmp_path):
    known = tmp_path / "a folder" / "known_hosts"
    key = tmp_path / "id"
    key.touch()  # ssh lists no identity that is not there
    target = Target("h", "2001:db8::1", port=2222, user="deploy", known_hosts=known, key_file=key)
    options = effective(target)
    assert options["hostname"] == "2001:db8::1"
    assert options["port"] == "2222"
    assert options["user"] == "deploy"
    assert options["userknownhostsfile"] == f'"{known}"' or options["userknownhostsfile"] == str(known)
    assert options["globalknownhostsfile"] == "/dev/null"
    assert options["stricthostkeychecking"] in ("true", "yes")
    assert options["identitiesonly"] == "yes"
    assert options["identityfile"] == str(key)
    assert options["batchmode"] == "yes"
    assert options["forwardagent"] == "no"
    assert options["updatehostkeys"] in ("false", "no")
    assert int(options["serveraliveinterval"]) * int(options["serveralivecountmax"]) == 15


def test_an_address_cannot_become_an_option():
    command = ssh_command(Target(name="h", address="-oProxyCommand=true"))
    assert command[-2:] == ["--", "-oProxyCommand=true"]


def test_without_a_key_file_ssh_is_left_to_its_default_identities():
    assert "-i" not in ssh_args(Target(name="h", address="192.0.2.1"))


def test_ssh_accepts_a_known_hosts_path_with_spaces(sshd):
    folder = sshd.directory / "a folder"
    folder.mkdir()
    (folder / "known hosts").write_text(sshd.known_hosts_line())
    command = ssh_command(sshd.target(known_hosts=folder / "known hosts"))
    assert subprocess.run([*command, "echo in"], capture_output=True, text=True).stdout == "in\n"
