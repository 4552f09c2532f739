"""From the model's tensors to host memory: the stage between the hooks and the writer threads.

`HostCopyPath` serves CPU servers and, correct but synchronous, any device: rows are gathered into fresh memory inside
the scheduler thread, bounded by the ring size. The forward pass reuses its buffers: nothing may be kept by reference.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from hs_formats.part import PartMeta
from hs_server.capture.budget import ByteBudget
from hs_server.capture.writer import FailedRids, PartJob, PartWriter

__all__ = ["RING_WAIT_S", "HostCopyPath"]

RING_WAIT_S = 2.0
"""How long the scheduler may wait for host memory before a request is given up. Serving never blocks for longer."""


class HostCopyPath:
    """Copies rows synchronously.

    Args:
        writer: gets the copied rows.
        failed: gets the rids for which there was no room in time.
        ring_bytes: bound on copied rows that are not yet files.
    """

    def __init__(self, writer: PartWriter, failed: FailedRids, *, ring_bytes: int) -> None:
        self._writer = writer
        self._failed = failed
        self.budget = ByteBudget(ring_bytes)

    def submit(self, meta: PartMeta, input_ids: bytes, slots: Sequence[torch.Tensor]) -> None:
        """Copy one part and queue it for writing.

        Args:
            meta: describes the part.
            input_ids: int64 [m], little-endian.
            slots: k+1 tensors [m, H] of the dtype in `meta`, in slot order; they may be views and on any device.
        """
        rows, width = slots[0].shape
        size = rows * width * len(slots) * slots[0].element_size()
        if not self.budget.acquire(size, timeout_s=RING_WAIT_S):
            self._failed.add(meta.rid, f"no room in the ring of {self.budget.limit_bytes} bytes for {RING_WAIT_S} s")
            return
        try:
            host = torch.empty((rows, len(slots), width), dtype=slots[0].dtype)
            for index, slot in enumerate(slots):
                host[:, index].copy_(slot)
            data = host.view(-1).view(torch.uint8).numpy().data
        except BaseException:
            self.budget.release(size)
            raise
        self._writer.submit(PartJob(meta, input_ids, data, lambda: self.budget.release(size)))
