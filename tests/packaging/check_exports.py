#!/usr/bin/env python3
"""Which names a Terrace shared library exports. Standard library only.

    check_exports.py LIBRARY INCLUDE_DIR     fails on a name that is not Terrace's, or that no public header
                                             shows, and where a name that users need is missing
    check_exports.py --self-test             the same judgement on planted lists of names
"""
import os
import re
import subprocess
import sys

# A name is Terrace's where it is terrace:: itself, or a table or thunk that the compiler made for it, or
# belongs to the C ABI.
OURS = re.compile(
    r"^(?:(?:typeinfo|typeinfo name|vtable|VTT|construction vtable) for |(?:non-virtual|virtual) thunk to )?"
    r"terrace::(?P<name>\w+)|^terrace_[a-z]\w*$")
# Users cannot do without these.
NEEDED = ("terrace::StorageManager::Open", "terrace::StorageManager::Lookup", "terrace::MakeHostBackend",
          "terrace::MakeNvmeBackend", "terrace::KvSpec::Validate", "terrace::Status::ToString",
          "vtable for terrace::BackendWrapper", "typeinfo for terrace::Backend")


def exported_names(library):
    out = subprocess.run(["nm", "-D", "--defined-only", "--demangle", "--without-symbol-versions", library],
                         check=True, capture_output=True, text=True).stdout
    return [" ".join(line.split(" ")[2:]) for line in out.splitlines() if line.strip()]


def public_names(include_dir):
    """Identifiers that public headers mark with TERRACE_API: classes, structs and functions."""
    names = set()
    for folder, _, files in os.walk(include_dir):
        for file_name in files:
            with open(os.path.join(folder, file_name), encoding="utf-8") as file:
                text = re.sub(r"//[^\n]*", "", file.read())
            names.update(re.findall(r"\b(?:class|struct)\s+(?:\[\[\w+\]\]\s*)?TERRACE_API\s+(?:\[\[\w+\]\]\s*)?(\w+)", text))
            names.update(re.findall(r"\bTERRACE_API\s[^;{}()]*?\b(\w+)\s*\(", text))
            # A struct whose single members are marked: the last one that began before the mark.
            for mark in re.finditer(r"^\s+TERRACE_API\b", text, re.M):
                names.update(re.findall(r"^(?:class|struct)\s+(\w+)", text[:mark.start()], re.M)[-1:])
    return names


def judge(names, public):
    problems = []
    for name in names:
        match = OURS.match(name)
        if not match:
            problems.append(f"not Terrace's: {name}")
        elif match.group("name") and match.group("name") not in public:
            problems.append(f"in no public header: {name}")
    for needed in NEEDED:
        if not any(name == needed or name.startswith((needed + "(", needed + "[")) for name in names):
            problems.append(f"missing: {needed}")
    return problems


def self_test():
    public = {"StorageManager", "MakeHostBackend", "MakeNvmeBackend", "KvSpec", "Status", "BackendWrapper", "Backend"}
    good = [needed + ("" if " for " in needed else "()") for needed in NEEDED] + ["terrace_open"]
    planted = [
        "absl::lts_20220623::Mutex::Lock()", "rocksdb::DB::Open(rocksdb::Options const&)", "io_uring_submit",
        "std::vector<terrace::Status, std::allocator<terrace::Status> >::~vector()",
        "vtable for std::_Sp_counted_ptr_inplace<terrace::Clock, std::allocator<void>, (__gnu_cxx::_Lock_policy)2>",
        "std::shared_ptr<int> terrace::Make<int>()", "typeinfo for absl::Status", "XXH3_128bits", "main",
        "terrace::BufferPool::Allocate(unsigned long)", "vtable for terrace::NvmeBackend", "terracelike::Open()",
    ]
    failures = []
    if judge(good, public):
        failures.append(f"faulted a good list: {judge(good, public)}")
    failures += [f"not found: {bad}" for bad in planted if len(judge(good + [bad], public)) != 1]
    failures += [f"not missed: {needed}" for needed in NEEDED
                 if len(judge([n for n in good if not n.startswith(needed)], public)) != 1]
    for failure in failures:
        print(failure)
    print(f"{len(planted)} planted names, {len(NEEDED)} missing ones: {len(failures)} failures")
    return 1 if failures else 0


def main(arguments):
    if arguments == ["--self-test"]:
        return self_test()
    if len(arguments) != 2:
        print(__doc__)
        return 2
    names = exported_names(arguments[0])
    problems = judge(names, public_names(arguments[1]))
    for problem in problems:
        print(problem)
    print(f"{len(names)} exported names, {len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
