"""`python -m simgpu`: see cli.py."""

import sys

from simgpu.cli import main

sys.exit(main())
