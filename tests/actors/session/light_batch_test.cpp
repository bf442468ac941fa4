#include "actors/session/light_batch.h"

#include <doctest/doctest.h>

#include "actors/session/state_loss.h"
#include "troupe/detail/light_actor.h"
#include "troupe/serialize.h"

namespace troupe::detail {
namespace {

Bytes written(const LightBatch& batch) {
  Encoder out;
  batch.write(out);
  return out.take();
}

TEST_CASE("numbers of a batch travel as runs, and are those of the host") {
  LightBatch batch{.method = 3, .one_each = true, .runs = {}};
  for (const std::uint32_t number : {4u, 5u, 6u, 9u, 1u, 2u}) batch.add(number);
  REQUIRE(batch.runs.size() == 3);
  const Bytes bytes = written(batch);
  const auto read = [&](std::span<const std::byte> from, std::size_t end) {
    LightBatch back;
    Decoder in(from);
    return back.read(in, end) && back.method == 3 && back.one_each && back.runs.size() == 3 &&
           back.runs[0].first == 4 && back.runs[0].count == 3 && back.runs[2].count == 2;
  };
  CHECK(read(bytes, 10));
  CHECK_FALSE(read(bytes, 9));
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    CHECK_FALSE(read(std::span(bytes).first(size), 10));
  }
  // Runs that overlap are more numbers than the host has, at the latest in the end.
  batch.runs.assign(8, {0, 9});
  CHECK_FALSE(read(written(batch), 10));
  batch.runs.assign(1, {1, ~0u});
  CHECK_FALSE(read(written(batch), 10));
}

TEST_CASE("answers of a batch: results and failures") {
  Encoder out;
  put_light_answer(out, Bytes(3, std::byte{7}));
  put_light_answer(out, Status(Code::kNotFound, "no such thing"));
  put_light_answer(out, Bytes{});
  const Bytes bytes = out.take();
  Decoder in(bytes);
  std::span<const std::byte> result;
  CHECK(get_light_answer(in, result).ok());
  CHECK(result.size() == 3);
  CHECK(get_light_answer(in, result).code() == Code::kNotFound);
  CHECK(get_light_answer(in, result).ok());
  CHECK(result.empty());
  CHECK(get_light_answer(in, result).code() == Code::kProtocol);
}

class Cell {
 public:
  void nothing() {}
  int save() const { return 0; }
  void load(int) {}
  static constexpr auto methods = troupe::methods<&Cell::nothing>;
};

TEST_CASE("a batch that is the first to hear of lost states hears it for all that it names") {
  const auto& hosts = kLightInterface<Cell>;
  StateLoss loss(hosts);
  wire::ActorInfo info;
  info.state_lost_generation = 2;
  const auto call = [&](std::uint32_t number) {
    return loss.tell(0, encode_arguments(std::tuple(number))).code();
  };
  LightBatch batch;
  for (const std::uint32_t number : {0u, 1u, 2u}) batch.add(number);
  const Bytes bytes = written(batch);
  const std::uint32_t each = light_method(hosts, LightMethod::kEach);
  loss.bound(1, {});
  CHECK(loss.tell(each, bytes).ok());
  CHECK(call(5) == Code::kOk);
  loss.bound(2, info);
  CHECK(call(1) == Code::kDataLoss);
  CHECK(loss.tell(each, bytes).code() == Code::kDataLoss);
  CHECK(loss.tell(each, bytes).ok());
  CHECK(call(2) == Code::kOk);
  CHECK(call(5) == Code::kDataLoss);
  CHECK(call(7) == Code::kOk);
}

}  // namespace
}  // namespace troupe::detail
