#pragma once
// What is wrong with a checkpoint, and where: all of it, not the first fault only.

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/base/file_system.h"
#include "runtime/base/status.h"
#include "train/checkpoint/manifest.h"

namespace troupe::train {

struct CheckpointDamage {
  std::string file;          // in the checkpoint's directory; empty: the directory itself
  std::uint64_t offset = 0;  // the damaged part of the file; size 0: all of it
  std::uint64_t size_bytes = 0;
  std::vector<std::string> tensors;  // whose bytes lie there, as far as the header can be read
  Status reason;
};

struct CheckpointInspection {
  std::string path;
  std::int64_t step = 0;
  std::string format;    // "hf", "sharded"; empty: another program's, or not known
  bool foreign = false;  // another program's: complete, but without hashes
  bool has_optimizer = false;
  int world_size = 0;                    // of the run that wrote it; 0: not known
  std::uint64_t size_bytes = 0;          // of the files that are there
  std::vector<CheckpointDamage> damage;  // none: it is good
};

// Reads the whole checkpoint, `threads` parts of files at a time.
CheckpointInspection inspect_checkpoint(FileSystem& files, const std::string& path,
                                        int threads = 1);

// Compares sizes and bytes of all files of the manifest with it; damage in the order of files.
std::vector<CheckpointDamage> check_files(FileSystem& files, const std::string& directory,
                                          const Manifest& manifest, int threads = 1);

// Reads the marker of `directory` and compares every file with it, reading all of them once.
// kNotFound without a marker, kDataLoss naming the first file that is not as written.
Result<Manifest> verify_checkpoint(FileSystem& files, const std::string& directory,
                                   int threads = 1);

}  // namespace troupe::train
