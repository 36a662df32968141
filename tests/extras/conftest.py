"""Optional packages: examples as they say, and their results beside DDP's."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "multiproc"))
