/* The gradients of examples/transformer/transformer_model.h beside central differences of the loss, in double
   (-DTRANSFORMER_DOUBLE); in float only that the two agree roughly. Needs CBLAS: make test-all. */
#include "test.h"

#include "../../examples/transformer/transformer_model.h"

#ifdef TRANSFORMER_DOUBLE
#define STEP 1e-5
#define MOST 1e-7 /* of the differences, relative to the largest gradient of the tensor */
#else
#define STEP 2e-2
#define MOST 3e-2
#endif

/* Weights of size 1, so that every part of the model matters: norms far from 1, peaked attention. */
static void shake(transformer *m)
{
    for (size_t i = 0; i < m->count; i++)
        m->weights[i] += (transformer_real)(0.3f * train_normal(99, i));
}

static double difference(transformer *m, size_t i, const unsigned char *in,
                         const unsigned char *out)
{
    const transformer_real keep = m->weights[i];
    double above, below, width;
    m->weights[i] = keep + (transformer_real)STEP;
    width = (double)m->weights[i];
    above = transformer_loss(m, in, out);
    m->weights[i] = keep - (transformer_real)STEP;
    width -= (double)m->weights[i];
    below = transformer_loss(m, in, out);
    m->weights[i] = keep;
    return (above - below) / width;
}

static void check_shape(size_t layers, size_t channels, size_t heads, size_t context, size_t batch,
                        size_t characters)
{
    const transformer_shape shape = {layers, channels, heads, context, batch, characters};
    unsigned char text[256];
    transformer m;
    CHECK(batch * context < sizeof text);
    CHECK(transformer_open(&m, &shape, 7) == 0);
    if (!m.memory) return;
    shake(&m);
    for (size_t i = 0; i < sizeof text; i++) text[i] = (unsigned char)(train_mix(i) % characters);
    transformer_loss(&m, text, text + 1);
    /* what an earlier step left must not matter */
    for (size_t i = 0; i < m.count; i++) m.gradients[i] = 1000;
    transformer_backward(&m, text, text + 1);
    for (size_t t = 0; t < m.tensors; t++) {
        const transformer_tensor *of = &m.tensor[t];
        double most = 0, worst = 0;
        for (size_t i = of->begin; i < of->begin + of->count; i++) {
            const double size = fabs((double)m.gradients[i]);
            most = size > most ? size : most;
        }
        CHECK(most > 1e-4); /* else it would pass for the wrong reason */
        for (size_t k = 0; k < 60; k++) {
            const size_t i = of->count <= 60 ? k : train_mix(k + 1000 * t) % of->count;
            double off;
            if (i >= of->count) break;
            off = difference(&m, of->begin + i, text, text + 1) -
                (double)m.gradients[of->begin + i];
            worst = fabs(off) > worst ? fabs(off) : worst;
        }
        if (!(worst <= MOST * most)) printf("# %s: off by %g of %g\n", of->name, worst, most);
        CHECK(worst <= MOST * most);
    }
    transformer_close(&m);
}

static void gradients_of_every_tensor_are_those_of_the_loss(void)
{
    check_shape(2, 8, 2, 6, 3, 11);
}
static void gradients_of_one_layer_one_head_one_sequence(void) { check_shape(1, 6, 1, 9, 1, 5); }
static void gradients_where_a_sequence_has_one_character(void) { check_shape(1, 8, 4, 1, 7, 9); }
static void gradients_of_three_layers_and_many_heads(void) { check_shape(3, 20, 5, 4, 2, 30); }

static void a_character_sees_only_what_is_before_it(void)
{
    const transformer_shape shape = {2, 8, 2, 6, 1, 11};
    unsigned char in[6] = {1, 2, 3, 4, 5, 6}, out[6] = {2, 3, 4, 5, 6, 7};
    transformer_real before[3 * 11], after[3 * 11];
    transformer m;
    CHECK(transformer_open(&m, &shape, 7) == 0);
    shake(&m);
    transformer_loss(&m, in, out);
    memcpy(before, m.scores, sizeof before);
    memcpy(after, m.scores + 3 * 11, sizeof after);
    in[3] = 9;
    transformer_loss(&m, in, out);
    CHECK(memcmp(before, m.scores, sizeof before) == 0);
    CHECK(memcmp(after, m.scores + 3 * 11, sizeof after) != 0);
    transformer_close(&m);
}

static void a_new_model_knows_nothing(void)
{
    const transformer_shape shape = {2, 16, 2, 8, 2, 50};
    unsigned char text[17];
    transformer m;
    for (size_t i = 0; i < sizeof text; i++) text[i] = (unsigned char)(3 * i % 50);
    CHECK(transformer_open(&m, &shape, 7) == 0);
    CHECK(fabs(transformer_loss(&m, text, text + 1) - log(50.0)) < 0.1);
    transformer_close(&m);
}

static void wrong_shapes_are_refused(void)
{
    const transformer_shape shapes[] = {{0, 8, 2, 6, 1, 9}, {2, 8, 3, 6, 1, 9}, {2, 8, 0, 6, 1, 9},
                                        {2, 0, 1, 6, 1, 9}, {2, 8, 2, 0, 1, 9}, {2, 8, 2, 6, 0, 9},
                                        {2, 8, 2, 6, 1, 0}, {TRANSFORMER_LAYERS, 8, 2, 6, 1, 9}};
    transformer m;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        CHECK(transformer_open(&m, &shapes[i], 1) == 1);
}

int main(void)
{
    RUN(gradients_of_every_tensor_are_those_of_the_loss);
    RUN(gradients_of_one_layer_one_head_one_sequence);
    RUN(gradients_where_a_sequence_has_one_character);
    RUN(gradients_of_three_layers_and_many_heads);
    RUN(a_character_sees_only_what_is_before_it);
    RUN(a_new_model_knows_nothing);
    RUN(wrong_shapes_are_refused);
    return test_end();
}
