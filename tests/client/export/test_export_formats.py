"""What each format writes, read back without this project's code and compared with the reader, bit for bit.

`make test-trainers` reads the same files with the trainers' own loaders.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from safetensors.torch import load_file

from export_sets import EPS, ExportSet, make_export_set
from hs_client.export.command import export_command
from hs_client.export.norm import MOST_ULPS, bf16_ulps, rms_norm
from hs_client.export.settings import ExportSettings
from hs_client.export.speculators import quantize
from hs_formats.reader import HiddenStateDataset, Sample

LENGTHS = (5, 17, 40, 9, 1, 33)


def run(source: ExportSet, out: Path, format_name: str, **changes: Any) -> list[str]:
    """Export; the lines that were told."""
    told: list[str] = []
    settings = ExportSettings(dataset=source.root, out=out, format=format_name)
    assert export_command(replace(settings, **changes), told.append) == 0
    return told


def stored(source: ExportSet) -> Iterator[Sample]:
    return iter(HiddenStateDataset(source.root))


def record(out: Path) -> dict[str, Any]:
    return dict(json.loads((out / "hs-export.json").read_text()))


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> ExportSet:
    return make_export_set(tmp_path_factory.mktemp("set"), LENGTHS)


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> ExportSet:
    """Stored in float32, so that an export casts."""
    return make_export_set(tmp_path_factory.mktemp("wide"), LENGTHS, dtype=torch.float32)


def load_pt(path: Path) -> dict[str, Any]:
    """As trainers do; and the file owns what it holds, no more."""
    content = torch.load(path, weights_only=True, mmap=True)
    tensors = [value for value in content.values() if isinstance(value, torch.Tensor)]
    assert path.stat().st_size < sum(tensor.nbytes for tensor in tensors) + 3000
    return dict(content)


@pytest.mark.parametrize("name", ["source", "wide"])
@pytest.mark.parametrize("algorithm", ["eagle3", "dflash", "dspark"])
def test_specforge(name: str, algorithm: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    source = request.getfixturevalue(name)
    run(source, tmp_path / "out", "specforge", algorithm=algorithm)
    files = sorted((tmp_path / "out" / "hidden_states").rglob("*.ckpt"))
    assert len(files) == len(LENGTHS)
    for path, sample in zip(files, stored(source), strict=True):
        found = load_pt(path)
        states = sample.hidden_states.to(torch.bfloat16)
        aux, last = states[None, :, :-1].flatten(2), states[None, :, -1]
        wanted = {
            "eagle3": {"aux_hidden_state": aux, "hidden_state": last},
            "dflash": {"hidden_states": aux},
            "dspark": {"hidden_states": aux, "target_last_hidden_states": last},
        }[algorithm] | {"input_ids": sample.input_ids, "loss_mask": sample.loss_mask}
        assert found.keys() == wanted.keys()
        for key, tensor in wanted.items():
            assert (found[key].dtype, found[key].shape) == (tensor.dtype, tensor.shape)
            assert torch.equal(found[key], tensor), key
    draft = json.loads((tmp_path / "out" / "draft_config.json").read_text())
    if algorithm == "eagle3":
        assert draft["eagle_config"]["eagle_aux_hidden_state_layer_ids"] == [1, 3, 4]
    else:
        assert draft == {"dflash_config": {"target_layer_ids": [1, 3, 4]}}
    rounded = name == "wide"
    assert record(tmp_path / "out")["cast"].startswith("float32 to bfloat16, rounded" if rounded else "none")


def test_modelopt(source: ExportSet, tmp_path: Path) -> None:
    run(source, tmp_path / "out", "modelopt", draft_vocab_size=64)
    files = sorted((tmp_path / "out" / "data").rglob("*.pt"))
    assert len(files) == len(LENGTHS), "ModelOpt loads every .pt below its folder"
    for path, sample in zip(files, stored(source), strict=True):
        found = load_pt(path)
        assert found.pop("conversation_id") == sample.sample_id
        assert found.pop("hidden_states_prenorm") is False
        assert torch.equal(found.pop("input_ids"), sample.input_ids)
        assert torch.equal(found.pop("loss_mask"), sample.loss_mask)
        assert torch.equal(found.pop("hidden_states"), sample.hidden_states[:, -1])
        assert torch.equal(found.pop("aux_hidden_states"), sample.hidden_states[:, :-1].flatten(1))
        assert not found
    recipe = json.loads((tmp_path / "out" / "recipe.yaml").read_text())
    assert recipe["training"] == {"training_seq_len": 40, "answer_only_loss": True}
    assert torch.load(recipe["data"]["draft_vocab_cache"], weights_only=True).shape == (64,)


def test_angelslim(source: ExportSet, tmp_path: Path) -> None:
    run(source, tmp_path / "out", "angelslim", draft_vocab_size=64)
    for at, sample in enumerate(stored(source)):
        found = load_pt(tmp_path / "out" / f"data/rank_0/rows_0-{len(LENGTHS)}/data_{at}.ckpt")
        assert torch.equal(found.pop("input_ids"), sample.input_ids[None])
        assert torch.equal(found.pop("loss_mask"), sample.loss_mask[None])
        assert torch.equal(found.pop("target_hiddens"), sample.hidden_states[None, :, -1])
        assert torch.equal(found.pop("hidden_states"), sample.hidden_states[None, :, :-1].flatten(2))
        assert not found
    maps = torch.load(tmp_path / "out" / "data" / "vocab_mapping.pt", weights_only=True)
    assert (maps["d2t"].dtype, maps["t2d"].dtype, maps["t2d"].shape) == (torch.int64, torch.bool, (512,))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_pt_and_safetensors(source: ExportSet, tmp_path: Path, dtype: str) -> None:
    run(source, tmp_path / "pt", "pt", dtype=dtype, draft_vocab_size=64)
    run(source, tmp_path / "st", "safetensors", dtype=dtype, draft_vocab_size=64)
    lines = [json.loads(line) for line in (tmp_path / "pt" / "hs-samples.jsonl").read_text().splitlines()]
    for line, sample in zip(lines, stored(source), strict=True):
        assert line["sample_id"] == sample.sample_id
        found = load_pt(tmp_path / "pt" / line["file"])
        assert (found.pop("sample_id"), found.pop("boundaries")) == (sample.sample_id, [2, 4, 5])
        other = load_file(tmp_path / "st" / line["file"].replace(".pt", ".safetensors"))
        assert found.keys() == other.keys() == {"input_ids", "loss_mask", "hidden_states"}
        for tensors in (found, other):
            assert torch.equal(tensors["hidden_states"], sample.hidden_states.to(getattr(torch, dtype)))
            assert torch.equal(tensors["input_ids"], sample.input_ids)
            assert torch.equal(tensors["loss_mask"], sample.loss_mask)
    maps = torch.load(tmp_path / "pt" / "vocab_mapping.pt", weights_only=True)
    other = load_file(tmp_path / "st" / "vocab_mapping.safetensors")
    assert all(torch.equal(maps[key], other[key]) for key in ("d2t", "t2d"))


# -- DeepSpec: an independent reader of its cache, version 2


def read_cache(folder: Path) -> Iterator[dict[str, Any]]:
    manifest = json.loads((folder / "manifest.json").read_text())
    assert (manifest["version"], manifest["index_record_size"]) == (2, 56)
    assert (manifest["hidden_dtype"], manifest["token_dtype"], manifest["mask_dtype"]) == ("bfloat16", "int32", "uint8")
    assert [shard["shard_id"] for shard in manifest["shards"]] == list(range(manifest["num_shards"]))
    hidden, layers = manifest["hidden_size"], len(manifest["target_layer_ids"])
    index = (folder / "samples.idx").read_bytes()
    assert len(index) == 56 * manifest["num_samples"]
    used = dict.fromkeys(range(manifest["num_shards"]), 0)
    for at in range(manifest["num_samples"]):
        sample, shard, n, *offsets = struct.unpack_from("<QIIQQQQQ", index, 56 * at)
        assert sample == at
        data = (folder / manifest["shards"][shard]["file_name"]).read_bytes()
        ids, attention, loss, aux, last = offsets
        end = last + 2 * n * hidden
        used[shard] = max(used[shard], end)
        assert offsets == sorted(offsets)
        assert end <= len(data)
        yield {
            "shard": shard,
            "input_ids": np.frombuffer(data, "<i4", n, ids).tolist(),
            "attention_mask": list(data[attention : attention + n]),
            "loss_mask": list(data[loss : loss + n]),
            "aux": torch.frombuffer(bytearray(data[aux:last]), dtype=torch.bfloat16).view(n, layers * hidden),
            "last": torch.frombuffer(bytearray(data[last:end]), dtype=torch.bfloat16).view(n, hidden),
        }
    sizes = [(folder / shard["file_name"]).stat().st_size for shard in manifest["shards"]]
    assert sizes == list(used.values()), "bytes that no record names"


@pytest.mark.parametrize(("shard_bytes", "shards"), [(1 << 30, 1), (20_000, 4), (1, 6)])
def test_deepspec(source: ExportSet, tmp_path: Path, shard_bytes: int, shards: int) -> None:
    run(source, tmp_path / "out", "deepspec", shard_bytes=shard_bytes)
    found = list(read_cache(tmp_path / "out" / "cache"))
    assert len({sample["shard"] for sample in found}) == shards
    for mine, sample in zip(found, stored(source), strict=True):
        assert mine["input_ids"] == sample.input_ids.tolist()
        assert mine["attention_mask"] == [1] * len(sample.input_ids)
        assert mine["loss_mask"] == sample.loss_mask.tolist()
        assert torch.equal(mine["aux"], sample.hidden_states[:, :-1].flatten(1))
        assert torch.equal(mine["last"], sample.hidden_states[:, -1])
    manifest = json.loads((tmp_path / "out" / "cache" / "manifest.json").read_text())
    assert manifest["target_layer_ids"] == [1, 3, 4]
    assert manifest["target_model_name_or_path"] == str(source.model)


# -- speculators


def rows_of(folder: Path) -> list[dict[str, Any]]:
    state = json.loads((folder / "state.json").read_text())
    with pa.memory_map(str(folder / state["_data_files"][0]["filename"])) as file:
        return list(pa.ipc.open_stream(file).read_all().to_pylist())


@pytest.mark.parametrize("name", ["source", "wide"])
def test_speculators(name: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    source = request.getfixturevalue(name)
    told = run(source, tmp_path / "out", "speculators", draft_vocab_size=64)
    weight = load_file(source.model / "model.safetensors")["model.norm.weight"]
    rows = rows_of(tmp_path / "out" / "data")
    for at, sample in enumerate(stored(source)):
        found = load_file(tmp_path / "out" / "data" / "hidden_states" / f"hs_{at}.safetensors")
        assert found.keys() == {"hidden_states", "token_ids"}
        assert rows[at] == {
            "input_ids": sample.input_ids.tolist(),
            "loss_mask": sample.loss_mask.tolist(),
            "seq_len": len(sample.input_ids),
        }
        assert torch.equal(found["token_ids"], sample.input_ids)
        states = found["hidden_states"]
        assert (states.dtype, states.shape) == (torch.bfloat16, sample.hidden_states.shape)
        assert torch.equal(states[:, :-1], sample.hidden_states[:, :-1].to(torch.bfloat16))
        again = rms_norm(states[:, -1], weight, EPS, "w")
        assert int(bf16_ulps(again, sample.hidden_states[:, -1]).max()) <= MOST_ULPS
    about = record(tmp_path / "out")
    assert about["layout"]["last_state"] == "pre_norm"
    assert about["layout"]["norm"]["tensor"] == "model.norm.weight"
    assert about["layout"]["layer_ids"] == [2, 4, 5]
    assert 0 < about["facts"]["norm_ulps"] <= MOST_ULPS
    assert any(line.startswith("norm       undone: divided by w of model.norm.weight") for line in told)
    frequencies = torch.load(tmp_path / "out" / "data" / "token_freq.pt", weights_only=True)
    assert sum(frequencies.values()) == sum(int(sample.loss_mask.sum()) for sample in stored(source))


def test_speculators_one_plus_w(tmp_path: Path) -> None:
    source = make_export_set(tmp_path, LENGTHS, gain="1+w", model_type="gemma3_text")
    run(source, tmp_path / "out", "speculators", algorithm="dflash")
    weight = load_file(source.model / "model.safetensors")["model.norm.weight"]
    for at, sample in enumerate(stored(source)):
        states = load_file(tmp_path / "out" / "data" / "hidden_states" / f"hs_{at}.safetensors")["hidden_states"]
        again = rms_norm(states[:, -1], weight, EPS, "1+w")
        assert int(bf16_ulps(again, sample.hidden_states[:, -1]).max()) <= MOST_ULPS


def test_speculators_fp8(source: ExportSet, tmp_path: Path) -> None:
    run(source, tmp_path / "out", "speculators", fp8=True)
    weight = load_file(source.model / "model.safetensors")["model.norm.weight"].float()
    for at, sample in enumerate(stored(source)):
        found = load_file(tmp_path / "out" / "data" / "hidden_states" / f"hs_{at}.safetensors")
        n = len(sample.input_ids)
        assert found["hidden_states"].dtype == torch.float8_e4m3fn
        assert (found["hidden_states_scales"].dtype, found["hidden_states_scales"].shape) == (torch.float32, (n, 1, 1))
        states = found["hidden_states"].float() * found["hidden_states_scales"]
        aux = sample.hidden_states[:, :-1].float()
        assert float((states[:, :-1] - aux).norm() / aux.norm()) < 0.04
        last = sample.hidden_states[:, -1].float()
        again = rms_norm(states[:, -1], weight, EPS, "w")
        assert float((again - last).norm() / last.norm()) < 0.04


def test_fp8_scales_the_last_slot_by_powers_of_two_alone() -> None:
    states = torch.randn(6, 4, 32) * torch.tensor([1.0, 50.0, 3000.0, 1.0])[:, None]
    quantized, scales = quantize(states)
    back = quantized.float() * scales
    ratio = back[:, -1].abs().amax(-1) / states[:, -1].abs().amax(-1)
    assert torch.allclose(ratio, torch.exp2(torch.round(torch.log2(ratio))), rtol=0.07)
    assert bool((ratio > 256).all())
    assert bool(torch.isfinite(back).all())
    zero, scale = quantize(torch.zeros(2, 3, 4))
    assert torch.equal(zero.float() * scale, torch.zeros(2, 3, 4))


# -- what all formats have in common


@pytest.mark.parametrize(
    ("format_name", "file", "key"),
    [("specforge", "train.json", ""), ("modelopt", "recipe.yaml", ""), ("pt", "hs-export.json", "")],
)
def test_what_is_said_of_the_export_is_recorded(
    source: ExportSet, tmp_path: Path, format_name: str, file: str, key: str
) -> None:
    told = run(source, tmp_path / "out", format_name)
    about = record(tmp_path / "out")
    assert (tmp_path / "out" / file).is_file()
    assert (about["state"], about["samples"], about["tokens"], about["longest"]) == ("complete", 6, sum(LENGTHS), 40)
    assert about["serving"]["eagle_aux_hidden_state_layer_ids"] == [1, 3, 4]
    assert about["serving"]["engine"] == "sglang 0.5.20"
    draft = json.loads((tmp_path / "out" / "draft_config.json").read_text())
    assert draft["eagle_config"]["eagle_aux_hidden_state_layer_ids"] == [1, 3, 4]
    text = "\n".join(told)
    assert "because SGLang adds 1 to each id" in text
    assert about["cast"] in text
    assert all(line in text for line in about["command"])
