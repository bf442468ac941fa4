#pragma once
#include <cstdint>
#include <map>
#include <vector>

#include <troupe/actor.h>

// Stage 1 gives items one after the other, as fast as they are taken.
class Source {
 public:
  troupe::Stream<std::int64_t> items(std::int64_t count) {
    for (std::int64_t i = 0; i < count; ++i) co_yield i;
  }
  static constexpr auto methods = troupe::methods<&Source::items>;
};

// Stage 3 keeps the results. It saves before it answers, and runs no call twice: whoever has an answer
// knows that its item is kept.
class Store {
 public:
  void put(std::int64_t item, std::int64_t result) { results_[item] = result; }
  std::map<std::int64_t, std::int64_t> results() const { return results_; }

  std::map<std::int64_t, std::int64_t> save() const { return results_; }
  void load(std::map<std::int64_t, std::int64_t> results) { results_ = std::move(results); }
  static constexpr bool kExactlyOnce = true;
  static constexpr auto methods = troupe::methods<&Store::put, &Store::results>;

 private:
  std::map<std::int64_t, std::int64_t> results_;
};

// Stage 2, of which there are several: works on an item, and answers when its result is kept.
class Worker {
 public:
  explicit Worker(troupe::ActorHandle<Store> store) : store_(store.with({.retry = true})) {}
  troupe::Status work(std::int64_t item) {
    return store_.call<&Store::put>(item, item * item).get();
  }
  static constexpr auto constructor = troupe::constructor<troupe::ActorHandle<Store>>;
  static constexpr auto methods = troupe::methods<&Worker::work>;

 private:
  troupe::ActorHandle<Store> store_;
};
