#!/bin/sh
# Leaves out each method alone, and all but it, of some also objects: the header compiles, no function stays behind that nothing calls, and each method
# alone gives its golden bits. Then a program has the two methods that are left and no other. At last the sizes of small builds,
# which the README states: gcc on x86-64 only, since other compilers have other sizes. $1: compiler.
cd "$(dirname "$0")/../.." || exit 1
mkdir -p build/without
cc=${1:-gcc}
case ${1:-gcc} in
*clang*) tool="$1 -fsyntax-only" ;;
*) tool="${1:-gcc} -S -o /dev/null" ;; # its warnings come after the syntax
esac
methods=$(sed -n '/^#define GCOMP__METHODS/,/[^\\]$/p' gcomp.h | tr ')' '\n' | sed -n 's/.* X(\([A-Z0-9]*\), .*/\1/p' | sort -u)
[ -n "$methods" ] || { echo "the list of methods is not found"; exit 1; }
only() { # methods...: flags that leave out all but them
    for method in "$@"; do echo "-DGCOMP_ONLY_$method"; done
}
clean() { # flags...
    $tool -std=gnu99 -O0 -Wall -Wextra -Wunused-function -Werror -DGCOMP_MAX_ISA=1 "$@" -I. build/without/one.c
}
golden() { # name, flags...: builds test_digest with the header so, and runs it
    name=$1
    shift
    ${cc} -std=gnu99 -Wall -Wextra -Wunused-function -Werror "$@" -I. -c build/without/one.c -o build/without/one.o ||
        { echo "$name alone"; exit 1; }
    ${cc} build/without/digest.o build/without/one.o -o build/without/digest -lm -pthread &&
        TEST_BRIEF=1 build/without/digest >build/without/digest.log || { echo "$name alone, other bits: build/without/digest.log"; exit 1; }
}
printf '#define GCOMP_IMPLEMENTATION\n#include "gcomp.h"\n' >build/without/one.c
${cc} -std=gnu99 -O1 -w -DGCOMP_LINKED -DTEST_SOME_METHODS -I. -Iexamples/adapters -Itests/tools -c tests/codecs/test_digest.c -o build/without/digest.o || exit 1
for each in $methods; do
    clean "-DGCOMP_WITHOUT_$each" || { echo "without $each"; exit 1; }
    golden "$each" -O0 -DGCOMP_MAX_ISA=1 $(only "$each") || exit 1
done
clean -DGCOMP_WITHOUT_ROWS || { echo "without rows"; exit 1; }
golden "sign and onebit without rows" -O0 -DGCOMP_MAX_ISA=1 -DGCOMP_WITHOUT_ROWS $(only SIGN ONEBIT) || exit 1
for each in SIGN INT TOPK QSGD EDEN; do # of each kind of payload
    clean -DGCOMP_NO_OBJECT $(only "$each") || { echo "$each alone, without objects"; exit 1; }
done
cat >build/without/two.c <<'END'
#define GCOMP_IMPLEMENTATION
#include "gcomp.h"
int main(void)
{
    static const char *const has[] = {"none", "int:bits=4", "topk:density=0.01+int"}, *const lacks[] = {"sign", "topk+fp16"};
    gcomp_codec codec;
    int i, bad = 0;
    for (i = 0; i < 3; i++) bad += gcomp_codec_parse(&codec, has[i], NULL, 0) != GCOMP_OK;
    for (i = 0; i < 2; i++) bad += gcomp_codec_parse(&codec, lacks[i], NULL, 0) == GCOMP_OK;
    return bad;
}
END
$cc -std=gnu99 -O0 -DGCOMP_MAX_ISA=1 $(only INT TOPK) -I. build/without/two.c -o build/without/two -lm && build/without/two || exit 1
golden "int and topk" -O2 $(only INT TOPK)

# Bytes that a file takes, as `size` counts them: code and constants (its first column), or with data (the first two).
[ "$(gcc -dumpmachine | cut -d- -f1)" = x86_64 ] || exit 0
one() { # limit, flags...: code and constants of the header
    limit=$1
    shift
    gcc "$@" -I. -c build/without/one.c -o build/without/one.o || exit 1
    bytes=$(size build/without/one.o | awk 'NR == 2 { print $1 }')
    echo "# gcc $*: $bytes bytes, at most $limit"
    [ "$bytes" -le "$limit" ] || { echo "too large"; exit 1; }
}
linked() { # limit, flags...: what the header adds to a program of the codec layer
    limit=$1
    shift
    sections="-Os -ffunction-sections -fdata-sections -Wl,--gc-sections"
    gcc $sections "$@" -I. -c build/without/one.c -o build/without/one.o &&
        gcc $sections -I. tests/builds/small.c build/without/one.o -o build/without/small && build/without/small || exit 1
    gcc $sections -I. -DNOTHING tests/builds/small.c -o build/without/nothing || exit 1
    bytes=$(size build/without/small build/without/nothing |
        awk 'NR == 2 { a = $1 + $2 } NR == 3 { print a - $1 - $2 }')
    echo "# gcc -Os $*, linked: $bytes bytes more, at most $limit"
    [ "$bytes" -le "$limit" ] || { echo "too large"; exit 1; }
}
one 215500 -O2 $(only INT TOPK)
one 109800 -O2 -DGCOMP_NO_OBJECT $(only INT TOPK)
linked 36200 -DGCOMP_MAX_ISA=1 $(only SIGN)
linked 26400 -DGCOMP_MAX_ISA=1 -DGCOMP_NO_OBJECT -DGCOMP_WITHOUT_ROWS $(only SIGN)
