"""The table of nodes: its arithmetic, and that the one in the docs follows from the results that it names."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from benchmarks.cluster_sizing import (
    STORE_CASE,
    Cluster,
    cluster_text,
    need,
    newest_store_sources,
    nodes_within,
    read_store_rate,
)
from benchmarks.front import CLUSTER, main
from benchmarks.results import RESULTS
from benchmarks.sizing import Model, Plan, Rates, read_sources
from hypothesis import given, strategies as st

from hs_client.admission import RecordCost

RATES = Rates(
    prefill={"llama8b": 40_000.0 * 8},
    capture={"llama8b": 0.5},
    writer_bytes_s=1e9,
    mover_bytes_core_s=0.5e8,
    stored_share=0.7,
    client_request_s=1e-3,
)
MODEL = Model(name="m", hidden=1000, slots=5, active_billions=16.0)  # 10,000 bytes a token
PLAN = Plan(tokens=1000, gpus=4, together=0.25)  # 10,000 tokens/s a node
CLUSTER_PLAN = Cluster(start_hours=0.5, in_flight=8, pause_s=10.0)
SAMPLES = 36_000 * 12
"""Twelve hours of one node."""


def test_the_arithmetic() -> None:
    nodes = nodes_within(3.5, MODEL, PLAN, RATES, samples=SAMPLES, of="llama8b", cluster=CLUSTER_PLAN)
    assert nodes == 4  # twelve hours in three
    found = need(
        nodes, MODEL, PLAN, RATES, samples=SAMPLES, of="llama8b", cluster=CLUSTER_PLAN, object_bytes_core_s=0.25e8
    )
    assert found.hours == pytest.approx(3.5)
    assert found.stored_tb == pytest.approx(SAMPLES * 1e7 * 0.7 / 1e12)
    assert found.store_bytes_s == pytest.approx(4 * 0.7e8)
    assert found.files_s == pytest.approx(4 * 10)
    assert found.node_states_bytes_s == pytest.approx(1e8)
    assert found.node_store_bytes_s == pytest.approx(0.7e8)
    assert found.node_mover_cores == pytest.approx(2.0)
    assert found.node_object_cores == pytest.approx(4.0)
    record = RecordCost(10_000, copies=1, ranks=1, chunk_tokens=0).record(1000)
    capacity = (8 * record + 10 * 1e8) / 0.8
    assert found.node_scratch_bytes == pytest.approx(1.05 * capacity)  # a twentieth is less than 1 GiB


@given(st.floats(0.6, 1000), st.integers(1, 10**7), st.integers(1, 64))
def test_the_nodes_for_a_time_are_enough_and_one_less_is_not(hours: float, samples: int, gpus: int) -> None:
    plan = replace(PLAN, gpus=gpus)

    def takes(nodes: int) -> float:
        return need(
            nodes, MODEL, plan, RATES, samples=samples, of="llama8b", cluster=CLUSTER_PLAN, object_bytes_core_s=1e8
        ).hours

    nodes = nodes_within(hours, MODEL, plan, RATES, samples=samples, of="llama8b", cluster=CLUSTER_PLAN)
    assert takes(nodes) <= hours * (1 + 1e-9)
    assert nodes == 1 or takes(nodes - 1) > hours * (1 - 1e-9)


@given(st.integers(1, 1000))
def test_what_a_node_needs_does_not_depend_on_how_many_there_are(nodes: int) -> None:
    one, many = (
        need(
            count, MODEL, PLAN, RATES, samples=SAMPLES, of="llama8b", cluster=CLUSTER_PLAN, object_bytes_core_s=1e8
        )
        for count in (1, nodes)
    )  # fmt: skip
    for name in ("node_states_bytes_s", "node_store_bytes_s", "node_mover_cores", "node_object_cores", "stored_tb"):
        assert getattr(many, name) == getattr(one, name)
    assert many.store_bytes_s == pytest.approx(nodes * one.store_bytes_s)
    assert many.files_s == pytest.approx(nodes * one.files_s)


def test_a_time_that_is_over_before_the_servers_are_ready_is_refused() -> None:
    with pytest.raises(ValueError, match=r"0\.5 hours are over before the servers are ready"):
        nodes_within(0.5, MODEL, PLAN, RATES, samples=1, of="llama8b", cluster=CLUSTER_PLAN)


def test_the_text_says_that_nobody_ran_it() -> None:
    text = cluster_text({}, RATES, 1e8, model=MODEL, plan=PLAN, samples=7, within=[10], nodes=[3], cluster=CLUSTER_PLAN)
    assert text.startswith("**Computed, not measured**: 7 samples of m")
    assert "| | within 10 h, prefill as of llama8b | 3 nodes, prefill as of llama8b |" in text
    assert "| nodes of 4 GPUs | 1 | 3 |" in text


def test_the_table_in_the_docs_follows_from_the_results_it_names() -> None:
    shown = CLUSTER.read_text(encoding="utf-8").partition("<!-- latest result -->")[2].partition("<!--")[0].strip()
    named = " ".join(shown.split()).partition("From the results ")[2].partition(" Assumed:")[0].removesuffix(".")
    sources = {
        case.strip(): re.findall(r"`([^`]+)`", names)
        for case, _, names in (part.partition(":") for part in named.split("; "))
    }
    assert set(sources) == {"throughput", "mover", "client", STORE_CASE}
    assert all((RESULTS / case / name).is_file() for case, names in sources.items() for name in names)
    rates = read_sources({case: names for case, names in sources.items() if case != STORE_CASE})
    assert cluster_text(sources, rates, read_store_rate(sources)).strip() == shown
    assert newest_store_sources()[STORE_CASE] == sources[STORE_CASE]


def test_from_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sizing", "--model", "mine", "--samples", "7", "9", "--nodes", "2", "--within", "5"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "7 samples of mine" in text
    assert "9 samples of mine" in text
    assert "| within 5 h, prefill as of" in text
    assert "| 2 nodes, prefill as of" in text
    assert main(["sizing", "--within", "0.1"]) == 2
    assert "hours are over before the servers are ready" in capsys.readouterr().err
    assert main(["sizing", "--nodes", "0"]) == 2
    assert capsys.readouterr().err.startswith("error: ")
