#include "scheduler/policy/gpu_topology.h"

#include <algorithm>
#include <limits>
#include <tuple>

namespace troupe::scheduler {
namespace {

constexpr int kNvlink = 1000;  // above every path; each further link is one more
constexpr int kPathStep = 10;
constexpr std::size_t kExactMax = 16;

int nearness_of(const wire::GpuDevice& a, const wire::GpuDevice& b) {
  const bool same_numa = a.numa_node >= 0 && a.numa_node == b.numa_node;
  const int at_least = same_numa ? kPathStep : 0;
  const auto link = std::find_if(a.links.begin(), a.links.end(), [&](const wire::GpuLink& each) {
    return !each.peer.empty() && each.peer == b.uuid;
  });
  if (link == a.links.end()) return at_least;
  if (link->nvlinks > 0) return kNvlink + static_cast<int>(link->nvlinks);
  const int steps = static_cast<int>(wire::GpuPath::kSystem) - static_cast<int>(link->path);
  return std::max(steps * kPathStep, at_least) + (link->peer_access ? 1 : 0);
}

}  // namespace

GpuTopology::GpuTopology(const std::vector<wire::GpuDevice>& devices)
    : count_(devices.size()), nearness_(count_ * count_) {
  for (std::size_t a = 0; a < count_; ++a) {
    for (std::size_t b = 0; b < count_; ++b) {
      // Each end may know a link that the other does not tell.
      if (a == b) continue;
      nearness_[a * count_ + b] =
          std::max(nearness_of(devices[a], devices[b]), nearness_of(devices[b], devices[a]));
    }
  }
}

std::vector<std::size_t> GpuTopology::choose(const std::vector<std::size_t>& free,
                                             std::size_t count) const {
  if (count == 0 || count > free.size()) return {};
  std::vector<std::size_t> best;
  std::tuple<int, long, long> best_score;
  std::vector<char> is_chosen(count_);
  const auto consider = [&](const std::vector<std::size_t>& chosen) {
    std::fill(is_chosen.begin(), is_chosen.end(), 0);
    for (const std::size_t one : chosen) is_chosen[one] = 1;
    int worst = std::numeric_limits<int>::max();
    long inside = 0, cut = 0;
    for (const std::size_t a : chosen) {
      for (const std::size_t b : free) {
        if (a == b) continue;
        if (is_chosen[b] == 0) {
          cut += nearness(a, b);
        } else if (a < b) {
          inside += nearness(a, b);
          worst = std::min(worst, nearness(a, b));
        }
      }
    }
    const std::tuple<int, long, long> score(worst, inside, -cut);
    // The first of equals stays.
    if (!best.empty() && score <= best_score) return;
    best = chosen;
    best_score = score;
  };
  if (free.size() <= kExactMax) {
    // Every choice, in the order of the positions.
    std::vector<char> in(free.size(), 0);
    std::fill(in.begin(), in.begin() + static_cast<std::ptrdiff_t>(count), 1);
    do {
      std::vector<std::size_t> chosen;
      for (std::size_t i = 0; i < free.size(); ++i) {
        if (in[i] != 0) chosen.push_back(free[i]);
      }
      consider(chosen);
    } while (std::prev_permutation(in.begin(), in.end()));
  } else {
    for (const std::size_t start : free) {
      std::vector<std::size_t> chosen{start};
      while (chosen.size() < count) {
        std::size_t next = start;
        std::pair<int, long> next_score(-1, -1);
        for (const std::size_t candidate : free) {
          if (std::find(chosen.begin(), chosen.end(), candidate) != chosen.end()) continue;
          std::pair<int, long> score(std::numeric_limits<int>::max(), 0);
          for (const std::size_t one : chosen) {
            score.first = std::min(score.first, nearness(one, candidate));
            score.second += nearness(one, candidate);
          }
          if (score > next_score) {
            next = candidate;
            next_score = score;
          }
        }
        chosen.push_back(next);
      }
      consider(chosen);
    }
  }
  std::sort(best.begin(), best.end());
  return best;
}

}  // namespace troupe::scheduler
