"""`hs-mover pack` and `unpack`: any file, whole or not at all, and a clear line for each mistake."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hs_formats.stored import CODECS
from movers import MOVER
from small_tmpfs import small_tmpfs

SAMPLES = Path(__file__).parents[1] / "samples"
GOLDEN = Path(__file__).parents[1] / "golden"


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*MOVER, *map(str, arguments)], capture_output=True, text=True, timeout=60)


def good(*arguments: object) -> str:
    result = run(*arguments)
    assert (result.returncode, result.stderr) == (0, "")
    return str(result.stdout)


def test_real_states_there_and_back_with_every_codec(tmp_path: Path) -> None:
    sample = SAMPLES / "smollm2_L15_bfloat16.pt"
    packed, back = tmp_path / "x.packed", tmp_path / "back.pt"
    for codec, least in (("default", 1.48), ("fast", 1.44), ("zstd", 1.2)):
        said = good("pack", sample, "-o", packed, "--codec", codec, "--force")
        assert f"codec {codec}" in said
        assert sample.stat().st_size / packed.stat().st_size > least
        said = good("unpack", packed, "-o", back, "--force")
        assert f"codec {codec}" in said
        assert "checked" in said
        assert back.read_bytes() == sample.read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["back.pt", "x.packed"]


@pytest.mark.parametrize(
    "content", [b"", b"x", os.urandom(3000), b"text " * 1000], ids=["empty", "byte", "noise", "text"]
)
def test_any_file(tmp_path: Path, content: bytes) -> None:
    source = tmp_path / "any ünïcode name"
    source.write_bytes(content)
    good("pack", source, "-o", tmp_path / "p")
    good("unpack", tmp_path / "p", "-o", tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == content


def test_stored_parts_are_unpacked(tmp_path: Path) -> None:
    (part,) = GOLDEN.glob("*.pt")
    for stored in GOLDEN.glob("*.pt.*"):
        good("unpack", stored, "-o", tmp_path / stored.name)
        assert (tmp_path / stored.name).read_bytes() == part.read_bytes()


def test_mistakes(tmp_path: Path) -> None:
    sample, there = SAMPLES / "smollm2_L15_float16.pt", tmp_path / "there"
    there.write_bytes(b"precious")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    os.mkfifo(tmp_path / "fifo")
    good("pack", sample, "-o", tmp_path / "packed")
    packed = (tmp_path / "packed").read_bytes()
    (tmp_path / "flipped").write_bytes(packed[:9000] + bytes([packed[9000] ^ 1]) + packed[9001:])
    (tmp_path / "cut").write_bytes(packed[:-1])
    (tmp_path / "cut.zst").write_bytes((next(GOLDEN.glob("*.zst"))).read_bytes()[:-1])
    new = tmp_path / "new"
    for arguments, code, word in (
        (("pack", tmp_path / "none", "-o", new), 2, "none does not exist"),
        (("pack", tmp_path, "-o", new), 2, "is not a regular file"),
        (("pack", tmp_path / "fifo", "-o", new), 2, "is not a regular file"),
        (("pack", sample, "-o", there), 2, "exists already; --force overwrites it"),
        (("pack", sample, "-o", tmp_path / "dangling", "--force"), 2, "is there and no regular file; name another"),
        (("pack", sample, "-o", tmp_path, "--force"), 2, "is there and no regular file; name another"),
        (("pack", sample, "-o", "/dev/null", "--force"), 2, "is there and no regular file; name another"),
        (("pack", there, "-o", there, "--force"), 2, "is the input itself"),
        (("pack", sample), 2, "'-o' / '--output'"),
        (("pack", sample, "-o", new, "--codec", "none"), 2, "'none' is not one of default, fast, zstd"),
        (("pack", sample, "-o", tmp_path / "no" / "folder"), 5, "cannot be written: No such file or directory"),
        (("unpack", sample, "-o", new), 1, "not an hsz file"),
        (("unpack", there, "-o", new), 1, "is not a whole packed file"),
        (("unpack", tmp_path / "flipped", "-o", new), 1, "checksum"),
        (("unpack", tmp_path / "cut", "-o", new), 1, "its index is missing at the end"),
        (("unpack", tmp_path / "cut.zst", "-o", new), 1, "the zstd frame is cut"),
        (("unpack", tmp_path / "flipped", "-o", there, "--force"), 1, "checksum"),
    ):
        result = run(*arguments)
        assert result.returncode == code, (arguments, result.stderr)
        (line,) = result.stderr.splitlines()
        assert line.startswith("error: ")
        assert word in line
    assert there.read_bytes() == b"precious"
    assert not new.exists()
    assert [path.name for path in tmp_path.iterdir() if path.name.endswith(".tmp")] == []


@pytest.mark.tmpfs
def test_a_full_disk_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "big").write_bytes(os.urandom(3 << 20))
    with small_tmpfs(tmp_path / "small", options="size=1m") as small:
        result = run("pack", tmp_path / "big", "-o", small / "out")
        assert result.returncode == 5
        assert "cannot be written: No space left on device" in result.stderr
        assert list(small.iterdir()) == []


def test_interrupted(tmp_path: Path) -> None:
    source = tmp_path / "big"
    with source.open("wb") as file:
        file.truncate(20 << 30)
    command = [*MOVER, "pack", str(source), "-o", str(tmp_path / "out")]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        while not list(tmp_path.glob(".out.*.tmp")):
            assert process.poll() is None
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "Traceback" not in errors
    assert sorted(path.name for path in tmp_path.iterdir()) == ["big"]


def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    source = tmp_path / "big"
    with source.open("wb") as file:
        file.truncate(160 << 20)
    program = (
        "import sys; from hs_mover.cli import main\n"
        "try: main()\n"
        # The peak in rusage may be that of the process that forked this one.
        "finally: print('peak', open('/proc/self/status').read().split('VmHWM:')[1].split()[0], file=sys.stderr)"
    )
    for arguments in (("pack", source, "-o", tmp_path / "p"), ("unpack", tmp_path / "p", "-o", tmp_path / "b")):
        result = subprocess.run(
            [sys.executable, "-c", program, *map(str, arguments)], check=True,
            capture_output=True, text=True, timeout=120,
        )  # fmt: skip
        peak_kib = int(result.stderr.rsplit("peak ", 1)[1])
        assert peak_kib < 100_000, result.stderr


def test_all_codecs_but_none_are_offered() -> None:
    assert f"[{'|'.join(name for name in CODECS if name != 'none')}]" in good("pack", "--help")
