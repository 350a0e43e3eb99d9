"""`python -m tests.platforms`: observes a node of each platform, and writes docs/platforms.md."""

from __future__ import annotations

import sys

from tests.platforms.table import DOCUMENT, PLATFORMS, document, examine


def main() -> int:
    rows = []
    for name, platform in PLATFORMS.items():
        rows.append(examine(platform))
        sys.stdout.write(f"{name}: {rows[-1].ready}\n")
    DOCUMENT.write_text(document(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
