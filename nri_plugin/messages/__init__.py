"""Generated protobuf classes of NRI, of ttrpc and of the kubelet's gRPC services.

The `.proto` files are the source. The `_pb2` modules are committed, so that neither an image nor a
test needs protoc; a test checks that they are current. After an edit, from the repository's root:

    python -m grpc_tools.protoc -I. --python_out=. nri_plugin/messages/*.proto

`make lint` generates type stubs for mypy (`_pb2.pyi`).
"""
