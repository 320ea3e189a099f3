#!/usr/bin/env python3
"""Time to first token of terrace-llama bench against its limits, in one run.

    benchmarks/llama_ttft.py [--bin build/release/bin] [--runs 5] [--prefix-tokens 4096] [--dir DIR]

The limits beside the results: the engine's own warm slot (`slot`), the engine's bare set_data of the same bytes, and
fio's O_DIRECT read of the same number of bytes in the same directory. Printed: the medians, and the three ratios that the
design asks for. Needs fio and a release build; takes about a minute a run.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile

KV_CHUNK_BYTES = 5_902_056  # one 256-token chunk of SmolLM2-135M in f16: ENGINES, section 1


def default_model():
    cache = os.environ.get("TERRACE_CACHE_DIR") or os.path.join(
        os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "terrace")
    return os.path.join(cache, "models", "SmolLM2-135M-Instruct.Q4_1.gguf")


def fio_read_gbps(directory, size):
    """O_DIRECT reads of 2 MiB, 8 MiB in flight, io_uring: what the NVMe tier issues. Best of three depths."""
    path = os.path.join(directory, "fio.probe")
    base = ["fio", "--name=probe", "--filename=" + path, "--size=%d" % size, "--bs=2M", "--direct=1",
            "--ioengine=io_uring", "--output-format=json"]
    subprocess.run(base + ["--rw=write", "--iodepth=4"], check=True, stdout=subprocess.DEVNULL)
    best = 0.0
    for depth in (2, 4, 8):
        out = subprocess.run(base + ["--rw=read", "--iodepth=%d" % depth], check=True, capture_output=True, text=True).stdout
        best = max(best, json.loads(out)["jobs"][0]["read"]["bw_bytes"] / 1e9)
    os.remove(path)
    return best


def bench(args, directory):
    out = subprocess.run(
        [os.path.join(args.bin, "terrace-llama"), "bench", "--model", args.model, "--prefix-tokens", str(args.prefix_tokens),
         "--suffix-tokens", str(args.suffix_tokens), "--cases", "cold,slot,host,nvme", "--cache", directory,
         "--host-bytes", "1GiB", "--nvme-bytes", "4GiB", "--repeat", "3", "--json"],
        check=True, stdout=subprocess.PIPE, text=True).stdout
    return {row["case"]: row for row in map(json.loads, out.splitlines())}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", default="build/release/bin")
    parser.add_argument("--model", default=default_model())
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--prefix-tokens", type=int, default=4096)
    parser.add_argument("--suffix-tokens", type=int, default=64)
    parser.add_argument("--dir", default=None, help="where the NVMe tier and fio's file go (default: a temporary folder)")
    args = parser.parse_args()
    rows, fio = [], []
    with tempfile.TemporaryDirectory(dir=args.dir) as directory:
        for run in range(args.runs):
            print("run %d of %d ..." % (run + 1, args.runs), file=sys.stderr)
            fio.append(fio_read_gbps(directory, args.prefix_tokens // 256 * KV_CHUNK_BYTES // 4096 * 4096))
            rows.append(bench(args, os.path.join(directory, "cache")))
    median = lambda case, field: statistics.median(r[case][field] for r in rows)
    cold, slot, host, nvme = (median(c, "ttft_ms") for c in ("cold", "slot", "host", "nvme"))
    set_data = median("host", "set_data_ms")
    nvme_set_data = median("nvme", "set_data_ms")
    read_gbps = statistics.median(fio)
    size = args.prefix_tokens // 256 * KV_CHUNK_BYTES
    read_ms = size / (0.8 * read_gbps * 1e9) * 1e3
    result = {
        "prefix_tokens": args.prefix_tokens, "suffix_tokens": args.suffix_tokens, "runs": args.runs, "kv_bytes": size,
        "cold_ms": round(cold, 1), "slot_ms": round(slot, 1), "host_ms": round(host, 1), "nvme_ms": round(nvme, 1),
        "set_data_ms": round(set_data, 1), "fio_read_gbps": round(read_gbps, 2),
        "speed_up_host": round(cold / host, 1), "speed_up_nvme": round(cold / nvme, 1),
        "host_minus_slot_per_set_data": round((host - slot) / set_data, 2),
        "host_goal": 1.5,
        "nvme_minus_slot_ms": round(nvme - slot, 1),
        "nvme_goal_ms": round(1.5 * nvme_set_data + read_ms, 1),
        "store_thread_share_of_prefill": round(median("host", "store_thread_ms") / cold, 4),
        "store_goal": 0.01,
        "logits_equal": all(r[c]["logits_equal"] for r in rows for c in r),
    }
    print(json.dumps(result, indent=1))
    return 0 if result["logits_equal"] else 1


if __name__ == "__main__":
    sys.exit(main())
