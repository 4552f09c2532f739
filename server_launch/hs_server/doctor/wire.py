"""The doctor's HTTP: three kinds of requests, standard library only, no proxies."""

from __future__ import annotations

import http.client
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from hs_formats.errors import UsageError

__all__ = ["Answer", "Wire", "WireError"]

_INFO_PATHS = ("/server_info", "/get_server_info")
_MAX_WORDS = 200


class WireError(Exception):
    """No usable answer; the text is for the user."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What the server said of one request."""

    finish: str
    message: str
    prompt_tokens: int
    cached_tokens: int

    @classmethod
    def of(cls, body: Any) -> Answer:
        """From one object of SGLang's answer.

        Raises:
            WireError: it is not one of SGLang's.
        """
        try:
            meta = body["meta_info"]
            finish = meta.get("finish_reason") or {}
            return cls(
                finish=str(finish.get("type", "")),
                message=str(finish.get("message", "")),
                prompt_tokens=int(meta["prompt_tokens"]),
                cached_tokens=int(meta.get("cached_tokens") or 0),
            )
        except (AttributeError, KeyError, TypeError, ValueError):
            raise WireError("the answer to /generate is not one of SGLang's") from None


class Wire:
    """Requests to one server; each has a connection of its own.

    Raises:
        UsageError: `url` is none.
    """

    def __init__(self, url: str, *, api_key: str = "") -> None:
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError as error:
            raise UsageError(f"--server {url}: {error}") from None
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise UsageError(f"--server {url}: give a URL such as http://127.0.0.1:8000")
        self.url = url
        self.host = parts.hostname
        self.port = port or {"http": 80, "https": 443}[parts.scheme]
        self._kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        self._headers = {"authorization": f"Bearer {api_key}"} if api_key else {}

    def generate(self, rids: Sequence[str], prompts: Sequence[Sequence[int]], *, timeout_s: float) -> list[Answer]:
        """Have the server prefill `prompts`, all in one request.

        Raises:
            WireError: it refuses, or does not answer in time.
        """
        body = {
            "rid": list(rids),
            "input_ids": [list(ids) for ids in prompts],
            "sampling_params": {"max_new_tokens": 0, "temperature": 0},
        }
        answer = self._send("POST", "/generate", body, timeout_s=timeout_s)
        if not isinstance(answer, list) or len(answer) != len(rids):
            raise WireError("the answer to /generate is not one of SGLang's")
        return [Answer.of(item) for item in answer]

    def server_info(self, *, timeout_s: float) -> Mapping[str, Any]:
        """SGLang's resolved settings.

        Raises:
            WireError: it has no such page, or does not answer.
        """
        error = WireError("")
        for path in _INFO_PATHS:
            try:
                found = self._send("GET", path, None, timeout_s=timeout_s)
            except WireError as caught:
                if not str(caught).startswith("HTTP 404"):
                    raise
                error = caught
                continue
            if isinstance(found, dict):
                return found
            error = WireError(f"{path} is no JSON object")
        raise error

    def _send(self, method: str, path: str, body: Any, *, timeout_s: float) -> Any:
        connection = self._kind(self.host, self.port, timeout=timeout_s)
        headers = dict(self._headers)
        data = None
        if body is not None:
            data = json.dumps(body).encode()
            headers["content-type"] = "application/json"
        try:
            connection.request(method, path, body=data, headers=headers)
            response = connection.getresponse()
            text = response.read()
        except TimeoutError:
            raise WireError(f"no answer within {timeout_s:.0f} s") from None
        except (OSError, http.client.HTTPException) as error:
            raise WireError(str(error) or type(error).__name__) from None
        finally:
            connection.close()
        if response.status != 200:
            words = " ".join(text.decode("utf-8", "replace").split())[:_MAX_WORDS]
            raise WireError(f"HTTP {response.status}: {words}")
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            raise WireError(f"{path} is answered with something else than JSON") from None
