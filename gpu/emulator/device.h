// The device layer for g++: the names of include/mirage_formal/device.cuh, each checked. See runtime.h for the threads.
#pragma once
#include <math.h>

#include "memory.h"

#define __global__
#define MF_DEVICE static inline
#define __launch_bounds__(...)
#define MF_INPUT(type) const mf::Input<type>
#define MF_OUTPUT(type) const mf::Output<type>
#define MF_AWAITED(type) MF_INPUT(type)
#define MF_HANDED(type) const mf::Handed<type>
#define MF_COUNTERS const mf::Counters
#define MF_SHARED_MEMORY(bytes) static_assert((bytes) >= 0, "")
#define MF_SHARED(type, name, count, offset) \
  const mf::Shared<type> name { #name, count, offset, __LINE__ }
#define MF_FLOATS(name, count) mf::Floats<count> name(#name)
#define MF_WORDS(name, count) mf::Words<count> name(#name)

namespace mf {

template <int Extent>
static inline int below(unsigned coordinate) {
  return (int)coordinate;
}

// --- conversions and functions of floats -----------------------------------------------------------------------------

template <class T>
static inline unsigned pack(float low, float high) {
  return from_float<T>(low).bits | (unsigned)from_float<T>(high).bits << 16;
}

static inline float infinity() { return INFINITY; }
static inline float exp(float x) { return ::exp2f(x * 1.4426950408889634f); }
static inline float div(float a, float b) { return a / b; }
static inline float rsqrt(float x) { return 1.0f / ::sqrtf(x); }
static inline float sqrt(float x) { return ::sqrtf(x); }
// max.NaN.f32 and min.NaN.f32: -0 is less than 0, and NaN has these bits.
static inline float max(float a, float b) {
  if (a != a || b != b) return float_of(0x7fffffffu);
  return a == b ? (::signbit(a) ? b : a) : a > b ? a : b;
}
static inline float min(float a, float b) {
  if (a != a || b != b) return float_of(0x7fffffffu);
  return a == b ? (::signbit(a) ? a : b) : a < b ? a : b;
}

template <int N>
static inline void fill(Floats<N>& array, float value) {
  for (int i = 0; i < N; ++i) array.values[i] = value;
}

// --- memory ----------------------------------------------------------------------------------------------------------

template <class T>
static inline float load(const Input<T>& param, int index, int line = __builtin_LINE()) {
  emu::check_param(*param.param, index, 1, line);
  emu::note_input(*param.param, index, 1, line);
  T out;
  memcpy(&out, param.param->data + (size_t)index * sizeof(T), sizeof(T));
  return to_float(out);
}

template <class T>
static inline float load(const Shared<T>& buffer, int index, int line = __builtin_LINE()) {
  const int self = emu::machine.current;
  emu::check_bounds(buffer, index, 1, self, line);
  emu::note_read(buffer, index, 1, self, self, line);
  T out;
  memcpy(&out, &emu::machine.shared[buffer.at(index)], sizeof(T));
  return to_float(out);
}

template <class T>
static inline void unpack(float* out, const unsigned char* bytes, int count) {
  for (int i = 0; i < count; ++i) {
    T element;
    memcpy(&element, bytes + i * sizeof(T), sizeof(T));
    out[i] = to_float(element);
  }
}

template <int N, int M, class T>
static inline void load_vector(Floats<M>& array, int at, const Input<T>& param, int index,
                               int line = __builtin_LINE()) {
  emu::check_param(*param.param, index, N, line);
  emu::note_input(*param.param, index, N, line);
  unpack<T>(array.span(at, N, false, line), param.param->data + (size_t)index * sizeof(T), N);
}

template <int N, int M, class T>
static inline void load_vector(Floats<M>& array, int at, const Shared<T>& buffer, int index,
                               int line = __builtin_LINE()) {
  const int self = emu::machine.current;
  emu::check_bounds(buffer, index, N, self, line);
  emu::note_read(buffer, index, N, self, self, line);
  unpack<T>(array.span(at, N, false, line), &emu::machine.shared[buffer.at(index)], N);
}

template <class T>
static inline void put(unsigned char* bytes, const float* values, int count) {
  for (int i = 0; i < count; ++i) {
    const T element = from_float<T>(values[i]);
    memcpy(bytes + i * sizeof(T), &element, sizeof(T));
  }
}

template <class T, int N>
static inline void store_vector(const Output<T>& param, int index, const float (&values)[N],
                                int line = __builtin_LINE()) {
  emu::check_param(*param.param, index, N, line);
  emu::note_output(*param.param, index, N, line);
  put<T>(param.param->data + (size_t)index * sizeof(T), values, N);
}

template <class T, int N>
static inline void store_vector(const Shared<T>& buffer, int index, const float (&values)[N],
                                int line = __builtin_LINE()) {
  emu::check_bounds(buffer, index, N, emu::machine.current, line);
  emu::note_write(buffer, index, N, emu::kHolds, line);
  put<T>(&emu::machine.shared[buffer.at(index)], values, N);
}

template <class Buffer>
static inline void store(const Buffer& buffer, int index, float value, int line = __builtin_LINE()) {
  const float values[1] = {value};
  store_vector(buffer, index, values, line);
}

// --- asynchronous copies ---------------------------------------------------------------------------------------------

// The destination is poisoned at once and gets its bytes at the wait: code that reads in between is wrong on a GPU, too.
template <int Bytes, class T>
static inline void begin_copy(const Shared<T>& buffer, int index, const Input<T>& param, int source, int valid,
                              int line) {
  static_assert(Bytes == 4 || Bytes == 8 || Bytes == 16, "cp.async copies 4, 8 or 16 bytes");
  const int count = Bytes / (int)sizeof(T);
  emu::Copy copy{buffer.at(index), emu::machine.threads[emu::machine.current].closed_groups, Bytes, {}};
  if (valid) {
    emu::check_param(*param.param, source, count, line);
    emu::note_input(*param.param, source, count, line);
    memcpy(copy.bytes, param.param->data + (size_t)source * sizeof(T), Bytes);
  }
  emu::check_bounds(buffer, index, count, emu::machine.current, line);
  emu::note_write(buffer, index, count, emu::kInFlight, line);
  memset(&emu::machine.shared[copy.offset], 0xff, Bytes);
  emu::start_copy(copy);
}

template <int Bytes = 16, class T>
static inline void copy_async(const Shared<T>& buffer, int index, const Input<T>& param, Index source) {
  begin_copy<Bytes>(buffer, index, param, source.value, 1, source.line);
}

template <int Bytes = 16, class T>
static inline void copy_async(const Shared<T>& buffer, int index, const Input<T>& param, int source, Index valid) {
  begin_copy<Bytes>(buffer, index, param, source, valid.value, valid.line);
}

static inline void commit() { ++emu::machine.threads[emu::machine.current].closed_groups; }

template <int Left>
static inline void wait_groups() {
  emu::finish_copies(Left);
}

static inline void barrier(int line = __builtin_LINE()) { emu::block_barrier(line); }
static inline void fenced_barrier(int line = __builtin_LINE()) { emu::block_barrier(line); }

// Launches run one after another here: what a kernel waits for has ended, and nothing starts early.
static inline void grid_wait() {}
static inline void launch_dependents() {}

// --- joined launches -------------------------------------------------------------------------------------------------

static inline void publish() { emu::machine.threads[emu::machine.current].unpublished = 0; }

template <int Size>
static inline bool is_last(const Counters&, int group, int line = __builtin_LINE()) {
  emu::block_barrier(line);
  if (emu::machine.current == 0) emu::take_ticket(group, Size, line);
  emu::block_barrier(line);
  return emu::machine.last_of >= 0;
}

static inline void reset(const Counters&, int group, int line = __builtin_LINE()) {
  if (emu::machine.current == 0) emu::reset_counter(group, line);
}

static inline void reuse_shared(int line = __builtin_LINE()) {
  emu::finish_copies(0);
  emu::block_barrier(line);
}

// --- collectives of a warp -------------------------------------------------------------------------------------------

template <class Combine>
static inline void shuffle(emu::CollectiveKind kind, float* value, int mask, int line, Combine combine) {
  if (!emu::arrive({kind, mask, value, nullptr, nullptr, 0, nullptr}, line)) return;
  emu::Thread* const warp = &emu::machine.threads[emu::machine.current / 32 * 32];
  float before[32];
  for (int i = 0; i < 32; ++i) before[i] = *warp[i].operands.floats;
  for (int i = 0; i < 32; ++i) *warp[i].operands.floats = combine(before[i], before[(i ^ warp[i].operands.mask) & 31]);
  emu::release();
}

template <int N>
static inline void shuffle_add(Floats<N>& array, int at, int mask, int line = __builtin_LINE()) {
  shuffle(emu::kShuffleAdd, array.span(at, 1, true, line), mask, line, [](float a, float b) { return a + b; });
}

template <int N>
static inline void shuffle_max(Floats<N>& array, int at, int mask, int line = __builtin_LINE()) {
  shuffle(emu::kShuffleMax, array.span(at, 1, true, line), mask, line, [](float a, float b) { return mf::max(a, b); });
}

// PTX ISA, ldmatrix: lane l receives elements 2(l%4), 2(l%4)+1 of row l/4 of each matrix; with .trans, of its transpose.
template <int Count, bool Transposed, class T>
static inline void load_matrices(unsigned* words, const Shared<T>& buffer, int index, int line) {
  static_assert(sizeof(T) == 2, "ldmatrix moves 16-bit elements");
  static_assert(Count == 1 || Count == 2 || Count == 4, "ldmatrix loads 1, 2 or 4 matrices");
  const int mask = Count + (Transposed ? 8 : 0);
  if (!emu::arrive({emu::kLoadMatrix, mask, nullptr, words, nullptr, index, &buffer}, line)) return;
  const int first = emu::machine.current / 32 * 32;
  emu::Thread* const warp = &emu::machine.threads[first];
  for (int m = 0; m < Count; ++m) {
    unsigned short rows[8][8];
    for (int r = 0; r < 8; ++r) {
      const int lane = 8 * m + r, start = warp[lane].operands.index;
      emu::check_bounds(buffer, start, 8, first + lane, line);
      emu::note_read(buffer, start, 8, emu::kMany, first + lane, line);
      memcpy(rows[r], &emu::machine.shared[buffer.at(start)], 16);
    }
    for (int lane = 0; lane < 32; ++lane) {
      const int r = lane / 4, c = lane % 4 * 2;
      warp[lane].operands.a[m] = Transposed ? rows[c][r] | (unsigned)rows[c + 1][r] << 16
                                            : rows[r][c] | (unsigned)rows[r][c + 1] << 16;
    }
  }
  emu::release();
}

template <int Count, int N, class T>
static inline void load_matrix(Words<N>& words, int at, const Shared<T>& buffer, int index,
                               int line = __builtin_LINE()) {
  load_matrices<Count, false>(words.span(at, Count, false, line), buffer, index, line);
}

template <int Count, int N, class T>
static inline void load_matrix_transposed(Words<N>& words, int at, const Shared<T>& buffer, int index,
                                          int line = __builtin_LINE()) {
  load_matrices<Count, true>(words.span(at, Count, false, line), buffer, index, line);
}

template <class T>
static inline void split(unsigned word, float& low, float& high) {
  low = to_float(T{(unsigned short)word});
  high = to_float(T{(unsigned short)(word >> 16)});
}

// PTX ISA, mma.m16n8k16: with g = lane / 4 and t = lane % 4,
//   a[i] holds row g + 8 (i % 2), columns 2t + 8 (i / 2) and the next; b[i] rows 2t + 8i and the next of column g;
//   d[i] row g + 8 (i / 2), column 2t + i % 2.
template <class T>
static inline void mma_warp(emu::Thread* warp) {
  float a[16][16], b[16][8], d[16][8];
  for (int lane = 0; lane < 32; ++lane) {
    const int g = lane / 4, t = lane % 4 * 2;
    const emu::Collective& in = warp[lane].operands;
    for (int i = 0; i < 4; ++i) {
      float* const pair = &a[g + 8 * (i % 2)][t + 8 * (i / 2)];
      split<T>(in.a[i], pair[0], pair[1]);
      d[g + 8 * (i / 2)][t + i % 2] = in.floats[i];
    }
    for (int i = 0; i < 2; ++i) split<T>(in.b[i], b[t + 8 * i][g], b[t + 8 * i + 1][g]);
  }
  for (int r = 0; r < 16; ++r) {
    for (int k = 0; k < 16; ++k) {
      for (int n = 0; n < 8; ++n) d[r][n] += a[r][k] * b[k][n];
    }
  }
  for (int lane = 0; lane < 32; ++lane) {
    const int g = lane / 4, t = lane % 4 * 2;
    for (int i = 0; i < 4; ++i) warp[lane].operands.floats[i] = d[g + 8 * (i / 2)][t + i % 2];
  }
}

template <class T, int D, int A, int B>
static inline void mma(Floats<D>& d, int d_at, Words<A>& a, int a_at, Words<B>& b, int b_at,
                       int line = __builtin_LINE()) {
  emu::Collective operands{emu::kMma, 0, d.span(d_at, 4, true, line), a.span(a_at, 4, true, line),
                           b.span(b_at, 2, true, line), 0, nullptr};
  if (!emu::arrive(operands, line)) return;
  mma_warp<T>(&emu::machine.threads[emu::machine.current / 32 * 32]);
  emu::release();
}

// float32 as in include/mirage_formal/float32.cuh: the same parts of each operand, and the same three products of them.
static inline void split(float x, float& high, float& low) {
  constexpr float kLargestRounded = 0x1.ffdffep+127f;
  const float clamped = ::fminf(::fmaxf(x, -kLargestRounded), kLargestRounded);
  unsigned bits;
  memcpy(&bits, &clamped, 4);
  bits = (bits + 0x1000u) & 0xffffe000u;
  memcpy(&high, &bits, 4);
  const float rest = x - high;
  memcpy(&bits, &rest, 4);
  bits &= 0xffffe000u;
  memcpy(&low, &bits, 4);
}

static inline void mma_floats(emu::Thread* warp) {
  float high_a[16][16], low_a[16][16], high_b[16][8], low_b[16][8];
  for (int lane = 0; lane < 32; ++lane) {
    const int g = lane / 4, t = lane % 4 * 2;
    const emu::Collective& in = warp[lane].operands;
    for (int i = 0; i < 8; ++i) {
      const int r = g + 8 * (i / 2 % 2), k = t + i % 2 + 8 * (i / 4);
      split(in.left[i], high_a[r][k], low_a[r][k]);
    }
    for (int i = 0; i < 4; ++i) {
      const int k = t + i % 2 + 8 * (i / 2);
      split(in.right[i], high_b[k][g], low_b[k][g]);
    }
  }
  for (int lane = 0; lane < 32; ++lane) {
    const int g = lane / 4, t = lane % 4 * 2;
    for (int i = 0; i < 4; ++i) {
      const int r = g + 8 * (i / 2), n = t + i % 2;
      float sum = 0.0f, rest = 0.0f;
      for (int k = 0; k < 16; ++k) rest += low_a[r][k] * high_b[k][n] + high_a[r][k] * low_b[k][n];
      for (int k = 0; k < 16; ++k) sum += high_a[r][k] * high_b[k][n];
      warp[lane].operands.floats[i] += sum + rest;
    }
  }
}

template <class T, int D, int A, int B>
static inline void mma(Floats<D>& d, int d_at, Floats<A>& a, int a_at, Floats<B>& b, int b_at,
                       int line = __builtin_LINE()) {
  static_assert(sizeof(T) == 4, "operands in floats are of float32");
  emu::Collective operands{emu::kMma, 32, d.span(d_at, 4, true, line), nullptr, nullptr, 0, nullptr};
  operands.left = a.span(a_at, 8, true, line);
  operands.right = b.span(b_at, 4, true, line);
  if (!emu::arrive(operands, line)) return;
  mma_floats(&emu::machine.threads[emu::machine.current / 32 * 32]);
  emu::release();
}

// As in include/mirage_formal/wgmma.cuh: element (outer, inner) of a matrix in panels of 64 columns, read for the group.
template <class T>
static inline float panel_element(const Shared<T>& buffer, int at, int panel, bool across, int outer, int inner,
                                  int line) {
  const int row = across ? inner : outer, column = across ? outer : inner;
  const int plain = 512 * (at + panel * (column / 64)) + 64 * row + column % 64, index = plain ^ 8 * (plain / 64 % 8);
  const int first = emu::machine.current / 128 * 128;
  emu::check_bounds(buffer, index, 1, first, line);
  emu::note_read(buffer, index, 1, emu::kMany, first, line);
  T out;
  memcpy(&out, &emu::machine.shared[buffer.at(index)], sizeof(T));
  return to_float(out);
}

// `left` and `right` return elements of the operands by (row, inner) and (column, inner).
template <int Columns, int Depth, int Add, class Left, class Right>
static inline void multiply_warpgroup(Left left, Right right) {
  emu::Thread* const group = &emu::machine.threads[emu::machine.current / 128 * 128];
  static float a[64][Depth], b[Columns][Depth];
  for (int k = 0; k < Depth; ++k) {
    for (int r = 0; r < 64; ++r) a[r][k] = left(r, k);
    for (int n = 0; n < Columns; ++n) b[n][k] = right(n, k);
  }
  for (int thread = 0; thread < 128; ++thread) {
    const int row = thread / 32 * 16 + thread % 32 / 4, column = thread % 4 * 2;
    for (int i = 0; i < Columns / 2; ++i) {
      const int r = row + 8 * (i / 2 % 2), n = 8 * (i / 4) + column + i % 2;
      float sum = 0.0f;
      for (int k = 0; k < Depth; ++k) sum += a[r][k] * b[n][k];
      group[thread].operands.floats[i] = (Add ? group[thread].operands.floats[i] : 0.0f) + sum;
    }
  }
}

// Positions are those of the thread that came last: all of the group give the same ones.
template <class T>
static inline void expect_position(const Shared<T>& buffer, int line) {
  const int self = emu::machine.current, first = self / 128 * 128;
  const emu::Collective& own = emu::machine.threads[self].operands;
  if (buffer.offset % 1024) emu::fail(emu::kMisaligned, buffer.name, 0, self, -1, line, "expected a multiple of 1,024");
  for (int i = first; i < first + 128; ++i) {
    const emu::Collective& other = emu::machine.threads[i].operands;
    if (other.index != own.index || other.mask != own.mask) {
      emu::fail(emu::kDivergence, buffer.name, own.index, self, i, line, "a warpgroup gives one position");
    }
  }
}

template <int Columns, int Depth, int APanel, int AAcross, int BPanel, int BAcross, int Add, int Deferred, int D,
          class T>
static inline void warpgroup_mma(Floats<D>& d, int d_at, const Shared<T>& a, int a_at, const Shared<T>& b, int b_at,
                                 int line = __builtin_LINE()) {
  emu::Collective operands{emu::kWarpgroupMma, a_at, d.span(d_at, Columns / 2, Add, line), nullptr, nullptr, b_at, &b};
  operands.lanes = 128;
  if (!emu::arrive(operands, line)) return;
  expect_position(a, line);
  expect_position(b, line);
  multiply_warpgroup<Columns, Depth, Add>(
      [&](int r, int k) { return panel_element(a, a_at, APanel, AAcross, r, k, line); },
      [&](int n, int k) { return panel_element(b, b_at, BPanel, BAcross, n, k, line); });
  emu::end_product(Deferred);
  emu::release();
}

template <int Columns, int Depth, int APanel, int AAcross, int BPanel, int BAcross, int Add, int Deferred, int D, int A,
          class T>
static inline void warpgroup_mma(Floats<D>& d, int d_at, Words<A>& a, int a_at, const Shared<T>& b, int b_at,
                                 int line = __builtin_LINE()) {
  emu::Collective operands{emu::kWarpgroupMma,
                           0,
                           d.span(d_at, Columns / 2, Add, line),
                           a.span(a_at, Depth / 4, true, line),
                           nullptr,
                           b_at,
                           &b};
  operands.lanes = 128;
  if (!emu::arrive(operands, line)) return;
  expect_position(b, line);
  emu::Thread* const group = &emu::machine.threads[emu::machine.current / 128 * 128];
  multiply_warpgroup<Columns, Depth, Add>(
      [&](int r, int k) {
        const int thread = r / 16 * 32 + r % 8 * 4 + k % 8 / 2, word = k / 16 * 4 + k / 8 % 2 * 2 + r / 8 % 2;
        float pair[2];
        split<T>(group[thread].operands.a[word], pair[0], pair[1]);
        return pair[k % 2];
      },
      [&](int n, int k) { return panel_element(b, b_at, BPanel, BAcross, n, k, line); });
  emu::end_product(Deferred);
  emu::release();
}

// Products are complete when they are begun. That nothing touches their registers before the wait is a rule of form.
template <int Columns, int D>
static inline void warpgroup_wait(Floats<D>& d, int d_at, int line = __builtin_LINE()) {
  d.span(d_at, Columns / 2, true, line);
  emu::machine.threads[emu::machine.current].open.clear();
}

}  // namespace mf
