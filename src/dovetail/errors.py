"""Every error a user can meet; each message says who, where, with what value, and what next."""

from __future__ import annotations


class DovetailError(Exception):
    """Base of all errors that dovetail raises on purpose; the CLI prints it as one line."""


class BadInput(DovetailError, ValueError):
    """A value the user gave cannot be used."""


class PeerLost(DovetailError, ConnectionError, RuntimeError):
    """A rank or a hub died, fell silent, or left in the middle of a job; torch's backends raise a RuntimeError then."""

    def __init__(self, message: str, *, peer: int = -1, address: str = "", step: int = -1) -> None:
        super().__init__(message)
        self.peer = peer
        self.address = address
        self.step = step


class TimedOut(DovetailError, RuntimeError):
    """All ranks answer, but what was waited for did not come within the time that the user gave."""


class Unreachable(DovetailError, ConnectionError):
    """Nothing answered at an address, or the answer was not dovetail's."""


class Refused(DovetailError, PermissionError):
    """The other side answered and said no: wrong secret, unknown job, a name already taken."""


class Mismatch(DovetailError, ValueError):
    """Ranks do not agree on the model, the plan or the settings."""


class Misuse(DovetailError, RuntimeError):
    """A call that would give a wrong result if it were let through."""


def in_a_line(error: BaseException) -> str:
    """Its kind and the first line of what it says."""
    said = str(error).strip().splitlines()
    return f"{type(error).__name__}: {said[0]}" if said else type(error).__name__
