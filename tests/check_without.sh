#!/bin/sh
# Leaves out each method alone: the header compiles, and no function stays behind that nothing calls. $1: compiler.
cd "$(dirname "$0")/.." || exit 1
mkdir -p build/without
case ${1:-gcc} in
*clang*) tool="$1 -fsyntax-only" ;;
*) tool="${1:-gcc} -S -o /dev/null" ;; # its warnings come after the syntax
esac
printf '#define GCOMP_IMPLEMENTATION\n#include "gcomp.h"\n' >build/without/one.c
sed -n 's/^#define GCOMP__LIST_\([a-z0-9]*\)(X) X(.*/\1/p' gcomp.h | grep -v none | tr 'a-z' 'A-Z' | while read -r method; do
    $tool -std=gnu99 -O0 -Wall -Wextra -Wunused-function -Werror -DGCOMP_MAX_ISA=1 \
        -DGCOMP_WITHOUT_"$method" -I. build/without/one.c || { echo "without $method"; exit 1; }
done
