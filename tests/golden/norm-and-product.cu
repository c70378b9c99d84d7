// kernel0: 96 x 1 x 1 blocks of 128 threads,
// 76040 bytes of dynamic shared memory.
//   in0_X: 8192 x float16, read, aligned to 16 bytes
//   in1_W: 25165824 x float16, read, aligned to 16 bytes
//   out0_d2: 12288 x float16, written, aligned to 16 bytes
#include "mirage_formal/device.cuh"

extern "C" __global__ void __launch_bounds__(128, 1) kernel0(
    MF_INPUT(mf::half) in0_X,
    MF_INPUT(mf::half) in1_W,
    MF_OUTPUT(mf::half) out0_d2
) {
  MF_SHARED_MEMORY(76040);
  MF_SHARED(mf::half, s0, 1152, 73728);  // bytes 73728..76031
  MF_SHARED(mf::half, s1, 32768, 0);  // bytes 0..65535
  MF_SHARED(float, s7, 2, 76032);  // bytes 76032..76039
  MF_SHARED(float, x3, 2048, 65536);  // bytes 65536..73727
  const int tid = mf::below<128>(threadIdx.x);
  const int bx = mf::below<96>(blockIdx.x);
  MF_FLOATS(t3, 16);
  MF_FLOATS(t4, 8);
  MF_FLOATS(t5, 1);
  MF_FLOATS(t6, 1);
  MF_FLOATS(t7, 1);
  MF_FLOATS(t8, 16);
  if (tid / 8 < 2) {
    mf::copy_async(s0, (tid / 8) * 72 + (tid % 8) * 8, in0_X, (tid / 8) * 4096 + (tid % 8) * 8, tid / 8 < 2);
  }
  #pragma unroll
  for (int c0 = 0; c0 < 4; ++c0) {
    mf::copy_async(
        s1,
        (tid / 8 + c0 * 16) * 64 + ((tid % 8) ^ ((tid / 8 + c0 * 16) % 8)) * 8,
        in1_W,
        bx * 64 + (tid / 8 + c0 * 16) * 6144 + (tid % 8) * 8
    );
  }
  mf::commit();
  if (tid / 8 < 2) {
    mf::copy_async(
        s0,
        (tid / 8) * 72 + (tid % 8) * 8 + 144,
        in0_X,
        (tid / 8) * 4096 + (tid % 8) * 8 + 64,
        tid / 8 < 2
    );
  }
  #pragma unroll
  for (int c1 = 0; c1 < 4; ++c1) {
    mf::copy_async(
        s1,
        (tid / 8 + c1 * 16) * 64 + ((tid % 8) ^ ((tid / 8 + c1 * 16) % 8)) * 8 + 4096,
        in1_W,
        bx * 64 + (tid / 8 + c1 * 16) * 6144 + (tid % 8) * 8 + 393216
    );
  }
  mf::commit();
  if (tid / 8 < 2) {
    mf::copy_async(
        s0,
        (tid / 8) * 72 + (tid % 8) * 8 + 288,
        in0_X,
        (tid / 8) * 4096 + (tid % 8) * 8 + 128,
        tid / 8 < 2
    );
  }
  #pragma unroll
  for (int c2 = 0; c2 < 4; ++c2) {
    mf::copy_async(
        s1,
        (tid / 8 + c2 * 16) * 64 + ((tid % 8) ^ ((tid / 8 + c2 * 16) % 8)) * 8 + 8192,
        in1_W,
        bx * 64 + (tid / 8 + c2 * 16) * 6144 + (tid % 8) * 8 + 786432
    );
  }
  mf::commit();
  if (tid / 8 < 2) {
    mf::copy_async(
        s0,
        (tid / 8) * 72 + (tid % 8) * 8 + 432,
        in0_X,
        (tid / 8) * 4096 + (tid % 8) * 8 + 192,
        tid / 8 < 2
    );
  }
  #pragma unroll
  for (int c3 = 0; c3 < 4; ++c3) {
    mf::copy_async(
        s1,
        (tid / 8 + c3 * 16) * 64 + ((tid % 8) ^ ((tid / 8 + c3 * 16) % 8)) * 8 + 12288,
        in1_W,
        bx * 64 + (tid / 8 + c3 * 16) * 6144 + (tid % 8) * 8 + 1179648
    );
  }
  mf::commit();
  if (tid / 8 < 2) {
    mf::copy_async(
        s0,
        (tid / 8) * 72 + (tid % 8) * 8 + 576,
        in0_X,
        (tid / 8) * 4096 + (tid % 8) * 8 + 256,
        tid / 8 < 2
    );
  }
  #pragma unroll
  for (int c4 = 0; c4 < 4; ++c4) {
    mf::copy_async(
        s1,
        (tid / 8 + c4 * 16) * 64 + ((tid % 8) ^ ((tid / 8 + c4 * 16) % 8)) * 8 + 16384,
        in1_W,
        bx * 64 + (tid / 8 + c4 * 16) * 6144 + (tid % 8) * 8 + 1572864
    );
  }
  mf::commit();
  if (tid / 8 < 2) {
    mf::copy_async(
        s0,
        (tid / 8) * 72 + (tid % 8) * 8 + 720,
        in0_X,
        (tid / 8) * 4096 + (tid % 8) * 8 + 320,
        tid / 8 < 2
    );
  }
  #pragma unroll
  for (int c5 = 0; c5 < 4; ++c5) {
    mf::copy_async(
        s1,
        (tid / 8 + c5 * 16) * 64 + ((tid % 8) ^ ((tid / 8 + c5 * 16) % 8)) * 8 + 20480,
        in1_W,
        bx * 64 + (tid / 8 + c5 * 16) * 6144 + (tid % 8) * 8 + 1966080
    );
  }
  mf::commit();
  if (tid / 8 < 2) {
    mf::copy_async(
        s0,
        (tid / 8) * 72 + (tid % 8) * 8 + 864,
        in0_X,
        (tid / 8) * 4096 + (tid % 8) * 8 + 384,
        tid / 8 < 2
    );
  }
  #pragma unroll
  for (int c6 = 0; c6 < 4; ++c6) {
    mf::copy_async(
        s1,
        (tid / 8 + c6 * 16) * 64 + ((tid % 8) ^ ((tid / 8 + c6 * 16) % 8)) * 8 + 24576,
        in1_W,
        bx * 64 + (tid / 8 + c6 * 16) * 6144 + (tid % 8) * 8 + 2359296
    );
  }
  mf::commit();
  #pragma unroll
  for (int u7 = 0; u7 < 16; ++u7) {
    t3[u7] = 0.0f;
  }
  t5[0] = 0.0f;
  #pragma unroll 1
  for (int it = 0; it < 64; ++it) {
    mf::wait_groups<6>();
    mf::barrier();
    if (it + 7 < 64) {  // uniform
      if (tid / 8 < 2) {
        mf::copy_async(
            s0,
            ((it + 7) % 8) * 144 + (tid / 8) * 72 + (tid % 8) * 8,
            in0_X,
            (it + 7) * 64 + (tid / 8) * 4096 + (tid % 8) * 8,
            tid / 8 < 2
        );
      }
      #pragma unroll
      for (int c8 = 0; c8 < 4; ++c8) {
        mf::copy_async(
            s1,
            ((it + 7) % 8) * 4096 + (tid / 8 + c8 * 16) * 64 + ((tid % 8) ^ ((tid / 8 + c8 * 16) % 8)) * 8,
            in1_W,
            (it + 7) * 393216 + bx * 64 + (tid / 8 + c8 * 16) * 6144 + (tid % 8) * 8
        );
      }
    }
    mf::commit();
    MF_FLOATS(v_1, 8);
    mf::load_vector<8>(v_1, 0, s0, (it % 8) * 144 + ((tid / 8) % 2) * 72 + (tid % 8) * 8);
    #pragma unroll
    for (int u9 = 0; u9 < 8; ++u9) {
      t4[u9] = mf::square(v_1[u9]);
    }
    MF_WORDS(a_2, 4);
    MF_WORDS(b_3, 4);
    #pragma unroll
    for (int k10 = 0; k10 < 2; ++k10) {
      mf::load_matrix<4>(
          a_2,
          0,
          s0,
          (it % 8) * 144 + (((tid % 32) % 16) % 2) * 72 + ((tid / 64) * 32 + k10 * 16 + ((tid % 32) / 16) * 8)
      );
      #pragma unroll
      for (int n11 = 0; n11 < 2; ++n11) {
        mf::load_matrix_transposed<4>(
            b_3,
            0,
            s1,
            (it % 8) * 4096 + ((tid / 64) * 32 + k10 * 16 + (tid % 32) % 16) * 64 + ((((tid / 32) % 2) * 4 + n11 * 2 + (tid % 32) / 16) ^ (((tid / 64) * 32 + k10 * 16 + (tid % 32) % 16) % 8)) * 8
        );
        mf::mma<mf::half>(t3, n11 * 8, a_2, 0, b_3, 0);
        mf::mma<mf::half>(t3, n11 * 8 + 4, a_2, 0, b_3, 2);
      }
    }
    #pragma unroll
    for (int u12 = 0; u12 < 8; ++u12) {
      t5[0] = t5[0] + t4[u12];
    }
  }
  #pragma unroll
  for (int u13 = 0; u13 < 16; ++u13) {
    mf::store(x3, u13 * 128 + tid, t3[u13]);
  }
  mf::barrier();
  #pragma unroll
  for (int u14 = 0; u14 < 16; ++u14) {
    t3[u14] = mf::load(x3, u14 * 128 + tid % 64) + mf::load(x3, u14 * 128 + tid % 64 + 64);
  }
  mf::shuffle_add(t5, 0, 1);
  mf::shuffle_add(t5, 0, 2);
  mf::shuffle_add(t5, 0, 4);
  t6[0] = t5[0] * 0.00024414062f;
  t7[0] = mf::sqrt(t6[0]);
  if (tid % 8 == 0 && tid / 16 == 0) {
    mf::store(s7, (tid / 8) % 2, t7[0]);
  }
  mf::barrier();
  #pragma unroll
  for (int u15 = 0; u15 < 4; ++u15) {
    #pragma unroll
    for (int u16 = 0; u16 < 2; ++u16) {
      #pragma unroll
      for (int u17 = 0; u17 < 2; ++u17) {
        t8[u15 * 4 + u16 * 2 + u17] = mf::div(
            t3[u15 * 4 + u16 * 2 + u17],
            mf::load(s7, ((tid / 4) % 8 + u16 * 8) % 2)
        );
      }
    }
  }
  #pragma unroll
  for (int u18 = 0; u18 < 4; ++u18) {
    #pragma unroll
    for (int u19 = 0; u19 < 2; ++u19) {
      if (tid / 64 == 0 && (tid / 4) % 8 + u19 * 8 < 2) {
        mf::store_vector(out0_d2, bx * 64 + ((tid / 4) % 8 + u19 * 8) * 6144 + ((tid % 4) * 2 + ((tid / 32) % 2) * 32 + u18 * 8), {
            t8[u18 * 4 + u19 * 2],
            t8[u18 * 4 + u19 * 2 + 1]
        });
      }
    }
  }
}
