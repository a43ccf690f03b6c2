// One instruction set's wrappers behind plain functions, so that variants can be compared.
#pragma once
#include <cstdint>
#include <cstring>

namespace kvik::test {

// What the wrappers read: a bit of everything.
struct In {
    float f[3][8];            // anything: NaN, infinities, subnormals
    float ordered[8][8];      // finite
    float whole[8];           // whole numbers in [-126, 127]
    float small[8];           // what rounds to a 32-bit integer
    std::int32_t i[8][8];     // sums of eight do not overflow
    std::int32_t narrow[8];   // fit in 16 bits
    std::int16_t s[2][16];    // products do not overflow
    std::uint16_t h[8];       // any half or bfloat
    std::uint8_t bytes[8][48];
};

// What they write, in order.
struct Out {
    std::uint8_t bytes[1024];
    std::size_t size = 0;

    template <class T>
    void add(const T* values, int count) {
        std::memcpy(bytes + size, values, static_cast<std::size_t>(count) * sizeof(T));
        size += static_cast<std::size_t>(count) * sizeof(T);
    }
};

struct Probe {
    const char* name;
    bool floats;  // NaNs are all the same, and so are zeros
    void (*run)(const In& in, Out& out);
};

struct Probes {
    const char* name;
    const Probe* all;
    int count;
    void (*exp)(const float* x, float* y, int count);
    void (*tanh)(const float* x, float* y, int count);
    float (*from_half)(std::uint16_t h);
    std::uint16_t (*to_half)(float a);
};

}  // namespace kvik::test
