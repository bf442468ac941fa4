// The fake's communicators hang, fail and end as their users' tests need it.

#include <doctest/doctest.h>

#include <thread>

#include "tests/train/cuda/communicator/device_ranks.h"

namespace troupe::tests {
namespace {

using Id = std::uint8_t[TROUPE_CUDA_GROUP_ID_BYTES];

int poll(const TroupeCudaTable& table, TroupeCudaGroup* group) {
  for (;;) {
    const int code = table.group_state(group);
    if (code != TROUPE_CUDA_NOT_READY) return code;
    std::this_thread::yield();
  }
}

TEST_CASE("a group waits for its ranks, and nothing is on a stream before it is connected") {
  fake_cuda_reset({.devices = 2, .group_init_polls = 2, .group_connect_polls = 2});
  RankDeviceMemory a(0), b(1);
  const TroupeCudaTable& t = a.table;
  Id id;
  REQUIRE(t.group_unique_id(id) == TROUPE_CUDA_OK);
  TroupeCudaGroup *first = nullptr, *second = nullptr;
  REQUIRE(t.group_begin_init(a.context, id, 2, 0, "g", &first) == TROUPE_CUDA_OK);
  for (int i = 0; i < 10; ++i) CHECK(t.group_state(first) == TROUPE_CUDA_NOT_READY);
  const auto from = a.room<float>(0, 4), to = b.room<float>(0, 4);
  CHECK(t.group_send(first, a.stream, from.data(), 16, 1) == TROUPE_CUDA_INVALID);
  REQUIRE(t.group_begin_init(b.context, id, 2, 1, "g", &second) == TROUPE_CUDA_OK);
  CHECK(t.group_state(first) == TROUPE_CUDA_NOT_READY);
  CHECK(poll(t, first) == TROUPE_CUDA_OK);
  CHECK(poll(t, second) == TROUPE_CUDA_OK);

  from[3] = 5;
  CHECK(t.group_send(first, a.stream, from.data(), 16, 1) == TROUPE_CUDA_OK);
  CHECK(t.stream_query(a.stream) == TROUPE_CUDA_OK);  // not there yet
  CHECK(t.group_send(first, a.stream, from.data(), 16, 1) == TROUPE_CUDA_INVALID);
  CHECK(t.group_receive(second, b.stream, to.data(), 16, 0) == TROUPE_CUDA_OK);
  CHECK(poll(t, first) == TROUPE_CUDA_OK);
  CHECK(t.stream_query(a.stream) == TROUPE_CUDA_NOT_READY);
  CHECK(poll(t, second) == TROUPE_CUDA_OK);
  CHECK(t.stream_synchronize(b.stream) == TROUPE_CUDA_OK);
  CHECK(to[3] == 5);

  // Sizes that differ never meet; an abort ends the own side alone.
  CHECK(t.group_send(first, a.stream, from.data(), 16, 1) == TROUPE_CUDA_OK);
  CHECK(t.group_receive(second, b.stream, to.data(), 8, 0) == TROUPE_CUDA_OK);
  CHECK(t.group_abort(first) == TROUPE_CUDA_OK);
  CHECK(t.stream_synchronize(a.stream) == TROUPE_CUDA_OK);
  CHECK(t.stream_query(b.stream) == TROUPE_CUDA_NOT_READY);
  CHECK(t.group_abort(second) == TROUPE_CUDA_OK);
  CHECK(t.stream_synchronize(b.stream) == TROUPE_CUDA_OK);
}

TEST_CASE("an abort of one group while another one's operation hangs is told, of both it is not") {
  for (const bool together : {false, true}) {
    fake_cuda_reset({.devices = 2});
    RankDeviceMemory a(0), b(1);
    const TroupeCudaTable& t = a.table;
    TroupeCudaGroup* groups[2][2] = {};  // by rank
    for (int g = 0; g < 2; ++g) {
      Id id;
      REQUIRE(t.group_unique_id(id) == TROUPE_CUDA_OK);
      REQUIRE(t.group_begin_init(a.context, id, 2, 0, "g", &groups[0][g]) == TROUPE_CUDA_OK);
      REQUIRE(t.group_begin_init(b.context, id, 2, 1, "g", &groups[1][g]) == TROUPE_CUDA_OK);
      CHECK(poll(t, groups[0][g]) == TROUPE_CUDA_OK);
      CHECK(poll(t, groups[1][g]) == TROUPE_CUDA_OK);
    }
    const auto room = a.room<float>(0, 4);
    CHECK(t.group_receive(groups[0][1], a.stream, room.data(), 16, 1) == TROUPE_CUDA_OK);
    CHECK(poll(t, groups[0][1]) == TROUPE_CUDA_OK);
    const auto before = fake_cuda_left().size();
    if (!together) {
      CHECK(t.group_abort(groups[0][0]) == TROUPE_CUDA_OK);
      CHECK(fake_cuda_left().size() == before + 1);
      CHECK(t.group_abort(groups[0][1]) == TROUPE_CUDA_OK);
    } else {
      CHECK(t.groups_abort(groups[0], 2) == TROUPE_CUDA_OK);
      CHECK(fake_cuda_left().size() == before);
    }
    CHECK(t.groups_abort(groups[1], 2) == TROUPE_CUDA_OK);
    CHECK(t.stream_synchronize(a.stream) == TROUPE_CUDA_OK);
  }
  fake_cuda_reset();
}

TEST_CASE("ranks of one device are refused") {
  fake_cuda_reset({.devices = 1});
  RankDeviceMemory a(0), b(0);
  const TroupeCudaTable& t = a.table;
  Id id;
  REQUIRE(t.group_unique_id(id) == TROUPE_CUDA_OK);
  TroupeCudaGroup *first = nullptr, *second = nullptr;
  REQUIRE(t.group_begin_init(a.context, id, 2, 0, "g", &first) == TROUPE_CUDA_OK);
  REQUIRE(t.group_begin_init(b.context, id, 2, 1, "g", &second) == TROUPE_CUDA_OK);
  CHECK(poll(t, first) == TROUPE_CUDA_INVALID);
  CHECK(std::string(t.error_text()).find("Duplicate GPU detected") == 0);
  CHECK(t.group_abort(first) == TROUPE_CUDA_OK);
  CHECK(t.group_abort(second) == TROUPE_CUDA_OK);
}

TEST_CASE("the library's sums are in order of rank, which is not the tree's") {
  fake_cuda_reset({.devices = 3});
  run_devices(3, [](Rank rank) {
    const TroupeCudaTable& t = rank.device.table;
    Id id;
    if (rank.rank() == 0) REQUIRE(t.group_unique_id(id) == TROUPE_CUDA_OK);
    REQUIRE(rank.host.broadcast(std::span<std::uint8_t>(id), 0).ok());
    TroupeCudaGroup* group = nullptr;
    REQUIRE(t.group_begin_init(rank.device.context, id, 3, rank.rank(), "g", &group) ==
            TROUPE_CUDA_OK);
    CHECK(poll(t, group) == TROUPE_CUDA_OK);
    // In fp32 the two small ones are lost to 1 one by one, but not together.
    const auto data = rank.device.room<float>(0, 1);
    data[0] = rank.rank() == 2 ? 1.0f : 0x1p-24f;
    CHECK(t.group_all_reduce(group, rank.device.stream, data.data(), data.data(), 1,
                             TROUPE_CUDA_F32, TROUPE_CUDA_SUM) == TROUPE_CUDA_OK);
    CHECK(poll(t, group) == TROUPE_CUDA_OK);
    CHECK(t.stream_synchronize(rank.device.stream) == TROUPE_CUDA_OK);
    CHECK(data[0] == 1.0f + 0x1p-23f);  // by the tree: (2⁻²⁴ + 1) + 2⁻²⁴ = 1
    CHECK(t.group_destroy(group) == TROUPE_CUDA_OK);
  });
}

}  // namespace
}  // namespace troupe::tests
