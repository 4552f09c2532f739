"""Counters of a capture: what they count, and that they reach the control folder."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import torch

from captures import NONCE, Capture, H, rid
from hs_formats.control import CaptureStatistics, ControlFolder
from hs_server.capture.statistics import StatisticsPublisher

EMPTY = CaptureStatistics(
    pid=7,
    rank=1,
    nonce=NONCE,
    at_s=1.0,
    forwards=0,
    graph_replays=0,
    rows=0,
    files=0,
    bytes_written=0,
    failed=0,
    ring_bytes=4096,
    ring_waits=0,
    ring_waited_s=0.0,
)


def test_the_record_follows_the_counters(tmp_path: Path) -> None:
    control = ControlFolder(tmp_path / "scratch")
    control.create()
    assert control.read_statistics(7, 1) is None
    now = EMPTY
    publisher = StatisticsPublisher(control.statistics_path(7, 1), lambda: now, period_s=0.01)
    assert control.read_statistics(7, 1) == EMPTY
    now = replace(EMPTY, forwards=3, ring_waited_s=0.5)
    deadline = time.monotonic() + 10
    while control.read_statistics(7, 1) != now:
        assert time.monotonic() < deadline
        time.sleep(0.005)
    now = replace(now, forwards=4)
    publisher.close()
    assert control.read_statistics(7, 1) == now


def test_a_session_counts_its_forward_passes(tmp_path: Path) -> None:
    capture = Capture(tmp_path)
    for row, replay in enumerate((True, False, True)):
        batch = SimpleNamespace(
            reqs=[SimpleNamespace(rid=rid(row), origin_input_ids=[1, 2, 3], to_finish=None, finished_reason=None)],
            prefix_lens=[0],
            extend_lens=[3],
        )
        capture.session.plan(batch)
        if row < 2:  # the third pass never reaches the logits processor
            state = torch.zeros(3, H, dtype=torch.bfloat16)
            capture.session.observe(state, [state, state])
        capture.session.finish(graph_replay=replay)
    assert len(capture.parts()) == 2
    assert (capture.session.forwards, capture.session.graph_replays, capture.session.rows) == (3, 2, 6)
    assert (capture.writer.files, capture.failed.count) == (2, 1)
    capture.ring.close()
