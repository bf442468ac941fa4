#include "train/cuda/library/cudnn_functions.h"

#include <fmt/format.h>

#include "train/cuda/library/errors.h"

namespace troupe::train::cuda {
namespace {

// Causal masks whose corner is the last query and the last key, at any length.
constexpr std::size_t kVersionMin = 90600;

struct Loaded {
  Loaded() : library({"libcudnn.so.9"}) {
    library.find("cudnnGetVersion", functions.version);
    library.find("cudnnGetErrorString", functions.error_string);
    library.find("cudnnGetLastErrorString", functions.last_error_string);
    library.find("cudnnCreate", functions.create);
    library.find("cudnnDestroy", functions.destroy);
    library.find("cudnnSetStream", functions.set_stream);
    library.find("cudnnGetStream", functions.get_stream);
    library.find("cudnnBackendCreateDescriptor", functions.create_descriptor);
    library.find("cudnnBackendDestroyDescriptor", functions.destroy_descriptor);
    library.find("cudnnBackendFinalize", functions.finalize);
    library.find("cudnnBackendSetAttribute", functions.set_attribute);
    library.find("cudnnBackendGetAttribute", functions.get_attribute);
    library.find("cudnnBackendExecute", functions.execute);
    if (functions.version) version = functions.version();
  }
  DynamicLibrary library;
  CudnnFunctions functions;
  std::size_t version = 0;
};
const Loaded& loaded_cudnn() {
  static const Loaded only;
  return only;
}

}  // namespace

int cudnn(const CudnnFunctions** functions) {
  constexpr const char* kWayOut = "install NVIDIA's cuDNN (`tools/setup --cuda`)";
  const Loaded& all = loaded_cudnn();
  TROUPE_CUDA_RETURN_IF_FAILED(all.library.status("libcudnn.so.9", kWayOut));
  if (all.version < kVersionMin)
    return fail(
        TROUPE_CUDA_UNAVAILABLE,
        fmt::format("the cuDNN found here is version {}.{}.{}, 9.6 or later is needed: {}, "
                    "or name the folder of a newer one in TROUPE_CUDA_LIBRARY_PATH",
                    all.version / 10000, all.version / 100 % 100, all.version % 100, kWayOut));
  *functions = &all.functions;
  return TROUPE_CUDA_OK;
}

}  // namespace troupe::train::cuda

// --- cuDNN's own names, for its front end. They are seen in this library alone.

namespace {
const troupe::train::cuda::CudnnFunctions& real() {
  return troupe::train::cuda::loaded_cudnn().functions;
}
}  // namespace

extern "C" {

std::size_t cudnnGetVersion() { return real().version(); }
const char* cudnnGetErrorString(cudnnStatus_t status) { return real().error_string(status); }
void cudnnGetLastErrorString(char* message, std::size_t bytes) {
  real().last_error_string(message, bytes);
}
cudnnStatus_t cudnnGetStream(cudnnHandle_t handle, cudaStream_t* stream) {
  return real().get_stream(handle, stream);
}
cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t type,
                                           cudnnBackendDescriptor_t* descriptor) {
  return real().create_descriptor(type, descriptor);
}
cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t descriptor) {
  return real().destroy_descriptor(descriptor);
}
cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t descriptor) {
  return real().finalize(descriptor);
}
cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t descriptor,
                                       cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, std::int64_t count,
                                       const void* elements) {
  return real().set_attribute(descriptor, name, type, count, elements);
}
cudnnStatus_t cudnnBackendGetAttribute(const cudnnBackendDescriptor_t descriptor,
                                       cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, std::int64_t room,
                                       std::int64_t* count, void* elements) {
  return real().get_attribute(descriptor, name, type, room, count, elements);
}
cudnnStatus_t cudnnBackendExecute(cudnnHandle_t handle, cudnnBackendDescriptor_t plan,
                                  cudnnBackendDescriptor_t arguments) {
  return real().execute(handle, plan, arguments);
}

}  // extern "C"
