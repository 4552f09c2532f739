"""Loss masks as spans: which tokens are trained on, as the ledger keeps it. Pure logic, standard library only."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hs_formats.errors import FormatError

__all__ = ["mask_to_spans", "spans_to_mask", "supervised"]


def mask_to_spans(mask: Sequence[int | bool]) -> list[tuple[int, int]]:
    """Runs [start, stop) of ones in a mask of 0 and 1.

    Raises:
        FormatError: a value is neither 0 nor 1.
    """
    spans: list[tuple[int, int]] = []
    start: int | None = None
    for at, value in enumerate(mask):
        if value not in (0, 1):
            raise FormatError(f"loss mask holds {value!r} at token {at}; only 0 and 1 are allowed")
        if value and start is None:
            start = at
        elif not value and start is not None:
            spans.append((start, at))
            start = None
    if start is not None:
        spans.append((start, len(mask)))
    return spans


def spans_to_mask(spans: Iterable[tuple[int, int]], n: int) -> bytearray:
    """Inverse of `mask_to_spans` for n tokens, one byte a token.

    Raises:
        FormatError: a span is not inside [0, n) or not after the one before.
    """
    mask = bytearray(n)
    at = 0
    for start, stop in spans:
        if not at <= start < stop <= n:
            raise FormatError(f"mask span [{start}, {stop}) does not fit {n} tokens after token {at}")
        mask[start:stop] = b"\x01" * (stop - start)
        at = stop
    return mask


def supervised(spans: Iterable[tuple[int, int]]) -> int:
    """Number of tokens that are trained on."""
    return sum(stop - start for start, stop in spans)
