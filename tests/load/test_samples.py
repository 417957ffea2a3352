"""A sample's derived values, by hand computation."""

import json
import math

import numpy as np

from deployctl.load.samples import Sample, from_columns, to_columns


def test_latencies_count_from_the_intended_start():
    # Intended at 10, sent at 12 (a late client), first token at 13, 5 tokens, end at 15.
    sample = Sample(0, 0, 10.0, sent_s=12.0, first_token_s=13.0, first_visible_s=14.0, end_s=15.0, output_tokens=5)
    assert (sample.ttft_s, sample.ttfvt_s, sample.e2e_s, sample.tpot_s) == (3.0, 4.0, 5.0, 0.5)
    assert sample.schedule_delay_s == 2.0


def test_one_token_has_no_time_between_tokens_and_no_text_ends_when_it_ends():
    assert Sample(0, 0, 1.0, first_token_s=2.0, end_s=3.0, output_tokens=1).tpot_s == 0
    silent = Sample(0, 0, 1.0, end_s=3.0)
    assert silent.ok
    assert silent.ttft_s == 2.0


def test_a_failure_is_infinitely_late_and_a_cut_request_says_nothing():
    failed = Sample(0, 0, 1.0, first_token_s=2.0, end_s=3.0, error="timeout")
    assert failed.ttft_s == failed.ttfvt_s == failed.tpot_s == failed.e2e_s == math.inf
    assert failed.counts
    assert not Sample(0, 0, 1.0, error="cancelled").counts


def test_columns_survive_json():
    samples = [
        Sample(1, 2, 3.5, first_token_s=4.25, error="reset", message='quo"te'),
        Sample(7, 0, 1.0, done_reason="stop", output_tokens=4),
    ]
    back = from_columns(json.loads(json.dumps(to_columns(samples), allow_nan=False)))
    assert repr(back) == repr(samples)
    assert np.isnan(back[1].first_token_s)
