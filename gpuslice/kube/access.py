"""Address and credentials of the API server: a pod's service account, or a kubeconfig.

Blocks: `load` reads files and may run a credential plugin. The client calls it in a thread, and
again every minute, because tokens and certificates are replaced in their files.
The `kubernetes` package reads kubeconfigs that kubeconfig.py cannot. It takes 18 MiB and a second,
so it is imported only then.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import yaml

from gpuslice.kube import kubeconfig as plain
from gpuslice.kube.addresses import host_port

SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Directory in which the kubelet writes and refreshes a pod's token."""

_UNUSABLE: Final = (yaml.YAMLError, OSError, AttributeError, LookupError, TypeError, ValueError)
"""Exceptions of the `kubernetes` package for malformed files, in addition to ConfigException."""


class AccessError(RuntimeError):
    """No API server is configured, or the configuration is unusable; the text names its source."""


@dataclass(frozen=True, slots=True)
class Access:
    """How to reach the API server. An absent text is "". namespace: the kubeconfig's context names
    it. changed: each file's modification time; therefore two loads are equal only if no file was
    replaced."""

    server: str
    authorization: str = ""
    ca_file: str = ""
    certificate_file: str = ""
    key_file: str = ""
    server_name: str = ""
    proxy: str = ""
    verify: bool = True
    namespace: str = ""
    changed: tuple[int, ...] = ()

    def context(self) -> ssl.SSLContext | None:
        """Return the TLS context, or None if the server speaks HTTP without TLS."""
        if urlsplit(self.server).scheme != "https":
            return None
        context = ssl.create_default_context(cafile=self.ca_file or None)
        if self.certificate_file:
            context.load_cert_chain(self.certificate_file, self.key_file or None)
        if not self.verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context


def load(
    kubeconfig: str = "",
    environ: Mapping[str, str] = os.environ,
    service_account: Path = SERVICE_ACCOUNT,
    context: str = "",
) -> Access:
    """Return the access from the named kubeconfig or context, else from the pod's service account,
    else from kubectl's defaults. Raises AccessError."""
    if not kubeconfig and not context and environ.get("KUBERNETES_SERVICE_HOST"):
        return _as_pod(environ, service_account)
    fields = plain.read(kubeconfig, environ, context)
    found = Access(**fields) if fields else _as_kubectl(kubeconfig, context)
    server, proxies = urlsplit(found.server), getproxies()
    proxy = found.proxy or proxies.get(server.scheme, proxies.get("all", ""))
    bypassed = proxy_bypass(server.hostname or "", {"no": proxies.get("no", "")})
    files = (found.ca_file, found.certificate_file, found.key_file)
    try:
        changed = tuple(os.stat(each).st_mtime_ns for each in files if each)
    except OSError as error:
        raise AccessError(f"kubeconfig {kubeconfig}: {error}") from error
    return replace(found, proxy="" if bypassed else proxy, changed=changed)


def _as_pod(environ: Mapping[str, str], service_account: Path) -> Access:
    """Return the service account's access. The server is within the cluster: no proxy is used."""
    host, port = environ["KUBERNETES_SERVICE_HOST"], environ.get("KUBERNETES_SERVICE_PORT", "443")
    token_file, ca_file = service_account / "token", service_account / "ca.crt"
    try:
        token = token_file.read_text().strip()
        if not token:
            raise AccessError(f"service account: {token_file} is empty")
        changed = (os.stat(ca_file).st_mtime_ns,)
    except (OSError, ValueError) as error:
        raise AccessError(f"service account: {error}") from error
    return Access(
        server=f"https://{host_port(host, port)}",
        authorization=f"Bearer {token}",
        ca_file=str(ca_file),
        changed=changed,
    )


def _as_kubectl(kubeconfig: str, context: str) -> Access:
    where = f"kubeconfig {kubeconfig}" if kubeconfig else "kubeconfig or service account"
    try:
        from kubernetes import config
        from kubernetes.client import Configuration
    except ModuleNotFoundError as error:
        raise AccessError(
            f"{where}: the Python package kubernetes, which reads a kubeconfig, is not installed; "
            "the images lack it: a pod uses its service account"
        ) from error
    cluster = Configuration()
    try:
        config.load_kube_config(  # type: ignore[no-untyped-call]
            config_file=kubeconfig or None, context=context or None, client_configuration=cluster
        )
        contexts, chosen = config.list_kube_config_contexts(  # type: ignore[no-untyped-call]
            kubeconfig or None
        )
        chosen = next((each for each in contexts if each["name"] == context), chosen)
        authorization = str(cluster.get_api_key_with_prefix("BearerToken") or "").strip()
    except (config.ConfigException, *_UNUSABLE) as error:
        raise AccessError(f"{where}: {error}") from error
    files = [str(each or "") for each in (cluster.ssl_ca_cert, cluster.cert_file, cluster.key_file)]
    return Access(
        server=str(cluster.host).rstrip("/"),
        authorization=authorization,
        ca_file=files[0],
        certificate_file=files[1],
        key_file=files[2],
        server_name=str(cluster.tls_server_name or ""),
        proxy=str(cluster.proxy or ""),
        verify=bool(cluster.verify_ssl),
        namespace=str(chosen["context"].get("namespace") or ""),
    )
