"""Messages of the CRI, generated from cri.proto by `python -m simgpu.lab.cri_v1`; not edited."""
