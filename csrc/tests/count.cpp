// Runs one kernel once, for counting its instructions: `count KERNEL VARIANT`. The counted part is
// the function `counted`; the rest prepares its arguments. Without arguments it prints the names.
#include <cstdio>
#include <cstring>
#include <vector>

#include "kvik.h"
#include "runtime/threads.h"
#include "tests/check.h"

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

std::vector<float> floats(std::size_t count, std::uint64_t seed) {
    kvik::test::Random draw(seed);
    std::vector<float> values(count);
    for (float& value : values) value = draw.real();
    return values;
}

struct Exp : Work {
    std::vector<float> x = floats(4096, 1), y = std::vector<float>(4096);
    void run() override { kvik_exp(x.data(), y.data(), 4096); }
};

// A thousand items that do nothing, on one thread.
struct Items : Work {
    void run() override { kvik::parallel_for(1000, [](std::int64_t) {}); }
};

struct Entry {
    const char* name;
    Work* (*make)();
};
const Entry entries[] = {
    {"exp", [] { return static_cast<Work*>(new Exp); }},
    {"items", [] { return static_cast<Work*>(new Items); }},
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
