"""Prompts files for the tiny models: all kinds of rows, shared prefixes, repeated prompts, many lengths."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from tiny_models import token_text

__all__ = ["mixed_rows", "write_rows"]

_WORDS = range(3, 500)
_PREFIX_TOKENS = 40


def mixed_rows(count: int, *, seed: int, longest: int = 100) -> list[dict[str, Any]]:
    """`count` different samples of 1 to `longest` tokens: ids, text and chats; every third one starts like another.

    Some prompts are repeated under ids of their own, since a repeated prompt is what a prefix cache would swallow.
    """
    draw = random.Random(seed)
    prefix = [draw.choice(_WORDS) for _ in range(longest)]
    lengths = [1, 2, 15, 16, 17, 32, 33, 48, longest]
    rows: list[dict[str, Any]] = []
    for number in range(count):
        n = lengths[number] if number < len(lengths) else draw.randrange(1, longest + 1)
        ids = [draw.choice(_WORDS) for _ in range(n)]
        if number % 3 == 0:
            ids = (prefix[: min(_PREFIX_TOKENS, n - 1)] + ids)[:n]
        name = f"sample-{number:03d}"
        match number % 4:
            case 1:
                rows.append({"id": name, "text": " ".join(map(token_text, ids))})
            case 2 if n > 8:
                half = n // 2
                rows.append(
                    {
                        "id": name,
                        "messages": [
                            {"role": "user", "content": " ".join(map(token_text, ids[:half]))},
                            {"role": "assistant", "content": " ".join(map(token_text, ids[half:-4]))},
                        ],
                    }
                )
            case 3 if number > 20:
                rows.append({"id": name, "input_ids": rows[9].get("input_ids", ids)})
            case _:
                rows.append({"id": name, "input_ids": ids})
    return rows


def write_rows(path: Path, rows: list[dict[str, Any]]) -> Path:
    """Write JSON lines; returns `path`."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path
