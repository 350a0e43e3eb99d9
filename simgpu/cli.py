"""The commands: up, down, status, fault.

Reads argv and the environment. Only this module starts or stops the daemon. A command prints what
it made and the command to run next. An error is one line on stderr, with exit status 1.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from gpuslice.contract import quantity
from simgpu import cdi, config, device_nodes
from simgpu.state_dir import StateDir, StateDirError
from simgpu.wire import Op

_PACKAGE: Final = Path(__file__).resolve().parent
# The libcuda that is always built, in lib/simgpu. Other generations are in lib/simgpu-VERSION.
_CUDA_VERSION: Final = 13000
_START_LIMIT_S: Final = 20.0
_STOP_LIMIT_S: Final = 10.0
_POLL_S: Final = 0.02

_DESCRIPTION: Final = (
    "A simulated NVIDIA driver: GPUs without hardware, for a laptop and for tests."
)
_EXAMPLE: Final = """\
example: start two GPUs, run nvidia-smi on them, and stop them
  python -m simgpu up --dir /tmp/sim
  export SIMGPU_DIR=/tmp/sim LD_LIBRARY_PATH=$PWD/build/dev/lib/simgpu
  build/dev/bin/nvidia-smi
  python -m simgpu down --dir /tmp/sim
"""
_UP_EXAMPLE: Final = """\
examples
  python -m simgpu up --dir /tmp/sim                             two GPUs of 40 GiB
  python -m simgpu up --dir /tmp/sim --gpu 24GiB                one GPU of 24 GiB
  python -m simgpu up --dir /tmp/sim --config my.toml            what my.toml describes
"""
_FAULT_EXAMPLE: Final = f"""\
examples
  python -m simgpu fault --dir /tmp/sim --gpu 0 lose            the GPU falls off the bus
  python -m simgpu fault --dir /tmp/sim --gpu 0 restore         and is back
  python -m simgpu fault --dir /tmp/sim --gpu 0 latency MEMORY_ALLOC 1000000
                                                                 each answer takes 1 ms longer
  python -m simgpu fault --dir /tmp/sim --gpu 0 latency cuMemAlloc_v2 1000000
                                                                 each call begins 1 ms later
  python -m simgpu fault --dir /tmp/sim --gpu 0 fail cuMemFree_v2 214 2
                                                                 two calls return 214 and do nothing
  python -m simgpu fault --dir /tmp/sim --gpu 0 recovery reset  NVML reports that the GPU needs a
                                                                 reset; none, reboot, drain-p2p and
                                                                 drain-and-reset likewise
operations for latency: {" ".join(op.name for op in Op)}, or the name of an entry
"""


class CommandError(Exception):
    """The command failed. The message names the reason and the remedy."""


def main(argv: Sequence[str] | None = None) -> int:
    arguments = _parser().parse_args(argv)
    try:
        state_dir = StateDir.at(arguments.dir)
        arguments.run(state_dir, arguments)
    except (CommandError, StateDirError, config.ConfigError) as error:
        sys.stderr.write(f"simgpu: {error}\n")
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        prog="python -m simgpu", description=_DESCRIPTION, epilog=_EXAMPLE, formatter_class=raw
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(name: str, run: Any, text: str, epilog: str = "") -> argparse.ArgumentParser:
        made = commands.add_parser(
            name, help=text, description=text, epilog=epilog, formatter_class=raw
        )
        default = os.environ.get("SIMGPU_DIR")
        made.add_argument(
            "--dir",
            type=Path,
            metavar="D",
            required=default is None,
            default=Path(default) if default else None,
            help="directory of the simulated host; made if absent (default: $SIMGPU_DIR)",
        )
        made.set_defaults(run=run)
        return made

    up = command("up", _up, "start the GPUs, in the background", _UP_EXAMPLE)
    up.add_argument("--config", type=Path, metavar="F", help="description of the host, TOML")
    up.add_argument(
        "--gpu", action="append", metavar="SIZE", help="one GPU of SIZE; repeat it for more"
    )
    up.add_argument("--foreground", action="store_true", help="stay, and log to stderr")
    up.add_argument(
        "--build-dir", type=Path, metavar="B", help="where lib/simgpu and bin/nvidia-smi were built"
    )
    command("down", _down, "stop the GPUs and remove their files")
    command("status", _status, "show the GPUs and what they hold")
    fault = command("fault", _fault, "inject a fault into a GPU", _FAULT_EXAMPLE)
    fault.add_argument("--gpu", type=int, required=True, metavar="MINOR")
    fault.add_argument("fault", choices=tuple(_FAULTS))
    fault.add_argument(
        "operands",
        nargs="*",
        help="CALL NS for latency; CALL CODE COUNT for fail; ACTION for recovery",
    )
    return parser


def _up(state_dir: StateDir, arguments: argparse.Namespace) -> None:
    host = config.load((arguments.config or config.DEFAULT_FILE).absolute())
    if arguments.gpu:
        host = host.with_gpus([config.parse_bytes(size, "--gpu") for size in arguments.gpu])
    state_dir.create()
    if arguments.foreground:
        _serve(state_dir, host, _driver(arguments.build_dir, host.cuda_version))
        return
    if state_dir.daemon_pid() is None:
        _start(state_dir, arguments)
    running = _ask(state_dir, {"op": "status"})
    if running["host"] != repr(host):
        raise CommandError(
            f"{state_dir.root} is up with other GPUs;"
            f" `python -m simgpu down --dir {state_dir.root}` first"
        )
    sys.stdout.write(_describe(state_dir, running))
    sys.stdout.write(_next_steps(state_dir, _driver(arguments.build_dir, host.cuda_version)))


def _serve(state_dir: StateDir, host: config.HostConfig, driver: cdi.Driver) -> None:
    # Only the daemon imports these modules: asyncio would double the start time of a command.
    import asyncio

    from simgpu import daemon

    logging.basicConfig(
        stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s"
    )
    lock = state_dir.lock()
    sockets = {gpu.minor: state_dir.gpu_socket(gpu.minor) for gpu in host.gpus}
    made = device_nodes.make(state_dir.device_nodes, sockets)
    nodes = state_dir.device_nodes if made else None
    beside = state_dir.cdi_spec.with_suffix(".new")
    beside.write_text(cdi.render(cdi.spec(host.gpus, sockets, driver, nodes)))
    beside.rename(state_dir.cdi_spec)
    try:
        asyncio.run(daemon.run(host, state_dir))
    finally:
        os.close(lock)


def _start(state_dir: StateDir, arguments: argparse.Namespace) -> None:
    command = [sys.executable, "-m", "simgpu", "up", "--foreground", "--dir", str(state_dir.root)]
    if arguments.config:
        command += ["--config", str(arguments.config.absolute())]
    for size in arguments.gpu or ():
        command += ["--gpu", size]
    if arguments.build_dir:
        command += ["--build-dir", str(arguments.build_dir.absolute())]
    with state_dir.log.open("ab") as output:
        child = subprocess.Popen(
            command,
            cwd=_PACKAGE.parent,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    deadline = time.monotonic() + _START_LIMIT_S
    while not _answers(state_dir):
        if child.poll() is not None and state_dir.daemon_pid() is None:
            raise CommandError(f"the daemon ended at its start: {_last_line(state_dir.log)}")
        if time.monotonic() > deadline:
            child.kill()
            raise CommandError(f"no answer within {_START_LIMIT_S:.0f} s; see {state_dir.log}")
        time.sleep(_POLL_S)


def _down(state_dir: StateDir, _: argparse.Namespace) -> None:
    pid = state_dir.daemon_pid()
    if pid is None:
        state_dir.remove()
        sys.stdout.write(f"simgpu was not up in {state_dir.root}\n")
        return
    # SIGTERM comes first. SIGKILL also ends a daemon that is stopped or stuck.
    for number in (signal.SIGTERM, signal.SIGKILL):
        _signal(pid, number)
        deadline = time.monotonic() + _STOP_LIMIT_S
        while state_dir.daemon_pid() == pid and time.monotonic() < deadline:
            time.sleep(_POLL_S)
        if state_dir.daemon_pid() != pid:
            state_dir.remove()
            sys.stdout.write(f"simgpu is down: nothing of it is left in {state_dir.root}\n")
            return
    raise CommandError(f"pid {pid} does not end")


def _signal(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return
    except PermissionError:
        raise CommandError(f"pid {pid} belongs to another user") from None


def _status(state_dir: StateDir, _: argparse.Namespace) -> None:
    if state_dir.daemon_pid() is None:
        raise CommandError(
            f"not up in {state_dir.root}; start it: python -m simgpu up --dir {state_dir.root}"
        )
    sys.stdout.write(_describe(state_dir, _ask(state_dir, {"op": "status"})))


_FAULTS: Final[dict[str, tuple[str, ...]]] = {
    "lose": (),
    "restore": (),
    "latency": ("call", "ns"),
    "fail": ("call", "code", "count"),
    "recovery": ("action",),
}
_NUMBERS: Final = ("ns", "code", "count")


def _fault(state_dir: StateDir, arguments: argparse.Namespace) -> None:
    request: dict[str, Any] = {"op": arguments.fault, "gpu": arguments.gpu}
    wanted = _FAULTS[arguments.fault]
    if len(arguments.operands) != len(wanted):
        names = " ".join(name.upper() for name in wanted) or "nothing"
        raise CommandError(f"{arguments.fault} takes {names} after it")
    for name, text in zip(wanted, arguments.operands, strict=True):
        request[name] = int(text) if name in _NUMBERS and text.isdigit() else text
    _ask(state_dir, request)
    sys.stdout.write(
        f"GPU {arguments.gpu}: {arguments.fault} {' '.join(arguments.operands)}".rstrip() + "\n"
    )


def _ask(state_dir: StateDir, request: dict[str, Any]) -> dict[str, Any]:
    """Return the daemon's answer over the control socket."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(_STOP_LIMIT_S)
            connection.connect(str(state_dir.control))
            connection.sendall(json.dumps(request).encode() + b"\n")
            line = connection.makefile("rb").readline()
    except PermissionError:
        raise CommandError(f"{state_dir.control}: only its owner may ask") from None
    except OSError as error:
        raise CommandError(f"no daemon answers in {state_dir.root} ({error})") from error
    if not line:
        raise CommandError(f"the daemon in {state_dir.root} went away")
    answer: dict[str, Any] = json.loads(line)
    if "error" in answer:
        raise CommandError(answer["error"])
    return answer


def _answers(state_dir: StateDir) -> bool:
    try:
        _ask(state_dir, {"op": "status"})
    except CommandError:
        return False
    return True


def _driver(build_dir: Path | None, cuda_version: int) -> cdi.Driver:
    """Return the built files: at the given path, else beside the package, else in the repository.

    A library's generation is the newest one up to `cuda_version`. If all built ones are newer, it
    is the generation that is always built.
    """
    candidates = [build_dir] if build_dir else [_PACKAGE, _PACKAGE.parent / "build" / "dev"]
    drivers = [
        cdi.Driver(
            _generation(base / "lib", cuda_version, "libcuda.so.1"),
            _generation(base / "lib", cuda_version, "libnvidia-ml.so.1"),
            base / "bin" / "nvidia-smi",
        )
        for base in candidates
    ]
    return next((driver for driver in drivers if not driver.missing), drivers[-1])


def _generation(libraries: Path, cuda_version: int, name: str) -> Path:
    files = libraries.glob(f"simgpu-*/{name}")
    built = {int(file.parent.name.removeprefix("simgpu-")): file for file in files}
    built[_CUDA_VERSION] = libraries / "simgpu" / name
    return built[max((one for one in built if one <= cuda_version), default=_CUDA_VERSION)]


def _describe(state_dir: StateDir, running: dict[str, Any]) -> str:
    version = running["cuda_version"]
    lines = [
        f"simgpu is up in {state_dir.root}: driver {running['driver_version']}, "
        f"CUDA {version // 1000}.{version % 1000 // 10}, pid {running['pid']}"
    ]
    for gpu in running["gpus"]:
        used = quantity.format_binary(gpu["used_bytes"])
        total = quantity.format_binary(gpu["total_bytes"])
        lost = "  LOST" if gpu["lost"] else ""
        lines.append(
            f"  GPU {gpu['minor']}  {gpu['uuid']}  {gpu['name']}  "
            f"{used} of {total} used  {gpu['clients']} clients{lost}"
        )
    return "\n".join(lines) + "\n"


def _next_steps(state_dir: StateDir, driver: cdi.Driver) -> str:
    lines = [f"  CDI     {state_dir.cdi_spec}"]
    if driver.missing:
        lines.append(f"  missing {', '.join(map(str, driver.missing))}")
        lines.append("  build   cmake --preset dev && cmake --build --preset dev")
    else:
        libraries = driver.libcuda.parent
        lines.append(
            f"  try     SIMGPU_DIR={state_dir.root} LD_LIBRARY_PATH={libraries} {driver.nvidia_smi}"
        )
    lines.append(f"  stop    python -m simgpu down --dir {state_dir.root}")
    return "\n".join(lines) + "\n"


def _last_line(path: Path) -> str:
    lines = path.read_text(errors="replace").strip().splitlines()
    return lines[-1] if lines else f"{path} is empty"
