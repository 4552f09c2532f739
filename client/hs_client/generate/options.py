"""How answers are generated, as the command line says it, and what of that decides about them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from hs_client.rows import Regenerate
from hs_formats.errors import UsageError

__all__ = ["GenerateOptions", "Keep", "regenerated"]

Keep = Literal["keep", "drop"]


def regenerated(described: str) -> Regenerate:
    """Which answers the server gives in a dataset whose ``dataset.json`` says this of generation; "" for none."""
    try:
        found = json.loads(described or "{}").get("regenerate", "")
    except (ValueError, AttributeError):
        return ""
    return found if found in ("missing", "all") else ""


_NEUTRAL: Mapping[str, Any] = {
    "top_k": -1,
    "min_p": 0.0,
    "frequency_penalty": 0.0,
    "presence_penalty": 0.0,
    "repetition_penalty": 1.0,
    "min_new_tokens": 0,
    "ignore_eos": False,
    "stop": None,
    "stop_regex": None,
    "stop_token_ids": None,
    "regex": None,
    "json_schema": None,
    "ebnf": None,
    "structural_tag": None,
    "logit_bias": None,
}
"""Said with each request, so that a server's ``--preferred-sampling-params`` do not decide about answers unseen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateOptions:
    """Settings of generation in one run.

    `stop`: texts that end an answer. `seed`: those of the requests are derived from it. `variants`: answers a row.
    `cut`, `looping`: what becomes of answers that ended at `max_new_tokens`, and of those that repeat themselves.
    `concurrency`: requests for answers in flight to each server.

    Raises:
        UsageError: they contradict each other.
    """

    regenerate: Regenerate = "missing"
    temperature: float = 0.0
    top_p: float = 1.0
    max_new_tokens: int = 2048
    stop: Sequence[str] = ()
    seed: int = 0
    variants: int = 1
    cut: Keep = "keep"
    looping: Keep = "drop"
    concurrency: int = 64

    def __post_init__(self) -> None:
        if self.variants > 1 and self.temperature == 0:
            raise UsageError("--variants of greedy answers are all alike: give a --temperature above 0")
        if "" in self.stop:
            raise UsageError("--stop may not be empty")

    @property
    def described(self) -> str:
        """What decides about answers, as ``dataset.json`` has it: JSON, keys sorted."""
        found = {
            "max_new_tokens": self.max_new_tokens,
            "regenerate": self.regenerate,
            "seed": self.seed,
            "stop": sorted(set(self.stop)),
            "temperature": float(self.temperature),
            "top_p": float(self.top_p),
        }
        return json.dumps(found, sort_keys=True, ensure_ascii=False, separators=(",", ":"))

    @property
    def settings_hash(self) -> str:
        """Of `described`, for each answer that is kept."""
        return hashlib.sha256(self.described.encode()).hexdigest()[:16]

    def seed_of(self, sample_id: str, variant: int, turn: int) -> int:
        """The seed of one request, 0 to 2^31 - 1: the same whenever the same answer is asked for."""
        text = json.dumps([self.seed, sample_id, variant, turn], separators=(",", ":"))
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big") >> 1

    def sampling(self, asked: int, seed: int) -> dict[str, Any]:
        """SGLang's sampling parameters of a request for `asked` tokens at most."""
        return {
            **_NEUTRAL,
            "temperature": float(self.temperature),
            "top_p": float(self.top_p),
            "max_new_tokens": asked,
            "sampling_seed": seed,
            **({"stop": sorted(set(self.stop))} if self.stop else {}),
        }
