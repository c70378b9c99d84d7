// kernel0: 2 x 4 x 1 blocks of 128 threads,
// 174080 bytes of dynamic shared memory.
//   in0_Q: 32768 x float16, read, aligned to 16 bytes
//   in1_K: 524288 x float16, read, aligned to 16 bytes
//   in2_V: 524288 x float16, read, aligned to 16 bytes
//   out0_d3: 32768 x float16, written, aligned to 16 bytes
#include "mirage_formal/device.cuh"

extern "C" __global__ void __launch_bounds__(128, 1) kernel0(
    MF_INPUT(mf::half) in0_Q,
    MF_INPUT(mf::half) in1_K,
    MF_INPUT(mf::half) in2_V,
    MF_OUTPUT(mf::half) out0_d3
) {
  MF_SHARED_MEMORY(174080);
  MF_SHARED(mf::half, s0, 4096, 163840);  // bytes 163840..172031
  MF_SHARED(mf::half, s1, 32768, 0);  // bytes 0..65535
  MF_SHARED(mf::half, s2, 32768, 65536);  // bytes 65536..131071
  MF_SHARED(float, x6, 8192, 131072);  // bytes 131072..163839
  MF_SHARED(float, x7, 512, 172032);  // bytes 172032..174079
  const int tid = mf::below<128>(threadIdx.x);
  const int bx = mf::below<2>(blockIdx.x);
  const int by = mf::below<4>(blockIdx.y);
  MF_FLOATS(t3, 32);
  MF_FLOATS(t4, 32);
  MF_FLOATS(t6, 64);
  MF_FLOATS(t7, 4);
  MF_FLOATS(t8, 64);
  #pragma unroll
  for (int c0 = 0; c0 < 4; ++c0) {
    mf::copy_async(
        s0,
        (tid / 8 + c0 * 16) * 64 + ((tid % 8) ^ ((tid / 8 + c0 * 16) % 8)) * 8,
        in0_Q,
        bx * 16384 + by * 4096 + (tid / 8 + c0 * 16) * 64 + (tid % 8) * 8
    );
  }
  mf::commit();
  #pragma unroll
  for (int c1 = 0; c1 < 4; ++c1) {
    mf::copy_async(
        s1,
        (tid / 8 + c1 * 16) * 64 + ((tid % 8) ^ ((tid / 8 + c1 * 16) % 8)) * 8,
        in1_K,
        bx * 262144 + (tid / 8 + c1 * 16) * 4096 + (tid % 8) * 8
    );
  }
  #pragma unroll
  for (int c2 = 0; c2 < 4; ++c2) {
    mf::copy_async(
        s2,
        (tid / 8 + c2 * 16) * 64 + ((tid % 8) ^ ((tid / 8 + c2 * 16) % 8)) * 8,
        in2_V,
        bx * 262144 + (tid / 8 + c2 * 16) * 64 + (tid % 8) * 8
    );
  }
  mf::commit();
  #pragma unroll
  for (int c3 = 0; c3 < 4; ++c3) {
    mf::copy_async(
        s1,
        (tid / 8 + c3 * 16) * 64 + ((tid % 8) ^ ((tid / 8 + c3 * 16) % 8)) * 8 + 4096,
        in1_K,
        bx * 262144 + (tid / 8 + c3 * 16) * 4096 + (tid % 8) * 8 + 64
    );
  }
  #pragma unroll
  for (int c4 = 0; c4 < 4; ++c4) {
    mf::copy_async(
        s2,
        (tid / 8 + c4 * 16) * 64 + ((tid % 8) ^ ((tid / 8 + c4 * 16) % 8)) * 8 + 4096,
        in2_V,
        bx * 262144 + (tid / 8 + c4 * 16) * 64 + (tid % 8) * 8 + 4096
    );
  }
  mf::commit();
  #pragma unroll
  for (int c5 = 0; c5 < 4; ++c5) {
    mf::copy_async(
        s1,
        (tid / 8 + c5 * 16) * 64 + ((tid % 8) ^ ((tid / 8 + c5 * 16) % 8)) * 8 + 8192,
        in1_K,
        bx * 262144 + (tid / 8 + c5 * 16) * 4096 + (tid % 8) * 8 + 128
    );
  }
  #pragma unroll
  for (int c6 = 0; c6 < 4; ++c6) {
    mf::copy_async(
        s2,
        (tid / 8 + c6 * 16) * 64 + ((tid % 8) ^ ((tid / 8 + c6 * 16) % 8)) * 8 + 8192,
        in2_V,
        bx * 262144 + (tid / 8 + c6 * 16) * 64 + (tid % 8) * 8 + 8192
    );
  }
  mf::commit();
  #pragma unroll
  for (int c7 = 0; c7 < 4; ++c7) {
    mf::copy_async(
        s1,
        (tid / 8 + c7 * 16) * 64 + ((tid % 8) ^ ((tid / 8 + c7 * 16) % 8)) * 8 + 12288,
        in1_K,
        bx * 262144 + (tid / 8 + c7 * 16) * 4096 + (tid % 8) * 8 + 192
    );
  }
  #pragma unroll
  for (int c8 = 0; c8 < 4; ++c8) {
    mf::copy_async(
        s2,
        (tid / 8 + c8 * 16) * 64 + ((tid % 8) ^ ((tid / 8 + c8 * 16) % 8)) * 8 + 12288,
        in2_V,
        bx * 262144 + (tid / 8 + c8 * 16) * 64 + (tid % 8) * 8 + 12288
    );
  }
  mf::commit();
  #pragma unroll
  for (int c9 = 0; c9 < 4; ++c9) {
    mf::copy_async(
        s1,
        (tid / 8 + c9 * 16) * 64 + ((tid % 8) ^ ((tid / 8 + c9 * 16) % 8)) * 8 + 16384,
        in1_K,
        bx * 262144 + (tid / 8 + c9 * 16) * 4096 + (tid % 8) * 8 + 256
    );
  }
  #pragma unroll
  for (int c10 = 0; c10 < 4; ++c10) {
    mf::copy_async(
        s2,
        (tid / 8 + c10 * 16) * 64 + ((tid % 8) ^ ((tid / 8 + c10 * 16) % 8)) * 8 + 16384,
        in2_V,
        bx * 262144 + (tid / 8 + c10 * 16) * 64 + (tid % 8) * 8 + 16384
    );
  }
  mf::commit();
  #pragma unroll
  for (int c11 = 0; c11 < 4; ++c11) {
    mf::copy_async(
        s1,
        (tid / 8 + c11 * 16) * 64 + ((tid % 8) ^ ((tid / 8 + c11 * 16) % 8)) * 8 + 20480,
        in1_K,
        bx * 262144 + (tid / 8 + c11 * 16) * 4096 + (tid % 8) * 8 + 320
    );
  }
  #pragma unroll
  for (int c12 = 0; c12 < 4; ++c12) {
    mf::copy_async(
        s2,
        (tid / 8 + c12 * 16) * 64 + ((tid % 8) ^ ((tid / 8 + c12 * 16) % 8)) * 8 + 20480,
        in2_V,
        bx * 262144 + (tid / 8 + c12 * 16) * 64 + (tid % 8) * 8 + 20480
    );
  }
  mf::commit();
  #pragma unroll
  for (int c13 = 0; c13 < 4; ++c13) {
    mf::copy_async(
        s1,
        (tid / 8 + c13 * 16) * 64 + ((tid % 8) ^ ((tid / 8 + c13 * 16) % 8)) * 8 + 24576,
        in1_K,
        bx * 262144 + (tid / 8 + c13 * 16) * 4096 + (tid % 8) * 8 + 384
    );
  }
  #pragma unroll
  for (int c14 = 0; c14 < 4; ++c14) {
    mf::copy_async(
        s2,
        (tid / 8 + c14 * 16) * 64 + ((tid % 8) ^ ((tid / 8 + c14 * 16) % 8)) * 8 + 24576,
        in2_V,
        bx * 262144 + (tid / 8 + c14 * 16) * 64 + (tid % 8) * 8 + 24576
    );
  }
  mf::commit();
  #pragma unroll
  for (int u15 = 0; u15 < 4; ++u15) {
    t7[u15] = 0.0f;
  }
  #pragma unroll
  for (int u16 = 0; u16 < 64; ++u16) {
    t6[u16] = 0.0f;
  }
  #pragma unroll 1
  for (int it = 0; it < 64; ++it) {
    mf::wait_groups<6>();
    mf::barrier();
    if (it + 7 < 64) {  // uniform
      #pragma unroll
      for (int c17 = 0; c17 < 4; ++c17) {
        mf::copy_async(
            s1,
            ((it + 7) % 8) * 4096 + (tid / 8 + c17 * 16) * 64 + ((tid % 8) ^ ((tid / 8 + c17 * 16) % 8)) * 8,
            in1_K,
            bx * 262144 + (it + 7) * 64 + (tid / 8 + c17 * 16) * 4096 + (tid % 8) * 8
        );
      }
      #pragma unroll
      for (int c18 = 0; c18 < 4; ++c18) {
        mf::copy_async(
            s2,
            ((it + 7) % 8) * 4096 + (tid / 8 + c18 * 16) * 64 + ((tid % 8) ^ ((tid / 8 + c18 * 16) % 8)) * 8,
            in2_V,
            bx * 262144 + (it + 7) * 4096 + (tid / 8 + c18 * 16) * 64 + (tid % 8) * 8
        );
      }
    }
    mf::commit();
    #pragma unroll
    for (int u19 = 0; u19 < 32; ++u19) {
      t3[u19] = 0.0f;
    }
    MF_WORDS(a_1, 8);
    MF_WORDS(b_2, 4);
    #pragma unroll
    for (int k20 = 0; k20 < 4; ++k20) {
      #pragma unroll
      for (int m21 = 0; m21 < 2; ++m21) {
        mf::load_matrix<4>(
            a_1,
            m21 * 4,
            s0,
            (((tid / 32) % 2) * 32 + m21 * 16 + (tid % 32) % 16) * 64 + ((k20 * 2 + (tid % 32) / 16) ^ ((((tid / 32) % 2) * 32 + m21 * 16 + (tid % 32) % 16) % 8)) * 8
        );
      }
      #pragma unroll
      for (int n22 = 0; n22 < 2; ++n22) {
        mf::load_matrix_transposed<4>(
            b_2,
            0,
            s1,
            (it % 8) * 4096 + (k20 * 16 + (tid % 32) % 16) * 64 + (((tid / 64) * 4 + n22 * 2 + (tid % 32) / 16) ^ ((k20 * 16 + (tid % 32) % 16) % 8)) * 8
        );
        #pragma unroll
        for (int m23 = 0; m23 < 2; ++m23) {
          mf::mma<mf::half>(t3, m23 * 16 + n22 * 8, a_1, m23 * 4, b_2, 0);
          mf::mma<mf::half>(t3, m23 * 16 + n22 * 8 + 4, a_1, m23 * 4, b_2, 2);
        }
      }
    }
    #pragma unroll
    for (int u24 = 0; u24 < 2; ++u24) {
      #pragma unroll
      for (int u25 = 0; u25 < 4; ++u25) {
        #pragma unroll
        for (int u26 = 0; u26 < 2; ++u26) {
          #pragma unroll
          for (int u27 = 0; u27 < 2; ++u27) {
            t4[u24 * 16 + u25 * 4 + u26 * 2 + u27] = mf::exp(t3[u24 * 16 + u25 * 4 + u26 * 2 + u27]);
          }
        }
      }
    }
    #pragma unroll
    for (int u28 = 0; u28 < 2; ++u28) {
      #pragma unroll
      for (int u29 = 0; u29 < 4; ++u29) {
        #pragma unroll
        for (int u30 = 0; u30 < 2; ++u30) {
          #pragma unroll
          for (int u31 = 0; u31 < 2; ++u31) {
            t7[u28 * 2 + u30] = t7[u28 * 2 + u30] + t4[u28 * 16 + u29 * 4 + u30 * 2 + u31];
          }
        }
      }
    }
    MF_WORDS(a_3, 8);
    MF_WORDS(b_4, 4);
    #pragma unroll
    for (int k32 = 0; k32 < 2; ++k32) {
      #pragma unroll
      for (int m33 = 0; m33 < 2; ++m33) {
        a_3[m33 * 4] = mf::pack<mf::half>(t4[m33 * 16 + k32 * 8], t4[m33 * 16 + k32 * 8 + 1]);
        a_3[m33 * 4 + 1] = mf::pack<mf::half>(t4[m33 * 16 + k32 * 8 + 2], t4[m33 * 16 + k32 * 8 + 3]);
        a_3[m33 * 4 + 2] = mf::pack<mf::half>(t4[m33 * 16 + k32 * 8 + 4], t4[m33 * 16 + k32 * 8 + 5]);
        a_3[m33 * 4 + 3] = mf::pack<mf::half>(t4[m33 * 16 + k32 * 8 + 6], t4[m33 * 16 + k32 * 8 + 7]);
      }
      #pragma unroll
      for (int n34 = 0; n34 < 4; ++n34) {
        mf::load_matrix_transposed<4>(
            b_4,
            0,
            s2,
            (it % 8) * 4096 + ((tid / 64) * 32 + k32 * 16 + (tid % 32) % 16) * 64 + ((n34 * 2 + (tid % 32) / 16) ^ (((tid / 64) * 32 + k32 * 16 + (tid % 32) % 16) % 8)) * 8
        );
        #pragma unroll
        for (int m35 = 0; m35 < 2; ++m35) {
          mf::mma<mf::half>(t6, m35 * 32 + n34 * 8, a_3, m35 * 4, b_4, 0);
          mf::mma<mf::half>(t6, m35 * 32 + n34 * 8 + 4, a_3, m35 * 4, b_4, 2);
        }
      }
    }
  }
  #pragma unroll
  for (int u36 = 0; u36 < 4; ++u36) {
    mf::shuffle_add(t7, u36, 1);
  }
  #pragma unroll
  for (int u37 = 0; u37 < 4; ++u37) {
    mf::shuffle_add(t7, u37, 2);
  }
  #pragma unroll
  for (int u38 = 0; u38 < 4; ++u38) {
    mf::store(x7, u38 * 128 + tid, t7[u38]);
  }
  mf::barrier();
  #pragma unroll
  for (int u39 = 0; u39 < 4; ++u39) {
    t7[u39] = mf::load(x7, u39 * 128 + tid % 64) + mf::load(x7, u39 * 128 + tid % 64 + 64);
  }
  #pragma unroll
  for (int u40 = 0; u40 < 64; ++u40) {
    mf::store(x6, u40 * 128 + tid, t6[u40]);
  }
  mf::barrier();
  #pragma unroll
  for (int u41 = 0; u41 < 64; ++u41) {
    t6[u41] = mf::load(x6, u41 * 128 + tid % 64) + mf::load(x6, u41 * 128 + tid % 64 + 64);
  }
  #pragma unroll
  for (int u42 = 0; u42 < 2; ++u42) {
    #pragma unroll
    for (int u43 = 0; u43 < 8; ++u43) {
      #pragma unroll
      for (int u44 = 0; u44 < 2; ++u44) {
        #pragma unroll
        for (int u45 = 0; u45 < 2; ++u45) {
          t8[u42 * 32 + u43 * 4 + u44 * 2 + u45] = mf::div(
              t6[u42 * 32 + u43 * 4 + u44 * 2 + u45],
              t7[u42 * 2 + u44]
          );
        }
      }
    }
  }
  #pragma unroll
  for (int u46 = 0; u46 < 2; ++u46) {
    #pragma unroll
    for (int u47 = 0; u47 < 8; ++u47) {
      #pragma unroll
      for (int u48 = 0; u48 < 2; ++u48) {
        if (tid / 64 == 0) {
          mf::store_vector(out0_d3, bx * 16384 + by * 4096 + ((tid / 4) % 8 + ((tid / 32) % 2) * 32 + u46 * 16 + u48 * 8) * 64 + ((tid % 4) * 2 + u47 * 8), {
              t8[u46 * 32 + u47 * 4 + u48 * 2],
              t8[u46 * 32 + u47 * 4 + u48 * 2 + 1]
          });
        }
      }
    }
  }
}
