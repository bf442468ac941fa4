// Which way ranks with GPUs talk to each other.

#include "train/cuda/communicator/communicator_choice.h"

#include <doctest/doctest.h>

#include <mutex>

#include "tests/train/cuda/communicator/device_ranks.h"

namespace troupe::train {
namespace {

constexpr int kVersion = 22809;

TEST_CASE("the way follows from versions, hosts and devices") {
  const auto choose = [](std::vector<RankDevice> ranks) { return choose_transport(ranks); };
  CHECK(choose({{"a", "01", kVersion}, {"a", "02", kVersion}, {"b", "01", kVersion}}).transport ==
        DeviceTransport::kNccl);
  const auto shared = choose({{"a", "01", kVersion}, {"b", "01", kVersion}, {"a", "01", kVersion}});
  CHECK(shared.transport == DeviceTransport::kNcclSeparateHosts);
  CHECK(shared.reason == "ranks 0 and 2 share GPU 01 of a, which NCCL refuses within a host");
  const auto without = choose({{"a", "01", kVersion}, {"a", "02", 0}});
  CHECK(without.transport == DeviceTransport::kOverHost);
  CHECK(without.reason == "rank 1 has no NCCL");
  const auto old = choose({{"a", "01", 21703}, {"a", "02", kVersion}});
  CHECK(old.transport == DeviceTransport::kOverHost);
  CHECK(old.reason == "rank 0 has NCCL 2.17.3, and 2.18.0 or later is needed");
  const auto alone = choose({{"a", "01", kVersion}});
  CHECK(alone.transport == DeviceTransport::kOverHost);
  CHECK(alone.reason == "one rank has nobody to talk to, and needs no NCCL");
}

TEST_CASE("peer access is missing where either GPU says so, within a host") {
  const std::vector<RankDevice> ranks = {{"a", "01", kVersion, "GPU-0", {"GPU-2", "GPU-7"}},
                                         {"a", "02", kVersion, "GPU-1"},
                                         {"a", "03", kVersion, "GPU-2"},
                                         {"b", "01", kVersion, "GPU-2"},
                                         {"a", "04", kVersion, "GPU-3", {"GPU-1"}}};
  const auto missing = missing_peer_access(ranks);
  REQUIRE(missing.size() == 2);
  CHECK(missing[0].rank == 0);
  CHECK(missing[0].other == 2);
  CHECK_FALSE(missing[0].possible);
  CHECK(missing[1].rank == 1);
  CHECK(missing[1].other == 4);
  CHECK(missing_peer_access(std::span(ranks).subspan(1, 3)).empty());
}

struct Told {
  std::mutex mutex;
  std::vector<std::string> notices, settings;
};

DeviceCommunicatorOptions choice_options(const troupe::tests::Rank& rank,
                                         const Environment& environment, Told& told) {
  DeviceCommunicatorOptions options;
  options.nccl = troupe::tests::nccl_options(rank);
  options.device_index = rank.rank() % 2;
  options.node = "here";
  options.environment = &environment;
  options.notice = [&told](const std::string& line) {
    std::lock_guard lock(told.mutex);
    told.notices.push_back(line);
  };
  options.apply = [&told](const EnvironmentSetting& setting) {
    std::lock_guard lock(told.mutex);
    told.settings.push_back(setting.name + "=" + setting.value);
  };
  return options;
}

bool sums(DeviceCommunicator& c, troupe::tests::RankDeviceMemory& device) {
  const auto data = device.room<float>(0, 10);
  std::fill(data.begin(), data.end(), 1.0f);
  return c.all_reduce(data).ok() && data[9] == static_cast<float>(c.world_size());
}

TEST_CASE("ranks with devices of their own use NCCL as it is") {
  Told told;
  const MapEnvironment environment;
  troupe::tests::run_devices(
      2,
      [&](troupe::tests::Rank rank) {
        auto options = choice_options(rank, environment, told);
        // One that knows is enough.
        if (rank.rank() == 1)
          options.without_peer_access = {"GPU-other", "GPU-fa4e0000-0000-0000-0000-000000000000"};
        auto c = make_device_communicator(options).value();
        CHECK(c->transport() == "NCCL 2.28.9");
        CHECK(sums(*c, rank.device));
        CHECK(c->end(Deadline::after(std::chrono::seconds(10))).ok());
      },
      {.devices = 2});
  CHECK(told.settings == std::vector<std::string>(2, "NCCL_P2P_DISABLE=1"));
  CHECK(told.notices ==
        std::vector<std::string>(2,
                                 "NCCL_P2P_DISABLE=1: the GPUs of ranks 0 and 1 cannot read "
                                 "each other's memory"));
}

TEST_CASE("NCCL's calls do not block even where the user's environment says so") {
  Told told;
  const std::map<std::string, std::string, std::less<>> variables = {{"NCCL_COMM_BLOCKING", "1"}};
  const MapEnvironment environment(variables);
  troupe::tests::run_devices(
      2,
      [&](troupe::tests::Rank rank) {
        auto c = make_device_communicator(choice_options(rank, environment, told)).value();
        CHECK(c->transport() == "NCCL 2.28.9");
        CHECK(c->end(Deadline::after(std::chrono::seconds(10))).ok());
      },
      {.devices = 2});
  CHECK(told.settings == std::vector<std::string>(2, "NCCL_COMM_BLOCKING=0"));
}

TEST_CASE("ranks that share a device are hosts of their own to NCCL, or go over the host") {
  for (const bool taken : {true, false}) {
    for (const bool set_by_user : {false, true}) {
      Told told;
      std::map<std::string, std::string, std::less<>> variables;
      if (set_by_user) variables["NCCL_HOSTID"] = "mine";
      const MapEnvironment environment(variables);
      troupe::tests::run_devices(
          3,
          [&](troupe::tests::Rank rank) {
            auto c = make_device_communicator(choice_options(rank, environment, told)).value();
            CHECK(c->transport() == (taken ? "NCCL 2.28.9" : "over the host"));
            CHECK(sums(*c, rank.device));
            CHECK(c->end(Deadline::after(std::chrono::seconds(10))).ok());
          },
          {.devices = 2, .groups_share_devices = taken});
      std::sort(told.settings.begin(), told.settings.end());
      CHECK(told.settings == (set_by_user ? std::vector<std::string>{}
                                          : std::vector<std::string>{"NCCL_HOSTID=here-rank-0",
                                                                     "NCCL_HOSTID=here-rank-1",
                                                                     "NCCL_HOSTID=here-rank-2"}));
      int explained = 0;
      for (const std::string& line : told.notices)
        explained += line.find("ranks 0 and 2 share GPU") != std::string::npos &&
                     line.find("Duplicate GPU detected") != std::string::npos;
      CHECK(explained == (taken ? 0 : 3));
    }
  }
}

TEST_CASE("ranks that share a device do not wait long for an NCCL that does not form") {
  Told told;
  const MapEnvironment environment;
  troupe::tests::run_devices(2,
                             [&](troupe::tests::Rank rank) {
                               auto options = choice_options(rank, environment, told);
                               options.device_index = 0;
                               options.nccl.form_timeout = std::chrono::minutes(5);
                               options.shared_form_timeout = std::chrono::milliseconds(50);
                               auto c = make_device_communicator(options).value();
                               CHECK(c->transport() == "over the host");
                               CHECK(sums(*c, rank.device));
                               CHECK(c->end(Deadline::after(std::chrono::seconds(10))).ok());
                             },
                             {.group_init_polls = 1'000'000'000, .groups_share_devices = true});
  int explained = 0;
  for (const std::string& line : told.notices)
    explained += line.find("separate hosts did not help") != std::string::npos;
  CHECK(explained == 2);
}

TEST_CASE("a rank that is told not to use NCCL takes all over the host") {
  Told told;
  const std::map<std::string, std::string, std::less<>> variables = {{"TROUPE_NCCL", "0"}};
  const MapEnvironment silent, telling(variables);
  troupe::tests::run_devices(
      2,
      [&](troupe::tests::Rank rank) {
        const bool tells = rank.rank() == 1;
        auto c =
            make_device_communicator(choice_options(rank, tells ? telling : silent, told)).value();
        CHECK(c->transport() == "over the host");
        CHECK(sums(*c, rank.device));
      },
      {.devices = 2});
  CHECK(told.notices ==
        std::vector<std::string>(2,
                                 "collectives go over the host: rank 1 is told not to use NCCL "
                                 "(TROUPE_NCCL=0)"));
}

TEST_CASE("without NCCL collectives go over the host") {
  Told told;
  const MapEnvironment environment;
  troupe::tests::run_devices(
      2,
      [&](troupe::tests::Rank rank) {
        auto c = make_device_communicator(choice_options(rank, environment, told)).value();
        CHECK(c->transport() == "over the host");
        CHECK(sums(*c, rank.device));
      },
      {.devices = 2, .nccl_version = 0});
  CHECK(told.notices ==
        std::vector<std::string>(2, "collectives go over the host: rank 0 has no NCCL"));
}

}  // namespace
}  // namespace troupe::train
