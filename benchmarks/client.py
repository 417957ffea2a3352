"""Measure the load generator: chunks per CPU-second, what it adds to TTFT and ITL, bytes per user; and its peers.

    python benchmarks/client.py --json [--no-peers | --peers NAME ...] [--realtime]

A server of its own (stream_server.py, on one core) notes when it sent each chunk; Locust (on another core) reads them.
Added TTFT and ITL are the client's times against the server's send times, both on the same monotonic clock. CPU time
is that of the whole Locust process. On a machine with other work, ``--realtime`` (root) gives both sides SCHED_RR, else
the other work is what is measured.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from deployctl.catalog.workloads import Workload
from deployctl.load.driver import LocustDriver

HERE = Path(__file__).parent
TICK = os.sysconf("SC_CLK_TCK")
CORES = sorted(os.sched_getaffinity(0))
SERVER_CORE, CLIENT_CORE = CORES[0], CORES[-1]


def pin(pid, core, realtime):
    for task in Path(f"/proc/{pid}/task").iterdir():
        os.sched_setaffinity(int(task.name), {core})
        if realtime:
            os.sched_setscheduler(int(task.name), os.SCHED_RR, os.sched_param(1))


def cpu_s(pid):
    """User and system time of a process and of the children that it has waited for."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return sum(map(int, fields[11:15])) / TICK


@contextmanager
def server(chunks, rate, ttft, realtime, log=None):
    """The benchmark's server: yields its URL; afterwards ``log`` holds what it sent when."""
    argv = [sys.executable, str(HERE / "stream_server.py"), "--chunks", str(chunks), "--interval", str(1 / rate)]
    argv += ["--ttft", str(ttft), *(["--log", str(log)] if log else [])]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        port = int(process.stdout.readline())
        pin(process.pid, SERVER_CORE, realtime)
        yield f"http://127.0.0.1:{port}"
        process.communicate()


class Sent:
    """When each chunk of each request was sent, monotonic seconds."""

    def __init__(self, path):
        with np.load(path) as log:
            order = np.argsort(log["request"], kind="stable")
            self._request, self._sent = log["request"][order], log["sent_s"][order]

    def of(self, request):
        return self._sent[slice(*np.searchsorted(self._request, [request, request + 1]))]

    def between(self, begin, end):
        return int(((self._sent >= begin) & (self._sent < end)).sum())


def hold(driver, seconds):
    """Read reports, as the real parent does; returns the health reports and the mean number of open requests."""
    health, streams = [], []
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        batch = driver.poll(0.25)
        health += batch.health
        streams.append(len(batch.open_requests))
    return health, float(np.mean(streams))


def streaming(streams, chunks, rate, seconds, realtime):
    """Hold about ``streams`` live streams of ``rate`` chunks/s for ``seconds``."""
    length = 0.05 + chunks / rate
    think = length / 9  # nine tenths of the users stream at any moment
    users = round(streams / 0.9) + 1
    workload = Workload.model_validate(
        {
            "name": "bench",
            "title": "bench",
            "prompt_tokens": 40,
            "output_tokens": {"dist": "uniform", "min": 1, "max": 2 * chunks - 1},  # so that they do not end together
            "think_s": {"dist": "uniform", "min": 0, "max": 2 * think},
            "timeout_s": 120,
        }
    )
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "sent.npz"
        with (
            server(chunks, rate, 0.05, realtime, log) as url,
            LocustDriver(url, "bench", workload, out_dir=Path(folder) / "load") as driver,
        ):
            pin(driver.pid, CLIENT_CORE, realtime)
            before = hold(driver, 1.5)[0][-1].rss_bytes
            driver.set_users(users)
            hold(driver, 1.5 * (length + think))
            pin(driver.pid, CLIENT_CORE, realtime)  # threads that have come since
            begin, cpu = time.monotonic(), cpu_s(driver.pid)
            health, live = hold(driver, seconds)
            end, cpu = time.monotonic(), cpu_s(driver.pid) - cpu
        sent = Sent(log)
        (path,) = driver.sample_files
        added_ttft, added_itl, counted = compare(path, sent, begin, end)
        size = path.stat().st_size / pq.ParquetFile(path).metadata.num_rows
    chunks_sent = sent.between(begin, end)
    lags = np.array([lag for report in health for lag in report.lags_s])
    return {
        "streams": round(live),
        "chunks_per_s": chunks_sent / (end - begin),
        "cpu_share": cpu / (end - begin),
        "chunks_per_s_per_core": chunks_sent / cpu,
        "requests": counted,
        "added_ttft_p99_ms": float(np.quantile(added_ttft, 0.99)) * 1e3,
        "added_itl_p99_ms": float(np.quantile(added_itl, 0.99)) * 1e3,
        "loop_lag_p99_ms": float(np.quantile(lags, 0.99)) * 1e3,
        "bytes_per_live_stream": (health[-1].rss_bytes - before) / users,
        "bytes_per_request_on_disk": size,
    }


def compare(path, sent, begin, end):
    """Added TTFT and ITL in seconds of the requests that started in the window, and their number."""
    table = pq.read_table(path)
    origin = float(table.schema.metadata[b"origin_monotonic_s"])
    rows = table.to_pydict()
    ttft, itl = [], []
    for index in range(table.num_rows):
        intended = origin + rows["intended_us"][index] * 1e-6
        if rows["error"][index] or not begin <= intended < end:
            continue
        true = sent.of(rows["prompt_tokens"][index])
        reads = intended + np.cumsum(rows["read_us"][index]) * 1e-6
        seen = np.repeat(reads, rows["read_lines"][index])[: len(true)]
        ttft.append(intended + rows["first_token_us"][index] * 1e-6 - true[0])
        itl.append(np.abs(np.diff(seen) - np.diff(true)))
    return np.array(ttft), np.concatenate(itl), len(ttft)


def idle(users, realtime):
    """Bytes of resident memory per user that thinks."""
    workload = {"name": "idle", "title": "idle", "prompt_tokens": 40, "output_tokens": 100, "think_s": 3600}
    with tempfile.TemporaryDirectory() as folder, server(1, 1, 0.05, realtime) as url:
        plain = Workload.model_validate(workload)
        with LocustDriver(url, "bench", plain, out_dir=Path(folder)) as driver:
            before = hold(driver, 1.5)[0][-1].rss_bytes
            driver.set_users(users)
            after = hold(driver, 3)[0][-1].rss_bytes
    return (after - before) / users


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--no-peers", action="store_true")
    parser.add_argument("--peers", nargs="+", metavar="NAME", help="only these: aiperf, guidellm, ollama")
    parser.add_argument("--realtime", action="store_true")
    parser.add_argument("--seconds", type=float, default=8, help="length of each measuring window")
    options = parser.parse_args()
    many = streaming(1000, 100, 20, options.seconds, options.realtime)
    same = streaming(200, 100, 50, options.seconds, options.realtime)
    result = {
        **{key: many[key] for key in ("chunks_per_s_per_core", "streams", "added_ttft_p99_ms", "added_itl_p99_ms")},
        "bytes_per_user": idle(1000, options.realtime),
        "many_streams": many,
        "two_hundred_streams": same,
        "realtime": options.realtime,
        "peers": [],
    }
    if not options.no_peers:
        from client_peers import measure_peers

        result["peers"] = measure_peers(server, CLIENT_CORE, options.realtime, options.peers)
    if options.json:
        print(json.dumps(result, indent=1))
        return
    for key, value in result.items():
        print(f"{key:28} {value if not isinstance(value, float) else round(value, 2)}")


if __name__ == "__main__":
    main()
