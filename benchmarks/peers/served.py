"""A contestant that is a server: requests in blocks, each over when the last state is a file."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.drain import Drain
from benchmarks.load import Load, Prompt, drive, foreign_rids, our_rids
from benchmarks.patched import patched_environment
from benchmarks.peers.cells import Cell
from benchmarks.peers.contestants import Contestant
from benchmarks.serving import Server, Target

__all__ = ["Served", "measure_served"]

_DRAIN_TIMEOUT_S = 120.0

Served = dict[str, Any]
"""``start_s``; ``cells``: tokens/s of each block by cell; ``bytes`` of files; ``generator_cpu``; ``problems``."""


def measure_served(one: Contestant, target: Target, cells: Sequence[Cell], *, blocks: int, least_tokens: int) -> Served:
    """Start the contestant's server, measure all cells, stop it.

    Raises:
        HsError: it did not start.
    """
    found: Served = {"start_s": 0.0, "cells": {}, "bytes": 0, "requests": 0, "generator_cpu": 0.0, "problems": []}
    environment = patched_environment(target.work) if one.source else {}
    server = Server(
        target, name=one.name, plugin=one.plugin, arguments=() if target.cpu and not one.graphs else one.arguments,
        options=one.options, environment=environment,
    )  # fmt: skip
    states = target.scratch / f"{one.name}-states"
    try:
        with server:
            found["start_s"] = round(server.start_s, 1)
            sender = _Sender(one, server, states)
            for cell in cells:
                _send(sender, cell, min(cell.in_flight, cell.requests(least_tokens)), found)  # warms up
                for _ in range(blocks):
                    rate = _send(sender, cell, cell.requests(least_tokens), found)
                    found["cells"].setdefault(str(cell), []).append(round(rate, 2))
            if one.captures:
                failed = sum(item.failed for item in server.statistics())
                if failed:
                    found["problems"].append(f"{failed} requests given up")
    finally:
        server.remove_scratch()
        shutil.rmtree(states, ignore_errors=True)
    found["problems"] = [f"{one.name}: {text}" for text in found["problems"]]
    return found


class _Sender:
    """Sends blocks to one server; knows which ids are captured and what becomes of answers."""

    def __init__(self, one: Contestant, server: Server, states: Path) -> None:
        self.one, self.server, self.states = one, server, states
        self._ids = np.random.default_rng()
        self._run = secrets.token_hex(4).replace("00000000", "00000001")
        self._rows = 0
        if one.over_http:
            states.mkdir(parents=True, exist_ok=True)

    def prompts(self, tokens: int, count: int) -> list[Prompt]:
        """`count` prompts whose ids were never sent before."""
        rids = our_rids(self._run, self._rows, count) if self.one.captures else foreign_rids(count)
        self._rows += count
        more = {"return_hidden_states": True} if self.one.over_http else {}
        vocabulary = self.server.target.vocabulary
        return [Prompt(rid, vocabulary.draw(tokens, self._ids), more=more) for rid in rids]

    def taker(self, found: Served) -> Callable[[Prompt, bytes], str | None] | None:
        """What is done with each answer while the clock runs."""
        if not self.one.over_http:
            return None

        def take(prompt: Prompt, content: bytes) -> str | None:
            states = states_of_answer(content)
            if states is None or states.shape[0] != len(prompt.input_ids):
                return f"{None if states is None else list(states.shape)} states for {len(prompt.input_ids)} tokens"
            found["bytes"] += save_sample(self.states / f"{prompt.rid}.pt", prompt.input_ids, states)
            return None

        return take


def states_of_answer(content: bytes) -> Any:
    """The states [n, H] in an answer of /generate, bfloat16; None where it has none."""
    import torch

    given = json.loads(content)["meta_info"].get("hidden_states")
    if not given:
        return None
    rows = given[0]  # of the prompt; what follows is of generated tokens
    return torch.tensor(rows, dtype=torch.bfloat16)


def save_sample(path: Path, ids: list[int], states: Any) -> int:
    """``torch.save`` under another name, then a rename; returns the bytes."""
    import torch

    temporary = path.with_suffix(".tmp")
    torch.save({"input_ids": torch.tensor(ids), "hidden_states": states}, temporary)
    size = temporary.stat().st_size
    os.replace(temporary, path)
    return size


def _send(sender: _Sender, cell: Cell, count: int, found: Served) -> float:
    """One block; tokens/s until the answers and, where states are kept, their files are all there."""
    prompts = sender.prompts(cell.tokens, count)
    if not sender.one.captures:
        load = drive(sender.server.url, prompts, concurrency=cell.in_flight, take=sender.taker(found))
        for path in sender.states.glob("*.pt"):
            path.unlink()
        _note(found, cell, load)
        return load.tokens_per_s
    with Drain(sender.server.scratch) as drain:
        began = time.perf_counter()
        load = drive(sender.server.url, prompts, concurrency=cell.in_flight)
        wanted = {item.rid: len(item.input_ids) for item in prompts}
        spread = "spread" in sender.one.options
        ranks = range(sender.server.target.tp) if spread else (0,)
        drain.wait_for(wanted, timeout_s=_DRAIN_TIMEOUT_S, ranks=ranks, together=spread)
        seconds = time.perf_counter() - began
    found["bytes"] += drain.bytes
    found["problems"] += [*drain.problems, *(f"given up: {item.rid} {item.reason}" for item in drain.failures)]
    _note(found, cell, load)
    return load.tokens / seconds


def _note(found: Served, cell: Cell, load: Load) -> None:
    found["requests"] += load.requests
    found["generator_cpu"] = max(found["generator_cpu"], round(load.generator_cpu, 3))
    found["problems"] += [f"{cell}: {text}" for text in load.failures]
