/* The random test of hostile workers: the party, and what a hostile worker sends. */

#ifndef HOSTILE_WORKER_H
#define HOSTILE_WORKER_H

#include "random_operations.h"

/* ---------------- a hostile worker

   A party of workers, each in a thread of its own; one runs at a time, until it waits for a
   collective. When all of a group have asked for it, the collective is carried out, and what a
   hostile worker seems to have sent is another for some of those who receive: any field, any
   length, with a right checksum. A receiver may take a value that can be, or return an error; it
   must not end otherwise, write behind its memory, wait for ever, or change on an error. */

enum { PEERS = 6, GROUPS = 4, CALLS = 512, GUARD = 128, PAST = 8, PAST_BYTES = 2048 };

/* A heap with bytes before and behind each block that nobody may touch. */
typedef struct guarded {
    struct guarded *next, *before;
    size_t bytes;
    uint8_t *block, *user;
} guarded;

static uint8_t guard_byte(size_t i) { return (uint8_t)(0xA5 ^ i * 29); }

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#define CLOSE_GUARD(at, bytes) ASAN_POISON_MEMORY_REGION(at, bytes)
#define OPEN_GUARD(at, bytes) ASAN_UNPOISON_MEMORY_REGION(at, bytes)
#else
#define CLOSE_GUARD(at, bytes) ((void)0)
#define OPEN_GUARD(at, bytes) ((void)0)
#endif

static void *guarded_alloc(void *user, size_t bytes, size_t align)
{
    guarded *heap = (guarded *)user, *g = (guarded *)malloc(sizeof *g);
    const size_t front = align > GUARD ? align : GUARD;
    void *block;
    if (!g || posix_memalign(&block, front, front + bytes + GUARD)) abort();
    g->block = (uint8_t *)block;
    g->user = g->block + front;
    g->bytes = bytes;
    memset(g->user, 0x7f, bytes);
    for (size_t i = 0; i < GUARD; i++)
        g->user[bytes + i] = (g->user - GUARD)[i] = guard_byte(i);
    CLOSE_GUARD(g->user - GUARD, GUARD);
    CLOSE_GUARD(g->user + bytes, GUARD);
    g->next = heap->next;
    g->before = heap;
    if (heap->next) heap->next->before = g;
    heap->next = g;
    return g->user;
}

static int guards_are_whole(const guarded *g)
{
    int whole = 1;
    OPEN_GUARD(g->user - GUARD, GUARD);
    OPEN_GUARD(g->user + g->bytes, GUARD);
    for (size_t i = 0; i < GUARD; i++)
        whole &= (g->user - GUARD)[i] == guard_byte(i) && g->user[g->bytes + i] == guard_byte(i);
    CLOSE_GUARD(g->user - GUARD, GUARD);
    CLOSE_GUARD(g->user + g->bytes, GUARD);
    return whole;
}

static void guarded_free(void *user, void *memory, size_t bytes)
{
    guarded *g = (guarded *)user;
    while (g && g->user != memory) g = g->next;
    MUST(g && g->bytes == bytes, "a block is freed that is none, or with other bytes");
    if (!g) return;
    MUST(guards_are_whole(g), "bytes before or behind a block of %zu bytes were written", bytes);
    OPEN_GUARD(g->user - GUARD, GUARD);
    OPEN_GUARD(g->user + g->bytes, GUARD);
    g->before->next = g->next;
    if (g->next) g->next->before = g->before;
    free(g->block);
    free(g);
}

/* ---------------- the party */

typedef struct call {
    gcomp_request r;
    size_t bytes[PEERS], sent[PEERS]; /* copies of what r points to */
    int status, over;
} call;

/* A worker's place in a group: among all, or among the first workers of machines; or in a
   machine. */
typedef struct seat {
    struct peer *peer;
    size_t group, rank, asked;
    call *calls; /* CALLS of them */
} seat;

typedef struct peer {
    gcomp *gc;
    guarded heap;
    seat seat[2]; /* 0: comm, 1: node */
    pthread_t thread;
    sem_t go;
    const call *waits;
    int over, way; /* the step has ended; how it is driven */
    gcomp_result result;
    void *grad[TENSORS];
    uint8_t *before; /* a save */
    size_t before_bytes;
} peer;

static struct {
    size_t count, machines, each, members[GROUPS], carried[GROUPS];
    seat *member[GROUPS][PEERS];
    peer peer[PEERS];
    sem_t back;
    gcomp_desc desc;
    gcomp_step step;
    unsigned skip;
    /* what is done to collectives */
    size_t hostile, rate, only, collective;
    unsigned victims; /* a bit for each worker that receives it */
    int alike, honest;
    int clean; /* the saves that are kept are those of workers that agree */
    uint8_t past[PAST][PAST_BYTES];
    size_t past_bytes[PAST], pasts;
    unsigned long struck, ok, errors, refused;
} party;

static void wait_for_call(peer *p, const call *c)
{
    while (!c->over) {
        p->waits = c;
        sem_post(&party.back);
        sem_wait(&p->go);
    }
    p->waits = NULL;
}

/* Asks for a collective; it is carried out when all of the group have asked. */
static call *ask(seat *s, const gcomp_request *r)
{
    call *c = &s->calls[s->asked % CALLS];
    const size_t members = party.members[s->group];
    if (s->asked >= CALLS) {
        finding("a step without an end");
        abort();
    }
    c->r = *r;
    c->over = c->status = 0;
    if (r->bytes) memcpy(c->bytes, r->bytes, members * sizeof(size_t));
    if (r->send_bytes) memcpy(c->sent, r->send_bytes, members * sizeof(size_t));
    for (size_t w = 0; w < members && !r->bytes; w++) c->bytes[w] = r->stride;
    s->asked++;
    return c;
}

static int ask_and_wait(void *user, gcomp_request_kind kind, const void *send, void *recv,
                        size_t stride, const size_t *bytes, const size_t *sent, size_t count,
                        gcomp_dtype dtype)
{
    seat *s = (seat *)user;
    gcomp_request r;
    memset(&r, 0, sizeof r);
    r.kind = kind;
    r.send = send;
    r.recv = recv;
    r.stride = stride;
    r.bytes = bytes;
    r.send_bytes = sent;
    r.count = count;
    r.dtype = dtype;
    const call *c = ask(s, &r);
    wait_for_call(s->peer, c);
    return c->status;
}

static int party_allgather(void *user, const void *mine, void *all, size_t bytes)
{
    return ask_and_wait(user, GCOMP_ALLGATHER, mine, all, bytes, NULL, NULL, 0, GCOMP_U8);
}

static int party_allgatherv(void *user, const void *mine, void *all, const size_t *bytes,
                            size_t stride)
{
    return ask_and_wait(user, GCOMP_ALLGATHER, mine, all, stride, bytes, NULL, 0, GCOMP_U8);
}

static int party_alltoallv(void *user, const void *send, const size_t *sent, void *recv,
                           const size_t *came)
{
    return ask_and_wait(user, GCOMP_ALLTOALL, send, recv, 0, came, sent, 0, GCOMP_U8);
}

static int party_allreduce(void *user, void *data, size_t count, gcomp_dtype dtype)
{
    return ask_and_wait(user, GCOMP_ALLREDUCE, data, data, 0, NULL, NULL, count, dtype);
}

static int party_max(void *user, float *data, size_t count)
{
    return ask_and_wait(user, GCOMP_ALLREDUCE_MAX, data, data, 0, NULL, NULL, count, GCOMP_F32);
}

static int party_start(void *user, const gcomp_request *r)
{
    (void)ask((seat *)user, r);
    return 0;
}

/* The last request of this id: ids come again in the next step only. */
static const call *call_of(const seat *s, uint32_t id)
{
    size_t k = s->asked;
    while (k && s->calls[k - 1].r.id != id) k--;
    MUST(k, "a request is tested or waited for that was not started");
    return &s->calls[k ? k - 1 : 0];
}

static int party_test(void *user, uint32_t id, int *done)
{
    const call *c = call_of((const seat *)user, id);
    *done = c->over;
    return c->over ? c->status : 0;
}

static int party_wait(void *user, uint32_t id)
{
    seat *s = (seat *)user;
    const call *c = call_of(s, id);
    wait_for_call(s->peer, c);
    return c->status;
}

/* ---------------- what a hostile worker sends */

static uint64_t draw_extreme(uint64_t old)
{
    static const uint64_t some[] = {
        0, 1, 2, 3, 15, 16, 64, 127, 128, 255, 256, 0x7fff, 0x8000, 0xffff, 0x10000, 0x7fffffff,
        0x80000000u, 0xffffffffu, 0x100000000u, (uint64_t)1 << 40, (uint64_t)1 << 62,
        (uint64_t)1 << 63, UINT64_MAX, UINT64_MAX - 31, 0x7f800000u, 0x7fc00000u, 0xff800000u,
        0x7f7fffffu, 0xff7fffffu, 0x00800000u, 0x80000001u, 0x3f800000u, 0x7f7f7f7fu};
    switch (below(7)) {
    case 0: return old + 1;
    case 1: return old - 1;
    case 2: return once_in(2) ? old * 2 : old / 2;
    case 3: return old ^ (uint64_t)1 << below(64);
    case 4: return draw() >> below(64);
    default: return some[below(sizeof some / sizeof *some)];
    }
}

/* Another value in `bytes` bytes at p, of those that lie in n bytes. */
static void change_word(uint8_t *p, size_t n, size_t at, int bytes)
{
    if (at + (size_t)bytes > n) return;
    put_word(p + at, draw_extreme(get_word(p + at, bytes)), bytes);
}

/* A word of any size anywhere, or a few bits, or noise, or zeros. */
static void change_blindly(uint8_t *p, size_t n)
{
    const size_t at = n ? below(n) : 0, length = n ? 1 + below(n - at) : 0;
    if (!n) return;
    switch (below(6)) {
    case 0: change_word(p, n, once_in(2) ? at & ~(size_t)3 : at, 4); break;
    case 1: change_word(p, n, once_in(2) ? 0 : at, 8); break;
    case 2: p[at] = (uint8_t)draw_extreme(p[at]); break;
    case 3: p[at] ^= (uint8_t)(1u << below(8)); break;
    case 4: memset(p + at, once_in(2) ? 0 : 255, length); break;
    default:
        for (size_t i = 0; i < length; i++) p[at + i] = (uint8_t)draw();
    }
}

static void change_frame(uint8_t *f)
{
    static const struct { size_t at; int bytes; } fields[] = {
        {0, 4}, {4, 4}, {8, 4}, {12, 1}, {13, 1}, {13, 1}, {14, 2}, {16, 8}, {24, 8}, {24, 8},
        {32, 4}, {36, 4}, {40, 4}, {44, 4}, {48, 4}, {52, 4}, {56, 4}};
    for (size_t times = 1 + below(2); times; times--) {
        const size_t k = below(sizeof fields / sizeof *fields);
        if (once_in(3)) change_word(f, 60, below(60), 1 << below(4));
        else if (once_in(4)) f[13] = (uint8_t)(once_in(2) ? 255 : below(9));
        else if (once_in(4)) put_word(f + 24, draw() % 5000, 8);
        else change_word(f, 60, fields[k].at, fields[k].bytes);
    }
    put_word(f + 60, plain_crc(0, f, 60), 4);
}

static void change_length(uint8_t *p)
{
    if (once_in(3)) change_word(p, 16, 8, 4);
    else if (once_in(2)) put_word(p, draw() % 3000, 8);
    else change_word(p, 16, 0, 8);
    put_word(p + 12, plain_crc(0, p, 12), 4);
}

/* Bytes of the payload at p, which n bytes hold; 0: there is none. */
static size_t payload_at(const uint8_t *p, size_t n)
{
    uint64_t body;
    if (n < 32 || memcmp(p, "GCMP", 4)) return 0;
    body = get_word(p + 16, 8);
    return body > n - 32 ? 0 : 32 + (size_t)body;
}

static void renew_seal(uint8_t *p, size_t length)
{
    if (p[6] & 2) put_word(p + 28, plain_crc(plain_crc(0, p, 28), p + 32, length - 32), 4);
}

/* A valid payload of another codec, or of the same number of elements, in place of this one. */
static void replace_payload(uint8_t *p, size_t length)
{
    static uint8_t other[GCOMP_BOUND(8000)], scratch[GCOMP_SCRATCH(8000)];
    static float g[8000];
    const size_t said = (size_t)get_word(p + 8, 8), n = said <= 8000 ? said : 100;
    gcomp_exec exec = {GCOMP_ISA_AUTO, scratch, sizeof scratch, {NULL, NULL}};
    gcomp_input in;
    gcomp_codec codec;
    char text[2 * TEXT];
    size_t made = 0;
    memset(&in, 0, sizeof in);
    in.scale = 1;
    for (size_t i = 0; i < n; i++) g[i] = once_in(3) ? 0 : float_of((uint32_t)draw() & 0xff7fffffu);
    for (size_t i = 0; i < n; i++)
        if (!isfinite(g[i])) g[i] = 3e38f;
    in.grad = g;
    in.rows = n;
    draw_codec(text, TEXT);
    if (gcomp_codec_parse(&codec, text, NULL, 0) || scratch_of(&codec, n) > sizeof scratch ||
        gcomp_encode(&codec, &in, &exec, other, sizeof other, &made) || made > length)
        return;
    if (p[6] & 2 && add_checksum(other, made)) return;
    memcpy(p, other, made);
}

static void change_payload(uint8_t *p, size_t n)
{
    static const struct { size_t at; int bytes; } fields[] = {
        {0, 4}, {4, 1}, {5, 1}, {6, 1}, {7, 1}, {8, 8}, {16, 8}, {24, 4}, {28, 4}};
    size_t length = payload_at(p, n), at = 0;
    while (payload_at(p + at + length, n - at - length) && once_in(2)) {
        at += length;
        length = payload_at(p + at, n - at);
    }
    p += at;
    for (size_t times = 1 + below(3); times; times--) {
        const size_t k = below(sizeof fields / sizeof *fields);
        if (once_in(8)) replace_payload(p, length);
        else if (once_in(4)) change_word(p, length, fields[k].at, fields[k].bytes);
        else if (once_in(16)) p[6] |= 1, put_word(p + 16, 0, 8), put_word(p + 24, 0, 4);
        else if (length > 32 && once_in(3)) change_blindly(p + 32, length - 32 > 16 ? 16 : length - 32);
        else if (length > 32) change_blindly(p + 32, length - 32);
    }
    length = payload_at(p, n - at);
    if (length) renew_seal(p, length);
}

/* Lists of decisions: behind rank 0's frame, with the number of the step in the checksum. */
static void change_decisions(uint8_t *p, size_t n)
{
    uint8_t number[8];
    put_word(number, gcomp_step_number(party.peer[0].gc), 8);
    p[below(n - 4)] = (uint8_t)draw_extreme(1);
    put_word(p + n - 4, plain_crc(plain_crc(0, number, 8), p, n - 4), 4);
}

/* The bytes that the hostile worker seems to have sent, in the place where they came. */
static void change_bytes(uint8_t *p, size_t n)
{
    const size_t k = below(PAST);
    if (once_in(12)) change_blindly(p, n);
    else if (once_in(12) && party.past_bytes[k])
        memcpy(p, party.past[k], n < party.past_bytes[k] ? n : party.past_bytes[k]);
    else if (n == 64 && !memcmp(p, "GCF", 3)) change_frame(p);
    else if (n == 16 && !memcmp(p, "GCN", 3)) {
        change_word(p, 12, below(12), 1 << below(4));
        put_word(p + 12, plain_crc(0, p, 12), 4);
    } else if (n == 16) change_length(p);
    else if (payload_at(p, n)) change_payload(p, n);
    else if (n == job.count + 4) change_decisions(p, n);
    else if (n > 4 && get_word(p, 4) == plain_crc(0, p + 4, n - 4)) {
        change_blindly(p + 4, n - 4);
        put_word(p, plain_crc(0, p + 4, n - 4), 4);
    } else change_blindly(p, n);
}

/* The word of a machine's first worker behind the means, a byte in each float. */
static void change_told(float *x, size_t count)
{
    uint8_t word[16 + TENSORS];
    const size_t n = 16 + job.count;
    if (count < n || x[count - n] != 'G') return;
    for (size_t i = 0; i < n; i++) /* what looks like a word may be gradients */
        word[i] = (uint8_t)(x[count - n + i] >= 0 && x[count - n + i] <= 255 ? x[count - n + i] : 0);
    change_blindly(word, n - 4);
    put_word(word + n - 4, plain_crc(0, word, n - 4), 4);
    for (size_t i = 0; i < n; i++) x[count - n + i] = word[i];
}

static void change_sums(void *sums, size_t count, gcomp_dtype dtype)
{
    static const uint32_t bits[] = {0x7f800000u, 0xff800000u, 0x7fc00000u, 0x7f7fffffu,
                                    0xff7fffffu, 0x00000001u, 0x80000000u, 0, 0xbf800000u};
    const size_t bytes = bytes_of_dtype(dtype);
    for (size_t times = 1 + below(3); times && count; times--) {
        const size_t at = below(count), some = once_in(2) ? 1 : 1 + below(count - at);
        const uint64_t value = once_in(3) ? draw() : bits[below(9)] >> (bytes == 2 ? 16 : 0);
        for (size_t i = at; i < at + some; i++)
            put_word((uint8_t *)sums + bytes * i, value, (int)bytes);
    }
    if (dtype == GCOMP_F32 && once_in(2)) change_told((float *)sums, count);
}

#endif
