"""The charts are sound SVG, lie within their frame and say in words what they show."""

from __future__ import annotations

import re
from xml.etree import ElementTree as ET

from hypothesis import given, strategies as st

from hs_client.report.charts import Bar, Curve, Whisker, bars, columns, curves, shares, whiskers
from hs_client.report.scales import linear_axis, log_axis, time_axis

TEXT = st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=80)
SIZES = st.floats(0, 1e12)


def check(svg: str, title: str) -> ET.Element:
    """Parses it; every mark lies within the frame."""
    root = ET.fromstring(svg)
    assert root.findtext("title") == title
    assert root.get("role") == "img"
    assert (root.get("aria-label") or "").startswith(title + ". ")
    _, _, width, height = map(float, (root.get("viewBox") or "").split())
    for element in root.iter():
        for name in ("x", "x1", "x2", "cx"):
            if element.tag != "text":
                assert -0.01 <= float(element.get(name, 0)) <= width + 0.01
        for name in ("y", "y1", "y2", "cy"):
            if element.tag != "text":
                assert -0.01 <= float(element.get(name, 0)) <= height + 0.01
        if element.tag == "rect":
            assert float(element.get("width", 0)) > 0
            assert float(element.get("x", 0)) + float(element.get("width", 0)) <= width + 1
            assert float(element.get("y", 0)) + float(element.get("height", 0)) <= height + 0.1
        if element.tag == "path":
            numbers = [float(number) for number in re.findall(r"-?[0-9.]+", element.get("d", ""))]
            assert all(-0.1 <= x <= width + 0.1 for x in numbers[::2])
            assert all(-0.1 <= y <= height + 0.1 for y in numbers[1::2])
    return root


@given(st.lists(st.one_of(st.none(), SIZES), min_size=1, max_size=30), TEXT)
def test_curves(values: list[float | None], title: str) -> None:
    spans = [(float(at), at + 1.0, value) for at, value in enumerate(values)]
    known = [value for value in values if value is not None]
    axis = linear_axis("tokens/s", max([*known, 0.0]))
    curve = Curve("a", "s1", spans, filled=True)
    root = check(curves(title, "w", [curve], time_axis("t", len(values)), axis), title)
    lines = [path for path in root.iter("path") if "line" in (path.get("class") or "")]
    runs = re.findall("1+", "".join("0" if value is None else "1" for value in values))
    assert len(lines) == len(runs), "a gap must stay a gap"


@given(st.lists(st.tuples(st.floats(0, 0.5), st.floats(0, 0.5)), min_size=1, max_size=20))
def test_shares(parts: list[tuple[float, float]]) -> None:
    spans = [(float(at), at + 1.0, both) for at, both in enumerate(parts)]
    axis = linear_axis("share", 1.0)
    check(shares("What", "w", spans, ("s1", "s2"), time_axis("t", len(parts)), axis), "What")


@given(st.lists(st.integers(0, 10**7), min_size=1, max_size=40))
def test_columns(counts: list[int]) -> None:
    spans = [(float(at), at + 1.0, count, f"{count}") for at, count in enumerate(counts)]
    x, y = linear_axis("tokens", float(len(counts))), linear_axis("samples", float(max(counts)))
    root = check(columns("Lengths", "w", spans, x, y), "Lengths")
    drawn = [rect.findtext("title") for rect in root.iter("rect")]
    assert drawn == [f"{count}" for count in counts if count], "a rare length must be seen too"


@given(st.lists(st.tuples(TEXT, SIZES, TEXT), max_size=12))
def test_bars(rows: list[tuple[str, float, str]]) -> None:
    root = check(bars("Why", "w", [Bar(label, value, "7", hint=hint) for label, value, hint in rows]), "Why")
    assert len(list(root.iter("rect"))) == sum(value > 0 for _, value, _ in rows)
    longest = max((float(rect.get("width", 0)) for rect in root.iter("rect")), default=0)
    for rect, value in zip(root.iter("rect"), [value for _, value, _ in rows if value > 0], strict=True):
        share = value / max(value for _, value, _ in rows)
        assert abs(float(rect.get("width", 0)) - max(1.0, share * longest)) < 1.1


@given(st.lists(st.tuples(*[st.floats(1e-5, 1e5)] * 4, st.booleans()), min_size=1, max_size=8))
def test_whiskers(rows: list[tuple[float, float, float, float, bool]]) -> None:
    ranges: list[Whisker] = []
    for first, second, third, extra, has_extra in rows:
        low, middle, high = sorted((first, second, third))
        ranges.append(Whisker("slot", low, middle, high, extra if has_extra else None, "hint"))
    root = check(whiskers("Sizes", "w", ranges, log_axis("RMS", 1e-5, 1e5)), "Sizes")
    assert len(list(root.iter("circle"))) == len(rows) + sum(row[4] for row in rows)
