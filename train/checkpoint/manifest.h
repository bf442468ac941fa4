#pragma once
// The marker of a complete checkpoint, `troupe_checkpoint.json`: written last, it lists every file
// with size and hash, and guards itself with a hash.
//
//   {"contents": ["model", "optimizer"],
//    "files": [{"name": "config.json", "size": 2, "xxh3": "…"},
//              {"name": "model.safetensors", "size": 900,
//               "parts": [{"offset": 0, "size": 500, "xxh3": "…"}, {"offset": 500, …}]},
//              {"name": "optimizer-00001-of-00002.safetensors", "size": 700, "xxh3": "…",
//               "pieces": {"SLOT.NAME": 0, …}}…],
//    "format": "hf", "format_version": 2, "run": "…", "step": 500,
//    "tensors": {"SLOT.NAME": {"dtype": "F32", "shape": [64, 32]}, …},
//    "world_size": 2, "xxh3": "…"}
//
// `format` names the layout of the weights: "hf", whole tensors in HF form, or "sharded", pieces by
// rank. A file that several ranks wrote, or a large one, has hashes of its parts. `pieces` of a
// file: which of its tensors are pieces, and the element of the whole tensor (row-major) each
// begins at; `tensors`: what they are pieces of. Version 1 has neither parts nor pieces nor
// tensors. Hashes are XXH3-64, 16 hexadecimal digits; the last is that of the text without it.
// Sizes count bytes.

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "runtime/base/status.h"
#include "train/checkpoint/safetensors.h"
#include "train/checkpoint/tensor_piece.h"

namespace troupe::train {

// A step beyond it is damage or a joke: no run gets there, and it would not be exact in doubles.
inline constexpr std::int64_t kCheckpointStepMax = 1'000'000'000'000'000;
inline constexpr const char* kManifestFile = "troupe_checkpoint.json";
inline constexpr int kCheckpointFormatVersion = 2;
inline constexpr const char* kFormatHf = "hf";
inline constexpr const char* kFormatSharded = "sharded";
// A manifest lists files and pieces, a few for each rank and layer: far below this.
inline constexpr std::size_t kManifestBytesMax = 64u << 20;

// A range of a file's bytes with its hash.
struct FilePart {
  std::uint64_t offset = 0;
  std::uint64_t size_bytes = 0;
  std::uint64_t xxh3 = 0;
};

struct ManifestFile : FileDigest {
  std::vector<FilePart> parts;                 // in order, covering the file; then xxh3 is unused
  std::map<std::string, std::int64_t> pieces;  // tensor → first element
};

struct Manifest {
  int version = kCheckpointFormatVersion;
  std::string format = kFormatHf;
  std::int64_t step = 0;
  int world_size = 1;               // of the run that wrote it; loading does not depend on it
  std::string run;                  // the id of that run; may be empty
  bool has_optimizer = true;        // optimizer state, schedule, random state beside the weights
  std::vector<ManifestFile> files;  // sorted by name
  std::map<std::string, TensorInfo> tensors;  // those that lie in pieces, by name
};

// The file's text. Sorts `files`.
std::string manifest_text(Manifest manifest);
// kDataLoss where a single bit differs from what was written; kUnsupported for a later version.
Result<Manifest> parse_manifest(std::string_view text, const std::string& path);
// Parses the marker of `directory`; kNotFound where there is none, kUnsupported for a format that
// this version does not know.
Result<Manifest> read_manifest(FileSystem& files, const std::string& directory);

}  // namespace troupe::train
