"""`hs-client`: drives the server with prompts and correlates what it captured with what was asked for."""

from __future__ import annotations
