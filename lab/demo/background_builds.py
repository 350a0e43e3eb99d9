"""Builds Kubernetes, Helm and the images beside the first chapter, where they are missing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from lab.demo.seed import ROOT
from tools import kubernetes
from tools.building import ProgramsError
from tools.progress import step

_MODULES: Final = ("tools.kubernetes", "tools.images")


@contextmanager
def begun() -> Iterator[Callable[[], None] | None]:
    """A function that waits for the build, and raises ProgramsError; None: nothing is missing. A
    demo that ends early ends the build."""
    if kubernetes.find() is not None and kubernetes.find_helm() is not None:
        yield None
        return
    one_by_one = " && ".join(f'"$0" -m {module}' for module in _MODULES)
    with tempfile.TemporaryFile() as log:
        command = ["sh", "-c", one_by_one, sys.executable]
        build = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log, start_new_session=True)

        def wait() -> None:
            with step(f"building Kubernetes {kubernetes.VERSION}, etcd, Helm and the images, once"):
                code = build.wait()
            if code != 0:
                log.seek(0)
                raise ProgramsError(log.read().decode(errors="replace"))

        try:
            yield wait
        finally:
            if build.poll() is None:
                os.killpg(build.pid, signal.SIGINT)
                build.wait()
