"""Source mode on the installed SGLang, two ranks: the same bytes as plugin mode, and the installation given back.

What is patched is a view of the installation in a folder of its own, so that no other server is disturbed. One server
is started for it (about 50 s on two busy cores); the one to compare with is that of test_e2e_ranks.
"""

from __future__ import annotations

import os
import subprocess
import sysconfig
from pathlib import Path

import pytest

from chain import ServerFactory, command, launch_server
from hs_formats.control import ControlFolder
from random_mix import send_one_by_one
from sglang_overlay import file_hashes, overlay_sglang
from small_tmpfs import small_tmpfs
from tiny_models import tiny_model

pytestmark = pytest.mark.sglang

SITE = Path(sysconfig.get_paths()["purelib"])
OPTIONS = ("--boundaries", "1,4,7", "--writers", "spread")
TP = ("--tp-size", "2", "--chunked-prefill-size", "16")
LENGTHS = [1, 2, 15, 16, 17, 40, 100]


def hs_server(site: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(site)}
    return subprocess.run(
        [command("hs-server"), *arguments], env=environment, capture_output=True, text=True, check=False, timeout=60
    )


def test_source_mode_writes_what_plugin_mode_writes_and_leaves_nothing_behind(
    servers: ServerFactory, tmp_path: Path
) -> None:
    package = overlay_sglang(SITE, tmp_path / "site")
    before = file_hashes(package)
    patched = hs_server(package.parent, "patch")
    assert patched.returncode == 0, patched.stderr
    with small_tmpfs(tmp_path / "scratch", options="size=64m,mode=0700") as scratch:
        server, _ = launch_server(
            tiny_model("tiny-dsv3"),
            scratch,
            tmp_path,
            options=[*OPTIONS, "--capture-mode", "source"],
            sglang=TP,
            environment={"PYTHONPATH": str(package.parent)},
        )
        try:
            file = package / "srt" / "models" / "deepseek_v2.py"
            markers = ControlFolder(scratch).live_markers()
            assert [marker.rank for marker in sorted(markers, key=lambda marker: marker.rank)] == [0, 1]
            assert {(marker.capture_mode, marker.source_file) for marker in markers} == {("source", str(file))}
            assert {marker.source_sha256 for marker in markers} == {file_hashes(package)["srt/models/deepseek_v2.py"]}
            by_source = send_one_by_one(server, LENGTHS, seed=5)
        finally:
            server.stop()
    by_plugin = send_one_by_one(servers("tiny-dsv3", *OPTIONS, sglang=TP), LENGTHS, seed=5)
    assert len(by_plugin) > len(LENGTHS)
    assert {".r00." in name for name in by_plugin} == {True, False}
    assert by_source == by_plugin
    # The comparison sees one row more or less, and one bit.
    name, (ids, states) = next(iter(by_source.items()))
    assert {**by_source, name: (ids, bytes([states[0] ^ 1]) + states[1:])} != by_plugin

    reverted = hs_server(package.parent, "patch", "--revert")
    assert reverted.returncode == 0, reverted.stderr
    assert file_hashes(package) == before
    assert file.read_bytes() == (SITE / "sglang" / "srt" / "models" / "deepseek_v2.py").read_bytes()


def test_source_mode_is_refused_before_anything_starts(tmp_path: Path) -> None:
    package = overlay_sglang(SITE, tmp_path / "site")
    file = package / "srt" / "models" / "deepseek_v2.py"
    launch = ["launch", "--model-path", str(tiny_model("tiny-dsv3")), "--profile", "cpu", "--dry-run"]
    launch += ["--capture-mode", "source", "--boundaries", "1,4,7"]

    def refused() -> str:
        done = hs_server(package.parent, *launch)
        assert done.returncode == 3, done.stdout + done.stderr
        return done.stderr

    assert "is not patched" in refused()
    # Bytecode of the file as it was, which Python runs without looking at the file again.
    compiler = f"import py_compile; py_compile.compile({str(file)!r}, invalidation_mode=py_compile.PycInvalidationMode."
    subprocess.run([command("python"), "-c", compiler + "UNCHECKED_HASH)"], check=True)
    unpatched_bytecode = [(path, path.read_bytes()) for path in (file.parent / "__pycache__").iterdir()]
    assert "1 compiled file removed" in hs_server(package.parent, "patch").stdout
    assert hs_server(package.parent, *launch).returncode == 0
    for path, data in unpatched_bytecode:
        path.write_bytes(data)
    assert "Python would run" in refused()
    assert hs_server(package.parent, "patch").returncode == 0
    assert hs_server(package.parent, *launch).returncode == 0
    file.write_text(file.read_text().replace("self.layers_to_capture = []", "self.layers_to_capture = [3]"))
    assert "edited by hand" in refused()
    done = hs_server(package.parent, "patch", "--revert")
    assert done.returncode == 3
    assert "is left as it is" in done.stderr
