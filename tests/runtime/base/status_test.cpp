#include "runtime/base/status.h"

#include <doctest/doctest.h>

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

}  // namespace
}  // namespace troupe
