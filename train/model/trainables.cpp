#include "train/model/trainables.h"

namespace troupe::train {

bool QuantizedBase::skips(std::string_view module) const {
  for (const std::string& name : skipped) {
    if (module == name || module.starts_with(name + ".") || module.ends_with("." + name) ||
        module.find("." + name + ".") != std::string_view::npos)
      return true;
  }
  return false;
}

namespace {

// Whether it is a list of texts, all of which are added.
bool take_texts(const json::Value& value, std::vector<std::string>& texts) {
  if (!value.is_array()) return false;
  for (const json::Value& text : value.get_array()) {
    if (!text.is_string()) return false;
    texts.emplace_back(text.get_string());
  }
  return true;
}

}  // namespace

json::Value to_json(const Trainables& trainables) {
  json::Array tensors, lora, skipped;
  for (const std::string& name : trainables.base.skipped) skipped.push_back(json::Value(name));
  for (const std::string& name : trainables.tensors) tensors.push_back(json::Value(name));
  for (const LoraModule& adapter : trainables.lora) {
    lora.push_back(json::Object{{"module", adapter.module},
                                {"rank", adapter.rank},
                                {"scale", adapter.scale},
                                {"dropout", adapter.dropout},
                                {"dora", adapter.dora},
                                {"b_learning_rate_factor", adapter.b_learning_rate_factor}});
  }
  return json::Object{{"everything", trainables.everything},
                      {"unties_head", trainables.unties_head},
                      {"reference", static_cast<std::int64_t>(trainables.reference)},
                      {"value_head", trainables.value_head},
                      {"quantized", weight_code_name(trainables.base.quantization.code)},
                      {"nested", trainables.base.quantization.nested},
                      {"beside", dtype_name(trainables.base.beside)},
                      {"skipped", std::move(skipped)},
                      {"tensors", std::move(tensors)},
                      {"lora", std::move(lora)}};
}

Result<Trainables> trainables_from_json(const json::Value& value, std::string_view name) {
  const Status broken = error(Code::kInvalidArgument, "{}: not a list of what is trained", name);
  const auto flag = [](const json::Value& object, std::string_view key) {
    const json::Value* found = json::find(object, key);
    return found && found->is_bool() && found->get_bool();
  };
  const json::Value* tensors = json::find(value, "tensors");
  const json::Value* lora = json::find(value, "lora");
  if (!tensors || !lora || !lora->is_array()) return broken;
  Trainables trainables{.everything = flag(value, "everything"),
                        .tensors = {},
                        .lora = {},
                        .unties_head = flag(value, "unties_head"),
                        .value_head = flag(value, "value_head")};
  const std::int64_t reference = json::find_integer(value, "reference").value_or(0);
  if (reference < 0 || reference > static_cast<std::int64_t>(Reference::kOther)) return broken;
  trainables.reference = static_cast<Reference>(reference);
  // Without the keys nothing is quantised.
  if (const auto code = json::find_string(value, "quantized")) {
    const auto beside = dtype_from_name(json::find_string(value, "beside").value_or(""));
    if (!beside) return broken;
    trainables.base = {
        .quantization = {.code = weight_code_from_name(*code).value_or(WeightCode::kNone),
                         .nested = flag(value, "nested")},
        .beside = *beside};
    const json::Value* skipped = json::find(value, "skipped");
    if (skipped && !take_texts(*skipped, trainables.base.skipped)) return broken;
  }
  if (!take_texts(*tensors, trainables.tensors)) return broken;
  for (const json::Value& adapter : lora->get_array()) {
    const auto module = json::find_string(adapter, "module");
    const auto rank = json::find_integer(adapter, "rank");
    const json::Value* scale = json::find(adapter, "scale");
    const json::Value* dropout = json::find(adapter, "dropout");
    const json::Value* rate = json::find(adapter, "b_learning_rate_factor");
    if (!module || !rank || !scale || !scale->is_double() || !dropout || !dropout->is_double() ||
        !rate || !rate->is_double())
      return broken;
    trainables.lora.push_back({.module = *module,
                               .rank = *rank,
                               .scale = scale->get_double(),
                               .dropout = dropout->get_double(),
                               .dora = flag(adapter, "dora"),
                               .b_learning_rate_factor = rate->get_double()});
  }
  return trainables;
}

}  // namespace troupe::train
