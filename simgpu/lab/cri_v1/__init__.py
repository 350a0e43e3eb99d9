"""Generated protobuf classes of CRI, from cri.proto beside them; made as nri_plugin/messages is."""
