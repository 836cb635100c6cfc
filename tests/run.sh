#!/bin/sh
# Runs every check and ends in "N passed, N failed". Checks are queued and run as many at a time as there are processors, then
# reported in order, a line each. What must be skipped says so loudly, and counts as a failure where CI is set. Logs are in
# build/test/jobs.
set -u
cd "$(dirname "$0")/.." || exit 1
out=build/test
rm -rf $out
mkdir -p $out/jobs $out/corpus $out/include $out/tests
exec 3>&2 2>$out/complaints # of this script: what checks say is in their logs. There must be none
trap 'cat $out/complaints >&3' EXIT
passed=0
failed=0
queued=0
began=$(date +%s)
cores=$(nproc 2>/dev/null || echo 2)
STRICT="-Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wundef -Werror"
SAN="-g1 -fsanitize=address,undefined -fno-sanitize-recover=all"

queue() { # check|tap label command...
    queued=$((queued + 1))
    printf '%s\n' "$1" >$out/jobs/$queued.kind
    printf '%s\n' "$2" >$out/jobs/$queued.label
    shift 2
    for word in "$@"; do
        printf "'%s' " "$(printf '%s' "$word" | sed "s/'/'\\\\''/g")"
    done >$out/jobs/$queued.sh
}
check() { queue check "$@"; } # passes if the command succeeds
tap() { queue tap "$@"; }     # counts as many checks as the TAP program has tests

report() { # one job that has run
    label=$(cat $out/jobs/$1.label)
    log=$out/jobs/$1.log
    status=$(cat $out/jobs/$1.status)
    good=0
    bad=0
    if [ "$(cat $out/jobs/$1.kind)" = tap ]; then
        good=$(grep -c '^ok ' $log)
        bad=$(grep -c '^not ok ' $log)
        [ "$bad" = 0 ] && [ "$(sed -n 's/^1\.\.//p' $log)" != "$good" ] && bad=1
        count=": $good"
    else
        [ "$status" = 0 ] && good=1
        count=
    fi
    [ "$status" != 0 ] && [ "$bad" = 0 ] && bad=1
    skips=$(grep -c '^ok .* # SKIP ' $log)
    if [ "$skips" != 0 ]; then
        sed -n "s/^ok [0-9]* - \(.*\) # SKIP /SKIPPED \1 of $label: /p" $log
        good=$((good - skips))
        [ -n "${CI:-}" ] && failed=$((failed + skips))
    fi
    passed=$((passed + good))
    failed=$((failed + bad))
    if [ "$bad" = 0 ]; then
        echo "ok      $label$count"
    else
        echo "FAILED  $label (status $status)"
        grep -vE '^ok ' $log | tail -40
    fi
}

drain() { # runs what is queued
    [ $queued = 0 ] && return
    seq $queued | xargs -P $cores -I{} sh -c "sh $out/jobs/{}.sh >$out/jobs/{}.log 2>&1; echo \$? >$out/jobs/{}.status"
    job=1
    while [ $job -le $queued ]; do
        report $job
        job=$((job + 1))
    done
    rm -rf $out/jobs
    mkdir -p $out/jobs
    queued=0
}

have() { # tool package: or a loud skip
    command -v "$1" >/dev/null 2>&1 && return 0
    echo "SKIPPED what needs $1: apt-get install $2"
    [ -n "${CI:-}" ] && failed=$((failed + 1))
    return 1
}

section() { # name: and the seconds since the beginning
    echo "--- $1 (at $(($(date +%s) - began)) s)"
}

object() { # compiler flags...: where the header's object with them is
    echo "$out/header.$(echo "$*" | cksum | cut -d ' ' -f 1).o"
}

bare() { # compiler flags...: the header alone, without a warning, and with small frames where the compiler optimises
    made=$(object "$@")
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
    check "$tool $*, no warning" $tool $strict $frames "$@" -I. -c $file -o $made
}

# The header takes long to compile: what is built without a warning is what programs are linked with. But test_kernels sees
# inside and test_static is static: they contain the implementation.
whole="test_kernels test_static"
objects_of() { # test object flags: what it is built with; the flags are for an implementation of its own
    case " $whole " in
    *" $1 "*) echo "${3:-}" ;;
    *) echo "-DGCOMP_LINKED $2" ;;
    esac
}

build_test() { # test
    check "$1 builds, sanitizers" gcc -std=gnu11 -O1 $SAN -I. -Itests/standin tests/$1.c $(objects_of $1 $san) \
        -o $out/$1.san -lm -pthread
    check "$1 builds" gcc -std=gnu11 -O2 -Wall -Wextra -I. -Itests/standin tests/$1.c $(objects_of $1 $plain) \
        -o $out/$1 -lm -pthread
    case "${arm:+ $on_arm }" in
    *" $1 "*) check "$1 builds, aarch64" $arm -std=gnu11 -O2 -static -w -I. -I$out/include tests/$1.c \
        $(objects_of $1 $arm_o -march=armv8-a+crc) -o $out/$1.arm -lm -pthread ;;
    esac
}

printf '#define GCOMP_IMPLEMENTATION\n#include "gcomp.h"\n' >$out/one.c
cp $out/one.c $out/one.cpp
printf '#include "gcomp.h"\n#include "gcomp.h"\n' >$out/twice.c
cp /usr/include/stb/stb_ds.h $out/include/ 2>/dev/null
sets=scalar
grep -q avx2 /proc/cpuinfo && sets="$sets avx2"
grep -q avx512vl /proc/cpuinfo && sets="$sets avx512"
[ "$(uname -m)" = aarch64 ] && sets="$sets neon"
c=
cxx=
have gcc gcc && c=gcc
have g++ g++ && cxx=g++
if have clang clang; then
    c="$c clang"
    cxx="$cxx clang++"
    clang=1
else
    clang=
fi
arm=
if have aarch64-linux-gnu-gcc "gcc-aarch64-linux-gnu libc6-dev-arm64-cross" && have qemu-aarch64 qemu-user; then
    arm=aarch64-linux-gnu-gcc
fi
mingw=
have x86_64-w64-mingw32-g++ g++-mingw-w64-x86-64-posix && mingw=x86_64-w64-mingw32-gcc
# Two MPIs beside each other, as Debian installs them.
mpis=
have mpicc.openmpi "libopenmpi-dev openmpi-bin" && mpis="openmpi"
have mpicc.mpich "libmpich-dev mpich" && mpis="$mpis mpich"
on_ranks() { # MPI number program; MPICH has hung in one of 20 runs on the machine where it was tried: not for ever
    case $1 in
    openmpi) echo "timeout 120 mpirun.openmpi --allow-run-as-root --oversubscribe -n $2 $3" ;;
    mpich) echo "timeout 120 mpiexec.mpich -n $2 $3" ;;
    esac
}
printf '#define _POSIX_C_SOURCE 200809L\n#include "examples/gcomp_nccl.h"\n' >$out/nccl.c
nccl=-Itests/standin # stand-ins, but for a check with the true headers
printf '#include <cuda_runtime.h>\n#include <nccl.h>\n' | gcc -E - >/dev/null 2>&1 && nccl=
names=$(for source in tests/test_*.c; do basename $source .c; done)
# Once for all instruction sets: transports, which are the same on each, and test_random, which draws a set for each group.
once="test_random test_threads test_sockets test_nccl test_nccl_older test_server test_nodes"
plain=$(object gcc -std=c99 -O2)
free=$(object gcc -std=gnu99 -O2 -DGCOMP_NO_STDLIB -Wno-unused-function)
san=$out/san.o
arm_o=$out/arm.o
# Builds whose digests must be those of the others.
digests() { # command...: with compiler and flags of each
    for flags in -O0 "-O3 -march=native" -Ofast; do "$@" gcc -std=gnu99 $flags -Wno-unused-function; done
    [ -n "$clang" ] || return
    "$@" clang -std=c99 -O2
    for flags in -O0 "-O3 -march=native" -Ofast; do "$@" clang -std=gnu99 $flags -Wno-unused-function; done
}
on_arm="test_digest test_methods test_powersgd test_kernels test_edges test_quantizers test_rounds test_vote test_float_mode"

section "builds of the header" # the longest first
[ -n "$clang" ] && check "libFuzzer builds" clang -std=gnu11 -O1 -g1 -fsanitize=fuzzer,address,undefined -w -I. \
    tests/fuzz_decode.c -o $out/fuzz -lm
check "one object, sanitizers" gcc -std=gnu11 -O1 $SAN -I. -c $out/one.c -o $san
check "examples build" make -s examples
for name in $whole; do build_test $name; done
for compiler in $c; do
    for std in c99 c11 c17; do bare $compiler -std=$std -O2; done
    for flags in "-O0" "-O3 -march=native" "-O2 -DGCOMP_NO_SELF" "-O2 -DGCOMP_NO_STDLIB"; do
        bare $compiler -std=gnu99 $flags -Wno-unused-function
    done
    without=$(sed -n 's/^#define GCOMP__LIST_\([a-z0-9]*\)(X) X(.*/-DGCOMP_WITHOUT_\1/p' gcomp.h | grep -v none | tr 'a-z' 'A-Z')
    bare $compiler -std=gnu99 -O2 -Wno-unused-function $without
done
for flags in "-O1" "-Os" "-O2 -DGCOMP_MAX_ISA=1" "-O2 -march=native -DGCOMP_NO_SELF"; do
    bare gcc -std=gnu99 $flags -Wno-unused-function
done
for compiler in $c; do bare $compiler -std=gnu99 -Ofast -Wno-unused-function; done
for compiler in $cxx; do
    for std in c++11 c++17; do bare $compiler -std=$std -O2; done
    bare $compiler -std=c++11 -O0
done
check "declarations alone, twice" gcc -std=c99 $STRICT -Wstrict-prototypes -I. -c $out/twice.c -o $out/twice.o
[ -n "$arm" ] && check "one object, aarch64" $arm -std=gnu11 -O2 -w -I. -I$out/include -c $out/one.c -o $arm_o
for language in "c -std=c11" "c++ -std=c++11"; do
    check "gcomp_nccl.h with ${nccl:+stand-ins for }CUDA's and NCCL's headers, $language" gcc -x $language -O0 $STRICT -I. $nccl \
        -fsyntax-only $out/nccl.c
done
check "each method left out alone" sh tests/check_without.sh ${clang:+clang} # gcc where there is none: slower
check "beside macros, stb_ds.h and warnings of a user" sh tests/check_beside.sh
[ -n "$mingw" ] && check "behind mingw's windows.h" sh tests/check_beside.sh $mingw
check "first uses in threads at once build, ThreadSanitizer" gcc -std=gnu11 -O1 -g1 -fsanitize=thread -DGCOMP_MAX_ISA=1 -I. \
    tests/first_use.c -o $out/first_use.tsan -pthread
check "test_float_mode builds, as where the mode cannot be set" gcc -std=gnu11 -O1 -w -DGCOMP__KEEP_MODE -DGCOMP_MAX_ISA=1 -I. \
    tests/test_float_mode.c -o $out/test_float_mode.kept -lm
[ -n "$clang" ] && check "all bytes written builds, MemorySanitizer" clang -std=gnu11 -O1 -g1 -fsanitize=memory -w \
    -DGCOMP_MAX_ISA=1 -I. tests/all_written.c -o $out/all_written -lm
check "two files, one implementation, build" gcc -O1 -I. tests/multi_a.c tests/multi_b.c -o $out/multi -lm
check "style" sh tests/check_style.sh
drain

section "builds of the tests"
check "public symbols begin with gcomp" sh -c "! nm -g --defined-only $plain | awk '{print \$3}' | grep -v '^gcomp_'"
needs="mem(cmp|cpy|move|set)|str(cmp|chr|len)|__cpu_model|__cpu_indicator_init|__popcountdi2|_GLOBAL_OFFSET_TABLE_"
for object in $free build/embedded_gcomp.o; do
    check "freestanding: ${object##*/} needs what >>config says" sh -c "nm -u $object | grep -q strcmp &&
        ! nm -u $object | awk '{print \$2}' | grep -vE '^($needs)\$'"
done
check "two files, one implementation" $out/multi
check "first uses in threads at once" $out/first_use.tsan
[ -n "$clang" ] && check "all bytes that are read were written" $out/all_written
[ "$(uname -m)" = x86_64 ] && check "a program for processors without F16C builds" gcc -static -I. -DGCOMP_LINKED tests/first_use.c \
    $plain -o $out/first_use -pthread
for name in $names; do
    case " $whole " in
    *" $name "*) ;;
    *) build_test $name ;;
    esac
done
for compiler in $cxx; do
    for std in c++11 c++17; do
        check "test_cxx builds, $compiler $std" $compiler -std=$std -O2 $STRICT -I. -DGCOMP_LINKED tests/test_cxx.cpp \
            $(object $compiler -std=$std -O2) -o $out/test_cxx.$compiler.$std -lm
    done
done
digest_of() { echo "$(object "$@").digest"; }
build_digest() {
    check "test_digest builds, $*" "$@" -O2 -w -I. -DGCOMP_LINKED tests/test_digest.c "$(object "$@")" \
        -o "$(digest_of "$@")" -lm -pthread
}
digests build_digest
for mpi in $mpis; do
    for name in mpi_two mpi_ranks mpi_faults; do
        check "$name builds, $mpi" mpicc.$mpi -std=gnu11 -O1 -I. -DGCOMP_LINKED tests/$name.c $plain \
            -o $out/$name.$mpi -lm -pthread
    done
    check "overlap builds, $mpi" mpicc.$mpi -std=gnu11 -O1 -I. examples/overlap.c $plain -o $out/overlap.$mpi -lopenblas -lm
    check "train builds, $mpi" mpicc.$mpi -std=gnu11 -O1 -I. -DUSE_MPI examples/train.c $plain -o $out/train.$mpi \
        -lopenblas -lz -lm -pthread
done
check "fuzz replay builds" gcc -std=gnu11 -O1 $SAN -DFUZZ_MAIN -DGCOMP_LINKED -I. tests/fuzz_decode.c $san \
    -o $out/fuzz_replay -lm
drain

section "tests" # the longest first
for name in ${arm:+$on_arm}; do
    [ -e tests/$name.c ] && tap "$name, aarch64" qemu-aarch64 $out/$name.arm
done
[ -n "$clang" ] && check "libFuzzer, bounded" $out/fuzz -runs=200000 -max_total_time=60 -max_len=4096 $out/corpus tests/corpus
if [ "$(uname -m)" = x86_64 ] && have qemu-x86_64 qemu-user; then
    check "AVX2 under qemu" qemu-x86_64 -cpu max $out/first_use avx2
    for lacks in f16c xsave avx2; do
        check "no AVX2 without $lacks" sh -c "qemu-x86_64 -cpu max,-$lacks $out/first_use scalar && \
            ! qemu-x86_64 -cpu max,-$lacks $out/first_use avx2"
    done
fi
tap "test_float_mode, as where the mode cannot be set" $out/test_float_mode.kept
run_digest() { tap "test_digest, $*" "$(digest_of "$@")"; }
digests run_digest
for name in $names; do
    case " $once " in
    *" $name "*) tap "$name" $out/$name ;;
    *) for set in $sets; do tap "$name, $set" env GCOMP_ISA=$set $out/$name; done ;;
    esac
    tap "$name, sanitizers" $out/$name.san
done
for compiler in $cxx; do
    for std in c++11 c++17; do
        for set in $sets; do tap "test_cxx, $compiler $std, $set" env GCOMP_ISA=$set $out/test_cxx.$compiler.$std; done
    done
done
for name in first engine embedded own_loop; do check "example $name" build/$name; done
check "example advise" build/advise sign
check "example advise, over TCP" sh -c "build/advise --rank 1 --root 127.0.0.1:7391 sign & build/advise --rank 0 --root 127.0.0.1:7391 sign &&
    wait \$!"
check "training as advised" build/train --text gcomp.h --hidden 40,40 --steps 3 --method advise --no-pictures --out $out/advised
for mpi in $mpis; do
    tap "two ranks, $mpi" $(on_ranks $mpi 2 $out/mpi_two.$mpi)
    tap "four ranks, $mpi" $(on_ranks $mpi 4 $out/mpi_ranks.$mpi)
    tap "faults on one of four ranks, $mpi" $(on_ranks $mpi 4 $out/mpi_faults.$mpi)
    check "example overlap, $mpi" $(on_ranks $mpi 2 "$out/overlap.$mpi int:bits=4 3 64 8 1 3")
done
check "one program over every transport, the same parameters" sh tests/same_program.sh build/train $out/train $mpis
check "corpus replays" sh -c "$out/fuzz_replay tests/corpus/*"
check "a million mutated payloads" $out/fuzz_replay --mutate 1000000
drain

section end
if [ -s $out/complaints ]; then
    failed=$((failed + 1))
    echo "FAILED  the script itself: what it says is below"
fi
echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
