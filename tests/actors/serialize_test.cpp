#include "troupe/serialize.h"

#include <doctest/doctest.h>

#include "runtime/base/random.h"

namespace troupe {
namespace {

enum class Colour : std::uint8_t { kRed, kBlue };
struct Point {
  int x = 0;
  double y = 0;
  friend bool operator==(const Point&, const Point&) = default;
};
struct Nothing {
  friend bool operator==(Nothing, Nothing) { return true; }
};
struct Shape {
  std::string name;
  std::vector<Point> points;
  std::optional<Colour> colour;
  std::map<std::string, std::vector<std::int64_t>> tags;
  std::variant<std::monostate, int, std::string> extra;
  Nothing nothing;
  ActorId id;
  friend bool operator==(const Shape&, const Shape&) = default;
};
struct Other {
  int x = 0;
  float y = 0;
};
class Closed {
 public:
  Closed(int);

 private:
  int value_;
};
struct HoldsClosed {
  std::vector<Closed> values;
};

// Codecs that misbehave.
struct Thrower {
  int how = 0;
};
}  // namespace

template <>
struct Codec<Thrower> {
  static constexpr bool kSupported = true;
  static constexpr std::size_t kBytesMin = sizeof(int);
  static constexpr std::uint64_t kHash = TypeHash::of("Thrower");
  static void encode(Encoder& out, const Thrower& value) { Codec<int>::encode(out, value.how); }
  static bool decode(Decoder& in, Thrower& value) {
    if (!Codec<int>::decode(in, value.how)) return false;
    if (value.how == 1) throw std::runtime_error("on purpose");
    if (value.how == 2) throw std::bad_alloc();
    if (value.how == 3) throw 3;
    return value.how == 0;
  }
};

namespace {

Shape sample() {
  return {.name = "L",
          .points = {{1, 2.5}, {-3, 1e300}},
          .colour = Colour::kBlue,
          .tags = {{"a", {1, 2}}, {"b", {}}},
          .extra = std::string("more"),
          .nothing = {},
          .id = {7, 9}};
}

template <typename T>
void check_round_trip(const T& value) {
  const auto back = decode_value<T>(encode_value(value));
  REQUIRE_MESSAGE(back.ok(), back.status().to_string());
  CHECK(*back == value);
}

TEST_CASE("values survive the journey") {
  check_round_trip(true);
  check_round_trip<std::int8_t>(-5);
  check_round_trip<std::uint64_t>(~0ull);
  check_round_trip(1.5f);
  check_round_trip(Colour::kBlue);
  check_round_trip(std::string("a\0b", 3));
  check_round_trip(std::vector<bool>{true, false, true});
  check_round_trip(std::vector<float>{1, 2, 3});
  check_round_trip(wire::Bytes(1000, std::byte{7}));
  check_round_trip(std::deque<std::string>{"x", ""});
  check_round_trip(std::list<int>{1, 2});
  check_round_trip(std::array<std::int16_t, 3>{1, 2, 3});
  check_round_trip(std::set<std::string>{"p", "q"});
  check_round_trip(std::unordered_map<int, std::string>{{1, "one"}, {2, "two"}});
  check_round_trip(std::unordered_set<int>{4, 5});
  check_round_trip(std::tuple<int, std::string, std::pair<bool, char>>{1, "t", {true, 'c'}});
  check_round_trip(std::tuple<>{});
  check_round_trip(std::chrono::milliseconds(1234));
  check_round_trip(Nothing{});
  check_round_trip(sample());
  check_round_trip(std::vector<Status>{
      error(Code::kDataLoss, "damaged").with("file", "a").with("rank", 3), Status()});
  const auto pointer =
      decode_value<std::unique_ptr<Point>>(encode_value(std::make_unique<Point>(Point{4, 5})));
  REQUIRE(pointer.ok());
  CHECK(**pointer == Point{4, 5});
}

TEST_CASE("types that cannot travel are known before compiling their use") {
  CHECK(Serializable<Shape>);
  CHECK_FALSE(Serializable<Closed>);
  CHECK_FALSE(Serializable<HoldsClosed>);
  CHECK_FALSE(Serializable<int*>);
  CHECK_FALSE(Serializable<std::string_view>);
  CHECK_FALSE(Serializable<long double>);
}

TEST_CASE("the structural hash tells types apart and sees equal ones as equal") {
  CHECK(Codec<Point>::kHash != Codec<Other>::kHash);
  CHECK(Codec<std::vector<int>>::kHash != Codec<std::set<int>>::kHash);
  CHECK(Codec<long>::kHash == Codec<long long>::kHash);
  CHECK(Codec<int>::kHash != Codec<unsigned>::kHash);
  CHECK(Codec<NodeId>::kHash != Codec<ActorId>::kHash);
}

TEST_CASE("every truncation of a value is an error, and so are bytes after it") {
  const auto bytes = encode_value(sample());
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    const auto result = decode_value<Shape>(std::span(bytes).first(size));
    CHECK(result.status().code() == Code::kProtocol);
  }
  auto longer = bytes;
  longer.push_back(std::byte{0});
  CHECK(decode_value<Shape>(longer).status().code() == Code::kProtocol);
}

TEST_CASE("hostile counts cost nothing") {
  const auto huge = encode_value<std::uint32_t>(0xffffffffu);
  CHECK(decode_value<std::string>(huge).status().code() == Code::kProtocol);
  CHECK(decode_value<std::vector<double>>(huge).status().code() == Code::kProtocol);
  CHECK(decode_value<std::vector<Nothing>>(huge).status().code() == Code::kProtocol);
  CHECK(decode_value<std::vector<std::tuple<>>>(huge).status().code() == Code::kProtocol);
  CHECK(decode_value<std::map<int, int>>(huge).status().code() == Code::kProtocol);
}

TEST_CASE("bytes that mean nothing are refused") {
  const wire::Bytes two{std::byte{2}};
  CHECK_FALSE(decode_value<bool>(two).ok());
  CHECK_FALSE(decode_value<Nothing>(two).ok());
  const wire::Bytes nine{std::byte{9}, std::byte{0}};
  CHECK_FALSE((decode_value<std::variant<int, bool>>(nine).ok()));
  // The same key twice.
  const auto pairs = encode_value(std::vector<std::pair<int, int>>{{1, 1}, {1, 2}});
  CHECK_FALSE((decode_value<std::map<int, int>>(pairs).ok()));
}

TEST_CASE("a codec that throws, or refuses without a word, is an error with words") {
  const auto decoded = [](int how) { return decode_value<Thrower>(encode_value(Thrower{how})); };
  CHECK(decoded(0).ok());
  CHECK(decoded(1).status().code() == Code::kProtocol);
  CHECK(decoded(1).status().message().find("on purpose") != std::string::npos);
  CHECK(decoded(2).status().code() == Code::kResourceExhausted);
  CHECK(decoded(3).status().code() == Code::kProtocol);
  CHECK(decoded(4).status().code() == Code::kProtocol);
  CHECK_FALSE(decoded(4).status().message().empty());
}

TEST_CASE("random damage never crashes") {
  SeededRandom random(1);
  const auto bytes = encode_value(sample());
  for (int i = 0; i < 20'000; ++i) {
    auto damaged = bytes;
    for (int k = 0; k < 3; ++k) {
      damaged[random.below(damaged.size())] = static_cast<std::byte>(random.below(256));
    }
    (void)decode_value<Shape>(damaged);
  }
}

}  // namespace
}  // namespace troupe
