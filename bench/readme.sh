#!/bin/sh
# Makes the table on the first page of the README, and puts it there: one command, today's version.
#
#   bench/readme.sh [--steps N] [--print]     1000 steps if it is not given; --print: to the output, not into README.md
#
# SGD: build/train, 784-1152-1152-10 on Fashion-MNIST, four workers; for PyTorch's hook bench/torch_train.py, which begins with the same
# weights and takes the same batches. AdamW: build/transformer, a small GPT-2, by bench/adam.sh. All take equal steps; the loss of SGD is
# the mean of the last tenth of them. A step takes the processor time of one worker, and its bytes over the link.
set -eu
cd "$(dirname "$0")/.."
steps=1000 page=README.md
while [ $# -gt 0 ]; do
    case $1 in
    --steps) steps=${2:?"--steps needs a number"}; shift 2 ;;
    --print) page=; shift ;;
    --help | -h) sed -n 's/^#   /usage: /p' "$0"; exit 0 ;;
    *) echo "$0: there is no argument '$1'; see $0 --help" >&2; exit 2 ;;
    esac
done
out=build/readme
codecs="int:bits=4 eden:bits=2 eden powersgd:rank=4"
export OPENBLAS_NUM_THREADS=1
rm -rf $out
mkdir -p $out/torch
make -s build/train build/transformer
echo "1 of 3: SGD, $steps steps uncompressed and with each of: $codecs"
methods=
for codec in $codecs; do methods="$methods --method $codec"; done
# shellcheck disable=SC2086
build/train $methods --hidden 1152,1152 --rate 0.05 --steps $steps --no-pictures --out $out >$out/train.log 2>&1 ||
    { cat $out/train.log; exit 1; }

echo "2 of 3: the same with PyTorch's powerSGD_hook"
python=
for p in python3 /usr/bin/python3; do "$p" -c 'import torch, numpy' 2>/dev/null && python=$p && break; done
[ -n "$python" ] || { echo "missing PyTorch: apt-get install python3-torch"; exit 1; }
port=$((20000 + $$ % 9000))
pids=
for rank in 0 1 2 3; do
    "$python" bench/torch_train.py --method powersgd:rank=4 --rank $rank --root 127.0.0.1:$port --transport torch --interface lo \
        --hidden 1152,1152 --rate 0.05 --steps $steps --no-pictures --alone --out $out/torch >$out/torch.$rank.log 2>&1 &
    pids="$pids $!"
done
for pid in $pids; do wait $pid || { cat $out/torch.*.log; exit 1; }; done

echo "3 of 3: AdamW, 500 steps, three seeds"
bench/adam.sh --out $out --recipes "none $codecs" --rates 0.003 --steps 500 >$out/adam.log 2>&1 || [ -s $out/adam.csv ] ||
    { cat $out/adam.log; exit 1; } # its status is about bars that are for 1000 steps

# The curves come first (demo.csv), then what a step takes (runs.csv), and the Adams.
awk -F , -v version="$(sed -n '1s/.* - v\([0-9.]*\) .*/\1/p' gcomp.h)" -v steps=$steps -v codecs="$codecs" \
    -v machine="$(sed -n 's/^model name.*: //p' /proc/cpuinfo | head -n 1)" '
    function beside(part, whole) { return sprintf("%+.1f %%", 100 * (part / whole - 1)) }
    function row(title, c, adams) {
        printf "| %s | %.*f | %.0f | %.0f | %s | %s |\n", title, c != "none" && sent["none"] / sent[c] < 10, sent["none"] / sent[c],
            compute + codec[c] + sent[c] / 1.25e4, compute + codec[c] + sent[c] / 1.25e5,
            c == "none" ? sprintf("%.3f", loss[c]) : beside(loss[c], loss["none"]), adams
    }
    FNR == 1 { hook = FILENAME ~ /torch/ ? "hook " : ""; next }
    FILENAME ~ /demo.csv$/ {
        what = hook $1
        if ($2 > steps - int(steps / 10)) loss[what] += $3 / int(steps / 10)
        if ($2 == steps) sent[what] = $4 - before
        before = $4
    }
    FILENAME ~ /runs.csv$/ {
        codec[hook $1] = $10
        if ($1 == "none") { compute = $9; least = most = $13 }
        if (!hook && $13 < least) least = $13
        if (!hook && $13 > most) most = $13
    }
    FILENAME ~ /adam.csv$/ { adam[$1] += $4 / 3 }
    END {
        sent["hook powersgd:rank=4"] *= 1.5 # of a ring all-reduce of four workers
        print "| four workers, 2.2 million parameters | times fewer bytes | ms a step at 100 Mbit/s | at 1 Gbit/s | loss, SGD | loss, AdamW |"
        print "|---|---|---|---|---|---|"
        row("uncompressed", "none", sprintf("%.3f", adam["none"]))
        n = split(codecs, c, " ")
        for (i = 1; i <= n; i++) row("`" c[i] "`", c[i], beside(adam[c[i]], adam["none"]))
        row("PyTorch’s `powerSGD_hook`, rank 4", "hook powersgd:rank=4", "")
        printf "\nVersion %s on an %s. Losses after equal steps: %d of SGD; 500 of AdamW, with a small GPT-2, whose bytes are others. " \
            "Seeds differ by 1 %%. On samples kept apart the networks are right in %.1f to %.1f %% of cases. " \
            "[How it was measured](bench/README.md#the-table-of-the-first-page).\n", version, machine, steps, 100 * least, 100 * most
    }' $out/demo.csv $out/torch/demo.csv $out/runs.csv $out/torch/runs.csv $out/adam.csv >$out/table.md
if [ -z "$page" ]; then cat $out/table.md; exit; fi
grep -q '^<!-- end of make readme -->$' $page || { echo "$page has no marks"; exit 1; }
awk -v table=$out/table.md '/^<!-- make readme -->$/ { print; while ((getline line < table) > 0) print line; skip = 1; next }
    /^<!-- end of make readme -->$/ { skip = 0 } !skip' $page >$out/page.md
cat $out/page.md >$page
sed -n '/^|/p' $out/table.md
