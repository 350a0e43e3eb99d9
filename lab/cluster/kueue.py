"""Kueue, built once from its published module, running as a process beside a ControlPlane.

Kueue's chart is rendered for the API server, except that webhooks reach the process on this host:
an ExternalName Service names localhost, and each webhook names the process's port. The API server
verifies the certificate against the Service's name, so that Kueue's own certificates serve. Kueue
writes them to a Secret and waits until the kubelet writes them to files, which `Kueue` does here.
"""

from __future__ import annotations

import base64
import json
import shutil
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from gpuslice.contract import names
from lab import Running
from lab.cluster.controlplane import ControlPlane, ControlPlaneError, free_port
from lab.cluster.supervised import Process
from tools import kubernetes
from tools.building import build, cache_dir, output, print_paths, runs

VERSION: Final = "0.19.2"
NAMESPACE: Final = "kueue-system"
USER: Final = "kueue"
USERS: Final[Mapping[str, tuple[str, tuple[str, ...]]]] = {
    USER: (
        f"system:serviceaccount:{NAMESPACE}:kueue-controller-manager",
        ("system:serviceaccounts", f"system:serviceaccounts:{NAMESPACE}"),
    )
}
"""The users for a ControlPlane's `Serving`. RBAC treats `kueue` as the chart's service account."""
_MODULE: Final = "sigs.k8s.io/kueue"
_SERVICE: Final = "kueue-webhook-service"
_SECRET: Final = "kueue-webhook-server-cert"
_SKIPPED: Final = frozenset({"Deployment", "APIService", "ConfigMap", "Service"})
_DOCUMENT: Final = Path(__file__).parents[2] / "docs" / "queues.md"
_SELECTOR: Final = {"matchLabels": {names.LABEL_QUEUES: "true"}}
_READY_S: Final = 120.0

Json = dict[str, Any]


def ensure() -> Path:
    """Return the directory of Kueue's program `kueue` and its chart `chart`. Build them if the
    cache has none, which takes minutes. Raise ProgramsError."""
    final = cache_dir() / "bin" / f"kueue-{VERSION}"
    if not runs(final / "kueue"):
        with build(final, f"building Kueue {VERSION} with Go, once", 3_000_000_000) as under_way:
            described = under_way.output("mod", "download", "-json", f"{_MODULE}@v{VERSION}")
            source = Path(json.loads(described)["Dir"])
            shutil.copytree(source, under_way.module, dirs_exist_ok=True)
            shutil.copytree(source / "charts" / "kueue", under_way.into / "chart")
            kubernetes.compile_in(under_way, "./cmd/kueue", "kueue")
    return final


class Kueue(Running):
    """A context manager: Kueue serves the namespaces with the label LABEL_QUEUES until its exit.
    plane: a started ControlPlane whose `Serving` has USERS."""

    def __init__(self, plane: ControlPlane) -> None:
        self._plane = plane
        self._built = ensure()
        self._directory = plane.directory / "kueue"
        self._health, self._webhooks = free_port(), free_port()
        self._started: Process | None = None

    def start(self) -> None:
        """Return when Kueue is ready. Raises ControlPlaneError."""
        certificates = self._directory / "certificates"
        certificates.mkdir(parents=True)
        self._plane.kubectl("create", "namespace", NAMESPACE)
        config = json.dumps(_configuration(certificates, self._health, self._webhooks))
        self._plane.apply_json(*self._objects(config))
        (self._directory / "config.yaml").write_text(config)
        self.restart()
        # Without these files Kueue would wait for them with an increasing delay.
        self._until(lambda: self._write_certificates(certificates), "no certificates")
        self.wait_ready()

    def stop(self) -> None:
        """End Kueue. Its objects stay. Idempotent."""
        if self._started is not None:
            self._started.kill()

    @property
    def process(self) -> Process:
        assert self._started is not None
        return self._started

    def restart(self) -> None:
        """Start Kueue, after `stop` or a kill."""
        command: list[str | Path] = [
            *(self._built / "kueue", f"--config={self._directory / 'config.yaml'}"),
            *(f"--kubeconfig={self._plane.kubeconfig(USER)}", "--zap-log-level=2"),
        ]
        log = self._plane.directory / "kueue.log"
        self._started = Process(command, log, self._plane.environ())

    def wait_ready(self) -> None:
        """Wait until the API server reaches Kueue's webhooks. Raises ControlPlaneError."""
        flavor = {
            "apiVersion": "kueue.x-k8s.io/v1beta2",
            "kind": "ResourceFlavor",
            "metadata": {"name": "probe"},
        }
        probe = ("create", "--dry-run=server", "-f", "-")
        self._until(
            lambda: self._plane.try_kubectl(*probe, given=json.dumps(flavor)).returncode == 0,
            "Kueue is not ready",
        )

    def _objects(self, config: str) -> list[Json]:
        """Return what Kueue's chart installs, without what runs it in a pod. The webhooks' selector
        of namespaces is from the configuration."""
        rendered = output(
            [
                *(kubernetes.ensure_helm(), "template", "kueue", self._built / "chart"),
                *("--namespace", NAMESPACE, "--include-crds"),
                f"--set-json=managerConfig.controllerManagerConfigYaml={json.dumps(config)}",
            ]
        )
        service: Json = {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": _SERVICE, "namespace": NAMESPACE},
            "spec": {"type": "ExternalName", "externalName": "localhost"},
        }
        wanted = [service]
        for each in yaml.load_all(rendered, Loader=yaml.CSafeLoader):
            if not each or (each["kind"] in _SKIPPED):
                continue
            conversion = each.get("spec", {}).get("conversion", {}).get("webhook")
            for webhook in (*each.get("webhooks", ()), *([conversion] if conversion else ())):
                webhook["clientConfig"]["service"]["port"] = self._webhooks
            wanted.append(each)
        return wanted

    def _write_certificates(self, into: Path) -> bool:
        """Write the Secret's certificates to files. Return False until Kueue has made them."""
        found = self._plane.try_kubectl("get", "secret", _SECRET, f"-n={NAMESPACE}", "-o=json")
        files = json.loads(found.stdout).get("data") if found.returncode == 0 else None
        for name, content in (files or {}).items():
            (into / name).write_bytes(base64.b64decode(content))
        return bool(files)

    def _until(self, is_over: Callable[[], bool], problem: str) -> None:
        deadline = time.monotonic() + _READY_S
        while not is_over():
            if not self.process.running or time.monotonic() > deadline:
                raise ControlPlaneError(f"{problem}:\n{self.process.log_tail()}")
            time.sleep(0.1)


def _configuration(certificates: Path, health: int, webhooks: int) -> Json:
    documented = _documented()
    return {
        "apiVersion": "config.kueue.x-k8s.io/v1beta2",
        "kind": "Configuration",
        "namespace": NAMESPACE,
        "health": {"healthProbeBindAddress": f"127.0.0.1:{health}"},
        "metrics": {"bindAddress": "0"},
        "webhook": {"host": "127.0.0.1", "port": webhooks, "certDir": str(certificates)},
        "leaderElection": {"leaderElect": False},
        "internalCertManagement": {
            "enable": True,
            "webhookServiceName": _SERVICE,
            "webhookSecretName": _SECRET,
        },
        "clientConnection": {"qps": 300, "burst": 500},
        **documented,
        "featureGates": {"VisibilityOnDemand": False, **documented["featureGates"]},
    }


def _documented() -> dict[str, Any]:
    """Return the part of Kueue's configuration that the document tells users to write."""
    block = _DOCUMENT.read_text().partition("```yaml\n")[2].partition("```")[0]
    return dict(yaml.safe_load(block))


if __name__ == "__main__":
    sys.exit(print_paths(lambda: (ensure(),)))
