"""The independent checker finds each kind of fault, and nothing where there is none."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from checker import Prompt, Reference, check_dataset, read_prompts
from hs_formats.names import PartName, Rid
from hs_formats.stored import read_stored
from hs_formats.zstd import compress_blocks
from part_factory import Record, dataset_info, part_bytes, write_dataset
from tiny_models import HIDDEN_SIZE, NUM_LAYERS, TINY_MODELS, VOCAB_SIZE, text_model, tiny_model, token_text

BOUNDARIES = [1, 4, NUM_LAYERS - 1]
MAX_ABS = 1e-5


@pytest.fixture(scope="module")
def reference() -> Reference:
    return Reference(tiny_model("tiny-llama"), BOUNDARIES)


@pytest.fixture(scope="module")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    words = [token_text(number) for number in range(20, 60)]
    rows: list[Any] = [
        {"id": "a", "input_ids": list(range(30, 47))},
        {"id": "b", "input_ids": list(range(130, 147))},
        {"id": 7, "text": " ".join(words[:9])},
        {"text": "<s> " + " ".join(words[5:11])},
        {
            "messages": [
                {"role": "user", "content": words[3]},
                {"role": "assistant", "content": [{"type": "text", "text": f"{words[4]} "}, words[5]]},
            ]
        },
        {"id": "a", "input_ids": [1, 2, 3]},  # not the first "a": rejected
        {"text": "<s> " + " ".join(words[5:11])},  # a repetition: stored once
        {"id": "\u2028", "input_ids": [300]},
    ]
    path = tmp_path_factory.mktemp("prompts") / "p.jsonl"
    lines = [json.dumps(row, ensure_ascii=False).encode() for row in rows] + [b"", b"not JSON", b'{"id": "broken"}']
    path.write_bytes(b"\xef\xbb\xbf" + b"\r\n".join(lines) + b"\n")
    return path


UNUSABLE = ["p.jsonl:10", "p.jsonl:11"]


def _records(rows: list[Prompt], reference: Reference) -> list[Record]:
    return [
        Record(
            sample_id=row.sample_id,
            rid=Rid("0000abcd", number, 0),
            ids=row.ids,
            states=reference.states(row.ids),
            cuts=[cut for cut in (5, 16) if cut < len(row.ids)],
        )
        for number, row in enumerate(rows)
    ]


@pytest.fixture
def make(tmp_path: Path, prompts: Path, reference: Reference) -> Callable[..., Path]:
    """Writes a good dataset; `change` may spoil records before they are written."""

    def made(change: Callable[[list[Record]], list[Record]] = list) -> Path:
        records = change(_records(read_prompts([prompts], reference, unusable=UNUSABLE), reference))
        folder = tmp_path / "set"
        shutil.rmtree(folder, ignore_errors=True)
        write_dataset(folder, records, info=dataset_info(boundaries=BOUNDARIES, hidden_size=HIDDEN_SIZE))
        return folder

    return made


@pytest.fixture
def check(prompts: Path, reference: Reference) -> Callable[[Path], Any]:
    def checked(folder: Path) -> Any:
        return check_dataset(folder, prompts, reference, max_abs=MAX_ABS, unusable=UNUSABLE)

    return checked


@pytest.mark.parametrize("name", TINY_MODELS)
def test_the_reference_is_the_stream_at_the_boundaries_and_the_norms_output(name: str) -> None:
    """Against hooks on the layers themselves, so that no meaning of `hidden_states` is taken on trust."""
    reference = Reference(text_model(name), BOUNDARIES)
    inner = reference._inner
    seen: dict[int, torch.Tensor] = {}

    def keep(number: int) -> Callable[..., None]:
        def hook(module: Any, arguments: Any, output: Any) -> None:
            seen[number] = (output[0] if isinstance(output, tuple) else output)[0].clone()

        return hook

    hooks = [layer.register_forward_hook(keep(number + 1)) for number, layer in enumerate(inner.layers)]
    hooks.append(inner.norm.register_forward_hook(keep(0)))
    states = reference.states(range(40, 60))
    for hook in hooks:
        hook.remove()
    assert states.shape == (20, len(BOUNDARIES) + 1, inner.config.hidden_size)
    seen = {number: state.view(20, inner.config.hidden_size) for number, state in seen.items()}
    for slot, boundary in enumerate([*BOUNDARIES, 0]):
        assert torch.equal(states[:, slot], seen[boundary])
    # and a layer further, or the state before the norm, is far outside of any tolerance
    for one, other in [*((b, b + 1) for b in BOUNDARIES), (NUM_LAYERS, 0)]:
        assert (seen[one] - seen[other]).abs().max() > 1000 * MAX_ABS


def test_a_good_dataset_is_good(make: Callable[..., Path], check: Callable[[Path], Any]) -> None:
    report = check(make())
    report.assert_ok(rows=6, orphans=False)
    assert report.ok
    assert report.largest <= MAX_ABS


def test_ids_are_those_of_the_tokenizer(prompts: Path, reference: Reference) -> None:
    rows = {row.where: row for row in read_prompts([prompts], reference, unusable=UNUSABLE)}
    assert list(rows) == [f"p.jsonl:{number}" for number in (1, 2, 3, 4, 5, 8)]
    assert rows["p.jsonl:3"].sample_id == "7"
    assert rows["p.jsonl:1"].ids == tuple(range(30, 47))
    assert rows["p.jsonl:3"].ids == tuple(range(20, 29))
    assert rows["p.jsonl:4"].ids == (1, *range(25, 31))  # one BOS
    assert rows["p.jsonl:4"].sample_id.startswith("row-")
    user, assistant = VOCAB_SIZE - 2, VOCAB_SIZE - 1
    assert rows["p.jsonl:5"].ids == (1, user, 23, 2, assistant, 24, 25, 2)


def _faults(report: Any) -> set[str]:
    with pytest.raises(AssertionError):
        report.assert_ok()
    assert not report.ok
    return set(report.faults)


def _with_states(number: int, change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[list[Record]], list[Record]]:
    def spoil(records: list[Record]) -> list[Record]:
        records[number] = replace(records[number], states=change(records[number].states.clone()))
        return records

    return spoil


def _nudge(states: torch.Tensor) -> torch.Tensor:
    states[-1, 1, 7] += 3 * MAX_ABS
    return states


def _not_a_number(states: torch.Tensor) -> torch.Tensor:
    states[3, 0, 0] = float("nan")
    return states


@pytest.mark.parametrize(
    "change",
    [
        lambda states: states.roll(1, 0),  # every row shifted
        lambda states: torch.cat([states[:5], states[5:].roll(1, 0)]),  # one chunk shifted
        lambda states: states[:, [1, 0, 2, 3]],  # slots exchanged
        lambda states: states[:, [0, 1, 3, 3]],  # a slot twice
        lambda states: states * 0.999,
        lambda states: torch.cat([states[:-1], states[-1:] * 0]),
        lambda states: states.bfloat16().float(),
        _nudge,
        _not_a_number,
    ],
)
def test_wrong_values(
    make: Callable[..., Path], check: Callable[[Path], Any], change: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    report = check(make(_with_states(1, change)))
    assert _faults(report) == {"wrong"}
    assert report.good == report.rows - 1
    assert "p.jsonl:2" in report.wrong[0]


@pytest.mark.parametrize("step", [1, -1])
def test_a_boundary_off_by_one(make: Callable[..., Path], check: Callable[[Path], Any], step: int) -> None:
    for slot in range(len(BOUNDARIES)):
        shifted = [b + step * (number == slot) for number, b in enumerate(BOUNDARIES)]
        if not 0 < shifted[slot] < NUM_LAYERS:
            continue
        neighbour = Reference(tiny_model("tiny-llama"), shifted)

        def change(records: list[Record], neighbour: Reference = neighbour) -> list[Record]:
            return [replace(record, states=neighbour.states(record.ids)) for record in records]

        report = check(make(change))
        assert _faults(report) == {"wrong"}
        assert report.good == 0
        assert f"slot {slot}" in report.wrong[0]


def test_the_state_before_the_norm_in_place_of_the_one_after(
    make: Callable[..., Path], check: Callable[[Path], Any], reference: Reference
) -> None:
    inner = reference._inner
    kept: list[torch.Tensor] = []

    def change(records: list[Record]) -> list[Record]:
        hook = inner.norm.register_forward_pre_hook(lambda module, arguments: kept.append(arguments[0][0].clone()))
        for number, record in enumerate(records):
            states = reference.states(record.ids)
            states[:, -1] = kept[-1]
            records[number] = replace(record, states=states)
        hook.remove()
        return records

    assert _faults(check(make(change))) == {"wrong"}


def test_another_set_of_boundaries(make: Callable[..., Path], prompts: Path) -> None:
    other = Reference(tiny_model("tiny-llama"), [1, 3, NUM_LAYERS - 1])
    report = check_dataset(make(), prompts, other, max_abs=1e9, unusable=UNUSABLE)
    assert _faults(report) == {"wrong"}
    assert "boundaries [1, 4, 7], not [1, 3, 7]" in report.wrong[0]


def test_two_requests_with_each_others_states(make: Callable[..., Path], check: Callable[[Path], Any]) -> None:
    def change(records: list[Record]) -> list[Record]:
        one, other = records[0].states, records[1].states
        records[0] = replace(records[0], states=other)
        records[1] = replace(records[1], states=one)
        return records

    report = check(make(change))
    assert _faults(report) == {"swapped"}
    assert len(report.swapped) == 2


def test_two_records_under_each_others_names(make: Callable[..., Path], check: Callable[[Path], Any]) -> None:
    def change(records: list[Record]) -> list[Record]:
        one, other = records[0].sample_id, records[1].sample_id
        records[0] = replace(records[0], sample_id=other)
        records[1] = replace(records[1], sample_id=one)
        return records

    report = check(make(change))
    assert _faults(report) == {"swapped"}
    assert "the ids of p.jsonl:2" in report.swapped[0]


def _part_files(folder: Path, row: int = 0) -> list[Path]:
    return sorted((folder / "data").rglob(f"hs-0000abcd-{row:08d}-*"))


def test_a_deleted_part_and_a_deleted_record(make: Callable[..., Path], check: Callable[[Path], Any]) -> None:
    for number in range(3):
        folder = make()
        _part_files(folder)[number].unlink()
        assert _faults(check(folder)) == {"partial"}
    folder = make()
    for path in _part_files(folder):
        path.unlink()
    report = check(folder)
    assert _faults(report) == {"lost"}
    assert "no part is stored" in report.lost[0]


def _store(folder: Path, name: PartName, ids: Any, states: torch.Tensor) -> None:
    data = part_bytes(name, ids, states, boundaries=BOUNDARIES)
    path = folder / "data" / name.rid.run / "000000" / f"{name}.zst"
    path.write_bytes(b"".join(compress_blocks([data], len(data))))


def test_a_doubled_part(make: Callable[..., Path], check: Callable[[Path], Any]) -> None:
    folder = make()
    data = torch.load(_decoded(_part_files(folder)[0]), weights_only=True)
    _store(folder, PartName(Rid("0000abcd", 0, 0), 0, 5, 17, 1), data["input_ids"].tolist(), data["hidden_states"])
    assert _faults(check(folder)) == {"partial"}


def _decoded(path: Path) -> Path:
    plain = path.parents[4] / "plain.pt"
    plain.write_bytes(read_stored(path))
    return plain


def test_a_part_under_another_parts_name(make: Callable[..., Path], check: Callable[[Path], Any]) -> None:
    folder = make()
    one, other = _part_files(folder, 0)[0], _part_files(folder, 1)[0]
    other.write_bytes(one.read_bytes())
    assert _faults(check(folder)) == {"damaged", "partial"}


def test_a_row_done_twice(make: Callable[..., Path], check: Callable[[Path], Any]) -> None:
    def change(records: list[Record]) -> list[Record]:
        return [*records, replace(records[0], rid=Rid("0000abce", 0, 0))]

    report = check(make(change))
    assert _faults(report) == {"doubled"}
    assert report.good == report.rows - 1


def test_a_record_done_for_two_rows(make: Callable[..., Path], check: Callable[[Path], Any]) -> None:
    folder = make()
    ledger = folder / "ledger" / "0000abcd.jsonl"
    text = ledger.read_text()
    ledger.write_text(text.replace('"done","sample_id":"b","rid":"hs-0000abcd-00000001-00"',
                                   '"done","sample_id":"b","rid":"hs-0000abcd-00000000-00"'))  # fmt: skip
    report = check(folder)
    assert ledger.read_text() != text
    assert _faults(report) == {"swapped"}


def test_a_row_that_is_not_done_and_one_that_is_no_row(make: Callable[..., Path], check: Callable[[Path], Any]) -> None:
    report = check(make(lambda records: records[1:]))
    assert _faults(report) == {"lost"}
    report = check(make(lambda records: [*records, replace(records[0], sample_id="x", rid=Rid("0000abcd", 99, 0))]))
    assert _faults(report) == {"unexpected"}


@pytest.mark.parametrize("size", [0, 1, 300, -1])
def test_a_cut_file(make: Callable[..., Path], check: Callable[[Path], Any], size: int) -> None:
    folder = make()
    path = _part_files(folder)[1]
    path.write_bytes(path.read_bytes()[:size])
    assert _faults(check(folder)) == {"damaged", "partial"}


def test_a_flipped_byte(make: Callable[..., Path], check: Callable[[Path], Any]) -> None:
    folder = make()
    path = _part_files(folder)[1]
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    assert "damaged" in _faults(check(folder))


def test_leftovers_are_named(make: Callable[..., Path], check: Callable[[Path], Any]) -> None:
    folder = make()
    path = _part_files(folder)[0]
    shutil.copy(path, path.with_name(f".{path.name}.host-scratch.tmp"))
    assert _faults(check(folder)) == {"damaged"}


def test_orphans_are_reported_and_may_be_allowed(make: Callable[..., Path], check: Callable[[Path], Any]) -> None:
    folder = make()
    data = torch.load(_decoded(_part_files(folder)[0]), weights_only=True)
    _store(folder, PartName(Rid("0000abcd", 0, 1), 0, 5, 17, 0), data["input_ids"].tolist(), data["hidden_states"])
    report = check(folder)
    report.assert_ok()
    assert report.orphans == ["hs-0000abcd-00000000-01: 1 parts"]
    with pytest.raises(AssertionError, match="orphans"):
        report.assert_ok(orphans=False)


def test_a_line_that_is_no_row_must_be_announced(
    make: Callable[..., Path], prompts: Path, reference: Reference
) -> None:
    with pytest.raises(ValueError, match="Expecting value"):
        check_dataset(make(), prompts, reference, max_abs=MAX_ABS)


def test_it_uses_none_of_the_projects_code() -> None:
    text = Path(__file__).resolve().parents[1].joinpath("support", "checker.py").read_text()
    assert "hs_formats" not in text.split('"""', 2)[2]
    assert "hs_client" not in text
