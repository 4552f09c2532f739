"""Other SGLang versions than that in .venv, through tools/sglang.sh; a test is skipped where they cannot be had."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from chain import Server, launch_server
from hs_formats.control import ControlFolder
from small_tmpfs import small_tmpfs
from tiny_models import tiny_model

__all__ = ["BOUNDARIES", "running", "sglang_folder", "sglang_wheel"]

TOOL = Path(__file__).resolve().parents[2] / "tools" / "sglang.sh"
BOUNDARIES = (1, 4, 7)

_UNREACHABLE = 3
_EXTRA = {"tiny-kimi": ("--trust-remote-code",)}


def sglang_wheel(version: str) -> Path:
    """The wheel of `version`, fetched where it is missing."""
    return _ask("--wheel", version)


def sglang_folder(version: str) -> Path:
    """A folder for PYTHONPATH that holds `version`, unpacked."""
    return _ask(version)


@contextlib.contextmanager
def running(model: str, site: Path, work: Path, *, version: str, chunk_tokens: int, mode: str) -> Iterator[Server]:
    """A server of the SGLang in the folder `site` on a tmpfs of its own; its markers name `version` and `mode`."""
    with small_tmpfs(work / "scratch", options="size=64m,mode=0700") as scratch:
        server, _ = launch_server(
            tiny_model(model),
            scratch,
            work,
            options=["--boundaries", ",".join(map(str, BOUNDARIES)), "--capture-mode", mode],
            sglang=["--chunked-prefill-size", str(chunk_tokens), *_EXTRA.get(model, ())],
            environment={"PYTHONPATH": str(site), "HF_MODULES_CACHE": str(work / "modules")},
        )
        try:
            markers = ControlFolder(scratch).live_markers()
            assert {(marker.sglang_version, marker.capture_mode) for marker in markers} == {(version, mode)}
            yield server
        finally:
            server.stop()


def _ask(*arguments: str) -> Path:
    done = subprocess.run(
        ["bash", str(TOOL), *arguments], capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
    )
    if done.returncode == _UNREACHABLE:
        pytest.skip(f"NOT TESTED: {done.stderr.strip().splitlines()[-1]}")
    assert done.returncode == 0, done.stderr
    return Path(done.stdout.strip())
