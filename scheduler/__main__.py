"""Entry point of `python -m scheduler`."""

from __future__ import annotations

import os
import sys

from scheduler.command_line import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], os.environ))
