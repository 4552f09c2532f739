"""ShareGPT conversations (``from`` and ``value``) as chat messages. Pure logic.

Also taken are files whose ``conversations`` hold messages with ``role`` and ``content`` already.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from hs_client.row_error import RowError, kind_of

__all__ = ["ROLES", "sharegpt_messages"]

ROLES = {
    "assistant": "assistant",
    "bard": "assistant",
    "bing": "assistant",
    "chatgpt": "assistant",
    "function_call": "function_call",
    "function_response": "tool",
    "gpt": "assistant",
    "human": "user",
    "observation": "tool",
    "system": "system",
    "tool": "tool",
    "user": "user",
}
"""``from`` → role. ``function_call`` is a message of the assistant that calls tools."""


def sharegpt_messages(conversations: object, system: object = None) -> list[Any]:
    """The messages of a row's ``conversations``, for `hs_client.messages.check_messages` to check.

    `system`: of the row, the text of a system message where the conversation has none.

    Raises:
        RowError: a turn cannot be read.
    """
    if not isinstance(conversations, list):
        raise RowError(f"conversations must be a list, not {kind_of(conversations)}")
    if not conversations:
        raise RowError("conversations is empty")
    found = [_turn(at, turn) for at, turn in enumerate(conversations)]
    if system is not None and not isinstance(system, str):
        raise RowError(f"system must be text, not {kind_of(system)}")
    if system and found[0].get("role") != "system":
        found.insert(0, {"role": "system", "content": system})
    return found


def _turn(at: int, turn: object) -> dict[str, Any]:
    if not isinstance(turn, dict):
        raise RowError(f"turn {at} is {kind_of(turn)}, not an object")
    if "from" not in turn:
        if "role" in turn:
            return turn
        raise RowError(f"turn {at} has neither from nor role")
    sender = turn["from"]
    role = ROLES.get(sender.lower()) if isinstance(sender, str) else None
    if role is None:
        raise RowError(f"turn {at} is from {str(sender)[:40]!r}; known are {', '.join(ROLES)}")
    value = turn.get("value")
    rest = {key: item for key, item in turn.items() if key not in ("from", "value")}
    if role == "function_call":
        return {**rest, "role": "assistant", "content": None, "tool_calls": _calls(at, value)}
    return {**rest, "role": role, "content": value}


def _calls(at: int, value: object) -> list[Mapping[str, Any]]:
    calls = value
    if isinstance(value, str):
        try:
            calls = json.loads(value)
        except (ValueError, RecursionError):
            raise RowError(f"turn {at} is a function call that is not JSON") from None
    return calls if isinstance(calls, list) else [calls]  # type: ignore[list-item]  # check_messages checks each
