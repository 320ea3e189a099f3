#!/usr/bin/env python3
"""Other caches over loopback TCP, as `terrace bench remote` measures Terrace: get and put of values of a few
sizes between two processes, one JSON object per line with the columns of that command.

    python3 -m venv ENV && ENV/bin/pip install mooncake-transfer-engine-non-cuda
    ENV/bin/python benchmarks/peers/bench_peers.py --peer mooncake

    python3 -m venv ENV2 && ENV2/bin/pip install lmcache      # with torch: several gigabytes
    ENV2/bin/python benchmarks/peers/bench_peers.py --peer lmcache

A peer that cannot be imported or does not start gives one row with the reason in `note`, and exit status 0.
Values lie in touched memory; a client has --in-flight threads, each with its own connection where the peer
allows it; gets go into buffers that are used again. Of each value that is got the first and last bytes are
compared. CPU seconds are those of all processes together.

    mooncake   a master, a process that holds the memory, and this client with `put_from` and `get_into`
    lmcache    its server program, and a client that speaks its protocol with its own classes, and receives
               into its buffers as its connector does
"""
import argparse
import concurrent.futures
import ctypes
import json
import mmap
import os
import resource
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time

KEY_BYTES = 16
START_LIMIT_S = 60
LEASE_MS = 2000  # of Mooncake: what was got lately is not removed


class Unavailable(Exception):
    """The peer is not here, or does not work here."""


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_for_port(port, process):
    limit = time.monotonic() + START_LIMIT_S
    while time.monotonic() < limit:
        if process.poll() is not None:
            raise Unavailable(f"{process.args[0]} ended with {process.returncode}")
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            time.sleep(0.05)
    raise Unavailable(f"{process.args[0]} does not listen")


def process_cpu(pid):
    with open(f"/proc/{pid}/stat", encoding="ascii") as file:
        fields = file.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def own_cpu():
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


class Buffer:
    """Touched anonymous memory of one value."""

    def __init__(self, size_bytes):
        self.map = mmap.mmap(-1, size_bytes)
        self.view = memoryview(self.map)
        self.view[:] = bytes(size_bytes)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.map))
        self.size_bytes = size_bytes

    def mark(self, number):
        text = number.to_bytes(KEY_BYTES, "little")
        self.view[:KEY_BYTES] = text
        self.view[-KEY_BYTES:] = text

    def check(self, number):
        text = number.to_bytes(KEY_BYTES, "little")
        if self.view[:KEY_BYTES] != text or self.view[-KEY_BYTES:] != text:
            raise RuntimeError(f"value {number} was got wrong")


class Peer:
    """One peer, started; each of its lanes is used by one thread at a time."""

    name = ""

    def __init__(self):
        self.processes = []

    def open(self, options, log):
        """Starts it; raises Unavailable. close() ends what was started."""
        raise NotImplementedError

    def start(self, arguments, log):
        process = subprocess.Popen(arguments, stdout=log, stderr=log)
        self.processes.append(process)
        return process

    def cpu_seconds(self):
        return own_cpu() + sum(process_cpu(process.pid) for process in self.processes)

    def close(self):
        for process in reversed(self.processes):
            process.send_signal(signal.SIGTERM)
        for process in self.processes:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


class Mooncake(Peer):
    name = "mooncake_tcp"

    store = None

    def open(self, options, log):
        try:
            from mooncake.store import MooncakeDistributedStore
        except ImportError as error:
            raise Unavailable(f"mooncake: {error}") from error
        folder = os.path.dirname(sys.executable)
        master = shutil.which("mooncake_master", path=folder) or shutil.which("mooncake_master")
        if master is None:
            raise Unavailable("mooncake_master is not installed")
        rpc, http, metrics = free_port(), free_port(), free_port()
        process = self.start([master, f"--rpc_port={rpc}", "--enable_http_metadata_server=true",
                              "--http_metadata_server_host=127.0.0.1", f"--http_metadata_server_port={http}",
                              f"--metrics_port={metrics}", f"--default_kv_lease_ttl={LEASE_MS}"], log)
        wait_for_port(rpc, process)
        self.metadata = f"http://127.0.0.1:{http}/metadata"
        self.master = f"127.0.0.1:{rpc}"
        self.holder = self.start([sys.executable, os.path.abspath(__file__), "--hold-mooncake",
                                  self.metadata, self.master, str(4 * options.bytes)], subprocess.PIPE)
        if self.holder.stdout.readline().strip() != b"ready":
            raise Unavailable("mooncake: the process that holds the memory does not start")
        self.store = MooncakeDistributedStore()
        if self.store.setup("127.0.0.1", self.metadata, 0, 64 << 20, "tcp", "", self.master) != 0:
            raise Unavailable("mooncake: setup was refused")

    def start(self, arguments, log):
        if log is not subprocess.PIPE:
            return super().start(arguments, log)
        process = subprocess.Popen(arguments, stdout=log, stderr=subprocess.DEVNULL)
        self.processes.append(process)
        return process

    def prepare(self, lanes):
        for lane in lanes:
            if self.store.register_buffer(lane.buffer.address, lane.buffer.size_bytes) != 0:
                raise Unavailable("mooncake: a buffer was refused")

    def release(self, lanes):
        for lane in lanes:
            self.store.unregister_buffer(lane.buffer.address)

    def put(self, lane, number):
        code = self.store.put_from(str(number), lane.buffer.address, lane.buffer.size_bytes)
        if code != 0:
            raise RuntimeError(f"mooncake: put answers {code}")

    def get(self, lane, number):
        got = self.store.get_into(str(number), lane.buffer.address, lane.buffer.size_bytes)
        if got != lane.buffer.size_bytes:
            raise RuntimeError(f"mooncake: get answers {got}")

    def finish_puts(self, lane):
        pass

    def clear(self):
        time.sleep(1.1 * LEASE_MS / 1000)
        self.store.remove_all()

    def close(self):
        if self.store is not None:
            self.store.close()
        super().close()


def hold_mooncake(metadata, master, size_bytes):
    from mooncake.store import MooncakeDistributedStore
    out = os.dup(1)
    os.dup2(2, 1)
    store = MooncakeDistributedStore()
    if store.setup("127.0.0.1", metadata, int(size_bytes), 64 << 20, "tcp", "", master) != 0:
        return 1
    os.write(out, b"ready\n")
    signal.sigwait([signal.SIGTERM])
    store.close()
    return 0


class LmCache(Peer):
    name = "lmcache_tcp"

    def open(self, options, log):
        try:
            import torch
            from lmcache.utils import CacheEngineKey
            from lmcache.v1 import protocol
            from lmcache.v1.memory_management import MemoryFormat
        except ImportError as error:
            raise Unavailable(f"lmcache: {error}") from error
        self.protocol, self.format, self.torch = protocol, MemoryFormat.BINARY, torch
        self.make_key = lambda number: CacheEngineKey("bench", 1, 0, number, torch.uint8)
        self.port = free_port()
        wait_for_port(self.port, self.start([sys.executable, "-m", "lmcache.v1.server", "127.0.0.1",
                                             str(self.port)], log))

    def prepare(self, lanes):
        for lane in lanes:
            lane.socket = socket.create_connection(("127.0.0.1", self.port))

    def release(self, lanes):
        for lane in lanes:
            lane.socket.close()

    def request(self, lane, command, number, length):
        shape = self.torch.Size([length, 0, 0, 0])
        return self.protocol.ClientMetaMessage(command, self.make_key(number), length, self.format,
                                               self.torch.uint8, shape).serialize()

    def answer(self, lane):
        head = bytearray()
        while len(head) < self.protocol.ServerMetaMessage.packlength():
            part = lane.socket.recv(self.protocol.ServerMetaMessage.packlength() - len(head))
            if not part:
                raise RuntimeError("lmcache: the server is gone")
            head += part
        meta = self.protocol.ServerMetaMessage.deserialize(bytes(head))
        if meta.code != self.protocol.ServerReturnCode.SUCCESS:
            raise RuntimeError(f"lmcache: the server answers {meta.code}")
        return meta

    def put(self, lane, number):
        size = lane.buffer.size_bytes
        lane.socket.sendall(self.request(lane, self.protocol.ClientCommand.PUT, number, size))
        lane.socket.sendall(lane.buffer.view)

    def finish_puts(self, lane):
        # A put has no answer; the server works a connection off in order.
        lane.socket.sendall(self.request(lane, self.protocol.ClientCommand.HEALTH, 0, 0))
        self.answer(lane)

    def get(self, lane, number):
        lane.socket.sendall(self.request(lane, self.protocol.ClientCommand.GET, number, 0))
        size = self.answer(lane).length
        if size != lane.buffer.size_bytes:
            raise RuntimeError(f"lmcache: get answers {size} bytes")
        received = 0
        while received < size:
            n = lane.socket.recv_into(lane.buffer.view[received:], size - received)
            if n == 0:
                raise RuntimeError("lmcache: the server is gone")
            received += n

    def clear(self):
        pass  # has no such call; the same keys are put again


class Lane:
    def __init__(self, size_bytes):
        self.buffer = Buffer(size_bytes)
        self.socket = None
        self.us = []


def run_lane(peer, lane, op, numbers):
    for number in numbers:
        begin = time.perf_counter()
        if op == "put":
            lane.buffer.mark(number)
            peer.put(lane, number)
        else:
            peer.get(lane, number)
            lane.buffer.check(number)
        lane.us.append((time.perf_counter() - begin) * 1e6)
    if op == "put":
        peer.finish_puts(lane)


def run_round(peer, pool, lanes, op, count):
    cpu, begin = peer.cpu_seconds(), time.perf_counter()
    futures = [pool.submit(run_lane, peer, lane, op, range(i, count, len(lanes)))
               for i, lane in enumerate(lanes)]
    for future in futures:
        future.result()
    gigabytes = count * lanes[0].buffer.size_bytes / 1e9
    return gigabytes / (time.perf_counter() - begin), (peer.cpu_seconds() - cpu) / gigabytes


def row(op, transport, chunk_bytes, **figures):
    line = {"op": op, "transport": transport, "chunk_bytes": chunk_bytes, "library_gbps": None,
            "probe_gbps": None, "ratio": None, "cpu_s_per_gb": None, "p50_us": None, "p99_us": None, "note": ""}
    line.update(figures)
    return line


def measure(peer, chunk_bytes, options):
    """Of several numbers of lanes the best, for each operation."""
    count = max(1, options.bytes // chunk_bytes)
    best = {}
    for num_lanes in options.in_flight:
        lanes = [Lane(chunk_bytes) for _ in range(num_lanes)]
        peer.prepare(lanes)
        figures = {"put": [], "get": []}
        us = {"put": [], "get": []}
        with concurrent.futures.ThreadPoolExecutor(num_lanes) as pool:
            for repetition in range(options.repeat + 1):  # the first one warms up
                for op in ("put", "get"):
                    for lane in lanes:
                        lane.us = []
                    result = run_round(peer, pool, lanes, op, count)
                    if repetition > 0:
                        figures[op].append(result)
                        us[op] += [value for lane in lanes for value in lane.us]
                peer.clear()
        peer.release(lanes)
        for op, results in figures.items():
            gbps = statistics.median(result[0] for result in results)
            if op in best and best[op]["library_gbps"] >= gbps:
                continue
            times = sorted(us[op])
            best[op] = row(op, peer.name, chunk_bytes, library_gbps=gbps,
                           cpu_s_per_gb=statistics.median(result[1] for result in results),
                           p50_us=times[len(times) // 2], p99_us=times[int(0.99 * (len(times) - 1))],
                           note=f"{num_lanes} in flight")
    return best.values()


def main():
    if len(sys.argv) == 5 and sys.argv[1] == "--hold-mooncake":
        return hold_mooncake(*sys.argv[2:])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", choices=("mooncake", "lmcache"), required=True)
    parser.add_argument("--chunk-bytes", default="5898240,33554432", help="separated by commas")
    parser.add_argument("--bytes", type=int, default=512 << 20, help="that a round moves in each direction")
    parser.add_argument("--in-flight", default="1,2,4", help="separated by commas; the best counts")
    parser.add_argument("--repeat", type=int, default=5)
    options = parser.parse_args()
    options.in_flight = [int(value) for value in options.in_flight.split(",")]
    peer = {"mooncake": Mooncake, "lmcache": LmCache}[options.peer]()
    with tempfile.TemporaryFile() as log:
        try:
            peer.open(options, log)
            for chunk_bytes in map(int, options.chunk_bytes.split(",")):
                for line in measure(peer, chunk_bytes, options):
                    print(json.dumps(line), flush=True)
        except Unavailable as reason:
            print(json.dumps(row("skipped", options.peer, 0, note=str(reason))))
        finally:
            peer.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
