"""SpecForge 0.2 reads the export with its own loader, and takes training steps on it."""

# pyright: reportMissingImports=false

from __future__ import annotations

import types
from pathlib import Path
from typing import Any

import pytest
import torch

from export_sets import ExportSet

pytest.importorskip("specforge")


@pytest.fixture(scope="module")
def out(exported: Any) -> Path:
    folder: Path = exported("specforge")
    return folder


@pytest.fixture(scope="module")
def config(out: Path) -> Any:
    from specforge.config import load_config

    return load_config(
        str(out / "train.json"),
        ["model.torch_dtype=float32", "training.attention_backend=sdpa", "training.ttt_length=3"],
    )


def samples(out: Path) -> list[dict[str, torch.Tensor]]:
    from specforge.runtime.data_plane.feature_store import load_feature_file
    from specforge.runtime.data_plane.offline_reader import OfflineManifestReader

    refs = OfflineManifestReader(str(out / "hidden_states"), validate_files=True).read()
    return [load_feature_file(ref.feature_store_uri.removeprefix("file://")) for ref in refs]


def test_every_sample_is_what_was_stored(out: Path, states: ExportSet) -> None:
    found = samples(out)
    assert len(found) == len(states.records)
    for raw, record in zip(found, states.records.values(), strict=True):
        assert raw["input_ids"].tolist() == list(record.ids)
        ((start, stop),) = record.mask
        assert raw["loss_mask"].tolist() == [int(start <= at < stop) for at in range(len(record.ids))]
        assert torch.equal(raw["hidden_state"], record.states[None, :, -1])
        assert torch.equal(raw["aux_hidden_state"], record.states[None, :, :-1].flatten(2))


def test_the_run_config_cuts_nothing(config: Any, states: ExportSet) -> None:
    from specforge.algorithms.eagle3.data import normalize_offline_sample

    assert config.mode == "offline"
    longest = max(len(record.ids) for record in states.records.values())
    assert config.data.max_length == longest
    raw = max(samples(Path(config.data.hidden_states_path).parent), key=lambda raw: raw["input_ids"].numel())
    assert normalize_offline_sample(raw, config.data.max_length)["input_ids"].shape == (1, longest)


def test_the_vocabulary_map_is_what_specforge_counts(out: Path) -> None:
    from specforge.training.vocab_mapping import count_effective_feature_tokens

    counts = count_effective_feature_tokens(str(out / "hidden_states"))
    maps = torch.load(out / "vocab_mapping.pt", weights_only=True)
    kept = (torch.arange(len(maps["d2t"])) + maps["d2t"]).tolist()
    assert maps["t2d"].nonzero()[:, 0].tolist() == kept == sorted(kept)
    left = [count for token, count in counts.items() if token not in set(kept)]
    assert min(counts[token] for token in kept) >= max(left, default=0)


def test_training_steps(config: Any) -> None:
    """All but FSDP, which has no CPU form, and the Triton loss, for which SpecForge's own torch form stands in."""
    from hs_server.cpu_profile import triton_mock

    triton_mock.install()
    import specforge.algorithms.eagle3.model as eagle3_model
    from specforge.algorithms.builtin import builtin_algorithm_registry
    from specforge.algorithms.eagle3.data import normalize_offline_sample
    from specforge.core import loss as specforge_loss
    from specforge.training.assembly import build_model_bundle
    from specforge.training.strategies.base import Eagle3TrainStrategy

    eagle3_model.LogSoftmaxLoss = types.SimpleNamespace(apply=specforge_loss._compute_loss)
    torch.manual_seed(0)
    bundle = build_model_bundle(config, algorithm=builtin_algorithm_registry().resolve("eagle3"))
    assert bundle.draft_vocab_size == 128
    assert bundle.draft_model.t2d.sum() == 128
    strategy = Eagle3TrainStrategy(bundle.model, target_head=bundle.target_head.float())
    optimizer = torch.optim.AdamW([p for p in bundle.model.parameters() if p.requires_grad], 1e-3)
    losses: list[float] = []
    for raw in samples(Path(config.data.hidden_states_path).parent) * 3:
        tensors = normalize_offline_sample(raw, config.data.max_length)
        tensors = {key: value.float() if value.is_floating_point() else value for key, value in tensors.items()}
        batch = types.SimpleNamespace(tensors=tensors, metadata={"target_repr": "hidden_state"}, strategy="eagle3")
        strategy.validate_batch = lambda batch: None
        loss = strategy.forward_loss(batch).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss))
    assert all(torch.isfinite(torch.tensor(losses)))
    assert sum(losses[-4:]) < sum(losses[:4])
