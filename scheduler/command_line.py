"""The command line: flags, environment and the text of --help.

Each flag has a variable (`--log-format`: GPUSLICE_SCHEDULER_LOG_FORMAT); the flag has precedence.
No other module reads arguments or environment.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import signal
import sys
from collections.abc import Sequence
from typing import Annotated, Any, Final

import typer
import uvloop

from gpuslice.contract import names
from gpuslice.contract.dialects import DIALECTS, KOORDINATOR
from gpuslice.kube import access
from gpuslice.kube.access import AccessError
from gpuslice.kube.client import Kube
from gpuslice.kube.log_lines import Format, Formatter, Line
from scheduler import service
from scheduler.core.request import Policy
from scheduler.endpoint import Address
from scheduler.service import Settings
from scheduler.simulate_command import FlagError, enabled, simulate_command
from scheduler.uninstall_command import uninstall_command

_LOG: Final = logging.getLogger("scheduler")

PREFIX: Final = "GPUSLICE_SCHEDULER_"

_DIALECTS: Final = [each.name for each in DIALECTS]

_HELP: Final = f"""\
gpuslice's scheduler: an extender of the stock kube-scheduler. kube-scheduler selects the node; the
extender selects the GPU, and writes it in the request that binds the pod.

`python -m scheduler serve`: run the extender, in kube-scheduler's pod

`python -m scheduler simulate -f pod.yaml --from-cluster`: show where a pod would be placed, and why

`python -m scheduler uninstall`: remove what the agents wrote into the cluster's objects

Pods select it by `schedulerName: {names.SCHEDULER_NAME}`. docs/requests.md lists what they may
request; docs/scheduling.md describes how to run it.
"""

application = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
    help=_HELP,
)


def address(flag: str, text: str, allowed: str = "HOST:PORT") -> Address:
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not re.fullmatch("[0-9]{1,5}", port) or int(port) > 65535:
        raise FlagError(flag, f"invalid value {text!r}: must be {allowed}")
    return host, int(port)


def address_or_off(flag: str, text: str) -> Address | None:
    return None if text == "off" else address(flag, text, "HOST:PORT or off")


def policies(given: Sequence[str]) -> dict[str, Policy]:
    found = {}
    for text in given:
        name, equals, policy = text.partition("=")
        known = {each.value: each for each in Policy}
        if not equals or not name or policy not in known:
            allowed = " or ".join(f"NAME={each}" for each in known)
            raise FlagError("--policy", f"invalid value {text!r}: must be {allowed}")
        found[name] = known[policy]
    return found


def _variable(name: str) -> str:
    return PREFIX + name.upper().replace("-", "_")


def _option(name: str, text: str, **more: Any) -> Any:
    return typer.Option(f"--{name}", envvar=_variable(name), help=text, **more)


Kubeconfig = Annotated[
    str,
    _option(
        "kubeconfig",
        "Configuration for the API server. Default: the pod's service account, else kubectl's.",
        metavar="FILE",
        show_default=False,
    ),
]


@application.command()
def serve(
    kubeconfig: Kubeconfig = "",
    listen: Annotated[
        str,
        _option(
            "listen",
            "Address of /filter, /prioritize, /preempt and /bind, for kube-scheduler. Any process"
            " that can connect to it can bind pods.",
            metavar="HOST:PORT",
        ),
    ] = "127.0.0.1:9444",
    http: Annotated[
        str,
        _option(
            "http",
            "Address of /livez, /readyz, /metrics and /debug/fleet; off: do not serve them.",
            metavar="HOST:PORT",
        ),
    ] = "0.0.0.0:9445",
    policy: Annotated[
        list[str] | None,
        _option(
            "policy",
            "Policy for pods of this schedulerName without the annotation"
            f" {names.ANNOTATION_POLICY}: binpack (the default), spread or first. Repeatable; in"
            " the environment separated by blanks.",
            metavar="NAME=POLICY",
            show_default=False,
        ),
    ] = None,
    dialects: Annotated[
        str,
        _option(
            "dialects",
            "Dialects in which pods may request shares, separated by commas:"
            f" {', '.join(_DIALECTS)}. A pod in another one is refused.",
            metavar="NAMES",
        ),
    ] = KOORDINATOR.name,
    log_format: Annotated[Format, _option("log-format", "Format of log lines.")] = Format.LOGFMT,
    verbose: Annotated[bool, _option("verbose", "Log routine operations too.")] = False,
) -> None:
    """Serve kube-scheduler until SIGTERM.

    Several replicas may run. The replica whose kube-scheduler holds the Lease
    gpuslice-system/gpuslice-kube-scheduler binds: its holder is named after this host. The others
    are ready standbys. On SIGTERM it finishes pending work. The log goes to standard error.

    Its lines on standard output: "extender: http://...", the address for kube-scheduler; "serving:
    http://...", the address of --http; and "ready: ...", after it has read the cluster's state.
    """
    settings = Settings(
        kubeconfig=kubeconfig,
        listen=address("--listen", listen),
        http=address_or_off("--http", http),
        policies=policies(policy or ()),
        dialects=enabled(dialects),
        log_format=log_format,
        verbose=verbose,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(Formatter(settings.log_format))
    logging.basicConfig(handlers=[handler], level=logging.INFO)
    logging.getLogger("scheduler").setLevel(logging.DEBUG if verbose else logging.INFO)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_serve(settings))
    except (AccessError, OSError) as error:
        _LOG.error(Line("cannot serve", error=error))
        raise typer.Exit(1) from None
    except Exception:
        # A defect of this program: State is not reliable. The kubelet restarts the process.
        _LOG.exception("failed")
        raise typer.Exit(1) from None
    _LOG.info("stopped")


async def _serve(settings: Settings) -> None:
    leaving = asyncio.Event()
    loop = asyncio.get_running_loop()
    task = asyncio.current_task()
    assert task is not None

    def leave() -> None:
        """The first signal finishes pending work; the second one stops at once."""
        if leaving.is_set():
            task.cancel()
        leaving.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, leave)

    def load() -> access.Access:
        return access.load(settings.kubeconfig)

    async with Kube(load(), load, user_agent="gpuslice-scheduler") as kube:
        with contextlib.suppress(asyncio.CancelledError):
            await service.run(settings, kube, leaving, announce)


def announce(line: str) -> None:
    # The parent may have closed the pipe; that must not stop the service.
    with contextlib.suppress(BrokenPipeError):
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()


application.command(name="simulate")(simulate_command)
application.command(name="uninstall")(uninstall_command)
