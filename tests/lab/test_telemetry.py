"""The role telemetry on a real host: Debian's node_exporter, what it answers and to whom, and the way back."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest
from nspawn.fixtures import HostFactory
from nspawn.host import LabHost

from deployctl.events import discard
from deployctl.nightly import feeds
from deployctl.provision.playbook import Play, run_playbook
from deployctl.resources import Project, shipped_root

pytestmark = pytest.mark.timeout(600)

# An answer in the form of nvidia-smi's CSV; the figures are made up.
SMI = """#!/bin/sh
echo "0, GPU-3c2e2f1e-0000-0000-0000-000000000000, 00000000:01:00.0, NVIDIA L40S, 595.80, 87, 30720, 46068, 61, 301.55"
"""
LOOK = (
    "import urllib.request as u; "
    "print(u.build_opener(u.ProxyHandler({})).open('http://127.0.0.1:9100/metrics', timeout=20).read().decode())"
)


class Watched:
    """A host, and the role run on it."""

    def __init__(self, host: LabHost, folder: Path) -> None:
        self.host, self.folder = host, folder
        self.target = host.target(folder / "known_hosts")

    def run(self, **told: object) -> Play:
        project, log = Project(shipped_root()), self.folder / "log"
        return run_playbook(
            "telemetry.yml", self.target, told, project=project, log=log, emit=discard, step="telemetry"
        )

    def metrics(self) -> dict[str, str]:
        lines = self.host.run(f'python3 -c "{LOOK}"').stdout.splitlines()
        return dict(line.rsplit(" ", 1) for line in lines if line and not line.startswith("#"))


@pytest.fixture(scope="module")
def watched(lab_host: HostFactory, tmp_path_factory: pytest.TempPathFactory) -> Watched:
    # The same host as the gateway's tests: one boot less.
    return Watched(lab_host("gateway", suite="trixie"), tmp_path_factory.mktemp("telemetry"))


def test_it_answers_on_the_loopback_alone_with_our_own_feed_and_a_second_run_changes_nothing(watched: Watched) -> None:
    ended = datetime(2026, 12, 1, 6, tzinfo=UTC)
    night = {"counts": {"done": 3, "failed": 1}, "ended_at": ended.isoformat()}
    feed = watched.folder / "nightly.prom"
    feeds.write_metrics(feed, feeds.metrics([], night=night))
    told = {"telemetry_feeds": [str(feed)]}
    assert watched.run(**told).changed > 0
    assert watched.run(**told).changed == 0
    seen = watched.metrics()
    assert seen['deployctl_night_tasks{result="failed"}'] == "1"
    assert float(seen["deployctl_night_end_timestamp_seconds"]) == ended.timestamp()
    assert seen["node_textfile_scrape_error"] == "0"
    assert int(float(seen["node_memory_MemTotal_bytes"])) > 0
    listening = [line.split()[3] for line in watched.host.run("ss -Hltn").stdout.splitlines() if ":9100" in line]
    assert listening == ["127.0.0.1:9100"]


def test_what_nvidia_smi_says_is_exported_and_so_is_a_driver_that_does_not_answer(watched: Watched) -> None:
    program = watched.host.root_dir / "usr/local/bin/nvidia-smi"
    program.write_text(SMI)
    program.chmod(0o755)
    try:
        assert watched.run().changed > 0
        watched.host.run("systemctl start deployctl-gpu-metrics.service")
        seen = watched.metrics()
        card = '{gpu="0",uuid="GPU-3c2e2f1e-0000-0000-0000-000000000000"}'
        assert float(seen[f"deployctl_gpu_busy_ratio{card}"]) == 0.87
        assert float(seen[f"deployctl_gpu_memory_total_bytes{card}"]) == 46068 * 2**20
        assert float(seen[f"deployctl_gpu_power_watts{card}"]) == 301.55
        assert seen["deployctl_gpu_driver_up"] == "1"
        program.write_text("#!/bin/sh\necho 'Failed to initialize NVML: Driver/library version mismatch'; exit 18\n")
        watched.host.run("systemctl start deployctl-gpu-metrics.service")
        seen = watched.metrics()
        assert seen["deployctl_gpu_driver_up"] == "0"
        assert not [name for name in seen if name.startswith("deployctl_gpu_busy")]
    finally:
        program.unlink()


def test_it_is_taken_back(watched: Watched) -> None:
    assert watched.run(telemetry_state="absent").changed > 0
    assert watched.run(telemetry_state="absent").changed == 0
    assert ":9100" not in watched.host.run("ss -Hltn").stdout
    left = watched.host.run("find /etc/systemd /usr/local/sbin /var/lib/prometheus -name '*deployctl*'").stdout
    assert left == ""
