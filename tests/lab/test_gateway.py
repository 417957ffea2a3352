"""The gateway on a real host: Caddy in front of a server on the loopback, seen from outside."""

from __future__ import annotations

import json
import ssl
import urllib.error
import urllib.request

import pytest
from nspawn.fixtures import HostFactory
from nspawn.host import LabHost

from deployctl.events import discard
from deployctl.provision.playbook import Play, run_playbook
from deployctl.resources import Project, shipped_root

pytestmark = pytest.mark.timeout(600)

KEY = "a-key-of-32-letters-and-a-few-mo"
# Answers with the request's path and the headers that reached it, a word at a time.
UPSTREAM = r"""
import http.server, json, time
class Server(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        self.send_response(200)
        self.send_header("Content-Type", "application/x-ndjson")
        self.end_headers()
        for part in (self.path, self.headers.get("Host"), str(self.headers.get("Authorization"))):
            self.wfile.write(json.dumps(part).encode() + b"\n"); self.wfile.flush(); time.sleep(0.5)
http.server.ThreadingHTTPServer(("127.0.0.1", 11434), Server).serve_forever()
"""


@pytest.fixture(scope="module")
def gateway(lab_host: HostFactory, tmp_path_factory: pytest.TempPathFactory) -> tuple[LabHost, list[Play], str]:
    host = lab_host("gateway", suite="trixie")
    folder = tmp_path_factory.mktemp("gateway")
    host.root_dir.joinpath("var/tmp/upstream.py").write_text(UPSTREAM)
    host.run("systemd-run --unit upstream python3 /var/tmp/upstream.py")
    (folder / "keys").write_text(f"# one of ours\n{KEY}\n\n")
    told = {"gateway_site": ":8443", "gateway_tls": "internal", "gateway_keys_file": str(folder / "keys")}
    target, log = host.target(folder / "known_hosts"), folder / "log"
    project = Project(shipped_root())
    plays = [
        run_playbook("gateway.yml", target, told, project=project, log=log, emit=discard, step="gateway") for _ in "ab"
    ]
    return host, plays, log.read_text()


def ask(host: LabHost, path: str, key: str | None = KEY) -> tuple[int, bytes]:
    """POST over TLS; the certificate is of Caddy's own authority, which nobody here knows."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    request = urllib.request.Request(f"https://{host.address}:8443{path}", b"{}", headers)
    try:
        with urllib.request.urlopen(request, timeout=30, context=context) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code, refused.read()


def test_a_second_run_changes_nothing_and_no_key_is_in_the_log(gateway: tuple[LabHost, list[Play], str]) -> None:
    host, plays, log = gateway
    assert plays[0].changed > 0
    assert plays[1].changed == 0
    assert KEY not in log
    assert host.run("stat -c '%a %G' /etc/caddy/Caddyfile").stdout.split() == ["640", "caddy"]


def test_only_a_key_opens_only_the_inference_paths(gateway: tuple[LabHost, list[Play], str]) -> None:
    host, _, _ = gateway
    assert ask(host, "/api/chat")[0] == 200
    assert ask(host, "/v1/chat/completions")[0] == 200
    assert ask(host, "/api/chat", key=None)[0] == 401
    assert ask(host, "/api/chat", key=KEY + "x")[0] == 401
    for path in ("/api/pull", "/api/delete", "/api/create", "/api/tags", "/"):
        assert ask(host, path)[0] == 404, path


def test_the_key_stays_at_the_gateway_and_the_server_is_asked_as_on_the_loopback(
    gateway: tuple[LabHost, list[Play], str],
) -> None:
    host, _, _ = gateway
    said = [json.loads(line) for line in ask(host, "/api/generate")[1].splitlines()]
    assert said == ["/api/generate", "127.0.0.1:11434", "None"]


def test_metrics_are_on_the_hosts_loopback_alone(gateway: tuple[LabHost, list[Play], str]) -> None:
    host, _, _ = gateway
    script = "import urllib.request as u; print(u.urlopen('http://127.0.0.1:9180/metrics').read().decode())"
    assert "caddy_http_requests_in_flight" in host.run(f'python3 -c "{script}"').stdout
    listening = host.run("ss -Hltn").stdout
    assert [line.split()[3] for line in listening.splitlines() if ":9180" in line] == ["127.0.0.1:9180"]
