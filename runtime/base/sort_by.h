#pragma once
// Sorting of few, large values: lists that people or files see.
//
// std::sort and std::stable_sort are compiled anew for each type that they move, half a second to a
// second of the compiler's time each. Here the algorithm is compiled once, over places, and a type
// costs one loop. For the many and the small, std's are faster at run time.

#include <cstddef>
#include <functional>
#include <utility>
#include <vector>

namespace troupe {

namespace detail {
// 0 … count - 1, so that no later place is less than an earlier one; equals in their order.
std::vector<std::size_t> sorted_places(
    std::size_t count, const std::function<bool(std::size_t a, std::size_t b)>& less);
}  // namespace detail

// Sorts by less(a, b); what is equal keeps its order.
template <typename T, typename Less>
void stable_sort_by(std::vector<T>& values, Less less) {
  std::vector<T> sorted;
  sorted.reserve(values.size());
  for (const std::size_t place : detail::sorted_places(
           values.size(),
           [&](std::size_t a, std::size_t b) { return less(values[a], values[b]); })) {
    sorted.push_back(std::move(values[place]));
  }
  values = std::move(sorted);
}

}  // namespace troupe
