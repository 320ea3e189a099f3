#!/usr/bin/env python3
"""The `terrace` program: what it prints, and how it refuses. No figure is judged.

    program_test.py TERRACE NVME_TEST [unittest's arguments]      NVME_TEST makes the directories to be verified
"""
import fcntl
import hashlib
import json
import os
import pathlib
import pty
import shutil
import subprocess
import sys
import tempfile
import unittest

PROGRAM = ""
MAKER = ""
RUN_BYTES = 4096 + (64 << 10)  # one object of the maker's, tier page included


def run(*arguments, environment=None):
    return subprocess.run([PROGRAM, *arguments], capture_output=True, text=True, timeout=300, check=False,
                          env=environment)


def rows(*arguments, environment=None):
    result = run("bench", *arguments, "--json", environment=environment)
    assert result.returncode == 0, result.stderr
    return [json.loads(line) for line in result.stdout.splitlines()]


class BenchTest(unittest.TestCase):
    def test_lookup(self):
        measured = rows("lookup", "--tokens", "4096", "--repeat", "3")
        self.assertEqual([row["op"] for row in measured], ["lookup", "lookup_grown", "peek"])
        self.assertEqual(measured[0]["chunks"], 16)
        for row in measured:
            self.assertGreater(row["library_us"], 0)
            self.assertAlmostEqual(row["ratio"], row["library_us"] / row["probe_us"], places=6)

    def test_store(self):
        measured = rows("store", "--payload-bytes", str(2 << 20), "--repeat", "3")
        self.assertEqual([row["op"] for row in measured], ["prepare_commit", "store_view"])
        self.assertTrue(all(row["library_us"] > 0 and row["payload_bytes"] == 2 << 20 for row in measured))

    def test_copy(self):
        measured = rows("copy", "--bytes", str(1 << 20), "--chunk-bytes", str(1 << 20), "--threads", "1", "--repeat", "1")
        kinds = {(row["op"], row["layout"], row["piece_bytes"]) for row in measured}
        self.assertEqual(len(kinds), len(measured))
        paged = {(op, layout, piece) for op in ["gather", "scatter"] for piece in [2 << 10, 32 << 10]
                 for layout in ["vllm_flash_attention", "vllm_cross_layer", "sglang_mha", "trtllm_cross_layer"]}
        self.assertLessEqual(paged | {("contiguous", "to_pool", 1 << 20), ("contiguous", "from_pool", 1 << 20)}, kinds)
        for row in measured:
            self.assertEqual(list(row), ["op", "layout", "piece_bytes", "threads", "library_gbps", "probe_gbps",
                                         "memcpy_gbps", "ratio"])
            self.assertGreater(row["memcpy_gbps"], 0)
            self.assertAlmostEqual(row["ratio"], row["library_gbps"] / row["probe_gbps"], places=2)

    def test_copy_says_what_devices_there_are(self):
        arguments = ["bench", "copy", "--bytes", str(1 << 20), "--chunk-bytes", str(1 << 20), "--threads", "1",
                     "--repeat", "1"]
        result = run(*arguments)
        self.assertEqual(result.returncode, 0)
        self.assertRegex(result.stderr, "^(no device was measured: .+|device 0: .+)")
        result = run(*arguments, "--device", "999")
        self.assertEqual((result.returncode, result.stdout), (1, ""))
        self.assertIn("Unavailable", result.stderr)

    def test_index(self):
        measured = rows("index", "--entries", "20000", "--children", "1000", "--threads", "1", "--repeat", "1")
        self.assertIn("mixed", [row["op"] for row in measured])

    def test_nvme(self):
        with tempfile.TemporaryDirectory() as directory:
            measured = rows("nvme", "--dir", directory, "--bytes", str(256 << 20), "--chunk-bytes",
                            f"{256 << 10},{64 << 10}", "--repeat", "1", "--io-engine", "threads", "--baselines")
            self.assertEqual(os.listdir(directory), [])
        ours = [row for row in measured if row["system"] == "terrace"]
        ops = ["put", "get", "get_verified", "mixed_70_30", "get_alone", "get_beside_puts"]
        self.assertEqual([row["op"] for row in ours], ops * 2)
        for row in ours:
            self.assertGreater(row["library_gbps"], 0)
            self.assertGreater(row["p99_ms"], 0)
            if row["fio_gbps"] is None:
                self.assertTrue(row["note"])
            else:
                self.assertAlmostEqual(row["ratio"], row["library_gbps"] / row["fio_gbps"], places=6)
        beside = [(row["system"], row["op"]) for row in measured if row["system"] != "terrace"]
        self.assertEqual(beside, [("rocksdb_blob", "put"), ("rocksdb_blob", "get"),
                                  ("file_per_chunk", "put"), ("file_per_chunk", "get")] * 2)

    def test_nvme_encrypted_and_synced(self):
        with tempfile.TemporaryDirectory() as root:
            directory, keys = pathlib.Path(root) / "bench", pathlib.Path(root) / "keys"
            directory.mkdir()
            keys.touch(mode=0o600)
            keys.write_text("1 " + "ab" * 32 + "\n", encoding="utf-8")
            for arguments, ways in [(["--nvme-key-file", str(keys)], "encrypted; "), (["--durability", "flush"], ""),
                                    (["--durability", "none"], "durability none; "),
                                    (["--nvme-key-file", str(keys), "--durability", "sync"],
                                     "encrypted; durability sync; ")]:
                measured = rows("nvme", "--dir", str(directory), "--bytes", str(256 << 20), "--chunk-bytes",
                                str(256 << 10), "--repeat", "1", "--ops", "put,get_verified", *arguments,
                                environment={**os.environ, "PATH": root})
                self.assertEqual([row["op"] for row in measured], ["put", "get_verified"])
                for row in measured:
                    self.assertGreater(row["library_gbps"], 0)
                    self.assertRegex(row["note"], f"^{ways}fio is not installed")
            keys.chmod(0o644)
            result = run("bench", "nvme", "--dir", str(directory), "--nvme-key-file", str(keys))
            self.assertEqual(result.returncode, 1)
            self.assertIn(str(keys), result.stderr)
            self.assertEqual(os.listdir(directory), [])

    def test_nvme_without_fio(self):
        with tempfile.TemporaryDirectory() as directory:
            measured = rows("nvme", "--dir", directory, "--bytes", str(256 << 20), "--chunk-bytes",
                            str(256 << 10), "--repeat", "1", environment={**os.environ, "PATH": directory})
        for row in measured:
            self.assertIsNone(row["fio_gbps"])
            self.assertIn("not installed", row["note"])

    def test_restart(self):
        with tempfile.TemporaryDirectory() as directory:
            measured = rows("restart", "--dir", directory, "--entries", "1000", "--repeat", "1")
            self.assertEqual(os.listdir(directory), [])
        self.assertEqual(
            [row["phase"] for row in measured],
            ["manifest_scan_bare", "contents_scan_bare", "nvme_open", "manager_restore", "total", "contents"],
        )
        for row in measured:
            self.assertAlmostEqual(row["entries_per_s"] * row["seconds"], 1000, places=3)
            self.assertAlmostEqual(row["ratio"] * row["seconds"], measured[0]["seconds"], places=6)

    def test_a_table_without_json(self):
        result = run("bench", "lookup", "--tokens", "256", "--repeat", "1")
        self.assertEqual(result.returncode, 0)
        self.assertTrue(result.stdout.startswith("op "))
        self.assertEqual(len(result.stdout.splitlines()), 4)


class RefusalTest(unittest.TestCase):
    def test_errors_name_option_and_value(self):
        for arguments, wanted in [
            (["bench", "lookup", "--tokens", "12"], "--tokens"),
            (["bench", "lookup", "--tokens", "many"], "many"),
            (["bench", "store", "--payload-bytes", "7"], "--payload-bytes"),
            (["bench", "copy", "--threads", "0"], "--threads"),
            (["bench", "nvme"], "--dir"),
            (["bench", "nvme", "--dir", "/", "--io-engine", "steam"], "--io-engine"),
            (["bench", "nvme", "--dir", "/", "--durability", "eternal"], "--durability"),
            (["bench", "restart", "--dir", "/nowhere/at/all"], "/nowhere/at/all"),
            (["bench", "restart", "--entries", "1"], "--dir"),
            (["bench"], "subcommand"),
            (["bench", "nothing"], "subcommand"),
            ([], "subcommand"),
        ]:
            result = run(*arguments)
            self.assertEqual(result.returncode, 2, arguments)
            self.assertIn(wanted, result.stderr + result.stdout, arguments)

    def test_tokens_that_are_no_multiple_of_a_chunk(self):
        result = run("bench", "lookup", "--tokens", "1000")
        self.assertEqual(result.returncode, 1)
        self.assertIn("1000", result.stderr)

    def test_nvme_says_what_is_wrong(self):
        with tempfile.TemporaryDirectory() as directory:
            for arguments, wanted in [
                (["--dir", directory + "/absent"], "absent is not there"),
                (["--dir", directory, "--bytes", "1000"], "bytes = 1000"),
                (["--dir", directory, "--bytes", str(1 << 50)], "has room for"),
                (["--dir", directory, "--ops", "get,gat"], "ops has gat"),
                (["--dir", directory, "--chunk-bytes", "1000"], "chunk_bytes = 1000"),
                (["--dir", directory, "--bytes", str(256 << 20), "--chunk-bytes", str(8 << 20)], "a 64th"),
                (["--dir", directory, "--bytes", str(256 << 20), "--chunk-bytes", str(1 << 20),
                  "--request-bytes", "1"], "request_bytes = 1"),
            ]:
                result = run("bench", "nvme", *arguments)
                self.assertEqual(result.returncode, 1, arguments)
                self.assertIn(wanted, result.stderr, arguments)
                self.assertEqual(os.listdir(directory), [])
            os.mkdir(directory + "/terrace-bench-nvme")
            result = run("bench", "nvme", "--dir", directory, "--bytes", str(256 << 20), "--chunk-bytes", "65536")
            self.assertEqual(result.returncode, 1)
            self.assertIn("in the way", result.stderr)

    def test_remote_says_what_is_wrong(self):
        with tempfile.TemporaryDirectory() as directory:
            for arguments, wanted in [
                (["--chunk-bytes", "100"], "chunk_bytes = 100, allowed: 4096 to"),
                (["--bytes", "5898240"], "bytes = 5898240"),
                (["--connections", "9"], "connections = 9, allowed: 1 to 8"),
                (["--batch", "0"], "batch = 0"),
                (["--in-flight", "65"], "batches_in_flight = 65"),
                (["--clients", "0"], "clients = 0"),
                (["--transport", "bulk_tcp,pigeon"], "transport pigeon, allowed: grpc_tcp"),
                (["--address", "127.0.0.1:1", "--transport", "shm"], "transport shm needs an address unix:PATH"),
                (["--address", f"unix:{directory}/absent", "--transport", "grpc_tcp"],
                 "transport grpc_tcp needs an address HOST:PORT"),
            ]:
                result = run("bench", "remote", *arguments, environment={"TMPDIR": directory})
                self.assertEqual(result.returncode, 1, arguments)
                self.assertIn(wanted, result.stderr, arguments)
                self.assertEqual(os.listdir(directory), [], arguments)

    def test_version_and_help(self):
        self.assertRegex(run("--version").stdout, r"^\d+\.\d+\.\d+$")
        self.assertEqual(run("--help").returncode, 0)


class VerifyTest(unittest.TestCase):
    def setUp(self):
        self.root = pathlib.Path(tempfile.mkdtemp(prefix="terrace-verify-"))
        self.addCleanup(shutil.rmtree, self.root)
        self.tier = self.root / "tier"

    def make(self, damage=""):
        environment = {**os.environ, "TERRACE_NVME_TEST_DIRECTORY": str(self.tier), "TERRACE_NVME_TEST_DAMAGE": damage}
        made = subprocess.run([MAKER, "--gtest_also_run_disabled_tests",
                               "--gtest_filter=NvmeVerifyTest.DISABLED_MakesADirectory"],
                              env=environment, capture_output=True, text=True, timeout=120, check=False)
        self.assertEqual(made.returncode, 0, made.stdout + made.stderr)

    def change(self, offset, change):
        with open(self.tier / "seg-000000", "r+b") as segment:
            segment.seek(offset)
            old = segment.read(4096)
            segment.seek(offset)
            segment.write(change(old))

    def verify(self, *arguments, exit_code):
        result = run("verify", str(self.tier), "--json", *arguments)
        self.assertEqual(result.returncode, exit_code, result.stderr)
        self.assertEqual(result.stderr, "")
        report = json.loads(result.stdout)
        self.assertEqual(report["live_bytes"] + report["free_bytes"] + report["quarantined_bytes"],
                         report["segment_bytes"])
        return report

    def digest(self):
        files = sorted(path for path in self.tier.rglob("*") if path.is_file() and path.name != "lock")
        return [(str(path), hashlib.sha256(path.read_bytes()).hexdigest()) for path in files]

    def test_a_clean_tier_is_read_in_full_and_not_changed(self):
        self.make()
        before = self.digest()
        report = self.verify(exit_code=0)
        self.assertEqual(self.digest(), before)
        self.assertTrue(report["clean"])
        self.assertEqual(report["objects_checked"], 4)
        self.assertEqual(report["bytes_read"], 4 * RUN_BYTES)
        self.assertEqual(report["live_bytes"], 4 * RUN_BYTES)
        self.assertEqual(report["findings"], [])
        text = run("verify", str(self.tier))
        self.assertEqual((text.returncode, text.stderr), (0, ""), "no bar without a terminal")
        self.assertIn("4 objects read", text.stdout)
        self.assertTrue(text.stdout.endswith("clean\n"))

    def test_each_kind_of_damage(self):
        def flipped(old):
            return bytes([old[0] ^ 1]) + old[1:]

        def wiped(old):
            return bytes(len(old))

        on_disk = [("payload", RUN_BYTES + 40960, flipped), ("tier_page", RUN_BYTES + 32, flipped),
                   ("tier_page", RUN_BYTES, wiped), ("frame_header", RUN_BYTES + 4096 + 180, flipped)]
        in_records = ["place_record", "record_key", "content_record", "identity", "root_record", "place_bounds",
                      "place_overlap", "quarantine", "erased"]
        for kind, offset, change in on_disk + [(kind, None, None) for kind in in_records]:
            with self.subTest(kind=kind, change=change and change.__name__):
                self.make("" if change else kind)
                if change:
                    self.change(offset, change)
                before = self.digest()
                report = self.verify(exit_code=1)
                self.assertEqual(self.digest(), before)
                counts = {name: count["count"] for name, count in report["counts"].items() if count["count"] > 0}
                self.assertEqual(counts, {kind: 1})
                self.assertEqual([finding["kind"] for finding in report["findings"]], [kind])
                self.assertFalse(report["clean"])
                self.assertEqual(report["quarantined_bytes"], 4096 if kind == "quarantine" else 0)
                self.assertEqual(report["dropped_records"], 0)
                text = run("verify", str(self.tier))
                self.assertEqual(text.returncode, 1)
                self.assertIn(report["findings"][0]["reason"], text.stdout)
                self.assertEqual(self.verify("--repair", exit_code=1)["dropped_records"], 1)
                again = self.verify("--repair", exit_code=0)
                self.assertEqual(again["dropped_records"], 0)
                stay = kind in ("content_record", "identity", "root_record", "record_key")
                self.assertEqual(again["objects_checked"], 4 if stay else 3)
                shutil.rmtree(self.tier)

    def test_what_repair_cannot_mend(self):
        self.make()
        self.assertEqual(self.verify("--repair", "--capacity-bytes", "4096", exit_code=1)["counts"]["capacity"]["count"], 1)
        shutil.rmtree(self.tier / "manifest")
        report = self.verify("--repair", exit_code=1)
        self.assertEqual(report["counts"]["manifest"]["count"], 1)
        self.assertEqual(report["dropped_records"], 0)
        self.assertIn("nothing that dropping", run("verify", str(self.tier), "--repair").stdout)

    def keys(self, name, *lines):
        path = self.root / name
        path.touch(mode=0o600)
        path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
        return ["--nvme-key-file", str(path)]

    def test_an_encrypted_tier(self):
        self.make("encrypted")
        right = self.keys("right", "# made for this", "1 " + "11" * 32)
        before = self.digest()
        report = self.verify(*right, exit_code=0)
        self.assertEqual(self.digest(), before)
        self.assertEqual((report["objects_checked"], report["bytes_read"]), (4, 4 * (RUN_BYTES + 4096)))
        for keys, code, wanted in [([], 3, "key id 1 was not given"),
                                   (self.keys("wrong", "1 " + "12" * 32), 3, "not the key"),
                                   (self.keys("old", "2 " + "11" * 32), 3, "key id 1 was not given"),
                                   (self.keys("short", "1 1111"), 2, "line 1"),
                                   (["--nvme-key-file", str(self.root / "absent")], 3, "absent")]:
            result = run("verify", str(self.tier), "--json", *keys)
            self.assertEqual((result.returncode, result.stdout), (code, ""), keys)
            self.assertIn(wanted, result.stderr, keys)
        self.assertEqual(self.digest(), before)
        self.change(4096 + RUN_BYTES, lambda old: bytes([old[0] ^ 1]) + old[1:])
        self.assertEqual(self.verify("--repair", *right, exit_code=1)["dropped_records"], 1)
        self.assertEqual(self.verify(*right, exit_code=0)["objects_checked"], 3)
        shutil.rmtree(self.tier)
        self.make()
        plain = run("verify", str(self.tier), *right)
        self.assertEqual(plain.returncode, 2)
        self.assertIn("without encryption", plain.stderr)

    def test_several_directories(self):
        self.make()
        clean = self.root / "clean"
        shutil.copytree(self.tier, clean)
        self.change(RUN_BYTES, lambda old: bytes(len(old)))
        result = run("verify", str(clean), str(self.tier), "--json")
        self.assertEqual((result.returncode, result.stderr), (1, ""))
        reports = [json.loads(line) for line in result.stdout.splitlines()]
        self.assertEqual([(report["directory"], report["clean"]) for report in reports],
                         [(str(clean), True), (str(self.tier), False)])
        result = run("verify", str(self.root / "absent"), str(self.tier), "--repair")
        self.assertEqual(result.returncode, 3)
        self.assertIn("absent does not exist", result.stderr)
        self.assertIn("dropped 1 records", result.stdout)
        result = run("verify", str(clean), str(self.tier))
        self.assertEqual(result.returncode, 0, "the first that failed did not keep the second from its repair")
        self.assertEqual(result.stdout.count("\nclean\n"), 2)

    def test_what_is_not_judged(self):
        def refused(wanted):
            result = run("verify", str(self.tier), "--repair", "--json")
            self.assertEqual((result.returncode, result.stdout), (3, ""))
            self.assertIn(wanted, result.stderr)

        refused("does not exist")
        self.assertFalse(self.tier.exists())
        self.tier.mkdir()
        (self.tier / "file").write_text("x")
        refused("not a Terrace directory")
        self.assertEqual([path.name for path in self.tier.iterdir()], ["file"])
        shutil.rmtree(self.tier)
        self.make()
        with open(self.tier / "lock", "w", encoding="utf-8") as lock:
            lock.write("pid 4711\nprocess engine\nhost here\nsince now\n")
            lock.flush()
            fcntl.flock(lock, fcntl.LOCK_EX)
            refused("is held by process engine (4711)")
        superblock = self.tier / "superblock"
        superblock.write_bytes(superblock.read_bytes()[:8] + b"\x63" + superblock.read_bytes()[9:])
        refused("version 99")

    def test_usage(self):
        for arguments in ([], [str(self.tier), "--repairs"], [""], [str(self.tier), "--io-engine", "steam"],
                          [str(self.tier), "--capacity-bytes", "many"]):
            self.assertEqual(run("verify", *arguments).returncode, 2, arguments)
        self.assertIn("Exit codes: 0 clean; 1 something was wrong", run("verify", "--help").stdout)

    def test_a_bar_on_a_terminal(self):
        self.make()
        for extra, has_bar in ([], True), (["--json"], False):
            ours, theirs = pty.openpty()
            with subprocess.Popen([PROGRAM, "verify", str(self.tier), *extra], stdout=subprocess.DEVNULL,
                                  stderr=theirs) as process:
                self.assertEqual(process.wait(timeout=60), 0)
            os.close(theirs)
            try:
                shown = os.read(ours, 1 << 16).decode()
            except OSError:  # nothing was written, and the other end is closed
                shown = ""
            os.close(ours)
            self.assertEqual("100 %" in shown, has_bar, shown)


if __name__ == "__main__":
    PROGRAM = sys.argv.pop(1)
    MAKER = sys.argv.pop(1)
    unittest.main()
