"""What provisioning costs: a run that has nothing to do, and many hosts at once. Boots lab hosts, so it needs root.

    python benchmarks/provision.py [--json] [--hosts 8]

noop_ratio: `deployctl provision` on a host that is as wanted, against `ansible-playbook` with its own defaults and
the same playbooks and variables on the same host (medians of three, alternating). fleet_ratio: `deployctl provision
--limit` on that many bare hosts at once, against one bare host; fleet_noop_ratio the same once they are as wanted.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tests" / "lab")]

from nspawn.base import obstacle  # noqa: E402
from nspawn.host import LabHost, new_client_key, running_host  # noqa: E402

from deployctl.hosts.openssh import ssh_args  # noqa: E402
from deployctl.provision.deploy import ModelFiles, variables  # noqa: E402
from deployctl.provision.settings import Settings, Source  # noqa: E402
from deployctl.sandbox import archive, model  # noqa: E402
from deployctl.sandbox.engine import default_cache_dir  # noqa: E402

WORDS = ("--plan", "sandbox", "--model", "gemma3:270m", "--engine", "embedded", "--no-probe")


def deployctl(folder: Path, *words: str) -> tuple[float, dict]:
    began = time.monotonic()
    command = [sys.executable, "-m", "deployctl", "--data-dir", str(folder / "data"), *words, "--json"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{shlex.join(words)}: {done.stderr[-2000:]}")
    return time.monotonic() - began, json.loads(done.stdout)


def settings_of(host: LabHost) -> Settings:
    """The settings that deployctl chose, as the host's drop-in has them."""
    shown = host.run("systemctl show ollama --property=Environment --value").stdout
    found = dict(word.split("=", 1) for word in shlex.split(shown) if "=" in word)
    return Settings(
        slots=int(found["OLLAMA_NUM_PARALLEL"]),
        context=int(found["OLLAMA_CONTEXT_LENGTH"]),
        threads=int(found["LLAMA_ARG_THREADS"]) if "LLAMA_ARG_THREADS" in found else None,
        keep_alive=found["OLLAMA_KEEP_ALIVE"],
        flash_attention=found["OLLAMA_FLASH_ATTENTION"] == "1",
        kv_cache_type=found["OLLAMA_KV_CACHE_TYPE"],
        prompt_cache_mib=int(found["LLAMA_ARG_CACHE_RAM"]),
        max_queue=int(found["OLLAMA_MAX_QUEUE"]),
        load_timeout=found["OLLAMA_LOAD_TIMEOUT"],
    )


def plain(folder: Path, host: LabHost) -> float:
    """Run the playbook as Ansible comes: no pipelining, its own connection settings."""
    target = host.target(folder / "plain_known_hosts", trust=not (folder / "plain_known_hosts").exists())
    cache = default_cache_dir(ROOT)
    source = Source("embedded", archive.engine_version(), archive.build_archive(cache))
    told = variables(target, settings_of(host), source, ModelFiles("gemma3:270m", model.gguf_path(cache)))
    connection = {
        "ansible_host": target.address,
        "ansible_user": target.user,
        "ansible_become": target.become,
        "ansible_ssh_common_args": shlex.join(ssh_args(target)),
    }
    (folder / "plain.json").write_text(json.dumps({"all": {"hosts": {"box": {**connection, **told}}}}))
    (folder / "empty.cfg").write_text(f"[defaults]\ncollections_path = {ROOT}/playbooks/collections\n")
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder), "LC_ALL": "C.UTF-8"}
    environment["ANSIBLE_CONFIG"] = str(folder / "empty.cfg")
    program = Path(sys.executable).parent / "ansible-playbook"
    began = time.monotonic()
    done = subprocess.run(
        [program, "-i", folder / "plain.json", ROOT / "playbooks" / "provision.yml"],
        env=environment,
        capture_output=True,
        text=True,
    )
    took = time.monotonic() - began
    if "changed=0" not in done.stdout:
        raise SystemExit(f"the plain playbook had something to do: {done.stdout[-2000:]}")
    return took


def measure(count: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory(prefix="bench-provision-") as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        key = new_client_key(folder)
        hosts = {f"box{n}": stack.enter_context(running_host(f"box{n}", key)) for n in range(count + 1)}
        (folder / "inventory").mkdir()
        lines = [f"{n}: {{address: {host.address}, user: deploy, key_file: {key}}}" for n, host in hosts.items()]
        (folder / "inventory" / "hosts.yml").write_text("\n".join(lines) + "\n")
        rest = ",".join(list(hosts)[1:])
        provision = ("provision", *WORDS, "--accept-new")
        one, _ = deployctl(folder, *provision, "--limit", "box0")
        many, told = deployctl(folder, *provision, "--limit", rest)
        assert len(told["hosts"]) == count
        noop, default = [], []
        for _ in range(3):
            seconds, told = deployctl(folder, *provision, "--host", "box0")
            assert told["changes"] == []
            noop.append(seconds)
            default.append(plain(folder, hosts["box0"]))
        many_noop, _ = deployctl(folder, *provision, "--limit", rest)
    return {
        "noop_ratio": round(statistics.median(noop) / statistics.median(default), 3),
        "fleet_ratio": round(many / one, 3),
        "fleet_noop_ratio": round(many_noop / statistics.median(noop), 3),
        "hosts": count,
        "noop_s": round(statistics.median(noop), 2),
        "defaults_s": round(statistics.median(default), 2),
        "one_s": round(one, 2),
        "many_s": round(many, 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--hosts", type=int, default=8)
    options = parser.parse_args()
    if (reason := obstacle()) is not None:
        raise SystemExit(reason)
    found = measure(options.hosts)
    if options.json:
        print(json.dumps(found, indent=2))
    else:
        for name, value in found.items():
            print(f"{name:<18} {value}")


if __name__ == "__main__":
    main()
