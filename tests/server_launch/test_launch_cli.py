from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hs_formats.errors import PreflightError, ServerLost, UsageError
from hs_server import cli
from hs_server.errors import LaunchInterrupted

HELP_FILE = Path(__file__).parents[2] / "docs" / "cli_help" / "hs-server.txt"


def help_text(capsys: pytest.CaptureFixture[str]) -> str:
    pages = []
    for command in ((), ("launch",), ("status",), ("stop",), ("patch",)):
        with pytest.raises(SystemExit) as ended:
            cli.main([*command, "--help"])
        assert ended.value.code == 0
        pages.append(f"$ {' '.join(('hs-server', *command))} --help\n{capsys.readouterr().out}")
    return "\n".join(pages)


@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="argparse lays help out differently elsewhere")
def test_help_is_as_documented(capsys: pytest.CaptureFixture[str]) -> None:
    text = help_text(capsys)
    if os.environ.get("HS_UPDATE_HELP") == "1":
        HELP_FILE.write_text(text)
    assert HELP_FILE.read_text() == text, "help changed: run the tests once with HS_UPDATE_HELP=1 and read the diff"


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys, hs_server.cli as cli\n"
        "try: cli.main(['launch', '--help'])\n"
        "except SystemExit: pass\n"
        "heavy = {'torch', 'sglang', 'numpy', 'http.client', 'json', 'subprocess', 'msgspec'} & set(sys.modules)\n"
        "sys.exit(f'imported {heavy}' if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-S", "-c", code], capture_output=True, text=True, env=source_path())
    assert done.returncode == 0, done.stderr


def source_path() -> dict[str, str]:
    # -S keeps .pth files of the environment, and what they import, out of the measurement.
    folders = [str(Path(cli.__file__).parents[1])]
    return dict(os.environ) | {"PYTHONPATH": os.pathsep.join(folders)}


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["launch"],
        ["launch", "--model-path", "m/n", "--port", "0"],
        ["launch", "--model-path", "m/n", "--port", "http"],
        ["launch", "--model-path", "m/n", "--startup-timeout", "-1"],
        ["launch", "--model-path", "m/n", "--writers", "none"],
        ["launch", "--model-path", "m/n", "--boundaries", "1", "--eagle-ids", "2"],
        ["launch", "--model-path", "m/n", "--tp-size", "2"],
        ["status", "--", "x"],
    ],
)
def test_argparse_mistakes_exit_with_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(arguments)
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ")
    assert "see hs-server" in said


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--boundaries", "1,x"], "--boundaries: '1,x' is not a comma-separated list"),
        (["--eagle-ids", ""], "--eagle-ids: '' is not"),
        (["--no-capture", "--boundaries", "1"], "--no-capture cannot go with"),
        (["--profile", "tpu"], "no profile is called 'tpu'"),
        (["--", "--port", "1"], "give --port before it"),
    ],
)
def test_other_mistakes_exit_with_2_and_no_traceback(
    arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["launch", "--model-path", "m/n", *arguments]) == 2
    assert told in capsys.readouterr().err


def test_every_error_has_an_exit_code_of_its_own() -> None:
    classes = [UsageError, PreflightError, ServerLost, LaunchInterrupted]
    assert [kind.exit_code for kind in classes] == [2, 3, 4, 130]
