extern "C" __global__ void nothing(const float4* x, float* y, int n) { if (threadIdx.x == 4096) y[0] = 1.0f; }
extern "C" __global__ void reading(const float4* x, float* y, int n) {
  float sum = 0.0f;
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
    float4 v = __ldg(x + i);
    sum += v.x + v.y + v.z + v.w;
  }
  if (sum == 1234567.0f) y[0] = sum;
}
