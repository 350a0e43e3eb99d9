"""The lab's own Kubernetes control plane: etcd, kube-apiserver, and kube-schedulers on demand.

The programs end when their owner ends or is killed. Only `stop` removes the directory. By default
there is no controller-manager and no kubelet. So no default service accounts are made, no taints
are set or removed, and the admission plugins that need accounts or taints are off. A cluster with
controller-manager and kubelet (running.py) passes another `Serving`.
"""

from __future__ import annotations

import http.client
import json
import os
import random
import secrets
import socket
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import yaml

from gpuslice.contract import names
from lab import Running, pages
from lab.cluster import manifests, openssl
from lab.cluster.supervised import Process
from tools import kubernetes

USERS: Final[Mapping[str, tuple[str, tuple[str, ...]]]] = {
    "admin": ("admin", ("system:masters",)),
    "kube-scheduler": ("system:kube-scheduler", ()),
    "scheduler": (
        f"system:serviceaccount:{names.NAMESPACE}:{names.SCHEDULER_NAME}",
        ("system:serviceaccounts", f"system:serviceaccounts:{names.NAMESPACE}"),
    ),
    "tenant": ("tenant", ("tenants",)),
}
"""The users of `kubeconfig`: each one's name and groups at the API server. RBAC treats `scheduler`
as the chart's service account. `tenant` has only the rights that a test grants."""


@dataclass(frozen=True, slots=True)
class Serving:
    """How the API server serves. The defaults suit clients that need no real node.

    users: additional entries of USERS. admission_off: admission plugins to disable. options:
    additional options of kube-apiserver.
    """

    address: str = "127.0.0.1"
    users: Mapping[str, tuple[str, tuple[str, ...]]] = field(default_factory=dict)
    admission_off: Sequence[str] = ("ServiceAccount", "TaintNodesByCondition")
    options: Sequence[str] = ()


_ALONE: Final = Serving()
_FREE_PORTS: Final = range(20000, 32000)
"""Ports below the range from which Linux takes ports for outgoing connections."""


class ControlPlaneError(RuntimeError):
    """A program does not start, or kubectl fails. The text is the program's output."""


class ControlPlane(Running):
    """etcd and kube-apiserver with their files in `directory`, which `stop` removes."""

    def __init__(self, directory: Path, serving: Serving = _ALONE) -> None:
        self.directory = directory.resolve()
        self.programs = kubernetes.ensure()
        self.server = ""
        self._serving = serving
        self._users = {**USERS, **serving.users}
        self._tokens = {user: secrets.token_hex(16) for user in self._users}
        self._started: dict[str, Process] = {}

    def start(self) -> None:
        """Return when the API server is ready. Raises ControlPlaneError."""
        self.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._write_credentials()
        self._start_etcd()
        # Another process may take the port after this check and before the API server does.
        for left in reversed(range(5)):
            try:
                self.server = self._start_apiserver(free_port())
                return
            except ControlPlaneError as error:
                if "address already in use" not in str(error) or not left:
                    raise

    def stop(self) -> None:
        """End every program and remove the directory. Idempotent."""
        for process in reversed(self._started.values()):
            process.kill()
        self._started.clear()
        subprocess.run(["rm", "-rf", "--", self.directory], check=False)

    @property
    def apiserver(self) -> Process:
        """The process of kube-apiserver. Tests stop and continue it to simulate a silent server."""
        return self._started["kube-apiserver"]

    def restart_apiserver(self) -> None:
        """Kill and restart the API server at the same address. The content of etcd stays."""
        self.apiserver.kill()
        self._start_apiserver(int(self.server.rpartition(":")[2]))

    @property
    def etcd(self) -> Process:
        return self._started["etcd"]

    def restart_etcd(self) -> None:
        """Kill and restart etcd. Its content stays, and the API server reconnects."""
        self.etcd.kill()
        self._start_etcd()

    def start_kube_scheduler(
        self,
        config: Path | None = None,
        kubeconfig: Path | None = None,
        name: str = "kube-scheduler",
        *options: str,
        hostname: str = "",
    ) -> Process:
        """Start a kube-scheduler with the configuration `config`; None: the default one.

        kubeconfig: its user is kube-scheduler's; None: system:kube-scheduler. name: the first part
        of the log's name. hostname: see Process; the identity in the Lease begins with this name.
        kube-scheduler reads a copy of `config` that includes the kubeconfig.
        """
        written: dict[str, Any] = {
            "apiVersion": "kubescheduler.config.k8s.io/v1",
            "kind": "KubeSchedulerConfiguration",
            "leaderElection": {"leaderElect": False},
        }
        if config is not None:
            written = yaml.safe_load(config.read_text())
        own = kubeconfig or self.kubeconfig("kube-scheduler")
        written.setdefault("clientConnection", {})["kubeconfig"] = str(own)
        copy = self.directory / f"{name}.config.yaml"
        copy.write_text(yaml.safe_dump(written))
        command: list[str | Path] = [
            *(self.programs.kube_scheduler, f"--config={copy}", "--secure-port=0"),
            *(f"--authentication-kubeconfig={own}", f"--authorization-kubeconfig={own}"),
            *options,
        ]
        log = self.directory / f"{name}.log"
        process = Process(command, log, self.environ(), hostname=hostname)
        self._started[f"{name} {process.pid}"] = process
        return process

    def kubeconfig(self, user: str = "admin") -> Path:
        """Write and return the kubeconfig of a user from USERS or from `Serving.users`."""
        return self._write_kubeconfig(user, self._tokens[user])

    def service_account_kubeconfig(self, namespace: str, name: str, node: str = "") -> Path:
        """Write a kubeconfig of an existing service account, with a token such as its pods get.
        `node` binds the token to a node, which the API server adds to the user's attributes."""
        bound = ("--bound-object-kind=Node", f"--bound-object-name={node}") if node else ()
        options = (f"--namespace={namespace}", "--duration=24h", *bound)
        token = self.kubectl("create", "token", name, *options).strip()
        return self._write_kubeconfig(".".join(filter(None, (namespace, name, node))), token)

    @property
    def ca(self) -> Path:
        """The API server's self-signed certificate."""
        return self.directory / "certificates" / "apiserver.crt"

    @property
    def service_account_key(self) -> Path:
        """The key that signs the tokens of service accounts."""
        return self.directory / "service-accounts.key"

    def token(self, user: str = "admin") -> str:
        return self._tokens[user]

    def kubectl(self, *arguments: str | Path, user: str = "admin", given: str = "") -> str:
        """Return kubectl's output. given: its input. Raises ControlPlaneError if it fails."""
        done = self.try_kubectl(*arguments, user=user, given=given)
        if done.returncode != 0:
            raise ControlPlaneError(f"kubectl {' '.join(map(str, arguments))}: {done.stderr}")
        return done.stdout

    def try_kubectl(
        self, *arguments: str | Path, user: str = "admin", given: str = ""
    ) -> subprocess.CompletedProcess[str]:
        """Run kubectl and return its exit status and output, also if it fails."""
        command = [self.programs.kubectl, f"--kubeconfig={self.kubeconfig(user)}", *arguments]
        environ = {**os.environ, **self.environ()}
        return subprocess.run(
            command, env=environ, input=given, text=True, capture_output=True, timeout=120
        )

    def apply_json(self, *objects: Mapping[str, Any], user: str = "admin") -> None:
        listed = {"apiVersion": "v1", "kind": "List", "items": objects}
        self.kubectl("apply", "--server-side", "-f", "-", user=user, given=json.dumps(listed))

    def install_kinds(self) -> None:
        """Install gpuslice's namespace, and Device's CRD if it is missing; no RBAC, no policies."""
        self.apply_json(*manifests.objects("Namespace"))
        self.try_kubectl("create", "-f", manifests.CRDS)
        self.kubectl("wait", "--for=condition=Established", "--timeout=60s", "-f", manifests.CRDS)

    def remove_pods(self, namespace: str) -> None:
        """Delete all pods of the namespace at once, without a grace period."""
        path = f"/api/v1/namespaces/{namespace}/pods?gracePeriodSeconds=0"
        self.kubectl("delete", "--raw", path)

    def remove_namespace(self, name: str) -> None:
        """Delete the namespace with its pods. This finalises it, as a controller-manager would."""
        self.remove_pods(name)
        self.kubectl("delete", "namespace", name, "--wait=false")
        live = json.loads(self.kubectl("get", "namespace", name, "-o", "json"))
        live["spec"]["finalizers"] = []
        raw = f"/api/v1/namespaces/{name}/finalize"
        self.kubectl("replace", "--raw", raw, "-f", "-", given=json.dumps(live))

    def _write_credentials(self) -> None:
        rows = [
            f'{self._tokens[user]},{name},{name},"{",".join(groups)}"\n'
            for user, (name, groups) in self._users.items()
        ]
        key, tokens = self.service_account_key, self.directory / "tokens.csv"
        for path, text in ((tokens, "".join(rows)), (key, openssl.private_key())):
            path.touch(mode=0o600)
            path.write_text(text)

    @property
    def etcd_socket(self) -> Path:
        """The socket of etcd, in a directory that only its owner can enter. etcd listens on no
        port, because a client that can write to etcd bypasses all rights in Kubernetes."""
        return self.directory / "etcd" / "clients"

    def _start_etcd(self) -> None:
        place = self.etcd_socket.parent
        place.mkdir(mode=0o700, exist_ok=True)
        self._started["etcd"] = Process(
            [
                *("env", f"--chdir={place}", self.programs.etcd, "--data-dir=.", "--name=lab"),
                *("--unsafe-no-fsync", "--log-level=warn", "--listen-peer-urls=unix://peers:0"),
                f"--listen-client-urls=unix://{self.etcd_socket}",
                "--advertise-client-urls=http://localhost:0",
            ],
            self.directory / "etcd.log",
        )
        _wait_until(self._etcd_answers, self.etcd)

    def _etcd_answers(self) -> bool:
        try:
            return pages.get(self.etcd_socket, "/health")[0] == 200
        except (OSError, http.client.HTTPException):
            return False

    def _start_apiserver(self, port: int) -> str:
        key, address = self.service_account_key, self._serving.address
        self._started["kube-apiserver"] = Process(
            [
                self.programs.kube_apiserver,
                f"--etcd-servers=unix://{self.etcd_socket}",
                *(f"--bind-address={address}", f"--advertise-address={address}"),
                f"--secure-port={port}",
                f"--cert-dir={self.directory / 'certificates'}",
                f"--token-auth-file={self.directory / 'tokens.csv'}",
                *(f"--service-account-key-file={key}", f"--service-account-signing-key-file={key}"),
                "--service-account-issuer=https://kubernetes.default.svc",
                "--service-cluster-ip-range=10.0.0.0/24",
                "--authorization-mode=Node,RBAC",
                "--allow-privileged",
                "--endpoint-reconciler-type=none",
                "--delete-collection-workers=8",
                f"--disable-admission-plugins={','.join(self._serving.admission_off)}",
                *self._serving.options,
            ],
            self.directory / "kube-apiserver.log",
            self.environ(),
        )
        url = f"https://{address}:{port}"
        admin = self._tokens["admin"]
        _wait_until(lambda: _answer(f"{url}/readyz", self.ca, admin) == "ok", self.apiserver)
        return url

    def _write_kubeconfig(self, user: str, token: str) -> Path:
        path = self.directory / f"{user}.kubeconfig"
        cluster = {"server": self.server, "certificate-authority": str(self.ca)}
        text = json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "clusters": [{"name": "lab", "cluster": cluster}],
                "users": [{"name": user, "user": {"token": token}}],
                "contexts": [{"name": "lab", "context": {"cluster": "lab", "user": user}}],
                "current-context": "lab",
            }
        )
        if path.exists() and path.read_text() == text:
            return path
        # The file is replaced atomically because other processes may be reading it.
        fresh = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
        fresh.touch(mode=0o600)
        fresh.write_text(text)
        fresh.rename(path)
        return path

    def environ(self) -> dict[str, str]:
        """Return variables that keep programs from writing elsewhere and from using a proxy."""
        address = self._serving.address
        return {"HOME": str(self.directory), "KUBECONFIG": "", "NO_PROXY": f"127.0.0.1,{address}"}


def free_port() -> int:
    for port in random.sample(_FREE_PORTS, 200):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise ControlPlaneError(f"no free port among {_FREE_PORTS.start} to {_FREE_PORTS.stop}")


def _wait_until(ready: Callable[[], bool], process: Process) -> None:
    """Wait for `ready`. Raises ControlPlaneError, with the log, after an exit or a timeout."""
    deadline = time.monotonic() + 90.0
    while not ready():
        if not process.running or time.monotonic() > deadline:
            text = process.log_tail()
            process.kill()
            raise ControlPlaneError(f"a program of the control plane does not come up:\n{text}")
        time.sleep(0.05)


def _answer(url: str, ca: Path, token: str) -> str:
    """Return the body of the answer; "" after an error."""
    asked = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"})
    try:
        tls = ssl.create_default_context(cafile=str(ca))
        handlers = (urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=tls))
        with urllib.request.build_opener(*handlers).open(asked, timeout=5) as answer:
            return str(answer.read().decode())
    except (OSError, ValueError, http.client.HTTPException):
        return ""
