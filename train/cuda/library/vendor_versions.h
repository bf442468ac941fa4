#pragma once
// Versions of libraries that may not be there: 0 then.

namespace troupe::train::cuda {

int cublaslt_version();
int cudnn_version();
int nccl_version();

}  // namespace troupe::train::cuda
