#!/usr/bin/env bash
# The first command: sets up, builds terrace-llama and runs the main job on a real model. A question about a document of
# 4,096 tokens is answered cold and the document's KV is stored; another is answered from host memory; a second process,
# with nothing in memory, answers a third from NVMe. Prints one table. Minutes the first time, less than one afterwards.
#
#   scripts/quickstart.sh [--fresh]
#
#   --fresh   compute the answers to compare with again (they are remembered per build, model, document and question)
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

fresh=0
for argument in "$@"; do
  case $argument in
    --fresh) fresh=1 ;;
    -h | --help) sed -n '2,/^set -/{/^set -/d;s/^# \{0,1\}//;p}' "${BASH_SOURCE[0]}"; exit 0 ;;
    *) say "error: unknown argument \"$argument\" (allowed: --fresh, --help)"; exit 2 ;;
  esac
done

cd "$REPO_DIR"
scripts/setup.sh
step "configuring" cmake --preset release
step "building terrace-llama" cmake --build --preset release --parallel "$JOBS" --target terrace-llama

program=$REPO_DIR/build/release/bin/terrace-llama
work=$CACHE_DIR/quickstart
document=/usr/share/common-licenses/GPL-3
document_tokens=4096
questions=(
  "What is the name of this license? Answer in one sentence."
  "Question: Is the GNU General Public License a free software license? Answer yes or no."
  "Question: Can I sell copies of free software?"
)
[ -r "$document" ] || die "$document, which Debian's base-files bring, cannot be read"
mkdir -p "$work"
rm -rf "$work/kv"  # so that cold is cold

ask=("$program" run --json --exact -m "$MODEL_PATH" -n 24 --document "$document" --document-tokens "$document_tokens")

# Answers without any cache, to compare with. Whatever could change them is in the file's name.
key=$( (printf '%s\n' "${questions[@]}" "${ask[@]}" "$(nproc)"; grep -m 1 'model name' /proc/cpuinfo || true
  sha256sum "$program" "$REPO_DIR"/build/release/lib/libterrace.so "$ENGINE_DIR"/lib/lib*.so "$MODEL_PATH" "$document") |
  sha256sum | cut -c1-16)
reference=$work/without-cache-$key.json
if [ "$fresh" = 1 ] || [ ! -s "$reference" ]; then
  say "the answers without cache (remembered for the next time):"
  rm -f "$work"/without-cache-*.json
  arguments=()
  for question in "${questions[@]}"; do arguments+=(-p "$question"); done
  "${ask[@]}" "${arguments[@]}" >"$reference.part"
  mv "$reference.part" "$reference"
  compared="computed just now"
else
  compared="remembered from $(date -r "$reference" '+%Y-%m-%d %H:%M') (same build, model, document and questions; --fresh computes them again)"
fi

cached=(--cache "$work/kv" --require-cache --host-bytes 512MiB --nvme-bytes 1GiB)
say "first process: the first question cold, then, with an empty context, the second from host memory:"
"${ask[@]}" "${cached[@]}" --clear-slot -p "${questions[0]}" -p "${questions[1]}" >"$work/first.json"
say "second process: the third question from NVMe:"
"${ask[@]}" "${cached[@]}" -p "${questions[2]}" >"$work/second.json"

python3 - "$reference" "$work/first.json" "$work/second.json" "$compared" "$document" "$document_tokens" "${questions[@]}" <<'PYTHON'
import json
import sys

reference, first, second, compared, document, document_tokens, *questions = sys.argv[1:]
read = lambda path: [json.loads(line) for line in open(path, encoding="utf-8")]
without = read(reference)
answers = read(first) + read(second)
cases = ["cold", "host", "nvme"]
expected = int(document_tokens)
if len(answers) != 3 or len(without) != 3:
    sys.exit("error: three answers were expected of each run")

wrong = []
print()
print(f"{'case':<6}{'prefix tokens':>14}{'tokens loaded':>15}{'time to first token':>21}{'speed-up':>10}"
      "   answer identical to the run without cache")
for case, answer, plain in zip(cases, answers, without):
    same = answer["answer_tokens"] == plain["answer_tokens"]
    loaded = answer["loaded_tokens"]
    print(f"{case:<6}{answer['document_tokens']:>14,}{loaded:>15,}{answer['ttft_ms'] / 1000:>19.2f} s"
          f"{answers[0]['ttft_ms'] / answer['ttft_ms']:>8.1f} x   {'yes' if same else 'no'}")
    if not same:
        wrong.append(f"{case}: the answer differs: {answer['answer']!r}, without cache {plain['answer']!r}")
    if loaded != (0 if case == "cold" else expected):
        wrong.append(f"{case}: {loaded} tokens were loaded")
    if (answer["host_objects"] > 0, answer["nvme_objects"] > 0) != (case == "host", case == "nvme"):
        wrong.append(f"{case}: {answer['host_objects']} chunks came from host, {answer['nvme_objects']} from nvme")
print(f"\nDocument: {document}, its first {expected:,} tokens (chat template included). Answers without cache: {compared}.\n")
for case, question, answer in zip(cases, questions, answers):
    print(f"  {case:<5} {question}\n        {' '.join(answer['answer'].split())}{'' if answer['ended'] else ' ...'}")
for line in wrong:
    print(f"error: {line}", file=sys.stderr)
sys.exit(1 if wrong else 0)
PYTHON
