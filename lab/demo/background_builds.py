"""Builds Kubernetes, Helm and the images beside the first chapter, where they are missing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from typing import Final

from lab.demo.seed import ROOT
from tools import helm, kubernetes
from tools.building import ProgramsError
from tools.progress import step

_MODULES: Final = ("tools.kubernetes", "tools.helm", "tools.images")


class BackgroundBuilds:
    """The build, begun on entry; a demo that ends early ends it."""

    def __init__(self) -> None:
        self._build: subprocess.Popen[bytes] | None = None
        self._log = tempfile.TemporaryFile()  # noqa: SIM115

    def __enter__(self) -> BackgroundBuilds:
        if kubernetes.find() is None or helm.find() is None:
            one_by_one = " && ".join(f'"$0" -m {module}' for module in _MODULES)
            self._build = subprocess.Popen(
                ["sh", "-c", one_by_one, sys.executable],
                cwd=ROOT,
                stdout=self._log,
                stderr=self._log,
                start_new_session=True,
            )
        return self

    def __exit__(self, *_: object) -> None:
        if self._build is not None and self._build.poll() is None:
            os.killpg(self._build.pid, signal.SIGINT)
            self._build.wait()
        self._log.close()

    @property
    def is_building(self) -> bool:
        return self._build is not None

    def wait(self) -> None:
        """Raises ProgramsError."""
        if self._build is None:
            return
        with step(
            f"building Kubernetes {kubernetes.VERSION}, etcd and Helm with Go, and the images, once"
        ):
            code = self._build.wait()
        self._build = None
        if code != 0:
            self._log.seek(0)
            raise ProgramsError(self._log.read().decode(errors="replace"))
