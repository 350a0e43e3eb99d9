"""The node agent: brings a pod its share of a GPU, with the limit, through containerd's NRI.

protocol/ speaks NRI without doing I/O, messages/ are the generated protobuf classes, connection.py
pumps bytes, and answers.py has a handler answer in time. What a container gets is decided in
policy.py, which is pure, and carried out by service.py. Knows `contract`, and nothing of the
scheduler, the library or the simulator.
"""
