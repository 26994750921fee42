#!/bin/sh
# Builds the tests of coldpress-kernels for AArch64 and runs them under qemu-user, on a Debian x86-64 machine.
#
# Installs what is missing (Debian packages; needs root the first time): a compiler with the AArch64 standard library,
# the cross linker and the emulator. Arguments go to `cargo test`, for example `--test all every_kernel_equals_scalar`; without
# any, all tests of the crate run, which takes minutes.
set -eu

cd "$(dirname "$0")/.."

packages="rustc-web libstd-rust-web-dev:arm64 libc6:arm64 gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user"

have_all() {
    # shellcheck disable=SC2086 # one word per package
    test "$(dpkg-query -W -f '${db:Status-Abbrev}\n' $packages 2>/dev/null | grep -c '^ii')" -eq 6
}

if ! have_all; then
    dpkg --print-foreign-architectures | grep -qx arm64 || dpkg --add-architecture arm64
    apt-get update
    # shellcheck disable=SC2086
    DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends $packages
fi

# Debian's compiler, because it comes with a standard library for the target; any cargo can drive it.
export RUSTC=/usr/bin/rustc
export CARGO_TARGET_DIR=target/aarch64
export CARGO_PROFILE_DEV_DEBUG=0 CARGO_PROFILE_TEST_DEBUG=0
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc
# Without -L: the emulated loader and the C library must come from the same package (libc6:arm64).
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER="qemu-aarch64 -cpu max"

test $# -gt 0 || set -- --tests
exec cargo test --package coldpress-kernels --target aarch64-unknown-linux-gnu "$@"
