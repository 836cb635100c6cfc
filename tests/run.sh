#!/bin/sh
# Runs tests, as many at a time as there are processors, a line each as it ends, and at last "N passed, N failed".
#
#   sh tests/run.sh                 make test: in minutes, each property once
#   sh tests/run.sh one test_topk   make test ONE=test_topk: one file, on every instruction set, with build/gcomp.o
#   sh tests/run.sh all             make test-all: everything else
#
# What must be skipped is said loudly, and counts as a failure where CI is set. Logs are in build/test/jobs.
set -u
cd "$(dirname "$0")/.." || exit 1
out=build/test
jobs=$out/jobs
inc="-I. -Iexamples/adapters -Itests/tools"
STRICT="-Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wundef -Werror"
SAN="-g1 -fsanitize=address,undefined -fno-sanitize-recover=all"

# ---------------- one job, in a process of its own: waits for what it needs, runs it, and prints a line
seconds_as() { # seconds: as people say it
    if [ $1 -lt 90 ]; then echo "$1 s"; else echo "$((($1 + 30) / 60)) min"; fi
}
progress() { # how many jobs of all have ended; behind that, on a terminal, how long the others may take
    done=$(ls $jobs | grep -c 'counts$') all=$(ls $jobs | grep -c 'kind$')
    [ "${1:-}" = left ] || { echo "$done of $all"; return; }
    left=$((($(date +%s) - $(cat $jobs/began)) * (all - done) / done))
    echo "$done of $all, about $(seconds_as $left) left"
}
run_job() { # number
    job=$jobs/$1
    label=$(cat $job.label)
    status=0
    for object in $(cat $job.needs); do
        until [ -e $object.status ]; do sleep 0.1; done
        [ "$(cat $object.status)" = 0 ] || { status=1; echo "$object was not built" >$job.log; }
    done
    began=$(date +%s)
    [ $status = 0 ] && { sh $job.sh >$job.log 2>&1 </dev/null; status=$?; }
    seconds=$(($(date +%s) - began))
    times >$job.times
    for object in $(cat $job.makes); do echo $status >$object.status; done
    good=0
    bad=0
    skips=0
    if [ "$(cat $job.kind)" = tap ]; then
        good=$(grep -c '^ok ' $job.log)
        bad=$(grep -c '^not ok ' $job.log)
        skips=$(grep -c '^ok .* # SKIP ' $job.log)
        planned=$(sed -n 's/^1\.\.//p' $job.log | awk '{ sum += $1 } END { print sum + 0 }')
        [ "$planned" = $((good + bad)) ] && [ "$planned" != 0 ] || status=1
        label="$label: $good"
    elif [ $status = 0 ]; then
        good=1
    fi
    [ $status != 0 ] && [ $bad = 0 ] && bad=1
    [ $skips != 0 ] && { good=$((good - skips)); [ -n "${CI:-}" ] && bad=$((bad + skips)); }
    echo "$good $bad" >$job.counts
    [ $seconds -gt 1 ] && label="$label ($seconds s)"
    lines=$(
        sed -n "s/^ok [0-9]* - \(.*\) # SKIP /SKIPPED \1 of $(cat $job.label | tr / .): /p" $job.log
        if [ $bad = 0 ] || [ $bad = $skips ]; then
            echo "ok      $label"
        else
            echo "FAILED  $label (status $status)"
            grep -vE '^ok ' $job.log | tail -40
        fi
    )
    if [ -t 1 ]; then
        printf '\r\033[K%s\n%s' "$lines" "$(progress left)"
    else
        printf '%s\n' "$lines" | sed "1s/\$/ [$(progress)]/"
    fi
}
if [ "${1:-}" = --job ]; then
    run_job "$2"
    exit 0
fi

# ---------------- the queue
queued=0
passed=0
failed=0
began=$(date +%s)
queue() { # kind label makes needs command...
    queued=$((queued + 1))
    printf '%s\n' "$1" >$jobs/$queued.kind
    printf '%s\n' "$2" >$jobs/$queued.label
    printf '%s\n' "$3" >$jobs/$queued.makes
    printf '%s\n' "$4" >$jobs/$queued.needs
    shift 4
    for word in "$@"; do
        printf "'%s' " "$(printf '%s' "$word" | sed "s/'/'\\\\''/g")"
    done >$jobs/$queued.sh
}
check() { label=$1; shift; queue check "$label" "" "" "$@"; }                  # label command...: passes if it succeeds
made() { label=$1 makes=$2; shift 2; queue check "$label" "$makes" "" "$@"; }   # label object command...: others wait for the object
with() { label=$1 needs=$2; shift 2; queue check "$label" "" "$needs" "$@"; }   # label objects command...: waits for them
tap() { label=$1 needs=$2; shift 2; queue tap "$label" "" "$needs" "$@"; }      # the same, and each of its tests counts

drain() { # [how many more at a time]: runs what is queued, in this order
    date +%s >$jobs/began
    seq $queued | xargs -P $(($(nproc 2>/dev/null || echo 2) + ${1:-0})) -n 1 sh tests/run.sh --job
    [ -t 1 ] && printf '\r\033[K'
    for counts in $jobs/*.counts; do
        read -r good bad <"$counts"
        passed=$((passed + good))
        failed=$((failed + bad))
    done
    [ "$(ls $jobs | grep -c 'counts$')" = $queued ] || { echo "FAILED  some jobs did not end"; failed=$((failed + 1)); }
    rm -f $jobs/*.counts $jobs/*.kind
    queued=0
}

have() { # tool package: or a loud skip
    command -v "$1" >/dev/null 2>&1 && return 0
    echo "SKIPPED what needs $1: apt-get install $2"
    [ -n "${CI:-}" ] && failed=$((failed + 1))
    return 1
}

# Debian's own python3, for which its packages are, comes before another one
python=python3
[ -x /usr/bin/python3 ] && python=/usr/bin/python3
have_module() { # module package
    $python -c "import $1" >/dev/null 2>&1 && return 0
    echo "SKIPPED what needs Python's $1: apt-get install $2"
    [ -n "${CI:-}" ] && failed=$((failed + 1))
    return 1
}

# ---------------- what there is to test, and where
blas="test_transformer" # need CBLAS, which "make test" does not install
names=$(for source in tests/*/test_*.c; do basename $source .c; done | sort | grep -vxF "$blas")
whole="test_kernels test_static" # contain the implementation: the one sees inside, the other is static
# Once for all instruction sets: transports, bounds and lists are the same on each. test_kernels goes through all sets, and
# test_random draws one for each of its cases.
once="test_bounds test_delayed test_elastic test_following test_gossip test_kernels test_lgc test_lists test_nccl test_nccl_older test_nodes
    test_nodes_change test_outer test_random test_readme test_server test_sockets test_sockets_door test_sockets_overlap test_threads test_try"
busy="test_lgc test_load_some test_overlap_calls test_residuals_saved test_shards" # compute much outside of codecs and edges
sets=scalar
grep -q avx2 /proc/cpuinfo && sets="$sets avx2"
grep -q avx512vl /proc/cpuinfo && sets="$sets avx512"
[ "$(uname -m)" = aarch64 ] && sets="$sets neon"
is_in() { # word words
    case " $(echo $2) " in *" $1 "*) return 0 ;; esac
    return 1
}
sets_of() { # test: "" stands for the set that the library chooses
    if is_in $1 "$once"; then echo; else echo $sets; fi
}
source_of() { # test: its file
    ls tests/*/$1.c
}
label_of() { # test: on which sets it runs
    is_in $1 "$once" || echo " on $sets"
}
on_sets() { # program sets: runs it on each
    echo "status=0; for set in ${2:-''}; do echo \"# \$set\"; GCOMP_ISA=\$set $1 || status=1; done; exit \$status"
}
computes() { # test: is it about what methods compute, on each set, rather than about the rest of the library?
    case $(source_of $1) in tests/codecs/* | tests/edges/*) return 0 ;; esac
    return 1
}
level_of() { # test: where it is not computing that takes its time, it is compiling
    is_in $1 "$whole" && return
    if computes $1 || is_in $1 "$busy"; then echo -O1; else echo -O0; fi
}
# Builds a test and runs it on these sets, linked with an object of the implementation, or with one of its own.
program() { # label test "sets" object "compiler with flags" suffix ["environment "]
    case "$4" in
    *.o) implementation="-DGCOMP_LINKED $4" needs=$4 ;;
    *) implementation=$4 needs= ;;
    esac
    tap "$1" "$needs" sh -c "$5 $(level_of $2) $inc -Itests/tools/standin $(source_of $2) $implementation -o $out/$2$6 -lm -pthread || exit; $(on_sets "${7:-}$out/$2$6" "$3")"
}
object_of() { # compiler flags...: where the header's object with them is
    echo "$out/header.$(echo "$*" | cksum | cut -d ' ' -f 1).o"
}
bare() { # compiler flags...: the header alone, without a warning, and with small frames where the compiler optimises
    object=$(object_of "$@")
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
    made "$tool $(echo "$*" | sed 's/ -DGCOMP_WITHOUT_.*/, all methods left out/'), no warning" $object $tool $strict $frames "$@" $inc -c $file -o $object
}
plain=$(object_of gcc -std=c99 -O2)
plain_gcc="gcc -std=gnu11 -Wall -Wextra"
shared=$PWD/$out/libgcomp.so
san=$out/san.o
san_gcc="gcc -std=gnu11 $SAN"

of_python="test_python_sockets test_python test_python_errors"
best=scalar
is_in avx2 "$sets" && best=avx2
is_in neon "$sets" && best=neon
every="test_digest test_kernels" # which compare the sets with each other

# ---------------- make test
python_tests() { # "names" label environment...
    have_module numpy python3-numpy || return
    made "the shared object" $shared gcc -O1 -Wall -Wextra -shared -fPIC -DGCOMP_EXPORT -DGCOMP_LAYOUTS_SHARED -DGCOMP_ADVISE_SHARED \
        -DGCOMP_SOCKETS_SHARED $inc $out/shared.c -o $shared -pthread
    names_of=$1 behind=$2
    shift 2
    for name in $names_of; do
        tap "$name$behind" $shared env GCOMP_LIBRARY=$shared "$@" $python tests/examples/$name.py
    done
}
short_run() {
    bare gcc -std=c99 -O2 # the longest first
    python_tests "$of_python" ""
    check "style" sh tests/tools/check_style.sh
    have python3 python3 && tap "the length of three ways through the header" "" $python tests/tools/ways.py
    program "test_kernels" test_kernels "" "" "gcc -std=gnu11 -O1" ""
    slow="test_digest test_sockets_door test_residuals test_halves test_random test_edges test_skipped" # first, so that none is left alone at the end
    for name in $slow $(echo "$names" | grep -vxF "$(echo $slow | tr ' ' '\n')"); do
        is_in $name "$whole" && continue
        set=$best
        is_in $name "$every" && set=$sets
        is_in $name "$once" && set=
        program "$name${set:+ on $set}" $name "$set" $plain "$plain_gcc" ""
    done
    have python3 python3 && tap "a second decoder: vectors, corpus, changed payloads" $plain sh -c "gcc -std=gnu11 -O2 $inc \
        -DGCOMP_LINKED tests/edges/vectors.c $plain -o $out/vectors -lm && python3 tests/edges/check_vectors.py $out/vectors"
    with "the header as C++, no warning; test_cxx" $plain sh -c "g++ -std=c++11 $STRICT $inc -fsyntax-only $out/one.cpp &&
        g++ -std=c++11 -O1 $STRICT $inc -DGCOMP_LINKED tests/builds/test_cxx.cpp $plain -o $out/test_cxx -lm && $out/test_cxx"
    with "fuzz: the corpus, 200000 mutated payloads" $plain sh -c "gcc -std=gnu11 -O1 -DFUZZ_MAIN -DGCOMP_LINKED $inc tests/edges/fuzz_decode.c \
        $plain -o $out/fuzz_plain -lm && $out/fuzz_plain tests/edges/corpus/* && $out/fuzz_plain --mutate 200000"
    drain
    echo "Left out: the other instruction sets, sanitizers, other compilers, levels, standards and machines, MPI, PyTorch," \
        "libFuzzer, examples, long forms of slow tests. make test-all runs these."
}

# ---------------- make test ONE=name
one_test() { # name: of a file in tests/, without what is behind the dot
    case $1 in
    test_python*) python_tests "$1" "" ;;
    test_torch)
        tap "$1" "" env GCOMP_OBJECT=build/gcomp.o GCOMP_LIBRARY=$PWD/build/libgcomp.so $python tests/examples/test_torch.py ;;
    test_transformer)
        tap "$1" "" sh -c "$plain_gcc -O1 $inc -DGCOMP_LINKED $(source_of $1) build/gcomp.o -o $out/$1 -lopenblas -lz -lm && $out/$1" ;;
    ways) tap "$1" "" $python tests/tools/ways.py ;;
    check_* | transformer | same_program) check "$1" sh tests/*/$1.sh ;;
    *)
        [ -f "$(source_of $1 2>&1)" ] || { echo "there is no test $1; there are:" $names $of_python test_torch; exit 2; }
        if is_in $1 "$whole"; then program "$1" $1 "$(sets_of $1)" "" "gcc -std=gnu11 -O1" ""; else
            ln build/gcomp.o $out/gcomp.o
            echo 0 >$out/gcomp.o.status
            program "$1$(label_of $1)" $1 "$(sets_of $1)" $out/gcomp.o "$plain_gcc" ""
        fi ;;
    esac
    drain
    [ "$failed" = 0 ] || return
    cat $jobs/*.log
}

# ---------------- make test-all
long="test_edges test_indices test_levels test_overlap test_random test_sockets_door" # which try more where TEST_LONG is set
on_arm="test_digest test_powersgd test_kernels test_rounds test_vote test_float_mode"

tools() { # what is there: compilers, emulators, MPIs
    c=gcc
    cxx=g++
    clang=
    newer=
    arm=
    mingw=
    wine=
    mpis=
    have clang clang && c="gcc clang" cxx="g++ clang++" clang=1
    have clang-19 clang-19 && newer=clang-19 # from 17 on, clang knows what -ffast-math says about bits too
    have aarch64-linux-gnu-gcc "gcc-aarch64-linux-gnu libc6-dev-arm64-cross" && have qemu-aarch64 qemu-user && arm=aarch64-linux-gnu-gcc
    have x86_64-w64-mingw32-g++ g++-mingw-w64-x86-64-posix && mingw=x86_64-w64-mingw32-gcc
    have wine "wine wine64" && wine="env WINEPREFIX=$PWD/$out/wine WINEDEBUG=-all WINEDLLOVERRIDES=mscoree,mshtml= wine"
    have mpicc.openmpi "libopenmpi-dev openmpi-bin" && mpis="openmpi" # two MPIs beside each other, as Debian installs them
    have mpicc.mpich "libmpich-dev mpich" && mpis="$mpis mpich"
    arm_o=$out/arm.o
    nccl=-Itests/tools/standin # stand-ins, but for a check with the true headers
    printf '#include <cuda_runtime.h>\n#include <nccl.h>\n' | gcc -E - >/dev/null 2>&1 && nccl=
}
on_ranks() { # MPI number program; MPICH has hung in one of 20 runs on the machine where it was tried: not for ever
    case $1 in
    openmpi) echo "timeout 120 mpirun.openmpi --allow-run-as-root --oversubscribe -n $2 $3" ;;
    mpich) echo "timeout 120 mpiexec.mpich -n $2 $3" ;;
    esac
}
# Calls a command with compiler and flags of each build whose digests must be those of the others.
digests() { # command...
    for flags in -O0 "-Ofast -march=native"; do "$@" gcc -std=gnu99 $flags -Wno-unused-function; done
    [ -n "$clang" ] && "$@" clang -std=c99 -O2
    parts_of_fast_math "$@"
}
parts_of_fast_math() { # command...: builds that digests alone are for
    parts="-std=gnu99 -DGCOMP_MAX_ISA=2 -Wno-unused-function -fno-math-errno -fno-trapping-math -fno-signed-zeros"
    [ -n "$clang" ] && "$@" clang $parts -O3 -ffast-math -fno-finite-math-only
    [ -n "$newer" ] && "$@" $newer $parts -O3 -ffast-math
}
digest() { # compiler flags...
    object=$(object_of "$@")
    only= # -O0 is slow: one set
    case " $* " in *" -O0 "*) only=GCOMP_ISA=$best ;; esac
    tap "test_digest, $*" "$object" sh -c "$* -O2 -w $inc -DGCOMP_LINKED -std=gnu11 tests/codecs/test_digest.c $object -o $object.digest -lm -pthread &&
        TEST_BRIEF=1 $only $object.digest"
    case "$*" in *fast*) ;; *) return ;; esac # for NaN only these are special; what calls the object must not have the flags
    tap "test_finite, $*" "$object" sh -c "$plain_gcc -O1 $inc -DGCOMP_LINKED tests/edges/test_finite.c $object \
        -o $object.finite -lm -pthread && $object.finite"
}

header_builds() { # the longest first
    [ -n "$clang" ] && made "libFuzzer builds" $out/fuzz clang -std=gnu11 -O1 -g1 -fsanitize=fuzzer,address -DGCOMP_MAX_ISA=1 -w $inc \
        tests/edges/fuzz_decode.c -o $out/fuzz -lm
    made "the header, sanitizers" $san $san_gcc -O2 $inc -c $out/one.c -o $san
    queue check "examples build" $out/examples $plain sh -c "cp $plain build/gcomp.o && make -s CFLAGS=-O1 examples"
    check "the bench builds" sh -c "for file in bench gemm resnet; do gcc -std=gnu11 -O0 -w $inc -fsyntax-only bench/\$file.c || exit 1; done"
    bare gcc -std=c99 -O2
    [ -n "$arm" ] && made "the header, aarch64" $arm_o $arm -std=gnu11 -O2 -w $inc -I$out/include -c $out/one.c -o $arm_o
    for compiler in $c; do
        if [ $compiler = gcc ]; then bare gcc -std=gnu99 -Ofast -march=native -Wno-unused-function; else bare $compiler -std=c99 -O2; fi
        for std in c11 c17; do check "$compiler -std=$std, no warning" $compiler -std=$std $STRICT -Wstrict-prototypes $inc -fsyntax-only $out/one.c; done
        bare $compiler -std=gnu99 -O0 -Wno-unused-function
        without=$(sed -n '/^#define GCOMP__METHODS/,/[^\\]$/p' gcomp.h | tr ')' '\n' |
            sed -n 's/.* X(\([A-Z0-9]*\), .*/-DGCOMP_WITHOUT_\1/p')
        bare $compiler -std=gnu99 -O2 -Wno-unused-function $without
    done
    for flags in "-O1 -DGCOMP_ONLY_INT" "-Os -DGCOMP_MAX_ISA=1" "-O1 -DGCOMP_NO_STDLIB" "-O2 -march=native -DGCOMP_NO_SELF"; do
        bare gcc -std=gnu99 $flags -Wno-unused-function
    done
    parts_of_fast_math bare
    for compiler in $cxx; do
        [ $compiler = g++ ] && bare g++ -std=c++17 -O1
        bare $compiler -std=c++11 -O0
    done
    check "declarations alone, twice" gcc -std=c99 $STRICT -Wstrict-prototypes $inc -c $out/twice.c -o $out/twice.o
    for language in "c -std=c11" "c++ -std=c++11"; do
        check "gcomp_nccl.h with ${nccl:+stand-ins for }CUDA's and NCCL's headers, $language" \
            gcc -x $language -O0 $STRICT $inc $nccl -fsyntax-only $out/nccl.c
    done
    check "each method left out alone" sh tests/builds/check_without.sh ${clang:+clang} # gcc where there is none: slower
    check "beside macros, stb_ds.h and warnings of a user" sh tests/builds/check_beside.sh
    [ -n "$mingw" ] && check "behind mingw's windows.h" sh tests/builds/check_beside.sh $mingw
}

special_builds() { # programs that contain the implementation
    check "first uses in threads at once, ThreadSanitizer" sh -c "gcc -std=gnu11 -O1 -g1 -fsanitize=thread -DGCOMP_MAX_ISA=1 $inc \
        tests/builds/first_use.c -o $out/first_use.tsan -pthread && $out/first_use.tsan"
    tap "test_float_mode, as where the mode cannot be set" "" sh -c "gcc -std=gnu11 -O1 -w -DGCOMP__KEEP_MODE -DGCOMP_MAX_ISA=1 $inc \
        tests/edges/test_float_mode.c -o $out/test_float_mode.kept -lm && $out/test_float_mode.kept"
    tap "test_digest, as where the compiler has no vectors" "" sh -c "gcc -std=gnu11 -O1 -w -DGCOMP__NO_FOUR -DGCOMP_MAX_ISA=1 $inc \
        tests/codecs/test_digest.c -o $out/test_digest.alone -lm -pthread &&
        TEST_BRIEF=1 $out/test_digest.alone"
    [ -n "$clang" ] && check "all bytes that are read were written, MemorySanitizer" sh -c "clang -std=gnu11 -O1 -g1 \
        -fsanitize=memory -w -DGCOMP_MAX_ISA=1 $inc tests/edges/all_written.c -o $out/all_written -lm && $out/all_written"
    check "two files, one implementation" sh -c "gcc -O1 -DGCOMP_MAX_ISA=1 $inc tests/builds/multi_a.c tests/builds/multi_b.c -o $out/multi -lm && $out/multi"
    library="mem(cmp|cpy|move|set)|str(cmp|chr|len)|__popcountdi2|_GLOBAL_OFFSET_TABLE_"
    free=$(object_of gcc -std=gnu99 -O1 -DGCOMP_NO_STDLIB -Wno-unused-function)
    with "freestanding: the header needs what >>config says" $free sh -c "nm -u $free | grep -q strcmp &&
        ! nm -u $free | awk '{print \$2}' | grep -vE '^($library)\$'"
    with "freestanding: the example too" $out/examples sh -c "nm -u build/embedded_gcomp.o | grep -q memcmp &&
        ! nm -u build/embedded_gcomp.o | awk '{print \$2}' | grep -vE '^($library)\$'"
}

# On another machine: the payloads that are in tests/edges/vectors, byte for byte, and tests.
elsewhere() { # machine compiler packages emulator tests flags...
    have ${2%% *} "$3" && have ${4%% *} "$3" || return 0
    machine=$1 tool=$2 emulator=$4 runs=$5
    shift 5
    there=$out/$machine
    made "the header, $machine" $there.o $tool -std=gnu11 -O1 -w "$@" $inc -I$out/include -c $out/one.c -o $there.o
    builds="$tool -std=gnu11 -O1 -static -w $* $inc -I$out/include -DGCOMP_LINKED"
    with "the vectors, $machine" $there.o sh -c "$builds tests/edges/vectors.c $there.o -o $there.vectors -lm && mkdir $there.written &&
        $emulator $there.vectors --write $there.written && diff -r -x README.md $there.written tests/edges/vectors"
    for name in $runs; do
        tap "$name, $machine" $there.o sh -c "$builds $(source_of $name) $there.o -o $there.$name -lm &&
            TEST_BRIEF=1 $emulator $there.$name"
    done
}

emulated() {
    for name in ${arm:+$on_arm}; do
        implementation="-DGCOMP_LINKED $arm_o" needs=$arm_o
        is_in $name "$whole" && implementation=-march=armv8-a+crc needs=
        tap "$name, aarch64" "$needs" sh -c "$arm -std=gnu11 -O2 -static -w $inc -I$out/include $(source_of $name) $implementation \
            -o $out/$name.arm -lm -pthread && TEST_BRIEF=1 qemu-aarch64 $out/$name.arm"
    done
    elsewhere arm32 arm-linux-gnueabihf-gcc "gcc-arm-linux-gnueabihf libc6-dev-armhf-cross qemu-user" qemu-arm test_wire
    elsewhere s390x s390x-linux-gnu-gcc "gcc-s390x-linux-gnu libc6-dev-s390x-cross qemu-user" qemu-s390x test_wire # big endian
    elsewhere riscv64 riscv64-linux-gnu-gcc "gcc-riscv64-linux-gnu libc6-dev-riscv64-cross qemu-user" qemu-riscv64 test_wire
    elsewhere i686 i686-linux-gnu-gcc "gcc-i686-linux-gnu libc6-dev-i386-cross qemu-user" qemu-i386 test_wire -msse2 -mfpmath=sse
    elsewhere musl musl-gcc musl-tools env "test_wire test_digest"
    have wasm-ld "lld wasi-libc libclang-rt-14-dev-wasm32" && elsewhere wasm32 "clang --target=wasm32-wasi" "clang nodejs" \
        "node --no-warnings tests/tools/wasi.mjs" test_wire -msimd128
    [ "$(uname -m)" = x86_64 ] && have qemu-x86_64 qemu-user || return
    made "a program for processors without AVX2 builds" $out/first_use sh -c "until [ -e $plain.status ]; do sleep 0.1; done
        gcc -static $inc -DGCOMP_LINKED tests/builds/first_use.c $plain -o $out/first_use -pthread"
    with "AVX2 under qemu" $out/first_use qemu-x86_64 -cpu max $out/first_use avx2
    for lacks in f16c xsave avx2; do
        with "no AVX2 without $lacks" $out/first_use sh -c "qemu-x86_64 -cpu max,-$lacks $out/first_use scalar && \
            ! qemu-x86_64 -cpu max,-$lacks $out/first_use avx2"
    done
}

# The same bits on Windows, and workers over Winsock. wine's directory is large, and takes a while to make.
on_windows() {
    [ -n "$mingw" ] && [ -n "$wine" ] || return
    mingw_o=$out/mingw.o
    made "wine starts" $out/wine $wine wineboot --init
    made "the header, mingw" $mingw_o $mingw -std=gnu99 -O2 -w $inc -I$out/include -c $out/one.c -o $mingw_o
    for name in test_digest test_step test_methods test_float_mode winsock; do
        tap "$name, wine" "$mingw_o $out/wine" sh -c "$mingw -std=gnu11 -O2 -static -w $inc -I$out/include -DGCOMP_LINKED $(source_of $name) \
            $mingw_o -o $out/$name.exe -lm -pthread -lws2_32 -lbcrypt && TEST_BRIEF=1 timeout 300 $wine $out/$name.exe"
    done
}

long_tests() {
    [ -n "$clang" ] && with "libFuzzer, bounded" $out/fuzz $out/fuzz -runs=200000 -max_total_time=60 -max_len=4096 $out/corpus tests/edges/corpus
    for name in $long; do
        set=
        behind=
        [ "$(sets_of $name)" ] && set=$best # the other sets are below
        [ $name = test_sockets_door ] && behind="nice " # its 256 processes, after what runs beside them
        program "$name, long${set:+ on $set}" $name "$set" $plain "$plain_gcc" .long "${behind}env TEST_LONG=1 "
    done
    others=$(echo $sets | tr ' ' '\n' | grep -vxF $best | tr '\n' ' ')
    for name in $names; do # what methods compute, on the other sets; all below, on the set that the library chooses, under sanitizers
        is_in $name "$whole $once $every test_halves" || [ "$best" = "$sets" ] && continue # test_halves: two sets suffice
        ! computes $name || program "$name on $others" $name "$others" $plain "$plain_gcc" .sets
    done
    program "test_static$(label_of test_static)" test_static "$(sets_of test_static)" "" "$plain_gcc -O0" ""
    program "test_kernels, sanitizers" test_kernels "" "" "$san_gcc -O1" .san
    for name in $names; do
        is_in $name "$whole" || program "$name, sanitizers" $name "" $san "$san_gcc" .san "env TEST_BRIEF=1 "
    done
    for real in float double; do
        macro=
        [ $real = double ] && macro=-DTRANSFORMER_DOUBLE
        tap "test_transformer, $real" $san sh -c "$san_gcc -O1 $macro -Wall -Wextra $inc -DGCOMP_LINKED tests/examples/test_transformer.c $san \
            -o $out/test_transformer.$real -lopenblas -lz -lm && OPENBLAS_NUM_THREADS=1 $out/test_transformer.$real"
    done
    digests digest
    if [ -n "$clang" ]; then # it stops at what gcc's sanitizer passes over, NULL + 0 above all
        ubsan_clang="clang -std=gnu11 -O1 -g1 -fsanitize=undefined -fno-sanitize-recover=all -w"
        made "the header, clang's UBSan" $out/ubsan.o $ubsan_clang -DGCOMP_MAX_ISA=1 $inc -c $out/one.c -o $out/ubsan.o
        for name in test_step test_step_calls test_methods test_random; do
            program "$name, clang's UBSan" $name "" $out/ubsan.o "$ubsan_clang" .ubsan
        done
    fi
    for compiler in $cxx; do
        for flags in "-std=c++11 -O0" "-std=c++17 -O1"; do
            [ "$compiler $flags" = "clang++ -std=c++17 -O1" ] && continue
            object=$(object_of $compiler $flags)
            tap "test_cxx, $compiler $flags, on $sets" "$object" sh -c "$compiler $flags $STRICT $inc -DGCOMP_LINKED \
                tests/builds/test_cxx.cpp $object -o $object.test -lm || exit; $(on_sets $object.test "$sets")"
        done
    done
    with "fuzz: a million mutated payloads" $san sh -c "gcc -std=gnu11 -O1 $SAN -DFUZZ_MAIN -DGCOMP_LINKED $inc tests/edges/fuzz_decode.c \
        $san -o $out/fuzz_replay -lm && $out/fuzz_replay --mutate 1000000"
}

under_python() {
    python_tests test_python_errors ", long" TEST_LONG=1
    have_module torch python3-torch || return
    tap "test_torch" "$shared $plain" env GCOMP_OBJECT=$plain GCOMP_LIBRARY=$shared $python tests/examples/test_torch.py
}

examples() {
    for name in first elastic engine embedded own_loop; do with "example $name" $out/examples build/$name; done
    for name in outer delayed gossip leader; do
        with "example $name" $out/examples build/$name --text gcomp.h --steps 40 --hidden 24,16 --transport sockets --out $out
    done
    for transport in sockets threads; do
        with "example overlap, $transport" $out/examples env OPENBLAS_NUM_THREADS=1 build/overlap --transport $transport \
            int:bits=4 3 64 8 1 3
    done
    with "example overlap says what it takes" $out/examples sh -c "build/overlap --help | grep -q CODEC && \
        ! build/overlap int:bits=4 0 2>$out/overlap.wrong && grep -q \"'LAYERS' cannot be '0'\" $out/overlap.wrong"
    for way in "fp32 int:bits=4" "bf16 sign" "bf16 none"; do with "example sharded, $way" $out/examples build/sharded $way; done
    with "example lgc" $out/examples build/lgc 5 10 10
    with "example advise" $out/examples build/advise sign
    with "example advise, over TCP" $out/examples sh -c "build/advise --rank 1 --root 127.0.0.1:7391 sign &
        build/advise --rank 0 --root 127.0.0.1:7391 sign && wait \$!"
    with "bench/scale: up to 64 workers in one process have the same means" $plain sh -c "gcc -std=gnu11 -O0 $inc bench/scale.c $plain -o $out/scale -lm &&
        $out/scale --workers 64 --steps 1 --csv $out/scale.csv"
    tap "every program says its usage" $out/examples sh tests/examples/speaks.sh
    with "training as advised" $out/examples build/train --text gcomp.h --hidden 40,40 --steps 3 --method advise --no-pictures --out $out/advised
}

packages() {
    found=
    have pkg-config pkg-config && found="$found pkg-config"
    have cmake cmake && found="$found cmake"
    have_module pip python3-pip && have_module setuptools python3-setuptools && have_module wheel python3-wheel &&
        have_module ensurepip python3-venv && found="$found pip"
    tap "packages:$found" "" env CC=${clang:+clang} sh tests/examples/packages.sh $python "$found" # gcc is slower at it
    have rustc rustc || return
    made "the header with its layouts" $out/layouts.o gcc -O1 -w -DGCOMP_LAYOUTS_SHARED -DGCOMP_MAX_ISA=2 $inc -c $out/layouts.c -o $out/layouts.o
    with "example client, Rust" $out/layouts.o sh -c "rustc -O -C link-arg=$out/layouts.o examples/rust/client.rs -o $out/client && $out/client"
}

over_mpi() {
    trains=
    transformers=
    for mpi in $mpis; do
        for job in "2 mpi_two" "4 mpi_ranks" "4 mpi_faults"; do
            ranked=$out/${job#* }.$mpi
            tap "${job#* } of ${job% *} ranks, $mpi" $plain sh -c "mpicc.$mpi -std=gnu11 -O1 $inc -DGCOMP_LINKED $(source_of ${job#* }) \
                $plain -o $ranked -lm -pthread && $(on_ranks $mpi ${job% *} $ranked)"
        done
        with "example overlap, $mpi" $plain sh -c "mpicc.$mpi -std=gnu11 -O1 $inc -DUSE_MPI examples/overlap.c $plain -o $out/overlap.$mpi \
            -lopenblas -lm -pthread && $(on_ranks $mpi 2 "$out/overlap.$mpi int:bits=4 3 64 8 1 3")"
        made "train builds, $mpi" $out/train.$mpi sh -c "until [ -e $plain.status ]; do sleep 0.1; done
            mpicc.$mpi -std=gnu11 -O1 $inc -DUSE_MPI examples/train/train.c $plain -o $out/train.$mpi -lopenblas -lz -lm -pthread"
        made "transformer builds, $mpi" $out/transformer.$mpi sh -c "until [ -e $plain.status ]; do sleep 0.1; done
            mpicc.$mpi -std=gnu11 -O1 $inc -DUSE_MPI examples/transformer/transformer.c $plain -o $out/transformer.$mpi -lopenblas -lz -lm -pthread"
        trains="$trains $out/train.$mpi"
        transformers="$transformers $out/transformer.$mpi"
    done
    with "transformer: checkpoints, NaN, 1 to 5 workers, every transport" "$out/examples $transformers" \
        sh tests/examples/transformer.sh build/transformer $out/transformer $mpis
    with "one program over every transport, the same parameters" "$out/examples $trains" sh tests/examples/same_program.sh build/train $out/train $mpis
}

long_run() {
    tools
    header_builds
    under_python
    special_builds
    emulated
    on_windows
    packages
    over_mpi
    examples
    long_tests
    drain 2 # some wait for each other's messages more than they compute
    rm -rf $out/wine # 700 MB
    [ "$failed" = 0 ] && find $out -type f -size +1M -delete # programs, 500 MB
    return 0
}

# ----------------
rm -rf $out
mkdir -p $jobs $out/corpus $out/include
printf '#define GCOMP_IMPLEMENTATION\n#include "gcomp.h"\n' >$out/one.c
printf '#define GCOMP_IMPLEMENTATION\n#include "examples/adapters/gcomp_advise.h"\n#include "examples/adapters/gcomp_sockets.h"\n#include "examples/adapters/gcomp_layouts.h"\n' >$out/shared.c
printf '#define GCOMP_IMPLEMENTATION\n#include "examples/adapters/gcomp_layouts.h"\n' >$out/layouts.c
cp $out/one.c $out/one.cpp
printf '#include "gcomp.h"\n#include "gcomp.h"\n' >$out/twice.c
printf '#define _POSIX_C_SOURCE 200809L\n#include "examples/adapters/gcomp_nccl.h"\n' >$out/nccl.c
cp /usr/include/stb/stb_ds.h $out/include/ 2>/dev/null
exec 3>&2 2>$out/complaints # of this script: what checks say is in their logs. There must be none
case ${1:-short} in
short) short_run ;;
one) one_test "${2:-}" ;;
all) long_run ;;
*) echo "usage: sh tests/run.sh [all | one NAME]" ;;
esac
exec 2>&3
# the second line of each: what the job took of the processors, its own time and the system's, as 1m2.3s 0m0.1s
processor=$(awk 'FNR == 2 { gsub(/[ms]/, " "); sum += 60 * ($1 + $3) + $2 + $4 } END { printf "%d", sum }' $jobs/*.times)
echo "$(($(date +%s) - began)) s, $processor s of processors"
if [ -s $out/complaints ]; then
    failed=$((failed + 1))
    echo "FAILED  the script itself says:"
    cat $out/complaints
fi
echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
