"""Prompts files with everything wrong in them, and everything that can be missing around a run: one clear line each."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from chain import Server, ServerFactory, run_client, running_mover
from checker import Reference, check_dataset
from launching import free_port
from prompt_files import mixed_rows, write_rows

pytestmark = pytest.mark.sglang

CONTEXT_TOKENS = 2048
LONG_LINE_BYTES = 50_000_000
# Lines, and for those that must be refused words of the reason.
LINES: list[tuple[bytes, str]] = [
    (b'\xef\xbb\xbf{"id": "after a byte-order mark", "input_ids": [5, 6, 7]}', ""),
    (b'{"id": "with CRLF", "text": "w5 w6 w7"}\r', ""),
    (b"", ""),
    (b"  \r", ""),
    (b'{"id": "bad JSON", "input_ids": [5, 6', "not JSON"),
    (b'{"id": "bad UTF-8", "text": "w5 \xe6w6"}', "not UTF-8: byte 0xe6 at position"),
    (b'{"id": "NaN", "input_ids": [5, NaN]}', "not JSON: NaN is no number"),
    (b'{"id": "empty text", "text": ""}', "text is empty"),
    (b'{"id": "no ids", "input_ids": []}', "input_ids is empty"),
    (b'{"id": "no source"}', "needs exactly one of input_ids, text, prompt, messages, conversations"),
    (b'{"id": "twice", "input_ids": [8, 9]}', ""),
    (b'{"id": "twice", "input_ids": [8, 9, 10]}', "prompts.jsonl:11; the first row of an id wins"),
    (json.dumps({"id": "too long", "input_ids": [5] * CONTEXT_TOKENS}).encode(), "too long: 2048 tokens"),
    (b'{"id": "50 MB", "text": "' + b"w5 " * (LONG_LINE_BYTES // 3) + b'"}', "the line has 50,000,026 bytes"),
    ('{"id": "U+2028 \u2028 \u2029 \x85", "text": "w5 w6\u2028w7 w8"}'.encode(), ""),
    (b'{"id": "lone surrogate", "text": "w5 \\ud83d"}', "lone surrogate"),
    (b'{"id": "key twice", "text": "w5", "text": "w6"}', "key 'text' appears twice"),
    (b'{"id": "no token of the model", "input_ids": [5, 512]}', "outside the vocabulary of 512"),
    (b'[{"id": "a list"}]', "not a JSON object but a list"),
    (
        b'{"id": "image", "messages": [{"role": "user", "content": [{"type": "image_url"}]}]}',
        "multimodal input is not supported",
    ),
    (b'{"id": "prompt and response", "prompt": "<s> w5 w6", "response": "w7 w8"}', ""),
    (
        b'{"id": "ShareGPT", "conversations": [{"from": "human", "value": "w5"}, {"from": "gpt", "value": "w6 w7"}]}',
        "",
    ),
    (b'{"id": "prompt alone", "prompt": "w5"}', "prompt needs a response"),
    (
        b'{"id": "tools", "messages": [{"role": "assistant", "content": null, "tool_calls": [{"name": "f"}]}]}',
        "the chat template renders no tool calls",
    ),
    (b'{"id": "the last line has no end", "input_ids": [11, 12, 13]}', ""),
]


@pytest.fixture
def server(servers: ServerFactory) -> Server:
    return servers("tiny-llama", "--boundaries", "1,4,7")


@pytest.fixture
def reference(references: Callable[..., Reference]) -> Reference:
    return references("tiny-llama", (1, 4, 7))


def test_good_rows_of_a_bad_file_are_done_and_bad_ones_listed(
    server: Server, reference: Reference, destination: Path, tmp_path: Path
) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_bytes(b"\n".join(line for line, _ in LINES))
    bad = {f"prompts.jsonl:{number}": reason for number, (_, reason) in enumerate(LINES, start=1) if reason}
    good = sum(bool(line.strip()) and not reason for line, reason in LINES)
    with running_mover(server.scratch, destination, tmp_path):
        done = run_client(prompts, server)
        again = run_client(prompts, server)
    text = done.stdout + done.stderr
    assert done.returncode == 1, text
    assert "Traceback" not in text
    assert f"{good} done, 0 failed, {len(bad)} rejected" in text, text
    for where, reason in bad.items():
        (line,) = [line for line in text.splitlines() if f"/{where}: rejected: " in line]
        assert reason in line, line
        assert len(line) < 400
    assert text.count(": rejected: ") == len(bad), text
    check_dataset(destination / "prompts", prompts, reference, max_abs=1e-5, unusable=bad).assert_ok(
        rows=good, orphans=False
    )
    # Nothing is left to send, which changes nothing about the rows that are wrong.
    assert again.returncode == 1, again.stdout + again.stderr
    assert f"{len(bad)} rejected" in again.stdout + again.stderr
    assert len(list((destination / "prompts" / "ledger").glob("*.jsonl"))) == 1


def test_prompts_around_the_context_length_are_whole_or_refused(
    server: Server, reference: Reference, destination: Path, tmp_path: Path
) -> None:
    """SGLang keeps a few tokens of its context for itself; nothing may come back shortened."""
    lengths = [CONTEXT_TOKENS + extra for extra in (-8, -7, -6, -1, 0, 1)]
    rows = [{"id": f"{n} tokens", "input_ids": [3 + i % 500 for i in range(n)]} for n in lengths]
    prompts = write_rows(tmp_path / "prompts.jsonl", rows)
    with running_mover(server.scratch, destination, tmp_path):
        done = run_client(prompts, server)
    text = done.stdout + done.stderr
    assert done.returncode == 1, text
    assert "2 done, 2 failed, 2 rejected" in text, text
    for number in (3, 4):
        reason = f"failed (too long): {lengths[number - 1]} tokens, and this server takes {lengths[1]} at most"
        assert f"prompts.jsonl:{number}: {reason}" in text, text
    for number in (5, 6):
        assert f"prompts.jsonl:{number}: rejected: too long: {lengths[number - 1]} tokens" in text, text
    unusable = [f"prompts.jsonl:{number}" for number in (3, 4, 5, 6)]
    check_dataset(destination / "prompts", prompts, reference, max_abs=1e-5, unusable=unusable).assert_ok(
        rows=2, orphans=False
    )
    assert server.parts() == []


def assert_one_line(code: int, expected: int, text: str, *words: str) -> None:
    """The command ended with `expected`, no traceback, and one error line that holds `words`, the remedy among them."""
    assert code == expected, text
    assert "Traceback" not in text, text
    (line,) = [line for line in text.splitlines() if line.startswith("error: ")]
    assert text.rstrip().endswith(line), text
    for word in words:
        assert word in line, line


def test_no_server_ends_with_4(server: Server, destination: Path, tmp_path: Path) -> None:
    prompts = write_rows(tmp_path / "prompts.jsonl", mixed_rows(3, seed=9))
    nobody = Server(free_port(), server.model, server.scratch, server.log, server.environment)
    with running_mover(server.scratch, destination, tmp_path):
        done = run_client(prompts, nobody)
    assert_one_line(done.returncode, 4, done.stdout + done.stderr, nobody.url, "hs-server launch", "--server")
    assert {path.name for path in destination.iterdir()} <= {".hs-movers"}


def test_no_mover_ends_with_5(server: Server, destination: Path, tmp_path: Path) -> None:
    prompts = write_rows(tmp_path / "prompts.jsonl", mixed_rows(3, seed=9))
    (server.scratch / ".hs" / "mover.json").unlink(missing_ok=True)
    never = run_client(prompts, server)
    remedy = f"hs-mover --src {server.scratch}"
    assert_one_line(never.returncode, 5, never.stdout + never.stderr, "none ever did", remedy)
    with running_mover(server.scratch, destination, tmp_path):
        pass
    ended = run_client(prompts, server)
    assert_one_line(ended.returncode, 5, ended.stdout + ended.stderr, remedy)
    assert server.parts() == []


def test_a_server_without_capture_ends_with_3(dormant: Server, destination: Path, tmp_path: Path) -> None:
    prompts = write_rows(tmp_path / "prompts.jsonl", mixed_rows(3, seed=9))
    scratch = tmp_path / "scratch"
    scratch.mkdir(mode=0o700)
    server = Server(dormant.port, dormant.model, scratch, dormant.log, dormant.environment)
    with running_mover(scratch, destination, tmp_path):
        done = run_client(prompts, server)
    assert_one_line(done.returncode, 3, done.stdout + done.stderr, server.url, "no capture", "hs-server launch")
    assert {path.name for path in destination.iterdir()} <= {".hs-movers"}


def test_a_dataset_of_other_boundaries_ends_with_3(server: Server, destination: Path, tmp_path: Path) -> None:
    prompts = write_rows(tmp_path / "prompts.jsonl", mixed_rows(3, seed=9))
    more = write_rows(tmp_path / "more.jsonl", mixed_rows(6, seed=10))
    with running_mover(server.scratch, destination, tmp_path):
        assert run_client(prompts, server).returncode == 0
        info = destination / "prompts" / "dataset.json"
        made = json.loads(info.read_text())
        info.write_text(json.dumps({**made, "boundaries": [1, 4, 6]}))
        ledgers = sorted((destination / "prompts" / "ledger").iterdir())
        done = run_client(more, server, "--dataset", "prompts")
    text = done.stdout + done.stderr
    assert_one_line(done.returncode, 3, text, "boundaries", "[1, 4, 6]", "[1, 4, 7]", "--dataset NAME")
    assert sorted((destination / "prompts" / "ledger").iterdir()) == ledgers
    assert server.parts() == []
