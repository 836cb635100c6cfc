#!/bin/sh
# DistributedDataParallel over a slow network on this machine, the four hosts of bench/hosts.sh: PyTorch's own hooks beside those of
# gcomp_torch.py. The training is that of bench/net.sh: 784-1152-1152-10, 2,244,106 parameters, Fashion-MNIST.
#
#   sudo bench/torch_net.sh [--rates "100mbit 1gbit none"] [--methods "METHOD ..."] [--turns N] [--steps N] [--train N] [--out DIR]
#
# METHOD: none (all-reduce), fp16 (fp16_compress_hook), hook (powerSGD_hook of rank 4), a codec of gcomp, or "advise": the codecs that
# gcomp advises for the link, which it measures at the start. CODEC@sockets: over gcomp.Sockets in place of Gloo, and in the buckets that
# DistributedDataParallel makes by default. "alone", which is always there, is what four processes take that compute and do not
# communicate.
# --turns, --steps: at each rate all methods take turns, so many, of so many steps each.
# --train: steps of the training that finds out when the loss is 0.40, without a limit of the links: losses do not depend on it. Those
# of "advise" do, and it trains at each rate.
#
# For each rate and method: milliseconds a step, the median; what is left of them without the computation; processor milliseconds a
# step of one worker; bytes that the interface of host 0 sends in a step; seconds to the loss 0.40, which are steps times milliseconds;
# the loss after --train steps.
# At last the bar: what gcomp's powersgd adds to the computation, over Gloo or over sockets, is at most half of what PyTorch's hook of the
# same rank adds.
# DIR/torch_net.csv, DIR/torch_net.svg. Needs root, for namespaces. Removes all it has made.
set -eu
cd "$(dirname "$0")/.."
rates="100mbit 1gbit none"
methods="none fp16 hook powersgd:rank=4 powersgd:rank=4@sockets topk:density=0.01 int:bits=4 sign sign@sockets advise"
turns=5
steps=8
train=150
dir=build
. bench/hosts.sh
while [ $# -gt 0 ]; do
    case $1 in
    --help | -h) say_usage; exit ;;
    --rates | --methods | --turns | --steps | --train | --out) [ -n "${2:-}" ] || wrong "$1" "" ;;
    *) wrong "$1" ;;
    esac
    case $1 in
    --rates) rates=$2 ;;
    --methods) methods=$2 ;;
    --turns) turns=$2 ;;
    --steps) steps=$2 ;;
    --train) train=$2 ;;
    --out) dir=$2 ;;
    esac
    shift 2
done
[ "$(id -u)" = 0 ] || { echo "bench/torch_net.sh makes network namespaces, and that takes root: sudo bench/torch_net.sh"; exit 1; }
need() { command -v "$1" >/dev/null || { echo "missing $1: apt-get install $2"; exit 1; }; }
need ip iproute2
need tc iproute2
[ -e /usr/share/datasets/fashion-mnist ] || { echo "missing the data: apt-get install dataset-fashion-mnist"; exit 1; }
python=
for p in python3 /usr/bin/python3; do "$p" -c 'import torch, numpy' 2>/dev/null && python=$p && break; done
[ -n "$python" ] || { echo "missing PyTorch: apt-get install python3-torch python3-numpy"; exit 1; }
make -s build/libgcomp.so
mkdir -p "$dir"

work=$(mktemp -d)
clean() {
    trap - EXIT
    stop_hosts
    remove_hosts
    rm -rf "$work"
}
trap clean EXIT
trap 'exit 1' INT TERM HUP
make_hosts

workers() { # turns, steps, methods: prints rank 0's lines
    for i in 3 2 1 0; do
        ip netns exec "$(host $i)" env OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1 $python bench/torch_ddp.py \
            --rank $i --root $net.1:7077 --turns "$1" --steps "$2" --methods "$3" \
            >"$work/out$i" 2>"$work/err$i" &
        last=$!
    done
    wait $last || { tail -n 20 "$work"/err? >&2; exit 1; }
    stop_hosts # they are done
    wait
    grep '^advice: ' "$work/err0" >&2 || :
    cat "$work/out0"
}

limit none
echo "training, $train steps a method" >&2
fixed=$(echo " $methods " | sed 's/ advise / /')
: >"$work/trained"
[ -z "${fixed# }" ] || workers 1 "$train" "$fixed" >"$work/trained"
echo "rate,method,ms,over_alone,processor_ms,bytes,steps_to_loss,seconds_to_loss,loss" >"$dir/torch_net.csv"
for rate in $rates; do
    limit "$rate"
    workers "$turns" "$steps" "alone $methods" >"$work/timed"
    : >"$work/advised"
    case " $methods " in *" advise "*) workers 1 "$train" advise >"$work/advised" ;; esac
    awk -F , -v OFS=, -v rate="$rate" 'FILENAME != timed { at[$1] = $5; loss[$1] = $6; next }
        $1 == "alone" { alone = $2 }
        { steps = $1 in at ? at[$1] : "-"
          print rate, $1, $2, $2 - alone, $3, ($1 == "alone" ? 0 : $4), steps, (steps == "-" ? "-" : sprintf("%.1f", steps * $2 / 1000)), ($1 in at ? loss[$1] : "-") }' \
        timed="$work/timed" "$work/trained" "$work/advised" "$work/timed" >"$work/lines"
    cat "$work/lines" >>"$dir/torch_net.csv"
    echo "--- $rate"
    awk -F , 'BEGIN { printf "%-24s %9s %12s %12s %10s %8s %10s %8s\n", "method", "ms/step", "over alone", "processor", "bytes", "steps", "s to 0.40", "loss" }
        { printf "%-24s %9.1f %12.1f %12.1f %10s %8s %10s %8s\n", $2, $3, $4, $5, $6, $7, $8, $9 }' "$work/lines"
done

if command -v gnuplot >/dev/null; then
    {
        echo "set terminal svg size 1200,480 noenhanced font 'Helvetica,14' background rgb 'white'"
        echo "set output '$dir/torch_net.svg'"
        echo "set datafile separator ','; set border 3 lc rgb '#666666'; set tics nomirror; set grid y lc rgb '#dddddd' lt 1 lw 1"
        echo "set logscale y; set yrange [1:]; set style fill solid; set boxwidth 0.7; set xtics rotate by 40 right; unset key"
        echo "color(m) = m eq 'alone' ? 0x999999 : m eq 'none' || m eq 'fp16' || m eq 'hook' ? 0xd62728 : 0x1f77b4"
        # shellcheck disable=SC2086
        set -- $rates
        echo "set multiplot layout 1,$# title 'DistributedDataParallel, 4 hosts: milliseconds a step (red: PyTorch, blue: gcomp)'"
        for rate in "$@"; do
            grep "^$rate," "$dir/torch_net.csv" >"$work/$rate.csv"
            echo "set title '$rate'"
            echo "plot '$work/$rate.csv' using 0:3:(color(strcol(2))):xtic(2) with boxes lc rgb variable, \\"
            echo "    '' using 0:3:(sprintf('%.0f', \$3)) with labels offset 0,0.6"
        done
        echo "unset multiplot"
    } >"$dir/torch_net.gnuplot"
    gnuplot "$dir/torch_net.gnuplot"
    echo "$dir/torch_net.csv, $dir/torch_net.svg"
else
    echo "no gnuplot: no picture (apt-get install gnuplot-nox)"
fi
awk -F , '$2 == "hook" { theirs[$1] = $4 }
    $2 ~ /^powersgd:rank=4(@|$)/ && $1 in theirs {
        r = $4 / theirs[$1]
        printf "%s: %s adds %.1f ms to the computation, PyTorch %.1f: %.2f of it\n", $1, $2, $4, theirs[$1], r
        if (!($1 in least) || r < least[$1]) least[$1] = r }
    END { for (rate in least) if (least[rate] > 0.5) status = 1; exit status }' "$dir/torch_net.csv"
