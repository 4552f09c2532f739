"""One scheduler process's capture: what was armed at model load, and what happens in each prefill.

`CaptureSession` knows nothing of plugins or patches. Both ways into SGLang call `plan`, `observe` and `finish`.
"""

from __future__ import annotations

import array
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from hs_formats.names import CANARY_RUN, run_of_rid
from hs_formats.part import PartMeta
from hs_server.capture.copy_path import CopyPath, Piece
from hs_server.capture.layer_probe import LayerProbe, ProbeResult
from hs_server.capture.plan import BatchRow, plan_batch, share_of_rank, writers_of
from hs_server.capture.writer import FailedRids

__all__ = ["CaptureSession", "batch_rows", "split_slots"]

logger = logging.getLogger(__name__)


def batch_rows(batch: Any) -> list[BatchRow]:
    """What SGLang's batch says of its requests.

    ``ScheduleBatch`` (0.5.13 and later) has ``extend_lens`` and ``prefix_lens``; ``ModelWorkerBatch`` before that has
    ``extend_seq_lens`` and ``extend_prefix_lens``.
    """
    extend = getattr(batch, "extend_lens", None)
    prefix = getattr(batch, "prefix_lens", None)
    if extend is None or prefix is None:
        extend, prefix = batch.extend_seq_lens, batch.extend_prefix_lens
    return [
        BatchRow(
            rid=req.rid,
            prefix=int(p),
            extend=int(e),
            prompt_tokens=len(req.origin_input_ids),
            ending=getattr(req, "to_finish", None) is not None or getattr(req, "finished_reason", None) is not None,
        )
        for req, p, e in zip(batch.reqs, prefix, extend, strict=True)
    ]


def split_slots(
    last: torch.Tensor, aux: Sequence[torch.Tensor] | torch.Tensor | None, *, boundaries: int, hidden_size: int
) -> list[torch.Tensor]:
    """The k+1 slot tensors [T, H]: k boundaries and the last state.

    Args:
        last: post-norm states [T', H].
        aux: SGLang's auxiliary states, a list of k tensors [T', H] or one packed [T', k*H]
            (``AuxHiddenStatePacker``, 0.5.20 and later).
        boundaries: k.
        hidden_size: H.

    Raises:
        ValueError: what the model handed over is not that; states would be wrong or missing.
    """
    if aux is None:
        raise ValueError("the model handed over no auxiliary hidden states")
    parts = list(aux.split(hidden_size, dim=-1)) if isinstance(aux, torch.Tensor) else list(aux)
    if len(parts) != boundaries:
        raise ValueError(f"the model handed over {len(parts)} auxiliary states, not {boundaries}")
    slots = [*parts, last]
    for slot in slots:
        if slot.dim() != 2 or slot.shape != last.shape or slot.shape[1] != hidden_size or slot.dtype != last.dtype:
            raise ValueError(
                f"auxiliary state {slot.dtype} {list(slot.shape)} beside the last state {last.dtype} {list(last.shape)}"
                f" for hidden size {hidden_size}"
            )
    return slots


def _nothing() -> None:
    return None


class CaptureSession:
    """Turns forward passes into parts.

    Args:
        template: meta shared by all parts of this process; the rid and the rows are filled in.
        copy_path: takes the rows.
        failed: takes the rids that could not be captured.
        probe: looks at the layers while canary requests run; None looks at nothing.

    The counters are those of `CaptureStatistics`; `after_canary` is called when canary rows have been counted.
    """

    def __init__(
        self, template: PartMeta, copy_path: CopyPath, failed: FailedRids, *, probe: LayerProbe | None = None
    ) -> None:
        self._template = template
        self._copy_path = copy_path
        self._failed = failed
        self._probe = probe
        self._probing: LayerProbe | None = None
        self.forwards = 0
        self.graph_replays = 0
        self.rows = 0
        self.canary_forwards = 0
        self.layers_proved = 0
        self.after_canary: Callable[[], None] = _nothing
        self._planned: list[Piece] = []
        self._states: tuple[torch.Tensor, Any] | None = None

    @property
    def armed(self) -> bool:
        """A forward pass with rows of ours is under way."""
        return bool(self._planned)

    def plan(self, batch: Any) -> None:
        """Look at a batch before its forward pass and arm for the rows this process writes."""
        self.disarm()
        meta = self._template
        planned: list[Piece] = []
        for whole in plan_batch(batch_rows(batch)):
            if whole.rid in self._failed:
                continue
            writers = writers_of(whole.rid, meta.writers)
            piece = share_of_rank(whole, rank=meta.attn_tp_rank, size=meta.attn_tp_size, writers=writers)
            if piece is not None:
                ids = batch.reqs[piece.index].origin_input_ids[piece.start : piece.stop]
                made = replace(meta, rid=piece.rid, start=piece.start, stop=piece.stop, n=piece.n)
                if writers != meta.writers:
                    made = replace(made, writers=writers, expected_ranks=list(range(meta.attn_tp_size)))
                planned.append(Piece(piece, made, array.array("q", ids).tobytes()))
        self._planned = planned
        if self._probe is not None and any(run_of_rid(item.meta.rid) == CANARY_RUN for item in planned):
            self._probing = self._probe
            self._probing.start()

    def observe(self, last: torch.Tensor, aux: Any) -> None:
        """Keep what the model hands to its logits processor in the armed forward pass."""
        self._states = (last, aux)

    def finish(self, *, graph_replay: bool = False) -> None:
        """Copy the planned rows out, right behind the forward pass on its own stream. Never raises."""
        planned, states, probing = self._planned, self._states, self._probing
        self.forwards += 1
        self.graph_replays += graph_replay
        self.disarm()
        try:
            if states is None:
                raise ValueError("the hook on the logits processor did not run")
            meta = self._template
            slots = split_slots(*states, boundaries=len(meta.boundaries), hidden_size=meta.hidden_size)
            dtype = str(slots[0].dtype).removeprefix("torch.")
            if dtype != meta.dtype:
                raise ValueError(f"states are {dtype}, the model was loaded as {meta.dtype}")
            needed = max(item.rows.first + item.rows.stop - item.rows.start for item in planned)
            if slots[0].shape[0] < needed:
                raise ValueError(f"the states have {slots[0].shape[0]} rows, the batch needs {needed}")
            if probing is not None:
                planned = self._without_misplaced(planned, probing.judge(slots))
            self._copy_path.submit(planned, slots)
            self.rows += sum(item.rows.stop - item.rows.start for item in planned)
        except Exception as error:  # noqa: BLE001  # serving goes on whatever happens here
            for item in planned:
                self._failed.add(item.meta.rid, f"not captured: {error}")
        if probing is not None:
            self.after_canary()

    def abandon(self, error: BaseException) -> None:
        """The forward pass itself failed: its requests will have no states."""
        for item in self._planned:
            self._failed.add(item.meta.rid, f"the forward pass failed: {error!r}")
        self.disarm()

    def disarm(self) -> None:
        """Forget the current forward pass."""
        if self._probing is not None:
            self._probing.stop()
        self._probing = None
        self._planned = []
        self._states = None

    def _without_misplaced(self, planned: list[Piece], result: ProbeResult) -> list[Piece]:
        """Give up the canary requests among `planned` where a slot holds another layer's stream."""
        self.canary_forwards += 1
        self.layers_proved += result.proved
        if not result.complaint:
            return planned
        for item in planned:
            if run_of_rid(item.meta.rid) == CANARY_RUN:
                self._failed.add(item.meta.rid, f"wrong layer: {result.complaint}")
        return [item for item in planned if run_of_rid(item.meta.rid) != CANARY_RUN]
