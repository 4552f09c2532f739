"""Answers every POST at once with what SGLang would say: ``python -m benchmarks.client.stub PORT``."""

from __future__ import annotations

import sys

from benchmarks.straw import http_ok, serve_until_killed

__all__ = ["ANSWER", "main"]

ANSWER = {
    "text": "",
    "output_ids": [],
    "meta_info": {
        "id": "hs-00000001-00000000-00",
        "finish_reason": {"type": "length", "length": 0},
        "prompt_tokens": 2000,
        "completion_tokens": 0,
        "cached_tokens": 0,
        "weight_version": "default",
        "e2e_latency": 0.05,
    },
}
_SAID = http_ok(ANSWER)


def main() -> None:
    """Serve until killed."""
    serve_until_killed(int(sys.argv[1]), lambda *_: _SAID)


if __name__ == "__main__":
    main()
