#!/bin/sh
# Every example and bench program that is built, and every script of bench/, says its usage where it is asked for it, and names an
# argument that is wrong. As TAP.
#
#   sh tests/examples/speaks.sh [PROGRAM]...        all that build/ has, and the scripts, if none is named
set -u
cd "$(dirname "$0")/../.." || exit 1
if [ $# = 0 ]; then
    for name in advise bench delayed elastic embedded engine first gemm gossip leader lgc outer overlap own_loop resnet scale server sharded train transformer; do
        [ ! -x build/$name ] || set -- "$@" build/$name
    done
    set -- "$@" bench/adam.sh bench/net.sh bench/readme.sh bench/torch_net.sh bench/torch_codecs.py bench/torch_hook.py
    [ ! -e build/libgcomp.so ] || set -- "$@" bench/python.py
fi
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
number=0
status=0
passes() { # name, command...
    number=$((number + 1))
    name=$1
    shift
    if "$@"; then
        echo "ok $number - $name"
    else
        echo "not ok $number - $name"
        sed 's/^/# /' "$out/said" "$out/complained" | head -20
        status=1
    fi
}
helps() {
    "$1" --help >"$out/said" 2>"$out/complained" </dev/null && head -n 1 "$out/said" | grep -q '^usage'
}
names_it() {
    "$1" --nonsense >"$out/said" 2>"$out/complained" </dev/null
    [ $? = 2 ] && grep -q -e '--nonsense' "$out/complained"
}
echo 1..$((2 * $#))
for program in "$@"; do
    passes "$program says its usage" helps "$program"
    passes "$program names an argument that is wrong" names_it "$program"
done
exit $status
