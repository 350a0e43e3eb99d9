"""`python -m tests.fuzz.again TARGET DIRECTORY...`: what a target's memory does without the fuzzer.

atheris rewrites the bytecode that it watches, and for some keeps blocks alive at each call. So
what grew there is looked at once more: inputs that libFuzzer kept, round after round, in code as it
is. Prints JSON: executions after the first round, and by how much the live blocks grew in them.
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
