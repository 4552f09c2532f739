"""Two tensor-parallel ranks, each writers mode: identical records, equal to transformers."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from chain import ServerFactory, run_client, running_mover, start_client, wait_until
from checker import Reference, check_dataset
from hs_formats.names import PartName
from prompt_files import mixed_rows, write_rows

pytestmark = pytest.mark.sglang

TP = ("--tp-size", "2", "--chunked-prefill-size", "16")


@pytest.mark.parametrize("writers", ["first", "spread", "all"])
def test_writers(
    servers: ServerFactory,
    references: Callable[..., Reference],
    destination: Path,
    tmp_path: Path,
    writers: str,
) -> None:
    server = servers("tiny-dsv3", "--boundaries", "1,4,7", "--writers", writers, sglang=TP)
    rows = mixed_rows(24, seed=2)
    prompts = write_rows(tmp_path / "prompts.jsonl", rows)
    if writers == "all":
        # What the ranks leave in scratch, seen before the mover takes it.
        status, _ = server.generate("hs-00000000-00000001-00", list(range(5, 45)))
        assert status == 200
        wait_until(lambda: len(server.parts()) >= 6, timeout_s=20, what="both ranks' parts")
        names = [PartName.parse(name) for name in server.parts()]
        chunks = {rank: sorted((p.start, p.stop) for p in names if p.rank == rank) for rank in (0, 1)}
        assert chunks[0] == chunks[1] == [(0, 16), (16, 32), (32, 40)]
        for name in names:
            (server.scratch / str(name)).unlink()
    with running_mover(server.scratch, destination, tmp_path):
        done = run_client(prompts, server, "--concurrency", "16")
    assert done.returncode == 0, done.stdout + done.stderr
    dataset = destination / "prompts"
    report = check_dataset(dataset, prompts, references("tiny-dsv3", (1, 4, 7)), max_abs=1e-5)
    report.assert_ok(rows=len(rows), orphans=False)
    ranks = {path.name.split(".r")[1][:2] for path in (dataset / "data").rglob("hs-*")}
    assert {"first": ranks == {"00"}, "spread": ranks == {"00", "01"}, "all": ranks <= {"00", "01"}}[writers], ranks
    assert server.parts() == []


def test_a_rank_that_writes_other_values_fails_the_record_by_name(
    servers: ServerFactory, destination: Path, tmp_path: Path
) -> None:
    """One bit of rank 1's copy of one chunk is changed in scratch while a crawling mover is busy with older parts."""
    server = servers("tiny-dsv3", "--boundaries", "1,4,7", "--writers", "all", sglang=TP)
    prompts = write_rows(tmp_path / "prompts.jsonl", mixed_rows(6, seed=3))
    log = tmp_path / "client.log"
    with running_mover(server.scratch, destination, tmp_path, "--limit-rate", "1000") as crawling:
        client = start_client(prompts, server, log, "--concurrency", "4", "--max-retries", "0", "--part-timeout", "30")
        victims = wait_until(
            lambda: [name for name in server.parts() if name.endswith(".r01.pt")][4:],
            timeout_s=60,
            what="parts of rank 1",
        )
        crawling.kill()
    victim = server.scratch / victims[-1]
    with zipfile.ZipFile(victim) as archive:
        states = archive.getinfo("part/data/1")
    data = bytearray(victim.read_bytes())
    data[states.header_offset + states.file_size // 2] ^= 1
    victim.write_bytes(data)
    with running_mover(server.scratch, destination, tmp_path):
        code = client.wait(timeout=180)
    text = log.read_text()
    assert code == 1, text
    assert "ranks disagree" in text, text
    assert victim.name[:23] in text, text
