"""Secrets come from where the user says, are read once, and answer only ssh's own questions."""

import os
import subprocess
from pathlib import Path

import pytest

from deployctl.errors import UsageError
from deployctl.hosts.askpass import answer_for, answering
from deployctl.hosts.secrets import SecretReader, Secrets
from deployctl.hosts.target import Target


def test_a_secret_is_read_from_a_variable_that_no_child_inherits(monkeypatch):
    monkeypatch.setenv("PLANTED", "from the environment")
    reader = SecretReader(None)
    assert reader.read("env:PLANTED", "Password") == "from the environment"
    assert "PLANTED" not in subprocess.run(["env"], capture_output=True, text=True, check=True).stdout
    assert reader.read("env:PLANTED", "Password") == "from the environment", "for the second host, too"


def test_a_secret_is_read_from_a_descriptor_and_from_a_person_once():
    out, into = os.pipe()
    os.write(into, b"from a pipe\n")
    os.close(into)
    asked = []
    reader = SecretReader(lambda what: asked.append(what) or "from a person")
    assert [reader.read(f"fd:{out}", "Password") for _ in "ab"] == ["from a pipe"] * 2
    os.close(out)
    assert [reader.read("ask", "Password of h") for _ in "ab"] == ["from a person"] * 2
    assert asked == ["Password of h"]
    assert reader.read(None, "Password") is None


@pytest.mark.parametrize("source", ["hunter2", "env:", "env:A B", "fd:x", "fd:987", "env:NOT_SET_ANYWHERE", "ask"])
def test_what_is_no_source_is_refused_without_repeating_it(source):
    with pytest.raises(UsageError) as caught:
        SecretReader(None).read(source, "Password")
    assert "hunter2" not in f"{caught.value.message} {caught.value.hint}"


def test_a_target_never_prints_its_secrets():
    target = Target("h", "192.0.2.1", secrets=Secrets(passphrase="planted-a", password="planted-b", sudo="planted-c"))
    assert "planted" not in f"{target!r} {target} {target.secrets!r}"


QUESTIONS = [  # as OpenSSH 9.2 words them (sshconnect2.c)
    ("deploy@192.0.2.7's password: ", "word-far"),
    ("(deploy@192.0.2.7) Password: ", "word-far"),
    ("root@gw's password: ", None),
    ("Enter passphrase for key '/keys/far': ", "phrase-far"),
    ("Enter passphrase for key '/keys/gw': ", "phrase-gw"),
    ("Enter passphrase for key '/keys/other': ", None),
    ("The authenticity of host 'h' can't be established. Continue (yes/no)? ", None),
]


@pytest.mark.parametrize(("question", "answer"), QUESTIONS)
def test_each_of_sshs_questions_gets_the_secret_of_the_host_that_it_names(tmp_path, question, answer):
    target = Target(
        "far", "192.0.2.7", user="deploy", key_file=tmp_path / "far", secrets=Secrets("phrase-far", "word-far")
    )
    hop = Target("gw", "gw", key_file=tmp_path / "gw", secrets=Secrets("phrase-gw"))
    question = question.replace("/keys", str(tmp_path))
    assert answer_for(target, question) == (None if answer == "phrase-gw" else answer)
    behind = Target("far", "192.0.2.7", user="deploy", via=hop, secrets=Secrets(None, "word-far"))
    assert answer_for(behind, "deploy@gw/192.0.2.7's password: ") == "word-far"
    assert answer_for(behind, f"Enter passphrase for key '{tmp_path / 'gw'}': ") == "phrase-gw"


def test_the_program_that_ssh_runs_hands_over_the_answer_and_nothing_stays():
    target = Target("h", "192.0.2.7", secrets=Secrets(password="planted secret"))
    with answering(target) as environment:
        program = environment["SSH_ASKPASS"]
        folder = Path(program).parent
        assert folder.stat().st_mode & 0o077 == 0
        assert not any("planted" in (folder / name).read_text() for name in ("ask", "client.py"))
        assert "planted" not in str(environment)
        asked = [program, "root@192.0.2.7's password: "]
        assert subprocess.run(asked, capture_output=True, text=True).stdout == "planted secret\n"
        assert subprocess.run([program, "anything else? "], capture_output=True).returncode == 1
    assert not folder.exists()
    with answering(Target("h", "192.0.2.7")) as environment:
        assert environment == {}, "without secrets nobody is asked"
