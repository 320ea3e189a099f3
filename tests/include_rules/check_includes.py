#!/usr/bin/env python3
"""Who may include whom in Terrace's tree (the design, section 5). Standard library only.

    check_includes.py ROOT               prints each violation, exits 1 where there is one
    check_includes.py --self-test ROOT   plants violations in a copy of ROOT's sources, one at a time, and
                                         exits 1 where one is not found or where an allowed include is faulted

A rule says what a folder may include, never what it may not: a new folder has to be given a rule.
"""
import os
import posixpath
import re
import shutil
import sys
import tempfile
from typing import NamedTuple

SOURCE_SUFFIXES = (".h", ".hh", ".hpp", ".c", ".cc", ".cpp", ".cu", ".cuh")
CHECKED = ("include", "lib", "backends", "kernels", "connectors", "examples", "tests", "benchmarks")
PUBLIC = "include/terrace"

# What each part of lib/ may include of lib/ beside itself: only what stands below it.
LIB_LAYERS = {
    "base": (),
    "metrics": ("base",),
    "memory": ("base", "metrics"),
    "wire": ("base",),
    "codec": ("base", "memory", "wire"),
    "device": ("base", "metrics", "memory"),
    "core": ("base", "metrics", "memory", "wire", "codec"),
    "storage": ("base", "metrics", "memory", "wire", "codec", "device", "core"),
}
# The kernels stand between memory and codec: what of lib/ may include them, and what they may include.
KERNEL_USERS = ("codec", "device")
KERNEL_LIB = ("base", "memory")
BACKEND_LIB = ("base", "memory", "metrics", "wire")
# The core knows a backend through terrace/backend.h; these name one kind of it.
BACKEND_HEADER = re.compile(r"include/terrace/(?!backend\.h$|backend_wrapper\.h$)\w*_?backend\.h$")

# Libraries that a part of the tree may use, by the first component of the include. Headers of the C++
# and C standard libraries and of the operating system (no slash, or sys/ and linux/) are free in lib/
# and backends/; public headers get the C++ standard library alone.
SYSTEM_FOLDERS = ("sys", "linux", "asm", "bits", "netinet", "arpa")
LIB_LIBRARIES = ("absl", "openssl", "xxhash.h", "nlohmann")
BACKEND_LIBRARIES = {
    "host": ("absl", "cuda_runtime.h", "cuda_runtime_api.h", "numa.h"),
    "nvme": ("absl", "openssl", "xxhash.h", "rocksdb", "liburing.h", "liburing"),
    "remote": ("absl", "openssl", "xxhash.h", "grpc", "grpcpp", "google"),
}
# Third-party headers without a folder of their own, which look like system headers.
FOREIGN_FILES = re.compile(
    r"(liburing|xxhash|zstd|lz4|llama|ggml[\w-]*|gguf|cuda[\w]*|cufile|nvml|numa|snappy|zlib)\.h$")

STD_HEADERS = frozenset("""
algorithm any array atomic barrier bit bitset charconv chrono codecvt compare complex concepts
condition_variable coroutine deque exception execution filesystem format forward_list fstream functional
future initializer_list iomanip ios iosfwd iostream istream iterator latch limits list locale map memory
memory_resource mutex new numbers numeric optional ostream queue random ranges ratio regex
scoped_allocator semaphore set shared_mutex source_location span sstream stack stdexcept stop_token
streambuf string string_view strstream syncstream system_error thread tuple type_traits typeindex
typeinfo unordered_map unordered_set utility valarray variant vector version cassert cctype cerrno cfenv
cfloat cinttypes climits clocale cmath csetjmp csignal cstdarg cstddef cstdint cstdio cstdlib cstring
ctime cuchar cwchar cwctype
""".split())
C_ABI_HEADERS = frozenset(("stddef.h", "stdint.h", "stdbool.h"))

# Names of other libraries that a public header must not show.
FOREIGN_NAMES = re.compile(
    r"\b(absl|rocksdb|grpc|google)\s*::|\bio_uring\w*|\bcuda[A-Z]\w*|\bCUstream\b|\b(ZSTD|XXH\d*|EVP|SHA256)_\w+"
    r"|\bllama_\w+|\bggml_\w+")

INCLUDE = re.compile(r'^[ \t]*#[ \t]*(?:include|import|include_next)\b[ \t]*(?:"([^"]*)"[ \t]*$|<([^>]*)>[ \t]*$|(.*)$)', re.M)
COMMENT_OR_STRING = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.S)


class Violation(NamedTuple):
    path: str
    line: int
    text: str

    def __str__(self):
        return f"{self.path}:{self.line}: {self.text}"


def strip_comments(text):
    """Comments become blanks of the same number of lines; strings stay: an include is written in one."""
    def blank(match):
        token = match.group(0)
        return "\n" * token.count("\n") if token.startswith("/") else token
    return COMMENT_OR_STRING.sub(blank, text)


def strip_strings(text):
    return COMMENT_OR_STRING.sub(lambda m: "\n" * m.group(0).count("\n"), text)


def resolve(root, path, name):
    """The included file's path in the tree, or None for one that is not of the tree.

    `..` is followed, so that no spelling gets around a rule; a name that starts with a folder of the
    tree belongs to it even where the file does not exist.
    """
    beside = posixpath.normpath(posixpath.join(posixpath.dirname(path), name))
    if os.path.isfile(os.path.join(root, beside)):
        return beside
    clean = posixpath.normpath(name)
    if clean.startswith("../"):
        return beside
    if clean.startswith("terrace/"):
        return "include/" + clean
    first = clean.split("/")[0]
    return clean if "/" in clean and (first in CHECKED or first in ("proto", "cmake", "scripts")) else None


def is_system(name):
    first = name.split("/")[0]
    if "/" in name:
        return first in SYSTEM_FOLDERS
    return not FOREIGN_FILES.search(name)


def is_composition_root(path):
    return path.endswith(("_main.cc", "_main.cpp")) or re.match(r"connectors/c/\w*open\w*\.cc$", path)


def is_test(path):
    parts = path.split("/")
    stem = posixpath.splitext(parts[-1])[0]
    return "tests" in parts[:-1] or stem.endswith(("_test", "_benchmark"))


def tree_rule(path, target):
    """Why `path` must not include the tree's file `target`; None where it may."""
    parts = path.split("/")
    top, part = parts[0], parts[1]
    own = "/".join(parts[:2]) + "/"
    public = target.startswith(PUBLIC + "/")
    if top == "include":
        return None if public else "a public header includes public headers only"
    if is_composition_root(path) or is_test(path) or top in ("benchmarks",):
        return None
    if top == "examples":
        ok = public or target.startswith(own)
        return None if ok else "an example sees include/terrace only, as an installed Terrace gives it"
    lib_part = target.split("/")[1] if target.startswith("lib/") else None
    if top == "lib":
        if part not in LIB_LAYERS:
            return f"lib/{part} has no rule in {os.path.basename(__file__)}"
        if part in ("core", "storage") and BACKEND_HEADER.match(target):
            return f"lib/{part} knows backends through terrace/backend.h only"
        if public or target.startswith(own) or lib_part in LIB_LAYERS[part]:
            return None
        if target.startswith("kernels/") and part in KERNEL_USERS:
            return None
        allowed = ", ".join(LIB_LAYERS[part]) or "nothing else"
        return f"lib/{part} may include include/terrace, itself and of lib/: {allowed}"
    if top == "backends":
        if public or target.startswith(own) or lib_part in BACKEND_LIB:
            return None
        if part == "remote" and target.startswith("proto/"):
            return None
        return "a backend may include include/terrace, itself and lib/{" + ",".join(BACKEND_LIB) + "}"
    if top == "kernels":
        if public or target.startswith("kernels/") or lib_part in KERNEL_LIB:
            return None
        return "kernels may include include/terrace, themselves and lib/{" + ",".join(KERNEL_LIB) + "}"
    if top == "connectors":
        if public or target.startswith(own):
            return None
        if target.startswith("connectors/options/"):  # what all their programs read alike
            return None
        if part == "server" and (lib_part == "wire" or target.startswith("proto/")):
            return None
        return "a connector may include include/terrace, connectors/options and itself" + (", and lib/wire" if part == "server" else "")
    return None


def library_rule(path, name):
    """Why `path` must not include the header `name`, which is not of the tree; None where it may."""
    parts = path.split("/")
    top, part = parts[0], parts[1] if len(parts) > 2 else ""
    first = name.split("/")[0]
    if top == "include":
        if name in STD_HEADERS or (path.startswith(PUBLIC + "/c/") and name in C_ABI_HEADERS):
            return None
        return "a public header includes the standard library and terrace/* only"
    if is_composition_root(path) or is_test(path) or top in ("connectors", "benchmarks", "examples"):
        return None
    if is_system(name):
        return None
    if top == "lib":
        return None if first in LIB_LIBRARIES else "lib/ sees no engine, no store's and no network's library"
    if top == "backends":
        allowed = BACKEND_LIBRARIES.get(part, ())
        return None if first in allowed else f"backends/{part} may use: {', '.join(allowed) or 'nothing'}"
    if top == "kernels":
        ok = first in ("cuda_runtime.h", "cuda_runtime_api.h", "cuda_bf16.h", "cuda_fp16.h", "cuda_fp8.h")
        return None if ok else "kernels use the CUDA runtime only"
    return None


def check_file(root, path):
    with open(os.path.join(root, path), encoding="utf-8") as file:
        text = strip_comments(file.read())
    for match in INCLUDE.finditer(text):
        line = text.count("\n", 0, match.start()) + 1
        name = match.group(1) or match.group(2)
        if not name:
            yield Violation(path, line, f"an include that no rule can check: {match.group(3).strip()}")
            continue
        target = resolve(root, path, name)
        why = tree_rule(path, target) if target else library_rule(path, name)
        if why:
            yield Violation(path, line, f"includes {name}: {why}")
    if path.startswith(PUBLIC + "/"):
        names = strip_strings(text)
        for match in FOREIGN_NAMES.finditer(names):
            line = names.count("\n", 0, match.start()) + 1
            yield Violation(path, line, f"names {match.group(0)}: another library's type in a public header")


def sources(root):
    for top in CHECKED:
        for folder, folders, files in os.walk(os.path.join(root, top)):
            folders.sort()
            for name in sorted(files):
                if name.endswith(SOURCE_SUFFIXES):
                    yield os.path.relpath(os.path.join(folder, name), root).replace(os.sep, "/")


def check_tree(root):
    paths = list(sources(root))
    violations = [v for path in paths for v in check_file(root, path)]
    return len(paths), violations


# path, line, and what the report must say.
PLANTED = [
    ("backends/host/planted.cc", '#include "lib/core/chunk_index.h"', "a backend may include"),
    ("backends/nvme/planted.cc", '#include "lib/storage/manager_core.h"', "a backend may include"),
    ("backends/nvme/planted.cc", '#include "lib/codec/piece_codec.h"', "a backend may include"),
    ("backends/nvme/planted.h", '#include "backends/host/host_backend.h"', "a backend may include"),
    ("backends/host/planted.cc", '#include "../nvme/manifest.h"', "a backend may include"),
    ("backends/host/planted.cc", '#include <connectors/llamacpp/llama_cache.h>', "a backend may include"),
    ("backends/host/planted.cc", '#include <rocksdb/db.h>', "backends/host may use"),
    ("backends/unheard_of/planted.cc", '#include <hiredis/hiredis.h>', "backends/unheard_of may use"),
    ("lib/core/planted.cc", '#include "terrace/nvme_backend.h"', "through terrace/backend.h only"),
    ("lib/storage/planted.cc", '#include "terrace/host_backend.h"', "through terrace/backend.h only"),
    ("lib/storage/planted.cc", '#include "backends/nvme/manifest.h"', "lib/storage may include"),
    ("lib/storage/planted.cc", '#  include "../../backends/nvme/manifest.h"  // odd spelling', "lib/storage may include"),
    ("lib/base/planted.h", '#include "lib/memory/buffer_pool.h"', "lib/base may include"),
    ("lib/memory/planted.h", '#include "lib/core/chunk_index.h"', "lib/memory may include"),
    ("lib/wire/planted.cc", '#include "lib/storage/manager_core.h"', "lib/wire may include"),
    ("lib/codec/planted.cc", '#include "lib/core/chunk_index.h"', "lib/codec may include"),
    ("lib/metrics/planted.cc", '#include "connectors/llamacpp/llama_cache.h"', "lib/metrics may include"),
    ("lib/unheard_of/planted.cc", '#include "lib/base/check.h"', "has no rule"),
    ("lib/storage/planted.cc", '#include <rocksdb/db.h>', "lib/ sees no engine"),
    ("lib/memory/planted.cc", '#include <liburing.h>', "lib/ sees no engine"),
    ("lib/wire/planted.cc", '#include <grpcpp/grpcpp.h>', "lib/ sees no engine"),
    ("lib/core/planted.cc", '#include "llama.h"', "lib/ sees no engine"),
    ("lib/core/planted.cc", "#define TARGET \"x.h\"\n#include TARGET", "no rule can check"),
    ("connectors/llamacpp/planted.cc", '#include "lib/wire/frame.h"', "a connector may include"),
    ("connectors/llamacpp/planted.cc", '#include "backends/nvme/nvme_backend.h"', "a connector may include"),
    ("connectors/server/planted.cc", '#include "lib/core/chunk_index.h"', "and lib/wire"),
    ("connectors/cli/planted.cc", '#include "connectors/llamacpp/llama_cache.h"', "a connector may include"),
    ("examples/01_store_and_load/planted.cc", '#include "lib/base/check.h"', "an example sees"),
    (PUBLIC + "/planted.h", '#include "lib/base/check.h"', "public headers only"),
    (PUBLIC + "/planted.h", '#include <absl/status/status.h>', "the standard library and terrace/*"),
    (PUBLIC + "/planted.h", '#include <sys/uio.h>', "the standard library and terrace/*"),
    (PUBLIC + "/planted.h", "absl::Status Open();", "names absl::"),
    (PUBLIC + "/planted.h", "void Attach(rocksdb::DB* db);", "names rocksdb::"),
    (PUBLIC + "/planted.h", "void Submit(io_uring_sqe* entry);", "names io_uring_sqe"),
    (PUBLIC + "/planted.h", "void Wait(cudaStream_t stream);", "names cudaStream_t"),
]
# These are allowed, and the check must not fault them.
ALLOWED = [
    ("backends/nvme/planted.cc", '#include "lib/wire/frame.h"\n#include <rocksdb/db.h>\n#include <liburing.h>'),
    ("backends/host/planted.cc", '#include "lib/memory/buffer_pool.h"\n#include <sys/mman.h>'),
    ("lib/core/planted.cc", '// #include "backends/nvme/manifest.h"\n/*\n#include <rocksdb/db.h>\n*/\n#include "terrace/backend.h"'),
    ("connectors/server/planted.cc", '#include "lib/wire/frame.h"\n#include <grpcpp/grpcpp.h>'),
    ("connectors/server/planted.cc", '#include "connectors/options/byte_size.h"'),
    ("connectors/cli/planted_main.cc", '#include "backends/nvme/nvme_backend.h"\n#include "connectors/server/server.h"'),
    ("tests/core/planted_test.cc", '#include "lib/core/chunk_index.h"\n#include "backends/host/host_backend.h"'),
    (PUBLIC + "/planted.h", '// an absl::Status never shows\n#include <vector>\n#include "terrace/status.h"'),
]


def self_test(root):
    failures = []
    with tempfile.TemporaryDirectory(prefix="terrace-include-rules-") as copy:
        for path in sources(root):
            os.makedirs(os.path.dirname(os.path.join(copy, path)), exist_ok=True)
            shutil.copyfile(os.path.join(root, path), os.path.join(copy, path))
        num_files, clean = check_tree(copy)
        if num_files < 10:
            failures.append(f"only {num_files} files were found: the check looks in the wrong place")
        for case in PLANTED + [allowed + (None,) for allowed in ALLOWED]:
            path, line, expected = case
            full = os.path.join(copy, path)
            if os.path.exists(full):
                sys.exit(f"{path} exists; a plant would destroy it")
            os.makedirs(os.path.dirname(full), exist_ok=True)
            with open(full, "w", encoding="utf-8") as file:
                file.write(line + "\n")
            found = [v for v in check_tree(copy)[1] if v not in clean]
            os.remove(full)
            if expected is None and found:
                failures.append(f"allowed, but faulted: {path}: {line!r}: {[str(v) for v in found]}")
            if expected is not None and not any(v.path == path and expected in v.text for v in found):
                failures.append(f"planted, but not found: {path}: {line!r} (reported: {[str(v) for v in found]})")
    for failure in failures:
        print(failure)
    print(f"{len(PLANTED)} planted violations and {len(ALLOWED)} allowed includes: {len(failures)} failures")
    return 1 if failures else 0


def main(arguments):
    if len(arguments) == 2 and arguments[0] == "--self-test":
        return self_test(arguments[1])
    if len(arguments) != 1 or not os.path.isdir(os.path.join(arguments[0], PUBLIC)):
        print(__doc__)
        return 2
    num_files, violations = check_tree(arguments[0])
    for violation in violations:
        print(violation)
    print(f"{num_files} files, {len(violations)} violations")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
