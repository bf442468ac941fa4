#include "troupe/deliveries.h"

#include <doctest/doctest.h>

namespace troupe::tests {
namespace {

TEST_CASE("what was acknowledged must be seen, once, and nothing that nobody sent") {
  Deliveries log;
  for (const int number : {1, 2, 3}) log.sent(number);
  log.acknowledged(1);
  log.acknowledged(2);
  log.seen(1);
  CHECK(log.none_lost().code() == Code::kDataLoss);
  CHECK(log.none_lost().message().find("2 is the first") != std::string::npos);
  log.seen(2);
  CHECK(log.exactly_once().ok());  // 3 was sent, and whether it arrived nobody was told
  log.seen(3);
  CHECK(log.exactly_once().ok());
  log.seen(3);
  CHECK(log.none_lost().ok());
  CHECK(log.none_twice().code() == Code::kAlreadyExists);
  CHECK(log.exactly_once().code() == Code::kAlreadyExists);
  log.seen(9);
  CHECK(log.none_lost().code() == Code::kInternal);
}

}  // namespace
}  // namespace troupe::tests
