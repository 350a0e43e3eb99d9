"""`python -m lab.docker RELEASE` runs a machine until ^C, and prints how to use it."""

from __future__ import annotations

import argparse
import os
import shlex
import signal
import sys

from lab.docker.image import IMAGE
from lab.docker.machine import Machine
from lab.docker.programs import RELEASES


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m lab.docker", description=__doc__)
    parser.add_argument("release", choices=RELEASES)
    parser.add_argument("--gpus", type=int, default=1, help="number of GPUs of 40 GiB")
    arguments = parser.parse_args()
    if os.geteuid() != 0:
        parser.error("a machine needs root")
    with Machine(RELEASES[arguments.release], [40 << 30] * arguments.gpus) as machine:
        environ = [f"{name}={value}" for name, value in machine.environment.items()]
        shell = machine.namespace.enter(["env", *environ, "bash"])
        sys.stdout.write(f"DOCKER_HOST={machine.url}\nimage: {IMAGE}, with --network none\n")
        sys.stdout.write(f"a shell on the machine: {shlex.join(shell)}\n")
        sys.stdout.flush()
        signal.sigwait({signal.SIGINT, signal.SIGTERM})
    return 0


if __name__ == "__main__":
    sys.exit(main())
