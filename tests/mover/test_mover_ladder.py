"""When the codec steps down and up: only the encoders' fault counts, and it never flaps."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from hs_formats.errors import UsageError
from hs_formats.stored import CODECS
from hs_mover.config import MoverConfig
from hs_mover.ladder import LADDER, Ladder, rungs_between
from hs_mover.meter import Load

ENCODERS = Load(encoding=0.98, writing=0.01, pacing=0.0, syncing=0.1)
DISK = Load(encoding=0.3, writing=0.1, pacing=0.0, syncing=0.95)
DISK_WRITES = Load(encoding=0.3, writing=0.7, pacing=0.0, syncing=0.1)
PACED = Load(encoding=0.3, writing=0.0, pacing=0.7, syncing=0.1)
SPARE = Load(encoding=0.2, writing=0.0, pacing=0.0, syncing=0.1)
BOTH = Load(encoding=0.95, writing=0.05, pacing=0.0, syncing=0.9)


SHARE = st.floats(0, 1)


def after(ladder: Ladder, load: Load, windows: int, *, pressed: bool = True) -> str:
    for _ in range(windows):
        ladder.update(load, pressed=pressed)
    return ladder.current


def test_rungs() -> None:
    assert set(LADDER) <= set(CODECS)
    assert rungs_between("default", "fast") == ("default", "fast")
    assert rungs_between("default", "none") == ("default", "fast", "none")
    assert rungs_between("default", "default") == ("default",)
    assert rungs_between("fast", "default") == ("fast",)
    assert rungs_between("zstd", "none") == ("zstd",)


def test_down_only_when_the_encoders_are_the_limit_and_parts_pile_up() -> None:
    assert after(Ladder(LADDER), ENCODERS, 50, pressed=False) == "default"
    for load in (DISK, DISK_WRITES, PACED, SPARE, BOTH):
        assert after(Ladder(LADDER), load, 50) == "default"
    ladder = Ladder(LADDER)
    assert after(ladder, ENCODERS, 2) == "default"  # a moment is not enough
    assert "fast instead of default: parts pile up" in ladder.update(ENCODERS, pressed=True)
    assert after(ladder, ENCODERS, 3) == "none"
    assert after(ladder, ENCODERS, 50) == "none"


def test_up_at_once_when_the_disk_is_the_limit() -> None:
    ladder = Ladder(LADDER)
    after(ladder, ENCODERS, 3)
    assert ladder.current == "fast"
    ladder.update(DISK, pressed=True)
    assert "default instead of fast: the disk is the limit" in ladder.update(DISK, pressed=True)


def test_up_when_the_better_codec_fits_in() -> None:
    ladder = Ladder(LADDER)
    after(ladder, ENCODERS, 6)
    assert ladder.current == "none"
    busy = Load(encoding=0.5, writing=0.0, pacing=0.0, syncing=0.1)  # with planes it would be 0.94
    assert after(ladder, busy, 100, pressed=False) == "none"
    assert after(ladder, SPARE, 5, pressed=False) == "fast"
    assert after(ladder, PACED, 5, pressed=True) == "default"  # parts pile up, and not for the encoders' sake
    assert after(ladder, SPARE, 50, pressed=False) == "default"


def test_going_up_too_early_makes_it_wait_longer() -> None:
    ladder, waits = Ladder(("default", "fast")), []
    for _ in range(7):
        while ladder.current == "default":
            ladder.update(ENCODERS, pressed=True)
        count = 0
        while ladder.current == "fast":
            ladder.update(SPARE, pressed=False)
            count += 1
        waits.append(count)
    assert waits == [5, 10, 20, 40, 80, 160, 160]
    after(ladder, SPARE, 400, pressed=False)
    after(ladder, ENCODERS, 3)
    assert after(ladder, SPARE, 5, pressed=False) == "default"


@given(
    st.lists(
        st.tuples(
            st.builds(Load, encoding=SHARE, writing=SHARE, pacing=SHARE, syncing=SHARE),
            st.booleans(),
        ),
        max_size=80,
    ),
    st.sampled_from([LADDER, LADDER[:2], LADDER[:1]]),
)  # fmt: skip
def test_it_moves_by_one_rung_says_so_and_never_down_for_the_disk(
    windows: list[tuple[Load, bool]], rungs: tuple[str, ...]
) -> None:
    ladder = Ladder(rungs)
    for load, pressed in windows:
        before = rungs.index(ladder.current)
        said = ladder.update(load, pressed=pressed)
        step = rungs.index(ladder.current) - before
        assert abs(step) <= 1
        assert bool(said) == bool(step)
        if step == 1:
            assert pressed
            assert load.encoding > max(load.syncing, load.writing)


def test_a_floor_that_is_no_codec_of_the_ladder_is_refused() -> None:
    with pytest.raises(UsageError, match="--codec-floor"):
        MoverConfig(sources=(Path("/s"),), dst=Path("/d"), codec="default", codec_floor="zstd")
