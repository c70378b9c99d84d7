// What exported host code uses of CUDA's runtime, on memory of the host; the test that loads it launches the kernels.
#pragma once
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

typedef int cudaError_t;
typedef struct CUstream_st* cudaStream_t;
enum { cudaSuccess = 0, cudaErrorInvalidValue = 1, cudaErrorMisalignedAddress = 716 };
enum { cudaFuncAttributeMaxDynamicSharedMemorySize = 8, cudaDevAttrComputeCapabilityMajor = 75 };
enum { cudaLaunchAttributeProgrammaticStreamSerialization = 6 };

struct dim3 {
  unsigned x, y, z;
  dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};
struct cudaLaunchAttribute {
  int id;
  struct {
    int programmaticStreamSerializationAllowed;
  } val;
};
struct cudaLaunchConfig_t {
  dim3 gridDim, blockDim;
  size_t dynamicSmemBytes;
  cudaStream_t stream;
  cudaLaunchAttribute* attrs;
  unsigned numAttrs;
};

// Kernel, grid, threads, shared bytes, whether it starts early, arguments, stream.
typedef int (*StubLaunch)(const void*, const unsigned*, unsigned, size_t, int, void**, void*);
extern "C" {
inline StubLaunch stub_launch = nullptr;
inline int stub_major = 9;
inline size_t stub_shared_limit = 0;
}

inline cudaError_t cudaGetDevice(int* device) { return *device = 0; }
inline cudaError_t cudaDriverGetVersion(int* version) { return *version = 12030, 0; }
inline cudaError_t cudaDeviceGetAttribute(int* value, int, int) { return *value = stub_major, 0; }
inline cudaError_t cudaFuncSetAttribute(const void*, int, int bytes) { return stub_shared_limit = bytes, 0; }
inline cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* kernel, void** arguments) {
  if (config->dynamicSmemBytes > stub_shared_limit) return cudaErrorInvalidValue;
  const unsigned grid[] = {config->gridDim.x, config->gridDim.y, config->gridDim.z};
  const int early = config->numAttrs == 1 && config->attrs->id == cudaLaunchAttributeProgrammaticStreamSerialization &&
                    config->attrs->val.programmaticStreamSerializationAllowed == 1;
  return stub_launch(kernel, grid, config->blockDim.x, config->dynamicSmemBytes, early, arguments, config->stream);
}
inline cudaError_t cudaMalloc(void** memory, size_t bytes) { return (*memory = malloc(bytes)) == nullptr; }
inline cudaError_t cudaMemset(void* memory, int value, size_t bytes) { return memset(memory, value, bytes), 0; }
inline cudaError_t cudaDeviceSynchronize() { return 0; }
