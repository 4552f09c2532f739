"""Faults of values: they came before the checksums, so the dataset is written anew with them, all its hashes right."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from fault_list import Fault, collected_in, pick
from part_factory import Record
from real_sets import write_real_set

__all__ = ["VALUE_FAULTS"]

VALUE_FAULTS: list[Fault] = []

fault = collected_in(VALUE_FAULTS)


def _rewrite(root: Path, records: Sequence[Record], changed: dict[int, Any]) -> None:
    new = [
        replace(record, states=changed[at].contiguous()) if at in changed else record
        for at, record in enumerate(records)
    ]
    shutil.rmtree(root)
    write_real_set(root, new)


def _values(*kinds: str) -> Callable[[Callable[[torch.Tensor], torch.Tensor]], Any]:
    """A fault of one sample's states alone."""

    def keep(change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
        def inject(root: Path, records: Sequence[Record]) -> str:
            at = pick(records)
            _rewrite(root, records, {at: change(records[at].states.clone())})
            return records[at].sample_id

        fault(*kinds, name=change.__name__.strip("_").replace("_", " "))(inject)
        return change

    return keep


@_values("not finite")
def _nan_in_one_value(states: torch.Tensor) -> torch.Tensor:
    states[7, 1, 5] = float("nan")
    return states


@_values("not finite")
def _infinity_in_one_value(states: torch.Tensor) -> torch.Tensor:
    states[-1, -1, -1] = float("-inf")
    return states


@_values("not finite")
def _a_slot_of_nan(states: torch.Tensor) -> torch.Tensor:
    states[:, 0] = float("nan")
    return states


@_values("zeros")
def _zeroed_half_of_a_state(states: torch.Tensor) -> torch.Tensor:
    states[3, 2, states.shape[2] // 2 :] = 0
    return states


@_values("zeros")
def _zeroed_half_of_the_rows(states: torch.Tensor) -> torch.Tensor:
    states[len(states) // 2 :] = 0
    return states


@_values("zeros")
def _one_state_zero(states: torch.Tensor) -> torch.Tensor:
    states[-1, 1] = 0
    return states


@_values("zeros")
def _a_shard_of_every_state_zero(states: torch.Tensor) -> torch.Tensor:
    states[:, :, states.shape[2] // 4 : states.shape[2] // 2] = -0.0
    return states


@_values("constant")
def _one_constant_state(states: torch.Tensor) -> torch.Tensor:
    states[9, 0] = 0.25
    return states


@_values("constant")
def _a_constant_slot(states: torch.Tensor) -> torch.Tensor:
    states[:, 2] = 1.0
    return states


@_values("repeated rows")
def _a_row_repeated(states: torch.Tensor) -> torch.Tensor:
    states[11] = states[10]
    return states


@_values("repeated rows")
def _first_chunk_stored_again_as_the_second(states: torch.Tensor) -> torch.Tensor:
    rows = min(32, len(states) - 32)
    states[32 : 32 + rows] = states[:rows]
    return states


@_values("repeated rows")
def _one_slot_stuck(states: torch.Tensor) -> torch.Tensor:
    states[20:, 1] = states[20, 1]
    return states


@_values("equal slots")
def _two_slots_equal(states: torch.Tensor) -> torch.Tensor:
    states[:, 1] = states[:, 0]
    return states


@_values("equal slots")
def _last_state_in_a_boundary_slot(states: torch.Tensor) -> torch.Tensor:
    states[5, 2] = states[5, 3]
    return states


@_values("shifted rows", "unlike equal beginnings")
def _rows_shifted_by_one_token(states: torch.Tensor) -> torch.Tensor:
    return states.roll(1, 0)


@_values("shifted rows", "unlike equal beginnings")
def _rows_shifted_back_by_one_token(states: torch.Tensor) -> torch.Tensor:
    return states.roll(-1, 0)


@_values("unlike its tokens", "shifted rows")
def _later_rows_shifted_by_one_token(states: torch.Tensor) -> torch.Tensor:
    states[16:] = states[16:].roll(1, 0)
    return states


@_values("unlike its tokens")
def _rows_in_reverse(states: torch.Tensor) -> torch.Tensor:
    return states.flip(0)


@_values("unlike its tokens")
def _rows_shuffled(states: torch.Tensor) -> torch.Tensor:
    return states[torch.randperm(len(states), generator=torch.Generator().manual_seed(1))]


@_values("implausible angle", "unlike equal beginnings")
def _slots_in_the_wrong_order(states: torch.Tensor) -> torch.Tensor:
    return states[:, [1, 0, 2, 3]]


@_values("implausible size", "unlike equal beginnings")
def _states_summed_twice(states: torch.Tensor) -> torch.Tensor:
    states[:, 1] *= 2
    return states


@_values("implausible size", "unlike equal beginnings")
def _states_divided_by_the_number_of_ranks(states: torch.Tensor) -> torch.Tensor:
    states[:, :3] /= 4
    return states


@_values("unlike equal beginnings", "unlike its tokens")
def _states_negated(states: torch.Tensor) -> torch.Tensor:
    return -states


@_values("unlike equal beginnings", "unlike its tokens")
def _channels_moved_by_one(states: torch.Tensor) -> torch.Tensor:
    return states.roll(1, 2)


@_values("unlike equal beginnings", "implausible angle", "implausible size")
def _noise_added(states: torch.Tensor) -> torch.Tensor:
    noise = torch.randn(states.shape, generator=torch.Generator().manual_seed(1))
    return states + 0.1 * states.std() * noise


@_values("implausible size", "not finite", "unlike equal beginnings")
def _bytes_in_the_wrong_order(states: torch.Tensor) -> torch.Tensor:
    swapped = states.numpy().byteswap()
    return torch.from_numpy(swapped.copy())


def _layers(records: Sequence[Record], at: int) -> tuple[Any, torch.Tensor]:
    """The stream at every boundary [L, n, H] and the state before the final norm [n, H], from transformers."""
    from transformers import AutoModel

    from tiny_models import text_model

    model = AutoModel.from_pretrained(str(text_model("tiny-llama")), dtype=torch.float32).eval()
    before_norm: list[torch.Tensor] = []
    hook = model.norm.register_forward_pre_hook(lambda module, inputs: before_norm.append(inputs[0][0].clone()))
    with torch.inference_mode():
        out = model(torch.tensor([list(records[at].ids)]), output_hidden_states=True, use_cache=False)
    hook.remove()
    return torch.stack([state[0] for state in out.hidden_states]).clone(), before_norm[0].clone()


def _of_layers(name: str, make: Callable[[torch.Tensor, Any, torch.Tensor], None]) -> None:
    def inject(root: Path, records: Sequence[Record]) -> str:
        at = pick(records)
        layers, before_norm = _layers(records, at)
        states = records[at].states.clone()
        make(states, layers, before_norm)
        _rewrite(root, records, {at: states})
        return records[at].sample_id

    kinds = ("unlike equal beginnings", "implausible angle", "implausible size")
    fault(*kinds, name=name)(inject)


def _set(states: torch.Tensor, slot: int, value: torch.Tensor) -> None:
    states[:, slot] = value


_of_layers("a boundary off by one", lambda s, layers, _: _set(s, 1, layers[5 - 2]))
_of_layers("the highest boundary off by one", lambda s, layers, _: _set(s, 2, layers[6]))
_of_layers("the embedding for the lowest boundary", lambda s, layers, _: _set(s, 0, layers[0]))
_of_layers("the state before the norm as the last state", lambda s, _, before: _set(s, 3, before))
_of_layers("one rank's partial sum", lambda s, layers, _: _set(s, 1, layers[3] + 0.3 * (layers[4] - layers[3])))


@fault("unlike its tokens")
def _two_samples_rows_swapped(root: Path, records: Sequence[Record]) -> str:
    at = pick(records)
    n = len(records[at].ids)
    other = next(
        i for i, record in enumerate(records) if len(record.ids) >= n and list(record.ids) != list(records[at].ids)
    )
    mine, theirs = records[at].states.clone(), records[other].states.clone()
    theirs[:n], mine = records[at].states, records[other].states[:n].clone()
    _rewrite(root, records, {at: mine, other: theirs})
    return records[at].sample_id


@fault("rows of another sample")
def _rows_of_the_request_before(root: Path, records: Sequence[Record]) -> str:
    at = pick(records)
    other = next(
        i for i, record in enumerate(records) if len(record.ids) >= 30 and list(record.ids) != list(records[at].ids)
    )
    states = records[at].states.clone()
    states[20:23] = records[other].states[20:23]
    _rewrite(root, records, {at: states})
    return records[at].sample_id


@fault("rows of another sample", "unlike its tokens")
def _one_record_stored_for_two_prompts(root: Path, records: Sequence[Record]) -> str:
    at = pick(records)
    n = len(records[at].ids)
    other = next(
        i for i, record in enumerate(records) if len(record.ids) >= n and list(record.ids) != list(records[at].ids)
    )
    _rewrite(root, records, {at: records[other].states[:n].clone()})
    return records[at].sample_id


@fault("wrong token id")
def _a_negative_token_id(root: Path, records: Sequence[Record]) -> str:
    at = pick(records)
    ids = list(records[at].ids)
    ids[4] = -1
    new = [replace(record, ids=ids) if i == at else record for i, record in enumerate(records)]
    shutil.rmtree(root)
    write_real_set(root, new)
    return records[at].sample_id
