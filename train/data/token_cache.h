#pragma once
// Samples kept on disk as they are trained on: arrays that processes map, so that nobody copies
// them.
//
// A folder holds up to three sets ("train", "eval", "held_out"), each as one file for each of its
// arrays ("train.ids", "train.ends", …: numbers as they lie in memory, without a header), and
// cache.json, which says what the samples were made of, and size, hash and stamp of every file. It
// is written into a folder beside, appending only, cache.json last, and that is renamed when all of
// it is on the disk: a folder of the right name is complete, and what a killed writer leaves has
// another name.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "runtime/base/file_stamp.h"
#include "runtime/base/file_system.h"
#include "runtime/base/hash.h"
#include "runtime/base/json.h"
#include "train/data/eval_parts.h"
#include "train/data/sample_stream.h"
#include "train/data/token_dataset.h"

namespace troupe::train {

inline constexpr const char* kTokenCacheFile = "cache.json";

struct CachedColumn {
  std::string name;  // of the array, such as "ids"
  std::uint64_t size_bytes = 0;
  std::uint64_t xxh3 = 0;
  FileStamp stamp;
};

struct CachedSet {
  TokenDataset::Kind kind = TokenDataset::Kind::kPretrain;
  TokenId pad_id = 0;
  std::uint64_t xxh3 = 0;  // of the samples: samples_hash()
  std::vector<CachedColumn> columns;
};

struct TokenCache {
  json::Object settings;           // all that decided the samples, by name
  std::vector<StreamFile> files;   // that they were made of
  std::int64_t records = 0;        // rows read for "train"
  std::vector<std::string> notes;  // of the making, for people
  std::map<std::string, CachedSet> sets;
  std::vector<EvalPart> eval_parts;

  std::string to_text() const;
  // kDataLoss for what to_text() did not write.
  static Result<TokenCache> parse(std::string_view text, const std::string& name);
};

// What is in the folder. kNotFound: no cache. kDataLoss: it is damaged; the message names the file.
// Sizes are compared, and the hashes of files whose stamp is not the one they were written with
// (which reads them whole).
Result<TokenCache> read_token_cache(FileSystem& files, const std::string& folder);
// The samples of a set, mapped; kNotFound where there is none of that name.
Result<TokenDataset> map_cached_set(FileSystem& files, const std::string& folder,
                                    const TokenCache& cache, const std::string& set);

// A cache on its way to another machine: `give` gets the bytes of all its files in one fixed order,
// in pieces of at most 1 MiB. kDataLoss where a file is not as long as `cache` says.
Status give_cached_files(FileSystem& files, const std::string& folder, const TokenCache& cache,
                         const std::function<Status(std::span<const std::byte>)>& give);
// Its other end: `take` fills its argument with the bytes that come next. They are written to a
// folder beside `folder`, which takes its place when all of them are on the disk. kDataLoss where
// the bytes are not those that `cache` has the hashes of.
Status take_cached_files(FileSystem& files, TokenCache cache, const std::string& folder,
                         const std::function<Status(std::span<std::byte>)>& take);

class TokenCacheWriter {
 public:
  // Writes into the folder `building`, which must not be there yet.
  static Result<TokenCacheWriter> begin(FileSystem& files, const std::string& building);
  TokenCacheWriter(TokenCacheWriter&&) noexcept;
  ~TokenCacheWriter();  // removes what was not finished

  // Behind what the set has.
  Status append(const std::string& set, const TokenDataset& samples);
  // Puts all of it on the disk, and instead of the cache that is in `folder`, if any. Sets of
  // `about` that were not appended are files that are in `building` already. `on_disk`: called when
  // nothing is half made any more, before names are changed.
  Status finish(TokenCache about, const std::string& folder,
                const std::function<void()>& on_disk = {});

 private:
  struct Column;
  struct Set;
  TokenCacheWriter(FileSystem& files, std::string building);
  static Status write(Column& column, std::span<const std::byte> bytes);

  FileSystem* files_;
  std::string building_;
  std::map<std::string, Set> sets_;
};

}  // namespace troupe::train
