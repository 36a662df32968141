"""One reduction through the line: who waits before the engine has it, who fails, and what comes after the end."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
import torch

from dovetail.c10d.reducer import Reducer
from dovetail.c10d.works import PIECE, Call
from dovetail.errors import Misuse, PeerLost


class Arrived:
    """A piece whose result is in place."""

    def wait(self, timeout: float | None = None) -> bool:
        return True

    def done(self) -> bool:
        return True


def given_later(call: Call, finish: Any) -> list[Any]:
    """What two threads got that waited for the call before `finish` was done with it."""
    got: list[Any] = []

    def wait() -> None:
        try:
            got.append(call.wait(10))
        except PeerLost as error:
            got.append(error)

    threads = [threading.Thread(target=wait) for _ in range(2)]
    for thread in threads:
        thread.start()
    end = time.monotonic() + 10
    while call._waiter is None and time.monotonic() < end:
        time.sleep(0.001)
    finish()
    for thread in threads:
        thread.join(10)
    return got


@pytest.mark.parametrize("count", [0, 8, PIECE // 4 + 1])
def test_who_waits_before_the_engine_has_all_pieces_gets_the_result(count: int) -> None:
    call = Call([torch.zeros(count)], 1)

    def give() -> None:
        for _ in call.pieces:
            assert call.last is None
            call.give(Arrived())  # type: ignore[arg-type]

    assert given_later(call, give) == [True, True]
    assert call.done()


def test_who_waits_for_a_call_that_the_engine_never_gets_hears_why() -> None:
    call = Call([torch.zeros(8)], 1)
    lost = PeerLost("rank 1 is gone")
    assert given_later(call, lambda: call.finish(lost)) == [lost, lost]


def test_a_wait_ends_in_time_without_a_result() -> None:
    assert Call([torch.zeros(8)], 1).wait(0.05) is False


def test_a_call_after_the_end_fails_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dovetail.c10d.reducer.PATIENCE", 0.05)
    enough = threading.Event()

    def meets_nobody() -> Any:
        enough.wait(10)
        raise PeerLost("nobody came")

    reducer = Reducer(meets_nobody, name="test")
    reducer.close()
    call = Call([torch.zeros(8)], 1)
    reducer.submit(call)
    try:
        with pytest.raises(Misuse, match="destroyed"):
            call.wait(5)
    finally:
        enough.set()
