"""Reading a dataset beside what trainers read now."""

from __future__ import annotations
