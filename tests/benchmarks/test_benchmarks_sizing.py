"""The table of sizes: its arithmetic, and that the one in the docs follows from the results that it names."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from benchmarks.checkout import ROOT
from benchmarks.front import SIZING, main
from benchmarks.results import RESULTS
from benchmarks.sizing import KIMI, Model, Plan, Rates, estimate, read_sources, sizing_text
from hypothesis import given, strategies as st

RATES = Rates(
    prefill={"llama8b": 40_000.0 * 8},
    capture={"llama8b": 0.5},
    writer_bytes_s=1e9,
    mover_bytes_core_s=0.5e9,
    stored_share=0.7,
    client_request_s=1e-3,
)
MODEL = Model(name="m", hidden=1000, slots=5, active_billions=16.0)
PLAN = Plan(tokens=1000, gpus=4, together=0.25)


def test_the_arithmetic() -> None:
    """16 billion instead of 8 halve 40,000 tokens/s, the capture halves them again; four GPUs at a quarter are one."""
    found = estimate(MODEL, PLAN, RATES, samples=36_000, of="llama8b")
    assert MODEL.token_bytes == 10_000
    assert found.hours == pytest.approx(1.0)  # 36 million tokens at 10,000 a second
    assert found.raw_tb == pytest.approx(0.36)
    assert found.stored_tb == pytest.approx(0.252)
    assert found.states_bytes_s == pytest.approx(1e8)
    assert found.mover_cores == pytest.approx(0.2)
    assert found.disk_bytes_s == pytest.approx(0.7e8)
    assert found.client_cores == pytest.approx(0.01)
    assert KIMI.token_bytes == 57_344


@given(st.integers(1, 10**7), st.integers(2, 50), st.integers(1, 10**5))
def test_hours_and_bytes_grow_with_samples_and_rates_do_not(samples: int, times: int, tokens: int) -> None:
    plan = replace(PLAN, tokens=tokens)
    one, more = (estimate(MODEL, plan, RATES, samples=count, of="llama8b") for count in (samples, times * samples))
    assert more.hours == pytest.approx(times * one.hours)
    assert more.raw_tb == pytest.approx(times * one.raw_tb)
    assert more.stored_tb == pytest.approx(times * one.stored_tb)
    for name in ("states_bytes_s", "mover_cores", "disk_bytes_s", "client_cores"):
        assert getattr(more, name) == getattr(one, name)
    faster = estimate(MODEL, replace(plan, gpus=times * plan.gpus), RATES, samples=samples, of="llama8b")
    assert faster.hours == pytest.approx(one.hours / times)
    assert faster.mover_cores == pytest.approx(one.mover_cores * times)
    assert faster.raw_tb == one.raw_tb


@pytest.mark.parametrize(("writer", "word"), [(1e12, "within"), (1.0, "more than")])
def test_what_one_writer_was_never_seen_to_do_is_said(writer: float, word: str) -> None:
    text = sizing_text({}, replace(RATES, writer_bytes_s=writer), model=MODEL, plan=PLAN)
    assert text.startswith("**Computed, not measured**: no m was run")
    assert f", {word} the " in " ".join(text.split())


def test_the_table_in_the_docs_follows_from_the_results_it_names() -> None:
    shown = SIZING.read_text(encoding="utf-8").partition("<!-- latest result -->")[2].partition("<!--")[0].strip()
    named = " ".join(shown.split()).partition("From the results ")[2].partition(" Assumed:")[0].removesuffix(".")
    sources = {
        case.strip(): re.findall(r"`([^`]+)`", names)
        for case, _, names in (part.partition(":") for part in named.split("; "))
    }
    assert set(sources) == {"throughput", "mover", "client"}
    assert all((RESULTS / case / name).is_file() for case, names in sources.items() for name in names)
    assert sizing_text(sources, read_sources(sources)).strip() == shown


def test_sizing_from_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sizing", "--model", "mine", "--hidden", "1024", "--slots", "3", "--samples", "7", "--gpus", "1"]) == 0
    text = capsys.readouterr().out
    assert "no mine was run for this" in text
    assert "the last one among them: 6,144 bytes;" in " ".join(text.split())
    assert "| 7 samples" in text
    assert main(["sizing", "--together", "0"]) == 2
    assert capsys.readouterr().err.startswith("error: ")
    assert Path(ROOT / "docs" / "sizing.md") == SIZING
