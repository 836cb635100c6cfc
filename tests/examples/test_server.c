/* Proves of the parameter server of examples/server.c: its rule of staleness, number by number,
   and that a bad push is refused without a trace. Prints TAP. */

#define main server_main
#include "../../examples/server.c"
#undef main
#include "test.h"

#include <math.h>

static float before[COUNT], decoded[COUNT], wanted[COUNT];

static void test_pushes_count_by_their_age(void)
{
    CHECK(begin());
    for (uint64_t stale = 0; stale <= STALE + 1; stale++) {
        worker *w = &workers[0];
        verdict expected = stale <= STALE ? ADDED : REFUSED;
        float weight = stale <= STALE ? RATE / (float)(1 + stale) : 0;
        const float *residual = tensor_residual(w->up, 0);
        size_t wrong = 0;
        for (size_t i = 0; i < COUNT; i++) wanted[i] = residual[i] + w->weights[0][i] - optimum(0, i) - skew(0);
        CHECK(make_push(0) == GCOMP_OK);
        CHECK(gcomp_decode(w->push.payload[0], w->push.length[0], decoded, GCOMP_F32, COUNT, NULL) == GCOMP_OK);
        srv.version = stale + 20;
        w->push.version = 20;
        memcpy(before, srv.weights[0], sizeof before);
        CHECK(receive(&w->push) == expected);
        for (size_t i = 0; i < COUNT; i++) {
            float d = before[i] - weight * decoded[i] - srv.weights[0][i];
            wrong += !(d < 1e-5f && d > -1e-5f);
        }
        CHECK(wrong == 0);
        CHECK(srv.version == stale + 20 + (expected == ADDED));
        CHECK(tell(0, expected) == GCOMP_OK);
        CHECK(w->version == srv.version && unaccounted(0) < 1e-5);
        for (size_t i = 0; i < COUNT; i++) { /* what was added and what is kept are what was wanted; of a refused push, all */
            float d = wanted[i] - residual[i] - (expected == ADDED ? decoded[i] : 0);
            wrong += !(d < 1e-5f && d > -1e-5f);
        }
        CHECK(wrong == 0);
    }
    end("", 0);
}

static void test_bad_pushes_change_nothing(void)
{
    message *m = &workers[0].push;
    CHECK(begin() && make_push(0) == GCOMP_OK);
    m->payload[1][m->length[1] - 1] ^= 1; /* in the second tensor: the first must not be added either */
    CHECK(receive(m) == INVALID);
    m->payload[1][m->length[1] - 1] ^= 1;
    m->length[0]--;
    CHECK(receive(m) == INVALID);
    m->length[0]++;
    m->version = 1; /* of the future */
    CHECK(receive(m) == INVALID);
    for (size_t i = 0; i < COUNT; i++) CHECK(srv.weights[0][i] >= 0 && srv.weights[0][i] <= 0);
    CHECK(srv.version == 0);
    m->version = 0;
    CHECK(receive(m) == ADDED && srv.version == 1);
    end("", 0);
}

static void test_a_gradient_that_is_not_finite_is_not_pushed(void)
{
    worker *w = &workers[0];
    CHECK(begin() && make_push(0) == GCOMP_OK && w->has_push);
    memcpy(before, tensor_residual(w->up, 0), sizeof before);
    for (size_t i = 0; i < COUNT; i++) wanted[i] = before[i] + w->weights[0][i] - optimum(0, i) - skew(0);
    w->weights[1][7] = NAN; /* in the second tensor: the first is packed already */
    CHECK(make_push(0) == GCOMP_OK && !w->has_push);
    w->weights[1][7] = 0;
    size_t wrong = 0;
    for (size_t i = 0; i < COUNT; i++) {
        float d = wanted[i] - tensor_residual(w->up, 0)[i];
        wrong += !(d < 1e-5f && d > -1e-5f);
    }
    CHECK(wrong == 0);
    CHECK(tell(0, ADDED) == GCOMP_OK && make_push(0) == GCOMP_OK && w->has_push);
    end("", 0);
}

static void test_together_and_apart_the_optimum_is_reached(void)
{
    char name[] = "server", *argv[] = {name, NULL};
    CHECK(server_main(1, argv) == 0);
}

int main(void)
{
    RUN(test_pushes_count_by_their_age);
    RUN(test_bad_pushes_change_nothing);
    RUN(test_a_gradient_that_is_not_finite_is_not_pushed);
    RUN(test_together_and_apart_the_optimum_is_reached);
    return test_end();
}
