import subprocess
import sys
from pathlib import Path


def test_the_page_of_published_figures_is_current(root: Path) -> None:
    argv = [sys.executable, str(root / "benchmarks" / "published.py"), "--check"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
