"""`hs-client verify --model`: transformers decides, names what a wrong state is, and clears suspicions."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from checker import Reference
from hs_client.verify.command import VerifySettings, verify_command
from hs_formats.dataset import DatasetPaths
from hs_formats.errors import PreflightError
from hs_formats.verified import VerifiedSet
from part_factory import Record
from real_sets import chats, real_records, write_real_set
from tiny_models import tiny_model

PROMPTS = chats(20, seed=9, longest=40)


@pytest.fixture(scope="module")
def records() -> Sequence[Record]:
    """What tiny-llama really computes."""
    return real_records("tiny-llama", PROMPTS)


def _run(root: Path, model: str, **options: Any) -> tuple[int, str, dict[str, Any]]:
    out = io.StringIO()
    report = root.parent / "report.json"
    settings = VerifySettings(
        dataset=root, scratch=root.parent / "none", model=str(tiny_model(model)), json=str(report), seed=1, **options
    )
    code = verify_command(settings, stream=out)
    return code, out.getvalue(), json.loads(report.read_text())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_right_states_agree(records: Sequence[Record], tmp_path: Path, dtype: torch.dtype) -> None:
    root = tmp_path / "set"
    write_real_set(root, [replace(record, states=record.states.to(dtype)) for record in records])
    code, text, report = _run(root, "tiny-llama", sample=7)
    assert code == 0, text
    assert len(report["recomputed"]) == 7
    assert max(report["recomputed"].values()) < {torch.float32: 1e-5, torch.bfloat16: 4e-3, torch.float16: 1e-3}[dtype]
    assert "model      7 samples computed again" in text
    assert VerifiedSet.read(DatasetPaths(root)).checks[-1] == "model"


def test_what_all_samples_have_wrong_only_the_model_sees(records: Sequence[Record], tmp_path: Path) -> None:
    """Boundary 3 stored as boundary 4 throughout: no sample stands out."""
    root = tmp_path / "set"
    reference = Reference(tiny_model("tiny-llama"), (2, 3, 5))
    write_real_set(root, [replace(record, states=reference.states(record.ids)) for record in records])
    out = io.StringIO()
    assert verify_command(VerifySettings(dataset=root, scratch=tmp_path), stream=out) == 0
    code, _, report = _run(root, "tiny-llama", sample=3)
    assert code == 1
    wrong = [finding for finding in report["findings"] if finding["kind"] == "unlike the model"]
    assert len(wrong) == 3
    assert all("boundary 4 is" in finding["text"] and "it holds boundary 3" in finding["text"] for finding in wrong)
    assert len(VerifiedSet.read(DatasetPaths(root))) == len(records) - 3


def test_a_moved_row_is_named(records: Sequence[Record], tmp_path: Path) -> None:
    root = tmp_path / "set"
    moved = [
        replace(record, states=record.states.roll(1, 0)) if at == 7 else record for at, record in enumerate(records)
    ]
    write_real_set(root, moved)
    code, _, report = _run(root, "tiny-llama", sample=0)  # under suspicion, so looked at all the same
    assert code == 1
    (finding,) = [finding for finding in report["findings"] if finding["kind"] == "unlike the model"]
    assert finding["sample_id"] == records[7].sample_id
    assert "it holds boundary 2, moved by +1 token" in finding["text"]
    assert "it holds the last state, moved by +1 token" in finding["text"]


def test_a_single_wrong_token_is_found(records: Sequence[Record], tmp_path: Path) -> None:
    root = tmp_path / "set"
    at = next(at for at, record in enumerate(records) if len(record.ids) > 30)
    states = records[at].states.clone()
    states[25, 3] += 0.1 * states[25, 3].std() * torch.randn(128, generator=torch.Generator().manual_seed(1))
    write_real_set(root, [replace(record, states=states) if i == at else record for i, record in enumerate(records)])
    code, _, report = _run(root, "tiny-llama", sample=len(records))
    assert code == 1
    (finding,) = [finding for finding in report["findings"] if finding["severity"] == "error"]
    assert finding["sample_id"] == records[at].sample_id
    assert "at token 25, 1 of" in finding["text"]


def test_a_suspicion_that_the_model_does_not_share_is_cleared(
    records: Sequence[Record], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With limits so narrow that right samples are suspected."""
    monkeypatch.setattr("hs_client.verify.sizes._SIGMAS", 0.5)
    monkeypatch.setattr("hs_client.verify.compare._SIZE_FLOOR", 0.0)
    root = tmp_path / "set"
    write_real_set(root, records)
    out = io.StringIO()
    assert verify_command(VerifySettings(dataset=root, scratch=tmp_path), stream=out) == 1
    assert "implausible size (suspect): sample" in out.getvalue()
    assert len(VerifiedSet.read(DatasetPaths(root))) < len(records)
    code, text, report = _run(root, "tiny-llama", sample=0)
    assert code == 0, text
    cleared = {finding["sample_id"] for finding in report["findings"]}
    assert all("but the model says the same" in finding["text"] for finding in report["findings"])
    assert set(report["recomputed"]) == cleared != set()
    assert len(VerifiedSet.read(DatasetPaths(root))) == len(records)


def test_another_model_is_refused(records: Sequence[Record], tmp_path: Path) -> None:
    root = tmp_path / "set"
    write_real_set(root, records)
    with pytest.raises(PreflightError, match="has 8 layers and hidden size 512"):
        _run(root, "wide-llama")
    code, text, _ = _run(root, "tiny-qwen3", sample=2)  # of the same sizes
    assert (code, text.count("unlike the model:")) == (1, 2)
