#!/bin/sh
# Leaves out each method alone, and all but it: the header compiles, and no function stays behind that nothing calls. Then a
# program has the two methods that are left and no other. $1: compiler.
cd "$(dirname "$0")/.." || exit 1
mkdir -p build/without
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
printf '#define GCOMP_IMPLEMENTATION\n#include "gcomp.h"\n' >build/without/one.c
for each in $methods; do
    clean "-DGCOMP_WITHOUT_$each" || { echo "without $each"; exit 1; }
    clean $(only "$each") || { echo "$each alone"; exit 1; }
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
${1:-gcc} -std=gnu99 -O0 -DGCOMP_MAX_ISA=1 $(only INT TOPK) -I. build/without/two.c -o build/without/two -lm && build/without/two
