"""The journal of a genuine Ollama, as recorded (see data/README.md)."""

from pathlib import Path

import pytest

from deployctl.ollama.journal import newest_load

DATA = Path(__file__).parent / "data"
MIB = 1024**2


def journal(name: str) -> str:
    return (DATA / f"journal-{name}.txt").read_text(encoding="utf-8")


def test_slots_context_threads_and_buffers_are_the_servers_own() -> None:
    load = newest_load(journal("four-slots"))
    assert load is not None
    # The recording was made with OLLAMA_NUM_PARALLEL=4 OLLAMA_CONTEXT_LENGTH=2048 LLAMA_ARG_THREADS=2, without a GPU.
    assert (load.slots, load.context, load.threads) == (4, 2048, 2)
    assert (load.gpu_layers, load.layers) == (None, None)
    # Summed by hand from its "buffer size" lines: 222.51 + 12.66; 24 + 90; 43.55 + 4.
    assert load.weights_bytes / MIB == pytest.approx(235.17, abs=0.01)
    assert load.kv_bytes / MIB == pytest.approx(114.0, abs=0.01)
    assert load.compute_bytes / MIB == pytest.approx(47.55, abs=0.01)


def test_a_server_with_nothing_set_has_one_slot_of_4096_tokens() -> None:
    load = newest_load(journal("defaults"))
    assert load is not None
    assert (load.slots, load.context) == (1, 4096)


def test_the_newest_load_counts() -> None:
    load = newest_load(journal("four-slots") + journal("defaults"))
    assert load is not None
    assert load.slots == 1


def test_layers_on_a_gpu_are_read() -> None:
    # llama.cpp prints "offloaded N/M layers to GPU" (src/llama-model.cpp).
    text = 'msg="starting llama-server" cmd="x -c 8192 -np 2"\nload_tensors: offloaded 20/33 layers to GPU\n'
    load = newest_load(text)
    assert load is not None
    assert (load.gpu_layers, load.layers) == (20, 33)


@pytest.mark.parametrize("text", ["", "time=… msg=listening\n", "\x00\xff"])
def test_a_journal_without_a_load_says_nothing(text: str) -> None:
    assert newest_load(text) is None
