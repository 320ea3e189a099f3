#!/usr/bin/env bash
# Installs what Terrace needs: Debian packages, the engine (llama.cpp, built once) and the model
# (SmolLM2-135M). Engine and model come from PyPI by pinned version and SHA-256 and lie in a cache
# folder outside the checkout (TERRACE_CACHE_DIR, default ~/.cache/terrace). Safe to run again: what
# is there and right is left alone.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

install_packages() {
  local missing=() name
  while read -r name; do
    case "$name" in '' | '#'*) continue ;; esac
    dpkg-query -W -f '${Status}' "$name" 2>/dev/null | grep -q 'ok installed' || missing+=("$name")
  done <"$REPO_DIR/scripts/packages.txt"
  [ ${#missing[@]} -eq 0 ] && return 0
  local as_root=()
  if [ "$(id -u)" != 0 ]; then
    command -v sudo >/dev/null || die "these packages are missing and there is no sudo: ${missing[*]}"
    as_root=(sudo)
  fi
  step "updating the package lists" "${as_root[@]}" apt-get update -q
  step "installing ${#missing[@]} packages" "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
    apt-get install -y -q --no-install-recommends "${missing[@]}"
}

# Debian's own python first: another python on PATH may have no pip.
find_pip() {
  local python
  for python in /usr/bin/python3 python3; do
    if "$python" -m pip --version >/dev/null 2>&1; then PYTHON=$python; return 0; fi
  done
  die "no python3 with pip was found"
}

fetch() { # FILE DIGEST pip-arguments...
  local file=$1 digest=$2 dir=$CACHE_DIR/downloads
  shift 2
  mkdir -p "$dir"
  if [ ! -f "$dir/$file" ]; then
    step "downloading $file" "$PYTHON" -m pip download --no-deps --disable-pip-version-check \
      --dest "$dir" "$@"
  fi
  check_sha256 "$dir/$file" "$digest"
}

build_engine() {
  [ -f "$ENGINE_DIR/.complete" ] && return 0
  find_pip
  fetch "$LLAMA_SDIST" "$LLAMA_SHA256" --no-binary :all: "$LLAMA_PACKAGE==$LLAMA_VERSION"
  local work=$CACHE_DIR/work
  rm -rf "$work" "$ENGINE_DIR"
  mkdir -p "$work"
  step "unpacking llama.cpp" tar -xzf "$CACHE_DIR/downloads/$LLAMA_SDIST" -C "$work" \
    --strip-components=1 --wildcards '*/vendor/llama.cpp/*'
  local option off=()
  for option in TESTS TOOLS EXAMPLES SERVER APP COMMON UI; do off+=("-DLLAMA_BUILD_$option=OFF"); done
  step "configuring llama.cpp" cmake -S "$work/vendor/llama.cpp" -B "$work/build" -G Ninja \
    -DCMAKE_BUILD_TYPE=Release -DCMAKE_INSTALL_PREFIX="$ENGINE_DIR" -DCMAKE_INSTALL_LIBDIR=lib \
    -DCMAKE_INSTALL_RPATH='$ORIGIN' -DBUILD_SHARED_LIBS=ON "${off[@]}"
  step "building llama.cpp (about 5 minutes on 2 cores, once)" \
    cmake --build "$work/build" --parallel "$JOBS"
  step "installing llama.cpp into the cache folder" cmake --install "$work/build"
  rm -rf "$work"
  touch "$ENGINE_DIR/.complete"
}

fetch_model() {
  [ -f "$MODEL_PATH" ] && return 0
  find_pip
  fetch "$MODEL_WHEEL" "$MODEL_WHEEL_SHA256" "$MODEL_PACKAGE==$MODEL_VERSION"
  mkdir -p "$(dirname "$MODEL_PATH")"
  "$PYTHON" - "$CACHE_DIR/downloads/$MODEL_WHEEL" "$MODEL_PATH" <<'EOF'
import os, shutil, sys, zipfile
wheel, target = sys.argv[1:]
with zipfile.ZipFile(wheel) as z:
    name = next(n for n in z.namelist() if n.endswith(os.path.basename(target)))
    with z.open(name) as source, open(target + ".part", "wb") as out:
        shutil.copyfileobj(source, out, 1 << 20)
os.replace(target + ".part", target)
EOF
}

install_packages
build_engine
fetch_model
say "setup: ready (engine in $ENGINE_DIR, model $MODEL_PATH)"
