// engine.cpp - a game engine that learns from its players: clients send what they learned over an
// uplink that loses messages.
//
// Shows     C++; memory from the engine's arena; the engine's jobs as the parallel callback; some
//           of the tensors each frame; gcomp_compress and gcomp_commit with nothing coming back;
//           gcomp_give_back for messages that were lost; clients that join and leave
// Leaves    network and model: gradients point to a known optimum, so that the end can be checked
// Build     c++ -std=c++11 -I. -Iexamples/adapters examples/engine.cpp gcomp_impl.o -o build/engine -pthread
// Run       build/engine

#include "gcomp.h"
#include "args.h"

#include <atomic>
#include <cmath>
#include <condition_variable>
#include <cstdio>
#include <deque>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

namespace {

const std::size_t kTensors = 6, kRows = 320, kCols = 256, kCount = kRows * kCols;
const std::size_t kSlice = 2; // tensors a frame: what fits beside everything else
const int kFrames = 240, kAckFrames = 4;
const float kRate = 0.1f;

// The engine's memory: one block, given back as a whole when the client leaves.
class Arena {
public:
    explicit Arena(std::size_t bytes) : memory_(bytes), used_(0) {}
    gcomp_allocator allocator() {
        gcomp_allocator a = {&Arena::alloc, &Arena::release, this};
        return a;
    }
    std::size_t used() const { return used_; }
private:
    static void *alloc(void *user, std::size_t bytes, std::size_t align) {
        Arena *self = static_cast<Arena *>(user);
        std::size_t base = reinterpret_cast<std::size_t>(self->memory_.data());
        std::size_t at = (base + self->used_ + align - 1) / align * align - base;
        if (at > self->memory_.size() || bytes > self->memory_.size() - at) return nullptr;
        self->used_ = at + bytes;
        return self->memory_.data() + at;
    }
    static void release(void *, void *, std::size_t) {} // with the arena
    std::vector<unsigned char> memory_;
    std::size_t used_;
};

// The engine's job system, as small as it can be: workers take the next index of the batch at hand.
class Jobs {
public:
    explicit Jobs(unsigned threads) {
        for (unsigned i = 0; i < threads; i++) threads_.emplace_back([this] { work(); });
    }
    ~Jobs() {
        {
            std::lock_guard<std::mutex> hold(lock_);
            quit_ = true;
        }
        wake_.notify_all();
        for (auto &t : threads_) t.join();
    }
    static void run(void *user, std::size_t count, void (*task)(void *, std::size_t), void *arg) {
        Jobs *self = static_cast<Jobs *>(user);
        std::unique_lock<std::mutex> hold(self->lock_);
        self->task_ = task, self->arg_ = arg, self->count_ = count, self->next_ = 0;
        self->busy_ = self->threads_.size(), self->turn_++;
        self->wake_.notify_all();
        hold.unlock();
        self->take();
        hold.lock();
        self->done_.wait(hold, [self] { return self->busy_ == 0; });
    }
private:
    void take() {
        for (std::size_t i; (i = next_.fetch_add(1)) < count_;) task_(arg_, i);
    }
    void work() {
        for (std::size_t seen = 0;;) {
            std::unique_lock<std::mutex> hold(lock_);
            wake_.wait(hold, [&] { return quit_ || turn_ != seen; });
            if (quit_) return;
            seen = turn_;
            hold.unlock();
            take();
            hold.lock();
            if (--busy_ == 0) done_.notify_all();
        }
    }
    void (*task_)(void *, std::size_t) = nullptr;
    void *arg_ = nullptr;
    std::size_t count_ = 0, busy_ = 0, turn_ = 0;
    std::atomic<std::size_t> next_{0};
    bool quit_ = false;
    std::mutex lock_;
    std::condition_variable wake_, done_;
    std::vector<std::thread> threads_;
};

struct Message {
    std::size_t tensor;
    int frame;
    bool lost;
    std::vector<unsigned char> payload;
};
struct Server {
    std::vector<float> weights = std::vector<float>(kTensors * kCount, 0.0f);
    std::size_t messages = 0, bytes = 0, refused = 0;
    // gcomp_decode_add checks every message before it touches a weight.
    void receive(const Message &m, std::size_t clients) {
        messages++, bytes += m.payload.size();
        if (gcomp_decode_add(m.payload.data(), m.payload.size(), -kRate / float(clients), &weights[m.tensor * kCount],
                             GCOMP_F32, kCount, nullptr) != GCOMP_OK)
            refused++;
    }
};

float optimum(std::size_t i) { return float(int(i * 2654435761u % 2001u) - 1000) / 1000.0f; }

class Client {
public:
    Client(int number, Jobs &jobs)
        : arena_(std::size_t(8) << 20), gc_(nullptr), cursor_(0), gradient_(kCount) {
        gcomp_desc desc = {};
        desc.codec = "topk:density=0.05+int:bits=4"; // little, and what is left out comes later
        desc.seed = std::uint64_t(number);
        desc.allocator = arena_.allocator();
        desc.parallel.run = &Jobs::run;
        desc.parallel.user = &jobs;
        good = gcomp_open(&gc_, &desc) == GCOMP_OK;
        for (std::size_t t = 0; t < kTensors && good; t++) {
            std::string name = "layer" + std::to_string(t);
            gcomp_tensor tensor = {};
            tensor.name = name.c_str();
            tensor.rows = kRows;
            tensor.cols = kCols;
            good = gcomp_add_tensor(gc_, &tensor) == GCOMP_OK;
        }
        good = good && gcomp_prepare(gc_) == GCOMP_OK; // from here on the arena does not grow
        prepared_ = arena_.used();
    }
    ~Client() { gcomp_close(gc_); }
    Client(const Client &) = delete;

    // One frame: a slice of the tensors, and the messages whose acknowledgement is overdue.
    void frame(int now, const Server &server, std::mt19937 &dice, std::deque<Message> &uplink) {
        for (std::size_t i = 0; i < kSlice && good; i++, cursor_ = (cursor_ + 1) % kTensors) {
            gcomp_tensor_info info;
            if (gcomp_tensor_get(gc_, cursor_, &info) != GCOMP_OK) break;
            Message m = {cursor_, now, dice() % 5 == 0,
                         std::vector<unsigned char>(gcomp_bound(info.codec, kCount, nullptr))};
            std::size_t length = 0, at = cursor_ * kCount;
            // the gradient of |w - optimum|^2 / 2, as this player sees it
            for (std::size_t k = 0; k < kCount; k++)
                gradient_[k] = server.weights[at + k] - optimum(at + k) +
                    0.1f * optimum(at + k + std::size_t(now) * 77);
            const gcomp_result made = gcomp_compress(gc_, cursor_, std::uint64_t(now),
                                                     gradient_.data(), m.payload.data(),
                                                     m.payload.size(), &length);
            // Retry (not finite): nothing is sent, nothing has changed. Any other error is fatal.
            // There are no collectives, so nothing has to be resynchronised.
            if (gcomp_result_class(made) == GCOMP_CLASS_RETRY) continue;
            good = made == GCOMP_OK &&
                gcomp_commit(gc_, cursor_, gradient_.data(), m.payload.data(), length, nullptr,
                             nullptr, 0) == GCOMP_OK;
            m.payload.resize(length);
            uplink.push_back(m);
            if (m.lost) overdue_.push_back(m); // the others are acknowledged in time
        }
        for (; !overdue_.empty() && overdue_.front().frame + kAckFrames <= now && good;
             overdue_.pop_front(), given_back++)
            good = gcomp_give_back(gc_, overdue_.front().tensor, overdue_.front().payload.data(),
                                   overdue_.front().payload.size()) == GCOMP_OK;
        good = good && arena_.used() == prepared_;
    }
    bool good;
    int given_back = 0;
private:
    Arena arena_;
    gcomp *gc_;
    std::size_t cursor_, prepared_ = 0;
    std::vector<float> gradient_;
    std::deque<Message> overdue_;
};

double distance(const Server &server) {
    double sum = 0;
    for (std::size_t i = 0; i < server.weights.size(); i++)
        sum += std::pow(double(server.weights[i] - optimum(i)), 2);
    return std::sqrt(sum / double(server.weights.size()));
}
} // namespace

int main(int argc, char **argv) {
    args_none(argc, argv, "usage: engine\n  a game engine learns from its players over an uplink that loses messages\n");
    Jobs jobs(2);
    Server server;
    std::mt19937 dice(1);
    std::deque<Message> uplink;
    std::vector<std::unique_ptr<Client>> clients;
    double first = distance(server);
    int lost = 0, back = 0;
    bool good = true;
    for (int number = 0; number < 3; number++) clients.emplace_back(new Client(number, jobs));
    for (int now = 0; now < kFrames && good; now++) {
        // A client joins: its residual is zero, and nobody else has to know. Later another leaves.
        if (now == kFrames / 4) clients.emplace_back(new Client(3, jobs));
        if (now == kFrames / 2) back += clients.front()->given_back, clients.erase(clients.begin());
        for (auto &client : clients)
            client->frame(now, server, dice, uplink), good = good && client->good;
        for (; !uplink.empty(); uplink.pop_front())
            if (uplink.front().lost) lost++;
            else server.receive(uplink.front(), clients.size());
    }
    for (auto &client : clients) back += client->given_back;
    std::printf("%zu gradients arrived, %.1f MB for %.1f MB; %d lost, %d given back; "
                "distance %.3f, then %.3f\n",
                server.messages, 1e-6 * double(server.bytes),
                4e-6 * double(server.messages * kCount), lost, back, first, distance(server));
    good = good && server.refused == 0 && lost > 100 && back > lost - 30;
    return good && distance(server) < 0.1 * first ? 0 : 1;
}
