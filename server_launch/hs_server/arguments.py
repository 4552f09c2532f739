"""Reading and merging SGLang's own command-line arguments, without importing SGLang.

SGLang's parser accepts `--flag value`, `--flag=value`, switches, aliases, and any unambiguous beginning of a flag. Only
the few flags that the launcher must know are interpreted here; all others pass through untouched.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hs_formats.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = [
    "LAUNCHER_FLAGS",
    "Topology",
    "flag_value",
    "merge_arguments",
    "names_flag",
    "refuse_launcher_flags",
    "without_secrets",
]

_SECRETS = ("--api-key", "--admin-api-key", "--ssl-keyfile-password")

_HIDDEN = "***"

# SGLang's flags that the launcher sets itself, and its own option for each.
LAUNCHER_FLAGS = {
    "--model-path": "--model-path",
    "--model": "--model-path",
    "--host": "--host",
    "--port": "--port",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """How many scheduler processes a command line asks for."""

    tp: int
    dp: int
    pp: int
    nodes: int
    dp_attention: bool

    @classmethod
    def of(cls, arguments: Sequence[str]) -> Topology:
        """Read it from SGLang's arguments; what is absent is SGLang's default of 1."""
        return cls(
            tp=_size(arguments, "--tp-size", "--tensor-parallel-size"),
            dp=_size(arguments, "--dp-size", "--data-parallel-size"),
            pp=_size(arguments, "--pp-size", "--pipeline-parallel-size"),
            nodes=_size(arguments, "--nnodes"),
            dp_attention=any(names_flag(argument, "--enable-dp-attention") for argument in arguments),
        )

    @property
    def ranks(self) -> int:
        """Scheduler processes on all nodes; under DP attention the replicas share the TP ranks."""
        return self.tp * self.pp * (1 if self.dp_attention else self.dp)

    @property
    def local_ranks(self) -> int:
        """Scheduler processes on this node."""
        return max(1, self.ranks // max(1, self.nodes))


def names_flag(argument: str, flag: str) -> bool:
    """Whether `argument` is `flag`, `flag=value`, or an abbreviation of it that argparse may accept."""
    name = argument.partition("=")[0]
    return name.startswith("--") and len(name) > len("--x") and flag.startswith(name)


def flag_value(arguments: Sequence[str], *flags: str) -> str | None:
    """The last value given for any of `flags` (a flag and its aliases), or None."""
    value: str | None = None
    for index, argument in enumerate(arguments):
        if not any(names_flag(argument, flag) for flag in flags):
            continue
        if "=" in argument:
            value = argument.partition("=")[2]
        elif index + 1 < len(arguments):
            value = arguments[index + 1]
    return value


def without_secrets(arguments: Iterable[str]) -> list[str]:
    """`arguments` fit to be shown: keys and passwords among them are stars."""
    shown: list[str] = []
    hide_next = False
    for argument in arguments:
        secret = any(names_flag(argument, flag) for flag in _SECRETS)
        flag, inline, _ = argument.partition("=")
        if secret and inline:
            shown.append(f"{flag}={_HIDDEN}")
        else:
            shown.append(_HIDDEN if hide_next else argument)
        hide_next = secret and not inline
    return shown


def merge_arguments(
    profile: Iterable[tuple[str, str | None]], pass_through: Sequence[str]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The profile's arguments that the user did not give, and the flags of those that the user did."""
    kept: list[str] = []
    overridden: list[str] = []
    for flag, value in profile:
        if any(names_flag(argument, flag) for argument in pass_through):
            overridden.append(flag)
            continue
        kept.append(flag)
        if value is not None:
            kept.append(value)
    return tuple(kept), tuple(overridden)


def refuse_launcher_flags(pass_through: Sequence[str]) -> None:
    """Keep flags that the launcher itself must know out of the pass-through part.

    Raises:
        UsageError: such a flag is there.
    """
    for argument in pass_through:
        name = argument.partition("=")[0]
        if name in LAUNCHER_FLAGS:
            raise UsageError(f"{name} cannot be given after `--`\n  give {LAUNCHER_FLAGS[name]} before it")


def _size(arguments: Sequence[str], *flags: str) -> int:
    text = flag_value(arguments, *flags)
    if text is None:
        return 1
    try:
        return max(1, int(text))
    except ValueError:
        raise UsageError(f"{flags[0]} {text!r} is not a number") from None
