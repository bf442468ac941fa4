#include <algorithm>
#include <array>

#include "tests/fuzz/fuzz_target.h"

namespace troupe::tests {

std::span<const FuzzTarget> fuzz_targets() {
  static const std::array targets{
      kActorValuesTarget,     kAdapterConfigTarget, kArrowTarget,
      kBundleTarget,          kCallTarget,          kConfigTarget,
      kControlTarget,         kDataFilesTarget,     kDeltaTarget,
      kFaultsTarget,          kFramesTarget,        kHandshakeClientTarget,
      kHandshakeServerTarget, kHeadTarget,          kHostTarget,
      kJinjaTarget,           kJournalTarget,       kJsonTarget,
      kKeeperTarget,          kKeptMemoryTarget,    kManifestTarget,
      kModelConfigTarget,     kNodeTarget,          kPackageTarget,
      kPiecesTarget,          kProgressTarget,      kRecordsTarget,
      kReportsTarget,         kSafetensorsTarget,   kSentencePieceTarget,
      kTextsTarget,           kTokenizerTarget,
  };
  return targets;
}

const FuzzTarget* find_fuzz_target(std::string_view name) {
  const auto targets = fuzz_targets();
  const auto found = std::find_if(targets.begin(), targets.end(),
                                  [name](const FuzzTarget& target) { return target.name == name; });
  return found == targets.end() ? nullptr : &*found;
}

}  // namespace troupe::tests
