#!/usr/bin/env bash
# Prints the nightly toolchain that fuzzing and Miri use: that of its argument, which is installed if it is missing.
# Without a network an installed `nightly` is used instead, and a warning names both.
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
