"""What an engine has used of the network so far."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Seconds in which a link was in use, and the payload sent at each priority."""

    busy: float = 0.0
    sent: Mapping[int, int] = field(default_factory=dict)  # priority -> bytes

    def __add__(self, other: Usage) -> Usage:
        return Usage(busy=self.busy + other.busy, sent=dict(Counter(self.sent) + Counter(other.sent)))
