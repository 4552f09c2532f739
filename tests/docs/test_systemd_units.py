"""The unit files of docs/systemd: systemd takes them, and what they start exists and has these options."""

from __future__ import annotations

import configparser
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

UNITS = sorted((Path(__file__).resolve().parents[2] / "docs" / "systemd").glob("*.service"))
COMMANDS = {
    "hs-server": ("hs_server.cli", "launch"),
    "hs-mover": ("hs_mover.cli", ""),
    "hs-client": ("hs_client.cli", "run"),
}


def section(unit: Path, name: str) -> configparser.SectionProxy:
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(unit)
    return parser[name]


def command(unit: Path) -> list[str]:
    return section(unit, "Service")["ExecStart"].split()


def test_there_is_one_for_each_command() -> None:
    assert {Path(command(unit)[0]).name for unit in UNITS} == COMMANDS.keys()


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_it_starts_what_there_is(unit: Path) -> None:
    program, *words = command(unit)
    module, sub = COMMANDS[Path(program).name]
    assert not sub or words.pop(0) == sub
    ours = words[: words.index("--")] if "--" in words else words
    argv = [Path(program).name, *([sub] if sub else []), "--help"]
    code = f"import sys; sys.argv = {argv!r}; from {module} import main; main()"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert [word for word in ours if word.startswith("--") and not re.search(rf"{word}\b", told.stdout)] == []
    assert any(word.startswith("--") for word in ours)


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_what_a_restart_would_meet_again_is_not_tried_again(unit: Path) -> None:
    service = section(unit, "Service")
    assert service["Restart"] == "on-failure"
    assert {"2", "3"} <= {*service["RestartPreventExitStatus"].split()}
    assert int(service["TimeoutStopSec"]) >= 60
    assert service["PrivateIPC"] == "no"


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_who_says_that_it_is_ready_is_waited_for(unit: Path) -> None:
    service = section(unit, "Service")
    speaks = Path(command(unit)[0]).name in {"hs-server", "hs-mover"}
    assert service["Type"] == ("notify" if speaks else "exec")
    assert service.get("NotifyAccess") == ("main" if speaks else None)
    if "WatchdogSec" in service:
        assert int(service["WatchdogSec"]) > 5


def test_systemd_takes_them(tmp_path: Path) -> None:
    tool = shutil.which("systemd-analyze")
    if tool is None:
        pytest.skip("no systemd-analyze: apt-get install systemd")
    copies: list[Path] = []
    for unit in UNITS:
        # Programs and users are looked up, and are not here.
        text = re.sub(r"^ExecStart=\S+", "ExecStart=/bin/true", unit.read_text(), flags=re.MULTILINE)
        copies.append(tmp_path / unit.name.replace("@.", "@chats."))
        copies[-1].write_text(re.sub(r"^User=.*", "User=root", text, flags=re.MULTILINE))
    done = subprocess.run([tool, "verify", *map(str, copies)], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


def test_negative_control(tmp_path: Path) -> None:
    tool = shutil.which("systemd-analyze")
    if tool is None:
        pytest.skip("no systemd-analyze: apt-get install systemd")
    bad = tmp_path / "bad.service"
    bad.write_text("[Service]\nType=notify\nExecStart=/bin/true\nRestartPreventExit=2\n")
    done = subprocess.run([tool, "verify", str(bad)], capture_output=True, text=True, timeout=60)
    assert "RestartPreventExit" in done.stderr
