// kernel0: 2 x 3 x 1 blocks of 128 threads,
// 256 bytes of dynamic shared memory.
//   in0_x0: 384 x float16, read, aligned to 16 bytes
//   out0_d1: 384 x float16, written, aligned to 16 bytes
#include "mirage_formal/device.cuh"

extern "C" __global__ void __launch_bounds__(128, 1) kernel0(
    MF_INPUT(mf::half) in0_x0,
    MF_OUTPUT(mf::half) out0_d1
) {
  MF_SHARED_MEMORY(256);
  MF_SHARED(float, s1, 64, 0);  // bytes 0..255
  const int tid = mf::below<128>(threadIdx.x);
  const int bx = mf::below<2>(blockIdx.x);
  const int by = mf::below<3>(blockIdx.y);
  #pragma unroll 1
  for (int it = 0; it < 4; ++it) {
    mf::barrier();
    if (tid < 16) {
      mf::store(
          s1,
          (tid / 8 + it * 2) * 8 + tid % 8,
          mf::load(in0_x0, bx * 192 + by * 64 + it * 16 + (tid / 8) * 8 + tid % 8)
      );
    }
  }
  mf::barrier();
  if (tid < 64) {
    mf::store(out0_d1, bx * 192 + by * 64 + (tid / 8) * 8 + tid % 8, mf::load(s1, (tid / 8) * 8 + tid % 8));
  }
}
