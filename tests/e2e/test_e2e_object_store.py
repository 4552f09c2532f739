"""A real server, a mover into a bucket, a client: the states that transformers computes, read back from the bucket."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from chain import ServerFactory, run_client
from checker import Reference, check_dataset
from hs_formats.reader import HiddenStateDataset
from object_mover import Mover
from object_servers import Bucket, moto_server, with_environment
from prompt_files import mixed_rows, write_rows

BOUNDARIES = (2, 4, 5)  # 2, L//2 and L-3 of 8 layers

pytestmark = [pytest.mark.sglang, pytest.mark.slow, pytest.mark.timeout(600)]


def _download(bucket: Bucket, prefix: str, folder: Path) -> Path:
    """The dataset as it would lie on a disk: objects to files, the segments of a log one after the other."""
    for key in bucket.keys(prefix + "/"):
        book, *rest = key.removeprefix(prefix + "/").split("/")
        name = f"{rest[0]}.jsonl" if book in ("manifest", "ledger") else "/".join(rest)
        path = folder / book / name if rest else folder / book
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as file:
            file.write(bucket.get(key))
    return folder


def test_states_of_a_real_server_come_back_from_a_bucket(
    servers: ServerFactory,
    references: Callable[..., Reference],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = mixed_rows(10, seed=21)
    prompts = write_rows(tmp_path / "prompts.jsonl", rows)
    server = servers("tiny-llama")
    with moto_server() as store:
        for name, value in store.environment().items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("HS_CACHE_DIR", str(tmp_path / "cache"))
        mover = Mover(server.scratch, f"s3://{store.bucket.name}/data", with_environment(store), tmp_path / "mover.log")
        try:
            done = run_client(prompts, server)
        finally:
            mover.end()
        assert done.returncode == 0, done.stdout + done.stderr
        folder = _download(store.bucket, "data/prompts", tmp_path / "copy")
        there = HiddenStateDataset(f"s3://{store.bucket.name}/data/prompts")
        here = HiddenStateDataset(folder)
        assert list(there.sample_ids) == list(here.sample_ids)
        for one, other in zip(there, here, strict=True):
            assert torch.equal(one.hidden_states, other.hidden_states)
    check_dataset(folder, prompts, references("tiny-llama", BOUNDARIES), max_abs=1e-5).assert_ok(
        rows=len(rows), orphans=False
    )
