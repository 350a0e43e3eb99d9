"""The configuration of the lab's containerd, in the version of the format that a release reads.

Pure. Every path is below the given directory, except the shims' sockets of releases whose directory
for these is fixed (see containerd.py).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tools.programs import Release

PAUSE_IMAGE: Final = "docker.io/local/pause:1"


@dataclass(frozen=True, slots=True)
class Options:
    """Options of a node's operator. validator: enable NRI's default validator (default: off).

    default_runtime: the handler of NVIDIA's runtime (installed by host.py), which becomes the
    default runtime; "": runc is the default.
    """

    validator: bool = True
    request_timeout_s: int = 2
    """How many seconds a plugin may take for an answer; containerd's default."""
    required_plugins: Sequence[str] = ()
    """Plugins that the validator requires of every container. The annotation `toleration` of a pod
    exempts its containers."""
    toleration: str = ""
    default_runtime: str = ""


_COMMON: Final = """\
version = {config_version}
root = "{directory}/root/containerd"
state = "{directory}/state"
temp = "{directory}/root/tmp"

[grpc]
  address = "{directory}/c.sock"
[ttrpc]
  address = "{directory}/c.ttrpc"
[plugins.'io.containerd.nri.v1.nri']
  disable = false
  socket_path = "{directory}/nri/nri.sock"
  plugin_path = "{directory}/nri/plugins"
  plugin_config_path = "{directory}/nri/conf.d"
  plugin_request_timeout = "{request_timeout_s}s"
[plugins.'io.containerd.internal.v1.opt']
  path = "{directory}/opt"
"""

# runc may lack the right to lower oom_score_adj. The handler kata runs runc, too, under the
# name of a sandboxed runtime. Before a container runs, only the name shows the runtime's kind.
_CRI: Final = """\
[plugins.'{cri}']
  restrict_oom_score_adj = true
  netns_mounts_under_state_dir = true
  cdi_spec_dirs = ["{directory}/cdi"]
  {keys}
  [plugins.'{cri}'.cni]
    {programs}
    conf_dir = "{directory}/cni/conf"
"""
_RUNTIME: Final = """\
  [plugins.'{cri}'.containerd.runtimes.{handler}]
    runtime_type = "io.containerd.runc.v2"
    [plugins.'{cri}'.containerd.runtimes.{handler}.options]
      Root = "{directory}/runc"
      SystemdCgroup = false
"""
_PINNED: Final = """\
[plugins.'io.containerd.cri.v1.images'.pinned_images]
  sandbox = "{pause}"
"""

_VALIDATOR: Final = """\
[plugins.'io.containerd.nri.v1.nri'.default_validator]
  enable = {validator}
  required_plugins = {required_plugins}
  tolerate_missing_plugins_annotation = "{toleration}"
"""

# Without this setting, the shims' sockets are below /run/containerd, whatever `state` is.
_SOCKET_DIR: Final = """\
[plugins.'io.containerd.shim.v1.manager']
  socket_dir = "{directory}/s"
"""


def text(release: Release, directory: Path, options: Options) -> str:
    """Return the whole file."""
    names = {"directory": directory, "pause": PAUSE_IMAGE}
    if release.config_version == 2:
        cri, pinned = "io.containerd.grpc.v1.cri", ""
        keys = f'enable_cdi = true\n  sandbox_image = "{PAUSE_IMAGE}"'
        programs = f'bin_dir = "{directory}/cni/bin"'
    else:
        cri, pinned, keys = "io.containerd.cri.v1.runtime", _PINNED, ""
        programs = f'bin_dirs = ["{directory}/cni/bin"]'
    runtimes = [_RUNTIME.format(cri=cri, handler=each, **names) for each in ("runc", "kata")]
    cri_text = _CRI.format(cri=cri, keys=keys, programs=programs, **names) + "".join(runtimes)
    parts = [_COMMON, pinned, _VALIDATOR * release.has_validator]
    parts.append(_SOCKET_DIR * release.has_socket_dir)
    return (
        "".join(parts).format(
            config_version=release.config_version,
            request_timeout_s=options.request_timeout_s,
            validator=str(options.validator).lower(),
            required_plugins=json.dumps(list(options.required_plugins)),
            toleration=options.toleration,
            **names,
        )
        + cri_text
    )


_HOST: Final = """\
version = 3
imports = ["/etc/containerd/conf.d/*.toml"]

[plugins.'io.containerd.cri.v1.runtime']
  restrict_oom_score_adj = true
[plugins.'io.containerd.cri.v1.images'.registry]
  config_path = "/etc/containerd/certs.d"
[plugins.'io.containerd.nri.v1.nri']
  disable = false
  [plugins.'io.containerd.nri.v1.nri'.default_validator]
    enable = {validator}
"""

_NVIDIA: Final = """\
[plugins.'io.containerd.cri.v1.runtime'.containerd]
  default_runtime_name = "{handler}"
  [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.{handler}]
    runtime_type = "io.containerd.runc.v2"
    [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.{handler}.options]
      BinaryName = "/usr/bin/nvidia-container-runtime"
"""


def of_host(options: Options) -> str:
    """Return containerd's default configuration, changed only as a machine without a network
    requires. NRI is on by default since containerd 2.0."""
    text = _HOST + _PINNED + _NVIDIA * bool(options.default_runtime)
    return text.format(
        pause=PAUSE_IMAGE, validator=str(options.validator).lower(), handler=options.default_runtime
    )
