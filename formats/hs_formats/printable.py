"""Text of others on a terminal: what would act there is shown instead.

Ids, paths and model names may come from anybody. An escape sequence in one of them could rewrite what stands on the
screen, name the window, or, on some terminals, type.
"""

from __future__ import annotations

import unicodedata

__all__ = ["printable"]

_ACTING = ("Cc", "Cs", "Zl", "Zp")
_BIDI = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
_KEPT = frozenset("\n\t")


def printable(text: str) -> str:
    r"""`text` with control characters, marks of direction and lone surrogates as Python would write them, ``\x1b``.

    Line feeds and tabs stay.
    """
    if text.isprintable():
        return text
    return "".join(map(_shown, text))


def _shown(character: str) -> str:
    if character in _KEPT:
        return character
    if character in _BIDI or unicodedata.category(character) in _ACTING:
        return character.encode("unicode_escape").decode("ascii")
    return character
