/* gcomp.h - v0.1 - gradient compression for data-parallel training, in one C header. Licence: MIT, at the end of the file.

   Workers that train one model together send each other a gradient every step. This library makes what they send 2 to
   1000 times smaller, remembers what it did not send (error feedback), and puts the mean over all workers back into the
   gradient, over any transport: it asks for an allreduce and an allgather, and the user supplies them.

       #define GCOMP_IMPLEMENTATION            // in exactly one C or C++ file
       #include "gcomp.h"

       gcomp *gc;
       gcomp_desc desc = {0};
       desc.codec = "topk:density=0.01";       // the largest 1 % of each tensor
       desc.comm.rank = rank;
       desc.comm.world = world;
       desc.comm.allreduce = my_allreduce;     // sum in place
       desc.comm.allgather = my_allgather;     // everyone's bytes, in rank order
       gcomp_tensor weights = {0};
       weights.name = "fc1.weight";
       weights.rows = 784;
       weights.cols = 1152;
       if (gcomp_open(&gc, &desc) || gcomp_add_tensor(gc, &weights)) return 1;
       while (failures < 10 && backward(grads)) {          // int failures = 0; float *grads[1]
           gcomp_result result = gcomp_exchange(gc, grads, NULL);
           if (result == GCOMP_OK) {
               optimizer_step(grads);                      // grads[0] is now the mean over all workers
               failures = 0;
               continue;
           }
           fprintf(stderr, "rank %d: %s\n", rank, gcomp_error(gc));   // nothing has changed on this worker
           failures = gcomp_result_class(result) == GCOMP_CLASS_RETRY ? failures + 1 : 10;
       }
*/

/* ------------------------------------------------------------------------------------------------
   >>contents - search for the tag to get there

   >>manual      what it does and does not; step by step; contracts; what goes wrong; wire format
   >>config      macros that a user may set
   >>api         result codes, types, functions: codec, tensors, step, exchange

   >>platform    compiler, instruction sets, exact arithmetic, floating-point modes
   >>base        sizes, little-endian words, text, numbers as text
   >>random      numbers as a function of (seed, step, tensor, purpose, worker, element)
   >>rows        what a method is to the rest of the library: the row of the methods table
   >>vectors     16 floats, on scalar, AVX2, AVX-512 and NEON; the header includes itself for each
   >>kernels     one body for every instruction set: checksum, sums, drivers of block methods
   >>levels      entropy codes of levels: a second layer behind the drivers of block methods
   >>bits        bit streams; the index coder of sparse methods
   >>codecs      one chapter a method (">>method name:"), what they share (">>hadamard:", ">>centroids:"), the methods table
   >>dispatch    which instruction set runs
   >>text        codecs as text: parsed and printed
   >>wire        the payload header, check, and the public functions of the codec layer
   >>schedules   who chooses among the codecs of a list: warm-up, Accordion, budgets of bytes and of errors
   >>tensors     codecs with their memory: residual, warm start
   >>shards      the mean made by ranges of elements, each added by one worker for all
   >>step        the mean over all workers as a state machine
   >>exchange    the step driven through callbacks
   >>checkpoint  all state as bytes, and back
   >>workers     another set of workers: they leave, join, and keep what was not sent
   >>statistics  what was sent, how long it took, how much was lost
   >>rehearsal   what codecs and collectives cost, measured
   >>advice      does compressing pay, for which tensor, with which codec?
   >>licence
   ------------------------------------------------------------------------------------------------ */

#if !defined(GCOMP__PASS) /* the header includes itself once per instruction set, see >>vectors */

/* ------------------------------------------------------------------------------------------------
   >>manual

   DOES
     - Compress float gradients on the CPU at the speed of memory, with AVX2, AVX-512 or NEON where the machine has them.
     - Keep the residual: what a step did not send is added to the next gradient, so that nothing is lost.
     - Give the same bits on every instruction set, compiler, optimisation level, byte order and number of threads.
     - Treat every payload as hostile: checking and decoding any bytes stays inside the buffers given.
     - Leave no trace of a step that failed: gradients and residuals are as they were.

   DOES NOT
     - Send anything itself, start threads, print, allocate behind the allocator you give, or keep globals.
     - Detect deliberate change of payloads: the checksum finds accidents. Use an authenticated transport for that.
     - Compress what is not a gradient: see "what goes wrong" below.

   WORDS
     method     1-bit sign, top-k, ...            codec      a method with its parameters, as text "topk:density=0.01"
     payload    the bytes of one compressed tensor, header included
     residual   p - decode(payload), kept for the next step; p = scale * gradient + residual
     rank       number of this worker, 0 .. world - 1
     world      number of workers                 step       one exchange of all tensors
     round      one collective of a step; a method has one to three: payloads gathered, floats or integers summed, the largest
     shard      the part of a payload that falls into the range of elements which one worker, its owner, adds for all

   LAYERS, each usable alone
     codec      bytes for a vector, and back. Pure functions, no state, no allocation: gcomp_encode, gcomp_decode, ...
     tensors    a codec with its memory for each tensor; any transport, also one-way: gcomp_compress, gcomp_commit
     step       the mean over all workers as a state machine that asks for communication: gcomp_step_*
     exchange   the same in one call, through callbacks: gcomp_exchange

   STEP BY STEP
     1. gcomp_open with a codec, rank, world and callbacks; equal on all workers but for the rank.
     2. gcomp_add_tensor for each tensor, in the same order on all workers. Vectors (cols 0 or 1) and tensors of fewer than
        desc.min_elements elements travel uncompressed unless they name a codec themselves; a vector that is the only tensor
        has the codec of desc. gcomp_describe says what each tensor has, why, and how many bytes travel: print it.
     3. Each step: gcomp_exchange. Afterwards each gradient holds the mean over the workers, the same on all.
     4. gcomp_close.

   ENCODE READS, COMMIT WRITES
     Encoding reads the gradient and the residual and writes neither. Only when the payloads of all workers have arrived and
     been found valid does the commit write the mean into the gradient and p - decode(own payload) into the residual. The
     gradient must hold the same bits from gcomp_step_ready to the commit. A step that fails can be tried again, with the
     same bits.

   WORKERS AGREE, OR SAY SO
     After encoding, the workers gather one frame of 64 bytes each: rank, world, step, digests of tensors, codecs, seed and
     options, status, byte count. With buckets, one before each. If one frame is bad, all stop there: GCOMP_NOT_FINITE (some
     gradient is NaN or Inf: all skip this step together, as with loss scaling), GCOMP_PEER_FAILED, or GCOMP_MISMATCH with a
     sentence that names the worker and the difference (gcomp_error). A failure that only one worker could see is told in the
     frame of the next bucket, and the step can be repeated; in the last one it leaves that worker a step behind, and the next
     step's frame says so on all (GCOMP_OUT_OF_STEP). A bad shard, or a bad length of one, is seen by the owner of its range
     alone: it tells all before anybody waits for what depends on it (GCOMP_PEER_FAILED), and the step can be repeated.
     A worker with an error of its own (no memory, no gradients, a callback that is missing) still
     sends its frame: it gets its error, the others GCOMP_PEER_FAILED. The sizes of what follows come
     from frames and totals. If one of these arrives damaged at a worker, this worker cannot go on,
     while the others may: GCOMP_CALLBACK_FAILED, as if the transport had reported it.

   WHEN A STEP FAILS
     Nothing has changed on this worker. gcomp_result_class says what to do next, gcomp_error why:
       for (failures = 0; backward(grads);) {
           result = gcomp_exchange(gc, grads, &step);
           switch (gcomp_result_class(result)) {
           case GCOMP_CLASS_OK:            optimizer_step(grads); failures = 0; continue;
           case GCOMP_CLASS_RETRY:         break;
           case GCOMP_CLASS_RESYNCHRONISE: if (!resynchronise(gc)) break; return failed(gcomp_error(gc));
           case GCOMP_CLASS_FATAL:         return failed(gcomp_error(gc));
           }
           if (++failures == 10) return failed(gcomp_error(gc));
       }
     RETRY          this worker takes part in the next step, with this gradient or another: no worker waits for another then.
                    If the others have gone on without it, that step says so on all. Limit the failures in a row: a gradient
                    that is always NaN is an error too.
     RESYNCHRONISE  workers may hold different weights. GCOMP_OUT_OF_STEP and GCOMP_DIVERGED come out on all workers: all take
                    the weights, the optimizer's state and gcomp_step_number of one worker, and call gcomp_restart with that
                    number; or all load a checkpoint. After GCOMP_CALLBACK_FAILED the transport may be in the midst of a
                    collective: close it, so that the others see it too, connect those that are left, gcomp_regroup, then the
                    same. Where nothing can be repaired: stop.
     FATAL          the program or its configuration is wrong, and no repetition helps. Stop; the others see the transport fail.
     examples/gcomp_recover.h does all this over any gcomp_comm; examples/train.c uses it.

   SUMS OF INTEGERS
     intsum adds the codes of all workers inside allreduce: exact, in any order, also on switches. allreduce must be able to sum
     the integers, and comm.allreduce_dtypes must say so: else the codec is refused when it is named (GCOMP_MISSING_CALLBACK).
     bits=8 leaves floor(127 / world) levels a worker; bits=16 is for more than a few workers.

   MANY WORKERS
     What a worker receives in a gather grows with their number. For sparse payloads comm.alltoallv helps: each worker adds a
     range of the elements for all, and gets about k elements for it; the sums come back sparse, or dense where that is shorter.
     The bits are those of the gather; desc.aggregate says when. Values travel as floats in both directions. topk:global=1
     (gTop-k) applies only the k largest elements of the mean, so that no more come back either; what a worker sent for other
     places stays in its residual. Without alltoallv it gathers, with the same bits; outside of steps it is topk. Who drives the
     step and can carry out GCOMP_ALLTOALL says so with GCOMP_AGGREGATE_SHARDS. blocktopk gathers always.
     For the others there is GCOMP_AGGREGATE_TWO_SHOT. The elements are cut into a range a worker. For W workers, C the codec:
       each worker w sends C(p_w) of each range to its owner o, with a scale of its own where the codec has one a tensor
       the owner makes q = (p_o + sum of C(p_w) of the others) / W; all gather C(q), which is the mean
       residual: e_w <- p_w - C(p_w); of the own range e_o <- W (q - C(q)), as a part of p_o counts 1 / W
     So one residual serves both, and sum of e / world is all that was not sent, as without it: whatever holds for residuals
     holds for this form. Without feedback e is 0; what is unbiased stays so, with the noise of both. Of vote the owner adds its
     vote too: the bits of the gather. It suits codecs whose error is small or kept: sign, onebit, int, fp8, mx, fp16, qsgd, eden;
     hardly those with a fixed unit (twobit:threshold=, threshold1), as a mean is smaller than that. Tensors of fewer than
     256 elements a worker are gathered, and scales that are found together (terngrad:share=1). AUTO never quantises twice.

   TWO LEVELS
     Workers of one machine reach each other faster than those of others, and need no compression among them. With desc.node, the
     transport among the workers of a machine (allreduce, allgather), desc.comm is that between machines: world is the number of
     machines, rank the number of this one, the same for all its workers. gcomp_exchange then sums the gradients of a machine,
     uncompressed; its first worker (node.rank 0) exchanges their mean with the other machines through comm, whose callbacks the
     others never call; and all get the mean over the machines. Only first workers keep residuals, save and load them; the others
     go on behind a load with gcomp_restart and its step. If machines have different numbers of workers, pass gcomp_step.samples
     and batch: the samples of this worker and those of all workers of all machines (of equal batches: 1 and all workers).
     gcomp_step_begin is refused: a step is gcomp_exchange.
     In a step the workers of a machine add up their gradients and tell each other how that went;
     the first worker exchanges the mean and commits; a last sum brings the mean to the others.
     What fails on one worker before the commit fails on all workers of its machine, and on all
     other machines, as without levels. The last sum cannot fail for the first worker, which has its
     mean. Another worker for which it fails keeps its gradients and is a step behind: the next
     step's frame says so on all (GCOMP_OUT_OF_STEP). A step that a callback leaves by longjmp or by
     an exception is not committed, unless the first worker leaves it in the last sum.

   OVERLAP
     While the backward pass makes the gradients of the first layers, those of the last ones can be on their way.
     desc.bucket_bytes cuts the tensors, from the last one on, into buckets that are sent one after the other, each as soon as its
     tensors are ready: a few a step, since each has its frame and its collectives. The bits are those of one bucket, but where
     floats are not added in the order of ranks: in a ring that order depends on the place, and so does the rounding.
     With comm.start, test and wait (non-blocking collectives of MPI: examples/gcomp_mpi.h, examples/overlap.c):
       gcomp_step_begin; for each layer, the last first: its gradient, gcomp_step_ready, gcomp_step_progress; gcomp_step_finish
     progress never waits. Call it often, also within a layer, where the transport moves nothing by itself. An event loop does the
     same without these callbacks: between layers gcomp_step_next, until it says WAIT, and gcomp_step_done. The commit is one, at
     the end: a step that fails in any bucket changes nothing. Where that saves memory, the mean of each
     bucket is made beside the gradients as soon as its payloads have arrived (MEMORY): the bits are the
     same.

   CHECKPOINT, AND WORKERS THAT COME AND GO
     Residuals, momenta and warm starts belong to the training as weights do: gcomp_save on all workers when the weights are
     saved, gcomp_load on all in objects opened alike. The steps that follow have the same bits as without the break.
     What the workers have not sent yet reaches the weights as the mean of their residuals, sum of e / world. Whatever happens to
     the workers keeps that mean. Another number of them, W, loads the saves of all V: each takes the mean of the V residuals.
     While training goes on, between two steps:
       one leaves    it calls gcomp_save and sends the bytes to any other, which calls gcomp_take_over: e_j <- e_j + e_i
       all that stay call gcomp_regroup with the new rank, world and callbacks: e <- e * new world / old world
       one joins     it opens an object with the new ones, and calls gcomp_join with the save of any other: e = 0, the step's
                     number and warm starts are the other's. It also needs the weights, and the optimizer's state.
     What a worker that is lost had not sent is lost with it; the others regroup.
     With desc.node these are the first workers of machines. All workers of all machines regroup; the
     others of a machine that joins go on with gcomp_restart and the step's number. Where workers of
     one machine leave or join, those of that machine call gcomp_regroup_machines. If the first one
     leaves, it saves, and the new first one loads that; then machines may leave or join.
     With a schedule all keep the codecs they have; what it measures is in the save of rank 0. Where another worker becomes
     rank 0 it measures anew: it does not judge by an epoch or a period whose beginning it has not seen.

   DOES COMPRESSING PAY?
     gcomp_advise says it for each tensor, from what the candidates cost on this machine and what the link carries; on a fast
     link the answer is no. It expects a step that encodes, communicates and commits one after the other, and does not know how
     much accuracy a codec costs: choose the candidates for that.

   VOTES
     The mean of vote payloads is +1 or -1, what most workers say: a learning rate for it is Adam-sized. Tensors that travel
     uncompressed beside it have real means: give them a learning rate of their own, or set compress_vectors and min_elements.
     Signum is vote fed with momentum: each worker keeps m <- beta * m + (1 - beta) * gradient, exchanges a copy of m, and steps
     x <- x - rate * vote.

   MOMENTUM
     dgc keeps the optimizer's momentum itself, with that of what was not sent: step its tensors with plain SGD, momentum 0, or it
     counts twice. Tensors that travel uncompressed beside it keep the optimizer's. In its first epochs (warmup=4) it sends more,
     down from a quarter: say the epoch in gcomp_step, or set warmup=0. It clips before it accumulates, tensor by tensor: clip= is
     the norm of the mean, and a worker's gradient is made no longer than clip * sqrt(world), since independent noise makes the
     mean of as many gradients shorter by sqrt(world).
     Weight decay belongs behind the exchange. Masking takes the momentum of elements that are sent often: nesterov=1, or
     masking=0, make up for it (make dgc). fetch keeps momentum too: the same holds. Its memory is two tables, the same on all
     workers, so that any of them may be away for a step, with zeros as its gradient; a worker that joins late needs them.
     powersgd without a momentum of its own leaves it to the optimizer, after the exchange: gcomp_momentum_step is that of its
     paper, any other will do. With powersgd:momentum=0.9 each worker's momentum comes before its feedback: then plain SGD.

   LEARNING RATES THAT CHANGE
     With error feedback, what a step does not send waits in the residual, and is applied with the learning rate of the step that
     sends it: too small where the rate falls, too large in a warm-up. For every codec that keeps a residual, and the more the
     longer it waits (topk and dgc at 0.1 %: a thousand steps), pass the rate as gcomp_step.scale and step SGD with rate 1: then
     sum of what is sent + residual = sum of rate * gradient. Thresholds (strom, twobit, threshold1) are in that unit then.
     Not with optimizers that divide by the size of gradients, as Adam: the rate stays theirs.

   PARAMETERS of codecs, and what they are where they are not given; block: a power of two of elements that share a scale, 16 to
   65536, or "tensor"; density: 1e-9 to 1; 0 and 1: no and yes; others in parentheses.
     sign signnorm onebit   block=1024
     twobit                 threshold=0.5 (1e-22 to 1e22; auto: of least error), rate=0 (with auto: reached by such a share)
     threshold1             threshold=0 (to 1e22)
     terngrad               clip=2.5 (sigma; 0: none), block=tensor, code=packed, share=0 (1: all workers take
                            the largest scale of all and clip there; of packed codes, without blocks)
     qsgd                   levels=7 (1 to 32767), norm=max (l2), bucket=512 (as block), code=packed
     naturaldither          levels=7 (1 to 100), norm=max (l2), bucket=512 (as block), code=packed
     int                    bits=8 (4, 2), block=256 (with 4 and 2 bits 128), rounding=nearest (stochastic),
                            range=symmetric (affine), code=packed
       code                 packed, elias, rice: how levels are coded, see WIRE FORMAT; auto: as is shortest
     fp8                    format=e4m3 (e5m2), block=256
     mx                     format=e2m1 (e4m3, e5m2, int8, e2m3, e3m2)
     eden                   bits=1 (2, 3, 4), block=4096 (64 to 65536), feedback=0 (1: keeps a
                            residual, with the scale of least error instead of the unbiased one)
     topk                   density=0.01, global=0 (see MANY WORKERS)
     sampledtopk dryden     density=0.01
     wangni                 density=0.02
     blocktopk              density=0.01, block=256 (elements sent together; no tensor)
     strom                  threshold=0.01 (1e-20 to 1e20), send=quantum (value)
     adacomp                bin=500 (1 to 65536), send=mean (value)
     dgc                    density=0.001, momentum=0.9 (below 1), nesterov=0, clip=0 (L2 norm, see MOMENTUM), masking=1,
                            warmup=4 (epochs)
     randomk randomblock    density=0.01, unbiased=0
     sketch                 density=0.001, rows=5 (1, 3, 7), columns=auto (16 to 2^28), candidates=20 (1 to 64, times k)
     fetch                  density=0.001, rows=5 (1, 3, 7), columns=auto (16 to 2^28), momentum=0.9 (below 1), zeroing=1
     powersgd               rank=4 (1 to 64), alternate=0, momentum=0 (below 1)
     intsum                 bits=8 (16, 32), rounding=stochastic (nearest)
     none fp16 bf16 vote natural nonzero   have none

   SCHEDULES
     desc.codec may be a list, from most bytes to least, and desc.schedule says who chooses from it, for all tensors that name no
     codec; a tensor may bring a list of the same length. Rank 0 decides; all workers change in the same step, the one behind the
     step whose frame says so. Residuals stay, powersgd keeps the columns of Q it still has. Of a list all keep a residual or
     none; "none" goes with both, and sends what was kept. gcomp_tensor_codec tells what a tensor has now. Saves, and workers that
     come and go: see CHECKPOINT.
       codec "powersgd:rank=4|powersgd:rank=1"   schedule "accordion:every=10,eta=0.5,scope=tensor"
           two codecs: the first while training changes much, see >>schedules. every: epochs (of gcomp_step) from one look to the
           next; scope=model: one decision for all tensors. Say learning_rate if it falls in a few large steps: each fall goes
           back to the first codec; with one that falls in every step leave it 0. Rank 0 takes 4 bytes an element more.
       codec "topk:density=0.001"                schedule "warmup:epochs=4"
           a quarter, 1/16, 1/64, 0.4 % of the elements for a quarter of these epochs each; a codec without a density comes after
           uncompressed epochs; dgc, which has a warm-up of its own, is given the epochs. With a list: its codecs but the last.
       codec "int|int:bits=4|int:bits=2"         schedule "bytes:target=1e6,every=10,slack=0.1"
           the first codec with which a worker sends at most so many bytes a step, frame included, by the means of 10 steps; it
           goes back up only where what it measured there, in proportion, is 10 % below the target.
       codec the same                            schedule "error:target=0.3,every=10,slack=0.1"
           the last codec whose relative error (statistics; of codecs that keep a residual) is at most that, likewise.

   MEMORY
     A residual is 4 bytes an element, the momentum of dgc and of powersgd as much again (powersgd: and as much for work, of the
     largest tensor), fetch's tables 2 * rows * columns. PowerSGD keeps Q, rank * cols floats (alternate=1: P too); in a step it
     needs some rank * (rows + 2 * cols) more, the rank rounded up to 8 or a multiple of 16 where it is above 4. Steps need, for
     what is gathered, (world + 1) * gcomp_bound; for what is summed, a copy of it; for shards two to three payloads, what all
     send for one range, a range as floats, and the sums of all, 4 bytes an element or less (two-shot: some four payloads, and a
     range); for two levels the gradients of the machine as floats, twice. All is reserved by gcomp_prepare or in the first
     exchange; no later call allocates. Room is for the longest payloads that there can be:
     nonzero and strom reserve for a gradient without zeros. A step touches only what its payloads and
     the means of buckets take, so that a system that gives memory page by page gives no more than that.
     With several buckets, steps need for what is gathered the own payloads, world * gcomp_bound of the
     largest bucket, and 4 bytes for each element of all buckets but the last, where that saves a
     quarter of what comes in: the mean of a bucket is made when its payloads have arrived, and the next
     bucket takes the place of those. The codec layer allocates nothing, ever.

   ALIGNMENT
     Pointers to float (y, residual, gradients of type float) are aligned as C wants them, to 4 bytes. What is passed as void * or
     bytes (payloads, scratch, gradients of the codec layer) may stand anywhere.

   THREADS
     None of its own. Distinct objects may be used from distinct threads at once; one object by one thread at a time; codec
     functions from any. A gcomp_parallel callback (OpenMP, a pool, a job system) speeds up the kernels: work is cut into
     chunks of GCOMP_CHUNK elements, whoever runs them, so that the bits do not depend on the threads.

   NUMBERS
     Non-finite input is refused (GCOMP_NOT_FINITE) before anything is written. Finite in, finite out: sums too large for a float
     become the largest, in means, residuals and momenta. The mean is the sum in rank order of x * (1/world). fp16 and bf16
     saturate, and with error feedback the rest is sent later. Functions that calculate set round-to-nearest without flushing of
     subnormals, and restore the caller's mode: on x86, ARM, RISC-V, PowerPC and s390x (MSVC: on x86-64). On other machines the
     library cannot set the mode: functions return GCOMP_FLOAT_MODE where the caller's is another one, before anything is changed,
     and gcomp_parallel is not used, since its threads may have other modes.

   WHAT GOES WRONG
     - Clip the gradient after the exchange, not before: the norm that matters is that of the mean.
     - The result is the mean, not the sum: do not divide by the number of workers again.
     - Gradients that share memory (tied weights) are refused: add one tensor for the shared gradient, and pass it once.
     - Every worker must take the same number of steps, or the last ones wait for ever: agree on the count first.
     - Average the loss you print and the statistics of batch normalisation yourself: they are not gradients.
     - A buffer that already holds momentum, weight decay or a minus sign is not a gradient: exchange before the optimizer.
     - A gradient buffer that carries momentum over from the last step (darknet's weight_updates, to which the backward pass adds)
       is none either: what all workers carry would be compressed again in every step. Put it aside, and back behind the exchange:
           memcpy(carried, updates, n * sizeof(float));
           memset(updates, 0, n * sizeof(float));            // then the backward pass
           result = gcomp_exchange(gc, &updates, NULL);      // where it fails: zero updates again
           for (i = 0; i < n; i++) updates[i] += carried[i]; // then the optimizer
     - With gradient accumulation add up first, exchange once.
     - With loss scaling pass scale = 1/loss_scale in gcomp_step, so that residuals stay in one unit when it changes; on
       GCOMP_NOT_FINITE skip the optimizer and lower the loss scale: all workers see the same result.
     - Trainers that update in place can exchange weight differences (w - w at the last exchange) every few samples.
     - Whoever wraps a gcomp_comm to count or delay must wrap all of its callbacks, or set them to NULL: one that stays gets the
       wrong user pointer. An allreduce_max that is left out is replaced by a gather through allgather, an alltoallv by a gather
       of all payloads; allreduce_dtypes that is left out refuses codecs.
     - On a fast link, do not compress: make demo prints the break-even for a real model on your machine.

   WIRE FORMAT, version 1. Integers and floats are little endian. A stream of bits fills each byte
   from bit 0 on, unless the text says "from bit 7 on"; a number in a stream comes lowest bit first,
   from bit 7 on highest bit first. Reserved and padding bits are zero; a decoder refuses others.
   Where an encoder may choose (the coder of indices, of levels), several payloads decode to the same
   floats: do not hash payloads, and do not look for equal ones by their bytes.
     offset size
      0     4   magic 'G' 'C' 'M' 'P'
      4     1   version, 1
      5     1   method (the numbers in the list below)
      6     1   flags: bit 0 refusal (the input was not finite; no body, parameter word 0), bit 1
                checksum present; others zero
      7     1   of a sparse method (5, 21 to 24, 27 to 29, 31) the value method: 1 to 4, 7, 8 or
                10 to 18; else 0
      8     8   n, number of elements
     16     8   bytes of body that follow the header
     24     4   parameter word (below), of the value method for a sparse one: its fields from bit 0
                on, and zeros. B (5 bits): the block size's logarithm, 4 to 16, or 0: the tensor.
                C (2 bits): 0 packed, 1 elias, 2 rice, 3 auto
     28     4   CRC-32C of the header without this field and of the body, if flag bit 1; else 0
     32     .   body
   What a decoder refuses besides: a scale that is NaN, infinite, negative or -0 (the second float of
   onebit and of an affine int may be negative); a field outside of the range that PARAMETERS gives;
   a body that is longer or shorter than its content; any payload with a decoded value that is not
   finite, as where d * q overflows. Codes that no encoder writes (-128 of 8 bits) are numbers too.
   Products and sums below are of floats, each rounded to nearest.
   Bodies. The last block has the rest of the elements. Codes fill the bytes without gaps, and are
   padded to a byte behind the last one. n = 0: an empty body, where nothing else is said.
     none      1   n floats
     fp16      2   n IEEE binary16
     bf16      3   n bfloat16
     sign      4   word B; a float scale s a block, then n bits, 0: s, 1: -s
     onebit    7   word B; two floats a block, the mean of p >= 0 and that of p < 0; then n bits,
                   0: the first, 1: the second
     signnorm  8   as sign
     vote      9   n bits, 0: 1, 1: -1; no scale
     twobit   10   word: the threshold t as a float, 1e-22 to 1e22; or 0: then t is the body's first
                   float, as a scale. n codes of 2 bits, from bit 7 on: 11 is t, 10 is -t, 00 is 0;
                   01 is refused
     threshold1 11 word: the threshold as a float, 0 to 1e22; n bits, from bit 7 on: 1 is 1, 0 is -1
     terngrad 12   word: B, C; a float s a block, then n codes q of 2 bits, two's complement: s * q
     qsgd     13   word: levels (15 bits), B, C; a float d a block, then n codes q, two's complement
                   in 2, 4, 8 or 16 bits, the least that hold -levels .. levels: d * q
     naturaldither 14  word: levels s (7 bits), B, C; a float a a block, then n codes q, two's
                   complement in 4 bits (s <= 7) or 8: 0 for q = 0, else a * sgn(q) * 2^(|q| - s)
     natural  15   for each 16 elements 16 exponent bytes e (0: zero, else 2^(e - 127)) and 16 bits,
                   1: negative; e = 255 is refused. The last group is whole: 18 bytes, zeros behind
                   the last element
     int      16   word: bits (2 bits: 0 is 8, 1 is 4, 2 is 2), B, 1 if affine (1), C (0 if affine);
                   a float d a block, if affine with a float c behind it; then n codes q, two's
                   complement: d * q, if affine d * q + c
     fp8      17   word: 0 is e4m3, 1 is e5m2 (1 bit), B; a float scale a block, then n bytes: scale
                   times the number below
     mx       18   word: 0 is e2m1, 1 e4m3, 2 e5m2, 3 int8, 4 e2m3, 5 e3m2 (3 bits); a byte x for each
                   32 elements, the scale 2^(x - 127), x < 255; then n codes of 4 bits (e2m1), 8 or 6:
                   the scale times the number below, of int8 k / 64, k in two's complement
                   Small floats, from the highest bit: the sign, e bits of exponent E, m of mantissa
                   M: 2^(E - bias) * (1 + M / 2^m), for E = 0 2^(1 - bias) * M / 2^m, the bias
                   2^(e - 1) - 1. Refused: 0x7f of e4m3, 0x7c to 0x7f of e5m2, and both with a sign
     eden     20   word: bits - 1 (2 bits), log2(block) - 6 (4); the body below under "Pieces"
     topk      5   u64 k <= n; u8 coder of the increasing indices; the indices; then the k values as a
                   body of the value method with n = k, its codes packed (C = 0). Coders:
                     r = 0 .. 32  each gap, the number of elements between an index and the one before
                          it (before the first: index -1), as Golomb-Rice code: gap >> r ones, a zero,
                          the r low bits of the gap. Behind the last one padded to a byte
                     253  a u32 each; only where n <= 2^32
                     254  for each 128 gaps, or the rest, a byte w, the number of bits of the largest
                          gap (0: it is 0), and the gaps in w bits each, padded to a byte; only where
                          n <= 2^32
                     255  a bitmap of n bits, padded to a byte
                   Encoders take the shortest, r up to 31; of equals 255, then the least r, 254, 253.
                   Other elements are +0. A value of -0 is decoded as +0, since it is added to 0
     sampledtopk 21, strom 22, dryden 23, nonzero 24, wangni 27, adacomp 28, dgc 31   as topk
     blocktopk 29  as topk, but the indices are those of blocks: behind the coder a u8 b, 4 .. 16; block
                   j holds the elements j 2^b .. (j + 1) 2^b - 1, the last one the rest. k counts
                   elements, there are ceil(k / 2^b) indices, below ceil(n / 2^b), and the bitmap has
                   ceil(n / 2^b) bits. If k is no multiple of 2^b, the last block of the tensor is
                   among them
     powersgd  6   has no payload: it exchanges sums of P and of Q, or in turns one of them
     randomk 25, randomblock 26   have no payload: they exchange a sum of the elements that the step's key selects
     sketch   32  has no payload: it exchanges a sum of count sketches, then one of the elements that this finds
     fetch    34  has no payload: it exchanges a sum of count sketches
     intsum   19   has no payload: it exchanges the largest |p|, a float, then sums of integers of 8, 16 or 32 bits
   Shards are payloads of the sparse method with value method 1, n and places those of a range: of ceil(ceil(n / world) / 16) * 16
   elements, the last ones the rest. Sums the same, or payloads of none. Lengths and lists: see >>shards. In the two-shot form
   shards and sums are payloads of the codec with the n of a range. Their random numbers: in the place of gcomp_key.own the first
   two words of the Philox4x32-10 block with this key and counter (0, 0, 7, r), r the range, or world for the mean.
   Pieces (eden). n = 0: an empty body. Else u64 random words, A the low 32 bits, B the high ones; a
   u32 a piece; the codes. A piece is a block of elements. The elements behind the last whole block,
   their number rounded up to a multiple of 16, are cut into powers of two, the largest first. From
   n on they are padding: they have codes and are decoded with the rest, but belong to no tensor.
   The u32 u of a piece: bit 0, it was rotated twice; bit 31, it is small; f is u without bit 31, as
   a float (bit 0 stays): 2^-100 <= f, f finite, if small f <= 1 + 2^-23. u = 0: f = 0, and the
   codes of the piece are zero bytes; its elements are zeros with the signs that the steps below give.
   For each 16 elements stand 2 * bits bytes of codes. bits=4: 16 numbers q of 4 bits; the magnitude
   k is q if q < 8, else 15 - q, and the element is negative. Else 16 magnitudes k of bits - 1 bits,
   then 16 bits, 1: negative. The number c of an element is, with this sign, by k = 0, 1, ..
     bits=1: 1    bits=2: 3 10    bits=3: 29 89 158 253    bits=4: 12 36 61 87 115 147 187 248
   if the piece is small times 2^-100, which is exact.
   S(A, B, i) is the sign of element i of the tensor, 1: minus. Modulo 2^32, ^ the exclusive or,
   behind shifts, with d = floor(i / 256) * 16 + i mod 16
     h = floor(d / 2) + A + floor(d / 2^33) * 0x9E3779B9;  h = (h ^ h >> 16) * 0x85EBCA6B;
     h = (h ^ h >> 13 ^ B) * 0xC2B2AE35;  h = h ^ h >> 16
   The sign is the bit of h at place 15 - floor(i / 16) mod 16, if d is odd 16 places higher.
   The transform of m numbers x: for s = m / 2, m / 4, .. 1, for each j where floor(j / s) is even,
   both at once: x[j] = x[j] + x[j + s], x[j + s] = x[j] - x[j + s], each rounded to a float.
   Decoding a piece of m elements, its element j being element i + j of the tensor:
     x[j] = c of the element; the transform of all m numbers (exact in any order)
     if rotated twice: x[j] = -x[j] where S(B, A, i + j) = 1; then for each group of w = min(m, 512)
       numbers: if w > 16, with t = 15 / 64, for j < w / 2, k = j + w / 2, both at once
       x[j] = x[j] + t * x[k], x[k] = t * x[j] - x[k]; and the transform of the w numbers
     the element is f * x[j], the negative of it where S(A, B, i + j) = 1; what does not fit a float
     is the largest float with its sign
   Coded levels: where C is not 0 (packed: the codes as above) and n > 0, the codes stand in segments,
   each for as many elements as 2048 bytes of packed codes hold, or the rest. Before them stands a u64
   for each 65536 elements but the last: where their segments end, counted from the first segment.
   A segment begins with a byte; if that is not 0, a u16 says how many bytes follow, 3 + them no more
   than packed. The first byte:
     0              packed codes; none is above the levels in size
     1 omega        (C = 1 or 3) from bit 7 on, for each q that is not 0: Elias omega of the gap to the
                    last (elements of a segment are numbered from 1; the first gap is from 0), a bit,
                    1: negative, Elias omega of |q|; at last omega of the gap to the number behind the
                    last element
     64 + 16 T + K  (C = 2 or 3; T = 0 .. 3, levels >> K not 0) for each 64 elements, or the rest, m of
                    them: for b = 0 .. K - 1 a word, bit b of each |q|; the tree of u = |q| >> K; for
                    j = 2 .. levels >> K a bit of each with u >= j - 1, 1: u >= j; a bit of each q
                    that is not 0, 1: negative
     32 + R         (C = 2 or 3) the gaps between those that are not 0 as Golomb-Rice codes with the
                    parameter R <= 12, as topk's indices, at last the gap to the end; not padded. Then
                    as 64, but without the tree, since these say which u are not 0
   All that is one stream, padded to a byte at the end of the segment. A word has a bit an element, m of
   them. The tree says which of 64 elements are not 0. T = 0: a word. Else: i stands for the elements i
   and i + 32; a tree of 32 and T - 1 (whose word has the bits below m of 32) says for which i one of
   them is not 0; then a bit of each such i, 1: element i is not 0; then a bit of each i whose element i
   is not 0, 1: element i + 32 is not 0 either. (Where element i is 0, element i + 32 is not.) A tree of
   32 is made of one of 16 likewise, that of one of 8. Elements behind the last one are 0.
   Versions are only appended: a reader refuses a newer one with GCOMP_UNSUPPORTED_VERSION.

   SAVED STATE, version 2. Little endian; T tensors in the order in which they were added. Floats and doubles are finite.
     offset size
      0     4   magic 'G' 'C' 'M' 'S'
      4     4   version, 2
      8     8   bytes, all of it
     16     8   number of the next step
     24     8   seed
     32     4   rank                      36     4   world
     40     4   CRC-32C of the means of the last step, as floats, if that was checked (check_every); else 0
     44     4   T
     48     4   CRC-32C of the number of the schedule's rule (0: no schedule, 1 warmup, 2 accordion, 3 bytes, 4 error) and its 6
                parameters (8 bytes each)
     52    8T   of each tensor the CRC-32C of: its name with a final 0, rows, cols and stack (8 bytes each), the CRC-32C of the
                texts of the codecs of its list without final 0 (8), 1 if it keeps a residual, else 0 (8); and its level (4 bytes)
      .    16   with a schedule, 4 bytes each: the level of all tensors with a list (0: each has its own); 1 if a step was
                committed, else 0 and zeros follow; its epoch; the last learning rate above 0 that this
                worker was told, a float, or 0: rank 0's counts
      .     .   of each tensor: its residual, n floats, if it keeps one; then its state: powersgd: Q of each matrix of the stack,
                r rows of cols floats; sketches: tables; dgc, momentum: n floats; then zeros up to the longest state of its list
      .     .   rank 0 of bytes or error: next level, level of the period before, 1 if there was one, else 0, steps of this one
                (4 bytes each); then doubles: sum of this period, mean of that before, and for each level but the first the values
                measured above and at it, or 0. None is negative
      .     .   rank 0 of accordion: 1 if there is a sum before, 1 if this sum has begun in the midst of an epoch (4 bytes each);
                |D'| of the model, a double; of each tensor with a list |D'|, a double, and the sum, n floats, maybe infinite
      .     4   CRC-32C of all before

   PAPERS
     sign      Karimireddy, Rebjock, Stich, Jaggi: Error Feedback Fixes SignSGD and other Gradient Compression Schemes, ICML 2019;
               blocks: Zheng, Huang, Kwok: Communication-Efficient Distributed Blockwise Momentum SGD with Error-Feedback,
               NeurIPS 2019
     onebit    Seide, Fu, Droppo, Li, Yu: 1-Bit Stochastic Gradient Descent and its Application to Data-Parallel Distributed
               Training of Speech DNNs, Interspeech 2014
     signnorm  Tang et al.: 1-bit Adam: Communication Efficient Large-Scale Training with Adam's Convergence Speed, ICML 2021
     two-shot  as signnorm (compressed all-reduce)
     twobit    Strom: Scalable Distributed DNN Training Using Commodity GPU Cloud Computing, Interspeech 2015; apache/mxnet
     vote      Bernstein, Wang, Azizzadenesheli, Anandkumar: signSGD: Compressed Optimisation for Non-Convex Problems, ICML 2018
     terngrad  Wen, Xu, Yan, Wu, Wang, Chen, Li: TernGrad: Ternary Gradients to Reduce Communication in Distributed Deep
               Learning, NeurIPS 2017
     qsgd      Alistarh, Grubic, Li, Tomioka, Vojnovic: QSGD: Communication-Efficient SGD via Gradient Quantization and Encoding,
               NeurIPS 2017
     natural   Horvath, Ho, Horvath, Sahu, Canini, Richtarik: Natural Compression for Distributed Deep Learning, MSML 2022
     int       Dettmers: 8-Bit Approximations for Parallelism in Deep Learning, ICLR 2016
     fp8       Micikevicius et al.: FP8 Formats for Deep Learning, 2022
     mx        Open Compute Project: OCP Microscaling Formats (MX) Specification 1.0, 2023
     eden      Vargaftik, Ben-Basat, Portnoy, Mendelson, Ben-Itzhak, Mitzenmacher: DRIVE: One-bit Distributed Mean Estimation,
               NeurIPS 2021; the same: EDEN: Communication-Efficient and Robust Distributed Mean Estimation for Federated
               Learning, ICML 2022
     topk      Stich, Cordonnier, Jaggi: Sparsified SGD with Memory, NeurIPS 2018; Aji, Heafield: Sparse Communication for
               Distributed Gradient Descent, EMNLP 2017
               global=1: Shi et al.: A Distributed Synchronous SGD Algorithm with Global Top-k Sparsification for Low Bandwidth
               Networks, ICDCS 2019; by ranges: Li, Hoefler: Near-Optimal Sparse Allreduce for Distributed Deep Learning,
               PPoPP 2022
     shards    Renggli, Ashkboos, Aghagolzadeh, Alistarh, Hoefler: SparCML: High-Performance Sparse Communication for Machine
               Learning, SC 2019
     strom     as twobit
     randomk   as topk
     dryden    Dryden, Moon, Jacobs, Van Essen: Communication Quantization for Data-Parallel Training of Deep Neural Networks,
               MLHPC 2016
     wangni    Wangni, Wang, Liu, Zhang: Gradient Sparsification for Communication-Efficient Distributed Optimization,
               NeurIPS 2018
     adacomp   Chen, Choi, Brand, Agrawal, Zhang, Gopalakrishnan: AdaComp: Adaptive Residual Gradient Compression for
               Data-Parallel Distributed Training, AAAI 2018
     dgc       Lin, Han, Mao, Wang, Dally: Deep Gradient Compression: Reducing the Communication Bandwidth for Distributed
               Training, ICLR 2018
     accordion Agarwal, Wang, Lee, Venkataraman, Papailiopoulos: Adaptive Gradient Communication via Critical Learning Regime
               Identification, MLSys 2021
     powersgd  Vogels, Karimireddy, Jaggi: PowerSGD: Practical Low-Rank Gradient Compression for Distributed Optimization,
               NeurIPS 2019
     intsum    Mishchenko, Wang, Kovalev, Richtarik: IntSGD: Adaptive Floatless Compression of Stochastic Gradients, ICLR 2022
     sketch    Ivkin, Rothchild, Ullah, Braverman, Stoica, Arora: Communication-efficient Distributed SGD with Sketching,
               NeurIPS 2019
     fetch     Rothchild, Panda, Ullah, Ivkin, Stoica, Braverman, Gonzalez, Arora: FetchSGD: Communication-Efficient Federated
               Learning with Sketching, ICML 2020
     feedback  Seide, Fu, Droppo, Li, Yu: 1-Bit Stochastic Gradient Descent and its Application to Data-Parallel Distributed
               Training of Speech DNNs, Interspeech 2014
     random    Salmon, Moraes, Dror, Shaw: Parallel Random Numbers: As Easy as 1, 2, 3, SC 2011
   ------------------------------------------------------------------------------------------------ */

#ifndef GCOMP_H
#define GCOMP_H

/* ------------------------------------------------------------------------------------------------
   >>config - macros a user may set, the same in every file that includes the header

   GCOMP_IMPLEMENTATION          compile the implementation here; in exactly one file
   GCOMP_STATIC                  all functions static: each file that uses them has GCOMP_IMPLEMENTATION too
   GCOMP_API                     linkage of public functions, for example __declspec(dllexport); default: extern
   GCOMP_STB_DS_H                how to include stb_ds.h; default: "stb_ds.h" if found, else <stb/stb_ds.h>
   GCOMP_SELF                    how this header includes itself; default: "gcomp.h"
   GCOMP_NO_SELF                 do not: for files merged into one; only the compiler's baseline instruction set then
   GCOMP_MAX_ISA                 leave out instruction sets above: 1 scalar, 2 AVX2, 3 AVX-512; default: all
   GCOMP_NO_STDLIB               no malloc and no getenv; desc.allocator is required. What is left of the C library are float.h,
                                 limits.h, stddef.h, stdint.h, and from string.h memcmp, memcpy, memmove, memset, strchr,
                                 strcmp and strlen
   GCOMP_NO_GETENV               do not read GCOMP_ISA from the environment
   GCOMP_WITHOUT_FP16, _BF16, _SIGN, _TOPK, _POWERSGD, ...   leave out a method (_RANDOMK: randomblock too); none stays
   GCOMP_ALLOW_MINGW_AVX         AVX with mingw gcc, which misaligns spills; off by default
   ------------------------------------------------------------------------------------------------ */

#include <stddef.h>
#include <stdint.h>

#ifndef GCOMP_API
#ifdef GCOMP_STATIC
#define GCOMP_API static
#else
#define GCOMP_API extern
#endif
#endif

#if defined(__GNUC__)
#define GCOMP_NODISCARD __attribute__((__warn_unused_result__))
#else
#define GCOMP_NODISCARD
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ------------------------------------------------------------------------------------------------
   >>api
   ------------------------------------------------------------------------------------------------ */

#define GCOMP_VERSION 100 /* major * 10000 + minor * 100 + patch */

/* GCOMP_VERSION of the compiled implementation. */
GCOMP_API int gcomp_version(void);

/* Result codes: name, value, class, sentence. 0 is success; values never change. */
#define GCOMP_RESULTS(X) \
    X(GCOMP_OK, 0, OK, "success") \
    X(GCOMP_INVALID_ARGUMENT, -1, FATAL, "an argument or a desc field is out of its range") \
    X(GCOMP_OUT_OF_MEMORY, -2, RETRY, "the allocator returned no memory") \
    X(GCOMP_DST_TOO_SMALL, -3, FATAL, "the output buffer is too small") \
    X(GCOMP_SCRATCH_TOO_SMALL, -4, FATAL, "the scratch buffer is smaller than gcomp_scratch says") \
    X(GCOMP_NOT_FINITE, -5, RETRY, "the gradient holds NaN or Inf, on this worker or another") \
    X(GCOMP_NEEDS_ROUNDS, -6, FATAL, "the method exchanges sums or keeps momentum: use a step or an exchange") \
    X(GCOMP_BAD_CODEC, -7, FATAL, "the codec text names no known method, parameter or value") \
    X(GCOMP_ISA_UNAVAILABLE, -8, FATAL, "the instruction set is unknown or not available here") \
    X(GCOMP_WRONG_STATE, -9, FATAL, "the call does not fit the state of the object") \
    X(GCOMP_DUPLICATE_NAME, -10, FATAL, "a tensor of this name exists") \
    X(GCOMP_MISSING_CALLBACK, -11, FATAL, "a callback that is needed is NULL, or cannot sum what is needed") \
    X(GCOMP_FLOAT_MODE, -12, FATAL, "the floating-point mode is not the default, and the library cannot set it here") \
    X(GCOMP_TRUNCATED, -20, RETRY, "the payload ends before its content") \
    X(GCOMP_TRAILING_BYTES, -21, RETRY, "bytes follow the end of the payload") \
    X(GCOMP_NOT_A_PAYLOAD, -22, RETRY, "the bytes do not begin like a payload") \
    X(GCOMP_UNSUPPORTED_VERSION, -23, RETRY, "the payload is of a version this library does not know") \
    X(GCOMP_UNKNOWN_METHOD, -24, RETRY, "the payload is of a method this library does not know or leaves out") \
    X(GCOMP_RESERVED_BITS, -25, RETRY, "reserved or padding bits of the payload are not zero") \
    X(GCOMP_COUNT_MISMATCH, -26, RETRY, "the payload has another number of elements") \
    X(GCOMP_CODEC_MISMATCH, -27, RETRY, "the payload is of another codec than the tensor's") \
    X(GCOMP_CHECKSUM_MISMATCH, -28, RETRY, "the payload was damaged on its way") \
    X(GCOMP_CORRUPT, -29, RETRY, "the body of the payload breaks the wire format") \
    X(GCOMP_NOT_A_SAVE, -30, FATAL, "the bytes do not begin like a saved state") \
    X(GCOMP_SAVE_MISMATCH, -31, FATAL, "the saved state is of other tensors, codecs or workers, or of another seed or step") \
    X(GCOMP_CALLBACK_FAILED, -40, RESYNCHRONISE, "a communication callback failed, or damaged a frame") \
    X(GCOMP_MISMATCH, -41, FATAL, "workers disagree about tensors, codecs, seed or options") \
    X(GCOMP_PEER_FAILED, -42, RETRY, "another worker could not take part in this step") \
    X(GCOMP_DIVERGED, -43, RESYNCHRONISE, "workers hold different means: a transport or a machine is not reliable") \
    X(GCOMP_OUT_OF_STEP, -44, RESYNCHRONISE, "workers are at different steps")

typedef enum gcomp_result {
#define GCOMP__ENUM(name, value, kind, sentence) name = value,
    GCOMP_RESULTS(GCOMP__ENUM)
#undef GCOMP__ENUM
    GCOMP__RESULT_END = 1
} gcomp_result;

/* The sentence of a result code. Never NULL. */
GCOMP_API const char *gcomp_result_string(gcomp_result result);

/* The name of a result code, "GCOMP_OK". Never NULL. */
GCOMP_API const char *gcomp_result_name(gcomp_result result);

/* What to do after a step with such a result, see WHEN A STEP FAILS in the manual.
     OK             the gradients hold the mean
     RETRY          nothing has changed here, and the transport works: take part in the next step, with any gradient
     RESYNCHRONISE  workers may hold different weights: bring all to the same weights and the same step
     FATAL          the same call will fail again */
typedef enum gcomp_class {
    GCOMP_CLASS_OK = 0,
    GCOMP_CLASS_RETRY = 1,
    GCOMP_CLASS_RESYNCHRONISE = 2,
    GCOMP_CLASS_FATAL = 3
} gcomp_class;

/* The class of a result code. FATAL for a number that is none. Functions outside of steps return the same codes: RETRY of a
   payload then says that the bytes are damaged; that memory is missing may change. */
GCOMP_API gcomp_class gcomp_result_class(gcomp_result result);

/* Gradients are of the first three; the integers are what transports carry. */
typedef enum gcomp_dtype {
    GCOMP_F32 = 0,
    GCOMP_F16 = 1,
    GCOMP_BF16 = 2,
    GCOMP_U8 = 3,
    GCOMP_I8 = 4,
    GCOMP_I16 = 5,
    GCOMP_I32 = 6
} gcomp_dtype;

/* Instruction sets. AUTO: the environment variable GCOMP_ISA (scalar, avx2, avx512, neon), else the best of the machine. */
typedef enum gcomp_isa {
    GCOMP_ISA_AUTO = 0,
    GCOMP_ISA_SCALAR = 1,
    GCOMP_ISA_AVX2 = 2,
    GCOMP_ISA_AVX512 = 3,
    GCOMP_ISA_NEON = 4
} gcomp_isa;

/* The name of an instruction set, "avx2"; "unknown" for other numbers. */
GCOMP_API const char *gcomp_isa_name(gcomp_isa isa);

/* 1 if this build and this machine can run the instruction set, else 0. */
GCOMP_API int gcomp_isa_available(gcomp_isa isa);

/* Calls task(arg, i) for each i in 0 .. count - 1, in any order, on any threads, and returns when all are done.
   Results do not depend on how. All zero: one thread. */
typedef struct gcomp_parallel {
    void (*run)(void *user, size_t count, void (*task)(void *arg, size_t index), void *arg);
    void *user;
} gcomp_parallel;

/* Both or none. alloc returns memory aligned to `align` (a power of two, at most 64), or NULL. Memory that is not aligned so is
   given back at once: GCOMP_INVALID_ARGUMENT, wherever GCOMP_OUT_OF_MEMORY is possible. */
typedef struct gcomp_allocator {
    void *(*alloc)(void *user, size_t bytes, size_t align);
    void (*free)(void *user, void *memory, size_t bytes);
    void *user;
} gcomp_allocator;

/* Work is cut into chunks of this many elements; partial sums are added in order of chunks. */
#define GCOMP_CHUNK 65536

/* ---------------- codec: pure functions */

/* A method with its parameters, made by gcomp_codec_parse. A plain value; its fields are not part of the API. */
#define GCOMP_PARAMS 6
typedef struct gcomp_codec {
    uint8_t method;         /* wire number of the method */
    uint8_t value;          /* of a sparse method: wire number of the method of its values; else 0 */
    uint8_t reserved[6];
    double param[GCOMP_PARAMS];       /* the method's parameters, in the order of its row */
    double value_param[GCOMP_PARAMS]; /* those of the value method */
} gcomp_codec;

/* Randomness of one encode call. Workers must share it in some methods and must not in others. */
typedef struct gcomp_key {
    uint64_t shared;  /* from (seed, step, tensor) */
    uint64_t own;     /* from (seed, step, tensor, rank) */
} gcomp_key;

/* The key of a tensor in a step: a Philox4x32-10 block of the arguments. */
GCOMP_API gcomp_key gcomp_key_make(uint64_t seed, uint64_t step, uint32_t tensor, uint32_t rank);

/* What is encoded: p = scale * grad + residual, n = rows * max(cols, 1) elements. All pointers are read only. */
typedef struct gcomp_input {
    const void *grad;       /* n elements, any alignment */
    gcomp_dtype dtype;      /* of grad: GCOMP_F32, GCOMP_F16 or GCOMP_BF16 */
    float scale;            /* finite; 0: 1 */
    const float *residual;  /* n floats, or NULL: none */
    size_t rows;            /* a vector has its length here */
    size_t cols;            /* 0: 1 */
    gcomp_key key;
} gcomp_input;

/* How it runs. NULL or all zero: the best instruction set, one thread, no scratch. */
typedef struct gcomp_exec {
    gcomp_isa isa;
    void *scratch;          /* any alignment; gcomp_scratch bytes always suffice */
    size_t scratch_bytes;
    gcomp_parallel parallel;
} gcomp_exec;

/* What a payload says of itself. */
typedef struct gcomp_info {
    gcomp_codec codec;      /* method, and those parameters that the payload carries */
    uint64_t count;         /* elements */
    uint64_t length;        /* bytes of the whole payload */
    int refused;            /* 1: the encoder found NaN or Inf */
    int checksum;           /* 1: a checksum is present */
} gcomp_info;

/* An upper bound of payload bytes and of scratch bytes for n elements of any codec, as constant expressions. */
#ifdef __cplusplus
#define GCOMP__SIZE(n) (sizeof(char) * (n)) /* some compilers of C++ warn of casts in their users' files */
#else
#define GCOMP__SIZE(n) ((size_t)(n))
#endif
#define GCOMP_BOUND(n) (5 * GCOMP__SIZE(n) + 128)
#define GCOMP_SCRATCH(n) (14 * GCOMP__SIZE(n) + 65536)

/* Reads a codec from text: method[:name=value[,name=value]...][+value method[:...]], as "topk:density=0.01+fp16". "dither" is
   another name of qsgd, and printed as that. Parameters that are not named get their defaults: see PARAMETERS in the manual.
   A codec keeps the text form's value exactly.
     why[why_capacity]  out  a sentence naming the culprit on error, cut to fit and ended by 0; may be NULL
   Returns GCOMP_OK, GCOMP_INVALID_ARGUMENT, GCOMP_BAD_CODEC. On error *codec is unchanged. */
GCOMP_API GCOMP_NODISCARD gcomp_result gcomp_codec_parse(gcomp_codec *codec, const char *text, char *why, size_t why_capacity);

/* Writes the shortest text that parses back to the codec: parameters at their default are left out.
   Returns the length without the final 0; what fits is written, always ended by 0 if capacity > 0. */
GCOMP_API size_t gcomp_codec_format(const gcomp_codec *codec, char *text, size_t capacity);

/* The i-th method's name in the order of the table ("none" is 0), NULL behind the last. */
GCOMP_API const char *gcomp_method_name(size_t i);

/* Upper bound of the bytes of a payload of n elements; gcomp_encode never fails for space with that much. 0: the codec is
   invalid, has no payload outside of steps (powersgd, dgc), or the size overflows. */
GCOMP_API size_t gcomp_bound(const gcomp_codec *codec, size_t n);

/* Scratch bytes that gcomp_encode needs; 0 if none or invalid. Decoding needs none; eden is decoded faster with as much, and the
   mean of sparse payloads with 4 bytes for each element sent and 64 KiB. Block methods need none, but use 64 bytes for each
   GCOMP_CHUNK elements to encode with several threads: GCOMP_SCRATCH(n) is enough for all. */
GCOMP_API size_t gcomp_scratch(const gcomp_codec *codec, size_t n);

/* Encodes p = scale * grad + residual into a payload, without a checksum (gcomp_seal adds one).
     payload[capacity]  out  gcomp_bound(codec, n) bytes always suffice
     *length            out  bytes written; unchanged on error other than GCOMP_NOT_FINITE
   Returns GCOMP_OK, GCOMP_INVALID_ARGUMENT, GCOMP_DST_TOO_SMALL, GCOMP_SCRATCH_TOO_SMALL, GCOMP_ISA_UNAVAILABLE,
   GCOMP_NEEDS_ROUNDS, or GCOMP_NOT_FINITE: then a valid refusal payload of 32 bytes is written, which decodes to the same
   error. Reads everything, changes nothing but the payload and the scratch. Same bits on every instruction set and
   thread count. */
GCOMP_API GCOMP_NODISCARD gcomp_result gcomp_encode(const gcomp_codec *codec, const gcomp_input *in, const gcomp_exec *exec,
                                                    void *payload, size_t capacity, size_t *length);

/* Adds the checksum (CRC-32C) to a payload that gcomp_encode wrote. On error nothing is changed: GCOMP_INVALID_ARGUMENT if it is
   not one, GCOMP_ISA_UNAVAILABLE. */
GCOMP_API GCOMP_NODISCARD gcomp_result gcomp_seal(void *payload, size_t length, const gcomp_exec *exec);

/* Finds out if a payload is valid to the last bit, for n elements. Writes nothing; bounded time.
   Returns GCOMP_OK, one of the payload errors, or GCOMP_NOT_FINITE for a valid refusal. */
GCOMP_API GCOMP_NODISCARD gcomp_result gcomp_check(const void *payload, size_t length, size_t n);

/* y[n] <- decode(payload). Checks first; on error y is unchanged. Every decoded value is finite. This and the three below return
   as gcomp_check, or GCOMP_INVALID_ARGUMENT (a pointer is NULL, a number not finite), GCOMP_ISA_UNAVAILABLE. */
GCOMP_API GCOMP_NODISCARD gcomp_result gcomp_decode(const void *payload, size_t length, float *y, size_t n,
                                                    const gcomp_exec *exec);

/* y[n] <- y + weight * decode(payload), y finite; sums too large for a float become the largest. Checks first; on error y is
   unchanged. */
GCOMP_API GCOMP_NODISCARD gcomp_result gcomp_decode_add(const void *payload, size_t length, float weight, float *y, size_t n,
                                                        const gcomp_exec *exec);

/* y[n] <- sum in order of payloads of decode(payload) * (1 / count), count >= 1; where all are of vote, the sign of that (of 0:
   +1). All are checked first; on error y is unchanged. */
GCOMP_API GCOMP_NODISCARD gcomp_result gcomp_decode_mean(const void *const *payloads, const size_t *lengths, size_t count,
                                                         float *y, size_t n, const gcomp_exec *exec);

/* residual[n] <- scale * grad + residual - decode(payload): what was not sent; sums too large for a float become the largest.
   in->residual is not read. Checks first; on error residual is unchanged. GCOMP_NOT_FINITE also where grad or residual holds NaN
   or Inf. */
GCOMP_API GCOMP_NODISCARD gcomp_result gcomp_retain(const void *payload, size_t length, const gcomp_input *in, float *residual,
                                                    const gcomp_exec *exec);

/* Reads the header of a payload, trusting nothing behind it. `length` bytes are at hand, 32 or more; info->length tells the whole
   size. Returns GCOMP_OK, GCOMP_INVALID_ARGUMENT (NULL) or an error of payloads; then *info is unchanged. */
GCOMP_API GCOMP_NODISCARD gcomp_result gcomp_peek(const void *payload, size_t length, gcomp_info *info);

/* ---------------- objects */

typedef struct gcomp gcomp;
struct gcomp_request;

/* The transport. Callbacks return 0 for success, anything else for failure. All workers call them in the same order.
   All workers set the same optional ones, else GCOMP_MISMATCH, by the frame. A frame travels through
   start, else through allgather: a worker that has neither sends none, and the others wait. So they
   do where only some workers set start, unless the transport takes both for one collective. */
typedef struct gcomp_comm {
    void *user;
    int rank;   /* 0 .. world - 1 */
    int world;  /* 0: 1 */
    /* data[count] <- sum over the workers, in place, with the same bits on all. dtype is GCOMP_F32 or an integer that
       allreduce_dtypes names; sums of integers never overflow. */
    int (*allreduce)(void *user, void *data, size_t count, gcomp_dtype dtype);
    /* all[world * bytes] <- mine[bytes] of every worker, in rank order. */
    int (*allgather)(void *user, const void *mine, void *all, size_t bytes);
    /* Optional, sends no padding: all + w * stride <- bytes[w] bytes of worker w; mine has bytes[rank].
       Not for frames. */
    int (*allgatherv)(void *user, const void *mine, void *all, const size_t *bytes, size_t stride);
    /* Optional: data[count] <- the largest of the workers' floats, none negative, in place. Without it they are gathered. */
    int (*allreduce_max)(void *user, float *data, size_t count);
    /* Optional, other bytes for each: worker w gets send_bytes[w] bytes of send, where they lie back to back in rank order, and
       recv_bytes[w] bytes from worker w go to recv, back to back likewise; the own ones too. Both sizes are known before: the
       library sends lengths (16 bytes for each) first, then what they announce. */
    int (*alltoallv)(void *user, const void *send, const size_t *send_bytes, void *recv, const size_t *recv_bytes);
    /* Optional, all three or none: requests that are under way while the caller computes, see OVERLAP in the manual. Where they
       are set, steps use nothing else; they carry out any request, and its buffers stay until it is done.
         start   begins to carry out a copy of the request. 0: begun; else it failed, and is over
         test    *done = 1 (it is 0 before): the request of this id is done. 0: done or under way; else it failed, and is over.
                 Does not wait
         wait    waits until it is. 0: it is done; else it failed, and is over
       All workers start the same requests in the same order. */
    int (*start)(void *user, const struct gcomp_request *request);
    int (*test)(void *user, uint32_t id, int *done);
    int (*wait)(void *user, uint32_t id);
    /* What allreduce can sum beside floats, for codecs that need it (intsum): 1u << GCOMP_I8 | 1u << GCOMP_I16 | ...
       Also for users who drive the step and set no callback. */
    unsigned allreduce_dtypes;
} gcomp_comm;

/* How payloads become a mean. Sparse ones: the same bits either way.
     GATHER   every worker receives all payloads, world * k elements, and adds them
     SHARDS   each worker adds a range of the elements for all (SparCML's split form): about k elements in, and the sums out, as
              many as there are places with any, or all of them where that is shorter
     TWO_SHOT as SHARDS, and tensors of other codecs that gather once (1-bit Adam's compressed all-reduce): p is quantised by
              ranges, the owner of a range adds them, quantises the mean once more, and all gather that. What a worker computes
              and receives does not grow with the world. Needs comm.alltoallv; see MANY WORKERS in the manual
     AUTO     SHARDS where comm.alltoallv is given, values are floats, a shard has 64 elements or more, and world >= 8, or 3
              with global=1; else GATHER. To a worker SHARDS carries (k + places with any) (world - 1) / world elements, with
              global=1 little more than 2 k (world - 1) / world; a gather k (world - 1). */
typedef enum gcomp_aggregate {
    GCOMP_AGGREGATE_AUTO = 0,
    GCOMP_AGGREGATE_GATHER = 1,
    GCOMP_AGGREGATE_SHARDS = 2,
    GCOMP_AGGREGATE_TWO_SHOT = 3
} gcomp_aggregate;

/* Everything about an object, copied when it is opened. All zero: one worker, no compression. */
typedef struct gcomp_desc {
    const char *codec;          /* of tensors that name none; NULL: "none". With a schedule a list, see SCHEDULES in the manual */
    const char *schedule;       /* who chooses from the list: "warmup:epochs=4", "accordion", "bytes:target=1e6"; NULL: none */
    gcomp_comm comm;
    gcomp_comm node;            /* of the workers of one machine, if comm is between machines: see TWO LEVELS in the manual */
    uint64_t seed;              /* equal on all workers */
    size_t min_elements;        /* smaller tensors travel uncompressed; 0: 1024 */
    int compress_vectors;       /* 1: also tensors with cols <= 1; the only tensor of an object is compressed without it */
    int no_error_feedback;      /* 1: forget what was not sent */
    int no_checksum;            /* 1: payloads without CRC-32C */
    int measure;                /* 1: relative error and norm of the mean in the statistics, at the cost of more passes */
    gcomp_aggregate aggregate;  /* how payloads become a mean; equal on all workers */
    size_t bucket_bytes;        /* of gradient, 4 an element, see OVERLAP in the manual; equal on all workers; 0: all */
    uint32_t check_every;       /* compare a digest of the means every so many steps; 0: never */
    gcomp_isa isa;
    gcomp_allocator allocator;  /* all zero: malloc and free */
    gcomp_parallel parallel;
    double (*clock)(void *user);  /* seconds, for the statistics; NULL: no times */
    void *clock_user;
    char *why;                  /* a failed open explains itself here; may be NULL */
    size_t why_capacity;
} gcomp_desc;

/* A tensor: `stack` matrices of rows x cols, back to back. */
typedef struct gcomp_tensor {
    const char *name;   /* REQUIRED, unique, copied */
    size_t rows;        /* REQUIRED, >= 1 */
    size_t cols;        /* 0 or 1: a vector */
    size_t stack;       /* 0: 1 */
    gcomp_dtype dtype;  /* of its gradient, for gcomp_exchange_any */
    const char *codec;  /* NULL: the object's, by its rules for vectors and small tensors; a list where desc.codec is one */
} gcomp_tensor;

/* Opens an object. On error *gc is NULL and desc->why tells the reason.
   Returns GCOMP_OK, GCOMP_INVALID_ARGUMENT, GCOMP_BAD_CODEC, GCOMP_ISA_UNAVAILABLE, GCOMP_OUT_OF_MEMORY, or
   GCOMP_MISSING_CALLBACK: the codec sums integers that comm.allreduce_dtypes does not name, or one of node is missing. */
GCOMP_API GCOMP_NODISCARD gcomp_result gcomp_open(gcomp **gc, const gcomp_desc *desc);

/* Frees everything. NULL is allowed. */
GCOMP_API void gcomp_close(gcomp *gc);

/* Adds a tensor; its number is the count of those before. Only before the first step.
   Returns GCOMP_OK, GCOMP_INVALID_ARGUMENT, GCOMP_BAD_CODEC, GCOMP_DUPLICATE_NAME, GCOMP_WRONG_STATE, GCOMP_OUT_OF_MEMORY,
   GCOMP_MISSING_CALLBACK (as gcomp_open). On error the object is as before. */
GCOMP_API GCOMP_NODISCARD gcomp_result gcomp_add_tensor(gcomp *gc, const gcomp_tensor *tensor);

/* Number of tensors; number of the tensor of that name (count if there is none); elements of a tensor (0 if none). */
GCOMP_API size_t gcomp_tensor_count(const gcomp *gc);
GCOMP_API size_t gcomp_tensor_find(const gcomp *gc, const char *name);
GCOMP_API size_t gcomp_tensor_elements(const gcomp *gc, size_t tensor);

/* The name of a tensor; NULL for a wrong number. Valid while the object is. */
GCOMP_API const char *gcomp_tensor_name(const gcomp *gc, size_t tensor);

/* The shape of a tensor: *stack matrices of *rows x *cols, each 1 or more; a vector has cols 1. Zeros for a wrong number.
   Pointers may be NULL. */
GCOMP_API void gcomp_tensor_shape(const gcomp *gc, size_t tensor, size_t *rows, size_t *cols, size_t *stack);

/* Rank and world of desc.comm, or of the last gcomp_regroup; with desc.node those of machines. 0 if gc is NULL. */
GCOMP_API int gcomp_rank(const gcomp *gc);
GCOMP_API int gcomp_world(const gcomp *gc);

/* The codec a tensor really has now, after the rules for vectors, small tensors and matrices that would not gain, and by the
   schedule. Returns NULL for a wrong number. Valid while the object is. A vector that is the only tensor has the codec of desc
   until another tensor is added. With desc.node the other workers of a machine hear from the first one what it has, at the end
   of each step: what that one has loaded they know after the next step. */
GCOMP_API const gcomp_codec *gcomp_tensor_codec(const gcomp *gc, size_t tensor);

/* Writes what travels in a step as text: a line for each tensor (name, shape, dtype, codec, why it has another codec than the one
   named, the bytes that a worker brings to collectives beside those of the gradient as floats), then a line with the sums:
     fc1.weight: 784 x 1152 fp32, topk:density=0.01, at most 46160 of 3612672 bytes
     fc1.bias: 1152 fp32, none (a vector), 4608 of 4608 bytes
     2 tensors: at most 50768 of 3617280 bytes a step, 71.2 times less
   "at most" stands where the length of a payload depends on the gradient. Frames (64 bytes a step and bucket) are not in it.
   Returns the length without the final 0; what fits is written, always ended by 0 if capacity > 0. 0 if gc is NULL. */
GCOMP_API size_t gcomp_describe(const gcomp *gc, char *text, size_t capacity);

/* The residual of a tensor, NULL if it keeps none. Valid while the object is; changed by commits. */
GCOMP_API const float *gcomp_residual(const gcomp *gc, size_t tensor);

/* Reserves all memory that steps need; no later call allocates. The first step does it if it was not called.
   Returns GCOMP_OK, GCOMP_OUT_OF_MEMORY (the object is as before), GCOMP_WRONG_STATE inside a step. */
GCOMP_API GCOMP_NODISCARD gcomp_result gcomp_prepare(gcomp *gc);

/* Bytes an object takes with these tensors, prepared; 0 if desc or a tensor is invalid. And what it takes now.
   An arena loses up to 63 bytes more for each allocation, at most 6 and 6 a tensor; one that takes nothing back, also 1 KiB a
   tensor where these are more than 16, and what a vector that is added first would need as the only tensor: add matrices first.
   With desc.node twice that. */
GCOMP_API size_t gcomp_memory_needed(const gcomp_desc *desc, const gcomp_tensor *tensors, size_t count);
GCOMP_API size_t gcomp_memory_used(const gcomp *gc);

/* Sets a tensor's residual and warm start back to the beginning. On all workers or on none. GCOMP_INVALID_ARGUMENT for a wrong
   number, GCOMP_WRONG_STATE inside a step; then nothing is changed. */
GCOMP_API GCOMP_NODISCARD gcomp_result gcomp_reset(gcomp *gc, size_t tensor);

/* Forgets residuals, warm starts, a step under way and the last failure, begins lists of codecs and their schedule anew, and
   goes on with this step number. On all workers, after the weights were broadcast. */
GCOMP_API GCOMP_NODISCARD gcomp_result gcomp_restart(gcomp *gc, uint64_t step);

/* The number of the next step: 0, then one more after each step that was committed. */
GCOMP_API uint64_t gcomp_step_number(const gcomp *gc);

/* A sentence on the last error of the object; "" if none. Valid until the next call on it. */
GCOMP_API const char *gcomp_error(const gcomp *gc);

/* ---------------- tensors: codecs with memory, any transport */

/* Encodes grad with the tensor's codec, residual and keys of `step` into a sealed payload. Changes no state.
     payload[capacity]  out  gcomp_bound(gcomp_tensor_codec(...), n) bytes always suffice
   Returns as gcomp_encode, or GCOMP_OUT_OF_MEMORY if nothing was prepared; GCOMP_NEEDS_ROUNDS for methods that exchange sums or
   keep momentum. */
GCOMP_API GCOMP_NODISCARD gcomp_result gcomp_compress(gcomp *gc, size_t tensor, uint64_t step, const float *grad, void *payload,
                                                      size_t capacity, size_t *length);

/* Takes payloads in: residual <- grad + residual - decode(own); grad <- mean of the decoded payloads. Sums too large for a float
   become the largest.
     grad      with own: the bits that gcomp_compress read, which has refused NaN and Inf. This call does not look for them again
     own       NULL: nothing was sent, residual <- grad + residual; GCOMP_NOT_FINITE where grad holds NaN or Inf
     count     0: grad is untouched; else the payloads at hand, maybe of a part of the workers, own among them or not
   All are checked first; on error nothing is changed. Not between gcomp_step_ready and the commit of a step.
   Returns as gcomp_check, or GCOMP_INVALID_ARGUMENT, GCOMP_CODEC_MISMATCH; GCOMP_NEEDS_ROUNDS for methods that keep momentum. */
GCOMP_API GCOMP_NODISCARD gcomp_result gcomp_commit(gcomp *gc, size_t tensor, float *grad, const void *own, size_t own_length,
                                                    const void *const *payloads, const size_t *lengths, size_t count);

/* residual <- residual + decode(payload): a payload that was committed as own was lost after all. Sums too large for a float
   become the largest. Returns as gcomp_commit, or GCOMP_WRONG_STATE where the tensor keeps no residual; on error nothing is
   changed. */
GCOMP_API GCOMP_NODISCARD gcomp_result gcomp_give_back(gcomp *gc, size_t tensor, const void *payload, size_t length);

/* ---------------- step: the mean over all workers, without callbacks */

typedef struct gcomp_step {
    float scale;  /* gradients are read as scale * gradient (loss scaling); finite; 0: 1. For unequal batches see samples */
    float learning_rate; /* of rank 0, for the schedule accordion: when it falls, more is sent; >= 0, finite; 0: not said */
    uint32_t epoch; /* of the training, from 0, the same on all workers: dgc with warmup > 0, and the schedules warmup and
                       accordion go by it, and refuse a step that is NULL */
    /* Where workers have different numbers of samples: those of this worker, and those of all workers, of all machines too; the
       same batch on all. A gradient, a mean over the worker's own samples, is read as samples * world / batch * gradient, so
       that the mean over the workers is that over the samples. Without samples a worker counts 0, and any finite gradient will
       do. 0 <= samples <= batch, both finite; batch 0: all workers count alike. With vote and threshold1, whose payloads have no
       scale, all count alike. */
    double samples, batch;
} gcomp_step;

typedef enum gcomp_request_kind {
    GCOMP_WAIT = 0,       /* nothing to hand out until a tensor is ready or a request is done */
    GCOMP_DONE = 1,       /* all communicated: gcomp_step_commit */
    GCOMP_ALLGATHER = 2,  /* recv + w * stride <- bytes[w] bytes (at most stride) of worker w's send */
    GCOMP_ALLREDUCE = 3,  /* recv[count] <- sum over the workers of recv, in place */
    GCOMP_ALLREDUCE_MAX = 4, /* recv[count] <- the largest of the workers, floats, in place */
    GCOMP_ALLTOALL = 5       /* as comm.alltoallv: send, send_bytes, recv, bytes */
} gcomp_request_kind;

typedef struct gcomp_request {
    gcomp_request_kind kind;
    uint32_t id;          /* for gcomp_step_done; those under way together differ in the lowest 3 bits */
    const void *send;     /* ALLGATHER, ALLTOALL: this worker's bytes */
    void *recv;
    size_t stride;        /* ALLGATHER: bytes from one worker's place in recv to the next; stride bytes may be read from send */
    const size_t *bytes;  /* ALLGATHER: how many of each worker matter; ALLTOALL: how many come from each */
    const size_t *send_bytes; /* ALLTOALL: how many go to each */
    size_t count;         /* ALLREDUCE, ALLREDUCE_MAX: elements */
    gcomp_dtype dtype;    /* ALLREDUCE: GCOMP_F32, or an integer of comm.allreduce_dtypes; ALLREDUCE_MAX: GCOMP_F32 */
} gcomp_request;

/* Begins a step. NULL: all defaults; codecs and schedules that go by epochs want one that says the epoch. An error that only this
   worker has (no memory, a bad scale, no epoch) does not show here but travels in the frame and comes back from
   gcomp_step_next, so that no worker hangs. GCOMP_WRONG_STATE inside a step, and of objects with desc.node. */
GCOMP_API GCOMP_NODISCARD gcomp_result gcomp_step_begin(gcomp *gc, const gcomp_step *step);

/* Encodes a tensor, in any order, also while requests are under way. grad: elements of the tensor's dtype; must stay as it is
   until the commit. NULL: the tensor is skipped in this step, on all workers. If it shares memory with another gradient, the
   step ends with GCOMP_INVALID_ARGUMENT at the frame. GCOMP_INVALID_ARGUMENT for a wrong number, GCOMP_WRONG_STATE twice. */
GCOMP_API GCOMP_NODISCARD gcomp_result gcomp_step_ready(gcomp *gc, size_t tensor, void *grad);

/* Hands out the next request. Requests handed out may be carried out in any order or together, on all workers alike.
   An error ends the step on this worker (gcomp_error has the sentence): gradients and residuals are as they were. */
GCOMP_API GCOMP_NODISCARD gcomp_result gcomp_step_next(gcomp *gc, gcomp_request *request);

/* Says that a request was carried out; status 0: success. Anything else ends the step: GCOMP_CALLBACK_FAILED. */
GCOMP_API GCOMP_NODISCARD gcomp_result gcomp_step_done(gcomp *gc, uint32_t id, int status);

/* Writes the means into the gradients and the residuals, after GCOMP_DONE. Cannot fail but for GCOMP_WRONG_STATE, and for
   GCOMP_FLOAT_MODE: the step goes on, and the call may be repeated in the default mode. */
GCOMP_API GCOMP_NODISCARD gcomp_result gcomp_step_commit(gcomp *gc);

/* Ends a step without a commit: nothing has changed. Waits for what gcomp_step_progress has under way. No effect outside a
   step. A gcomp_exchange that a callback has left by longjmp or by an exception is a step too.
   gcomp_restart ends a step likewise. */
GCOMP_API GCOMP_NODISCARD gcomp_result gcomp_step_abort(gcomp *gc);

/* ---------------- exchange: the step through callbacks */

/* For a step that was begun, while its gradients are made: hands out to comm.start what can be handed out, asks comm.test, and
   comes back without waiting. Between layers of the backward pass, or from another thread, but not while another call on the
   object is under way. Without comm.start it does nothing.
   Returns GCOMP_OK, GCOMP_WRONG_STATE outside a step, or as gcomp_exchange: then the step is over, and what was under way was
   waited for. */
GCOMP_API GCOMP_NODISCARD gcomp_result gcomp_step_progress(gcomp *gc);

/* Carries out the rest of a step whose tensors are all ready, through comm.start and wait or the other callbacks, and commits.
   Returns as gcomp_exchange; GCOMP_WRONG_STATE outside a step, or if a tensor is not ready yet: then, and where it is
   GCOMP_MISSING_CALLBACK without comm.allgather or behind the first request, the step goes on. */
GCOMP_API GCOMP_NODISCARD gcomp_result gcomp_step_finish(gcomp *gc);

/* grads[i] (the gradient of tensor i; NULL on all workers: skipped) <- mean over all workers, in place.
   Returns GCOMP_OK; GCOMP_NOT_FINITE, GCOMP_PEER_FAILED, GCOMP_MISMATCH, GCOMP_OUT_OF_STEP, GCOMP_DIVERGED (see WORKERS AGREE);
   GCOMP_CALLBACK_FAILED, GCOMP_MISSING_CALLBACK, GCOMP_OUT_OF_MEMORY, GCOMP_INVALID_ARGUMENT, GCOMP_WRONG_STATE inside a step, or
   what is wrong with a payload that came in. After any error gradients and residuals of this worker are as they were.
   An error of this worker alone (grads is NULL, a dtype, memory) goes into its frame; the others get
   GCOMP_PEER_FAILED. No frame is sent, and the others wait, if gc or comm.allgather is NULL, or
   inside a step: finish that step.
   gcomp_result_class says what to do: see WHEN A STEP FAILS in the manual. */
GCOMP_API GCOMP_NODISCARD gcomp_result gcomp_exchange(gcomp *gc, float *const *grads, const gcomp_step *step);

/* The same for all tensors back to back in one array. */
GCOMP_API GCOMP_NODISCARD gcomp_result gcomp_exchange_flat(gcomp *gc, float *grads, const gcomp_step *step);

/* The same with each tensor's own dtype. fp16 gradients hold the mean rounded to nearest, saturated. */
GCOMP_API GCOMP_NODISCARD gcomp_result gcomp_exchange_any(gcomp *gc, void *const *grads, const gcomp_step *step);

/* ---------------- checkpoint: all state as bytes; workers that come and go (see the manual) */

/* Bytes that gcomp_save writes; the same until a tensor is added, or gcomp_regroup gives another rank. 0 if gc is NULL. */
GCOMP_API size_t gcomp_save_size(const gcomp *gc);

/* Writes what this worker must not lose: the step's number, residuals, momenta, warm starts, codecs that a schedule has chosen
   and what it knows, and digests of what must be equal when it is loaded (the manual has it byte by byte). On all workers: each
   has its own. A step under way is not in it, statistics neither. Changes nothing.
     save[capacity]  out  gcomp_save_size bytes suffice
     *length         out  bytes written; unchanged on error
   Returns GCOMP_OK, GCOMP_INVALID_ARGUMENT, GCOMP_DST_TOO_SMALL; GCOMP_WRONG_STATE where node.rank is not 0, as do all of
   these but gcomp_regroup and gcomp_regroup_machines. */
GCOMP_API GCOMP_NODISCARD gcomp_result gcomp_save(gcomp *gc, void *save, size_t capacity, size_t *length);

/* Goes on from saves, in an object opened with the same seed and schedule and given the same tensors and codecs. On all workers.
     one save, of this rank and of as many workers as now: the steps that follow have the same bits as those after gcomp_save
     the saves of all V ranks, in order of ranks, where there are V workers now: the same, from that of this rank
     the same where there are W now: each residual and momentum becomes the mean of the V saved ones, on all W workers, so that
       sum of residual / world is what it was
   All is checked before the first write; on error nothing is changed, and gcomp_error tells which save is wrong. Saves of any
   bytes and lengths may be given. Returns GCOMP_OK, GCOMP_INVALID_ARGUMENT, GCOMP_WRONG_STATE inside a step, GCOMP_NOT_A_SAVE,
   GCOMP_UNSUPPORTED_VERSION, GCOMP_TRUNCATED, GCOMP_TRAILING_BYTES, GCOMP_CHECKSUM_MISMATCH, GCOMP_CORRUPT, or
   GCOMP_SAVE_MISMATCH: of other tensors, codecs, schedule or seed, or not all ranks of one step, in order. */
GCOMP_API GCOMP_NODISCARD gcomp_result gcomp_load(gcomp *gc, const void *const *saves, const size_t *lengths, size_t count);

/* Adds what a worker that leaves has not sent to what this one has not: residual <- residual + saved, momentum likewise. Once for
   each that leaves, on any one worker, before gcomp_regroup. The save is of this step and of another rank of these workers, else
   GCOMP_SAVE_MISMATCH. Returns as gcomp_load; on error nothing is changed. */
GCOMP_API GCOMP_NODISCARD gcomp_result gcomp_take_over(gcomp *gc, const void *save, size_t length);

/* The same object with another rank, world and callbacks, between two steps: residual <- residual * new world / old world,
   momentum likewise, so that with those that left handed over, and with new workers that have none, sum of residual / world is
   what it was. If memory for steps was reserved, it is again. Codecs that a schedule has chosen stay.
   Returns GCOMP_OK, GCOMP_INVALID_ARGUMENT, GCOMP_WRONG_STATE inside a step, GCOMP_OUT_OF_MEMORY, or as gcomp_open where a codec
   does not suit the new workers: GCOMP_BAD_CODEC, GCOMP_MISSING_CALLBACK. On error nothing is changed. */
GCOMP_API GCOMP_NODISCARD gcomp_result gcomp_regroup(gcomp *gc, const gcomp_comm *comm);

/* The same where the workers of this worker's machine are others too: node takes the place of
   desc.node, world 0 or 1 says that the worker is alone. comm is as in desc: of machines.
     still the first worker        its state stays, by the rule of gcomp_regroup
     first no more                 it gives its residuals up: gcomp_save comes before
     first now (node.rank 0)       steps are GCOMP_WRONG_STATE until it has the state of a first worker:
                                   gcomp_load with the save of the machine's first worker before it,
                                   under the same comm.rank and world; or gcomp_join with that of
                                   another machine, if what was not sent is lost; or gcomp_restart
   Returns as gcomp_regroup; GCOMP_MISSING_CALLBACK: allreduce or allgather of node is NULL. */
GCOMP_API GCOMP_NODISCARD gcomp_result gcomp_regroup_machines(gcomp *gc, const gcomp_comm *comm,
                                                              const gcomp_comm *node);

/* Makes a new object one of the workers whose save, of any rank, this is: it takes the step's number and what all workers share
   (warm starts, the codecs of a schedule); its residuals and momenta are zero. Returns as gcomp_load; on error nothing is
   changed. */
GCOMP_API GCOMP_NODISCARD gcomp_result gcomp_join(gcomp *gc, const void *save, size_t length);

/* ---------------- optimizer */

/* The optimizer of PowerSGD's algorithm 2, whose momentum comes after error feedback: for n elements
     velocity <- momentum * velocity + mean,  x <- x - learning_rate * (mean + velocity)
   where mean is what an exchange left in the gradient, x the weights; velocity is zero at first. This is not Nesterov's momentum:
   the step is 2 mean + momentum * the old velocity. The arrays do not overlap. Returns GCOMP_OK or GCOMP_INVALID_ARGUMENT: a
   pointer is NULL and n > 0, or a number is not finite; then nothing has changed. */
GCOMP_API GCOMP_NODISCARD gcomp_result gcomp_momentum_step(float *x, float *velocity, const float *mean, size_t n,
                                                           float learning_rate, float momentum);

/* ---------------- statistics */

/* With desc.node the fields from steps to switches are this worker's. The other fields tell of what
   goes between machines: on the first worker of a machine. They are 0 on its other workers. */
typedef struct gcomp_statistics {
    uint64_t steps;            /* committed */
    uint64_t skipped;          /* ended by GCOMP_NOT_FINITE */
    uint64_t failed;           /* ended by another error */
    uint64_t not_finite;       /* gradients of this worker that were refused */
    uint64_t switches;         /* tensors to which the schedule gave another codec, all steps */
    uint64_t bytes_in;         /* gradient bytes as fp32, all steps */
    uint64_t bytes_out;        /* put into collectives: frames, elements of sums, payloads of gathers, shards for others */
    double ratio;              /* bytes_in / bytes_out */
    double encode_seconds;     /* all steps, by desc.clock */
    double communicate_seconds;
    double commit_seconds;
    double residual_norm;      /* L2 norm over all residuals, now */
    double relative_error;     /* desc.measure, or rank 0 of the schedule error: |p - sent| / |p| of the last step here */
    double mean_norm;          /* desc.measure: L2 norm of the last mean */
} gcomp_statistics;

/* Costs one pass over the residuals. GCOMP_INVALID_ARGUMENT: a pointer is NULL. */
GCOMP_API GCOMP_NODISCARD gcomp_result gcomp_stats(const gcomp *gc, gcomp_statistics *stats);

/* ---------------- advice: does compressing pay? */

/* What a collective takes if each worker brings b bytes: start + b * byte, in seconds. */
typedef struct gcomp_link {
    double sum_start, sum_byte;       /* allreduce */
    double gather_start, gather_byte; /* allgather */
} gcomp_link;

/* Collectives in a ring of `world` workers, with a bandwidth and the seconds that a message takes by itself: a sum is 2 (W - 1)
   messages of b / W bytes, a gather W - 1 of b bytes. Zeros for one worker. */
GCOMP_API gcomp_link gcomp_link_of(double bits_per_second, double latency, int world);

/* Times the object's allreduce and allgather with 64 bytes and with `bytes` (0: 2^20; better about what a step sends), each a few
   times; on all workers at once, between steps. All get the figures of the slowest. Takes (world + 1) * bytes of memory while
   it runs. One worker: zeros.
   Returns GCOMP_OK, GCOMP_INVALID_ARGUMENT, GCOMP_WRONG_STATE inside a step, GCOMP_MISSING_CALLBACK without allreduce, allgather
   or desc.clock, GCOMP_OUT_OF_MEMORY, GCOMP_PEER_FAILED (that of another), GCOMP_CALLBACK_FAILED, GCOMP_MISMATCH. On error *link
   is unchanged. */
GCOMP_API GCOMP_NODISCARD gcomp_result gcomp_link_measure(gcomp *gc, size_t bytes, gcomp_link *link);

/* What a codec costs on a machine, of all that a step does but communicate. */
typedef struct gcomp_figures {
    double tensor;  /* seconds a tensor, whatever its size */
    double element; /* seconds an element: to encode, and to commit the payload of one worker, or a sum */
    double payload; /* seconds an element for the payload of each further worker */
    double bytes;   /* bytes an element in its payload. Sums are known without it */
} gcomp_figures;

typedef struct gcomp_candidate {
    const char *codec;     /* REQUIRED */
    gcomp_figures figures; /* gcomp_advise measures what is missing, and writes it here: the three
                              times where all are 0; bytes, where 0, of a codec with payloads */
} gcomp_candidate;

/* At most that many. */
#define GCOMP_CANDIDATES 16

typedef struct gcomp_question {
    const gcomp_desc *desc;        /* REQUIRED: as for gcomp_open. codec is not read, callbacks are not called */
    gcomp_link link;
    const gcomp_tensor *tensors;   /* [tensor_count]; their codec is not read */
    size_t tensor_count;
    gcomp_candidate *candidates;   /* [candidate_count], the first is "none" */
    size_t candidate_count;
} gcomp_question;

typedef struct gcomp_tensor_advice {
    size_t choice;  /* number of a candidate, for gcomp_tensor.codec; 0: do not compress */
    double seconds; /* its part of a step: codec and bytes on the link, without the start of collectives, which all share */
    double plain;   /* the same if it is not compressed */
} gcomp_tensor_advice;

typedef struct gcomp_advice {
    size_t compressed;    /* tensors with another choice than 0. None: do not compress */
    double seconds;       /* of a step as advised: codec_seconds + link_seconds */
    double codec_seconds;
    double link_seconds;
    double plain;         /* of a step without compression */
} gcomp_advice;

/* Finds the choice of candidates, tensor by tensor, with the shortest step:
     for each tensor of n elements, W workers:   tensor + n * (element + (W - 1) * payload)
     for a payload of it:                        (32 + n * bytes) * gather_byte
     for its sums of b bytes:                    b * sum_byte
     for each collective that some tensor uses, and for the frames:   its start
   Vectors, small tensors and matrices that would not gain are not compressed, as in gcomp_add_tensor; a vector that is the only
   tensor may be. Equal times: candidate 0.
   Payloads are gathered: with many workers shards (comm.alltoallv) and two shots are faster than this says.
   Figures that are missing are measured first: an object with the tensors, as many as have 2^23
   elements together, is opened with desc.allocator and closed again; times need desc.clock. Numbers
   are normally distributed: where the length of a payload depends on more than that (strom, nonzero,
   adacomp, coded levels), set `bytes`; what is set stays. Workers that share a machine measure all at
   once, as they work; ask on rank 0 and tell the others. With all figures nothing is allocated.
     each[tensor_count]  out  NULL: not wanted
     *advice             out
   Returns GCOMP_OK, GCOMP_INVALID_ARGUMENT, GCOMP_BAD_CODEC, GCOMP_MISSING_CALLBACK (also: nothing to measure with),
   GCOMP_OUT_OF_MEMORY, GCOMP_ISA_UNAVAILABLE; desc->why has the sentence. On error the results are unchanged. */
GCOMP_API GCOMP_NODISCARD gcomp_result gcomp_advise(const gcomp_question *question, gcomp_tensor_advice *each,
                                                    gcomp_advice *advice);

#ifdef __cplusplus
}
#endif

#endif /* GCOMP_H */

#endif /* !GCOMP__PASS */

/* ================================================================================================
   The implementation. It stands outside the include guard and is compiled where GCOMP_IMPLEMENTATION is defined.
   ================================================================================================ */

#if defined(GCOMP_IMPLEMENTATION) && !defined(GCOMP__IMPLEMENTED)
#define GCOMP__IMPLEMENTED

/* ------------------------------------------------------------------------------------------------
   >>platform - compiler, instruction sets, exact arithmetic, floating-point modes
   ------------------------------------------------------------------------------------------------ */

/* Warnings that some ask for, of what C cannot do without or what one body for all instruction sets says twice; until the end. */
#if defined(__GNUC__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wfloat-equal"
#if !defined(__clang__) && __GNUC__ >= 7
#pragma GCC diagnostic ignored "-Wduplicated-cond"
#pragma GCC diagnostic ignored "-Wduplicated-branches"
#endif
#ifdef __cplusplus
#pragma GCC diagnostic ignored "-Wold-style-cast"
#pragma GCC diagnostic ignored "-Wzero-as-null-pointer-constant"
#ifndef __clang__
#pragma GCC diagnostic ignored "-Wuseless-cast"
#endif
#endif
#endif

#include <float.h>
#include <limits.h>
#include <string.h>
#ifndef GCOMP_NO_STDLIB
#include <stdlib.h>
#endif

#if defined(__has_include)
#if !defined(GCOMP_STB_DS_H) && !__has_include("stb_ds.h") && __has_include(<stb/stb_ds.h>)
#define GCOMP_STB_DS_H <stb/stb_ds.h>
#endif
#endif
#ifndef GCOMP_STB_DS_H
#define GCOMP_STB_DS_H "stb_ds.h"
#endif
#ifndef GCOMP_SELF
#define GCOMP_SELF "gcomp.h"
#endif
#ifndef GCOMP_MAX_ISA
#define GCOMP_MAX_ISA 4
#endif

#if defined(FLT_EVAL_METHOD) && FLT_EVAL_METHOD != 0 && FLT_EVAL_METHOD != 16
#error "gcomp.h needs float arithmetic in float: on 32-bit x86 compile with -msse2 -mfpmath=sse"
#endif

/* Which vector sets this build has. Each is compiled with target pragmas, and runs only where cpuid says so. */
#if defined(__x86_64__) && defined(__GNUC__) && (!defined(__MINGW32__) || defined(__clang__) || defined(GCOMP_ALLOW_MINGW_AVX))
#define GCOMP__X86 1
#else
#define GCOMP__X86 0
#endif
#if defined(__aarch64__) && defined(__GNUC__) && defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
#define GCOMP__ARM64 1
#else
#define GCOMP__ARM64 0
#endif
#if GCOMP__X86 || defined(__SSE2__) || defined(_M_X64)
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized" /* gcc's own header, at -O1 */
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif
#endif
#if GCOMP__ARM64
#include <arm_acle.h>
#include <arm_neon.h>
#endif

#if defined(__GNUC__)
#define GCOMP__INLINE static inline __attribute__((__always_inline__, __unused__))
#define GCOMP__NOINLINE static __attribute__((__noinline__, __unused__))
#define GCOMP__RARE static __attribute__((__noinline__, __cold__, __unused__)) /* out of the way of the code that calls it */
#define GCOMP__SHARED static __attribute__((__unused__)) /* by methods all of which may be left out */
#define GCOMP__UNROLL _Pragma("GCC unroll 16")
#define GCOMP__ON_A_LINE __attribute__((__aligned__(64))) /* of the cache */
#define GCOMP__PREFETCH(p) __builtin_prefetch(p)
#define GCOMP__PREFETCH_NEAR(p) __builtin_prefetch(p, 0, 2) /* not as far as the innermost cache */
#define GCOMP__BARRIER __asm__ volatile("" : : : "memory")
#define GCOMP__SHARED_WORD unsigned /* that threads read and write without a lock */
#define GCOMP__LOAD_WORD(word) __atomic_load_n(&(word), __ATOMIC_RELAXED)
#define GCOMP__STORE_WORD(word, value) __atomic_store_n(&(word), value, __ATOMIC_RELAXED)
#else
#define GCOMP__INLINE static inline
#define GCOMP__NOINLINE static
#define GCOMP__RARE static
#define GCOMP__SHARED static
#define GCOMP__UNROLL
#define GCOMP__ON_A_LINE
#define GCOMP__PREFETCH(p) ((void)(p))
#define GCOMP__PREFETCH_NEAR(p) ((void)(p))
#define GCOMP__BARRIER ((void)0)
#define GCOMP__SHARED_WORD volatile unsigned /* one access a word, on all machines of such compilers */
#define GCOMP__LOAD_WORD(word) (word)
#define GCOMP__STORE_WORD(word, value) ((word) = (value))
#endif

#if defined(__clang__)
#define GCOMP__ONE_BY_ONE _Pragma("clang loop vectorize(disable)")
#else
#define GCOMP__ONE_BY_ONE
#endif

/* Exact arithmetic, whatever flags the user builds with. gcc obeys these two options, in intrinsics too. clang's back end
   does not under -ffast-math or -ffp-contract=fast: there results pass through an empty asm that it cannot look through. */
#if defined(__clang__)
#pragma STDC FP_CONTRACT OFF
#if defined(__x86_64__) || defined(__SSE2__)
#define GCOMP__PIN(v) __asm__("" : "+x"(v))
#elif defined(__aarch64__)
#define GCOMP__PIN(v) __asm__("" : "+w"(v))
#else
#define GCOMP__PIN(v) __asm__("" : "+m"(v))
#endif
#if defined(__FAST_MATH__)
#define GCOMP__PIN_SUM(v) GCOMP__PIN(v)
#else
#define GCOMP__PIN_SUM(v) ((void)0)
#endif
#else
#define GCOMP__PIN(v) ((void)0)
#define GCOMP__PIN_SUM(v) ((void)0)
#endif
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC push_options
#pragma GCC optimize("no-fast-math", "fp-contract=off")
#endif

/* stb_ds.h serves bookkeeping only: arr* over memory from the user's allocator, grown by >>base, so that no function of stb_ds
   is needed. A user's own stb_ds.h may stand before or behind this in the same file: if behind, stb_ds.h declares all again,
   and what C does not allow twice has names of our own here. */
#ifndef INCLUDE_STB_DS_H
#define GCOMP__STB_DS
#ifdef STB_DS_IMPLEMENTATION
#undef STB_DS_IMPLEMENTATION
#define GCOMP__STB_DS_IMPLEMENTATION
#endif
#ifndef STBDS_NO_SHORT_NAMES
#define STBDS_NO_SHORT_NAMES
#define GCOMP__STB_DS_SHORT_NAMES
#endif
#ifndef STBDS_REALLOC
#define STBDS_REALLOC(context, memory, bytes) NULL
#define STBDS_FREE(context, memory) ((void)0)
#define GCOMP__STB_DS_REALLOC
#endif
#define stbds_array_header gcomp__stbds_array_header
#define stbds_string_block gcomp__stbds_string_block
#define stbds_string_arena gcomp__stbds_string_arena
#define stbds_stralloc gcomp__stbds_stralloc
#define stbds_strreset gcomp__stbds_strreset
#define STBDS_SH_NONE GCOMP__STBDS_SH_NONE
#define STBDS_SH_DEFAULT GCOMP__STBDS_SH_DEFAULT
#define STBDS_SH_STRDUP GCOMP__STBDS_SH_STRDUP
#define STBDS_SH_ARENA GCOMP__STBDS_SH_ARENA
#ifdef __cplusplus
#define stbds_arrgrowf_wrapper gcomp__stbds_arrgrowf_wrapper
#define stbds_hmget_key_wrapper gcomp__stbds_hmget_key_wrapper
#define stbds_hmget_key_ts_wrapper gcomp__stbds_hmget_key_ts_wrapper
#define stbds_hmput_default_wrapper gcomp__stbds_hmput_default_wrapper
#define stbds_hmput_key_wrapper gcomp__stbds_hmput_key_wrapper
#define stbds_hmdel_key_wrapper gcomp__stbds_hmdel_key_wrapper
#define stbds_shmode_func_wrapper gcomp__stbds_shmode_func_wrapper
#endif
#if defined(__GNUC__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wundef"
#endif
#include GCOMP_STB_DS_H
#if defined(__GNUC__)
#pragma GCC diagnostic pop
#endif
#endif

/* The floating-point mode: bits of a control register, and what they are for rounding to nearest, without flushing of subnormals
   and without traps. The rest of the register are flags of what has happened. */
#if defined(GCOMP__KEEP_MODE) || (!defined(__GNUC__) && !defined(_M_X64)) /* for tests: as where no register is known */
#elif defined(__SSE2__) || defined(_M_X64)
#define GCOMP__MODE_BITS 0xffffffc0u
#define GCOMP__MODE 0x1f80u
#elif defined(__aarch64__)
#define GCOMP__MODE_BITS 0x03c09f07u
#define GCOMP__MODE_GET "mrs %0, fpcr"
#define GCOMP__MODE_SET "msr fpcr, %0"
#elif defined(__arm__) && defined(__ARM_FP) && (!defined(__thumb__) || defined(__thumb2__))
#define GCOMP__MODE_BITS 0x03f79f00u
#elif defined(__riscv) && defined(__riscv_flen)
#define GCOMP__MODE_BITS 0xe0u
#define GCOMP__MODE_GET "frcsr %0"
#define GCOMP__MODE_SET "fscsr %0"
#elif (defined(__powerpc__) || defined(__powerpc64__)) && !defined(_SOFT_FLOAT) && !defined(__NO_FPRS__)
#define GCOMP__MODE_BITS 0xffu
#elif defined(__s390x__)
#define GCOMP__MODE_BITS 0xf8000007u
#define GCOMP__MODE_GET "efpc %0"
#define GCOMP__MODE_SET "sfpc %0"
#endif
#ifndef GCOMP__MODE
#define GCOMP__MODE 0u
#endif

#ifdef GCOMP__MODE_BITS
static uint64_t gcomp__mode(void)
{
#if defined(__SSE2__) || defined(_M_X64)
    return _mm_getcsr();
#elif defined(__arm__)
    return __builtin_arm_get_fpscr();
#elif defined(__powerpc__) || defined(__powerpc64__)
    double word;
    uint64_t mode;
    __asm__ volatile("mffs %0" : "=f"(word));
    memcpy(&mode, &word, 8);
    return mode;
#else
    unsigned long mode;
    __asm__ volatile(GCOMP__MODE_GET : "=r"(mode));
    return mode;
#endif
}

static void gcomp__mode_set(uint64_t mode)
{
#if defined(__SSE2__) || defined(_M_X64)
    _mm_setcsr((unsigned)mode);
#elif defined(__arm__)
    __builtin_arm_set_fpscr((unsigned)mode);
#elif defined(__powerpc__) || defined(__powerpc64__)
    double word;
    memcpy(&word, &mode, 8);
    __asm__ volatile("mtfsf 255,%0" : : "f"(word) : "memory");
#else
    __asm__ volatile(GCOMP__MODE_SET : : "r"((unsigned long)mode) : "memory");
#endif
}
#endif

/* The library's own mode from here to gcomp__fp_leave, where the caller's comes back. What calculates between the two from
   arguments alone stands in a function of its own, not inlined, lest the compiler moves it out. */
static uint64_t gcomp__fp_enter(void)
{
#ifdef GCOMP__MODE_BITS
    const uint64_t mode = gcomp__mode();
    if ((mode & GCOMP__MODE_BITS) != GCOMP__MODE) gcomp__mode_set((mode & ~(uint64_t)GCOMP__MODE_BITS) | GCOMP__MODE);
    GCOMP__BARRIER;
    return mode;
#else
    return 0;
#endif
}

static void gcomp__fp_leave(uint64_t mode)
{
#ifdef GCOMP__MODE_BITS
    GCOMP__BARRIER;
    if ((mode & GCOMP__MODE_BITS) != GCOMP__MODE) gcomp__mode_set(mode);
#else
    (void)mode;
#endif
}

/* Can the library calculate in its own mode? Where no register is known, the caller's has to be the same. Half a unit in the last
   place tells how 1 + 2^-24, -1 - 2^-24 and 1 + 3 * 2^-24 are rounded, half of the least normal number whether it is flushed. */
#ifdef GCOMP__MODE_BITS
enum { GCOMP__SETS_MODE = 1 };
static int gcomp__mode_fits(void) { return 1; }
#else
enum { GCOMP__SETS_MODE = 0 };
GCOMP__NOINLINE int gcomp__mode_fits(void)
{
    const volatile float one = 1, bit = 5.9604644775390625e-8f, half = 0.5f, least = 1.1754943508222875e-38f;
    const volatile float up = one + bit, down = -one - bit, even = one + (bit + 2 * bit), lesser = least * half;
    const volatile float again = lesser / half;
    return up == 1 && down == -1 && even == 1 + 4 * 5.9604644775390625e-8f && lesser > 0 && again == least;
}
#endif

/* ------------------------------------------------------------------------------------------------
   >>base - sizes, little-endian words, text, numbers as text
   ------------------------------------------------------------------------------------------------ */

typedef char gcomp__assume_8_bit_bytes[CHAR_BIT == 8 ? 1 : -1];
typedef char gcomp__assume_ieee_float[sizeof(float) == 4 && FLT_MANT_DIG == 24 && DBL_MANT_DIG == 53 ? 1 : -1];

#define GCOMP__TRY(expression) \
    do { \
        gcomp_result gcomp__tried = (expression); \
        if (gcomp__tried != GCOMP_OK) return gcomp__tried; \
    } while (0)

GCOMP__INLINE size_t gcomp__min(size_t a, size_t b) { return a < b ? a : b; }
GCOMP__INLINE size_t gcomp__max(size_t a, size_t b) { return a > b ? a : b; }
GCOMP__INLINE uint32_t gcomp__larger(uint32_t a, uint32_t b) { return a > b ? a : b; }

/* a * b and a + b; SIZE_MAX stands for "too much" and stays so. */
static size_t gcomp__times(size_t a, size_t b)
{
    if (a == 0 || b == 0) return 0;
    return a == SIZE_MAX || b == SIZE_MAX || a > SIZE_MAX / b ? SIZE_MAX : a * b;
}

static size_t gcomp__plus(size_t a, size_t b) { return a > SIZE_MAX - b ? SIZE_MAX : a + b; }
static size_t gcomp__pieces(size_t n, size_t size) { return n / size + (n % size != 0); } /* the last one may be smaller */
static size_t gcomp__round_up(size_t a, size_t to) { return a > SIZE_MAX - to ? SIZE_MAX : (a + to - 1) / to * to; }

GCOMP__INLINE uint32_t gcomp__bits(float x)
{
    uint32_t u;
    memcpy(&u, &x, 4);
    return u;
}

GCOMP__INLINE float gcomp__float(uint32_t u)
{
    float x;
    memcpy(&x, &u, 4);
    return x;
}

/* Finite by the bits, so that no compiler option can remove the test. */
GCOMP__INLINE int gcomp__finite(float x) { return (gcomp__bits(x) & 0x7f800000u) != 0x7f800000u; }

GCOMP__INLINE int gcomp__finite_double(double x)
{
    uint64_t u;
    memcpy(&u, &x, 8);
    return (u & 0x7ff0000000000000u) != 0x7ff0000000000000u;
}

GCOMP__INLINE unsigned gcomp__popcount(uint32_t x)
{
#if defined(__GNUC__)
    return (unsigned)__builtin_popcount(x);
#else
    unsigned count = 0;
    for (; x; x &= x - 1) count++;
    return count;
#endif
}

GCOMP__INLINE void gcomp__put32(uint8_t *b, uint32_t v)
{
    b[0] = (uint8_t)v;
    b[1] = (uint8_t)(v >> 8);
    b[2] = (uint8_t)(v >> 16);
    b[3] = (uint8_t)(v >> 24);
}

GCOMP__INLINE uint32_t gcomp__get32(const uint8_t *b)
{
    return (uint32_t)b[0] | (uint32_t)b[1] << 8 | (uint32_t)b[2] << 16 | (uint32_t)b[3] << 24;
}

GCOMP__INLINE void gcomp__put64(uint8_t *b, uint64_t v)
{
    gcomp__put32(b, (uint32_t)v);
    gcomp__put32(b + 4, (uint32_t)(v >> 32));
}

GCOMP__INLINE uint64_t gcomp__get64(const uint8_t *b)
{
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    uint64_t word; /* one load: gcc joins four bytes, but not two words */
    memcpy(&word, b, 8);
    return word;
#else
    return gcomp__get32(b) | (uint64_t)gcomp__get32(b + 4) << 32;
#endif
}

GCOMP__INLINE void gcomp__put16(uint8_t *b, uint32_t v)
{
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    uint16_t word = (uint16_t)v; /* one store: gcc joins four bytes, but not two */
    memcpy(b, &word, 2);
#else
    b[0] = (uint8_t)v;
    b[1] = (uint8_t)(v >> 8);
#endif
}

/* A word whose first byte is the highest. */
GCOMP__INLINE uint32_t gcomp__get32_high(const uint8_t *b)
{
    return (uint32_t)b[0] << 24 | (uint32_t)b[1] << 16 | (uint32_t)b[2] << 8 | (uint32_t)b[3];
}

GCOMP__INLINE uint32_t gcomp__get16(const uint8_t *b) { return (uint32_t)b[0] | (uint32_t)b[1] << 8; }
GCOMP__INLINE void gcomp__put_float(uint8_t *b, float x) { gcomp__put32(b, gcomp__bits(x)); }
GCOMP__INLINE float gcomp__get_float(const uint8_t *b) { return gcomp__float(gcomp__get32(b)); }

/* |x| <= 65504 to binary16, nearest even. Below 2^-14 the addition of 0.5 rounds at the right bit. */
GCOMP__INLINE uint32_t gcomp__to_half(float x)
{
    uint32_t u = gcomp__bits(x), sign = u >> 16 & 0x8000u;
    u &= 0x7fffffffu;
    if (u < 0x38800000u) {
        float shifted = gcomp__float(u) + 0.5f;
        GCOMP__PIN_SUM(shifted);
        return sign | (gcomp__bits(shifted) - 0x3f000000u);
    }
    return sign | ((u - 0x38000000u + 0xfffu + (u >> 13 & 1)) >> 13);
}

GCOMP__INLINE float gcomp__from_half(uint32_t h)
{
    uint32_t u = (h & 0x7fffu) << 13, exponent = u & 0x0f800000u;
    float x;
    if (exponent == 0x0f800000u) {
        u += 0x70000000u;
    } else if (exponent == 0) {
        x = gcomp__float(u + 0x38800000u) - gcomp__float(0x38800000u);
        GCOMP__PIN_SUM(x);
        u = gcomp__bits(x);
    } else {
        u += 0x38000000u;
    }
    return gcomp__float(u | (h & 0x8000u) << 16);
}

/* The bits of a half that has the sign of a byte, or of 6 bits, and the other bits from `shift` on. */
GCOMP__INLINE int32_t gcomp__short_mask(int shift) { return ((0x80 << shift) - 1) | -0x8000; }
GCOMP__INLINE int32_t gcomp__six_mask(int shift) { return 0x1f << shift | -0x8000; }

/* |x| <= 0x7f7f0000 to bfloat16, nearest even. */
GCOMP__INLINE uint32_t gcomp__to_bfloat(float x)
{
    uint32_t u = gcomp__bits(x);
    return (u + 0x7fffu + (u >> 16 & 1)) >> 16;
}

#define GCOMP__HALF_MAX 65504.0f
#define GCOMP__BFLOAT_MAX (gcomp__float(0x7f7f0000u))

/* The double nearest to the root of x, x >= 0 and finite: bit by bit where no instruction of the processor finds it. */
GCOMP__NOINLINE double gcomp__sqrt_bits(double x)
{
    uint64_t u, rest = 0, root = 0;
    int exponent, i;
    if (!(x > 0)) return 0;
    memcpy(&u, &x, 8);
    exponent = (int)(u >> 52) - 1023; /* sums of squares of floats are never subnormal doubles */
    u = (u & 0xfffffffffffffu) | 0x10000000000000u;
    if (exponent & 1) u <<= 1, exponent--;
    for (i = 53; i >= 0; i--) { /* of u * 2^54: 54 bits, the last one to round by; a half it never is */
        rest = rest << 2 | (i >= 27 ? u >> (2 * i - 54) & 3 : 0);
        root <<= 1;
        if (rest > 2 * root) {
            rest -= 2 * root + 1;
            root++;
        }
    }
    u = ((uint64_t)(exponent / 2 + 1022) << 52) + ((root + 1) >> 1);
    memcpy(&x, &u, 8);
    return x;
}

GCOMP__INLINE double gcomp__sqrt(double x)
{
#if GCOMP__X86 || defined(__SSE2__)
    const __m128d v = _mm_set_sd(x);
    return x > 0 ? _mm_cvtsd_f64(_mm_sqrt_sd(v, v)) : 0;
#elif GCOMP__ARM64
    return x > 0 ? vget_lane_f64(vsqrt_f64(vdup_n_f64(x)), 0) : 0;
#else
    return gcomp__sqrt_bits(x);
#endif
}

/* a * b + c rounded once: exact product in double, sum rounded to odd, then to float. */
GCOMP__INLINE float gcomp__fmaf(float a, float b, float c)
{
#if (defined(__FMA__) || defined(__aarch64__)) && defined(__GNUC__)
    return __builtin_fmaf(a, b, c);
#else
    double p = (double)a * (double)b, s = p + (double)c, t, err;
    GCOMP__PIN_SUM(s);
    t = s - p;
    GCOMP__PIN_SUM(t);
    err = s - t;
    GCOMP__PIN_SUM(err);
    err = p - err;
    GCOMP__PIN_SUM(err);
    t = (double)c - t;
    GCOMP__PIN_SUM(t);
    err += t;
    if (gcomp__finite_double(s) && err != 0) {
        uint64_t u;
        memcpy(&u, &s, 8);
        if (!(u & 1)) {
            if ((err > 0) == (s > 0)) u += 1;
            else u -= 1;
        }
        memcpy(&s, &u, 8);
    }
    return (float)s;
#endif
}

/* Text in a buffer of fixed size: cut to fit, always ended by 0; length counts what would have been written. */
typedef struct gcomp__text {
    char *at;
    size_t capacity, length;
} gcomp__text;

static gcomp__text gcomp__text_in(char *buffer, size_t capacity)
{
    gcomp__text t;
    t.at = buffer;
    t.capacity = buffer ? capacity : 0;
    t.length = 0;
    if (t.capacity) buffer[0] = 0;
    return t;
}

static void gcomp__say_char(gcomp__text *t, char c)
{
    if (t->length + 1 < t->capacity) {
        t->at[t->length] = c;
        t->at[t->length + 1] = 0;
    }
    t->length++;
}

static void gcomp__say(gcomp__text *t, const char *text)
{
    while (*text) gcomp__say_char(t, *text++);
}

static void gcomp__say_some(gcomp__text *t, const char *text, size_t length)
{
    while (length--) gcomp__say_char(t, *text++);
}

static void gcomp__say_number(gcomp__text *t, uint64_t v)
{
    char digits[20];
    int n = 0;
    do digits[n++] = (char)('0' + v % 10);
    while ((v /= 10) != 0);
    while (n) gcomp__say_char(t, digits[--n]);
}

static void gcomp__say_integer(gcomp__text *t, int64_t v)
{
    if (v < 0) gcomp__say_char(t, '-');
    gcomp__say_number(t, v < 0 ? 0 - (uint64_t)v : (uint64_t)v);
}

static double gcomp__ten_to(int e)
{
    double p = 1;
    while (e-- > 0) p *= 10; /* exact up to 10^22 */
    return p;
}

/* digits * 10^e, correctly rounded, for digits < 2^53 and |e| <= 22: one exact operand each, one rounding. */
static double gcomp__decimal(uint64_t digits, int e)
{
    return e < 0 ? (double)digits / gcomp__ten_to(-e) : (double)digits * gcomp__ten_to(e);
}

/* Decimal digits without zeros in front: 0.d0 d1 d2 ... * 10^point. As many as a parameter and its halves take exactly. */
typedef struct gcomp__digits {
    uint8_t digit[192];
    int count, point;
} gcomp__digits;

static void gcomp__double_digits(gcomp__digits *d)
{
    int carry = 0, i;
    for (i = d->count; i-- > 0; carry = carry > 9) {
        carry += 2 * d->digit[i];
        d->digit[i] = (uint8_t)(carry % 10);
    }
    if (carry) {
        if (d->count < (int)sizeof d->digit) d->count++;
        memmove(d->digit + 1, d->digit, (size_t)d->count - 1);
        d->digit[0] = 1;
        d->point++;
    }
    while (d->count && !d->digit[d->count - 1]) d->count--;
}

static void gcomp__halve_digits(gcomp__digits *d)
{
    int rest = 0, i;
    for (i = 0; i < d->count; i++) {
        rest = 10 * (rest & 1) + d->digit[i];
        d->digit[i] = (uint8_t)(rest / 2);
    }
    if (rest & 1 && d->count < (int)sizeof d->digit) d->digit[d->count++] = 5;
    if (d->count && !d->digit[0]) {
        memmove(d->digit, d->digit + 1, (size_t)--d->count);
        d->point--;
    }
}

/* Of d >= 0 what stands before the point; UINT64_MAX: too much for 53 bits. */
static uint64_t gcomp__whole_of(const gcomp__digits *d)
{
    uint64_t whole = 0;
    int i;
    for (i = 0; i < d->point && d->point <= 16; i++) whole = whole * 10 + (i < d->count ? d->digit[i] : 0);
    return d->point > 16 || whole >> 53 ? UINT64_MAX : whole;
}

/* The nearest double, of two the even one. */
static double gcomp__nearest(gcomp__digits d)
{
    uint64_t whole;
    double value;
    int e = 0;
    if (!d.count) return 0;
    for (; gcomp__whole_of(&d) == UINT64_MAX; e++) gcomp__halve_digits(&d);
    for (; gcomp__whole_of(&d) < (uint64_t)1 << 52; e--) gcomp__double_digits(&d);
    whole = gcomp__whole_of(&d);
    if (d.count > d.point && d.digit[d.point] >= 5)
        whole += d.digit[d.point] > 5 || d.count > d.point + 1 || whole & 1;
    for (value = (double)whole; e > 0; e--) value *= 2;
    for (; e < 0; e++) value /= 2;
    return value;
}

/* Reads an unsigned decimal number, "0.01" or "1e-3", as the nearest double. Returns what follows it, NULL if it is none or is
   far out of all ranges. */
static const char *gcomp__read_number(const char *s, double *value)
{
    enum { MOST = 40 }; /* of more it matters only if one is not zero */
    gcomp__digits d;
    int any = 0, point = 0, exponent = 0, negative = 0;
    d.count = d.point = 0;
    for (; (*s >= '0' && *s <= '9') || (*s == '.' && !point); s++) {
        if (*s == '.') {
            point = 1;
            continue;
        }
        any = 1;
        if (d.count || *s != '0') {
            if (d.count < MOST) d.digit[d.count++] = (uint8_t)(*s - '0');
            else if (*s != '0' && d.digit[MOST - 1] % 5 == 0) d.digit[MOST - 1]++; /* no longer half of anything */
            if (d.point < 1000) d.point += !point;
        } else if (d.point > -1000) d.point -= point;
    }
    if (!any) return NULL;
    if (*s == 'e' || *s == 'E') {
        s++;
        if (*s == '-' || *s == '+') negative = *s++ == '-';
        if (*s < '0' || *s > '9') return NULL;
        for (; *s >= '0' && *s <= '9'; s++)
            if (exponent < 1000) exponent = exponent * 10 + (*s - '0');
    }
    d.point += negative ? -exponent : exponent;
    if (d.count && (d.point < -40 || d.point > 40)) return NULL;
    *value = gcomp__nearest(d);
    return s;
}

/* Of the first digit of v > 0 the power of ten, from -40 to 40. */
static int gcomp__magnitude(double v)
{
    int e;
    for (e = 0; e < 40 && v >= gcomp__ten_to(e + 1); e++) {}
    for (; e > -40 && e <= 0 && v < 1 / gcomp__ten_to(-e); e--) {}
    return e;
}

/* The number of fewest digits that is v as a float: 0.1, and not 0.1000000014901161. */
static double gcomp__short_decimal(float v)
{
    int e, precision;
    if (!(v > 0)) return (double)v;
    e = gcomp__magnitude((double)v);
    for (precision = 1; precision <= 9; precision++) {
        int shift = e - precision + 1;
        double digits, found;
        if (shift < -22 || shift > 22) continue;
        digits = shift < 0 ? (double)v * gcomp__ten_to(-shift) : (double)v / gcomp__ten_to(shift);
        found = gcomp__decimal((uint64_t)(digits + 0.5), shift);
        if ((float)found == v) return found;
    }
    return (double)v;
}

/* All digits of v > 0, from 1e-40 to 1e40. */
static gcomp__digits gcomp__digits_of(double v)
{
    gcomp__digits d;
    uint64_t whole;
    int e = 0;
    for (; v < 4503599627370496.0; e--) v *= 2;
    for (; v >= 9007199254740992.0; e++) v /= 2;
    for (whole = (uint64_t)v, d.count = 16; d.count; whole /= 10) d.digit[--d.count] = (uint8_t)(whole % 10);
    d.count = d.point = 16;
    for (; e > 0; e--) gcomp__double_digits(&d);
    for (; e < 0; e++) gcomp__halve_digits(&d);
    return d;
}

/* The nearest with at most so many digits, of two the larger. */
static gcomp__digits gcomp__cut_digits(gcomp__digits d, int count)
{
    const int up = d.count > count && d.digit[count] >= 5;
    if (d.count > count) d.count = count;
    if (up) {
        while (d.count && d.digit[d.count - 1] == 9) d.count--;
        if (d.count) d.digit[d.count - 1]++;
        else d.digit[d.count++] = 1, d.point++;
    }
    while (d.count && !d.digit[d.count - 1]) d.count--;
    return d;
}

/* The shortest text that gcomp__read_number reads back as v, from 1e-40 to 1e40. */
static void gcomp__say_decimal(gcomp__text *t, double v)
{
    int precision, e, i, length;
    gcomp__digits all, d;
    char text[24];
    if (!(v > 0)) {
        gcomp__say_char(t, '0');
        return;
    }
    all = gcomp__digits_of(v);
    for (precision = 1; precision < 17 && gcomp__nearest(gcomp__cut_digits(all, precision)) != v; precision++) {}
    d = gcomp__cut_digits(all, precision);
    e = d.point - d.count;
    for (length = 0; length < d.count; length++) text[length] = (char)('0' + d.digit[d.count - 1 - length]);
    if (e >= 0 && length + e <= 9) { /* 1024 */
        while (length) gcomp__say_char(t, text[--length]);
        while (e-- > 0) gcomp__say_char(t, '0');
    } else if (e < 0 && length + e > -4) { /* 12.5, 0.01 */
        if (length + e <= 0) gcomp__say(t, "0.");
        for (i = length + e; i < 0; i++) gcomp__say_char(t, '0');
        for (i = length - 1; i >= 0; i--) {
            gcomp__say_char(t, text[i]);
            if (i == -e && i > 0) gcomp__say_char(t, '.');
        }
    } else { /* 1e-5 */
        while (length) gcomp__say_char(t, text[--length]);
        gcomp__say_char(t, 'e');
        gcomp__say_integer(t, e);
    }
}

/* Memory of the user's allocator, counted. */
typedef struct gcomp__memory {
    gcomp_allocator allocator;
    size_t used;
    int misaligned; /* it once gave memory that kernels cannot use */
} gcomp__memory;

static const char gcomp__misaligned[] = "desc.allocator.alloc ignores align: memory that it returned is not aligned to 64 bytes";

static void *gcomp__allocate(gcomp__memory *memory, size_t bytes)
{
    void *p;
    if (bytes == SIZE_MAX) return NULL;
    p = (memory->allocator.alloc)(memory->allocator.user, bytes, 64);
    if ((uintptr_t)p & 63) {
        (memory->allocator.free)(memory->allocator.user, p, bytes);
        memory->misaligned = 1;
        return NULL;
    }
    if (p) memory->used += bytes;
    return p;
}

static void gcomp__release(gcomp__memory *memory, void *p, size_t bytes)
{
    if (!p) return;
    (memory->allocator.free)(memory->allocator.user, p, bytes);
    memory->used -= bytes;
}

/* Memory that comes and goes with the tensors: its address and its size are one thing. None: NULL and 0. */
typedef struct gcomp__room {
    uint8_t *at;
    size_t bytes;
} gcomp__room;

/* Not touched: what steps do not use costs nothing where the system gives memory page by page.
   0 without memory, and then nothing is changed. */
static int gcomp__room_take(gcomp__memory *memory, gcomp__room *room, size_t bytes)
{
    uint8_t *at = (uint8_t *)gcomp__allocate(memory, bytes);
    if (!at) return 0;
    room->at = at;
    room->bytes = bytes;
    return 1;
}

static void gcomp__room_give(gcomp__memory *memory, gcomp__room *room)
{
    gcomp__release(memory, room->at, room->bytes);
    room->at = NULL;
    room->bytes = 0;
}

/* stb_ds arrays in that memory: the header of stb_ds stands before `capacity` elements. */
static size_t gcomp__array_bytes(size_t capacity, size_t element)
{
    return gcomp__plus(sizeof(stbds_array_header), gcomp__times(capacity, element));
}

static void *gcomp__array_make(gcomp__memory *memory, size_t capacity, size_t element)
{
    stbds_array_header *h = (stbds_array_header *)gcomp__allocate(memory, gcomp__array_bytes(capacity, element));
    if (!h) return NULL;
    memset(h, 0, sizeof *h);
    h->capacity = capacity;
    return h + 1;
}

static void gcomp__array_release(gcomp__memory *memory, void *array, size_t element)
{
    if (array) gcomp__release(memory, stbds_header(array), gcomp__array_bytes(stbds_header(array)->capacity, element));
}

/* ------------------------------------------------------------------------------------------------
   >>random - numbers as a function of (seed, step, tensor, purpose, worker, element)

   A Philox4x32-10 block turns (seed, step, tensor, rank) into a key, another turns (key, purpose) into two words. Each pair of
   elements mixes its index with the words into two draws of 16 bits. Element i always sees the same number: no state, no order.
   ------------------------------------------------------------------------------------------------ */

enum { GCOMP__PURPOSE_START = 1, GCOMP__PURPOSE_ROUND = 2, GCOMP__PURPOSE_ROTATE = 4, GCOMP__PURPOSE_SELECT = 5,
       GCOMP__PURPOSE_SKETCH = 6, GCOMP__PURPOSE_RANGE = 7 };

static void gcomp__philox(uint32_t out[4], const uint32_t counter[4], const uint32_t key[2])
{
    uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3], k0 = key[0], k1 = key[1];
    int round;
    for (round = 0; round < 10; round++) {
        uint64_t a = (uint64_t)0xD2511F53u * c0, b = (uint64_t)0xCD9E8D57u * c2;
        c0 = (uint32_t)(b >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)b;
        c2 = (uint32_t)(a >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)a;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}

static uint64_t gcomp__philox_word(uint64_t seed, uint64_t step, uint32_t tensor, uint32_t worker)
{
    uint32_t counter[4], key[2], out[4];
    counter[0] = (uint32_t)step;
    counter[1] = (uint32_t)(step >> 32);
    counter[2] = tensor;
    counter[3] = worker;
    key[0] = (uint32_t)seed;
    key[1] = (uint32_t)(seed >> 32);
    gcomp__philox(out, counter, key);
    return out[0] | (uint64_t)out[1] << 32;
}

/* Two key words for one purpose, so that two uses of a key never share a stream. */
static uint64_t gcomp__stream(uint64_t key, uint32_t purpose) { return gcomp__philox_word(key, 0, purpose, 0); }

/* 16 random bits of an element: a finaliser of two multiplications over the pair's index, one key word added before,
   the other xored between, so that different keys are not permutations of each other. */
GCOMP__INLINE uint32_t gcomp__draw_base(uint64_t words, uint64_t element)
{
    return (uint32_t)(element >> 1) + (uint32_t)words + (uint32_t)(element >> 33) * 0x9E3779B9u;
}

GCOMP__INLINE uint32_t gcomp__draw_pair(uint32_t h, uint64_t words)
{
    h = (h ^ h >> 16) * 0x85EBCA6Bu;
    h ^= h >> 13 ^ (uint32_t)(words >> 32);
    h *= 0xC2B2AE35u;
    return h ^ h >> 16;
}

GCOMP__INLINE uint32_t gcomp__draw(uint64_t words, uint64_t element)
{
    uint32_t h = gcomp__draw_pair(gcomp__draw_base(words, element), words);
    return element & 1 ? h >> 16 : h & 0xffffu;
}

/* ------------------------------------------------------------------------------------------------
   >>rows - what a method is to the rest of the library

   A method is a row: its name and parameters, its rounds, and functions. Everything else in the library finds it through the
   table at the end of >>codecs. The kernels of a row exist once per instruction set and reach it as `call->kernels`.
   ------------------------------------------------------------------------------------------------ */

/* Kinds of rounds: a gather of payloads, a sum of floats or of integers, the largest of floats. SHARE stands in for a gather
   where the mean is made by ranges, see >>shards. */
enum {
    GCOMP__NO_ROUND,
    GCOMP__GATHER,
    GCOMP__SHARE,
    GCOMP__SUM,
    GCOMP__SUM8,
    GCOMP__SUM16,
    GCOMP__SUM32,
    GCOMP__MAX,
    GCOMP__KINDS
};

/* Bytes of an element that is summed, and its type. */
GCOMP__INLINE size_t gcomp__kind_bytes(unsigned kind) { return kind == GCOMP__SUM8 ? 1 : kind == GCOMP__SUM16 ? 2 : 4; }

GCOMP__INLINE gcomp_dtype gcomp__kind_dtype(unsigned kind)
{
    return kind == GCOMP__SUM8 ? GCOMP_I8 : kind == GCOMP__SUM16 ? GCOMP_I16 : kind == GCOMP__SUM32 ? GCOMP_I32 : GCOMP_F32;
}

enum {
    GCOMP__FEEDBACK = 1,          /* keeps a residual unless told otherwise */
    GCOMP__CONSERVES_ELEMENT = 2, /* decoded + new residual = p, element by element, on each worker */
    GCOMP__CONSERVES_MEAN = 4,    /* mean over the workers of mean + new residual = mean of p */
    GCOMP__IDEMPOTENT = 8,        /* encoding what was decoded gives the same payload */
    GCOMP__VALUES = 16,           /* a block method: may stand behind a plus */
    GCOMP__SELECTS = 32,          /* a sparse method: takes a value method */
    GCOMP__UNBIASED = 64,         /* the mean over keys of what is decoded is p */
    GCOMP__MAJORITY = 128,        /* the mean of its payloads is the sign of their sum: decode gets all of them at once */
    GCOMP__WORKSPACE = 256,       /* encodes only with scratch memory */
    GCOMP__REMEMBERS = 512,       /* p, made with a momentum (the end of its state), so only in steps, begins the scratch */
    GCOMP__GROUPS = 1024,         /* a sparse method whose indices are of groups of elements */
    GCOMP__GLOBAL = 2048,         /* of the mean only the largest elements are applied, as many as a payload has */
    GCOMP__TURNS = 4096,          /* its sums differ by turns: the last float of its shared state is 1 before an odd one */
    GCOMP__ONE_KEY = 8192,        /* the shared key of a tensor is that of step 0 in all steps */
    GCOMP__BY_EPOCHS = 16384      /* it goes by the epoch of the step */
};

/* Kinds of parameters. BLOCK: a power of two, or "tensor" (0). CHOICE: the number of a name in `choices`. AUTO: a number, or
   "auto" (0). */
enum { GCOMP__REAL, GCOMP__WHOLE, GCOMP__BLOCK, GCOMP__CHOICE, GCOMP__AUTO };

typedef struct gcomp__param {
    const char *name;
    int kind;
    double initial, low, high;
    int bits;            /* of the payload's parameter word; 0: it does not travel. BLOCK as logarithm, numbers as float (32) */
    const char *choices; /* names, each ended by a bar */
    double other;        /* 0, or the default where the first parameter is not 0 */
} gcomp__param;

/* The default of a parameter beside a first one that is known. */
GCOMP__INLINE double gcomp__default(const gcomp__param *p, double first)
{
    return p->other != 0 && first != 0 ? p->other : p->initial;
}

typedef struct gcomp__method gcomp__method;
typedef struct gcomp__set gcomp__set;
typedef struct gcomp__selector gcomp__selector;

/* What a block method does to one payload: from its parameters, the same when encoding and decoding. */
typedef struct gcomp__measured gcomp__measured;
typedef struct gcomp__unit gcomp__unit;
typedef struct gcomp__form {
    unsigned kernel;     /* which of the row's kernels */
    unsigned code16;     /* bytes of 16 codes */
    unsigned scale_bytes; /* of a block: 0, 1 (a power of two), 4 (a float) or 8 (two) */
    size_t block;        /* elements a scale; 0: the tensor */
    int measure;         /* what the scale is made from */
    int early;           /* the scale must be known before the codes */
    int first_high;      /* codes fill each byte from the top */
    int stochastic;      /* needs random numbers */
    int steps;           /* the scale is a step of the largest |p| / levels */
    float constant;      /* a threshold, ... */
    float levels;        /* the largest code */
    int check;           /* which codes are none */
    int last_code;       /* GCOMP__UP_TO: the largest code without its sign */
    unsigned code;       /* entropy code of the levels; 0: packed */
    void (*fit)(const struct gcomp__form *form, const gcomp__measured *m, gcomp__unit *u); /* scale from measures */
} gcomp__form;

/* How codes are checked that are no number. */
enum {
    GCOMP__ALL_CODES, /* every code is a number */
    GCOMP__LOOK,      /* decoded, and looked at */
    GCOMP__PAIRS,     /* of 2 bits: not 01 */
    GCOMP__UP_TO,     /* of 1, 2 or 4 bytes: without its top bit at most last_code */
    GCOMP__EXPONENTS  /* natural's: not 255 */
};

/* What is measured of a block or of the tensor. The bits of the largest |p| are known after each of them. */
enum {
    GCOMP__MOST,    /* nothing else */
    GCOMP__L1,      /* sum: of |p| */
    GCOMP__L2,      /* sum: of p * p */
    GCOMP__MOMENTS, /* sum: of p * p; other: of p */
    GCOMP__SIDES,   /* sum: of p >= 0; other: of -p where p < 0; negative: how many */
    GCOMP__RANGE    /* low, high */
};

struct gcomp__measured {
    double sum, other;
    size_t count, negative;
    uint32_t worst; /* bits of the largest |p|; 0x7f800000 and above: not finite */
    float low, high;
};

/* The constants of a block: from its scale when decoding, from its measures when encoding. */
struct gcomp__unit {
    float a, b;     /* what the payload says of the block */
    float inverse;  /* the codes come from p * lift * inverse; lift is 1, or a power of two where the inverse would overflow */
    float lift;
    float offset;   /* subtracted after the lift, where the method says so */
    float levels, constant;
    uint64_t words; /* random numbers */
    const void *draws; /* those of the tile at work, 2 bytes an element, see GCOMP__F(drawn) */
    size_t at;             /* where it begins */
};

enum { GCOMP__AHEAD = 512 }; /* elements that commits fetch ahead: more streams than a processor looks ahead in by itself */
enum { GCOMP__TILE = 512 };  /* elements that kernels work on in between, in the innermost cache */
enum { GCOMP__FAR = 1 << 22 }; /* elements from which gradient and residual are larger than the caches: codes pass these by */
enum { GCOMP__HEADER = 32 }; /* bytes of a payload before its body */

/* How a call runs. */
typedef struct gcomp__call {
    const gcomp__set *set;
    const void *kernels; /* of the method at work, in that set */
    uint8_t *scratch;
    size_t scratch_bytes;
    gcomp_parallel parallel;
    const float *shared; /* NULL, or the scale of the tensor, found with the other workers */
    struct gcomp__work *work; /* NULL, or the tensor in a step */
} gcomp__call;

typedef struct gcomp__block_kernels gcomp__block_kernels;

/* A payload's body, opened. */
typedef struct gcomp__view {
    const gcomp__method *method;
    const gcomp__method *value; /* of a sparse method */
    const uint32_t *list;       /* NULL, or its indices, known since it was checked */
    const gcomp__set *set;
    const uint8_t *body;
    size_t bytes, n;
    uint32_t a; /* the parameter word */
    /* of a block method: */
    unsigned shift; /* element i has scale i >> shift */
    gcomp__form form;
    const uint8_t *scales, *codes;
    const gcomp__block_kernels *kernels;
} gcomp__view;

/* A sum v of a momentum u: next = factor * u + g, p = v + next; nesterov: next = factor * (u + g), p = v + next + g. */
typedef struct gcomp__momentum {
    gcomp_input in;   /* g = scale * grad, without a residual */
    size_t n;
    const float *u, *v; /* v NULL: none */
    float *p, *next, *zero; /* p, the next u, zeros; NULL: not wanted */
    float *masked;    /* NULL, or where to forget what was sent */
    float factor;
    int nesterov;
} gcomp__momentum;

/* Where decoded payloads go.
     STORE   y <- d0
     ADD     y <- (fresh ? 0 : y) + sum of weight * d, saturating; FRESH is what the sink makes of it for the first payload
     COMMIT  residual <- scale * grad + residual - own, saturating;  then y, if not NULL, <- sum of weight * d.  grad may be y. */
enum { GCOMP__STORE, GCOMP__ADD, GCOMP__COMMIT, GCOMP__FRESH };

typedef struct gcomp__sink {
    int ending, fresh;
    float weight;
    const gcomp__view *views;
    const void *const *payloads; /* MAJORITY: all, where there are no views of all */
    size_t count, n;
    float *y;
    const gcomp__view *own; /* NULL: nothing was sent */
    size_t own_at;          /* own is views[own_at]; count: it is none of them */
    const void *grad;
    gcomp_dtype dtype;
    float scale;
    float *residual;
    const gcomp__momentum *momentum; /* COMMIT: NULL, or what takes the place of residual + scale * grad */
    int together; /* COMMIT with all of it, of block payloads with one kernel, into and from floats as they are */
} gcomp__sink;

/* A tensor in a step, for methods that exchange sums or the largest of the workers, or keep more than a residual. */
typedef struct gcomp__work {
    gcomp__call call;
    const gcomp_codec *codec;
    gcomp_input in;
    size_t rows, cols, stack, n;
    size_t together; /* elements of all tensors of the step */
    float part;      /* 1 / world: contributions are scaled by it before the sum */
    size_t world;
    uint32_t epoch;
    int odd;         /* see GCOMP__TURNS */
    float *state;    /* lives from step to step; written by commit only */
    float *local;    /* the row's scratch of this step */
    float *sums[3];  /* one a round: this worker's contribution, then the sum; integers in rounds of integers */
    float *y;        /* commit: the mean goes here; may be the gradient */
    float *residual; /* commit: NULL or in and out */
} gcomp__work;

struct gcomp__method {
    const char *name;
    uint8_t wire;
    unsigned flags;
    uint8_t rounds[3];
    gcomp__param param[GCOMP_PARAMS];
    void (*form)(const double *param, gcomp__form *form); /* block methods; NULL for others */
    /* payloads; NULL in rows without */
    size_t (*bound)(const gcomp_codec *codec, size_t n);   /* of the body; SIZE_MAX: too much */
    size_t (*scratch)(const gcomp_codec *codec, size_t n);
    gcomp_result (*encode)(const gcomp__call *call, const gcomp_codec *codec, const gcomp_input *in, size_t n, uint8_t *body,
                           size_t capacity, size_t *bytes);
    gcomp_result (*open)(gcomp__view *view);               /* lengths and places; cheap */
    gcomp_result (*check)(const gcomp__view *view);        /* everything else */
    void (*decode)(const gcomp__call *call, const gcomp__sink *sink);
    /* sums; NULL in rows without */
    /* elements of one matrix of a stack; odd: see GCOMP__TURNS */
    size_t (*sum_count)(const gcomp_codec *codec, size_t rows, size_t cols, int round, int odd);
    size_t (*state_floats)(const gcomp_codec *codec, size_t rows, size_t cols);
    size_t (*local_floats)(const gcomp_codec *codec, size_t rows, size_t cols);
    int (*gains)(const gcomp_codec *codec, size_t rows, size_t cols); /* 0: travel uncompressed */
    gcomp_result (*make)(gcomp__work *work, int round);    /* fills sums[round] */
    void (*commit)(gcomp__work *work);
    void (*adapt)(const gcomp_codec *codec, uint8_t *rounds, unsigned *flags); /* NULL, or changes them by the parameters */
    const char *(*misfit)(const gcomp_codec *codec, size_t world); /* NULL, or a sentence on why so many workers cannot use it */
    const char *(*refuse)(const double *param, int values); /* the same on parameters that do not go together, or not as values */
    const gcomp__selector *selector; /* sparse methods; NULL for others */
};

/* One instruction set: its kernels, those of the methods in the order of the table. */
struct gcomp__set {
    gcomp_isa isa;
    const struct gcomp__common_kernels *common;
    const struct gcomp__sparse_kernels *sparse;
    const struct gcomp__level_kernels *levels;
    const void *const *kernels;
};

/* Work in chunks, on the user's threads if there are any. */
typedef struct gcomp__tasks {
    void (*run)(void *arg, size_t index);
    void *arg;
} gcomp__tasks;

static void gcomp__task(void *arg, size_t index)
{
    gcomp__tasks *tasks = (gcomp__tasks *)arg;
    uint64_t mode = gcomp__fp_enter();
    (tasks->run)(tasks->arg, index);
    gcomp__fp_leave(mode);
}

static void gcomp__run(const gcomp__call *call, size_t count, void (*run)(void *arg, size_t index), void *arg)
{
    size_t i;
    if (GCOMP__SETS_MODE && call->parallel.run && count > 1) { /* else other threads may have another mode */
        gcomp__tasks tasks;
        tasks.run = run;
        tasks.arg = arg;
        (call->parallel.run)(call->parallel.user, count, gcomp__task, &tasks);
    } else {
        for (i = 0; i < count; i++) (run)(arg, i);
    }
}

GCOMP__INLINE size_t gcomp__chunks(size_t n) { return gcomp__pieces(n, GCOMP_CHUNK); }

static size_t gcomp__dtype_bytes(gcomp_dtype dtype) { return dtype == GCOMP_F32 ? 4 : 2; }

/* Warm-ups have this many shares of their epochs. Which one an epoch is in; `shares`: it comes after all. */
enum { GCOMP__WARM_SHARES = 4 };
static size_t gcomp__warm_share(size_t shares, uint32_t epoch, double epochs)
{
    return (double)epoch < epochs ? (size_t)((uint64_t)shares * epoch / (uint64_t)epochs) : shares;
}

/* The density of a share: those of Deep Gradient Compression, and never less than in the end. */
static double gcomp__warm_density(size_t share, double density)
{
    static const double keep[GCOMP__WARM_SHARES] = {0.25, 0.0625, 0.015625, 0.004};
    return share < GCOMP__WARM_SHARES && density < keep[share] ? keep[share] : density;
}

/* The encoding of a payload by a block method. */
typedef struct gcomp__encode_job {
    const gcomp__call *call;
    const gcomp__block_kernels *kernels;
    gcomp_input in;
    size_t n;
    gcomp__form form;
    gcomp__unit unit; /* what all blocks start from; if given, their constants */
    int given;
    int past;          /* codes go past the caches */
    uint8_t *scales, *codes;
    size_t *last;      /* coded levels: bytes of the last chunk */
    gcomp__measured *part, *one; /* where chunks put their measures: part + chunk, or if NULL one */
} gcomp__encode_job;

/* A part of it that a method's kernel does in one go. */
typedef struct gcomp__span {
    const gcomp__encode_job *job;
    size_t at, count;             /* elements at .. at + count - 1; at is a multiple of 16 */
    const float *grad, *residual; /* of element `at`; residual may be NULL */
    const gcomp__unit *given;     /* constants that are known; NULL: found block by block */
    void *acc;                    /* running measures, a gcomp__acc_<set> */
    uint32_t *draws;              /* room for those of a tile and 32 elements more */
    uint8_t *held;                /* NULL, or room for codes that go past the caches: as many bytes as a tile has elements */
} gcomp__span;

/* Up to 16 blocks: the bits of their largest |p|, and the constants of gcomp__unit that codes are made with. */
typedef struct gcomp__blocks {
    uint32_t worst[16];
    uint32_t low[16], high[16]; /* the smallest and the largest p, if the first is negative and the second is not */
    float inverse[16], offset[16], lift; /* lift: of one that is larger than the tile */
} gcomp__blocks;

/* Kernels of a block method, made by GCOMP__BLOCK_METHOD in >>kernels. */
struct gcomp__block_kernels {
    void (*encode)(const gcomp__span *span);
    /* elements i .. i + count - 1 into y[0] .., by STORE, ADD or FRESH; i is a multiple of 16, count too or the rest */
    void (*decode)(const gcomp__view *view, size_t i, size_t count, float *y, int ending, float weight);
    size_t (*commit)(const gcomp__sink *sink, size_t i, size_t end); /* of a sink with `together`; returns where it stopped */
};

/* What the gaps between increasing indices take, see >>bits. */
enum { GCOMP__GAPS = 128 }; /* in a block */
typedef struct gcomp__gap_sizes {
    uint64_t quotients[4]; /* sums of gap >> base .. gap >> (base + 3) */
    size_t packed;         /* bytes of the blocks */
} gcomp__gap_sizes;

/* Reads bits, see >>bits; never behind `end`. The lowest `have` <= 63 bits are valid, those above are what follows or 0, the
   highest is 0. */
typedef struct gcomp__bit_reader {
    const uint8_t *at, *end;
    uint64_t bits;
    unsigned have;
} gcomp__bit_reader;

/* Reads indices back, some at a time. A damaged stream ends in `bad`, never outside. */
typedef struct gcomp__indices {
    gcomp__bit_reader reader;
    size_t left, n;      /* indices to come; all are below n */
    uint64_t next;       /* the smallest that may come; of a bitmap: that of bit 0 */
    unsigned coder, at_once; /* Rice codes */
    gcomp_result bad;
    size_t block, done;  /* packed: gaps of the block at reader.at, and how many of them have been read */
    unsigned width, any; /* of its gaps; what of them has been read, ored */
    size_t each, elements; /* 0, or an index is that of a group of so many of the elements; the last may have fewer */
    size_t element, stop;  /* of the current group */
} gcomp__indices;

/* Kernels that belong to no method. */
typedef struct gcomp__common_kernels {
    uint32_t (*crc)(uint32_t crc, const uint8_t *bytes, size_t count);
    void (*measure)(const gcomp_input *in, size_t begin, size_t end, int measure, gcomp__measured *m);
    void (*encode)(const gcomp__encode_job *job, size_t chunk, gcomp__measured *m);
    void (*sink)(const gcomp__sink *sink, size_t chunk);
    void (*saturate)(float *y, const float *x, size_t n); /* y <- x, with infinities made finite */
    void (*absorb)(const gcomp__sink *sink, size_t chunk); /* residual <- scale * grad + residual; y <- 0 */
    uint32_t (*scale_copy)(float *y, const gcomp_input *in, size_t begin, size_t end,
                           float part); /* y <- part * p; worst bits of p */
    uint32_t (*worst)(const float *x, size_t n);
    double (*squares)(const float *x, size_t n);
    void (*widen)(float *y, const void *x, gcomp_dtype dtype, size_t n);
    void (*narrow)(void *y, const float *x, gcomp_dtype dtype, size_t n);
    void (*gaps)(const uint32_t *index, size_t k, unsigned base, gcomp__gap_sizes *sizes);
    int (*no_number)(const gcomp__form *form, const uint8_t *codes, size_t bytes);
    void (*advance)(const gcomp__momentum *d, size_t begin, size_t end);
    void (*two_lists)(gcomp__indices *x, gcomp__indices *y, uint32_t *to, uint32_t *into);
    void (*past)(float *y, float *x, size_t n); /* y <- x, not through the caches, y at a multiple of 64 bytes; x <- 0 */
} gcomp__common_kernels;

/* Entropy codes of levels, see >>levels. */
typedef struct gcomp__level_kernels {
    size_t (*code)(const gcomp__form *form, const uint8_t *codes, size_t count, uint8_t *to);
    gcomp_result (*read)(const gcomp__form *form, size_t count, const uint8_t **at, const uint8_t *end, uint8_t *codes);
    void (*sink)(const gcomp__sink *sink, size_t chunk);
} gcomp__level_kernels;

#define GCOMP__MORE_BITS 0x9E3779B97F4A7C15u /* makes another stream of two key words */

GCOMP__INLINE float gcomp__saturated(float x)
{
    uint32_t u = gcomp__bits(x), a = u & 0x7fffffffu;
    return a > 0x7f7fffffu ? gcomp__float((u & 0x80000000u) | 0x7f7fffffu) : x;
}

GCOMP__INLINE void gcomp__take_out(float *residual, float sent) { *residual = gcomp__saturated(*residual - sent); }

/* A tile of -0, which changes no number it is added to. */
GCOMP__INLINE const float *gcomp__no_rest(void)
{
#define GCOMP__EIGHT_OF(x) x, x, x, x, x, x, x, x
    GCOMP__ON_A_LINE static const float rest[GCOMP__TILE] = {GCOMP__EIGHT_OF(GCOMP__EIGHT_OF(GCOMP__EIGHT_OF(-0.0f)))};
#undef GCOMP__EIGHT_OF
    return rest;
}

/* A zero that -Ofast does not know: 0 + -0 is 0. */
GCOMP__INLINE float gcomp__zero(void)
{
    float zero = 0;
    GCOMP__PIN_SUM(zero);
    return zero;
}

/* The largest of inverse and the two floats below it that makes no more than `levels` of `most`, if one does. */
GCOMP__INLINE float gcomp__lowered(float inverse, float most, float levels)
{
#if defined(__SSE2__) /* compilers would compare one by one, by way of other registers: all blocks wait for this */
    const __m128 x = _mm_set_ss(inverse), m = _mm_set_ss(most), l = _mm_set_ss(levels);
    const __m128 y = _mm_castsi128_ps(_mm_add_epi32(_mm_castps_si128(x), _mm_set1_epi32(-1)));
    const __m128i above = _mm_castps_si128(_mm_cmplt_ss(l, _mm_mul_ss(m, x)));
    const __m128i still = _mm_castps_si128(_mm_cmplt_ss(l, _mm_mul_ss(m, y)));
    return _mm_cvtss_f32(_mm_castsi128_ps(_mm_add_epi32(_mm_castps_si128(x), _mm_add_epi32(above, still))));
#else
    const float below = gcomp__float(gcomp__bits(inverse) - 1);
    float product = most * inverse, smaller = most * below;
    GCOMP__PIN_SUM(product);
    GCOMP__PIN_SUM(smaller);
    return gcomp__float(gcomp__bits(inverse) - (product > levels) - (smaller > levels));
#endif
}

/* A step of most / levels, where nothing can overflow or vanish, and the factor that makes steps of p: |p| <= most makes no
   more than `levels` of them. 0: nothing was done. */
GCOMP__INLINE int gcomp__simple_step(gcomp__unit *u, uint32_t most_bits, float levels)
{
    float most = gcomp__float(most_bits), by = levels;
    if (most_bits < 80u << 23 || most_bits >= 227u << 23) return 0; /* 2^-47 .. 2^100 */
    GCOMP__PIN_SUM(by); /* no division becomes a product with what a loop divided once */
    u->a = most / by;
    GCOMP__PIN_SUM(u->a);
    u->inverse = 1 / u->a;
    GCOMP__PIN_SUM(u->inverse);
    u->lift = 1;
    u->inverse = gcomp__lowered(u->inverse, most, levels); /* each division is off by half of a last place at most */
    return 1;
}

/* The same of levels from `low` to `high`: nothing can overflow or vanish. Codes are clamped. */
GCOMP__INLINE int gcomp__simple_range(gcomp__unit *u, uint32_t most_bits, float low, float high, float levels)
{
    double steps = 2 * (double)levels + 1;
    GCOMP__PIN_SUM(steps);
    u->a = (float)(((double)high - (double)low) / steps);
    GCOMP__PIN_SUM(u->a);
    if (most_bits >= 227u << 23 || gcomp__bits(u->a) < 67u << 23) return 0;
    u->inverse = 1 / u->a;
    u->lift = 1;
    u->b = (float)((double)low + ((double)levels + 1) * (double)u->a);
    u->offset = u->b;
    return 1;
}

/* The same of any size, with a * levels finite; and for other steps. */
static void gcomp__step_of(gcomp__unit *u, double step, double most, double levels)
{
    enum { TRIES = 16 }; /* two suffice */
    int i;
    const float top = most < 3.4028234663852886e38 ? (float)most : 3.4028234663852886e38f; /* no p is above it */
    float a = (float)step;
    u->lift = 1;
    u->inverse = 0;
    if (step > 0 && (double)a * levels < most * (1 - 1.0 / 1048576)) a = gcomp__float(gcomp__bits(a) + 1); /* subnormal */
    if (step > 0 && ((double)a * levels > 3.4028234663852886e38 || a > 3.4028234663852886e38f))
        a = gcomp__float((gcomp__bits(a) > 0x7f800000u ? 0x7f800000u : gcomp__bits(a)) - 1);
    u->a = a;
    if (step > 0) {
        u->lift = gcomp__bits(a) < 67u << 23 ? 18446744073709551616.0f : 1; /* below 2^-60 */
        u->inverse = 1 / (a * u->lift);
        for (i = 0; i < TRIES && (float)((double)(top * u->lift) * (double)u->inverse) > (float)levels; i++)
            u->inverse = gcomp__float(gcomp__bits(u->inverse) - 1);
    }
}

/* The scale of a block as bytes: a float, or two; mx writes its own, the exponent of a power of two (127: 1, 0: 2^-127). */
GCOMP__INLINE void gcomp__put_scale(uint8_t *to, size_t bytes, const gcomp__unit *u)
{
    if (bytes >= 4) gcomp__put_float(to, u->a);
    if (bytes == 8) gcomp__put_float(to + 4, u->b);
}

GCOMP__INLINE void gcomp__get_scale(const uint8_t *from, size_t bytes, gcomp__unit *u)
{
    u->a = u->b = 1;
    if (bytes == 1) u->a = from[0] ? gcomp__float((uint32_t)from[0] << 23) : gcomp__float(1u << 22);
    if (bytes >= 4) u->a = gcomp__get_float(from);
    if (bytes == 8) u->b = gcomp__get_float(from + 4);
}

/* Code bytes of the last count < 16 elements: bits behind them are zero. Groups of an odd number of bytes are whole. */
static size_t gcomp__last_bytes(size_t code16, size_t count) { return code16 == 18 ? 18 : (count * code16 + 15) / 16; }

static void gcomp__pad(float *to, const float *from, size_t count)
{
    memset(to, 0, 64);
    memcpy(to, from, 4 * count);
}

static void gcomp__put_last(uint8_t *to, uint8_t *some, size_t code16, size_t count, int first_high)
{
    size_t bytes = gcomp__last_bytes(code16, count), used = count * code16 / 2 % 8;
    if (code16 < 16 && used) some[bytes - 1] &= (uint8_t)(first_high ? 0xff00u >> used : (1u << used) - 1);
    memcpy(to, some, bytes);
}

static void gcomp__get_last(uint8_t *some, const uint8_t *from, size_t code16, size_t count)
{
    memset(some, 0, 64);
    memcpy(some, from, gcomp__last_bytes(code16, count));
}

/* ---------------- entropy codes of levels, what all instruction sets share (see >>levels) */
enum { GCOMP__PACKED, GCOMP__ELIAS, GCOMP__RICE, GCOMP__SMALLEST }; /* the parameter `code` of a method */
enum { GCOMP__SEGMENT = 2048 };                                 /* bytes of packed codes that are recoded together */
/* The first byte of a segment: packed; Elias omega; unary and low bits, in the tree form (depth 0 .. 3 in bits 4 and 5, low bits
   in bits 0 .. 3) or with gaps (their Rice parameter 0 .. 12 in bits 0 .. 3). */
enum { GCOMP__BY_PACKED = 0, GCOMP__BY_ELIAS = 1, GCOMP__BY_GAPS = 0x20, GCOMP__BY_TREE = 0x40 };

/* Elements of a segment, a divisor of GCOMP_CHUNK. Bytes of `count` packed codes. */
GCOMP__INLINE size_t gcomp__segment_of(const gcomp__form *form) { return 16 * GCOMP__SEGMENT / form->code16; }
GCOMP__INLINE size_t gcomp__packed_bytes(const gcomp__form *form, size_t count) { return (count * form->code16 + 15) / 16; }

/* A segment while it is encoded: 64 levels a group, sliced: word b of a group holds bit b of |q|, the last word the signs. */
typedef struct gcomp__sliced {
    uint64_t words[GCOMP__SEGMENT / 8];
    size_t count, groups, bits, levels;
    size_t ones[16]; /* how many have bit b */
    size_t top[16];  /* how many have |q| >> b as large as levels >> b */
    size_t sent;     /* how many are not zero; of them: */
    size_t apart, distant, large; /* two or more after the last, four or more; of size two or more */
    unsigned head;   /* what was chosen */
    size_t size;     /* its bits */
} gcomp__sliced;

GCOMP__INLINE size_t gcomp__popcount64(uint64_t x)
{
#if defined(__GNUC__)
    return (size_t)__builtin_popcountll(x);
#else
    return gcomp__popcount((uint32_t)x) + gcomp__popcount((uint32_t)(x >> 32));
#endif
}

/* Zeros below the first one of x, which is not 0. */
GCOMP__INLINE unsigned gcomp__first_one(uint64_t x)
{
#if defined(__GNUC__)
    return (unsigned)__builtin_ctzll(x);
#else
    unsigned count = 0;
    for (; !(x & 1); x >>= 1) count++;
    return count;
#endif
}

GCOMP__INLINE unsigned gcomp__log2(uint32_t x) /* rounded down; of 0: 0 */
{
#if defined(__GNUC__)
    return 31u - (unsigned)__builtin_clz(x | 1);
#else
    unsigned r = 0;
    while (x >>= 1) r++;
    return r;
#endif
}

GCOMP__INLINE unsigned gcomp__width(uint32_t x) { return x ? gcomp__log2(x) + 1 : 0; } /* bits that hold x */

/* The lowest `count` <= 64 bits set. */
GCOMP__INLINE uint64_t gcomp__low_bits(size_t count) { return count < 64 ? ((uint64_t)1 << count) - 1 : ~(uint64_t)0; }


/* The bits of x where mask has ones, side by side; and spread again. */
GCOMP__INLINE uint64_t gcomp__gather_bits(uint64_t x, uint64_t mask)
{
    uint64_t r = 0, bit = 1;
    for (; mask; mask &= mask - 1, bit <<= 1) r |= x & mask & (0 - mask) ? bit : 0;
    return r;
}

GCOMP__INLINE uint64_t gcomp__scatter_bits(uint64_t x, uint64_t mask)
{
    uint64_t r = 0;
    for (; mask; mask &= mask - 1, x >>= 1) r |= x & 1 ? mask & (0 - mask) : 0;
    return r;
}

/* Bits whose numbers have bit a = 1, b = 0 and those with a = 0, b = 1 change places: shift 2^a - 2^b, mask of the latter. */
GCOMP__INLINE uint64_t gcomp__swapped(uint64_t x, unsigned shift, uint64_t mask)
{
    uint64_t t = (x ^ x >> shift) & mask;
    return x ^ t ^ t << shift;
}

/* Rotates the six digits of bit numbers right by 1, 2, 3 or 4 for codes of 2, 4, 8, 16 bits; and back. */
GCOMP__INLINE uint64_t gcomp__rotated(uint64_t x, unsigned bits, int back)
{
    const uint64_t a5 = 0x00000000AAAAAAAAu, a4 = 0x0000AAAA0000AAAAu, a3 = 0x00AA00AA00AA00AAu, a2 = 0x0A0A0A0A0A0A0A0Au;
    const uint64_t a1 = 0x2222222222222222u, c5 = 0x00000000CCCCCCCCu, c4 = 0x0000CCCC0000CCCCu, c3 = 0x00CC00CC00CC00CCu;
    if (bits == 8) return gcomp__swapped(gcomp__swapped(gcomp__swapped(x, 28, 0x00000000F0F0F0F0u), 14, c4), 7, a3);
    if (bits == 2 && !back) {
        x = gcomp__swapped(gcomp__swapped(gcomp__swapped(x, 31, a5), 15, a4), 7, a3);
        return gcomp__swapped(gcomp__swapped(x, 3, a2), 1, a1);
    }
    if (bits == 2) {
        x = gcomp__swapped(gcomp__swapped(gcomp__swapped(x, 1, a1), 3, a2), 7, a3);
        return gcomp__swapped(gcomp__swapped(x, 15, a4), 31, a5);
    }
    if ((bits == 4) != back) {
        x = gcomp__swapped(gcomp__swapped(x, 30, c5), 6, c3);
        return gcomp__swapped(gcomp__swapped(x, 15, a4), 3, a2);
    }
    x = gcomp__swapped(gcomp__swapped(x, 3, a2), 15, a4);
    return gcomp__swapped(gcomp__swapped(x, 6, c3), 30, c5);
}

/* Words k and k + 2^t change places where digit t of bit numbers differs from that of k: a transposition, its own inverse. */
GCOMP__INLINE void gcomp__transpose(uint64_t *w, unsigned bits)
{
    const uint64_t low[4] = {0x5555555555555555u, 0x3333333333333333u, 0x0F0F0F0F0F0F0F0Fu, 0x00FF00FF00FF00FFu};
    unsigned t, k;
    GCOMP__UNROLL for (t = 0; t < 4; t++) {
        GCOMP__UNROLL for (k = 0; k < bits; k++) {
            if (1u << t < bits && !(k >> t & 1)) {
                uint64_t x = (w[k] >> (1u << t) ^ w[k + (1u << t)]) & low[t];
                w[k + (1u << t)] ^= x;
                w[k] ^= x << (1u << t);
            }
        }
    }
}

/* Bit b of 64 packed codes as word b, and back. */
GCOMP__INLINE void gcomp__slice(uint64_t *w, const uint8_t *codes, unsigned bits)
{
    unsigned b;
    GCOMP__UNROLL for (b = 0; b < bits; b++) w[b] = gcomp__get64(codes + 8 * b);
    gcomp__transpose(w, bits);
    GCOMP__UNROLL for (b = 0; b < bits; b++) w[b] = gcomp__rotated(w[b], bits, 0);
}

GCOMP__INLINE void gcomp__unslice(uint8_t *codes, uint64_t *w, unsigned bits)
{
    unsigned b;
    GCOMP__UNROLL for (b = 0; b < bits; b++) w[b] = gcomp__rotated(w[b], bits, 1);
    gcomp__transpose(w, bits);
    GCOMP__UNROLL for (b = 0; b < bits; b++) gcomp__put64(codes + 8 * b, w[b]);
}

/* 64 bits from bit `at` of p on; reads 9 bytes. From the highest bit of each byte on: 57 of them; reads 8 bytes. */
GCOMP__INLINE uint64_t gcomp__bits_at(const uint8_t *p, size_t at)
{
    p += at >> 3;
    return gcomp__get64(p) >> (at & 7) | (uint64_t)p[8] << 1 << (63 - (at & 7));
}

GCOMP__INLINE uint64_t gcomp__high_bits_at(const uint8_t *p, size_t at)
{
    p += at >> 3;
    return ((uint64_t)gcomp__get32_high(p) << 32 | gcomp__get32_high(p + 4)) << (at & 7);
}

/* Writes them: `bits` are below 8, `value` has none above `count` <= 64; up to 8 bytes behind the end are written too. */
typedef struct gcomp__packer {
    uint8_t *at;
    uint64_t bits;
    unsigned fill;
} gcomp__packer;

GCOMP__INLINE void gcomp__pack_some(gcomp__packer *p, uint64_t value, size_t count) /* count <= 56 */
{
    p->bits |= value << p->fill;
    gcomp__put64(p->at, p->bits);
    p->fill += (unsigned)count;
    p->at += p->fill >> 3;
    p->bits >>= p->fill & 56;
    p->fill &= 7;
}

GCOMP__INLINE void gcomp__pack_bits(gcomp__packer *p, uint64_t value, size_t count)
{
    if (count > 56) {
        gcomp__pack_some(p, value & 0xffffffffu, 32);
        value >>= 32;
        count -= 32;
    }
    gcomp__pack_some(p, value, count);
}

GCOMP__INLINE void gcomp__pack_high(gcomp__packer *p, uint64_t value, unsigned count) /* the highest bits of bytes first; <= 32 */
{
    p->bits = p->bits << count | value;
    for (p->fill += count; p->fill >= 8; p->fill -= 8) *p->at++ = (uint8_t)(p->bits >> (p->fill - 8));
}

/* Elias omega of N with L = floor(log2 N): what stands before the binary of N, and the length of all. */
static const uint8_t gcomp__omega_prefix[16] = {0, 0, 2, 3, 20, 21, 22, 23, 56, 57, 58, 59, 60, 61, 62, 63};
static const uint8_t gcomp__omega_length[16] = {1, 3, 6, 7, 11, 12, 13, 14, 16, 17, 18, 19, 20, 21, 22, 23};

GCOMP__INLINE void gcomp__put_omega(gcomp__packer *p, uint32_t n) /* 1 <= n < 65536 */
{
    unsigned l = gcomp__log2(n);
    gcomp__pack_high(p, l ? (uint32_t)gcomp__omega_prefix[l] << (l + 2) | n << 1 : 0, gcomp__omega_length[l]);
}

/* Back, from the highest bits of w; *at moves on. 0: not below 65536. */
GCOMP__INLINE uint32_t gcomp__get_omega(uint64_t w, size_t *at)
{
    const unsigned two = (unsigned)(w >> 62), three = (unsigned)(w >> 59) & 7, four = (unsigned)(w >> 58) & 15;
    unsigned l, length;
    if (two < 2) l = 0;
    else if (!(w >> 61 & 1)) l = 1;
    else if (two == 2) l = w >> 58 & 1 ? three : 2;
    else l = w >> 57 & 1 ? four : 3;
    length = gcomp__omega_length[l];
    *at += length;
    if (l == 0) return 1;
    return w >> (64 - length) & 1 ? 0 : (uint32_t)(w << (length - 2 - l) >> (63 - l));
}

/* Bit b of 64 codes of 2, 4 or 8 bits as word b, and back: what AVX2 and AVX-512 share. Codes become bytes first. */
#define GCOMP__SLICES(isa) \
    GCOMP__INLINE uint64_t gcomp__gather_##isa(uint64_t x, uint64_t mask) { return _pext_u64(x, mask); } \
    GCOMP__INLINE uint64_t gcomp__scatter_##isa(uint64_t x, uint64_t mask) { return _pdep_u64(x, mask); } \
    GCOMP__INLINE __m256i gcomp__load32_##isa(const uint8_t *p) { return _mm256_loadu_si256((const __m256i *)(const void *)p); } \
    GCOMP__INLINE uint64_t gcomp__plane_##isa(__m256i low, __m256i high, int b) \
    { \
        const __m128i up = _mm_cvtsi32_si128(7 - b); \
        return (uint32_t)_mm256_movemask_epi8(_mm256_sll_epi16(low, up)) | \
               (uint64_t)(uint32_t)_mm256_movemask_epi8(_mm256_sll_epi16(high, up)) << 32; \
    } \
    GCOMP__INLINE void gcomp__slice_##isa(uint64_t *w, const uint8_t *codes, unsigned bits) \
    { \
        const __m256i nibble = _mm256_set1_epi8(15); \
        __m256i x, y, low, high; \
        unsigned b; \
        if (bits == 16) { \
            gcomp__slice(w, codes, 16); \
            return; \
        } \
        if (bits == 8) { \
            low = gcomp__load32_##isa(codes); \
            high = gcomp__load32_##isa(codes + 32); \
        } else { \
            if (bits == 2) { \
                __m128i h = _mm_loadu_si128((const __m128i *)(const void *)codes), l = _mm_and_si128(h, _mm_set1_epi8(15)); \
                h = _mm_and_si128(_mm_srli_epi16(h, 4), _mm_set1_epi8(15)); \
                x = _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_unpacklo_epi8(l, h)), _mm_unpackhi_epi8(l, h), 1); \
                y = _mm256_srli_epi16(x, 2); \
            } else { \
                x = gcomp__load32_##isa(codes); \
                y = _mm256_and_si256(_mm256_srli_epi16(x, 4), nibble); \
            } \
            low = _mm256_unpacklo_epi8(x, y); \
            high = _mm256_unpackhi_epi8(x, y); \
            x = _mm256_permute2x128_si256(low, high, 0x20); \
            high = _mm256_permute2x128_si256(low, high, 0x31); \
            low = x; \
        } \
        GCOMP__UNROLL for (b = 0; b < bits; b++) w[b] = gcomp__plane_##isa(low, high, (int)b); \
    } \
    GCOMP__INLINE __m256i gcomp__fan_##isa(uint64_t w, int b) \
    { \
        const __m256i each = _mm256_set1_epi64x((long long)0x8040201008040201u); \
        __m256i x = _mm256_shuffle_epi8(_mm256_set1_epi32((int32_t)(uint32_t)w), \
                                        _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303)); \
        return _mm256_and_si256(_mm256_cmpeq_epi8(_mm256_and_si256(x, each), each), _mm256_set1_epi8((char)(1 << b))); \
    } \
    GCOMP__INLINE __m256i gcomp__joined_##isa(__m256i low, __m256i high, int factor) /* first + factor * second byte */ \
    { \
        const __m256i f = _mm256_set1_epi16((int16_t)(1 | factor << 8)); \
        return _mm256_permute4x64_epi64(_mm256_packus_epi16(_mm256_maddubs_epi16(low, f), _mm256_maddubs_epi16(high, f)), 0xd8); \
    } \
    GCOMP__INLINE void gcomp__unslice_##isa(uint8_t *codes, uint64_t *w, unsigned bits) \
    { \
        __m256i low, high; \
        unsigned b; \
        if (bits == 16) { \
            gcomp__unslice(codes, w, 16); \
            return; \
        } \
        low = gcomp__fan_##isa(w[0], 0); \
        high = gcomp__fan_##isa(w[0] >> 32, 0); \
        GCOMP__UNROLL for (b = 1; b < bits; b++) { \
            low = _mm256_or_si256(low, gcomp__fan_##isa(w[b], (int)b)); \
            high = _mm256_or_si256(high, gcomp__fan_##isa(w[b] >> 32, (int)b)); \
        } \
        if (bits == 8) { \
            _mm256_storeu_si256((__m256i *)(void *)codes, low); \
            _mm256_storeu_si256((__m256i *)(void *)(codes + 32), high); \
        } else if (bits == 4) { \
            _mm256_storeu_si256((__m256i *)(void *)codes, gcomp__joined_##isa(low, high, 16)); \
        } else { \
            low = gcomp__joined_##isa(low, high, 4); \
            _mm_storeu_si128((__m128i *)(void *)codes, _mm256_castsi256_si128(gcomp__joined_##isa(low, low, 16))); \
        } \
    }

/* Codes of 32 bytes, which pressed_<isa> makes of two times 16 words in an order that sorted_<isa> undoes. */
#define GCOMP__BYTES(isa) \
    typedef __m256i gcomp__b32_##isa; \
    GCOMP__INLINE __m256i gcomp__limit_##isa(gcomp__w16_##isa x, gcomp__w16_##isa y, int shift, int low, int high) \
    { \
        __m256i b = gcomp__pressed_##isa(x, y, shift); \
        if (high < 127) b = _mm256_min_epi8(b, _mm256_set1_epi8((char)high)); \
        return low > -128 ? _mm256_max_epi8(b, _mm256_set1_epi8((char)low)) : b; \
    } \
    GCOMP__INLINE __m256i gcomp__marks_##isa(gcomp__v16_##isa x, gcomp__v16_##isa y, int bit) \
    { \
        __m256i b = gcomp__pressed_##isa(gcomp__words_##isa(x), gcomp__words_##isa(y), gcomp__sign_half_##isa); \
        return _mm256_srli_epi16(_mm256_and_si256(b, _mm256_set1_epi8((char)-128)), 7 - bit); \
    } \
    GCOMP__INLINE __m256i gcomp__bor_##isa(__m256i x, __m256i y) { return _mm256_or_si256(x, y); } \
    GCOMP__INLINE __m256i gcomp__blow_##isa(__m256i b, int bits) \
    { \
        return _mm256_and_si256(b, _mm256_set1_epi8((char)((1 << bits) - 1))); \
    } \
    GCOMP__INLINE void gcomp__puts8_##isa(uint8_t *c, __m256i b) \
    { \
        _mm256_storeu_si256((__m256i *)(void *)c, gcomp__sorted_##isa(b)); \
    } \
    GCOMP__INLINE void gcomp__puts6_##isa(uint8_t *c, __m256i b) \
    { \
        const __m128i three = _mm_setr_epi8(0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, -1, -1, -1, -1); \
        b = _mm256_maddubs_epi16(gcomp__sorted_##isa(b), _mm256_set1_epi16(0x4001)); \
        b = _mm256_shuffle_epi8(_mm256_madd_epi16(b, _mm256_set1_epi32(0x10000001)), _mm256_broadcastsi128_si256(three)); \
        b = _mm256_permutevar8x32_epi32(b, _mm256_setr_epi32(0, 1, 2, 4, 5, 6, 3, 7)); \
        _mm_storeu_si128((__m128i *)(void *)c, _mm256_castsi256_si128(b)); \
        _mm_storel_epi64((__m128i *)(void *)(c + 16), _mm256_extracti128_si256(b, 1)); \
    } \
    GCOMP__INLINE void gcomp__puts4_##isa(uint8_t *c, __m256i b) \
    { \
        b = _mm256_maddubs_epi16(gcomp__sorted_##isa(b), _mm256_set1_epi16(0x1001)); \
        _mm_storeu_si128((__m128i *)(void *)c, gcomp__low2_##isa(b)); \
    } \
    GCOMP__INLINE void gcomp__puts2_##isa(uint8_t *c, __m256i b) \
    { \
        b = _mm256_maddubs_epi16(gcomp__sorted_##isa(b), _mm256_set1_epi16(0x0401)); \
        b = _mm256_madd_epi16(b, _mm256_set1_epi32(0x00100001)); \
        _mm_storel_epi64((__m128i *)(void *)c, gcomp__low4_##isa(b)); \
    }

/* gcomp__lookup4, times4 and times2 of sets that pick no 16 floats by words at once. */
#define GCOMP__TIMES(isa) \
    GCOMP__INLINE gcomp__w16_##isa gcomp__lookup4_##isa(const int32_t *table, const uint8_t *c) \
    { \
        return gcomp__look16_##isa(table, gcomp__get4_##isa(c)); \
    } \
    GCOMP__INLINE gcomp__v16_##isa gcomp__times4_##isa(const uint8_t *c, float a) \
    { \
        return gcomp__mul_##isa(gcomp__number_##isa(gcomp__get4_##isa(c)), gcomp__splat_##isa(a)); \
    } \
    GCOMP__INLINE gcomp__v16_##isa gcomp__times2_##isa(const uint8_t *c, float a) \
    { \
        return gcomp__mul_##isa(gcomp__number_##isa(gcomp__get2_##isa(c, 0)), gcomp__splat_##isa(a)); \
    }

/* gcomp__slice and its kin without vectors. */
#define GCOMP__PLAIN_SLICES(isa) \
    GCOMP__INLINE uint64_t gcomp__gather_##isa(uint64_t x, uint64_t mask) { return gcomp__gather_bits(x, mask); } \
    GCOMP__INLINE uint64_t gcomp__scatter_##isa(uint64_t x, uint64_t mask) { return gcomp__scatter_bits(x, mask); } \
    GCOMP__HEAVY void gcomp__slice_##isa(uint64_t *w, const uint8_t *codes, unsigned bits) { gcomp__slice(w, codes, bits); } \
    GCOMP__HEAVY void gcomp__unslice_##isa(uint8_t *codes, uint64_t *w, unsigned bits) { gcomp__unslice(codes, w, bits); }

/* Is that a first byte that an encoder with this form may write (other than packed)? */
GCOMP__INLINE int gcomp__may_code(const gcomp__form *form, unsigned head)
{
    if (head == GCOMP__BY_ELIAS) return form->code != GCOMP__RICE;
    if (form->code == GCOMP__ELIAS) return 0;
    if (head & GCOMP__BY_TREE) return head < 128 && (size_t)form->levels >> (head & 15) != 0;
    return (head & 0xf0u) == GCOMP__BY_GAPS && (head & 15) <= 12;
}

/* Where the segments of a chunk begin; of the chunk behind the last: the end. */
static const uint8_t *gcomp__coded_chunk(const gcomp__view *view, size_t chunk)
{
    const size_t chunks = gcomp__chunks(view->n);
    if (!view->form.code) return view->codes;
    if (chunk == chunks) return view->body + view->bytes;
    return view->codes + 8 * (chunks - 1) + (chunk ? (size_t)gcomp__get64(view->codes + 8 * (chunk - 1)) : 0);
}

/* ------------------------------------------------------------------------------------------------
   >>vectors - 16 floats, on scalar, AVX2, AVX-512 and NEON; the header includes itself for each

   Each set defines the same few operations under names that end in _scalar, _avx2, ... Then GCOMP__PASS names the set, and the
   header includes itself: what stands between here and >>text is compiled once more, with GCOMP__F(add) meaning gcomp__add_avx2.
   The last set needs no include: the reader just reads on (GCOMP__LAST). Bits agree because each operation is exact or
   rounded once, because sums run in 16 lanes that are folded in one tree (16, 8, 4, and (0 + 2) + (1 + 3)), and because
   sums of |x| and of products are in double, where a product of two floats is exact.

     load store splat add sub mul abs     floats;  min max       fma          a * b + c, rounded once;  plus  if a * b is exact
     lt0                                  mask of x < 0          flip         changes signs by a mask
     mirror                               each 8 floats the other way round
     worst, most                          running maximum of the bits of |x|: non-finite if >= 0x7f800000; the largest of 16
     halved, mosts                        the larger of |x| in lanes l and l + 8, none with a sign; the largest of 8 times 8,
                                          then 8 zeros
     saturate pick                        infinities to the largest float; x where the mask is 1, else y
     keys                                 mask of bits(|x|) >= t
     keep, keep_index                     stores the elements (and base + lane) of a mask; may write 16 places
     load_half ... store_bfloat           16 codes of 2 bytes, saturating, nearest even
     load_short load_six                  16 codes of a byte, of 6 bits: sign, and 7 or 5 bits shifted to be those of a half
     sum_none sum_add sum_dot sum_fold    16 double sums;    fold  the sum of 16 floats
     sum_sides                            adds x to 16 sums, or where its sign is set -x to 16 others
     words floats                         floats as 16 integers of 32 bits and back, bits unchanged
     nearest trunc wfloor, number         rounded to an integer (nearest: |x| < 2^22); back;  clamp  to a limit
     wload                                64 bytes as integers
     wadd wsub wand wor wxor wmin wmax    integers; wgt is all ones where x > y, weq a mask; wshl wshr wsar
     wtop, whalves                        the larger without a sign; low half of each * k + high half, both with sign
     put16s put8 put4 put2, get16s ...    low bits of each as codes; back with sign
     limit marks, bor blow                bytes of 32 words of at most 16 bits, shifted right (16: of any), from `low` to `high`;
                                          those whose bit `bit` is 1 where a float has its sign set; ored; their low bits
     puts8 puts6 puts4 puts2              32 bytes of so many bits as codes
     halves                               of 8 words as 16, the lower ones first
     wties                                is the lower half of any word all ones?
     pair_splat, twice                    x in 8 lanes, y in the others; 8 floats in both;  turn8  8 x 8 floats transposed
     abreast, tall, tile                  rows that powersgd's kernels take together; columns that they copy
     eight, columns; last, base           levels of a Hadamard transform: three over so many columns; all of `base` floats
     look16, lookup4                      words from a table of 16, that of x in -8 .. 7 at x & 15; those of codes of 4 bits
     times4 times2                        codes of so many bits as floats, times a
     pour poured; pours                   64 bytes past the caches, to a multiple of 64; others may read them; is there a way?
     gather scatter                       bits of a word where a mask has ones, side by side; and spread again
     slice unslice                        bit b of 64 packed codes as word b; and back
   ------------------------------------------------------------------------------------------------ */

GCOMP__NOINLINE double gcomp__fold16(const double *d)
{
    double t[8];
    int i;
    for (i = 0; i < 8; i++) {
        t[i] = d[i] + d[i + 8];
        GCOMP__PIN_SUM(t[i]);
    }
    for (i = 0; i < 4; i++) {
        t[i] += t[i + 4];
        GCOMP__PIN_SUM(t[i]);
    }
    t[0] += t[2];
    t[1] += t[3];
    GCOMP__PIN_SUM(t[0]);
    GCOMP__PIN_SUM(t[1]);
    return t[0] + t[1];
}

static float gcomp__fold16_float(const float *d)
{
    float t[8];
    int i;
    for (i = 0; i < 8; i++) {
        t[i] = d[i] + d[i + 8];
        GCOMP__PIN_SUM(t[i]);
    }
    for (i = 0; i < 4; i++) {
        t[i] += t[i + 4];
        GCOMP__PIN_SUM(t[i]);
    }
    t[0] += t[2];
    t[1] += t[3];
    GCOMP__PIN_SUM(t[0]);
    GCOMP__PIN_SUM(t[1]);
    return t[0] + t[1];
}

/* CRC-32C (reflected polynomial 0x82F63B78) where there is no instruction: row j is what half byte j of 8 bytes leaves behind. */
static const uint32_t gcomp__crc_table[16][16] = {
    {0x00000000u, 0x493C7D27u, 0x9278FA4Eu, 0xDB448769u, 0x211D826Du, 0x6821FF4Au, 0xB3657823u, 0xFA590504u,
     0x423B04DAu, 0x0B0779FDu, 0xD043FE94u, 0x997F83B3u, 0x632686B7u, 0x2A1AFB90u, 0xF15E7CF9u, 0xB86201DEu},
    {0x00000000u, 0x847609B4u, 0x0D006599u, 0x89766C2Du, 0x1A00CB32u, 0x9E76C286u, 0x1700AEABu, 0x9376A71Fu,
     0x34019664u, 0xB0779FD0u, 0x3901F3FDu, 0xBD77FA49u, 0x2E015D56u, 0xAA7754E2u, 0x230138CFu, 0xA777317Bu},
    {0x00000000u, 0x68032CC8u, 0xD0065990u, 0xB8057558u, 0xA5E0C5D1u, 0xCDE3E919u, 0x75E69C41u, 0x1DE5B089u,
     0x4E2DFD53u, 0x262ED19Bu, 0x9E2BA4C3u, 0xF628880Bu, 0xEBCD3882u, 0x83CE144Au, 0x3BCB6112u, 0x53C84DDAu},
    {0x00000000u, 0x9C5BFAA6u, 0x3D5B83BDu, 0xA100791Bu, 0x7AB7077Au, 0xE6ECFDDCu, 0x47EC84C7u, 0xDBB77E61u,
     0xF56E0EF4u, 0x6935F452u, 0xC8358D49u, 0x546E77EFu, 0x8FD9098Eu, 0x1382F328u, 0xB2828A33u, 0x2ED97095u},
    {0x00000000u, 0xEF306B19u, 0xDB8CA0C3u, 0x34BCCBDAu, 0xB2F53777u, 0x5DC55C6Eu, 0x697997B4u, 0x8649FCADu,
     0x6006181Fu, 0x8F367306u, 0xBB8AB8DCu, 0x54BAD3C5u, 0xD2F32F68u, 0x3DC34471u, 0x097F8FABu, 0xE64FE4B2u},
    {0x00000000u, 0xC00C303Eu, 0x85F4168Du, 0x45F826B3u, 0x0E045BEBu, 0xCE086BD5u, 0x8BF04D66u, 0x4BFC7D58u,
     0x1C08B7D6u, 0xDC0487E8u, 0x99FCA15Bu, 0x59F09165u, 0x120CEC3Du, 0xD200DC03u, 0x97F8FAB0u, 0x57F4CA8Eu},
    {0x00000000u, 0x38116FACu, 0x7022DF58u, 0x4833B0F4u, 0xE045BEB0u, 0xD854D11Cu, 0x906761E8u, 0xA8760E44u,
     0xC5670B91u, 0xFD76643Du, 0xB545D4C9u, 0x8D54BB65u, 0x2522B521u, 0x1D33DA8Du, 0x55006A79u, 0x6D1105D5u},
    {0x00000000u, 0x8F2261D3u, 0x1BA8B557u, 0x948AD484u, 0x37516AAEu, 0xB8730B7Du, 0x2CF9DFF9u, 0xA3DBBE2Au,
     0x6EA2D55Cu, 0xE180B48Fu, 0x750A600Bu, 0xFA2801D8u, 0x59F3BFF2u, 0xD6D1DE21u, 0x425B0AA5u, 0xCD796B76u},
    {0x00000000u, 0xDD45AAB8u, 0xBF672381u, 0x62228939u, 0x7B2231F3u, 0xA6679B4Bu, 0xC4451272u, 0x1900B8CAu,
     0xF64463E6u, 0x2B01C95Eu, 0x49234067u, 0x9466EADFu, 0x8D665215u, 0x5023F8ADu, 0x32017194u, 0xEF44DB2Cu},
    {0x00000000u, 0xE964B13Du, 0xD725148Bu, 0x3E41A5B6u, 0xABA65FE7u, 0x42C2EEDAu, 0x7C834B6Cu, 0x95E7FA51u,
     0x52A0C93Fu, 0xBBC47802u, 0x8585DDB4u, 0x6CE16C89u, 0xF90696D8u, 0x106227E5u, 0x2E238253u, 0xC747336Eu},
    {0x00000000u, 0xA541927Eu, 0x4F6F520Du, 0xEA2EC073u, 0x9EDEA41Au, 0x3B9F3664u, 0xD1B1F617u, 0x74F06469u,
     0x38513EC5u, 0x9D10ACBBu, 0x773E6CC8u, 0xD27FFEB6u, 0xA68F9ADFu, 0x03CE08A1u, 0xE9E0C8D2u, 0x4CA15AACu},
    {0x00000000u, 0x70A27D8Au, 0xE144FB14u, 0x91E6869Eu, 0xC76580D9u, 0xB7C7FD53u, 0x26217BCDu, 0x56830647u,
     0x8B277743u, 0xFB850AC9u, 0x6A638C57u, 0x1AC1F1DDu, 0x4C42F79Au, 0x3CE08A10u, 0xAD060C8Eu, 0xDDA47104u},
    {0x00000000u, 0x13A29877u, 0x274530EEu, 0x34E7A899u, 0x4E8A61DCu, 0x5D28F9ABu, 0x69CF5132u, 0x7A6DC945u,
     0x9D14C3B8u, 0x8EB65BCFu, 0xBA51F356u, 0xA9F36B21u, 0xD39EA264u, 0xC03C3A13u, 0xF4DB928Au, 0xE7790AFDu},
    {0x00000000u, 0x3FC5F181u, 0x7F8BE302u, 0x404E1283u, 0xFF17C604u, 0xC0D23785u, 0x809C2506u, 0xBF59D487u,
     0xFBC3FAF9u, 0xC4060B78u, 0x844819FBu, 0xBB8DE87Au, 0x04D43CFDu, 0x3B11CD7Cu, 0x7B5FDFFFu, 0x449A2E7Eu},
    {0x00000000u, 0xF26B8303u, 0xE13B70F7u, 0x1350F3F4u, 0xC79A971Fu, 0x35F1141Cu, 0x26A1E7E8u, 0xD4CA64EBu,
     0x8AD958CFu, 0x78B2DBCCu, 0x6BE22838u, 0x9989AB3Bu, 0x4D43CFD0u, 0xBF284CD3u, 0xAC78BF27u, 0x5E133C24u},
    {0x00000000u, 0x105EC76Fu, 0x20BD8EDEu, 0x30E349B1u, 0x417B1DBCu, 0x5125DAD3u, 0x61C69362u, 0x7198540Du,
     0x82F63B78u, 0x92A8FC17u, 0xA24BB5A6u, 0xB21572C9u, 0xC38D26C4u, 0xD3D3E1ABu, 0xE330A81Au, 0xF36E6F75u}};

GCOMP__INLINE uint32_t gcomp__crc_byte(uint32_t crc, uint32_t byte)
{
    crc ^= byte;
    crc = crc >> 4 ^ gcomp__crc_table[15][crc & 15];
    return crc >> 4 ^ gcomp__crc_table[15][crc & 15];
}

GCOMP__NOINLINE uint32_t gcomp__crc8_plain(uint32_t crc, uint64_t word)
{
    const uint64_t all = word ^ crc;
    int j;
    crc = 0;
    GCOMP__UNROLL for (j = 0; j < 16; j++) crc ^= gcomp__crc_table[j][all >> 4 * j & 15];
    return crc;
}

/* Checksums of long data are made of three parts at a time, since an instruction waits three cycles for the one before. This is
   what one becomes when as many zeros follow as a part has bytes; those of single bits are in the table. */
enum { GCOMP__CRC_PART = 2048 };
static uint32_t gcomp__crc_after(uint32_t crc)
{
    static const uint32_t after[32] = {
        0xF7506984u, 0xEB4CA5F9u, 0xD3753D03u, 0xA3060CF7u, 0x43E06F1Fu, 0x87C0DE3Eu, 0x0A6DCA8Du, 0x14DB951Au,
        0x29B72A34u, 0x536E5468u, 0xA6DCA8D0u, 0x48552751u, 0x90AA4EA2u, 0x24B8EBB5u, 0x4971D76Au, 0x92E3AED4u,
        0x202B2B59u, 0x405656B2u, 0x80ACAD64u, 0x04B52C39u, 0x096A5872u, 0x12D4B0E4u, 0x25A961C8u, 0x4B52C390u,
        0x96A58720u, 0x28A778B1u, 0x514EF162u, 0xA29DE2C4u, 0x40D7B379u, 0x81AF66F2u, 0x06B2BB15u, 0x0D65762Au};
    uint32_t sum = 0;
    int i;
    for (i = 0; i < 32; i++) sum ^= after[i] & (0u - (crc >> i & 1));
    return sum;
}

#if GCOMP__X86 && GCOMP_MAX_ISA >= 2
#define GCOMP__HAS_AVX2 1
#else
#define GCOMP__HAS_AVX2 0
#endif
#if GCOMP__X86 && GCOMP_MAX_ISA >= 3
#define GCOMP__HAS_AVX512 1
#else
#define GCOMP__HAS_AVX512 0
#endif

#define GCOMP__NAME2(name, set) gcomp__##name##_##set
#define GCOMP__NAME1(name, set) GCOMP__NAME2(name, set)
#define GCOMP__F(name) GCOMP__NAME1(name, GCOMP__PASS)
#define GCOMP__HEAVY GCOMP__INLINE

/* In a merged file the header cannot include itself: then the one set is the best that the compiler's flags enable. */
#if defined(GCOMP_NO_SELF)
#if GCOMP__HAS_AVX512 && defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__)
#define GCOMP__ONLY 3
#elif GCOMP__HAS_AVX2 && defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#define GCOMP__ONLY 2
#elif GCOMP__ARM64
#define GCOMP__ONLY 4
#else
#define GCOMP__ONLY 1
#endif
#else
#define GCOMP__ONLY 0
#endif
#define GCOMP__WANTS(set) (GCOMP__ONLY == 0 || GCOMP__ONLY == (set))

/* What AVX2 and AVX-512 share: 8 x 8 floats turned; 8 bytes of a checksum, the sum of 8, three levels of a Hadamard transform
   inside 8. */
#define GCOMP__SAME_PARTS(isa) \
    GCOMP__INLINE void gcomp__turn8_##isa(float *to, size_t pitch, const float *from, size_t stride) \
    { \
        __m256 a, b, c, d, e, f, g, h, r[8]; \
        a = _mm256_loadu_ps(from), b = _mm256_loadu_ps(from + stride); \
        c = _mm256_loadu_ps(from + 2 * stride), d = _mm256_loadu_ps(from + 3 * stride); \
        e = _mm256_loadu_ps(from + 4 * stride), f = _mm256_loadu_ps(from + 5 * stride); \
        g = _mm256_loadu_ps(from + 6 * stride), h = _mm256_loadu_ps(from + 7 * stride); \
        r[0] = _mm256_unpacklo_ps(a, b), r[1] = _mm256_unpackhi_ps(a, b); \
        r[2] = _mm256_unpacklo_ps(c, d), r[3] = _mm256_unpackhi_ps(c, d); \
        r[4] = _mm256_unpacklo_ps(e, f), r[5] = _mm256_unpackhi_ps(e, f); \
        r[6] = _mm256_unpacklo_ps(g, h), r[7] = _mm256_unpackhi_ps(g, h); \
        a = _mm256_shuffle_ps(r[0], r[2], 0x44), b = _mm256_shuffle_ps(r[0], r[2], 0xee); \
        c = _mm256_shuffle_ps(r[1], r[3], 0x44), d = _mm256_shuffle_ps(r[1], r[3], 0xee); \
        e = _mm256_shuffle_ps(r[4], r[6], 0x44), f = _mm256_shuffle_ps(r[4], r[6], 0xee); \
        g = _mm256_shuffle_ps(r[5], r[7], 0x44), h = _mm256_shuffle_ps(r[5], r[7], 0xee); \
        _mm256_storeu_ps(to, _mm256_permute2f128_ps(a, e, 0x20)); \
        _mm256_storeu_ps(to + pitch, _mm256_permute2f128_ps(b, f, 0x20)); \
        _mm256_storeu_ps(to + 2 * pitch, _mm256_permute2f128_ps(c, g, 0x20)); \
        _mm256_storeu_ps(to + 3 * pitch, _mm256_permute2f128_ps(d, h, 0x20)); \
        _mm256_storeu_ps(to + 4 * pitch, _mm256_permute2f128_ps(a, e, 0x31)); \
        _mm256_storeu_ps(to + 5 * pitch, _mm256_permute2f128_ps(b, f, 0x31)); \
        _mm256_storeu_ps(to + 6 * pitch, _mm256_permute2f128_ps(c, g, 0x31)); \
        _mm256_storeu_ps(to + 7 * pitch, _mm256_permute2f128_ps(d, h, 0x31)); \
    } \
    enum { gcomp__pours_##isa = 1 }; \
    GCOMP__INLINE void gcomp__pour_##isa(uint8_t *to, const uint8_t *from) \
    { \
        __m256i a = _mm256_loadu_si256((const __m256i *)(const void *)from); \
        __m256i b = _mm256_loadu_si256((const __m256i *)(const void *)(from + 32)); \
        _mm256_stream_si256((__m256i *)(void *)to, a); \
        _mm256_stream_si256((__m256i *)(void *)(to + 32), b); \
    } \
    GCOMP__INLINE void gcomp__poured_##isa(void) { _mm_sfence(); } \
    GCOMP__INLINE uint32_t gcomp__crc8_##isa(uint32_t crc, uint64_t word) { return (uint32_t)_mm_crc32_u64(crc, word); } \
    /* the two bytes of each code of 6 bits, its bits moved to their top, and from there to those of a half */ \
    GCOMP__INLINE __m256i gcomp__sixes_##isa(const uint8_t *c, int shift) \
    { \
        const __m128i b = _mm_insert_epi32(_mm_loadl_epi64((const __m128i *)(const void *)c), (int)gcomp__get32(c + 8), 2); \
        const __m256i place = _mm256_setr_epi8(-1, 0, 0, 1, 1, 2, -1, 2, -1, 3, 3, 4, 4, 5, -1, 5, -1, 6, 6, 7, 7, 8, -1, 8, \
                                               -1, 9, 9, 10, 10, 11, -1, 11); \
        __m256i h = _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(b), place); \
        h = _mm256_mullo_epi16(h, _mm256_set1_epi64x(0x0001004000100004)); \
        return _mm256_and_si256(_mm256_srai_epi16(h, 10 - shift), _mm256_set1_epi16((short)gcomp__six_mask(shift))); \
    } \
    GCOMP__INLINE __m256i gcomp__most_of_two_##isa(const float *from) \
    { \
        const __m256i a = _mm256_loadu_si256((const __m256i *)(const void *)from); \
        const __m256i b = _mm256_loadu_si256((const __m256i *)(const void *)(from + 8)); \
        return _mm256_max_epu32(_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b)); \
    } \
    GCOMP__INLINE __m256i gcomp__most_of_four_##isa(const float *from) \
    { \
        const __m256i a = gcomp__most_of_two_##isa(from), b = gcomp__most_of_two_##isa(from + 16); \
        return _mm256_max_epu32(_mm256_unpacklo_epi64(a, b), _mm256_unpackhi_epi64(a, b)); \
    } \
    GCOMP__INLINE __m256 gcomp__mosts8_##isa(const float *from) \
    { \
        const __m256i a = gcomp__most_of_four_##isa(from), b = gcomp__most_of_four_##isa(from + 32); \
        const __m256i low = _mm256_permute2x128_si256(a, b, 0x20), high = _mm256_permute2x128_si256(a, b, 0x31); \
        return _mm256_castsi256_ps(_mm256_max_epu32(low, high)); \
    } \
    GCOMP__INLINE float gcomp__fold8_##isa(__m256 x) \
    { \
        __m128 u = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1)); \
        u = _mm_add_ps(u, _mm_movehl_ps(u, u)); \
        return _mm_cvtss_f32(_mm_add_ss(u, _mm_movehdup_ps(u))); \
    } \
    GCOMP__INLINE __m256 gcomp__levels_##isa(__m256 x) \
    { \
        __m256 r = _mm256_fmadd_ps(x, _mm256_setr_ps(1, 1, 1, 1, -1, -1, -1, -1), _mm256_permute2f128_ps(x, x, 1)); \
        r = _mm256_fmadd_ps(r, _mm256_setr_ps(1, 1, -1, -1, 1, 1, -1, -1), _mm256_permute_ps(r, 0x4e)); \
        return _mm256_fmadd_ps(r, _mm256_setr_ps(1, -1, 1, -1, 1, -1, 1, -1), _mm256_permute_ps(r, 0xb1)); \
    }

/* Three levels of a Hadamard transform, at 4, 2 and 1 times `stride`, over a register's columns from p on. `inside` does the
   levels inside two registers. */
#define GCOMP__LEVEL(type, a, b, add, sub) \
    { \
        type sum = add(a, b), rest = sub(a, b); \
        GCOMP__PIN_SUM(sum); \
        GCOMP__PIN_SUM(rest); \
        a = sum; \
        b = rest; \
    }
#define GCOMP__NOTHING_INSIDE(a, b) ((void)0)

/* Lines of two streams to be fetched while something else is calculated. */
typedef struct gcomp__ahead {
    const uint8_t *a;
    const float *b; /* may be NULL */
    size_t step, left; /* bytes of 16 elements of a; how many times */
} gcomp__ahead;

GCOMP__INLINE void gcomp__fetch(gcomp__ahead *next)
{
    if (!next->left) return;
    next->left--;
    GCOMP__PREFETCH(next->a);
    next->a += next->step;
    if (!next->b) return;
    GCOMP__PREFETCH(next->b);
    next->b += 16;
}

GCOMP__INLINE void gcomp__fetch_two(gcomp__ahead *next)
{
    gcomp__fetch(next);
    gcomp__fetch(next);
}

#define GCOMP__EIGHT(name, type, load, store, add, sub, inside) \
    GCOMP__INLINE void gcomp__##name(float *p, size_t stride) \
    { \
        float *q = p + 4 * stride; \
        type a = load(p), b = load(p + stride), c = load(p + 2 * stride), d = load(p + 3 * stride); \
        type e = load(q), f = load(q + stride), g = load(q + 2 * stride), h = load(q + 3 * stride); \
        GCOMP__LEVEL(type, a, e, add, sub) \
        GCOMP__LEVEL(type, b, f, add, sub) \
        GCOMP__LEVEL(type, c, g, add, sub) \
        GCOMP__LEVEL(type, d, h, add, sub) \
        GCOMP__LEVEL(type, a, c, add, sub) \
        GCOMP__LEVEL(type, b, d, add, sub) \
        GCOMP__LEVEL(type, e, g, add, sub) \
        GCOMP__LEVEL(type, f, h, add, sub) \
        GCOMP__LEVEL(type, a, b, add, sub) \
        GCOMP__LEVEL(type, c, d, add, sub) \
        GCOMP__LEVEL(type, e, f, add, sub) \
        GCOMP__LEVEL(type, g, h, add, sub) \
        inside(a, b); \
        inside(c, d); \
        inside(e, f); \
        inside(g, h); \
        store(p, a); \
        store(p + stride, b); \
        store(p + 2 * stride, c); \
        store(p + 3 * stride, d); \
        store(q, e); \
        store(q + stride, f); \
        store(q + 2 * stride, g); \
        store(q + 3 * stride, h); \
    }

GCOMP__INLINE float gcomp__plus1(float x, float y) { return x + y; }
GCOMP__INLINE float gcomp__less1(float x, float y) { return x - y; }

/* ---------------- AVX2: two registers */
#if GCOMP__HAS_AVX2 && GCOMP__WANTS(2)
#define GCOMP__BUILT_AVX2 1
#if GCOMP__ONLY == 0 && defined(__clang__)
#pragma clang attribute push(__attribute__((__target__("avx2,fma,f16c,bmi,bmi2,popcnt,sse4.2"))), apply_to = function)
#elif GCOMP__ONLY == 0
#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c,bmi,bmi2,popcnt,sse4.2")
#endif

GCOMP__SAME_PARTS(avx2)
typedef struct gcomp__v16_avx2 { __m256 a, b; } gcomp__v16_avx2;
typedef struct gcomp__sum16_avx2 { __m256d a, b, c, d; } gcomp__sum16_avx2;

GCOMP__INLINE gcomp__v16_avx2 gcomp__both_avx2(__m256 a, __m256 b)
{
    gcomp__v16_avx2 v;
    v.a = a;
    v.b = b;
    return v;
}

GCOMP__INLINE gcomp__v16_avx2 gcomp__load_avx2(const float *p)
{
    return gcomp__both_avx2(_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8));
}
GCOMP__INLINE gcomp__v16_avx2 gcomp__splat_avx2(float x) { return gcomp__both_avx2(_mm256_set1_ps(x), _mm256_set1_ps(x)); }
GCOMP__INLINE gcomp__v16_avx2 gcomp__pair_splat_avx2(float x, float y)
{
    return gcomp__both_avx2(_mm256_set1_ps(x), _mm256_set1_ps(y));
}
GCOMP__INLINE gcomp__v16_avx2 gcomp__twice_avx2(const float *p)
{
    return gcomp__both_avx2(_mm256_loadu_ps(p), _mm256_loadu_ps(p));
}

GCOMP__INLINE void gcomp__store_avx2(float *p, gcomp__v16_avx2 v)
{
    _mm256_storeu_ps(p, v.a);
    _mm256_storeu_ps(p + 8, v.b);
}

GCOMP__INLINE gcomp__v16_avx2 gcomp__add_avx2(gcomp__v16_avx2 x, gcomp__v16_avx2 y)
{
    gcomp__v16_avx2 v = gcomp__both_avx2(_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b));
    GCOMP__PIN_SUM(v.a);
    GCOMP__PIN_SUM(v.b);
    return v;
}

GCOMP__INLINE gcomp__v16_avx2 gcomp__sub_avx2(gcomp__v16_avx2 x, gcomp__v16_avx2 y)
{
    gcomp__v16_avx2 v = gcomp__both_avx2(_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b));
    GCOMP__PIN_SUM(v.a);
    GCOMP__PIN_SUM(v.b);
    return v;
}

GCOMP__INLINE gcomp__v16_avx2 gcomp__mul_avx2(gcomp__v16_avx2 x, gcomp__v16_avx2 y)
{
    gcomp__v16_avx2 v = gcomp__both_avx2(_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b));
    GCOMP__PIN(v.a);
    GCOMP__PIN(v.b);
    return v;
}

GCOMP__INLINE gcomp__v16_avx2 gcomp__fma_avx2(gcomp__v16_avx2 x, gcomp__v16_avx2 y, gcomp__v16_avx2 z)
{
    return gcomp__both_avx2(_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b));
}
GCOMP__INLINE gcomp__v16_avx2 gcomp__plus_avx2(gcomp__v16_avx2 x, gcomp__v16_avx2 y, gcomp__v16_avx2 z)
{
    return gcomp__fma_avx2(x, y, z);
}
GCOMP__INLINE float gcomp__fold_avx2(gcomp__v16_avx2 x) { return gcomp__fold8_avx2(_mm256_add_ps(x.a, x.b)); }

GCOMP__INLINE gcomp__v16_avx2 gcomp__abs_avx2(gcomp__v16_avx2 x)
{
    __m256 m = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff));
    return gcomp__both_avx2(_mm256_and_ps(x.a, m), _mm256_and_ps(x.b, m));
}

GCOMP__INLINE uint32_t gcomp__lt0_avx2(gcomp__v16_avx2 x)
{
    __m256 z = _mm256_setzero_ps();
    return (uint32_t)_mm256_movemask_ps(_mm256_cmp_ps(x.a, z, _CMP_LT_OQ)) |
           (uint32_t)_mm256_movemask_ps(_mm256_cmp_ps(x.b, z, _CMP_LT_OQ)) << 8;
}

GCOMP__INLINE gcomp__v16_avx2 gcomp__flip_avx2(gcomp__v16_avx2 x, uint32_t mask)
{
    __m256i m = _mm256_set1_epi32((int)mask), top = _mm256_set1_epi32((int)0x80000000u);
    __m256i a = _mm256_sllv_epi32(m, _mm256_setr_epi32(31, 30, 29, 28, 27, 26, 25, 24));
    __m256i b = _mm256_sllv_epi32(m, _mm256_setr_epi32(23, 22, 21, 20, 19, 18, 17, 16));
    return gcomp__both_avx2(_mm256_xor_ps(x.a, _mm256_castsi256_ps(_mm256_and_si256(a, top))),
                            _mm256_xor_ps(x.b, _mm256_castsi256_ps(_mm256_and_si256(b, top))));
}

GCOMP__INLINE gcomp__v16_avx2 gcomp__mirror_avx2(gcomp__v16_avx2 x)
{
    const __m256i back = _mm256_setr_epi32(7, 6, 5, 4, 3, 2, 1, 0);
    return gcomp__both_avx2(_mm256_permutevar8x32_ps(x.a, back), _mm256_permutevar8x32_ps(x.b, back));
}

GCOMP__INLINE gcomp__v16_avx2 gcomp__worst_avx2(gcomp__v16_avx2 w, gcomp__v16_avx2 x)
{
    gcomp__v16_avx2 a = gcomp__abs_avx2(x);
    w.a = _mm256_castsi256_ps(_mm256_max_epu32(_mm256_castps_si256(w.a), _mm256_castps_si256(a.a)));
    w.b = _mm256_castsi256_ps(_mm256_max_epu32(_mm256_castps_si256(w.b), _mm256_castps_si256(a.b)));
    return w;
}

GCOMP__INLINE uint32_t gcomp__keys_avx2(gcomp__v16_avx2 x, uint32_t t)
{
    gcomp__v16_avx2 a = gcomp__abs_avx2(x);
    __m256i below = _mm256_set1_epi32((int)(t - 1));
    return (uint32_t)_mm256_movemask_ps(_mm256_castsi256_ps(_mm256_cmpgt_epi32(_mm256_castps_si256(a.a), below))) |
           (uint32_t)_mm256_movemask_ps(_mm256_castsi256_ps(_mm256_cmpgt_epi32(_mm256_castps_si256(a.b), below))) << 8;
}

/* The lanes that a byte keeps, in order, as a permutation: its bits are spread to bytes, which pick from 7 6 5 4 3 2 1 0. */
GCOMP__INLINE __m256i gcomp__lanes_avx2(uint32_t byte)
{
    uint64_t kept = _pext_u64(0x0706050403020100u, _pdep_u64(byte, 0x0101010101010101u) * 0xff);
    return _mm256_cvtepu8_epi32(_mm_cvtsi64_si128((long long)kept));
}

GCOMP__INLINE void gcomp__keep_avx2(float *to, uint32_t *index, gcomp__v16_avx2 x, uint32_t base, uint32_t mask)
{
    uint32_t low = mask & 0xff, high = mask >> 8;
    unsigned count = (unsigned)_mm_popcnt_u32(low);
    __m256i pa = gcomp__lanes_avx2(low), pb = gcomp__lanes_avx2(high);
    _mm256_storeu_ps(to, _mm256_permutevar8x32_ps(x.a, pa));
    _mm256_storeu_si256((__m256i *)(void *)index, _mm256_add_epi32(pa, _mm256_set1_epi32((int)base)));
    _mm256_storeu_ps(to + count, _mm256_permutevar8x32_ps(x.b, pb));
    _mm256_storeu_si256((__m256i *)(void *)(index + count), _mm256_add_epi32(pb, _mm256_set1_epi32((int)(base + 8))));
}

GCOMP__INLINE gcomp__v16_avx2 gcomp__load_half_avx2(const uint8_t *c)
{
    return gcomp__both_avx2(_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)c)),
                            _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)(c + 16))));
}

GCOMP__INLINE gcomp__v16_avx2 gcomp__load_short_avx2(const uint8_t *c, int shift)
{
    __m256i h = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)(const void *)c));
    h = _mm256_and_si256(_mm256_slli_epi16(h, shift), _mm256_set1_epi16((short)gcomp__short_mask(shift)));
    return gcomp__both_avx2(_mm256_cvtph_ps(_mm256_castsi256_si128(h)), _mm256_cvtph_ps(_mm256_extracti128_si256(h, 1)));
}

GCOMP__INLINE gcomp__v16_avx2 gcomp__load_six_avx2(const uint8_t *c, int shift)
{
    const __m256i h = gcomp__sixes_avx2(c, shift);
    return gcomp__both_avx2(_mm256_cvtph_ps(_mm256_castsi256_si128(h)), _mm256_cvtph_ps(_mm256_extracti128_si256(h, 1)));
}

GCOMP__INLINE gcomp__v16_avx2 gcomp__min_avx2(gcomp__v16_avx2 x, gcomp__v16_avx2 y)
{
    return gcomp__both_avx2(_mm256_min_ps(x.a, y.a), _mm256_min_ps(x.b, y.b));
}
GCOMP__INLINE gcomp__v16_avx2 gcomp__max_avx2(gcomp__v16_avx2 x, gcomp__v16_avx2 y)
{
    return gcomp__both_avx2(_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b));
}

GCOMP__INLINE gcomp__v16_avx2 gcomp__clamp_avx2(gcomp__v16_avx2 x, float limit)
{
    __m256 h = _mm256_set1_ps(limit), l = _mm256_set1_ps(-limit);
    return gcomp__both_avx2(_mm256_max_ps(_mm256_min_ps(x.a, h), l), _mm256_max_ps(_mm256_min_ps(x.b, h), l));
}

GCOMP__INLINE void gcomp__store_half_avx2(uint8_t *c, gcomp__v16_avx2 x)
{
    x = gcomp__clamp_avx2(x, GCOMP__HALF_MAX);
    _mm_storeu_si128((__m128i *)(void *)c, _mm256_cvtps_ph(x.a, _MM_FROUND_TO_NEAREST_INT));
    _mm_storeu_si128((__m128i *)(void *)(c + 16), _mm256_cvtps_ph(x.b, _MM_FROUND_TO_NEAREST_INT));
}

GCOMP__INLINE gcomp__v16_avx2 gcomp__load_bfloat_avx2(const uint8_t *c)
{
    __m256i a = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(const void *)c));
    __m256i b = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(const void *)(c + 16)));
    return gcomp__both_avx2(_mm256_castsi256_ps(_mm256_slli_epi32(a, 16)), _mm256_castsi256_ps(_mm256_slli_epi32(b, 16)));
}

GCOMP__INLINE __m256i gcomp__bfloat_avx2(__m256 x)
{
    __m256i u = _mm256_castps_si256(x), odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
    return _mm256_srli_epi32(_mm256_add_epi32(_mm256_add_epi32(u, _mm256_set1_epi32(0x7fff)), odd), 16);
}

GCOMP__INLINE void gcomp__store_bfloat_avx2(uint8_t *c, gcomp__v16_avx2 x)
{
    x = gcomp__clamp_avx2(x, GCOMP__BFLOAT_MAX);
    _mm256_storeu_si256((__m256i *)(void *)c,
                        _mm256_permute4x64_epi64(_mm256_packus_epi32(gcomp__bfloat_avx2(x.a), gcomp__bfloat_avx2(x.b)), 0xd8));
}

GCOMP__INLINE gcomp__sum16_avx2 gcomp__sum_none_avx2(void)
{
    gcomp__sum16_avx2 s;
    s.a = s.b = s.c = s.d = _mm256_setzero_pd();
    return s;
}

GCOMP__INLINE gcomp__sum16_avx2 gcomp__sum_add_avx2(gcomp__sum16_avx2 s, gcomp__v16_avx2 x)
{
    s.a = _mm256_add_pd(s.a, _mm256_cvtps_pd(_mm256_castps256_ps128(x.a)));
    s.b = _mm256_add_pd(s.b, _mm256_cvtps_pd(_mm256_extractf128_ps(x.a, 1)));
    s.c = _mm256_add_pd(s.c, _mm256_cvtps_pd(_mm256_castps256_ps128(x.b)));
    s.d = _mm256_add_pd(s.d, _mm256_cvtps_pd(_mm256_extractf128_ps(x.b, 1)));
    GCOMP__PIN_SUM(s.a);
    GCOMP__PIN_SUM(s.b);
    GCOMP__PIN_SUM(s.c);
    GCOMP__PIN_SUM(s.d);
    return s;
}

GCOMP__INLINE void gcomp__sides4_avx2(__m256d *s, __m256d *t, __m128 x)
{
    const __m256d d = _mm256_cvtps_pd(x), zero = _mm256_setzero_pd();
#if defined(__clang__) /* makes a difference of the product with 1, but leaves blends as they are */
    *s = _mm256_add_pd(*s, _mm256_blendv_pd(d, zero, d));
    *t = _mm256_sub_pd(*t, _mm256_blendv_pd(zero, d, d));
#else
    const __m256d above = _mm256_max_pd(zero, d); /* of NaN the second, d */
    *s = _mm256_add_pd(*s, above);
    *t = _mm256_fnmadd_pd(_mm256_xor_pd(above, d), _mm256_set1_pd(1), *t); /* what multiplies has nothing else to do */
#endif
    GCOMP__PIN_SUM(*s);
    GCOMP__PIN_SUM(*t);
}
GCOMP__INLINE void gcomp__sum_sides_avx2(gcomp__sum16_avx2 *s, gcomp__sum16_avx2 *t, gcomp__v16_avx2 x)
{
    gcomp__sides4_avx2(&s->a, &t->a, _mm256_castps256_ps128(x.a));
    gcomp__sides4_avx2(&s->b, &t->b, _mm256_extractf128_ps(x.a, 1));
    gcomp__sides4_avx2(&s->c, &t->c, _mm256_castps256_ps128(x.b));
    gcomp__sides4_avx2(&s->d, &t->d, _mm256_extractf128_ps(x.b, 1));
}

GCOMP__INLINE gcomp__sum16_avx2 gcomp__sum_dot_avx2(gcomp__sum16_avx2 s, gcomp__v16_avx2 x, gcomp__v16_avx2 y)
{
    s.a = _mm256_fmadd_pd(_mm256_cvtps_pd(_mm256_castps256_ps128(x.a)), _mm256_cvtps_pd(_mm256_castps256_ps128(y.a)), s.a);
    s.b = _mm256_fmadd_pd(_mm256_cvtps_pd(_mm256_extractf128_ps(x.a, 1)), _mm256_cvtps_pd(_mm256_extractf128_ps(y.a, 1)), s.b);
    s.c = _mm256_fmadd_pd(_mm256_cvtps_pd(_mm256_castps256_ps128(x.b)), _mm256_cvtps_pd(_mm256_castps256_ps128(y.b)), s.c);
    s.d = _mm256_fmadd_pd(_mm256_cvtps_pd(_mm256_extractf128_ps(x.b, 1)), _mm256_cvtps_pd(_mm256_extractf128_ps(y.b, 1)), s.d);
    return s;
}

GCOMP__INLINE double gcomp__sum_fold_avx2(gcomp__sum16_avx2 s)
{
    __m256d four = _mm256_add_pd(_mm256_add_pd(s.a, s.c), _mm256_add_pd(s.b, s.d));
    __m128d two = _mm_add_pd(_mm256_castpd256_pd128(four), _mm256_extractf128_pd(four, 1));
    return _mm_cvtsd_f64(_mm_add_sd(two, _mm_unpackhi_pd(two, two)));
}

/* Words: 16 integers of 32 bits. */
typedef struct gcomp__w16_avx2 { __m256i a, b; } gcomp__w16_avx2;

GCOMP__INLINE gcomp__w16_avx2 gcomp__pair_avx2(__m256i a, __m256i b)
{
    gcomp__w16_avx2 w;
    w.a = a;
    w.b = b;
    return w;
}

#define GCOMP__WORDS_AVX2(name, f) \
    GCOMP__INLINE gcomp__w16_avx2 gcomp__##name##_avx2(gcomp__w16_avx2 x, gcomp__w16_avx2 y) \
    { \
        return gcomp__pair_avx2(f(x.a, y.a), f(x.b, y.b)); \
    }
#define GCOMP__SHIFT_AVX2(name, f) \
    GCOMP__INLINE gcomp__w16_avx2 gcomp__##name##_avx2(gcomp__w16_avx2 x, int k) \
    { \
        return gcomp__pair_avx2(f(x.a, k), f(x.b, k)); \
    }
GCOMP__WORDS_AVX2(wadd, _mm256_add_epi32)
GCOMP__WORDS_AVX2(wsub, _mm256_sub_epi32)
GCOMP__WORDS_AVX2(wmul, _mm256_mullo_epi32)
GCOMP__WORDS_AVX2(wand, _mm256_and_si256)
GCOMP__WORDS_AVX2(wor, _mm256_or_si256)
GCOMP__WORDS_AVX2(wxor, _mm256_xor_si256)
GCOMP__WORDS_AVX2(wmin, _mm256_min_epi32)
GCOMP__WORDS_AVX2(wmax, _mm256_max_epi32)
GCOMP__WORDS_AVX2(wtop, _mm256_max_epu32)
GCOMP__WORDS_AVX2(wgt, _mm256_cmpgt_epi32)
GCOMP__SHIFT_AVX2(wshl, _mm256_slli_epi32)
GCOMP__SHIFT_AVX2(wshr, _mm256_srli_epi32)
GCOMP__SHIFT_AVX2(wsar, _mm256_srai_epi32)

GCOMP__INLINE gcomp__w16_avx2 gcomp__wload_avx2(const uint8_t *c)
{
    return gcomp__pair_avx2(_mm256_loadu_si256((const __m256i *)(const void *)c),
                            _mm256_loadu_si256((const __m256i *)(const void *)(c + 32)));
}
GCOMP__INLINE gcomp__w16_avx2 gcomp__wsplat_avx2(int32_t x)
{
    return gcomp__pair_avx2(_mm256_set1_epi32(x), _mm256_set1_epi32(x));
}
GCOMP__INLINE gcomp__w16_avx2 gcomp__words_avx2(gcomp__v16_avx2 x)
{
    return gcomp__pair_avx2(_mm256_castps_si256(x.a), _mm256_castps_si256(x.b));
}
GCOMP__INLINE gcomp__v16_avx2 gcomp__floats_avx2(gcomp__w16_avx2 x)
{
    return gcomp__both_avx2(_mm256_castsi256_ps(x.a), _mm256_castsi256_ps(x.b));
}
GCOMP__INLINE gcomp__w16_avx2 gcomp__nearest_avx2(gcomp__v16_avx2 x)
{
    return gcomp__pair_avx2(_mm256_cvtps_epi32(x.a), _mm256_cvtps_epi32(x.b));
}
GCOMP__INLINE gcomp__w16_avx2 gcomp__trunc_avx2(gcomp__v16_avx2 x)
{
    return gcomp__pair_avx2(_mm256_cvttps_epi32(x.a), _mm256_cvttps_epi32(x.b));
}
GCOMP__INLINE gcomp__v16_avx2 gcomp__number_avx2(gcomp__w16_avx2 x)
{
    return gcomp__both_avx2(_mm256_cvtepi32_ps(x.a), _mm256_cvtepi32_ps(x.b));
}
GCOMP__INLINE uint32_t gcomp__weq_avx2(gcomp__w16_avx2 x, gcomp__w16_avx2 y)
{
    return (uint32_t)_mm256_movemask_ps(_mm256_castsi256_ps(_mm256_cmpeq_epi32(x.a, y.a))) |
           (uint32_t)_mm256_movemask_ps(_mm256_castsi256_ps(_mm256_cmpeq_epi32(x.b, y.b))) << 8;
}
GCOMP__INLINE gcomp__w16_avx2 gcomp__wfloor_avx2(gcomp__v16_avx2 x)
{
    return gcomp__pair_avx2(_mm256_cvttps_epi32(_mm256_floor_ps(x.a)), _mm256_cvttps_epi32(_mm256_floor_ps(x.b)));
}
GCOMP__INLINE int gcomp__wties_avx2(gcomp__w16_avx2 x, gcomp__w16_avx2 y)
{
    const __m256i most = _mm256_max_epu16(_mm256_max_epu16(x.a, x.b), _mm256_max_epu16(y.a, y.b));
    return (_mm256_movemask_epi8(_mm256_cmpeq_epi16(most, _mm256_set1_epi32(-1))) & 0x33333333) != 0;
}
GCOMP__INLINE gcomp__v16_avx2 gcomp__pick_avx2(uint32_t mask, gcomp__v16_avx2 x, gcomp__v16_avx2 y)
{
    __m256i m = _mm256_set1_epi32((int)mask);
    __m256i a = _mm256_sllv_epi32(m, _mm256_setr_epi32(31, 30, 29, 28, 27, 26, 25, 24));
    __m256i b = _mm256_sllv_epi32(m, _mm256_setr_epi32(23, 22, 21, 20, 19, 18, 17, 16));
    return gcomp__both_avx2(_mm256_blendv_ps(y.a, x.a, _mm256_castsi256_ps(a)),
                            _mm256_blendv_ps(y.b, x.b, _mm256_castsi256_ps(b)));
}

/* The low bytes of the words. */
GCOMP__INLINE __m128i gcomp__bytes_avx2(gcomp__w16_avx2 w)
{
    const __m256i low = _mm256_setr_epi8(0, 4, 8, 12, 2, 6, 10, 14, -1, -1, -1, -1, -1, -1, -1, -1, 0, 4, 8, 12, 2, 6, 10, 14, -1,
                                         -1, -1, -1, -1, -1, -1, -1);
    __m256i h = _mm256_shuffle_epi8(_mm256_blend_epi16(w.a, _mm256_slli_epi32(w.b, 16), 0xaa), low);
    return _mm_unpacklo_epi32(_mm256_castsi256_si128(h), _mm256_extracti128_si256(h, 1));
}
GCOMP__INLINE void gcomp__put8_avx2(uint8_t *c, gcomp__w16_avx2 w)
{
    _mm_storeu_si128((__m128i *)(void *)c, gcomp__bytes_avx2(w));
}
GCOMP__INLINE void gcomp__put4_avx2(uint8_t *c, gcomp__w16_avx2 w)
{
    __m128i b = _mm_and_si128(gcomp__bytes_avx2(w), _mm_set1_epi8(15));
    b = _mm_maddubs_epi16(b, _mm_set1_epi16(0x1001));
    _mm_storel_epi64((__m128i *)(void *)c, _mm_packus_epi16(b, b));
}
GCOMP__INLINE void gcomp__put2_avx2(uint8_t *c, gcomp__w16_avx2 w, int first_high)
{
    __m128i b = _mm_and_si128(gcomp__bytes_avx2(w), _mm_set1_epi8(3));
    b = _mm_maddubs_epi16(b, _mm_set1_epi16(first_high ? 0x0104 : 0x0401));
    b = _mm_madd_epi16(b, _mm_set1_epi32(first_high ? 0x00010010 : 0x00100001));
    b = _mm_packus_epi16(_mm_packs_epi32(b, b), b);
    gcomp__put32(c, (uint32_t)_mm_cvtsi128_si32(b));
}
GCOMP__INLINE void gcomp__put16s_avx2(uint8_t *c, gcomp__w16_avx2 w)
{
    _mm256_storeu_si256((__m256i *)(void *)c, _mm256_permute4x64_epi64(_mm256_packs_epi32(w.a, w.b), 0xd8));
}
GCOMP__INLINE gcomp__w16_avx2 gcomp__whalves_avx2(gcomp__w16_avx2 x, int k)
{
    return gcomp__pair_avx2(_mm256_madd_epi16(x.a, _mm256_set1_epi32(1 << 16 | k)),
                            _mm256_madd_epi16(x.b, _mm256_set1_epi32(1 << 16 | k)));
}
GCOMP__INLINE __m256i gcomp__pressed_avx2(gcomp__w16_avx2 x, gcomp__w16_avx2 y, int shift)
{
    __m256i a, b;
    if (shift == 16) {
        x = gcomp__wsar_avx2(x, 16);
        y = gcomp__wsar_avx2(y, 16);
        shift = 0;
    }
    a = _mm256_packs_epi32(x.a, x.b);
    b = _mm256_packs_epi32(y.a, y.b);
    return _mm256_packs_epi16(shift ? _mm256_srai_epi16(a, shift) : a, shift ? _mm256_srai_epi16(b, shift) : b);
}
GCOMP__INLINE __m256i gcomp__sorted_avx2(__m256i b)
{
    return _mm256_permutevar8x32_epi32(b, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}
GCOMP__INLINE __m128i gcomp__low2_avx2(__m256i b) /* the low bytes of each 2, of each 4 */
{
    return _mm256_castsi256_si128(_mm256_permute4x64_epi64(_mm256_packus_epi16(b, b), 0x08));
}
GCOMP__INLINE __m128i gcomp__low4_avx2(__m256i b)
{
    b = _mm256_shuffle_epi8(b, _mm256_set1_epi32(0x0c080400));
    return _mm_unpacklo_epi32(_mm256_castsi256_si128(b), _mm256_extracti128_si256(b, 1));
}
enum { gcomp__sign_half_avx2 = 0 }; /* the shift that keeps the signs of floats */
GCOMP__BYTES(avx2)
GCOMP__INLINE gcomp__w16_avx2 gcomp__get16s_avx2(const uint8_t *c)
{
    return gcomp__pair_avx2(_mm256_cvtepi16_epi32(_mm_loadu_si128((const __m128i *)(const void *)c)),
                            _mm256_cvtepi16_epi32(_mm_loadu_si128((const __m128i *)(const void *)(c + 16))));
}
GCOMP__INLINE gcomp__w16_avx2 gcomp__get8_avx2(const uint8_t *c)
{
    __m128i b = _mm_loadu_si128((const __m128i *)(const void *)c);
    return gcomp__pair_avx2(_mm256_cvtepi8_epi32(b), _mm256_cvtepi8_epi32(_mm_srli_si128(b, 8)));
}
GCOMP__INLINE gcomp__w16_avx2 gcomp__get4_avx2(const uint8_t *c)
{
    __m256i left = _mm256_setr_epi32(28, 24, 20, 16, 12, 8, 4, 0);
    return gcomp__pair_avx2(_mm256_srai_epi32(_mm256_sllv_epi32(_mm256_set1_epi32((int)gcomp__get32(c)), left), 28),
                            _mm256_srai_epi32(_mm256_sllv_epi32(_mm256_set1_epi32((int)gcomp__get32(c + 4)), left), 28));
}
GCOMP__INLINE gcomp__w16_avx2 gcomp__get2_avx2(const uint8_t *c, int first_high)
{
    __m256i x = _mm256_set1_epi32((int)(first_high ? gcomp__get32_high(c) : gcomp__get32(c)));
    __m256i a = first_high ? _mm256_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14) : _mm256_setr_epi32(30, 28, 26, 24, 22, 20, 18, 16);
    __m256i b = first_high ? _mm256_setr_epi32(16, 18, 20, 22, 24, 26, 28, 30) : _mm256_setr_epi32(14, 12, 10, 8, 6, 4, 2, 0);
    return gcomp__pair_avx2(_mm256_srai_epi32(_mm256_sllv_epi32(x, a), 30), _mm256_srai_epi32(_mm256_sllv_epi32(x, b), 30));
}

GCOMP__INLINE gcomp__w16_avx2 gcomp__halves_avx2(const uint32_t *p)
{
    return gcomp__pair_avx2(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(const void *)p)),
                            _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(const void *)(p + 4))));
}

GCOMP__INLINE uint32_t gcomp__most_avx2(gcomp__v16_avx2 worst)
{
    __m256i m = _mm256_max_epu32(_mm256_castps_si256(worst.a), _mm256_castps_si256(worst.b));
    __m128i h = _mm_max_epu32(_mm256_castsi256_si128(m), _mm256_extracti128_si256(m, 1));
    h = _mm_max_epu32(h, _mm_shuffle_epi32(h, 0x4e));
    return (uint32_t)_mm_cvtsi128_si32(_mm_max_epu32(h, _mm_shuffle_epi32(h, 0xb1)));
}

GCOMP__INLINE void gcomp__halved_avx2(float *to, gcomp__v16_avx2 x)
{
    const __m256i m = _mm256_max_epu32(_mm256_castps_si256(x.a), _mm256_castps_si256(x.b));
    _mm256_storeu_ps(to, _mm256_castsi256_ps(m));
}
GCOMP__INLINE gcomp__v16_avx2 gcomp__mosts_avx2(const float *from)
{
    return gcomp__both_avx2(gcomp__mosts8_avx2(from), _mm256_setzero_ps());
}

GCOMP__INLINE __m256 gcomp__saturate8_avx2(__m256 x)
{
    __m256i u = _mm256_min_epi32(_mm256_castps_si256(x), _mm256_set1_epi32(0x7f7fffff)); /* those with a sign are below it */
    return _mm256_castsi256_ps(_mm256_min_epu32(u, _mm256_set1_epi32(-0x800001)));
}
GCOMP__INLINE gcomp__v16_avx2 gcomp__saturate_avx2(gcomp__v16_avx2 x)
{
    return gcomp__both_avx2(gcomp__saturate8_avx2(x.a), gcomp__saturate8_avx2(x.b));
}

GCOMP__INLINE gcomp__w16_avx2 gcomp__load_words_avx2(const int32_t *p)
{
    return gcomp__pair_avx2(_mm256_loadu_si256((const __m256i *)(const void *)p),
                            _mm256_loadu_si256((const __m256i *)(const void *)(p + 8)));
}
GCOMP__INLINE void gcomp__store_words_avx2(int32_t *to, gcomp__w16_avx2 w)
{
    _mm256_storeu_si256((__m256i *)(void *)to, w.a);
    _mm256_storeu_si256((__m256i *)(void *)(to + 8), w.b);
}

/* Three levels inside 8 lanes, from 4 apart to neighbours: shuffled + x * (1 or -1) is exact. So is x - y * 1, which keeps busy
   what multiplies while others add. */
#define GCOMP__INSIDE_AVX2(x, y) (x = gcomp__levels_avx2(x), y = gcomp__levels_avx2(y))
GCOMP__INLINE __m256 gcomp__less_avx2(__m256 x, __m256 y) { return _mm256_fnmadd_ps(y, _mm256_set1_ps(1), x); }
GCOMP__EIGHT(eight_avx2, __m256, _mm256_loadu_ps, _mm256_storeu_ps, _mm256_add_ps, gcomp__less_avx2, GCOMP__NOTHING_INSIDE)
GCOMP__EIGHT(last_avx2, __m256, _mm256_loadu_ps, _mm256_storeu_ps, _mm256_add_ps, _mm256_sub_ps, GCOMP__INSIDE_AVX2)
enum { gcomp__columns_avx2 = 8, gcomp__base_avx2 = 64 };
enum { gcomp__abreast_avx2 = 2, gcomp__tall_avx2 = 6, gcomp__tile_avx2 = 128 };

GCOMP__INLINE __m256i gcomp__look8_avx2(const int32_t *table, __m256i x)
{
    __m256i low = _mm256_loadu_si256((const __m256i *)(const void *)table);
    __m256i high = _mm256_loadu_si256((const __m256i *)(const void *)(table + 8));
    __m256 a = _mm256_castsi256_ps(_mm256_permutevar8x32_epi32(low, x));
    __m256 b = _mm256_castsi256_ps(_mm256_permutevar8x32_epi32(high, x));
    return _mm256_castps_si256(_mm256_blendv_ps(a, b, _mm256_castsi256_ps(x)));
}
GCOMP__INLINE gcomp__w16_avx2 gcomp__look16_avx2(const int32_t *table, gcomp__w16_avx2 w)
{
    return gcomp__pair_avx2(gcomp__look8_avx2(table, w.a), gcomp__look8_avx2(table, w.b));
}
GCOMP__SLICES(avx2)
GCOMP__TIMES(avx2)
#define GCOMP__PASS avx2
#define GCOMP__PASS_ISA GCOMP_ISA_AVX2
#if GCOMP__ONLY == 2
#define GCOMP__LAST
#else
#include GCOMP_SELF
#undef GCOMP__PASS
#undef GCOMP__PASS_ISA
#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#endif
#endif

/* ---------------- AVX-512: one register */
#if GCOMP__HAS_AVX512 && GCOMP__WANTS(3)
#define GCOMP__BUILT_AVX512 1
#if GCOMP__ONLY == 0 && defined(__clang__)
#pragma clang attribute push( \
    __attribute__((__target__("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c,bmi,bmi2,popcnt,sse4.2"))), apply_to = function)
#elif GCOMP__ONLY == 0
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c,bmi,bmi2,popcnt,sse4.2")
#endif

GCOMP__SAME_PARTS(avx512)
typedef struct gcomp__v16_avx512 { __m512 a; } gcomp__v16_avx512;
typedef struct gcomp__sum16_avx512 { __m512d a, b; } gcomp__sum16_avx512;

GCOMP__INLINE gcomp__v16_avx512 gcomp__one_avx512(__m512 a)
{
    gcomp__v16_avx512 v;
    v.a = a;
    return v;
}

GCOMP__INLINE gcomp__v16_avx512 gcomp__load_avx512(const float *p) { return gcomp__one_avx512(_mm512_loadu_ps(p)); }
GCOMP__INLINE gcomp__v16_avx512 gcomp__splat_avx512(float x) { return gcomp__one_avx512(_mm512_set1_ps(x)); }
GCOMP__INLINE gcomp__v16_avx512 gcomp__pair_splat_avx512(float x, float y)
{
    return gcomp__one_avx512(_mm512_insertf32x8(_mm512_castps256_ps512(_mm256_set1_ps(x)), _mm256_set1_ps(y), 1));
}
GCOMP__INLINE gcomp__v16_avx512 gcomp__twice_avx512(const float *p)
{
    return gcomp__one_avx512(_mm512_broadcast_f32x8(_mm256_loadu_ps(p)));
}
GCOMP__INLINE void gcomp__store_avx512(float *p, gcomp__v16_avx512 v) { _mm512_storeu_ps(p, v.a); }

GCOMP__INLINE gcomp__v16_avx512 gcomp__add_avx512(gcomp__v16_avx512 x, gcomp__v16_avx512 y)
{
    x.a = _mm512_add_ps(x.a, y.a);
    GCOMP__PIN_SUM(x.a);
    return x;
}

GCOMP__INLINE gcomp__v16_avx512 gcomp__sub_avx512(gcomp__v16_avx512 x, gcomp__v16_avx512 y)
{
    x.a = _mm512_sub_ps(x.a, y.a);
    GCOMP__PIN_SUM(x.a);
    return x;
}

GCOMP__INLINE gcomp__v16_avx512 gcomp__mul_avx512(gcomp__v16_avx512 x, gcomp__v16_avx512 y)
{
    x.a = _mm512_mul_ps(x.a, y.a);
    GCOMP__PIN(x.a);
    return x;
}

GCOMP__INLINE gcomp__v16_avx512 gcomp__fma_avx512(gcomp__v16_avx512 x, gcomp__v16_avx512 y, gcomp__v16_avx512 z)
{
    return gcomp__one_avx512(_mm512_fmadd_ps(x.a, y.a, z.a));
}
GCOMP__INLINE gcomp__v16_avx512 gcomp__plus_avx512(gcomp__v16_avx512 x, gcomp__v16_avx512 y, gcomp__v16_avx512 z)
{
    return gcomp__fma_avx512(x, y, z);
}
GCOMP__INLINE float gcomp__fold_avx512(gcomp__v16_avx512 x)
{
    return gcomp__fold8_avx512(_mm256_add_ps(_mm512_castps512_ps256(x.a), _mm512_extractf32x8_ps(x.a, 1)));
}

GCOMP__INLINE gcomp__v16_avx512 gcomp__abs_avx512(gcomp__v16_avx512 x)
{
    return gcomp__one_avx512(_mm512_and_ps(x.a, _mm512_castsi512_ps(_mm512_set1_epi32(0x7fffffff))));
}

/* gcc 12 can spill 16 bits of a mask and read 32 back: the asm makes it extend the mask in a register. */
GCOMP__INLINE uint32_t gcomp__mask_avx512(__mmask16 mask)
{
    uint32_t m = mask;
    __asm__("" : "+r"(m));
    return m & 0xffffu;
}

GCOMP__INLINE uint32_t gcomp__lt0_avx512(gcomp__v16_avx512 x)
{
    return gcomp__mask_avx512(_mm512_cmp_ps_mask(x.a, _mm512_setzero_ps(), _CMP_LT_OQ));
}

GCOMP__INLINE gcomp__v16_avx512 gcomp__flip_avx512(gcomp__v16_avx512 x, uint32_t mask)
{
    __m512 top = _mm512_castsi512_ps(_mm512_set1_epi32((int)0x80000000u));
    return gcomp__one_avx512(_mm512_mask_xor_ps(x.a, (__mmask16)mask, x.a, top));
}

GCOMP__INLINE gcomp__v16_avx512 gcomp__mirror_avx512(gcomp__v16_avx512 x)
{
    const __m512i back = _mm512_setr_epi32(7, 6, 5, 4, 3, 2, 1, 0, 15, 14, 13, 12, 11, 10, 9, 8);
    return gcomp__one_avx512(_mm512_permutexvar_ps(back, x.a));
}

GCOMP__INLINE gcomp__v16_avx512 gcomp__worst_avx512(gcomp__v16_avx512 w, gcomp__v16_avx512 x)
{
    gcomp__v16_avx512 a = gcomp__abs_avx512(x);
    return gcomp__one_avx512(_mm512_castsi512_ps(_mm512_max_epu32(_mm512_castps_si512(w.a), _mm512_castps_si512(a.a))));
}

GCOMP__INLINE uint32_t gcomp__keys_avx512(gcomp__v16_avx512 x, uint32_t t)
{
    return gcomp__mask_avx512(_mm512_cmpge_epu32_mask(_mm512_castps_si512(gcomp__abs_avx512(x).a), _mm512_set1_epi32((int)t)));
}

GCOMP__INLINE void gcomp__keep_avx512(float *to, uint32_t *index, gcomp__v16_avx512 x, uint32_t base, uint32_t mask)
{
    __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    _mm512_storeu_ps(to, _mm512_maskz_compress_ps((__mmask16)mask, x.a));
    _mm512_storeu_si512(index,
                        _mm512_maskz_compress_epi32((__mmask16)mask, _mm512_add_epi32(lane, _mm512_set1_epi32((int)base))));
}

GCOMP__INLINE gcomp__v16_avx512 gcomp__load_half_avx512(const uint8_t *c)
{
    return gcomp__one_avx512(_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)c)));
}

GCOMP__INLINE gcomp__v16_avx512 gcomp__load_short_avx512(const uint8_t *c, int shift)
{
    __m256i h = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)(const void *)c));
    h = _mm256_and_si256(_mm256_slli_epi16(h, shift), _mm256_set1_epi16((short)gcomp__short_mask(shift)));
    return gcomp__one_avx512(_mm512_cvtph_ps(h));
}

GCOMP__INLINE gcomp__v16_avx512 gcomp__load_six_avx512(const uint8_t *c, int shift)
{
    return gcomp__one_avx512(_mm512_cvtph_ps(gcomp__sixes_avx512(c, shift)));
}

GCOMP__INLINE gcomp__v16_avx512 gcomp__min_avx512(gcomp__v16_avx512 x, gcomp__v16_avx512 y)
{
    return gcomp__one_avx512(_mm512_min_ps(x.a, y.a));
}
GCOMP__INLINE gcomp__v16_avx512 gcomp__max_avx512(gcomp__v16_avx512 x, gcomp__v16_avx512 y)
{
    return gcomp__one_avx512(_mm512_max_ps(x.a, y.a));
}

GCOMP__INLINE gcomp__v16_avx512 gcomp__clamp_avx512(gcomp__v16_avx512 x, float limit)
{
    return gcomp__one_avx512(_mm512_max_ps(_mm512_min_ps(x.a, _mm512_set1_ps(limit)), _mm512_set1_ps(-limit)));
}

GCOMP__INLINE void gcomp__store_half_avx512(uint8_t *c, gcomp__v16_avx512 x)
{
    x = gcomp__clamp_avx512(x, GCOMP__HALF_MAX);
    _mm256_storeu_si256((__m256i *)(void *)c, _mm512_maskz_cvtps_ph((__mmask16)0xffff, x.a, _MM_FROUND_TO_NEAREST_INT));
}

GCOMP__INLINE gcomp__v16_avx512 gcomp__load_bfloat_avx512(const uint8_t *c)
{
    __m512i u = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(const void *)c));
    return gcomp__one_avx512(_mm512_castsi512_ps(_mm512_slli_epi32(u, 16)));
}

GCOMP__INLINE void gcomp__store_bfloat_avx512(uint8_t *c, gcomp__v16_avx512 x)
{
    __m512i u = _mm512_castps_si512(gcomp__clamp_avx512(x, GCOMP__BFLOAT_MAX).a);
    __m512i odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
    u = _mm512_srli_epi32(_mm512_add_epi32(_mm512_add_epi32(u, _mm512_set1_epi32(0x7fff)), odd), 16);
    _mm256_storeu_si256((__m256i *)(void *)c, _mm512_cvtepi32_epi16(u));
}

GCOMP__INLINE gcomp__sum16_avx512 gcomp__sum_none_avx512(void)
{
    gcomp__sum16_avx512 s;
    s.a = s.b = _mm512_setzero_pd();
    return s;
}

GCOMP__INLINE gcomp__sum16_avx512 gcomp__sum_add_avx512(gcomp__sum16_avx512 s, gcomp__v16_avx512 x)
{
    s.a = _mm512_add_pd(s.a, _mm512_cvtps_pd(_mm512_castps512_ps256(x.a)));
    s.b = _mm512_add_pd(s.b, _mm512_cvtps_pd(_mm512_extractf32x8_ps(x.a, 1)));
    GCOMP__PIN_SUM(s.a);
    GCOMP__PIN_SUM(s.b);
    return s;
}

GCOMP__INLINE void gcomp__sides8_avx512(__m512d *s, __m512d *t, __m256 x)
{
    const __m512d d = _mm512_cvtps_pd(x), above = _mm512_max_pd(_mm512_setzero_pd(), d); /* of NaN the second, d */
    *s = _mm512_add_pd(*s, above);
    *t = _mm512_fnmadd_pd(_mm512_xor_pd(above, d), _mm512_set1_pd(1), *t);
    GCOMP__PIN_SUM(*s);
    GCOMP__PIN_SUM(*t);
}
GCOMP__INLINE void gcomp__sum_sides_avx512(gcomp__sum16_avx512 *s, gcomp__sum16_avx512 *t, gcomp__v16_avx512 x)
{
    gcomp__sides8_avx512(&s->a, &t->a, _mm512_castps512_ps256(x.a));
    gcomp__sides8_avx512(&s->b, &t->b, _mm512_extractf32x8_ps(x.a, 1));
}

GCOMP__INLINE gcomp__sum16_avx512 gcomp__sum_dot_avx512(gcomp__sum16_avx512 s, gcomp__v16_avx512 x, gcomp__v16_avx512 y)
{
    s.a = _mm512_fmadd_pd(_mm512_cvtps_pd(_mm512_castps512_ps256(x.a)), _mm512_cvtps_pd(_mm512_castps512_ps256(y.a)), s.a);
    s.b = _mm512_fmadd_pd(_mm512_cvtps_pd(_mm512_extractf32x8_ps(x.a, 1)), _mm512_cvtps_pd(_mm512_extractf32x8_ps(y.a, 1)),
                          s.b);
    return s;
}

GCOMP__INLINE double gcomp__sum_fold_avx512(gcomp__sum16_avx512 s)
{
    __m512d eight = _mm512_add_pd(s.a, s.b);
    __m256d four = _mm256_add_pd(_mm512_castpd512_pd256(eight), _mm512_extractf64x4_pd(eight, 1));
    __m128d two = _mm_add_pd(_mm256_castpd256_pd128(four), _mm256_extractf128_pd(four, 1));
    return _mm_cvtsd_f64(_mm_add_sd(two, _mm_unpackhi_pd(two, two)));
}

typedef struct gcomp__w16_avx512 { __m512i a; } gcomp__w16_avx512;

GCOMP__INLINE gcomp__w16_avx512 gcomp__whole_avx512(__m512i a)
{
    gcomp__w16_avx512 w;
    w.a = a;
    return w;
}

#define GCOMP__WORDS_AVX512(name, f) \
    GCOMP__INLINE gcomp__w16_avx512 gcomp__##name##_avx512(gcomp__w16_avx512 x, gcomp__w16_avx512 y) \
    { \
        return gcomp__whole_avx512(f(x.a, y.a)); \
    }
#define GCOMP__SHIFT_AVX512(name, f) \
    GCOMP__INLINE gcomp__w16_avx512 gcomp__##name##_avx512(gcomp__w16_avx512 x, int k) \
    { \
        return gcomp__whole_avx512(f(x.a, _mm_cvtsi32_si128(k))); \
    }
GCOMP__WORDS_AVX512(wadd, _mm512_add_epi32)
GCOMP__WORDS_AVX512(wsub, _mm512_sub_epi32)
GCOMP__WORDS_AVX512(wmul, _mm512_mullo_epi32)
GCOMP__WORDS_AVX512(wand, _mm512_and_si512)
GCOMP__WORDS_AVX512(wor, _mm512_or_si512)
GCOMP__WORDS_AVX512(wxor, _mm512_xor_si512)
GCOMP__WORDS_AVX512(wmin, _mm512_min_epi32)
GCOMP__WORDS_AVX512(wmax, _mm512_max_epi32)
GCOMP__WORDS_AVX512(wtop, _mm512_max_epu32)
GCOMP__SHIFT_AVX512(wshl, _mm512_sll_epi32)
GCOMP__SHIFT_AVX512(wshr, _mm512_srl_epi32)
GCOMP__SHIFT_AVX512(wsar, _mm512_sra_epi32)

GCOMP__INLINE gcomp__w16_avx512 gcomp__wload_avx512(const uint8_t *c) { return gcomp__whole_avx512(_mm512_loadu_si512(c)); }
GCOMP__INLINE gcomp__w16_avx512 gcomp__wsplat_avx512(int32_t x) { return gcomp__whole_avx512(_mm512_set1_epi32(x)); }
GCOMP__INLINE gcomp__w16_avx512 gcomp__wgt_avx512(gcomp__w16_avx512 x, gcomp__w16_avx512 y)
{
    return gcomp__whole_avx512(_mm512_movm_epi32(_mm512_cmpgt_epi32_mask(x.a, y.a)));
}
GCOMP__INLINE gcomp__w16_avx512 gcomp__words_avx512(gcomp__v16_avx512 x) { return gcomp__whole_avx512(_mm512_castps_si512(x.a)); }
GCOMP__INLINE gcomp__v16_avx512 gcomp__floats_avx512(gcomp__w16_avx512 x) { return gcomp__one_avx512(_mm512_castsi512_ps(x.a)); }
GCOMP__INLINE gcomp__w16_avx512 gcomp__nearest_avx512(gcomp__v16_avx512 x)
{
    return gcomp__whole_avx512(_mm512_cvtps_epi32(x.a));
}
GCOMP__INLINE gcomp__w16_avx512 gcomp__trunc_avx512(gcomp__v16_avx512 x) { return gcomp__whole_avx512(_mm512_cvttps_epi32(x.a)); }
GCOMP__INLINE gcomp__v16_avx512 gcomp__number_avx512(gcomp__w16_avx512 x) { return gcomp__one_avx512(_mm512_cvtepi32_ps(x.a)); }
GCOMP__INLINE uint32_t gcomp__weq_avx512(gcomp__w16_avx512 x, gcomp__w16_avx512 y)
{
    return gcomp__mask_avx512(_mm512_cmpeq_epi32_mask(x.a, y.a));
}
GCOMP__INLINE gcomp__w16_avx512 gcomp__wfloor_avx512(gcomp__v16_avx512 x)
{
    return gcomp__whole_avx512(_mm512_cvt_roundps_epi32(x.a, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC));
}
GCOMP__INLINE int gcomp__wties_avx512(gcomp__w16_avx512 x, gcomp__w16_avx512 y)
{
    const __m512i low = _mm512_set1_epi32(0xffff), most = _mm512_and_si512(_mm512_max_epu16(x.a, y.a), low);
    return gcomp__mask_avx512(_mm512_cmpeq_epi32_mask(most, low)) != 0;
}
GCOMP__INLINE gcomp__v16_avx512 gcomp__pick_avx512(uint32_t mask, gcomp__v16_avx512 x, gcomp__v16_avx512 y)
{
    return gcomp__one_avx512(_mm512_mask_blend_ps((__mmask16)mask, y.a, x.a));
}

GCOMP__INLINE void gcomp__put8_avx512(uint8_t *c, gcomp__w16_avx512 w)
{
    _mm_storeu_si128((__m128i *)(void *)c, _mm512_cvtepi32_epi8(w.a));
}
GCOMP__INLINE void gcomp__put4_avx512(uint8_t *c, gcomp__w16_avx512 w)
{
    __m128i b = _mm_and_si128(_mm512_cvtepi32_epi8(w.a), _mm_set1_epi8(15));
    b = _mm_maddubs_epi16(b, _mm_set1_epi16(0x1001));
    _mm_storel_epi64((__m128i *)(void *)c, _mm_packus_epi16(b, b));
}
GCOMP__INLINE void gcomp__put2_avx512(uint8_t *c, gcomp__w16_avx512 w, int first_high)
{
    __m128i b = _mm_and_si128(_mm512_cvtepi32_epi8(w.a), _mm_set1_epi8(3));
    b = _mm_maddubs_epi16(b, _mm_set1_epi16(first_high ? 0x0104 : 0x0401));
    b = _mm_madd_epi16(b, _mm_set1_epi32(first_high ? 0x00010010 : 0x00100001));
    b = _mm_packus_epi16(_mm_packs_epi32(b, b), b);
    gcomp__put32(c, (uint32_t)_mm_cvtsi128_si32(b));
}
GCOMP__INLINE gcomp__w16_avx512 gcomp__whalves_avx512(gcomp__w16_avx512 x, int k)
{
    return gcomp__whole_avx512(_mm512_madd_epi16(x.a, _mm512_set1_epi32(1 << 16 | k)));
}
GCOMP__INLINE __m256i gcomp__pressed_avx512(gcomp__w16_avx512 x, gcomp__w16_avx512 y, int shift)
{
    const __m512i low = _mm512_setr_epi32(0x20000, 0x60004, 0xa0008, 0xe000c, 0x120010, 0x160014, 0x1a0018, 0x1e001c, 0x220020,
                                          0x260024, 0x2a0028, 0x2e002c, 0x320030, 0x360034, 0x3a0038, 0x3e003c);
    const __m512i high = _mm512_or_si512(low, _mm512_set1_epi32(0x10001));
    const __m512i b = _mm512_permutex2var_epi16(x.a, shift == 16 ? high : low, y.a);
    return _mm512_cvtsepi16_epi8(shift % 16 ? _mm512_sra_epi16(b, _mm_cvtsi32_si128(shift)) : b);
}
GCOMP__INLINE __m256i gcomp__sorted_avx512(__m256i b) { return b; }
GCOMP__INLINE __m128i gcomp__low2_avx512(__m256i b) { return _mm256_cvtepi16_epi8(b); }
GCOMP__INLINE __m128i gcomp__low4_avx512(__m256i b) { return _mm256_cvtepi32_epi8(b); }
enum { gcomp__sign_half_avx512 = 16 };
GCOMP__BYTES(avx512)
GCOMP__INLINE void gcomp__put16s_avx512(uint8_t *c, gcomp__w16_avx512 w)
{
    _mm256_storeu_si256((__m256i *)(void *)c, _mm512_cvtepi32_epi16(w.a));
}
GCOMP__INLINE gcomp__w16_avx512 gcomp__get16s_avx512(const uint8_t *c)
{
    return gcomp__whole_avx512(_mm512_cvtepi16_epi32(_mm256_loadu_si256((const __m256i *)(const void *)c)));
}
GCOMP__INLINE gcomp__w16_avx512 gcomp__get8_avx512(const uint8_t *c)
{
    return gcomp__whole_avx512(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)(const void *)c)));
}
GCOMP__INLINE gcomp__w16_avx512 gcomp__get4_avx512(const uint8_t *c)
{
    __m512i left = _mm512_setr_epi32(28, 24, 20, 16, 12, 8, 4, 0, 28, 24, 20, 16, 12, 8, 4, 0);
    __m512i x = _mm512_inserti64x4(_mm512_set1_epi32((int)gcomp__get32(c)), _mm256_set1_epi32((int)gcomp__get32(c + 4)), 1);
    return gcomp__whole_avx512(_mm512_srai_epi32(_mm512_sllv_epi32(x, left), 28));
}
GCOMP__INLINE gcomp__w16_avx512 gcomp__get2_avx512(const uint8_t *c, int first_high)
{
    __m512i low = _mm512_setr_epi32(30, 28, 26, 24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
    __m512i high = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    __m512i x = _mm512_set1_epi32((int)(first_high ? gcomp__get32_high(c) : gcomp__get32(c)));
    return gcomp__whole_avx512(_mm512_srai_epi32(_mm512_sllv_epi32(x, first_high ? high : low), 30));
}

GCOMP__INLINE gcomp__w16_avx512 gcomp__halves_avx512(const uint32_t *p)
{
    return gcomp__whole_avx512(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(const void *)p)));
}

GCOMP__INLINE uint32_t gcomp__most_avx512(gcomp__v16_avx512 worst)
{
    return (uint32_t)_mm512_reduce_max_epu32(_mm512_castps_si512(worst.a));
}

GCOMP__INLINE void gcomp__halved_avx512(float *to, gcomp__v16_avx512 x)
{
    const __m512i w = _mm512_castps_si512(x.a);
    const __m256i m = _mm256_max_epu32(_mm512_castsi512_si256(w), _mm512_extracti64x4_epi64(w, 1));
    _mm256_storeu_ps(to, _mm256_castsi256_ps(m));
}
GCOMP__INLINE gcomp__v16_avx512 gcomp__mosts_avx512(const float *from)
{
    return gcomp__one_avx512(_mm512_zextps256_ps512(gcomp__mosts8_avx512(from)));
}

GCOMP__INLINE gcomp__v16_avx512 gcomp__saturate_avx512(gcomp__v16_avx512 x)
{
    __m512i u = _mm512_min_epi32(_mm512_castps_si512(x.a), _mm512_set1_epi32(0x7f7fffff)); /* those with a sign are below it */
    return gcomp__one_avx512(_mm512_castsi512_ps(_mm512_min_epu32(u, _mm512_set1_epi32(-0x800001))));
}

GCOMP__INLINE gcomp__w16_avx512 gcomp__load_words_avx512(const int32_t *p)
{
    return gcomp__whole_avx512(_mm512_loadu_si512(p));
}
GCOMP__INLINE void gcomp__store_words_avx512(int32_t *to, gcomp__w16_avx512 w) { _mm512_storeu_si512(to, w.a); }

GCOMP__INLINE __m512 gcomp__less_avx512(__m512 x, __m512 y) { return _mm512_fnmadd_ps(y, _mm512_set1_ps(1), x); }
GCOMP__EIGHT(eight_avx512, __m512, _mm512_loadu_ps, _mm512_storeu_ps, _mm512_add_ps, gcomp__less_avx512, GCOMP__NOTHING_INSIDE)
/* The levels within a register: each element and the one that it is paired with, which comes first or second. */
GCOMP__INLINE __m512 gcomp__inside_avx512(__m512 x)
{
    const __m512 by8 = _mm512_setr_ps(1, 1, 1, 1, 1, 1, 1, 1, -1, -1, -1, -1, -1, -1, -1, -1);
    const __m512 by4 = _mm512_setr_ps(1, 1, 1, 1, -1, -1, -1, -1, 1, 1, 1, 1, -1, -1, -1, -1);
    const __m512 by2 = _mm512_setr_ps(1, 1, -1, -1, 1, 1, -1, -1, 1, 1, -1, -1, 1, 1, -1, -1);
    const __m512 by1 = _mm512_setr_ps(1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1);
    x = _mm512_fmadd_ps(x, by8, _mm512_shuffle_f32x4(x, x, 0x4e));
    x = _mm512_fmadd_ps(x, by4, _mm512_shuffle_f32x4(x, x, 0xb1));
    x = _mm512_fmadd_ps(x, by2, _mm512_permute_ps(x, 0x4e));
    return _mm512_fmadd_ps(x, by1, _mm512_permute_ps(x, 0xb1));
}
GCOMP__INLINE void gcomp__last_avx512(float *p, size_t stride)
{
    __m512 a = _mm512_loadu_ps(p), b = _mm512_loadu_ps(p + 16), c = _mm512_loadu_ps(p + 32), d = _mm512_loadu_ps(p + 48);
    (void)stride;
    GCOMP__LEVEL(__m512, a, c, _mm512_add_ps, gcomp__less_avx512)
    GCOMP__LEVEL(__m512, b, d, _mm512_add_ps, gcomp__less_avx512)
    GCOMP__LEVEL(__m512, a, b, _mm512_add_ps, gcomp__less_avx512)
    GCOMP__LEVEL(__m512, c, d, _mm512_add_ps, gcomp__less_avx512)
    _mm512_storeu_ps(p, gcomp__inside_avx512(a));
    _mm512_storeu_ps(p + 16, gcomp__inside_avx512(b));
    _mm512_storeu_ps(p + 32, gcomp__inside_avx512(c));
    _mm512_storeu_ps(p + 48, gcomp__inside_avx512(d));
}
enum { gcomp__columns_avx512 = 16, gcomp__base_avx512 = 64 };
enum { gcomp__abreast_avx512 = 4, gcomp__tall_avx512 = 8, gcomp__tile_avx512 = 96 };

GCOMP__INLINE gcomp__w16_avx512 gcomp__look16_avx512(const int32_t *table, gcomp__w16_avx512 w)
{
    return gcomp__whole_avx512(_mm512_permutexvar_epi32(w.a, _mm512_loadu_si512(table)));
}

/* Words whose lowest 4 bits are the codes: they pick one of 16 values, of which each is multiplied once. */
GCOMP__INLINE __m512i gcomp__nibbles_avx512(const uint8_t *c)
{
    const __m512i right = _mm512_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28, 0, 4, 8, 12, 16, 20, 24, 28);
    __m512i x = _mm512_inserti64x4(_mm512_set1_epi32((int)gcomp__get32(c)), _mm256_set1_epi32((int)gcomp__get32(c + 4)), 1);
    return _mm512_srlv_epi32(x, right);
}
GCOMP__INLINE gcomp__w16_avx512 gcomp__lookup4_avx512(const int32_t *table, const uint8_t *c)
{
    return gcomp__whole_avx512(_mm512_permutexvar_epi32(gcomp__nibbles_avx512(c), _mm512_loadu_si512(table)));
}
GCOMP__INLINE gcomp__v16_avx512 gcomp__times4_avx512(const uint8_t *c, float a)
{
    const __m512 q = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, -8, -7, -6, -5, -4, -3, -2, -1);
    const gcomp__v16_avx512 values = gcomp__mul_avx512(gcomp__one_avx512(q), gcomp__splat_avx512(a));
    return gcomp__one_avx512(_mm512_permutexvar_ps(gcomp__nibbles_avx512(c), values.a));
}
GCOMP__INLINE gcomp__v16_avx512 gcomp__times2_avx512(const uint8_t *c, float a)
{
    const __m512i right = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    const __m512 q = _mm512_setr_ps(0, 1, -2, -1, 0, 1, -2, -1, 0, 1, -2, -1, 0, 1, -2, -1);
    const gcomp__v16_avx512 values = gcomp__mul_avx512(gcomp__one_avx512(q), gcomp__splat_avx512(a));
    const __m512i x = _mm512_srlv_epi32(_mm512_set1_epi32((int)gcomp__get32(c)), right);
    return gcomp__one_avx512(_mm512_permutexvar_ps(x, values.a));
}

#if GCOMP__WANTS(2)
#define gcomp__coders_avx512 gcomp__coders_avx2 /* entropy codes are AVX2's: wider registers bring them nothing */
#define GCOMP__EIGHT_LANES avx2                 /* nor do they where 8 lanes are all there are */
#else
GCOMP__SLICES(avx512)
#endif
#define GCOMP__PASS avx512
#define GCOMP__PASS_ISA GCOMP_ISA_AVX512
#if GCOMP__ONLY == 3
#define GCOMP__LAST
#else
#include GCOMP_SELF
#undef gcomp__coders_avx512
#undef GCOMP__EIGHT_LANES
#undef GCOMP__PASS
#undef GCOMP__PASS_ISA
#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#endif
#endif

/* ---------------- NEON: four registers (64-bit ARM; 32-bit NEON flushes subnormals and takes the scalar set) */
#if GCOMP__ARM64 && GCOMP__WANTS(4)
#define GCOMP__BUILT_NEON 1
typedef struct gcomp__v16_neon { float32x4_t a, b, c, d; } gcomp__v16_neon;
typedef struct gcomp__sum16_neon { float64x2_t a, b, c, d, e, f, g, h; } gcomp__sum16_neon;

GCOMP__INLINE gcomp__v16_neon gcomp__four_neon(float32x4_t a, float32x4_t b, float32x4_t c, float32x4_t d)
{
    gcomp__v16_neon v;
    v.a = a;
    v.b = b;
    v.c = c;
    v.d = d;
    return v;
}

GCOMP__INLINE gcomp__v16_neon gcomp__load_neon(const float *p)
{
    return gcomp__four_neon(vld1q_f32(p), vld1q_f32(p + 4), vld1q_f32(p + 8), vld1q_f32(p + 12));
}

GCOMP__INLINE gcomp__v16_neon gcomp__splat_neon(float x)
{
    float32x4_t v = vdupq_n_f32(x);
    return gcomp__four_neon(v, v, v, v);
}

GCOMP__INLINE void gcomp__turn8_neon(float *to, size_t pitch, const float *from, size_t stride)
{
    size_t i, k;
    for (i = 0; i < 8; i++)
        for (k = 0; k < 8; k++) to[k * pitch + i] = from[i * stride + k];
}

GCOMP__INLINE gcomp__v16_neon gcomp__pair_splat_neon(float x, float y)
{
    const float32x4_t v = vdupq_n_f32(x), w = vdupq_n_f32(y);
    return gcomp__four_neon(v, v, w, w);
}

GCOMP__INLINE gcomp__v16_neon gcomp__twice_neon(const float *p)
{
    const float32x4_t v = vld1q_f32(p), w = vld1q_f32(p + 4);
    return gcomp__four_neon(v, w, v, w);
}

GCOMP__INLINE void gcomp__store_neon(float *p, gcomp__v16_neon v)
{
    vst1q_f32(p, v.a);
    vst1q_f32(p + 4, v.b);
    vst1q_f32(p + 8, v.c);
    vst1q_f32(p + 12, v.d);
}

GCOMP__INLINE gcomp__v16_neon gcomp__pinned_neon(gcomp__v16_neon v)
{
    GCOMP__PIN_SUM(v.a);
    GCOMP__PIN_SUM(v.b);
    GCOMP__PIN_SUM(v.c);
    GCOMP__PIN_SUM(v.d);
    return v;
}

GCOMP__INLINE gcomp__v16_neon gcomp__add_neon(gcomp__v16_neon x, gcomp__v16_neon y)
{
    return gcomp__pinned_neon(
        gcomp__four_neon(vaddq_f32(x.a, y.a), vaddq_f32(x.b, y.b), vaddq_f32(x.c, y.c), vaddq_f32(x.d, y.d)));
}

GCOMP__INLINE gcomp__v16_neon gcomp__sub_neon(gcomp__v16_neon x, gcomp__v16_neon y)
{
    return gcomp__pinned_neon(
        gcomp__four_neon(vsubq_f32(x.a, y.a), vsubq_f32(x.b, y.b), vsubq_f32(x.c, y.c), vsubq_f32(x.d, y.d)));
}

GCOMP__INLINE gcomp__v16_neon gcomp__mul_neon(gcomp__v16_neon x, gcomp__v16_neon y)
{
    gcomp__v16_neon v = gcomp__four_neon(vmulq_f32(x.a, y.a), vmulq_f32(x.b, y.b), vmulq_f32(x.c, y.c), vmulq_f32(x.d, y.d));
    GCOMP__PIN(v.a);
    GCOMP__PIN(v.b);
    GCOMP__PIN(v.c);
    GCOMP__PIN(v.d);
    return v;
}

GCOMP__INLINE gcomp__v16_neon gcomp__fma_neon(gcomp__v16_neon x, gcomp__v16_neon y, gcomp__v16_neon z)
{
    return gcomp__four_neon(vfmaq_f32(z.a, x.a, y.a), vfmaq_f32(z.b, x.b, y.b), vfmaq_f32(z.c, x.c, y.c),
                            vfmaq_f32(z.d, x.d, y.d));
}
GCOMP__INLINE gcomp__v16_neon gcomp__plus_neon(gcomp__v16_neon x, gcomp__v16_neon y, gcomp__v16_neon z)
{
    return gcomp__fma_neon(x, y, z);
}
GCOMP__INLINE float gcomp__fold_neon(gcomp__v16_neon x)
{
    float32x4_t t = vaddq_f32(vaddq_f32(x.a, x.c), vaddq_f32(x.b, x.d));
    float32x2_t u = vadd_f32(vget_low_f32(t), vget_high_f32(t));
    return vget_lane_f32(vpadd_f32(u, u), 0);
}

GCOMP__INLINE gcomp__v16_neon gcomp__abs_neon(gcomp__v16_neon x)
{
    return gcomp__four_neon(vabsq_f32(x.a), vabsq_f32(x.b), vabsq_f32(x.c), vabsq_f32(x.d));
}

/* 16 lanes of all ones or zero to 16 bits: each lane keeps its own bit, and they are added up. */
GCOMP__INLINE uint32_t gcomp__mask_neon(uint32x4_t a, uint32x4_t b, uint32x4_t c, uint32x4_t d)
{
    static const uint32_t bit[4] = {1, 2, 4, 8};
    uint32x4_t bits = vld1q_u32(bit);
    return vaddvq_u32(vandq_u32(a, bits)) | vaddvq_u32(vandq_u32(b, bits)) << 4 | vaddvq_u32(vandq_u32(c, bits)) << 8 |
           vaddvq_u32(vandq_u32(d, bits)) << 12;
}

GCOMP__INLINE uint32_t gcomp__lt0_neon(gcomp__v16_neon x)
{
    return gcomp__mask_neon(vcltzq_f32(x.a), vcltzq_f32(x.b), vcltzq_f32(x.c), vcltzq_f32(x.d));
}

GCOMP__INLINE float32x4_t gcomp__flip4_neon(float32x4_t x, uint32_t mask)
{
    static const int32_t shift[4] = {31, 30, 29, 28};
    uint32x4_t top = vandq_u32(vshlq_u32(vdupq_n_u32(mask), vld1q_s32(shift)), vdupq_n_u32(0x80000000u));
    return vreinterpretq_f32_u32(veorq_u32(vreinterpretq_u32_f32(x), top));
}

GCOMP__INLINE gcomp__v16_neon gcomp__flip_neon(gcomp__v16_neon x, uint32_t mask)
{
    return gcomp__four_neon(gcomp__flip4_neon(x.a, mask), gcomp__flip4_neon(x.b, mask >> 4), gcomp__flip4_neon(x.c, mask >> 8),
                            gcomp__flip4_neon(x.d, mask >> 12));
}

GCOMP__INLINE float32x4_t gcomp__worst4_neon(float32x4_t w, float32x4_t x)
{
    return vreinterpretq_f32_u32(vmaxq_u32(vreinterpretq_u32_f32(w), vreinterpretq_u32_f32(vabsq_f32(x))));
}

GCOMP__INLINE float32x4_t gcomp__mirror4_neon(float32x4_t x)
{
    x = vrev64q_f32(x);
    return vextq_f32(x, x, 2);
}
GCOMP__INLINE gcomp__v16_neon gcomp__mirror_neon(gcomp__v16_neon x)
{
    return gcomp__four_neon(gcomp__mirror4_neon(x.b), gcomp__mirror4_neon(x.a), gcomp__mirror4_neon(x.d),
                            gcomp__mirror4_neon(x.c));
}

GCOMP__INLINE gcomp__v16_neon gcomp__worst_neon(gcomp__v16_neon w, gcomp__v16_neon x)
{
    return gcomp__four_neon(gcomp__worst4_neon(w.a, x.a), gcomp__worst4_neon(w.b, x.b), gcomp__worst4_neon(w.c, x.c),
                            gcomp__worst4_neon(w.d, x.d));
}

GCOMP__INLINE uint32x4_t gcomp__key4_neon(float32x4_t x, uint32x4_t t)
{
    return vcgeq_u32(vreinterpretq_u32_f32(vabsq_f32(x)), t);
}

GCOMP__INLINE uint32_t gcomp__keys_neon(gcomp__v16_neon x, uint32_t t)
{
    uint32x4_t k = vdupq_n_u32(t);
    return gcomp__mask_neon(gcomp__key4_neon(x.a, k), gcomp__key4_neon(x.b, k), gcomp__key4_neon(x.c, k),
                            gcomp__key4_neon(x.d, k));
}

GCOMP__INLINE void gcomp__keep_neon(float *to, uint32_t *index, gcomp__v16_neon x, uint32_t base, uint32_t mask)
{
    float f[16];
    gcomp__store_neon(f, x);
    for (; mask; mask &= mask - 1) {
        uint32_t lane = (uint32_t)__builtin_ctz(mask);
        *to++ = f[lane];
        *index++ = base + lane;
    }
}

GCOMP__INLINE float32x4_t gcomp__half4_neon(const uint8_t *c) { return vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(c))); }

GCOMP__INLINE gcomp__v16_neon gcomp__load_half_neon(const uint8_t *c)
{
    return gcomp__four_neon(gcomp__half4_neon(c), gcomp__half4_neon(c + 8), gcomp__half4_neon(c + 16),
                            gcomp__half4_neon(c + 24));
}

GCOMP__INLINE float32x4_t gcomp__short4_neon(int16x4_t c, int shift)
{
    const int16x4_t h = vand_s16(vshl_s16(c, vdup_n_s16((int16_t)shift)), vdup_n_s16((int16_t)gcomp__short_mask(shift)));
    return vcvt_f32_f16(vreinterpret_f16_s16(h));
}

GCOMP__INLINE gcomp__v16_neon gcomp__load_short_neon(const uint8_t *c, int shift)
{
    const int8x16_t b = vreinterpretq_s8_u8(vld1q_u8(c));
    const int16x8_t x = vmovl_s8(vget_low_s8(b)), y = vmovl_s8(vget_high_s8(b));
    return gcomp__four_neon(gcomp__short4_neon(vget_low_s16(x), shift), gcomp__short4_neon(vget_high_s16(x), shift),
                            gcomp__short4_neon(vget_low_s16(y), shift), gcomp__short4_neon(vget_high_s16(y), shift));
}

GCOMP__INLINE gcomp__v16_neon gcomp__load_six_neon(const uint8_t *c, int shift)
{
    static const uint8_t place[32] = {255, 0, 0, 1, 1, 2, 255, 2, 255, 3, 3, 4,  4,  5,  255, 5,
                                      255, 6, 6, 7, 7, 8, 255, 8, 255, 9, 9, 10, 10, 11, 255, 11};
    static const int16_t left[8] = {2, 4, 6, 0, 2, 4, 6, 0};
    const uint8x16_t b = vcombine_u8(vld1_u8(c), vcreate_u8(gcomp__get32(c + 8)));
    const int16x8_t by = vld1q_s16(left), back = vdupq_n_s16((int16_t)(shift - 10));
    const int16x8_t mask = vdupq_n_s16((int16_t)gcomp__six_mask(shift));
    int16x8_t x = vshlq_s16(vreinterpretq_s16_u8(vqtbl1q_u8(b, vld1q_u8(place))), by);
    int16x8_t y = vshlq_s16(vreinterpretq_s16_u8(vqtbl1q_u8(b, vld1q_u8(place + 16))), by);
    x = vandq_s16(vshlq_s16(x, back), mask);
    y = vandq_s16(vshlq_s16(y, back), mask);
    return gcomp__four_neon(
        vcvt_f32_f16(vreinterpret_f16_s16(vget_low_s16(x))), vcvt_f32_f16(vreinterpret_f16_s16(vget_high_s16(x))),
        vcvt_f32_f16(vreinterpret_f16_s16(vget_low_s16(y))), vcvt_f32_f16(vreinterpret_f16_s16(vget_high_s16(y))));
}

GCOMP__INLINE float32x4_t gcomp__clamp4_neon(float32x4_t x, float limit)
{
    return vmaxq_f32(vminq_f32(x, vdupq_n_f32(limit)), vdupq_n_f32(-limit));
}

GCOMP__INLINE void gcomp__store_half4_neon(uint8_t *c, float32x4_t x)
{
    vst1_u8(c, vreinterpret_u8_f16(vcvt_f16_f32(gcomp__clamp4_neon(x, GCOMP__HALF_MAX))));
}

GCOMP__INLINE void gcomp__store_half_neon(uint8_t *c, gcomp__v16_neon x)
{
    gcomp__store_half4_neon(c, x.a);
    gcomp__store_half4_neon(c + 8, x.b);
    gcomp__store_half4_neon(c + 16, x.c);
    gcomp__store_half4_neon(c + 24, x.d);
}

GCOMP__INLINE float32x4_t gcomp__bfloat4_neon(const uint8_t *c)
{
    return vreinterpretq_f32_u32(vshll_n_u16(vreinterpret_u16_u8(vld1_u8(c)), 16));
}

GCOMP__INLINE gcomp__v16_neon gcomp__load_bfloat_neon(const uint8_t *c)
{
    return gcomp__four_neon(gcomp__bfloat4_neon(c), gcomp__bfloat4_neon(c + 8), gcomp__bfloat4_neon(c + 16),
                            gcomp__bfloat4_neon(c + 24));
}

GCOMP__INLINE void gcomp__store_bfloat4_neon(uint8_t *c, float32x4_t x)
{
    uint32x4_t u = vreinterpretq_u32_f32(gcomp__clamp4_neon(x, GCOMP__BFLOAT_MAX));
    u = vaddq_u32(vaddq_u32(u, vdupq_n_u32(0x7fff)), vandq_u32(vshrq_n_u32(u, 16), vdupq_n_u32(1)));
    vst1_u8(c, vreinterpret_u8_u16(vshrn_n_u32(u, 16)));
}

GCOMP__INLINE void gcomp__store_bfloat_neon(uint8_t *c, gcomp__v16_neon x)
{
    gcomp__store_bfloat4_neon(c, x.a);
    gcomp__store_bfloat4_neon(c + 8, x.b);
    gcomp__store_bfloat4_neon(c + 16, x.c);
    gcomp__store_bfloat4_neon(c + 24, x.d);
}

GCOMP__INLINE gcomp__sum16_neon gcomp__sum_none_neon(void)
{
    gcomp__sum16_neon s;
    s.a = s.b = s.c = s.d = s.e = s.f = s.g = s.h = vdupq_n_f64(0);
    return s;
}

GCOMP__INLINE gcomp__sum16_neon gcomp__sum_add_neon(gcomp__sum16_neon s, gcomp__v16_neon x)
{
    s.a = vaddq_f64(s.a, vcvt_f64_f32(vget_low_f32(x.a)));
    s.b = vaddq_f64(s.b, vcvt_f64_f32(vget_high_f32(x.a)));
    s.c = vaddq_f64(s.c, vcvt_f64_f32(vget_low_f32(x.b)));
    s.d = vaddq_f64(s.d, vcvt_f64_f32(vget_high_f32(x.b)));
    s.e = vaddq_f64(s.e, vcvt_f64_f32(vget_low_f32(x.c)));
    s.f = vaddq_f64(s.f, vcvt_f64_f32(vget_high_f32(x.c)));
    s.g = vaddq_f64(s.g, vcvt_f64_f32(vget_low_f32(x.d)));
    s.h = vaddq_f64(s.h, vcvt_f64_f32(vget_high_f32(x.d)));
    GCOMP__PIN_SUM(s.a);
    GCOMP__PIN_SUM(s.b);
    GCOMP__PIN_SUM(s.c);
    GCOMP__PIN_SUM(s.d);
    GCOMP__PIN_SUM(s.e);
    GCOMP__PIN_SUM(s.f);
    GCOMP__PIN_SUM(s.g);
    GCOMP__PIN_SUM(s.h);
    return s;
}

GCOMP__INLINE void gcomp__sides2_neon(float64x2_t *s, float64x2_t *t, float32x2_t x)
{
    const float64x2_t d = vcvt_f64_f32(x), zero = vdupq_n_f64(0);
    const uint64x2_t below = vreinterpretq_u64_s64(vshrq_n_s64(vreinterpretq_s64_f64(d), 63));
    *s = vaddq_f64(*s, vbslq_f64(below, zero, d));
    *t = vsubq_f64(*t, vbslq_f64(below, d, zero));
    GCOMP__PIN_SUM(*s);
    GCOMP__PIN_SUM(*t);
}
GCOMP__INLINE void gcomp__sum_sides_neon(gcomp__sum16_neon *s, gcomp__sum16_neon *t, gcomp__v16_neon x)
{
    gcomp__sides2_neon(&s->a, &t->a, vget_low_f32(x.a));
    gcomp__sides2_neon(&s->b, &t->b, vget_high_f32(x.a));
    gcomp__sides2_neon(&s->c, &t->c, vget_low_f32(x.b));
    gcomp__sides2_neon(&s->d, &t->d, vget_high_f32(x.b));
    gcomp__sides2_neon(&s->e, &t->e, vget_low_f32(x.c));
    gcomp__sides2_neon(&s->f, &t->f, vget_high_f32(x.c));
    gcomp__sides2_neon(&s->g, &t->g, vget_low_f32(x.d));
    gcomp__sides2_neon(&s->h, &t->h, vget_high_f32(x.d));
}

GCOMP__INLINE gcomp__sum16_neon gcomp__sum_dot_neon(gcomp__sum16_neon s, gcomp__v16_neon x, gcomp__v16_neon y)
{
    s.a = vfmaq_f64(s.a, vcvt_f64_f32(vget_low_f32(x.a)), vcvt_f64_f32(vget_low_f32(y.a)));
    s.b = vfmaq_f64(s.b, vcvt_f64_f32(vget_high_f32(x.a)), vcvt_f64_f32(vget_high_f32(y.a)));
    s.c = vfmaq_f64(s.c, vcvt_f64_f32(vget_low_f32(x.b)), vcvt_f64_f32(vget_low_f32(y.b)));
    s.d = vfmaq_f64(s.d, vcvt_f64_f32(vget_high_f32(x.b)), vcvt_f64_f32(vget_high_f32(y.b)));
    s.e = vfmaq_f64(s.e, vcvt_f64_f32(vget_low_f32(x.c)), vcvt_f64_f32(vget_low_f32(y.c)));
    s.f = vfmaq_f64(s.f, vcvt_f64_f32(vget_high_f32(x.c)), vcvt_f64_f32(vget_high_f32(y.c)));
    s.g = vfmaq_f64(s.g, vcvt_f64_f32(vget_low_f32(x.d)), vcvt_f64_f32(vget_low_f32(y.d)));
    s.h = vfmaq_f64(s.h, vcvt_f64_f32(vget_high_f32(x.d)), vcvt_f64_f32(vget_high_f32(y.d)));
    return s;
}

GCOMP__INLINE double gcomp__sum_fold_neon(gcomp__sum16_neon s)
{
    double d[16];
    vst1q_f64(d, s.a);
    vst1q_f64(d + 2, s.b);
    vst1q_f64(d + 4, s.c);
    vst1q_f64(d + 6, s.d);
    vst1q_f64(d + 8, s.e);
    vst1q_f64(d + 10, s.f);
    vst1q_f64(d + 12, s.g);
    vst1q_f64(d + 14, s.h);
    return gcomp__fold16(d);
}

#if defined(__ARM_FEATURE_CRC32)
GCOMP__INLINE uint32_t gcomp__crc8_neon(uint32_t crc, uint64_t word) { return __crc32cd(crc, word); }
#else
GCOMP__INLINE uint32_t gcomp__crc8_neon(uint32_t crc, uint64_t word) { return gcomp__crc8_plain(crc, word); }
#endif
typedef struct gcomp__w16_neon { int32x4_t a, b, c, d; } gcomp__w16_neon;

GCOMP__INLINE gcomp__w16_neon gcomp__quad_neon(int32x4_t a, int32x4_t b, int32x4_t c, int32x4_t d)
{
    gcomp__w16_neon w;
    w.a = a;
    w.b = b;
    w.c = c;
    w.d = d;
    return w;
}

#define GCOMP__WORDS_NEON(name, f) \
    GCOMP__INLINE gcomp__w16_neon gcomp__##name##_neon(gcomp__w16_neon x, gcomp__w16_neon y) \
    { \
        return gcomp__quad_neon(f(x.a, y.a), f(x.b, y.b), f(x.c, y.c), f(x.d, y.d)); \
    }
#define GCOMP__EACH_NEON(name, from, to, f) \
    GCOMP__INLINE gcomp__##to##16_neon gcomp__##name##_neon(gcomp__##from##16_neon x) \
    { \
        gcomp__##to##16_neon y; \
        y.a = f(x.a); \
        y.b = f(x.b); \
        y.c = f(x.c); \
        y.d = f(x.d); \
        return y; \
    }
GCOMP__INLINE int32x4_t gcomp__top4_neon(int32x4_t x, int32x4_t y)
{
    return vreinterpretq_s32_u32(vmaxq_u32(vreinterpretq_u32_s32(x), vreinterpretq_u32_s32(y)));
}
GCOMP__INLINE int32x4_t gcomp__gt4_neon(int32x4_t x, int32x4_t y) { return vreinterpretq_s32_u32(vcgtq_s32(x, y)); }
GCOMP__WORDS_NEON(wadd, vaddq_s32)
GCOMP__WORDS_NEON(wsub, vsubq_s32)
GCOMP__WORDS_NEON(wmul, vmulq_s32)
GCOMP__WORDS_NEON(wand, vandq_s32)
GCOMP__WORDS_NEON(wor, vorrq_s32)
GCOMP__WORDS_NEON(wxor, veorq_s32)
GCOMP__WORDS_NEON(wmin, vminq_s32)
GCOMP__WORDS_NEON(wmax, vmaxq_s32)
GCOMP__WORDS_NEON(wtop, gcomp__top4_neon)
GCOMP__WORDS_NEON(wgt, gcomp__gt4_neon)
GCOMP__EACH_NEON(words, v, w, vreinterpretq_s32_f32)
GCOMP__EACH_NEON(floats, w, v, vreinterpretq_f32_s32)
GCOMP__EACH_NEON(nearest, v, w, vcvtnq_s32_f32)
GCOMP__EACH_NEON(trunc, v, w, vcvtq_s32_f32)
GCOMP__EACH_NEON(number, w, v, vcvtq_f32_s32)

GCOMP__INLINE gcomp__w16_neon gcomp__wshl_neon(gcomp__w16_neon x, int k)
{
    int32x4_t s = vdupq_n_s32(k);
    return gcomp__quad_neon(vshlq_s32(x.a, s), vshlq_s32(x.b, s), vshlq_s32(x.c, s), vshlq_s32(x.d, s));
}
GCOMP__INLINE gcomp__w16_neon gcomp__wsar_neon(gcomp__w16_neon x, int k) { return gcomp__wshl_neon(x, -k); }
GCOMP__INLINE int32x4_t gcomp__shr4_neon(int32x4_t x, int32x4_t s)
{
    return vreinterpretq_s32_u32(vshlq_u32(vreinterpretq_u32_s32(x), s));
}
GCOMP__INLINE gcomp__w16_neon gcomp__wshr_neon(gcomp__w16_neon x, int k)
{
    int32x4_t s = vdupq_n_s32(-k);
    return gcomp__quad_neon(gcomp__shr4_neon(x.a, s), gcomp__shr4_neon(x.b, s), gcomp__shr4_neon(x.c, s),
                            gcomp__shr4_neon(x.d, s));
}
GCOMP__INLINE gcomp__w16_neon gcomp__wload_neon(const uint8_t *c)
{
    return gcomp__quad_neon(vreinterpretq_s32_u8(vld1q_u8(c)), vreinterpretq_s32_u8(vld1q_u8(c + 16)),
                            vreinterpretq_s32_u8(vld1q_u8(c + 32)), vreinterpretq_s32_u8(vld1q_u8(c + 48)));
}
GCOMP__INLINE gcomp__w16_neon gcomp__wsplat_neon(int32_t x)
{
    int32x4_t w = vdupq_n_s32(x);
    return gcomp__quad_neon(w, w, w, w);
}
GCOMP__INLINE uint32_t gcomp__weq_neon(gcomp__w16_neon x, gcomp__w16_neon y)
{
    return gcomp__mask_neon(vceqq_s32(x.a, y.a), vceqq_s32(x.b, y.b), vceqq_s32(x.c, y.c), vceqq_s32(x.d, y.d));
}
GCOMP__EACH_NEON(wfloor, v, w, vcvtmq_s32_f32)
GCOMP__INLINE gcomp__v16_neon gcomp__min_neon(gcomp__v16_neon x, gcomp__v16_neon y)
{
    return gcomp__four_neon(vminq_f32(x.a, y.a), vminq_f32(x.b, y.b), vminq_f32(x.c, y.c), vminq_f32(x.d, y.d));
}
GCOMP__INLINE gcomp__v16_neon gcomp__max_neon(gcomp__v16_neon x, gcomp__v16_neon y)
{
    return gcomp__four_neon(vmaxq_f32(x.a, y.a), vmaxq_f32(x.b, y.b), vmaxq_f32(x.c, y.c), vmaxq_f32(x.d, y.d));
}

GCOMP__INLINE gcomp__v16_neon gcomp__clamp_neon(gcomp__v16_neon x, float limit)
{
    return gcomp__four_neon(gcomp__clamp4_neon(x.a, limit), gcomp__clamp4_neon(x.b, limit), gcomp__clamp4_neon(x.c, limit),
                            gcomp__clamp4_neon(x.d, limit));
}
GCOMP__INLINE uint16x8_t gcomp__max16_neon(int32x4_t x, int32x4_t y)
{
    return vmaxq_u16(vreinterpretq_u16_s32(x), vreinterpretq_u16_s32(y));
}
GCOMP__INLINE int gcomp__wties_neon(gcomp__w16_neon x, gcomp__w16_neon y)
{
    const uint16x8_t a = vmaxq_u16(gcomp__max16_neon(x.a, x.b), gcomp__max16_neon(x.c, x.d));
    const uint16x8_t b = vmaxq_u16(gcomp__max16_neon(y.a, y.b), gcomp__max16_neon(y.c, y.d));
    return vmaxvq_u32(vshlq_n_u32(vreinterpretq_u32_u16(vmaxq_u16(a, b)), 16)) == 0xffff0000u;
}
GCOMP__INLINE float32x4_t gcomp__pick4_neon(uint32_t mask, float32x4_t x, float32x4_t y)
{
    static const uint32_t bit[4] = {1, 2, 4, 8};
    return vbslq_f32(vtstq_u32(vdupq_n_u32(mask), vld1q_u32(bit)), x, y);
}
GCOMP__INLINE gcomp__v16_neon gcomp__pick_neon(uint32_t mask, gcomp__v16_neon x, gcomp__v16_neon y)
{
    return gcomp__four_neon(gcomp__pick4_neon(mask, x.a, y.a), gcomp__pick4_neon(mask >> 4, x.b, y.b),
                            gcomp__pick4_neon(mask >> 8, x.c, y.c), gcomp__pick4_neon(mask >> 12, x.d, y.d));
}

GCOMP__INLINE uint8x16_t gcomp__bytes_neon(gcomp__w16_neon w)
{
    int16x8_t low = vcombine_s16(vmovn_s32(w.a), vmovn_s32(w.b)), high = vcombine_s16(vmovn_s32(w.c), vmovn_s32(w.d));
    return vreinterpretq_u8_s8(vcombine_s8(vmovn_s16(low), vmovn_s16(high)));
}
GCOMP__INLINE gcomp__w16_neon gcomp__wide_neon(int8x16_t b)
{
    int16x8_t low = vmovl_s8(vget_low_s8(b)), high = vmovl_s8(vget_high_s8(b));
    return gcomp__quad_neon(vmovl_s16(vget_low_s16(low)), vmovl_s16(vget_high_s16(low)), vmovl_s16(vget_low_s16(high)),
                            vmovl_s16(vget_high_s16(high)));
}
/* Neighbours joined: first in the low bits or in the high ones. The upper half is not used. */
GCOMP__INLINE uint8x16_t gcomp__join_neon(uint8x16_t b, int bits, int first_high)
{
    uint8x16_t even = vuzp1q_u8(b, b), odd = vuzp2q_u8(b, b);
    int8x16_t s = vdupq_n_s8((int8_t)bits);
    return first_high ? vorrq_u8(vshlq_u8(even, s), odd) : vorrq_u8(even, vshlq_u8(odd, s));
}
GCOMP__INLINE void gcomp__some4_neon(uint8_t *c, uint8x16_t bytes)
{
    vst1_u8(c, vget_low_u8(gcomp__join_neon(vandq_u8(bytes, vdupq_n_u8(15)), 4, 0)));
}
GCOMP__INLINE void gcomp__some6_neon(uint8_t *c, uint8x16_t bytes)
{
    static const uint8_t place[16] = {0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, 255, 255, 255, 255};
    uint16x8_t two = vreinterpretq_u16_u8(vandq_u8(bytes, vdupq_n_u8(63)));
    uint32x4_t four = vreinterpretq_u32_u16(vorrq_u16(vandq_u16(two, vdupq_n_u16(63)), vshlq_n_u16(vshrq_n_u16(two, 8), 6)));
    uint8x16_t b;
    four = vorrq_u32(vandq_u32(four, vdupq_n_u32(0xfff)), vshlq_n_u32(vshrq_n_u32(four, 16), 12));
    b = vqtbl1q_u8(vreinterpretq_u8_u32(four), vld1q_u8(place));
    vst1_u8(c, vget_low_u8(b));
    gcomp__put32(c + 8, vgetq_lane_u32(vreinterpretq_u32_u8(b), 2));
}
GCOMP__INLINE void gcomp__some2_neon(uint8_t *c, uint8x16_t bytes, int first_high)
{
    uint8x16_t b = gcomp__join_neon(vandq_u8(bytes, vdupq_n_u8(3)), 2, first_high);
    gcomp__put32(c, vgetq_lane_u32(vreinterpretq_u32_u8(gcomp__join_neon(b, 4, first_high)), 0));
}
GCOMP__INLINE void gcomp__put8_neon(uint8_t *c, gcomp__w16_neon w) { vst1q_u8(c, gcomp__bytes_neon(w)); }
GCOMP__INLINE void gcomp__put4_neon(uint8_t *c, gcomp__w16_neon w) { gcomp__some4_neon(c, gcomp__bytes_neon(w)); }
GCOMP__INLINE void gcomp__put2_neon(uint8_t *c, gcomp__w16_neon w, int first_high)
{
    gcomp__some2_neon(c, gcomp__bytes_neon(w), first_high);
}

GCOMP__INLINE int32x4_t gcomp__halves4_neon(int32x4_t x, int k)
{
    return vmlaq_n_s32(vshrq_n_s32(x, 16), vshrq_n_s32(vshlq_n_s32(x, 16), 16), k);
}
GCOMP__INLINE gcomp__w16_neon gcomp__whalves_neon(gcomp__w16_neon x, int k)
{
    return gcomp__quad_neon(gcomp__halves4_neon(x.a, k), gcomp__halves4_neon(x.b, k), gcomp__halves4_neon(x.c, k),
                            gcomp__halves4_neon(x.d, k));
}
typedef struct gcomp__b32_neon { int8x16_t a, b; } gcomp__b32_neon;
GCOMP__INLINE int8x16_t gcomp__pressed_neon(gcomp__w16_neon x, int shift)
{
    const int16x8_t right = vdupq_n_s16((int16_t)-(shift % 16));
    int16x8_t low = vcombine_s16(vqmovn_s32(x.a), vqmovn_s32(x.b)), high = vcombine_s16(vqmovn_s32(x.c), vqmovn_s32(x.d));
    if (shift == 16) {
        low = vcombine_s16(vshrn_n_s32(x.a, 16), vshrn_n_s32(x.b, 16));
        high = vcombine_s16(vshrn_n_s32(x.c, 16), vshrn_n_s32(x.d, 16));
    }
    low = vshlq_s16(low, right);
    high = vshlq_s16(high, right);
    return vcombine_s8(vqmovn_s16(low), vqmovn_s16(high));
}
GCOMP__INLINE gcomp__b32_neon gcomp__limit_neon(gcomp__w16_neon x, gcomp__w16_neon y, int shift, int low, int high)
{
    const int8x16_t least = vdupq_n_s8((int8_t)low), most = vdupq_n_s8((int8_t)high);
    gcomp__b32_neon b;
    b.a = vmaxq_s8(vminq_s8(gcomp__pressed_neon(x, shift), most), least);
    b.b = vmaxq_s8(vminq_s8(gcomp__pressed_neon(y, shift), most), least);
    return b;
}
GCOMP__INLINE int8x16_t gcomp__marks16_neon(gcomp__v16_neon x, int bit)
{
    uint8x16_t b = vreinterpretq_u8_s8(gcomp__pressed_neon(gcomp__words_neon(x), 0));
    return vreinterpretq_s8_u8(vshlq_u8(vandq_u8(b, vdupq_n_u8(128)), vdupq_n_s8((int8_t)(bit - 7))));
}
GCOMP__INLINE gcomp__b32_neon gcomp__marks_neon(gcomp__v16_neon x, gcomp__v16_neon y, int bit)
{
    gcomp__b32_neon b;
    b.a = gcomp__marks16_neon(x, bit);
    b.b = gcomp__marks16_neon(y, bit);
    return b;
}
GCOMP__INLINE gcomp__b32_neon gcomp__bor_neon(gcomp__b32_neon x, gcomp__b32_neon y)
{
    x.a = vorrq_s8(x.a, y.a);
    x.b = vorrq_s8(x.b, y.b);
    return x;
}
GCOMP__INLINE gcomp__b32_neon gcomp__blow_neon(gcomp__b32_neon b, int bits)
{
    (void)bits; /* what makes codes of them leaves the others out */
    return b;
}
GCOMP__INLINE void gcomp__puts8_neon(uint8_t *c, gcomp__b32_neon b)
{
    vst1q_u8(c, vreinterpretq_u8_s8(b.a));
    vst1q_u8(c + 16, vreinterpretq_u8_s8(b.b));
}
GCOMP__INLINE void gcomp__puts6_neon(uint8_t *c, gcomp__b32_neon b)
{
    gcomp__some6_neon(c, vreinterpretq_u8_s8(b.a));
    gcomp__some6_neon(c + 12, vreinterpretq_u8_s8(b.b));
}
GCOMP__INLINE void gcomp__puts4_neon(uint8_t *c, gcomp__b32_neon b)
{
    gcomp__some4_neon(c, vreinterpretq_u8_s8(b.a));
    gcomp__some4_neon(c + 8, vreinterpretq_u8_s8(b.b));
}
GCOMP__INLINE void gcomp__puts2_neon(uint8_t *c, gcomp__b32_neon b)
{
    gcomp__some2_neon(c, vreinterpretq_u8_s8(b.a), 0);
    gcomp__some2_neon(c + 4, vreinterpretq_u8_s8(b.b), 0);
}
GCOMP__INLINE void gcomp__put16s_neon(uint8_t *c, gcomp__w16_neon w)
{
    vst1q_u8(c, vreinterpretq_u8_s16(vcombine_s16(vmovn_s32(w.a), vmovn_s32(w.b))));
    vst1q_u8(c + 16, vreinterpretq_u8_s16(vcombine_s16(vmovn_s32(w.c), vmovn_s32(w.d))));
}
GCOMP__INLINE gcomp__w16_neon gcomp__get16s_neon(const uint8_t *c)
{
    int16x8_t low = vreinterpretq_s16_u8(vld1q_u8(c)), high = vreinterpretq_s16_u8(vld1q_u8(c + 16));
    return gcomp__quad_neon(vmovl_s16(vget_low_s16(low)), vmovl_s16(vget_high_s16(low)), vmovl_s16(vget_low_s16(high)),
                            vmovl_s16(vget_high_s16(high)));
}
GCOMP__INLINE gcomp__w16_neon gcomp__get8_neon(const uint8_t *c) { return gcomp__wide_neon(vreinterpretq_s8_u8(vld1q_u8(c))); }
GCOMP__INLINE gcomp__w16_neon gcomp__get4_neon(const uint8_t *c)
{
    uint8x8_t b = vld1_u8(c);
    uint8x16_t both = vcombine_u8(vzip1_u8(b, vshr_n_u8(b, 4)), vzip2_u8(b, vshr_n_u8(b, 4)));
    return gcomp__wide_neon(vshrq_n_s8(vreinterpretq_s8_u8(vshlq_n_u8(both, 4)), 4));
}
GCOMP__INLINE int32x4_t gcomp__two4_neon(uint32_t x, int first, int by)
{
    static const int32_t lane[4] = {0, 1, 2, 3};
    int32x4_t left = vmlaq_n_s32(vdupq_n_s32(first), vld1q_s32(lane), by);
    return vshrq_n_s32(vshlq_s32(vreinterpretq_s32_u32(vdupq_n_u32(x)), left), 30);
}
GCOMP__INLINE gcomp__w16_neon gcomp__get2_neon(const uint8_t *c, int first_high)
{
    uint32_t x = first_high ? gcomp__get32_high(c) : gcomp__get32(c);
    int first = first_high ? 0 : 30, by = first_high ? 2 : -2;
    return gcomp__quad_neon(gcomp__two4_neon(x, first, by), gcomp__two4_neon(x, first + 4 * by, by),
                            gcomp__two4_neon(x, first + 8 * by, by), gcomp__two4_neon(x, first + 12 * by, by));
}

GCOMP__INLINE gcomp__w16_neon gcomp__halves_neon(const uint32_t *p)
{
    const uint16x8_t low = vreinterpretq_u16_u32(vld1q_u32(p)), high = vreinterpretq_u16_u32(vld1q_u32(p + 4));
    return gcomp__quad_neon(
        vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(low))), vreinterpretq_s32_u32(vmovl_u16(vget_high_u16(low))),
        vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(high))), vreinterpretq_s32_u32(vmovl_u16(vget_high_u16(high))));
}

GCOMP__INLINE uint32_t gcomp__most_neon(gcomp__v16_neon w)
{
    return vmaxvq_u32(vmaxq_u32(vmaxq_u32(vreinterpretq_u32_f32(w.a), vreinterpretq_u32_f32(w.b)),
                                vmaxq_u32(vreinterpretq_u32_f32(w.c), vreinterpretq_u32_f32(w.d))));
}

GCOMP__INLINE void gcomp__halved_neon(float *to, gcomp__v16_neon x)
{
    vst1q_f32(to, vreinterpretq_f32_u32(vmaxq_u32(vreinterpretq_u32_f32(x.a), vreinterpretq_u32_f32(x.c))));
    vst1q_f32(to + 4, vreinterpretq_f32_u32(vmaxq_u32(vreinterpretq_u32_f32(x.b), vreinterpretq_u32_f32(x.d))));
}
GCOMP__INLINE gcomp__v16_neon gcomp__mosts_neon(const float *from)
{
    float m[16] = {0};
    int i;
    for (i = 0; i < 8; i++) {
        const float *eight = from + 8 * i;
        m[i] = gcomp__float(vmaxvq_u32(vmaxq_u32(vreinterpretq_u32_f32(vld1q_f32(eight)),
                                                 vreinterpretq_u32_f32(vld1q_f32(eight + 4)))));
    }
    return gcomp__load_neon(m);
}

GCOMP__INLINE float32x4_t gcomp__saturate4_neon(float32x4_t x)
{
    int32x4_t u = vminq_s32(vreinterpretq_s32_f32(x), vdupq_n_s32(0x7f7fffff)); /* those with a sign are below it */
    return vreinterpretq_f32_u32(vminq_u32(vreinterpretq_u32_s32(u), vdupq_n_u32(0xff7fffff)));
}
GCOMP__EACH_NEON(saturate, v, v, gcomp__saturate4_neon)

GCOMP__INLINE gcomp__w16_neon gcomp__load_words_neon(const int32_t *p)
{
    return gcomp__quad_neon(vld1q_s32(p), vld1q_s32(p + 4), vld1q_s32(p + 8), vld1q_s32(p + 12));
}
GCOMP__INLINE void gcomp__store_words_neon(int32_t *to, gcomp__w16_neon w)
{
    vst1q_s32(to, w.a);
    vst1q_s32(to + 4, w.b);
    vst1q_s32(to + 8, w.c);
    vst1q_s32(to + 12, w.d);
}

/* Levels 2 and 1 of two registers. */
GCOMP__INLINE void gcomp__levels_neon(float32x4_t *x, float32x4_t *y)
{
    float64x2_t a = vreinterpretq_f64_f32(*x), b = vreinterpretq_f64_f32(*y);
    float32x4_t s = vreinterpretq_f32_f64(vtrn1q_f64(a, b)), d = vreinterpretq_f32_f64(vtrn2q_f64(a, b)), u, v;
    GCOMP__LEVEL(float32x4_t, s, d, vaddq_f32, vsubq_f32)
    u = vuzp1q_f32(s, d);
    v = vuzp2q_f32(s, d);
    GCOMP__LEVEL(float32x4_t, u, v, vaddq_f32, vsubq_f32)
    *x = vtrn1q_f32(u, v);
    *y = vtrn2q_f32(u, v);
}
#define GCOMP__INSIDE_NEON(x, y) gcomp__levels_neon(&x, &y)
GCOMP__EIGHT(eight_neon, float32x4_t, vld1q_f32, vst1q_f32, vaddq_f32, vsubq_f32, GCOMP__NOTHING_INSIDE)
GCOMP__EIGHT(last_neon, float32x4_t, vld1q_f32, vst1q_f32, vaddq_f32, vsubq_f32, GCOMP__INSIDE_NEON)
enum { gcomp__pours_neon = 0 };
GCOMP__INLINE void gcomp__pour_neon(uint8_t *to, const uint8_t *from) { memcpy(to, from, 64); }
GCOMP__INLINE void gcomp__poured_neon(void) {}
enum { gcomp__columns_neon = 4, gcomp__base_neon = 32 };
enum { gcomp__abreast_neon = 2, gcomp__tall_neon = 6, gcomp__tile_neon = 128 };

GCOMP__INLINE int32x4_t gcomp__look4_neon(uint8x16x4_t t, int32x4_t w)
{
    uint32x4_t i = vandq_u32(vreinterpretq_u32_s32(w), vdupq_n_u32(15));
    i = vaddq_u32(vmulq_u32(i, vdupq_n_u32(0x04040404)), vdupq_n_u32(0x03020100));
    return vreinterpretq_s32_u8(vqtbl4q_u8(t, vreinterpretq_u8_u32(i)));
}
GCOMP__INLINE gcomp__w16_neon gcomp__look16_neon(const int32_t *table, gcomp__w16_neon w)
{
    uint8x16x4_t t;
    t.val[0] = vreinterpretq_u8_s32(vld1q_s32(table));
    t.val[1] = vreinterpretq_u8_s32(vld1q_s32(table + 4));
    t.val[2] = vreinterpretq_u8_s32(vld1q_s32(table + 8));
    t.val[3] = vreinterpretq_u8_s32(vld1q_s32(table + 12));
    w.a = gcomp__look4_neon(t, w.a);
    w.b = gcomp__look4_neon(t, w.b);
    w.c = gcomp__look4_neon(t, w.c);
    w.d = gcomp__look4_neon(t, w.d);
    return w;
}
GCOMP__PLAIN_SLICES(neon)
GCOMP__TIMES(neon)
#define GCOMP__PASS neon
#define GCOMP__PASS_ISA GCOMP_ISA_NEON
#if GCOMP__ONLY == 4
#define GCOMP__LAST
#else
#include GCOMP_SELF
#undef GCOMP__PASS
#undef GCOMP__PASS_ISA
#endif
#endif

/* ---------------- scalar: an array */
#if GCOMP__WANTS(1)
#define GCOMP__BUILT_SCALAR 1
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC optimize("no-tree-sra") /* gcc takes twice as long to compile arrays of 16 piece by piece; popped at the end */
#endif
typedef struct gcomp__v16_scalar { float f[16]; } gcomp__v16_scalar;
typedef struct gcomp__sum16_scalar { double d[16]; } gcomp__sum16_scalar;
#define GCOMP__LANES for (i = 0; i < 16; i++)

GCOMP__INLINE gcomp__v16_scalar gcomp__load_scalar(const float *p)
{
    gcomp__v16_scalar v;
    memcpy(v.f, p, 64);
    return v;
}

GCOMP__INLINE void gcomp__turn8_scalar(float *to, size_t pitch, const float *from, size_t stride)
{
    size_t i, k;
    for (i = 0; i < 8; i++)
        for (k = 0; k < 8; k++) to[k * pitch + i] = from[i * stride + k];
}

GCOMP__INLINE gcomp__v16_scalar gcomp__pair_splat_scalar(float x, float y)
{
    gcomp__v16_scalar v;
    int i;
    GCOMP__LANES v.f[i] = i < 8 ? x : y;
    return v;
}

GCOMP__INLINE gcomp__v16_scalar gcomp__twice_scalar(const float *p)
{
    gcomp__v16_scalar v;
    memcpy(v.f, p, 32);
    memcpy(v.f + 8, p, 32);
    return v;
}

GCOMP__INLINE void gcomp__store_scalar(float *p, gcomp__v16_scalar v) { memcpy(p, v.f, 64); }

GCOMP__INLINE gcomp__v16_scalar gcomp__splat_scalar(float x)
{
    gcomp__v16_scalar v;
    int i;
    GCOMP__LANES v.f[i] = x;
    return v;
}

GCOMP__INLINE gcomp__v16_scalar gcomp__add_scalar(gcomp__v16_scalar x, gcomp__v16_scalar y)
{
    int i;
    GCOMP__LANES
    {
        x.f[i] += y.f[i];
        GCOMP__PIN_SUM(x.f[i]);
    }
    return x;
}

GCOMP__INLINE gcomp__v16_scalar gcomp__sub_scalar(gcomp__v16_scalar x, gcomp__v16_scalar y)
{
    int i;
    GCOMP__LANES
    {
        x.f[i] -= y.f[i];
        GCOMP__PIN_SUM(x.f[i]);
    }
    return x;
}

GCOMP__INLINE gcomp__v16_scalar gcomp__mul_scalar(gcomp__v16_scalar x, gcomp__v16_scalar y)
{
    int i;
    GCOMP__LANES
    {
        x.f[i] *= y.f[i];
        GCOMP__PIN(x.f[i]);
    }
    return x;
}

GCOMP__NOINLINE gcomp__v16_scalar gcomp__fma_scalar(gcomp__v16_scalar x, gcomp__v16_scalar y, gcomp__v16_scalar z)
{
    int i;
    GCOMP__LANES x.f[i] = gcomp__fmaf(x.f[i], y.f[i], z.f[i]);
    return x;
}
GCOMP__INLINE gcomp__v16_scalar gcomp__plus_scalar(gcomp__v16_scalar x, gcomp__v16_scalar y, gcomp__v16_scalar z)
{
    return gcomp__add_scalar(gcomp__mul_scalar(x, y), z);
}
GCOMP__INLINE float gcomp__fold_scalar(gcomp__v16_scalar x) { return gcomp__fold16_float(x.f); }

GCOMP__INLINE gcomp__v16_scalar gcomp__abs_scalar(gcomp__v16_scalar x)
{
    int i;
    GCOMP__LANES x.f[i] = gcomp__float(gcomp__bits(x.f[i]) & 0x7fffffffu);
    return x;
}

GCOMP__INLINE uint32_t gcomp__lt0_scalar(gcomp__v16_scalar x)
{
    uint32_t mask = 0;
    int i;
    GCOMP__LANES mask |= (uint32_t)(gcomp__bits(x.f[i]) > 0x80000000u) << i; /* not -0 */
    return mask;
}

GCOMP__INLINE gcomp__v16_scalar gcomp__flip_scalar(gcomp__v16_scalar x, uint32_t mask)
{
    int i;
    GCOMP__LANES x.f[i] = gcomp__float(gcomp__bits(x.f[i]) ^ (mask >> i & 1) << 31);
    return x;
}

GCOMP__INLINE gcomp__v16_scalar gcomp__mirror_scalar(gcomp__v16_scalar x)
{
    gcomp__v16_scalar y;
    int i;
    GCOMP__LANES y.f[i] = x.f[i ^ 7];
    return y;
}

GCOMP__INLINE gcomp__v16_scalar gcomp__worst_scalar(gcomp__v16_scalar w, gcomp__v16_scalar x)
{
    int i;
    GCOMP__LANES
    {
        uint32_t u = gcomp__bits(x.f[i]) & 0x7fffffffu;
        if (u > gcomp__bits(w.f[i])) w.f[i] = gcomp__float(u);
    }
    return w;
}

GCOMP__INLINE uint32_t gcomp__keys_scalar(gcomp__v16_scalar x, uint32_t t)
{
    uint32_t mask = 0;
    int i;
    GCOMP__LANES mask |= (uint32_t)((gcomp__bits(x.f[i]) & 0x7fffffffu) >= t) << i;
    return mask;
}

GCOMP__INLINE void gcomp__keep_scalar(float *to, uint32_t *index, gcomp__v16_scalar x, uint32_t base, uint32_t mask)
{
    int i;
    GCOMP__LANES if (mask >> i & 1)
    {
        *to++ = x.f[i];
        *index++ = base + (uint32_t)i;
    }
}

GCOMP__INLINE gcomp__v16_scalar gcomp__load_half_scalar(const uint8_t *c)
{
    gcomp__v16_scalar v;
    int i;
    GCOMP__LANES v.f[i] = gcomp__from_half(gcomp__get16(c + 2 * i));
    return v;
}

GCOMP__INLINE gcomp__v16_scalar gcomp__load_short_scalar(const uint8_t *c, int shift)
{
    gcomp__v16_scalar v;
    int i;
    GCOMP__LANES v.f[i] = gcomp__from_half(((uint32_t)c[i] & 0x80) << 8 | ((uint32_t)c[i] & 0x7f) << shift);
    return v;
}

GCOMP__INLINE gcomp__v16_scalar gcomp__load_six_scalar(const uint8_t *c, int shift)
{
    gcomp__v16_scalar v;
    int i;
    GCOMP__LANES
    {
        uint32_t x = c[i / 4 * 3] | (uint32_t)c[i / 4 * 3 + 1] << 8 | (uint32_t)c[i / 4 * 3 + 2] << 16;
        x >>= 6 * (i % 4);
        v.f[i] = gcomp__from_half((x & 0x20) << 10 | (x & 0x1f) << shift);
    }
    return v;
}

GCOMP__INLINE float gcomp__clamped(float x, float limit) { return x > limit ? limit : x < -limit ? -limit : x; }

GCOMP__INLINE void gcomp__store_half_scalar(uint8_t *c, gcomp__v16_scalar x)
{
    int i;
    GCOMP__LANES gcomp__put16(c + 2 * i, gcomp__to_half(gcomp__clamped(x.f[i], GCOMP__HALF_MAX)));
}

GCOMP__INLINE gcomp__v16_scalar gcomp__load_bfloat_scalar(const uint8_t *c)
{
    gcomp__v16_scalar v;
    int i;
    GCOMP__LANES v.f[i] = gcomp__float(gcomp__get16(c + 2 * i) << 16);
    return v;
}

GCOMP__INLINE void gcomp__store_bfloat_scalar(uint8_t *c, gcomp__v16_scalar x)
{
    int i;
    GCOMP__LANES gcomp__put16(c + 2 * i, gcomp__to_bfloat(gcomp__clamped(x.f[i], GCOMP__BFLOAT_MAX)));
}

GCOMP__INLINE gcomp__sum16_scalar gcomp__sum_none_scalar(void)
{
    gcomp__sum16_scalar s;
    memset(&s, 0, sizeof s);
    return s;
}

GCOMP__INLINE void gcomp__sum_sides_scalar(gcomp__sum16_scalar *s, gcomp__sum16_scalar *t, gcomp__v16_scalar x)
{
    int i;
    GCOMP__LANES
    {
        const uint32_t below = gcomp__bits(x.f[i]) >> 31;
        s->d[i] += below ? 0 : (double)x.f[i];
        t->d[i] -= below ? (double)x.f[i] : 0;
        GCOMP__PIN_SUM(s->d[i]);
        GCOMP__PIN_SUM(t->d[i]);
    }
}

GCOMP__INLINE gcomp__sum16_scalar gcomp__sum_add_scalar(gcomp__sum16_scalar s, gcomp__v16_scalar x)
{
    int i;
    GCOMP__LANES
    {
        s.d[i] += (double)x.f[i];
        GCOMP__PIN_SUM(s.d[i]);
    }
    return s;
}

GCOMP__INLINE gcomp__sum16_scalar gcomp__sum_dot_scalar(gcomp__sum16_scalar s, gcomp__v16_scalar x, gcomp__v16_scalar y)
{
    int i;
    GCOMP__LANES
    {
        s.d[i] += (double)x.f[i] * (double)y.f[i];
        GCOMP__PIN_SUM(s.d[i]);
    }
    return s;
}

GCOMP__INLINE double gcomp__sum_fold_scalar(gcomp__sum16_scalar s) { return gcomp__fold16(s.d); }
GCOMP__INLINE uint32_t gcomp__crc8_scalar(uint32_t crc, uint64_t word) { return gcomp__crc8_plain(crc, word); }
typedef struct gcomp__w16_scalar { int32_t w[16]; } gcomp__w16_scalar;

#define GCOMP__WORDS_SCALAR(name, expression) \
    GCOMP__INLINE gcomp__w16_scalar gcomp__##name##_scalar(gcomp__w16_scalar x, gcomp__w16_scalar y) \
    { \
        int i; \
        GCOMP__LANES x.w[i] = (int32_t)(expression); \
        return x; \
    }
#define GCOMP__SHIFT_SCALAR(name, expression) \
    GCOMP__INLINE gcomp__w16_scalar gcomp__##name##_scalar(gcomp__w16_scalar x, int k) \
    { \
        int i; \
        GCOMP__LANES x.w[i] = (int32_t)(expression); \
        return x; \
    }
GCOMP__WORDS_SCALAR(wadd, (uint32_t)x.w[i] + (uint32_t)y.w[i])
GCOMP__WORDS_SCALAR(wsub, (uint32_t)x.w[i] - (uint32_t)y.w[i])
GCOMP__WORDS_SCALAR(wmul, (uint32_t)x.w[i] * (uint32_t)y.w[i])
GCOMP__WORDS_SCALAR(wand, x.w[i] & y.w[i])
GCOMP__WORDS_SCALAR(wor, x.w[i] | y.w[i])
GCOMP__WORDS_SCALAR(wxor, x.w[i] ^ y.w[i])
GCOMP__WORDS_SCALAR(wmin, x.w[i] < y.w[i] ? x.w[i] : y.w[i])
GCOMP__WORDS_SCALAR(wmax, x.w[i] > y.w[i] ? x.w[i] : y.w[i])
GCOMP__WORDS_SCALAR(wtop, (uint32_t)x.w[i] > (uint32_t)y.w[i] ? x.w[i] : y.w[i])
GCOMP__WORDS_SCALAR(wgt, -(x.w[i] > y.w[i]))
GCOMP__SHIFT_SCALAR(wshl, (uint32_t)x.w[i] << k)
GCOMP__SHIFT_SCALAR(wshr, (uint32_t)x.w[i] >> k)
GCOMP__SHIFT_SCALAR(wsar, x.w[i] < 0 ? ~(~x.w[i] >> k) : x.w[i] >> k)

GCOMP__INLINE gcomp__w16_scalar gcomp__wload_scalar(const uint8_t *c)
{
    gcomp__w16_scalar w;
    int i;
    GCOMP__LANES w.w[i] = (int32_t)gcomp__get32(c + 4 * i);
    return w;
}
GCOMP__INLINE gcomp__w16_scalar gcomp__wsplat_scalar(int32_t x)
{
    gcomp__w16_scalar w;
    int i;
    GCOMP__LANES w.w[i] = x;
    return w;
}

GCOMP__INLINE gcomp__w16_scalar gcomp__words_scalar(gcomp__v16_scalar x)
{
    gcomp__w16_scalar w;
    memcpy(&w, &x, sizeof w);
    return w;
}

GCOMP__INLINE gcomp__v16_scalar gcomp__floats_scalar(gcomp__w16_scalar x)
{
    gcomp__v16_scalar v;
    memcpy(&v, &x, sizeof v);
    return v;
}

GCOMP__INLINE gcomp__w16_scalar gcomp__nearest_scalar(gcomp__v16_scalar x) /* |x| < 2^22 */
{
    gcomp__w16_scalar w;
    int i;
    GCOMP__LANES
    {
        float f = x.f[i] + 12582912.0f;
        GCOMP__PIN(f);
        w.w[i] = (int32_t)(gcomp__bits(f) - 0x4b400000u);
    }
    return w;
}

GCOMP__INLINE gcomp__w16_scalar gcomp__trunc_scalar(gcomp__v16_scalar x)
{
    gcomp__w16_scalar w;
    int i;
    GCOMP__LANES w.w[i] = x.f[i] >= -2147483648.0f && x.f[i] < 2147483648.0f ? (int32_t)x.f[i] : -0x7fffffff - 1;
    return w;
}

GCOMP__INLINE gcomp__v16_scalar gcomp__number_scalar(gcomp__w16_scalar x)
{
    gcomp__v16_scalar v;
    int i;
    GCOMP__LANES v.f[i] = (float)x.w[i];
    return v;
}

GCOMP__INLINE uint32_t gcomp__weq_scalar(gcomp__w16_scalar x, gcomp__w16_scalar y)
{
    uint32_t mask = 0;
    int i;
    GCOMP__LANES mask |= (uint32_t)(x.w[i] == y.w[i]) << i;
    return mask;
}

GCOMP__INLINE gcomp__w16_scalar gcomp__wfloor_scalar(gcomp__v16_scalar x)
{
    gcomp__w16_scalar w;
    int i;
    GCOMP__LANES
    {
        w.w[i] = x.f[i] >= -2147483648.0f && x.f[i] < 2147483648.0f ? (int32_t)x.f[i] : -0x7fffffff - 1; /* as in vectors */
        if ((float)w.w[i] > x.f[i] && w.w[i] > -0x7fffffff) w.w[i]--;
    }
    return w;
}

GCOMP__INLINE gcomp__v16_scalar gcomp__min_scalar(gcomp__v16_scalar x, gcomp__v16_scalar y)
{
    int i;
    GCOMP__LANES x.f[i] = x.f[i] < y.f[i] ? x.f[i] : y.f[i];
    return x;
}
GCOMP__INLINE gcomp__v16_scalar gcomp__max_scalar(gcomp__v16_scalar x, gcomp__v16_scalar y)
{
    int i;
    GCOMP__LANES x.f[i] = x.f[i] > y.f[i] ? x.f[i] : y.f[i];
    return x;
}

GCOMP__INLINE gcomp__v16_scalar gcomp__clamp_scalar(gcomp__v16_scalar x, float limit)
{
    int i;
    GCOMP__LANES x.f[i] = gcomp__clamped(x.f[i], limit);
    return x;
}

GCOMP__INLINE int gcomp__wties_scalar(gcomp__w16_scalar x, gcomp__w16_scalar y)
{
    int i, any = 0;
    GCOMP__LANES any |= (x.w[i] & 0xffff) == 0xffff || (y.w[i] & 0xffff) == 0xffff;
    return any;
}

GCOMP__INLINE gcomp__v16_scalar gcomp__pick_scalar(uint32_t mask, gcomp__v16_scalar x, gcomp__v16_scalar y)
{
    int i;
    GCOMP__LANES x.f[i] = mask >> i & 1 ? x.f[i] : y.f[i];
    return x;
}

GCOMP__INLINE void gcomp__put8_scalar(uint8_t *c, gcomp__w16_scalar w)
{
    int i;
    GCOMP__LANES c[i] = (uint8_t)w.w[i];
}

GCOMP__INLINE void gcomp__put4_scalar(uint8_t *c, gcomp__w16_scalar w)
{
    int i;
    for (i = 0; i < 8; i++) c[i] = (uint8_t)((w.w[2 * i] & 15) | (w.w[2 * i + 1] & 15) << 4);
}

GCOMP__INLINE void gcomp__put2_scalar(uint8_t *c, gcomp__w16_scalar w, int first_high)
{
    uint32_t x = 0;
    int i;
    GCOMP__LANES x |= (uint32_t)(w.w[i] & 3) << (first_high ? (i & ~3) * 2 + 6 - (i & 3) * 2 : 2 * i);
    gcomp__put32(c, x);
}

GCOMP__INLINE gcomp__w16_scalar gcomp__whalves_scalar(gcomp__w16_scalar x, int k)
{
    int i;
    GCOMP__LANES x.w[i] = (((x.w[i] & 0xffff) ^ 0x8000) - 0x8000) * k + (x.w[i] < 0 ? ~(~x.w[i] >> 16) : x.w[i] >> 16);
    return x;
}
typedef struct gcomp__b32_scalar { int8_t b[32]; } gcomp__b32_scalar;
GCOMP__INLINE gcomp__b32_scalar gcomp__limit_scalar(gcomp__w16_scalar x, gcomp__w16_scalar y, int shift, int low, int high)
{
    gcomp__b32_scalar b;
    int i;
    x = gcomp__wsar_scalar(x, shift);
    y = gcomp__wsar_scalar(y, shift);
    GCOMP__LANES b.b[i] = (int8_t)(x.w[i] < low ? low : x.w[i] > high ? high : x.w[i]);
    GCOMP__LANES b.b[16 + i] = (int8_t)(y.w[i] < low ? low : y.w[i] > high ? high : y.w[i]);
    return b;
}
GCOMP__INLINE gcomp__b32_scalar gcomp__marks_scalar(gcomp__v16_scalar x, gcomp__v16_scalar y, int bit)
{
    gcomp__b32_scalar b;
    const int mark = bit == 7 ? -128 : 1 << bit;
    int i;
    GCOMP__LANES b.b[i] = (int8_t)(gcomp__bits(x.f[i]) >> 31 ? mark : 0);
    GCOMP__LANES b.b[16 + i] = (int8_t)(gcomp__bits(y.f[i]) >> 31 ? mark : 0);
    return b;
}
GCOMP__INLINE gcomp__b32_scalar gcomp__bor_scalar(gcomp__b32_scalar x, gcomp__b32_scalar y)
{
    int i;
    for (i = 0; i < 32; i++) x.b[i] |= y.b[i];
    return x;
}
GCOMP__INLINE gcomp__b32_scalar gcomp__blow_scalar(gcomp__b32_scalar b, int bits)
{
    (void)bits; /* what makes codes of them leaves the others out */
    return b;
}
GCOMP__INLINE void gcomp__puts8_scalar(uint8_t *c, gcomp__b32_scalar b) { memcpy(c, b.b, 32); }
GCOMP__INLINE void gcomp__puts6_scalar(uint8_t *c, gcomp__b32_scalar b)
{
    int i;
    for (i = 0; i < 32; i += 4, c += 3) {
        c[0] = (uint8_t)((b.b[i] & 63) | (b.b[i + 1] & 3) << 6);
        c[1] = (uint8_t)((b.b[i + 1] & 60) >> 2 | (b.b[i + 2] & 15) << 4);
        c[2] = (uint8_t)((b.b[i + 2] & 48) >> 4 | (b.b[i + 3] & 63) << 2);
    }
}
GCOMP__INLINE void gcomp__puts4_scalar(uint8_t *c, gcomp__b32_scalar b)
{
    int i;
    for (i = 0; i < 16; i++) c[i] = (uint8_t)((b.b[2 * i] & 15) | (b.b[2 * i + 1] & 15) << 4);
}
GCOMP__INLINE void gcomp__puts2_scalar(uint8_t *c, gcomp__b32_scalar b)
{
    int i;
    for (i = 0; i < 32; i += 4)
        c[i / 4] = (uint8_t)((b.b[i] & 3) | (b.b[i + 1] & 3) << 2 | (b.b[i + 2] & 3) << 4 | (b.b[i + 3] & 3) << 6);
}

GCOMP__INLINE void gcomp__put16s_scalar(uint8_t *c, gcomp__w16_scalar w)
{
    int i;
    GCOMP__LANES gcomp__put16(c + 2 * i, (uint32_t)w.w[i]);
}

GCOMP__INLINE gcomp__w16_scalar gcomp__get16s_scalar(const uint8_t *c)
{
    gcomp__w16_scalar w;
    int i;
    GCOMP__LANES w.w[i] = (int16_t)gcomp__get16(c + 2 * i);
    return w;
}

GCOMP__INLINE gcomp__w16_scalar gcomp__get8_scalar(const uint8_t *c)
{
    gcomp__w16_scalar w;
    int i;
    GCOMP__LANES w.w[i] = (int8_t)c[i];
    return w;
}

GCOMP__INLINE gcomp__w16_scalar gcomp__get4_scalar(const uint8_t *c)
{
    gcomp__w16_scalar w;
    int i;
    GCOMP__LANES w.w[i] = ((c[i / 2] >> (i & 1) * 4 & 15) ^ 8) - 8;
    return w;
}

GCOMP__INLINE gcomp__w16_scalar gcomp__get2_scalar(const uint8_t *c, int first_high)
{
    uint32_t x = first_high ? gcomp__get32_high(c) : gcomp__get32(c);
    gcomp__w16_scalar w;
    int i;
    GCOMP__LANES w.w[i] = (int32_t)((x >> (first_high ? 30 - 2 * i : 2 * i) & 3) ^ 2) - 2;
    return w;
}

GCOMP__INLINE gcomp__w16_scalar gcomp__halves_scalar(const uint32_t *p)
{
    gcomp__w16_scalar w;
    int i;
    GCOMP__LANES w.w[i] = (int32_t)(p[i / 2] >> (16 * (i & 1)) & 0xffffu);
    return w;
}

GCOMP__INLINE uint32_t gcomp__most_scalar(gcomp__v16_scalar w)
{
    uint32_t most = 0;
    int i;
    GCOMP__LANES if (gcomp__bits(w.f[i]) > most) most = gcomp__bits(w.f[i]);
    return most;
}

GCOMP__INLINE void gcomp__halved_scalar(float *to, gcomp__v16_scalar x)
{
    int i;
    for (i = 0; i < 8; i++) to[i] = gcomp__bits(x.f[i]) > gcomp__bits(x.f[i + 8]) ? x.f[i] : x.f[i + 8];
}
GCOMP__INLINE gcomp__v16_scalar gcomp__mosts_scalar(const float *from)
{
    gcomp__v16_scalar m = gcomp__splat_scalar(0);
    int i, j;
    for (i = 0; i < 8; i++) {
        m.f[i] = from[8 * i];
        for (j = 1; j < 8; j++) m.f[i] = gcomp__bits(from[8 * i + j]) > gcomp__bits(m.f[i]) ? from[8 * i + j] : m.f[i];
    }
    return m;
}

GCOMP__INLINE gcomp__v16_scalar gcomp__saturate_scalar(gcomp__v16_scalar x)
{
    int i;
    GCOMP__LANES x.f[i] = gcomp__saturated(x.f[i]);
    return x;
}

GCOMP__INLINE gcomp__w16_scalar gcomp__load_words_scalar(const int32_t *p)
{
    gcomp__w16_scalar w;
    memcpy(&w, p, sizeof w);
    return w;
}
GCOMP__INLINE void gcomp__store_words_scalar(int32_t *to, gcomp__w16_scalar w) { memcpy(to, &w, sizeof w); }

GCOMP__INLINE float gcomp__get1_scalar(const float *p) { return *p; }
GCOMP__INLINE void gcomp__put1_scalar(float *p, float x) { *p = x; }

GCOMP__EIGHT(eight_scalar, float, gcomp__get1_scalar, gcomp__put1_scalar, gcomp__plus1, gcomp__less1,
             GCOMP__NOTHING_INSIDE)
GCOMP__EIGHT(last_scalar, float, gcomp__get1_scalar, gcomp__put1_scalar, gcomp__plus1, gcomp__less1,
             GCOMP__NOTHING_INSIDE)
enum { gcomp__pours_scalar = 0 };
GCOMP__INLINE void gcomp__pour_scalar(uint8_t *to, const uint8_t *from) { memcpy(to, from, 64); }
GCOMP__INLINE void gcomp__poured_scalar(void) {}
enum { gcomp__columns_scalar = 1, gcomp__base_scalar = 8 };
enum { gcomp__abreast_scalar = 2, gcomp__tall_scalar = 4, gcomp__tile_scalar = 192 };

GCOMP__INLINE gcomp__w16_scalar gcomp__look16_scalar(const int32_t *table, gcomp__w16_scalar w)
{
    int i;
    GCOMP__LANES w.w[i] = table[w.w[i] & 15];
    return w;
}
#undef GCOMP__UNROLL
#define GCOMP__UNROLL
#undef GCOMP__HEAVY
#define GCOMP__HEAVY GCOMP__NOINLINE /* one driver for all methods: half the code and half the time to compile */
GCOMP__PLAIN_SLICES(scalar)
GCOMP__TIMES(scalar)
#define GCOMP__PASS scalar
#define GCOMP__PASS_ISA GCOMP_ISA_SCALAR
#define GCOMP__LAST
#endif

#endif /* GCOMP_IMPLEMENTATION */

#if defined(GCOMP__PASS) /* once for each instruction set, down to >>text */

/* ------------------------------------------------------------------------------------------------
   >>kernels - one body for every instruction set: checksum, sums, drivers of block methods
   ------------------------------------------------------------------------------------------------ */

typedef GCOMP__F(v16) GCOMP__F(v);
typedef GCOMP__F(sum16) GCOMP__F(sum);
typedef GCOMP__F(w16) GCOMP__F(w);
typedef GCOMP__F(b32) GCOMP__F(b);

/* The first `count` < 16 floats at p, zeros behind; and back. */
GCOMP__INLINE GCOMP__F(v) GCOMP__F(load_some)(const float *p, size_t count)
{
    float f[16] = {0};
    memcpy(f, p, 4 * count);
    return GCOMP__F(load)(f);
}

GCOMP__INLINE void GCOMP__F(store_some)(float *p, GCOMP__F(v) x, size_t count)
{
    float f[16];
    GCOMP__F(store)(f, x);
    memcpy(p, f, 4 * count);
}

/* Sums of the first `count` <= 16 floats of two arrays, zeros behind; step 0: the second is 16 times -0. */
GCOMP__NOINLINE GCOMP__F(v) GCOMP__F(load_sum)(const float *g, const float *e, size_t step, size_t count)
{
    float a[16] = {0}, b[16] = {0};
    memcpy(a, g, 4 * count); /* they need not be aligned */
    if (step) memcpy(b, e, 4 * count);
    return GCOMP__F(add)(GCOMP__F(load)(a), step ? GCOMP__F(load)(b) : GCOMP__F(load)(e));
}

/* Gradients of 2 bytes have the machine's order of bytes, codes are little endian: 16 of one kind
   become 16 of the other, in place. */
GCOMP__INLINE void GCOMP__F(turn_bytes)(uint8_t *c)
{
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    int i;
    for (i = 0; i < 32; i += 2) {
        const uint8_t first = c[i];
        c[i] = c[i + 1];
        c[i + 1] = first;
    }
#else
    (void)c;
#endif
}

/* 16 gradients of 2 bytes. */
GCOMP__INLINE GCOMP__F(v) GCOMP__F(load_pairs)(const uint8_t *c, gcomp_dtype dtype)
{
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    uint8_t turned[32];
    memcpy(turned, c, 32);
    GCOMP__F(turn_bytes)(turned);
    c = turned;
#endif
    return dtype == GCOMP_F16 ? GCOMP__F(load_half)(c) : GCOMP__F(load_bfloat)(c);
}

/* p = scale * grad + residual of elements i .. i + 15; `general` is a constant: 0 means float and scale 1. */
GCOMP__INLINE GCOMP__F(v) GCOMP__F(load_p)(const gcomp_input *in, size_t i, int general, int feedback)
{
    GCOMP__F(v) p;
    if (general) {
        if (in->dtype == GCOMP_F32) p = GCOMP__F(load)((const float *)in->grad + i);
        else p = GCOMP__F(load_pairs)((const uint8_t *)in->grad + 2 * i, in->dtype);
        p = GCOMP__F(mul)(p, GCOMP__F(splat)(in->scale));
    } else {
        p = GCOMP__F(load)((const float *)in->grad + i);
    }
    return feedback ? GCOMP__F(add)(p, GCOMP__F(load)(in->residual + i)) : p;
}

/* The same for the last count < 16 elements, zeros behind. */
static GCOMP__F(v) GCOMP__F(load_p_some)(const gcomp_input *in, size_t i, size_t count)
{
    uint8_t grad[64];
    float residual[16];
    gcomp_input some = *in;
    size_t bytes = gcomp__dtype_bytes(in->dtype);
    memset(grad, 0, sizeof grad);
    memset(residual, 0, sizeof residual);
    memcpy(grad, (const uint8_t *)in->grad + bytes * i, bytes * count);
    if (in->residual) memcpy(residual, in->residual + i, 4 * count);
    some.grad = grad;
    some.residual = residual;
    return GCOMP__F(load_p)(&some, 0, 1, in->residual != NULL);
}

GCOMP__INLINE int GCOMP__F(general)(const gcomp_input *in) { return in->dtype != GCOMP_F32 || in->scale != 1.0f; }

/* >>kernel crc: CRC-32C of bytes, continuing from crc (0 at first). What is next is fetched: else memory would decide. */
static uint32_t GCOMP__F(crc)(uint32_t crc, const uint8_t *bytes, size_t count)
{
    size_t i;
    crc = ~crc;
    for (; count >= 3 * GCOMP__CRC_PART; count -= 3 * GCOMP__CRC_PART, bytes += 3 * GCOMP__CRC_PART) {
        const uint8_t *next = count >= 6 * GCOMP__CRC_PART ? bytes + 3 * GCOMP__CRC_PART : bytes;
        uint32_t second = 0, third = 0;
        for (i = 0; i < GCOMP__CRC_PART; i += 8) {
            GCOMP__PREFETCH(next + 3 * i);
            crc = GCOMP__F(crc8)(crc, gcomp__get64(bytes + i));
            second = GCOMP__F(crc8)(second, gcomp__get64(bytes + GCOMP__CRC_PART + i));
            third = GCOMP__F(crc8)(third, gcomp__get64(bytes + 2 * GCOMP__CRC_PART + i));
        }
        crc = gcomp__crc_after(gcomp__crc_after(crc) ^ second) ^ third;
    }
    for (; count >= 8; count -= 8, bytes += 8) crc = GCOMP__F(crc8)(crc, gcomp__get64(bytes));
    for (; count; count--) crc = gcomp__crc_byte(crc, *bytes++);
    return ~crc;
}

/* >>kernel absorb: residual <- scale * grad + residual, saturated; y <- 0. Either may be missing; grad may be y. */
static void GCOMP__F(absorb)(const gcomp__sink *sink, size_t chunk)
{
    size_t i = chunk * GCOMP_CHUNK, end = gcomp__min(sink->n, i + GCOMP_CHUNK);
    float *const residual = sink->residual, *const y = sink->y;
    GCOMP__F(v) zero = GCOMP__F(splat)(0);
    gcomp_input in;
    memset(&in, 0, sizeof in);
    in.grad = sink->grad;
    in.dtype = sink->dtype;
    in.scale = sink->scale;
    in.residual = residual;
    if (!residual) {
        if (y) memset(y + i, 0, 4 * (end - i));
        return;
    }
    if (GCOMP__F(general)(&in) || !y) {
        for (; i + 16 <= end; i += 16) {
            GCOMP__F(store)(residual + i, GCOMP__F(saturate)(GCOMP__F(load_p)(&in, i, 1, 1)));
            if (y) GCOMP__F(store)(y + i, zero);
        }
    } else {
        for (; i + 16 <= end; i += 16) {
            GCOMP__F(store)(residual + i, GCOMP__F(saturate)(GCOMP__F(load_p)(&in, i, 0, 1)));
            GCOMP__F(store)(y + i, zero);
        }
    }
    if (i < end) {
        GCOMP__F(store_some)(residual + i, GCOMP__F(saturate)(GCOMP__F(load_p_some)(&in, i, end - i)), end - i);
        if (y) memset(y + i, 0, 4 * (end - i));
    }
}

/* >>kernel advance: p, the next u and zeros of elements begin .. end - 1. Outputs may be the inputs. */
GCOMP__HEAVY void GCOMP__F(advance_driver)(const gcomp__momentum *d, size_t begin, size_t end, int general, int nesterov)
{
    const gcomp__momentum job = *d;
    const GCOMP__F(v) m = GCOMP__F(splat)(job.factor), zero = GCOMP__F(splat)(0);
    size_t i;
    for (i = begin; i + 16 <= end; i += 16) {
        const GCOMP__F(v) g = GCOMP__F(load_p)(&job.in, i, general, 0), u = GCOMP__F(load)(job.u + i);
        GCOMP__F(v) p, next = nesterov ? GCOMP__F(mul)(GCOMP__F(add)(u, g), m) : GCOMP__F(add)(GCOMP__F(mul)(u, m), g);
        p = job.v ? GCOMP__F(add)(GCOMP__F(load)(job.v + i), next) : next;
        if (nesterov) p = GCOMP__F(add)(p, g);
        if (job.p) GCOMP__F(store)(job.p + i, p);
        if (job.next) GCOMP__F(store)(job.next + i, next);
        if (job.zero) GCOMP__F(store)(job.zero + i, zero);
    }
}

static void GCOMP__F(advance)(const gcomp__momentum *d, size_t begin, size_t end)
{
    const size_t rest = (end - begin) % 16, at = end - rest;
    const int general = GCOMP__F(general)(&d->in);
    if (d->nesterov) GCOMP__F(advance_driver)(d, begin, at, 1, 1);
    else if (general) GCOMP__F(advance_driver)(d, begin, at, 1, 0);
    else GCOMP__F(advance_driver)(d, begin, at, 0, 0);
    if (rest) { /* in a line of its own */
        float line[4][16];
        gcomp__momentum some = *d;
        GCOMP__F(store)(line[0], GCOMP__F(load_p_some)(&d->in, at, rest));
        GCOMP__F(store)(line[1], GCOMP__F(load_some)(d->u + at, rest));
        if (d->v) GCOMP__F(store)(line[2], GCOMP__F(load_some)(d->v + at, rest));
        some.in.grad = line[0];
        some.in.dtype = GCOMP_F32;
        some.in.scale = 1;
        some.u = line[1];
        some.v = d->v ? line[2] : NULL;
        some.p = line[3];
        some.next = line[1];
        some.zero = NULL;
        if (d->nesterov) GCOMP__F(advance_driver)(&some, 0, 16, 0, 1);
        else GCOMP__F(advance_driver)(&some, 0, 16, 0, 0);
        if (d->p) memcpy(d->p + at, line[3], 4 * rest);
        if (d->next) memcpy(d->next + at, line[1], 4 * rest);
        if (d->zero) memset(d->zero + at, 0, 4 * rest);
    }
}

/* >>kernel scale_copy: y <- part * p for begin .. end - 1; returns the bits of the largest |p|. */
static uint32_t GCOMP__F(scale_copy)(float *y, const gcomp_input *input, size_t begin, size_t end, float part)
{
    const gcomp_input in = *input;
    const int general = GCOMP__F(general)(&in);
    GCOMP__F(v) worst = GCOMP__F(splat)(0), f = GCOMP__F(splat)(part), p;
    size_t i;
    for (i = begin; i + 16 <= end; i += 16) {
        p = general ? GCOMP__F(load_p)(&in, i, 1, in.residual != NULL) : GCOMP__F(load_p)(&in, i, 0, in.residual != NULL);
        worst = GCOMP__F(worst)(worst, p);
        GCOMP__F(store)(y + i, GCOMP__F(mul)(p, f));
    }
    if (i < end) {
        p = GCOMP__F(load_p_some)(input, i, end - i);
        worst = GCOMP__F(worst)(worst, p);
        GCOMP__F(store_some)(y + i, GCOMP__F(mul)(p, f), end - i);
    }
    return GCOMP__F(most)(worst);
}

/* >>kernel worst_of: the bits of the largest |x|. */
static uint32_t GCOMP__F(worst_of)(const float *x, size_t n)
{
    GCOMP__F(v) worst = GCOMP__F(splat)(0);
    size_t i;
    for (i = 0; i + 16 <= n; i += 16) worst = GCOMP__F(worst)(worst, GCOMP__F(load)(x + i));
    if (i < n) worst = GCOMP__F(worst)(worst, GCOMP__F(load_some)(x + i, n - i));
    return GCOMP__F(most)(worst);
}

/* >>kernel squares: sum of x * x in double, per chunk, chunks in order. */
static double GCOMP__F(squares)(const float *x, size_t n)
{
    double total = 0;
    size_t i = 0;
    while (i < n) {
        size_t end = gcomp__min(n, i + GCOMP_CHUNK);
        GCOMP__F(sum) s = GCOMP__F(sum_none)();
        for (; i + 16 <= end; i += 16) {
            GCOMP__F(v) v = GCOMP__F(load)(x + i);
            s = GCOMP__F(sum_dot)(s, v, v);
        }
        if (i < end) {
            GCOMP__F(v) v = GCOMP__F(load_some)(x + i, end - i);
            s = GCOMP__F(sum_dot)(s, v, v);
            i = end;
        }
        total += GCOMP__F(sum_fold)(s);
        GCOMP__PIN_SUM(total);
    }
    return total;
}

/* >>kernel no_number: is one of these codes none? 64 bytes at a time. */
static int GCOMP__F(no_number)(const gcomp__form *form, const uint8_t *c, size_t bytes)
{
    const unsigned bits = form->code16 / 2;
    const uint32_t each = UINT32_MAX / (uint32_t)(((uint64_t)1 << bits) - 1), top = each << (bits - 1); /* a bit of each code */
    const GCOMP__F(w) low = GCOMP__F(wsplat)((int32_t)~top);
    const GCOMP__F(w) room = GCOMP__F(wsplat)((int32_t)(top - each * ((uint32_t)form->last_code + 1)));
    const GCOMP__F(w) ones = GCOMP__F(wsplat)(-1);
    GCOMP__F(w) bad = GCOMP__F(wsplat)(0);
    uint8_t rest[64] = {0};
    size_t i;
    memcpy(rest, c + bytes / 64 * 64, bytes % 64);
    GCOMP__ONE_BY_ONE /* clang -O3 makes 18 KB of stack of 16 scalar words side by side */
    for (i = 0; i < bytes; i += 64) {
        const GCOMP__F(w) x = GCOMP__F(wload)(bytes - i < 64 ? rest : c + i);
        if (form->check == GCOMP__PAIRS) bad = GCOMP__F(wor)(bad, GCOMP__F(wand)(x, GCOMP__F(wxor)(GCOMP__F(wshr)(x, 1), ones)));
        else bad = GCOMP__F(wor)(bad, GCOMP__F(wadd)(GCOMP__F(wand)(x, low), room));
    }
    return GCOMP__F(weq)(GCOMP__F(wand)(bad, GCOMP__F(wsplat)((int32_t)(form->check == GCOMP__PAIRS ? each : top))),
                         GCOMP__F(wsplat)(0)) != 0xffffu;
}

/* >>kernel widen, narrow: between float and 2-byte formats. narrow saturates. */
static void GCOMP__F(widen)(float *y, const void *x, gcomp_dtype dtype, size_t n)
{
    gcomp_input in;
    size_t i;
    memset(&in, 0, sizeof in);
    in.grad = x;
    in.dtype = dtype;
    in.scale = 1;
    for (i = 0; i + 16 <= n; i += 16) GCOMP__F(store)(y + i, GCOMP__F(load_p)(&in, i, 1, 0));
    if (i < n) GCOMP__F(store_some)(y + i, GCOMP__F(load_p_some)(&in, i, n - i), n - i);
}

static void GCOMP__F(narrow)(void *y, const float *x, gcomp_dtype dtype, size_t n)
{
    uint8_t *b = (uint8_t *)y, some[32];
    size_t i;
    for (i = 0; i < n; i += 16) {
        size_t count = gcomp__min(16, n - i);
        GCOMP__F(v) v = count == 16 ? GCOMP__F(load)(x + i) : GCOMP__F(load_some)(x + i, count);
        uint8_t *to = count == 16 ? b + 2 * i : some;
        if (dtype == GCOMP_F16) GCOMP__F(store_half)(to, v);
        else GCOMP__F(store_bfloat)(to, v);
        GCOMP__F(turn_bytes)(to);
        if (count < 16) memcpy(b + 2 * i, some, 2 * count);
    }
}

/* ---------------- stochastic rounding: up with the probability of what is cut off, exact to 2^-32 by 16 random bits, and 16
   more for the lanes (one of 65536) where these decide nothing. */

/* h .. h + 15. */
GCOMP__INLINE GCOMP__F(w) GCOMP__F(counted)(uint32_t h)
{
    static const int32_t lanes[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    return GCOMP__F(wadd)(GCOMP__F(load_words)(lanes), GCOMP__F(wsplat)((int32_t)h));
}

/* >>kernel mixes: gcomp__draw_pair of each word. */
GCOMP__INLINE GCOMP__F(w) GCOMP__F(mixes)(GCOMP__F(w) w, uint64_t words)
{
    w = GCOMP__F(wmul)(GCOMP__F(wxor)(w, GCOMP__F(wshr)(w, 16)), GCOMP__F(wsplat)((int32_t)0x85EBCA6Bu));
    w = GCOMP__F(wxor)(w, GCOMP__F(wxor)(GCOMP__F(wshr)(w, 13), GCOMP__F(wsplat)((int32_t)(words >> 32))));
    w = GCOMP__F(wmul)(w, GCOMP__F(wsplat)((int32_t)0xC2B2AE35u));
    return GCOMP__F(wxor)(w, GCOMP__F(wshr)(w, 16));
}

/* gcomp__draw of `count` elements, the first even, by pairs: made for many at once, where nothing waits for them. Writes 16
   pairs at a time. */
GCOMP__NOINLINE void GCOMP__F(draw)(uint32_t *draws, uint64_t words, uint64_t element, size_t count)
{
    GCOMP__F(w) w = GCOMP__F(counted)(gcomp__draw_base(words, element));
    size_t j;
    for (j = 0; 2 * j < count; j += 16, w = GCOMP__F(wadd)(w, GCOMP__F(wsplat)(16)))
        GCOMP__F(store_words)((int32_t *)(draws + j), GCOMP__F(mixes)(w, words));
}

/* Of element i of the tile and the next 15. */
GCOMP__INLINE GCOMP__F(w) GCOMP__F(drawn)(const gcomp__unit *u, size_t i)
{
    return GCOMP__F(halves)((const uint32_t *)(const void *)((const uint8_t *)u->draws + 2 * i));
}

/* A number with 16 binary places, in the lower half of a word, is rounded by adding 16 random bits to them: the upper half is the
   result. Where the lower half is all ones then, the next place might have carried: those lanes are settled by `rest`, what is
   cut off behind the places, 0 .. 1. */
GCOMP__RARE GCOMP__F(w) GCOMP__F(settled)(GCOMP__F(w) sum, GCOMP__F(v) rest, const gcomp__unit *u, size_t i)
{
    const GCOMP__F(w) places = GCOMP__F(wsplat)(0xffff);
    const uint32_t ties = GCOMP__F(weq)(GCOMP__F(wand)(sum, places), places);
    int32_t x[16];
    float f[16];
    size_t j;
    GCOMP__F(store_words)(x, sum);
    GCOMP__F(store)(f, GCOMP__F(mul)(rest, GCOMP__F(splat)(65536.0f)));
    for (j = 0; j < 16; j++)
        if (ties >> j & 1) x[j] += gcomp__draw(u->words ^ GCOMP__MORE_BITS, u->at + i + j) < (uint32_t)f[j];
    return GCOMP__F(load_words)(x);
}

/* 32 elements of a tile, which come with their places as floats, |x| <= 32767 * 65536. */
GCOMP__INLINE void GCOMP__F(dither)(GCOMP__F(w) *q, GCOMP__F(w) *r, GCOMP__F(v) x, GCOMP__F(v) y, const gcomp__unit *u, size_t i)
{
    *q = GCOMP__F(wadd)(GCOMP__F(wfloor)(x), GCOMP__F(drawn)(u, i));
    *r = GCOMP__F(wadd)(GCOMP__F(wfloor)(y), GCOMP__F(drawn)(u, i + 16));
    if (GCOMP__F(wties)(*q, *r)) {
        *q = GCOMP__F(settled)(*q, GCOMP__F(sub)(x, GCOMP__F(number)(GCOMP__F(wfloor)(x))), u, i);
        *r = GCOMP__F(settled)(*r, GCOMP__F(sub)(y, GCOMP__F(number)(GCOMP__F(wfloor)(y))), u, i + 16);
    }
}

/* 16 elements as words, to be settled: the same with 65535 less the random bits. */
GCOMP__INLINE GCOMP__F(w) GCOMP__F(raised)(GCOMP__F(w) x, const gcomp__unit *u, size_t i)
{
    return GCOMP__F(wadd)(GCOMP__F(wsub)(x, GCOMP__F(drawn)(u, i)), GCOMP__F(wsplat)(0xffff));
}

/* What is below the 16 upper bits of a mantissa, in their last place. */
GCOMP__INLINE GCOMP__F(v) GCOMP__F(mantissa_rest)(GCOMP__F(v) x)
{
    const GCOMP__F(w) b = GCOMP__F(wand)(GCOMP__F(words)(x), GCOMP__F(wsplat)(127));
    return GCOMP__F(mul)(GCOMP__F(number)(b), GCOMP__F(splat)(1.0f / 128));
}

/* x where s, a word's sign spread over it, is 0; -x where it is -1. */
GCOMP__INLINE GCOMP__F(w) GCOMP__F(signed)(GCOMP__F(w) x, GCOMP__F(w) s) { return GCOMP__F(wsub)(GCOMP__F(wxor)(x, s), s); }

/* ---------------- block methods: each is two functions, quant (16 floats to a code) or quants (32 floats to two codes, side by
   side), and deq (a code and the constants of its block to 16 floats). The drivers make its kernels of them, inlined with the
   bytes of 16 codes and the kind of scale as constants. What does not depend on the method (measures, residual, mean) is compiled
   once, and works on tiles of 512 elements that stay in the innermost cache. */

typedef void (*GCOMP__F(quant))(uint8_t *code, GCOMP__F(v) x, const gcomp__unit *u, size_t i);
typedef void (*GCOMP__F(quants))(uint8_t *code, GCOMP__F(v) x, GCOMP__F(v) y, const gcomp__unit *u, size_t i);
typedef GCOMP__F(v) (*GCOMP__F(deq))(const uint8_t *code, const gcomp__unit *u);

/* Running measures of a block. */
typedef struct GCOMP__F(acc) {
    GCOMP__F(sum) sum, other;
    GCOMP__F(v) worst, part; /* part: of L1, not yet in sum */
    GCOMP__F(w) low, high;   /* in the order of signed integers */
    size_t negative;
} GCOMP__F(acc);

GCOMP__INLINE GCOMP__F(w) GCOMP__F(ordered)(GCOMP__F(w) x)
{
    return GCOMP__F(wxor)(x, GCOMP__F(wshr)(GCOMP__F(wsar)(x, 31), 1));
}

GCOMP__INLINE void GCOMP__F(acc_none)(GCOMP__F(acc) *acc, int measure)
{
    if (measure == GCOMP__RANGE) {
        acc->low = GCOMP__F(wsplat)(0x7fffffff);
        acc->high = GCOMP__F(wsplat)(-0x7fffffff - 1);
    } else if (measure != GCOMP__MOST) {
        acc->sum = GCOMP__F(sum_none)();
        if (measure == GCOMP__L1) acc->part = GCOMP__F(splat)(0);
        else if (measure != GCOMP__L2) acc->other = acc->sum;
    }
    acc->negative = 0;
}

/* L1 adds 16 groups in float before it adds them to its double sums: conversions would be the cost of a sign. A sum of floats
   may overflow though no element does: then the block is measured again (GCOMP__F(again)). */
GCOMP__INLINE void GCOMP__F(acc_flush)(GCOMP__F(acc) *acc)
{
    acc->sum = GCOMP__F(sum_add)(acc->sum, acc->part);
    acc->part = GCOMP__F(splat)(0);
}

/* What is summed, and the worst: loops do so in a copy, which nothing that they read can be. */
GCOMP__INLINE void GCOMP__F(acc_move)(GCOMP__F(acc) *to, const GCOMP__F(acc) *from, int measure)
{
    to->worst = from->worst;
    if (measure != GCOMP__MOST) to->sum = from->sum;
    if (measure == GCOMP__L1) to->part = from->part;
    if (measure == GCOMP__SIDES || measure == GCOMP__MOMENTS) to->other = from->other;
    if (measure == GCOMP__SIDES) to->negative = from->negative;
}

GCOMP__INLINE void GCOMP__F(acc_add)(GCOMP__F(acc) *acc, GCOMP__F(v) p, int measure)
{
    if (measure == GCOMP__L1) {
        acc->part = GCOMP__F(add)(acc->part, GCOMP__F(abs)(p));
    } else if (measure == GCOMP__L2) {
        acc->sum = GCOMP__F(sum_dot)(acc->sum, p, p);
    } else if (measure == GCOMP__SIDES) {
        GCOMP__F(sum_sides)(&acc->sum, &acc->other, p);
        acc->negative += gcomp__popcount(GCOMP__F(lt0)(p));
    } else {
        acc->worst = GCOMP__F(worst)(acc->worst, p);
        if (measure == GCOMP__MOMENTS) {
            acc->sum = GCOMP__F(sum_dot)(acc->sum, p, p);
            acc->other = GCOMP__F(sum_add)(acc->other, p);
        }
    }
}

/* The measures of `count` elements, padding in the last group taken back; and the worst of all blocks so far. */
GCOMP__INLINE void GCOMP__F(acc_end)(GCOMP__F(acc) *acc, size_t count, int measure, gcomp__measured *m)
{
    m->count = count;
    m->sum = m->other = 0;
    if (measure == GCOMP__RANGE) { /* the order of signed integers, turned into that of unsigned ones, for the largest */
        uint32_t low, high;
        low = GCOMP__F(most)(GCOMP__F(floats)(GCOMP__F(wxor)(acc->low, GCOMP__F(wsplat)(0x7fffffff))));
        high = GCOMP__F(most)(GCOMP__F(floats)(GCOMP__F(wxor)(acc->high, GCOMP__F(wsplat)(-0x7fffffff - 1))));
        low = low >> 31 ? low : low ^ 0x7fffffffu;
        high = high >> 31 ? high ^ 0x80000000u : ~high;
        m->low = gcomp__float(low);
        m->high = gcomp__float(high);
        low &= 0x7fffffffu;
        high &= 0x7fffffffu;
        m->worst = low > high ? low : high;
    } else {
        if (measure == GCOMP__L1) GCOMP__F(acc_flush)(acc);
        if (measure != GCOMP__MOST) m->sum = GCOMP__F(sum_fold)(acc->sum);
        if (measure == GCOMP__SIDES || measure == GCOMP__MOMENTS) m->other = GCOMP__F(sum_fold)(acc->other);
        m->negative = acc->negative;
        m->worst = measure == GCOMP__L1 || measure == GCOMP__L2 ? 0 : GCOMP__F(most)(acc->worst); /* their sums tell */
        if (measure != GCOMP__MOST && !gcomp__finite_double(m->sum + m->other)) m->worst = 0x7f800000u;
    }
}

/* Adds elements to running measures; zeros behind the last ones count as nothing. */
GCOMP__HEAVY void GCOMP__F(acc_run)(GCOMP__F(acc) *acc, const float *g, const float *e, size_t count, int measure)
{
    GCOMP__F(acc) a;
    size_t i;
    GCOMP__F(acc_move)(&a, acc, measure);
    for (i = 0; i + 16 <= count; i += 16) {
        GCOMP__F(v) p = GCOMP__F(load)(g + i);
        GCOMP__F(acc_add)(&a, e ? GCOMP__F(add)(p, GCOMP__F(load)(e + i)) : p, measure);
    }
    if (i < count) {
        GCOMP__F(v) p = GCOMP__F(load_some)(g + i, count - i);
        if (e) p = GCOMP__F(add)(p, GCOMP__F(load_some)(e + i, count - i));
        GCOMP__F(acc_add)(&a, p, measure);
    }
    GCOMP__F(acc_move)(acc, &a, measure);
}

/* The same of RANGE: zeros behind would count, so that the first element stands there. */
GCOMP__HEAVY void GCOMP__F(acc_range)(GCOMP__F(acc) *acc, const float *g, const float *e, size_t step, size_t count)
{
    GCOMP__F(w) low = acc->low, high = acc->high, x;
    size_t i;
    for (i = 0; i + 16 <= count; i += 16, e += step) {
        x = GCOMP__F(ordered)(GCOMP__F(words)(GCOMP__F(add)(GCOMP__F(load)(g + i), GCOMP__F(load)(e))));
        low = GCOMP__F(wmin)(low, x);
        high = GCOMP__F(wmax)(high, x);
    }
    if (i < count) {
        float f[32];
        size_t j;
        memcpy(f, g + i, 4 * (count - i)); /* they need not be aligned */
        memcpy(f + 16, e, 4 * (count - i));
        for (j = count - i; j < 16; j++) f[j] = f[0], f[16 + j] = f[16];
        x = GCOMP__F(ordered)(GCOMP__F(words)(GCOMP__F(add)(GCOMP__F(load)(f), GCOMP__F(load)(f + 16))));
        low = GCOMP__F(wmin)(low, x);
        high = GCOMP__F(wmax)(high, x);
    }
    acc->low = low;
    acc->high = high;
}

GCOMP__NOINLINE void GCOMP__F(acc_any)(GCOMP__F(acc) *acc, const float *g, const float *e, size_t count, int measure)
{
    if (measure == GCOMP__MOST) {
        if (e) GCOMP__F(acc_run)(acc, g, e, count, GCOMP__MOST);
        else GCOMP__F(acc_run)(acc, g, NULL, count, GCOMP__MOST);
    } else if (measure == GCOMP__L2) {
        GCOMP__F(acc_run)(acc, g, e, count, GCOMP__L2);
    } else if (measure == GCOMP__MOMENTS) {
        GCOMP__F(acc_run)(acc, g, e, count, GCOMP__MOMENTS);
    } else {
        if (e) GCOMP__F(acc_range)(acc, g, e, 16, count);
        else GCOMP__F(acc_range)(acc, g, gcomp__no_rest(), 0, count);
    }
}

/* p of elements i .. i + count - 1 of an input of any type and scale. */
static void GCOMP__F(stage)(float *p, const gcomp_input *input, size_t i, size_t count)
{
    const gcomp_input in = *input;
    size_t j;
    for (j = 0; j + 16 <= count; j += 16) GCOMP__F(store)(p + j, GCOMP__F(load_p)(&in, i + j, 1, in.residual != NULL));
    if (j < count) GCOMP__F(store_some)(p + j, GCOMP__F(load_p_some)(input, i + j, count - j), count - j);
}

/* >>kernel measure: of elements begin .. end - 1, whose begin is a multiple of 16. */
static void GCOMP__F(measure)(const gcomp_input *in, size_t begin, size_t end, int measure, gcomp__measured *m)
{
    GCOMP__F(acc) acc;
    size_t i;
    acc.worst = GCOMP__F(splat)(0);
    GCOMP__F(acc_none)(&acc, measure);
    if (!GCOMP__F(general)(in)) {
        const float *g = (const float *)in->grad + begin;
        GCOMP__F(acc_any)(&acc, g, in->residual ? in->residual + begin : NULL, end - begin, measure);
    } else {
        for (i = begin; i < end; i += GCOMP__TILE) {
            float tile[GCOMP__TILE];
            size_t count = gcomp__min(GCOMP__TILE, end - i);
            GCOMP__F(stage)(tile, in, i, count);
            GCOMP__F(acc_any)(&acc, tile, NULL, count, measure);
        }
    }
    GCOMP__F(acc_end)(&acc, end - begin, measure, m);
}

/* L1 of elements whose float sums overflowed, or that are not finite. */
GCOMP__NOINLINE void GCOMP__F(again)(const gcomp_input *in, size_t begin, size_t end, gcomp__measured *m)
{
    GCOMP__F(sum) sum = GCOMP__F(sum_none)();
    size_t i;
    for (i = begin; i < end; i += 16)
        sum = GCOMP__F(sum_add)(sum, GCOMP__F(abs)(GCOMP__F(load_p_some)(in, i, gcomp__min(16, end - i))));
    m->sum = GCOMP__F(sum_fold)(sum);
    m->worst = gcomp__finite_double(m->sum) ? 0 : 0x7f800000u;
}

/* The constants of a block from its measures, and its scale to the payload. Not finite: lift 0. Returns the worst bits. */
GCOMP__INLINE uint32_t GCOMP__F(fit_block)(const gcomp__encode_job *job, const gcomp__measured *m, size_t block, gcomp__unit *u)
{
    const gcomp__form *form = &job->form;
    *u = job->unit;
    u->lift = 0;
    if (m->worst >= 0x7f800000u) return m->worst;
    u->lift = 1;
    if (!form->steps || !gcomp__simple_step(u, m->worst, form->levels)) (form->fit)(form, m, u);
    gcomp__put_scale(job->scales + block * form->scale_bytes, form->scale_bytes, u);
    return m->worst;
}

/* p * lift in the tile; zeros where they are not finite. */
GCOMP__NOINLINE void GCOMP__F(lift)(float *x, size_t count, float lift)
{
    size_t i;
    for (i = 0; i < count; i += 16) {
        const GCOMP__F(v) p = GCOMP__F(mul)(GCOMP__F(load)(x + i), GCOMP__F(splat)(lift));
        GCOMP__F(store)(x + i, lift > 0 ? p : GCOMP__F(splat)(0));
    }
}

/* The same of block k where it is simple: what was measured of it is finite, and nothing can overflow or vanish. 0: it is not. */
GCOMP__INLINE int GCOMP__F(fit_simply)(gcomp__blocks *b, size_t k, float levels, int early, uint8_t *scale)
{
    gcomp__unit u;
    if (early == 2) {
        if (!(b->low[k] >> 31) || b->high[k] >> 31) return 0;
        if (!gcomp__simple_range(&u, b->worst[k], gcomp__float(b->low[k]), gcomp__float(b->high[k]), levels)) return 0;
        b->offset[k] = u.offset;
    } else if (!gcomp__simple_step(&u, b->worst[k], levels)) {
        return 0;
    }
    b->inverse[k] = u.inverse;
    gcomp__put_scale(scale, early == 2 ? 8 : 4, &u);
    return 1;
}

/* The same for up to 16 blocks from block k on, of elements i .. end - 1 of a span, which begin with one. If they are no larger
   than a tile, their largest |p| are known, and they are lifted in it. */
GCOMP__NOINLINE uint32_t GCOMP__F(fit_blocks)(const gcomp__span *span, size_t i, size_t end, size_t k, gcomp__blocks *b,
                                              float *tile)
{
    const gcomp__encode_job *job = span->job;
    const gcomp__form *form = &job->form;
    const size_t block = form->block;
    const int measure = form->measure, known = block <= GCOMP__TILE, early = measure == GCOMP__RANGE ? 2 : 1;
    uint32_t worst = 0;
    gcomp__unit u;
    for (; i < end; k++, i += block) {
        gcomp__measured m;
        uint8_t *scale = job->scales + i / block * form->scale_bytes;
        m.worst = b->worst[k];
        m.count = gcomp__min(end - i, block);
        if (!known || !(form->steps || early == 2) || !GCOMP__F(fit_simply)(b, k, form->levels, early, scale)) {
            if (!known || measure != GCOMP__MOST) {
                const float *g = span->grad + (i - span->at), *e = span->residual ? span->residual + (i - span->at) : NULL;
                GCOMP__F(acc) acc;
                acc.worst = GCOMP__F(splat)(0);
                GCOMP__F(acc_none)(&acc, measure);
                GCOMP__F(acc_any)(&acc, g, e, m.count, measure);
                GCOMP__F(acc_end)(&acc, m.count, measure, &m);
            }
            (void)GCOMP__F(fit_block)(job, &m, i / block, &u);
            b->inverse[k] = u.inverse;
            b->offset[k] = u.offset;
            if (!known) b->lift = u.lift;
            else if (u.lift != 1.0f) GCOMP__F(lift)(tile + k * block, m.count, u.lift);
        }
        worst = gcomp__larger(worst, m.worst);
    }
    return worst;
}

/* p of `count` elements, zeros behind to a multiple of 16; the bits of the largest |p|. step 0: e is 16 times -0. */
GCOMP__NOINLINE uint32_t GCOMP__F(take)(float *to, const float *g, const float *e, size_t step, size_t count)
{
    GCOMP__F(v) most = GCOMP__F(splat)(0), p;
    size_t i;
    for (i = 0; i < count; i += 16, e += step) {
        if (i + 16 <= count) p = GCOMP__F(add)(GCOMP__F(load)(g + i), GCOMP__F(load)(e));
        else p = GCOMP__F(load_sum)(g + i, e, step, count - i);
        GCOMP__F(store)(to + i, p);
        most = GCOMP__F(worst)(most, p);
    }
    return GCOMP__F(most)(most);
}

/* The same of pieces at .. end - 1 of a tile, and what is known of each. */
GCOMP__NOINLINE void GCOMP__F(take_pieces)(float *tile, const float *g, const float *e, size_t walk, size_t at, size_t end,
                                            size_t piece, gcomp__blocks *b)
{
    for (; at < end; at += piece) {
        b->worst[at / piece] = GCOMP__F(take)(tile + at, g + at, e + at * walk, 16 * walk, gcomp__min(piece, end - at));
        b->low[at / piece] = 0;
    }
}

/* Bytes past the caches, but for the ends that share a line with others: whole lines need not be read before. */
GCOMP__NOINLINE void GCOMP__F(pour_codes)(uint8_t *to, const uint8_t *from, size_t bytes)
{
    size_t i = gcomp__min((size_t)(0 - (uintptr_t)to) & 63, bytes);
    memcpy(to, from, i);
    for (; i + 64 <= bytes; i += 64) GCOMP__F(pour)(to + i, from + i);
    memcpy(to + i, from + i, bytes - i);
}

/* What is measured of p, as bits: the largest |p|; or the largest without a sign (the smallest p, if one is negative), and with
   one (the largest p). */
typedef struct GCOMP__F(look) {
    GCOMP__F(w) top, high;
} GCOMP__F(look);

/* The same of 32 elements, which become p in the tile. */
GCOMP__HEAVY void GCOMP__F(look_at)(GCOMP__F(look) *l, float *to, const float *g, const float *e, int early)
{
    const GCOMP__F(v) p = GCOMP__F(add)(GCOMP__F(load)(g), GCOMP__F(load)(e));
    const GCOMP__F(v) q = GCOMP__F(add)(GCOMP__F(load)(g + 16), GCOMP__F(load)(e + 16));
    const GCOMP__F(w) x = GCOMP__F(words)(early == 1 ? GCOMP__F(abs)(p) : p);
    const GCOMP__F(w) y = GCOMP__F(words)(early == 1 ? GCOMP__F(abs)(q) : q);
    const GCOMP__F(w) larger = GCOMP__F(wtop)(x, y); /* of the two first: no more than that waits for those before */
    GCOMP__F(store)(to, p);
    GCOMP__F(store)(to + 16, q);
    l->top = GCOMP__F(wtop)(l->top, larger);
    if (early == 2) l->high = GCOMP__F(wmax)(l->high, GCOMP__F(wmax)(x, y));
}

/* To what is known of block k. */
GCOMP__INLINE void GCOMP__F(look_end)(const GCOMP__F(look) *l, gcomp__blocks *b, size_t k, int early)
{
    const uint32_t top = GCOMP__F(most)(GCOMP__F(floats)(l->top));
    b->worst[k] = top;
    if (early == 2) {
        const GCOMP__F(w) high = GCOMP__F(wxor)(l->high, GCOMP__F(wsplat)(-0x7fffffff - 1));
        b->high[k] = GCOMP__F(most)(GCOMP__F(floats)(high)) ^ 0x80000000u;
        b->low[k] = top;
        b->worst[k] = gcomp__larger(b->high[k] & 0x7fffffffu, top & 0x7fffffffu);
    }
}

/* Codes and scales of a span of elements whose scales must be known before the codes. A tile of p lies between memory and the
   codes: where 32 elements were coded, those a tile ahead take their place and are measured. So memory is read once and at one
   place: two looks at it, however near each other, cost a third of its speed. Simple steps are found where a block was measured,
   a tile before they are needed, so that nothing waits for their divisions; other constants for a bundle of blocks at once, and
   blocks larger than a tile are measured before. All behind `span` are constants. The last elements of the tensor come as 32 with
   zeros behind; where there is no residual, a tile of -0 stands for it, and where nothing is ahead, p for the gradient: so each
   method's quants is compiled once a set. */
GCOMP__HEAVY void GCOMP__F(early_driver)(const gcomp__span *span, GCOMP__F(quants) quants, size_t code16, int early,
                                          float factor)
{
    const gcomp__encode_job *job = span->job;
    const size_t begin = span->at, end = begin + span->count, block = job->form.block, walk = span->residual ? 1 : 0;
    const int in_tile = !span->given && block <= GCOMP__TILE, simple = in_tile && early == 1 && job->form.steps;
    const size_t piece = in_tile ? block : (size_t)GCOMP__TILE, bundle = in_tile ? gcomp__min(GCOMP__TILE, 16 * block) : piece;
    const size_t pieces = bundle / piece;
    const float *g = span->grad, *e = span->residual ? span->residual : gcomp__no_rest();
    gcomp__unit u = span->given ? *span->given : job->unit;
    GCOMP__F(acc) *kept = (GCOMP__F(acc) *)span->acc;
    uint32_t worst = 0;
    gcomp__blocks b;
    uint8_t *const held = GCOMP__F(pours) && code16 <= 16 ? span->held : NULL;
    uint8_t *scale = job->scales + (simple ? 4 * (begin / block) : 0); /* of the first block; of that a tile ahead */
    float tile[GCOMP__TILE];
    size_t i, k, at, size, known, ahead = 0; /* blocks of the tile, of that ahead, whose constants are known; SIZE_MAX: let be */
    u.draws = span->draws;
    b.inverse[0] = u.inverse;
    b.lift = u.lift;
    b.offset[0] = u.offset;
    if (span->count % 32 || piece < 32) memset(tile, 0, sizeof tile);
    GCOMP__F(take_pieces)(tile, g, e, walk, 0, gcomp__min(bundle, span->count), piece, &b);
    for (i = begin; i < end; i += size) {
        uint8_t *code = held ? held : job->codes + i / 16 * code16, some[64];
        size_t whole; /* of a tile ahead: elements of pieces that can be looked at while those here are coded */
        size = gcomp__min(bundle, end - i);
        g += size; /* a tile ahead */
        e += size * walk;
        if (!in_tile && !span->given && i % block == 0) {
            const uint32_t most = GCOMP__F(fit_blocks)(span, i, gcomp__min(end, i + block), 0, &b, tile);
            worst = gcomp__larger(worst, most);
        }
        if (b.lift != 1.0f) GCOMP__F(lift)(tile, size, b.lift);
        if (job->form.stochastic) GCOMP__F(draw)(span->draws, u.words, i, size + (piece < 32 ? 16 : 0));
        u.at = i;
        scale += 4 * pieces;
        whole = size == bundle && piece >= 32 ? gcomp__min(size, end - i - size) & ~(piece - 1) : 0;
        known = in_tile ? ahead : SIZE_MAX;
        ahead = simple ? 0 : SIZE_MAX;
        for (k = at = 0; at < size;) { /* pieces of one kind; last, what is less than a piece, and less than 32 of it, alone */
            const size_t left = size - at, count = left >= piece ? piece : left < 32 ? left : left / 32 * 32;
            const size_t stop = at < whole ? whole : count < 32 ? at + count : at + left / count * count;
            const float *from = at < whole ? g : tile, *rest = at < whole ? e : gcomp__no_rest();
            uint8_t *to = count < 32 ? some : code;
            if (at >= whole) ahead = SIZE_MAX;
            do {
                GCOMP__F(v) inverse, offset;
                GCOMP__F(look) seen;
                size_t j;
                if (k >= known) {
                    const uint32_t most = GCOMP__F(fit_blocks)(span, i + at, i + size, k, &b, tile);
                    worst = gcomp__larger(worst, most);
                    known = SIZE_MAX;
                }
                inverse = GCOMP__F(splat)(b.inverse[k] * factor);
                offset = GCOMP__F(splat)(early == 2 ? b.offset[k] : 0);
                seen.top = GCOMP__F(wsplat)(0);
                seen.high = GCOMP__F(wsplat)(-0x7fffffff - 1);
                for (j = at, at += count; j < at; j += 32, to += 2 * code16) {
                    GCOMP__F(v) p = GCOMP__F(load)(tile + j), q = GCOMP__F(load)(tile + j + 16);
                    if (early == 2) p = GCOMP__F(sub)(p, offset), q = GCOMP__F(sub)(q, offset);
                    p = GCOMP__F(mul)(p, inverse);
                    q = GCOMP__F(mul)(q, inverse);
                    GCOMP__F(look_at)(&seen, tile + j, from + j, rest + j, early);
                    (quants)(to, p, q, &u, j);
                }
                GCOMP__F(look_end)(&seen, &b, k, early);
                if (k == ahead && GCOMP__F(fit_simply)(&b, k, u.levels, 1, scale + 4 * k)) ahead++;
                k += count == piece;
            } while (at < stop);
            if (count < 32) {
                gcomp__put_last(code, some, code16, count, job->form.first_high);
                to = code + count / 16 * code16;
            }
            code = to;
        }
        if (ahead == SIZE_MAX) ahead = 0;
        if (held) GCOMP__F(pour_codes)(job->codes + i / 16 * code16, held, gcomp__last_bytes(code16, size));
        if (whole < size) GCOMP__F(take_pieces)(tile, g, e, walk, whole, gcomp__min(size, end - i - size), piece, &b);
    }
    kept->worst = GCOMP__F(worst)(kept->worst, GCOMP__F(splat)(gcomp__float(worst)));
}

/* The same where the scale is known after the codes of the block, or there is none. */
GCOMP__HEAVY void GCOMP__F(late_driver)(const gcomp__span *span, GCOMP__F(quant) quant, size_t code16, size_t scale_bytes,
                                         int measure)
{
    const gcomp__encode_job *job = span->job;
    const size_t block = job->form.block, begin = span->at, end = begin + span->count, step = span->residual ? 1 : 0;
    const float *g = span->grad, *e = span->residual ? span->residual : gcomp__no_rest();
    GCOMP__F(acc) *kept = (GCOMP__F(acc) *)span->acc, acc;
    gcomp__unit u = span->given ? *span->given : job->unit;
    uint8_t *const held = GCOMP__F(pours) && code16 == 32 ? span->held : NULL;
    size_t i = begin, stop;
    u.draws = span->draws;
    GCOMP__F(acc_none)(&acc, measure);
    GCOMP__F(acc_move)(&acc, kept, measure);
    for (; i < end; i = stop) {
        const size_t last = block ? gcomp__min(job->n, (i | (block - 1)) + 1) : end, at = block ? i / block : 0;
        uint8_t *code = job->codes + i / 16 * code16;
        stop = gcomp__min(end, last);
        if (scale_bytes && block && i % block == 0) GCOMP__F(acc_none)(&acc, measure);
        while (i < stop) { /* whole groups; then the last elements of the tensor */
            const float *from = g + (i - begin), *rest = e + (i - begin) * step;
            const size_t most = held ? GCOMP__TILE / code16 : job->form.stochastic ? GCOMP__TILE / 16 : SIZE_MAX;
            const size_t groups = stop - i < 16 ? 1 : gcomp__min((stop - i) / 16, most);
            uint8_t some[64], *to = held ? held : code;
            float pad[32];
            size_t k;
            u.at = i;
            if (job->form.stochastic) GCOMP__F(draw)(span->draws, u.words, i, 16 * groups);
            if (stop - i < 16) {
                gcomp__pad(pad, from, stop - i);
                gcomp__pad(pad + 16, rest, stop - i);
                from = pad;
                rest = pad + 16;
                to = some;
            }
            for (k = 0; k < groups; k++, from += 16, rest += 16 * step, to += code16) {
                GCOMP__F(v) p = GCOMP__F(add)(GCOMP__F(load)(from), GCOMP__F(load)(rest));
                GCOMP__F(acc_add)(&acc, p, measure);
                if (measure == GCOMP__L1 && (i / 16 + k) % 16 == 15) GCOMP__F(acc_flush)(&acc);
                (quant)(to, p, &u, 16 * k);
            }
            if (stop - i < 16) gcomp__put_last(code, some, code16, stop - i, job->form.first_high);
            else if (held) GCOMP__F(pour_codes)(code, held, groups * code16);
            i = stop - i < 16 ? stop : i + 16 * groups;
            code += groups * code16;
        }
        if (scale_bytes && block && stop == last) {
            gcomp__measured m;
            gcomp__unit found = u;
            GCOMP__F(acc_end)(&acc, stop - at * block, measure, &m);
            if (measure == GCOMP__L1 && m.worst >= 0x7f800000u) GCOMP__F(again)(&job->in, at * block, stop, &m);
            if (m.worst >= 0x7f800000u) acc.worst = GCOMP__F(splat)(gcomp__float(0x7f800000u));
            (job->form.fit)(&job->form, &m, &found);
            gcomp__put_scale(job->scales + at * scale_bytes, scale_bytes, &found);
        }
    }
    GCOMP__F(acc_move)(kept, &acc, measure);
}

#ifndef GCOMP_WITHOUT_MX
/* p of 32 elements, and the largest |p| of each 4. */
GCOMP__HEAVY void GCOMP__F(mx_block)(float *p, float *most, const float *g, const float *e, size_t step)
{
    const GCOMP__F(v) x = GCOMP__F(add)(GCOMP__F(load)(g), GCOMP__F(load)(e));
    const GCOMP__F(v) y = GCOMP__F(add)(GCOMP__F(load)(g + 16), GCOMP__F(load)(e + step));
    GCOMP__F(store)(p, x);
    GCOMP__F(store)(p + 16, y);
    GCOMP__F(halved)(most, GCOMP__F(worst)(GCOMP__F(abs)(x), y));
}

/* The same of up to a tile, zeros behind. */
GCOMP__NOINLINE void GCOMP__F(mx_take)(float *p, float *most, const float *g, const float *e, size_t step, size_t count)
{
    size_t j;
    for (j = 0; j + 32 <= count; j += 32) GCOMP__F(mx_block)(p + j, most + j / 4, g + j, e + j / 16 * step, step);
    if (j < count) {
        GCOMP__F(v) x = GCOMP__F(load_sum)(g + j, e + j / 16 * step, step, gcomp__min(count - j, 16)), y = GCOMP__F(splat)(0);
        if (count - j > 16) y = GCOMP__F(load_sum)(g + j + 16, e + (j / 16 + 1) * step, step, count - j - 16);
        GCOMP__F(store)(p + j, x);
        GCOMP__F(store)(p + j + 16, y);
        GCOMP__F(halved)(most + j / 4, GCOMP__F(worst)(GCOMP__F(abs)(x), y));
    }
}

/* Scales of up to 8 blocks from the largest |p| of their eighths, and what their p are multiplied by. */
GCOMP__HEAVY void GCOMP__F(mx_scales)(GCOMP__F(v) *worst, uint8_t *scale, size_t blocks, float *inverse, const float *most,
                                      GCOMP__F(w) largest)
{
    const GCOMP__F(v) m = GCOMP__F(mosts)(most);
    GCOMP__F(w) w = GCOMP__F(wsub)(GCOMP__F(wshr)(GCOMP__F(words)(m), 23), largest);
    uint8_t bytes[16];
    float f[16];
    *worst = GCOMP__F(worst)(*worst, m);
    w = GCOMP__F(wmax)(w, GCOMP__F(wsplat)(0)); /* biased; floor(log2), but 0 for subnormals */
    GCOMP__F(put8)(bytes, w);
    w = GCOMP__F(wshl)(GCOMP__F(wsub)(GCOMP__F(wsplat)(254), w), 23); /* 2^-127 is no normal float */
    GCOMP__F(store)(f, GCOMP__F(floats)(GCOMP__F(wmax)(w, GCOMP__F(wsplat)(1 << 22))));
    memcpy(inverse, f, 32);
    if (blocks < 8) memcpy(scale, bytes, blocks);
    else memcpy(scale, bytes, 8);
}

/* Blocks of 32 that share a power of two (>>method mx). Where a block was coded, the one a tile ahead takes its place, or if
   there is none it stays; the scales of 8 blocks are made side by side, half a tile before they are needed, so that nothing waits
   for them. The last elements, fewer than 32, are a tile for themselves, with zeros behind. */
GCOMP__HEAVY void GCOMP__F(mx_driver)(const gcomp__span *span, GCOMP__F(quants) quants, size_t code16)
{
    const size_t step = span->residual ? 16 : 0;
    const float *g = span->grad, *e = span->residual ? span->residual : gcomp__no_rest();
    const GCOMP__F(w) largest = GCOMP__F(wsplat)((int32_t)span->job->form.constant);
    uint8_t *scale = span->job->scales + span->at / 32, *code = span->job->codes + span->at / 16 * code16, some[32];
    GCOMP__F(acc) *acc = (GCOMP__F(acc) *)span->acc;
    GCOMP__F(v) worst = acc->worst;
    float p[GCOMP__TILE], most[GCOMP__TILE / 4] = {0}, inverse[GCOMP__TILE / 32];
    size_t left, count, blocks, j;
    int looks = 0;
    GCOMP__F(mx_take)(p, most, g, e, step, gcomp__min(GCOMP__TILE, span->count));
    for (left = span->count; left; left -= count, scale += blocks) {
        uint8_t *to = GCOMP__F(pours) && span->held ? span->held : left < 32 ? some : code;
        const float *from = p, *rest = gcomp__no_rest();
        float *x = p;
        size_t walk = 0;
        count = left < 32 ? left : gcomp__min(GCOMP__TILE, left / 32 * 32);
        blocks = (count + 31) / 32;
        for (j = 0; j < blocks && !looks; j += 8)
            GCOMP__F(mx_scales)(&worst, scale + j, gcomp__min(8, blocks - j), inverse + j, most + 8 * j, largest);
        g += count;
        e += count / 16 * step;
        looks = left >= 2 * GCOMP__TILE;
        if (looks) from = g, rest = e, walk = step;
        for (j = 0; j < blocks; j++, x += 32, from += 32, rest += 2 * walk, to += 2 * code16) {
            const GCOMP__F(v) f = GCOMP__F(splat)(inverse[j]);
            const GCOMP__F(v) a = GCOMP__F(mul)(GCOMP__F(load)(x), f), b = GCOMP__F(mul)(GCOMP__F(load)(x + 16), f);
            GCOMP__F(mx_block)(x, most + 8 * j, from, rest, walk);
            (quants)(to, a, b, NULL, 0);
            if (looks && j % 8 == 7)
                GCOMP__F(mx_scales)(&worst, scale + GCOMP__TILE / 32 + j - 7, 8, inverse + j - 7, most + 8 * (j - 7), largest);
        }
        if (!looks) GCOMP__F(mx_take)(p, most, g, e, step, gcomp__min(GCOMP__TILE, left - count));
        j = gcomp__last_bytes(code16, count);
        if (GCOMP__F(pours) && span->held) GCOMP__F(pour_codes)(code, span->held, j);
        else if (count < 32) memcpy(code, some, j);
        code += count / 16 * code16;
    }
    acc->worst = worst;
}
#endif

GCOMP__INLINE void GCOMP__F(end_with)(float *out, GCOMP__F(v) d, const float *base, GCOMP__F(v) f, int ending)
{
    if (ending != GCOMP__STORE) d = GCOMP__F(saturate)(GCOMP__F(add)(GCOMP__F(load)(base), GCOMP__F(mul)(d, f)));
    GCOMP__F(store)(out, d);
}

/* Elements i .. i + count - 1 of a payload, by STORE, ADD or FRESH (which adds to zero). Scales of a byte are those of blocks of
   32, too short for a loop. */
GCOMP__HEAVY void GCOMP__F(decode_driver)(const gcomp__view *view, size_t i, size_t count, float *y, int ending, float weight,
                                           GCOMP__F(deq) deq, size_t code16, size_t scale_bytes)
{
    const GCOMP__F(v) f = GCOMP__F(splat)(weight);
    const size_t end = i + count, block = view->form.block, step = ending == GCOMP__ADD ? 16 : 0;
    const uint8_t *code = view->codes + i / 16 * code16;
    const uint8_t *scale = view->scales + (block ? (i >> view->shift) * scale_bytes : 0);
    float nothing[16] = {0}, *to = y;
    const float *base = step ? to : nothing;
    gcomp__unit u;
    size_t stop;
    u.constant = view->form.constant;
    u.levels = view->form.levels;
    for (; scale_bytes == 1 && i % 32 == 0 && i + 32 <= end; i += 32, code += 2 * code16, to += 32, base += 2 * step, scale++) {
        gcomp__get_scale(scale, 1, &u);
        GCOMP__F(end_with)(to, (deq)(code, &u), base, f, ending);
        GCOMP__F(end_with)(to + 16, (deq)(code + code16, &u), base + step, f, ending);
    }
    while (i < end) {
        stop = scale_bytes && block ? gcomp__min(end, (i | (block - 1)) + 1) : end;
        gcomp__get_scale(scale, scale_bytes, &u);
        scale += scale_bytes;
        for (; i + 32 <= stop; i += 32, code += 2 * code16, to += 32, base += 2 * step) {
            GCOMP__F(end_with)(to, (deq)(code, &u), base, f, ending);
            GCOMP__F(end_with)(to + 16, (deq)(code + code16, &u), base + step, f, ending);
        }
        if (i + 16 <= stop) {
            GCOMP__F(end_with)(to, (deq)(code, &u), base, f, ending);
            i += 16, code += code16, to += 16, base += step;
        }
        if (i < stop) { /* the last elements of the tensor: their code bytes, zeros behind */
            uint8_t some[64];
            float pad[16];
            gcomp__get_last(some, code, code16, stop - i);
            if (step) gcomp__pad(pad, to, stop - i);
            GCOMP__F(end_with)(pad, (deq)(some, &u), step ? pad : nothing, f, ending);
            memcpy(to, pad, 4 * (stop - i));
            i = stop;
        }
    }
}

/* The common commit in one pass: float gradient, scale 1, a residual, the own payload among those of one method.
   Returns where it stopped: fewer than 16 elements before the end. */
GCOMP__HEAVY size_t GCOMP__F(commit_driver)(const gcomp__sink *sink, size_t i, size_t end, GCOMP__F(deq) deq, size_t code16,
                                             size_t scale_bytes)
{
    const GCOMP__F(v) f = GCOMP__F(splat)(sink->weight);
    const gcomp__view *views = sink->views;
    const float *grad = (const float *)sink->grad;
    const size_t own_at = sink->own_at, count = sink->count;
    float *residual = sink->residual, *y = sink->y;
    for (; i + 16 <= end; i += 16) {
        const size_t next = i + GCOMP__AHEAD < end ? i + GCOMP__AHEAD : i;
        GCOMP__F(v) p = GCOMP__F(add)(GCOMP__F(load)(grad + i), GCOMP__F(load)(residual + i));
        GCOMP__F(v) sum = GCOMP__F(splat)(gcomp__zero()), mine = sum;
        size_t w;
        if (code16 >= 8) {
            GCOMP__PREFETCH(grad + next);
            GCOMP__PREFETCH(residual + next);
        }
        for (w = 0; w < count; w++) {
            const gcomp__view *view = views + w;
            GCOMP__F(v) d;
            gcomp__unit u;
            u.constant = view->form.constant;
            u.levels = view->form.levels;
            gcomp__get_scale(view->scales + (i >> view->shift) * scale_bytes, scale_bytes, &u);
            d = (deq)(view->codes + i / 16 * code16, &u);
            if (code16 >= 8) GCOMP__PREFETCH(view->codes + next / 16 * code16);
            if (w == own_at) mine = d;
            sum = GCOMP__F(add)(sum, GCOMP__F(mul)(d, f));
        }
        GCOMP__F(store)(residual + i, GCOMP__F(saturate)(GCOMP__F(sub)(p, mine)));
        GCOMP__F(store)(y + i, GCOMP__F(saturate)(sum));
    }
    return i;
}

/* The same of two payloads, which make x and z of these 16 elements. `second`: z is of the own one. */
GCOMP__INLINE void GCOMP__F(commit_two)(float *y, const float *grad, float *residual, GCOMP__F(v) x, GCOMP__F(v) z, GCOMP__F(v) f,
                                        GCOMP__F(v) zero, int second)
{
    const GCOMP__F(v) p = GCOMP__F(add)(GCOMP__F(load)(grad), GCOMP__F(load)(residual));
    GCOMP__F(store)(residual, GCOMP__F(saturate)(GCOMP__F(sub)(p, second ? z : x)));
    x = GCOMP__F(add)(zero, GCOMP__F(mul)(x, f));
    GCOMP__F(store)(y, GCOMP__F(saturate)(GCOMP__F(add)(x, GCOMP__F(mul)(z, f))));
}

/* Block by block, so that scales and places are fetched once a block. */
GCOMP__HEAVY size_t GCOMP__F(commit_pair)(const gcomp__sink *sink, size_t i, size_t end, GCOMP__F(deq) deq, size_t code16,
                                           size_t scale_bytes)
{
    const GCOMP__F(v) f = GCOMP__F(splat)(sink->weight), zero = GCOMP__F(splat)(gcomp__zero());
    const gcomp__view *one = sink->views, *two = one + 1;
    const unsigned shift = one->shift < two->shift ? one->shift : two->shift;
    const float *grad = (const float *)sink->grad;
    float *residual = sink->residual, *y = sink->y;
    const int second = sink->own_at != 0;
    gcomp__unit u, v;
    u.constant = one->form.constant;
    u.levels = one->form.levels;
    v.constant = two->form.constant;
    v.levels = two->form.levels;
    end = i + (end - i) / 16 * 16;
    while (i < end) {
        const size_t stop = scale_bytes ? gcomp__min(end, (i | (((size_t)1 << shift) - 1)) + 1) : end;
        const size_t ahead = stop + GCOMP__AHEAD < end ? GCOMP__AHEAD : 0;
        const uint8_t *c = one->codes + i / 16 * code16, *d = two->codes + i / 16 * code16;
        gcomp__get_scale(one->scales + (i >> one->shift) * scale_bytes, scale_bytes, &u);
        gcomp__get_scale(two->scales + (i >> two->shift) * scale_bytes, scale_bytes, &v);
        while (i + 32 <= stop) {
            if (code16 >= 8) { /* not of 1 and 2 bits */
                GCOMP__PREFETCH(grad + i + ahead);
                GCOMP__PREFETCH(grad + i + ahead + 16);
                GCOMP__PREFETCH(residual + i + ahead);
                GCOMP__PREFETCH(residual + i + ahead + 16);
                GCOMP__PREFETCH(c + ahead / 16 * code16);
                GCOMP__PREFETCH(d + ahead / 16 * code16);
            }
            GCOMP__F(commit_two)(y + i, grad + i, residual + i, (deq)(c, &u), (deq)(d, &v), f, zero, second);
            c += code16, d += code16, i += 16;
            GCOMP__F(commit_two)(y + i, grad + i, residual + i, (deq)(c, &u), (deq)(d, &v), f, zero, second);
            c += code16, d += code16, i += 16;
            if (scale_bytes == 1) break; /* that was the block */
        }
        if (i < stop) {
            GCOMP__F(commit_two)(y + i, grad + i, residual + i, (deq)(c, &u), (deq)(d, &v), f, zero, second);
            i += 16;
        }
    }
    return i;
}

/* The kernels of a block method, encoding and decoding apart, so that methods can share either; and a method of one kernel.
   early: 1, or 2 (subtracts u->offset); factor: what quants take p / step times; measure: what a late scale is made from. */
#define GCOMP__EARLY_ENCODE(name, code16, early, factor) \
    static void GCOMP__F(name##_encode)(const gcomp__span *span) \
    { \
        GCOMP__F(early_driver)(span, GCOMP__F(name##_quants), code16, early, factor); \
    }
#define GCOMP__BLOCK_ENCODE(name, quant, code16, scale_bytes, measure) \
    static void GCOMP__F(name##_encode)(const gcomp__span *span) \
    { \
        GCOMP__F(late_driver)(span, GCOMP__F(quant), code16, scale_bytes, measure); \
    }
#define GCOMP__BLOCK_DECODE(name, deq, code16, scale_bytes) \
    static void GCOMP__F(name##_decode)(const gcomp__view *view, size_t i, size_t count, float *y, int ending, float weight) \
    { \
        if (ending == GCOMP__STORE) \
            GCOMP__F(decode_driver)(view, i, count, y, GCOMP__STORE, weight, GCOMP__F(deq), code16, scale_bytes); \
        else GCOMP__F(decode_driver)(view, i, count, y, ending, weight, GCOMP__F(deq), code16, scale_bytes); \
    } \
    static size_t GCOMP__F(name##_commit)(const gcomp__sink *sink, size_t i, size_t end) \
    { \
        if (sink->count == 2) return GCOMP__F(commit_pair)(sink, i, end, GCOMP__F(deq), code16, scale_bytes); \
        return GCOMP__F(commit_driver)(sink, i, end, GCOMP__F(deq), code16, scale_bytes); \
    }
#define GCOMP__BLOCK_OF(encoder, decoder) \
    {GCOMP__F(encoder##_encode), GCOMP__F(decoder##_decode), GCOMP__F(decoder##_commit)}
#define GCOMP__BLOCK_METHOD(name, code16, scale_bytes, measure) \
    GCOMP__BLOCK_ENCODE(name, name##_quant, code16, scale_bytes, measure) \
    GCOMP__BLOCK_DECODE(name, name##_deq, code16, scale_bytes) \
    static const gcomp__block_kernels GCOMP__F(name##_kernels)[] = {GCOMP__BLOCK_OF(name, name)};

/* Elements i .. end - 1 of an input of another type or scale: through a tile. */
GCOMP__NOINLINE void GCOMP__F(encode_staged)(gcomp__span *span, size_t i, size_t end)
{
    const gcomp__encode_job *job = span->job;
    const gcomp__form *form = &job->form;
    const int whole = form->early && !job->given && form->block > GCOMP__TILE; /* the block does not fit the tile */
    GCOMP__F(acc) *acc = (GCOMP__F(acc) *)span->acc;
    gcomp__unit u = job->unit;
    float tile[GCOMP__TILE];
    size_t stop;
    for (; i < end; i = stop) {
        stop = gcomp__min(end, i + GCOMP__TILE);
        if (whole && i % form->block == 0) {
            gcomp__measured m;
            GCOMP__F(measure)(&job->in, i, gcomp__min(job->n, i + form->block), form->measure, &m);
            acc->worst = GCOMP__F(worst)(acc->worst, GCOMP__F(splat)(gcomp__float(m.worst)));
            span->given = NULL;
            if (m.worst < 0x7f800000u) {
                (form->fit)(form, &m, &u);
                gcomp__put_scale(job->scales + i / form->block * form->scale_bytes, form->scale_bytes, &u);
                span->given = &u;
            }
        }
        if (whole && !span->given) continue;
        GCOMP__F(stage)(tile, &job->in, i, stop - i);
        span->at = i;
        span->count = stop - i;
        span->grad = tile;
        span->residual = NULL;
        (job->kernels->encode)(span);
    }
}

/* >>kernel encode: a chunk, and what was measured of it. */
static void GCOMP__F(encode)(const gcomp__encode_job *job, size_t chunk, gcomp__measured *measured)
{
    const gcomp__form *form = &job->form;
    const size_t i = chunk * GCOMP_CHUNK, end = gcomp__min(job->n, i + GCOMP_CHUNK);
    gcomp__span span;
    uint32_t draws[GCOMP__TILE / 2 + 16];
    uint8_t held[GCOMP__F(pours) ? GCOMP__TILE : 1];
    GCOMP__F(acc) acc;
    acc.worst = GCOMP__F(splat)(0);
    GCOMP__F(acc_none)(&acc, GCOMP__RANGE);
    GCOMP__F(acc_none)(&acc, GCOMP__MOMENTS);
    GCOMP__F(acc_none)(&acc, GCOMP__L1);
    span.job = job;
    span.given = job->given ? &job->unit : NULL;
    span.acc = &acc;
    span.draws = draws;
    span.held = job->past ? held : NULL;
    if (GCOMP__F(general)(&job->in)) {
        GCOMP__F(encode_staged)(&span, i, end);
    } else {
        span.at = i;
        span.count = end - i;
        span.grad = (const float *)job->in.grad + i;
        span.residual = job->in.residual ? job->in.residual + i : NULL;
        (job->kernels->encode)(&span);
    }
    if (job->past) GCOMP__F(poured)();
    GCOMP__F(acc_end)(&acc, end - i, form->early ? GCOMP__MOST : form->measure, measured);
    if (form->block) measured->worst = GCOMP__F(most)(acc.worst); /* what its blocks said; the sums are of the last one */
    else if (form->measure == GCOMP__L1 && measured->worst >= 0x7f800000u) GCOMP__F(again)(&job->in, i, end, measured);
}

/* >>kernel keep: residual <- scale * grad + residual - sent, saturated, for elements i .. i + count - 1; sent may be NULL. */
static void GCOMP__F(keep_rest)(const gcomp_input *input, float *residual, size_t i, size_t count, const float *sent)
{
    const gcomp_input in = *input;
    const size_t end = i + count;
    if (!GCOMP__F(general)(&in) && sent) {
        for (; i + 16 <= end; i += 16, sent += 16)
            GCOMP__F(store)(residual + i,
                            GCOMP__F(saturate)(GCOMP__F(sub)(GCOMP__F(load_p)(&in, i, 0, 1), GCOMP__F(load)(sent))));
    } else {
        for (; i + 16 <= end; i += 16) {
            GCOMP__F(v) p = GCOMP__F(load_p)(&in, i, 1, 1);
            if (sent) p = GCOMP__F(sub)(p, GCOMP__F(load)(sent)), sent += 16;
            GCOMP__F(store)(residual + i, GCOMP__F(saturate)(p));
        }
    }
    if (i < end) {
        GCOMP__F(v) p = GCOMP__F(load_p_some)(input, i, end - i);
        if (sent) p = GCOMP__F(sub)(p, GCOMP__F(load_some)(sent, end - i));
        GCOMP__F(store_some)(residual + i, GCOMP__F(saturate)(p), end - i);
    }
}

/* y <- (fresh ? 0 : y) + weight * x */
static void GCOMP__F(add_scaled)(float *y, const float *x, float weight, size_t count, int fresh)
{
    const GCOMP__F(v) f = GCOMP__F(splat)(weight), zero = GCOMP__F(splat)(gcomp__zero());
    size_t i;
    for (i = 0; i + 16 <= count; i += 16) {
        GCOMP__F(v) d = GCOMP__F(mul)(GCOMP__F(load)(x + i), f);
        GCOMP__F(store)(y + i, GCOMP__F(saturate)(GCOMP__F(add)(fresh ? zero : GCOMP__F(load)(y + i), d)));
    }
    if (i < count) {
        GCOMP__F(v) d = GCOMP__F(mul)(GCOMP__F(load_some)(x + i, count - i), f);
        if (!fresh) d = GCOMP__F(add)(GCOMP__F(load_some)(y + i, count - i), d);
        else d = GCOMP__F(add)(zero, d);
        GCOMP__F(store_some)(y + i, GCOMP__F(saturate)(d), count - i);
    }
}

/* >>kernel sink: a chunk of block payloads, by the sink's ending. The own payload is decoded once, for residual and mean. */
static void GCOMP__F(sink)(const gcomp__sink *sink, size_t chunk)
{
    const size_t begin = chunk * GCOMP_CHUNK, end = gcomp__min(sink->n, begin + GCOMP_CHUNK);
    size_t i, count, w;
    gcomp_input in;
    memset(&in, 0, sizeof in);
    in.grad = sink->grad;
    in.dtype = sink->dtype;
    in.scale = sink->scale;
    in.residual = sink->residual;
    i = sink->together ? (sink->views->kernels->commit)(sink, begin, end) : begin;
    for (; i < end; i += count) {
        float own[GCOMP__TILE];
        count = sink->count > 1 || sink->ending == GCOMP__COMMIT ? gcomp__min(GCOMP__TILE, end - i) : end - i;
        if (sink->ending == GCOMP__COMMIT && sink->residual) {
            if (sink->own) (sink->own->kernels->decode)(sink->own, i, count, own, GCOMP__STORE, 1);
            GCOMP__F(keep_rest)(&in, sink->residual, i, count, sink->own ? own : NULL);
        }
        if (!sink->y) continue;
        for (w = 0; w < sink->count; w++) {
            const gcomp__view *view = sink->views + w;
            int fresh = sink->fresh && w == 0;
            if (sink->ending == GCOMP__STORE) (view->kernels->decode)(view, i, count, sink->y + i, GCOMP__STORE, 1);
            else if (sink->ending == GCOMP__COMMIT && sink->residual && sink->own && w == sink->own_at)
                GCOMP__F(add_scaled)(sink->y + i, own, sink->weight, count, fresh);
            else (view->kernels->decode)(view, i, count, sink->y + i, fresh ? GCOMP__FRESH : GCOMP__ADD, sink->weight);
        }
    }
}

/* >>kernel saturated: y <- x, with infinities made finite. */
static void GCOMP__F(saturated)(float *y, const float *x, size_t n)
{
    size_t i;
    for (i = 0; i + 16 <= n; i += 16) GCOMP__F(store)(y + i, GCOMP__F(saturate)(GCOMP__F(load)(x + i)));
    if (i < n) GCOMP__F(store_some)(y + i, GCOMP__F(saturate)(GCOMP__F(load_some)(x + i, n - i)), n - i);
}

/* >>kernel gaps: adds up what gaps take. Indices of one piece, so that sums of gaps are below 2^32; the first gap as
   from the piece's beginning. */
static void GCOMP__F(gaps)(const uint32_t *index, size_t k, unsigned base, gcomp__gap_sizes *sizes)
{
    const GCOMP__F(w) one = GCOMP__F(wsplat)(1);
    GCOMP__F(w) s0 = GCOMP__F(wsplat)(0), s1 = s0, s2 = s0, s3 = s0;
    int32_t lanes[5][16];
    size_t i, j, count;
    unsigned b;
    for (i = 0; i < k; i += count) {
        uint32_t any = 0;
        count = gcomp__min(GCOMP__GAPS, k - i);
        if (i && count == GCOMP__GAPS) {
            GCOMP__F(w) all = GCOMP__F(wsplat)(0);
            for (j = i; j < i + GCOMP__GAPS; j += 16) {
                const int32_t *at = (const int32_t *)(const void *)(index + j);
                GCOMP__F(w) gap = GCOMP__F(wsub)(GCOMP__F(wsub)(GCOMP__F(load_words)(at), GCOMP__F(load_words)(at - 1)), one);
                all = GCOMP__F(wor)(all, gap);
                gap = GCOMP__F(wshr)(gap, (int)base);
                s0 = GCOMP__F(wadd)(s0, gap);
                s1 = GCOMP__F(wadd)(s1, GCOMP__F(wshr)(gap, 1));
                s2 = GCOMP__F(wadd)(s2, GCOMP__F(wshr)(gap, 2));
                s3 = GCOMP__F(wadd)(s3, GCOMP__F(wshr)(gap, 3));
            }
            GCOMP__F(store_words)(lanes[4], all);
            for (j = 0; j < 16; j++) any |= (uint32_t)lanes[4][j];
        } else {
            for (j = i; j < i + count; j++) {
                const uint32_t gap = j ? index[j] - index[j - 1] - 1 : index[0];
                any |= gap;
                for (b = 0; b < 4; b++) sizes->quotients[b] += gap >> (base + b);
            }
        }
        sizes->packed += 1 + (count * gcomp__width(any) + 7) / 8;
    }
    GCOMP__F(store_words)(lanes[0], s0);
    GCOMP__F(store_words)(lanes[1], s1);
    GCOMP__F(store_words)(lanes[2], s2);
    GCOMP__F(store_words)(lanes[3], s3);
    for (b = 0; b < 4; b++)
        for (j = 0; j < 16; j++) sizes->quotients[b] += (uint32_t)lanes[b][j];
}

/* >>kernel two_lists: passes over Golomb-Rice codes of two lists in turn, since each waits for the end of the one before: so many
   at once as mostly end within a refill; stops where they do not, or near an end. Their indices go to `to` and `into`, unless
   these are NULL. The highest bit of what is refilled is 0, as in gcomp__refill: so all ones end, if perhaps behind what is
   valid. */
GCOMP__INLINE void GCOMP__F(two_driver)(gcomp__indices *x, gcomp__indices *y, uint32_t *to, uint32_t *into, int keeps)
{
    const unsigned r = x->coder, s = y->coder, at_once = x->at_once < y->at_once ? x->at_once : y->at_once;
    const uint64_t low = gcomp__low_bits(r), lower = gcomp__low_bits(s), n = x->n, m = y->n;
    const uint8_t *a = x->reader.at, *b = y->reader.at, *const end = x->reader.end, *const stop = y->reader.end;
    uint64_t bits = x->reader.bits, more = y->reader.bits, next = x->next, after = y->next;
    unsigned have = x->reader.have, left = y->reader.have, i;
    while (x->left >= at_once && y->left >= at_once && end - a >= 8 && stop - b >= 8 && next <= n && after <= m) {
        uint64_t u = (bits | gcomp__get64(a) << have) & gcomp__low_bits(63);
        uint64_t v = (more | gcomp__get64(b) << left) & gcomp__low_bits(63);
        uint64_t sum = next, total = after;
        unsigned ones = 0, others = 0;
        for (i = 0; i < at_once; i++) {
            const unsigned q = gcomp__first_one(~u), t = gcomp__first_one(~v);
            u >>= q;
            v >>= t;
            ones += q;
            others += t;
            sum += u >> 1 & low;
            total += v >> 1 & lower;
            if (keeps) {
                to[i] = (uint32_t)(sum + ((uint64_t)ones << r)) + i;
                into[i] = (uint32_t)(total + ((uint64_t)others << s)) + i;
            }
            u >>= r + 1;
            v >>= s + 1;
        }
        sum += ((uint64_t)ones << r) + at_once;
        total += ((uint64_t)others << s) + at_once;
        ones += at_once * (r + 1);
        others += at_once * (s + 1);
        if (ones > (have | 56) || others > (left | 56)) break;
        a += (63 - have) >> 3;
        b += (63 - left) >> 3;
        have = (have | 56) - ones;
        left = (left | 56) - others;
        bits = u;
        more = v;
        next = sum;
        after = total;
        x->left -= at_once;
        y->left -= at_once;
        if (keeps) to += at_once, into += at_once;
    }
    x->reader.at = a;
    x->reader.bits = bits;
    x->reader.have = have;
    x->next = next;
    y->reader.at = b;
    y->reader.bits = more;
    y->reader.have = left;
    y->next = after;
}

static void GCOMP__F(two_lists)(gcomp__indices *x, gcomp__indices *y, uint32_t *to, uint32_t *into)
{
    if (to && into) GCOMP__F(two_driver)(x, y, to, into, 1);
    else GCOMP__F(two_driver)(x, y, NULL, NULL, 0);
}

/* >>kernel past: y <- x, written past the caches; x <- 0. */
static void GCOMP__F(past)(float *y, float *x, size_t n)
{
    const GCOMP__F(v) zero = GCOMP__F(splat)(0);
    size_t i;
    for (i = 0; i + 16 <= n; i += 16) {
        GCOMP__F(pour)((uint8_t *)(y + i), (const uint8_t *)(x + i));
        GCOMP__F(store)(x + i, zero);
    }
    GCOMP__F(poured)();
    memcpy(y + i, x + i, 4 * (n - i));
}

static const gcomp__common_kernels GCOMP__F(common) = {
    GCOMP__F(crc), GCOMP__F(measure), GCOMP__F(encode), GCOMP__F(sink), GCOMP__F(saturated), GCOMP__F(absorb),
    GCOMP__F(scale_copy), GCOMP__F(worst_of), GCOMP__F(squares), GCOMP__F(widen), GCOMP__F(narrow), GCOMP__F(gaps),
    GCOMP__F(no_number), GCOMP__F(advance), GCOMP__F(two_lists), GCOMP__F(past)};

/* ------------------------------------------------------------------------------------------------
   >>levels - entropy codes of levels: a second layer behind the drivers of block methods

   Packed codes are recoded in segments of GCOMP__SEGMENT bytes, each by itself. Inside, 64 codes are sliced: one word for each
   bit of theirs, so that an operation works on 64 levels. What a unary code asks level by level (is it 0? is it 1?) is asked
   of 64 levels at once, the answers gathered from those that are still asked: the bits are as many, and no branch and no
   look-up depends on a level. Where zeros are many, the first question is asked of groups first (a tree), or the gaps between
   those that are not zero are coded (Rice, Elias).
   ------------------------------------------------------------------------------------------------ */

#if !defined(gcomp__coders_avx512) /* this set has its own */
/* Slices a segment's codes and counts what the sizes of its codes depend on; `bits` is a constant. */
GCOMP__HEAVY void GCOMP__F(slice_codes)(gcomp__sliced *s, const uint8_t *codes, unsigned bits)
{
    uint64_t *w = s->words, before = (uint64_t)1 << 63;
    size_t g;
    unsigned b;
    for (g = 0; g < s->groups; g++, w += bits) {
        const size_t left = s->count - 64 * g;
        uint64_t carry, adjacent, any = 0, equal = ~(uint64_t)0;
        if (left < 64) {
            uint8_t some[128] = {0};
            memcpy(some, codes + 8 * bits * g, (left * bits + 7) / 8);
            GCOMP__F(slice)(w, some, bits);
        } else {
            GCOMP__F(slice)(w, codes + 8 * bits * g, bits);
        }
        carry = w[bits - 1];
        GCOMP__UNROLL for (b = 0; b < bits - 1; b++) {
            const uint64_t x = w[b] ^ w[bits - 1];
            w[b] = x ^ carry;
            carry &= x;
        }
        GCOMP__UNROLL for (b = bits - 1; b-- > 0;) {
            if (b == 0) s->large += gcomp__popcount64(any);
            any |= w[b];
            equal &= w[b] ^ ((uint64_t)(s->levels >> b & 1) - 1);
            s->ones[b] += gcomp__popcount64(w[b]);
            s->top[b] += gcomp__popcount64(equal);
        }
        adjacent = any << 1 | before >> 63;
        s->sent += gcomp__popcount64(any);
        s->apart += gcomp__popcount64(any & ~adjacent);
        s->distant += gcomp__popcount64(any & ~(adjacent | any << 2 | before >> 62 | any << 3 | before >> 61));
        before = any;
    }
}

/* Which levels have |q| >> k not 0. */
GCOMP__INLINE uint64_t GCOMP__F(above)(const uint64_t *w, unsigned bits, unsigned k)
{
    uint64_t any = 0;
    unsigned b;
    GCOMP__UNROLL for (b = 0; b < bits - 1; b++) any |= b < k ? 0 : w[b];
    return any;
}

/* Bits of everything but the first question, with k low bits. */
GCOMP__INLINE size_t GCOMP__F(rest_bits)(const gcomp__sliced *s, unsigned bits, unsigned k)
{
    size_t sum = s->sent + k * s->count - s->top[k];
    unsigned b;
    for (b = k; b < bits - 1; b++) sum += s->ones[b] << (b - k);
    return sum;
}

/* Bits of the first question as a tree of depth 0 .. 3. Element i of a node goes with i + half of it. */
GCOMP__INLINE void GCOMP__F(count_trees)(const gcomp__sliced *s, unsigned bits, unsigned k, size_t *size)
{
    const uint64_t *w = s->words;
    size_t g;
    unsigned d;
    memset(size, 0, 4 * sizeof *size);
    for (g = 0; g < s->groups; g++, w += bits) {
        const size_t left = gcomp__min(64, s->count - 64 * g);
        uint64_t x = GCOMP__F(above)(w, bits, k);
        size_t split = 0;
        size[0] += left;
        GCOMP__UNROLL for (d = 1; d < 4; d++) {
            const uint64_t low = x & gcomp__low_bits(64 >> d);
            x = low | x >> (64 >> d);
            split += gcomp__popcount64(low) + gcomp__popcount64(x);
            size[d] += split + gcomp__min((size_t)64 >> d, left);
        }
    }
}

/* Bits of gaps by Rice codes of parameters r, r + 1, r + 2; and of all by Elias omega. */
GCOMP__INLINE void GCOMP__F(count_gaps)(const gcomp__sliced *s, unsigned bits, unsigned r, size_t *rice, size_t *elias)
{
    const uint64_t *w = s->words;
    size_t g, next = 0, omega = s->sent, above = s->sent, quotient[3] = {0, 0, 0}, gap;
    unsigned b;
    for (g = 0; g < s->groups; g++, w += bits) {
        uint64_t x = GCOMP__F(above)(w, bits, 0);
        for (b = 1; b < bits - 1; b++)
            omega += gcomp__popcount64(GCOMP__F(above)(w, bits, b)) *
                     (size_t)(gcomp__omega_length[b] - gcomp__omega_length[b - 1]);
        for (; x; x &= x - 1) {
            gap = 64 * g + gcomp__first_one(x) - next;
            next += gap + 1;
            quotient[0] += gap >> r;
            quotient[1] += gap >> (r + 1);
            quotient[2] += gap >> (r + 2);
            omega += gcomp__omega_length[gcomp__log2((uint32_t)gap + 1)];
        }
    }
    gap = s->count - next;
    for (b = 0; b < 3; b++) rice[b] = quotient[b] + (gap >> (r + b)) + (s->sent + 1) * (r + b + 1);
    *elias = omega + above + gcomp__omega_length[gcomp__log2((uint32_t)gap + 1)];
}

/* Chooses by exact sizes: Rice's gaps where at most one level of eight is sent, omega unless it cannot be the smallest. */
GCOMP__HEAVY void GCOMP__F(choose)(gcomp__sliced *s, unsigned bits, unsigned code, size_t packed)
{
    const size_t most = 8 * (packed - gcomp__min(packed, 3));
    size_t size[4], elias, least = 3 * s->sent + 2 * (s->apart + s->large) + 3 * s->distant; /* bits of omega, or fewer */
    unsigned k, d, best = 0;
    for (k = 2; k < bits - 1; k++) least += s->ones[k] * (size_t)(gcomp__omega_length[k] - gcomp__omega_length[k - 1]);
    s->head = GCOMP__BY_PACKED;
    s->size = most + 1;
    if (code != GCOMP__ELIAS) {
        for (k = 1; s->levels >> k; k++)
            if (GCOMP__F(rest_bits)(s, bits, k) < GCOMP__F(rest_bits)(s, bits, best)) best = k;
        GCOMP__F(count_trees)(s, bits, best, size);
        for (d = 0; d < 4; d++) {
            if (size[d] + GCOMP__F(rest_bits)(s, bits, best) >= s->size) continue;
            s->size = size[d] + GCOMP__F(rest_bits)(s, bits, best);
            s->head = GCOMP__BY_TREE | d << 4 | best;
        }
    }
    if (8 * s->sent <= s->count || (code != GCOMP__RICE && least < s->size)) {
        unsigned r = gcomp__log2((uint32_t)((s->count + 1) / (s->sent + 1)));
        r = r > 11 ? 10 : r ? r - 1 : 0;
        GCOMP__F(count_gaps)(s, bits, r, size, &elias);
        for (d = 0; d < 3 && code != GCOMP__ELIAS && 8 * s->sent <= s->count; d++) {
            if (size[d] + GCOMP__F(rest_bits)(s, bits, 0) >= s->size) continue;
            s->size = size[d] + GCOMP__F(rest_bits)(s, bits, 0);
            s->head = GCOMP__BY_GAPS | (r + d);
        }
        if (code != GCOMP__RICE && elias < s->size) {
            s->size = elias;
            s->head = GCOMP__BY_ELIAS;
        }
    }
    if (s->size > most) s->head = GCOMP__BY_PACKED;
}

GCOMP__HEAVY void GCOMP__F(write_elias)(const gcomp__sliced *s, gcomp__packer *to, unsigned bits)
{
    const uint64_t *w = s->words;
    size_t g, at = 0, next = 0;
    unsigned b;
    for (g = 0; g < s->groups; g++, w += bits) {
        uint64_t x = GCOMP__F(above)(w, bits, 0);
        for (; x; x &= x - 1) {
            const unsigned i = gcomp__first_one(x);
            uint32_t level = 0;
            for (b = 0; b < bits - 1; b++) level |= (uint32_t)(w[b] >> i & 1) << b;
            at = 64 * g + i + 1;
            gcomp__put_omega(to, (uint32_t)(at - next));
            gcomp__pack_high(to, w[bits - 1] >> i & 1, 1);
            gcomp__put_omega(to, level);
            next = at;
        }
    }
    gcomp__put_omega(to, (uint32_t)(s->count + 1 - next));
    if (to->fill) gcomp__pack_high(to, 0, 8 - to->fill);
}

GCOMP__INLINE void GCOMP__F(put_gap)(gcomp__packer *to, size_t gap, unsigned r)
{
    size_t q = gap >> r;
    for (; q >= 32; q -= 32) gcomp__pack_some(to, 0xffffffffu, 32);
    gcomp__pack_some(to, gcomp__low_bits(q) | (uint64_t)(gap & (((size_t)1 << r) - 1)) << (q + 1), q + 1 + r);
}

GCOMP__HEAVY void GCOMP__F(write_gaps)(const gcomp__sliced *s, gcomp__packer *to, unsigned bits, unsigned r)
{
    const uint64_t *w = s->words;
    size_t g, next = 0;
    for (g = 0; g < s->groups; g++, w += bits) {
        uint64_t x = GCOMP__F(above)(w, bits, 0);
        for (; x; x &= x - 1) {
            const size_t at = 64 * g + gcomp__first_one(x);
            GCOMP__F(put_gap)(to, at - next, r);
            next = at + 1;
        }
    }
    GCOMP__F(put_gap)(to, s->count - next, r);
}

/* The first question of a group as a tree of some depth. */
GCOMP__INLINE void GCOMP__F(put_tree)(gcomp__packer *to, uint64_t x, size_t left, unsigned depth)
{
    uint64_t part[4];
    unsigned d;
    part[0] = x;
    for (d = 1; d <= depth; d++) part[d] = (part[d - 1] & gcomp__low_bits(64 >> d)) | part[d - 1] >> (64 >> d);
    gcomp__pack_bits(to, part[depth], gcomp__min((size_t)64 >> depth, left));
    for (d = depth; d; d--) {
        const uint64_t low = part[d - 1] & gcomp__low_bits(64 >> d), high = part[d - 1] >> (64 >> d);
        gcomp__pack_some(to, GCOMP__F(gather)(low, part[d]), gcomp__popcount64(part[d]));
        gcomp__pack_some(to, GCOMP__F(gather)(high, low), gcomp__popcount64(low));
    }
}

/* Group by group: k low bits; the first question, if not by gaps before; the others; the signs. */
GCOMP__HEAVY void GCOMP__F(write_groups)(const gcomp__sliced *s, gcomp__packer *to, unsigned bits, unsigned k)
{
    const unsigned depth = s->head >> 4 & 3;
    const size_t last = s->levels >> k;
    const uint64_t *w = s->words;
    size_t g, j;
    unsigned b;
    for (g = 0; g < s->groups; g++, w += bits) {
        const size_t left = gcomp__min(64, s->count - 64 * g);
        const uint64_t sent = GCOMP__F(above)(w, bits, 0);
        uint64_t u[16], x = GCOMP__F(above)(w, bits, k);
        for (b = 0; b < k; b++) gcomp__pack_bits(to, w[b], left);
        if (s->head & GCOMP__BY_TREE) GCOMP__F(put_tree)(to, x, left, depth);
        GCOMP__UNROLL for (b = 0; b < bits - 1; b++) u[b] = w[b];
        for (j = 2; j <= last && x; j++) {
            uint64_t borrow = x, more = 0;
            GCOMP__UNROLL for (b = k; b < bits - 1; b++) {
                const uint64_t was = u[b];
                u[b] = was ^ borrow;
                borrow &= ~was;
                more |= u[b];
            }
            gcomp__pack_bits(to, GCOMP__F(gather)(more, x), gcomp__popcount64(x));
            x = more;
        }
        gcomp__pack_bits(to, GCOMP__F(gather)(w[bits - 1], sent), gcomp__popcount64(sent));
    }
}

/* What was chosen goes to out, which has 64 bytes more than it needs. */
GCOMP__NOINLINE void GCOMP__F(write_segment)(const gcomp__sliced *s, uint8_t *to)
{
    uint8_t out[GCOMP__SEGMENT + 64];
    const size_t bytes = (s->size + 7) / 8;
    gcomp__packer p;
    p.at = out;
    p.bits = 0;
    p.fill = 0;
#define GCOMP__WRITE(bits) \
    do { \
        const unsigned k = s->head & GCOMP__BY_TREE ? s->head & 15 : 0; \
        if (s->head == GCOMP__BY_ELIAS) { \
            GCOMP__F(write_elias)(s, &p, bits); \
            break; \
        } \
        if (!(s->head & GCOMP__BY_TREE)) GCOMP__F(write_gaps)(s, &p, bits, s->head & 15); \
        if (k == 0) GCOMP__F(write_groups)(s, &p, bits, 0); \
        else if (k == 1 && bits == 4) GCOMP__F(write_groups)(s, &p, bits, 1); \
        else GCOMP__F(write_groups)(s, &p, bits, k); \
    } while (0)
    if (s->bits == 2) GCOMP__WRITE(2);
    else if (s->bits == 4) GCOMP__WRITE(4);
    else if (s->bits == 8) GCOMP__WRITE(8);
    else GCOMP__WRITE(16);
#undef GCOMP__WRITE
    to[0] = (uint8_t)s->head;
    gcomp__put16(to + 1, (uint32_t)bytes);
    memcpy(to + 3, out, bytes);
}

/* A segment of `count` packed codes to `to`, which may lie a byte or more before them; returns its bytes. */
GCOMP__NOINLINE size_t GCOMP__F(code_segment)(const gcomp__form *form, const uint8_t *codes, size_t count, uint8_t *to)
{
    const size_t packed = gcomp__packed_bytes(form, count);
    gcomp__sliced s;
    memset(&s.count, 0, sizeof s - offsetof(gcomp__sliced, count));
    s.count = count;
    s.groups = (count + 63) / 64;
    s.bits = form->code16 / 2;
    s.levels = (size_t)form->levels;
#define GCOMP__CHOOSE(bits) \
    do { \
        GCOMP__F(slice_codes)(&s, codes, bits); \
        GCOMP__F(choose)(&s, bits, form->code, packed); \
    } while (0)
    if (s.bits == 2) GCOMP__CHOOSE(2);
    else if (s.bits == 4) GCOMP__CHOOSE(4);
    else if (s.bits == 8) GCOMP__CHOOSE(8);
    else GCOMP__CHOOSE(16);
#undef GCOMP__CHOOSE
    if (s.head == GCOMP__BY_PACKED) {
        memmove(to + 1, codes, packed);
        to[0] = GCOMP__BY_PACKED;
        return 1 + packed;
    }
    GCOMP__F(write_segment)(&s, to);
    return 3 + (s.size + 7) / 8;
}

/* >>kernel code: the packed codes of a chunk, coded to `to`, which lies as many bytes before them as there are segments. */
static size_t GCOMP__F(code_levels)(const gcomp__form *form, const uint8_t *codes, size_t count, uint8_t *to)
{
    const size_t segment = gcomp__segment_of(form);
    size_t i, bytes = 0;
    for (i = 0; i < count; i += segment)
        bytes += GCOMP__F(code_segment)(form, codes + i / 16 * form->code16, gcomp__min(segment, count - i), to + bytes);
    return bytes;
}

/* ---------------- back. What is read may be anything: *at never passes `limit` by more than a group's bits. */

/* Which levels are not 0, from gaps; 0: they do not end where they should. */
GCOMP__NOINLINE int GCOMP__F(read_gaps)(const uint8_t *p, size_t *from, size_t limit, size_t count, unsigned r, uint64_t *map)
{
    size_t at = *from, next = 0;
    memset(map, 0, (count + 63) / 64 * 8);
    for (;;) {
        uint64_t x = gcomp__bits_at(p, at);
        size_t gap = 0;
        while ((x & 0xffffffffu) == 0xffffffffu) {
            gap += 32;
            at += 32;
            if (at > limit) return 0;
            x = gcomp__bits_at(p, at);
        }
        {
            const unsigned ones = gcomp__first_one(~x);
            gap = ((gap + ones) << r) + (size_t)(x >> (ones + 1) & gcomp__low_bits(r));
            at += ones + 1 + r;
        }
        next += gap;
        if (next >= count || at > limit) break;
        map[next >> 6] |= (uint64_t)1 << (next & 63);
        next++;
    }
    *from = at;
    return next == count && at <= limit;
}

GCOMP__INLINE uint64_t GCOMP__F(get_tree)(const uint8_t *p, size_t *from, size_t left, unsigned depth)
{
    size_t at = *from, first = gcomp__min((size_t)64 >> depth, left);
    uint64_t x = gcomp__bits_at(p, at) & gcomp__low_bits(first);
    at += first;
    for (; depth; depth--) {
        const uint64_t low = GCOMP__F(scatter)(gcomp__bits_at(p, at), x);
        uint64_t high;
        at += gcomp__popcount64(x);
        high = (x & ~low) | GCOMP__F(scatter)(gcomp__bits_at(p, at), low);
        at += gcomp__popcount64(low);
        x = low | high << (64 >> depth);
    }
    *from = at;
    return x;
}

/* Groups of a segment into packed codes; 0 if no encoder writes that. map: NULL, or what was read from gaps. */
GCOMP__HEAVY int GCOMP__F(read_groups)(const gcomp__form *form, const uint8_t *p, size_t *from, size_t limit, size_t count,
                                        unsigned head, const uint64_t *map, uint8_t *codes, unsigned bits, unsigned k)
{
    const unsigned depth = head >> 4 & 3;
    const size_t levels = (size_t)form->levels, last = levels >> k;
    const uint64_t partial = (levels + 1) & (((size_t)1 << k) - 1) ? ~(uint64_t)0 : 0;
    size_t at = *from, g, j;
    uint64_t wrong = 0;
    unsigned b;
    for (g = 0; 64 * g < count; g++, codes += 8 * bits) {
        const size_t left = gcomp__min(64, count - 64 * g);
        uint64_t w[16], x, carry, sent = 0, over = 0;
        if (at > limit) return 0;
        GCOMP__UNROLL for (b = 0; b < bits - 1; b++) w[b] = 0;
        for (b = 0; b < k; b++, at += left) w[b] = gcomp__bits_at(p, at) & gcomp__low_bits(left);
        x = map ? map[g] : GCOMP__F(get_tree)(p, &at, left, depth);
        wrong |= x & ~gcomp__low_bits(left);
        w[k] = x;
        for (j = 2; j <= last && x; j++) {
            carry = GCOMP__F(scatter)(gcomp__bits_at(p, at), x);
            at += gcomp__popcount64(x);
            x = carry;
            GCOMP__UNROLL for (b = k; b < bits - 1; b++) {
                const uint64_t was = w[b];
                w[b] = was ^ carry;
                carry &= was;
            }
            if (at > limit) return 0;
        }
        GCOMP__UNROLL for (b = 0; b < bits - 1; b++) {
            sent |= w[b];
            over = levels >> b & 1 ? over & w[b] : over | w[b];
        }
        wrong |= over & partial;
        carry = GCOMP__F(scatter)(gcomp__bits_at(p, at), sent);
        at += gcomp__popcount64(sent);
        w[bits - 1] = carry;
        GCOMP__UNROLL for (b = 0; b < bits - 1; b++) {
            const uint64_t was = w[b] ^ w[bits - 1];
            w[b] = was ^ carry;
            carry &= was;
        }
        GCOMP__F(unslice)(codes, w, bits);
    }
    *from = at;
    return !wrong;
}

static int GCOMP__F(read_elias)(const gcomp__form *form, const uint8_t *p, size_t *from, size_t limit, size_t count,
                                uint8_t *codes)
{
    const unsigned bits = form->code16 / 2;
    const uint32_t levels = (uint32_t)form->levels;
    size_t at = *from, next = 0;
    memset(codes, 0, (count + 63) / 64 * 8 * bits);
    for (;;) {
        uint32_t level, code;
        uint64_t w = gcomp__high_bits_at(p, at);
        const uint32_t gap = gcomp__get_omega(w, &at);
        if (!gap || at > limit) return 0;
        next += gap;
        if (next > count) break;
        w = gcomp__high_bits_at(p, at++);
        level = gcomp__get_omega(w << 1, &at);
        if (!level || level > levels) return 0;
        code = (level ^ (0 - (uint32_t)(w >> 63))) + (uint32_t)(w >> 63);
        if (bits == 16) gcomp__put16(codes + 2 * (next - 1), code & 0xffffu);
        else {
            uint8_t *to = codes + (next - 1) * bits / 8;
            to[0] = (uint8_t)(to[0] | (code & ((1u << bits) - 1)) << ((next - 1) * bits & 7));
        }
    }
    *from = at;
    return next == count + 1;
}

/* Packed codes as they stand: no level above `levels`, zeros behind the last. */
GCOMP__HEAVY gcomp_result GCOMP__F(look_at_codes)(const gcomp__form *form, const uint8_t *codes, size_t count, unsigned bits)
{
    const size_t levels = (size_t)form->levels;
    size_t g;
    unsigned b;
    for (g = 0; 64 * g < count; g++) {
        uint64_t w[16], carry, over = 0, any = 0;
        GCOMP__F(slice)(w, codes + 8 * bits * g, bits);
        carry = w[bits - 1];
        GCOMP__UNROLL for (b = 0; b < bits - 1; b++) {
            const uint64_t x = w[b] ^ w[bits - 1], m = x ^ carry;
            carry &= x;
            over = levels >> b & 1 ? over & m : over | m;
            any |= m;
        }
        if ((any | carry) & ~gcomp__low_bits(count - 64 * g < 64 ? count - 64 * g : 64)) return GCOMP_RESERVED_BITS;
        if (over | carry) return GCOMP_CORRUPT;
    }
    return GCOMP_OK;
}

GCOMP__NOINLINE int GCOMP__F(read_any)(const gcomp__form *form, const uint8_t *p, size_t *at, size_t limit, size_t count,
                                       unsigned head, const uint64_t *map, uint8_t *codes)
{
    const unsigned k = map ? 0 : head & 15;
    if (form->code16 == 4) return GCOMP__F(read_groups)(form, p, at, limit, count, head, map, codes, 2, 0);
    if (form->code16 == 8 && k == 0) return GCOMP__F(read_groups)(form, p, at, limit, count, head, map, codes, 4, 0);
    if (form->code16 == 8 && k == 1) return GCOMP__F(read_groups)(form, p, at, limit, count, head, map, codes, 4, 1);
    if (form->code16 == 8) return GCOMP__F(read_groups)(form, p, at, limit, count, head, map, codes, 4, 2);
    if (form->code16 == 16) return GCOMP__F(read_groups)(form, p, at, limit, count, head, map, codes, 8, k);
    return GCOMP__F(read_groups)(form, p, at, limit, count, head, map, codes, 16, k);
}

GCOMP__NOINLINE gcomp_result GCOMP__F(look_at_any)(const gcomp__form *form, const uint8_t *codes, size_t count)
{
    if (form->code16 == 4) return GCOMP__F(look_at_codes)(form, codes, count, 2);
    if (form->code16 == 8) return GCOMP__F(look_at_codes)(form, codes, count, 4);
    if (form->code16 == 16) return GCOMP__F(look_at_codes)(form, codes, count, 8);
    return GCOMP__F(look_at_codes)(form, codes, count, 16);
}

/* What stands behind a segment's three first bytes; 256 bytes behind it can be read. */
GCOMP__NOINLINE gcomp_result GCOMP__F(read_coded)(const gcomp__form *form, unsigned head, const uint8_t *p, size_t bytes,
                                                  size_t count, uint8_t *codes)
{
    uint64_t map[16 * GCOMP__SEGMENT / 4 / 64];
    size_t at = 0;
    int good;
    if (head == GCOMP__BY_ELIAS) {
        good = GCOMP__F(read_elias)(form, p, &at, 8 * bytes, count, codes);
    } else if (head & GCOMP__BY_TREE) {
        good = GCOMP__F(read_any)(form, p, &at, 8 * bytes, count, head, NULL, codes);
    } else {
        good = GCOMP__F(read_gaps)(p, &at, 8 * bytes, count, head & 15, map) &&
               GCOMP__F(read_any)(form, p, &at, 8 * bytes, count, head, map, codes);
    }
    if (!good || at > 8 * bytes) return GCOMP_CORRUPT;
    if ((at + 7) / 8 != bytes) return GCOMP_TRAILING_BYTES;
    if (at & 7 && (head == GCOMP__BY_ELIAS ? p[bytes - 1] & 0xffu >> (at & 7) : (unsigned)p[bytes - 1] >> (at & 7)))
        return GCOMP_RESERVED_BITS;
    return GCOMP_OK;
}

GCOMP__NOINLINE gcomp_result GCOMP__F(read_last)(const gcomp__form *form, unsigned head, const uint8_t *p, size_t bytes,
                                                 size_t count, uint8_t *codes)
{
    uint8_t copy[GCOMP__SEGMENT + 256];
    memcpy(copy, p, bytes);
    memset(copy + bytes, 0, 256);
    return GCOMP__F(read_coded)(form, head, copy, bytes, count, codes);
}

/* >>kernel read: the next segment before `end` as packed codes, and zeros behind up to 64; checked to the last bit. */
static gcomp_result GCOMP__F(read_segment)(const gcomp__form *form, size_t count, const uint8_t **at, const uint8_t *end,
                                           uint8_t *codes)
{
    const size_t packed = gcomp__packed_bytes(form, count), left = (size_t)(end - *at);
    const uint8_t *p = *at;
    unsigned head;
    size_t bytes;
    if (!left) return GCOMP_TRUNCATED;
    head = p[0];
    if (head == GCOMP__BY_PACKED) {
        if (left <= packed) return GCOMP_TRUNCATED;
        *at = p + 1 + packed;
        memset(codes + packed, 0, (count + 63) / 64 * 4 * form->code16 - packed);
        memcpy(codes, p + 1, packed);
        return GCOMP__F(look_at_any)(form, codes, count);
    }
    if (!gcomp__may_code(form, head)) return GCOMP_CORRUPT;
    if (left < 3) return GCOMP_TRUNCATED;
    bytes = gcomp__get16(p + 1);
    if (3 + bytes > packed) return GCOMP_CORRUPT; /* an encoder would have left it packed */
    if (bytes > left - 3) return GCOMP_TRUNCATED;
    *at = p + 3 + bytes;
    if (left < 3 + bytes + 256) return GCOMP__F(read_last)(form, head, p + 3, bytes, count, codes);
    return GCOMP__F(read_coded)(form, head, p + 3, bytes, count, codes);
}

/* residual <- p - what was sent, for the packed codes that `view` shows from its element 0 on. */
GCOMP__NOINLINE void GCOMP__F(keep_levels)(const gcomp__sink *sink, const gcomp__view *view, size_t begin, size_t count)
{
    float own[GCOMP__TILE];
    size_t i, some;
    gcomp_input in;
    memset(&in, 0, sizeof in);
    in.grad = sink->grad;
    in.dtype = sink->dtype;
    in.scale = sink->scale;
    in.residual = sink->residual;
    for (i = 0; i < count; i += some) {
        some = gcomp__min(GCOMP__TILE, count - i);
        if (view) (view->kernels->decode)(view, i, some, own, GCOMP__STORE, 1);
        GCOMP__F(keep_rest)(&in, sink->residual, begin + i, some, view ? own : NULL);
    }
}

/* A chunk of one payload, valid: its segments are unpacked one by one, and go where `ending` says; COMMIT: to the residual. */
GCOMP__NOINLINE void GCOMP__F(spread)(const gcomp__sink *sink, const gcomp__view *view, size_t chunk, int ending)
{
    const size_t begin = chunk * GCOMP_CHUNK, end = gcomp__min(sink->n, begin + GCOMP_CHUNK);
    const size_t segment = gcomp__segment_of(&view->form);
    const uint8_t *at = gcomp__coded_chunk(view, chunk), *stop = gcomp__coded_chunk(view, chunk + 1);
    gcomp__view part = *view;
    uint8_t codes[GCOMP__SEGMENT];
    size_t i, count;
    for (i = begin; i < end; i += count) {
        count = gcomp__min(segment, end - i);
        part.codes = codes;
        part.scales = view->scales + (i >> view->shift) * view->form.scale_bytes;
        if (!view->form.code) part.codes = view->codes + i / 16 * view->form.code16;
        else if (GCOMP__F(read_segment)(&view->form, count, &at, stop, codes) != GCOMP_OK) return; /* not after a check */
        if (ending == GCOMP__COMMIT) GCOMP__F(keep_levels)(sink, &part, i, count);
        else (part.kernels->decode)(&part, 0, count, sink->y + i, ending, sink->weight);
    }
}

/* >>kernel sink of coded levels: payload by payload, in the order of a sum; the residual first, since y may be the gradient. */
static void GCOMP__F(sink_levels)(const gcomp__sink *sink, size_t chunk)
{
    const size_t begin = chunk * GCOMP_CHUNK, end = gcomp__min(sink->n, begin + GCOMP_CHUNK);
    size_t w;
    if (sink->ending == GCOMP__COMMIT && sink->residual) {
        if (sink->own) GCOMP__F(spread)(sink, sink->own, chunk, GCOMP__COMMIT);
        else GCOMP__F(keep_levels)(sink, NULL, begin, end - begin);
    }
    for (w = 0; sink->y && w < sink->count; w++)
        GCOMP__F(spread)(sink, sink->views + w, chunk,
                         sink->ending == GCOMP__STORE ? GCOMP__STORE : sink->fresh && w == 0 ? GCOMP__FRESH : GCOMP__ADD);
}

static const gcomp__level_kernels GCOMP__F(coders) = {GCOMP__F(code_levels), GCOMP__F(read_segment), GCOMP__F(sink_levels)};
#endif

#ifdef GCOMP__LAST
/* ------------------------------------------------------------------------------------------------
   >>bits - bit streams; the index coder of sparse methods
   ------------------------------------------------------------------------------------------------ */

/* Writes bits from bit 0 of each byte on, and nothing behind the last (a gcomp__packer does). The caller knows that there is
   room. */
typedef struct gcomp__bit_writer {
    uint8_t *at;
    uint64_t bits;
    unsigned fill;
} gcomp__bit_writer;

GCOMP__INLINE void gcomp__put_bits(gcomp__bit_writer *w, uint64_t value, unsigned count) /* count <= 32 */
{
    w->bits |= value << w->fill;
    w->fill += count;
    if (w->fill >= 32) {
        gcomp__put32(w->at, (uint32_t)w->bits);
        w->at += 4;
        w->bits >>= 32;
        w->fill -= 32;
    }
}

GCOMP__INLINE void gcomp__put_end(gcomp__bit_writer *w) /* up to the end of a byte */
{
    for (; w->fill; w->fill -= w->fill < 8 ? w->fill : 8) {
        *w->at++ = (uint8_t)w->bits;
        w->bits >>= 8;
    }
}

/* And back. */
GCOMP__INLINE void gcomp__refill(gcomp__bit_reader *r) /* at least 56 bits, or all there are */
{
    if (r->end - r->at >= 8) {
        r->bits |= gcomp__get64(r->at) << r->have;
        r->bits &= gcomp__low_bits(63);
        r->at += (63 - r->have) >> 3;
        r->have |= 56;
    } else {
        for (; r->have < 56 && r->at < r->end; r->have += 8) r->bits |= (uint64_t)*r->at++ << r->have;
    }
}

GCOMP__INLINE void gcomp__skip_bits(gcomp__bit_reader *r, unsigned count) /* count <= have */
{
    r->bits >>= count;
    r->have -= count;
}

/* Increasing indices below n, as a bitmap; as Golomb-Rice codes (Golomb 1966, Rice 1979) of the gaps between them; as gaps in
   blocks, of as many bits as the largest needs; or as they are. Lists hold the lower 32 bits, in pieces: those of indices below
   (j + 1) 2^32 end before list[ends[j]]. */
enum { GCOMP__CODER_MAX_RICE = 32, GCOMP__CODER_RAW = 253, GCOMP__CODER_PACKED = 254, GCOMP__CODER_BITMAP = 255,
       GCOMP__CODER_KEPT = 256 /* no payload's: a list that was read and checked before */ };

static size_t gcomp__index_pieces(size_t n) { return n ? (size_t)(((uint64_t)n - 1) >> 32) + 1 : 1; }

/* Adds up what the gaps of all pieces take. */
static void gcomp__all_gaps(const gcomp__common_kernels *common, const uint32_t *index, const size_t *ends, size_t pieces,
                            unsigned base, gcomp__gap_sizes *sizes)
{
    uint64_t next = 0;
    size_t piece, at = 0;
    unsigned b;
    for (piece = 0; piece < pieces; piece++) {
        const uint64_t first = (uint64_t)piece << 32;
        if (at == ends[piece]) continue;
        (common->gaps)(index + at, ends[piece] - at, base, sizes); /* the first gap as from `first` */
        for (b = 0; piece && b < 4; b++)
            sizes->quotients[b] += ((first + index[at] - next) >> (base + b)) - (index[at] >> (base + b));
        at = ends[piece];
        next = first + index[at - 1] + 1;
    }
}

/* The coder with the fewest bytes for these indices, and how many; of equal ones the first of bitmap, Rice, packed, raw. Bits of
   Rice codes are a convex function of the parameter r: 2^r above the mean gap is too much, and of four the least is the least of
   all where it is not at the lower end. */
static unsigned gcomp__index_coder(const gcomp__common_kernels *common, const uint32_t *index, const size_t *ends, size_t n,
                                   size_t *bytes)
{
    const size_t pieces = gcomp__index_pieces(n), k = ends[pieces - 1], mean = k ? n / k : 0;
    unsigned base = 0, best = 0, j, coder = GCOMP__CODER_BITMAP;
    gcomp__gap_sizes sizes;
    uint64_t rice;
    while (base < 28 && (size_t)8 << base <= mean) base++;
    for (;;) {
        memset(&sizes, 0, sizeof sizes);
        gcomp__all_gaps(common, index, ends, pieces, base, &sizes);
        for (best = 0, j = 1; j < 4; j++)
            if (sizes.quotients[j] + (uint64_t)k * j < sizes.quotients[best] + (uint64_t)k * best) best = j;
        if (best || !base) break;
        base = base > 3 ? base - 3 : 0;
    }
    *bytes = gcomp__pieces(n, 8);
    rice = (sizes.quotients[best] + (uint64_t)k * (1 + base + best) + 7) / 8;
    if (rice < *bytes) {
        *bytes = (size_t)rice;
        coder = base + best;
    }
    if (pieces > 1) return coder;
    if (sizes.packed < *bytes) {
        *bytes = sizes.packed;
        coder = GCOMP__CODER_PACKED;
    }
    if (gcomp__times(k, 4) < *bytes) {
        *bytes = 4 * k;
        coder = GCOMP__CODER_RAW;
    }
    return coder;
}

/* The most bytes that up to k of n indices take, whichever they are: of the shortest coder, which may be a bitmap, words, or Rice
   codes. Their gaps add up to n - k at most: with the parameter r they take floor((n - k) / 2^r) + k (1 + r) bits at most. */
static size_t gcomp__index_bound(size_t k, size_t n)
{
    size_t bytes = gcomp__pieces(n, 8);
    unsigned r;
    if (gcomp__index_pieces(n) == 1) bytes = gcomp__min(bytes, gcomp__times(k, 4));
    for (r = 0; r < GCOMP__CODER_MAX_RICE; r++)
        bytes = gcomp__min(bytes, gcomp__pieces(gcomp__plus((n - k) >> r, gcomp__times(k, 1 + r)), 8));
    return bytes;
}

static void gcomp__put_bitmap(uint8_t *to, const uint32_t *index, size_t k, size_t bytes)
{
    size_t i = 0, base;
    for (base = 0; base < bytes; base += 8) {
        uint64_t word = 0;
        for (; i < k && index[i] / 8 - base < 8; i++) word |= (uint64_t)1 << (index[i] & 63);
        if (bytes - base >= 8) gcomp__put64(to + base, word);
        else
            for (; base < bytes; base++, word >>= 8) to[base] = (uint8_t)word;
    }
}

/* Codes of any length, byte by byte: nothing behind the last. */
GCOMP__INLINE void gcomp__pack_bytes(gcomp__packer *p, uint64_t value, unsigned count) /* count <= 32 */
{
    p->bits |= value << p->fill;
    for (p->fill += count; p->fill >= 8; p->fill -= 8, p->bits >>= 8) *p->at++ = (uint8_t)p->bits;
}

GCOMP__NOINLINE void gcomp__put_gap(gcomp__packer *p, uint64_t gap, unsigned r)
{
    uint64_t q = gap >> r;
    for (; q >= 24; q -= 24) gcomp__pack_bytes(p, 0xffffffu, 24);
    gcomp__pack_bytes(p, gcomp__low_bits((size_t)q), (unsigned)q + 1);
    gcomp__pack_bytes(p, gap & gcomp__low_bits(r), r);
}

/* Pairs of short codes, as most are; returns how many codes were written. A store takes 8 bytes, the last one at `last`. */
static size_t gcomp__put_pairs(gcomp__packer *to, const uint8_t *last, const uint32_t *index, size_t k, uint32_t next, unsigned r)
{
    const uint64_t low = gcomp__low_bits(r);
    gcomp__packer p;
    size_t i;
    p.at = to->at; /* one by one, here and below: p stays in registers */
    p.bits = to->bits;
    p.fill = to->fill;
    for (i = 0; i + 2 <= k; i += 2) {
        const uint64_t a = index[i] - next, b = index[i + 1] - index[i] - 1, q = a >> r, t = b >> r, bits = q + r + 1;
        uint64_t first, second;
        if (bits + t + r + 1 > 56 || p.at > last) break;
        first = (((uint64_t)1 << q) - 1) | (a & low) << 1 << q;
        second = (((uint64_t)1 << t) - 1) | (b & low) << 1 << t;
        gcomp__pack_some(&p, first | second << bits, (size_t)(bits + t + r + 1));
        next = index[i + 1] + 1;
    }
    to->at = p.at;
    to->bits = p.bits;
    to->fill = p.fill;
    return i;
}

static void gcomp__put_rice(uint8_t *to, const uint32_t *index, const size_t *ends, size_t pieces, unsigned r, size_t bytes)
{
    gcomp__packer p;
    uint64_t next = 0;
    size_t i = 0, piece;
    p.at = to;
    p.bits = 0;
    p.fill = 0;
    for (piece = 0; piece < pieces; piece++)
        while (i < ends[piece]) {
            const uint64_t first = (uint64_t)piece << 32;
            gcomp__put_gap(&p, first + index[i] - next, r);
            next = first + index[i++] + 1;
            if (bytes >= 8) i += gcomp__put_pairs(&p, to + bytes - 8, index + i, ends[piece] - i, (uint32_t)next, r);
            next = first + index[i - 1] + 1;
        }
    if (p.fill) *p.at = (uint8_t)p.bits;
}

static void gcomp__put_packed(uint8_t *to, const uint32_t *index, size_t k)
{
    gcomp__bit_writer w;
    uint32_t next = 0;
    size_t i, j, count;
    memset(&w, 0, sizeof w);
    w.at = to;
    for (i = 0; i < k; i += count, index += count) {
        uint32_t before = next, any = 0;
        unsigned width;
        count = gcomp__min(GCOMP__GAPS, k - i);
        for (j = 0; j < count; before = index[j++] + 1) any |= index[j] - before;
        width = gcomp__width(any);
        *w.at++ = (uint8_t)width;
        for (j = 0; j < count; next = index[j++] + 1) gcomp__put_bits(&w, index[j] - next, width);
        gcomp__put_end(&w);
    }
}

static void gcomp__put_indices(uint8_t *to, const uint32_t *index, const size_t *ends, size_t n, unsigned coder, size_t bytes)
{
    const size_t pieces = gcomp__index_pieces(n), room = (size_t)1 << 29; /* bytes of a piece's bitmap */
    size_t i;
    if (coder == GCOMP__CODER_BITMAP)
        for (i = 0; i < pieces; i++) {
            const size_t at = i ? ends[i - 1] : 0;
            gcomp__put_bitmap(to + room * i, index + at, ends[i] - at, gcomp__min(bytes - room * i, room));
        }
    else if (coder == GCOMP__CODER_PACKED) gcomp__put_packed(to, index, *ends);
    else if (coder != GCOMP__CODER_RAW) gcomp__put_rice(to, index, ends, pieces, coder, bytes);
    else
        for (i = 0; i < *ends; i++) gcomp__put32(to + 4 * i, index[i]);
}

/* What stands at `at`, at most 8 bytes. */
GCOMP__INLINE uint64_t gcomp__get_some(const uint8_t *at, const uint8_t *end)
{
    uint64_t x = 0;
    unsigned b;
    if (end - at >= 8) return gcomp__get64(at);
    for (b = 0; at < end; b += 8) x |= (uint64_t)*at++ << b;
    return x;
}

static void gcomp__next_bitmap(gcomp__indices *x, uint32_t *index, size_t count)
{
    gcomp__bit_reader *r = &x->reader;
    size_t got = 0;
    for (;;) {
        for (; r->bits && got < count; r->bits &= r->bits - 1)
            index[got++] = (uint32_t)x->next + gcomp__first_one(r->bits);
        if (got == count) break;
        if (r->at == r->end) {
            x->bad = GCOMP_CORRUPT;
            return;
        }
        x->next += r->have; /* of the word before */
        r->bits = gcomp__get_some(r->at, r->end);
        r->have = 64;
        r->at += gcomp__min(8, (size_t)(r->end - r->at));
    }
    if (count && (x->next >> 32 << 32) + index[count - 1] >= x->n) x->bad = GCOMP_CORRUPT; /* padding: at most 7 bits */
}

static void gcomp__next_raw(gcomp__indices *x, uint32_t *index, size_t count)
{
    gcomp__bit_reader *r = &x->reader;
    int falls = 0;
    size_t i;
    if ((size_t)(r->end - r->at) / 4 < count) {
        x->bad = GCOMP_CORRUPT;
        return;
    }
    for (i = 0; i < count; i++, r->at += 4) {
        index[i] = gcomp__get32(r->at);
        falls |= index[i] < x->next;
        x->next = (uint64_t)index[i] + 1;
    }
    if (falls || x->next > x->n) x->bad = GCOMP_CORRUPT;
}

/* The width of the next block, if it is there as a whole; `left` gaps are to come. */
static int gcomp__open_block(gcomp__indices *x, size_t left)
{
    gcomp__bit_reader *r = &x->reader;
    x->block = gcomp__min(GCOMP__GAPS, left);
    x->done = 0;
    x->any = 0;
    if (r->at == r->end) return 0;
    x->width = *r->at++;
    return x->width <= 32 && (size_t)(r->end - r->at) >= (x->block * x->width + 7) / 8;
}

/* Behind the last gap of a block: no narrower block would hold it, and its padding is zero. */
static gcomp_result gcomp__close_block(gcomp__indices *x)
{
    const size_t bits = x->block * x->width;
    x->reader.at += (bits + 7) / 8;
    x->block = 0;
    if (gcomp__width(x->any) != x->width) return GCOMP_CORRUPT;
    return bits % 8 && x->reader.at[-1] >> bits % 8 ? GCOMP_RESERVED_BITS : GCOMP_OK;
}

static void gcomp__next_packed(gcomp__indices *x, uint32_t *index, size_t count)
{
    const gcomp__bit_reader *r = &x->reader;
    size_t got = 0;
    while (got < count && !x->bad) {
        if (!x->block && !gcomp__open_block(x, x->left - got)) x->bad = GCOMP_CORRUPT;
        else {
            const size_t stop = got + gcomp__min(count - got, x->block - x->done);
            const uint64_t low = gcomp__low_bits(x->width);
            size_t bit = x->done * x->width;
            x->done += stop - got;
            for (; got < stop; bit += x->width) {
                const uint64_t gap = gcomp__get_some(r->at + bit / 8, r->end) >> bit % 8 & low;
                x->any |= (uint32_t)gap;
                x->next += gap + 1;
                index[got++] = (uint32_t)(x->next - 1);
            }
            if (x->done == x->block) x->bad = gcomp__close_block(x);
        }
    }
    if (x->next > x->n && !x->bad) x->bad = GCOMP_CORRUPT;
}

/* A code of any length; the gap may be larger than `most` by 2^38. Returns 0 where the stream ends before, or far behind most. */
GCOMP__NOINLINE int gcomp__long_gap(gcomp__bit_reader *from, unsigned r, uint64_t most, uint64_t *gap)
{
    uint64_t q = 0;
    for (;;) {
        unsigned ones = gcomp__first_one(~from->bits);
        ones = ones < from->have ? ones : from->have;
        gcomp__skip_bits(from, ones);
        q += ones;
        if (from->have) break; /* at a zero */
        gcomp__refill(from);
        if (!from->have || q > most >> r) return 0;
    }
    gcomp__skip_bits(from, 1);
    gcomp__refill(from);
    if (from->have < r) return 0;
    *gap = (q << r) + (from->bits & gcomp__low_bits(r));
    gcomp__skip_bits(from, r);
    return 1;
}

/* Codes that end within what a refill gives; returns how many were read. So many as mostly do are read without another look at
   the bytes: each waits for little more than the end of the one before. */
static size_t gcomp__short_gaps(gcomp__indices *x, uint32_t *index, size_t count)
{
    const unsigned r = x->coder;
    const uint64_t low = gcomp__low_bits(r);
    gcomp__bit_reader from;
    uint64_t next = x->next;
    size_t got = 0, before;
    from.at = x->reader.at; /* one by one, here and below: from stays in registers */
    from.end = x->reader.end;
    from.bits = x->reader.bits;
    from.have = x->reader.have;
    do {
        const size_t stop = gcomp__min(count, got + x->at_once);
        before = got;
        gcomp__refill(&from);
        for (; got < stop; got++) {
            const unsigned ones = gcomp__first_one(~from.bits);
            const uint64_t rest = from.bits >> ones;
            if (ones + r >= from.have) break;
            next += ((uint64_t)ones << r) + (rest >> 1 & low) + 1;
            index[got] = (uint32_t)next - 1;
            from.bits = rest >> (r + 1);
            from.have -= ones + r + 1;
        }
    } while (got > before && got < count && next <= x->n);
    x->reader.at = from.at;
    x->reader.bits = from.bits;
    x->reader.have = from.have;
    x->next = next;
    return got;
}

static void gcomp__next_rice(gcomp__indices *x, uint32_t *index, size_t count)
{
    size_t got = gcomp__short_gaps(x, index, count);
    uint64_t gap;
    while (got < count && x->next <= x->n && gcomp__long_gap(&x->reader, x->coder, x->n, &gap)) {
        x->next += gap + 1;
        index[got++] = (uint32_t)x->next - 1;
        if (got < count) got += gcomp__short_gaps(x, index + got, count - got);
    }
    if (got < count || x->next > x->n) x->bad = GCOMP_CORRUPT;
}

static void gcomp__next_kept(gcomp__indices *x, uint32_t *index, size_t count)
{
    size_t i;
    memcpy(index, x->reader.at, 4 * count);
    x->reader.at += 4 * count;
    for (i = 0; i < count && i < x->left - count; i += 16) GCOMP__PREFETCH(x->reader.at + 4 * i); /* of several lists in turn */
}

/* Up to `count` more indices; returns how many. */
static size_t gcomp__next_indices(gcomp__indices *x, uint32_t *index, size_t count)
{
    count = gcomp__min(count, x->left);
    if (x->bad) return 0;
    if (x->coder == GCOMP__CODER_BITMAP) gcomp__next_bitmap(x, index, count);
    else if (x->coder == GCOMP__CODER_RAW) gcomp__next_raw(x, index, count);
    else if (x->coder == GCOMP__CODER_PACKED) gcomp__next_packed(x, index, count);
    else if (x->coder == GCOMP__CODER_KEPT) gcomp__next_kept(x, index, count);
    else gcomp__next_rice(x, index, count);
    x->left -= count;
    return x->bad ? 0 : count;
}

/* What the index read last has above 32 bits. */
static uint64_t gcomp__index_high(const gcomp__indices *x)
{
    return (x->coder == GCOMP__CODER_BITMAP ? x->next : x->next - 1) >> 32 << 32;
}

/* The same of elements. */
static uint64_t gcomp__element_high(const gcomp__indices *x)
{
    return x->each ? ((uint64_t)x->element - 1) >> 32 << 32 : gcomp__index_high(x);
}

/* Up to `count` more elements, one by one where indices are of groups. Fewer: there are no more. */
static size_t gcomp__next_elements(gcomp__indices *x, uint32_t *index, size_t count)
{
    size_t got = 0;
    uint32_t group;
    if (!x->each) return gcomp__next_indices(x, index, count);
    while (got < count) {
        if (x->element == x->stop) {
            if (!x->left || !gcomp__next_indices(x, &group, 1)) break;
            x->element = (size_t)(gcomp__index_high(x) + group) * x->each;
            x->stop = gcomp__min(x->element + x->each, x->elements);
        }
        while (got < count && x->element < x->stop) index[got++] = (uint32_t)x->element++;
    }
    return got;
}

static void gcomp__indices_open(gcomp__indices *x, const uint8_t *bytes, size_t length, unsigned coder, size_t k, size_t n)
{
    memset(x, 0, sizeof *x);
    x->reader.at = bytes;
    x->reader.end = bytes + length;
    x->left = k;
    x->n = n;
    x->coder = coder;
    x->at_once = 112 / (2 * coder + 7); /* 56 bits of codes of r + 3.5 */
}

/* After the last index: nothing; of a bitmap zeros up to its length, of Rice codes fewer than 8 zero bits. */
static gcomp_result gcomp__indices_end(gcomp__indices *x)
{
    gcomp__bit_reader *r = &x->reader;
    if (x->bad) return x->bad;
    if (x->coder == GCOMP__CODER_BITMAP) {
        uint64_t more = r->bits;
        for (; r->at < r->end; r->at++) more |= *r->at;
        return more ? GCOMP_CORRUPT : GCOMP_OK;
    }
    if (x->coder > GCOMP__CODER_MAX_RICE) return r->at < r->end ? GCOMP_TRAILING_BYTES : GCOMP_OK;
    gcomp__refill(r);
    if (r->bits & gcomp__low_bits(r->have)) return GCOMP_RESERVED_BITS;
    return r->have >= 8 || r->at < r->end ? GCOMP_TRAILING_BYTES : GCOMP_OK;
}

/* ------------------------------------------------------------------------------------------------
   >>codecs - one chapter a method, the table at the end

   A block method writes quant and deq (compiled for every instruction set), its line in the list, and its row.
   ------------------------------------------------------------------------------------------------ */

static const gcomp__method *gcomp__method_of(unsigned wire);
static const void *gcomp__kernels_of(const gcomp__set *set, const gcomp__method *method);

static int gcomp__in_range(const gcomp__param *p, double v);

/* The parameter word of a payload's header: what a row's parameters say they carry, from bit 0 on. */
static uint32_t gcomp__pack(const gcomp__method *m, const double *param)
{
    uint64_t word = 0;
    int i, at = 0;
    for (i = 0; i < GCOMP_PARAMS; i++) {
        const gcomp__param *p = &m->param[i];
        if (!p->name || !p->bits) continue;
        if (p->kind == GCOMP__REAL || p->kind == GCOMP__AUTO) word |= (uint64_t)gcomp__bits((float)param[i]) << at;
        else if (p->kind == GCOMP__BLOCK) word |= (uint64_t)gcomp__log2((uint32_t)param[i]) << at;
        else word |= (uint64_t)(int64_t)param[i] << at;
        at += p->bits;
    }
    return (uint32_t)word;
}

static gcomp_result gcomp__unpack(const gcomp__method *m, uint32_t word, double *param)
{
    int i;
    for (i = 0; i < GCOMP_PARAMS; i++) {
        const gcomp__param *p = &m->param[i];
        uint32_t field = p->bits < 32 ? word & ((1u << p->bits) - 1) : word;
        const int number = p->kind == GCOMP__REAL || p->kind == GCOMP__AUTO;
        param[i] = p->initial;
        if (!p->name || !p->bits) continue;
        if (number && ((field & 0x7fffffffu) >= 0x7f800000u || field == 0x80000000u)) return GCOMP_CORRUPT;
        param[i] = number                    ? gcomp__short_decimal(gcomp__float(field))
                   : p->kind == GCOMP__BLOCK ? (field ? (double)((uint64_t)1 << field) : 0)
                                             : (double)field;
        if (!gcomp__in_range(p, param[i])) return GCOMP_CORRUPT;
        word = p->bits < 32 ? word >> p->bits : 0;
    }
    return word ? GCOMP_RESERVED_BITS : GCOMP_OK;
}

static void gcomp__form_of(const gcomp__method *m, const double *param, gcomp__form *form)
{
    memset(form, 0, sizeof *form);
    (m->form)(param, form);
}

/* NULL, or why parameters do not go together, or not as a sparse method's values. */
static const char *gcomp__refusal(const gcomp__method *m, const double *param, int values)
{
    gcomp__form form;
    if (m->refuse) {
        const char *why = (m->refuse)(param, values);
        if (why) return why;
    }
    if (!values) return NULL;
    gcomp__form_of(m, param, &form);
    return form.code ? "a sparse method's values are packed: they take no other code" : NULL;
}

/* Line i of a sample of `lines` lines of 16 elements, all of them if they are so few: p at not quite even distances, lest they
   meet columns. Returns how many there are in it. */
static size_t gcomp__sample_line(const gcomp__call *call, const gcomp_input *in, size_t n, size_t lines, size_t i, float *p)
{
    const size_t apart = gcomp__max(n / lines, 16);
    const uint32_t room = (uint32_t)gcomp__min(apart - 15, 1u << 20);
    const size_t at = i * apart + ((uint32_t)i * 2654435761u >> 7) % room, count = gcomp__min(16, n - at);
    gcomp_input line = *in;
    line.grad = (const uint8_t *)in->grad + at * gcomp__dtype_bytes(in->dtype);
    if (in->residual) line.residual = in->residual + at;
    (void)(call->set->common->scale_copy)(p, &line, 0, count, 1);
    return count;
}

/* Bytes of scales and of codes of n elements. */
static size_t gcomp__block_scales(const gcomp__form *form, size_t n)
{
    if (n == 0) return 0;
    return form->block ? gcomp__times(gcomp__pieces(n, form->block), form->scale_bytes) : form->scale_bytes;
}

static size_t gcomp__block_codes(const gcomp__form *form, size_t n)
{
    return gcomp__plus(gcomp__times(n / 16, form->code16), n % 16 ? gcomp__last_bytes(form->code16, n % 16) : 0);
}

/* What coded levels add at most: the ends of all chunks but the last, and a byte a segment, which is then packed. */
static size_t gcomp__code_bytes(const gcomp__form *form, size_t n)
{
    const size_t segment = form->code ? gcomp__segment_of(form) : 1;
    return form->code && n ? 8 * (gcomp__chunks(n) - 1) + gcomp__pieces(n, segment) : 0;
}

static size_t gcomp__form_bound(const gcomp__form *form, size_t n)
{
    return gcomp__plus(gcomp__plus(gcomp__block_scales(form, n), gcomp__code_bytes(form, n)), gcomp__block_codes(form, n));
}

static size_t gcomp__block_bound(const gcomp_codec *codec, size_t n)
{
    gcomp__form form;
    gcomp__form_of(gcomp__method_of(codec->method), codec->param, &form);
    return gcomp__form_bound(&form, n);
}

static size_t gcomp__block_scratch(const gcomp_codec *codec, size_t n)
{
    (void)codec;
    return gcomp__times(gcomp__chunks(n), sizeof(gcomp__measured));
}

static gcomp__measured *gcomp__part(const gcomp__encode_job *job, size_t chunk)
{
    return job->part ? job->part + chunk : job->one;
}

static void gcomp__measure_chunk(void *arg, size_t chunk)
{
    const gcomp__encode_job *job = (const gcomp__encode_job *)arg;
    size_t begin = chunk * GCOMP_CHUNK;
    (job->call->set->common->measure)(&job->in, begin, gcomp__min(job->n, begin + GCOMP_CHUNK), job->form.measure,
                                      gcomp__part(job, chunk));
}

static void gcomp__encode_chunk(void *arg, size_t chunk)
{
    const gcomp__encode_job *job = (const gcomp__encode_job *)arg;
    (job->call->set->common->encode)(job, chunk, gcomp__part(job, chunk));
}

/* The same with coded levels: packed at the end of the chunk's place, then coded to its beginning. */
static void gcomp__encode_coded_chunk(void *arg, size_t chunk)
{
    gcomp__encode_job job = *(const gcomp__encode_job *)arg;
    const gcomp__form *form = &job.form;
    const size_t segment = gcomp__segment_of(form), begin = chunk * GCOMP_CHUNK, count = gcomp__min(GCOMP_CHUNK, job.n - begin);
    uint8_t *ends = job.codes, *place = ends + 8 * (gcomp__chunks(job.n) - 1) + chunk * (GCOMP_CHUNK / segment);
    size_t bytes = 0;
    job.codes = place + (count + segment - 1) / segment;
    (job.call->set->common->encode)(&job, chunk, gcomp__part(&job, chunk));
    place += begin / 16 * form->code16;
    if (gcomp__part(&job, chunk)->worst < 0x7f800000u)
        bytes = (job.call->set->levels->code)(form, job.codes + begin / 16 * form->code16, count, place);
    if (begin + count == job.n) *job.last = bytes;
    else gcomp__put64(ends + 8 * chunk, bytes);
}

/* Moves the coded chunks together; returns the bytes of all and of the table of their ends. */
static size_t gcomp__join_chunks(const gcomp__encode_job *job)
{
    const size_t chunks = gcomp__chunks(job->n), table = 8 * (chunks - 1);
    const size_t place = GCOMP_CHUNK / 16 * job->form.code16 + GCOMP_CHUNK / gcomp__segment_of(&job->form);
    uint8_t *data = job->codes + table;
    size_t c, at = 0;
    for (c = 0; c < chunks; c++) {
        const size_t bytes = c + 1 < chunks ? (size_t)gcomp__get64(job->codes + 8 * c) : *job->last;
        memmove(data + at, data + c * place, bytes);
        at += bytes;
        if (c + 1 < chunks) gcomp__put64(job->codes + 8 * c, at);
    }
    return table + at;
}

/* Runs a task over all chunks and puts their measures together, in order of chunks. */
static void gcomp__measure_all(gcomp__encode_job *job, void (*task)(void *arg, size_t chunk), gcomp__measured *all)
{
    size_t chunks = gcomp__chunks(job->n), i;
    gcomp__measured *part = job->part, one;
    if (part) gcomp__run(job->call, chunks, task, job);
    memset(all, 0, sizeof *all);
    for (i = 0; i < chunks; i++) {
        const gcomp__measured *m = part ? part + i : &one;
        if (!part) {
            memset(&one, 0, sizeof one);
            job->one = &one;
            (task)(job, i);
        }
        all->sum += m->sum;
        GCOMP__PIN_SUM(all->sum);
        all->other += m->other;
        GCOMP__PIN_SUM(all->other);
        all->count += m->count;
        all->negative += m->negative;
        all->worst = m->worst > all->worst ? m->worst : all->worst;
        all->low = i == 0 || m->low < all->low ? m->low : all->low;
        all->high = i == 0 || m->high > all->high ? m->high : all->high;
    }
}

static gcomp_result gcomp__block_encode(const gcomp__call *call, const gcomp_codec *codec, const gcomp_input *in, size_t n,
                                        uint8_t *body, size_t capacity, size_t *bytes)
{
    size_t need, last = 0;
    gcomp__encode_job job;
    gcomp__measured all;
    memset(&job, 0, sizeof job);
    gcomp__form_of(gcomp__method_of(codec->method), codec->param, &job.form);
    need = gcomp__form_bound(&job.form, n);
    if (capacity < need) return GCOMP_DST_TOO_SMALL;
    job.call = call;
    job.kernels = (const gcomp__block_kernels *)call->kernels + job.form.kernel;
    job.in = *in;
    job.n = n;
    job.last = &last;
    job.scales = body;
    job.codes = body + gcomp__block_scales(&job.form, n);
    job.unit.lift = job.unit.inverse = 1;
    job.unit.levels = job.form.levels;
    job.unit.constant = job.form.constant;
    job.past = n >= GCOMP__FAR && !job.form.code;
    if (job.form.stochastic) job.unit.words = gcomp__stream(in->key.own, GCOMP__PURPOSE_ROUND);
    if (call->parallel.run && call->scratch_bytes / sizeof(gcomp__measured) >= gcomp__chunks(n))
        job.part = (gcomp__measured *)(void *)call->scratch;
    if (call->shared && n && !(job.form.levels > 0)) { /* a constant of the tensor, found before */
        job.unit.a = job.unit.constant = *call->shared;
        gcomp__put_scale(body, job.form.scale_bytes, &job.unit);
        job.given = 1;
    } else if (call->shared && n) {
        gcomp__step_of(&job.unit, (double)*call->shared, (double)*call->shared * (double)job.form.levels,
                       (double)job.form.levels);
        gcomp__put_scale(body, job.form.scale_bytes, &job.unit);
        job.given = 1;
    } else if (job.form.early && !job.form.block && n) {
        gcomp__measure_all(&job, gcomp__measure_chunk, &all);
        if (all.worst >= 0x7f800000u) return GCOMP_NOT_FINITE;
        (job.form.fit)(&job.form, &all, &job.unit);
        gcomp__put_scale(body, job.form.scale_bytes, &job.unit);
        job.given = 1;
    }
    gcomp__measure_all(&job, job.form.code ? gcomp__encode_coded_chunk : gcomp__encode_chunk, &all);
    if (all.worst >= 0x7f800000u) return GCOMP_NOT_FINITE;
    if (job.form.code && n) need = gcomp__block_scales(&job.form, n) + gcomp__join_chunks(&job);
    if (!job.form.early && job.form.scale_bytes && !job.form.block && n) {
        (job.form.fit)(&job.form, &all, &job.unit);
        gcomp__put_scale(body, job.form.scale_bytes, &job.unit);
    }
    *bytes = need;
    return GCOMP_OK;
}

/* Are all elements of an input finite? Parts of it, side by side. */
enum { GCOMP__FINITE_PARTS = 16 };
typedef struct gcomp__finite_job {
    const gcomp__common_kernels *common;
    gcomp_input in;
    size_t n;
    uint32_t worst[GCOMP__FINITE_PARTS];
} gcomp__finite_job;

static void gcomp__finite_part(void *arg, size_t part)
{
    gcomp__finite_job *job = (gcomp__finite_job *)arg;
    const size_t each = gcomp__round_up(gcomp__pieces(job->n, GCOMP__FINITE_PARTS), 16);
    const size_t begin = gcomp__min(each * part, job->n), end = gcomp__min(begin + each, job->n);
    gcomp__measured m;
    memset(&m, 0, sizeof m);
    if (begin < end) (job->common->measure)(&job->in, begin, end, GCOMP__MOST, &m);
    job->worst[part] = m.worst;
}

static int gcomp__all_finite(const gcomp__call *call, const gcomp_input *in, size_t n)
{
    gcomp__finite_job job;
    gcomp_input alone = *in;
    uint32_t worst = 0;
    size_t i;
    job.common = call->set->common;
    job.in = *in;
    job.n = n;
    gcomp__run(call, GCOMP__FINITE_PARTS, gcomp__finite_part, &job);
    for (i = 0; i < GCOMP__FINITE_PARTS; i++) worst = job.worst[i] > worst ? job.worst[i] : worst;
    if (worst < 0x7f800000u) return 1;
    if (!in->residual && in->scale == 1.0f) return 0;
    alone.residual = NULL; /* the sum alone may be too large */
    alone.scale = 1;
    if (in->residual && (job.common->worst)(in->residual, n) >= 0x7f800000u) return 0;
    return gcomp__all_finite(call, &alone, n);
}

/* The measures of a tensor in a step, for scales that workers share. One float a matrix of the stack stands for them. */
GCOMP__SHARED gcomp_result gcomp__look_at(gcomp__work *work, int measure, gcomp__measured *all)
{
    gcomp__encode_job look;
    memset(&look, 0, sizeof look);
    look.call = &work->call;
    look.in = work->in;
    look.n = work->n;
    look.form.measure = measure;
    if (work->call.parallel.run && work->call.scratch_bytes / sizeof(gcomp__measured) >= gcomp__chunks(work->n))
        look.part = (gcomp__measured *)(void *)work->call.scratch;
    gcomp__measure_all(&look, gcomp__measure_chunk, all);
    return all->worst >= 0x7f800000u ? GCOMP_NOT_FINITE : GCOMP_OK;
}

GCOMP__SHARED size_t gcomp__shared_count(const gcomp_codec *codec, size_t rows, size_t cols, int round, int odd)
{
    (void)odd;
    (void)codec;
    return round == 0 ? 1 : gcomp__times(rows, cols);
}

/* Subnormal ones are nothing: a transport built with -Ofast would lose them on its way. */
GCOMP__SHARED float gcomp__share(gcomp__work *work, float scale)
{
    size_t s;
    if (gcomp__bits(scale) < 1u << 23) scale = 0;
    for (s = 0; s < work->stack; s++) work->sums[0][s] = scale;
    return scale;
}

static gcomp_result gcomp__block_open(gcomp__view *view)
{
    double param[GCOMP_PARAMS];
    size_t scales, need;
    GCOMP__TRY(gcomp__unpack(view->method, view->a, param));
    if (gcomp__refusal(view->method, param, 0)) return GCOMP_CORRUPT;
    gcomp__form_of(view->method, param, &view->form);
    scales = gcomp__block_scales(&view->form, view->n);
    need = gcomp__plus(scales, gcomp__block_codes(&view->form, view->n));
    if (view->form.code && view->n) {
        need = gcomp__plus(scales, 8 * (gcomp__chunks(view->n) - 1));
        if (view->bytes < need) return GCOMP_TRUNCATED;
    } else if (view->bytes != need) return view->bytes < need ? GCOMP_TRUNCATED : GCOMP_TRAILING_BYTES;
    view->scales = view->body;
    view->codes = view->body + scales;
    view->shift = view->form.block ? gcomp__log2((uint32_t)view->form.block) : (unsigned)(sizeof(size_t) * 8 - 1);
    view->kernels = (const gcomp__block_kernels *)gcomp__kernels_of(view->set, view->method) + view->form.kernel;
    return GCOMP_OK;
}

/* Are all scales finite and not negative? `large`: some values may overflow. */
static gcomp_result gcomp__check_scales(const gcomp__view *view, int *large)
{
    const size_t bytes = view->form.scale_bytes;
    const uint8_t *s = view->scales;
    const uint64_t ones = 0x0101010101010101u;
    uint64_t none = 0, wide = 0; /* in the top bits of bytes: is one 255, at least 239? */
    uint32_t most = 0;           /* of powers of two: 8 bits of a float */
    for (; bytes == 1 && view->codes - s >= 8; s += 8) {
        const uint64_t x = gcomp__get64(s), low = x & ones * 0x7f;
        none |= (low + ones) & x;
        wide |= (low + ones * 17) & x;
    }
    if (wide & ones * 0x80) most = none & ones * 0x80 ? 255 : 239;
    for (; bytes == 1 && s < view->codes; s++) most = *s > most ? *s : most;
    for (; s < view->codes; s += bytes) {
        const uint32_t a = gcomp__get32(s), b = bytes == 8 ? gcomp__get32(s + 4) & 0x7fffffffu : 0;
        most = a > most ? a : most; /* negative ones are the largest */
        most = b > most ? b : most;
    }
    if (most >= (bytes == 1 ? 255 : 0x7f800000u)) return GCOMP_CORRUPT;
    *large |= most >= (bytes == 1 ? 239 : 0x77800000u);
    return GCOMP_OK;
}

/* Is there a code that is none? */
static int gcomp__bad_codes(const gcomp__view *view)
{
    const uint64_t ones = 0x0101010101010101u;
    const uint8_t *c = view->codes, *end = view->body + view->bytes;
    uint64_t bad = 0;
    if (view->form.check == GCOMP__PAIRS || view->form.check == GCOMP__UP_TO)
        return (view->set->common->no_number)(&view->form, c, (size_t)(end - c));
    if (view->form.check == GCOMP__EXPONENTS)
        for (; end - c >= 18; c += 18) {
            uint64_t x = ~gcomp__get64(c), y = ~gcomp__get64(c + 8); /* is a byte zero? */
            bad |= ((x - ones) & ~x & ones * 0x80) | ((y - ones) & ~y & ones * 0x80);
        }
    return bad != 0;
}

/* Are the decoded values finite? */
GCOMP__NOINLINE gcomp_result gcomp__look_at_values(const gcomp__view *view, size_t n)
{
    float tile[GCOMP__TILE];
    size_t i, count;
    for (i = 0; i < n; i += count) {
        count = gcomp__min(GCOMP__TILE, n - i);
        (view->kernels->decode)(view, i, count, tile, GCOMP__STORE, 1);
        if ((view->set->common->worst)(tile, count) >= 0x7f800000u) return GCOMP_CORRUPT;
    }
    return GCOMP_OK;
}

/* Coded levels: ends of chunks in order, segments to the last bit; with `look` decoded values finite. */
GCOMP__NOINLINE gcomp_result gcomp__check_coded(const gcomp__view *view, int look)
{
    const size_t chunks = gcomp__chunks(view->n), segment = gcomp__segment_of(&view->form);
    const uint8_t *data = view->codes + 8 * (chunks - 1), *at = data;
    uint64_t end = 0;
    size_t c, i, count;
    uint8_t codes[GCOMP__SEGMENT];
    gcomp__view part = *view;
    part.codes = codes;
    for (c = 0; c < chunks; c++) {
        const uint64_t stop = c + 1 < chunks ? gcomp__get64(view->codes + 8 * c) : (uint64_t)(view->body + view->bytes - data);
        if (stop < end || stop > (uint64_t)(view->body + view->bytes - data)) return GCOMP_CORRUPT;
        end = stop;
        for (i = c * GCOMP_CHUNK; i < gcomp__min(view->n, (c + 1) * GCOMP_CHUNK); i += count) {
            count = gcomp__min(segment, view->n - i);
            GCOMP__TRY((view->set->levels->read)(&view->form, count, &at, data + (size_t)end, codes));
            part.scales = view->scales + (i >> view->shift) * view->form.scale_bytes;
            if (look) GCOMP__TRY(gcomp__look_at_values(&part, count));
        }
        if (at != data + (size_t)end) return GCOMP_TRAILING_BYTES;
    }
    return GCOMP_OK;
}

/* Scales finite, decoded values finite, padding zero. */
static gcomp_result gcomp__block_check(const gcomp__view *view)
{
    const unsigned code16 = view->form.code16;
    size_t last = view->n % 16, used = last * code16 / 2 % 8, i;
    float tile[16];
    int look = view->form.check == GCOMP__LOOK;
    GCOMP__TRY(gcomp__check_scales(view, &look));
    if (view->form.code && view->n) return gcomp__check_coded(view, look);
    if (last && code16 < 16 && used) {
        uint8_t byte = view->body[view->bytes - 1];
        if (view->form.first_high ? byte & 0xffu >> used : (unsigned)byte >> used) return GCOMP_RESERVED_BITS;
    }
    if (gcomp__bad_codes(view)) return GCOMP_CORRUPT;
    if (last && code16 == 18) { /* a whole group: what lies behind the end is zero */
        (view->kernels->decode)(view, view->n - last, 16, tile, GCOMP__STORE, 1);
        for (i = last; i < 16; i++)
            if (gcomp__bits(tile[i])) return GCOMP_RESERVED_BITS;
    }
    return look ? gcomp__look_at_values(view, view->n) : GCOMP_OK;
}

/* Floats as they are. */
static gcomp_input gcomp__plain_input(const float *x)
{
    gcomp_input in;
    memset(&in, 0, sizeof in);
    in.grad = x;
    in.scale = 1;
    return in;
}

static gcomp__sink gcomp__sink_to(int ending, float *y, size_t n)
{
    gcomp__sink sink;
    memset(&sink, 0, sizeof sink);
    sink.ending = ending;
    sink.fresh = 1;
    sink.y = y;
    sink.n = n;
    sink.weight = 1;
    sink.scale = 1;
    return sink;
}

/* What a commit writes of a tensor: residual and mean. */
static gcomp__sink gcomp__sink_of(const gcomp__work *work)
{
    gcomp__sink sink = gcomp__sink_to(GCOMP__COMMIT, work->y, work->n);
    sink.grad = work->in.grad;
    sink.dtype = work->in.dtype;
    sink.scale = work->in.scale;
    sink.residual = work->residual;
    return sink;
}

typedef struct gcomp__absorb_job {
    const gcomp__common_kernels *common;
    const gcomp__sink *sink;
    size_t first;
} gcomp__absorb_job;

static void gcomp__absorb_chunk(void *arg, size_t task)
{
    const gcomp__absorb_job *job = (const gcomp__absorb_job *)arg;
    const gcomp__momentum *momentum = job->sink->momentum;
    const size_t chunk = job->first + task, begin = chunk * GCOMP_CHUNK;
    if (momentum) (job->common->advance)(momentum, begin, gcomp__min(momentum->n, begin + GCOMP_CHUNK));
    else (job->common->absorb)(job->sink, chunk);
}

/* All chunks of `n` elements: residual and mean without what was sent, or the sink's momentum. */
static void gcomp__absorb_all(const gcomp__call *call, const gcomp__sink *sink, size_t n)
{
    gcomp__absorb_job job;
    job.common = call->set->common;
    job.sink = sink;
    job.first = 0;
    gcomp__run(call, gcomp__chunks(n), gcomp__absorb_chunk, &job);
}

GCOMP__NOINLINE void gcomp__advance_all(const gcomp__call *call, const gcomp__momentum *d)
{
    gcomp__sink sink = gcomp__sink_to(GCOMP__COMMIT, NULL, d->n);
    sink.momentum = d;
    gcomp__absorb_all(call, &sink, d->n);
}

typedef struct gcomp__sink_job {
    const gcomp__common_kernels *common;
    const gcomp__level_kernels *levels;
    const void *kernels;
    const gcomp__sink *sink;
} gcomp__sink_job;

static void gcomp__sink_chunk(void *arg, size_t chunk)
{
    const gcomp__sink_job *job = (const gcomp__sink_job *)arg;
    (job->common->sink)(job->sink, chunk);
}

static void gcomp__sink_coded_chunk(void *arg, size_t chunk)
{
    const gcomp__sink_job *job = (const gcomp__sink_job *)arg;
    (job->levels->sink)(job->sink, chunk);
}

static void gcomp__block_decode(const gcomp__call *call, const gcomp__sink *sink)
{
    gcomp__sink_job job;
    gcomp__sink with = *sink;
    int coded = sink->own && sink->own->form.code;
    size_t w;
    for (w = 0; w < sink->count; w++) coded |= sink->views[w].form.code != 0;
    with.together = sink->ending == GCOMP__COMMIT && sink->dtype == GCOMP_F32 && sink->scale == 1.0f && sink->residual &&
                    sink->y && sink->own_at < sink->count;
    for (w = 0; w < sink->count && with.together; w++) with.together = sink->views[w].kernels == sink->views->kernels;
    job.common = call->set->common;
    job.levels = call->set->levels;
    job.sink = &with;
    gcomp__run(call, gcomp__chunks(sink->n), coded ? gcomp__sink_coded_chunk : gcomp__sink_chunk, &job);
}

#define GCOMP__BLOCK_FUNCTIONS \
    gcomp__block_bound, gcomp__block_scratch, gcomp__block_encode, gcomp__block_open, gcomp__block_check, gcomp__block_decode
#define GCOMP__NEVER_SUMS NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL /* `refuse` and `selector` come behind it */
#define GCOMP__NO_SUMS GCOMP__NEVER_SUMS, NULL, NULL
/* Parameters of a row: name, default, smallest, largest, bits in the payload's parameter word. */
#define GCOMP__NONE {NULL, 0, 0, 0, 0, 0, NULL, 0}
#define GCOMP__NO_PARAMS {GCOMP__NONE} /* missing ones are zero */
#define GCOMP__NUMBER(name, initial, low, high, bits) {name, GCOMP__REAL, initial, low, high, bits, NULL, 0}
#define GCOMP__COUNT(name, initial, low, high, bits) {name, GCOMP__WHOLE, initial, low, high, bits, NULL, 0}
#define GCOMP__BLOCKS_OR(name, initial, other) {name, GCOMP__BLOCK, initial, 16, GCOMP_CHUNK, 5, NULL, other}
#define GCOMP__BLOCKS(name, initial) GCOMP__BLOCKS_OR(name, initial, 0)
#define GCOMP__ONE_OF(name, initial, last, bits, choices) {name, GCOMP__CHOICE, initial, 0, last, bits, choices, 0}
#define GCOMP__CODE GCOMP__ONE_OF("code", 0, 3, 2, "packed|elias|rice|auto|")
#endif /* GCOMP__LAST */

/* >>method none: fp32 as it is. Gathered as a payload at the codec layer; in steps a sum of gradient / world. */
#define GCOMP__LIST_none(X) X(none)
GCOMP__INLINE void GCOMP__F(none_quant)(uint8_t *code, GCOMP__F(v) p, const gcomp__unit *u, size_t i)
{
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    float f[16];
    int j;
    (void)u;
    (void)i;
    GCOMP__F(store)(f, p);
    for (j = 0; j < 16; j++) gcomp__put_float(code + 4 * j, f[j]);
#else
    (void)u;
    (void)i;
    GCOMP__F(store)((float *)(void *)code, p);
#endif
}

GCOMP__INLINE GCOMP__F(v) GCOMP__F(none_deq)(const uint8_t *code, const gcomp__unit *u)
{
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    float f[16];
    int i;
    for (i = 0; i < 16; i++) f[i] = gcomp__get_float(code + 4 * i);
    (void)u;
    return GCOMP__F(load)(f);
#else
    (void)u;
    return GCOMP__F(load)((const float *)(const void *)code);
#endif
}
GCOMP__BLOCK_METHOD(none, 64, 0, GCOMP__MOST)

#ifdef GCOMP__LAST
typedef struct gcomp__sum_job {
    gcomp__work *work;
    const gcomp__common_kernels *common;
    size_t blocks; /* chunks in a task */
    uint32_t worst;
} gcomp__sum_job;

static size_t gcomp__none_sum_count(const gcomp_codec *codec, size_t rows, size_t cols, int round, int odd)
{
    (void)odd;
    (void)codec;
    return round == 0 ? gcomp__times(rows, cols) : 0;
}

static void gcomp__none_chunk(void *arg, size_t chunk)
{
    gcomp__sum_job *job = (gcomp__sum_job *)arg;
    gcomp__work *work = job->work;
    size_t begin = chunk * GCOMP_CHUNK, end = gcomp__min(work->n, begin + GCOMP_CHUNK);
    (job->common->scale_copy)(work->sums[0], &work->in, begin, end, work->part);
}

static gcomp_result gcomp__none_make(gcomp__work *work, int round)
{
    gcomp__sum_job job;
    (void)round;
    job.work = work;
    job.common = work->call.set->common;
    gcomp__run(&work->call, gcomp__chunks(work->n), gcomp__none_chunk, &job);
    /* part * p is finite where p is: it is enough to look at the product */
    return (job.common->worst)(work->sums[0], work->n) >= 0x7f800000u ? GCOMP_NOT_FINITE : GCOMP_OK;
}

/* What is finite on every worker stays finite, though a sum of parts of the largest floats may round up to infinity. */
static void gcomp__none_commit(gcomp__work *work)
{
    (work->call.set->common->saturate)(work->y, work->sums[0], work->n);
    if (work->residual) memset(work->residual, 0, 4 * work->n); /* what another codec of its list had kept was sent as well */
}

static void gcomp__none_form(const double *param, gcomp__form *form)
{
    (void)param;
    form->code16 = 64;
    form->check = GCOMP__UP_TO;
    form->last_code = 0x7f7fffff;
}

static const gcomp__method gcomp__row_none = {
    "none", 1, GCOMP__CONSERVES_ELEMENT | GCOMP__IDEMPOTENT | GCOMP__VALUES, {GCOMP__SUM, 0, 0}, GCOMP__NO_PARAMS,
    gcomp__none_form, GCOMP__BLOCK_FUNCTIONS,
    gcomp__none_sum_count, NULL, NULL, NULL, gcomp__none_make, gcomp__none_commit, NULL, NULL, NULL, NULL};
#endif

/* >>method fp16: IEEE binary16, nearest even, saturating at 65504; what is lost stays in the residual. */
#ifndef GCOMP_WITHOUT_FP16
#define GCOMP__LIST_fp16(X) X(fp16)
GCOMP__INLINE void GCOMP__F(fp16_quant)(uint8_t *code, GCOMP__F(v) p, const gcomp__unit *u, size_t i)
{
    (void)u;
    (void)i;
    GCOMP__F(store_half)(code, p);
}
GCOMP__INLINE GCOMP__F(v) GCOMP__F(fp16_deq)(const uint8_t *code, const gcomp__unit *u)
{
    (void)u;
    return GCOMP__F(load_half)(code);
}
GCOMP__BLOCK_METHOD(fp16, 32, 0, GCOMP__MOST)
#ifdef GCOMP__LAST
static void gcomp__fp16_form(const double *param, gcomp__form *form)
{
    (void)param;
    form->code16 = 32;
    form->check = GCOMP__UP_TO;
    form->last_code = 0x7bff;
}

static const gcomp__method gcomp__row_fp16 = {
    "fp16", 2, GCOMP__FEEDBACK | GCOMP__CONSERVES_ELEMENT | GCOMP__IDEMPOTENT | GCOMP__VALUES,
    {GCOMP__GATHER, 0, 0}, GCOMP__NO_PARAMS, gcomp__fp16_form, GCOMP__BLOCK_FUNCTIONS, GCOMP__NO_SUMS};
#endif
#else
#define GCOMP__LIST_fp16(X)
#endif

/* >>method bf16: the upper half of a float, nearest even, saturating; what is lost stays in the residual. */
#ifndef GCOMP_WITHOUT_BF16
#define GCOMP__LIST_bf16(X) X(bf16)
GCOMP__INLINE void GCOMP__F(bf16_quant)(uint8_t *code, GCOMP__F(v) p, const gcomp__unit *u, size_t i)
{
    (void)u;
    (void)i;
    GCOMP__F(store_bfloat)(code, p);
}
GCOMP__INLINE GCOMP__F(v) GCOMP__F(bf16_deq)(const uint8_t *code, const gcomp__unit *u)
{
    (void)u;
    return GCOMP__F(load_bfloat)(code);
}
GCOMP__BLOCK_METHOD(bf16, 32, 0, GCOMP__MOST)
#ifdef GCOMP__LAST
static void gcomp__bf16_form(const double *param, gcomp__form *form)
{
    (void)param;
    form->code16 = 32;
    form->check = GCOMP__UP_TO;
    form->last_code = 0x7f7f;
}

static const gcomp__method gcomp__row_bf16 = {
    "bf16", 3, GCOMP__FEEDBACK | GCOMP__CONSERVES_ELEMENT | GCOMP__IDEMPOTENT | GCOMP__VALUES,
    {GCOMP__GATHER, 0, 0}, GCOMP__NO_PARAMS, gcomp__bf16_form, GCOMP__BLOCK_FUNCTIONS, GCOMP__NO_SUMS};
#endif
#else
#define GCOMP__LIST_bf16(X)
#endif

/* >>method sign: s * sgn(p), s = |p|_1 / count of a block or of the tensor; sgn(0) = +1. Needs error feedback.
   |p - C(p)|^2 = (1 - d) |p|^2 with d = |p|_1^2 / (count * |p|_2^2).
   Karimireddy et al., ICML 2019; blocks: Zheng et al., NeurIPS 2019. */
#ifndef GCOMP_WITHOUT_SIGN
#define GCOMP__LIST_sign(X) X(sign)
GCOMP__INLINE void GCOMP__F(sign_quant)(uint8_t *code, GCOMP__F(v) p, const gcomp__unit *u, size_t i)
{
    (void)u;
    (void)i;
    gcomp__put16(code, GCOMP__F(lt0)(p));
}
GCOMP__INLINE GCOMP__F(v) GCOMP__F(sign_deq)(const uint8_t *code, const gcomp__unit *u)
{
    return GCOMP__F(flip)(GCOMP__F(splat)(u->a), gcomp__get16(code));
}
GCOMP__BLOCK_METHOD(sign, 2, 4, GCOMP__L1)
#ifdef GCOMP__LAST
static void gcomp__sign_fit(const gcomp__form *form, const gcomp__measured *m, gcomp__unit *u)
{
    (void)form;
    u->a = (float)(m->sum / (double)m->count);
}

static void gcomp__sign_form(const double *param, gcomp__form *form)
{
    form->code16 = 2;
    form->scale_bytes = 4;
    form->block = (size_t)param[0];
    form->measure = GCOMP__L1;
    form->fit = gcomp__sign_fit;
}

static const gcomp__method gcomp__row_sign = {"sign",
                                              4,
                                              GCOMP__FEEDBACK | GCOMP__CONSERVES_ELEMENT | GCOMP__VALUES,
                                              {GCOMP__GATHER, 0, 0},
                                              {GCOMP__BLOCKS("block", 1024)},
                                              gcomp__sign_form,
                                              GCOMP__BLOCK_FUNCTIONS,
                                              GCOMP__NO_SUMS};
#endif
#else
#define GCOMP__LIST_sign(X)
#endif

/* >>method signnorm: s * sgn(p), s = |p|_2 / sqrt(count): keeps the norm, as 1-bit Adam's transport does (DeepSpeed).
   |p - C(p)|^2 = 2 |p|^2 (1 - |p|_1 / (sqrt(count) |p|_2)): larger than sign's, and no contraction for sparse p.
   Tang et al., ICML 2021. Decodes as sign. */
#if !defined(GCOMP_WITHOUT_SIGN) && !defined(GCOMP_WITHOUT_SIGNNORM)
#define GCOMP__LIST_signnorm(X) X(signnorm)
GCOMP__BLOCK_ENCODE(signnorm, sign_quant, 2, 4, GCOMP__L2)
static const gcomp__block_kernels GCOMP__F(signnorm_kernels)[] = {GCOMP__BLOCK_OF(signnorm, sign)};
#ifdef GCOMP__LAST
static void gcomp__signnorm_fit(const gcomp__form *form, const gcomp__measured *m, gcomp__unit *u)
{
    (void)form;
    u->a = (float)gcomp__sqrt(m->sum / (double)m->count);
}

static void gcomp__signnorm_form(const double *param, gcomp__form *form)
{
    gcomp__sign_form(param, form);
    form->measure = GCOMP__L2;
    form->fit = gcomp__signnorm_fit;
}

static const gcomp__method gcomp__row_signnorm = {
    "signnorm", 8, GCOMP__FEEDBACK | GCOMP__CONSERVES_ELEMENT | GCOMP__VALUES, {GCOMP__GATHER, 0, 0},
    {GCOMP__BLOCKS("block", 1024)}, gcomp__signnorm_form,
    GCOMP__BLOCK_FUNCTIONS, GCOMP__NO_SUMS};
#endif
#else
#define GCOMP__LIST_signnorm(X)
#endif

/* >>method onebit: two values a block, the means of its elements >= 0 and of those < 0; a bit says which.
   They minimise the error of this partition: |p - C(p)|^2 = |p|^2 - n1 m1^2 - n0 m0^2. The paper's blocks are the columns of
   a matrix stored by columns; here they are consecutive elements: for a matrix stored by rows whose length is a power of two from
   16 to 65536, block= that length gives each row two values, which are the weights of one neuron where rows are outputs.
   Seide et al., Interspeech 2014. */
#ifndef GCOMP_WITHOUT_ONEBIT
#define GCOMP__LIST_onebit(X) X(onebit)
GCOMP__INLINE void GCOMP__F(onebit_quant)(uint8_t *code, GCOMP__F(v) p, const gcomp__unit *u, size_t i)
{
    (void)u;
    (void)i;
    gcomp__put16(code, GCOMP__F(lt0)(p));
}
GCOMP__INLINE GCOMP__F(v) GCOMP__F(onebit_deq)(const uint8_t *code, const gcomp__unit *u)
{
    return GCOMP__F(pick)(gcomp__get16(code), GCOMP__F(splat)(u->b), GCOMP__F(splat)(u->a));
}
GCOMP__BLOCK_METHOD(onebit, 2, 8, GCOMP__SIDES)
#ifdef GCOMP__LAST
static void gcomp__onebit_fit(const gcomp__form *form, const gcomp__measured *m, gcomp__unit *u)
{
    size_t others = m->count - m->negative;
    (void)form;
    u->a = others ? (float)(m->sum / (double)others) : 0;
    u->b = m->negative ? -(float)(m->other / (double)m->negative) : 0;
}

static void gcomp__onebit_form(const double *param, gcomp__form *form)
{
    form->code16 = 2;
    form->scale_bytes = 8;
    form->block = (size_t)param[0];
    form->measure = GCOMP__SIDES;
    form->fit = gcomp__onebit_fit;
}

static const gcomp__method gcomp__row_onebit = {
    "onebit", 7, GCOMP__FEEDBACK | GCOMP__CONSERVES_ELEMENT | GCOMP__VALUES, {GCOMP__GATHER, 0, 0},
    {GCOMP__BLOCKS("block", 1024)}, gcomp__onebit_form,
    GCOMP__BLOCK_FUNCTIONS, GCOMP__NO_SUMS};
#endif
#else
#define GCOMP__LIST_onebit(X)
#endif

/* >>method twobit: +t for p >= t, -t for p <= -t, else 0; codes 11, 10, 00, the first element in the highest bits of a byte:
   byte for byte what MXNet's kvstore packs. At most t of an element is sent a step; needs error feedback. threshold=auto: t is
   found, and comes before the codes. Strom, Interspeech 2015; apache/mxnet gradient_compression. */
#ifndef GCOMP_WITHOUT_TWOBIT
#define GCOMP__LIST_twobit(X) X(twobit)
GCOMP__INLINE void GCOMP__F(twobit_quant)(uint8_t *code, GCOMP__F(v) p, const gcomp__unit *u, size_t i)
{
    GCOMP__F(w) b = GCOMP__F(words)(p), size = GCOMP__F(wand)(b, GCOMP__F(wsplat)(0x7fffffff));
    GCOMP__F(w) fires = GCOMP__F(wgt)(size, GCOMP__F(wsplat)((int32_t)(gcomp__bits(u->constant) - 1)));
    (void)i; /* -1 and -2 are the codes 11 and 10 */
    GCOMP__F(put2)(code, GCOMP__F(wand)(fires, GCOMP__F(wsub)(GCOMP__F(wsar)(b, 31), GCOMP__F(wsplat)(1))), 1);
}
GCOMP__INLINE GCOMP__F(v) GCOMP__F(twobit_value)(const uint8_t *code, float threshold)
{
    GCOMP__F(w) c = GCOMP__F(get2)(code, 1), minus = GCOMP__F(wsplat)((int32_t)(gcomp__bits(threshold) ^ 0x80000000u));
    return GCOMP__F(floats)(GCOMP__F(wand)(GCOMP__F(wxor)(minus, GCOMP__F(wshl)(c, 31)), GCOMP__F(wsar)(c, 1)));
}
GCOMP__INLINE GCOMP__F(v) GCOMP__F(twobit_deq)(const uint8_t *code, const gcomp__unit *u)
{
    return GCOMP__F(twobit_value)(code, u->constant);
}
GCOMP__INLINE GCOMP__F(v) GCOMP__F(twobit_auto_deq)(const uint8_t *code, const gcomp__unit *u)
{
    return GCOMP__F(twobit_value)(code, u->a);
}
GCOMP__BLOCK_ENCODE(twobit, twobit_quant, 4, 0, GCOMP__MOST)
GCOMP__BLOCK_DECODE(twobit, twobit_deq, 4, 0)
GCOMP__BLOCK_DECODE(twobit_auto, twobit_auto_deq, 4, 4)
static const gcomp__block_kernels GCOMP__F(twobit_kernels)[] = {GCOMP__BLOCK_OF(twobit, twobit),
                                                                GCOMP__BLOCK_OF(twobit, twobit_auto)};
#ifdef GCOMP__LAST
static void gcomp__twobit_form(const double *param, gcomp__form *form)
{
    form->code16 = 4;
    form->check = GCOMP__PAIRS;
    form->first_high = 1;
    form->constant = (float)param[0];
    if (param[0] != 0) return;
    form->kernel = 1;
    form->scale_bytes = 4;
    form->early = 1;
}

/* >>threshold of twobit, found: the t with the least |p - C(p)|^2, or with rate > 0 the one that so large a part of the elements
   reaches, as an evenly spread sample sees it: of 65536 elements, all of fewer; for a rate, which is no matter of a few
   neighbours, of n / 64 (4096 at least, all of fewer). */
enum { GCOMP__TWOBIT_BINS = 512 };

/* How many lines of 16 are looked at. */
static size_t gcomp__twobit_lines(size_t n, double rate)
{
    const size_t some = rate > 0 ? gcomp__min(gcomp__max(n / 64, 4096), 65536) / 16 * 16 : 65536;
    return gcomp__pieces(gcomp__min(n, some), 16);
}

/* Counts keys (bits of |p|) of a sample: bin (key - base) >> shift of those from base on, the last bin for all above. NULL: does
   not count. Returns the largest key. */
static uint32_t gcomp__twobit_count(const gcomp__call *call, const gcomp_input *in, size_t n, size_t lines, uint32_t base,
                                    unsigned shift, uint32_t *bins)
{
    const size_t step = 16 * lines >= n ? 16 : 1; /* all are looked at: more at once */
    uint32_t most = 0;
    size_t i, j, count;
    float p[256];
    if (bins) memset(bins, 0, 4 * GCOMP__TWOBIT_BINS);
    for (i = 0; i < lines; i += step) {
        uint32_t worst;
        if (step > 1) {
            gcomp_input part = *in;
            count = gcomp__min(16 * step, n - 16 * i);
            part.grad = (const uint8_t *)in->grad + 16 * i * gcomp__dtype_bytes(in->dtype);
            if (in->residual) part.residual = in->residual + 16 * i;
            worst = (call->set->common->scale_copy)(p, &part, 0, count, 1);
        } else {
            count = gcomp__sample_line(call, in, n, lines, i, p);
            worst = (call->set->common->worst)(p, count);
        }
        most = worst > most ? worst : most;
        for (j = 0; bins && j < count; j++) {
            uint32_t key = gcomp__bits(p[j]) & 0x7fffffffu, bin = (key - base) >> shift;
            if (key && key < 0x7f800000u && key >= base) bins[bin < GCOMP__TWOBIT_BINS ? bin : GCOMP__TWOBIT_BINS - 1]++;
        }
    }
    return most;
}

/* By rate: first the octave, then one of its 512 parts. By error: of 16 parts of each of the 32 largest octaves the one whose
   lower edge t takes most away: 2 t sum|p| - t^2 count of what reaches it. Counts alone decide: the bits are the same on all. */
static float gcomp__twobit_find(const gcomp__call *call, const gcomp_input *in, size_t n, double rate)
{
    const unsigned shift = rate > 0 ? 14 : 19;
    const size_t lines = gcomp__twobit_lines(n, rate);
    uint32_t bins[GCOMP__TWOBIT_BINS], octave, base, edge, best = 0;
    double count = 0, sum = 0, most = 0, wanted = rate * (double)gcomp__min(n, 16 * lines);
    int b;
    octave = gcomp__twobit_count(call, in, n, lines, 0, 23, rate > 0 ? bins : NULL);
    if (octave == 0 || octave >= 0x7f800000u) return 1; /* all zero, or refused */
    octave >>= 23;
    for (b = 0; rate > 0 && b < 255; b++) count += bins[b];
    wanted = wanted < count ? wanted : count;
    for (count = 0; rate > 0 && count + bins[octave] < wanted; octave--) count += bins[octave];
    base = rate > 0 ? octave << 23 : octave > 31 ? (octave - 31) << 23 : 0;
    (void)gcomp__twobit_count(call, in, n, lines, base, shift, bins);
    for (b = GCOMP__TWOBIT_BINS - 1, count = 0; b >= 0; b--) {
        double low, high, gain;
        if (!bins[b]) continue;
        edge = base + ((uint32_t)b << shift);
        count += bins[b];
        if (rate > 0) {
            best = edge;
            if (count >= wanted) break;
            continue;
        }
        low = (double)gcomp__float(edge);
        high = (double)gcomp__float(edge + (1u << shift) - 1);
        sum += bins[b] * (low + high) / 2;
        GCOMP__PIN_SUM(sum);
        gain = low * (2 * sum - low * count);
        if (gain > most) best = edge;
        if (gain > most) most = gain;
    }
    return gcomp__float(best ? best : 1);
}

static gcomp_result gcomp__twobit_encode(const gcomp__call *call, const gcomp_codec *codec, const gcomp_input *in, size_t n,
                                         uint8_t *body, size_t capacity, size_t *bytes)
{
    gcomp__call with = *call;
    float threshold;
    if (codec->param[0] == 0 && n) {
        threshold = gcomp__twobit_find(call, in, n, codec->param[1]);
        with.shared = &threshold;
    }
    return gcomp__block_encode(&with, codec, in, n, body, capacity, bytes);
}

static const char *gcomp__twobit_refuse(const double *param, int values)
{
    (void)values;
    return param[0] != 0 && param[1] != 0 ? "twobit:rate finds a threshold: it goes with threshold=auto" : NULL;
}

static const gcomp__method gcomp__row_twobit = {
    "twobit", 10, GCOMP__FEEDBACK | GCOMP__CONSERVES_ELEMENT | GCOMP__VALUES, {GCOMP__GATHER, 0, 0},
    {{"threshold", GCOMP__AUTO, 0.5, 1e-22, 1e22, 32, NULL, 0}, GCOMP__NUMBER("rate", 0, 0, 1, 0)},
    gcomp__twobit_form, gcomp__block_bound, gcomp__block_scratch, gcomp__twobit_encode, gcomp__block_open, gcomp__block_check,
    gcomp__block_decode, GCOMP__NEVER_SUMS, gcomp__twobit_refuse, NULL};
#endif
#else
#define GCOMP__LIST_twobit(X)
#endif

/* >>method threshold1: MXNet's 1 bit: +1 for p > t, else -1; the first element in the highest bit of a byte. The value is 1
   whatever the threshold is: use it where gradients are of that size, with error feedback. No threshold is found for it: 0 is
   the one of least error, always. apache/mxnet gradient_compression. */
#ifndef GCOMP_WITHOUT_THRESHOLD1
#define GCOMP__LIST_threshold1(X) X(threshold1)
GCOMP__INLINE void GCOMP__F(threshold1_quant)(uint8_t *code, GCOMP__F(v) p, const gcomp__unit *u, size_t i)
{
    (void)i;
    gcomp__put16(code, GCOMP__F(lt0)(GCOMP__F(mirror)(GCOMP__F(sub)(GCOMP__F(splat)(u->constant), p))));
}
GCOMP__INLINE GCOMP__F(v) GCOMP__F(threshold1_deq)(const uint8_t *code, const gcomp__unit *u)
{
    (void)u;
    return GCOMP__F(mirror)(GCOMP__F(flip)(GCOMP__F(splat)(1), ~gcomp__get16(code) & 0xffffu));
}
GCOMP__BLOCK_METHOD(threshold1, 2, 0, GCOMP__MOST)
#ifdef GCOMP__LAST
static void gcomp__threshold1_form(const double *param, gcomp__form *form)
{
    form->code16 = 2;
    form->first_high = 1;
    form->constant = (float)param[0];
}

static const gcomp__method gcomp__row_threshold1 = {
    "threshold1", 11, GCOMP__FEEDBACK | GCOMP__CONSERVES_ELEMENT | GCOMP__VALUES, {GCOMP__GATHER, 0, 0},
    {GCOMP__NUMBER("threshold", 0, 0, 1e22, 32)}, gcomp__threshold1_form,
    GCOMP__BLOCK_FUNCTIONS, GCOMP__NO_SUMS};
#endif
#else
#define GCOMP__LIST_threshold1(X)
#endif

/* >>method vote: sgn(p) as one bit, sgn(0) = +1, without a scale. The mean of payloads is what most of them say, +1 or -1; of a
   tie +1. Keeps no residual: what is sent has no unit. Bernstein, Wang, Azizzadenesheli, Anandkumar: signSGD, ICML 2018. */
#ifndef GCOMP_WITHOUT_VOTE
#define GCOMP__LIST_vote(X) X(vote)
#ifndef GCOMP__VOTE_TYPES
#define GCOMP__VOTE_TYPES
enum { GCOMP__VOTE_PLANES = 40 };

typedef struct gcomp__vote_kernels {
    gcomp__block_kernels block;
    void (*majority)(const gcomp__sink *sink, size_t begin, size_t end); /* into y */
} gcomp__vote_kernels;
#endif

GCOMP__INLINE void GCOMP__F(vote_quant)(uint8_t *code, GCOMP__F(v) p, const gcomp__unit *u, size_t i)
{
    (void)u;
    (void)i;
    gcomp__put16(code, GCOMP__F(lt0)(p));
}
GCOMP__INLINE GCOMP__F(v) GCOMP__F(vote_deq)(const uint8_t *code, const gcomp__unit *u)
{
    (void)u;
    return GCOMP__F(flip)(GCOMP__F(splat)(1), gcomp__get16(code));
}
GCOMP__BLOCK_ENCODE(vote, vote_quant, 2, 0, GCOMP__MOST)
GCOMP__BLOCK_DECODE(vote, vote_deq, 2, 0)

/* The bits of 512 elements from `at` on as one vector, or the first bytes of them with zeros behind. */
GCOMP__INLINE GCOMP__F(w) GCOMP__F(vote_bits)(const gcomp__sink *sink, size_t w, size_t at, size_t bytes)
{
    const uint8_t *codes = sink->payloads ? (const uint8_t *)sink->payloads[w] + GCOMP__HEADER : sink->views[w].codes;
    float bits[16];
    if (bytes == sizeof bits) return GCOMP__F(words)(GCOMP__F(load)((const float *)(const void *)(codes + at / 8)));
    memset(bits, 0, sizeof bits);
    memcpy(bits, codes + at / 8, bytes);
    return GCOMP__F(words)(GCOMP__F(load)(bits));
}

/* >>kernel majority: counts the negative votes of 512 elements at once, bit k of all counters in plane k. They start where
   just enough votes carry into the last plane, which then is the result. Two payloads go through one full adder. */
static void GCOMP__F(vote_majority)(const gcomp__sink *sink, size_t begin, size_t end)
{
    const size_t count = sink->count, enough = count / 2 + 1;
    const GCOMP__F(v) one = GCOMP__F(splat)(1);
    GCOMP__F(w) planes[GCOMP__VOTE_PLANES];
    uint64_t start;
    size_t i, j, w;
    int last = 0, k;
    while (((uint64_t)1 << last) < enough) last++;
    start = ((uint64_t)1 << last) - enough;
    for (i = begin; i < end; i += GCOMP__TILE) {
        const size_t some = gcomp__min(GCOMP__TILE, end - i), bytes = (some + 7) / 8;
        GCOMP__F(w) low = GCOMP__F(wsplat)(-(int32_t)(start & 1));
        int32_t result[16];
        for (k = 1; k <= last; k++) planes[k] = GCOMP__F(wsplat)(-(int32_t)(start >> k & 1));
        for (w = 0; w < count; w += 2) {
            GCOMP__F(w) a = GCOMP__F(vote_bits)(sink, w, i, bytes), carry = GCOMP__F(wand)(low, a);
            low = GCOMP__F(wxor)(low, a);
            if (w + 1 < count) {
                GCOMP__F(w) b = GCOMP__F(vote_bits)(sink, w + 1, i, bytes);
                carry = GCOMP__F(wor)(carry, GCOMP__F(wand)(low, b));
                low = GCOMP__F(wxor)(low, b);
            }
            for (k = 1; k <= last; k++) {
                GCOMP__F(w) plane = planes[k];
                planes[k] = GCOMP__F(wxor)(plane, carry);
                carry = GCOMP__F(wand)(plane, carry);
            }
        }
        GCOMP__F(store_words)(result, last ? planes[last] : low);
        for (j = 0; j + 64 <= some; j += 64) { /* in long turns: how fast short ones are depends on where they come to lie */
            const uint8_t *at = (const uint8_t *)result + j / 8;
            float *y = sink->y + i + j;
            GCOMP__UNROLL for (k = 0; k < 4; k++) GCOMP__F(store)(y + 16 * k, GCOMP__F(flip)(one, gcomp__get16(at + 2 * k)));
        }
        for (; j < some; j += 16) {
            GCOMP__F(v) y = GCOMP__F(flip)(one, gcomp__get16((const uint8_t *)result + j / 8));
            if (some - j < 16) GCOMP__F(store_some)(sink->y + i + j, y, some - j);
            else GCOMP__F(store)(sink->y + i + j, y);
        }
    }
}
static const gcomp__vote_kernels GCOMP__F(vote_kernels) = {GCOMP__BLOCK_OF(vote, vote), GCOMP__F(vote_majority)};

#ifdef GCOMP__LAST
static void gcomp__vote_chunk(void *arg, size_t chunk)
{
    const gcomp__sink_job *job = (const gcomp__sink_job *)arg;
    size_t begin = chunk * GCOMP_CHUNK;
    (((const gcomp__vote_kernels *)job->kernels)->majority)(job->sink, begin, gcomp__min(job->sink->n, begin + GCOMP_CHUNK));
}

/* The residual in a pass of its own, before y, which may be the gradient. One payload alone, and votes among payloads of other
   methods, are numbers like any. */
static void gcomp__vote_decode(const gcomp__call *call, const gcomp__sink *sink)
{
    gcomp__sink rest = *sink;
    gcomp__sink_job job;
    if (sink->ending != GCOMP__COMMIT && !sink->payloads) {
        gcomp__block_decode(call, sink);
        return;
    }
    rest.y = NULL;
    if (sink->ending == GCOMP__COMMIT && sink->residual) gcomp__block_decode(call, &rest);
    if (!sink->y || !sink->count) return;
    job.common = call->set->common;
    job.kernels = call->kernels;
    job.sink = sink;
    gcomp__run(call, gcomp__chunks(sink->n), gcomp__vote_chunk, &job);
}

static void gcomp__vote_form(const double *param, gcomp__form *form)
{
    (void)param;
    form->code16 = 2;
}

static const gcomp__method gcomp__row_vote = {
    "vote", 9, GCOMP__MAJORITY | GCOMP__CONSERVES_ELEMENT | GCOMP__IDEMPOTENT, {GCOMP__GATHER, 0, 0}, GCOMP__NO_PARAMS,
    gcomp__vote_form, gcomp__block_bound, gcomp__block_scratch, gcomp__block_encode, gcomp__block_open, gcomp__block_check,
    gcomp__vote_decode, GCOMP__NO_SUMS};
#endif
#else
#define GCOMP__LIST_vote(X)
#endif

/* ---------------- levels: p / d as a whole number q, decoded as d * q. What int, qsgd and terngrad share: rounded to nearest
   or with the probability of the fraction, in 2, 4, 8 or 16 bits, as two's complement. They differ in how d is found. */
#if !defined(GCOMP_WITHOUT_INT) || !defined(GCOMP_WITHOUT_QSGD) || !defined(GCOMP_WITHOUT_TERNGRAD)
GCOMP__INLINE GCOMP__F(v) GCOMP__F(times8)(const uint8_t *code, float a)
{
    return GCOMP__F(mul)(GCOMP__F(number)(GCOMP__F(get8)(code)), GCOMP__F(splat)(a));
}
#define GCOMP__LEVELS(bits, to_codes, times) \
    GCOMP__INLINE void GCOMP__F(nearest##bits##_quants)(uint8_t *code, GCOMP__F(v) x, GCOMP__F(v) y, const gcomp__unit *u, \
                                                        size_t i) \
    { \
        const GCOMP__F(w) q = GCOMP__F(nearest)(x), r = GCOMP__F(nearest)(y); \
        (void)u; \
        (void)i; \
        to_codes(bits, 0); \
    } \
    GCOMP__INLINE void GCOMP__F(stochastic##bits##_quants)(uint8_t *code, GCOMP__F(v) x, GCOMP__F(v) y, const gcomp__unit *u, \
                                                           size_t i) \
    { \
        GCOMP__F(w) q, r; \
        if (bits == 2) x = GCOMP__F(clamp)(x, 65536.0f), y = GCOMP__F(clamp)(y, 65536.0f); \
        GCOMP__F(dither)(&q, &r, x, y, u, i); \
        to_codes(bits, 16); \
    } \
    GCOMP__INLINE GCOMP__F(v) GCOMP__F(levels##bits##_deq)(const uint8_t *code, const gcomp__unit *u) \
    { \
        return times; \
    } \
    GCOMP__EARLY_ENCODE(nearest##bits, 2 * bits, 1, 1) \
    GCOMP__EARLY_ENCODE(stochastic##bits, 2 * bits, 1, 65536.0f) \
    GCOMP__BLOCK_DECODE(levels##bits, levels##bits##_deq, 2 * bits, 4)
#define GCOMP__AS_BYTES(bits, shift) GCOMP__F(puts##bits)(code, GCOMP__F(limit)(q, r, shift, -128, 127))
#define GCOMP__AS_BITS(bits, shift) \
    GCOMP__F(puts##bits)(code, GCOMP__F(blow)(GCOMP__F(limit)(q, r, shift, -128, 127), bits))
#define GCOMP__AS_WORDS(bits, shift) \
    GCOMP__F(put16s)(code, shift ? GCOMP__F(wsar)(q, shift) : q); \
    GCOMP__F(put16s)(code + 32, shift ? GCOMP__F(wsar)(r, shift) : r)
GCOMP__LEVELS(2, GCOMP__AS_BITS, GCOMP__F(times2)(code, u->a))
GCOMP__LEVELS(4, GCOMP__AS_BITS, GCOMP__F(times4)(code, u->a))
GCOMP__LEVELS(8, GCOMP__AS_BYTES, GCOMP__F(times8)(code, u->a))
GCOMP__LEVELS(16, GCOMP__AS_WORDS, GCOMP__F(mul)(GCOMP__F(number)(GCOMP__F(get16s)(code)), GCOMP__F(splat)(u->a)))
#undef GCOMP__AS_BYTES
#undef GCOMP__AS_BITS
#undef GCOMP__AS_WORDS
#undef GCOMP__LEVELS
#define GCOMP__LEVEL_KERNELS \
    GCOMP__BLOCK_OF(nearest2, levels2), GCOMP__BLOCK_OF(nearest4, levels4), GCOMP__BLOCK_OF(nearest8, levels8), \
        GCOMP__BLOCK_OF(nearest16, levels16), GCOMP__BLOCK_OF(stochastic2, levels2), GCOMP__BLOCK_OF(stochastic4, levels4), \
        GCOMP__BLOCK_OF(stochastic8, levels8), GCOMP__BLOCK_OF(stochastic16, levels16)

#ifdef GCOMP__LAST
/* Codes of 2 << size bits; stochastic 1 for random rounding. */
static void gcomp__levels_form(gcomp__form *form, unsigned size, int stochastic, double levels, size_t block)
{
    form->kernel = size + (stochastic ? 4 : 0);
    form->code16 = 4u << size;
    form->scale_bytes = 4;
    form->block = block;
    form->early = 1;
    form->stochastic = stochastic;
    form->levels = (float)levels;
}
#endif
#endif

/* >>method int: q = round(p / d), d = max |p| / (2^(bits-1) - 1) of a block, nearest or stochastic (then unbiased).
   range=affine: the codes run from the smallest to the largest p of the block: c + d * q, -2^(bits-1) <= q < 2^(bits-1).
   |p - C(p)| <= d / 2, stochastic < d. Of normal p, 4 bits lose .0138 of |p|^2 in blocks of 128 and .016 in those of 256: a
   block has 256 elements with 8 bits, 128 with 4 and 2. code: entropy-coded as in qsgd, if symmetric. Dettmers, ICLR 2016;
   blocks and formats as in DeepSpeed, CGX, bitsandbytes. */
#ifndef GCOMP_WITHOUT_INT
#define GCOMP__LIST_int(X) X(int)
#define GCOMP__AFFINE(bits) \
    GCOMP__INLINE void GCOMP__F(near_affine##bits##_quants)(uint8_t *code, GCOMP__F(v) x, GCOMP__F(v) y, const gcomp__unit *u, \
                                                            size_t i) \
    { \
        const GCOMP__F(w) q = GCOMP__F(nearest)(x), r = GCOMP__F(nearest)(y); \
        (void)u; \
        (void)i; \
        GCOMP__F(puts##bits)(code, GCOMP__F(blow)(GCOMP__F(limit)(q, r, 0, -(1 << (bits - 1)), (1 << (bits - 1)) - 1), bits)); \
    } \
    GCOMP__INLINE void GCOMP__F(random_affine##bits##_quants)(uint8_t *code, GCOMP__F(v) x, GCOMP__F(v) y, const gcomp__unit *u, \
                                                              size_t i) \
    { \
        GCOMP__F(w) q, r; \
        GCOMP__F(dither)(&q, &r, x, y, u, i); \
        GCOMP__F(puts##bits)(code, GCOMP__F(blow)(GCOMP__F(limit)(q, r, 16, -(1 << (bits - 1)), (1 << (bits - 1)) - 1), bits)); \
    } \
    GCOMP__INLINE GCOMP__F(v) GCOMP__F(affine##bits##_deq)(const uint8_t *code, const gcomp__unit *u) \
    { \
        return GCOMP__F(add)(GCOMP__F(times##bits)(code, u->a), GCOMP__F(splat)(u->b)); \
    } \
    GCOMP__EARLY_ENCODE(near_affine##bits, 2 * bits, 2, 1) \
    GCOMP__EARLY_ENCODE(random_affine##bits, 2 * bits, 2, 65536.0f) \
    GCOMP__BLOCK_DECODE(affine##bits, affine##bits##_deq, 2 * bits, 8)
GCOMP__AFFINE(2)
GCOMP__AFFINE(4)
GCOMP__AFFINE(8)
#undef GCOMP__AFFINE
static const gcomp__block_kernels GCOMP__F(int_kernels)[] = {
    GCOMP__LEVEL_KERNELS,
    GCOMP__BLOCK_OF(near_affine2, affine2),   GCOMP__BLOCK_OF(near_affine4, affine4),   GCOMP__BLOCK_OF(near_affine8, affine8),
    GCOMP__BLOCK_OF(random_affine2, affine2), GCOMP__BLOCK_OF(random_affine4, affine4), GCOMP__BLOCK_OF(random_affine8, affine8)};

#ifdef GCOMP__LAST
static void gcomp__int_fit(const gcomp__form *form, const gcomp__measured *m, gcomp__unit *u)
{
    double most = (double)gcomp__float(m->worst);
    if (gcomp__simple_step(u, m->worst, form->levels)) return;
    gcomp__step_of(u, most / (double)form->levels, most, (double)form->levels);
}

static void gcomp__affine_fit(const gcomp__form *form, const gcomp__measured *m, gcomp__unit *u)
{
    double low = (double)m->low, high = (double)m->high, steps = 2 * (double)form->levels + 1;
    if (gcomp__simple_range(u, m->worst, m->low, m->high, form->levels)) return;
    gcomp__step_of(u, (high - low) / steps, high - low, steps);
    u->b = (float)(low + ((double)form->levels + 1) * (double)u->a);
    if (m->worst >= 0x7f000000u) { /* differences may overflow: a quarter of everything, and only codes -levels .. levels */
        const double most = 3.4028234663852886e38;
        float end;
        u->a = (float)((high - low) / (steps - 1));
        if ((double)u->a * (double)form->levels > most) u->a = gcomp__float(gcomp__bits(u->a) - 1);
        end = u->a * form->levels;
        GCOMP__PIN_SUM(end);
        u->b = (float)((low + high) / 2);
        while ((double)u->b + (double)end > most || (double)u->b - (double)end < -most)
            u->b = gcomp__float(gcomp__bits(u->b) - 1); /* all values are finite */
        u->lift = 0.25f;
        u->inverse = u->a > 0 ? gcomp__float(gcomp__bits((float)(4 / (double)u->a)) - 4) : 0;
    }
    u->offset = u->b * u->lift;
}

static void gcomp__int_form(const double *param, gcomp__form *form)
{
    const unsigned size = 2 - (unsigned)param[0];
    const int stochastic = param[2] != 0;
    gcomp__levels_form(form, size, stochastic, (double)((1 << ((2 << size) - 1)) - 1), (size_t)param[1]);
    form->fit = gcomp__int_fit;
    form->steps = 1;
    form->code = (unsigned)param[4];
    if (param[3] != 0) {
        form->kernel = 8 + size + (stochastic ? 3 : 0);
        form->scale_bytes = 8;
        form->measure = GCOMP__RANGE;
        form->fit = gcomp__affine_fit;
        form->steps = 0;
    }
}

static const char *gcomp__int_refuse(const double *param, int values)
{
    (void)values;
    return param[3] != 0 && param[4] != 0 ? "int:code codes levels around zero: it goes with range=symmetric" : NULL;
}

static const gcomp__method gcomp__row_int = {
    "int", 16, GCOMP__FEEDBACK | GCOMP__CONSERVES_ELEMENT | GCOMP__VALUES, {GCOMP__GATHER, 0, 0},
    {GCOMP__ONE_OF("bits", 0, 2, 2, "8|4|2|"), GCOMP__BLOCKS_OR("block", 256, 128),
     GCOMP__ONE_OF("rounding", 0, 1, 0, "nearest|stochastic|"), GCOMP__ONE_OF("range", 0, 1, 1, "symmetric|affine|"),
     GCOMP__CODE},
    gcomp__int_form, GCOMP__BLOCK_FUNCTIONS, GCOMP__NEVER_SUMS, gcomp__int_refuse, NULL};
#endif
#else
#define GCOMP__LIST_int(X)
#endif

/* >>method qsgd: q = levels * p / norm rounded up or down with the probability of the fraction: unbiased. The norm is the
   largest |p| of the bucket, or its L2 norm: then E|p - C(p)|^2 <= min(n / s^2, sqrt(n) / s) |p|^2 for s levels.
   Sent is norm / s. code=elias is the paper's bit stream, rice smaller and faster, auto the smallest (see >>levels).
   Alistarh et al., NeurIPS 2017 (also known as linear dithering). */
#ifndef GCOMP_WITHOUT_QSGD
#define GCOMP__LIST_qsgd(X) X(qsgd)
static const gcomp__block_kernels GCOMP__F(qsgd_kernels)[] = {GCOMP__LEVEL_KERNELS};
#ifdef GCOMP__LAST
static void gcomp__qsgd_fit(const gcomp__form *form, const gcomp__measured *m, gcomp__unit *u)
{
    double norm = form->measure == GCOMP__L2 ? gcomp__sqrt(m->sum) : (double)gcomp__float(m->worst);
    if (form->steps && gcomp__simple_step(u, m->worst, form->levels)) return;
    gcomp__step_of(u, norm / (double)form->levels, norm, (double)form->levels);
    if ((double)u->a * (double)form->levels > 3.4028234663852886e38) { /* the norm is above every float, but no p is */
        double top = (double)(int)(3.4028234663852886e38 / (double)u->a);
        u->a = (float)(3.4028234663852886e38 / top);
        if ((double)u->a * top > 3.4028234663852886e38) u->a = gcomp__float(gcomp__bits(u->a) - 1);
        u->inverse = gcomp__float(gcomp__bits(1 / u->a) - 4); /* p * inverse stays below top */
    }
}

static void gcomp__qsgd_form(const double *param, gcomp__form *form)
{
    double s = param[0];
    gcomp__levels_form(form, s > 127 ? 3 : s > 7 ? 2 : s > 1 ? 1 : 0, 1, s, (size_t)param[2]);
    form->measure = param[1] != 0 ? GCOMP__L2 : GCOMP__MOST;
    form->steps = form->measure == GCOMP__MOST;
    form->fit = gcomp__qsgd_fit;
    form->code = (unsigned)param[3];
}

static const gcomp__method gcomp__row_qsgd = {
    "qsgd", 13, GCOMP__UNBIASED | GCOMP__CONSERVES_ELEMENT | GCOMP__VALUES, {GCOMP__GATHER, 0, 0},
    {GCOMP__COUNT("levels", 7, 1, 32767, 15), GCOMP__ONE_OF("norm", 0, 1, 0, "max|l2|"), GCOMP__BLOCKS("bucket", 512),
     GCOMP__CODE},
    gcomp__qsgd_form, GCOMP__BLOCK_FUNCTIONS, GCOMP__NO_SUMS};
#endif
#else
#define GCOMP__LIST_qsgd(X)
#endif

/* >>method terngrad: s * sgn(p) with probability |p| / s, else 0. p is clipped at clip * sigma (0: not), sigma its standard
   deviation; s is the largest |p| then. Unbiased but for the clipping; E|p - C(p)|^2 = s |p|_1 - |p|_2^2 of the clipped p.
   share=1: in steps all workers take the largest s of all, found in a round before the gather, and clip at that one. Wen et al.,
   NeurIPS 2017. */
#ifndef GCOMP_WITHOUT_TERNGRAD
#define GCOMP__LIST_terngrad(X) X(terngrad)
static const gcomp__block_kernels GCOMP__F(terngrad_kernels)[] = {GCOMP__LEVEL_KERNELS};
#ifdef GCOMP__LAST
static void gcomp__terngrad_fit(const gcomp__form *form, const gcomp__measured *m, gcomp__unit *u)
{
    double most = (double)gcomp__float(m->worst), n = (double)m->count, mean = m->other / n, clip = most;
    if (form->constant > 0 && m->count >= 32) {
        double variance = m->sum / n - mean * mean;
        clip = variance > 0 ? (double)form->constant * gcomp__sqrt(variance) : 0;
        if (clip > most || clip < most * (1.0 / 1048576)) clip = most; /* a constant would be clipped away */
    }
    gcomp__step_of(u, clip, clip, 1);
}

static void gcomp__terngrad_form(const double *param, gcomp__form *form)
{
    gcomp__levels_form(form, 0, 1, 1, (size_t)param[1]);
    form->measure = GCOMP__MOMENTS;
    form->constant = (float)param[0];
    form->fit = gcomp__terngrad_fit;
    form->code = (unsigned)param[3];
}

/* share=1: the scale that this worker would take. */
static gcomp_result gcomp__terngrad_make(gcomp__work *work, int round)
{
    gcomp__measured all;
    gcomp__form form;
    gcomp__unit u;
    (void)round;
    gcomp__form_of(gcomp__method_of(work->codec->method), work->codec->param, &form);
    GCOMP__TRY(gcomp__look_at(work, form.measure, &all));
    (form.fit)(&form, &all, &u);
    (void)gcomp__share(work, u.a);
    return GCOMP_OK;
}

static void gcomp__terngrad_adapt(const gcomp_codec *codec, uint8_t *rounds, unsigned *flags)
{
    (void)flags;
    if (codec->param[2] == 0) return;
    rounds[0] = GCOMP__MAX;
    rounds[1] = GCOMP__GATHER;
}

static const char *gcomp__terngrad_misfit(const gcomp_codec *codec, size_t world)
{
    (void)world;
    if (codec->param[2] == 0) return NULL;
    if (codec->param[1] != 0) return "terngrad:share=1 shares one scale: it takes block=tensor";
    return codec->param[3] != 0 ? "terngrad:share=1 announces its length before it knows the scale: it takes code=packed" : NULL;
}

static const char *gcomp__terngrad_refuse(const double *param, int values)
{
    return values && param[2] != 0 ? "terngrad:share=1 shares the scale of a tensor, not that of a sparse method's values" : NULL;
}

static const gcomp__method gcomp__row_terngrad = {
    "terngrad", 12, GCOMP__CONSERVES_ELEMENT | GCOMP__VALUES, {GCOMP__GATHER, 0, 0},
    {GCOMP__NUMBER("clip", 2.5, 0, 1e6, 0), GCOMP__BLOCKS("block", 0), GCOMP__COUNT("share", 0, 0, 1, 0), GCOMP__CODE},
    gcomp__terngrad_form, GCOMP__BLOCK_FUNCTIONS,
    gcomp__shared_count, NULL, NULL, NULL, gcomp__terngrad_make, NULL, gcomp__terngrad_adapt, gcomp__terngrad_misfit,
    gcomp__terngrad_refuse, NULL};
#endif
#else
#define GCOMP__LIST_terngrad(X)
#endif

/* >>method natural: sign and exponent: one of the two powers of two around p, up with the probability of the mantissa's
   fraction. Unbiased, E|p - C(p)|^2 <= |p|^2 / 8; 9 bits: 16 exponents, then 16 signs. Above 2^127 it saturates.
   Horvath et al., MSML 2022. */
#ifndef GCOMP_WITHOUT_NATURAL
#define GCOMP__LIST_natural(X) X(natural)
GCOMP__INLINE void GCOMP__F(natural_quant)(uint8_t *code, GCOMP__F(v) p, const gcomp__unit *u, size_t i)
{
    GCOMP__F(w) e = GCOMP__F(raised)(GCOMP__F(wshr)(GCOMP__F(words)(GCOMP__F(abs)(p)), 7), u, i);
    if (GCOMP__F(wties)(e, e)) e = GCOMP__F(settled)(e, GCOMP__F(mantissa_rest)(p), u, i);
    GCOMP__F(put8)(code, GCOMP__F(wmin)(GCOMP__F(wshr)(e, 16), GCOMP__F(wsplat)(254)));
    gcomp__put16(code + 16, GCOMP__F(lt0)(p));
}
GCOMP__INLINE GCOMP__F(v) GCOMP__F(natural_deq)(const uint8_t *code, const gcomp__unit *u)
{
    GCOMP__F(w) e = GCOMP__F(wand)(GCOMP__F(get8)(code), GCOMP__F(wsplat)(255));
    (void)u;
    return GCOMP__F(flip)(GCOMP__F(floats)(GCOMP__F(wshl)(e, 23)), gcomp__get16(code + 16));
}
GCOMP__BLOCK_METHOD(natural, 18, 0, GCOMP__MOST)
#ifdef GCOMP__LAST
static void gcomp__natural_form(const double *param, gcomp__form *form)
{
    (void)param;
    form->code16 = 18;
    form->check = GCOMP__EXPONENTS;
    form->stochastic = 1;
}

static const gcomp__method gcomp__row_natural = {
    "natural", 15, GCOMP__UNBIASED | GCOMP__CONSERVES_ELEMENT | GCOMP__VALUES, {GCOMP__GATHER, 0, 0},
    GCOMP__NO_PARAMS, gcomp__natural_form, GCOMP__BLOCK_FUNCTIONS, GCOMP__NO_SUMS};
#endif
#else
#define GCOMP__LIST_natural(X)
#endif

/* >>method naturaldither: sgn(p) * norm * one of 0, 2^(1-s), ..., 1/2, 1, the neighbours of |p| / norm chosen with the
   probability that makes it unbiased. As few levels as s give the error of 2^(s-1) equal ones. Norm as in qsgd.
   Horvath et al., MSML 2022. */
#ifndef GCOMP_WITHOUT_NATURALDITHER
#define GCOMP__LIST_naturaldither(X) X(naturaldither)
/* The level of |x|, with 16 places: above 2^(1-s) by exponent and mantissa; below in proportion, which is more than that there,
   and is cut off above. */
GCOMP__INLINE GCOMP__F(v) GCOMP__F(natural_fine)(GCOMP__F(v) x, const gcomp__unit *u)
{
    const GCOMP__F(v) factor = GCOMP__F(floats)(GCOMP__F(wsplat)((127 + (int32_t)u->levels - 1 + 16) << 23));
    return GCOMP__F(min)(GCOMP__F(mul)(GCOMP__F(abs)(x), factor), GCOMP__F(splat)(65536.0f));
}
GCOMP__INLINE GCOMP__F(w) GCOMP__F(natural_level)(GCOMP__F(v) x, const gcomp__unit *u, size_t i)
{
    const int32_t lowest = 128 - (int32_t)u->levels; /* exponent of 2^(1-s) */
    const GCOMP__F(w) below = GCOMP__F(trunc)(GCOMP__F(natural_fine)(x, u)), b = GCOMP__F(words)(GCOMP__F(abs)(x));
    const GCOMP__F(w) above = GCOMP__F(wsub)(GCOMP__F(wshr)(b, 7), GCOMP__F(wsplat)((lowest - 1) << 16));
    return GCOMP__F(raised)(GCOMP__F(wmax)(below, above), u, i);
}
GCOMP__RARE GCOMP__F(w) GCOMP__F(natural_settled)(GCOMP__F(w) sum, GCOMP__F(v) x, const gcomp__unit *u, size_t i)
{
    const GCOMP__F(v) fine = GCOMP__F(natural_fine)(x, u), rest = GCOMP__F(sub)(fine, GCOMP__F(number)(GCOMP__F(trunc)(fine)));
    const uint32_t low = GCOMP__F(lt0)(GCOMP__F(sub)(fine, GCOMP__F(splat)(65536.0f)));
    return GCOMP__F(settled)(sum, GCOMP__F(pick)(low, rest, GCOMP__F(mantissa_rest)(x)), u, i);
}
GCOMP__INLINE GCOMP__F(w) GCOMP__F(natural_code)(GCOMP__F(w) sum, GCOMP__F(v) x, const gcomp__unit *u)
{
    const GCOMP__F(w) q = GCOMP__F(wmin)(GCOMP__F(wshr)(sum, 16), GCOMP__F(wsplat)((int32_t)u->levels));
    return GCOMP__F(signed)(q, GCOMP__F(wsar)(GCOMP__F(words)(x), 31));
}
GCOMP__INLINE void GCOMP__F(natural_codes)(GCOMP__F(w) *q, GCOMP__F(w) *r, GCOMP__F(v) x, GCOMP__F(v) y, const gcomp__unit *u,
                                           size_t i)
{
    *q = GCOMP__F(natural_level)(x, u, i);
    *r = GCOMP__F(natural_level)(y, u, i + 16);
    if (GCOMP__F(wties)(*q, *r)) {
        *q = GCOMP__F(natural_settled)(*q, x, u, i);
        *r = GCOMP__F(natural_settled)(*r, y, u, i + 16);
    }
    *q = GCOMP__F(natural_code)(*q, x, u);
    *r = GCOMP__F(natural_code)(*r, y, u);
}
GCOMP__INLINE GCOMP__F(v) GCOMP__F(natural_value)(GCOMP__F(w) c, const gcomp__unit *u)
{
    GCOMP__F(w) sign = GCOMP__F(wsar)(c, 31), q = GCOMP__F(signed)(c, sign), sent = GCOMP__F(wgt)(q, GCOMP__F(wsplat)(0));
    GCOMP__F(w) e = GCOMP__F(wshl)(GCOMP__F(wadd)(q, GCOMP__F(wsplat)(127 - (int32_t)u->levels)), 23);
    e = GCOMP__F(wand)(GCOMP__F(wor)(e, GCOMP__F(wshl)(sign, 31)), sent);
    return GCOMP__F(mul)(GCOMP__F(floats)(e), GCOMP__F(splat)(u->a));
}
GCOMP__INLINE void GCOMP__F(dither4_quants)(uint8_t *code, GCOMP__F(v) x, GCOMP__F(v) y, const gcomp__unit *u, size_t i)
{
    GCOMP__F(w) q, r;
    GCOMP__F(natural_codes)(&q, &r, x, y, u, i);
    GCOMP__F(puts4)(code, GCOMP__F(blow)(GCOMP__F(limit)(q, r, 0, -128, 127), 4));
}
GCOMP__INLINE void GCOMP__F(dither8_quants)(uint8_t *code, GCOMP__F(v) x, GCOMP__F(v) y, const gcomp__unit *u, size_t i)
{
    GCOMP__F(w) q, r;
    GCOMP__F(natural_codes)(&q, &r, x, y, u, i);
    GCOMP__F(puts8)(code, GCOMP__F(limit)(q, r, 0, -128, 127));
}
GCOMP__INLINE GCOMP__F(v) GCOMP__F(dither4_deq)(const uint8_t *code, const gcomp__unit *u)
{
    return GCOMP__F(natural_value)(GCOMP__F(get4)(code), u);
}
GCOMP__INLINE GCOMP__F(v) GCOMP__F(dither8_deq)(const uint8_t *code, const gcomp__unit *u)
{
    return GCOMP__F(natural_value)(GCOMP__F(get8)(code), u);
}
GCOMP__EARLY_ENCODE(dither4, 8, 1, 1)
GCOMP__BLOCK_DECODE(dither4, dither4_deq, 8, 4)
GCOMP__EARLY_ENCODE(dither8, 16, 1, 1)
GCOMP__BLOCK_DECODE(dither8, dither8_deq, 16, 4)
static const gcomp__block_kernels GCOMP__F(naturaldither_kernels)[] = {GCOMP__BLOCK_OF(dither4, dither4),
                                                                       GCOMP__BLOCK_OF(dither8, dither8)};
#ifdef GCOMP__LAST
static void gcomp__naturaldither_fit(const gcomp__form *form, const gcomp__measured *m, gcomp__unit *u)
{
    double norm = form->measure == GCOMP__L2 ? gcomp__sqrt(m->sum) : (double)gcomp__float(m->worst);
    gcomp__step_of(u, norm, norm, 1);
}

static void gcomp__naturaldither_form(const double *param, gcomp__form *form)
{
    form->kernel = param[0] > 7;
    form->code16 = param[0] > 7 ? 16 : 8;
    form->check = param[0] > 7 ? GCOMP__LOOK : GCOMP__ALL_CODES;
    form->scale_bytes = 4;
    form->block = (size_t)param[2];
    form->measure = param[1] != 0 ? GCOMP__L2 : GCOMP__MOST;
    form->early = form->stochastic = 1;
    form->levels = (float)param[0];
    form->fit = gcomp__naturaldither_fit;
    form->code = (unsigned)param[3];
}

static const gcomp__method gcomp__row_naturaldither = {
    "naturaldither", 14, GCOMP__UNBIASED | GCOMP__CONSERVES_ELEMENT | GCOMP__VALUES, {GCOMP__GATHER, 0, 0},
    {GCOMP__COUNT("levels", 7, 1, 100, 7), GCOMP__ONE_OF("norm", 0, 1, 0, "max|l2|"), GCOMP__BLOCKS("bucket", 512), GCOMP__CODE},
    gcomp__naturaldither_form, GCOMP__BLOCK_FUNCTIONS, GCOMP__NO_SUMS};
#endif
#else
#define GCOMP__LIST_naturaldither(X)
#endif

/* ---------------- small floats: what fp8 and mx share. Code: sign, exponent, mantissa; rounded to nearest even, saturating. */
#if !defined(GCOMP_WITHOUT_FP8) || !defined(GCOMP_WITHOUT_MX)
/* The code of |x|, times 2^(7 - mantissa): a float is added whose last bit is the step of the code, so that the sum is rounded to
   it. Steps above the power of two are the low half of the sum; its high half is the exponent, times 2^7, and is counted in steps
   of the code too. `mantissa` bits and the exponent's bias are constants. */
GCOMP__INLINE GCOMP__F(w) GCOMP__F(small_float)(GCOMP__F(v) x, int mantissa, int bias)
{
    const int cut = 23 - mantissa, least = 128 - bias; /* exponent of the smallest normal number, biased as a float's */
    const int32_t steps = 65536 - ((least + cut) << mantissa); /* makes that exponent count as 0; is even */
    const GCOMP__F(v) up = GCOMP__F(floats)(GCOMP__F(wsplat)((127 + cut) * 0x800000 + steps));
    GCOMP__F(w) power = GCOMP__F(wand)(GCOMP__F(words)(x), GCOMP__F(wsplat)(0x7f800000));
    power = GCOMP__F(wmax)(power, GCOMP__F(wsplat)(least << 23));
    return GCOMP__F(whalves)(GCOMP__F(words)(GCOMP__F(plus)(GCOMP__F(floats)(power), up, GCOMP__F(abs)(x))), 1 << (cut - 16));
}

/* The codes of x and y, of `bits` bits: none above `most` without its sign. */
GCOMP__INLINE GCOMP__F(b) GCOMP__F(small_floats)(GCOMP__F(v) x, GCOMP__F(v) y, int mantissa, int bias, int bits, int most)
{
    const GCOMP__F(w) q = GCOMP__F(small_float)(x, mantissa, bias), r = GCOMP__F(small_float)(y, mantissa, bias);
    return GCOMP__F(bor)(GCOMP__F(limit)(q, r, 7 - mantissa, -128, most), GCOMP__F(marks)(x, y, bits - 1));
}

/* Back: with another place and bias it is a half. */
#define GCOMP__FROM_SMALL(load, mantissa, bias) \
    GCOMP__F(mul)(GCOMP__F(load)(code, 10 - mantissa), GCOMP__F(splat)((float)(1 << (15 - bias))))
#define GCOMP__SMALL_FLOAT(name, mantissa, bias, bits, most, puts, load) \
    GCOMP__INLINE void GCOMP__F(name##_quants)(uint8_t *code, GCOMP__F(v) x, GCOMP__F(v) y, const gcomp__unit *u, size_t i) \
    { \
        (void)u; \
        (void)i; \
        GCOMP__F(puts)(code, GCOMP__F(small_floats)(x, y, mantissa, bias, bits, most)); \
    } \
    GCOMP__INLINE GCOMP__F(v) GCOMP__F(name##_deq)(const uint8_t *code, const gcomp__unit *u) \
    { \
        return GCOMP__F(mul)(GCOMP__FROM_SMALL(load, mantissa, bias), GCOMP__F(splat)(u->a)); \
    }
#endif

/* >>method fp8: 8-bit floats of a block whose largest |p| becomes the largest finite one: format e4m3 (448) or e5m2 (57344).
   |p - C(p)| <= 2^-4 |p| (e5m2: 2^-3), below the smallest normal a fixed step. Micikevicius et al., 2022. */
#ifndef GCOMP_WITHOUT_FP8
#define GCOMP__LIST_fp8(X) X(fp8)
GCOMP__SMALL_FLOAT(e4m3, 3, 7, 8, 127, puts8, load_short)
GCOMP__SMALL_FLOAT(e5m2, 2, 15, 8, 127, puts8, load_short)
GCOMP__EARLY_ENCODE(e4m3, 16, 1, 1)
GCOMP__BLOCK_DECODE(e4m3, e4m3_deq, 16, 4)
GCOMP__EARLY_ENCODE(e5m2, 16, 1, 1)
GCOMP__BLOCK_DECODE(e5m2, e5m2_deq, 16, 4)
static const gcomp__block_kernels GCOMP__F(fp8_kernels)[] = {GCOMP__BLOCK_OF(e4m3, e4m3), GCOMP__BLOCK_OF(e5m2, e5m2)};
#ifdef GCOMP__LAST
static void gcomp__fp8_fit(const gcomp__form *form, const gcomp__measured *m, gcomp__unit *u)
{
    double most = (double)gcomp__float(m->worst);
    if (gcomp__simple_step(u, m->worst, form->levels)) return;
    gcomp__step_of(u, most / (double)form->levels, most, (double)form->levels);
}

static void gcomp__fp8_form(const double *param, gcomp__form *form)
{
    form->kernel = param[0] != 0;
    form->code16 = 16;
    form->scale_bytes = 4;
    form->block = (size_t)param[1];
    form->early = 1;
    form->levels = param[0] != 0 ? 57344.0f : 448.0f;
    form->check = GCOMP__UP_TO;
    form->last_code = param[0] != 0 ? 0x7b : 0x7e;
    form->steps = 1;
    form->fit = gcomp__fp8_fit;
}

static const gcomp__method gcomp__row_fp8 = {
    "fp8", 17, GCOMP__FEEDBACK | GCOMP__CONSERVES_ELEMENT | GCOMP__VALUES, {GCOMP__GATHER, 0, 0},
    {GCOMP__ONE_OF("format", 0, 1, 1, "e4m3|e5m2|"), GCOMP__BLOCKS("block", 256)}, gcomp__fp8_form,
    GCOMP__BLOCK_FUNCTIONS, GCOMP__NO_SUMS};
#endif
#else
#define GCOMP__LIST_fp8(X)
#endif

/* >>method mx: microscaling: blocks of 32 share a power of two X, as one byte (E8M0); elements are e2m1 (4 bits), e2m3 or e3m2
   (6 bits), e4m3, e5m2 or int8 (k / 64). X = 2^(floor(log2 max |p|) - largest exponent of the format); elements between the
   largest value and twice that exponent's range saturate. OCP Microscaling Formats 1.0, 2023. */
#ifndef GCOMP_WITHOUT_MX
#define GCOMP__LIST_mx(X) X(mx)
#ifndef GCOMP__MX_VALUES
#define GCOMP__MX_VALUES
/* 0, .5, 1, 1.5, 2, 3, 4, 6; with the sign */
static const int32_t gcomp__mx_values[16] = {
    0,           0x3f000000,  0x3f800000,  0x3fc00000,  0x40000000,  0x40400000,  0x40800000,  0x40c00000,
    -0x7fffffff - 1, -0x41000000, -0x40800000, -0x40400000, -0x40000000, -0x3fc00000, -0x3f800000, -0x3f400000};
#endif
GCOMP__SMALL_FLOAT(mx_e2m3, 3, 1, 6, 31, puts6, load_six)
GCOMP__SMALL_FLOAT(mx_e3m2, 2, 3, 6, 31, puts6, load_six)
GCOMP__SMALL_FLOAT(mx_e4m3, 3, 7, 8, 0x7e, puts8, load_short)
GCOMP__SMALL_FLOAT(mx_e5m2, 2, 15, 8, 0x7b, puts8, load_short)
GCOMP__INLINE void GCOMP__F(mx_e2m1_quants)(uint8_t *code, GCOMP__F(v) x, GCOMP__F(v) y, const gcomp__unit *u, size_t i)
{
    (void)u;
    (void)i;
    GCOMP__F(puts4)(code, GCOMP__F(small_floats)(x, y, 1, 1, 4, 7));
}
GCOMP__INLINE GCOMP__F(v) GCOMP__F(mx_e2m1_deq)(const uint8_t *code, const gcomp__unit *u)
{
    return GCOMP__F(mul)(GCOMP__F(floats)(GCOMP__F(lookup4)(gcomp__mx_values, code)), GCOMP__F(splat)(u->a));
}
GCOMP__INLINE void GCOMP__F(mx_int8_quants)(uint8_t *code, GCOMP__F(v) x, GCOMP__F(v) y, const gcomp__unit *u, size_t i)
{
    const GCOMP__F(v) steps = GCOMP__F(splat)(64);
    const GCOMP__F(w) q = GCOMP__F(nearest)(GCOMP__F(mul)(x, steps)), r = GCOMP__F(nearest)(GCOMP__F(mul)(y, steps));
    (void)u;
    (void)i;
    GCOMP__F(puts8)(code, GCOMP__F(limit)(q, r, 0, -127, 127));
}
GCOMP__INLINE GCOMP__F(v) GCOMP__F(mx_int8_deq)(const uint8_t *code, const gcomp__unit *u)
{
    GCOMP__F(v) q = GCOMP__F(mul)(GCOMP__F(number)(GCOMP__F(get8)(code)), GCOMP__F(splat)(1.0f / 64));
    return GCOMP__F(mul)(q, GCOMP__F(splat)(u->a));
}

#define GCOMP__MX(name, code16) \
    static void GCOMP__F(name##_encode)(const gcomp__span *span) \
    { \
        GCOMP__F(mx_driver)(span, GCOMP__F(name##_quants), code16); \
    } \
    GCOMP__BLOCK_DECODE(name, name##_deq, code16, 1)
GCOMP__MX(mx_e2m1, 8)
GCOMP__MX(mx_e4m3, 16)
GCOMP__MX(mx_e5m2, 16)
GCOMP__MX(mx_int8, 16)
GCOMP__MX(mx_e2m3, 12)
GCOMP__MX(mx_e3m2, 12)
#undef GCOMP__MX
static const gcomp__block_kernels GCOMP__F(mx_kernels)[] = {
    GCOMP__BLOCK_OF(mx_e2m1, mx_e2m1), GCOMP__BLOCK_OF(mx_e4m3, mx_e4m3), GCOMP__BLOCK_OF(mx_e5m2, mx_e5m2),
    GCOMP__BLOCK_OF(mx_int8, mx_int8), GCOMP__BLOCK_OF(mx_e2m3, mx_e2m3), GCOMP__BLOCK_OF(mx_e3m2, mx_e3m2)};
#ifdef GCOMP__LAST
static void gcomp__mx_form(const double *param, gcomp__form *form)
{
    static const int largest[] = {2, 8, 15, 0, 2, 4}, last[] = {0, 0x7e, 0x7b, 0, 0, 0};
    form->kernel = (unsigned)param[0];
    form->code16 = param[0] == 0 ? 8 : param[0] < 4 ? 16 : 12;
    form->scale_bytes = 1;
    form->block = 32;
    form->early = 1;
    form->constant = (float)largest[(int)param[0]];
    form->last_code = last[(int)param[0]];
    form->check = form->last_code ? GCOMP__UP_TO : GCOMP__ALL_CODES;
}

static const gcomp__method gcomp__row_mx = {
    "mx", 18, GCOMP__FEEDBACK | GCOMP__CONSERVES_ELEMENT | GCOMP__VALUES, {GCOMP__GATHER, 0, 0},
    {GCOMP__ONE_OF("format", 0, 5, 3, "e2m1|e4m3|e5m2|int8|e2m3|e3m2|")}, gcomp__mx_form,
    GCOMP__BLOCK_FUNCTIONS, GCOMP__NO_SUMS};
#endif
#else
#define GCOMP__LIST_mx(X)
#endif
#undef GCOMP__SMALL_FLOAT
#undef GCOMP__FROM_SMALL

/* >>hadamard: rotations that make the coordinates of a vector nearly normal. One is H D: D turns
   signs at random, H is the Hadamard transform of the piece, log2(size) additions an element. One
   is enough where no element is large beside the rest. Of one large element H D makes coordinates
   of one size, of two large elements coordinates of two sizes. There the rotation is H D' R G D: D'
   turns other signs, G is the transform of each group of 512 elements (a smaller piece is a group),
   and R turns element j of a group together with element j + half of it. Without R, coordinates
   would be multiples of a large element; many would be 0 but for what the small elements add, and
   the small elements would come back too large. The way back is D G R D' H, since H H x = size * x,
   G G x = group * x, R R x = (1 + lean^2) x. */
#ifndef GCOMP_WITHOUT_EDEN
/* >>kernel signs: 16 random signs, those of elements i .. i + 15, in the top bits of words; doubling the words gives the next
   16, as long as i + 16 is no multiple of 256: element i's is bit 15 - i / 16 % 16 of draw i / 256 * 16 + i % 16. They are drawn
   at the first element, and at multiples of GCOMP__SIGNS for the next ones, of which `left` follow. */
#ifndef GCOMP__SIGNS
#define GCOMP__SIGNS 4096 /* elements; `draws` has GCOMP__SIGN_WORDS */
#define GCOMP__SIGN_WORDS (GCOMP__SIGNS / 32 + 16)
#endif
GCOMP__INLINE GCOMP__F(w) GCOMP__F(signs)(uint32_t *draws, uint64_t words, size_t i, size_t left, int first)
{
    uint32_t *at = draws + i % GCOMP__SIGNS / 256 * 8;
    GCOMP__F(w) w;
    size_t k;
    if (first || i % GCOMP__SIGNS == 0) {
        const size_t count = gcomp__min(left, GCOMP__SIGNS - i % GCOMP__SIGNS);
        GCOMP__F(draw)(at, words, i / 256 * 16, (i % 256 + count + 255) / 256 * 16);
    }
    w = GCOMP__F(wshl)(GCOMP__F(halves)(at), 16);
    for (k = i / 16 % 16; k; k--) w = GCOMP__F(wadd)(w, w);
    return w;
}

GCOMP__INLINE GCOMP__F(v) GCOMP__F(turn)(GCOMP__F(v) x, GCOMP__F(w) signs)
{
    const GCOMP__F(w) top = GCOMP__F(wsplat)(-0x7fffffff - 1);
    return GCOMP__F(floats)(GCOMP__F(wxor)(GCOMP__F(words)(x), GCOMP__F(wand)(signs, top)));
}

/* >>kernel rotate: the Hadamard transform of x, not normalised: levels of a + b and a - b, from the largest stride to 1. `size`
   is a power of two, at least 16. Fetches some of what is next. */
static void GCOMP__F(level)(float *x, size_t half)
{
    float *y = x + half;
    size_t i;
    for (i = 0; i + 16 <= half; i += 16) {
        const GCOMP__F(v) a = GCOMP__F(load)(x + i), b = GCOMP__F(load)(y + i);
        GCOMP__F(store)(x + i, GCOMP__F(add)(a, b));
        GCOMP__F(store)(y + i, GCOMP__F(sub)(a, b));
    }
    for (; i < half; i++) GCOMP__LEVEL(float, x[i], y[i], gcomp__plus1, gcomp__less1)
}

static void GCOMP__F(rotate)(float *x, size_t size, gcomp__ahead *next)
{
    const size_t columns = GCOMP__F(columns), base = GCOMP__F(base);
    gcomp__ahead ahead = *next; /* in registers, which no store changes */
    size_t span, singles = 0, i, j;
    for (span = size; span > (size < base ? 1 : base); span /= 2) singles++;
    if (size >= base) singles %= 3;
    for (span = size; singles; singles--, span /= 2)
        for (i = 0; i < size; i += span) GCOMP__F(level)(x + i, span / 2);
    if (size < base) return;
    for (; span > base; span /= 8)
        for (i = 0; i < size; i += span)
            for (j = i; j < i + span / 8; j += columns) GCOMP__F(eight)(x + j, span / 8);
    for (i = 0; i < size; i += base) {
        GCOMP__F(last)(x + i, base / 8);
        gcomp__fetch_two(&ahead);
    }
    *next = ahead;
}

/* >>kernel mix: D' R G x for `count` elements, in groups of m, from element i on; back: G R D' x.
   A group of 16 elements has no R. */
#ifndef GCOMP__LEAN
#define GCOMP__LEAN 0.234375f /* 15/64 */
enum { GCOMP__GROUP = 512 };  /* at most GCOMP__TILE */
#endif
static void GCOMP__F(lean)(float *x, size_t i, size_t m, uint64_t words, int back)
{
    const GCOMP__F(v) t = GCOMP__F(splat)(GCOMP__LEAN);
    const size_t half = m / 2;
    uint32_t draws[GCOMP__SIGN_WORDS];
    GCOMP__F(w) signs = GCOMP__F(signs)(draws, words, i, m, 1), others;
    size_t j;
    if (half < 16) {
        GCOMP__F(store)(x, GCOMP__F(turn)(GCOMP__F(load)(x), signs));
        return;
    }
    others = GCOMP__F(signs)(draws, words, i + half, half, 0);
    for (j = 0; j < half; j += 16) {
        GCOMP__F(v) a = GCOMP__F(load)(x + j), b = GCOMP__F(load)(x + half + j), sum;
        if (back) a = GCOMP__F(turn)(a, signs), b = GCOMP__F(turn)(b, others);
        sum = GCOMP__F(add)(a, GCOMP__F(mul)(b, t));
        b = GCOMP__F(sub)(GCOMP__F(mul)(a, t), b);
        GCOMP__F(store)(x + j, back ? sum : GCOMP__F(turn)(sum, signs));
        GCOMP__F(store)(x + half + j, back ? b : GCOMP__F(turn)(b, others));
        signs = GCOMP__F(wadd)(signs, signs);
        others = GCOMP__F(wadd)(others, others);
    }
}

static void GCOMP__F(mix)(float *x, size_t i, size_t count, size_t m, uint64_t words, int back)
{
    gcomp__ahead none = {NULL, NULL, 0, 0};
    size_t j;
    words = words >> 32 | words << 32;
    for (j = 0; j < count; j += m) {
        if (back) GCOMP__F(lean)(x + j, i + j, m, words, 1);
        GCOMP__F(rotate)(x + j, m, &none);
        if (!back) GCOMP__F(lean)(x + j, i + j, m, words, 0);
    }
}

/* x <- p with random signs, zeros behind the tensor's end. Returns the sum of squares; *most: the
   bits of the largest |p|. */
GCOMP__HEAVY double GCOMP__F(hadamard_take)(const gcomp_input *from, uint64_t words, size_t n, float *x, size_t i, size_t size,
                                            int general, int feedback, uint32_t *most)
{
    const gcomp_input in = *from;
    GCOMP__F(v) worst = GCOMP__F(splat)(gcomp__zero());
    GCOMP__F(sum) sum = GCOMP__F(sum_none)();
    uint32_t draws[GCOMP__SIGN_WORDS];
    size_t j, k, stop;
    for (j = 0; i % 256 == 0 && j + 512 <= size && i + j + 512 <= n; j += 512) { /* two sums at a time */
        GCOMP__F(w) signs = GCOMP__F(signs)(draws, words, i + j, size - j, j == 0);
        GCOMP__F(w) others = GCOMP__F(signs)(draws, words, i + j + 256, size - j - 256, 0);
        GCOMP__F(v) some = GCOMP__F(splat)(gcomp__zero()), more = some;
        for (k = j; k < j + 256; k += 16) {
            const GCOMP__F(v) p = GCOMP__F(load_p)(&in, i + k, general, feedback);
            const GCOMP__F(v) q = GCOMP__F(load_p)(&in, i + k + 256, general, feedback);
            some = GCOMP__F(add)(some, GCOMP__F(mul)(p, p));
            more = GCOMP__F(add)(more, GCOMP__F(mul)(q, q));
            worst = GCOMP__F(worst)(GCOMP__F(worst)(worst, p), q);
            GCOMP__F(store)(x + k, GCOMP__F(turn)(p, signs));
            GCOMP__F(store)(x + k + 256, GCOMP__F(turn)(q, others));
            signs = GCOMP__F(wadd)(signs, signs);
            others = GCOMP__F(wadd)(others, others);
        }
        sum = GCOMP__F(sum_add)(GCOMP__F(sum_add)(sum, some), more);
    }
    for (; j < size; j = stop) {
        GCOMP__F(w) signs = GCOMP__F(signs)(draws, words, i + j, size - j, j == 0);
        GCOMP__F(v) some = GCOMP__F(splat)(gcomp__zero());
        stop = gcomp__min(size, j + 256 - (i + j) % 256);
        for (; j < stop; j += 16) {
            GCOMP__F(v) p;
            if (i + j + 16 <= n) p = GCOMP__F(load_p)(&in, i + j, general, feedback);
            else p = GCOMP__F(load_p_some)(&in, i + j, n - i - j);
            some = GCOMP__F(add)(some, GCOMP__F(mul)(p, p));
            worst = GCOMP__F(worst)(worst, p);
            GCOMP__F(store)(x + j, GCOMP__F(turn)(p, signs));
            signs = GCOMP__F(wadd)(signs, signs);
        }
        sum = GCOMP__F(sum_add)(sum, some);
    }
    *most = GCOMP__F(most)(worst);
    return GCOMP__F(sum_fold)(sum);
}

/* x <- s * x with those signs, of elements i .. i + count - 1; some zeros behind them may change too. */
static void GCOMP__F(hadamard_turn)(float *x, size_t i, size_t count, uint64_t words, float s)
{
    const GCOMP__F(v) scale = GCOMP__F(splat)(s);
    uint32_t draws[GCOMP__SIGN_WORDS];
    size_t j, stop;
    for (j = 0; j < count; j = stop) {
        GCOMP__F(w) signs = GCOMP__F(signs)(draws, words, i + j, count - j, j == 0);
        stop = gcomp__min(count, j + 256 - (i + j) % 256);
        for (; j < stop; j += 16) {
            GCOMP__F(v) d = GCOMP__F(turn)(GCOMP__F(mul)(GCOMP__F(load)(x + j), scale), signs);
            if (s >= 1e28f) d = GCOMP__F(saturate)(d);
            GCOMP__F(store)(x + j, d);
            signs = GCOMP__F(wadd)(signs, signs);
        }
    }
}
#endif

/* >>centroids: of a normal variable (Lloyd, Max), which codes of 1 to 4 bits name. Only their ratios matter, so they are whole
   numbers: sums of 65536 of them are exact in any order, and so is the transform of codes, or any part of it. */
#ifndef GCOMP_WITHOUT_EDEN
#ifndef GCOMP__CENTROIDS
#define GCOMP__CENTROIDS
/* The magnitudes of centroids. 2 bits: the border between them for a normal variable; 3 and 4: a cubic passes close to k - 1/2 at
   the border between the centroids k - 1 and k. The cubic is y * (y * y + slope) - 1/2 where y = x * unit is at most `top`. */
static const float gcomp__eden_centroids[4][8] = {
    {1, 0, 0, 0, 0, 0, 0, 0}, {3, 10, 0, 0, 0, 0, 0, 0}, {29, 89, 158, 253, 0, 0, 0, 0}, {12, 36, 61, 87, 115, 147, 187, 248}};

typedef struct gcomp__eden_levels {
    float inverse, slope, top; /* inverse: unit / norm */
    int32_t border;            /* its bits, times the norm */
    int32_t table[16];         /* the centroid of q at q & 15; of 3 bits, whose sign is apart, that of q & 3 */
} gcomp__eden_levels;

static void gcomp__eden_fit(gcomp__eden_levels *l, unsigned bits, double norm, float times)
{
    int q;
    l->inverse = (float)((bits == 4 ? -0.5308287 : -0.4598167) / norm);
    l->slope = bits == 4 ? -7.1207364f : -4.3787316f;
    l->top = bits == 4 ? 1.5406423f : 1.2081296f;
    l->border = (int32_t)gcomp__bits((float)(0.981599 * norm));
    for (q = -8; q < 8; q++) {
        const float c = gcomp__eden_centroids[bits - 1][bits < 4 ? q & 3 : q < 0 ? ~q : q] * times;
        l->table[q & 15] = (int32_t)(gcomp__bits(c) | (bits == 4 && q < 0 ? 0x80000000u : 0));
    }
}
#endif

/* 16 rotated elements to codes; returns c * x. */
GCOMP__INLINE GCOMP__F(v) GCOMP__F(eden_quant)(uint8_t *code, GCOMP__F(v) x, int bits, const gcomp__eden_levels *l)
{
    const GCOMP__F(v) size = GCOMP__F(abs)(x), half = GCOMP__F(splat)(-0.5f), slope = GCOMP__F(splat)(l->slope);
    GCOMP__F(v) y;
    GCOMP__F(w) q;
    if (bits < 4) gcomp__put16(code + 2 * bits - 2, GCOMP__F(lt0)(x));
    if (bits == 1) return size;
    if (bits == 2) {
        gcomp__put16(code, GCOMP__F(keys)(x, (uint32_t)l->border));
        q = GCOMP__F(wgt)(GCOMP__F(words)(size), GCOMP__F(wsplat)(l->border - 1));
        q = GCOMP__F(wand)(q, GCOMP__F(wsplat)(l->table[0] ^ l->table[1]));
        return GCOMP__F(mul)(size, GCOMP__F(floats)(GCOMP__F(wxor)(q, GCOMP__F(wsplat)(l->table[0]))));
    }
    if (bits == 3) x = size;
    y = GCOMP__F(clamp)(GCOMP__F(mul)(x, GCOMP__F(splat)(l->inverse)), l->top);
    q = GCOMP__F(nearest)(GCOMP__F(fma)(y, GCOMP__F(fma)(y, y, slope), half));
    if (bits == 3) GCOMP__F(put2)(code, q, 0);
    else GCOMP__F(put4)(code, q);
    return GCOMP__F(mul)(GCOMP__F(floats)(GCOMP__F(look16)(l->table, q)), x);
}

/* The centroids of 16 codes. */
GCOMP__INLINE GCOMP__F(v) GCOMP__F(eden_deq)(const uint8_t *code, int bits, const int32_t *table)
{
    GCOMP__F(v) c = GCOMP__F(splat)(gcomp__float((uint32_t)table[0]));
    if (bits == 4) return GCOMP__F(floats)(GCOMP__F(lookup4)(table, code));
    if (bits == 3) c = GCOMP__F(floats)(GCOMP__F(look16)(table, GCOMP__F(get2)(code, 0)));
    if (bits == 2) c = GCOMP__F(pick)(gcomp__get16(code), GCOMP__F(splat)(gcomp__float((uint32_t)table[1])), c);
    return GCOMP__F(flip)(c, gcomp__get16(code + 2 * bits - 2));
}

/* Codes of a piece; returns the sum of c * x. What will be read next is fetched meanwhile. */
GCOMP__HEAVY double GCOMP__F(eden_codes)(uint8_t *code, const float *x, size_t size, int bits, const gcomp__eden_levels *l,
                                         gcomp__ahead *next)
{
    const size_t code16 = 2 * (size_t)bits;
    gcomp__ahead ahead = *next;
    GCOMP__F(sum) sum = GCOMP__F(sum_none)();
    size_t j, stop;
    for (j = 0; j + 512 <= size; j += 512, code += 32 * code16) { /* two sums at a time, lest each addition waits for the last */
        GCOMP__F(v) some = GCOMP__F(splat)(gcomp__zero()), more = some;
        size_t k;
        for (k = 0; k < 16; k++) {
            const GCOMP__F(v) p = GCOMP__F(load)(x + j + 16 * k), q = GCOMP__F(load)(x + j + 256 + 16 * k);
            some = GCOMP__F(add)(some, GCOMP__F(eden_quant)(code + k * code16, p, bits, l));
            more = GCOMP__F(add)(more, GCOMP__F(eden_quant)(code + (16 + k) * code16, q, bits, l));
            gcomp__fetch_two(&ahead);
        }
        sum = GCOMP__F(sum_add)(GCOMP__F(sum_add)(sum, some), more);
    }
    for (; j < size; j = stop) {
        GCOMP__F(v) some = GCOMP__F(splat)(gcomp__zero());
        for (stop = gcomp__min(size, j + 256); j < stop; j += 16, code += code16) {
            some = GCOMP__F(add)(some, GCOMP__F(eden_quant)(code, GCOMP__F(load)(x + j), bits, l));
            gcomp__fetch(&ahead);
        }
        sum = GCOMP__F(sum_add)(sum, some);
    }
    *next = ahead;
    return GCOMP__F(sum_fold)(sum);
}

/* x <- one of the size / step parts of a piece's transformed centroids. Where it will go is fetched. */
GCOMP__HEAVY void GCOMP__F(eden_fill)(float *x, const uint8_t *code, size_t size, size_t step, size_t part, int bits,
                                      const int32_t *table, gcomp__ahead *place)
{
    const size_t code16 = 2 * (size_t)bits;
    gcomp__ahead ahead = *place;
    size_t j, b;
    for (j = 0; step == size && j + 32 <= step; j += 32, code += 2 * code16) { /* all of them */
        GCOMP__F(store)(x + j, GCOMP__F(eden_deq)(code, bits, table));
        GCOMP__F(store)(x + j + 16, GCOMP__F(eden_deq)(code + code16, bits, table));
        gcomp__fetch_two(&ahead);
    }
    for (; j < step; j += 16, code += code16) {
        GCOMP__F(v) sum = GCOMP__F(eden_deq)(code, bits, table);
        gcomp__fetch(&ahead);
        for (b = step; b < size; b += step) {
            GCOMP__F(v) c = GCOMP__F(eden_deq)(code + b / 16 * code16, bits, table);
            sum = gcomp__popcount((uint32_t)(b / step & part)) & 1 ? GCOMP__F(sub)(sum, c) : GCOMP__F(add)(sum, c);
        }
        GCOMP__F(store)(x + j, sum);
    }
    *place = ahead;
    GCOMP__F(rotate)(x, step, place);
}
#endif

/* >>pieces: how eden cuts a tensor, and what that takes. A piece is a block; the tail of the tensor is cut into falling powers of
   two, zeros behind the last up to 16. Each has a float s and its codes. Tasks take chunks in turn, each with a workspace of a
   piece. */
#ifndef GCOMP_WITHOUT_EDEN
#ifndef GCOMP__EDEN_TYPES
#define GCOMP__EDEN_TYPES
enum { GCOMP__EDEN_LANES = 16 }; /* tasks at most, each with a workspace */

typedef struct gcomp__eden_job {
    const gcomp__call *call;
    const struct gcomp__eden_kernels *kernels;
    const gcomp__sink *sink; /* or the rest: */
    gcomp_input in;
    gcomp__form form; /* kernel: the bits; constant: 0, or for feedback the mean of centroid^2 */
    uint64_t words;
    uint8_t *scales, *codes;
    size_t n, lanes, room; /* room: floats of workspace of a lane; 0: none */
    uint8_t bad[GCOMP__EDEN_LANES];
} gcomp__eden_job;

typedef struct gcomp__eden_kernels {
    int (*encode)(const gcomp__eden_job *job, float *work, size_t chunk); /* 1: not finite */
    void (*sink)(const gcomp__eden_job *job, float *work, size_t chunk);
} gcomp__eden_kernels;

/* Elements of the piece of eden that begins at element i: a block, or at the end the largest power of two that is needed. */
GCOMP__NOINLINE size_t gcomp__eden_piece(size_t n, size_t block, size_t i)
{
    const size_t left = (n - i + 15) / 16 * 16;
    while (block > left) block /= 2;
    return block;
}

/* Its scale as a word: s >= 2^-100 is a float; a smaller one the float s * 2^100 with its sign bit
   set. The lowest bit tells whether the piece was rotated twice. */
GCOMP__NOINLINE uint32_t gcomp__eden_word(double s, uint32_t twice)
{
    const uint32_t top = s < 7.888609052210118e-31 ? 0x80000000u : 0;
    if (top) s *= 1267650600228229401496703205376.0;
    if (s > 3.4028234663852886e38) s = 3.4028234663852886e38;
    return (gcomp__bits((float)s) & ~1u) | twice | top;
}
#endif

#ifdef GCOMP__LAST
static void gcomp__eden_form(const double *param, gcomp__form *form)
{
    static const float squares[] = {1, 38.7f, 13350, 8180}; /* mean centroid^2, of normal data */
    memset(form, 0, sizeof *form);
    form->kernel = 1 + (unsigned)param[0];
    form->block = (size_t)64 << (unsigned)param[1];
    if (param[2] != 0) form->constant = squares[form->kernel - 1];
}

/* Bytes of scales and of codes. */
static size_t gcomp__eden_scales(const gcomp__form *form, size_t n)
{
    return 4 * (n / form->block + gcomp__popcount((uint32_t)((n % form->block + 15) / 16)));
}

static size_t gcomp__eden_bytes(const gcomp__form *form, size_t n)
{
    return n == 0 ? 0 : gcomp__plus(8 + gcomp__eden_scales(form, n), gcomp__pieces(n, 16) * 2 * form->kernel);
}

/* A tensor that is a little longer may have fewer pieces: with room for as many as any shorter one has, the bound grows. */
static size_t gcomp__eden_bound(const gcomp_codec *codec, size_t n)
{
    gcomp__form form;
    size_t blocks, pieces;
    gcomp__eden_form(codec->param, &form);
    blocks = n / form.block;
    pieces = blocks + gcomp__log2((uint32_t)gcomp__pieces(n % form.block, 16) + 1);
    if (blocks) pieces = gcomp__max(pieces, blocks - 1 + gcomp__log2((uint32_t)form.block / 16));
    return n == 0 ? 0 : gcomp__plus(8 + 4 * pieces, gcomp__pieces(n, 16) * 2 * form.kernel);
}

static size_t gcomp__eden_scratch(const gcomp_codec *codec, size_t n)
{
    gcomp__form form;
    gcomp__eden_form(codec->param, &form);
    return 4 * gcomp__eden_piece(n, form.block, 0) * gcomp__min(gcomp__chunks(n), GCOMP__EDEN_LANES);
}

static void gcomp__eden_adapt(const gcomp_codec *codec, uint8_t *rounds, unsigned *flags)
{
    (void)rounds;
    if (codec->param[2] != 0) *flags |= GCOMP__FEEDBACK;
}

static void gcomp__eden_lane(void *arg, size_t lane)
{
    gcomp__eden_job *job = (gcomp__eden_job *)arg;
    float *work = job->room ? (float *)(void *)job->call->scratch + lane * job->room : NULL;
    size_t chunk;
    for (chunk = lane; chunk < gcomp__chunks(job->n); chunk += job->lanes) {
        if (job->sink) (job->kernels->sink)(job, work, chunk);
        else job->bad[lane] = (uint8_t)(job->bad[lane] | (job->kernels->encode)(job, work, chunk));
    }
}

/* Runs a job in as many tasks as have a workspace of `room` floats; none has: 0. */
static void gcomp__eden_run(gcomp__eden_job *job, const gcomp__call *call, size_t room)
{
    size_t fit = room ? call->scratch_bytes / (4 * room) : 0;
    job->call = call;
    job->kernels = (const gcomp__eden_kernels *)call->kernels;
    job->room = fit ? room : 0;
    job->lanes = call->parallel.run ? gcomp__min(gcomp__chunks(job->n), GCOMP__EDEN_LANES) : 1;
    if (fit) job->lanes = gcomp__min(job->lanes, fit);
    gcomp__run(call, job->lanes, gcomp__eden_lane, job);
}
#endif
#endif

/* >>method eden: a piece is rotated (>>hadamard): x = T p, T = H D, or T = H D' R G D where
   (max |p|)^2 > |p|^2 / 128. Each coordinate is then nearly normal and becomes one of 2^bits
   centroids c, the nearest or next to it; back comes C(p) = s T'c, T' the transpose of T.
   s = |p|^2 / <c, x> makes <C(p), p> = |p|^2: unbiased over all rotations, nearly so over these.
   E|p - C(p)|^2 is near 0.571, 0.133, 0.036, 0.0096 of |p|^2 for 1, 2, 3, 4 bits.
   The bias |E C(p) - p| of 1 bit, measured over normal numbers, their cubes, Student's t of 3
   degrees, one or two large elements with noise and without: below 0.002 |p| in pieces of 512
   elements or more; up to 0.035 |p| in a piece of 64, and 0.4 |p| in one of 16, where two elements
   are nearly all of p. Where 128 or more elements of exactly one size are nearly all: 0.07 |p|.
   feedback=1: the residual keeps what is lost; s = <c, x> / |T'c|^2 is that of least error, with
   the mean of c^2 of a normal variable: 0.363, 0.117, 0.0345, 0.0095 of |p|^2 are lost.
   Vargaftik et al., NeurIPS 2021 (1 bit) and ICML 2022. */
#ifndef GCOMP_WITHOUT_EDEN
#define GCOMP__LIST_eden(X) X(eden)
/* Encodes the piece of `size` elements from i on; its scale's word, that of an infinity or NaN if it is not finite. x has
   room for it. */
static uint32_t GCOMP__F(eden_encode_piece)(const gcomp__eden_job *job, float *x, size_t i, size_t size)
{
    const unsigned bits = job->form.kernel;
    uint8_t *code = job->codes + i / 16 * (2 * bits);
    const gcomp_input *in = &job->in;
    const uint64_t words = job->words;
    const int feedback = in->residual != NULL;
    gcomp__eden_levels levels;
    double squares, dot, lift = 1, stretch = 1;
    uint32_t most, twice;
    gcomp__ahead next;
    size_t j;
    next.step = 16 * gcomp__dtype_bytes(in->dtype);
    next.left = i + 2 * size <= job->n ? size / 16 : 0;
    next.a = (const uint8_t *)in->grad + (next.left ? i + size : i) / 16 * next.step;
    next.b = feedback ? in->residual + (next.left ? i + size : i) : NULL;
    if (GCOMP__F(general)(in))
        squares = GCOMP__F(hadamard_take)(in, words, job->n, x, i, size, 1, feedback, &most);
    else if (feedback) squares = GCOMP__F(hadamard_take)(in, words, job->n, x, i, size, 0, 1, &most);
    else squares = GCOMP__F(hadamard_take)(in, words, job->n, x, i, size, 0, 0, &most);
    if (!gcomp__finite_double(squares) || squares < 1e-18 || squares > 1e38) { /* floats were too small for them, or p is */
        memset(code, 0, size / 8 * bits);
        if (most == 0 || most >= 0x7f800000u) return most;
        squares = GCOMP__F(squares)(x, size);
        if (most >= 187u << 23) lift = 1.0 / 1099511627776.0; /* all that follows stays finite */
        if (most < 67u << 23) lift = 1208925819614629174706176.0;
        for (j = 0; j < size; j += 16)
            GCOMP__F(store)(x + j, GCOMP__F(mul)(GCOMP__F(load)(x + j), GCOMP__F(splat)((float)lift)));
    }
    twice = (double)gcomp__float(most) * (double)gcomp__float(most) > squares / 128;
    if (twice) {
        const size_t m = gcomp__min(size, GCOMP__GROUP);
        GCOMP__F(mix)(x, i, size, m, words, 0);
        stretch = (double)m * (m > 16 ? 1 + (double)GCOMP__LEAN * (double)GCOMP__LEAN : 1);
    }
    GCOMP__F(rotate)(x, size, &next);
    gcomp__eden_fit(&levels, bits, gcomp__sqrt(squares * stretch) * lift, 1);
    if (bits == 1) dot = GCOMP__F(eden_codes)(code, x, size, 1, &levels, &next);
    else if (bits == 2) dot = GCOMP__F(eden_codes)(code, x, size, 2, &levels, &next);
    else if (bits == 3) dot = GCOMP__F(eden_codes)(code, x, size, 3, &levels, &next);
    else dot = GCOMP__F(eden_codes)(code, x, size, 4, &levels, &next);
    if (job->form.constant == 0) return gcomp__eden_word(squares * lift / dot, twice);
    dot /= (double)size * (double)size * (double)job->form.constant; /* |T'c|^2 / stretch */
    return gcomp__eden_word(dot / (lift * stretch), twice);
}

static int GCOMP__F(eden_encode)(const gcomp__eden_job *job, float *work, size_t chunk)
{
    const size_t begin = chunk * GCOMP_CHUNK, end = gcomp__min(job->n, begin + GCOMP_CHUNK), block = job->form.block;
    uint8_t *scale = job->scales + begin / block * 4;
    size_t i, size;
    for (i = begin; i < end; i += size, scale += 4) {
        uint32_t word;
        size = gcomp__eden_piece(job->n, block, i);
        word = GCOMP__F(eden_encode_piece)(job, work, i, size);
        if ((word & 0x7fffffffu) >= 0x7f800000u) return 1;
        gcomp__put32(scale, word);
    }
    return 0;
}

#ifdef GCOMP__LAST
static gcomp_result gcomp__eden_encode(const gcomp__call *call, const gcomp_codec *codec, const gcomp_input *in, size_t n,
                                       uint8_t *body, size_t capacity, size_t *bytes)
{
    gcomp__eden_job job;
    size_t i;
    memset(&job, 0, sizeof job);
    gcomp__eden_form(codec->param, &job.form);
    *bytes = gcomp__eden_bytes(&job.form, n);
    if (capacity < *bytes) return GCOMP_DST_TOO_SMALL;
    if (n == 0) return GCOMP_OK;
    job.in = *in;
    job.n = n;
    job.words = gcomp__stream(in->key.own, GCOMP__PURPOSE_ROTATE);
    job.scales = body + 8;
    job.codes = job.scales + gcomp__eden_scales(&job.form, n);
    if (call->scratch_bytes < 4 * gcomp__eden_piece(n, job.form.block, 0)) return GCOMP_SCRATCH_TOO_SMALL;
    gcomp__put64(body, job.words);
    gcomp__eden_run(&job, call, gcomp__eden_piece(n, job.form.block, 0));
    for (i = 0; i < job.lanes; i++)
        if (job.bad[i]) return GCOMP_NOT_FINITE;
    return GCOMP_OK;
}

/* Scales are of the form that gcomp__eden_word makes; a piece of zeros has codes of zero. */
static gcomp_result gcomp__eden_check(const gcomp__view *view)
{
    const size_t code16 = 2 * view->form.kernel;
    const uint8_t *scale = view->scales;
    size_t i, j, size;
    for (i = 0; i < view->n; i += size, scale += 4) {
        const uint32_t word = gcomp__get32(scale), s = word & 0x7fffffffu;
        size = gcomp__eden_piece(view->n, view->form.block, i);
        if (word && (s < 27u << 23 || s > (word >> 31 ? 0x3f800001u : 0x7f7fffffu)))
            return GCOMP_CORRUPT;
        for (j = 0; !word && j < size / 16 * code16; j++)
            if (view->codes[i / 16 * code16 + j]) return GCOMP_CORRUPT;
    }
    return GCOMP_OK;
}
#endif

/* >>decoding eden: sums of centroids are exact, so that a part of a piece can be decoded without the rest, if slowly: it needs
   no workspace. */
/* Elements begin .. end - 1 of a payload: stored in y, or added with a weight; and taken from the residual. Either may be NULL.
   Whole pieces, or as much of them as there is room for in the workspace. */
static void GCOMP__F(eden_put)(const gcomp__view *view, size_t begin, size_t end, float *work, size_t room, float *y, int ending,
                               float weight, float *residual)
{
    const unsigned bits = view->form.kernel;
    const uint64_t words = gcomp__get64(view->body);
    const uint8_t *scale = view->scales + begin / view->form.block * 4;
    gcomp__eden_levels levels;
    size_t i, size, at;
    for (i = begin; i < end; i += size, scale += 4) {
        size_t step = size = gcomp__eden_piece(view->n, view->form.block, i);
        const int in_place = ending == GCOMP__STORE && i + size <= end;
        const uint32_t word = gcomp__get32(scale);
        const uint8_t *code = view->codes + i / 16 * (2 * bits);
        if (!in_place && step > room) step = room;
        gcomp__eden_fit(&levels, bits, 1, word >> 31 ? 7.888609052210118e-31f : 1);
        for (at = 0; at < size && i + at < end; at += step) {
            const size_t count = gcomp__min(step, end - i - at);
            float *x = in_place ? y + i : work;
            gcomp__ahead place;
            place.a = (const uint8_t *)(const void *)(y ? y + i + at : residual + i + at);
            place.b = y && residual ? residual + i + at : NULL;
            place.step = 64;
            place.left = count / 16;
            if (bits == 1) GCOMP__F(eden_fill)(x, code, size, step, at / step, 1, levels.table, &place);
            else if (bits == 2) GCOMP__F(eden_fill)(x, code, size, step, at / step, 2, levels.table, &place);
            else if (bits == 3) GCOMP__F(eden_fill)(x, code, size, step, at / step, 3, levels.table, &place);
            else GCOMP__F(eden_fill)(x, code, size, step, at / step, 4, levels.table, &place);
            if (word & 1) GCOMP__F(mix)(x, i + at, count, gcomp__min(size, GCOMP__GROUP), words, 1);
            GCOMP__F(hadamard_turn)(x, i + at, count, words, gcomp__float(word & 0x7fffffffu));
            if (residual) GCOMP__F(add_scaled)(residual + i + at, x, -1, count, 0);
            if (y && ending != GCOMP__STORE) GCOMP__F(add_scaled)(y + i + at, x, weight, count, ending == GCOMP__FRESH);
            else if (y && !in_place) memcpy(y + i + at, x, 4 * count);
        }
    }
}

/* A chunk by the sink's ending. What becomes the residual is p first, since y may be the gradient. */
static void GCOMP__F(eden_sink)(const gcomp__eden_job *job, float *work, size_t chunk)
{
    const gcomp__sink *sink = job->sink;
    const size_t begin = chunk * GCOMP_CHUNK, end = gcomp__min(sink->n, begin + GCOMP_CHUNK);
    const size_t room = job->room ? job->room : (size_t)GCOMP__TILE;
    float tile[GCOMP__TILE], *residual = sink->ending == GCOMP__COMMIT ? sink->residual : NULL;
    size_t i, stop, w;
    if (!job->room) work = tile;
    for (i = begin; i < end; i = stop) { /* of the largest block, so that pieces begin there in all payloads */
        stop = gcomp__min(end, i + job->form.block);
        if (residual) GCOMP__F(keep_rest)(&job->in, residual, i, stop - i, NULL);
        if (residual && sink->own && (!sink->y || sink->own_at >= sink->count))
            GCOMP__F(eden_put)(sink->own, i, stop, work, room, NULL, GCOMP__ADD, 1, residual);
        for (w = 0; sink->y && w < sink->count; w++) {
            const int fresh = sink->fresh && w == 0;
            GCOMP__F(eden_put)(sink->views + w, i, stop, work, room, sink->y,
                               sink->ending == GCOMP__STORE ? GCOMP__STORE : fresh ? GCOMP__FRESH : GCOMP__ADD, sink->weight,
                               sink->own && w == sink->own_at ? residual : NULL);
        }
    }
}
static const gcomp__eden_kernels GCOMP__F(eden_kernels) = {GCOMP__F(eden_encode), GCOMP__F(eden_sink)};

#ifdef GCOMP__LAST
static gcomp_result gcomp__eden_open(gcomp__view *view)
{
    double param[GCOMP_PARAMS];
    size_t need;
    GCOMP__TRY(gcomp__unpack(view->method, view->a, param));
    gcomp__eden_form(param, &view->form);
    need = gcomp__eden_bytes(&view->form, view->n);
    if (view->bytes != need) return view->bytes < need ? GCOMP_TRUNCATED : GCOMP_TRAILING_BYTES;
    view->scales = view->body + 8;
    view->codes = view->scales + gcomp__eden_scales(&view->form, view->n);
    return GCOMP_OK;
}

static void gcomp__eden_decode(const gcomp__call *call, const gcomp__sink *sink)
{
    gcomp__eden_job job;
    size_t w;
    memset(&job, 0, sizeof job);
    job.sink = sink;
    job.n = sink->n;
    job.in.grad = sink->grad;
    job.in.dtype = sink->dtype;
    job.in.scale = sink->scale;
    job.in.residual = sink->residual;
    if (sink->own) job.form.block = sink->own->form.block;
    for (w = 0; w < sink->count; w++) job.form.block = gcomp__max(job.form.block, sink->views[w].form.block);
    gcomp__eden_run(&job, call, gcomp__eden_piece(sink->n, job.form.block, 0));
}

static const gcomp__method gcomp__row_eden = {
    "eden", 20, GCOMP__CONSERVES_ELEMENT | GCOMP__WORKSPACE, {GCOMP__GATHER, 0, 0},
    {GCOMP__ONE_OF("bits", 0, 3, 2, "1|2|3|4|"),
     GCOMP__ONE_OF("block", 6, 10, 4, "64|128|256|512|1024|2048|4096|8192|16384|32768|65536|"),
     GCOMP__COUNT("feedback", 0, 0, 1, 0)},
    NULL, gcomp__eden_bound, gcomp__eden_scratch, gcomp__eden_encode, gcomp__eden_open, gcomp__eden_check, gcomp__eden_decode,
    NULL, NULL, NULL, NULL, NULL, NULL, gcomp__eden_adapt, NULL, NULL, NULL};
#endif
#else
#define GCOMP__LIST_eden(X)
#endif

/* ---------------- sparse methods: a selector says which elements are sent, a block method how their values are. A selector is
   three functions; the rest (candidates in one pass, the coding of indices, decoding, the mean of many) is here.
   Elements are compared by key, the bits of |p|; exact zeros are never sent. */
#ifndef GCOMP__SPARSE_TYPES
#define GCOMP__SPARSE_TYPES
typedef struct gcomp__selection {
    gcomp_input in;
    size_t n, at, end;      /* elements before `at` are done; end: of the piece that it is in */
    uint32_t guess, under;  /* >= 1: keys from here on are candidates, of positive and of negative elements */
    float *value;           /* capacity + 16 of both */
    uint32_t *index;        /* their lower 32 bits */
    size_t *ends;           /* of pieces of 2^32 in it; NULL: there is one */
    size_t count, capacity;
    size_t each;            /* GROUPS: elements of a group; the indices are theirs */
    size_t *bins;           /* GCOMP__SPARSE_BINS */
} gcomp__selection;

typedef struct gcomp__sparse_kernels {
    void (*collect)(gcomp__selection *s); /* until the end or until the buffer is full */
} gcomp__sparse_kernels;

struct gcomp__selector {
    size_t (*most)(const gcomp_codec *codec, size_t n); /* elements that a payload may have */
    /* The elements into s->value and s->index, in order of index, without those that are not finite. */
    gcomp_result (*select)(const gcomp__call *call, const gcomp_codec *codec, gcomp__selection *s);
};
#endif

GCOMP__INLINE uint32_t GCOMP__F(candidates)(GCOMP__F(v) p, uint32_t guess, uint32_t under, int sides)
{
    const uint32_t mask = GCOMP__F(keys)(p, guess), negative = sides ? GCOMP__F(lt0)(p) : 0;
    return sides ? (mask & ~negative) | (GCOMP__F(keys)(p, under) & negative) : mask;
}

/* Masks of a tile first, then those that are not zero: a branch for each would be taken unforeseen. */
GCOMP__HEAVY void GCOMP__F(collect_driver)(gcomp__selection *s, int general, int feedback, int sides)
{
    const gcomp_input in = s->in;
    const uint32_t guess = s->guess, under = s->under;
    size_t at = s->at, count = s->count, groups, j;
    uint32_t mask[GCOMP__TILE / 16], any;
    while (at + 16 <= s->end) {
        groups = gcomp__min(GCOMP__TILE, s->end - at) / 16;
        for (any = 0, j = 0; j < groups; j++) {
            mask[j] = GCOMP__F(candidates)(GCOMP__F(load_p)(&in, at + 16 * j, general, feedback), guess, under, sides);
            any |= (uint32_t)(mask[j] != 0) << j;
        }
        for (; any; any &= any - 1) {
            j = gcomp__first_one(any);
            if (count + 16 > s->capacity) {
                s->at = at + 16 * j;
                s->count = count;
                return;
            }
            GCOMP__F(keep)(s->value + count, s->index + count, GCOMP__F(load_p)(&in, at + 16 * j, general, feedback),
                           (uint32_t)(at + 16 * j), mask[j]);
            count += gcomp__popcount(mask[j]);
        }
        at += 16 * groups;
    }
    if (at < s->end && count + 16 <= s->capacity) {
        GCOMP__F(v) p = GCOMP__F(load_p_some)(&in, at, s->end - at);
        *mask = GCOMP__F(candidates)(p, guess, under, 1);
        GCOMP__F(keep)(s->value + count, s->index + count, p, (uint32_t)at, *mask);
        count += gcomp__popcount(*mask);
        at = s->end;
    }
    s->at = at;
    s->count = count;
}

static void GCOMP__F(collect)(gcomp__selection *s)
{
    if (GCOMP__F(general)(&s->in)) GCOMP__F(collect_driver)(s, 1, s->in.residual != NULL, 1);
    else if (s->guess != s->under) GCOMP__F(collect_driver)(s, 0, s->in.residual != NULL, 1);
    else if (s->in.residual) GCOMP__F(collect_driver)(s, 0, 1, 0);
    else GCOMP__F(collect_driver)(s, 0, 0, 0);
}
static const gcomp__sparse_kernels GCOMP__F(sparse) = {GCOMP__F(collect)};
#define GCOMP__SPARSE_METHOD(name) static const gcomp__sparse_kernels GCOMP__F(name##_kernels) = {GCOMP__F(collect)};

#ifdef GCOMP__LAST
enum { GCOMP__SPARSE_BINS = 2048, GCOMP__SPARSE_SAMPLE = 65536, GCOMP__SPARSE_BATCH = 128, GCOMP__SPARSE_CURSORS = 8,
       GCOMP__SPARSE_PARTS = 16 };

GCOMP__NOINLINE double gcomp__sparse_exact(const double *density, double n)
{
    return *density * n * (1 - 1.0 / 1099511627776.0); /* 2^-40 less: so that 0.1 of 10 is 1 */
}

/* Elements that a density stands for. */
static size_t gcomp__sparse_k(double density, size_t n)
{
    uint64_t mode = gcomp__fp_enter(); /* sizes are asked for outside of calculations too */
    double exact = gcomp__sparse_exact(&density, (double)n);
    size_t k = (size_t)exact;
    if ((double)k < exact) k++;
    gcomp__fp_leave(mode);
    return n == 0 ? 0 : k < 1 ? 1 : k > n ? n : k;
}

/* Elements of a sample. */
static size_t gcomp__sparse_sample(size_t n)
{
    return n < 32768 ? 0 : gcomp__min(GCOMP__SPARSE_SAMPLE, gcomp__max(4096, n / 64)) / 16 * 16;
}

/* Candidates that are collected. */
static size_t gcomp__sparse_room(const gcomp_codec *codec, size_t n)
{
    const size_t most = (gcomp__method_of(codec->method)->selector->most)(codec, n);
    const size_t wanted = gcomp__max(gcomp__max(gcomp__times(most, 2), gcomp__plus(most, 4096)), gcomp__sparse_sample(n));
    return gcomp__plus(gcomp__min(wanted, n), 32);
}

/* For selectors that may take all. */
GCOMP__SHARED size_t gcomp__all_most(const gcomp_codec *codec, size_t n)
{
    (void)codec;
    return n;
}

static gcomp_codec gcomp__value_codec(const gcomp_codec *codec)
{
    gcomp_codec value;
    memset(&value, 0, sizeof value);
    value.method = codec->value;
    memcpy(value.param, codec->value_param, sizeof value.param);
    return value;
}

GCOMP__SHARED size_t gcomp__sparse_bound(const gcomp_codec *codec, size_t n)
{
    const gcomp__method *m = gcomp__method_of(codec->method);
    const int grouped = (m->flags & GCOMP__GROUPS) != 0;
    const size_t each = grouped ? (size_t)codec->param[1] : 1, k = (m->selector->most)(codec, n);
    const gcomp_codec value = gcomp__value_codec(codec);
    return gcomp__plus((grouped ? 10 : 9) + gcomp__index_bound(gcomp__pieces(k, each), gcomp__pieces(n, each)),
                       gcomp__block_bound(&value, k));
}

/* Bytes for a selection of up to `capacity` elements. */
static size_t gcomp__selection_bytes(size_t capacity, size_t n)
{
    return gcomp__times(gcomp__plus(capacity, 16 + GCOMP__SPARSE_BINS + gcomp__index_pieces(n)), 8);
}

static size_t gcomp__sparse_scratch(const gcomp_codec *codec, size_t n)
{
    return gcomp__selection_bytes(gcomp__sparse_room(codec, n), n);
}

/* Key i of floats without their signs, or of doubles that have none. */
GCOMP__INLINE uint64_t gcomp__key_of(const void *numbers, int wide, size_t i)
{
    const uint8_t *at = (const uint8_t *)numbers + i * (wide ? 8 : 4);
    uint64_t large;
    uint32_t word;
    if (wide) memcpy(&large, at, 8);
    else memcpy(&word, at, 4);
    return wide ? large : word & 0x7fffffffu;
}

/* The k-th largest key of count >= k >= 1 numbers, and how many equal to it belong to the k. Counted in bins from the least key
   to the largest, then the bin that it is in by finer ones, or sorted, if it holds few. */
GCOMP__INLINE uint64_t gcomp__kth_key(const void *numbers, int wide, size_t count, size_t k, size_t *bins, size_t *ties)
{
    uint64_t least = UINT64_MAX, range = 0, key, some[16];
    unsigned shift;
    size_t i, j, bin, found;
    for (i = 0; i < count; i++) {
        key = gcomp__key_of(numbers, wide, i);
        least = key < least ? key : least;
        range = key > range ? key : range;
    }
    for (range -= least; range;) {
        for (shift = 0; range >> shift >= GCOMP__SPARSE_BINS; shift++) {}
        memset(bins, 0, sizeof *bins * GCOMP__SPARSE_BINS);
        for (i = 0; i < count; i++) {
            key = gcomp__key_of(numbers, wide, i) - least;
            if (key <= range) bins[key >> shift]++;
        }
        for (bin = (size_t)(range >> shift); bins[bin] < k; bin--) k -= bins[bin];
        least += (uint64_t)bin << shift;
        range = gcomp__low_bits(shift);
        if (!range || bins[bin] > 16) continue;
        for (i = 0, found = 0; found < bins[bin]; i++) {
            key = gcomp__key_of(numbers, wide, i) - least;
            if (key > range) continue;
            for (j = found++; j && some[j - 1] < key; j--) some[j] = some[j - 1];
            some[j] = key;
        }
        for (j = 0; some[j] > some[k - 1]; j++) {}
        least += some[k - 1];
        k -= j;
        break;
    }
    *ties = k;
    return least;
}

static uint32_t gcomp__sparse_kth(const float *value, size_t count, size_t k, size_t *bins, size_t *ties)
{
    return (uint32_t)gcomp__kth_key(value, 0, count, k, bins, ties);
}

/* Keeps the k largest, in order. Returns the smallest key kept. */
static uint32_t gcomp__sparse_keep(gcomp__selection *s, size_t k)
{
    const size_t pieces = s->ends ? gcomp__index_pieces(s->end) : 1;
    size_t ties, one, i = 0, kept = 0, piece, *ends = s->ends ? s->ends : &one;
    uint32_t t = gcomp__sparse_kth(s->value, s->count, k, s->bins, &ties);
    ends[pieces - 1] = s->count;
    for (piece = 0; piece < pieces; ends[piece++] = kept) {
        const size_t stop = ends[piece];
        for (; i < stop; i++) {
            uint32_t key = gcomp__bits(s->value[i]) & 0x7fffffffu;
            size_t tie = key == t && ties > 0;
            s->value[kept] = s->value[i];
            s->index[kept] = s->index[i];
            kept += (size_t)(key > t) + tie;
            ties -= tie;
        }
    }
    s->count = kept;
    return t;
}

/* From an element on, within a piece. */
static void gcomp__selection_from(gcomp__selection *s, size_t at)
{
    const uint64_t end = (((uint64_t)at >> 32) + 1) << 32;
    s->at = at;
    s->end = end < s->n ? (size_t)end : s->n;
}

/* At the end of a piece: on to the next one. Returns 0 if there is none. */
static int gcomp__selection_next(gcomp__selection *s)
{
    s->ends[gcomp__index_pieces(s->end) - 1] = s->count;
    if (s->end == s->n) return 0;
    gcomp__selection_from(s, s->end);
    return 1;
}

/* A sample into s->value. */
static void gcomp__sparse_look(const gcomp__call *call, const gcomp__selection *s, size_t sample)
{
    const size_t lines = (gcomp__min(sample, s->n) + 15) / 16;
    size_t i;
    for (i = 0; i < lines; i++) gcomp__sample_line(call, &s->in, s->n, lines, i, s->value + 16 * i);
}

static uint32_t gcomp__sparse_key(uint32_t key) { return key < 1 ? 1 : key > 0x7f7fffffu ? 0x7f7fffffu : key; }

/* The key that about k of n elements reach, by a sample of them; `sure`: somewhat more than k. */
static uint32_t gcomp__sampled_key(const float *value, size_t sample, size_t k, size_t n, int sure, size_t *bins)
{
    size_t expected = (size_t)((double)k * (double)sample / (double)n), margin = 1, left;
    while (margin * margin < expected) margin++;
    if (sure) expected += expected / 4 + 3 * margin + 2;
    if (expected >= sample) return 1;
    return gcomp__sparse_key(gcomp__sparse_kth(value, sample, expected ? expected : 1, bins, &left));
}

/* The same of p. Any answer is right. */
static uint32_t gcomp__sparse_guess(const gcomp__call *call, const gcomp__selection *s, size_t k, int sure)
{
    size_t sample = gcomp__sparse_sample(s->n);
    if (sure && !sample && s->n >= 1024) sample = s->n / 256 * 16; /* it decides nothing there */
    if (!sample) return 1;
    gcomp__sparse_look(call, s, sample);
    return gcomp__sampled_key(s->value, sample, k, s->n, sure, s->bins);
}

/* Parts of a tensor that are collected by threads, each into its own part of the buffer. */
typedef struct gcomp__collect_job {
    const gcomp__selection *s;
    const gcomp__sparse_kernels *kernels;
    size_t room, count[GCOMP__SPARSE_PARTS];
} gcomp__collect_job;

static void gcomp__collect_part(void *arg, size_t i)
{
    gcomp__collect_job *job = (gcomp__collect_job *)arg;
    gcomp__selection part = *job->s;
    const size_t each = part.n / GCOMP__SPARSE_PARTS / 16 * 16;
    part.at = each * i;
    part.end = i + 1 < GCOMP__SPARSE_PARTS ? part.at + each : part.n;
    part.value += i * job->room;
    part.index += i * job->room;
    part.capacity = job->room;
    (job->kernels->collect)(&part);
    job->count[i] = part.at == part.end ? part.count : SIZE_MAX;
}

/* What collecting one after the other finds, where no buffer fills up; else 0, and nothing is found. */
static int gcomp__collect_parts(const gcomp__call *call, gcomp__selection *s)
{
    gcomp__collect_job job;
    size_t i, total = 16;
    if (!call->parallel.run || s->n < GCOMP_CHUNK || gcomp__index_pieces(s->n) > 1) return 0;
    job.s = s;
    job.kernels = call->set->sparse;
    job.room = s->capacity / GCOMP__SPARSE_PARTS;
    gcomp__run(call, GCOMP__SPARSE_PARTS, gcomp__collect_part, &job);
    for (i = 0; i < GCOMP__SPARSE_PARTS; total += job.count[i++])
        if (job.count[i] == SIZE_MAX) return 0;
    if (total > s->capacity) return 0;
    for (i = 0; i < GCOMP__SPARSE_PARTS; s->count += job.count[i++]) {
        memmove(s->value + s->count, s->value + i * job.room, sizeof *s->value * job.count[i]);
        memmove(s->index + s->count, s->index + i * job.room, sizeof *s->index * job.count[i]);
    }
    s->at = s->end;
    return 1;
}

/* All elements of keys from `first` on, `under` for negative ones; if they are more than k, the k largest and of equal ones the
   first. A full buffer keeps its best k and raises the guess above the k-th, so that ties need no special case. */
static gcomp_result gcomp__sparse_collect(const gcomp__call *call, gcomp__selection *s, uint32_t first, uint32_t under, size_t k)
{
    s->guess = first;
    s->under = under;
    s->count = 0;
    gcomp__selection_from(s, 0);
    for (;;) {
        if (s->at || !gcomp__collect_parts(call, s)) (call->set->sparse->collect)(s);
        if ((call->set->common->worst)(s->value, s->count) >= 0x7f800000u) return GCOMP_NOT_FINITE;
        if (s->at == s->end) {
            if (!gcomp__selection_next(s)) break;
        } else if (s->count > k) {
            const uint32_t least = gcomp__sparse_keep(s, k) + 1;
            s->guess = least > s->guess ? least : s->guess;
            s->under = least > s->under ? least : s->under;
        }
    }
    return GCOMP_OK;
}

/* The k largest, from a guess that need not be right. */
static gcomp_result gcomp__sparse_largest(const gcomp__call *call, gcomp__selection *s, uint32_t first, size_t k)
{
    GCOMP__TRY(gcomp__sparse_collect(call, s, first, first, k));
    if (s->count < k && first > 1) GCOMP__TRY(gcomp__sparse_collect(call, s, 1, 1, k)); /* the guess was too high */
    if (s->count > k) gcomp__sparse_keep(s, k);
    return GCOMP_OK;
}

/* About k of the largest, as sampledtopk says. */
static size_t gcomp__about_most(const gcomp_codec *codec, size_t n)
{
    const size_t k = gcomp__sparse_k(codec->param[0], n);
    return gcomp__min(n, gcomp__plus(k, k / 4));
}

GCOMP__SHARED gcomp_result gcomp__about_select(const gcomp__call *call, const gcomp_codec *codec, gcomp__selection *s)
{
    const size_t k = gcomp__sparse_k(codec->param[0], s->n), most = gcomp__about_most(codec, s->n);
    const uint32_t guess = gcomp__sparse_guess(call, s, k, 0);
    GCOMP__TRY(gcomp__sparse_collect(call, s, guess, guess, most));
    if (s->count < k - k / 5) return gcomp__sparse_largest(call, s, gcomp__sparse_guess(call, s, k, 1), k);
    if (s->count > most) gcomp__sparse_keep(s, k);
    return GCOMP_OK;
}

/* An empty one, in scratch. */
static gcomp__selection gcomp__selection_in(const gcomp__call *call, const gcomp_input *in, size_t n, size_t capacity)
{
    gcomp__selection s;
    memset(&s, 0, sizeof s);
    s.in = *in;
    s.n = n;
    s.capacity = capacity;
    s.bins = (size_t *)(void *)call->scratch;
    s.ends = s.bins + GCOMP__SPARSE_BINS;
    s.value = (float *)(void *)(s.ends + gcomp__index_pieces(n));
    s.index = (uint32_t *)(void *)(s.value + capacity + 16);
    memset(s.ends, 0, sizeof *s.ends * gcomp__index_pieces(n));
    return s;
}

/* The body of a payload, of elements that are chosen. */
static gcomp_result gcomp__sparse_write(const gcomp__call *call, const gcomp_codec *codec, const gcomp__selection *s,
                                        uint8_t *body, size_t capacity, size_t *bytes)
{
    const gcomp_codec value = gcomp__value_codec(codec);
    const gcomp__method *value_method = gcomp__method_of(value.method);
    const size_t head = s->each ? 10 : 9, groups = s->each ? gcomp__pieces(s->n, s->each) : s->n;
    const size_t indices = s->each ? gcomp__pieces(s->count, s->each) : s->count;
    const size_t *ends = gcomp__index_pieces(groups) > 1 ? s->ends : &indices;
    size_t index_bytes = 0, value_bytes = 0;
    gcomp_input values;
    gcomp__call inner = *call;
    unsigned coder;
    coder = gcomp__index_coder(call->set->common, s->index, ends, groups, &index_bytes);
    if (capacity < gcomp__plus(gcomp__plus(head, index_bytes), gcomp__block_bound(&value, s->count))) return GCOMP_DST_TOO_SMALL;
    gcomp__put64(body, s->count);
    body[8] = (uint8_t)coder;
    if (s->each) body[9] = (uint8_t)gcomp__log2((uint32_t)s->each);
    gcomp__put_indices(body + head, s->index, ends, groups, coder, index_bytes);
    values = gcomp__plain_input(s->value);
    values.key = s->in.key;
    inner.kernels = gcomp__kernels_of(call->set, value_method);
    inner.scratch_bytes = 0;
    GCOMP__TRY((value_method->encode)(&inner, &value, &values, s->count, body + head + index_bytes,
                                    capacity - head - index_bytes, &value_bytes));
    *bytes = head + index_bytes + value_bytes;
    return GCOMP_OK;
}

GCOMP__SHARED gcomp_result gcomp__sparse_encode(const gcomp__call *call, const gcomp_codec *codec, const gcomp_input *in,
                                                size_t n, uint8_t *body, size_t capacity, size_t *bytes)
{
    gcomp__selection s;
    if (call->scratch_bytes < gcomp__sparse_scratch(codec, n)) return GCOMP_SCRATCH_TOO_SMALL;
    s = gcomp__selection_in(call, in, n, gcomp__sparse_room(codec, n));
    GCOMP__TRY((gcomp__method_of(codec->method)->selector->select)(call, codec, &s));
    return gcomp__sparse_write(call, codec, &s, body, capacity, bytes);
}

/* The parts of a sparse body: indices (to be opened) and the view of the values. */
static gcomp_result gcomp__sparse_parts(const gcomp__view *view, gcomp__indices *indices, gcomp__view *values)
{
    const size_t head = view->method->flags & GCOMP__GROUPS ? 10 : 9;
    uint64_t k;
    size_t value_bytes, groups = view->n, each = 0;
    double param[GCOMP_PARAMS];
    if (view->bytes < head) return GCOMP_TRUNCATED;
    k = gcomp__get64(view->body);
    if (k > view->n) return GCOMP_CORRUPT;
    if (view->body[8] > GCOMP__CODER_MAX_RICE && view->body[8] < GCOMP__CODER_RAW) return GCOMP_CORRUPT;
    memset(values, 0, sizeof *values);
    values->method = view->value;
    values->set = view->set;
    values->n = (size_t)k;
    values->a = view->a;
    GCOMP__TRY(gcomp__unpack(view->value, view->a, param));
    if (gcomp__refusal(view->value, param, 1)) return GCOMP_CORRUPT;
    gcomp__form_of(view->value, param, &values->form);
    value_bytes = gcomp__plus(gcomp__block_scales(&values->form, values->n), gcomp__block_codes(&values->form, values->n));
    if (value_bytes > view->bytes - head) return GCOMP_TRUNCATED;
    values->bytes = value_bytes;
    values->body = view->body + view->bytes - value_bytes;
    if (head == 10) {
        if (view->body[9] < 4 || view->body[9] > 16) return GCOMP_CORRUPT;
        each = (size_t)1 << view->body[9];
        groups = gcomp__pieces(view->n, each);
        if (k % each && k % each != view->n % each) return GCOMP_CORRUPT; /* only the last group may be shorter */
    }
    gcomp__indices_open(indices, view->body + head, view->bytes - head - value_bytes, view->body[8],
                        each ? gcomp__pieces(values->n, each) : values->n, groups);
    indices->each = each;
    indices->elements = view->n;
    if (gcomp__index_pieces(groups) > 1 && (view->body[8] == GCOMP__CODER_RAW || view->body[8] == GCOMP__CODER_PACKED))
        return GCOMP_CORRUPT;
    if (view->body[8] == GCOMP__CODER_BITMAP && view->bytes - head - value_bytes != gcomp__pieces(groups, 8))
        return GCOMP_CORRUPT;
    if (view->list) {
        gcomp__indices_open(indices, (const uint8_t *)view->list, 4 * values->n, GCOMP__CODER_KEPT, values->n, groups);
        indices->next = 1; /* none is above 2^32 */
    }
    return gcomp__block_open(values);
}

/* Of the values the view holds what kernels decode them by. */
GCOMP__SHARED gcomp_result gcomp__sparse_open(gcomp__view *view)
{
    gcomp__indices indices;
    gcomp__view values;
    GCOMP__TRY(gcomp__sparse_parts(view, &indices, &values));
    view->shift = values.shift;
    view->form = values.form;
    view->scales = values.scales;
    view->codes = values.codes;
    view->kernels = values.kernels;
    return GCOMP_OK;
}

/* What has not been read of the indices, and the values. */
static gcomp_result gcomp__sparse_check_rest(gcomp__indices *indices, const gcomp__view *values, uint32_t *list)
{
    uint32_t batch[GCOMP__SPARSE_BATCH];
    size_t got, elements = indices->each ? 0 : values->n - indices->left;
    do {
        got = gcomp__next_elements(indices, list ? list + elements : batch, GCOMP__SPARSE_BATCH);
        elements += got;
    } while (got == GCOMP__SPARSE_BATCH);
    GCOMP__TRY(gcomp__indices_end(indices));
    if (elements != values->n) return GCOMP_CORRUPT;
    return gcomp__block_check(values);
}

static gcomp_result gcomp__sparse_check_list(const gcomp__view *view, uint32_t *list)
{
    gcomp__indices indices;
    gcomp__view values;
    GCOMP__TRY(gcomp__sparse_parts(view, &indices, &values));
    return gcomp__sparse_check_rest(&indices, &values, list);
}

static gcomp_result gcomp__sparse_check(const gcomp__view *view) { return gcomp__sparse_check_list(view, NULL); }

/* Room in scratch for the indices of a sparse payload, so that they are decoded once; NULL: none. Who checks payloads and who
   decodes them take the same rooms, in the same order. */
static uint32_t *gcomp__list_room(gcomp__call *call, const gcomp__view *view)
{
    uint32_t *list = (uint32_t *)(void *)call->scratch;
    uint64_t k;
    size_t bytes;
    if (view->method->check != gcomp__sparse_check || view->method->flags & GCOMP__GROUPS || view->bytes < 9 ||
        gcomp__index_pieces(view->n) > 1)
        return NULL;
    k = gcomp__get64(view->body);
    if (!call->scratch || k > view->n || k > call->scratch_bytes / 4) return NULL;
    bytes = gcomp__min(gcomp__round_up(4 * (size_t)k, 64), call->scratch_bytes);
    call->scratch += bytes;
    call->scratch_bytes -= bytes;
    return list;
}

/* Of two payloads, which takes little longer than one. */
static gcomp_result gcomp__sparse_check_two(const gcomp__view *one, const gcomp__view *two, uint32_t *const *list)
{
    gcomp__indices x, y;
    gcomp__view values, others;
    uint32_t index;
    int rice;
    GCOMP__TRY(gcomp__sparse_parts(one, &x, &values));
    GCOMP__TRY(gcomp__sparse_parts(two, &y, &others));
    rice = x.coder <= GCOMP__CODER_MAX_RICE && y.coder <= GCOMP__CODER_MAX_RICE && !list[0] == !list[1];
    while (rice && !x.each && !y.each && x.left && y.left && !x.bad && !y.bad) {
        uint32_t *const to = list[0], *const into = list[1];
        (one->set->common->two_lists)(&x, &y, to ? to + values.n - x.left : NULL, into ? into + others.n - y.left : NULL);
        (void)gcomp__next_indices(&x, to ? to + values.n - x.left : &index, 1); /* one that is long */
        (void)gcomp__next_indices(&y, into ? into + others.n - y.left : &index, 1);
    }
    GCOMP__TRY(gcomp__sparse_check_rest(&x, &values, list[0]));
    return gcomp__sparse_check_rest(&y, &others, list[1]);
}

/* The elements of a valid payload; returns how many. */
static size_t gcomp__sparse_read(const gcomp__view *view, uint32_t *index, float *value)
{
    gcomp__indices indices;
    gcomp__view values;
    if (gcomp__sparse_parts(view, &indices, &values) != GCOMP_OK || !values.n) return 0;
    (values.kernels->decode)(&values, 0, values.n, value, GCOMP__STORE, 1);
    return gcomp__next_elements(&indices, index, values.n);
}

/* Reads a sparse payload along with others: its elements go to y, weighted, and out of the residual where it is the own one.
   Indices are read long before they are used, and what they point to is fetched where it is not in cache. */
enum { GCOMP__CURSOR = 56 };
typedef struct gcomp__cursor {
    gcomp__indices indices;
    const gcomp__view *view;
    float *y, *residual, *masked; /* any may be NULL */
    const float *next;            /* `lines` of y that are written next, fetched one by one meanwhile */
    size_t done, base, from;      /* elements used; what indices count from; which element y begins with */
    unsigned at, got, room, cached, lines;
    uint32_t index[GCOMP__CURSOR];
} gcomp__cursor;

/* Returns how many there are then. */
static unsigned gcomp__cursor_fill(gcomp__cursor *c)
{
    const float *place = c->y ? c->y : c->residual ? c->residual : c->masked;
    uint32_t *index = c->index;
    size_t count;
    c->got -= c->at;
    memmove(index, index + c->at, sizeof *index * c->got);
    c->at = 0;
    index += c->got;
    count = gcomp__next_elements(&c->indices, index, c->room - c->got);
    c->got += (unsigned)count;
    if (count) c->base = (size_t)gcomp__element_high(&c->indices);
    for (; !c->cached && count; count--) GCOMP__PREFETCH(place + c->base + *index++);
    return c->got;
}

/* Above 2^32 elements indices come one by one, so that 32 bits of them and a base are enough. */
GCOMP__NOINLINE void gcomp__cursor_open(gcomp__cursor *c, const gcomp__view *view, float *y, float *residual, float *masked,
                                        int cached)
{
    gcomp__view values;
    memset(c, 0, sizeof *c);
    c->cached = cached != 0;
    if (gcomp__sparse_parts(view, &c->indices, &values) != GCOMP_OK) c->indices.left = 0;
    c->view = view;
    c->y = y;
    c->residual = residual;
    c->masked = masked;
    c->room = gcomp__index_pieces(view->n) > 1 ? 1 : cached ? GCOMP__CURSOR : 32;
}

/* Values of the next `count` elements, where they begin in a tile whose first is at a multiple of 16. */
static float *gcomp__cursor_values(const gcomp__cursor *c, float *tile, size_t count)
{
    const size_t used = c->done % 16, first = c->done - used, k = (size_t)gcomp__get64(c->view->body);
    const size_t end = gcomp__min(k, gcomp__round_up(c->done + count, 16));
    (c->view->kernels->decode)(c->view, first, end - first, tile, GCOMP__STORE, 1);
    return tile + used;
}

/* The elements below `end`. */
GCOMP__NOINLINE void gcomp__cursor_scatter(gcomp__cursor *c, size_t end, float weight)
{
    float tile[GCOMP__CURSOR + 32];
    const size_t ahead = c->cached ? 0 : 16;
    while (c->got - c->at > ahead || gcomp__cursor_fill(c)) {
        const uint32_t *index = c->index + c->at;
        const size_t base = c->base, left = c->got - c->at;
        const float *next = c->next;
        float *value;
        size_t stop = left > ahead ? left - ahead : left, lines, i;
        if (base + index[stop - 1] >= end) {
            for (i = stop, stop = 0; stop + 8 < i && base + index[stop + 7] < end;) stop += 8;
            while (base + index[stop] < end) stop++;
            if (!stop) break;
        }
        value = gcomp__cursor_values(c, tile, stop);
        lines = gcomp__min(c->lines, stop);
        if (c->residual)
            for (i = 0; i < stop; i++) gcomp__take_out(c->residual + base + index[i], value[i]);
        if (c->masked)
            for (i = 0; i < stop; i++) c->masked[base + index[i]] = 0;
        if (c->y)
            for (i = 0; i < stop; i++) {
                float *y = c->y + (base - c->from + index[i]), term = value[i] * weight;
                if (i < lines) GCOMP__PREFETCH_NEAR(next + 16 * i);
                GCOMP__PIN(term);
                *y = value[i] = *y + term;
            }
        if (c->y && (c->view->set->common->worst)(value, stop) >= 0x7f800000u) /* no element is there twice */
            for (i = 0; i < stop; i++) c->y[base - c->from + index[i]] = gcomp__saturated(value[i]);
        c->at += (unsigned)stop;
        c->done += stop;
        if (!lines) continue;
        c->next += 16 * lines;
        c->lines -= (unsigned)lines;
    }
}

/* residual <- residual - decode(payload) where `only` is not zero. */
static void gcomp__sparse_take(const gcomp__view *view, float *residual, const float *only)
{
    float tile[GCOMP__CURSOR + 32];
    gcomp__cursor c;
    unsigned i;
    gcomp__cursor_open(&c, view, NULL, residual, NULL, 0);
    while (gcomp__cursor_fill(&c)) {
        const float *value = gcomp__cursor_values(&c, tile, c.got);
        for (i = 0; i < c.got; i++) {
            const size_t at = c.base + c.index[i];
            if (only[at] != 0) gcomp__take_out(residual + at, value[i]);
        }
        c.done += c.at = c.got;
    }
}

/* A mean that is larger than the caches is made in a part of the scratch that they hold, and then written past them. */
enum { GCOMP__SPARSE_STAGE = 16384, GCOMP__SPARSE_LARGE = 2 * GCOMP__FAR }; /* floats; that is where two arrays are too large */
GCOMP__NOINLINE void gcomp__sparse_past(const gcomp__call *call, const gcomp__sink *sink)
{
    float *const stage = (float *)(void *)call->scratch;
    gcomp__cursor cursors[GCOMP__SPARSE_CURSORS];
    size_t begin, end, w;
    for (w = 0; w < sink->count; w++) gcomp__cursor_open(cursors + w, sink->views + w, stage, NULL, NULL, 1);
    memset(stage, 0, 4 * GCOMP__SPARSE_STAGE);
    for (begin = 0; begin < sink->n; begin = end) {
        const size_t over = (size_t)((uintptr_t)(sink->y + begin) & 63) / 4; /* of the first part: then lines are whole */
        end = gcomp__min(sink->n, begin + GCOMP__SPARSE_STAGE - over);
        for (w = 0; w < sink->count; w++) {
            cursors[w].from = begin;
            gcomp__cursor_scatter(cursors + w, end, sink->weight);
        }
        if (over) {
            memcpy(sink->y + begin, stage, 4 * (end - begin));
            memset(stage, 0, 4 * (end - begin));
        } else (call->set->common->past)(sink->y + begin, stage, end - begin);
    }
}

/* Chunk by chunk while it is in cache: what the dense part of the ending asks for, then the elements of all payloads, in order;
   so many payloads at once as there are cursors. With threads the dense part of all chunks comes first. */
GCOMP__SHARED void gcomp__sparse_decode(const gcomp__call *call, const gcomp__sink *sink)
{
    float *const masked = sink->momentum ? sink->momentum->masked : NULL;
    const int apart = sink->ending == GCOMP__COMMIT && sink->own && (sink->residual || masked) &&
                      (!sink->y || sink->own_at >= sink->count);
    const size_t chunks = gcomp__chunks(sink->n);
    const size_t step = call->parallel.run || (sink->count == 1 && sink->ending != GCOMP__COMMIT) ? chunks : 1;
    const int dense = sink->ending != GCOMP__ADD || sink->fresh; /* the first pass writes all elements: they are in cache then */
    const float weight = sink->ending == GCOMP__STORE ? 1.0f : sink->weight;
    gcomp__cursor cursors[GCOMP__SPARSE_CURSORS];
    gcomp__absorb_job job;
    size_t w = 0, used, i;
    int first = 1;
    if (sink->ending == GCOMP__ADD && sink->fresh && step == 1 && sink->n >= GCOMP__SPARSE_LARGE &&
        (uintptr_t)sink->y % 4 == 0 && sink->count <= GCOMP__SPARSE_CURSORS && call->scratch_bytes >= 4 * GCOMP__SPARSE_STAGE) {
        gcomp__sparse_past(call, sink);
        return;
    }
    job.common = call->set->common;
    job.sink = sink;
    do {
        const int cached = first && dense && step == 1;
        used = 0;
        if (first && apart) gcomp__cursor_open(cursors + used++, sink->own, NULL, sink->residual, masked, cached);
        for (; sink->y && w < sink->count && used < GCOMP__SPARSE_CURSORS; w++) {
            const int own = !apart && sink->own && w == sink->own_at;
            gcomp__cursor_open(cursors + used++, sink->views + w, sink->y, own ? sink->residual : NULL, own ? masked : NULL,
                               cached);
        }
        for (job.first = 0; job.first < chunks; job.first += step) {
            size_t begin = job.first * GCOMP_CHUNK, end = gcomp__min((job.first + step) * GCOMP_CHUNK, sink->n);
            if (first && sink->ending == GCOMP__COMMIT) gcomp__run(call, step, gcomp__absorb_chunk, &job);
            else if (first && dense) memset(sink->y + begin, 0, 4 * (end - begin));
            for (i = 0; i < used; i++) {
                const size_t lines = cached && sink->y && sink->n - end >= GCOMP_CHUNK ? GCOMP_CHUNK / 16 / used : 0;
                cursors[i].lines = (unsigned)lines;
                if (lines) cursors[i].next = sink->y + end + 16 * lines * i;
                gcomp__cursor_scatter(cursors + i, end, weight);
            }
        }
        first = 0;
    } while (sink->y && w < sink->count);
}

#define GCOMP__SPARSE_ADAPTED(adapt) \
    NULL, gcomp__sparse_bound, gcomp__sparse_scratch, gcomp__sparse_encode, gcomp__sparse_open, gcomp__sparse_check, \
    gcomp__sparse_decode, NULL, NULL, NULL, NULL, NULL, NULL, adapt, NULL, NULL
#define GCOMP__SPARSE_FUNCTIONS GCOMP__SPARSE_ADAPTED(NULL)
#endif

/* >>method topk: the k = max(1, ceil(density * n * (1 - 2^-40))) elements of largest |p|; of equal ones the first; zeros never.
   Stich et al., NeurIPS 2018. Candidates are those above the key that somewhat more than k of a sample reach. global=1: in steps
   only the k largest elements of the mean are applied, chosen by the same rule; what a worker sent to other places stays in its
   residual: gTop-k, Shi et al., ICDCS 2019, without its loss. */
#ifndef GCOMP_WITHOUT_TOPK
#define GCOMP__LIST_topk(X) X(topk)
GCOMP__SPARSE_METHOD(topk)
#ifdef GCOMP__LAST
static size_t gcomp__topk_most(const gcomp_codec *codec, size_t n) { return gcomp__sparse_k(codec->param[0], n); }

static gcomp_result gcomp__topk_select(const gcomp__call *call, const gcomp_codec *codec, gcomp__selection *s)
{
    const size_t k = gcomp__sparse_k(codec->param[0], s->n);
    return gcomp__sparse_largest(call, s, gcomp__sparse_guess(call, s, k, 1), k);
}

static void gcomp__topk_adapt(const gcomp_codec *codec, uint8_t *rounds, unsigned *flags)
{
    (void)rounds;
    if (codec->param[1] == 0) return;
    *flags &= ~(unsigned)GCOMP__CONSERVES_ELEMENT;
    *flags |= GCOMP__CONSERVES_MEAN | GCOMP__GLOBAL;
}

static const gcomp__selector gcomp__topk = {gcomp__topk_most, gcomp__topk_select};
static const gcomp__method gcomp__row_topk = {
    "topk", 5, GCOMP__FEEDBACK | GCOMP__CONSERVES_ELEMENT | GCOMP__SELECTS, {GCOMP__GATHER, 0, 0},
    {GCOMP__NUMBER("density", 0.01, 1e-9, 1, 0), GCOMP__COUNT("global", 0, 0, 1, 0)},
    GCOMP__SPARSE_ADAPTED(gcomp__topk_adapt), &gcomp__topk};
#endif
#else
#define GCOMP__LIST_topk(X)
#endif

/* >>method sampledtopk: about k elements of largest |p|, at least 0.8 k and at most 1.25 k (or all that are not zero): those
   above the key that k would reach by a sample of n / 64; where that misses, the k largest. Aji, Heafield, EMNLP 2017; Lin et
   al., ICLR 2018. */
#ifndef GCOMP_WITHOUT_SAMPLEDTOPK
#define GCOMP__LIST_sampledtopk(X) X(sampledtopk)
GCOMP__SPARSE_METHOD(sampledtopk)
#ifdef GCOMP__LAST
static const gcomp__selector gcomp__sampledtopk = {gcomp__about_most, gcomp__about_select};
static const gcomp__method gcomp__row_sampledtopk = {
    "sampledtopk", 21, GCOMP__FEEDBACK | GCOMP__CONSERVES_ELEMENT | GCOMP__SELECTS, {GCOMP__GATHER, 0, 0},
    {GCOMP__NUMBER("density", 0.01, 1e-9, 1, 0)}, GCOMP__SPARSE_FUNCTIONS,
    &gcomp__sampledtopk};
#endif
#else
#define GCOMP__LIST_sampledtopk(X)
#endif

/* >>method strom: elements |p| >= threshold. send=quantum: as threshold * sgn(p), the rest stays in the residual (Strom,
   Interspeech 2015; +onebit:block=tensor codes that in a bit, exactly); send=value: as p. */
#ifndef GCOMP_WITHOUT_STROM
#define GCOMP__LIST_strom(X) X(strom)
GCOMP__SPARSE_METHOD(strom)
#ifdef GCOMP__LAST
static gcomp_result gcomp__strom_select(const gcomp__call *call, const gcomp_codec *codec, gcomp__selection *s)
{
    const uint32_t t = gcomp__bits((float)codec->param[0]);
    size_t i;
    GCOMP__TRY(gcomp__sparse_collect(call, s, t, t, s->n));
    for (i = 0; codec->param[1] == 0 && i < s->count; i++)
        s->value[i] = gcomp__float(t | (gcomp__bits(s->value[i]) & 0x80000000u));
    return GCOMP_OK;
}

static const gcomp__selector gcomp__strom = {gcomp__all_most, gcomp__strom_select};
static const gcomp__method gcomp__row_strom = {
    "strom", 22, GCOMP__FEEDBACK | GCOMP__CONSERVES_ELEMENT | GCOMP__SELECTS, {GCOMP__GATHER, 0, 0},
    {GCOMP__NUMBER("threshold", 0.01, 1e-20, 1e20, 0), GCOMP__ONE_OF("send", 0, 1, 0, "quantum|value|")},
    GCOMP__SPARSE_FUNCTIONS, &gcomp__strom};
#endif
#else
#define GCOMP__LIST_strom(X)
#endif

/* >>method nonzero: the elements that are not zero. Alone it is lossless, and keeps no residual. */
#ifndef GCOMP_WITHOUT_NONZERO
#define GCOMP__LIST_nonzero(X) X(nonzero)
GCOMP__SPARSE_METHOD(nonzero)
#ifdef GCOMP__LAST
static gcomp_result gcomp__nonzero_select(const gcomp__call *call, const gcomp_codec *codec, gcomp__selection *s)
{
    (void)codec;
    return gcomp__sparse_collect(call, s, 1, 1, s->n);
}

static void gcomp__nonzero_adapt(const gcomp_codec *codec, uint8_t *rounds, unsigned *flags)
{
    (void)rounds;
    if (codec->value == gcomp__row_none.wire) *flags &= ~(unsigned)GCOMP__FEEDBACK;
}

static const gcomp__selector gcomp__nonzero = {gcomp__all_most, gcomp__nonzero_select};
static const gcomp__method gcomp__row_nonzero = {
    "nonzero", 24, GCOMP__FEEDBACK | GCOMP__CONSERVES_ELEMENT | GCOMP__SELECTS, {GCOMP__GATHER, 0, 0},
    GCOMP__NO_PARAMS, GCOMP__SPARSE_ADAPTED(gcomp__nonzero_adapt), &gcomp__nonzero};
#endif
#else
#define GCOMP__LIST_nonzero(X)
#endif

/* >>method dryden: of the positive elements the share `density` that is largest, and of the negative ones; never more than
   4 density n elements. The two thresholds come from a sample; a sign that is not in it takes the other's, and where there are
   zeros alone all elements are taken. +onebit:block=tensor sends the mean of either side instead of the values, as published:
   Dryden, Moon, Jacobs, Van Essen, MLHPC 2016. */
#ifndef GCOMP_WITHOUT_DRYDEN
#define GCOMP__LIST_dryden(X) X(dryden)
GCOMP__SPARSE_METHOD(dryden)
#ifdef GCOMP__LAST
static size_t gcomp__dryden_most(const gcomp_codec *codec, size_t n)
{
    return gcomp__min(n, gcomp__times(gcomp__sparse_k(codec->param[0], n), 4));
}

/* The key that the share of one sign's sampled elements reaches; where there are none, that of any. */
static uint32_t gcomp__dryden_side(const gcomp_codec *codec, const float *value, size_t count, size_t *bins)
{
    size_t left;
    if (!count) return 1;
    return gcomp__sparse_key(gcomp__sparse_kth(value, count, gcomp__sparse_k(codec->param[0], count), bins, &left));
}

static gcomp_result gcomp__dryden_select(const gcomp__call *call, const gcomp_codec *codec, gcomp__selection *s)
{
    const size_t sample = gcomp__min(s->n, gcomp__max(4096, gcomp__sparse_sample(s->n)));
    const size_t most = gcomp__dryden_most(codec, s->n);
    float *negative = (float *)(void *)s->index; /* free until elements are collected */
    size_t i, above = 0, below = 0;
    uint32_t least[2];
    if (!s->n) return GCOMP_OK;
    gcomp__sparse_look(call, s, sample);
    for (i = 0; i < sample; i++) { /* without branches: signs are random; zeros go nowhere */
        const float v = s->value[i];
        const uint32_t word = gcomp__bits(v), some = word << 1 != 0;
        s->value[above] = v;
        negative[below] = v;
        above += some & ~word >> 31;
        below += some & word >> 31;
    }
    least[0] = gcomp__dryden_side(codec, s->value, above, s->bins);
    least[1] = gcomp__dryden_side(codec, negative, below, s->bins);
    if (!above) least[0] = least[1];
    if (!below) least[1] = least[0];
    GCOMP__TRY(gcomp__sparse_collect(call, s, least[0], least[1], most));
    if (s->count > most) gcomp__sparse_keep(s, most);
    return GCOMP_OK;
}

static const gcomp__selector gcomp__dryden = {gcomp__dryden_most, gcomp__dryden_select};
static const gcomp__method gcomp__row_dryden = {
    "dryden", 23, GCOMP__FEEDBACK | GCOMP__CONSERVES_ELEMENT | GCOMP__SELECTS, {GCOMP__GATHER, 0, 0},
    {GCOMP__NUMBER("density", 0.01, 1e-9, 1, 0)}, GCOMP__SPARSE_FUNCTIONS,
    &gcomp__dryden};
#endif
#else
#define GCOMP__LIST_dryden(X)
#endif

/* >>method wangni: element i with probability p_i = min(1, |p| / q), as q * sgn(p), or as it is where p_i = 1: unbiased, with the
   least variance for that many; E|p - C(p)|^2 = sum of |p| (q - |p|) over |p| < q. q is the mean of |p| over density; then,
   twice, what brings those below q back to density * n in all. At most k + 8 sqrt(k) + 16 elements for k = density * n: of more,
   which one of 10^13 payloads would have, the largest. Wangni, Wang, Liu, Zhang, NeurIPS 2018. */
#ifndef GCOMP_WITHOUT_WANGNI
#define GCOMP__LIST_wangni(X) X(wangni)
#ifndef GCOMP__WANGNI_TYPES
#define GCOMP__WANGNI_TYPES
typedef struct gcomp__wangni {
    gcomp__selection *s;           /* guess: the key of the quantum */
    double rest;                   /* the sum of |p| whose keys are below the guess */
    size_t above;                  /* how many are not */
    float quantum, lift, inverse;  /* p_i = |p| * lift * inverse / 65536 */
    uint64_t words;
} gcomp__wangni;

typedef struct gcomp__wangni_kernels {
    void (*look)(gcomp__wangni *job); /* what a quantum so large or larger may send; until the end or until the buffer is full */
} gcomp__wangni_kernels;
#endif

GCOMP__INLINE uint32_t GCOMP__F(wangni_drawn)(const gcomp__wangni *job, GCOMP__F(v) p, GCOMP__F(w) draw)
{
    const GCOMP__F(v) lifted = GCOMP__F(mul)(GCOMP__F(abs)(p), GCOMP__F(splat)(job->lift));
    const GCOMP__F(v) t = GCOMP__F(clamp)(GCOMP__F(mul)(lifted, GCOMP__F(splat)(job->inverse)), 65536.0f);
    return GCOMP__F(weq)(GCOMP__F(wmin)(draw, GCOMP__F(trunc)(t)), draw);
}

/* Masks of a tile first, as in collect. */
GCOMP__HEAVY void GCOMP__F(wangni_driver)(gcomp__wangni *to, int general, int feedback)
{
    gcomp__wangni job = *to;
    gcomp__selection *s = job.s;
    const gcomp_input in = s->in;
    const uint32_t guess = s->guess;
    size_t at = s->at, count = s->count, groups, j;
    uint32_t sent[GCOMP__TILE / 16], draws[GCOMP__TILE / 2 + 16], any;
    GCOMP__F(v) p;
    for (; at < s->end; at += 16 * groups) {
        GCOMP__F(sum) sum = GCOMP__F(sum_none)();
        groups = (gcomp__min(GCOMP__TILE, s->end - at) + 15) / 16;
        if (count + 16 * groups > s->capacity) break;
        GCOMP__F(draw)(draws, job.words, at, 16 * groups);
        for (any = 0, j = 0; j < groups; j++) {
            const size_t i = at + 16 * j;
            uint32_t large;
            if (i + 16 <= s->n) p = GCOMP__F(load_p)(&in, i, general, feedback);
            else p = GCOMP__F(load_p_some)(&in, i, s->n - i);
            large = GCOMP__F(keys)(p, guess);
            sent[j] = GCOMP__F(wangni_drawn)(&job, p, GCOMP__F(halves)(draws + 8 * j)) | large;
            any |= (uint32_t)(sent[j] != 0) << j;
            if (large) {
                job.above += gcomp__popcount(large);
                p = GCOMP__F(pick)(large, GCOMP__F(splat)(0), p);
            }
            sum = GCOMP__F(sum_add)(sum, GCOMP__F(abs)(p));
        }
        job.rest += GCOMP__F(sum_fold)(sum);
        GCOMP__PIN_SUM(job.rest);
        for (; any; any &= any - 1) {
            const size_t i = at + 16 * (size_t)(j = gcomp__first_one(any));
            if (i + 16 <= s->n) p = GCOMP__F(load_p)(&in, i, general, feedback);
            else p = GCOMP__F(load_p_some)(&in, i, s->n - i);
            sent[j] &= GCOMP__F(keys)(p, 1); /* a draw of 0 takes zeros too */
            GCOMP__F(keep)(s->value + count, s->index + count, p, (uint32_t)i, sent[j]);
            count += gcomp__popcount(sent[j]);
        }
    }
    s->at = gcomp__min(at, s->end);
    s->count = count;
    to->rest = job.rest;
    to->above = job.above;
}

static void GCOMP__F(wangni_look)(gcomp__wangni *job)
{
    const int feedback = job->s->in.residual != NULL;
    if (GCOMP__F(general)(&job->s->in)) GCOMP__F(wangni_driver)(job, 1, feedback);
    else if (feedback) GCOMP__F(wangni_driver)(job, 0, 1);
    else GCOMP__F(wangni_driver)(job, 0, 0);
}
static const gcomp__wangni_kernels GCOMP__F(wangni_kernels) = {GCOMP__F(wangni_look)};

#ifdef GCOMP__LAST
static size_t gcomp__wangni_most(const gcomp_codec *codec, size_t n)
{
    const size_t k = gcomp__sparse_k(codec->param[0], n);
    uint64_t root = 1;
    while (root * root < k) root += root / 8 + 1;
    return gcomp__min(n, gcomp__plus(k, (size_t)(8 * root + 16)));
}

static void gcomp__wangni_set(gcomp__wangni *job, double q)
{
    job->quantum = q < 3.4028234663852886e38 ? (float)q : 3.402823466e38f;
    if ((double)job->quantum < q && gcomp__bits(job->quantum) < 0x7f7fffffu)
        job->quantum = gcomp__float(gcomp__bits(job->quantum) + 1);
    job->s->guess = gcomp__sparse_key(gcomp__bits(job->quantum));
    job->quantum = gcomp__float(job->s->guess);
    job->lift = job->quantum < 1 ? 18446744073709551616.0f : 1;
    job->inverse = 65536.0f / (job->quantum * job->lift);
}

/* Keeps what the present quantum may send; `exact`: what it sends, as that. */
static void gcomp__wangni_thin(gcomp__wangni *job, int exact)
{
    gcomp__selection *s = job->s;
    const size_t pieces = gcomp__index_pieces(s->end);
    size_t piece, i = 0, kept = 0;
    s->ends[pieces - 1] = s->count;
    for (piece = 0; piece < pieces; s->ends[piece++] = kept) {
        const size_t stop = s->ends[piece];
        for (; i < stop; i++) {
            const uint64_t element = ((uint64_t)piece << 32) + s->index[i];
            const uint32_t word = gcomp__bits(s->value[i]), key = word & 0x7fffffffu, draw = gcomp__draw(job->words, element);
            float t = gcomp__float(key) * job->lift;
            uint32_t whole;
            size_t sent;
            GCOMP__PIN(t);
            t *= job->inverse;
            GCOMP__PIN(t);
            whole = t < 65536 ? (uint32_t)t : 65536;
            sent = draw < whole;
            if (draw == whole)
                sent = !exact || gcomp__draw(job->words ^ GCOMP__MORE_BITS, element) < (uint32_t)((t - (float)whole) * 65536);
            s->value[kept] = exact && key < s->guess ? gcomp__float(s->guess | (word & 0x80000000u)) : s->value[i];
            s->index[kept] = s->index[i];
            kept += sent;
        }
    }
    s->count = kept;
}

/* q, from the candidates of keys from s->guess on and the `rest` of all others. May be below the guess: then the others do not
   suffice for it. */
static double gcomp__wangni_fit(const gcomp__selection *s, double rest, size_t above, double wanted)
{
    double q = 0;
    int round;
    for (round = 0; round < 3 && (!round || (above && q >= (double)gcomp__float(s->guess))); round++) {
        double sum = rest, left = wanted;
        size_t i;
        for (i = 0; above && i < s->count; i++) {
            const uint32_t key = gcomp__bits(s->value[i]) & 0x7fffffffu;
            const double a = (double)gcomp__float(key);
            if (key < s->guess) continue;
            if (round && a >= q) left -= 1;
            else sum += a;
            GCOMP__PIN_SUM(sum);
        }
        if (round && !(sum > 0 && sum < q * left)) break; /* c <= 1 */
        q = sum / left;
    }
    return q;
}

/* A full buffer: at least `most` would be sent with a quantum of their least, and it holds one and a half times as many. */
static void gcomp__wangni_raise(gcomp__wangni *job, size_t most)
{
    gcomp__selection *s = job->s;
    const uint32_t before = s->guess;
    size_t i, ties;
    const double least = (double)gcomp__float(gcomp__sparse_kth(s->value, s->count, most, s->bins, &ties));
    gcomp__wangni_set(job, least > 1.25 * (double)job->quantum ? least : 1.25 * (double)job->quantum);
    if (s->guess == before) gcomp__sparse_keep(s, most); /* the largest float there is */
    for (i = 0; i < s->count; i++) {
        const uint32_t key = gcomp__bits(s->value[i]) & 0x7fffffffu;
        if (key < before || key >= s->guess) continue;
        job->above--;
        job->rest += (double)gcomp__float(key);
        GCOMP__PIN_SUM(job->rest);
    }
    gcomp__wangni_thin(job, 0);
}

static gcomp_result gcomp__wangni_select(const gcomp__call *call, const gcomp_codec *codec, gcomp__selection *s)
{
    const size_t sample = gcomp__min(s->n, gcomp__max(4096, gcomp__min(gcomp__sparse_sample(s->n), 8192)));
    const size_t most = gcomp__wangni_most(codec, s->n);
    gcomp__wangni job;
    double q;
    int tries;
    if (!s->n) return GCOMP_OK;
    memset(&job, 0, sizeof job);
    job.s = s;
    job.words = gcomp__stream(s->in.key.own, GCOMP__PURPOSE_SELECT);
    gcomp__sparse_look(call, s, sample);
    if ((call->set->common->worst)(s->value, sample) >= 0x7f800000u) return GCOMP_NOT_FINITE;
    s->count = sample;
    s->guess = 1;
    q = gcomp__wangni_fit(s, 0, sample, codec->param[0] * (double)sample);
    for (tries = 0; tries < 4; tries++) { /* candidates with somewhat less, then with the true one */
        gcomp__wangni_set(&job, 0.75 * q);
        job.rest = 0;
        job.above = s->count = 0;
        gcomp__selection_from(s, 0);
        for (;;) {
            (((const gcomp__wangni_kernels *)call->kernels)->look)(&job);
            if ((call->set->common->worst)(s->value, s->count) >= 0x7f800000u) return GCOMP_NOT_FINITE;
            if (s->at < s->end) gcomp__wangni_raise(&job, most);
            else if (!gcomp__selection_next(s)) break;
        }
        q = gcomp__wangni_fit(s, job.rest, job.above, codec->param[0] * (double)s->n);
        if (q >= (double)job.quantum || s->guess == 1) break;
    }
    gcomp__wangni_set(&job, q > (double)job.quantum ? q : (double)job.quantum); /* any is unbiased */
    gcomp__wangni_thin(&job, 1);
    if (s->count > most) gcomp__sparse_keep(s, most);
    return GCOMP_OK;
}

static void gcomp__wangni_adapt(const gcomp_codec *codec, uint8_t *rounds, unsigned *flags)
{
    (void)rounds;
    if (codec->value != gcomp__row_none.wire) *flags &= gcomp__method_of(codec->value)->flags | ~(unsigned)GCOMP__UNBIASED;
}

static const gcomp__selector gcomp__wangni_selector = {gcomp__wangni_most, gcomp__wangni_select};
static const gcomp__method gcomp__row_wangni = {
    "wangni", 27, GCOMP__UNBIASED | GCOMP__CONSERVES_ELEMENT | GCOMP__SELECTS, {GCOMP__GATHER, 0, 0},
    {GCOMP__NUMBER("density", 0.02, 1e-9, 1, 0)}, GCOMP__SPARSE_ADAPTED(gcomp__wangni_adapt), &gcomp__wangni_selector};
#endif
#else
#define GCOMP__LIST_wangni(X)
#endif

/* >>method adacomp: the gradient d is added to p once more; of a bin of elements those are sent whose |p + d| reaches its largest
   |p|. Bins begin anew at multiples of 2^32. send=mean: as s * sgn(p), s the mean of the largest of all bins that are not zero
   (+onebit:block=tensor codes that in a bit, exactly); send=value: as p. Zeros are never sent. The paper's bins are 500, for
   convolutions 50. Chen, Choi, Brand, Agrawal, Zhang, Gopalakrishnan, AAAI 2018. */
#ifndef GCOMP_WITHOUT_ADACOMP
#define GCOMP__LIST_adacomp(X) X(adacomp)
#ifndef GCOMP__ADACOMP_TYPES
#define GCOMP__ADACOMP_TYPES
typedef struct gcomp__adacomp {
    gcomp__selection *s;
    size_t bin, bins; /* its elements; how many are not zero */
    double sum;       /* of their largest |p| */
    uint32_t worst;
} gcomp__adacomp;

typedef struct gcomp__adacomp_kernels { void (*bins)(gcomp__adacomp *job); } gcomp__adacomp_kernels;
#endif

/* Elements i .. end - 1, at most 16 of them; zeros behind. */
GCOMP__INLINE GCOMP__F(v) GCOMP__F(adacomp_load)(const gcomp_input *in, size_t i, size_t end, size_t n, int general,
                                                 int feedback)
{
    GCOMP__F(v) p;
    if (i + 16 <= end) return GCOMP__F(load_p)(in, i, general, feedback);
    if (i + 16 > n) return GCOMP__F(load_p_some)(in, i, end - i);
    p = GCOMP__F(load_p)(in, i, general, feedback);
    return GCOMP__F(pick)((1u << (end - i)) - 1, p, GCOMP__F(splat)(0));
}

GCOMP__HEAVY void GCOMP__F(adacomp_driver)(gcomp__adacomp *job, int general, int feedback)
{
    gcomp__selection *s = job->s;
    const gcomp_input in = s->in;
    gcomp_input grad = in;
    const size_t n = s->n;
    size_t begin, end, i, count = s->count;
    uint32_t most;
    grad.residual = NULL;
    for (begin = s->at; begin < s->end; begin = end) {
        GCOMP__F(v) worst = GCOMP__F(splat)(0);
        end = s->end - begin > job->bin ? begin + job->bin : s->end;
        for (i = begin; i < end; i += 16)
            worst = GCOMP__F(worst)(worst, GCOMP__F(adacomp_load)(&in, i, end, n, general, feedback));
        most = GCOMP__F(most)(worst);
        job->worst = most > job->worst ? most : job->worst;
        if (most == 0 || most >= 0x7f800000u) continue;
        job->sum += (double)gcomp__float(most);
        GCOMP__PIN_SUM(job->sum);
        job->bins++;
        for (i = begin; i < end; i += 16) {
            const GCOMP__F(v) p = GCOMP__F(adacomp_load)(&in, i, end, n, general, feedback);
            const GCOMP__F(v) d = feedback ? GCOMP__F(adacomp_load)(&grad, i, end, n, general, 0) : p;
            const uint32_t mask = GCOMP__F(keys)(GCOMP__F(add)(p, d), most) & GCOMP__F(keys)(p, 1);
            if (!mask) continue;
            GCOMP__F(keep)(s->value + count, s->index + count, p, (uint32_t)i, mask);
            count += gcomp__popcount(mask);
        }
    }
    s->count = count;
}

static void GCOMP__F(adacomp_bins)(gcomp__adacomp *job)
{
    const int feedback = job->s->in.residual != NULL;
    if (GCOMP__F(general)(&job->s->in)) GCOMP__F(adacomp_driver)(job, 1, feedback);
    else if (feedback) GCOMP__F(adacomp_driver)(job, 0, 1);
    else GCOMP__F(adacomp_driver)(job, 0, 0);
}
static const gcomp__adacomp_kernels GCOMP__F(adacomp_kernels) = {GCOMP__F(adacomp_bins)};

#ifdef GCOMP__LAST
static gcomp_result gcomp__adacomp_select(const gcomp__call *call, const gcomp_codec *codec, gcomp__selection *s)
{
    gcomp__adacomp job;
    size_t i;
    memset(&job, 0, sizeof job);
    job.s = s;
    job.bin = (size_t)codec->param[0];
    gcomp__selection_from(s, 0);
    do (((const gcomp__adacomp_kernels *)call->kernels)->bins)(&job);
    while (gcomp__selection_next(s));
    if (job.worst >= 0x7f800000u) return GCOMP_NOT_FINITE;
    if (codec->param[1] == 0 && s->count) {
        const uint32_t mean = gcomp__bits((float)(job.sum / (double)job.bins));
        for (i = 0; i < s->count; i++) s->value[i] = gcomp__float(mean | (gcomp__bits(s->value[i]) & 0x80000000u));
    }
    return GCOMP_OK;
}

static const gcomp__selector gcomp__adacomp_selector = {gcomp__all_most, gcomp__adacomp_select};
static const gcomp__method gcomp__row_adacomp = {
    "adacomp", 28, GCOMP__FEEDBACK | GCOMP__CONSERVES_ELEMENT | GCOMP__SELECTS, {GCOMP__GATHER, 0, 0},
    {GCOMP__COUNT("bin", 500, 1, 65536, 0), GCOMP__ONE_OF("send", 0, 1, 0, "mean|value|")},
    GCOMP__SPARSE_FUNCTIONS, &gcomp__adacomp_selector};
#endif
#else
#define GCOMP__LIST_adacomp(X)
#endif

/* >>method blocktopk: of the blocks of `block` elements the share `density` (rounded as topk's) that has the largest sum of
   squares, with all their elements; of equal ones the first; zero blocks never. The last block may be shorter. One index a
   block is sent, not one an element, and what lies together is written together. */
#ifndef GCOMP_WITHOUT_BLOCKTOPK
#define GCOMP__LIST_blocktopk(X) X(blocktopk)
#ifndef GCOMP__BLOCKTOPK_TYPES
#define GCOMP__BLOCKTOPK_TYPES
typedef struct gcomp__blocktopk_kernels {
    /* the sum of squares of each block of n elements; 0 if one is not finite */
    int (*squares)(const gcomp_input *in, size_t n, size_t block, double *sums);
} gcomp__blocktopk_kernels;
#endif

GCOMP__INLINE int GCOMP__F(blocktopk_driver)(const gcomp_input *from, size_t n, size_t block, double *sums, int general,
                                             int feedback)
{
    const gcomp_input in = *from;
    size_t begin, end, i;
    int finite = 1;
    for (begin = 0; begin < n; begin = end) {
        GCOMP__F(sum) sum = GCOMP__F(sum_none)();
        end = n - begin > block ? begin + block : n;
        for (i = begin; i + 16 <= end; i += 16) {
            const GCOMP__F(v) p = GCOMP__F(load_p)(&in, i, general, feedback);
            sum = GCOMP__F(sum_dot)(sum, p, p);
        }
        if (i < end) {
            const GCOMP__F(v) p = GCOMP__F(load_p_some)(&in, i, end - i);
            sum = GCOMP__F(sum_dot)(sum, p, p);
        }
        *sums = GCOMP__F(sum_fold)(sum);
        finite &= gcomp__finite_double(*sums++);
    }
    return finite;
}

static int GCOMP__F(blocktopk_squares)(const gcomp_input *in, size_t n, size_t block, double *sums)
{
    if (GCOMP__F(general)(in)) return GCOMP__F(blocktopk_driver)(in, n, block, sums, 1, in->residual != NULL);
    if (in->residual) return GCOMP__F(blocktopk_driver)(in, n, block, sums, 0, 1);
    return GCOMP__F(blocktopk_driver)(in, n, block, sums, 0, 0);
}
static const gcomp__blocktopk_kernels GCOMP__F(blocktopk_kernels) = {GCOMP__F(blocktopk_squares)};

#ifdef GCOMP__LAST
static size_t gcomp__blocktopk_most(const gcomp_codec *codec, size_t n)
{
    const size_t block = (size_t)codec->param[1];
    return gcomp__min(n, gcomp__times(gcomp__sparse_k(codec->param[0], gcomp__pieces(n, block)), block));
}

static size_t gcomp__blocktopk_scratch(const gcomp_codec *codec, size_t n)
{
    return gcomp__plus(gcomp__sparse_scratch(codec, n), 8 * (n / (size_t)codec->param[1] + 1));
}

static gcomp_result gcomp__blocktopk_select(const gcomp__call *call, const gcomp_codec *codec, gcomp__selection *s)
{
    const size_t block = (size_t)codec->param[1], blocks = gcomp__pieces(s->n, block);
    const size_t k = gcomp__sparse_k(codec->param[0], blocks);
    double *sums = (double *)(void *)(call->scratch + gcomp__sparse_scratch(codec, s->n)); /* behind all the others share */
    size_t b, ties = 0, taken = 0;
    uint64_t least;
    s->each = block;
    if (!s->n) return GCOMP_OK;
    if (!(((const gcomp__blocktopk_kernels *)call->kernels)->squares)(&s->in, s->n, block, sums)) return GCOMP_NOT_FINITE;
    least = gcomp__kth_key(sums, 1, blocks, k, s->bins, &ties);
    for (b = 0; b < blocks; b++) {
        const uint64_t key = gcomp__key_of(sums, 1, b);
        size_t *end = s->ends + ((uint64_t)b >> 32);
        gcomp_input in = s->in;
        *end = taken;
        if (key < least || key == 0 || (key == least && ties == 0)) continue;
        ties -= key == least;
        in.grad = (const uint8_t *)in.grad + b * block * gcomp__dtype_bytes(in.dtype);
        if (in.residual) in.residual += b * block;
        (void)(call->set->common->scale_copy)(s->value + s->count, &in, 0, gcomp__min(block, s->n - b * block), 1);
        s->count += gcomp__min(block, s->n - b * block);
        s->index[taken] = (uint32_t)b;
        *end = ++taken;
    }
    return GCOMP_OK;
}

static const char *gcomp__blocktopk_refuse(const double *param, int values)
{
    (void)values;
    return param[1] == 0 ? "blocktopk:block=tensor would choose nothing: it takes a power of two" : NULL;
}

static const gcomp__selector gcomp__blocktopk_selector = {gcomp__blocktopk_most, gcomp__blocktopk_select};
static const gcomp__method gcomp__row_blocktopk = {
    "blocktopk", 29, GCOMP__FEEDBACK | GCOMP__CONSERVES_ELEMENT | GCOMP__SELECTS | GCOMP__GROUPS, {GCOMP__GATHER, 0, 0},
    {GCOMP__NUMBER("density", 0.01, 1e-9, 1, 0), {"block", GCOMP__BLOCK, 256, 16, GCOMP_CHUNK, 0, NULL, 0}},
    NULL, gcomp__sparse_bound, gcomp__blocktopk_scratch, gcomp__sparse_encode, gcomp__sparse_open,
    gcomp__sparse_check, gcomp__sparse_decode, GCOMP__NEVER_SUMS, gcomp__blocktopk_refuse, &gcomp__blocktopk_selector};
#endif
#else
#define GCOMP__LIST_blocktopk(X)
#endif

/* >>method dgc: momentum that is corrected for what is sent late. Lin, Han, Mao, Wang, Dally, ICLR 2018.
     g    <- g * min(1, clip * sqrt(world) / |g|_2), of the tensor, where a clip is given: if the gradients of the workers
             differ by independent noise, their mean is 1 / sqrt(world) as long as each of them, and gets the norm `clip`
             (the paper divides by the number of workers first, adds, and clips at clip / sqrt(world))
     next =  m u + g,    p = v + next            nesterov=1: next = m (u + g),  p = v + next + g
   About density * n of the largest p are sent, as sampledtopk's. v, the residual, becomes p less what was sent; u becomes next,
   and with masking=1 zero where something was sent. In the first `warmup` epochs more is sent: a quarter, 1/16, 1/64 and 0.4 %
   of the elements, for a quarter of them each. */
#ifndef GCOMP_WITHOUT_DGC
#define GCOMP__LIST_dgc(X) X(dgc)
GCOMP__SPARSE_METHOD(dgc)

#ifdef GCOMP__LAST
/* The codec with the density of an epoch; none is denser than the first. */
static gcomp_codec gcomp__dgc_at(const gcomp_codec *codec, uint32_t epoch)
{
    gcomp_codec now = *codec;
    now.param[0] = gcomp__warm_density(gcomp__warm_share(GCOMP__WARM_SHARES, epoch, codec->param[5]), codec->param[0]);
    return now;
}

static void gcomp__dgc_adapt(const gcomp_codec *codec, uint8_t *rounds, unsigned *flags)
{
    (void)rounds;
    if (codec->param[5] > 0) *flags |= GCOMP__BY_EPOCHS;
}

static size_t gcomp__dgc_bound(const gcomp_codec *codec, size_t n)
{
    const gcomp_codec first = gcomp__dgc_at(codec, 0);
    return gcomp__sparse_bound(&first, n);
}

static size_t gcomp__dgc_most(const gcomp_codec *codec, size_t n)
{
    const gcomp_codec first = gcomp__dgc_at(codec, 0);
    return gcomp__about_most(&first, n);
}

static size_t gcomp__dgc_p_bytes(size_t n) { return gcomp__round_up(gcomp__times(n, 4), 64); }

static size_t gcomp__dgc_scratch(const gcomp_codec *codec, size_t n)
{
    const gcomp_codec first = gcomp__dgc_at(codec, 0);
    return gcomp__plus(gcomp__dgc_p_bytes(n), gcomp__sparse_scratch(&first, n));
}

static size_t gcomp__dgc_state(const gcomp_codec *codec, size_t rows, size_t cols)
{
    (void)codec;
    return gcomp__times(rows, cols);
}

static size_t gcomp__dgc_local(const gcomp_codec *codec, size_t rows, size_t cols)
{
    (void)codec;
    return rows && cols; /* the scale of the gradient, clipped */
}

static gcomp_result gcomp__dgc_clip(gcomp__work *work)
{
    double limit = work->codec->param[3], norm;
    gcomp__work look = *work;
    gcomp__measured all;
    work->local[0] = work->in.scale;
    if (limit == 0) return GCOMP_OK;
    look.in.residual = NULL;
    GCOMP__TRY(gcomp__look_at(&look, GCOMP__L2, &all));
    norm = gcomp__sqrt(all.sum);
    limit *= gcomp__sqrt((double)work->world);
    if (norm > limit) work->local[0] = (float)((double)work->in.scale * (limit / norm));
    return GCOMP_OK;
}

static gcomp__momentum gcomp__dgc_momentum(const gcomp__call *call)
{
    const gcomp__work *work = call->work;
    gcomp__momentum d;
    memset(&d, 0, sizeof d);
    d.in = work->in;
    d.in.scale = work->local[0];
    d.in.residual = NULL;
    d.n = work->n;
    d.u = work->state;
    d.v = work->in.residual;
    d.factor = (float)work->codec->param[1];
    d.nesterov = work->codec->param[2] != 0;
    return d;
}

static gcomp_result gcomp__dgc_encode(const gcomp__call *call, const gcomp_codec *codec, const gcomp_input *in, size_t n,
                                      uint8_t *body, size_t capacity, size_t *bytes)
{
    const gcomp_codec now = gcomp__dgc_at(codec, call->work->epoch);
    gcomp__call rest = *call;
    gcomp__momentum d;
    gcomp_input made;
    if (call->scratch_bytes < gcomp__dgc_scratch(codec, n)) return GCOMP_SCRATCH_TOO_SMALL;
    GCOMP__TRY(gcomp__dgc_clip(call->work));
    d = gcomp__dgc_momentum(call);
    d.p = (float *)(void *)call->scratch;
    gcomp__advance_all(call, &d);
    made = gcomp__plain_input(d.p);
    made.key = in->key;
    rest.scratch += gcomp__dgc_p_bytes(n);
    rest.scratch_bytes -= gcomp__dgc_p_bytes(n);
    return gcomp__sparse_encode(&rest, &now, &made, n, body, capacity, bytes);
}

static void gcomp__dgc_decode(const gcomp__call *call, const gcomp__sink *sink)
{
    gcomp__sink with = *sink;
    gcomp__momentum d;
    if (call->work && sink->ending == GCOMP__COMMIT) {
        d = gcomp__dgc_momentum(call);
        d.p = sink->residual;
        d.next = call->work->state;
        d.zero = sink->y;
        if (call->work->codec->param[4] != 0) d.masked = d.next;
        with.momentum = &d;
    }
    gcomp__sparse_decode(call, &with);
}

static const gcomp__selector gcomp__dgc = {gcomp__dgc_most, gcomp__about_select};
static const gcomp__method gcomp__row_dgc = {
    "dgc", 31, GCOMP__FEEDBACK | GCOMP__SELECTS | GCOMP__REMEMBERS, {GCOMP__GATHER, 0, 0},
    {GCOMP__NUMBER("density", 0.001, 1e-9, 1, 0), GCOMP__NUMBER("momentum", 0.9, 0, 0.9999, 0),
     GCOMP__COUNT("nesterov", 0, 0, 1, 0), GCOMP__NUMBER("clip", 0, 0, 1e20, 0), GCOMP__COUNT("masking", 1, 0, 1, 0),
     GCOMP__COUNT("warmup", 4, 0, 1000000, 0)},
    NULL, gcomp__dgc_bound, gcomp__dgc_scratch, gcomp__dgc_encode, gcomp__sparse_open, gcomp__sparse_check, gcomp__dgc_decode,
    NULL, gcomp__dgc_state, gcomp__dgc_local, NULL, NULL, NULL, gcomp__dgc_adapt, NULL, NULL, &gcomp__dgc};
#endif
#else
#define GCOMP__LIST_dgc(X)
#endif

/* >>method randomk: k = density * n elements, drawn anew in each step, the same on all workers: summed, without indices.
   >>method randomblock: k neighbours from a random place on, in a circle.
   What is not sent stays in the residual; unbiased=1 keeps none and multiplies by n / k instead. Stich et al., NeurIPS 2018. */
#ifndef GCOMP_WITHOUT_RANDOMK
#define GCOMP__LIST_randomk(X) X(randomk) X(randomblock)
#ifndef GCOMP__RANDOM_DRAWS
#define GCOMP__RANDOM_DRAWS 32 /* at a time */
struct gcomp__random_job;
typedef struct gcomp__random_kernels {
    void (*draw)(uint32_t *pairs, uint64_t words, uint64_t element, size_t count); /* 4 elements are a draw of 64 bits */
    size_t (*count)(const struct gcomp__random_job *job);
    void (*take)(void *arg, size_t chunk);
} gcomp__random_kernels;

/* Of a step: a bit an element, 1: sent; for each chunk the number sent before it, and at last all; and whether it is finite. */
typedef struct gcomp__random_job {
    gcomp__work *work;
    const gcomp__random_kernels *kernels;
    uint8_t *bits, *before, *bad;
    float factor;
} gcomp__random_job;
#endif

/* Marked elements of each chunk; returns their sum. */
static size_t GCOMP__F(random_count)(const gcomp__random_job *job)
{
    const size_t words = job->work->n / 64 + 1, each = GCOMP_CHUNK / 64;
    size_t i, j, total = 0;
    for (i = 0; i < words; i += each) {
        const size_t end = gcomp__min(words, i + each);
        size_t count = 0;
        for (j = i; j < end; j++) count += gcomp__popcount64(gcomp__get64(job->bits + 8 * j));
        gcomp__put64(job->before + i / each * 8, count);
        total += count;
    }
    return total;
}

/* p of the elements of a chunk that are sent, times the factor; all of the chunk is looked at. By words of the bits: most have
   two at most, which are taken without a branch. What follows is fetched 4 KiB ahead, which goes on where a page ends. */
GCOMP__HEAVY void GCOMP__F(random_take_driver)(const gcomp__random_job *job, size_t chunk, int general, int feedback)
{
    const gcomp_input in = job->work->in;
    const size_t bytes = gcomp__dtype_bytes(in.dtype), n = job->work->n, end = gcomp__min(n, (chunk + 1) * GCOMP_CHUNK);
    const uint8_t *before = job->before + 8 * chunk;
    const float *last = job->work->sums[0] + (size_t)gcomp__get64(before + 8);
    float *to = job->work->sums[0] + (size_t)gcomp__get64(before), line[64];
    const GCOMP__F(v) f = GCOMP__F(splat)(job->factor);
    GCOMP__F(v) worst = GCOMP__F(splat)(0), p;
    size_t at, j, next, count;
    for (at = chunk * GCOMP_CHUNK; at < end; at += 64) {
        uint64_t set = gcomp__get64(job->bits + at / 8), rest;
        count = gcomp__min(64, end - at);
        next = gcomp__min(at + 1024, n - count);
        GCOMP__UNROLL for (j = 0; j < 64; j += 16) {
            if (j >= count) break;
            if (j + 16 <= count) {
                GCOMP__PREFETCH((const uint8_t *)in.grad + bytes * (next + j));
                if (feedback) GCOMP__PREFETCH(in.residual + next + j);
                p = GCOMP__F(load_p)(&in, at + j, general, feedback);
            } else {
                p = GCOMP__F(load_p_some)(&in, at + j, count - j);
            }
            worst = GCOMP__F(worst)(worst, p);
            GCOMP__F(store)(line + j, GCOMP__F(mul)(p, f));
        }
        if (last - to >= 2) { /* other chunks follow */
            rest = set & (set - 1);
            to[0] = line[gcomp__first_one(set | (uint64_t)1 << 63)];
            to[1] = line[gcomp__first_one(rest | (uint64_t)1 << 63)];
            to += (set != 0) + (rest != 0);
            set = rest & (rest - 1);
        }
        for (; set; set &= set - 1) *to++ = line[gcomp__first_one(set)];
    }
    job->bad[chunk] = GCOMP__F(most)(worst) >= 0x7f800000u;
}

static void GCOMP__F(random_take)(void *arg, size_t chunk)
{
    const gcomp__random_job *job = (const gcomp__random_job *)arg;
    if (GCOMP__F(general)(&job->work->in)) GCOMP__F(random_take_driver)(job, chunk, 1, job->work->in.residual != NULL);
    else if (job->work->in.residual) GCOMP__F(random_take_driver)(job, chunk, 0, 1);
    else GCOMP__F(random_take_driver)(job, chunk, 0, 0);
}

#define GCOMP__RANDOM_KERNELS {GCOMP__F(draw), GCOMP__F(random_count), GCOMP__F(random_take)}
static const gcomp__random_kernels GCOMP__F(randomk_kernels) = GCOMP__RANDOM_KERNELS;
static const gcomp__random_kernels GCOMP__F(randomblock_kernels) = GCOMP__RANDOM_KERNELS;
#undef GCOMP__RANDOM_KERNELS
#ifdef GCOMP__LAST
static size_t gcomp__random_count(const gcomp_codec *codec, size_t rows, size_t cols, int round, int odd)
{
    (void)odd;
    return round == 0 ? gcomp__sparse_k(codec->param[0], gcomp__times(rows, cols)) : 0;
}

static size_t gcomp__random_local(const gcomp_codec *codec, size_t rows, size_t cols)
{
    const size_t n = gcomp__times(rows, cols);
    (void)codec;
    return n / 32 + 4 + 3 * (gcomp__chunks(n) + 1);
}

static int gcomp__random_gains(const gcomp_codec *codec, size_t rows, size_t cols)
{
    return gcomp__random_count(codec, rows, cols, 0, 0) < gcomp__times(rows, cols);
}

static gcomp__random_job gcomp__random_job_of(gcomp__work *work)
{
    gcomp__random_job job;
    job.work = work;
    job.kernels = (const gcomp__random_kernels *)work->call.kernels;
    job.bits = (uint8_t *)work->local;
    job.before = job.bits + work->n / 8 + 8; /* words of 64 bits are read */
    job.bad = job.before + 8 * (gcomp__chunks(work->n) + 1);
    job.factor = 1;
    return job;
}

/* A whole number below n; all are equally likely, to 2^-32. */
GCOMP__INLINE size_t gcomp__random_below(const uint32_t *pair, size_t n)
{
    const uint64_t high = pair[0], low = pair[1];
    const uint64_t top = (uint64_t)n >> 32, rest = (uint64_t)n & 0xffffffffu;
    if (!top) return (size_t)((high * rest + (low * rest >> 32)) >> 32); /* two products do */
    return (size_t)(high * top + ((high * rest + low * top + (low * rest >> 32)) >> 32));
}

/* Marks elements of the byte of element i; `fresh` of them were not marked. */
GCOMP__INLINE void gcomp__random_mark(const gcomp__random_job *job, size_t i, unsigned bits, size_t fresh)
{
    uint8_t *count = job->before + 8 * (i / GCOMP_CHUNK);
    job->bits[i / 8] = (uint8_t)(job->bits[i / 8] | bits);
    gcomp__put64(count, gcomp__get64(count) + fresh);
}

/* Elements of a batch of draws, whose bits are fetched. */
GCOMP__INLINE void gcomp__random_batch(const gcomp__random_job *job, uint64_t words, size_t batch, size_t n, size_t *elements)
{
    const uint8_t *bits = job->bits;
    uint32_t pairs[2 * GCOMP__RANDOM_DRAWS];
    size_t j;
    (job->kernels->draw)(pairs, words, (uint64_t)4 * batch * GCOMP__RANDOM_DRAWS, 4 * GCOMP__RANDOM_DRAWS);
    for (j = 0; j < GCOMP__RANDOM_DRAWS; j++) {
        elements[j] = gcomp__random_below(pairs + 2 * j, n);
        GCOMP__PREFETCH(bits + elements[j] / 8);
    }
}

/* k different ones of n; or the n - k others, if they are fewer. That takes so many draws at least, which are marked first and
   counted together; then those are drawn, one by one, that had been drawn before. */
static void gcomp__random_elements(const gcomp__random_job *job, uint64_t words, size_t k, size_t n)
{
    const size_t few = gcomp__min(k, n - k), sure = few / GCOMP__RANDOM_DRAWS;
    size_t coming[4][GCOMP__RANDOM_DRAWS], i, j, done;
    uint8_t *const bits = job->bits;
    for (i = 0; i < sure + 4; i++) {
        size_t *at = coming[i % 4];
        for (j = 0; i >= 4 && j < GCOMP__RANDOM_DRAWS; j++) bits[at[j] / 8] = (uint8_t)(bits[at[j] / 8] | 1u << (at[j] & 7));
        if (i < sure) gcomp__random_batch(job, words, i, n, at);
    }
    for (done = (job->kernels->count)(job), i = sure; done < few; i++) {
        gcomp__random_batch(job, words, i, n, coming[0]);
        for (j = 0; j < GCOMP__RANDOM_DRAWS && done < few; j++) {
            const size_t at = coming[0][j];
            const unsigned bit = 1u << (at & 7), fresh = !(job->bits[at / 8] & bit);
            gcomp__random_mark(job, at, bit, fresh);
            done += fresh;
        }
    }
    if (few == k) return;
    for (i = 0; i < n / 8; i++) job->bits[i] = (uint8_t)~job->bits[i];
    job->bits[n / 8] = (uint8_t)(~job->bits[n / 8] & ((1u << (n & 7)) - 1));
    for (i = 0; i < gcomp__chunks(n); i++) {
        uint8_t *count = job->before + 8 * i;
        gcomp__put64(count, gcomp__min(GCOMP_CHUNK, n - i * GCOMP_CHUNK) - gcomp__get64(count));
    }
}

static void gcomp__random_run(const gcomp__random_job *job, size_t i, size_t end)
{
    for (; i < end && i % 8; i++) gcomp__random_mark(job, i, 1u << (i & 7), 1);
    for (; end - i >= 8; i += 8) gcomp__random_mark(job, i, 0xff, 8);
    for (; i < end; i++) gcomp__random_mark(job, i, 1u << (i & 7), 1);
}

static void gcomp__random_neighbours(const gcomp__random_job *job, uint64_t words, size_t k, size_t n)
{
    uint32_t pairs[2 * GCOMP__RANDOM_DRAWS];
    size_t at, first;
    (job->kernels->draw)(pairs, words, 0, 4);
    at = gcomp__random_below(pairs, n);
    first = gcomp__min(k, n - at);
    gcomp__random_run(job, at, at + first);
    gcomp__random_run(job, 0, k - first);
}

static gcomp_result gcomp__random_make(gcomp__work *work,
                                       void (*mark)(const gcomp__random_job *job, uint64_t words, size_t k, size_t n))
{
    const size_t k = gcomp__random_count(work->codec, work->rows, work->cols, 0, 0) * work->stack;
    const size_t chunks = gcomp__chunks(work->n);
    gcomp__random_job job = gcomp__random_job_of(work);
    size_t chunk;
    uint64_t sent = 0;
    memset(job.bits, 0, work->n / 8 + 8);
    memset(job.before, 0, 8 * chunks);
    (mark)(&job, gcomp__stream(work->in.key.shared, GCOMP__PURPOSE_SELECT), k, work->n);
    for (chunk = 0; chunk < chunks; chunk++) {
        const uint64_t count = gcomp__get64(job.before + 8 * chunk);
        gcomp__put64(job.before + 8 * chunk, sent);
        sent += count;
    }
    gcomp__put64(job.before + 8 * chunks, sent);
    job.factor = work->codec->param[1] != 0 ? (float)((double)work->part * (double)work->n / (double)k) : work->part;
    gcomp__run(&work->call, chunks, job.kernels->take, &job);
    for (chunk = 0; chunk < chunks; chunk++)
        if (job.bad[chunk]) return GCOMP_NOT_FINITE;
    return GCOMP_OK;
}

static gcomp_result gcomp__randomk_make(gcomp__work *work, int round)
{
    (void)round;
    return gcomp__random_make(work, gcomp__random_elements);
}

static gcomp_result gcomp__randomblock_make(gcomp__work *work, int round)
{
    (void)round;
    return gcomp__random_make(work, gcomp__random_neighbours);
}

static void gcomp__random_put(void *arg, size_t chunk)
{
    const gcomp__random_job *job = (const gcomp__random_job *)arg;
    const gcomp__work *work = job->work;
    const size_t begin = chunk * GCOMP_CHUNK, end = gcomp__min(work->n, begin + GCOMP_CHUNK);
    const float *from = work->sums[0] + (size_t)gcomp__get64(job->before + 8 * chunk);
    size_t word, i;
    uint64_t set;
    const gcomp__sink sink = gcomp__sink_of(work);
    (work->call.set->common->absorb)(&sink, chunk);
    for (word = begin; word < end; word += 64) {
        for (set = gcomp__get64(job->bits + word / 8); set; set &= set - 1) {
            i = word + gcomp__first_one(set);
            work->y[i] = gcomp__saturated(*from++);
            if (work->residual) work->residual[i] = 0;
        }
    }
}

static void gcomp__random_commit(gcomp__work *work)
{
    gcomp__random_job job = gcomp__random_job_of(work);
    gcomp__run(&work->call, gcomp__chunks(work->n), gcomp__random_put, &job);
}

static void gcomp__random_adapt(const gcomp_codec *codec, uint8_t *rounds, unsigned *flags)
{
    (void)rounds;
    *flags ^= codec->param[1] != 0 ? GCOMP__FEEDBACK : GCOMP__UNBIASED;
}

#define GCOMP__RANDOM(name, wire) \
    static const gcomp__method gcomp__row_##name = { \
        #name, wire, GCOMP__FEEDBACK | GCOMP__UNBIASED | GCOMP__CONSERVES_MEAN, {GCOMP__SUM, 0, 0}, \
        {GCOMP__NUMBER("density", 0.01, 1e-9, 1, 0), GCOMP__COUNT("unbiased", 0, 0, 1, 0)}, \
        NULL, NULL, NULL, NULL, NULL, NULL, NULL, gcomp__random_count, NULL, gcomp__random_local, gcomp__random_gains, \
        gcomp__##name##_make, gcomp__random_commit, gcomp__random_adapt, NULL, NULL, NULL};
GCOMP__RANDOM(randomk, 25)
GCOMP__RANDOM(randomblock, 26)
#undef GCOMP__RANDOM
#endif
#else
#define GCOMP__LIST_randomk(X)
#endif

/* ---------------- count sketches: what sketch and fetch share. A table has an odd number of rows. In each of them element i adds
   sign * p to one cell; its estimate is the median over the rows of sign * cell. The sum of tables is the table of the sum.
   Sixteen elements share a hash: for each row a block of 16 cells and 16 signs, and one order inside for all rows. So any two
   elements of different blocks meet in a row with probability 1 / columns, and the variance of a row's estimate is at most
   |p|^2 / columns. Hashes are mixes as of random numbers, for 16 blocks at once; a multiplication a row for cells and for signs.
   Each cell is summed in order of elements, by one task a row if there are threads. */
#if !defined(GCOMP_WITHOUT_SKETCH) || !defined(GCOMP_WITHOUT_FETCH)
#ifndef GCOMP__SKETCH_TYPES
#define GCOMP__SKETCH_TYPES
enum { GCOMP__SKETCH_ROWS = 7, GCOMP__SKETCH_LANES = 4 };
enum { GCOMP__SKETCH_AHEAD = 6 };    /* blocks: so far ahead cells are fetched, not more than a core keeps in flight */
enum { GCOMP__SKETCH_FAR = 1024 };   /* elements: so far ahead the gradient is, past what is in flight */

/* Of one matrix. */
typedef struct gcomp__sketch_job {
    const struct gcomp__sketch_kernels *kernels;
    gcomp_input in;
    size_t n, rows, columns, few; /* few: so many of the largest estimates are looked for */
    float *table, part;
    uint64_t words, factor[GCOMP__SKETCH_ROWS];
    uint32_t worst;               /* bits of the largest |p| */
    gcomp__selection lane[GCOMP__SKETCH_LANES];
} gcomp__sketch_job;

/* Where blocks of 16 elements go, block b at b % 32: element j to lane (j ^ cross) & 15 of a row's 16 cells, with that bit of its
   signs. */
typedef struct gcomp__sketch_places {
    int32_t cell[GCOMP__SKETCH_ROWS][32], signs[GCOMP__SKETCH_ROWS][32], cross[32]; /* cross: -8 .. 7 */
} gcomp__sketch_places;

typedef struct gcomp__sketch_kernels {
    uint32_t (*insert)(const gcomp__sketch_job *job, size_t first, size_t rows); /* returns the bits of the largest |p| */
    void (*collect)(const gcomp__sketch_job *job, gcomp__selection *s); /* until the end or until the buffer is full */
} gcomp__sketch_kernels;

static const int32_t gcomp__sketch_order[16] = {0, 1, 2, 3, 4, 5, 6, 7, -8, -7, -6, -5, -4, -3, -2, -1};
#endif

/* Those of blocks block .. block + 15; block is a multiple of 16. A float has room for the number of a block of cells. */
GCOMP__NOINLINE void GCOMP__F(sketch_find)(const gcomp__sketch_job *job, size_t block, size_t first, size_t rows,
                                           gcomp__sketch_places *to)
{
    const float width = (float)(job->columns / 16);
    const GCOMP__F(v) scale = GCOMP__F(splat)(width / 16777216.0f), last = GCOMP__F(splat)(width - 1);
    const size_t at = block % 32;
    size_t r;
    const GCOMP__F(w) h = GCOMP__F(mixes)(GCOMP__F(counted)((uint32_t)(block + job->words)), job->words);
    GCOMP__F(store_words)(to->cross + at, GCOMP__F(wsar)(h, 28));
    for (r = 0; r < rows; r++) {
        const uint64_t factor = job->factor[first + r];
        const GCOMP__F(w) x = GCOMP__F(wshr)(GCOMP__F(wmul)(h, GCOMP__F(wsplat)((int32_t)factor)), 8);
        const GCOMP__F(w) cell = GCOMP__F(trunc)(GCOMP__F(min)(GCOMP__F(mul)(GCOMP__F(number)(x), scale), last));
        const GCOMP__F(w) row = GCOMP__F(wsplat)((int32_t)((first + r) * job->columns));
        const GCOMP__F(w) y = GCOMP__F(wmul)(h, GCOMP__F(wsplat)((int32_t)(factor >> 32)));
        GCOMP__F(store_words)(to->cell[r] + at, GCOMP__F(wadd)(GCOMP__F(wshl)(cell, 4), row));
        GCOMP__F(store_words)(to->signs[r] + at, GCOMP__F(wshr)(y, 16));
    }
}

/* Lane j becomes what was lane j ^ cross: of 16 floats in memory, of a vector. */
GCOMP__INLINE GCOMP__F(v) GCOMP__F(sketch_look)(const int32_t *lanes, int32_t cross)
{
    const GCOMP__F(w) order = GCOMP__F(wxor)(GCOMP__F(load_words)(gcomp__sketch_order), GCOMP__F(wsplat)(cross));
    return GCOMP__F(floats)(GCOMP__F(look16)(lanes, order));
}

GCOMP__INLINE GCOMP__F(v) GCOMP__F(sketch_crossed)(GCOMP__F(v) x, int32_t cross)
{
    int32_t lanes[16];
    GCOMP__F(store_words)(lanes, GCOMP__F(words)(x));
    return GCOMP__F(sketch_look)(lanes, cross);
}

GCOMP__INLINE void GCOMP__F(sketch_put)(const gcomp__sketch_job *job, const gcomp__sketch_places *place, size_t block,
                                        size_t row, GCOMP__F(v) p)
{
    float *cells = job->table + place->cell[row][block % 32];
    GCOMP__PREFETCH(job->table + place->cell[row][(block + GCOMP__SKETCH_AHEAD) % 32]);
    GCOMP__F(store)(cells, GCOMP__F(add)(GCOMP__F(load)(cells), GCOMP__F(flip)(p, (uint32_t)place->signs[row][block % 32])));
}

GCOMP__HEAVY uint32_t GCOMP__F(sketch_insert_rows)(const gcomp__sketch_job *job, size_t first, size_t rows, int general,
                                                    gcomp__sketch_places *place)
{
    const gcomp_input in = job->in;
    const size_t blocks = gcomp__pieces(job->n, 16);
    GCOMP__F(v) worst = GCOMP__F(splat)(0);
    size_t block, r;
    GCOMP__F(sketch_find)(job, 0, first, rows, place);
    for (block = 0; block < blocks; block++) {
        const size_t i = 16 * block;
        GCOMP__F(v) p;
        if (block % 16 == 0) GCOMP__F(sketch_find)(job, block + 16, first, rows, place);
        GCOMP__PREFETCH_NEAR((const float *)in.grad + i + GCOMP__SKETCH_FAR);
        if (in.residual) GCOMP__PREFETCH_NEAR(in.residual + i + GCOMP__SKETCH_FAR);
        p = i + 16 <= job->n ? GCOMP__F(load_p)(&in, i, general, in.residual != NULL) : GCOMP__F(load_p_some)(&in, i, job->n - i);
        worst = GCOMP__F(worst)(worst, p);
        p = GCOMP__F(sketch_crossed)(p, place->cross[block % 32]);
        for (r = 0; rows != 5 && r < rows; r++) GCOMP__F(sketch_put)(job, place, block, r, p);
        if (rows != 5) continue;
        GCOMP__F(sketch_put)(job, place, block, 0, p); /* compilers do not unroll a loop at -O2 */
        GCOMP__F(sketch_put)(job, place, block, 1, p);
        GCOMP__F(sketch_put)(job, place, block, 2, p);
        GCOMP__F(sketch_put)(job, place, block, 3, p);
        GCOMP__F(sketch_put)(job, place, block, 4, p);
    }
    return GCOMP__F(most)(worst);
}

static uint32_t GCOMP__F(sketch_insert)(const gcomp__sketch_job *job, size_t first, size_t rows)
{
    gcomp__sketch_places place;
    if (GCOMP__F(general)(&job->in) || rows != 5) return GCOMP__F(sketch_insert_rows)(job, first, rows, 1, &place);
    return GCOMP__F(sketch_insert_rows)(job, 0, 5, 0, &place);
}

GCOMP__INLINE GCOMP__F(v) GCOMP__F(sketch_cells)(const gcomp__sketch_job *job, const gcomp__sketch_places *place, size_t block,
                                                 size_t row)
{
    GCOMP__PREFETCH(job->table + place->cell[row][(block + GCOMP__SKETCH_AHEAD) % 32]);
    return GCOMP__F(flip)(GCOMP__F(load)(job->table + place->cell[row][block % 32]), (uint32_t)place->signs[row][block % 32]);
}

GCOMP__INLINE GCOMP__F(v) GCOMP__F(sketch_median5)(const gcomp__sketch_job *job, const gcomp__sketch_places *place, size_t block)
{
    GCOMP__F(v) a = GCOMP__F(sketch_cells)(job, place, block, 0), b = GCOMP__F(sketch_cells)(job, place, block, 1);
    GCOMP__F(v) c = GCOMP__F(sketch_cells)(job, place, block, 2), d = GCOMP__F(sketch_cells)(job, place, block, 3);
    GCOMP__F(v) e = GCOMP__F(sketch_cells)(job, place, block, 4);
    GCOMP__F(v) low = GCOMP__F(max)(GCOMP__F(min)(a, b), GCOMP__F(min)(c, d)); /* the least and the largest of four go */
    GCOMP__F(v) high = GCOMP__F(min)(GCOMP__F(max)(a, b), GCOMP__F(max)(c, d));
    return GCOMP__F(max)(GCOMP__F(min)(low, high), GCOMP__F(min)(e, GCOMP__F(max)(low, high)));
}

/* The middle of 1, 3 or 7, after as many of the largest have gone to the end as are above it. */
GCOMP__NOINLINE GCOMP__F(v) GCOMP__F(sketch_median)(const gcomp__sketch_job *job, const gcomp__sketch_places *place, size_t block)
{
    const size_t rows = job->rows;
    GCOMP__F(v) x[GCOMP__SKETCH_ROWS];
    size_t i, last;
    for (i = 0; i < rows; i++) x[i] = GCOMP__F(sketch_cells)(job, place, block, i);
    for (last = rows - 1; last >= rows / 2 && last > 0; last--)
        for (i = 0; i < last; i++) {
            const GCOMP__F(v) low = GCOMP__F(min)(x[i], x[i + 1]);
            x[i + 1] = GCOMP__F(max)(x[i], x[i + 1]);
            x[i] = low;
        }
    return x[rows / 2];
}

/* Elements of a selection from `at` on, a multiple of 16, whose estimates reach its guess. 16 blocks are looked at before those
   among them that have some: a branch for each of these is seldom foreseen. */
GCOMP__HEAVY void GCOMP__F(sketch_collect_rows)(const gcomp__sketch_job *job, gcomp__selection *s, int five,
                                                 gcomp__sketch_places *place, int32_t *lines)
{
    const size_t end = gcomp__pieces(s->n, 16);
    const uint32_t guess = s->guess;
    size_t count = s->count, block = s->at / 16;
    GCOMP__F(sketch_find)(job, block / 16 * 16, 0, job->rows, place);
    while (block < end && count + 256 <= s->capacity) {
        const size_t begin = block / 16 * 16, stop = gcomp__min(begin + 16, end);
        uint64_t some = 0;
        GCOMP__F(sketch_find)(job, begin + 16, 0, job->rows, place);
        for (; block < stop; block++) {
            GCOMP__F(v) x = five ? GCOMP__F(sketch_median5)(job, place, block) : GCOMP__F(sketch_median)(job, place, block);
            GCOMP__F(store_words)(lines + 16 * (block - begin), GCOMP__F(words)(x));
            some |= (uint64_t)(GCOMP__F(keys)(x, guess) != 0) << (block - begin);
        }
        for (; some; some &= some - 1) {
            const size_t b = gcomp__first_one(some), i = 16 * (begin + b);
            GCOMP__F(v) x = GCOMP__F(sketch_look)(lines + 16 * b, place->cross[(begin + b) % 32]);
            uint32_t mask = GCOMP__F(keys)(x, guess);
            if (i + 16 > s->n) mask &= (1u << (s->n - i)) - 1;
            GCOMP__F(keep)(s->value + count, s->index + count, x, (uint32_t)i, mask);
            count += gcomp__popcount(mask);
        }
    }
    s->at = gcomp__min(16 * block, s->n);
    s->count = count;
}

static void GCOMP__F(sketch_collect)(const gcomp__sketch_job *job, gcomp__selection *s)
{
    gcomp__sketch_places place;
    int32_t lines[256];
    if (job->rows == 5) GCOMP__F(sketch_collect_rows)(job, s, 1, &place, lines);
    else GCOMP__F(sketch_collect_rows)(job, s, 0, &place, lines);
}
#define GCOMP__SKETCH_METHOD(name) \
    static const gcomp__sketch_kernels GCOMP__F(name##_kernels) = {GCOMP__F(sketch_insert), GCOMP__F(sketch_collect)};

#ifdef GCOMP__LAST
/* The parameters that all have, in this order: density, rows, columns. */
#define GCOMP__SKETCH_PARAMS \
    GCOMP__NUMBER("density", 0.001, 1e-9, 1, 0), GCOMP__ONE_OF("rows", 2, 3, 0, "1|3|5|7|"), \
    {"columns", GCOMP__AUTO, 0, 16, 268435456, 0, NULL, 0}

static size_t gcomp__sketch_rows(const gcomp_codec *codec) { return 2 * (size_t)codec->param[1] + 1; }

GCOMP__NOINLINE double gcomp__sketch_root(const double *k, double n) { return gcomp__sqrt(*k * n); }

/* columns=auto: the multiple of 16 above the square root of k n. Then 20 k candidates hold, of 2^20 cubes of normals, 99 % of the
   largest 1 % (10 k columns), 93 % of the largest 0.1 % (32 k) and 55 % of the largest 0.01 % (100 k). */
static size_t gcomp__sketch_columns(const gcomp_codec *codec, size_t n)
{
    const double k = (double)gcomp__sparse_k(codec->param[0], n);
    uint64_t mode;
    size_t blocks;
    if (codec->param[2] > 0) return (size_t)codec->param[2];
    mode = gcomp__fp_enter(); /* sizes are asked for outside of calculations too */
    blocks = (size_t)(gcomp__sketch_root(&k, (double)n) / 16) + 1;
    gcomp__fp_leave(mode);
    return gcomp__times(blocks, 16);
}

static size_t gcomp__sketch_cells(const gcomp_codec *codec, size_t rows, size_t cols)
{
    return gcomp__times(gcomp__sketch_rows(codec), gcomp__sketch_columns(codec, gcomp__times(rows, cols)));
}

static int gcomp__sketch_gains(const gcomp_codec *codec, size_t rows, size_t cols)
{
    const gcomp__method *m = gcomp__method_of(codec->method);
    const size_t n = gcomp__times(rows, cols);
    return gcomp__plus((m->sum_count)(codec, rows, cols, 0, 0), (m->sum_count)(codec, rows, cols, 1, 0)) < n &&
           (uint64_t)n >> 32 == 0; /* indices are 32 bits */
}

static const char *gcomp__sketch_refuse(const double *param, int values)
{
    (void)values;
    return (uint64_t)param[2] % 16 || param[2] != (double)(uint64_t)param[2] ? "columns is a multiple of 16" : NULL;
}

/* Tasks that look for the largest, each in a part of the elements, and how many each has room for. */
static size_t gcomp__sketch_lanes(size_t n) { return gcomp__chunks(n) < 8 ? 1 : GCOMP__SKETCH_LANES; }
static size_t gcomp__sketch_lane_chunks(size_t n, size_t lanes) { return (gcomp__chunks(n) + lanes - 1) / lanes; }

static size_t gcomp__sketch_room(size_t few, size_t n, size_t lanes)
{
    const size_t most = gcomp__min(n, gcomp__times(gcomp__sketch_lane_chunks(n, lanes), GCOMP_CHUNK));
    return gcomp__plus(gcomp__min(gcomp__plus(gcomp__times(few, 2), 4096), most), 272); /* always more than 256 to go on with */
}

static size_t gcomp__sketch_scratch_for(size_t few, size_t n)
{
    const size_t lanes = gcomp__sketch_lanes(n), room = gcomp__sketch_room(few, n, lanes);
    return gcomp__plus(gcomp__times(gcomp__plus(room, 16), 8 * lanes), sizeof(size_t) * GCOMP__SPARSE_BINS * lanes);
}

static gcomp__sketch_job gcomp__sketch_job_of(const gcomp__work *work, size_t matrix, size_t few)
{
    gcomp__sketch_job job;
    size_t r;
    memset(&job, 0, sizeof job);
    job.kernels = (const gcomp__sketch_kernels *)work->call.kernels;
    job.n = work->rows * work->cols;
    job.rows = gcomp__sketch_rows(work->codec);
    job.columns = gcomp__sketch_columns(work->codec, job.n);
    job.few = few;
    job.table = work->sums[0] + matrix * job.rows * job.columns;
    job.part = work->part;
    job.in = work->in;
    job.in.grad = (const float *)work->in.grad + matrix * job.n;
    if (job.in.residual) job.in.residual += matrix * job.n;
    job.words = gcomp__stream(work->in.key.shared, GCOMP__PURPOSE_SKETCH);
    for (r = 0; r < job.rows; r++)
        job.factor[r] = gcomp__philox_word(work->in.key.shared, 1, GCOMP__PURPOSE_SKETCH, (uint32_t)r) | 0x100000001u;
    return job;
}

static uint32_t gcomp__sketch_fill(gcomp__sketch_job *job, size_t first, size_t rows)
{
    float *cells = job->table + first * job->columns;
    uint32_t worst;
    size_t i;
    memset(cells, 0, 4 * rows * job->columns);
    worst = (job->kernels->insert)(job, first, rows);
    for (i = 0; job->part != 1 && i < rows * job->columns; i++) cells[i] *= job->part;
    return worst;
}

static void gcomp__sketch_fill_row(void *arg, size_t row)
{
    gcomp__sketch_job *job = (gcomp__sketch_job *)arg;
    const uint32_t worst = gcomp__sketch_fill(job, row, 1);
    if (row == 0) job->worst = worst;
}

/* Round 0: the tables of all matrices. */
static gcomp_result gcomp__sketch_fill_all(gcomp__work *work)
{
    const size_t cells = gcomp__sketch_cells(work->codec, work->rows, work->cols) * work->stack;
    uint32_t worst = 0, cell;
    size_t s;
    for (s = 0; s < work->stack; s++) {
        gcomp__sketch_job job = gcomp__sketch_job_of(work, s, 0);
        if (work->call.parallel.run) gcomp__run(&work->call, job.rows, gcomp__sketch_fill_row, &job);
        else job.worst = gcomp__sketch_fill(&job, 0, job.rows);
        worst = job.worst > worst ? job.worst : worst;
    }
    cell = (work->call.set->common->worst)(work->sums[0], cells);
    return worst >= 0x7f800000u || cell >= 0x7f800000u ? GCOMP_NOT_FINITE : GCOMP_OK;
}

static void gcomp__sketch_look(void *arg, size_t lane)
{
    gcomp__sketch_job *job = (gcomp__sketch_job *)arg;
    gcomp__selection *s = job->lane + lane;
    for (;;) {
        uint32_t least;
        (job->kernels->collect)(job, s);
        if (s->at == s->n) break;
        least = gcomp__sparse_keep(s, job->few) + 1; /* the buffer is full: there is room for more than twice as many */
        s->guess = least > s->guess ? least : s->guess;
    }
}

/* The largest, from a key that need not be right, into the first lane's buffer; less than `few` where the key was too high. */
static void gcomp__sketch_from(const gcomp__call *call, gcomp__sketch_job *job, uint32_t guess)
{
    const size_t lanes = call->parallel.run ? gcomp__sketch_lanes(job->n) : 1;
    const size_t room = gcomp__sketch_room(job->few, job->n, lanes);
    const size_t part = gcomp__sketch_lane_chunks(job->n, lanes) * GCOMP_CHUNK;
    size_t *bins = (size_t *)(void *)call->scratch;
    float *value = (float *)(void *)(bins + GCOMP__SPARSE_BINS * lanes);
    uint32_t *index = (uint32_t *)(void *)(value + (room + 16) * lanes);
    gcomp__selection *all = job->lane;
    size_t i;
    for (i = 0; i < lanes; i++) {
        gcomp__selection *s = job->lane + i;
        memset(s, 0, sizeof *s);
        s->at = gcomp__min(job->n, i * part);
        s->n = gcomp__min(job->n, (i + 1) * part);
        s->guess = guess;
        s->value = value + (room + 16) * i;
        s->index = index + (room + 16) * i;
        s->capacity = room;
        s->bins = bins + GCOMP__SPARSE_BINS * i;
    }
    gcomp__run(call, lanes, gcomp__sketch_look, job);
    for (i = 1; i < lanes; i++) {
        memmove(all->value + all->count, job->lane[i].value, 4 * job->lane[i].count);
        memmove(all->index + all->count, job->lane[i].index, 4 * job->lane[i].count);
        all->count += job->lane[i].count;
    }
    if (all->count > job->few) gcomp__sparse_keep(all, job->few);
}

/* A key that somewhat more estimates reach than are looked for, by a sample of them. */
static uint32_t gcomp__sketch_guess(const gcomp__call *call, const gcomp__sketch_job *job)
{
    const size_t room = gcomp__sketch_room(job->few, job->n, 1);
    const size_t sample = gcomp__min(gcomp__sparse_sample(job->n), room - 272) / 16 * 16, apart = job->n / gcomp__max(sample, 1);
    gcomp__selection s;
    size_t i;
    if (!sample) return 1;
    memset(&s, 0, sizeof s);
    s.bins = (size_t *)(void *)call->scratch;
    s.value = (float *)(void *)(s.bins + GCOMP__SPARSE_BINS);
    s.index = (uint32_t *)(void *)(s.value + room + 16);
    s.capacity = room;
    s.guess = 1;
    for (i = 0; i < sample / 16; i++) {
        s.at = 16 * (i * apart + ((uint32_t)i * 2654435761u >> 7) % apart);
        s.n = s.at + 16;
        (job->kernels->collect)(job, &s);
    }
    memset(s.value + s.count, 0, 4 * (sample - s.count));
    return gcomp__sampled_key(s.value, sample, job->few, job->n, 1, s.bins);
}

/* The `few` elements of largest estimate that are not zero, of equal ones the first, in order of index. */
static const gcomp__selection *gcomp__sketch_largest(const gcomp__call *call, gcomp__sketch_job *job)
{
    const uint32_t guess = gcomp__sketch_guess(call, job);
    gcomp__sketch_from(call, job, guess);
    if (job->lane->count < job->few && guess > 1) gcomp__sketch_from(call, job, 1);
    return job->lane;
}

/* Commit, of what was not sent: residual <- p, mean <- 0. */
static void gcomp__sketch_absorb(const gcomp__work *work)
{
    const gcomp__sink sink = gcomp__sink_of(work);
    gcomp__absorb_all(&work->call, &sink, work->n);
}
#endif
#endif

/* >>method sketch: the k = density * n elements whose mean is largest, found without indices or gathers: SketchedSGD, Ivkin,
   Rothchild, Ullah, Braverman, Stoica, Arora, NeurIPS 2019, with plain error feedback.
     round 0   a count sketch of p, summed
     round 1   candidates: the `candidates` k elements of largest estimate, of equal ones the first. All workers see the same
               sums and find the same. Their p is summed, exactly
     commit    mean = the k largest of those sums, of equal ones the first; residual = p, and 0 where the mean was taken */
#ifndef GCOMP_WITHOUT_SKETCH
#define GCOMP__LIST_sketch(X) X(sketch)
GCOMP__SKETCH_METHOD(sketch)
#ifdef GCOMP__LAST
static size_t gcomp__sketch_few(const gcomp_codec *codec, size_t n)
{
    return gcomp__min(n, gcomp__times(gcomp__sparse_k(codec->param[0], n), (size_t)codec->param[3]));
}

static size_t gcomp__sketch_count(const gcomp_codec *codec, size_t rows, size_t cols, int round, int odd)
{
    (void)odd;
    if (round == 0) return gcomp__sketch_cells(codec, rows, cols);
    return round == 1 ? gcomp__sketch_few(codec, gcomp__times(rows, cols)) : 0;
}

/* How many candidates there are, and their indices. */
static size_t gcomp__sketch_local(const gcomp_codec *codec, size_t rows, size_t cols)
{
    return gcomp__plus(gcomp__sketch_few(codec, gcomp__times(rows, cols)), 1);
}

static size_t gcomp__sketch_scratch(const gcomp_codec *codec, size_t n)
{
    return gcomp__sketch_scratch_for(gcomp__sketch_few(codec, n), n);
}

static void gcomp__sketch_choose(gcomp__work *work, size_t matrix)
{
    gcomp__sketch_job job = gcomp__sketch_job_of(work, matrix, gcomp__sketch_few(work->codec, work->rows * work->cols));
    const gcomp__selection *found = gcomp__sketch_largest(&work->call, &job);
    uint32_t *local = (uint32_t *)(void *)work->local + matrix * (job.few + 1);
    float *to = work->sums[1] + matrix * job.few;
    size_t j;
    local[0] = (uint32_t)found->count;
    memcpy(local + 1, found->index, 4 * found->count);
    memset(to, 0, 4 * job.few);
    for (j = 0; j < found->count; j++) {
        const size_t i = found->index[j];
        float p = ((const float *)job.in.grad)[i] * job.in.scale;
        GCOMP__PIN(p);
        if (job.in.residual) p += job.in.residual[i];
        GCOMP__PIN_SUM(p);
        to[j] = p * job.part;
    }
}

static gcomp_result gcomp__sketch_make(gcomp__work *work, int round)
{
    const size_t cells = gcomp__sketch_cells(work->codec, work->rows, work->cols) * work->stack;
    size_t s;
    if (round == 0) return gcomp__sketch_fill_all(work);
    if ((work->call.set->common->worst)(work->sums[0], cells) >= 0x7f800000u) { /* the step has failed, and only goes on */
        memset(work->sums[1], 0, 4 * gcomp__sketch_count(work->codec, work->rows, work->cols, 1, 0) * work->stack);
        return GCOMP_NOT_FINITE;
    }
    for (s = 0; s < work->stack; s++) gcomp__sketch_choose(work, s);
    return GCOMP_OK;
}

static void gcomp__sketch_commit(gcomp__work *work)
{
    const size_t n = work->rows * work->cols, k = gcomp__sparse_k(work->codec->param[0], n),
                 few = gcomp__sketch_few(work->codec, n);
    size_t s, j;
    gcomp__sketch_absorb(work);
    for (s = 0; s < work->stack; s++) {
        const uint32_t *local = (const uint32_t *)(const void *)work->local + s * (few + 1);
        const float *sum = work->sums[1] + s * few;
        const size_t count = local[0];
        size_t ties = count;
        const uint32_t least = count > k ? gcomp__sparse_kth(sum, count, k, (size_t *)(void *)work->call.scratch, &ties) : 0;
        for (j = 0; j < count; j++) {
            const uint32_t key = gcomp__bits(sum[j]) & 0x7fffffffu;
            const size_t i = s * n + local[1 + j];
            if (key < least || (key == least && ties == 0)) continue;
            if (key == least) ties--;
            work->y[i] = gcomp__saturated(sum[j]);
            if (work->residual) work->residual[i] = 0;
        }
    }
}

static const gcomp__method gcomp__row_sketch = {
    "sketch", 32, GCOMP__FEEDBACK | GCOMP__CONSERVES_MEAN, {GCOMP__SUM, GCOMP__SUM, 0},
    {GCOMP__SKETCH_PARAMS, GCOMP__COUNT("candidates", 20, 1, 64, 0)},
    NULL, NULL, gcomp__sketch_scratch, NULL, NULL, NULL, NULL, gcomp__sketch_count, NULL, gcomp__sketch_local,
    gcomp__sketch_gains, gcomp__sketch_make, gcomp__sketch_commit, NULL, NULL, gcomp__sketch_refuse, NULL};
#endif
#else
#define GCOMP__LIST_sketch(X)
#endif

/* >>method fetch: momentum and error live in the sketch, none on a worker: FetchSGD, Rothchild, Panda, Ullah, Ivkin, Stoica,
   Braverman, Gonzalez, Arora, ICML 2020.
     round 0   a count sketch of g, summed to the mean T. Hashes are those of step 0 in all steps
     commit    U <- momentum * U + T;  E <- E + U: two tables that all workers keep, the same
               mean = the k = density * n elements of largest estimate in E, of equal ones the first, as estimated
               then, in the cells of those elements: zeroing=1: E <- 0, U <- 0, as the authors' code does, where what other
               elements have there is lost too; zeroing=0: E <- E - T(mean), as the paper
   So E + (with zeroing=0) T(mean) is the old E + U in all cells but those that are zeroed, to rounding. Both saturate. */
#ifndef GCOMP_WITHOUT_FETCH
#define GCOMP__LIST_fetch(X) X(fetch)
GCOMP__SKETCH_METHOD(fetch)
#ifdef GCOMP__LAST
static size_t gcomp__fetch_count(const gcomp_codec *codec, size_t rows, size_t cols, int round, int odd)
{
    (void)odd;
    return round == 0 ? gcomp__sketch_cells(codec, rows, cols) : 0;
}

/* Of each matrix U, then E. */
static size_t gcomp__fetch_state(const gcomp_codec *codec, size_t rows, size_t cols)
{
    return gcomp__times(gcomp__sketch_cells(codec, rows, cols), 2);
}

static size_t gcomp__fetch_scratch(const gcomp_codec *codec, size_t n)
{
    return gcomp__sketch_scratch_for(gcomp__sparse_k(codec->param[0], n), n);
}

static gcomp_result gcomp__fetch_make(gcomp__work *work, int round)
{
    (void)round;
    return gcomp__sketch_fill_all(work);
}

/* U and E of a matrix take in its part of the sum. */
static void gcomp__fetch_advance(const gcomp__work *work, const float *sum, float *u, float *e, size_t cells)
{
    gcomp__momentum d;
    memset(&d, 0, sizeof d);
    d.in = gcomp__plain_input(sum);
    d.n = cells;
    d.u = d.next = u;
    d.v = d.p = e;
    d.factor = (float)work->codec->param[3];
    gcomp__advance_all(&work->call, &d);
    (work->call.set->common->saturate)(u, u, cells);
    (work->call.set->common->saturate)(e, e, cells);
}

/* An element leaves its cells. */
static void gcomp__fetch_leave(const gcomp__sketch_job *job, size_t i, float value, float *u, float *e, int zeroing)
{
    const size_t block = i / 16;
    gcomp__sketch_places place;
    size_t lane, r;
    GCOMP__F(sketch_find)(job, block / 16 * 16, 0, job->rows, &place);
    lane = (i ^ (size_t)place.cross[block % 32]) & 15;
    for (r = 0; r < job->rows; r++) {
        const size_t cell = (size_t)place.cell[r][block % 32] + lane;
        if (zeroing) u[cell] = e[cell] = 0;
        else e[cell] = gcomp__saturated(place.signs[r][block % 32] >> lane & 1 ? e[cell] + value : e[cell] - value);
    }
}

static void gcomp__fetch_commit(gcomp__work *work)
{
    const size_t n = work->rows * work->cols, cells = gcomp__sketch_cells(work->codec, work->rows, work->cols);
    size_t s, j;
    gcomp__sketch_absorb(work);
    for (s = 0; s < work->stack; s++) {
        gcomp__sketch_job job = gcomp__sketch_job_of(work, s, gcomp__sparse_k(work->codec->param[0], n));
        float *u = work->state + 2 * s * cells, *e = u + cells;
        const gcomp__selection *found;
        gcomp__fetch_advance(work, job.table, u, e, cells);
        job.table = e;
        found = gcomp__sketch_largest(&work->call, &job);
        for (j = 0; j < found->count; j++) {
            work->y[s * n + found->index[j]] = found->value[j];
            gcomp__fetch_leave(&job, found->index[j], found->value[j], u, e, work->codec->param[4] != 0);
        }
    }
}

static const gcomp__method gcomp__row_fetch = {
    "fetch", 34, GCOMP__ONE_KEY, {GCOMP__SUM, 0, 0},
    {GCOMP__SKETCH_PARAMS, GCOMP__NUMBER("momentum", 0.9, 0, 0.9999, 0), GCOMP__COUNT("zeroing", 1, 0, 1, 0)},
    NULL, NULL, gcomp__fetch_scratch, NULL, NULL, NULL, NULL, gcomp__fetch_count, gcomp__fetch_state, NULL,
    gcomp__sketch_gains, gcomp__fetch_make, gcomp__fetch_commit, NULL, NULL, gcomp__sketch_refuse, NULL};
#endif
#else
#define GCOMP__LIST_fetch(X)
#endif

/* >>method powersgd: M ~ P^ Q^T of rank r, from two sums. Vogels, Karimireddy, Jaggi, NeurIPS 2019, algorithms 1 and 2.
     round 0   P_w = M_w Q, summed      Q: the last step's, columns normalised (a column that is zero is drawn anew)
     round 1   P^ = orthonormalise(sum of P_w); Q_w = M_w^T P^, summed to the mean Q
     commit    mean gradient = P^ Q^T;  residual = M_w - P^ Q_w^T: what this worker itself did not contribute
   alternate=1: one sum a step, in turns Q^ = orthonormalise(Q), P_w = M_w Q^, mean P Q^^T; and P^ of the last P, then as round 1.
   momentum=m: M_w = residual + u_w, u_w <- m u_w + gradient: feedback of what momentum makes; without, the optimizer's momentum
   comes after it. Rows that gain nothing (rank (rows + cols) >= rows cols; alternate: half of it) travel as they are.
   What is summed stands rank after rank. Float accumulators, fma, one order of each sum on every set:
     M Q             up to 4 ranks: 16 lanes along blocks of 512 columns (the last one below 768; the rest below 16 by itself),
                     folded and added in order; above 4: a chain in order of columns
     M^T P, P Q^T    chains in order of rows; of ranks */
#ifndef GCOMP_WITHOUT_POWERSGD
#define GCOMP__LIST_powersgd(X) X(powersgd)
#ifndef GCOMP__POWERSGD_TYPES
#define GCOMP__POWERSGD_TYPES
enum {
    GCOMP__POWERSGD_FEW = 4,      /* ranks up to here are projected with lanes along the row, higher ones along the rank */
    GCOMP__POWERSGD_BLOCK = 512   /* columns that few ranks sum in 16 lanes before these are folded */
};

/* One matrix of the stack: M = in at element `at` on. Floats from row to row of P, and of Q where lanes are along the rank: */
typedef struct gcomp__matrix {
    const gcomp_input *in;
    size_t at, rows, cols, rank, pitch;
    int uncached; /* in memory, not in a cache: what is further on is fetched */
} gcomp__matrix;

/* Rows of floats that are g, or g + e where e is not NULL. */
typedef struct gcomp__rows {
    const float *g, *e;
    size_t stride;
} gcomp__rows;

/* P row by row, at the matrix's pitch; Q in panels: 16 of its rows of the first rank, then those of the next, ... */
typedef struct gcomp__factors {
    float *p, *q;
} gcomp__factors;

typedef struct gcomp__powersgd_kernels {
    void (*project)(const gcomp__matrix *m, size_t row, size_t end, const float *q, float *p);
    void (*back)(const gcomp__matrix *m, size_t col, size_t end, const float *p, float *q);
    void (*expand)(const gcomp__matrix *m, size_t row, size_t end, const gcomp__factors *own, float *residual,
                   const gcomp__factors *mean, float *y);
    void (*turn)(float *to, size_t pitch, const float *from, size_t stride, size_t n, size_t rank);
    double (*dot)(const float *x, const float *y, size_t n);
    void (*update)(float *y, float a, const float *x, size_t n);
} gcomp__powersgd_kernels;
#endif

/* A line of each of so many rows comes into the cache, while others are worked on; g NULL: none. `rows` is a constant. */
GCOMP__INLINE void GCOMP__F(fetch)(const gcomp__rows *next, size_t at, int rows)
{
    const gcomp__rows x = *next;
    int k;
    if (!x.g) return;
    GCOMP__UNROLL
    for (k = 0; k < rows; k++) {
        GCOMP__PREFETCH_NEAR(x.g + at + (size_t)k * x.stride);
        if (x.e) GCOMP__PREFETCH_NEAR(x.e + at + (size_t)k * x.stride);
    }
}

/* Rows that begin so many elements behind others; 0: none. */
GCOMP__INLINE gcomp__rows GCOMP__F(behind)(const gcomp__rows *x, size_t elements)
{
    gcomp__rows next = *x;
    next.g = elements ? x->g + elements : NULL;
    next.e = elements && x->e ? x->e + elements : NULL;
    return next;
}

GCOMP__INLINE void GCOMP__F(add_float)(float *to, float x)
{
    GCOMP__PIN_SUM(x);
    *to += x;
}

/* Rows of a matrix from (i, j) on, as they lie in memory. */
GCOMP__INLINE gcomp__rows GCOMP__F(rows_at)(const gcomp__matrix *m, size_t i, size_t j)
{
    const size_t at = m->at + i * m->cols + j;
    gcomp__rows x;
    x.g = (const float *)m->in->grad + at;
    x.e = m->in->residual ? m->in->residual + at : NULL;
    x.stride = m->cols;
    return x;
}

GCOMP__INLINE GCOMP__F(v) GCOMP__F(plain_p)(const gcomp__rows *x, size_t at, int feedback)
{
    return feedback ? GCOMP__F(add)(GCOMP__F(load)(x->g + at), GCOMP__F(load)(x->e + at)) : GCOMP__F(load)(x->g + at);
}

/* The same of any type and scale, copied: `count` columns, and zeros up to a multiple of 16. */
GCOMP__NOINLINE gcomp__rows GCOMP__F(copied)(const gcomp__matrix *m, size_t i, size_t rows, size_t j, size_t count, float *tile)
{
    const gcomp_input in = *m->in;
    gcomp__rows x;
    size_t k, l, at;
    x.g = tile;
    x.e = NULL;
    x.stride = (count + 15) / 16 * 16;
    for (k = 0; k < rows; k++, tile += x.stride) {
        at = m->at + (i + k) * m->cols + j;
        for (l = 0; l + 16 <= count; l += 16)
            GCOMP__F(store)(tile + l, GCOMP__F(load_p)(&in, at + l, 1, in.residual != NULL));
        if (l < count) GCOMP__F(store)(tile + l, GCOMP__F(load_p_some)(&in, at + l, count - l));
    }
    return x;
}

/* P[i][c] += fold of the sum over j < count of M[i][j] Q[j][c], of up to 4 rows, or 8 of one column, and all of the up to 4
   columns, at most 8 sums: 16 lanes along j. Q in panels: 16 columns of the first rank, then those of the next. */
GCOMP__HEAVY void GCOMP__F(few)(const gcomp__rows *from, size_t count, const float *q, float *p, const gcomp__rows *next,
                                int rows, int rank, int feedback, int fetching)
{
    const gcomp__rows x = *from, ahead = *next;
    const size_t s = x.stride;
    const GCOMP__F(v) zero = GCOMP__F(splat)(0);
    GCOMP__F(v) a0 = zero, a1 = zero, a2 = zero, a3 = zero, b0 = zero, b1 = zero, b2 = zero, b3 = zero;
    size_t j;
    for (j = 0; j < count; j += 16, q += 16 * rank) {
        const GCOMP__F(v) t = GCOMP__F(load)(q), u = rank > 1 ? GCOMP__F(load)(q + 16) : t;
        GCOMP__F(v) v = GCOMP__F(plain_p)(&x, j, feedback);
        a0 = GCOMP__F(fma)(v, t, a0);
        if (rank > 1) b0 = GCOMP__F(fma)(v, u, b0);
        if (rank > 2) a1 = GCOMP__F(fma)(v, GCOMP__F(load)(q + 32), a1);
        if (rank > 3) b1 = GCOMP__F(fma)(v, GCOMP__F(load)(q + 48), b1);
        if (rows > 1) {
            v = GCOMP__F(plain_p)(&x, s + j, feedback);
            a1 = GCOMP__F(fma)(v, t, a1);
            if (rank > 1) b1 = GCOMP__F(fma)(v, u, b1);
        }
        if (rows > 2) {
            v = GCOMP__F(plain_p)(&x, 2 * s + j, feedback);
            a2 = GCOMP__F(fma)(v, t, a2);
            if (rank > 1) b2 = GCOMP__F(fma)(v, u, b2);
            v = GCOMP__F(plain_p)(&x, 3 * s + j, feedback);
            a3 = GCOMP__F(fma)(v, t, a3);
            if (rank > 1) b3 = GCOMP__F(fma)(v, u, b3);
        }
        if (rows > 4) {
            b0 = GCOMP__F(fma)(GCOMP__F(plain_p)(&x, 4 * s + j, feedback), t, b0);
            b1 = GCOMP__F(fma)(GCOMP__F(plain_p)(&x, 5 * s + j, feedback), t, b1);
        }
        if (rows > 6) {
            b2 = GCOMP__F(fma)(GCOMP__F(plain_p)(&x, 6 * s + j, feedback), t, b2);
            b3 = GCOMP__F(fma)(GCOMP__F(plain_p)(&x, 7 * s + j, feedback), t, b3);
        }
        if (fetching) GCOMP__F(fetch)(&ahead, j, rows);
    }
    GCOMP__F(add_float)(p, GCOMP__F(fold)(a0));
    if (rank > 1) GCOMP__F(add_float)(p + 1, GCOMP__F(fold)(b0));
    p += rank > 2 ? 2 : rank;
    if (rows > 1 || rank > 2) GCOMP__F(add_float)(p, GCOMP__F(fold)(a1));
    if (rows > 1 ? rank > 1 : rank > 3) GCOMP__F(add_float)(p + 1, GCOMP__F(fold)(b1));
    if (rows > 2) GCOMP__F(add_float)(p + rank, GCOMP__F(fold)(a2));
    if (rows > 2 && rank > 1) GCOMP__F(add_float)(p + rank + 1, GCOMP__F(fold)(b2));
    if (rows > 2) GCOMP__F(add_float)(p + 2 * rank, GCOMP__F(fold)(a3));
    if (rows > 2 && rank > 1) GCOMP__F(add_float)(p + 2 * rank + 1, GCOMP__F(fold)(b3));
    if (rows > 4) GCOMP__F(add_float)(p + 3, GCOMP__F(fold)(b0)), GCOMP__F(add_float)(p + 4, GCOMP__F(fold)(b1));
    if (rows > 6) GCOMP__F(add_float)(p + 5, GCOMP__F(fold)(b2)), GCOMP__F(add_float)(p + 6, GCOMP__F(fold)(b3));
}

/* Rows that are taken together, of those that are left. */
GCOMP__INLINE size_t GCOMP__F(together)(size_t left) { return left >= GCOMP__F(tall) ? GCOMP__F(tall) : left >= 4 ? 4 : 1; }

/* The same of few ranks: of more than 2 these fill the registers. */
GCOMP__INLINE size_t GCOMP__F(beside)(size_t rank, size_t left)
{
    if (rank == 1) return GCOMP__F(together)(left);
    return rank == 2 && left >= GCOMP__F(abreast) ? GCOMP__F(abreast) : 1;
}

GCOMP__NOINLINE void GCOMP__F(few_rows)(const gcomp__rows *x, size_t count, const float *q, float *p, const gcomp__rows *next,
                                        size_t rows, size_t rank)
{
    const int tall = GCOMP__F(tall), pair = GCOMP__F(abreast), warm = !x->e && !next->g, many = tall > 4 && rows > 4;
    if (warm && rank == 1 && many) GCOMP__F(few)(x, count, q, p, next, tall, 1, 0, 0);
    else if (warm && rank == 2 && rows > 1) GCOMP__F(few)(x, count, q, p, next, pair, 2, 0, 0);
    else if (x->e && rank > 3) GCOMP__F(few)(x, count, q, p, next, 1, 4, 1, 1);
    else if (x->e && rank > 2) GCOMP__F(few)(x, count, q, p, next, 1, 3, 1, 1);
    else if (x->e && rank > 1 && rows > 1) GCOMP__F(few)(x, count, q, p, next, pair, 2, 1, 1);
    else if (x->e && rank > 1) GCOMP__F(few)(x, count, q, p, next, 1, 2, 1, 1);
    else if (x->e && many) GCOMP__F(few)(x, count, q, p, next, tall, 1, 1, 1);
    else if (x->e && rows > 1) GCOMP__F(few)(x, count, q, p, next, 4, 1, 1, 1);
    else if (x->e) GCOMP__F(few)(x, count, q, p, next, 1, 1, 1, 1);
    else if (rank > 3) GCOMP__F(few)(x, count, q, p, next, 1, 4, 0, 1);
    else if (rank > 2) GCOMP__F(few)(x, count, q, p, next, 1, 3, 0, 1);
    else if (rank > 1 && rows > 1) GCOMP__F(few)(x, count, q, p, next, pair, 2, 0, 1);
    else if (rank > 1) GCOMP__F(few)(x, count, q, p, next, 1, 2, 0, 1);
    else if (many) GCOMP__F(few)(x, count, q, p, next, tall, 1, 0, 1);
    else if (rows > 1) GCOMP__F(few)(x, count, q, p, next, 4, 1, 0, 1);
    else GCOMP__F(few)(x, count, q, p, next, 1, 1, 0, 1);
}

/* Columns of the next block, of those that are left; the rest of a row that is no multiple of 16 is a block of its own. */
GCOMP__INLINE size_t GCOMP__F(block_of)(size_t left)
{
    return left < 3 * GCOMP__POWERSGD_BLOCK / 2 ? left : (size_t)GCOMP__POWERSGD_BLOCK;
}

/* A span of Q, of some blocks, stays in the innermost cache. */
static void GCOMP__F(project_few)(const gcomp__matrix *m, size_t row, size_t end, const float *q, float *p)
{
    const size_t lines = m->cols / 16 * 16, whole = GCOMP__F(general)(m->in) ? 0 : lines, rank = m->rank;
    const size_t span = GCOMP__POWERSGD_BLOCK * (rank > 2 ? 2 : rank > 1 ? 4 : 16);
    const gcomp__rows none = {NULL, NULL, 0};
    const int in_order = rank <= 2 && (m->in->residual || rank == 1); /* block after block, as they lie */
    float tile[3 * GCOMP__POWERSGD_BLOCK / 2];
    size_t i, j = 0, k, count, rows;
    for (k = 0; k < whole; k = j) {
        for (i = row; i < end; i += rows) {
            rows = GCOMP__F(beside)(rank, end - i);
            for (j = k; j < gcomp__min(whole, k + span); j += count) {
                const gcomp__rows x = GCOMP__F(rows_at)(m, i, j);
                gcomp__rows next;
                size_t then = 0;
                count = GCOMP__F(block_of)(whole - j);
                if (in_order && j + 2 * count <= gcomp__min(whole, k + span)) then = count;
                else if (in_order && i + 2 * rows <= end) then = rows * m->cols - (j - k);
                else if (rank > 1 && i + 2 * rows <= end) then = rows * m->cols;
                next = GCOMP__F(behind)(&x, m->uncached ? then : 0);
                GCOMP__F(few_rows)(&x, count, q + j * rank, p + i * rank, &next, rows, rank);
            }
        }
    }
    for (k = whole; k < m->cols; k += count) {
        count = k < lines ? GCOMP__F(block_of)(lines - k) : m->cols - k;
        for (i = row; i < end; i++) {
            const gcomp__rows x = GCOMP__F(copied)(m, i, 1, k, count, tile);
            GCOMP__F(few_rows)(&x, x.stride, q + k * rank, p + i * rank, &none, 1, rank);
        }
    }
}

#ifndef GCOMP__MANY
/* Of one column of M, elements of rows at g; those of two rows at a stride o side by side where `half`: */
#define GCOMP__MANY(k) half ? GCOMP__F(pair_splat)(g[k], g[(k) + o]) : GCOMP__F(splat)(g[k])
#define GCOMP__MANY_STEP \
    do { \
        const GCOMP__F(v) t = half ? GCOMP__F(twice)(q) : GCOMP__F(load)(q); \
        a0 = GCOMP__F(fma)(GCOMP__MANY(0), t, a0); \
        if (rows > 1) a1 = GCOMP__F(fma)(GCOMP__MANY(s), t, a1); \
        if (rows > 2) a2 = GCOMP__F(fma)(GCOMP__MANY(2 * s), t, a2); \
        if (rows > 2) a3 = GCOMP__F(fma)(GCOMP__MANY(3 * s), t, a3); \
        if (rows > 4) a4 = GCOMP__F(fma)(GCOMP__MANY(4 * s), t, a4); \
        if (rows > 4) a5 = GCOMP__F(fma)(GCOMP__MANY(5 * s), t, a5); \
        if (rows > 6) a6 = GCOMP__F(fma)(GCOMP__MANY(6 * s), t, a6); \
        if (rows > 6) a7 = GCOMP__F(fma)(GCOMP__MANY(7 * s), t, a7); \
        q += half ? 8 : 16; \
        g++; \
    } while (0)
/* Two of 16, beside what one row of the next 16 takes: */
#define GCOMP__MANY_LINE \
    do { \
        if (r < all) { \
            GCOMP__PREFETCH_NEAR(x.g + fetched); \
            if (feedback) GCOMP__PREFETCH_NEAR(x.e + fetched); \
            GCOMP__F(store)(to + o * r, GCOMP__F(plain_p)(&x, at, feedback)); \
            at += x.stride; \
            fetched += x.stride; \
        } \
        GCOMP__MANY_STEP; \
        GCOMP__MANY_STEP; \
    } while (0)
#define GCOMP__MANY_LOAD \
    GCOMP__F(v) a0 = GCOMP__F(load)(p), a1 = rows > 1 ? GCOMP__F(load)(p + pitch) : a0, a2 = a0, a3 = a0, a4 = a0, a5 = a0; \
    GCOMP__F(v) a6 = a0, a7 = a0; \
    if (rows > 2) a2 = GCOMP__F(load)(p + 2 * pitch), a3 = GCOMP__F(load)(p + 3 * pitch); \
    if (rows > 4) a4 = GCOMP__F(load)(p + 4 * pitch), a5 = GCOMP__F(load)(p + 5 * pitch); \
    if (rows > 6) a6 = GCOMP__F(load)(p + 6 * pitch), a7 = GCOMP__F(load)(p + 7 * pitch)
#define GCOMP__MANY_STORE \
    do { \
        GCOMP__F(store)(p, a0); \
        if (rows > 1) GCOMP__F(store)(p + pitch, a1); \
        if (rows > 2) GCOMP__F(store)(p + 2 * pitch, a2), GCOMP__F(store)(p + 3 * pitch, a3); \
        if (rows > 4) GCOMP__F(store)(p + 4 * pitch, a4), GCOMP__F(store)(p + 5 * pitch, a5); \
        if (rows > 6) GCOMP__F(store)(p + 6 * pitch, a6), GCOMP__F(store)(p + 7 * pitch, a7); \
    } while (0)
#endif

/* P[i][c .. c + 15] += sum over j < count of M[i][j] Q[j][c ..]: each a chain in order of j; lanes along the rank, or where
   that is up to 8, along that of two rows. */
GCOMP__HEAVY void GCOMP__F(many)(const gcomp__rows *x, size_t count, const float *q, float *p, size_t pitch, int rows, int half)
{
    const size_t s = half ? 2 * x->stride : x->stride, o = x->stride;
    const float *g = x->g, *end = g + count;
    GCOMP__MANY_LOAD;
    while (g < end) GCOMP__MANY_STEP;
    GCOMP__MANY_STORE;
}

GCOMP__NOINLINE void GCOMP__F(many_rows)(const gcomp__rows *x, size_t count, const float *q, float *p, size_t pitch, size_t rows,
                                         int half)
{
    if (half && rows == 4) GCOMP__F(many)(x, count, q, p, pitch, 4, 1);
    else if (half) GCOMP__F(many)(x, count, q, p, pitch, 1, 1);
    else if (rows == GCOMP__F(tall)) GCOMP__F(many)(x, count, q, p, pitch, GCOMP__F(tall), 0);
    else if (rows == 4) GCOMP__F(many)(x, count, q, p, pitch, 4, 0);
    else GCOMP__F(many)(x, count, q, p, pitch, 1, 0);
}

/* The same of a multiple of 16 columns as they lie in memory: while 16 are multiplied, the next ones are copied, e added. What
   is further on is fetched, at the end from the rows `then` elements behind these; 0: there are none. */
GCOMP__HEAVY void GCOMP__F(stream)(const gcomp__rows *from, size_t count, const float *q, float *p, size_t pitch, size_t then,
                                   int rows, int half, int feedback)
{
    enum { o = 16, most = 8 };
    const gcomp__rows x = *from;
    const size_t s = half ? 2 * o : o, ahead = gcomp__min(512, count);
    const int all = half ? 2 * rows : rows;
    float tile[2][most * o];
    size_t j, at, fetched;
    int r;
    GCOMP__MANY_LOAD;
    for (r = 0, at = 0; r < all; r++, at += x.stride) GCOMP__F(store)(tile[0] + o * r, GCOMP__F(plain_p)(&x, at, feedback));
    for (j = 0; j < count; j += 16) {
        const float *g = tile[j / 16 % 2];
        float *to = tile[(j / 16 + 1) % 2];
        at = j + 16 < count ? j + 16 : j;
        fetched = j + ahead < count ? j + ahead : then ? then + j + ahead - count : j;
        if (half && feedback && GCOMP__F(tall) > 4) { /* the hardware sees the order in each row only by loads of its own */
            GCOMP__UNROLL
            for (r = 0; r < most; r++) GCOMP__MANY_LINE;
        } else
            for (r = 0; r < most; r++) GCOMP__MANY_LINE;
    }
    GCOMP__MANY_STORE;
}

GCOMP__NOINLINE void GCOMP__F(stream_rows)(const gcomp__rows *x, size_t count, const float *q, float *p, size_t pitch,
                                           size_t then, int half)
{
    if (half && x->e) GCOMP__F(stream)(x, count, q, p, pitch, then, 4, 1, 1);
    else if (half) GCOMP__F(stream)(x, count, q, p, pitch, then, 4, 1, 0);
    else if (x->e) GCOMP__F(stream)(x, count, q, p, pitch, then, GCOMP__F(tall), 0, 1);
    else GCOMP__F(stream)(x, count, q, p, pitch, then, GCOMP__F(tall), 0, 0);
}

static void GCOMP__F(project_many)(const gcomp__matrix *m, size_t row, size_t end, const float *q, float *p)
{
    const size_t lanes = m->pitch, panel = 16 * m->cols, span = lanes > 16 ? 1024 : 4096; /* of more panels M is read again */
    const int plain = !GCOMP__F(general)(m->in), half = lanes == 8;
    const size_t each = half ? 8 : 16, pitch = half ? 16 : lanes;
    float tile[GCOMP__F(tall) * GCOMP__F(tile)];
    const size_t width = sizeof tile / 4 / (half ? 8 : GCOMP__F(tall)) / 16 * 16;
    size_t i, j, k, c, rows, blocks, count;
    for (k = 0; k < m->cols; k += span) {
        const size_t stop = gcomp__min(m->cols, k + span);
        for (i = row; i < end; i += rows) {
            blocks = half ? GCOMP__F(together)(gcomp__min(4, (end - i) / 2)) : GCOMP__F(together)(end - i);
            rows = half ? gcomp__min(end - i, 2 * blocks) : blocks; /* the last of an odd number by itself */
            j = k;
            if (plain && stop - k >= 16 && blocks == (half ? 4 : GCOMP__F(tall))) {
                const gcomp__rows x = GCOMP__F(rows_at)(m, i, k);
                count = (stop - k) / 16 * 16;
                for (c = 0; c < lanes; c += 16)
                    GCOMP__F(stream_rows)(&x, count, q + c / 16 * panel + each * k, p + i * lanes + c, pitch,
                                          i + 2 * rows <= end ? rows * m->cols : 0, half);
                j += count;
            }
            for (; j < stop; j += count) {
                gcomp__rows x;
                count = gcomp__min(width, stop - j);
                x = GCOMP__F(copied)(m, i, rows, j, count, tile);
                if (rows == 1) x.stride = 0;
                for (c = 0; c < lanes; c += 16)
                    GCOMP__F(many_rows)(&x, count, q + c / 16 * panel + each * j, p + i * lanes + c, pitch, blocks, half);
            }
        }
    }
}

/* >>kernel project: P = M Q for rows row .. end - 1: P row by row; Q in panels of 16 columns (up to GCOMP__POWERSGD_FEW ranks),
   else, 16 ranks after the other, column by column. */
static void GCOMP__F(project)(const gcomp__matrix *m, size_t row, size_t end, const float *q, float *p)
{
    memset(p + row * m->pitch, 0, 4 * (end - row) * m->pitch);
    if (m->rank <= GCOMP__POWERSGD_FEW) GCOMP__F(project_few)(m, row, end, q, p);
#ifdef GCOMP__EIGHT_LANES
    else if (m->pitch == 8) GCOMP__NAME1(project_many, GCOMP__EIGHT_LANES)(m, row, end, q, p);
#endif
    else GCOMP__F(project_many)(m, row, end, q, p);
}

/* Q[j][c] += sum over the rows of P[i][c] M[i][j], rows in order, of `count` columns, a multiple of 16; Q in panels. */
GCOMP__HEAVY void GCOMP__F(back_rows)(const gcomp__rows *from, size_t count, const float *p, const gcomp__matrix *m, float *q,
                                      const gcomp__rows *next, int rows, int feedback, int fetching)
{
    const gcomp__rows x = *from, ahead = *next;
    const size_t s = x.stride, rank = m->rank, pitch = m->pitch;
    const GCOMP__F(v) zero = GCOMP__F(splat)(0);
    size_t j, c;
    for (j = 0; j < count; j += 16) {
        GCOMP__F(v) x0 = GCOMP__F(plain_p)(&x, j, feedback), x1 = zero, x2 = zero, x3 = zero, x4 = zero, x5 = zero, x6 = zero;
        GCOMP__F(v) x7 = zero;
        if (rows > 1) {
            x1 = GCOMP__F(plain_p)(&x, s + j, feedback);
            x2 = GCOMP__F(plain_p)(&x, 2 * s + j, feedback);
            x3 = GCOMP__F(plain_p)(&x, 3 * s + j, feedback);
        }
        if (GCOMP__F(tall) > 4 && rows > 4) {
            x4 = GCOMP__F(plain_p)(&x, 4 * s + j, feedback);
            x5 = GCOMP__F(plain_p)(&x, 5 * s + j, feedback);
        }
        if (GCOMP__F(tall) > 6 && rows > 6) {
            x6 = GCOMP__F(plain_p)(&x, 6 * s + j, feedback);
            x7 = GCOMP__F(plain_p)(&x, 7 * s + j, feedback);
        }
        if (fetching) GCOMP__F(fetch)(&ahead, j, rows);
        for (c = 0; c < rank; c++, q += 16) {
            const float *f = p + c;
            GCOMP__F(v) t = GCOMP__F(fma)(x0, GCOMP__F(splat)(f[0]), GCOMP__F(load)(q));
            if (rows > 1) {
                t = GCOMP__F(fma)(x1, GCOMP__F(splat)(f[pitch]), t);
                t = GCOMP__F(fma)(x2, GCOMP__F(splat)(f[2 * pitch]), t);
                t = GCOMP__F(fma)(x3, GCOMP__F(splat)(f[3 * pitch]), t);
            }
            if (GCOMP__F(tall) > 4 && rows > 4) {
                t = GCOMP__F(fma)(x4, GCOMP__F(splat)(f[4 * pitch]), t);
                t = GCOMP__F(fma)(x5, GCOMP__F(splat)(f[5 * pitch]), t);
            }
            if (GCOMP__F(tall) > 6 && rows > 6) {
                t = GCOMP__F(fma)(x6, GCOMP__F(splat)(f[6 * pitch]), t);
                t = GCOMP__F(fma)(x7, GCOMP__F(splat)(f[7 * pitch]), t);
            }
            GCOMP__F(store)(q, t);
        }
    }
}

/* The same of one rank, of 4 rows or more. */
GCOMP__HEAVY void GCOMP__F(back_one)(const gcomp__rows *from, size_t count, const float *p, float *q, const gcomp__rows *next,
                                     int rows, int feedback, int fetching)
{
    const gcomp__rows x = *from, ahead = *next;
    const size_t s = x.stride;
    const GCOMP__F(v) f0 = GCOMP__F(splat)(p[0]), f1 = GCOMP__F(splat)(p[1]), f2 = GCOMP__F(splat)(p[2]);
    const GCOMP__F(v) f3 = GCOMP__F(splat)(p[3]);
    GCOMP__F(v) f4 = f3, f5 = f3, f6 = f3, f7 = f3;
    size_t j;
    if (rows > 4) f4 = GCOMP__F(splat)(p[4]), f5 = GCOMP__F(splat)(p[5]);
    if (rows > 6) f6 = GCOMP__F(splat)(p[6]), f7 = GCOMP__F(splat)(p[7]);
    for (j = 0; j < count; j += 16) {
        GCOMP__F(v) t = GCOMP__F(fma)(GCOMP__F(plain_p)(&x, j, feedback), f0, GCOMP__F(load)(q + j));
        t = GCOMP__F(fma)(GCOMP__F(plain_p)(&x, s + j, feedback), f1, t);
        t = GCOMP__F(fma)(GCOMP__F(plain_p)(&x, 2 * s + j, feedback), f2, t);
        t = GCOMP__F(fma)(GCOMP__F(plain_p)(&x, 3 * s + j, feedback), f3, t);
        if (rows > 4) t = GCOMP__F(fma)(GCOMP__F(plain_p)(&x, 4 * s + j, feedback), f4, t);
        if (rows > 4) t = GCOMP__F(fma)(GCOMP__F(plain_p)(&x, 5 * s + j, feedback), f5, t);
        if (rows > 6) t = GCOMP__F(fma)(GCOMP__F(plain_p)(&x, 6 * s + j, feedback), f6, t);
        if (rows > 6) t = GCOMP__F(fma)(GCOMP__F(plain_p)(&x, 7 * s + j, feedback), f7, t);
        GCOMP__F(store)(q + j, t);
        if (fetching) GCOMP__F(fetch)(&ahead, j, rows);
    }
}

GCOMP__NOINLINE void GCOMP__F(back_some)(const gcomp__rows *x, size_t count, const float *p, const gcomp__matrix *m, float *q,
                                         const gcomp__rows *next, size_t rows)
{
    const int tall = GCOMP__F(tall), many = tall > 4 && rows > 4;
    if (m->rank == 1 && rows > 1) {
        if (x->e && many) GCOMP__F(back_one)(x, count, p, q, next, tall, 1, 1);
        else if (x->e) GCOMP__F(back_one)(x, count, p, q, next, 4, 1, 1);
        else if (many && next->g) GCOMP__F(back_one)(x, count, p, q, next, tall, 0, 1);
        else if (many) GCOMP__F(back_one)(x, count, p, q, next, tall, 0, 0);
        else GCOMP__F(back_one)(x, count, p, q, next, 4, 0, 1);
    } else if (x->e && many) GCOMP__F(back_rows)(x, count, p, m, q, next, tall, 1, 1);
    else if (x->e && rows == 4) GCOMP__F(back_rows)(x, count, p, m, q, next, 4, 1, 1);
    else if (x->e) GCOMP__F(back_rows)(x, count, p, m, q, next, 1, 1, 1);
    else if (many && next->g) GCOMP__F(back_rows)(x, count, p, m, q, next, tall, 0, 1);
    else if (many) GCOMP__F(back_rows)(x, count, p, m, q, next, tall, 0, 0);
    else if (rows == 4) GCOMP__F(back_rows)(x, count, p, m, q, next, 4, 0, 1);
    else GCOMP__F(back_rows)(x, count, p, m, q, next, 1, 0, 1);
}

/* >>kernel back: Q = M^T P for columns col .. end - 1; col is a multiple of 16. P row by row, Q in panels. */
static void GCOMP__F(back)(const gcomp__matrix *m, size_t col, size_t end, const float *p, float *q)
{
    const size_t whole = GCOMP__F(general)(m->in) ? 0 : (end - col) / 16 * 16;
    const gcomp__rows none = {NULL, NULL, 0};
    float tile[GCOMP__F(tall) * GCOMP__F(tile)];
    size_t i, j, count, rows;
    q += col * m->rank;
    memset(q, 0, 4 * m->rank * ((end - col + 15) / 16 * 16));
    for (i = 0; i < m->rows; i += rows) {
        rows = GCOMP__F(together)(m->rows - i);
        if (whole) {
            const gcomp__rows x = GCOMP__F(rows_at)(m, i, col);
            const gcomp__rows next = GCOMP__F(behind)(&x, m->uncached && i + 2 * rows <= m->rows ? rows * m->cols : 0);
            GCOMP__F(back_some)(&x, whole, p + i * m->pitch, m, q, &next, rows);
        }
        for (j = whole; j < end - col; j += count) {
            gcomp__rows x;
            count = gcomp__min(GCOMP__F(tile), end - col - j);
            x = GCOMP__F(copied)(m, i, rows, col + j, count, tile);
            GCOMP__F(back_some)(&x, x.stride, p + i * m->pitch, m, q + j * m->rank, &none, rows);
        }
    }
}

GCOMP__INLINE void GCOMP__F(put)(float *y, GCOMP__F(v) x) { GCOMP__F(store)(y, GCOMP__F(saturate)(x)); }

/* y = P Q^T, or where `rest` y = M - P Q^T, saturated, of some rows and `count` columns, a multiple of 16; y may be part of M. */
GCOMP__HEAVY void GCOMP__F(outer)(const gcomp__rows *from, size_t count, const float *p, const float *q, const gcomp__matrix *m,
                                  float *y, size_t stride, const gcomp__rows *next, int rows, int rest)
{
    const gcomp__rows x = *from, ahead = *next;
    const size_t s = x.stride, rank = m->rank, pitch = m->pitch;
    const GCOMP__F(v) zero = GCOMP__F(splat)(0);
    const int feedback = x.e != NULL;
    size_t j, c;
    for (j = 0; j < count; j += 16, y += 16) {
        GCOMP__F(v) a0 = zero, a1 = zero, a2 = zero, a3 = zero, a4 = zero, a5 = zero, a6 = zero, a7 = zero;
        if (rest) GCOMP__F(fetch)(&ahead, j, rows);
        for (c = 0; c < rank; c++, q += 16) {
            const GCOMP__F(v) t = GCOMP__F(load)(q);
            const float *f = p + c;
            a0 = GCOMP__F(fma)(GCOMP__F(splat)(f[0]), t, a0);
            if (rows > 1) {
                a1 = GCOMP__F(fma)(GCOMP__F(splat)(f[pitch]), t, a1);
                a2 = GCOMP__F(fma)(GCOMP__F(splat)(f[2 * pitch]), t, a2);
                a3 = GCOMP__F(fma)(GCOMP__F(splat)(f[3 * pitch]), t, a3);
            }
            if (rows > 4) {
                a4 = GCOMP__F(fma)(GCOMP__F(splat)(f[4 * pitch]), t, a4);
                a5 = GCOMP__F(fma)(GCOMP__F(splat)(f[5 * pitch]), t, a5);
            }
            if (rows > 6) {
                a6 = GCOMP__F(fma)(GCOMP__F(splat)(f[6 * pitch]), t, a6);
                a7 = GCOMP__F(fma)(GCOMP__F(splat)(f[7 * pitch]), t, a7);
            }
        }
        if (rest) {
            a0 = GCOMP__F(sub)(GCOMP__F(plain_p)(&x, j, feedback), a0);
            if (rows > 1) a1 = GCOMP__F(sub)(GCOMP__F(plain_p)(&x, s + j, feedback), a1);
            if (rows > 1) a2 = GCOMP__F(sub)(GCOMP__F(plain_p)(&x, 2 * s + j, feedback), a2);
            if (rows > 1) a3 = GCOMP__F(sub)(GCOMP__F(plain_p)(&x, 3 * s + j, feedback), a3);
            if (rows > 4) a4 = GCOMP__F(sub)(GCOMP__F(plain_p)(&x, 4 * s + j, feedback), a4);
            if (rows > 4) a5 = GCOMP__F(sub)(GCOMP__F(plain_p)(&x, 5 * s + j, feedback), a5);
            if (rows > 6) a6 = GCOMP__F(sub)(GCOMP__F(plain_p)(&x, 6 * s + j, feedback), a6);
            if (rows > 6) a7 = GCOMP__F(sub)(GCOMP__F(plain_p)(&x, 7 * s + j, feedback), a7);
        }
        GCOMP__F(put)(y, a0);
        if (rows > 1) {
            GCOMP__F(put)(y + stride, a1);
            GCOMP__F(put)(y + 2 * stride, a2);
            GCOMP__F(put)(y + 3 * stride, a3);
        }
        if (rows > 4) GCOMP__F(put)(y + 4 * stride, a4), GCOMP__F(put)(y + 5 * stride, a5);
        if (rows > 6) GCOMP__F(put)(y + 6 * stride, a6), GCOMP__F(put)(y + 7 * stride, a7);
    }
}

GCOMP__NOINLINE void GCOMP__F(outer_some)(const gcomp__rows *x, size_t count, const float *p, const float *q,
                                          const gcomp__matrix *m, float *y, size_t stride, const gcomp__rows *next,
                                          size_t rows, int rest)
{
    if (rest && rows == GCOMP__F(tall)) GCOMP__F(outer)(x, count, p, q, m, y, stride, next, GCOMP__F(tall), 1);
    else if (rest && rows == 4) GCOMP__F(outer)(x, count, p, q, m, y, stride, next, 4, 1);
    else if (rest) GCOMP__F(outer)(x, count, p, q, m, y, stride, next, 1, 1);
    else if (rows == GCOMP__F(tall)) GCOMP__F(outer)(x, count, p, q, m, y, stride, next, GCOMP__F(tall), 0);
    else if (rows == 4) GCOMP__F(outer)(x, count, p, q, m, y, stride, next, 4, 0);
    else GCOMP__F(outer)(x, count, p, q, m, y, stride, next, 1, 0);
}

/* >>kernel expand: y = P Q^T of the mean, and where residual is given, residual = M - P Q^T of this worker's own factors, for
   rows row .. end - 1, in one pass. y may be the gradient, residual that of M. */
static void GCOMP__F(expand)(const gcomp__matrix *m, size_t row, size_t end, const gcomp__factors *own, float *residual,
                             const gcomp__factors *mean, float *y)
{
    const size_t cols = m->cols, whole = residual && GCOMP__F(general)(m->in) ? 0 : cols / 16 * 16;
    const size_t span = 512, most = m->rank <= GCOMP__POWERSGD_FEW ? 4 : GCOMP__F(tall); /* for memory's sake */
    const gcomp__rows none = {NULL, NULL, 0};
    float tile[GCOMP__F(tall) * GCOMP__F(tile)];
    size_t i, j, k, count, rows;
    for (i = row; i < end; i += rows) {
        const float *mean_p = mean->p + i * m->pitch, *own_p = own->p + i * m->pitch;
        rows = GCOMP__F(together)(gcomp__min(end - i, most));
        for (j = 0; j < whole; j += count) {
            const gcomp__rows x = GCOMP__F(rows_at)(m, i, j);
            const size_t at = m->at + i * cols + j;
            gcomp__rows next;
            count = gcomp__min(span, whole - j);
            next = GCOMP__F(behind)(&x, m->uncached && residual && j + 2 * span <= cols ? span : 0);
            if (residual) GCOMP__F(outer_some)(&x, count, own_p, own->q + j * m->rank, m, residual + at, cols, &next, rows, 1);
            GCOMP__F(outer_some)(&x, count, mean_p, mean->q + j * m->rank, m, y + at, cols, &next, rows, 0);
        }
        for (; j < cols; j += count) {
            const size_t at = m->at + i * cols + j;
            gcomp__rows x = {NULL, NULL, 16};
            count = gcomp__min(GCOMP__F(tile), cols - j);
            if (residual) {
                x = GCOMP__F(copied)(m, i, rows, j, count, tile);
                GCOMP__F(outer_some)(&x, x.stride, own_p, own->q + j * m->rank, m, tile, x.stride, &none, rows, 1);
                for (k = 0; k < rows; k++) memcpy(residual + at + k * cols, tile + k * x.stride, 4 * count);
            }
            GCOMP__F(outer_some)(&x, x.stride, mean_p, mean->q + j * m->rank, m, tile, x.stride, &none, rows, 0);
            for (k = 0; k < rows; k++) memcpy(y + at + k * cols, tile + k * x.stride, 4 * count);
        }
    }
}

/* >>kernel turn: to[i * pitch + c] = from[c * stride + i] for i < n, c < rank. */
static void GCOMP__F(turned)(float *to, size_t pitch, const float *from, size_t stride, size_t n, size_t rank)
{
    size_t i, c, k, l;
    for (i = 0; i < n; i += 8)
        for (c = 0; c < rank; c += 8) {
            const size_t some = gcomp__min(8, n - i), few = gcomp__min(8, rank - c);
            float *into = to + i * pitch + c;
            const float *at = from + c * stride + i;
            if (some == 8 && few == 8) GCOMP__F(turn8)(into, pitch, at, stride);
            else
                for (k = 0; k < some; k++)
                    for (l = 0; l < few; l++) into[k * pitch + l] = at[l * stride + k];
        }
}

/* >>kernel dot: sum of x * y in double.  >>kernel update: y += a * x. */
static double GCOMP__F(dot)(const float *x, const float *y, size_t n)
{
    GCOMP__F(sum) s = GCOMP__F(sum_none)();
    size_t i;
    for (i = 0; i + 16 <= n; i += 16) s = GCOMP__F(sum_dot)(s, GCOMP__F(load)(x + i), GCOMP__F(load)(y + i));
    if (i < n) s = GCOMP__F(sum_dot)(s, GCOMP__F(load_some)(x + i, n - i), GCOMP__F(load_some)(y + i, n - i));
    return GCOMP__F(sum_fold)(s);
}

static void GCOMP__F(update)(float *y, float a, const float *x, size_t n)
{
    GCOMP__F(v) f = GCOMP__F(splat)(a);
    size_t i;
    for (i = 0; i + 16 <= n; i += 16) GCOMP__F(store)(y + i, GCOMP__F(fma)(f, GCOMP__F(load)(x + i), GCOMP__F(load)(y + i)));
    if (i < n)
        GCOMP__F(store_some)
        (y + i, GCOMP__F(fma)(f, GCOMP__F(load_some)(x + i, n - i), GCOMP__F(load_some)(y + i, n - i)), n - i);
}

static const gcomp__powersgd_kernels GCOMP__F(powersgd_kernels) = {GCOMP__F(project), GCOMP__F(back), GCOMP__F(expand),
                                                                   GCOMP__F(turned), GCOMP__F(dot), GCOMP__F(update)};

#ifdef GCOMP__LAST
enum { GCOMP__POWERSGD_ROWS = 48 }; /* of a task */

static size_t gcomp__powersgd_rank(const gcomp_codec *codec, size_t rows, size_t cols)
{
    return gcomp__min((size_t)codec->param[0], gcomp__min(rows, cols));
}

/* All parameters: rank, alternate, momentum. */
static int gcomp__powersgd_alternates(const gcomp_codec *codec) { return codec->param[1] != 0; }

static size_t gcomp__powersgd_sum_count(const gcomp_codec *codec, size_t rows, size_t cols, int round, int odd)
{
    const int one = gcomp__powersgd_alternates(codec), none = round > (one ? 0 : 1);
    return gcomp__times(gcomp__powersgd_rank(codec, rows, cols), none ? 0 : round || (one && odd) ? cols : rows);
}

/* Of all matrices of a stack Q; where the steps alternate P, and for each if it is P's turn; with a momentum u. */
static size_t gcomp__powersgd_state_floats(const gcomp_codec *codec, size_t rows, size_t cols)
{
    const size_t rank = gcomp__powersgd_rank(codec, rows, cols);
    const size_t p = gcomp__powersgd_alternates(codec) ? gcomp__plus(gcomp__times(rank, rows), 1) : 0;
    return gcomp__plus(gcomp__plus(gcomp__times(rank, cols), p), codec->param[2] != 0 ? gcomp__times(rows, cols) : 0);
}

static size_t gcomp__powersgd_scratch(const gcomp_codec *codec, size_t n)
{
    return codec->param[2] != 0 ? gcomp__times(n, 4) : 0;
}

static size_t gcomp__powersgd_pitch(size_t rank)
{
    return rank <= GCOMP__POWERSGD_FEW ? rank : rank <= 8 ? 8 : (rank + 15) / 16 * 16;
}

/* Columns of a task of M^T P: their part of Q stays in the innermost cache. */
static size_t gcomp__powersgd_columns(size_t rank) { return gcomp__max(64, 32768 / rank / 16 * 16); }

/* Do the elements of a step no longer lie in a cache when they are read again? One rank without fetching loses least. */
static int gcomp__powersgd_is_cold(size_t elements, size_t rank) { return elements >> (rank > 1 ? 21 : 22) != 0; }

/* A factor of n rows as the kernels want it. */
static size_t gcomp__powersgd_factor(size_t rank, size_t n)
{
    return gcomp__times(gcomp__powersgd_pitch(rank), gcomp__round_up(n, 16));
}

static size_t gcomp__powersgd_local_floats(const gcomp_codec *codec, size_t rows, size_t cols)
{
    const size_t rank = gcomp__powersgd_rank(codec, rows, cols), p = gcomp__powersgd_factor(rank, rows);
    return gcomp__plus(gcomp__times(gcomp__powersgd_factor(rank, cols), 2),
                       gcomp__times(p, gcomp__powersgd_alternates(codec) ? 2 : 1));
}

static int gcomp__powersgd_gains(const gcomp_codec *codec, size_t rows, size_t cols)
{
    const size_t sent = gcomp__times(gcomp__powersgd_rank(codec, rows, cols), gcomp__plus(rows, cols));
    return (gcomp__powersgd_alternates(codec) ? sent / 2 : sent) < gcomp__times(rows, cols);
}

/* x <- x / |x|; returns the norm. A zero vector stays zero. */
static double gcomp__normalise(const gcomp__powersgd_kernels *kernels, float *x, size_t n)
{
    double norm = gcomp__sqrt((kernels->dot)(x, x, n)), inverse;
    size_t i;
    if (!(norm > 0)) return 0;
    inverse = 1 / norm;
    for (i = 0; i < n; i++) x[i] = (float)((double)x[i] * inverse);
    return norm;
}

/* Gram-Schmidt, modified, on r rows of n floats, each repeated until less than half of it goes: what depends on the rows before
   becomes noise that is orthogonal to them, or zero. */
static void gcomp__orthonormalise(const gcomp__powersgd_kernels *kernels, float *p, size_t n, size_t rank)
{
    size_t c, d;
    int pass;
    for (c = 0; c < rank; c++) {
        float *v = p + c * n;
        double left = gcomp__normalise(kernels, v, n) > 0 ? 0 : 1;
        for (pass = 0; pass < 5 && c && left < 0.5; pass++) {
            for (d = 0; d < c; d++) (kernels->update)(v, (float)-(kernels->dot)(p + d * n, v, n), p + d * n, n);
            left = gcomp__normalise(kernels, v, n);
            if (left == 0) break;
        }
        if (c && left < 0.5) memset(v, 0, 4 * n);
    }
}

/* Q to multiply with: the state, columns normalised; those that are zero drawn from four uniform numbers, nearly normal. */
static void gcomp__powersgd_start(const gcomp__powersgd_kernels *kernels, const float *state, float *q, size_t cols,
                                  size_t rank, uint64_t words, size_t first)
{
    size_t c, j;
    for (c = 0; c < rank; c++) {
        float *v = q + c * cols;
        memcpy(v, state + c * cols, 4 * cols);
        if (gcomp__normalise(kernels, v, cols) > 0) continue;
        for (j = 0; j < cols; j++) {
            uint64_t at = 4 * (uint64_t)(first + c * cols + j);
            uint32_t sum =
                gcomp__draw(words, at) + gcomp__draw(words, at + 1) + gcomp__draw(words, at + 2) + gcomp__draw(words, at + 3);
            v[j] = (float)((int32_t)sum - 2 * 65535) / 32768.0f;
        }
        gcomp__normalise(kernels, v, cols);
    }
}

/* What travels is rank after rank, n floats each. To and from panels: */
static void gcomp__to_panels(float *to, const float *from, size_t n, size_t rank)
{
    size_t i, c;
    for (i = 0; i < n; i += 16)
        for (c = 0; c < rank; c++, to += 16) {
            if (n - i >= 16) memcpy(to, from + c * n + i, 64);
            else {
                memset(to, 0, 64);
                memcpy(to, from + c * n + i, 4 * (n - i));
            }
        }
}

static void gcomp__from_panels(float *to, const float *from, size_t n, size_t rank)
{
    size_t i, c;
    for (i = 0; i < n; i += 16)
        for (c = 0; c < rank; c++, from += 16) {
            if (n - i >= 16) memcpy(to + c * n + i, from, 64);
            else memcpy(to + c * n + i, from, 4 * (n - i));
        }
}

/* Q to multiply M with. */
static void gcomp__to_projected(const gcomp__powersgd_kernels *kernels, float *to, const float *from, size_t n, size_t rank)
{
    const size_t lanes = gcomp__min(16, gcomp__powersgd_pitch(rank));
    size_t c;
    if (rank <= GCOMP__POWERSGD_FEW) {
        gcomp__to_panels(to, from, n, rank);
        return;
    }
    for (c = 0; c < rank; c += 16, to += lanes * n) {
        if (rank - c < lanes) memset(to, 0, 4 * lanes * n);
        (kernels->turn)(to, lanes, from + c * n, n, n, gcomp__min(16, rank - c));
    }
}

/* The last P of the s-th matrix, and behind that of the last one whose turn it is; where the steps alternate. */
static float *gcomp__powersgd_last_p(const gcomp__work *work, size_t s)
{
    const size_t rank = gcomp__powersgd_rank(work->codec, work->rows, work->cols);
    return work->state + (work->stack * work->cols + s * work->rows) * rank;
}

typedef struct gcomp__powersgd_job {
    const gcomp__powersgd_kernels *kernels;
    gcomp__matrix matrix;
    size_t columns; /* of a task of M^T P */
    gcomp__factors own, mean;
    float *y, *residual;
} gcomp__powersgd_job;

static void gcomp__project_task(void *arg, size_t task)
{
    const gcomp__powersgd_job *job = (const gcomp__powersgd_job *)arg;
    size_t row = task * GCOMP__POWERSGD_ROWS, end = gcomp__min(job->matrix.rows, row + GCOMP__POWERSGD_ROWS);
    (job->kernels->project)(&job->matrix, row, end, job->mean.q, job->own.p);
}

static void gcomp__back_task(void *arg, size_t task)
{
    const gcomp__powersgd_job *job = (const gcomp__powersgd_job *)arg;
    size_t col = task * job->columns, end = gcomp__min(job->matrix.cols, col + job->columns);
    (job->kernels->back)(&job->matrix, col, end, job->own.p, job->own.q);
}

static void gcomp__expand_task(void *arg, size_t task)
{
    const gcomp__powersgd_job *job = (const gcomp__powersgd_job *)arg;
    size_t row = task * GCOMP__POWERSGD_ROWS, end = gcomp__min(job->matrix.rows, row + GCOMP__POWERSGD_ROWS);
    (job->kernels->expand)(&job->matrix, row, end, &job->own, job->residual, &job->mean, job->y);
}

/* The s-th matrix of the stack. Its place in the step's scratch: Q to multiply with, then that of the mean; Q of this worker; P;
   where the steps alternate P of the mean. */
static gcomp__powersgd_job gcomp__powersgd_job_of(gcomp__work *work, size_t s)
{
    const size_t rank = gcomp__powersgd_rank(work->codec, work->rows, work->cols), q = gcomp__powersgd_factor(rank, work->cols);
    gcomp__powersgd_job job;
    memset(&job, 0, sizeof job);
    job.kernels = (const gcomp__powersgd_kernels *)work->call.kernels;
    job.matrix.in = &work->in;
    job.matrix.at = s * work->rows * work->cols;
    job.matrix.rows = work->rows;
    job.matrix.cols = work->cols;
    job.matrix.rank = rank;
    job.matrix.pitch = gcomp__powersgd_pitch(rank);
    job.matrix.uncached = gcomp__powersgd_is_cold(work->together, rank);
    job.columns = gcomp__powersgd_columns(rank);
    if (work->call.parallel.run) job.columns = gcomp__min(job.columns, 512);
    job.mean.q = work->local + s * gcomp__powersgd_local_floats(work->codec, work->rows, work->cols);
    job.own.q = job.mean.q + q;
    job.own.p = job.mean.p = job.own.q + q;
    if (gcomp__powersgd_alternates(work->codec)) job.mean.p += gcomp__powersgd_factor(rank, work->rows);
    job.y = work->y;
    job.residual = work->residual;
    return job;
}

/* With momentum: p = residual + u, the u of this step, becomes the input; at last u is kept. */
static void gcomp__powersgd_advance(gcomp__work *work, int keep)
{
    const size_t all = work->stack * gcomp__powersgd_state_floats(work->codec, work->rows, work->cols);
    gcomp__momentum d;
    float *u;
    if (work->codec->param[2] == 0) return;
    u = work->state + (all - work->n);
    memset(&d, 0, sizeof d);
    d.in = work->in;
    d.in.residual = NULL;
    d.n = work->n;
    d.u = u;
    d.v = work->in.residual;
    d.p = (float *)(void *)work->call.scratch;
    d.next = keep ? u : NULL;
    d.factor = (float)work->codec->param[2];
    gcomp__advance_all(&work->call, &d);
    work->in.grad = d.p;
    work->in.dtype = GCOMP_F32;
    work->in.scale = 1;
    work->in.residual = NULL;
}

/* M Q, or what follows P^, its product with M^T. */
static gcomp_result gcomp__powersgd_make(gcomp__work *work, int round)
{
    const uint64_t words = gcomp__stream(work->in.key.shared, GCOMP__PURPOSE_START);
    const size_t rows = work->rows, cols = work->cols, rank = gcomp__powersgd_rank(work->codec, rows, cols);
    const int alternates = gcomp__powersgd_alternates(work->codec), back = round || (alternates && work->odd);
    const size_t nq = rank * cols, np = rank * rows, floats = work->stack * (back ? nq : np);
    gcomp_input in;
    uint32_t worst;
    size_t s;
    gcomp__powersgd_advance(work, 0);
    for (s = 0; s < work->stack; s++) {
        gcomp__powersgd_job job = gcomp__powersgd_job_of(work, s);
        float *p = round ? work->sums[0] + s * np : job.mean.p, *q = job.own.q;
        if (back) {
            if (round == 0)
                gcomp__powersgd_start(job.kernels, gcomp__powersgd_last_p(work, s), p, rows, rank, words,
                                      work->stack * nq + s * np);
            gcomp__orthonormalise(job.kernels, p, rows, rank);
            (job.kernels->turn)(job.own.p, job.matrix.pitch, p, rows, rows, rank);
            gcomp__run(&work->call, gcomp__pieces(cols, job.columns), gcomp__back_task, &job);
            gcomp__from_panels(work->sums[round] + s * nq, q, cols, rank);
        } else {
            gcomp__powersgd_start(job.kernels, work->state + s * nq, q, cols, rank, words, s * nq);
            if (alternates) gcomp__orthonormalise(job.kernels, q, cols, rank);
            gcomp__to_projected(job.kernels, job.mean.q, q, cols, rank);
            gcomp__run(&work->call, gcomp__pieces(rows, GCOMP__POWERSGD_ROWS), gcomp__project_task, &job);
            (job.kernels->turn)(work->sums[0] + s * np, rows, job.own.p, job.matrix.pitch, rank, rows);
        }
    }
    in = gcomp__plain_input(work->sums[round]);
    worst = (work->call.set->common->scale_copy)(work->sums[round], &in, 0, floats, work->part);
    return worst >= 0x7f800000u ? GCOMP_NOT_FINITE : GCOMP_OK;
}

static void gcomp__powersgd_commit(gcomp__work *work)
{
    const size_t rows = work->rows, cols = work->cols, rank = gcomp__powersgd_rank(work->codec, rows, cols);
    const int alternates = gcomp__powersgd_alternates(work->codec);
    const size_t nq = rank * cols, np = rank * rows;
    size_t s;
    gcomp__powersgd_advance(work, 1);
    for (s = 0; s < work->stack; s++) {
        gcomp__powersgd_job job = gcomp__powersgd_job_of(work, s);
        if (alternates && !work->odd) { /* Q^ is this worker's as everyone's */
            gcomp__to_panels(job.mean.q, job.own.q, cols, rank);
            job.own.q = job.mean.q;
            (job.kernels->turn)(job.mean.p, job.matrix.pitch, work->sums[0] + s * np, rows, rows, rank);
        } else {
            gcomp__to_panels(job.mean.q, work->sums[!alternates] + s * nq, cols, rank);
            job.mean.p = job.own.p;
        }
        gcomp__run(&work->call, gcomp__pieces(rows, GCOMP__POWERSGD_ROWS), gcomp__expand_task, &job);
    }
    if (alternates && !work->odd) memcpy(gcomp__powersgd_last_p(work, 0), work->sums[0], 4 * np * work->stack);
    else memcpy(work->state, work->sums[!alternates], 4 * nq * work->stack);
    for (s = 0; alternates && s < work->stack; s++) gcomp__powersgd_last_p(work, work->stack)[s] = (float)!work->odd;
}

static void gcomp__powersgd_adapt(const gcomp_codec *codec, uint8_t *rounds, unsigned *flags)
{
    if (gcomp__powersgd_alternates(codec)) rounds[1] = GCOMP__NO_ROUND, *flags |= GCOMP__TURNS;
    if (codec->param[2] != 0) *flags = (*flags | GCOMP__REMEMBERS) & ~(unsigned)GCOMP__CONSERVES_MEAN;
}

static const gcomp__method gcomp__row_powersgd = {
    "powersgd", 6, GCOMP__FEEDBACK | GCOMP__CONSERVES_MEAN, {GCOMP__SUM, GCOMP__SUM, 0},
    {GCOMP__COUNT("rank", 4, 1, 64, 0), GCOMP__COUNT("alternate", 0, 0, 1, 0), GCOMP__NUMBER("momentum", 0, 0, 0.9999, 0)},
    NULL, NULL, gcomp__powersgd_scratch, NULL, NULL, NULL, NULL,
    gcomp__powersgd_sum_count, gcomp__powersgd_state_floats, gcomp__powersgd_local_floats, gcomp__powersgd_gains,
    gcomp__powersgd_make, gcomp__powersgd_commit, gcomp__powersgd_adapt, NULL, NULL, NULL};
#endif
#else
#define GCOMP__LIST_powersgd(X)
#endif

/* >>method intsum: integers on a scale that all workers share, so that a sum of integers adds the codes of all, exactly and in
   any order. Mishchenko, Wang, Kovalev, Richtarik, ICLR 2022, with the largest |p| in place of the paper's moving average.
     round 0   the largest |p| over the workers
     round 1   q = round(p / d), summed;  d = largest / L, L = floor(most / world): the sum of `world` codes cannot overflow
     commit    mean = d * (sum / world);  residual = p - d * q for nearest; stochastic rounding is unbiased and keeps none
   most is 127, 32767 or 2^31 - 1 for 8, 16 or 32 bits; L is at most 2^22 - 1, where floats still have the fraction.
   |mean - mean of p| <= d / 2, stochastic < d: with 8 bits and 16 workers d is a seventh of the largest. */
#ifndef GCOMP_WITHOUT_INTSUM
#define GCOMP__LIST_intsum(X) X(intsum)
#ifndef GCOMP__INTSUM_TYPES
#define GCOMP__INTSUM_TYPES
typedef struct gcomp__intsum_job {
    gcomp__work *work;
    const struct gcomp__intsum_kernels *kernels;
    gcomp__unit unit; /* from the shared largest |p| */
    int size, stochastic; /* size: 0, 1, 2 for 8, 16, 32 bits */
} gcomp__intsum_job;

/* Of elements begin .. end - 1. */
typedef struct gcomp__intsum_kernels {
    void (*codes[6])(const gcomp__intsum_job *job, size_t begin, size_t end); /* 8, 16, 32 bits; then stochastic */
    void (*mean[3])(const gcomp__intsum_job *job, size_t begin, size_t end);
} gcomp__intsum_kernels;
#endif

/* |x| <= levels, as step_of sees to. */
GCOMP__INLINE GCOMP__F(v) GCOMP__F(intsum_steps)(GCOMP__F(v) p, const gcomp__unit *u)
{
    return GCOMP__F(mul)(GCOMP__F(mul)(p, GCOMP__F(splat)(u->lift)), GCOMP__F(splat)(u->inverse));
}

/* At random with 32 bits, whose levels are above what dither takes. */
GCOMP__INLINE GCOMP__F(w) GCOMP__F(intsum_word)(GCOMP__F(v) x, const gcomp__unit *u, size_t j)
{
    const GCOMP__F(w) whole = GCOMP__F(wfloor)(x);
    const GCOMP__F(v) places = GCOMP__F(mul)(GCOMP__F(sub)(x, GCOMP__F(number)(whole)), GCOMP__F(splat)(65536.0f));
    const GCOMP__F(w) below = GCOMP__F(trunc)(places);
    GCOMP__F(w) sum = GCOMP__F(raised)(below, u, j);
    if (GCOMP__F(wties)(sum, sum)) sum = GCOMP__F(settled)(sum, GCOMP__F(sub)(places, GCOMP__F(number)(below)), u, j);
    return GCOMP__F(wadd)(whole, GCOMP__F(wshr)(sum, 16));
}

/* The high bits of 32 words as integers in the byte order of the machine, in which the transport adds. */
GCOMP__INLINE void GCOMP__F(intsum_put)(uint8_t *to, GCOMP__F(w) q, GCOMP__F(w) r, int shift, int size)
{
    if (size == 0) {
        GCOMP__F(puts8)(to, GCOMP__F(limit)(q, r, shift, -128, 127));
        return;
    }
    if (shift) q = GCOMP__F(wsar)(q, shift), r = GCOMP__F(wsar)(r, shift);
    if (size == 2) {
        GCOMP__F(store_words)((int32_t *)(void *)to, q);
        GCOMP__F(store_words)((int32_t *)(void *)(to + 64), r);
        return;
    }
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    {
        int32_t lanes[32];
        int j;
        GCOMP__F(store_words)(lanes, q);
        GCOMP__F(store_words)(lanes + 16, r);
        for (j = 0; j < 32; j++) {
            int16_t lane = (int16_t)lanes[j];
            memcpy(to + 2 * j, &lane, 2);
        }
    }
#else
    GCOMP__F(put16s)(to, q);
    GCOMP__F(put16s)(to + 32, r);
#endif
}

/* 32 codes of numbers of steps; with dither, of their 2^-16. */
GCOMP__HEAVY void GCOMP__F(intsum_quants)(uint8_t *to, GCOMP__F(v) x, GCOMP__F(v) y, const gcomp__unit *u, size_t j, int size,
                                           int stochastic)
{
    GCOMP__F(w) q, r;
    if (!stochastic) q = GCOMP__F(nearest)(x), r = GCOMP__F(nearest)(y);
    else if (size == 2) q = GCOMP__F(intsum_word)(x, u, j), r = GCOMP__F(intsum_word)(y, u, j + 16);
    else GCOMP__F(dither)(&q, &r, x, y, u, j);
    GCOMP__F(intsum_put)(to, q, r, stochastic && size < 2 ? 16 : 0, size);
}

GCOMP__INLINE GCOMP__F(w) GCOMP__F(intsum_get)(const uint8_t *from, int size)
{
    if (size == 0) return GCOMP__F(get8)(from);
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    if (size == 1) {
        int32_t lanes[16];
        int j;
        for (j = 0; j < 16; j++) {
            int16_t lane;
            memcpy(&lane, from + 2 * j, 2);
            lanes[j] = lane;
        }
        return GCOMP__F(load_words)(lanes);
    }
#else
    if (size == 1) return GCOMP__F(get16s)(from);
#endif
    return GCOMP__F(load_words)((const int32_t *)(const void *)from);
}

GCOMP__HEAVY void GCOMP__F(intsum_codes)(const gcomp__intsum_job *job, size_t begin, size_t end, int size, int stochastic)
{
    const gcomp_input in = job->work->in;
    const int general = GCOMP__F(general)(&in), feedback = in.residual != NULL;
    uint8_t *to = (uint8_t *)(void *)job->work->sums[1];
    uint32_t draws[GCOMP__TILE / 2 + 16];
    gcomp__unit u = job->unit;
    size_t i, j, count;
    u.draws = draws;
    if (stochastic && size < 2) u.inverse *= 65536.0f; /* as dither takes them */
    for (i = begin; i < end; i += count) {
        count = gcomp__min(GCOMP__TILE, end - i);
        u.at = i;
        if (stochastic) GCOMP__F(draw)(draws, u.words, i, count);
        for (j = 0; j < count; j += 32) {
            const int whole = j + 32 <= count;
            uint8_t some[128], *const at = to + ((i + j) << size);
            GCOMP__F(v) x, y;
            if (whole) {
                x = general ? GCOMP__F(load_p)(&in, i + j, 1, feedback) : GCOMP__F(load_p)(&in, i + j, 0, feedback);
                y = general ? GCOMP__F(load_p)(&in, i + j + 16, 1, feedback) : GCOMP__F(load_p)(&in, i + j + 16, 0, feedback);
            } else {
                x = GCOMP__F(load_p_some)(&in, i + j, gcomp__min(16, count - j));
                y = count - j > 16 ? GCOMP__F(load_p_some)(&in, i + j + 16, count - j - 16) : GCOMP__F(splat)(0);
            }
            GCOMP__F(intsum_quants)(whole ? at : some, GCOMP__F(intsum_steps)(x, &u), GCOMP__F(intsum_steps)(y, &u), &u, j, size,
                                    stochastic);
            if (!whole) memcpy(at, some, (count - j) << size);
        }
    }
}

/* The residual first: y may be the gradient. Its codes are those that were sent, found again. */
GCOMP__HEAVY void GCOMP__F(intsum_mean)(const gcomp__intsum_job *job, size_t begin, size_t end, int size)
{
    const gcomp__work *work = job->work;
    const gcomp_input in = work->in;
    const int general = GCOMP__F(general)(&in);
    const GCOMP__F(v) a = GCOMP__F(splat)(job->unit.a), part = GCOMP__F(splat)(work->part);
    const uint8_t *from = (const uint8_t *)(const void *)work->sums[1];
    size_t i, count;
    for (i = begin; i < end; i += count) {
        GCOMP__F(v) y;
        count = gcomp__min(16, end - i);
        if (work->residual) {
            GCOMP__F(v) p = count < 16 ? GCOMP__F(load_p_some)(&in, i, count)
                            : general  ? GCOMP__F(load_p)(&in, i, 1, 1)
                                       : GCOMP__F(load_p)(&in, i, 0, 1);
            GCOMP__F(v) d = GCOMP__F(mul)(GCOMP__F(number)(GCOMP__F(nearest)(GCOMP__F(intsum_steps)(p, &job->unit))), a);
            if (count < 16) GCOMP__F(store_some)(work->residual + i, GCOMP__F(sub)(p, d), count);
            else GCOMP__F(store)(work->residual + i, GCOMP__F(sub)(p, d));
        }
        if (count < 16) {
            int32_t some[16] = {0};
            memcpy(some, from + (i << size), count << size);
            y = GCOMP__F(number)(GCOMP__F(intsum_get)((const uint8_t *)(const void *)some, size));
        } else {
            y = GCOMP__F(number)(GCOMP__F(intsum_get)(from + (i << size), size));
        }
        y = GCOMP__F(saturate)(GCOMP__F(mul)(GCOMP__F(mul)(y, part), a));
        if (count < 16) GCOMP__F(store_some)(work->y + i, y, count);
        else GCOMP__F(store)(work->y + i, y);
    }
}

#define GCOMP__INTSUM(bits, size) \
    static void GCOMP__F(intsum_nearest##bits)(const gcomp__intsum_job *job, size_t begin, size_t end) \
    { \
        GCOMP__F(intsum_codes)(job, begin, end, size, 0); \
    } \
    static void GCOMP__F(intsum_stochastic##bits)(const gcomp__intsum_job *job, size_t begin, size_t end) \
    { \
        GCOMP__F(intsum_codes)(job, begin, end, size, 1); \
    } \
    static void GCOMP__F(intsum_mean##bits)(const gcomp__intsum_job *job, size_t begin, size_t end) \
    { \
        GCOMP__F(intsum_mean)(job, begin, end, size); \
    }
GCOMP__INTSUM(8, 0)
GCOMP__INTSUM(16, 1)
GCOMP__INTSUM(32, 2)
#undef GCOMP__INTSUM
static const gcomp__intsum_kernels GCOMP__F(intsum_kernels) = {
    {GCOMP__F(intsum_nearest8), GCOMP__F(intsum_nearest16), GCOMP__F(intsum_nearest32), GCOMP__F(intsum_stochastic8),
     GCOMP__F(intsum_stochastic16), GCOMP__F(intsum_stochastic32)},
    {GCOMP__F(intsum_mean8), GCOMP__F(intsum_mean16), GCOMP__F(intsum_mean32)}};

#ifdef GCOMP__LAST
static size_t gcomp__intsum_local(const gcomp_codec *codec, size_t rows, size_t cols)
{
    (void)codec;
    return rows && cols; /* this worker's largest |p| */
}

static size_t gcomp__intsum_levels(const gcomp_codec *codec, size_t world)
{
    size_t most = codec->param[0] == 0 ? 127 : codec->param[0] == 1 ? 32767 : 2147483647;
    return gcomp__min(most / world, 4194303);
}

static const char *gcomp__intsum_misfit(const gcomp_codec *codec, size_t world)
{
    if (gcomp__intsum_levels(codec, world)) return NULL;
    return codec->param[0] == 0 ? "intsum:bits=8 adds the codes of at most 127 workers; bits=16 adds more"
                                : "intsum:bits=16 adds the codes of at most 32767 workers; bits=32 adds more";
}

static void gcomp__intsum_adapt(const gcomp_codec *codec, uint8_t *rounds, unsigned *flags)
{
    rounds[1] = (uint8_t)(codec->param[0] == 0 ? GCOMP__SUM8 : codec->param[0] == 1 ? GCOMP__SUM16 : GCOMP__SUM32);
    *flags ^= codec->param[1] != 0 ? GCOMP__UNBIASED : GCOMP__FEEDBACK;
}

static gcomp__intsum_job gcomp__intsum_job_of(gcomp__work *work)
{
    double levels = (double)gcomp__intsum_levels(work->codec, work->world), most = (double)work->sums[0][0];
    gcomp__intsum_job job;
    memset(&job, 0, sizeof job);
    job.work = work;
    job.kernels = (const gcomp__intsum_kernels *)work->call.kernels;
    job.size = (int)work->codec->param[0];
    job.stochastic = work->codec->param[1] == 0;
    job.unit.levels = (float)levels;
    job.unit.words = gcomp__stream(work->in.key.own, GCOMP__PURPOSE_ROUND);
    gcomp__step_of(&job.unit, most / levels, most, levels);
    return job;
}

static void gcomp__intsum_codes_task(void *arg, size_t chunk)
{
    const gcomp__intsum_job *job = (const gcomp__intsum_job *)arg;
    size_t begin = chunk * GCOMP_CHUNK;
    job->kernels->codes[job->size + 3 * job->stochastic](job, begin, gcomp__min(job->work->n, begin + GCOMP_CHUNK));
}

static void gcomp__intsum_mean_task(void *arg, size_t chunk)
{
    const gcomp__intsum_job *job = (const gcomp__intsum_job *)arg;
    size_t begin = chunk * GCOMP_CHUNK;
    job->kernels->mean[job->size](job, begin, gcomp__min(job->work->n, begin + GCOMP_CHUNK));
}

/* The largest |p| of this worker. */
static gcomp_result gcomp__intsum_look(gcomp__work *work)
{
    gcomp__measured all;
    GCOMP__TRY(gcomp__look_at(work, GCOMP__MOST, &all));
    work->local[0] = gcomp__share(work, gcomp__float(all.worst));
    return GCOMP_OK;
}

static gcomp_result gcomp__intsum_make(gcomp__work *work, int round)
{
    gcomp__intsum_job job;
    if (round == 0) return gcomp__intsum_look(work);
    if (gcomp__bits(work->sums[0][0]) >= 0x7f800000u || work->sums[0][0] < work->local[0]) { /* what it cannot be */
        memset(work->sums[1], 0, work->n << (int)work->codec->param[0]);
        return GCOMP_DIVERGED;
    }
    job = gcomp__intsum_job_of(work);
    gcomp__run(&work->call, gcomp__chunks(work->n), gcomp__intsum_codes_task, &job);
    return GCOMP_OK;
}

static void gcomp__intsum_commit(gcomp__work *work)
{
    gcomp__intsum_job job = gcomp__intsum_job_of(work);
    gcomp__run(&work->call, gcomp__chunks(work->n), gcomp__intsum_mean_task, &job);
}

static const gcomp__method gcomp__row_intsum = {
    "intsum", 19, GCOMP__FEEDBACK | GCOMP__UNBIASED | GCOMP__CONSERVES_MEAN, {GCOMP__MAX, GCOMP__SUM8, 0},
    {GCOMP__ONE_OF("bits", 0, 2, 0, "8|16|32|"), GCOMP__ONE_OF("rounding", 0, 1, 0, "stochastic|nearest|")},
    NULL, NULL, gcomp__block_scratch, NULL, NULL, NULL, NULL,
    gcomp__shared_count, NULL, gcomp__intsum_local, NULL, gcomp__intsum_make, gcomp__intsum_commit,
    gcomp__intsum_adapt, gcomp__intsum_misfit, NULL, NULL};
#endif
#else
#define GCOMP__LIST_intsum(X)
#endif

/* ---------------- the list of methods: the one place that names them all */
#define GCOMP__METHODS(X) \
    GCOMP__LIST_none(X) GCOMP__LIST_fp16(X) GCOMP__LIST_bf16(X) GCOMP__LIST_fp8(X) GCOMP__LIST_mx(X) \
    GCOMP__LIST_sign(X) GCOMP__LIST_signnorm(X) GCOMP__LIST_onebit(X) GCOMP__LIST_twobit(X) GCOMP__LIST_threshold1(X) \
    GCOMP__LIST_terngrad(X) GCOMP__LIST_qsgd(X) GCOMP__LIST_naturaldither(X) GCOMP__LIST_natural(X) GCOMP__LIST_int(X) \
    GCOMP__LIST_eden(X) GCOMP__LIST_topk(X) GCOMP__LIST_sampledtopk(X) GCOMP__LIST_strom(X) GCOMP__LIST_dryden(X) \
    GCOMP__LIST_wangni(X) GCOMP__LIST_adacomp(X) GCOMP__LIST_blocktopk(X) GCOMP__LIST_dgc(X) GCOMP__LIST_nonzero(X) \
    GCOMP__LIST_randomk(X) GCOMP__LIST_sketch(X) GCOMP__LIST_fetch(X) GCOMP__LIST_powersgd(X) GCOMP__LIST_intsum(X) \
    GCOMP__LIST_vote(X)

#define GCOMP__KERNELS_OF(name) &GCOMP__F(name##_kernels),
static const void *const GCOMP__F(kernels)[] = {GCOMP__METHODS(GCOMP__KERNELS_OF) NULL};
#undef GCOMP__KERNELS_OF
static const gcomp__set GCOMP__F(set) = {GCOMP__PASS_ISA, &GCOMP__F(common), &GCOMP__F(sparse), &GCOMP__F(coders),
                                         GCOMP__F(kernels)};

#endif /* GCOMP__PASS */

#ifdef GCOMP__LAST
#undef GCOMP__LAST
#undef GCOMP__PASS
#undef GCOMP__PASS_ISA

#define GCOMP__ROW_OF(name) &gcomp__row_##name,
static const gcomp__method *const gcomp__methods[] = {GCOMP__METHODS(GCOMP__ROW_OF) NULL};
#undef GCOMP__ROW_OF

static const gcomp__method *gcomp__method_of(unsigned wire)
{
    size_t i;
    for (i = 0; gcomp__methods[i]; i++)
        if (gcomp__methods[i]->wire == wire) return gcomp__methods[i];
    return NULL;
}

static const void *gcomp__kernels_of(const gcomp__set *set, const gcomp__method *method)
{
    size_t i;
    for (i = 0; gcomp__methods[i]; i++)
        if (gcomp__methods[i] == method) return set->kernels[i];
    return NULL;
}

/* ------------------------------------------------------------------------------------------------
   >>dispatch - which instruction set runs
   ------------------------------------------------------------------------------------------------ */

static const gcomp__set *const gcomp__sets[] = {
#ifdef GCOMP__BUILT_AVX512
    &gcomp__set_avx512,
#endif
#ifdef GCOMP__BUILT_AVX2
    &gcomp__set_avx2,
#endif
#ifdef GCOMP__BUILT_NEON
    &gcomp__set_neon,
#endif
#ifdef GCOMP__BUILT_SCALAR
    &gcomp__set_scalar,
#endif
    NULL};

/* The processor and the operating system have it, all of it: __builtin_cpu_supports looks at XGETBV too. It does not know F16C
   in all compilers: bit 29 of ECX of CPUID's leaf 1; the registers are those of AVX2. */
static int gcomp__cpu_has(gcomp_isa isa)
{
#if GCOMP__X86
    __builtin_cpu_init();
    if (isa == GCOMP_ISA_AVX2 || isa == GCOMP_ISA_AVX512) {
        uint32_t a = 1, b, c = 0, d;
        __asm__("cpuid" : "+a"(a), "=b"(b), "+c"(c), "=d"(d));
        if (!(c >> 29 & 1) || !__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") ||
            !__builtin_cpu_supports("bmi") || !__builtin_cpu_supports("bmi2") || !__builtin_cpu_supports("popcnt") ||
            !__builtin_cpu_supports("sse4.2"))
            return 0;
    }
    if (isa == GCOMP_ISA_AVX512)
        return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
               __builtin_cpu_supports("avx512vl");
#endif
    (void)isa;
    return 1;
}

/* The set of an instruction set, the best for AUTO, or NULL. */
static const gcomp__set *gcomp__set_of(gcomp_isa isa)
{
    static GCOMP__SHARED_WORD available = 0; /* idempotent: bit 31 says known; whoever writes it writes the same word */
    unsigned known = GCOMP__LOAD_WORD(available);
    size_t i;
    if (!known) {
        known = 1u << 31;
        for (i = 0; gcomp__sets[i]; i++)
            if (gcomp__cpu_has(gcomp__sets[i]->isa)) known |= 1u << i;
        GCOMP__STORE_WORD(available, known);
    }
    for (i = 0; gcomp__sets[i]; i++)
        if ((known >> i & 1) && (isa == GCOMP_ISA_AUTO || gcomp__sets[i]->isa == isa)) return gcomp__sets[i];
    return NULL;
}

GCOMP_API int gcomp_isa_available(gcomp_isa isa) { return gcomp__set_of(isa) != NULL; }

GCOMP_API const char *gcomp_isa_name(gcomp_isa isa)
{
    static const char *const names[] = {"auto", "scalar", "avx2", "avx512", "neon"};
    return (unsigned)isa < 5 ? names[isa] : "unknown";
}

/* ------------------------------------------------------------------------------------------------
   >>text - codecs as text: parsed and printed; result codes
   ------------------------------------------------------------------------------------------------ */

GCOMP_API int gcomp_version(void) { return GCOMP_VERSION; }

GCOMP_API const char *gcomp_result_string(gcomp_result result)
{
    switch ((int)result) {
#define GCOMP__CASE(name, value, kind, sentence) case value: return sentence;
        GCOMP_RESULTS(GCOMP__CASE)
#undef GCOMP__CASE
    default: return "unknown result";
    }
}

GCOMP_API const char *gcomp_result_name(gcomp_result result)
{
    switch ((int)result) {
#define GCOMP__CASE(name, value, kind, sentence) case value: return #name;
        GCOMP_RESULTS(GCOMP__CASE)
#undef GCOMP__CASE
    default: return "unknown";
    }
}

GCOMP_API gcomp_class gcomp_result_class(gcomp_result result)
{
    switch ((int)result) {
#define GCOMP__CASE(name, value, kind, sentence) case value: return GCOMP_CLASS_##kind;
        GCOMP_RESULTS(GCOMP__CASE)
#undef GCOMP__CASE
    default: return GCOMP_CLASS_FATAL;
    }
}

GCOMP_API const char *gcomp_method_name(size_t i)
{
    return i < sizeof gcomp__methods / sizeof gcomp__methods[0] - 1 ? gcomp__methods[i]->name : NULL;
}

static size_t gcomp__word(const char *s)
{
    size_t n = 0;
    while ((s[n] >= 'a' && s[n] <= 'z') || (s[n] >= '0' && s[n] <= '9')) n++;
    return n;
}

static int gcomp__same(const char *name, const char *s, size_t length)
{
    return strlen(name) == length && !memcmp(name, s, length);
}

static int gcomp__in_range(const gcomp__param *p, double v)
{
    if ((p->kind == GCOMP__BLOCK || p->kind == GCOMP__AUTO) && v == 0) return 1;
    if (!(v >= p->low && v <= p->high)) return 0;
    if (p->kind == GCOMP__REAL || p->kind == GCOMP__AUTO) return 1;
    if (v != (double)(int64_t)v) return 0;
    return p->kind != GCOMP__BLOCK || ((int64_t)v & ((int64_t)v - 1)) == 0;
}

/* The choice of that name; -1 if there is none. And the i-th name and its length. */
static const char *gcomp__choice(const gcomp__param *p, int i, size_t *length)
{
    const char *s = p->choices;
    for (; i; i--) s = strchr(s, '|') + 1;
    *length = (size_t)(strchr(s, '|') - s);
    return s;
}

static int gcomp__choose(const gcomp__param *p, const char *s, size_t length)
{
    int i;
    for (i = 0; i <= (int)p->high; i++) {
        size_t of;
        const char *name = gcomp__choice(p, i, &of);
        if (of == length && !memcmp(name, s, length)) return i;
    }
    return -1;
}

static gcomp_result gcomp__bad_text(gcomp__text *why, const char *before, const char *s, size_t length, const char *after)
{
    gcomp__say(why, before);
    gcomp__say_char(why, '\'');
    gcomp__say_some(why, s, gcomp__min(length, 40));
    gcomp__say_char(why, '\'');
    gcomp__say(why, after);
    return GCOMP_BAD_CODEC;
}

static gcomp_result gcomp__bad_value(gcomp__text *why, const char *of, const gcomp__param *p, const char *s, size_t length)
{
    gcomp__say(why, of);
    gcomp__say_char(why, ' ');
    gcomp__say(why, p->name);
    gcomp__bad_text(why, " cannot be ", s, length, ": it takes ");
    if (p->kind == GCOMP__CHOICE) {
        int i;
        for (i = 0; i <= (int)p->high; i++) {
            const char *name = gcomp__choice(p, i, &length);
            if (i) gcomp__say(why, " or ");
            gcomp__say_some(why, name, length);
        }
        return GCOMP_BAD_CODEC;
    }
    gcomp__say(why, p->kind == GCOMP__REAL    ? "a number from "
                    : p->kind == GCOMP__WHOLE ? "a whole number from "
                    : p->kind == GCOMP__AUTO  ? "'auto' or a number from "
                                              : "'tensor' or a power of two from ");
    gcomp__say_decimal(why, p->low);
    gcomp__say(why, " to ");
    gcomp__say_decimal(why, p->high);
    return GCOMP_BAD_CODEC;
}

/* name=value[,name=value]... of what has that name and GCOMP_PARAMS parameters; *text ends behind it. */
static gcomp_result gcomp__parse_params(const char *name, const gcomp__param *params, const char **text, double *param,
                                        gcomp__text *why)
{
    const char *s = *text;
    unsigned seen = 0;
    do {
        size_t length = gcomp__word(s), i, value_length = 0;
        const char *value, *end;
        double v = 0;
        for (i = 0; i < GCOMP_PARAMS && params[i].name && !gcomp__same(params[i].name, s, length); i++) {}
        if (i == GCOMP_PARAMS || !params[i].name) {
            gcomp__say(why, name);
            gcomp__bad_text(why, " has no parameter ", s, length ? length : strlen(s),
                            params[0].name ? "; it has:" : "; it has none");
            for (i = 0; i < GCOMP_PARAMS && params[i].name; i++) {
                gcomp__say_char(why, ' ');
                gcomp__say(why, params[i].name);
            }
            return GCOMP_BAD_CODEC;
        }
        if (s[length] != '=') return gcomp__bad_text(why, "expected '=' behind ", s, length, "");
        if (seen >> i & 1) return gcomp__bad_text(why, "parameter given twice: ", s, length, "");
        seen |= 1u << i;
        value = s + length + 1;
        while (value[value_length] && value[value_length] != ',' && value[value_length] != '+' && value[value_length] != '|') {
            if ((value[value_length] == 'e' || value[value_length] == 'E') && value[value_length + 1] == '+') value_length++;
            value_length++;
        }
        if ((params[i].kind == GCOMP__BLOCK && gcomp__same("tensor", value, value_length)) ||
            (params[i].kind == GCOMP__AUTO && gcomp__same("auto", value, value_length))) {
            end = value + value_length;
        } else if (params[i].kind == GCOMP__CHOICE) {
            int choice = gcomp__choose(&params[i], value, value_length);
            if (choice < 0) return gcomp__bad_value(why, name, &params[i], value, value_length);
            v = choice;
            end = value + value_length;
        } else {
            end = gcomp__read_number(value, &v);
            if (end != value + value_length || !gcomp__in_range(&params[i], v) ||
                ((params[i].kind == GCOMP__BLOCK || params[i].kind == GCOMP__AUTO) && v == 0))
                return gcomp__bad_value(why, name, &params[i], value, value_length);
        }
        param[i] = v;
        s = end;
    } while (*s == ',' && s++);
    *text = s;
    return GCOMP_OK;
}

/* Other names of methods, which are read and never printed. */
static const char *const gcomp__aliases[][2] = {{"dither", "qsgd"}};

GCOMP__NOINLINE gcomp_result gcomp__parse_method(const gcomp__method **method, const char **text, double *param,
                                                 gcomp__text *why)
{
    const char *s = *text;
    const size_t length = gcomp__word(s);
    const char *name = s;
    size_t known = length, i;
    for (i = 0; i < sizeof gcomp__aliases / sizeof gcomp__aliases[0]; i++) {
        if (!gcomp__same(gcomp__aliases[i][0], s, length)) continue;
        name = gcomp__aliases[i][1];
        known = strlen(name);
    }
    for (i = 0; gcomp__methods[i] && !gcomp__same(gcomp__methods[i]->name, name, known); i++) {}
    *method = gcomp__methods[i];
    if (!*method) {
        gcomp__bad_text(why, "no method ", s, length ? length : strlen(s), "; there are:");
        for (i = 0; gcomp__methods[i]; i++) {
            gcomp__say_char(why, ' ');
            gcomp__say(why, gcomp__methods[i]->name);
        }
        return GCOMP_BAD_CODEC;
    }
    for (i = 0; i < GCOMP_PARAMS; i++) param[i] = (*method)->param[i].other != 0 ? -1 : (*method)->param[i].initial;
    s += length;
    if (*s == ':') {
        s++;
        GCOMP__TRY(gcomp__parse_params((*method)->name, (*method)->param, &s, param, why));
    }
    for (i = 0; i < GCOMP_PARAMS; i++) { /* what was not given */
        const gcomp__param *p = &(*method)->param[i];
        if (p->other != 0 && param[i] < 0) param[i] = gcomp__default(p, param[0]);
    }
    *text = s;
    return GCOMP_OK;
}

/* One codec; *text ends behind it. On error *codec is unchanged. */
GCOMP__NOINLINE gcomp_result gcomp__parse_codec(gcomp_codec *codec, const char **text, gcomp__text *why)
{
    const gcomp__method *method, *value = NULL;
    const char *reason;
    gcomp_codec made;
    memset(&made, 0, sizeof made);
    GCOMP__TRY(gcomp__parse_method(&method, text, made.param, why));
    if (method->flags & GCOMP__SELECTS) value = &gcomp__row_none;
    if (**text == '+') {
        ++*text;
        if (!value)
            return gcomp__bad_text(why, "only a sparse method takes another behind a plus, not ", method->name,
                                   strlen(method->name), "");
        GCOMP__TRY(gcomp__parse_method(&value, text, made.value_param, why));
        if (!(value->flags & GCOMP__VALUES))
            return gcomp__bad_text(why, "cannot code the values of a sparse method: ", value->name, strlen(value->name), "");
    }
    if (**text && **text != '|') return gcomp__bad_text(why, "cannot read ", *text, strlen(*text), " at the end");
    reason = gcomp__refusal(method, made.param, 0);
    if (!reason && value) reason = gcomp__refusal(value, made.value_param, 1);
    if (reason) return gcomp__say(why, reason), GCOMP_BAD_CODEC;
    made.method = method->wire;
    made.value = value ? value->wire : 0;
    *codec = made;
    return GCOMP_OK;
}

GCOMP_API gcomp_result gcomp_codec_parse(gcomp_codec *codec, const char *text, char *why_buffer, size_t why_capacity)
{
    gcomp__text why = gcomp__text_in(why_buffer, why_capacity);
    gcomp_codec made;
    uint64_t mode;
    gcomp_result result;
    if (!codec || !text) {
        gcomp__say(&why, codec ? "text is NULL" : "codec is NULL");
        return GCOMP_INVALID_ARGUMENT;
    }
    if (!gcomp__mode_fits()) {
        gcomp__say(&why, gcomp_result_string(GCOMP_FLOAT_MODE));
        return GCOMP_FLOAT_MODE;
    }
    mode = gcomp__fp_enter();
    result = gcomp__parse_codec(&made, &text, &why);
    if (result == GCOMP_OK && *text) result = gcomp__bad_text(&why, "cannot read ", text, strlen(text), " at the end");
    gcomp__fp_leave(mode);
    if (result == GCOMP_OK) *codec = made;
    return result;
}

GCOMP__NOINLINE void gcomp__say_method(gcomp__text *t, const gcomp__method *m, const double *param)
{
    size_t i;
    char before = ':';
    gcomp__say(t, m->name);
    for (i = 0; i < GCOMP_PARAMS && m->param[i].name; i++) {
        if (param[i] == gcomp__default(&m->param[i], param[0])) continue;
        gcomp__say_char(t, before);
        before = ',';
        gcomp__say(t, m->param[i].name);
        gcomp__say_char(t, '=');
        if (m->param[i].kind == GCOMP__CHOICE) {
            size_t length;
            const char *name = gcomp__choice(&m->param[i], (int)param[i], &length);
            gcomp__say_some(t, name, length);
        } else if (m->param[i].kind == GCOMP__BLOCK && param[i] == 0) gcomp__say(t, "tensor");
        else if (m->param[i].kind == GCOMP__AUTO && param[i] == 0) gcomp__say(t, "auto");
        else gcomp__say_decimal(t, param[i]);
    }
}

/* The method of a codec that is valid in every field, else NULL. */
static const gcomp__method *gcomp__valid(const gcomp_codec *codec)
{
    const gcomp__method *m = codec ? gcomp__method_of(codec->method) : NULL, *v = NULL;
    size_t i;
    if (!m) return NULL;
    if (m->flags & GCOMP__SELECTS) {
        v = gcomp__method_of(codec->value);
        if (!v || !(v->flags & GCOMP__VALUES)) return NULL;
    } else if (codec->value) {
        return NULL;
    }
    for (i = 0; i < GCOMP_PARAMS; i++) {
        if (m->param[i].name && !gcomp__in_range(&m->param[i], codec->param[i])) return NULL;
        if (v && v->param[i].name && !gcomp__in_range(&v->param[i], codec->value_param[i])) return NULL;
    }
    if (gcomp__refusal(m, codec->param, 0) || (v && gcomp__refusal(v, codec->value_param, 1))) return NULL;
    return m;
}

GCOMP_API size_t gcomp_codec_format(const gcomp_codec *codec, char *text, size_t capacity)
{
    gcomp__text t = gcomp__text_in(text, capacity);
    const gcomp__method *m = gcomp__valid(codec);
    uint64_t mode;
    if (!m) return 0;
    mode = gcomp__fp_enter();
    gcomp__say_method(&t, m, codec->param);
    if (m->flags & GCOMP__SELECTS && codec->value != gcomp__row_none.wire) {
        gcomp__say_char(&t, '+');
        gcomp__say_method(&t, gcomp__method_of(codec->value), codec->value_param);
    }
    gcomp__fp_leave(mode);
    return t.length;
}

/* ------------------------------------------------------------------------------------------------
   >>wire - the payload header, check, and the public functions of the codec layer
   ------------------------------------------------------------------------------------------------ */

enum { GCOMP__REFUSED = 1, GCOMP__SEALED = 2 };

GCOMP_API gcomp_key gcomp_key_make(uint64_t seed, uint64_t step, uint32_t tensor, uint32_t rank)
{
    gcomp_key key;
    key.shared = gcomp__philox_word(seed, step, tensor, 0);
    key.own = gcomp__philox_word(seed, step, tensor, rank + 1);
    return key;
}

/* Of a valid codec; 0: none, or too much. */
static size_t gcomp__bound_of(const gcomp__method *m, const gcomp_codec *codec, size_t n)
{
    const size_t bytes = m->bound ? gcomp__plus((m->bound)(codec, n), GCOMP__HEADER) : 0;
    return bytes == SIZE_MAX ? 0 : bytes;
}

GCOMP_API size_t gcomp_bound(const gcomp_codec *codec, size_t n)
{
    const gcomp__method *m = gcomp__valid(codec);
    return m && !(m->flags & GCOMP__REMEMBERS) ? gcomp__bound_of(m, codec, n) : 0;
}

GCOMP_API size_t gcomp_scratch(const gcomp_codec *codec, size_t n)
{
    const gcomp__method *m = gcomp__valid(codec);
    size_t bytes;
    if (!m || !m->scratch || !(m->flags & (GCOMP__SELECTS | GCOMP__WORKSPACE))) return 0; /* others: only with threads */
    if (m->flags & GCOMP__REMEMBERS || !m->encode) return 0;
    bytes = gcomp__plus((m->scratch)(codec, n), 64); /* to align it */
    return bytes == SIZE_MAX ? 0 : bytes;
}

/* How a call runs, from what the user gave. */
static gcomp_result gcomp__call_of(gcomp__call *call, const gcomp_exec *exec)
{
    memset(call, 0, sizeof *call);
    call->set = gcomp__set_of(exec ? exec->isa : GCOMP_ISA_AUTO);
    if (!call->set) return GCOMP_ISA_UNAVAILABLE;
    if (!gcomp__mode_fits()) return GCOMP_FLOAT_MODE;
    if (!exec) return GCOMP_OK;
    if (exec->scratch && exec->scratch_bytes >= 64) {
        size_t skip = (64 - (size_t)((uintptr_t)exec->scratch & 63)) & 63;
        call->scratch = (uint8_t *)exec->scratch + skip;
        call->scratch_bytes = exec->scratch_bytes - skip;
    }
    call->parallel = exec->parallel;
    return GCOMP_OK;
}

/* A checked copy of the input with its defaults filled in. */
static gcomp_result gcomp__input_of(gcomp_input *made, const gcomp_input *in, size_t *n)
{
    if (!in) return GCOMP_INVALID_ARGUMENT;
    *made = *in;
    if (gcomp__bits(made->scale) << 1 == 0) made->scale = 1; /* not where the caller's mode takes subnormals for 0 */
    if (made->cols == 0) made->cols = 1;
    *n = gcomp__times(made->rows, made->cols);
    if (gcomp__times(*n, 8) == SIZE_MAX || !gcomp__finite(made->scale) || (unsigned)made->dtype > GCOMP_BF16)
        return GCOMP_INVALID_ARGUMENT;
    if (*n && !made->grad) return GCOMP_INVALID_ARGUMENT;
    return GCOMP_OK;
}

static void gcomp__put_header(uint8_t *to, const gcomp__method *m, const gcomp_codec *codec, unsigned flags, size_t n,
                              size_t bytes)
{
    const gcomp__method *v = codec->value ? gcomp__method_of(codec->value) : NULL;
    memset(to, 0, GCOMP__HEADER);
    memcpy(to, "GCMP", 4);
    to[4] = 1;
    to[5] = m->wire;
    to[6] = (uint8_t)flags;
    to[7] = codec->value;
    gcomp__put64(to + 8, n);
    gcomp__put64(to + 16, bytes);
    gcomp__put32(to + 24, v ? gcomp__pack(v, codec->value_param) : gcomp__pack(m, codec->param));
}

static gcomp_result gcomp__encode_as(const gcomp__call *call, const gcomp__method *m, const gcomp_codec *codec,
                                     const gcomp_input *in, size_t n, uint8_t *payload, size_t capacity, size_t *length)
{
    gcomp__call with = *call;
    gcomp_result result;
    size_t bytes = 0;
    uint64_t mode;
    if (!m->encode || (m->flags & GCOMP__REMEMBERS && !call->work)) return GCOMP_NEEDS_ROUNDS;
    if (capacity < GCOMP__HEADER) return GCOMP_DST_TOO_SMALL;
    with.kernels = gcomp__kernels_of(call->set, m);
    mode = gcomp__fp_enter();
    result = (m->encode)(&with, codec, in, n, payload + GCOMP__HEADER, capacity - GCOMP__HEADER, &bytes);
    if (result == GCOMP_NOT_FINITE) bytes = 0;
    if (result == GCOMP_OK || result == GCOMP_NOT_FINITE) {
        gcomp__put_header(payload, m, codec, result == GCOMP_NOT_FINITE ? GCOMP__REFUSED : 0, n, bytes); /* rounds parameters */
        if (result == GCOMP_NOT_FINITE) gcomp__put32(payload + 24, 0);
        *length = GCOMP__HEADER + bytes;
    }
    gcomp__fp_leave(mode);
    return result;
}

GCOMP_API gcomp_result gcomp_encode(const gcomp_codec *codec, const gcomp_input *in, const gcomp_exec *exec, void *payload,
                                    size_t capacity, size_t *length)
{
    const gcomp__method *m = gcomp__valid(codec);
    gcomp__call call;
    gcomp_input input;
    size_t n;
    if (!m || !length || !payload) return GCOMP_INVALID_ARGUMENT;
    GCOMP__TRY(gcomp__input_of(&input, in, &n));
    GCOMP__TRY(gcomp__call_of(&call, exec));
    if (m->flags & (GCOMP__SELECTS | GCOMP__WORKSPACE) &&
        (exec && exec->scratch ? exec->scratch_bytes : 0) < gcomp_scratch(codec, n))
        return GCOMP_SCRATCH_TOO_SMALL;
    return gcomp__encode_as(&call, m, codec, &input, n, (uint8_t *)payload, capacity, length);
}

/* The checksum of a payload: the header without the field itself, then the body. */
static uint32_t gcomp__checksum(const gcomp__set *set, const uint8_t *payload, size_t length)
{
    uint32_t crc = (set->common->crc)(0, payload, GCOMP__HEADER - 4);
    return (set->common->crc)(crc, payload + GCOMP__HEADER, length - GCOMP__HEADER);
}

static void gcomp__seal(const gcomp__set *set, uint8_t *payload, size_t length)
{
    payload[6] |= GCOMP__SEALED;
    gcomp__put32(payload + 28, gcomp__checksum(set, payload, length));
}

/* The header alone: magic, version, flags, method, and a length that fits. */
static gcomp_result gcomp__header(const uint8_t *p, size_t length, gcomp__view *view, unsigned *flags, uint64_t *n,
                                  uint64_t *bytes)
{
    memset(view, 0, sizeof *view);
    if (length < GCOMP__HEADER) return length >= 4 && memcmp(p, "GCMP", 4) ? GCOMP_NOT_A_PAYLOAD : GCOMP_TRUNCATED;
    if (memcmp(p, "GCMP", 4)) return GCOMP_NOT_A_PAYLOAD;
    if (p[4] != 1) return p[4] ? GCOMP_UNSUPPORTED_VERSION : GCOMP_NOT_A_PAYLOAD;
    *flags = p[6];
    if (*flags & ~(unsigned)(GCOMP__REFUSED | GCOMP__SEALED)) return GCOMP_RESERVED_BITS;
    view->method = gcomp__method_of(p[5]);
    if (!view->method || !view->method->decode) return GCOMP_UNKNOWN_METHOD;
    view->value = p[7] ? gcomp__method_of(p[7]) : NULL;
    if (view->method->flags & GCOMP__SELECTS ? !view->value || !(view->value->flags & GCOMP__VALUES) : p[7] != 0)
        return view->method->flags & GCOMP__SELECTS ? GCOMP_UNKNOWN_METHOD : GCOMP_RESERVED_BITS;
    *n = gcomp__get64(p + 8);
    *bytes = gcomp__get64(p + 16);
    view->a = gcomp__get32(p + 24);
    if (!(*flags & GCOMP__SEALED) && gcomp__get32(p + 28)) return GCOMP_RESERVED_BITS;
    return GCOMP_OK;
}

/* Opens a payload of exactly `length` bytes: everything but the inside of the body and the checksum. */
static gcomp_result gcomp__open_payload(const gcomp__set *set, gcomp__view *view, const void *payload, size_t length, size_t n,
                                        unsigned *flags)
{
    const uint8_t *p = (const uint8_t *)payload;
    uint64_t count = 0, bytes = 0;
    if (!p) return GCOMP_INVALID_ARGUMENT;
    GCOMP__TRY(gcomp__header(p, length, view, flags, &count, &bytes));
    if (count != n) return GCOMP_COUNT_MISMATCH;
    if (bytes > length - GCOMP__HEADER) return GCOMP_TRUNCATED;
    if (bytes < length - GCOMP__HEADER) return GCOMP_TRAILING_BYTES;
    view->list = NULL;
    view->set = set;
    view->body = p + GCOMP__HEADER;
    view->bytes = (size_t)bytes;
    view->n = n;
    if (*flags & GCOMP__REFUSED) return bytes ? GCOMP_TRAILING_BYTES : view->a ? GCOMP_RESERVED_BITS : GCOMP_OK;
    return (view->method->open)(view);
}

/* A block method's payload whose header is that of an opened one, but for the checksum, is opened as that was, which may be in
   the same view: 1. Else 0, or where `like` is NULL. */
static int gcomp__opens_like(gcomp__view *view, const gcomp__view *like, const void *payload, size_t length, size_t n)
{
    const uint8_t *p = (const uint8_t *)payload;
    ptrdiff_t scales;
    if (!like || !p || length != GCOMP__HEADER + like->bytes || n != like->n || like->method->open != gcomp__block_open ||
        like->form.code || memcmp(p, like->body - GCOMP__HEADER, GCOMP__HEADER - 4) != 0)
        return 0;
    scales = like->codes - like->body;
    *view = *like;
    view->body = view->scales = p + GCOMP__HEADER;
    view->codes = view->body + scales;
    return 1;
}

/* Opens a valid payload; `like`: NULL, or an opened one that may have the same header. */
static void gcomp__open_valid(const gcomp__set *set, gcomp__view *view, const gcomp__view *like, const void *payload,
                              size_t length, size_t n)
{
    unsigned flags;
    if (!gcomp__opens_like(view, like, payload, length, n)) (void)gcomp__open_payload(set, view, payload, length, n, &flags);
}

/* Opens and checks all but the inside of the body. */
static gcomp_result gcomp__check_outside(const gcomp__set *set, gcomp__view *view, const gcomp__view *like, const void *payload,
                                         size_t length, size_t n)
{
    const uint8_t *p = (const uint8_t *)payload;
    unsigned flags = 0;
    gcomp_result opened = GCOMP_OK;
    if (gcomp__opens_like(view, like, payload, length, n)) {
        flags = p[6];
        if (!(flags & GCOMP__SEALED) && gcomp__get32(p + 28)) opened = GCOMP_RESERVED_BITS;
    } else {
        opened = gcomp__open_payload(set, view, payload, length, n, &flags);
    }
#ifndef GCOMP_FUZZING
    /* damage anywhere in a sealed payload whose header can be read at all is reported as damage */
    if ((opened == GCOMP_OK || opened == GCOMP_CORRUPT || opened == GCOMP_RESERVED_BITS) && (flags & GCOMP__SEALED) &&
        gcomp__get32(p + 28) != gcomp__checksum(set, p, length))
        return GCOMP_CHECKSUM_MISMATCH;
#endif
    if (opened != GCOMP_OK) return opened;
    return flags & GCOMP__REFUSED ? GCOMP_NOT_FINITE : GCOMP_OK;
}

/* Opens and checks to the last bit. */
static gcomp_result gcomp__check_payload(const gcomp__set *set, gcomp__view *view, const void *payload, size_t length, size_t n)
{
    GCOMP__TRY(gcomp__check_outside(set, view, NULL, payload, length, n));
    return (view->method->check)(view);
}

/* What is inside of one that is valid outside; its indices into `list`, if there is one. */
static gcomp_result gcomp__check_inside(const gcomp__view *view, uint32_t *list)
{
    return list ? gcomp__sparse_check_list(view, list) : (view->method->check)(view);
}

/* The same of two, after one like them or NULL; the first error of both. */
static gcomp_result gcomp__check_two(gcomp__call *call, const gcomp__view *like, gcomp__view *one, const void *const *payloads,
                                     const size_t *lengths, size_t n)
{
    gcomp__view two;
    uint32_t *lists[2] = {NULL, NULL};
    gcomp_result second;
    GCOMP__TRY(gcomp__check_outside(call->set, one, like, payloads[0], lengths[0], n));
    second = gcomp__check_outside(call->set, &two, one, payloads[1], lengths[1], n);
    lists[0] = gcomp__list_room(call, one);
    if (second == GCOMP_OK) lists[1] = gcomp__list_room(call, &two);
    if (second == GCOMP_OK && one->method->check == gcomp__sparse_check && two.method->check == gcomp__sparse_check)
        return gcomp__sparse_check_two(one, &two, lists);
    GCOMP__TRY(gcomp__check_inside(one, lists[0]));
    return second == GCOMP_OK ? gcomp__check_inside(&two, lists[1]) : second;
}

/* And of many, of which the first is opened. What their indices are is kept in the scratch, as far as there is room. */
static gcomp_result gcomp__check_all(const gcomp__call *call, const void *const *payloads, const size_t *lengths, size_t count,
                                     size_t n, gcomp__view *first)
{
    gcomp__call rest = *call;
    gcomp__view view, *one = first, *like = NULL;
    size_t w;
    for (w = 0; w + 1 < count; w += 2, one = &view, like = first)
        GCOMP__TRY(gcomp__check_two(&rest, like, one, payloads + w, lengths + w, n));
    if (w == count) return GCOMP_OK;
    GCOMP__TRY(gcomp__check_outside(call->set, one, like, payloads[w], lengths[w], n));
    return gcomp__check_inside(one, gcomp__list_room(&rest, one));
}

GCOMP_API gcomp_result gcomp_seal(void *payload, size_t length, const gcomp_exec *exec)
{
    gcomp__view view;
    gcomp__call call;
    unsigned flags = 0;
    uint64_t n = 0, bytes = 0;
    if (!payload || gcomp__header((const uint8_t *)payload, length, &view, &flags, &n, &bytes) != GCOMP_OK)
        return GCOMP_INVALID_ARGUMENT;
    if (bytes != length - GCOMP__HEADER) return GCOMP_INVALID_ARGUMENT;
    GCOMP__TRY(gcomp__call_of(&call, exec));
    gcomp__seal(call.set, (uint8_t *)payload, length);
    return GCOMP_OK;
}

GCOMP_API gcomp_result gcomp_check(const void *payload, size_t length, size_t n)
{
    gcomp__view view;
    gcomp_result result;
    uint64_t mode;
    if (!gcomp__mode_fits()) return GCOMP_FLOAT_MODE;
    mode = gcomp__fp_enter();
    result = gcomp__check_payload(gcomp__set_of(GCOMP_ISA_AUTO), &view, payload, length, n);
    gcomp__fp_leave(mode);
    return result;
}

GCOMP_API gcomp_result gcomp_peek(const void *payload, size_t length, gcomp_info *info)
{
    gcomp__view view;
    gcomp_info made;
    unsigned flags = 0;
    uint64_t n = 0, bytes = 0;
    size_t i;
    if (!payload || !info) return GCOMP_INVALID_ARGUMENT;
    GCOMP__TRY(gcomp__header((const uint8_t *)payload, length, &view, &flags, &n, &bytes));
    memset(&made, 0, sizeof made);
    made.codec.method = view.method->wire;
    made.codec.value = view.value ? view.value->wire : 0;
    for (i = 0; i < GCOMP_PARAMS; i++) {
        made.codec.param[i] = view.method->param[i].initial;
        if (view.value) made.codec.value_param[i] = view.value->param[i].initial;
    }
    if (!(flags & GCOMP__REFUSED)) {
        double *param = view.value ? made.codec.value_param : made.codec.param;
        uint64_t mode = gcomp__fp_enter();
        gcomp_result result = gcomp__unpack(view.value ? view.value : view.method, view.a, param);
        gcomp__fp_leave(mode);
        if (result != GCOMP_OK) return result;
    }
    made.count = n;
    made.length = bytes > UINT64_MAX - GCOMP__HEADER ? UINT64_MAX : bytes + GCOMP__HEADER;
    made.refused = (flags & GCOMP__REFUSED) != 0;
    made.checksum = (flags & GCOMP__SEALED) != 0;
    *info = made;
    return GCOMP_OK;
}

/* Runs a sink over views of one method. */
static void gcomp__decode_with(const gcomp__call *call, const gcomp__sink *sink)
{
    const gcomp__view *any = sink->count ? sink->views : sink->own;
    gcomp__call with = *call;
    if (!sink->n) return;
    with.kernels = gcomp__kernels_of(call->set, any->method);
    (any->method->decode)(&with, sink);
}

/* One payload into y, by STORE or ADD. */
static gcomp_result gcomp__decode_one(const void *payload, size_t length, int ending, float weight, float *y, size_t n,
                                      const gcomp_exec *exec)
{
    gcomp__sink sink = gcomp__sink_to(ending, y, n);
    gcomp__view view;
    gcomp__call call;
    gcomp_result result;
    uint64_t mode;
    if (!y && n) return GCOMP_INVALID_ARGUMENT;
    if (!gcomp__finite(weight)) return GCOMP_INVALID_ARGUMENT;
    GCOMP__TRY(gcomp__call_of(&call, exec));
    mode = gcomp__fp_enter();
    result = gcomp__check_payload(call.set, &view, payload, length, n);
    if (result == GCOMP_OK) {
        sink.fresh = 0;
        sink.weight = weight;
        sink.views = &view;
        sink.count = 1;
        gcomp__decode_with(&call, &sink);
    }
    gcomp__fp_leave(mode);
    return result;
}

GCOMP_API gcomp_result gcomp_decode(const void *payload, size_t length, float *y, size_t n, const gcomp_exec *exec)
{
    return gcomp__decode_one(payload, length, GCOMP__STORE, 1, y, n, exec);
}

GCOMP_API gcomp_result gcomp_decode_add(const void *payload, size_t length, float weight, float *y, size_t n,
                                        const gcomp_exec *exec)
{
    return gcomp__decode_one(payload, length, GCOMP__ADD, weight, y, n, exec);
}

/* Are they all of one method whose mean is a vote? */
static int gcomp__all_vote(const void *const *payloads, size_t count)
{
    const gcomp__method *m = gcomp__method_of(((const uint8_t *)payloads[0])[5]);
    size_t w;
    for (w = 1; w < count; w++)
        if (((const uint8_t *)payloads[w])[5] != m->wire) return 0;
    return (m->flags & GCOMP__MAJORITY) != 0;
}

/* y <- mean of valid payloads, at most 8 views at a time and only those of one method in a row together. */
GCOMP__NOINLINE void gcomp__add_all(const gcomp__call *call, const void *const *payloads, const size_t *lengths, size_t count,
                                    float *y, size_t n)
{
    gcomp__view views[8];
    gcomp__sink sink = gcomp__sink_to(GCOMP__ADD, y, n);
    gcomp__call lists = *call, rest = *call; /* rest: what is left of the scratch behind all lists */
    size_t w, group;
    sink.weight = 1.0f / (float)count;
    sink.views = views;
    if (gcomp__all_vote(payloads, count)) {
        gcomp__open_valid(call->set, views, NULL, payloads[0], lengths[0], n);
        sink.payloads = payloads;
        sink.count = count;
        gcomp__decode_with(call, &sink);
        return;
    }
    for (w = 0; w < count; w++) {
        gcomp__open_valid(call->set, views, w ? views : NULL, payloads[w], lengths[w], n);
        (void)gcomp__list_room(&rest, views);
    }
    for (w = 0; w < count;) {
        for (group = 0; group < 8 && w < count; group++, w++) {
            gcomp__open_valid(call->set, views + group, group ? views : NULL, payloads[w], lengths[w], n);
            if (group && views[group].method != views[0].method) break;
            views[group].list = gcomp__list_room(&lists, views + group);
        }
        sink.count = group;
        gcomp__decode_with(&rest, &sink);
        sink.fresh = 0;
    }
}

GCOMP_API gcomp_result gcomp_decode_mean(const void *const *payloads, const size_t *lengths, size_t count, float *y, size_t n,
                                         const gcomp_exec *exec)
{
    gcomp__call call;
    gcomp__view first;
    gcomp_result result;
    uint64_t mode;
    if (!payloads || !lengths || !count || (!y && n)) return GCOMP_INVALID_ARGUMENT;
    GCOMP__TRY(gcomp__call_of(&call, exec));
    mode = gcomp__fp_enter();
    result = gcomp__check_all(&call, payloads, lengths, count, n, &first);
    if (result == GCOMP_OK) gcomp__add_all(&call, payloads, lengths, count, y, n);
    gcomp__fp_leave(mode);
    return result;
}

GCOMP_API gcomp_result gcomp_retain(const void *payload, size_t length, const gcomp_input *in, float *residual,
                                    const gcomp_exec *exec)
{
    gcomp__sink sink = gcomp__sink_to(GCOMP__COMMIT, NULL, 0);
    gcomp_input input;
    gcomp__view view;
    gcomp__call call;
    gcomp_result result;
    uint64_t mode;
    size_t n;
    GCOMP__TRY(gcomp__input_of(&input, in, &n));
    if (!residual && n) return GCOMP_INVALID_ARGUMENT;
    GCOMP__TRY(gcomp__call_of(&call, exec));
    mode = gcomp__fp_enter();
    input.residual = residual;
    result = gcomp__check_payload(call.set, &view, payload, length, n);
    if (result == GCOMP_OK && !gcomp__all_finite(&call, &input, n)) result = GCOMP_NOT_FINITE;
    if (result == GCOMP_OK) {
        sink.n = n;
        sink.own = &view;
        sink.grad = input.grad;
        sink.dtype = input.dtype;
        sink.scale = input.scale;
        sink.residual = residual;
        gcomp__decode_with(&call, &sink);
    }
    gcomp__fp_leave(mode);
    return result;
}

/* ------------------------------------------------------------------------------------------------
   >>schedules - who chooses among the codecs of a list: warm-up, Accordion, budgets of bytes and of errors

   A list goes from level 0, the most bytes, down. Rank 0 decides from what it sees; the frame of a step carries the decision to
   all workers, and the commit of that step makes it true: a step that fails or is aborted leaves all levels as they were.
     warmup     level = floor((levels - 1) * epoch / epochs), then the last
     accordion  level 0 where | |D'| - |D| | / |D'| >= eta, else 1, with D the sum of scale * gradient of rank 0 over an epoch and
                D' that of `every` epochs before. No change until there are two sums; level 0 where |D'| is 0 or a sum not
                finite, and for all when the learning rate falls. Agarwal et al., MLSys 2021.
     bytes      a level down where the mean of `every` steps is above the target, a level up where that is expected to give no
                more than (1 - slack) of it
     error      the other way round, with the relative errors of gcomp_statistics
   ------------------------------------------------------------------------------------------------ */

enum { GCOMP__WARMUP, GCOMP__ACCORDION, GCOMP__BUDGET, GCOMP__ERROR, GCOMP__RULES };
enum { GCOMP__LEVELS = 8 };
enum { GCOMP__EVERY = 0, GCOMP__ETA = 1, GCOMP__SCOPE = 2 };     /* parameters of accordion */
enum { GCOMP__TARGET = 0, GCOMP__PERIOD = 1, GCOMP__SLACK = 2 }; /* of bytes and error */

typedef struct gcomp__rule {
    const char *name;
    gcomp__param param[GCOMP_PARAMS];
} gcomp__rule;

static const gcomp__rule gcomp__rules[GCOMP__RULES] = {
    {"warmup", {GCOMP__COUNT("epochs", 4, 1, 1000000, 0)}},
    {"accordion", {GCOMP__COUNT("every", 10, 1, 1000000, 0), GCOMP__NUMBER("eta", 0.5, 1e-6, 1e6, 0),
                   GCOMP__ONE_OF("scope", 0, 1, 0, "tensor|model|")}},
    {"bytes", {GCOMP__NUMBER("target", 0, 1, 1e18, 0), GCOMP__COUNT("every", 10, 1, 1000000, 0),
               GCOMP__NUMBER("slack", 0.1, 0, 0.9, 0)}},
    {"error", {GCOMP__NUMBER("target", 0, 1e-9, 1, 0), GCOMP__COUNT("every", 10, 1, 1000000, 0),
               GCOMP__NUMBER("slack", 0.1, 0, 0.9, 0)}}};

typedef struct gcomp__schedule {
    int rule; /* -1: none */
    int warms; /* the warm-up makes the lists itself: from one codec */
    double param[GCOMP_PARAMS];
    size_t levels, count; /* of the lists; of codecs: levels, or 1 */
    gcomp_codec codecs[GCOMP__LEVELS]; /* of tensors that name none */
} gcomp__schedule;

/* What it remembers; what stands below rate, on rank 0 alone. */
typedef struct gcomp__pace {
    size_t level; /* of all tensors with a list; 0 where each has its own */
    int begun;    /* a step was committed, in this epoch, with this learning rate */
    uint32_t epoch;
    float rate;
    size_t to;            /* bytes, error: where the next frame leads */
    int known, partial;   /* accordion: there is a sum before; this one lacks the beginning of its epoch */
    double norm, squares; /* accordion of the whole model: |D'|, |D|^2 */
    double sum, mean;     /* of the value under control, in this period; of the last period, which had level `at` */
    size_t steps, at;
    int measured;
    double border[GCOMP__LEVELS][2]; /* values at level l - 1 and at l, measured one after the other; zeros: not yet */
} gcomp__pace;

static gcomp_result gcomp__parse_schedule(gcomp__schedule *s, const char *text, gcomp__text *why)
{
    const size_t length = gcomp__word(text);
    const gcomp__rule *rule = gcomp__rules;
    size_t i;
    for (s->rule = 0; s->rule < GCOMP__RULES && !gcomp__same(gcomp__rules[s->rule].name, text, length); s->rule++) {}
    if (s->rule == GCOMP__RULES) {
        gcomp__bad_text(why, "schedule: no ", text, length ? length : strlen(text), "; there are:");
        for (i = 0; i < GCOMP__RULES; i++) {
            gcomp__say_char(why, ' ');
            gcomp__say(why, gcomp__rules[i].name);
        }
        return GCOMP_INVALID_ARGUMENT;
    }
    rule += s->rule;
    for (i = 0; i < GCOMP_PARAMS; i++) s->param[i] = rule->param[i].name ? rule->param[i].initial : 0;
    text += length;
    if (*text == ':') {
        text++;
        if (gcomp__parse_params(rule->name, rule->param, &text, s->param, why) != GCOMP_OK) return GCOMP_INVALID_ARGUMENT;
    }
    if (*text) return gcomp__bad_text(why, "schedule: cannot read ", text, strlen(text), " at the end"), GCOMP_INVALID_ARGUMENT;
    if (s->rule < GCOMP__BUDGET || s->param[GCOMP__TARGET] > 0) return GCOMP_OK;
    gcomp__say(why, rule->name);
    gcomp__say(why, " takes a target: schedule = \"");
    gcomp__say(why, rule->name);
    gcomp__say(why, ":target=...\"");
    return GCOMP_INVALID_ARGUMENT;
}

/* Codecs with bars between them. */
static gcomp_result gcomp__parse_list(gcomp_codec *codecs, size_t *count, const char *text, gcomp__text *why)
{
    const uint64_t mode = gcomp__fp_enter();
    gcomp_result result = gcomp__parse_codec(codecs, &text, why);
    for (*count = 1; result == GCOMP_OK && *text; ++*count) {
        text++;
        if (*count == GCOMP__LEVELS) result = (gcomp__say(why, "more than 8 codecs in a list"), GCOMP_BAD_CODEC);
        else result = gcomp__parse_codec(codecs + *count, &text, why);
    }
    gcomp__fp_leave(mode);
    return result;
}

/* A warm-up of one codec: where it has a density, from larger ones; else uncompressed until the end. One with a warm-up of its
   own is given the epochs. */
static void gcomp__warm_list(const gcomp__schedule *s, gcomp_codec *codecs, size_t *count)
{
    const gcomp_codec last = codecs[0];
    const gcomp__method *m = gcomp__method_of(last.method);
    size_t i, share, density = GCOMP_PARAMS;
    if (*count > 1 || last.method == gcomp__row_none.wire) return;
    for (i = 0; i < GCOMP_PARAMS && m->param[i].name; i++) {
        if (!strcmp(m->param[i].name, "density")) density = i;
        if (!strcmp(m->param[i].name, "warmup")) {
            codecs[0].param[i] = s->param[0];
            return;
        }
    }
    for (share = 0; share <= GCOMP__WARM_SHARES; share++) {
        codecs[share] = last;
        if (density < GCOMP_PARAMS) {
            codecs[share].param[density] = gcomp__warm_density(share, last.param[density]);
        } else if (share < GCOMP__WARM_SHARES) {
            memset(&codecs[share], 0, sizeof last);
            codecs[share].method = gcomp__row_none.wire;
        }
    }
    *count = GCOMP__WARM_SHARES + 1;
}

/* NULL, or why these codecs cannot stand in one list. keeps: the tensor keeps a residual with that codec. */
static const char *gcomp__list_refusal(const gcomp__schedule *s, const gcomp_codec *codecs, const int *keeps, size_t count)
{
    size_t i, kept = 0, others = 0, remembers = 0;
    if (count == 1) return NULL;
    for (i = 0; i < count; i++) {
        if (gcomp__method_of(codecs[i].method)->flags & GCOMP__REMEMBERS) remembers++;
        if (keeps[i]) kept++;
        else if (codecs[i].method != gcomp__row_none.wire) others++;
    }
    if (s->rule < 0) return "a list of codecs needs a schedule that chooses: desc.schedule is NULL";
    if (count != s->levels) return "a tensor's list is as long as that of desc.codec";
    if (kept && others) return "one codec of the list keeps a residual and another does not; only none goes with all";
    if (remembers && remembers < count) return "dgc keeps the momentum: its list has no other method";
    if (s->rule == GCOMP__ERROR && !kept) return "the schedule error goes by residuals, and this list keeps none";
    return NULL;
}

/* Accordion: has the norm changed so much that compression should be low? A norm below zero stands for one not finite. */
static int gcomp__critical(double before, double now, double eta)
{
    const double change = before > now ? before - now : now - before;
    return before <= 0 || now < 0 || change / before >= eta;
}

/* Takes the value of a step; at the end of a period the level to go to, else the level that is. Bytes fall from level to level,
   errors rise. What a level would give is what was measured on both sides of its border, in proportion to the value now; where
   nothing was, nothing: it is tried. */
static size_t gcomp__control(const gcomp__schedule *s, gcomp__pace *pace, double value)
{
    const double target = s->param[GCOMP__TARGET];
    const size_t level = pace->level, less = s->rule == GCOMP__BUDGET ? level + 1 : level - 1, more = 2 * level - less;
    const double *border;
    double here, there;
    pace->sum += value;
    if ((double)++pace->steps < s->param[GCOMP__PERIOD]) return level;
    value = pace->sum / (double)pace->steps;
    if (pace->measured && (pace->at + 1 == level || level + 1 == pace->at)) {
        double *both = pace->border[gcomp__max(level, pace->at)];
        both[level > pace->at] = value;
        both[level < pace->at] = pace->mean;
    }
    pace->sum = 0;
    pace->steps = 0;
    pace->measured = 1;
    pace->at = level;
    pace->mean = value;
    if (value > target) return less < s->levels ? less : level;
    if (more >= s->levels) return level;
    border = pace->border[gcomp__max(level, more)];
    here = border[level > more];
    there = border[more > level];
    if (here > 0) there *= value / here;
    return there > target * (1 - s->param[GCOMP__SLACK]) ? level : more;
}

/* ------------------------------------------------------------------------------------------------
   >>tensors - codecs with their memory: residual, warm start
   ------------------------------------------------------------------------------------------------ */

enum { GCOMP__IDLE, GCOMP__COLLECT, GCOMP__FRAMES, GCOMP__DECISIONS, GCOMP__ROUNDS, GCOMP__READY };
enum { GCOMP__FRAME = 64, GCOMP__SENTENCE = 256 };
enum { GCOMP__WORD = 16 }; /* bytes of what a worker says to those of its machine */
enum { GCOMP__LENGTH_BYTES = 16 }; /* of what announces shards and sums */

/* What a codec makes of a tensor. */
typedef struct gcomp__level {
    gcomp_codec codec;
    const gcomp__method *method;
    size_t state_floats, local_floats, sum_count[3], bound;
    uint8_t rounds[3];
    unsigned flags;
    const char *why; /* it is not the codec that was named; NULL: it is */
} gcomp__level;

typedef struct gcomp__slot {
    char *name;
    size_t name_bytes, rows, cols, stack, n;
    gcomp_dtype dtype;
    gcomp_codec codec;
    const gcomp__method *method;
    float *residual, *state, *staging; /* NULL: none */
    size_t state_floats, local_floats, sum_count[3], bound; /* sum_count: the most of any step */
    size_t sum_now[3];                                      /* of this step */
    uint8_t rounds[3]; /* its codec's */
    unsigned flags;
    const char *why;   /* its level's */
    int alone;         /* a vector that is compressed as long as there is no other tensor */
    size_t at_send, at_local, at_sum[3]; /* places in the step's buffers */
    size_t whole, most, list_step;       /* with shards: bytes and elements of its payload; which elements are listed */
    size_t at_own, at_cut, at_acc, at_list, walk; /* at_own: of what is gathered its place in `send`, once it goes out */
    size_t at_mean;                      /* of what is gathered, in the step's means */
    void *grad;                          /* of the step; NULL: skipped, or not known yet */
    uint32_t by_place;                   /* of slot i: the number of the tensor whose gradient is the i-th in memory */
    size_t length;                       /* of its payload */
    int ready;
    gcomp__level *levels;                /* its list; NULL: one codec for ever. What stands above is of the level it has */
    size_t level_count, level, next;     /* next: in the step after this */
    int keeps, stages;                   /* has a residual; its gradient is made floats first */
    uint32_t codecs_digest;              /* of all levels */
    size_t state_room;                   /* floats of state, of the level that has most */
    float *epoch_sum;                    /* of gradients, rank 0 of accordion; else NULL */
    size_t epoch_floats;
    double norm, squares;                /* of the sum before; of this one */
    double p_squares;                    /* desc.measure: |p|^2 of the step */
} gcomp__slot;

/* Sizes of the step's buffers. */
typedef struct gcomp__plan {
    size_t send, scratch; /* bytes */
    size_t widest;        /* bytes of payloads of the bucket that has most */
    size_t gathered;      /* elements of tensors with payloads, of all buckets */
    size_t means;         /* the same without the last bucket */
    size_t local;         /* floats */
    size_t sums[3][GCOMP__KINDS]; /* elements, of each round and kind */
    size_t fixed;         /* bytes that tensors hold all the time */
    size_t own, cut, shards, sum, lists; /* with shards: bytes of payloads, of their shards, of those for one owner, of sums */
    size_t acc, packed;       /* floats that an owner adds; bytes that go out in shards, or in sums */
    size_t tensors, choosing, elements; /* how many there are; of those with a list of codecs; elements of all */
    size_t buckets;
} gcomp__plan;

/* Tensors first .. end - 1, which are communicated together: their part of the step's buffers. The last tensors are bucket 0. */
typedef struct gcomp__bucket {
    size_t first, end;
    size_t at_send, send;             /* payloads: their place, and the most bytes of them */
    size_t at_cut, shards, sum, lists; /* of the plan, for this bucket alone */
    size_t stride, share_stride;      /* of the payloads and of the sums that came in, */
    size_t *bytes, *came;             /* and how many bytes from each worker */
} gcomp__bucket;

struct gcomp {
    gcomp__memory memory;
    gcomp_desc desc; /* resolved; its strings are not kept */
    gcomp__schedule schedule;
    gcomp__pace pace;
    const gcomp__set *set;
    gcomp__slot *tensors; /* stb_ds array */
    uint32_t *by_name;    /* stb_ds array: numbers of tensors, sorted by name */
    gcomp__plan plan, most; /* by the codecs now; where each tensor has what takes most: memory is for that */
    gcomp__room scratch, arena; /* of steps; none: not reserved yet */
    uint8_t *frames; /* one to send, then one of each worker, then the byte counts */
    size_t frames_bytes, *bytes;
    uint8_t *send, *recv, *decisions; /* decisions: one to send, then one of each worker */
    float *means;                     /* where all buckets receive in one place; else NULL: payloads wait for the commit */
    float *local, *maxima; /* maxima: of all workers, where they are gathered */
    uint8_t *sums[3][GCOMP__KINDS];
    size_t *cursors;
    gcomp__view *views;
    uint8_t *own, *cut, *packed, *shards, *lists, *lengths; /* see >>shards; the sums follow where shards are done */
    size_t *sent, *came, *places; /* came: of the bucket */
    float *acc;
    int sharing, listing;
    gcomp__bucket bucket, *others; /* bucket 0, and those behind it, in the arena */
    size_t turn;                   /* the bucket that is communicated, or committed */
    int untaught; /* has become the first worker of its machine, and has no save of another yet */
    int phase, round, gather_round, started; /* all payloads travel together, in the last round that has some; -1: none */
    unsigned issued, done; /* requests: bit 0 the frames, others the kinds of the round */
    uint32_t flights[GCOMP__KINDS]; /* ids of requests that were started and are not done */
    size_t flying;
    gcomp_result local_error, late_error, last;
    uint64_t step, step_bytes; /* step_bytes: what bytes_out was before the step */
    float scale, rate;
    unsigned decided; /* what rank 0's frame says of levels */
    uint32_t epoch, mean_digest;
    double p_squares, e_squares, y_squares, clock_from;
    gcomp_statistics stats;
    gcomp *node;    /* the uncompressed mean over the workers of this machine; NULL: there is one level */
    gcomp__room floats; /* gradients of the machine, back to back; then what its first worker says */
    char error[GCOMP__SENTENCE];
};

static gcomp__text gcomp__sentence(gcomp *gc) { return gcomp__text_in(gc->error, sizeof gc->error); }

static gcomp_result gcomp__fail(gcomp *gc, gcomp_result result, const char *sentence)
{
    gcomp__text t = gcomp__sentence(gc);
    gcomp__say(&t, sentence);
    return result;
}

static void gcomp__say_tensor(gcomp__text *t, const char *name)
{
    gcomp__say(t, "tensor '");
    gcomp__say_some(t, name, gcomp__min(strlen(name), 60));
    gcomp__say(t, "'");
}

/* There is no memory, or none that is aligned as it was asked for. */
static gcomp_result gcomp__no_memory(gcomp *gc, const char *sentence)
{
    const int misaligned = gc->memory.misaligned;
    return gcomp__fail(gc, misaligned ? GCOMP_INVALID_ARGUMENT : GCOMP_OUT_OF_MEMORY, misaligned ? gcomp__misaligned : sentence);
}

/* "tensor 'fc1': sentence" */
static gcomp_result gcomp__fail_tensor(gcomp *gc, gcomp_result result, const char *name, const char *sentence)
{
    gcomp__text t = gcomp__sentence(gc);
    gcomp__say_tensor(&t, name);
    gcomp__say(&t, ": ");
    gcomp__say(&t, sentence);
    return result;
}

/* "field is value: rule" */
static gcomp_result gcomp__fail_field(gcomp__text *why, const char *field, int64_t value, const char *rule)
{
    gcomp__say(why, field);
    gcomp__say(why, " is ");
    gcomp__say_integer(why, value);
    gcomp__say(why, ": ");
    gcomp__say(why, rule);
    return GCOMP_INVALID_ARGUMENT;
}

#ifndef GCOMP_NO_STDLIB
static void *gcomp__malloc(void *user, size_t bytes, size_t align)
{
    /* over-allocates, and keeps the distance to the block in the byte before */
    uint8_t *block, *p;
    (void)user;
    if (bytes > SIZE_MAX - align) return NULL;
    block = (uint8_t *)(malloc)(bytes + align);
    if (!block) return NULL;
    p = block + align - (size_t)((uintptr_t)block & (align - 1));
    p[-1] = (uint8_t)(p - block);
    return p;
}

static void gcomp__free(void *user, void *memory, size_t bytes)
{
    uint8_t *p = (uint8_t *)memory;
    (void)user;
    (void)bytes;
    (free)(p - p[-1]);
}
#endif

/* Waits for what is under way: buffers are in use until then. */
static void gcomp__settle(gcomp *gc)
{
    while (gc->flying) (void)(gc->desc.comm.wait)(gc->desc.comm.user, gc->flights[--gc->flying]);
}

static double gcomp__now(const gcomp *gc) { return gc->desc.clock ? (gc->desc.clock)(gc->desc.clock_user) : 0; }

/* Can the transport carry out what a codec asks for, with so many workers? One alone needs none. */
static gcomp_result gcomp__transport_suits(const gcomp_desc *d, const gcomp_codec *codec, uint8_t *rounds,
                                           unsigned *flags, gcomp__text *why)
{
    const gcomp__method *m = gcomp__method_of(codec->method);
    const char *misfit = m->misfit ? (m->misfit)(codec, (size_t)d->comm.world) : NULL;
    int round;
    memcpy(rounds, m->rounds, 3);
    *flags = m->flags;
    if (m->adapt) (m->adapt)(codec, rounds, flags);
    if (misfit && (m->misfit)(codec, 1)) return gcomp__say(why, misfit), GCOMP_BAD_CODEC; /* whatever the number of workers */
    if (misfit) {
        (void)gcomp__fail_field(why, "comm.world", d->comm.world, misfit);
        return GCOMP_BAD_CODEC;
    }
    for (round = 0; round < 3 && d->comm.world > 1; round++) {
        gcomp_dtype dtype = gcomp__kind_dtype(rounds[round]);
        if (dtype == GCOMP_F32 || (d->comm.allreduce_dtypes >> dtype & 1)) continue;
        gcomp__say(why, "comm.allreduce_dtypes has no bit 1u << ");
        gcomp__say(why, dtype == GCOMP_I8 ? "GCOMP_I8" : dtype == GCOMP_I16 ? "GCOMP_I16" : "GCOMP_I32");
        gcomp__say(why, ": comm.allreduce must sum such integers for ");
        gcomp__say(why, m->name);
        return GCOMP_MISSING_CALLBACK;
    }
    return GCOMP_OK;
}

static gcomp_result gcomp__resolve_world(gcomp_comm *comm, const char *world, const char *rank, gcomp__text *why)
{
    if (comm->world == 0) comm->world = 1;
    if (comm->world < 1) return gcomp__fail_field(why, world, comm->world, "it takes 1 or more workers");
    if (comm->rank < 0 || comm->rank >= comm->world)
        return gcomp__fail_field(why, rank, comm->rank, "it must be from 0 to one less than the world");
    return GCOMP_OK;
}

static gcomp_result gcomp__resolve_comm(gcomp_comm *comm, gcomp__text *why)
{
    GCOMP__TRY(gcomp__resolve_world(comm, "comm.world", "comm.rank", why));
    if (comm->allreduce_dtypes >> (GCOMP_I32 + 1))
        return gcomp__fail_field(why, "comm.allreduce_dtypes", (int64_t)comm->allreduce_dtypes,
                                 "a bit 1u << dtype for each that allreduce can sum");
    if (comm->start && comm->test && comm->wait) return GCOMP_OK;
    if (!comm->start && !comm->test && !comm->wait) return GCOMP_OK;
    gcomp__say(why, !comm->start ? "comm.start" : !comm->test ? "comm.test" : "comm.wait");
    gcomp__say(why, " is NULL: start, test and wait are given together or not at all");
    return GCOMP_INVALID_ARGUMENT;
}

/* Codecs of a list, one or more: each suits the transport, and they go together. */
static gcomp_result gcomp__list_suits(const gcomp_desc *d, const gcomp__schedule *s, const gcomp_codec *codecs, size_t count,
                                      gcomp__text *why)
{
    int keeps[GCOMP__LEVELS];
    const char *refusal;
    uint8_t rounds[3];
    unsigned flags;
    size_t i;
    for (i = 0; i < count; i++) {
        GCOMP__TRY(gcomp__transport_suits(d, &codecs[i], rounds, &flags, why));
        keeps[i] = (flags & GCOMP__FEEDBACK) && !d->no_error_feedback;
    }
    refusal = gcomp__list_refusal(s, codecs, keeps, count);
    return refusal ? (gcomp__say(why, refusal), GCOMP_BAD_CODEC) : GCOMP_OK;
}

/* The schedule, and the codecs it chooses from. */
static gcomp_result gcomp__resolve_schedule(gcomp_desc *d, gcomp__schedule *s, gcomp__text *why)
{
    gcomp_result result;
    uint64_t mode;
    memset(s, 0, sizeof *s);
    s->rule = -1;
    if (d->schedule) {
        mode = gcomp__fp_enter();
        result = gcomp__parse_schedule(s, d->schedule, why);
        gcomp__fp_leave(mode);
        if (result != GCOMP_OK) return result;
    }
    GCOMP__TRY(gcomp__parse_list(s->codecs, &s->count, d->codec ? d->codec : "none", why));
    s->levels = s->count;
    if (s->rule == GCOMP__WARMUP && s->count == 1) {
        s->warms = 1;
        s->levels = GCOMP__WARM_SHARES + 1;
        gcomp__warm_list(s, s->codecs, &s->count);
    }
    if (s->rule > GCOMP__WARMUP && s->count == 1)
        return gcomp__say(why, "codec: the schedule chooses from a list, as \"int|int:bits=4\""), GCOMP_BAD_CODEC;
    if (s->rule == GCOMP__ACCORDION && s->count != 2)
        return gcomp__say(why, "codec: accordion chooses between two codecs"), GCOMP_BAD_CODEC;
    if (s->rule == GCOMP__ERROR && d->comm.rank == 0) d->measure = 1;
    d->schedule = d->codec = NULL;
    return gcomp__list_suits(d, s, s->codecs, s->count, why);
}

static gcomp_result gcomp__resolve_node(gcomp_comm *node, gcomp__text *why)
{
    GCOMP__TRY(gcomp__resolve_world(node, "node.world", "node.rank", why));
    if (node->world == 1 || (node->allreduce && node->allgather)) return GCOMP_OK;
    return gcomp__say(why, "node: allreduce and allgather are required"), GCOMP_MISSING_CALLBACK;
}

/* Fills in defaults; every field is looked at. */
static gcomp_result gcomp__resolve_desc(gcomp_desc *d, gcomp__schedule *schedule, const gcomp__set **set, gcomp__text *why)
{
    gcomp_isa isa = d->isa;
    GCOMP__TRY(gcomp__resolve_comm(&d->comm, why));
    GCOMP__TRY(gcomp__resolve_node(&d->node, why));
    if (!d->allocator.alloc != !d->allocator.free) {
        gcomp__say(why, "allocator: alloc and free are given together or not at all");
        return GCOMP_INVALID_ARGUMENT;
    }
    if (!d->allocator.alloc) {
#ifndef GCOMP_NO_STDLIB
        d->allocator.alloc = gcomp__malloc;
        d->allocator.free = gcomp__free;
#else
        gcomp__say(why, "allocator: required with GCOMP_NO_STDLIB");
        return GCOMP_INVALID_ARGUMENT;
#endif
    }
    if (d->min_elements == 0) d->min_elements = 1024;
    if (d->compress_vectors < 0 || d->compress_vectors > 1)
        return gcomp__fail_field(why, "compress_vectors", d->compress_vectors, "0 or 1");
    if (d->no_error_feedback < 0 || d->no_error_feedback > 1)
        return gcomp__fail_field(why, "no_error_feedback", d->no_error_feedback, "0 or 1");
    if (d->no_checksum < 0 || d->no_checksum > 1) return gcomp__fail_field(why, "no_checksum", d->no_checksum, "0 or 1");
    if (d->measure < 0 || d->measure > 1) return gcomp__fail_field(why, "measure", d->measure, "0 or 1");
    if ((unsigned)d->aggregate > GCOMP_AGGREGATE_TWO_SHOT)
        return gcomp__fail_field(why, "aggregate", (int64_t)d->aggregate, "no such way to aggregate");
    if ((unsigned)isa > GCOMP_ISA_NEON) {
        (void)gcomp__fail_field(why, "isa", (int64_t)isa, "no such instruction set");
        return GCOMP_ISA_UNAVAILABLE;
    }
    GCOMP__TRY(gcomp__resolve_schedule(d, schedule, why));
#if !defined(GCOMP_NO_GETENV) && !defined(GCOMP_NO_STDLIB)
    if (isa == GCOMP_ISA_AUTO) {
        const char *name = (getenv)("GCOMP_ISA");
        int i;
        if (name && *name) {
            for (i = 1; i <= (int)GCOMP_ISA_NEON && strcmp(gcomp_isa_name((gcomp_isa)i), name); i++) {}
            if (i > (int)GCOMP_ISA_NEON) {
                gcomp__bad_text(why, "environment variable GCOMP_ISA names no instruction set: ", name, strlen(name), "");
                return GCOMP_ISA_UNAVAILABLE;
            }
            isa = (gcomp_isa)i;
        }
    }
#endif
    *set = gcomp__set_of(isa);
    if (!*set) {
        gcomp__say(why, "instruction set not available in this build or on this machine: ");
        gcomp__say(why, gcomp_isa_name(isa));
        return GCOMP_ISA_UNAVAILABLE;
    }
    d->isa = (*set)->isa;
    return GCOMP_OK;
}

static size_t gcomp__frames_bytes(size_t world)
{
    return gcomp__plus(gcomp__times(world + 1, GCOMP__FRAME), gcomp__times(world, sizeof(size_t)));
}

/* What sums the gradients of a machine. */
static gcomp_desc gcomp__node_desc(const gcomp_desc *desc)
{
    gcomp_desc node;
    memset(&node, 0, sizeof node);
    node.comm = desc->node;
    node.comm.allreduce_dtypes = 0; /* floats are summed, */
    node.comm.start = NULL;         /* and nothing else is done meanwhile */
    node.comm.test = NULL;
    node.comm.wait = NULL;
    node.seed = desc->seed;
    node.isa = desc->isa;
    node.allocator = desc->allocator;
    node.parallel = desc->parallel;
    return node;
}

static gcomp_tensor gcomp__node_tensor(const gcomp_tensor *tensor)
{
    gcomp_tensor plain = *tensor;
    plain.dtype = GCOMP_F32;
    plain.codec = "none";
    return plain;
}

/* The object that adds up the gradients of the machine, with the tensors of this one; where a worker
   is alone there is none. 0 without memory. */
static int gcomp__make_node(gcomp *gc, int prepared)
{
    const gcomp_desc desc = gcomp__node_desc(&gc->desc);
    gcomp_result result;
    size_t i;
    gc->node = NULL;
    if (desc.comm.world == 1) return 1;
    result = gcomp_open(&gc->node, &desc);
    for (i = 0; i < stbds_arrlenu(gc->tensors) && result == GCOMP_OK; i++) {
        gcomp_tensor tensor;
        memset(&tensor, 0, sizeof tensor);
        tensor.name = gc->tensors[i].name;
        tensor.rows = gc->tensors[i].rows;
        tensor.cols = gc->tensors[i].cols;
        tensor.stack = gc->tensors[i].stack;
        tensor = gcomp__node_tensor(&tensor);
        result = gcomp_add_tensor(gc->node, &tensor);
    }
    if (result == GCOMP_OK && prepared) result = gcomp_prepare(gc->node);
    gc->memory.misaligned |= result == GCOMP_INVALID_ARGUMENT; /* its desc and tensors are good */
    return result == GCOMP_OK;
}

GCOMP_API gcomp_result gcomp_open(gcomp **gc, const gcomp_desc *desc)
{
    gcomp__text why = gcomp__text_in(desc ? desc->why : NULL, desc ? desc->why_capacity : 0);
    const gcomp__set *set = NULL;
    gcomp__memory memory;
    gcomp__schedule schedule;
    gcomp_desc d;
    gcomp *made;
    if (gc) *gc = NULL;
    if (!gc || !desc) return GCOMP_INVALID_ARGUMENT;
    d = *desc;
    GCOMP__TRY(gcomp__resolve_desc(&d, &schedule, &set, &why));
    memory.allocator = d.allocator;
    memory.used = 0;
    memory.misaligned = 0;
    made = (gcomp *)gcomp__allocate(&memory, sizeof *made);
    if (made) {
        memset(made, 0, sizeof *made);
        made->memory = memory;
        made->desc = d;
        made->schedule = schedule;
        made->set = set;
        made->frames_bytes = gcomp__frames_bytes((size_t)d.comm.world);
        made->frames = (uint8_t *)gcomp__allocate(&made->memory, made->frames_bytes);
        made->tensors = (gcomp__slot *)gcomp__array_make(&made->memory, 16, sizeof *made->tensors);
        made->by_name = (uint32_t *)gcomp__array_make(&made->memory, 16, sizeof *made->by_name);
    }
    if (!made || !made->frames || !made->tensors || !made->by_name || !gcomp__make_node(made, 0)) {
        const int misaligned = made ? made->memory.misaligned : memory.misaligned;
        gcomp__say(&why, misaligned ? gcomp__misaligned : "no memory for the object");
        gcomp_close(made);
        return misaligned ? GCOMP_INVALID_ARGUMENT : GCOMP_OUT_OF_MEMORY;
    }
    memset(made->frames, 0, made->frames_bytes);
    made->bytes = (size_t *)(void *)(made->frames + ((size_t)d.comm.world + 1) * GCOMP__FRAME);
    *gc = made;
    return GCOMP_OK;
}

static void gcomp__slot_release(gcomp *gc, gcomp__slot *slot)
{
    gcomp__release(&gc->memory, slot->name, slot->name_bytes);
    gcomp__release(&gc->memory, slot->residual, 4 * slot->n);
    gcomp__release(&gc->memory, slot->state, 4 * slot->state_room);
    gcomp__release(&gc->memory, slot->epoch_sum, 4 * slot->epoch_floats);
    gcomp__release(&gc->memory, slot->levels, slot->level_count * sizeof *slot->levels);
    gcomp__release(&gc->memory, slot->staging, 4 * slot->n);
}

/* All that is reserved for steps. */
static void gcomp__drop_room(gcomp *gc)
{
    gcomp__room_give(&gc->memory, &gc->scratch);
    gcomp__room_give(&gc->memory, &gc->arena);
    gcomp__room_give(&gc->memory, &gc->floats);
    gc->others = NULL;
}

GCOMP_API void gcomp_close(gcomp *gc)
{
    gcomp__memory memory;
    size_t i;
    if (!gc) return;
    gcomp__settle(gc);
    gcomp_close(gc->node);
    gcomp__drop_room(gc);
    for (i = 0; i < stbds_arrlenu(gc->tensors); i++) gcomp__slot_release(gc, gc->tensors + i);
    gcomp__array_release(&gc->memory, gc->tensors, sizeof *gc->tensors);
    gcomp__array_release(&gc->memory, gc->by_name, sizeof *gc->by_name);
    gcomp__release(&gc->memory, gc->frames, gc->frames_bytes);
    memory = gc->memory;
    gcomp__release(&memory, gc, sizeof *gc);
}

enum { GCOMP__LEAST_RANGE = 256 }; /* elements; smaller ones are mostly headers */

/* Is the mean made by ranges? Indices of groups are not cut, nor payloads of several rounds. */
static int gcomp__wants_shards(const gcomp_desc *desc, const gcomp__slot *slot)
{
    const gcomp_comm *comm = &desc->comm;
    if (comm->world == 1 || slot->rounds[0] != GCOMP__GATHER || slot->rounds[1] || slot->flags & GCOMP__GROUPS) return 0;
    if (!slot->method->selector)
        return desc->aggregate == GCOMP_AGGREGATE_TWO_SHOT && slot->n / GCOMP__LEAST_RANGE >= (size_t)comm->world;
    if (desc->aggregate != GCOMP_AGGREGATE_AUTO) return desc->aggregate >= GCOMP_AGGREGATE_SHARDS;
    return comm->alltoallv && comm->world >= (slot->flags & GCOMP__GLOBAL ? 3 : 8) && slot->codec.value == gcomp__row_none.wire &&
           (slot->method->selector->most)(&slot->codec, slot->n) / 64 >= (size_t)comm->world;
}

/* A codec of a tensor, by the rules, with its sizes. */
static gcomp_result gcomp__level_of(gcomp__level *level, const gcomp__slot *slot, const gcomp_desc *desc,
                                    const gcomp_codec *codec, gcomp__text *why)
{
    const gcomp__method *m = gcomp__method_of(codec->method);
    int round;
    memset(level, 0, sizeof *level);
    level->codec = *codec;
    if (m->gains && !(m->gains)(codec, slot->rows, slot->cols)) {
        level->why = slot->cols > 1 ? "would not be smaller" : "a vector, which the codec would not make smaller";
        m = &gcomp__row_none;
        memset(&level->codec, 0, sizeof level->codec);
        level->codec.method = m->wire;
    }
    level->method = m;
    GCOMP__TRY(gcomp__transport_suits(desc, &level->codec, level->rounds, &level->flags, why));
    for (round = 0; round < 3; round++) {
        if (level->rounds[round] == GCOMP__GATHER) {
            level->bound = gcomp__bound_of(m, &level->codec, slot->n);
            if (!level->bound) return gcomp__say(why, "too many elements for the codec"), GCOMP_INVALID_ARGUMENT;
        } else if (level->rounds[round] != GCOMP__NO_ROUND) {
            level->sum_count[round] = gcomp__max((m->sum_count)(&level->codec, slot->rows, slot->cols, round, 0),
                                                 (m->sum_count)(&level->codec, slot->rows, slot->cols, round, 1));
            level->sum_count[round] = gcomp__times(level->sum_count[round], slot->stack);
        }
    }
    if (m->state_floats) level->state_floats = (m->state_floats)(&level->codec, slot->rows, slot->cols) * slot->stack;
    if (m->local_floats) level->local_floats = (m->local_floats)(&level->codec, slot->rows, slot->cols) * slot->stack;
    return GCOMP_OK;
}

/* The tensor goes by that codec of its list. */
static void gcomp__take_level(gcomp__slot *slot, const gcomp__level *level)
{
    slot->codec = level->codec;
    slot->method = level->method;
    slot->state_floats = level->state_floats;
    slot->local_floats = level->local_floats;
    slot->bound = level->bound;
    slot->flags = level->flags;
    slot->why = level->why;
    memcpy(slot->sum_count, level->sum_count, sizeof slot->sum_count);
    memcpy(slot->rounds, level->rounds, sizeof slot->rounds);
    slot->whole = 0; /* gcomp__place finds out if its mean is made by ranges */
}

/* Does this worker keep residuals of such a codec? Of a machine the first one does. */
static int gcomp__keeps(const gcomp_desc *desc, unsigned flags)
{
    return (flags & GCOMP__FEEDBACK) && !desc->no_error_feedback && !desc->node.rank;
}

/* Rank 0, whose schedule decides; of a machine its first worker. */
static int gcomp__leads(const gcomp_desc *desc) { return !desc->comm.rank && !desc->node.rank; }

/* A tensor's shape, codecs and sizes, by the rules; levels: all codecs of its list. alone: there is no other tensor. *why says
   what is wrong. */
GCOMP__NOINLINE gcomp_result gcomp__slot_of(gcomp__slot *slot, gcomp__level *levels, const gcomp_desc *desc,
                                            const gcomp__schedule *schedule, const gcomp_tensor *tensor, int alone,
                                            gcomp__text *why)
{
    gcomp_codec codecs[GCOMP__LEVELS];
    const char *plain = NULL;
    int compresses = 0;
    size_t i;
    memset(slot, 0, sizeof *slot);
    if (!tensor->name || !tensor->name[0]) return gcomp__say(why, "name is required"), GCOMP_INVALID_ARGUMENT;
    slot->name_bytes = strlen(tensor->name) + 1;
    slot->rows = tensor->rows;
    slot->cols = tensor->cols ? tensor->cols : 1;
    slot->stack = tensor->stack ? tensor->stack : 1;
    slot->n = gcomp__times(gcomp__times(slot->rows, slot->cols), slot->stack);
    slot->dtype = tensor->dtype;
    if (slot->rows == 0) return gcomp__say(why, "rows is 0: it takes 1 or more"), GCOMP_INVALID_ARGUMENT;
    if (gcomp__times(slot->n, 16) == SIZE_MAX)
        return gcomp__say(why, "rows * cols * stack is too large"), GCOMP_INVALID_ARGUMENT;
    if ((unsigned)slot->dtype > GCOMP_BF16)
        return gcomp__fail_field(why, "dtype", (int64_t)slot->dtype, "GCOMP_F32, GCOMP_F16 or GCOMP_BF16");
    slot->level_count = 1;
    if (tensor->codec) {
        GCOMP__TRY(gcomp__parse_list(codecs, &slot->level_count, tensor->codec, why));
        if (schedule->warms) gcomp__warm_list(schedule, codecs, &slot->level_count);
        GCOMP__TRY(gcomp__list_suits(desc, schedule, codecs, slot->level_count, why));
    } else {
        memcpy(codecs, schedule->codecs, sizeof codecs);
        slot->level_count = schedule->count;
        slot->alone = alone && slot->cols == 1 && !desc->compress_vectors && slot->n >= desc->min_elements;
        if (slot->n < desc->min_elements) plain = "fewer elements than desc.min_elements";
        else if (slot->cols == 1 && !desc->compress_vectors && !alone) plain = "a vector";
    }
    if (plain) {
        if (slot->level_count == 1 && codecs[0].method == gcomp__row_none.wire) plain = NULL; /* it is as named */
        slot->level_count = 1;
        memset(codecs, 0, sizeof *codecs);
        codecs[0].method = gcomp__row_none.wire;
    }
    for (i = 0; i < slot->level_count; i++) {
        GCOMP__TRY(gcomp__level_of(levels + i, slot, desc, codecs + i, why));
        if (plain) levels[i].why = plain;
        slot->keeps |= gcomp__keeps(desc, levels[i].flags);
        slot->state_room = gcomp__max(slot->state_room, levels[i].state_floats);
        compresses |= levels[i].method != &gcomp__row_none;
    }
    if (!compresses) slot->level_count = 1; /* none of the list gains anything */
    if (slot->level_count > 1 && schedule->rule == GCOMP__ACCORDION && gcomp__leads(desc))
        slot->epoch_floats = slot->n; /* of a machine the first worker has these, and residuals */
    slot->stages = slot->dtype != GCOMP_F32 && desc->node.world == 1;
    gcomp__take_level(slot, levels);
    return GCOMP_OK;
}

/* Where the range of a worker begins; that of `world` is the end. */
static size_t gcomp__range(size_t n, size_t world, size_t w)
{
    return gcomp__min(n, gcomp__times(w, gcomp__round_up(gcomp__pieces(n, world), 16)));
}

/* Is it quantised by ranges, and the mean once more? */
static int gcomp__is_two_shot(const gcomp__slot *slot) { return slot->whole && !slot->method->selector; }

/* The most bytes of a payload of one range. The last range is shorter, and may take more. */
static size_t gcomp__range_bound(const gcomp__slot *slot, size_t world)
{
    const size_t range = gcomp__range(slot->n, world, 1);
    return gcomp__max(gcomp__bound_of(slot->method, &slot->codec, range),
                      gcomp__bound_of(slot->method, &slot->codec, slot->n % range));
}

/* Of a tensor whose mean is made by ranges. Shards have a header, 9 bytes, indices and floats; sums are never longer than dense
   ones. */
static void gcomp__plan_shards(gcomp__plan *plan, gcomp__slot *slot, size_t world)
{
    const size_t range = gcomp__range(slot->n, world, 1), any = gcomp__min(gcomp__times(slot->most, world), range);
    const size_t head = GCOMP__HEADER + 10, most = gcomp__min(slot->most, range);
    slot->at_own = plan->own;
    slot->at_cut = plan->cut;
    slot->at_acc = plan->acc;
    slot->at_list = plan->lists;
    plan->own = gcomp__plus(plan->own, slot->whole);
    if (gcomp__is_two_shot(slot)) {
        plan->cut = gcomp__plus(plan->cut, slot->whole);
        plan->shards = gcomp__plus(plan->shards, slot->whole / world);
        plan->sum = gcomp__plus(plan->sum, slot->whole / world);
        plan->acc = gcomp__plus(plan->acc, range);
        return;
    }
    plan->cut = gcomp__plus(plan->cut, gcomp__plus(gcomp__times(head, world), gcomp__times(slot->most, 4)));
    plan->cut = gcomp__plus(plan->cut, gcomp__index_bound(slot->most, slot->n)); /* and of each a byte that is not full */
    plan->shards = gcomp__plus(plan->shards, head + gcomp__index_bound(most, range) + 4 * most);
    plan->sum = gcomp__plus(plan->sum, gcomp__min(GCOMP__HEADER + 4 * range,
                                                  head + gcomp__index_bound(any, range) + 4 * any));
    plan->acc = gcomp__plus(plan->acc, range);
    if (slot->flags & GCOMP__GLOBAL) {
        slot->list_step = 1;
        while (slot->list_step < slot->most / slot->list_step) slot->list_step++;
        plan->lists = gcomp__plus(plan->lists, 4 * (slot->most / slot->list_step));
    }
    plan->scratch = gcomp__max(plan->scratch, gcomp__selection_bytes(gcomp__max(slot->most, any + 32), 0));
}

/* By ranges, or gathered: it depends on the workers, which may change. */
static void gcomp__choose_mean(gcomp__slot *slot, const gcomp_desc *desc)
{
    const size_t world = (size_t)desc->comm.world;
    if (slot->whole) {
        slot->rounds[0] = GCOMP__GATHER;
        slot->bound = gcomp__bound_of(slot->method, &slot->codec, slot->n);
        slot->whole = 0;
    }
    if (gcomp__index_pieces(slot->n) > 1 || !gcomp__wants_shards(desc, slot)) return;
    slot->rounds[0] = GCOMP__SHARE;
    slot->whole = slot->bound;
    slot->bound = 0;
    if (gcomp__is_two_shot(slot)) /* payloads of all ranges */
        slot->whole = gcomp__times(gcomp__range_bound(slot, world), world);
    else slot->most = (slot->method->selector->most)(&slot->codec, slot->n);
}

/* What all workers hold alike, at the beginning of a tensor's state: the warm start of sums. Behind it is each one's momentum. */
static size_t gcomp__shared_floats(const gcomp__slot *slot)
{
    return slot->state_floats - (slot->flags & GCOMP__REMEMBERS ? slot->n : 0);
}

static int gcomp__is_odd(const gcomp__slot *slot)
{
    return slot->flags & GCOMP__TURNS && slot->state[gcomp__shared_floats(slot) - 1] != 0;
}

/* Adds a tensor to the sizes of its codec, and finds its places. */
static void gcomp__place(gcomp__plan *plan, const gcomp_desc *desc, gcomp__slot *slot)
{
    int round;
    const size_t scratch = slot->method->scratch ? (slot->method->scratch)(&slot->codec, slot->n) : 0;
    gcomp__choose_mean(slot, desc);
    slot->at_send = plan->send;
    slot->at_mean = plan->gathered;
    slot->at_local = plan->local;
    plan->send = gcomp__plus(plan->send, slot->bound);
    if (slot->bound) plan->gathered = gcomp__plus(plan->gathered, slot->n);
    plan->local = gcomp__plus(plan->local, slot->local_floats);
    for (round = 0; round < 3; round++) {
        size_t *count = &plan->sums[round][slot->rounds[round]];
        *count = gcomp__plus(*count, slot->sum_count[round]);
    }
    plan->scratch = gcomp__max(plan->scratch, scratch ? gcomp__plus(scratch, 64) : 0);
    if (slot->whole) gcomp__plan_shards(plan, slot, (size_t)desc->comm.world);
    else if (slot->flags & GCOMP__GLOBAL) slot->most = (slot->method->selector->most)(&slot->codec, slot->n);
}

/* Adds a tensor to the sizes that memory is reserved for: of each thing the most that one of its codecs takes. */
static void gcomp__plan_add(gcomp__plan *plan, const gcomp_desc *desc, const gcomp__slot *slot, const gcomp__level *levels)
{
    const gcomp__plan before = *plan;
    size_t *most = (size_t *)(void *)plan, i, j;
    for (i = 0; i < slot->level_count; i++) {
        gcomp__plan with = before;
        gcomp__slot tried = *slot;
        if (slot->level_count > 1) gcomp__take_level(&tried, levels + i);
        gcomp__place(&with, desc, &tried);
        for (j = 0; j < sizeof with / sizeof *most; j++) /* all fields are sizes */
            most[j] = gcomp__max(most[j], ((const size_t *)(const void *)&with)[j]);
    }
    plan->tensors++;
    plan->choosing += slot->level_count > 1;
    plan->elements = gcomp__plus(plan->elements, slot->n);
    plan->fixed = gcomp__plus(plan->fixed, slot->name_bytes + 4 * slot->state_room + 4 * slot->epoch_floats);
    if (slot->level_count > 1) plan->fixed = gcomp__plus(plan->fixed, slot->level_count * sizeof *levels);
    if (slot->keeps) plan->fixed = gcomp__plus(plan->fixed, 4 * slot->n);
    if (slot->stages) plan->fixed = gcomp__plus(plan->fixed, 4 * slot->n);
}

/* A bucket begins in the plan: what it needs only while it is communicated, others need after it. */
static void gcomp__begin_bucket(gcomp__plan *plan)
{
    plan->lists = plan->shards = plan->sum = 0;
    plan->means = plan->gathered;
}

/* All its tensors were added to the plan, which was `before` when it began. The sums of all lie where its shards were. */
static void gcomp__end_bucket(gcomp__plan *plan, const gcomp__plan *before, size_t world, gcomp__bucket *b)
{
    const size_t cut = plan->cut - before->cut;
    b->at_send = before->send;
    b->send = plan->send - before->send;
    plan->widest = gcomp__max(plan->widest, b->send);
    b->at_cut = before->cut;
    b->shards = plan->shards;
    b->sum = plan->sum;
    b->lists = plan->lists;
    plan->packed = gcomp__max(before->packed, gcomp__max(cut, plan->sum));
    plan->cut = gcomp__plus(before->cut, gcomp__max(cut, gcomp__times(plan->sum, world)));
    plan->lists = gcomp__max(plan->lists, before->lists);
    plan->shards = gcomp__max(plan->shards, before->shards);
    plan->sum = gcomp__max(plan->sum, before->sum);
    plan->buckets++;
}

/* Is a bucket with so many elements full? */
static int gcomp__full(const gcomp_desc *desc, size_t elements)
{
    return desc->bucket_bytes && gcomp__times(elements, 4) >= desc->bucket_bytes;
}

/* Bytes in which rank 0 says the next level of each tensor; a checksum stands behind. */
static size_t gcomp__decision_bytes(size_t tensors) { return tensors + 4; }

static size_t gcomp__sum_bytes(const gcomp__plan *plan, int round, unsigned kind)
{
    return gcomp__round_up(gcomp__times(plan->sums[round][kind], gcomp__kind_bytes(kind)), 64);
}

/* Bytes for the maxima of all workers in one round. */
static size_t gcomp__maxima_bytes(const gcomp__plan *plan, size_t world)
{
    size_t count = gcomp__max(gcomp__max(plan->sums[0][GCOMP__MAX], plan->sums[1][GCOMP__MAX]), plan->sums[2][GCOMP__MAX]);
    return world == 1 ? 0 : gcomp__times(gcomp__times(count, 4), world);
}

/* A worker's lists, with their checksum. */
static size_t gcomp__list_bytes(size_t lists) { return lists ? gcomp__plus(lists, 4) : 0; }

/* Bytes for shards: own payloads; shards by tensor, then the sums of all; shards by worker, then the own sums; shards of all;
   lists and lengths, own and of all. */
static size_t gcomp__share_bytes(const gcomp__plan *plan, size_t world)
{
    size_t bytes = gcomp__plus(gcomp__plus(plan->own, plan->cut), plan->packed);
    if (!plan->own) return 0;
    bytes = gcomp__plus(bytes, gcomp__times(gcomp__plus(plan->shards, 2 * GCOMP__LENGTH_BYTES), world));
    return gcomp__plus(bytes, gcomp__times(gcomp__list_bytes(plan->lists), world + 1));
}

/* Bytes of buckets behind the first, and of what came in from each worker for all of them. */
static size_t gcomp__bucket_bytes(const gcomp__plan *plan, size_t world)
{
    return gcomp__plus(gcomp__times(plan->buckets - 1, sizeof(gcomp__bucket)),
                       gcomp__times(plan->buckets, gcomp__times(world, 2 * sizeof(size_t))));
}

/* Bytes for the payloads that come in: of all buckets, until the commit. */
static size_t gcomp__waiting_bytes(const gcomp__plan *plan, size_t world)
{
    return gcomp__times(world, gcomp__round_up(plan->send, 64));
}

/* The same for one bucket after another, with the means of all but the last. */
static size_t gcomp__in_turn_bytes(const gcomp__plan *plan, size_t world)
{
    const size_t means = gcomp__round_up(gcomp__times(plan->means, 4), 64);
    return gcomp__plus(gcomp__times(world, gcomp__round_up(plan->widest, 64)), means);
}

/* Do all buckets receive in one place? Where that saves a quarter: the commit passes over means once more. */
static int gcomp__in_turn(const gcomp__plan *plan, size_t world)
{
    const size_t waiting = gcomp__waiting_bytes(plan, world);
    return gcomp__in_turn_bytes(plan, world) < waiting - waiting / 4;
}

static size_t gcomp__recv_bytes(const gcomp__plan *plan, size_t world)
{
    return gcomp__in_turn(plan, world) ? gcomp__in_turn_bytes(plan, world) : gcomp__waiting_bytes(plan, world);
}

/* Bytes of the step's arena: send, recv, means, sums, maxima, local, buckets, cursors and views, shards. */
static size_t gcomp__arena_bytes(const gcomp__plan *plan, size_t world)
{
    size_t sums = gcomp__plus(gcomp__times(gcomp__plus(plan->local, plan->acc), 4), gcomp__maxima_bytes(plan, world));
    size_t payloads = gcomp__plus(gcomp__round_up(plan->send, 64), gcomp__recv_bytes(plan, world));
    unsigned kind;
    int round;
    for (round = 0; round < 3; round++)
        for (kind = GCOMP__SUM; kind < GCOMP__KINDS; kind++) sums = gcomp__plus(sums, gcomp__sum_bytes(plan, round, kind));
    if (plan->choosing) sums = gcomp__plus(sums, gcomp__times(gcomp__plus(world, 1), gcomp__decision_bytes(plan->tensors)));
    sums = gcomp__plus(sums, gcomp__bucket_bytes(plan, world));
    return gcomp__plus(gcomp__plus(gcomp__plus(payloads, sums), gcomp__share_bytes(plan, world)),
                       gcomp__plus(gcomp__times(world, 3 * sizeof(size_t) + sizeof(gcomp__view)), 64));
}

static size_t gcomp__array_capacity(size_t count)
{
    size_t capacity = 16;
    while (capacity < count) capacity *= 2;
    return capacity;
}

/* An array with room for one more: the same, or a larger copy, NULL without memory. */
static void *gcomp__array_with_room(gcomp__memory *memory, void *array, size_t element)
{
    size_t length = stbds_header(array)->length;
    void *larger;
    if (length < stbds_header(array)->capacity) return array;
    larger = gcomp__array_make(memory, 2 * length, element);
    if (!larger) return NULL;
    memcpy(larger, array, length * element);
    stbds_header(larger)->length = length;
    return larger;
}

/* Place of a name in the sorted index; *found: it is there. */
static size_t gcomp__name_place(const gcomp *gc, const char *name, int *found)
{
    size_t low = 0, high = stbds_arrlenu(gc->by_name);
    *found = 0;
    while (low < high) {
        size_t middle = (low + high) / 2;
        int order = strcmp(gc->tensors[gc->by_name[middle]].name, name);
        if (order == 0) *found = 1;
        if (order < 0) low = middle + 1;
        else high = middle;
    }
    return low;
}

static float *gcomp__zeros(gcomp *gc, size_t n)
{
    float *p = (float *)gcomp__allocate(&gc->memory, gcomp__times(n, 4));
    if (p) memset(p, 0, 4 * n);
    return p;
}

/* What the tensor holds all the time, zeroed; 0 without memory. */
static int gcomp__slot_reserve(gcomp *gc, gcomp__slot *slot, const gcomp__level *levels)
{
    const size_t list = slot->level_count > 1 ? slot->level_count * sizeof *levels : 0;
    slot->name = (char *)gcomp__allocate(&gc->memory, slot->name_bytes);
    if (slot->keeps) slot->residual = gcomp__zeros(gc, slot->n);
    if (slot->state_room) slot->state = gcomp__zeros(gc, slot->state_room);
    if (slot->stages) slot->staging = gcomp__zeros(gc, slot->n);
    if (slot->epoch_floats) slot->epoch_sum = gcomp__zeros(gc, slot->epoch_floats);
    if (list) slot->levels = (gcomp__level *)gcomp__allocate(&gc->memory, list);
    if (slot->levels) memcpy(slot->levels, levels, list);
    return slot->name && (slot->residual || !slot->keeps) && (slot->state || !slot->state_room) &&
           (slot->staging || !slot->stages) && (slot->epoch_sum || !slot->epoch_floats) && (slot->levels || !list);
}

static uint32_t gcomp__crc_codec(const gcomp *gc, uint32_t crc, const gcomp_codec *codec)
{
    char text[256];
    size_t length = gcomp_codec_format(codec, text, sizeof text);
    return (gc->set->common->crc)(crc, (const uint8_t *)text, gcomp__min(length, sizeof text - 1));
}

/* The first tensor of the bucket whose last one is end - 1. */
static size_t gcomp__bucket_first(const gcomp *gc, size_t end)
{
    size_t elements = 0;
    while (end && !gcomp__full(&gc->desc, elements)) elements = gcomp__plus(elements, gc->tensors[--end].n);
    return end;
}

static gcomp__bucket *gcomp__bucket_at(gcomp *gc, size_t k) { return k ? gc->others + (k - 1) : &gc->bucket; }

/* What memory is reserved for. */
static void gcomp__plan_most(gcomp *gc)
{
    size_t end = stbds_arrlenu(gc->tensors), first, i;
    memset(&gc->most, 0, sizeof gc->most);
    do {
        const gcomp__plan before = gc->most;
        gcomp__bucket bucket;
        first = gcomp__bucket_first(gc, end);
        gcomp__begin_bucket(&gc->most);
        for (i = first; i < end; i++) gcomp__plan_add(&gc->most, &gc->desc, gc->tensors + i, gc->tensors[i].levels);
        gcomp__end_bucket(&gc->most, &before, (size_t)gc->desc.comm.world, &bucket);
        end = first;
    } while (end);
}

/* As before the last tensor was added. */
static void gcomp__drop_last(gcomp *gc)
{
    gcomp__slot slot = stbds_arrpop(gc->tensors);
    int found;
    const size_t place = gcomp__name_place(gc, slot.name, &found), left = stbds_arrlenu(gc->tensors) - place;
    memmove(gc->by_name + place, gc->by_name + place + 1, sizeof *gc->by_name * left);
    (void)stbds_arrpop(gc->by_name);
    gcomp__slot_release(gc, &slot);
    gcomp__plan_most(gc);
}

/* The vector that was the only tensor is one of several: by the rules for those it travels uncompressed. */
GCOMP__NOINLINE void gcomp__leave_alone(gcomp *gc)
{
    gcomp__slot *slot = gc->tensors, plain;
    gcomp__level level;
    gcomp__text why = gcomp__text_in(NULL, 0);
    gcomp_tensor tensor;
    memset(&tensor, 0, sizeof tensor);
    tensor.name = slot->name;
    tensor.rows = slot->rows;
    tensor.stack = slot->stack;
    tensor.dtype = slot->dtype;
    (void)gcomp__slot_of(&plain, &level, &gc->desc, &gc->schedule, &tensor, 0, &why); /* as before, and none suits all */
    plain.name = slot->name;
    plain.staging = slot->staging;
    plain.codecs_digest = gcomp__crc_codec(gc, 0, &level.codec);
    slot->name = NULL;
    slot->staging = NULL;
    gcomp__slot_release(gc, slot);
    *slot = plain;
    gcomp__plan_most(gc);
}

GCOMP_API gcomp_result gcomp_add_tensor(gcomp *gc, const gcomp_tensor *tensor)
{
    char reason[GCOMP__SENTENCE];
    gcomp__text why = gcomp__text_in(reason, sizeof reason);
    gcomp__level levels[GCOMP__LEVELS];
    gcomp__slot slot;
    gcomp_result result;
    gcomp__slot *tensors;
    uint32_t *by_name;
    size_t place, i;
    int found, reserved;
    if (!gc) return GCOMP_INVALID_ARGUMENT;
    gc->error[0] = 0;
    if (!tensor) return gcomp__fail(gc, GCOMP_INVALID_ARGUMENT, "tensor is NULL");
    result = gcomp__slot_of(&slot, levels, &gc->desc, &gc->schedule, tensor, stbds_arrlenu(gc->tensors) == 0, &why);
    if (result != GCOMP_OK) return gcomp__fail_tensor(gc, result, tensor->name ? tensor->name : "", reason);
    if (gc->started) return gcomp__fail_tensor(gc, GCOMP_WRONG_STATE, tensor->name, "tensors are added before the first step");
    place = gcomp__name_place(gc, tensor->name, &found);
    if (found) return gcomp__fail_tensor(gc, GCOMP_DUPLICATE_NAME, tensor->name, "a tensor of this name exists");
    if (gc->node) {
        const gcomp_tensor plain = gcomp__node_tensor(tensor);
        result = gcomp_add_tensor(gc->node, &plain);
        if (result != GCOMP_OK) return gcomp__fail(gc, result, gc->node->error);
    }
    tensors = (gcomp__slot *)gcomp__array_with_room(&gc->memory, gc->tensors, sizeof *tensors);
    by_name = (uint32_t *)gcomp__array_with_room(&gc->memory, gc->by_name, sizeof *by_name);
    reserved = gcomp__slot_reserve(gc, &slot, levels);
    if (!tensors || !by_name || !reserved) {
        gcomp__slot_release(gc, &slot);
        if (gc->node) gcomp__drop_last(gc->node);
        if (tensors != gc->tensors) gcomp__array_release(&gc->memory, tensors, sizeof *tensors);
        if (by_name != gc->by_name) gcomp__array_release(&gc->memory, by_name, sizeof *by_name);
        if (gc->memory.misaligned) return gcomp__no_memory(gc, NULL);
        return gcomp__fail_tensor(gc, GCOMP_OUT_OF_MEMORY, tensor->name, "no memory for its name, residual and warm start");
    }
    memcpy(slot.name, tensor->name, slot.name_bytes);
    slot.by_place = (uint32_t)stbds_arrlenu(tensors);
    if (tensors != gc->tensors) gcomp__array_release(&gc->memory, gc->tensors, sizeof *tensors);
    if (by_name != gc->by_name) gcomp__array_release(&gc->memory, gc->by_name, sizeof *by_name);
    gc->tensors = tensors;
    gc->by_name = by_name;
    for (i = 0; i < slot.level_count; i++)
        slot.codecs_digest = gcomp__crc_codec(gc, slot.codecs_digest, &levels[i].codec);
    gcomp__plan_add(&gc->most, &gc->desc, &slot, levels);
    gcomp__place(&gc->plan, &gc->desc, &slot);
    gcomp__drop_room(gc); /* more tensors need more */
    memmove(by_name + place + 1, by_name + place, sizeof *by_name * (stbds_arrlenu(by_name) - place));
    by_name[place] = slot.by_place;
    tensors[stbds_header(tensors)->length++] = slot;
    stbds_header(by_name)->length++;
    if (gc->tensors[0].alone && stbds_arrlenu(gc->tensors) > 1) gcomp__leave_alone(gc);
    return GCOMP_OK;
}

GCOMP_API size_t gcomp_tensor_count(const gcomp *gc) { return gc ? stbds_arrlenu(gc->tensors) : 0; }

GCOMP_API size_t gcomp_tensor_find(const gcomp *gc, const char *name)
{
    size_t place;
    int found;
    if (!gc || !name) return gcomp_tensor_count(gc);
    place = gcomp__name_place(gc, name, &found);
    return found ? gc->by_name[place] : gcomp_tensor_count(gc);
}

GCOMP_API size_t gcomp_tensor_elements(const gcomp *gc, size_t tensor)
{
    return tensor < gcomp_tensor_count(gc) ? gc->tensors[tensor].n : 0;
}

GCOMP_API const char *gcomp_tensor_name(const gcomp *gc, size_t tensor)
{
    return tensor < gcomp_tensor_count(gc) ? gc->tensors[tensor].name : NULL;
}

GCOMP_API void gcomp_tensor_shape(const gcomp *gc, size_t tensor, size_t *rows, size_t *cols, size_t *stack)
{
    const gcomp__slot *slot = tensor < gcomp_tensor_count(gc) ? gc->tensors + tensor : NULL;
    if (rows) *rows = slot ? slot->rows : 0;
    if (cols) *cols = slot ? slot->cols : 0;
    if (stack) *stack = slot ? slot->stack : 0;
}

GCOMP_API int gcomp_rank(const gcomp *gc) { return gc ? gc->desc.comm.rank : 0; }
GCOMP_API int gcomp_world(const gcomp *gc) { return gc ? gc->desc.comm.world : 0; }

GCOMP_API const gcomp_codec *gcomp_tensor_codec(const gcomp *gc, size_t tensor)
{
    return tensor < gcomp_tensor_count(gc) ? &gc->tensors[tensor].codec : NULL;
}

/* Bytes that a worker brings to collectives for a tensor; *most: of payloads, whose length may depend on the gradient. */
static size_t gcomp__brings(const gcomp__slot *slot, int *most)
{
    size_t bytes = gcomp__plus(slot->bound, slot->whole);
    int round;
    *most |= bytes != 0;
    for (round = 0; round < 3; round++)
        bytes = gcomp__plus(bytes, gcomp__times(slot->sum_count[round], gcomp__kind_bytes(slot->rounds[round])));
    return bytes;
}

/* "at most 50768 of 3617280 bytes" */
static void gcomp__say_bytes(gcomp__text *t, size_t bytes, size_t n, int most)
{
    gcomp__say(t, most ? "at most " : "");
    gcomp__say_number(t, bytes);
    gcomp__say(t, " of ");
    gcomp__say_number(t, gcomp__times(n, 4));
    gcomp__say(t, " bytes");
}

static void gcomp__describe_slot(gcomp__text *t, const gcomp__slot *slot)
{
    const size_t shape[3] = {slot->stack, slot->rows, slot->cols};
    size_t i, bytes;
    char codec[256];
    int most = 0;
    gcomp__say(t, slot->name);
    gcomp__say(t, ": ");
    for (i = 0; i < 3; i++) {
        if ((i == 0 || i == 2) && shape[i] == 1) continue;
        if (i == 2 || (i == 1 && shape[0] > 1)) gcomp__say(t, " x ");
        gcomp__say_number(t, shape[i]);
    }
    gcomp__say(t, slot->dtype == GCOMP_F32 ? " fp32, " : slot->dtype == GCOMP_F16 ? " fp16, " : " bf16, ");
    (void)gcomp_codec_format(&slot->codec, codec, sizeof codec);
    gcomp__say(t, codec);
    if (slot->why) {
        gcomp__say(t, " (");
        gcomp__say(t, slot->why);
        gcomp__say_char(t, ')');
    }
    if (slot->level_count > 1) {
        gcomp__say(t, " (codec ");
        gcomp__say_number(t, slot->level + 1);
        gcomp__say(t, " of ");
        gcomp__say_number(t, slot->level_count);
        gcomp__say(t, " of the schedule)");
    }
    if (slot->flags & GCOMP__BY_EPOCHS) gcomp__say(t, " (more in the first epochs)");
    gcomp__say(t, ", ");
    bytes = gcomp__brings(slot, &most);
    gcomp__say_bytes(t, bytes, slot->n, most);
    gcomp__say_char(t, '\n');
}

GCOMP_API size_t gcomp_describe(const gcomp *gc, char *text, size_t capacity)
{
    gcomp__text t = gcomp__text_in(text, capacity);
    size_t i, bytes = 0, n = 0;
    uint64_t tenths;
    int most = 0;
    if (!gc) return 0;
    for (i = 0; i < stbds_arrlenu(gc->tensors); i++) {
        gcomp__describe_slot(&t, gc->tensors + i);
        bytes = gcomp__plus(bytes, gcomp__brings(gc->tensors + i, &most));
        n = gcomp__plus(n, gc->tensors[i].n);
    }
    gcomp__say_number(&t, i);
    gcomp__say(&t, i == 1 ? " tensor: " : " tensors: ");
    gcomp__say_bytes(&t, bytes, n, most);
    gcomp__say(&t, " a step, ");
    tenths = bytes ? 40 * (uint64_t)n / bytes : 10;
    gcomp__say_number(&t, tenths / 10);
    gcomp__say_char(&t, '.');
    gcomp__say_number(&t, tenths % 10);
    gcomp__say(&t, " times less\n");
    return t.length;
}

GCOMP_API const float *gcomp_residual(const gcomp *gc, size_t tensor)
{
    return tensor < gcomp_tensor_count(gc) ? gc->tensors[tensor].residual : NULL;
}

GCOMP_API uint64_t gcomp_step_number(const gcomp *gc) { return gc ? gc->step : 0; }
GCOMP_API const char *gcomp_error(const gcomp *gc) { return gc ? gc->error : "gc is NULL"; }
GCOMP_API size_t gcomp_memory_used(const gcomp *gc)
{
    return gc ? gc->memory.used + gcomp_memory_used(gc->node) : 0;
}

/* Bytes of the last sum of a machine. */
static size_t gcomp__machine_bytes(size_t elements, size_t tensors)
{
    return gcomp__times(gcomp__plus(elements, GCOMP__WORD + tensors), 4);
}

/* What a tensor adds to a plan; *elements: its own are added. Not inlined: its frame is large. */
GCOMP__NOINLINE gcomp_result gcomp__plan_tensor(gcomp__plan *plan, const gcomp_desc *desc, const gcomp__schedule *schedule,
                                                const gcomp_tensor *tensor, int alone, size_t *elements)
{
    gcomp__text why = gcomp__text_in(NULL, 0);
    gcomp__level levels[GCOMP__LEVELS];
    gcomp__slot slot;
    GCOMP__TRY(gcomp__slot_of(&slot, levels, desc, schedule, tensor, alone, &why));
    gcomp__plan_add(plan, desc, &slot, levels);
    *elements = gcomp__plus(*elements, slot.n);
    return GCOMP_OK;
}

/* Of a node's sums: all tensors uncompressed. SIZE_MAX: something is invalid. */
static size_t gcomp__memory_of(const gcomp_desc *desc, const gcomp_tensor *tensors, size_t count, int of_node)
{
    gcomp__text why = gcomp__text_in(NULL, 0);
    const gcomp__set *set;
    gcomp__schedule schedule;
    gcomp__plan plan, before;
    gcomp__bucket bucket;
    gcomp_desc d = *desc;
    size_t i, j, capacity, total, elements = 0;
    if (gcomp__resolve_desc(&d, &schedule, &set, &why) != GCOMP_OK) return SIZE_MAX;
    memset(&plan, 0, sizeof plan);
    before = plan;
    for (i = count; i-- > 0;) {
        const gcomp_tensor tensor = of_node ? gcomp__node_tensor(tensors + i) : tensors[i];
        if (gcomp__plan_tensor(&plan, &d, &schedule, &tensor, count == 1, &elements) != GCOMP_OK) return SIZE_MAX;
        for (j = 0; j < i; j++)
            if (tensors[j].name && !strcmp(tensors[i].name, tensors[j].name)) return SIZE_MAX;
        if (!i || !gcomp__full(&d, elements)) continue;
        gcomp__end_bucket(&plan, &before, (size_t)d.comm.world, &bucket);
        before = plan;
        gcomp__begin_bucket(&plan);
        elements = 0;
    }
    gcomp__end_bucket(&plan, &before, (size_t)d.comm.world, &bucket);
    capacity = gcomp__array_capacity(count);
    total = gcomp__plus(sizeof(gcomp), gcomp__frames_bytes((size_t)d.comm.world));
    total = gcomp__plus(total, gcomp__plus(gcomp__array_bytes(capacity, sizeof(gcomp__slot)),
                                           gcomp__array_bytes(capacity, sizeof(uint32_t))));
    total = gcomp__plus(total, plan.fixed);
    if (d.node.world > 1) total = gcomp__plus(total, gcomp__machine_bytes(plan.elements, count));
    if (d.node.rank) return total; /* takes no steps of its own */
    return gcomp__plus(total, gcomp__plus(plan.scratch, gcomp__arena_bytes(&plan, (size_t)d.comm.world)));
}

GCOMP_API size_t gcomp_memory_needed(const gcomp_desc *desc, const gcomp_tensor *tensors, size_t count)
{
    size_t total;
    if (!desc || (!tensors && count)) return 0;
    total = gcomp__memory_of(desc, tensors, count, 0);
    if (desc->node.world > 1) {
        const gcomp_desc node = gcomp__node_desc(desc);
        total = gcomp__plus(total, gcomp__memory_of(&node, tensors, count, 1));
    }
    return total == SIZE_MAX ? 0 : total;
}

/* The scratch that encoding needs; also for users who never take a step. */
static gcomp_result gcomp__reserve_scratch(gcomp *gc)
{
    if (gc->scratch.at || !gc->most.scratch) return GCOMP_OK;
    if (gcomp__room_take(&gc->memory, &gc->scratch, gc->most.scratch)) return GCOMP_OK;
    return gcomp__no_memory(gc, "no memory for the scratch of encoding");
}

/* With two levels: where the gradients of the machine are added up. */
static gcomp_result gcomp__reserve_floats(gcomp *gc)
{
    size_t bytes;
    if (!gc->node || gc->floats.at) return GCOMP_OK;
    bytes = gcomp__machine_bytes(gc->most.elements, stbds_arrlenu(gc->tensors));
    if (gcomp__room_take(&gc->memory, &gc->floats, bytes)) return GCOMP_OK;
    return gcomp__no_memory(gc, "no memory for the sums of the machine");
}

/* Finds the places of buckets and tensors in the step's buffers, by the codecs they have now. */
static void gcomp__place_all(gcomp *gc)
{
    size_t end = stbds_arrlenu(gc->tensors), i;
    gcomp__bucket without; /* one behind the first, before there is memory for it */
    memset(&gc->plan, 0, sizeof gc->plan);
    do {
        const gcomp__plan before = gc->plan;
        gcomp__bucket *b = gc->plan.buckets && !gc->others ? &without : gcomp__bucket_at(gc, gc->plan.buckets);
        b->first = gcomp__bucket_first(gc, end);
        b->end = end;
        gcomp__begin_bucket(&gc->plan);
        for (i = b->first; i < end; i++) gcomp__place(&gc->plan, &gc->desc, gc->tensors + i);
        gcomp__end_bucket(&gc->plan, &before, (size_t)gc->desc.comm.world, b);
        end = b->first;
    } while (end);
}

static gcomp_result gcomp__reserve(gcomp *gc)
{
    size_t world = (size_t)gc->desc.comm.world, k;
    const int had = gc->scratch.at != NULL;
    uint8_t *at;
    unsigned kind;
    int round;
    GCOMP__TRY(gcomp__reserve_scratch(gc));
    if (gc->arena.at) return GCOMP_OK;
    gcomp__plan_most(gc);
    gc->others = NULL;
    if (!gcomp__room_take(&gc->memory, &gc->arena, gcomp__arena_bytes(&gc->most, world))) {
        if (!had) gcomp__room_give(&gc->memory, &gc->scratch);
        return gcomp__no_memory(gc, "no memory for the buffers of a step");
    }
    gc->send = at = gc->arena.at;
    gc->recv = at += gcomp__round_up(gc->most.send, 64);
    at += gcomp__recv_bytes(&gc->most, world);
    gc->means = gcomp__in_turn(&gc->most, world) ? (float *)(void *)at - gcomp__round_up(gc->most.means, 16) : NULL;
    for (round = 0; round < 3; round++) { /* aligned: kernels add up lines of them */
        for (kind = GCOMP__SUM; kind < GCOMP__KINDS; kind++) {
            gc->sums[round][kind] = at;
            at += gcomp__sum_bytes(&gc->most, round, kind);
        }
    }
    memset(gc->sums[0][GCOMP__SUM], 0, (size_t)(at - gc->sums[0][GCOMP__SUM]));
    gc->views = (gcomp__view *)(void *)at;
    at += world * sizeof(gcomp__view);
    gc->others = (gcomp__bucket *)(void *)at;
    at += (gc->most.buckets - 1) * sizeof(gcomp__bucket);
    gc->cursors = (size_t *)(void *)at;
    gc->sent = gc->cursors + world;
    gc->places = gc->sent + world;
    at += 3 * world * sizeof(size_t);
    for (k = 0; k < gc->most.buckets; k++) {
        gcomp__bucket *b = gcomp__bucket_at(gc, k);
        b->bytes = (size_t *)(void *)at;
        b->came = b->bytes + world;
        at += 2 * world * sizeof(size_t);
    }
    gc->local = (float *)(void *)at;
    memset(gc->local, 0, 4 * gc->most.local); /* kernels read whole lines of it */
    at += 4 * gc->most.local;
    gc->acc = (float *)(void *)at;
    at += 4 * gc->most.acc;
    gc->maxima = (float *)(void *)at;
    at += gcomp__maxima_bytes(&gc->most, world);
    gc->decisions = at + gcomp__share_bytes(&gc->most, world);
    gc->own = at;
    gc->cut = at += gc->most.own;
    gc->packed = at += gc->most.cut;
    gc->shards = at += gc->most.packed;
    gc->lengths = at += world * gc->most.shards;
    gc->lists = at + 2 * world * (gc->most.own ? GCOMP__LENGTH_BYTES : 0);
    return GCOMP_OK;
}

/* gc, and not inside a step, nor inside that of its machine. */
static gcomp_result gcomp__need_idle(gcomp *gc)
{
    if (!gc) return GCOMP_INVALID_ARGUMENT;
    gc->error[0] = 0;
    if (gc->phase == GCOMP__IDLE && (!gc->node || gc->node->phase == GCOMP__IDLE)) return GCOMP_OK;
    return gcomp__fail(gc, GCOMP_WRONG_STATE, "a step is under way: commit or abort it first");
}

static gcomp_result gcomp__enter_idle(gcomp *gc)
{
    GCOMP__TRY(gcomp__need_idle(gc));
    if (gcomp__mode_fits()) return GCOMP_OK;
    return gcomp__fail(gc, GCOMP_FLOAT_MODE, gcomp_result_string(GCOMP_FLOAT_MODE));
}

/* Ends a step, and that of the machine, which a callback may have left by a jump. */
static void gcomp__leave_step(gcomp *gc)
{
    for (; gc; gc = gc->node) {
        gcomp__settle(gc);
        gc->phase = GCOMP__IDLE;
    }
}

/* Memory for steps, and all places in it. */
static gcomp_result gcomp__make_room(gcomp *gc)
{
    const int had = gc->arena.at != NULL;
    const gcomp_result result = gcomp__reserve(gc);
    if (!had) gcomp__place_all(gc); /* without memory too: a frame is sent all the same */
    return result;
}

GCOMP_API gcomp_result gcomp_prepare(gcomp *gc)
{
    gcomp_result result;
    GCOMP__TRY(gcomp__enter_idle(gc));
    GCOMP__TRY(gcomp__reserve_floats(gc));
    result = gc->node ? gcomp__make_room(gc->node) : GCOMP_OK;
    if (result != GCOMP_OK) return gcomp__fail(gc, result, gc->node->error);
    return gc->desc.node.rank ? GCOMP_OK : gcomp__make_room(gc);
}

static void gcomp__forget(gcomp__slot *slot)
{
    if (slot->residual) memset(slot->residual, 0, 4 * slot->n);
    if (slot->state) memset(slot->state, 0, 4 * slot->state_room);
}

/* The tensor goes on with another codec of its list. The residual stays. What a method keeps of each matrix (powersgd's Q, a
   column after another) is cut, or goes on with zeros, which are drawn anew; another method begins anew, and so does a state of
   more parts and another size. */
static void gcomp__switch(gcomp__slot *slot, size_t to)
{
    const gcomp__level *level = slot->levels + to;
    const size_t had = slot->state_floats / slot->stack, has = level->state_floats / slot->stack;
    const unsigned more = (slot->flags | level->flags) & (GCOMP__TURNS | GCOMP__REMEMBERS | GCOMP__ONE_KEY);
    size_t i;
    if (slot->state && (level->method != slot->method || (more && has != had))) memset(slot->state, 0, 4 * slot->state_room);
    else if (has < had) {
        for (i = 1; i < slot->stack; i++) memmove(slot->state + i * has, slot->state + i * had, 4 * has);
    } else if (has > had) {
        for (i = slot->stack; i-- > 0;) {
            memmove(slot->state + i * has, slot->state + i * had, 4 * had);
            memset(slot->state + i * has + had, 0, 4 * (has - had));
        }
    }
    slot->level = slot->next = to;
    gcomp__take_level(slot, level);
}

/* All tensors go to the levels that are next; their places in the buffers are others then. */
static void gcomp__switch_all(gcomp *gc)
{
    size_t i;
    for (i = 0; i < stbds_arrlenu(gc->tensors); i++) {
        gcomp__slot *slot = gc->tensors + i;
        if (slot->next == slot->level) continue;
        gcomp__switch(slot, slot->next);
        gc->stats.switches++;
    }
    gcomp__place_all(gc);
}

/* The schedule goes on with what all workers know, and nothing that rank 0 has measured. */
static void gcomp__begin_pace(gcomp *gc, size_t level, int begun, uint32_t epoch, float rate)
{
    size_t i;
    memset(&gc->pace, 0, sizeof gc->pace);
    gc->pace.level = gc->pace.to = level;
    gc->pace.begun = gc->pace.partial = begun;
    gc->pace.epoch = epoch;
    gc->pace.rate = rate;
    for (i = 0; i < stbds_arrlenu(gc->tensors); i++) {
        gc->tensors[i].norm = 0;
        if (gc->tensors[i].epoch_sum) memset(gc->tensors[i].epoch_sum, 0, 4 * gc->tensors[i].epoch_floats);
    }
}

/* All lists begin at their first codec, and the schedule with nothing that it knows. */
static void gcomp__restart_lists(gcomp *gc)
{
    size_t i;
    for (i = 0; i < stbds_arrlenu(gc->tensors); i++) gc->tensors[i].next = 0;
    gcomp__switch_all(gc);
    gcomp__begin_pace(gc, 0, 0, 0, 0);
}

/* gc, and the number of a tensor, before anything else. */
static gcomp_result gcomp__enter(gcomp *gc, size_t tensor)
{
    if (!gc) return GCOMP_INVALID_ARGUMENT;
    gc->error[0] = 0;
    if (!gcomp__mode_fits()) return gcomp__fail(gc, GCOMP_FLOAT_MODE, gcomp_result_string(GCOMP_FLOAT_MODE));
    return tensor < stbds_arrlenu(gc->tensors) ? GCOMP_OK : gcomp__fail(gc, GCOMP_INVALID_ARGUMENT, "no tensor of this number");
}

GCOMP_API gcomp_result gcomp_reset(gcomp *gc, size_t tensor)
{
    GCOMP__TRY(gcomp__enter_idle(gc));
    GCOMP__TRY(gcomp__enter(gc, tensor));
    gcomp__forget(gc->tensors + tensor);
    return GCOMP_OK;
}

GCOMP_API gcomp_result gcomp_restart(gcomp *gc, uint64_t step)
{
    size_t i;
    if (!gc) return GCOMP_INVALID_ARGUMENT;
    gc->error[0] = 0;
    gcomp__leave_step(gc);
    for (i = 0; i < stbds_arrlenu(gc->tensors); i++) gcomp__forget(gc->tensors + i);
    gcomp__restart_lists(gc);
    gc->last = GCOMP_OK;
    gc->untaught = 0;
    gc->mean_digest = 0;
    gc->step = step;
    return GCOMP_OK;
}

static gcomp__call gcomp__call_in(const gcomp *gc, const gcomp__method *method)
{
    gcomp__call call;
    memset(&call, 0, sizeof call);
    call.set = gc->set;
    call.kernels = gcomp__kernels_of(gc->set, method);
    call.scratch = gc->scratch.at;
    call.scratch_bytes = gc->scratch.bytes;
    call.parallel = gc->desc.parallel;
    return call;
}

static gcomp_input gcomp__input_in(const gcomp *gc, const gcomp__slot *slot, const void *grad, uint64_t step)
{
    gcomp_input in;
    memset(&in, 0, sizeof in);
    in.grad = grad;
    in.scale = 1;
    in.residual = slot->residual;
    in.rows = slot->n;
    in.cols = 1;
    in.key = gcomp_key_make(gc->desc.seed, step, (uint32_t)(slot - gc->tensors), (uint32_t)gc->desc.comm.rank);
    return in;
}

GCOMP_API gcomp_result gcomp_compress(gcomp *gc, size_t tensor, uint64_t step, const float *grad, void *payload,
                                      size_t capacity, size_t *length)
{
    gcomp__slot *slot;
    gcomp__call call;
    gcomp_input in;
    gcomp_result result;
    GCOMP__TRY(gcomp__enter(gc, tensor));
    slot = gc->tensors + tensor;
    if (!grad || !payload || !length)
        return gcomp__fail_tensor(gc, GCOMP_INVALID_ARGUMENT, slot->name, "grad, payload or length is NULL");
    GCOMP__TRY(gcomp__reserve_scratch(gc));
    call = gcomp__call_in(gc, slot->method);
    in = gcomp__input_in(gc, slot, grad, step);
    result = gcomp__encode_as(&call, slot->method, &slot->codec, &in, slot->n, (uint8_t *)payload, capacity, length);
    if (result == GCOMP_NOT_FINITE) gc->stats.not_finite++;
    if ((result == GCOMP_OK || result == GCOMP_NOT_FINITE) && !gc->desc.no_checksum)
        gcomp__seal(gc->set, (uint8_t *)payload, *length);
    return result == GCOMP_OK ? result : gcomp__fail_tensor(gc, result, slot->name, gcomp_result_string(result));
}

/* residual <- grad + residual - own, and grad <- mean, all payloads being valid; `like`: NULL, or one of them, opened. */
GCOMP__NOINLINE void gcomp__commit_payloads(const gcomp__call *call, gcomp__slot *slot, float *grad, const void *own,
                                            size_t own_length, const void *const *payloads, const size_t *lengths, size_t count,
                                            const gcomp__view *like)
{
    gcomp__sink sink = gcomp__sink_to(GCOMP__COMMIT, NULL, slot->n);
    gcomp__view own_view, views[8];
    size_t w;
    sink.grad = grad;
    sink.residual = slot->residual;
    if (own) gcomp__open_valid(call->set, &own_view, like, own, own_length, slot->n);
    if (own) sink.own = &own_view;
    if (own && count >= 1 && count <= 8) { /* one pass */
        gcomp__call rest = *call;
        int alike = 1;
        sink.own_at = count;
        for (w = 0; w < count; w++) {
            gcomp__open_valid(call->set, views + w, &own_view, payloads[w], lengths[w], slot->n);
            views[w].list = gcomp__list_room(&rest, views + w);
            alike = alike && views[w].method == own_view.method;
            if (payloads[w] == own) sink.own_at = w;
        }
        if (alike) {
            sink.views = views;
            sink.count = count;
            sink.weight = 1.0f / (float)count;
            sink.y = grad;
            gcomp__decode_with(&rest, &sink);
            return;
        }
    }
    sink.own_at = 0;
    if (own && slot->residual) gcomp__decode_with(call, &sink);
    if (!own && slot->residual) gcomp__absorb_all(call, &sink, slot->n);
    if (count) gcomp__add_all(call, payloads, lengths, count, grad, slot->n);
}

/* Are valid payloads of the codec? */
static gcomp_result gcomp__match(const gcomp_codec *codec, const void *const *payloads, size_t count, size_t n)
{
    uint8_t header[GCOMP__HEADER];
    size_t w;
    gcomp__put_header(header, gcomp__method_of(codec->method), codec, 0, n, 0);
    for (w = 0; w < count; w++) {
        const uint8_t *p = (const uint8_t *)payloads[w];
        if (p[5] != header[5] || p[7] != header[7] || memcmp(p + 24, header + 24, 4) != 0) return GCOMP_CODEC_MISMATCH;
    }
    return GCOMP_OK;
}

/* Checks a payload: valid, and of the codec. */
static gcomp_result gcomp__check_as(const gcomp *gc, const gcomp_codec *codec, size_t n, const void *payload, size_t length,
                                    gcomp__view *view)
{
    GCOMP__TRY(gcomp__check_payload(gc->set, view, payload, length, n));
    return gcomp__match(codec, &payload, 1, n);
}

/* The same for a tensor. */
static gcomp_result gcomp__check_for(const gcomp *gc, const gcomp__slot *slot, const void *payload, size_t length)
{
    gcomp__view view;
    return gcomp__check_as(gc, &slot->codec, slot->n, payload, length, &view);
}

GCOMP_API gcomp_result gcomp_commit(gcomp *gc, size_t tensor, float *grad, const void *own, size_t own_length,
                                    const void *const *payloads, const size_t *lengths, size_t count)
{
    gcomp_result result = GCOMP_OK;
    gcomp__slot *slot;
    gcomp__call call;
    gcomp__view first;
    uint64_t mode;
    size_t w;
    GCOMP__TRY(gcomp__enter(gc, tensor));
    slot = gc->tensors + tensor;
    if (!grad || (count && (!payloads || !lengths)))
        return gcomp__fail_tensor(gc, GCOMP_INVALID_ARGUMENT, slot->name, "grad, payloads or lengths is NULL");
    if (slot->flags & GCOMP__REMEMBERS)
        return gcomp__fail_tensor(gc, GCOMP_NEEDS_ROUNDS, slot->name, gcomp_result_string(GCOMP_NEEDS_ROUNDS));
    mode = gcomp__fp_enter();
    call = gcomp__call_in(gc, slot->method);
    if (count) result = gcomp__check_all(&call, payloads, lengths, count, slot->n, &first);
    if (result == GCOMP_OK) result = gcomp__match(&slot->codec, payloads, count, slot->n);
    for (w = 0; own && w < count && payloads[w] != own; w++) {}
    if (result == GCOMP_OK && own && (w == count || lengths[w] != own_length))
        result = gcomp__check_for(gc, slot, own, own_length);
    if (result == GCOMP_OK && !own && slot->residual) { /* who has encoded it knows that it is finite */
        const gcomp_input in = gcomp__plain_input(grad);
        if (!gcomp__all_finite(&call, &in, slot->n)) result = GCOMP_NOT_FINITE, gc->stats.not_finite++;
    }
    if (result == GCOMP_OK)
        gcomp__commit_payloads(&call, slot, grad, own, own_length, payloads, lengths, count, count ? &first : NULL);
    gcomp__fp_leave(mode);
    return result == GCOMP_OK ? result : gcomp__fail_tensor(gc, result, slot->name, gcomp_result_string(result));
}

GCOMP_API gcomp_result gcomp_give_back(gcomp *gc, size_t tensor, const void *payload, size_t length)
{
    gcomp_result result;
    gcomp__slot *slot;
    gcomp_exec exec;
    uint64_t mode;
    GCOMP__TRY(gcomp__enter(gc, tensor));
    slot = gc->tensors + tensor;
    if (!payload) return gcomp__fail_tensor(gc, GCOMP_INVALID_ARGUMENT, slot->name, "payload is NULL");
    if (!slot->residual) return gcomp__fail_tensor(gc, GCOMP_WRONG_STATE, slot->name, "it keeps no residual to give back to");
    memset(&exec, 0, sizeof exec);
    exec.isa = gc->desc.isa;
    exec.parallel = gc->desc.parallel;
    mode = gcomp__fp_enter();
    result = gcomp__check_for(gc, slot, payload, length);
    if (result == GCOMP_OK) result = gcomp_decode_add(payload, length, 1, slot->residual, slot->n, &exec);
    gcomp__fp_leave(mode);
    return result == GCOMP_OK ? result : gcomp__fail_tensor(gc, result, slot->name, gcomp_result_string(result));
}

/* ------------------------------------------------------------------------------------------------
   >>shards - the mean made by ranges of elements, each added by one worker for all

   A payload is cut by ranges, one a worker, into payloads of the same method with floats as values. alltoallv takes each to the
   owner of its range, who adds those of all workers in rank order, as whoever gathers them does: the same bits. All gather the
   sums, each sparse or dense, whichever is shorter. A stage is one request for all tensors, in its own round:
     lengths of the shards, answers, shards, lists, lengths of the sums (totals), sums
   A length has 16 bytes: bytes to come (64 bit), 8 status (32 bit), 12 CRC-32C of the 12 before. A length of a shard is seen by
   its receiver alone, who cannot take part in what follows if it is bad: an answer, a length of 0 bytes, tells all whether each
   can. With the totals an owner that could not add says so too. After a status that is not 0 all stop.
   Lists are of GLOBAL methods, that apply only the k largest of all sums: of the k largest in its range an owner lists the key of
   every m-th, m about sqrt(k). Merged, the lists give a key that the k largest of all reach, and how many of an owner can:
   together fewer than k + (world + 1) m. A list: CRC-32C of the rest; k / m keys a tensor, falling, then zeros.
   In the two-shot form a shard is a payload of the range by itself, with the tensor's codec; its owner adds them to its own part
   of p, and the sum goes out as one payload more. The chapter's words are kept for it: shards, sums.
   ------------------------------------------------------------------------------------------------ */

enum { GCOMP__LENGTHS, GCOMP__ANSWERS, GCOMP__SHARDS, GCOMP__LISTS, GCOMP__TOTALS, GCOMP__SUMS, GCOMP__STAGES };

static int gcomp__shares(const gcomp__slot *slot) { return slot->grad && slot->whole; }

/* The bucket that is communicated, or committed. */
static gcomp__bucket *gcomp__now_at(gcomp *gc) { return gcomp__bucket_at(gc, gc->turn); }

/* Where a payload ends is in its header. */
static gcomp_result gcomp__payload_length(const uint8_t *payload, size_t left, size_t *length)
{
    uint64_t body;
    if (left < GCOMP__HEADER) return GCOMP_TRUNCATED;
    body = gcomp__get64(payload + 16);
    if (body > left - GCOMP__HEADER) return GCOMP_TRUNCATED;
    *length = GCOMP__HEADER + (size_t)body;
    return GCOMP_OK;
}

/* "rank 1, tensor 'fc1': the payload was damaged on its way" */
static void gcomp__blame(gcomp *gc, gcomp_result result, size_t w, const gcomp__slot *slot)
{
    gcomp__text t;
    if (gc->late_error != GCOMP_OK) return;
    gc->late_error = result;
    t = gcomp__sentence(gc);
    gcomp__say(&t, "rank ");
    gcomp__say_number(&t, w);
    gcomp__say(&t, ", ");
    gcomp__say_tensor(&t, slot->name);
    gcomp__say(&t, ": ");
    gcomp__say(&t, gcomp_result_string(result));
}

static void gcomp__put_length(const gcomp *gc, uint8_t *to, size_t bytes, gcomp_result status)
{
    gcomp__put64(to, bytes);
    gcomp__put32(to + 8, (uint32_t)(-(int)status));
    gcomp__put32(to + 12, (gc->set->common->crc)(0, to, 12));
}

static void gcomp__all_sizes(const gcomp *gc, size_t *sizes, size_t bytes)
{
    size_t w;
    for (w = 0; w < (size_t)gc->desc.comm.world; w++) sizes[w] = bytes;
}

static void gcomp__sizes_of(const gcomp *gc, size_t *sizes, const uint8_t *lengths)
{
    size_t w;
    for (w = 0; w < (size_t)gc->desc.comm.world; w++) sizes[w] = (size_t)gcomp__get64(lengths + w * GCOMP__LENGTH_BYTES);
}

static gcomp_codec gcomp__shard_codec(const gcomp__slot *slot)
{
    gcomp_codec codec = slot->codec;
    if (gcomp__is_two_shot(slot)) return codec;
    codec.value = gcomp__row_none.wire;
    memset(codec.value_param, 0, sizeof codec.value_param);
    return codec;
}

/* A payload of chosen elements of a range. */
static gcomp_result gcomp__put_shard(const gcomp *gc, const gcomp__slot *slot, const gcomp__selection *s, uint8_t *to,
                                     size_t capacity, size_t *length)
{
    const gcomp_codec codec = gcomp__shard_codec(slot);
    const gcomp__call call = gcomp__call_in(gc, slot->method);
    size_t bytes = 0;
    GCOMP__TRY(gcomp__sparse_write(&call, &codec, s, to + GCOMP__HEADER, capacity - GCOMP__HEADER, &bytes));
    gcomp__put_header(to, slot->method, &codec, 0, s->n, bytes);
    *length = GCOMP__HEADER + bytes;
    if (!gc->desc.no_checksum) gcomp__seal(gc->set, to, *length);
    return GCOMP_OK;
}

/* The own payload of a tensor, in shards. */
GCOMP__NOINLINE gcomp_result gcomp__cut(gcomp *gc, const gcomp__slot *slot)
{
    const gcomp__call call = gcomp__call_in(gc, slot->method);
    const gcomp_input in = gcomp__plain_input(NULL);
    const size_t world = (size_t)gc->desc.comm.world;
    gcomp__selection s = gcomp__selection_in(&call, &in, 0, slot->most);
    uint8_t *to = gc->cut + slot->at_cut;
    gcomp__view view;
    unsigned flags;
    size_t w, total, length = 0;
    GCOMP__TRY(gcomp__open_payload(gc->set, &view, gc->own + slot->at_own, slot->length, slot->n, &flags));
    total = gcomp__sparse_read(&view, s.index, s.value);
    for (w = 0; w < world; w++, to += length) {
        const size_t begin = gcomp__range(slot->n, world, w), end = gcomp__range(slot->n, world, w + 1);
        for (s.count = 0; s.count < total && s.index[s.count] < end; s.count++) s.index[s.count] -= (uint32_t)begin;
        s.n = end - begin;
        GCOMP__TRY(gcomp__put_shard(gc, slot, &s, to, GCOMP__HEADER + 10 + s.n / 8 + 4 * s.count, &length));
        total -= s.count;
        s.index += s.count;
        s.value += s.count;
    }
    return GCOMP_OK;
}

/* The payload of a range with a key of its own; the mean of the own range has number `world`. */
static gcomp_result gcomp__put_range(const gcomp *gc, const gcomp__slot *slot, const gcomp_input *in, size_t n, size_t w,
                                     uint8_t *to, size_t *length)
{
    const gcomp__call call = gcomp__call_in(gc, slot->method);
    const size_t capacity = gcomp__bound_of(slot->method, &slot->codec, n);
    gcomp_input part = *in;
    part.key.own = gcomp__philox_word(in->key.own, 0, GCOMP__PURPOSE_RANGE, (uint32_t)w);
    GCOMP__TRY(gcomp__encode_as(&call, slot->method, &slot->codec, &part, n, to, capacity, length));
    if (!gc->desc.no_checksum) gcomp__seal(gc->set, to, *length);
    return GCOMP_OK;
}

/* Whoever adds a range takes its own part of it as it is; a vote is a vote. */
static int gcomp__adds_own(const gcomp__slot *slot) { return gcomp__is_two_shot(slot) && !(slot->flags & GCOMP__MAJORITY); }

/* What a range has of a tensor in a step. */
static gcomp__work gcomp__work_at(const gcomp__work *work, size_t begin, size_t end)
{
    gcomp__work part = *work;
    part.n = end - begin;
    part.in.grad = (const float *)work->in.grad + begin; /* floats: others have been widened */
    if (work->in.residual) part.in.residual = work->in.residual + begin;
    if (work->residual) part.residual = work->residual + begin;
    part.y = work->y + begin;
    return part;
}

/* The payloads of the ranges of others; p / world of the own one. */
GCOMP__NOINLINE gcomp_result gcomp__encode_ranges(gcomp *gc, gcomp__slot *slot, const gcomp__work *work)
{
    const size_t world = (size_t)gc->desc.comm.world, me = (size_t)gc->desc.comm.rank;
    size_t w, length;
    slot->length = 0;
    for (w = 0; w < world; w++, slot->length += length) {
        gcomp__work part = gcomp__work_at(work, gcomp__range(slot->n, world, w), gcomp__range(slot->n, world, w + 1));
        length = 0;
        if (w == me && gcomp__adds_own(slot)) {
            part.sums[0] = gc->acc + slot->at_acc;
            GCOMP__TRY(gcomp__none_make(&part, 0));
        } else GCOMP__TRY(gcomp__put_range(gc, slot, &part.in, part.n, w, gc->own + slot->at_own + slot->length, &length));
    }
    return GCOMP_OK;
}

/* Shards of all tensors of the bucket together for each worker, and their lengths. */
static void gcomp__pack_shards(gcomp *gc)
{
    const size_t world = (size_t)gc->desc.comm.world;
    const gcomp__bucket *b = gcomp__now_at(gc);
    uint8_t *to = gc->packed, *from;
    size_t w, i;
    for (i = b->first; i < b->end; i++) gc->tensors[i].walk = 0;
    for (w = 0; w < world; w++) {
        const uint8_t *begin = to;
        for (i = b->first; i < b->end; i++) {
            gcomp__slot *slot = gc->tensors + i;
            size_t length;
            if (!gcomp__shares(slot) || (w == (size_t)gc->desc.comm.rank && gcomp__adds_own(slot))) continue;
            from = (gcomp__is_two_shot(slot) ? gc->own + slot->at_own : gc->cut + slot->at_cut) + slot->walk;
            length = GCOMP__HEADER + (size_t)gcomp__get64(from + 16);
            memcpy(to, from, length);
            slot->walk += length;
            to += length;
        }
        gcomp__put_length(gc, gc->lengths + w * GCOMP__LENGTH_BYTES, (size_t)(to - begin), GCOMP_OK);
    }
    gcomp__all_sizes(gc, gc->sent, GCOMP__LENGTH_BYTES);
    gcomp__all_sizes(gc, gc->came, GCOMP__LENGTH_BYTES);
}

/* The next payload in what worker w sent, of a range of `n` elements: sparse, or if that may be dense. */
static gcomp_result gcomp__next_shard(gcomp *gc, const gcomp__slot *slot, size_t w, const uint8_t *from, size_t n, int dense,
                                      gcomp__view *view)
{
    const uint8_t *p = from + gc->places[w];
    gcomp_codec codec = gcomp__shard_codec(slot);
    size_t length = 0;
    GCOMP__TRY(gcomp__payload_length(p, gc->came[w] - gc->places[w], &length));
    dense = dense && slot->method->selector && p[5] == gcomp__row_none.wire;
    if (dense) {
        memset(&codec, 0, sizeof codec);
        codec.method = gcomp__row_none.wire;
    }
    GCOMP__TRY(gcomp__check_as(gc, &codec, n, p, length, view));
    if (!(p[6] & GCOMP__SEALED) != !!gc->desc.no_checksum) return GCOMP_CHECKSUM_MISMATCH;
    gc->places[w] += length;
    return GCOMP_OK;
}

/* Nothing stands behind the payload of the last tensor. */
static void gcomp__end_shards(gcomp *gc, const gcomp__slot *last)
{
    size_t w;
    for (w = 0; w < (size_t)gc->desc.comm.world; w++)
        if (last && gc->places[w] != gc->came[w]) gcomp__blame(gc, GCOMP_TRAILING_BYTES, w, last);
}

/* The shards of all workers, checked and added in rank order. */
static void gcomp__add_shards(gcomp *gc)
{
    const size_t world = (size_t)gc->desc.comm.world, me = (size_t)gc->desc.comm.rank;
    const gcomp__bucket *b = gcomp__now_at(gc);
    const gcomp__slot *last = NULL;
    size_t i, w;
    gcomp__all_sizes(gc, gc->places, 0);
    for (i = b->first; i < b->end; i++) {
        const gcomp__slot *slot = gc->tensors + i;
        const size_t n = gcomp__range(slot->n, world, me + 1) - gcomp__range(slot->n, world, me);
        const gcomp__call call = gcomp__call_in(gc, slot->method);
        const int two_shot = gcomp__is_two_shot(slot), adds_own = gcomp__adds_own(slot);
        const uint8_t *from = gc->shards;
        gcomp__sink sink = gcomp__sink_to(two_shot ? GCOMP__COMMIT : GCOMP__ADD, gc->acc + slot->at_acc, n);
        if (!gcomp__shares(slot)) continue;
        for (w = 0; w < world; from += gc->came[w++]) {
            gcomp__view *view = gc->views + sink.count;
            gcomp_result result;
            if (w == me && adds_own) continue;
            result = gcomp__next_shard(gc, slot, w, from, n, 0, view);
            if (result == GCOMP_OK && !two_shot && gcomp__get64(view->body) > slot->most) result = GCOMP_CORRUPT;
            if (result != GCOMP_OK) {
                gcomp__blame(gc, result, w, slot);
                return;
            }
            sink.count++;
        }
        sink.weight = 1.0f / (float)gc->desc.comm.world;
        sink.views = gc->views;
        sink.fresh = !adds_own;
        gcomp__decode_with(&call, &sink);
        last = slot;
    }
    gcomp__end_shards(gc, last);
}

/* The sums of the own range with keys from `least` on; of GLOBAL methods up to `wanted` that are largest. */
static gcomp__selection gcomp__choose_sums(const gcomp *gc, const gcomp__slot *slot, uint32_t least, size_t wanted)
{
    const int global = slot->flags & GCOMP__GLOBAL;
    const size_t world = (size_t)gc->desc.comm.world, me = (size_t)gc->desc.comm.rank;
    const size_t n = gcomp__range(slot->n, world, me + 1) - gcomp__range(slot->n, world, me);
    const size_t most = gcomp__min(gcomp__times(slot->most, world), n);
    const gcomp__call call = gcomp__call_in(gc, slot->method);
    const gcomp_input in = gcomp__plain_input(gc->acc + slot->at_acc);
    gcomp__selection s = gcomp__selection_in(&call, &in, n, global ? gcomp__sparse_room(&slot->codec, slot->n) : most + 32);
    (void)gcomp__sparse_collect(&call, &s, least, least, global ? wanted : n); /* the sums are finite */
    if (global && s.count > wanted) gcomp__sparse_keep(&s, wanted);
    return s;
}

/* Rising; `other` is as large, and holds them in the end. */
static void gcomp__sort_keys(uint32_t *key, uint32_t *other, size_t count, size_t *bins)
{
    unsigned pass, bin;
    size_t i;
    for (pass = 0; pass < 3; pass++) {
        const unsigned shift = 11 * pass;
        uint32_t *const from = pass == 1 ? other : key, *const to = pass == 1 ? key : other;
        size_t at = 0;
        memset(bins, 0, sizeof *bins * GCOMP__SPARSE_BINS);
        for (i = 0; i < count; i++) bins[from[i] >> shift & 2047u]++;
        for (bin = 0; bin < GCOMP__SPARSE_BINS; bin++) {
            at += bins[bin];
            bins[bin] = at - bins[bin];
        }
        for (i = 0; i < count; i++) to[bins[from[i] >> shift & 2047u]++] = from[i];
    }
}

static void gcomp__put_lists(gcomp *gc)
{
    const gcomp__bucket *b = gcomp__now_at(gc);
    const size_t bytes = gcomp__list_bytes(b->lists);
    size_t i, j;
    memset(gc->lists, 0, bytes);
    for (i = b->first; i < b->end && gc->late_error == GCOMP_OK; i++) {
        const gcomp__slot *slot = gc->tensors + i;
        uint32_t *key;
        gcomp__selection s;
        if (!gcomp__shares(slot) || !(slot->flags & GCOMP__GLOBAL)) continue;
        s = gcomp__choose_sums(gc, slot, 1, slot->most);
        key = s.index; /* the places are not needed any more: sorted to where the values are, and back */
        for (j = 0; j < s.count; j++) key[j] = gcomp__bits(s.value[j]) & 0x7fffffffu;
        gcomp__sort_keys(key, (uint32_t *)(void *)s.value, s.count, s.bins);
        memcpy(key, s.value, 4 * s.count);
        for (j = 1; j * slot->list_step <= s.count; j++)
            gcomp__put32(gc->lists + slot->at_list + 4 * j, key[s.count - j * slot->list_step]);
    }
    gcomp__put32(gc->lists, (gc->set->common->crc)(0, gc->lists + 4, bytes - 4));
}

/* How many of its largest sums this worker has to send, and from which key on: of what the lists name in falling order, of equal
   keys that of the first owner first, as many as stand for k elements; the last one has the key, and before the next one that a
   worker has listed itself are fewer than a step. */
static size_t gcomp__wanted_sums(gcomp *gc, const gcomp__slot *slot, uint32_t *least)
{
    const size_t world = (size_t)gc->desc.comm.world, step = slot->list_step;
    const size_t bytes = gcomp__list_bytes(gcomp__now_at(gc)->lists);
    const uint8_t *lists = gc->lists + bytes + 4 + slot->at_list;
    size_t *taken = gc->places, count, w;
    *least = 1;
    gcomp__all_sizes(gc, taken, 0);
    for (count = 0; count < slot->most; count += step) {
        uint32_t largest = 0;
        size_t owner = world;
        for (w = 0; w < world; w++) {
            const uint32_t key = taken[w] < slot->most / step ? gcomp__get32(lists + w * bytes + 4 * taken[w]) : 0;
            if (key <= largest) continue;
            largest = key;
            owner = w;
        }
        if (owner == world) {
            *least = 1;
            return slot->most; /* there are hardly k */
        }
        taken[owner]++;
        *least = largest;
    }
    return gcomp__min(slot->most, (taken[gc->desc.comm.rank] + 1) * step);
}

/* The mean of the own range, quantised. */
static gcomp_result gcomp__put_mean(const gcomp *gc, const gcomp__slot *slot, uint8_t *to, size_t *length)
{
    const size_t world = (size_t)gc->desc.comm.world, me = (size_t)gc->desc.comm.rank;
    const size_t n = gcomp__range(slot->n, world, me + 1) - gcomp__range(slot->n, world, me);
    gcomp_input in = gcomp__input_in(gc, slot, gc->acc + slot->at_acc, gc->step);
    in.residual = NULL;
    return gcomp__put_range(gc, slot, &in, n, world, to, length);
}

/* The sums of the own range, sparse where that is shorter than dense. */
static gcomp_result gcomp__put_sums(gcomp *gc, const gcomp__slot *slot, uint8_t *to, size_t *length)
{
    uint32_t least = 1;
    const size_t wanted = slot->flags & GCOMP__GLOBAL ? gcomp__wanted_sums(gc, slot, &least) : 0;
    const gcomp__selection s = gcomp__choose_sums(gc, slot, least, wanted);
    const gcomp__call call = gcomp__call_in(gc, &gcomp__row_none);
    const size_t dense = 4 * s.n;
    gcomp_input in = gcomp__plain_input(gc->acc + slot->at_acc);
    gcomp_codec none;
    gcomp_result result = gcomp__put_shard(gc, slot, &s, to, GCOMP__HEADER + (dense ? dense - 1 : 0), length);
    if (result != GCOMP_DST_TOO_SMALL) return result;
    memset(&none, 0, sizeof none);
    none.method = gcomp__row_none.wire;
    GCOMP__TRY(gcomp__encode_as(&call, &gcomp__row_none, &none, &in, s.n, to, GCOMP__HEADER + dense, length));
    if (!gc->desc.no_checksum) gcomp__seal(gc->set, to, *length);
    return GCOMP_OK;
}

static void gcomp__pack_sums(gcomp *gc)
{
    const gcomp__bucket *b = gcomp__now_at(gc);
    uint8_t *to = gc->packed;
    size_t i, length = 0;
    for (i = b->first; i < b->end && gc->late_error == GCOMP_OK; i++, to += length) {
        const gcomp__slot *slot = gc->tensors + i;
        gcomp_result result;
        length = 0;
        if (!gcomp__shares(slot)) continue;
        if (gcomp__is_two_shot(slot)) result = gcomp__put_mean(gc, slot, to, &length);
        else result = gcomp__put_sums(gc, slot, to, &length);
        if (result != GCOMP_OK) gcomp__blame(gc, result, (size_t)gc->desc.comm.rank, slot);
    }
    gcomp__put_length(gc, gc->lengths, (size_t)(to - gc->packed), gc->late_error);
    gcomp__all_sizes(gc, gc->came, GCOMP__LENGTH_BYTES);
}

/* The sums of all ranges. */
static void gcomp__check_sums(gcomp *gc)
{
    const size_t world = (size_t)gc->desc.comm.world;
    const gcomp__bucket *b = gcomp__now_at(gc);
    const gcomp__slot *last = NULL;
    size_t i, w;
    gcomp__all_sizes(gc, gc->places, 0);
    for (i = b->first; i < b->end; i++) {
        const gcomp__slot *slot = gc->tensors + i;
        if (!gcomp__shares(slot)) continue;
        for (w = 0; w < world; w++) {
            const size_t n = gcomp__range(slot->n, world, w + 1) - gcomp__range(slot->n, world, w);
            gcomp__view view;
            gcomp_result result = gcomp__next_shard(gc, slot, w, gc->cut + b->at_cut + w * b->share_stride, n, 1, &view);
            if (result == GCOMP_OK) continue;
            gcomp__blame(gc, result, w, slot);
            return;
        }
        last = slot;
    }
    gcomp__end_shards(gc, last);
}

/* The next payload among the sums of worker w, which are valid. */
static void gcomp__open_sums(gcomp *gc, size_t w, size_t n, gcomp__view *view)
{
    const gcomp__bucket *b = gcomp__now_at(gc);
    const uint8_t *p = gc->cut + b->at_cut + w * b->share_stride + gc->places[w];
    size_t length = 0;
    (void)gcomp__payload_length(p, gc->came[w] - gc->places[w], &length);
    gcomp__open_valid(gc->set, view, NULL, p, length, n);
    gc->places[w] += length;
}

/* y <- y + the sums. */
static void gcomp__apply_sums(gcomp *gc, const gcomp__slot *slot, float *y)
{
    const size_t world = (size_t)gc->desc.comm.world;
    size_t w;
    for (w = 0; w < world; w++) {
        const size_t begin = gcomp__range(slot->n, world, w), n = gcomp__range(slot->n, world, w + 1) - begin;
        const gcomp__call call = gcomp__call_in(gc, slot->method);
        gcomp__sink sink = gcomp__sink_to(GCOMP__ADD, y + begin, n);
        gcomp__view view;
        gcomp__open_sums(gc, w, n, &view);
        sink.fresh = 0;
        sink.views = &view;
        sink.count = 1;
        gcomp__decode_with(&call, &sink);
    }
}

/* The own range: residual <- world * (mean - decode(its payload)), since what one worker adds counts 1 / world. */
static void gcomp__keep_mean(const gcomp *gc, const gcomp__slot *slot, const gcomp__work *work, const gcomp__view *view)
{
    gcomp__work part = *work;
    gcomp__sink sink = gcomp__sink_to(GCOMP__ADD, gc->acc + slot->at_acc, work->n);
    sink.fresh = 0;
    sink.weight = -1;
    sink.views = view;
    sink.count = 1;
    gcomp__decode_with(&work->call, &sink);
    part.in = gcomp__plain_input(sink.y);
    part.part = (float)work->world;
    part.sums[0] = work->residual;
    if (gcomp__none_make(&part, 0) != GCOMP_OK) (gc->set->common->saturate)(part.residual, part.residual, part.n);
}

/* residual <- p - decode(own payloads), y <- the mean, range by range. */
GCOMP__NOINLINE void gcomp__commit_ranges(gcomp *gc, const gcomp__slot *slot, const gcomp__work *work)
{
    const size_t world = work->world;
    const uint8_t *own = gc->own + slot->at_own;
    size_t w, length;
    for (w = 0; w < world; w++, own += length) {
        const gcomp__work part = gcomp__work_at(work, gcomp__range(slot->n, world, w), gcomp__range(slot->n, world, w + 1));
        gcomp__sink sink = gcomp__sink_of(&part);
        gcomp__view mean, sent;
        gcomp__open_sums(gc, w, part.n, &mean);
        sink.views = &mean;
        sink.count = sink.own_at = 1;
        length = 0;
        if (w == (size_t)gc->desc.comm.rank && gcomp__adds_own(slot)) {
            if (part.residual) gcomp__keep_mean(gc, slot, &part, &mean);
            sink.residual = NULL;
        } else {
            length = GCOMP__HEADER + (size_t)gcomp__get64(own + 16);
            gcomp__open_valid(gc->set, &sent, NULL, own, length, part.n);
            sink.own = &sent;
        }
        gcomp__decode_with(&part.call, &sink);
    }
}

/* y <- its k largest elements, of equal ones the first; else 0. */
static void gcomp__keep_largest(const gcomp *gc, const gcomp__slot *slot, float *y)
{
    const gcomp__call call = gcomp__call_in(gc, slot->method);
    const gcomp_input in = gcomp__plain_input(y);
    gcomp__selection s = gcomp__selection_in(&call, &in, slot->n, gcomp__sparse_room(&slot->codec, slot->n));
    size_t i = 0, piece;
    (void)gcomp__sparse_largest(&call, &s, 1, slot->most);
    memset(y, 0, 4 * slot->n);
    for (piece = 0; piece < gcomp__index_pieces(slot->n); piece++)
        for (; i < s.ends[piece]; i++) y[(size_t)((uint64_t)piece << 32) + s.index[i]] = s.value[i];
}

/* ------------------------------------------------------------------------------------------------
   >>step - the mean over all workers as a state machine

   collect -> frames -> rounds -> ready -> idle. Each kind of round is one request for all tensors; payloads travel together, in
   the last round that has some. Payloads made after a round have a known length, so that the frame can tell it.
   With desc.bucket_bytes the way from collect to rounds is gone once for each bucket, from that of the last tensors to that of
   the first, whatever the order in which they are ready: one bucket is communicated, those behind it collect, and a commit
   follows the last. So all workers ask for the same, one after the other. Buckets are cut from the last tensor to the first: one
   is full when it has bucket_bytes, 4 an element. Places in the buffers are those of one bucket for all; what only the bucket
   that is communicated needs (>>shards) the next one uses again.
   Where that saves memory, all buckets receive their payloads in one place, and leave means for the
   commit. Each bucket has its frame. A worker's error travels in the first
   one that goes out after it, also one that this worker alone has seen in the bucket before; then all stop.
   The frame of a worker, 64 bytes, little endian:
      0 magic 'GCF1'   4 rank   8 world   12 status (8 bit)   13 decision (8 bit)   14 how the last step ended (16 bit)
     16 step (64 bit)
     24 bytes it gathers (64 bit)   32 digests of tensors, codecs, seed, options
     48 of the bucket's number and its tensors that are not skipped
     52 of the last checked means   56 epoch   60 CRC-32C of the 60 bytes before
   The decision is rank 0's, for the step after this one: 0 none, 1 + l all tensors with a list go to level l, 255 each to its
   own: then a gather follows, of a byte for each tensor and the CRC-32C of the step (64 bit) and these, from rank 0 alone. It is
   in the frame of the first bucket; in others this byte is 0.
   ------------------------------------------------------------------------------------------------ */

static uint32_t gcomp__crc_number(const gcomp *gc, uint32_t crc, uint64_t v)
{
    uint8_t b[8];
    gcomp__put64(b, v);
    return (gc->set->common->crc)(crc, b, 8);
}

/* Of floats as little-endian words, whatever the order of bytes here. */
static uint32_t gcomp__crc_floats(const gcomp *gc, uint32_t crc, const float *y, size_t n)
{
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    uint8_t piece[1024];
    size_t i, j;
    for (i = 0; i < n; i += j) {
        for (j = 0; j < 256 && i + j < n; j++) gcomp__put32(piece + 4 * j, gcomp__bits(y[i + j]));
        crc = (gc->set->common->crc)(crc, piece, 4 * j);
    }
    return crc;
#else
    return (gc->set->common->crc)(crc, (const uint8_t *)y, 4 * n);
#endif
}

static uint32_t gcomp__crc_schedule(const gcomp *gc, uint32_t crc)
{
    size_t i;
    crc = gcomp__crc_number(gc, crc, (uint64_t)(gc->schedule.rule + 1));
    for (i = 0; i < GCOMP_PARAMS; i++) {
        uint64_t bits;
        memcpy(&bits, &gc->schedule.param[i], sizeof bits);
        crc = gcomp__crc_number(gc, crc, bits);
    }
    return crc;
}

static uint32_t gcomp__crc_shape(const gcomp *gc, uint32_t crc, const gcomp__slot *slot)
{
    crc = (gc->set->common->crc)(crc, (const uint8_t *)slot->name, slot->name_bytes);
    crc = gcomp__crc_number(gc, gcomp__crc_number(gc, crc, slot->rows), slot->cols);
    return gcomp__crc_number(gc, crc, slot->stack);
}

static int gcomp__takes_part(const gcomp__slot *slot, int round, unsigned kind)
{
    return slot->grad && round < 3 && slot->rounds[round] == kind;
}

enum { GCOMP__EACH = 255 };

static int gcomp__each(const gcomp *gc)
{
    return gc->schedule.rule == GCOMP__ACCORDION && gc->schedule.param[GCOMP__SCOPE] == 0;
}

/* Rank 0 of accordion: does this step begin the epoch after one whose gradients were added up? Does it add some up? */
static int gcomp__adds_up(const gcomp *gc, uint32_t epoch)
{
    return gc->schedule.rule == GCOMP__ACCORDION && gc->desc.comm.rank == 0 &&
           epoch % (uint32_t)gc->schedule.param[GCOMP__EVERY] == 0;
}

static int gcomp__epoch_over(const gcomp *gc)
{
    return gc->pace.begun && gc->epoch != gc->pace.epoch && gcomp__adds_up(gc, gc->pace.epoch);
}

static double gcomp__norm_of(double squares) { return gcomp__finite_double(squares) ? gcomp__sqrt(squares) : -1; }

/* Accordion's decision. */
static unsigned gcomp__accordion(gcomp *gc)
{
    const int over = gcomp__epoch_over(gc), each = gcomp__each(gc), slower = gc->rate > 0 && gc->rate < gc->pace.rate;
    const int known = gc->pace.known && !gc->pace.partial;
    const double eta = gc->schedule.param[GCOMP__ETA];
    size_t all = gc->pace.level, i;
    int changes = 0;
    gc->pace.squares = 0;
    for (i = 0; i < stbds_arrlenu(gc->tensors); i++) {
        gcomp__slot *slot = gc->tensors + i;
        slot->next = slot->level;
        if (!slot->epoch_sum) continue;
        if (over) {
            slot->squares = (gc->set->common->squares)(slot->epoch_sum, slot->n);
            gc->pace.squares += slot->squares;
            if (each && known) slot->next = !gcomp__critical(slot->norm, gcomp__norm_of(slot->squares), eta);
        }
        if (slower) slot->next = 0;
        changes |= slot->next != slot->level;
    }
    if (each) return changes ? GCOMP__EACH : 0;
    if (over && known) all = !gcomp__critical(gc->pace.norm, gcomp__norm_of(gc->pace.squares), eta);
    if (slower) all = 0;
    return all == gc->pace.level ? 0 : 1 + (unsigned)all;
}

/* What rank 0 says of the levels after this step. A step that is tried again says the same. */
static unsigned gcomp__decide(gcomp *gc)
{
    const gcomp__schedule *s = &gc->schedule;
    size_t to = gc->pace.to;
    if (s->rule < 0 || gc->desc.comm.rank != 0) return 0;
    if (s->rule == GCOMP__ACCORDION) return gcomp__accordion(gc);
    if (s->rule == GCOMP__WARMUP) to = gcomp__warm_share(s->levels - 1, gc->epoch, s->param[0]);
    return to == gc->pace.level ? 0 : 1 + (unsigned)to;
}

/* Levels of all tensors, from rank 0 after its frame; `world` of them, of which rank 0's counts. */
static void gcomp__take_decisions(gcomp *gc)
{
    const size_t count = stbds_arrlenu(gc->tensors), bytes = gcomp__decision_bytes(count);
    const uint8_t *from = gc->decisions + bytes;
    int wrong = gcomp__get32(from + count) != (gc->set->common->crc)(gcomp__crc_number(gc, 0, gc->step), from, count);
    size_t i;
    for (i = 0; i < count; i++) wrong |= from[i] >= gc->tensors[i].level_count;
    for (i = 0; i < count && !wrong; i++) gc->tensors[i].next = from[i];
    if (wrong)
        gc->late_error =
            gcomp__fail(gc, GCOMP_CHECKSUM_MISMATCH, "the levels that rank 0 sent behind its frame arrived damaged");
}

/* |D'|; 0 stands for one not finite too. */
static double gcomp__norm_before(double squares)
{
    const double norm = gcomp__norm_of(squares);
    return norm < 0 ? 0 : norm;
}

/* Commit: the last step of an epoch whose gradients were added up is past. */
static void gcomp__turn_epoch(gcomp *gc)
{
    const int over = gcomp__epoch_over(gc), whole = !gc->pace.partial;
    size_t i;
    if (gc->epoch != gc->pace.epoch) gc->pace.partial = 0;
    if (over && whole) gc->pace.known = 1, gc->pace.norm = gcomp__norm_before(gc->pace.squares);
    for (i = 0; i < stbds_arrlenu(gc->tensors) && over; i++) {
        gcomp__slot *slot = gc->tensors + i;
        if (!slot->epoch_sum) continue;
        if (whole) slot->norm = gcomp__norm_before(slot->squares);
        memset(slot->epoch_sum, 0, 4 * slot->n);
    }
}

/* May become infinite: then the norm is not known. */
static void gcomp__add_up(const gcomp__slot *slot, const gcomp__work *work)
{
    gcomp__work sum = *work;
    gcomp__sum_job job;
    sum.in.residual = sum.sums[0] = slot->epoch_sum;
    sum.part = 1;
    job.work = &sum;
    job.common = work->call.set->common;
    gcomp__run(&sum.call, gcomp__chunks(slot->n), gcomp__none_chunk, &job);
}

/* Commit: the step was the last one with these levels, or rank 0 learns from it. */
static void gcomp__keep_pace(gcomp *gc)
{
    gcomp__pace *pace = &gc->pace;
    size_t i;
    if (gc->decided) {
        for (i = 0; i < stbds_arrlenu(gc->tensors) && gc->decided != GCOMP__EACH; i++)
            if (gc->tensors[i].levels) gc->tensors[i].next = gc->decided - 1;
        if (gc->decided != GCOMP__EACH) pace->level = gc->decided - 1;
        gcomp__switch_all(gc);
        pace->sum = 0;
        pace->steps = 0;
    } else if (gc->schedule.rule >= GCOMP__BUDGET && gc->desc.comm.rank == 0) {
        pace->to = gcomp__control(&gc->schedule, pace,
                                  gc->schedule.rule == GCOMP__BUDGET ? (double)(gc->stats.bytes_out - gc->step_bytes)
                                                                     : gc->stats.relative_error);
    }
    pace->begun = 1;
    pace->epoch = gc->epoch;
    if (gc->rate > 0) pace->rate = gc->rate;
}

/* Where a gradient begins and ends; 0 where there is none. */
static uintptr_t gcomp__place_of(const gcomp__slot *slot) { return (uintptr_t)slot->grad; }

static uintptr_t gcomp__place_at(const gcomp__slot *t, size_t i) { return gcomp__place_of(t + t[i].by_place); }

static uintptr_t gcomp__place_behind(const gcomp__slot *slot)
{
    return slot->grad ? (uintptr_t)slot->grad + slot->n * (slot->dtype == GCOMP_F32 ? 4 : 2) : 0;
}

/* Sinks into the heap below it; the largest place is on top. */
static void gcomp__sink_place(gcomp__slot *t, size_t i, size_t end)
{
    const uint32_t sinks = t[i].by_place;
    size_t next;
    for (; (next = 2 * i + 1) < end; i = next) {
        if (next + 1 < end && gcomp__place_at(t, next) < gcomp__place_at(t, next + 1)) next++;
        if (gcomp__place_of(t + sinks) >= gcomp__place_at(t, next)) break;
        t[i].by_place = t[next].by_place;
    }
    t[i].by_place = sinks;
}

static void gcomp__sort_places(gcomp__slot *t, size_t count)
{
    size_t i;
    for (i = count / 2; i-- > 0;) gcomp__sink_place(t, i, count);
    for (i = count; i-- > 1;) {
        const uint32_t last = t[0].by_place;
        t[0].by_place = t[i].by_place;
        t[i].by_place = last;
        gcomp__sink_place(t, 0, i);
    }
}

/* No two gradients share memory, of those that are known: the commit of one would change the other.
   Sorted by place, neighbours would. The order of the last step is kept: as a rule nothing moves. */
static gcomp_result gcomp__need_apart(gcomp *gc)
{
    gcomp__slot *const t = gc->tensors;
    const size_t count = stbds_arrlenu(t);
    gcomp__text why;
    size_t i;
    for (i = 1; i < count && gcomp__place_at(t, i - 1) <= gcomp__place_at(t, i); i++) {}
    if (i < count) gcomp__sort_places(t, count);
    for (i = 1; i < count; i++) {
        const uint32_t a = t[i - 1].by_place, b = t[i].by_place;
        if (gcomp__place_behind(t + a) <= gcomp__place_of(t + b)) continue;
        why = gcomp__sentence(gc);
        gcomp__say_tensor(&why, t[a < b ? a : b].name);
        gcomp__say(&why, " and ");
        gcomp__say_tensor(&why, t[a < b ? b : a].name);
        gcomp__say(&why, ": their gradients share memory");
        return GCOMP_INVALID_ARGUMENT;
    }
    return GCOMP_OK;
}

/* What the frames of all buckets have in common. */
static void gcomp__begin_frames(gcomp *gc)
{
    uint32_t tensors = 0, codecs = 0, options = 0;
    uint8_t *f = gc->frames;
    size_t i;
    for (i = 0; i < stbds_arrlenu(gc->tensors); i++) {
        const gcomp__slot *slot = gc->tensors + i;
        tensors = gcomp__crc_number(gc, gcomp__crc_shape(gc, tensors, slot), (uint64_t)slot->dtype);
        codecs = gcomp__crc_number(gc, gcomp__crc_number(gc, codecs, slot->codecs_digest), slot->level);
    }
    options = gcomp__crc_number(gc, options, (uint64_t)gc->desc.no_error_feedback);
    options = gcomp__crc_number(gc, options, (uint64_t)gc->desc.no_checksum);
    options = gcomp__crc_number(gc, options, gc->desc.check_every);
    options = gcomp__crc_number(gc, options, gc->desc.comm.allgatherv ? 1 : 0);
    options = gcomp__crc_number(gc, options, gc->desc.comm.allreduce_max ? 1 : 0);
    options = gcomp__crc_number(gc, options, gc->desc.comm.alltoallv ? 1 : 0);
    options = gcomp__crc_number(gc, options, (uint64_t)gc->desc.aggregate);
    options = gcomp__crc_number(gc, options, gc->desc.comm.allreduce_dtypes);
    options = gcomp__crc_schedule(gc, options);
    if (gc->desc.bucket_bytes || gc->desc.comm.start)
        options = gcomp__crc_number(gc, gcomp__crc_number(gc, options, gc->desc.bucket_bytes), gc->desc.comm.start ? 1 : 0);
    memset(f, 0, GCOMP__FRAME);
    memcpy(f, "GCF1", 4);
    gcomp__put32(f + 4, (uint32_t)gc->desc.comm.rank);
    gcomp__put32(f + 8, (uint32_t)gc->desc.comm.world);
    gcomp__put16(f + 14, (uint32_t)(-(int)gc->last) & 0xffffu);
    gcomp__put64(f + 16, gc->step);
    gcomp__put32(f + 32, tensors);
    gcomp__put32(f + 36, codecs);
    gcomp__put32(f + 40, gcomp__crc_number(gc, 0, gc->desc.seed));
    gcomp__put32(f + 44, options);
    gcomp__put32(f + 52, gc->mean_digest);
    gcomp__put32(f + 56, gc->epoch);
}

static void gcomp__put_frame(gcomp *gc)
{
    const gcomp__bucket *b = gcomp__now_at(gc);
    uint32_t active = (uint32_t)gc->turn;
    uint64_t bytes = 0;
    uint8_t *f = gc->frames;
    size_t i;
    int round;
    if (gc->turn == 0) gcomp__begin_frames(gc);
    if (gc->local_error == GCOMP_OK || gc->local_error == GCOMP_NOT_FINITE) {
        const gcomp_result apart = gcomp__need_apart(gc);
        if (apart != GCOMP_OK) gc->local_error = apart;
    }
    gc->gather_round = -1;
    gc->sharing = gc->listing = 0;
    for (i = b->first; i < b->end; i++) {
        const gcomp__slot *slot = gc->tensors + i;
        active = gcomp__crc_number(gc, active, slot->grad ? 1 + (uint64_t)gcomp__is_odd(slot) : 0);
        if (slot->grad && slot->bound) bytes += slot->length;
        gc->sharing |= gcomp__shares(slot);
        gc->listing |= gcomp__shares(slot) && slot->flags & GCOMP__GLOBAL;
        for (round = 0; round < 3; round++)
            if (gcomp__takes_part(slot, round, GCOMP__GATHER) && round > gc->gather_round) gc->gather_round = round;
    }
    f[12] = (uint8_t)-(int)gc->local_error;
    f[13] = gc->turn == 0 ? (uint8_t)gcomp__decide(gc) : 0;
    gcomp__put64(f + 24, bytes);
    gcomp__put32(f + 48, active);
    gcomp__put32(f + 60, (gc->set->common->crc)(0, f, 60));
}

/* "rank 2 <what> this worker, rank 0" */
static gcomp_result gcomp__disagree(gcomp *gc, gcomp_result result, size_t rank, const char *what)
{
    gcomp__text t = gcomp__sentence(gc);
    gcomp__say(&t, "rank ");
    gcomp__say_number(&t, rank);
    gcomp__say(&t, what);
    gcomp__say(&t, " this worker, rank ");
    gcomp__say_number(&t, (uint64_t)gc->desc.comm.rank);
    return result;
}

/* What another worker's failure is here. What all must know comes out on all. */
static gcomp_result gcomp__peer_failed(gcomp *gc, size_t rank, int status)
{
    gcomp__text t = gcomp__sentence(gc);
    gcomp__say(&t, "rank ");
    gcomp__say_number(&t, rank);
    gcomp__say(&t, ": ");
    gcomp__say(&t, gcomp_result_string((gcomp_result)status));
    if (status == (int)GCOMP_OUT_OF_STEP || status == (int)GCOMP_DIVERGED || status == (int)GCOMP_NOT_FINITE)
        return (gcomp_result)status;
    return GCOMP_PEER_FAILED;
}

/* Does the frame tell an error of its worker other than NaN or Inf? */
static int gcomp__has_failed(const uint8_t *frame)
{
    return frame[12] && frame[12] != (uint8_t)-(int)GCOMP_NOT_FINITE;
}

/* Compares one worker's frame with this worker's. */
static gcomp_result gcomp__frame_agrees(gcomp *gc, size_t w)
{
    const uint8_t *mine = gc->frames, *f = gc->frames + (w + 1) * GCOMP__FRAME;
    uint64_t step = gcomp__get64(f + 16);
    uint32_t rank = gcomp__get32(f + 4);
    gcomp__text t;
    if (gcomp__get32(f + 60) != (gc->set->common->crc)(0, f, 60)) /* the others may have gone on */
        return gcomp__disagree(gc, GCOMP_CALLBACK_FAILED, w,
                               " sent a frame that arrived damaged at");
    if (memcmp(f, "GCF1", 4))
        return gcomp__disagree(gc, GCOMP_MISMATCH, w, " has another kind of frame than");
    if (gcomp__get32(f + 8) != gcomp__get32(mine + 8))
        return gcomp__disagree(gc, GCOMP_MISMATCH, w, " has another world (number of workers) than");
    if (rank != w) {
        t = gcomp__sentence(gc);
        gcomp__say(&t, "the allgather put rank ");
        gcomp__say_number(&t, rank);
        gcomp__say(&t, " in the place of rank ");
        gcomp__say_number(&t, w);
        gcomp__say(&t, ": results must be in rank order, and ranks unique");
        return GCOMP_MISMATCH;
    }
    if (memcmp(f + 32, mine + 32, 4)) return gcomp__disagree(gc, GCOMP_MISMATCH, w, " has another list of tensors than");
    if (memcmp(f + 40, mine + 40, 4)) return gcomp__disagree(gc, GCOMP_MISMATCH, w, " has another seed than");
    if (memcmp(f + 44, mine + 44, 4))
        return gcomp__disagree(gc, GCOMP_MISMATCH, w,
                               " has other options (feedback, checksum, schedule, check_every, aggregate, bucket_bytes, "
                               "callbacks) than");
    if (step != gc->step) {
        t = gcomp__sentence(gc);
        gcomp__say(&t, "rank ");
        gcomp__say_number(&t, w);
        gcomp__say(&t, " is at step ");
        gcomp__say_number(&t, step);
        gcomp__say(&t, ", its last step ended with ");
        gcomp__say(&t, gcomp_result_name((gcomp_result)(-(int)gcomp__get16(f + 14))));
        gcomp__say(&t, "; this worker, rank ");
        gcomp__say_integer(&t, gc->desc.comm.rank);
        gcomp__say(&t, ", is at step ");
        gcomp__say_number(&t, gc->step);
        gcomp__say(&t, " after ");
        gcomp__say(&t, gcomp_result_name(gc->last));
        return GCOMP_OUT_OF_STEP;
    }
    if (memcmp(f + 36, mine + 36, 4)) return gcomp__disagree(gc, GCOMP_MISMATCH, w, " has other codecs than"); /* by the step */
    /* who has failed may have skipped tensors: the step ends anyhow */
    if (gcomp__has_failed(f) || gcomp__has_failed(mine)) return GCOMP_OK;
    if (memcmp(f + 48, mine + 48, 4))
        return gcomp__disagree(gc, GCOMP_MISMATCH, w,
                               " skips other tensors, takes other turns, or is at another bucket, than");
    if (memcmp(f + 56, mine + 56, 4)) return gcomp__disagree(gc, GCOMP_MISMATCH, w, " is in another epoch (step.epoch) than");
    if (gcomp__get64(f + 24) > gcomp__now_at(gc)->send)
        return gcomp__disagree(gc, GCOMP_MISMATCH, w, " announces more bytes than possible to");
    if (f[13] && (w || gc->turn || gc->schedule.rule < 0 ||
                  (gcomp__each(gc) ? f[13] != GCOMP__EACH : f[13] > gc->schedule.levels)))
        return gcomp__disagree(gc, GCOMP_MISMATCH, w, " decides on levels that are none to");
    return GCOMP_OK;
}

/* The digests of the last means, by the frames alone: a worker that has none, since it joined, judges
   as all do. */
static gcomp_result gcomp__judge_digests(gcomp *gc)
{
    const size_t world = (size_t)gc->desc.comm.world;
    uint32_t first = 0, digest;
    size_t owner = 0, w;
    gcomp__text t;
    for (w = 0; w < world; w++) {
        digest = gcomp__get32(gc->frames + (w + 1) * GCOMP__FRAME + 52);
        if (!digest || digest == first) continue;
        if (first) {
            t = gcomp__sentence(gc);
            gcomp__say(&t, "rank ");
            gcomp__say_number(&t, w);
            gcomp__say(&t, " holds other means than rank ");
            gcomp__say_number(&t, owner);
            return GCOMP_DIVERGED;
        }
        first = digest;
        owner = w;
    }
    return GCOMP_OK;
}

/* What all frames together say: the same kind of answer on all workers. */
static gcomp_result gcomp__judge_frames(gcomp *gc)
{
    size_t world = (size_t)gc->desc.comm.world, w, refused = world;
    char own[GCOMP__SENTENCE];
    memcpy(own, gc->error, sizeof own); /* of a local error */
    for (w = 0; w < world; w++) GCOMP__TRY(gcomp__frame_agrees(gc, w));
    for (w = 0; w < world; w++) {
        const uint8_t *f = gc->frames + (w + 1) * GCOMP__FRAME;
        const int status = -(int)f[12];
        if (status == (int)GCOMP_NOT_FINITE && refused == world) refused = w;
        if (!gcomp__has_failed(f)) continue;
        if (w == (size_t)gc->desc.comm.rank) {
            memcpy(gc->error, own, sizeof own);
            return gc->local_error;
        }
        if (gc->local_error == GCOMP_OK || gc->local_error == GCOMP_NOT_FINITE) return gcomp__peer_failed(gc, w, status);
    }
    if (refused < world) {
        gcomp__text t = gcomp__sentence(gc);
        if (refused == (size_t)gc->desc.comm.rank) {
            memcpy(gc->error, own, sizeof own);
            return GCOMP_NOT_FINITE;
        }
        gcomp__say(&t, "the gradient of rank ");
        gcomp__say_number(&t, refused);
        gcomp__say(&t, " holds NaN or Inf");
        return GCOMP_NOT_FINITE;
    }
    return gcomp__judge_digests(gc);
}

/* The step is over on this worker, without a commit. */
static gcomp_result gcomp__end_step(gcomp *gc, gcomp_result result)
{
    gc->phase = GCOMP__IDLE;
    gc->last = result;
    if (result == GCOMP_NOT_FINITE) gc->stats.skipped++;
    else gc->stats.failed++;
    return result;
}

/* Places of the tensors in the sums of this step. */
static void gcomp__place_sums(gcomp *gc)
{
    size_t sums[3][GCOMP__KINDS], i, *count;
    int round;
    memset(sums, 0, sizeof sums);
    for (i = 0; i < stbds_arrlenu(gc->tensors); i++) {
        gcomp__slot *slot = gc->tensors + i;
        for (round = 0; round < 3; round++) {
            if (slot->rounds[round] < GCOMP__SUM) continue;
            count = &sums[round][slot->rounds[round]];
            slot->at_sum[round] = *count;
            slot->sum_now[round] =
                slot->stack * (slot->method->sum_count)(&slot->codec, slot->rows, slot->cols, round, gcomp__is_odd(slot));
            *count += slot->sum_now[round];
        }
    }
}

/* Bucket k collects its gradients. What only this worker knows of the bucket before travels in its frame. */
static void gcomp__turn_to(gcomp *gc, size_t k)
{
    if (gc->late_error != GCOMP_OK) gc->local_error = gc->late_error;
    gc->late_error = GCOMP_OK;
    gc->turn = k;
    gc->came = gcomp__now_at(gc)->came;
    gc->issued = gc->done = 0;
    gc->round = 0;
    gc->phase = GCOMP__COLLECT;
}

static const char gcomp__no_state[] =
    "this worker has become the first one of its machine: gcomp_load or gcomp_join comes first";

/* What gradients are multiplied by: the scale, and the samples of this worker beside their mean over `world` workers. */
static float gcomp__weight_of(const gcomp_step *step, int world)
{
    const uint64_t mode = gcomp__fp_enter();
    const double scale = step && gcomp__bits(step->scale) << 1 != 0 ? (double)step->scale : 1;
    const double part = step && step->batch != 0 ? step->samples / step->batch * (double)world : 1;
    const float weight = (float)(scale * part);
    gcomp__fp_leave(mode);
    return weight;
}

/* A caller who says no epoch must not need one: in epoch 0 for ever more would be sent than was named. */
static gcomp_result gcomp__need_epochs(gcomp *gc)
{
    const int by_epochs = gc->schedule.rule == GCOMP__WARMUP || gc->schedule.rule == GCOMP__ACCORDION;
    size_t i, l;
    for (i = 0; i < stbds_arrlenu(gc->tensors); i++) {
        const gcomp__slot *slot = gc->tensors + i;
        for (l = 0; l < slot->level_count; l++)
            if ((slot->levels ? slot->levels[l].flags : slot->flags) & GCOMP__BY_EPOCHS)
                return gcomp__fail_tensor(gc, GCOMP_INVALID_ARGUMENT, slot->name,
                                          "codec dgc warms up by epochs: pass gcomp_step.epoch, or set warmup=0");
        if (slot->level_count > 1 && by_epochs)
            return gcomp__fail_tensor(gc, GCOMP_INVALID_ARGUMENT, slot->name,
                                      gc->schedule.rule == GCOMP__WARMUP
                                          ? "schedule warmup goes by epochs: pass gcomp_step.epoch"
                                          : "schedule accordion goes by epochs: pass gcomp_step.epoch");
    }
    return GCOMP_OK;
}

static gcomp_result gcomp__begin(gcomp *gc, const gcomp_step *step)
{
    size_t i;
    gc->error[0] = 0;
    if (gc->phase != GCOMP__IDLE) return gcomp__fail(gc, GCOMP_WRONG_STATE, "a step is under way: commit or abort it first");
    gc->started = 1;
    gc->local_error = gcomp__make_room(gc);
    if (!gcomp__mode_fits()) gc->local_error = gcomp__fail(gc, GCOMP_FLOAT_MODE, gcomp_result_string(GCOMP_FLOAT_MODE));
    gc->late_error = GCOMP_OK;
    gc->scale = gcomp__weight_of(step, gc->desc.comm.world);
    gc->rate = step ? step->learning_rate : 0;
    gc->epoch = step ? step->epoch : 0;
    gc->step_bytes = gc->stats.bytes_out;
    gc->decided = 0;
    if (!step && gc->local_error == GCOMP_OK) gc->local_error = gcomp__need_epochs(gc);
    if (!gcomp__finite(gc->scale)) gc->local_error = gcomp__fail(gc, GCOMP_INVALID_ARGUMENT, "step.scale is not finite");
    if (step && !(step->samples >= 0 && step->samples <= step->batch && gcomp__finite_double(step->batch)))
        gc->local_error = gcomp__fail(gc, GCOMP_INVALID_ARGUMENT, "step.samples is not from 0 to step.batch, or not finite");
    if (!gcomp__finite(gc->rate) || gc->rate < 0)
        gc->local_error = gcomp__fail(gc, GCOMP_INVALID_ARGUMENT, "step.learning_rate is negative or not finite");
    if (gc->untaught) gc->local_error = gcomp__fail(gc, GCOMP_WRONG_STATE, gcomp__no_state);
    for (i = 0; i < stbds_arrlenu(gc->tensors); i++) {
        gc->tensors[i].ready = 0;
        gc->tensors[i].grad = NULL;
    }
    gcomp__place_sums(gc);
    gc->p_squares = gc->e_squares = gc->y_squares = 0;
    gcomp__turn_to(gc, 0);
    return GCOMP_OK;
}

GCOMP_API gcomp_result gcomp_step_begin(gcomp *gc, const gcomp_step *step)
{
    if (!gc) return GCOMP_INVALID_ARGUMENT;
    if (gc->node) return gcomp__fail(gc, GCOMP_WRONG_STATE, "with desc.node a step is gcomp_exchange");
    return gcomp__begin(gc, step);
}

/* A tensor's place in the sums of a round. */
static float *gcomp__sum_at(const gcomp *gc, const gcomp__slot *slot, int round)
{
    unsigned kind = slot->rounds[round];
    if (kind < GCOMP__SUM) return NULL;
    return (float *)(void *)(gc->sums[round][kind] + slot->at_sum[round] * gcomp__kind_bytes(kind));
}

static gcomp__work gcomp__work_of(const gcomp *gc, const gcomp__slot *slot)
{
    gcomp__work work;
    int round;
    memset(&work, 0, sizeof work);
    work.call = gcomp__call_in(gc, slot->method);
    work.codec = &slot->codec;
    work.in = gcomp__input_in(gc, slot, slot->staging ? (const void *)slot->staging : slot->grad,
                              slot->flags & GCOMP__ONE_KEY ? 0 : gc->step);
    work.in.scale = gc->scale;
    work.rows = slot->rows;
    work.cols = slot->cols;
    work.stack = slot->stack;
    work.n = slot->n;
    work.together = gc->most.elements;
    work.part = 1.0f / (float)gc->desc.comm.world;
    work.world = (size_t)gc->desc.comm.world;
    work.epoch = gc->epoch;
    work.odd = gcomp__is_odd(slot);
    work.state = slot->state;
    work.local = gc->local + slot->at_local;
    for (round = 0; round < 3; round++) work.sums[round] = gcomp__sum_at(gc, slot, round);
    work.y = slot->staging ? slot->staging : (float *)slot->grad;
    work.residual = slot->residual;
    return work;
}

/* desc.measure: |p|^2, through a small buffer. */
static double gcomp__measure_p(const gcomp *gc, const gcomp_input *in, size_t n)
{
    float piece[512];
    double sum = 0;
    size_t i;
    for (i = 0; i < n; i += 512) {
        size_t count = gcomp__min(512, n - i);
        gcomp_input part = *in;
        part.grad = (const float *)in->grad + i;
        part.residual = in->residual ? in->residual + i : NULL;
        (gc->set->common->scale_copy)(piece, &part, 0, count, 1);
        sum += (gc->set->common->squares)(piece, count);
    }
    return sum;
}

/* The payload of a tensor; with the scale of all workers, if a round has found it. */
static gcomp_result gcomp__encode_payload(gcomp *gc, gcomp__slot *slot, gcomp__work *work)
{
    uint8_t *to = slot->whole ? gc->own + slot->at_own : gc->send + slot->at_send;
    gcomp_result result;
    work->call.shared = work->sums[0];
    work->call.work = work;
    result = gcomp__encode_as(&work->call, slot->method, &slot->codec, &work->in, slot->n, to,
                              slot->whole ? slot->whole : slot->bound, &slot->length);
    if (result == GCOMP_OK && !gc->desc.no_checksum) gcomp__seal(gc->set, to, slot->length);
    return result;
}

GCOMP__NOINLINE gcomp_result gcomp__encode_slot(gcomp *gc, gcomp__slot *slot)
{
    gcomp__work work = gcomp__work_of(gc, slot);
    if (slot->staging) (gc->set->common->widen)(slot->staging, slot->grad, slot->dtype, slot->n);
    if (gc->desc.measure && !(slot->flags & GCOMP__REMEMBERS)) slot->p_squares = gcomp__measure_p(gc, &work.in, slot->n);
    if (gcomp__is_two_shot(slot)) {
        GCOMP__TRY(gcomp__encode_ranges(gc, slot, &work));
    } else if (slot->rounds[0] == GCOMP__GATHER || slot->rounds[0] == GCOMP__SHARE) {
        GCOMP__TRY(gcomp__encode_payload(gc, slot, &work));
    } else {
        slot->length = slot->bound; /* of a payload made in a later round, whose length is known */
        GCOMP__TRY((slot->method->make)(&work, 0));
    }
    if (gc->desc.measure && slot->flags & GCOMP__REMEMBERS)
        slot->p_squares = (gc->set->common->squares)((const float *)(void *)gc->scratch.at, slot->n);
    return slot->whole && slot->method->selector ? gcomp__cut(gc, slot) : GCOMP_OK;
}

GCOMP_API gcomp_result gcomp_step_ready(gcomp *gc, size_t tensor, void *grad)
{
    gcomp__slot *slot;
    if (!gc) return GCOMP_INVALID_ARGUMENT;
    if (gc->phase == GCOMP__IDLE || (gc->local_error == GCOMP_OK && gc->late_error == GCOMP_OK))
        gc->error[0] = 0; /* else its sentence is still to come out */
    if (tensor >= stbds_arrlenu(gc->tensors)) return gcomp__fail(gc, GCOMP_INVALID_ARGUMENT, "no tensor of this number");
    if (gc->phase == GCOMP__IDLE)
        return gcomp__fail(gc, GCOMP_WRONG_STATE, "no step is collecting gradients: begin one first");
    slot = gc->tensors + tensor;
    if (slot->ready) return gcomp__fail_tensor(gc, GCOMP_WRONG_STATE, slot->name, "it is ready already");
    slot->ready = 1;
    slot->grad = grad;
    slot->length = 0;
    if (!grad && gc->arena.at) { /* its place in the sums is sent all the same */
        int round;
        for (round = 0; round < 3; round++)
            if (slot->rounds[round] >= GCOMP__SUM)
                memset(gcomp__sum_at(gc, slot, round), 0, slot->sum_now[round] * gcomp__kind_bytes(slot->rounds[round]));
    }
    if (grad && gc->late_error == GCOMP_OK && (gc->local_error == GCOMP_OK || gc->local_error == GCOMP_NOT_FINITE)) {
        double from = gcomp__now(gc);
        uint64_t mode = gcomp__fp_enter();
        gcomp_result result = gcomp__mode_fits() ? gcomp__encode_slot(gc, slot) : GCOMP_FLOAT_MODE;
        gcomp__fp_leave(mode);
        if (result == GCOMP_NOT_FINITE) gc->stats.not_finite++;
        if (result != GCOMP_OK) gc->local_error = gcomp__fail_tensor(gc, result, slot->name, gcomp_result_string(result));
        gc->stats.encode_seconds += gcomp__now(gc) - from;
    }
    return GCOMP_OK;
}

/* Payloads to the front of their place in the send buffer, in order; the byte counts of all workers; zeros up to the largest. */
static void gcomp__pack_gather(gcomp *gc)
{
    gcomp__bucket *b = gcomp__now_at(gc);
    uint8_t *to = gc->send + b->at_send;
    size_t i, w;
    for (i = b->first; i < b->end; i++) {
        gcomp__slot *slot = gc->tensors + i;
        if (!slot->grad || !slot->bound) continue;
        slot->at_own = (size_t)(to - gc->send);
        memmove(to, gc->send + slot->at_send, slot->length);
        to += slot->length;
    }
    b->stride = 0;
    for (w = 0; w < (size_t)gc->desc.comm.world; w++) {
        b->bytes[w] = (size_t)gcomp__get64(gc->frames + (w + 1) * GCOMP__FRAME + 24);
        b->stride = gcomp__max(b->stride, b->bytes[w]);
    }
    memset(to, 0, (size_t)(gc->send + b->at_send + b->stride - to));
}

/* Elements of a kind that travel in this round, 0 where no tensor takes part, and their place. */
static size_t gcomp__round_sums(gcomp *gc, unsigned kind, void **sums)
{
    const gcomp__bucket *b = gcomp__now_at(gc);
    size_t count = 0, i;
    void *first = NULL;
    int any = 0;
    for (i = b->first; i < b->end && gc->round < 3; i++) {
        const gcomp__slot *slot = gc->tensors + i;
        if (slot->rounds[gc->round] != kind) continue;
        if (!first) first = gcomp__sum_at(gc, slot, gc->round);
        count += slot->sum_now[gc->round];
        any |= slot->grad != NULL;
    }
    if (!any) return 0;
    *sums = first;
    return count;
}

/* Where the payloads of the bucket come in. */
static uint8_t *gcomp__payloads(gcomp *gc)
{
    return gc->recv + (gc->means ? 0 : gcomp__now_at(gc)->at_send * (size_t)gc->desc.comm.world);
}

/* The payload of a worker for a tensor, at its cursor. */
static gcomp_result gcomp__next_payload(gcomp *gc, size_t w, const uint8_t **payload, size_t *length)
{
    const gcomp__bucket *b = gcomp__now_at(gc);
    *payload = gcomp__payloads(gc) + w * b->stride + gc->cursors[w];
    return gcomp__payload_length(*payload, b->bytes[w] - gc->cursors[w], length);
}

/* Checks all payloads of all workers. An error is kept: the rounds go on, so that nobody waits for this worker. */
static void gcomp__check_gather(gcomp *gc)
{
    size_t world = (size_t)gc->desc.comm.world, i, w;
    const gcomp__bucket *b = gcomp__now_at(gc);
    for (w = 0; w < world; w++) {
        gcomp__slot *slot = NULL;
        gc->cursors[w] = 0;
        for (i = b->first; i < b->end; i++) {
            const uint8_t *payload;
            size_t length = 0;
            gcomp_result result;
            slot = gc->tensors + i;
            if (!slot->grad || !slot->bound) continue;
            result = gcomp__next_payload(gc, w, &payload, &length);
            if (result == GCOMP_OK) result = gcomp__check_for(gc, slot, payload, length);
            if (result == GCOMP_OK && !(payload[6] & GCOMP__SEALED) != !!gc->desc.no_checksum) result = GCOMP_CHECKSUM_MISMATCH;
            if (result != GCOMP_OK) {
                gcomp__blame(gc, result, w, slot);
                return;
            }
            gc->cursors[w] += length;
        }
        if (slot && gc->cursors[w] != b->bytes[w]) gcomp__blame(gc, GCOMP_TRAILING_BYTES, w, slot);
    }
}

/* Lengths of all workers: the first that is bad. */
static gcomp_result gcomp__check_lengths(gcomp *gc, size_t most)
{
    const size_t world = (size_t)gc->desc.comm.world;
    const uint8_t *p = gc->lengths + world * GCOMP__LENGTH_BYTES;
    size_t w;
    for (w = 0; w < world; w++, p += GCOMP__LENGTH_BYTES) {
        if (gcomp__get32(p + 12) != (gc->set->common->crc)(0, p, 12))
            return gcomp__disagree(gc, GCOMP_CHECKSUM_MISMATCH, w,
                                   " sent a damaged length, seen by");
        if (gcomp__get32(p + 8)) return gcomp__peer_failed(gc, w, -(int)gcomp__get32(p + 8));
        if (gcomp__get64(p) > most)
            return gcomp__disagree(gc, GCOMP_CORRUPT, w, " announces more bytes than possible to");
    }
    return GCOMP_OK;
}

/* Has another worker failed, and told all? */
static int gcomp__is_told(gcomp_result result)
{
    return result != GCOMP_OK && result != GCOMP_CHECKSUM_MISMATCH && result != GCOMP_CORRUPT;
}

/* What came in a stage. What only this worker can see is kept as a late error until answers or
   totals tell all. */
static gcomp_result gcomp__finish_stage(gcomp *gc)
{
    gcomp__bucket *b = gcomp__now_at(gc);
    const size_t world = (size_t)gc->desc.comm.world, list = gcomp__list_bytes(b->lists);
    const uint8_t *lengths = gc->lengths + world * GCOMP__LENGTH_BYTES, *p;
    gcomp_result result;
    size_t w;
    if ((gc->round == GCOMP__ANSWERS || gc->round == GCOMP__TOTALS) && gc->late_error != GCOMP_OK)
        return gc->late_error;
    if (gc->round == GCOMP__LENGTHS && gc->late_error == GCOMP_OK) {
        gc->late_error = gcomp__check_lengths(gc, b->shards);
        if (gc->late_error == GCOMP_OK) gcomp__sizes_of(gc, gc->came, lengths);
    }
    if (gc->round == GCOMP__ANSWERS) {
        result = gcomp__check_lengths(gc, 0);
        if (gcomp__is_told(result)) return result;
        gc->late_error = result; /* the others go on, and the sizes are known */
    }
    if (gc->round == GCOMP__SHARDS) gcomp__add_shards(gc);
    if (gc->round == GCOMP__SHARDS && gc->listing) gcomp__put_lists(gc);
    for (w = 0; w < world && gc->round == GCOMP__LISTS; w++) {
        p = gc->lists + (w + 1) * list;
        if (gcomp__get32(p) == (gc->set->common->crc)(0, p + 4, list - 4) || gc->late_error != GCOMP_OK) continue;
        gc->late_error = gcomp__disagree(gc, GCOMP_CHECKSUM_MISMATCH, w, " sent damaged lists of sums, seen by");
    }
    if (gc->round == GCOMP__TOTALS) {
        uint8_t *own = gc->packed + gcomp__get64(gc->lengths);
        result = gcomp__check_lengths(gc, b->sum);
        if (result == GCOMP_CHECKSUM_MISMATCH) return GCOMP_CALLBACK_FAILED; /* the others go on */
        if (result != GCOMP_OK) return gcomp__is_told(result) ? result : GCOMP_MISMATCH;
        gcomp__sizes_of(gc, gc->came, lengths);
        for (b->share_stride = 0, w = 0; w < world; w++) b->share_stride = gcomp__max(b->share_stride, gc->came[w]);
        memset(own, 0, b->share_stride - (size_t)gcomp__get64(gc->lengths));
    }
    if (gc->round == GCOMP__SUMS) gcomp__check_sums(gc);
    return GCOMP_OK;
}

/* All requests of the round are done: check what came, and prepare the next round. An error ends the step at once. */
static gcomp_result gcomp__finish_round(gcomp *gc)
{
    const gcomp__bucket *b = gcomp__now_at(gc);
    void *sums = NULL;
    size_t i, count;
    unsigned kind;
    int more = 0;
    /* the stage first: late errors are those that it has told */
    if (gc->issued >> GCOMP__SHARE & 1) GCOMP__TRY(gcomp__finish_stage(gc));
    if (gc->issued >> GCOMP__GATHER & 1) gcomp__check_gather(gc);
    for (kind = GCOMP__SUM; kind < GCOMP__KINDS; kind++) {
        if (gcomp__kind_dtype(kind) != GCOMP_F32 || !(gc->issued >> kind & 1) || gc->late_error != GCOMP_OK) continue;
        count = gcomp__round_sums(gc, kind, &sums);
        if ((gc->set->common->worst)((const float *)sums, count) >= 0x7f800000u)
            gc->late_error = gcomp__fail(gc, GCOMP_NOT_FINITE,
                                         kind == GCOMP__MAX ? "the largest over the workers is not finite"
                                                            : "the sum over the workers is not finite");
    }
    gc->round++;
    gc->issued = gc->done = 1;
    more = gc->sharing && gc->round < GCOMP__STAGES;
    for (i = b->first; i < b->end; i++) {
        gcomp__slot *slot = gc->tensors + i;
        if (!slot->grad || gc->round >= 3 || slot->rounds[gc->round] == GCOMP__NO_ROUND) continue;
        more = 1;
        if (slot->rounds[gc->round] == GCOMP__GATHER) {
            gcomp__work work = gcomp__work_of(gc, slot);
            memset(gc->send + slot->at_send, 0, GCOMP__HEADER); /* what is sent after an error is refused by all */
            if (gc->late_error == GCOMP_OK && gcomp__encode_payload(gc, slot, &work) != GCOMP_OK)
                gc->late_error = gcomp__fail_tensor(gc, GCOMP_DIVERGED, slot->name, gcomp_result_string(GCOMP_DIVERGED));
        } else {
            gcomp__work work = gcomp__work_of(gc, slot);
            gcomp_result result = (slot->method->make)(&work, gc->round);
            if (result != GCOMP_OK && gc->late_error == GCOMP_OK)
                gc->late_error = gcomp__fail_tensor(gc, result, slot->name, gcomp_result_string(result));
        }
    }
    if (!more && gc->gather_round < gc->round) gc->phase = GCOMP__READY;
    return GCOMP_OK;
}

enum { GCOMP__IDS = 64 }; /* of the requests of a bucket */

/* A request goes out, of a kind (0: the frames); the clock runs while any is under way. Returns its id. */
static uint32_t gcomp__issue(gcomp *gc, unsigned kind)
{
    if (gc->issued == gc->done) gc->clock_from = gcomp__now(gc);
    gc->issued |= 1u << kind;
    return GCOMP__IDS * (uint32_t)gc->turn + (kind ? 8 * ((uint32_t)gc->round + 1) + kind : 1);
}

static void gcomp__ask_gather(gcomp *gc, gcomp_request *request, uint32_t id, const void *send, void *recv, size_t stride,
                              const size_t *bytes)
{
    request->kind = GCOMP_ALLGATHER;
    request->id = id;
    request->send = send;
    request->recv = recv;
    request->stride = stride;
    request->bytes = bytes;
    request->dtype = GCOMP_U8;
    gc->stats.bytes_out += bytes[gc->desc.comm.rank];
}

static void gcomp__ask_alltoall(gcomp *gc, gcomp_request *request, uint32_t id, const void *send, void *recv)
{
    size_t w;
    request->kind = GCOMP_ALLTOALL;
    request->id = id;
    request->send = send;
    request->recv = recv;
    request->bytes = gc->came;
    request->send_bytes = gc->sent;
    request->dtype = GCOMP_U8;
    for (w = 0; w < (size_t)gc->desc.comm.world; w++)
        if (w != (size_t)gc->desc.comm.rank) gc->stats.bytes_out += gc->sent[w];
}

/* The stage of this round, if it has one. */
static int gcomp__next_stage(gcomp *gc, gcomp_request *request)
{
    const gcomp__bucket *b = gcomp__now_at(gc);
    const size_t world = (size_t)gc->desc.comm.world, list = gcomp__list_bytes(b->lists);
    uint8_t *const lengths = gc->lengths + world * GCOMP__LENGTH_BYTES; /* of all */
    uint32_t id;
    if (!gc->sharing || gc->round >= GCOMP__STAGES || (gc->round == GCOMP__LISTS && !gc->listing)) return 0;
    id = gcomp__issue(gc, GCOMP__SHARE);
    if (gc->round == GCOMP__LENGTHS) {
        gcomp__pack_shards(gc);
        gcomp__ask_alltoall(gc, request, id, gc->lengths, lengths);
    } else if (gc->round == GCOMP__ANSWERS) {
        gcomp__sizes_of(gc, gc->sent, gc->lengths);
        gcomp__put_length(gc, gc->lengths, 0, gc->late_error);
        gcomp__all_sizes(gc, gc->places, GCOMP__LENGTH_BYTES);
        gcomp__ask_gather(gc, request, id, gc->lengths, lengths, GCOMP__LENGTH_BYTES, gc->places);
    } else if (gc->round == GCOMP__SHARDS) {
        gcomp__ask_alltoall(gc, request, id, gc->packed, gc->shards);
    } else if (gc->round == GCOMP__LISTS) {
        gcomp__all_sizes(gc, gc->came, list);
        gcomp__ask_gather(gc, request, id, gc->lists, gc->lists + list, list, gc->came);
    } else if (gc->round == GCOMP__TOTALS) {
        gcomp__pack_sums(gc);
        gcomp__ask_gather(gc, request, id, gc->lengths, lengths, GCOMP__LENGTH_BYTES, gc->came);
    } else {
        gcomp__ask_gather(gc, request, id, gc->packed, gc->cut + b->at_cut, b->share_stride, gc->came);
    }
    return 1;
}

/* Behind the frames: a byte for each tensor, from rank 0. */
static void gcomp__ask_decisions(gcomp *gc, gcomp_request *request)
{
    const size_t count = stbds_arrlenu(gc->tensors), bytes = gcomp__decision_bytes(count);
    size_t i;
    memset(gc->decisions, 0, bytes);
    for (i = 0; i < count && gc->desc.comm.rank == 0; i++) gc->decisions[i] = (uint8_t)gc->tensors[i].next;
    gcomp__put32(gc->decisions + count, (gc->set->common->crc)(gcomp__crc_number(gc, 0, gc->step), gc->decisions, count));
    for (i = 0; i < (size_t)gc->desc.comm.world; i++) gc->bytes[i] = i ? 0 : bytes;
    gc->phase = GCOMP__DECISIONS;
    gc->issued = gc->done = 0;
    gcomp__ask_gather(gc, request, gcomp__issue(gc, 0) + 1, gc->decisions, gc->decisions + bytes, bytes, gc->bytes);
}

/* The next request of the round, or WAIT; 0 if the round is over. */
static int gcomp__next_in_round(gcomp *gc, gcomp_request *request)
{
    const gcomp__bucket *b = gcomp__now_at(gc);
    unsigned kind;
    size_t count;
    for (kind = GCOMP__SUM; kind < GCOMP__KINDS; kind++) {
        if (gc->issued >> kind & 1) continue;
        count = gcomp__round_sums(gc, kind, &request->recv);
        if (!count) continue;
        request->id = gcomp__issue(gc, kind);
        request->kind = kind == GCOMP__MAX ? GCOMP_ALLREDUCE_MAX : GCOMP_ALLREDUCE;
        request->send = request->recv;
        request->count = count;
        request->dtype = gcomp__kind_dtype(kind);
        gc->stats.bytes_out += gcomp__kind_bytes(kind) * (uint64_t)count;
        return 1;
    }
    if (gc->round == gc->gather_round && !(gc->issued >> GCOMP__GATHER & 1)) {
        gcomp__pack_gather(gc);
        gcomp__ask_gather(gc, request, gcomp__issue(gc, GCOMP__GATHER), gc->send + b->at_send, gcomp__payloads(gc), b->stride,
                          b->bytes);
        return 1;
    }
    if (!(gc->issued >> GCOMP__SHARE & 1) && gcomp__next_stage(gc, request)) return 1;
    return gc->issued != gc->done;
}

/* The next request of the bucket, or WAIT; the kind is DONE when it is communicated. */
static gcomp_result gcomp__advance_bucket(gcomp *gc, gcomp_request *request)
{
    const gcomp__bucket *b = gcomp__now_at(gc);
    gcomp_result result;
    size_t i;
    if (gc->phase == GCOMP__COLLECT) {
        for (i = b->first; i < b->end; i++)
            if (!gc->tensors[i].ready) return GCOMP_OK;
        gcomp__put_frame(gc);
        for (i = 0; i < (size_t)gc->desc.comm.world; i++) gc->bytes[i] = GCOMP__FRAME;
        gc->phase = GCOMP__FRAMES;
        gcomp__ask_gather(gc, request, gcomp__issue(gc, 0), gc->frames, gc->frames + GCOMP__FRAME, GCOMP__FRAME, gc->bytes);
        return GCOMP_OK;
    }
    if (gc->phase == GCOMP__FRAMES) {
        if (!gc->done) return GCOMP_OK;
        result = gcomp__judge_frames(gc);
        if (result != GCOMP_OK) return gcomp__end_step(gc, result);
        gc->phase = GCOMP__ROUNDS;
        if (gc->turn == 0) gc->decided = gc->frames[GCOMP__FRAME + 13];
        if (gc->turn == 0 && gc->decided == GCOMP__EACH) {
            gcomp__ask_decisions(gc, request);
            return GCOMP_OK;
        }
    }
    if (gc->phase == GCOMP__DECISIONS) {
        if (!gc->done) return GCOMP_OK;
        gcomp__take_decisions(gc);
        gc->phase = GCOMP__ROUNDS;
    }
    while (gc->phase == GCOMP__ROUNDS) {
        if (gcomp__next_in_round(gc, request)) return GCOMP_OK;
        result = gcomp__finish_round(gc);
        if (result != GCOMP_OK) return gcomp__end_step(gc, result);
    }
    request->kind = GCOMP_DONE;
    return GCOMP_OK;
}

/* The payloads of all workers for a tensor, at the cursors: the sink decodes their mean. */
static void gcomp__open_gathered(gcomp *gc, const gcomp__slot *slot, gcomp__sink *sink)
{
    const size_t world = (size_t)gc->desc.comm.world;
    size_t w;
    for (w = 0; w < world; w++) {
        const uint8_t *payload;
        size_t length = 0;
        (void)gcomp__next_payload(gc, w, &payload, &length);
        gcomp__open_valid(gc->set, gc->views + w, w ? gc->views : NULL, payload, length, slot->n);
        gc->cursors[w] += length;
    }
    sink->views = gc->views;
    sink->count = world;
    sink->weight = 1.0f / (float)gc->desc.comm.world;
}

/* The mean of a tensor whose payloads another bucket has followed; NULL: its payloads are still there. */
static float *gcomp__mean_at(const gcomp *gc, const gcomp__slot *slot)
{
    return gc->means && slot->bound && gc->turn + 1 < gc->plan.buckets ? gc->means + slot->at_mean : NULL;
}

/* The means of the bucket, before the next one receives where its payloads are. */
static void gcomp__make_means(gcomp *gc)
{
    const gcomp__bucket *b = gcomp__now_at(gc);
    const double from = gcomp__now(gc);
    size_t i;
    gcomp__all_sizes(gc, gc->cursors, 0);
    for (i = b->first; i < b->end; i++) {
        const gcomp__slot *slot = gc->tensors + i;
        const gcomp__call call = gcomp__call_in(gc, slot->method); /* without the step's work, which a commit writes */
        gcomp__sink sink = gcomp__sink_to(GCOMP__COMMIT, gcomp__mean_at(gc, slot), slot->n);
        if (!slot->grad || !sink.y) continue;
        gcomp__open_gathered(gc, slot, &sink);
        (slot->method->decode)(&call, &sink);
    }
    gc->stats.commit_seconds += gcomp__now(gc) - from;
}

GCOMP__NOINLINE gcomp_result gcomp__advance(gcomp *gc, gcomp_request *request)
{
    for (;;) {
        GCOMP__TRY(gcomp__advance_bucket(gc, request));
        if (request->kind != GCOMP_DONE) return GCOMP_OK;
        if (gc->turn + 1 == gc->plan.buckets) break;
        if (gc->means && gc->late_error == GCOMP_OK) gcomp__make_means(gc);
        memset(request, 0, sizeof *request);
        gcomp__turn_to(gc, gc->turn + 1);
    }
    return gc->late_error == GCOMP_OK ? GCOMP_OK : gcomp__end_step(gc, gc->late_error);
}

GCOMP_API gcomp_result gcomp_step_next(gcomp *gc, gcomp_request *request)
{
    gcomp_result result;
    uint64_t mode;
    if (!gc || !request) return GCOMP_INVALID_ARGUMENT;
    memset(request, 0, sizeof *request);
    if (gc->phase == GCOMP__IDLE) return gcomp__fail(gc, GCOMP_WRONG_STATE, "no step is under way: begin one first");
    mode = gcomp__fp_enter();
    result = gcomp__mode_fits() ? GCOMP_OK : GCOMP_FLOAT_MODE;
    if (result != GCOMP_OK) (void)gcomp__fail(gc, result, gcomp_result_string(result));
    if (result != GCOMP_OK && gc->phase == GCOMP__COLLECT) gc->local_error = result; /* told by the frame */
    if (result == GCOMP_OK || gc->local_error == result) result = gcomp__advance(gc, request);
    else (void)gcomp__end_step(gc, result);
    gcomp__fp_leave(mode);
    return result;
}

GCOMP_API gcomp_result gcomp_step_done(gcomp *gc, uint32_t id, int status)
{
    unsigned kind = id & 7, bit;
    if (!gc) return GCOMP_INVALID_ARGUMENT;
    id -= GCOMP__IDS * (uint32_t)gc->turn; /* of another bucket: large */
    if (gc->phase != GCOMP__FRAMES && gc->phase != GCOMP__DECISIONS && gc->phase != GCOMP__ROUNDS)
        return gcomp__fail(gc, GCOMP_WRONG_STATE, "no request is under way");
    bit = id == (gc->phase == GCOMP__DECISIONS ? 2u : 1u) ? 1u : id >> 3 == (uint32_t)gc->round + 1 && kind ? 1u << kind : 0;
    if (!bit || !(gc->issued & bit) || (gc->done & bit))
        return gcomp__fail(gc, GCOMP_WRONG_STATE, "no request of this id is under way");
    gc->done |= bit;
    if (gc->issued == gc->done) gc->stats.communicate_seconds += gcomp__now(gc) - gc->clock_from;
    if (status != 0) {
        gcomp__text t = gcomp__sentence(gc);
        gcomp__say(&t, id == 1                ? "allgather of the frames"
                       : id == 2              ? "allgather of the decisions"
                       : kind == GCOMP__GATHER ? "allgather"
                       : kind == GCOMP__SHARE  ? gc->round > GCOMP__SHARDS    ? "allgather of sums"
                                                 : gc->round == GCOMP__ANSWERS ? "allgather of answers"
                                                                               : "alltoallv"
                       : kind != GCOMP__MAX    ? "allreduce"
                       : gc->desc.comm.allreduce_max || !gc->desc.comm.allgather ? "allreduce_max"
                                                                                 : "allgather of the largest");
        gcomp__say(&t, " failed with status ");
        gcomp__say_integer(&t, status);
        return gcomp__end_step(gc, GCOMP_CALLBACK_FAILED);
    }
    return GCOMP_OK;
}

/* residual <- p - decode(own payload), y <- the mean, which `made` says is there already. GLOBAL: the own payload leaves the
   residual where the mean is kept. */
static void gcomp__commit_mean(gcomp *gc, gcomp__slot *slot, gcomp__work *work, int made)
{
    const int global = slot->flags & GCOMP__GLOBAL && work->world > 1;
    const uint8_t *payload = (slot->whole ? gc->own : gc->send) + slot->at_own;
    gcomp__sink sink = gcomp__sink_of(work);
    gcomp__view own;
    gcomp__open_valid(gc->set, &own, NULL, payload, slot->length, slot->n);
    if (made) sink.y = NULL;
    else if (!slot->whole) gcomp__open_gathered(gc, slot, &sink);
    sink.own_at = (size_t)gc->desc.comm.rank;
    if (!global) sink.own = &own;
    work->call.work = work;
    (slot->method->decode)(&work->call, &sink);
    if (slot->whole) gcomp__apply_sums(gc, slot, work->y);
    if (global) gcomp__keep_largest(gc, slot, work->y);
    if (global && slot->residual) gcomp__sparse_take(&own, slot->residual, work->y);
}

/* desc.measure: |p - sent|^2 of the step here. Of the own range of two shots the residual is world times what the mean lost. */
static double gcomp__lost(const gcomp *gc, const gcomp__slot *slot)
{
    const size_t world = (size_t)gc->desc.comm.world, me = (size_t)gc->desc.comm.rank;
    const size_t begin = gcomp__adds_own(slot) ? gcomp__range(slot->n, world, me) : slot->n;
    const size_t end = gcomp__adds_own(slot) ? gcomp__range(slot->n, world, me + 1) : slot->n;
    const double before = (gc->set->common->squares)(slot->residual, begin);
    const double own = (gc->set->common->squares)(slot->residual + begin, end - begin) / ((double)world * (double)world);
    return before + own + (gc->set->common->squares)(slot->residual + end, slot->n - end);
}

GCOMP__NOINLINE void gcomp__commit_slot(gcomp *gc, gcomp__slot *slot, int check)
{
    gcomp__work work = gcomp__work_of(gc, slot);
    float *const made = gcomp__mean_at(gc, slot);
    if (made) work.y = made;
    if (slot->epoch_sum && gcomp__adds_up(gc, gc->epoch)) gcomp__add_up(slot, &work);
    if (gcomp__is_two_shot(slot)) gcomp__commit_ranges(gc, slot, &work);
    else if (slot->bound || slot->whole) gcomp__commit_mean(gc, slot, &work, made != NULL);
    else (slot->method->commit)(&work);
    if (gc->desc.measure) {
        gc->p_squares += slot->p_squares; /* tensors in order, whatever the order of ready */
        gc->y_squares += (gc->set->common->squares)(work.y, slot->n);
        if (slot->residual) gc->e_squares += gcomp__lost(gc, slot);
    }
    if (check) gc->mean_digest = gcomp__crc_floats(gc, gc->mean_digest, work.y, slot->n);
    if (slot->staging) (gc->set->common->narrow)(slot->grad, work.y, slot->dtype, slot->n);
    else if (made) memcpy(slot->grad, made, 4 * slot->n);
    gc->stats.bytes_in += 4 * (uint64_t)slot->n;
}

GCOMP_API gcomp_result gcomp_step_commit(gcomp *gc)
{
    double from;
    uint64_t mode;
    size_t i;
    int check;
    if (!gc) return GCOMP_INVALID_ARGUMENT;
    gc->error[0] = 0;
    if (gc->phase == GCOMP__IDLE) return gcomp__fail(gc, GCOMP_WRONG_STATE, "no step is under way");
    if (gc->phase != GCOMP__READY || gc->late_error != GCOMP_OK)
        return gcomp__fail(gc, GCOMP_WRONG_STATE, "the step has not been communicated yet");
    if (!gcomp__mode_fits()) return gcomp__fail(gc, GCOMP_FLOAT_MODE, gcomp_result_string(GCOMP_FLOAT_MODE));
    from = gcomp__now(gc);
    mode = gcomp__fp_enter();
    check = gc->desc.check_every && (gc->step + 1) % gc->desc.check_every == 0;
    gc->mean_digest = 0;
    gcomp__turn_epoch(gc);
    for (gc->turn = gc->plan.buckets; gc->turn-- > 0;) { /* tensors in the order of registration */
        const gcomp__bucket *b = gcomp__now_at(gc);
        gc->came = b->came;
        for (i = 0; i < (size_t)gc->desc.comm.world && gc->cursors; i++) gc->cursors[i] = gc->places[i] = 0;
        for (i = b->first; i < b->end; i++)
            if (gc->tensors[i].grad) gcomp__commit_slot(gc, gc->tensors + i, check);
    }
    gc->turn = 0;
    if (gc->desc.measure) {
        gc->stats.mean_norm = gcomp__sqrt(gc->y_squares);
        gc->stats.relative_error = gc->p_squares > 0 ? gcomp__sqrt(gc->e_squares / gc->p_squares) : 0;
    }
    gcomp__keep_pace(gc);
    gcomp__fp_leave(mode);
    gc->stats.steps++;
    gc->stats.commit_seconds += gcomp__now(gc) - from;
    gc->step++;
    gc->last = GCOMP_OK;
    gc->phase = GCOMP__IDLE;
    return GCOMP_OK;
}

GCOMP_API gcomp_result gcomp_step_abort(gcomp *gc)
{
    if (!gc) return GCOMP_INVALID_ARGUMENT;
    gcomp__leave_step(gc);
    return GCOMP_OK;
}

/* ------------------------------------------------------------------------------------------------
   >>exchange - the step driven through callbacks
   ------------------------------------------------------------------------------------------------ */

/* Is the mean of this tensor made by ranges, with one of its codecs? */
static int gcomp__may_share(const gcomp *gc, const gcomp__slot *slot)
{
    size_t l;
    for (l = 0; slot->levels && l < slot->level_count; l++) {
        gcomp__slot tried = *slot;
        gcomp__take_level(&tried, slot->levels + l);
        if (gcomp__wants_shards(&gc->desc, &tried)) return 1;
    }
    return slot->whole != 0;
}

/* Without it no frame can tell anything. */
static gcomp_result gcomp__need_frames(gcomp *gc)
{
    if (gc->desc.comm.world == 1 || gc->desc.comm.start || gc->desc.comm.allgather) return GCOMP_OK;
    return gcomp__fail(gc, GCOMP_MISSING_CALLBACK, "comm.allgather is NULL: every step gathers frames");
}

static gcomp_result gcomp__need_callbacks(gcomp *gc)
{
    size_t i;
    if (gc->desc.comm.world == 1 || gc->desc.comm.start) return GCOMP_OK;
    for (i = 0; i < stbds_arrlenu(gc->tensors) && !gc->desc.comm.alltoallv; i++)
        if (gcomp__may_share(gc, gc->tensors + i))
            return gcomp__fail_tensor(gc, GCOMP_MISSING_CALLBACK, gc->tensors[i].name,
                                      "comm.alltoallv is NULL, but desc.aggregate is GCOMP_AGGREGATE_SHARDS or _TWO_SHOT");
    for (i = 0; i < stbds_arrlenu(gc->tensors) && !gc->desc.comm.allreduce; i++) {
        const gcomp__slot *slot = gc->tensors + i;
        size_t l;
        int round, sums = 0;
        for (l = 0; l < slot->level_count; l++) {
            const uint8_t *rounds = slot->levels ? slot->levels[l].rounds : slot->rounds;
            for (round = 0; round < 3; round++) sums |= rounds[round] >= GCOMP__SUM && rounds[round] != GCOMP__MAX;
        }
        if (!sums) continue;
        return gcomp__fail_tensor(gc, GCOMP_MISSING_CALLBACK, slot->name,
                                  "comm.allreduce is NULL, but its codec exchanges sums");
    }
    return GCOMP_OK;
}

/* The largest of the workers without a callback for it: all are gathered. None is negative: their bits have their order. */
static int gcomp__gather_largest(const gcomp *gc, float *data, size_t count)
{
    int status = (gc->desc.comm.allgather)(gc->desc.comm.user, data, gc->maxima, 4 * count);
    size_t world = (size_t)gc->desc.comm.world, w, i;
    if (status != 0) return status;
    memcpy(data, gc->maxima, 4 * count);
    for (w = 1; w < world; w++) {
        const float *other = gc->maxima + w * count;
        for (i = 0; i < count; i++) data[i] = gcomp__bits(other[i]) > gcomp__bits(data[i]) ? other[i] : data[i];
    }
    return 0;
}

/* Carries out one request. One worker alone is its own transport. */
static int gcomp__carry_out(const gcomp *gc, const gcomp_request *request)
{
    const gcomp_comm *comm = &gc->desc.comm;
    if (comm->world == 1) {
        if (request->kind == GCOMP_ALLGATHER) memcpy(request->recv, request->send, request->stride);
        return 0;
    }
    if (request->kind == GCOMP_ALLTOALL)
        return (comm->alltoallv)(comm->user, request->send, request->send_bytes, request->recv, request->bytes);
    if (request->kind == GCOMP_ALLREDUCE) return (comm->allreduce)(comm->user, request->recv, request->count, request->dtype);
    if (request->kind == GCOMP_ALLREDUCE_MAX && comm->allreduce_max)
        return (comm->allreduce_max)(comm->user, (float *)request->recv, request->count);
    if (request->kind == GCOMP_ALLREDUCE_MAX) return gcomp__gather_largest(gc, (float *)request->recv, request->count);
    if (comm->allgatherv && gc->phase != GCOMP__FRAMES) /* whether all have it frames tell */
        return (comm->allgatherv)(comm->user, request->send, request->recv, request->bytes,
                                  request->stride);
    return (comm->allgather)(comm->user, request->send, request->recv, request->stride);
}

/* One that was started is over, by what wait or test said. */
static gcomp_result gcomp__landed(gcomp *gc, size_t i, int status)
{
    const uint32_t id = gc->flights[i];
    gc->flights[i] = gc->flights[--gc->flying];
    return gcomp_step_done(gc, id, status);
}

/* Asks what is under way; *over: some of it is no more. */
static gcomp_result gcomp__look(gcomp *gc, int *over)
{
    size_t i;
    for (i = 0; i < gc->flying; i++) {
        int done = 0;
        const int status = (gc->desc.comm.test)(gc->desc.comm.user, gc->flights[i], &done);
        if (status == 0 && !done) continue;
        *over = 1;
        return gcomp__landed(gc, i, status);
    }
    return GCOMP_OK;
}

/* A request is started, or carried out. */
static gcomp_result gcomp__begin_request(gcomp *gc, const gcomp_request *request)
{
    const gcomp_comm *comm = &gc->desc.comm;
    int status = 0;
    if (comm->start && comm->world > 1) {
        status = (comm->start)(comm->user, request);
        if (status == 0) {
            gc->flights[gc->flying++] = request->id;
            return GCOMP_OK;
        }
    } else {
        status = gcomp__carry_out(gc, request);
    }
    return gcomp_step_done(gc, request->id, status);
}

/* The loop: requests until all is done, or if it may not wait until there is nothing to do. *all: all is done. */
static gcomp_result gcomp__drive(gcomp *gc, int waits, int *all)
{
    gcomp_result result = GCOMP_OK;
    *all = 0;
    while (result == GCOMP_OK) {
        gcomp_request request;
        int over = 0;
        result = gcomp_step_next(gc, &request);
        if (result == GCOMP_OK && request.kind == GCOMP_DONE) {
            *all = 1;
            return GCOMP_OK;
        }
        if (result != GCOMP_OK) break;
        if (request.kind != GCOMP_WAIT) {
            result = gcomp__begin_request(gc, &request);
            continue;
        }
        if (waits && gc->flying) {
            result = gcomp__landed(gc, 0, (gc->desc.comm.wait)(gc->desc.comm.user, gc->flights[0]));
            continue;
        }
        result = gcomp__look(gc, &over);
        if (!over) return result;
    }
    gcomp__settle(gc);
    return result;
}

GCOMP_API gcomp_result gcomp_step_progress(gcomp *gc)
{
    int all;
    if (!gc) return GCOMP_INVALID_ARGUMENT;
    if (gc->phase == GCOMP__IDLE) return gcomp__fail(gc, GCOMP_WRONG_STATE, "no step is under way: begin one first");
    return gc->desc.comm.start ? gcomp__drive(gc, 0, &all) : GCOMP_OK;
}

GCOMP_API gcomp_result gcomp_step_finish(gcomp *gc)
{
    size_t i;
    int all;
    if (!gc) return GCOMP_INVALID_ARGUMENT;
    if (gc->phase == GCOMP__IDLE) return gcomp__fail(gc, GCOMP_WRONG_STATE, "no step is under way: begin one first");
    for (i = 0; i < stbds_arrlenu(gc->tensors); i++)
        if (!gc->tensors[i].ready) return gcomp__fail_tensor(gc, GCOMP_WRONG_STATE, gc->tensors[i].name, "it is not ready yet");
    GCOMP__TRY(gcomp__need_frames(gc));
    if (gc->phase != GCOMP__COLLECT) {
        GCOMP__TRY(gcomp__need_callbacks(gc));
    } else if (gc->local_error == GCOMP_OK || gc->local_error == GCOMP_NOT_FINITE) {
        const gcomp_result result = gcomp__need_callbacks(gc);
        if (result != GCOMP_OK) gc->local_error = result; /* the frame tells it */
    }
    GCOMP__TRY(gcomp__drive(gc, 1, &all));
    if (!all) return gcomp__fail(gc, GCOMP_WRONG_STATE, "a request that gcomp_step_next handed out is under way");
    return gcomp_step_commit(gc);
}

/* Begin, ready and the loop, bucket by bucket. Gradients lie back to back where flat is given; grads, if given, says then which
   are skipped. An error of this worker before the step, with its sentence, is what its frame tells:
   then its gradients are not read. */
static gcomp_result gcomp__exchange_as(gcomp *gc, void *const *grads, float *flat, const gcomp_step *step, gcomp_result before,
                                       const char *why)
{
    size_t end = stbds_arrlenu(gc->tensors), first, i;
    GCOMP__TRY(gcomp__begin(gc, step));
    if (before != GCOMP_OK) gc->local_error = gcomp__fail(gc, before, why);
    if (before != GCOMP_OK && before != GCOMP_NOT_FINITE) {
        grads = NULL;
        flat = NULL;
    }
    for (i = 0; grads && i < end && !flat; i++) gc->tensors[i].grad = grads[i]; /* all are known from here on */
    for (i = 0; flat && i < end; i++) flat += gc->tensors[i].n;
    do {
        float *at;
        first = gcomp__bucket_first(gc, end);
        for (i = first; flat && i < end; i++) flat -= gc->tensors[i].n;
        for (i = first, at = flat; i < end; i++) {
            void *grad = grads ? grads[i] : (void *)at;
            if (at && grad) grad = at;
            if (at) at += gc->tensors[i].n;
            GCOMP__TRY(gcomp_step_ready(gc, i, grad));
        }
        end = first;
        GCOMP__TRY(gcomp_step_progress(gc));
    } while (end);
    return gcomp_step_finish(gc);
}

/* ---------------- two levels: sums within the machine, its first worker goes out, and tells the others */

/* Gradients to floats, back to back, or the mean in these to the gradients. */
static void gcomp__copy_gradients(gcomp *gc, void *const *grads, float *flat, int back)
{
    const uint64_t mode = gcomp__fp_enter();
    float *const floats = (float *)(void *)gc->floats.at, *own = floats;
    size_t i;
    for (i = 0; i < stbds_arrlenu(gc->tensors); own += gc->tensors[i++].n) {
        const gcomp__slot *slot = gc->tensors + i;
        void *grad = flat ? (void *)(flat + (own - floats)) : grads[i];
        if (!grad) {
            if (!back) memset(own, 0, 4 * slot->n);
        } else if (slot->dtype == GCOMP_F32) {
            memcpy(back ? grad : (void *)own, back ? (void *)own : grad, 4 * slot->n);
        } else if (back) {
            (gc->set->common->narrow)(grad, own, slot->dtype, slot->n);
        } else {
            (gc->set->common->widen)(own, grad, slot->dtype, slot->n);
        }
    }
    gcomp__fp_leave(mode);
}

/* What a worker says to those of its machine: 0 magic 'GCN2', 4 status, 8 digest of schedule and
   codecs, 12 the levels of the tensors, a byte each, in the last sum alone; then the CRC-32C of all
   before. */
static void gcomp__put_word(const gcomp *gc, uint8_t *to, gcomp_result result, size_t levels)
{
    uint32_t codecs = gcomp__crc_schedule(gc, 0);
    size_t i;
    for (i = 0; i < stbds_arrlenu(gc->tensors); i++)
        codecs = gcomp__crc_number(gc, codecs, gc->tensors[i].codecs_digest);
    memcpy(to, "GCN2", 4);
    gcomp__put32(to + 4, (uint32_t)-(int)result);
    gcomp__put32(to + 8, codecs);
    for (i = 0; i < levels; i++) to[12 + i] = (uint8_t)gc->tensors[i].level;
    gcomp__put32(to + 12 + levels, (gc->set->common->crc)(0, to, 12 + levels));
}

static int gcomp__is_word(const gcomp *gc, const uint8_t *word, size_t levels)
{
    const uint32_t crc = (gc->set->common->crc)(0, word, 12 + levels);
    return !memcmp(word, "GCN2", 4) && gcomp__get32(word + 12 + levels) == crc;
}

/* All workers of the machine say how its sum went, before the first one goes out. *over: all have
   heard of a failure. The sentence is in the inner object. */
static gcomp_result gcomp__ask_machine(gcomp *gc, gcomp_result result, int *over)
{
    uint8_t *const own = gc->node->frames, *const all = own + GCOMP__FRAME; /* room for a frame of each */
    static const char lost[] = "node: allgather of the outcomes failed";
    static const char damaged[] = " sent a damaged outcome, seen by";
    static const char other_codecs[] = " of the machine has another schedule or other codecs than";
    const gcomp_comm *node = &gc->desc.node;
    size_t w;
    *over = result != GCOMP_OK;
    gcomp__put_word(gc, own, result, 0);
    if ((node->allgather)(node->user, own, all, GCOMP__WORD))
        return *over ? result : gcomp__fail(gc->node, GCOMP_CALLBACK_FAILED, lost);
    for (w = 0; w < (size_t)node->world && !*over; w++) {
        const uint8_t *const word = all + w * GCOMP__WORD;
        if (!gcomp__is_word(gc, word, 0)) {
            result = gcomp__disagree(gc->node, GCOMP_CHECKSUM_MISMATCH, w, damaged);
            continue;
        }
        *over = gcomp__get32(word + 4) || memcmp(word + 8, own + 8, 4);
        if (gcomp__get32(word + 4)) result = gcomp__peer_failed(gc->node, w, -(int)gcomp__get32(word + 4));
        else if (*over) result = gcomp__disagree(gc->node, GCOMP_MISMATCH, w, other_codecs);
    }
    return result;
}

/* The last collective of a step: the mean reaches the machine as a sum with the zeros of the others.
   Behind it stands, a byte in each float, how the first worker fared, and its levels. That worker
   has its mean already: the sum cannot fail for it. */
static gcomp_result gcomp__tell_machine(gcomp *gc, gcomp_result result, void *const *grads,
                                        float *flat)
{
    static const char lost[] = "node: allreduce of the means failed";
    static const char damaged[] = "node: what its first worker sent with the means arrived damaged";
    const gcomp_comm *node = &gc->desc.node;
    const size_t count = stbds_arrlenu(gc->tensors), said = GCOMP__WORD + count;
    const size_t n = gc->most.elements;
    float *const floats = (float *)(void *)gc->floats.at + n;
    uint8_t *const word = (uint8_t *)(void *)floats;
    size_t i;
    int wrong = 0;
    if (node->rank) {
        memset(gc->floats.at, 0, gc->floats.bytes);
    } else {
        if (result == GCOMP_OK) gcomp__copy_gradients(gc, grads, flat, 1);
        gcomp__put_word(gc, word, result, count);
        for (i = said; i-- > 0;) floats[i] = (float)word[i];
    }
    if ((node->allreduce)(node->user, gc->floats.at, n + said, GCOMP_F32))
        return node->rank ? gcomp__fail(gc, GCOMP_CALLBACK_FAILED, lost) : result;
    if (node->rank) {
        for (i = 0; i < said; i++)
            word[i] = (uint8_t)(floats[i] >= 0 && floats[i] <= 255 ? floats[i] : 0);
        wrong = !gcomp__is_word(gc, word, count);
        for (i = 0; i < count; i++) wrong |= word[12 + i] >= gc->tensors[i].level_count;
        if (wrong) return gcomp__fail(gc, GCOMP_CHECKSUM_MISMATCH, damaged);
        result = (gcomp_result)-(int)gcomp__get32(word + 4);
        if (result != GCOMP_OK) return gcomp__peer_failed(gc, 0, (int)result);
        for (i = 0; i < count; i++) gc->tensors[i].next = word[12 + i];
        gcomp__switch_all(gc);
    }
    /* the bits of all: -0 + 0 is 0 */
    if (result == GCOMP_OK) gcomp__copy_gradients(gc, grads, flat, 1);
    return result;
}

/* The machine's gradients are summed to the mean of its workers; all say how that went; the first
   one exchanges the mean, and commits; then all get what came of it. Who has failed alone takes part
   in the last sum all the same, so that nobody waits. */
static gcomp_result gcomp__exchange_in_node(gcomp *gc, void *const *grads, float *flat,
                                            const gcomp_step *step, gcomp_result before)
{
    const int first = gc->desc.node.rank == 0;
    const gcomp_result alone = first ? gcomp__need_frames(gc) : GCOMP_OK;
    gcomp_step within, between;
    gcomp_result result = alone != GCOMP_OK ? alone : before;
    float *sums;
    int over;
    size_t i;
    if (result == GCOMP_OK) result = gcomp__reserve_floats(gc);
    sums = gc->floats.at ? (float *)(void *)gc->floats.at : flat;
    if (result == GCOMP_OK && !flat) {
        for (i = 0; i < stbds_arrlenu(gc->tensors); i++) gc->tensors[i].grad = grads[i];
        result = gcomp__need_apart(gc);
    }
    if (result == GCOMP_OK) gcomp__copy_gradients(gc, grads, flat, 0);
    gc->started = 1;
    gc->node->step = gc->step;
    gc->node->last = gc->last;
    memset(&between, 0, sizeof between);
    if (step) between = *step;
    within = between;
    if (between.batch != 0) { /* the mean over the machines comes later: here it counts as many times more */
        within.samples = within.batch = 1;
        within.scale = gcomp__weight_of(&within, gc->desc.comm.world);
        within.samples = between.samples;
        within.batch = between.batch;
    }
    result = gcomp__exchange_as(gc->node, grads, sums, &within, result, gc->error);
    result = gcomp__ask_machine(gc, result, &over);
    between.scale = 1;
    between.samples = between.batch = 0;
    if (first && alone == GCOMP_OK)
        result = gcomp__exchange_as(gc, grads, sums, step ? &between : NULL, result, gc->node->error);
    else if (result != GCOMP_OK) (void)gcomp__fail(gc, result, gc->node->error);
    if (!over) result = gcomp__tell_machine(gc, result, grads, flat);
    if (first) return result;
    if (result != GCOMP_OK) return gcomp__end_step(gc, result);
    gc->error[0] = 0;
    gc->last = GCOMP_OK;
    gc->step++;
    gc->stats.steps++;
    return GCOMP_OK;
}

/* All gradients are floats where the user passes floats. */
static gcomp_result gcomp__need_floats(gcomp *gc)
{
    size_t i;
    for (i = 0; i < stbds_arrlenu(gc->tensors); i++)
        if (gc->tensors[i].dtype != GCOMP_F32)
            return gcomp__fail_tensor(gc, GCOMP_INVALID_ARGUMENT, gc->tensors[i].name,
                                      "its dtype is not GCOMP_F32: use gcomp_exchange_any");
    return GCOMP_OK;
}

/* An error of this worker alone goes into its frame, where it has a frame. */
static gcomp_result gcomp__exchange(gcomp *gc, void *const *grads, float *flat,
                                    const gcomp_step *step, int floats)
{
    gcomp_result before = GCOMP_OK;
    char why[GCOMP__SENTENCE];
    GCOMP__TRY(gcomp__need_idle(gc));
    if (!grads && !flat) before = gcomp__fail(gc, GCOMP_INVALID_ARGUMENT, "grads is NULL");
    else if (floats) before = gcomp__need_floats(gc);
    if (gc->node) return gcomp__exchange_in_node(gc, grads, flat, step, before);
    GCOMP__TRY(gcomp__need_frames(gc));
    memcpy(why, gc->error, sizeof why);
    return gcomp__exchange_as(gc, grads, flat, step, before, why);
}

GCOMP_API gcomp_result gcomp_exchange(gcomp *gc, float *const *grads, const gcomp_step *step)
{
    return gcomp__exchange(gc, (void *const *)(const void *)grads, NULL, step, 1);
}

GCOMP_API gcomp_result gcomp_exchange_flat(gcomp *gc, float *grads, const gcomp_step *step)
{
    return gcomp__exchange(gc, NULL, grads, step, 1);
}

GCOMP_API gcomp_result gcomp_exchange_any(gcomp *gc, void *const *grads, const gcomp_step *step)
{
    return gcomp__exchange(gc, grads, NULL, step, 0);
}

GCOMP__NOINLINE void gcomp__momentum_steps(float *x, float *velocity, const float *mean, size_t n, float rate, float momentum)
{
    size_t i;
    for (i = 0; i < n; i++) {
        float v = momentum * velocity[i], d;
        GCOMP__PIN(v);
        v += mean[i];
        GCOMP__PIN_SUM(v);
        d = mean[i] + v;
        GCOMP__PIN_SUM(d);
        d *= rate;
        GCOMP__PIN(d);
        velocity[i] = v;
        x[i] -= d;
    }
}

GCOMP_API gcomp_result gcomp_momentum_step(float *x, float *velocity, const float *mean, size_t n, float learning_rate,
                                           float momentum)
{
    uint64_t mode;
    if (n && (!x || !velocity || !mean)) return GCOMP_INVALID_ARGUMENT;
    if (!gcomp__finite(learning_rate) || !gcomp__finite(momentum)) return GCOMP_INVALID_ARGUMENT;
    if (!gcomp__mode_fits()) return GCOMP_FLOAT_MODE;
    mode = gcomp__fp_enter();
    gcomp__momentum_steps(x, velocity, mean, n, learning_rate, momentum);
    gcomp__fp_leave(mode);
    return GCOMP_OK;
}

/* ------------------------------------------------------------------------------------------------
   >>checkpoint - all state as bytes, and back
   ------------------------------------------------------------------------------------------------ */

enum { GCOMP__SAVE_HEADER = 52, GCOMP__SAVE_PACE = 16 };

/* Does rank 0 add up the tensor's gradients, for accordion? */
static int gcomp__summed_up(const gcomp *gc, const gcomp__slot *slot)
{
    return gc->schedule.rule == GCOMP__ACCORDION && slot->levels && !gc->desc.node.rank;
}

/* Places in a save: what the schedule knows on all workers; the floats; what it knows on rank 0. */
static size_t gcomp__save_pace_at(const gcomp *gc) { return GCOMP__SAVE_HEADER + 8 * stbds_arrlenu(gc->tensors); }

static size_t gcomp__save_floats_at(const gcomp *gc)
{
    return gcomp__save_pace_at(gc) + (gc->schedule.rule < 0 ? 0 : GCOMP__SAVE_PACE);
}

static size_t gcomp__save_lead_at(const gcomp *gc)
{
    size_t at = gcomp__save_floats_at(gc), i;
    for (i = 0; i < stbds_arrlenu(gc->tensors); i++)
        at += 4 * ((gc->tensors[i].residual ? gc->tensors[i].n : 0) + gc->tensors[i].state_room);
    return at;
}

static size_t gcomp__save_bytes(const gcomp *gc, uint32_t rank)
{
    size_t size = gcomp__save_lead_at(gc) + 4, i;
    if (rank || gc->schedule.rule <= GCOMP__WARMUP) return size;
    if (gc->schedule.rule != GCOMP__ACCORDION) return size + 32 + 16 * (gc->schedule.levels - 1);
    for (i = 0, size += 16; i < stbds_arrlenu(gc->tensors); i++)
        if (gcomp__summed_up(gc, gc->tensors + i)) size += 8 + 4 * gc->tensors[i].n;
    return size;
}

GCOMP_API size_t gcomp_save_size(const gcomp *gc) { return gc ? gcomp__save_bytes(gc, (uint32_t)gc->desc.comm.rank) : 0; }

static uint32_t gcomp__slot_digest(const gcomp *gc, const gcomp__slot *slot)
{
    uint32_t crc = gcomp__crc_number(gc, gcomp__crc_shape(gc, 0, slot), slot->codecs_digest);
    return gcomp__crc_number(gc, crc, slot->residual != NULL);
}

static uint8_t *gcomp__put_floats(uint8_t *to, const float *x, size_t n)
{
    size_t i;
    for (i = 0; i < n; i++) gcomp__put_float(to + 4 * i, x[i]);
    return to + 4 * n;
}

static uint8_t *gcomp__put_double(uint8_t *to, double x)
{
    uint64_t u;
    memcpy(&u, &x, 8);
    gcomp__put64(to, u);
    return to + 8;
}

static double gcomp__get_double(const uint8_t *b)
{
    uint64_t u = gcomp__get64(b);
    double x;
    memcpy(&x, &u, 8);
    return x;
}

/* What the schedule knows on rank 0 alone. */
static uint8_t *gcomp__put_lead(const gcomp *gc, uint8_t *at)
{
    const gcomp__pace *pace = &gc->pace;
    size_t i;
    if (gc->desc.comm.rank || gc->schedule.rule <= GCOMP__WARMUP) return at;
    if (gc->schedule.rule == GCOMP__ACCORDION) {
        gcomp__put32(at, (uint32_t)pace->known);
        gcomp__put32(at + 4, (uint32_t)pace->partial);
        at = gcomp__put_double(at + 8, pace->norm);
        for (i = 0; i < stbds_arrlenu(gc->tensors); i++) {
            const gcomp__slot *slot = gc->tensors + i;
            if (slot->epoch_sum) at = gcomp__put_floats(gcomp__put_double(at, slot->norm), slot->epoch_sum, slot->n);
        }
        return at;
    }
    gcomp__put32(at, (uint32_t)pace->to);
    gcomp__put32(at + 4, (uint32_t)pace->at);
    gcomp__put32(at + 8, (uint32_t)pace->measured);
    gcomp__put32(at + 12, (uint32_t)pace->steps);
    at = gcomp__put_double(gcomp__put_double(at + 16, pace->sum), pace->mean);
    for (i = 1; i < gc->schedule.levels; i++)
        at = gcomp__put_double(gcomp__put_double(at, pace->border[i][0]), pace->border[i][1]);
    return at;
}

static const char gcomp__no_saves[] = "with desc.node the first worker of the machine (node.rank 0) saves and loads";

GCOMP_API gcomp_result gcomp_save(gcomp *gc, void *save, size_t capacity, size_t *length)
{
    uint8_t *s = (uint8_t *)save, *at;
    size_t size = gcomp_save_size(gc), i;
    if (!gc) return GCOMP_INVALID_ARGUMENT;
    if (!save || !length) return gcomp__fail(gc, GCOMP_INVALID_ARGUMENT, "save or length is NULL");
    if (gc->desc.node.rank) return gcomp__fail(gc, GCOMP_WRONG_STATE, gcomp__no_saves);
    if (capacity < size) return gcomp__fail(gc, GCOMP_DST_TOO_SMALL, "a save takes gcomp_save_size bytes");
    memcpy(s, "GCMS", 4);
    gcomp__put32(s + 4, 2);
    gcomp__put64(s + 8, size);
    gcomp__put64(s + 16, gc->step);
    gcomp__put64(s + 24, gc->desc.seed);
    gcomp__put32(s + 32, (uint32_t)gc->desc.comm.rank);
    gcomp__put32(s + 36, (uint32_t)gc->desc.comm.world);
    gcomp__put32(s + 40, gc->mean_digest);
    gcomp__put32(s + 44, (uint32_t)stbds_arrlenu(gc->tensors));
    gcomp__put32(s + 48, gcomp__crc_schedule(gc, 0));
    at = s + gcomp__save_pace_at(gc);
    if (gc->schedule.rule >= 0) {
        gcomp__put32(at, (uint32_t)gc->pace.level);
        gcomp__put32(at + 4, (uint32_t)gc->pace.begun);
        gcomp__put32(at + 8, gc->pace.epoch);
        gcomp__put_float(at + 12, gc->pace.rate);
        at += GCOMP__SAVE_PACE;
    }
    for (i = 0; i < stbds_arrlenu(gc->tensors); i++) {
        const gcomp__slot *slot = gc->tensors + i;
        const size_t rest = 4 * (slot->state_room - slot->state_floats);
        gcomp__put32(s + GCOMP__SAVE_HEADER + 8 * i, gcomp__slot_digest(gc, slot));
        gcomp__put32(s + GCOMP__SAVE_HEADER + 8 * i + 4, (uint32_t)slot->level);
        if (slot->residual) at = gcomp__put_floats(at, slot->residual, slot->n);
        if (slot->state) at = gcomp__put_floats(at, slot->state, slot->state_floats);
        memset(at, 0, rest);
        at += rest;
    }
    at = gcomp__put_lead(gc, at);
    gcomp__put32(at, (gc->set->common->crc)(0, s, size - 4));
    *length = size;
    return GCOMP_OK;
}

/* "save 2: sentence", and where a tensor is at fault "save 2, tensor 'fc1': sentence". */
static gcomp_result gcomp__fail_save(gcomp *gc, gcomp_result result, size_t w, const gcomp__slot *slot, const char *sentence)
{
    gcomp__text t = gcomp__sentence(gc);
    gcomp__say(&t, "save ");
    gcomp__say_number(&t, w);
    if (slot) {
        gcomp__say(&t, ", ");
        gcomp__say_tensor(&t, slot->name);
    }
    gcomp__say(&t, ": ");
    gcomp__say(&t, sentence);
    return result;
}

/* Is it a whole save? */
static gcomp_result gcomp__check_save_frame(gcomp *gc, size_t w, const uint8_t *s, size_t length)
{
    if (!s) return gcomp__fail_save(gc, GCOMP_INVALID_ARGUMENT, w, NULL, "it is NULL");
    if (memcmp(s, "GCMS", gcomp__min(length, 4)))
        return gcomp__fail_save(gc, GCOMP_NOT_A_SAVE, w, NULL, "it does not begin like a saved state");
    if (length < GCOMP__SAVE_HEADER + 4) return gcomp__fail_save(gc, GCOMP_TRUNCATED, w, NULL, "it ends before its content");
    if (gcomp__get32(s + 4) != 2)
        return gcomp__fail_save(gc, GCOMP_UNSUPPORTED_VERSION, w, NULL, "it is of a version this library does not know");
    if (gcomp__get64(s + 8) > length) return gcomp__fail_save(gc, GCOMP_TRUNCATED, w, NULL, "it ends before its content");
    if (gcomp__get64(s + 8) < length) return gcomp__fail_save(gc, GCOMP_TRAILING_BYTES, w, NULL, "bytes follow its end");
    if (gcomp__get32(s + length - 4) != (gc->set->common->crc)(0, s, length - 4))
        return gcomp__fail_save(gc, GCOMP_CHECKSUM_MISMATCH, w, NULL, "it was damaged");
    return GCOMP_OK;
}

/* The level of a tensor in a save. */
static size_t gcomp__saved_level(const uint8_t *s, size_t tensor)
{
    return gcomp__get32(s + GCOMP__SAVE_HEADER + 8 * tensor + 4);
}

/* Neither negative nor NaN nor infinite. */
static int gcomp__saved_doubles(const uint8_t *at, size_t count)
{
    size_t i;
    for (i = 0; i < count && gcomp__get64(at + 8 * i) < (uint64_t)0x7ff << 52; i++) {}
    return i == count;
}

/* Can a schedule know what stands in a save of the right length? */
static int gcomp__schedule_fits(const gcomp *gc, const uint8_t *s)
{
    const uint8_t *at = s + gcomp__save_pace_at(gc);
    const size_t levels = gc->schedule.levels;
    size_t i, k;
    int fits = 1;
    if (gc->schedule.rule >= 0) {
        fits = gcomp__get32(at) < (gcomp__each(gc) ? 1 : levels) && gcomp__get32(at + 4) <= 1;
        fits &= gcomp__get32(at + 12) < 0x7f800000u;
        if (!gcomp__get32(at + 4)) fits &= !gcomp__get32(at + 8) && !gcomp__get32(at + 12);
        for (i = 0; i < stbds_arrlenu(gc->tensors) && !gcomp__each(gc); i++)
            fits &= !gc->tensors[i].levels || gcomp__saved_level(s, i) == gcomp__get32(at);
    }
    if (gcomp__get32(s + 32) || gc->schedule.rule <= GCOMP__WARMUP) return fits;
    at = s + gcomp__save_lead_at(gc);
    if (gc->schedule.rule != GCOMP__ACCORDION)
        return fits && gcomp__get32(at) < levels && gcomp__get32(at + 4) < levels && gcomp__get32(at + 8) <= 1 &&
               (double)gcomp__get32(at + 12) < gc->schedule.param[GCOMP__PERIOD] && gcomp__saved_doubles(at + 16, 2 * levels);
    fits &= gcomp__get32(at) <= 1 && gcomp__get32(at + 4) <= 1 && gcomp__saved_doubles(at + 8, 1);
    for (i = 0, at += 16; i < stbds_arrlenu(gc->tensors); i++) {
        if (!gcomp__summed_up(gc, gc->tensors + i)) continue;
        fits &= gcomp__saved_doubles(at, 1);
        for (k = 0, at += 8; k < gc->tensors[i].n; k++, at += 4) fits &= (gcomp__get32(at) & 0x7fffffffu) <= 0x7f800000u;
    }
    return fits;
}

/* Are the floats of the tensors finite, and zero behind what the codec keeps? */
static gcomp_result gcomp__check_saved_floats(gcomp *gc, size_t w, const uint8_t *s)
{
    size_t at = gcomp__save_floats_at(gc), i, k;
    for (i = 0; i < stbds_arrlenu(gc->tensors); i++) {
        const gcomp__slot *slot = gc->tensors + i;
        const size_t floats = (slot->residual ? slot->n : 0) +
                              (slot->levels ? slot->levels[gcomp__saved_level(s, i)].state_floats : slot->state_floats);
        for (k = 0; k < floats; k++, at += 4)
            if (!gcomp__finite(gcomp__get_float(s + at)))
                return gcomp__fail_save(gc, GCOMP_CORRUPT, w, slot, "it holds NaN or Inf there");
        for (k = floats; k < (slot->residual ? slot->n : 0) + slot->state_room; k++, at += 4)
            if (gcomp__get32(s + at)) return gcomp__fail_save(gc, GCOMP_CORRUPT, w, slot, "it holds more than the codec keeps");
    }
    return GCOMP_OK;
}

/* Is it a save of these tensors, valid to the last bit? Whoever computed its checksum may have written anything. */
static gcomp_result gcomp__check_save(gcomp *gc, size_t w, const void *save, size_t length)
{
    const uint8_t *s = (const uint8_t *)save;
    size_t count = stbds_arrlenu(gc->tensors), i;
    if (gc->desc.node.rank) return gcomp__fail(gc, GCOMP_WRONG_STATE, gcomp__no_saves);
    GCOMP__TRY(gcomp__check_save_frame(gc, w, s, length));
    if (gcomp__get32(s + 44) != count)
        return gcomp__fail_save(gc, GCOMP_SAVE_MISMATCH, w, NULL, "it has another number of tensors than the object");
    if (gcomp__get64(s + 24) != gc->desc.seed)
        return gcomp__fail_save(gc, GCOMP_SAVE_MISMATCH, w, NULL, "it has another seed than the object");
    if (gcomp__get32(s + 48) != gcomp__crc_schedule(gc, 0))
        return gcomp__fail_save(gc, GCOMP_SAVE_MISMATCH, w, NULL, "it has another schedule than the object");
    for (i = 0; i < count; i++) {
        const size_t at = GCOMP__SAVE_HEADER + 8 * i;
        if (at + 12 > length || gcomp__get32(s + at) != gcomp__slot_digest(gc, gc->tensors + i))
            return gcomp__fail_save(gc, GCOMP_SAVE_MISMATCH, w, gc->tensors + i,
                                    "it has another name, shape, codec or error feedback there");
        if (gcomp__saved_level(s, i) >= gc->tensors[i].level_count)
            return gcomp__fail_save(gc, GCOMP_CORRUPT, w, gc->tensors + i, "it has a codec behind the end of the list there");
    }
    if (gcomp__get32(s + 32) >= gcomp__get32(s + 36))
        return gcomp__fail_save(gc, GCOMP_CORRUPT, w, NULL, "its rank is not below its number of workers");
    if (length != gcomp__save_bytes(gc, gcomp__get32(s + 32)))
        return gcomp__fail_save(gc, GCOMP_CORRUPT, w, NULL, "its tensors have another length");
    if (!gcomp__schedule_fits(gc, s)) return gcomp__fail_save(gc, GCOMP_CORRUPT, w, NULL, "no schedule knows what it says");
    return gcomp__check_saved_floats(gc, w, s);
}

/* NULL, or what two saves of one step do not share: the levels, and the epoch that the schedule knows on
   all workers. The learning rate behind it is rank 0's affair: others may have been told none. */
static const char *gcomp__unlike(const gcomp *gc, const uint8_t *s, const uint8_t *other)
{
    const size_t at = gcomp__save_pace_at(gc), paced = gc->schedule.rule >= 0;
    const size_t levels = at + (paced ? 4 : 0) - GCOMP__SAVE_HEADER;
    if (memcmp(s + GCOMP__SAVE_HEADER, other + GCOMP__SAVE_HEADER, levels))
        return "it is at other codecs of the lists than the first";
    if (paced && memcmp(s + at + 4, other + at + 4, 8)) return "it is in another epoch than the first";
    return NULL;
}

/* What becomes of a part of the state: */
enum {
    GCOMP__TAKE,   /* the mean of the saves */
    GCOMP__ADD_TO, /* itself and the saved one */
    GCOMP__ZERO,
    GCOMP__LEAVE
};

static float gcomp__saturated_float(double x)
{
    return x > (double)FLT_MAX ? FLT_MAX : x < -(double)FLT_MAX ? -FLT_MAX : (float)x;
}

/* y[n], from what stands at byte `at` of the saves. */
static void gcomp__take_floats(float *y, size_t n, const void *const *saves, size_t count, size_t at, int how)
{
    const double part = 1 / (double)count;
    size_t i, w;
    for (i = 0; i < n && how != GCOMP__LEAVE; i++, at += 4) {
        double sum = how == GCOMP__ZERO ? 0 : (double)gcomp__get_float((const uint8_t *)saves[0] + at);
        for (w = 1; w < count; w++) {
            sum += (double)gcomp__get_float((const uint8_t *)saves[w] + at);
            GCOMP__PIN_SUM(sum);
        }
        sum *= part;
        GCOMP__PIN_SUM(sum);
        if (how == GCOMP__ADD_TO) sum += (double)y[i];
        GCOMP__PIN_SUM(sum);
        y[i] = gcomp__saturated_float(sum);
    }
}

/* All state, from valid saves: what is each worker's own, and what all share. */
GCOMP__NOINLINE void gcomp__take_saves(gcomp *gc, const void *const *saves, size_t count, int own, int shared)
{
    uint64_t mode = gcomp__fp_enter();
    size_t at = gcomp__save_floats_at(gc), i;
    for (i = 0; i < stbds_arrlenu(gc->tensors); i++) {
        gcomp__slot *slot = gc->tensors + i;
        const size_t alike = gcomp__shared_floats(slot);
        if (slot->residual) gcomp__take_floats(slot->residual, slot->n, saves, count, at, own);
        if (slot->residual) at += 4 * slot->n;
        if (!slot->state) continue;
        gcomp__take_floats(slot->state, alike, saves, count, at, shared);
        gcomp__take_floats(slot->state + alike, slot->state_floats - alike, saves, count, at + 4 * alike, own);
        at += 4 * slot->state_room;
    }
    gcomp__fp_leave(mode);
}

/* The levels of a save, and what the schedule knows on all workers. Before the floats: levels say how many there are. */
static void gcomp__take_levels(gcomp *gc, const uint8_t *s)
{
    const uint64_t switches = gc->stats.switches;
    const uint8_t *at = s + gcomp__save_pace_at(gc);
    size_t i;
    for (i = 0; i < stbds_arrlenu(gc->tensors); i++) gc->tensors[i].next = gcomp__saved_level(s, i);
    gcomp__switch_all(gc);
    gc->stats.switches = switches; /* none of a step */
    if (gc->schedule.rule >= 0)
        gcomp__begin_pace(gc, gcomp__get32(at), (int)gcomp__get32(at + 4), gcomp__get32(at + 8), gcomp__get_float(at + 12));
}

/* What it knows on rank 0 alone. */
static void gcomp__take_lead(gcomp *gc, const uint8_t *s)
{
    const uint8_t *at = s + gcomp__save_lead_at(gc);
    gcomp__pace *pace = &gc->pace;
    size_t i, k;
    if (gc->desc.comm.rank || gc->schedule.rule <= GCOMP__WARMUP) return;
    if (gc->schedule.rule == GCOMP__ACCORDION) {
        pace->known = (int)gcomp__get32(at);
        pace->partial = (int)gcomp__get32(at + 4);
        pace->norm = gcomp__get_double(at + 8);
        for (i = 0, at += 16; i < stbds_arrlenu(gc->tensors); i++) {
            gcomp__slot *slot = gc->tensors + i;
            if (!slot->epoch_sum) continue;
            slot->norm = gcomp__get_double(at);
            for (k = 0, at += 8; k < slot->n; k++, at += 4) slot->epoch_sum[k] = gcomp__get_float(at);
        }
        return;
    }
    pace->to = gcomp__get32(at);
    pace->at = gcomp__get32(at + 4);
    pace->measured = (int)gcomp__get32(at + 8);
    pace->steps = gcomp__get32(at + 12);
    pace->sum = gcomp__get_double(at + 16);
    pace->mean = gcomp__get_double(at + 24);
    for (i = 1; i < gc->schedule.levels; i++) {
        pace->border[i][0] = gcomp__get_double(at + 16 + 16 * i);
        pace->border[i][1] = gcomp__get_double(at + 24 + 16 * i);
    }
}

GCOMP_API gcomp_result gcomp_load(gcomp *gc, const void *const *saves, const size_t *lengths, size_t count)
{
    const char *unlike;
    const uint8_t *first, *s;
    uint32_t world, rank;
    size_t w;
    GCOMP__TRY(gcomp__enter_idle(gc));
    if (!saves || !lengths || !count) return gcomp__fail(gc, GCOMP_INVALID_ARGUMENT, "saves or lengths is NULL, or count is 0");
    for (w = 0; w < count; w++) GCOMP__TRY(gcomp__check_save(gc, w, saves[w], lengths[w]));
    rank = (uint32_t)gc->desc.comm.rank;
    first = (const uint8_t *)saves[0];
    world = gcomp__get32(first + 36);
    if (count == 1 && world == (uint32_t)gc->desc.comm.world) {
        if (gcomp__get32(first + 32) != rank) return gcomp__fail_save(gc, GCOMP_SAVE_MISMATCH, 0, NULL, "it is of another rank");
    } else if (count != world) {
        return gcomp__fail_save(gc, GCOMP_SAVE_MISMATCH, 0, NULL, "it is of another number of workers: give the saves of all");
    }
    for (w = 0; w < count && count == world; w++) {
        s = (const uint8_t *)saves[w];
        if (gcomp__get32(s + 36) != world || gcomp__get32(s + 32) != w)
            return gcomp__fail_save(gc, GCOMP_SAVE_MISMATCH, w, NULL, "saves are given in order of ranks, all of one world");
        if (gcomp__get64(s + 16) != gcomp__get64(first + 16))
            return gcomp__fail_save(gc, GCOMP_SAVE_MISMATCH, w, NULL, "it is of another step than the first");
        unlike = gcomp__unlike(gc, s, first);
        if (unlike) return gcomp__fail_save(gc, GCOMP_SAVE_MISMATCH, w, NULL, unlike);
    }
    if (world == (uint32_t)gc->desc.comm.world) { /* this rank's own */
        if (count > 1) saves += rank;
        count = 1;
    }
    s = (const uint8_t *)saves[0];
    gcomp__take_levels(gc, s);
    gcomp__take_lead(gc, s); /* rank 0's save, on rank 0 */
    gcomp__take_saves(gc, saves, count, GCOMP__TAKE, GCOMP__TAKE);
    gc->step = gcomp__get64(s + 16);
    gc->mean_digest = gcomp__get32(s + 40);
    gc->untaught = 0;
    gc->last = GCOMP_OK;
    return GCOMP_OK;
}

/* ------------------------------------------------------------------------------------------------
   >>workers - another set of workers: they leave, join, and keep what was not sent

   A gradient that is not sent yet waits in residuals, and reaches the weights as the sum of e_w / W over the W workers. Where one
   leaves, e_j <- e_j + e_i keeps the sum of e; then V workers divide by V instead of W: e <- e * V / W keeps the quotient. A
   worker that joins brings e = 0. Momentum u is added to e later, by a linear rule: the same holds for it.
   ------------------------------------------------------------------------------------------------ */

GCOMP_API gcomp_result gcomp_take_over(gcomp *gc, const void *save, size_t length)
{
    const uint8_t *s = (const uint8_t *)save;
    size_t i;
    GCOMP__TRY(gcomp__enter_idle(gc));
    GCOMP__TRY(gcomp__check_save(gc, 0, save, length));
    for (i = 0; i < stbds_arrlenu(gc->tensors); i++)
        if (gcomp__saved_level(s, i) != gc->tensors[i].level)
            return gcomp__fail_save(gc, GCOMP_SAVE_MISMATCH, 0, gc->tensors + i, "it is at another codec of the list there");
    if (gcomp__get64(s + 16) != gc->step) return gcomp__fail_save(gc, GCOMP_SAVE_MISMATCH, 0, NULL, "it is of another step");
    if (gcomp__get32(s + 36) != (uint32_t)gc->desc.comm.world)
        return gcomp__fail_save(gc, GCOMP_SAVE_MISMATCH, 0, NULL, "it is of another number of workers: take over, then regroup");
    if (gcomp__get32(s + 32) == (uint32_t)gc->desc.comm.rank)
        return gcomp__fail_save(gc, GCOMP_SAVE_MISMATCH, 0, NULL, "it is of this rank itself");
    gcomp__take_saves(gc, &save, 1, GCOMP__ADD_TO, GCOMP__LEAVE);
    return GCOMP_OK;
}

GCOMP_API gcomp_result gcomp_join(gcomp *gc, const void *save, size_t length)
{
    GCOMP__TRY(gcomp__enter_idle(gc));
    GCOMP__TRY(gcomp__check_save(gc, 0, save, length));
    gcomp__take_levels(gc, (const uint8_t *)save);
    gcomp__take_saves(gc, &save, 1, GCOMP__ZERO, GCOMP__TAKE);
    gc->step = gcomp__get64((const uint8_t *)save + 16);
    gc->mean_digest = 0;
    gc->untaught = 0;
    gc->last = GCOMP_OK;
    return GCOMP_OK;
}

static void gcomp__scale_all(float *y, size_t n, double factor)
{
    size_t i;
    for (i = 0; i < n; i++) y[i] = gcomp__saturated_float((double)y[i] * factor);
}

GCOMP__NOINLINE void gcomp__scale_own(gcomp *gc, size_t world, size_t before)
{
    uint64_t mode = gcomp__fp_enter();
    const double factor = (double)world / (double)before;
    size_t i;
    for (i = 0; i < stbds_arrlenu(gc->tensors) && world != before; i++) {
        gcomp__slot *slot = gc->tensors + i;
        const size_t alike = gcomp__shared_floats(slot);
        if (slot->residual) gcomp__scale_all(slot->residual, slot->n, factor);
        if (slot->state) gcomp__scale_all(slot->state + alike, slot->state_floats - alike, factor);
    }
    gcomp__fp_leave(mode);
}

/* Do all codecs suit the transport and the number of workers? */
static gcomp_result gcomp__suit_all(gcomp *gc, const gcomp_desc *d)
{
    char reason[GCOMP__SENTENCE];
    gcomp__text why = gcomp__text_in(reason, sizeof reason);
    uint8_t rounds[3];
    unsigned flags;
    size_t i, l;
    gcomp_result result;
    for (l = 0; l < gc->schedule.count; l++) {
        result = gcomp__transport_suits(d, gc->schedule.codecs + l, rounds, &flags, &why);
        if (result != GCOMP_OK) return gcomp__fail(gc, result, reason);
    }
    for (i = 0; i < stbds_arrlenu(gc->tensors); i++) {
        const gcomp__slot *slot = gc->tensors + i;
        for (l = 0; l < slot->level_count; l++) {
            result = gcomp__transport_suits(d, slot->levels ? &slot->levels[l].codec : &slot->codec, rounds, &flags, &why);
            if (result != GCOMP_OK) return gcomp__fail_tensor(gc, result, slot->name, reason);
        }
    }
    return GCOMP_OK;
}

/* Floats that a tensor holds, or not; 0 without memory. */
static int gcomp__hold_floats(gcomp *gc, float **at, size_t n, int wanted, int gives)
{
    if (wanted && !*at && !gives) *at = gcomp__zeros(gc, n);
    if (!wanted && gives) {
        gcomp__release(&gc->memory, *at, 4 * n);
        *at = NULL;
    }
    return *at || !wanted;
}

/* What tensors hold all the time where their worker has this place: takes what is missing, 0 without
   memory, or gives back what is not held there. */
static int gcomp__hold(gcomp *gc, const gcomp_desc *desc, int gives)
{
    size_t i, l;
    for (i = 0; i < stbds_arrlenu(gc->tensors); i++) {
        gcomp__slot *slot = gc->tensors + i;
        const int sums = gc->schedule.rule == GCOMP__ACCORDION && slot->levels && gcomp__leads(desc);
        int held;
        slot->keeps = 0;
        for (l = 0; l < slot->level_count; l++)
            slot->keeps |= gcomp__keeps(desc, slot->levels ? slot->levels[l].flags : slot->flags);
        slot->stages = slot->dtype != GCOMP_F32 && desc->node.world == 1;
        held = gcomp__hold_floats(gc, &slot->residual, slot->n, slot->keeps, gives);
        held &= gcomp__hold_floats(gc, &slot->staging, slot->n, slot->stages, gives);
        held &= gcomp__hold_floats(gc, &slot->epoch_sum, slot->n, sums, gives);
        slot->epoch_floats = slot->epoch_sum ? slot->n : 0;
        if (!held) return 0;
    }
    return 1;
}

/* What an object needs in its new place. 0 without memory. */
static int gcomp__make_ready(gcomp *next, const gcomp *gc, const gcomp_comm *node)
{
    const int prepared = gc->arena.at || gc->floats.at;
    next->frames = (uint8_t *)gcomp__allocate(&next->memory, next->frames_bytes);
    if (!next->frames || !gcomp__hold(next, &next->desc, 0)) return 0;
    if (node && !gcomp__make_node(next, prepared)) return 0;
    if (prepared && gcomp__reserve_floats(next) != GCOMP_OK) return 0;
    if (next->desc.node.rank) return 1;
    if (gc->scratch.at && gcomp__reserve_scratch(next) != GCOMP_OK) return 0;
    return !prepared || gcomp__reserve(next) == GCOMP_OK;
}

/* Gives back what one of two forms of an object has and the other does not. */
static void gcomp__drop_form(gcomp *gone, const gcomp *stays, gcomp__memory *memory)
{
    gcomp__release(memory, gone->frames, gone->frames_bytes);
    gcomp__room_give(memory, &gone->arena);
    gcomp__room_give(memory, &gone->scratch);
    if (gone->floats.at != stays->floats.at) gcomp__room_give(memory, &gone->floats);
    if (gone->node != stays->node) gcomp_close(gone->node);
}

static gcomp_result gcomp__regroup(gcomp *gc, const gcomp_comm *comm, const gcomp_comm *node)
{
    char reason[GCOMP__SENTENCE];
    gcomp__text why = gcomp__text_in(reason, sizeof reason);
    const int led = gcomp__leads(&gc->desc);
    const size_t before = (size_t)gc->desc.comm.world;
    gcomp_result result;
    gcomp next;
    size_t world, i;
    int leads;
    next = *gc; /* made ready beside the object, then put in its place */
    next.desc.comm = *comm;
    if (node) next.desc.node = *node;
    result = gcomp__resolve_comm(&next.desc.comm, &why);
    if (result == GCOMP_OK && node) result = gcomp__resolve_node(&next.desc.node, &why);
    if (result != GCOMP_OK) return gcomp__fail(gc, result, reason);
    GCOMP__TRY(gcomp__suit_all(gc, &next.desc));
    world = (size_t)next.desc.comm.world;
    leads = gcomp__leads(&next.desc);
    if (leads && gc->schedule.rule == GCOMP__ERROR) next.desc.measure = 1;
    next.frames_bytes = gcomp__frames_bytes(world);
    memset(&next.arena, 0, sizeof next.arena);
    memset(&next.scratch, 0, sizeof next.scratch);
    next.others = NULL;
    if (next.desc.node.world == 1) memset(&next.floats, 0, sizeof next.floats);
    gcomp__plan_most(&next);
    if (!gcomp__make_ready(&next, gc, node)) {
        (void)gcomp__hold(&next, &gc->desc, 1);
        gcomp__drop_form(&next, gc, &next.memory);
        gc->memory.misaligned = next.memory.misaligned;
        return gcomp__no_memory(gc, "no memory for the frames and buffers of these workers");
    }
    memset(next.frames, 0, next.frames_bytes);
    next.bytes = (size_t *)(void *)(next.frames + (world + 1) * GCOMP__FRAME);
    gcomp__drop_form(gc, &next, &next.memory);
    (void)gcomp__hold(&next, &next.desc, 1);
    if (gc->desc.node.rank && !next.desc.node.rank) next.untaught = gc->started || gc->step;
    *gc = next;
    for (i = 0; i < stbds_arrlenu(gc->tensors); i++) gc->tensors[i].next = gc->tensors[i].level;
    gcomp__switch_all(gc); /* tensors take their places for these workers */
    if (leads != led) gcomp__begin_pace(gc, gc->pace.level, gc->pace.begun, gc->pace.epoch, gc->pace.rate);
    gcomp__scale_own(gc, world, before);
    gc->last = GCOMP_OK;
    return GCOMP_OK;
}

GCOMP_API gcomp_result gcomp_regroup(gcomp *gc, const gcomp_comm *comm)
{
    GCOMP__TRY(gcomp__enter_idle(gc));
    if (!comm) return gcomp__fail(gc, GCOMP_INVALID_ARGUMENT, "comm is NULL");
    return gcomp__regroup(gc, comm, NULL);
}

GCOMP_API gcomp_result gcomp_regroup_machines(gcomp *gc, const gcomp_comm *comm, const gcomp_comm *node)
{
    GCOMP__TRY(gcomp__enter_idle(gc));
    if (!comm || !node) return gcomp__fail(gc, GCOMP_INVALID_ARGUMENT, "comm or node is NULL");
    return gcomp__regroup(gc, comm, node);
}

/* ------------------------------------------------------------------------------------------------
   >>statistics - what was sent, how long it took, how much was lost
   ------------------------------------------------------------------------------------------------ */

GCOMP_API gcomp_result gcomp_stats(const gcomp *gc, gcomp_statistics *stats)
{
    double squares = 0;
    uint64_t mode;
    size_t i;
    if (!gc || !stats) return GCOMP_INVALID_ARGUMENT;
    mode = gcomp__fp_enter();
    *stats = gc->stats;
    if (gc->node) stats->not_finite += gc->node->stats.not_finite; /* it looks at this worker's */
    for (i = 0; i < stbds_arrlenu(gc->tensors); i++)
        if (gc->tensors[i].residual) squares += (gc->set->common->squares)(gc->tensors[i].residual, gc->tensors[i].n);
    stats->residual_norm = gcomp__sqrt(squares);
    stats->ratio = stats->bytes_out ? (double)stats->bytes_in / (double)stats->bytes_out : 0;
    gcomp__fp_leave(mode);
    return GCOMP_OK;
}

/* ------------------------------------------------------------------------------------------------
   >>rehearsal - what codecs and collectives cost, measured

   A codec is timed in whole steps of an object with the tensors that it compresses, whose other workers send what it sends
   itself, in memory: all that a step does but communicate. With K such tensors of N elements a step takes K t + N s seconds;
   copies of the smallest say which part of that is t.
   ------------------------------------------------------------------------------------------------ */

enum { GCOMP__REHEARSED = 1 << 23, GCOMP__NUMBERS = 1 << 16, GCOMP__REPEATS = 3, GCOMP__WORKERS = 4, GCOMP__COPIES = 16 };

/* A question with all that is derived from it. */
typedef struct gcomp__inquiry {
    const gcomp_question *ask;
    gcomp_desc desc; /* resolved */
    gcomp_codec codec[GCOMP_CANDIDATES];
} gcomp__inquiry;

/* A desc without codecs. */
GCOMP__NOINLINE gcomp_result gcomp__resolve_alone(gcomp_desc *d, gcomp__text *why)
{
    const gcomp__set *set;
    gcomp__schedule none;
    d->codec = d->schedule = NULL;
    return gcomp__resolve_desc(d, &none, &set, why);
}

/* A tensor with one codec, and no schedule. */
GCOMP__NOINLINE gcomp_result gcomp__slot_alone(gcomp__slot *slot, const gcomp_desc *desc, const gcomp_codec *codec,
                                               const gcomp_tensor *tensor, int alone, gcomp__text *why)
{
    gcomp__schedule schedule;
    gcomp__level level;
    memset(&schedule, 0, sizeof schedule);
    schedule.rule = -1;
    schedule.levels = schedule.count = 1;
    schedule.codecs[0] = *codec;
    return gcomp__slot_of(slot, &level, desc, &schedule, tensor, alone, why);
}

/* A tensor with a candidate. 0: the rules do not compress it. */
static int gcomp__slot_with(const gcomp__inquiry *q, size_t tensor, size_t c, gcomp__slot *slot)
{
    gcomp_tensor one = q->ask->tensors[tensor];
    gcomp__text quiet = gcomp__text_in(NULL, 0);
    one.codec = NULL;
    return gcomp__slot_alone(slot, &q->desc, q->codec + c, &one, q->ask->tensor_count == 1, &quiet) == GCOMP_OK &&
           slot->codec.method == q->codec[c].method;
}

/* The middle one of three. */
static double gcomp__middle(const double t[GCOMP__REPEATS])
{
    double low = t[0] < t[1] ? t[0] : t[1], high = t[0] < t[1] ? t[1] : t[0];
    return t[2] < low ? low : t[2] > high ? high : t[2];
}

/* Nearly normal numbers for the gradients of a step: those of a table, each piece of another size. */
static void gcomp__fill_gradient(float *grad, size_t n, const float *table, uint32_t step)
{
    size_t i, at;
    for (at = 0; at < n; at += GCOMP__NUMBERS) {
        const float size = 1 + (float)gcomp__draw((uint64_t)step << 32, at) * (1.0f / 262144);
        for (i = 0; i < gcomp__min(GCOMP__NUMBERS, n - at); i++) grad[at + i] = table[i] * size;
    }
}

/* All workers send what this one sends; of sums it is the time that counts. */
static void gcomp__echo(const gcomp *gc, const gcomp_request *request)
{
    size_t w;
    for (w = 0; request->kind == GCOMP_ALLGATHER && w < (size_t)gc->desc.comm.world; w++) {
        uint8_t *to = (uint8_t *)request->recv + w * request->stride;
        memcpy(to, request->send, request->bytes[w]);
        if (request->id != 1) continue;
        gcomp__put32(to + 4, (uint32_t)w); /* its frame */
        gcomp__put32(to + 60, (gc->set->common->crc)(0, to, 60));
    }
}

/* A step, and its time without the echo. */
static gcomp_result gcomp__rehearse(gcomp *gc, float *grad, double *seconds)
{
    double from = gcomp__now(gc);
    gcomp_step options;
    gcomp_request request;
    size_t i;
    memset(&options, 0, sizeof options);
    options.epoch = UINT32_MAX; /* behind all warm-ups */
    GCOMP__TRY(gcomp_step_begin(gc, &options));
    for (i = 0; i < stbds_arrlenu(gc->tensors); i++) {
        GCOMP__TRY(gcomp_step_ready(gc, i, grad));
        grad += gc->tensors[i].n;
    }
    for (*seconds = 0;;) {
        GCOMP__TRY(gcomp_step_next(gc, &request));
        if (request.kind == GCOMP_DONE) break;
        *seconds += gcomp__now(gc) - from;
        gcomp__echo(gc, &request);
        from = gcomp__now(gc);
        GCOMP__TRY(gcomp_step_done(gc, request.id, 0));
    }
    GCOMP__TRY(gcomp_step_commit(gc));
    *seconds += gcomp__now(gc) - from;
    return GCOMP_OK;
}

/* What steps took. */
typedef struct gcomp__timing {
    double seconds, tensors, elements, bytes; /* bytes: of payloads */
} gcomp__timing;

/* The steps of an open object with its tensors: the middle time. */
static gcomp_result gcomp__time_steps(gcomp *gc, gcomp__timing *timing)
{
    size_t n = 0, i;
    double t[GCOMP__REPEATS], first;
    gcomp_result result = GCOMP_OK;
    float *table, *grad;
    int repeat;
    for (i = 0; i < stbds_arrlenu(gc->tensors); i++) n += gc->tensors[i].n;
    table = (float *)gcomp__allocate(&gc->memory, 4 * GCOMP__NUMBERS);
    grad = (float *)gcomp__allocate(&gc->memory, 4 * n);
    if (!table || !grad) result = gcomp__no_memory(gc, gcomp_result_string(GCOMP_OUT_OF_MEMORY));
    for (i = 0; i < GCOMP__NUMBERS && result == GCOMP_OK; i++)
        table[i] = ((float)gcomp__draw(1, i) + (float)gcomp__draw(2, i) + (float)gcomp__draw(3, i) + (float)gcomp__draw(4, i) -
                    131070.0f) / 37836.0f; /* of variance 1 */
    for (repeat = -1; repeat < GCOMP__REPEATS && result == GCOMP_OK; repeat++) { /* the first one is a warm-up */
        gcomp__fill_gradient(grad, n, table, (uint32_t)(repeat + 2));
        result = gcomp__rehearse(gc, grad, repeat < 0 ? &first : t + repeat);
    }
    timing->seconds = result == GCOMP_OK ? gcomp__middle(t) : 0;
    timing->tensors = (double)stbds_arrlenu(gc->tensors);
    timing->elements = (double)n;
    for (i = 0, timing->bytes = 0; i < stbds_arrlenu(gc->tensors); i++) timing->bytes += (double)gc->tensors[i].length;
    gcomp__release(&gc->memory, grad, 4 * n);
    gcomp__release(&gc->memory, table, 4 * GCOMP__NUMBERS);
    return result;
}

/* Adds the tensors that the candidate compresses, as many as fit into what is rehearsed, with as many columns where one alone is
   too large; or copies of one. */
static gcomp_result gcomp__add_rehearsed(gcomp *gc, const gcomp__inquiry *q, size_t c, const gcomp__slot *copied)
{
    gcomp_result result = GCOMP_OK;
    size_t i, left = GCOMP__REHEARSED;
    for (i = 0; i < (copied ? (size_t)GCOMP__COPIES : q->ask->tensor_count) && result == GCOMP_OK; i++) {
        gcomp_tensor tensor;
        gcomp__slot slot;
        char name[24];
        gcomp__text t = gcomp__text_in(name, sizeof name);
        if (copied) slot = *copied;
        else if (!gcomp__slot_with(q, i, c, &slot)) continue;
        memset(&tensor, 0, sizeof tensor);
        tensor.cols = gcomp__min(slot.cols, GCOMP__REHEARSED);
        tensor.rows = gcomp__min(slot.rows, GCOMP__REHEARSED / tensor.cols);
        tensor.stack = gcomp__min(slot.stack, GCOMP__REHEARSED / tensor.cols / tensor.rows);
        if (tensor.cols * tensor.rows * tensor.stack > left) continue;
        left -= tensor.cols * tensor.rows * tensor.stack;
        gcomp__say_number(&t, i);
        tensor.name = name;
        tensor.codec = q->ask->candidates[c].codec;
        result = gcomp_add_tensor(gc, &tensor);
    }
    return result;
}

/* Steps of all tensors of a candidate, or of copies of one, with so many workers. */
static gcomp_result gcomp__time_tensors(const gcomp__inquiry *q, size_t c, const gcomp__slot *copied, size_t world,
                                        gcomp__timing *timing)
{
    gcomp_desc d = q->desc;
    gcomp_result result;
    gcomp *gc;
    d.codec = NULL;
    d.comm.rank = 0;
    d.comm.world = (int)world;
    d.measure = 0;
    d.bucket_bytes = 0;
    result = gcomp_open(&gc, &d);
    if (result == GCOMP_OK) result = gcomp__add_rehearsed(gc, q, c, copied);
    if (result == GCOMP_OK) result = gcomp__time_steps(gc, timing);
    if (result != GCOMP_OK && d.why && d.why_capacity) {
        gcomp__text why = gcomp__text_in(d.why, d.why_capacity);
        gcomp__say(&why, "measuring ");
        gcomp__say(&why, q->ask->candidates[c].codec);
        gcomp__say(&why, ": ");
        gcomp__say(&why, gc && gc->error[0] ? gc->error : gcomp_result_string(result));
    }
    gcomp_close(gc);
    return result;
}

/* The figures that give the time of the tensors all together and that of the smallest, or near where these do not go together. */
static gcomp_result gcomp__measure(const gcomp__inquiry *q, size_t c, const gcomp__slot *smallest, gcomp_figures *figures)
{
    const size_t world = gcomp__min((size_t)q->desc.comm.world, GCOMP__WORKERS);
    const double others = (double)(world - 1);
    gcomp__timing one, all, least;
    double element, rest;
    GCOMP__TRY(gcomp__time_tensors(q, c, NULL, 1, &one));
    all = one;
    if (world > 1) GCOMP__TRY(gcomp__time_tensors(q, c, NULL, world, &all));
    GCOMP__TRY(gcomp__time_tensors(q, c, smallest, world, &least));
    memset(figures, 0, sizeof *figures);
    element = all.seconds / all.elements; /* of all workers, as if the number of tensors did not matter */
    rest = all.elements - all.tensors * least.elements / least.tensors;
    if (rest > all.elements / 4) { /* they differ in size */
        element = (all.seconds - all.tensors * least.seconds / least.tensors) / rest;
        if (!(element > 0)) element = 0;
        figures->tensor = (all.seconds - all.elements * element) / all.tensors;
        if (!(figures->tensor > 0)) figures->tensor = 0;
        element = (all.seconds - all.tensors * figures->tensor) / all.elements;
    }
    if (all.seconds > one.seconds) figures->payload = (all.seconds - one.seconds) / (all.elements * others);
    if (figures->payload * others > element) figures->payload = element / others;
    figures->element = element - figures->payload * others;
    if (all.bytes > 0) figures->bytes = (all.bytes - all.tensors * (double)GCOMP__HEADER) / all.elements;
    return GCOMP_OK;
}

/* The middle time of a collective, of a sum or of a gather, in seconds. */
static gcomp_result gcomp__time_collective(gcomp *gc, int sum, uint8_t *mine, uint8_t *all, size_t bytes, double *seconds)
{
    const gcomp_comm *comm = &gc->desc.comm;
    double t[GCOMP__REPEATS];
    int repeat, status = 0;
    for (repeat = -1; repeat < GCOMP__REPEATS; repeat++) {
        double from = gcomp__now(gc);
        if (sum) status = (comm->allreduce)(comm->user, mine, bytes / 4, GCOMP_F32);
        else status = (comm->allgather)(comm->user, mine, all, bytes);
        if (status != 0) return gcomp__fail(gc, GCOMP_CALLBACK_FAILED, sum ? "allreduce failed" : "allgather failed");
        if (repeat >= 0) t[repeat] = gcomp__now(gc) - from;
    }
    *seconds = gcomp__middle(t);
    return GCOMP_OK;
}

/* Start and slope of a sum or a gather. */
static gcomp_result gcomp__time_both(gcomp *gc, int sum, uint8_t *mine, size_t bytes, double *start, double *byte)
{
    double few = 0, many = 0;
    GCOMP__TRY(gcomp__time_collective(gc, sum, mine, mine + bytes, GCOMP__FRAME, &few));
    GCOMP__TRY(gcomp__time_collective(gc, sum, mine, mine + bytes, bytes, &many));
    *byte = many > few ? (many - few) / (double)(bytes - GCOMP__FRAME) : 0;
    *start = few - (double)GCOMP__FRAME * *byte;
    if (!(*start > 0)) *start = 0;
    return GCOMP_OK;
}

/* Each worker's numbers, and whether it has memory, in the place of frames; x[4] becomes the largest of them. */
static gcomp_result gcomp__agree_on(gcomp *gc, gcomp_result own, double x[4])
{
    const gcomp_comm *comm = &gc->desc.comm;
    uint8_t *f = gc->frames;
    size_t w, i;
    memset(f, 0, GCOMP__FRAME);
    gcomp__put32(f, (uint32_t)-(int)own);
    for (i = 0; i < 4; i++) {
        uint64_t u;
        memcpy(&u, x + i, 8);
        gcomp__put64(f + 8 + 8 * i, u);
    }
    if ((comm->allgather)(comm->user, f, f + GCOMP__FRAME, GCOMP__FRAME) != 0)
        return gcomp__fail(gc, GCOMP_CALLBACK_FAILED, "allgather failed");
    if (own != GCOMP_OK) return own;
    for (w = 1; w <= (size_t)comm->world; w++) {
        f = gc->frames + w * GCOMP__FRAME;
        if (gcomp__get32(f) != 0) return gcomp__disagree(gc, GCOMP_PEER_FAILED, w - 1, " has no memory, says");
        for (i = 0; i < 4; i++) {
            double other = gcomp__get_double(f + 8 + 8 * i);
            if (!gcomp__finite_double(other) || other < 0) return gcomp__disagree(gc, GCOMP_MISMATCH, w - 1, " sent no times to");
            if (other > x[i]) x[i] = other;
        }
    }
    return GCOMP_OK;
}

GCOMP_API gcomp_result gcomp_link_measure(gcomp *gc, size_t bytes, gcomp_link *link)
{
    gcomp_result result = GCOMP_OK;
    double x[4] = {0, 0, 0, 0};
    uint8_t *mine;
    size_t room;
    GCOMP__TRY(gcomp__enter_idle(gc));
    if (!link) return gcomp__fail(gc, GCOMP_INVALID_ARGUMENT, "link is NULL");
    if (!gc->desc.clock) return gcomp__fail(gc, GCOMP_MISSING_CALLBACK, "desc.clock is NULL: there is nothing to measure with");
    if (gc->desc.comm.world > 1) {
        if (!gc->desc.comm.allreduce || !gc->desc.comm.allgather)
            return gcomp__fail(gc, GCOMP_MISSING_CALLBACK, "comm.allreduce or comm.allgather is NULL");
        bytes = gcomp__round_up(gcomp__max(bytes ? bytes : (size_t)1 << 20, 2 * GCOMP__FRAME), GCOMP__FRAME);
        room = gcomp__times(bytes, (size_t)gc->desc.comm.world + 1);
        mine = (uint8_t *)gcomp__allocate(&gc->memory, room);
        if (mine) memset(mine, 0, room);
        else result = gcomp__no_memory(gc, "no memory to send from and to receive in");
        result = gcomp__agree_on(gc, result, x);
        if (result == GCOMP_OK) result = gcomp__time_both(gc, 1, mine, bytes, x, x + 1);
        if (result == GCOMP_OK) result = gcomp__time_both(gc, 0, mine, bytes, x + 2, x + 3);
        gcomp__release(&gc->memory, mine, room);
        if (result == GCOMP_OK) result = gcomp__agree_on(gc, result, x);
        if (result != GCOMP_OK) return result;
    }
    link->sum_start = x[0];
    link->sum_byte = x[1];
    link->gather_start = x[2];
    link->gather_byte = x[3];
    return GCOMP_OK;
}

/* ------------------------------------------------------------------------------------------------
   >>advice - does compressing pay, for which tensor, with which codec?

   Tensors are independent but for the start of a collective, which those that use it share. So each set of collectives is tried:
   in it every tensor has its cheapest candidate of those that need no others.
   ------------------------------------------------------------------------------------------------ */

GCOMP_API gcomp_link gcomp_link_of(double bits_per_second, double latency, int world)
{
    gcomp_link link;
    const double others = world > 1 ? (double)(world - 1) : 0;
    memset(&link, 0, sizeof link);
    if (others == 0) return link;
    link.sum_start = 2 * others * latency;
    link.sum_byte = 16 * others / (double)world / bits_per_second;
    link.gather_start = others * latency;
    link.gather_byte = 8 * others / bits_per_second;
    return link;
}

enum { GCOMP__KINDS_SUMMED = GCOMP__KINDS - GCOMP__SUM };

/* What a tensor costs with a candidate, and a bit for each collective that it uses. */
typedef struct gcomp__price {
    double codec, link;
    unsigned uses;
} gcomp__price;

static gcomp__price gcomp__price_of(const gcomp__inquiry *q, size_t c, const gcomp__slot *slot)
{
    const gcomp_figures *f = &q->ask->candidates[c].figures;
    const gcomp_link *link = &q->ask->link;
    const double n = (double)slot->n, others = (double)(q->desc.comm.world - 1);
    gcomp__price price;
    int round;
    price.codec = f->tensor + n * (f->element + others * f->payload);
    price.link = 0;
    price.uses = 0;
    for (round = 0; round < 3; round++) {
        const unsigned kind = slot->rounds[round];
        if (kind == GCOMP__GATHER) {
            price.link += ((double)GCOMP__HEADER + n * f->bytes) * link->gather_byte;
            price.uses |= 1;
        } else if (kind != GCOMP__NO_ROUND) {
            price.link += (double)slot->sum_count[round] * (double)gcomp__kind_bytes(kind) * link->sum_byte;
            price.uses |= 2u << (round * (int)GCOMP__KINDS_SUMMED + (int)(kind - GCOMP__SUM));
        }
    }
    return price;
}

/* The step with only these collectives: times, choices if `each` is not NULL. 0: some tensor needs others. */
static int gcomp__advise_with(const gcomp__inquiry *q, unsigned collectives, size_t candidates, gcomp_tensor_advice *each,
                              gcomp_advice *advice)
{
    const gcomp_link *link = &q->ask->link;
    unsigned used = 0;
    size_t i, c;
    memset(advice, 0, sizeof *advice);
    for (i = 0; i < q->ask->tensor_count; i++) {
        gcomp__price best, price, plain;
        size_t choice = GCOMP_CANDIDATES;
        memset(&best, 0, sizeof best);
        memset(&plain, 0, sizeof plain);
        for (c = 0; c < candidates; c++) {
            gcomp__slot slot;
            if (!gcomp__slot_with(q, i, c, &slot)) continue;
            price = gcomp__price_of(q, c, &slot);
            if (c == 0) plain = price;
            if (price.uses & ~collectives) continue;
            if (choice < GCOMP_CANDIDATES && price.codec + price.link >= best.codec + best.link) continue;
            best = price;
            choice = c;
        }
        if (choice == GCOMP_CANDIDATES) return 0;
        used |= best.uses;
        advice->codec_seconds += best.codec;
        advice->link_seconds += best.link;
        advice->compressed += choice != 0;
        if (!each) continue;
        each[i].choice = choice;
        each[i].seconds = best.codec + best.link;
        each[i].plain = plain.codec + plain.link;
    }
    if (q->desc.comm.world > 1) advice->link_seconds += link->gather_start + (double)GCOMP__FRAME * link->gather_byte;
    for (c = 0; used >> c; c++)
        if (used >> c & 1) advice->link_seconds += c ? link->sum_start : link->gather_start;
    advice->seconds = advice->codec_seconds + advice->link_seconds;
    return 1;
}

static int gcomp__none_negative(const double x[4])
{
    size_t i;
    for (i = 0; i < 4 && gcomp__finite_double(x[i]) && x[i] >= 0; i++) {}
    return i == 4;
}

/* "candidate 2: sentence" */
static gcomp_result gcomp__fail_candidate(gcomp__text *why, gcomp_result result, size_t c, const char *sentence)
{
    gcomp__say(why, "candidate ");
    gcomp__say_number(why, c);
    gcomp__say(why, ": ");
    gcomp__say(why, sentence);
    return result;
}

/* Looks at every field; tensors too, as those of an object. */
static gcomp_result gcomp__inquire(gcomp__inquiry *q, const gcomp_question *ask, gcomp__text *why)
{
    char reason[GCOMP__SENTENCE];
    double numbers[4];
    size_t c, i;
    q->ask = ask;
    q->desc = *ask->desc;
    q->desc.aggregate = GCOMP_AGGREGATE_GATHER;
    memset(&q->desc.node, 0, sizeof q->desc.node); /* what is compressed goes between machines */
    GCOMP__TRY(gcomp__resolve_alone(&q->desc, why));
    if (!ask->candidates || ask->candidate_count < 1 || ask->candidate_count > GCOMP_CANDIDATES)
        return gcomp__fail_field(why, "candidate_count", (int64_t)ask->candidate_count, "1 to 16 candidates");
    if (!ask->tensors && ask->tensor_count) return gcomp__say(why, "tensors is NULL"), GCOMP_INVALID_ARGUMENT;
    memcpy(numbers, &ask->link, sizeof numbers);
    if (!gcomp__none_negative(numbers))
        return gcomp__say(why, "link: times are finite and not negative"), GCOMP_INVALID_ARGUMENT;
    for (c = 0; c < ask->candidate_count; c++) {
        gcomp__text own = gcomp__text_in(reason, sizeof reason);
        uint8_t rounds[3];
        unsigned flags;
        gcomp_result result = gcomp_codec_parse(q->codec + c, ask->candidates[c].codec, reason, sizeof reason);
        if (result == GCOMP_OK) {
            own = gcomp__text_in(reason, sizeof reason);
            result = gcomp__transport_suits(&q->desc, q->codec + c, rounds, &flags, &own);
        }
        if (result != GCOMP_OK) return gcomp__fail_candidate(why, result, c, reason);
        if ((c == 0) != (q->codec[c].method == gcomp__row_none.wire))
            return gcomp__fail_candidate(why, GCOMP_INVALID_ARGUMENT, c, "the first is none, and no other");
        memcpy(numbers, &ask->candidates[c].figures, sizeof numbers);
        if (!gcomp__none_negative(numbers))
            return gcomp__fail_candidate(why, GCOMP_INVALID_ARGUMENT, c, "figures are finite and not negative");
    }
    for (i = 0; i < ask->tensor_count; i++) {
        gcomp__text own = gcomp__text_in(reason, sizeof reason);
        gcomp_tensor one = ask->tensors[i];
        gcomp__slot slot;
        gcomp_result result;
        one.codec = NULL;
        result = gcomp__slot_alone(&slot, &q->desc, q->codec, &one, ask->tensor_count == 1, &own);
        if (result == GCOMP_OK) continue;
        gcomp__say(why, "tensor ");
        gcomp__say_number(why, i);
        gcomp__say(why, ": ");
        gcomp__say(why, reason);
        return result;
    }
    return GCOMP_OK;
}

/* The figures of a candidate that were not given, from the tensors that it compresses. */
GCOMP__NOINLINE gcomp_result gcomp__figure_out(const gcomp__inquiry *q, size_t c, gcomp__text *why)
{
    static const char no_clock[] = "no times, and no desc.clock to measure with";
    gcomp_figures *const f = &q->ask->candidates[c].figures, measured;
    const int timed = f->tensor > 0 || f->element > 0 || f->payload > 0;
    gcomp__slot smallest, slot;
    int gathers = 0, round;
    size_t i;
    memset(&smallest, 0, sizeof smallest);
    for (i = 0; i < q->ask->tensor_count; i++)
        if (gcomp__slot_with(q, i, c, &slot) && (!smallest.n || slot.n < smallest.n)) smallest = slot;
    if (!smallest.n) return GCOMP_OK; /* never chosen */
    for (round = 0; round < 3; round++) gathers |= smallest.rounds[round] == GCOMP__GATHER;
    if (timed && (f->bytes > 0 || !gathers)) return GCOMP_OK;
    if (!timed && !q->desc.clock) return gcomp__fail_candidate(why, GCOMP_MISSING_CALLBACK, c, no_clock);
    GCOMP__TRY(gcomp__measure(q, c, &smallest, &measured));
    if (f->bytes > 0) measured.bytes = f->bytes;
    if (timed) f->bytes = measured.bytes;
    else *f = measured;
    return GCOMP_OK;
}

GCOMP_API gcomp_result gcomp_advise(const gcomp_question *question, gcomp_tensor_advice *each, gcomp_advice *advice)
{
    gcomp_advice best, other;
    gcomp__inquiry q;
    gcomp__text why;
    unsigned all = 0, some, chosen;
    size_t i, c, candidates = 1;
    double plain;
    if (!question || !question->desc || !advice) return GCOMP_INVALID_ARGUMENT;
    why = gcomp__text_in(question->desc->why, question->desc->why_capacity);
    memset(&q, 0, sizeof q);
    GCOMP__TRY(gcomp__inquire(&q, question, &why));
    for (c = 0; c < question->candidate_count; c++) GCOMP__TRY(gcomp__figure_out(&q, c, &why));
    for (i = 0; i < question->tensor_count; i++) {
        for (c = 0; c < question->candidate_count; c++) {
            gcomp__slot slot;
            if (gcomp__slot_with(&q, i, c, &slot)) all |= gcomp__price_of(&q, c, &slot).uses;
        }
    }
    (void)gcomp__advise_with(&q, all, 1, NULL, &best);
    plain = best.seconds;
    chosen = all;
    for (some = all; some; some = (some - 1) & all) {
        if (!gcomp__advise_with(&q, some, question->candidate_count, NULL, &other) || other.seconds >= best.seconds) continue;
        best = other;
        chosen = some;
        candidates = question->candidate_count;
    }
    (void)gcomp__advise_with(&q, chosen, candidates, each, advice);
    advice->plain = plain;
    return GCOMP_OK;
}

/* ------------------------------------------------------------------------------------------------
   >>licence

   MIT License. Copyright (c) 2026 the gcomp authors.

   Permission is hereby granted, free of charge, to any person obtaining a copy of this software and associated documentation
   files (the "Software"), to deal in the Software without restriction, including without limitation the rights to use, copy,
   modify, merge, publish, distribute, sublicense, and/or sell copies of the Software, and to permit persons to whom the
   Software is furnished to do so, subject to the following conditions: The above copyright notice and this permission notice
   shall be included in all copies or substantial portions of the Software. THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF
   ANY KIND, EXPRESS OR IMPLIED, INCLUDING BUT NOT LIMITED TO THE WARRANTIES OF MERCHANTABILITY, FITNESS FOR A PARTICULAR PURPOSE
   AND NONINFRINGEMENT. IN NO EVENT SHALL THE AUTHORS OR COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM, DAMAGES OR OTHER LIABILITY,
   WHETHER IN AN ACTION OF CONTRACT, TORT OR OTHERWISE, ARISING FROM, OUT OF OR IN CONNECTION WITH THE SOFTWARE OR THE USE OR
   OTHER DEALINGS IN THE SOFTWARE.
   ------------------------------------------------------------------------------------------------ */

/* What others include behind this file finds their compiler's options and their stb_ds.h as they were. */
#ifdef GCOMP__STB_DS
#undef GCOMP__STB_DS
#undef INCLUDE_STB_DS_H
#ifdef GCOMP__STB_DS_IMPLEMENTATION
#undef GCOMP__STB_DS_IMPLEMENTATION
#define STB_DS_IMPLEMENTATION
#endif
#ifdef GCOMP__STB_DS_SHORT_NAMES
#undef GCOMP__STB_DS_SHORT_NAMES
#undef STBDS_NO_SHORT_NAMES
#endif
#ifdef GCOMP__STB_DS_REALLOC
#undef GCOMP__STB_DS_REALLOC
#undef STBDS_REALLOC
#undef STBDS_FREE
#endif
#undef stbds_array_header
#undef stbds_string_block
#undef stbds_string_arena
#undef stbds_stralloc
#undef stbds_strreset
#undef STBDS_SH_NONE
#undef STBDS_SH_DEFAULT
#undef STBDS_SH_STRDUP
#undef STBDS_SH_ARENA
#ifdef __cplusplus
#undef stbds_arrgrowf_wrapper
#undef stbds_hmget_key_wrapper
#undef stbds_hmget_key_ts_wrapper
#undef stbds_hmput_default_wrapper
#undef stbds_hmput_key_wrapper
#undef stbds_hmdel_key_wrapper
#undef stbds_shmode_func_wrapper
#endif
#endif
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC pop_options
#endif
#if defined(__GNUC__)
#pragma GCC diagnostic pop
#endif

#endif /* the last pass of the implementation */
