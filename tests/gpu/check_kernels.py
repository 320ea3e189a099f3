#!/usr/bin/env python3
"""What the compiler makes of the copy kernels, for every architecture. Standard library only.

    check_kernels.py NVCC HOST_COMPILER ROOT [SOURCE]    fails where a kernel spills registers or uses local memory,
                                                         does not move 16 bytes at once with several accesses under
                                                         way, or where the bulk engine's instructions are missing
    check_kernels.py --self-test NVCC HOST_COMPILER      plants kernels with each fault; fails where one is missed
"""
import os
import re
import subprocess
import sys
import tempfile

ARCHITECTURES = (75, 80, 86, 89, 90, 100, 120)
BULK_ARCHITECTURE = 90  # the first one that has the bulk engine
KERNELS = ("VectorCopyKernel", "BulkCopyKernel")
INSTANCES = 2  # of each kernel: to the host, to the device
IN_FLIGHT = 4  # 16-byte loads of a thread before its first store
MAX_REGISTERS = {"VectorCopyKernel": 64, "BulkCopyKernel": 255}  # 65,536 per multiprocessor, 1,024 threads per block

WIDE = r"\.(?:v4\.[bufs]32|v2\.[bufs]64|[b]128)\b"
WIDE_LOAD = re.compile(r"\bld(?:\.\w+)*?\.global(?:\.[\w:]+)*?" + WIDE)
WIDE_STORE = re.compile(r"\bst(?:\.\w+)*?\.global(?:\.[\w:]+)*?" + WIDE)
LOCAL_ACCESS = re.compile(r"\b(?:ld|st)\.local\b")
BULK_INSTRUCTIONS = (
    "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes", "cp.async.bulk.global.shared::cta.bulk_group",
    "cp.async.bulk.commit_group", "cp.async.bulk.wait_group.read", "mbarrier.try_wait.parity")
# Without it a kernel could end before its bytes are there.
BULK_END = re.compile(r"\bcp\.async\.bulk\.wait_group\s+0;")


def compile_kernels(nvcc, host_compiler, source, includes, architectures):
    """One call of nvcc: ptxas' report on all architectures, and {architecture: PTX}."""
    with tempfile.TemporaryDirectory(prefix="terrace-kernels-") as folder:
        command = [nvcc, "-ccbin", host_compiler, "-std=c++20", "-O3", "-Xptxas", "-v", "--fatbin", "--keep",
                   "--keep-dir", folder, "-o", os.path.join(folder, "kernels.fatbin"), source]
        command += [f"-I{include}" for include in includes]
        command += [f"-gencode=arch=compute_{a},code=sm_{a}" for a in architectures]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        if result.returncode != 0:
            sys.exit(f"nvcc ended with {result.returncode}:\n{result.stdout}{result.stderr}")
        stem = os.path.splitext(os.path.basename(source))[0]
        ptx = {}
        for architecture in architectures:
            # With one architecture its name is left out.
            for name in (f"{stem}.compute_{architecture}.ptx", f"{stem}.ptx"):
                path = os.path.join(folder, name)
                if os.path.exists(path):
                    with open(path, encoding="utf-8") as file:
                        ptx[architecture] = file.read()
                    break
        return result.stdout + result.stderr, ptx


def kernel_of(function):
    return next((kernel for kernel in KERNELS if kernel in function), None)


def judge_report(report, architectures):
    """Registers and local memory, by ptxas' report."""
    problems, found, function, architecture = [], {}, "", 0
    for line in report.splitlines():
        entry = re.search(r"Compiling entry function '(\S+)' for 'sm_(\d+)", line)
        if entry:
            function, architecture = entry.group(1), int(entry.group(2))
            kernel = kernel_of(function)
            if kernel is not None:
                found[kernel, architecture] = found.get((kernel, architecture), 0) + 1
        kernel = kernel_of(function)
        if kernel is None:
            continue
        where = f"{kernel} for sm_{architecture}"
        memory = re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", line)
        if memory and any(int(n) for n in memory.groups()):
            problems.append(f"{where}: spills: {line.strip()}")
        used = re.search(r"Used (\d+) registers", line)
        if used and int(used.group(1)) > MAX_REGISTERS[kernel]:
            problems.append(f"{where}: {used.group(1)} registers")
    for kernel in KERNELS:
        for architecture in architectures:
            if found.get((kernel, architecture), 0) != INSTANCES:
                problems.append(f"{kernel} for sm_{architecture}: compiled {found.get((kernel, architecture), 0)} "
                                f"times, not {INSTANCES}")
    return problems


def entries(ptx):
    """(name, body) of the kernels in a PTX file."""
    starts = list(re.finditer(r"\.entry\s+(\w+)", ptx))
    for start, following in zip(starts, starts[1:] + [None]):
        yield start.group(1), ptx[start.end():following.start() if following else len(ptx)]


def loads_in_flight(body):
    """The most 16-byte loads in a row without a store between."""
    most = run = 0
    for line in body.splitlines():
        if WIDE_LOAD.search(line):
            run += 1
            most = max(most, run)
        elif re.search(r"\bst\.(?:global|v\d|[bufs]\d)", line):
            run = 0
    return most


def judge_ptx(architecture, ptx):
    problems = []
    for name, body in entries(ptx):
        kernel = kernel_of(name)
        if kernel is None:
            continue
        where = f"{kernel} for compute_{architecture}"
        if LOCAL_ACCESS.search(body):
            problems.append(f"{where}: local memory is used")
        if kernel == "VectorCopyKernel":
            if not WIDE_STORE.search(body):
                problems.append(f"{where}: narrow: no store of 16 bytes")
            if loads_in_flight(body) < IN_FLIGHT:
                problems.append(f"{where}: narrow: {loads_in_flight(body)} loads of 16 bytes before a store, "
                                f"not {IN_FLIGHT}")
        elif architecture >= BULK_ARCHITECTURE:
            problems += [f"{where}: no bulk copy: {i} is missing" for i in BULK_INSTRUCTIONS if i not in body]
            if not BULK_END.search(body):
                problems.append(f"{where}: no bulk copy: it does not wait for its last stores")
        elif "cp.async.bulk" in body:
            problems.append(f"{where}: has the bulk engine's instructions")
    return problems


def judge(nvcc, host_compiler, source, includes, architectures):
    report, ptx = compile_kernels(nvcc, host_compiler, source, includes, architectures)
    problems = judge_report(report, architectures)
    for architecture in architectures:
        if architecture not in ptx:
            problems.append(f"no PTX for compute_{architecture}")
        else:
            problems += judge_ptx(architecture, ptx[architecture])
    return problems


GOOD_VECTOR = """
template <int> __global__ void __launch_bounds__(1024) VectorCopyKernel(uint4* to, const uint4* from) {
  const unsigned i = blockIdx.x * 4096 + threadIdx.x;
  const uint4 a = __ldcs(from + i), b = __ldcs(from + i + 1024), c = __ldcs(from + i + 2048), d = __ldcs(from + i + 3072);
  __stcs(to + i, a); __stcs(to + i + 1024, b); __stcs(to + i + 2048, c); __stcs(to + i + 3072, d);
}
"""
GOOD_BULK = """
template <int> __global__ void BulkCopyKernel(char* to, const char* from) {
  extern __shared__ __align__(128) char buffer[];
  const unsigned stage = __cvta_generic_to_shared(buffer + 128), barrier = __cvta_generic_to_shared(buffer);
  asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" :: "r"(barrier) : "memory");
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], 64, [%2];"
               :: "r"(stage), "l"(from), "r"(barrier) : "memory");
  asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%0], 0; }" :: "r"(barrier) : "memory");
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], 64;" :: "l"(to), "r"(stage) : "memory");
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
  asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
  asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}
"""
INSTANTIATED = """
template __global__ void VectorCopyKernel<1>(uint4*, const uint4*);
template __global__ void VectorCopyKernel<2>(uint4*, const uint4*);
template __global__ void BulkCopyKernel<1>(char*, const char*);
template __global__ void BulkCopyKernel<2>(char*, const char*);
"""
# More values alive than a thread of 1,024 has registers.
SPILLING = """
  float kept[80];
  for (int k = 0; k < 80; ++k) kept[k] = reinterpret_cast<const volatile float*>(from)[i + 4096 * k];
  __syncthreads();
  for (int k = 0; k < 80; ++k) reinterpret_cast<volatile float*>(to)[i + 4096 * (79 - k)] = kept[k] * kept[k ^ 1];
}
"""
# What is planted, and what the report must say of it: None for what is good.
PLANTED = [
    (lambda vector, bulk: vector + bulk + INSTANTIATED, None),
    (lambda vector, bulk: vector.rstrip()[:-1] + SPILLING + bulk + INSTANTIATED, "spills"),
    (lambda vector, bulk: vector.replace("uint4", "uint2") + bulk + INSTANTIATED.replace("uint4", "uint2"), "narrow"),
    (lambda vector, bulk: re.sub(r"const uint4 a.*?\n.*?\n", "for (int k = 0; k < 4; ++k) { __stcs(to + i + k * 1024, "
                                 "__ldcs(from + i + k * 1024)); __syncthreads(); }\n", vector) + bulk + INSTANTIATED,
     "loads of 16 bytes before a store"),
    (lambda vector, bulk: vector + re.sub(r"(?m)^  asm volatile\(\"cp.async.bulk.wait_group 0.*$", "", bulk)
     + INSTANTIATED, "wait for its last stores"),
    (lambda vector, bulk: vector + re.sub(r"\{.*\}", "{ to[0] = from[0]; }", bulk, flags=re.S) + INSTANTIATED,
     "no bulk copy"),
    (lambda vector, bulk: vector + bulk + INSTANTIATED.replace("template __global__ void VectorCopyKernel<2>"
                                                               "(uint4*, const uint4*);", ""), "compiled 1 times"),
]


def self_test(nvcc, host_compiler):
    failures = []
    with tempfile.TemporaryDirectory(prefix="terrace-planted-") as folder:
        for number, (plant, expected) in enumerate(PLANTED):
            source = os.path.join(folder, f"planted_{number}.cu")
            with open(source, "w", encoding="utf-8") as file:
                file.write(plant(GOOD_VECTOR, GOOD_BULK))
            problems = judge(nvcc, host_compiler, source, [], (BULK_ARCHITECTURE,))
            if expected is None and problems:
                failures.append(f"faulted good kernels: {problems}")
            if expected is not None and not any(expected in problem for problem in problems):
                failures.append(f"plant {number} was missed, expected '{expected}': {problems}")
    for failure in failures:
        print(failure)
    print(f"{len(PLANTED)} planted sources: {len(failures)} failures")
    return 1 if failures else 0


def main(arguments):
    if len(arguments) == 3 and arguments[0] == "--self-test":
        return self_test(*arguments[1:])
    if len(arguments) not in (3, 4):
        print(__doc__)
        return 2
    nvcc, host_compiler, root = arguments[:3]
    source = arguments[3] if len(arguments) == 4 else os.path.join(root, "kernels/cuda/paged_copy.cu")
    problems = judge(nvcc, host_compiler, source, [root, os.path.join(root, "include")], ARCHITECTURES)
    for problem in problems:
        print(problem)
    print(f"{len(KERNELS)} kernels, {INSTANCES} directions, sm_{', sm_'.join(map(str, ARCHITECTURES))}: "
          f"{len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
