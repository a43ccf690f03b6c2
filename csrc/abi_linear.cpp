// The C ABI of linear maps: each function finds the kernel of the instruction set in use.
#include "kvik_linear.h"

#include "runtime/cpu.h"

extern "C" {

int64_t kvik_packed_bytes(int32_t type, int64_t rows, int64_t cols) {
    return kvik::kernels().linear.packed_bytes(type, rows, cols);
}
int32_t kvik_pack(int32_t type, int64_t rows, int64_t cols, const void* from, void* to,
                  float* unit) {
    return kvik::kernels().linear.pack(type, rows, cols, from, to, unit);
}
void kvik_rows(const kvik_matrix* matrix, const int64_t* ids, int64_t count, float scale,
               float* out) {
    kvik::kernels().linear.rows(*matrix, ids, count, scale, out);
}
void kvik_project(const kvik_project_args* args, const float* x, int64_t n, float* out) {
    kvik::kernels().linear.project(*args, x, n, out);
}
void kvik_finish(const kvik_finish_args* args, const float* mixed, const float* x, int64_t n,
                 float* out) {
    kvik::kernels().linear.finish(*args, mixed, x, n, out);
}
}
