"""Many hosts at once: nobody's failure is another's, and the worst one is the answer's code."""

import threading
from pathlib import Path

import pytest

from deployctl.catalog.load import load_catalog
from deployctl.errors import CatalogError, DeployctlError, HostUnreachable, ProvisionError, UsageError
from deployctl.events import HostEnded, HostMoved, Warned, step
from deployctl.jobs.fleet import across, choose_hosts, worst
from deployctl.resources import Project

HOSTS = """
berlin-1: {address: 192.0.2.1, plan: cpu-32gb}
berlin-2: {address: 192.0.2.2, plan: cpu-64gb}
paris-1: {address: 192.0.2.3}
"""


@pytest.fixture
def catalog(tmp_path: Path):
    (tmp_path / "inventory").mkdir()
    (tmp_path / "inventory" / "hosts.yml").write_text(HOSTS)
    return load_catalog(Project(tmp_path))


@pytest.mark.parametrize(
    ("limit", "plan", "names"),
    [
        ("*", None, ("berlin-1", "berlin-2", "paris-1")),
        ("berlin-*", None, ("berlin-1", "berlin-2")),
        ("paris-1,berlin-1", None, ("berlin-1", "paris-1")),
        ("*", "cpu-32gb", ("berlin-1", "paris-1")),
    ],
)
def test_limit_means_names_and_globs_in_the_inventorys_order(catalog, limit, plan, names):
    assert choose_hosts(catalog, limit, plan) == names


def test_a_limit_that_means_nobody_is_an_error_and_a_misspelt_name_is_told_the_nearest(catalog):
    with pytest.raises(UsageError, match="means no host"):
        choose_hosts(catalog, "tokyo-*", None)
    with pytest.raises((UsageError, CatalogError)) as caught:
        choose_hosts(catalog, "berlin-3", None)
    assert "berlin-" in f"{caught.value.message} {caught.value.hint}"


def test_hosts_are_worked_on_at_the_same_time_and_answer_in_order():
    together = threading.Barrier(3, timeout=20)

    def work(host, emit):
        together.wait()  # passes only when all three are here
        return host.upper()

    outcomes = across(["a", "b", "c"], work, lambda event: None, at_once=3)
    assert [outcome.result for outcome in outcomes] == ["A", "B", "C"]
    assert worst(outcomes) == 0


def test_one_failure_stops_no_other_and_the_worst_decides_the_code():
    def work(host, emit):
        if host == "gone":
            raise HostUnreachable("no SSH at gone")
        if host == "broken":
            raise ProvisionError("it broke")
        if host == "bug":
            raise ZeroDivisionError("x")
        return host

    events = []
    outcomes = across(["fine", "gone", "broken"], work, events.append)
    assert [(outcome.result, outcome.exit_code) for outcome in outcomes] == [("fine", 0), (None, 3), (None, 4)]
    assert worst(outcomes) == 4
    ended = {event.host: (event.outcome, event.detail) for event in events if isinstance(event, HostEnded)}
    assert ended == {"fine": ("done", ""), "gone": ("failed", "no SSH at gone"), "broken": ("failed", "it broke")}
    (bug,) = across(["bug"], work, lambda event: None)
    assert bug.exit_code == DeployctlError.exit_code


def test_the_steps_of_each_host_become_lines_with_its_name():
    def work(host, emit):
        with step(emit, "provision", "Provisioning") as current:
            current.progress("pulling m", 5, 10, "bytes")
            emit(Warned("look out"))

    events = []
    across(["a"], work, events.append)
    assert HostMoved("a", "Provisioning") in events
    assert HostMoved("a", "Provisioning: pulling m", 5, 10, "bytes") in events
    assert Warned("a: look out") in events


def test_an_interrupt_reaches_every_host_and_begins_no_other(monkeypatch):
    from deployctl.jobs import fleet

    begun = threading.Event()

    def work(host, emit):
        begun.set()
        with step(emit, "provision", "Provisioning") as current:
            for _ in range(1000):
                current.progress("working")
                threading.Event().wait(0.01)
        return host

    waited = fleet.wait

    def interrupted(pending, timeout):
        begun.wait(20)
        monkeypatch.setattr(fleet, "wait", waited)
        raise KeyboardInterrupt  # what Ctrl-C does to the main thread, wherever it is

    monkeypatch.setattr(fleet, "wait", interrupted)
    outcomes = across(["a", "b"], work, lambda event: None, at_once=1)
    assert [outcome.exit_code for outcome in outcomes] == [7, 7]
    assert outcomes[1].error.message == "cancelled before it was begun"
