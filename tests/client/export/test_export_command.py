"""`hs-client export` as a command: what it refuses, what it leaves out, and that a killed one ends like any other."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from chain import command
from export_sets import ExportSet, make_export_set, norm_model, verify_all
from hs_client.export.command import export_command
from hs_client.export.errors import (
    CannotWrite,
    ExportIncomplete,
    NormUnsound,
    NothingVerified,
    OtherExport,
    OutInUse,
    WrongChoice,
)
from hs_client.export.record import LOCK, remove_temporaries
from hs_client.export.settings import FORMATS, ExportSettings
from hs_formats.durable import make_folders
from hs_formats.errors import HsError, PreflightError, UsageError
from hs_formats.index import DatasetIndex
from hs_formats.verified import VerifiedSet
from part_factory import dataset_info, write_dataset
from small_tmpfs import small_tmpfs

LENGTHS = (5, 17, 40, 9, 1, 33)

OPTIONS: dict[str, dict[str, Any]] = {
    **{name: {"draft_vocab_size": 32} for name in FORMATS},
    "deepspec": {"shard_bytes": 12_000},
}


def export(source: ExportSet, out: Path, format_name: str = "pt", **changes: Any) -> tuple[int, str]:
    told: list[str] = []
    settings = ExportSettings(dataset=source.root, out=out, format=format_name)
    code = export_command(replace(settings, **changes), told.append)
    return code, "\n".join(told)


def tree(out: Path) -> dict[str, bytes]:
    """Every file by its path, with the export's own path taken out of the contents."""
    files = [path for path in out.rglob("*") if path.is_file()]
    return {str(file.relative_to(out)): file.read_bytes().replace(str(out).encode(), b"OUT") for file in files}


@pytest.fixture
def source(tmp_path: Path) -> ExportSet:
    return make_export_set(tmp_path / "set", LENGTHS)


# -- which samples


def test_nothing_verified_is_refused(tmp_path: Path) -> None:
    source = make_export_set(tmp_path / "set", LENGTHS, verified=False)
    with pytest.raises(NothingVerified, match=r"6 of 6 samples of .* are not verified: run `hs-client verify"):
        export(source, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    code, told = export(source, tmp_path / "out", unverified=True)
    assert code == 0
    assert "NOT VERIFIED: --unverified takes what nobody has checked" in told
    assert json.loads((tmp_path / "out" / "hs-export.json").read_text())["settings"]["unverified"] is True


def test_unverified_samples_are_left_out_loudly(source: ExportSet, tmp_path: Path) -> None:
    samples = DatasetIndex.load(source.paths).samples
    VerifiedSet.of(sample for name, sample in samples.items() if name != "chat/2").write(source.paths)
    code, told = export(source, tmp_path / "out")
    assert code == 1
    assert "LEFT OUT: 1 that are not verified; run hs-client verify first" in told
    lines = [json.loads(line) for line in (tmp_path / "out" / "hs-samples.jsonl").read_text().splitlines()]
    assert [line["sample_id"] for line in lines] == [f"chat/{row}" for row in (0, 1, 3, 4, 5)]
    assert [line["index"] for line in lines] == list(range(5))


def test_samples_with_nothing_to_train_on_are_left_out(source: ExportSet, tmp_path: Path) -> None:
    ledger = source.paths.ledger_file("0000abcd")
    ledger.write_text(ledger.read_text().replace('"mask":[[13,40]]', '"mask":[]'))
    verify_all(source.paths)
    code, told = export(source, tmp_path / "out")
    assert code == 0
    assert "left out: 1 without a token to train on" in told
    assert "samples    5, 65 tokens" in told


def test_a_damaged_sample_is_named_and_nothing_is_finished(source: ExportSet, tmp_path: Path) -> None:
    (stored,) = source.paths.data.rglob("*-00000001-*t0000000*")
    data = bytearray(stored.read_bytes())
    data[len(data) // 2] ^= 1
    stored.write_bytes(data)
    told: list[str] = []
    settings = ExportSettings(dataset=source.root, out=tmp_path / "out", format="speculators", model=str(source.model))
    with pytest.raises(ExportIncomplete, match=r"1 of 6 samples could not be exported .* is not complete"):
        export_command(settings, told.append)
    assert any("sample 'chat/1' cannot be exported" in line and stored.name in line for line in told)
    assert json.loads((tmp_path / "out" / "hs-export.json").read_text())["state"] == "incomplete"
    assert not (tmp_path / "out" / "data" / "state.json").exists()


def test_nan_is_never_exported(tmp_path: Path) -> None:
    source = make_export_set(tmp_path / "set", LENGTHS)
    record = source.records["chat/3"]
    record.states[4, 1, 7] = float("nan")
    shutil.rmtree(source.root)
    info = dataset_info(model=str(source.model), num_layers=8, boundaries=[2, 4, 5], dtype="bfloat16", hidden_size=64)
    verify_all(write_dataset(source.root, list(source.records.values()), info=info))
    with pytest.raises(ExportIncomplete, match="1 of 6"):
        export(source, tmp_path / "out")


# -- what is refused before anything is written

Refusal = tuple[str, dict[str, Any], type[HsError], str]
REFUSALS: list[Refusal] = [
    ("specforge", {"dtype": "float16"}, WrongChoice, "its trainer does not take float16, only bfloat16"),
    ("deepspec", {"dtype": "float32"}, WrongChoice, "does not take float32"),
    ("deepspec", {"draft_vocab_size": 8}, WrongChoice, "it has no vocabulary map"),
    ("deepspec", {"shard_bytes": 65 << 30}, WrongChoice, "64 GiB at most"),
    ("speculators", {"dtype": "float16"}, WrongChoice, "does not take float16"),
    ("modelopt", {"algorithm": "dflash"}, WrongChoice, "--algorithm dflash is not one of eagle3"),
    ("pt", {"draft_vocab_size": 513}, UsageError, "--draft-vocab-size 513: the model's vocabulary has 512 tokens"),
    ("pt", {"fp8": True}, WrongChoice, "--fp8 is for speculators alone"),
    ("angelslim", {}, WrongChoice, "does not start without a vocabulary map"),
    ("pt", {"draft_config": Path("/nowhere/x.json")}, UsageError, "--draft-config /nowhere/x.json cannot be read"),
]


@pytest.mark.parametrize(("format_name", "changes", "error", "says"), REFUSALS)
def test_what_a_trainer_cannot_take_is_refused(
    source: ExportSet, tmp_path: Path, format_name: str, changes: dict[str, Any], error: type[HsError], says: str
) -> None:
    with pytest.raises(error, match=says) as caught:
        export(source, tmp_path / "out", format_name, **changes)
    assert caught.value.exit_code == 2
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("format_name", ["specforge", "angelslim"])
def test_other_than_three_boundaries(tmp_path: Path, format_name: str) -> None:
    source = make_export_set(tmp_path / "set", (4, 5), boundaries=(2, 4))
    with pytest.raises(WrongChoice, match=r"takes three boundaries, and this dataset has \[2, 4\]"):
        export(source, tmp_path / "out", format_name, draft_vocab_size=8)
    assert export(source, tmp_path / "ok", "modelopt")[0] == 0


def zero_gain(folder: Path) -> None:
    weight = norm_model(folder).float()
    weight[9] = 0
    save_file({"model.norm.weight": weight}, str(folder / "model.safetensors"))


def layer_norm(folder: Path) -> None:
    norm_model(folder, model_type="gpt_neox")


def gemma(folder: Path) -> None:
    norm_model(folder, model_type="gemma3_text")


def unknown(folder: Path) -> None:
    norm_model(folder, model_type="brand_new")


@pytest.mark.parametrize(
    ("harm", "says"),
    [
        (zero_gain, r"\(channel 9 by 0\)"),
        (layer_norm, "LayerNorm"),
        (gemma, r"multiplies by 1\+w, and the trainer's copy of it by w"),
        (unknown, "not known to be an RMSNorm"),
    ],
)
def test_a_norm_that_cannot_be_undone_is_refused(
    source: ExportSet, tmp_path: Path, harm: Callable[[Path], None], says: str
) -> None:
    harm(source.model)
    with pytest.raises(NormUnsound, match=says) as caught:
        export(source, tmp_path / "out", "speculators")
    assert caught.value.exit_code == 3
    assert not (tmp_path / "out").exists()
    assert export(source, tmp_path / "other", "specforge")[0] == 0


def test_another_models_norm_is_found(source: ExportSet, tmp_path: Path) -> None:
    norm_model(tmp_path / "other", weight=torch.linspace(0.5, 2, 64))
    with pytest.raises(ExportIncomplete, match="6 of 6"):
        export(source, tmp_path / "out", "speculators", model=str(tmp_path / "other"))
    norm_model(tmp_path / "wider", hidden_size=128)
    with pytest.raises(WrongChoice, match=r"has shape \[128\], and the states have 64 channels"):
        export(source, tmp_path / "out2", "speculators", model=str(tmp_path / "wider"))


def test_a_model_that_moved(source: ExportSet, tmp_path: Path) -> None:
    moved = source.model.rename(tmp_path / "moved")
    with pytest.raises(PreflightError, match=r"config.json of the model is needed, and .*: name the model's folder"):
        export(source, tmp_path / "a", "speculators")
    code, told = export(source, tmp_path / "b", "specforge")
    assert code == 0
    assert "layer ids not written: name engine and version with --serve, and the model with --model" in told
    code, told = export(source, tmp_path / "c", "speculators", model=str(moved))
    assert code == 0


# -- what an export folder is


def test_a_folder_that_holds_something_else_is_left_alone(source: ExportSet, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "mine.txt").write_text("x")
    with pytest.raises(OtherExport, match=r"it is not empty, and has no hs-export\.json"):
        export(source, out)
    assert [path.name for path in out.iterdir()] == ["mine.txt"]
    (tmp_path / "file").write_text("x")
    with pytest.raises(OtherExport):
        export(source, tmp_path / "file")


def test_other_settings_are_named(source: ExportSet, tmp_path: Path) -> None:
    export(source, tmp_path / "out")
    with pytest.raises(OtherExport, match=r"dtype 'bfloat16', not 'float32'"):
        export(source, tmp_path / "out", dtype="float32")
    code, told = export(source, tmp_path / "out", jobs=1)
    assert code == 0
    assert "is complete already" in told


@pytest.mark.parametrize("form", ["pt", "speculators", "specforge"])
def test_a_complete_export_that_has_lost_a_file_is_written_again(source: ExportSet, tmp_path: Path, form: str) -> None:
    out = tmp_path / "out"
    export(source, out, form)
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    ours = {"hs-export.json", "hs-samples.jsonl", ".hs-export.lock"}  # without these it is no export of ours
    for path in [path for path in before if path.name not in ours]:
        path.unlink()
        code, told = export(source, out, form)
        assert code == 0
        assert f"1 files of this export are gone, such as {path.relative_to(out)}" in told
        assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before


def test_samples_done_later_are_said_to_be_missing(source: ExportSet, tmp_path: Path) -> None:
    export(source, tmp_path / "out")
    VerifiedSet.of(list(DatasetIndex.load(source.paths).samples.values())[:2]).write(source.paths)
    export(source, tmp_path / "two", unverified=False)
    verify_all(source.paths)
    _, told = export(source, tmp_path / "two")
    assert "NOT IN IT: 4 samples that could be exported only later" in told


def test_another_mask_of_a_sample_is_noticed(source: ExportSet, tmp_path: Path) -> None:
    export(source, tmp_path / "out")
    for ledger in source.paths.ledger.iterdir():
        lines = [json.loads(line) for line in ledger.read_text().splitlines()]
        for line in lines:
            del line["crc"]
            if line["type"] == "intent" and line["sample_id"] == "chat/2":
                line["mask"] = [[0, 1]]
        ledger.write_text("".join(json.dumps(line) + "\n" for line in lines))
    verify_all(source.paths)
    with pytest.raises(OtherExport, match="it holds sample 'chat/2' as the dataset no longer has it"):
        export(source, tmp_path / "out")


def test_a_changed_dataset_is_noticed(source: ExportSet, tmp_path: Path) -> None:
    export(source, tmp_path / "out")
    (tmp_path / "out" / "hs-export.json").write_text(
        (tmp_path / "out" / "hs-export.json").read_text().replace('"complete"', '"incomplete"')
    )
    for ledger in source.paths.ledger.iterdir():
        ledger.write_text(ledger.read_text().replace("chat/2", "chat/2b"))
    verify_all(source.paths)
    with pytest.raises(OtherExport, match="it holds sample 'chat/2' as the dataset no longer has it"):
        export(source, tmp_path / "out")


def test_two_at_once(source: ExportSet, tmp_path: Path) -> None:
    import fcntl

    make_folders(tmp_path / "out")
    with (tmp_path / "out" / LOCK).open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(OutInUse):
            export(source, tmp_path / "out")
    assert export(source, tmp_path / "out")[0] == 0


def test_a_full_disk_stops_with_a_line_and_goes_on(
    source: ExportSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, calls = os.fsync, 0

    def fsync(fd: int) -> None:
        nonlocal calls
        calls += 1
        if calls > 12:
            raise OSError(28, "No space left on device")
        real(fd)

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(CannotWrite, match="No space left on device") as caught:
        export(source, tmp_path / "out", jobs=1)
    assert caught.value.exit_code == 5
    monkeypatch.undo()
    assert export(source, tmp_path / "out")[0] == 0
    export(source, tmp_path / "whole")
    assert tree(tmp_path / "out") == tree(tmp_path / "whole")


@pytest.mark.tmpfs
@pytest.mark.parametrize("format_name", FORMATS)
def test_a_disk_that_is_really_full(tmp_path: Path, format_name: str) -> None:
    source = make_export_set(tmp_path / "set", [200] * 12)
    with small_tmpfs(tmp_path / "disk", options="size=700k") as disk:
        with pytest.raises(CannotWrite, match="No space left on device"):
            export(source, disk / "out", format_name, **OPTIONS[format_name])
        subprocess.run(["mount", "-o", "remount,size=8m", str(disk)], check=True)
        assert export(source, disk / "out", format_name, **OPTIONS[format_name])[0] == 0
        export(source, tmp_path / "whole", format_name, **OPTIONS[format_name])
        assert tree(disk / "out") == tree(tmp_path / "whole")


# -- killed and repeated


@pytest.mark.parametrize("format_name", FORMATS)
def test_an_export_broken_off_anywhere_ends_like_an_undisturbed_one(
    source: ExportSet, tmp_path: Path, format_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At every rename: before it, as SIGKILL would, with the temporary left behind."""
    options = OPTIONS[format_name]
    export(source, tmp_path / "whole", format_name, **options)
    real_rename, real_unlink = Path.rename, Path.unlink
    broken = left = 0

    def rename(path: Path, target: Path) -> Path:
        nonlocal left
        left -= 1
        if left < 0:
            raise KeyboardInterrupt
        return real_rename(path, target)

    def unlink(path: Path, missing_ok: bool = False) -> None:
        if left >= 0:
            real_unlink(path, missing_ok=missing_ok)

    while True:
        left = broken
        monkeypatch.setattr(Path, "rename", rename)
        monkeypatch.setattr(Path, "unlink", unlink)
        try:
            export(source, tmp_path / "out", format_name, jobs=1, **options)
        except KeyboardInterrupt:
            broken += 1
            assert broken < 60
            continue
        finally:
            monkeypatch.undo()
        break
    assert broken > 2
    assert tree(tmp_path / "out") == tree(tmp_path / "whole")


def test_temporaries_of_every_writer_are_removed_and_nothing_else(tmp_path: Path) -> None:
    """safetensors draws names of its own, beside the temporary that it is given."""
    folder = tmp_path / "data" / "hidden_states"
    folder.mkdir(parents=True)
    gone = [folder / ".hs_1.safetensors.tmp", folder / ".tmpH9dDmP", tmp_path / ".hs-samples.jsonl.1.ab.tmp"]
    kept = [folder / "hs_1.safetensors", folder / ".tmpfile-of-mine", tmp_path / ".hs-export.lock", tmp_path / "x.tmp"]
    for path in (*gone, *kept):
        path.touch()
    remove_temporaries(tmp_path)
    assert [path for path in (*gone, *kept) if path.exists()] == kept


@pytest.mark.slow
@pytest.mark.parametrize("format_name", ["speculators"])
def test_sigkill_at_random(tmp_path: Path, format_name: str) -> None:
    source = make_export_set(tmp_path / "set", [30 + row % 50 for row in range(200)])
    options = ["--shard-size", "0.001"] if format_name == "deepspec" else ["--draft-vocab-size", "32"]
    argv = [command("hs-client"), "export", str(source.root), "--format", format_name, *options]
    subprocess.run([*argv, "--out", str(tmp_path / "whole")], check=True, capture_output=True)
    dice = random.Random(format_name)
    progress = tmp_path / "out" / ".hs-progress.jsonl"

    def files() -> int:
        return progress.read_bytes().count(b"\n") if progress.exists() else 0

    killed = 0
    for further in (1, dice.randint(0, 30), dice.randint(0, 60)):
        goal = files() + further
        with subprocess.Popen([*argv, "--out", str(tmp_path / "out")], stdout=subprocess.PIPE) as process:
            while process.poll() is None and not (progress.exists() and files() >= goal):
                time.sleep(0.002)
            time.sleep(dice.random() * 0.02)
            process.kill()
        killed += process.returncode == -signal.SIGKILL
    assert killed
    subprocess.run([*argv, "--out", str(tmp_path / "out")], check=True, capture_output=True)
    assert tree(tmp_path / "out") == tree(tmp_path / "whole")


def test_the_command_line(source: ExportSet, tmp_path: Path) -> None:
    argv = [command("hs-client"), "export", str(source.root), "--format", "specforge", "--out", str(tmp_path / "out")]
    done = subprocess.run([*argv, "--serve", "vllm:0.12.0"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "serving    vllm 0.12.0: eagle_aux_hidden_state_layer_ids [2, 4, 5], because vLLM counts" in done.stdout
    assert done.stdout.splitlines()[-1] == f"  specforge train --config {tmp_path / 'out' / 'train.json'}"
    for words, code in ((["--dtype", "fp16"], 2), (["--serve", "x"], 2), (["--dtype", "int8"], 2), ([], 3)):
        out = ["--out", str(tmp_path / "other")] if code == 2 else []
        done = subprocess.run([*argv, *words, *out], capture_output=True, text=True, check=False)
        assert done.returncode == code, done.stderr
        assert len(done.stderr.splitlines()) == 1
        assert done.stderr.startswith("error: ")
