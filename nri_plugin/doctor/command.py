"""The command: flags and output. One line per check, or JSON; exit status 1 if a check fails."""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Final

from gpuslice.kube.log_lines import printable
from nri_plugin import command_line
from nri_plugin.doctor import host, host_kernel
from nri_plugin.doctor.checks import examine
from nri_plugin.doctor.facts import Finding, Level
from nri_plugin.flags import absolute

_DESCRIPTION: Final = """\
Checks whether the agent can work on this node, and prints for each check the result and what to
change. It changes nothing. Give it the settings of the agent, by flags or environment; without
flags it takes those of the agent that runs in the same pod. Settings of the agent that are not
listed here are accepted, and have no effect.
"""
_EPILOG: Final = """\
The exit status is 1 if a check fails; warnings do not change it.

examples:
  gpuslice doctor
  kubectl exec -n gpuslice-system ds/gpuslice-agent -- python -m nri_plugin doctor --json
"""
_USES: Final = (
    *("--library", "--host-root", "--nri-socket", "--run-dir", "--containerd-state", "--cdi-dir"),
    *("--cdi-kind", "--driver-capabilities", "--whole-gpus", "--kubelet-dir", "--dialects"),
    *("--nvidia-ctk", "--driver-root", "--http", "--memory-limits", "--cgroup-root"),
)
_INDENT: Final = " " * 8


def main(
    arguments: Sequence[str],
    environment: Mapping[str, str] = os.environ,
    prog: str = command_line.PROG,
) -> int:
    logging.getLogger().addHandler(logging.NullHandler())
    known = parser(prog)
    if set(arguments) <= {"--json"}:
        arguments = (*host_kernel.agent_arguments(), *arguments)
    options = command_line.parse(known, arguments, environment)
    settings = command_line.settings_of(options, environment)
    configs = (options.containerd_config, options.nvidia_config)
    findings = examine(host.collect(settings, options.library, *configs))
    sys.stdout.write(as_json(findings) if options.json else as_text(findings))
    return int(any(finding.level is Level.FAIL for finding in findings))


def parser(prog: str = command_line.PROG) -> argparse.ArgumentParser:
    known = command_line.command_parser(f"{prog} doctor", _DESCRIPTION, _EPILOG, _USES)
    known.add_argument(
        "--containerd-config",
        type=Path,
        metavar="PATH",
        help="containerd's configuration (default: what the running containerd was given)",
    )
    known.add_argument(
        "--nvidia-config",
        type=absolute,
        default=Path("/etc/nvidia-container-runtime/config.toml"),
        metavar="PATH",
        help="configuration of NVIDIA's container toolkit"
        " (default: /etc/nvidia-container-runtime/config.toml)",
    )
    known.add_argument("--json", action="store_true", help="print the findings as JSON")
    return known


def as_text(findings: Sequence[Finding]) -> str:
    lines = []
    for finding in findings:
        text = printable(finding.found)
        lines.append(f"{finding.level:<5} {finding.check}: {text}")
        if finding.do:
            # Instructions may have several lines, but a finding has only one.
            first, *rest = (printable(line) for line in finding.do.splitlines())
            lines.append(f"{_INDENT}do: {first}")
            lines += [f"{_INDENT}    {line}" for line in rest]
    return "\n".join(lines) + "\n"


def as_json(findings: Sequence[Finding]) -> str:
    failed = any(finding.level is Level.FAIL for finding in findings)
    return json.dumps({"ok": not failed, "checks": [asdict(each) for each in findings]}) + "\n"
