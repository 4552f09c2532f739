"""The command line: exit codes, one clear line for each mistake, status, help."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hs_formats.control import ControlFolder
from movers import MOVER, mover_process, state_of, wait_for
from parts import drop_part, register

RUN = "00c0ffee"
HELP_FILE = Path(__file__).parents[2] / "docs" / "cli_help" / "hs-mover.txt"


def run(*arguments: object, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*MOVER, *map(str, arguments)], capture_output=True, text=True, timeout=60, env=env)


def one_line(result: subprocess.CompletedProcess[str]) -> str:
    errors = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1
    assert "Traceback" not in result.stderr
    return errors[0]


def test_wrong_use_is_2(tmp_path: Path) -> None:
    for arguments, word in (
        ((), "--src and --dst must be given"),
        (("--src", tmp_path), "--dst"),
        (("--src", tmp_path, "--dst", tmp_path / "d", "--reserve", "lots"), "'lots' is not a size"),
        (("--src", tmp_path, "--dst", tmp_path / "d", "--codec", "gzip"), "'gzip' is not one of"),
        (("--src", tmp_path, "--dst", tmp_path / "d", "--low", "0.9"), "--low 0.9"),
        (("--src", tmp_path, "--dst", tmp_path / "d", "--limit-rate", "0"), "--limit-rate 0"),
        (("--src", "s3://bucket/scratch", "--dst", tmp_path / "d"), "an object store goes to --dst"),
        (("status", "--src", "s3://b/scratch"), "an object store goes to --dst"),
        (("--src", tmp_path, "--dst", "s3:/bucket/data"), "'s3:/bucket/data' is not like s3://bucket/prefix"),
        (("--unknown",), "--unknown"),
        (("--src", tmp_path, "--dst", tmp_path / ("x" * 300)), "File name too long"),
    ):
        result = run(*arguments)
        assert result.returncode == 2
        assert word in one_line(result)


def test_folders_that_cannot_be_are_3(tmp_path: Path) -> None:
    src = tmp_path / "src"
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere").mkdir()
    for arguments, word in (
        (("--src", src, "--dst", src), "outside of scratch"),
        (("--src", src, "--dst", src / "data"), "outside of scratch"),
        (("--src", src, "--src", src, "--dst", tmp_path / "d"), "give each scratch once"),
        (("--src", src, "--src", src / "x", "--dst", tmp_path / "d"), "give each scratch once"),
        (("--src", src, "--dst", "/proc/nowhere"), "--dst"),
        (("--src", tmp_path / "link", "--dst", tmp_path / "d"), "is a link"),
        (("--src", tmp_path / ("x" * 300), "--dst", tmp_path / "d"), "File name too long"),
    ):
        result = run(*arguments, "--once")
        assert result.returncode == 3, result.stderr
        assert word in one_line(result)


def test_a_second_mover_is_refused_and_the_first_named(tmp_path: Path) -> None:
    src, dst = tmp_path / "src", tmp_path / "dst"
    with mover_process(src, dst) as first:
        wait_for(lambda: state_of(src) is not None)
        result = run("--src", src, "--dst", tmp_path / "other")
        assert result.returncode == 3
        assert f"pid {first.pid}" in one_line(result)


def test_status(tmp_path: Path) -> None:
    src, dst = tmp_path / "src", tmp_path / "dst"
    result = run("status", "--src", src)
    assert result.returncode == 5
    assert "none has run here" in one_line(result)
    register(src, RUN, "set")
    drop_part(src, "hs-deadbeef-00000001-00", 0, 4, 4)
    with mover_process(src, dst):
        wait_for((dst / "unclaimed" / "deadbeef").exists)
        result = run("status", "--src", src)
        assert result.returncode == 0
        assert str(dst) in result.stdout
        assert "state     moving" in result.stdout
        assert "deadbeef" in result.stdout
        state = json.loads(run("status", "--json", "--src", src).stdout)
        assert state["alive"] is True
        assert state["dst"] == str(dst)
        assert state["unclaimed"] == ["deadbeef"]
    result = run("status", "--src", src)
    assert result.returncode == 5
    assert "it was stopped" in one_line(result)


def test_killed_mover_is_silent_after_five_seconds(tmp_path: Path) -> None:
    src = tmp_path / "src"
    with mover_process(src, tmp_path / "dst") as process:
        wait_for(lambda: state_of(src) is not None)
        process.kill()
        process.wait()
    assert run("status", "--src", src).returncode == 0
    time.sleep(5.2)
    result = run("status", "--src", src)
    assert result.returncode == 5
    assert "silent for" in one_line(result)


def modules_after(code: str) -> set[str]:
    script = f"import sys; sys.argv = ['hs-mover', '--help']\n{code}\nprint(*sys.modules, file=sys.stderr)"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(result.stderr.split())


def test_help_imports_nothing_heavy_and_the_daemon_neither_torch_nor_sglang() -> None:
    code = "from hs_mover.cli import main\ntry:\n    main()\nexcept SystemExit:\n    pass"
    assert not modules_after(code) & {"numpy", "watchdog", "msgspec", "torch", "sglang", "hs_mover.daemon"}
    daemon = modules_after("import hs_mover.daemon, hs_mover.status")
    assert "watchdog" in daemon
    assert not daemon & {"torch", "sglang", "transformers", "httpx", "anyio"}


def test_help_is_the_one_in_the_docs() -> None:
    from click.testing import CliRunner

    from hs_mover.cli import _cli

    shown = ""
    for arguments in (["--help"], ["status", "--help"]):
        result = CliRunner().invoke(_cli, arguments, prog_name="hs-mover", terminal_width=100)
        assert result.exit_code == 0
        shown += f"$ hs-mover {' '.join(arguments)}\n{result.output}\n"
    if os.environ.get("HS_UPDATE_HELP") == "1":
        HELP_FILE.write_text(shown)
    assert shown == HELP_FILE.read_text(), "run this test with HS_UPDATE_HELP=1 and look at the difference"


@pytest.mark.parametrize("form", ["text", "json"])
def test_log_lines(tmp_path: Path, form: str) -> None:
    src, dst = tmp_path / "src", tmp_path / "dst"
    ControlFolder(src).create()
    (src / "foreign").write_bytes(b"")
    result = run("--src", src, "--dst", dst, "--once", "--log-format", form)
    assert result.returncode == 0
    lines = result.stderr.splitlines()
    if form == "json":
        assert all({"at", "level", "message"} <= json.loads(line).keys() for line in lines)
    assert any("foreign" in line for line in lines)


def test_options_come_from_the_environment_too(tmp_path: Path) -> None:
    env = {"HS_MOVER_SRC": str(tmp_path / "src"), "HS_MOVER_DST": str(tmp_path / "dst"), "HS_MOVER_ONCE": "1"}
    assert run(env=env).returncode == 0
    assert (tmp_path / "dst").is_dir()
