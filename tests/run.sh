#!/bin/sh
# Runs every check and ends in "N passed, N failed". Each check is a line; what must be skipped says so loudly, and counts as
# a failure where CI is set. Logs are in build/test.
set -u
cd "$(dirname "$0")/.." || exit 1
out=build/test
mkdir -p $out
passed=0
failed=0
STB=$(pkg-config --cflags stb 2>/dev/null || echo -I/usr/include/stb)
STRICT="-Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wundef -Werror"
SAN="-g1 -fsanitize=address,undefined -fno-sanitize-recover=all"

check() { # name command...: one check
    label=$1
    shift
    if "$@" >"$out/log" 2>&1; then
        passed=$((passed + 1))
        echo "ok      $label"
    else
        failed=$((failed + 1))
        echo "FAILED  $label"
        grep -vE '^ok ' "$out/log" | tail -40
    fi
}

tap() { # name program: a TAP program counts as many checks as it has tests
    label=$1
    shift
    "$@" >"$out/tap" 2>&1
    status=$?
    good=$(grep -c '^ok ' "$out/tap")
    bad=$(grep -c '^not ok ' "$out/tap")
    plan=$(sed -n 's/^1\.\.//p' "$out/tap")
    if [ "$bad" = 0 ] && { [ "$status" != 0 ] || [ "$plan" != "$good" ]; }; then bad=1; fi
    passed=$((passed + good))
    failed=$((failed + bad))
    if [ "$bad" = 0 ]; then
        echo "ok      $label: $good"
    else
        echo "FAILED  $label: $bad of $((good + bad)), status $status"
        grep -vE '^ok ' "$out/tap" | tail -40
    fi
}

have() { # tool package: or a loud skip
    command -v "$1" >/dev/null 2>&1 && return 0
    echo "SKIPPED what needs $1: apt-get install $2"
    [ -n "${CI:-}" ] && failed=$((failed + 1))
    return 1
}

printf '#define GCOMP_IMPLEMENTATION\n#include "gcomp.h"\n' >$out/one.c
cp $out/one.c $out/one.cpp
printf '#include "gcomp.h"\n#include "gcomp.h"\n' >$out/twice.c

section() { # name: and the seconds since the beginning
    echo "--- $1 (at $(($(date +%s) - began)) s)"
}

bare() { # compiler flags...: the header alone, without a warning, and with small frames where the compiler optimises
    case " $* " in
    *" -O0 "*) frames= ;;
    *) frames=-Wframe-larger-than=4096 ;;
    esac
    case $1 in
    *++) file=$out/one.cpp strict=$STRICT ;;
    *) file=$out/one.c strict="$STRICT -Wstrict-prototypes" ;;
    esac
    tool=$1
    shift
    check "$tool $*, no warning" $tool $strict $frames "$@" -I. -c $file -o $out/bare.o
}

compilers_of() { # c or c++: those that are here, in $compilers
    compilers=
    if [ $1 = c ]; then
        have gcc gcc && compilers=gcc
        have clang clang && compilers="$compilers clang"
    else
        have g++ g++ && compilers=g++
        have clang++ clang && compilers="$compilers clang++"
    fi
}

began=$(date +%s)
section builds
compilers_of c
for compiler in $compilers; do
    for std in c99 c11 c17; do bare $compiler -std=$std -O2; done
    for flags in "-O0" "-O3 -march=native" "-O2 -DGCOMP_NO_SELF" "-O2 -DGCOMP_NO_STDLIB" "-O2 -DGCOMP_WITHOUT_FP16 \
        -DGCOMP_WITHOUT_BF16 -DGCOMP_WITHOUT_SIGN -DGCOMP_WITHOUT_TOPK -DGCOMP_WITHOUT_POWERSGD"; do
        bare $compiler -std=gnu99 $flags -Wno-unused-function
    done
done
for flags in "-O1" "-Ofast" "-Os" "-O2 -DGCOMP_MAX_ISA=1"; do bare gcc -std=gnu99 $flags -Wno-unused-function; done
compilers_of c++
for compiler in $compilers; do
    for std in c++11 c++17; do bare $compiler -std=$std -O2; done
    bare $compiler -std=c++11 -O0
done
check "declarations alone, twice" gcc -std=c99 $STRICT -Wstrict-prototypes -I. -c $out/twice.c -o $out/twice.o
check "one object" gcc -std=c99 -O2 -I. -c $out/one.c -o $out/one.o
check "public symbols begin with gcomp" sh -c "! nm -g --defined-only $out/one.o | awk '{print \$3}' | grep -v '^gcomp_'"
check "without the standard library" gcc -O2 -DGCOMP_NO_STDLIB -I. -c $out/one.c -o $out/free.o
check "freestanding: no malloc, no stdio" sh -c "! nm -u $out/free.o | grep -E ' (malloc|realloc|free|printf|getenv)\$'"
check "two files, one implementation, build" gcc -O1 -I. tests/multi_a.c tests/multi_b.c -o $out/multi -lm
check "two files, one implementation" $out/multi
[ -e tests/check_style.sh ] && check "style" sh tests/check_style.sh

section "tests on every instruction set"
sets=scalar
grep -q avx2 /proc/cpuinfo && sets="$sets avx2"
grep -q avx512vl /proc/cpuinfo && sets="$sets avx512"
[ "$(uname -m)" = aarch64 ] && sets="$sets neon"
for source in tests/test_*.c; do
    name=$(basename $source .c)
    check "$name builds" gcc -std=gnu11 -O2 -Wall -Wextra -I. $source -o $out/$name -lm -pthread
    for set in $sets; do tap "$name, $set" env GCOMP_ISA=$set $out/$name; done
done
for compiler in $compilers; do # of C++
    for std in c++11 c++17; do
        check "test_cxx builds, $compiler $std" $compiler -std=$std -O2 $STRICT -I. tests/test_cxx.cpp -o $out/test_cxx -lm
        for set in $sets; do tap "test_cxx, $compiler $std, $set" env GCOMP_ISA=$set $out/test_cxx; done
    done
done

section sanitizers
mkdir -p $out/tests && rm -f $out/tests/*.san
check "tests build with sanitizers, two at a time" \
    sh -c "ls tests/test_*.c | xargs -P 2 -I{} gcc -std=gnu11 -O1 $SAN -I. {} -o $out/{}.san -lm -pthread"
for source in tests/test_*.c; do tap "$(basename $source .c), sanitizers" $out/$source.san; done

section "other compilers and machines"
for flags in "gcc -O0" "gcc -O3 -march=native" "gcc -Ofast" "clang -O0" "clang -O2" "clang -O3 -march=native" "clang -Ofast"; do
    have ${flags%% *} ${flags%% *} || continue
    [ -e tests/test_digest.c ] || continue
    check "test_digest builds, $flags" $flags -std=gnu11 -w -I. tests/test_digest.c -o $out/digest -lm -pthread
    tap "test_digest, $flags" $out/digest
done
if have aarch64-linux-gnu-gcc "gcc-aarch64-linux-gnu libc6-dev-arm64-cross" && have qemu-aarch64 qemu-user; then
    mkdir -p $out/include && cp /usr/include/stb/stb_ds.h $out/include/
    for name in test_digest test_methods test_powersgd test_kernels test_edges; do
        [ -e tests/$name.c ] || continue
        check "$name builds, aarch64" aarch64-linux-gnu-gcc -std=gnu11 -O2 -static -w -I. -I$out/include tests/$name.c \
            -o $out/$name.arm -lm -pthread
        tap "$name, aarch64" qemu-aarch64 $out/$name.arm
    done
fi

section "examples, transports"
check "examples build" make -s examples
for name in first static_memory; do [ -x build/$name ] && check "example $name" build/$name; done
if have mpicc libopenmpi-dev && [ -e tests/mpi_two.c ]; then
    check "mpi_two builds" mpicc -std=gnu11 -O1 -I. tests/mpi_two.c -o $out/mpi_two -lm
    tap "two MPI ranks" mpirun --allow-run-as-root --oversubscribe -n 2 $out/mpi_two
fi

section fuzzing
if [ -e tests/fuzz_decode.c ]; then
    check "fuzz replay builds" gcc -std=gnu11 -O1 $SAN -DFUZZ_MAIN -I. tests/fuzz_decode.c -o $out/fuzz_replay -lm
    check "corpus replays" sh -c "$out/fuzz_replay tests/corpus/*"
    check "a million mutated payloads" $out/fuzz_replay --mutate 1000000
    if have clang clang; then
        check "libFuzzer builds" clang -std=gnu11 -O1 -g -fsanitize=fuzzer,address,undefined -w -I. tests/fuzz_decode.c \
            -o $out/fuzz -lm
        mkdir -p $out/corpus
        check "libFuzzer, bounded" $out/fuzz -runs=200000 -max_total_time=60 -max_len=4096 $out/corpus tests/corpus
    fi
fi

section end
echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
