from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from deployctl.errors import CatalogError
from deployctl.simulator.scenario import Scenario, load_folder, load_scenario, parse_scenario

FULL = """\
name: reference
server: {slots: 4, prefill_tokens_per_s: 850, decode_tokens_per_s: [40.0, 69.6, 92.3, 110.3], queue_limit: null,
         coalesce: 1, cliff_above: null, cliff_factor: 1.0, drift_per_hour: 0.0, speed_noise: null,
         steal: [], stalls: []}
workload: {prompt_tokens: {dist: lognormal, mean: 300, cv: 0.4},
           output_tokens: {dist: lognormal, mean: 150, cv: 0.7, max: 2048},
           think_s: {dist: exponential, mean: 20}, thinking_share: 0.0, shared_prefix: 0.0}
slo: {ttft_s: 5.0, tpot_s: null, e2e_s: null, attainment: 0.95}
"""


def write(folder: Path, text: str, name: str = "case.yml") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_the_scenario_of_the_specification_is_read_and_equals_the_committed_reference(
    tmp_path: Path, reference: Scenario
) -> None:
    assert load_scenario(write(tmp_path, FULL)) == reference


def test_the_digest_ignores_the_name_and_nothing_else(tmp_path: Path) -> None:
    one = load_scenario(write(tmp_path, FULL))
    renamed = load_scenario(write(tmp_path, FULL.replace("name: reference", "name: other")))
    slower = load_scenario(write(tmp_path, FULL.replace("850", "851")))
    assert one.digest == renamed.digest
    assert one.digest != slower.digest


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("slots: 4", "slot: 4", ["line 2", "server.slot is not a key", "did you mean slots"]),
        ("cv: 0.4", "cw: 0.4", ["line 5", "workload.prompt_tokens", "cv"]),
        ("steal: []", "steal: [{from_s: 9, to_s: 3, fraction: 0.5}]", ["line 4", "server.steal.0", "after"]),
        ("stalls: []", "stalls: [{at_s: 9, four_s: 3}]", ["server.stalls.0", "did you mean for_s"]),
        ("prefill_tokens_per_s: 850", "prefill_tokens_per_s: 0", ["line 2", "prefill_tokens_per_s", "greater than 0"]),
        ("[40.0, 69.6, 92.3, 110.3]", "[]", ["line 2", "decode_tokens_per_s", "at least 1"]),
        ("[40.0, 69.6, 92.3, 110.3]", "[40.0, -1, 92.3, 110.3]", ["above 0"]),
        ("[40.0, 69.6, 92.3, 110.3]", "[40.0]", ["1 rates for 4 slots"]),
        ("attainment: 0.95", "attainment: 95", ["line 8", "slo.attainment", "less than 1"]),
        ("speed_noise: null", "speed_noise: {cv: 0.1}", ["tau_s", "required"]),
        ("mean: 300, cv: 0.4", "mean: 300", ["prompt_tokens", "needs cv"]),
        ("mean: 20}", "mean: .nan}", ["think_s"]),
    ],
)
def test_a_bad_key_or_value_is_named_with_its_line(tmp_path: Path, old: str, new: str, words: list[str]) -> None:
    assert old in FULL
    path = write(tmp_path, FULL.replace(old, new, 1))
    with pytest.raises(CatalogError) as caught:
        load_scenario(path)
    assert str(path) in caught.value.message
    for word in words:
        assert word in caught.value.message


@pytest.mark.parametrize("text", ["", "- 1\n", "name: [\n", "name: a\nname: b\n"])
def test_a_file_that_is_not_a_scenario_is_refused_by_name(tmp_path: Path, text: str) -> None:
    with pytest.raises(CatalogError, match=r"case\.yml"):
        load_scenario(write(tmp_path, text))


def test_a_missing_file_and_an_empty_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CatalogError, match="No such file"):
        load_scenario(tmp_path / "none.yml")
    with pytest.raises(CatalogError, match="no scenario"):
        load_folder(tmp_path)


def test_two_files_of_a_folder_may_not_share_a_name(tmp_path: Path) -> None:
    write(tmp_path, FULL, "a.yml")
    write(tmp_path, FULL, "b.yml")
    with pytest.raises(CatalogError, match=r"b\.yml: the name reference is taken"):
        load_folder(tmp_path)


def test_one_request_gets_its_share_of_the_batch_and_the_cliff_slows_all(
    make_scenario: Callable[..., Scenario],
) -> None:
    server = make_scenario(cliff_above=1, cliff_factor=0.5).server
    assert (server.prefill_rate(1), server.prefill_rate(2)) == (100.0, 25.0)
    assert (server.decode_rate(1), server.decode_rate(2)) == (10.0, 4.0)


def test_json_of_a_scenario_reads_back_as_the_same(reference: Scenario) -> None:
    assert parse_scenario(reference.model_dump(mode="json")) == reference


def test_a_file_without_an_end_is_refused_and_not_read_for_ever() -> None:
    with pytest.raises(CatalogError, match="more than 1 MiB"):
        load_scenario(Path("/dev/zero"))
