// The C ABI: each function finds the kernel of the instruction set in use.
#include "kvik.h"

#include "runtime/cpu.h"
#include "runtime/threads.h"

extern "C" {

int32_t kvik_abi(void) { return KVIK_ABI; }

int32_t kvik_threads(void) { return kvik::thread_count(); }
void kvik_set_threads(int32_t count) { kvik::set_thread_count(count); }

const char* kvik_variant(void) { return kvik::kernels().name; }
const char* kvik_usable_variant(int32_t i) {
    const kvik::Kernels* const* all = kvik::usable();
    while (i > 0 && *all) ++all, --i;
    return i == 0 && *all ? (*all)->name : nullptr;
}
int32_t kvik_select_variant(const char* name) { return kvik::select(name) ? 0 : -1; }

void kvik_exp(const float* x, float* y, int64_t count) {
    kvik::kernels().linear.exp(x, y, count);
}

void kvik_attend(const kvik_batch* batch, const kvik_layer* layer, const kvik_step* step) {
    kvik::kernels().attention.paged(*batch, *layer, *step);
}
void kvik_attend_dense(const kvik_dense* args) { kvik::kernels().attention.dense(*args); }
}
