#include "runtime/base/status.h"

#include <doctest/doctest.h>

#include <memory>
#include <string>
#include <utility>

namespace troupe {
namespace {

Result<int> half(int x) {
  if (x % 2 != 0) return error(Code::kInvalidArgument, "{} is odd", x);
  return x / 2;
}

Result<int> quarter(int x) {
  const int h = TROUPE_TRY(half(x));
  return TROUPE_TRY(half(h));
}

TEST_CASE("a Result holds a value or the reason why there is none") {
  CHECK(*quarter(8) == 2);
  const auto failed = quarter(6);
  CHECK(!failed.ok());
  CHECK(failed.status().code() == Code::kInvalidArgument);
  CHECK(failed.status().message() == "3 is odd");
  CHECK_THROWS_AS(static_cast<void>(quarter(6).value()), StatusError);
}

TEST_CASE("context is added once per key, innermost first") {
  Status status = error(Code::kActorDied, "gone").with("actor", "a1").with("node", 7);
  status.with("actor", "outer");
  CHECK(status.to_string() == "gone (actor=a1, node=7)");
  CHECK(*status.context("actor") == "a1");
  CHECK(Status().with("x", 1).context().empty());
}

TEST_CASE("every code has a name, a meaning and an exit code; unknown numbers are internal") {
  for (int n = 0; code_from_number(n) != Code::kInternal || n == 18; ++n) {
    const Code code = code_from_number(n);
    CHECK(!code_name(code).empty());
    CHECK(!code_meaning(code).empty());
    CHECK((exit_code(code) == 0) == (code == Code::kOk));
  }
  CHECK(code_from_number(12345) == Code::kInternal);
  CHECK(code_from_number(-1) == Code::kInternal);
}

TEST_CASE("a Status is a value") {
  Status status = error(Code::kDataLoss, "torn").with("file", "f").with("at", 3);
  const Status copy = status;
  status.with("rank", std::string("1"));
  CHECK(copy.to_string() == "torn (file=f, at=3)");
  CHECK(status.to_string() == "torn (file=f, at=3, rank=1)");
  CHECK_FALSE(copy == status);
  const Status moved = std::move(status);
  CHECK(moved.to_string() == "torn (file=f, at=3, rank=1)");
  // What was moved from is a failure still, without words.
  CHECK(status.code() == Code::kDataLoss);
  CHECK(status.message().empty());
  CHECK(status == Status(Code::kDataLoss, ""));
  status = copy;
  CHECK(status == copy);
  Status& same = status;
  status = same;
  status = std::move(same);
  CHECK(status == copy);
  status = Status();
  CHECK(status == Status());
  CHECK(status.to_string() == "ok");
  CHECK(copy.prefixed("reading").to_string() == "reading: torn (file=f, at=3)");
  CHECK(Status().prefixed("reading").ok());
}

// How many there are.
struct Piece {
  static inline int alive = 0;
  int number;
  explicit Piece(int n) : number(n) { ++alive; }
  Piece(const Piece& other) : number(other.number) { ++alive; }
  Piece(Piece&& other) noexcept : number(std::exchange(other.number, -1)) { ++alive; }
  ~Piece() { --alive; }
};

TEST_CASE("a Result's value lives as long as the Result holds it") {
  {
    Result<Piece> one = Piece(1);
    CHECK(Piece::alive == 1);
    Result<Piece> other = one;
    CHECK(Piece::alive == 2);
    one = error(Code::kNotFound, "no piece");
    CHECK(Piece::alive == 1);
    CHECK(one.status().message() == "no piece");
    CHECK(other.status().ok());
    const Result<Piece> failed = one;
    one = other;
    CHECK(one->number == 1);
    CHECK(Piece::alive == 2);
    one = std::move(other);
    CHECK(one->number == 1);
    CHECK(other->number == -1);  // still a value, moved from
    one = failed;
    CHECK(one.status() == failed.status());
    CHECK(std::move(one).value_or(Piece(5)).number == 5);
    CHECK(std::move(one).status().message() == "no piece");
    CHECK(!one.ok());
    CHECK(Piece::alive == 1);
  }
  CHECK(Piece::alive == 0);
}

TEST_CASE("a Result of what can only be moved") {
  static_assert(!std::is_copy_constructible_v<Result<std::unique_ptr<int>>>);
  const auto make = [](bool good) -> Result<std::unique_ptr<int>> {
    if (!good) return {Code::kCancelled, "not now"};
    return std::make_unique<int>(4);
  };
  const auto twice = [&](bool good) -> Result<int> { return 2 * *TROUPE_TRY(make(good)); };
  CHECK(twice(true).value() == 8);
  CHECK(twice(false).status() == Status(Code::kCancelled, "not now"));
  auto result = make(false);
  result = make(true);
  CHECK(**result == 4);
}

}  // namespace
}  // namespace troupe
