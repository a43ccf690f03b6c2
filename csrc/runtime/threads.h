// A small pool of worker threads shared by all kernels.
#pragma once
#include <cstdint>

namespace kvik {

// Work on item `item`; called on any thread, each item exactly once. `next` is what the same thread
// works on afterwards, or -1 where that is not known or there is nothing.
using Task = void (*)(void* context, std::int64_t item, std::int64_t next);

// Runs task(context, 0 .. items-1) on the pool and returns when all are done. Items are handed out
// one by one, so they may differ in size; what an item computes must not depend on who runs it.
// With `ahead` a thread takes its next item before it works on one: it can fetch what that needs,
// and another thread may be left without work for one item's time at the end.
// A call from inside a task, or while another thread uses the pool, runs on the caller alone.
void parallel(std::int64_t items, bool ahead, Task task, void* context);

// The same for a callable of an item.
template <class F>
void parallel_for(std::int64_t items, const F& body) {
    parallel(
        items, false,
        [](void* context, std::int64_t item, std::int64_t) {
            (*static_cast<const F*>(context))(item);
        },
        const_cast<void*>(static_cast<const void*>(&body)));
}
// And of an item and the next.
template <class F>
void parallel_ahead(std::int64_t items, const F& body) {
    parallel(
        items, true,
        [](void* context, std::int64_t item, std::int64_t next) {
            (*static_cast<const F*>(context))(item, next);
        },
        const_cast<void*>(static_cast<const void*>(&body)));
}

int thread_count();
void set_thread_count(int count);

}  // namespace kvik
