"""NRI over ttrpc without I/O: bytes in, events out; answers in, bytes out.

No module here imports asyncio, socket, logging, os or time (import-linter enforces it). Deadlines
are passed as numbers to nri_plugin.nri.connection, which owns the clock and the socket. The layers,
from the wire upwards: mux (connections in one socket), ttrpc (calls in one connection), session
(NRI's state machine), session_events (its requests and their answers).
"""
