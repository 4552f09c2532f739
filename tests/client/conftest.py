"""No client outlives its test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from blockbuster import blockbuster_ctx

from client_runs import end_started


@pytest.fixture(autouse=True)
def _no_client_left() -> Iterator[None]:
    yield
    end_started()


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(autouse=True)
def _nothing_blocks_the_loop() -> Iterator[None]:
    """File and lock calls inside the event loop are errors; they belong into threads."""
    with blockbuster_ctx("hs_client"):
        yield
