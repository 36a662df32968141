"""What travels of a sparsified gradient and what stays behind."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from dovetail.engine.sparse import KEPT, _pack

FLOATS = st.floats(-1e6, 1e6, width=32)


@given(st.data(), st.integers(1, 40))
def test_what_travels_and_what_stays_is_all_there_was_and_the_largest_travel(data: st.DataObject, count: int) -> None:
    gradient = data.draw(arrays.arrays(np.float32, count, elements=FLOATS))
    residual = data.draw(arrays.arrays(np.float32, count, elements=FLOATS))
    row = np.zeros(data.draw(st.integers(1, count)), dtype=KEPT)
    total = gradient + residual
    _pack(row, residual, gradient)
    assert len(set(row["place"].tolist())) == len(row)
    assert (row["value"] == total[row["place"]]).all()
    stays = np.delete(total, row["place"])
    assert (residual[row["place"]] == 0).all()
    assert (np.delete(residual, row["place"]) == stays).all()
    assert np.abs(stays).max(initial=0.0) <= np.abs(row["value"]).min()


def test_an_overflow_is_heard_of_once_and_not_kept() -> None:
    residual = np.array([1.0, 2.0, 3.0, 4.0], dtype=np.float32)
    row = np.zeros(1, dtype=KEPT)
    _pack(row, residual, np.full(4, np.nan, dtype=np.float32))
    assert np.isnan(row["value"]).all(), "the others must learn of it to skip the step, too"
    assert residual.tolist() == [1.0, 2.0, 3.0, 4.0]
    _pack(row, residual, np.zeros(4, dtype=np.float32))
    assert (row["place"][0], row["value"][0]) == (3, 4.0)
