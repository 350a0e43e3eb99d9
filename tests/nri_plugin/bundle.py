"""A container laid out as by containerd's shim and created by runc, for tests that inspect one."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Set
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lab.node import cgroups
from nri_plugin.host import selinux
from nri_plugin.host.files import RunDirectory
from nri_plugin.host.rootfs import Examination, Inspector
from nri_plugin.policy.model import Gpu, Mount, Share
from tests.nri_plugin.objects import clear, planned

GPU = Gpu("GPU-1", 0, 1 << 30)
SHARES = (Share(GPU.uuid, 0, 1 << 20, 50),)
PROTECTIVE = 5


class Bundle:
    """A container laid out as by containerd's shim, made by `runc create`."""

    def __init__(self, tmp_path: Path, name: str) -> None:
        self.id = name
        self.state = tmp_path / "state"
        self.path = self.state / "io.containerd.runtime.v2.task/k8s.io" / name
        self.root = self.path / "rootfs"
        for directory in ("bin", "proc", "dev", "etc"):
            (self.root / directory).mkdir(parents=True)
        shutil.copy("/bin/busybox", self.root / "bin/busybox")
        self.files = RunDirectory(tmp_path / "run", lambda: 1)
        library = tmp_path / "store/libvgpu.so"
        library.parent.mkdir()
        library.write_bytes(b"\x7fELF")
        self.plan = planned(name, SHARES, run=str(tmp_path / "run"), library=str(library))
        self.files.apply(self.plan)
        self.mounts = self.plan.mounts[:PROTECTIVE]
        run, store, socket = (tmp_path / name for name in ("run", "store", "nri/nri.sock"))
        policy = selinux.Policy(Path("/"))
        self.inspector = Inspector(self.state, run, store, socket, Path, policy)
        self.capabilities: dict[str, list[str]] = {}
        self.host_pid = False
        self.cgroup = f"gpuslice-test-{os.getpid()}"
        self._runc = ["runc", "--root", str(tmp_path / "runc")]

    def must_see(self, path: str, source: Path) -> None:
        """Behave as if the plan had one more file."""
        self.plan = replace(self.plan, files={**self.plan.files, path: str(source)})

    def create(self, *more: Mount, entry: str = "/bin/busybox") -> None:
        basic = [Mount("/proc", "proc", (), "proc"), Mount("/dev", "tmpfs", (), "tmpfs")]
        kinds = ("pid", "mount", "ipc", "uts")[1 if self.host_pid else 0 :]
        process = {"cwd": "/", "args": [entry, "sleep", "60"], "user": {"uid": 0}}
        config = {
            "ociVersion": "1.0.2",
            "process": {**process, "capabilities": self.capabilities},
            "root": {"path": "rootfs"},
            "mounts": [mount._asdict() for mount in (*basic, *self.mounts, *more)],
            "linux": {
                "namespaces": [{"type": kind} for kind in kinds],
                "cgroupsPath": f"/{self.cgroup}/{self.id}",
            },
        }
        (self.path / "config.json").write_text(json.dumps(config))
        command = [*self._runc, "create", f"--bundle={self.path}", "--no-new-keyring"]
        command += [f"--pid-file={self.path}/init.pid", self.id]
        # Its output must go elsewhere: the container's init keeps it open.
        with (self.path / "log").open("w") as log:
            done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        assert done.returncode == 0, (self.path / "log").read_text()

    def configure(self, **sections: dict[str, Any]) -> None:
        """Change its OCI configuration, as another program might after the creation."""
        config = json.loads((self.path / "config.json").read_text())
        for name, changes in sections.items():
            config[name] |= changes
        (self.path / "config.json").write_text(json.dumps(config))

    def examine(self, forwarded: bool = False, allowed: Set[str] = frozenset()) -> Examination:
        inspector = replace(self.inspector, forwarded=forwarded, allowed=allowed)
        return inspector.examine(self.id, self.plan)

    def start(self) -> None:
        subprocess.run([*self._runc, "start", self.id], check=True)

    @property
    def pid(self) -> int:
        return int((self.path / "init.pid").read_text())

    def end(self) -> None:
        """Kill and reap the container; its bundle stays."""
        subprocess.run([*self._runc, "delete", "--force", self.id], check=True)

    def remove(self) -> None:
        subprocess.run([*self._runc, "delete", "--force", self.id], capture_output=True)
        clear(self.files)
        cgroups.remove(self.cgroup)


@pytest.fixture
def bundle(tmp_path: Path) -> Iterator[Bundle]:
    """A bundle of which nothing is left after the test."""
    made = Bundle(tmp_path, f"gpuslice-test-{os.getpid()}")
    try:
        yield made
    finally:
        made.remove()
    left = subprocess.run(["find", cgroups.ROOT, "-name", made.cgroup], capture_output=True)
    assert left.stdout == b""
