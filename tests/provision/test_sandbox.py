"""The roles on the sandbox host: another SSH server (asyncssh), which outlives the connections that it serves."""

from __future__ import annotations

import socket

import pytest

from deployctl.events import StepProgress, discard
from deployctl.provision.deploy import ModelFiles, provision
from deployctl.provision.settings import Settings, Source
from deployctl.resources import Project, shipped_root

pytest.importorskip("asyncssh")


@pytest.fixture
def up(tmp_path, standin_archive):
    from deployctl.sandbox.host import SandboxHost

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with SandboxHost(tmp_path / "sandbox") as box:

        def run(model, emit=discard):
            return provision(
                box.target,
                Settings(slots=1, context=512, port=port),
                Source("ollama", "0.99.0", standin_archive),
                ModelFiles(model),
                project=Project(shipped_root()),
                log=tmp_path / "log",
                emit=emit,
            )

        run.log = box.home / ".local/state/deployctl/ollama.log"
        yield run


def test_the_server_outlives_the_connection_and_a_second_run_changes_nothing(up):
    assert up("tiny:1b").changed == 3
    assert up("tiny:1b").changed == 0


def test_interrupting_a_pull_ends_it_on_the_host_too(up, wait_for):
    def interrupt(event):
        if isinstance(event, StepProgress) and event.unit == "bytes":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        up("slow:1b", interrupt)
    wait_for(lambda: "the client has gone" in up.log.read_text())
    assert up("tiny:1b").facts["model"]["name"] == "tiny:1b"
