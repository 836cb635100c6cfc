#!/bin/sh
# Proves that the header compiles beside what a user's file may hold: macros of others, stb_ds.h, and
# warnings that not everyone asks for; that it leaves nothing behind; that it can be included in many
# ways, and says in one sentence where it cannot; which symbols it has. $1: mingw's gcc: then only the
# header and gcomp_sockets.h behind windows.h are checked. Without $1 all the rest is checked.
set -u
cd "$(dirname "$0")/../.." || exit 1
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
one_error() { # words command...: it must fail with a single error, which has the words
    words=$1
    shift
    "$@" >$out/said 2>&1
    [ "$(grep -c ' error: ' $out/said)" = 1 ] && grep -q "error.*$words" $out/said ||
        { echo "should say '$words' and nothing else: $*"; head -3 $out/said; status=1; }
}
# of adapters and of those who use them
strict="-Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wundef -Werror -isystem tests/tools/standin -Iexamples/adapters"
if [ $# != 0 ]; then
    printf '#include <windows.h>\n#include "gcomp.h"\n#define GCOMP_IMPLEMENTATION\n#include "gcomp.h"\n' >$out/windows.c
    for language in "c -std=gnu99" "c++ -std=gnu++11"; do
        try "$1" -x $language -fsyntax-only -I. -Ibuild/test/include $out/windows.c
    done
    printf '#include "gcomp_sockets.h"\nint main(void) { return 0; }\n' >$out/sockets.c
    sed '1i #include <windows.h>' $out/sockets.c >$out/sockets_behind.c
    for file in $out/sockets.c $out/sockets_behind.c; do
        for language in "c -std=c99 -Wstrict-prototypes" "c++ -std=c++11 -Wold-style-cast"; do
            try "$1" -x $language -fsyntax-only $strict -DGCOMP_SOCKETS_SHARED -I. $file
        done
    done
    "$1" -std=c99 -D_WIN32_WINNT=0x0501 -fsyntax-only -I. -Iexamples/adapters $out/sockets.c 2>&1 | grep -q "needs Windows Vista or later" ||
        { echo "gcomp_sockets.h does not say which Windows it needs"; status=1; }
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
quick=$(command -v clang || echo $CC)
quick_cxx=$(command -v clang++ || echo $CXX)
for order in 0 1 2 3 4; do
    try $quick -std=gnu99 -w $small -DORDER=$order -I. tests/builds/stb_ds.c -o $out/stb_ds && try $out/stb_ds
    try $quick_cxx -x c++ -std=c++11 -w $small -DORDER=$order -I. tests/builds/stb_ds.c -o $out/stb_ds && try $out/stb_ds
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

# The adapters alone, and the blocks of the README. MPI, CUDA and NCCL are not there, or stand-ins.
for name in threads sockets advise recover try nccl; do
    printf '#include "gcomp_%s.h"\nint main(void) { return 0; }\n' $name >$out/adapter.c
    std=c99
    [ $name = nccl ] && std=c11 # the stand-ins have variables of a thread
    for tool in $CC clang clang-19; do
        command -v $tool >/dev/null && try $tool -std=$std -fsyntax-only $strict -Wstrict-prototypes -I. $out/adapter.c
    done
    for with in "$CXX c++11" "$CXX c++20" "clang++ c++11" "clang++-19 c++20"; do
        tool=${with% *}
        command -v $tool >/dev/null && try $tool -x c++ -std=${with#* } -fsyntax-only $strict -Wold-style-cast -I. $out/adapter.c
    done
done
block() { # number: of the README's C blocks
    awk -v number=$1 '/^```c$/ { n++; on = 1; next } /^```$/ { on = 0 } on && n == number' README.md
}
{
    printf '#include "gcomp.h"\n#include <stdio.h>\nint backward(void *const *g); void optimizer_step(void *const *g);\n'
    printf 'int train(gcomp_comm comm, float *fc1_gradient); int train(gcomp_comm comm, float *fc1_gradient) {\n'
    block 1
    printf '    gcomp_close(gc); return failures; }\n'
} >$out/readme1.c
for number in 2 3; do { echo '#include "gcomp.h"'; block $number; } >$out/readme$number.c; done
for number in 1 2 3; do
    sed 's/= {0}/= {}/g' $out/readme$number.c >$out/readme$number.cpp # as its comment says
    try $CC -std=c99 $out/readme$number.c -fsyntax-only -Wall -Wextra -Wno-missing-field-initializers -Werror -I.
    try $CXX -x c++ -std=c++11 $out/readme$number.cpp -fsyntax-only -Wall -Wextra -Werror -I.
done
# Ways to include: under another name, inside extern "C", inside a namespace behind the C library.
cut="-DGCOMP_MAX_ISA=1 -DGCOMP_ONLY_SIGN -Wall -Wextra -Werror"
implementation='#define GCOMP_IMPLEMENTATION
#include "gcomp.h"'
printf '%s\n' "$implementation" >$out/one.c
mkdir -p $out/renamed
cp gcomp.h $out/renamed/gradients.h
printf '#define GCOMP_IMPLEMENTATION\n#include "renamed/gradients.h"\n' >$out/renamed.c
printf 'extern "C" {\n%s\n}\n' "$implementation" >$out/extern.cpp
printf '#include <stdlib.h>\n#include <string.h>\nnamespace engine {\n%s\n}\n' "$implementation" >$out/namespace.cpp
printf 'namespace engine {\n%s\n}\n' "$implementation" >$out/too_early.cpp
printf '#define GCOMP_STATIC\n%s\nint own(void);\nint own(void) { return gcomp_version(); }\n' "$implementation" >$out/static.c
for tool in $CC clang; do
    command -v $tool >/dev/null || continue
    try $tool -std=c99 $cut -fsyntax-only -I$out $out/renamed.c
    try $tool -std=c99 $cut -fsyntax-only -I. $out/static.c
    try $tool -x c++ -std=c++11 $cut -fsyntax-only -I. $out/static.c
    try $tool -std=c++11 $cut -fsyntax-only -I. $out/extern.cpp
    try $tool -std=c++11 $cut -fsyntax-only -I. $out/namespace.cpp
    $tool -std=c++11 $cut -fsyntax-only -I. $out/too_early.cpp 2>&1 | grep error: | head -1 | grep -q include_stdlib_h_and_string_h_before ||
        { echo "$tool: does not say what a namespace needs"; status=1; }
done

try $CXX -std=c++11 -DGCOMP_ONLY_SIGN -fsyntax-only -I. $out/extern.cpp # with the headers of instruction sets

# What the header cannot do without: one sentence, and not a line that follows from it.
one_error "gcomp.h needs C99" $CC -std=c89 -fsyntax-only -I. $out/one.c
one_error "gcomp.h needs C99" $CC -std=gnu89 -fsyntax-only -I. $out/one.c
one_error "gcomp.h needs C++11" $CXX -x c++ -std=c++98 -fsyntax-only -I. $out/one.c
one_error "/Zc:preprocessor" $CC -std=c99 -D_MSVC_TRADITIONAL=1 -fsyntax-only -I. $out/one.c
one_error GCOMP_SELF $CC -std=c99 '-DGCOMP_SELF="nothing.h"' -fsyntax-only -I. $out/one.c
# gcc alone has only the headers of a compiler without a C library: no stb_ds.h among them
alone="$CC -std=c99 -ffreestanding -nostdinc -isystem $(gcc -print-file-name=include) -fsyntax-only -I."
one_error "libstb-dev.*GCOMP_STB_DS_H" $alone $out/one.c
try $alone -x c gcomp.h # what does not need stb_ds.h does not ask for it

# Behind the header the user's own products and sums may be joined again.
if command -v clang >/dev/null && [ "$(uname -m)" = x86_64 ]; then
    { cat $out/one.c; printf 'float own(float a, float b, float c);\nfloat own(float a, float b, float c) { return a * b + c; }\n'; } >$out/contract.c
    for tool in clang clang-19; do
        command -v $tool >/dev/null || continue
        $tool -O3 -march=x86-64-v3 -DGCOMP_MAX_ISA=1 -DGCOMP_ONLY_SIGN -DGCOMP_NO_OBJECT -w -I. -S -o - $out/contract.c |
            sed -n '/^own:/,/size/p' | grep -q vfmadd || { echo "$tool: no fma behind the header"; status=1; }
    done
    for flags in "-x c -std=c99" "-x c++ -std=c++11"; do # names that belong to the compiler
        try clang $flags $cut -Wreserved-identifier -Wreserved-macro-identifier -fsyntax-only -I. $out/warnings.c
    done
fi

# Symbols: hidden, or exported where that is asked for, and another name for each where a prefix is given.
if [ "$(uname -s)" = Linux ]; then
    public=$(grep '^GCOMP_API' gcomp.h | grep -o 'gcomp_[a-z_]*(' | sort -u | wc -l)
    for flags in "" -DGCOMP_EXPORT; do
        try $CC -std=c99 $small -shared -fPIC $flags -I. $out/one.c -o $out/shared.so
        exported=$(nm -D --defined-only $out/shared.so | grep -c ' gcomp_')
        [ "$exported" = "$public" ] && echo exported || { [ "$exported" = 0 ] && echo hidden || echo "some exported"; }
    done | tr '\n' ' ' >$out/symbols
    [ "$(cat $out/symbols)" = "hidden exported " ] || { echo "symbols of a shared object: $(cat $out/symbols)"; status=1; }
fi
# two versions of the header in one program: of other methods
for version in one_ two_; do
    [ $version = one_ ] && methods=-DGCOMP_ONLY_FP16 || methods=-DGCOMP_ONLY_SIGN
    {
        printf '#define GCOMP_PREFIX %s\n%s\n' $version "$implementation"
        echo "int ${version}knows(const char *codec);"
        echo "int ${version}knows(const char *codec) { gcomp_codec made; return gcomp_codec_parse(&made, codec, NULL, 0) == GCOMP_OK; }"
    } >$out/$version.c
    try $CC -std=c99 -O0 -DGCOMP_MAX_ISA=1 $methods -I. -c $out/$version.c -o $out/$version.o
    nm -g --defined-only $out/$version.o | awk -v prefix=$version '$3 && index($3, prefix) != 1 { print "no prefix: " $3; bad = 1 } END { exit bad }' || status=1
done
cat >$out/both.c <<'END'
int one_knows(const char *codec);
int two_knows(const char *codec);
int main(void) { return !(one_knows("fp16") && !one_knows("sign") && two_knows("sign") && !two_knows("fp16")); }
END
try $CC $out/both.c $out/one_.o $out/two_.o -o $out/both && try $out/both
exit $status
