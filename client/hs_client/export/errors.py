"""What an export refuses: the docstring of each is the template of the line that the user reads."""

from __future__ import annotations

from hs_formats.errors import HsError, PreflightError, StorageError, UsageError

__all__ = [
    "BadSample",
    "CannotWrite",
    "ExportIncomplete",
    "MissingPackage",
    "NoModel",
    "NormUnsound",
    "NothingVerified",
    "OtherExport",
    "OutInUse",
    "WrongChoice",
]


class WrongChoice(UsageError):
    """--format {format}: {reason}"""


class NothingVerified(PreflightError):
    """{missing} of {count} samples of {dataset} are not verified: run `hs-client verify {dataset}` first, or export
    them all the same with --unverified"""


class OtherExport(PreflightError):
    """{out} holds another export ({reason}): choose another --out, or delete it"""


class OutInUse(PreflightError):
    """another hs-client export writes to {out}"""


class NoModel(PreflightError):
    """{need} of the model is needed, and {path} {reason}: name the model's folder with --model PATH"""


class MissingPackage(PreflightError):
    """--format {format} needs the package {package}: pip install 'hs-extract[export]'"""


class NormUnsound(PreflightError):
    """the states before the final norm, which speculators wants, cannot be had from the stored ones: {reason}"""


class CannotWrite(StorageError):
    """cannot write {path} ({reason}): make room or choose another --out, then repeat this command, which goes on where
    it stopped"""


class BadSample(HsError):
    """sample {sample_id!r} cannot be exported: {reason}"""


class ExportIncomplete(HsError):
    """{count} of {total} samples could not be exported and {out} is not complete: run `hs-client verify {dataset}`,
    then export into a new folder, which leaves out what does not verify"""
