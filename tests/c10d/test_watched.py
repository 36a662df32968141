"""A collective of torch's own backend, watched in slices of time: what is only late must not look like a failure."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import Any

import pytest

from dovetail.c10d.works import WatchedTransfer, WatchedWork
from dovetail.errors import DovetailError, PeerLost


class Ending:
    """Ends in the moment in which the first slice of time has run out; with the error, if there is one."""

    def __init__(self, error: str = "") -> None:
        self.waits = 0
        self.error = error

    def wait(self, timeout: timedelta) -> bool:
        self.waits += 1
        if self.waits == 1:
            raise RuntimeError("Operation timed out!")
        if self.error:
            raise RuntimeError(self.error)
        return True

    def is_completed(self) -> bool:
        return self.waits > 0


class Endless(Ending):
    def wait(self, timeout: timedelta) -> bool:
        raise RuntimeError("Operation timed out!")


def watched(inner: Any, lost: DovetailError | None = None) -> WatchedWork:
    return WatchedWork(inner, lambda within: lost)


@pytest.mark.parametrize("limit", [timedelta(0), timedelta(minutes=1), timedelta(microseconds=1)])
def test_what_ends_as_a_slice_runs_out_has_succeeded(limit: timedelta) -> None:
    assert watched(Ending()).wait(limit) is True


def test_an_error_of_its_own_is_told() -> None:
    with pytest.raises(RuntimeError, match="broken"):
        watched(Ending("broken")).wait()


def test_the_callers_limit_holds() -> None:
    with pytest.raises(RuntimeError, match="timed out"):
        watched(Endless()).wait(timedelta(milliseconds=1))


def test_a_lost_peer_is_named() -> None:
    lost = PeerLost("rank 1 at here: silent", peer=1, address="here", step=0)
    with pytest.raises(PeerLost, match="rank 1"):
        watched(Endless(), lost).wait()


class Transfer:
    """Waited for once, as Gloo's: it ends when the test says so, or when somebody waits for a millisecond."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.waits = 0
        self.error = error
        self.ended = threading.Event()

    def wait(self, timeout: timedelta) -> bool:
        self.waits += 1
        if timeout == timedelta(milliseconds=1):
            self.error = RuntimeError("Application timeout caused pair closure")
            self.ended.set()
        assert self.ended.wait(10)
        if self.error is not None:
            raise self.error
        return True


def test_a_transfer_is_asked_once_and_every_wait_gets_its_answer() -> None:
    inner = Transfer()
    work = WatchedTransfer(inner, lambda within: None)  # type: ignore[arg-type]
    threading.Timer(0.6, inner.ended.set).start()
    assert work.wait() is True
    assert work.wait(timedelta(seconds=1)) is True
    assert inner.waits == 1


@pytest.mark.parametrize("error", [RuntimeError("broken"), TypeError("no timedelta"), NotImplementedError("not here")])
def test_whatever_a_transfer_raises_reaches_the_caller(error: BaseException) -> None:
    inner = Transfer(error)
    inner.ended.set()
    work = WatchedTransfer(inner, lambda within: None)  # type: ignore[arg-type]
    for _ in range(2):
        with pytest.raises(type(error), match=str(error)):
            work.wait()


def test_no_thread_stays_behind_when_a_transfers_peer_is_lost() -> None:
    lost = PeerLost("rank 1 at here: silent", peer=1, address="here", step=0)
    work = WatchedTransfer(Transfer(), lambda within: lost)  # type: ignore[arg-type]
    with pytest.raises(PeerLost, match="rank 1"):
        work.wait()
    assert not [t for t in threading.enumerate() if t.name == "dovetail transfer"]
