"""`python -m nri_plugin uninstall` as a process."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gpuslice.contract import names
from nri_plugin.claims.store import plugin_dir
from nri_plugin.host import releases, tmpfs
from nri_plugin.host.bundle import directory
from nri_plugin.host.lock import Lock
from nri_plugin.host.store import keep_mounted
from tests.contract.libraries import library
from tests.nri_plugin.host_files import put
from tests.support import ROOT, until


@pytest.mark.node
def test_it_removes_and_prints_what_no_container_uses(tmp_path: Path) -> None:
    """The program with --stay waits for the agent's end, makes one pass, and then is ready."""
    root, out = tmp_path / "host", tmp_path / "out"
    run_dir, done, bundle = root / "run", root / "done", directory(root / "state", "c")
    command = [sys.executable, "-m", "nri_plugin", "uninstall", f"--run-dir={run_dir}"]
    command += [f"--host-root={root}", "--containerd-state=/state"]

    def uninstall(*options: str) -> tuple[int, list[str], str]:
        done = subprocess.run([*command, *options], cwd=ROOT, capture_output=True, text=True)
        return done.returncode, done.stdout.splitlines(), done.stderr

    store, agent = run_dir / names.DIR_STORE, Lock(run_dir, "pid=7 host=node")
    keep_mounted(store)
    try:
        release = releases.publish(library(), names.FILE_LIBRARY, store).parent
        bundle.mkdir(parents=True)
        mounts = [{"source": str(release / names.FILE_LIBRARY)}]
        config = {"process": {"cwd": "/"}, "mounts": mounts}
        (bundle / "config.json").write_text(json.dumps(config))
        assert agent.try_acquire() is None
        code, lines, error = uninstall()
        assert (code, lines) == (1, [])
        assert "another agent serves this node (pid=7 host=node): must have ended" in error
        staying = [*command, "--stay", f"--done-file={done}"]
        with out.open("w") as file:
            process = subprocess.Popen(staying, cwd=ROOT, stdout=file, stderr=file)
        try:
            until(lambda: "must have ended" in out.read_text(), "it waits for the agent")
            assert not done.exists()
            agent.release()
            until(done.exists, "it is ready")
            assert out.read_text().count(f"{release}: stays: a container has it mounted\n") == 1
        finally:
            process.send_signal(signal.SIGTERM)
            assert process.wait(20) == 0
        shutil.rmtree(root / "state")
        claims = plugin_dir(root / "var/lib/kubelet")
        spec = root / f"var/run/cdi/{names.CDI_FILE_CLAIM}u.json"
        put(claims / "claims/u.json"), put(spec)
        lines = [f"{path}: removed" for path in (spec, claims, release, store)]
        assert uninstall("--dry-run") == (0, [f"{line} (dry run)" for line in lines], "")
        assert release.exists()
        assert uninstall() == (0, lines, "")
        spec.parent.rmdir()
        assert {*root.iterdir()} == {done, root / "var"}
        assert uninstall() == (0, [], "")
    finally:
        if store.exists():
            tmpfs.clear(store)
