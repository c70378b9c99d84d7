// op0_silu: 128 x 1 x 1 blocks of 128 threads,
// 0 bytes of dynamic shared memory.
//   In0: 16384 x float16, read, aligned to 2 bytes
//   Out: 16384 x float16, written, aligned to 2 bytes
#include "mirage_formal/device.cuh"

extern "C" __global__ void __launch_bounds__(128) op0_silu(MF_INPUT(mf::half) In0, MF_OUTPUT(mf::half) Out) {
  const int tid = mf::below<128>(threadIdx.x);
  const int bx = mf::below<128>(blockIdx.x);
  mf::store(
      Out,
      bx * 128 + tid,
      mf::silu(mf::load(In0, ((bx * 128 + tid) / 256) * 256 + (bx * 128 + tid) % 256))
  );
}

// op0_add: 128 x 1 x 1 blocks of 128 threads,
// 0 bytes of dynamic shared memory.
//   In0: 16384 x float16, read, aligned to 2 bytes
//   In1: 256 x float16, read, aligned to 2 bytes
//   Out: 16384 x float16, written, aligned to 2 bytes
#include "mirage_formal/device.cuh"

extern "C" __global__ void __launch_bounds__(128) op0_add(
    MF_INPUT(mf::half) In0,
    MF_INPUT(mf::half) In1,
    MF_OUTPUT(mf::half) Out
) {
  const int tid = mf::below<128>(threadIdx.x);
  const int bx = mf::below<128>(blockIdx.x);
  mf::store(
      Out,
      bx * 128 + tid,
      mf::load(In0, ((bx * 128 + tid) / 256) * 256 + (bx * 128 + tid) % 256) + mf::load(In1, (bx * 128 + tid) % 256)
  );
}

// op0_transpose: 128 x 1 x 1 blocks of 128 threads,
// 0 bytes of dynamic shared memory.
//   In0: 16384 x float16, read, aligned to 2 bytes
//   Out: 16384 x float16, written, aligned to 2 bytes
#include "mirage_formal/device.cuh"

extern "C" __global__ void __launch_bounds__(128) op0_transpose(
    MF_INPUT(mf::half) In0,
    MF_OUTPUT(mf::half) Out
) {
  const int tid = mf::below<128>(threadIdx.x);
  const int bx = mf::below<128>(blockIdx.x);
  mf::store(Out, bx * 128 + tid, mf::load(In0, ((bx * 128 + tid) % 64) * 256 + (bx * 128 + tid) / 64));
}

// op0_concat: 192 x 1 x 1 blocks of 128 threads,
// 0 bytes of dynamic shared memory.
//   In0: 16384 x float16, read, aligned to 2 bytes
//   In1: 8192 x float16, read, aligned to 2 bytes
//   Out: 24576 x float16, written, aligned to 2 bytes
#include "mirage_formal/device.cuh"

extern "C" __global__ void __launch_bounds__(128) op0_concat(
    MF_INPUT(mf::half) In0,
    MF_INPUT(mf::half) In1,
    MF_OUTPUT(mf::half) Out
) {
  const int tid = mf::below<128>(threadIdx.x);
  const int bx = mf::below<192>(blockIdx.x);
  mf::store(
      Out,
      bx * 128 + tid,
      (bx * 128 + tid) % 384 < 256 ? mf::load(In0, ((bx * 128 + tid) / 384) * 256 + ((bx * 128 + tid) % 384) % 256) : mf::load(In1, ((bx * 128 + tid) / 384) * 128 + (((bx * 128 + tid) % 384 + 128) % 384) % 128)
  );
}

// op0_sum: 64 x 1 x 1 blocks of 128 threads,
// 16 bytes of dynamic shared memory.
//   In0: 16384 x float16, read, aligned to 2 bytes
//   Out: 64 x float16, written, aligned to 2 bytes
#include "mirage_formal/device.cuh"

extern "C" __global__ void __launch_bounds__(128) op0_sum(MF_INPUT(mf::half) In0, MF_OUTPUT(mf::half) Out) {
  MF_SHARED_MEMORY(16);
  MF_SHARED(float, s_total, 4, 0);  // bytes 0..15
  const int tid = mf::below<128>(threadIdx.x);
  const int bx = mf::below<64>(blockIdx.x);
  MF_FLOATS(total, 1);
  mf::fill(total, 0.0f);
  for (int i_total = 0; i_total < 2; ++i_total) {
    total[0] = total[0] + mf::load(In0, bx * 256 + (i_total * 128 + tid));
  }
  mf::shuffle_add(total, 0, 16);
  mf::shuffle_add(total, 0, 8);
  mf::shuffle_add(total, 0, 4);
  mf::shuffle_add(total, 0, 2);
  mf::shuffle_add(total, 0, 1);
  if (tid % 32 == 0) {
    mf::store(s_total, tid / 32, total[0]);
  }
  mf::barrier();
  total[0] = mf::load(s_total, 0);
  total[0] = total[0] + mf::load(s_total, 1);
  total[0] = total[0] + mf::load(s_total, 2);
  total[0] = total[0] + mf::load(s_total, 3);
  if (tid == 0) {
    mf::store(Out, bx, total[0]);
  }
}

// op0_softmax: 64 x 1 x 1 blocks of 128 threads,
// 32 bytes of dynamic shared memory.
//   In0: 16384 x float16, read, aligned to 2 bytes
//   Out: 16384 x float16, written, aligned to 2 bytes
#include "mirage_formal/device.cuh"

extern "C" __global__ void __launch_bounds__(128) op0_softmax(
    MF_INPUT(mf::half) In0,
    MF_OUTPUT(mf::half) Out
) {
  MF_SHARED_MEMORY(32);
  MF_SHARED(float, s_largest, 4, 0);  // bytes 0..15
  MF_SHARED(float, s_total, 4, 16);  // bytes 16..31
  const int tid = mf::below<128>(threadIdx.x);
  const int bx = mf::below<64>(blockIdx.x);
  MF_FLOATS(largest, 1);
  mf::fill(largest, -mf::infinity());
  for (int i_largest = 0; i_largest < 2; ++i_largest) {
    largest[0] = mf::max(largest[0], mf::load(In0, bx * 256 + (i_largest * 128 + tid)));
  }
  mf::shuffle_max(largest, 0, 16);
  mf::shuffle_max(largest, 0, 8);
  mf::shuffle_max(largest, 0, 4);
  mf::shuffle_max(largest, 0, 2);
  mf::shuffle_max(largest, 0, 1);
  if (tid % 32 == 0) {
    mf::store(s_largest, tid / 32, largest[0]);
  }
  mf::barrier();
  largest[0] = mf::load(s_largest, 0);
  largest[0] = mf::max(largest[0], mf::load(s_largest, 1));
  largest[0] = mf::max(largest[0], mf::load(s_largest, 2));
  largest[0] = mf::max(largest[0], mf::load(s_largest, 3));
  MF_FLOATS(total, 1);
  mf::fill(total, 0.0f);
  for (int i_total = 0; i_total < 2; ++i_total) {
    total[0] = total[0] + mf::exp(mf::load(In0, bx * 256 + (i_total * 128 + tid)) - largest[0]);
  }
  mf::shuffle_add(total, 0, 16);
  mf::shuffle_add(total, 0, 8);
  mf::shuffle_add(total, 0, 4);
  mf::shuffle_add(total, 0, 2);
  mf::shuffle_add(total, 0, 1);
  if (tid % 32 == 0) {
    mf::store(s_total, tid / 32, total[0]);
  }
  mf::barrier();
  total[0] = mf::load(s_total, 0);
  total[0] = total[0] + mf::load(s_total, 1);
  total[0] = total[0] + mf::load(s_total, 2);
  total[0] = total[0] + mf::load(s_total, 3);
  for (int o = 0; o < 2; ++o) {
    mf::store(
        Out,
        bx * 256 + (o * 128 + tid),
        mf::div(mf::exp(mf::load(In0, bx * 256 + (o * 128 + tid)) - largest[0]), total[0])
    );
  }
}

// op0_rms_norm: 64 x 1 x 1 blocks of 128 threads,
// 16 bytes of dynamic shared memory.
//   In0: 16384 x float16, read, aligned to 2 bytes
//   In1: 256 x float16, read, aligned to 2 bytes
//   Out: 16384 x float16, written, aligned to 2 bytes
#include "mirage_formal/device.cuh"

extern "C" __global__ void __launch_bounds__(128) op0_rms_norm(
    MF_INPUT(mf::half) In0,
    MF_INPUT(mf::half) In1,
    MF_OUTPUT(mf::half) Out
) {
  MF_SHARED_MEMORY(16);
  MF_SHARED(float, s_squares, 4, 0);  // bytes 0..15
  const int tid = mf::below<128>(threadIdx.x);
  const int bx = mf::below<64>(blockIdx.x);
  MF_FLOATS(squares, 1);
  mf::fill(squares, 0.0f);
  for (int i_squares = 0; i_squares < 2; ++i_squares) {
    squares[0] = squares[0] + mf::square(mf::load(In0, bx * 256 + (i_squares * 128 + tid)));
  }
  mf::shuffle_add(squares, 0, 16);
  mf::shuffle_add(squares, 0, 8);
  mf::shuffle_add(squares, 0, 4);
  mf::shuffle_add(squares, 0, 2);
  mf::shuffle_add(squares, 0, 1);
  if (tid % 32 == 0) {
    mf::store(s_squares, tid / 32, squares[0]);
  }
  mf::barrier();
  squares[0] = mf::load(s_squares, 0);
  squares[0] = squares[0] + mf::load(s_squares, 1);
  squares[0] = squares[0] + mf::load(s_squares, 2);
  squares[0] = squares[0] + mf::load(s_squares, 3);
  squares[0] = mf::rsqrt(squares[0] * 0.00390625f + 1e-05f);
  for (int o = 0; o < 2; ++o) {
    mf::store(
        Out,
        bx * 256 + (o * 128 + tid),
        mf::load(In0, bx * 256 + (o * 128 + tid)) * squares[0] * mf::load(In1, o * 128 + tid)
    );
  }
}
