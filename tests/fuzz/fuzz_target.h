#pragma once
// What is fuzzed: readers of bytes that come from a peer, a file or a user.
//
// A target runs one input and returns, whatever the input is; where a reader took the input, it
// checks what must hold of the value as well. The same targets run under libFuzzer (fuzz_main.cpp,
// tools/fuzz) and, on their seeds and damaged forms of them, in the default tests.

#include <chrono>
#include <cstddef>
#include <span>
#include <string_view>
#include <vector>

#include "tests/fuzz/input_limits.h"

namespace troupe::tests {

using FuzzBytes = std::vector<std::byte>;

struct FuzzTarget {
  std::string_view name;
  std::string_view reads;  // what it reads, in a few words
  // Longer inputs are not tried: they find nothing new, and slowly.
  std::size_t bytes_max;
  void (*run)(std::span<const std::byte> input);
  // Inputs that the readers take, made by the writers of this very build.
  std::vector<FuzzBytes> (*seeds)();
  std::chrono::milliseconds time_max = kInputTimeMax;
};

// All of them, by name.
std::span<const FuzzTarget> fuzz_targets();
// Null: there is none of this name.
const FuzzTarget* find_fuzz_target(std::string_view name);

// Each is defined in the file of its subject: *_targets.cpp.
extern const FuzzTarget kActorValuesTarget;
extern const FuzzTarget kAdapterConfigTarget;
extern const FuzzTarget kArrowTarget;
extern const FuzzTarget kBundleTarget;
extern const FuzzTarget kCallTarget;
extern const FuzzTarget kConfigTarget;
extern const FuzzTarget kControlTarget;
extern const FuzzTarget kDataFilesTarget;
extern const FuzzTarget kDeltaTarget;
extern const FuzzTarget kFaultsTarget;
extern const FuzzTarget kFramesTarget;
extern const FuzzTarget kHandshakeClientTarget;
extern const FuzzTarget kHandshakeServerTarget;
extern const FuzzTarget kHeadTarget;
extern const FuzzTarget kHostTarget;
extern const FuzzTarget kJinjaTarget;
extern const FuzzTarget kJournalTarget;
extern const FuzzTarget kJsonTarget;
extern const FuzzTarget kKeeperTarget;
extern const FuzzTarget kKeptMemoryTarget;
extern const FuzzTarget kManifestTarget;
extern const FuzzTarget kModelConfigTarget;
extern const FuzzTarget kNodeTarget;
extern const FuzzTarget kPackageTarget;
extern const FuzzTarget kPiecesTarget;
extern const FuzzTarget kProgressTarget;
extern const FuzzTarget kRecordsTarget;
extern const FuzzTarget kReportsTarget;
extern const FuzzTarget kSafetensorsTarget;
extern const FuzzTarget kSentencePieceTarget;
extern const FuzzTarget kTextsTarget;
extern const FuzzTarget kTokenizerTarget;

}  // namespace troupe::tests
