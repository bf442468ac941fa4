#pragma once
// The driver's own functions, which cudart hands out: the driver is never linked.

#include <cuda.h>

#include <string>

namespace troupe::train::cuda {

struct Driver {
  decltype(&::cuDeviceGetAttribute) device_get_attribute = nullptr;
  decltype(&::cuMemGetAllocationGranularity) get_granularity = nullptr;
  decltype(&::cuMemCreate) create = nullptr;
  decltype(&::cuMemRelease) release = nullptr;
  decltype(&::cuMemExportToShareableHandle) export_handle = nullptr;
  decltype(&::cuMemImportFromShareableHandle) import_handle = nullptr;
  decltype(&::cuMemAddressReserve) reserve = nullptr;
  decltype(&::cuMemAddressFree) free_address = nullptr;
  decltype(&::cuMemMap) map = nullptr;
  decltype(&::cuMemUnmap) unmap = nullptr;
  decltype(&::cuMemSetAccess) set_access = nullptr;
};

// UNAVAILABLE where there is no driver or an older one.
int driver(const Driver** functions);
// As check() of errors.h: the driver's results have the runtime's numbers.
int check_driver(CUresult result, const std::string& what);

}  // namespace troupe::train::cuda
