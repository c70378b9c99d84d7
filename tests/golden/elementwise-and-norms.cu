// kernel0: 8 x 1 x 1 blocks of 512 threads,
// 192 bytes of dynamic shared memory.
//   in0_X: 32768 x float16, read, aligned to 16 bytes
//   in1_H: 32768 x float16, read, aligned to 16 bytes
//   in2_alpha: 32768 x float16, read, aligned to 16 bytes
//   out0_d3: 32768 x float16, written, aligned to 16 bytes
#include "mirage_formal/device.cuh"

extern "C" __global__ void __launch_bounds__(512, 1) kernel0(
    MF_INPUT(mf::half) in0_X,
    MF_INPUT(mf::half) in1_H,
    MF_INPUT(mf::half) in2_alpha,
    MF_OUTPUT(mf::half) out0_d3
) {
  MF_SHARED_MEMORY(192);
  MF_SHARED(float, x12, 16, 0);  // bytes 0..63
  MF_SHARED(float, x4, 16, 128);  // bytes 128..191
  const int tid = mf::below<512>(threadIdx.x);
  const int bx = mf::below<8>(blockIdx.x);
  MF_FLOATS(t0, 8);
  MF_FLOATS(t1, 8);
  MF_FLOATS(t2, 8);
  MF_FLOATS(t3, 8);
  MF_FLOATS(t4, 1);
  MF_FLOATS(t5, 1);
  MF_FLOATS(t6, 1);
  MF_FLOATS(t7, 8);
  MF_FLOATS(t8, 8);
  MF_FLOATS(t9, 8);
  MF_FLOATS(t10, 8);
  MF_FLOATS(t11, 8);
  MF_FLOATS(t12, 1);
  MF_FLOATS(t13, 1);
  MF_FLOATS(t14, 1);
  MF_FLOATS(t15, 8);
  mf::load_vector<8>(t0, 0, in0_X, bx * 4096 + tid * 8);
  mf::load_vector<8>(t1, 0, in1_H, bx * 4096 + tid * 8);
  mf::load_vector<8>(t2, 0, in2_alpha, bx * 4096 + tid * 8);
  #pragma unroll
  for (int u0 = 0; u0 < 8; ++u0) {
    t3[u0] = mf::square(t1[u0]);
  }
  t4[0] = 0.0f;
  #pragma unroll
  for (int u1 = 0; u1 < 8; ++u1) {
    t4[0] = t4[0] + t3[u1];
  }
  mf::shuffle_add(t4, 0, 1);
  mf::shuffle_add(t4, 0, 2);
  mf::shuffle_add(t4, 0, 4);
  mf::shuffle_add(t4, 0, 8);
  mf::shuffle_add(t4, 0, 16);
  if (tid % 32 < 1) {
    mf::store(x4, tid / 32, t4[0]);
  }
  mf::barrier();
  MF_FLOATS(x_1, 16);
  mf::load_vector<4>(x_1, 0, x4, 0);
  mf::load_vector<4>(x_1, 4, x4, 4);
  mf::load_vector<4>(x_1, 8, x4, 8);
  mf::load_vector<4>(x_1, 12, x4, 12);
  t4[0] = x_1[0] + x_1[1] + (x_1[2] + x_1[3]) + (x_1[4] + x_1[5] + (x_1[6] + x_1[7])) + (x_1[8] + x_1[9] + (x_1[10] + x_1[11]) + (x_1[12] + x_1[13] + (x_1[14] + x_1[15])));
  t5[0] = t4[0] * 0.00024414062f;
  t6[0] = mf::rsqrt(t5[0]);
  #pragma unroll
  for (int u2 = 0; u2 < 8; ++u2) {
    t7[u2] = t1[u2] * t6[0];
  }
  #pragma unroll
  for (int u3 = 0; u3 < 8; ++u3) {
    t8[u3] = t7[u3] + t0[u3];
  }
  #pragma unroll
  for (int u4 = 0; u4 < 8; ++u4) {
    t9[u4] = t8[u4] * t2[u4];
  }
  #pragma unroll
  for (int u5 = 0; u5 < 8; ++u5) {
    t10[u5] = t0[u5] + t9[u5];
  }
  #pragma unroll
  for (int u6 = 0; u6 < 8; ++u6) {
    t11[u6] = mf::square(t10[u6]);
  }
  t12[0] = 0.0f;
  #pragma unroll
  for (int u7 = 0; u7 < 8; ++u7) {
    t12[0] = t12[0] + t11[u7];
  }
  mf::shuffle_add(t12, 0, 1);
  mf::shuffle_add(t12, 0, 2);
  mf::shuffle_add(t12, 0, 4);
  mf::shuffle_add(t12, 0, 8);
  mf::shuffle_add(t12, 0, 16);
  if (tid % 32 < 1) {
    mf::store(x12, tid / 32, t12[0]);
  }
  mf::barrier();
  MF_FLOATS(x_2, 16);
  mf::load_vector<4>(x_2, 0, x12, 0);
  mf::load_vector<4>(x_2, 4, x12, 4);
  mf::load_vector<4>(x_2, 8, x12, 8);
  mf::load_vector<4>(x_2, 12, x12, 12);
  t12[0] = x_2[0] + x_2[1] + (x_2[2] + x_2[3]) + (x_2[4] + x_2[5] + (x_2[6] + x_2[7])) + (x_2[8] + x_2[9] + (x_2[10] + x_2[11]) + (x_2[12] + x_2[13] + (x_2[14] + x_2[15])));
  t13[0] = t12[0] * 0.00024414062f;
  t14[0] = mf::rsqrt(t13[0]);
  #pragma unroll
  for (int u8 = 0; u8 < 8; ++u8) {
    t15[u8] = t10[u8] * t14[0];
  }
  mf::store_vector(out0_d3, bx * 4096 + tid * 8, {
      t15[0],
      t15[1],
      t15[2],
      t15[3],
      t15[4],
      t15[5],
      t15[6],
      t15[7]
  });
}
