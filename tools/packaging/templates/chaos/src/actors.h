#pragma once
#include <cstdint>
#include <map>

#include <troupe/actor.h>

// An account book. Its state has a copy on another node (ActorOptions::replicas), in step with each answer:
// the loss of a machine loses no booking that somebody was told of.
class Book {
 public:
  std::int64_t add(std::int64_t number, std::int64_t amount) {
    if (bookings_.emplace(number, amount).second) sum_ += amount;
    return sum_;
  }
  std::map<std::int64_t, std::int64_t> bookings() const { return bookings_; }

  std::map<std::int64_t, std::int64_t> save() const { return bookings_; }
  void load(std::map<std::int64_t, std::int64_t> bookings) {
    bookings_ = std::move(bookings);
    sum_ = 0;
    for (const auto& [number, amount] : bookings_) sum_ += amount;
  }
  static constexpr bool kExactlyOnce = true;
  static constexpr auto methods = troupe::methods<&Book::add, &Book::bookings>;

 private:
  std::map<std::int64_t, std::int64_t> bookings_;
  std::int64_t sum_ = 0;
};
