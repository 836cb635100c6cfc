#!/bin/sh
# The rules of the house that a script can check, as TAP: lines, functions, contents, calls, symbols, the README's code.
set -u
cd "$(dirname "$0")/.." || exit 1
out=build/style
mkdir -p $out
CC=${CC:-gcc}
number=0
status=0

report() { # name file: passes if the file of complaints is empty
    number=$((number + 1))
    if [ -s "$2" ]; then
        echo "not ok $number - $1"
        head -20 "$2" | sed 's/^/# /'
        status=1
    else
        echo "ok $number - $1"
    fi
}

echo 1..10

awk 'length > 130 { print FILENAME ": " FNR ": " length " columns" }' gcomp.h >$out/columns
report "gcomp.h has no line over 130 columns" $out/columns

awk '/^[A-Za-z].*\)$/ { name = $0 } /^\{$/ { start = FNR } /^\}$/ { if (start && FNR - start > 100) print FNR - start " lines: " name; start = 0 }' \
    gcomp.h >$out/functions
report "gcomp.h has no function over 100 lines" $out/functions

# A chapter goes from one tag to the next; those of block methods stand before the sparse methods.
awk '/^\/\* (>>|-------)/ { if (on && FNR - from > 120) print FNR - from " lines: " title; title = $2 " " $3; from = FNR }
     /^\/\* >>method none/ { on = 1 } /^\/\* -------.* sparse methods/ { ended = on; on = 0 }
     END { if (!ended) print "where they begin and end is not found" }' gcomp.h >$out/chapters
report "no chapter of a block method has over 120 lines" $out/chapters

# the contents list is the only place where a tag stands after three blanks and before its line of text, in the first banner
sed -n '/>>contents/,/^   -----/p' gcomp.h | sed -n 's/^   >>\([a-z]*\) .*/\1/p;s/^   >>\([a-z]*\)$/\1/p' | grep -v '^contents$' >$out/contents
awk '/^\/\* -{60}/ || /^\/\* ------------------------------------------------------------/ { banner = 1; next }
     banner && /^   >>/ { tag = $1; sub(/^>>/, "", tag); if (tag != "contents") print tag } { banner = 0 }' gcomp.h >$out/banners
diff $out/contents $out/banners >$out/tags 2>&1
report "the contents list names the banners, in order" $out/tags

sed 's://.*::' gcomp.h | awk '{ line = $0; text = ""
    while (length(line)) {
        if (inside) { i = index(line, "*/"); if (!i) break; line = substr(line, i + 2); inside = 0 }
        else { i = index(line, "/*"); if (!i) { text = text line; break } text = text substr(line, 1, i - 1); line = substr(line, i + 2); inside = 1 }
    }
    gsub(/"([^"\\]|\\.)*"/, "\"\"", text)
    if (text ~ /(^|[^A-Za-z0-9_])(printf|fprintf|puts|abort|exit|rand|srand|assert|longjmp)[ ]*\(/) print FNR ": " $0 }' >$out/calls
report "gcomp.h calls no printf, abort, exit, rand or assert" $out/calls

grep -nP '\t| +$' gcomp.h >$out/blanks
report "gcomp.h has no tabs and no trailing blanks" $out/blanks

printf '#define GCOMP_IMPLEMENTATION\n#include "gcomp.h"\n' >$out/one.c
$CC -std=c99 -O0 -fno-pic -fno-pie -I. -c $out/one.c -o $out/one.o 2>$out/symbols
nm -g --defined-only $out/one.o 2>>$out/symbols | awk '$3 !~ /^gcomp_/ { print "symbol " $3 }' >>$out/symbols
report "symbols begin with gcomp" $out/symbols

nm $out/one.o | awk '$2 ~ /^[bBdDC]$/ { print "writable " $3 }' | grep -v 'available\|gcomp__cpu' >$out/data
report "no writable data but the cached word of cpu features" $out/data

# Every C block of the README compiles: the first as it stands behind the declarations of what is the user's, the others inside it.
awk '/^```c$/ { n++; file = "'$out'/readme" n ".c"
        print "#include <stddef.h>\nint my_allreduce(void *, void *, size_t, int);" > file; on = 1; next }
     /^```$/ { on = 0 } on { print > file }' README.md
: >$out/readme
for block in $out/readme[0-9]*.c; do
    {
        echo '#include "gcomp.h"'
        echo 'int my_allreduce(void *user, void *data, size_t count, gcomp_dtype dtype);'
        echo 'int my_allgather(void *user, const void *mine, void *all, size_t bytes);'
        echo 'int backward(float *const *grads);'
        echo 'void optimizer_step(float *const *grads);'
        sed 1,2d "$block"
    } >$out/block.c
    $CC -std=c99 -Wall -Wno-unused -Wno-unknown-pragmas -Werror -O1 -I. -c $out/block.c -o $out/block.o 2>>$out/readme || echo "$block" >>$out/readme
done
report "the README's C compiles" $out/readme

: >$out/loop
sed '1,2d;/define GCOMP_IMPLEMENTATION/d' $out/readme1.c >$out/loop.h
$CC -std=c99 -O0 -no-pie -I. -DREADME="\"$PWD/$out/loop.h\"" tests/readme_loop.c $out/one.o -o $out/loop.bin 2>>$out/loop &&
    $out/loop.bin >>$out/loop || echo "failed" >>$out/loop
report "the README's first loop ends on errors that stay, and tells them" $out/loop
exit $status
