"""A dataset that was harmed, repaired and run again is what it was: `hs-client run`, `verify --repair`, `run`."""

from __future__ import annotations

import subprocess
from pathlib import Path

from chain import command, running_mover
from client_runs import client, prompts
from fake_server import serving
from hs_formats.dataset import DatasetPaths
from hs_formats.reader import HiddenStateDataset


def _verify(dataset: Path, scratch: Path, *options: str | Path) -> tuple[int, str]:
    done = subprocess.run(
        [command("hs-client"), "verify", str(dataset), "--scratch", str(scratch), *map(str, options)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, done.stdout + done.stderr


def test_what_a_repair_gives_up_the_next_run_captures_again(tmp_path: Path) -> None:
    scratch, destination = tmp_path / "scratch", tmp_path / "dst"
    scratch.mkdir(mode=0o700)
    # No token at one place twice: the fake server's states depend on token and place alone.
    ids = {f"s{i}": [20 * i + j % 20 + 1 for j in range(5 + 3 * i)] for i in range(14)}
    rows = [{"id": name, "input_ids": tokens} for name, tokens in ids.items()]
    file = prompts(tmp_path / "p.jsonl", rows)
    dataset = destination / "p"
    with serving(scratch) as server:
        with running_mover(scratch, destination, tmp_path):
            ended = client(server, file)
            assert ended.code == 0, ended.text
            code, text = _verify(dataset, scratch)
            assert code == 0, text
            code, text = _verify(dataset, scratch, "--repair")
            assert (code, "stop it before the dataset is repaired" in text) == (3, True), text
        paths = DatasetPaths(dataset)
        lost = next(path for path in sorted(paths.data.rglob("hs-*")) if "-00000009-" in path.name)
        lost.unlink()
        damaged = next(path for path in sorted(paths.data.rglob("hs-*")) if "-00000004-" in path.name)
        damaged.write_bytes(damaged.read_bytes()[:-3])
        (ledger,) = paths.ledger.glob("*.jsonl")
        ledger.write_bytes(ledger.read_bytes().replace(b'"sample_id":"s7"', b'"sample_id":"t7"', 1))
        code, text = _verify(dataset, scratch)
        assert code == 1
        assert all(name in text for name in (lost.name, damaged.name, f"ledger/{ledger.name}:")), text
        code, text = _verify(dataset, scratch, "--repair", "--prompts", file)
        assert code == 1, text
        assert "lost       sample 's9'" in text
        assert "lost       sample 's4'" in text
        assert set(HiddenStateDataset(dataset).sample_ids) == set(ids) - {"s4", "s9"}
        with running_mover(scratch, destination, tmp_path):
            ended = client(server, file)
            assert ended.code == 0, ended.text
            assert "2 done, 0 failed, 0 rejected, 12 done earlier" in ended.text
    code, text = _verify(dataset, scratch)
    assert code == 0, text
    data = HiddenStateDataset(dataset, verified_only=True)
    assert sorted(data.sample_ids) == sorted(ids)
    assert all(sample.input_ids.tolist() == ids[sample.sample_id] for sample in data)
