#!/bin/sh
# The header behind macros of others: names that windows.h and old compilers define, and a function-like macro for each name
# through which the header calls. Declarations and implementation compile, in C and C++. $1: mingw's gcc, whose windows.h the
# header then stands behind.
set -u
cd "$(dirname "$0")/.." || exit 1
out=build/macros
mkdir -p $out
{
    # What the header includes itself stands before the macros: they are not for the headers of the system.
    printf '#include <%s>\n' float.h limits.h stddef.h stdint.h stdlib.h string.h assert.h
    printf '#if defined(__SSE2__)\n#include <immintrin.h>\n#endif\n'
    for name in near far small huge hyper pascal cdecl interface IN OUT OPTIONAL ERROR STRICT I unix linux unused noinline cold; do
        printf '#undef %s\n#define %s ? a macro of the user ?\n' $name $name
    done
    { # the pointers that the header declares, and more
        sed -n 's/.*(\*\(const \)\{0,1\}\([a-z_0-9]*\)\(\[[^]]*\]\)*)(.*/\2/p' gcomp.h
        echo min max abs check malloc calloc realloc free getenv quant quants deq
    } | tr ' ' '\n' | sort -u | sed '/^$/d;s/.*/#undef &\n#define &(...) ? a macro of the user ?/'
} >$out/hostile.h
[ "$(grep -c '(\.\.\.)' $out/hostile.h)" -gt 60 ] || { echo "the pointers of the header were not found"; exit 1; }
printf '#include "hostile.h"\n#include "gcomp.h"\n#define GCOMP_IMPLEMENTATION\n#include "gcomp.h"\n' >$out/one.c
printf '#include <windows.h>\n#include "gcomp.h"\n#define GCOMP_IMPLEMENTATION\n#include "gcomp.h"\n' >$out/windows.c
status=0
try() { # command...
    "$@" || { echo "fails: $*"; status=1; }
}
if [ $# = 0 ]; then
    try ${CC:-gcc} -std=gnu99 -fsyntax-only -DGCOMP_STB_DS_IMPLEMENTED -I. $out/one.c
    try ${CXX:-g++} -x c++ -std=c++11 -fsyntax-only -DGCOMP_STB_DS_IMPLEMENTED -I. $out/one.c
else
    for language in "c -std=gnu99" "c++ -std=gnu++11"; do
        try "$1" -x $language -fsyntax-only -I. -Ibuild/test/include $out/windows.c
    done
fi
exit $status
