#!/bin/sh
# The engine's proof in an empty directory, with host memory and NVMe below it:
#
#   run.sh ENGINE [TERRACE]      ENGINE: paged_engine; TERRACE: the program `terrace`, then with a cache server too
#
# Exits 0 where every logit of every warm run was that of the cold run, and tokens did come out of each tier.
set -eu
engine=$1
terrace=${2:-}
folder=$(mktemp -d)
server=
trap '[ -z "$server" ] || { kill $server 2>/dev/null; wait $server 2>/dev/null || true; }; rm -rf "$folder"' EXIT

if [ -n "$terrace" ]; then
  "$terrace" serve --listen 127.0.0.1:0 --unix "$folder/socket" --host-bytes 64MiB \
    --metrics-port off >"$folder/log" 2>&1 &
  server=$!
  tries=0
  until [ -S "$folder/socket" ]; do
    tries=$((tries + 1))
    if [ $tries -gt 300 ] || ! kill -0 $server 2>/dev/null; then
      cat "$folder/log"
      echo "the server did not start" >&2
      exit 1
    fi
    sleep 0.1
  done
fi

status=0
"$engine" "$folder/cache" ${server:+--remote "unix:$folder/socket"} >"$folder/out" 2>&1 || status=$?
cat "$folder/out"
[ $status -eq 0 ] || exit $status

# An exit code alone could come from a run in which nothing was loaded.
expect() {
  [ "$(grep -c "$1" "$folder/out")" -eq "$2" ] || { echo "not $2 x in the output: $1" >&2; exit 1; }
}
expect "^  cold  *loaded   0 from -  *computed 600 " 2
expect "^  warm  *loaded 599 from host  *computed   1 " 2
expect "^  cut inside a chunk  *loaded 300 from host  *computed  50 " 2
expect "^  after a restart  *loaded 599 from nvme  *computed   1 " 2
expect "^  on another host  *loaded 599 from remote  *computed   1 " $([ -n "$server" ] && echo 2 || echo 0)
expect "^equal: " 1
