#!/usr/bin/env python3
"""`terrace serve` as a process: start, health, metrics, signals, end, refusals.

    program_test.py TERRACE SOURCE_DIR [unittest's arguments]
"""
import json
import os
import pathlib
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import unittest
import urllib.error
import urllib.request

PROGRAM = ""
SOURCE = pathlib.Path()
LIMIT_S = 120  # of any one wait; no test is judged by time
TOKEN = "a-plain-token-0123456789"


def run(*arguments):
    return subprocess.run([PROGRAM, "serve", *arguments], capture_output=True, text=True, timeout=LIMIT_S, check=False)


class Server:
    """A running server; its log is read line by line."""

    def __init__(self, root, *arguments):
        self.notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        path = tempfile.mktemp(dir=root)
        self.notify.bind(path)
        self.notify.settimeout(LIMIT_S)
        self.process = subprocess.Popen([PROGRAM, "serve", *arguments], stderr=subprocess.PIPE, text=True,
                                        env={**os.environ, "NOTIFY_SOCKET": path})
        self.watchdog = threading.Timer(LIMIT_S, self.process.kill)
        self.watchdog.start()
        self.log = []
        self.ready = self.wait_for("serving on ")
        self.told("READY=1")

    def wait_for(self, text):
        """The message of the next log line that has the text."""
        for line in self.process.stderr:
            entry = json.loads(line)
            self.log.append(entry)
            if text in entry["message"]:
                return entry["message"]
        raise AssertionError(f"ended with {self.process.wait()} before \"{text}\": {self.log}")

    def told(self, state):
        """Waits until the service manager was told."""
        while state not in self.notify.recv(4096).decode().split("\n"):
            pass

    @property
    def address(self):
        return self.ready.removeprefix("serving on ").split(",")[0].split(" ")[0]

    def get(self, path):
        port = self.ready.rsplit("metrics on 127.0.0.1:", 1)[1]
        return urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=LIMIT_S).read().decode()

    def signal(self, number):
        self.process.send_signal(number)

    def end(self):
        """The exit code, and the rest of the log."""
        for line in self.process.stderr:
            self.log.append(json.loads(line))
        code = self.process.wait(timeout=LIMIT_S)
        self.close()
        return code

    def close(self):
        self.watchdog.cancel()
        self.process.kill()
        self.process.wait()
        self.process.stderr.close()
        self.notify.close()


class ServeTest(unittest.TestCase):
    def setUp(self):
        self.root = pathlib.Path(tempfile.mkdtemp(prefix="terrace-serve-"))
        self.addCleanup(shutil.rmtree, self.root, ignore_errors=True)
        self.small = ["--listen", "127.0.0.1:0", "--metrics-port", "0", "--host-bytes", "64MiB"]

    def start(self, *arguments):
        server = Server(self.root, *self.small, *arguments)
        self.addCleanup(server.close)
        return server

    def write(self, name, content, mode=0o600):
        path = self.root / name
        path.touch(mode=0o600)
        path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
        path.chmod(mode)
        return str(path)

    def tenants(self, *tenants):
        return self.write("tenants.json", {"tenants": [
            {"name": name, "tokens": [f"{TOKEN}-{name}"], "rights": ["read", "write"],
             "quota": {"host_bytes": host_bytes}} for name, host_bytes in tenants]})

    def test_starts_answers_and_drains(self):
        server = self.start("--unix", str(self.root / "s.sock"), "--nvme-dir", str(self.root / "nvme"),
                            "--nvme-bytes", "128MiB")
        self.assertIn("without TLS, without tokens, 1 namespaces", server.ready)
        host, port = server.address.rsplit(":", 1)
        socket.create_connection((host, int(port)), timeout=LIMIT_S).close()
        self.assertTrue(stat.S_ISSOCK((self.root / "s.sock").stat().st_mode))
        self.assertEqual(server.get("/healthz"), "ok\n")
        metrics = server.get("/metrics")
        self.assertIn('namespace="default"', metrics)
        families = [line.split()[2] for line in metrics.splitlines() if line.startswith("# TYPE ")]
        self.assertEqual(len(families), len(set(families)))
        with self.assertRaises(urllib.error.HTTPError) as refused:
            server.get("/else")
        self.assertEqual(refused.exception.code, 404)
        refused.exception.close()
        self.assertEqual([path.name for path in (self.root / "nvme").iterdir()], ["ns-default"])
        server.signal(signal.SIGTERM)
        self.assertEqual(server.end(), 0)
        self.assertEqual([entry["message"] for entry in server.log[-2:]], ["draining", "stopped"])
        for entry in server.log:
            self.assertEqual(list(entry), ["time", "level", "component", "message"])

    def test_a_service_manager_is_told(self):
        server = self.start()
        server.signal(signal.SIGHUP)
        server.told("RELOADING=1")
        server.told("READY=1")
        server.signal(signal.SIGINT)
        server.told("STOPPING=1")
        self.assertEqual(server.end(), 0)

    def test_sighup_reads_tenants_again(self):
        path = self.tenants(("a", "16MiB"), ("b", "16MiB"))
        server = self.start("--token-file", path)
        self.assertIn("with tokens, 2 namespaces", server.ready)
        self.assertIn('namespace="b"', server.get("/metrics"))
        self.tenants(("a", "32MiB"), ("c", "16MiB"))
        server.signal(signal.SIGHUP)
        server.wait_for("tenants were read again")
        metrics = server.get("/metrics")
        self.assertIn('terrace_server_reloads_total{result="ok"} 1', metrics)
        self.assertIn('namespace="c"', metrics)
        self.assertNotIn('namespace="b"', metrics)
        server.signal(signal.SIGTERM)
        self.assertEqual(server.end(), 0)

    def test_sighup_with_a_bad_file_changes_nothing(self):
        path = self.tenants(("a", "16MiB"))
        server = self.start("--token-file", path)
        quota = {"host_bytes": "1GiB"}
        for content, mode, wanted in [
                ('{"tenants": [{"name": "a", "tokens": ["' + TOKEN + '"', 0o600, "no valid JSON at line 1"),
                ({"tenants": []}, 0o600, "no list of 1 to 1000 tenants"),
                ({"tenants": [{"name": "d", "tokens": ["bad"], "rights": ["x"], "quota": quota}]}, 0o600,
                 "tenants[0].tokens[0]: is not allowed (and not shown)"),
                ({"tenants": [{"name": "d", "tokens": [], "rights": ["read"]}]}, 0o644, "chmod 600")]:
            self.write("tenants.json", content, mode)
            server.signal(signal.SIGHUP)
            self.assertIn(wanted, server.wait_for("tenants stay as they were"))
        os.remove(path)
        server.signal(signal.SIGHUP)
        self.assertIn("is not there", server.wait_for("tenants stay as they were"))
        metrics = server.get("/metrics")
        self.assertIn('terrace_server_reloads_total{result="refused"} 5', metrics)
        self.assertIn('namespace="a"', metrics)
        self.assertNotIn('namespace="d"', metrics)
        self.assertEqual(server.get("/healthz"), "ok\n")
        server.signal(signal.SIGTERM)
        self.assertEqual(server.end(), 0)
        self.assertNotIn(TOKEN, json.dumps(server.log))

    def test_a_second_signal_ends_at_once(self):
        server = self.start()
        # Both pending when it goes on: the second is there whatever the first one's drain takes.
        server.signal(signal.SIGSTOP)
        os.waitpid(server.process.pid, os.WUNTRACED)
        server.signal(signal.SIGTERM)
        server.signal(signal.SIGINT)
        server.signal(signal.SIGCONT)
        self.assertEqual(server.end(), 3)

    def test_an_address_in_use(self):
        server = self.start()
        second = run("--listen", server.address, "--metrics-port", "off", "--host-bytes", "64MiB")
        self.assertEqual(second.returncode, 1)
        self.assertIn(server.address, json.loads(second.stderr.splitlines()[-1])["message"])
        port = server.ready.rsplit(":", 1)[1]
        second = run("--listen", "127.0.0.1:0", "--metrics-port", port, "--host-bytes", "64MiB")
        self.assertEqual(second.returncode, 1)
        self.assertIn(f"metrics_port: 127.0.0.1:{port} cannot be listened on", second.stderr)
        self.assertEqual(server.get("/healthz"), "ok\n")

    def test_what_was_allowed_by_name_is_warned_of(self):
        server = Server(self.root, *self.small, "--listen", "0.0.0.0:0", "--allow-plaintext", "--allow-anyone")
        self.addCleanup(server.close)
        server.wait_for("allow_plaintext: ")
        server.wait_for("allow_anyone: ")
        server.signal(signal.SIGTERM)
        self.assertEqual(server.end(), 0)

    def test_a_directory_in_use(self):
        nvme = ["--nvme-dir", str(self.root / "nvme"), "--nvme-bytes", "128MiB"]
        self.start(*nvme)
        second = run(*self.small, *nvme)
        self.assertEqual(second.returncode, 1)
        self.assertIn("namespace default: ", json.loads(second.stderr.splitlines()[-1])["message"])

    def test_refusals_start_nothing(self):
        config = self.write("c.json", {"listen": ["0.0.0.0:0"], "host_byte": 1, "nvme_bytes": "big"})
        result = run("--config", config, "--drain-seconds", "soon", "--steam", "--token-file",
                     str(self.root / "absent"), "extra")
        self.assertEqual((result.returncode, result.stdout), (2, ""))
        for wanted in ["7 mistakes", "\n  --steam: is no flag", "\n  extra: is no flag", "\n  host_byte: is no key",
                       "\n  nvme_bytes: \"big\" is not allowed", "\n  --drain-seconds: \"soon\" is not allowed",
                       "\n  listen: 0.0.0.0:0 is not allowed; allowed: beyond loopback only with tls_cert",
                       "\n  token_file: \"" + str(self.root / "absent") + "\": is not there"]:
            self.assertIn(wanted, result.stderr)
        for arguments, wanted in [
                (["--listen", "0.0.0.0:0"], "allow_anyone"),
                (["--config", str(self.root / "absent.json")], "is not there"),
                (["--config", self.write("empty.json", "")], "is empty"),
                (["--config", self.write("list.json", "[]")], "is no JSON object"),
                (["--token-file", self.write("open.json", {"tenants": []}, 0o644)], "chmod 600"),
                (["--tls-cert", "/x"], "tls_key: is missing"),
                (["--bulk", "maybe"], "on, off"),
                (["--host-bytes", "1GiB", "--host-bytes", "2GiB"], "is given 2 times")]:
            result = run(*arguments)
            self.assertEqual((result.returncode, result.stdout), (2, ""), arguments)
            self.assertIn(wanted, result.stderr)

    def test_help_names_every_flag(self):
        result = run("--help")
        self.assertEqual(result.returncode, 0)
        for flag in ["--config", "--listen", "--unix", "--token-file", "--allow-plaintext", "--drain-seconds"]:
            self.assertIn(flag, result.stdout)
        self.assertIn("Exit codes: 0 drained", result.stdout)

    def test_the_examples_are_right(self):
        config = json.loads((SOURCE / "packaging/terrace.json").read_text(encoding="utf-8"))
        tenants = (SOURCE / "packaging/tenants.json").read_text(encoding="utf-8")
        config["token_file"] = self.write("t.json", tenants)
        result = run("--check", "--config", self.write("c.json", config))
        if "host_bytes" in result.stderr:
            self.skipTest("this machine has less memory than the example names")
        self.assertEqual((result.returncode, result.stdout, result.stderr), (0, "flags and files are right\n", ""))

    def test_the_unit(self):
        unit = (SOURCE / "packaging/terrace.service").read_text(encoding="utf-8")
        for wanted in ["Type=notify", "NoNewPrivileges=yes", "ProtectSystem=strict", "StateDirectory=terrace"]:
            self.assertIn("\n" + wanted + "\n", unit)
        if shutil.which("systemd-analyze"):
            result = subprocess.run(["systemd-analyze", "verify", "--man=no", SOURCE / "packaging/terrace.service"],
                                    capture_output=True, text=True, timeout=LIMIT_S, check=False)
            # That the program is not installed here is no fault of the unit's.
            said = [line for line in result.stderr.splitlines()
                    if "terrace.service" in line and "is not executable" not in line]
            self.assertEqual(said, [])


if __name__ == "__main__":
    PROGRAM = sys.argv.pop(1)
    SOURCE = pathlib.Path(sys.argv.pop(1))
    unittest.main()
