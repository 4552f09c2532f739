"""The help texts are what the documentation shows."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from chain import command

HELP_FILE = Path(__file__).parents[2] / "docs" / "cli_help" / "hs-client.txt"
NAMES = ("run", "status", "info", "report", "prune", "export", "verify", "split", "merge")
COMMANDS = ((), *((name,) for name in NAMES))


def test_help_is_as_documented() -> None:
    shown = ""
    for words in COMMANDS:
        line = " ".join(["hs-client", *words, "--help"])
        environment = {**os.environ, "COLUMNS": "110", "LC_ALL": "C.UTF-8"}
        done = subprocess.run(
            [command("hs-client"), *words, "--help"], capture_output=True, text=True, env=environment, check=True
        )
        shown += f"$ {line}\n{done.stdout}\n"
    if os.environ.get("HS_UPDATE_HELP"):
        HELP_FILE.write_text(shown)
    assert shown == HELP_FILE.read_text(), "set HS_UPDATE_HELP=1 to write the new text"


@pytest.mark.parametrize("heavy", ["httpx", "anyio", "numpy", "torch", "transformers", "tqdm", "msgspec", "xxhash"])
def test_help_imports_nothing_heavy(heavy: str) -> None:
    code = f"import sys, hs_client.cli; sys.exit({heavy!r} in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_wrong_use_is_one_line_without_a_traceback(tmp_path: Path) -> None:
    for words in (["run"], ["nonsense"], ["run", "x.jsonl", "--concurrency", "many"], ["info"], ["run", str(tmp_path)]):
        done = subprocess.run([command("hs-client"), *words], capture_output=True, text=True, check=False)
        assert done.returncode == 2, done.stderr
        assert "Traceback" not in done.stderr
    too_long = ["status", "--scratch", str(tmp_path / ("x" * 300))]
    for words in (["info", str(tmp_path)], ["prune", str(tmp_path)], ["status", "--scratch", str(tmp_path)], too_long):
        done = subprocess.run([command("hs-client"), *words], capture_output=True, text=True, check=False)
        assert done.returncode == 3, done.stderr
        assert len(done.stderr.splitlines()) == 1
