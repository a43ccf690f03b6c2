// Which kernels this processor can run, and which are used.
#pragma once
#include "kernels/table.h"

namespace kvik {

// The variants that were compiled in and that this processor can run, best first; null-terminated.
const Kernels* const* usable();

// The kernels in use: the best, or what select() chose.
const Kernels& kernels();

// Uses the variant of that name; false when it is unknown or this processor cannot run it.
bool select(const char* name);

}  // namespace kvik
