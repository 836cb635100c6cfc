#!/bin/sh
# The rules of the house that a script can check, as TAP: lines, functions, contents, calls, symbols, the README's code.
set -u
cd "$(dirname "$0")/../.." || exit 1
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

echo 1..18

limit() { # what: its number in tests/tools/style_limits
    awk -v what="$1" '$1 == what { print $2 }' tests/tools/style_limits
}
columns=$(limit columns)
awk -v most="$columns" 'length > most { print FILENAME ": " FNR ": " length " columns" }' gcomp.h >$out/columns
report "gcomp.h has no line over $columns columns" $out/columns

awk '/^[A-Za-z].*\)$/ { name = $0 } /^\{$/ { start = FNR } /^\}$/ { if (start && FNR - start > 100) print FNR - start " lines: " name; start = 0 }' \
    gcomp.h >$out/functions
report "gcomp.h has no function over 100 lines" $out/functions

# From a line that begins with a name to the brace: a function. Its commas, less those within inner parentheses, divide parameters.
awk -v most="$(limit parameters)" '
    /^[A-Za-z]/ { text = ""; line = FNR }
    /^[A-Za-z]/ || text { text = text $0 }
    /[;}]$/ { text = "" }
    /^\{$/ && text ~ /\(/ && text !~ /^(GCOMP_API|typedef|struct|enum|extern)/ {
        functions++
        name = text
        sub(/\(.*/, "", name)
        sub(/^[^(]*\(/, "", text)
        while (gsub(/\([^()]*\)/, "", text)) continue
        commas = gsub(/,/, ",", text)
        if (commas >= most) print "line " line ": " commas + 1 " parameters: " name
        text = ""
    }
    END { if (functions < 1000) print "functions are not found" }' gcomp.h >$out/parameters
report "no function but public ones has over $(limit parameters) parameters" $out/parameters

# Chapters: their length, the order of private names, and who uses those of a method. tests/tools/style_limits has exceptions.
awk -f tests/tools/chapters.awk gcomp.h gcomp.h >$out/chapters
beyond() { # later|foreign|flag|row|maker: what is none of the exceptions
    awk -v kind="$1" '$1 != kind { next } FNR == NR { known[$2] = 1; next } !known[$2]' tests/tools/style_limits $out/chapters
}
awk '$1 == "chapter" { most[$2] = $3 }
     $1 == "size" && $2 !~ /^(vectors|AVX2|AVX-512|NEON|scalar)$/ && $3 > ($2 in most ? most[$2] : 400) {
         print "chapter " $2 ": " $3 " lines, over " ($2 in most ? most[$2] : 400) }' tests/tools/style_limits $out/chapters >$out/sizes
[ "$(grep -c '^size method_' $out/chapters)" -gt 20 ] || echo "chapters are not found" >>$out/sizes
report "no chapter has over 400 lines, but for the vectors' and those of tests/tools/style_limits" $out/sizes
beyond later >$out/later
report "no private name is used before its chapter" $out/later
beyond foreign >$out/foreign
report "no chapter uses the private names of another method" $out/foreign
beyond flag >$out/flag
beyond row >>$out/flag
[ "$(awk '/The flags of a row/ { on = 1 } on && / = [0-9]/ { n++ } /^};/ { on = 0 } END { print n }' gcomp.h)" -gt 9 ] || echo "flags are not found" >>$out/flag
report "no chapter behind the methods' asks for a flag that one method alone has, or for a row" $out/flag
beyond maker >$out/maker
report "no macro makes functions" $out/maker
awk -v least="$(limit comments)" '$1 == "comments" && 100 * $2 < least * $3 {
    print $2 " of " $3 " lines have a comment: " int(1000 * $2 / $3) / 10 " %, below " least " %" }' $out/chapters >$out/comments
report "$(limit comments) % of the implementation's lines have a comment" $out/comments

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

# The map at the head of the implementation: its functions and chapters are there.
sed -n '/^   Three ways through it/,/^   ====/p' gcomp.h >$out/map
for name in $(grep -o 'gcomp_[a-z0-9_]*' $out/map | sort -u); do
    [ "$(grep -wc -e "$name" -e "GCOMP__KERNEL(${name#gcomp__}" gcomp.h)" -gt "$(grep -wc "$name" $out/map)" ] || echo "the map has $name, and the code has not"
done >$out/mapped
for tag in $(grep -o '>>[a-z]* *[a-z]*  ' $out/map | sed 's/^>>//;s/ *$//;s/ /_/' | sort -u); do
    grep -q ">>$(echo $tag | tr _ ' ')\( -\|:\)" gcomp.h || echo "the map has >>$tag, and the code has not"
done >>$out/mapped
[ -s $out/map ] || echo "there is no map" >>$out/mapped
report "the map of the implementation names what is there" $out/mapped

grep -o '^GCOMP_API.*gcomp_[a-z_]*(' gcomp.h | grep -o 'gcomp_[a-z_]*($' | sort -u | awk -v most="$(limit functions)" '
    END { if (NR > most) print NR " public functions, at most " most }' >$out/public
report "there are at most $(limit functions) public functions" $out/public

# A kernel is compiled once a set, and has the set behind its name; a plain function of the same name would be mistaken for one.
nm $out/one.o | awk '{ name = $3 } name ~ /GCOMP__/ { print name " has the name of a macro" }
    { kernel = sub(/_(scalar|avx2|avx512|neon)$/, "", name); if (kernel) kernels[name] = 1; else plain[name] = 1 }
    END { for (name in plain) if (name in kernels) print name " is a kernel and a plain function" }' >$out/names
report "no plain function has the name of a kernel" $out/names

nm $out/one.o | awk '$2 ~ /^[bBdDC]$/ { print "writable " $3 }' | grep -v 'available\|gcomp__cpu' >$out/data
report "no writable data but the cached word of cpu features" $out/data

# Every C block of the README compiles. The first is a loop, here made a function of its own by what stands around it. The second are
# callbacks, the third is a device that sends: tests/tools/readme_blocks.c calls them.
awk '/^```c$/ { n++; file = "'$out'/readme" n ".c"; printf "" > file; on = 1; next } /^```$/ { on = 0 } on { print > file }' README.md
awk '/^## / { exit } END { if (FNR > 46) print FNR - 1 " lines before the first heading" }' README.md >$out/readme
awk 'END { if (FNR > 250) print "README.md has " FNR " lines, at most 250" }' README.md >>$out/readme
awk 'length > 100 { print "a code line of the README has " length " columns: " $0 }' $out/readme[1-9].c >>$out/readme
sed 's/"[^"]*"//g; s:/\*.*\*/::' $out/readme[1-9].c | awk '/;.*;/ && !/for \(/ { print "two statements: " $0 }' >>$out/readme
{
    echo 'static int train(int rank, int world, float *fc1_gradient) {'
    echo '    gcomp_comm comm = {0}; comm.rank = rank, comm.world = world, comm.allreduce = my_allreduce, comm.allgather = my_allgather;'
    cat $out/readme1.c
    echo '    gcomp_close(gc); return failures == 10; }'
} >$out/loop.h
for block in 2 3; do
    { echo '#include "gcomp.h"'; cat $out/readme$block.c; } >$out/block.c
    $CC -std=c99 -Wall -Wextra -Wno-unused -Werror -O1 -I. -c $out/block.c -o $out/block.o 2>>$out/readme || echo "block $block" >>$out/readme
done
# The one about teams in examples/README.md too, which has its variables from here.
awk '/^```c$/ { on = 1; text = ""; next } /^```$/ { if (on && text ~ /_team/) printf "%s", text; on = 0 } on { text = text $0 "\n" }' \
    examples/README.md >$out/team.c
{
    printf '#include "gcomp_recover.h"\n#include "gcomp_sockets.h"\nenum { COUNT = 4 };\n'
    echo 'int go_on(gcomp *gc, gcomp_sockets_desc net_desc, gcomp_comm comm, float *weights, float *momentum, void **grads, int is_new) {'
    echo 'int waiting, differ, rank;'
    cat $out/team.c
    echo 'return 0; }'
} >$out/block.c
[ -s $out/team.c ] && $CC -std=gnu99 -Wall -Wextra -Wno-unused -Werror -O0 -I. -Iexamples/adapters -c $out/block.c -o $out/block.o 2>>$out/readme ||
    echo "the block of examples/README.md" >>$out/readme
[ ! -e $out/readme4.c ] || echo "nobody compiles the fourth block" >>$out/readme
$CC -std=c99 -O1 -no-pie -I. -DCALLBACKS="\"$PWD/$out/readme2.c\"" -DDEVICE="\"$PWD/$out/readme3.c\"" tests/tools/readme_blocks.c \
    $out/one.o -o $out/blocks.bin 2>>$out/readme && $out/blocks.bin >>$out/readme || echo "tests/tools/readme_blocks.c fails" >>$out/readme
sed -n 's/^    .*&& \(make deps .*\)/\1 -n/p' README.md | sh -e >/dev/null 2>>$out/readme || echo "its commands fail" >>$out/readme
for page in README.md bench/README.md examples/README.md examples/CODECS.md tests/README.md; do
    grep -o '](\([^)#]*\)' $page | cut -c 3- | grep -v '^http' | sort -u | while read -r link; do
        [ -z "$link" ] || [ -e "$(dirname $page)/$link" ] || echo "$page: $link is not there"
    done
done >>$out/readme
report "the README is short, its C compiles and does what it says, its links lead somewhere" $out/readme

: >$out/loop
$CC -std=c99 -O0 -no-pie -I. -DREADME="\"$PWD/$out/loop.h\"" tests/tools/readme_loop.c $out/one.o -o $out/loop.bin 2>>$out/loop &&
    $out/loop.bin >>$out/loop || echo "failed" >>$out/loop
report "the README's loop ends on errors that stay, and tells them" $out/loop
exit $status
