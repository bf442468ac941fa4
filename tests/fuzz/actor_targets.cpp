// Arguments, results and saved state of actors.

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <tuple>
#include <unordered_map>
#include <variant>

#include "actors/saved_state.h"
#include "actors/serialize.h"
#include "runtime/base/check.h"
#include "tests/fuzz/fuzz_input.h"

namespace troupe::tests {
namespace {

enum class Color : std::uint8_t { kRed, kGreen };

struct Point3 {
  float x = 0;
  double y = 0;
  std::int16_t z = 0;
};

// One of every kind that may be an argument.
struct EveryKind {
  bool flag = false;
  Color color = Color::kRed;
  std::uint64_t number = 0;
  std::string text;
  std::vector<double> numbers;
  std::vector<std::string> texts;
  std::deque<Point3> points;
  std::array<std::int32_t, 3> three{};
  std::map<std::string, std::vector<std::int32_t>> lists;
  std::set<std::int32_t> set;
  std::unordered_map<std::int32_t, std::string> table;
  std::optional<Point3> maybe;
  std::variant<std::int32_t, std::string, Point3> one_of;
  std::pair<std::string, bool> pair;
  std::tuple<std::int8_t, double> tuple;
  std::unique_ptr<std::vector<std::string>> owned;
  std::chrono::milliseconds duration{0};
  Status status;
  ActorId id;
};

void run_values(std::span<const std::byte> input) {
  auto read = decode_value<EveryKind>(input);
  if (!read.ok()) {
    TROUPE_CHECK(read.status().code() == Code::kProtocol);
    return;
  }
  const auto again = decode_value<EveryKind>(encode_value(*read));
  TROUPE_CHECK(again.ok(), "{}", again.status().to_string());
}

std::vector<FuzzBytes> value_seeds() {
  std::vector<FuzzBytes> seeds;
  seeds.push_back(encode_value(EveryKind{}));
  EveryKind filled;
  filled.flag = true;
  filled.color = Color::kGreen;
  filled.text = "text";
  filled.numbers = {1, 2.5};
  filled.texts = {"a", "", "bc"};
  filled.points = {{1, 2, 3}, {}};
  filled.lists = {{"a", {1, 2}}, {"b", {}}};
  filled.set = {1, 2, 3};
  filled.table = {{7, "seven"}};
  filled.maybe = Point3{4, 5, 6};
  filled.one_of = std::string("x");
  filled.pair = {"p", true};
  filled.owned = std::make_unique<std::vector<std::string>>(2, "owned");
  filled.status = Status(Code::kNotFound, "nowhere").with("actor", "a");
  seeds.push_back(encode_value(filled));
  return seeds;
}

// --- saved state ---------------------------------------------------------------------------------

constexpr std::size_t kStateSegmentBytes = 3 * 4096;

// A segment of the size that small states have, with the input over its headers: bytes 0… of the
// segment, of slot 0 and of slot 1.
void run_saved_state(std::span<const std::byte> input) {
  FuzzInput in(input);
  UniqueFd fd(::memfd_create("fuzz", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  TROUPE_CHECK(fd.valid() && ::ftruncate(fd.get(), kStateSegmentBytes) == 0);
  for (off_t at = 0; at < static_cast<off_t>(kStateSegmentBytes); at += 4096) {
    const auto piece = in.piece();
    const auto count = std::min<std::size_t>(piece.size(), 4096);
    if (count > 0) TROUPE_CHECK(::pwrite(fd.get(), piece.data(), count, at) > 0);
  }
  // As memory::Segment seals its own.
  TROUPE_CHECK(::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0);
  auto segment = detail::SavedStateSegment::open(std::move(fd));
  if (!segment.ok()) return;
  const auto state = segment->read();
  if (!state || !segment->fits(state->bytes.size())) return;
  segment->write(*state);
  TROUPE_CHECK(segment->read()->bytes == state->bytes);
}

std::vector<FuzzBytes> saved_state_seeds() {
  auto segment = detail::SavedStateSegment::create(100).value();
  const auto page = [&](off_t at, std::size_t count) {
    FuzzBytes bytes(count);
    TROUPE_CHECK(::pread(segment.fd(), bytes.data(), count, at) == static_cast<ssize_t>(count));
    return bytes;
  };
  std::vector<FuzzBytes> seeds;
  for (int saves = 0; saves < 3; ++saves) {
    seeds.push_back(
        FuzzSeed().piece(page(0, 16)).piece(page(4096, 100)).piece(page(8192, 100)).take());
    segment.write({1, 7, FuzzBytes(20, static_cast<std::byte>(saves))});
  }
  return seeds;
}

}  // namespace

constinit const FuzzTarget kActorValuesTarget{"actor_values", "arguments and results of calls",
                                              4096, &run_values, &value_seeds};
constinit const FuzzTarget kSavedStateTarget{"saved_state", "the segment of an actor's saved state",
                                             12400, &run_saved_state, &saved_state_seeds};

}  // namespace troupe::tests
