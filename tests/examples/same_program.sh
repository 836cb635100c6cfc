#!/bin/sh
# Proves that train.c ends with the same parameters, bit for bit, over threads, sockets and each MPI that
# is named; also with sign in two shots. $1: the program. $2: the program built with MPI, without the
# MPI's name behind the dot. Then the names of the MPIs.
set -eu
train=$1 with_mpi=$2
shift 2
out=build/test/same
rm -rf $out
mkdir -p $out
export OPENBLAS_NUM_THREADS=1
common="--text gcomp.h --hidden 40,40 --steps 6 --method sign --method powersgd:rank=4 --no-pictures --aggregate two-shot"
port=$((5000 + $$ % 1600))
timeout 60 $train $common --transport threads --out $out/threads >/dev/null
timeout 60 $train $common --transport sockets --out $out/sockets >/dev/null
pids=
for rank in 1 2 3; do # each started by itself, as on machines of their own
    timeout 60 $train $common --transport sockets --rank $rank --root 127.0.0.1:$((port + 1600)) --out $out/other$rank >/dev/null &
    pids="$pids $!"
done
timeout 60 $train $common --transport sockets --rank 0 --root 127.0.0.1:$((port + 1600)) --out $out/ranks >/dev/null
for pid in $pids; do wait $pid; done
for mpi in "$@"; do
    case $mpi in
    openmpi) run="mpirun.openmpi --allow-run-as-root --oversubscribe" ;;
    mpich) run="mpiexec.mpich" ;;
    esac
    timeout 60 $run -n 4 $with_mpi.$mpi $common --in-order --out $out/$mpi >/dev/null
done
for each in threads sockets ranks "$@"; do
    cut -d , -f 1,14 $out/$each/runs.csv >$out/$each.parameters
    cmp $out/threads.parameters $out/$each.parameters || { echo "$each differs from threads"; exit 1; }
done
[ "$(sort -u -t , -k 2 $out/threads.parameters | wc -l)" = 4 ] || { echo "methods do not differ"; exit 1; }
# One of three dies: the others end with an error, long before the timeout.
for rank in 0 1 2; do
    $train --workers 3 --text gcomp.h --steps 1000000 --transport sockets --rank $rank \
        --root 127.0.0.1:$((port + 3200)) --out $out/dies >$out/dies$rank.out 2>$out/dies$rank.log &
    eval "p$rank=$!"
done
tries=0
until grep -q parameters $out/dies0.out 2>/dev/null || [ $tries = 300 ]; do # they have met
    sleep 0.1
    tries=$((tries + 1))
done
killed=$(date +%s)
kill -KILL $p2
for pid in $p0 $p1; do
    status=0
    wait $pid || status=$?
    [ $status = 1 ] || { echo "a survivor ended with status $status"; exit 1; }
done
[ $(($(date +%s) - killed)) -lt 30 ] || { echo "the survivors waited for their timeout of a minute"; exit 1; }
grep -q 'a communication callback failed' $out/dies0.log
