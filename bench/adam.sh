#!/bin/sh
# Which codecs and optimizers suit Adam? Trains a small GPT-2 with each, at two learning rates and with three seeds, two trainings at
# a time, and compares the loss of a validation text with that of uncompressed AdamW at its best rate.
#
#   bench/adam.sh [--quick] [--out DIR] [--jobs N] [--recipes "RECIPE RECIPE ..."] [--rates "R R"] [--seeds "S S S"] [ARGUMENT...]
#
# A recipe is a codec, which AdamW follows, or OPTIMIZER/CODEC; see examples/transformer/transformer_options.h. Arguments go to build/transformer:
# "--layers 4 --channels 128 --context 64" is its larger model. --quick: one rate, one seed, fewer steps; it has no bars.
# Prints a table, each recipe at its better rate, means over the seeds, beside its bar; the status is 1 if a bar was missed. Writes
# DIR/adam.csv (a line a run), DIR/adam-curves.csv and DIR/adam.svg (loss against steps, and against bytes). Trainings that DIR has
# from an earlier call, with the same program and arguments, are not repeated.
set -eu
cd "$(dirname "$0")/.."
dir=build
jobs=2
recipes="none bf16 int:bits=4 qsgd eden:bits=2 eden:bits=1 powersgd:rank=auto powersgd:rank=4 sign topk:density=0.01 \
adam1bit/qsgd|sign adam1bit:refresh=0/none|sign signum/vote demo/dct:top=32 demo/dct:top=32+bf16 demo/dct:top=32+int:bits=4"
rates="0.003 0.006"
seeds="1 2 3"
model="--layers 2 --channels 64 --context 32 --batch 4 --steps 1000"
quick=
while [ $# -gt 0 ]; do
    case $1 in
    --help | -h) sed -n 's/^#   //p' "$0" | sed '1s/^/usage: /'; exit ;;
    --quick) quick=1; shift; continue ;;
    --run) break ;;
    --out | --jobs | --recipes | --rates | --seeds | --steps | --layers | --channels | --heads | --context | --batch | --text | \
        --gradients | --refresh | --sign-rate | --workers | --aggregate | --transport)
        [ -n "${2:-}" ] || { echo "$0: '$1' needs a value" >&2; exit 2; } ;;
    *) echo "$0: there is no argument '$1'; see $0 --help" >&2; exit 2 ;;
    esac
    case $1 in
    --out) dir=$2 ;;
    --jobs) jobs=$2 ;;
    --recipes) recipes=$2 ;;
    --rates) rates=$2 ;;
    --seeds) seeds=$2 ;;
    *) model="$model $1 $2" ;;
    esac
    shift 2
done
if [ -n "$quick" ]; then
    seeds=1
    rates=0.006
    model="$model --steps 500"
fi

recipes=$(echo "$recipes" | tr , ';') # commas separate columns of files
without_quotes() { sed 's/^"[^"]*"/codec/' "$@"; } # of a codec with commas, in files of the trainer

# ---------------- one training: --run DIR TOTAL RECIPE RATE SEED ARGUMENT...
if [ "${1:-}" = --run ]; then
    dir=$2 total=$3 recipe=$4 rate=$5 seed=$6
    shift 6
    name=$(echo "$recipe-$rate-$seed" | tr '/|:=;' '_____')
    out=$dir/adam/$name
    mkdir -p "$out"
    if [ "$(cat "$out/arguments" 2>/dev/null)" != "$*" ] || [ build/transformer -nt "$out/runs.csv" ]; then
        rm -f "$out/arguments"
        OPENBLAS_NUM_THREADS=1 build/transformer --bare --method "$(echo "$recipe" | tr ';' ,)" --rate "$rate" --seed "$seed" --out "$out" "$@" \
            >"$out/log" 2>&1 || { echo "FAILED $recipe $rate $seed:"; cat "$out/log"; exit 255; }
        echo "$*" >"$out/arguments"
    fi
    # recipe,rate,seed,loss,sent a step,sent a step in the last tenth,received a step,computation ms,codec ms
    { without_quotes "$out/demo.csv" | tail -n 1 && without_quotes "$out/demo.csv" | tail -n +2 | tail -n "$(($(wc -l <"$out/demo.csv") / 10))" | head -n 1
      without_quotes "$out/runs.csv" | tail -n 1; } | awk -F , -v what="$recipe,$rate,$seed" '
        NR == 1 { last = $2; sent = $4 } NR == 2 { tenth = (sent - $4) / (last - $2) }
        NR == 3 { printf "%s,%s,%.0f,%.0f,%.0f,%s,%s\n", what, $12, $4, tenth, $5, $9, $10 }' >"$out/line"
    done=$(ls "$dir"/adam/*/line | wc -l)
    loss=$(cut -d , -f 4 "$out/line")
    if [ -t 1 ]; then
        bar=$(printf '%*s' $((30 * done / total)) '' | tr ' ' '#')
        printf '\r\033[K[%-30s] %d of %d: %s, rate %s, seed %s: loss %s' "$bar" "$done" "$total" "$recipe" "$rate" "$seed" "$loss"
    else
        echo "$done of $total: $recipe, rate $rate, seed $seed: loss $loss"
    fi
    exit 0
fi

# ---------------- all of them
make -s build/transformer
mkdir -p "$dir/adam"
rm -f "$dir"/adam/*/line
total=0
for recipe in $recipes; do for rate in $rates; do for seed in $seeds; do total=$((total + 1)); done; done; done
for seed in $seeds; do for recipe in $recipes; do for rate in $rates; do
    printf '%s\0%s\0%s\0' "$recipe" "$rate" "$seed"
done; done; done >"$dir/adam/queue"
# shellcheck disable=SC2086
xargs -0 -P "$jobs" -n 3 sh -c 'dir=$1 total=$2; shift 2; n=$(($# - 3)); model=; while [ $n -gt 0 ]; do model="$model $1"; shift
    n=$((n - 1)); done; exec sh bench/adam.sh --run "$dir" $total "$@" $model' sh "$dir" $total $model <"$dir/adam/queue"
[ ! -t 1 ] || printf '\r\033[K'
echo "recipe,rate,seed,loss,sent,sent_at_the_end,received,compute_ms,codec_ms" >"$dir/adam.csv"
cat "$dir"/adam/*/line >>"$dir/adam.csv"

# ---------------- the table. A bar: percent above AdamW, ratio over the run, ratio at its end
status=0
awk -F , -v recipes="$recipes" -v quick="$quick" -v best="$dir/adam/best" '
    BEGIN { bars = "bf16 1 1 1;int:bits=4 1 1 1;qsgd 1 1 1;eden:bits=2 1 1 1;eden:bits=1 2 1 1;powersgd:rank=auto 1.5 5 5;" \
                   "adam1bit/qsgd|sign 2 5 20;demo/dct:top=32+bf16 10 40 40"
            n = split(bars, b, ";")
            for (i = 1; i <= n; i++) { split(b[i], f, " "); most[f[1]] = f[2]; ratio[f[1]] = f[3]; end[f[1]] = f[4] } }
    FNR == 1 { next }
    { k = $1 "," $2; rates[$2] = 1; count[k]++; loss[k] += $4; sent[k] += $5; tail[k] += $6; got[k] += $7; codec[k] += $9
      if ($4 != $4 + 0) bad[k] = 1
      compute += $8; lines++ }
    END {
        n = split(recipes, r, " ")
        compute /= lines
        for (i = 1; i <= n; i++) {
            at = ""
            for (rate in rates) {
                k = r[i] "," rate
                if (!count[k]) continue
                if (!bad[k] && (at == "" || loss[k] / count[k] < loss[at] / count[at])) at = k
            }
            of[r[i]] = at
            if (at != "") print at >best
        }
        plain = of["none"]
        printf "%-20s %6s %8s %8s %8s %8s %8s %9s %8s\n", "", "better", "times fewer bytes", "", "loss", "above", "codec", "ms at", "ms at"
        printf "%-20s %6s %8s %8s %8s %8s %8s %9s %8s\n", "recipe", "rate", "the run", "its end", "", "AdamW", "ms/step", "100 Mbit", "1 Gbit"
        for (i = 1; i <= n; i++) {
            at = of[r[i]]
            name = r[i]
            gsub(";", ",", name)
            if (at == "") {
                barred = r[i] in most
                missed += barred
                printf "%-20s diverged at each rate%s\n", name, barred ? "  MISSED" : ""
                continue
            }
            c = count[at]; split(at, f, ",")
            l = loss[at] / c; above = plain == "" ? 0 : 100 * (l / (loss[plain] / count[plain]) - 1)
            x = plain == "" ? 1 : sent[plain] / count[plain] / (sent[at] / c)
            y = plain == "" ? 1 : tail[plain] / count[plain] / (tail[at] / c)
            ms = compute + codec[at] / c; g = got[at] / c
            printf "%-20s %6s %8.1f %8.1f %8.4f %+7.2f%% %8.2f %9.2f %8.2f", name, f[2], x, y, l, above, codec[at] / c,
                ms + g * 8 / 1e5, ms + g * 8 / 1e6
            if (r[i] in most && !quick) {
                ok = above <= most[r[i]] && x >= ratio[r[i]] && y >= end[r[i]]
                missed += !ok
                and = end[r[i]] > 1 ? sprintf("; at least %s, %s times", ratio[r[i]], end[r[i]]) : ""
                printf "  %s (at most %s %%%s)", ok ? "ok" : "MISSED", most[r[i]], and
            }
            printf "\n"
        }
        printf "\nA step = %.2f ms of computation + encode and commit (both as processor time of one worker)\n", compute
        printf "+ bytes that come in / link. An all-reduce of b bytes sends 2 b (W - 1) / W, a gather (W - 1) b.\n"
        exit missed != 0
    }' "$dir/adam.csv" || status=1

# ---------------- the picture: means over the seeds, exponential means of 50 steps
echo "recipe,step,loss,bytes" >"$dir/adam-curves.csv"
while IFS=, read -r recipe rate; do
    name=$(echo "$recipe-$rate" | tr '/|:=;' '_____')
    # shellcheck disable=SC2046
    without_quotes $(for seed in $seeds; do echo "$dir/adam/$name-$seed/demo.csv"; done) |
        awk -F , -v recipe="$recipe" '$2 == "step" { files++; next } { loss[$2] += $3; sent[$2] += $4; if ($2 > last) last = $2 }
        END { for (s = 1; s <= last; s++) { l = loss[s] / files; e = s == 1 ? l : e + (l - e) * 0.02
                  if (s % (int(last / 100) + 1) == 0 || s == last) printf "%s,%d,%.5g,%.0f\n", recipe, s, e, sent[s] / files } }' \
        >>"$dir/adam-curves.csv"
done <"$dir/adam/best"
command -v gnuplot >/dev/null || { echo "no gnuplot: no picture (apt-get install gnuplot-nox)"; exit $status; }
cat >"$dir/adam.gnuplot" <<GNUPLOT
set terminal svg size 1400,560 noenhanced font 'Helvetica,14' background rgb 'white'
set output '$dir/adam.svg'
set datafile separator ','
set border 3 lc rgb '#666666'; set tics nomirror; set grid lc rgb '#dddddd' lt 1 lw 1
recipes = '$(cut -d , -f 1 "$dir/adam/best" | tr '\n' ' ')'
colors = '#222222 #d62728 #ff9f1c #1f77b4 #2ca02c #9467bd #8c564b #17becf #e377c2'
do for [i=1:words(recipes)] {
    dashes = (i - 1) / 9 + 1
    set linetype i lc rgb word(colors, (i - 1) % 9 + 1) lw 2 dt dashes
}
is(i) = strcol(1) eq word(recipes, i)
titles = '$(cut -d , -f 1 "$dir/adam/best" | tr ';\n' ', ')'
name(i) = word(recipes, i) eq 'none' ? 'AdamW, uncompressed' : word(titles, i)
stats '$dir/adam-curves.csv' using 3 every ::1 nooutput
set yrange [STATS_min * 0.98 : STATS_min * 1.75]
set multiplot layout 1,2 title 'a small GPT-2, 4 workers: training loss, exponential mean of 50 steps'
set lmargin at screen 0.06; set rmargin at screen 0.38
set xlabel 'step'; set ylabel 'loss'; unset key
plot for [i=1:words(recipes)] '$dir/adam-curves.csv' every ::1 using (is(i) ? \$2 : NaN):3 with lines lt i notitle
set lmargin at screen 0.43; set rmargin at screen 0.76; set key at screen 0.995, 0.93 right top samplen 2 font ',12'
set logscale x; set xlabel 'sent by a worker'; set ylabel ' '
set xtics ('10 kB' 1e4, '100 kB' 1e5, '1 MB' 1e6, '10 MB' 1e7, '100 MB' 1e8, '1 GB' 1e9, '10 GB' 1e10)
plot for [i=1:words(recipes)] '$dir/adam-curves.csv' every ::1 using (is(i) ? \$4 : NaN):3 with lines lt i title name(i)
unset multiplot
GNUPLOT
gnuplot "$dir/adam.gnuplot"
echo "$dir/adam.csv, $dir/adam.svg"
exit $status
