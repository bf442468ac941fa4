#include "train/trainer/run_bundle.h"

#include <cstring>

#include "runtime/base/hash.h"
#include "runtime/base/json.h"
#include "train/data/sample_stream.h"
#include "train/data/token_cache.h"

namespace troupe::train {
namespace {

constexpr std::uint64_t kMagic = 0x33444e4250525454;  // "TTRPBND3"

class Writer {
 public:
  template <typename T>
  void array(std::span<const T> values) {
    number(values.size());
    raw(values.data(), values.size_bytes());
  }
  void number(std::uint64_t value) { raw(&value, sizeof value); }
  std::vector<std::byte> bytes;

 private:
  void raw(const void* data, std::size_t size) {
    const auto* first = static_cast<const std::byte*>(data);
    bytes.insert(bytes.end(), first, first + size);
  }
};

class Reader {
 public:
  explicit Reader(std::span<const std::byte> bytes) : left_(bytes) {}
  Result<std::uint64_t> number() {
    std::uint64_t value = 0;
    TROUPE_RETURN_IF_ERROR(raw(&value, sizeof value));
    return value;
  }
  template <typename T>
  Result<std::vector<T>> array() {
    const std::uint64_t count = TROUPE_TRY(number());
    if (count > left_.size() / sizeof(T)) return short_error();
    std::vector<T> values(count);
    TROUPE_RETURN_IF_ERROR(raw(values.data(), count * sizeof(T)));
    return values;
  }
  std::span<const std::byte> left() const { return left_; }

 private:
  static Status short_error() { return error(Code::kDataLoss, "the run's bundle is cut off"); }
  Status raw(void* target, std::size_t size) {
    if (size > left_.size()) return short_error();
    if (size > 0) std::memcpy(target, left_.data(), size);
    left_ = left_.subspan(size);
    return {};
  }
  std::span<const std::byte> left_;
};

// What stands for samples that stay in a token cache.
TokenDataset none_of(const TokenDataset& dataset) {
  return TokenDataset(dataset.kind(), dataset.pad_id());
}

json::Value cached_sets(const RunBundle& bundle) {
  if (bundle.token_cache.empty()) return nullptr;
  json::Object sets{{"folder", bundle.token_cache},
                    {"train", hash_text(bundle.dataset.known_hash().value_or(0))}};
  if (bundle.eval) sets["eval"] = hash_text(bundle.eval->known_hash().value_or(0));
  return sets;
}

json::Object to_json(const std::map<std::string, std::string>& texts) {
  json::Object object;
  for (const auto& [name, text] : texts) object[name] = text;
  return object;
}

Result<std::map<std::string, std::string>> texts_in(const json::Value& head, const char* key) {
  std::map<std::string, std::string> texts;
  const json::Value* found = json::find(head, key);
  if (!found || !found->is_object())
    return error(Code::kDataLoss, "the run's bundle lacks a part ({})", key);
  for (const auto& member : found->get_object()) {
    if (!member.value().is_string())
      return error(Code::kDataLoss, "the run's bundle has a file without a text");
    texts[std::string(member.key())] = std::string(member.value().get_string());
  }
  return texts;
}

void write_dataset(Writer& out, const TokenDataset& dataset) {
  std::vector<std::uint64_t> lengths;
  std::vector<std::uint64_t> part_counts;
  std::vector<TokenId> ids;
  std::vector<std::int32_t> labels;
  std::vector<std::int32_t> parts;
  for (std::int64_t i = 0; i < dataset.size(); ++i) {
    const auto sample = dataset.ids(i);
    lengths.push_back(sample.size());
    ids.insert(ids.end(), sample.begin(), sample.end());
    const auto sample_labels = dataset.labels(i);
    labels.insert(labels.end(), sample_labels.begin(), sample_labels.end());
    const auto sample_parts = dataset.part_lengths(i);
    part_counts.push_back(sample_parts.size());
    parts.insert(parts.end(), sample_parts.begin(), sample_parts.end());
  }
  out.number(static_cast<std::uint64_t>(dataset.kind()));
  out.number(static_cast<std::uint64_t>(static_cast<std::int64_t>(dataset.pad_id())));
  out.array(std::span<const std::uint64_t>(lengths));
  out.array(std::span<const std::uint64_t>(part_counts));
  out.array(std::span<const TokenId>(ids));
  out.array(std::span<const std::int32_t>(labels));
  out.array(std::span<const std::int32_t>(parts));
}

// Parts lie within their sample, one behind the other.
bool parts_fit(std::span<const std::int32_t> parts, std::size_t sample_length) {
  std::size_t used = 0;
  for (const std::int32_t part : parts) {
    if (part < 0 || static_cast<std::size_t>(part) > sample_length - used) return false;
    used += static_cast<std::size_t>(part);
  }
  return true;
}

Result<TokenDataset> read_dataset(Reader& in) {
  const std::uint64_t kind_number = TROUPE_TRY(in.number());
  if (kind_number > static_cast<std::uint64_t>(TokenDataset::Kind::kFeedback)) {
    return error(Code::kDataLoss, "the run's bundle has a data set of an unknown kind");
  }
  const auto kind = static_cast<TokenDataset::Kind>(kind_number);
  const auto pad = static_cast<TokenId>(TROUPE_TRY(in.number()));
  const auto lengths = TROUPE_TRY(in.array<std::uint64_t>());
  const auto part_counts = TROUPE_TRY(in.array<std::uint64_t>());
  const auto ids = TROUPE_TRY(in.array<TokenId>());
  const auto labels = TROUPE_TRY(in.array<std::int32_t>());
  const auto parts = TROUPE_TRY(in.array<std::int32_t>());
  TokenDataset dataset(kind, pad);
  std::size_t at = 0;
  std::size_t part_at = 0;
  const bool labelled = kind != TokenDataset::Kind::kPretrain;
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    const std::size_t n = lengths[i];
    const std::size_t p = i < part_counts.size() ? part_counts[i] : 0;
    if (n > ids.size() - at || (labelled && n > labels.size() - at) || p > parts.size() - part_at) {
      return error(Code::kDataLoss, "the run's bundle does not fit together");
    }
    const auto sample = std::span(ids).subspan(at, n);
    const auto sample_parts = std::span(parts).subspan(part_at, p);
    if (!parts_fit(sample_parts, n)) {
      return error(Code::kDataLoss, "the run's bundle has parts beyond their sample");
    }
    if (labelled) {
      dataset.append(sample, std::span(labels).subspan(at, n), sample_parts);
    } else {
      dataset.append(sample);
    }
    at += n;
    part_at += p;
  }
  return dataset;
}

void write_reference(Writer& out, const TokenDataset::Reference& reference) {
  out.array(reference ? std::span<const float>(*reference) : std::span<const float>());
}

Result<TokenDataset::Reference> read_reference(Reader& in) {
  auto values = TROUPE_TRY(in.array<float>());
  if (values.empty()) return TokenDataset::Reference();
  return std::make_shared<const std::vector<float>>(std::move(values));
}

Status attach_references(RunBundle& bundle) {
  const auto attach = [](TokenDataset& dataset, const TokenDataset::Reference& reference) {
    if (reference && std::ssize(*reference) != dataset.token_count())
      return error(Code::kDataLoss, "what the reference says is of other samples");
    dataset.set_reference(reference);
    return Status();
  };
  TROUPE_RETURN_IF_ERROR(attach(bundle.dataset, bundle.reference));
  return bundle.eval ? attach(*bundle.eval, bundle.eval_reference) : Status();
}

}  // namespace

bool makes_samples(const RunBundle& bundle) {
  return bundle.parts.data_source.has_value() || bundle.config.data.streaming;
}

std::int64_t sample_count(const RunBundle& bundle) {
  return makes_samples(bundle) ? bundle.source.samples : bundle.dataset.size();
}

std::int64_t length_max(const RunBundle& bundle) {
  // As batches of a data set of such samples are padded.
  constexpr std::int64_t kMultiple = 8;
  if (!makes_samples(bundle)) {
    const std::int64_t longest = longest_collated_length(bundle.dataset);
    // Bins hold so many tokens for each of per_device_train_batch_size rows.
    if (!bundle.config.data.sample_packing.on) return longest;
    return std::max(longest,
                    (bundle.config.data.cutoff_len + kMultiple - 1) / kMultiple * kMultiple);
  }
  return (bundle.source.length_max + kMultiple - 1) / kMultiple * kMultiple;
}

bool lengths_differ(const RunBundle& bundle) {
  return makes_samples(bundle) || !equal_lengths(bundle.dataset);
}

std::vector<std::byte> encode_bundle(const RunBundle& bundle) {
  const json::Object head{{"config", to_json(bundle.config)},
                          {"model", bundle.model.to_json()},
                          {"trainables", to_json(bundle.trainables)},
                          {"companions", to_json(bundle.companions)},
                          {"adapter", bundle.adapter},
                          {"pissa", bundle.pissa ? bundle.pissa->init_lora_weights() : nullptr},
                          {"grown", bundle.grown ? bundle.grown->to_json() : nullptr},
                          {"merged_adapters", json::Array(bundle.merged_adapters.begin(),
                                                          bundle.merged_adapters.end())},
                          {"sample_stream", bundle.sample_stream},
                          {"stream_tokenizer", to_json(bundle.stream_tokenizer)},
                          {"token_cache", cached_sets(bundle)},
                          {"eval_parts", to_json(bundle.eval_parts)},
                          {"parts", to_json(bundle.parts)},
                          {"source_samples", bundle.source.samples},
                          {"source_length_max", bundle.source.length_max}};
  const std::string text = json::write(head);
  Writer body;
  body.array(std::span(text.data(), text.size()));
  const bool cached = !bundle.token_cache.empty();
  write_dataset(body, cached ? none_of(bundle.dataset) : bundle.dataset);
  body.number(bundle.eval ? 1 : 0);
  if (bundle.eval) write_dataset(body, cached ? none_of(*bundle.eval) : *bundle.eval);
  write_reference(body, bundle.reference);
  write_reference(body, bundle.eval_reference);
  Writer out;
  out.number(kMagic);
  out.number(xxh3_64(body.bytes));
  out.bytes.insert(out.bytes.end(), body.bytes.begin(), body.bytes.end());
  return std::move(out.bytes);
}

Result<RunBundle> decode_bundle(std::span<const std::byte> bytes) {
  Reader in(bytes);
  const std::uint64_t magic = TROUPE_TRY(in.number());
  const std::uint64_t hash = TROUPE_TRY(in.number());
  if (magic != kMagic || hash != xxh3_64(in.left())) {
    return error(Code::kDataLoss, "the run's bundle arrived damaged");
  }
  const auto text = TROUPE_TRY(in.array<char>());
  const auto head = TROUPE_TRY(json::parse({text.data(), text.size()}, "the run's bundle",
                                           {.bytes_max = limits::kJsonFileBytesMax}));
  const json::Value* config = json::find(head, "config");
  const json::Value* model = json::find(head, "model");
  const json::Value* trainables = json::find(head, "trainables");
  if (!config || !model || !trainables) {
    return error(Code::kDataLoss, "the run's bundle lacks a part");
  }
  RunBundle bundle;
  bundle.config = TROUPE_TRY(train_config_from_json(*config));
  bundle.model = TROUPE_TRY(ModelConfig::from_json(*model, "the run's bundle"));
  bundle.trainables = TROUPE_TRY(trainables_from_json(*trainables, "the run's bundle"));
  bundle.companions = TROUPE_TRY(texts_in(head, "companions"));
  bundle.stream_tokenizer = TROUPE_TRY(texts_in(head, "stream_tokenizer"));
  bundle.adapter = json::find_string(head, "adapter").value_or("");
  if (const json::Value* pissa = json::find(head, "pissa")) bundle.pissa = PissaStart::of(*pissa);
  bundle.grown = TROUPE_TRY(GrownVocabulary::from_json(json::find(head, "grown")));
  if (const json::Value* merged = json::find(head, "merged_adapters"); merged && merged->is_array())
    for (const json::Value& folder : merged->get_array())
      if (folder.is_string()) bundle.merged_adapters.emplace_back(folder.get_string());
  bundle.sample_stream = json::find_string(head, "sample_stream").value_or("");
  if (const json::Value* parts = json::find(head, "parts"))
    bundle.parts = TROUPE_TRY(part_choices_from_json(*parts));
  if (const json::Value* parts = json::find(head, "eval_parts"))
    bundle.eval_parts = eval_parts_from_json(*parts).value_or(std::vector<EvalPart>());
  bundle.source = {.samples = json::find_integer(head, "source_samples").value_or(0),
                   .length_max = json::find_integer(head, "source_length_max").value_or(0)};
  bundle.dataset = TROUPE_TRY(read_dataset(in));
  if (TROUPE_TRY(in.number()) != 0) bundle.eval = TROUPE_TRY(read_dataset(in));
  bundle.reference = TROUPE_TRY(read_reference(in));
  bundle.eval_reference = TROUPE_TRY(read_reference(in));
  if (!in.left().empty()) return error(Code::kDataLoss, "bytes follow the run's bundle");
  if (const json::Value* cached = json::find(head, "token_cache"); cached && cached->is_object()) {
    bundle.token_cache = json::find_string(*cached, "folder").value_or("");
    bundle.dataset.set_hash(hash_in(*cached, "train").value_or(0));
    if (bundle.eval) bundle.eval->set_hash(hash_in(*cached, "eval").value_or(0));
  }
  if (bundle.token_cache.empty()) TROUPE_RETURN_IF_ERROR(attach_references(bundle));
  return bundle;
}

Status map_samples(FileSystem& files, RunBundle& bundle) {
  if (bundle.token_cache.empty() || bundle.dataset.is_mapped()) return {};
  const auto cache = TROUPE_TRY(read_token_cache(files, bundle.token_cache));
  const auto map = [&](const char* set, TokenDataset& into) -> Status {
    auto samples = TROUPE_TRY(map_cached_set(files, bundle.token_cache, cache, set));
    if (samples.known_hash() != into.known_hash() || samples.kind() != into.kind())
      return error(Code::kFailedPrecondition,
                   "{} holds other samples than the run began with: another one has made them",
                   bundle.token_cache);
    into = std::move(samples);
    return {};
  };
  TROUPE_RETURN_IF_ERROR(map("train", bundle.dataset));
  if (bundle.eval) TROUPE_RETURN_IF_ERROR(map("eval", *bundle.eval));
  return attach_references(bundle);
}

}  // namespace troupe::train
