"""Protobuf classes of CRI, generated from cri.proto in this directory."""
