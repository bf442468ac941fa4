// Files and memory that others may have damaged: packages of jobs; of a training its checkpoints,
// the run's bundle, progress records.

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>

#include "runtime/base/check.h"
#include "scheduler/packages/package_file.h"
#include "scheduler/packages/unpack.h"
#include "tests/fuzz/fuzz_input.h"
#include "tests/support/faulty_file_system.h"
#include "tests/support/test_data.h"
#include "tests/train/config/memory_files.h"
#include "train/checkpoint/checkpoint_layout.h"
#include "train/checkpoint/manifest.h"
#include "train/checkpoint/safetensors.h"
#include "train/checkpoint/save_plan.h"
#include "train/config/load.h"
#include "train/progress/progress_recorder.h"
#include "train/trainer/run_bundle.h"

namespace troupe::tests {
namespace {

using namespace train;

// Reads every byte of a span, so that one outside of its memory is noticed.
std::uint64_t touch(std::span<const std::byte> bytes) { return xxh3_64(bytes); }

// --- packages ------------------------------------------------------------------------------------

// Whatever it is, nothing but the one folder is made; of what is refused nothing stays.
void run_package(std::span<const std::byte> input) {
  namespace fs = std::filesystem;
  static const TemporaryDirectory place;
  const std::string made = place.file("made");
  const Status unpacked = scheduler::unpack_package(input, made);
  const auto count = std::distance(fs::directory_iterator(place.path()), fs::directory_iterator());
  TROUPE_CHECK(count == (unpacked.ok() ? 1 : 0), "{}", unpacked.to_string());
  if (unpacked.ok()) {
    TROUPE_CHECK(scheduler::check_unpacked(input, made).ok());
    for (const auto& entry : fs::recursive_directory_iterator(made)) {
      if (!entry.is_symlink()) continue;
      std::error_code ec;  // one that leads in a circle leads nowhere
      const std::string target = fs::weakly_canonical(entry.path(), ec).string();
      TROUPE_CHECK(ec || target.starts_with(fs::canonical(made).string()), "{}", target);
    }
  }
  TROUPE_CHECK(scheduler::remove_unpacked(made).ok() && fs::is_empty(place.path()));
}

std::vector<FuzzBytes> package_seeds() {
  using Kind = wire::PackageEntryKind;
  const wire::PackageManifest manifest{{{"lib", Kind::kDirectory, false, 0, {}},
                                        {"lib/x.so", Kind::kSymlink, false, 0, "../work/x"},
                                        {"work", Kind::kDirectory, false, 0, {}},
                                        {"work/up", Kind::kSymlink, false, 0, ".."},
                                        {"work/x", Kind::kFile, true, 5, {}}}};
  const wire::Bytes encoded = wire::encode(manifest);
  std::string text(scheduler::kPackageMagic);
  for (int i = 0; i < 8; ++i) text += static_cast<char>(encoded.size() >> (8 * i));
  text.append(reinterpret_cast<const char*>(encoded.data()), encoded.size());
  return {fuzz_bytes(text + "hello")};
}

// --- safetensors ---------------------------------------------------------------------------------

class BytesFile final : public ReadableFile {
 public:
  explicit BytesFile(std::span<const std::byte> bytes) : bytes_(bytes) {}
  std::uint64_t size() const override { return bytes_.size(); }
  Status read_at(std::uint64_t offset, std::span<std::byte> out) override {
    if (offset > bytes_.size() || out.size() > bytes_.size() - offset) {
      return Status(Code::kDataLoss, "the file ends");
    }
    std::copy_n(bytes_.begin() + static_cast<std::ptrdiff_t>(offset), out.size(), out.begin());
    return {};
  }

 private:
  std::span<const std::byte> bytes_;
};

// Both ways of reading agree, and every tensor lies within the file.
void run_safetensors(std::span<const std::byte> input) {
  const auto whole = SafetensorsFile::parse(input, "f");
  BytesFile file(input);
  const auto header = SafetensorsHeader::read(file, "f");
  TROUPE_CHECK(whole.ok() == header.ok(), "{} / {}", whole.status().to_string(),
               header.status().to_string());
  if (!whole.ok()) return;
  TROUPE_CHECK(whole->tensors().size() == header->tensors.size());
  for (std::size_t i = 0; i < header->tensors.size(); ++i) {
    const StoredTensor& tensor = whole->tensors()[i];
    const SafetensorsEntry& entry = header->tensors[i];
    TROUPE_CHECK(entry.name == tensor.name && entry.begin <= entry.end &&
                 entry.end <= input.size() && tensor.data.size() == entry.end - entry.begin);
    (void)touch(tensor.data);
    TROUPE_CHECK(whole->find(tensor.name) == &tensor);
  }
}

std::vector<FuzzBytes> safetensors_seeds() {
  std::vector<FuzzBytes> seeds;
  const FuzzBytes data(64, std::byte{7});
  const auto add = [&](const std::vector<StoredTensor>& tensors, const Metadata& metadata) {
    FaultyFileSystem files;
    TROUPE_CHECK(write_safetensors(files, "f", tensors, metadata).ok());
    seeds.push_back(fuzz_bytes(files.read("f", 1u << 20).value()));
  };
  add({}, {});
  add({{"w", DType::kF32, {2, 3}, std::span(data).first(24)},
       {"b", DType::kBF16, {4}, std::span(data).first(8)},
       {"s", DType::kF32, {}, std::span(data).first(4)}},
      {{"format", "pt"}});
  return seeds;
}

// --- manifest and pieces -------------------------------------------------------------------------

void run_manifest(std::span<const std::byte> input) {
  const auto manifest = parse_manifest(fuzz_text(input), "m");
  if (!manifest.ok()) {
    TROUPE_CHECK(manifest.status().code() == Code::kDataLoss ||
                 manifest.status().code() == Code::kUnsupported);
    return;
  }
  TROUPE_CHECK(manifest_text(*manifest) == fuzz_text(input));
}

std::vector<FuzzBytes> manifest_seeds() {
  Manifest manifest;
  manifest.step = 12;
  manifest.run = "run-1";
  ManifestFile whole;
  whole.name = "config.json";
  whole.size_bytes = 5;
  whole.xxh3 = 0x1234;
  ManifestFile pieces;
  pieces.name = "optimizer.safetensors";
  pieces.size_bytes = 100;
  pieces.parts = {{0, 60, 1}, {60, 40, 2}};
  pieces.pieces = {{"exp_avg.w", 0}};
  std::vector<FuzzBytes> seeds{fuzz_bytes(manifest_text(manifest))};
  manifest.files = {whole, pieces};
  manifest.tensors = {{"exp_avg.w", {"exp_avg.w", DType::kF32, {2, 3}, 6}}};
  manifest.format = kFormatSharded;
  seeds.push_back(fuzz_bytes(manifest_text(manifest)));
  return seeds;
}

void run_pieces(std::span<const std::byte> input) {
  const auto pieces = decode_pieces(fuzz_text(input));
  if (!pieces.ok()) {
    TROUPE_CHECK(pieces.status().code() == Code::kProtocol, "{}", pieces.status().to_string());
    return;
  }
  const auto again = decode_pieces(encode_pieces(*pieces));
  TROUPE_CHECK(again.ok() && again->size() == pieces->size());
}

std::vector<FuzzBytes> piece_seeds() {
  const RankPieces pieces{{false, "w", DType::kF32, {2, 3}, 0, 6},
                          {true, "exp_avg.w", DType::kF32, {2, 3}, 3, 6},
                          {false, "s", DType::kBF16, {}, 0, 1}};
  return {fuzz_bytes(encode_pieces({})), fuzz_bytes(encode_pieces(pieces))};
}

// --- the run's bundle ----------------------------------------------------------------------------

RunBundle seed_bundle(TokenDataset::Kind kind, bool eval) {
  auto files = train::tests::good_files();
  RunBundle bundle;
  bundle.config =
      train::load_train_config_text(train::tests::kGoodYaml, "x.yaml", {}, MapEnvironment(), files)
          .value()
          .config;
  bundle.model = ModelConfig::parse(R"({"model_type": "llama", "vocab_size": 100, "hidden_size": 32,
        "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 4})",
                                    "config.json")
                     .value();
  bundle.companions = {{"config.json", "{}"}};
  bundle.dataset = TokenDataset(kind, 0);
  const std::vector<TokenId> ids{5, 6, 7, 8};
  const std::vector<std::int32_t> labels{kIgnoredLabel, 6, 7, 8};
  const std::vector<std::int32_t> parts{1, 2};
  if (kind == TokenDataset::Kind::kPretrain) {
    bundle.dataset.append(ids);
  } else {
    bundle.dataset.append(ids, labels, parts);
  }
  if (eval) bundle.eval = bundle.dataset;
  return bundle;
}

constexpr std::size_t kBundleGuardBytes = 16;  // magic and hash

// The first byte says whether the hash is made right, so that what lies behind it is reached.
void run_bundle(std::span<const std::byte> input) {
  FuzzInput in(input);
  const bool guarded = (in.u8() & 1) != 0;
  FuzzBytes bytes(in.rest().begin(), in.rest().end());
  if (guarded && bytes.size() >= kBundleGuardBytes) {
    const std::uint64_t hash = xxh3_64(std::span(bytes).subspan(kBundleGuardBytes));
    std::memcpy(bytes.data() + sizeof hash, &hash, sizeof hash);
  }
  const auto bundle = decode_bundle(bytes);
  if (!bundle.ok()) return;
  // What a trainer does with it.
  for (const TokenDataset* dataset : {&bundle->dataset, bundle->eval ? &*bundle->eval : nullptr}) {
    if (dataset == nullptr) continue;
    const auto count = std::min<std::int64_t>(dataset->size(), 8);
    for (std::uint32_t sample = 0; sample < static_cast<std::uint32_t>(count); ++sample) {
      const std::uint32_t samples[] = {sample};
      const TokenBatch batch = collate(*dataset, samples);
      (void)collate_ragged(*dataset, samples);
      TROUPE_CHECK(count_labels(batch) == label_count(*dataset, samples));
    }
    (void)longest_collated_length(*dataset);
  }
  const auto again = decode_bundle(encode_bundle(*bundle));
  TROUPE_CHECK(again.ok(), "{}", again.status().to_string());
}

std::vector<FuzzBytes> bundle_seeds() {
  std::vector<FuzzBytes> seeds;
  for (const auto kind : {TokenDataset::Kind::kPretrain, TokenDataset::Kind::kSupervised,
                          TokenDataset::Kind::kPacked, TokenDataset::Kind::kNeatPacked}) {
    const auto bytes = encode_bundle(seed_bundle(kind, kind == TokenDataset::Kind::kPacked));
    for (const std::uint8_t guarded : {0, 1}) {
      seeds.push_back(FuzzSeed().u8(guarded).rest(bytes).take());
    }
  }
  return seeds;
}

// --- progress records ----------------------------------------------------------------------------

void run_progress(std::span<const std::byte> input) {
  const auto snapshot = read_progress(input);
  if (!snapshot) return;
  TROUPE_CHECK(snapshot->entries.size() <= kProgressRing);
  TROUPE_CHECK(!describe_progress(*snapshot).empty());
  (void)describe_collective(*snapshot);
}

std::vector<FuzzBytes> progress_seeds() {
  alignas(ProgressRecord) std::array<std::byte, sizeof(ProgressRecord)> memory{};
  ProgressRecorder recorder(progress_record_in(memory));
  std::vector<FuzzBytes> seeds;
  const auto keep = [&] { seeds.emplace_back(memory.begin(), memory.end()); };
  recorder.begin_generation(3);
  keep();
  recorder.stage(41, Stage::kForward);
  recorder.operation("gemm");
  recorder.collective("all_reduce", 1207, true, "shard");
  keep();
  recorder.collective("all_reduce", 1207, false, "shard");
  recorder.file("sync", true);
  recorder.moved(1u << 20);
  recorder.step_seconds(40, {});
  for (std::uint64_t i = 0; i < 100; ++i) recorder.chunk(i, "done");
  keep();
  return seeds;
}

}  // namespace

constinit const FuzzTarget kPackageTarget{"package", "what a job is shipped with", 2048,
                                          &run_package, &package_seeds};
constinit const FuzzTarget kSafetensorsTarget{"safetensors", "a file of tensors", 4096,
                                              &run_safetensors, &safetensors_seeds};
constinit const FuzzTarget kManifestTarget{"manifest", "the marker of a complete checkpoint", 4096,
                                           &run_manifest, &manifest_seeds};
constinit const FuzzTarget kPiecesTarget{"pieces", "what a rank says it holds of tensors", 4096,
                                         &run_pieces, &piece_seeds};
constinit const FuzzTarget kBundleTarget{"bundle", "what a driver sends to its trainers", 16384,
                                         &run_bundle, &bundle_seeds};
constinit const FuzzTarget kProgressTarget{"progress", "a rank's progress record",
                                           sizeof(ProgressRecord) + 64, &run_progress,
                                           &progress_seeds};

}  // namespace troupe::tests
