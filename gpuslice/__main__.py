"""`python -m gpuslice`: the command `gpuslice`, where its script is not installed."""

from __future__ import annotations

import sys

from gpuslice.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
