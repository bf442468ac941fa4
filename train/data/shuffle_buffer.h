#pragma once
// The order of a stream that is shuffled while it is read, as Hugging Face's datasets has it.

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "runtime/base/status.h"
#include "train/data/numpy_random.h"

namespace troupe::train {

// The generator of an epoch.
inline NumpyGenerator stream_generator(std::uint64_t seed, std::int64_t epoch) {
  NumpyGenerator first(seed);
  if (epoch == 0) return first;
  // As there: a negative number begins anew from 2^63.
  const auto drawn = static_cast<std::int64_t>(first.integer63()) - epoch;
  return NumpyGenerator(static_cast<std::uint64_t>(drawn) & ~(std::uint64_t{1} << 63));
}

// Holds `size` elements; each that comes takes the place of one that is drawn, and goes when it is
// drawn itself. The last ones are shuffled.
template <typename T>
class ShuffleBuffer {
 public:
  ShuffleBuffer(std::uint64_t seed, std::int64_t epoch, std::int64_t size)
      : generator_(stream_generator(seed, epoch)), size_(static_cast<std::size_t>(size)) {}

  // The next one of what `source()` gives, a Result<std::optional<T>> that is nothing at the end.
  template <typename Source>
  Result<std::optional<T>> next(Source&& source) {
    while (!ended_) {
      std::optional<T> one = TROUPE_TRY(source());
      if (!one) {
        end();
      } else if (held_.size() < size_) {
        held_.push_back(std::move(*one));
      } else {
        std::swap(held_[draw()], *one);
        return one;
      }
    }
    if (given_ == held_.size()) return std::optional<T>();
    return std::optional(std::move(held_[given_++]));
  }

 private:
  // Places are drawn many at a time: what is drawn in the end comes behind all of them.
  static constexpr std::uint32_t kDrawn = 1000;
  std::size_t draw() {
    if (places_.empty()) {
      for (std::uint32_t i = 0; i < kDrawn; ++i)
        places_.push_back(generator_.integer(static_cast<std::uint32_t>(size_) - 1));
      at_ = 0;
    }
    const std::size_t place = places_[at_++];
    if (at_ == places_.size()) places_.clear();
    return place;
  }
  void end() {
    ended_ = true;
    for (std::size_t i = held_.size(); i-- > 1;)
      std::swap(held_[i], held_[generator_.bounded(static_cast<std::uint32_t>(i))]);
  }

  NumpyGenerator generator_;
  const std::size_t size_;
  std::vector<T> held_;
  std::vector<std::uint32_t> places_;
  std::size_t at_ = 0, given_ = 0;
  bool ended_ = false;
};

}  // namespace troupe::train
