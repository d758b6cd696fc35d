#!/bin/sh
# sanitize.sh [SECONDS [SEED]]: builds the native core with ASan and UBSan and feeds it damaged JPEGs and senseless numbers.
set -eu
cd "$(dirname "$0")/.."
. tools/common.sh
seconds=${1:-60}
seed=${2:-$(date +%s)}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

say "building the native core with ASan and UBSan"
# shellcheck disable=SC2086  # CC may hold flags
${CC:-cc} -std=c11 -D_GNU_SOURCE -O1 -g -Wall -Wextra -Wconversion -Werror -fno-omit-frame-pointer -ffp-contract=off \
  -fsanitize=address,undefined -fno-sanitize-recover=all -o "$work/fuzz" native/*.c native/fuzz/fuzz.c -ldl ||
  die "the build failed, see above; it needs a C compiler with sanitizers and libjpeg's headers"

say "making seeds"
libjpeg=$(.venv/bin/python native/fuzz/seeds.py "$work/seeds")
say "fuzzing for $seconds s, seed $seed"
ASAN_OPTIONS=detect_leaks=1:allocator_may_return_null=1:max_allocation_size_mb=2048 UBSAN_OPTIONS=print_stacktrace=1 \
  "$work/fuzz" "$libjpeg" "$seconds" "$seed" "$work"/seeds/*
