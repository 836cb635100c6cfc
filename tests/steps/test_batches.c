/* Proves that workers with different numbers of samples (gcomp_step.samples and batch) get the
   mean over the samples, on one level and between machines. */
#ifndef _POSIX_C_SOURCE
#define _POSIX_C_SOURCE 200809L
#endif
#include "test.h"

#include "gcomp_threads.h"

#include <math.h>

enum { MOST = 5, COUNT = 2048, STEPS = 3 };

typedef struct worker {
    gcomp *gc;
    gcomp_step step;
    gcomp_result result;
    float grad[COUNT];
} worker;

static worker workers[MOST];

static void *turn(void *arg)
{
    worker *w = (worker *)arg;
    float *grads[1] = {w->grad};
    w->result = exchange_floats(w->gc, grads, &w->step);
    return NULL;
}

static void step_all(int world)
{
    pthread_t id[MOST];
    for (int w = 0; w < world; w++) CHECK(pthread_create(&id[w], NULL, turn, &workers[w]) == 0);
    for (int w = 0; w < world; w++) pthread_join(id[w], NULL);
}

/* The gradient of one sample. */
static float of_sample(int sample, size_t i)
{
    return (float)((int)(mix((uint64_t)sample * 10007 + i) % 2001) - 1000) / 16.0f;
}

/* The samples of all workers, one after the other. A worker without samples brings numbers that
   mean nothing. */
static void fill(int world, const int *samples, int batch)
{
    int first = 0;
    for (int w = 0; w < world; w++) {
        for (size_t i = 0; i < COUNT; i++) {
            float sum = samples[w] ? 0 : 5e20f;
            for (int s = first; s < first + samples[w]; s++) sum += of_sample(s, i);
            workers[w].grad[i] = samples[w] ? sum / (float)samples[w] : sum;
        }
        first += samples[w];
        workers[w].step.samples = samples[w];
        workers[w].step.batch = batch;
    }
    CHECK(first == batch);
}

static void expect_mean(int world, int batch, float tolerance)
{
    float worst = 0;
    for (size_t i = 0; i < COUNT; i++) {
        double sum = 0;
        for (int s = 0; s < batch; s++) sum += (double)of_sample(s, i);
        for (int w = 0; w < world; w++) {
            float off = fabsf(workers[w].grad[i] - (float)(sum / batch) * workers[0].step.scale);
            worst = off > worst ? off : worst;
        }
    }
    if (!(worst < tolerance)) printf("# worst %g\n", (double)worst);
    CHECK(worst < tolerance);
}

static void open_worker(int w, gcomp_desc desc, const char *codec)
{
    gcomp_tensor t = {0};
    memset(&workers[w], 0, sizeof workers[w]);
    t.name = "w";
    t.rows = 64;
    t.cols = COUNT / 64;
    desc.codec = codec;
    workers[w].step = default_step();
    CHECK(gcomp_open(&workers[w].gc, &desc) == GCOMP_OK && gcomp_add_tensor(workers[w].gc, &t) == GCOMP_OK);
}

static void close_all(int world)
{
    for (int w = 0; w < world; w++) gcomp_close(workers[w].gc);
}

static void test_the_mean_is_that_over_the_samples(void)
{
    static const int samples[][4] = {{3, 0, 5, 1}, {4, 4, 4, 4}, {0, 0, 7, 0}, {1, 100, 2, 3}};
    static const char *const codecs[] = {"none", "topk:density=1", "nonzero", "fp16", "intsum:bits=32,rounding=nearest"};
    for (size_t c = 0; c < sizeof codecs / sizeof *codecs; c++)
        for (size_t k = 0; k < sizeof samples / sizeof *samples; k++) {
            gcomp_threads *group;
            int batch = 0;
            CHECK(gcomp_threads_open(&group, 4, 20) == 0);
            for (int w = 0; w < 4; w++) {
                gcomp_desc desc = {0};
                desc.comm = gcomp_threads_comm(group, w);
                open_worker(w, desc, codecs[c]);
                batch += samples[k][w];
            }
            for (int s = 0; s < STEPS; s++) {
                for (int w = 0; w < 4; w++) workers[w].step.scale = s == 2 ? 0.5f : 1; /* loss scaling beside it */
                fill(4, samples[k], batch);
                step_all(4);
                for (int w = 0; w < 4; w++) CHECK(workers[w].result == GCOMP_OK);
                expect_mean(4, batch, c == 3 ? 0.5f : c == 4 ? 0.01f : 1e-4f);
            }
            close_all(4);
            gcomp_threads_close(group);
        }
}

/* Machines with 2, 1 and 2 workers. */
static void test_samples_count_between_machines_too(void)
{
    static const int samples[][5] = {{1, 1, 1, 1, 1}, {3, 0, 6, 0, 2}, {0, 0, 4, 0, 0}}, machine[5] = {0, 0, 1, 2, 2};
    for (size_t k = 0; k < sizeof samples / sizeof *samples; k++) {
        gcomp_threads *between, *within[3];
        int batch = 0;
        CHECK(gcomp_threads_open(&between, 3, 20) == 0);
        for (int m = 0; m < 3; m++) CHECK(gcomp_threads_open(&within[m], m == 1 ? 1 : 2, 20) == 0);
        for (int w = 0; w < 5; w++) {
            const int m = machine[w], rank = w == 1 || w == 4;
            gcomp_desc desc = {0};
            desc.comm = gcomp_threads_comm(between, m);
            if (m != 1) desc.node = gcomp_threads_comm(within[m], rank);
            open_worker(w, desc, "topk:density=1");
            batch += samples[k][w];
        }
        for (int s = 0; s < STEPS; s++) {
            for (int w = 0; w < 5; w++) workers[w].step.scale = s == 2 ? 0.25f : 1;
            fill(5, samples[k], batch);
            step_all(5);
            for (int w = 0; w < 5; w++) CHECK(workers[w].result == GCOMP_OK);
            expect_mean(5, batch, 1e-4f);
        }
        close_all(5);
        for (int m = 0; m < 3; m++) gcomp_threads_close(within[m]);
        gcomp_threads_close(between);
    }
}

/* A worker without samples sends what it kept, too. */
static void test_a_worker_without_samples_sends_what_it_kept(void)
{
    gcomp_desc desc = {0};
    float kept[COUNT], *grads[1] = {workers[0].grad};
    open_worker(0, desc, "topk:density=0.25");
    for (size_t i = 0; i < COUNT; i++) workers[0].grad[i] = of_sample(1, i);
    CHECK(exchange_floats(workers[0].gc, grads, NULL) == GCOMP_OK);
    memcpy(kept, tensor_residual(workers[0].gc, 0), sizeof kept);
    for (size_t i = 0; i < COUNT; i++) workers[0].grad[i] = 1e30f;
    workers[0].step.batch = 8;
    CHECK(exchange_floats(workers[0].gc, grads, &workers[0].step) == GCOMP_OK);
    for (size_t i = 0; i < COUNT; i++) CHECK(workers[0].grad[i] + tensor_residual(workers[0].gc, 0)[i] == kept[i]);
    workers[0].grad[3] = NAN; /* but it must be finite */
    CHECK(exchange_floats(workers[0].gc, grads, &workers[0].step) == GCOMP_NOT_FINITE);
    gcomp_close(workers[0].gc);
}

static void test_what_is_no_part_of_a_batch_is_refused(void)
{
    static const double bad[][2] = {{1, 0}, {9, 8}, {-1, 8}, {1, -8}, {NAN, 8}, {1, NAN}, {1, INFINITY}, {INFINITY, INFINITY}, {NAN, 0}};
    for (size_t k = 0; k < sizeof bad / sizeof *bad; k++)
        for (int who = 0; who < 2; who++) {
            gcomp_threads *group;
            CHECK(gcomp_threads_open(&group, 2, 20) == 0);
            for (int w = 0; w < 2; w++) {
                gcomp_desc desc = {0};
                desc.comm = gcomp_threads_comm(group, w);
                open_worker(w, desc, "sign");
                workers[w].step.samples = 1;
                workers[w].step.batch = 2;
            }
            workers[who].step.samples = bad[k][0];
            workers[who].step.batch = bad[k][1];
            step_all(2);
            CHECK(workers[who].result == GCOMP_INVALID_ARGUMENT && strstr(gcomp_error(workers[who].gc), "step.samples"));
            CHECK(workers[1 - who].result == GCOMP_PEER_FAILED);
            close_all(2);
            gcomp_threads_close(group);
        }
}

/* ---------------- what the manual says of momentum and learning rates */

/* A buffer to which the backward pass adds, and which momentum carries from step to step, put
   aside and added back. */
static void test_a_buffer_that_carries_momentum(void)
{
    static float carried[2][COUNT], x[2][COUNT], reference[COUNT], velocity[COUNT];
    gcomp_threads *group;
    float worst = 0;
    memset(x, 0, sizeof x);
    memset(reference, 0, sizeof reference);
    memset(velocity, 0, sizeof velocity);
    CHECK(gcomp_threads_open(&group, 2, 20) == 0);
    for (int w = 0; w < 2; w++) {
        gcomp_desc desc = {0};
        desc.comm = gcomp_threads_comm(group, w);
        open_worker(w, desc, "topk:density=1"); /* sends all: the same steps as without compression */
    }
    for (int s = 0; s < 20; s++) {
        for (int w = 0; w < 2; w++) {
            memcpy(carried[w], workers[w].grad, sizeof carried[w]);
            memset(workers[w].grad, 0, sizeof workers[w].grad);
            for (size_t i = 0; i < COUNT; i++) workers[w].grad[i] += of_sample(2 * s + w, i);
        }
        step_all(2);
        for (int w = 0; w < 2; w++) {
            CHECK(workers[w].result == GCOMP_OK);
            for (size_t i = 0; i < COUNT; i++) {
                workers[w].grad[i] += carried[w][i];
                x[w][i] -= 0.01f * workers[w].grad[i];
                workers[w].grad[i] *= 0.9f;
            }
        }
        for (size_t i = 0; i < COUNT; i++) {
            velocity[i] = 0.9f * velocity[i] + 0.5f * (of_sample(2 * s, i) + of_sample(2 * s + 1, i));
            reference[i] -= 0.01f * velocity[i];
            worst = fabsf(x[0][i] - reference[i]) > worst ? fabsf(x[0][i] - reference[i]) : worst;
        }
        CHECK(!memcmp(x[0], x[1], sizeof x[0]));
    }
    CHECK(worst < 1e-3f);
    close_all(2);
    gcomp_threads_close(group);
}

/* With the rate as scale, each gradient counts with its own rate, whenever it is sent. */
static void test_a_rate_that_falls_goes_in_as_scale(void)
{
    static const char *const codecs[] = {"topk:density=0.01", "sign", "int:bits=2", "powersgd:rank=1"};
    for (size_t c = 0; c < sizeof codecs / sizeof *codecs; c++) {
        static double wanted[COUNT], sent[COUNT];
        gcomp_desc desc = {0};
        float *grads[1] = {workers[0].grad}, worst = 0;
        desc.aggregate = GCOMP_AGGREGATE_GATHER; /* one worker, who encodes all the same */
        memset(wanted, 0, sizeof wanted);
        memset(sent, 0, sizeof sent);
        open_worker(0, desc, codecs[c]);
        for (int s = 0; s < 50; s++) {
            const float rate = 0.1f / (float)(1 + s);
            for (size_t i = 0; i < COUNT; i++) {
                workers[0].grad[i] = of_sample(s, i);
                wanted[i] += (double)rate * (double)of_sample(s, i);
            }
            workers[0].step.scale = rate;
            CHECK(exchange_floats(workers[0].gc, grads, &workers[0].step) == GCOMP_OK);
            for (size_t i = 0; i < COUNT; i++) sent[i] += (double)workers[0].grad[i];
        }
        for (size_t i = 0; i < COUNT; i++) {
            const float off = fabsf((float)(wanted[i] - sent[i] - (double)tensor_residual(workers[0].gc, 0)[i]));
            worst = off > worst ? off : worst;
        }
        if (!(worst < 1e-3f)) printf("# %s: %g\n", codecs[c], (double)worst);
        CHECK(worst < 1e-3f);
        gcomp_close(workers[0].gc);
    }
}

int main(void)
{
    RUN(test_the_mean_is_that_over_the_samples);
    RUN(test_samples_count_between_machines_too);
    RUN(test_a_worker_without_samples_sends_what_it_kept);
    RUN(test_what_is_no_part_of_a_batch_is_refused);
    RUN(test_a_buffer_that_carries_momentum);
    RUN(test_a_rate_that_falls_goes_in_as_scale);
    return test_end();
}
