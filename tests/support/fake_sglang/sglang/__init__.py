"""A stand-in for SGLang that starts in a fraction of a second: enough of a server for the launcher to handle."""

from __future__ import annotations
