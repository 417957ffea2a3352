"""How fast the simulator is: requests per second of CPU in virtual time, chunks per second of CPU behind sockets.

`python benchmarks/simulator.py` prints one JSON document. The target in virtual time is 200,000 requests per second of
CPU on one core. Plain Python reaches it because a change of the batch touches no request: all that prefill go at one
rate and all that decode at another, so one running total per phase says when the next is due, and whatever slows the
whole machine (noise, steal, drift) is a change of clock and no event. A request costs three events, 0.7 µs each in a
quiet machine. Compiled, the same steps take about a tenth of that; drawing the inputs is then half of the time.
"""

import json
import resource
import socket
import threading
import time
from pathlib import Path

import numpy as np

from deployctl.simulator.app import Options
from deployctl.simulator.cluster import Cluster
from deployctl.simulator.longrun import play_requests
from deployctl.simulator.process import running_simulator
from deployctl.simulator.scenario import Scenario, load_scenario, parse_scenario
from deployctl.simulator.virtual import ClosedLoop, closed_loop

SCENARIOS = Path(__file__).parent / "scenarios"
USERS = {"reference": 11, "reference-noisy": 10, "cpu-noisy": 4, "no-think": 11, "gpu-four-hundred": 400}


def per_cpu_second(loop: ClosedLoop | Cluster, requests: int) -> float:
    began = time.process_time()
    play_requests(loop, requests)
    return loop.sent / (time.process_time() - began)


def virtual(*, compiled: bool) -> dict[str, float]:
    """The median of three runs of 200,000 requests for each scenario, in plain Python or compiled (Numba)."""
    speeds = {}
    for name, users in USERS.items():
        scenario = load_scenario(SCENARIOS / f"{name}.yml")
        closed_loop(scenario, users, np.random.SeedSequence(9), compiled=compiled).advance(1.0)  # compile it
        loops = [closed_loop(scenario, users, np.random.SeedSequence(seed), compiled=compiled) for seed in range(3)]
        runs = [per_cpu_second(loop, 200_000) for loop in loops]
        speeds[name] = sorted(runs)[1]
    return speeds


def cluster() -> dict[str, float]:
    """10,000 users on 500 hosts: the speed, and the memory at its peak."""
    loop = Cluster(load_scenario(SCENARIOS / "reference.yml"), 10_000, np.random.SeedSequence(1), 500)
    speed = per_cpu_second(loop, 200_000)
    return {"requests_per_cpu_s": speed, "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}


def streams(count: int, rate: int, tokens: int) -> Scenario:
    return parse_scenario(
        {
            "name": f"streams-{count}",
            "server": {
                "slots": count,
                "prefill_tokens_per_s": 1e9,
                "decode_tokens_per_s": [float(rate * k) for k in range(1, count + 1)],
            },
            "workload": {"prompt_tokens": 1, "output_tokens": tokens, "think_s": 0},
            "slo": {"ttft_s": 1},
        }
    )


def sockets(count: int = 100, rate: int = 50, tokens: int = 200) -> dict[str, float]:
    """``count`` streams of ``rate`` chunks/s: chunks per second of the server's own CPU, and how late it sent ends."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with running_simulator(streams(count, rate, tokens), options=Options()) as url:
        host, port = url.removeprefix("http://").split(":")
        threads = [threading.Thread(target=read_stream, args=(host, int(port), tokens)) for _ in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        finished = json.loads(
            exchange(host, int(port), b"GET /simulator/requests HTTP/1.1\r\nConnection: close\r\n\r\n")
        )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    late = sorted(request["sent_s"] - request["ended_s"] for request in finished)
    return {
        "streams": count,
        "chunks_per_cpu_s": count * tokens / cpu,
        "late_p50_s": late[len(late) // 2],
        "late_p99_s": late[int(0.99 * len(late))],
    }


def read_stream(host: str, port: int, tokens: int) -> None:
    body = json.dumps({"model": "sim", "prompt": "x", "options": {"num_predict": tokens}}).encode()
    head = b"POST /api/generate HTTP/1.1\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(body)
    exchange(host, port, head + body)


def exchange(host: str, port: int, data: bytes) -> bytes:
    with socket.create_connection((host, port)) as client:
        client.sendall(data)
        received = b"".join(iter(lambda: client.recv(65536), b""))
    return received.partition(b"\r\n\r\n")[2]


if __name__ == "__main__":
    report = {"requests_per_cpu_s": virtual(compiled=False), "compiled": virtual(compiled=True)}
    print(json.dumps(report | {"cluster": cluster(), "sockets": sockets()}, indent=2))
