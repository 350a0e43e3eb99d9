"""`python -m tests.fuzz.again TARGET DIRECTORY...`: a target's memory growth without the fuzzer.

atheris rewrites the bytecode that it instruments, and for some keeps blocks allocated at each call.
So growth is measured once more: inputs that libFuzzer kept, round after round, in unmodified code.
Prints JSON: executions after the first round, and the growth of live blocks in them.
"""

from __future__ import annotations

import gc
import json
import sys
from pathlib import Path
from typing import Final

from tests.fuzz import documents
from tests.fuzz.targets import TARGETS

EXECUTIONS: Final = 6_000


def main() -> None:
    name, *directories = sys.argv[1:]
    run = TARGETS[name].run
    inputs = [path.read_bytes() for each in directories for path in Path(each).iterdir()]
    rounds, first_blocks, blocks = 1 + -(-EXECUTIONS // len(inputs)), 0, 0
    for number in range(rounds):
        for data in inputs:
            run(data)
        gc.collect()
        blocks = sys.getallocatedblocks()
        first_blocks = blocks if number == 0 else first_blocks
    documents.forget()
    grown = {"executions": (rounds - 1) * len(inputs), "blocks": blocks - first_blocks}
    sys.stdout.write(json.dumps(grown))


if __name__ == "__main__":
    main()
