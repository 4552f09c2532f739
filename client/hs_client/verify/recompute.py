"""Computes samples again with transformers and compares, slot by slot: the one check that knows what is right."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from hs_client.lean_import import usable_torchvision
from hs_client.verify.findings import Finding
from hs_formats.dataset import DatasetInfo
from hs_formats.errors import FormatError, PreflightError
from hs_formats.index import IndexedSample
from hs_formats.reader import HiddenStateDataset

__all__ = ["ModelStates", "Recomputed", "as_finding", "recompute"]


@dataclass(frozen=True, slots=True)
class _Tolerance:
    """Of the relative difference of a state: for the median token of a slot, and for each; `others` is the share of
    tokens that may be further off, since a router that is undecided may choose either way."""

    median: float
    each: float
    others: float


_TOLERANCES = {
    "float32": _Tolerance(1e-3, 1e-2, 0.0),
    "float16": _Tolerance(0.02, 0.2, 0.02),
    "bfloat16": _Tolerance(0.05, 0.4, 0.02),
}


@dataclass(frozen=True, slots=True)
class Recomputed:
    """A sample that was computed again: largest median difference over the slots, and what is wrong, "" if nothing."""

    sample: IndexedSample
    difference: float
    problem: str


class ModelStates:
    """The residual stream of a model at every boundary.

    Args:
        path: folder of the model, or a name that transformers knows.
        info: of the dataset that the model should be that of.
        trust_remote_code: let the model bring its own code.

    Raises:
        PreflightError: transformers or the model cannot be loaded, or the model is another one.
    """

    def __init__(self, path: str, info: DatasetInfo, *, trust_remote_code: bool = False) -> None:
        with usable_torchvision():
            try:
                import torch
                from transformers import AutoModel
                from transformers.utils import logging
            except ImportError as error:
                raise PreflightError(f"cannot run {path}: {error}; pip install 'hs-extract[tokenize,train]'") from None
            self._torch = torch
            self._device = "cuda" if torch.cuda.is_available() else "cpu"
            # In float32 where there is time for it: then all of the difference is the capture's.
            dtype = torch.float32 if self._device == "cpu" else getattr(torch, info.dtype)
            logging.set_verbosity_error()
            logging.disable_progress_bar()
            try:
                model: Any = AutoModel.from_pretrained(path, dtype=dtype, trust_remote_code=trust_remote_code)
            except Exception as error:  # noqa: BLE001 - what a model's own code raises is not ours to list
                reason = " ".join(str(error).split())[:300]
                raise PreflightError(f"cannot run {path}: {reason or type(error).__name__}") from None
        self._model = model.eval().to(self._device)
        config = model.config.get_text_config()
        found = config.num_hidden_layers, config.hidden_size
        if found != (info.num_layers, info.hidden_size):
            raise PreflightError(
                f"{path} has {found[0]} layers and hidden size {found[1]}, the dataset's model {info.num_layers} and "
                f"{info.hidden_size}: give the folder of {info.model}"
            )

    def compute(self, ids: list[int]) -> tuple[Any, Any]:
        """[L, n, H]: the stream before each layer, so that entry b is boundary b; and [n, H], the last state.

        Raises:
            FormatError: the model cannot run on these ids.
        """
        torch = self._torch
        try:
            with torch.inference_mode():
                tokens = torch.tensor([ids], device=self._device)
                out = self._model(input_ids=tokens, output_hidden_states=True, use_cache=False)
                layers = torch.stack([state[0].float() for state in out.hidden_states[:-1]])
                return layers, out.last_hidden_state[0].float()
        except (IndexError, RuntimeError, ValueError) as error:
            raise FormatError(
                f"the model cannot run on its {len(ids)} ids: {' '.join(str(error).split())[:200]}"
            ) from None


def recompute(
    model: ModelStates, dataset: HiddenStateDataset, samples: Iterable[IndexedSample]
) -> Iterator[Recomputed]:
    """Compute `samples` again, one after the other.

    Raises:
        OSError: the dataset cannot be read.
    """
    tolerance = _TOLERANCES[dataset.info.dtype]
    for sample in samples:
        try:
            stored = dataset[sample.sample_id]
            layers, last = model.compute(stored.input_ids.tolist())
        except FormatError as error:
            yield Recomputed(sample, float("inf"), str(error))
            continue
        states = stored.hidden_states.float().to(layers.device)
        problems: list[str] = []
        worst = 0.0
        wanted = [*(layers[boundary] for boundary in dataset.info.boundaries), last]
        names = [*(f"boundary {boundary}" for boundary in dataset.info.boundaries), "last state"]
        for slot, (want, name) in enumerate(zip(wanted, names, strict=True)):
            off = _relative(states[:, slot], want)
            median = float(off.median())
            worst = max(worst, median if median == median else float("inf"))  # NaN
            beyond = int((~(off <= tolerance.each)).sum())
            if not median <= tolerance.median or beyond > tolerance.others * sample.n:
                at = int(off.nan_to_num(float("inf")).argmax())
                problems.append(
                    f"{name} is {median:.2g} off in the median and {float(off[at]):.2g} at token {at}, "
                    f"{beyond} of {sample.n} tokens are wrong{_instead(states[:, slot], layers, last, tolerance)}"
                )
        yield Recomputed(sample, worst, "; ".join(problems))


def _relative(states: Any, want: Any) -> Any:
    return (states - want).norm(dim=-1) / want.norm(dim=-1).clamp_min(1e-30)


def _instead(states: Any, layers: Any, last: Any, tolerance: _Tolerance) -> str:
    """What the states are, where it is simple to say."""
    candidates = {f"boundary {b}": layer for b, layer in enumerate(layers)} | {"the last state": last}
    for name, want in candidates.items():
        for shift in (0, 1, -1):
            ours = states[max(0, shift) : len(states) + min(0, shift)]
            theirs = want[max(0, -shift) : len(want) + min(0, -shift)]
            if len(ours) and float(_relative(ours, theirs).median()) <= tolerance.median:
                moved = f", moved by {shift:+d} token" if shift else ""
                return f"; it holds {name}{moved}"
    return ""


def as_finding(result: Recomputed) -> Finding:
    """The error that a wrong result is."""
    return Finding("unlike the model", str(result.sample.rid), result.problem, result.sample.sample_id)
