#pragma once
// Actors that read, keep, make and lose objects.

#include <unistd.h>

#include <csignal>
#include <map>
#include <numeric>
#include <string>
#include <vector>

#include "troupe/actor.h"
#include "troupe/object.h"
#include "troupe/tensor.h"

namespace troupe::tests {

struct Sample {
  std::string name;
  std::vector<int> numbers;
  friend bool operator==(const Sample&, const Sample&) = default;
};

class Reader {
 public:
  explicit Reader(ActorContext& context) : context_(context) {}

  double sum(Object<std::vector<float>> numbers) const {
    const auto values = *numbers;
    return std::accumulate(values.begin(), values.end(), 0.0);
  }
  Sample sample(Object<Sample> sample) const { return *sample; }
  Result<std::uint64_t> sum_of_all(std::vector<ObjectRef<std::vector<std::uint64_t>>> refs) const {
    std::uint64_t sum = 0;
    for (const auto& ref : refs) {
      const auto object = ref.get();
      if (!object.ok()) return object.status();
      for (const std::uint64_t value : **object) sum += value;
    }
    return sum;
  }
  void keep(ObjectRef<std::vector<float>> ref) { kept_.push_back(std::move(ref)); }
  Result<double> sum_of_kept() const {
    double sum = 0;
    for (const auto& ref : kept_) {
      const auto object = ref.get(std::chrono::seconds(20));
      if (!object.ok()) return object.status();
      for (const float value : **object) sum += value;
    }
    return sum;
  }
  void forget() { kept_.clear(); }
  Result<ObjectRef<std::vector<float>>> make(std::size_t count, float value) {
    return context_.put(std::vector<float>(count, value));
  }
  std::vector<ObjectRef<std::vector<float>>> kept() const { return kept_; }
  // Views, which stay until it is called with nothing.
  Status view(std::vector<ObjectRef<std::vector<float>>> refs) {
    views_.clear();
    for (const auto& ref : refs) {
      auto object = ref.get();
      if (!object.ok()) return object.status();
      views_.push_back(std::move(*object));
    }
    return {};
  }
  void die() const { ::raise(SIGKILL); }
  Tensor<int> turned(const Tensor<int>& tensor) const {
    return Tensor<int>(tensor.view().transposed());
  }
  int element(Object<Tensor<int>> tensor, int i, int j) const { return (*tensor)(i, j); }

  static constexpr auto methods =
      troupe::methods<&Reader::sum, &Reader::sample, &Reader::sum_of_all, &Reader::keep,
                      &Reader::sum_of_kept, &Reader::forget, &Reader::make, &Reader::kept,
                      &Reader::view, &Reader::die, &Reader::turned, &Reader::element>;

 private:
  ActorContext& context_;
  std::vector<ObjectRef<std::vector<float>>> kept_;
  std::vector<Object<std::vector<float>>> views_;
};

// Made of an object.
class Keeper {
 public:
  explicit Keeper(ObjectRef<std::vector<float>> numbers) : numbers_(std::move(numbers)) {}
  Result<double> sum() const {
    const auto object = numbers_.get();
    if (!object.ok()) return object.status();
    return std::accumulate((**object).begin(), (**object).end(), 0.0);
  }
  void forget() { numbers_ = {}; }
  void die() const { ::raise(SIGKILL); }
  static constexpr auto constructor = troupe::constructor<ObjectRef<std::vector<float>>>;
  static constexpr auto methods = troupe::methods<&Keeper::sum, &Keeper::forget, &Keeper::die>;

 private:
  ObjectRef<std::vector<float>> numbers_;
};

}  // namespace troupe::tests
