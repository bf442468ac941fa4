#pragma once
#include <map>
#include <string>

#include <troupe/actor.h>

// Counts words. What save() returns is kept outside of the process after each call, before its answer leaves;
// load() gets it back in the next process.
class Counter {
 public:
  int add(const std::string& word, int n) { return counts_[word] += n; }
  std::map<std::string, int> counts() const { return counts_; }

  std::map<std::string, int> save() const { return counts_; }
  void load(std::map<std::string, int> counts) { counts_ = std::move(counts); }

  // A call that is sent again after a death is answered again, and not run twice.
  static constexpr bool kExactlyOnce = true;
  static constexpr auto methods = troupe::methods<&Counter::add, &Counter::counts>;

 private:
  std::map<std::string, int> counts_;
};

// Cuts a line into words, and has them counted.
class Reader {
 public:
  explicit Reader(troupe::ActorHandle<Counter> counter) : counter_(counter.with({.retry = true})) {}
  troupe::Result<int> read(const std::string& line) {
    int words = 0;
    std::string word;
    for (const char c : line + " ") {
      if (c != ' ') {
        word += c;
      } else if (!word.empty()) {
        // A failure of the inner call is the failure of this one.
        TROUPE_RETURN_IF_ERROR(counter_.call<&Counter::add>(word, 1).get());
        ++words;
        word.clear();
      }
    }
    return words;
  }

  static constexpr auto constructor = troupe::constructor<troupe::ActorHandle<Counter>>;
  static constexpr auto methods = troupe::methods<&Reader::read>;

 private:
  troupe::ActorHandle<Counter> counter_;
};
