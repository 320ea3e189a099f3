#!/usr/bin/env python3
"""The README's code is the code that is compiled, and the files that it names exist. Standard library only.

    check_readme.py ROOT               prints what differs, exits 1 where something does
    check_readme.py --self-test ROOT   changes a copy, and exits 1 where a change is not found

A block of the README that is cut from a file stands between

    <!-- cut from FILE -->
    ```cpp
    ...
    ```
    <!-- end of cut -->

and equals what stands in FILE between its lines `// [readme:begin]` and `// [readme:end]`.
"""
import os
import re
import sys

CUT = re.compile(r"<!-- cut from (\S+) -->\n```\w*\n(.*?)```\n<!-- end of cut -->", re.S)
REGION = re.compile(r"^// \[readme:begin\]\n(.*?)^// \[readme:end\]$", re.M | re.S)
TREE_PATH = re.compile(r"`((?:include|lib|backends|connectors|tests|benchmarks|examples|cmake|scripts|docs)/[^`\s]*)`")
FENCE = re.compile(r"^```.*?^```$", re.M | re.S)
LINK = re.compile(r"\]\((?!https?:|#|mailto:)([^)#\s]+)")


def problems_of(readme, read_file, exists):
    """read_file(path) gives a file's text or None, exists(path) says whether a file or folder is there."""
    problems = []
    cuts = CUT.findall(readme)
    if not cuts or readme.count("<!-- cut from ") != len(cuts):
        problems.append(f"{readme.count('<!-- cut from ')} cuts begin, {len(cuts)} are whole; one at least is needed")
    for path, block in cuts:
        text = read_file(path)
        region = REGION.search(text or "")
        if not region:
            problems.append(f"{path} has no region between [readme:begin] and [readme:end]")
        elif region.group(1) != block:
            ours, theirs = block.splitlines(), region.group(1).splitlines()
            line = next((i for i, (a, b) in enumerate(zip(ours, theirs)) if a != b), min(len(ours), len(theirs)))
            problems.append(f"the README differs from {path} in line {line + 1} of the cut")
    prose = FENCE.sub("", readme)
    for path in sorted(set(TREE_PATH.findall(prose)) | set(LINK.findall(prose))):
        # lib/core/{a,b}.h names two files, a trailing slash a folder.
        brace = re.match(r"(.*)\{(.*)\}(.*)$", path)
        for name in [brace.group(1) + part + brace.group(3) for part in brace.group(2).split(",")] if brace else [path]:
            if not exists(name.rstrip("/")):
                problems.append(f"the README names {name}, which does not exist")
    return problems


def read_tree(root):
    with open(os.path.join(root, "README.md"), encoding="utf-8") as file:
        readme = file.read()

    def read_file(path):
        full = os.path.join(root, path)
        if not os.path.isfile(full):
            return None
        with open(full, encoding="utf-8") as file:
            return file.read()
    return readme, read_file, lambda path: os.path.exists(os.path.join(root, path))


def self_test(root):
    readme, read_file, exists = read_tree(root)
    before = len(problems_of(readme, read_file, exists))
    cut = CUT.search(readme)
    changes = {
        "a changed line in the README": (readme.replace("Commit(", "Commit2(", 1), read_file),
        "a changed line in the example":
            (readme, lambda path: (read_file(path) or "").replace("Commit(", "Commit2(", 1)),
        "a lost last line": (readme[:cut.end(2) - 2] + readme[cut.end(2):], read_file),
        "no cut at all": (readme.replace("<!-- cut from", "<!-- cut of"), read_file),
        "a cut without its end": (readme.replace("<!-- end of cut -->", "", 1), read_file),
        "a region without its end": (readme, lambda path: (read_file(path) or "").replace("[readme:end]", "")),
        "a file that does not exist": (readme + "\n`lib/core/no_such_file.cc`\n", read_file),
        "one of two files that does not exist": (readme + "\n`scripts/{test,no_such_file}.sh`\n", read_file),
        "a link to nothing": (readme + "\n[text](docs/no_such_page.md)\n", read_file),
    }
    missed = [name for name, (text, reader) in changes.items() if len(problems_of(text, reader, exists)) <= before]
    for name in missed:
        print(f"planted, but not found: {name}")
    print(f"{len(changes)} planted differences, {len(missed)} missed")
    return 1 if missed else 0


def main(arguments):
    if len(arguments) == 2 and arguments[0] == "--self-test":
        return self_test(arguments[1])
    if len(arguments) != 1:
        print(__doc__)
        return 2
    problems = problems_of(*read_tree(arguments[0]))
    for problem in problems:
        print(problem)
    print(f"README.md: {len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
