// A planned pipeline: texts are read, their words counted by two actors in turn, and the counts
// added up. One of each stage is killed with -9 on the way; no text is lost, none counts twice, and
// the results come in the order of the texts.

#include <chrono>
#include <csignal>
#include <cstdio>
#include <deque>
#include <map>
#include <sstream>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <unistd.h>

#include <troupe/actor.h>
#include <troupe/cluster.h>
#include <troupe/pipeline.h>

using namespace std::chrono_literals;
using Counts = std::map<std::string, int>;

// Stage 1: the words of a text.
class Reader {
 public:
  std::vector<std::string> read(const std::string& text) const {
    std::istringstream in(text);
    std::vector<std::string> words;
    for (std::string word; in >> word;) words.push_back(word);
    return words;
  }
  int pid() const { return ::getpid(); }
  static constexpr auto methods = troupe::methods<&Reader::read, &Reader::pid>;
};

// Stage 2: how often each is there.
class Counter {
 public:
  Counts count(const std::vector<std::string>& words) const {
    Counts counts;
    for (const auto& word : words) ++counts[word];
    return counts;
  }
  int pid() const { return ::getpid(); }
  static constexpr auto methods = troupe::methods<&Counter::count, &Counter::pid>;
};

// Stage 3: the sum of all counts, and how many texts it is of. What it adds counts once, whatever
// happens to its process.
class Sum {
 public:
  int add(const Counts& counts) {
    for (const auto& [word, count] : counts) total_[word] += count;
    return ++texts_;
  }
  Counts total() const { return total_; }
  int pid() const { return ::getpid(); }
  std::pair<Counts, int> save() const { return {total_, texts_}; }
  void load(std::pair<Counts, int> saved) { std::tie(total_, texts_) = std::move(saved); }
  static constexpr bool kExactlyOnce = true;
  static constexpr auto methods = troupe::methods<&Sum::add, &Sum::total, &Sum::pid>;

 private:
  Counts total_;
  int texts_ = 0;
};

int main(int argc, char** argv) {
  if (auto code = troupe::host_main(argc, argv, troupe::actors<Reader, Counter, Sum>)) return *code;
  auto cluster = troupe::Cluster::start_embedded({.num_cpus = 4}).value();
  const troupe::ActorOptions options{.max_restarts = 3};
  const auto reader = cluster.spawn<Reader>(options).value();
  const std::vector counters{cluster.spawn<Counter>(options).value(),
                             cluster.spawn<Counter>(options).value()};
  const auto sum = cluster.spawn<Sum>(options).value();

  troupe::PipelineBuilder<std::string> plan(cluster);
  const auto pipeline = plan.stage<&Reader::read>("read", reader)
                            .stage<&Counter::count>("count", counters)
                            .stage<&Sum::add>("sum", sum)
                            .build({.in_flight = 16})
                            .value();

  const std::map<int, int> victims{{500, reader.call<&Reader::pid>().get().value()},
                                   {1000, counters[0].call<&Counter::pid>().get().value()},
                                   {1500, sum.call<&Sum::pid>().get().value()}};
  std::deque<troupe::Future<int>> results;
  int in_order = 0;
  const auto take = [&] {
    in_order += results.front().get(30s).value() == in_order + 1 ? 1 : 0;
    results.pop_front();
  };
  for (int i = 0; i < 2000; ++i) {
    if (const auto victim = victims.find(i); victim != victims.end()) {
      ::kill(victim->second, SIGKILL);
    }
    while (results.size() >= 32) take();
    results.push_back(
        pipeline.push(i % 2 == 0 ? "the cat saw the dog" : "the dog saw nothing").value());
  }
  while (!results.empty()) take();
  std::printf("%d texts in order\n", in_order);
  const Counts total = sum.call<&Sum::total>().get(10s).value();
  for (const auto& [word, count] : total) std::printf("%s %d\n", word.c_str(), count);
}
