#include "train/trainer/data_changes.h"

namespace troupe::train {
namespace {

// That are kept for callers that still wait.
constexpr std::size_t kOutcomesKept = 64;

}  // namespace

Status run_has_ended() {
  return error(Code::kFailedPrecondition, "the run has ended: no step follows");
}

Result<bool> DataChanges::ask(const TrainingView& run, const std::string& arguments) {
  if (run.rank() != 0)
    return error(Code::kFailedPrecondition,
                 "the data are changed through rank 0's trainer, and this is rank {}", run.rank());
  if (!run.has_own_data())
    return error(Code::kFailedPrecondition, "the run has no data source of its own");
  if (run.data_arguments() == arguments) return true;
  if (run.has_ended()) return run_has_ended();
  MutexLock lock(mutex_);
  if (asked_ && *asked_ != arguments)
    return error(Code::kUnavailable, "another change of the data is under way: try again");
  asked_ = arguments;
  outcomes_.erase(arguments);
  if (outcomes_.size() > kOutcomesKept) outcomes_.clear();
  return false;
}

Status DataChanges::wait(const std::string& arguments, Deadline deadline) {
  MutexLock lock(mutex_);
  const auto done = [&]() TROUPE_NO_ANALYSIS { return ended_ || outcomes_.contains(arguments); };
  changed_.wait_until(mutex_, deadline, done);
  // It stays for other callers that wait for the same.
  if (const auto found = outcomes_.find(arguments); found != outcomes_.end()) return found->second;
  if (asked_ == arguments) asked_.reset();
  return error(Code::kDeadlineExceeded,
               "no step was finished with the new data within the call's time: whether one will be "
               "is not known");
}

std::optional<std::string> DataChanges::asked() const {
  MutexLock lock(mutex_);
  return asked_;
}

void DataChanges::done(const std::string& arguments, const Status& outcome) {
  MutexLock lock(mutex_);
  if (asked_ == arguments) asked_.reset();
  outcomes_[arguments] = outcome;
  changed_.notify_all();
}

void DataChanges::run_ended() {
  if (const auto arguments = asked()) done(*arguments, run_has_ended());
}

void DataChanges::end() {
  MutexLock lock(mutex_);
  ended_ = true;
  changed_.notify_all();
}

}  // namespace troupe::train
