"""The number of one process's modules with code on the GPU, which the driver takes by itself.

This follows the simulated driver: the code of a module is loaded with the first launch of one of
its kernels or the address of a variable, and unloaded with the module or with the context.
"""

from __future__ import annotations

from collections.abc import Sequence

from traces import rules
from traces.script import Argument, Result


class LoadedCode:
    def __init__(self) -> None:
        self._retained = 0
        self._module_of: dict[int, int] = {}
        self._loaded: set[int] = set()

    @property
    def modules(self) -> int:
        return len(self._loaded)

    def follow(self, entry: str, arguments: Sequence[Argument], results: Sequence[Result]) -> None:
        """A call succeeded."""
        if entry in rules.FOUND_IN:
            owner = arguments[1].slot
            self._module_of[results[0].slot] = self._module_of.get(owner, owner)
        elif entry in rules.LAUNCHES:
            function = arguments[rules.LAUNCHES[entry]].slot
            self._loaded.add(self._module_of.get(function, function))
        elif entry in rules.GLOBALS:
            owner = arguments[2].slot
            self._loaded.add(self._module_of.get(owner, owner))
        elif entry in rules.UNLOADS:
            self._loaded.discard(arguments[0].slot)
        elif entry == rules.RETAIN:
            self._retained += 1
        elif entry in rules.RELEASES:
            self._retained -= 1
            if not self._retained:
                self._loaded.clear()
