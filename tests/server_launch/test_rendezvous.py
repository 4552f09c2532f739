"""The port at which the ranks meet: free, and none that the kernel gives to connections."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from hs_server.arguments import Topology
from hs_server.rendezvous import draw_port, rendezvous_arguments


@given(low=st.integers(1024, 65000), width=st.integers(0, 64000))
def test_a_drawn_port_is_outside_of_the_outgoing_ones(
    low: int, width: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    outgoing = tmp_path_factory.mktemp("range") / "ports"
    high = min(low + width, 65535)
    outgoing.write_text(f"{low}\t{high}\n")
    port = draw_port(outgoing)
    if port is None:
        # All that is left may be in use; that is only believable of a few.
        assert len([*range(22000, low), *range(high + 1, 65536)]) < 100
        return
    assert not low <= port <= high
    with socket.socket() as probe:
        probe.bind(("", port))


def test_ports_in_use_are_passed_over(tmp_path: Path) -> None:
    outgoing = tmp_path / "ports"
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        # Only the taken port lies outside.
        outgoing.write_text(f"{22000 if port > 22000 else port + 1} {port - 1 if port > 22000 else 65535}")
        drawn = draw_port(outgoing)
        assert drawn != port


def test_no_range_to_read_leaves_the_choice_to_sglang(tmp_path: Path) -> None:
    assert draw_port(tmp_path / "none") is None
    everything = tmp_path / "ports"
    everything.write_text("1024 65535")
    assert draw_port(everything) is None


@pytest.mark.parametrize(
    "arguments",
    [
        ("--nccl-port", "29500"),
        ("--nccl-port=29500",),
        ("--dist-init-addr", "10.0.0.1:29500", "--nnodes", "2"),
        ("--nnodes", "2"),
        ("--dp-size", "2"),
    ],
)
def test_what_the_user_or_sglang_must_choose_is_left_to_them(arguments: tuple[str, ...]) -> None:
    assert rendezvous_arguments(Topology.of(arguments), arguments) == ()


@pytest.mark.parametrize(
    "arguments", [(), ("--tp-size", "8"), ("--tp-size", "8", "--dp-size", "8", "--enable-dp-attention")]
)
def test_one_node_gets_a_port(arguments: tuple[str, ...]) -> None:
    flag, port = rendezvous_arguments(Topology.of(arguments), arguments)
    assert flag == "--nccl-port"
    assert 22000 <= int(port) < 65536
