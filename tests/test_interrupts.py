"""Ctrl-C where Python swallows an exception: it is not lost, and its traceback is on no screen."""

import subprocess
import sys

SCRIPT = """
import os, signal
from deployctl import interrupts

class Finaliser:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGINT)
        for _ in range(1000):
            pass

interrupts.install()
Finaliser()
try:
    interrupts.check()
except KeyboardInterrupt:
    print("heard")
class Broken:
    def __del__(self):
        raise ValueError("said")
Broken()
"""


def test_an_interrupt_in_a_finaliser_is_heard_later_and_shown_by_no_traceback() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True)
    assert done.stdout == "heard\n"
    assert "KeyboardInterrupt" not in done.stderr
    assert "ValueError: said" in done.stderr
