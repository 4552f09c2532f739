"""No client outlives its test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from client_runs import end_started


@pytest.fixture(autouse=True)
def _no_client_left() -> Iterator[None]:
    yield
    end_started()
