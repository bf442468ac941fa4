// A shuffle through object stores that hold a small part of it: `tools/bench shuffle` starts the
// machines and runs this as the driver, on the one that is named last.
//
//   bench_shuffle MIB PARTS [MARK…]     seconds, bytes that came back from disk, whether the sums
//   are right
//
// Each of MIB / 16 tasks makes 16 MiB and cuts them into PARTS objects; PARTS tasks read one of
// each. For each MARK, a file that is not there yet, a worker is killed with -9 under way, with the
// tasks that it has.
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/clock.h"
#include "troupe/cluster.h"
#include "troupe/object.h"
#include "troupe/tasks.h"

namespace {

using namespace troupe;
using Words = std::vector<std::uint64_t>;
using Piece = ObjectRef<Words>;

constexpr std::uint64_t kChunkWords = (16u << 20) / sizeof(std::uint64_t);

template <typename T>
T must(Result<T> result) {
  if (result.ok()) return std::move(*result);
  std::fprintf(stderr, "bench_shuffle: %s\n", result.status().to_string().c_str());
  std::exit(exit_code(result.status().code()));
}

// Of Knuth's linear congruential generator (MMIX): fast, and a chunk's words follow from its
// number.
Words make_words(std::uint64_t chunk, std::uint64_t part, std::uint64_t count) {
  Words words(count);
  std::uint64_t word = chunk * 1'000'003 + part;
  for (auto& w : words) w = word = word * 6364136223846793005u + 1442695040888963407u;
  return words;
}

Result<std::vector<Piece>> cut_chunk(ActorContext& context, std::uint64_t chunk,
                                     std::uint64_t parts) {
  std::vector<Piece> pieces;
  for (std::uint64_t part = 0; part < parts; ++part) {
    auto piece = context.put(make_words(chunk, part, kChunkWords / parts));
    if (!piece.ok()) return piece.status();
    pieces.push_back(std::move(*piece));
  }
  return pieces;
}

Result<std::uint64_t> sum_part(std::vector<Piece> pieces) {
  std::uint64_t sum = 0;
  for (Piece& piece : pieces) {
    const auto words = piece.get();
    if (!words.ok()) return words.status();
    for (const std::uint64_t word : **words) sum = sum * 31 + word;
    piece = {};  // it may be freed
  }
  return sum;
}

// Ends its process the first time: pids of another machine mean nothing to the driver.
bool die_once(const std::string& mark) {
  if (const int file = ::open(mark.c_str(), O_CREAT | O_EXCL | O_CLOEXEC, 0600); file >= 0) {
    ::close(file);
    ::kill(::getpid(), SIGKILL);
  }
  return true;
}

Result<std::uint64_t> restored_here(ActorContext& context) {
  auto store = context.object_store();
  if (!store.ok()) return store.status();
  return store->restored_bytes_total;
}

std::uint64_t restored_everywhere(Cluster& cluster) {
  std::uint64_t bytes = 0;
  for (const auto& node : must(cluster.nodes())) {
    bytes += must(cluster.tasks({.node_affinity = node.node_id}).submit<&restored_here>().get());
  }
  return bytes;
}

}  // namespace

int main(int argc, char** argv) {
  if (auto code = host_main(argc, argv, tasks<&cut_chunk, &sum_part, &die_once, &restored_here>))
    return *code;
  const std::uint64_t mib = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 4096;
  const std::uint64_t parts = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 64;
  std::vector<std::string> marks;
  for (int i = 3; i < argc; ++i) marks.push_back(argv[i]);
  auto cluster = must(Cluster::connect());
  const std::uint64_t chunks = mib / 16;
  const auto start = SystemClock().now();

  std::vector<Future<std::vector<Piece>>> cutting;
  for (std::uint64_t chunk = 0; chunk < chunks; ++chunk)
    cutting.push_back(cluster.submit<&cut_chunk>(chunk, parts));
  std::vector<std::vector<Piece>> by_part(parts);
  std::vector<Future<bool>> dying;
  for (std::uint64_t chunk = 0; chunk < chunks; ++chunk) {
    auto pieces = must(cutting[chunk].get());
    for (std::uint64_t part = 0; part < parts; ++part)
      by_part[part].push_back(std::move(pieces[part]));
    if (chunk % 4 == 3 && !marks.empty()) {
      dying.push_back(cluster.submit<&die_once>(marks.back()));
      marks.pop_back();
    }
  }
  const double cut_s = std::chrono::duration<double>(SystemClock().now() - start).count();
  std::vector<Future<std::uint64_t>> summing;
  for (auto& pieces : by_part)
    summing.push_back(cluster.submit<&sum_part>(std::exchange(pieces, {})));
  std::vector<std::uint64_t> sums;
  for (auto& sum : summing) sums.push_back(must(sum.get()));
  const double whole_s = std::chrono::duration<double>(SystemClock().now() - start).count();
  for (auto& killed : dying) (void)must(killed.get());
  // Some are computed again here: all of them would take as long as the shuffle.
  bool equal = true;
  for (std::uint64_t part = 0; part < parts; part += 16) {
    std::uint64_t expected = 0;
    for (std::uint64_t chunk = 0; chunk < chunks; ++chunk) {
      for (const std::uint64_t word : make_words(chunk, part, kChunkWords / parts))
        expected = expected * 31 + word;
    }
    equal = equal && sums[part] == expected;
  }
  const std::uint64_t restored = restored_everywhere(cluster);
  std::printf("cut_s %.2f\nwhole_s %.2f\nrestored_mib %llu\nequal %d\n", cut_s, whole_s,
              static_cast<unsigned long long>(restored >> 20), equal ? 1 : 0);
  return equal ? 0 : 7;
}
