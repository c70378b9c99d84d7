extern "C" __global__ void __launch_bounds__(1024)
read_plain(const uint4* __restrict__ data, u64 bytes, u32* out, u32 check, u32) {
  const u64 units = bytes / sizeof(uint4), step = u64(gridDim.x) * blockDim.x;
  u32 fold = 0;
  for (u64 first = u64(blockIdx.x) * blockDim.x + threadIdx.x; first < units; first += 8 * step) {
    uint4 v[8];
#pragma unroll
    for (int k = 0; k < 8; ++k) v[k] = first + k * step < units ? __ldg(data + first + k * step) : uint4{0, 0, 0, 0};
#pragma unroll
    for (int k = 0; k < 8; ++k) fold ^= v[k].x ^ v[k].y ^ v[k].z ^ v[k].w;
  }
  if (check) atomicXor(out, fold);
  else if (fold == 0x9e3779b9u) *out = fold;
}
