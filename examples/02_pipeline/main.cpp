// Three stages over several actors: texts are cut into words, words are counted by two counters,
// and the counts are merged. The driver keeps a bounded number of texts in flight, and backs off
// when a stage says that it is overloaded.

#include <cctype>
#include <chrono>
#include <cstdio>
#include <deque>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "actors/cluster.h"
#include "actors/host.h"

using namespace std::chrono_literals;
using Counts = std::map<std::string, int>;

// Stage 3: the sum of all counts.
class Merger {
 public:
  void merge(const Counts& counts) {
    for (const auto& [word, count] : counts) total_[word] += count;
  }
  Counts total() const { return total_; }
  static constexpr auto methods = troupe::methods<&Merger::merge, &Merger::total>;

 private:
  Counts total_;
};

// Stage 2: counts the words of one text and passes the counts on. It answers when the merger has
// answered, so an answer means that the text went all the way.
class Counter {
 public:
  explicit Counter(troupe::ActorHandle<Merger> merger) : merger_(std::move(merger)) {}
  troupe::Status count(const std::vector<std::string>& words) {
    Counts counts;
    for (const auto& word : words) ++counts[word];
    return merger_.call<&Merger::merge>(counts).get(10s);
  }
  static constexpr auto constructor = troupe::constructor<troupe::ActorHandle<Merger>>;
  static constexpr auto methods = troupe::methods<&Counter::count>;

 private:
  troupe::ActorHandle<Merger> merger_;
};

// Stage 1: cuts a text into words and gives them to the counters in turn.
class Splitter {
 public:
  explicit Splitter(std::vector<troupe::ActorHandle<Counter>> counters)
      : counters_(std::move(counters)) {}
  troupe::Status split(const std::string& text) {
    std::vector<std::string> words(1);
    for (const unsigned char c : text) {
      if (std::isalpha(c)) {
        words.back() += static_cast<char>(std::tolower(c));
      } else if (!words.back().empty()) {
        words.emplace_back();
      }
    }
    if (words.back().empty()) words.pop_back();
    return counters_[next_++ % counters_.size()].call<&Counter::count>(words).get(10s);
  }
  static constexpr auto constructor =
      troupe::constructor<std::vector<troupe::ActorHandle<Counter>>>;
  static constexpr auto methods = troupe::methods<&Splitter::split>;

 private:
  std::vector<troupe::ActorHandle<Counter>> counters_;
  std::size_t next_ = 0;
};

// Feeds all texts with at most `in_flight_max` unanswered; a text that a full mailbox refused is
// offered again after a pause that doubles.
void feed(const std::vector<troupe::ActorHandle<Splitter>>& splitters,
          const std::vector<std::string>& texts, std::size_t in_flight_max) {
  struct InFlight {
    std::size_t text;
    troupe::Future<void> done;
  };
  std::deque<InFlight> in_flight;
  std::chrono::milliseconds pause = 1ms;
  const auto send = [&](std::size_t i) {
    const auto& splitter = splitters[i % splitters.size()];
    in_flight.push_back({i, splitter.call<&Splitter::split>(texts[i])});
  };
  const auto finish_oldest = [&] {
    InFlight oldest = std::move(in_flight.front());
    in_flight.pop_front();
    const troupe::Status status = oldest.done.get(30s);
    if (status.code() == troupe::Code::kOverloaded) {
      std::this_thread::sleep_for(pause);
      pause = std::min(pause * 2, 100ms);
      send(oldest.text);
    } else if (!status.ok()) {
      throw troupe::StatusError(status);
    } else {
      pause = 1ms;
    }
  };
  for (std::size_t i = 0; i < texts.size(); ++i) {
    while (in_flight.size() >= in_flight_max) finish_oldest();
    send(i);
  }
  while (!in_flight.empty()) finish_oldest();
}

int main(int argc, char** argv) {
  if (auto code = troupe::host_main(argc, argv, troupe::actors<Splitter, Counter, Merger>)) {
    return *code;
  }
  std::vector<std::string> texts;
  for (int i = 0; i < 500; ++i) {
    texts.push_back(i % 2 == 0 ? "The cat saw the dog." : "The dog saw nothing.");
  }

  auto cluster = troupe::Cluster::start_embedded({.num_cpus = 5}).value();
  auto merger = cluster.spawn<Merger>({.name = "merger"}).value();
  std::vector<troupe::ActorHandle<Counter>> counters;
  for (int i = 0; i < 2; ++i) {
    counters.push_back(
        cluster.spawn<Counter>({.name = "counter-" + std::to_string(i)}, merger).value());
  }
  std::vector<troupe::ActorHandle<Splitter>> splitters;
  for (int i = 0; i < 2; ++i) {
    splitters.push_back(
        cluster.spawn<Splitter>({.name = "splitter-" + std::to_string(i)}, counters).value());
  }

  feed(splitters, texts, /*in_flight_max=*/16);
  const Counts total = merger.call<&Merger::total>().get(10s).value();
  for (const auto& [word, count] : total) {
    std::printf("%s %d\n", word.c_str(), count);
  }
}
