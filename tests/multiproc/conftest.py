"""Tests marked `lab` are skipped, with the reason, where network namespaces are not allowed."""

from __future__ import annotations

import pytest

from dovetail.lab import available


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    marked = [item for item in items if item.get_closest_marker("lab")]
    if marked and not available()[0]:
        for item in marked:
            item.add_marker(pytest.mark.skip(reason=available()[1]))
