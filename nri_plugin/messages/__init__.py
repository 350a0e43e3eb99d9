"""Generated protobuf classes of NRI and ttrpc. Holds no hand-written code; read by protocol/ alone
and, as plain values, by whoever handles its events.

The `.proto` files are the source; the `_pb2` modules are committed, so that neither an image nor a
test needs protoc, and a test proves them fresh. After an edit, from the repository's root:

    python -m grpc_tools.protoc -I. --python_out=. --mypy_out=. nri_plugin/messages/*.proto
"""
