// What exported host code uses of cuBLAS; the test that loads it computes the products.
#pragma once
#include <cuda_runtime.h>

typedef int cublasStatus_t;
typedef struct Handle* cublasHandle_t;
typedef int cudaDataType;
enum { CUBLAS_OP_N = 0, CUBLAS_OP_T = 1, CUBLAS_COMPUTE_32F = 68, CUBLAS_GEMM_DEFAULT = -1 };

// Thirteen numbers (transa, transb, m, n, k, lda, strideA, ldb, strideB, ldc, strideC, count, type) and three addresses.
typedef int (*StubMultiply)(const long long*, const void* const*);
extern "C" {
inline StubMultiply stub_multiply = nullptr;
inline void* stub_workspace = nullptr;
inline size_t stub_workspace_bytes = 0;
}

inline cublasStatus_t cublasCreate(cublasHandle_t* handle) { return *handle = nullptr, 0; }
inline cublasStatus_t cublasDestroy(cublasHandle_t) { return 0; }
inline cublasStatus_t cublasSetStream(cublasHandle_t, cudaStream_t) { return 0; }
inline cublasStatus_t cublasSetWorkspace(cublasHandle_t, void* workspace, size_t bytes) {
  return stub_workspace = workspace, stub_workspace_bytes = bytes, 0;
}
inline cublasStatus_t cublasGemmStridedBatchedEx(cublasHandle_t, int transa, int transb, int m, int n, int k,
                                                 const void* alpha, const void* a, cudaDataType type, int lda,
                                                 long long by_a, const void* b, cudaDataType, int ldb, long long by_b,
                                                 const void* beta, void* c, cudaDataType, int ldc, long long by_c,
                                                 int count, int compute, int algorithm) {
  if (*(const float*)alpha != 1.0f || *(const float*)beta != 0.0f || compute != CUBLAS_COMPUTE_32F) return 7;
  if (algorithm != CUBLAS_GEMM_DEFAULT) return 7;
  const long long numbers[] = {transa, transb, m, n, k, lda, by_a, ldb, by_b, ldc, by_c, count, type};
  const void* const places[] = {a, b, c};
  return stub_multiply(numbers, places);
}
