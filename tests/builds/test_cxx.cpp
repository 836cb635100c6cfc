/* Proves that the header and its implementation are C++11 and later: objects, callbacks and the
   codec layer work there.
   Build     c++ -std=c++11 tests/builds/test_cxx.cpp */

#ifndef GCOMP_LINKED
#define GCOMP_IMPLEMENTATION
#endif
#include "gcomp.h"

#include <cmath>
#include <cstdio>
#include <vector>

namespace {

int number = 0, failures = 0;

void ok(bool good, const char *name)
{
    if (!good) failures++;
    std::printf("%sok %d - %s\n", good ? "" : "not ", ++number, name);
}

bool codec_round_trip(const char *text, const std::vector<float> &x, double &error)
{
    gcomp_codec codec;
    if (gcomp_codec_parse(&codec, text, nullptr, 0) != GCOMP_OK) return false;
    std::vector<unsigned char> payload(gcomp_bound(&codec, x.size(), NULL)), scratch(GCOMP_SCRATCH(x.size()));
    std::vector<float> y(x.size());
    gcomp_input in = gcomp_input();
    in.scale = 1;
    gcomp_exec exec = gcomp_exec();
    std::size_t length = 0;
    double lost = 0, all = 0;
    in.grad = x.data();
    in.rows = x.size();
    in.key = gcomp_key_make(1, 0, 0, 0);
    exec.scratch = scratch.data();
    exec.scratch_bytes = scratch.size();
    if (gcomp_encode(&codec, &in, &exec, payload.data(), payload.size(), &length) != GCOMP_OK) return false;
    if (gcomp_decode(payload.data(), length, y.data(), GCOMP_F32, y.size(), &exec) != GCOMP_OK) return false;
    for (std::size_t i = 0; i < x.size(); i++) {
        const double d = static_cast<double>(x[i]) - static_cast<double>(y[i]);
        lost += d * d;
        all += static_cast<double>(x[i]) * static_cast<double>(x[i]);
    }
    error = std::sqrt(lost / all);
    return true;
}

} // namespace

int main()
{
    std::vector<float> x(10000), y;
    for (std::size_t i = 0; i < x.size(); i++) x[i] = static_cast<float>(std::sin(0.37 * static_cast<double>(i)));
    std::printf("1..5\n");
    double error = 1;
    ok(codec_round_trip("fp16", x, error) && error < 1e-3, "fp16 loses less than 1e-3");
    ok(codec_round_trip("sign", x, error) && error < 1, "sign is a contraction");
    ok(codec_round_trip("topk:density=0.1", x, error) && error < 1, "topk is a contraction");

    gcomp *gc = nullptr;
    gcomp_desc desc = gcomp_desc();
    gcomp_tensor tensor = gcomp_tensor();
    desc.codec = "powersgd:rank=2";
    tensor.name = "layer";
    tensor.rows = tensor.cols = 100;
    ok(gcomp_open(&gc, &desc) == GCOMP_OK && gcomp_add_tensor(gc, &tensor) == GCOMP_OK, "an object opens");
    y = x;
    void *grads[1] = {y.data()};
    gcomp_tensor_info info = gcomp_tensor_info();
    bool kept = gcomp_exchange(gc, grads, nullptr) == GCOMP_OK && gcomp_tensor_get(gc, 0, &info) == GCOMP_OK && info.residual;
    for (std::size_t i = 0; i < x.size() && kept; i++) kept = std::fabs(y[i] + info.residual[i] - x[i]) < 1e-4f;
    ok(kept, "mean and residual add up to the gradient");
    gcomp_close(gc);
    return failures != 0;
}
