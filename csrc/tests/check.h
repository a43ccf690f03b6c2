// The little that the C++ tests need: checks that are counted, and numbers drawn from a seed.
#pragma once
#include <cstdint>
#include <cstdio>
#include <cstring>

namespace kvik::test {

inline int failures = 0;

inline void check(bool good, const char* what, const char* file, int line) {
    if (good) return;
    if (++failures <= 20) std::fprintf(stderr, "%s:%d: %s\n", file, line, what);
}
#define CHECK(condition) ::kvik::test::check((condition), #condition, __FILE__, __LINE__)

inline int result() {
    if (failures) std::fprintf(stderr, "%d checks failed\n", failures);
    return failures ? 1 : 0;
}

// Steele, Lea and Flood's SplitMix64.
class Random {
public:
    explicit Random(std::uint64_t seed) : state_(seed) {}

    std::uint64_t bits() {
        std::uint64_t z = state_ += 0x9e3779b97f4a7c15u;
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
        return z ^ (z >> 31);
    }
    // Whole, from low to high inclusive.
    std::int64_t whole(std::int64_t low, std::int64_t high) {
        return low + static_cast<std::int64_t>(bits() % static_cast<std::uint64_t>(high - low + 1));
    }
    // At least -1, below 1.
    float real() { return static_cast<float>(static_cast<double>(bits() >> 11) * 0x1p-52 - 1.0); }

private:
    std::uint64_t state_;
};

inline float float_of(std::uint32_t bits) {
    float value;
    std::memcpy(&value, &bits, 4);
    return value;
}
inline std::uint32_t bits_of(float value) {
    std::uint32_t bits;
    std::memcpy(&bits, &value, 4);
    return bits;
}

}  // namespace kvik::test
