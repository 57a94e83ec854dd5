#!/usr/bin/env bash
# Runs the official Rust client's own tests (async-nats, as published on crates.io) against a server binary and compares
# with what nats-server 2.15.1 passes.
#   suites.sh [--binary PATH] [--short] [--programs "client_tests kv_tests ..."] [--only REGEX] [--prepare]
# --binary    default target/release/tidelock
# --short     the tests named in suites/short.txt: a few minutes
# --programs  test programs of the suite, or "all"; default: client, key-value, object store, JetStream
# --only      tests whose name matches
# --prepare   fetches and builds the suite, runs nothing
# The suite is built once, into target/conformance/suites (some minutes; crates come through cargo). Failing tests leave
# their output in target/conformance/logs/suites, and those of the run before go. Exit 0: no test fails that passes on
# nats-server. Needs cargo and Python; as root each run has a network of its own, else the fixed ports of some tests
# (4222, 8222, ...) must be free. JOBS, PER_TEST: see suites/run-nats-rs.sh.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
version=0.51.0
binary=$here/../target/release/tidelock
programs="client_tests kv_tests object_store jetstream_tests"
short=0 only="" prepare=0
while [[ $# -gt 0 ]]; do
  case "$1" in
    --binary) binary=$2; shift 2 ;;
    --programs) programs=$2; shift 2 ;;
    --only) only=$2; shift 2 ;;
    --short) short=1; shift ;;
    --prepare) prepare=1; shift ;;
    *) sed -n '2,14p' "$0" >&2; exit 2 ;;
  esac
done
suite=$(realpath -m "$here/../target/conformance/suites/async-nats-$version")
logs=$(realpath -m "$here/../target/conformance/logs/suites")
mkdir -p "$suite" "$logs"
[[ $prepare == 1 || -x "$binary" ]] || { echo "suites: no server at $binary: cargo build --release -p tidelock" >&2; exit 2; }
if [[ "$programs" == all ]]; then
  baseline=$here/suites/baseline/nats.rs.async-nats-$version.json
  programs=$(python3 -c 'import json, sys; print(*json.load(open(sys.argv[1]))["totals"])' "$baseline")
fi

# Prepared again when what lays it out has changed.
made_of() { cat "$here/suites/prepare-async-nats.sh" "$here"/suites/nats-server-helper/{Cargo.toml,src/lib.rs} | sha256sum; }
if [[ "$(cat "$suite/.stamp" 2> /dev/null)" != "$(made_of)" ]]; then
  "$here/suites/prepare-async-nats.sh" "$version" "$suite"
  made_of > "$suite/.stamp"
fi
tests=()
for program in $programs; do tests+=(--test "$program"); done
echo "building $programs"
(cd "$suite" && CARGO_TARGET_DIR="$suite/target" nice -n 19 cargo test -q -p async-nats --features slow_tests "${tests[@]}" --no-run -j 2)
[[ $prepare == 0 ]] || exit 0

subset=()
if [[ $short == 1 ]]; then
  only="^($(grep -v '^#' "$here/suites/short.txt" | paste -sd '|'))\$"
fi
[[ -z "$only" ]] || subset=(--subset)
out=$logs/async-nats-$version.json
rm -f "$out" "$logs"/*.log
# shellcheck disable=SC2086  # programs are words
ONLY=$only LOGS=$logs "$here/suites/run-nats-rs.sh" "$binary" "$suite" "$out" $programs || true
[[ -f "$out" ]] || { echo "suites failed: the runner gave no result"; exit 1; }
if python3 "$here/suites/compare.py" "${subset[@]}" "$out"; then
  echo "suites passed"
else
  echo "suites failed: see $logs"
  exit 1
fi
