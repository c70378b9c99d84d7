// kernel0: 2 x 1 x 16 blocks of 256 threads,
// 98304 bytes of dynamic shared memory.
//   in0_Q: 32768 x float16, read, aligned to 16 bytes
//   in1_K: 524288 x float16, read, aligned to 16 bytes
//   in2_V: 524288 x float16, read, aligned to 16 bytes
//   out0_d3: 524288 x float16, written, aligned to 16 bytes
//   out1_d4: 8192 x float16, written, aligned to 16 bytes
//   out2_d5: 8192 x float32, written, aligned to 16 bytes
#include "mirage_formal/device.cuh"

extern "C" __global__ void __launch_bounds__(256, 1) kernel0(
    MF_INPUT(mf::half) in0_Q,
    MF_INPUT(mf::half) in1_K,
    MF_INPUT(mf::half) in2_V,
    MF_OUTPUT(mf::half) out0_d3,
    MF_OUTPUT(mf::half) out1_d4,
    MF_OUTPUT(float) out2_d5
) {
  MF_SHARED_MEMORY(98304);
  MF_SHARED(mf::half, s0, 16384, 0);  // bytes 0..32767
  MF_SHARED(mf::half, s1, 16384, 32768);  // bytes 32768..65535
  MF_SHARED(mf::half, s2, 16384, 65536);  // bytes 65536..98303
  const int tid = mf::below<256>(threadIdx.x);
  const int bx = mf::below<2>(blockIdx.x);
  const int bz = mf::below<16>(blockIdx.z);
  MF_FLOATS(t3, 64);
  MF_FLOATS(t4, 4);
  MF_FLOATS(t5, 4);
  MF_FLOATS(t6, 4);
  MF_FLOATS(t7, 64);
  MF_FLOATS(t8, 64);
  MF_FLOATS(t10, 4);
  MF_FLOATS(t11, 64);
  MF_FLOATS(t12, 4);
  MF_FLOATS(t13, 4);
  #pragma unroll
  for (int c0 = 0; c0 < 8; ++c0) {
    mf::copy_async(
        s0,
        (tid / 8 + c0 * 32) * 64 + ((tid % 8) ^ ((tid / 8 + c0 * 32) % 8)) * 8,
        in0_Q,
        bx * 16384 + (tid / 8 + c0 * 32) * 64 + (tid % 8) * 8
    );
  }
  mf::commit();
  #pragma unroll
  for (int c1 = 0; c1 < 2; ++c1) {
    mf::copy_async(
        s1,
        (tid / 8 + c1 * 32) * 64 + ((tid % 8) ^ ((tid / 8 + c1 * 32) % 8)) * 8,
        in1_K,
        bx * 262144 + bz * 256 + (tid / 8 + c1 * 32) * 4096 + (tid % 8) * 8
    );
  }
  #pragma unroll
  for (int c2 = 0; c2 < 2; ++c2) {
    mf::copy_async(
        s2,
        (tid / 8 + c2 * 32) * 64 + ((tid % 8) ^ ((tid / 8 + c2 * 32) % 8)) * 8,
        in2_V,
        bx * 262144 + bz * 16384 + (tid / 8 + c2 * 32) * 64 + (tid % 8) * 8
    );
  }
  mf::commit();
  #pragma unroll
  for (int c3 = 0; c3 < 2; ++c3) {
    mf::copy_async(
        s1,
        (tid / 8 + c3 * 32) * 64 + ((tid % 8) ^ ((tid / 8 + c3 * 32) % 8)) * 8 + 4096,
        in1_K,
        bx * 262144 + (bz * 256 + 64) + (tid / 8 + c3 * 32) * 4096 + (tid % 8) * 8
    );
  }
  #pragma unroll
  for (int c4 = 0; c4 < 2; ++c4) {
    mf::copy_async(
        s2,
        (tid / 8 + c4 * 32) * 64 + ((tid % 8) ^ ((tid / 8 + c4 * 32) % 8)) * 8 + 4096,
        in2_V,
        bx * 262144 + (bz * 16384 + 4096) + (tid / 8 + c4 * 32) * 64 + (tid % 8) * 8
    );
  }
  mf::commit();
  #pragma unroll
  for (int c5 = 0; c5 < 2; ++c5) {
    mf::copy_async(
        s1,
        (tid / 8 + c5 * 32) * 64 + ((tid % 8) ^ ((tid / 8 + c5 * 32) % 8)) * 8 + 8192,
        in1_K,
        bx * 262144 + (bz * 256 + 128) + (tid / 8 + c5 * 32) * 4096 + (tid % 8) * 8
    );
  }
  #pragma unroll
  for (int c6 = 0; c6 < 2; ++c6) {
    mf::copy_async(
        s2,
        (tid / 8 + c6 * 32) * 64 + ((tid % 8) ^ ((tid / 8 + c6 * 32) % 8)) * 8 + 8192,
        in2_V,
        bx * 262144 + (bz * 16384 + 8192) + (tid / 8 + c6 * 32) * 64 + (tid % 8) * 8
    );
  }
  mf::commit();
  #pragma unroll
  for (int c7 = 0; c7 < 2; ++c7) {
    mf::copy_async(
        s1,
        (tid / 8 + c7 * 32) * 64 + ((tid % 8) ^ ((tid / 8 + c7 * 32) % 8)) * 8 + 12288,
        in1_K,
        bx * 262144 + (bz * 256 + 192) + (tid / 8 + c7 * 32) * 4096 + (tid % 8) * 8
    );
  }
  #pragma unroll
  for (int c8 = 0; c8 < 2; ++c8) {
    mf::copy_async(
        s2,
        (tid / 8 + c8 * 32) * 64 + ((tid % 8) ^ ((tid / 8 + c8 * 32) % 8)) * 8 + 12288,
        in2_V,
        bx * 262144 + (bz * 16384 + 12288) + (tid / 8 + c8 * 32) * 64 + (tid % 8) * 8
    );
  }
  mf::commit();
  #pragma unroll
  for (int u9 = 0; u9 < 4; ++u9) {
    t5[u9] = -3.4028235e+38f;
  }
  #pragma unroll
  for (int u10 = 0; u10 < 4; ++u10) {
    t10[u10] = -mf::infinity();
  }
  #pragma unroll
  for (int u11 = 0; u11 < 4; ++u11) {
    t12[u11] = 0.0f;
  }
  #pragma unroll
  for (int u12 = 0; u12 < 64; ++u12) {
    t11[u12] = 0.0f;
  }
  #pragma unroll 1
  for (int it = 0; it < 4; ++it) {
    mf::wait_groups<3>();
    mf::barrier();
    mf::commit();
    #pragma unroll
    for (int u13 = 0; u13 < 64; ++u13) {
      t3[u13] = 0.0f;
    }
    MF_WORDS(a_1, 8);
    MF_WORDS(b_2, 4);
    #pragma unroll
    for (int k14 = 0; k14 < 4; ++k14) {
      #pragma unroll
      for (int m15 = 0; m15 < 2; ++m15) {
        mf::load_matrix<4>(
            a_1,
            m15 * 4,
            s0,
            ((tid / 32) * 32 + m15 * 16 + (tid % 32) % 16) * 64 + ((k14 * 2 + (tid % 32) / 16) ^ (((tid / 32) * 32 + m15 * 16 + (tid % 32) % 16) % 8)) * 8
        );
      }
      #pragma unroll
      for (int n16 = 0; n16 < 4; ++n16) {
        mf::load_matrix_transposed<4>(
            b_2,
            0,
            s1,
            it * 4096 + (k14 * 16 + (tid % 32) % 16) * 64 + ((n16 * 2 + (tid % 32) / 16) ^ ((k14 * 16 + (tid % 32) % 16) % 8)) * 8
        );
        #pragma unroll
        for (int m17 = 0; m17 < 2; ++m17) {
          mf::mma<mf::half>(t3, m17 * 32 + n16 * 8, a_1, m17 * 4, b_2, 0);
          mf::mma<mf::half>(t3, m17 * 32 + n16 * 8 + 4, a_1, m17 * 4, b_2, 2);
        }
      }
    }
    #pragma unroll
    for (int u18 = 0; u18 < 4; ++u18) {
      t4[u18] = -mf::infinity();
    }
    #pragma unroll
    for (int u19 = 0; u19 < 2; ++u19) {
      #pragma unroll
      for (int u20 = 0; u20 < 8; ++u20) {
        #pragma unroll
        for (int u21 = 0; u21 < 2; ++u21) {
          #pragma unroll
          for (int u22 = 0; u22 < 2; ++u22) {
            t4[u19 * 2 + u21] = mf::max(t4[u19 * 2 + u21], t3[u19 * 32 + u20 * 4 + u21 * 2 + u22]);
          }
        }
      }
    }
    #pragma unroll
    for (int u23 = 0; u23 < 4; ++u23) {
      mf::shuffle_max(t4, u23, 1);
    }
    #pragma unroll
    for (int u24 = 0; u24 < 4; ++u24) {
      mf::shuffle_max(t4, u24, 2);
    }
    #pragma unroll
    for (int u25 = 0; u25 < 2; ++u25) {
      #pragma unroll
      for (int u26 = 0; u26 < 2; ++u26) {
        t6[u25 * 2 + u26] = t5[u25 * 2 + u26];
        t5[u25 * 2 + u26] = mf::max(t5[u25 * 2 + u26], t4[u25 * 2 + u26]);
        t6[u25 * 2 + u26] = mf::exp(t6[u25 * 2 + u26] - t5[u25 * 2 + u26]);
      }
    }
    #pragma unroll
    for (int u27 = 0; u27 < 2; ++u27) {
      #pragma unroll
      for (int u28 = 0; u28 < 8; ++u28) {
        #pragma unroll
        for (int u29 = 0; u29 < 2; ++u29) {
          #pragma unroll
          for (int u30 = 0; u30 < 2; ++u30) {
            t7[u27 * 32 + u28 * 4 + u29 * 2 + u30] = t3[u27 * 32 + u28 * 4 + u29 * 2 + u30] - t5[u27 * 2 + u29];
          }
        }
      }
    }
    #pragma unroll
    for (int u31 = 0; u31 < 2; ++u31) {
      #pragma unroll
      for (int u32 = 0; u32 < 2; ++u32) {
        t10[u31 * 2 + u32] = mf::max(t10[u31 * 2 + u32], t5[u31 * 2 + u32]);
      }
    }
    #pragma unroll
    for (int u33 = 0; u33 < 2; ++u33) {
      #pragma unroll
      for (int u34 = 0; u34 < 8; ++u34) {
        #pragma unroll
        for (int u35 = 0; u35 < 2; ++u35) {
          #pragma unroll
          for (int u36 = 0; u36 < 2; ++u36) {
            t8[u33 * 32 + u34 * 4 + u35 * 2 + u36] = mf::exp(t7[u33 * 32 + u34 * 4 + u35 * 2 + u36]);
          }
        }
      }
    }
    #pragma unroll
    for (int u37 = 0; u37 < 2; ++u37) {
      #pragma unroll
      for (int u38 = 0; u38 < 2; ++u38) {
        t12[u37 * 2 + u38] = t12[u37 * 2 + u38] * t6[u37 * 2 + u38];
      }
    }
    #pragma unroll
    for (int u39 = 0; u39 < 2; ++u39) {
      #pragma unroll
      for (int u40 = 0; u40 < 8; ++u40) {
        #pragma unroll
        for (int u41 = 0; u41 < 2; ++u41) {
          #pragma unroll
          for (int u42 = 0; u42 < 2; ++u42) {
            t12[u39 * 2 + u41] = t12[u39 * 2 + u41] + t8[u39 * 32 + u40 * 4 + u41 * 2 + u42];
          }
        }
      }
    }
    #pragma unroll
    for (int u43 = 0; u43 < 2; ++u43) {
      #pragma unroll
      for (int u44 = 0; u44 < 8; ++u44) {
        #pragma unroll
        for (int u45 = 0; u45 < 2; ++u45) {
          #pragma unroll
          for (int u46 = 0; u46 < 2; ++u46) {
            t11[u43 * 32 + u44 * 4 + u45 * 2 + u46] = t11[u43 * 32 + u44 * 4 + u45 * 2 + u46] * t6[u43 * 2 + u45];
          }
        }
      }
    }
    MF_WORDS(a_3, 8);
    MF_WORDS(b_4, 4);
    #pragma unroll
    for (int k47 = 0; k47 < 4; ++k47) {
      #pragma unroll
      for (int m48 = 0; m48 < 2; ++m48) {
        a_3[m48 * 4] = mf::pack<mf::half>(t8[m48 * 32 + k47 * 8], t8[m48 * 32 + k47 * 8 + 1]);
        a_3[m48 * 4 + 1] = mf::pack<mf::half>(t8[m48 * 32 + k47 * 8 + 2], t8[m48 * 32 + k47 * 8 + 3]);
        a_3[m48 * 4 + 2] = mf::pack<mf::half>(t8[m48 * 32 + k47 * 8 + 4], t8[m48 * 32 + k47 * 8 + 5]);
        a_3[m48 * 4 + 3] = mf::pack<mf::half>(t8[m48 * 32 + k47 * 8 + 6], t8[m48 * 32 + k47 * 8 + 7]);
      }
      #pragma unroll
      for (int n49 = 0; n49 < 4; ++n49) {
        mf::load_matrix_transposed<4>(
            b_4,
            0,
            s2,
            it * 4096 + (k47 * 16 + (tid % 32) % 16) * 64 + ((n49 * 2 + (tid % 32) / 16) ^ ((k47 * 16 + (tid % 32) % 16) % 8)) * 8
        );
        #pragma unroll
        for (int m50 = 0; m50 < 2; ++m50) {
          mf::mma<mf::half>(t11, m50 * 32 + n49 * 8, a_3, m50 * 4, b_4, 0);
          mf::mma<mf::half>(t11, m50 * 32 + n49 * 8 + 4, a_3, m50 * 4, b_4, 2);
        }
      }
    }
  }
  mf::launch_dependents();
  #pragma unroll
  for (int u51 = 0; u51 < 2; ++u51) {
    #pragma unroll
    for (int u52 = 0; u52 < 2; ++u52) {
      t13[u51 * 2 + u52] = t10[u51 * 2 + u52] * 1.0f;
    }
  }
  #pragma unroll
  for (int u53 = 0; u53 < 4; ++u53) {
    mf::shuffle_add(t12, u53, 1);
  }
  #pragma unroll
  for (int u54 = 0; u54 < 4; ++u54) {
    mf::shuffle_add(t12, u54, 2);
  }
  #pragma unroll
  for (int u55 = 0; u55 < 2; ++u55) {
    #pragma unroll
    for (int u56 = 0; u56 < 8; ++u56) {
      #pragma unroll
      for (int u57 = 0; u57 < 2; ++u57) {
        mf::store_vector(out0_d3, bx * 262144 + bz * 16384 + ((tid / 4) % 8 + (tid / 32) * 32 + u55 * 16 + u57 * 8) * 64 + ((tid % 4) * 2 + u56 * 8), {
            t11[u55 * 32 + u56 * 4 + u57 * 2],
            t11[u55 * 32 + u56 * 4 + u57 * 2 + 1]
        });
      }
    }
  }
  #pragma unroll
  for (int u58 = 0; u58 < 2; ++u58) {
    #pragma unroll
    for (int u59 = 0; u59 < 2; ++u59) {
      if (tid % 4 == 0) {
        mf::store(
            out1_d4,
            bx * 4096 + bz * 256 + ((tid / 4) % 8 + (tid / 32) * 32 + u58 * 16 + u59 * 8),
            t12[u58 * 2 + u59]
        );
      }
    }
  }
  #pragma unroll
  for (int u60 = 0; u60 < 2; ++u60) {
    #pragma unroll
    for (int u61 = 0; u61 < 2; ++u61) {
      if (tid % 4 == 0) {
        mf::store(
            out2_d5,
            bx * 4096 + bz * 256 + ((tid / 4) % 8 + (tid / 32) * 32 + u60 * 16 + u61 * 8),
            t13[u60 * 2 + u61]
        );
      }
    }
  }
}

// kernel1: 2 x 1 x 1 blocks of 512 threads,
// 0 bytes of dynamic shared memory.
//   in0_d3: 524288 x float16, read, aligned to 16 bytes
//   in1_d4: 8192 x float16, read, aligned to 16 bytes
//   in2_d5: 8192 x float32, read, aligned to 16 bytes
//   out0_d6: 32768 x float16, written, aligned to 16 bytes
#include "mirage_formal/device.cuh"

extern "C" __global__ void __launch_bounds__(512, 1) kernel1(
    MF_AWAITED(mf::half) in0_d3,
    MF_AWAITED(mf::half) in1_d4,
    MF_AWAITED(float) in2_d5,
    MF_OUTPUT(mf::half) out0_d6
) {
  const int tid = mf::below<512>(threadIdx.x);
  const int bx = mf::below<2>(blockIdx.x);
  mf::grid_wait();
  MF_FLOATS(t0, 512);
  MF_FLOATS(t1, 64);
  MF_FLOATS(t2, 64);
  MF_FLOATS(t3, 4);
  MF_FLOATS(t4, 64);
  MF_FLOATS(t5, 64);
  MF_FLOATS(t6, 64);
  MF_FLOATS(t7, 512);
  MF_FLOATS(t8, 64);
  MF_FLOATS(t9, 32);
  MF_FLOATS(t10, 4);
  MF_FLOATS(t11, 32);
  #pragma unroll
  for (int u0 = 0; u0 < 16; ++u0) {
    #pragma unroll
    for (int u1 = 0; u1 < 4; ++u1) {
      mf::load_vector<8>(
          t0,
          u0 * 32 + u1 * 8,
          in0_d3,
          bx * 262144 + u0 * 16384 + ((tid / 8) % 4 + (tid / 32) * 4 + u1 * 64) * 64 + (tid % 8) * 8
      );
    }
  }
  #pragma unroll
  for (int u2 = 0; u2 < 16; ++u2) {
    #pragma unroll
    for (int u3 = 0; u3 < 4; ++u3) {
      t1[u2 * 4 + u3] = mf::load(in1_d4, bx * 4096 + u2 * 256 + ((tid / 8) % 4 + (tid / 32) * 4 + u3 * 64));
    }
  }
  #pragma unroll
  for (int u4 = 0; u4 < 16; ++u4) {
    #pragma unroll
    for (int u5 = 0; u5 < 4; ++u5) {
      t2[u4 * 4 + u5] = mf::load(in2_d5, bx * 4096 + u4 * 256 + ((tid / 8) % 4 + (tid / 32) * 4 + u5 * 64));
    }
  }
  #pragma unroll
  for (int u6 = 0; u6 < 4; ++u6) {
    t3[u6] = -mf::infinity();
  }
  #pragma unroll
  for (int u7 = 0; u7 < 16; ++u7) {
    #pragma unroll
    for (int u8 = 0; u8 < 4; ++u8) {
      t3[u8] = mf::max(t3[u8], t2[u7 * 4 + u8]);
    }
  }
  #pragma unroll
  for (int u9 = 0; u9 < 16; ++u9) {
    #pragma unroll
    for (int u10 = 0; u10 < 4; ++u10) {
      t4[u9 * 4 + u10] = t2[u9 * 4 + u10] - mf::max(t3[u10], -3.4028235e+38f);
    }
  }
  #pragma unroll
  for (int u11 = 0; u11 < 16; ++u11) {
    #pragma unroll
    for (int u12 = 0; u12 < 4; ++u12) {
      t5[u11 * 4 + u12] = mf::exp(t4[u11 * 4 + u12]);
    }
  }
  #pragma unroll
  for (int u13 = 0; u13 < 16; ++u13) {
    #pragma unroll
    for (int u14 = 0; u14 < 4; ++u14) {
      t6[u13 * 4 + u14] = mf::round_half(t5[u13 * 4 + u14]);
    }
  }
  #pragma unroll
  for (int u15 = 0; u15 < 16; ++u15) {
    #pragma unroll
    for (int u16 = 0; u16 < 4; ++u16) {
      #pragma unroll
      for (int u17 = 0; u17 < 8; ++u17) {
        t7[u15 * 32 + u16 * 8 + u17] = t0[u15 * 32 + u16 * 8 + u17] * t6[u15 * 4 + u16];
      }
    }
  }
  #pragma unroll
  for (int u18 = 0; u18 < 16; ++u18) {
    #pragma unroll
    for (int u19 = 0; u19 < 4; ++u19) {
      t8[u18 * 4 + u19] = t1[u18 * 4 + u19] * t6[u18 * 4 + u19];
    }
  }
  #pragma unroll
  for (int u20 = 0; u20 < 32; ++u20) {
    t9[u20] = 0.0f;
  }
  #pragma unroll
  for (int u21 = 0; u21 < 16; ++u21) {
    #pragma unroll
    for (int u22 = 0; u22 < 4; ++u22) {
      #pragma unroll
      for (int u23 = 0; u23 < 8; ++u23) {
        t9[u22 * 8 + u23] = t9[u22 * 8 + u23] + t7[u21 * 32 + u22 * 8 + u23];
      }
    }
  }
  #pragma unroll
  for (int u24 = 0; u24 < 4; ++u24) {
    t10[u24] = 0.0f;
  }
  #pragma unroll
  for (int u25 = 0; u25 < 16; ++u25) {
    #pragma unroll
    for (int u26 = 0; u26 < 4; ++u26) {
      t10[u26] = t10[u26] + t8[u25 * 4 + u26];
    }
  }
  #pragma unroll
  for (int u27 = 0; u27 < 4; ++u27) {
    #pragma unroll
    for (int u28 = 0; u28 < 8; ++u28) {
      t11[u27 * 8 + u28] = mf::div(t9[u27 * 8 + u28], t10[u27]);
    }
  }
  #pragma unroll
  for (int u29 = 0; u29 < 4; ++u29) {
    mf::store_vector(out0_d6, bx * 16384 + ((tid / 8) % 4 + (tid / 32) * 4 + u29 * 64) * 64 + (tid % 8) * 8, {
        t11[u29 * 8],
        t11[u29 * 8 + 1],
        t11[u29 * 8 + 2],
        t11[u29 * 8 + 3],
        t11[u29 * 8 + 4],
        t11[u29 * 8 + 5],
        t11[u29 * 8 + 6],
        t11[u29 * 8 + 7]
    });
  }
}
