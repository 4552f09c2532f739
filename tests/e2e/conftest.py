"""Servers shared between the end-to-end tests: a start costs half a minute on two cores."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from chain import Server, ServerFactory, launch_server
from checker import Reference
from hs_server import env
from small_tmpfs import small_tmpfs
from tiny_models import tiny_model


@pytest.fixture(scope="session")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerFactory]:
    """`servers(model, *options, sglang=...)`: a server of these settings on its own tmpfs, started once a session."""
    with contextlib.ExitStack() as stack:
        running: dict[object, Server] = {}

        def get(model: str, *options: str, sglang: tuple[str, ...] = ("--chunked-prefill-size", "16")) -> Server:
            key = (model, options, sglang)
            if key not in running:
                work = tmp_path_factory.mktemp("server")
                scratch = stack.enter_context(small_tmpfs(work / "scratch", options="size=256m,mode=0700"))
                server, _ = launch_server(tiny_model(model), scratch, work, options=options, sglang=sglang)
                assert "every boundary seen entering its layer" in server.output
                running[key] = server
            return running[key]

        yield get
        # At once: each takes some seconds, of which most are waiting.
        with ThreadPoolExecutor() as pool:
            list(pool.map(Server.stop, running.values()))


@pytest.fixture(scope="session")
def dormant(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server without capture, although the variables of one are set, and one of NCCL's by the user."""
    work = tmp_path_factory.mktemp("dormant")
    scratch = work / "scratch"
    scratch.mkdir(mode=0o700)
    environment = {"NCCL_PROTO": "Simple", env.DUMP_DIR: str(scratch)}
    server, _ = launch_server(
        tiny_model("tiny-llama"), scratch, work, options=["--no-capture"], environment=environment
    )
    yield server
    assert server.stop().returncode == 0
    assert not server.healthy()


@pytest.fixture(scope="session")
def references() -> Callable[..., Reference]:
    """`references(model, boundaries)`: what transformers computes, each model loaded once."""
    loaded: dict[object, Reference] = {}

    def get(model: str, boundaries: tuple[int, ...]) -> Reference:
        key = (model, boundaries)
        if key not in loaded:
            loaded[key] = Reference(tiny_model(model), boundaries)
        return loaded[key]

    return get


@pytest.fixture
def destination(tmp_path: Path) -> Path:
    """An empty destination folder."""
    folder = tmp_path / "dst"
    folder.mkdir()
    return folder
