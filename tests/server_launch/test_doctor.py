"""The doctor on a server made by hand: sound ones pass, every kind of fault is found and named."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from canary_server import NONCE, CanaryServer, Written, canary_serving
from hs_formats.control import ClientState, ControlFolder, now_s, used_bytes
from hs_formats.doctor_pass import doctor_lock_path, forget_dead_passes, has_passed, read_pass
from hs_formats.errors import PreflightError, ServerLost, StorageError, UsageError
from hs_formats.names import CANARY_RUN, Rid
from hs_server.doctor import room
from hs_server.doctor.canary import PREFIX_TOKENS, canary_rids, make_prompts
from hs_server.doctor.command import DoctorOptions, doctor
from hs_server.doctor.examine import Target, examine, pass_lines
from hs_server.doctor.records import MAX_ROWS, to_float
from hs_server.doctor.session import Times
from hs_server.doctor.wire import Wire
from parts import drop_part

TIMES = Times(answer_s=5.0, parts_s=0.05, room_s=0.0)


def target(server: CanaryServer, **changes: Any) -> Target:
    return Target(**{"url": server.url, "scratch": server.scratch, "times": TIMES, **changes})


def diagnosis(server: CanaryServer, **changes: Any) -> str:
    with pytest.raises(PreflightError) as refused:
        examine(target(server, **changes))
    assert refused.value.exit_code == 3
    assert [name for name in server.scratch.iterdir() if name.name.startswith("hs-")] == []
    assert not has_passed(ControlFolder(server.scratch), port=server.port, nonce=NONCE)
    return str(refused.value)


@pytest.mark.parametrize("writers", ["first", "spread", "all"])
@pytest.mark.parametrize("ranks", [1, 3])
def test_a_sound_server_passes(tmp_path: Path, writers: str, ranks: int) -> None:
    with canary_serving(tmp_path, ranks=ranks, writers=writers) as server:
        passed = examine(target(server, nonce=NONCE, ranks=ranks, api_key="secret"))
        control = ControlFolder(tmp_path)
        assert has_passed(control, port=server.port, nonce=NONCE)
        assert not has_passed(control, port=server.port, nonce="f" * 16)
        assert read_pass(control, server.port) == passed
    assert (passed.prompts, passed.ranks, passed.layers_proved, passed.notes) == (12, ranks, True, [])
    assert server.authorization == "Bearer secret"
    assert sorted(path.name for path in tmp_path.iterdir()) == [".hs"]
    assert not list((tmp_path / ".hs" / "clients").iterdir())
    runs = {Rid.parse(rid).run for rid, _ in server.requests}
    assert runs == {CANARY_RUN}
    assert len({rid for rid, _ in server.requests}) == 12
    assert any(len(ids) > server.chunk_size for _, ids in server.requests)


def test_two_examinations_send_nothing_alike(tmp_path: Path) -> None:
    """A cache that knows the prompts of an earlier examination would spoil the next."""
    with canary_serving(tmp_path) as server:
        examine(target(server))
        examine(target(server))
        server.spoil = _on(1, _scale)
        diagnosis(server)  # the pass of before does not stand
    prompts = [tuple(ids) for _, ids in server.requests if len(ids) > 1]
    assert len(set(prompts)) == len(prompts) // 2 == 15


def test_passes_of_dead_servers_are_forgotten(tmp_path: Path) -> None:
    control = ControlFolder(tmp_path)
    with canary_serving(tmp_path) as server:
        examine(target(server))
        assert forget_dead_passes(control) == 0
        assert has_passed(control, port=server.port, nonce=NONCE)
    (tmp_path / ".hs" / "doctor-x.json").touch()
    assert forget_dead_passes(control) == 2
    assert list((tmp_path / ".hs").glob("doctor-*")) == []


def _drop(part: Written) -> None:
    part.keep = False


def _on(rank: int, change: Callable[[Written], None]) -> Callable[[Written], None]:
    return lambda part: change(part) if part.rank == rank else None


def _cut(part: Written) -> None:
    if part.stop - part.start > 1:
        part.stop -= 1
        part.ids, part.states = part.ids[:-1], part.states[:-1]


def _ids(part: Written) -> None:
    part.ids = [token + 1 for token in part.ids]


def _scale(part: Written) -> None:
    part.states[:, 1] *= np.float32(1.0001)


def _equal(part: Written) -> None:
    part.states[:, 2] = part.states[:, 0]


def _zero(part: Written) -> None:
    part.states[:, 1] = 0


def _one_row(part: Written) -> None:
    part.states[:] = part.states[:1]


def _infinite(part: Written) -> None:
    part.states[-1, 0, 3] = np.inf


def _nonce(part: Written) -> None:
    part.nonce = "f" * 16


def _boundaries(part: Written) -> None:
    part.boundaries = (1, 4)


def _stale(part: Written) -> None:
    part.states[:, 2] = np.random.default_rng(part.stop - part.start).standard_normal(part.states[:, 2].shape)


def _swap_together(part: Written) -> None:
    if part.together:
        part.states = part.states[::-1].copy()


def _shift(part: Written) -> None:
    part.states = np.roll(part.states, 1, axis=0)


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (_drop, "silent hook: the server answered 12 requests, and no rank wrote a row"),
        (_on(1, _drop), "silent hook on rank 1: it wrote nothing of 5 requests"),
        (lambda part: _drop(part) if part.n < 10 else None, "silent hook for some batches on rank 0, 1: nothing of `s"),
        (_cut, "short rows of rank 0: `base` (24 tokens, alone): rows 15-16 missing, rows 23-24 missing"),
        (_on(1, _cut), "short rows of rank 1"),
        (_ids, "wrong ids of rank 0: `base` (24 tokens, alone): 24 of 24 token ids"),
        (_on(1, _scale), "unequal ranks: rank 1 holds other states than rank 0: base: 24 tokens, slots 1, by 0.0001"),
        (_equal, "equal slots: boundary 1 and the last state hold the same states of `base`"),
        (_zero, "constant slot: boundary 3 is zero at 24 of 24 tokens"),
        (_one_row, "constant slot: boundary 1 is the same at all 5 tokens of `short`"),
        (_infinite, "non-finite values: boundary 1, token 15 of `base`"),
        (_nonce, "marker of another launch: parts carry the nonce ffffffffffffffff"),
        (_boundaries, "other content: parts hold boundaries [1, 4], float32, 32 channels, the markers promise bounda"),
        (_stale, "stale states: base and equal length"),
        (_swap_together, "passes disagree: the same prompts"),
        (_shift, "wrong rows: two prompts with one prefix"),
    ],
)
def test_a_fault_is_found_and_named_with_what_to_change(
    tmp_path: Path, spoil: Callable[[Written], None], words: str
) -> None:
    with canary_serving(tmp_path) as server:
        server.spoil = spoil
        text = diagnosis(server)
    assert words in text
    lines = text.splitlines()
    assert all(line.startswith("    ") and len(line) > 8 for line in lines[2::2]), "a finding lacks its remedy"


@pytest.mark.parametrize("writers", ["first", "all"])
def test_ranks_that_differ_by_rounding_are_told_and_refused_only_where_bits_count(tmp_path: Path, writers: str) -> None:
    def round_off(part: Written) -> None:
        part.states[:, 1] *= np.float32(1.000001)

    with canary_serving(tmp_path, writers=writers) as server:
        server.spoil = _on(1, round_off)
        if writers == "all":
            assert "unequal ranks: rank 1 holds other states than rank 0" in diagnosis(server)
            return
        passed = examine(target(server))
    assert "not examined: whether ranks hold the same bits: they do not, by rounding" in "\n".join(pass_lines(passed))


def test_a_silent_hook_for_replayed_batches_says_so(tmp_path: Path) -> None:
    with canary_serving(tmp_path, graph_replays=7) as server:
        server.spoil = lambda part: _drop(part) if part.n < 10 else None
        text = diagnosis(server)
    assert "14 batches were replayed from a CUDA graph" in text
    assert "--disable-prefill-cuda-graph" in text


@pytest.mark.parametrize(
    ("reason", "remedy"),
    [
        ("wrong layer: boundary 1 holds what enters layer 2 (+1)", "use a version that was tested"),
        ("not captured: the model handed over 1 auxiliary states, not 2", "hand over what it was asked for"),
        ("part not written: disk quota exceeded", "capture failed"),
    ],
)
def test_what_the_capture_gives_up_is_told_with_its_reason(tmp_path: Path, reason: str, remedy: str) -> None:
    with canary_serving(tmp_path, ranks=1) as server:
        server.give_up = lambda rid, rank: reason
        text = diagnosis(server)
    assert f"given up by the capture: {reason} (12 times, first: base, rank 0)" in text
    assert remedy in text
    assert "silent" not in text


def test_a_prefix_cache_is_found_whatever_the_settings_say(tmp_path: Path) -> None:
    def from_cache(part: Written) -> None:
        if part.together:
            part.keep = False

    with canary_serving(tmp_path, ranks=1) as server:
        server.cached = lambda rid: 16 if rid.endswith("-01") else 0
        server.spoil = from_cache
        text = diagnosis(server)
    assert "radix cache on: tokens came from a cached prefix and never passed the model: 16 of `" in text
    assert "launch with --disable-radix-cache" in text


def test_unsafe_settings_of_a_running_server_are_found_before_anything_is_sent(tmp_path: Path) -> None:
    with canary_serving(tmp_path) as server:
        server.info = {"disable_radix_cache": False, "pp_size": 2}
        text = diagnosis(server)
    assert "2 things are wrong" in text
    assert "disable_radix_cache=False: with the radix cache on" in text
    assert "pp_size=2: a pipeline stage" in text
    assert server.requests == []


def test_prefill_graphs_of_a_running_server_are_found_in_source_mode(tmp_path: Path) -> None:
    with canary_serving(tmp_path, ranks=1) as server:
        server.held.pop().release()
        server.held.append(ControlFolder(tmp_path).hold_marker(server.marker(0, capture_mode="source")))
        server.info = {"cuda_graph_config": {"prefill": {"backend": "breakable"}}}
        text = diagnosis(server)
    assert "cuda_graph_config.prefill.backend=breakable: source mode was proved right" in text
    assert "--disable-prefill-cuda-graph" in text
    assert server.requests == []


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"nonce": "f" * 16}, "marker of another launch: rank 1 (pid"),
        ({"boundaries": [1, 4]}, "markers disagree: ranks 0 and 1: boundaries [1, 3] and [1, 4]"),
        (None, "missing marker: only 1 of 2 ranks have a live one (ranks 0)"),
    ],
)
def test_markers_that_do_not_fit_are_found(tmp_path: Path, changes: dict[str, Any] | None, words: str) -> None:
    with canary_serving(tmp_path) as server:
        server.held.pop().release()
        if changes is not None:
            server.held.append(ControlFolder(tmp_path).hold_marker(server.marker(1, **changes)))
        assert words in diagnosis(server)


def test_no_marker_at_all(tmp_path: Path) -> None:
    with canary_serving(tmp_path) as server:
        other = tmp_path / "other"
        ControlFolder(other).create()
        with pytest.raises(PreflightError, match="no capture of a server on port"):
            examine(target(server, scratch=other))


def test_the_launch_must_be_the_one_that_is_known(tmp_path: Path) -> None:
    with canary_serving(tmp_path) as server:
        assert "this launch is ffff" in diagnosis(server, nonce="f" * 16)
        assert "missing marker: only 2 of 4 ranks" in diagnosis(server, nonce=NONCE, ranks=4)


def test_a_server_that_is_gone_or_refuses(tmp_path: Path) -> None:
    with canary_serving(tmp_path) as server:
        server.refuse = lambda rid: 400 if rid.endswith("-01") else 200
        assert "no answer: `base` (24 tokens, together): HTTP 400" in diagnosis(server)
        server.refuse = lambda rid: 503
        with pytest.raises(ServerLost, match="HTTP 503"):
            examine(target(server))
        server.info_status = 503
        with pytest.raises(ServerLost, match="HTTP 503"):
            examine(target(server))


def test_a_server_that_wants_a_key(tmp_path: Path) -> None:
    with canary_serving(tmp_path) as server:
        server.info_status = 401
        with pytest.raises(PreflightError, match="wants another API key"):
            examine(target(server))
    assert server.requests == []


def test_what_cannot_be_examined_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hs_server.doctor.examine._LONG_S", 0.0)
    with canary_serving(tmp_path, proves_layers=False) as server:
        server.info_status = 404
        passed = examine(target(server))
    assert not passed.layers_proved
    assert passed.prompts == 10
    text = "\n".join(pass_lines(passed))
    assert "not examined: SGLang's settings: HTTP 404" in text
    assert "not examined: prefill in chunks: a prompt of 25 tokens would take some" in text
    assert "not examined: whether boundaries are what enters their layers" in text


def test_a_long_record_is_not_sent_where_it_would_fill_scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hs_server.doctor.examine._LONG_BYTES", 1000)
    with canary_serving(tmp_path) as server:
        assert "meant for it" in pass_lines(examine(target(server)))[1]


def test_leftovers_are_deleted_and_other_runs_are_not_touched(tmp_path: Path) -> None:
    ControlFolder(tmp_path).create()
    drop_part(tmp_path, "hs-00000000-00000007-00", 0, 4, 4)
    other = drop_part(tmp_path, "hs-0badcafe-00000007-00", 0, 4, 4)
    (tmp_path / f".hs-00000000-00000009-00.t0000000-0000004of0000004.r00.pt.{NONCE}.tmp").touch()
    with canary_serving(tmp_path) as server:
        examine(target(server))
    assert sorted(path.name for path in tmp_path.iterdir()) == [".hs", Path(str(other)).name]


def test_canaries_wait_for_room_that_others_were_promised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    control = ControlFolder(tmp_path)
    control.create()
    monkeypatch.setattr(room, "room_limit", lambda control: used_bytes(os.statvfs(control.scratch)) + (1 << 20))
    record = control.client_record("0badcafe")
    client = ClientState(run="0badcafe", pid=1, heartbeat_s=now_s(), promised_bytes=1 << 20)
    record.write(asdict(client))
    with canary_serving(tmp_path) as server:
        with pytest.raises(StorageError, match=r"no room for canary requests in .*: [0-9,]+ bytes needed"):
            examine(target(server))
        assert server.requests == []
        record.write({**asdict(client), "promised_bytes": 0})
        examine(target(server))
    record.close()


def test_one_examination_at_a_time(tmp_path: Path) -> None:
    holder = (
        "import fcntl, os, sys; fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT); fcntl.flock(fd, fcntl.LOCK_EX);"
        "print('held', flush=True); sys.stdin.read()"
    )
    with canary_serving(tmp_path) as server:
        lock = str(doctor_lock_path(ControlFolder(tmp_path)))
        with subprocess.Popen(
            [sys.executable, "-c", holder, lock], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as other:
            assert other.stdout is not None
            assert other.stdin is not None
            assert other.stdout.readline() == "held\n"
            said: list[str] = []
            thread = threading.Thread(target=lambda: examine(target(server), say=said.append))
            thread.start()
            deadline = time.monotonic() + 10
            while not said:
                assert time.monotonic() < deadline
                time.sleep(0.01)
            assert server.requests == []
            other.stdin.close()
            thread.join(10)
    assert said == ["doctor    waits for another examination on this scratch"]
    assert len(server.requests) == 12


def test_an_interrupted_examination_leaves_nothing(tmp_path: Path) -> None:
    def interrupt(seconds: float) -> None:
        if server.requests:
            raise KeyboardInterrupt
        time.sleep(seconds)

    with canary_serving(tmp_path) as server:
        server.spoil = lambda part: time.sleep(0.05)
        with pytest.raises(KeyboardInterrupt):
            examine(target(server), pause=interrupt)
        assert not list((tmp_path / ".hs" / "clients").iterdir())


def test_the_command_names_the_server_and_passes_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    state = {"HS_STATE_DIR": str(tmp_path / "state")}
    with canary_serving(tmp_path / "scratch") as server:
        options = DoctorOptions(server=server.url, dump_dir=tmp_path / "scratch", times=TIMES)
        assert doctor(options, state) == 0
    assert "doctor    passed: 12 requests" in capsys.readouterr().out
    with pytest.raises(ServerLost, match=r"no server answers at http://127.0.0.1:9 .*\n  start one with"):
        doctor(DoctorOptions(server="http://127.0.0.1:9", dump_dir=tmp_path / "scratch"), state)
    with pytest.raises(UsageError, match="give a URL"):
        doctor(DoctorOptions(server="127.0.0.1:9"), state)


def test_urls() -> None:
    assert Wire("http://[::1]:8000").host == "::1"
    assert Wire("https://host").port == 443
    with pytest.raises(UsageError):
        Wire("http://host:port")


@given(st.integers(0, 2**32 - 1), st.integers(0, 5000), st.integers(1, 6000))
def test_prompts_are_what_they_are_called(seed: int, chunk_size: int, longest: int) -> None:
    prompts = make_prompts(seed=seed, chunk_size=chunk_size, longest=longest)
    by_name = {prompt.name: prompt for prompt in prompts}
    assert all(1 <= prompt.n <= longest for prompt in prompts)
    assert all(prompt.n > chunk_size > 0 for prompt in prompts if prompt.long)
    if {"base", "equal length", "shared prefix"} <= set(by_name):
        base, shared = by_name["base"].ids, by_name["shared prefix"].ids
        assert len(base) == by_name["equal length"].n
        assert base[:PREFIX_TOKENS] == shared[:PREFIX_TOKENS]
    rids = canary_rids(prompts, seed=seed)
    flat = [rid for pair in rids.values() for rid in pair]
    assert len(set(flat)) == 2 * len(prompts)
    assert all(str(Rid.parse(rid)) == rid for rid in flat)
    assert not any(rids[prompt.name][0].endswith("-00") for prompt in prompts if prompt.long)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_bits_become_values(dtype: str) -> None:
    values = np.array([[0.0, 1.5, -2.0, 65504.0 if dtype == "float16" else 3.0e38]], np.float32)
    bits: Any = values.view(np.uint32)
    if dtype == "float16":
        bits = values.astype(np.float16).view(np.uint16)
    elif dtype == "bfloat16":
        bits = (bits >> 16).astype(np.uint16)
    np.testing.assert_allclose(np.asarray(to_float(bits, dtype), np.float64), values.astype(np.float64), rtol=0.01)


def test_of_a_long_part_the_ends_are_looked_at(tmp_path: Path) -> None:
    from hs_formats.names import PartName
    from hs_server.doctor.records import read_rank

    rows = MAX_ROWS + 100
    name = drop_part(tmp_path, "hs-00000000-00000007-01", 0, rows, rows, hidden=8)
    record = read_rank(tmp_path, [PartName.parse(Path(str(name)).name)])
    assert len(record.ids) == rows
    assert record.bits.shape == (MAX_ROWS, 3, 8)
    assert record.tokens[[0, -1]].tolist() == [0, rows - 1]
