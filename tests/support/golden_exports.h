#pragma once
// LLaMA-Factory's recorded exports (lf_golden).

#include <string>
#include <vector>

namespace troupe::train::tests {

struct GoldenExport {
  std::string name;
  std::vector<std::string> adapters;  // of lf_golden/inits, merged in this order
};

inline std::vector<GoldenExport> golden_exports() {
  return {{"export_lora", {"r8"}},
          {"export_dora", {"r4_dora"}},
          {"export_two", {"r4", "r4_qk_seed77"}},
          {"export_embed_head", {"r4_qv_save"}},
          {"export_rslora_bf16", {"r8_rslora"}}};
}

}  // namespace troupe::train::tests
