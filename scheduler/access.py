"""Where the API server is and how to speak to it, as the `kubernetes` package's loader finds it.

Reads files and may run a credential plugin, so it blocks: the client calls it in a thread, again
every minute, since tokens and certificates are replaced in their files while we run. Nothing else
of that package is used.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit
from urllib.request import proxy_bypass

import yaml
from kubernetes import config
from kubernetes.client import Configuration
from kubernetes.config.incluster_config import InClusterConfigLoader

SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Where the kubelet puts a pod's token and keeps it fresh."""

_UNUSABLE: Final = (
    *(config.ConfigException, yaml.YAMLError, OSError),
    *(AttributeError, LookupError, TypeError, ValueError),
)
"""What the loader raises for files that are not what they should be."""


class AccessError(RuntimeError):
    """There is no API server to speak to, or no way to: the text says what was looked at."""


@dataclass(frozen=True, slots=True)
class Access:
    """token: "" for none. Files: "" for none. changed: of each file, when it was written last, so
    that two readings are equal only where nothing was replaced."""

    server: str
    authorization: str = ""
    ca_file: str = ""
    certificate_file: str = ""
    key_file: str = ""
    server_name: str = ""
    proxy: str = ""
    verify: bool = True
    changed: tuple[int, ...] = ()

    def context(self) -> ssl.SSLContext | None:
        """None where the server speaks HTTP without TLS."""
        if not self.server.startswith("https"):
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
) -> Access:
    """By the kubeconfig where one is named, else as a pod of the cluster, else as kubectl does.

    Raises AccessError.
    """
    found = Configuration()
    in_pod = not kubeconfig and bool(environ.get("KUBERNETES_SERVICE_HOST"))
    try:
        if in_pod:
            token, ca = str(service_account / "token"), str(service_account / "ca.crt")
            loader = InClusterConfigLoader(token, ca, True, environ)  # type: ignore[no-untyped-call]
            loader.load_and_set(found)  # type: ignore[no-untyped-call]
        else:
            config.load_kube_config(  # type: ignore[no-untyped-call]
                config_file=kubeconfig or None, client_configuration=found
            )
        authorization = str(found.get_api_key_with_prefix("BearerToken") or "").strip()
    except _UNUSABLE as error:
        where = f"kubeconfig {kubeconfig}" if kubeconfig else "kubeconfig or service account"
        raise AccessError(f"{where}: {error}") from error
    files = [str(each or "") for each in (found.ssl_ca_cert, found.cert_file, found.key_file)]
    return Access(
        server=str(found.host).rstrip("/"),
        authorization=authorization,
        ca_file=files[0],
        certificate_file=files[1],
        key_file=files[2],
        server_name=str(found.tls_server_name or ""),
        proxy="" if in_pod else _proxy(found),
        verify=bool(found.verify_ssl),
        changed=tuple(os.stat(each).st_mtime_ns for each in files if each),
    )


def _proxy(found: Configuration) -> str:
    """The kubeconfig's or the environment's; none within a cluster, where the address is a
    service's, and none for hosts that NO_PROXY names."""
    host = urlsplit(str(found.host)).hostname or ""
    bypassed = proxy_bypass(host, {"no": str(found.no_proxy or "")})
    return "" if bypassed else str(found.proxy or "")
