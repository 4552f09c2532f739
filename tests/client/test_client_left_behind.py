"""What the mover cannot take or puts aside: the client says so, with the exit code of storage, and goes on later."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from chain import MoverProcess, running_mover, wait_until
from client_runs import check_records, client, prompts, start
from fake_server import Act, serving


@pytest.fixture
def mover(tmp_path: Path) -> Iterator[MoverProcess]:
    with running_mover(tmp_path / "scratch", tmp_path / "data", tmp_path) as process:
        yield process


def test_when_all_parts_are_quarantined_it_is_not_the_servers_loss(mover: MoverProcess, tmp_path: Path) -> None:
    rows = [{"id": f"r{i}", "input_ids": [i + 1, 7, 9]} for i in range(200)]
    with serving(mover.scratch, act=lambda i, rid, t: Act(ids=[-1] * 3)) as server:
        ended = client(server, prompts(tmp_path / "p.jsonl", rows), "--concurrency", "16")
        assert ended.code == 5, ended.text
        assert "the mover puts the parts aside, the last one because of" in ended.text
        assert "token id -1 is negative" in ended.text
        server.act = lambda i, rid, t: Act()
        assert client(server, tmp_path / "p.jsonl").code == 0
    check_records(mover.dst / "p", {row["id"]: row["input_ids"] for row in rows})  # type: ignore[misc]


def test_a_resume_names_parts_that_the_mover_leaves_alone(mover: MoverProcess, tmp_path: Path) -> None:
    rows = [{"id": "a", "input_ids": [1, 2, 3]}]
    file = prompts(tmp_path / "p.jsonl", rows)
    with serving(mover.scratch, act=lambda i, rid, t: Act(delay_s=60, abandon=True)) as server:
        process = start(server, file, log=tmp_path / "log")
        wait_until(lambda: bool(server.requests), timeout_s=60, what="the request")
        process.kill()
        process.wait()
        link = mover.scratch / f"{server.rids[0]}.t0000000-0000003of0000003.r00.pt"
        link.symlink_to(tmp_path / "nowhere")
        server.act = lambda i, rid, t: Act()
        ended = client(server, file)
        assert ended.code == 5, ended.text
        assert (
            f"1 parts of earlier runs stay in scratch, such as {link.name}: the mover leaves them alone" in ended.text
        )
        link.unlink()
        assert client(server, file).code == 0
    check_records(mover.dst / "p", {"a": [1, 2, 3]})
