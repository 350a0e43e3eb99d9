"""Reads a kubeconfig of the usual kind without the `kubernetes` package, which takes a second to
import. `read` returns None for others: several files, a credential plugin, a password.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

import yaml

from gpuslice.kube.fields import NOTHING, Json, at, objects

DEFAULT: Final = "~/.kube/config"
_USER: Final = frozenset({"token", "tokenFile"}) | {
    *("client-certificate", "client-certificate-data", "client-key", "client-key-data")
}


def read(path: str, environ: Mapping[str, str], context_name: str) -> Mapping[str, Any] | None:
    """Return the fields of access.Access, with the proxy of the file. An absent text is "".
    context_name: "" for the file's current one."""
    file = Path(path or environ.get("KUBECONFIG") or DEFAULT).expanduser()
    try:
        raw = yaml.load(file.read_bytes(), getattr(yaml, "CSafeLoader", yaml.SafeLoader))
        context = _named(raw, "contexts", "context", context_name or raw["current-context"])
        cluster = _named(raw, "clusters", "cluster", context.get("cluster"))
        user = _named(raw, "users", "user", context.get("user"))
        if not cluster.get("server") or user.keys() - _USER:
            return None
        base = file.absolute().parent
        token = user.get("token", "")
        if user.get("tokenFile"):
            token = (base / user["tokenFile"]).read_text()
        return {
            "server": str(cluster["server"]).rstrip("/"),
            "authorization": f"Bearer {str(token).strip()}" if token else "",
            "ca_file": _file(cluster, "certificate-authority", base),
            "certificate_file": _file(user, "client-certificate", base),
            "key_file": _file(user, "client-key", base),
            "server_name": str(cluster.get("tls-server-name") or ""),
            "proxy": str(cluster.get("proxy-url") or ""),
            "verify": not cluster.get("insecure-skip-tls-verify"),
            "namespace": str(context.get("namespace") or ""),
        }
    except (yaml.YAMLError, OSError, AttributeError, LookupError, TypeError, ValueError):
        return None


def _named(raw: Json, key: str, kind: str, name: object) -> Json:
    return next((at(each, kind) for each in objects(raw, key) if each.get("name") == name), NOTHING)


def _file(raw: Json, key: str, base: Path) -> str:
    """Return the path of the file, or of one with the data, which precedes it as in kubectl."""
    if data := raw.get(f"{key}-data"):
        return _of_data(base64.b64decode(data))
    return str(base / raw[key]) if raw.get(key) else ""


@cache
def _of_data(data: bytes) -> str:
    """Return the path of a file in memory, because TLS reads certificates from files only."""
    descriptor = os.memfd_create("kubeconfig")
    os.write(descriptor, data)
    return f"/proc/self/fd/{descriptor}"
