"""Draw rows of the H100 and H200 measurements of aiconfigurator-core: `python convert.py WHEEL`; needs pyarrow.

WHEEL is the package's file (README.md). Rows of the H100 are drawn for trials, and others are held out; nothing is
fitted to the H200.
"""

import io
import random
import sys
import zipfile
from pathlib import Path

import pandas as pd

SOURCE = "aiconfigurator-core 0.12.0, {}, {} (Apache-2.0)"
HERE = Path(__file__).parent.parent
# Of larger ones a row takes over some ten seconds to simulate.
MOST_MACS, LARGE_MACS = 10**10, 10**11
MOST_SCORES, MOST_KEYS, MOST_BYTES, LARGE_BYTES = 2**26, 10**6, 2**20, 2**26
NCCL = {"h100_sxm": "2.27.3", "h200_sxm": "2.29.2"}  # of their folders in the package
ROWS = {"gemm": 80, "gemm_large": 30, "prefill": 40, "decode": 50, "collectives": 40, "collectives_large": 20}


def table(device, name):
    path = f"aiconfigurator_core/systems/data/{device}/{name}_perf.parquet"
    return pd.read_parquet(io.BytesIO(zipfile.ZipFile(sys.argv[1]).read(path)))


def gemm(device, least, most):
    rows = table(device, "gemm/vllm/0.24.0/gemm")
    for row in rows[rows.gemm_dtype == "bfloat16"].itertuples():
        if min(row.n, row.k) >= 1024 and least < row.m * row.k * row.n <= most:
            given = (("m", row.m), ("k", row.k), ("n", row.n), ("dtype", "bf16"), ("l2", "cold"))
            yield "gemm", given, row.latency, "ms", "vLLM 0.24.0"


def attention(device, name, decode):
    rows = table(device, f"attention/vllm/0.24.0/{name}_attention")
    rows = rows[(rows.kv_cache_dtype == "bfloat16") & (rows.window_size == 0) & (rows.head_dim == 128)]
    for row in rows.itertuples():
        batch, heads, kv_heads, tokens = (
            row.batch_size, row.num_heads, row.num_key_value_heads, row.step + 1 if decode else row.isl,
        )  # fmt: skip
        if batch * kv_heads * tokens <= MOST_KEYS if decode else batch == 1 and heads * tokens**2 <= MOST_SCORES:
            sizes = ("q_len", 1 if decode else tokens), ("kv_len", tokens), ("heads", heads), ("kv_heads", kv_heads)
            given = (("batch", batch), *sizes, ("head_dim", 128), ("dtype", "bf16"), ("l2", "cold"))
            yield "attention", given, row.latency, "ms", "vLLM 0.24.0, FlashAttention-3"


def collectives(device, least, most):
    rows = table(device, f"comm/nccl/{NCCL[device]}/nccl")
    rows = (
        rows[rows.nccl_dtype == "half"].groupby(["op_name", "num_gpus", "message_size"], as_index=False).latency.min()
    )
    for row in rows.itertuples():
        op, ranks, nbytes = row.op_name.replace("alltoall", "all_to_all"), row.num_gpus, 2 * row.message_size
        if least <= nbytes <= most:
            given = (("bytes", nbytes), ("ranks", ranks), ("dtype", "f16"))
            given += (("algorithm", "ring_allreduce_tcm"),) if op == "all_reduce" else ()
            given += (("system.sips.count", ranks),)
            yield op, given, row.latency * 1e3, "us", f"NCCL {NCCL[device]}"


def write(path, device, rows):
    path.parent.mkdir(exist_ok=True)
    with path.open("w") as file:
        file.write("workload,parameters,value,unit,source\n")
        for workload, given, value, unit, source in sorted(rows):
            text = "; ".join(f"{key}={x}" for key, x in given)
            file.write(f'{workload},"{text}",{value:.7g},{unit},"{SOURCE.format(device, source)}"\n')


for device in NCCL:
    kinds = {
        "gemm": gemm(device, 0, MOST_MACS),
        "gemm_large": gemm(device, MOST_MACS, LARGE_MACS),
        "prefill": attention(device, "context", decode=False),
        "decode": attention(device, "generation", decode=True),
        "collectives": collectives(device, 4096, MOST_BYTES),
        "collectives_large": collectives(device, 2 * MOST_BYTES, LARGE_BYTES),
    }
    for kind, found in kinds.items():
        rows, count = list(found), ROWS[kind]
        drawn = random.Random(5).sample(rows, count)
        if device == "h200_sxm":
            write(HERE / device / "held_out" / f"{kind}.csv", device, drawn)
            continue
        write(HERE / device / f"{kind}.csv", device, drawn)
        others = random.Random(6).sample([row for row in rows if row not in drawn], count)
        write(HERE / device / "held_out" / f"{kind}.csv", device, others)
