"""A Ray cluster of logical nodes on this machine, on the loopback interface alone; the cluster itself is a script."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator

__all__ = ["RESOURCE", "ray_cluster", "ray_environment"]

RESOURCE = "hs_node"
_MEMORY_BYTES = 80 << 20


def ray_environment() -> dict[str, str]:
    """For the cluster and whoever joins it: nothing is reported, and 127.0.0.1 is not taken for another address."""
    return {**os.environ, "RAY_USAGE_STATS_ENABLED": "0", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}


@contextlib.contextmanager
def ray_cluster(nodes: int) -> Iterator[str]:
    """`nodes` nodes, each with one `RESOURCE`, for the length of a block; its address."""
    folder = tempfile.mkdtemp(prefix="hs-ray-")  # short: the names of sockets below it are limited
    process = subprocess.Popen(
        [sys.executable, __file__, str(nodes), folder],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=ray_environment(),
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        address = process.stdout.readline().strip()
        assert address.startswith("127.0.0.1:"), "the cluster does not start"
        yield address
    finally:
        process.stdin.close()
        process.stdout.close()
        process.wait(60)
        shutil.rmtree(folder, ignore_errors=True)


def _main(nodes: int, folder: str) -> None:
    from ray.cluster_utils import Cluster

    output = os.dup(1)
    os.dup2(2, 1)  # Ray prints; only the address is for the caller
    common = {
        "num_cpus": 1,
        "num_gpus": 0,
        "node_ip_address": "127.0.0.1",
        "object_store_memory": _MEMORY_BYTES,
        "include_dashboard": False,
        "include_log_monitor": False,
        "resources": {RESOURCE: 1},
    }
    cluster = Cluster(initialize_head=True, connect=False, head_node_args={**common, "temp_dir": folder})
    for _ in range(nodes - 1):
        cluster.add_node(**common)
    os.write(output, f"{cluster.address}\n".encode())
    sys.stdin.read()
    cluster.shutdown()


if __name__ == "__main__":
    _main(int(sys.argv[1]), sys.argv[2])
