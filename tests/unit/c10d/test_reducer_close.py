"""A process that ends without destroy_process_group does not wait long for ranks that never came."""

from __future__ import annotations

import threading
import time

from dovetail.c10d.reducer import PATIENCE, Reducer
from dovetail.engine.session import Session
from dovetail.errors import DovetailError


def test_closing_is_bounded_while_the_engine_is_still_being_opened() -> None:
    gone = threading.Event()

    def opening() -> Session:
        gone.wait(60)
        raise DovetailError("nobody came")

    reducer = Reducer(opening, name="test")
    begun = time.monotonic()
    reducer.close()
    first = time.monotonic()
    reducer.close()  # as at the end of a process, where the group and the reducer both ask for it
    assert first - begun < PATIENCE + 2
    assert time.monotonic() - first < 1
    gone.set()
