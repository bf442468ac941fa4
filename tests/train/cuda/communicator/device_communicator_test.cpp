// What every device communicator must do: the conformance of all communicators, and what is the
// devices' own: streams, asynchronous operations, counters, the good end. The fake GPU's.

#include "train/cuda/communicator/device_communicator.h"

#include <doctest/doctest.h>

#include <atomic>
#include <numeric>

#include "tests/runtime/collective/conformance.h"
#include "tests/train/cuda/communicator/device_ranks.h"
#include "train/cuda/communicator/host_stage.h"

namespace troupe::train {
namespace {

using collective::Communicator;
using collective::Counters;
using collective::DataType;
using collective::Operation;
using collective::ReduceOp;
using std::chrono::seconds;
using troupe::tests::Rank;

enum class Way { kNcclTree, kNcclLibrary, kOverHost };

std::unique_ptr<DeviceCommunicator> make_way(Way way, const Rank& rank) {
  if (way == Way::kOverHost)
    return make_staged_communicator(troupe::tests::staged_options(rank)).value();
  NcclOptions options = troupe::tests::nccl_options(rank);
  if (way == Way::kNcclLibrary) options.reduction = DeviceReduction::kLibrary;
  return make_nccl_communicator(options).value();
}

// A device communicator for buffers of the host: each operation's are brought to the device and
// back. What lies within another buffer does there, too.
class OnDevice final : public Communicator {
 public:
  OnDevice(std::unique_ptr<DeviceCommunicator> inner, troupe::tests::RankDeviceMemory& device)
      : inner_(std::move(inner)), device_(device) {}

  int rank() const override { return inner_->rank(); }
  int world_size() const override { return inner_->world_size(); }
  std::uint64_t generation() const override { return inner_->generation(); }
  Duration default_timeout() const override { return inner_->default_timeout(); }
  Status all_reduce(void* data, std::size_t count, DataType type, ReduceOp op,
                    Deadline deadline) override {
    const Region region = down(data, count * size_of(type));
    return up(inner_->all_reduce(region.device, count, type, op, deadline), {region});
  }
  Status reduce_scatter(const void* input, void* output, std::span<const std::size_t> counts,
                        DataType type, ReduceOp op, Deadline deadline) override {
    const Region in = down(input, total(counts, type));
    const Region out = within(in, output, mine(counts, type));
    return up(inner_->reduce_scatter(in.device, out.device, counts, type, op, deadline), {in, out});
  }
  Status all_gather(const void* input, void* output, std::span<const std::size_t> counts,
                    DataType type, Deadline deadline) override {
    const Region out = down(output, total(counts, type));
    const Region in = within(out, input, mine(counts, type));
    return up(inner_->all_gather(in.device, out.device, counts, type, deadline), {in, out});
  }
  Status broadcast(void* data, std::size_t count, DataType type, int root,
                   Deadline deadline) override {
    const Region region = down(data, count * size_of(type));
    return up(inner_->broadcast(region.device, count, type, root, deadline), {region});
  }
  Status all_to_all(const void* input, void* output, std::span<const std::size_t> counts,
                    DataType type, Deadline deadline) override {
    const Region in = down(input, total(counts, type));
    const Region out =
        after(in, output, mine(counts, type) * static_cast<std::size_t>(world_size()));
    return up(inner_->all_to_all(in.device, out.device, counts, type, deadline), {in, out});
  }
  Status gather(const void* input, void* output, std::span<const std::size_t> counts, DataType type,
                int root, Deadline deadline) override {
    const Region in = down(input, mine(counts, type));
    const Region out = after(in, output, rank() == root ? total(counts, type) : 0);
    return up(inner_->gather(in.device, out.device, counts, type, root, deadline), {in, out});
  }
  Status barrier(Deadline deadline) override { return inner_->barrier(deadline); }
  Status register_segment(const memory::Segment& segment, Deadline deadline) override {
    return inner_->register_segment(segment, deadline);
  }
  void unregister_segment(const memory::Segment& segment) override {
    inner_->unregister_segment(segment);
  }
  Result<std::unique_ptr<Communicator>> subgroup(std::span<const int> ranks,
                                                 std::string_view name) override {
    return std::unique_ptr<Communicator>(
        std::make_unique<OnDevice>(TROUPE_TRY(inner_->device_subgroup(ranks, name)), device_));
  }
  void abort(Status reason) override { inner_->abort(std::move(reason)); }
  std::optional<int> lost_rank() const override { return inner_->lost_rank(); }
  Counters counters() const override { return inner_->counters(); }
  void observe(collective::OperationObserver* observer) override { inner_->observe(observer); }

 private:
  struct Region {
    void* host = nullptr;
    std::byte* device = nullptr;
    std::size_t bytes = 0;
    std::size_t end = 0;  // in the device's room
  };
  static std::size_t total(std::span<const std::size_t> counts, DataType type) {
    return std::accumulate(counts.begin(), counts.end(), std::size_t{0}) * size_of(type);
  }
  std::size_t mine(std::span<const std::size_t> counts, DataType type) const {
    return counts[static_cast<std::size_t>(rank())] * size_of(type);
  }
  Region at(std::size_t offset, const void* host, std::size_t bytes) {
    offset = (offset + 63) / 64 * 64;
    const Region region{const_cast<void*>(host), device_.room<std::byte>(offset, bytes).data(),
                        bytes, offset + bytes};
    if (bytes != 0) std::memcpy(region.device, host, bytes);
    return region;
  }
  Region down(const void* host, std::size_t bytes) { return at(0, host, bytes); }
  Region after(const Region& other, const void* host, std::size_t bytes) {
    return at(other.end, host, bytes);
  }
  Region within(const Region& outer, const void* host, std::size_t bytes) {
    const auto begin = reinterpret_cast<std::uintptr_t>(outer.host),
               inner = reinterpret_cast<std::uintptr_t>(host);
    if (inner < begin || inner > begin + outer.bytes) return after(outer, host, bytes);
    return {const_cast<void*>(host), outer.device + (inner - begin), bytes, outer.end};
  }
  static Status up(Status status, std::initializer_list<Region> regions) {
    for (const Region& region : regions)
      if (region.bytes != 0) std::memcpy(region.host, region.device, region.bytes);
    return status;
  }

  const std::unique_ptr<DeviceCommunicator> inner_;
  troupe::tests::RankDeviceMemory& device_;
};

void check_way(Way way, int ranks) {
  const collective::tests::RunRanks run = [&](int world_size,
                                              const std::function<void(Communicator&)>& body) {
    troupe::tests::run_devices(world_size, [&](Rank rank) {
      OnDevice communicator(make_way(way, rank), rank.device);
      body(communicator);
    });
  };
  collective::tests::check_conformance(run, ranks);
}

TEST_CASE("NCCL with the fixed tree does what every communicator does, bit for bit") {
  for (const int ranks : {1, 2, 3, 5}) {
    CAPTURE(ranks);
    check_way(Way::kNcclTree, ranks);
    // Sums were taken by send, receive and tree, never by the library.
    CHECK(troupe::tests::fake_cuda_calls("group_reduce_scatter") == 0);
    CHECK(troupe::tests::fake_cuda_calls("group_all_reduce") == 0);
    CHECK((troupe::tests::fake_cuda_calls("tree_sum") > 0) == (ranks > 1));
  }
}

TEST_CASE("over the host, ranks on one device do what every communicator does, bit for bit") {
  for (const int ranks : {1, 2, 4}) {
    CAPTURE(ranks);
    const collective::tests::RunRanks run = [&](int world_size,
                                                const std::function<void(Communicator&)>& body) {
      troupe::tests::run_devices(world_size,
                                 [&](Rank rank) {
                                   OnDevice communicator(make_way(Way::kOverHost, rank),
                                                         rank.device);
                                   body(communicator);
                                 },
                                 {.devices = 1});
    };
    collective::tests::check_conformance(run, ranks);
  }
}

TEST_CASE("sums by the library are right to rounding") {
  troupe::tests::run_devices(3, [](Rank rank) {
    auto c = make_way(Way::kNcclLibrary, rank);
    const auto data = rank.device.room<float>(0, 3000);
    const auto part = rank.device.room<float>(16384, 1000);
    for (std::size_t i = 0; i < data.size(); ++i) data[i] = static_cast<float>(i + c->rank());
    const std::vector<std::size_t> counts(3, 1000);
    REQUIRE(c->reduce_scatter(std::span<const float>(data), part, counts).ok());
    CHECK(part[7] == doctest::Approx(3.0 * (1000 * c->rank() + 7) + 3));
    REQUIRE(c->all_reduce(data).ok());
    CHECK(data[2999] == doctest::Approx(3.0 * 2999 + 3));
    CHECK(c->end(Deadline::after(seconds(10))).ok());
    CHECK(troupe::tests::fake_cuda_calls("tree_sum") == 0);
  });
}

TEST_CASE("operations keep their place among streams, asynchronously") {
  for (const Way way : {Way::kNcclTree, Way::kOverHost}) {
    troupe::tests::run_devices(3, [&](Rank rank) {
      auto c = make_way(way, rank);
      c->set_asynchronous(true);
      auto& device = rank.device;
      constexpr std::size_t kCount = 100'000;
      const auto from = device.room<float>(0, kCount), data = device.room<float>(1 << 20, kCount),
                 to = device.room<float>(2 << 20, kCount);
      for (int round = 1; round <= 3; ++round) {
        REQUIRE(device.table.stream_synchronize(device.stream) == TROUPE_CUDA_OK);
        std::fill(from.begin(), from.end(), static_cast<float>(round * (c->rank() + 1)));
        // The compute stream is behind its caller, the operation behind it, a copy behind that.
        for (int again = 0; again < 20; ++again)
          REQUIRE(device.table.copy(device.stream, from.data(), data.data(), kCount * 4) ==
                  TROUPE_CUDA_OK);
        REQUIRE(c->follow(device.stream).ok());
        REQUIRE(c->all_reduce(data).ok());
        REQUIRE(c->lead(device.stream).ok());
        REQUIRE(device.table.copy(device.stream, data.data(), to.data(), kCount * 4) ==
                TROUPE_CUDA_OK);
        REQUIRE(device.table.stream_synchronize(device.stream) == TROUPE_CUDA_OK);
        CHECK(to[0] == static_cast<float>(6 * round));
        CHECK(to[kCount - 1] == static_cast<float>(6 * round));
      }
      CHECK(c->settle(Deadline::after(seconds(10))).ok());
      CHECK(c->end(Deadline::after(seconds(10))).ok());
      CHECK(c->barrier().code() == Code::kFailedPrecondition);
    });
  }
}

class Recorder final : public collective::OperationObserver {
 public:
  void begins(Operation operation, std::string_view group, std::uint64_t sequence,
              std::uint64_t bytes) override {
    lines.push_back(
        fmt::format("begins {} '{}' {} {}", operation_name(operation), group, sequence, bytes));
  }
  void ends(Operation operation, std::string_view group, std::uint64_t sequence, bool ok) override {
    lines.push_back(fmt::format("ends {} '{}' {} {}", operation_name(operation), group, sequence,
                                ok ? "ok" : "failed"));
  }
  void moved(std::uint64_t bytes) override { lines.push_back(fmt::format("moved {}", bytes)); }
  std::vector<std::string> lines;
};

TEST_CASE("observers see operations, counters count by the formulas") {
  for (const Way way : {Way::kNcclTree, Way::kOverHost}) {
    troupe::tests::run_devices(2, [&](Rank rank) {
      auto c = make_way(way, rank);
      Recorder recorder;
      c->observe(&recorder);
      const int pair[] = {1, 0};
      auto group = c->device_subgroup(pair, "pair").value();
      const auto data = rank.device.room<float>(0, 128);
      REQUIRE(group->all_reduce(data).ok());
      REQUIRE(c->broadcast(data, 0).ok());
      const std::uint64_t sent = rank.rank() == 0 ? 512 : 0;
      std::vector<std::string> want{"begins all_reduce 'pair' 1 512", "moved 512",
                                    "ends all_reduce 'pair' 1 ok", "begins broadcast '' 1 512",
                                    "ends broadcast '' 1 ok"};
      if (sent != 0) want.insert(want.begin() + 4, "moved 512");
      CHECK(recorder.lines == want);
      const auto counters = c->counters();
      const auto& counted = counters[static_cast<std::size_t>(Operation::kBroadcast)];
      CHECK(counted.calls == 1);
      CHECK(counted.algorithm_bytes_sent == sent);
      CHECK(counters[static_cast<std::size_t>(Operation::kAllReduce)].calls == 0);
      // What is under way is told to be done once that is known.
      recorder.lines.clear();
      c->set_asynchronous(true);
      REQUIRE(c->all_reduce(data).ok());
      CHECK(recorder.lines[0] == "begins all_reduce '' 2 512");
      REQUIRE(c->settle(Deadline::after(seconds(10))).ok());
      CHECK(recorder.lines.back() == "ends all_reduce '' 2 ok");
      CHECK(recorder.lines.size() == 3);
      c->observe(nullptr);
      CHECK(group->end(Deadline::after(seconds(1))).code() == Code::kInvalidArgument);
      CHECK(c->end(Deadline::after(seconds(10))).ok());
    });
  }
}

TEST_CASE("memory of the host is registered with host()") {
  troupe::tests::run_devices(1, [](Rank rank) {
    auto c = make_way(Way::kOverHost, rank);
    const Status refused = c->register_segment(memory::Segment());
    CHECK(refused.code() == Code::kUnsupported);
    CHECK(refused.message().find("host()") != std::string::npos);
    CHECK(&c->host() == &rank.host);
  });
}

TEST_CASE("a subgroup that cannot be is refused, and nothing is lost") {
  for (const Way way : {Way::kNcclTree, Way::kOverHost}) {
    troupe::tests::run_devices(2, [&](Rank rank) {
      auto c = make_way(way, rank);
      const int twice[] = {0, 0};
      CHECK(c->subgroup(twice, "part").status().code() == Code::kInvalidArgument);
      CHECK(c->barrier().ok());
    });
  }
}

TEST_CASE("over the host, ranks that do not mean the same are told, however large") {
  for (const std::size_t elements : {100ul, 50'000ul}) {
    troupe::tests::run_devices(2, [&](Rank rank) {
      auto c = make_way(Way::kOverHost, rank);
      const auto data = rank.device.room<float>(0, elements + 64);
      const Status status =
          c->all_reduce(data.first(elements + 64u * static_cast<unsigned>(rank.rank())));
      CHECK((status.code() == Code::kProtocol || status.code() == Code::kAborted));
      CHECK(c->barrier().code() == Code::kAborted);
    });
  }
}

// Rank 1 goes after the first piece. What that brought is on its way up, and whoever has waited for
// the communicator's stream may take the memory away.
TEST_CASE("over the host, the stream waits for what goes up, after a failure too") {
  constexpr std::size_t kChunk = 4096;
  for (std::uint64_t seed = 1; seed <= 6; ++seed) {
    const auto body = [&](Rank rank) {
      const auto data = rank.device.room<float>(0, 2 * kChunk);
      std::fill(data.begin(), data.end(), 1.0f);
      if (rank.rank() == 1) {
        REQUIRE(rank.host.all_reduce(data.first(kChunk)).ok());
        rank.host.abort(error(Code::kCancelled, "enough"));
        return;
      }
      const auto stage =
          HostStage::make(troupe::tests::fake_library(), rank.device.context, rank.device.stream,
                          static_cast<std::int64_t>(kChunk * sizeof(float)))
              .value();
      auto* bytes = reinterpret_cast<std::byte*>(data.data());
      const Status status = stage->carry_out(rank.host, {.operation = Operation::kAllReduce,
                                                         .input = bytes,
                                                         .output = bytes,
                                                         .count = data.size(),
                                                         .type = DataType::kFloat32,
                                                         .deadline = Deadline::after(seconds(30))});
      CHECK(status.code() == Code::kAborted);
      CHECK(rank.device.table.stream_synchronize(rank.device.stream) == TROUPE_CUDA_OK);
      CHECK(data[0] == 2.0f);
    };
    troupe::tests::run_devices(2, body, {.devices = 8, .lazy_streams_seed = seed});
  }
}

TEST_CASE("over the host, a device that is lost ends the communicator and its host's") {
  std::atomic<int> ready{0};
  troupe::tests::run_devices(2, [&](Rank rank) {
    auto c = make_way(Way::kOverHost, rank);
    const auto data = rank.device.room<float>(0, 100);
    REQUIRE(c->all_reduce(data).ok());
    ++ready;
    while (ready != 2) std::this_thread::yield();
    if (rank.rank() == 1) troupe::tests::fake_cuda_lose_device(1);
    const Status status = c->all_reduce(data);
    CHECK(status.code() == (rank.rank() == 1 ? Code::kUnavailable : Code::kAborted));
    CHECK(c->barrier().code() != Code::kOk);
    CHECK(rank.host.barrier().code() == Code::kAborted);
  });
}

}  // namespace
}  // namespace troupe::train
