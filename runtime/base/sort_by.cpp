#include "runtime/base/sort_by.h"

#include <algorithm>
#include <numeric>

namespace troupe::detail {

std::vector<std::size_t> sorted_places(
    std::size_t count, const std::function<bool(std::size_t a, std::size_t b)>& less) {
  std::vector<std::size_t> places(count);
  std::iota(places.begin(), places.end(), std::size_t{0});
  std::stable_sort(places.begin(), places.end(),
                   [&](std::size_t a, std::size_t b) { return less(a, b); });
  return places;
}

}  // namespace troupe::detail
