"""`hs-client verify` on real states: nothing is found in clean sets, and every fault is found and named."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch

from faults import FAULTS, Fault, clean_copy
from hs_client.verify.run import Verification, verify
from hs_formats.dataset import DatasetPaths
from part_factory import Record
from real_sets import chats, real_records, write_real_set

MODELS = ("tiny-llama", "tiny-dsv3", "tiny-qwen3")

Sets = Callable[..., tuple[Path, Sequence[Record]]]


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> Sets:
    """`sets(model, dtype)`: a clean dataset and its records, each made once."""
    made: dict[object, tuple[Path, Sequence[Record]]] = {}

    def get(model: str, dtype: torch.dtype = torch.float32) -> tuple[Path, Sequence[Record]]:
        if (model, dtype) not in made:
            root = tmp_path_factory.mktemp("clean") / "set"
            records = real_records(model, chats(28, seed=3, longest=64), dtype=dtype)
            write_real_set(root, records)
            made[model, dtype] = root, records
        return made[model, dtype]

    return get


def _verify(root: Path) -> Verification:
    paths = DatasetPaths(root)
    info = paths.read_info()
    assert info is not None
    return verify(paths, info)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("model", MODELS)
def test_no_false_alarm_on_a_clean_set(sets: Sets, model: str, dtype: torch.dtype) -> None:
    root, records = sets(model, dtype)
    found = _verify(root)
    assert [str(finding) for finding in found.findings] == []
    assert len(found.verified) == len(records)


def test_there_are_at_least_sixty_faults_and_each_has_a_name_of_its_own() -> None:
    assert len({fault.name for fault in FAULTS}) == len(FAULTS) >= 60


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_every_fault_is_found_and_named(sets: Sets, tmp_path: Path, fault: Fault) -> None:
    clean, records = sets("tiny-llama")
    root = clean_copy(clean, tmp_path / "set")
    named = fault.inject(root, records)
    found = _verify(root)
    told = [finding for finding in found.bad if finding.kind in fault.kinds]
    assert any(named in (finding.sample_id, finding.where) or named in str(finding) for finding in told), (
        named,
        list(map(str, found.bad)),
    )
    touched = {finding.sample_id for finding in found.bad}
    assert not touched & {sample.sample_id for sample in found.verified}
