#include "train/transaction/step_transaction.h"

#include <doctest/doctest.h>

#include <cstring>
#include <numeric>
#include <vector>

#include "train/optimizer/update_log.h"

using namespace troupe;
using namespace troupe::train;

namespace {

constexpr std::int64_t kChunks = 6;
constexpr std::size_t kWords = 4;  // of a chunk, in each of two arrays

struct Killed {};

// Surviving memory of one rank and the tensors in it.
struct Memory {
  TransactionMemory shared{};
  UpdateLog::Layout layout{
      .chunks = kChunks, .chunk_bytes_max = 2 * kWords * sizeof(std::uint64_t), .undo_slots = 2};
  std::vector<std::uint64_t> marks = std::vector<std::uint64_t>(layout.marks_bytes() / 8);
  std::vector<std::uint64_t> undo = std::vector<std::uint64_t>(layout.undo_bytes() / 8);
  std::vector<std::uint64_t> first = std::vector<std::uint64_t>(kChunks * kWords);
  std::vector<std::uint64_t> second = std::vector<std::uint64_t>(kChunks * kWords);

  Memory() {
    std::iota(first.begin(), first.end(), 1);
    std::iota(second.begin(), second.end(), 1000);
  }
  StepTransaction attach() { return StepTransaction(shared); }
  UpdateLog log() {
    return {layout, std::as_writable_bytes(std::span(marks)),
            std::as_writable_bytes(std::span(undo))};
  }
  std::vector<std::span<std::byte>> parts(std::int64_t chunk) {
    const auto at = static_cast<std::size_t>(chunk) * kWords;
    return {std::as_writable_bytes(std::span(first).subspan(at, kWords)),
            std::as_writable_bytes(std::span(second).subspan(at, kWords))};
  }
};

// A life of one process: everything up to step `steps`, killed at the `kill_at`-th moment.
class Life {
 public:
  Life(Memory& memory, std::int64_t kill_at) : memory_(memory), left_(kill_at) {}

  void run(std::int64_t steps) {
    StepTransaction transaction = memory_.attach();
    if (transaction.position().phase == CommitPhase::kCommitted) {
      memory_.log().restore(transaction.committed().step,
                            [&](std::int64_t chunk) { return memory_.parts(chunk); });
      optimize(transaction);
    } else if (transaction.position().phase == CommitPhase::kPrepared) {
      transaction.discard();
    }
    while (transaction.position().step < steps) {
      moment();
      CommitRecord record = transaction.record();
      ++record.step;
      record.grad_norm = static_cast<double>(record.step) / 8;
      transaction.prepare(record);
      moment();
      transaction.commit(record);
      moment();
      optimize(transaction);
    }
  }
  bool survived() const { return left_ > 0; }

 private:
  void moment() {
    if (--left_ == 0) throw Killed{};
  }
  void optimize(StepTransaction& transaction) {
    UpdateLog log = memory_.log();
    const std::int64_t step = transaction.committed().step;
    for (std::int64_t chunk = 0; chunk < kChunks; ++chunk) {
      if (log.done(step, chunk)) continue;
      const auto parts = memory_.parts(chunk);
      const auto add = static_cast<std::uint64_t>(transaction.committed().grad_norm * 8);
      const auto update = [&] {
        // Not commutative: a word that is updated twice, or from a new neighbour, shows.
        for (std::size_t i = 0; i < kWords; ++i) {
          const auto at = static_cast<std::size_t>(chunk) * kWords + i;
          memory_.first[at] = memory_.first[at] * 3 + memory_.second[at] + add;
          moment();
          memory_.second[at] = memory_.second[at] * 5 + memory_.first[at];
        }
      };
      log.run(step, static_cast<int>(chunk % 2), chunk, parts, update,
              [&](std::string_view) { moment(); });
    }
    transaction.finish();
    moment();
  }

  Memory& memory_;
  std::int64_t left_;
};

void load(Memory& memory, const CommitRecord& record) {
  memory.log().forget();
  memory.attach().load(record);
}
void begin(Memory& memory) { load(memory, CommitRecord{}); }

}  // namespace

TEST_CASE("killed at every instant, and again while it finishes: the same bytes") {
  constexpr std::int64_t kSteps = 3;
  Memory undisturbed;
  begin(undisturbed);
  Life(undisturbed, 1'000'000).run(kSteps);

  bool reached_the_end = false;
  for (std::int64_t first = 1; !reached_the_end; ++first) {
    for (const std::int64_t second : {1, 2, 3, 5, 7, 11, 19, 1'000'000}) {
      Memory memory;
      begin(memory);
      bool killed = false;
      for (const std::int64_t kill_at : {first, second, std::int64_t{1'000'000}}) {
        try {
          Life(memory, kill_at).run(kSteps);
          break;
        } catch (const Killed&) {
          killed = true;
        }
      }
      CHECK(memory.first == undisturbed.first);
      CHECK(memory.second == undisturbed.second);
      CHECK(memory.attach().position().step == kSteps);
      CHECK(memory.attach().record().grad_norm == undisturbed.attach().record().grad_norm);
      if (!killed) reached_the_end = true;
    }
  }
}

TEST_CASE("after a load nothing counts as done, and nothing is restored") {
  Memory memory;
  begin(memory);
  Life(memory, 1'000'000).run(5);
  StepTransaction transaction = memory.attach();
  transaction.unload();
  CHECK_FALSE(transaction.position().loaded);
  CommitRecord record;
  record.step = 4;
  load(memory, record);
  record.step = 5;
  transaction.prepare(record);
  transaction.commit(record);
  UpdateLog log = memory.log();
  for (std::int64_t chunk = 0; chunk < kChunks; ++chunk) CHECK_FALSE(log.done(5, chunk));
  const auto before = memory.first;
  log.restore(5, [&](std::int64_t chunk) { return memory.parts(chunk); });
  CHECK(memory.first == before);
}

TEST_CASE("what follows a step is replaced as a whole") {
  Memory memory;
  begin(memory);
  StepTransaction transaction = memory.attach();
  CHECK(transaction.aftermath().finished_step == -1);
  for (std::int64_t step = 1; step < 4; ++step) {
    Aftermath next = transaction.aftermath();
    next.finished_step = step;
    next.now.best.best_step = step;
    transaction.set_aftermath(next);
    CHECK(memory.attach().aftermath().finished_step == step);
    CHECK(memory.attach().aftermath().now.best.best_step == step);
  }
}

TEST_CASE("a reason is cut to what a record holds") {
  CommitRecord record;
  CHECK_FALSE(record.skips());
  record.set_why(std::string(1000, 'x'));
  CHECK(record.skips());
  CHECK(record.why().size() == 255);
  record.set_why("short");
  CHECK(record.why() == "short");
}
