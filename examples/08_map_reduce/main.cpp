// Sorts more numbers than fit into the memory for objects: chunks are made and cut into ranges by
// tasks, ranges are merged by others, and what waits between them goes to disk and comes back.
//
//   08_map_reduce [--kill]      a worker is killed with -9 in the middle
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <random>
#include <tuple>
#include <vector>

#include <troupe/cluster.h>
#include <troupe/object.h>
#include <troupe/tasks.h>

using Numbers = std::vector<std::uint64_t>;
using Range = troupe::ObjectRef<Numbers>;

constexpr std::uint64_t kChunks = 24;
constexpr std::size_t kNumbersInChunk = 512 * 1024;  // 4 MiB
constexpr std::size_t kRanges = 12;
constexpr std::uint64_t kStoreBytes = 32 << 20;

// What the test compares: the same for the same numbers in whatever order.
struct Summary {
  std::uint64_t count = 0;
  std::uint64_t sum = 0;
  std::uint64_t least = ~std::uint64_t{0};
  std::uint64_t most = 0;
  bool sorted = true;
};

Numbers make_chunk(std::uint64_t chunk) {
  std::mt19937_64 random(chunk);
  Numbers numbers(kNumbersInChunk);
  for (auto& number : numbers) number = random();
  return numbers;
}

// Map: a chunk, sorted and cut into ranges, each an object of its own.
troupe::Result<std::vector<Range>> sort_chunk(troupe::ActorContext& context, std::uint64_t chunk) {
  Numbers numbers = make_chunk(chunk);
  std::sort(numbers.begin(), numbers.end());
  std::vector<Range> ranges;
  auto begin = numbers.begin();
  for (std::size_t i = 1; i <= kRanges; ++i) {
    const auto end = i == kRanges
                         ? numbers.end()
                         : std::lower_bound(begin, numbers.end(), ~std::uint64_t{0} / kRanges * i);
    auto ref = context.put(Numbers(begin, end));
    if (!ref.ok()) return ref.status();
    ranges.push_back(*ref);
    begin = end;
  }
  return ranges;
}

// Reduce: one range of all chunks, one after the other in memory, merged.
troupe::Result<Summary> merge_range(std::vector<Range> parts) {
  Numbers merged;
  for (const Range& part : parts) {
    auto object = part.get();
    if (!object.ok()) return object.status();
    const auto middle = static_cast<std::ptrdiff_t>(merged.size());
    merged.insert(merged.end(), (**object).begin(), (**object).end());
    std::inplace_merge(merged.begin(), merged.begin() + middle, merged.end());
  }
  Summary summary{.count = merged.size(), .sorted = std::is_sorted(merged.begin(), merged.end())};
  for (const auto number : merged) summary.sum += number;
  if (!merged.empty()) summary.least = merged.front(), summary.most = merged.back();
  return summary;
}

std::int64_t process_id() { return ::getpid(); }

int main(int argc, char** argv) {
  if (auto code =
          troupe::host_main(argc, argv, troupe::tasks<&sort_chunk, &merge_range, &process_id>)) {
    return *code;
  }
  const bool kill = argc > 1 && std::strcmp(argv[1], "--kill") == 0;
  auto cluster =
      troupe::Cluster::start_embedded({.num_cpus = 2, .object_memory_bytes = kStoreBytes}).value();
  const auto tasks = cluster.tasks();

  std::vector<troupe::Future<std::vector<Range>>> sorting;
  for (std::uint64_t chunk = 0; chunk < kChunks; ++chunk) {
    sorting.push_back(tasks.submit<&sort_chunk>(chunk));
  }
  if (kill) {
    const auto pid = static_cast<pid_t>(cluster.submit<&process_id>().get().value());
    ::kill(pid, SIGKILL);
    std::printf("a worker was killed\n");
  }
  std::vector<std::vector<Range>> by_range(kRanges);
  for (auto& future : sorting) {
    auto ranges = future.get().value();
    for (std::size_t i = 0; i < kRanges; ++i) by_range[i].push_back(ranges[i]);
  }
  const auto store = cluster.object_store().value();
  std::printf("%llu MiB in chunks, %llu MiB for objects; some are on disk: %s\n",
              static_cast<unsigned long long>(kChunks * kNumbersInChunk * 8 >> 20),
              static_cast<unsigned long long>(kStoreBytes >> 20),
              store.spilled_bytes > 0 ? "yes" : "no");

  Summary all;
  auto merged = tasks.map<&merge_range>(by_range, {.window = 2});
  while (auto item = merged.next().get().value()) {
    const Summary part = item->result.value();
    all.sorted = all.sorted && part.sorted && (all.count == 0 || part.least >= all.most);
    all.count += part.count;
    all.sum += part.sum;
    all.most = part.most;
  }
  std::uint64_t expected = 0;
  for (std::uint64_t chunk = 0; chunk < kChunks; ++chunk) {
    for (const auto number : make_chunk(chunk)) expected += number;
  }
  std::printf("%llu numbers, in order: %s, the same sum: %s\n",
              static_cast<unsigned long long>(all.count), all.sorted ? "yes" : "no",
              all.sum == expected ? "yes" : "no");
  return all.sorted && all.sum == expected ? 0 : 1;
}
