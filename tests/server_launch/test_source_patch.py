"""The patch as text and on files: all or nothing, given back to the byte; whatever else is in a file is noticed."""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import os
import py_compile
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from deepseek_skeleton import SKELETON
from hs_formats.errors import PreflightError, UsageError
from hs_server import cli
from hs_server.patch.bytecode import compiled_files, would_run
from hs_server.patch.installation import PATCHED_FILE, Installation, find_installation
from hs_server.patch.source import ANCHORS, PATCH_VERSION, PatchError, apply_patch, inspect_patch, take_out

PATCHED = apply_patch(SKELETON)
LINES = SKELETON.split("\n")


@pytest.fixture
def installation(tmp_path: Path) -> Installation:
    """A `sglang` package with a skeleton in it, and its installer's notes."""
    package = tmp_path / "sglang"
    file = package / PATCHED_FILE
    file.parent.mkdir(parents=True)
    file.write_text(SKELETON)
    metadata = tmp_path / "sglang-0.5.20.dist-info"
    metadata.mkdir()
    digest = base64.urlsafe_b64encode(hashlib.sha256(SKELETON.encode()).digest()).rstrip(b"=").decode()
    (metadata / "RECORD").write_text(f"sglang/{PATCHED_FILE},sha256={digest},{len(SKELETON)}\n")
    return Installation(package)


def test_four_blocks_and_nothing_else() -> None:
    added = [line for line in PATCHED.split("\n") if line not in LINES]
    assert sum(line.strip() == "# <<< hs-extract" for line in added) == len(ANCHORS) == 4
    assert inspect_patch(PATCHED) is not None
    assert inspect_patch(SKELETON) is None
    assert take_out(PATCHED) == SKELETON
    assert take_out(SKELETON) == SKELETON


@given(st.lists(st.tuples(st.integers(0, len(LINES) - 2), st.sampled_from(["", "# a comment", "#"])), max_size=12))
def test_other_lines_do_not_matter_and_come_back_as_they_were(insertions: list[tuple[int, str]]) -> None:
    lines: list[str] = list(LINES)
    for at, line in insertions:
        if lines[at].rstrip().endswith(":") or '"""' in lines[at]:
            line = ""
        lines.insert(at, line)
    text = "\n".join(lines)
    patched = apply_patch(text)
    assert take_out(patched) == text
    found = inspect_patch(patched)
    assert found is not None
    assert (found.version, found.damage) == (PATCH_VERSION, "")


@given(st.data())
def test_whatever_one_changes_in_a_patched_file_is_noticed(data: st.DataObject) -> None:
    lines = PATCHED.split("\n")
    at = data.draw(st.integers(0, len(lines) - 1))
    match data.draw(st.sampled_from(["drop", "double", "add", "edit", "cut"])):
        case "drop":
            del lines[at]
        case "double":
            lines.insert(at, lines[at])
        case "add":
            lines.insert(at, "x = 1")
        case "edit":
            lines[at] += " "
        case _:
            lines = lines[:at]
    text = "\n".join(lines)
    if text == SKELETON[: len(text)] and "_hs_capture" not in text:
        return  # cut before the first block
    try:
        found = inspect_patch(text)
    except PatchError:
        return
    assert found is not None
    assert found.damage
    with pytest.raises(PatchError):
        apply_patch(text)


@pytest.mark.parametrize("anchor", ANCHORS, ids=lambda anchor: anchor.statement)
def test_a_missing_or_double_or_misplaced_anchor_is_refused(anchor: object) -> None:
    statement = getattr(anchor, "statement")  # noqa: B009
    line = next(line for line in LINES if line.strip() == statement)
    for text in (
        SKELETON.replace(line, line.replace(statement, "pass")),
        SKELETON.replace(line, f"{line}\n{line}"),
        SKELETON + f"\n\ndef elsewhere(self, hidden_states):\n    {statement}\n",
        SKELETON.replace(line, line.replace(statement, "pass")) + f"\n\ndef elsewhere(self):\n    {statement}\n",
    ):
        assert text != SKELETON
        with pytest.raises(PatchError):
            apply_patch(text)


@pytest.mark.parametrize(
    "text",
    [
        SKELETON.replace("\n", "\r\n"),
        SKELETON + "def (:\n",
        SKELETON.replace("class DeepseekV2Model", "class DeepseekV4Model"),
        SKELETON.replace("if self.capture_aux_hidden_states:", "if True:"),
        SKELETON.replace("self, config, quant_config=None", "this, config, quant_config=None"),
        SKELETON + "_hs_capture = 1\n",
        PATCHED,
    ],
)
def test_files_that_are_not_as_expected_are_refused(text: str) -> None:
    with pytest.raises(PatchError):
        apply_patch(text)


def test_blocks_of_another_release_are_known_and_can_be_taken_out(installation: Installation) -> None:
    older = PATCHED.replace(f"# >>> hs-extract {PATCH_VERSION},", "# >>> hs-extract 999,").replace(
        "_hs_capture.observe(", "_hs_capture.look_at("
    )
    found = inspect_patch(older)
    assert found is not None
    assert (found.version, found.damage) == (999, "")
    installation.file.write_text(older)
    assert "hs-extract needs" in str(installation.reason_not_patched())
    assert installation.patch() == (True, 0)
    assert installation.file.read_text() == PATCHED


def test_patching_twice_and_reverting_twice(installation: Installation) -> None:
    installation.file.chmod(0o640)
    assert "is not patched" in str(installation.reason_not_patched())
    assert installation.patch() == (True, 0)
    assert installation.reason_not_patched() is None
    assert installation.patch() == (False, 0)
    assert installation.file.read_text() == PATCHED
    assert installation.revert() == (True, 0)
    assert installation.revert() == (False, 0)
    assert installation.file.read_text() == SKELETON
    assert installation.file.stat().st_mode & 0o777 == 0o640
    assert [path.name for path in installation.file.parent.iterdir()] == [PATCHED_FILE.name]
    assert installation.version() == "0.5.20"


def test_a_file_edited_by_hand_is_refused_and_left_alone(installation: Installation) -> None:
    edited = SKELETON.replace("self.layers = []", "self.layers = [1]")
    installation.file.write_text(edited)
    with pytest.raises(PreflightError, match="edited by hand"):
        installation.patch()
    assert installation.file.read_text() == edited
    # Edited after it was patched: neither reverted nor taken for patched.
    later = PATCHED.replace("self.layers = []", "self.layers = [1]")
    installation.file.write_text(later)
    with pytest.raises(PreflightError, match="edited by hand after it was patched"):
        installation.revert()
    with pytest.raises(PreflightError, match="edited by hand"):
        installation.patch()
    assert "edited by hand" in str(installation.reason_not_patched())
    assert installation.file.read_text() == later


def test_a_checkout_without_installers_notes_is_judged_by_its_anchors(installation: Installation) -> None:
    (installation.package.parent / "sglang-0.5.20.dist-info" / "RECORD").unlink()
    installation.file.write_text(SKELETON + "# mine\n")
    assert installation.patch() == (True, 0)
    assert installation.revert() == (True, 0)
    assert installation.file.read_text() == SKELETON + "# mine\n"


def test_a_shared_file_behind_a_link_is_not_written_to(installation: Installation, tmp_path: Path) -> None:
    real = tmp_path / "cache.py"
    installation.file.rename(real)
    installation.file.symlink_to(real)
    with pytest.raises(PreflightError, match="symbolic link"):
        installation.patch()
    assert real.read_text() == SKELETON


def test_old_bytecode_is_removed_and_noticed(installation: Installation) -> None:
    py_compile.compile(str(installation.file))
    assert installation.patch() == (True, 1)
    assert compiled_files(installation.file) == []
    # An image that was built with unchecked bytecode of the file as it was before.
    patched = installation.file.read_text()
    installation.file.write_text(SKELETON)
    py_compile.compile(str(installation.file), invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)
    installation.file.write_text(patched)
    stale = installation.stale_bytecode()
    assert stale is not None
    assert "Python would run" in str(installation.reason_not_patched())
    assert installation.patch() == (False, 1)
    assert installation.reason_not_patched() is None
    # And the other way round: bytecode of the patched file beside the reverted one.
    py_compile.compile(str(installation.file), invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)
    (kept,) = compiled_files(installation.file)
    data = kept.read_bytes()
    assert installation.revert() == (True, 1)
    kept.write_bytes(data)
    assert installation.stale_bytecode() == kept
    assert installation.revert() == (False, 1)


@pytest.mark.parametrize("mode", list(py_compile.PycInvalidationMode))
@pytest.mark.parametrize("change", ["none", "same size and time", "other size"])
def test_which_bytecode_runs_is_foretold(mode: py_compile.PycInvalidationMode, change: str, tmp_path: Path) -> None:
    source = tmp_path / "module_under_test.py"
    source.write_text("value = 1\n")
    os.utime(source, (1_700_000_000, 1_700_000_000))
    py_compile.compile(str(source), invalidation_mode=mode)
    if change != "none":
        source.write_text("value = 2\n" if change == "same size and time" else "value =  2\n")
        os.utime(source, (1_700_000_000, 1_700_000_000))
    (compiled,) = compiled_files(source)
    expected = would_run(compiled, source)
    code = "import module_under_test; print(module_under_test.value)"
    out = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    assert (out.strip() == "1") == expected


@pytest.mark.parametrize(("armed", "expected"), [(False, "None []"), (True, "SourceCapture ['hs_server']")])
def test_a_patched_file_imports_nothing_of_ours_unless_the_variable_is_set(
    installation: Installation, armed: bool, expected: str
) -> None:
    installation.patch()
    code = (
        f"import importlib.util, sys\n"
        f"spec = importlib.util.spec_from_file_location('patched', {str(installation.file)!r})\n"
        "module = importlib.util.module_from_spec(spec); spec.loader.exec_module(module)\n"
        "kind = module._hs_capture and type(module._hs_capture).__name__\n"
        "print(kind, [name for name in sys.modules if name == 'hs_server'])\n"
        "if not kind: print(module.DeepseekV3ForCausalLM('c').forward(1, 2, 3))"
    )
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SGLANG_HS")}
    if armed:
        environment["SGLANG_HS_DUMP_DIR"] = "/nowhere"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[0] == expected
    assert armed or done.stdout.splitlines()[1] == "(([1.0, 2.0], ['aux']), None)"


def test_where_an_installation_is_found(installation: Installation, monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_installation(installation.package) == installation
    assert find_installation(installation.package.parent) == installation
    with pytest.raises(UsageError, match="give the folder"):
        find_installation(installation.file.parent)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(PreflightError, match="not installed"):
        find_installation()


def test_the_command(installation: Installation, capsys: pytest.CaptureFixture[str]) -> None:
    where = ["--sglang", str(installation.package)]
    assert cli.main(["patch", *where, "--check"]) == 3
    assert "is not patched" in capsys.readouterr().err
    assert cli.main(["patch", *where]) == 0
    assert capsys.readouterr().out.startswith(f"patched   {installation.file} (SGLang 0.5.20)\n")
    assert cli.main(["patch", *where, "--check"]) == 0
    out = capsys.readouterr().out
    assert hashlib.sha256(installation.file.read_bytes()).hexdigest() in out
    assert "this interpreter imports that one" in out
    assert cli.main(["patch", *where, "--revert"]) == 0
    assert "reverted" in capsys.readouterr().out
    assert installation.file.read_text() == SKELETON
    with pytest.raises(SystemExit) as ended:
        cli.main(["patch", "--check", "--revert"])
    assert ended.value.code == 2
