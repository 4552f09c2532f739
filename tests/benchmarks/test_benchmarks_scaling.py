"""The scaling case: the power with which a cost grows, what is called too much, and the sets that it makes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from benchmarks.scaling.case import _excess
from benchmarks.scaling.growth import LINEAR, Growth, growths, power
from benchmarks.scaling.made import RUN, TOKENS, draw_ids, write_set
from hypothesis import given, strategies as st

from hs_client.verify.run import verify
from hs_formats.dataset import DatasetPaths
from hs_formats.reader import HiddenStateDataset

_SIZES = [1_000, 10_000, 100_000]


@given(st.floats(0.1, 3.0), st.floats(1e-3, 1e3))
def test_the_power_of_a_power_law_is_found(exponent: float, scale: float) -> None:
    costs = [scale * size**exponent for size in _SIZES]
    assert power(_SIZES, costs, small=0.0) == pytest.approx(exponent)


@given(st.floats(0.001, 1.0))
def test_small_costs_say_nothing_and_hide_nothing(small: float) -> None:
    assert power(_SIZES, [small / 9, small / 3, small], small=small) == 0.0
    assert power(_SIZES[:1], [100 * small], small=small) == 0.0
    quadratic = [small * (size / 20_000) ** 2 for size in _SIZES]  # the middle one is below what can be seen
    assert quadratic[1] < small < quadratic[2]
    assert power(_SIZES, quadratic, small=small) > LINEAR


def _body(**costs: float) -> dict[str, Any]:
    """Costs by rows of one operation that grow with the given powers; parts and clients that cost the same each."""
    rows = [
        {"rows": size, "cpu_s": 1e-4 * size ** costs["time"], "peak_bytes": 1e4 * size ** costs["memory"]}
        for size in _SIZES
    ]
    backlog = [{"parts": count, "cpu_s": 0.5 + 1e-3 * count ** costs["parts"]} for count in (500, 5_000)]
    clients = [{"clients": count, "cpu_s": 1.0 * count ** costs["clients"], "grants": 100} for count in (1, 2, 4)]
    return {"rows": {"one": rows}, "parts": {"start": {"cpu_s": 0.5}, "backlog": backlog}, "clients": clients}


@pytest.mark.parametrize("worse", ["time", "memory", "parts", "clients"])
def test_what_grows_faster_than_it_may_is_named(worse: str) -> None:
    fine = {"time": 1.0, "memory": 1.0, "parts": 1.0, "clients": 0.0}
    assert not [text for growth in growths(_body(**fine)).values() for text in _excess(growth)]
    found = growths(_body(**{**fine, worse: 1.5}))
    named = {name: list(_excess(growth)) for name, growth in found.items()}
    name = {"time": "one", "memory": "one", "parts": "parts that wait", "clients": "clients, time of a grant"}[worse]
    assert [key for key, texts in named.items() if texts] == [name]
    assert named[name][0].startswith("memory grows" if worse == "memory" else "time grows")


def test_memory_that_was_not_looked_at_is_not_judged() -> None:
    assert list(_excess(Growth(1.0, None))) == []


@given(st.integers(0, 10**7), st.integers(0, 10**7))
def test_ids_begin_alike_and_are_those_of_their_row(one: int, other: int) -> None:
    assert len(draw_ids(one)) == TOKENS
    assert draw_ids(one)[0] == draw_ids(other)[0]
    assert (draw_ids(one) == draw_ids(other)) == (one == other)


def test_a_set_with_payload_is_right_and_one_without_has_the_same_books(tmp_path: Path) -> None:
    write_set(tmp_path / "stored", 501, payload=True)
    paths = DatasetPaths(tmp_path / "stored")
    info = paths.read_info()
    assert info is not None
    done = verify(paths, info)
    assert (len(done.verified), done.findings) == (501, [])
    data = HiddenStateDataset(paths.root)
    assert data["row-500"].input_ids.tolist() == draw_ids(500)
    write_set(tmp_path / "books", 501, payload=False)
    books = HiddenStateDataset(tmp_path / "books")
    assert books.sample_ids == data.sample_ids
    assert not list((tmp_path / "books" / "data").iterdir())
    ledgers = [DatasetPaths(tmp_path / name).ledger_file(RUN).read_bytes() for name in ("stored", "books")]
    assert ledgers[0] == ledgers[1]
