"""No client outlives its test; the movers that most of them need."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from blockbuster import blockbuster_ctx

from chain import MoverProcess, running_mover
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


@pytest.fixture
def mover(tmp_path: Path) -> Iterator[MoverProcess]:
    """A real mover from ``scratch`` to ``dst``."""
    (tmp_path / "scratch").mkdir(mode=0o700)
    with running_mover(tmp_path / "scratch", tmp_path / "dst", tmp_path) as running:
        yield running


@pytest.fixture
def movers(tmp_path: Path) -> Iterator[list[MoverProcess]]:
    """Two real movers from a scratch each, ``one`` and ``two``, to the same ``dst``."""
    with contextlib.ExitStack() as stack:
        found: list[MoverProcess] = []
        for name in ("one", "two"):
            (tmp_path / name).mkdir(mode=0o700)
            (tmp_path / f"log-{name}").mkdir()
            mover = running_mover(tmp_path / name, tmp_path / "dst", tmp_path / f"log-{name}")
            found.append(stack.enter_context(mover))
        yield found
