// kernel0: 64 x 1 x 1 blocks of 128 threads,
// 53248 bytes of dynamic shared memory.
//   in0_X: 4096 x float16, read, aligned to 16 bytes
//   in1_W: 1048576 x float16, read, aligned to 16 bytes
//   in2_A: 4096 x float16, read, aligned to 16 bytes
//   in3_B: 65536 x float16, read, aligned to 16 bytes
//   out0_d4: 65536 x float16, written, aligned to 16 bytes
#include "mirage_formal/device.cuh"

extern "C" __global__ void __launch_bounds__(128, 1) kernel0(
    MF_INPUT(mf::half) in0_X,
    MF_INPUT(mf::half) in1_W,
    MF_INPUT(mf::half) in2_A,
    MF_INPUT(mf::half) in3_B,
    MF_OUTPUT(mf::half) out0_d4
) {
  MF_SHARED_MEMORY(53248);
  MF_SHARED(mf::half, s0, 4608, 32768);  // bytes 32768..41983
  MF_SHARED(mf::half, s1, 16384, 0);  // bytes 0..32767
  MF_SHARED(mf::half, s2, 4096, 41984);  // bytes 41984..50175
  MF_SHARED(mf::half, s3, 1152, 50176);  // bytes 50176..52479
  MF_SHARED(mf::half, s5, 384, 52480);  // bytes 52480..53247
  const int tid = mf::below<128>(threadIdx.x);
  const int bx = mf::below<64>(blockIdx.x);
  MF_FLOATS(t4, 8);
  MF_FLOATS(t5, 4);
  MF_FLOATS(t6, 8);
  MF_FLOATS(t7, 8);
  MF_FLOATS(t8, 8);
  mf::copy_async(s3, (tid / 8) * 72 + (tid % 8) * 8, in3_B, bx * 64 + (tid / 8) * 4096 + (tid % 8) * 8);
  mf::commit();
  mf::copy_async(s0, (tid / 8) * 72 + (tid % 8) * 8, in0_X, (tid / 8) * 256 + (tid % 8) * 8);
  #pragma unroll
  for (int c0 = 0; c0 < 4; ++c0) {
    mf::copy_async(
        s1,
        (tid / 8 + c0 * 16) * 64 + ((tid % 8) ^ ((tid / 8 + c0 * 16) % 8)) * 8,
        in1_W,
        bx * 64 + (tid / 8 + c0 * 16) * 4096 + (tid % 8) * 8
    );
  }
  mf::copy_async(
      s2,
      (tid / 2) * 16 + ((tid % 2) ^ ((tid / 8) % 2)) * 8,
      in2_A,
      (tid / 2) * 16 + (tid % 2) * 8
  );
  mf::commit();
  mf::copy_async(s0, (tid / 8) * 72 + (tid % 8) * 8 + 1152, in0_X, (tid / 8) * 256 + (tid % 8) * 8 + 64);
  #pragma unroll
  for (int c1 = 0; c1 < 4; ++c1) {
    mf::copy_async(
        s1,
        (tid / 8 + c1 * 16) * 64 + ((tid % 8) ^ ((tid / 8 + c1 * 16) % 8)) * 8 + 4096,
        in1_W,
        bx * 64 + (tid / 8 + c1 * 16) * 4096 + (tid % 8) * 8 + 262144
    );
  }
  mf::copy_async(
      s2,
      (tid / 2) * 16 + ((tid % 2) ^ ((tid / 8) % 2)) * 8 + 1024,
      in2_A,
      (tid / 2) * 16 + (tid % 2) * 8 + 1024
  );
  mf::commit();
  mf::copy_async(s0, (tid / 8) * 72 + (tid % 8) * 8 + 2304, in0_X, (tid / 8) * 256 + (tid % 8) * 8 + 128);
  #pragma unroll
  for (int c2 = 0; c2 < 4; ++c2) {
    mf::copy_async(
        s1,
        (tid / 8 + c2 * 16) * 64 + ((tid % 8) ^ ((tid / 8 + c2 * 16) % 8)) * 8 + 8192,
        in1_W,
        bx * 64 + (tid / 8 + c2 * 16) * 4096 + (tid % 8) * 8 + 524288
    );
  }
  mf::copy_async(
      s2,
      (tid / 2) * 16 + ((tid % 2) ^ ((tid / 8) % 2)) * 8 + 2048,
      in2_A,
      (tid / 2) * 16 + (tid % 2) * 8 + 2048
  );
  mf::commit();
  mf::copy_async(s0, (tid / 8) * 72 + (tid % 8) * 8 + 3456, in0_X, (tid / 8) * 256 + (tid % 8) * 8 + 192);
  #pragma unroll
  for (int c3 = 0; c3 < 4; ++c3) {
    mf::copy_async(
        s1,
        (tid / 8 + c3 * 16) * 64 + ((tid % 8) ^ ((tid / 8 + c3 * 16) % 8)) * 8 + 12288,
        in1_W,
        bx * 64 + (tid / 8 + c3 * 16) * 4096 + (tid % 8) * 8 + 786432
    );
  }
  mf::copy_async(
      s2,
      (tid / 2) * 16 + ((tid % 2) ^ ((tid / 8) % 2)) * 8 + 3072,
      in2_A,
      (tid / 2) * 16 + (tid % 2) * 8 + 3072
  );
  mf::commit();
  #pragma unroll
  for (int u4 = 0; u4 < 8; ++u4) {
    t8[u4] = 0.0f;
  }
  #pragma unroll 1
  for (int it = 0; it < 4; ++it) {
    mf::wait_groups<3>();
    mf::barrier();
    mf::commit();
    #pragma unroll
    for (int u5 = 0; u5 < 8; ++u5) {
      t4[u5] = 0.0f;
    }
    #pragma unroll
    for (int u6 = 0; u6 < 4; ++u6) {
      t5[u6] = 0.0f;
    }
    MF_WORDS(a_1, 4);
    MF_WORDS(b_2, 4);
    MF_WORDS(b_3, 4);
    #pragma unroll
    for (int k7 = 0; k7 < 4; ++k7) {
      mf::load_matrix<4>(a_1, 0, s0, it * 1152 + ((tid % 32) % 16) * 72 + (k7 * 16 + ((tid % 32) / 16) * 8));
      mf::load_matrix_transposed<4>(
          b_2,
          0,
          s1,
          it * 4096 + (k7 * 16 + (tid % 32) % 16) * 64 + (((tid / 32) * 2 + (tid % 32) / 16) ^ ((k7 * 16 + (tid % 32) % 16) % 8)) * 8
      );
      mf::mma<mf::half>(t4, 0, a_1, 0, b_2, 0);
      mf::mma<mf::half>(t4, 4, a_1, 0, b_2, 2);
      mf::load_matrix_transposed<2>(
          b_3,
          0,
          s2,
          it * 1024 + (k7 * 16 + tid % 16) * 16 + ((((((tid / 32) * 8) % 16) / 8) ^ (((k7 * 16 + tid % 16) / 4) % 2)) * 8 + (((tid / 32) * 8) % 16) % 8)
      );
      mf::mma<mf::half>(t5, 0, a_1, 0, b_3, 0);
    }
    #pragma unroll
    for (int u8 = 0; u8 < 2; ++u8) {
      if ((tid % 4) * 2 + (tid / 32) * 8 < 16) {
        mf::store_vector(s5, ((tid / 4) % 8 + u8 * 8) * 24 + ((tid % 4) * 2 + (tid / 32) * 8), {
            t5[u8 * 2],
            t5[u8 * 2 + 1]
        });
      }
    }
    mf::barrier();
    #pragma unroll
    for (int u9 = 0; u9 < 8; ++u9) {
      t6[u9] = 0.0f;
    }
    MF_WORDS(a_4, 4);
    MF_WORDS(b_5, 4);
    mf::load_matrix<4>(a_4, 0, s5, ((tid % 32) % 16) * 24 + ((tid % 32) / 16) * 8);
    mf::load_matrix_transposed<4>(
        b_5,
        0,
        s3,
        ((tid % 32) % 16) * 72 + ((tid / 32) * 16 + ((tid % 32) / 16) * 8)
    );
    mf::mma<mf::half>(t6, 0, a_4, 0, b_5, 0);
    mf::mma<mf::half>(t6, 4, a_4, 0, b_5, 2);
    #pragma unroll
    for (int u10 = 0; u10 < 2; ++u10) {
      #pragma unroll
      for (int u11 = 0; u11 < 2; ++u11) {
        #pragma unroll
        for (int u12 = 0; u12 < 2; ++u12) {
          t7[u10 * 4 + u11 * 2 + u12] = t4[u10 * 4 + u11 * 2 + u12] + t6[u10 * 4 + u11 * 2 + u12];
        }
      }
    }
    #pragma unroll
    for (int u13 = 0; u13 < 2; ++u13) {
      #pragma unroll
      for (int u14 = 0; u14 < 2; ++u14) {
        #pragma unroll
        for (int u15 = 0; u15 < 2; ++u15) {
          t8[u13 * 4 + u14 * 2 + u15] = t8[u13 * 4 + u14 * 2 + u15] + t7[u13 * 4 + u14 * 2 + u15];
        }
      }
    }
  }
  #pragma unroll
  for (int u16 = 0; u16 < 2; ++u16) {
    #pragma unroll
    for (int u17 = 0; u17 < 2; ++u17) {
      mf::store_vector(out0_d4, bx * 64 + ((tid / 4) % 8 + u17 * 8) * 4096 + ((tid % 4) * 2 + (tid / 32) * 16 + u16 * 8), {
          t8[u16 * 4 + u17 * 2],
          t8[u16 * 4 + u17 * 2 + 1]
      });
    }
  }
}
