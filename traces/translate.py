"""Translates the calls of one process into operations of its script.

Handles and addresses become slots. Data that a trace does not have (host memory, code, names of
kernels) is replaced according to rules.py. A call that cannot be replayed is counted in `skipped`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from math import prod

from traces import rules
from traces.loaded_code import LoadedCode
from traces.names import Names
from traces.script import Action, Argument, Kind, Patch, Result, Script
from traces.signatures import Parameter, Signature, signatures
from traces.trace import Call, Words, words


class _Impossible(Exception):
    """The call cannot be replayed, for example because the trace lacks an argument."""


class Translator:
    """Translates the calls of a process, which must be passed in the order of the file."""

    def __init__(self, script: Script, primary: Mapping[int, int], image_path: str) -> None:
        self.skipped: Counter[str] = Counter()
        self.most_kernels = 1
        """The number of kernels that the image needs."""
        self.code = LoadedCode()
        self._script = script
        self._primary = primary
        self._image_path = image_path
        self._names = Names()
        self._kernels: dict[int, dict[str, int]] = {}
        self._unchanging: dict[str, Sequence[int]] = {}
        self._ahead: list[int] = []
        self._patches: list[Patch] = []
        self._named = False

    def operations(self, call: Call) -> Sequence[int]:
        """Return the operations for the call, which are none if it is skipped. The last one is the
        call itself. The ones before it provide a context."""
        if call.text in self._unchanging:
            return self._unchanging[call.text]
        self._ahead, self._patches, self._named = [], [], False
        entry = call.text.split(" ", 1)[0]
        signature = signatures().get(entry)
        try:
            if signature is None:
                raise _Impossible
            operation = self._operation(words(call.text), signature)
        except _Impossible:
            self.skipped[entry] += 1
            return ()
        done = (*self._ahead, operation)
        if not self._named and entry not in rules.RELEASES:
            self._unchanging[call.text] = done
        return done

    def _operation(self, of: Words, signature: Signature) -> int:
        if any(parameter.letter not in of.before for parameter in signature.parameters):
            raise _Impossible
        arguments = [self._argument(of, parameter) for parameter in signature.parameters]
        results = [
            self._result(of, parameter, index)
            for index, parameter in enumerate(signature.parameters)
            if parameter.letter in of.after and arguments[index].kind == Kind.CELL
        ]
        if not of.result:
            self.code.follow(of.entry, arguments, results)
        return self._script.operation(
            self._number(signature),
            of.result,
            arguments,
            results,
            self._patches,
            is_compared=of.entry not in rules.PROGRESS,
        )

    def _number(self, of: Signature) -> int:
        return self._script.entry(of.entry, of.base, of.since, of.per_thread)

    def _argument(self, of: Words, parameter: Parameter) -> Argument:
        text, written = of.before[parameter.letter], parameter.letter in of.after
        place, head = (of.entry, parameter.letter), parameter.token[0]
        if place in rules.PARAMETERS_OF_KERNELS:
            return Argument(Kind.VALUE)
        if head in "nu":
            moves_bytes = of.entry.startswith(rules.MOVE_BYTES) and parameter.type == "size_t"
            value = min(int(text), rules.MOST_MOVED_BYTES) if moves_bytes else int(text)
            return Argument(Kind.VALUE, value)
        if place in rules.IMAGES:
            return Argument(Kind.IMAGE)
        if head == "x":
            return self._reference(of, parameter, int(text, 16))
        if text in ("0", "0x0") and not written and head not in "=<a":
            return Argument(Kind.VALUE)
        if head == "s":
            return self._string(of, place)
        if parameter.token == ">A":
            return Argument(Kind.POINTERS)
        if head in ">=<a":
            return Argument(Kind.CELL, 0 if text == "&" else int(text, 0))
        if head in "h[":
            return Argument(Kind.DATA, self._script.data(_bytes(parameter.token, text)))
        if head == "L":
            return self._config(text, of.before.get(f"{parameter.letter}.attrs", "[]"))
        raise _Impossible

    def _reference(self, of: Words, parameter: Parameter, value: int) -> Argument:
        """Translate a handle, or an address of the GPU's or of the host's memory."""
        of_host = parameter.type.startswith(("void", "const void"))
        is_handle = not of_host and parameter.type != "CUdeviceptr"
        if not value or (is_handle and value <= rules.LARGEST_SPECIAL_STREAM):
            return Argument(Kind.VALUE, value)
        self._named = True
        frees = of.entry in rules.FREES and parameter.letter == "a" and not of.result
        found = self._names.free(value) if frees else self._names.find(value)
        if found is not None:
            return Argument(Kind.SLOT, found[1], found[0])
        if parameter.type == rules.CONTEXT:
            return Argument(Kind.SLOT, 0, self._inactive(value))
        if is_handle:
            return Argument(Kind.VALUE, value)
        sizes = [min(int(text), rules.MOST_HOST_BYTES) for text in of.numbers]
        self._script.buffer_bytes = max(self._script.buffer_bytes, *sizes, 0)
        return Argument(Kind.BUFFER)

    def _inactive(self, context: int) -> int:
        """Return the slot of a primary context that the program has not retained yet.

        NVIDIA's runtime knows such a handle. The replay gets it by retaining and releasing it.
        """
        device, slot = self._primary.get(context, 0), self._script.slot()
        self._names.make(context, slot)
        ordinal = Argument(Kind.VALUE, device)
        retain, release = (
            self._number(signatures()[entry]) for entry in (rules.RETAIN, rules.RELEASE)
        )
        stored = Result(Action.STORE, 0, 8, context, slot)
        self._ahead += [
            self._script.operation(retain, 0, (Argument(Kind.CELL), ordinal), (stored,)),
            self._script.operation(release, 0, (ordinal,)),
        ]
        return slot

    def _string(self, of: Words, place: tuple[str, str]) -> Argument:
        """Replace a string, which traces do not have. A kernel's name becomes that of a kernel of
        the image. Different kernels of a module get different names."""
        entry, letter = place
        if place in rules.FILES:
            return self._text(self._image_path)
        if rules.GLOBALS.get(entry) == letter:
            return self._text("g")
        if rules.KERNELS.get(entry) != letter:
            return Argument(Kind.BUFFER)
        self._named = True
        found = self._names.find(int(of.before["b"], 16))
        if found is None:
            raise _Impossible
        kernels = self._kernels.setdefault(found[0], {})
        number = kernels.setdefault(of.after.get("a", ""), len(kernels))
        self.most_kernels = max(self.most_kernels, len(kernels))
        return self._text(f"k{number}")

    def _text(self, text: str) -> Argument:
        return Argument(Kind.DATA, self._script.data(text.encode() + b"\0"))

    def _config(self, text: str, attributes: str) -> Argument:
        """Translate a CUlaunchConfig. Each has its own place in the data, because patches write its
        stream and its pointer there before the call."""
        config = bytes.fromhex(text.removeprefix("h:"))
        at, stream_at = self._script.place(config), rules.CONFIG_STREAM_AT
        stream = int.from_bytes(config[stream_at : stream_at + 8], "little")
        found = self._names.find(stream)
        named = Argument(Kind.SLOT, found[1], found[0]) if found else Argument(Kind.VALUE, stream)
        pointed = Argument(Kind.DATA, self._script.data(_bytes("[h72", attributes)))
        self._patches += [
            Patch(at + stream_at, named),
            Patch(at + rules.CONFIG_ATTRIBUTES_AT, pointed),
        ]
        self._named = True
        return Argument(Kind.DATA, at)

    def _result(self, of: Words, parameter: Parameter, index: int) -> Result:
        """Return what the replay does with a value that the driver wrote."""
        written = of.after[parameter.letter]
        if not written.startswith("0x"):
            return self._number_result(of.entry, parameter, index, written)
        value = int(written, 16)
        asked_for = of.entry in rules.ADDRESSES_ASKED_FOR or rules.CONTEXT in parameter.type
        found = self._names.find(value) if asked_for and value else None
        self._named = self._named or bool(value)
        if found is not None:
            return Result(Action.EQUAL_SLOT, index, 8, value, *found)
        if not value or parameter.type == "void *":
            return Result(Action.IGNORE if value else Action.EQUAL, index, 8, value)
        slot = self._script.slot()
        values: Mapping[str, str] = {**of.before, **of.after}
        letters = rules.MEMORY_BYTES.get(of.entry, ())
        size_bytes = prod([int(values[letter]) for letter in letters]) if letters else 0
        self._names.make(value, slot, size_bytes)
        return Result(Action.STORE, index, 8, value, slot)

    def _number_result(self, entry: str, parameter: Parameter, index: int, written: str) -> Result:
        if written.startswith(("h:", "[", "@")):
            return Result(Action.IGNORE, index, 0, 0)
        action = Action.EQUAL_SIZE if entry in rules.SIZE_OF_GPU else Action.EQUAL
        if entry in rules.UNCOMPARED:
            action = Action.IGNORE
        nearly = rules.CODE_BYTES if (entry, parameter.letter) in rules.LESS_CODE else 0
        return Result(action, index, _width(parameter.token), int(written), 0, nearly)


def _width(token: str) -> int:
    """Return the size in bytes of a value with this token, for example 4 for `>u4`. An
    attribute's value that the trace has as a decimal number has 4 bytes."""
    return int(token[-1]) if token[-1].isdecimal() else 4


def _bytes(token: str, text: str) -> bytes:
    """Return the bytes of a struct or of an array from its text in the trace."""
    if text.startswith("h:"):
        return bytes.fromhex(text[2:])
    width = int(token.removeprefix("[")[1:].split(":")[0])
    elements = text.strip("[]").split(",") if text.strip("[]") else []
    return b"".join(_element(each, width) for each in elements)


def _element(text: str, width: int) -> bytes:
    if text.startswith("h:"):
        return bytes.fromhex(text[2:])
    return (int(text, 0) & ((1 << 8 * width) - 1)).to_bytes(width, "little")
