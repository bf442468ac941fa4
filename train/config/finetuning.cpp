#include "train/config/finetuning.h"

#include <fmt/format.h>

#include "runtime/base/suggest.h"

namespace troupe::train {
namespace {

class UnsupportedList {
 public:
  void add(bool asked, std::string_view key, std::string_view value, std::string_view reason,
           std::string_view instead) {
    if (!asked) return;
    list_.push_back({std::string(key),
                     fmt::format("{}={} is not supported: {}; {}", key, value, reason, instead)});
  }
  std::vector<UnsupportedSetting> take() { return std::move(list_); }

 private:
  std::vector<UnsupportedSetting> list_;
};

constexpr std::string_view kOut = "leave the key out";

}  // namespace

std::vector<UnsupportedSetting> check_supported(const FinetuningSection& f) {
  UnsupportedList list;

  list.add(f.exported.export_dir.has_value(), "export_dir", f.exported.export_dir.value_or(""),
           "this is a configuration of `export`, not of training",
           "output_dir receives the trained model in Hugging Face's form");
  return list.take();
}

std::vector<UnsupportedSetting> check_export_supported(const FinetuningSection& f) {
  UnsupportedList list;
  const ExportSection& e = f.exported;
  list.add(e.export_quantization_bit.has_value(), "export_quantization_bit",
           fmt::format("{}", e.export_quantization_bit.value_or(0)),
           "quantised models are not exported (GPTQ)", kOut);
  list.add(e.export_quantization_dataset.has_value(), "export_quantization_dataset",
           e.export_quantization_dataset.value_or(""), "quantised models are not exported (GPTQ)",
           kOut);
  list.add(e.export_legacy_format, "export_legacy_format", "true",
           "weights are written as safetensors, never pickled", kOut);
  list.add(e.export_hub_model_id.has_value(), "export_hub_model_id",
           e.export_hub_model_id.value_or(""), "nothing is uploaded to a hub", kOut);
  return list.take();
}

}  // namespace troupe::train
