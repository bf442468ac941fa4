#include "actors/session/kept_answers.h"

#include <doctest/doctest.h>

namespace troupe::detail::kept_answers_test {
namespace {

ClientId caller(char fill) { return ClientId::parse(std::string(32, fill)).value(); }
wire::Bytes frame(std::size_t bytes) { return wire::Bytes(bytes, std::byte{7}); }

TEST_CASE("the answers that were given first go first, not those of the lowest calls") {
  KeptAnswers kept;
  const ClientId a = caller('a');
  // A call that took longer than all that its caller made after it.
  for (std::uint64_t call = 2; call <= KeptAnswers::kOfCallerMax + 10; ++call)
    kept.add(a, call, frame(10));
  kept.add(a, 1, frame(10));
  CHECK(kept.find(a, 1) != nullptr);
  CHECK(kept.find(a, 2) == nullptr);
  CHECK(kept.find(a, KeptAnswers::kOfCallerMax + 10) != nullptr);
  CHECK(kept.bytes() == 10 * KeptAnswers::kOfCallerMax);
}

TEST_CASE("the answers of a caller's calls from one to another") {
  KeptAnswers kept;
  for (std::uint64_t call = 1; call <= 9; ++call) kept.add(caller('a'), call, frame(call));
  kept.add(caller('b'), 5, frame(50));
  std::size_t bytes = 0;
  const auto take = [&](std::uint64_t call, const wire::Bytes& answer) {
    CHECK(answer.size() == call);
    bytes += call;
  };
  kept.for_calls(caller('a'), 3, 6, take);
  CHECK(bytes == 4 + 5 + 6);
  kept.for_calls(caller('a'), 9, 100, take);
  kept.for_calls(caller('c'), 0, 100, take);
  CHECK(bytes == 4 + 5 + 6);
}

TEST_CASE("bounded by bytes for a caller, and over all of them") {
  KeptAnswers kept;
  const std::size_t large = KeptAnswers::kAnswerBytesMax;
  kept.add(caller('a'), 1, frame(large + 1));
  CHECK(kept.find(caller('a'), 1) == nullptr);
  for (std::uint64_t call = 1; call <= 5; ++call) kept.add(caller('a'), call, frame(large));
  CHECK(kept.find(caller('a'), 1) == nullptr);
  CHECK(kept.find(caller('a'), 2) != nullptr);
  for (const char other :
       {'1', '2', '3', '4', '5', '6', '7', '8', '9', 'b', 'c', 'd', 'e', 'f', '0'})
    for (std::uint64_t call = 1; call <= 4; ++call) kept.add(caller(other), call, frame(large));
  CHECK(kept.bytes() == KeptAnswers::kAllBytesMax);
  CHECK(kept.find(caller('a'), 2) != nullptr);
  ClientId one_more = ClientId::parse(std::string(31, 'a') + "b").value();
  kept.add(one_more, 1, frame(large));
  CHECK(kept.find(caller('a'), 2) == nullptr);
  CHECK(kept.find(caller('a'), 3) != nullptr);
  CHECK(kept.bytes() == KeptAnswers::kAllBytesMax);
  kept.forget(caller('a'));
  CHECK(kept.find(caller('a'), 3) == nullptr);
  CHECK(kept.bytes() == KeptAnswers::kAllBytesMax - 3 * large);
}

}  // namespace
}  // namespace troupe::detail::kept_answers_test
