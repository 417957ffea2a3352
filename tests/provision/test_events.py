"""Ansible's events, as ansible-runner hands them over, in people's words."""

import pytest

from deployctl.provision import events


def test_a_modules_message_is_taken_as_it_is_and_on_one_line():
    assert events.words({"msg": "No package matching 'zstd'\n is available", "rc": 100}) == (
        "No package matching 'zstd' is available"
    )


@pytest.mark.parametrize(
    "message", ["non-zero return code", "MODULE FAILURE\nSee stdout/stderr for the exact error", ""]
)
def test_a_message_that_says_nothing_is_filled_from_what_was_written(message):
    result = {"msg": message, "stderr": "noise\nE: Could not get lock\nE: try again\n", "stdout": "never mind"}
    assert "E: Could not get lock E: try again" in events.words(result)


def test_of_a_loop_the_failed_items_message_is_told():
    result = {"msg": "One or more items failed", "results": [{"msg": "fine"}, {"failed": True, "msg": "disk full"}]}
    assert events.words(result) == "disk full"


def test_a_failure_without_any_words_still_says_that_it_failed():
    assert events.words({}) == "it failed without a message"


def test_a_wall_of_text_is_cut():
    assert events.words({"msg": "x" * 5000}) == "x" * 599 + "…"


def test_the_roles_name_is_left_out_of_a_tasks_title():
    assert events.title({"task": "Install the archive", "role": "ollama"}) == "Install the archive"
    assert events.title({"task": "ollama : Install the archive", "role": "ollama"}) == "Install the archive"


def test_progress_is_read_from_the_line_that_the_plugins_print():
    found = events.progress_in("\x1b[0;32m[progress] pulling gemma3:270m: 1048576/253113192 bytes\x1b[0m")
    assert found == events.Progress("pulling gemma3:270m", 1048576.0, 253113192.0, "bytes")
    assert events.progress_in("TASK [model : Make the model available]") is None


def test_a_diff_shows_each_changed_line_once_with_its_file():
    diff = [
        {
            "before_header": "/etc/x",
            "after_header": "/etc/x",
            "before": "a=1\nb=2\n",
            "after": "a=1\nb=3\n",
        },
        {"prepared": "--- 1\n+++ 2\n"},
        {"before": {"path": "/m", "state": "absent"}, "after": {"path": "/m", "state": "directory"}},
    ]
    assert events.render_diff(diff).splitlines() == [
        "/etc/x",
        "- b=2",
        "+ b=3",
        "--- 1",
        "+++ 2",
        "- state: absent",
        "+ state: directory",
    ]
    assert events.render_diff(None) == ""


def test_the_complaint_of_a_run_that_never_began_is_its_last_error():
    log = "[WARNING]: nothing\nERROR! the playbook: x.yml could not be found\n"
    assert events.complaint(log) == "ERROR! the playbook: x.yml could not be found"
    assert events.complaint("") == "ansible-playbook said nothing"
