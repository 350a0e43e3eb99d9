"""What the agent knows of the node it runs on, now: its GPUs, their CDI specs, the library.

Asked for every container with a grant, and by the watch (watch.py). Everything that may block goes
through the worker or a child, under a deadline. Where a GPU has no CDI spec, one is generated.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from contract.log_lines import Line
from nri_plugin import brought
from nri_plugin.cdi import Reader
from nri_plugin.errors import StoreError
from nri_plugin.generator import Generator
from nri_plugin.injection import is_below
from nri_plugin.inventory import Inventory
from nri_plugin.model import Bringing, Paths, Specs
from nri_plugin.protocol import runtimes
from nri_plugin.protocol.events import RuntimeInfo
from nri_plugin.settings import Settings
from nri_plugin.store import Store
from nri_plugin.threads import Worker
from nri_plugin.verdict import Host

_LOG: Final = logging.getLogger(__name__)

Look = tuple[Specs, Paths]

_T = TypeVar("_T")


class Node:
    """Its methods raise TimeoutError where the node takes too long."""

    def __init__(
        self, settings: Settings, inventory: Inventory, store: Store, worker: Worker
    ) -> None:
        self._settings = settings
        self.inventory = inventory
        self._store = store
        self._worker = worker
        self.generator = Generator(
            settings.nvidia_ctk,
            settings.generated_cdi_dir,
            settings.environment,
        )
        self._specs = Reader(dict.fromkeys((settings.generated_cdi_dir, *settings.cdi_dirs)))
        self._renewed_for: str | None = None
        """The driver's version for which specs were generated; None: an earlier agent's."""
        self.unprotected = ""
        """Why containers without a share may get GPUs without a limit; empty: none is known."""
        self.runtime: RuntimeInfo | None = None
        """Who asks us; set when its session is ready."""

    def collect_releases(self, mounts: Iterable[str]) -> None:
        """Have releases of the library removed that no container has mounted; returns at once.
        mounts: the sources of all containers' mounts."""
        store = self._settings.store_dir
        in_use = {Path(source).parent.name for source in mounts if is_below(source, str(store))}

        def collect() -> None:
            for name in self._store.collect(in_use):
                _LOG.info(Line("release of the library removed", directory=store / name))

        self._worker.post(collect)

    async def look_at_host(self) -> Look:
        return await self._work(self.look_now)

    async def brought(self, cdi_names: Sequence[str]) -> Host:
        """Of CDI names that others use, and of the driver, what tells whether they bring a GPU."""
        directories = self._settings.cdi_dirs
        return await self._work(
            lambda: Host(brought.by_name(directories, cdi_names), brought.majors())
        )

    async def generate_specs(self, uuids: Sequence[str]) -> bool:
        """Have CDI specs made for these GPUs, unless it was tried just now; False: none new.

        Raises OSError where they cannot be written.
        """
        if not self._settings.nvidia_ctk or not self.generator.due:
            return False
        text = await self.generator.ask(uuids)
        if text is not None:
            await self._work(partial(self.generator.write, text))
        return text is not None

    async def renew_specs(self) -> None:
        """Generate again what was generated for another driver, or by an earlier agent.

        Until it is done the earlier ones stay; if it fails, they go. Raises OSError.
        """
        driver = self.inventory.driver
        if driver == self._renewed_for:
            return
        self._renewed_for = driver
        uuids = await self._work(self.generator.present)
        if uuids and not await self.generate_specs(uuids):
            await self.discard_specs()

    async def discard_specs(self) -> bool:
        """Take away what was generated; False: there was nothing. Raises OSError."""
        return await self._work(self.generator.discard)

    def look_now(self) -> Look:
        """CDI specs and library as they are now; runs in the worker."""
        chosen = self._settings
        run_dir, bringing = str(chosen.run_dir), self._bringing()
        specs = self._specs.load()
        try:
            forwarders = self._store.forwarders() if chosen.strict else {}
            return specs, Paths(
                run_dir,
                str(self._store.current()),
                forwarders={soname: str(path) for soname, path in forwarders.items()},
                bringing=bringing,
            )
        except StoreError as error:
            return specs, Paths(run_dir, None, str(error), bringing=bringing)

    def _bringing(self) -> Bringing:
        capabilities = self._settings.driver_capabilities
        if not self._settings.cdi_by_name:
            return Bringing(capabilities)
        if self.runtime is None:
            return Bringing(capabilities, True, "the runtime has not said yet which one it is")
        problem = cdi_by_name_problem(self.runtime.name, self.runtime.version)
        return Bringing(capabilities, True, problem)

    async def _work(self, job: Callable[[], _T]) -> _T:
        return await self._worker.run(job, self._settings.work_deadline_s)


def cdi_by_name_problem(runtime: str, version: str) -> str | None:
    """Why this runtime cannot be asked for a CDI device by its name; None: it can.

    The operator may choose that instead of applying the spec, for nodes whose default validator
    rejects the OCI hooks of NVIDIA's specs. Then the runtime applies the spec whole, of its own
    directories. Runtimes before these drop the request and say nothing, so that a container would
    run without its GPU; there it is refused.
    """
    if runtimes.parse(version) is None:
        return f"the version of {runtime}, {version!r}, is not understood"
    release = runtimes.find(runtime, version)
    if release is not None and release.carries_cdi:
        return None
    return (
        f"{runtime} {version} drops CDI devices that a plugin asks for; 1.7.30 or later of 1.7,"
        " or 2.1 or later, is needed"
    )
