#include "train/trainer/reference_log_probs.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <utility>

#include "runtime/base/file_stamp.h"
#include "runtime/base/hash.h"
#include "runtime/base/json.h"
#include "runtime/base/text.h"
#include "train/cpu/arena.h"
#include "train/cpu/cpu_operators.h"
#include "train/data/sample_stream.h"
#include "train/model/model_layout.h"
#include "train/objectives/objective.h"
#include "train/tensor/convert.h"
#include "train/trainer/adapted_model.h"
#include "train/trainer/batch_view.h"
#include "train/trainer/sharding_setup.h"

namespace troupe::train {
namespace {

constexpr std::uint64_t kReferenceMagic = 0x31464552'50525454;  // "TTRPREF1"
constexpr std::size_t kHeaderBytes = 4 * sizeof(std::uint64_t);
// Of a pass: enough for products that do not wait for memory.
constexpr std::int64_t kPassTokens = 2048;

// The folder of the reference, and the adapters over it.
struct ReferenceSource {
  std::string folder;
  std::vector<std::string> adapters;
};

ReferenceSource source_of(const RunBundle& bundle) {
  const MethodSection& method = bundle.config.method;
  if (method.ref_model) return {*method.ref_model, method.ref_model_adapters};
  return {bundle.config.model.model_name_or_path, bundle.merged_adapters};
}

// Which files a folder's numbers come from, by their stamps: no weights are read to compare them.
Result<json::Value> stamps_of(FileSystem& files, const std::string& folder) {
  json::Array out;
  auto entries = TROUPE_TRY(files.list(folder));
  std::ranges::sort(entries, {}, &DirectoryEntry::name);
  for (const DirectoryEntry& entry : entries) {
    const std::string_view name = entry.name;
    if (!name.ends_with(".safetensors") && !name.ends_with(".bin") && !name.ends_with(".json"))
      continue;
    const auto stamp = file_stamp(join_path(folder, entry.name));
    if (!stamp.ok()) continue;
    out.push_back(json::Object{{"name", entry.name},
                               {"size", stamp->size_bytes},
                               {"modified_unix_ns", stamp->modified_unix_ns}});
  }
  return json::Value(std::move(out));
}

Result<std::uint64_t> key_of(FileSystem& files, const RunBundle& bundle,
                             const ReferenceSource& source) {
  json::Array folders;
  folders.push_back(TROUPE_TRY(stamps_of(files, source.folder)));
  for (const std::string& adapter : source.adapters)
    folders.push_back(TROUPE_TRY(stamps_of(files, adapter)));
  const json::Object key{
      {"folders", std::move(folders)},
      {"arithmetic", static_cast<std::int64_t>(arithmetic_of(bundle.config))},
      {"train", hash_text(samples_hash(bundle.dataset))},
      {"eval", bundle.eval ? json::Value(hash_text(samples_hash(*bundle.eval))) : json::Value()}};
  const std::string text = json::write(key);
  return xxh3_64(std::as_bytes(std::span(text)));
}

std::int64_t tokens_of(const std::optional<TokenDataset>& dataset) {
  return dataset ? dataset->token_count() : 0;
}

// Nothing where the file is missing, damaged or of something else: it is made again then.
bool take_kept(FileSystem& files, const std::string& path, std::uint64_t key, RunBundle& bundle) {
  const auto file = files.map(path);
  if (!file.ok()) return false;
  const std::span<const std::byte> bytes = (*file)->bytes();
  const auto train = static_cast<std::uint64_t>(bundle.dataset.token_count());
  const auto eval = static_cast<std::uint64_t>(tokens_of(bundle.eval));
  const std::size_t body = kHeaderBytes + (train + eval) * sizeof(float);
  if (bytes.size() != body + sizeof(std::uint64_t)) return false;
  std::uint64_t header[4], sum = 0;
  std::memcpy(header, bytes.data(), kHeaderBytes);
  std::memcpy(&sum, bytes.data() + body, sizeof sum);
  if (header[0] != kReferenceMagic || header[1] != key || header[2] != train || header[3] != eval ||
      sum != xxh3_64(bytes.first(body)))
    return false;
  const auto values = [&](std::size_t first, std::uint64_t count) {
    std::vector<float> out(count);
    if (count > 0)
      std::memcpy(out.data(), bytes.data() + kHeaderBytes + first * sizeof(float),
                  count * sizeof(float));
    return std::make_shared<const std::vector<float>>(std::move(out));
  };
  bundle.reference = values(0, train);
  if (bundle.eval) bundle.eval_reference = values(train, eval);
  return true;
}

Status keep(FileSystem& files, const std::string& path, std::uint64_t key,
            const RunBundle& bundle) {
  std::string bytes;
  const auto add = [&](const void* data, std::size_t size) {
    bytes.append(static_cast<const char*>(data), size);
  };
  const std::vector<float> none;
  const std::vector<float>& train = *bundle.reference;
  const std::vector<float>& eval = bundle.eval_reference ? *bundle.eval_reference : none;
  const std::uint64_t header[4] = {kReferenceMagic, key, train.size(), eval.size()};
  add(header, kHeaderBytes);
  add(train.data(), train.size() * sizeof(float));
  add(eval.data(), eval.size() * sizeof(float));
  const std::uint64_t sum = xxh3_64(std::as_bytes(std::span(bytes)));
  add(&sum, sizeof sum);
  return write_file_atomically(files, path, bytes);
}

// Products in fp16 of parameters in fp32, as a run in fp16 has them.
class Fp16Units final : public UnitAccess {
 public:
  explicit Fp16Units(UnitAccess& inner) : inner_(inner) {}
  Result<UnitParameters> acquire(int unit, Phase phase) override {
    UnitParameters parameters = TROUPE_TRY(inner_.acquire(unit, phase));
    parameters.fp16 = true;
    return parameters;
  }
  void release(int unit, Phase phase) override { inner_.release(unit, phase); }
  Result<UnitGradient> gradient(int unit) override { return inner_.gradient(unit); }
  Status gradient_done(int unit) override { return inner_.gradient_done(unit); }

 private:
  UnitAccess& inner_;
};

// A reference for forward passes: parameters, and nothing else that training has.
class ReferencePasses {
 public:
  static Result<std::unique_ptr<ReferencePasses>> open(FileSystem& files,
                                                       const ReferenceSource& source,
                                                       Arithmetic arithmetic, int threads) {
    const auto files_of = TROUPE_TRY(AdaptedModel::open(files, source.folder, source.adapters));
    std::unique_ptr<ReferencePasses> out(
        new ReferencePasses(files_of.config(), arithmetic, threads));
    TROUPE_RETURN_IF_ERROR(out->load(files_of));
    return out;
  }

  // Of each label of the data set. `done` hears of samples.
  Result<std::vector<float>> log_probabilities(const TokenDataset& dataset,
                                               const std::function<void(std::int64_t)>& done) {
    std::vector<float> out(static_cast<std::size_t>(dataset.token_count()));
    std::vector<std::uint32_t> samples;
    std::size_t at = 0;  // of the next sample in `out`
    for (std::int64_t next = 0; next < dataset.size();) {
      samples.clear();
      std::int64_t tokens = 0;
      do {
        samples.push_back(static_cast<std::uint32_t>(next));
        tokens += std::ssize(dataset.ids(next++));
      } while (next < dataset.size() && tokens + std::ssize(dataset.ids(next)) <= kPassTokens);
      if (dataset.is_mapped())
        TROUPE_RETURN_IF_ERROR(check_tokens(dataset, samples, model_->config().vocab_size));
      if (dataset.kind() == TokenDataset::Kind::kFeedback) {
        for (const Answers answers : {Answers::kOwn, Answers::kOfOthers}) {
          const auto values = TROUPE_TRY(of_labels(collate_answers(dataset, samples, answers)));
          std::size_t from = 0, to = at;
          for (const std::uint32_t sample : samples) {
            const auto parts = dataset.part_lengths(sample);
            const bool own = answers == Answers::kOwn;
            const auto length = static_cast<std::size_t>(parts[own ? 0 : 1]);
            std::copy_n(values.begin() + static_cast<std::ptrdiff_t>(from), length,
                        out.begin() + static_cast<std::ptrdiff_t>(
                                          to + (own ? 0 : static_cast<std::size_t>(parts[0]))));
            from += length;
            to += dataset.ids(sample).size();
          }
        }
      } else {
        // Samples stand one behind the other in a batch, as in the data set.
        const auto values = TROUPE_TRY(of_labels(collate_ragged(dataset, samples)));
        TROUPE_CHECK(std::ssize(values) == tokens);
        std::copy(values.begin(), values.end(), out.begin() + static_cast<std::ptrdiff_t>(at));
      }
      at += static_cast<std::size_t>(tokens);
      done(next);
    }
    return out;
  }

 private:
  ReferencePasses(const ModelConfig& config, Arithmetic arithmetic, int threads)
      : arena_(threads),
        operators_(make_cpu_operators(arena_)),
        model_(make_model(config, *operators_)),
        arithmetic_(arithmetic),
        compute_(arithmetic == Arithmetic::kBf16 ? DType::kBF16 : DType::kF32) {}

  Status load(const AdaptedModel& from) {
    const ParameterLayout& layout = model_->layout();
    const auto elements = static_cast<std::size_t>(layout.total_elements());
    const bool narrow = compute_ == DType::kBF16;
    if (narrow)
      bf16_.resize(elements);
    else
      fp32_.resize(elements);
    std::vector<float> values;
    for (const ParameterInfo& parameter : layout.parameters()) {
      const auto at = static_cast<std::size_t>(layout.flat_offset(parameter));
      const auto count = static_cast<std::size_t>(parameter.elements);
      values.assign(narrow ? count : 0, 0.0f);
      const auto into = narrow ? std::span(values) : std::span(fp32_).subspan(at, count);
      TROUPE_RETURN_IF_ERROR(
          from.read_merged(parameter, AdaptedModel::Rounding::kStoredType, into));
      if (narrow) bf16_from_float(values.data(), bf16_.data() + at, parameter.elements);
    }
    if (narrow)
      units_.emplace(layout, std::span<const std::uint16_t>(bf16_), std::span<float>());
    else
      units_.emplace(layout, std::span<const float>(fp32_), std::span<float>());
    return {};
  }

  // Of the labels of a batch; 0 where there is no target.
  Result<std::vector<float>> of_labels(const TokenBatch& tokens) {
    const MicroBatch batch = view_of(tokens);
    const ActivationOptions options{.rows_max = tokens.rows,
                                    .length_max = tokens.length,
                                    .training = false,
                                    .compute = compute_};
    Activations activations(model_->config(), options, *operators_);
    Fp16Units in_fp16(*units_);
    UnitAccess& units =
        arithmetic_ == Arithmetic::kFp16 ? static_cast<UnitAccess&>(in_fp16) : *units_;
    const auto found = TROUPE_TRY(target_log_probabilities(*model_, batch, units, activations));
    std::vector<float> out(static_cast<std::size_t>(batch.tokens()));
    auto next = found.begin();
    for (std::int64_t i = 0; i < batch.tokens(); ++i)
      if (batch.has_target(i)) out[static_cast<std::size_t>(i) + 1] = *next++;
    TROUPE_CHECK(next == found.end());
    return out;
  }

  Arena arena_;
  std::unique_ptr<Operators> operators_;
  std::unique_ptr<Model> model_;
  Arithmetic arithmetic_;
  DType compute_;
  std::vector<float> fp32_;
  std::vector<std::uint16_t> bf16_;
  std::optional<ResidentUnits> units_;
};

}  // namespace

std::int64_t reference_pass_bytes(const RunBundle& bundle) {
  if (!bundle.config.asks_reference_before()) return 0;
  const std::int64_t element =
      compute_dtype(bundle.config) == DType::kBF16 ? sizeof(std::uint16_t) : sizeof(float);
  return element * ModelLayout(bundle.model, Trainables{}).trained().total_elements();
}

Status add_reference_log_probs(FileSystem& files, RunBundle& bundle, int threads,
                               const std::function<void(const std::string&)>& say,
                               std::vector<std::string>& notes) {
  if (!bundle.config.asks_reference_before()) return {};
  if (bundle.grown && !bundle.config.method.ref_model)
    return error(Code::kUnsupported,
                 "the model gets rows for new tokens, which its files do not have: leave "
                 "troupe.precompute_ref_log_probs out")
        .with("key", "troupe.precompute_ref_log_probs");
  const ReferenceSource source = source_of(bundle);
  const std::string path = join_path(bundle.config.training.output_dir, kReferenceFile);
  const std::uint64_t key = TROUPE_TRY(key_of(files, bundle, source));
  if (take_kept(files, path, key, bundle)) {
    notes.push_back(fmt::format("what the reference says of the data was known: {}", path));
    return {};
  }
  const std::int64_t samples = bundle.dataset.size() + (bundle.eval ? bundle.eval->size() : 0);
  say(fmt::format("the reference ({}) is asked once about {}", source.folder,
                  count_of(samples, "sample")));
  const auto passes =
      TROUPE_TRY(ReferencePasses::open(files, source, arithmetic_of(bundle.config), threads));
  std::int64_t before = 0, told = 0;
  const auto done = [&](std::int64_t number) {
    // Of what takes long, every tenth.
    const std::int64_t tenth = 10 * (before + number) / std::max<std::int64_t>(1, samples);
    if (samples < 1000 || tenth == std::exchange(told, tenth)) return;
    say(fmt::format("the reference: {} of {}", before + number, count_of(samples, "sample")));
  };
  const auto ask = [&](const TokenDataset& dataset) -> Result<TokenDataset::Reference> {
    auto values = TROUPE_TRY(passes->log_probabilities(dataset, done));
    before += dataset.size();
    return std::make_shared<const std::vector<float>>(std::move(values));
  };
  bundle.reference = TROUPE_TRY(ask(bundle.dataset));
  if (bundle.eval) bundle.eval_reference = TROUPE_TRY(ask(*bundle.eval));
  const Status kept = keep(files, path, key, bundle);
  notes.push_back(
      kept.ok()
          ? fmt::format("what the reference says of the data is kept in {}", path)
          : fmt::format("warning: what the reference says of the data could not be kept, and the "
                        "next start asks again: {}",
                        kept.message()));
  return {};
}

}  // namespace troupe::train
