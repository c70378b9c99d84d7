// op0_silu: 16 x 1 x 1 blocks of 128 threads,
// 0 bytes of dynamic shared memory.
//   In0: 16384 x float16, read, aligned to 16 bytes
//   Out: 16384 x float16, written, aligned to 16 bytes
#include "mirage_formal/device.cuh"

extern "C" __global__ void __launch_bounds__(128, 1) op0_silu(
    MF_INPUT(mf::half) In0,
    MF_OUTPUT(mf::half) Out
) {
  const int tid = mf::below<128>(threadIdx.x);
  const int bx = mf::below<16>(blockIdx.x);
  MF_FLOATS(v0, 8);
  mf::load_vector<8>(v0, 0, In0, (bx * 128 + tid) * 8);
  mf::store_vector(Out, (bx * 128 + tid) * 8, {
      mf::silu(v0[0]),
      mf::silu(v0[1]),
      mf::silu(v0[2]),
      mf::silu(v0[3]),
      mf::silu(v0[4]),
      mf::silu(v0[5]),
      mf::silu(v0[6]),
      mf::silu(v0[7])
  });
}

// op0_add: 16 x 1 x 1 blocks of 128 threads,
// 0 bytes of dynamic shared memory.
//   In0: 16384 x float16, read, aligned to 16 bytes
//   In1: 256 x float16, read, aligned to 16 bytes
//   Out: 16384 x float16, written, aligned to 16 bytes
#include "mirage_formal/device.cuh"

extern "C" __global__ void __launch_bounds__(128, 1) op0_add(
    MF_INPUT(mf::half) In0,
    MF_INPUT(mf::half) In1,
    MF_OUTPUT(mf::half) Out
) {
  const int tid = mf::below<128>(threadIdx.x);
  const int bx = mf::below<16>(blockIdx.x);
  MF_FLOATS(v0, 8);
  MF_FLOATS(v1, 8);
  mf::load_vector<8>(v0, 0, In0, ((bx * 128 + tid) / 32) * 256 + ((bx * 128 + tid) % 32) * 8);
  mf::load_vector<8>(v1, 0, In1, ((bx * 128 + tid) % 32) * 8);
  mf::store_vector(Out, (bx * 128 + tid) * 8, {
      v0[0] + v1[0],
      v0[1] + v1[1],
      v0[2] + v1[2],
      v0[3] + v1[3],
      v0[4] + v1[4],
      v0[5] + v1[5],
      v0[6] + v1[6],
      v0[7] + v1[7]
  });
}

// op0_transpose: 4 x 16 x 1 blocks of 32 threads,
// 576 bytes of dynamic shared memory.
//   In0: 16384 x float16, read, aligned to 16 bytes
//   Out: 16384 x float16, written, aligned to 16 bytes
#include "mirage_formal/device.cuh"

extern "C" __global__ void __launch_bounds__(32, 1) op0_transpose(
    MF_INPUT(mf::half) In0,
    MF_OUTPUT(mf::half) Out
) {
  MF_SHARED_MEMORY(576);
  MF_SHARED(mf::half, tile0, 288, 0);  // bytes 0..575
  const int tid = mf::below<32>(threadIdx.x);
  const int bx = mf::below<4>(blockIdx.x);
  const int by = mf::below<16>(blockIdx.y);
  MF_FLOATS(v0, 8);
  mf::fill(v0, 0.0f);
  MF_FLOATS(s0, 8);
  mf::load_vector<8>(v0, 0, In0, by * 16 + (tid % 2) * 8 + (bx * 16 + tid / 2) * 256);
  #pragma unroll
  for (int k0 = 0; k0 < 8; ++k0) {
    mf::store(tile0, ((tid % 2) * 8 + k0) * 16 + (tid % 2) * 16 + tid / 2, v0[k0]);
  }
  mf::barrier();
  mf::load_vector<8>(s0, 0, tile0, (tid / 2) * 16 + (tid / 16) * 16 + (tid % 2) * 8);
  mf::store_vector(Out, (by * 16 + tid / 2) * 64 + (bx * 16 + (tid % 2) * 8), {
      s0[0],
      s0[1],
      s0[2],
      s0[3],
      s0[4],
      s0[5],
      s0[6],
      s0[7]
  });
}

// op0_concat: 24 x 1 x 1 blocks of 128 threads,
// 0 bytes of dynamic shared memory.
//   In0: 16384 x float16, read, aligned to 16 bytes
//   In1: 8192 x float16, read, aligned to 16 bytes
//   Out: 24576 x float16, written, aligned to 16 bytes
#include "mirage_formal/device.cuh"

extern "C" __global__ void __launch_bounds__(128, 1) op0_concat(
    MF_INPUT(mf::half) In0,
    MF_INPUT(mf::half) In1,
    MF_OUTPUT(mf::half) Out
) {
  const int tid = mf::below<128>(threadIdx.x);
  const int bx = mf::below<24>(blockIdx.x);
  MF_FLOATS(v0, 8);
  if ((bx * 128 + tid) % 48 < 32) {
    mf::load_vector<8>(v0, 0, In0, ((bx * 128 + tid) / 48) * 256 + ((bx * 128 + tid) % 48) * 8);
  }
  if (((bx * 128 + tid) % 48 < 32) == 0) {
    mf::load_vector<8>(v0, 0, In1, ((bx * 128 + tid) / 48) * 128 + ((bx * 128 + tid) % 48 - 32) * 8);
  }
  mf::store_vector(Out, (bx * 128 + tid) * 8, {v0[0], v0[1], v0[2], v0[3], v0[4], v0[5], v0[6], v0[7]});
}

// op0_sum: 64 x 1 x 1 blocks of 32 threads,
// 0 bytes of dynamic shared memory.
//   in0_x0: 16384 x float16, read, aligned to 16 bytes
//   out0_d1: 64 x float16, written, aligned to 2 bytes
#include "mirage_formal/device.cuh"

extern "C" __global__ void __launch_bounds__(32, 1) op0_sum(
    MF_INPUT(mf::half) in0_x0,
    MF_OUTPUT(mf::half) out0_d1
) {
  const int tid = mf::below<32>(threadIdx.x);
  const int bx = mf::below<64>(blockIdx.x);
  MF_FLOATS(t0, 8);
  MF_FLOATS(t1, 1);
  mf::load_vector<8>(t0, 0, in0_x0, bx * 256 + tid * 8);
  t1[0] = 0.0f;
  #pragma unroll
  for (int u0 = 0; u0 < 8; ++u0) {
    t1[0] = t1[0] + t0[u0];
  }
  mf::shuffle_add(t1, 0, 1);
  mf::shuffle_add(t1, 0, 2);
  mf::shuffle_add(t1, 0, 4);
  mf::shuffle_add(t1, 0, 8);
  mf::shuffle_add(t1, 0, 16);
  if (tid == 0) {
    mf::store(out0_d1, bx, t1[0]);
  }
}

// op0_softmax: 64 x 1 x 1 blocks of 32 threads,
// 0 bytes of dynamic shared memory.
//   in0_x0: 16384 x float16, read, aligned to 16 bytes
//   out0_d1: 16384 x float16, written, aligned to 16 bytes
#include "mirage_formal/device.cuh"

extern "C" __global__ void __launch_bounds__(32, 1) op0_softmax(
    MF_INPUT(mf::half) in0_x0,
    MF_OUTPUT(mf::half) out0_d1
) {
  const int tid = mf::below<32>(threadIdx.x);
  const int bx = mf::below<64>(blockIdx.x);
  MF_FLOATS(t0, 8);
  MF_FLOATS(t1, 1);
  MF_FLOATS(t2, 8);
  MF_FLOATS(t3, 8);
  MF_FLOATS(t4, 1);
  MF_FLOATS(t5, 8);
  mf::load_vector<8>(t0, 0, in0_x0, bx * 256 + tid * 8);
  t1[0] = -mf::infinity();
  #pragma unroll
  for (int u0 = 0; u0 < 8; ++u0) {
    t1[0] = mf::max(t1[0], t0[u0]);
  }
  mf::shuffle_max(t1, 0, 1);
  mf::shuffle_max(t1, 0, 2);
  mf::shuffle_max(t1, 0, 4);
  mf::shuffle_max(t1, 0, 8);
  mf::shuffle_max(t1, 0, 16);
  #pragma unroll
  for (int u1 = 0; u1 < 8; ++u1) {
    t2[u1] = t0[u1] - mf::max(t1[0], -3.4028235e+38f);
  }
  #pragma unroll
  for (int u2 = 0; u2 < 8; ++u2) {
    t3[u2] = mf::exp(t2[u2]);
  }
  t4[0] = 0.0f;
  #pragma unroll
  for (int u3 = 0; u3 < 8; ++u3) {
    t4[0] = t4[0] + t3[u3];
  }
  mf::shuffle_add(t4, 0, 1);
  mf::shuffle_add(t4, 0, 2);
  mf::shuffle_add(t4, 0, 4);
  mf::shuffle_add(t4, 0, 8);
  mf::shuffle_add(t4, 0, 16);
  #pragma unroll
  for (int u4 = 0; u4 < 8; ++u4) {
    t5[u4] = mf::div(t3[u4], t4[0]);
  }
  mf::store_vector(out0_d1, bx * 256 + tid * 8, {t5[0], t5[1], t5[2], t5[3], t5[4], t5[5], t5[6], t5[7]});
}

// op0_rms_norm: 64 x 1 x 1 blocks of 32 threads,
// 0 bytes of dynamic shared memory.
//   in0_x0: 16384 x float16, read, aligned to 16 bytes
//   in1_x1: 256 x float16, read, aligned to 16 bytes
//   out0_d2: 16384 x float16, written, aligned to 16 bytes
#include "mirage_formal/device.cuh"

extern "C" __global__ void __launch_bounds__(32, 1) op0_rms_norm(
    MF_INPUT(mf::half) in0_x0,
    MF_INPUT(mf::half) in1_x1,
    MF_OUTPUT(mf::half) out0_d2
) {
  const int tid = mf::below<32>(threadIdx.x);
  const int bx = mf::below<64>(blockIdx.x);
  MF_FLOATS(t0, 8);
  MF_FLOATS(t1, 8);
  MF_FLOATS(t2, 8);
  MF_FLOATS(t3, 1);
  MF_FLOATS(t4, 1);
  MF_FLOATS(t5, 1);
  MF_FLOATS(t6, 1);
  MF_FLOATS(t7, 8);
  MF_FLOATS(t8, 8);
  mf::load_vector<8>(t0, 0, in0_x0, bx * 256 + tid * 8);
  mf::load_vector<8>(t1, 0, in1_x1, tid * 8);
  #pragma unroll
  for (int u0 = 0; u0 < 8; ++u0) {
    t2[u0] = mf::square(t0[u0]);
  }
  t3[0] = 0.0f;
  #pragma unroll
  for (int u1 = 0; u1 < 8; ++u1) {
    t3[0] = t3[0] + t2[u1];
  }
  mf::shuffle_add(t3, 0, 1);
  mf::shuffle_add(t3, 0, 2);
  mf::shuffle_add(t3, 0, 4);
  mf::shuffle_add(t3, 0, 8);
  mf::shuffle_add(t3, 0, 16);
  t4[0] = t3[0] * 0.00390625f;
  t5[0] = t4[0] + 1e-05f;
  t6[0] = mf::rsqrt(t5[0]);
  #pragma unroll
  for (int u2 = 0; u2 < 8; ++u2) {
    t7[u2] = t0[u2] * t6[0];
  }
  #pragma unroll
  for (int u3 = 0; u3 < 8; ++u3) {
    t8[u3] = t7[u3] * t1[u3];
  }
  mf::store_vector(out0_d2, bx * 256 + tid * 8, {t8[0], t8[1], t8[2], t8[3], t8[4], t8[5], t8[6], t8[7]});
}
