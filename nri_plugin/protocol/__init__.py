"""NRI over ttrpc as values: bytes in, events out, answers in, bytes out.

No module here imports asyncio, socket, logging, os or time (import-linter sees to it); deadlines
are numbers handed on to the shell (nri_plugin.connection), which owns the clock and the socket. The
layers, from the wire upwards: buffer (a parser that can wait), mux (connections in one socket),
ttrpc (calls in one connection), session (the dialogue of NRI), events (what it tells and how it is
answered).
"""
