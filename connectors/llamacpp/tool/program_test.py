#!/usr/bin/env python3
"""Runs the real terrace-llama with real weights. Standard library only.

    program_test.py PROGRAM MODEL [TERRACE]        TERRACE: the program that serves; without it those tests are skipped
"""
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
import unittest

PROGRAM = MODEL = TERRACE = ""
# Other tests run beside this one, and threads of the engine that wait for each other by spinning suffer most.
ONE_THREAD = ["--threads", "1"]
LICENCE = "/usr/share/common-licenses/GPL-3"


def run(*arguments, stdin="", environment=None):
    return subprocess.run([PROGRAM, *arguments], input=stdin, text=True, capture_output=True, timeout=240,
                          env=environment)


def document(characters):
    """The licence's beginning: about 600 tokens are 2,700 characters."""
    with open(LICENCE, encoding="utf-8") as f:
        return f.read()[:characters]


def summaries(stderr):
    """prompt, loaded, in the context, computed of each answer."""
    pattern = r"prompt (\d+) tokens: (\d+) loaded(?: \([^)]*\))?, (\d+) in the context, (\d+) computed"
    return [tuple(map(int, found)) for found in re.findall(pattern, stderr)]


def needs_server(test):
    if not TERRACE:
        test.skipTest("the program `terrace` was not built")


class Server:
    """`terrace serve` on loopback and a Unix socket, until the end of the block."""

    def __init__(self, test):
        needs_server(test)
        self.socket = os.path.join(test.folder.name, "server.sock")
        with socket.socket() as probe:  # nobody listens there at this moment
            probe.bind(("127.0.0.1", 0))
            self.tcp = f"127.0.0.1:{probe.getsockname()[1]}"
        self.unix = "unix:" + self.socket

    def __enter__(self):
        self.process = subprocess.Popen([TERRACE, "serve", "--listen", self.tcp, "--unix", self.socket,
                                         "--host-bytes", "128MiB", "--metrics-port", "off"],
                                        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        host, port = self.tcp.split(":")
        limit = time.monotonic() + 60
        for family, address in ((socket.AF_INET, (host, int(port))), (socket.AF_UNIX, self.socket)):
            while True:
                with socket.socket(family) as probe:
                    if probe.connect_ex(address) == 0:
                        break
                assert self.process.poll() is None, f"the server ended with {self.process.returncode}"
                assert time.monotonic() < limit, "the server takes no connections"
                time.sleep(0.01)
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait(timeout=60)


class ProgramTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory(prefix="terrace-program-test-")
        self.addCleanup(self.folder.cleanup)
        self.cache = os.path.join(self.folder.name, "kv")
        self.size = ["--nvme-bytes", "256MiB", "--host-bytes", "128MiB"]

    def ok(self, *arguments, **keywords):
        done = run(*arguments, **keywords)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done

    def answer(self, *arguments):
        done = self.ok("run", "-m", MODEL, "--json", *ONE_THREAD, *arguments)
        lines = [json.loads(line) for line in done.stdout.splitlines()]
        self.assertEqual(len(lines), 1)
        return lines[0]

    # Usage.

    def test_wrong_options_exit_2_and_name_option_value_and_what_is_allowed(self):
        here = ["run", "-m", MODEL, "-p", "x"]
        table = [
            ([*here, "--host-bytes", "4G"], "--host-bytes", '"4G"', "512MiB"),
            ([*here, "--nvme-bytes", "-1"], "--nvme-bytes", '"-1"', "GiB"),
            ([*here, "--nvme-bytes", "9999999999TiB"], "--nvme-bytes", '"9999999999TiB"', "below 2^63"),
            ([*here, "--threads", "0"], "--threads", '"0"', "from 1 to"),
            ([*here, "-n", "many"], "--tokens", '"many"', "from 1 to"),
            ([*here, "--ctx", "3"], "--ctx", '"3"', "from 256 to"),
            ([*here, "--flash-attn", "auto"], "--flash-attn", '"auto"', "on, off"),
            ([*here, "--kv-type", "q5_1"], "--kv-type", '"q5_1"', "f16, q8_0, q4_0"),
            ([*here, "--kv-type", "q8_0"], "--kv-type", '"q8_0"', "--flash-attn on"),
            ([*here, "--chat-template", "maybe"], "--chat-template", '"maybe"', "on, off"),
            ([*here, "--require-cache"], "--require-cache", '"on"', "--cache DIR"),
            ([*here, "--io-engine", "magic"], "--io-engine", '"magic"', "auto, io_uring, threads"),
            ([*here, "--nvme-key-file", "k"], "--nvme-key-file", '"k"', "--cache DIR"),
            ([*here, "--remote", "nowhere"], "--remote", '"nowhere"', "HOST:PORT"),
            ([*here, "--remote", "a:1,b:70000"], "--remote", '"a:1,b:70000"', "unix:/PATH"),
            ([*here, "--remote", "::1:7420"], "--remote", '"::1:7420"', "[V6]:PORT"),
            ([*here, "--remote", "unix:/"], "--remote", '"unix:/"', "unix:/PATH"),
            ([*here, "--remote-path", "pigeon"], "--remote-path", '"pigeon"', "auto, streams, bulk, shm"),
            ([*here, "--remote-deadline", "10"], "--remote-deadline", '"10"', "from 10ms to 10m"),
            ([*here, "--remote-deadline", "9ms"], "--remote-deadline", '"9ms"', "from 10ms to 10m"),
            ([*here, "--remote-deadline", "11m"], "--remote-deadline", '"11m"', "from 10ms to 10m"),
            ([*here, "--remote-token-file", "t"], "--remote-token-file", '"t"', "--remote ADDR"),
            ([*here, "--remote-ca", "c"], "--remote-ca", '"c"', "--remote ADDR"),
            (["bench", "-m", MODEL, "--cases", "shm", "--remote", "a:1"], "--cases", '"shm"', "unix:/PATH"),
            ([*here, "--document-tokens", "9"], "--document-tokens", '"9"', "--document FILE"),
            (["run", "-m", MODEL], "--prompt", '""', "--file FILE"),
            (["run", "-m", MODEL, "-f", "/nowhere/at/all"], "--file", '"/nowhere/at/all"', "can be read"),
            (["run", "-m", "/nowhere/at/all", "-p", "x"], "--model", '"/nowhere/at/all"', "can be read"),
            (["bench", "-m", MODEL, "--cases", "cold,warm"], "--cases", '"cold,warm"', "cold, slot, host, nvme, remote, shm"),
            (["bench", "-m", MODEL, "--cases", "nvme"], "--cases", '"nvme"', "--cache DIR"),
            (["bench", "-m", MODEL, "--repeat", "0"], "--repeat", '"0"', "from 1 to"),
            (["sing"], "command", '"sing"', "run, chat, bench"),
        ]
        for arguments, option, value, allowed in table:
            with self.subTest(arguments=arguments):
                done = run(*arguments)
                self.assertEqual(done.returncode, 2, done.stderr)
                self.assertEqual(done.stdout, "")
                for part in (option, value, "allowed:", allowed):
                    self.assertIn(part, done.stderr)

    def test_unknown_option_exits_2(self):
        done = run("run", "-m", MODEL, "-p", "x", "--cahce", self.cache)
        self.assertEqual(done.returncode, 2)
        self.assertIn("--cahce", done.stderr)
        self.assertFalse(os.path.exists(self.cache))

    def test_a_file_that_is_no_model_exits_2(self):
        path = os.path.join(self.folder.name, "text.gguf")
        with open(path, "w", encoding="utf-8") as f:
            f.write("this is not a model, but it is long enough to be looked at\n" * 10)
        done = run("run", "-m", path, "-p", "x")
        self.assertEqual(done.returncode, 2)
        self.assertIn(f'--model: "{path}"', done.stderr)

    def test_a_prompt_larger_than_the_context_exits_2(self):
        done = run("run", "-m", MODEL, "-p", document(2700), "--ctx", "256")
        self.assertEqual(done.returncode, 2)
        self.assertIn("--ctx", done.stderr)

    def test_version_and_help(self):
        self.assertRegex(self.ok("--version").stdout, r"^terrace-llama \d+\.\d+\.\d+\n")
        for command in ("run", "chat", "bench"):
            self.assertIn("Examples:", self.ok(command, "--help").stdout)

    # run.

    def test_a_second_process_loads_the_prompt_and_answers_the_same(self):
        prompt = ["-p", document(2700) + "\n\nWhat is the name of this license?", "-n", "16"]
        without = self.answer(*prompt)
        with_cache = [*prompt, "--exact", "--cache", self.cache, *self.size]
        first = self.answer(*with_cache)
        second = self.answer(*with_cache)
        self.assertGreater(first["prompt_tokens"], 520)
        self.assertEqual(first["loaded_tokens"], 0)
        self.assertEqual(first["decoded_tokens"], first["prompt_tokens"])
        self.assertEqual(second["loaded_tokens"], 512)
        self.assertEqual(second["decoded_tokens"], second["prompt_tokens"] - 512)
        self.assertEqual(second["nvme_objects"], 2)
        self.assertEqual(second["host_objects"], 0)
        self.assertGreater(second["loaded_bytes"], 0)
        for answer in (first, second):
            self.assertEqual(answer["answer_tokens"], without["answer_tokens"])
            self.assertEqual(answer["answer"], without["answer"])
        self.assertGreater(len(without["answer_tokens"]), 3)
        # Another salt is another cache, and another prompt's answer is not this one's.
        salted = self.answer(*with_cache, "--salt", "other")
        self.assertEqual(salted["loaded_tokens"], 0)
        self.assertEqual(salted["answer_tokens"], without["answer_tokens"])

    def test_the_host_tier_serves_the_next_prompt_of_the_process(self):
        path = os.path.join(self.folder.name, "document.txt")
        with open(path, "w", encoding="utf-8") as f:
            f.write(document(1600))
        done = self.ok("run", "-m", MODEL, *ONE_THREAD, "--json", "--exact", "--clear-slot", "--host-bytes", "128MiB", "-n", "8",
                       "--document", path, "--document-tokens", "256", "-p", "What is this?", "-p", "Who wrote this?")
        first, second = map(json.loads, done.stdout.splitlines())
        self.assertEqual((first["document_tokens"], first["loaded_tokens"], first["slot_tokens"]), (256, 0, 0))
        self.assertEqual((second["loaded_tokens"], second["slot_tokens"]), (256, 0))
        self.assertEqual((second["host_objects"], second["nvme_objects"]), (1, 0))
        self.assertEqual(second["decoded_tokens"], second["prompt_tokens"] - 256)

    def test_tails_and_generated_tokens_are_kept(self):
        arguments = ["-p", document(900), "-n", "12", "--cache", self.cache, *self.size]
        first = self.answer(*arguments)
        second = self.answer(*arguments)
        self.assertEqual(first["loaded_tokens"], 0)
        self.assertEqual(second["loaded_tokens"], second["prompt_tokens"] - 1)
        self.assertEqual(second["decoded_tokens"], 1)

    # The cache directory.

    def test_an_encrypted_cache_needs_its_key(self):
        keys = os.path.join(self.folder.name, "keys")
        with open(keys, "w", encoding="ascii") as file:
            file.write("1 " + "ab" * 32 + "\n")
        arguments = ["-p", document(900), "-n", "2", "--cache", self.cache, *self.size]
        required = ["run", "-m", MODEL, *arguments, "--require-cache", "--nvme-key-file", keys]
        os.chmod(keys, 0o644)
        refused = run(*required)
        self.assertEqual(refused.returncode, 2, refused.stderr)
        self.assertIn("chmod 600", refused.stderr)
        self.assertFalse(os.path.exists(self.cache))
        os.chmod(keys, 0o600)
        self.answer(*arguments, "--nvme-key-file", keys, "--io-engine", "threads")
        self.assertGreater(self.answer(*arguments, "--nvme-key-file", keys)["nvme_objects"], 0)
        without = run("run", "-m", MODEL, *arguments, "--require-cache")
        self.assertEqual(without.returncode, 2, without.stderr)
        self.assertIn("key id 1", without.stderr)

    def test_a_held_directory_is_left_out_or_required(self):
        holder = subprocess.Popen([PROGRAM, "chat", "-m", MODEL, "--cache", self.cache, "-n", "4", *ONE_THREAD, *self.size],
                                  stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        try:
            holder.stdin.write("Hello\n")
            holder.stdin.flush()
            self.assertTrue(holder.stdout.readline())  # it has answered, so it holds the directory
            second = run("run", "-m", MODEL, "-p", "What is the capital of France?", "-n", "12", "--cache", self.cache)
            self.assertEqual(second.returncode, 0, second.stderr)
            self.assertIn("Paris", second.stdout)
            self.assertIn(f'--cache "{self.cache}"', second.stderr)
            self.assertRegex(second.stderr, rf"\b{holder.pid}\b")
            self.assertIn(socket.gethostname(), second.stderr)
            required = run("run", "-m", MODEL, "-p", "x", "--cache", self.cache, "--require-cache")
            self.assertEqual(required.returncode, 2, required.stderr)
            self.assertEqual(required.stdout, "")
            self.assertRegex(required.stderr, rf"\b{holder.pid}\b")
        finally:
            holder.stdin.close()
            self.assertEqual(holder.wait(timeout=60), 0)
            holder.stdout.close()
        self.ok("run", "-m", MODEL, "-p", "x", "-n", "1", "--cache", self.cache, "--require-cache", *self.size)

    def test_a_directory_that_cannot_be_made(self):
        path = os.path.join(self.folder.name, "file")
        with open(path, "w", encoding="utf-8") as f:
            f.write("in the way")
        arguments = ["run", "-m", MODEL, "-p", "What is the capital of France?", "-n", "12", "--cache", path + "/kv"]
        done = self.ok(*arguments)
        self.assertIn("Paris", done.stdout)
        self.assertIn(f'--cache "{path}/kv"', done.stderr)
        self.assertEqual(run(*arguments, "--require-cache").returncode, 2)

    def test_no_room_at_all(self):
        done = self.ok("run", "-m", MODEL, "-p", "What is the capital of France?", "-n", "12", "--cache", self.cache,
                       "--nvme-bytes", "0", "--host-bytes", "0")
        self.assertIn("Paris", done.stdout)

    # The remote tier.

    def test_a_second_process_answers_from_the_server_alike(self):
        prompt = ["-p", document(2700) + "\n\nWhat is the name of this license?", "-n", "16", "--exact"]
        without = self.answer(*prompt)
        self.assertGreater(len(without["answer_tokens"]), 3)
        with Server(self) as server:
            remote = ["--remote", server.tcp, "--host-bytes", "128MiB"]
            first = self.answer(*prompt, *remote)
            self.assertEqual((first["loaded_tokens"], first["remote_tokens"]), (0, 0))
            self.assertEqual(first["decoded_tokens"], first["prompt_tokens"])
            for address, path in ((server.tcp, "auto"), (server.tcp, "bulk"), (server.tcp, "streams"),
                                  (server.unix, "auto"), (server.unix, "shm")):
                with self.subTest(address=address, path=path):
                    second = self.answer(*prompt, "--remote", address, "--remote-path", path, "--host-bytes", "128MiB")
                    self.assertEqual((second["remote_tokens"], second["remote_objects"]), (512, 2))
                    self.assertEqual((second["loaded_tokens"], second["host_tokens"]), (512, 0))
                    self.assertEqual(second["decoded_tokens"], second["prompt_tokens"] - 512)
                    self.assertEqual(second["answer_tokens"], without["answer_tokens"])
            # Without host memory too; and another salt, or another prompt, finds nothing.
            bare = self.answer(*prompt, "--remote", server.unix, "--host-bytes", "0")
            self.assertEqual(bare["remote_tokens"], 512)
            self.assertEqual(self.answer(*prompt, *remote, "--salt", "other")["loaded_tokens"], 0)
            other = self.answer("-p", "No " + prompt[1], *prompt[2:], *remote)
            self.assertEqual(other["loaded_tokens"], 0)

    def test_a_server_that_is_not_there_is_a_line_and_a_miss(self):
        prompt = ["-p", document(1500), "-n", "4"]
        without = self.answer(*prompt)
        done = self.ok("run", "-m", MODEL, "--json", *ONE_THREAD, *prompt, "--remote", "unix:" + self.cache,
                       "--remote-deadline", "500ms", "--host-bytes", "128MiB")
        answer = json.loads(done.stdout)
        self.assertEqual(answer["answer_tokens"], without["answer_tokens"])
        self.assertEqual(answer["loaded_tokens"], 0)
        self.assertLess(answer["remote_ms"], 5500)
        self.assertIn(f'--remote "unix:{self.cache}": no answer', done.stderr)
        self.assertIn("did not get there", done.stderr)

    def test_files_of_the_remote_tier_that_cannot_be_used(self):
        token = os.path.join(self.folder.name, "token")
        arguments = ["-p", "What is the capital of France?", "-n", "12", "--remote", "unix:" + self.cache,
                     "--remote-token-file", token]
        for mode, text, word in ((0o644, "s3cret\n", "chmod 600"), (0o600, "", "one token"),
                                 (0o600, "two words\n", "one token")):
            with open(token, "w", encoding="ascii") as file:
                file.write(text)
            os.chmod(token, mode)
            refused = run("run", "-m", MODEL, *arguments, "--require-cache")
            self.assertEqual(refused.returncode, 2, refused.stderr)
            self.assertIn(word, refused.stderr)
            self.assertNotIn("s3cret", refused.stderr)
        self.assertIn("Paris", self.ok("run", "-m", MODEL, *arguments).stdout)
        missing = run("run", "-m", MODEL, "-p", "x", "--remote", "a:1", "--remote-ca", self.cache, "--require-cache")
        self.assertEqual(missing.returncode, 2, missing.stderr)
        self.assertIn("--remote-ca", missing.stderr)

    # chat.

    def test_chat_comes_back_without_recomputing(self):
        session = os.path.join(self.folder.name, "talk.json")
        chat = ["chat", "-m", MODEL, "--session", session, "--cache", self.cache, "-n", "24", *ONE_THREAD, *self.size]
        opening = " ".join(document(2000).split()) + " Tell me what this text is about."
        first = self.ok(*chat, stdin=f"{opening}\nWhich license is it?\n")
        (prompt, loaded, _, computed), (prompt2, loaded2, slot2, _) = summaries(first.stderr)
        self.assertEqual((loaded, computed), (0, prompt))
        self.assertGreater(slot2, prompt)  # the answer's tokens too
        self.assertEqual(loaded2, 0)
        self.assertEqual(len(first.stdout.splitlines()) >= 2, True)
        with open(session, encoding="utf-8") as f:
            saved = json.load(f)
        self.assertEqual([m["role"] for m in saved["messages"]], ["user", "assistant"] * 2)
        self.assertEqual(saved["messages"][0]["content"], opening)
        self.assertEqual(os.stat(session).st_mode & 0o777, 0o600)

        second = self.ok(*chat, stdin="And who may copy it?\n")
        self.assertIn("going on with a conversation of 4 messages", second.stderr)
        ((prompt3, loaded3, slot3, computed3),) = summaries(second.stderr)
        self.assertEqual(slot3, 0)
        # All but the last generated token of what was said before, which was never computed.
        self.assertGreaterEqual(loaded3, len(saved["tokens"]) - 1)
        self.assertGreater(loaded3, prompt2)
        self.assertEqual(computed3, prompt3 - loaded3)
        self.assertLess(computed3, 40)
        with open(session, encoding="utf-8") as f:
            after = json.load(f)
        self.assertEqual(after["messages"][:4], saved["messages"])
        self.assertEqual(after["tokens"][:len(saved["tokens"])], saved["tokens"])
        self.assertEqual(len(after["messages"]), 6)

    def test_a_session_file_of_another_kind_is_left_alone(self):
        session = os.path.join(self.folder.name, "notes.json")
        for text in ("not json", '{"format": "other"}', '{"format": "terrace-chat-1", "messages": 3}'):
            with open(session, "w", encoding="utf-8") as f:
                f.write(text)
            done = run("chat", "-m", MODEL, "--session", session, stdin="Hello\n")
            self.assertEqual(done.returncode, 1, done.stderr)
            self.assertIn(f'--session: "{session}"', done.stderr)
            with open(session, encoding="utf-8") as f:
                self.assertEqual(f.read(), text)

    # bench.

    def test_bench_measures_every_case_with_equal_logits(self):
        done = self.ok("bench", "--model", MODEL, "--prefix-tokens", "512", "--suffix-tokens", "64", "--repeat", "1",
                       "--cases", "cold,slot,host,nvme", "--cache", self.cache, "--json", *ONE_THREAD,
                       *self.size)
        lines = [json.loads(line) for line in done.stdout.splitlines()]
        self.assertEqual([line["case"] for line in lines], ["cold", "slot", "host", "nvme"])
        for line in lines:
            with self.subTest(case=line["case"]):
                warm = line["case"] in ("host", "nvme")
                self.assertIs(line["logits_equal"], True)
                self.assertEqual(line["prefix_tokens"], 512)
                self.assertEqual(line["loaded_tokens"], 512 if warm else 0)
                self.assertEqual(line["decoded_tokens"], 576 if line["case"] == "cold" else 64)
                self.assertGreater(line["ttft_ms"], 0)
                for field in ("load_ms", "set_data_ms", "store_ms", "store_thread_ms"):
                    self.assertGreaterEqual(line[field], 0)
                self.assertEqual(line["set_data_ms"] > 0, warm)
                self.assertEqual(line["store_thread_ms"] > 0, warm)

    def test_bench_measures_the_remote_cases_with_a_server_of_its_own(self):
        needs_server(self)
        done = self.ok("bench", "--model", MODEL, "--prefix-tokens", "512", "--suffix-tokens", "64", "--repeat", "1",
                       "--cases", "cold,remote,shm", "--json", "--host-bytes", "128MiB", "--serve-program", TERRACE,
                       *ONE_THREAD)
        lines = [json.loads(line) for line in done.stdout.splitlines()]
        self.assertEqual([line["case"] for line in lines], ["cold", "remote", "shm"])
        for line in lines[1:]:
            with self.subTest(case=line["case"]):
                self.assertIs(line["logits_equal"], True)
                self.assertEqual((line["loaded_tokens"], line["decoded_tokens"]), (512, 64))

    def test_bench_without_the_server_program_fails(self):
        done = run("bench", "--model", MODEL, "--prefix-tokens", "256", "--suffix-tokens", "8", "--repeat", "1", "--cases",
                   "remote", "--host-bytes", "128MiB", "--serve-program", self.cache, *ONE_THREAD)
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertIn(self.cache, done.stderr)


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    PROGRAM, MODEL = sys.argv[1:3]
    TERRACE = sys.argv[3] if len(sys.argv) > 3 else ""
    unittest.main(argv=[sys.argv[0], *sys.argv[4:]], verbosity=2)
