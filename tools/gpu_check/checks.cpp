#include "tools/gpu_check/check.h"

namespace troupe::tools::gpu {

// What a GPU must do at all, then whole runs, values, what a run reaches, each part's rate, and at
// the end what takes longest: where time runs out, that is left out.
std::vector<Check> all_checks() {
  std::vector<Check> checks;
  add_device_checks(checks);
  // Before anything opens a context: it must show that none is needed to hold memory.
  add_export_check(checks);
  add_killed_update_check(checks);
  add_copy_checks(checks);
  add_program_checks(checks);

  add_product_checks(checks);
  add_epilogue_checks(checks);
  add_operator_checks(checks);
  add_attention_checks(checks);
  add_fused_attention_checks(checks);
  add_optimizer_checks(checks);
  add_update_checks(checks);
  add_model_checks(checks);

  add_program_rate_checks(checks);
  add_plan_checks(checks);
  add_peer_checks(checks);

  add_product_rate_checks(checks);
  add_epilogue_rate_checks(checks);
  add_bandwidth_checks(checks);
  add_fused_attention_rate_checks(checks);
  add_attention_rate_checks(checks);
  add_graph_checks(checks);
  add_sharding_checks(checks);
  add_training_checks(checks);
  add_fp8_checks(checks);

  add_large_program_rate_checks(checks);
  add_compiled_peer_checks(checks);
  return checks;
}

}  // namespace troupe::tools::gpu
