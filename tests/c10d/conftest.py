"""Ranks come from the harness of tests/multiproc."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "multiproc"))
