#!/bin/sh
# Leaves out each method alone, and all but it: the header compiles, and no function stays behind that nothing calls. Then a
# program has the methods named and no other. $1: compiler.
cd "$(dirname "$0")/.." || exit 1
mkdir -p build/without
case ${1:-gcc} in
*clang*) tool="$1 -fsyntax-only" ;;
*) tool="${1:-gcc} -S -o /dev/null" ;; # its warnings come after the syntax
esac
printf '#define GCOMP_IMPLEMENTATION\n#include "gcomp.h"\n' >build/without/one.c
sed -n 's/^#define GCOMP__LIST_\([a-z0-9]*\)(X) X(.*/\1/p' gcomp.h | grep -v none | tr 'a-z' 'A-Z' | while read -r method; do
    for define in WITHOUT ONLY; do
        $tool -std=gnu99 -O0 -Wall -Wextra -Wunused-function -Werror -DGCOMP_MAX_ISA=1 -DGCOMP_${define}_"$method" -I. \
            build/without/one.c || { echo "$define $method"; exit 1; }
    done
done || exit 1
cat >build/without/only.c <<'END'
#define GCOMP_ONLY_INT
#define GCOMP_ONLY_TOPK
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
${1:-gcc} -std=gnu99 -O0 -DGCOMP_MAX_ISA=1 -I. build/without/only.c -o build/without/only -lm && build/without/only
