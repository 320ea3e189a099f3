#!/usr/bin/env python3
"""The `terrace` program: what it prints, and how it refuses. No figure is judged."""
import json
import subprocess
import sys
import unittest

PROGRAM = ""


def run(*arguments):
    return subprocess.run([PROGRAM, *arguments], capture_output=True, text=True, timeout=300, check=False)


def rows(*arguments):
    result = run("bench", *arguments, "--json")
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
        measured = rows("copy", "--bytes", str(1 << 20), "--threads", "1", "--repeat", "1")
        self.assertIn("to_pool", [row["op"] for row in measured])
        for row in measured:
            self.assertAlmostEqual(row["ratio"], row["library_gbps"] / row["probe_gbps"], places=2)

    def test_index(self):
        measured = rows("index", "--entries", "20000", "--children", "1000", "--threads", "1", "--repeat", "1")
        self.assertIn("mixed", [row["op"] for row in measured])

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

    def test_version_and_help(self):
        self.assertRegex(run("--version").stdout, r"^\d+\.\d+\.\d+$")
        self.assertEqual(run("--help").returncode, 0)


if __name__ == "__main__":
    PROGRAM = sys.argv.pop(1)
    unittest.main()
