"""`gpuslice host install`: writes the unit by which systemd runs `gpuslice host` before Docker."""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import gpuslice

UNIT: Final = Path("/etc/systemd/system/gpuslice-host.service")
_SYSTEMD: Final = Path("/run/systemd/system")
"""The directory exists where systemd manages the system (sd_booted(3))."""
_TEXT: Final = """\
[Unit]
Description=gpuslice: limits of Docker containers on GPUs
Before=docker.service
After=nvidia-persistenced.service nvidia-cdi-refresh.service
StartLimitIntervalSec=0

[Service]
Type=notify
WorkingDirectory={directory}
ExecStart="{python}" -m gpuslice host
Restart=always
RestartSec=1
OOMScoreAdjust=-900

[Install]
WantedBy=multi-user.target
"""


def main(arguments: Sequence[str], prog: str) -> int:
    parser = argparse.ArgumentParser(
        prog=f"{prog} install",
        description=f"Make `{prog}` a service of systemd that starts before Docker. Idempotent.",
    )
    parser.add_argument("--uninstall", action="store_true", help="stop and remove the service")
    chosen = parser.parse_args(arguments)
    try:
        if chosen.uninstall:
            if UNIT.exists():
                _systemctl("disable", "--now", UNIT.name)
                UNIT.unlink()
                _systemctl("daemon-reload")
            sys.stdout.write(f"{UNIT} is removed; containers keep their limits\n")
            return 0
        UNIT.parent.mkdir(parents=True, exist_ok=True)
        UNIT.write_text(text(sys.executable, str(Path(gpuslice.__file__).parents[1])))
        started = _systemctl("daemon-reload") and _systemctl("enable", "--now", UNIT.name)
    except (OSError, subprocess.CalledProcessError) as error:
        sys.stderr.write(f"{prog} install: {error}\n")
        return 1
    sys.stdout.write(f"{UNIT} is written" + (" and started\n" if started else _OTHERWISE))
    return 0


_OTHERWISE: Final = """
systemd does not run here: start `gpuslice host` as root before Docker, and again whenever it ends
"""


def text(python: str, directory: str) -> str:
    """Return the unit. directory: from which the interpreter imports gpuslice."""
    python, directory = (each.replace("%", "%%") for each in (python, directory))
    return _TEXT.format(python=python, directory=directory)


def _systemctl(*arguments: str) -> bool:
    """Run systemctl. Return False if systemd does not manage this system."""
    if not _SYSTEMD.is_dir():
        return False
    subprocess.run(["systemctl", *arguments], check=True)
    return True
