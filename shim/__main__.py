"""`python -m shim`."""

from __future__ import annotations

import sys

from shim.arbiter import command

if sys.argv[1:2] == ["arbiter"]:
    sys.exit(command.main(sys.argv[2:]))

# The arbiter does not need this import, which takes 18 MiB of memory.
from shim.cli import main

sys.exit(main(sys.argv[1:]))
