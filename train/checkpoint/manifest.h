#pragma once
// The marker of a complete checkpoint, `troupe_checkpoint.json`: written last, it lists every file
// with size and hash, and guards itself with a hash.
//
//   {"contents": ["model", "optimizer"], "files": [{"name", "size", "xxh3"}…], "format": "hf",
//    "format_version": 1, "run": "…", "step": 500, "world_size": 2, "xxh3": "…"}
//
// `format` names the layout of the tensors: "hf" is whole tensors in HF form; other layouts (shards
// by rank) list their files in the same way. Hashes are XXH3-64, 16 hexadecimal digits; the last is
// that of the text without it. Sizes count bytes.

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/base/file_system.h"
#include "runtime/base/status.h"
#include "train/checkpoint/safetensors.h"

namespace troupe::train {

inline constexpr const char* kManifestFile = "troupe_checkpoint.json";
inline constexpr int kCheckpointFormatVersion = 1;
inline constexpr const char* kFormatHf = "hf";

struct Manifest {
  std::string format = kFormatHf;
  std::int64_t step = 0;
  int world_size = 1;         // of the run that wrote it; loading does not depend on it
  std::string run;            // the id of that run; may be empty
  bool has_optimizer = true;  // optimizer state, schedule, random state, cursor beside the weights
  std::vector<FileDigest> files;  // sorted by name
};

// The file's text. Sorts `files`.
std::string manifest_text(Manifest manifest);
// kDataLoss where a single bit differs from what was written; kUnsupported for a later version.
Result<Manifest> parse_manifest(std::string_view text, const std::string& path);

// Reads the marker of `directory` and compares every file's size and bytes with it, reading all of
// them once. kNotFound without a marker, kDataLoss naming the first file that is not as written.
Result<Manifest> verify_checkpoint(FileSystem& files, const std::string& directory);

}  // namespace troupe::train
