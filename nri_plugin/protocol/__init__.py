"""NRI over ttrpc without I/O: bytes in, events out; answers in, bytes out.

No module here imports asyncio, socket, logging, os or time (import-linter enforces it).
nri_plugin.nri.connection has the socket, and enforces the deadlines. The layers are, from the
socket upwards: mux (connections in one socket), ttrpc (calls in one connection), session (NRI's
state machine) and session_events (the runtime's requests as values).
"""
