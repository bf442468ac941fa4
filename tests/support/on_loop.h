#pragma once
// Work in a loop's thread, from a test's: what it returns or throws. One that does not come to it
// within 20 s ends the program.

#include <functional>
#include <optional>
#include <type_traits>
#include <utility>

namespace troupe::tests {

// Gives work to a loop; returns when it is done.
using Post = std::function<void(std::function<void()>)>;
void wait_for_work(const Post& post, const std::function<void()>& work);

template <typename Loop>
Post post_of(Loop& loop) {
  return [&loop](std::function<void()> work) { loop.post(std::move(work)); };
}

template <typename Loop, typename Work>
auto on_loop(Loop& loop, Work work) {
  using R = decltype(work());
  if constexpr (std::is_void_v<R>) {
    wait_for_work(post_of(loop), [&work] { work(); });
  } else {
    std::optional<R> result;
    wait_for_work(post_of(loop), [&] { result.emplace(work()); });
    return std::move(*result);
  }
}

}  // namespace troupe::tests
