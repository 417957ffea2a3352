"""Other load generators against the same server, on the same core: chunks that they can read per CPU-second.

Each gets a virtual environment of its own under ``$DEPLOYCTL_BENCH`` (default: ~/.cache/deployctl-bench), made when it
is missing; GuideLLM brings PyTorch, some 6 GB. CPU time is that of all its processes while streams flow, its start-up
not counted. AIPerf and GuideLLM get a word-level tokenizer made here, since theirs need the network.
"""

import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

HOME = Path(os.environ.get("DEPLOYCTL_BENCH") or Path.home() / ".cache" / "deployctl-bench")
STREAMS, CHUNKS, RATE = 200, 100, 50
TICK = os.sysconf("SC_CLK_TCK")

TOKENIZER = """
import sys
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
words = Tokenizer(models.WordLevel({"<unk>": 0, "<s>": 1} | {f"w{i}": i + 2 for i in range(500)}, unk_token="<unk>"))
words.pre_tokenizer = pre_tokenizers.Whitespace()
PreTrainedTokenizerFast(tokenizer_object=words, unk_token="<unk>", eos_token="<s>").save_pretrained(sys.argv[1])
open(sys.argv[1] + "/config.json", "w").write('{"model_type": "gpt2"}')
"""

OLLAMA = """
import asyncio, sys, time, ollama
async def user(client, end):
    while time.monotonic() < end:
        async for part in await client.chat("bench", [{"role": "user", "content": "go on"}], stream=True):
            pass
async def main(url, streams, seconds):
    client = ollama.AsyncClient(host=url)
    await asyncio.gather(*(user(client, time.monotonic() + seconds) for _ in range(streams)))
asyncio.run(main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3])))
"""


def environment(name, version):
    """The Python of a virtual environment that holds the peer."""
    folder = HOME / f"{name}-{version}"
    python = folder / "bin" / "python"
    if not (folder / "done").exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        subprocess.run([str(python), "-m", "pip", "install", "-q", f"{name}=={version}"], check=True)
        (folder / "done").touch()
    return python


def tokenizer_in(python, folder):
    """Make the tokenizer that needs no network."""
    path = folder / "tokenizer"
    subprocess.run([str(python), "-c", TOKENIZER, str(path)], check=True, capture_output=True)
    return path


def aiperf(python, url, folder):
    tokenizer = tokenizer_in(python, folder)
    argv = [str(python.with_name("aiperf")), "profile", "-m", "bench", "-u", url, "--endpoint-type", "chat"]
    argv += ["--streaming", "--concurrency", str(STREAMS), "--request-count", "1600", "--tokenizer", str(tokenizer)]
    argv += ["--isl", "40", "--osl", str(CHUNKS), "--use-server-token-count", "--use-legacy-max-tokens"]
    return [*argv, "--artifact-dir", str(folder / "out"), "--ui", "none"]


def guidellm(python, url, folder):
    tokenizer = tokenizer_in(python, folder)
    argv = [str(python.with_name("guidellm")), "run", "--backend", f"kind=openai_http,target={url},model=bench"]
    argv += ["--profile", f"kind=concurrent,streams={STREAMS}", "--constraint", "kind=max_duration,seconds=18"]
    argv += ["--tokenizer", f"kind=hf_auto,model={tokenizer}", "--disable-console"]
    argv += ["--data", f"kind=synthetic_text,prompt_tokens=40,output_tokens={CHUNKS}"]
    return [*argv, "--output", f"kind=json,path={folder / 'out.json'}"]


def ollama(python, url, _):
    return [str(python), "-c", OLLAMA, url, str(STREAMS), "18"]


PEERS = {"aiperf": ("0.13.0", aiperf), "guidellm": ("0.8.1", guidellm), "ollama": ("0.6.3", ollama)}


def session_cpu_s(session):
    """CPU seconds of every process of a session, waited-for children included."""
    total = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        if int(fields[3]) == session:
            total += sum(map(int, fields[11:15]))
    return total / TICK


def measure(name, server, core, realtime):
    """Chunks read per second and per CPU-second of one peer, in the middle of its run."""
    version, command = PEERS[name]
    python = environment(name, version)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        log = folder / "sent.npz"
        readings = []
        with server(CHUNKS, RATE, 0.05, realtime, log) as url:
            argv = [
                "taskset",
                "-c",
                str(core),
                *(["chrt", "-r", "1"] if realtime else []),
                *command(python, url, folder),
            ]
            with (folder / "log").open("wb") as output:
                process = subprocess.Popen(argv, stdout=output, stderr=output, cwd=folder, start_new_session=True)
            done = threading.Event()

            def watch():
                while not done.wait(0.25):
                    readings.append((time.monotonic(), session_cpu_s(process.pid)))

            watcher = threading.Thread(target=watch)
            watcher.start()
            code = process.wait()
            done.set()
            watcher.join()
        if code:
            print(f"{name} failed:\n{(folder / 'log').read_text()[-1500:]}", file=sys.stderr)
            return None
        import numpy as np

        with np.load(log) as arrays:
            sent = np.sort(arrays["sent_s"])
    # The middle half of the time in which nine tenths of the chunks flowed.
    low, high = np.quantile(sent, [0.05, 0.95])
    begin, end = low + (high - low) / 4, high - (high - low) / 4
    (t0, c0), (t1, c1) = (min(readings, key=lambda reading: abs(reading[0] - moment)) for moment in (begin, end))
    chunks = int(((sent >= t0) & (sent < t1)).sum())
    return {
        "name": name,
        "version": version,
        "chunks_per_s": chunks / (t1 - t0),
        "cpu_share": (c1 - c0) / (t1 - t0),
        "chunks_per_s_per_core": chunks / (c1 - c0),
    }


def measure_peers(server, core, realtime, names=None):
    """Measure each peer, or those named, in turn; one that cannot be installed or run is left out, and named."""
    results = []
    for name in names or PEERS:
        try:
            found = measure(name, server, core, realtime)
        except (OSError, subprocess.CalledProcessError) as error:
            print(f"{name} is left out: {error}", file=sys.stderr)
            continue
        if found is not None:
            results.append(found)
    return results
