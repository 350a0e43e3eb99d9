"""The command line: commands, flags, environment and the text of --help.

Each flag of `serve` has an environment variable, for example GPUSLICE_SCHEDULER_LOG_FORMAT for
`--log-format`. The flag has precedence. No other module reads the environment.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import os
import re
import signal
import sys
import time
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import uvloop

from gpuslice.contract import names
from gpuslice.contract.dialects import DIALECTS, KOORDINATOR
from gpuslice.kube import access
from gpuslice.kube.access import AccessError
from gpuslice.kube.client import Kube
from gpuslice.kube.log_lines import Format, Formatter, Line
from scheduler import service, simulate_command, uninstall_command
from scheduler.claims.controller import Templates
from scheduler.core.request import Policy
from scheduler.endpoint import Address
from scheduler.service import Settings
from scheduler.simulate_command import dialects

_LOG: Final = logging.getLogger("scheduler")

PROG: Final = "python -m scheduler"
PREFIX: Final = "GPUSLICE_SCHEDULER_"

_HELP: Final = f"""\
gpuslice's scheduler: an extender of the stock kube-scheduler. kube-scheduler selects the node; the
extender selects the GPU, and writes it in the request that binds the pod.

python -m scheduler serve: run the extender, in kube-scheduler's pod
python -m scheduler simulate -f pod.yaml --from-cluster: show where a pod would be placed, and why
python -m scheduler uninstall: remove what the agents wrote into the cluster's objects

Pods select it by `schedulerName: {names.SCHEDULER_NAME}`. docs/requests.md lists what they may
request; docs/scheduling.md describes how to run it.
"""
_SERVE: Final = """\
Serve kube-scheduler until SIGTERM.

Several replicas may run. The replica whose kube-scheduler holds the Lease
gpuslice-system/gpuslice-kube-scheduler binds: its holder is named after this host. The others are
ready standbys. On SIGTERM it finishes pending work. The log goes to standard error.

Its lines on standard output: "extender: http://...", the address for kube-scheduler; "serving:
http://...", the address of --http; and "ready: ...", after it has read the cluster's state.
"""


def main(
    arguments: Sequence[str], environment: Mapping[str, str] = os.environ, prog: str = PROG
) -> int:
    """Run the command and return the exit status. argparse exits after --help or an error."""
    flags = parser(environment, prog).parse_args(arguments)
    status: int = flags.run(flags)
    return status


def parser(environment: Mapping[str, str], prog: str = PROG) -> ArgumentParser:
    known = ArgumentParser(
        prog=prog, description=_HELP, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = known.add_subparsers(metavar="COMMAND", required=True)
    for name, text, add_flags, run in (
        ("serve", _SERVE, lambda command: _add_flags(command, environment), serve),
        ("simulate", simulate_command.HELP, simulate_command.add_flags, simulate_command.run),
        ("uninstall", uninstall_command.HELP, uninstall_command.add_flags, uninstall_command.run),
    ):
        command = commands.add_parser(
            name,
            help=text.partition("\n")[0],
            description=text,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        add_flags(command)
        command.set_defaults(run=run)
    return known


def variable(flag: str) -> str:
    return PREFIX + flag.removeprefix("--").upper().replace("-", "_")


def _add_flags(command: ArgumentParser, environment: Mapping[str, str]) -> None:
    def add(flag: str, default: str, text: str, **more: Any) -> None:
        written = environment.get(variable(flag)) or default
        shown = f"{text} (default: {default})" if default else text
        command.add_argument(flag, default=written, help=shown, **more)

    _add_addresses(add)
    add(
        "--policy",
        "",
        f"Policy for pods of this schedulerName without the annotation {names.ANNOTATION_POLICY}:"
        " binpack (the default), spread or first. Repeatable; in the environment separated by"
        " blanks.",
        metavar="NAME=POLICY",
        dest="policies",
        type=policies,
        action=_Merge,
    )
    add(
        "--dialects",
        KOORDINATOR.name,
        "Dialects in which pods may request shares, separated by commas:"
        f" {', '.join(each.name for each in DIALECTS)}. A pod in another one is refused.",
        metavar="NAMES",
        type=dialects,
    )
    add(
        "--kube-scheduler-version",
        "",
        "Version of kube-scheduler, such as v1.36.3. The log and /readyz say if the API server does"
        " not support it.",
        metavar="VERSION",
    )
    add("--log-format", Format.LOGFMT.value, "Format of log lines: logfmt or json.", type=Format)
    for flag, text in (
        ("--claim-templates", "Only make templates of pods' claims (docs/claims.md), no extender."),
        ("--queues", "Serve KAI's Queue objects by Kueue, in the replica that binds."),
        ("--verbose", "Log routine operations too."),
    ):
        is_set = environment.get(variable(flag), "").lower() in ("1", "true")
        command.add_argument(flag, action="store_true", default=is_set, help=text)


def _add_addresses(add: Callable[..., None]) -> None:
    add(
        "--kubeconfig",
        "",
        "Configuration for the API server. Default: the pod's service account, else kubectl's.",
        metavar="FILE",
    )
    add(
        "--listen",
        "127.0.0.1:9444",
        "Address of /filter, /prioritize, /preempt and /bind, for kube-scheduler. Any process that"
        " can connect to it can bind pods.",
        metavar="HOST:PORT",
        type=address,
    )
    add(
        "--http",
        "0.0.0.0:9445",
        "Address of /livez, /readyz, /metrics and /debug/fleet; off: do not serve them.",
        metavar="HOST:PORT",
        type=address_or_off,
    )
    add(
        "--kube-scheduler",
        "127.0.0.1:10259",
        "Address of kube-scheduler's own pages, for /livez/kube-scheduler.",
        metavar="HOST:PORT",
        type=address,
    )


class _Merge(argparse.Action):
    """Merges the values of a repeated flag. The default counts only where the flag is absent."""

    def __call__(
        self, parser: ArgumentParser, namespace: Namespace, value: Any, option: str | None = None
    ) -> None:
        before = getattr(namespace, self.dest)
        setattr(namespace, self.dest, value if before is self.default else {**before, **value})


# --- values of flags


def address(text: str, allowed: str = "HOST:PORT") -> Address:
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not re.fullmatch("[0-9]{1,5}", port) or int(port) > 65535:
        raise ArgumentTypeError(f"invalid value {text!r}: must be {allowed}")
    return host, int(port)


def address_or_off(text: str) -> Address | None:
    return None if text == "off" else address(text, "HOST:PORT or off")


def policies(text: str) -> Mapping[str, Policy]:
    """Parse one or more NAME=POLICY, separated by blanks."""
    known = {each.value: each for each in Policy}
    policy_of = {}
    for each in text.split():
        name, _, policy = each.partition("=")
        if not name or policy not in known:
            allowed = " or ".join(f"NAME={each}" for each in known)
            raise ArgumentTypeError(f"invalid value {text!r}: must be {allowed}")
        policy_of[name] = known[policy]
    return policy_of


# --- serve


def serve(flags: Namespace) -> int:
    settings = Settings(**{name: each for name, each in vars(flags).items() if name != "run"})
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(Formatter(settings.log_format))
    logging.basicConfig(handlers=[handler], level=logging.INFO)
    _LOG.setLevel(logging.DEBUG if settings.verbose else logging.INFO)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_serve(settings))
    except (AccessError, OSError) as error:
        _LOG.error(Line("cannot serve", error=error))
        return 1
    except Exception:
        # This is a defect of the program: State may be wrong. The kubelet restarts the process.
        _LOG.exception("failed")
        return 1
    _LOG.info("stopped")
    return 0


async def _serve(settings: Settings) -> None:
    leaving = asyncio.Event()
    loop = asyncio.get_running_loop()
    task = asyncio.current_task()
    assert task is not None

    def leave() -> None:
        """Finish pending work after the first signal, and stop at once after the second."""
        if leaving.is_set() or settings.claim_templates:
            task.cancel()
        leaving.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, leave)

    def load() -> access.Access:
        return access.load(settings.kubeconfig)

    async with Kube(load(), load, user_agent="gpuslice-scheduler") as kube:
        with contextlib.suppress(asyncio.CancelledError):
            if settings.claim_templates:
                await Templates(kube, time.monotonic).run()
            else:
                await service.run(settings, kube, leaving, announce)


def announce(line: str) -> None:
    # The service must continue even if its parent has closed the pipe of stdout.
    with contextlib.suppress(BrokenPipeError):
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()
