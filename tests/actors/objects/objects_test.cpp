// Objects on one node: put, read in place, passed on, let go; memory that is short, disks that
// fail.

#include "troupe/object.h"

#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "tests/actors/objects/test_actors.h"
#include "tests/support/test_data.h"
#include "troupe/actor_group.h"
#include "troupe/actor_pool.h"
#include "troupe/cluster.h"

namespace troupe::tests {
namespace {

using Floats = std::vector<float>;

constexpr std::uint64_t kMiB = 1u << 20;

Cluster start(std::uint64_t memory_bytes = 64 * kMiB, const std::string& spill_dir = {}) {
  return Cluster::start_embedded({.num_cpus = 4,
                                  .object_memory_bytes = memory_bytes,
                                  .object_spill_dir = spill_dir,
                                  .program = bin_dir() + "/test_actors_objects_host"})
      .value();
}

// Until there are so many objects; objects are freed a moment after they are let go.
bool objects_become(Cluster& cluster, std::uint64_t count) {
  const Deadline patience = Deadline::after(std::chrono::seconds(20));
  while (!patience.passed()) {
    if (cluster.object_store().value().objects == count) return true;
    std::this_thread::yield();
  }
  return false;
}

TEST_CASE("what is put is read in place, as often as one likes") {
  Cluster cluster = start();
  const Floats numbers{1.5f, 2.5f, -3};
  const auto ref = cluster.put(numbers).value();
  CHECK(ref.bytes() == 3 * sizeof(float));
  const auto object = cluster.get(ref).value();
  CHECK(Floats((*object).begin(), (*object).end()) == numbers);
  CHECK(object.copy() == numbers);
  CHECK((*ref.get().value()).data() == (*object).data());
  CHECK(reinterpret_cast<std::uintptr_t>((*object).data()) % 64 == 0);

  CHECK(*cluster.put(std::string("hello")).value().get().value() == "hello");
  const Sample sample{"a", {1, 2}};
  const auto of_sample = cluster.put(sample).value().get().value();
  CHECK(*of_sample == sample);
  CHECK(of_sample->name == "a");
  CHECK((*cluster.put(Floats()).value().get().value()).empty());
  CHECK(ObjectRef<int>().get().status().code() == Code::kFailedPrecondition);
}

TEST_CASE("a reference of another cluster is refused by name, and stays good in its own") {
  Cluster cluster = start();
  Cluster other = start();
  const auto theirs = other.put(Floats(100, 1)).value();
  auto reader = cluster.spawn<Reader>({}).value();
  const auto refused = reader.call<&Reader::sum>(theirs).get();
  CHECK(refused.status().code() == Code::kInvalidArgument);
  CHECK_MESSAGE(refused.status().message().find("of another cluster") != std::string::npos,
                refused.status().to_string());
  const auto ours = cluster.put(theirs.get().value().copy()).value();
  CHECK(reader.call<&Reader::sum>(ours).get().value() == 100);
}

TEST_CASE("an object is freed when nobody holds it any more") {
  Cluster cluster = start();
  auto ref = cluster.put(Floats(100, 1)).value();
  auto copy = ref;
  auto view = ref.get().value();
  CHECK(cluster.object_store().value().objects == 1);
  ref = {};
  copy = {};
  CHECK(cluster.object_store().value().objects == 1);  // the view's
  CHECK((*view)[99] == 1);
  view = {};
  CHECK(objects_become(cluster, 0));
}

TEST_CASE("memory that is free again is used again") {
  Cluster cluster = start(8 * kMiB);
  const float* place = nullptr;
  for (int i = 0; i < 20; ++i) {
    const auto ref = cluster.put(Floats(kMiB, static_cast<float>(i))).value();  // 4 MiB
    const auto object = ref.get().value();
    if (i > 0) CHECK((*object).data() == place);
    place = (*object).data();
    CHECK((*object)[7] == static_cast<float>(i));
  }
  CHECK(cluster.object_store().value().spilled_bytes_total == 0);
}

TEST_CASE("actors are given references, keep them and return them") {
  Cluster cluster = start();
  const auto reader = cluster.spawn<Reader>({}).value();
  {
    const auto ref = cluster.put(Floats(1000, 2)).value();
    CHECK(reader.call<&Reader::sum>(ref).get().value() == 2000);
    CHECK(reader.call<&Reader::sample>(cluster.put(Sample{"b", {3}}).value()).get().value() ==
          Sample{"b", {3}});
    CHECK(reader.call<&Reader::keep>(ref).get().ok());
  }
  CHECK(objects_become(cluster, 1));  // the actor's
  CHECK(reader.call<&Reader::sum_of_kept>().get().value() == 2000);
  {
    const auto kept = reader.call<&Reader::kept>().get().value();
    REQUIRE(kept.size() == 1);
    CHECK(reader.call<&Reader::forget>().get().ok());
    CHECK((*kept[0].get().value())[999] == 2);
  }
  CHECK(objects_become(cluster, 0));
  // What an actor has made outlives it where somebody holds it.
  const auto made = reader.call<&Reader::make>(10, 3.0f).get().value();
  (void)reader.call<&Reader::die>().get();
  CHECK((*made.get().value())[9] == 3);
}

TEST_CASE("what an actor alone held is freed with it") {
  Cluster cluster = start();
  const auto reader = cluster.spawn<Reader>({}).value();
  REQUIRE(reader.call<&Reader::keep>(cluster.put(Floats(10, 1)).value()).get().ok());
  REQUIRE(reader.call<&Reader::sum_of_kept>().get().value() == 10);
  CHECK(cluster.object_store().value().objects == 1);
  (void)reader.call<&Reader::die>().get();
  CHECK(objects_become(cluster, 0));
}

TEST_CASE("what an actor is made of stays as long as the actor may start again") {
  Cluster cluster = start();
  const auto put = [&] { return cluster.put(Floats(10, 2)).value(); };
  const auto keeper = cluster.spawn<Keeper>({.max_restarts = 1}, put()).value();
  CHECK(keeper.call<&Keeper::sum>().get().value() == 20);
  REQUIRE(keeper.call<&Keeper::forget>().get().ok());
  CHECK(cluster.object_store().value().objects == 1);
  (void)keeper.call<&Keeper::die>().get();
  CHECK(keeper.call<&Keeper::sum>().get().value() == 20);
  (void)keeper.call<&Keeper::die>().get();
  CHECK(objects_become(cluster, 0));

  {
    std::vector<GangMember<Keeper>> members;
    for (int i = 0; i < 2; ++i) members.emplace_back(ActorOptions{.num_cpus = 1}, put());
    for (const auto& member : cluster.spawn_gang(std::move(members)).value()) {
      CHECK(member.call<&Keeper::sum>().get().value() == 20);
      REQUIRE(cluster.kill(member).ok());
    }
    const auto pool =
        ActorPool<Keeper>::create(cluster, {.member = {.num_cpus = 1}, .members_max = 2}, put())
            .value();
    CHECK(pool.call<&Keeper::sum>().get().value() == 20);
    auto light =
        cluster.spawn_many<Keeper>(3, {.max_restarts = 1, .isolation = Isolation::kShared}, put())
            .value();
    CHECK(light[2].call<&Keeper::sum>().get().value() == 20);
    const auto one = cluster.spawn<Keeper>({.isolation = Isolation::kShared}, put()).value();
    CHECK(one.call<&Keeper::sum>().get().value() == 20);
    REQUIRE(cluster.kill(light).ok());
    REQUIRE(cluster.kill(one).ok());
  }
  CHECK(objects_become(cluster, 0));
}

TEST_CASE("pools and groups pass references on, too") {
  Cluster cluster = start();
  {
    const auto pool =
        ActorPool<Reader>::create(cluster, {.member = {.num_cpus = 1}, .members_max = 2}).value();
    CHECK(pool.call<&Reader::sum>(cluster.put(Floats(10, 2)).value()).get().value() == 20);
    const auto made = pool.call<&Reader::make>(10, 3.0f).get().value();
    CHECK((*made.get().value())[9] == 3);
    const auto group = ActorGroup<Reader>::spawn(cluster, {{"rank", 2}}, {.num_cpus = 1}).value();
    const auto sums = group.gather<&Reader::sum>(cluster.put(Floats(10, 4)).value()).get().value();
    CHECK(sums == std::vector<double>{40, 40});
    CHECK((*group.gather<&Reader::make>(10, 5.0f).get().value().at(1).get().value())[9] == 5);
  }
}

TEST_CASE("what pools and groups have returned goes as soon as nobody holds it") {
  Cluster cluster = start();
  const auto pool = ActorPool<Reader>::create(cluster, {.member = {.num_cpus = 1}}).value();
  CHECK(pool.call<&Reader::make>(10, 3.0f).get().ok());
  CHECK(objects_become(cluster, 0));
  for (const bool shared : {false, true}) {
    const auto group =
        ActorGroup<Reader>::spawn(
            cluster, {{"rank", 2}},
            {.num_cpus = 1, .isolation = shared ? Isolation::kShared : Isolation::kProcess})
            .value();
    {
      const auto all = group.gather<&Reader::make>(10, 5.0f).get().value();
      CHECK((*all.at(0).get().value())[9] == 5);
      CHECK((*all.at(1).get().value())[9] == 5);
    }
    CHECK(objects_become(cluster, 0));
  }
}

TEST_CASE("many references are arguments of one call") {
  Cluster cluster = start();
  const auto reader = cluster.spawn<Reader>({}).value();
  std::vector<ObjectRef<std::vector<std::uint64_t>>> refs;
  for (std::uint64_t i = 0; i < 3000; ++i) {
    refs.push_back(cluster.put(std::vector<std::uint64_t>{i}).value());
  }
  CHECK(reader.call<&Reader::sum_of_all>(refs).get().value() == 2999 * 3000 / 2);
  CHECK(cluster.wait(refs, refs.size()).value().size() == refs.size());
  // Of those between them the memory is used again: each is read from its own place.
  std::vector<ObjectRef<std::vector<std::uint64_t>>> odd;
  for (std::uint64_t i = 1; i < refs.size(); i += 2) odd.push_back(refs[i]);
  refs.clear();
  CHECK(objects_become(cluster, odd.size()));
  CHECK(reader.call<&Reader::sum_of_all>(odd).get().value() == 1500 * 1500);
}

TEST_CASE("what does not fit into memory goes to disk and comes back") {
  TemporaryDirectory folder;
  {
    Cluster cluster = start(8 * kMiB, folder.path());
    std::vector<ObjectRef<Floats>> refs;
    for (int i = 0; i < 10; ++i) {
      refs.push_back(cluster.put(Floats(kMiB / 2, static_cast<float>(i))).value());  // 2 MiB
    }
    for (int i = 0; i < 3000; ++i) refs.push_back(cluster.put(Floats(64, 100)).value());
    const auto before = cluster.object_store().value();
    CHECK(before.spilled_bytes >= 12 * kMiB);
    CHECK(before.memory_bytes <= 8 * kMiB);
    for (int round = 0; round < 2; ++round) {
      for (int i = 0; i < 10; ++i) {
        const auto object = refs[static_cast<std::size_t>(i)].get().value();
        CHECK((*object).front() == static_cast<float>(i));
        CHECK((*object).back() == static_cast<float>(i));
      }
      CHECK((*refs[1500].get().value()).back() == 100);
    }
    CHECK(cluster.object_store().value().restored_bytes_total >= 12 * kMiB);
    refs.clear();
    CHECK(objects_become(cluster, 0));
    CHECK(cluster.object_store().value().spilled_bytes == 0);
  }
  CHECK(std::filesystem::is_empty(folder.path()));
}

// peer: test_memory_deadlock
TEST_CASE("an object that can never fit is named at once, one for which nobody makes room soon") {
  TemporaryDirectory folder;
  Cluster cluster = start(8 * kMiB, folder.path());
  const Status large = cluster.put(Floats(4 * kMiB)).status();
  CHECK(large.code() == Code::kResourceExhausted);
  CHECK_MESSAGE(large.message().find("larger than the object store") != std::string::npos,
                large.to_string());
  // Two that hold half of it each.
  const auto reader = cluster.spawn<Reader>({.name = "hog"}).value();
  const auto half = cluster.put(Floats(kMiB, 1)).value();
  REQUIRE(reader.call<&Reader::view>(std::vector{half}).get().ok());
  const auto other = cluster.put(Floats(kMiB - 20'000, 2)).value().get().value();
  const auto began = std::chrono::steady_clock::now();
  const Status full = cluster.put(Floats(kMiB / 2)).status();
  CHECK(std::chrono::steady_clock::now() - began < std::chrono::seconds(10));
  CHECK(full.code() == Code::kResourceExhausted);
  CHECK_MESSAGE(full.message().find("hog") != std::string::npos, full.to_string());
  REQUIRE(reader.call<&Reader::view>(std::vector<ObjectRef<Floats>>{}).get().ok());
  CHECK(cluster.put(Floats(kMiB / 2, 5)).ok());
  CHECK((*half.get().value()).back() == 1);
}

// The segments on disk.
std::vector<std::filesystem::path> spilled(const std::string& folder) {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    if (entry.path().extension() == ".segment") files.push_back(entry.path());
  }
  return files;
}

TEST_CASE("damage on disk is found, and named") {
  TemporaryDirectory folder;
  Cluster cluster = start(8 * kMiB, folder.path());
  const auto first = cluster.put(Floats(kMiB, 1)).value();
  const auto second = cluster.put(Floats(kMiB, 2)).value();
  const auto third = cluster.put(Floats(kMiB, 3)).value();  // the first is on disk now
  const auto files = spilled(folder.path());
  REQUIRE(files.size() == 1);
  {
    std::fstream file(files[0], std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(100'000);
    file.put('x');
  }
  const Status damaged = first.get().status();
  CHECK(damaged.code() == Code::kDataLoss);
  CHECK(damaged.message().find(files[0].string()) != std::string::npos);
  CHECK((*second.get().value())[5] == 2);
}

// peer: test_object_spilling.not_writable
TEST_CASE("a disk that takes nothing is named, and what is in memory stays") {
  TemporaryDirectory folder;
  const std::string no_folder = folder.file("no-folder");
  std::ofstream(no_folder) << "a file";
  Cluster cluster = start(8 * kMiB, no_folder);
  const auto first = cluster.put(Floats(kMiB, 1)).value();
  const Status full = cluster.put(Floats(kMiB + kMiB / 2, 2)).status();
  CHECK(full.code() == Code::kResourceExhausted);
  CHECK_MESSAGE(full.message().find(no_folder) != std::string::npos, full.to_string());
  CHECK((*first.get().value())[5] == 1);
}

TEST_CASE("what a store that was killed left on disk goes when the next one starts") {
  TemporaryDirectory folder;
  std::filesystem::create_directories(folder.file("killed"));
  std::ofstream(folder.file("killed/in-use")) << "";
  std::ofstream(folder.file("killed/1.segment")) << "objects";
  Cluster cluster = start(64 * kMiB, folder.path());
  REQUIRE(cluster.put(Floats(10, 1)).ok());
  const Deadline deadline = Deadline::after(std::chrono::seconds(20));
  const auto is_there = [&] { return std::filesystem::exists(folder.file("killed")); };
  while (is_there() && !deadline.passed()) std::this_thread::yield();
  CHECK_FALSE(is_there());
}

// peer: test_object_spilling.unlinked
TEST_CASE("a folder that is removed under way loses what was in it, by name") {
  TemporaryDirectory folder;
  const std::string inner = folder.file("objects");
  Cluster cluster = start(8 * kMiB, inner);
  const auto first = cluster.put(Floats(kMiB, 1)).value();
  const auto second = cluster.put(Floats(kMiB, 2)).value();
  const auto third = cluster.put(Floats(kMiB, 3)).value();
  std::filesystem::remove_all(inner);
  const Status gone = first.get().status();
  CHECK(gone.code() == Code::kDataLoss);
  CHECK_MESSAGE(gone.message().find(inner) != std::string::npos, gone.to_string());
  CHECK((*second.get().value())[5] == 2);
}

TEST_CASE("references are of one type, of one cluster, and end with their connection") {
  Cluster cluster = start();
  ObjectRef<Floats> ref = cluster.put(Floats(10, 1)).value();
  auto object = ref.get().value();
  cluster.close();
  CHECK(ref.get().status().code() == Code::kFailedPrecondition);
  CHECK((*object)[9] == 1);
  CHECK(cluster.put(1).status().code() == Code::kFailedPrecondition);
}

}  // namespace
}  // namespace troupe::tests
