// kernel0: 64 x 1 x 1 blocks of 128 threads,
// 156672 bytes of dynamic shared memory.
//   in0_X: 32768 x float16, read, aligned to 16 bytes
//   in1_W1: 16777216 x float16, read, aligned to 16 bytes
//   in2_W2: 16777216 x float16, read, aligned to 16 bytes
//   out0_d3: 32768 x float16, written, aligned to 16 bytes
#include "mirage_formal/device.cuh"

extern "C" __global__ void __launch_bounds__(128, 1) kernel0(
    MF_INPUT(mf::half) in0_X,
    MF_INPUT(mf::half) in1_W1,
    MF_INPUT(mf::half) in2_W2,
    MF_OUTPUT(mf::half) out0_d3
) {
  MF_SHARED_MEMORY(156672);
  MF_SHARED(mf::half, s0, 4608, 131072);  // bytes 131072..140287
  MF_SHARED(mf::half, s1, 32768, 0);  // bytes 0..65535
  MF_SHARED(mf::half, s2, 32768, 65536);  // bytes 65536..131071
  MF_SHARED(float, x5, 2048, 140288);  // bytes 140288..148479
  MF_SHARED(float, x6, 2048, 148480);  // bytes 148480..156671
  const int tid = mf::below<128>(threadIdx.x);
  const int bx = mf::below<64>(blockIdx.x);
  MF_FLOATS(t5, 16);
  MF_FLOATS(t6, 16);
  MF_FLOATS(t7, 16);
  MF_FLOATS(t8, 16);
  if (tid / 8 < 8) {
    mf::copy_async(s0, (tid / 8) * 72 + (tid % 8) * 8, in0_X, (tid / 8) * 4096 + (tid % 8) * 8, tid / 8 < 8);
  }
  #pragma unroll
  for (int c0 = 0; c0 < 4; ++c0) {
    mf::copy_async(
        s1,
        (tid / 8 + c0 * 16) * 64 + ((tid % 8) ^ ((tid / 8 + c0 * 16) % 8)) * 8,
        in1_W1,
        bx * 64 + (tid / 8 + c0 * 16) * 4096 + (tid % 8) * 8
    );
  }
  #pragma unroll
  for (int c1 = 0; c1 < 4; ++c1) {
    mf::copy_async(
        s2,
        (tid / 8 + c1 * 16) * 64 + ((tid % 8) ^ ((tid / 8 + c1 * 16) % 8)) * 8,
        in2_W2,
        bx * 64 + (tid / 8 + c1 * 16) * 4096 + (tid % 8) * 8
    );
  }
  mf::commit();
  if (tid / 8 < 8) {
    mf::copy_async(
        s0,
        (tid / 8) * 72 + (tid % 8) * 8 + 576,
        in0_X,
        (tid / 8) * 4096 + (tid % 8) * 8 + 64,
        tid / 8 < 8
    );
  }
  #pragma unroll
  for (int c2 = 0; c2 < 4; ++c2) {
    mf::copy_async(
        s1,
        (tid / 8 + c2 * 16) * 64 + ((tid % 8) ^ ((tid / 8 + c2 * 16) % 8)) * 8 + 4096,
        in1_W1,
        bx * 64 + (tid / 8 + c2 * 16) * 4096 + (tid % 8) * 8 + 262144
    );
  }
  #pragma unroll
  for (int c3 = 0; c3 < 4; ++c3) {
    mf::copy_async(
        s2,
        (tid / 8 + c3 * 16) * 64 + ((tid % 8) ^ ((tid / 8 + c3 * 16) % 8)) * 8 + 4096,
        in2_W2,
        bx * 64 + (tid / 8 + c3 * 16) * 4096 + (tid % 8) * 8 + 262144
    );
  }
  mf::commit();
  if (tid / 8 < 8) {
    mf::copy_async(
        s0,
        (tid / 8) * 72 + (tid % 8) * 8 + 1152,
        in0_X,
        (tid / 8) * 4096 + (tid % 8) * 8 + 128,
        tid / 8 < 8
    );
  }
  #pragma unroll
  for (int c4 = 0; c4 < 4; ++c4) {
    mf::copy_async(
        s1,
        (tid / 8 + c4 * 16) * 64 + ((tid % 8) ^ ((tid / 8 + c4 * 16) % 8)) * 8 + 8192,
        in1_W1,
        bx * 64 + (tid / 8 + c4 * 16) * 4096 + (tid % 8) * 8 + 524288
    );
  }
  #pragma unroll
  for (int c5 = 0; c5 < 4; ++c5) {
    mf::copy_async(
        s2,
        (tid / 8 + c5 * 16) * 64 + ((tid % 8) ^ ((tid / 8 + c5 * 16) % 8)) * 8 + 8192,
        in2_W2,
        bx * 64 + (tid / 8 + c5 * 16) * 4096 + (tid % 8) * 8 + 524288
    );
  }
  mf::commit();
  if (tid / 8 < 8) {
    mf::copy_async(
        s0,
        (tid / 8) * 72 + (tid % 8) * 8 + 1728,
        in0_X,
        (tid / 8) * 4096 + (tid % 8) * 8 + 192,
        tid / 8 < 8
    );
  }
  #pragma unroll
  for (int c6 = 0; c6 < 4; ++c6) {
    mf::copy_async(
        s1,
        (tid / 8 + c6 * 16) * 64 + ((tid % 8) ^ ((tid / 8 + c6 * 16) % 8)) * 8 + 12288,
        in1_W1,
        bx * 64 + (tid / 8 + c6 * 16) * 4096 + (tid % 8) * 8 + 786432
    );
  }
  #pragma unroll
  for (int c7 = 0; c7 < 4; ++c7) {
    mf::copy_async(
        s2,
        (tid / 8 + c7 * 16) * 64 + ((tid % 8) ^ ((tid / 8 + c7 * 16) % 8)) * 8 + 12288,
        in2_W2,
        bx * 64 + (tid / 8 + c7 * 16) * 4096 + (tid % 8) * 8 + 786432
    );
  }
  mf::commit();
  if (tid / 8 < 8) {
    mf::copy_async(
        s0,
        (tid / 8) * 72 + (tid % 8) * 8 + 2304,
        in0_X,
        (tid / 8) * 4096 + (tid % 8) * 8 + 256,
        tid / 8 < 8
    );
  }
  #pragma unroll
  for (int c8 = 0; c8 < 4; ++c8) {
    mf::copy_async(
        s1,
        (tid / 8 + c8 * 16) * 64 + ((tid % 8) ^ ((tid / 8 + c8 * 16) % 8)) * 8 + 16384,
        in1_W1,
        bx * 64 + (tid / 8 + c8 * 16) * 4096 + (tid % 8) * 8 + 1048576
    );
  }
  #pragma unroll
  for (int c9 = 0; c9 < 4; ++c9) {
    mf::copy_async(
        s2,
        (tid / 8 + c9 * 16) * 64 + ((tid % 8) ^ ((tid / 8 + c9 * 16) % 8)) * 8 + 16384,
        in2_W2,
        bx * 64 + (tid / 8 + c9 * 16) * 4096 + (tid % 8) * 8 + 1048576
    );
  }
  mf::commit();
  if (tid / 8 < 8) {
    mf::copy_async(
        s0,
        (tid / 8) * 72 + (tid % 8) * 8 + 2880,
        in0_X,
        (tid / 8) * 4096 + (tid % 8) * 8 + 320,
        tid / 8 < 8
    );
  }
  #pragma unroll
  for (int c10 = 0; c10 < 4; ++c10) {
    mf::copy_async(
        s1,
        (tid / 8 + c10 * 16) * 64 + ((tid % 8) ^ ((tid / 8 + c10 * 16) % 8)) * 8 + 20480,
        in1_W1,
        bx * 64 + (tid / 8 + c10 * 16) * 4096 + (tid % 8) * 8 + 1310720
    );
  }
  #pragma unroll
  for (int c11 = 0; c11 < 4; ++c11) {
    mf::copy_async(
        s2,
        (tid / 8 + c11 * 16) * 64 + ((tid % 8) ^ ((tid / 8 + c11 * 16) % 8)) * 8 + 20480,
        in2_W2,
        bx * 64 + (tid / 8 + c11 * 16) * 4096 + (tid % 8) * 8 + 1310720
    );
  }
  mf::commit();
  if (tid / 8 < 8) {
    mf::copy_async(
        s0,
        (tid / 8) * 72 + (tid % 8) * 8 + 3456,
        in0_X,
        (tid / 8) * 4096 + (tid % 8) * 8 + 384,
        tid / 8 < 8
    );
  }
  #pragma unroll
  for (int c12 = 0; c12 < 4; ++c12) {
    mf::copy_async(
        s1,
        (tid / 8 + c12 * 16) * 64 + ((tid % 8) ^ ((tid / 8 + c12 * 16) % 8)) * 8 + 24576,
        in1_W1,
        bx * 64 + (tid / 8 + c12 * 16) * 4096 + (tid % 8) * 8 + 1572864
    );
  }
  #pragma unroll
  for (int c13 = 0; c13 < 4; ++c13) {
    mf::copy_async(
        s2,
        (tid / 8 + c13 * 16) * 64 + ((tid % 8) ^ ((tid / 8 + c13 * 16) % 8)) * 8 + 24576,
        in2_W2,
        bx * 64 + (tid / 8 + c13 * 16) * 4096 + (tid % 8) * 8 + 1572864
    );
  }
  mf::commit();
  #pragma unroll
  for (int u14 = 0; u14 < 16; ++u14) {
    t5[u14] = 0.0f;
  }
  #pragma unroll
  for (int u15 = 0; u15 < 16; ++u15) {
    t6[u15] = 0.0f;
  }
  #pragma unroll 1
  for (int it = 0; it < 64; ++it) {
    mf::wait_groups<6>();
    mf::barrier();
    if (it + 7 < 64) {  // uniform
      if (tid / 8 < 8) {
        mf::copy_async(
            s0,
            ((it + 7) % 8) * 576 + (tid / 8) * 72 + (tid % 8) * 8,
            in0_X,
            (it + 7) * 64 + (tid / 8) * 4096 + (tid % 8) * 8,
            tid / 8 < 8
        );
      }
      #pragma unroll
      for (int c16 = 0; c16 < 4; ++c16) {
        mf::copy_async(
            s1,
            ((it + 7) % 8) * 4096 + (tid / 8 + c16 * 16) * 64 + ((tid % 8) ^ ((tid / 8 + c16 * 16) % 8)) * 8,
            in1_W1,
            (it + 7) * 262144 + bx * 64 + (tid / 8 + c16 * 16) * 4096 + (tid % 8) * 8
        );
      }
      #pragma unroll
      for (int c17 = 0; c17 < 4; ++c17) {
        mf::copy_async(
            s2,
            ((it + 7) % 8) * 4096 + (tid / 8 + c17 * 16) * 64 + ((tid % 8) ^ ((tid / 8 + c17 * 16) % 8)) * 8,
            in2_W2,
            (it + 7) * 262144 + bx * 64 + (tid / 8 + c17 * 16) * 4096 + (tid % 8) * 8
        );
      }
    }
    mf::commit();
    MF_WORDS(a_1, 4);
    MF_WORDS(b_2, 4);
    MF_WORDS(b_3, 4);
    #pragma unroll
    for (int k18 = 0; k18 < 2; ++k18) {
      mf::load_matrix<4>(
          a_1,
          0,
          s0,
          (it % 8) * 576 + (((tid % 32) % 16) % 8) * 72 + ((tid / 64) * 32 + k18 * 16 + ((tid % 32) / 16) * 8)
      );
      #pragma unroll
      for (int n19 = 0; n19 < 2; ++n19) {
        mf::load_matrix_transposed<4>(
            b_2,
            0,
            s1,
            (it % 8) * 4096 + ((tid / 64) * 32 + k18 * 16 + (tid % 32) % 16) * 64 + ((((tid / 32) % 2) * 4 + n19 * 2 + (tid % 32) / 16) ^ (((tid / 64) * 32 + k18 * 16 + (tid % 32) % 16) % 8)) * 8
        );
        mf::mma<mf::half>(t5, n19 * 8, a_1, 0, b_2, 0);
        mf::mma<mf::half>(t5, n19 * 8 + 4, a_1, 0, b_2, 2);
      }
      #pragma unroll
      for (int n20 = 0; n20 < 2; ++n20) {
        mf::load_matrix_transposed<4>(
            b_3,
            0,
            s2,
            (it % 8) * 4096 + ((tid / 64) * 32 + k18 * 16 + (tid % 32) % 16) * 64 + ((((tid / 32) % 2) * 4 + n20 * 2 + (tid % 32) / 16) ^ (((tid / 64) * 32 + k18 * 16 + (tid % 32) % 16) % 8)) * 8
        );
        mf::mma<mf::half>(t6, n20 * 8, a_1, 0, b_3, 0);
        mf::mma<mf::half>(t6, n20 * 8 + 4, a_1, 0, b_3, 2);
      }
    }
  }
  #pragma unroll
  for (int u21 = 0; u21 < 16; ++u21) {
    mf::store(x5, u21 * 128 + tid, t5[u21]);
  }
  mf::barrier();
  #pragma unroll
  for (int u22 = 0; u22 < 16; ++u22) {
    t5[u22] = mf::load(x5, u22 * 128 + tid % 64) + mf::load(x5, u22 * 128 + tid % 64 + 64);
  }
  #pragma unroll
  for (int u23 = 0; u23 < 16; ++u23) {
    mf::store(x6, u23 * 128 + tid, t6[u23]);
  }
  mf::barrier();
  #pragma unroll
  for (int u24 = 0; u24 < 16; ++u24) {
    t6[u24] = mf::load(x6, u24 * 128 + tid % 64) + mf::load(x6, u24 * 128 + tid % 64 + 64);
  }
  #pragma unroll
  for (int u25 = 0; u25 < 4; ++u25) {
    #pragma unroll
    for (int u26 = 0; u26 < 2; ++u26) {
      #pragma unroll
      for (int u27 = 0; u27 < 2; ++u27) {
        t7[u25 * 4 + u26 * 2 + u27] = mf::silu(t5[u25 * 4 + u26 * 2 + u27]);
      }
    }
  }
  #pragma unroll
  for (int u28 = 0; u28 < 4; ++u28) {
    #pragma unroll
    for (int u29 = 0; u29 < 2; ++u29) {
      #pragma unroll
      for (int u30 = 0; u30 < 2; ++u30) {
        t8[u28 * 4 + u29 * 2 + u30] = t7[u28 * 4 + u29 * 2 + u30] * t6[u28 * 4 + u29 * 2 + u30];
      }
    }
  }
  #pragma unroll
  for (int u31 = 0; u31 < 4; ++u31) {
    #pragma unroll
    for (int u32 = 0; u32 < 2; ++u32) {
      if (tid / 64 == 0 && (tid / 4) % 8 + u32 * 8 < 8) {
        mf::store_vector(out0_d3, bx * 64 + ((tid / 4) % 8 + u32 * 8) * 4096 + ((tid % 4) * 2 + ((tid / 32) % 2) * 32 + u31 * 8), {
            t8[u31 * 4 + u32 * 2],
            t8[u31 * 4 + u32 * 2 + 1]
        });
      }
    }
  }
}
