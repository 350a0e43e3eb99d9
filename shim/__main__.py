"""`python -m shim`."""

from __future__ import annotations

import sys

from shim.cli import main

sys.exit(main(sys.argv[1:]))
