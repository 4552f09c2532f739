"""Where the releases of SGLang keep the ranks of a process."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from hs_server.capture.start import _ranks

STATE = {"tp_rank": 1, "tp_size": 4, "attn_tp_rank": 1, "attn_tp_size": 4, "dp_rank": None, "dp_size": 1}
WANTED = {**STATE, "dp_rank": 0}


def test_on_the_runner() -> None:
    assert _ranks(SimpleNamespace(tp_rank=1, tp_size=4)) == WANTED


def test_on_the_runners_state() -> None:
    assert _ranks(SimpleNamespace(ps=SimpleNamespace(**STATE))) == WANTED


def test_on_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    context = SimpleNamespace(get_parallel=lambda: SimpleNamespace(**STATE))
    monkeypatch.setitem(sys.modules, "sglang.srt.runtime_context", context)
    assert _ranks(SimpleNamespace()) == WANTED
