"""What pytest finds in test files, so that a page which names a test can be held to it."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parents[1]
TEST = re.compile(r"^(?P<file>[^:\s]+\.py)::(?:\w+::)*(?P<test>\w+)(?:\[(?P<case>.+)\])?$")


def collected(files: Iterable[Path]) -> dict[Path, frozenset[str]]:
    """The names of the tests of each file, and of the cases that they are run with; optional packages' included."""
    wanted = [str(path.relative_to(ROOT)) for path in files]
    command = [sys.executable, "-m", "pytest", "--collect-only", "-p", "no:cacheprovider", "-m", "", *wanted]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found: defaultdict[Path, set[str]] = defaultdict(set)
    for match in map(TEST.match, done.stdout.splitlines()):
        if match:
            found[ROOT / match["file"]].update(name for name in (match["test"], match["case"]) if name)
    return {path: frozenset(names) for path, names in found.items()}
