"""Raw samples on disk, whole or after a crash."""

import math

import numpy as np
import pyarrow.parquet as pq
import pytest

from deployctl.load.samples import COLUMNS, Sample
from deployctl.load.store import NO_READS, SampleWriter, finalise, read_samples


def samples(first, count):
    rng = np.random.default_rng(first)
    found = []
    for index in range(first, first + count):
        begin = 1000.0 + index * 0.37
        first_token, end = begin + rng.exponential(0.4), begin + 1 + rng.exponential(2)
        failed = index % 7 == 3
        found.append(
            Sample(
                user=index % 5,
                seq=index // 5,
                intended_s=begin,
                sent_s=begin + 0.0005,
                first_byte_s=first_token - 0.001,
                first_token_s=math.nan if failed else first_token,
                first_visible_s=math.nan if failed else first_token,
                end_s=end,
                think_s=1.25,
                chunks=20,
                prompt_tokens=40,
                output_tokens=0 if failed else 19,
                status=200,
                error="timeout" if failed else None,
                done_reason="" if failed else "length",
            )
        )
    return found


def assert_same(found, expected):
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        for name in COLUMNS:
            a, b = getattr(one, name), getattr(other, name)
            if isinstance(b, float):
                assert a == pytest.approx(b, abs=1e-6, nan_ok=True), name  # whole microseconds on disk
            else:
                assert a == b, name


def test_what_is_written_is_read_back_to_the_microsecond(tmp_path):
    writer = SampleWriter(tmp_path / "s.arrow", 1000.0)
    expected = samples(0, 50)
    writer.append(expected[:20], [NO_READS] * 20)
    writer.append(expected[20:], [NO_READS] * 30)
    writer.close()
    assert_same(read_samples([tmp_path / "s.arrow"]), expected)
    assert finalise([tmp_path / "s.arrow"], tmp_path / "s.parquet") == 50
    assert_same(read_samples([tmp_path / "s.parquet"]), expected)
    assert not (tmp_path / "s.arrow").exists()


@pytest.mark.parametrize("lost_bytes", [1, 100, 500])
def test_a_crash_loses_no_more_than_the_last_batch(tmp_path, lost_bytes):
    path = tmp_path / "s.arrow"
    writer = SampleWriter(path, 1000.0)
    expected = samples(0, 60)
    for first in range(0, 60, 20):
        writer.append(expected[first : first + 20], [NO_READS] * 20)
    # What a crash would leave: the stream has no end, and the last write came only in part.
    path = path.with_name("crashed.arrow")
    path.write_bytes(writer.path.read_bytes()[:-lost_bytes])
    writer.close()
    assert_same(read_samples([path]), expected[:40])
    assert finalise([path], tmp_path / "s.parquet") == 40


def test_the_times_of_all_reads_are_kept(tmp_path):
    writer = SampleWriter(tmp_path / "s.arrow", 0.0)
    reads = (np.array([10.5, 10.75, 10.75002]), np.array([1, 2, 1], np.uint32), np.array([90, 180, 300], np.uint32))
    writer.append([Sample(0, 0, 10.0, end_s=11.0), Sample(1, 0, 12.0)], [reads, NO_READS])
    writer.close()
    finalise([tmp_path / "s.arrow"], tmp_path / "s.parquet")
    table = pq.read_table(tmp_path / "s.parquet").to_pydict()
    assert table["read_us"] == [[500_000, 250_000, 20], []]
    assert table["read_lines"] == [[1, 2, 1], []]
    assert table["read_bytes"] == [[90, 180, 300], []]


def test_a_run_without_requests_leaves_no_file(tmp_path):
    SampleWriter(tmp_path / "s.arrow", 0.0).close()
    assert finalise([tmp_path / "s.arrow"], tmp_path / "s.parquet") == 0
    assert list(tmp_path.iterdir()) == []
