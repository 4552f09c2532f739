"""Why a line of the input can never be a sample."""

from __future__ import annotations

__all__ = ["OTHER_CONTENT", "RowError", "kind_of"]

OTHER_CONTENT = "with other content; give the changed row another id, or the file another --dataset"
"""How a sample is done that a row cannot be, and what to do about it."""


class RowError(ValueError):
    """Why a row can never be a sample. `sample_id` is empty where the row could not be read that far.

    `context_tokens`: the number of tokens, one to spare included, that was too few for the row where that is what it
    does not fit, else 0.
    """

    def __init__(self, reason: str, sample_id: str = "", *, context_tokens: int = 0) -> None:
        super().__init__(reason)
        self.reason = reason
        self.sample_id = sample_id
        self.context_tokens = context_tokens


def kind_of(value: object) -> str:
    """What a JSON value is, in words: ``a list``."""
    names = {"NoneType": "null", "str": "a string", "list": "a list", "dict": "an object", "bool": "true or false"}
    return names.get(type(value).__name__, "a number")
