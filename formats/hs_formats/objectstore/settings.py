"""How to reach a store: everything from the environment, nothing from files of ours."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from hs_formats.errors import PreflightError

__all__ = ["ALLOW_HTTP", "StoreSettings", "store_settings"]

ALLOW_HTTP = "HS_STORE_ALLOW_HTTP"
"""Set to 1 to let credentials and data travel unencrypted to a host that is not this one."""

_RETRY_S = "HS_STORE_RETRY_S"
_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_ENDPOINTS = {
    "s3": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"),
    "gs": ("GOOGLE_BASE_URL",),
    "az": ("AZURE_ENDPOINT", "AZURE_STORAGE_ENDPOINT"),
}


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """`endpoint` "" for the provider's own; `retry_s`: how long one request is tried again, with growing pauses."""

    endpoint: str
    allow_http: bool
    retry_s: float


def store_settings(scheme: str, environment: Mapping[str, str] | None = None) -> StoreSettings:
    """Read the environment.

    Raises:
        PreflightError: the endpoint is plain HTTP on another machine, or a variable has no sensible value.
    """
    values = os.environ if environment is None else environment
    endpoint = next((values[name] for name in _ENDPOINTS[scheme] if values.get(name)), "")
    parts = urlsplit(endpoint)
    allow_http = parts.scheme == "http"
    if endpoint and (parts.scheme not in ("http", "https") or not parts.hostname):
        raise PreflightError(f"{_ENDPOINTS[scheme][-1]}={endpoint} is not like https://host:port")
    if allow_http and parts.hostname not in _LOOPBACK and values.get(ALLOW_HTTP) != "1":
        raise PreflightError(
            f"{endpoint} would send credentials and data unencrypted: use https, or set {ALLOW_HTTP}=1"
        )
    text = values.get(_RETRY_S, "20")
    try:
        retry_s = float(text)
        if not 0 <= retry_s <= 240:
            raise ValueError
    except ValueError:
        raise PreflightError(f"HS_STORE_RETRY_S={text}: seconds from 0 to 240") from None
    return StoreSettings(endpoint.rstrip("/"), allow_http, retry_s)
