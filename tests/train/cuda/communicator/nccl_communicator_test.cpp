// What fails with NCCL, how it is told, and what is left: over the fake GPU, ranks are threads.

#include "train/cuda/communicator/nccl_communicator.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <thread>

#include "runtime/collective/reduce_tree.h"

#include "tests/train/cuda/communicator/device_ranks.h"
#include "train/cuda/communicator/nccl_tree.h"

namespace troupe::train {
namespace {

using collective::ReduceOp;
using std::chrono::milliseconds;
using std::chrono::seconds;
using troupe::tests::Rank;

bool reads(const Status& status, std::string_view words) {
  return status.message().find(words) != std::string::npos;
}

void wait_until(const std::atomic<int>& counter, int value) {
  const Deadline deadline = Deadline::after(seconds(20));
  while (counter < value && !deadline.passed()) std::this_thread::yield();
  CHECK(counter >= value);
}

TEST_CASE("versions of NCCL must do, and agree") {
  const auto check = [](std::vector<std::int32_t> versions) {
    return check_nccl_versions(versions);
  };
  CHECK(check({22809, 22809}).ok());
  CHECK(check({21800}).ok());
  const Status old = check({22809, 21703});
  CHECK(old.code() == Code::kUnsupported);
  CHECK(reads(old, "rank 1 has NCCL 2.17.3; 2.18.0 or later is needed"));
  CHECK(reads(check({0, 22809}), "rank 0 has no NCCL"));
  const Status differ = check({22809, 22809, 22703});
  CHECK(differ.code() == Code::kFailedPrecondition);
  CHECK(reads(differ, "rank 0 has NCCL 2.28.9 and rank 2 has 2.27.3"));
}

TEST_CASE("a version that will not do is found by all, and the host's communicator stays") {
  troupe::tests::run_devices(
      2,
      [](Rank rank) {
        const Status status = make_nccl_communicator(troupe::tests::nccl_options(rank)).status();
        CHECK(status.code() == Code::kUnsupported);
        CHECK(status.context("rank") == std::to_string(rank.rank()));
        CHECK(status.context("generation") == "7");
        CHECK(rank.host.barrier().ok());
      },
      {.devices = 2, .nccl_version = 21703});
}

TEST_CASE("an id that cannot be made is rank 0's failure, told to all") {
  troupe::tests::run_devices(3, [](Rank rank) {
    if (rank.rank() == 0)
      troupe::tests::fake_cuda_inject({.function = "group_unique_id",
                                       .code = TROUPE_CUDA_FAILED,
                                       .text = "Bootstrap : no socket interface found"});
    const Status status = make_nccl_communicator(troupe::tests::nccl_options(rank)).status();
    CHECK(status.code() == Code::kInternal);
    CHECK(reads(status, "rank 0 failed"));
    CHECK(reads(status, "no socket interface found"));
    CHECK(reads(status, "NCCL_SOCKET_IFNAME"));
    CHECK(rank.host.barrier().ok());
  });
}

TEST_CASE("a rank that cannot join is told to the others at once") {
  troupe::tests::run_devices(3, [](Rank rank) {
    // The others' joins may be the ones that fail; one does.
    if (rank.rank() == 0)
      troupe::tests::fake_cuda_inject(
          {.function = "group_begin_init", .after_calls = 2, .text = "no room"});
    REQUIRE(rank.host.barrier().ok());
    const Status status = make_nccl_communicator(troupe::tests::nccl_options(rank)).status();
    CHECK(status.code() == Code::kInternal);
    CHECK(reads(status, "no room"));
    CHECK(rank.host.barrier().ok());
  });
}

TEST_CASE("a group that never forms ends by its deadline, with what that usually comes from") {
  troupe::tests::run_devices(2,
                             [](Rank rank) {
                               NcclOptions options = troupe::tests::nccl_options(rank);
                               options.form_timeout = milliseconds(50);
                               const Status status = make_nccl_communicator(options).status();
                               CHECK(status.code() == Code::kDeadlineExceeded);
                               CHECK(reads(status, "not formed within 0.05 s (NCCL 2.28.9)"));
                               CHECK(reads(status, "NCCL_SOCKET_IFNAME"));
                               CHECK(rank.host.barrier().ok());
                             },
                             {.devices = 2, .group_init_polls = 1'000'000'000});
}

TEST_CASE("what NCCL finds while a group forms is told") {
  troupe::tests::run_devices(2, [](Rank rank) {
    troupe::tests::fake_cuda_fail_groups(1, TROUPE_CUDA_PEER,
                                         "ncclRemoteError: connection refused");
    const Status status = make_nccl_communicator(troupe::tests::nccl_options(rank)).status();
    CHECK(status.code() == Code::kAborted);
    CHECK(reads(status, "connection refused"));
    CHECK(reads(status, "NCCL_SOCKET_IFNAME"));
    CHECK(rank.host.barrier().ok());
  });
}

TEST_CASE("connections that are never made: peer access or shared memory") {
  troupe::tests::run_devices(
      2,
      [](Rank rank) {
        NcclOptions options = troupe::tests::nccl_options(rank);
        options.compared_operations = 0;
        auto c = make_nccl_communicator(options).value();
        const auto data = rank.device.room<float>(0, 100);
        const Status status =
            c->all_reduce(data, ReduceOp::kSum, Deadline::after(milliseconds(50)));
        // One rank's deadline passes first and ends the other's operation.
        CHECK((status.code() == Code::kDeadlineExceeded || status.code() == Code::kAborted));
        if (status.code() != Code::kDeadlineExceeded) return;
        CHECK(reads(status, "all_reduce did not end within 0"));
        CHECK(reads(status, "NCCL_P2P_DISABLE=1"));
        CHECK(reads(status, "/dev/shm"));
        CHECK(status.context("operation") == "all_reduce");
        CHECK(status.context("group") == "world");
        CHECK(status.context("sequence") == "1");
        CHECK(status.context("rank") == std::to_string(rank.rank()));
        CHECK(status.context("generation") == "7");
        const Status later = c->all_reduce(data);
        CHECK(later.code() == Code::kAborted);
        CHECK(reads(later, "did not end within 0"));
      },
      {.devices = 2, .groups_connect = false});
}

TEST_CASE("a rank that does not come to a later operation: a death or a hang") {
  std::atomic<int> over{0};
  troupe::tests::run_devices(2, [&](Rank rank) {
    NcclOptions options = troupe::tests::nccl_options(rank);
    options.compared_operations = 0;
    auto c = make_nccl_communicator(options).value();
    const auto data = rank.device.room<float>(0, 100);
    REQUIRE(c->all_reduce(data).ok());
    if (rank.rank() == 1) {
      wait_until(over, 1);
      // It learns of it through the host's communicator.
      CHECK(c->all_reduce(data).code() == Code::kAborted);
      return;
    }
    const Status status = c->all_reduce(data, ReduceOp::kSum, Deadline::after(milliseconds(30)));
    CHECK(status.code() == Code::kDeadlineExceeded);
    CHECK(reads(status, "a rank that died or hangs"));
    CHECK(status.context("sequence") == "2");
    ++over;
  });
}

TEST_CASE("a rank that does not come to a compared operation is named") {
  std::atomic<int> over{0}, entering{0};
  troupe::tests::run_devices(3, [&](Rank rank) {
    auto c = make_nccl_communicator(troupe::tests::nccl_options(rank)).value();
    const auto data = rank.device.room<float>(0, 100);
    if (rank.rank() == 2) return wait_until(over, 2);
    if (rank.rank() == 0) wait_until(entering, 1);
    ++entering;
    const Status status = c->all_reduce(
        data, ReduceOp::kSum,
        Deadline::after(rank.rank() == 0 ? Duration(milliseconds(200)) : milliseconds(400)));
    if (rank.rank() == 0) {
      CHECK(status.code() == Code::kDeadlineExceeded);
      CHECK(status.context("peer").value_or("").find("2") != std::string_view::npos);
      CHECK(status.context("operation") == "all_reduce");
      CHECK(status.context("group") == "world");
    } else {
      CHECK((status.code() == Code::kDeadlineExceeded || status.code() == Code::kAborted));
    }
    ++over;
  });
}

TEST_CASE("ranks that do not mean the same are told what each means") {
  for (int what = 0; what < 4; ++what) {
    CAPTURE(what);
    troupe::tests::run_devices(2, [&](Rank rank) {
      auto c = make_nccl_communicator(troupe::tests::nccl_options(rank)).value();
      const auto data = rank.device.room<float>(0, 200);
      const bool odd = rank.rank() == 1;
      Status status;
      if (what == 0) status = c->all_reduce(data.first(odd ? 100 : 101));
      if (what == 1) status = odd ? c->broadcast(data, 0) : c->all_reduce(data);
      if (what == 2) status = c->broadcast(data, odd ? 1 : 0);
      if (what == 3) {
        const std::vector<std::size_t> counts{odd ? 60ul : 40ul, odd ? 40ul : 60ul};
        status =
            c->all_gather(std::span<const float>(data).first(40), data.subspan(100, 100), counts);
      }
      CHECK((status.code() == Code::kProtocol || status.code() == Code::kAborted));
      if (status.code() == Code::kProtocol) {
        CHECK(reads(status, "group 'world' do not mean the same"));
        if (what == 0) CHECK(reads(status, "all_reduce 1 of 101 float32"));
        if (what == 0) CHECK(reads(status, "all_reduce 1 of 100 float32"));
        if (what == 1) CHECK(reads(status, "broadcast 1 of 200"));
      }
      CHECK(c->barrier().code() == Code::kAborted);
    });
  }
}

TEST_CASE("what ranks mean otherwise after the compared operations ends by its deadline") {
  troupe::tests::run_devices(2, [](Rank rank) {
    NcclOptions options = troupe::tests::nccl_options(rank);
    options.compared_operations = 1;
    auto c = make_nccl_communicator(options).value();
    const auto data = rank.device.room<float>(0, 200);
    REQUIRE(c->all_reduce(data).ok());
    const Status status = c->broadcast(data.first(rank.rank() == 1 ? 100 : 101), 0,
                                       Deadline::after(milliseconds(50)));
    CHECK((status.code() == Code::kDeadlineExceeded || status.code() == Code::kAborted));
    if (status.code() == Code::kDeadlineExceeded)
      CHECK(reads(status, "the same operations with the same sizes"));
  });
}

TEST_CASE("abort from another thread ends the operation under way on all ranks") {
  std::atomic<int> waiting{0};
  troupe::tests::run_devices(3, [&](Rank rank) {
    NcclOptions options = troupe::tests::nccl_options(rank);
    options.compared_operations = 0;
    auto c = make_nccl_communicator(options).value();
    const auto data = rank.device.room<float>(0, 50'000);
    REQUIRE(c->all_reduce(data).ok());
    std::thread aborter;
    if (rank.rank() == 0)
      aborter = std::thread([&] {
        wait_until(waiting, 2);
        c->abort(Status(Code::kActorDied, "trainer 2 died").with("lost_rank", 2));
      });
    ++waiting;
    // Rank 2 does not come: its operation would complete the others'.
    if (rank.rank() != 2) {
      const Status status = c->all_reduce(data);
      CHECK(status.code() == Code::kAborted);
      if (rank.rank() == 0) {
        CHECK(reads(status, "trainer 2 died"));
        CHECK(status.context("lost_rank") == "2");
      }
    }
    if (aborter.joinable()) aborter.join();
    CHECK(c->barrier().code() == Code::kAborted);
    CHECK(rank.host.barrier().code() == Code::kAborted);
    CHECK(c->device_subgroup(std::vector<int>{rank.rank()}, "late").status().code() ==
          Code::kAborted);
    c->abort(Status(Code::kInternal, "a later reason"));
    if (rank.rank() == 0) CHECK(reads(c->barrier(), "trainer 2 died"));
  });
}

TEST_CASE("a rank whose process ends is named, by who waits for the device alone") {
  // The host's communicator of the rank that leaves ends with it, as a process's would.
  troupe::tests::fake_cuda_reset({.devices = 8});
  std::atomic<int> formed{0};
  collective::tests::run_owners({0, 0, 0}, [&](std::unique_ptr<collective::Communicator> host) {
    troupe::tests::RankDeviceMemory device(host->rank());
    NcclOptions options = troupe::tests::nccl_options({device, *host});
    options.compared_operations = 0;
    auto c = make_nccl_communicator(options).value();
    const auto data = device.room<float>(0, 50'000);
    REQUIRE(c->all_reduce(data).ok());
    ++formed;
    wait_until(formed, 3);
    if (host->rank() == 1) {
      c.reset();
      host.reset();
      return;
    }
    const Status status = c->all_reduce(data);
    CHECK(status.code() == Code::kAborted);
    CHECK(status.context("lost_rank").has_value());
    CHECK(status.context("sequence") == "2");
    c.reset();
  });
  CHECK(troupe::tests::fake_cuda_left().empty());
}

// Ranks 0 and 1 have an operation of their own under way when rank 2 ends, and wait for the library
// to begin one of all three.
TEST_CASE("a rank that is lost is found by who waits for its group, whatever the other groups do") {
  troupe::tests::fake_cuda_reset({.devices = 8});
  std::atomic<int> formed{0}, under_way{0}, gone{0}, told{0};
  collective::tests::run_owners({0, 0, 0}, [&](std::unique_ptr<collective::Communicator> host) {
    troupe::tests::RankDeviceMemory device(host->rank());
    NcclOptions options = troupe::tests::nccl_options({device, *host});
    options.compared_operations = 0;
    auto c = make_nccl_communicator(options).value();
    const auto data = device.room<float>(0, 1000);
    REQUIRE(c->all_reduce(data).ok());
    std::unique_ptr<DeviceCommunicator> pair;
    if (host->rank() != 2) {
      pair = c->device_subgroup(std::vector<int>{0, 1}, "pair").value();
      REQUIRE(pair->all_reduce(data).ok());
    }
    ++formed;
    wait_until(formed, 3);
    if (host->rank() == 2) {
      wait_until(under_way, 1);
      c.reset();
      host.reset();
      ++gone;
      return;
    }
    if (host->rank() == 0) {
      c->set_asynchronous(true);
      REQUIRE(pair->all_reduce(data).ok());  // to which rank 1 does not come
      troupe::tests::fake_cuda_inject(
          {.function = "group_state", .code = TROUPE_CUDA_NOT_READY, .text = "being launched"});
      ++under_way;
      const Status status = c->all_reduce(data);
      CHECK(status.code() == Code::kAborted);
      CHECK(status.context("lost_rank") == "2");
      ++told;
    } else {
      wait_until(told, 1);
    }
    pair.reset();
    c.reset();
  });
  CHECK(troupe::tests::fake_cuda_left().empty());
}

TEST_CASE("what NCCL finds by itself ends the operation under way, and the next one between") {
  for (const bool between : {false, true}) {
    std::atomic<int> ready{0}, injected{0};
    troupe::tests::run_devices(2, [&](Rank rank) {
      NcclOptions options = troupe::tests::nccl_options(rank);
      options.compared_operations = 0;
      auto c = make_nccl_communicator(options).value();
      const auto data = rank.device.room<float>(0, 100);
      REQUIRE(c->all_reduce(data).ok());
      ++ready;
      wait_until(ready, 2);
      const auto fail = [&] {
        troupe::tests::fake_cuda_fail_groups(0, TROUPE_CUDA_PEER, "ncclRemoteError: socket closed");
        ++injected;
      };
      if (rank.rank() == 1) {
        fail();
        // It stays away; its host's communicator tells it.
        while (!c->lost_rank()) std::this_thread::yield();
        CHECK(c->barrier().code() == Code::kAborted);
        return;
      }
      if (between) wait_until(injected, 1);
      const Status status = c->all_reduce(data);
      CHECK(status.code() == Code::kAborted);
      CHECK(reads(status, "socket closed"));
      CHECK(reads(c->barrier(), "socket closed"));
    });
  }
}

TEST_CASE("asynchronously, a failure is told by settle, and its deadline needs nobody who waits") {
  std::atomic<int> over{0};
  troupe::tests::run_devices(2, [&](Rank rank) {
    NcclOptions options = troupe::tests::nccl_options(rank);
    options.compared_operations = 0;
    auto c = make_nccl_communicator(options).value();
    c->set_asynchronous(true);
    const auto data = rank.device.room<float>(0, 100);
    REQUIRE(c->all_reduce(data).ok());
    REQUIRE(c->settle(Deadline::after(seconds(10))).ok());
    if (rank.rank() == 1) return wait_until(over, 1);
    REQUIRE(c->broadcast(data, 1, Deadline::after(milliseconds(30))).ok());
    // Nobody asks: the host's communicator is ended by the watching thread.
    while (rank.host.barrier(Deadline::after(seconds(20))).code() != Code::kAborted)
      std::this_thread::yield();
    const Status status = c->settle(Deadline::after(seconds(10)));
    CHECK(status.code() == Code::kDeadlineExceeded);
    CHECK(status.context("operation") == "broadcast");
    CHECK(status.context("sequence") == "2");
    CHECK(c->settle(Deadline::after(seconds(10))).code() == Code::kAborted);
    ++over;
  });
}

TEST_CASE("a group that fails to form ends its parent") {
  troupe::tests::run_devices(2, [](Rank rank) {
    auto c = make_nccl_communicator(troupe::tests::nccl_options(rank)).value();
    REQUIRE(rank.host.barrier().ok());
    if (rank.rank() == 0)
      troupe::tests::fake_cuda_inject({.function = "group_begin_split", .text = "no room"});
    REQUIRE(rank.host.barrier().ok());
    const Status status = c->device_subgroup(std::vector<int>{1, 0}, "data").status();
    CHECK((status.code() == Code::kInternal || status.code() == Code::kAborted));
    CHECK(c->barrier().code() == Code::kAborted);
  });
}

TEST_CASE("the axes of a mesh are groups of their own, by split where all ranks are in it") {
  troupe::tests::run_devices(4, [](Rank rank) {
    auto c = make_nccl_communicator(troupe::tests::nccl_options(rank)).value();
    const int me = c->rank();
    auto shard = c->device_subgroup(std::vector<int>{me % 2, me % 2 + 2}, "shard").value();
    auto replicate = c->device_subgroup(std::vector<int>{me / 2 * 2, me / 2 * 2 + 1}, "replicate");
    auto all = c->device_subgroup(std::vector<int>{3, 1, 2, 0}, "data").value();
    auto self = c->device_subgroup(std::vector<int>{me}, "self").value();
    const auto data = rank.device.room<float>(0, 1);
    data[0] = static_cast<float>(1 << me);
    CHECK(shard->all_reduce(data).ok());
    CHECK(data[0] == (me % 2 == 0 ? 5.0f : 10.0f));
    CHECK((*replicate)->all_reduce(data).ok());
    CHECK(data[0] == 15.0f);
    CHECK(self->all_reduce(data).ok());
    const auto gathered = rank.device.room<float>(64, 4);
    data[0] = static_cast<float>(me);
    CHECK(all->all_gather(std::span<const float>(data), gathered, std::vector<std::size_t>(4, 1))
              .ok());
    CHECK(std::equal(gathered.begin(), gathered.end(), std::vector<float>{3, 1, 2, 0}.begin()));
    CHECK(all->rank() == std::vector<int>{3, 1, 2, 0}[static_cast<std::size_t>(me)]);
    CHECK(c->end(Deadline::after(seconds(10))).ok());
    CHECK(shard->all_reduce(data).code() == Code::kFailedPrecondition);
  });
  // The world, two shard groups, two groups of replicas; the one of all by a split.
  CHECK(troupe::tests::fake_cuda_calls("group_unique_id") == 5);
  CHECK(troupe::tests::fake_cuda_calls("group_begin_split") == 4);
  CHECK(troupe::tests::fake_cuda_calls("group_destroy") == 16);
}

TEST_CASE("groups of a rank are aborted together, whichever of them hangs") {
  std::atomic<int> over = 0;
  troupe::tests::run_devices(3, [&](Rank rank) {
    NcclOptions options = troupe::tests::nccl_options(rank);
    options.compared_operations = 1;
    auto c = make_nccl_communicator(options).value();
    auto pair = rank.rank() < 2 ? c->device_subgroup(std::vector<int>{0, 1}, "pair").value()
                                : c->device_subgroup(std::vector<int>{2}, "pair").value();
    const auto data = rank.device.room<float>(0, 100);
    REQUIRE(c->all_reduce(data).ok());
    REQUIRE(pair->all_reduce(data).ok());
    // Rank 0 goes no further; rank 1 waits in the younger group, with the elder behind it.
    if (rank.rank() == 0) return wait_until(over, 2);
    c->set_asynchronous(true);
    pair->set_asynchronous(true);
    if (rank.rank() == 1) REQUIRE(pair->broadcast(data, 0).ok());
    REQUIRE(c->broadcast(data, 0).ok());
    c->abort(error(Code::kCancelled, "the test's end"));
    CHECK(c->settle(Deadline::after(seconds(10))).code() == Code::kAborted);
    ++over;
  });
  CHECK(troupe::tests::fake_cuda_calls("group_abort") == 0);
  CHECK(troupe::tests::fake_cuda_calls("groups_abort") == 3);
}

TEST_CASE("what cannot be given back at the end is aborted, and told") {
  troupe::tests::run_devices(2, [](Rank rank) {
    auto c = make_nccl_communicator(troupe::tests::nccl_options(rank)).value();
    REQUIRE(c->barrier().ok());
    if (rank.rank() == 0)
      troupe::tests::fake_cuda_inject(
          {.function = "group_destroy", .text = "a proxy that is gone"});
    REQUIRE(rank.host.barrier().ok());
    CHECK(reads(c->end(Deadline::after(seconds(10))), "a proxy that is gone"));
  });
}

TEST_CASE("memory that does not suffice for sums is an error with its figure, on all ranks") {
  troupe::tests::run_devices(2, [](Rank rank) {
    NcclOptions options = troupe::tests::nccl_options(rank);
    options.scratch_bytes = std::int64_t{4} << 30;
    const Status status = make_nccl_communicator(options).status();
    CHECK(status.code() == Code::kOutOfMemory);
    CHECK(reads(status, "4294967296 bytes for the parts of sums"));
    CHECK(rank.host.barrier().ok());
  });
}

TEST_CASE("a sum of more parts than the table takes is the same tree") {
  troupe::tests::run_devices(1, [](Rank rank) {
    const TroupeCudaTable& table = rank.device.table;
    constexpr std::size_t kParts = 150, kElements = 33;
    CHECK(tree_classes(64) == 0);
    CHECK(tree_classes(65) == 2);
    CHECK(tree_classes(kParts) == 4);
    const auto parts = rank.device.room<float>(0, kParts * kElements);
    for (std::size_t i = 0; i < parts.size(); ++i)
      parts[i] = 1.0f / static_cast<float>(i * 2654435761u % 10007 + 1);
    std::vector<const void*> pointers;
    std::vector<const std::byte*> inputs;
    for (std::size_t p = 0; p < kParts; ++p) {
      pointers.push_back(&parts[p * kElements]);
      inputs.push_back(reinterpret_cast<const std::byte*>(&parts[p * kElements]));
    }
    std::vector<float> want(kElements);
    collective::tree_reduce(inputs, reinterpret_cast<std::byte*>(want.data()), kElements,
                            collective::DataType::kFloat32, ReduceOp::kSum);
    const auto classes = rank.device.room<float>(1 << 20, 4 * kElements);
    const auto out = rank.device.room<float>(2 << 20, kElements);
    REQUIRE(tree_sum_of_any(table, rank.device.stream, pointers, TROUPE_CUDA_F32, classes.data(),
                            out.data(), kElements) == TROUPE_CUDA_OK);
    REQUIRE(table.stream_synchronize(rank.device.stream) == TROUPE_CUDA_OK);
    CHECK(std::memcmp(out.data(), want.data(), kElements * sizeof(float)) == 0);
  });
}

}  // namespace
}  // namespace troupe::train
