"""Generated protobuf classes of CRI, from cri.proto beside them."""
