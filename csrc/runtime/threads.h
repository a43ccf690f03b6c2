// A small pool of worker threads shared by all kernels.
#pragma once
#include <cstdint>

namespace kvik {

// Work on item `item`; called on any thread, each item exactly once.
using Task = void (*)(void* context, std::int64_t item);

// Runs task(context, 0 .. items-1) on the pool and returns when all are done. Items are handed out
// one by one, so they may differ in size; what an item computes must not depend on who runs it.
// A call from inside a task, or while another thread uses the pool, runs on the caller alone.
void parallel(std::int64_t items, Task task, void* context);

// The same for a callable.
template <class F>
void parallel_for(std::int64_t items, const F& body) {
    parallel(
        items, [](void* context, std::int64_t item) { (*static_cast<const F*>(context))(item); },
        const_cast<void*>(static_cast<const void*>(&body)));
}

int thread_count();
void set_thread_count(int count);

}  // namespace kvik
