#include "scheduler/control/delta_batch.h"

#include <doctest/doctest.h>

#include "runtime/base/random.h"
#include "scheduler/control/journal_bytes.h"

using namespace troupe;
using namespace troupe::scheduler;

namespace {

SeededRandom& random_source() {
  static SeededRandom random(7);
  return random;
}

// As a driver makes many of one class.
ActorCreated made(std::uint64_t number) {
  ActorCreated created;
  wire::ActorSpec& spec = created.spec;
  spec.actor_id = ActorId::make(random_source());
  spec.type = "Reader";
  spec.name = "reader-" + std::to_string(number);
  spec.image = {"/home/somebody/project/build/release/bin/program", 0x1234'5678'9abc'def0};
  spec.environment = {{"OMP_NUM_THREADS", "1"}, {"DATA", "/data/somewhere/on/this/machine"}};
  spec.resources = {{"CPU", 10'000}, {"memory", 1 << 30}};
  spec.job_id = JobId{3, 4};
  spec.owner = ClientId{5, 6};
  return created;
}
ActorChanged waits(const ActorCreated& created, std::uint64_t number) {
  ActorChanged changed;
  changed.info.actor_id = created.spec.actor_id;
  changed.info.type = created.spec.type;
  changed.info.name = created.spec.name;
  changed.info.resources = created.spec.resources;
  changed.info.job_id = created.spec.job_id;
  changed.info.owner_name = "driver";
  changed.queue_order = number;
  return changed;
}

wire::Bytes noise(std::size_t size) {
  wire::Bytes bytes(size);
  random_source().fill(bytes);
  return bytes;
}

std::vector<Delta> decoded(std::span<const std::byte> payload) {
  std::vector<Delta> deltas;
  const Status status = decode_deltas(payload, [&](Delta delta) {
    deltas.push_back(std::move(delta));
    return Status();
  });
  REQUIRE_MESSAGE(status.ok(), status.to_string());
  return deltas;
}

}  // namespace

TEST_CASE("what actors have in common is written once") {
  std::vector<Delta> deltas;
  for (std::uint64_t i = 0; i < 1000; ++i) {
    const ActorCreated created = made(i);
    deltas.push_back(created);
    deltas.push_back(waits(created, i));
  }
  const auto payload = encode_deltas(deltas);
  CHECK(decoded(payload) == deltas);
  CHECK(payload.size() < 1000 * 100);
  std::uint64_t alone = 0;
  for (const Delta& delta : deltas) alone += encode_deltas(std::span(&delta, 1)).size();
  CHECK(alone > 5 * payload.size());
}

TEST_CASE("any bytes come back, and take no more than was counted") {
  std::vector<Delta> deltas;
  for (const std::size_t size :
       {0u, 1u, 7u, 8u, 9u, 63u, 64u, 255u * 8, 256u * 8, 257u * 8, 100'000u}) {
    for (const int form : {0, 1, 2, 3}) {
      ActorCreated created;
      wire::Bytes& bytes = created.spec.constructor_arguments;
      bytes = form == 0 ? wire::Bytes(size) : noise(size);
      // Words between zeros, and words that are nearly whole.
      for (std::size_t i = 0; i < size; ++i) {
        if ((form == 2 && i / 8 % 2 == 0) || (form == 3 && i % 8 < i / 8 % 3)) bytes[i] = {};
      }
      deltas.push_back(created);
      CHECK(encode_deltas(std::span(&deltas.back(), 1)).size() + 20 <=
            journal_bytes(deltas.back()));
    }
  }
  for (const Delta& delta : deltas) {
    CHECK(decoded(encode_deltas(std::span(&delta, 1))) == std::vector<Delta>{delta});
  }
  const auto payload = encode_deltas(deltas);
  CHECK(decoded(payload) == deltas);
  CHECK(payload.size() <= journal_bytes(deltas));
  CHECK(decoded(encode_deltas({})).empty());
}

TEST_CASE("a few bytes that claim to be a decision of a gigabyte are refused by its size") {
  std::vector<std::byte> payload{std::byte{3}, std::byte{1}};
  for (const unsigned byte : {0x80, 0x80, 0x80, 0x80, 0x04}) {  // 1 << 30
    payload.push_back(static_cast<std::byte>(byte));
  }
  // Each pair is 256 words of zeros.
  for (int i = 0; i < (1 << 30) / (256 * 8); ++i) {
    payload.push_back(std::byte{0});
    payload.push_back(std::byte{255});
  }
  const Status status = decode_deltas(payload, [](const Delta&) { return Status(); });
  CHECK(status.code() == Code::kDataLoss);
  CHECK(status.message().find("a decision of 1073741824 bytes") != std::string::npos);
}

TEST_CASE("a payload that is cut, or of a later version, is an error") {
  const ActorCreated created = made(1);
  const std::vector<Delta> deltas{created, waits(created, 1), made(2)};
  const auto payload = encode_deltas(deltas);
  for (std::size_t size = 0; size < payload.size(); ++size) {
    CAPTURE(size);
    std::vector<Delta> some;
    const Status status = decode_deltas(std::span(payload).first(size), [&](Delta delta) {
      some.push_back(std::move(delta));
      return Status();
    });
    REQUIRE(some.size() < 3);
    CHECK(std::equal(some.begin(), some.end(), deltas.begin()));
    // Between two deltas it is one of fewer.
    if (!status.ok()) CHECK(status.code() == Code::kDataLoss);
  }
  auto later = payload;
  later.front() = std::byte{4};
  const auto ignore = [](const Delta&) { return Status(); };
  CHECK(decode_deltas(later, ignore).code() == Code::kUnsupported);
  later = payload;
  later[1] = std::byte{99};
  CHECK(decode_deltas(later, ignore).code() == Code::kUnsupported);
}
