"""A session, and the runtime's side of its wire."""

from __future__ import annotations

import struct

from google.protobuf.message import Message

from nri_plugin.messages import nri_pb2 as nri
from nri_plugin.messages import ttrpc_pb2
from nri_plugin.protocol import mux, nri_versions, session_events
from nri_plugin.protocol.session import Session, State
from nri_plugin.protocol.session_events import EventMask
from tests.nri_plugin.objects import container, pod
from tests.nri_plugin.protocol.vectors import REGISTER_OK


class Wire:
    """A session, and the runtime's side of its wire as plain calls."""

    def __init__(self, wanted: EventMask = session_events.SERVED_EVENTS) -> None:
        self.session = Session(name="gpuslice", index="50", wanted=wanted)
        self.session.register()
        self.session.data_to_send()
        self.stream = -1

    def call(
        self,
        method: str,
        message: Message | bytes = b"",
        *,
        timeout_ns: int = 0,
        service: str = nri_versions.PLUGIN_SERVICE,
    ) -> list[session_events.Event]:
        self.stream += 2
        payload = message if isinstance(message, bytes) else message.SerializeToString()
        data = ttrpc_pb2.Request(
            service=service, method=method, payload=payload, timeout_nano=timeout_ns
        ).SerializeToString()
        framed = mux.frames(1, struct.pack(">IIBB", len(data), self.stream, 1, 0) + data)
        return self.session.receive_data(framed)

    def replies(self) -> list[tuple[int, ttrpc_pb2.Response]]:
        """The session's replies on connection 1: stream and response, in order."""
        stream = b"".join(
            piece
            for connection, piece in mux.Demultiplexer().feed(self.session.data_to_send())
            if connection == 1
        )
        found = []
        while stream:
            length, number, kind, _ = struct.unpack_from(">IIBB", stream)
            assert kind == 2
            found.append((number, ttrpc_pb2.Response.FromString(stream[10 : 10 + length])))
            stream = stream[10 + length :]
        return found

    def reply(self) -> ttrpc_pb2.Response:
        """The only reply, to the last call."""
        ((stream, response),) = self.replies()
        assert stream == self.stream
        return response

    def configure(self, nri_version: str = "v0.12.3", request_timeout: int = 2000) -> None:
        self.call(
            "Configure",
            nri.ConfigureRequest(
                runtime_name="containerd",
                runtime_version="v2.4.2",
                nri_version=nri_version,
                request_timeout=request_timeout,
            ),
        )
        assert self.reply().status.code == 0

    def serve(self, nri_version: str = "v0.12.3") -> Wire:
        self.session.receive_data(REGISTER_OK)
        self.configure(nri_version)
        (synchronize,) = self.call("Synchronize")
        assert isinstance(synchronize, session_events.Synchronize)
        assert self.session.respond(synchronize.request_id)
        assert self.reply() == ttrpc_pb2.Response()
        assert self.session.state is State.SERVING
        return self


def about_container(request: type[Message]) -> Message:
    return request(pod=pod(3), container=container(4))
