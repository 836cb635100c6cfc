#!/bin/sh
# Trains over a slow network on this machine: four hosts as network namespaces, each with its own limited link to one bridge, one
# worker a host, and every byte between them counted by the kernel.
#
#   sudo bench/net.sh [--rates "100mbit 1gbit none"] [--methods "CODEC CODEC ..."] [--steps N] [--transport mpi|sockets|torch]
#   [--program train|transformer] [--out DIR] [--pairs N] [--advise] [--overlap "CODEC ..."] [--pattern] [--limit SECONDS]
#   [--quiet SECONDS]
#
# --transport torch: the same training made of PyTorch over Gloo, bench/torch_train.py. Methods: none, and powersgd:rank=N, which
# is PyTorch's powerSGD_hook.
# --program transformer: examples/transformer/transformer.c over sockets: a GPT-2 of 0.8 million parameters, 64 characters a worker, AdamW or
# the optimizer before the slash of a method, 400 steps. Its loss to reach is that which uncompressed AdamW has after half its steps.
# --pairs: instead, N times uncompressed and N times as gcomp_advise chooses, in turns; the median of the ratios of their steps.
# --advise: instead, build/advise over sockets, for 11.7 million parameters: at each rate, for none and for each method beside
# none, what gcomp_advise expects of a step, what steps take, and the ratio.
# --overlap: instead, examples/overlap.c on two of the hosts: steps that exchange after the backward pass and during it, in turns,
#            over MPI or, with --transport sockets, over sockets. Its other arguments behind slashes: "none/8/768/64/5e6".
#
# --pattern: instead, rows of examples/patterns/outer.c over sockets, at 10 and 100 Mbit/s if --rates says nothing: 82,218 parameters, batch
#            32 a worker, 600 steps of AdamW. Local training with differences every 20 steps, beside codecs in every step.
#            Seconds until the loss (exponential mean of 25 steps) was 0.40, by the clock, and as processor time of a worker plus
#            bytes / link. --methods: rows, with | between them.
#
# A training hangs if it takes longer than --limit (600 s), or if the hosts have sent nothing for --quiet (60 s). Its name is
# printed, DIR/net-hung.txt says where its processes wait, and it is repeated once. The status is then 1. (--pairs, --advise and
# --overlap: the limit is for all trainings of a rate, and nothing is repeated.)
#
# For each rate and method, a line as soon as it is there: milliseconds a step; bytes that a worker must send in a step by what
# the statistics of gcomp report, and those that the interface of host 0 has sent; seconds until the loss was 0.40 (mean over the
# workers and the last 10 steps), by the clock, and as processor time of a worker plus bytes / link; the loss at the end, after as many
# steps of each method, since steps to a loss tell little where the loss falls slowly. DIR/net.csv, DIR/net.svg. Fails where the
# interface has sent less than that or over 5 % more, headers of Ethernet, IP and TCP aside (4.6 % where frames are full). The first
# method, none, is the uncompressed baseline: a ring all-reduce.
# Model: 784-1152-1152-10, 2,244,106 parameters, batch 64 a worker, plain learning rate 0.05, momentum 0.9, Fashion-MNIST.
# Needs root, for namespaces. Removes all it has made.
set -eu
cd "$(dirname "$0")/.."
rates="100mbit 1gbit none"
methods=
steps=
transport=
model=train
pairs=0
dir=build
advise=
overlap=
pattern=
python=
longest=600
quietest=60
. bench/hosts.sh
while [ $# -gt 0 ]; do
    case $1 in
    --help | -h) say_usage; exit ;;
    --advise) advise=1; shift; continue ;;
    --pattern) pattern=1 transport=sockets; [ "$rates" != "100mbit 1gbit none" ] || rates="10mbit 100mbit"; shift; continue ;;
    --rates | --methods | --steps | --transport | --program | --out | --pairs | --limit | --quiet | --overlap) [ -n "${2:-}" ] || wrong "$1" "" ;;
    *) wrong "$1" ;;
    esac
    case $1 in
    --rates) rates=$2 ;;
    --methods) methods=$2 ;;
    --steps) steps=$2 ;;
    --transport) transport=$2 ;;
    --program) model=$2 ;;
    --out) dir=$2 ;;
    --pairs) pairs=$2 ;;
    --limit) longest=$2 ;;
    --quiet) quietest=$2 ;;
    --overlap) overlap=$2 ;;
    esac
    shift 2
done
[ "$(id -u)" = 0 ] || { echo "bench/net.sh makes network namespaces, and that takes root: sudo bench/net.sh"; exit 1; }
need() { command -v "$1" >/dev/null || { echo "missing $1: apt-get install $2"; exit 1; }; }
need ip iproute2
need tc iproute2
need make make
[ -n "$advise" ] && transport=sockets
[ $model = train ] || [ $model = transformer ] || wrong --program "$model"
[ $model = train ] || [ "${transport:-sockets}" = sockets ] || { echo "--program transformer runs over sockets"; exit 1; }
if [ $model = transformer ]; then
    transport=sockets steps=${steps:-400}
    methods=${methods:-int:bits=4 eden:bits=2 eden:bits=1 powersgd:rank=auto adam1bit/qsgd|sign signum/vote demo/dct:top=32}
    [ -e /usr/share/games/fortunes/wisdom ] || { echo "missing the text: apt-get install fortunes"; exit 1; }
fi
transport=${transport:-mpi} steps=${steps:-250}
[ $model = transformer ] || [ -e /usr/share/datasets/fashion-mnist ] || [ -n "$advise$overlap" ] || { echo "missing the data: apt-get install dataset-fashion-mnist"; exit 1; }
case $transport in
mpi) need mpirun.openmpi openmpi-bin; need mpicc libopenmpi-dev; program=build/train_mpi; [ -z "$overlap" ] || program=build/overlap_mpi ;;
sockets)
    program=build/$model
    [ -z "$advise" ] || program=build/advise
    [ -z "$overlap" ] || program=build/overlap
    [ -z "$pattern" ] || program=build/outer
    ;;
torch)
    program=bench/torch_train.py
    for p in python3 /usr/bin/python3; do "$p" -c 'import torch' 2>/dev/null && python=$p && break; done
    [ -n "$python" ] || { echo "missing PyTorch: apt-get install python3-torch"; exit 1; }
    methods=${methods:-powersgd:rank=4}
    ;;
*) wrong --transport "$transport" ;;
esac
rows=$methods # of --pattern
methods=${methods:-powersgd:rank=4 topk:density=0.01 topk:density=0.01+int:bits=4 qsgd:levels=1,code=entropy eden int:bits=2 int:bits=4 sign}
make -s "$program"
mkdir -p "$dir"

work=$(mktemp -d)
child=
stop() { # what is under way
    kill "$child" 2>/dev/null || :
    stop_hosts
    wait "$child" 2>/dev/null || :
    child=
}
clean() {
    trap - EXIT
    [ -z "$child" ] || stop # interrupted
    remove_hosts
    rm -rf "$work"
}
trap clean EXIT
trap 'exit 1' INT TERM HUP
make_hosts
for i in 0 1 2 3; do echo "$(host $i) slots=1" >>"$work/hosts"; done

# mpirun's remote shell: a host is a namespace.
cat >"$work/agent" <<'AGENT'
#!/bin/sh
while [ "${1#-}" != "$1" ]; do shift; done
host=$1
shift
exec ip netns exec "$host" unshare --uts sh -c "hostname $host; $*"
AGENT
chmod +x "$work/agent"
printf '1\n2\n1\n4\n2\n0 3 0 0\n4096 4 0 0\n' >"$work/rules" # all-reduce: doubling for what is small, else the ring

over_mpi() { # ranks, one a host, and what they run
    ranks=$1
    shift
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
    exec mpirun.openmpi --hostfile "$work/hosts" -n "$ranks" --bind-to none \
        --mca plm rsh --mca plm_rsh_agent "$work/agent" --mca oob_tcp_if_include $net.0/24 \
        --mca pml ob1 --mca btl tcp,self --mca btl_tcp_if_include $net.0/24 --mca mpi_yield_when_idle 1 \
        --mca coll_tuned_use_dynamic_rules 1 --mca coll_tuned_dynamic_rules_filename "$work/rules" \
        -x OPENBLAS_NUM_THREADS=1 "$@" 2>"$work/err"
}

moved() { # bytes that the hosts have sent, and what they have received
    cat /sys/class/net/gcv$id.*/statistics/?x_bytes | awk '{ sum += $1 } END { printf "%.0f", sum }'
}

where_it_hangs() { # where each process of the hosts waits, and for whom
    date
    for i in 0 1 2 3; do
        echo "--- host $i"
        for pid in $(ip netns pids "$(host $i)"); do
            ps -o pid=,stat=,wchan:24=,time=,args= -p "$pid" | cut -c 1-120
            command -v gdb >/dev/null && gdb -batch -p "$pid" -ex 'thread apply all bt' 2>/dev/null | grep '^[#T]'
        done
        ip netns exec "$(host $i)" ss -tnoi 2>/dev/null || :
    done
}

under_way() { # what: waits for it. Status 1: it failed; 2: it hung, and has been stopped
    began=$(date +%s)
    heard=$began
    bytes=0
    while grep -qs '^State:[^A-Z]*[^ZX[:space:]]' "/proc/$child/status"; do
        sleep 1
        now=$(date +%s)
        all=$(moved)
        [ $((all - bytes)) -lt 20000 ] || { heard=$now bytes=$all; } # fewer are of no training
        if [ $((now - began)) -ge "$longest" ] || [ $((now - heard)) -ge "$quietest" ]; then
            echo "HUNG: $1, after $((now - began)) s, of which $((now - heard)) s in silence: $dir/net-hung.txt"
            where_it_hangs >>"$dir/net-hung.txt" 2>&1
            stop
            return 2
        fi
    done
    wait $child && status_of=0 || status_of=1
    child=
    return $status_of
}

train() { # output directory, arguments...: all four workers; as a process of its own
    out=$1
    shift
    case $model in
    train) set -- --hidden 1152,1152 --rate 0.05 --no-pictures "$@" ;;
    transformer) set -- --batch 1 --bare "$@" ;;
    esac
    set -- --steps "$steps" --interface eth0 --out "$out" "$@"
    if [ $transport = mpi ]; then
        over_mpi 4 "$PWD/$program" --transport mpi "$@"
    fi
    for i in 1 2 3; do
        ip netns exec "$(host $i)" env OPENBLAS_NUM_THREADS=1 $python "$program" --transport $transport --rank $i --root $net.1:7077 "$@" \
            >/dev/null 2>>"$work/err" &
    done
    ip netns exec "$(host 0)" env OPENBLAS_NUM_THREADS=1 $python "$program" --transport $transport --rank 0 --root $net.1:7077 "$@" \
        2>>"$work/err"
    wait
}

pattern_train() { # output directory, row: all four workers of examples/patterns/outer.c; as a process of its own
    for i in 1 2 3; do
        ip netns exec "$(host $i)" env OPENBLAS_NUM_THREADS=1 $program --transport sockets --rank $i --root $net.1:7077 --alone \
            --method "$2" --out "$1" >/dev/null 2>>"$work/err" &
    done
    ip netns exec "$(host 0)" env OPENBLAS_NUM_THREADS=1 $program --transport sockets --rank 0 --root $net.1:7077 --alone \
        --method "$2" --out "$1" 2>>"$work/err"
    wait
}

if [ -n "$advise" ]; then
    for rate in $rates; do
        limit "$rate"
        echo "--- $rate"
        for i in 3 2 1 0; do
            # shellcheck disable=SC2086
            ip netns exec "$(host $i)" $program --each --workers 4 --rank $i --root $net.1:7077 $methods >"$work/log$i" &
        done
        child=$!
        under_way "the adviser, $rate" || exit 1
        cat "$work/log0"
    done
    exit
fi

overlap_train() { # arguments...: both workers of examples/overlap.c; as a process of its own
    if [ $transport = mpi ]; then
        over_mpi 2 "$PWD/$program" "$@"
    fi
    for i in 1 0; do
        ip netns exec "$(host $i)" env OPENBLAS_NUM_THREADS=1 $program --transport sockets --rank $i --root $net.1:7077 "$@" \
            2>>"$work/err" &
    done
    wait
}

if [ -n "$overlap" ]; then
    for rate in $rates; do
        limit "$rate"
        echo "--- $rate, two hosts, $transport"
        for codec in $overlap; do
            # shellcheck disable=SC2046
            overlap_train $(echo "$codec" | tr / ' ') &
            child=$!
            under_way "overlap, $codec, $rate" || { cat "$work/err"; exit 1; }
        done
    done
    exit 0
fi

if [ -n "$pattern" ]; then
    [ -n "$rows" ] || rows="synchronous powersgd:rank=4|synchronous sign|synchronous topk:density=0.01+int:bits=4|\
outer int:bits=4|outer eden, mu 0.5|outer topk by chunks, mu 0.5|streaming int:bits=4, delay 2"
    echo "rate,row,steps,seconds_to_loss,ms_a_step,bytes_a_step,expected_seconds" >"$dir/net-pattern.csv"
    for rate in $rates; do
        limit "$rate"
        bits=$(echo "$rate" | sed 's/mbit/e6/;s/gbit/e9/;s/none/0/')
        echo "--- $rate, sockets"
        printf '%-44s %8s %10s %6s %9s %7s %9s %7s\n' '' ms/step bytes/step steps 's to 0.40' beside expected beside
        IFS='|'
        first=-,-
        for row in $rows; do
            unset IFS
            pattern_train "$dir/net-pattern" "$row" >"$work/log" </dev/null &
            child=$!
            under_way "$row, $rate" || { cat "$work/log" "$work/err"; exit 1; }
            # step rounds bytes seconds loss processor
            line=$(awk -v bits="$bits" 'NF == 6 && $1 + 0 { last = $1; s = $4; b = $3
                    if ($5 <= 0.40 && !at && $1 >= 25) { at = $1; when = $4; expected = $6 + (bits + 0 ? 8 * $3 / bits : 0) } }
                END { printf "%s,%s,%.3f,%.0f,%s", at ? at : "-", at ? when : "-", 1e3 * s / last, b / last, at ? expected : "-" }' \
                "$dir/net-pattern/pattern-outer.dat")
            echo "$rate,\"$row\",$line" >>"$dir/net-pattern.csv"
            case $row in "synchronous powersgd"*) first=$(echo "$line" | cut -d , -f 2,5) ;; esac
            echo "$line,$first" | awk -F , -v row="$row" 'function beside(a, b) { return a + 0 && b + 0 ? sprintf("%.1fx", a / b) : "" }
                { printf "%-44s %8.1f %10d %6s %9.2f %7s %9.2f %7s\n", row, $3, $4, $1, $2, beside($6, $2), $5, beside($7, $5) }'
        done
        unset IFS
    done
    echo "beside: how many times as fast as synchronous powersgd:rank=4; $dir/net-pattern.csv"
    exit
fi

status=0
arguments=
if [ "$pairs" -gt 0 ]; then
    for k in $(seq "$pairs"); do arguments="$arguments --method advise --method none"; done
    arguments=${arguments% --method none} # the first run is uncompressed anyway
    for rate in $rates; do
        limit "$rate"
        train "$dir/net-$rate" $arguments >"$work/log" &
        child=$!
        under_way "pairs, $rate, $transport" || { cat "$work/log" "$work/err"; exit 1; }
        grep '^advised' "$work/log" | sed 's/.*uncompressed [^;]*;//' | sort | uniq -c | sed "s|^|$rate, $transport: advised|"
        awk -F , 'FNR > 1 { if ($1 == "none") plain = $11; else print $11 / plain }' \
            "$dir/net-$rate/runs.csv" | sort -n | awk -v what="$rate, $transport: advised step / uncompressed" '{ r[NR] = $1 }
            END { m = r[int((NR + 1) / 2)]; printf "%s: median of %d %.3f (%.3f .. %.3f)\n", what, NR, m, r[1], r[NR]; exit m > 1.03 }' \
            || status=1
    done
    exit $status
fi
echo "rate,method,step_ms,compute_ms,codec_ms,must_send,interface,overhead,steps_to_loss,seconds_to_loss,calculated,bytes,loss_at_the_end" >"$dir/net.csv"
rm -f "$dir/net-hung.txt"
alone=
[ $model = transformer ] || alone=--alone
for rate in $rates; do
    limit "$rate"
    echo "--- $rate, $transport"
    printf '%-30s %8s %8s %8s %10s %10s %8s %6s %6s %9s %7s %9s %7s %8s\n' method ms/step compute codec 'must send' interface over '' \
        steps 's to loss' faster 'by bytes' faster 'at end'
    none=
    target=
    [ $model = transformer ] || target=0.40
    mkdir -p "$dir/net-$rate"
    rm -f "$dir/net-$rate"/demo.csv
    for method in none $methods; do
        for try in 1 2; do
            result=0
            train "$dir/net-$rate/one" $alone --method "$method" >"$work/log" & # so that a signal is heard
            child=$!
            under_way "$method, $rate, $transport" || result=$?
            [ $result = 2 ] || break
            status=1
        done
        [ $result != 2 ] || { echo "$method, $rate, $transport: hung twice"; continue; }
        [ $result = 0 ] || { cat "$work/log" "$work/err"; exit 1; }
        [ -e "$dir/net-$rate/demo.csv" ] || head -n 1 "$dir/net-$rate/one/demo.csv" >"$dir/net-$rate/demo.csv"
        tail -n +2 "$dir/net-$rate/one/demo.csv" >>"$dir/net-$rate/demo.csv"
        [ -n "$target" ] || target=$(awk -F , -v half="$((steps / 2))" '$2 > half - 10 && $2 <= half { sum += $3 }
            END { printf "%.4f", sum / 10 }' "$dir/net-$rate/one/demo.csv")
        # Where the loss was that of the target, from every step; then what was sent, by the statistics, by the transport, by the interface.
        awk -F , -v rate="$rate" -v target="$target" 'function plain(s) { gsub(/"/, "", s); return s }
            function fields() { n = 0; while (match($0, /^("[^"]*"|[^,]*)(,|$)/)) {
                    f = substr($0, 1, RLENGTH); last = f !~ /,$/; sub(/,$/, "", f); v[++n] = plain(f)
                    $0 = substr($0, RLENGTH + 1); if (last || $0 == "") break } }
            FNR == 1 { file++; next }
            { fields() }
            file == 1 { s = v[2] + 0; loss[s] = v[3]; bytes[s] = v[4]; sum += v[3]; if (s > 10) sum -= loss[s - 10]
                if (s >= 10 && sum / 10 <= target && !at) { when = v[5]; at = s } }
            file == 2 { m = v[1]; must = v[4]; sent = v[7] + 0; same = v[3] / v[4]
                wrong = same < 0.995 || same > 1.005 || sent < must || sent > 1.096 * must
                share = at ? bytes[at] / at / (bytes[s] / s) : 1 # what a step brings until then, beside all steps
                link = rate == "none" ? 0 : 1 / (rate * (rate ~ /gbit/ ? 1e6 : 1e3)) # milliseconds a bit
                printf "%s,\"%s\",%.2f,%.2f,%.2f,%.0f,%.0f,%.3f,%s,%s,%s,%s,%.4f\n", rate, m, v[11], v[9], v[10], must, v[7],
                    v[7] / must - 1, (at ? at : "-"), (at ? when : "-"),
                    (at ? at * (v[9] + v[10] + v[5] * share * 8 * link) / 1000 : "-"), wrong ? "WRONG" : "ok", sum / 10 }' \
            "$dir/net-$rate/one/demo.csv" "$dir/net-$rate/one/runs.csv" >"$work/line"
        cat "$work/line" >>"$dir/net.csv"
        [ "$method" != none ] || none=$(cut -d , -f 10 "$work/line") none_by_bytes=$(cut -d , -f 11 "$work/line")
        awk -F '"' -v none="$none" -v by_bytes="$none_by_bytes" 'function times(all, part) {
              return part != "-" && all + 0 ? sprintf("%.2f", all / part) : "-" }
            function seconds(s) { return s == "-" ? s : sprintf("%.1f", s) }
            { split(substr($3, 2), f, ",")
              printf "%-30s %8s %8s %8s %10s %10s %7.1f%% %6s %6s %9s %7s %9s %7s %8s\n", $2, f[1], f[2], f[3], f[4], f[5], 100 * f[6],
                  f[10], f[7], seconds(f[8]), times(none, f[8]), seconds(f[9]), times(by_bytes, f[9]), f[11] }' \
            "$work/line"
        ! grep -q WRONG "$work/line" || status=1
    done
done

command -v gnuplot >/dev/null || { echo "no gnuplot: no picture (apt-get install gnuplot-nox)"; exit $status; }
{
    echo "set terminal svg size 1200,540 noenhanced font 'Helvetica,14' background rgb 'white'"
    echo "set output '$dir/net.svg'"
    echo "set datafile separator ','"
    echo "set border 3 lc rgb '#666666'; set tics nomirror; set grid lc rgb '#dddddd' lt 1 lw 1"
    [ $model = train ] && range='[0.3:1.5]' what='Fashion-MNIST' || range='[2:4]' what='a small GPT-2'
    echo "set logscale x; set xlabel 'seconds'; set yrange $range; set key top right samplen 2 opaque"
    echo "s = 0.0; smooth(step, loss) = (s = step == 1 ? loss : s + (loss - s) * 0.1)"
    echo "methods = 'none $methods'"
    i=1
    for color in 222222 d62728 ff9f1c 1f77b4 2ca02c 9467bd 8c564b 17becf e377c2; do
        echo "set linetype $i lc rgb '#$color' lw 2"
        i=$((i + 1))
    done
    set -- $rates
    echo "set multiplot layout 1,$# title '$what, 4 hosts: training loss over time'"
    for rate in "$@"; do
        file="$dir/net-$rate/demo.csv"
        echo "set title '$rate'; is(i) = strcol(1) eq word(methods, i)"
        echo "plot for [i=1:words(methods)] '$file' using (is(i) ? \$5 : NaN):(is(i) ? smooth(\$2, \$3) : NaN) \\"
        echo "    with lines lt i title word(methods, i), \\"
        echo "    $target with lines lc rgb '#999999' dt 2 notitle"
        echo "unset key"
    done
    echo "unset multiplot"
} >"$dir/net.gnuplot"
gnuplot "$dir/net.gnuplot"
echo "$dir/net.csv, $dir/net.svg"
exit $status
