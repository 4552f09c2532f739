"""What a launch in source mode makes of the markers it finds, and of those it does not find."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from deepseek_skeleton import SKELETON
from hs_formats.control import Marker
from hs_formats.errors import PreflightError
from hs_server.patch import installation as installation_module
from hs_server.patch.installation import PATCHED_FILE, Installation
from hs_server.plan import CaptureRequest, LaunchRequest, make_plan
from hs_server.preflight import check_source
from hs_server.readiness import ArmedState, capture_lines, why_not_armed, wrong_way
from markers import make_marker

MARKER = make_marker(dtype="float32", capture_mode="source")


@pytest.fixture
def installation(tmp_path: Path) -> Installation:
    package = tmp_path / "site" / "sglang"
    (package / PATCHED_FILE).parent.mkdir(parents=True)
    (package / PATCHED_FILE).write_text(SKELETON)
    made = Installation(package)
    made.patch()
    return made


def state(*markers: Marker) -> ArmedState:
    return ArmedState(markers=markers, expected=max(1, len(markers)))


def test_ranks_that_run_the_patched_file_are_right(installation: Installation, tmp_path: Path) -> None:
    right = replace(MARKER, source_file=str(installation.file), source_sha256=installation.sha256())
    both = state(right, replace(right, rank=1))
    assert wrong_way(both, mode="source", source=installation) is None
    assert str(installation.file) in capture_lines(both)[0]
    # The same file by another name is the same file.
    (tmp_path / "link").symlink_to(installation.package.parent)
    linked = Installation(tmp_path / "link" / "sglang")
    assert wrong_way(both, mode="source", source=linked) is None


def test_another_file_another_content_and_another_mode_are_named(installation: Installation) -> None:
    right = replace(MARKER, source_file=str(installation.file), source_sha256=installation.sha256())
    other = replace(right, rank=1, source_file="/elsewhere/deepseek_v2.py")
    said = wrong_way(state(right, other), mode="source", source=installation)
    assert said is not None
    assert "rank 1 runs /elsewhere/deepseek_v2.py" in said
    changed = replace(right, source_sha256="0" * 64)
    assert "was changed while the server started" in str(wrong_way(state(changed), mode="source", source=installation))
    plugin = replace(MARKER, capture_mode="plugin")
    assert "captures in plugin mode, not in source mode" in str(
        wrong_way(state(right, plugin), mode="source", source=installation)
    )
    assert "captures in source mode, not in plugin mode" in str(wrong_way(state(right), mode="plugin", source=None))
    assert wrong_way(state(plugin), mode="plugin", source=None) is None


def test_no_marker_although_the_file_is_patched(installation: Installation, tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("The server is fired up\n")
    said = why_not_armed(state(), log, source=installation)
    assert f"although {installation.file} is patched" in said
    assert "hs-server patch --check" in said
    log.write_text("RuntimeError: hs-extract refuses to capture: the bytecode is old; run hs-server patch again\n")
    assert "the capture refused to start: the bytecode is old" in why_not_armed(state(), log, source=installation)


def test_a_launch_in_source_mode_looks_at_the_installation_first(
    installation: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hs_server.preflight.find_installation", lambda: installation)
    capture = CaptureRequest(dump_dir=Path("/scratch"), mode="source")
    plan = make_plan(LaunchRequest(model_path="a/b", capture=capture), {}, sglang_version="0.5.20")
    assert check_source(plan) == installation
    installation.revert()
    with pytest.raises(PreflightError, match="is not patched"):
        check_source(plan)
    plugin = make_plan(
        LaunchRequest(model_path="a/b", capture=CaptureRequest(dump_dir=Path("/scratch"))), {}, sglang_version="0.5.20"
    )
    monkeypatch.setattr(installation_module.Installation, "reason_not_patched", lambda self: 1 / 0)
    assert check_source(plugin) is None
