"""Other SGLang versions than that in .venv, through tools/sglang.sh; a test is skipped where they cannot be had."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

__all__ = ["sglang_folder", "sglang_wheel"]

TOOL = Path(__file__).resolve().parents[2] / "tools" / "sglang.sh"
_UNREACHABLE = 3


def sglang_wheel(version: str) -> Path:
    """The wheel of `version`, fetched where it is missing."""
    return _ask("--wheel", version)


def sglang_folder(version: str) -> Path:
    """A folder for PYTHONPATH that holds `version`, unpacked."""
    return _ask(version)


def _ask(*arguments: str) -> Path:
    done = subprocess.run(
        ["bash", str(TOOL), *arguments], capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
    )
    if done.returncode == _UNREACHABLE:
        pytest.skip(f"NOT TESTED: {done.stderr.strip().splitlines()[-1]}")
    assert done.returncode == 0, done.stderr
    return Path(done.stdout.strip())
