"""The mover into a bucket: every part once and whole, whatever dies or fails on the way."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from hs_formats.errors import PreflightError
from hs_formats.location import ObjectUrl
from hs_formats.objectstore.paths import RemotePaths
from hs_formats.objectstore.remote import WHOLE_BYTES, RemoteStore
from movers import MOVER, RUN, drop, holding, move_once, moving, scratch_parts, wait_for
from object_checker import book_lines, check_stored
from object_servers import MotoServer, fault_proxy, moto_server
from part_factory import dataset_info
from parts import drop_part, register


@pytest.fixture
def src(tmp_path: Path) -> Path:
    folder = tmp_path / "scratch"
    folder.mkdir(mode=0o700)
    return folder


def _start(src: Path, url: str, server: MotoServer, log: Path, port: int | None = None) -> subprocess.Popen[bytes]:
    environment = {**os.environ, **server.environment(port), "HS_STORE_RETRY_S": "1"}
    with log.open("ab") as output:
        return subprocess.Popen([*MOVER, "--src", str(src), "--dst", url], env=environment, stderr=output)


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGCONT)
        process.terminate()
        process.wait(60)


def _long_unchanged(path: Path) -> None:
    past_s = time.time() - 60
    os.utime(path, (past_s, past_s))


def _wait_for_objects(server: MotoServer, prefix: str, count: int) -> None:
    wait_for(lambda: len(server.bucket.keys(prefix)) >= count, timeout_s=60)


@pytest.mark.parametrize("codec", ["default", "zstd", "none"])
def test_parts_are_stored_and_leave_scratch(reachable: MotoServer, prefix: str, src: Path, codec: str) -> None:
    url = ObjectUrl("s3", reachable.bucket.name, prefix)
    register(src, RUN, "set")
    parts = drop(src, range(7))
    move_once(src, url, codec=codec)
    assert not scratch_parts(src)
    if codec == "zstd":
        assert len(reachable.bucket.keys(f"{prefix}/set/data/")) == len(parts)
    else:
        check_stored(reachable.bucket, f"{prefix}/set", parts)
    (log,) = book_lines(reachable.bucket, f"{prefix}/set/manifest").values()
    assert len(log) == 7
    assert len(reachable.bucket.keys(f"{prefix}/set/manifest/")) == 1, "compacted at the end"
    assert not reachable.bucket.unfinished()


def test_two_movers_fill_one_dataset(reachable: MotoServer, prefix: str, src: Path, tmp_path: Path) -> None:
    url = ObjectUrl("s3", reachable.bucket.name, prefix)
    other = tmp_path / "other"
    other.mkdir(mode=0o700)
    parts: dict[str, bytes] = {}
    for folder, rows in ((src, range(4)), (other, range(4, 9))):
        register(folder, RUN, "set")
        parts |= drop(folder, rows)
        move_once(folder, url)
    check_stored(reachable.bucket, f"{prefix}/set", parts)
    assert len(book_lines(reachable.bucket, f"{prefix}/set/manifest")) == 2


def test_parts_that_come_again_are_dropped_and_others_kept_apart(reachable: MotoServer, prefix: str, src: Path) -> None:
    url = ObjectUrl("s3", reachable.bucket.name, prefix)
    register(src, RUN, "set")
    parts = drop(src, range(3))
    move_once(src, url)
    again = drop(src, range(3))
    assert again == parts
    name = next(iter(parts))
    other = next(data for key, data in parts.items() if key != name)
    (src / name).write_bytes(other)
    _long_unchanged(src / name)
    move_once(src, url)
    assert not scratch_parts(src)
    kept = [key for key in reachable.bucket.keys(f"{prefix}/set/quarantine/") if not key.endswith(".json")]
    assert [reachable.bucket.get(key) for key in kept] == [other]
    stored = {key.rpartition("/")[2].removesuffix(".hsz") for key in reachable.bucket.keys(f"{prefix}/set/data/")}
    assert stored == set(parts)


def test_what_was_stored_without_a_line_is_adopted(reachable: MotoServer, prefix: str, src: Path) -> None:
    url = ObjectUrl("s3", reachable.bucket.name, prefix)
    register(src, RUN, "set")
    parts = drop(src, range(4))
    move_once(src, url)
    for key in reachable.bucket.keys(f"{prefix}/set/manifest/"):
        reachable.bucket.client.delete_object(Bucket=reachable.bucket.name, Key=key)
    # Two lost their line after their source was still there, two after it was gone; and one object is half a file.
    names = sorted(parts)
    for name in names[:2]:
        (src / name).write_bytes(parts[name])
    keys = reachable.bucket.keys(f"{prefix}/set/data/")
    reachable.bucket.put(keys[0], reachable.bucket.get(keys[0])[:-9])
    reachable.bucket.put(f"{keys[0]}.x", b"of somebody else")
    move_once(src, url)
    reachable.bucket.client.delete_object(Bucket=reachable.bucket.name, Key=f"{keys[0]}.x")
    check_stored(reachable.bucket, f"{prefix}/set", parts)


@pytest.mark.slow
def test_a_large_part_goes_in_pieces(reachable: MotoServer, prefix: str, src: Path) -> None:
    url = ObjectUrl("s3", reachable.bucket.name, prefix)
    register(src, RUN, "set")
    parts = drop(src, range(1), tokens=2200, hidden=2048)
    (data,) = parts.values()
    assert len(data) > WHOLE_BYTES + (8 << 20)
    move_once(src, url)
    check_stored(reachable.bucket, f"{prefix}/set", parts)
    assert not reachable.bucket.unfinished()


@pytest.mark.slow
def test_kills_lose_and_double_nothing(reachable: MotoServer, prefix: str, src: Path, tmp_path: Path) -> None:
    register(src, RUN, "set")
    url = f"s3://{reachable.bucket.name}/{prefix}"
    parts: dict[str, bytes] = {}
    log = tmp_path / "mover.log"
    for turn in range(5):
        process = _start(src, url, reachable, log)
        try:
            parts |= drop(src, range(20 * turn, 20 * turn + 20))
            _wait_for_objects(reachable, f"{prefix}/set/data/", 23 * turn)
        finally:
            process.kill()
            process.wait()
    move_once(src, ObjectUrl("s3", reachable.bucket.name, prefix))
    assert not scratch_parts(src)
    check_stored(reachable.bucket, f"{prefix}/set", parts)


@pytest.mark.slow
def test_errors_lost_answers_and_outages_hold_the_clients(
    reachable: MotoServer, prefix: str, src: Path, tmp_path: Path
) -> None:
    register(src, RUN, "set")
    url = f"s3://{reachable.bucket.name}/{prefix}"
    log = tmp_path / "mover.log"
    with fault_proxy(reachable) as proxy:
        process = _start(src, url, reachable, log, proxy.port)
        try:
            wait_for(lambda: moving(src), timeout_s=60)
            proxy.errors, proxy.lost, proxy.delay_s = 0.15, 0.15, 0.01
            parts = drop(src, range(40))
            wait_for(lambda: len(reachable.bucket.keys(f"{prefix}/set/data/")) > 10, timeout_s=120)
            proxy.down = True
            parts |= drop(src, range(40, 50))
            wait_for(lambda: holding(src, "does not answer"), timeout_s=60, what=log.read_text())
            left = set(scratch_parts(src))
            assert len(left) >= 10
            proxy.down = False
            wait_for(lambda: not scratch_parts(src), timeout_s=200, what=log.read_text())
            proxy.errors = proxy.lost = 0.0
            _end(process)
            assert process.returncode == 0, log.read_text()
        finally:
            _end(process)
        assert proxy.spoiled > 10
    check_stored(reachable.bucket, f"{prefix}/set", parts)
    assert "Traceback" not in log.read_text()


@pytest.mark.slow
def test_a_frozen_store_is_waited_for(prefix: str, src: Path, tmp_path: Path) -> None:
    register(src, RUN, "set")
    log = tmp_path / "mover.log"
    with moto_server() as own:
        process = _start(src, f"s3://{own.bucket.name}/{prefix}", own, log)
        try:
            wait_for(lambda: moving(src), timeout_s=60)
            own.freeze()
            parts = drop(src, range(12))
            wait_for(lambda: holding(src, "does not answer"), timeout_s=90, what=log.read_text())
            assert len(scratch_parts(src)) == 12
            own.thaw()
            wait_for(lambda: not scratch_parts(src), timeout_s=200, what=log.read_text())
        finally:
            own.thaw()
            _end(process)
        check_stored(own.bucket, f"{prefix}/set", parts)


def test_bad_parts_are_kept_apart_and_unclaimed_ones_too(reachable: MotoServer, prefix: str, src: Path) -> None:
    register(src, RUN, "set")
    paths = RemotePaths(ObjectUrl("s3", reachable.bucket.name, f"{prefix}/set"))
    assert paths.write_info(dataset_info(boundaries=[7, 8]))
    assert not paths.write_info(dataset_info())
    parts = drop(src, range(1))
    (name,) = parts
    stranger = drop_part(src, "hs-0badcafe-00000000-00", 0, 4, 4, seed=1).name
    _long_unchanged(src / name)
    move_once(src, ObjectUrl("s3", reachable.bucket.name, prefix))
    assert not scratch_parts(src)
    assert reachable.bucket.get(f"{prefix}/set/quarantine/{name}") == parts[name]
    assert b"boundaries" in reachable.bucket.get(f"{prefix}/set/quarantine/{name}.reason.json")
    assert reachable.bucket.keys(f"{prefix}/unclaimed/") == [f"{prefix}/unclaimed/0badcafe/{stranger}.hsz"]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"AWS_ENDPOINT_URL": "http://127.0.0.1:9", "HS_STORE_RETRY_S": "0"}, "does not answer"),
        ({"bucket": "no-such-bucket"}, "there is no bucket no-such-bucket"),
        ({"AWS_ENDPOINT_URL": "http://far.example:9000"}, "HS_STORE_ALLOW_HTTP=1"),
    ],
)
def test_a_store_that_cannot_be_used_is_said_in_a_line(
    reachable: MotoServer, src: Path, monkeypatch: pytest.MonkeyPatch, change: dict[str, str], says: str
) -> None:
    for name, value in change.items():
        if name.isupper():
            monkeypatch.setenv(name, value)
    with pytest.raises(PreflightError, match=says) as caught:
        move_once(src, ObjectUrl("s3", change.get("bucket", reachable.bucket.name), "x"))
    assert "\n" not in str(caught.value)


def test_a_store_that_overwrites_is_refused(
    reachable: MotoServer, prefix: str, src: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def overwrite(store: RemoteStore, path: str, data: bytes) -> bool:
        store.put(path, data)
        return True

    monkeypatch.setattr(RemoteStore, "create", overwrite)
    with pytest.raises(
        PreflightError, match="this store overwrites what it is asked to make only where there is nothing"
    ):
        move_once(src, ObjectUrl("s3", reachable.bucket.name, prefix))
    assert reachable.bucket.keys(prefix) == []
