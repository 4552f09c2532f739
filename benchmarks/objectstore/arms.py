"""The ways to get parts into a bucket, each as a command, run and timed with all its children."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.checkout import ROOT
from benchmarks.mover.arms import Timing
from hs_formats.errors import HsError

__all__ = ["ARMS", "START", "run_arm"]

START = "start of hs-mover"
_FOLDERS = ("formats", "server_launch", "mover", "client")
_RCLONE = (
    "--ignore-times", "--no-check-dest", "--transfers=8", "--include=*.pt", "--config=/dev/null",
    "--s3-no-check-bucket", "--s3-provider=Other", "--s3-env-auth", "--s3-force-path-style",
)  # fmt: skip


def _mover(codec: str) -> Callable[[Path, str], list[str]]:
    def command(src: Path, bucket: str) -> list[str]:
        code = "from hs_mover.cli import main; main()"
        dst = f"s3://{bucket}"
        return [
            sys.executable,
            "-c",
            code,
            "--src",
            str(src),
            "--dst",
            dst,
            "--codec",
            codec,
            "--once",
            "--threads",
            "8",
        ]

    return command


def _rclone(src: Path, bucket: str) -> list[str]:
    endpoint = f"--s3-endpoint={os.environ['AWS_ENDPOINT_URL']}"
    return ["rclone", "move", str(src), f":s3:{bucket}", endpoint, *_RCLONE]


ARMS: Mapping[str, Callable[[Path, str], list[str]]] = {
    "hs-mover default": _mover("default"),
    "hs-mover none": _mover("none"),
    "rclone move": _rclone,
}


def run_arm(name: str, src: Path, bucket: Any) -> Timing:
    """Send all parts of `src` below a prefix of its own, look what came, and remove it.

    Args:
        name: of `ARMS`.
        src: scratch, with the run registered.
        bucket: an `object_servers.Bucket`.

    Raises:
        HsError: it failed, or did not send all.
    """
    parts = list(src.glob("*.pt"))
    raw_bytes = sum(path.stat().st_size for path in parts)
    path = os.pathsep.join([str(ROOT), *(str(ROOT / folder) for folder in _FOLDERS)])
    # rclone refuses to start with AWS_CA_BUNDLE, which plain HTTP has no use for.
    inherited = {key: value for key, value in os.environ.items() if key != "AWS_CA_BUNDLE"}
    environment = {**inherited, "PYTHONPATH": path, "HS_CACHE_DIR": str(src.parent / "cache")}
    command = ARMS[name](src, f"{bucket.name}/sent")
    began = time.monotonic()
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    assert process.stderr is not None
    said = process.stderr.read().decode(errors="replace")
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    wall_s = time.monotonic() - began
    process.stderr.close()
    pages = bucket.client.get_paginator("list_objects_v2").paginate(Bucket=bucket.name, Prefix="sent/")
    objects = {entry["Key"]: entry["Size"] for page in pages for entry in page.get("Contents", [])}
    stored = [size for key, size in objects.items() if key.rpartition("/")[2].startswith("hs-")]
    left = len(list(src.glob("*.pt")))
    for key in objects:
        bucket.client.delete_object(Bucket=bucket.name, Key=key)
    shutil.rmtree(src.parent / "cache", ignore_errors=True)
    if process.returncode or len(stored) != len(parts) or left:
        raise HsError(
            f"{name}: exit {process.returncode}, {len(stored)} of {len(parts)} objects, {left} left: {said[-500:]}"
        )
    return Timing(len(parts), raw_bytes, sum(stored), wall_s, usage.ru_utime + usage.ru_stime)
