// Three stages over several actors: texts are cut into words, words are counted by two counters,
// and the counts are merged. The driver keeps a bounded number of texts in flight, and backs off
// when a stage says that it is overloaded. With --kill-node the actors run on three nodes of a
// cluster, and the merger's is killed half-way.

#include <cctype>
#include <chrono>
#include <cstdio>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <troupe/actor.h>
#include <troupe/chaos_cluster.h>
#include <troupe/cluster.h>

using namespace std::chrono_literals;
using Counts = std::map<std::string, int>;

// Stage 3: the sum of all counts. It saves the sum before it answers a call, and no call is run
// twice: whoever has an answer knows that it counts.
class Merger {
 public:
  void merge(const Counts& counts) {
    for (const auto& [word, count] : counts) total_[word] += count;
  }
  Counts total() const { return total_; }
  Counts save() const { return total_; }
  void load(Counts total) { total_ = std::move(total); }
  static constexpr bool kExactlyOnce = true;
  static constexpr auto methods = troupe::methods<&Merger::merge, &Merger::total>;

 private:
  Counts total_;
};

// Stage 2: counts the words of one text and passes the counts on. It answers when the merger has
// answered, so an answer means that the text went all the way.
class Counter {
 public:
  // A call that the merger's node is lost with is sent again to wherever it goes on.
  explicit Counter(troupe::ActorHandle<Merger> merger)
      : merger_(merger.with({.timeout = 20s, .retry = true})) {}
  troupe::Status count(const std::vector<std::string>& words) {
    Counts counts;
    for (const auto& word : words) ++counts[word];
    return merger_.call<&Merger::merge>(counts).get(20s);
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
    return counters_[next_++ % counters_.size()].call<&Counter::count>(words).get(20s);
  }
  static constexpr auto constructor =
      troupe::constructor<std::vector<troupe::ActorHandle<Counter>>>;
  static constexpr auto methods = troupe::methods<&Splitter::split>;

 private:
  std::vector<troupe::ActorHandle<Counter>> counters_;
  std::size_t next_ = 0;
};

// Feeds all texts with at most `in_flight_max` unanswered; a text that a full mailbox refused is
// offered again after a pause that doubles. `half_way` is done with the first half under way.
void feed(const std::vector<troupe::ActorHandle<Splitter>>& splitters,
          const std::vector<std::string>& texts, std::size_t in_flight_max,
          const std::function<void()>& half_way) {
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
    if (i == texts.size() / 2) half_way();
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

  const bool kills = argc > 1 && std::string_view(argv[1]) == "--kill-node";
  std::unique_ptr<troupe::ChaosCluster> nodes;
  if (kills) {
    nodes =
        troupe::ChaosCluster::start({.nodes = 3, .cpus_per_node = 5}, troupe::Deadline::after(30s))
            .value();
  }
  auto cluster =
      kills ? nodes->connect().value() : troupe::Cluster::start_embedded({.num_cpus = 5}).value();
  const auto on = [&](int node) {
    return kills ? troupe::on_node(node) : std::map<std::string, std::string>();
  };

  // What it saves has a copy on another node; with its own lost it goes on there.
  auto merger = cluster
                    .spawn<Merger>({.name = "merger",
                                    .max_restarts = 1,
                                    .replicas = kills ? 1 : 0,
                                    .label_preference = on(1)})
                    .value();
  std::vector<troupe::ActorHandle<Counter>> counters;
  for (int i = 0; i < 2; ++i) {
    counters.push_back(
        cluster
            .spawn<Counter>({.name = "counter-" + std::to_string(i), .label_selector = on(0)},
                            merger)
            .value());
  }
  std::vector<troupe::ActorHandle<Splitter>> splitters;
  for (int i = 0; i < 2; ++i) {
    splitters.push_back(
        cluster
            .spawn<Splitter>({.name = "splitter-" + std::to_string(i), .label_selector = on(0)},
                             counters)
            .value());
  }

  const auto half_way = [&] {
    if (!kills) return;
    const int node = nodes->node_of(cluster, merger, troupe::Deadline::after(10s)).value();
    const bool killed = nodes->kill_node(node).ok();
    std::printf("node %d, with the merger: %s\n", node, killed ? "killed" : "lives on");
  };
  feed(splitters, texts, /*in_flight_max=*/16, half_way);
  const Counts total = merger.with({.retry = true}).call<&Merger::total>().get(10s).value();
  for (const auto& [word, count] : total) {
    std::printf("%s %d\n", word.c_str(), count);
  }
}
