"""What an answer is worth: whether it becomes part of a sample, ends it, or costs the sample. Pure logic."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

from hs_client._http import Generated
from hs_client.attempt import Verdict
from hs_client.generate.loops import repeated_tail
from hs_client.generate.options import GenerateOptions
from hs_client.row_error import RowError
from hs_formats.responses import Response, ResponseFacts

__all__ = ["How", "check_generated", "judge", "usable_again"]

How = Literal["ended", "cut"]
"""The model ended the answer; or it ran into a limit, and nothing can follow it."""


@dataclass(frozen=True, slots=True)
class _Names:
    variant: int
    turn: int

    def __str__(self) -> str:
        words = [f"variant {self.variant}"] * (self.variant > 1) + [f"turn {self.turn + 1}"] * (self.turn > 0)
        return f" ({', '.join(words)})" if words else ""


def check_generated(
    found: Generated, question: ResponseFacts, *, vocab_size: int, stop: Collection[str] = ()
) -> Verdict:
    """Whether what the server says can be an answer to `question` at all.

    Args:
        found: what it says.
        question: what was asked.
        vocab_size: of the model, 0 where nobody knows it.
        stop: the texts that may end an answer. SGLang says ``NaN happened`` in place of one, and puts the token that
            ends answers where the logits gave none.
    """
    if found.finish_type == "abort":
        return Verdict("aborted", f"the server aborted the request: {found.finish_reason or 'no reason given'}")
    if found.prompt_tokens != question.prompt_tokens:
        return Verdict(
            "prompt changed",
            f"the server counted {found.prompt_tokens} prompt tokens where {question.prompt_tokens} were sent",
        )
    if len(found.output_ids) != found.counted:
        return Verdict(
            "bad answer", f"the answer has {len(found.output_ids)} token ids, and the server counted {found.counted}"
        )
    if len(found.output_ids) > question.asked:
        return Verdict("bad answer", f"the answer has {len(found.output_ids)} tokens where {question.asked} were asked")
    if isinstance(found.matched, str) and found.matched not in stop:
        return Verdict("bad answer", f"the server ended the answer for {found.matched!r}, which is no text of --stop")
    worst = max(found.output_ids, default=0)
    if min(found.output_ids, default=0) < 0 or (vocab_size and worst >= vocab_size):
        return Verdict("bad answer", f"the answer holds token {worst}, and the vocabulary has {vocab_size}")
    return Verdict()


def judge(response: Response, options: GenerateOptions, *, truncate: bool) -> How:
    """What to make of an answer.

    Args:
        response: the answer.
        options: of the run.
        truncate: samples may be cut to what the server takes.

    Raises:
        RowError: the sample is rejected: the answer is empty, loops, or was cut where it may not be.
    """
    which = _Names(response.variant, response.turn)
    said = len(response.output_ids)
    ended = response.finish_reason != "length"
    by_token = ended and not isinstance(response.matched, str)
    if said <= by_token:  # the token that ends it is no answer
        raise RowError(f"the model's answer{which} is empty")
    loop = repeated_tail(response.output_ids[:-1] if by_token else response.output_ids)
    if loop is not None and options.looping == "drop":
        raise RowError(f"the model's answer{which} of {said} tokens ends in a loop: {loop[0]} tokens, {loop[1]} times")
    if ended:
        return "ended"
    if said >= response.asked < options.max_new_tokens and not truncate:
        tokens = response.prompt_tokens + said
        raise RowError(
            f"too long: the prompt of {response.prompt_tokens} tokens leaves its answer{which} {said}, which do not"
            " suffice",
            context_tokens=tokens + 1,
        )
    if options.cut == "drop":
        raise RowError(f"the model's answer{which} was cut at {said} tokens")
    return "cut"


def usable_again(asked: int, finish_reason: str, *, room: int, max_new_tokens: int) -> bool:
    """Whether an answer that was asked for with room for `asked` tokens is what would be asked for now."""
    return finish_reason != "length" or min(room, max_new_tokens) <= asked
