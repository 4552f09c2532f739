"""Is the server that this run began with still there, and still the same? For the gate and for the heartbeat."""

from __future__ import annotations

import anyio.to_thread

from hs_client._http import RequestError, ServerClient, api_key, shared_tls
from hs_client.errors import ServerChanged
from hs_client.preflight import ServerFacts, marker_differences
from hs_formats.control import ControlFolder

__all__ = ["ServerProbe"]

_READ_TIMEOUT_S = 10.0


class ServerProbe:
    """Compares what is there now with `server`, as preflight found it in the scratch of `control`."""

    def __init__(self, server: ServerFacts, control: ControlFolder) -> None:
        self._server = server
        self._control = control

    async def probe(self) -> None:
        """The server answers and its capture is armed with the settings that this run began with.

        Raises:
            RequestError: it is away, or does not capture.
            ServerChanged: it is another one, whose records do not fit.
        """
        client = ServerClient(self._server.url, tls=shared_tls(), read_timeout_s=_READ_TIMEOUT_S, key=api_key())
        try:
            await client.model_info()
        finally:
            await client.close()
        if not await self.armed():
            raise RequestError("a server answers, but without an armed capture")

    async def armed(self) -> bool:
        """A capture is armed on our port; False when there is none. Sends nothing.

        Raises:
            ServerChanged: it is another one, whose records do not fit.
        """
        markers = await anyio.to_thread.run_sync(lambda: self._control.live_markers(port=self._server.port))
        for marker in markers:
            differences = marker_differences(self._server.marker, marker)
            if differences:
                raise ServerChanged(url=self._server.url, differences="; ".join(differences))
        return bool(markers)
