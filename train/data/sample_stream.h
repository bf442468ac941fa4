#pragma once
// What decides the samples that a run trains on and their order. A checkpoint carries it, so that a
// run which goes on from there can tell whether its samples are the same ones.

#include <cstdint>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/file_stamp.h"
#include "runtime/base/file_system.h"
#include "runtime/base/hash.h"
#include "runtime/base/json.h"
#include "train/data/build_dataset.h"
#include "train/data/token_dataset.h"

namespace troupe::train {

// A data file as it was read.
struct StreamFile {
  std::string path;
  FileStamp stamp;  // zero: not known
  std::uint64_t xxh3 = 0;
  friend bool operator==(const StreamFile&, const StreamFile&) = default;
};

// A hash as 16 digits, and back; nothing where the member is none.
std::string hash_text(std::uint64_t hash);
std::optional<std::uint64_t> hash_in(const json::Value& value, std::string_view key);

json::Array files_to_json(std::span<const StreamFile> files);
// kDataLoss for what files_to_json() did not write; `name` stands in errors.
Result<std::vector<StreamFile>> files_from_json(const json::Value& list, std::string_view name);

// A file as it is now: its hash is read, but for one with the same path and stamp in `known`.
// kCancelled once `stop` is asked for.
Result<StreamFile> describe_file(FileSystem& files, const std::string& path,
                                 std::span<const StreamFile> known, std::stop_token stop = {});
// The data files of `options` that are trained on, in order.
Result<std::vector<std::string>> training_files(FileSystem& files, const DataOptions& options);

// What the entries of these data sets in dataset_info.json say of their rows.
Result<std::string> columns_of(FileSystem& files, const DataOptions& options,
                               const std::vector<std::string>& names);

// Adds samples to the hash that SampleStream has of them.
void add_to_hash(Xxh3Stream& hash, const TokenDataset& samples);
// That of all samples of a data set; not worked out where it is known.
std::uint64_t samples_hash(const TokenDataset& dataset);

// The setting that stands for what columns_of() says.
inline constexpr std::string_view kColumnsSetting = "columns and tags in dataset_info.json";
// "cutoff_len was 64 and is 32"; hashes, which tell a reader nothing, are not shown.
std::string setting_difference(std::string_view key, const json::Value* before,
                               const json::Value& now);

struct SampleStream {
  std::vector<StreamFile> files;  // in the order in which they are read
  // By the configuration's key, with the values in effect; hashes stand for what is long.
  json::Object settings;
  // The samples that came of it.
  std::int64_t samples = 0;
  std::int64_t tokens = 0;
  std::uint64_t xxh3 = 0;

  std::string to_text() const;
  // kDataLoss for what to_text() did not write. Fields that are not known are passed over.
  static Result<SampleStream> parse(std::string_view text, std::string_view name);
};

// What is not said by DataOptions.
struct StreamOrigin {
  std::string_view tokenizer;  // the text of its files
  std::uint32_t order_seed = 0;
  bool shuffle = true;
  bool group_by_length = false;
  std::string packing = {};  // how samples are packed anew in every epoch; empty: they are not
};

// The settings that decide the samples and their order.
Result<json::Object> stream_settings(FileSystem& files, const DataOptions& options,
                                     const StreamOrigin& origin);

// Of a data set that was built with `options`. Reads the data files, but for those that have in
// `known` an entry with the same path and stamp: their hash is taken from there.
Result<SampleStream> describe_stream(FileSystem& files, const DataOptions& options,
                                     const StreamOrigin& origin, const TokenDataset& dataset,
                                     std::span<const StreamFile> known);

// Of samples that a program has itself: `source` is their name, `samples` the number in an epoch;
// `dataset` is empty where a source makes them.
SampleStream own_stream(std::string_view source, std::int64_t samples, const TokenDataset& dataset,
                        std::uint32_t order_seed, bool shuffle);

// Of tokenised data that were taken as they are, without a name of their data sets; `files`: that
// they were made of, once.
SampleStream taken_stream(const StreamOrigin& origin, const TokenDataset& dataset,
                          std::vector<StreamFile> files);

// What makes `now` another stream than `before`, a phrase for each difference, such as "cutoff_len
// was 64 and is 32". Files that only lie elsewhere are no difference, nor are other files that give
// the same samples, nor is a setting that one of the two does not know; data sets of other names
// are told instead of their columns.
std::vector<std::string> differences(const SampleStream& before, const SampleStream& now);

}  // namespace troupe::train
