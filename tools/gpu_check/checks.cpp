#include "tools/gpu_check/check.h"

namespace troupe::tools::gpu {

std::vector<Check> all_checks() {
  std::vector<Check> checks;
  add_device_checks(checks);
  // Before anything opens a context: it must show that none is needed to hold memory.
  add_export_check(checks);
  add_killed_update_check(checks);
  add_copy_checks(checks);
  add_program_checks(checks);
  add_program_rate_checks(checks);
  add_product_rate_checks(checks);
  add_product_checks(checks);
  add_operator_checks(checks);
  add_attention_checks(checks);
  add_fused_attention_checks(checks);
  add_optimizer_checks(checks);
  add_update_checks(checks);
  add_bandwidth_checks(checks);
  add_fused_attention_rate_checks(checks);
  add_attention_rate_checks(checks);
  add_model_checks(checks);
  add_sharding_checks(checks);
  add_training_checks(checks);
  add_fp8_checks(checks);
  return checks;
}

}  // namespace troupe::tools::gpu
