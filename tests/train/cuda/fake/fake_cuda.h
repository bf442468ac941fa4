#pragma once
// A GPU of tests: the table of train/cuda over memory of the host.
//
// Device memory is memfds, so that exporting, mapping twice and outliving a process work as they
// should. Every stream has a thread of its own and really runs behind its caller: who forgets to
// wait for an event reads what is not there yet. Operators run on train/cpu, so values are right.
// Or they are what a real GPU would run (FakeKernels): the library's own launchers and kernels,
// compiled for the host.
//
// One per process, as the table has no other place for it; reset() between tests. A program that
// loads it as a library dies of SIGABRT in the function that TROUPE_FAKE_CUDA_ABORT names, and
// finds the version of cuDNN that TROUPE_FAKE_CUDA_CUDNN does. Its groups are threads of one
// process: ranks that are processes set TROUPE_FAKE_CUDA_NCCL=0, "not there".
// TROUPE_FAKE_CUDA_KERNELS=phases, or threads, is FakeCudaOptions::kernels.
// Where TROUPE_FAKE_CUDA_EXCLUSIVE names a folder, one process at a time has a device.
// The first process that finds the file TROUPE_FAKE_CUDA_LOSE, which it removes, loses its device.

#include <cstdint>
#include <string>
#include <vector>

#include "train/cuda/device/table.h"

namespace troupe::tests {

// Who computes what Troupe's own kernels do on a GPU: all of the table's functions of kernels, but
// products, attention's plans and communicators, which are the vendor's.
enum class FakeKernels {
  kNone,      // train/cpu, in a GPU's place
  kByPhases,  // the kernels; a block's threads are played one after another, phase by phase
  // The kernels; each thread by itself up to the next barrier: slower, and shows barriers that are
  // missing (host_gpu.h).
  kByThreads
};

struct FakeCudaOptions {
  int devices = 1;
  std::int64_t memory_bytes = std::int64_t{1} << 30;  // of each device
  std::int64_t granularity_bytes = 1 << 16;
  bool can_export_memory = true;
  int compute_major = 9, compute_minor = 0;
  bool fp8_algorithms = true;  // products of 8 bits have some
  // Epilogues whose products have some: a bit for each TroupeCudaEpilogue.
  unsigned epilogues = 1u << TROUPE_CUDA_EPILOGUE_BIAS | 1u << TROUPE_CUDA_EPILOGUE_BIAS_GELU |
                       1u << TROUPE_CUDA_EPILOGUE_GELU_GRADIENT;
  // The host cannot touch the device's memory while no stream works: it dies of SIGSEGV, as it
  // would with a real GPU. (Slow: not for every test.)
  bool guards_memory = false;
  // Not 0: by chance, streams put stretches of their work off until somebody waits for it, or for
  // some milliseconds. So of two streams of which one should wait for the other either may come
  // first. (TROUPE_FAKE_CUDA_LAZY_STREAMS of the environment, where it is 0.)
  std::uint64_t lazy_streams_seed = 0;
  int cublaslt_version = 130100;            // what products' algorithms belong to
  int cudnn_version = 0;                    // 0: not there; attention is then Troupe's own kernel's
  std::int64_t cudnn_workspace_bytes = -1;  // of every plan; -1: what its sums take

  FakeKernels kernels = FakeKernels::kNone;
  // Of blocks, and of threads between two barriers: 0: ascending, 1: descending, else by chance, of
  // this seed.
  std::uint64_t kernel_order = 0;

  // Communicators.
  int nccl_version = 22809;           // 0: not there
  int group_init_polls = 3;           // answers NOT_READY once all ranks have come
  int group_connect_polls = 2;        // after a group's first operation, not launched until then
  bool groups_connect = true;         // or that goes on for ever
  bool groups_share_devices = false;  // whether several ranks of a group may have one device
};

// A failure to be told by a function of the table.
struct FakeCudaFault {
  std::string function;  // "memory_create"
  int after_calls = 0;   // that succeed
  TroupeCudaCode code = TROUPE_CUDA_FAILED;
  std::string text = "a fault of the test's";
  int device = -1;  // of calls that concern this one; −1: of all
};

// How an update under a log (adamw_transacted) ends: see ended_update.h.
struct FakeUpdateEnd {
  std::int64_t moment = 0;  // in which it ends, counted from 1; 0: in none
  std::uint64_t seed = 1;   // of the blocks' order and of what has come to memory by then
};

const TroupeCudaTable& fake_cuda_table();

// Ends streams and forgets allocations, faults and counts. No context may be in use.
void fake_cuda_reset(const FakeCudaOptions& options = {});
void fake_cuda_inject(FakeCudaFault fault);
// From now on every call of the context's devices answers DEVICE_LOST.
void fake_cuda_lose_device(int index);
// From now on group_state of this rank of every group answers so: what NCCL finds out by itself.
void fake_cuda_fail_groups(int rank, TroupeCudaCode code, const std::string& text);
// The next update under a log runs as blocks that chance gives a turn, and ends in a moment as if
// the process were killed: nothing that it did not do is done, and the device is lost.
void fake_cuda_end_update(const FakeUpdateEnd& end);
// Moments that the last such update came to. The stream was waited for.
std::int64_t fake_cuda_update_moments();
// Calls of a function of the table since the reset.
std::int64_t fake_cuda_calls(const std::string& function);
// What is allocated on a device now.
std::int64_t fake_cuda_allocated_bytes(int index = 0);
// Contexts, streams, events and allocations that were not given back, one line each.
std::vector<std::string> fake_cuda_left();

}  // namespace troupe::tests
