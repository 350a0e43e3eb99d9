"""Programs that are not shipped: setup, lint, and builds of the programs that the lab runs.

They import only gpuslice.contract. lab, bench, tests and the Makefile use them.
"""

import sys

if sys.version_info < (3, 11):  # noqa: UP036 - before other modules are imported
    version = ".".join(map(str, sys.version_info[:3]))
    sys.exit(f"Python {version}: must be 3.11 or newer; name another: make PYTHON=python3.12 ...")
