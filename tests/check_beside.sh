#!/bin/sh
# Proves that the header compiles beside what a user's file may hold: macros of others, stb_ds.h, and
# warnings that not everyone asks for. $1: mingw's gcc: then only the header behind windows.h is
# checked. Without $1 all the rest is checked.
set -u
cd "$(dirname "$0")/.." || exit 1
out=build/beside
mkdir -p $out
CC=${CC:-gcc}
CXX=${CXX:-g++}
status=0
try() { # command...
    "$@" || { echo "fails: $*"; status=1; }
}
refused() { # command...: it must fail
    ! "$@" 2>/dev/null || { echo "should fail: $*"; status=1; }
}
if [ $# != 0 ]; then
    printf '#include <windows.h>\n#include "gcomp.h"\n#define GCOMP_IMPLEMENTATION\n#include "gcomp.h"\n' >$out/windows.c
    for language in "c -std=gnu99" "c++ -std=gnu++11"; do
        try "$1" -x $language -fsyntax-only -I. -Ibuild/test/include $out/windows.c
    done
    exit $status
fi

# Macros: names that windows.h and old compilers define, and a function-like one for each pointer that the header calls.
{
    # What the header includes itself stands before the macros: they are not for the headers of the system.
    printf '#include <%s>\n' float.h limits.h stddef.h stdint.h stdlib.h string.h
    printf '#if defined(__SSE2__)\n#include <immintrin.h>\n#endif\n'
    for name in near far small huge hyper pascal cdecl interface IN OUT OPTIONAL ERROR STRICT I unix linux unused noinline cold; do
        printf '#undef %s\n#define %s ? a macro of the user ?\n' $name $name
    done
    {
        sed -n 's/.*(\*\(const \)\{0,1\}\([a-z_0-9]*\)\(\[[^]]*\]\)*)(.*/\2/p' gcomp.h
        echo min max abs check malloc calloc realloc free getenv assert quant quants deq
    } | tr ' ' '\n' | sort -u | sed '/^$/d;/^gcomp__/d;s/.*/#undef &\n#define &(...) ? a macro of the user ?/'
} >$out/hostile.h
[ "$(grep -c '(\.\.\.)' $out/hostile.h)" -gt 60 ] || { echo "the pointers of the header were not found"; exit 1; }
printf '#include "hostile.h"\n#include "gcomp.h"\n#define GCOMP_IMPLEMENTATION\n#include "gcomp.h"\n' >$out/macros.c
try $CC -std=gnu99 -fsyntax-only -I. $out/macros.c
try $CXX -x c++ -std=c++11 -fsyntax-only -I. $out/macros.c

# stb_ds.h stands before or behind the header, with its implementation or without. Its short names are
# there only if the user includes it.
small="-O0 -DGCOMP_MAX_ISA=1 -DGCOMP_ONLY_FP16"
for order in 0 1 2 3 4; do
    try $CC -std=gnu99 -w $small -DORDER=$order -I. tests/stb_ds.c -o $out/stb_ds && try $out/stb_ds
    try $CXX -x c++ -std=c++11 -w $small -DORDER=$order -I. tests/stb_ds.c -o $out/stb_ds && try $out/stb_ds
done

# Without a C library: a file that asks for more than >>config says does not compile here.
mkdir -p $out/none
for name in assert stdio math errno time; do echo '#error "not without a C library"' >$out/none/$name.h; done
try $CC -std=c99 -fsyntax-only -DGCOMP_NO_STDLIB -DGCOMP_IMPLEMENTATION -I$out/none -I. -x c gcomp.h

# Warnings: neither the header nor its macros in the user's code give one, and the user's own code gives
# the warnings that it gives without the header.
warnings="-Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wsign-conversion -Wundef -Wdouble-promotion -Wfloat-equal -Wcast-qual"
cxx_warnings="$warnings -Wold-style-cast -Wzero-as-null-pointer-constant"
gcc_warnings="-Wduplicated-cond -Wduplicated-branches -Wlogical-op"
printf '#include "gcomp.h"\n#define GCOMP_IMPLEMENTATION\n#include "gcomp.h"\n%s\n' \
    'extern unsigned char room[GCOMP_BOUND(1000) + GCOMP_SCRATCH(sizeof(int))]; size_t size_of(size_t n);' \
    'size_t size_of(size_t n) { return GCOMP_BOUND(n) + GCOMP_SCRATCH(n); }' >$out/warnings.c
{
    cat $out/warnings.c
    echo 'int own(int *p); int own(int *p) { return p == 0 ? 0 : (int)*p; }'
} >$out/own.c
for tool in $CC clang; do
    command -v $tool >/dev/null || continue
    case $tool in *clang) more= ;; *) more=$gcc_warnings ;; esac
    try $tool -std=c99 -fsyntax-only $warnings -Wstrict-prototypes $more -Werror -I. $out/warnings.c
done
for tool in $CXX clang++; do
    command -v $tool >/dev/null || continue
    case $tool in *clang++) more= ;; *) more="$gcc_warnings -Wuseless-cast" ;; esac
    try $tool -x c++ -std=c++11 -fsyntax-only $cxx_warnings $more -Werror -I. $out/warnings.c
    for one in -Wold-style-cast -Wzero-as-null-pointer-constant; do
        refused $tool -x c++ -std=c++11 -fsyntax-only $small $one -Werror -I. $out/own.c
    done
done

# The adapters alone, and the first two blocks of the README. MPI, CUDA and NCCL are not there, or stand-ins.
strict="-Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wundef -Werror -isystem tests/standin"
for name in threads sockets advise recover try nccl; do
    printf '#include "examples/gcomp_%s.h"\nint main(void) { return 0; }\n' $name >$out/adapter.c
    std=c99
    [ $name = nccl ] && std=c11 # the stand-ins have variables of a thread
    for tool in $CC clang clang-19; do
        command -v $tool >/dev/null && try $tool -std=$std -fsyntax-only $strict -Wstrict-prototypes -I. $out/adapter.c
    done
    for tool in $CXX clang++ clang++-19; do
        for std in c++11 c++20; do
            command -v $tool >/dev/null && try $tool -x c++ -std=$std -fsyntax-only $strict -Wold-style-cast -I. $out/adapter.c
        done
    done
done
awk '/^```c$/ { n++; on = 1; next } /^```$/ { on = 0 } on && n == 1' README.md | sed '/GCOMP_IMPLEMENTATION/d' >$out/readme.c
{
    printf '#include "gcomp.h"\n#include <stdio.h>\nint backward(float **g); void optimizer_step(float **g);\n'
    printf 'int train(gcomp_comm comm, float **grads); int train(gcomp_comm comm, float **grads) {\n'
    awk '/^```c$/ { n++; on = 1; next } /^```$/ { on = 0 } on && n == 2' README.md
    printf '    gcomp_close(gc); return failures; }\n'
} >$out/readme2.c
sed 's/= {0}/= {}/g' $out/readme2.c >$out/readme2.cpp # as its comment says
for block in "$CC -std=c99 $out/readme.c" "$CXX -x c++ -std=c++11 $out/readme.c" "$CC -std=c99 $out/readme2.c" "$CXX -x c++ -std=c++11 $out/readme2.cpp"; do
    try $block -fsyntax-only -Wall -Wextra -Werror -I.
done
exit $status
