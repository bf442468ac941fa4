#pragma once
// Memory that outlives this process, by name: what a trainer finds of the one before it.

#include <map>
#include <optional>
#include <string>

#include "runtime/base/status.h"
#include "runtime/memory/segment.h"
#include "troupe/detail/mutex.h"

namespace troupe::train {

// Thread-safe.
class SurvivingMemory {
 public:
  virtual ~SurvivingMemory() = default;
  // Takes over the segment that a process before this one kept under `name`, every page mapped;
  // nullopt where there is none. It is this process's alone: the other one is gone.
  virtual Result<std::optional<memory::Segment>> take(const std::string& name) = 0;
  // Keeps a segment beyond this process, instead of an earlier one of the name.
  virtual Status keep(const std::string& name, const memory::Segment& segment) = 0;
  // The same for memory that only a device can map: a descriptor of an allocation, whose size
  // whoever takes it must know. Names are those of segments.
  virtual Result<std::optional<UniqueFd>> take_descriptor(const std::string& name) = 0;
  virtual Status keep_descriptor(const std::string& name, int descriptor) = 0;
  // Keeps nothing under the name any more.
  virtual Status forget(const std::string& name) = 0;
};

// For processes whose end ends the run, and for tests: survives as long as the object.
class ProcessMemory final : public SurvivingMemory {
 public:
  Result<std::optional<memory::Segment>> take(const std::string& name) override;
  Status keep(const std::string& name, const memory::Segment& segment) override;
  Result<std::optional<UniqueFd>> take_descriptor(const std::string& name) override;
  Status keep_descriptor(const std::string& name, int descriptor) override;
  Status forget(const std::string& name) override;

 private:
  Mutex mutex_;
  std::map<std::string, UniqueFd> kept_ TROUPE_GUARDED_BY(mutex_);
};

// Maps a segment that was found, whatever its size.
Result<memory::Segment> map_found(UniqueFd fd);

}  // namespace troupe::train
