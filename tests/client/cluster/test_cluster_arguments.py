"""From the user's command line to that of a node's client, against click's own reading of both."""

from __future__ import annotations

import click
import pytest
from hypothesis import given, strategies as st

from hs_client.cluster.arguments import child_arguments
from hs_client.cluster.options import CLUSTER_OPTIONS
from hs_client.cluster.settings import parse_address, split_arguments
from hs_client.run_cli import run
from hs_formats.errors import UsageError

_VALUE = st.sampled_from(["x", "a b", "--ray", "--nodes", "{node}", "é"])
_PIECES = st.one_of(
    st.sampled_from(
        [
            ["--ray=10.0.0.1:6379"],
            ["--ray", "10.0.0.1:6379"],
            ["--nodes", "3"],
            ["--nodes=3"],
            ["--node-gpus=2"],
            ["--generate"],
            ["--no-doctor"],
            ["--concurrency", "7"],
            ["--variants=2"],
            ["--ray", "--force"],
            ["prompts.jsonl"],
        ]
    ),
    _VALUE.map(lambda value: ["--node-server", value]),
    _VALUE.map(lambda value: [f"--node-mover={value}"]),
    _VALUE.map(lambda value: ["--stop", value]),
    _VALUE.map(lambda value: [f"--dataset={value}"]),
    _VALUE.map(lambda value: ["--server", f"http://h:1={value}"]),
    _VALUE.map(lambda value: ["--scratch", value]),
)


def read(arguments: list[str]) -> tuple[dict[str, object], dict[str, object]]:
    """What click makes of them: values that are passed on, and those of the cluster's options that were given."""
    context = click.Context(run)
    values, _, _ = run.make_parser(context).parse_args(list(arguments))
    ours = {name.lstrip("-").replace("-", "_") for name in CLUSTER_OPTIONS}
    return (
        {name: value for name, value in values.items() if name not in ours},
        {name: value for name, value in values.items() if name in ours},
    )


@given(st.lists(_PIECES, max_size=8), st.booleans(), st.integers(0, 20))
def test_nothing_but_the_options_of_the_driver_is_taken_out(pieces: list[list[str]], dashes: bool, number: int) -> None:
    arguments = [word for piece in pieces for word in piece] + (
        ["--", "--ray", "last.jsonl"] if dashes else ["f.jsonl"]
    )
    given_values, _ = read(arguments)
    left = child_arguments(run, arguments, without=CLUSTER_OPTIONS, number=number)
    child_values, driver_values = read(left)
    assert {name: value for name, value in driver_values.items() if value not in (None, ())} == {}
    for name in ("servers", "scratch"):
        value = given_values.get(name)
        if isinstance(value, list):
            given_values[name] = [each.replace("{node}", str(number)) for each in value]
        elif isinstance(value, str):
            given_values[name] = value.replace("{node}", str(number))
    assert child_values == given_values


def test_the_command_itself_stays_in_front() -> None:
    words = ["run", "a.jsonl", "--generate", "--ray", "--scratch", "/s{node}", "--stop", "{node}"]
    assert child_arguments(run, words, without=CLUSTER_OPTIONS, number=3) == [
        *("run", "a.jsonl", "--generate", "--scratch", "/s3", "--stop", "{node}")
    ]


@pytest.mark.parametrize("text", ["auto", "head:6379", "10.0.0.1:6379"])
def test_addresses(text: str) -> None:
    assert parse_address(text) == text


@pytest.mark.parametrize("text", ["prompts.jsonl", "ray://head:10001", "/shared/a:b", "head", ""])
def test_what_is_no_address_may_be_a_file_that_was_meant(text: str) -> None:
    with pytest.raises(UsageError, match="write --ray last"):
        parse_address(text)


def test_the_only_file_taken_for_the_address_is_not_a_missing_file() -> None:
    with pytest.raises(UsageError, match=r"--ray p\.jsonl: an address is HOST:PORT"):
        run.main(["--ray", "p.jsonl"], standalone_mode=False)


def test_arguments_of_server_and_mover_are_words_of_a_shell() -> None:
    assert split_arguments("--node-server", "--model-path '/a b' -- --tp 8 --port 1") == (
        *("--model-path", "/a b", "--", "--tp", "8", "--port", "1"),
    )
    assert split_arguments("--node-mover", None) is None
    assert split_arguments("--node-mover", "") == ()


@pytest.mark.parametrize(
    ("option", "text", "named"),
    [
        ("--node-server", "--port 8000", "leave out --port, which follows from --server"),
        ("--node-server", "--dump-dir=/x", "leave out --dump-dir, which follows from --scratch"),
        ("--node-mover", "--src /x", "leave out --src"),
        ("--node-mover", "--dst '/x", "no closing quotation"),
    ],
)
def test_what_follows_from_other_options_is_refused(option: str, text: str, named: str) -> None:
    with pytest.raises(UsageError, match=named):
        split_arguments(option, text)
