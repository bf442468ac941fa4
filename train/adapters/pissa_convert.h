#pragma once
// After training: a PiSSA adapter, whose base is the rest of a decomposition, as a plain one of
// twice the rank beside the original base.

#include <string>

#include "runtime/base/file_system.h"
#include "runtime/base/status.h"

namespace troupe::train {

// Folders of the output directory, as LLaMA-Factory's pissa_convert writes them.
inline constexpr const char* kPissaInitFolder = "pissa_init";
inline constexpr const char* kPissaBackupFolder = "pissa_backup";
inline constexpr const char* kPissaConvertedFolder = "pissa_converted";

// Reads the adapter in `folder` and, from `start`, what it began as; writes pissa_backup (the
// adapter, for the rest of the decomposition) and pissa_converted (A' = [A; A₀], B' = [B, −B₀], for
// the original base) into `folder`. Modules that were trained whole are in both; PEFT leaves them
// out of the second.
Status convert_pissa(FileSystem& files, const std::string& folder, const std::string& start);

}  // namespace troupe::train
