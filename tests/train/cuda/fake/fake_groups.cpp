// The fake's communicators: ranks are threads of one process, each with its own context.
//
// As with NCCL, initialisation and a group's first operation take polls of group_state before they
// are done, and nothing is on the stream before; ranks that mean different things wait for ever;
// who leaves is missed by nobody until its peers abort; who aborts one of its groups while another
// one's operation is on its device would wait for that, which fake_cuda_left() tells. Reductions
// are taken in order of rank, which is not the fixed tree's: who wants that must not ask for them.

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <type_traits>

#include "tests/train/cuda/fake/fake_state.h"
#include "train/tensor/convert.h"

namespace troupe::tests::fake {

enum class Kind { kSend, kReceive, kAllReduce, kReduceScatter, kAllGather, kBroadcast };

struct GroupOperation {
  Kind kind{};
  const void* input = nullptr;
  void* output = nullptr;
  std::int64_t count = 0;  // elements; bytes of a message
  std::int32_t type = TROUPE_CUDA_U8;
  std::int32_t reduce = TROUPE_CUDA_SUM;
  std::int32_t peer = -1;    // or root
  std::uint64_t number = 0;  // of a collective, in its group
};

struct Message {
  const void* data = nullptr;
  std::int64_t bytes = 0;
  bool taken = false;
};

// A collective that ranks come to.
struct Meeting {
  std::map<int, GroupOperation> came;
  bool broken = false;  // by a rank that aborted
  bool done = false;
};

struct SplitMeeting {
  std::map<int, std::pair<int, int>> came;                // colour and key by rank
  std::map<int, std::shared_ptr<struct Clique>> cliques;  // by colour
};

// The ranks of one unique id.
struct Clique {
  int world_size = 0;
  std::map<int, int> devices;  // by rank that has come
  std::string refusal;
  std::map<std::pair<int, int>, std::deque<std::shared_ptr<Message>>> channels;  // from, to
  std::map<std::uint64_t, Meeting> meetings;
  std::map<std::uint64_t, SplitMeeting> splits;

  bool formed() const { return std::cmp_equal(devices.size(), world_size); }
};

struct Batch {
  TroupeCudaStream* stream = nullptr;
  std::vector<GroupOperation> operations;
};

struct Member {
  std::shared_ptr<Clique> clique;  // of a split: null until all have said their colour
  std::shared_ptr<Member> parent;  // of a split
  std::uint64_t split_number = 0;
  int color = 0;
  int rank = 0;
  int device = 0;
  const TroupeCudaContext* context = nullptr;
  int init_polls = 0;
  int connect_polls = 0;
  bool connected = false;
  bool aborted = false;
  std::deque<Batch> pending;
  std::uint64_t collectives = 0;
  std::uint64_t splits = 0;
  int outstanding = 0;  // batches on streams
};

}  // namespace troupe::tests::fake

struct TroupeCudaGroup {
  std::shared_ptr<troupe::tests::fake::Member> member;
};

namespace troupe::tests::fake {
namespace {

// Over everything here.
std::mutex groups_mutex;
std::condition_variable groups_changed;
std::map<std::array<std::uint8_t, TROUPE_CUDA_GROUP_ID_BYTES>, std::shared_ptr<Clique>> cliques;
std::uint64_t last_id = 0;
std::set<const Member*> members;  // of all groups that are there

thread_local int batch_depth = 0;
thread_local TroupeCudaGroup* batch_group = nullptr;
thread_local Batch open_batch;

std::int64_t size_of(std::int32_t type) {
  constexpr std::int64_t kBytes[] = {4, 2, 4, 8, 8, 1};
  return kBytes[type];
}

template <typename T>
T reduced(T a, T b, std::int32_t reduce) {
  if (reduce == TROUPE_CUDA_MAX) return a > b ? a : b;
  if (reduce == TROUPE_CUDA_MIN) return a < b ? a : b;
  if constexpr (std::is_integral_v<T>) {
    using U = std::make_unsigned_t<T>;
    return static_cast<T>(static_cast<U>(a) + static_cast<U>(b));
  } else {
    return a + b;
  }
}

template <typename T>
void accumulate_values(std::vector<std::byte>& sum, const void* input, std::int64_t count,
                       std::int32_t reduce) {
  auto* to = reinterpret_cast<T*>(sum.data());
  const auto* from = static_cast<const T*>(input);
  for (std::int64_t i = 0; i < count; ++i) to[i] = reduced(to[i], from[i], reduce);
}

void accumulate_bf16(std::vector<std::byte>& sum, const void* input, std::int64_t count,
                     std::int32_t reduce) {
  auto* to = reinterpret_cast<std::uint16_t*>(sum.data());
  std::vector<float> a(static_cast<std::size_t>(count)), b(a.size());
  train::float_from_bf16(to, a.data(), count);
  train::float_from_bf16(static_cast<const std::uint16_t*>(input), b.data(), count);
  for (std::size_t i = 0; i < a.size(); ++i) a[i] = reduced(a[i], b[i], reduce);
  train::bf16_from_float(a.data(), to, count);
}

void accumulate_input(std::vector<std::byte>& sum, const GroupOperation& operation,
                      std::int64_t count) {
  switch (operation.type) {
    case TROUPE_CUDA_F32:
      return accumulate_values<float>(sum, operation.input, count, operation.reduce);
    case TROUPE_CUDA_BF16:
      return accumulate_bf16(sum, operation.input, count, operation.reduce);
    case TROUPE_CUDA_I32:
      return accumulate_values<std::int32_t>(sum, operation.input, count, operation.reduce);
    case TROUPE_CUDA_I64:
      return accumulate_values<std::int64_t>(sum, operation.input, count, operation.reduce);
    case TROUPE_CUDA_F64:
      return accumulate_values<double>(sum, operation.input, count, operation.reduce);
    default:
      return accumulate_values<std::uint8_t>(sum, operation.input, count, operation.reduce);
  }
}

// All ranks are there and mean the same: what their streams did before comes before it.
void perform(Meeting& meeting) {
  const Watched watched;
  happens_after(&meeting);
  const std::map<int, GroupOperation>& came = meeting.came;
  const GroupOperation& first = came.begin()->second;
  const auto ranks = static_cast<std::int64_t>(came.size());
  const std::int64_t bytes = first.count * size_of(first.type);
  const auto as_bytes = [](const void* at) { return static_cast<const std::byte*>(at); };
  std::vector<std::byte> result;
  if (first.kind == Kind::kAllReduce || first.kind == Kind::kReduceScatter) {
    const std::int64_t parts = first.kind == Kind::kReduceScatter ? ranks : 1;
    result.assign(as_bytes(first.input), as_bytes(first.input) + bytes * parts);
    for (auto other = std::next(came.begin()); other != came.end(); ++other)
      accumulate_input(result, other->second, first.count * parts);
  } else if (first.kind == Kind::kAllGather) {
    for (const auto& [rank, operation] : came)
      result.insert(result.end(), as_bytes(operation.input), as_bytes(operation.input) + bytes);
  } else {
    const void* root = came.at(first.peer).input;
    result.assign(as_bytes(root), as_bytes(root) + bytes);
  }
  for (const auto& [rank, operation] : came) {
    const bool shard = operation.kind == Kind::kReduceScatter;
    std::memcpy(operation.output, result.data() + (shard ? rank * bytes : 0),
                shard ? static_cast<std::size_t>(bytes) : result.size());
  }
  happens_before(&meeting);
}

bool agree(const std::map<int, GroupOperation>& came) {
  const GroupOperation& first = came.begin()->second;
  return std::all_of(came.begin(), came.end(), [&](const auto& entry) {
    const GroupOperation& other = entry.second;
    return other.kind == first.kind && other.count == first.count && other.type == first.type &&
           other.reduce == first.reduce && other.peer == first.peer;
  });
}

// An operation of a batch that is being carried out.
struct Running {
  GroupOperation operation;
  std::shared_ptr<Message> message;  // of a send
  bool done = false;
};

// Between streams of two ranks, by what both know.
void give(void* what) {
  const Watched watched;
  happens_before(what);
}
void take(void* what) {
  const Watched watched;
  happens_after(what);
}

void post(Member& member, Running& running) {
  const GroupOperation& operation = running.operation;
  Clique& clique = *member.clique;
  if (operation.kind == Kind::kSend) {
    running.message = std::make_shared<Message>(Message{operation.input, operation.count});
    give(running.message.get());
    clique.channels[{member.rank, operation.peer}].push_back(running.message);
  } else if (operation.kind != Kind::kReceive) {
    Meeting& meeting = clique.meetings[operation.number];
    meeting.came[member.rank] = operation;
    give(&meeting);
    if (!meeting.broken && std::cmp_equal(meeting.came.size(), clique.world_size) &&
        agree(meeting.came)) {
      perform(meeting);
      meeting.done = true;
    }
  }
}

bool advance(Member& member, Running& running) {
  const GroupOperation& operation = running.operation;
  if (operation.kind == Kind::kSend) {
    if (!running.message->taken) return false;
    take(running.message.get());
    return true;
  }
  if (operation.kind != Kind::kReceive) {
    Meeting& meeting = member.clique->meetings[operation.number];
    if (!meeting.done) return false;
    take(&meeting);
    return true;
  }
  auto& channel = member.clique->channels[{operation.peer, member.rank}];
  if (channel.empty() || channel.front()->bytes != operation.count) return false;
  {
    const Watched watched;
    happens_after(channel.front().get());
    std::memcpy(operation.output, channel.front()->data, static_cast<std::size_t>(operation.count));
    happens_before(channel.front().get());
  }
  channel.front()->taken = true;
  channel.pop_front();
  groups_changed.notify_all();
  return true;
}

// On the stream's thread.
void carry_out(Member& member, const Batch& batch) {
  const Unwatched own;
  std::unique_lock lock(groups_mutex);
  std::vector<Running> all;
  for (const GroupOperation& operation : batch.operations)
    all.push_back({operation, nullptr, false});
  if (!member.aborted) {
    for (Running& running : all) post(member, running);
  }
  groups_changed.notify_all();
  while (!member.aborted) {
    bool done = true;
    for (Running& running : all) {
      if (!running.done) running.done = advance(member, running);
      done &= running.done;
    }
    if (done) break;
    groups_changed.wait(lock);
  }
  --member.outstanding;
  groups_changed.notify_all();
}

// Under the lock.
void put_on_stream(const std::shared_ptr<Member>& member, Batch batch) {
  ++member->outstanding;
  TroupeCudaStream* stream = batch.stream;
  stream->enqueue({.run = [member, batch = std::move(batch)] { carry_out(*member, batch); }});
}

int launch_batch(const std::shared_ptr<Member>& member, Batch batch) {
  if (batch.operations.empty()) return TROUPE_CUDA_OK;
  std::lock_guard lock(groups_mutex);
  if (!member->connected) {
    member->connect_polls = state().options().group_connect_polls;
    member->connected = member->connect_polls == 0 && state().options().groups_connect;
  }
  if (member->connected) {
    put_on_stream(member, std::move(batch));
  } else {
    member->pending.push_back(std::move(batch));
  }
  return TROUPE_CUDA_OK;
}

int not_usable(const Member& member) {
  if (member.aborted) return state().fail(TROUPE_CUDA_INVALID, "the group was aborted");
  if (!member.clique || !member.clique->formed() || member.init_polls > 0)
    return state().fail(TROUPE_CUDA_INVALID, "the group is not formed yet");
  if (!member.pending.empty())
    return state().fail(TROUPE_CUDA_INVALID,
                        "the group is used before its last operation was launched");
  return TROUPE_CUDA_OK;
}

int submit(TroupeCudaGroup* group, TroupeCudaStream* stream, GroupOperation operation) {
  const std::shared_ptr<Member>& member = group->member;
  {
    std::lock_guard lock(groups_mutex);
    if (const int code = not_usable(*member)) return code;
    if (operation.kind != Kind::kSend && operation.kind != Kind::kReceive)
      operation.number = ++member->collectives;
  }
  if (batch_depth == 0) return launch_batch(member, {stream, {operation}});
  if (batch_group && (batch_group != group || open_batch.stream != stream))
    return state().fail(TROUPE_CUDA_INVALID, "the fake's batches are of one group and stream");
  batch_group = group;
  open_batch.stream = stream;
  open_batch.operations.push_back(operation);
  return TROUPE_CUDA_OK;
}

int check_buffer(const void* at, std::int64_t bytes) {
  if (bytes < 0) return state().fail(TROUPE_CUDA_INVALID, "a negative size");
  if (bytes == 0 || state().on_device(at, bytes)) return TROUPE_CUDA_OK;
  return state().fail(TROUPE_CUDA_INVALID, "a buffer is no memory of the device");
}

int check_peer(TroupeCudaGroup* group, std::int32_t peer) {
  std::lock_guard lock(groups_mutex);
  const Member& member = *group->member;
  if (const int code = not_usable(member)) return code;
  if (peer >= 0 && peer < member.clique->world_size) return TROUPE_CUDA_OK;
  return state().fail(TROUPE_CUDA_INVALID, "there is no such rank");
}

// --- the table's functions

int group_unique_id(std::uint8_t id[TROUPE_CUDA_GROUP_ID_BYTES]) {
  if (const int code = state().enter("group_unique_id")) return code;
  if (state().options().nccl_version == 0)
    return state().fail(TROUPE_CUDA_UNAVAILABLE, "NCCL is not there");
  std::lock_guard lock(groups_mutex);
  std::memset(id, 0, TROUPE_CUDA_GROUP_ID_BYTES);
  fmt::format_to_n(reinterpret_cast<char*>(id), TROUPE_CUDA_GROUP_ID_BYTES - 1, "fake group {}",
                   ++last_id);
  return TROUPE_CUDA_OK;
}

// Under the lock.
void join_clique(Clique& clique, Member& member) {
  if (clique.devices.contains(member.rank)) {
    clique.refusal = fmt::format("rank {} came twice", member.rank);
  } else if (!state().options().groups_share_devices) {
    for (const auto& [rank, device] : clique.devices) {
      if (device == member.device)
        clique.refusal =
            fmt::format("Duplicate GPU detected : rank {} and rank {} both on device {}", rank,
                        member.rank, device);
    }
  }
  clique.devices[member.rank] = member.device;
}

// Under the lock.
int made(std::shared_ptr<Member> member, TroupeCudaGroup** group) {
  members.insert(member.get());
  *group = new TroupeCudaGroup{std::move(member)};
  state().count_object("group", 1);
  return TROUPE_CUDA_OK;
}

void remove(TroupeCudaGroup* group) {
  {
    std::lock_guard lock(groups_mutex);
    members.erase(group->member.get());
  }
  delete group;
  state().count_object("group", -1);
}

int group_begin_init(TroupeCudaContext* context, const std::uint8_t id[TROUPE_CUDA_GROUP_ID_BYTES],
                     std::int32_t world_size, std::int32_t rank, const char*,
                     TroupeCudaGroup** group) {
  if (const int code = state().enter("group_begin_init", context->device)) return code;
  if (world_size < 1 || rank < 0 || rank >= world_size)
    return state().fail(TROUPE_CUDA_INVALID, "there is no such rank");
  std::array<std::uint8_t, TROUPE_CUDA_GROUP_ID_BYTES> key;
  std::copy_n(id, key.size(), key.begin());
  std::lock_guard lock(groups_mutex);
  auto& clique = cliques[key];
  if (!clique) {
    clique = std::make_shared<Clique>();
    clique->world_size = world_size;
  }
  if (clique->world_size != world_size)
    return state().fail(TROUPE_CUDA_INVALID, "another rank says another number of ranks");
  auto member = std::make_shared<Member>();
  member->clique = clique;
  member->rank = rank;
  member->device = context->device;
  member->context = context;
  member->init_polls = state().options().group_init_polls;
  join_clique(*clique, *member);
  if (clique->formed()) cliques.erase(key);
  return made(std::move(member), group);
}

int group_begin_split(TroupeCudaGroup* parent, std::int32_t color, std::int32_t key, const char*,
                      TroupeCudaGroup** group) {
  if (const int code = state().enter("group_begin_split", parent->member->device)) return code;
  *group = nullptr;
  std::lock_guard lock(groups_mutex);
  const std::shared_ptr<Member>& from = parent->member;
  if (const int code = not_usable(*from)) return code;
  const std::uint64_t number = ++from->splits;
  from->clique->splits[number].came[from->rank] = {color, key};
  if (color < 0) return TROUPE_CUDA_OK;
  auto member = std::make_shared<Member>();
  member->parent = from;
  member->split_number = number;
  member->color = color;
  member->device = from->device;
  member->context = from->context;
  member->init_polls = state().options().group_init_polls;
  return made(std::move(member), group);
}

// Under the lock: once all of the parent have said their colours.
void resolve_split(Member& member) {
  Clique& parent = *member.parent->clique;
  SplitMeeting& meeting = parent.splits[member.split_number];
  if (!std::cmp_equal(meeting.came.size(), parent.world_size)) return;
  std::vector<std::pair<int, int>> order;  // key and rank
  for (const auto& [rank, said] : meeting.came) {
    if (said.first == member.color) order.emplace_back(said.second, rank);
  }
  std::sort(order.begin(), order.end());
  auto& clique = meeting.cliques[member.color];
  if (!clique) clique = std::make_shared<Clique>();
  clique->world_size = static_cast<int>(order.size());
  for (std::size_t i = 0; i < order.size(); ++i) {
    const int rank = static_cast<int>(i);
    clique->devices[rank] = parent.devices[order[i].second];
    if (order[i].second == member.parent->rank) member.rank = rank;
  }
  member.clique = clique;
}

int state_of(const std::shared_ptr<Member>& member) {
  if (member->aborted) return state().fail(TROUPE_CUDA_INVALID, "the group was aborted");
  if (!member->clique) resolve_split(*member);
  if (!member->clique || !member->clique->formed())
    return state().fail(TROUPE_CUDA_NOT_READY, "not all ranks have come");
  if (!member->clique->refusal.empty())
    return state().fail(TROUPE_CUDA_INVALID, member->clique->refusal);
  if (member->init_polls > 0) {
    --member->init_polls;
    return state().fail(TROUPE_CUDA_NOT_READY, "the group is being formed");
  }
  if (member->pending.empty()) return TROUPE_CUDA_OK;
  if (!state().options().groups_connect || --member->connect_polls > 0)
    return state().fail(TROUPE_CUDA_NOT_READY, "ranks are being connected");
  member->connected = true;
  for (Batch& batch : member->pending) put_on_stream(member, std::move(batch));
  member->pending.clear();
  return TROUPE_CUDA_OK;
}

int group_state(TroupeCudaGroup* group) {
  if (const int code = state().enter("group_state", group->member->device)) return code;
  std::lock_guard lock(groups_mutex);
  if (const auto failure = state().group_failure(group->member->rank);
      failure && group->member->clique)
    return state().fail(failure->first, failure->second);
  return state_of(group->member);
}

// Under the lock.
bool others_operate(const Member& ended) {
  return std::any_of(members.begin(), members.end(), [&](const Member* member) {
    return member->context == ended.context && member->outstanding > 0 && !member->aborted;
  });
}

void end_groups(TroupeCudaGroup* const* groups, std::int32_t count) {
  {
    std::lock_guard lock(groups_mutex);
    for (std::int32_t i = 0; i < count; ++i) groups[i]->member->aborted = true;
    for (std::int32_t i = 0; i < count; ++i) {
      Member& member = *groups[i]->member;
      member.pending.clear();
      if (others_operate(member)) state().count_object(kWaitingAbort, 1);
      if (!member.clique) continue;
      // Nobody reads or writes this rank's memory from here on.
      for (auto& [ends, messages] : member.clique->channels)
        if (ends.first == member.rank) messages.clear();
      for (auto& [number, meeting] : member.clique->meetings)
        if (meeting.came.contains(member.rank)) meeting.broken = true;
    }
  }
  groups_changed.notify_all();
  for (std::int32_t i = 0; i < count; ++i) remove(groups[i]);
}

int group_abort(TroupeCudaGroup* group) {
  const int code = state().enter("group_abort");
  end_groups(&group, 1);
  return code;
}

int groups_abort(TroupeCudaGroup* const* groups, std::int32_t count) {
  if (count < 1) return state().fail(TROUPE_CUDA_INVALID, "no group to abort");
  const int code = state().enter("groups_abort");
  end_groups(groups, count);
  return code;
}

int group_destroy(TroupeCudaGroup* group) {
  // As with NCCL: where it fails the group is still there, to be aborted.
  if (const int code = state().enter("group_destroy")) return code;
  {
    std::unique_lock lock(groups_mutex);
    groups_changed.wait(lock, [&] { return group->member->outstanding == 0; });
  }
  remove(group);
  return TROUPE_CUDA_OK;
}

int group_batch_begin() {
  if (const int code = state().enter("group_batch_begin")) return code;
  ++batch_depth;
  return TROUPE_CUDA_OK;
}

int group_batch_end() {
  const int code = state().enter("group_batch_end");
  if (batch_depth == 0) return state().fail(TROUPE_CUDA_INVALID, "no batch was begun");
  if (--batch_depth > 0) return code;
  TroupeCudaGroup* group = std::exchange(batch_group, nullptr);
  Batch batch = std::exchange(open_batch, {});
  if (code != TROUPE_CUDA_OK || !group) return code;
  return launch_batch(group->member, std::move(batch));
}

int group_send(TroupeCudaGroup* group, TroupeCudaStream* stream, const void* data,
               std::int64_t bytes, std::int32_t peer) {
  if (const int code = state().enter("group_send", stream->context->device)) return code;
  if (const int code = check_peer(group, peer)) return code;
  if (const int code = check_buffer(data, bytes)) return code;
  return submit(group, stream, {.kind = Kind::kSend, .input = data, .count = bytes, .peer = peer});
}

int group_receive(TroupeCudaGroup* group, TroupeCudaStream* stream, void* data, std::int64_t bytes,
                  std::int32_t peer) {
  if (const int code = state().enter("group_receive", stream->context->device)) return code;
  if (const int code = check_peer(group, peer)) return code;
  if (const int code = check_buffer(data, bytes)) return code;
  return submit(group, stream,
                {.kind = Kind::kReceive, .output = data, .count = bytes, .peer = peer});
}

int check_collective(TroupeCudaGroup* group, const void* input, std::int64_t inputs, void* output,
                     std::int64_t outputs, std::int32_t type) {
  if (type < 0 || type > TROUPE_CUDA_U8) return state().fail(TROUPE_CUDA_INVALID, "no such type");
  if (const int code = check_peer(group, 0)) return code;
  if (const int code = check_buffer(input, inputs * size_of(type))) return code;
  return check_buffer(output, outputs * size_of(type));
}

std::int64_t ranks_of(TroupeCudaGroup* group) {
  std::lock_guard lock(groups_mutex);
  return group->member->clique ? group->member->clique->world_size : 0;
}

int group_all_reduce(TroupeCudaGroup* group, TroupeCudaStream* stream, const void* input,
                     void* output, std::int64_t count, std::int32_t type, std::int32_t reduce) {
  if (const int code = state().enter("group_all_reduce", stream->context->device)) return code;
  if (const int code = check_collective(group, input, count, output, count, type)) return code;
  return submit(group, stream, {Kind::kAllReduce, input, output, count, type, reduce});
}

int group_reduce_scatter(TroupeCudaGroup* group, TroupeCudaStream* stream, const void* input,
                         void* output, std::int64_t count, std::int32_t type, std::int32_t reduce) {
  if (const int code = state().enter("group_reduce_scatter", stream->context->device)) return code;
  if (const int code = check_collective(group, input, count * ranks_of(group), output, count, type))
    return code;
  return submit(group, stream, {Kind::kReduceScatter, input, output, count, type, reduce});
}

int group_all_gather(TroupeCudaGroup* group, TroupeCudaStream* stream, const void* input,
                     void* output, std::int64_t count, std::int32_t type) {
  if (const int code = state().enter("group_all_gather", stream->context->device)) return code;
  if (const int code = check_collective(group, input, count, output, count * ranks_of(group), type))
    return code;
  return submit(group, stream, {Kind::kAllGather, input, output, count, type});
}

int group_broadcast(TroupeCudaGroup* group, TroupeCudaStream* stream, void* data,
                    std::int64_t count, std::int32_t type, std::int32_t root) {
  if (const int code = state().enter("group_broadcast", stream->context->device)) return code;
  if (const int code = check_collective(group, data, count, data, count, type)) return code;
  if (const int code = check_peer(group, root)) return code;
  return submit(group, stream, {Kind::kBroadcast, data, data, count, type, TROUPE_CUDA_SUM, root});
}

}  // namespace

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

}  // namespace troupe::tests::fake
