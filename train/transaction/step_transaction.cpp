#include "train/transaction/step_transaction.h"

#include <algorithm>

#include "runtime/base/check.h"

namespace troupe::train {
void CommitRecord::set_why(std::string_view why) {
  const std::size_t length = std::min(why.size(), skipped_why.size() - 1);
  skipped_why = {};
  std::copy_n(why.data(), length, skipped_why.data());
}

void CommitRecord::set_data(std::string_view arguments) {
  TROUPE_CHECK(arguments.size() < data_arguments.size());
  data_arguments = {};
  std::copy_n(arguments.data(), arguments.size(), data_arguments.data());
}

std::string_view commit_phase_name(CommitPhase phase) {
  switch (phase) {
    case CommitPhase::kComputing:
      return "computing";
    case CommitPhase::kPrepared:
      return "prepared";
    case CommitPhase::kCommitted:
      return "committed";
  }
  return "unknown";
}

RankPosition StepTransaction::position() const {
  const std::uint64_t state = memory_.state.load(std::memory_order_acquire);
  if (state == 0 || (state - 1) % 4 > 2) return {};
  return {.loaded = 1,
          .phase = static_cast<CommitPhase>((state - 1) % 4),
          .step = static_cast<std::int64_t>((state - 1) / 4),
          .begun = memory_.begun.load(std::memory_order_relaxed)};
}

void StepTransaction::set(std::int64_t step, CommitPhase phase) {
  const std::uint64_t state =
      1 + static_cast<std::uint64_t>(step) * 4 + static_cast<std::uint64_t>(phase);
  memory_.state.store(state, std::memory_order_release);
}

const CommitRecord& StepTransaction::record() const { return memory_.records[position().step % 2]; }

const CommitRecord& StepTransaction::committed() const {
  TROUPE_CHECK(position().phase == CommitPhase::kCommitted);
  return memory_.records[(position().step + 1) % 2];
}

const CommitRecord& StepTransaction::prepared() const {
  TROUPE_CHECK(position().phase != CommitPhase::kComputing);
  return memory_.records[(position().step + 1) % 2];
}

const Aftermath& StepTransaction::aftermath() const {
  return memory_.aftermaths[memory_.aftermaths_written.load(std::memory_order_acquire) % 2];
}

void StepTransaction::set_aftermath(const Aftermath& aftermath) {
  const std::uint64_t next = memory_.aftermaths_written.load(std::memory_order_relaxed) + 1;
  memory_.aftermaths[next % 2] = aftermath;
  memory_.aftermaths_written.store(next, std::memory_order_release);
}

void StepTransaction::begin_generation(std::uint64_t generation) {
  TROUPE_CHECK(generation > this->generation());
  memory_.generation.store(generation, std::memory_order_release);
}

void StepTransaction::unload() { memory_.state.store(0, std::memory_order_release); }

void StepTransaction::load(const CommitRecord& record) {
  TROUPE_CHECK(!position().loaded && record.step >= 0);
  memory_.records[record.step % 2] = record;
  memory_.begun.store(record.step, std::memory_order_relaxed);
  set(record.step, CommitPhase::kComputing);
}

void StepTransaction::begin_step() {
  memory_.begun.store(position().step + 1, std::memory_order_relaxed);
}

void StepTransaction::prepare(const CommitRecord& record) {
  const RankPosition at = position();
  TROUPE_CHECK(at.loaded && at.phase == CommitPhase::kComputing && record.step == at.step + 1);
  memory_.records[record.step % 2] = record;
  set(at.step, CommitPhase::kPrepared);
}

void StepTransaction::commit(const CommitRecord& record) {
  const RankPosition at = position();
  TROUPE_CHECK(at.loaded && record.step == at.step + 1);
  if (at.phase == CommitPhase::kCommitted) return;
  TROUPE_CHECK(at.phase == CommitPhase::kPrepared, "committed without having prepared");
  memory_.records[record.step % 2] = record;
  set(at.step, CommitPhase::kCommitted);
}

void StepTransaction::discard() {
  const RankPosition at = position();
  TROUPE_CHECK(at.loaded && at.phase != CommitPhase::kCommitted);
  set(at.step, CommitPhase::kComputing);
}

void StepTransaction::finish() {
  const RankPosition at = position();
  TROUPE_CHECK(at.phase == CommitPhase::kCommitted);
  set(at.step + 1, CommitPhase::kComputing);
}

}  // namespace troupe::train
