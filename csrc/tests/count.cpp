// Runs one kernel once, for counting its instructions: `count KERNEL VARIANT`. The counted part is
// the function `counted`; the rest prepares its arguments. Without arguments it prints the names.
#include <cstdio>
#include <cstring>
#include <vector>

#include "runtime/threads.h"
#include "tests/cases.h"

#if defined(_MSC_VER)
#define KVIK_NOINLINE __declspec(noinline)
#else
#define KVIK_NOINLINE __attribute__((noinline))
#endif

namespace {

struct Work {
    virtual ~Work() = default;
    virtual void run() = 0;
};

using kvik::test::floats;

struct Exp : Work {
    std::vector<float> x = floats(4096, 1), y = std::vector<float>(4096);
    void run() override { kvik_exp(x.data(), y.data(), 4096); }
};

// A thousand items that do nothing, on one thread.
struct Items : Work {
    void run() override { kvik::parallel_for(1000, [](std::int64_t) {}); }
};

// Attention of `count` tokens at the end of a sequence of 1,024, three heads that share one KV head
// of DIM, whose K and V are written in the same call.
template <int K, int V, int COUNT, int DIM = 64>
struct Attend : Work {
    kvik::test::Paged paged{{K, V, DIM, 1, 3, 32, 0, K == KVIK_INT8 ? DIM : 32}, {1024}};
    std::vector<float> q = floats(COUNT * 3 * DIM, 1), k = floats(COUNT * DIM, 2);
    void run() override { paged.attend({1024 - COUNT}, {COUNT}, q.data(), k.data(), k.data()); }
};

// A map of `count` rows by a matrix [512, 512] of a GGUF type.
template <int COUNT>
struct Project : Work {
    kvik::test::Weights weights;
    std::vector<float> x = floats(COUNT * 512, 1), out = std::vector<float>(COUNT * 512);
    kvik_project_args args = {};
    explicit Project(const char* type) : weights(kvik::test::type_named(type), 512, 512, 2) {
        args.count = 1;
        args.matrices[0] = weights.matrix;
    }
    void run() override { kvik_project(&args, x.data(), COUNT, out.data()); }
};

struct Entry {
    const char* name;
    Work* (*make)();
};
#define KVIK_ENTRY(name, ...) {name, []() -> Work* { return new __VA_ARGS__; }}
const Entry entries[] = {
    KVIK_ENTRY("exp", Exp),
    KVIK_ENTRY("items", Items),
    KVIK_ENTRY("decode-f16", Attend<KVIK_F16, KVIK_F16, 1>),
    KVIK_ENTRY("decode-int8", Attend<KVIK_INT8, KVIK_INT8, 1>),
    KVIK_ENTRY("decode-int4", Attend<KVIK_INT4, KVIK_INT4, 1>),
    KVIK_ENTRY("decode-int8-96", Attend<KVIK_INT8, KVIK_INT8, 1, 96>),
    KVIK_ENTRY("decode-int8-256", Attend<KVIK_INT8, KVIK_INT8, 1, 256>),
    KVIK_ENTRY("decode-int4-256", Attend<KVIK_INT4, KVIK_INT4, 1, 256>),
    KVIK_ENTRY("prefill-int8", Attend<KVIK_INT8, KVIK_INT8, 64>),
    KVIK_ENTRY("prefill-int4", Attend<KVIK_INT4, KVIK_INT4, 64>),
    KVIK_ENTRY("row-Q4_0", Project<1>("Q4_0")),
    KVIK_ENTRY("row-Q8_0", Project<1>("Q8_0")),
    KVIK_ENTRY("row-Q4_K", Project<1>("Q4_K")),
    KVIK_ENTRY("row-Q6_K", Project<1>("Q6_K")),
    KVIK_ENTRY("rows-Q4_0", Project<32>("Q4_0")),
    KVIK_ENTRY("rows-Q8_0", Project<32>("Q8_0")),
};

}  // namespace

extern "C" KVIK_NOINLINE void counted(Work* work) { work->run(); }

int main(int count, char** words) {
    if (count < 3) {
        for (const Entry& entry : entries) std::puts(entry.name);
        return 0;
    }
    kvik_set_threads(1);
    if (kvik_select_variant(words[2])) return 2;
    for (const Entry& entry : entries)
        if (!std::strcmp(entry.name, words[1])) {
            Work* work = entry.make();
            counted(work);
            delete work;
            return 0;
        }
    return 2;
}
