"""A run sees to it that its server has passed the doctor."""

from __future__ import annotations

from pathlib import Path

import pytest

from canary_server import NONCE, CanaryServer, canary_serving
from hs_client.doctor_check import ensure_examined
from hs_client.preflight import ServerFacts
from hs_formats.control import ControlFolder
from hs_formats.doctor_pass import has_passed
from hs_formats.errors import PreflightError, ServerLost


@pytest.fixture(autouse=True)
def no_launches_of_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HS_STATE_DIR", str(tmp_path / "state"))


def ensure(server: CanaryServer, *, skip: bool = False) -> list[str]:
    said: list[str] = []
    facts = ServerFacts(server.url, server.port, server.marker(0), server.ranks, "tokenizer")
    ensure_examined(facts, ControlFolder(server.scratch), skip=skip, say=said.append)
    return said


def test_a_server_without_a_pass_is_examined_once(tmp_path: Path) -> None:
    with canary_serving(tmp_path / "scratch") as server:
        first, passed = ensure(server)
        assert first == "doctor     no pass of this server is on record: examining it"
        assert passed.startswith("doctor    passed: 12 requests")
        assert has_passed(ControlFolder(server.scratch), port=server.port, nonce=NONCE)
        assert ensure(server) == []
        assert ensure(server, skip=True) == []
        assert len(server.requests) == 12


def test_what_the_doctor_finds_ends_the_run_with_its_words(tmp_path: Path) -> None:
    with canary_serving(tmp_path / "scratch") as server:
        server.info = {"disable_radix_cache": False}
        with pytest.raises(PreflightError, match="disable_radix_cache=False: with the radix cache on") as refused:
            ensure(server)
    assert str(refused.value).startswith(f"the doctor does not pass the server at {server.url}: one thing is wrong\n")
    assert "error:" not in str(refused.value)


def test_a_server_that_is_gone_meanwhile(tmp_path: Path) -> None:
    with canary_serving(tmp_path / "scratch") as server:
        server.info_status = 503
        with pytest.raises(ServerLost, match="no server answers"):
            ensure(server)


def test_a_run_without_the_doctor_says_so_loudly(tmp_path: Path) -> None:
    with canary_serving(tmp_path / "scratch") as server:
        (line,) = ensure(server, skip=True)
    assert "NOT RUN (--no-doctor)" in line
    assert server.requests == []
