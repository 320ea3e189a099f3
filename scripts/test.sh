#!/usr/bin/env bash
# Sets up, builds and passes every test: the release build with all of them, then the core's tests under the
# address and undefined-behaviour sanitizers and under the thread sanitizer (without the engine, which is not
# built with them). Ends with 0 only if all passed; CTest's closing line of each build comes last.
#
#   scripts/test.sh [--quick] [--no-setup] [PRESET...]
#
#   --quick      the release build alone
#   --no-setup   nothing is installed or fetched: what is missing fails
#   PRESET...    these presets instead of release, asan, tsan
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

presets=()
setup=1
for argument in "$@"; do
  case $argument in
    --quick) presets=(release) ;;
    --no-setup) setup=0 ;;
    dev | release | asan | tsan) presets+=("$argument") ;;
    -h | --help) sed -n '2,/^set -/{/^set -/d;s/^# \{0,1\}//;p}' "${BASH_SOURCE[0]}"; exit 0 ;;
    *) die "unknown argument $argument (allowed: --quick, --no-setup, dev, release, asan, tsan)" ;;
  esac
done
[ ${#presets[@]} -gt 0 ] || presets=(release asan tsan)

cd "$REPO_DIR"
[ "$setup" = 0 ] || scripts/setup.sh
mkdir -p "$CACHE_DIR/logs"

closing=()
failed=0
for preset in "${presets[@]}"; do
  say "== $preset"
  step "configuring $preset" cmake --preset "$preset"
  step "building $preset" cmake --build --preset "$preset" --parallel "$JOBS"
  log=$CACHE_DIR/logs/ctest_$preset.log
  result=0
  # The thread sanitizer cannot start where the kernel spreads addresses over more bits than it knows.
  run=()
  if [ "$preset" = tsan ] && setarch "$(uname -m)" -R true 2>/dev/null; then run=(setarch "$(uname -m)" -R); fi
  # The tests print as they go; the log is kept for the closing line. No test at all is a failure.
  "${run[@]}" ctest --preset "$preset" --parallel "$JOBS" --no-tests=error 2>&1 | tee "$log" || result=$?
  line=$(grep -E '% tests passed|No tests were found' "$log" | tail -n 1 || true)
  closing+=("${line:-ctest ended without a closing line} ($preset)")
  [ "$result" = 0 ] || failed=1
done

say "== closing lines"
printf '%s\n' "${closing[@]}"
[ "$failed" = 0 ] || die "some tests failed; the logs are $CACHE_DIR/logs/ctest_*.log"
