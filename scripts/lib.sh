# Shared by the scripts of this folder: where things lie, and progress for whatever takes long.
# Source it; it changes nothing but variables and functions.

REPO_DIR=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# shellcheck source=scripts/pins.env
. "$REPO_DIR/scripts/pins.env"
CACHE_DIR=${TERRACE_CACHE_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/terrace}
ENGINE_DIR=$CACHE_DIR/llama.cpp-$LLAMA_VERSION-${LLAMA_SHA256:0:12}
MODEL_PATH=$CACHE_DIR/models/$MODEL_FILE
JOBS=${TERRACE_JOBS:-$(nproc)}
export CCACHE_DIR=${CCACHE_DIR:-$CACHE_DIR/ccache}

say() { printf '%s\n' "$*" >&2; }
die() { say "error: $*"; exit 1; }

# step LABEL COMMAND...: runs the command with its output in a log. A step of more than two seconds
# shows a line with the time gone by and the log's last line (every two seconds on a terminal, every
# fifteen elsewhere). On failure it prints the end of the log and exits.
step() {
  local label=$1 log start pid tick now last shown=0
  shift
  mkdir -p "$CACHE_DIR/logs"
  log=$CACHE_DIR/logs/$(printf '%s' "$label" | tr -c 'A-Za-z0-9' '_').log
  start=$(date +%s)
  "$@" >"$log" 2>&1 &
  pid=$!
  tick=15
  [ -t 2 ] && tick=2
  local next=$((start + 2))
  while kill -0 "$pid" 2>/dev/null; do
    now=$(date +%s)
    if [ "$now" -ge "$next" ]; then
      last=$(tail -n 1 "$log" 2>/dev/null | tr -d '\r' | cut -c1-80)
      if [ -t 2 ]; then
        printf '\r\033[K  %s ... %ds  %s' "$label" $((now - start)) "$last" >&2
      else
        say "  $label ... $((now - start))s  $last"
      fi
      shown=1
      next=$((now + tick))
    fi
    sleep 0.2
  done
  if ! wait "$pid"; then
    [ -t 2 ] && printf '\r\033[K' >&2
    tail -n 40 "$log" >&2
    die "$label failed; the whole log is $log"
  fi
  if [ "$shown" = 1 ]; then
    [ -t 2 ] && printf '\r\033[K' >&2
    say "  $label: done in $(($(date +%s) - start))s"
  fi
}

check_sha256() { # FILE DIGEST
  printf '%s  %s\n' "$2" "$1" | sha256sum --check --status ||
    die "$1 has not the SHA-256 that scripts/pins.env names ($2); remove it and try again"
}
