"""The kubelet's sides of a DRA driver: its registration, and the calls that prepare claims.

The kubelet finds the plugin by a socket in its directory of registrations, and then connects to the
plugin's own socket. It deletes the node's ResourceSlices at its start, and some time after the
plugin is gone. Source: k8s.io/kubernetes/pkg/kubelet/cm/dra, k8s.io/kubelet/pkg/apis.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

import grpc
import grpc.aio

from gpuslice.contract import names
from gpuslice.kube.log_lines import Line
from nri_plugin.claims.preparing import Preparing
from nri_plugin.claims.store import plugin_dir
from nri_plugin.messages import dra_pb2 as dra
from nri_plugin.messages import pluginregistration_pb2 as registration

_LOG: Final = logging.getLogger(__name__)

SERVICE: Final = "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin"
REGISTRATION: Final = "pluginregistration.Registration"
_STOP_S: Final = 0.5


class KubeletPlugin:
    """kubelet_dir: where this process sees the kubelet's directory. on_host: converts its paths to
    the host's, which the kubelet uses. registered: whether the kubelet has accepted the plugin."""

    def __init__(
        self, preparing: Preparing, kubelet_dir: Path, on_host: Callable[[object], str]
    ) -> None:
        own = plugin_dir(kubelet_dir) / "dra.sock"
        registrar = kubelet_dir / "plugins_registry" / f"{names.DRA_DRIVER}-reg.sock"
        self._sockets = own, registrar
        self._information = registration.PluginInfo(
            type="DRAPlugin",
            name=names.DRA_DRIVER,
            endpoint=on_host(own),
            supported_versions=["v1.DRAPlugin"],
        )
        prepare = partial(_each, preparing.prepare, dra.NodePrepareResourcesResponse)
        unprepare = partial(_each, preparing.unprepare, dra.NodeUnprepareResourcesResponse)
        self._services: Mapping[str, Mapping[str, Any]] = {
            SERVICE: {
                "NodePrepareResources": unary(prepare, dra.NodePrepareResourcesRequest),
                "NodeUnprepareResources": unary(unprepare, dra.NodeUnprepareResourcesRequest),
            },
            REGISTRATION: {
                "GetInfo": unary(self._info, registration.InfoRequest),
                "NotifyRegistrationStatus": unary(self._note, registration.RegistrationStatus),
            },
        }
        self.registered = False

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        """Serve during the block. Raises OSError and RuntimeError if a socket cannot be made."""
        server = grpc.aio.server()
        handlers = grpc.method_handlers_generic_handler
        server.add_generic_rpc_handlers([handlers(*each) for each in self._services.items()])
        for socket in self._sockets:
            socket.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
            socket.unlink(missing_ok=True)
            server.add_insecure_port(f"unix:{socket}")
        await server.start()
        try:
            yield
        finally:
            await server.stop(_STOP_S)
            for socket in self._sockets:
                socket.unlink(missing_ok=True)

    async def _info(self, _request: Any, _context: Any) -> registration.PluginInfo:
        return self._information

    async def _note(
        self, status: registration.RegistrationStatus, _context: Any
    ) -> registration.RegistrationStatusResponse:
        self.registered = status.plugin_registered
        fields = {"driver": names.DRA_DRIVER, "error": status.error or None}
        text = "registered with" if status.plugin_registered else "not registered with"
        _LOG.info(Line(f"{text} the kubelet", **fields))
        return registration.RegistrationStatusResponse()


def unary(answer: Callable[[Any, Any], Any], request: Any) -> Any:
    """Return gRPC's handler of a method. request: the class of its requests."""
    return grpc.unary_unary_rpc_method_handler(
        answer,
        request_deserializer=request.FromString,
        response_serializer=lambda message: message.SerializeToString(),
    )


async def _each(
    answer: Callable[[dra.Claim], Awaitable[Any]], response: Any, request: Any, _context: Any
) -> Any:
    """Return the response with an answer for each claim of the request."""
    answers = await asyncio.gather(*map(answer, request.claims))
    uids = [claim.uid for claim in request.claims]
    return response(claims=dict(zip(uids, answers, strict=True)))
