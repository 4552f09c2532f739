"""One S3 server for the tests of a process, each with a prefix of its own, and no cache of the user's."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from object_servers import MotoServer, moto_server


@pytest.fixture(scope="session")
def s3() -> Iterator[MotoServer]:
    with moto_server() as server:
        yield server


@pytest.fixture
def prefix(request: pytest.FixtureRequest) -> str:
    """A prefix of the bucket that no other test uses."""
    return re.sub(r"[^a-z0-9]+", "-", request.node.name.lower()).strip("-")


@pytest.fixture
def reachable(s3: MotoServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> MotoServer:
    """The server, with this process's environment set for it."""
    for name, value in s3.environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("HS_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("HS_STORE_RETRY_S", "5")
    return s3
