"""TLS client authentication of the control plane's etcd.

A client that can write to etcd bypasses all rights in Kubernetes. etcd listens on a port of this
machine, which every local user reaches, so it requires a client certificate. etcd and its clients
share one (certificate.py), whose key only the directory's owner can read. controlplane.py starts
etcd.
"""

from __future__ import annotations

import http.client
import ssl
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lab.cluster import certificate

_REQUEST_S = 5.0


def url(port: int) -> str:
    return f"https://127.0.0.1:{port}"


@dataclass(frozen=True, slots=True)
class Access:
    """The certificate and its key, in the control plane's directory."""

    directory: Path

    @property
    def certificate(self) -> Path:
        return self.directory / "etcd.crt"

    @property
    def key(self) -> Path:
        return self.directory / "etcd.key"

    def write(self) -> None:
        """Raises CertificateError."""
        certificate.make(self.certificate, self.key, certificate.ETCD)

    def options(self, port: int) -> Sequence[str]:
        """etcd's options. It has no peers, but requires a peer address."""
        shown, key = self.certificate, self.key
        return (
            *(f"--data-dir={self.directory / 'etcd'}", "--unsafe-no-fsync", "--log-level=warn"),
            *(f"--listen-client-urls={url(port)}", f"--advertise-client-urls={url(port)}"),
            *(f"--cert-file={shown}", f"--key-file={key}"),
            *("--client-cert-auth", f"--trusted-ca-file={shown}"),
            f"--listen-peer-urls={url(0)}",
            *(f"--peer-cert-file={shown}", f"--peer-key-file={key}"),
            *("--peer-client-cert-auth", f"--peer-trusted-ca-file={shown}"),
        )

    @property
    def client_options(self) -> Sequence[str]:
        """kube-apiserver's options."""
        return (
            *(f"--etcd-certfile={self.certificate}", f"--etcd-keyfile={self.key}"),
            f"--etcd-cafile={self.certificate}",
        )

    def members(self, port: int) -> str:
        """The members that etcd at that port lists; "" without an answer, or from another
        etcd."""
        try:
            return self.ask(port, "/v3/cluster/member/list", b"{}").decode()
        except (OSError, ValueError, http.client.HTTPException):
            return ""

    def ask(self, port: int, path: str, body: bytes) -> bytes:
        """etcd's answer over its JSON gateway. Raises OSError, HTTPException."""
        tls = ssl.create_default_context(cafile=str(self.certificate))
        tls.load_cert_chain(self.certificate, self.key)
        handlers = (urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=tls))
        asking = urllib.request.build_opener(*handlers)
        with asking.open(f"{url(port)}{path}", body, _REQUEST_S) as answer:
            content: bytes = answer.read()
        return content
