#pragma once
// A training run small enough to be started dozens of times by a test: model, text, settings.

#include <map>
#include <string>
#include <vector>

#include "runtime/base/json.h"
#include "tests/support/command.h"
#include "tests/support/test_data.h"
#include "train/report/step_log.h"

namespace troupe::tests {

// `key=value` arguments of `troupe train`.
using Settings = std::map<std::string, std::string>;

class TinyRun {
 public:
  // Writes a two-layer model's config.json, a text of 120 lines and an alpaca data set.
  TinyRun();

  const std::string& path() const { return directory_.path(); }
  std::string file(const std::string& name) const { return directory_.file(name); }

  // The settings of a run on two trainers with eight steps and a checkpoint every three, changed by
  // `changes` (an empty value takes a key away); output_dir is the folder `output` of the test.
  std::vector<std::string> train_arguments(const std::string& output,
                                           const Settings& changes = {}) const;
  // HOME and TMPDIR within the test, none of the launcher's variables.
  CommandOptions options(const std::map<std::string, std::string>& environment = {}) const;

  // `troupe train` to its end. `more`: further arguments, as they are.
  CommandResult train(const std::string& output, const Settings& changes = {},
                      const std::vector<std::string>& more = {},
                      const std::map<std::string, std::string>& environment = {}) const;
  // The same; requires that it ended well and left nothing.
  CommandResult must_train(const std::string& output, const Settings& changes = {},
                           const std::vector<std::string>& more = {},
                           const std::map<std::string, std::string>& environment = {}) const;

  // Processes that were started by this test and live: they have its HOME.
  std::vector<pid_t> processes() const;
  // Polls until none of them lives. The bar is one second; false when it is missed.
  bool processes_gone() const;
  // Names of files that nobody wants: temporary ones in the output, anything in TMPDIR.
  std::vector<std::string> leftovers() const;
  // Checks that neither is there.
  void check_nothing_left() const;

 private:
  TemporaryDirectory directory_;
};

// The program `troupe`.
std::string troupe_program();

// The whole content; fails the test where it cannot be read.
std::string contents(const std::string& path);
void write(const std::string& path, const std::string& content);
bool exists(const std::string& path);

// Steps of a finished run, and lines of its events.jsonl.
std::vector<train::StepRecord> steps_of(const std::string& output);
std::vector<json::Value> json_lines(const std::string& path);
// What happened to a run: its events in order, without its start, its end, injected faults and
// stragglers.
std::vector<json::Value> events(const std::string& output);
std::vector<std::string> event_names(const std::string& output);

// "run-1234abcd" out of what a run printed.
std::string run_id(const std::string& output);
// Trainer processes of that rank and run.
std::vector<pid_t> trainers(const std::string& run, int rank);

// Processes of that run's controller.
std::vector<pid_t> controllers(const std::string& run);

// Equal weights and equal steps, bit for bit.
void check_same_result(const std::string& output, const std::string& expected);
// Equal losses up to the order of sums.
void check_same_losses(const std::string& output, const std::string& expected);

}  // namespace troupe::tests
