"""Launching a real SGLang: what is armed, what stays dormant, what is refused."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from chain import Server, ServerFactory, command, launch_server
from hs_formats.control import ControlFolder
from hs_server import env
from tiny_models import tiny_model

pytestmark = pytest.mark.sglang

NCCL = {
    "NCCL_PROTO": "LL",
    "NCCL_ALGO": "Ring",
    "NCCL_P2P_LEVEL": "SYS",
    "NCCL_MAX_NCHANNELS": "16",
    "NCCL_BUFFSIZE": "16777216",
    "NCCL_NTHREADS": "512",
}


def environment_of(pid: int) -> dict[str, str]:
    entries = Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")
    return dict(entry.split("=", 1) for entry in entries if "=" in entry)


def test_foreign_rids_health_checks_and_refused_requests_leave_no_file(servers: ServerFactory) -> None:
    server = servers("tiny-llama", "--boundaries", "1,4,7")
    assert server.healthy()
    for rid in ("user-1", "hs-short", "hs-0badcafe-00000001-0", "../../escape", "hs-0badcafe-00000001-00x"):
        status, _ = server.generate(rid, [5, 6, 7])
        assert status == 200
    # Too long for the context: SGLang answers 400, and may run a dummy token under the rid.
    status, _ = server.generate("hs-0badcafe-00000002-00", [5] * 5000)
    assert status == 400
    # A request of ours shows that the capture does run.
    status, _ = server.generate("hs-0badcafe-00000003-00", [5, 6, 7])
    assert status == 200
    assert {name[:23] for name in server.parts()} == {"hs-0badcafe-00000003-00"}
    for name in server.parts():
        (server.scratch / name).unlink()


def test_the_scheduler_has_the_nccl_tuning_and_the_marker_says_what_runs(servers: ServerFactory) -> None:
    server = servers("tiny-llama", "--boundaries", "1,4,7")
    (marker,) = ControlFolder(server.scratch).live_markers(port=server.port)
    found = environment_of(marker.pid)
    assert {name: found.get(name) for name in NCCL} == NCCL
    assert marker.boundaries == [1, 4, 7]
    assert marker.bytes_per_token == 4 * 128 * 4
    assert marker.chunk_size == 16
    assert server.output.rstrip().splitlines()[-1] == f"ready {server.url}"


def test_without_capture_nothing_is_written_and_status_says_dormant(dormant: Server) -> None:
    status, _ = dormant.generate("hs-0badcafe-00000001-00", [5, 6, 7])
    assert status == 200
    assert list(dormant.scratch.iterdir()) == []
    told = subprocess.run(
        [command("hs-server"), "status", "--port", str(dormant.port)],
        env=dormant.environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert told.returncode == 0
    assert "dormant" in told.stdout
    environments = [environment_of(pid) for pid in descendants(dormant)]
    assert environments
    assert all(item.get("NCCL_PROTO") == "Simple" for item in environments)  # the user's value is kept
    assert all(item.get("NCCL_ALGO") == "Ring" for item in environments)
    assert all(env.DUMP_DIR not in item for item in environments)


def descendants(server: Server) -> list[int]:
    """Processes whose environment carries this server's port on the command line of their group."""
    found: list[int] = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            if os.getpgid(int(entry.name)) == group_of(server):
                found.append(int(entry.name))
        except ProcessLookupError:
            continue
    return found


def group_of(server: Server) -> int:
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
            if b"sglang.launch_server" in words and str(server.port).encode() in words:
                return os.getpgid(int(entry.name))
        except OSError:
            continue
    raise AssertionError("the server's main process was not found")


def test_a_plugin_excluded_by_sglang_plugins_stops_the_launch(tmp_path: Path) -> None:
    _, done = launch_server(
        tiny_model("tiny-llama"),
        tmp_path / "scratch",
        tmp_path,
        environment={"SGLANG_PLUGINS": "hs_cpu_profile,other"},
        check=False,
    )
    assert done.returncode == 3
    assert "SGLANG_PLUGINS" in done.stderr
    assert "Traceback" not in done.stderr


def test_an_environment_without_the_plugin_stops_the_launch(tmp_path: Path) -> None:
    """All of site-packages except our own distribution: SGLang would start and capture nothing."""
    import torch

    site = Path(torch.__file__).parents[1]
    farm = tmp_path / "site"
    farm.mkdir()
    for entry in site.iterdir():
        if not entry.name.startswith(("hs_extract", "_hs_extract", "_editable")) and entry.suffix != ".pth":
            (farm / entry.name).symlink_to(entry)
    root = Path(__file__).parents[2]
    path = [farm, root / "formats", root / "server_launch"]
    done = subprocess.run(
        [
            sys.executable,
            "-S",
            "-m",
            "hs_server.cli",
            "launch",
            "--model-path",
            str(tiny_model("tiny-llama")),
            "--profile",
            "cpu",
            "--dump-dir",
            str(tmp_path / "scratch"),
        ],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path)), "HS_STATE_DIR": str(tmp_path / "state")},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 3, done.stderr
    assert "not installed" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_setting_that_would_spoil_states_stops_the_launch(tmp_path: Path) -> None:
    """One guard for all: SGLang resolves its arguments, the capture in the scheduler refuses, the launcher says so."""
    server, done = launch_server(
        tiny_model("tiny-llama"), tmp_path / "scratch", tmp_path, sglang=["--enable-mixed-chunk"], check=False
    )
    assert done.returncode == 3, done.stderr
    assert "drop --enable-mixed-chunk" in done.stderr
    assert not server.healthy()
