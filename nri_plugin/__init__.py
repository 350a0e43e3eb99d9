"""The node agent: adds GPU shares with their limits to pods, through containerd's NRI.

protocol/ implements NRI without I/O; messages/ has the generated protobuf classes; connection.py
does the socket I/O; answers.py enforces a deadline for each answer. policy/, which is pure,
decides what a container gets; service.py carries it out.
Depends on `contract`, and not on the scheduler, the library or the simulator.
"""
