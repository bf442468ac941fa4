#include "runtime/base/scratch_file.h"

#include <doctest/doctest.h>
#include <sys/resource.h>

#include <csignal>
#include <filesystem>

#include "tests/support/test_data.h"

namespace troupe {
namespace {

TEST_CASE("scratch data grow, keep what is in them, and leave nothing behind") {
  const tests::TemporaryDirectory directory;
  for (const std::string& folder : {directory.path(), std::string()}) {
    CAPTURE(folder);
    auto numbers = ScratchArray<std::uint32_t>::create(folder).value();
    CHECK(numbers.items().empty());
    for (std::uint32_t i = 0; i < 100'000; ++i) REQUIRE(numbers.append(i).ok());
    REQUIRE(numbers.grow(3).ok());
    auto moved = std::move(numbers);
    const auto items = moved.items();
    REQUIRE(items.size() == 100'003);
    bool equal = true;
    for (std::uint32_t i = 0; i < 100'000; ++i) equal = equal && items[i] == i;
    CHECK(equal);
    CHECK(items[100'002] == 0);
    items[7] = 9;
    CHECK(moved.items()[7] == 9);
    CHECK(std::filesystem::is_empty(directory.path()));
  }
}

TEST_CASE("scratch data that have no room are an error, as is a folder that is not there") {
  const tests::TemporaryDirectory directory;
  CHECK(ScratchFile::create(directory.file("missing")).status().code() == Code::kNotFound);
  auto file = ScratchFile::create(directory.path()).value();
  const std::string text = "kept";
  REQUIRE(file.append(std::as_bytes(std::span(text))).ok());
  const auto before = std::signal(SIGXFSZ, SIG_IGN);
  rlimit limit{};
  REQUIRE(::getrlimit(RLIMIT_FSIZE, &limit) == 0);
  const rlimit small{.rlim_cur = 1 << 20, .rlim_max = limit.rlim_max};
  REQUIRE(::setrlimit(RLIMIT_FSIZE, &small) == 0);
  const Status grown = file.grow(1 << 21);
  REQUIRE(::setrlimit(RLIMIT_FSIZE, &limit) == 0);
  std::signal(SIGXFSZ, before);
  CHECK_FALSE(grown.ok());
  CHECK(grown.message().find(directory.path()) != std::string::npos);
  REQUIRE(file.bytes().size() == 4);
  CHECK(static_cast<char>(file.bytes()[0]) == 'k');
}

}  // namespace
}  // namespace troupe
