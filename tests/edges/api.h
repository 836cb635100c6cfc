/* What tests of arguments share: memory that counts and fails, and small makers. */

#ifndef API_H
#define API_H

#if !defined(_POSIX_C_SOURCE)
#define _POSIX_C_SOURCE 200809L /* setenv */
#endif

#include "test.h"
#include <fenv.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---------------- memory that counts and fails */

typedef struct memory {
    size_t live_blocks, live_bytes, calls;
    size_t fail_from, fail_count;  /* calls fail_from .. fail_from + fail_count - 1 get nothing; calls count from 1 */
    int wrong;                     /* a block freed with another size, or an alignment out of range */
} memory;

typedef struct block {
    size_t bytes;
    void *raw;
} block;

/* 0: calls that should fail get no memory. Else they get memory so many bytes beside an aligned
   address. */
static size_t memory_beside;

static inline void *memory_alloc(void *user, size_t bytes, size_t align)
{
    memory *m = (memory *)user;
    m->calls++;
    const int fails = m->calls >= m->fail_from && m->calls - m->fail_from < m->fail_count;
    if (fails && !memory_beside) return NULL;
    if (align == 0 || align > 64 || (align & (align - 1)) != 0) m->wrong = 1;
    unsigned char *raw = (unsigned char *)malloc(bytes + sizeof(block) + 128);
    if (!raw) return NULL;
    uintptr_t at = (uintptr_t)(raw + sizeof(block) + 63);
    unsigned char *p = raw + sizeof(block) + (63 - (size_t)(at % 64)) + 0;
    p += (64 - (size_t)((uintptr_t)p % 64)) % 64;
    if (align < 64 && align > 0) p += align; /* no better aligned than was asked for */
    if (fails) p += memory_beside;
    block b;
    b.bytes = bytes;
    b.raw = raw;
    memcpy(p - sizeof b, &b, sizeof b);
    memset(p, 0xCD, bytes);
    m->live_blocks++;
    m->live_bytes += bytes;
    return p;
}

static inline void memory_free(void *user, void *p, size_t bytes)
{
    memory *m = (memory *)user;
    block b;
    if (!p) {
        m->wrong = 1;
        return;
    }
    memcpy(&b, (unsigned char *)p - sizeof b, sizeof b);
    if (b.bytes != bytes) m->wrong = 1;
    m->live_blocks--;
    m->live_bytes -= b.bytes;
    free(b.raw);
}

static inline gcomp_allocator memory_allocator(memory *m)
{
    gcomp_allocator a;
    memset(m, 0, sizeof *m);
    a.alloc = memory_alloc;
    a.free = memory_free;
    a.user = m;
    return a;
}

/* ---------------- small makers */

static inline gcomp_desc plain_desc(void)
{
    gcomp_desc desc;
    memset(&desc, 0, sizeof desc);
    return desc;
}

static inline gcomp_tensor plain_tensor(const char *name, size_t rows, size_t cols, const char *codec)
{
    gcomp_tensor tensor;
    memset(&tensor, 0, sizeof tensor);
    tensor.name = name;
    tensor.rows = rows;
    tensor.cols = cols;
    tensor.codec = codec;
    return tensor;
}

static inline gcomp *open_or_die(const gcomp_desc *desc)
{
    gcomp *gc = NULL;
    gcomp_result result = gcomp_open(&gc, desc);
    CHECK(result == GCOMP_OK && gc != NULL);
    if (!gc) exit(1);
    return gc;
}

static inline float noise(uint64_t seed, size_t i)
{
    uint64_t x = seed * 0x9E3779B97F4A7C15u + (uint64_t)i * 0xD1B54A32D192ED03u + 1;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return (float)((int32_t)((x ^ (x >> 31)) >> 40) - 8388608) / 8388608.0f;
}

static const char *const codecs[] = {"none", "fp16", "bf16", "sign", "sign:block=tensor", "topk:density=0.05",
                                     "topk:density=0.05+bf16"};

enum { CODECS = sizeof codecs / sizeof codecs[0] };

/* ---------------- memory */

static const gcomp_tensor some[] = {
    {"matrix", 40, 60, 0, GCOMP_F32, "powersgd:rank=2"}, {"stack", 18, 10, 3, GCOMP_F32, "powersgd:rank=1"},
    {"sign", 40, 37, 0, GCOMP_F32, "sign"},              {"topk", 50, 41, 0, GCOMP_F32, "topk:density=0.05"},
    {"half", 30, 50, 0, GCOMP_F16, "bf16"},              {"vector", 129, 0, 0, GCOMP_F32, NULL},
};

enum { SOME = sizeof some / sizeof some[0], LARGEST = 2400 };

#endif
