#include "runtime/threads.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#if !defined(_WIN32)
#include <pthread.h>
#endif
#if defined(__x86_64__) || defined(_M_X64)
#include <immintrin.h>
#endif

namespace kvik {
namespace {

void pause() {
#if defined(__x86_64__) || defined(_M_X64)
    _mm_pause();
#elif defined(__aarch64__) && !defined(_MSC_VER)
    asm volatile("yield");
#endif
}

// How long an idle worker looks for work before it sleeps. Long enough for the Python between two
// kernels of a step, short enough not to starve other threads of the process between steps.
constexpr std::chrono::microseconds SPIN{150};

class Pool {
public:
    explicit Pool(int workers) {
        try {
            for (int i = 0; i < workers; ++i) threads_.emplace_back([this] { work(); });
        } catch (const std::system_error&) {
            // The system grants no more threads: those that there are do the work.
        }
    }

    ~Pool() {
        {
            std::lock_guard lock(mutex_);
            stop_ = true;
            generation_.fetch_add(1);
        }
        wake_.notify_all();
        for (auto& thread : threads_) thread.join();
    }

    void run(std::int64_t items, bool ahead, Task task, void* context) {
        task_ = task;
        ahead_ = ahead;
        context_ = context;
        items_ = items;
        next_.store(0);
        open_.store(true);
        {
            std::lock_guard lock(mutex_);
            generation_.fetch_add(1);
        }
        if (asleep_.load() > 0) wake_.notify_all();
        drain();
        // Nothing is left to take: whoever has not come by now is not waited for.
        open_.store(false);
        for (int turn = 0; running_.load() > 0; ++turn) {
            pause();
            // Where others hold the cores, a worker in its last item may wait for this one.
            if (turn > 2000) std::this_thread::yield();
        }
    }

private:
    std::int64_t take() {
        const std::int64_t item = next_.fetch_add(1);
        return item < items_ ? item : -1;
    }
    void drain() {
        for (std::int64_t item = take(); item >= 0;) {
            const std::int64_t next = ahead_ ? take() : -1;
            task_(context_, item, next);
            item = ahead_ ? next : take();
        }
    }

    void work() {
        std::uint64_t seen = 0;
        for (;;) {
            await(seen);
            seen = generation_.load();
            if (stop_) return;
            // In this order, all sequentially consistent: either this worker sees that the run is
            // over, or the caller sees that the worker is in it.
            running_.fetch_add(1);
            if (open_.load()) drain();
            running_.fetch_sub(1);
        }
    }

    void await(std::uint64_t seen) {
        const auto start = std::chrono::steady_clock::now();
        for (int turn = 0;; ++turn) {
            if (generation_.load() != seen) return;
            pause();
            if (turn % 64 == 63 && std::chrono::steady_clock::now() - start > SPIN) break;
        }
        std::unique_lock lock(mutex_);
        asleep_.fetch_add(1);
        wake_.wait(lock, [&] { return generation_.load() != seen; });
        asleep_.fetch_sub(1);
    }

    std::vector<std::thread> threads_;
    std::mutex mutex_;
    std::condition_variable wake_;
    std::atomic<std::uint64_t> generation_{0};
    std::atomic<std::int64_t> next_{0};
    std::atomic<int> running_{0}, asleep_{0};
    std::atomic<bool> open_{false}, stop_{false};
    Task task_ = nullptr;
    bool ahead_ = false;
    void* context_ = nullptr;
    std::int64_t items_ = 0;
};

std::mutex& gate() {  // held by whoever uses the pool
    static auto* one = new std::mutex;
    return *one;
}
Pool* pool = nullptr;
std::atomic<int> wanted{1};
thread_local bool inside = false;

#if !defined(_WIN32)
// A child of fork has none of the parent's threads: it starts a pool of its own when it needs one.
// The gate is taken across the fork so that the child never inherits it half-way.
void before_fork() { gate().lock(); }
void in_parent() { gate().unlock(); }
void in_child() {
    pool = nullptr;  // leaked on purpose: its threads are not here to be joined
    gate().unlock();
}
const int registered = pthread_atfork(before_fork, in_parent, in_child);
#endif

void serial(std::int64_t items, Task task, void* context) {
    for (std::int64_t i = 0; i < items; ++i) task(context, i, i + 1 < items ? i + 1 : -1);
}

}  // namespace

int thread_count() { return wanted; }

void set_thread_count(int count) {
    std::lock_guard lock(gate());
    if (count < 1) count = 1;
    if (count == wanted && pool) return;
    delete pool;
    pool = nullptr;
    wanted = count;
}

void parallel(std::int64_t items, bool ahead, Task task, void* context) {
    if (items <= 1 || wanted == 1 || inside) return serial(items, task, context);
    std::unique_lock lock(gate(), std::try_to_lock);
    if (!lock) return serial(items, task, context);
    if (!pool) pool = new Pool(wanted - 1);
    inside = true;
    pool->run(items, ahead, task, context);
    inside = false;
}

}  // namespace kvik
