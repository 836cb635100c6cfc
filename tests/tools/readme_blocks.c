/* Calls what the README's second and third block define: callbacks over a transport that has sends and receives, and a device that
   sends. tests/tools/check_style.sh builds it with -DCALLBACKS='"BLOCK"' -DDEVICE='"BLOCK"' and an object of the implementation. */

#include "gcomp.h"

#include <stdio.h>
#include <string.h>

#include CALLBACKS
#include DEVICE

/* A transport of one process: a message is there when both of its ends are known. `user` is the worker. */
typedef struct message {
    const void *from;
    void *to;
    size_t sent, taken;
} message;

static message messages[WORKERS][WORKERS]; /* by sender and receiver */

int begin_send(void *user, int worker, const void *data, size_t bytes)
{
    message *m = &messages[*(int *)user][worker];
    m->from = data;
    m->sent = bytes;
    return 0;
}

int begin_receive(void *user, int worker, void *data, size_t bytes)
{
    message *m = &messages[worker][*(int *)user];
    m->to = data;
    m->taken = bytes;
    return 0;
}

int finish(void *user)
{
    (void)user;
    return 0;
}

int my_allreduce(void *user, void *data, size_t count, gcomp_dtype dtype)
{
    (void)user, (void)data, (void)count, (void)dtype;
    return 1;
}

int my_allgather(void *user, const void *mine, void *all, size_t bytes)
{
    (void)user, (void)mine, (void)all, (void)bytes;
    return 1;
}

/* Worker w sends w + 2 v bytes to worker v, all of them 10 w + v. */
static int all_to_all(void)
{
    static unsigned char send[WORKERS][99], recv[WORKERS][99];
    size_t send_bytes[WORKERS][WORKERS], recv_bytes[WORKERS][WORKERS];
    int bad = 0, rank[WORKERS];
    for (int w = 0; w < WORKERS; w++) {
        size_t at = 0;
        gcomp_comm comm = my_comm(w, &rank[w]);
        rank[w] = w;
        for (int v = 0; v < WORKERS; v++) {
            send_bytes[w][v] = (size_t)(w + 2 * v);
            recv_bytes[w][v] = (size_t)(v + 2 * w);
            memset(send[w] + at, 10 * w + v, send_bytes[w][v]);
            at += send_bytes[w][v];
        }
        bad |= comm.rank != w || comm.world != WORKERS || comm.allreduce != my_allreduce || comm.allgather != my_allgather;
        bad |= comm.alltoallv(comm.user, send[w], send_bytes[w], recv[w], recv_bytes[w]);
    }
    for (int w = 0; w < WORKERS; w++)
        for (int v = 0; v < WORKERS; v++) {
            message *m = &messages[w][v];
            bad |= m->sent != m->taken;
            if (m->sent == m->taken) memcpy(m->to, m->from, m->sent);
        }
    for (int w = 0; w < WORKERS; w++) {
        size_t at = 0;
        for (int v = 0; v < WORKERS; v++)
            for (size_t i = 0; i < recv_bytes[w][v]; i++) bad |= recv[w][at++] != 10 * v + w;
    }
    return bad;
}

/* What the server decodes in all steps, and what the residual keeps, is the sum of all gradients. */
static int device(void)
{
    static float grad[COUNT], decoded[COUNT];
    const uint32_t not_a_number = 0x7fc00000u;
    int bad = 0;
    for (int i = 0; i < COUNT; i++) grad[i] = (float)(i % 7 - 2);
    for (int step = 0; step < 5; step++) {
        size_t bytes = make_payload(grad);
        gcomp_info info;
        bad |= bytes != 560 || gcomp_peek(payload, bytes, &info) || !info.checksum;
        bad |= gcomp_decode_add(payload, bytes, 1, decoded, GCOMP_F32, COUNT, NULL) != GCOMP_OK;
    }
    for (int i = 0; i < COUNT; i++) {
        float lost = decoded[i] + residual[i] - 5 * grad[i];
        bad |= !(lost < 1e-3f && lost > -1e-3f);
    }
    memcpy(grad + 1, &not_a_number, 4);
    return bad | (make_payload(grad) != 0);
}

int main(void)
{
    int lost = all_to_all(), wrong = device();
    if (lost) puts("my_alltoallv delivers something else");
    if (wrong) puts("make_payload does not send what it keeps track of");
    return lost | wrong;
}
