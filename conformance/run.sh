#!/usr/bin/env bash
# Runs all conformance programs against one server binary and prints a table.
#   run.sh [--short] [--binary PATH] [--programs "s1 s2 ..."]   (other flags go to every program)
# LOGS=folder keeps each program's whole output (default: target/conformance/logs). Exit 1 if any program failed.
set -u
here=$(cd "$(dirname "$0")" && pwd)
programs="s1 s2 a1 a2 a3 a4 a5 a6 a7 a8 a9 a10 a11 a12 a13 a14 a15 kill_publish rolling cli_walk"
flags=()
while [[ $# -gt 0 ]]; do
  case "$1" in
    --programs) programs=$2; shift 2 ;;
    *) flags+=("$1"); shift ;;
  esac
done
"$here/setup.sh" || exit 2
logs=$(realpath -m "${LOGS:-$here/../target/conformance/logs}")
mkdir -p "$logs"
failed=0
table=()
(cd "$here" && python3 -m unittest -q lib.test_history lib.test_compare) > "$logs/checkers.log" 2>&1 || { cat "$logs/checkers.log"; exit 1; }
# Why a program cannot run here; nothing if it can.
obstacle() {
  case "$1" in
    a11|a12) "$here/../target/conformance/unsync/release/unsync" --probe 2>&1 > /dev/null ;;
  esac
}
for name in $programs; do
  why=$(obstacle "$name")
  if [[ -n "$why" ]]; then
    echo "$name skipped: no disk that loses power: $why"
    table+=("$(printf '%-14s %5d s  %s' "$name" 0 "skipped: $why")")
    continue
  fi
  begin=$(date +%s)
  "$here/$name.py" "${flags[@]}" 2>&1 | tee "$logs/$name.log"
  [[ ${PIPESTATUS[0]} == 0 ]] || failed=1
  verdict=$(grep -E "^$name (passed|failed)" -i "$logs/$name.log" | tail -1)
  table+=("$(printf '%-14s %5d s  %s' "$name" "$(($(date +%s) - begin))" "${verdict:-no verdict}")")
done
printf '\n%s\n' "program        time     verdict"
printf '%s\n' "${table[@]}" | cut -c1-200
exit $failed
