#!/bin/sh
# Makes the table on the first page of the README, and puts it there: one command, today's version.
#
#   bench/readme.sh [--steps N] [--print]     200 steps if it is not given; --print: to the output, not into README.md
#
# SGD: build/train, 784-1152-1152-10 on Fashion-MNIST, four workers; for PyTorch's hook bench/torch_train.py, which begins with the same
# weights and takes the same batches. AdamW: build/transformer, a small GPT-2, by bench/adam.sh. Each loss is that after as many steps
# as the uncompressed training takes. A step takes the processor time of one worker, and its bytes over the link.
set -eu
cd "$(dirname "$0")/.."
steps=200 page=README.md
while [ $# -gt 0 ]; do
    case $1 in
    --steps) steps=$2; shift 2 ;;
    --print) page=; shift ;;
    --help) sed -n 's/^#   /usage: /p' "$0"; exit 0 ;;
    *) echo "readme.sh: $1 is none of its options: see --help" >&2; exit 2 ;;
    esac
done
out=build/readme
codecs="int:bits=4 eden:bits=2 eden powersgd:rank=4"
export OPENBLAS_NUM_THREADS=1
mkdir -p $out
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

echo "3 of 3: AdamW"
bench/adam.sh --quick --out $out --recipes "none $codecs" >$out/adam.log 2>&1 || { cat $out/adam.log; exit 1; }

table() {
    awk -F , -v version="$(sed -n '1s/.* - v\([0-9.]*\) .*/\1/p' gcomp.h)" -v steps=$steps -v codecs="$codecs" \
        -v machine="$(sed -n 's/^model name.*: //p' /proc/cpuinfo | head -n 1)" '
        function percent(part, whole, x) {
            x = 100 * (part / whole - 1)
            return x < 0.05 && x > -0.05 ? "0" : sprintf("%+.1f %%", x)
        }
        function row(title, bytes, codec, sgd, adam) {
            printf "| %s | %.*f | %.0f | %.0f | %s | %s |\n", title, plain / bytes < 10, plain / bytes,
                compute + codec + bytes * 8 / 1e5, compute + codec + bytes * 8 / 1e6, percent(sgd, loss), adam
        }
        FNR == 1 { next }
        FILENAME ~ /torch/ { hook = $4; hook_codec = $10; hook_loss = $12; next }
        FILENAME ~ /adam/ { adam[$1] = $4; next }
        { bytes[$1] = $4; spent[$1] = $10; last[$1] = $12; if ($1 == "none") { compute = $9; plain = $4; loss = $12 } }
        END {
            print "| four workers, 2.2 million parameters | times fewer bytes | ms a step at 100 Mbit/s | at 1 Gbit/s | loss, SGD | loss, AdamW |"
            print "|---|---|---|---|---|---|"
            row("uncompressed", plain, spent["none"], loss, "0")
            n = split(codecs, c, " ")
            for (i = 1; i <= n; i++) row("`" c[i] "`", bytes[c[i]], spent[c[i]], last[c[i]], percent(adam[c[i]], adam["none"]))
            row("PyTorch’s `powerSGD_hook`, rank 4", hook, hook_codec, hook_loss, "")
            printf "\nv%s, %s. Losses are those after the same steps, beside uncompressed training: %d steps of SGD with this network; " \
                "500 of AdamW with a small GPT-2, whose bytes are other ones. ", version, machine, steps
            print "[How it is measured](bench/README.md#the-table-of-the-first-page)."
        }' $out/runs.csv $out/torch/runs.csv $out/adam.csv
}
table >$out/table.md
if [ -z "$page" ]; then cat $out/table.md; exit; fi
awk -v table=$out/table.md '/^<!-- make readme -->$/ { print; while ((getline line < table) > 0) print line; skip = 1; next }
    /^<!-- end of make readme -->$/ { skip = 0 } !skip' $page >$out/page.md
grep -q '^<!-- end of make readme -->$' $out/page.md && mv $out/page.md $page
git --no-pager diff --stat -- $page 2>/dev/null || true
