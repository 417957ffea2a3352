"""The roles on a rootless host over real SSH and real Ansible, with a stand-in for the engine."""

import hashlib
import http.server
import json
import threading
import urllib.request
from pathlib import Path

import pytest

from deployctl.errors import HostUnreachable, ModelUnavailable, ProvisionError
from deployctl.events import StepProgress
from deployctl.provision.deploy import ModelFiles, provision

MODEL = ModelFiles("tiny:1b")


def served(host):
    with urllib.request.urlopen(f"http://127.0.0.1:{host.port}/api/tags", timeout=5) as answer:
        return [model["name"] for model in json.load(answer)["models"]]


def environment(host):
    pairs = Path(f"/proc/{host.pid}/environ").read_text().split("\0")
    return dict(pair.split("=", 1) for pair in pairs if "=" in pair)


def test_a_bare_host_serves_the_model_a_second_run_changes_nothing_and_down_leaves_nothing(host):
    source = host.source(host.archive())
    dry = host.provision(source, MODEL, dry_run=True)
    assert [task.name for task in dry.tasks if task.changed] == [
        "Install the archive",
        "Run Ollama with these settings",
        "Make the model available",
    ]
    assert "+ version: 0.99.0" in dry.tasks[0].diff
    assert host.files() == set(), "a dry run leaves nothing"

    first = host.provision(source, MODEL)
    assert (first.changed, first.failed) == (3, 0)
    assert first.facts["version"] == "0.99.0"
    assert first.facts["model"]["name"] == "tiny:1b"
    assert served(host) == ["tiny:1b"]
    found = environment(host)
    assert found["OLLAMA_HOST"] == f"127.0.0.1:{host.port}"
    assert found["OLLAMA_NUM_PARALLEL"] == "2"
    assert found["OLLAMA_CONTEXT_LENGTH"] == "512"
    assert found["OLLAMA_KEEP_ALIVE"] == "-1"
    assert found["OLLAMA_FLASH_ATTENTION"] == "1"
    assert found["OLLAMA_KV_CACHE_TYPE"] == "f16"
    assert found["OLLAMA_MAX_QUEUE"] == "512"
    assert found["OLLAMA_LOAD_TIMEOUT"] == "10m"
    assert found["LLAMA_ARG_CACHE_RAM"] == "0"
    assert found["LLAMA_ARG_THREADS"] == "2"
    assert found["OLLAMA_MODELS"] == str(host.home / ".ollama/models")
    pid = host.pid

    second = host.provision(source, MODEL)
    assert (second.changed, second.ok) == (0, first.ok)
    assert host.pid == pid, "nothing was restarted"

    changed = host.provision(source, MODEL, slots=3)
    assert [task.name for task in changed.tasks if task.changed] == ["Run Ollama with these settings"]
    assert environment(host)["OLLAMA_NUM_PARALLEL"] == "3"
    assert host.pid != pid
    assert host.log.stat().st_mode & 0o777 == 0o600
    assert "TASK [ollama : Install the archive]" in host.log.read_text()

    kept = host.teardown(purge=False)
    assert kept.changed == 2
    assert all(name.startswith(".ollama/models/") for name in host.files())
    host.teardown(purge=True)
    assert host.files() == set()
    assert host.teardown(purge=True).changed == 0
    with pytest.raises(OSError, match="refused"):
        served(host)


def test_a_new_archive_is_installed_and_the_server_restarted_with_it(installed):
    host = installed
    pid = host.pid
    host.served = host.source(host.archive(name="newer.tgz", extra=b"newer"), version="0.99.1")
    play = host.provision(host.served, MODEL)
    assert [task.name for task in play.tasks if task.changed] == [
        "Install the archive",
        "Run Ollama with these settings",
    ]
    assert host.pid != pid
    assert (host.home / ".local/lib/ollama/libx.so").read_bytes() == b"newer"
    assert not list((host.home / ".local/lib").glob(".ollama*")), "no staging folder is left"


def test_an_upgrade_that_does_not_come_up_is_undone_and_one_that_does_can_be_rolled_back(installed):
    host, old = installed, installed.served
    before = (host.home / ".local/lib/ollama/libx.so").read_bytes()
    bad = b"#!/bin/sh\n[ \"$1\" = --version ] && exit 0\necho 'no usable CPU found' >&2; exit 3\n"
    with pytest.raises(
        ProvisionError, match=rf"no usable CPU found; Ollama {old.version} .* put back and serves again"
    ):
        host.provision(host.source(host.archive(name="bad.tar.zst", program=bad), "0.99.5"), MODEL, slots=5)
    assert "tiny:1b" in served(host)
    assert environment(host)["OLLAMA_NUM_PARALLEL"] == "2"
    assert (host.home / ".local/lib/ollama/libx.so").read_bytes() == before

    new = host.source(host.archive(name="better.tar.zst", extra=b"better"), "0.99.6")
    host.provision(new, MODEL, slots=4)
    dry = host.rollback(dry_run=True)
    assert (dry.changed, environment(host)["OLLAMA_NUM_PARALLEL"]) == (1, "4")
    assert host.rollback().facts["restored"] == old.version
    assert environment(host)["OLLAMA_NUM_PARALLEL"] == "2"
    assert (host.home / ".local/lib/ollama/libx.so").read_bytes() == before
    assert "tiny:1b" in served(host)
    assert host.provision(old, MODEL).changed == 0


def test_there_is_nothing_to_go_back_to_on_a_host_that_was_set_up_once(host):
    host.provision(host.source(host.archive()), MODEL)
    with pytest.raises(ProvisionError, match="no previous installation"):
        host.rollback()
    assert served(host) == ["tiny:1b"]


def test_a_broken_archive_of_any_kind_leaves_the_old_installation_serving(installed, web):
    host = installed
    before = {name: (host.home / name).read_bytes() for name in host.files() if name.startswith(".local/lib")}
    archive = host.archive(name="other.tar.zst", extra=b"other")
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    truncated = host.folder / "truncated.tar.zst"
    truncated.write_bytes(archive.read_bytes()[:-40])
    alien = host.archive(name="alien.tgz", program=b"\x7fELF not for this machine")
    text = host.folder / "page.tar.zst"
    text.write_text("<html>not found</html>")
    web.files = {"/other.tar.zst": archive.read_bytes(), "/cut": archive.read_bytes()[:-40]}
    cases = [
        (host.source(archive, "2", sha256="0" * 64), "checksum of .*other.tar.zst is wrong"),
        (
            host.source(None, "2", url=f"{web.url}/other.tar.zst", sha256="0" * 64),
            "checksum of .*other.tar.zst is wrong",
        ),
        (host.source(None, "2", url=f"{web.url}/cut", sha256=digest), "checksum of .*cut is wrong"),
        (host.source(None, "2", url=f"{web.url}/absent", sha256=digest), "cannot fetch .*HTTP 404"),
        (host.source(truncated, "2"), "cannot unpack"),
        (host.source(alien, "2"), "does not run on this host"),
        (host.source(text, "2"), "neither zstd nor gzip"),
    ]
    pid = host.pid
    for source, words in cases:
        with pytest.raises(ProvisionError, match=words) as caught:
            host.provision(source, MODEL)
        assert caught.value.exit_code == 4
        assert str(host.log) in caught.value.hint
    assert host.pid == pid
    assert "tiny:1b" in served(host)
    assert {name: (host.home / name).read_bytes() for name in before} == before
    assert not list((host.home / ".local/lib").glob(".ollama*"))
    assert not list((host.home / ".cache/deployctl/uploads").iterdir()), "no broken archive is kept"


def test_the_host_fetches_an_archive_by_url_and_verifies_it(host, web):
    archive = host.archive()
    web.files = {"/engine.tar.zst": archive.read_bytes()}
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    play = host.provision(host.source(None, url=f"{web.url}/engine.tar.zst", sha256=digest), MODEL)
    assert play.facts["installed"] == {"version": "0.99.0", "sha256": digest}
    assert served(host) == ["tiny:1b"]


def test_a_url_without_a_checksum_is_refused_before_anything_is_sent(host):
    with pytest.raises(ProvisionError, match="no checksum"):
        host.provision(host.source(None, url="http://127.0.0.1:9/x.tgz"), MODEL)
    assert "Accepted" not in host.server.log


def test_a_model_that_does_not_exist_is_unavailable_by_name(installed):
    host, source = installed, installed.served
    with pytest.raises(ModelUnavailable, match=r"nope:1b.*file does not exist") as caught:
        host.provision(source, ModelFiles("nope:1b"))
    assert caught.value.exit_code == 5


def test_a_model_larger_than_the_disk_is_refused_before_it_fills(installed):
    host, source = installed, installed.served
    with pytest.raises(ModelUnavailable, match=r"big:1b does not fit on the disk: 1099511627776 MiB are needed"):
        host.provision(source, ModelFiles("big:1b"))
    assert "big:1b" not in served(host)


def test_weights_are_uploaded_once_and_a_cut_upload_goes_on_where_it_stopped(installed, weights):
    host, source = installed, installed.served
    digest = hashlib.sha256(weights.read_bytes()).hexdigest()
    uploads = host.home / ".cache/deployctl/uploads"
    uploads.mkdir(parents=True, exist_ok=True)
    sent = 20 * 1024 * 1024
    # What an interrupted upload leaves. Other bytes of the same length would break the digest: see the next test.
    (uploads / digest).write_bytes(weights.read_bytes()[:sent])
    play = host.provision(source, ModelFiles("mine:1b", weights))
    assert play.facts["model"]["digest"] == digest
    assert "mine:1b" in served(host)
    assert list(uploads.iterdir()) == []
    host.events.clear()
    again = host.provision(source, ModelFiles("mine:1b", weights, digest))
    assert again.changed == 0
    assert not [event for event in host.events if isinstance(event, StepProgress) and "upload" in event.message]


def test_an_upload_that_arrived_broken_is_thrown_away_and_the_next_run_repairs_it(installed, weights):
    host, source = installed, installed.served
    digest = hashlib.sha256(weights.read_bytes()).hexdigest()
    uploads = host.home / ".cache/deployctl/uploads"
    uploads.mkdir(parents=True, exist_ok=True)
    (uploads / digest).write_bytes(b"\0" * (20 * 1024 * 1024))
    with pytest.raises(ModelUnavailable, match="digest mismatch"):
        host.provision(source, ModelFiles("broken:1b", weights))
    host.provision(source, ModelFiles("broken:1b", weights))
    assert "broken:1b" in served(host)


def test_other_weights_under_a_served_name_replace_it(installed, weights):
    host, source = installed, installed.served
    host.provision(source, ModelFiles("other:1b", weights))
    other = host.folder / "other.gguf"
    other.write_bytes(b"other weights")
    play = host.provision(source, ModelFiles("other:1b", other))
    assert play.facts["model"]["digest"] == hashlib.sha256(b"other weights").hexdigest()


def test_a_server_that_is_not_ours_on_the_port_is_not_taken_for_ours(host):
    class Other(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            body = b'{"version": "0.5.0"}'
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *words):
            pass

    other = http.server.ThreadingHTTPServer(("127.0.0.1", host.port), Other)
    thread = threading.Thread(target=other.serve_forever)
    thread.start()
    try:
        with pytest.raises(ProvisionError, match=r"another Ollama \(0.5.0\) answers"):
            host.provision(host.source(host.archive()), MODEL)
    finally:
        other.shutdown()
        other.server_close()
        thread.join()


def test_a_server_that_ends_at_once_fails_with_its_own_last_words(host):
    program = b"#!/bin/sh\n[ \"$1\" = --version ] && exit 0\necho 'no usable CPU found' >&2; exit 3\n"
    with pytest.raises(ProvisionError, match="ended right after its start: no usable CPU found"):
        host.provision(host.source(host.archive(program=program)), MODEL)


def test_a_host_whose_ssh_dies_in_mid_playbook_is_unreachable_with_a_clear_line(installed):
    host, source = installed, installed.served

    def cut(event):
        if isinstance(event, StepProgress) and "pulling slow:1b" in event.message:
            host.server.stop()

    with pytest.raises(HostUnreachable, match=r"failed in `Make the model available`") as caught:
        provision(
            host.target,
            host.settings(),
            source,
            ModelFiles("slow:1b"),
            project=host.project,
            log=host.log,
            emit=cut,
        )
    assert "\n" not in caught.value.message
    assert "run the same command again" in caught.value.hint


def test_progress_of_a_pull_arrives_in_bytes_while_it_runs_and_ends_with_the_connection(installed, wait_for):
    host, source = installed, installed.served
    seen = []

    def cut(event):
        if isinstance(event, StepProgress) and event.unit == "bytes":
            seen.append(event)
            if len(seen) == 2:
                host.server.stop()

    with pytest.raises(HostUnreachable):
        provision(
            host.target, host.settings(), source, ModelFiles("slow:1b"), project=host.project, log=host.log, emit=cut
        )
    assert seen[1].current > seen[0].current
    assert seen[0].total == 1 << 20
    wait_for(lambda: "the client has gone" in host.server_log)


@pytest.fixture
def web():
    class Files(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            body = self.server.files.get(self.path)
            self.send_response(404 if body is None else 200)
            self.send_header("Content-Length", str(len(body or b"")))
            self.end_headers()
            self.wfile.write(body or b"")

        def log_message(self, *words):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Files)
    server.files = {}
    server.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()
