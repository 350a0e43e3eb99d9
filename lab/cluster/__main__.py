"""See command_line.py."""

import sys

from lab.cluster.command_line import main

if __name__ == "__main__":
    sys.exit(main())
