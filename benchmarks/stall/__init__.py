"""What the server does when nobody empties scratch."""

from __future__ import annotations
