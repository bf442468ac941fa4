// Packages on a node: what it keeps of them, and how they come from a tool and from other nodes,
// over real sockets.

#include "scheduler/node/package_exchange.h"

#include <doctest/doctest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "runtime/base/file_system.h"
#include "scheduler/client/send_package.h"
#include "scheduler/packages/package_file.h"
#include "tests/scheduler/support.h"
#include "tests/support/test_data.h"

namespace troupe::scheduler::tests {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;
using namespace troupe::tests;

struct Packed {
  wire::Package package;
  std::unique_ptr<MappedFile> file;
};

// A package with one file, of so many bytes.
Packed pack(const TemporaryDirectory& place, char content, std::size_t bytes) {
  const std::string from = place.file(std::string("content-") + content);
  std::ofstream(from) << std::string(bytes, content);
  const std::vector<PackageSource> sources{
      {{"work", wire::PackageEntryKind::kDirectory, false, 0, {}}, {}},
      {{"work/file", wire::PackageEntryKind::kFile, true, bytes, {}}, from}};
  PosixFileSystem files;
  const std::string path = from + "-packed";
  return {write_package(files, sources, path, [] { return true; }).value(),
          files.map(path).value()};
}

Status put(PackageCache& cache, const wire::Package& package, std::span<const std::byte> bytes) {
  const auto arrival = TROUPE_TRY(cache.receive(package));
  TROUPE_RETURN_IF_ERROR(arrival->append(bytes));
  return arrival->finish();
}
Status put(PackageCache& cache, const Packed& packed) {
  return put(cache, packed.package, packed.file->bytes());
}

// Names in the caches' folders.
std::vector<std::string> left_in(const std::string& directory) {
  std::vector<std::string> names;
  for (const auto& folder : fs::directory_iterator(directory)) {
    if (!folder.is_directory()) continue;
    for (const auto& entry : fs::directory_iterator(folder.path())) {
      names.push_back(entry.path().filename());
    }
  }
  return names;
}

// Writes into what nobody may write to.
void damage(const std::string& path, std::uint64_t offset) {
  fs::permissions(path, fs::perms::owner_all);
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(static_cast<std::streamoff>(offset));
  file.put('x');
  fs::permissions(path, fs::perms::owner_read | fs::perms::owner_exec);
}

TEST_CASE("a package that is not what its hash says is never kept, and leaves nothing") {
  TemporaryDirectory place;
  ManualClock clock;
  const auto cache = PackageCache::open(place.file("kept"), 1 << 20, clock).value();
  const Packed packed = pack(place, 'a', 5000);
  wire::Bytes bytes(packed.file->bytes().begin(), packed.file->bytes().end());
  SUBCASE("damaged") { bytes[100] ^= std::byte{1}; }
  SUBCASE("short") { bytes.pop_back(); }
  SUBCASE("long") { bytes.push_back(std::byte{0}); }
  CHECK(put(*cache, packed.package, bytes).code() == Code::kDataLoss);
  CHECK(cache->all().empty());
  CHECK(left_in(place.file("kept")).empty());
  CHECK_FALSE(cache->directory_of(packed.package));
  CHECK(cache->receive({"../../x", 5}).status().code() == Code::kInvalidArgument);
  REQUIRE(put(*cache, packed).ok());
  CHECK(cache->receive(packed.package).status().code() == Code::kAlreadyExists);
  // What is damaged later comes anew, unless somebody uses it.
  const std::string made = *cache->directory_of(packed.package) + "/work/file";
  damage(made, 100);
  cache->set_needed({packed.package.sha256});
  CHECK(put(*cache, packed).code() == Code::kAlreadyExists);
  cache->set_needed({});
  CHECK(put(*cache, packed).ok());
  CHECK(PosixFileSystem().read(made, 5000).value() == std::string(5000, 'a'));
}

TEST_CASE("what no actor needs makes room, longest unused first; what is needed does not") {
  TemporaryDirectory place;
  ManualClock clock;
  const Packed a = pack(place, 'a', 30'000), b = pack(place, 'b', 30'000),
               c = pack(place, 'c', 30'000), d = pack(place, 'd', 70'000);
  const auto cache = PackageCache::open(place.file("kept"), 130'000, clock).value();
  REQUIRE(put(*cache, a).ok());
  REQUIRE(put(*cache, b).ok());
  // Their jobs are about to be submitted.
  const auto full = put(*cache, c);
  CHECK(full.code() == Code::kResourceExhausted);
  CHECK(full.message().find("--package-bytes") != std::string::npos);
  CHECK(put(*cache, d).message().find("keeps at most") != std::string::npos);
  clock.advance(2min);
  CHECK(cache->directory_of(a.package));
  clock.advance(2min);
  REQUIRE(put(*cache, c).ok());
  CHECK_FALSE(cache->directory_of(b.package));
  CHECK(cache->directory_of(a.package));
  clock.advance(2min);
  cache->set_needed({a.package.sha256, c.package.sha256});
  CHECK(put(*cache, b).code() == Code::kResourceExhausted);
  cache->set_needed({c.package.sha256});
  CHECK(put(*cache, b).ok());
  CHECK_FALSE(cache->directory_of(a.package));
  CHECK(left_in(place.file("kept")).size() == 4);
}

TEST_CASE("a next daemon finds what is whole, and nothing else; two daemons have two folders") {
  TemporaryDirectory place;
  SystemClock clock;
  const Packed a = pack(place, 'a', 3000), b = pack(place, 'b', 3000), c = pack(place, 'c', 3000);
  fs::path folder;
  {
    const auto cache = PackageCache::open(place.file("kept"), 1 << 20, clock).value();
    const auto other = PackageCache::open(place.file("kept"), 1 << 20, clock).value();
    for (const Packed* packed : {&a, &b, &c}) REQUIRE(put(*cache, *packed).ok());
    CHECK_FALSE(other->take_up_next());
    folder = fs::path(*cache->directory_of(a.package)).parent_path();
  }
  fs::remove(folder / (b.package.sha256 + ".package"));
  damage(folder / c.package.sha256 / "work/file", 7);
  std::ofstream(folder / "incoming-7") << "half";
  std::ofstream(folder / "mine") << "somebody else's";
  const auto cache = PackageCache::open(place.file("kept"), 1 << 20, clock).value();
  // One that is asked for before it was looked at is there all the same.
  CHECK(cache->receive(a.package).status().code() == Code::kAlreadyExists);
  while (cache->take_up_next()) {
  }
  CHECK(cache->all() == std::vector{a.package.sha256});
  CHECK(left_in(place.file("kept")).size() == 3);
  CHECK(fs::file_size(*cache->directory_of(a.package) + "/work/file") == 3000);
}

// A node's port that knows packages alone.
struct Node {
  TemporaryDirectory place;
  SystemClock clock;
  SystemRandom random;
  Inbox<std::vector<std::string>> changes;
  Inbox<std::shared_ptr<Status>> failures;
  std::unique_ptr<PackageExchange> exchange;
  net::LoopThread thread{"node"};
  std::unique_ptr<net::Listener> listener;
  net::Address address;

  explicit Node(std::uint64_t bytes_max = 64 << 20) {
    exchange =
        PackageExchange::start(
            PackageCache::open(place.file("kept"), bytes_max, clock).value(), kToken,
            Logger::discard(),
            {.on_change = [this](std::vector<std::string> all) { changes.put(std::move(all)); },
             .on_failed =
                 [this](const wire::Package&, Status why) {
                   failures.put(std::make_shared<Status>(std::move(why)));
                 }})
            .value();
    on_loop(thread.loop(), [this] {
      net::ListenOptions options;
      options.host = "127.0.0.1";
      listener = net::listen(thread.loop(), options, kToken, random, Logger::discard(),
                             [this](net::AcceptedSocket accepted) {
                               exchange->serve(std::move(accepted.socket), accepted.peer);
                             })
                     .value();
      address = listener->address();
      return 0;
    });
  }
  ~Node() {
    on_loop(thread.loop(), [this] {
      listener.reset();
      return 0;
    });
  }
  std::string file_of(const wire::Package& package) {
    return exchange->cache().directory_of(package).value() + ".package";
  }
};

struct Sender {
  net::LoopThread thread{"sender"};
  Status send(
      const Node& node, const Packed& packed,
      const std::function<bool()>& go_on = [] { return true; }) {
    return send_package(thread.loop(), node.address, kToken, packed.package, packed.file->bytes(),
                        10s, go_on);
  }
};

TEST_CASE("a package goes to a node once, and from there to the next, which asks for it once") {
  TemporaryDirectory place;
  const Packed packed = pack(place, 'p', (3u << 20) + 77);
  Node first, second, empty;
  Sender sender;
  const Status sent = sender.send(first, packed);
  REQUIRE_MESSAGE(sent.ok(), sent.to_string());
  CHECK(first.changes.take() == std::vector{packed.package.sha256});
  CHECK(sender.send(first, packed, [] { return false; }).code() == Code::kAlreadyExists);
  // The first of its nodes has nothing; nobody listens at the second.
  second.exchange->fetch(packed.package, {empty.address, {"127.0.0.1", 1, {}}, first.address});
  second.exchange->fetch(packed.package, {first.address});
  CHECK(second.changes.take() == std::vector{packed.package.sha256});
  CHECK(fs::file_size(second.exchange->cache().directory_of(packed.package).value() +
                      "/work/file") == (3u << 20) + 77);
  CHECK_FALSE(second.changes.has([](const auto&) { return true; }));
  CHECK_FALSE(second.failures.has([](const auto&) { return true; }));
}

TEST_CASE("a node that sends something else is found out, and another one is asked") {
  TemporaryDirectory place;
  const Packed packed = pack(place, 'p', 300'000);
  Node damaged, sound, third;
  Sender sender;
  REQUIRE(sender.send(damaged, packed).ok());
  REQUIRE(sender.send(sound, packed).ok());
  const std::string path = damaged.file_of(packed.package);
  SUBCASE("a bit") { damage(path, 200'000); }
  SUBCASE("its length") { fs::resize_file(path, 100'000); }
  third.exchange->fetch(packed.package, {damaged.address});
  const auto why = third.failures.take();
  CHECK_MESSAGE(why->code() == Code::kDataLoss, why->to_string());
  CHECK(left_in(third.place.file("kept")).empty());
  third.exchange->fetch(packed.package, {damaged.address, sound.address});
  CHECK(third.changes.take() == std::vector{packed.package.sha256});
  // Who sends it again mends what is damaged.
  CHECK(sender.send(damaged, packed).ok());
}

TEST_CASE("who stops in the middle leaves nothing, and a node without room says so") {
  TemporaryDirectory place;
  const Packed packed = pack(place, 'p', 8u << 20);
  Node node, small(1 << 20);
  Sender sender;
  int pieces = 0;
  CHECK(sender.send(node, packed, [&] { return ++pieces < 3; }).code() == Code::kCancelled);
  const auto by = patience();
  while (!left_in(node.place.file("kept")).empty() && !by.passed()) ::usleep(1000);
  CHECK(left_in(node.place.file("kept")).empty());
  CHECK(sender.send(node, packed).ok());
  const Status refused = sender.send(small, packed);
  CHECK(refused.code() == Code::kResourceExhausted);
  CHECK(refused.message().find("--package-bytes") != std::string::npos);
  small.exchange->fetch(packed.package, {node.address});
  CHECK(small.failures.take()->code() == Code::kResourceExhausted);
}

}  // namespace
}  // namespace troupe::scheduler::tests
