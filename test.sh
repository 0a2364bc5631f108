#!/usr/bin/env bash
# Installs what the tests need, builds, and runs everything: unit, scenario and style tests, then the sanitizer builds.
#   ./test.sh                the whole suite
#   ./test.sh --long NAME    the long version of one test (a ctest name)
# Before the end come the slowest tests and the time of every stage. The last line is `N passed, N failed`.
set -uo pipefail
cd "$(dirname "$0")"

long=""
case "${1:-}" in
  "") ;;
  --long) long=${2:?"usage: ./test.sh --long NAME"} ;;
  *) echo "usage: ./test.sh [--long NAME]" >&2; exit 2 ;;
esac

passed=0
failed=0
finish() {
  if [ -s "$log/stages" ]; then
    echo "== the slowest tests (seconds, build, test)"
    sort -rn "$log/times" | head -10
    echo "== the stages (seconds)"
    cat "$log/stages"
    printf '%8d  all\n' "$SECONDS"
  fi
  echo "$passed passed, $failed failed"
  [ "$failed" -eq 0 ]
}
die() { echo "test.sh: $1" >&2; failed=$((failed + 1)); finish; exit 1; }

jobs=$(nproc)
log=$(mktemp -d)
trap 'rm -rf "$log"' EXIT
touch "$log/times"
stage() { # start, name
  echo "== $2: $((SECONDS - $1)) s"
  printf '%8d  %s\n' "$((SECONDS - $1))" "$2" >>"$log/stages"
}

build() { # preset
  echo "== building $1"
  local start=$SECONDS
  cmake --preset "$1" -DTROUPE_JOIN=ON >"$log/configure" 2>&1 || { cat "$log/configure"; die "configuring $1 failed"; }
  cmake --build --preset "$1" -j "$jobs" >"$log/build" 2>&1 || { grep -E 'error|FAILED|warning: ' "$log/build" | head -60; tail -30 "$log/build"; die "building $1 failed"; }
  stage "$start" "building $1"
}

run() { # preset, ctest arguments
  local preset=$1 start=$SECONDS
  shift
  echo "== $preset: ctest $*"
  (cd "build/$preset" && ctest --output-on-failure --no-tests=error "$@") 2>&1 | tee "$log/ctest"
  sed -nE "s/^ *[0-9]+\/[0-9]+ Test +#[0-9]+: ([^ ]+) .* ([0-9.]+) sec.*/\2 $preset \1/p" "$log/ctest" >>"$log/times"
  stage "$start" "$preset: ctest $*"
  local total bad
  total=$(sed -nE 's/.*tests failed out of ([0-9]+).*/\1/p' "$log/ctest" | tail -1)
  bad=$(sed -nE 's/.*tests passed, ([0-9]+) tests failed.*/\1/p' "$log/ctest" | tail -1)
  [ -n "$total" ] || { failed=$((failed + 1)); return; }
  passed=$((passed + total - bad))
  failed=$((failed + bad))
}

./install-deps.sh build test || die "installing packages failed"
stage 0 "installing packages"
build release
if [ -n "$long" ]; then
  export TROUPE_LONG=1
  run release -R "^$long\$" --timeout 7200
  finish
  exit
fi
run release -j "$jobs" -LE exclusive
run release -L exclusive
build asan
ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1 run asan -j "$jobs" -L unit
build tsan
TSAN_OPTIONS="halt_on_error=1 suppressions=$PWD/tests/tsan.supp" run tsan -j "$jobs" -L tsan
finish
