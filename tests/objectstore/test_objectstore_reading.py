"""Datasets that were copied to a bucket by any tool: read, verified, exported, merged and described by their URL."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from torch.utils.data import DataLoader

from export_sets import make_export_set
from hs_client.cli import cli
from hs_formats.errors import HsError, PreflightError
from hs_formats.location import ObjectUrl
from hs_formats.objectstore.blocks import BLOCK_BYTES, BlockCache
from hs_formats.objectstore.remote import WHOLE_BYTES, open_store
from hs_formats.objectstore.settings import store_settings
from hs_formats.objectstore.store import StoreError, StoreUnreachable
from hs_formats.reader import DamagedSample, HiddenStateDataset
from memory_store import MemoryStore
from object_servers import MotoServer, fault_proxy
from part_factory import random_record, write_dataset

RECORDS = [random_record(row, 3 + 2 * row, cuts=range(2, 3 + 2 * row, 5), mask=((1, 2),)) for row in range(6)]


@pytest.fixture
def copied(reachable: MotoServer, prefix: str, tmp_path: Path) -> tuple[str, Path]:
    """URL and folder of the same dataset."""
    folder = tmp_path / "set"
    write_dataset(folder, RECORDS)
    reachable.bucket.put_tree(f"{prefix}/set", folder)
    return f"s3://{reachable.bucket.name}/{prefix}/set", folder


def _run(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(cli, arguments)
    if done.exception is not None and not isinstance(done.exception, (SystemExit, HsError)):
        raise done.exception
    return done.exit_code, f"{done.output}{done.exception or ''}"


def test_samples_are_those_of_the_folder(copied: tuple[str, Path]) -> None:
    url, folder = copied
    there, here = HiddenStateDataset(url), HiddenStateDataset(folder)
    assert there.sample_ids == here.sample_ids
    for one, other in zip(there, here, strict=True):
        assert torch.equal(one.input_ids, other.input_ids)
        assert torch.equal(one.loss_mask, other.loss_mask)
        assert torch.equal(one.hidden_states, other.hidden_states)
    part = there.read(3, rows=(1, 4), slots=[-1])
    assert torch.equal(part.hidden_states, here.read(3, rows=(1, 4), slots=[-1]).hidden_states)


@pytest.mark.parametrize("start", ["fork", "spawn"])
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork.*:DeprecationWarning")
def test_workers_of_a_loader_read_too(copied: tuple[str, Path], start: str) -> None:
    url, folder = copied
    data = HiddenStateDataset(url)
    assert len(data[0].input_ids) == 3  # from here on this process has threads that a fork leaves behind
    loader = DataLoader(data, batch_size=None, num_workers=2, multiprocessing_context=start)
    here = HiddenStateDataset(folder)
    for one, other in zip(loader, here, strict=True):
        assert torch.equal(one.hidden_states, other.hidden_states)


def test_damage_is_named_by_url(copied: tuple[str, Path], reachable: MotoServer, prefix: str) -> None:
    url, _ = copied
    data = HiddenStateDataset(url)
    line = next(iter(data.samples.values())).parts[0]
    key = f"{prefix}/set/{line.path}"
    whole = reachable.bucket.get(key)
    reachable.bucket.put(key, whole[: len(whole) // 2])
    with pytest.raises(DamagedSample, match=f"{url}/{line.path}"):
        data[0]
    reachable.bucket.client.delete_object(Bucket=reachable.bucket.name, Key=key)
    with pytest.raises(DamagedSample, match=line.path):
        HiddenStateDataset(url)[0]


def test_verify_then_info_then_merge(copied: tuple[str, Path], tmp_path: Path) -> None:
    url, folder = copied
    code, text = _run("verify", url)
    assert code == 0, text
    assert "6 done, 6 verified" in text
    code, text = _run("info", url)
    assert code == 0, text
    assert f"dataset    {url}" in text
    assert "verified   6 samples" in text
    assert _run("verify", str(folder))[0] == 0
    merged = tmp_path / "merged"
    code, text = _run("merge", str(merged), url)
    assert code == 0, text
    assert HiddenStateDataset(merged).sample_ids == HiddenStateDataset(folder).sample_ids
    assert _run("verify", str(merged))[0] == 0
    code, text = _run("status", url, "--scratch", str(tmp_path / "none"))
    assert code == 0, text
    assert "6 done" in text


def test_an_export_is_that_of_the_folder(reachable: MotoServer, prefix: str, tmp_path: Path) -> None:
    source = make_export_set(tmp_path / "made", [5, 9])
    reachable.bucket.put_tree(f"{prefix}/set", source.root)
    exports = []
    for number, where in enumerate((f"s3://{reachable.bucket.name}/{prefix}/set", str(source.root))):
        out = tmp_path / f"export{number}"
        code, text = _run("export", where, "--format", "speculators", "--out", str(out), "--model", str(source.model))
        assert code == 0, text
        exports.append({path.name: path.read_bytes() for path in out.rglob("*.safetensors")})
    assert exports[0] == exports[1] != {}


def test_report_of_a_url_lies_in_the_current_folder(
    copied: tuple[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, text = _run("report", copied[0])
    assert code == 0, text
    assert copied[0] in (tmp_path / "report.html").read_text()


def test_verify_finds_damage(copied: tuple[str, Path], reachable: MotoServer, prefix: str, tmp_path: Path) -> None:
    url, _ = copied
    keys = [key for key in reachable.bucket.keys(f"{prefix}/set/data") if key.endswith(".hsz")]
    damaged = bytearray(reachable.bucket.get(keys[0]))
    damaged[len(damaged) // 2] ^= 1
    reachable.bucket.put(keys[0], bytes(damaged))
    reachable.bucket.client.delete_object(Bucket=reachable.bucket.name, Key=keys[-1])
    report = tmp_path / "report.json"
    code, _ = _run("verify", url, "--json", str(report))
    assert code == 1
    found = json.loads(report.read_text())
    named = " ".join(finding["where"] for finding in found["findings"])
    assert keys[-1].removeprefix(f"{prefix}/set/") in named
    assert keys[0].rpartition("/")[2] in named or len(found["findings"]) >= 2


@pytest.mark.parametrize("command", [["prune"], ["verify", "--repair"]])
def test_what_changes_files_in_place_is_refused(copied: tuple[str, Path], command: list[str]) -> None:
    done = CliRunner().invoke(cli, [command[0], copied[0], *command[1:]])
    assert "takes no s3:// dataset" in str(done.exception)


def test_what_is_made_lies_on_a_disk(copied: tuple[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    url, _ = copied
    for command in (
        ["merge", "s3://bucket/out", url],
        ["split", url, "s3://bucket/out"],
        ["export", url, "--format", "speculators", "--out", "s3://bucket/out"],
    ):
        code, text = _run(*command)
        assert code == 2
        assert "is a URL" in text
    assert not list(tmp_path.glob("s3*"))


# -- the store itself


def test_create_never_replaces(reachable: MotoServer, prefix: str) -> None:
    store = open_store(ObjectUrl("s3", reachable.bucket.name, prefix))
    assert store.create("a/x", b"one")
    assert not store.create("a/x", b"two")
    assert reachable.bucket.get(f"{prefix}/a/x") == b"one"
    for size in (10, WHOLE_BYTES + 5):
        pieces = [bytes([number % 251]) * min(1 << 20, size) for number in range(max(1, size >> 20))] + [b"end.."]
        whole = b"".join(pieces)
        assert store.upload(f"up/{size}", pieces, temporary=f"up/.{size}.tmp") == len(whole)
        assert store.upload(f"up/{size}", [b"no", *pieces], temporary=f"up/.{size}.tmp") is None
        assert reachable.bucket.get(f"{prefix}/up/{size}") == whole
    assert reachable.bucket.keys(f"{prefix}/up/") == sorted(f"{prefix}/up/{size}" for size in (10, WHOLE_BYTES + 5))
    assert not reachable.bucket.unfinished()


def test_a_stream_that_fails_leaves_nothing(reachable: MotoServer, prefix: str) -> None:
    def broken() -> object:
        for _ in range(WHOLE_BYTES // (4 << 20) + 6):
            yield bytes(4 << 20)
        raise ValueError("the encoder failed")

    store = open_store(ObjectUrl("s3", reachable.bucket.name, prefix))
    with pytest.raises(ValueError, match="the encoder failed"):
        store.upload("x", broken(), temporary=".x.tmp")  # type: ignore[arg-type]
    assert not reachable.bucket.keys(prefix)
    assert not reachable.bucket.unfinished()


def test_errors_of_the_server_are_retried(reachable: MotoServer, prefix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with fault_proxy(reachable) as proxy:
        proxy.errors = 0.3
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{proxy.port}")
        monkeypatch.setenv("HS_STORE_RETRY_S", "60")
        store = open_store(ObjectUrl("s3", reachable.bucket.name, prefix))
        for number in range(12):
            store.put(str(number), b"%d" % number)
        assert [store.read(str(number)) for number in range(12)] == [b"%d" % number for number in range(12)]
        assert proxy.spoiled


def test_what_is_wrong_is_said_in_a_line(reachable: MotoServer, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(StoreError, match="there is no bucket no-such"):
        open_store(ObjectUrl("s3", "no-such", "x")).read("y")
    with pytest.raises(FileNotFoundError):
        open_store(ObjectUrl("s3", reachable.bucket.name, "x")).read("y")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("HS_STORE_RETRY_S", "0")
    with pytest.raises(StoreUnreachable) as caught:
        open_store(ObjectUrl("s3", "bucket", "x")).read("y")
    assert "\n" not in str(caught.value)
    assert "at http://127.0.0.1:9" in str(caught.value)
    with pytest.raises(PreflightError, match="cannot be read"):
        raise_from_cli("info", "s3://bucket/set")


def raise_from_cli(*arguments: str) -> None:
    done = CliRunner().invoke(cli, arguments)
    assert done.exception is not None
    raise done.exception


def test_plain_http_to_another_machine_needs_consent() -> None:
    far = {"AWS_ENDPOINT_URL": "http://minio.lan:9000"}
    with pytest.raises(PreflightError, match="HS_STORE_ALLOW_HTTP=1"):
        store_settings("s3", far)
    assert store_settings("s3", {**far, "HS_STORE_ALLOW_HTTP": "1"}).allow_http
    assert store_settings("s3", {"AWS_ENDPOINT_URL": "http://127.0.0.1:9000"}).allow_http
    assert not store_settings("s3", {"AWS_ENDPOINT_URL": "https://minio.lan"}).allow_http
    for wrong in ({"AWS_ENDPOINT_URL": "minio:9000"}, {"HS_STORE_RETRY_S": "soon"}):
        with pytest.raises(PreflightError):
            store_settings("s3", wrong)


def test_the_cache_is_bounded_and_right() -> None:
    store = MemoryStore()
    whole = bytes(range(256)) * (5 * BLOCK_BYTES // 256) + b"end"
    store.put("x", whole)
    cache = BlockCache(store, limit_bytes=2 * BLOCK_BYTES)
    for at, count in [
        (0, 10),
        (BLOCK_BYTES - 3, 6),
        (3 * BLOCK_BYTES - 1, 2 * BLOCK_BYTES),
        (len(whole) - 2, 9),
        (7, 1),
    ]:
        assert cache.read("x", at, count, len(whole)) == whole[at : at + count]
        assert cache.size_bytes <= 2 * BLOCK_BYTES
    before = store.reads
    assert cache.read("x", 8, 100, len(whole)) == whole[8:108]
    assert store.reads == before


def test_without_the_extra_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(PreflightError, match=r"pip install 'hs-extract\[s3\]'"):
        open_store(ObjectUrl("s3", "bucket", "x"))
