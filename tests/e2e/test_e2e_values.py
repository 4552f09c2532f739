"""The whole chain on real servers: as many records as prompts, each equal to transformers."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from chain import ServerFactory, command, run_client, running_mover
from checker import Reference, check_dataset
from hs_formats.reader import HiddenStateDataset
from prompt_files import mixed_rows, write_rows

pytestmark = pytest.mark.sglang

BOUNDARIES = (1, 4, 7)  # of 8 layers: the first, one in the middle, L-1
TOLERANCE = 1e-5


@pytest.mark.parametrize("model", ["tiny-dsv3", "tiny-llama"])
def test_every_prompt_becomes_one_record_equal_to_transformers(
    servers: ServerFactory,
    references: Callable[..., Reference],
    destination: Path,
    tmp_path: Path,
    model: str,
) -> None:
    server = servers(model, "--boundaries", "1,4,7")
    rows = mixed_rows(60, seed=1)
    prompts = write_rows(tmp_path / "prompts.jsonl", rows)
    with running_mover(server.scratch, destination, tmp_path):
        done = run_client(prompts, server, "--concurrency", "16")
        again = run_client(prompts, server, "--concurrency", "16")
    assert done.returncode == 0, done.stdout + done.stderr
    assert again.returncode == 0, again.stdout + again.stderr
    dataset = destination / "prompts"
    reference = references(model, BOUNDARIES)
    report = check_dataset(dataset, prompts, reference, max_abs=TOLERANCE)
    report.assert_ok(rows=len(rows), orphans=False)
    assert server.parts() == []
    assert len(list((dataset / "ledger").glob("*.jsonl"))) == 1  # the second run had nothing to send

    # The reader gives the same as the independent checker saw.
    data = HiddenStateDataset(dataset)
    assert len(data) == len(rows)
    for row in rows:
        sample = data[row["id"]]
        assert tuple(sample.input_ids.tolist()) == reference.ids(row)
        assert float((sample.hidden_states - reference.states(sample.input_ids.tolist())).abs().max()) <= TOLERANCE
        assert sample.loss_mask.shape == sample.input_ids.shape
        assert sample.loss_mask.sum() == len(sample.input_ids) or "messages" in row
    # Some prompts were long enough to be captured in several chunks.
    assert any("t0000016-" in path.name for path in (dataset / "data").rglob("*"))
    _negative_controls(data, reference)
    # Verification finds nothing wrong with a real capture, computed again or not.
    options = [] if model != "tiny-llama" else ["--model", str(server.model), "--sample", "5"]
    verified = subprocess.run(
        [command("hs-client"), "verify", str(dataset), "--scratch", str(server.scratch), *options],
        capture_output=True,
        text=True,
        check=False,
    )
    assert verified.returncode == 0, verified.stdout + verified.stderr
    assert len(HiddenStateDataset(dataset, verified_only=True)) == len(rows)


def _negative_controls(data: HiddenStateDataset, reference: Reference) -> None:
    """The comparison must fail for the faults it is there for; else agreement would say nothing."""
    sample = max(data, key=lambda item: len(item.input_ids))
    right = reference.states(sample.input_ids.tolist())
    off_by_one = Reference.__new__(Reference)
    off_by_one.__dict__.update(reference.__dict__)
    off_by_one.boundaries = [2, 5, 6]
    faults = {
        "a row shifted": right.roll(1, dims=0),
        "boundaries off by one": off_by_one.states(sample.input_ids.tolist()),
        "another request": reference.states(sample.input_ids.flip(0).tolist()),
        "slots swapped": right[:, [1, 0, 2, 3]],
    }
    for fault, states in faults.items():
        difference = (sample.hidden_states - states).abs()
        assert float(difference.max()) > 1000 * TOLERANCE, fault
        if fault != "slots swapped":
            # Not by one freak value: each slot that the fault touches is far off.
            touched = difference.flatten(0, 1) if difference.dim() == 2 else difference.amax(dim=(0, 2))
            assert int((touched > 100 * TOLERANCE).sum()) >= 3, (fault, touched)
    assert float((sample.hidden_states - right).abs().max()) <= TOLERANCE  # and only for these
