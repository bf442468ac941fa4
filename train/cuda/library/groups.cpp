// Communicators over NCCL, which is loaded when one is first asked for. Nothing here waits, but for
// group_destroy: what NCCL calls "in progress" is success, and group_state tells the rest.

#include <fmt/format.h>
#include <time.h>

#include <cstring>
#include <memory>

#include "train/cuda/library/dynamic_library.h"
#include "train/cuda/library/objects.h"
#include "train/cuda/library/vendor_versions.h"

#if TROUPE_CUDA_HAS_NCCL
#include <nccl.h>

struct TroupeCudaGroup {
  TroupeCudaContext* context = nullptr;
  // NCCL writes it, for a split possibly after the call.
  ncclComm_t communicator = nullptr;
  // Of a split that may be under way; null once it is known to be done.
  ncclComm_t parent = nullptr;
  std::string name;  // NCCL reads it
};

namespace troupe::train::cuda {
namespace {

static_assert(static_cast<int>(sizeof(ncclUniqueId)) ==
              static_cast<int>(TROUPE_CUDA_GROUP_ID_BYTES));
constexpr int kVersionMin = NCCL_VERSION(2, 18, 0);  // splits
constexpr int kDestroyMs = 60'000;

struct Nccl {
  decltype(&::ncclGetVersion) version = nullptr;
  decltype(&::ncclGetUniqueId) unique_id = nullptr;
  decltype(&::ncclGetErrorString) error_string = nullptr;
  decltype(&::ncclGetLastError) last_error = nullptr;
  decltype(&::ncclCommInitRankConfig) init = nullptr;
  decltype(&::ncclCommSplit) split = nullptr;
  decltype(&::ncclCommGetAsyncError) async_error = nullptr;
  decltype(&::ncclCommAbort) abort = nullptr;
  decltype(&::ncclCommFinalize) finalize = nullptr;
  decltype(&::ncclCommDestroy) destroy = nullptr;
  decltype(&::ncclGroupStart) group_start = nullptr;
  decltype(&::ncclGroupEnd) group_end = nullptr;
  decltype(&::ncclSend) send = nullptr;
  decltype(&::ncclRecv) receive = nullptr;
  decltype(&::ncclAllReduce) all_reduce = nullptr;
  decltype(&::ncclReduceScatter) reduce_scatter = nullptr;
  decltype(&::ncclAllGather) all_gather = nullptr;
  decltype(&::ncclBroadcast) broadcast = nullptr;
};

struct Loaded {
  Loaded() : library({"libnccl.so.2"}) {
    library.find("ncclGetVersion", functions.version);
    int found = 0;
    if (functions.version && functions.version(&found) == ncclSuccess) version = found;
    library.find("ncclGetUniqueId", functions.unique_id);
    library.find("ncclGetErrorString", functions.error_string);
    library.find("ncclGetLastError", functions.last_error);
    library.find("ncclCommInitRankConfig", functions.init);
    library.find("ncclCommSplit", functions.split);
    library.find("ncclCommGetAsyncError", functions.async_error);
    library.find("ncclCommAbort", functions.abort);
    library.find("ncclCommFinalize", functions.finalize);
    library.find("ncclCommDestroy", functions.destroy);
    library.find("ncclGroupStart", functions.group_start);
    library.find("ncclGroupEnd", functions.group_end);
    library.find("ncclSend", functions.send);
    library.find("ncclRecv", functions.receive);
    library.find("ncclAllReduce", functions.all_reduce);
    library.find("ncclReduceScatter", functions.reduce_scatter);
    library.find("ncclAllGather", functions.all_gather);
    library.find("ncclBroadcast", functions.broadcast);
  }
  DynamicLibrary library;
  Nccl functions;
  int version = 0;
};
const Loaded& loaded_nccl() {
  static const Loaded only;
  return only;
}

int nccl(const Nccl** functions) {
  constexpr const char* kWayOut = "install NVIDIA's NCCL (`tools/setup --cuda`)";
  const Loaded& all = loaded_nccl();
  if (all.version != 0 && all.version < kVersionMin)
    return fail(
        TROUPE_CUDA_UNAVAILABLE,
        fmt::format("the NCCL found here is version {}.{}.{}, 2.18 or later is needed: {}, "
                    "or name the folder of a newer one in TROUPE_CUDA_LIBRARY_PATH",
                    all.version / 10000, all.version / 100 % 100, all.version % 100, kWayOut));
  TROUPE_CUDA_RETURN_IF_FAILED(all.library.status("libnccl.so.2", kWayOut));
  *functions = &all.functions;
  return TROUPE_CUDA_OK;
}

const char* name_of(ncclResult_t result) {
  switch (result) {
    case ncclSuccess:
      return "ncclSuccess";
    case ncclUnhandledCudaError:
      return "ncclUnhandledCudaError";
    case ncclSystemError:
      return "ncclSystemError";
    case ncclInternalError:
      return "ncclInternalError";
    case ncclInvalidArgument:
      return "ncclInvalidArgument";
    case ncclInvalidUsage:
      return "ncclInvalidUsage";
    case ncclRemoteError:
      return "ncclRemoteError";
    case ncclInProgress:
      return "ncclInProgress";
    default:
      return "an unknown result";
  }
}

TroupeCudaCode code_of_result(ncclResult_t result) {
  switch (result) {
    case ncclSuccess:
    case ncclInProgress:
      return TROUPE_CUDA_OK;
    case ncclInvalidArgument:
    case ncclInvalidUsage:
      return TROUPE_CUDA_INVALID;
    // The network, or another rank.
    case ncclSystemError:
    case ncclRemoteError:
      return TROUPE_CUDA_PEER;
    default:
      return TROUPE_CUDA_FAILED;
  }
}

// communicator: may be null. "In progress" is OK.
int check_nccl(const Nccl& n, ncclResult_t result, ncclComm_t communicator,
               const std::string& what) {
  TroupeCudaCode code = code_of_result(result);
  if (code == TROUPE_CUDA_OK) return TROUPE_CUDA_OK;
  std::string text = fmt::format("{}: {} ({})", what, name_of(result), n.error_string(result));
  const char* last = n.last_error(communicator);
  if (last && *last) text += fmt::format(": {}", last);
  if (result == ncclUnhandledCudaError) {
    const cudaError_t error = device_error();
    if (error != cudaSuccess) {
      text += fmt::format(": {} ({})", cudaGetErrorName(error), cudaGetErrorString(error));
      code = code_of(error);
    }
  }
  return fail(code, std::move(text));
}

ncclConfig_t config_of(const TroupeCudaGroup& group) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 27, 0)
  if (!group.name.empty()) config.commName = group.name.c_str();
#else
  static_cast<void>(group);
#endif
  return config;
}

int group_unique_id(std::uint8_t* id) {
  const Nccl* n = nullptr;
  TROUPE_CUDA_RETURN_IF_FAILED(nccl(&n));
  ncclUniqueId made{};
  TROUPE_CUDA_RETURN_IF_FAILED(check_nccl(*n, n->unique_id(&made), nullptr, "ncclGetUniqueId"));
  std::memcpy(id, &made, sizeof made);
  return TROUPE_CUDA_OK;
}

int group_begin_init(TroupeCudaContext* context, const std::uint8_t* id, std::int32_t world_size,
                     std::int32_t rank, const char* name, TroupeCudaGroup** group) {
  *group = nullptr;
  TROUPE_CUDA_RETURN_IF_FAILED(enter("group_begin_init", context));
  const Nccl* n = nullptr;
  TROUPE_CUDA_RETURN_IF_FAILED(nccl(&n));
  if (world_size <= 0 || rank < 0 || rank >= world_size)
    return fail(TROUPE_CUDA_INVALID,
                fmt::format("group_begin_init: rank {} of {}", rank, world_size));
  ncclUniqueId unique{};
  std::memcpy(&unique, id, sizeof unique);
  auto made = std::make_unique<TroupeCudaGroup>();
  made->context = context;
  made->name = name ? name : "";
  ncclConfig_t config = config_of(*made);
  const int code =
      check_nccl(*n, n->init(&made->communicator, world_size, unique, rank, &config), nullptr,
                 fmt::format("ncclCommInitRankConfig of rank {} of {}", rank, world_size));
  if (code != TROUPE_CUDA_OK) {
    // Its thread may be at work still, and write to what goes here.
    if (made->communicator) (void)n->abort(made->communicator);
    return code;
  }
  *group = made.release();
  return TROUPE_CUDA_OK;
}

int group_begin_split(TroupeCudaGroup* parent, std::int32_t color, std::int32_t key,
                      const char* name, TroupeCudaGroup** group) {
  *group = nullptr;
  TROUPE_CUDA_RETURN_IF_FAILED(enter("group_begin_split", parent->context));
  const Nccl* n = nullptr;
  TROUPE_CUDA_RETURN_IF_FAILED(nccl(&n));
  auto made = std::make_unique<TroupeCudaGroup>();
  made->context = parent->context;
  made->parent = parent->communicator;
  made->name = name ? name : "";
  ncclConfig_t config = config_of(*made);
  const bool member = color >= 0;
  const ncclResult_t result = n->split(parent->communicator, member ? color : NCCL_SPLIT_NOCOLOR,
                                       key, &made->communicator, &config);
  TroupeCudaGroup* const kept = made.release();
  const int code = check_nccl(*n, result, parent->communicator,
                              fmt::format("ncclCommSplit, color {}, key {}", color, key));
  // NCCL may write to a split that is under way, and there is none to ask about for who is not a
  // member: its few bytes stay where it is not known to be done.
  const bool done = result != ncclInProgress;
  if (code != TROUPE_CUDA_OK || !member) {
    if (done) delete kept;
    return code;
  }
  *group = kept;
  return TROUPE_CUDA_OK;
}

int state_of(const Nccl& n, ncclComm_t communicator, const char* what) {
  ncclResult_t state = ncclSuccess;
  TROUPE_CUDA_RETURN_IF_FAILED(
      check_nccl(n, n.async_error(communicator, &state), communicator, "ncclCommGetAsyncError"));
  if (state == ncclInProgress)
    return fail(TROUPE_CUDA_NOT_READY, std::string(what) + ": under way");
  return check_nccl(n, state, communicator, what);
}

int group_state(TroupeCudaGroup* group) {
  TROUPE_CUDA_RETURN_IF_FAILED(enter("group_state", group->context));
  const Nccl* n = nullptr;
  TROUPE_CUDA_RETURN_IF_FAILED(nccl(&n));
  const std::string what = fmt::format("communicator '{}'", group->name);
  if (group->parent) {
    TROUPE_CUDA_RETURN_IF_FAILED(
        state_of(*n, group->parent, (what + ", split from another").c_str()));
    group->parent = nullptr;
  }
  if (!group->communicator)
    return fail(TROUPE_CUDA_FAILED, what + ": NCCL made none, and tells no reason");
  return state_of(*n, group->communicator, what.c_str());
}

int group_abort(TroupeCudaGroup* group) {
  TROUPE_CUDA_RETURN_IF_FAILED(enter("group_abort", group->context));
  const Nccl* n = nullptr;
  TROUPE_CUDA_RETURN_IF_FAILED(nccl(&n));
  // A split that NCCL has not written to yet may be written to still: its few bytes stay.
  if (!group->communicator) return TROUPE_CUDA_OK;
  const int code = check_nccl(*n, n->abort(group->communicator), nullptr,
                              fmt::format("ncclCommAbort of '{}'", group->name));
  delete group;
  return code;
}

// NCCL sets all flags that kernels look at before it waits for any of them only within a group, and
// only since this version: before, each is waited for on its own.
constexpr int kVersionOfGroupAborts = NCCL_VERSION(2, 22, 0);

int groups_abort(TroupeCudaGroup* const* groups, std::int32_t count) {
  TROUPE_CUDA_RETURN_IF_FAILED(need_positive("groups_abort", "count", count));
  TROUPE_CUDA_RETURN_IF_FAILED(enter("groups_abort", groups[0]->context));
  const Nccl* n = nullptr;
  TROUPE_CUDA_RETURN_IF_FAILED(nccl(&n));
  const bool together =
      count > 1 && nccl_version() >= kVersionOfGroupAborts && n->group_start() == ncclSuccess;
  if (!together) {
    int failed = TROUPE_CUDA_OK;
    for (std::int32_t i = 0; i < count; ++i) {
      const int code = group_abort(groups[i]);
      if (failed == TROUPE_CUDA_OK) failed = code;
    }
    return failed;
  }
  int first = TROUPE_CUDA_OK;
  for (std::int32_t i = 0; i < count; ++i) {
    if (!groups[i]->communicator) continue;
    const int code = check_nccl(*n, n->abort(groups[i]->communicator), nullptr,
                                fmt::format("ncclCommAbort of '{}'", groups[i]->name));
    if (first == TROUPE_CUDA_OK) first = code;
  }
  const int ended = check_nccl(*n, n->group_end(), nullptr, "ncclGroupEnd of aborts");
  // Not before: NCCL reads their names until here. (What it may still write to stays.)
  for (std::int32_t i = 0; i < count; ++i)
    if (groups[i]->communicator) delete groups[i];
  return first == TROUPE_CUDA_OK ? ended : first;
}

// Where it fails, the group is still there: to be aborted.
int group_destroy(TroupeCudaGroup* group) {
  TROUPE_CUDA_RETURN_IF_FAILED(enter("group_destroy", group->context));
  const Nccl* n = nullptr;
  TROUPE_CUDA_RETURN_IF_FAILED(nccl(&n));
  const std::string what = fmt::format("communicator '{}'", group->name);
  if (!group->communicator) return fail(TROUPE_CUDA_INVALID, what + " is not made yet");
  TROUPE_CUDA_RETURN_IF_FAILED(check_nccl(*n, n->finalize(group->communicator), group->communicator,
                                          "ncclCommFinalize of " + what));
  int state = TROUPE_CUDA_NOT_READY;
  for (int waited_ms = 0; waited_ms < kDestroyMs; ++waited_ms) {
    state = state_of(*n, group->communicator, what.c_str());
    if (state != TROUPE_CUDA_NOT_READY) break;
    const timespec pause{0, 1'000'000};
    ::nanosleep(&pause, nullptr);
  }
  if (state == TROUPE_CUDA_NOT_READY)
    return fail(TROUPE_CUDA_PEER, fmt::format("{}: what was enqueued is not done after {} s", what,
                                              kDestroyMs / 1000));
  TROUPE_CUDA_RETURN_IF_FAILED(state);
  const int code =
      check_nccl(*n, n->destroy(group->communicator), nullptr, "ncclCommDestroy of " + what);
  delete group;
  return code;
}

int group_batch_begin() {
  const Nccl* n = nullptr;
  TROUPE_CUDA_RETURN_IF_FAILED(nccl(&n));
  return check_nccl(*n, n->group_start(), nullptr, "ncclGroupStart");
}

int group_batch_end() {
  const Nccl* n = nullptr;
  TROUPE_CUDA_RETURN_IF_FAILED(nccl(&n));
  return check_nccl(*n, n->group_end(), nullptr, "ncclGroupEnd");
}

int data_type(const char* what, int type, ncclDataType_t* found) {
  switch (type) {
    case TROUPE_CUDA_F32:
      *found = ncclFloat32;
      return TROUPE_CUDA_OK;
    case TROUPE_CUDA_BF16:
      *found = ncclBfloat16;
      return TROUPE_CUDA_OK;
    case TROUPE_CUDA_I32:
      *found = ncclInt32;
      return TROUPE_CUDA_OK;
    case TROUPE_CUDA_I64:
      *found = ncclInt64;
      return TROUPE_CUDA_OK;
    case TROUPE_CUDA_F64:
      *found = ncclFloat64;
      return TROUPE_CUDA_OK;
    case TROUPE_CUDA_U8:
      *found = ncclUint8;
      return TROUPE_CUDA_OK;
    default:
      return fail(TROUPE_CUDA_INVALID, fmt::format("{}: there is no type {}", what, type));
  }
}

int reduction(const char* what, int reduce, ncclRedOp_t* found) {
  switch (reduce) {
    case TROUPE_CUDA_SUM:
      *found = ncclSum;
      return TROUPE_CUDA_OK;
    case TROUPE_CUDA_MAX:
      *found = ncclMax;
      return TROUPE_CUDA_OK;
    case TROUPE_CUDA_MIN:
      *found = ncclMin;
      return TROUPE_CUDA_OK;
    default:
      return fail(TROUPE_CUDA_INVALID, fmt::format("{}: there is no reduction {}", what, reduce));
  }
}

// Before an operation: NCCL, and a group that is there.
int begin(const char* what, TroupeCudaGroup* group, TroupeCudaStream* stream, const Nccl** n) {
  TROUPE_CUDA_RETURN_IF_FAILED(enter(what, stream));
  if (!group->communicator)
    return fail(TROUPE_CUDA_INVALID,
                fmt::format("{}: communicator '{}' is not made yet", what, group->name));
  return nccl(n);
}

int group_send(TroupeCudaGroup* group, TroupeCudaStream* stream, const void* data,
               std::int64_t bytes, std::int32_t peer) {
  const Nccl* n = nullptr;
  TROUPE_CUDA_RETURN_IF_FAILED(begin("group_send", group, stream, &n));
  return check_nccl(*n,
                    n->send(data, static_cast<std::size_t>(bytes), ncclUint8, peer,
                            group->communicator, stream->stream),
                    group->communicator, fmt::format("ncclSend of {} bytes to {}", bytes, peer));
}

int group_receive(TroupeCudaGroup* group, TroupeCudaStream* stream, void* data, std::int64_t bytes,
                  std::int32_t peer) {
  const Nccl* n = nullptr;
  TROUPE_CUDA_RETURN_IF_FAILED(begin("group_receive", group, stream, &n));
  return check_nccl(*n,
                    n->receive(data, static_cast<std::size_t>(bytes), ncclUint8, peer,
                               group->communicator, stream->stream),
                    group->communicator, fmt::format("ncclRecv of {} bytes from {}", bytes, peer));
}

int group_all_reduce(TroupeCudaGroup* group, TroupeCudaStream* stream, const void* input,
                     void* output, std::int64_t count, std::int32_t type, std::int32_t reduce) {
  constexpr const char* kWhat = "group_all_reduce";
  const Nccl* n = nullptr;
  TROUPE_CUDA_RETURN_IF_FAILED(begin(kWhat, group, stream, &n));
  ncclDataType_t data{};
  ncclRedOp_t operation{};
  TROUPE_CUDA_RETURN_IF_FAILED(data_type(kWhat, type, &data));
  TROUPE_CUDA_RETURN_IF_FAILED(reduction(kWhat, reduce, &operation));
  return check_nccl(*n,
                    n->all_reduce(input, output, static_cast<std::size_t>(count), data, operation,
                                  group->communicator, stream->stream),
                    group->communicator, fmt::format("ncclAllReduce of {} elements", count));
}

int group_reduce_scatter(TroupeCudaGroup* group, TroupeCudaStream* stream, const void* input,
                         void* output, std::int64_t count, std::int32_t type, std::int32_t reduce) {
  constexpr const char* kWhat = "group_reduce_scatter";
  const Nccl* n = nullptr;
  TROUPE_CUDA_RETURN_IF_FAILED(begin(kWhat, group, stream, &n));
  ncclDataType_t data{};
  ncclRedOp_t operation{};
  TROUPE_CUDA_RETURN_IF_FAILED(data_type(kWhat, type, &data));
  TROUPE_CUDA_RETURN_IF_FAILED(reduction(kWhat, reduce, &operation));
  return check_nccl(*n,
                    n->reduce_scatter(input, output, static_cast<std::size_t>(count), data,
                                      operation, group->communicator, stream->stream),
                    group->communicator,
                    fmt::format("ncclReduceScatter of {} elements of each rank", count));
}

int group_all_gather(TroupeCudaGroup* group, TroupeCudaStream* stream, const void* input,
                     void* output, std::int64_t count, std::int32_t type) {
  constexpr const char* kWhat = "group_all_gather";
  const Nccl* n = nullptr;
  TROUPE_CUDA_RETURN_IF_FAILED(begin(kWhat, group, stream, &n));
  ncclDataType_t data{};
  TROUPE_CUDA_RETURN_IF_FAILED(data_type(kWhat, type, &data));
  return check_nccl(*n,
                    n->all_gather(input, output, static_cast<std::size_t>(count), data,
                                  group->communicator, stream->stream),
                    group->communicator,
                    fmt::format("ncclAllGather of {} elements of each rank", count));
}

int group_broadcast(TroupeCudaGroup* group, TroupeCudaStream* stream, void* data,
                    std::int64_t count, std::int32_t type, std::int32_t root) {
  constexpr const char* kWhat = "group_broadcast";
  const Nccl* n = nullptr;
  TROUPE_CUDA_RETURN_IF_FAILED(begin(kWhat, group, stream, &n));
  ncclDataType_t found{};
  TROUPE_CUDA_RETURN_IF_FAILED(data_type(kWhat, type, &found));
  return check_nccl(*n,
                    n->broadcast(data, data, static_cast<std::size_t>(count), found, root,
                                 group->communicator, stream->stream),
                    group->communicator,
                    fmt::format("ncclBroadcast of {} elements from {}", count, root));
}

}  // namespace

int nccl_version() { return loaded_nccl().version; }

void fill_groups(TroupeCudaTable& table) {
  table.group_unique_id = group_unique_id;
  table.group_begin_init = group_begin_init;
  table.group_begin_split = group_begin_split;
  table.group_state = group_state;
  table.group_abort = group_abort;
  table.groups_abort = groups_abort;
  table.group_destroy = group_destroy;
  table.group_batch_begin = group_batch_begin;
  table.group_batch_end = group_batch_end;
  table.group_send = group_send;
  table.group_receive = group_receive;
  table.group_all_reduce = group_all_reduce;
  table.group_reduce_scatter = group_reduce_scatter;
  table.group_all_gather = group_all_gather;
  table.group_broadcast = group_broadcast;
}

}  // namespace troupe::train::cuda

#else

namespace troupe::train::cuda {
namespace {

int without_nccl() {
  return fail(TROUPE_CUDA_UNAVAILABLE,
              "libtroupe_cuda.so was built without NCCL: nccl.h was not there; install NCCL and "
              "build again");
}

}  // namespace

int nccl_version() { return 0; }

void fill_groups(TroupeCudaTable& table) {
  table.group_unique_id = [](std::uint8_t*) { return without_nccl(); };
  table.group_begin_init = [](TroupeCudaContext*, const std::uint8_t*, std::int32_t, std::int32_t,
                              const char*, TroupeCudaGroup**) { return without_nccl(); };
  table.group_begin_split = [](TroupeCudaGroup*, std::int32_t, std::int32_t, const char*,
                               TroupeCudaGroup**) { return without_nccl(); };
  table.group_state = [](TroupeCudaGroup*) { return without_nccl(); };
  table.group_abort = [](TroupeCudaGroup*) { return without_nccl(); };
  table.groups_abort = [](TroupeCudaGroup* const*, std::int32_t) { return without_nccl(); };
  table.group_destroy = [](TroupeCudaGroup*) { return without_nccl(); };
  table.group_batch_begin = [] { return without_nccl(); };
  table.group_batch_end = [] { return without_nccl(); };
  table.group_send = [](TroupeCudaGroup*, TroupeCudaStream*, const void*, std::int64_t,
                        std::int32_t) { return without_nccl(); };
  table.group_receive = [](TroupeCudaGroup*, TroupeCudaStream*, void*, std::int64_t, std::int32_t) {
    return without_nccl();
  };
  table.group_all_reduce = [](TroupeCudaGroup*, TroupeCudaStream*, const void*, void*, std::int64_t,
                              std::int32_t, std::int32_t) { return without_nccl(); };
  table.group_reduce_scatter = [](TroupeCudaGroup*, TroupeCudaStream*, const void*, void*,
                                  std::int64_t, std::int32_t,
                                  std::int32_t) { return without_nccl(); };
  table.group_all_gather = [](TroupeCudaGroup*, TroupeCudaStream*, const void*, void*, std::int64_t,
                              std::int32_t) { return without_nccl(); };
  table.group_broadcast = [](TroupeCudaGroup*, TroupeCudaStream*, void*, std::int64_t, std::int32_t,
                             std::int32_t) { return without_nccl(); };
}

}  // namespace troupe::train::cuda

#endif
