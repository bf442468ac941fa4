#include "train/trainer/export_model.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <memory>

#include "runtime/base/limits.h"
#include "runtime/base/sort_by.h"
#include "train/adapters/base_record.h"
#include "train/cpu/arena.h"
#include "train/cpu/cpu_operators.h"
#include "train/data/chat_template.h"
#include "train/model/adapter_tensors.h"
#include "train/model/model.h"
#include "train/report/format.h"
#include "train/tensor/convert.h"
#include "train/tokenizer/tokenizer.h"
#include "train/trainer/adapted_model.h"

namespace troupe::train {
namespace {

constexpr std::int64_t kElementsAtOnce = 1 << 20;
constexpr std::uint64_t kLongFileBytes = 256u << 20;
constexpr const char* kProbeText =
    "Once upon a time there was a little girl who lived in a house by the sea. 3 + 4 = 7; "
    "if (x > 0) { return x; }";

bool same_folder(const std::string& a, const std::string& b) {
  std::error_code failed;
  const auto first = std::filesystem::weakly_canonical(a, failed);
  const auto second = std::filesystem::weakly_canonical(b, failed);
  return first == second;
}

Status check_out(FileSystem& files, const ExportRequest& request) {
  std::vector<std::string> sources = {request.base};
  for (const std::string& adapter : request.adapters) {
    sources.push_back(adapter);
    if (!request.adapter_folder.empty())
      sources.push_back(join_path(adapter, request.adapter_folder));
  }
  for (const std::string& source : sources)
    if (same_folder(request.out, source))
      return error(Code::kInvalidArgument,
                   "the export would be written over {}, which it is made of; name another "
                   "directory",
                   source);
  return check_new_model(files, request.out);
}

DType type_to_write(const ExportRequest& request, const AdaptedModel& model,
                    const ParameterLayout& layout) {
  if (request.dtype) return *request.dtype;
  const ModelConfig& config = model.config();
  const DType type = config.dtype.value_or(model.stored_type(layout.parameters().front()));
  if (type == DType::kBF16 || type == DType::kF16) return type;
  return request.has_gpu ? DType::kBF16 : DType::kF32;
}

// The base's config.json, with the type that is written and an untied head.
std::string config_text(const ModelConfig& model, DType dtype, bool unties_head) {
  json::Object config = model.source;
  const char* key = config.contains("dtype") ? "dtype" : "torch_dtype";
  config.erase("torch_dtype");
  config[key] = torch_name(dtype);
  if (unties_head) config["tie_word_embeddings"] = false;
  return json::write_indented(config, false) + "\n";
}

// The tokenizer's files, of `folder`, as the template makes them, in the folder that is written.
Status apply_template(FileSystem& files, const ExportRequest& request, const std::string& folder,
                      std::map<std::string, std::string>& companions,
                      std::vector<std::string>& notes) {
  Tokenizer tokenizer = TROUPE_TRY(Tokenizer::load(files, folder));
  const ChatTemplate chat = TROUPE_TRY(chat_template(*request.template_name));
  TROUPE_RETURN_IF_ERROR(fix_special_tokens(chat, tokenizer, notes));
  set_jinja_template(chat, tokenizer, std::nullopt);
  TROUPE_RETURN_IF_ERROR(tokenizer.save(files, request.out));
  for (const char* name : {"tokenizer.json", "tokenizer_config.json", "chat_template.jinja"}) {
    const std::string path = join_path(request.out, name);
    if (files.exists(path))
      companions[name] = TROUPE_TRY(files.read(path, limits::kJsonFileBytesMax));
  }
  return {};
}

// Without a template the base's is written, as LLaMA-Factory does; who trained the adapter by
// another one hears of it.
void note_other_template(FileSystem& files, const ExportRequest& request,
                         std::vector<std::string>& notes) {
  if (request.adapters.empty()) return;
  const std::string path = join_path(request.adapters.back(), "chat_template.jinja");
  auto trained_by = files.read(path, limits::kJsonFileBytesMax);
  auto tokenizer = Tokenizer::load(files, request.base);
  if (!trained_by.ok() || !tokenizer.ok() || tokenizer->chat_template() == *trained_by) return;
  tokenizer->set_chat_template(std::move(*trained_by));
  const auto known = template_behind_jinja(*tokenizer);
  notes.push_back(fmt::format(
      "the chat template that is written is the base's; {}, which the adapter was trained "
      "by, is another one: template: {} writes that",
      path, known ? known->name : "NAME"));
}

// Units whose parameters are read when a pass comes to them and dropped when it leaves them.
class ReadUnits final : public UnitAccess {
 public:
  using Read = std::function<Status(const ParameterInfo&, std::span<float>)>;
  ReadUnits(const ModelLayout& layout, Read read) : layout_(layout), read_(std::move(read)) {}

  Result<UnitParameters> acquire(int unit, Phase) override {
    Held& held = held_[unit];
    if (held.holders++ == 0) {
      TROUPE_RETURN_IF_ERROR(fill(layout_.trained(), unit, held.trained));
      TROUPE_RETURN_IF_ERROR(fill(layout_.frozen(), unit, held.frozen));
    }
    return UnitParameters{.trained = buffer(held.trained), .frozen = buffer(held.frozen)};
  }
  void release(int unit, Phase) override {
    const auto held = held_.find(unit);
    if (held != held_.end() && --held->second.holders == 0) held_.erase(held);
  }
  Result<UnitGradient> gradient(int) override {
    return error(Code::kUnsupported, "units that are read have no gradients");
  }
  Status gradient_done(int) override { return {}; }

 private:
  struct Held {
    int holders = 0;
    std::vector<float> trained, frozen;
  };
  static UnitBuffer buffer(const std::vector<float>& values) {
    return {reinterpret_cast<const std::byte*>(values.data()), DType::kF32, nullptr};
  }
  Status fill(const ParameterLayout& layout, int unit, std::vector<float>& values) {
    values.assign(static_cast<std::size_t>(layout.units()[static_cast<std::size_t>(unit)].elements),
                  0.0f);
    for (const ParameterInfo& parameter : layout.parameters(unit))
      TROUPE_RETURN_IF_ERROR(read_(
          parameter, std::span(values).subspan(static_cast<std::size_t>(parameter.offset_elements),
                                               static_cast<std::size_t>(parameter.elements))));
    return {};
  }

  const ModelLayout& layout_;
  Read read_;
  std::map<int, Held> held_;
};

class LogitProbe {
 public:
  // The probe text's ids; where the folder has no tokenizer, some ids of the vocabulary.
  LogitProbe(FileSystem& files, const std::string& folder, const ModelConfig& config, int threads)
      : arena_(threads), operators_(make_cpu_operators(arena_)) {
    if (const auto tokenizer = Tokenizer::load(files, folder); tokenizer.ok())
      if (const auto ids = tokenizer->encode(kProbeText, true); ids.ok())
        ids_.assign(ids->begin(), ids->end());
    const bool fit = !ids_.empty() && std::ranges::all_of(ids_, [&](std::int32_t id) {
      return id >= 0 && id < config.vocab_size;
    });
    if (!fit) {
      ids_.resize(32);
      for (std::size_t i = 0; i < ids_.size(); ++i)
        ids_[i] =
            static_cast<std::int32_t>(static_cast<std::int64_t>(i) * 7919 % config.vocab_size);
    }
    const auto longest = config.length_limit().value_or(std::ssize(ids_));
    if (std::ssize(ids_) > longest) ids_.resize(static_cast<std::size_t>(longest));
  }

  Result<std::vector<float>> logits(const ModelConfig& config, const Trainables& trainables,
                                    ReadUnits::Read read) {
    const auto model = make_model(config, *operators_, trainables);
    const auto length = std::ssize(ids_);
    Activations activations(config,
                            {.rows_max = 1,
                             .length_max = length,
                             .training = false,
                             .adapters = adapter_sizes(config, trainables)},
                            *operators_);
    ReadUnits units(model->model_layout(), std::move(read));
    std::vector<float> out(static_cast<std::size_t>(length * config.vocab_size));
    TROUPE_RETURN_IF_ERROR(model->logits({.rows = 1,
                                          .length = length,
                                          .ids = ids_,
                                          .labels = {},
                                          .position_ids = {},
                                          .segment_ids = {}},
                                         units, activations, out));
    return out;
  }

 private:
  Arena arena_;
  std::unique_ptr<Operators> operators_;
  std::vector<std::int32_t> ids_;
};

struct LogitDifference {
  double largest_delta = 0;
  double largest_logit = 0;  // of the base with the adapters beside it
};

// Of what lies in `out` from the base with the adapters beside it.
Result<LogitDifference> logit_difference(FileSystem& files, const ExportRequest& request,
                                         const AdaptedModel& model, const Trainables& beside) {
  LogitProbe probe(files, request.base, model.config(), request.threads);
  const auto expected = TROUPE_TRY(
      probe.logits(model.config(), beside, [&](const ParameterInfo& info, std::span<float> values) {
        return model.read_beside(info, values);
      }));
  const auto merged = TROUPE_TRY(AdaptedModel::open(files, request.out));
  const auto written = TROUPE_TRY(
      probe.logits(merged.config(), {}, [&](const ParameterInfo& info, std::span<float> values) {
        return merged.read_merged(info, AdaptedModel::Rounding::kNone, values);
      }));
  LogitDifference found;
  for (std::size_t i = 0; i < written.size(); ++i) {
    const double logit = std::abs(static_cast<double>(expected[i]));
    if (std::isfinite(logit)) found.largest_logit = std::max(found.largest_logit, logit);
    const double delta = std::abs(static_cast<double>(written[i]) - expected[i]);
    // A NaN is the largest difference of all.
    if (!(delta <= found.largest_delta)) found.largest_delta = delta;
    if (std::isnan(delta)) break;
  }
  return found;
}

Status append_tensor(const AdaptedModel& model, const ParameterInfo& info, DType dtype,
                     SafetensorsWriter& writer) {
  std::vector<float> values(static_cast<std::size_t>(info.elements));
  TROUPE_RETURN_IF_ERROR(model.read_merged(info, AdaptedModel::Rounding::kStoredType, values));
  std::vector<std::byte> stored;
  for (std::int64_t begin = 0; begin < info.elements; begin += kElementsAtOnce) {
    const auto count = static_cast<std::size_t>(std::min(kElementsAtOnce, info.elements - begin));
    stored.resize(count * dtype_size(dtype));
    TROUPE_RETURN_IF_ERROR(convert_from_float(
        std::span(values).subspan(static_cast<std::size_t>(begin), count), dtype, stored));
    TROUPE_RETURN_IF_ERROR(writer.append(stored));
  }
  return {};
}

bool all_fp32(const AdaptedModel& model, const ParameterLayout& layout) {
  return std::ranges::all_of(layout.parameters(), [&](const ParameterInfo& info) {
    return model.stored_type(info) == DType::kF32;
  });
}

// A reward model's head: the last adapter's, else the base's.
Status copy_value_head(FileSystem& files, const ExportRequest& request) {
  std::vector<std::string> folders{request.base};
  if (!request.adapters.empty())
    folders.insert(folders.begin(),
                   request.adapter_folder.empty()
                       ? request.adapters.back()
                       : join_path(request.adapters.back(), request.adapter_folder));
  for (const std::string& folder : folders) {
    const std::string path = join_path(folder, kValueHeadFile);
    if (!files.exists(path)) continue;
    return write_file_atomically(files, join_path(request.out, kValueHeadFile),
                                 TROUPE_TRY(files.read(path, kValueHeadBytesMax)));
  }
  return {};
}

// So that nobody takes them for good.
void remove_weights(FileSystem& files, const std::string& out, const MergedModel& written) {
  for (const FileDigest& file : written.files)
    if (file.name.starts_with("model")) static_cast<void>(files.remove(join_path(out, file.name)));
}

}  // namespace

double logit_difference_max(bool exact, double largest_logit) {
  return (exact ? 1e-3 : 0.5) * std::max(1.0, largest_logit);
}

Result<ExportRequest> export_request(const TrainConfig& config) {
  const FinetuningSection& finetuning = config.finetuning;
  if (!finetuning.exported.export_dir)
    return error(Code::kInvalidArgument, "Please specify `export_dir` to save model.");
  return ExportRequest{
      .base = config.model.model_name_or_path,
      .adapters = finetuning.adapter_name_or_path,
      .adapter_folder = finetuning.adapter_folder.value_or(""),
      .out = *finetuning.exported.export_dir,
      .shard_bytes_max =
          static_cast<std::uint64_t>(finetuning.exported.export_size_gb) * 1'000'000'000,
      .dtype = finetuning.infer_dtype == "auto" ? std::nullopt
                                                : dtype_from_torch_name(finetuning.infer_dtype),
      .template_name = config.data.template_name};
}

Result<ExportedModel> export_model(FileSystem& files, const ExportRequest& request) {
  const AdaptedModel model =
      TROUPE_TRY(AdaptedModel::open(files, request.base, request.adapters, request.adapter_folder));
  if (model.config().quantization)
    return error(request.adapters.empty() ? Code::kUnsupported : Code::kInvalidArgument,
                 "{} {} is kept in {} bits: export from the model that it was made of",
                 request.adapters.empty() ? "A quantized model is not exported."
                                          : "Cannot merge adapters to a quantized model.",
                 request.base, model.config().quantization.bits());
  TROUPE_RETURN_IF_ERROR(check_out(files, request));
  const ParameterLayout layout(model.config());
  ExportedModel exported{.written = {},
                         .dtype = type_to_write(request, model, layout),
                         .unties_head = model.unties_head(),
                         .logit_difference = {},
                         .no_probe = {},
                         .notes = model.notes()};

  WrittenModel written{.companions = TROUPE_TRY(read_companions(files, request.base)),
                       .tensors = {},
                       .shard_bytes_max = request.shard_bytes_max,
                       .append = {}};
  // The exported model has no adapter beside it.
  written.companions.erase(kAdapterConfigFile);
  written.companions.erase(kBaseRecordFile);
  // With the tokenizer that the rows are for.
  const std::string& grown_by = model.grown_by();
  if (!grown_by.empty()) {
    for (auto& [name, content] : TROUPE_TRY(read_companions(files, grown_by)))
      if (!name.starts_with("adapter_")) written.companions[name] = std::move(content);
  }
  if (request.template_name) {
    TROUPE_RETURN_IF_ERROR(apply_template(files, request,
                                          grown_by.empty() ? request.base : grown_by,
                                          written.companions, exported.notes));
  } else if (grown_by.empty()) {
    note_other_template(files, request, exported.notes);
  }
  written.companions["config.json"] =
      config_text(model.config(), exported.dtype, model.unties_head());
  for (const ParameterInfo& info : layout.parameters())
    written.tensors.push_back({info.name, exported.dtype, info.shape, {}});
  stable_sort_by(written.tensors, [](const auto& a, const auto& b) { return a.name < b.name; });
  written.append = [&](const StoredTensor& tensor, SafetensorsWriter& writer) {
    return append_tensor(model, *layout.find(tensor.name), exported.dtype, writer);
  };
  if (request.say)
    written.on_file = [&](const std::string& file, std::uint64_t size_bytes) {
      if (size_bytes >= kLongFileBytes)
        request.say(fmt::format("writing {}, {}", file, format_bytes(size_bytes)));
    };
  exported.written = TROUPE_TRY(write_model(files, request.out, written));
  TROUPE_RETURN_IF_ERROR(copy_value_head(files, request));
  if (request.adapters.empty()) return exported;

  const auto beside = model.beside();
  if (!beside.ok()) {
    exported.no_probe = beside.status().message();
    return exported;
  }
  const LogitDifference found = TROUPE_TRY(logit_difference(files, request, model, *beside));
  exported.logit_difference = found.largest_delta;
  const bool exact = exported.dtype == DType::kF32 && all_fp32(model, layout);
  const double limit = logit_difference_max(exact, found.largest_logit);
  if (!(found.largest_delta <= limit)) {
    remove_weights(files, request.out, exported.written);
    return error(Code::kDataLoss,
                 "the merged model differs from {} with its adapters by {:.3g} in a logit of the "
                 "probe text, more than {:.3g} (the largest logit is {:.3g}): its weights were "
                 "removed from {}",
                 request.base, found.largest_delta, limit, found.largest_logit, request.out);
  }
  return exported;
}

}  // namespace troupe::train
