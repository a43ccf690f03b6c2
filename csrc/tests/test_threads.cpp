// The thread pool: every item exactly once, whoever calls, however often, while it is resized and
// across fork.
#include "runtime/threads.h"

#include <array>
#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#if !defined(_WIN32)
#include <sys/wait.h>
#include <unistd.h>
#endif

#include "tests/check.h"

namespace kvik::test {
namespace {

// Whether a run of so many items does each exactly once. It allocates nothing: the allocators of
// sanitizers do not survive a fork while another thread is inside them.
bool once(std::int64_t items) {
    std::array<std::atomic<int>, 70> done{};
    CHECK(items <= static_cast<std::int64_t>(done.size()));
    parallel_for(items, [&](std::int64_t i) { done[static_cast<std::size_t>(i)].fetch_add(1); });
    for (std::int64_t i = 0; i < items; ++i)
        if (done[static_cast<std::size_t>(i)].load() != 1) return false;
    return true;
}

// The same of items that are taken ahead: what a thread is told comes next is what it does next.
bool once_ahead(std::int64_t items) {
    std::array<std::atomic<int>, 70> done{};
    std::atomic<int> surprises{0};
    static std::atomic<int> runs{0};
    const int run = ++runs;
    parallel_ahead(items, [&](std::int64_t i, std::int64_t next) {
        static thread_local int mine = 0;
        static thread_local std::int64_t told = -1;
        if (mine == run && told != i) surprises.fetch_add(1);
        mine = run, told = next;
        done[static_cast<std::size_t>(i)].fetch_add(1);
    });
    for (std::int64_t i = 0; i < items; ++i)
        if (done[static_cast<std::size_t>(i)].load() != 1) return false;
    return surprises.load() == 0;
}

void many_runs() {
    for (int threads : {1, 2, 3, 4, 7}) {
        set_thread_count(threads);
        CHECK(thread_count() == threads);
        for (int run = 0; run < 1500; ++run) CHECK(once(run % 70) && once_ahead(run % 70));
    }
    set_thread_count(0);
    CHECK(thread_count() == 1);
    set_thread_count(4);
}

// Workers that went to sleep come back.
void pauses() {
    for (int run = 0; run < 60; ++run) {
        std::this_thread::sleep_for(std::chrono::microseconds(run * 20));
        CHECK(once(9));
    }
}

// Several threads take part: item 0 waits until another thread has done item 1.
void together() {
    std::atomic<bool> other{false};
    parallel_for(2, [&](std::int64_t item) {
        if (item == 1) other.store(true);
        const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
        while (item == 0 && !other.load() && std::chrono::steady_clock::now() < end)
            std::this_thread::yield();
    });
    CHECK(other.load());
}

void nested() {
    for (int run = 0; run < 200; ++run) {
        std::atomic<int> inner{0};
        parallel_for(6, [&](std::int64_t) {
            parallel_for(5, [&](std::int64_t) { inner.fetch_add(1); });
        });
        CHECK(inner.load() == 30);
    }
}

void several_callers(bool resizing) {
    std::atomic<bool> stop{false};
    std::atomic<int> wrong{0};
    std::vector<std::thread> callers;
    for (int c = 0; c < 3; ++c)
        callers.emplace_back([&] {
            for (int run = 0; run < 400; ++run)
                if (!once(run % 23)) wrong.fetch_add(1);
        });
    std::thread resizer([&] {
        for (int count = 0; resizing && !stop.load(); ++count) set_thread_count(1 + count % 4);
    });
    for (auto& caller : callers) caller.join();
    stop.store(true);
    resizer.join();
    CHECK(wrong.load() == 0);
    set_thread_count(4);
}

#if !defined(_WIN32)
// A child computes with threads of its own, even when it was forked in the middle of a run of
// another thread, and so does its child; the parent goes on.
void forks(bool busy) {
    std::atomic<bool> stop{false};
    std::thread other([&] {
        while (busy && !stop.load()) once(50);
    });
    for (int run = 0; run < 20; ++run) {
        CHECK(once(30));
        const pid_t child = fork();
        if (child == 0) {
            bool good = once(40) && once(41);
            const pid_t grandchild = fork();
            if (grandchild == 0) _exit(once(42) ? 0 : 1);
            int status = -1;
            waitpid(grandchild, &status, 0);
            set_thread_count(3);
            _exit(good && status == 0 && once(43) ? 0 : 1);
        }
        int status = -1;
        CHECK(child > 0 && waitpid(child, &status, 0) == child);
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
        CHECK(once(30));
    }
    stop.store(true);
    other.join();
}
#endif

}  // namespace
}  // namespace kvik::test

int main() {
    using namespace kvik::test;
    many_runs();
    pauses();
    together();
    nested();
    several_callers(false);
    several_callers(true);
#if !defined(_WIN32)
    forks(false);
    forks(true);
#endif
    return result();
}
