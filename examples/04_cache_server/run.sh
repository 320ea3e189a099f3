#!/bin/sh
# One cache server and three engines, each a process of its own:
#
#   run.sh TERRACE ENGINE        TERRACE: the program `terrace`; ENGINE: cache_server_engine
#
# The first engine computes a prompt, the second answers it from the server with the same answer, the third, with
# another prompt, finds nothing and answers something else. Exits 0 where all of that was so.
set -eu
terrace=$1
engine=$2
folder=$(mktemp -d)
"$terrace" serve --listen 127.0.0.1:0 --unix "$folder/socket" --host-bytes 64MiB \
  --metrics-port off >"$folder/log" 2>&1 &
server=$!
trap 'kill $server 2>/dev/null; wait $server 2>/dev/null || true; rm -rf "$folder"' EXIT

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

first=$("$engine" "unix:$folder/socket" 1)
echo "first engine:  $first"
second=$("$engine" "unix:$folder/socket" 1)
echo "second engine: $second"
other=$("$engine" "unix:$folder/socket" 2)
echo "other prompt:  $other"

answer=${first##* }
case $first in "loaded 0 tokens (0 chunks from the server), computed 1029, "*) ;; *) echo "the first was not cold" >&2; exit 1 ;; esac
case $second in
"loaded 1024 tokens (4 chunks from the server), computed 5, answer $answer") ;;
*) echo "the second was not answered from the server, or not alike" >&2; exit 1 ;;
esac
case $other in
*"$answer") echo "another prompt got the same answer" >&2; exit 1 ;;
"loaded 0 tokens "*) ;;
*) echo "another prompt found something" >&2; exit 1 ;;
esac
echo "equal answers: $answer"
