"""The text form of network addresses in URLs, logs and flags."""

from __future__ import annotations


def host_port(host: str, port: int | str) -> str:
    """Return HOST:PORT. An IPv6 address needs brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
