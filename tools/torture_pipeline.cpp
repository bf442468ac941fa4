// The program of `tools/torture pipeline`, written as somebody would who has read examples/guide
// and the examples: a reader, workers and an aggregator, on a cluster that runs already.
//
//   torture_pipeline ITEMS WORKERS ITEMS_PER_SECOND
//
// The driver asks the reader for one batch after the other. The reader reads the batch and gives it
// to a worker; the worker works and gives what came of it to the aggregator; the aggregator counts
// it. A batch is acknowledged when that answer has come all the way back. Each stage may be started
// again at any moment, so calls are sent again (`retry`), and a batch that comes twice to the
// aggregator, because a stage before it was started again, counts once.
//
// At the end the driver compares what was acknowledged with what the aggregator has counted. It
// prints "acknowledged N" as it goes on, and one line of JSON behind "result " at the end; every
// failure it was told of is in there.

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "troupe/actor.h"
#include "troupe/cluster.h"

using namespace std::chrono_literals;

namespace {

constexpr std::int64_t kBatchItems = 100;
constexpr std::size_t kInFlightMax = 32;
constexpr auto kPatience = 60s;

struct Batch {
  std::int64_t number = 0;
  std::vector<std::int64_t> items;
};

// What was counted of a batch.
struct Counted {
  std::int64_t items = 0;
  std::int64_t sum = 0;
};

// The last stage. What it has answered survives its process: saved state, and each call once.
class Aggregator {
 public:
  static constexpr bool kExactlyOnce = true;
  void add(const Batch& batch) {
    Counted& counted = batches_[batch.number];
    if (counted.items > 0) return;  // a stage before this one was started again
    for (const std::int64_t item : batch.items) {
      ++counted.items;
      counted.sum += item;
    }
  }
  std::map<std::int64_t, Counted> counted() const { return batches_; }

  std::map<std::int64_t, Counted> save() const { return batches_; }
  void load(std::map<std::int64_t, Counted> batches) { batches_ = std::move(batches); }
  static constexpr auto methods = troupe::methods<&Aggregator::add, &Aggregator::counted>;

 private:
  std::map<std::int64_t, Counted> batches_;
};

// The middle: has no state, and does some work for each item.
class Worker {
 public:
  explicit Worker(troupe::ActorHandle<Aggregator> aggregator)
      : aggregator_(aggregator.with({.timeout = kPatience, .retry = true})) {}
  troupe::Status process(const Batch& batch) {
    Batch done{batch.number, {}};
    for (const std::int64_t item : batch.items) done.items.push_back(item + work(item));
    return aggregator_.call<&Aggregator::add>(done).get(kPatience);
  }
  static constexpr auto constructor = troupe::constructor<troupe::ActorHandle<Aggregator>>;
  static constexpr auto methods = troupe::methods<&Worker::process>;

 private:
  // Steps until Collatz's sequences from around here end in 1; returns 0.
  static std::int64_t work(std::int64_t item) {
    std::uint64_t steps = 0;
    for (std::int64_t i = 1; i <= 100; ++i) {
      for (auto n = static_cast<std::uint64_t>(item * 100 + i); n != 1; ++steps) {
        n = n % 2 == 0 ? n / 2 : 3 * n + 1;
      }
    }
    return steps == 0 ? 1 : 0;
  }
  troupe::ActorHandle<Aggregator> aggregator_;
};

// The first stage. It has many batches under way at once.
class Reader {
 public:
  static constexpr int kMaxConcurrency = static_cast<int>(kInFlightMax);
  explicit Reader(std::vector<troupe::ActorHandle<Worker>> workers) {
    for (const auto& worker : workers) {
      workers_.push_back(worker.with({.timeout = kPatience, .retry = true}));
    }
  }
  troupe::Task<std::int64_t> read(std::int64_t number) {
    Batch batch{number, {}};
    for (std::int64_t i = 0; i < kBatchItems; ++i) batch.items.push_back(number * kBatchItems + i);
    const auto& worker = workers_[static_cast<std::size_t>(number) % workers_.size()];
    const troupe::Status done = co_await worker.call<&Worker::process>(batch);
    if (!done.ok()) co_return done;
    co_return kBatchItems;
  }
  static constexpr auto constructor = troupe::constructor<std::vector<troupe::ActorHandle<Worker>>>;
  static constexpr auto methods = troupe::methods<&Reader::read>;

 private:
  std::vector<troupe::ActorHandle<Worker>> workers_;
};

std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += c >= 0 && c < ' ' ? ' ' : c;
  }
  return out + "\"";
}

struct Story {
  std::map<std::int64_t, std::int64_t> acknowledged;  // by batch
  std::map<std::string, std::int64_t> told;           // items, by what was said of them
  bool loss_told = false;  // that state was lost, or is nowhere to be asked for

  void tell(const troupe::Status& status, std::int64_t items) {
    // (Without the actor's last words, which differ from time to time.)
    told[std::string(troupe::code_name(status.code())) + ": " +
         status.to_string().substr(0, 300)] += items;
    loss_told = loss_told || status.code() == troupe::Code::kDataLoss;
  }
};

std::int64_t sum_of(std::int64_t batch) {
  return kBatchItems * (batch * kBatchItems) + kBatchItems * (kBatchItems - 1) / 2;
}

// As fast as the source gives them, and at most so many at once.
void feed(const troupe::ActorHandle<Reader>& reader, std::int64_t items, std::int64_t per_second,
          Story& story) {
  struct InFlight {
    std::int64_t batch;
    troupe::Future<std::int64_t> done;
  };
  const auto surely = reader.with({.timeout = kPatience, .retry = true});
  std::deque<InFlight> in_flight;
  std::int64_t acknowledged = 0, said = 0;
  const auto begun = std::chrono::steady_clock::now();
  auto pause = 1ms;
  const auto send = [&](std::int64_t batch) {
    in_flight.push_back({batch, surely.call<&Reader::read>(batch)});
  };
  const auto finish_oldest = [&] {
    InFlight oldest = std::move(in_flight.front());
    in_flight.pop_front();
    const auto done = oldest.done.get(2 * kPatience);
    if (done.ok()) {
      pause = 1ms;
      story.acknowledged[oldest.batch] = *done;
      acknowledged += *done;
    } else if (done.status().code() == troupe::Code::kOverloaded) {
      std::this_thread::sleep_for(pause);
      pause = std::min(pause * 2, 100ms);
      send(oldest.batch);
    } else {
      story.tell(done.status(), kBatchItems);
    }
    if (acknowledged - said >= 2000) {
      std::printf("acknowledged %lld\n", static_cast<long long>(acknowledged));
      std::fflush(stdout);
      said = acknowledged;
    }
  };
  for (std::int64_t batch = 0; batch < items / kBatchItems; ++batch) {
    std::this_thread::sleep_until(
        begun + std::chrono::microseconds(1'000'000 * batch * kBatchItems / per_second));
    while (in_flight.size() >= kInFlightMax ||
           (!in_flight.empty() && in_flight.front().done.ready())) {
      finish_oldest();
    }
    send(batch);
  }
  while (!in_flight.empty()) finish_oldest();
}

troupe::Status run(std::int64_t items, int worker_count, std::int64_t per_second, Story& story) {
  auto cluster = TROUPE_TRY(troupe::Cluster::connect());
  auto aggregator =
      TROUPE_TRY(cluster.spawn<Aggregator>({.name = "aggregator", .max_restarts = -1}));
  std::vector<troupe::ActorHandle<Worker>> workers;
  for (int i = 0; i < worker_count; ++i) {
    workers.push_back(TROUPE_TRY(cluster.spawn<Worker>(
        {.name = "worker-" + std::to_string(i), .max_restarts = -1}, aggregator)));
  }
  auto reader = TROUPE_TRY(cluster.spawn<Reader>({.name = "reader", .max_restarts = -1}, workers));
  feed(reader, items, per_second, story);

  const auto counted = aggregator.with({.timeout = kPatience, .retry = true})
                           .call<&Aggregator::counted>()
                           .get(2 * kPatience);
  if (!counted.ok()) {
    // Nobody can be asked: all that was acknowledged may be gone, and that was said.
    story.loss_told = true;
    story.tell(counted.status(), 0);
  }
  std::int64_t acknowledged = 0, count = 0, missing = 0, wrong = 0;
  for (const auto& [batch, n] : story.acknowledged) {
    acknowledged += n;
    if (counted.ok() && !counted->contains(batch)) missing += n;
  }
  if (counted.ok()) {
    for (const auto& [batch, of_it] : *counted) {
      count += of_it.items;
      if (of_it.items != kBatchItems || of_it.sum != sum_of(batch)) wrong += of_it.items;
    }
  } else {
    missing = acknowledged;
  }
  std::string told;
  for (const auto& [text, n] : story.told) {
    told += (told.empty() ? "" : ", ") + std::string("{\"items\": ") + std::to_string(n) +
            ", \"error\": " + quoted(text) + "}";
  }
  std::printf(
      "result {\"acknowledged\": %lld, \"counted\": %lld, \"missing\": %lld, "
      "\"wrong\": %lld, \"loss_told\": %s, \"told\": [%s]}\n",
      static_cast<long long>(acknowledged), static_cast<long long>(count),
      static_cast<long long>(missing), static_cast<long long>(wrong),
      story.loss_told ? "true" : "false", told.c_str());
  std::fflush(stdout);
  return {};
}

}  // namespace

int main(int argc, char** argv) {
  if (const auto code = troupe::host_main(argc, argv, troupe::actors<Reader, Worker, Aggregator>)) {
    return *code;
  }
  if (argc != 4 || std::atoll(argv[3]) <= 0) {
    std::fprintf(stderr, "usage: torture_pipeline ITEMS WORKERS ITEMS_PER_SECOND\n");
    return 2;
  }
  Story story;
  const troupe::Status status =
      run(std::atoll(argv[1]), std::atoi(argv[2]), std::atoll(argv[3]), story);
  if (status.ok()) return 0;
  std::fprintf(stderr, "torture_pipeline: %s\n", status.to_string().c_str());
  return 1;
}
