"""Counts the modules of a process whose code is on the GPU, where the driver allocates its memory.

The count follows the simulated driver. It loads a module's code at the first launch of a kernel, or
when the address of a variable is queried. It unloads the code with the module or the context.
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
        """Update the count after a call that succeeded."""
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
