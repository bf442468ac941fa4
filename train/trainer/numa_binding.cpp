#include "train/trainer/numa_binding.h"

#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <cerrno>
#include <charconv>

namespace troupe::train {
namespace {

constexpr std::uint64_t kListBytesMax = 64u << 10;

Result<std::vector<int>> read_list(FileSystem& files, const std::string& path) {
  auto list = parse_number_list(TROUPE_TRY(files.read(path, kListBytesMax)));
  if (!list.ok()) return list.status().prefixed(path);
  return list;
}

}  // namespace

Result<std::vector<int>> parse_number_list(std::string_view text) {
  const auto bad = [&] { return error(Code::kDataLoss, "'{}' is no list of numbers", text); };
  std::string_view left = text;
  while (!left.empty() && (left.back() == '\n' || left.back() == ' ')) left.remove_suffix(1);
  const auto take = [&left](int& number) {
    const auto [end, failure] = std::from_chars(left.data(), left.data() + left.size(), number);
    left.remove_prefix(static_cast<std::size_t>(end - left.data()));
    return failure == std::errc() && number >= 0;
  };
  std::vector<int> numbers;
  while (!left.empty()) {
    int first = 0;
    if (!take(first)) return bad();
    int last = first;
    if (left.starts_with('-')) {
      left.remove_prefix(1);
      if (!take(last) || last < first || last - first > CPU_SETSIZE) return bad();
    }
    for (int number = first; number <= last; ++number) numbers.push_back(number);
    if (left.empty()) break;
    if (!left.starts_with(',')) return bad();
    left.remove_prefix(1);
    if (left.empty()) return bad();
  }
  return numbers;
}

Result<std::string> bind_to_numa_node(FileSystem& files, int node, const std::string& nodes) {
  if (TROUPE_TRY(read_list(files, nodes + "/online")).size() < 2) return std::string();
  const auto processors =
      TROUPE_TRY(read_list(files, fmt::format("{}/node{}/cpulist", nodes, node)));
  cpu_set_t allowed;
  if (::sched_getaffinity(0, sizeof allowed, &allowed) != 0)
    return errno_status(errno, "ask for", "the processors of this thread");
  cpu_set_t wanted;
  CPU_ZERO(&wanted);
  for (const int processor : processors) {
    const auto at = static_cast<std::size_t>(processor);
    if (processor < CPU_SETSIZE && CPU_ISSET(at, &allowed)) CPU_SET(at, &wanted);
  }
  const int count = CPU_COUNT(&wanted);
  if (count == 0) return std::string();
  if (::sched_setaffinity(0, sizeof wanted, &wanted) != 0)
    return errno_status(errno, "bind to", fmt::format("NUMA node {}", node));
  return fmt::format("runs on the {} processors of NUMA node {}, its GPU's", count, node);
}

}  // namespace troupe::train
