#include "train/cuda/communicator/nccl_communicator.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "runtime/base/check.h"
#include "train/cuda/communicator/nccl_tree.h"
#include "train/cuda/communicator/nccl_world.h"

namespace troupe::train {

using collective::DataType;
using collective::Operation;
using collective::ReduceOp;

namespace {

// Up to here, all ranks' copies together, an all_reduce is one exchange of everything.
constexpr std::size_t kSmallTotalBytes = 256u << 10;
// Pieces of a sum begin at whole lines of the device's memory.
constexpr std::size_t kPieceElements = 128;

// In a group of the library, "not yet" is no failure: it is asked about afterwards.
Status asked(const TroupeCudaTable& table, int code, std::string_view what) {
  return code == TROUPE_CUDA_NOT_READY ? Status() : cuda_status(table, code, what);
}

// Several of the library's operations as one. The batch ends, whatever became of them.
Status in_batch(const TroupeCudaTable& table, const std::function<Status()>& operations) {
  TROUPE_RETURN_IF_ERROR(asked(table, table.group_batch_begin(), "beginning a batch of NCCL's"));
  Status status = operations();
  Status ended = asked(table, table.group_batch_end(), "starting an operation of NCCL's");
  return status.ok() ? ended : status;
}

std::int64_t as_count(std::size_t count) { return static_cast<std::int64_t>(count); }

bool equal_counts(std::span<const std::size_t> counts) {
  return std::all_of(counts.begin(), counts.end(), [&](std::size_t c) { return c == counts[0]; });
}

// What a rank says first.
struct IdMessage {
  std::int32_t code;
  std::uint8_t id[TROUPE_CUDA_GROUP_ID_BYTES];
  char text[252];
};

// The unique id that rank 0 of `host` makes.
Result<IdMessage> share_id(const TroupeCudaTable& table, collective::Communicator& host,
                           Deadline deadline) {
  IdMessage message{};
  if (host.rank() == 0) {
    const Status made = cuda_status(table, table.group_unique_id(message.id),
                                    "making the unique id of a group of NCCL");
    message.code = static_cast<std::int32_t>(made.code());
    const std::string text = made.ok() ? "" : made.message();
    std::memcpy(message.text, text.data(), std::min(text.size(), sizeof message.text - 1));
  }
  TROUPE_RETURN_IF_ERROR(host.broadcast(&message, sizeof message, DataType::kUint8, 0, deadline));
  message.text[sizeof message.text - 1] = 0;
  if (message.code != 0)
    return error(code_from_number(message.code),
                 "rank 0 failed: {}; NCCL_SOCKET_IFNAME must name an interface that is there, and "
                 "NCCL_DEBUG=INFO says more",
                 message.text)
        .with("peer", 0);
  return message;
}

class NcclCommunicator final : public DeviceGroup {
 public:
  NcclCommunicator(std::shared_ptr<NcclWorld> world, std::shared_ptr<NcclGroup> group,
                   bool outermost)
      : DeviceGroup(world->shared_group(), group->name, outermost),
        world_(std::move(world)),
        group_(std::move(group)),
        host_(*group_->host) {}

  Duration default_timeout() const override { return world_->options().operation_timeout; }
  void abort(Status reason) override { world_->abort(std::move(reason)); }
  collective::Communicator& host() override { return host_; }
  TroupeCudaStream* stream() override { return world_->stream(); }
  Status follow(TroupeCudaStream* stream) override {
    return world_->order(stream, world_->stream());
  }
  Status lead(TroupeCudaStream* stream) override { return world_->order(world_->stream(), stream); }
  Status settle(Deadline deadline) override {
    Status status = world_->wait_all(deadline);
    report(world_->completed(), !status.ok());
    return status;
  }
  Status end(Deadline deadline) override {
    if (!outermost())
      return error(Code::kInvalidArgument, "group '{}' ends with its outermost one", name());
    TROUPE_RETURN_IF_ERROR(barrier(deadline));
    return world_->end();
  }
  std::string transport() const override { return world_->transport(); }
  Result<std::unique_ptr<DeviceCommunicator>> device_subgroup(std::span<const int> ranks,
                                                              std::string_view name) override;

  // Makes the library's object of `group`, whose ranks all call this: of `parent`, where that has
  // the same ranks, else by a new id.
  static Status form(NcclWorld& world, NcclGroup& group, NcclGroup* parent);

 protected:
  const collective::Communicator& host_communicator() const override { return host_; }
  Outcome carry_out(const DeviceCall& call) override;

 private:
  Status perform(const DeviceCall& call, std::uint64_t number);
  Status alone(const DeviceCall& call);
  Status over_host(const DeviceCall& call);
  Status all_reduce(const DeviceCall& call, std::uint64_t number);
  Status all_reduce_small(const DeviceCall& call, std::uint64_t number);
  Status reduce_scatter(const DeviceCall& call, std::uint64_t number);
  Status sum_shards(const std::byte* input, std::byte* output, std::span<const std::size_t> counts,
                    DataType type, std::uint64_t number);
  Status all_gather(const std::byte* input, std::byte* output, std::span<const std::size_t> counts,
                    DataType type, std::uint64_t number);
  Status broadcast(const DeviceCall& call, std::uint64_t number);
  Status all_to_all(const DeviceCall& call, std::uint64_t number);
  Status gather(const DeviceCall& call, std::uint64_t number);

  // Where sums of classes (nccl_tree.h) lie in scratch, behind all ranks' parts.
  std::size_t small_classes_at(std::size_t bytes) const {
    return (static_cast<std::size_t>(world_size()) * bytes + 255) / 256 * 256;
  }
  Status copy(const std::byte* from, std::byte* to, std::size_t bytes);
  Status send(TroupeCudaGroup* group, const std::byte* data, std::size_t bytes, int peer);
  Status receive(TroupeCudaGroup* group, std::byte* data, std::size_t bytes, int peer);
  Status enqueue(std::uint64_t number, const NcclWorld::Enqueue& what) {
    return world_->enqueue(*group_, number, what);
  }
  const TroupeCudaTable& table() const { return world_->table(); }
  // The others, each rank beginning elsewhere, so that not all send to one at first.
  std::vector<int> peers() const {
    std::vector<int> order;
    for (int step = 1; step < world_size(); ++step) order.push_back((rank() + step) % world_size());
    return order;
  }

  const std::shared_ptr<NcclWorld> world_;
  const std::shared_ptr<NcclGroup> group_;
  collective::Communicator& host_;
};

bool sums_on_device(const DeviceCall& call) {
  return call.op == ReduceOp::kSum &&
         (call.type == DataType::kFloat32 || call.type == DataType::kBfloat16);
}
TroupeCudaType sum_type(DataType type) {
  return type == DataType::kFloat32 ? TROUPE_CUDA_F32 : TROUPE_CUDA_BF16;
}

DeviceGroup::Outcome NcclCommunicator::carry_out(const DeviceCall& call) {
  report(world_->completed(), false);
  Outcome outcome;
  const auto number = world_->begin({call.operation, name(), call.sequence}, call.deadline);
  outcome.status = number.ok() ? perform(call, *number) : number.status();
  if (!outcome.status.ok()) {
    report(world_->completed(), true);
  } else if (asynchronous() && call.operation != Operation::kBarrier) {
    outcome.number = *number;
  }
  return outcome;
}

Status NcclCommunicator::perform(const DeviceCall& call, std::uint64_t number) {
  if (world_size() > 1 && call.sequence <= world_->options().compared_operations)
    TROUPE_RETURN_IF_ERROR(world_->host_result(compare_calls(host_, call, name())));
  const bool barrier = call.operation == Operation::kBarrier;
  const bool reduces =
      call.operation == Operation::kAllReduce || call.operation == Operation::kReduceScatter;
  Status status;
  if (barrier) {
    status = world_->wait_before(number);
    if (status.ok()) status = world_->host_result(host_.barrier(call.deadline));
  } else if (world_size() == 1) {
    status = alone(call);
  } else if (reduces && !sums_on_device(call)) {
    status = over_host(call);
  } else if (call.operation == Operation::kAllReduce) {
    status = all_reduce(call, number);
  } else if (call.operation == Operation::kReduceScatter) {
    status = reduce_scatter(call, number);
  } else if (call.operation == Operation::kAllGather) {
    status = all_gather(call.input, call.output, call.counts, call.type, number);
  } else if (call.operation == Operation::kBroadcast) {
    status = broadcast(call, number);
  } else if (call.operation == Operation::kAllToAll) {
    status = all_to_all(call, number);
  } else {
    status = gather(call, number);
  }
  TROUPE_RETURN_IF_ERROR(status);
  return world_->finish(*group_, number, barrier || !asynchronous());
}

Status NcclCommunicator::copy(const std::byte* from, std::byte* to, std::size_t bytes) {
  if (from == to || bytes == 0) return {};
  return world_->local(table().copy(stream(), from, to, as_count(bytes)),
                       "copying what stays on the device");
}

Status NcclCommunicator::alone(const DeviceCall& call) {
  return copy(call.input, call.output, call.count * call.element_bytes());
}

Status NcclCommunicator::over_host(const DeviceCall& call) {
  auto stage = world_->stage();
  if (!stage.ok()) return world_->fail(stage.status(), false);
  return world_->host_result((*stage)->carry_out(host_, call));
}

Status NcclCommunicator::send(TroupeCudaGroup* group, const std::byte* data, std::size_t bytes,
                              int peer) {
  if (bytes == 0) return {};
  return asked(table(), table().group_send(group, stream(), data, as_count(bytes), peer),
               fmt::format("sending to rank {}", peer));
}

Status NcclCommunicator::receive(TroupeCudaGroup* group, std::byte* data, std::size_t bytes,
                                 int peer) {
  if (bytes == 0) return {};
  return asked(table(), table().group_receive(group, stream(), data, as_count(bytes), peer),
               fmt::format("receiving from rank {}", peer));
}

Status NcclCommunicator::all_reduce(const DeviceCall& call, std::uint64_t number) {
  const std::size_t bytes = call.count * call.element_bytes();
  if (bytes == 0) return {};
  if (world_->options().reduction == DeviceReduction::kLibrary)
    return enqueue(number, [&](TroupeCudaGroup* group) {
      return asked(
          table(),
          table().group_all_reduce(group, stream(), call.output, call.output, as_count(call.count),
                                   sum_type(call.type), TROUPE_CUDA_SUM),
          "summing over the ranks");
    });
  const auto ranks = static_cast<std::size_t>(world_size());
  const std::size_t scratch_needed =
      small_classes_at(bytes) + tree_classes(ranks) * call.count * sizeof(float);
  if (ranks * bytes <= kSmallTotalBytes &&
      scratch_needed <= static_cast<std::size_t>(world_->scratch_bytes()))
    return all_reduce_small(call, number);
  std::vector<std::size_t> counts;
  std::size_t begin = 0;
  for (int r = 0; r < world_size(); ++r) {
    counts.push_back(collective::even_shard_count(call.count, world_size(), r));
    if (r < rank()) begin += counts.back();
  }
  std::byte* shard = call.output + begin * call.element_bytes();
  TROUPE_RETURN_IF_ERROR(sum_shards(call.output, shard, counts, call.type, number));
  return all_gather(shard, call.output, counts, call.type, number);
}

// Every rank gets everything and sums alone.
Status NcclCommunicator::all_reduce_small(const DeviceCall& call, std::uint64_t number) {
  const std::size_t bytes = call.count * call.element_bytes();
  const auto ranks = static_cast<std::size_t>(world_size());
  const std::size_t classes_at = small_classes_at(bytes);
  TROUPE_RETURN_IF_ERROR(enqueue(number, [&](TroupeCudaGroup* group) {
    return asked(table(),
                 table().group_all_gather(group, stream(), call.output, world_->scratch(),
                                          as_count(bytes), TROUPE_CUDA_U8),
                 "gathering what is summed");
  }));
  std::vector<const void*> parts;
  for (std::size_t r = 0; r < ranks; ++r) parts.push_back(world_->scratch() + r * bytes);
  return world_->local(tree_sum_of_any(table(), stream(), parts, sum_type(call.type),
                                       reinterpret_cast<float*>(world_->scratch() + classes_at),
                                       call.output, as_count(call.count)),
                       "summing over the ranks");
}

Status NcclCommunicator::reduce_scatter(const DeviceCall& call, std::uint64_t number) {
  if (call.count == 0) return {};
  if (world_->options().reduction == DeviceReduction::kLibrary && equal_counts(call.counts))
    return enqueue(number, [&](TroupeCudaGroup* group) {
      return asked(table(),
                   table().group_reduce_scatter(group, stream(), call.input, call.output,
                                                as_count(call.counts[0]), sum_type(call.type),
                                                TROUPE_CUDA_SUM),
                   "summing over the ranks");
    });
  return sum_shards(call.input, call.output, call.counts, call.type, number);
}

// Every rank sends each other its part of that one's shard, a piece of all shards at a time, and
// sums the parts of its own. `output` may be this rank's shard in `input`, which nobody is sent.
Status NcclCommunicator::sum_shards(const std::byte* input, std::byte* output,
                                    std::span<const std::size_t> counts, DataType type,
                                    std::uint64_t number) {
  const std::size_t element = collective::size_of(type);
  const auto ranks = static_cast<std::size_t>(world_size()), me = static_cast<std::size_t>(rank());
  const std::size_t per_element = (ranks - 1) * element + tree_classes(ranks) * sizeof(float);
  // The same on all ranks: they go in step.
  const std::size_t piece = static_cast<std::size_t>(world_->scratch_bytes()) / per_element /
                            kPieceElements * kPieceElements;
  if (piece == 0)
    return world_->fail(
        error(Code::kResourceExhausted, "{} bytes of scratch are too few for sums of {} ranks",
              world_->scratch_bytes(), ranks),
        false);
  std::vector<const std::byte*> shards;
  for (std::size_t r = 0, at = 0; r < ranks; at += counts[r++] * element)
    shards.push_back(input + at);
  const auto slot = [&](std::size_t r) {  // of rank r's part
    return world_->scratch() + (r < me ? r : r - 1) * piece * element;
  };
  auto* classes = reinterpret_cast<float*>(world_->scratch() + (ranks - 1) * piece * element);
  const std::size_t longest = *std::max_element(counts.begin(), counts.end());
  for (std::size_t begin = 0; begin < longest; begin += piece) {
    const auto elements = [&](std::size_t r) {
      return counts[r] > begin ? std::min(counts[r] - begin, piece) : 0;
    };
    TROUPE_RETURN_IF_ERROR(enqueue(number, [&](TroupeCudaGroup* group) {
      return in_batch(table(), [&]() -> Status {
        for (const int peer : peers()) {
          const auto p = static_cast<std::size_t>(peer);
          TROUPE_RETURN_IF_ERROR(
              send(group, shards[p] + begin * element, elements(p) * element, peer));
          TROUPE_RETURN_IF_ERROR(receive(group, slot(p), elements(me) * element, peer));
        }
        return {};
      });
    }));
    if (elements(me) == 0) continue;
    std::vector<const void*> parts;
    for (std::size_t r = 0; r < ranks; ++r)
      parts.push_back(r == me ? shards[me] + begin * element : slot(r));
    TROUPE_RETURN_IF_ERROR(
        world_->local(tree_sum_of_any(table(), stream(), parts, sum_type(type), classes,
                                      output + begin * element, as_count(elements(me))),
                      "summing over the ranks"));
  }
  return {};
}

Status NcclCommunicator::all_gather(const std::byte* input, std::byte* output,
                                    std::span<const std::size_t> counts, DataType type,
                                    std::uint64_t number) {
  const std::size_t element = collective::size_of(type);
  std::vector<std::byte*> shards;
  std::size_t total = 0;
  for (const std::size_t count : counts) {
    shards.push_back(output + total);
    total += count * element;
  }
  if (total == 0) return {};
  const auto me = static_cast<std::size_t>(rank());
  TROUPE_RETURN_IF_ERROR(copy(input, shards[me], counts[me] * element));
  return enqueue(number, [&](TroupeCudaGroup* group) {
    if (equal_counts(counts))
      return asked(table(),
                   table().group_all_gather(group, stream(), shards[me], output,
                                            as_count(counts[0] * element), TROUPE_CUDA_U8),
                   "gathering shards");
    // Uneven shards: each from its owner to all, as one.
    return in_batch(table(), [&]() -> Status {
      for (std::size_t r = 0; r < counts.size(); ++r) {
        if (counts[r] == 0) continue;
        TROUPE_RETURN_IF_ERROR(
            asked(table(),
                  table().group_broadcast(group, stream(), shards[r], as_count(counts[r] * element),
                                          TROUPE_CUDA_U8, static_cast<std::int32_t>(r)),
                  "gathering uneven shards"));
      }
      return {};
    });
  });
}

Status NcclCommunicator::broadcast(const DeviceCall& call, std::uint64_t number) {
  const std::size_t bytes = call.count * call.element_bytes();
  if (bytes == 0) return {};
  return enqueue(number, [&](TroupeCudaGroup* group) {
    return asked(table(),
                 table().group_broadcast(group, stream(), call.output, as_count(bytes),
                                         TROUPE_CUDA_U8, call.root),
                 "broadcasting");
  });
}

Status NcclCommunicator::all_to_all(const DeviceCall& call, std::uint64_t number) {
  if (call.count == 0) return {};
  const std::size_t element = call.element_bytes(), mine = call.counts_of(rank()) * element;
  const auto row = [&](int r) { return call.output + static_cast<std::size_t>(r) * mine; };
  TROUPE_RETURN_IF_ERROR(copy(call.input + call.begin_of(rank()) * element, row(rank()), mine));
  return enqueue(number, [&](TroupeCudaGroup* group) {
    return in_batch(table(), [&]() -> Status {
      for (const int peer : peers()) {
        TROUPE_RETURN_IF_ERROR(send(group, call.input + call.begin_of(peer) * element,
                                    call.counts_of(peer) * element, peer));
        TROUPE_RETURN_IF_ERROR(receive(group, row(peer), mine, peer));
      }
      return {};
    });
  });
}

Status NcclCommunicator::gather(const DeviceCall& call, std::uint64_t number) {
  if (call.count == 0) return {};
  const std::size_t element = call.element_bytes(), mine = call.counts_of(rank()) * element;
  const bool root = rank() == call.root;
  if (root)
    TROUPE_RETURN_IF_ERROR(copy(call.input, call.output + call.begin_of(rank()) * element, mine));
  return enqueue(number, [&](TroupeCudaGroup* group) {
    return in_batch(table(), [&]() -> Status {
      if (!root) return send(group, call.input, mine, call.root);
      for (const int peer : peers())
        TROUPE_RETURN_IF_ERROR(receive(group, call.output + call.begin_of(peer) * element,
                                       call.counts_of(peer) * element, peer));
      return {};
    });
  });
}

Status NcclCommunicator::form(NcclWorld& world, NcclGroup& group, NcclGroup* parent) {
  const TroupeCudaTable& table = world.table();
  const int rank = group.host->rank(), ranks = group.host->world_size();
  if (parent && parent->host->world_size() == ranks)
    return world.form(group, [&](TroupeCudaGroup** made) {
      return table.group_begin_split(parent->handle, 0, rank, group.name.c_str(), made);
    });
  const IdMessage id = TROUPE_TRY(share_id(
      table, *group.host, Deadline::after(world.options().form_timeout + kAgreementGrace)));
  return world.form(group, [&](TroupeCudaGroup** made) {
    return table.group_begin_init(world.options().context, id.id, ranks, rank, group.name.c_str(),
                                  made);
  });
}

Result<std::unique_ptr<DeviceCommunicator>> NcclCommunicator::device_subgroup(
    std::span<const int> ranks, std::string_view name) {
  // It refuses what cannot be.
  std::shared_ptr<collective::Communicator> host = TROUPE_TRY(host_.subgroup(ranks, name));
  TROUPE_RETURN_IF_ERROR(settle(Deadline::after(world_->options().operation_timeout)));
  auto group = std::make_shared<NcclGroup>(NcclGroup{std::string(name), std::move(host), nullptr});
  if (ranks.size() > 1) {
    const Status formed = form(*world_, *group, group_.get());
    if (!formed.ok()) return world_->fail(formed, false);
  }
  world_->keep(group);
  return std::unique_ptr<DeviceCommunicator>(
      std::make_unique<NcclCommunicator>(world_, std::move(group), false));
}

// What all ranks have of NCCL, or why that will not do.
Result<int> agree_on_version(const TroupeCudaTable& table, collective::Communicator& host,
                             Deadline deadline) {
  TroupeCudaVersions versions{};
  if (table.versions(&versions) != TROUPE_CUDA_OK) versions.nccl = 0;
  const std::vector<std::size_t> counts(static_cast<std::size_t>(host.world_size()), 1);
  std::vector<std::int32_t> all(counts.size());
  TROUPE_RETURN_IF_ERROR(
      host.all_gather(&versions.nccl, all.data(), counts, DataType::kInt32, deadline));
  TROUPE_RETURN_IF_ERROR(check_nccl_versions(all));
  return all[0];
}

}  // namespace

std::string nccl_version_text(int version) {
  // Up to 2.8 the numbers were others; those are too old in either reading.
  return fmt::format("{}.{}.{}", version / 10000, version % 10000 / 100, version % 100);
}

Status check_nccl_versions(std::span<const std::int32_t> by_rank) {
  for (std::size_t r = 0; r < by_rank.size(); ++r) {
    if (by_rank[r] >= kNcclVersionMin) continue;
    const std::string has = by_rank[r] <= 0 ? "no NCCL" : "NCCL " + nccl_version_text(by_rank[r]);
    return error(Code::kUnsupported,
                 "rank {} has {}; {} or later is needed: `tools/setup --cuda` brings it", r, has,
                 nccl_version_text(kNcclVersionMin));
  }
  for (std::size_t r = 1; r < by_rank.size(); ++r) {
    if (by_rank[r] == by_rank[0]) continue;
    return error(Code::kFailedPrecondition,
                 "rank 0 has NCCL {} and rank {} has {}: install the same on all nodes",
                 nccl_version_text(by_rank[0]), r, nccl_version_text(by_rank[r]));
  }
  return {};
}

Result<std::unique_ptr<DeviceCommunicator>> make_nccl_communicator(const NcclOptions& options) {
  TROUPE_CHECK(options.library && options.context && options.host);
  collective::Communicator& host = *options.host;
  const Deadline deadline = Deadline::after(options.form_timeout + kAgreementGrace);
  const auto here = [&](Status status) {
    return status.with("group", options.name)
        .with("rank", host.rank())
        .with("generation", host.generation());
  };
  const auto version = agree_on_version(options.library->table(), host, deadline);
  if (!version.ok()) return here(version.status());
  auto world = NcclWorld::make(options, *version);
  const auto all_made = all_done(host, world.status(), deadline);
  if (!all_made.ok()) return here(all_made.status());
  auto group = std::make_shared<NcclGroup>(NcclGroup{
      options.name, std::shared_ptr<collective::Communicator>(&host, [](auto*) {}), nullptr});
  if (host.world_size() > 1)
    TROUPE_RETURN_IF_ERROR(here(NcclCommunicator::form(**world, *group, nullptr)));
  (*world)->keep(group);
  if (host.world_size() == 1) (*world)->formed_alone();
  (*world)->watch();
  return std::unique_ptr<DeviceCommunicator>(
      std::make_unique<NcclCommunicator>(*world, std::move(group), true));
}

}  // namespace troupe::train
