#!/bin/sh
# What examples/transformer/transformer.c promises for each optimizer: replicas that are equal bit for bit with 1, 2, 4 and 5 workers; a
# checkpoint in the middle, and the same bits behind it; a gradient that is not a number, which all workers skip together; the same
# bits over threads and sockets, and over each MPI that is named. $1: the program. $2: the program built with MPI, without the MPI's
# name behind the dot. Then the names of the MPIs.
set -eu
program=$1 with_mpi=${2:-}
[ $# -lt 2 ] || shift
shift
out=build/test/transformer
rm -rf $out
mkdir -p $out
export OPENBLAS_NUM_THREADS=1
small="--text gcomp.h --layers 1 --channels 32 --heads 2 --context 8 --batch 2 --steps 20 --bare"
fail() { echo "$*"; exit 1; }
run() { timeout 60 "$program" $small --out $out/files "$@"; } # the output has the line "validation ..."
line() { sed -n 's/^validation //p' "$1"; }
digest() { line "$1" | sed 's/.*, //'; }
same() { # what is compared, file, file
    [ -n "$(digest "$2")" ] && [ "$(digest "$2")" = "$(digest "$3")" ] || fail "$1: $(line "$2") | $(line "$3")"
}
tried=0
for method in adamw/none adamw/int:bits=4 adamw/powersgd:rank=4 adam1bit/ "adam1bit:refresh=0/none|sign" signum/ demo/; do
    refresh=
    case $method in adam1bit/) refresh="--refresh 5" ;; esac
    for world in 1 2 4 5; do
        run --method "$method" --workers $world $refresh >$out/all || fail "$method, $world workers: status $?"
        line $out/all | grep -q ' 0 steps skipped; replicas identical, ' || fail "$method, $world workers: $(line $out/all)"
        [ $world = 4 ] && cp $out/all $out/four
        run --method "$method" --workers $world $refresh --checkpoint $out/saved --save-at 9 >$out/saving
        same "$method, $world workers, saving" $out/all $out/saving
        run --method "$method" --workers $world $refresh --checkpoint $out/saved >$out/resumed
        same "$method, $world workers, resumed" $out/all $out/resumed
        run --method "$method" --workers $world $refresh --nan 7 >$out/nan 2>$out/nan.log
        line $out/nan | grep -q ' 1 steps skipped; replicas identical, ' || fail "$method, $world workers, nan: $(line $out/nan)"
        [ "$(digest $out/nan)" != "$(digest $out/all)" ] || fail "$method, $world workers: the skipped step was not skipped"
        grep -q 'NaN or Inf' $out/nan.log || fail "$method: $(cat $out/nan.log)"
        tried=$((tried + 1))
    done
    run --method "$method" $refresh --transport sockets >$out/sockets
    same "$method over sockets" $out/four $out/sockets
    for mpi in "$@"; do
        case $mpi in
        openmpi) ranks="mpirun.openmpi --allow-run-as-root --oversubscribe" ;;
        mpich) ranks="mpiexec.mpich" ;;
        esac
        timeout 60 $ranks -n 4 "$with_mpi.$mpi" $small --out $out/files --method "$method" $refresh --in-order >$out/$mpi
        same "$method over $mpi" $out/four $out/$mpi
    done
    run --method "$method" $refresh --gradients bf16 >$out/half
    line $out/half | grep -q 'replicas identical' || fail "$method, bf16: $(line $out/half)"
    [ "$(digest $out/half)" != "$(digest $out/four)" ] || fail "$method: bf16 gradients have the bits of fp32"
done
[ $tried -ge 28 ] || fail "only $tried runs"
# It learns: far below the loss of a text whose characters are independent (the files of this repository: about 3.1).
timeout 120 "$program" --text gcomp.h --layers 1 --channels 64 --context 32 --steps 300 --rate 0.01 --bare --out $out/files >$out/learns
line $out/learns | awk '{ sub(/,/, "", $2); exit !($2 < 2.7) }' || fail "it does not learn: $(line $out/learns)"
run --method advise >$out/advised # no link is slow enough here to be sure of a codec, but none that Adam suffers from is there
grep -q '^advised: ' $out/advised || fail "$(cat $out/advised)"
! grep -q 'sign\|topk\|powersgd' $out/advised || fail "$(cat $out/advised)"
line $out/advised | grep -q 'replicas identical' || fail "advised: $(line $out/advised)"
# Errors: a checkpoint of another optimizer, one that was cut off, none at all; options that are wrong.
refused() { # text arguments...
    text=$1
    shift
    run "$@" >$out/bad 2>&1 && fail "not refused: $*"
    grep -q -e "$text" $out/bad || fail "$*: $(cat $out/bad)"
}
for wrong in sgd/none adam1bit:refesh=3/ signum:rate=0/vote signum/advise; do refused "--method.*see .*--help" --method $wrong; done
run --checkpoint $out/saved --save-at 9 >/dev/null
refused 'no checkpoint of this model' --optimizer signum --checkpoint $out/saved
refused 'no checkpoint of this model' --checkpoint $out/saved --channels 16
refused 'the saves are of\|no checkpoint' --method int:bits=4 --checkpoint $out/saved
refused 'No such file' --checkpoint $out/missing
for rank in 0 1 2 3; do head -c 20000 $out/saved.$rank >$out/cut.$rank; done
refused 'no checkpoint of this model' --checkpoint $out/cut
refused 'cannot be read' --text $out/missing
for wrong in "--heads 3" "--method nobody/sign" "--optimizer sgd" "--steps 0" "--save-at 3" "--rate 0" "--gradients fp16" \
    "--optimizer signum --method adamw/none" "--layers 99" "--refresh x"; do
    # shellcheck disable=SC2086
    refused "see .*--help" $wrong
done
refused 'codec\|method' --method nobody
