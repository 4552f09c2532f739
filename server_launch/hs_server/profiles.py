"""Profiles: the arguments and environment that a launch adds to what the user gives.

A profile is data; what the user gives wins over it, flag by flag and variable by variable. The `cpu` profile's
stand-ins for missing GPU packages live in `cpu_profile` and are imported for that profile only.
"""

from __future__ import annotations

from dataclasses import dataclass

from hs_formats.errors import UsageError

__all__ = ["PROFILES", "Profile", "find_profile"]

# Rows of a cached prefix never pass through the model, so a capture would miss them.
_COMMON: tuple[tuple[str, str | None], ...] = (("--disable-radix-cache", None),)

_GPU: tuple[tuple[str, str | None], ...] = (*_COMMON, ("--disable-custom-all-reduce", None))


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """What a named profile adds; `boundaries` are the model's own, where the profile is for one model."""

    name: str
    summary: str
    arguments: tuple[tuple[str, str | None], ...]
    boundaries: tuple[int, ...] | None = None
    cpu: bool = False


PROFILES: dict[str, Profile] = {
    profile.name: profile
    for profile in (
        Profile(name="default", summary="GPU server: radix cache and custom all-reduce off", arguments=_GPU),
        Profile(
            name="cpu",
            summary="any x86-64 CPU: float32, torch attention, stand-ins for the GPU packages",
            arguments=_COMMON,
            cpu=True,
        ),
        Profile(
            name="kimi-k2.5",
            summary="default, with Kimi-K2.5's boundaries 3,31,59",
            arguments=_GPU,
            boundaries=(3, 31, 59),
        ),
    )
}


def find_profile(name: str) -> Profile:
    """The profile called `name`.

    Raises:
        UsageError: there is none.
    """
    try:
        return PROFILES[name]
    except KeyError:
        raise UsageError(f"no profile is called {name!r}\n  profiles: {', '.join(PROFILES)}") from None
