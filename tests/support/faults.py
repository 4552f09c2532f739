"""Faults that `hs-client verify` must find, each put into a copy of a clean dataset of real states."""

from __future__ import annotations

from fault_list import Fault, clean_copy
from stored_faults import STORED_FAULTS
from value_faults import VALUE_FAULTS

__all__ = ["FAULTS", "Fault", "clean_copy"]

FAULTS: list[Fault] = [*VALUE_FAULTS, *STORED_FAULTS]
