"""`python -m nri_plugin`: the node agent, and its sub-commands.

Each sub-command is imported only when it runs. This keeps the distributor, a second process on
each node, at 25 MiB.
"""

from __future__ import annotations

import os
import sys


def main() -> int:
    name, *rest = sys.argv[1:] or [""]
    if name == "distribute":
        from nri_plugin import distributor

        return distributor.main(rest)
    if name == "doctor":
        from nri_plugin.doctor import command as doctor

        return doctor.main(rest, os.environ)
    if name == "uninstall":
        from nri_plugin import uninstall

        return uninstall.main(rest, os.environ)
    from nri_plugin import serve

    return serve.main(sys.argv[1:], os.environ)


if __name__ == "__main__":
    sys.exit(main())
