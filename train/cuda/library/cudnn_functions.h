#pragma once
// cuDNN, loaded when attention first asks for it. The functions that cudnn-frontend's headers call
// by their own names are defined in cudnn_functions.cpp and pass the call on: so they need nothing
// that is linked.

#include <cudnn.h>

#include "train/cuda/library/dynamic_library.h"

namespace troupe::train::cuda {

// What cudnn-frontend calls, and handles.
struct CudnnFunctions {
  decltype(&::cudnnGetVersion) version = nullptr;
  decltype(&::cudnnGetErrorString) error_string = nullptr;
  decltype(&::cudnnGetLastErrorString) last_error_string = nullptr;
  decltype(&::cudnnCreate) create = nullptr;
  decltype(&::cudnnDestroy) destroy = nullptr;
  decltype(&::cudnnSetStream) set_stream = nullptr;
  decltype(&::cudnnGetStream) get_stream = nullptr;
  decltype(&::cudnnBackendCreateDescriptor) create_descriptor = nullptr;
  decltype(&::cudnnBackendDestroyDescriptor) destroy_descriptor = nullptr;
  decltype(&::cudnnBackendFinalize) finalize = nullptr;
  decltype(&::cudnnBackendSetAttribute) set_attribute = nullptr;
  decltype(&::cudnnBackendGetAttribute) get_attribute = nullptr;
  decltype(&::cudnnBackendExecute) execute = nullptr;
};

// UNAVAILABLE: it is not there, or too old. Before this answered OK, none of the functions may be
// called.
int cudnn(const CudnnFunctions** functions);

}  // namespace troupe::train::cuda
