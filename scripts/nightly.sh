#!/usr/bin/env bash
# Print the nightly toolchain for fuzzing and Miri: the one given as argument, which is installed if it is missing.
# If it cannot be installed, an installed `nightly` is used instead, with a warning.
set -euo pipefail
pinned=$1
works() { rustup run "$1" rustc --version >/dev/null 2>&1; }
if ! works "$pinned"; then
    echo "installing $pinned" >&2
    rustup toolchain install "$pinned" --profile minimal --component miri --component rust-src --no-self-update >&2 || true
fi
if works "$pinned"; then
    echo "$pinned"
elif works nightly; then
    echo "warning: $pinned cannot be installed; nightly is used: $(rustup run nightly rustc --version)" >&2
    echo nightly
else
    echo "error: rustup has no toolchain $pinned; install it: rustup toolchain install $pinned" >&2
    exit 1
fi
