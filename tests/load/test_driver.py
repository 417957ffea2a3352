"""Locust in its own process: levels, samples, and what is left when something dies."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from time import monotonic, sleep

import httpx
import pytest

import deployctl.load
from deployctl.errors import MeasurementError
from deployctl.load.processes import free_port
from deployctl.load.samples import Failure
from deployctl.load.store import read_samples


def until(driver, wanted, timeout_s=20):
    """Poll until ``wanted(batch, requests)``; return all requests and the last batch."""
    requests = []
    deadline = monotonic() + timeout_s
    while monotonic() < deadline:
        batch = driver.poll(0.2)
        requests += batch.requests
        if wanted(batch, requests):
            return requests, batch
    raise AssertionError(f"not in {timeout_s} s; log: {driver.log_tail()}")


def level(users):
    return lambda batch, requests: batch.level is not None and batch.level.users == users


def gone(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except FileNotFoundError:
        return True


def wait_gone(pid, timeout_s=10):
    deadline = monotonic() + timeout_s
    while not gone(pid) and monotonic() < deadline:
        sleep(0.05)
    return gone(pid)


def test_importing_the_parents_side_imports_neither_locust_nor_gevent():
    folder = Path(deployctl.load.__file__).parent
    modules = sorted(path.stem for path in folder.glob("*.py") if path.stem != "__init__")
    assert {"api", "arrivals", "driver", "processes", "roundtrip"} <= set(modules)
    code = (
        "import importlib, sys\n"
        f"for name in {modules}:\n"
        "    importlib.import_module('deployctl.load.' + name)\n"
        "print([name for name in sys.modules if name.split('.')[0] in ('locust', 'gevent', 'greenlet')])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.strip() == "[]"


def test_users_change_live_and_each_level_starts_empty(driving):
    with driving(think_s=0.05) as driver:
        pid = driver.pid
        seen = {}
        for users in (3, 6, 2):
            driver.set_users(users)
            _, batch = until(driver, level(users))
            began = batch.level.began_s
            requests, batch = until(driver, lambda batch, requests: len(requests) >= 5 * users)  # noqa: B023
            seen[users] = {sample.user for sample in requests if sample.intended_s >= began}
            seen[users] |= {one.user for one in batch.open_requests if one.intended_s >= began}
        assert driver.pid == pid, "no restart between levels"
    assert [len(seen[users]) for users in (3, 6, 2)] == [3, 6, 2]
    assert not seen[6] & seen[2], "the users of a lower level are new ones"


def test_draining_lets_every_open_request_end(driving):
    with driving(think_s=0.02, output_tokens=100) as driver:  # about half a second each
        driver.set_users(5)
        requests, _ = until(driver, lambda batch, _: len(batch.open_requests) == 5)
        driver.set_users(0)
        rest, batch = until(driver, level(0))
        assert batch.open_requests == []
    everything = read_samples(driver.sample_files)
    assert len(everything) == len(requests + rest)
    assert all(sample.ok for sample in everything)


def test_what_our_own_stop_cuts_is_cancelled_and_kept(driving):
    with driving("slow:30", think_s=0, timeout_s=60) as driver:
        driver.set_users(4)
        until(driver, lambda batch, _: len(batch.open_requests) == 4)
        asked = monotonic()
    assert monotonic() - asked < 10
    assert [sample.error for sample in read_samples(driver.sample_files)] == [Failure.CANCELLED] * 4


def test_samples_on_disk_are_those_that_were_reported(driving):
    with driving("thinking", think_s=0.05) as driver:
        driver.set_users(3)
        requests, _ = until(driver, lambda _, requests: len(requests) >= 9)
        driver.set_users(0)
        rest, _ = until(driver, level(0))
        requests += rest
    stored = {(sample.user, sample.seq): sample for sample in read_samples(driver.sample_files)}
    assert len(stored) == len(requests)
    for sample in requests:
        twin = stored[sample.user, sample.seq]
        assert (twin.output_tokens, twin.chunks, twin.error, twin.done_reason) == (6, 7, None, "length")
        assert twin.ttft_s == pytest.approx(sample.ttft_s, abs=3e-6)
        assert twin.end_s == pytest.approx(sample.end_s, abs=3e-6)


def test_the_intended_start_is_the_previous_end_plus_the_think_time(driving):
    with driving(think_s={"dist": "exponential", "mean": 0.1}) as driver:
        driver.set_users(2)
        requests, _ = until(driver, lambda _, requests: len(requests) >= 12)
    by_user = {}
    for sample in sorted(requests, key=lambda sample: sample.seq):
        if (before := by_user.get(sample.user)) is not None:
            assert sample.intended_s == pytest.approx(before.end_s + sample.think_s, abs=1e-6)
        by_user[sample.user] = sample


def test_open_requests_show_their_first_token_before_they_end(driving):
    with driving(output_tokens=400, think_s=0) as driver:
        driver.set_users(1)
        _, batch = until(driver, lambda batch, _: any(one.first_token_s for one in batch.open_requests))
        one = batch.open_requests[0]
        assert batch.open_starts == [one.intended_s]
        assert one.intended_s < one.first_token_s <= batch.as_of_s


def test_the_same_seed_asks_for_the_same_lengths(driving, tmp_path):
    asked = []
    for _ in range(2):
        varied = {"dist": "lognormal", "mean": 12, "cv": 0.5, "min": 2, "max": 30}
        with driving(output_tokens=varied, think_s=0.02, seed=7) as driver:
            driver.set_users(2)
            requests, _ = until(driver, lambda _, requests: min(by_user(requests).values(), default=0) >= 3)
        asked.append(sorted((s.user, s.seq, s.asked_tokens) for s in requests if s.user < 2 and s.seq < 3))
        assert all(sample.output_tokens == sample.asked_tokens for sample in requests if sample.ok)
    assert asked[0] == asked[1]
    assert len({tokens for _, _, tokens in asked[0]}) > 1


def by_user(requests):
    counts = dict.fromkeys(range(2), 0)
    for sample in requests:
        counts[sample.user] = counts.get(sample.user, 0) + 1
    return counts


def test_a_load_process_that_dies_is_noticed_and_can_be_started_anew(driving):
    with driving(think_s=0.02) as driver:
        driver.set_users(2)
        until(driver, lambda _, requests: len(requests) >= 20)
        before = driver.pid
        os.kill(before, signal.SIGKILL)
        until(driver, lambda *_: not driver.alive)
        driver.start()
        assert driver.pid != before
        driver.set_users(2)
        requests, _ = until(driver, lambda _, requests: len(requests) >= 4)
        assert min(sample.user for sample in requests) >= 2, "users are not numbered twice"
    assert len(driver.sample_files) == 2


def test_a_killed_parent_leaves_no_load_process(fake, make_workload, tmp_path):
    code = (
        "import sys, time\nfrom pathlib import Path\n"
        "from deployctl.load.driver import LocustDriver\nfrom deployctl.catalog.workloads import Workload\n"
        "driver = LocustDriver(sys.argv[1], 'plain', Workload.model_validate_json(sys.argv[2]),"
        " out_dir=Path(sys.argv[3]))\n"
        "driver.start(); driver.set_users(3); print(driver.pid, flush=True); time.sleep(60)"
    )
    argv = [sys.executable, "-c", code, fake, make_workload(think_s=0.02).model_dump_json(exclude_none=True)]
    with subprocess.Popen([*argv, str(tmp_path)], stdout=subprocess.PIPE, text=True) as parent:
        pid = int(parent.stdout.readline())
        sleep(1.5)
        parent.kill()
    assert wait_gone(pid)
    assert read_samples(sorted(tmp_path.glob("samples-*"))), "what was measured is kept"


def test_ctrl_c_at_the_terminal_reaches_the_parent_only_and_samples_are_kept(fake, make_workload, tmp_path):
    code = (
        "import sys\nfrom pathlib import Path\n"
        "from deployctl.load.driver import LocustDriver\nfrom deployctl.catalog.workloads import Workload\n"
        "workload = Workload.model_validate_json(sys.argv[2])\n"
        "try:\n"
        "    with LocustDriver(sys.argv[1], 'plain', workload, out_dir=Path(sys.argv[3])) as driver:\n"
        "        driver.set_users(3); print(driver.pid, flush=True)\n"
        "        while True: driver.poll(0.2)\n"
        "except KeyboardInterrupt: sys.exit(7)"
    )
    argv = [sys.executable, "-c", code, fake, make_workload(think_s=0.02).model_dump_json(exclude_none=True)]
    with subprocess.Popen([*argv, str(tmp_path)], stdout=subprocess.PIPE, text=True, process_group=0) as parent:
        pid = int(parent.stdout.readline())
        sleep(1.5)
        os.killpg(parent.pid, signal.SIGINT)  # what a terminal does: every process of the foreground group
        assert parent.wait(10) == 7
    assert gone(pid)
    samples = read_samples(sorted(tmp_path.glob("samples-*.parquet")))
    assert sum(sample.ok for sample in samples) > 5


def test_a_locustfile_that_does_not_load_says_why(driving, tmp_path):
    driver = driving()
    (tmp_path / "loadtests").mkdir()
    (tmp_path / "loadtests" / "chat.py").write_text("raise RuntimeError('a mistake of my own')\n")
    driver._project = type(driver._project)(tmp_path)
    with pytest.raises(MeasurementError, match="a mistake of my own"), driver:
        pass


def test_locust_alone_shows_ttft_and_tpot(fake, tmp_path):
    chat = Path(__file__).parents[2] / "loadtests" / "chat.py"
    argv = [sys.executable, "-m", "locust", "-f", str(chat), "-H", fake, "--headless", "--users", "3"]
    argv += ["--spawn-rate", "10", "--run-time", "4", "--workload", "demo", "--json", "--only-summary"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, cwd=tmp_path)
    entries = {entry["method"]: entry for entry in json.loads(done.stdout)}
    assert set(entries) == {"POST", "TTFT", "TPOT"}
    assert entries["TTFT"]["num_requests"] == entries["POST"]["num_requests"] > 0
    assert entries["POST"]["num_failures"] == 0
    assert done.returncode == 0


def test_locusts_own_page_shows_ttft_and_tpot(fake, tmp_path):
    chat = Path(__file__).parents[2] / "loadtests" / "chat.py"
    port = free_port()
    argv = [sys.executable, "-m", "locust", "-f", str(chat), "-H", fake, "--workload", "demo"]
    argv += ["--web-host", "127.0.0.1", "--web-port", str(port)]
    page = f"http://127.0.0.1:{port}"
    with (tmp_path / "log").open("w") as log, subprocess.Popen(argv, stdout=log, stderr=log, cwd=tmp_path) as locust:
        try:
            with httpx.Client(base_url=page, transport=httpx.HTTPTransport(retries=0)) as web:
                wait_for(lambda: "Locust" in web.get("/").text, locust)
                assert web.post("/swarm", data={"user_count": 3, "spawn_rate": 10}).json()["success"]
                entries = {}

                def counted():
                    entries.update({entry["method"]: entry for entry in web.get("/stats/requests").json()["stats"]})
                    return entries.get("TPOT", {}).get("num_requests", 0) >= 5

                wait_for(counted, locust)
        finally:
            locust.terminate()
    assert {"POST", "TTFT", "TPOT"} <= set(entries)
    assert {entries[kind]["name"] for kind in ("POST", "TTFT", "TPOT")} == {"/api/chat"}
    assert entries["POST"]["num_failures"] == 0
    # The server takes 20 ms to the first token and 4 ms for each: the whole takes longer than its beginning.
    assert entries["POST"]["median_response_time"] > entries["TTFT"]["median_response_time"] >= 20


def wait_for(true, process, timeout_s=30):
    deadline = monotonic() + timeout_s
    while monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(httpx.TransportError):
            if true():
                return
        sleep(0.2)
    raise AssertionError("Locust ended" if process.poll() is not None else f"not in {timeout_s} s")


def test_chat_completions_are_measured_by_the_same_recorder(driving):
    with driving("openai", protocol="openai", think_s=0.02, output_tokens=9) as driver:
        driver.set_users(2)
        requests, _ = until(driver, lambda _, requests: len(requests) >= 6)
    for sample in requests:
        assert sample.ok, sample
        assert (sample.output_tokens, sample.prompt_tokens, sample.done_reason) == (9, 33, "length")
        assert sample.first_visible_s - sample.first_token_s >= 0.015  # the server thinks for 30 ms
    with driving("openai-error", protocol="openai", think_s=0.02) as driver:
        driver.set_users(1)
        requests, _ = until(driver, lambda _, requests: len(requests) >= 1)
    assert (requests[0].error, requests[0].message) == (Failure.STREAM, "out of memory")


def test_turns_send_the_servers_own_answers_back(driving):
    with driving("parrot", turns=3, warm=True, think_s=0.02, output_tokens=5) as driver:
        driver.set_users(1)
        requests, _ = until(driver, lambda _, requests: len(requests) >= 7)
    assert [sample.turn for sample in requests[:7]] == [0, 1, 2, 0, 1, 2, 0]
    # The parrot's answer holds the conversation, so each turn's answer is more than twice as long as the one before.
    first, second, third = (sample.received_bytes for sample in requests[:3])
    assert third > 2 * second > 4 * first - 4000


@pytest.mark.parametrize("name", ["rag", "agent", "batch"])
def test_every_locustfile_runs_by_hand(name, fake, tmp_path):
    file = Path(__file__).parents[2] / "loadtests" / f"{name}.py"
    argv = [
        sys.executable,
        "-m",
        "locust",
        "-f",
        str(file),
        "-H",
        fake,
        "--headless",
        "--users",
        "1",
        "--show-task-ratio",
    ]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, cwd=tmp_path)
    assert done.returncode == 0
    assert f"{name.title()}User" in done.stdout
