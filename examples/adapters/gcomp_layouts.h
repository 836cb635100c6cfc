/* gcomp_layouts.h - sizes and offsets of the structs of gcomp.h, and the values of its enums, for
   programs in other languages. Copy it, change it. Licence: as gcomp.h.

       size_t offset, size;
       const char *name;
       for (size_t i = 0; (name = gcomp_layout(i, &offset, &size)) != NULL; i++)
           printf("%s %zu %zu\n", name, offset, size);

   Programs that do not include gcomp.h declare its structs by themselves. Before the first call
   they compare this table with what they believe. With GCOMP_LAYOUTS_SHARED, in one file of a
   shared object or of an object file, gcomp_layout is a function that such programs call. */

#ifndef GCOMP_LAYOUTS_H
#define GCOMP_LAYOUTS_H

#include "gcomp.h"

/* One list names each struct with all of its fields in order, and the values of enums. The test of
   the Python module compares the list with the declarations. */
#define GCOMP_LAYOUTS(S, F, V) \
    S(gcomp_parallel) F(gcomp_parallel, run) F(gcomp_parallel, user) \
    S(gcomp_allocator) F(gcomp_allocator, alloc) F(gcomp_allocator, free) \
    F(gcomp_allocator, user) \
    S(gcomp_codec) F(gcomp_codec, method) F(gcomp_codec, value) F(gcomp_codec, reserved) \
    F(gcomp_codec, param) F(gcomp_codec, value_param) \
    S(gcomp_key) F(gcomp_key, shared) F(gcomp_key, own) \
    S(gcomp_input) F(gcomp_input, grad) F(gcomp_input, dtype) F(gcomp_input, scale) \
    F(gcomp_input, residual) F(gcomp_input, rows) F(gcomp_input, cols) F(gcomp_input, key) \
    F(gcomp_input, checksum) \
    S(gcomp_exec) F(gcomp_exec, isa) F(gcomp_exec, scratch) F(gcomp_exec, scratch_bytes) \
    F(gcomp_exec, parallel) \
    S(gcomp_info) F(gcomp_info, codec) F(gcomp_info, count) F(gcomp_info, length) \
    F(gcomp_info, refused) F(gcomp_info, checksum) \
    S(gcomp_comm) F(gcomp_comm, user) F(gcomp_comm, rank) F(gcomp_comm, world) \
    F(gcomp_comm, allreduce) F(gcomp_comm, allgather) F(gcomp_comm, allgatherv) \
    F(gcomp_comm, allreduce_max) F(gcomp_comm, alltoallv) F(gcomp_comm, start) \
    F(gcomp_comm, test) F(gcomp_comm, wait) F(gcomp_comm, allreduce_dtypes) \
    S(gcomp_desc) F(gcomp_desc, codec) F(gcomp_desc, schedule) F(gcomp_desc, comm) \
    F(gcomp_desc, node) F(gcomp_desc, seed) F(gcomp_desc, min_elements) \
    F(gcomp_desc, compress_vectors) F(gcomp_desc, no_error_feedback) F(gcomp_desc, no_checksum) \
    F(gcomp_desc, measure) F(gcomp_desc, aggregate) F(gcomp_desc, bucket_bytes) \
    F(gcomp_desc, check_every) F(gcomp_desc, isa) F(gcomp_desc, allocator) \
    F(gcomp_desc, parallel) F(gcomp_desc, clock) F(gcomp_desc, clock_user) F(gcomp_desc, why) \
    F(gcomp_desc, why_capacity) F(gcomp_desc, residual) F(gcomp_desc, optimizer) \
    F(gcomp_desc, decay) \
    S(gcomp_tensor) F(gcomp_tensor, name) F(gcomp_tensor, rows) F(gcomp_tensor, cols) \
    F(gcomp_tensor, stack) F(gcomp_tensor, dtype) F(gcomp_tensor, codec) \
    S(gcomp_tensor_info) F(gcomp_tensor_info, name) F(gcomp_tensor_info, rows) \
    F(gcomp_tensor_info, cols) F(gcomp_tensor_info, stack) F(gcomp_tensor_info, elements) \
    F(gcomp_tensor_info, dtype) F(gcomp_tensor_info, codec) F(gcomp_tensor_info, residual) \
    S(gcomp_step) F(gcomp_step, scale) F(gcomp_step, learning_rate) F(gcomp_step, epoch) \
    F(gcomp_step, samples) F(gcomp_step, batch) F(gcomp_step, number) \
    S(gcomp_request) F(gcomp_request, kind) F(gcomp_request, id) F(gcomp_request, send) \
    F(gcomp_request, recv) F(gcomp_request, stride) F(gcomp_request, bytes) \
    F(gcomp_request, send_bytes) F(gcomp_request, count) F(gcomp_request, dtype) \
    S(gcomp_round) F(gcomp_round, kind) F(gcomp_round, dtype) F(gcomp_round, bytes) \
    F(gcomp_round, sent) F(gcomp_round, varies) \
    S(gcomp_report) F(gcomp_report, text) F(gcomp_report, capacity) F(gcomp_report, length) \
    S(gcomp_statistics) F(gcomp_statistics, steps) F(gcomp_statistics, skipped) \
    F(gcomp_statistics, failed) F(gcomp_statistics, not_finite) F(gcomp_statistics, switches) \
    F(gcomp_statistics, bytes_in) F(gcomp_statistics, bytes_out) F(gcomp_statistics, bytes_ring) \
    F(gcomp_statistics, ratio) F(gcomp_statistics, encode_seconds) \
    F(gcomp_statistics, communicate_seconds) F(gcomp_statistics, commit_seconds) \
    F(gcomp_statistics, residual_norm) F(gcomp_statistics, relative_error) \
    F(gcomp_statistics, mean_norm) F(gcomp_statistics, memory) \
    V(GCOMP_CLASS_OK) V(GCOMP_CLASS_RETRY) V(GCOMP_CLASS_RESYNCHRONISE) V(GCOMP_CLASS_FATAL) \
    V(GCOMP_F32) V(GCOMP_F16) V(GCOMP_BF16) V(GCOMP_U8) V(GCOMP_I8) V(GCOMP_I16) V(GCOMP_I32) \
    V(GCOMP_ISA_AUTO) V(GCOMP_ISA_SCALAR) V(GCOMP_ISA_AVX2) V(GCOMP_ISA_AVX512) \
    V(GCOMP_ISA_NEON) \
    V(GCOMP_AGGREGATE_AUTO) V(GCOMP_AGGREGATE_GATHER) V(GCOMP_AGGREGATE_SHARDS) \
    V(GCOMP_AGGREGATE_TWO_SHOT) V(GCOMP_AGGREGATE_SCATTER) \
    V(GCOMP_OPTIMIZER_UNKNOWN) V(GCOMP_OPTIMIZER_SGD) V(GCOMP_OPTIMIZER_ADAM) \
    V(GCOMP_WAIT) V(GCOMP_DONE) V(GCOMP_ALLGATHER) V(GCOMP_ALLREDUCE) V(GCOMP_ALLREDUCE_MAX) \
    V(GCOMP_ALLTOALL)

#ifdef GCOMP_LAYOUTS_SHARED
GCOMP_API const char *gcomp_layout(size_t i, size_t *offset, size_t *size);
#define GCOMP_LAYOUTS_LINK GCOMP_API
#else
#define GCOMP_LAYOUTS_LINK static
#endif

/* The i-th name of a table of structs, their fields, values of enums, and results; NULL behind the
   last.
     "gcomp_step"        *size: of the struct; *offset: 0
     "gcomp_step.scale"  *offset: of the field; *size: its bytes
     "GCOMP_F16"         *offset: the value; *size: 0. Of an error it is (size_t)value
   Pointers may be NULL. */
GCOMP_LAYOUTS_LINK const char *gcomp_layout(size_t i, size_t *offset, size_t *size)
{
#define GCOMP_LAYOUTS_STRUCT(type) {#type, 0, sizeof(type)},
#define GCOMP_LAYOUTS_FIELD(type, field) \
    {#type "." #field, offsetof(type, field), sizeof(((type *)NULL)->field)},
#define GCOMP_LAYOUTS_VALUE(name) {#name, (size_t)(name), 0},
#define GCOMP_LAYOUTS_RESULT(name, value, kind, sentence) {#name, (size_t)(value), 0},
    static const struct {
        const char *name;
        size_t offset, size;
    } table[] = {GCOMP_LAYOUTS(GCOMP_LAYOUTS_STRUCT, GCOMP_LAYOUTS_FIELD, GCOMP_LAYOUTS_VALUE)
                     GCOMP_RESULTS(GCOMP_LAYOUTS_RESULT)};
    if (i >= sizeof table / sizeof *table) return NULL; /* behind the last */
    if (offset) *offset = table[i].offset;
    if (size) *size = table[i].size;
    return table[i].name;
}

#undef GCOMP_LAYOUTS
#undef GCOMP_LAYOUTS_LINK
#undef GCOMP_LAYOUTS_STRUCT
#undef GCOMP_LAYOUTS_FIELD
#undef GCOMP_LAYOUTS_VALUE
#undef GCOMP_LAYOUTS_RESULT

#endif /* GCOMP_LAYOUTS_H */
