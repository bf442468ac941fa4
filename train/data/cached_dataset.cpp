#include "train/data/cached_dataset.h"

#include <malloc.h>

#include <algorithm>
#include <initializer_list>
#include <optional>
#include <stop_token>
#include <thread>
#include <utility>

#include "runtime/base/clock.h"
#include "runtime/base/file_lock.h"
#include "runtime/base/hash.h"
#include "runtime/base/random.h"
#include "runtime/base/signal_block.h"
#include "runtime/base/suggest.h"
#include "train/data/token_cache.h"

namespace troupe::train {
namespace {

// Raised where the same files and settings give other samples than a version before made of them.
constexpr std::int64_t kSampleVersion = 2;
constexpr auto kLockRetry = std::chrono::milliseconds(50);
// How often the data files are looked at while they are tokenised.
constexpr auto kFilesLook = std::chrono::seconds(1);

std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (const auto& word : words) text += (text.empty() ? "" : ",") + word;
  return text;
}

template <typename T>
json::Value if_given(const std::optional<T>& value) {
  return value ? json::Value(*value) : json::Value();
}

// All that decides the samples, but for the files. Every member of DataOptions is taken apart here,
// so that a new one is not forgotten.
json::Object all_settings_of(const DataOptions& options, const std::string& tokenizer,
                             const std::string& columns) {
  const auto& [stage, dataset, eval_dataset, dataset_dir, hub_files, template_name, cutoff_len,
               packing, neat_packing, train_on_prompt, mask_history, max_samples, val_size,
               held_out, mix_strategy, interleave_probs, preprocessing_batch_size, seed,
               default_system, enable_thinking, preserve_thinking, tool_format, answers_optional,
               rows, eval_each] = options;
  static_cast<void>(dataset_dir), static_cast<void>(hub_files);  // the files tell
  static_cast<void>(packing);
  json::Object settings{{"version", kSampleVersion},
                        {"stage", static_cast<std::int64_t>(stage)},
                        {"tokenizer", hash_text(xxh3_64(bytes_of(tokenizer)))},
                        {"dataset", joined(dataset)},
                        {"eval_dataset", joined(eval_dataset)},
                        {kColumnsSetting, hash_text(xxh3_64(bytes_of(columns)))},
                        {"template", if_given(template_name)},
                        {"cutoff_len", cutoff_len},
                        {"packing", packs(options)},
                        {"neat_packing", neat_packing},
                        {"train_on_prompt", train_on_prompt},
                        {"mask_history", mask_history},
                        {"max_samples", if_given(max_samples)},
                        {"val_size", val_size},
                        {"troupe.held_out", held_out},
                        {"mix_strategy", mix_strategy},
                        {"interleave_probs", joined(interleave_probs)},
                        {"preprocessing_batch_size", preprocessing_batch_size},
                        {"seed", seed},
                        {"default_system", if_given(default_system)},
                        {"enable_thinking", if_given(enable_thinking)},
                        {"preserve_thinking", preserve_thinking},
                        {"tool_format", if_given(tool_format)},
                        {"answers_optional", answers_optional}};
  if (eval_each && !eval_dataset.empty()) settings["eval_on_each_dataset"] = true;
  if (rows.datasets.empty()) return settings;
  settings["troupe.datasets"] = hash_text(xxh3_64(bytes_of(json::write(rows.datasets))));
  settings["troupe.eval_datasets"] = hash_text(xxh3_64(bytes_of(json::write(rows.eval_datasets))));
  settings["troupe.min_sample_len"] = rows.min_sample_len;
  settings["troupe.excess_length"] = rows.excess_length;
  settings["troupe.shuffle_merged_datasets"] = rows.shuffle;
  settings["troupe.train_on_inputs"] = rows.train_on_inputs;
  settings["troupe.sample_packing"] = rows.drop_unlabelled;
  settings["troupe.special_tokens"] = rows.special_tokens;
  settings["troupe.tokens"] = joined(rows.tokens);
  return settings;
}

bool names_data(const DataOptions& options) {
  return !options.dataset.empty() || !options.rows.datasets.empty();
}

// What the samples are to be made of. `found`: whether its files are there.
struct Wanted {
  json::Object settings;
  std::vector<std::string> paths;
  Status found;
};

Wanted wanted_of(FileSystem& files, const DataOptions& options, const std::string& tokenizer) {
  Wanted wanted;
  std::string columns;
  DataOptions evaluated = options;
  evaluated.dataset = options.eval_dataset;
  evaluated.rows.datasets = options.rows.eval_datasets;
  for (const DataOptions* one : std::initializer_list<const DataOptions*>{&options, &evaluated}) {
    auto more = columns_of(files, *one, one->dataset);
    auto paths = training_files(files, *one);
    for (const Status& status : {more.status(), paths.status()})
      if (!status.ok() && wanted.found.ok()) wanted.found = status;
    columns += std::move(more).value_or("") + "\n";
    for (auto& path : std::move(paths).value_or({})) wanted.paths.push_back(std::move(path));
  }
  wanted.settings = all_settings_of(options, tokenizer, columns);
  return wanted;
}

std::string_view name_in(std::string_view path) { return path.substr(path.rfind('/') + 1); }

// Whether the files are those that the cache was made of. Those whose stamp is another one are
// read.
Result<std::vector<std::string>> changed_files(FileSystem& files, const Wanted& wanted,
                                               TokenCache& cache, bool& stamps_changed) {
  std::vector<std::string> found;
  if (wanted.paths.size() != cache.files.size()) {
    found.push_back(fmt::format("there were {} data files and are {}", cache.files.size(),
                                wanted.paths.size()));
    return found;
  }
  for (std::size_t i = 0; i < wanted.paths.size(); ++i) {
    const StreamFile now = TROUPE_TRY(describe_file(files, wanted.paths[i], cache.files));
    if (now.xxh3 != cache.files[i].xxh3 || name_in(now.path) != name_in(cache.files[i].path)) {
      found.push_back(fmt::format("{} is not what it was", now.path));
      continue;
    }
    stamps_changed = stamps_changed || now != cache.files[i];
    cache.files[i] = now;
  }
  return found;
}

// Of the number of a DataOptions::Stage.
std::string_view stage_words(const json::Value* stage) {
  constexpr std::string_view kWords[] = {"pt", "sft", "rm or dpo", "kto"};
  const auto number = stage && stage->is_int64() ? stage->get_int64() : -1;
  return number >= 0 && number < std::ssize(kWords) ? kWords[number] : "not there";
}

// Of these settings only those that decide whether the samples can be used at all, where `few`.
std::vector<std::string> changed_settings(const json::Object& before, const json::Object& now,
                                          bool few) {
  std::vector<std::string> found;
  const auto* names = before.if_contains("dataset");
  const bool names_changed = names && now.contains("dataset") && *names != now.at("dataset");
  for (const auto& setting : now) {
    const std::string_view key = setting.key();
    if (few && key != "stage" && key != "tokenizer") continue;
    const json::Value* old = before.if_contains(key);
    // (Members of an object have no order.)
    if (old && (*old == setting.value() || json::write(*old) == json::write(setting.value())))
      continue;
    // Other data sets have other columns.
    if (key == kColumnsSetting && names_changed) continue;
    found.push_back(key == "stage" ? fmt::format("stage was {} and is {}", stage_words(old),
                                                 stage_words(&setting.value()))
                                   : setting_difference(key, old, setting.value()));
  }
  for (const auto& setting : before)
    if (!few && !now.contains(setting.key()))
      found.push_back(fmt::format("{} is not there any more", std::string_view(setting.key())));
  return found;
}

class CachedMaking {
 public:
  CachedMaking(FileSystem& files, const DataOptions& options, const Tokenizer& tokenizer,
               const CacheRequest& request)
      : files_(files), options_(options), tokenizer_(tokenizer), request_(request) {}

  Result<CachedDataset> run() {
    prepared_.emplace(TROUPE_TRY(prepare_module(options_, tokenizer_)));
    wanted_ = wanted_of(files_, options_, request_.tokenizer);
    const bool anew = request_.overwrite && names_data(options_);
    if (!anew) {
      if (auto found = TROUPE_TRY(open())) return std::move(*found);
    }
    if (!names_data(options_))
      return error(Code::kNotFound,
                   "tokenized_path {} holds no tokenised data, and no dataset is named to make "
                   "them of",
                   request_.folder);
    TROUPE_RETURN_IF_ERROR(wanted_.found);
    TROUPE_RETURN_IF_ERROR(check_cache_place(files_, request_.folder, request_.named));
    TROUPE_RETURN_IF_ERROR(files_.create_directories(parent_folder()));
    bool waited = false;
    const auto lock = TROUPE_TRY(take_lock(waited));
    if (waited) {
      if (auto found = TROUPE_TRY(open())) return std::move(*found);
    }
    if (!why_.empty()) request_.say(fmt::format("{}: tokenised anew", why_));
    TROUPE_RETURN_IF_ERROR(make(lock.has_value()));
    auto made = TROUPE_TRY(open());
    if (!made)
      return error(Code::kDataLoss, "{}: what was written is not what was made: {}",
                   request_.folder, why_);
    made->made = true;
    return std::move(*made);
  }

 private:
  std::string parent_folder() const {
    const auto slash = request_.folder.rfind('/');
    return slash == std::string::npos ? std::string(".")
                                      : request_.folder.substr(0, std::max<std::size_t>(slash, 1));
  }

  // What is in the folder, where it is what is wanted; else `why_` says what is wrong with it.
  Result<std::optional<CachedDataset>> open() {
    why_.clear();
    auto cache = read_token_cache(files_, request_.folder);
    if (cache.status().code() == Code::kNotFound) return std::optional<CachedDataset>();
    if (cache.status().code() == Code::kDataLoss && names_data(options_)) {
      why_ = cache.status().message();
      return std::optional<CachedDataset>();
    }
    if (!cache.ok()) return cache.status();
    // They cannot be compared where the files that say them are not there.
    if (const auto* columns = cache->settings.if_contains(kColumnsSetting);
        columns && !wanted_.found.ok())
      wanted_.settings[kColumnsSetting] = *columns;
    auto found = changed_settings(cache->settings, wanted_.settings, !names_data(options_));
    bool stamps_changed = false;
    if (found.empty() && names_data(options_) && wanted_.found.ok()) {
      found = TROUPE_TRY(changed_files(files_, wanted_, *cache, stamps_changed));
    } else if (names_data(options_) && !wanted_.found.ok()) {
      if (!request_.named) return wanted_.found;
      request_.say(fmt::format("tokenized_path {} is taken as it is: {}", request_.folder,
                               wanted_.found.message()));
    }
    if (!found.empty()) {
      why_ = fmt::format("{} holds samples of other settings or files: {}", request_.folder,
                         join_words(found, "; "));
      if (!request_.named) return std::optional<CachedDataset>();
      return error(Code::kFailedPrecondition,
                   "tokenized_path: {}. Set them back, name another folder, make it anew with "
                   "overwrite_cache: true{}",
                   why_, names_data(options_) ? ", or leave dataset out to take it as it is" : "")
          .with("key", "tokenized_path");
    }
    // The next start need not read them again. Not where others own the folder.
    if (stamps_changed)
      static_cast<void>(write_file_atomically(files_, join_path(request_.folder, kTokenCacheFile),
                                              cache->to_text()));
    CachedDataset out{.module = *prepared_,
                      .records = cache->records,
                      .files = cache->files,
                      .folder = request_.folder,
                      .as_it_is = !names_data(options_) || !wanted_.found.ok()};
    const auto map = [&](const char* set) -> Result<std::optional<TokenDataset>> {
      if (!cache->sets.contains(set)) return std::optional<TokenDataset>();
      return std::optional(TROUPE_TRY(map_cached_set(files_, request_.folder, *cache, set)));
    };
    const auto map_all = [&]() -> Status {
      out.module.train = TROUPE_TRY(map_cached_set(files_, request_.folder, *cache, "train"));
      out.module.eval = TROUPE_TRY(map("eval"));
      out.module.held_out = TROUPE_TRY(map("held_out"));
      return {};
    };
    if (const Status mapped = map_all(); !mapped.ok()) {
      if (mapped.code() != Code::kDataLoss || !names_data(options_)) return mapped;
      why_ = mapped.message();
      return std::optional<CachedDataset>();
    }
    out.module.eval_parts = cache->eval_parts;
    out.module.notes.insert(out.module.notes.end(), cache->notes.begin(), cache->notes.end());
    return std::optional(std::move(out));
  }

  // The result is empty where the file system has no locks: then everybody writes into a folder of
  // his own, and the last one's stays.
  Result<std::optional<FileLock>> take_lock(bool& waited) {
    const auto give_up = std::chrono::steady_clock::now() + request_.wait_max;
    for (;; std::this_thread::sleep_for(kLockRetry)) {
      auto lock = FileLock::take(request_.folder + ".lock", request_.holder);
      if (lock.ok()) return std::optional(std::move(*lock));
      if (lock.status().code() == Code::kUnsupported) return std::optional<FileLock>();
      if (lock.status().code() != Code::kAlreadyExists) return lock.status();
      if (std::chrono::steady_clock::now() > give_up)
        return error(Code::kDeadlineExceeded,
                     "{} is being made by {}, and was not finished in time", request_.folder,
                     lock.status().message());
      if (!std::exchange(waited, true))
        request_.say(fmt::format("waiting for {}, which makes {}", lock.status().message(),
                                 request_.folder));
    }
  }

  // Removes the folders that killed writers have left.
  Status remove_leftovers() {
    const std::string prefix = std::string(name_in(request_.folder)) + kBuilding;
    for (const auto& entry : TROUPE_TRY(files_.list(parent_folder())))
      if (entry.is_directory && entry.name.starts_with(prefix))
        TROUPE_RETURN_IF_ERROR(files_.remove_tree(join_path(parent_folder(), entry.name)));
    return {};
  }

  Status make(bool locked) {
    if (locked) TROUPE_RETURN_IF_ERROR(remove_leftovers());
    SystemRandom random;
    const std::string building =
        fmt::format("{}{}{:016x}", request_.folder, kBuilding, random.next_u64());
    auto guard = request_.remove_at_signal ? request_.remove_at_signal(building) : nullptr;
    auto writer = TROUPE_TRY(TokenCacheWriter::begin(files_, building));
    std::vector<FileStamp> before;
    for (const auto& path : wanted_.paths) before.push_back(file_stamp(path).value_or(FileStamp()));
    std::int64_t file_bytes = 0;
    for (const FileStamp& stamp : before) file_bytes += static_cast<std::int64_t>(stamp.size_bytes);
    // Rows and ids come and go by the MiB: given back to the kernel and taken anew, they are a
    // twentieth of the work. The limits are those to which glibc itself goes up.
    ::mallopt(M_MMAP_THRESHOLD, 32 << 20);
    ::mallopt(M_TRIM_THRESHOLD, 64 << 20);
    // The files' hashes are read beside: the disk would be waited for twice.
    std::vector<Result<StreamFile>> described;
    std::jthread describing;
    {
      const SignalBlock block;  // signals are other threads'
      describing = std::jthread([this, &described](const std::stop_token& stop) {
        for (const auto& path : wanted_.paths)
          described.push_back(describe_file(files_, path, {}, stop));
      });
    }
    const SampleProgress progress = [&](SamplesMade now) {
      now.file_bytes = file_bytes;
      if (request_.progress) request_.progress(now);
    };
    const auto unchanged = [&]() -> Status {
      for (std::size_t i = 0; i < before.size(); ++i) {
        if (file_stamp(wanted_.paths[i]).value_or(FileStamp()) == before[i]) continue;
        return error(Code::kFailedPrecondition,
                     "{} changed while it was read; start again when nobody writes it any more",
                     wanted_.paths[i]);
      }
      return {};
    };
    const SystemClock clock;
    TimePoint look_again = clock.now() + kFilesLook;
    const auto into = [&](const char* set) {
      return [&, set](const TokenDataset& samples) -> Status {
        // Said soon, not behind the last row; there may be thousands of files.
        if (const TimePoint now = clock.now(); now >= look_again) {
          TROUPE_RETURN_IF_ERROR(unchanged());
          look_again = now + kFilesLook;
        }
        return writer.append(set, samples);
      };
    };
    const DatasetModule made = TROUPE_TRY(
        make_samples(files_, options_, tokenizer_,
                     {.train = into("train"), .eval = into("eval"), .held_out = into("held_out")},
                     progress, parent_folder()));
    TokenCache about{.settings = wanted_.settings,
                     .files = {},
                     .records = made.train_report.records,
                     .notes = {made.notes.begin() + std::ssize(prepared_->notes), made.notes.end()},
                     .sets = {},
                     .eval_parts = made.eval_parts};
    describing.join();
    for (auto& file : described) about.files.push_back(TROUPE_TRY(std::move(file)));
    TROUPE_RETURN_IF_ERROR(unchanged());
    // Freed by threads that have ended: whoever tokenised lives as long as the run.
    ::malloc_trim(0);
    // The guard removes the folder by its name: it is let go before folders are renamed.
    return writer.finish(std::move(about), request_.folder, [&guard] { guard.reset(); });
  }

  static constexpr const char* kBuilding = ".building-";
  FileSystem& files_;
  const DataOptions& options_;
  const Tokenizer& tokenizer_;
  const CacheRequest& request_;
  std::optional<DatasetModule> prepared_;
  Wanted wanted_;
  std::string why_;  // the folder's cache is not taken
};

}  // namespace

Result<CachedDataset> cached_dataset(FileSystem& files, const DataOptions& options,
                                     const Tokenizer& tokenizer, const CacheRequest& request) {
  return CachedMaking(files, options, tokenizer, request).run();
}

Status check_cache_place(FileSystem& files, const std::string& folder, bool named) {
  const auto refused = [&](Code code, std::string_view what) {
    return error(code, "{}{} {}: name another folder, where the data are tokenised anew",
                 named ? "tokenized_path " : "", folder, what)
        .with("key", "tokenized_path");
  };
  const auto entries = files.list(folder);
  if (!entries.ok() && files.exists(folder))
    return refused(Code::kInvalidArgument, "is there and is no folder that can be read");
  if (!entries.ok() || entries->empty() || holds_token_cache(files, folder)) return {};
  const bool of_arrow = std::ranges::any_of(*entries, [](const DirectoryEntry& entry) {
    return entry.name == "dataset_dict.json" || entry.name == "state.json" ||
           entry.name.ends_with(".arrow");
  });
  if (of_arrow)
    return refused(Code::kUnsupported,
                   "holds a data set that LLaMA-Factory or datasets saved (Arrow), which cannot be "
                   "read as tokenised data");
  return refused(Code::kInvalidArgument, "is not empty and holds no tokenised data");
}

bool holds_token_cache(FileSystem& files, const std::string& folder) {
  return files.exists(join_path(folder, kTokenCacheFile));
}

}  // namespace troupe::train
