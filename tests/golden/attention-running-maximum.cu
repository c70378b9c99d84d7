// kernel0: 2 x 4 x 1 blocks of 128 threads,
// 139264 bytes of dynamic shared memory.
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
  MF_SHARED_MEMORY(139264);
  MF_SHARED(mf::half, s0, 4096, 131072);  // bytes 131072..139263
  MF_SHARED(mf::half, s1, 32768, 0);  // bytes 0..65535
  MF_SHARED(mf::half, s2, 32768, 65536);  // bytes 65536..131071
  const int tid = mf::below<128>(threadIdx.x);
  const int bx = mf::below<2>(blockIdx.x);
  const int by = mf::below<4>(blockIdx.y);
  MF_FLOATS(t3, 32);
  MF_FLOATS(t4, 2);
  MF_FLOATS(t5, 2);
  MF_FLOATS(t6, 2);
  MF_FLOATS(t7, 32);
  MF_FLOATS(t8, 32);
  MF_FLOATS(t10, 32);
  MF_FLOATS(t11, 2);
  MF_FLOATS(t12, 32);
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
  for (int u15 = 0; u15 < 2; ++u15) {
    t5[u15] = -3.4028235e+38f;
  }
  #pragma unroll
  for (int u16 = 0; u16 < 2; ++u16) {
    t11[u16] = 0.0f;
  }
  #pragma unroll
  for (int u17 = 0; u17 < 32; ++u17) {
    t10[u17] = 0.0f;
  }
  #pragma unroll 1
  for (int it = 0; it < 64; ++it) {
    mf::wait_groups<6>();
    mf::barrier();
    if (it + 7 < 64) {  // uniform
      #pragma unroll
      for (int c18 = 0; c18 < 4; ++c18) {
        mf::copy_async(
            s1,
            ((it + 7) % 8) * 4096 + (tid / 8 + c18 * 16) * 64 + ((tid % 8) ^ ((tid / 8 + c18 * 16) % 8)) * 8,
            in1_K,
            bx * 262144 + (it + 7) * 64 + (tid / 8 + c18 * 16) * 4096 + (tid % 8) * 8
        );
      }
      #pragma unroll
      for (int c19 = 0; c19 < 4; ++c19) {
        mf::copy_async(
            s2,
            ((it + 7) % 8) * 4096 + (tid / 8 + c19 * 16) * 64 + ((tid % 8) ^ ((tid / 8 + c19 * 16) % 8)) * 8,
            in2_V,
            bx * 262144 + (it + 7) * 4096 + (tid / 8 + c19 * 16) * 64 + (tid % 8) * 8
        );
      }
    }
    mf::commit();
    #pragma unroll
    for (int u20 = 0; u20 < 32; ++u20) {
      t3[u20] = 0.0f;
    }
    MF_WORDS(a_1, 4);
    MF_WORDS(b_2, 4);
    #pragma unroll
    for (int k21 = 0; k21 < 4; ++k21) {
      mf::load_matrix<4>(
          a_1,
          0,
          s0,
          ((tid / 32) * 16 + (tid % 32) % 16) * 64 + ((k21 * 2 + (tid % 32) / 16) ^ (((tid / 32) * 16 + (tid % 32) % 16) % 8)) * 8
      );
      #pragma unroll
      for (int n22 = 0; n22 < 4; ++n22) {
        mf::load_matrix_transposed<4>(
            b_2,
            0,
            s1,
            (it % 8) * 4096 + (k21 * 16 + (tid % 32) % 16) * 64 + ((n22 * 2 + (tid % 32) / 16) ^ ((k21 * 16 + (tid % 32) % 16) % 8)) * 8
        );
        mf::mma<mf::half>(t3, n22 * 8, a_1, 0, b_2, 0);
        mf::mma<mf::half>(t3, n22 * 8 + 4, a_1, 0, b_2, 2);
      }
    }
    #pragma unroll
    for (int u23 = 0; u23 < 2; ++u23) {
      t4[u23] = -mf::infinity();
    }
    #pragma unroll
    for (int u24 = 0; u24 < 8; ++u24) {
      #pragma unroll
      for (int u25 = 0; u25 < 2; ++u25) {
        #pragma unroll
        for (int u26 = 0; u26 < 2; ++u26) {
          t4[u25] = mf::max(t4[u25], t3[u24 * 4 + u25 * 2 + u26]);
        }
      }
    }
    #pragma unroll
    for (int u27 = 0; u27 < 2; ++u27) {
      mf::shuffle_max(t4, u27, 1);
    }
    #pragma unroll
    for (int u28 = 0; u28 < 2; ++u28) {
      mf::shuffle_max(t4, u28, 2);
    }
    #pragma unroll
    for (int u29 = 0; u29 < 2; ++u29) {
      t6[u29] = t5[u29];
      t5[u29] = mf::max(t5[u29], t4[u29]);
      t6[u29] = mf::exp(t6[u29] - t5[u29]);
    }
    #pragma unroll
    for (int u30 = 0; u30 < 8; ++u30) {
      #pragma unroll
      for (int u31 = 0; u31 < 2; ++u31) {
        #pragma unroll
        for (int u32 = 0; u32 < 2; ++u32) {
          t7[u30 * 4 + u31 * 2 + u32] = t3[u30 * 4 + u31 * 2 + u32] - t5[u31];
        }
      }
    }
    #pragma unroll
    for (int u33 = 0; u33 < 8; ++u33) {
      #pragma unroll
      for (int u34 = 0; u34 < 2; ++u34) {
        #pragma unroll
        for (int u35 = 0; u35 < 2; ++u35) {
          t8[u33 * 4 + u34 * 2 + u35] = mf::exp(t7[u33 * 4 + u34 * 2 + u35]);
        }
      }
    }
    #pragma unroll
    for (int u36 = 0; u36 < 2; ++u36) {
      t11[u36] = t11[u36] * t6[u36];
    }
    #pragma unroll
    for (int u37 = 0; u37 < 8; ++u37) {
      #pragma unroll
      for (int u38 = 0; u38 < 2; ++u38) {
        #pragma unroll
        for (int u39 = 0; u39 < 2; ++u39) {
          t11[u38] = t11[u38] + t8[u37 * 4 + u38 * 2 + u39];
        }
      }
    }
    #pragma unroll
    for (int u40 = 0; u40 < 8; ++u40) {
      #pragma unroll
      for (int u41 = 0; u41 < 2; ++u41) {
        #pragma unroll
        for (int u42 = 0; u42 < 2; ++u42) {
          t10[u40 * 4 + u41 * 2 + u42] = t10[u40 * 4 + u41 * 2 + u42] * t6[u41];
        }
      }
    }
    MF_WORDS(a_3, 4);
    MF_WORDS(b_4, 4);
    #pragma unroll
    for (int k43 = 0; k43 < 4; ++k43) {
      a_3[0] = mf::pack<mf::half>(t8[k43 * 8], t8[k43 * 8 + 1]);
      a_3[1] = mf::pack<mf::half>(t8[k43 * 8 + 2], t8[k43 * 8 + 3]);
      a_3[2] = mf::pack<mf::half>(t8[k43 * 8 + 4], t8[k43 * 8 + 5]);
      a_3[3] = mf::pack<mf::half>(t8[k43 * 8 + 6], t8[k43 * 8 + 7]);
      #pragma unroll
      for (int n44 = 0; n44 < 4; ++n44) {
        mf::load_matrix_transposed<4>(
            b_4,
            0,
            s2,
            (it % 8) * 4096 + (k43 * 16 + (tid % 32) % 16) * 64 + ((n44 * 2 + (tid % 32) / 16) ^ ((k43 * 16 + (tid % 32) % 16) % 8)) * 8
        );
        mf::mma<mf::half>(t10, n44 * 8, a_3, 0, b_4, 0);
        mf::mma<mf::half>(t10, n44 * 8 + 4, a_3, 0, b_4, 2);
      }
    }
  }
  #pragma unroll
  for (int u45 = 0; u45 < 2; ++u45) {
    mf::shuffle_add(t11, u45, 1);
  }
  #pragma unroll
  for (int u46 = 0; u46 < 2; ++u46) {
    mf::shuffle_add(t11, u46, 2);
  }
  #pragma unroll
  for (int u47 = 0; u47 < 8; ++u47) {
    #pragma unroll
    for (int u48 = 0; u48 < 2; ++u48) {
      #pragma unroll
      for (int u49 = 0; u49 < 2; ++u49) {
        t12[u47 * 4 + u48 * 2 + u49] = mf::div(t10[u47 * 4 + u48 * 2 + u49], t11[u48]);
      }
    }
  }
  #pragma unroll
  for (int u50 = 0; u50 < 8; ++u50) {
    #pragma unroll
    for (int u51 = 0; u51 < 2; ++u51) {
      mf::store_vector(out0_d3, bx * 16384 + by * 4096 + ((tid / 4) % 8 + (tid / 32) * 16 + u51 * 8) * 64 + ((tid % 4) * 2 + u50 * 8), {
          t12[u50 * 4 + u51 * 2],
          t12[u50 * 4 + u51 * 2 + 1]
      });
    }
  }
}
