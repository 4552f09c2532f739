"""What can go wrong with many nodes: the docstring of each is the template of the line that the user reads."""

from __future__ import annotations

from hs_formats.errors import PreflightError, ServerLost, StorageError, UsageError

__all__ = [
    "ActorTrouble",
    "CannotStart",
    "FolderBroken",
    "LaunchFailed",
    "LaunchRefused",
    "MoverNotStarted",
    "NoCluster",
    "NoNodes",
    "NoRay",
    "NodesFailed",
    "NodesRefuse",
    "NodesTogether",
    "NodesWithoutStorage",
    "OtherVersion",
]


class NoRay(UsageError):
    """--ray needs Ray, which is not installed here: pip install 'hs-extract[ray]'"""


class NoCluster(PreflightError):
    """no Ray cluster can be used at {address} ({reason}): start one with `ray start --head`, join the other nodes with
    `ray start --address`, and run this on one of them"""


class NoNodes(PreflightError):
    """no node of the Ray cluster has {need}; there are {found}: start Ray there with `ray start --resources` or
    --num-gpus, or name what they have with --node-resource or --node-gpus"""


class NodesTogether(UsageError):
    """two of the nodes are on one machine ({name}, {address}): write {placeholder} into {options}, so that each has its
    own there"""


class NodesFailed(ServerLost):
    """no node is left ({reasons}); {left} samples are pending: see to the nodes and the logs named above, then repeat
    this command, which goes on where it stopped"""


class NodesRefuse(PreflightError):
    """every node refuses ({reasons}); {left} samples are pending: mend that, then repeat this command"""


class NodesWithoutStorage(StorageError):
    """every node has lost its storage ({reasons}); {left} samples are pending: see to scratch, movers and destination,
    then repeat this command, which goes on where it stopped"""


class FolderBroken(StorageError):
    """cannot write to {path} ({reason}): make room there, or name another folder in HS_STATE_DIR"""


class OtherVersion(PreflightError):
    """the node has hs-extract {there}, and the driver {here}: install the same version on both"""


class LaunchFailed(ServerLost):
    """`hs-server launch` has failed ({reason}): see {log}"""


class LaunchRefused(PreflightError):
    """`hs-server launch` refuses ({reason}): see {log}"""


class CannotStart(PreflightError):
    """cannot start {command} ({reason}): install hs-extract in the environment of Ray's Python there"""


class MoverNotStarted(StorageError):
    """`hs-mover` does not start ({reason}): see {log}"""


class ActorTrouble(ServerLost):
    """the actor has failed ({reason}): a fault of hs-extract; the worker's log of Ray has more"""
