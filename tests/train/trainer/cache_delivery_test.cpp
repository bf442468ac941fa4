#include "train/trainer/cache_delivery.h"

#include <doctest/doctest.h>
#include <sys/socket.h>

#include <array>
#include <fstream>
#include <future>
#include <thread>

#include "tests/support/test_data.h"
#include "tests/support/text.h"
#include "train/data/token_cache.h"

namespace troupe::train {
namespace {

using troupe::tests::contains;

// A controller's machine with a cache, and the disk of another one.
struct Machines {
  Machines() {
    auto writer = TokenCacheWriter::begin(files, here + ".building").value();
    TokenDataset samples(TokenDataset::Kind::kPretrain, 0);
    // More than a piece that is sent at a time.
    const std::vector<TokenId> ids(700'000, 7);
    samples.append(ids);
    samples.append(std::span(ids).first(3));
    REQUIRE(writer.append("train", samples).ok());
    REQUIRE(writer.finish({}, here).ok());
  }
  // The results of the sender and of the receiver.
  std::pair<Status, Status> deliver(bool shared = false) {
    std::array<int, 2> ends{};
    REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) == 0);
    auto offered = std::async(std::launch::async, [this, fd = ends[0]] {
      ByteStream stream{UniqueFd(fd)};
      return offer_token_cache(files, stream, here);
    });
    ByteStream stream{UniqueFd(ends[1])};
    const Status taken = take_token_cache(files, stream, there, shared, Logger::discard());
    stream.reset();
    return {offered.get(), taken};
  }
  std::string text(const std::string& path) { return files.read(path, 8 << 20).value(); }

  troupe::tests::TemporaryDirectory directory;
  PosixFileSystem files;
  const std::string here = directory.file("controller/token_cache");
  const std::string there = directory.file("disk/output/token_cache");
};

TEST_CASE("a machine that lacks the run's token cache takes it over, once") {
  Machines machines;
  const auto [offered, taken] = machines.deliver();
  CHECK_MESSAGE(offered.ok(), offered.to_string());
  REQUIRE_MESSAGE(taken.ok(), taken.to_string());
  const auto cache = read_token_cache(machines.files, machines.there).value();
  const auto samples = map_cached_set(machines.files, machines.there, cache, "train").value();
  CHECK(samples.size() == 2);
  CHECK(samples.token_count() == 700'003);
  CHECK((machines.text(machines.there + "/train.ids") ==
         machines.text(machines.here + "/train.ids")));
  // It has it now: nothing is written again.
  const auto before = file_stamp(machines.there + "/train.ids").value();
  CHECK(machines.deliver().second.ok());
  CHECK(file_stamp(machines.there + "/train.ids").value() == before);
  CHECK(machines.files.list(machines.directory.file("disk/output")).value().size() == 1);
}

TEST_CASE("two trainers of a machine that lack the token cache share one copy") {
  Machines machines;
  auto first = std::async(std::launch::async, [&] { return machines.deliver(); });
  const auto second = machines.deliver();
  CHECK(first.get().second.ok());
  CHECK(second.second.ok());
  CHECK(read_token_cache(machines.files, machines.there).ok());
  CHECK(machines.files.list(machines.directory.file("disk/output")).value().size() == 1);
}

TEST_CASE("a token cache of other samples makes way, in a folder of the machine's own alone") {
  Machines machines;
  auto writer = TokenCacheWriter::begin(machines.files, machines.there + ".building").value();
  TokenDataset samples(TokenDataset::Kind::kPretrain, 0);
  samples.append(std::vector<TokenId>{1, 2});
  REQUIRE(writer.append("train", samples).ok());
  REQUIRE(writer.finish({}, machines.there).ok());
  const auto size = [&] { return machines.files.size(machines.there + "/train.ids").value(); };
  const auto before = size();
  CHECK(machines.deliver(true).second.ok());
  CHECK(size() == before);
  CHECK(machines.deliver().second.ok());
  CHECK(size() > before);
}

TEST_CASE("what does not come as it was written is not kept") {
  Machines machines;
  const auto cache = read_token_cache(machines.files, machines.here).value();
  const Status taken =
      take_cached_files(machines.files, cache, machines.there, [](std::span<std::byte> piece) {
        std::ranges::fill(piece, std::byte{9});
        return Status();
      });
  CHECK(taken.code() == Code::kDataLoss);
  CHECK(contains(taken.message(), "train.ids did not come as it was written"));
  CHECK(machines.files.list(machines.directory.file("disk/output")).value().empty());
}

TEST_CASE("a controller without the token cache says so, and nobody waits") {
  Machines machines;
  REQUIRE(machines.files.remove_tree(machines.here).ok());
  const auto [offered, taken] = machines.deliver();
  CHECK(offered.code() == Code::kNotFound);
  CHECK(taken.ok());
  CHECK_FALSE(machines.files.exists(machines.there));
}

}  // namespace
}  // namespace troupe::train
