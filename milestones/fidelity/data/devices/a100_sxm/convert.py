"""Draw rows of the A100 measurements of aiconfigurator-core and write them as CSV: `python convert.py FOLDER`.

FOLDER has the tables as CSV, with the columns of the package's parquet files (README.md).
"""

import csv
import random
import sys
from pathlib import Path
from statistics import median

SOURCE = "aiconfigurator-core 0.12.0, a100_sxm, {} (Apache-2.0)"
HERE = Path(__file__).parent
# Of larger ones a row takes over some ten seconds to simulate.
MOST_MACS, LARGE_MACS = 10**10, 10**11
MOST_SCORES, MOST_KEYS, MOST_BYTES, HELD_OUT_BYTES = 2**26, 10**6, 2**20, 2**26


def read(name):
    lines = (Path(sys.argv[1]) / name).read_text().splitlines()
    return list(csv.DictReader(line for line in lines if not line.startswith("#")))


def write(name, rows, count, held_out, seed=0, most=None):
    """Write `count` rows for calibration, and `held_out` others, none of the first hundred that the seed draws.

    With `most`, those held out are of up to `most` bytes, and none of the first `count`.
    """
    drawn = random.Random(seed).sample(rows, min(100, len(rows) - held_out)) if count else []
    if most:
        drawn = drawn[:count]
    # Seed 5: the first of whose products none was in an earlier trial of the fit, or of the choice of blocks.
    others = random.Random(seed + 5).sample(
        [row for row in rows if row not in drawn and (most is None or dict(row[1])["bytes"] <= most)], held_out
    )
    for path, own in ((HERE / name, drawn[:count]), (HERE / "held_out" / name, others)):
        if not own:
            continue
        with path.open("w") as file:
            file.write("workload,parameters,value,unit,source\n")
            for workload, given, value, unit, source in sorted(own):
                text = "; ".join(f"{key}={x}" for key, x in given)
                file.write(f'{workload},"{text}",{value},{unit},"{SOURCE.format(source)}"\n')


def gemm(least, most):
    for row in read("gemm_bf16_a100_sxm.csv"):
        m, k, n = (int(row[x]) for x in "mkn")
        if min(n, k) >= 1024 and least < m * k * n <= most:
            yield (
                "gemm",
                (("m", m), ("k", k), ("n", n), ("dtype", "bf16"), ("l2", "cold")),
                row["latency_ms"],
                "ms",
                "vLLM 0.14.0",
            )


def attention(name, decode):
    for row in read(name):
        batch, heads, kv_heads, head_dim = (
            int(row[x]) for x in ("batch_size", "num_heads", "num_key_value_heads", "head_dim")
        )
        tokens = int(row["step"]) + 1 if decode else int(row["isl"])
        small = batch * kv_heads * tokens <= MOST_KEYS if decode else batch == 1 and heads * tokens**2 <= MOST_SCORES
        if small:
            sizes = ("q_len", 1 if decode else tokens), ("kv_len", tokens), ("heads", heads), ("kv_heads", kv_heads)
            given = (("batch", batch), *sizes, ("head_dim", head_dim), ("dtype", "bf16"), ("l2", "cold"))
            yield "attention", given, row["latency_ms"], "ms", "vLLM 0.14.0, FlashAttention-2"


def collectives(least, most):
    for row in read("nccl_a100_sxm.csv"):
        op, ranks, nbytes = row["op"].replace("alltoall", "all_to_all"), row["num_gpus"], int(row["bytes"])
        if least <= nbytes <= most:
            given = (("bytes", nbytes), ("ranks", ranks), ("dtype", "f16"))
            given += (("algorithm", "ring_allreduce_tcm"),) if op == "all_reduce" else ()
            given += (("system.sips.count", ranks),)
            yield op, given, row["latency_us"], "us", "NCCL 2.27.3"


def graphs(least, most):
    """Yield what a graph saves of an all-reduce: the time of the call less that in a graph."""
    times = {}
    for row in read("custom_allreduce_a100_sxm.csv"):
        times.setdefault((int(row["message_size"]), row["num_gpus"]), {})[row["backend"]] = float(row["latency_ms"])
    # Of short calls, all time is that of the host.
    call_us = 1e3 * median(each["vllm_eager"] for (nbytes, _), each in times.items() if nbytes < least)
    for (nbytes, ranks), each in times.items():
        if least <= nbytes <= most:
            given = (("bytes", nbytes), ("ranks", ranks), ("dtype", "bf16"), ("calls", "difference"))
            given += (("call_us", round(call_us, 1)), ("system.sips.count", ranks))
            yield "all_reduce", given, round(each["vllm_eager"] - each["vllm_graph"], 7), "ms", "vLLM 0.14.0"


write("gemm.csv", list(gemm(0, MOST_MACS)), 100, 220)
write("gemm_large.csv", list(gemm(MOST_MACS, LARGE_MACS)), 0, 60)
write("prefill.csv", list(attention("attention_context_a100_sxm.csv", False)), 40, 60)
write("decode.csv", list(attention("attention_generation_a100_sxm.csv", True)), 60, 100)
write("collectives.csv", list(collectives(4096, MOST_BYTES)), 48, 40)
write("graphs.csv", list(graphs(1024, 2 * MOST_BYTES)), 0, 20)
write("collectives_large.csv", list(collectives(2 * MOST_BYTES, 2**29)), 52, 20, most=HELD_OUT_BYTES)
