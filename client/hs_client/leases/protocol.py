"""What a leased client and the holder of the leases say to each other: one JSON object a line, in both directions.

The client says `Hello` first and `Over` last. It asks for rows with `Want` and says with `Ended` which have come to an
end; every row that it was leased is named once in an `Ended` or a `Shrunk`, unless the client ends before. The holder
answers `Want` when it can, at any time with `Shrink`, and with `Finish` once every row has ended. The end of the stream
is the death of the other side: for the holder all that the client held is to be leased again, and the client ends as if
interrupted.
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from hs_client.errors import LeasesBroken
from hs_client.leases.ranges import Range

__all__ = [
    "MAX_LINE_BYTES",
    "ClientMessage",
    "Ended",
    "Finish",
    "Hello",
    "HolderMessage",
    "Lease",
    "Message",
    "Over",
    "Shrink",
    "Shrunk",
    "State",
    "Want",
    "client_message",
    "encode_line",
    "holder_message",
]

MAX_LINE_BYTES = 1 << 20
"""No line is longer, its end included."""


class Message(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag=str.lower):
    """A line; ``type`` is the name of the class in lower case."""


# -- from the client


class Hello(Message, frozen=True, kw_only=True):
    """The client has its plan and can send.

    Its scratch holds no parts of earlier runs of the dataset any more.

    Attributes:
        run: its id.
        rows: how many row numbers there are.
        left: samples among them to send, as it knows.
        done: samples that earlier runs have got done.
        rejected: rows that cannot be sent.
        identical: rows that are the same as an earlier one.
        inputs_hash: of every line of the prompts files; others have other rows under the same numbers.
        dataset: where its records go.
        marks: of that place; who sees the same one, under whatever path, has one of them at least. None: not known.
    """

    run: str
    rows: int
    left: int
    inputs_hash: str
    done: int = 0
    rejected: int = 0
    identical: int = 0
    dataset: str = ""
    marks: tuple[str, ...] = ()


class Want(Message, frozen=True, kw_only=True):
    """It has little left to send. Said once until a `Lease` comes, and once more when it gets idle meanwhile.

    `idle`: it could send more than it has: worth taking rows from another client.
    """

    idle: bool = False


class Ended(Message, frozen=True, kw_only=True):
    """Every sample of rows [start, stop) has its end, and the ledgers have it, durably.

    The counts are of the samples of these rows: summed up over all that the holder has heard they are right, whichever
    client was lost. `done` includes `adopted`. Samples that were done or identical by the plan are in none of them.
    """

    start: int
    stop: int
    done: int = 0
    adopted: int = 0
    failed: int = 0
    rejected: int = 0
    elsewhere: int = 0


class Shrunk(Message, frozen=True, kw_only=True):
    """The answer to `Shrink`: it gives these rows back, sorted ranges [start, stop); none where it has none to give."""

    ranges: tuple[Range, ...] = ()


class State(Message, frozen=True, kw_only=True):
    """How it stands, once a second.

    Attributes:
        done, failed, rejected, elsewhere, adopted: samples of this client that have ended so.
        left: samples of the rows that it holds that have not ended.
        tokens: of its records.
        tokens_per_s: of late.
        limiting: whom it has waited for most of late: ``tokeniser``, ``server``, ``scratch``, ``mover`` or nobody.
        waiting: what it waits for, in words; empty while requests flow.
        used_bytes, limit_bytes: of scratch.
        in_flight: requests without an answer, those for answers of the server too.
        text: all that in a line, as `hs-client run` shows it.
    """

    done: int = 0
    failed: int = 0
    rejected: int = 0
    elsewhere: int = 0
    adopted: int = 0
    left: int = 0
    tokens: int = 0
    tokens_per_s: float = 0.0
    limiting: str = ""
    waiting: str = ""
    used_bytes: int = 0
    limit_bytes: int = 0
    in_flight: int = 0
    text: str = ""


class Over(Message, frozen=True, kw_only=True):
    """Its last words: exit code, text of the error, and what ``--summary-json`` gets, empty where there was no run."""

    exit_code: int
    error: str = ""
    summary: dict[str, Any] = msgspec.field(default_factory=dict)


# -- from the holder


class Lease(Message, frozen=True, kw_only=True):
    """Rows [start, stop) are the client's to bring to an end. Another one may have had some of them before."""

    start: int
    stop: int


class Shrink(Message, frozen=True, kw_only=True):
    """Give back rows that are not on their way to the server, from the end: of the unsent rows keep one part of
    `nodes` + 1, rounded down."""

    nodes: int = 1


class Finish(Message, frozen=True, kw_only=True):
    """No lease will come any more: end when what is held has ended."""


ClientMessage = Hello | Want | Ended | Shrunk | State | Over
HolderMessage = Lease | Shrink | Finish

_T = TypeVar("_T")
_from_client: msgspec.json.Decoder[ClientMessage] = msgspec.json.Decoder(ClientMessage)
_from_holder: msgspec.json.Decoder[HolderMessage] = msgspec.json.Decoder(HolderMessage)


def encode_line(message: Message) -> bytes:
    """The message as a line, with its end."""
    return msgspec.json.encode(message) + b"\n"


def client_message(line: bytes) -> ClientMessage:
    """What a client says with `line`.

    Raises:
        LeasesBroken: it is no such message.
    """
    return _decode(_from_client, line)


def holder_message(line: bytes) -> HolderMessage:
    """What the holder says with `line`.

    Raises:
        LeasesBroken: it is no such message.
    """
    return _decode(_from_holder, line)


def _decode(decoder: msgspec.json.Decoder[_T], line: bytes) -> _T:
    try:
        found = decoder.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise LeasesBroken(reason=error) from None
    if isinstance(found, Lease | Ended) and not 0 <= found.start < found.stop:
        raise LeasesBroken(reason=f"rows {found.start} to {found.stop} are none")
    if isinstance(found, Shrunk) and any(not 0 <= start < stop for start, stop in found.ranges):
        raise LeasesBroken(reason="ranges that hold no rows")
    return found
