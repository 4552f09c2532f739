"""The client's errors: the docstring of each is the template of the line that the user reads."""

from __future__ import annotations

from hs_formats.errors import PreflightError, ServerLost, StorageError, UsageError

__all__ = [
    "BadPrompts",
    "CannotFit",
    "DatasetMismatch",
    "DestinationBroken",
    "DestinationsDiffer",
    "InputsDiffer",
    "LeasesBroken",
    "MoverElsewhere",
    "MoverSilent",
    "NoLeases",
    "NoMover",
    "NoPlugin",
    "NoRows",
    "NoServer",
    "NoTokenizer",
    "NodesApart",
    "NothingStored",
    "NothingWorks",
    "PartsLeftBehind",
    "ScratchBroken",
    "ServerChanged",
    "ServerDenies",
    "ServerGone",
    "ServersDiffer",
    "StorageStuck",
    "TooFewFiles",
]


class BadPrompts(UsageError):
    """cannot read {path}: {reason}"""


class NoRows(UsageError):
    """no rows in {path}: it holds nothing but white space, so see to what should have written it"""


class CannotFit(PreflightError):
    """the run cannot fit: {reasons}; make room, take fewer rows with --limit, or go on all the same with --force"""


class TooFewFiles(UsageError):
    """--concurrency {concurrency} needs some {need} open files, and this shell allows {limit}: raise it with `ulimit -n
    {need}`, or take a lower --concurrency"""


class NoLeases(UsageError):
    """--leases {fd} is no socket to who holds the leases ({reason}): the option is for clients that `--ray` starts"""


class NoServer(ServerLost):
    """no server answers at {url} ({reason}): start one with `hs-server launch --model-path MODEL`, or name yours with
    --server URL"""


class ServerGone(ServerLost):
    """the server at {url} has been lost for {seconds:.0f} s ({reason}); {left} samples are pending: start it again,
    then repeat this command, which goes on where it stopped"""


class NothingWorks(ServerLost):
    """{what}, the last one because of {reason}; {left} samples are pending: see to the
    server at {url} and its log, then repeat this command, which goes on where it stopped"""


class NothingStored(StorageError):
    """{what}: the mover puts the parts aside, the last one because of {reason}; {left} samples are pending: see the
    dataset's quarantine folder, then repeat this command, which goes on where it stopped"""


class NoPlugin(PreflightError):
    """the server at {url} answers, but no capture of a server on port {port} is armed in {scratch} ({found}): start the
    server with `hs-server launch`, or name its folder with --scratch"""


class ServersDiffer(PreflightError):
    """the servers at {one} and {other} capture differently: {differences}; one dataset needs servers that were launched
    alike"""


class DestinationsDiffer(PreflightError):
    """the movers of {one} and {other} store to {here} and {there}: one dataset needs one destination, so start both
    with the same --dst"""


class ServerChanged(PreflightError):
    """the server at {url} came back with other settings: {differences}; restart it with the settings of the dataset,
    then repeat this command"""


class ServerDenies(PreflightError):
    """the server at {url} wants another API key ({reason}): put the one that it was started with into HS_API_KEY"""


class NoTokenizer(PreflightError):
    """cannot load the tokenizer {path} ({reason}): name another with --tokenizer PATH, or give rows with input_ids"""


class DatasetMismatch(PreflightError):
    """dataset {path} was made with other settings: {differences}; give the same ones, or --dataset NAME for a new
    one"""


class InputsDiffer(PreflightError):
    """{node} has other prompts files than {first}: put the same ones on every node, or on a file system that all see"""


class NodesApart(PreflightError):
    """{node} stores to {there}, which is not the same place as {here} of {first}: one dataset needs one destination
    that every node sees, a folder of a shared file system or an object store"""


class LeasesBroken(PreflightError):
    """the other end of the leases says what this one does not understand ({reason}): have the same version of
    hs-extract on every node"""


class NoMover(StorageError):
    """no mover works on {scratch} ({reason}): start `hs-mover --src {scratch} --dst FOLDER`"""


class MoverElsewhere(StorageError):
    """the mover on {scratch} stores to {now} now, and this run's dataset lies in {then}; {left} samples are pending:
    start `hs-mover --src {scratch} --dst {then}`, then repeat this command, which goes on where it stopped"""


class ScratchBroken(StorageError):
    """cannot use {path} ({reason}); {left} samples are pending: if scratch was removed, launch the server and start the
    mover again, then repeat this command, which goes on where it stopped"""


class MoverSilent(StorageError):
    """{reason} for {seconds:.0f} s; {left} samples are pending and their part files are kept in {scratch}: see to
    `hs-mover --src {scratch} --dst {dst}`, then repeat this command, which goes on where it stopped"""


class StorageStuck(StorageError):
    """nothing was moved, granted or freed for {seconds:.0f} s ({reason}); {left} samples are pending and their part
    files are kept in {scratch}: make room, then repeat this command, which goes on where it stopped"""


class PartsLeftBehind(StorageError):
    """{count} parts of earlier runs stay in scratch, such as {name}: the mover leaves them alone, and its log says why;
    mend or delete them, then repeat this command"""


class DestinationBroken(StorageError):
    """cannot write {path} ({reason}): see to the destination, then repeat this command"""
