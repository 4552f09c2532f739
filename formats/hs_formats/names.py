"""Request ids and part-file names: the grammar that ties a request to its bytes on disk.

A request id (rid) is ``hs-<run 8 hex>-<row 8 digits>-<attempt 2 digits>``. Its length is fixed because SGLang
aborts requests by rid *prefix* (``scheduler.abort_request``): no rid of ours may be a prefix of another. Requests that
ask for an answer and capture nothing have ids of another form, `generation_rid`.

A part is ``<rid>.t<start 7>-<stop 7>of<n 7>.r<rank 2>.pt``: rows [start, stop) of a prompt of n tokens, written by one
tensor-parallel rank. While it is being written it is called ``.<part>.<launch nonce 16 hex>.tmp``.

Standard library only: SGLang's scheduler processes import this module.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from hs_formats.errors import FormatError

__all__ = [
    "CANARY_RUN",
    "MAX_ATTEMPT",
    "MAX_GENERATION",
    "MAX_RANK",
    "MAX_ROW",
    "MAX_TOKENS",
    "PartName",
    "Rid",
    "canary_of_every_rank",
    "generation_rid",
    "is_nonce",
    "is_run_id",
    "parse_temporary",
    "part_prefix",
    "rid_of_part",
    "run_of_rid",
    "temporary_name",
]

CANARY_RUN = "00000000"
"""Run id of doctor's canary requests; the mover never touches its parts.

Their attempt says who writes them: 00 every tensor-parallel rank, whatever the server's writers mode, so that ranks can
be compared; others as the server is set.
"""

MAX_GENERATION = 9_999_999_999
MAX_ROW = 99_999_999
MAX_ATTEMPT = 99
MAX_TOKENS = 9_999_999
MAX_RANK = 99

_RUN = re.compile(r"[0-9a-f]{8}", re.ASCII)
_NONCE = re.compile(r"[0-9a-f]{16}", re.ASCII)
_RID = re.compile(r"hs-([0-9a-f]{8})-([0-9]{8})-([0-9]{2})", re.ASCII)
_PART = re.compile(r"(hs-[0-9a-f]{8}-[0-9]{8}-[0-9]{2})\.t([0-9]{7})-([0-9]{7})of([0-9]{7})\.r([0-9]{2})\.pt", re.ASCII)
_TEMPORARY = re.compile(r"\.(hs-.+\.pt)\.([0-9a-f]{16})\.tmp", re.ASCII)


def is_run_id(text: str) -> bool:
    """True for eight lower-case hex digits."""
    return _RUN.fullmatch(text) is not None


def is_nonce(text: str) -> bool:
    """True for sixteen lower-case hex digits, the name of one server launch."""
    return _NONCE.fullmatch(text) is not None


def part_prefix(run: str) -> str:
    """How every rid, and so every part name, of a run begins."""
    return f"hs-{run}-"


def run_of_rid(rid: str) -> str:
    """The run id in a valid rid, without parsing it: for loops over many names."""
    return rid[3:11]


def canary_of_every_rank(rid: str) -> bool:
    """Whether a valid rid is that of a canary request which every rank writes."""
    return rid[3:11] == CANARY_RUN and rid[-2:] == "00"


def generation_rid(run: str, number: int) -> str:
    """The id of a run's request for an answer, the `number`-th from 0: ``hsgen-<run>-<number, 10 digits>``.

    It is no `Rid`, so that nothing is captured, and neither begins like one: an abort by prefix of the one kind never
    meets the other, nor another of its own kind.

    Raises:
        FormatError: `run` is no run id, or `number` is out of range.
    """
    if not is_run_id(run) or not 0 <= number <= MAX_GENERATION:
        raise FormatError(f"run {run!r}, number {number}: no request for an answer")
    return f"hsgen-{run}-{number:010d}"


def rid_of_part(part: str) -> str:
    """The rid in a valid part name, without parsing it: for loops over many names."""
    return part[:23]


@dataclass(frozen=True, slots=True, order=True)
class Rid:
    """The SGLang request id of one attempt at one row of one run.

    Raises:
        FormatError: a field is outside the grammar.
    """

    run: str
    row: int
    attempt: int

    def __post_init__(self) -> None:
        if not is_run_id(self.run):
            raise FormatError(f"run id {self.run!r} is not eight lower-case hex digits")
        if not 0 <= self.row <= MAX_ROW:
            raise FormatError(f"row {self.row} is outside 0..{MAX_ROW}")
        if not 0 <= self.attempt <= MAX_ATTEMPT:
            raise FormatError(f"attempt {self.attempt} is outside 0..{MAX_ATTEMPT}")

    def __str__(self) -> str:
        return f"hs-{self.run}-{self.row:08d}-{self.attempt:02d}"

    @classmethod
    def parse(cls, text: str) -> Rid:
        """Inverse of ``str``.

        Raises:
            FormatError: `text` is not one of our request ids.
        """
        match = _RID.fullmatch(text)
        if match is None:
            raise FormatError(f"{text!r} is not a request id of hs-extract")
        return cls(match[1], int(match[2]), int(match[3]))

    @staticmethod
    def matches(text: str) -> bool:
        """Cheap test used for every request of every batch inside the server."""
        return _RID.fullmatch(text) is not None


@dataclass(frozen=True, slots=True, order=True)
class PartName:
    """Name of one part file: rows [start, stop) of the n prompt tokens of `rid`, from writer rank `rank`.

    Raises:
        FormatError: a field is outside the grammar, or not 0 <= start < stop <= n.
    """

    rid: Rid
    start: int
    stop: int
    n: int
    rank: int

    def __post_init__(self) -> None:
        if not 0 <= self.start < self.stop <= self.n <= MAX_TOKENS:
            raise FormatError(f"rows [{self.start}, {self.stop}) of {self.n} of {self.rid} are no part")
        if not 0 <= self.rank <= MAX_RANK:
            raise FormatError(f"writer rank {self.rank} is outside 0..{MAX_RANK}")

    def __str__(self) -> str:
        return f"{self.rid}.t{self.start:07d}-{self.stop:07d}of{self.n:07d}.r{self.rank:02d}.pt"

    @property
    def rows(self) -> int:
        """Number of token rows in the part."""
        return self.stop - self.start

    @classmethod
    def parse(cls, text: str) -> PartName:
        """Inverse of ``str``.

        Raises:
            FormatError: `text` is not a part name.
        """
        match = _PART.fullmatch(text)
        if match is None:
            raise FormatError(f"{text!r} is not the name of a part file")
        return cls(Rid.parse(match[1]), int(match[2]), int(match[3]), int(match[4]), int(match[5]))

    @classmethod
    def try_parse(cls, text: str) -> PartName | None:
        """`parse`, with None for a foreign name."""
        try:
            return cls.parse(text)
        except FormatError:
            return None


def temporary_name(part: PartName, nonce: str) -> str:
    """Name of `part` while the server launch called `nonce` writes it.

    Raises:
        FormatError: `nonce` is not sixteen hex digits.
    """
    if not is_nonce(nonce):
        raise FormatError(f"launch nonce {nonce!r} is not sixteen lower-case hex digits")
    return f".{part}.{nonce}.tmp"


def parse_temporary(text: str) -> tuple[PartName, str] | None:
    """The part and the launch nonce of a temporary name, or None for any other name."""
    match = _TEMPORARY.fullmatch(text)
    if match is None:
        return None
    part = PartName.try_parse(match[1])
    return None if part is None else (part, match[2])
