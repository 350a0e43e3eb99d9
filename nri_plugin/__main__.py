"""`python -m nri_plugin`: the node agent, and its sub-commands.

Passes argv and the environment to the sub-command, which imports only what it needs: the
distributor, which runs beside the agent on each node, takes 25 MiB.
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
