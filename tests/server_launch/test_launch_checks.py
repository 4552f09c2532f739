from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from hs_formats.control import default_scratch
from hs_formats.errors import PreflightError
from hs_formats.state import state_folder
from hs_server import env
from hs_server.dump_dir import file_system_type, prepare_dump_dir
from hs_server.plan import CaptureRequest, LaunchRequest, make_plan
from hs_server.preflight import PluginView, check_plugins, check_port, view_plugins
from hs_server.processes import boot_id, command_line, has_variable, port_owner, process_info
from hs_server.readiness import ArmedState, refusal, why_not_armed
from hs_server.records import LaunchRecord, RecordStore
from launching import free_port


@pytest.fixture
def record() -> Iterator[LaunchRecord]:
    with subprocess.Popen(["sleep", "600"], start_new_session=True) as server:
        own, leader = process_info(os.getpid()), process_info(server.pid)
        assert own is not None
        assert leader is not None
        yield LaunchRecord(
            launch_id="0" * 16,
            pid=leader.pid,
            start_ticks=leader.start_ticks,
            boot=boot_id(),
            launcher_pid=own.pid,
            launcher_start_ticks=own.start_ticks,
            host="127.0.0.1",
            port=21000,
            url="http://127.0.0.1:21000",
            model_path="m",
            profile="default",
            dump_dir="",
            nonce="",
            local_ranks=1,
            log="log",
        )
        server.kill()


def test_the_key_of_another_server_is_not_shown() -> None:
    code = "import sys; print(flush=True); sys.stdin.read()"
    command = [sys.executable, "-c", code, "--api-key", "s3cret", "--x\x1b[2J"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        try:
            assert other.stdout is not None
            other.stdout.readline()
            assert command_line(other.pid).endswith(r"--api-key *** --x\x1b[2J")
        finally:
            other.kill()


def test_dump_dir_is_made_private(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "scratch"
    prepare_dump_dir(folder)
    prepare_dump_dir(folder)
    assert folder.stat().st_mode & 0o777 == 0o700
    assert sorted(entry.name for entry in folder.iterdir()) == [".hs"]


def test_dump_dir_open_to_others_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    with pytest.raises(PreflightError, match=f"chmod 700 {tmp_path}"):
        prepare_dump_dir(tmp_path)


def test_nobody_is_told_to_close_a_folder_that_is_everybodys(tmp_path: Path) -> None:
    tmp_path.chmod(0o1777)
    with pytest.raises(PreflightError, match=f"everybody's; give a folder of its own, such as {tmp_path}/sglang_hs"):
        prepare_dump_dir(tmp_path)
    assert not list(tmp_path.iterdir())


def test_dump_dir_that_is_a_link_or_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    (tmp_path / "file").touch(mode=0o600)
    with pytest.raises(PreflightError, match="symbolic link"):
        prepare_dump_dir(tmp_path / "link")
    with pytest.raises(PreflightError, match="not a folder"):
        prepare_dump_dir(tmp_path / "file")
    with pytest.raises(PreflightError, match="Not a directory"):
        prepare_dump_dir(tmp_path / "file" / "below")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs another user's folder")
def test_dump_dir_of_another_user_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "theirs"
    folder.mkdir(mode=0o700)
    os.chown(folder, 65534, 65534)
    with pytest.raises(PreflightError, match="belongs to user 65534"):
        prepare_dump_dir(folder)


def test_default_scratch() -> None:
    assert default_scratch({}) == Path("/dev/shm/sglang_hs")
    assert default_scratch({env.DUMP_DIR: "/x"}) == Path("/x")
    assert file_system_type(Path("/proc/self")) == "proc"


def test_busy_port_names_the_owner() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", free_port()))
        listener.listen()
        port = listener.getsockname()[1]
        assert port_owner(port) == os.getpid()
        owner = re.escape(f"port {port} is taken by pid {os.getpid()} ({command_line(os.getpid())[:20]}")
        with pytest.raises(PreflightError, match=owner):
            check_port("127.0.0.1", port)
    check_port("127.0.0.1", port)


def test_foreign_address_is_refused() -> None:
    with pytest.raises(PreflightError, match="cannot listen on 192"):
        check_port("192.0.2.1", free_port())


def test_plugins_are_installed_here() -> None:
    assert view_plugins({}).reason_missing("hs_capture") is None
    assert view_plugins({}).reason_missing("hs_cpu_profile") is None


@pytest.mark.parametrize(
    ("profile", "capture", "allowed", "reason"),
    [
        ("default", True, "other", "excludes the plugin `hs_capture`"),
        ("cpu", True, "hs_capture", "excludes the plugin `hs_cpu_profile`"),
        ("cpu", False, "other", "excludes the plugin `hs_cpu_profile`"),
        ("default", False, "other", None),
        ("default", True, " hs_capture , other", None),
        ("default", True, " , ", None),
    ],
)
def test_excluded_plugins(profile: str, capture: bool, allowed: str, reason: str | None) -> None:
    request = LaunchRequest(
        model_path="some/model",
        capture=CaptureRequest(dump_dir=Path("/scratch")) if capture else None,
        profile=profile,
    )
    plan, view = make_plan(request, {}), view_plugins({"SGLANG_PLUGINS": allowed})
    if reason is None:
        check_plugins(plan, view)
        return
    with pytest.raises(PreflightError, match=reason):
        check_plugins(plan, view)


def test_missing_plugin_names_the_remedy() -> None:
    reason = PluginView(installed=frozenset(), allowed=None).reason_missing("hs_capture")
    assert reason is not None
    assert "is not installed" in reason
    assert "-m pip install hs-extract" in reason


def test_reason_of_a_failed_plugin_is_taken_from_the_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text(
        "INFO Available plugins\n"
        "ERROR Failed to load plugin other from group sglang.srt.plugins\nTraceback (most recent call last):\n"
        "  File x\nImportError: not ours\n"
        "ERROR Failed to load plugin hs_capture from group sglang.srt.plugins\nTraceback (most recent call last):\n"
        '  File "x.py", line 1\n    import hs\nModuleNotFoundError: No module named hs\nINFO ready\n'
    )
    text = why_not_armed(ArmedState(markers=(), expected=2), log)
    assert "no rank armed" in text
    assert "ModuleNotFoundError: No module named hs" in text
    assert "not ours" not in text
    assert refusal(log) is None


def test_record_round_trip(tmp_path: Path, record: LaunchRecord) -> None:
    store = RecordStore(tmp_path)
    store.write(record)
    assert store.find(21000) == record
    assert store.all() == [record]
    ready = store.mark_ready(record)
    assert ready.ready
    assert store.find(21000) == ready
    store.remove(replace(record, launch_id="1" * 16))
    assert store.find(21000) == ready
    store.remove(record)
    assert store.find(21000) is None


@pytest.mark.parametrize(
    "changes",
    [
        {"boot": "another boot"},
        # Above any pid: nothing of that session is left.
        {"pid": 2**31 - 1, "start_ticks": 1},
        # The pid was given to a process that started later than the record's.
        {"pid": os.getpid(), "start_ticks": 1},
    ],
)
def test_stale_records_are_forgotten(tmp_path: Path, record: LaunchRecord, changes: dict[str, object]) -> None:
    store = RecordStore(tmp_path)
    store.write(replace(record, **changes))  # type: ignore[arg-type]
    assert store.find(21000) is None
    assert list((tmp_path / "servers").glob("*.json")) == []


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"version": 99}'])
def test_unreadable_records_are_no_records(tmp_path: Path, text: str) -> None:
    store = RecordStore(tmp_path)
    store.create()
    (tmp_path / "servers" / "21000.json").write_text(text)
    assert store.find(21000) is None


def test_one_launch_at_a_time_on_a_port(tmp_path: Path) -> None:
    store = RecordStore(tmp_path)
    store.create()
    with store.lock(21000), store.lock(21001), pytest.raises(PreflightError, match="another launch"), store.lock(21000):
        pass


def test_state_folder() -> None:
    assert state_folder({"HS_STATE_DIR": "/s", "XDG_STATE_HOME": "/x"}) == Path("/s")
    assert state_folder({"XDG_STATE_HOME": "/x"}) == Path("/x/hs-extract")
    assert state_folder({}).parts[-3:] == (".local", "state", "hs-extract")


def test_environment_of_a_process() -> None:
    name, value = next(iter(os.environ.items()))
    assert not has_variable(os.getpid(), "HS_NO_SUCH_VARIABLE", "1")
    assert not has_variable(2**31 - 1, name, value)
