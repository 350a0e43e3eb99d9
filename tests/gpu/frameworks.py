"""Test programs of common frameworks, and the interpreters that run them.

Each program has three phases, and reports each as a line of JSON. At `started`, everything is
imported and no driver call was made. At `filled`, the program holds all the memory that it could
get. At `done`, it has freed the memory and computed something. After each of the first two it waits
for a line on stdin. The frameworks are not installed for these tests: an environment variable names
an interpreter that has one.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from typing import Final

from tests.support import GIB, run

_BEGIN: Final = """
import json, sys
MIB = 2**20
def reach(phase, **figures):
    print(json.dumps({"phase": phase, **figures}), flush=True)
    assert phase == "done" or sys.stdin.readline()
def fill(take, refused):
    held = []
    try:
        while len(held) < 65536:
            held.append(take(16 * MIB))
    except refused:
        return held
    raise SystemExit("never refused")
def reach_filled(total, take, refused):
    held = fill(take, refused)
    reach("filled", total_bytes=total, filled_bytes=len(held) * 16 * MIB)
    return held
"""
_DRIVER: Final = """
from cuda.bindings import driver as d
class Refused(Exception):
    pass
def must(answer):
    if answer[0] == d.CUresult.CUDA_ERROR_OUT_OF_MEMORY:
        raise Refused
    assert answer[0] == 0, answer
    return answer[1] if len(answer) == 2 else answer[1:]
def take(size):
    return must(d.cuMemAlloc(size))
reach("started")
must(d.cuInit(0))
must(d.cuCtxSetCurrent(must(d.cuDevicePrimaryCtxRetain(0))))
for address in reach_filled(must(d.cuMemGetInfo())[1], take, Refused):
    must(d.cuMemFree(address))
fill(take, Refused)
"""
_TORCH: Final = """
import torch
reach("started")
def take(size):
    return torch.empty(size, dtype=torch.uint8, device="cuda")
reach_filled(torch.cuda.mem_get_info()[1], take, torch.cuda.OutOfMemoryError)
torch.cuda.synchronize()
torch.cuda.empty_cache()
torch.manual_seed(0)
layers = torch.nn.Linear(1024, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 10)
model = torch.nn.Sequential(*layers).cuda()
optimizer = torch.optim.AdamW(model.parameters())
given, wanted = torch.randn(256, 1024).cuda(), torch.randint(0, 10, (256,)).cuda()
losses = []
for _ in range(50):
    optimizer.zero_grad()
    loss = torch.nn.functional.cross_entropy(model(given), wanted)
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
assert losses[-1] < losses[0] / 2, losses
fill(take, torch.cuda.OutOfMemoryError)
"""
_CUPY: Final = """
import cupy
reach("started")
def take(size):
    return cupy.empty(size, dtype=cupy.uint8)
reach_filled(cupy.cuda.runtime.memGetInfo()[1], take, cupy.cuda.memory.OutOfMemoryError)
cupy.get_default_memory_pool().free_all_blocks()
code = '''extern "C" __global__ void add(float *a, int count)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count)
        a[i] += 1;
}'''
count = 1 << 20
numbers = cupy.zeros(count, dtype=cupy.float32)
cupy.RawKernel(code, "add")((count // 256,), (256,), (numbers, cupy.int32(count)))
assert float(numbers.sum()) == count
ones = cupy.ones((512, 512), dtype=cupy.float32)
assert float((ones @ ones)[0, 0]) == 512
fill(take, cupy.cuda.memory.OutOfMemoryError)
"""
_VLLM: Final = """
import os, tempfile
from pathlib import Path
os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
os.environ["HF_HUB_OFFLINE"] = "1"
import torch, vllm
reach("started")
sizes = dict(hidden_size=1024, intermediate_size=2816, num_hidden_layers=4, num_attention_heads=16)
model = dict(sizes, architectures=["LlamaForCausalLM"], model_type="llama", torch_dtype="bfloat16",
             num_key_value_heads=16, vocab_size=32000, max_position_embeddings=2048)
with tempfile.TemporaryDirectory() as directory:
    (Path(directory) / "config.json").write_text(json.dumps(model))
    engine = vllm.LLM(model=directory, load_format="dummy", skip_tokenizer_init=True,
                      gpu_memory_utilization=0.7, max_model_len=512)
_, total = torch.cuda.mem_get_info()
reach("filled", total_bytes=total, filled_bytes=torch.cuda.memory_reserved())
asked = [dict(prompt_token_ids=list(range(1, 65)))] * 8
sampled = vllm.SamplingParams(max_tokens=32, ignore_eos=True, detokenize=False)
answers = engine.generate(asked, sampled)
assert [len(each.outputs[0].token_ids) for each in answers] == [32] * 8
"""


@dataclass(frozen=True)
class Framework:
    name: str
    module: str
    variable: str
    """The environment variable that names an interpreter with the module."""
    limit_bytes: int
    program: str
    environment: tuple[tuple[str, str], ...] = ()

    @property
    def python(self) -> str:
        return os.environ.get(self.variable, sys.executable)

    @property
    def code(self) -> str:
        return f'{_BEGIN}{self.program}reach("done")\n'

    def version(self) -> str | None:
        """Return the module's version, or None if the interpreter does not have the module."""
        top = self.module.split(".")[0]
        asked = (
            "import importlib.util as u, importlib.metadata as m, sys\n"
            f"if u.find_spec({top!r}) is None: sys.exit(1)\n"
            f"found = m.packages_distributions().get({top!r}, [])\n"
            "print(', '.join(f'{name} {m.version(name)}' for name in found))"
        )
        try:
            done = run(self.python, "-c", asked)
        except OSError:
            return None
        return done.stdout.strip() or "installed" if done.returncode == 0 else None

    @property
    def missing(self) -> str:
        """Return the text that tells a user how to name an interpreter with the module."""
        return f"{self.python} has no {self.module}; {self.variable}=PYTHON names one that has it"


def _torch(name: str, configuration: str) -> Framework:
    chosen = (("PYTORCH_CUDA_ALLOC_CONF", configuration),) if configuration else ()
    return Framework(name, "torch", "GPUSLICE_TORCH", 4 * GIB, _TORCH, chosen)


FRAMEWORKS: Final = (
    Framework("driver", "cuda.bindings", "GPUSLICE_DRIVER", GIB, _DRIVER),
    _torch("torch", ""),
    _torch("torch-malloc-async", "backend:cudaMallocAsync"),
    _torch("torch-expandable", "expandable_segments:True"),
    Framework("cupy", "cupy", "GPUSLICE_CUPY", 4 * GIB, _CUPY),
    Framework("vllm", "vllm", "GPUSLICE_VLLM", 8 * GIB, _VLLM),
)
"""The first one is no framework. This checkout's environment has it, so some test always runs."""
