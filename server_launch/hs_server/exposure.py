"""Who can reach the server: anybody on the network, where it listens beyond loopback without a key."""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING

from hs_server.arguments import flag_value

if TYPE_CHECKING:
    from hs_server.plan import LaunchRequest

__all__ = ["exposure_lines"]


def exposure_lines(request: LaunchRequest) -> list[str]:
    """A warning for the terminal where `request` opens the server to others without an API key; else nothing."""
    if _is_loopback(request.host) or flag_value(request.pass_through, "--api-key"):
        return []
    return [
        f"warning   --host {request.host} without --api-key: whoever reaches port {request.port} may use the server",
        "          give --api-key KEY after --, and KEY to clients in HS_API_KEY; or leave --host out",
    ]


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"
