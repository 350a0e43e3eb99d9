"""A link between this machine and a network namespace of the lab's, and the pods' network in it.

The machine has one interface of the link, with one address and a route to the pods. The node's
interface, its bridge and its pods' interfaces are in the namespace. When the namespace ends, all of
them end. Node and pods reach only this machine, because nothing else is routed.
"""

from __future__ import annotations

import json
import random
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

_NODE_INTERFACE: Final = "eth0"
ADDRESSES: Final = "198.18.0.0/15"
"""Addresses of links and pods. The range is reserved for benchmarks and not routed."""
_NUMBERS: Final = range(1, 255)
"""Values for the third byte of a link's addresses."""
_PROXIES: Final = ("http_proxy", "https_proxy", "all_proxy")

Run = Callable[[Sequence[str | Path]], subprocess.CompletedProcess[str]]


class NetworkError(RuntimeError):
    """The link cannot be made. The text is the output of the program ip."""


@dataclass(frozen=True, slots=True)
class Link:
    """One link. number: distinguishes its names and addresses from other links'."""

    number: int

    @property
    def interface(self) -> str:
        """The interface at this machine's end."""
        return f"gpuslice{self.number}"

    @property
    def machine(self) -> str:
        """This machine's address on the link."""
        return f"198.18.{self.number}.1"

    @property
    def node(self) -> str:
        return f"198.18.{self.number}.2"

    @property
    def pods(self) -> str:
        return f"198.19.{self.number}.0/24"


def connect(pid: int, inside: Run) -> Link:
    """Link this machine to the network namespace of process `pid`. inside: runs a command there.

    Raises NetworkError.
    """
    refused = ""
    for number in random.sample(_NUMBERS, 20):
        link = Link(number)
        # Skip addresses that a specific route of this machine covers.
        listed = _ip("-json", "route", "get", link.node)
        routes = json.loads(listed.stdout) if listed.returncode == 0 else []
        if routes and not any("gateway" in route for route in routes):
            continue
        peer = ("peer", "name", _NODE_INTERFACE, "netns", str(pid))
        made = _ip("link", "add", link.interface, "type", "veth", *peer)
        if made.returncode != 0:
            refused = made.stderr.strip()
            continue
        outer = ("dev", link.interface)
        inner = ("dev", _NODE_INTERFACE)
        for done in (
            _ip("address", "add", f"{link.machine}/30", *outer),
            _ip("link", "set", *outer, "up"),
            inside(["ip", "link", "set", "dev", "lo", "up"]),
            inside(["ip", "address", "add", f"{link.node}/30", *inner]),
            inside(["ip", "link", "set", *inner, "up"]),
            inside(["ip", "route", "add", "default", "via", link.machine]),
            _ip("route", "add", link.pods, "via", link.node, *outer),
        ):
            if done.returncode != 0:
                remove(link.interface)
                raise NetworkError(f"ip: {done.stderr.strip()}")
        return link
    raise NetworkError(f"no link into a network namespace: {refused or 'no addresses are free'}")


def remove(interface: str) -> None:
    """Remove the link if it exists. This also works if the namespace is gone and both ends of the
    link are on this machine."""
    _ip("link", "delete", "dev", interface)


def is_there(interface: str) -> bool:
    return _ip("link", "show", "dev", interface).returncode == 0


def unproxied(environ: Mapping[str, str]) -> dict[str, str]:
    """Return `environ` without proxies, for programs that reach only the lab's addresses."""
    return {name: value for name, value in environ.items() if name.lower() not in _PROXIES}


def proxied(environ: Mapping[str, str]) -> bool:
    return len(unproxied(environ)) < len(environ)


def pod_network(link: Link, kept: Path) -> dict[str, Any]:
    """Return CNI's configuration of the node's bridge. kept: a directory of assigned addresses."""
    ipam = {
        "type": "host-local",
        "dataDir": str(kept),
        "ranges": [[{"subnet": link.pods}]],
        "routes": [{"dst": "0.0.0.0/0"}],
    }
    bridge = {"type": "bridge", "bridge": "pods", "isGateway": True, "ipMasq": False, "ipam": ipam}
    return {"cniVersion": "1.0.0", "name": "pods", "plugins": [bridge]}


def _ip(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["ip", *arguments], text=True, capture_output=True)
