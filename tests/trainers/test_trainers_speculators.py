"""speculators 0.9.0 reads the export with its own loader, and takes training steps on it."""

# pyright: reportMissingImports=false

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from export_sets import ExportSet
from hs_client.export.norm import MOST_ULPS, bf16_ulps

pytest.importorskip("speculators")


@pytest.fixture(scope="module")
def out(exported: Any) -> Path:
    folder: Path = exported("speculators")
    return folder


def dataset(out: Path, **options: Any) -> Any:
    from speculators.train.data import ArrowDataset

    return ArrowDataset(10_000, out / "data", on_missing="raise", **options)


def draft(states: ExportSet, out: Path) -> Any:
    """Their EAGLE-3 model with the weights of the target, as their trainer makes it."""
    from speculators.models.eagle3 import Eagle3DraftModel
    from speculators.train.cli import create_transformer_layer_config

    d2t, t2d = (torch.from_numpy(np.load(out / "data" / f"{name}-128.npy")) for name in ("d2t", "t2d"))
    shape = create_transformer_layer_config(str(states.model), 1, "llama", "silu", 2048, [])
    return Eagle3DraftModel.from_training_args(
        shape,
        t2d=t2d,
        d2t=d2t,
        draft_vocab_size=128,
        norm_before_residual=True,
        target_layer_ids=list(states.boundaries),
        verifier_name_or_path=str(states.model),
        ttt_steps=2,
        draft_attn_impl="eager",
    )


def test_every_sample_is_what_was_stored(out: Path, states: ExportSet) -> None:
    found = dataset(out)
    assert len(found) == len(states.records)
    assert found.approx_lengths == [len(record.ids) for record in states.records.values()]
    for at, record in enumerate(states.records.values()):
        sample = found[at]
        assert sample["input_ids"].tolist() == list(record.ids)
        ((start, stop),) = record.mask
        assert sample["loss_mask"].tolist() == [int(start <= t < stop) for t in range(len(record.ids))]
        assert torch.equal(sample["hidden_states"], record.states[:, :-1].flatten(1))


def test_the_trainers_norm_gives_the_stored_last_state(out: Path, states: ExportSet) -> None:
    norm = draft(states, out).verifier_norm
    found = dataset(out)
    for at, record in enumerate(states.records.values()):
        before = found[at]["verifier_last_hidden_states"]
        assert not torch.equal(before, record.states[:, -1])
        for weights in (torch.float32, torch.bfloat16):
            again = norm.to(weights)(before)
            assert int(bf16_ulps(again, record.states[:, -1]).max()) <= MOST_ULPS


def test_fp8_is_read_by_their_fp8_backend(exported: Any, states: ExportSet) -> None:
    from hs_connectors import FP8Transfer

    out = exported("speculators", fp8=True)
    found = dataset(out, transfer=FP8Transfer(out / "data" / "hidden_states"))
    norm = draft(states, out).verifier_norm
    for at, record in enumerate(states.records.values()):
        sample = found[at]
        aux = record.states[:, :-1].flatten(1).float()
        assert sample["hidden_states"].dtype == torch.bfloat16
        error = (sample["hidden_states"].float() - aux).norm() / aux.norm()
        assert 0 < error < 0.05
        last = record.states[:, -1].float()
        again = norm(sample["verifier_last_hidden_states"].float())
        assert float((again - last).norm() / last.norm()) < 0.05


def test_the_printed_command_is_one_of_theirs(out: Path, states: ExportSet) -> None:
    pytest.importorskip("pydantic_settings")
    from speculators.train.config import TrainConfig, resolution

    (command,) = json.loads((out / "hs-export.json").read_text())["command"]
    words = shlex.split(command)
    assert words[:2] == ["speculators", "train"]
    config = resolution.resolve(TrainConfig, words[2:])
    assert config.data.data_path == str(out / "data")
    assert config.draft.target_layer_ids == list(states.boundaries)
    assert config.draft.draft_vocab_size == 128


def test_the_vocabulary_map_is_theirs(out: Path) -> None:
    from speculators.train.vocab_mapping import build_vocab_mappings_from_distribution

    frequencies = torch.load(out / "data" / "token_freq.pt", weights_only=True)
    d2t, t2d = build_vocab_mappings_from_distribution(frequencies, 128, 512)
    assert np.array_equal(d2t.numpy(), np.load(out / "data" / "d2t-128.npy"))
    assert np.array_equal(t2d.numpy(), np.load(out / "data" / "t2d-128.npy"))


def test_training_steps(out: Path, states: ExportSet) -> None:
    """Their command wants an accelerator, so model, loader, collator and loss are put together here."""
    from speculators.losses import resolve_loss_config
    from speculators.models.eagle3.data import shift_batch
    from speculators.train.data import CollateFn

    torch.manual_seed(0)
    model = draft(states, out)
    found = dataset(out, hidden_states_dtype=torch.float32)
    collate = CollateFn(256, states.records["row-0"].states.shape[2], 3, torch.float32, shift_batch)
    batch = collate([found[at] for at in range(len(found))])
    assert batch.pop("error_records") == 0
    loss_config = resolve_loss_config("kl_div", "eager")
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], 1e-3)
    losses: list[float] = []
    for _ in range(8):
        _, loss, _ = model(**batch, ttt_steps=2, loss_config=loss_config)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss))
    assert all(torch.isfinite(torch.tensor(losses)))
    assert losses[-1] < losses[0]
