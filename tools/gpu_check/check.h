#pragma once
// A check of a GPU: a name, what it shows, a figure and the bar that it must meet.

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "runtime/base/status.h"

namespace troupe::tools::gpu {

class Bench;

// What a check measured. Without a bar the figure is for the record.
struct Figure {
  enum class Bar { kNone, kAtLeast, kAtMost };
  double value = 0;
  std::string unit;
  Bar bar = Bar::kNone;
  double bar_value = 0;
  std::string text;  // for people: which of the cases, other figures

  // A value that is no number meets no bar.
  bool met() const {
    return bar == Bar::kNone || (bar == Bar::kAtLeast ? value >= bar_value : value <= bar_value);
  }
};

struct Check {
  std::string name;    // "operators/swiglu bf16": group/subject
  std::string what;    // what it shows, in a sentence
  double seconds = 2;  // about how long on a GPU
  // kUnsupported: this device or library cannot, which is said and is no failure of the check's.
  // Any other failure fails it.
  std::function<Result<Figure>(Bench&)> run;
};

// Every check, the most important first.
std::vector<Check> all_checks();

// The groups, each appended in its own order.
void add_device_checks(std::vector<Check>& checks);
void add_export_check(std::vector<Check>& checks);
void add_killed_update_check(std::vector<Check>& checks);
void add_copy_checks(std::vector<Check>& checks);
void add_program_checks(std::vector<Check>& checks);
void add_peer_checks(std::vector<Check>& checks);
void add_compiled_peer_checks(std::vector<Check>& checks);
void add_plan_checks(std::vector<Check>& checks);
void add_program_rate_checks(std::vector<Check>& checks);
void add_large_program_rate_checks(std::vector<Check>& checks);
void add_product_rate_checks(std::vector<Check>& checks);
void add_operator_checks(std::vector<Check>& checks);
void add_product_checks(std::vector<Check>& checks);
void add_epilogue_checks(std::vector<Check>& checks);
void add_epilogue_rate_checks(std::vector<Check>& checks);
void add_attention_checks(std::vector<Check>& checks);
void add_fused_attention_checks(std::vector<Check>& checks);
void add_optimizer_checks(std::vector<Check>& checks);
void add_update_checks(std::vector<Check>& checks);
void add_bandwidth_checks(std::vector<Check>& checks);
void add_attention_rate_checks(std::vector<Check>& checks);
void add_fused_attention_rate_checks(std::vector<Check>& checks);
void add_model_checks(std::vector<Check>& checks);
void add_sharding_checks(std::vector<Check>& checks);
void add_graph_checks(std::vector<Check>& checks);
void add_training_checks(std::vector<Check>& checks);
void add_fp8_checks(std::vector<Check>& checks);

}  // namespace troupe::tools::gpu
