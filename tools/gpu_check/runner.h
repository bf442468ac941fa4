#pragma once
// Runs checks one after another within a time, each in a process that may die of it.

#include <cstdint>
#include <ostream>
#include <string>
#include <vector>

#include "runtime/base/status.h"
#include "tools/gpu_check/bench.h"
#include "tools/gpu_check/check.h"

namespace troupe::tools::gpu {

enum class Verdict { kPassed, kFailed, kSkipped };
const char* verdict_name(Verdict verdict);

struct CheckResult {
  std::string name;
  Verdict verdict = Verdict::kSkipped;
  Figure figure;       // of a check that measured
  std::string reason;  // why it failed or was skipped
  double seconds = 0;
  // Its process may be of no use any more: a device's failure stays with the context.
  bool broken = false;
};

// One check, in this process.
CheckResult run_check(const Check& check, Bench& bench);

struct RunOptions {
  BenchOptions bench;
  // Checks whose name contains one of them; empty: all.
  std::vector<std::string> only;
  double seconds = 480;
  // Its worker.log gets what the checks' processes write; its results.json the results, after every
  // check.
  std::string log_folder;
};

// The checks that `only` selects, in order.
std::vector<Check> selected_checks(const std::vector<std::string>& only);

// Runs them in processes of `bench.program`, a new one after each that fails or hangs, and says
// each result on `out` when it is there. What no longer fits the seconds is skipped.
// kInvalidArgument: nothing is selected.
Result<std::vector<CheckResult>> run_checks(const RunOptions& options, std::ostream& out);

// What such a process does: names of checks from standard input, results to standard output, until
// the input ends.
Status serve_checks(Bench& bench);

// Of all: {"checks": […], "passed": n, …}.
std::string results_json(const std::vector<CheckResult>& results);
// Everything passed.
bool all_passed(const std::vector<CheckResult>& results);

}  // namespace troupe::tools::gpu
